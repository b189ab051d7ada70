"""The steps of training a softmax tree: default sizes, initialisation, tree alternating optimisation, pruning."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from treemax.inputs.rows import Rows, SparseRows
from treemax.models.softmax_tree import start as starts
from treemax.models.softmax_tree.model import Branch, Softmax
from treemax.models.softmax_tree.state import Plane, Record, SoftmaxTreeState, TaoSettings
from treemax.models.softmax_tree.training import Tao
from treemax.parallel.pools import Executor, Table

STARTS = ("balanced", "prototypes", "kmeans", "random", "gaussian")
SLOTS = 2.4  # places in leaves per class: with fewer, many rows miss their class

Indices = NDArray[np.int64]


def classes_for(n_labels: int) -> int:
    """Return the default number of classes of a leaf, proportional to the square root of the number of labels."""
    return min(n_labels, max(2, math.ceil(3.0 * math.sqrt(n_labels))))


def depth_for(n_labels: int, n_classes: int) -> int:
    """Return the default depth, at which the leaves have SLOTS places per class; 0 if one leaf has all classes."""
    if n_classes >= n_labels:
        return 0
    return max(1, math.ceil(math.log2(SLOTS * n_labels / n_classes)))


def initial_state(
    rows: Rows, labels: Indices, n_labels: int, depth: int, start: str, random: np.random.RandomState, n_init: int = 1,
    row_weights: NDArray[np.float32] | None = None,
) -> tuple[SoftmaxTreeState, Indices | None]:  # fmt: skip
    """Return the initial tree, and the leaf of each row while it has no planes, by `n_init` runs of k-means."""
    state = SoftmaxTreeState.empty(depth)
    if depth == 0:
        return state, np.zeros(len(rows), np.int64)
    if start in ("random", "gaussian"):
        planes = (
            starts.random_planes(rows, depth, random)
            if start == "random"
            else starts.gaussian_planes(rows.shape[1], depth, random)
        )
        for node, (weights, bias) in enumerate(planes):
            coef: Any = weights[None]
            state.planes[node] = Plane(sp.csr_matrix(coef) if isinstance(rows, SparseRows) else coef, bias)
        return state, None
    if start == "kmeans":
        return state, starts.kmeans_leaves(rows, depth, random, n_init, row_weights)
    if start == "prototypes":
        return state, starts.prototype_leaves(rows, labels, n_labels, depth, random, n_init, row_weights)
    return state, starts.balanced_leaves(rows, labels, n_labels, depth, random, row_weights)


def train(
    table: Table,
    executor: Executor,
    state: SoftmaxTreeState,
    leaf_of: Indices | None,
    settings: TaoSettings,
    iterations: int,
) -> Iterator[Record]:
    """Run the iterations that are not in the history; yields a record after every depth."""
    yield from Tao(table, executor, settings, state).run(iterations, leaf_of)


def prune(table: Table, executor: Executor, state: SoftmaxTreeState, settings: TaoSettings) -> Branch | Softmax:
    """Return the tree without unreached nodes, constant decisions, and decisions between leaves of one same class."""
    tao = Tao(table, executor, settings, state)
    tao.find_reduced_sets(0)
    found = _pruned_node(0, tao)
    if found is None:  # missing="drop" may send all rows to leaves that had none when they were trained
        tao.update_leaves(range(2**state.depth))
        found = _pruned_node(0, tao)
    assert found is not None  # a leaf that rows reach has classes now
    return found


def _pruned_node(node: int, tao: Tao) -> Branch | Softmax | None:
    state, n_inner = tao.state, 2**tao.state.depth - 1
    if not len(tao.sets[node]):
        return None
    if node >= n_inner:
        leaf = state.leaves[node - n_inner]
        assert leaf is not None
        return Softmax(leaf.classes, leaf.coef, leaf.bias) if len(leaf.classes) else None
    plane = state.planes[node]
    assert plane is not None
    if plane.size == 0.0:
        return _pruned_node(2 * node + (2 if plane.bias >= 0.0 else 1), tao)
    left, right = _pruned_node(2 * node + 1, tao), _pruned_node(2 * node + 2, tao)
    if left is None or right is None:
        return left or right
    if isinstance(left, Softmax) and isinstance(right, Softmax) and _only_class(left) == _only_class(right) >= 0:
        return left
    return Branch(plane.coef, plane.bias, left, right, node)


def _only_class(leaf: Softmax) -> int:
    return int(leaf.classes[0]) if len(leaf.classes) == 1 else -1
