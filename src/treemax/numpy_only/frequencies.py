"""Label frequencies, the prediction for rows without any known feature, with NumPy alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

PRIOR_ROWS = 10.0  # the weight of the frequencies of all training rows, in rows


def label_frequencies(label_counts: NDArray[Any], n_rows: float, multi_label: bool) -> NDArray[np.float32]:
    """Return the share of the training rows that have each label; counts and rows may be sums of weights."""
    total = n_rows if multi_label else label_counts.sum()
    return (label_counts / (total if total > 0 else 1)).astype(np.float32)


def empty_row_frequencies(
    label_counts: NDArray[np.float64], total: float, of_all: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return the frequencies of the labels in rows without features, with those in all rows as prior."""
    return ((label_counts + PRIOR_ROWS * of_all) / (total + PRIOR_ROWS)).astype(np.float32)


def most_frequent(frequencies: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """Return the ids of the k most frequent labels; ties in order of id."""
    if k < len(frequencies):
        least = -np.partition(-frequencies, k - 1)[k - 1]
        candidates = np.flatnonzero(frequencies >= least)
    else:
        candidates = np.arange(len(frequencies))
    return candidates[np.argsort(-frequencies[candidates], kind="stable")][:k]
