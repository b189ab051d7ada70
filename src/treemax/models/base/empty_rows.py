"""Rows without any known feature, such as texts of new words."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.labels import Targets, take_targets
from treemax.inputs.rows import Rows, SparseRows
from treemax.models.trained.searching import SparseProbabilities
from treemax.numpy_only.frequencies import empty_row_frequencies


class EmptyRows(NamedTuple):
    """The labels of the training rows without any feature, such as texts of rare words only.

    They say more about a new row without known features than all rows do.
    """

    label_counts: NDArray[np.float64]  # rows of each label, or the sum of their weights
    total: float  # rows, or the sum of their weights

    def plus(self, other: EmptyRows) -> EmptyRows:
        """Return the sum of both; one may have more labels."""
        counts = np.zeros(max(len(self.label_counts), len(other.label_counts)))
        counts[: len(self.label_counts)] += self.label_counts
        counts[: len(other.label_counts)] += other.label_counts
        return EmptyRows(counts, self.total + other.total)

    def frequencies(self, of_all: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the frequencies of the labels in empty rows, with those in all rows as prior."""
        return empty_row_frequencies(self.array(len(of_all))[:-1], self.total, of_all)

    def array(self, n_labels: int) -> NDArray[np.float64]:
        """Return the counts of the first labels, and at the end the total: the array of the model file."""
        counts = np.zeros(n_labels + 1)
        known = self.label_counts[:n_labels]
        counts[: len(known)], counts[-1] = known, self.total
        return counts

    @classmethod
    def checked(cls, totals: NDArray[np.float64]) -> EmptyRows:
        """Restore it from `array`; raise ValueError if the numbers are inconsistent."""
        if totals[:-1].max(initial=0.0) > totals[-1]:
            raise ValueError("a label has more rows without features than there are")
        return cls(np.array(totals[:-1]), float(totals[-1]))


def empty_rows(indptr: NDArray[np.int64], targets: Targets, n_labels: int) -> EmptyRows | None:
    """Return the labels of the sparse rows without any feature; None if there are no such rows."""
    empty = np.flatnonzero(indptr[1:] == indptr[:-1])
    if not len(empty):
        return None
    chosen = take_targets(targets, empty)
    return EmptyRows(chosen.label_totals(n_labels).astype(np.float64), float(chosen.total))


def without_known_features(rows: Rows, n_features: int) -> NDArray[np.int64] | None:
    """Return the rows without any feature seen in training; None if there are none."""
    if not isinstance(rows, SparseRows):
        empty = np.flatnonzero(~rows.any(axis=1))
        return empty if len(empty) else None
    first, last = rows.indptr[0], rows.indptr[-1]
    indices, values = rows.indices[first:last], rows.values[first:last]
    counts = rows.indptr[1:] - rows.indptr[:-1]
    if len(indices) and (indices.max() >= n_features or not values.all()):
        known = np.concatenate([[0], np.cumsum((indices < n_features) & (values != 0))])
        counts = known[rows.indptr[1:] - first] - known[rows.indptr[:-1] - first]
    if counts.all():
        return None
    return np.flatnonzero(counts == 0)


def replace_rows(
    found: SparseProbabilities, rows: NDArray[np.int64], ids: NDArray[np.int64], probabilities: NDArray[np.float32]
) -> SparseProbabilities:
    """Replace the labels of some rows by the same labels `ids`."""
    row_of, found_ids, found_probabilities = found
    kept = ~np.isin(row_of, rows)
    row_of = np.concatenate([row_of[kept], np.repeat(rows, len(ids))])
    all_ids = np.concatenate([found_ids[kept], np.tile(ids, len(rows))])
    chosen = np.concatenate([found_probabilities[kept], np.tile(probabilities, len(rows))])
    order = np.lexsort((all_ids, row_of))
    return SparseProbabilities(row_of[order], all_ids[order], chosen[order])
