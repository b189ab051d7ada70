"""Counts of true, predicted and correct labels, for F1 and coverage."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.labels import Targets
from treemax.metrics.ranking import true_ids


class LabelTallies:
    """Counts per label id for several k; grows with new ids.

    `_predicted` and `_correct` have a row per range of ranks (up to the first k, from there to the second, ...), so
    that each prediction is counted once; cumulative sums are the counts at each k.
    """

    def __init__(self, ks: Sequence[int]) -> None:
        self._bands = list(zip([0, *ks[:-1]], ks))
        self._band_of = {k: band for band, k in enumerate(ks)}
        self._true: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._predicted: NDArray[np.int64] = np.zeros((len(ks), 0), dtype=np.int64)
        self._correct: NDArray[np.int64] = np.zeros((len(ks), 0), dtype=np.int64)

    def update(self, targets: Targets, top_ids: NDArray[np.int64], found: NDArray[np.bool_]) -> None:
        true = true_ids(targets)
        self._make_room(1 + int(max(true.max(initial=-1), top_ids.max(initial=-1))))
        np.add.at(self._true, true, 1)
        for band, (start, stop) in enumerate(self._bands):
            places, correct = top_ids[:, start:stop], found[:, start:stop]
            np.add.at(self._predicted[band], places[places >= 0], 1)
            np.add.at(self._correct[band], places[correct], 1)

    def arrays(self) -> dict[str, NDArray[np.int64]]:
        """Return all counts, for `restore`."""
        return {"true": self._true, "predicted": self._predicted, "correct": self._correct}

    def restore(self, arrays: dict[str, NDArray[np.int64]]) -> None:
        """Restore the counts of `arrays`."""
        self._true, self._predicted, self._correct = (
            np.array(arrays[name]) for name in ("true", "predicted", "correct")
        )

    def _make_room(self, size: int) -> None:
        if size > len(self._true):
            more = max(size, 2 * len(self._true)) - len(self._true)
            self._true = np.pad(self._true, (0, more))
            self._predicted = np.pad(self._predicted, ((0, 0), (0, more)))
            self._correct = np.pad(self._correct, ((0, 0), (0, more)))

    def _at(self, k: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        bands = slice(self._band_of[k] + 1)
        return self._predicted[bands].sum(axis=0), self._correct[bands].sum(axis=0)

    def micro_f1(self, k: int) -> float:
        """Return 2 correct / (predicted + true) over all labels; 0 if both are 0."""
        predicted, correct = self._at(k)
        involved = int(predicted.sum() + self._true.sum())
        return 2 * int(correct.sum()) / max(involved, 1)

    def macro_f1(self, k: int) -> float:
        """Return the mean F1 of the labels that are true or predicted anywhere."""
        predicted, correct = self._at(k)
        involved = predicted + self._true
        present = involved > 0
        return float(np.mean(2 * correct[present] / involved[present])) if present.any() else 0.0

    def coverage(self, k: int) -> float:
        """Return the fraction of distinct true labels that are found at least once."""
        _, correct = self._at(k)
        return int(np.count_nonzero(correct)) / max(int(np.count_nonzero(self._true)), 1)

    def by_label(self) -> dict[str, NDArray[np.int64]]:
        """Return counts by label id: true, and at the first and the last k predicted and correct."""
        first, last = min(self._band_of), max(self._band_of)
        predicted, correct = self._at(first)
        return {"examples": self._true, "predicted": predicted, "correct": correct, "found": self._at(last)[1]}

    def most_frequent(self) -> int:
        """Return the number of rows of the most frequent true label: the hits of the best constant predictor."""
        return int(self._true.max(initial=0))


def bands_of(least: Sequence[int]) -> list[tuple[str, int, float]]:
    """Return name, least and greatest number of each range.

    >>> bands_of((0, 1, 5))
    [('0', 0, 1), ('1-4', 1, 5), ('5 and more', 5, inf)]
    """
    found: list[tuple[str, int, float]] = []
    for low, high in pairwise([*least, np.inf]):
        name = f"{low} and more" if high == np.inf else str(low) if high == low + 1 else f"{low}-{int(high) - 1}"
        found.append((name, int(low), high))
    return found
