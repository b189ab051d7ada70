"""Explanations equal what the models compute, for sums, paths and words, and HTML is escaped.

The scores to explain come from private methods, since public ones calibrate them.
"""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer, TfidfTransformer, TfidfVectorizer
from sklearn.pipeline import make_pipeline, make_union

import treemax
from treemax.checks.examples import example_data, example_lists
from treemax.explanations.as_html import character_weights
from treemax.models.one_vs_all.model import FeatureMajor, LabelMajor, PackedFeatures
from treemax.text.occurrences import occurrences

X, Y = example_data()
SPARSE = sp.csr_matrix(X)
TEXTS = ["red apple pie", "green apple", "sour plum", "fast red car", "slow car", "old train"] * 5
NAMES = ["apple", "apple", "plum", "car", "car", "train"] * 5


def text_model(vectorizer=None, **options):
    return treemax.TextModel(vectorizer, treemax.OneVsAll(verbose=0, **options)).fit(TEXTS, NAMES)


# --- numbers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["softmax", "logistic", "squared_hinge"])
@pytest.mark.parametrize("layout", [LabelMajor, FeatureMajor, PackedFeatures])
def test_the_logit_of_a_flat_model_is_its_score(layout, loss):
    rows, labels, least = (X if layout is LabelMajor else SPARSE), Y, 1e-3
    if layout is PackedFeatures:  # most weights are never updated
        rows, labels, least = sp.identity(60, format="csr"), np.arange(60), 0.3
    model = treemax.OneVsAll(loss=loss, least_gradient=least, verbose=0).fit(rows, labels)
    assert isinstance(model.model_, layout)
    scores = model.model_.scores(model._rows_to_predict(rows[2:3]))[0]
    for number, label in enumerate(model.classes_):
        [path] = model.explain(rows[2:3], label=label).paths
        assert path.steps[0].logit == pytest.approx(float(scores[number]), rel=1e-4, abs=1e-5)


TREES = [
    treemax.LabelTree(n_trees=3, max_leaf=2, verbose=0),
    treemax.LabelTree(loss="logistic", arity=2, max_leaf=2, precision="int8", verbose=0),
    treemax.OnlineLabelTree(arity=2, max_leaf=2, verbose=0),
    treemax.LearnedTree(arity=2, verbose=0),
    treemax.LearnedTree(arity=3, verbose=0),
]


@pytest.mark.slow
@pytest.mark.parametrize("several_labels", [False, True])
@pytest.mark.parametrize("kind", TREES, ids=str)
def test_the_paths_to_all_labels_give_their_scores(kind, several_labels):
    rows, labels = (SPARSE, Y) if not several_labels else (sp.csr_matrix(example_lists()[0]), example_lists()[1])
    model = kind.fit(rows, labels)
    row = model._rows_to_predict(rows[5:6])
    expected = model._probabilities(row)[0]
    for number, label in enumerate(model.classes_):
        told = model.explain(rows[5:6], label=label)
        found = sum(path.weight * path.probability for path in told.paths)
        assert found == pytest.approx(float(expected[number]), rel=2e-4, abs=1e-7)
        assert told.score == pytest.approx(found, rel=2e-4, abs=1e-7)
    if isinstance(model, treemax.LabelTree):
        assert ("8 bits" in told.weights) == (model.precision == "int8") and len(told.paths) == model.n_trees


@pytest.mark.parametrize("rows", [X, SPARSE], ids=["dense", "sparse"])
@pytest.mark.parametrize("algorithm", ["beam", "paper"])
def test_ranks_of_a_recall_tree_are_what_the_logits_say(rows, algorithm):
    options = {} if algorithm == "beam" else {"algorithm": "paper"}
    model = treemax.RecallTree(depth=3, passes=3, verbose=0, **options).fit(rows, Y)
    for i in range(10):
        row = rows[i : i + 1]
        told = model.explain(row)
        other = model.explain(row, label=told.alternative.label)
        a, b = told.paths[0].steps[-1].logit, other.paths[0].steps[-1].logit
        if algorithm == "paper":  # normalised logistic probabilities
            a, b = (-math.log1p(math.exp(-logit)) for logit in (a, b))
        assert math.log(told.score / other.score) == pytest.approx(a - b, rel=2e-3, abs=2e-3)
        difference = sum(told.alternative.terms.values()) + told.alternative.added.sum()
        assert difference == pytest.approx(told.paths[0].steps[-1].logit - other.paths[0].steps[-1].logit)


