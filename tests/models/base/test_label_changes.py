"""Changes of the labels of trained models, beyond the generic checks."""

import itertools
import json
import pickle
import threading
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone

import treemax
from treemax import LabelTree, LearnedTree, OneVsAll, OnlineLabelTree, RecallTree, TextModel
from treemax.checks.examples import CLASSES, example_data, example_lists

QUIET = {"verbose": 0}


def parts_of(path: Path) -> bytes:
    """The uncompressed parts of a model file."""
    header, arrays = treemax.load(path).to_parts()
    return json.dumps(header).encode() + b"".join(array.tobytes() for array in arrays.values()) + path.read_bytes()


@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
def test_files_of_independent_labels_keep_the_probabilities(tmp_path, form):
    X, lists = example_lists()
    X = form(X)
    model = OneVsAll(**QUIET).fit(X, lists)
    expected = np.delete(model.predict_proba(X), [1, 4], axis=1)
    model.forget(["bee", "eel"]).save(tmp_path / "model.treemax")
    assert b"eel" not in parts_of(tmp_path / "model.treemax")
    loaded = treemax.load(tmp_path / "model.treemax")
    assert loaded.model_.n_labels == 5
    for other in (loaded, model.compact()):
        # Not equal in every bit: a label may move between the vectorised part of a loop and its end.
        np.testing.assert_allclose(other.predict_proba(X), expected, rtol=1e-5)


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_label_tree_without_leaves_and_empty_nodes(precision):
    X, lists = example_lists()
    hierarchy = {"small": ["ant", "bee"], "large": {"pets": ["cat", "dog"], "wild": ["eel", "fox", "gnu"]}}
    model = LabelTree(loss="logistic", tree=hierarchy, precision=precision, search="exact", **QUIET).fit(X, lists)
    before, nodes = model.predict_proba(X), model.describe()["nodes"]
    model.forget(["ant", "bee", "fox"]).compact()
    np.testing.assert_array_equal(model.predict_proba(X), before[:, [2, 3, 4, 6]])
    assert model.describe()["nodes"] == nodes - 4, "the node of small labels is left"
    assert model.tree == {"cat": "pets", "dog": "pets", "pets": "large", "eel": "wild", "gnu": "wild", "wild": "large"}
    again = LabelTree.from_parts(*model.to_parts())
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))


def test_parameters_do_not_name_forgotten_labels():
    X, y = example_data()
    model = OneVsAll(class_weight={"ant": 2.0, "bee": 3.0}, **QUIET).fit(X, y).forget(["ant"]).rename({"bee": "wasp"})
    header, _ = model.to_parts()
    assert header["parameters"]["class_weight"] == [["wasp", 3.0]]
    assert model.compact().class_weight == {"wasp": 3.0}


def test_indicator_matrices_keep_their_columns(tmp_path):
    X, y = example_data()
    Y = np.eye(len(CLASSES), dtype=np.int64)[np.searchsorted(CLASSES, y)]
    model = OneVsAll(**QUIET).fit(X, Y).forget([2, 6])
    expected = model.predict(X)
    assert expected.shape == Y.shape and not expected[:, [2, 6]].any()
    model.save(tmp_path / "model.treemax")
    loaded = treemax.load(tmp_path / "model.treemax")
    assert loaded.classes_.tolist() == [0, 1, 3, 4, 5]
    np.testing.assert_array_equal(loaded.predict(X), expected)
    with pytest.raises(ValueError, match="columns of it were forgotten"):
        loaded.partial_fit(X, Y)
    with pytest.raises(ValueError, match="label lists"):
        model.rename({1: 9})


@pytest.mark.parametrize("model", [OneVsAll(**QUIET), OnlineLabelTree()])
def test_learning_a_forgotten_label_brings_it_back(model):
    X, y = example_data()
    model.partial_fit(X, y)
    model.forget(["ant", "bee"]).partial_fit(X[y == "cat"], y[y == "cat"])
    assert not set(model.predict(X)) & {"ant", "bee"}
    model.partial_fit(X[y == "ant"], y[y == "ant"])
    assert "ant" in model.predict(X[y == "ant"])
    assert "bee" not in model.predict(X)
    assert model.describe()["label_changes"] == [{"forgot": 2}, {"learned_again": 1}]


