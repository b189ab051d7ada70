"""Conversion of rows to columns over their features."""

from __future__ import annotations

import numpy as np

from treemax.kernels.intrinsics import empty, minimum, zeros
from treemax.kernels.jit import kernel

_ONE = np.float32(1.0)


@kernel
def local_columns(indptr, indices, values, rows, local_of):
    """Convert the rows of a node to columns over the features that occur; the last column is all ones.

    `local_of` is zeroed scratch over the features, and is left zeroed. Returns the features, the starts of the columns,
    and the row (of the node) and value of each entry.
    """
    nnz = 0
    for i in range(rows.size):
        nnz += indptr[rows[i] + 1] - indptr[rows[i]]
    features = empty(minimum(nnz, local_of.size), np.uint32)
    counts = zeros(features.size + 2, np.int64)
    n_local = 0
    for i in range(rows.size):
        for p in range(indptr[rows[i]], indptr[rows[i] + 1]):
            f = indices[p]
            if local_of[f] == 0:
                features[n_local] = f
                n_local += 1
                local_of[f] = n_local
            counts[local_of[f]] += 1
    starts = empty(n_local + 2, np.int64)
    starts[0] = 0
    for j in range(n_local):
        starts[j + 1] = starts[j] + counts[j + 1]
    starts[n_local + 1] = starts[n_local] + rows.size
    at = starts[: n_local + 1].copy()
    column_rows, column_values = empty(nnz + rows.size, np.uint32), empty(nnz + rows.size, np.float32)
    for i in range(rows.size):
        for p in range(indptr[rows[i]], indptr[rows[i] + 1]):
            j = local_of[indices[p]] - 1
            column_rows[at[j]] = i
            column_values[at[j]] = values[p]
            at[j] += 1
        column_rows[at[n_local]] = i
        column_values[at[n_local]] = _ONE
        at[n_local] += 1
    for j in range(n_local):
        local_of[features[j]] = 0
    return features[:n_local], starts, column_rows, column_values