@pytest.mark.parametrize("rows", [X, SPARSE], ids=["dense", "sparse"])
def test_decisions_of_a_lom_tree_lead_to_its_leaf(rows):
    labels = np.where(np.arange(len(Y)) % 3, Y, np.roll(Y, 1))  # leaves with several labels
    model = treemax.LOMTree(passes=2, max_nodes=4, verbose=0).fit(rows, labels)
    for i in range(20):
        told = model.explain(rows[i : i + 1])
        *decisions, last = told.paths[0].steps
        assert decisions and all(step.logit >= 0 for step in decisions)
        found = model.model_.lists(np.array([last.node]))
        of_label = found.counts[found.labels == last.child]
        assert last.probability == pytest.approx(of_label[0] / found.counts.sum())
        assert last.branch.startswith(f"{of_label[0]:,} of ")


def test_similarities_of_double_sampling_give_the_ranking():
    model = treemax.DoubleSampling(verbose=0).fit(SPARSE, Y)
    told = model.explain(SPARSE[2])
    other = model.explain(SPARSE[2], label=told.alternative.label)
    a, b = told.paths[0].steps[0], other.paths[0].steps[0]
    assert "BM25" in a.terms and math.log(told.score / other.score) == pytest.approx(a.logit - b.logit, rel=1e-3)


def test_buckets_of_mach_add_up():
    model = treemax.MACH(n_repetitions=4, n_buckets=5, verbose=0, calibration=0.0).fit(SPARSE, Y)
    told = model.explain(SPARSE[3])
    assert len(told.routes) == 4 and told.alternative.added.any()
    scores = model.model_.flat.scores(model._rows_to_predict(SPARSE[3]))[0].reshape(4, 5)
    for route, own in zip(told.routes, scores):
        step = route.steps[0]
        shares = np.exp(own) / np.exp(own).sum()
        assert step.logit == pytest.approx(float(own[step.child]), rel=1e-4)
        assert step.probability == pytest.approx(float(shares[step.child]), rel=1e-4)


def test_the_alternative_leaves_where_the_paths_part():
    hierarchy = {"fruit": ["apple", "plum"], "vehicle": ["car", "train"]}
    tree = treemax.LabelTree(tree=hierarchy, verbose=0)
    model = treemax.TextModel(treemax.TfidfText(), tree).fit(TEXTS, NAMES)
    told = model.explain("apple plum")
    assert {told.label, told.alternative.label} == {"apple", "plum"} and told.alternative.step == 1
    assert [step.n_labels for step in told.paths[0].steps] == [2, 1]
    far = model.explain("apple plum", label="train")
    assert far.alternative.label == told.label and far.alternative.step == 0
    steps = [model.explain("apple plum", label=label).paths[0].steps[0] for label in ("train", told.label)]
    difference = sum(far.alternative.terms.values()) + far.alternative.added.sum()
    assert difference == pytest.approx(steps[0].logit - steps[1].logit)
    assert "not the answer" in str(far)


def test_a_label_that_the_beam_misses_is_noted():
    random = np.random.RandomState(0)
    rows, labels = random.normal(size=(300, 8)), np.arange(300) % 30
    model = treemax.LabelTree(tree="random", arity=2, max_leaf=2, beam=1, temperature=5.0, verbose=0).fit(rows, labels)
    missed = 0
    for row in rows[:40]:
        found = [label for label in model.predict_topk([row], 3).labels[0] if label is not None]
        scores = model._probabilities(model._rows_to_predict(row[None]))[0]
        best = int(model.classes_[scores.argmax()])
        told = model.explain(row, label=best, k=3)
        assert told.score == pytest.approx(float(scores.max()), rel=1e-4)
        assert (best not in found) == any("did not find this label" in note for note in told.notes)
        missed += best not in found
    assert missed


# --- rows and names ------------------------------------------------------------------------------------


def test_one_row_gives_one_explanation_and_several_a_list():
    model = treemax.OneVsAll(verbose=0).fit(X, Y)
    for row in (X[0], X[0].tolist(), X[:1], SPARSE[0]):
        assert model.explain(row).label == model.predict(X[:1])[0]
    assert [told.label for told in model.explain(X[:3])] == model.predict(X[:3]).tolist()
    texts = text_model()
    assert texts.explain("red apple").to_dict() == texts.explain(["red apple"]).to_dict()
    assert [told.text for told in texts.explain(["plum", "car"])] == ["plum", "car"]


def test_features_have_the_names_of_a_data_frame():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=[f"size {i}" for i in range(X.shape[1])])
    model = treemax.LabelTree(verbose=0).fit(frame, Y)
    told = model.explain(frame.iloc[0])
    assert told.features == [f"size {i}" for i in np.flatnonzero(X[0])]
    assert told.columns.tolist() == np.flatnonzero(X[0]).tolist()