def test_learning_after_compact():
    X, y = example_data()
    model = OneVsAll(**QUIET).partial_fit(X, y).forget(["ant"]).compact()
    assert model.classes_.tolist() == sorted(set(y) - {"ant"})
    for _ in range(5):
        model.partial_fit(X, y)
    assert model.classes_.tolist()[-1] == "ant"
    assert model.score(X, y) > 0.9


@pytest.mark.parametrize(
    "change", [lambda model: model.rename({"ant": "termite"}), lambda model: model.forget(["ant"]).compact()]
)
def test_new_labels_of_a_hierarchy_after_a_change(change):
    hierarchy = {"small": ["ant", "bee", "wasp"], "large": ["dog", "cat", "yak"]}
    X, y = np.eye(6, dtype=np.float32), ["ant", "bee", "dog", "cat", "wasp", "yak"]
    model = OnlineLabelTree(tree=hierarchy, max_leaf=2).partial_fit(X[:3], y[:3]).partial_fit(X[3:4], y[3:4])
    change(model)
    model.partial_fit(X[4:], y[4:])
    assert {"wasp", "yak"} <= set(model.classes_) and "ant" not in model.classes_
    assert "ant" not in {*model.tree, *model.tree.values()}
    with pytest.raises(ValueError, match="tree cannot be changed"):
        model.set_params(tree="kmeans").partial_fit(X[4:], y[4:])


def test_names_of_parts_may_be_learned():
    X, y = example_data()
    model = OneVsAll(**QUIET).partial_fit(X, y).merge({"ant": "bee"}).partial_fit(X, y)
    assert set(model.predict(X[y == "ant"])) == {"bee"}


def test_rows_without_known_features_have_frequencies():
    X, y = example_data()
    rows = sp.csr_matrix(X)
    model = LabelTree(**QUIET).fit(rows[10:], y[10:])
    empty = sp.csr_matrix((1, X.shape[1]))
    before = dict(zip(*(part[0].tolist() for part in model.predict_topk(empty, 9))))
    model.forget(["gnu"]).merge({"ant": "bee"})
    after = dict(zip(*(part[0].tolist() for part in model.predict_topk(empty, 9))))
    assert after.pop("bee") == pytest.approx(before["ant"] + before["bee"])
    assert after == {label: before[label] for label in ("cat", "dog", "eel", "fox")}
    np.testing.assert_allclose(model.predict_proba(empty).sum(), 1, rtol=1e-5)


def test_weights_made_before_a_change():
    X, y = example_data()
    model = LabelTree(**QUIET).fit(X, y)
    weights = model.make_label_weights(labels=["ant", "bee", "cat"])
    model.forget(["ant"])
    best = model.predict_topk(X, 5, label_weights=weights)
    assert best.labels.shape[1] == 2 and set(best.labels.ravel()) == {"bee", "cat"}
    with pytest.raises(ValueError, match="No label is left"):
        model.predict_topk(X, 5, labels=["ant"])


def test_explanations_do_not_show_forgotten_labels():
    X, y = example_data()
    model = LabelTree(max_leaf=3, **QUIET).fit(X, y).forget(["ant"])
    told = model.explain(X[np.flatnonzero(y == "ant")[0]])
    assert "ant" not in told.to_text().split()
    with pytest.raises(ValueError, match="forgotten"):
        model.explain(X[0], "ant")


def test_text_model_and_copies():
    texts, labels = ["red apple", "green pear", "fast car"] * 3, ["apple", "pear", "car"] * 3
    model = TextModel(estimator=OneVsAll(**QUIET)).fit(texts, labels).forget(["pear"]).rename({"car": "vehicle"})
    for other in (model, pickle.loads(pickle.dumps(model))):
        assert set(other.predict(texts)) <= {"apple", "vehicle"}
    assert model.merge({"apple": "vehicle"}).compact().predict(texts).tolist() == ["vehicle"] * 9
    assert model.describe()["label_changes"] == [{"forgot": 1}, {"renamed": 1}, {"merged": 1}]


def test_forget_in_several_threads():
    X, _ = example_data()
    model = LabelTree(**QUIET).fit(X, np.arange(210) % 70)
    labels = list(range(60))
    threads = [threading.Thread(target=model.forget, args=([label],)) for label in labels]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(model.predict(X)) <= set(range(60, 70))
    assert len(model.describe()["label_changes"]) == 60


