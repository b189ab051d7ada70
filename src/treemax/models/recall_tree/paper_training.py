"""Online training of a recall tree by the paper's algorithm."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.labels import Targets
from treemax.inputs.rows import Rows
from treemax.kernels.feature_tables import MIX, SparseScorers
from treemax.models.recall_tree import paper_kernels as kernels
from treemax.models.recall_tree.paper_model import Descent, PaperTreeModel
from treemax.models.recall_tree.paper_tree_kernels import TALLY, Nodes, Rates, Tallies
from treemax.models.recall_tree.training import RecallTreeSettings, learn_in_threads, pieces_with_decay
from treemax.models.trained.scorers import empty_scorers, enlarged_array, enlarged_scorers
from treemax.models.trained.sparse_scorers import with_buckets, with_features
from treemax.models.training.learning_rates import mean_squared_length


def depth_for(n_labels: int) -> int:
    """Return the depth of a binary tree with a leaf for every label."""
    return max(1, math.ceil(math.log2(max(2, n_labels))))


def candidates_for(n_labels: int) -> int:
    """Return the default number of candidates, proportional to the logarithm of the number of labels."""
    return 4 * depth_for(n_labels)


def initial_bias(n_candidates: int) -> float:
    """Return the initial score of a label, for one correct label among the candidates."""
    return -math.log(n_candidates)


def empty_model(
    sparse: bool, n_features: int, n_labels: int, n_candidates: int, node_only: bool = False
) -> PaperTreeModel:
    """Return an untrained model: a root without rows."""
    width = min(n_candidates, n_labels)
    nodes = Nodes(
        np.array([1, 0], np.int64), np.zeros(1, np.int32), np.zeros((1, 2), np.int32), np.zeros(1, np.int64), np.zeros(1), np.zeros(1, np.int64),
        np.zeros((1, width), np.int32), np.zeros((1, width), np.int32), np.zeros(1, np.int64), np.zeros(1, np.int64),
    )  # fmt: skip
    tallies = Tallies(np.zeros(1, np.int64), np.zeros(n_labels, np.int32), np.zeros(0, TALLY))
    routers, regressors = (empty_scorers(sparse, n, 1, n_features) for n in (1, n_labels))
    regressors.bias[:] = initial_bias(n_candidates)
    return PaperTreeModel(n_labels, n_features, routers, regressors, nodes, tallies, node_only=node_only)


# --- capacity --------------------------------------------------------------------------------------------


def ensure_capacity(model: PaperTreeModel, n_labels: int, n_features: int, n_candidates: int) -> None:
    """Enlarge the model to `n_labels` regressors, `n_features` features and `n_candidates` per node."""
    missing = min(n_candidates, n_labels) - model.nodes.candidates.shape[1]
    if missing > 0:
        own, wider = model.nodes, ((0, 0), (0, missing))
        model.nodes = own._replace(candidates=np.pad(own.candidates, wider), labels=np.pad(own.labels, wider))
    model.n_features = max(model.n_features, n_features)
    for name in ("routers", "regressors"):
        scorers = getattr(model, name)
        if isinstance(scorers, SparseScorers):
            setattr(model, name, with_features(scorers, n_features))
    if n_labels > len(model.regressors.bias):
        room = max(n_labels, 2 * len(model.regressors.bias))
        model.regressors = enlarged_scorers(model.regressors, room)
        model.tallies = model.tallies._replace(first=enlarged_array(model.tallies.first, room))
    if n_labels > model.n_labels:  # not all of the capacity, which differs in a loaded model
        model.regressors.bias[model.n_labels : n_labels] = initial_bias(n_candidates)
        model.n_labels = n_labels


def _ensure_capacity_for_row(model: PaperTreeModel, form: Any, row: int, search: Descent, threads: int) -> None:
    """Double the arrays and tables that could overflow while every thread learns a row like this one."""
    nodes, tallies, depth = model.nodes, model.tallies, search.depth * threads
    n_nodes = _new_length(nodes.total, nodes.used, depth)
    if n_nodes > len(nodes.total):
        model.nodes = Nodes(nodes.used, *(enlarged_array(array, n_nodes) for array in nodes[1:]))
    n_routers = _new_length(model.routers.bias, nodes.used[1:], depth)
    if n_routers > len(model.routers.bias):
        model.routers = enlarged_scorers(model.routers, n_routers)
    n_tallies = _new_length(tallies.records, tallies.used, depth + threads + 1)
    if n_tallies > len(tallies.records):
        model.tallies = tallies._replace(records=enlarged_array(tallies.records, n_tallies))
    needed = kernels.room_for(
        form,
        row,
        model.routers,
        model.regressors,
        search.options._replace(n_threads=threads),
        nodes.candidates.shape[1],
    )
    for name, n_buckets in zip(("routers", "regressors"), needed, strict=True):
        scorers = getattr(model, name)
        if isinstance(scorers, SparseScorers):
            setattr(model, name, with_buckets(scorers, n_buckets * threads))


def _new_length(array: NDArray[Any], used: NDArray[np.int64], needed: int) -> int:
    """Return the length of the array after reserving `needed` more entries."""
    n = int(used[0]) + needed
    return len(array) if n <= len(array) else max(n, 2 * len(array))


# --- rates ---------------------------------------------------------------------------------------------


def suggested_rate(rows: Rows, targets: Targets, n_labels: int, passes: int) -> float:
    """Return the heuristic learning rate of the logistic regressors, which see unscaled rows one at a time."""
    examples_per_label = max(1.0, len(targets.ids) / n_labels)
    length = math.sqrt(mean_squared_length(rows)[0])
    return 1.5 * (math.log(n_labels) + 3.0) / (length * math.sqrt(examples_per_label) * passes**0.25)


# --- learning --------------------------------------------------------------------------------------------


def learn(
    model: PaperTreeModel,
    rows: Rows,
    targets: Targets,
    orders: Iterable[NDArray[np.uint32]],
    settings: RecallTreeSettings,
    search: Descent,
    planned: int,
    threads: int = 1,
    done: int = 0,
) -> Iterator[int]:
    """Learn the rows in the given orders, in place, after `done` of the planned rows; yields the size of each batch.

    Several threads update the weights without locks (Hogwild), so results vary slightly.
    """
    form, labels = model.rows(rows), targets.ids[targets.indptr[0] : targets.indptr[-1]].astype(np.int64)
    rates = Rates(*map(np.float32, (settings.rate, settings.router_rate, settings.initial, settings.least_gradient)))

    def make_room(row: int) -> None:
        _ensure_capacity_for_row(model, form, row, search, threads)

    for piece, decay in pieces_with_decay(orders, settings.final_rate, planned, done):
        model.path_scores = None
        for scorers in (model.routers, model.regressors):
            if isinstance(scorers, SparseScorers):
                scorers.used[3] = threads == 1
        seed = np.uint64((search.seed + int(MIX) * int(model.found[2])) % 2**64)  # other sides for each row
        options = search.options._replace(n_threads=threads, node_only=model.node_only, seed=seed)

        def learn_rows(order: Any, start: int, found: Any, decay: Any = decay, options: Any = options) -> int:
            tree = model.nodes, model.tallies, model.routers, model.regressors
            return kernels.learn(
                form, labels, order, start, decay, tree, options, rates, model.workspace(search), found
            )

        learn_in_threads(model, piece, threads, learn_rows, make_room)
        yield len(piece)
