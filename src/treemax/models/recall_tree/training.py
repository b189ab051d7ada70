"""Online training of a recall tree."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from treemax.inputs.labels import Targets
from treemax.inputs.rows import Rows
from treemax.kernels.feature_tables import SparseScorers
from treemax.kernels.scorers import EMPTY, SparseGroups
from treemax.memory import check_fits
from treemax.models.calibration import calibration_from_top_k
from treemax.models.recall_tree import kernels
from treemax.models.recall_tree.kernels import Histograms, Rates
from treemax.models.recall_tree.model import SHARPNESS, Beam, RecallTreeModel
from treemax.models.trained.hash_tables import SMALLEST_TABLE, larger_table
from treemax.models.trained.scorers import SCORER_ARRAYS, Scorers, empty_scorers, enlarged_scorers
from treemax.models.trained.sparse_scorers import with_buckets, with_features
from treemax.numpy_only.calibration import FIRST_LABELS
from treemax.parallel.threads import run_all

ROWS_AT_ONCE = 512  # per kernel call: predictions in other threads wait for it
MIN_PROBABILITY = 1e-6
LABELS_PER_LEAF = 8  # a tree with fewer labels per leaf is deep enough
ROWS_PER_LEAF = 16  # a tree with fewer rows per leaf is too deep
LEAST_KEPT = 10  # times the logarithm of the number of labels: minimum number of candidates kept by a leaf
MOST_KEPT = 1 << 22  # maximum number of candidates kept by all leaves together, unless the minimum is more


@dataclass(frozen=True)
class RecallTreeSettings:
    """Training settings; both rates decay linearly to the fraction `final_rate` over the planned rows."""

    rate: float
    router_rate: float
    initial: float
    final_rate: float
    least_gradient: float
    least_share: float
    passes: int = 1

    @property
    def rates(self) -> Rates:
        return Rates(
            *map(np.float32, (self.rate, self.router_rate, self.initial, self.least_gradient, self.least_share))
        )


def depth_for(n_labels: int, arity: int, n_rows: int) -> int:
    """Return the depth of a tree with enough leaves for the labels, and enough rows for the leaves."""
    wanted = math.ceil(math.log(max(1.0, n_labels / LABELS_PER_LEAF), arity) - 1e-9)
    possible = math.floor(math.log(max(1.0, n_rows / ROWS_PER_LEAF), arity) + 1e-9)
    return max(1, min(wanted, possible))


def candidates_for(n_labels: int) -> int:
    """Return the default number of candidates, proportional to the logarithm of the number of labels."""
    return 30 * math.ceil(math.log2(max(2, n_labels)))


def kept_at_leaf(n_candidates: int, n_labels: int, n_leaves: int) -> int:
    """Return the number of candidates that a leaf keeps: all that are scored, unless the tree is large."""
    least = LEAST_KEPT * math.ceil(math.log2(max(2, n_labels)))
    return min(n_candidates, n_labels, max(least, MOST_KEPT // n_leaves))


def empty_model(
    sparse: bool, n_features: int, n_labels: int, arity: int, depth: int, n_candidates: int
) -> RecallTreeModel:
    """Return an untrained model."""
    n_inner = (arity**depth - 1) // (arity - 1)
    n_nodes, n_kept = n_inner * arity + 1, kept_at_leaf(n_candidates, n_labels, arity**depth)
    check_fits(
        min(1e15, n_nodes * (28 + 8 * n_kept + (0 if sparse else 8 * n_features))),
        f"A tree of depth {depth} with {arity} children a node",
        'Use a smaller depth, or depth="auto".',
    )
    histograms = Histograms(
        np.full(SMALLEST_TABLE, EMPTY), np.zeros((SMALLEST_TABLE, arity), np.float32), np.zeros(2, np.int64),
        np.zeros(n_nodes, np.float32), np.zeros((n_nodes, n_kept), np.int32),
        np.zeros((n_nodes, n_kept), np.float32), np.zeros(n_nodes, np.int64), np.zeros(n_nodes, np.int64),
    )  # fmt: skip
    return RecallTreeModel(
        arity, depth, n_labels, n_features,
        empty_scorers(sparse, n_inner, arity, n_features), empty_scorers(sparse, n_labels, 1, n_features), histograms,
    )  # fmt: skip


# --- capacity --------------------------------------------------------------------------------------------


def ensure_capacity(model: RecallTreeModel, n_labels: int, n_features: int, n_candidates: int) -> None:
    """Enlarge the model to `n_labels` regressors, `n_features` features and `n_candidates` per row."""
    own, n_kept = model.histograms, kept_at_leaf(n_candidates, n_labels, model.arity**model.depth)
    if own.labels.shape[1] < n_kept:
        wider = ((0, 0), (0, n_kept - own.labels.shape[1]))
        labels, counts = np.pad(own.labels, wider), np.pad(own.label_counts, wider)
        model.histograms = own._replace(labels=labels, label_counts=counts)
    model.n_features = max(model.n_features, n_features)
    if model.scaling is not None:
        model.scaling = model.scaling.widened(model.n_features)
    if isinstance(model.regressors, SparseScorers):
        model.regressors = with_features(model.regressors, n_features)
    if n_labels > len(model.regressors.bias):
        model.regressors = enlarged_scorers(model.regressors, max(n_labels, 2 * len(model.regressors.bias)))
    model.n_labels = max(model.n_labels, n_labels)


def _ensure_table_capacity(model: RecallTreeModel, n_buckets: int, beam: Beam, longest: int, threads: int) -> None:
    """Double the hash tables that could overflow with the next row of every thread."""
    n_open = threads * model.max_opened_nodes(beam)
    if isinstance(model.regressors, SparseScorers):
        model.regressors = with_buckets(model.regressors, n_buckets * threads)
    if isinstance(model.routers, SparseGroups):
        needed = int(model.routers.used[0]) + longest * n_open
        keys, cells = larger_table(model.routers.keys, model.routers.cells, needed)
        model.routers = model.routers._replace(keys=keys, cells=cells)
    histograms = model.histograms
    needed = int(histograms.used[0]) + n_open
    keys, counts = larger_table(histograms.keys, histograms.counts, needed)
    model.histograms = histograms._replace(keys=keys, counts=counts)


def with_one_more_level(model: RecallTreeModel, n_candidates: int) -> RecallTreeModel:
    """Return the tree with one more level; the counts of the old leaves are divided evenly among their children."""
    arity, old = model.arity, model.histograms
    deeper = empty_model(model.is_sparse, model.n_features, model.n_labels, arity, model.depth + 1, n_candidates)
    n_old, first_leaf = len(old.total), (arity**model.depth - 1) // (arity - 1)
    new = deeper.histograms
    new.total[:n_old] = old.total
    leaves = np.arange(first_leaf, n_old)
    children = leaves[:, None] * arity + 1 + np.arange(arity)
    new.total[children] = old.total[leaves, None] / arity
    width = min(new.labels.shape[1], old.labels.shape[1])
    new.labels[children, :width] = old.labels[leaves, None, :width]
    new.label_counts[children, :width] = old.label_counts[leaves, None, :width] / arity
    new.n_labels[children] = np.minimum(old.n_labels[leaves, None], width)
    needed = int(old.used[0]) + int(old.n_labels[leaves].sum())
    keys, counts = larger_table(old.keys, old.counts, needed)
    deeper.histograms = new._replace(keys=keys.copy(), counts=counts.copy(), used=old.used.copy())
    kernels.divide_counts(leaves, arity, old.labels, old.label_counts, old.n_labels, deeper.histograms)
    deeper.routers = _with_old_scorers(deeper.routers, model.routers)
    deeper.regressors, deeper.found, deeper.knows_squares = model.regressors, model.found, model.knows_squares
    deeper.sharpness, deeper.calibration, deeper.scaling = model.sharpness, model.calibration, model.scaling
    return deeper


def _with_old_scorers(new: Scorers, old: Scorers) -> Scorers:
    """Return the scorers of a larger tree, with the old ones copied into it."""
    n = len(old.bias)
    for name in SCORER_ARRAYS:
        if hasattr(new, name):
            getattr(new, name)[:n] = getattr(old, name)
    if isinstance(new, SparseGroups) and isinstance(old, SparseGroups):
        return new._replace(keys=old.keys, cells=old.cells, used=old.used)
    return new


# --- calibration -----------------------------------------------------------------------------------------


def calibrate(model: RecallTreeModel, rows: Rows, targets: Targets, beam: Beam, threads: int = 1) -> None:
    """Calibrate the probabilities of the top prediction on held-out rows.

    First the temperature of the softmax over the candidates; then a map from its output to probabilities, because the
    scores do not show whether the true label is among the candidates.
    """
    model.sharpness, labels = 1.0, targets.ids[targets.indptr[:-1]]
    ids, probabilities = model.top_k(rows, min(model.n_labels, beam.n_candidates), beam, threads)
    answered = ids[:, 0] >= 0
    if not answered.any():
        return
    weights = None if targets.weights is None else targets.weights[answered]
    model.sharpness = _sharpness(ids[answered], probabilities[answered], labels[answered], weights)
    ids, probabilities = model.top_k(rows, min(model.n_labels, FIRST_LABELS), beam, threads)
    model.calibration = calibration_from_top_k(ids, probabilities, targets, model.n_labels, multi_label=False)


def _sharpness(
    ids: NDArray[np.int64],
    probabilities: NDArray[np.float32],
    labels: NDArray[np.uint32],
    weights: NDArray[np.float32] | None,
) -> float:
    """Return the inverse temperature that minimises the log loss of whether the top candidate is correct."""
    logarithms = np.log(np.maximum(probabilities, 1e-30, dtype=np.float64))
    logarithms[ids < 0] = -np.inf
    right = ids[:, 0] == labels

    def log_loss(logarithm: float) -> float:
        sharpened = np.exp(math.exp(logarithm) * (logarithms - logarithms[:, :1]))
        first = np.clip(1.0 / sharpened.sum(axis=1), MIN_PROBABILITY, 1.0 - MIN_PROBABILITY)
        return float(np.average(-np.log(np.where(right, first, 1.0 - first)), weights=weights))

    bounds = tuple(map(math.log, SHARPNESS))
    return math.exp(float(minimize_scalar(log_loss, bounds=bounds, method="bounded").x))


# --- learning --------------------------------------------------------------------------------------------


def learn(
    model: RecallTreeModel,
    rows: Rows,
    targets: Targets,
    orders: Iterable[NDArray[np.uint32]],
    settings: RecallTreeSettings,
    beam: Beam,
    planned: int,
    threads: int = 1,
    done: int = 0,
) -> Iterator[int]:
    """Learn the rows in the given orders, in place, after `done` of the planned rows; yields the size of each batch.

    Several threads update the weights without locks (Hogwild), so results vary slightly.
    """
    form, labels = model.rows(rows), targets.ids[targets.indptr[0] : targets.indptr[-1]].astype(np.int64)
    examples = form, labels, targets.row_weights
    longest = int(np.diff(form[0]).max(initial=0)) if model.is_sparse else 0
    beam = model.clipped_beam(beam)

    def make_room(row: int) -> None:
        n_buckets = kernels.room_for(form, row, threads, model.regressors, model.shape(beam))
        _ensure_table_capacity(model, n_buckets, beam, longest, threads)

    for piece, decay in pieces_with_decay(orders, settings.final_rate, planned, done):

        def learn_rows(order: Any, start: int, found: Any, decay: Any = decay) -> int:
            tree = model.routers, model.regressors, model.histograms
            return kernels.learn(
                examples, order, start, decay, threads, tree, model.shape(beam), settings.rates, model.workspace(beam), found
            )  # fmt: skip

        learn_in_threads(model, piece, threads, learn_rows, make_room)
        yield len(piece)


def pieces_with_decay(
    orders: Iterable[NDArray[np.uint32]], final_rate: float, planned: int, done: int
) -> Iterator[tuple[NDArray[np.uint32], NDArray[np.float32]]]:
    """Yield a few rows at a time, and for each the factor of its rates after `done` of the planned rows."""
    for order in orders:
        for start in range(0, len(order), ROWS_AT_ONCE):
            piece = order[start : start + ROWS_AT_ONCE]
            decay = (1.0 - final_rate) * (done + np.arange(len(piece))) / max(1, planned)
            yield piece, (1.0 - decay).astype(np.float32)
            done += len(piece)


def learn_in_threads(
    model: Any,
    order: NDArray[np.uint32],
    threads: int,
    learn_rows: Callable[..., int],
    make_room: Callable[[int], None],
) -> None:
    """Divide rows among threads. `learn_rows` stops early where the model has no room for a row, and returns its place."""
    cuts = np.linspace(0, len(order), threads + 1).astype(int)
    done = cuts[:-1].copy()  # the next row of each thread
    found = np.zeros((threads, 2), dtype=np.int64)

    def work(thread: int) -> None:
        done[thread] = learn_rows(order[: cuts[thread + 1]], done[thread], found[thread])

    while waiting := np.flatnonzero(done < cuts[1:]).tolist():
        run_all(waiting, work, threads)
        for thread in np.flatnonzero(done < cuts[1:]):
            make_room(order[done[thread]])
    model.found[:2] += found.sum(axis=0)
    model.found[2] += len(order)
