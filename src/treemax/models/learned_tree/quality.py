"""Quality of the splits of a tree: the objective of the paper, balance and purity."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from treemax.models.learned_tree.assignment_kernels import node_qualities
from treemax.models.learned_tree.kernels import Vectors
from treemax.models.learned_tree.model import LearnedTreeModel
from treemax.trees import Tree

MOST_CHILDREN = 1024  # nodes with more children are left out: time is proportional to children times labels


class NodeQuality(NamedTuple):
    """The quality of the splits at nodes of a tree, each array with an entry for every node of `nodes`.

    With p_j|i the probability that an example of label i is sent to child j of M, q_i the share of label i in the
    examples, and p_j the mean of p_j|i: all numbers are between 0 and 1, and 1 is the best.
    """

    nodes: NDArray[np.int64]
    examples: NDArray[np.float64]
    objective: NDArray[np.float64]  # J (equation 6) divided by its maximum, 4 / M (1 - 1 / M)
    balance: NDArray[np.float64]  # M times the least p_j (definition 1)
    purity: NDArray[np.float64]  # 1 less M times alpha (definition 2): 1 - sum q_i min(p_j|i, 1 - p_j|i)

    def summary(self) -> dict[str, float]:
        """Return means over the nodes, weighted by their examples."""
        weights = np.maximum(self.examples, 1e-9)
        return {name: round(float(np.average(getattr(self, name), weights=weights)), 4) for name in MEASURES}

    def at(self, node: int) -> dict[str, float] | None:
        """Return the quality at one node; None if it is not in `nodes`."""
        place = int(np.searchsorted(self.nodes, node))
        if place == len(self.nodes) or self.nodes[place] != node:
            return None
        return {name: round(float(getattr(self, name)[place]), 4) for name in MEASURES}


def described(quality: NodeQuality | None) -> dict[str, Any]:
    """Return the entry of `describe`, if there is any split to judge."""
    return {"quality": quality.summary()} if quality is not None and len(quality.nodes) else {}


MEASURES = ("objective", "balance", "purity")
Statistics = tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]
NO_SUMS: Statistics = (np.empty(0, np.int64), np.empty((0, 0), np.float32), np.empty(0, np.float32))


def nodes_with_quality(tree: Tree) -> NDArray[np.int64]:
    """Return the nodes with a split, and few enough children that its quality is computed."""
    return np.flatnonzero((tree.n_children >= 2) & (tree.n_children <= MOST_CHILDREN))


def quality_from_means(model: LearnedTreeModel, counts: NDArray[Any], means: NDArray[np.float32]) -> NodeQuality:
    """Return the quality of the splits, with p_j|i for the mean representation of label i."""
    return _quality(model, counts, means.ravel(), np.arange(len(means) + 1), NO_SUMS)


def quality_from_sums(model: LearnedTreeModel, statistics: Statistics) -> NodeQuality:
    """Return the quality of the splits from the running sums of Algorithm 1."""
    no_rows = np.empty(0, dtype=np.float32)
    return _quality(model, np.zeros(model.tree.n_labels), no_rows, np.empty(0, dtype=np.int64), statistics)


def _quality(
    model: LearnedTreeModel, counts: NDArray[Any], hidden: NDArray[np.float32], row_starts: NDArray[np.int64],
    statistics: Statistics,
) -> NodeQuality:  # fmt: skip
    tree, nodes = model.tree, nodes_with_quality(model.tree)
    labels, starts, sizes = labels_by_leaf(tree)
    rank = np.cumsum(tree.n_children > 0) - 1
    ranges = np.stack([starts[nodes], starts[nodes] + sizes[nodes], rank[nodes]], axis=1)
    n_children, found = tree.n_children[nodes], np.zeros((len(nodes), 4))
    no_squares = np.empty(0, dtype=np.float32)
    vectors = Vectors(model.weights.ravel(), model.biases, no_squares, np.uint64(model.weights.shape[1]))
    node_qualities(
        labels, ranges, model.first_vectors[nodes], n_children, np.asarray(counts, dtype=np.float64), hidden, row_starts,
        statistics, vectors, found,
    )  # fmt: skip
    examples, objective, least, impurity = found.T
    best = 4 / n_children * (1 - 1 / n_children)
    measures = (objective / best, n_children * least, 1 - n_children * impurity)
    return NodeQuality(nodes, examples, *(np.clip(values, 0.0, 1.0) for values in measures))  # beyond by rounding


def labels_by_leaf(tree: Tree) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the labels, those below a node side by side; where those of every node start, and how many they are.

    >>> tree = Tree.from_parents([-1, 0, 0, 1, 1], [-1, -1, 2, 0, 1])
    >>> [array.tolist() for array in labels_by_leaf(tree)]
    [[0, 1, 2], [0, 0, 2, 0, 1], [3, 2, 1, 1, 1]]
    """
    sizes = (tree.label >= 0).astype(np.int64)
    for start, stop in tree.level_bounds[:0:-1]:
        np.add.at(sizes, tree.parent[start:stop], sizes[start:stop])
    before = np.cumsum(sizes) - sizes  # on the level of a node and above
    starts = np.zeros(len(tree), dtype=np.int64)
    for start, stop in tree.level_bounds[1:]:
        parents = tree.parent[start:stop]
        starts[start:stop] = starts[parents] + before[start:stop] - before[tree.first_child[parents]]
    labels = np.empty(tree.n_labels, dtype=np.int64)
    leaves = tree.label >= 0
    labels[starts[leaves]] = tree.label[leaves]
    return labels, starts, sizes
