"""Training a softmax tree from start to finish: sizes, the start, tree alternating optimisation, and pruning."""

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
from treemax.models.softmax_tree.training import Plane, Record, SoftmaxTreeState, Tao, TaoSettings
from treemax.parallel.pools import Executor, Table

STARTS = ("balanced", "prototypes", "kmeans", "random")
SLOTS = 2.4  # classes in all leaves together, for every class: with fewer many rows miss their class

Indices = NDArray[np.int64]


def classes_for(n_labels: int) -> int:
    """How many classes a leaf has, if nobody says so: growing with the root of all."""
    return min(n_labels, max(2, math.ceil(3.0 * math.sqrt(n_labels))))


def depth_for(n_labels: int, n_classes: int) -> int:
    """The depth at which the leaves have room for every class more than twice; none if one leaf has them all."""
    if n_classes >= n_labels:
        return 0
    return max(1, math.ceil(math.log2(SLOTS * n_labels / n_classes)))


def begin(
    rows: Rows, labels: Indices, n_labels: int, depth: int, start: str, random: np.random.RandomState
) -> tuple[SoftmaxTreeState, Indices | None]:
    """A tree to begin with, and the leaf that each row is to go to until the tree has planes."""
    state = SoftmaxTreeState.empty(depth)
    if depth == 0:
        return state, np.zeros(len(rows), np.int64)
    if start == "random":
        for node, (weights, bias) in enumerate(starts.random_planes(rows, depth, random)):
            coef: Any = weights[None]
            state.planes[node] = Plane(sp.csr_matrix(coef) if isinstance(rows, SparseRows) else coef, bias)
        return state, None
    if start == "kmeans":
        return state, starts.kmeans_leaves(rows, depth, random)
    assign = starts.prototype_leaves if start == "prototypes" else starts.balanced_leaves
    return state, assign(rows, labels, n_labels, depth, random)


def trained(
    table: Table,
    executor: Executor,
    state: SoftmaxTreeState,
    leaf_of: Indices | None,
    settings: TaoSettings,
    iterations: int,
) -> Iterator[Record]:
    """Iterate, with what the history says is done left out; yields after every depth."""
    yield from Tao(table, executor, settings, state).run(iterations, leaf_of)


def pruned(
    table: Table, executor: Executor, state: SoftmaxTreeState, settings: TaoSettings
) -> Branch | Softmax:
    """The tree without nodes that no training row comes to, without decisions that are none, and without decisions
    between leaves that both know the same single class."""
    tao = Tao(table, executor, settings, state)
    tao.reduce(0)
    found = _pruned(0, tao)
    if found is None:  # only a file that was tampered with has such a tree
        raise ValueError(
            "the tree that training goes on from has no class for any row; fit with warm_start=False."
        )
    return found


def _pruned(node: int, tao: Tao) -> Branch | Softmax | None:
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
        return _pruned(2 * node + (2 if plane.bias >= 0.0 else 1), tao)
    left, right = _pruned(2 * node + 1, tao), _pruned(2 * node + 2, tao)
    if left is None or right is None:
        return left or right
    if (
        isinstance(left, Softmax)
        and isinstance(right, Softmax)
        and _only_class(left) == _only_class(right) >= 0
    ):
        return left
    return Branch(plane.coef, plane.bias, left, right, node)


def _only_class(leaf: Softmax) -> int:
    return int(leaf.classes[0]) if len(leaf.classes) == 1 else -1
