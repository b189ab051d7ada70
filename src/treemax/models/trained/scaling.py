"""Standardisation of dense features."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.rows import SMALLEST, Rows, SparseRows, read_only

ROWS_AT_ONCE = 4096
MIN_DEVIATION = 1.0 / 3.0  # lower bound of the deviation of a feature, relative to the median feature
CONSTANT = 1e-6  # a deviation below this share of the mean is rounding error


class Scaling(NamedTuple):
    """The map x -> (x - mean) * factor of each feature."""

    mean: NDArray[np.float32]
    factor: NDArray[np.float32]

    def __call__(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Scale dense rows."""
        scaled = rows - self.mean
        scaled *= self.factor
        return read_only(scaled)

    def checked(self) -> Scaling:
        """Return the scaling; raise ValueError if `scaling_of` cannot have produced it."""
        with np.errstate(over="ignore"):
            valid = (self.factor >= 0) & (np.abs(self.mean * self.factor) <= 2 / CONSTANT)
        if not valid.all():
            raise ValueError("the scale of the features is not valid")
        return self

    def widened(self, n_features: int) -> Scaling:
        """Return the scaling for more features; new features are not scaled."""
        more = max(0, n_features - len(self.mean))
        return Scaling(np.pad(self.mean, (0, more)), np.pad(self.factor, (0, more), constant_values=1.0))


def scaling_of(rows: Rows, weights: NDArray[np.float32] | None = None) -> Scaling | None:
    """Return the scaling that centres dense rows and gives standard deviations from a third to one.

    Features with a deviation down to a third of the median keep their ratio to it, which often has a meaning, as for
    pixels at the border of an image. Other differences are assumed to be units of measurement. Constant features
    become zero. None for sparse rows, which centring would make dense. Means and deviations are weighted by `weights`.
    """
    if isinstance(rows, SparseRows):
        return None
    mean, deviation = moments(rows, weights)
    varies = deviation > CONSTANT * np.abs(mean)
    if not varies.any():
        return None
    relative = deviation[varies] / np.median(deviation[varies])
    factor = np.zeros(len(mean))
    factor[varies] = np.clip(relative, MIN_DEVIATION, 1.0) / deviation[varies]
    factor[factor > 1.0 / SMALLEST] = 0.0  # the deviation may be rounding error
    return Scaling(mean.astype(np.float32), factor.astype(np.float32))


def moments(
    rows: NDArray[np.float32], weights: NDArray[np.float32] | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and standard deviation of every feature, by blocks to avoid a copy of all rows."""
    blocks = [slice(start, start + ROWS_AT_ONCE) for start in range(0, len(rows), ROWS_AT_ONCE)]
    if weights is not None:
        each, total = weights.astype(np.float64), float(weights.sum(dtype=np.float64))
        mean = np.sum([each[block] @ rows[block] for block in blocks], axis=0) / total
        squares = np.sum([each[block] @ np.square(rows[block] - mean) for block in blocks], axis=0)
        return mean, np.sqrt(squares / total)
    mean = np.sum([rows[block].sum(axis=0, dtype=np.float64) for block in blocks], axis=0) / len(rows)
    squares = np.sum([np.square(rows[block] - mean).sum(axis=0) for block in blocks], axis=0)
    return mean, np.sqrt(squares / len(rows))
