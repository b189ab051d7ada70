"""The calibration that a model file has: from the score of a label to its probability, with NumPy alone."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

Self = TypeVar("Self", bound="StoredCalibration")

MIN_SLOPE, MAX_SLOPE, MAX_SHIFT = 0.05, 1e3, 700.0  # the exponential of a larger shift overflows
MIN_SHARPNESS, MAX_SHARPNESS = 0.25, 4.0
MAX_SCORE = 1.0 - 1e-6  # scores are clipped to this
FIRST_LABELS = 5  # labels of a row on which probabilities are fitted
LEADING = FIRST_LABELS + 1  # labels of a row whose scores the probabilities of a multi-class model depend on
BEHIND_THE_FIRST = 0.1  # exponent of the ratio of the second score to the first, a bound of that of probabilities
HALF = 0.5


class StoredCalibration(NamedTuple):
    """Probability = sigmoid(slope * logit(score) + shift), and the threshold of multi-label `predict`.

    In multi-label problems this is the probability of every label; in multi-class problems that of the best label.
    """

    slope: float = 1.0
    shift: float = 0.0
    threshold: float = HALF
    one_at_least: bool = True  # a row where no label reaches the threshold gets its best label
    next_share: float = 0.0  # probability that a label ranked 2 to 5 is right if the first is wrong; 0: not fitted
    sharpness: float = 1.0  # these labels share it in proportion to their scores to this power

    @property
    def changes_scores(self) -> bool:
        return self.slope != 1.0 or self.shift != 0.0 or self.next_share > 0.0

    def probabilities(self, scores: NDArray[np.float32]) -> NDArray[np.float32]:
        """Convert scores between 0 and 1 to probabilities."""
        if not self.changes_scores:
            return scores
        with np.errstate(divide="ignore", over="ignore"):
            odds_against = 1.0 / np.minimum(scores.astype(np.float64), MAX_SCORE) - 1.0
            return (1.0 / (1.0 + np.exp(-self.shift) * odds_against**self.slope)).astype(np.float32)

    def in_proportion(
        self, scores: NDArray[np.float32], leading: NDArray[np.float32], is_first: NDArray[np.bool_]
    ) -> NDArray[np.float32]:
        """Convert the scores of the first labels of rows, and scale all others so that sums are at most one."""
        best, given = self.probabilities(leading[:, 0]), np.clip(leading[:, 0], 1e-6, 1.0 - 1e-6)
        factor = np.minimum(np.where(best < given, best / given, (1.0 - best) / (1.0 - given)), 1.0)
        return np.where(is_first, best[:, None], scores * factor[:, None]).astype(np.float32)

    def lowest_score(self, probability: float) -> float:
        """Return a lower bound of the scores of this probability, which is rounded to single precision."""
        below = float(np.nextafter(np.float32(probability), np.float32(0.0)))
        return self.score(min(below, MAX_SCORE)) * (1 - 1e-5) if self.changes_scores else probability

    def score(self, probability: float) -> float:
        """Return the score of a probability, the inverse of `probabilities`."""
        if not self.changes_scores or not 0.0 < probability < 1.0:
            return probability
        logit = (np.log(probability / (1.0 - probability)) - self.shift) / self.slope
        return float(1.0 / (1.0 + np.exp(-logit)))

    @classmethod
    def checked(cls: type[Self], numbers: Any) -> Self:
        """Validate a calibration from a model file."""
        kinds = [type(number) for number in numbers] if isinstance(numbers, list) else []
        if kinds[3:4] != [bool] or len(kinds) != 6 or any(kind not in (int, float) for kind in kinds[:3] + kinds[4:]):
            raise ValueError(f"the calibration {numbers!r} is not five numbers and a truth value")
        result = cls._make([*map(float, numbers[:3]), numbers[3], *map(float, numbers[4:])])
        valid = MIN_SLOPE <= result.slope <= MAX_SLOPE and abs(result.shift) <= MAX_SHIFT
        valid = valid and 0 <= result.threshold <= 1
        if not (valid and 0 <= result.next_share <= 1 and MIN_SHARPNESS <= result.sharpness <= MAX_SHARPNESS):
            raise ValueError(f"the calibration {numbers} is not valid")
        return result
