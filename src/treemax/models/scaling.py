"""Dense features brought to a common scale, found on the training rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.rows import SMALLEST, Rows, SparseRows, read_only

ROWS_AT_ONCE = 4096
LEAST_SPREAD = 1.0 / 3.0  # of a feature beside the median feature; one that is smaller is made as large
CONSTANT = 1e-6  # a spread below this share of the mean is rounding


class Scaling(NamedTuple):
    """x becomes (x - mean) * factor, feature by feature."""

    mean: NDArray[np.float32]
    factor: NDArray[np.float32]

    def __call__(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """The rows on the common scale."""
        scaled = rows - self.mean
        scaled *= self.factor
        return read_only(scaled)

    def checked(self) -> Scaling:
        """The same, once it is known to be one that `scaling_of` may give; else a ValueError."""
        with np.errstate(over="ignore"):
            sound = (self.factor >= 0) & (np.abs(self.mean * self.factor) <= 2 / CONSTANT)
        if not sound.all():
            raise ValueError("the scale of the features is not sound")
        return self

    def widened(self, n_features: int) -> Scaling:
        """The same with room for features that come later, which stay as they are."""
        more = max(0, n_features - len(self.mean))
        return Scaling(np.pad(self.mean, (0, more)), np.pad(self.factor, (0, more), constant_values=1.0))


def scaling_of(rows: Rows) -> Scaling | None:
    """The scaling that suits dense rows: centred, and with standard deviations from a third to one.

    Features up to three times as small as the median feature stay that small: often it is for a reason, such as
    pixels at the border of an image. All other differences are taken for units of measurement. A constant feature
    becomes zero. Sparse rows stay as they are (None): centring would fill them.
    """
    if isinstance(rows, SparseRows):
        return None
    mean, deviation = _moments(rows)
    varies = deviation > CONSTANT * np.abs(mean)
    if not varies.any():
        return None
    relative = deviation[varies] / np.median(deviation[varies])
    factor = np.zeros(len(mean))
    factor[varies] = np.clip(relative, LEAST_SPREAD, 1.0) / deviation[varies]
    factor[factor > 1.0 / SMALLEST] = 0.0  # too small a spread to be told from rounding
    return Scaling(mean.astype(np.float32), factor.astype(np.float32))


def _moments(rows: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation of every feature, in blocks so that no copy of all rows is made."""
    blocks = [slice(start, start + ROWS_AT_ONCE) for start in range(0, len(rows), ROWS_AT_ONCE)]
    mean = np.sum([rows[block].sum(axis=0, dtype=np.float64) for block in blocks], axis=0) / len(rows)
    squares = np.sum([np.square(rows[block] - mean).sum(axis=0) for block in blocks], axis=0)
    return mean, np.sqrt(squares / len(rows))
