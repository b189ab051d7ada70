"""Node classifiers with an L1 penalty, and their calibration statistics."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from treemax.kernels.sparse_rows import Rows
from treemax.models.label_tree.kernels import HISTOGRAM_REACH, Plan, Siblings, Statistics
from treemax.models.label_tree.lasso_kernels import train_sparsely
from treemax.models.label_tree.solver_kernels import Solver


def held_out(rows: NDArray[np.uint32], share: int) -> NDArray[np.bool_]:
    """Return a mask of about one row in `share`, the same rows in every node; none if it is 0."""
    if share == 0:
        return np.zeros(len(rows), dtype=bool)
    mixed = rows.astype(np.uint64) * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
    return (mixed >> np.uint64(33)) % np.uint64(share) == 0


def train_l1(
    source: Rows, rows: NDArray[np.uint32], numbers: NDArray[np.uint32], siblings: Siblings, solver: Solver, plan: Plan,
    statistics: Statistics, calibration_features: NDArray[np.bool_], scratch: NDArray[np.uint32],
) -> tuple[NDArray[Any], ...]:  # fmt: skip
    """Train the siblings of a node as `train_siblings` does with an L2 penalty."""
    held = held_out(numbers, plan.held_share)
    features, weights, holdout_weights, held_scores = train_sparsely(
        source, rows, siblings, solver, plan, held, scratch
    )
    for score, row in zip(held_scores, np.flatnonzero(held)):
        positive = siblings.children[siblings.indptr[row] : siblings.indptr[row + 1]].astype(np.int64)
        weight = float(siblings.row_weights[row]) if len(siblings.row_weights) else 1.0
        _add_statistics(score, positive, weight, statistics)
    wanted = calibration_features[features][:, None]
    return (*_kept(features, weights, plan.least, np.True_), *_kept(features, holdout_weights, plan.least, wanted))


def _kept(
    features: NDArray[np.uint32], weights: NDArray[np.float32], least: np.float32, wanted: NDArray[np.bool_] | np.bool_
) -> tuple[NDArray[Any], ...]:
    """Return features, starts, children and weights of the entries that are large enough and wanted, and the biases."""
    weights, biases = weights[:-1], weights[-1].copy()
    kept = (np.abs(weights) >= least) & (weights != 0) & wanted
    used = kept.any(axis=1)
    feature, child = np.nonzero(kept[used])
    starts = np.searchsorted(feature, np.arange(int(used.sum()) + 1))
    return features[used], starts, child.astype(np.uint32), weights[used][kept[used]], biases


def _add_statistics(
    scores: NDArray[np.float32], positive: NDArray[np.int64], weight: float, statistics: Statistics
) -> None:
    """Add one held-out row: the log-likelihood of its child at each slope, and the scores of right and wrong children."""
    slopes, likelihood, histogram = statistics
    bins, reach = histogram.shape[1], HISTOGRAM_REACH
    place = np.clip((scores + reach) * (bins / (2 * reach)), 0, bins - 1).astype(np.int64)
    right = np.zeros(len(scores), dtype=np.int64)
    right[positive] = 1
    np.add.at(histogram, (right, place), weight)
    if len(positive) == 1:
        below = np.outer(slopes, scores - scores.max()).astype(np.float64)
        likelihood += weight * (below[:, positive[0]] - np.log(np.exp(below).sum(axis=1)))
