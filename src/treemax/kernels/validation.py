"""Checks of the values and indices of a matrix, in one pass."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from treemax.kernels.intrinsics import maximum, minimum, zeros
from treemax.kernels.jit import kernel

LARGEST = np.float32(1e15)  # value of a feature: sums of its squares do not overflow float32
_NOT_A_SIGN = np.uint32(0x7FFFFFFF)


def largest_magnitude(values: NDArray[np.float32]) -> np.float32:
    """Return the largest absolute value of a contiguous float32 array; NaN and infinity compare larger than others.

    Compares bits as integers, which vectorises: without the sign, floats are ordered like their bits.
    """
    return np.uint32(largest_without_sign(values.reshape(-1).view(np.uint32))).view(np.float32)


@kernel
def largest_without_sign(words):
    """Return the largest of these words without their first bits."""
    largest = np.uint32(0)
    for i in range(words.size):
        largest = maximum(largest, words[i] & _NOT_A_SIGN)
    return largest


@kernel
def squared_lengths(indptr, values):
    """Return the squared norm of every row."""
    squares = zeros(indptr.size - 1, np.float64)
    for row in range(squares.size):
        total = 0.0
        for p in range(indptr[row], indptr[row + 1]):
            total += np.float64(values[p]) * np.float64(values[p])
        squares[row] = total
    return squares


@kernel
def rows_have_length_one(indptr, values):
    """Return whether all rows have length one, but for rounding, or are zero."""
    for row in range(indptr.size - 1):
        total = 0.0
        for p in range(indptr[row], indptr[row + 1]):
            total += np.float64(values[p]) * np.float64(values[p])
        if total != 0.0 and abs(total - 1.0) > 1e-3:
            return False
    return True


@kernel
def lowest_features(indptr, indices, values, n_rows, n_columns):
    """Return the least number below which every row has a column with a value that is not zero; 2^32 if a row has none.

    -1 unless the columns of each row are sorted, distinct and in range, and no value is too large."""
    if indptr.size != n_rows + 1 or indptr[0] != 0 or indices.size != values.size:
        return np.int64(-1)
    if indptr[n_rows] > indices.size:
        return np.int64(-1)
    lowest = np.int64(0)
    for row in range(n_rows):
        if indptr[row + 1] < indptr[row] or indptr[row + 1] > indices.size:
            return np.int64(-1)
        before, first = np.int64(-1), np.int64(2**32 - 1)
        for p in range(indptr[row], indptr[row + 1]):
            column = np.int64(indices[p])
            if column <= before or column >= n_columns or not abs(values[p]) <= LARGEST:
                return np.int64(-1)
            before = column
            if values[p] != 0:
                first = minimum(first, column)
        lowest = maximum(lowest, first + 1)
    return lowest


@kernel
def string_hashes(text, offsets, hashes):
    """Compute the FNV-1a hash of every string, `text[offsets[i]:offsets[i + 1]]`."""
    for i in range(offsets.size - 1):
        hashed = np.uint64(14695981039346656037)
        for place in range(offsets[i], offsets[i + 1]):
            hashed = (hashed ^ np.uint64(text[place])) * np.uint64(1099511628211)
        hashes[i] = hashed
