"""`treemax.light` gives the answers of the whole library."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import treemax
import treemax.light
from treemax.kernels.jit import kernel
from treemax.kernels.text import is_word_character
from treemax.light.calibration import RowCalibration
from treemax.light.text import HASHED_WORD, hashing, tfidf
from treemax.modelfile import ModelFileError, object_parts, write_model
from treemax.models.calibration import Calibration
from treemax.numpy_only.calibration import LEADING

WORDS = [f"w{i}" for i in range(60)] + ["Straße", "naïve", "日本語", "x_1"]


@kernel
def word_characters(n_codes):
    found = np.empty(n_codes, np.bool_)
    for code in range(n_codes):
        found[code] = is_word_character(code)
    return found


def example_texts(n_rows: int = 400, n_labels: int = 60) -> tuple[list[str], list[str], list[list[str]]]:
    """Texts, one label for each, and several."""
    random = np.random.default_rng(5)
    texts, y, lists = [], [], []
    for row in range(n_rows):
        label = int(random.integers(n_labels))
        own = [WORDS[label % len(WORDS)], WORDS[(7 * label + 3) % len(WORDS)]]
        texts.append(" ".join([*own, *random.choice(WORDS, 4).tolist(), f"only{row}"]))
        y.append(f"label {label}")
        lists.append([f"label {label}", f"group {label % 7}"][: 1 + row % 2])
    return texts, y, lists


def assert_same(whole, light, X, k: int = 6) -> None:
    expected, got = whole.predict_topk(X, k), light.predict_topk(X, k)
    # Scores of these may be within single precision of one, which calibration spreads.
    allowed = 1e-4 if "LearnedTree" in str(whole) or "squared_hinge" in str(whole) else 2e-6
    assert expected.labels.dtype == got.labels.dtype
    np.testing.assert_allclose(got.scores, expected.scores, atol=allowed)
    apart = -np.diff(expected.scores, axis=1, append=-1.0) > allowed  # labels of equal probability may swap places
    apart[:, 1:] &= apart[:, :-1]
    assert (expected.labels == got.labels)[:, :-1][apart[:, :-1]].all()
    np.testing.assert_allclose(light.predict_proba(X), whole.predict_proba(X), atol=allowed)
    assert list(map(str, light.predict(X))) == list(map(str, whole.predict(X)))


MODELS = [
    treemax.LabelTree(verbose=0),
    treemax.LabelTree(verbose=0, precision="int8"),
    treemax.LabelTree(verbose=0, precision="bfloat16", loss="logistic", search="exact"),
    treemax.LabelTree(verbose=0, n_trees=3, arity=3, max_leaf=4),
    treemax.OnlineLabelTree(),
    treemax.OnlineLabelTree(arity=2, max_leaf=3, beam=2),
    treemax.OnlineLabelTree(precision="float8"),
    treemax.OnlineLabelTree(arity=2, scale_siblings=False),
    treemax.LearnedTree(verbose=0, dimension=8, arity=3),
    treemax.LearnedTree(verbose=0, dimension=8, arity=2, search="beam"),
    treemax.OneVsAll(verbose=0),
    treemax.OneVsAll(verbose=0, loss="squared_hinge"),
    treemax.OneVsAll(verbose=0, loss="logistic"),
]


@pytest.mark.slow
@pytest.mark.parametrize("several", [False, True], ids=["one-label", "several-labels"])
@pytest.mark.parametrize("estimator", MODELS, ids=str)
def test_texts_have_the_same_answers(estimator, several, tmp_path):
    texts, y, lists = example_texts()
    vectorizer = treemax.TfidfText() if several else treemax.HashingText(ngram_range=(1, 2), char_ngram_range=(3, 4))
    treemax.TextModel(vectorizer, estimator).fit(texts, lists if several else y).save(tmp_path / "model.treemax")
    whole, light = (load(tmp_path / "model.treemax") for load in (treemax.load, treemax.light.load))
    assert_same(whole, light, [*texts[:40], "", "unknown", "w1", "W1 w2! w2, Straße naïve日本語"])


@pytest.mark.slow
@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
@pytest.mark.parametrize("estimator", MODELS, ids=str)
def test_vectors_have_the_same_answers(estimator, form, tmp_path):
    random = np.random.default_rng(3)
    y = random.integers(20, size=300)
    X = form((random.normal(size=(300, 12)) + np.eye(20, 12)[y] * 3).round(1))
    estimator.fit(X, y).save(tmp_path / "model.treemax", resume=hasattr(estimator, "partial_fit"))
    whole, light = (load(tmp_path / "model.treemax") for load in (treemax.load, treemax.light.load))
    assert_same(whole, light, X[:40], 7)


@pytest.mark.slow
@pytest.mark.parametrize("several", [False, True], ids=["one-label", "several-labels"])
def test_rows_without_known_features_have_the_same_answers(several, tmp_path):
    texts, y, lists = example_texts(100)
    texts, y, lists = [*texts, *[""] * 20], [*y, *["none"] * 20], [*lists, *[["none", "label 1"]] * 20]
    model = treemax.TextModel(estimator=treemax.LabelTree(verbose=0)).fit(texts, lists if several else y)
    model.save(tmp_path / "model.treemax")
    light = treemax.light.load(tmp_path / "model.treemax")
    labels = ["none", "label 1"] if several else ["none"]
    assert light.predict_topk(["unknown"], 1).labels[0, 0] in labels
    assert_same(treemax.load(tmp_path / "model.treemax"), light, ["", "unknown", texts[0]])


@pytest.mark.slow
def test_thresholds_renamed_labels_and_large_feature_ids(tmp_path):
    texts, _, lists = example_texts()
    model = treemax.TextModel(estimator=treemax.LabelTree(verbose=0)).fit(texts[:300], lists[:300])
    model.choose_thresholds(texts[300:], lists[300:]).forget(["label 3"]).rename({"label 4": "label four"})
    model.save(tmp_path / "model.treemax")
    assert_same(treemax.load(tmp_path / "model.treemax"), treemax.light.load(tmp_path / "model.treemax"), texts[:30])
    X = sp.csr_matrix((np.ones(6), ([0, 1, 2, 3, 4, 5], [5, 2**29, 7, 2**29, 5, 2**28])), shape=(6, 2**29 + 1))
    treemax.OneVsAll(verbose=0).fit(X, list("abcbac")).save(tmp_path / "model.treemax")
    assert_same(treemax.load(tmp_path / "model.treemax"), treemax.light.load(tmp_path / "model.treemax"), X, 3)


def test_labels_of_equal_probability_have_the_same_order(tmp_path):
    random = np.random.default_rng(60)
    y = random.integers(60, size=300)
    X = (random.normal(size=(300, 12)) + np.eye(60, 12)[y] * 3).round(1)
    lists = [[int(label), int(label) + 100][: 1 + row % 2] for row, label in enumerate(y)]
    treemax.LabelTree.as_published(verbose=0).fit(X, lists).save(tmp_path / "model.treemax")
    expected, got = (
        load(tmp_path / "model.treemax").predict_topk(X, 200) for load in (treemax.load, treemax.light.load)
    )
    assert (np.diff(expected.scores, axis=1) == 0).any()
    same = np.diff(expected.scores, axis=1) == np.diff(got.scores, axis=1)
    assert (expected.labels == got.labels)[:, 1:][same].all()


@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
def test_rows_of_the_other_form_have_the_same_answers(form, tmp_path):
    X, y = np.eye(6), list("abcabc")
    treemax.LabelTree(verbose=0).fit(form(X), y).save(tmp_path / "model.treemax")
    whole, light = (load(tmp_path / "model.treemax") for load in (treemax.load, treemax.light.load))
    for rows in (X, sp.csr_matrix(X), np.zeros((1, 6)), sp.csr_matrix(np.eye(9))):
        assert_same(whole, light, rows, 3)
    sparse = sp.csr_matrix(([1.0, 2.0], ([0, 1], [3, 8])), shape=(3, 9))
    expected = whole.predict_topk(sparse, 3)
    got = light.predict_topk([{3: 1.0}, {8: 2.0}, {}], 3)
    assert got.labels.tolist() == expected.labels.tolist()
    for model in (whole, light):
        with pytest.raises(ValueError, match=r"X has 7 features, but .* expecting 6"):
            model.predict_topk(np.eye(7), 1)


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.floats(0, 1, width=32), min_size=1, max_size=9), st.floats(0, 1), st.floats(0.25, 4), st.floats(-3, 3)
)
def test_calibrated_rows_are_those_of_the_kernel(scores, next_share, sharpness, shift):
    ranked = -np.sort(-np.array(scores, dtype=np.float32))
    ranked /= max(ranked.sum(), np.float32(1.0))
    is_first, fields = np.arange(len(ranked)) == 0, (1.2, shift, 0.5, True, next_share, sharpness)
    expected = Calibration(*fields).multiclass_probabilities(ranked[None], ranked[None, :LEADING], is_first[None])[0]
    got = RowCalibration(*fields).multiclass_probabilities(ranked, ranked[:LEADING], is_first)
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-12)


def test_what_needs_the_whole_library_is_refused(tmp_path):
    X, y = np.eye(4), list("abcd")
    treemax.RecallTree(verbose=0).fit(X, y).save(tmp_path / "recall.treemax")
    with pytest.raises(ValueError, match=r"no RecallTree: use treemax\.load"):
        treemax.light.load(tmp_path / "recall.treemax")
    treemax.OneVsAll(verbose=0).fit(X, y).merge({"a": "b"}).save(tmp_path / "merged.treemax")
    with pytest.raises(ValueError, match="merged labels"):
        treemax.light.load(tmp_path / "merged.treemax")
    treemax.OnlineLabelTree().partial_fit(X, [[]] * 4).save(tmp_path / "unlabelled.treemax")
    with pytest.raises(ValueError, match="without labels"):
        treemax.light.load(tmp_path / "unlabelled.treemax")
    treemax.TextModel(treemax.TfidfText(strip_accents="ascii"), treemax.OneVsAll(verbose=0)).fit(
        ["one", "two"], ["a", "b"]
    ).save(tmp_path / "text.treemax")
    with pytest.raises(ValueError, match="strip_accents='ascii'"):
        treemax.light.load(tmp_path / "text.treemax")
    treemax.OneVsAll(verbose=0).fit(X, y).save(tmp_path / "model.treemax")
    light = treemax.light.load(tmp_path / "model.treemax")
    for bad, message in (
        ([[1.0]], "1 features, but the model is expecting 4"), ([[np.nan] * 4], "NaN"), (["text"], "matrix"),
        ([1.0, 2.0], "two dimensions"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            light.predict(bad)
    for k in (0, True, 2.5):
        with pytest.raises(ValueError, match="k must be"):
            light.predict_topk(X, k)


def forged(name, change):
    """A model whose array `name` was changed by `change`, and which array that was."""
    texts, _, lists = example_texts(60, 20)
    estimators = {"online": treemax.OnlineLabelTree(), "int8": treemax.LabelTree(verbose=0, precision="int8")}
    estimators |= {"tree": treemax.LabelTree(verbose=0), "linear": treemax.OneVsAll(verbose=0)}
    kind, _, array = name.partition(":")
    header, arrays = object_parts(treemax.TextModel(estimator=estimators[kind]).fit(texts, lists))
    arrays[array] = change(np.array(arrays[array]))
    return texts, header, arrays


def with_second(value):
    return lambda array: np.concatenate([array[:1], [np.array(value).astype(array.dtype)], array[2:]])


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("online:estimator/model/tree/child", with_second(0)),  # a cycle
        ("online:estimator/model/tree/child", with_second(2**63 - 1)),
        ("online:estimator/model/tree/label", with_second(99)),
        ("int8:estimator/model/0/n_children", lambda array: array.astype(np.int64) + 2**60),
        ("int8:estimator/model/0/children", lambda array: array.astype(np.int64) + 2**60),
        ("int8:estimator/model/0/n_features", with_second(2**31)),
        ("tree:estimator/model/0/slots", lambda array: array * np.uint64(3)),
        ("tree:estimator/model/0/entries", lambda array: array[:1]),
        ("tree:estimator/model/0/entries", lambda array: array | np.uint32(0x7FFF0000)),
        ("linear:estimator/label_counts", lambda array: -array),
        ("linear:estimator/labels/offsets", lambda array: array[::-1].copy()),
        ("linear:vectorizer/idf", lambda array: array[:1]),
    ],
)
def test_forged_files_are_refused(name, change, tmp_path):
    texts, header, arrays = forged(name, change)
    write_model(tmp_path / "model.treemax", header, arrays)
    with pytest.raises(ModelFileError, match="is damaged"):
        treemax.light.load(tmp_path / "model.treemax").predict_proba(texts[:5])


def test_forged_parameters_are_refused_or_harmless(tmp_path):
    texts, header, arrays = forged("linear:vectorizer/idf", lambda array: array)
    parameters = header["state"]["vectorizer"]["state"]["parameters"]
    for changed, is_refused in (({"ngram_range": [1, 2**40]}, False), ({"token_pattern": "("}, True)):
        header["state"]["vectorizer"]["state"]["parameters"] = {**parameters, **changed}
        write_model(tmp_path / "model.treemax", header, arrays)
        with pytest.raises(ModelFileError) if is_refused else nullcontext():
            treemax.light.load(tmp_path / "model.treemax").predict(texts[:2])


def test_word_characters_are_those_of_the_kernel():
    found = np.array([HASHED_WORD.fullmatch(chr(code)) is not None for code in range(0x110000)])
    assert np.array_equal(found, word_characters(0x110000))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.text(alphabet="abcé ßA1_-日,.", max_size=30), min_size=1, max_size=4), st.booleans())
def test_features_of_texts_are_the_same(texts, log_counts):
    whole = treemax.HashingText(bits=12, ngram_range=(1, 3), char_ngram_range=(2, 3), log_counts=log_counts)
    light = hashing(whole.get_params())
    expected = whole.transform(texts)
    for i, text in enumerate(texts):
        row = light(text)
        assert row.indices.tolist() == expected[i].indices.tolist()
        np.testing.assert_allclose(row.values, expected[i].data, rtol=1e-6)


@pytest.mark.parametrize(
    "options",
    [{}, {"norm": "l1"}, {"norm": None, "binary": True}, {"ngram_range": (1, 2), "sublinear_tf": False}],
    ids=str,
)
def test_tfidf_is_the_same(options):
    texts, *_ = example_texts(60)
    whole = treemax.TfidfText(**options).fit(texts)
    light = tfidf(whole.get_params(), whole.get_feature_names_out().tolist(), whole.idf_)
    expected = whole.transform(texts)
    for i, text in enumerate(texts):
        row = light(text)
        assert row.indices.tolist() == expected[i].indices.tolist()
        np.testing.assert_allclose(row.values, expected[i].data, rtol=1e-6)


def test_numpy_is_all_that_is_imported(tmp_path):
    treemax.TextModel().fit(["red apple", "green pear"] * 5, ["apple", "pear"] * 5).save(tmp_path / "model.treemax")
    program = """
import sys, treemax.light
assert treemax.light.load("model.treemax").predict(["green"]).tolist() == ["pear"]
print([name for name in ("numba", "scipy", "sklearn", "click", "tqdm") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
