"""Sorting of a sparse row by its feature indices."""

from __future__ import annotations

import numpy as np

from treemax.kernels.intrinsics import minimum
from treemax.kernels.jit import inline_kernel, kernel

MAX_FLOAT32 = float(np.finfo(np.float32).max)
_ONE, _TWO = np.uint64(1), np.uint64(2)
_SHIFT, _LOW_HALF = np.uint64(32), np.uint64(2**32 - 1)


@inline_kernel
def _sort_runs(keys, size, run):
    """Sort every run of `run` keys by insertion."""
    for first in range(np.uint64(0), size, run):
        for right in range(first + _ONE, minimum(first + run, size)):
            key = keys[right]
            place = np.uint64(right)
            while place > first and keys[place - _ONE] > key:
                keys[place] = keys[place - _ONE]
                place -= _ONE
            keys[place] = key


@inline_kernel
def _merge(source, target, first, middle, last):
    left, right = first, middle
    for place in range(first, last):
        if left < middle and (right >= last or source[left] <= source[right]):
            target[place] = source[left]
            left += _ONE
        else:
            target[place] = source[right]
            right += _ONE


@kernel
def _sort_keys(keys, spare, size):
    """Merge sort, fast for any order of the indices; returns the array with the result."""
    run = np.uint64(16)
    _sort_runs(keys, size, run)
    while run < size:
        for first in range(np.uint64(0), size, _TWO * run):
            middle, last = minimum(first + run, size), minimum(first + _TWO * run, size)
            _merge(keys, spare, first, middle, last)
        keys, spare = spare, keys
        run *= _TWO
    return keys


@kernel
def sort_row(indices, values, start, stop, keys, spare, row_values):
    """Sort a row by index and sum duplicates; return the new end of the row, and whether the sums fit."""
    size = stop - start
    for entry in range(size):
        keys[entry] = np.uint64(indices[start + entry]) << _SHIFT | entry
        row_values[entry] = values[start + entry]
    ordered = _sort_keys(keys, spare, size)
    end = start
    for entry in range(size):
        index = np.uint32(ordered[entry] >> _SHIFT)
        value = row_values[ordered[entry] & _LOW_HALF]
        if end > start and indices[end - _ONE] == index:
            total = np.float32(values[end - _ONE] + value)
            if not abs(total) <= MAX_FLOAT32:
                return start, False
            values[end - _ONE] = total
        else:
            indices[end] = index
            values[end] = value
            end += _ONE
    return end, True
