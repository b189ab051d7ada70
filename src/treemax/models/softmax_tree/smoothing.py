"""The smoothing of classes that a leaf does not have, chosen on rows that were not trained on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit

SMALLEST = -80.0  # logarithm of the smallest smoothing
LEAST_MISSED = 0.5  # rows that miss their class, at least: new rows may, even if none of these does


def best_smoothing(
    covered: NDArray[np.bool_], n_missing: NDArray[np.int64], weights: NDArray[np.float32] | None = None
) -> float:
    """Return the smoothing, at most 1, with the largest (weighted) likelihood of the rows.

    `covered` is true if the class of a row is in its leaf, `n_missing` is the number of classes m that are not. With
    smoothing e, the probability of the row's class is p / (1 + e m) or e / (1 + e m). The logarithm of the likelihood is
    concave in log e, with its maximum where the sum of e m / (1 + e m) is the number of rows that miss their class.

    >>> best_smoothing(np.array([True, True, True, False]), np.array([10, 10, 10, 10]))  # e m / (1 + e m) = 1 / 4
    0.0333...
    """
    sizes = np.log(n_missing[n_missing > 0])
    own = np.ones(len(covered)) if weights is None else weights.astype(np.float64)
    missed, of_sizes = max(LEAST_MISSED, float(own[~covered].sum())), own[n_missing > 0]

    def slope(log_smoothing: float) -> float:
        return float((of_sizes * expit(log_smoothing + sizes)).sum()) - missed

    if not len(sizes):
        return 0.0
    return 1.0 if slope(0.0) <= 0.0 else float(np.exp(brentq(slope, SMALLEST, 0.0)))
