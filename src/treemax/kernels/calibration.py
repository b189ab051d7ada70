"""Calibrated probabilities of multi-class scores."""

from __future__ import annotations

import numpy as np

from treemax.kernels.intrinsics import maximum, minimum
from treemax.kernels.jit import kernel
from treemax.numpy_only.calibration import BEHIND_THE_FIRST


@kernel
def multiclass_probabilities(scores, is_first, leading, best, n_next, next_share, sharpness, out):
    """Convert scores to probabilities per row; `best` are the probabilities of the first labels.

    `leading` are the largest scores of a row, descending. The second to the `n_next`-th, if above the one that
    follows, get `next_share` of the remaining probability, in proportion to a power of their scores. All others get
    the rest in proportion to their scores, but less than any of these.
    """
    for i in range(scores.shape[0]):
        end, second, of_second, gain, most = _row(leading[i], best[i], n_next, next_share, sharpness)
        for j in range(scores.shape[1]):
            score = np.float64(scores[i, j])
            if is_first[i, j]:
                out[i, j] = best[i]
            elif score > end:
                out[i, j] = of_second * minimum(score / second, 1.0) ** sharpness
            else:
                out[i, j] = minimum(gain * score, most)


@kernel
def factors_after_next(leading, best, n_next, next_share, sharpness):
    """Return for every row the factor of the scores after the next labels, and the upper bound of their probability."""
    gains, highest = np.empty(len(leading)), np.empty(len(leading))
    for i in range(len(leading)):
        end, _, _, gain, most = _row(leading[i], best[i], n_next, next_share, sharpness)
        gains[i], highest[i] = gain, minimum(gain * end, most)
    return gains, highest


@kernel
def _row(leading, best, n_next, next_share, sharpness):
    """Return the lower bound of the next labels' scores, the second score and its probability; then the factor of the
    scores after them, and the upper bound of their probability."""
    end = np.float64(leading[n_next]) if leading.size > n_next else 0.0
    second = maximum(np.float64(leading[1]) if leading.size > 1 else 0.0, 1e-30)
    total, behind = 0.0, 1.0 - np.float64(leading[0])
    for j in range(1, minimum(leading.size, n_next)):
        if leading[j] > end:
            total += (np.float64(leading[j]) / second) ** sharpness
            behind -= np.float64(leading[j])
    less = minimum(second / maximum(np.float64(leading[0]), 1e-30), 1.0) ** BEHIND_THE_FIRST
    of_second = minimum((1.0 - best) * next_share / maximum(total, 1.0), best * less)
    gain = (1.0 - best) * (1.0 - next_share) / maximum(behind, 1e-6)
    return end, second, of_second, gain, of_second * (end / second) ** sharpness
