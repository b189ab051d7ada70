"""From a model's scores to honest probabilities, and to the labels that a multi-label model answers.

Both are learned from rows that the model had not seen when it scored them. The map from score to probability is
increasing, so the ranking of the labels stays as it is.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.labels import Targets
from treemax.kernels import calibration as kernels

PRIOR = 0.5  # weight of "the scores are right already", in nats: it matters while rows are few
PRIOR_ROWS = 30  # the same for the threshold, in rows
LEAST_SLOPE, MOST_SLOPE, MOST_SHIFT = 0.05, 1e3, 700.0  # a larger shift has no exponential
F1_OF_AN_ANSWER = 0.03  # the F1 that may be lost so that every row gets a label
MOST_SCORE = 1.0 - 1e-6  # no score is surer than that
CUT_ROWS = 0.1  # the share of the rows whose labels above the threshold may be more than were ranked
FIRST_LABELS = 5  # of a row, on which probabilities are fitted
LEADING = FIRST_LABELS + 1  # labels of a row whose scores `multiclass_probabilities` needs
SHARPNESS = np.geomspace(0.25, 4.0, 33)  # among which that of the labels after the first is looked for
LEAST_LABELS, MOST_LABELS = 20, 200  # of a row, among which a threshold is looked for
HALF = 0.5


class Calibration(NamedTuple):
    """Probability = sigmoid(slope * logit(score) + shift), and the threshold of multi-label `predict`.

    With several labels a row, that is the probability of every label. With one, it is that of the best label; see
    `multiclass_probabilities` for the others.
    """

    slope: float = 1.0
    shift: float = 0.0
    threshold: float = HALF
    one_at_least: bool = True  # a row where no label reaches the threshold gets its best label
    next_share: float = (
        0.0  # how often one of the labels ranked 2 to 5 is right where the first is not; 0: not known
    )
    sharpness: float = 1.0  # exponent of the scores by which these labels divide that among them

    @property
    def changes_scores(self) -> bool:
        return self.slope != 1.0 or self.shift != 0.0 or self.next_share > 0.0

    def probabilities(self, scores: NDArray[np.float32]) -> NDArray[np.float32]:
        """The probabilities that scores between 0 and 1 stand for."""
        if not self.changes_scores:
            return scores
        with np.errstate(divide="ignore", over="ignore"):
            odds_against = 1.0 / np.minimum(scores.astype(np.float64), MOST_SCORE) - 1.0
            return (1.0 / (1.0 + np.exp(-self.shift) * odds_against**self.slope)).astype(np.float32)

    def multiclass_probabilities(
        self, scores: NDArray[np.float32], leading: NDArray[np.float32], is_first: NDArray[np.bool_]
    ) -> NDArray[np.float32]:
        """The probabilities of labels of which a row has one.

        `leading` are the scores of the best labels of every row, best first, `LEADING` of them or all, and `is_first`
        says which score is that of the best. The ranking stays, and no sum is above one: what is missing is for labels
        that the training never saw.
        """
        if not self.changes_scores:
            return scores
        best = self.probabilities(leading[:, 0])
        if self.next_share == 0:
            given = np.clip(leading[:, 0], 1e-6, 1.0 - 1e-6)
            factor = np.minimum(np.where(best < given, best / given, (1.0 - best) / (1.0 - given)), 1.0)
            return np.where(is_first, best[:, None], scores * factor[:, None]).astype(np.float32)
        answer = np.empty(scores.shape, dtype=np.float32)
        dense = np.ascontiguousarray
        kernels.multiclass_probabilities(
            dense(scores), dense(is_first), dense(leading), best, FIRST_LABELS, self.next_share, self.sharpness, answer,
        )  # fmt: skip
        return answer

    def lowest_behind(self, leading: NDArray[np.float32], probability: float) -> float:
        """A score that every label behind the leading ones has that has this probability; 2 where none can have it."""
        if self.next_share == 0:
            return probability  # but for the first, no label gains
        leading = np.ascontiguousarray(leading)
        best = self.probabilities(leading[:, 0])
        gains, highest = kernels.highest_behind(leading, best, FIRST_LABELS, self.next_share, self.sharpness)
        gains = gains[highest >= probability * (1 - 1e-5)]
        return probability / max(1.0, float(gains.max())) * (1 - 1e-5) if len(gains) else 2.0

    def lowest_score(self, probability: float) -> float:
        """A score below all that this probability, rounded to single precision, may come from."""
        below = float(np.nextafter(np.float32(probability), np.float32(0.0)))
        return self.score(min(below, MOST_SCORE)) * (1 - 1e-5) if self.changes_scores else probability

    def score(self, probability: float) -> float:
        """The score that a probability comes from."""
        if not self.changes_scores or not 0.0 < probability < 1.0:
            return probability
        logit = (np.log(probability / (1.0 - probability)) - self.shift) / self.slope
        return float(1.0 / (1.0 + np.exp(-logit)))

    @classmethod
    def checked(cls, numbers: Any) -> Calibration:
        """A calibration of a file, once it is sound."""
        kinds = [type(number) for number in numbers] if isinstance(numbers, list) else []
        if (
            kinds[3:4] != [bool]
            or len(kinds) != 6
            or any(kind not in (int, float) for kind in kinds[:3] + kinds[4:])
        ):
            raise ValueError(f"the calibration {numbers!r} is not five numbers and a truth value")
        found = cls._make([*map(float, numbers[:3]), numbers[3], *map(float, numbers[4:])])
        sound = LEAST_SLOPE <= found.slope <= MOST_SLOPE and abs(found.shift) <= MOST_SHIFT
        sound = sound and 0 <= found.threshold <= 1
        if not (sound and 0 <= found.next_share <= 1 and SHARPNESS[0] <= found.sharpness <= SHARPNESS[-1]):
            raise ValueError(f"the calibration {numbers} is not sound")
        return found


def largest(scores: NDArray[np.float32], k: int) -> NDArray[np.float32]:
    """The k largest scores of every row, in falling order."""
    k = min(k, scores.shape[1])
    return -np.sort(-np.partition(scores, -k, axis=1)[:, -k:], axis=1)


def fit_calibration(ranked: NDArray[np.float32], hits: NDArray[np.bool_]) -> Calibration:
    """The map that fits rows held out: the scores of their best labels, best first, and which of them are right.

    Logistic regression on the logit of the score (Platt, 1999). First answers weigh as much as all others together.
    """
    if len(ranked) == 0:
        return Calibration()
    scores = np.clip(ranked.astype(np.float64), 1e-6, MOST_SCORE)
    logit, right = np.log(scores / (1.0 - scores)), hits.astype(np.float64)
    weight = np.full(ranked.shape, HALF / max(1, ranked.shape[1] - 1))
    weight[:, 0] = HALF if ranked.shape[1] > 1 else 1.0
    weight[ranked <= 0] = 0.0
    slope, shift, _ = logistic_curve(
        logit.ravel(), (weight * right).ravel(), (weight * (1.0 - right)).ravel(), PRIOR
    )
    return Calibration(max(slope, LEAST_SLOPE), shift)


def fit_next(ranked: NDArray[np.float32], hits: NDArray[np.bool_]) -> tuple[float, float]:
    """`next_share` and `sharpness`, from the scores of the best labels of rows held out, best first, and which is right."""
    scores, right = ranked[:, 1:].astype(np.float64), hits[:, 1:]
    among_next = (
        right.any(axis=1) & (scores[:, 0] > 0) if scores.shape[1] else np.zeros(len(ranked), dtype=bool)
    )
    n_wrong = len(ranked) - int(hits[:, 0].sum())
    if scores.shape[1] == 0 or n_wrong == 0:
        return 0.0, 1.0
    scores, right = scores[among_next] / scores[among_next, :1], right[among_next]
    misfit = [
        PRIOR * np.log(power) ** 2 + np.log((scores**power).sum(axis=1)).sum() - power * np.log(np.maximum(scores[right], 1e-30)).sum()
        for power in SHARPNESS
    ]  # fmt: skip
    return float((len(scores) + PRIOR) / (n_wrong + 2 * PRIOR)), float(SHARPNESS[np.argmin(misfit)])


def logistic_curve(
    x: NDArray[np.float64], right: NDArray[np.float64], wrong: NDArray[np.float64], prior: float
) -> tuple[float, float, float]:
    """Slope and shift of the logistic curve that fits weights of right and wrong answers at x, and its loss.

    By damped Newton steps. `prior` is the weight of a slope of 1 and a shift of 0.
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
    ranked: NDArray[np.float32], hits: NDArray[np.bool_], n_labels: NDArray[np.int64], n_known: int
) -> tuple[float, bool]:
    """The threshold of the largest micro-averaged F1 on rows held out, and whether every row gets one label at least.

    `ranked` are the probabilities of their best labels of `n_known`, best first, `hits` says which are right, and `n_labels`
    how many labels each row has. Where rows are few, the threshold leans towards half of the F1, which is the best of
    exact probabilities (Lipton et al., 2014). It is never so low that most of the labels above it were not ranked.
    """
    if len(ranked) == 0 or n_labels.sum() == 0:
        return HALF, bool(n_labels.all())
    lowest = 0.0 if ranked.shape[1] >= n_known else float(np.quantile(ranked[:, -1], 1 - CUT_ROWS))
    choices = {one_at_least: _best_f1(ranked, hits, n_labels, one_at_least) for one_at_least in (True, False)}
    one_at_least = choices[True][0] >= choices[False][0] - F1_OF_AN_ANSWER
    f1, threshold = choices[one_at_least]
    share = PRIOR_ROWS / (PRIOR_ROWS + len(n_labels))
    return max((1 - share) * threshold + share * f1 / 2, lowest), one_at_least


