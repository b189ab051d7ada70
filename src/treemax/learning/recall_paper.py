"""Learning a recall tree as its paper prints it, row by row, and making room for what is new."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treemax.inference.recall_paper import Descent, PaperTreeModel
from treemax.inference.recall_tree import SMALLEST_TABLE
from treemax.inputs import Rows
from treemax.kernels import recall_paper as kernels
from treemax.kernels.recall_paper import Nodes, Rates, Tallies
from treemax.kernels.scorers import EMPTY, SparseScorers
from treemax.labels import Targets
from treemax.learning.recall_tree import Settings, empty_scorers, larger_table, longer, more_scorers

ROWS_AT_ONCE = 2048


def depth_for(n_labels: int) -> int:
    """The depth at which a binary tree has a leaf for every label."""
    return max(1, math.ceil(math.log2(max(2, n_labels))))


def candidates_for(n_labels: int) -> int:
    """How many labels are scored: in proportion to the logarithm of their number."""
    return 4 * depth_for(n_labels)


def empty_model(sparse: bool, n_features: int, n_labels: int, n_candidates: int) -> PaperTreeModel:
    """A root that nothing came to."""
    nodes = Nodes(
        np.array([1, 0], np.int64), np.zeros(1, np.int32), np.zeros((1, 2), np.int32), np.zeros(1, np.int64), np.zeros(1), np.zeros(1, np.int64),
        np.zeros((1, n_candidates), np.int32), np.zeros(1, np.int64),
    )  # fmt: skip
    tallies = Tallies(
        np.zeros(1, np.int64), np.full(SMALLEST_TABLE, EMPTY), np.zeros(SMALLEST_TABLE, np.int32), np.zeros(0, np.uint64),
        *(np.zeros(0, np.int32) for _ in range(3)), *(np.zeros(0, np.float32) for _ in range(2)),
    )  # fmt: skip
    routers, regressors = (empty_scorers(sparse, n, 1, n_features) for n in (1, n_labels))
    return PaperTreeModel(n_labels, n_features, routers, regressors, nodes, tallies)


# --- room ------------------------------------------------------------------------------------------------


def make_room(model: PaperTreeModel, n_labels: int, n_features: int, n_candidates: int) -> None:
    """See to it that labels up to this number have a regressor, and nodes room for so many candidates."""
    missing = n_candidates - model.nodes.candidates.shape[1]
    if missing > 0:
        model.nodes = model.nodes._replace(candidates=np.pad(model.nodes.candidates, ((0, 0), (0, missing))))
    model.n_features = max(model.n_features, n_features)
    if n_labels > len(model.regressors.bias):
        model.regressors = more_scorers(model.regressors, max(n_labels, 2 * len(model.regressors.bias)))
    model.n_labels = max(model.n_labels, n_labels)


def _make_table_room(model: PaperTreeModel, depth: int, longest: int) -> None:
    """Arrays and tables that could run full with the next row are doubled."""
    nodes, tallies = model.nodes, model.tallies
    n_nodes, n_tallies = (
        _doubled(nodes.total, nodes.used, depth),
        _doubled(tallies.counts, tallies.used, depth + 1),
    )
    if n_nodes > len(nodes.total):
        model.nodes = Nodes(nodes.used, *(longer(array, n_nodes) for array in nodes[1:]))
    n_routers = _doubled(model.routers.bias, nodes.used[1:], depth)
    if n_routers > len(model.routers.bias):
        model.routers = more_scorers(model.routers, n_routers)
    if n_tallies > len(tallies.counts):
        tallies = Tallies(*tallies[:3], *(longer(array, n_tallies) for array in tallies[3:]))
    keys, places = larger_table(tallies.keys, tallies.places, int(tallies.used[0]) + depth + 1)
    model.tallies = tallies._replace(keys=keys, places=places)
    for name, needed in (
        ("routers", longest * depth),
        ("regressors", longest * nodes.candidates.shape[1]),
    ):
        scorers = getattr(model, name)
        if isinstance(scorers, SparseScorers):
            keys, cells = larger_table(scorers.keys, scorers.cells, int(scorers.used[0]) + needed)
            setattr(model, name, scorers._replace(keys=keys, cells=cells))


def _doubled(array: NDArray[Any], used: NDArray[np.int64], needed: int) -> int:
    """The length of an array that has room for so many more."""
    n = int(used[0]) + needed
    return len(array) if n <= len(array) else max(n, 2 * len(array))


# --- learning --------------------------------------------------------------------------------------------


def learn(
    model: PaperTreeModel,
    rows: Rows,
    targets: Targets,
    orders: Iterable[NDArray[np.uint32]],
    settings: Settings,
    search: Descent,
    planned: int,
) -> Iterator[int]:
    """Learn the rows in the given orders, in place; yields the rows done after each piece.

    One thread: where a row goes depends on what the row before it changed.
    """
    done, found = 0, np.zeros(2, dtype=np.int64)
    form, labels = model.rows(rows), targets.ids[targets.indptr[0] : targets.indptr[-1]].astype(np.int64)
    longest = int(np.diff(form[0]).max(initial=0)) if model.is_sparse else 0
    rates = Rates(
        *map(np.float32, (settings.rate, settings.router_rate, settings.initial, settings.least_gradient))
    )
    for order in orders:
        for start in range(0, len(order), ROWS_AT_ONCE):
            piece = order[start : start + ROWS_AT_ONCE]
            fall = (1.0 - settings.final_rate) * (done + np.arange(len(piece))) / max(1, planned)
            falling, learned = (1.0 - fall).astype(np.float32), 0
            while True:
                learned = kernels.learn(
                    form, labels, piece, learned, falling, model.nodes, model.tallies, model.routers, model.regressors,
                    search.way, rates, found,
                )  # fmt: skip
                if learned == len(piece):
                    break
                _make_table_room(model, search.depth, longest)
            model.found += [*found, len(piece)]
            found[:] = 0
            done += len(piece)
            yield len(piece)