def test_wrong_labels_and_rows_are_refused(tmp_path):
    model = text_model()
    with pytest.raises(ValueError, match="does not know the label 'yak'"):
        model.explain("red", label="yak")
    with pytest.raises(ValueError, match="expecting 20 features"):
        treemax.OneVsAll(verbose=0).fit(X, Y).explain(X[0, :7])
    online = treemax.OnlineLabelTree(tree="complete", policy="none", verbose=0).partial_fit(X[:21], Y[:21])
    online.partial_fit(X[:21], np.where(Y[:21] == "ant", "yak", Y[:21]))
    with pytest.raises(ValueError, match="does not consider the label 'yak' for this row"):
        online.explain(X[:1], label="yak")


def test_an_empty_text_is_explained_by_the_prior():
    model = text_model()
    for text in ("", "???", "unheard"):
        told = model.explain(text, k=2)
        assert told.prior and not told.paths and not told.spans
        assert told.score == told.probability == pytest.approx(1 / 3)
        assert "the answer is the frequencies of the labels" in str(told) and "frequencies" in told.to_html()
        assert told.alternative.label == told.candidates[1].label
    assert model.explain("", label="plum").probability == pytest.approx(1 / 6)


def test_calibration_shows_before_and_after():
    model = treemax.LabelTree(verbose=0).fit(SPARSE, Y)
    model.calibration_ = model.calibration_._replace(slope=0.5, shift=-0.2)
    told = model.explain(SPARSE[0])
    assert told.probability == pytest.approx(float(model.predict_topk(SPARSE[0], 1).scores[0, 0]))
    assert abs(told.probability - told.score) > 0.001 and "before calibration" in str(told)
    assert told.score == pytest.approx(float(model._top(model._rows_to_predict(SPARSE[0]), 1)[1][0, 0]))


# --- words ---------------------------------------------------------------------------------------------

VECTORIZERS = [
    treemax.TfidfText(),
    treemax.TfidfText(ngram_range=(1, 2), stop_words=["red"], strip_accents="unicode"),
    treemax.TfidfText(lowercase=False),
    treemax.HashingText(bits=12, ngram_range=(1, 2), char_ngram_range=(2, 4)),
    treemax.HashingText(bits=12, ngram_range=None, char_ngram_range=(3, 3)),
    treemax.HashingText(bits=2),
    TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4)),
    CountVectorizer(analyzer="char", ngram_range=(1, 5)),
    CountVectorizer(tokenizer=str.split, token_pattern=None),
    HashingVectorizer(n_features=256),
    make_pipeline(CountVectorizer(), TfidfTransformer()),
    make_union(CountVectorizer(), treemax.TfidfText(analyzer="char_wb", ngram_range=(3, 3))),
]
SENTENCES = ["Red  APPLE, a red\tapple!", "İstanbul été ΑΣ plum", "a", "", "car-car 模型 x", "pie  red"]


@pytest.mark.parametrize("vectorizer", VECTORIZERS, ids=lambda own: re.sub(r"\s+", " ", str(own))[:60])
def test_every_feature_has_its_places_in_the_text(vectorizer):
    model = text_model(vectorizer)
    for sentence in SENTENCES:
        told, columns = model.explain(sentence), model.vectorizer.transform([sentence]).indices
        assert {found.column for found in occurrences(model.vectorizer, sentence)} == set(columns.tolist())
        assert set(told.columns.tolist()) <= set(columns.tolist())
        assert all(isinstance(name, str) for name in told.features)
        for span in told.spans:
            covered = sentence[span.start : span.end].lower()
            assert 0 <= span.start < span.end <= len(sentence)
            if sentence.isascii() and covered.strip():
                own = re.sub(r"\s+", " ", covered.strip())
                assert own in told.features[span.feature].lower()


def test_positions_of_words_and_characters():
    told = text_model().explain("Red, an APPLE; red")
    places = {(told.text[span.start : span.end], span.share) for span in told.spans}
    assert places == {("Red", 0.5), ("red", 0.5), ("APPLE", 1.0)}
    added = dict(zip(told.features, told.added))
    shown = character_weights(told)
    assert shown[0] == shown[17] == pytest.approx(added["red"] / 2) and shown[8] == pytest.approx(added["apple"])
    assert shown[3] == 0 and [name for name, _ in told.ranked()] == sorted(added, key=lambda name: -abs(added[name]))


def test_words_that_share_a_column_are_shown_together():
    told = text_model(treemax.HashingText(bits=1)).explain("red apple pie car")
    assert any(" | " in name for name in told.features) and any("hashes" in note for note in told.notes)


