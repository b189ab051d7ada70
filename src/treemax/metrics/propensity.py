"""Propensity-scored metrics, which give more weight to rare labels, because annotators miss those more often.

Jain, Prabhu and Varma, "Extreme multi-label loss functions for recommendation, tagging, ranking and other
missing label applications", KDD 2016.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.labels import Targets
from treemax.metrics.ranking import discounts, ideal_gain, true_counts, true_ids

DEFAULT_A = 0.55
DEFAULT_B = 1.5


def propensities(label_counts: Any, n_examples: int, a: float = DEFAULT_A, b: float = DEFAULT_B) -> NDArray[np.float64]:
    """Return the probability that a true label was annotated: 1 / (1 + C (count + b)^-a), C = (ln n - 1)(b + 1)^a.

    `label_counts` are the numbers of the `n_examples` training examples with each label. Usual values of a and b are
    0.5 and 0.4 for Wikipedia, 0.6 and 2.6 for Amazon, and the defaults otherwise.

    >>> propensities([0, 1, 1000], n_examples=1000).round(2)
    array([0.11, 0.14, 0.82])
    """
    counts = np.asarray(label_counts, dtype=np.float64)
    _check_training(counts, n_examples, a, b)
    # With one or two examples C would be negative and propensities above one; use 1.
    scale = max(np.log(n_examples) - 1.0, 0.0) * (b + 1.0) ** a
    return 1.0 / (1.0 + scale * (counts + b) ** -a)


def _check_training(counts: NDArray[np.float64], n_examples: int, a: float, b: float) -> None:
    if n_examples < 1:
        raise ValueError(f"n_examples must be the number of training examples, 1 or more; got {n_examples}.")
    if not (a > 0 and b > 0):
        raise ValueError(f"the propensity parameters a and b must be positive; got a={a}, b={b}.")
    if counts.ndim != 1:
        raise ValueError(f"label_counts must be a vector with one count per label; got shape {counts.shape}.")
    valid = (counts >= 0) & (counts <= n_examples)
    if not valid.all():
        at = int(np.argmin(valid))
        raise ValueError(
            f"label_counts has {counts[at]:g} at position {at}; a count is the number of the {n_examples} "
            "training examples that have the label."
        )


class PropensityWeights:
    """Inverse propensities by label id; a label without training examples has the weight of a count of 0."""

    def __init__(self, label_counts: Any, n_examples: int, a: float = DEFAULT_A, b: float = DEFAULT_B) -> None:
        counts = np.asarray(label_counts, dtype=np.float64)
        _check_training(counts, n_examples, a, b)
        # The last entry, a count of 0, is for all unknown ids.
        self._counts = np.append(counts, 0.0)
        self._weights = 1.0 / propensities(self._counts, n_examples, a, b)
        # Ids from the largest weight to the smallest, and the rank of each id.
        self._rarest = np.argsort(self._counts, kind="stable")
        self._rank = np.empty_like(self._rarest)
        self._rank[self._rarest] = np.arange(len(self._rarest))

    def __getitem__(self, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        return self._weights[self._known(ids)]

    def seen(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether each label has training examples."""
        return self._counts[self._known(ids)] > 0

    def sorted_weights(self, row: NDArray[np.int64], ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the weights of `ids`, largest first within each row (`row` is sorted)."""
        # Row and rank in one integer: sorting these is much faster than sorting by two keys.
        keys = row * len(self._rank) + self._rank[self._known(ids)]
        keys.sort()
        return self._weights[self._rarest[keys - row * len(self._rank)]]

    def _known(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.minimum(ids, len(self._weights) - 1)


def hit_weights(
    found: NDArray[np.bool_], top_ids: NDArray[np.int64], weights: PropensityWeights
) -> NDArray[np.float64]:
    """Return the weight of each hit, 0 for a miss."""
    return np.where(found, weights[top_ids], 0.0)


def attainable(targets: Targets, k: int, weights: PropensityWeights) -> NDArray[np.float64]:
    """Return the gains of the ideal ranking: the k largest weights of each row's true labels, padded with zeros."""
    counts = true_counts(targets)
    row = np.repeat(np.arange(len(targets)), counts)
    worth = weights.sorted_weights(row, true_ids(targets))
    place = np.arange(len(worth)) - np.repeat(np.cumsum(counts) - counts, counts)
    kept = place < k
    best = np.zeros((len(targets), k))
    best[row[kept], place[kept]] = worth[kept]
    return best


def row_weighted_precision(gains: NDArray[np.float64], k: int) -> NDArray[np.float64]:
    """Return the sum of the first k gains over k."""
    return gains[:, :k].sum(axis=1) / k


def row_weighted_ndcg(gains: NDArray[np.float64], counts: NDArray[np.int64], k: int) -> NDArray[np.float64]:
    """Return the discounted sum of the first k gains over the ideal gain of nDCG."""
    top = gains[:, :k]
    return (top * discounts(top.shape[1])).sum(axis=1) / ideal_gain(counts, k)
