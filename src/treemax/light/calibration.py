"""From scores to probabilities, as `treemax.models.calibration` does it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
MAX_SCORE = 1.0 - 1e-6
N_NEXT = 5
LEADING = N_NEXT + 1  # labels whose scores `multiclass` needs
BEHIND_THE_FIRST = 0.1


class Calibration(NamedTuple):
    """Probability = sigmoid(slope * logit(score) + shift), and the threshold of multi-label `predict`."""

    slope: float
    shift: float
    threshold: float
    one_at_least: bool
    next_share: float
    sharpness: float

    @property
    def changes_scores(self) -> bool:
        return self.slope != 1.0 or self.shift != 0.0 or self.next_share > 0.0

    def probabilities(self, scores: Floats) -> Floats:
        """Convert scores between 0 and 1 to probabilities."""
        if not self.changes_scores:
            return scores
        with np.errstate(divide="ignore", over="ignore"):
            odds_against = 1.0 / np.minimum(scores, MAX_SCORE) - 1.0
            return 1.0 / (1.0 + np.exp(-self.shift) * odds_against**self.slope)

    def score(self, probability: float) -> float:
        """Return the score of a probability."""
        if not self.changes_scores or not 0.0 < probability < 1.0:
            return probability
        logit = (np.log(probability / (1.0 - probability)) - self.shift) / self.slope
        return float(1.0 / (1.0 + np.exp(-logit)))

    def multiclass(self, scores: Floats, leading: Floats, is_first: NDArray[np.bool_]) -> Floats:
        """Convert scores of one row of a multi-class model; `leading` are its best scores, in descending order."""
        best = float(self.probabilities(leading[:1])[0])
        if self.next_share == 0:
            given = min(max(float(leading[0]), 1e-6), 1.0 - 1e-6)
            factor = min(best / given if best < given else (1.0 - best) / (1.0 - given), 1.0)
            return np.where(is_first, best, scores * factor)
        end = float(leading[N_NEXT]) if len(leading) > N_NEXT else 0.0
        second = max(float(leading[1]) if len(leading) > 1 else 0.0, 1e-30)
        following = leading[1:N_NEXT]
        following = following[following > end]
        total = ((following / second) ** self.sharpness).sum()
        behind = 1.0 - leading[0] - following.sum()
        less = min(second / max(float(leading[0]), 1e-30), 1.0) ** BEHIND_THE_FIRST
        of_second = min((1.0 - best) * self.next_share / max(total, 1.0), best * less)
        gain = (1.0 - best) * (1.0 - self.next_share) / max(behind, 1e-6)
        most = of_second * (end / second) ** self.sharpness
        of_next = of_second * np.minimum(scores / second, 1.0) ** self.sharpness
        others = np.where(scores > end, of_next, np.minimum(gain * scores, most))
        return np.where(is_first, best, others)
