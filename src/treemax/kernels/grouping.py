"""Group rows by label and by tree node, by counting, without sorting."""

from __future__ import annotations

import numpy as np

from treemax.kernels.intrinsics import zeros
from treemax.kernels.jit import bare_kernel, inline_kernel, kernel


@bare_kernel
def rows_of_labels(indptr, ids, ends, rows):
    """Write the rows of every label in order; those of label j begin at ends[j], which becomes their end."""
    for i in range(indptr.size - 1):
        for q in range(indptr[i], indptr[i + 1]):
            rows[ends[ids[q]]] = i
            ends[ids[q]] += 1


@kernel
def count_reached(indptr, ids, leaf_of, parent, n_rows, n_pairs):
    """Count for every inner node the rows that reach it and their (row, child) pairs. All rows reach the root."""
    last_row = zeros(parent.size, np.int64)  # counted from one
    for i in range(1, indptr.size):
        last_row[0] = i
        n_rows[0] += 1
        for q in range(indptr[i - 1], indptr[i]):
            node = leaf_of[ids[q]]
            new = last_row[node] != i
            last_row[node] = i
            while new and node != 0:
                node = parent[node]
                n_pairs[node] += 1
                new = last_row[node] != i
                n_rows[node] += new
                last_row[node] = i


@inline_kernel
def _begin_row(node, row, n_rows, n_pairs, row_starts, rows, child_indptr):
    at = row_starts[node] + n_rows[node]
    rows[at] = row
    child_indptr[at + node] = n_pairs[node]
    n_rows[node] += 1


@inline_kernel
def _insert(children, first, end, child):
    """Insert a child into a sorted list."""
    while end > first and children[end - 1] > child:
        children[end] = children[end - 1]
        end -= 1
    children[end] = child


@kernel
def fill_reached(indptr, ids, leaf_of, parent, first_child, row_starts, pair_starts, rows, child_indptr, children):
    """Write the rows and pairs that `count_reached` has counted, node by node.

    The rows of node v begin at row_starts[v], its pairs at pair_starts[v]. The indptr of the pairs of its rows begins
    at row_starts[v] + v, one entry more than rows. The children of a row are sorted.
    """
    n_rows, n_pairs = zeros(parent.size, np.int64), zeros(parent.size, np.int64)
    last_row = zeros(parent.size, np.int64)  # counted from one
    for i in range(1, indptr.size):
        last_row[0] = i
        _begin_row(np.int64(0), i - 1, n_rows, n_pairs, row_starts, rows, child_indptr)
        for q in range(indptr[i - 1], indptr[i]):
            node = leaf_of[ids[q]]
            new = last_row[node] != i
            last_row[node] = i
            while new and node != 0:
                child, node = node, parent[node]
                new = last_row[node] != i
                last_row[node] = i
                if new:
                    _begin_row(node, i - 1, n_rows, n_pairs, row_starts, rows, child_indptr)
                first = pair_starts[node] + child_indptr[row_starts[node] + n_rows[node] - 1 + node]
                _insert(children, first, pair_starts[node] + n_pairs[node], child - first_child[node])
                n_pairs[node] += 1
    for node in range(parent.size):
        child_indptr[row_starts[node] + n_rows[node] + node] = n_pairs[node]
