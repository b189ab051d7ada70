"""Node classifiers with an L1 penalty, and their calibration statistics."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.labels import ALL_ONE
from treemax.inputs.rows import SparseRows
from treemax.models.label_tree import lasso_kernels as kernels

LOSSES = {"squared_hinge": kernels.SQUARED_HINGE, "logistic": kernels.LOGISTIC}


def held_out(rows: NDArray[np.uint32], share: int) -> NDArray[np.bool_]:
    """Return a mask of about one row in `share`, the same rows in every node; none if it is 0."""
    if share == 0:
        return np.zeros(len(rows), dtype=bool)
    mixed = rows.astype(np.uint64) * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
    return (mixed >> np.uint64(33)) % np.uint64(share) == 0


def train_l1(
    source: SparseRows, rows: NDArray[np.uint32], numbers: NDArray[np.uint32], child_indptr: NDArray[np.int64], children: NDArray[np.uint32],
    n_children: int, length: float, loss: str, cost: float, passes: int, held_share: int, seed: int, least: float,
    slopes: NDArray[np.float32], likelihood: NDArray[np.float64], histogram: NDArray[np.float64], reach: float,
    calibration_features: NDArray[np.bool_], scratch: NDArray[np.uint32], row_weights: NDArray[np.float32] = ALL_ONE,
) -> tuple[NDArray[Any], ...]:  # fmt: skip
    """Train the siblings of a node; return the same as `kernels.train_siblings` with an L2 penalty.

    These are the features, the start of the entries of each, child and weight of every entry, and the biases; first of
    the final weights, then of those trained without the held-out rows. `rows` are indices into `source`, `numbers` the
    numbers of these rows in the whole data.
    """
    held = held_out(numbers, held_share)
    features, weights, holdout_weights, held_scores = kernels.train_sparsely(
        source.indptr, source.indices, source.values, rows, child_indptr, children, n_children,
        np.float32(length), LOSSES[loss], np.float32(cost), passes, held, seed, scratch, row_weights,
    )  # fmt: skip
    for score, row in zip(held_scores, np.flatnonzero(held)):
        positive = children[child_indptr[row] : child_indptr[row + 1]].astype(np.int64)
        weight = float(row_weights[row]) if len(row_weights) else 1.0
        _add_statistics(score, positive, weight, slopes, likelihood, histogram, reach)
    wanted = calibration_features[features][:, None]
    return (*_kept(features, weights, least, np.True_), *_kept(features, holdout_weights, least, wanted))


def _kept(
    features: NDArray[np.uint32], weights: NDArray[np.float32], least: float, wanted: NDArray[np.bool_] | np.bool_
) -> tuple[NDArray[Any], ...]:  # fmt: skip
    """Return features, starts, children and weights of the entries that are large enough and wanted, and the biases."""
    weights, biases = weights[:-1], weights[-1].copy()
    kept = (np.abs(weights) >= np.float32(least)) & (weights != 0) & wanted
    used = kept.any(axis=1)
    feature, child = np.nonzero(kept[used])
    starts = np.searchsorted(feature, np.arange(int(used.sum()) + 1))
    return features[used], starts, child.astype(np.uint32), weights[used][kept[used]], biases


def _add_statistics(
    scores: NDArray[np.float32], positive: NDArray[np.int64], weight: float, slopes: NDArray[np.float32],
    likelihood: NDArray[np.float64], histogram: NDArray[np.float64], reach: float,
) -> None:  # fmt: skip
    """Add one held-out row: the log-likelihood of its child at each slope, and the scores of right and wrong children."""
    bins = histogram.shape[1]
    place = np.clip((scores + reach) * (bins / (2 * reach)), 0, bins - 1).astype(np.int64)
    right = np.zeros(len(scores), dtype=np.int64)
    right[positive] = 1
    np.add.at(histogram, (right, place), weight)
    if len(positive) == 1:
        below = np.outer(slopes, scores - scores.max()).astype(np.float64)
        likelihood += weight * (below[:, positive[0]] - np.log(np.exp(below).sum(axis=1)))
