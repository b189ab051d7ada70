"""Online training of a contextual memory tree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.labels import Targets, take_targets
from treemax.inputs.rows import Rows, take_rows
from treemax.kernels.feature_tables import SparseScorers
from treemax.models.memory_tree import kernels
from treemax.models.memory_tree.kernels import NODES, REGRESSORS, Nodes, Options, Rates, Scorer
from treemax.models.memory_tree.model import MemoryStore, MemoryTreeModel, empty_nodes
from treemax.models.trained.scorers import empty_scorers, enlarged_array, enlarged_scorers
from treemax.models.trained.sparse_scorers import with_buckets, with_features

ROWS_AT_ONCE = 256  # per kernel call: predictions in other threads wait for it
INITIAL_NODES = 64
INITIAL_BIAS = -3.0  # of one-against-some regressors: about one label in twenty of a leaf is a label of the row
LEAST_GRADIENT = 0.01


@dataclass(frozen=True)
class MemoryTreeSettings:
    """AdaGrad's learning rates, and the initial value of its sums of squared gradients."""

    rate: float
    scorer_rate: float
    regressor_rate: float
    initial: float

    @property
    def rates(self) -> Rates:
        scorer_initial = self.initial * self.initial  # features of the scorer are products of two
        return Rates(
            *map(
                np.float32,
                (self.rate, self.scorer_rate, self.regressor_rate, self.initial, scorer_initial, LEAST_GRADIENT),
            )
        )


def empty_model(sparse: bool, n_features: int, n_labels: int, output: int, seed: int) -> MemoryTreeModel:
    """Return an untrained model: a root without memories."""
    scorer = Scorer(np.zeros(n_features, np.float32), np.zeros(n_features, np.float32))
    model = MemoryTreeModel(
        n_labels, n_features, output, empty_scorers(sparse, INITIAL_NODES, 1, n_features),
        empty_scorers(sparse, n_labels if output == REGRESSORS else 0, 1, n_features), scorer, empty_nodes(INITIAL_NODES),
        MemoryStore.empty(sparse, n_features), np.array([seed], np.uint64),
    )  # fmt: skip
    model.regressors.bias[:] = INITIAL_BIAS
    return model


# --- capacity --------------------------------------------------------------------------------------------


def ensure_capacity(model: MemoryTreeModel, n_labels: int, n_features: int) -> None:
    """Enlarge the model to `n_labels` labels and `n_features` features."""
    if n_features > model.n_features:
        model.scorer = Scorer(*(enlarged_array(array, n_features) for array in model.scorer))
        model.n_features = n_features
    for name in ("routers", "regressors"):
        scorers = getattr(model, name)
        if isinstance(scorers, SparseScorers):
            setattr(model, name, with_features(scorers, n_features))
    n_known = len(model.regressors.bias)
    if 0 < n_known < n_labels:
        model.regressors = enlarged_scorers(model.regressors, max(n_labels, 2 * n_known))
    if n_known and n_labels > model.n_labels:
        model.regressors.bias[model.n_labels : n_labels] = INITIAL_BIAS
    model.n_labels = max(model.n_labels, n_labels)


def _ensure_room(model: MemoryTreeModel, needed: NDArray[np.int64]) -> None:
    """Double the nodes if they are full, and enlarge the tables of sparse scorers by the buckets that they need."""
    nodes = model.nodes
    if int(nodes.used[NODES]) + 2 > len(nodes.left):
        n = 2 * len(nodes.left) + 2
        model.nodes = Nodes(nodes.used, *(enlarged_array(array, n) for array in nodes[1:]))
        model.routers = enlarged_scorers(model.routers, n)
    for name, n_buckets in zip(("routers", "regressors"), needed.tolist(), strict=True):
        scorers = getattr(model, name)
        if isinstance(scorers, SparseScorers):
            setattr(model, name, with_buckets(scorers, n_buckets))


# --- learning --------------------------------------------------------------------------------------------


def remember(
    model: MemoryTreeModel,
    rows: Rows,
    targets: Targets,
    order: NDArray[np.uint32],
    settings: MemoryTreeSettings,
    options: Options,
) -> Iterator[int]:
    """Learn and insert new rows in the given order, in place; yields the size of each batch."""
    for start in range(0, len(order), ROWS_AT_ONCE):
        piece, first = order[start : start + ROWS_AT_ONCE], model.store.n
        model.store.add(model.rows(take_rows(rows, piece)), take_targets(targets, piece))
        _learn(model, np.arange(first, model.store.n), settings, options._replace(first_pass=True))
        yield len(piece)


def revisit(
    model: MemoryTreeModel, orders: Iterable[NDArray[np.uint32]], settings: MemoryTreeSettings, options: Options
) -> Iterator[int]:
    """Learn from the rewards of memories that are in the tree; yields the size of each batch."""
    for order in orders:
        for start in range(0, len(order), ROWS_AT_ONCE):
            piece = order[start : start + ROWS_AT_ONCE].astype(np.int64)
            _learn(model, piece, settings, options._replace(first_pass=False, rewards=True))
            yield len(piece)


def _learn(model: MemoryTreeModel, order: NDArray[np.int64], settings: MemoryTreeSettings, options: Options) -> None:
    """Learn the memories of `order`. One thread: the path of a row depends on the rows before it."""
    for scorers in (model.routers, model.regressors):
        if isinstance(scorers, SparseScorers):
            scorers.used[3] = 1
    own = model.workspace()
    progress = kernels.Progress(model.random, np.zeros(5, np.int64), model.found, np.zeros(2, np.int64))
    while not kernels.learn(order, model.tree(model.routers, model.regressors), options, settings.rates, own, progress):
        _ensure_room(model, progress.needed)
