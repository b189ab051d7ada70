"""Ranking metrics of label ids per row.

`hits`, which of the predicted labels are true, is computed once. Each `row_...` function computes one number per row
from it and from the number of true labels; a metric is the mean. Missing predictions are misses.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.labels import Targets


def hits(targets: Targets, top_ids: Any) -> NDArray[np.bool_]:
    """Return which entries of `top_ids` (n rows of label ids, best first, -1 for none) are true labels of their row.

    >>> targets = Targets(np.array([0, 2, 3]), np.array([1, 4, 0], dtype=np.uint32))
    >>> hits(targets, [[4, 2], [1, -1]]).tolist()
    [[True, False], [False, False]]
    """
    ranking = check_ranking(top_ids)
    if len(ranking) != len(targets):
        raise ValueError(
            "Found input variables with inconsistent numbers of samples: "
            f"y_true has {len(targets)} rows, the predictions have {len(ranking)}."
        )
    ids = true_ids(targets)
    if not ids.size or not ranking.size:
        return np.zeros(ranking.shape, dtype=bool)
    # Row and id in one integer: the true ones are sorted, so one search finds all.
    stride = int(max(ids.max(), ranking.max())) + 2
    keys = np.repeat(np.arange(len(targets)) * stride, true_counts(targets)) + ids
    if (keys[1:] <= keys[:-1]).any():
        raise ValueError("the ids of each row of Targets must be sorted and without duplicates.")
    wanted = np.arange(len(ranking))[:, None] * stride + ranking
    position = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return (keys[position] == wanted) & (ranking >= 0)


def check_ranking(top_ids: Any) -> NDArray[np.int64]:
    """Validate `top_ids` and return it as an int64 matrix; labels must not repeat within a row."""
    ranking = np.asarray(top_ids)
    if ranking.ndim != 2 or (ranking.size and ranking.dtype.kind not in "iu"):
        raise ValueError(
            "label ids must be a matrix of integers, a row per example and the best first; "
            f"got shape {ranking.shape} and dtype {ranking.dtype}."
        )
    ranking = ranking.astype(np.int64, copy=False)
    if ranking.size and ranking.min() < -1:
        row = int(np.argmax((ranking < -1).any(axis=1)))
        raise ValueError(f"row {row} of the label ids has {ranking[row].min()}; ids are 0 or more, and -1 for none.")
    ordered = np.sort(ranking, axis=1)
    twice = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
    if twice.any():
        row = int(np.argmax(twice.any(axis=1)))
        raise ValueError(f"row {row} of top_labels has the same label twice; labels must not repeat within a row.")
    return ranking


def true_counts(targets: Targets) -> NDArray[np.int64]:
    """Return the number of true labels of each row."""
    return np.diff(targets.indptr)


def true_ids(targets: Targets) -> NDArray[np.int64]:
    """Return the true label ids of all rows, concatenated (a slice of `Targets` shares its parent's array)."""
    return targets.ids[targets.indptr[0] : targets.indptr[-1]].astype(np.int64)


def discounts(k: int) -> NDArray[np.float64]:
    """Return the discounts of nDCG for the ranks 1, 2, ..., k: 1 / log2(rank + 1)."""
    return 1.0 / np.log2(np.arange(2, k + 2))


def ideal_gain(counts: NDArray[np.int64], k: int) -> NDArray[np.float64]:
    """Return the ideal DCG, with hits at the first min(k, count) ranks; 1 for rows without labels."""
    cumulative = np.concatenate(([1.0], np.cumsum(discounts(k))))
    return cumulative[np.minimum(counts, k)]


def row_precision(found: NDArray[np.bool_], k: int) -> NDArray[np.float64]:
    """Return the fraction of the first k ranks with a true label."""
    return found[:, :k].sum(axis=1) / k


def row_recall(found: NDArray[np.bool_], counts: NDArray[np.int64], k: int) -> NDArray[np.float64]:
    """Return the fraction of true labels among the first k; 0 for rows without labels."""
    return found[:, :k].sum(axis=1) / np.maximum(counts, 1)


def row_ndcg(found: NDArray[np.bool_], counts: NDArray[np.int64], k: int) -> NDArray[np.float64]:
    """Return the DCG of the first k ranks, divided by the ideal DCG."""
    top = found[:, :k]
    return (top * discounts(top.shape[1])).sum(axis=1) / ideal_gain(counts, k)


def row_error(found: NDArray[np.bool_], k: int) -> NDArray[np.float64]:
    """Return 1 for rows without a true label among the first k, else 0."""
    return np.logical_not(found[:, :k].any(axis=1)).astype(np.float64)
