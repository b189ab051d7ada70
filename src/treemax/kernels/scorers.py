"""Linear scorers for dense and for sparse rows, which learn by AdaGrad.

What differs between the two, scoring and updating, is chosen when a kernel that calls it is compiled
(`overload`), so that an algorithm is written once. Scorers come in groups of the same width: those of all
children of a node, or the one of a label.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import types
from numba.extending import overload

from treemax.kernels import atomic, vector
from treemax.kernels.jit import fast_inline_kernel, inline_kernel, kernel

EMPTY = np.uint64(0xFFFFFFFFFFFFFFFF)  # no key
MIX = np.uint64(0x9E3779B97F4A7C15)
AHEAD = 2  # scorers that are asked for before their turn: they are far apart in memory
_ZERO = np.float32(0.0)


class DenseScorers(NamedTuple):
    """One linear scorer an owner: a row of weights, and AdaGrad's sums of squared gradients.

    Answers take the weights from `halves`, float16 times `scale`: half of the bytes are half of the time. A scorer
    is `stale` from when it learned until its halves are written anew. A model that is not to learn has no weights.
    """

    weights: np.ndarray
    squares: np.ndarray
    bias: np.ndarray
    bias_squares: np.ndarray
    halves: np.ndarray
    scale: np.ndarray
    stale: np.ndarray


class HalfScorers(NamedTuple):
    """Dense scorers as answers take them."""

    halves: np.ndarray
    scale: np.ndarray
    bias: np.ndarray


class SparseScorers(NamedTuple):
    """Groups of `width` scorers that share a hash table: (group, feature) -> a record of weights and squares."""

    keys: np.ndarray  # group in the upper half, feature in the lower
    cells: np.ndarray  # slots x (the weights of a group, then the squares)
    used: np.ndarray  # slots that are taken; a lock
    bias: np.ndarray
    bias_squares: np.ndarray


@fast_inline_kernel
def _dot(a, b):
    total = _ZERO
    for d in range(a.size):
        total += a[d] * b[d]
    return total


@fast_inline_kernel
def _half_dot(halves, owner, x):
    n, wide = np.uint64(x.size), np.uint64(vector.WIDTH)
    first = np.uint64(owner) * n
    whole = n - n % (wide + wide)
    even, odd = vector.splat(_ZERO), vector.splat(_ZERO)
    for d in range(np.uint64(0), whole, wide + wide):
        even = vector.multiply_add(vector.load_halves(halves, first + d), vector.load(x, d), even)
        odd = vector.multiply_add(vector.load_halves(halves, first + d + wide), vector.load(x, d + wide), odd)
    total = vector.total(vector.add(even, odd))
    for d in range(whole, n):
        total += vector.load_half(halves, first + d) * x[d]
    return total


@fast_inline_kernel
def _step(weights, squares, x, gradient, rate, initial):
    for d in range(x.size):
        step = gradient * x[d]
        total = squares[d] + step * step
        squares[d] = total
        weights[d] -= rate * step / np.sqrt(total + initial)


@fast_inline_kernel
def _bias_step(scorers, owner, gradient, rate, initial):
    scorers.bias_squares[owner] += gradient * gradient
    scorers.bias[owner] -= rate * gradient / np.sqrt(scorers.bias_squares[owner] + initial)


@inline_kernel
def home(keys, key):
    """Where the search for a key begins, in a table whose size is a power of two."""
    return (key * MIX) >> np.uint64(24) & np.uint64(keys.size - 1)


@inline_kernel
def slot(keys, key):
    """Where a key is in a table, or where it would be put."""
    mask, at = np.uint64(keys.size - 1), home(keys, key)
    while keys[at] != key and keys[at] != EMPTY:
        at = (at + np.uint64(1)) & mask
    return at


@inline_kernel
def slot_for(keys, key, used):
    """Where a key is, after putting it there if need be; threads take turns. used[0] counts, used[1] is a lock."""
    at = slot(keys, key)
    if keys[at] != key:
        while not atomic.take(used, 1):
            pass
        at = slot(keys, key)
        if keys[at] != key:
            keys[at] = key
            used[0] += 1
        atomic.give(used, 1)
    return at


@inline_kernel
def pair(group, item):
    return np.uint64(group) << np.uint64(32) | np.uint64(item)


def scores(scorers, group, width, x, out):
    """The scores of a group of scorers for a row."""
    raise NotImplementedError


def scores_of(scorers, owners, n, x, out):
    """The scores of the first n owners, in groups of one."""
    raise NotImplementedError


def update(scorers, group, gradients, width, x, rate, initial):
    """A step of AdaGrad for the scorers of a group whose gradient is not zero."""
    raise NotImplementedError


@overload(scores)
def _overload_scores(scorers, group, width, x, out):
    if scorers.instance_class is DenseScorers:

        def dense(scorers, group, width, x, out):
            for c in range(width):
                owner = group * width + c
                out[c] = scorers.bias[owner] + _dot(scorers.weights[owner], x)

        return dense

    if scorers.instance_class is HalfScorers:

        def half(scorers, group, width, x, out):
            for c in range(width):
                owner = group * width + c
                out[c] = scorers.bias[owner] + scorers.scale[owner] * _half_dot(scorers.halves, owner, x)

        return half

    def sparse(scorers, group, width, x, out):
        indices, values = x
        for c in range(width):
            out[c] = scorers.bias[group * width + c]
        n, wide = np.uint64(indices.size), np.uint64(width)
        for p in range(n):  # the slots are far apart: ask for all of them before the first is read
            at = home(scorers.keys, pair(group, indices[p]))
            vector.prefetch(scorers.keys, at)
            vector.prefetch(scorers.cells, at * wide * np.uint64(2))
        for p in range(n):
            key = pair(group, indices[p])
            at = slot(scorers.keys, key)
            if scorers.keys[at] == key:
                for c in range(wide):
                    out[c] += values[p] * scorers.cells[at, c]

    return sparse


@overload(scores_of)
def _overload_scores_of(scorers, owners, n, x, out):
    if scorers.instance_class is DenseScorers:

        def dense(scorers, owners, n, x, out):
            for q in range(n):
                out[q] = scorers.bias[owners[q]] + _dot(scorers.weights[owners[q]], x)

        return dense

    if scorers.instance_class is HalfScorers:

        def half(scorers, owners, n, x, out):
            width, line = np.uint64(x.size), np.uint64(32)
            for q in range(n):
                if q + AHEAD < n:
                    first = np.uint64(owners[q + AHEAD]) * width
                    for d in range(np.uint64(0), width, line):
                        vector.prefetch(scorers.halves, first + d)
                owner = owners[q]
                out[q] = scorers.bias[owner] + scorers.scale[owner] * _half_dot(scorers.halves, owner, x)

        return half

    def sparse(scorers, owners, n, x, out):
        for q in range(n):
            scores(scorers, owners[q], 1, x, out[q : q + 1])

    return sparse


@overload(update)
def _overload_update(scorers, group, gradients, width, x, rate, initial):
    if scorers.instance_class is DenseScorers:

        def dense(scorers, group, gradients, width, x, rate, initial):
            for c in range(width):
                if gradients[c] != _ZERO:
                    owner = group * width + c
                    _step(scorers.weights[owner], scorers.squares[owner], x, gradients[c], rate, initial)
                    _bias_step(scorers, owner, gradients[c], rate, initial)
                    scorers.stale[owner] = True

        return dense

    def sparse(scorers, group, gradients, width, x, rate, initial):
        indices, values = x
        for c in range(width):
            if gradients[c] != _ZERO:
                _bias_step(scorers, group * width + c, gradients[c], rate, initial)
        for p in range(indices.size):
            key = pair(group, indices[p])
            at = slot_for(scorers.keys, key, scorers.used)
            cells = scorers.cells[at]
            for c in range(width):
                step = gradients[c] * values[p]
                total = cells[width + c] + step * step
                cells[width + c] = total
                cells[c] -= rate * step / np.sqrt(total + initial)

    return sparse


def row_of(rows, i):
    """Row i in the form that scorers take."""
    raise NotImplementedError


@overload(row_of)
def _overload_row_of(rows, i):
    if isinstance(rows, types.Array):
        return lambda rows, i: rows[i]

    def sparse(rows, i):
        indptr, indices, values = rows
        return indices[indptr[i] : indptr[i + 1]], values[indptr[i] : indptr[i + 1]]

    return sparse


def width_of(x):
    """How many features a row has, of those that are kept in tables."""
    raise NotImplementedError


@overload(width_of)
def _overload_width_of(x):
    if isinstance(x, types.Array):
        return lambda x: 0
    return lambda x: x[0].size


def room_left(scorers):
    raise NotImplementedError


@overload(room_left)
def _overload_room_left(scorers):
    if scorers.instance_class is DenseScorers:
        return lambda scorers: 2**40
    return lambda scorers: scorers.keys.size * 3 // 4 - scorers.used[0]


@kernel
def moved(keys, cells, new_keys, new_cells):
    """Put everything that is in a table into another one, empty and larger."""
    for at in range(keys.size):
        if keys[at] != EMPTY:
            to = slot(new_keys, keys[at])
            new_keys[to] = keys[at]
            new_cells[to] = cells[at]
