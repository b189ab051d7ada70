"""From a model's scores to honest probabilities, and to the labels that a multi-label model answers.

Both are learned from rows that the model had not seen when it scored them. The map from score to probability is
increasing, so the ranking of the labels stays as it is.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

PRIOR = 5.0  # weight of "the scores are right already", in nats: it matters while rows are few
PRIOR_ROWS = 30  # the same for the threshold, in rows
LEAST_SLOPE = 0.05
HALF = 0.5


class Calibration(NamedTuple):
    """Probability = sigmoid(slope * logit(score) + shift), and the threshold of multi-label `predict`."""

    slope: float = 1.0
    shift: float = 0.0
    threshold: float = HALF

    @property
    def changes_scores(self) -> bool:
        return self.slope != 1.0 or self.shift != 0.0

    def probabilities(self, scores: NDArray[np.float32]) -> NDArray[np.float32]:
        """The probabilities that scores between 0 and 1 stand for."""
        if not self.changes_scores:
            return scores
        with np.errstate(divide="ignore", over="ignore"):
            odds_against = 1.0 / scores.astype(np.float64) - 1.0
            return (1.0 / (1.0 + np.exp(-self.shift) * odds_against**self.slope)).astype(np.float32)

    def score(self, probability: float) -> float:
        """The score that a probability comes from."""
        if not self.changes_scores or not 0.0 < probability < 1.0:
            return probability
        logit = (np.log(probability / (1.0 - probability)) - self.shift) / self.slope
        return float(1.0 / (1.0 + np.exp(-logit)))

    @classmethod
    def checked(cls, numbers: list[float]) -> Calibration:
        """A calibration of a file, once it is sound."""
        found = cls(*map(float, numbers))
        if not (np.isfinite(found).all() and found.slope > 0 and 0 <= found.threshold <= 1):
            raise ValueError(f"the calibration {numbers} is not sound")
        return found


def fit_calibration(ranked: NDArray[np.float32], hits: NDArray[np.bool_]) -> Calibration:
    """The map that fits rows held out: the scores of their best labels, best first, and which of them are right.

    Logistic regression on the logit of the score (Platt, 1999). First answers weigh as much as all others together.
    """
    if len(ranked) == 0:
        return Calibration()
    scores = np.clip(ranked.astype(np.float64), 1e-6, 1.0 - 1e-6)
    logit, right = np.log(scores / (1.0 - scores)), hits.astype(np.float64)
    weight = np.full(ranked.shape, HALF / max(1, ranked.shape[1] - 1))
    weight[:, 0] = HALF if ranked.shape[1] > 1 else 1.0
    weight[ranked <= 0] = 0.0
    slope, shift = _logistic_regression(logit.ravel(), right.ravel(), weight.ravel())
    return Calibration(max(slope, LEAST_SLOPE), shift)


def _logistic_regression(
    x: NDArray[np.float64], right: NDArray[np.float64], weight: NDArray[np.float64]
) -> tuple[float, float]:
    """Slope and shift by damped Newton steps, from and towards 1 and 0."""
    start = np.array([1.0, 0.0])
    found, step_size = start, 1.0

    def loss(parameters: NDArray[np.float64]) -> float:
        z = parameters[0] * x + parameters[1]
        return float(
            (weight * (np.logaddexp(0.0, z) - right * z)).sum() + PRIOR * ((parameters - start) ** 2).sum()
        )

    value = loss(found)
    for _ in range(50):
        chance = 1.0 / (1.0 + np.exp(-(found[0] * x + found[1])))
        slack, curve = weight * (chance - right), weight * chance * (1.0 - chance)
        gradient = np.array([(slack * x).sum(), slack.sum()]) + 2 * PRIOR * (found - start)
        cross = (curve * x).sum()
        hessian = np.array([[(curve * x * x).sum(), cross], [cross, curve.sum()]]) + 2 * PRIOR * np.eye(2)
        step, step_size = np.linalg.solve(hessian, gradient), 1.0
        while step_size > 1e-4 and loss(found - step_size * step) > value:
            step_size /= 2
        following = loss(found - step_size * step)
        if following > value - 1e-9:
            break
        found, value = found - step_size * step, following
    return float(found[0]), float(found[1])


def best_threshold(
    rows: NDArray[np.int64], probabilities: NDArray[np.float32], hits: NDArray[np.bool_], n_labels: NDArray[np.int64],
    always_one: bool,
) -> float:  # fmt: skip
    """The threshold of the largest micro-averaged F1 on rows held out.

    `rows`, `probabilities` and `hits` have an entry for every label found in them, `n_labels` the number of true
    labels of every row. With `always_one` every row is answered with its best label at least. Where rows are few, the
    answer leans towards half of the F1, which is the best threshold of exact probabilities (Lipton et al., 2014).
    """
    if len(rows) == 0 or n_labels.sum() == 0:
        return HALF
    order = np.lexsort((-probabilities, rows))
    free = np.ones(len(rows), dtype=bool)
    n_fixed = right_fixed = 0
    if always_one:
        first = order[np.unique(rows[order], return_index=True)[1]]
        free[first] = False
        n_fixed, right_fixed = len(first), int(hits[first].sum())
    by_probability = np.flatnonzero(free)[np.argsort(-probabilities[free], kind="stable")]
    n_answers = n_fixed + np.arange(len(by_probability) + 1)
    right = right_fixed + np.concatenate([[0], np.cumsum(hits[by_probability])])
    f1 = 2 * right / np.maximum(1, n_answers + n_labels.sum())
    best = int(f1.argmax())
    falling = np.concatenate([[1.0], probabilities[by_probability].astype(np.float64), [0.0]])
    chosen = (falling[best] + falling[best + 1]) / 2
    share = PRIOR_ROWS / (PRIOR_ROWS + len(n_labels))
    return float((1 - share) * chosen + share * f1[best] / 2)
