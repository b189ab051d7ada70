"""Calibration of scores to probabilities, and the threshold of multi-label predictions.

Both are fitted on held-out rows. The map from score to probability is increasing, so that the ranking of the labels
does not change.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.labels import Targets
from treemax.kernels import calibration as kernels
from treemax.numpy_only.calibration import (
    FIRST_LABELS,
    HALF,
    MAX_SCORE,
    MAX_SHARPNESS,
    MIN_SHARPNESS,
    MIN_SLOPE,
    StoredCalibration,
)

PRIOR = 0.5  # strength of the prior on the identity map, in nats
PRIOR_ROWS = 30  # strength of the prior on the threshold, in rows
MAX_F1_LOSS = 0.03  # maximum loss of F1 to give every row a label
MAX_TRUNCATED = 0.1  # share of rows that may have more labels above the threshold than were ranked
SHARPNESS = np.geomspace(MIN_SHARPNESS, MAX_SHARPNESS, 33)  # grid of `sharpness`
MIN_RANKED, MAX_RANKED = 20, 200  # labels of a row on which a threshold is chosen


class Calibration(StoredCalibration):
    """The calibration of many rows at once; see `multiclass_probabilities` for all but the best label of a row."""

    __slots__ = ()

    def multiclass_probabilities(
        self, scores: NDArray[np.float32], leading: NDArray[np.float32], is_first: NDArray[np.bool_]
    ) -> NDArray[np.float32]:
        """Convert the scores of a multi-class model to probabilities.

        `leading` are the scores of the `LEADING` best labels of every row, or of all, best first; `is_first` marks the
        score of the best label. The ranking does not change, and sums are at most one: the remainder is the probability
        of labels unseen in training.
        """
        if not self.changes_scores:
            return scores
        if self.next_share == 0:
            return self.in_proportion(scores, leading, is_first)
        best = self.probabilities(leading[:, 0])
        out = np.empty(scores.shape, dtype=np.float32)
        dense = np.ascontiguousarray
        kernels.multiclass_probabilities(
            dense(scores), dense(is_first), dense(leading), best, FIRST_LABELS, self.next_share, self.sharpness, out
        )
        return out

    def lowest_score_after_leading(self, leading: NDArray[np.float32], probability: float) -> float:
        """Return a lower bound of the scores of labels after the leading ones with this probability; 2 if none has it."""
        if self.next_share == 0:
            return probability  # only the probability of the first label can exceed its score
        leading = np.ascontiguousarray(leading)
        best = self.probabilities(leading[:, 0])
        gains, highest = kernels.factors_after_next(leading, best, FIRST_LABELS, self.next_share, self.sharpness)
        gains = gains[highest >= probability * (1 - 1e-5)]
        return probability / max(1.0, float(gains.max())) * (1 - 1e-5) if len(gains) else 2.0


def largest(scores: NDArray[np.float32], k: int) -> NDArray[np.float32]:
    """Return the k largest scores of every row, in descending order."""
    k = min(k, scores.shape[1])
    return -np.sort(-np.partition(scores, -k, axis=1)[:, -k:], axis=1)


Weights: TypeAlias = NDArray[np.float64] | None  # of the ranked labels of held-out rows; None: all one


def fit_calibration(ranked: NDArray[np.float32], hits: NDArray[np.bool_], weights: Weights = None) -> Calibration:
    """Fit slope and shift by logistic regression on the logit of the score (Platt, 1999).

    `ranked` are the scores of the best labels of held-out rows, best first, and `hits` is true for those that are
    right. The first labels have the same total weight as all others. As in the paper, the targets are a little above 0
    and below 1, so that few held-out rows give no extreme probabilities.
    """
    if len(ranked) == 0:
        return Calibration()
    scores = np.clip(ranked.astype(np.float64), 1e-6, MAX_SCORE)
    logit = np.log(scores / (1.0 - scores))
    n_right, n_wrong = _amount(hits, weights), _amount(~hits, weights)
    right = np.where(hits, (n_right + 1.0) / (n_right + 2.0), 1.0 / (n_wrong + 2.0))
    weight = np.full(ranked.shape, HALF / max(1, ranked.shape[1] - 1))
    weight[:, 0] = HALF if ranked.shape[1] > 1 else 1.0
    weight[ranked <= 0] = 0.0
    if weights is not None:
        weight *= weights
    slope, shift, _ = logistic_curve(logit.ravel(), (weight * right).ravel(), (weight * (1.0 - right)).ravel(), PRIOR)
    return Calibration(max(slope, MIN_SLOPE), shift)


def _amount(chosen: NDArray[np.bool_], weights: Weights) -> float:
    """Return the number of chosen entries, or the sum of their weights."""
    return int(np.count_nonzero(chosen)) if weights is None else float(weights[chosen].sum())


def fit_next(ranked: NDArray[np.float32], hits: NDArray[np.bool_], weights: Weights = None) -> tuple[float, float]:
    """Fit `next_share` and `sharpness` to the scores of the best labels of held-out rows, best first, and their hits."""
    scores, right = ranked[:, 1:].astype(np.float64), hits[:, 1:]
    among_next = right.any(axis=1) & (scores[:, 0] > 0) if scores.shape[1] else np.zeros(len(ranked), dtype=bool)
    of_rows = None if weights is None else weights[:, 0]
    n_wrong = _amount(~hits[:, 0], of_rows)
    if scores.shape[1] == 0 or n_wrong == 0:
        return 0.0, 1.0
    scores, right = scores[among_next] / scores[among_next, :1], right[among_next]
    each = np.ones(len(scores)) if of_rows is None else of_rows[among_next]
    of_right = np.repeat(each, right.sum(axis=1))
    losses = [
        PRIOR * np.log(power) ** 2 + (each * np.log((scores**power).sum(axis=1))).sum()
        - power * (of_right * np.log(np.maximum(scores[right], 1e-30))).sum()
        for power in SHARPNESS
    ]  # fmt: skip
    return float((_amount(among_next, of_rows) + PRIOR) / (n_wrong + 2 * PRIOR)), float(SHARPNESS[np.argmin(losses)])


def logistic_curve(
    x: NDArray[np.float64], right: NDArray[np.float64], wrong: NDArray[np.float64], prior: float
) -> tuple[float, float, float]:
    """Fit a logistic curve to weights of right and wrong predictions at x by damped Newton steps.

    Returns slope, shift and loss. `prior` is the strength of the prior on a slope of 1 and a shift of 0.
    """
    start = np.array([1.0, 0.0])
    found = np.array([0.0, np.log((right.sum() + 1e-9) / (wrong.sum() + 1e-9))])
    weight = right + wrong

    def loss(parameters: NDArray[np.float64]) -> float:
        z = parameters[0] * x + parameters[1]
        fit = (weight * np.logaddexp(0.0, z) - right * z).sum()
        return float(fit + prior * ((parameters - start) ** 2).sum())

    value = loss(found)
    for _ in range(50):
        chance = 1.0 / (1.0 + np.exp(-(found[0] * x + found[1])))
        slack, curve = weight * chance - right, weight * chance * (1.0 - chance)
        gradient = np.array([(slack * x).sum(), slack.sum()]) + 2 * prior * (found - start)
        cross = (curve * x).sum()
        hessian = np.array([[(curve * x * x).sum(), cross], [cross, curve.sum()]])
        hessian += (2 * prior + 1e-9) * np.eye(2)
        step, step_size = np.linalg.solve(hessian, gradient), 1.0
        while step_size > 1e-9 and loss(found - step_size * step) > value:
            step_size /= 2
        following = loss(found - step_size * step)
        if not following < value - 1e-9 * abs(value):
            break
        found, value = found - step_size * step, following
    return float(found[0]), float(found[1]), value


def best_threshold(
    ranked: NDArray[np.float32], hits: NDArray[np.bool_], n_labels: NDArray[Any], n_known: int, weights: Weights = None
) -> tuple[float, bool]:
    """Choose the threshold that maximises micro-averaged F1 on held-out rows, and whether every row gets a label.

    `ranked` are the probabilities of the best of `n_known` labels, best first, `hits` is true for those that are right,
    and `n_labels` is the number of labels of each row. With few rows, the threshold is shrunk towards half of the F1, the
    optimum for exact probabilities (Lipton et al., 2014). It has a lower bound, so that most labels above it are among
    those ranked.
    """
    if len(ranked) == 0 or n_labels.sum() == 0:
        return HALF, bool(n_labels.all())
    lowest = 0.0 if ranked.shape[1] >= n_known else float(np.quantile(ranked[:, -1], 1 - MAX_TRUNCATED))
    choices = {one_at_least: _best_f1(ranked, hits, n_labels, one_at_least, weights) for one_at_least in (True, False)}
    one_at_least = choices[True][0] >= choices[False][0] - MAX_F1_LOSS
    f1, threshold = choices[one_at_least]
    share = PRIOR_ROWS / (PRIOR_ROWS + len(n_labels))
    return max((1 - share) * threshold + share * f1 / 2, lowest), one_at_least


def _best_f1(
    ranked: NDArray[np.float32],
    hits: NDArray[np.bool_],
    n_labels: NDArray[Any],
    one_at_least: bool,
    weights: Weights = None,
) -> tuple[float, float]:
    """Return the largest F1 and its threshold; with `one_at_least` the best label of a row is always predicted."""
    first_free = int(one_at_least)
    each = np.ones(ranked.shape) if weights is None else weights
    n_fixed, right_fixed = each[:, :first_free].sum(), (each * hits)[:, :first_free].sum()
    free, right_free = ranked[:, first_free:].ravel(), hits[:, first_free:].ravel()
    order = np.argsort(-free, kind="stable")
    of_free = each[:, first_free:].ravel()[order]
    n_right = right_fixed + np.concatenate([[0], np.cumsum(right_free[order] * of_free)])
    n_predicted = n_fixed + np.concatenate([[0], np.cumsum(of_free)])
    f1 = 2 * n_right / (n_predicted + n_labels.sum())
    best = int(f1.argmax())
    falling = np.concatenate([[1.0], free[order].astype(np.float64), [0.0]])
    return float(f1[best]), float((falling[best] + falling[best + 1]) / 2)


def calibration_from_top_k(
    ids: NDArray[np.int64], scores: NDArray[np.float32], targets: Targets, n_labels: int, multi_label: bool
) -> Calibration:
    """Fit a calibration to held-out rows: ids and scores of their best labels (see `labels_to_rank`), and their targets."""
    ranked, truth, hits = _compared(ids, targets, n_labels)
    of_rows: NDArray[Any] = np.diff(targets.indptr)
    if targets.weights is None and targets.relevance is None:
        return calibration_from_hits(scores, hits, of_rows, n_labels, multi_label)
    weights = np.ones(hits.shape)
    if targets.relevance is not None:
        relevance = targets.relevance[targets.indptr[0] : targets.indptr[-1]].astype(np.float64)
        weights[hits] = relevance[np.searchsorted(truth, ranked[hits])]
        of_rows = np.bincount(truth // n_labels, relevance, minlength=len(ids))
    if targets.weights is not None:
        weights *= targets.weights[:, None]
        of_rows = of_rows * targets.weights.astype(np.float64)
    return calibration_from_hits(scores, hits, of_rows, n_labels, multi_label, weights)


def _compared(
    ids: NDArray[np.int64], targets: Targets, n_labels: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Return the predicted and the true pairs of row and label, as row * labels + label, and which predictions are right."""
    rows, entries = np.arange(len(ids)), slice(targets.indptr[0], targets.indptr[-1])
    truth = np.repeat(rows, np.diff(targets.indptr)) * n_labels + targets.ids[entries]
    ranked = rows[:, None] * n_labels + ids
    return ranked, truth, np.isin(ranked, truth) & (ids >= 0)