def _best_f1(
    ranked: NDArray[np.float32], hits: NDArray[np.bool_], n_labels: NDArray[np.int64], one_at_least: bool
) -> tuple[float, float]:
    """The largest F1, and its threshold; the best label of a row counts whatever the threshold if one is always given."""
    first_free = int(one_at_least)
    n_fixed, right_fixed = first_free * len(ranked), int(hits[:, :first_free].sum())
    free, right_free = ranked[:, first_free:].ravel(), hits[:, first_free:].ravel()
    order = np.argsort(-free, kind="stable")
    n_right = right_fixed + np.concatenate([[0], np.cumsum(right_free[order])])
    f1 = 2 * n_right / (n_fixed + np.arange(len(order) + 1) + n_labels.sum())
    best = int(f1.argmax())
    falling = np.concatenate([[1.0], free[order].astype(np.float64), [0.0]])
    return float(f1[best]), float((falling[best] + falling[best + 1]) / 2)


def calibration_from_top_k(
    ids: NDArray[np.int64], scores: NDArray[np.float32], targets: Targets, n_labels: int, multi_label: bool
) -> Calibration:
    """The calibration from held-out rows: ids and scores of their best labels (see `labels_to_rank`), and their labels."""
    rows = np.arange(len(ids))
    truth = (
        np.repeat(rows, np.diff(targets.indptr)) * n_labels
        + targets.ids[targets.indptr[0] : targets.indptr[-1]]
    )
    hits = np.isin(rows[:, None] * n_labels + ids, truth) & (ids >= 0)
    return calibration_from_hits(scores, hits, np.diff(targets.indptr), n_labels, multi_label)


