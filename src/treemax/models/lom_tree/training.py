"""Online training of a LOMTree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.labels import Targets
from treemax.inputs.rows import Rows
from treemax.kernels.feature_tables import SparseScorers
from treemax.models.lom_tree import kernels
from treemax.models.lom_tree.kernels import DEEPEST, Nodes, Options, Rates
from treemax.models.lom_tree.model import (
    LOMTreeModel,
    empty_nodes,
    empty_tallies,
    take_scorers,
    tallies_from,
    tree_from,
)
from treemax.models.trained.scorers import empty_scorers, enlarged_array, enlarged_scorers
from treemax.models.trained.sparse_scorers import with_buckets, with_features

ROWS_AT_ONCE = 2048
NODES_PER_LABEL = 4  # inner nodes; chosen on glyphs1k
INITIAL_CAPACITY = 64


@dataclass(frozen=True)
class LOMTreeSettings:
    """AdaGrad's learning rate, and the initial value of its sums of squared gradients."""

    rate: float
    initial: float


def nodes_for(n_labels: int) -> int:
    """Return the default maximum number of inner nodes."""
    return NODES_PER_LABEL * n_labels


def empty_model(sparse: bool, n_features: int, n_labels: int) -> LOMTreeModel:
    """Return an untrained model: a root without rows."""
    regressors = empty_scorers(sparse, INITIAL_CAPACITY, 1, n_features)
    return LOMTreeModel(n_labels, n_features, regressors, empty_nodes(2 * INITIAL_CAPACITY + 1), empty_tallies(0))


# --- capacity --------------------------------------------------------------------------------------------


def ensure_capacity(model: LOMTreeModel, n_labels: int, n_features: int) -> None:
    """Enlarge the model to `n_labels` labels and `n_features` features."""
    model.n_labels, model.n_features = max(model.n_labels, n_labels), max(model.n_features, n_features)
    if isinstance(model.regressors, SparseScorers):
        model.regressors = with_features(model.regressors, n_features)


def _ensure_capacity_for_row(model: LOMTreeModel, form: Any, row: int) -> None:
    """Ensure capacity for a row: compact if that frees much, and double what is full."""
    n_inner, n_regressors = (int(model.nodes.used[i]) for i in (kernels.INNER, kernels.REGRESSORS))
    if n_regressors - n_inner > n_inner // 2:
        _compact(model)
    nodes, regressors = model.nodes, model.regressors
    if int(nodes.used[kernels.NODES]) + 2 > len(nodes.totals):
        model.nodes = Nodes(nodes.used, *(enlarged_array(array, 2 * len(array) + 2) for array in nodes[1:]))
    if int(nodes.used[kernels.REGRESSORS]) == len(regressors.bias):
        regressors = enlarged_scorers(regressors, 2 * len(regressors.bias) + 1)
    if isinstance(regressors, SparseScorers):
        regressors = with_buckets(regressors, kernels.room_for(form, row, regressors))
    model.regressors = regressors
    n_tallies = int(model.tallies.used[0])
    if n_tallies + DEEPEST >= len(model.tallies.keys) * 3 // 4:
        lists = model.lists(np.arange(nodes.used[kernels.NODES]))
        model.tallies = tallies_from(lists, model.nodes, 2 * n_tallies + DEEPEST + 1)


def _compact(model: LOMTreeModel) -> None:
    """Delete the nodes that swaps removed from the tree, and renumber the others level by level."""
    order = np.concatenate(model.levels())
    old, own = model.nodes, model.nodes.regressors[order]
    model.nodes, model.tallies = tree_from(own > 0, model.lists(order))
    for name in ("best", "smallest", "sums"):
        getattr(model.nodes, name)[:] = getattr(old, name)[order]
    model.regressors = take_scorers(model.regressors, own[own > 0] - 1)


# --- learning --------------------------------------------------------------------------------------------


def learn(
    model: LOMTreeModel,
    rows: Rows,
    targets: Targets,
    orders: Iterable[NDArray[np.uint32]],
    settings: LOMTreeSettings,
    options: Options,
) -> Iterator[int]:
    """Learn the rows in the given orders, in place; yields the size of each batch.

    Single-threaded: the path of a row depends on the update by the row before it.
    """
    found = np.zeros(1, dtype=np.int64)
    form, labels = model.rows(rows), targets.ids[targets.indptr[0] : targets.indptr[-1]].astype(np.int64)
    rates = Rates(np.float32(settings.rate), np.float32(settings.initial))
    for order in orders:
        for start in range(0, len(order), ROWS_AT_ONCE):
            piece, learned = order[start : start + ROWS_AT_ONCE], 0
            while True:
                learned = kernels.learn(
                    form, labels, piece, learned, rates, model.nodes, model.tallies, model.regressors, options, found
                )
                if learned == len(piece):
                    break
                _ensure_capacity_for_row(model, form, piece[learned])
            model.found += [found[0], len(piece)]
            found[:] = 0
            yield len(piece)
