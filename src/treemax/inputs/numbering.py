"""Consecutive numbers for sparse feature ids, so that memory grows with the features that occur."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from treemax.inputs.rows import Rows, SparseRows

MANY_FEATURES = 2**24  # up to this many, ids are used directly


@dataclass(frozen=True, eq=False)
class FeatureNumbers:
    """Mapping from feature ids to numbers: ids below `direct` are their own number, `ids` are numbered from there."""

    direct: int
    ids: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))

    @property
    def n_features(self) -> int:
        return self.direct + len(self.ids)

    @cached_property
    def _order(self) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """The sorted ids and their numbers."""
        order = np.argsort(self.ids)
        return self.ids[order], order + self.direct

    def _found(self, ids: NDArray[np.uint32]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the numbers of features, and which features have one."""
        known, numbers = self._order
        if len(known) == 0:
            return ids.astype(np.int64), ids < self.direct
        place = np.minimum(np.searchsorted(known, ids), len(known) - 1)
        direct = ids < self.direct
        return np.where(direct, ids, numbers[place]), direct | (known[place] == ids)

    def id_of(self, number: int) -> int:
        """Return the id of a feature."""
        return number if number < self.direct else int(self.ids[number - self.direct])

    def with_features_of(self, rows: SparseRows) -> FeatureNumbers:
        """Return a copy extended by the features of these rows."""
        ids = np.unique(rows.indices[rows.indptr[0] : rows.indptr[-1]])
        new = ids[~self._found(ids)[1]]
        return replace(self, ids=np.concatenate([self.ids, new])) if len(new) else self

    def rows(self, rows: SparseRows) -> SparseRows:
        """Replace ids by numbers; features without a number are dropped."""
        first, last = rows.indptr[0], rows.indptr[-1]
        numbers, known = self._found(rows.indices[first:last])
        starts = np.concatenate([[0], np.cumsum(known)])[rows.indptr - first]
        matrix = sp.csr_matrix(
            (rows.values[first:last][known], numbers[known], starts), shape=(len(rows), self.n_features)
        )
        matrix.sort_indices()
        return SparseRows(
            matrix.indptr.astype(np.int64), matrix.indices.astype(np.uint32), matrix.data, self.n_features, self
        )

    @classmethod
    def checked(cls, direct: Any, ids: NDArray[Any], n_features: int) -> FeatureNumbers:
        """Validate and restore the numbers of a model file with `n_features` features."""
        valid = type(direct) is int and direct >= 0 and ids.dtype == np.uint32 and ids.ndim == 1
        valid = valid and direct + len(ids) == n_features
        if not valid or len(np.unique(ids)) != len(ids) or (ids < direct).any():
            raise ValueError("the feature numbers are invalid")
        return cls(direct, np.array(ids))


def numbered(rows: Rows, known: FeatureNumbers | None = None, n_features: int = 0) -> Rows:
    """Renumber the features of training rows if their ids are sparse.

    `known` are the numbers that the model already has, `n_features` the number of features it was built for.
    """
    if not isinstance(rows, SparseRows):
        return rows
    if known is None:
        if rows.n_features <= max(MANY_FEATURES, n_features, rows.nnz):
            return rows
        known = FeatureNumbers(n_features)
    return known.with_features_of(rows).rows(rows)
