"""Validate SciPy sparse matrices of any format and convert them to CSR arrays.

SciPy does not validate the indices of a matrix that the caller assembled, and its conversion would write out of
bounds. So every format is validated before SciPy converts it. The caller's matrix is not changed, flags included.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray


class CsrParts(NamedTuple):
    """Row i has the columns `indices[indptr[i]:indptr[i+1]]`, ascending, and the same part of `values`."""

    indptr: NDArray[Any]
    indices: NDArray[Any]
    values: NDArray[Any]


def csr_parts(X: Any, name: str) -> CsrParts:
    """Convert the sparse matrix `X` to CSR: indices in range, rows sorted, duplicates summed.

    >>> X = sp.coo_matrix(([1.0, 2.0, 4.0], ([0, 0, 1], [1, 1, 0])), shape=(2, 2))
    >>> [part.tolist() for part in csr_parts(X, "X")]
    [[0, 1, 2], [1, 0], [3.0, 4.0]]
    """
    if X.ndim != 2:
        raise ValueError(f"Expected 2D array, got a {X.ndim}D sparse array as {name} instead.")
    _CHECKS[X.format](X, name)
    try:
        csr = X.tocsr()
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{name} is not a valid {X.format} matrix: {error}.") from None
    used = int(csr.indptr[-1])
    parts = CsrParts(csr.indptr, csr.indices[:used], csr.data[:used])
    return parts if _is_canonical(parts) else _summed(parts, X.shape)


def _is_canonical(parts: CsrParts) -> bool:
    """Return whether rows are sorted and without duplicates; the flags of the matrix may be out of date."""
    falls = parts.indices[1:] <= parts.indices[:-1]
    if not falls.any():
        return True
    after = np.flatnonzero(falls) + 1
    return bool((parts.indptr[np.searchsorted(parts.indptr, after)] == after).all())  # each begins a row


def _summed(parts: CsrParts, shape: tuple[int, int]) -> CsrParts:
    # Copies: SciPy sorts in place, and the arrays may be the caller's.
    indptr, indices, values = (part.copy() for part in parts)
    csr = sp.csr_matrix((values, indices, indptr), shape=shape)
    csr.sum_duplicates()
    return CsrParts(csr.indptr, csr.indices, csr.data)


def _check_compressed(X: Any, name: str) -> None:
    """Check a CSR or CSC matrix."""
    n_rows, n_columns = X.shape
    if X.format == "csr":
        _check_pointers(X, name, n_rows, n_columns, "row", "column")
    else:
        _check_pointers(X, name, n_columns, n_rows, "column", "row")
    if X.data.ndim != 1:
        raise ValueError(f"{name} is not a valid {X.format} matrix: its data is not a vector.")


def _check_blocks(X: Any, name: str) -> None:
    if X.data.ndim != 3 or 0 in X.data.shape[1:]:
        raise ValueError(f"{name} is not a valid bsr matrix: its data has the shape {X.data.shape}.")
    height, width = X.data.shape[1:]
    if X.shape[0] % height or X.shape[1] % width:
        raise ValueError(
            f"{name} is not a valid bsr matrix: blocks of {height} x {width} do not fill the shape {X.shape}."
        )
    _check_pointers(X, name, X.shape[0] // height, X.shape[1] // width, "block row", "block column")


def _check_pointers(X: Any, name: str, n_lines: int, n_places: int, line: str, place: str) -> None:
    """`indptr` cuts `indices` into `n_lines` lines; each index is one of `n_places` places."""
    indptr, indices = X.indptr, X.indices
    _check_integers(X, name, indptr=indptr, indices=indices)
    if len(indptr) != n_lines + 1:
        raise ValueError(
            f"{name} is not a valid {X.format} matrix: indptr has {len(indptr)} entries for {n_lines} {line}s."
        )
    falls = indptr[1:] < indptr[:-1]
    if indptr[0] != 0 or falls.any() or indptr[-1] > min(len(indices), len(X.data)):
        at = 0 if indptr[0] != 0 else int(np.argmax(falls)) if falls.any() else n_lines - 1
        raise ValueError(
            f"{name} is not a valid {X.format} matrix: indptr is inconsistent at {line} {at} "
            f"({indptr[at]} to {indptr[at + 1]}, with {len(indices)} indices and {len(X.data)} values)."
        )
    outside = _first_outside(indices[: indptr[-1]], n_places)
    if outside is not None:
        where = int(np.searchsorted(indptr, outside, side="right")) - 1
        raise ValueError(
            f"{name} has {place} index {indices[outside]} in {line} {where}, outside its {n_places} {place}s "
            f"(0 to {n_places - 1})."
        )


def _check_coordinates(X: Any, name: str) -> None:
    _check_integers(X, name, row=X.row, col=X.col)
    if not len(X.row) == len(X.col) == len(X.data):
        raise ValueError(
            f"{name} is not a valid coo matrix: {len(X.row)} row indices, {len(X.col)} column indices and "
            f"{len(X.data)} values."
        )
    for place, indices, size in (("row", X.row, X.shape[0]), ("column", X.col, X.shape[1])):
        at = _first_outside(indices, size)
        if at is not None:
            raise ValueError(
                f"{name} has {place} index {indices[at]} at entry {at}, outside its {size} {place}s (0 to {size - 1})."
            )


def _check_diagonals(X: Any, name: str) -> None:
    _check_integers(X, name, offsets=X.offsets)
    if X.data.ndim != 2 or len(X.data) != len(X.offsets):
        raise ValueError(
            f"{name} is not a valid dia matrix: {len(X.offsets)} offsets for data of shape {X.data.shape}."
        )
    far = np.abs(X.offsets.astype(np.float64)) > np.iinfo(np.int32).max
    if far.any():
        raise ValueError(f"{name} is not a valid dia matrix: an offset of {X.offsets[np.argmax(far)]}.")


def _check_lists(X: Any, name: str) -> None:
    if not len(X.rows) == len(X.data) == X.shape[0]:
        raise ValueError(
            f"{name} is not a valid lil matrix: {len(X.rows)} lists of columns and {len(X.data)} of values for "
            f"{X.shape[0]} rows."
        )
    for row, (columns, values) in enumerate(zip(X.rows, X.data)):
        if not isinstance(columns, list) or not isinstance(values, list) or len(columns) != len(values):
            raise ValueError(
                f"{name} is not a valid lil matrix: row {row} has the columns {columns!r:.40} and the values {values!r:.40}."
            )
        for column in columns:
            if not isinstance(column, int | np.integer) or not 0 <= column < X.shape[1]:
                raise ValueError(
                    f"{name} has column index {column!r} in row {row}, outside its {X.shape[1]} columns "
                    f"(0 to {X.shape[1] - 1})."
                )


def _check_keys(X: Any, name: str) -> None:
    """Do nothing: SciPy checks the keys of a DOK matrix when it converts to COO."""


_CHECKS: dict[str, Callable[[Any, str], None]] = {
    "csr": _check_compressed,
    "csc": _check_compressed,
    "bsr": _check_blocks,
    "coo": _check_coordinates,
    "dia": _check_diagonals,
    "lil": _check_lists,
    "dok": _check_keys,
}


def _check_integers(X: Any, name: str, **vectors: NDArray[Any]) -> None:
    for part, vector in vectors.items():
        if vector.ndim != 1 or vector.dtype.kind not in "iu":
            raise ValueError(
                f"{name} is not a valid {X.format} matrix: {part} is not a vector of integers "
                f"(shape {vector.shape}, dtype {vector.dtype})."
            )


def _first_outside(indices: NDArray[Any], size: int) -> int | None:
    """Return the position of the first index outside 0 to `size` - 1, or None."""
    if not len(indices) or (indices.min() >= 0 and indices.max() < size):
        return None
    return int(np.argmax((indices < 0) | (indices >= size)))
