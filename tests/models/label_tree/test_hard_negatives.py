"""Hard negatives: rows that the upper nodes of a label tree assign to a wrong node."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import treemax
from tests.models.label_tree.test_estimator import easy
from treemax.inputs.labels import Targets
from treemax.inputs.rows import SparseRows
from treemax.models.label_tree import routing
from treemax.models.label_tree.nodes import NEGATIVE_WEIGHT, NodeProblem, RowsInMemory, with_negatives
from treemax.models.label_tree.packed_tree import NodeWeights, PackedNode
from treemax.models.label_tree.routing import HardNegatives, Link, Router, above_labels
from treemax.trees import Tree

# Three nodes above labels, of two labels each; feature 0, 1, 2 stands for the first, second and third.
TREE = Tree.from_parents([-1, 0, 0, 0, 1, 1, 2, 2, 3, 3], [-1, -1, -1, -1, 0, 1, 2, 3, 4, 5])
LINK = Link("logistic", np.array([2.0, 1.0], np.float32), np.zeros(2, np.float32))


def rows_of(dense):
    matrix = sp.csr_matrix(np.asarray(dense, dtype=np.float32))
    return SparseRows(matrix.indptr.astype(np.int64), matrix.indices.astype(np.uint32), matrix.data, matrix.shape[1])


def root():
    identity = NodeWeights(
        np.arange(3, dtype=np.uint32), np.arange(4), np.arange(3, dtype=np.uint32), np.ones(3, np.float32),
        np.full(3, -0.5, np.float32),
    )  # fmt: skip
    return {0: PackedNode.of(identity)}


def examples(n_rows=300, seed=0):
    """Rows with random values, each with one or two random labels."""
    random = np.random.default_rng(seed)
    dense = random.normal(size=(n_rows, 3)).astype(np.float32)
    labels = [np.unique(random.integers(0, 6, size=random.integers(1, 3))) for _ in range(n_rows)]
    starts = np.concatenate([[0], np.cumsum([len(own) for own in labels])])
    return dense, labels, Targets(starts, np.concatenate(labels).astype(np.uint32))


def test_the_tree_of_the_tests():
    assert np.flatnonzero(above_labels(TREE)).tolist() == [1, 2, 3]


def test_a_router_gives_the_probabilities_of_the_nodes_above_labels():
    dense, _, _ = examples(20)
    router = Router.of(TREE, root(), LINK)
    found = router.reached(rows_of(dense), 0.0, threads=1)
    probabilities = 1 / (1 + np.exp(-2.0 * (dense - 0.5)))
    assert found.rows.tolist() == np.repeat(np.arange(20), 3).tolist()
    assert found.ids.tolist() == [1, 2, 3] * 20
    np.testing.assert_allclose(found.probabilities, probabilities.ravel(), rtol=1e-5)


@pytest.mark.parametrize("share", [0.1, 0.5, 100.0])
@pytest.mark.parametrize("n_sample", [10_000, 100])
def test_hard_negatives_are_the_most_probable_wrong_nodes(share, n_sample, monkeypatch):
    monkeypatch.setattr(routing, "SAMPLE", n_sample)
    dense, labels, targets = examples()
    negatives = HardNegatives.find(TREE, root(), LINK, RowsInMemory(rows_of(dense), targets, 1), share)
    probability = 1 / (1 + np.exp(-2.0 * (dense - 0.5)))
    right = np.array([[bool({2 * c, 2 * c + 1} & set(own.tolist())) for c in range(3)] for own in labels])
    chosen = np.zeros_like(right)
    for child in range(3):
        rows = negatives.of(1 + child)
        assert (np.diff(rows.astype(int)) > 0).all()
        chosen[rows, child] = True
    assert not (chosen & right).any()
    assert len(negatives.of(0)) == len(negatives.of(4)) == 0
    passed_over = ~chosen & ~right
    if passed_over.any():
        assert probability[chosen].min() >= probability[passed_over].max() - 1e-6
    wanted = min(share * right.sum(), (~right & (probability >= routing.LEAST_PROBABILITY)).sum())
    assert chosen.sum() == pytest.approx(wanted, abs=2 if n_sample > len(dense) else 0.3 * wanted + 5)


def test_without_upper_nodes_or_a_share_there_are_none():
    dense, _, targets = examples()
    source = RowsInMemory(rows_of(dense), targets, 1)
    for parts, share in ((root(), 0.0), ({}, 0.5)):
        negatives = HardNegatives.find(TREE, parts, LINK, source, share)
        assert sum(len(negatives.of(node)) for node in range(len(TREE))) == 0


@pytest.mark.parametrize("weights", [None, np.arange(10, dtype=np.float32)])
def test_rows_without_children_are_added_in_order(weights):
    problem = NodeProblem(
        3, 2, 1.0, np.array([1, 4, 6], np.uint32), np.array([0, 2, 3, 4]), np.array([0, 1, 1, 0], np.uint32)
    )
    targets = Targets(np.zeros(11, np.int64), np.zeros(0, np.uint32), weights)
    longer = with_negatives(problem, np.array([0, 5, 9], np.uint32), targets)
    assert longer.rows.tolist() == [0, 1, 4, 5, 6, 9]
    assert longer.child_indptr.tolist() == [0, 0, 2, 3, 3, 4, 4]
    assert longer.children is problem.children
    own = np.ones(10) if weights is None else weights
    factor = np.where(np.isin(longer.rows, problem.rows), 1, NEGATIVE_WEIGHT)
    np.testing.assert_allclose(longer.row_weights, own[longer.rows] * factor)
    assert with_negatives(problem, np.empty(0, np.uint32), targets) is problem


@pytest.mark.parametrize("several", [False, True])
def test_they_change_the_nodes_above_labels_only(several):
    X, y = easy(noise=0.6)
    y = [[label, other] for label, other in zip(y, y[1:] + y[:1])] if several else y
    settings = {"max_leaf": 4, "arity": 4, "cost": 1.0, "verbose": 0}
    without, with_them = (
        treemax.LabelTree(hard_negatives=share, **settings).fit(X, y).model_.trees[0] for share in (0, 0.5)
    )
    ends = above_labels(without.tree)
    changed = [
        not np.array_equal(*(packed.bias[packed.tree.children(node)] for packed in (without, with_them)))
        for node in range(len(ends))
        if without.tree.n_children[node]
    ]
    assert np.any(changed)
    assert not np.any(np.array(changed)[~ends[without.tree.n_children > 0]])


@pytest.mark.parametrize("share", [-0.1, np.nan, "many", None])
def test_a_bad_share_is_refused(share):
    X, y = easy()
    with pytest.raises((ValueError, TypeError), match="hard_negatives"):
        treemax.LabelTree(hard_negatives=share, verbose=0).fit(X, y)
