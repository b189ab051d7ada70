"""`predict_above` and `predict_proba_of` agree with `predict_proba`."""

import json

import numpy as np
import pytest
import scipy.sparse as sp
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import treemax
from treemax.cli.main import commands
from treemax.inputs.labels import LabelIndex, requested_ids
from treemax.inputs.rows import as_rows
from treemax.models.label_tree.model import LabelTreeModel
from treemax.models.label_tree.packed_tree import NodeWeights, PackedTree
from treemax.trees import random_tree

N_FEATURES = 12


def packed(n_labels, link, seed, arity=3, max_leaf=4):
    """A tree with random weights, slopes and shifts."""
    random = np.random.RandomState(seed)
    tree = random_tree(n_labels, arity, max_leaf, seed)
    weights = {}
    for node in np.flatnonzero(tree.n_children).tolist():
        n = int(tree.n_children[node])
        dense = random.normal(size=(N_FEATURES, n)) * (random.uniform(size=(N_FEATURES, n)) < 0.5)
        used = np.flatnonzero(dense.any(axis=1))
        feature, child = np.nonzero(dense[used])
        starts = np.searchsorted(feature, np.arange(len(used) + 1))
        weights[node] = NodeWeights(
            used.astype(np.uint32), starts, child.astype(np.uint32),
            dense[used][feature, child].astype(np.float32), random.normal(size=n).astype(np.float32),
        )  # fmt: skip
    slopes = random.uniform(0.5, 4.0, tree.depth)
    shifts = random.normal(size=tree.depth) if link == "logistic" else np.zeros(tree.depth)
    return PackedTree.pack(tree, weights, link, slopes, shifts)


def rows_of(n_rows, seed):
    matrix = sp.random(n_rows, N_FEATURES, 0.4, format="csr", random_state=seed, dtype=np.float32)
    return as_rows(matrix)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["softmax", "logistic"]),
    st.integers(1, 3),
    st.integers(1, 60),
    st.integers(0, 10**6),
    st.sampled_from([0.0, 1e-30, 1e-4, 0.01, 0.1, 0.3, 0.5, 0.9, 1.0]),
)
def test_all_labels_over_a_threshold_against_brute_force(link, n_trees, n_labels, seed, threshold):
    forest = LabelTreeModel(tuple(packed(n_labels, link, seed + i) for i in range(n_trees)), "logistic", 1.0)
    rows = rows_of(7, seed)
    probabilities = forest.probabilities(rows)
    found = forest.above(rows, threshold, threads=2)
    expected = np.argwhere(probabilities >= np.float32(threshold))
    assert np.array_equal(np.stack([found.rows, found.ids], axis=1), expected)
    assert np.array_equal(found.probabilities, probabilities[expected[:, 0], expected[:, 1]])


def test_an_exact_threshold_is_reached():
    """The probability of a label itself as the threshold: it is among those found, also after many levels."""
    for seed in range(5):
        forest = LabelTreeModel((packed(200, "softmax", seed, arity=2, max_leaf=2),), "logistic", 1.0)
        rows = rows_of(3, seed)
        probabilities = forest.probabilities(rows)
        for threshold in np.sort(probabilities[1])[-20:]:
            found = forest.above(rows, float(threshold))
            assert (found.rows == 1).sum() == (probabilities[1] >= threshold).sum()


def test_more_labels_than_there_was_room_for():
    forest = LabelTreeModel((packed(3000, "logistic", 1, arity=10, max_leaf=100),), "logistic", 1.0)
    rows = rows_of(40, 3)
    found = forest.above(rows, 0.0)
    assert len(found.ids) == 40 * 3000
    assert np.array_equal(found.probabilities.reshape(40, 3000), forest.probabilities(rows))


def test_branches_below_the_threshold_stay_shut(monkeypatch):
    """Weights of a branch that is not worth opening may be anything: they are never looked at."""
    tree = packed(60, "softmax", 4)
    rows = rows_of(1, 4)
    probabilities = tree.probabilities(rows)[0]
    of_node = {0: 1.0}
    for node in range(len(tree.tree) - 1, 0, -1):
        below = probabilities[tree.tree.label[node]] if tree.tree.label[node] >= 0 else None
        of_node[node] = below if below is not None else sum(of_node[c] for c in tree.tree.children(node))
    bias = tree.bias.copy()
    for node in range(1, len(tree.tree)):
        if of_node[int(tree.tree.parent[node])] < 0.15:
            bias[node] = np.nan
    spoiled = PackedTree(tree.tree, tree.tables, tree.slots, tree.entries, bias, tree.slopes, tree.shifts, tree.link)
    assert np.isnan(bias).any()
    found = spoiled.above(rows, 0.2)
    assert found.ids.tolist() == np.flatnonzero(probabilities >= 0.2).tolist()


