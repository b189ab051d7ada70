"""The calibration of single rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from treemax.numpy_only.calibration import BEHIND_THE_FIRST, FIRST_LABELS, StoredCalibration

Scores = NDArray[np.float32]


class RowCalibration(StoredCalibration):
    """The calibration of one row at a time, which gives what `treemax.models.calibration.Calibration` gives."""

    __slots__ = ()

    def multiclass_probabilities(self, scores: Scores, leading: Scores, is_first: NDArray[np.bool_]) -> Scores:
        """Convert scores of a row of a multi-class model; `leading` are its best scores, in descending order."""
        if self.next_share == 0:
            return self.in_proportion(scores[None], leading[None], is_first[None])[0]
        best, wide, first = float(self.probabilities(leading[:1])[0]), scores.astype(np.float64), leading.tolist()
        end = first[FIRST_LABELS] if len(first) > FIRST_LABELS else 0.0
        second = max(first[1] if len(first) > 1 else 0.0, 1e-30)
        following = [score for score in first[1:FIRST_LABELS] if score > end]
        total = sum((score / second) ** self.sharpness for score in following)
        behind = 1.0 - first[0] - sum(following)
        less = min(second / max(first[0], 1e-30), 1.0) ** BEHIND_THE_FIRST
        of_second = min((1.0 - best) * self.next_share / max(total, 1.0), best * less)
        gain = (1.0 - best) * (1.0 - self.next_share) / max(behind, 1e-6)
        most = of_second * (end / second) ** self.sharpness
        of_next = of_second * np.minimum(wide / second, 1.0) ** self.sharpness
        others = np.where(wide > end, of_next, np.minimum(gain * wide, most))
        return np.where(is_first, best, others).astype(np.float32)
