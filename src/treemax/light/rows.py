"""Rows of features, one at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Row(NamedTuple):
    """The features of a row that are not zero, sorted."""

    indices: NDArray[np.int64]
    values: NDArray[np.float32]


def rows_of(X: Any) -> list[Row]:
    """Convert a dense matrix, a SciPy CSR matrix, or dictionaries from column to value.

    >>> rows_of([{3: 1.0, 1: 0.5}])[0].indices.tolist()
    [1, 3]
    """
    if hasattr(X, "tocsr"):
        X = X.tocsr()
        bounds = zip(X.indptr[:-1], X.indptr[1:])
        return [_row(X.indices[first:last], X.data[first:last]) for first, last in bounds]
    if is_sparse(X):
        return [_row(list(row.keys()), list(row.values())) for row in X]
    try:
        dense = np.asarray(X, dtype=np.float32)
    except (TypeError, ValueError):
        raise ValueError("X must be a matrix of numbers, a SciPy CSR matrix, or a list of {column: value}.") from None
    if dense.ndim != 2:
        raise ValueError(f"X must have two dimensions, got {dense.ndim}. Put a single row into a list.")
    if not np.isfinite(dense).all():
        raise ValueError("X contains NaN or infinity.")
    return [Row(np.flatnonzero(row), row[row != 0]) for row in dense]


def is_sparse(X: Any) -> bool:
    """Return whether rows are those of a SciPy matrix, or dictionaries."""
    return hasattr(X, "tocsr") or (
        isinstance(X, list | tuple) and len(X) > 0 and all(isinstance(r, Mapping) for r in X)
    )


def _row(columns: Any, values: Any) -> Row:
    indices, numbers = np.asarray(columns, dtype=np.int64), np.asarray(values, dtype=np.float32)
    if (indices < 0).any() or not np.isfinite(numbers).all():
        raise ValueError("Columns must not be negative, and values must be finite numbers.")
    order = np.argsort(indices, kind="stable")
    distinct, first = np.unique(indices[order], return_index=True)
    sums = np.add.reduceat(numbers[order], first) if len(first) else numbers
    return Row(distinct[sums != 0], sums[sums != 0])


def take(row: Row, kept: NDArray[np.bool_]) -> Row:
    """Return some features of a row."""
    return Row(row.indices[kept], row.values[kept])


def renumbered(row: Row, known: NDArray[Any]) -> Row:
    """Return the features that are in `known`, which is sorted, numbered by their place there."""
    place = np.searchsorted(known, row.indices)
    found = place < len(known)
    found[found] = known[place[found]] == row.indices[found]
    return Row(place[found], row.values[found])
