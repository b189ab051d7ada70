"""The classifiers of a node with an L1 penalty: what the kernel finds, and what rows held out say of it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.rows import SparseRows
from treemax.models.label_tree import lasso_kernels as kernels

LOSSES = {"squared_hinge": kernels.SQUARED_HINGE, "logistic": kernels.LOGISTIC}


def held_out(rows: NDArray[np.uint32], share: int) -> NDArray[np.bool_]:
    """About one row in `share`, the same for every node; none where it is 0."""
    if share == 0:
        return np.zeros(len(rows), dtype=bool)
    mixed = rows.astype(np.uint64) * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
    return (mixed >> np.uint64(33)) % np.uint64(share) == 0


def train_sparsely(
    source: SparseRows, rows: NDArray[np.uint32], numbers: NDArray[np.uint32], child_indptr: NDArray[np.int64], children: NDArray[np.uint32],
    n_children: int, length: float, loss: str, cost: float, passes: int, held_share: int, seed: int, least: float,
    slopes: NDArray[np.float32], likelihood: NDArray[np.float64], histogram: NDArray[np.int64], reach: float,
    early_features: NDArray[np.bool_], scratch: NDArray[np.uint32],
) -> tuple[NDArray[Any], ...]:  # fmt: skip
    """Train the siblings of a node and give what `kernels.siblings.train_siblings` gives with an L2 penalty:
    the features kept, where the weights of each begin, child and weight of every entry, and the biases, at the end and
    before the rows held out joined. `rows` says where the rows are in the source, `numbers` what they are called in
    all nodes."""
    held = held_out(numbers, held_share)
    features, weights, early_weights, held_scores = kernels.train_sparsely(
        source.indptr, source.indices, source.values, rows, child_indptr, children, n_children,
        np.float32(length), LOSSES[loss], np.float32(cost), passes, held, seed, scratch,
    )  # fmt: skip
    for score, row in zip(held_scores, np.flatnonzero(held)):
        own = children[child_indptr[row] : child_indptr[row + 1]].astype(np.int64)
        _judge(score, own, slopes, likelihood, histogram, reach)
    wanted = early_features[features][:, None]
    return (*_kept(features, weights, least, np.True_), *_kept(features, early_weights, least, wanted))


def _kept(
    features: NDArray[np.uint32], weights: NDArray[np.float32], least: float, wanted: NDArray[np.bool_] | np.bool_
) -> tuple[NDArray[Any], ...]:  # fmt: skip
    """The features, starts, children and weights of what is large enough and wanted, and the biases."""
    weights, biases = weights[:-1], weights[-1].copy()
    kept = (np.abs(weights) >= np.float32(least)) & (weights != 0) & wanted
    used = kept.any(axis=1)
    feature, child = np.nonzero(kept[used])
    starts = np.searchsorted(feature, np.arange(int(used.sum()) + 1))
    return features[used], starts, child.astype(np.uint32), weights[used][kept[used]], biases


def _judge(
    scores: NDArray[np.float32], own: NDArray[np.int64], slopes: NDArray[np.float32],
    likelihood: NDArray[np.float64], histogram: NDArray[np.int64], reach: float,
) -> None:  # fmt: skip
    """Enter one row held out: how likely its child is at each of the slopes, and which scores were right."""
    bins = histogram.shape[1]
    place = np.clip((scores + reach) * (bins / (2 * reach)), 0, bins - 1).astype(np.int64)
    right = np.zeros(len(scores), dtype=np.int64)
    right[own] = 1
    np.add.at(histogram, (right, place), 1)
    if len(own) == 1:
        below = np.outer(slopes, scores - scores.max()).astype(np.float64)
        likelihood += below[:, own[0]] - np.log(np.exp(below).sum(axis=1))