def calibration_from_hits(
    scores: NDArray[np.float32], hits: NDArray[np.bool_], n_labels: NDArray[np.int64], n_known: int, multi_label: bool
) -> Calibration:  # fmt: skip
    """The same, from scores, which of the labels are right, and how many labels each row has; `n_known` are known."""
    if n_known < 2:  # there is nothing to be unsure of
        return Calibration()
    scores_first, hits_first = scores[:, :FIRST_LABELS], hits[:, :FIRST_LABELS]
    if not multi_label:
        next_share, sharpness = fit_next(scores_first, hits_first)
        found = fit_calibration(scores[:, :1], hits[:, :1])
        return found._replace(next_share=next_share, sharpness=sharpness)
    found = fit_calibration(scores_first, hits_first)
    threshold, one_at_least = best_threshold(found.probabilities(scores), hits, n_labels, n_known)
    return found._replace(threshold=threshold, one_at_least=one_at_least)


def labels_to_rank(targets: Targets, n_labels: int, multi_label: bool) -> int:
    """How many labels of a row have to be found for `calibration_from_top_k`: with several a row, four times as many as rows have."""
    if not multi_label:
        return min(n_labels, FIRST_LABELS)
    mean = len(targets.ids) / max(1, len(targets))
    return int(min(n_labels, max(LEAST_LABELS, np.ceil(4 * mean)), MOST_LABELS))
