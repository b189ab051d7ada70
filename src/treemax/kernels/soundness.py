"""Whether a matrix can be used as it is: all checks in one look, since for one row the looking counts."""

from __future__ import annotations

import numpy as np

from treemax.kernels.jit import kernel

_NOT_A_SIGN, _INFINITY = np.uint32(0x7FFFFFFF), np.uint32(0x7F800000)


@kernel
def all_finite(matrix):
    """Whether there is neither NaN nor infinity in a contiguous float32 matrix: by their bits, as integers vectorise."""
    largest = np.uint32(0)
    for bits in matrix.ravel().view(np.uint32):
        largest = max(largest, bits & _NOT_A_SIGN)
    return largest < _INFINITY


@kernel
def is_sound(indptr, indices, values, n_rows, n_columns):
    """True for rows whose columns are sorted, distinct and inside, and whose values are all finite."""
    if indptr.size != n_rows + 1 or indptr[0] != 0 or indices.size != values.size:
        return False
    if indptr[n_rows] > indices.size:
        return False
    for row in range(n_rows):
        if indptr[row + 1] < indptr[row] or indptr[row + 1] > indices.size:
            return False
        before = np.int64(-1)
        for p in range(indptr[row], indptr[row + 1]):
            column = np.int64(indices[p])
            if column <= before or column >= n_columns or not np.isfinite(values[p]):
                return False
            before = column
    return True


@kernel
def string_hashes(text, offsets, hashes):
    """The hash (FNV-1a) of every string, `text[offsets[i]:offsets[i + 1]]`."""
    for i in range(offsets.size - 1):
        hashed = np.uint64(14695981039346656037)
        for place in range(offsets[i], offsets[i + 1]):
            hashed = (hashed ^ np.uint64(text[place])) * np.uint64(1099511628211)
        hashes[i] = hashed
