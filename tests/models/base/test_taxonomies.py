"""Answers at the nodes of a taxonomy: probabilities, levels, backing off, files and changes of labels."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.exceptions import NotFittedError

import treemax
from tests.trees.test_taxonomy import edges_of, graphs
from treemax import LabelTree, LearnedTree, OneVsAll, OnlineLabelTree, Taxonomy, TextModel
from treemax.checks.examples import CLASSES, example_data, example_lists

ZOO = {"insect": ["ant", "bee"], "mammal": {"pet": ["cat", "dog"], "wild": ["fox", "gnu"]}}
DAG = [("insect", "ant"), ("insect", "bee"), ("flying", "bee"), ("mammal", "cat"), ("pet", "cat"), ("pet", "dog"),
       ("mammal", "dog"), ("mammal", "gnu"), ("home", "pet")]  # fmt: skip


def reference(taxonomy, classes, probabilities, multi_label):
    """The probability of every node, from sets of labels."""
    names = list(dict.fromkeys([*taxonomy.names, *classes]))
    below = {name: {name} for name in names}
    for name in classes:
        for above in taxonomy.ancestors(name) if name in taxonomy else []:
            below[above].add(name)
    found = {}
    for name in names:
        columns = [i for i, label in enumerate(classes) if label in below[name]]
        of_labels = probabilities[:, columns].astype(np.float64)
        found[name] = 1 - np.prod(1 - of_labels, axis=1) if multi_label else np.minimum(of_labels.sum(axis=1), 1)
    return found


def node_probabilities(model, X, **options):
    """All nodes with their probabilities, from `predict_levels`."""
    found = {}
    for level in model.predict_levels(X, 1000, **options):
        for row, (labels, scores) in enumerate(zip(level.labels.tolist(), level.scores)):
            for label, score in zip(labels, scores):
                if label is not None:
                    found.setdefault(label, np.zeros(X.shape[0], np.float32))[row] = score
    return found


def trained(multi_label=False, kind=OneVsAll, **parameters):
    X, y = example_lists() if multi_label else example_data()
    return kind(**parameters).fit(X, y), X, y


@pytest.mark.parametrize("hierarchy", [ZOO, DAG], ids=["tree", "graph"])
@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("kind", [OneVsAll, LabelTree])
def test_probabilities_of_nodes(kind, multi_label, hierarchy):
    model, X, _ = trained(multi_label, kind)
    taxonomy = Taxonomy(hierarchy)
    model.set_taxonomy(taxonomy)
    expected = reference(taxonomy, CLASSES, model.predict_proba_of(X, CLASSES), multi_label)
    found = node_probabilities(model, X)
    assert set(found) == {name for name, values in expected.items() if values.any()}
    for name, values in found.items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-5, atol=1e-7)
    for label in CLASSES:
        above = taxonomy.ancestors(label) if label in taxonomy else []
        assert all((found[label] <= found[node]).all() for node in above)


@settings(max_examples=25, deadline=None)
@given(graphs(), st.integers(0, 10**6), st.booleans())
def test_consistent_and_monotone(parents, seed, multi_label):
    """Any taxonomy over any labels: no child above its parent, and what is asked for more confidence is more probable."""
    random = np.random.RandomState(seed)
    names = sorted(parents)
    taxonomy = Taxonomy([*edges_of(parents), (1000, names[0])])
    labels = random.choice([*names, 2000], min(len(names) + 1, 5), replace=False)
    X = sp.csr_matrix(random.uniform(size=(30, 4)).astype(np.float32))
    y = labels[random.randint(len(labels), size=30)]
    y[: len(labels)] = labels
    if not set(labels.tolist()) & set(taxonomy.names):
        return
    model = OneVsAll(passes=1, calibration=0).fit(X, [[label] for label in y.tolist()] if multi_label else y)
    model.set_taxonomy(taxonomy)
    found = node_probabilities(model, X)
    for name in found:
        for above in taxonomy.ancestors(name) if name in taxonomy else []:
            assert (found[name] <= found[above]).all()
    answers = [model.predict_backoff(X, confidence) for confidence in (0.0, 0.3, 0.5, 0.7, 0.9, 1.0)]
    for lower, higher, confidence in zip(answers, answers[1:], (0.3, 0.5, 0.7, 0.9, 1.0)):
        for row in range(30):
            if multi_label:
                # Every node that is confident enough is an ancestor of one that is asked for less, or that one itself.
                for label, score in zip(higher.labels[row], higher.scores[row]):
                    assert score >= np.float32(confidence) and score == found[label][row]
                    below = [
                        node for node in lower.labels[row]
                        if node == label or (node in taxonomy and label in taxonomy.ancestors(node))
                    ]  # fmt: skip
                    assert below
            elif higher.labels[row] is not None:
                assert higher.scores[row] >= max(np.float32(confidence), lower.scores[row])
                assert higher.scores[row] == found[higher.labels[row]][row]
                assert lower.labels[row] is not None


def test_backing_off_row_by_row():
    model, X, _ = trained(kind=LabelTree)
    X = X + 0.7 * X[np.random.RandomState(0).permutation(len(X))]  # between two classes
    taxonomy = Taxonomy(ZOO)
    model.set_taxonomy(taxonomy)
    probability = node_probabilities(model, X)
    for confidence in (0.0, 0.4, 0.6, 0.9):
        labels, scores = model.predict_backoff(X, confidence)
        for row, label in enumerate(model.predict(X).tolist()):
            chain = [label, *(taxonomy.ancestors(label)[::-1] if label in taxonomy else [])]
            enough = [node for node in chain if probability[node][row] >= np.float32(confidence)]
            if not enough:
                others = [node for node in probability if probability[node][row] >= np.float32(confidence)]
                enough = sorted(
                    others,
                    key=lambda node: (-taxonomy.depth(node) if node in taxonomy else -1, -probability[node][row]),
                )
            assert labels[row] == (enough[0] if enough else None)
            assert scores[row] == (probability[enough[0]][row] if enough else 0)
    assert len(set(model.predict_backoff(X, 0.6).labels.tolist()) - {*CLASSES, None}) > 0, "no row backs off"
    np.testing.assert_array_equal(model.predict_backoff(X, 0).labels, model.predict(X))


@pytest.mark.parametrize("kind", [LabelTree, OnlineLabelTree, LearnedTree])
@pytest.mark.parametrize("as_tree", [True, False])
def test_labels_at_inner_nodes(kind, as_tree):
    """Rows of a category itself are learned and answered, and those between its children back off to it."""
    random = np.random.RandomState(0)
    names = np.array(["animal", "cat", "dog", "fern"])
    y = names[np.arange(400) % 4]
    X = (np.eye(4)[np.arange(400) % 4] + 0.05 * random.uniform(size=(400, 4))).astype(np.float32)
    hierarchy = {"animal": ["cat", "dog"], "plant": ["fern", "moss"]}
    model = kind(**({"tree": hierarchy} if as_tree else {}), random_state=0).fit(X, y)
    if not as_tree:
        model.set_taxonomy(hierarchy)
    assert (model.predict(X) == y).all()
    np.testing.assert_array_equal(model.predict_backoff(X, 0.5).labels, y)
    own = model.predict_proba_of(X, ["animal", "cat", "dog"])
    first = model.predict_levels(X, 2)[0]
    np.testing.assert_allclose(
        np.where(first.labels == "animal", first.scores, 0).sum(axis=1), own.sum(axis=1), rtol=1e-5
    )
    assert first.labels[0].tolist() == ["animal", "plant"]
    halfway = np.array([[0.0, 0.5, 0.5, 0.0]], dtype=np.float32)
    best = model.predict_topk(halfway, 3)
    confidence = float(best.scores[0, 0]) + 0.01
    assert model.predict_backoff(halfway, confidence).labels.tolist() == ["animal"]


def test_the_tree_of_the_model_is_its_taxonomy(tmp_path):
    X, y = example_data()
    for tree in (ZOO, DAG, Taxonomy(DAG)):
        model = LabelTree(tree=tree).fit(X, y)
        assert set(model.taxonomy_.names) == set(Taxonomy(tree).names)
        assert model.taxonomy_ is model.taxonomy_  # made once
        assert "taxonomy" not in model.describe()
        model.save(tmp_path / "model.treemax")
        loaded = treemax.load(tmp_path / "model.treemax")
        np.testing.assert_array_equal(loaded.predict_backoff(X, 0.7).labels, model.predict_backoff(X, 0.7).labels)
        assert loaded.taxonomy_.edges.tolist() == model.taxonomy_.edges.tolist()
    by_number = LabelTree(tree=[7, 7, 8, 8, -1, 9, 9, -1, 9, -1]).fit(X, y)  # ant and bee, cat and dog, fox and gnu
    assert by_number.taxonomy_.ancestors("cat") == [9, 8]
    assert [level.labels[0, 0] for level in by_number.predict_levels(X[:1], 1)][:2] == [7, "ant"]
    assert LabelTree().fit(X, y).taxonomy_ is None


def test_integer_labels_below_names():
    X, y = example_data()
    numbers = np.searchsorted(CLASSES, y)
    model = OneVsAll().fit(X, numbers).set_taxonomy({"small": [0, 1, 4], "large": [2, 3, 5, 6]})
    assert model.predict_backoff(X[:3], 0).labels.dtype == np.int64
    levels = model.predict_levels(X[:7], 2)
    assert levels[0].labels[:, 0].tolist() == ["small", "small", "large", "large", "small", "large", "large"]
    assert levels[1].labels[:, 0].tolist() == list(range(7))


@pytest.mark.parametrize("multi_label", [False, True])
def test_only_labels_of_some_probability(multi_label):
    """With `least`, probabilities of inner nodes are lower bounds, and those of labels that count stay."""
    model, X, _ = trained(multi_label, LabelTree)
    model.set_taxonomy(ZOO)
    exact, bounded = node_probabilities(model, X), node_probabilities(model, X, least=0.02)
    of_labels = model.predict_proba_of(X, CLASSES)
    cut = reference(Taxonomy(ZOO), CLASSES, np.where(of_labels >= np.float32(0.02), of_labels, 0), multi_label)
    for name, values in bounded.items():
        assert (values <= exact[name] + 1e-6).all()
        np.testing.assert_allclose(values, cut[name], rtol=1e-4, atol=1e-6)


def test_changes_of_labels(tmp_path):
    """Forgotten categories are answered no longer; renamed ones have new names, in the file too."""
    random = np.random.RandomState(0)
    y = np.array(["animal", "cat", "dog", "fern"] * 50)
    X = (np.eye(4)[np.arange(200) % 4] + 0.1 * random.uniform(size=(200, 4))).astype(np.float32)
    model = LabelTree().fit(X, y).set_taxonomy({"life": {"animal": ["cat", "dog"], "plant": ["fern"]}})
    model.rename({"dog": "hound"})
    assert model.taxonomy_.ancestors("hound") == ["life", "animal"]
    model.forget(["animal"])
    before = node_probabilities(model, X)
    assert set(before) == {"life", "plant", "cat", "hound", "fern"}
    model.save(tmp_path / "model.treemax")
    loaded, compacted = treemax.load(tmp_path / "model.treemax"), pickle.loads(pickle.dumps(model)).compact()
    for other in (loaded, compacted):
        assert set(other.taxonomy_.names) == set(before)
        assert set(node_probabilities(other, X)) == set(before)
    model.merge({"cat": "fern"})
    after = node_probabilities(model, X)
    assert set(after) == {"life", "plant", "hound", "fern"}
    np.testing.assert_allclose(after["fern"], before["fern"] + before["cat"], rtol=1e-5)


def test_labels_that_arrive_later():
    X, y = example_data()
    model = OnlineLabelTree().set_taxonomy(ZOO).partial_fit(X[:4], y[:4])
    assert set(node_probabilities(model, X)) == {"insect", "ant", "bee", "mammal", "pet", "cat", "dog"}
    for _ in range(5):
        model.partial_fit(X, y)
    assert set(node_probabilities(model, X)) == {"eel", *Taxonomy(ZOO).names}
    assert (model.predict_backoff(X, 0.4).labels == y).mean() > 0.9
    assert model.fit(X, y).taxonomy_ is not None  # `fit` keeps it


def test_texts_files_and_threads(tmp_path):
    texts = ["red apple", "green pear", "fast car", "slow train"] * 30
    y = ["apple", "pear", "car", "train"] * 30
    model = TextModel(estimator=OneVsAll()).fit(texts, y)
    model.set_taxonomy(
        [("fruit", "apple"), ("fruit", "pear"), ("vehicle", "car"), ("vehicle", "train"), ("red", "apple")]
    )
    assert model.predict_levels(texts[:1], 1)[0].labels.tolist() == [["fruit"]]
    assert model.describe()["taxonomy"] == {"nodes": 7, "levels": 2}
    model.save(tmp_path / "model.treemax")
    loaded = treemax.load(tmp_path / "model.treemax")
    assert loaded.taxonomy_.ancestors("apple") == ["fruit", "red"]
    expected = model.predict_backoff(texts, 0.9)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: loaded.predict_backoff(texts, 0.9), range(8)):
            np.testing.assert_array_equal(found.labels, expected.labels)
            np.testing.assert_array_equal(found.scores, expected.scores)
    assert pickle.loads(pickle.dumps(model)).taxonomy_.ancestors("apple") == ["fruit", "red"]


def test_many_blocks(monkeypatch):
    model, X, _ = trained(True, LabelTree)
    model.set_taxonomy(ZOO)
    expected = model.predict_levels(X, 3), model.predict_backoff(X, 0.6)
    monkeypatch.setattr("treemax.models.base.taxonomies.BLOCK_BYTES", 1)
    for one, other in zip(expected[0], model.predict_levels(X, 3)):
        np.testing.assert_array_equal(one.labels, other.labels)
        np.testing.assert_array_equal(one.scores, other.scores)
    assert model.predict_backoff(X, 0.6) == expected[1]


def test_errors():
    X, y = example_data()
    with pytest.raises(NotFittedError):
        OneVsAll().set_taxonomy(ZOO).predict_backoff(X)
    model = OneVsAll().fit(X, y)
    for call in (model.predict_levels, model.predict_backoff):
        with pytest.raises(ValueError, match="OneVsAll has no taxonomy: call set_taxonomy"):
            call(X)
    with pytest.raises(ValueError, match=r"got str\. Taxonomy\.from_file reads a file"):
        model.set_taxonomy("zoo.tsv")
    with pytest.raises(ValueError, match="none of the 7 labels: they are like 'ant', its nodes like 'y'"):
        model.set_taxonomy({"x": ["y"]})
    with pytest.raises(ValueError, match="cycle"):
        model.set_taxonomy([("ant", "bee"), ("bee", "ant")])
    assert model.taxonomy_ is None
    model.set_taxonomy(ZOO)
    for wrong in (-0.1, 1.5, "high", None, np.nan):
        with pytest.raises(ValueError, match="confidence"):
            model.predict_backoff(X, wrong)
    for wrong in (0, 1.5, True):
        with pytest.raises(ValueError, match="k must be a positive integer"):
            model.predict_levels(X, wrong)
    with pytest.raises(ValueError, match="least"):
        model.predict_levels(X, least=2)
    assert model.set_taxonomy(None).taxonomy_ is None


@pytest.mark.slow
def test_rows_without_known_features_are_answered_as_in_predict_topk():
    texts = [*["red apple", "green pear", "fast car"] * 10, *[""] * 20]
    y = [*["apple", "pear", "car"] * 10, *["other"] * 20]
    model = TextModel(estimator=LabelTree(verbose=0)).fit(texts, y)
    model.set_taxonomy({"fruit": ["apple", "pear"], "rest": ["car", "other"]})
    top = model.predict_topk(["unknown"], 1)
    assert top.labels[0, 0] == "other"
    level = model.predict_levels(["unknown"], 4)[-1]
    assert level.labels[0, 0] == "other" and level.scores[0, 0] == pytest.approx(top.scores[0, 0], abs=1e-6)
