"""Conversion of rows for models: sparse or dense, in blocks, restricted to known features."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from treemax.inputs.rows import Rows, SparseRows, read_only
from treemax.kernels.validation import rows_have_length_one, squared_lengths

SCORES_AT_ONCE = 4_000_000  # 16 MB of scores per thread
ROWS_AT_ONCE = 256
Floats: TypeAlias = NDArray[np.float32]


def blocks(n_rows: int, n_labels: int) -> Iterator[slice]:
    """Yield slices of rows, small enough that their scores fit in the cache or at least in bounded memory."""
    size = rows_of_block(n_labels)
    for start in range(0, n_rows, size):
        yield slice(start, min(start + size, n_rows))


def rows_of_block(n_labels: int) -> int:
    """Return the number of rows whose scores are computed together."""
    return min(ROWS_AT_ONCE, max(1, SCORES_AT_ONCE // max(1, n_labels)))


def densified(rows: SparseRows, n_features: int) -> Floats:
    """Convert sparse rows to a dense matrix; columns from `n_features` on, unseen in training, are dropped."""
    out = np.zeros((len(rows), n_features), dtype=np.float32)
    first, last = rows.indptr[0], rows.indptr[-1]
    columns, values = rows.indices[first:last], rows.values[first:last]
    row = np.repeat(np.arange(len(rows)), np.diff(rows.indptr))
    known = columns < n_features
    out[row[known], columns[known]] = values[known]
    return read_only(out)


def sparsified(rows: Rows) -> SparseRows:
    """Convert rows to `SparseRows`."""
    if isinstance(rows, SparseRows):
        return rows
    csr = sp.csr_matrix(rows)
    return SparseRows(csr.indptr.astype(np.int64), csr.indices.astype(np.uint32), csr.data, rows.shape[1])


def normalized(rows: Rows) -> Rows:
    """Scale rows to length one; if they have it, but for rounding, they are returned as they are."""
    if not isinstance(rows, SparseRows):
        length = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))[:, np.newaxis]
        return read_only((rows / np.where(length > 0, length, 1.0)).astype(np.float32))
    indptr, values = read_only(rows.indptr), read_only(rows.values)
    if rows_have_length_one(indptr, values):
        return rows
    first, last = int(indptr[0]), int(indptr[-1])
    length = np.repeat(np.sqrt(squared_lengths(indptr, values)), np.diff(indptr))
    scaled = (values[first:last] / np.where(length > 0, length, 1.0)).astype(np.float32)
    return SparseRows(read_only(indptr - first), rows.indices[first:last], read_only(scaled), rows.n_features)


def known_features(rows: SparseRows, n_features: int) -> SparseRows:
    """Drop the columns from `n_features` on, unseen in training."""
    if rows.n_features <= n_features:
        return rows
    first, last = rows.indptr[0], rows.indptr[-1]
    indices, values = rows.indices[first:last], rows.values[first:last]
    known = indices < n_features
    starts = np.concatenate([[0], np.cumsum(known)])[rows.indptr - first]
    return SparseRows(read_only(starts), read_only(indices[known]), read_only(values[known]), n_features)