def test_damaged_changes_are_refused():
    X, y = example_data()
    header, arrays = OneVsAll(**QUIET).fit(X, y).merge({"ant": "bee"}).to_parts()
    good = header["label_changes"]
    assert good == {"log": [["merged", 1]], "merged": [[0, 1]], "n_columns": None}
    for damaged in ({"merged": [[0, 7]]}, {"merged": [[0, 1], [1, 2]]}, {"merged": [[0, -1]]}, {"log": [["x", 1]]}):
        with pytest.raises(ValueError):
            OneVsAll.from_parts({**header, "label_changes": {**good, **damaged}}, arrays)


def many_labels():
    random = np.random.RandomState(0)
    X = sp.random(400, 60, 0.1, "csr", dtype=np.float32, random_state=random)
    return X, [sorted(set(random.randint(50, size=2).tolist())) for _ in range(400)]


@pytest.mark.parametrize("policy", ["best-greedy", "one-level", "random"])
@pytest.mark.parametrize("resume", [False, True])
def test_online_tree_keeps_the_bits_of_other_labels(policy, resume):
    X, lists = many_labels()
    model = OnlineLabelTree(policy=policy, max_leaf=20).partial_fit(X, lists)
    if not resume:
        model = OnlineLabelTree.from_parts(*model.to_parts())
    gone = [*range(3, 20), 33, 49]
    kept = np.flatnonzero(~np.isin(model.classes_, gone))
    before, nodes = model.predict_proba(X), model.describe()["nodes"]
    model.forget(gone).compact()
    np.testing.assert_array_equal(model.predict_proba(X), before[:, kept])
    assert model.describe()["nodes"] <= nodes - len(gone)
    again = OnlineLabelTree.from_parts(*model.to_parts(resume=resume))
    np.testing.assert_array_equal(again.predict_proba(X), before[:, kept])
    again.partial_fit(X, lists)  # the removed labels are new
    model.partial_fit(X, lists)
    assert set(model.classes_) == set(range(50))
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))


@pytest.mark.parametrize(
    "groups",
    [["ant bee cat", "dog eel fox gnu"], ["ant bee", "cat dog eel fox gnu"], ["ant dog", "bee cat", "eel fox gnu"]],
)
def test_learned_tree_keeps_the_odds_of_siblings(groups):
    X, y = example_data()
    hierarchy = {f"group {number}": group.split() for number, group in enumerate(groups)}
    model = LearnedTree(tree=hierarchy, dimension=8, calibration=0, **QUIET).fit(X, y)
    # Short rows have probabilities that are not extreme.
    before = dict(zip(model.classes_, model.predict_proba(0.2 * X).T.astype(np.float64)))
    model.forget(["ant", "dog"]).compact()
    after = dict(zip(model.classes_, model.predict_proba(0.2 * X).T.astype(np.float64)))
    np.testing.assert_allclose(sum(after.values()), 1, atol=1e-3)
    compared = 0
    for group in groups:
        left = [label for label in group.split() if label in after]
        for one, other in itertools.pairwise(left):
            clear = (before[one] > 1e-5) & (before[other] > 1e-5)
            odds = (table[one][clear] / table[other][clear] for table in (after, before))
            np.testing.assert_allclose(*odds, rtol=1e-3)
            compared += int(clear.sum())
    assert compared > 100


@pytest.mark.parametrize(
    "model",
    [
        LearnedTree(arity=3, dimension=8, **QUIET),
        LearnedTree(arity=2, dimension=8, statistics="running", **QUIET),
        RecallTree(**QUIET),
        RecallTree(algorithm="paper", **QUIET),
        OneVsAll(**QUIET),
        OnlineLabelTree(),
    ],
    ids=str,
)
@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
@pytest.mark.parametrize("resume", [False, True])
def test_learning_continues_after_removal(model, form, resume):
    X, y = example_data()
    X = form(X)
    model = clone(model).partial_fit(X, y)
    if not resume:
        model = type(model).from_parts(*model.to_parts())
    model.forget(["ant", "gnu"]).compact()
    assert model.classes_.tolist() == ["bee", "cat", "dog", "eel", "fox"]
    for _ in range(10):
        model.partial_fit(X, y)
    assert sorted(model.classes_) == list(CLASSES)
    assert model.score(X, y) > 0.8
