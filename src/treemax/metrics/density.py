"""Metrics of density models, and the comparison with a constant predictor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

# Float32 probabilities may slightly exceed one.
_ROUNDING = 1e-5


class Perplexity(NamedTuple):
    """Perplexity over the covered points, and the fraction of points covered."""

    perplexity: float
    coverage: float
    n: int


class DensityScores:
    """Perplexity and coverage, accumulated over the predicted probabilities of the true labels.

    >>> scores = DensityScores()
    >>> scores.update([0.5, 0.0])
    >>> scores.update([0.125])
    >>> scores.result().perplexity, round(scores.result().coverage, 2)
    (4.0, 0.67)
    """

    def __init__(self) -> None:
        self.n = 0
        self.n_covered = 0
        self._log_sum = 0.0

    def update(self, probabilities: Any, log: bool = False) -> None:
        """Add points: the probability of each true label (its natural logarithm with `log`)."""
        given = np.asarray(probabilities, dtype=np.float64)
        if given.ndim != 1:
            raise ValueError(f"probabilities must be a vector with one entry per point; got shape {given.shape}.")
        valid = given <= _ROUNDING if log else (given >= 0) & (given <= 1 + _ROUNDING)
        if not valid.all():
            at = int(np.argmin(valid))
            expected = "a logarithm of a probability (0 or less)" if log else "a probability (0 to 1)"
            raise ValueError(f"position {at} has {given[at]}, which is not {expected}.")
        covered = given[given > (-np.inf if log else 0)]
        self.n += len(given)
        self.n_covered += len(covered)
        self._log_sum += float(np.sum(covered if log else np.log(covered)))

    def result(self) -> Perplexity:
        if self.n == 0:
            raise ValueError("there is nothing to evaluate: no probabilities were given.")
        if self.n_covered == 0:
            return Perplexity(math.inf, 0.0, self.n)
        with np.errstate(over="ignore"):
            value = float(np.exp(-self._log_sum / self.n_covered))
        return Perplexity(value, self.n_covered / self.n, self.n)


def perplexity(probabilities: Any, log: bool = False) -> Perplexity:
    """Return exp(-mean ln p) over the points with p > 0, and the fraction of such points.

    `probabilities` are those that the model predicted for the true label of each point. Points with probability 0
    would make the perplexity infinite; they are excluded from the mean and count in `coverage` instead. Without any
    covered point the perplexity is infinite.

    >>> perplexity([0.25, 0.25, 0.0, 0.25])
    Perplexity(perplexity=4.0, coverage=0.75, n=4)
    """
    scores = DensityScores()
    scores.update(probabilities, log)
    return scores.result()


def probabilities_of_labels(model: Any, X: Any, labels: Sequence[Any]) -> Any:
    """Return the probability that a model predicts for the label of each row, 0 for a label that training never had."""
    known = model.label_index_.ids(labels) >= 0
    asked = [[label if is_known else None] for label, is_known in zip(labels, known, strict=True)]
    return model.predict_proba_of(X, asked)[:, 0]


def entropy_reduction(accuracy: float, constant_accuracy: float) -> float:
    """Return log2(accuracy / constant_accuracy), the gain over the constant predictor in bits.

    Minus infinity for a model that is never right; 0 if neither is.

    >>> entropy_reduction(0.8, 0.1)
    3.0
    """
    for name, value in (("accuracy", accuracy), ("constant_accuracy", constant_accuracy)):
        if not 0 <= value <= 1:
            raise ValueError(f"{name} must be between 0 and 1; got {value}.")
    if accuracy == constant_accuracy:
        return 0.0
    if accuracy == 0 or constant_accuracy == 0:
        return math.inf if accuracy else -math.inf
    return math.log2(accuracy / constant_accuracy)