def mean_precision(ids: NDArray[np.int64], targets: Targets, n_labels: int) -> float:
    """Return the mean of P@1, P@3 and P@5 of the best labels of held-out rows, best first, by the weights of the rows."""
    hits = _compared(ids, targets, n_labels)[2]
    found = sum(hits[:, :k].sum(axis=1) / k for k in (1, 3, 5)) / 3
    return float(np.average(found, weights=targets.weights))


def calibration_from_hits(
    scores: NDArray[np.float32], hits: NDArray[np.bool_], n_labels: NDArray[Any], n_known: int, multi_label: bool,
    weights: Weights = None,
) -> Calibration:  # fmt: skip
    """Fit a calibration to scores, hits and the number (or weight) of the labels of each row; the model has `n_known`
    labels."""
    if n_known < 2:  # every prediction is certain
        return Calibration()
    scores_first, hits_first = scores[:, :FIRST_LABELS], hits[:, :FIRST_LABELS]
    if not multi_label:
        next_share, sharpness = fit_next(scores_first, hits_first, weights)
        calibration = fit_calibration(scores[:, :1], hits[:, :1], None if weights is None else weights[:, :1])
        return calibration._replace(next_share=next_share, sharpness=sharpness)
    calibration = fit_calibration(scores_first, hits_first, None if weights is None else weights[:, :FIRST_LABELS])
    threshold, one_at_least = best_threshold(calibration.probabilities(scores), hits, n_labels, n_known, weights)
    return calibration._replace(threshold=threshold, one_at_least=one_at_least)


def labels_to_rank(targets: Targets, n_labels: int, multi_label: bool) -> int:
    """Return the k for `calibration_from_top_k`: in multi-label problems about four times the mean labels of a row."""
    if not multi_label:
        return min(n_labels, FIRST_LABELS)
    mean = len(targets.ids) / max(1, len(targets))
    return int(min(n_labels, max(MIN_RANKED, np.ceil(4 * mean)), MAX_RANKED))