# --- labels that are asked for -------------------------------------------------------------------------


def test_ids_of_labels_asked_for():
    index = LabelIndex(["a", "b", "c"])
    assert requested_ids(["c", "a"], index, 2).tolist() == [[2, 0], [2, 0]]
    assert requested_ids(np.array([["b"], ["a"]]), index, 2).tolist() == [[1], [0]]
    assert requested_ids([["b", None], ("a", "c")], index, 2).tolist() == [[1, -1], [0, 2]]
    assert requested_ids([], index, 3).shape == (3, 0)
    assert requested_ids((7, 5), LabelIndex([5, 7]), 1).tolist() == [[1, 0]]
    for wrong, words in [
        ("a", "list of labels"), (3, "list of labels"), (["a", "x"], "'x'"), ([["a"], ["a", "b"]], "one length"),
        ([["a"]], r"rows \(2\)"), ([["a"], "b"], "one list"), ([None], "None"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=words):
            requested_ids(wrong, index, 2)


@pytest.mark.parametrize("n_trees", [1, 3])
@pytest.mark.parametrize("multi_label", [False, True])
def test_marginal_probabilities(n_trees, multi_label):
    random = np.random.RandomState(0)
    X = random.uniform(size=(80, 10)).astype(np.float32)
    y = [[int(row.argmax()), int(row.argmin())] if multi_label else int(row.argmax()) for row in X]
    model = treemax.LabelTree(arity=2, max_leaf=2, n_trees=n_trees, verbose=0).fit(X, y)
    probabilities = model.predict_proba_of(X, model.classes_)
    some = random.randint(0, len(model.classes_), (80, 4))
    asked = model.predict_proba_of(X, model.classes_[some])
    assert np.array_equal(asked, np.take_along_axis(probabilities, some, axis=1))
    for threshold in (0.05, 0.5):
        expected = [model.classes_[row].tolist() for row in probabilities >= np.float32(threshold)]
        assert model.predict_above(X, threshold) == expected


@pytest.mark.parametrize("form", [sp.csr_matrix, np.asarray])
def test_the_form_of_an_indicator(form):
    y = np.tile(np.eye(4, dtype=int), (10, 1))
    X = y.astype(np.float32)
    model = treemax.LabelTree(verbose=0).fit(X, form(y))
    found = model.predict_above(X, 0.9)
    assert type(found) is type(form(y)) and found.shape == y.shape
    dense = found.toarray() if sp.issparse(found) else found
    np.testing.assert_array_equal(dense, model.predict_proba(X) >= 0.9)


# --- elsewhere -----------------------------------------------------------------------------------------


def test_text_models_and_the_command_line(tmp_path):
    texts = ["red apple", "green pear", "red car", "green bus"] * 10
    y = [["fruit", "red"], ["fruit", "green"], ["car", "red"], ["car", "green"]] * 10
    model = treemax.TextModel(treemax.HashingText(bits=10), treemax.LabelTree(verbose=0)).fit(texts, y)
    assert [sorted(row) for row in model.predict_above(texts[:2], 0.5)] == [sorted(row) for row in y[:2]]
    of_two = model.predict_proba_of(texts[:2], ["red", "green"])
    assert of_two[0, 0] > 0.5 > of_two[0, 1]
    model.save(tmp_path / "model.treemax")
    (tmp_path / "data.txt").write_text("red apple\ncar\n\nquite unknown\n")
    arguments = ["predict", str(tmp_path / "model.treemax"), str(tmp_path / "data.txt"), "--threshold"]
    result = CliRunner().invoke(commands, [*arguments, "0.5"])
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    assert sorted(answers[0]["labels"]) == ["fruit", "red"] and len(answers) == 4
    assert all(min(answer["scores"], default=1) >= 0.5 for answer in answers)
    assert all(answer["scores"] == sorted(answer["scores"], reverse=True) for answer in answers)
    everything = CliRunner().invoke(commands, [*arguments, "0"])
    assert all(len(json.loads(line)["labels"]) == 4 for line in everything.stdout.splitlines())
    assert CliRunner().invoke(commands, [*arguments, "1.5"]).exit_code == 2
