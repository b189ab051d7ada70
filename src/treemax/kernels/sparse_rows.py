"""Sparse rows: the arrays that kernels take, and copies of rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from treemax.kernels.jit import kernel


class Rows(NamedTuple):
    """Sparse rows: row i has the entries indptr[i] to indptr[i + 1]."""

    indptr: np.ndarray
    indices: np.ndarray
    values: np.ndarray


@kernel
def copy_rows(indptr, indices, values, rows, out_indices, out_values):
    """Copy the entries of these rows in order; `indices` and `values` begin at `indptr[0]`."""
    first, at = indptr[0], 0
    for i in range(rows.size):
        for p in range(indptr[rows[i]] - first, indptr[rows[i] + 1] - first):
            out_indices[at] = indices[p]
            out_values[at] = values[p]
            at += 1


@kernel
def copy_local_rows(indptr, indices, values, rows, local_of, out_indptr, out_indices, out_values):
    """Copy rows with features renumbered by `local_of`, and write their `indptr`."""
    at = 0
    out_indptr[0] = 0
    for i in range(rows.size):
        for p in range(indptr[rows[i]], indptr[rows[i] + 1]):
            out_indices[at] = local_of[indices[p]]
            out_values[at] = values[p]
            at += 1
        out_indptr[i + 1] = at