def test_components_of_a_pipeline_have_their_names():
    model = text_model(make_pipeline(TfidfVectorizer(), TruncatedSVD(2, random_state=0)))
    assert model.explain("red apple").features == ["truncatedsvd0", "truncatedsvd1"]


TAGS = {"html", "head", "meta", "title", "body", "style", "div", "p", "b", "br", "span", "table", "tr", "th", "td"}


# --- forms ---------------------------------------------------------------------------------------------


def test_html_has_nothing_unescaped():
    evil = ['<script>alert("a")</script>', "b & 'c'", "<img src=x>"]
    texts = [f"{name} word{i}" for i, name in enumerate(evil)] * 9
    model = treemax.TextModel(TfidfVectorizer(token_pattern=r"\S+"), treemax.LabelTree(verbose=0)).fit(texts, evil * 9)
    told = model.explain(texts[0])
    for page in (told.to_html(), told.to_html(page=True), told._repr_html_()):
        assert "<script" not in page and "<img" not in page and "&lt;script&gt;" in page
        assert "http" not in page and set(re.findall(r"<(\w+)", page)) <= TAGS
    assert told.to_html(page=True).startswith("<!DOCTYPE html>")
    frame = treemax.OneVsAll(verbose=0).fit(X, np.where(Y == "ant", evil[0], Y))
    assert "<script" not in frame.explain(X[0], label=evil[0]).to_html()


def test_json_has_all_of_it():
    told = (
        treemax.LabelTree(n_trees=2, verbose=0).fit(SPARSE, np.searchsorted(sorted(set(Y)), Y)).explain(SPARSE[4], k=3)
    )
    found = json.loads(told.to_json())
    assert found["label"] == int(told.label) and len(found["candidates"]) == 3 and len(found["paths"]) == 2
    for step in (step for path in found["paths"] for step in path["steps"]):
        assert step["logit"] == pytest.approx(sum(step["terms"].values()) + sum(step["added"]))
    assert [each["added"] for each in found["features"]] == pytest.approx(told.added.tolist())


def test_text_sums_what_it_does_not_show():
    told = treemax.OneVsAll(verbose=0, scale=False).fit(X, Y).explain(X[0])
    step = told.paths[0].steps[0]
    line = next(line for line in told.to_text(features=1).splitlines() if " = bias " in line)
    numbers = [float(number) for number in re.findall(r"[+-]\d+\.\d+", line)]
    assert numbers[0] == pytest.approx(step.logit, abs=0.006) and sum(numbers[1:]) == pytest.approx(
        step.logit, abs=0.02
    )
    assert f"{len(told.ranked()) - 1} others" in line


def test_the_bars_of_the_plot_are_the_contributions():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    told = text_model().explain("red apple pie")
    axes = treemax.plot_explanation(told, features=1)
    assert axes.patches[0].get_width() == pytest.approx(told.ranked()[0][1])
    assert sum(bar.get_width() for bar in axes.patches) == pytest.approx(told.added.sum())
    assert treemax.plot_explanation(told, axes) is axes


def test_the_page_in_the_documentation_is_what_its_session_gives():
    docs = Path(__file__).parent.parent.parent / "docs"
    session = re.search(r"```python\n(.*?)```", (docs / "explanations.md").read_text(), re.DOTALL)[1]
    namespace: dict = {}
    exec(session, namespace)
    shown, stored = namespace["told"].to_html(), (docs / "images" / "explanation.html").read_text().rstrip("\n")
    without = re.compile(r"\d\.\d+")
    assert without.sub("", shown) == without.sub("", stored), "write told.to_html() to docs/images/explanation.html"


def test_a_row_whose_only_labels_were_forgotten():
    """A leaf may have no other label: the answer is the most frequent of the others, and so is the explanation."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 12, 600)
    texts = [f"word{label} other{rng.integers(9)}" for label in y]
    model = treemax.TextModel(estimator=treemax.LOMTree(verbose=0)).fit(texts, [f"label {label}" for label in y])
    model.forget([label for label in model.classes_ if label not in ("label 4", "label 7")])
    frequent = "label 4" if (y == 4).sum() > (y == 7).sum() else "label 7"
    text = texts[int(np.flatnonzero(y == 1)[0])]
    assert model.predict_topk([text], 1).labels[0, 0] is None and model.predict([text]).tolist() == [frequent]
    told = model.explain(text)
    assert (told.label, told.probability, told.prior, len(told.paths)) == (frequent, 0.0, True, 0)
    assert "most frequent" in str(told) and frequent in told.to_html() and frequent in told.to_json()
    with pytest.raises(ValueError, match=r"no path to explain\.$"):
        model.explain(text, label="label 4")
