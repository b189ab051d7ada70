"""Linear scorers for dense and sparse rows, trained by AdaGrad.

Scoring and updating are dispatched on the type of the scorers when a kernel is compiled (`overload`), so that each
algorithm is written once. Scorers are grouped: those of all children of a node (`SparseGroups` for sparse rows), or
one per label (`SparseScorers`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import types
from numba.extending import overload

from treemax.kernels import atomic, vector
from treemax.kernels.arithmetic import copy_into
from treemax.kernels.buckets import LANES
from treemax.kernels.feature_tables import (
    MIX,
    SIZE_BITS,
    SparseScorers,
    find_weights,
    n_entries,
    prefetch_weight,
    prefetch_weights,
    sparse_step,
    table_capacity,
    weight_of,
)
from treemax.kernels.intrinsics import minimum
from treemax.kernels.jit import BARE_OPTIONS, fast_inline_kernel, inline_kernel, kernel

EMPTY = np.uint64(0xFFFFFFFFFFFFFFFF)  # no key
TOGETHER = 16  # rows that descend a tree together, a level at a time
AHEAD = 2  # scorers prefetched: they are far apart in memory
LEAST_NEW = np.float32(0.05)  # smallest gradient that creates a weight; existing weights learn from smaller ones
_ZERO = np.float32(0.0)


class DenseScorers(NamedTuple):
    """One linear scorer per owner: a row of weights, and AdaGrad's sums of squared gradients.

    Prediction uses `halves`, float16 times `scale`, since time is proportional to bytes. A scorer is `stale` after an
    update until its halves are rewritten. A model without learning state has no weights.
    """

    weights: np.ndarray
    squares: np.ndarray
    bias: np.ndarray
    bias_squares: np.ndarray
    halves: np.ndarray
    scale: np.ndarray
    stale: np.ndarray


class HalfScorers(NamedTuple):
    """Dense scorers for prediction."""

    halves: np.ndarray
    scale: np.ndarray
    bias: np.ndarray


class SparseGroups(NamedTuple):
    """Groups of `width` scorers that share a hash table: (group, feature) -> a record of weights and squares."""

    keys: np.ndarray  # group in the upper half, feature in the lower
    cells: np.ndarray  # slots x (the weights of a group, then the squares)
    used: np.ndarray  # used slots; a lock
    bias: np.ndarray
    bias_squares: np.ndarray


class KeptWeights(NamedTuple):
    """Weights of a group of rows that are scored by the same owners: those of frequent features are found once."""

    group: np.ndarray  # its number
    keys: np.ndarray  # group and feature
    weights: np.ndarray  # of all owners
    place: np.ndarray  # of each owner in the group, from 1; see `find_weights`


@inline_kernel
def begin_group(kept, number, owners, n):
    """Begin the next group of rows, with these owners."""
    kept.group[0] = number
    for q in range(n):
        kept.place[owners[q] + 1] = q + 1


@inline_kernel
def end_group(kept, owners, n):
    for q in range(n):
        kept.place[owners[q] + 1] = 0


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
    # Rates grow as features shrink: the constant feature of the bias is as small as they are, at most 1.
    square = minimum(initial, np.float32(1.0))
    scorers.bias_squares[owner] += gradient * gradient
    scorers.bias[owner] -= rate * np.sqrt(square) * gradient / np.sqrt(scorers.bias_squares[owner] + initial / square)


@inline_kernel
def first_slot(keys, key):
    """Return the first slot to probe for a key in a table whose size is a power of two."""
    return (key * MIX) >> np.uint64(24) & np.uint64(keys.size - 1)


@inline_kernel
def slot(keys, key):
    """Return the slot of a key, or the free slot for it."""
    mask, at = np.uint64(keys.size - 1), first_slot(keys, key)
    while keys[at] != key and keys[at] != EMPTY:
        at = (at + np.uint64(1)) & mask
    return at


@inline_kernel
def slot_for(keys, key, used):
    """Return the slot of a key, inserted if need be, with the lock used[1]; used[0] counts slots."""
    at = slot(keys, key)
    if keys[at] != key:
        while not atomic.acquire(used, 1):
            pass
        at = slot(keys, key)
        if keys[at] != key:
            keys[at] = key
            used[0] += 1
        atomic.release(used, 1)
    return at


@inline_kernel
def pair(group, item):
    return np.uint64(group) << np.uint64(32) | np.uint64(item)


# --- room for sparse rows ---------------------------------------------------------------------------------


def buckets_needed(scorers, x, n_owners):
    """Return an upper bound of the buckets needed to learn a row for `n_owners` owners."""
    raise NotImplementedError


@overload(buckets_needed, jit_options=BARE_OPTIONS)
def _overload_buckets_needed(scorers, x, n_owners):
    if scorers.instance_class is DenseScorers:
        return lambda scorers, x, n_owners: 0

    def sparse(scorers, x, n_owners):
        needed = np.int64(0)
        for feature in x[0]:
            word = scorers.tables[feature]
            entries, bits = n_entries(word) + np.uint64(n_owners), word & SIZE_BITS
            if word == 0 or entries > table_capacity(bits):
                while entries > table_capacity(bits):
                    bits += np.uint64(1)
                needed += np.int64(2) << np.int64(bits)  # including all smaller sizes
        return needed

    return sparse


def reserve(scorers, n_buckets):
    """Reserve `n_buckets` buckets until `release`; return whether there is room."""
    raise NotImplementedError


def release(scorers, n_buckets):
    """Release the reservation after the row is learned."""
    raise NotImplementedError


@overload(reserve, jit_options=BARE_OPTIONS)
def _overload_reserve(scorers, n_buckets):
    if scorers.instance_class is DenseScorers:
        return lambda scorers, n_buckets: True

    def sparse(scorers, n_buckets):
        if scorers.used[3]:
            return scorers.used[0] + n_buckets <= scorers.entry_squares.size // LANES
        if n_buckets == 0:
            return True
        reserved = atomic.fetch_add(scorers.used, 2, n_buckets)
        if scorers.used[0] + reserved + n_buckets <= scorers.entry_squares.size // LANES:
            return True
        atomic.fetch_add(scorers.used, 2, -n_buckets)
        return False

    return sparse


@overload(release, jit_options=BARE_OPTIONS)
def _overload_release(scorers, n_buckets):
    if scorers.instance_class is DenseScorers:
        return lambda scorers, n_buckets: None

    def sparse(scorers, n_buckets):
        if n_buckets and not scorers.used[3]:
            atomic.fetch_add(scorers.used, 2, -n_buckets)

    return sparse


# --- scores and updates ----------------------------------------------------------------------------------


def scores(scorers, group, width, x, out):
    """Compute the scores of a group of scorers for a row."""
    raise NotImplementedError


def update(scorers, group, gradients, width, x, rate, initial):
    """Update the scorers of a group with non-zero gradient by AdaGrad."""
    raise NotImplementedError


@overload(scores, jit_options=BARE_OPTIONS)
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

    if scorers.instance_class is SparseScorers:

        def sparse(scorers, group, width, x, out):
            indices, values = x
            total, wanted = scorers.bias[group], np.uint32(group + 1)
            for p in range(np.uint64(indices.size)):
                word = scorers.tables[indices[p]]
                if word:
                    total += values[p] * weight_of(scorers.buckets, word, wanted)
            out[0] = total

        return sparse

    def grouped(scorers, group, width, x, out):
        indices, values = x
        for c in range(width):
            out[c] = scorers.bias[group * width + c]
        n, wide = np.uint64(indices.size), np.uint64(width)
        for p in range(n):  # the slots are far apart: prefetch all of them first
            at = first_slot(scorers.keys, pair(group, indices[p]))
            vector.prefetch(scorers.keys, at)
            vector.prefetch(scorers.cells, at * wide * np.uint64(2))
        for p in range(n):
            key = pair(group, indices[p])
            at = slot(scorers.keys, key)
            if scorers.keys[at] == key:
                for c in range(wide):
                    out[c] += values[p] * scorers.cells[at, c]

    return grouped


@overload(update, jit_options=BARE_OPTIONS)
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

    if scorers.instance_class is SparseScorers:

        def sparse(scorers, group, gradients, width, x, rate, initial):
            indices, values = x
            _bias_step(scorers, group, gradients[0], rate, initial)
            for p in range(np.uint64(indices.size)):
                sparse_step(scorers, indices[p], group, gradients[0] * values[p], rate, initial, True)

        return sparse

    def grouped(scorers, group, gradients, width, x, rate, initial):
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

    return grouped


def score_of_row(scorers, owner, rows, i, one):
    """Compute the score of row i, with one scorer per owner."""
    raise NotImplementedError


def prefetch_row(scorers, rows, i):
    """Prefetch what tells where the weights for row i are."""
    raise NotImplementedError


def prefetch_score(scorers, owner, rows, i, with_squares):
    """Prefetch the weights of an owner for row i; also AdaGrad's sums, if it will be updated."""
    raise NotImplementedError


@overload(score_of_row, jit_options=BARE_OPTIONS)
def _overload_score_of_row(scorers, owner, rows, i, one):
    if isinstance(rows, types.Array):

        def dense(scorers, owner, rows, i, one):
            scores(scorers, owner, 1, rows[i], one)
            return one[0]

        return dense

    def sparse(scorers, owner, rows, i, one):
        indptr, indices, values = rows
        scores(scorers, owner, 1, (indices[indptr[i] : indptr[i + 1]], values[indptr[i] : indptr[i + 1]]), one)
        return one[0]

    return sparse


@overload(prefetch_row, jit_options=BARE_OPTIONS)
def _overload_prefetch_row(scorers, rows, i):
    if scorers.instance_class is not SparseScorers:
        return lambda scorers, rows, i: None

    def sparse(scorers, rows, i):
        indptr, indices, _ = rows
        for p in range(np.uint64(indptr[i]), np.uint64(indptr[i + 1])):
            vector.prefetch(scorers.tables, np.uint64(indices[p]))

    return sparse


@overload(prefetch_score, jit_options=BARE_OPTIONS)
def _overload_prefetch_score(scorers, owner, rows, i, with_squares):
    if scorers.instance_class is not SparseScorers:
        return lambda scorers, owner, rows, i, with_squares: None

    def sparse(scorers, owner, rows, i, with_squares):
        indptr, indices, _ = rows
        for p in range(np.uint64(indptr[i]), np.uint64(indptr[i + 1])):
            word = scorers.tables[indices[p]]
            if word:
                prefetch_weight(scorers, word, np.uint32(owner + 1), with_squares)

    return sparse


def scores_of(scorers, owners, n, x, out):
    """Compute the scores of the first n owners for a row, with one scorer per owner."""
    raise NotImplementedError


def update_of(scorers, owners, gradients, n, x, rate, initial):
    """Update those of the first n owners with non-zero gradient by AdaGrad."""
    raise NotImplementedError


@overload(scores_of, jit_options=BARE_OPTIONS)
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
        indices, values = x
        for p in range(np.uint64(indices.size)):
            vector.prefetch(scorers.tables, np.uint64(indices[p]))
        for q in range(n):
            out[q] = scorers.bias[owners[q]]
        for p in range(np.uint64(indices.size)):
            word, value = scorers.tables[indices[p]], values[p]
            if word:
                for q in range(n):
                    out[q] += value * weight_of(scorers.buckets, word, np.uint32(owners[q] + 1))

    return sparse


@inline_kernel
def _place_of(kept, feature):
    return np.uint64(feature) * MIX >> np.uint64(40) & np.uint64(kept.keys.size - 1)


def scores_in_group(scorers, owners, n, x, kept, out):
    """Compute the scores of the first n owners for a row of a group of rows, which have the same owners."""
    raise NotImplementedError


@overload(scores_in_group, jit_options=BARE_OPTIONS)
def _overload_scores_in_group(scorers, owners, n, x, kept, out):
    if scorers.instance_class is not SparseScorers:
        return lambda scorers, owners, n, x, kept, out: scores_of(scorers, owners, n, x, out)

    def sparse(scorers, owners, n, x, kept, out):
        indices, values = x
        for p in range(np.uint64(indices.size)):
            vector.prefetch(scorers.tables, np.uint64(indices[p]))
        for p in range(np.uint64(indices.size)):
            word = scorers.tables[indices[p]]
            if word and kept.keys[_place_of(kept, indices[p])] != pair(kept.group[0], indices[p]):
                prefetch_weights(scorers, word, owners, n)
        for q in range(n):
            out[q] = scorers.bias[owners[q]]
        for p in range(np.uint64(indices.size)):
            word, value = scorers.tables[indices[p]], values[p]
            if word:
                key = pair(kept.group[0], indices[p])
                at = _place_of(kept, indices[p])
                weights = kept.weights[at]
                if kept.keys[at] != key:
                    find_weights(scorers, word, owners, n, kept.place, weights)
                    kept.keys[at] = key
                for q in range(n):
                    out[q] += value * weights[q]

    return sparse


@overload(update_of, jit_options=BARE_OPTIONS)
def _overload_update_of(scorers, owners, gradients, n, x, rate, initial):
    if scorers.instance_class is DenseScorers:

        def dense(scorers, owners, gradients, n, x, rate, initial):
            for q in range(n):
                if gradients[q] != _ZERO:
                    owner = owners[q]
                    _step(scorers.weights[owner], scorers.squares[owner], x, gradients[q], rate, initial)
                    _bias_step(scorers, owner, gradients[q], rate, initial)
                    scorers.stale[owner] = True

        return dense

    def sparse(scorers, owners, gradients, n, x, rate, initial):
        indices, values = x
        for q in range(n):
            if gradients[q] != _ZERO:
                _bias_step(scorers, owners[q], gradients[q], rate, initial)
        for p in range(np.uint64(indices.size)):
            for q in range(n):
                gradient = gradients[q]
                if gradient != _ZERO:
                    makes_new = abs(gradient) >= LEAST_NEW
                    sparse_step(scorers, indices[p], owners[q], gradient * values[p], rate, initial, makes_new)

    return sparse


def row_of(rows, i):
    """Return row i in the form for the scorers."""
    raise NotImplementedError


@overload(row_of)  # returns arrays: for kernels with reference counting, which may pass them to bare ones
def _overload_row_of(rows, i):
    if isinstance(rows, types.Array):
        return lambda rows, i: rows[i]

    def sparse(rows, i):
        indptr, indices, values = rows
        return indices[indptr[i] : indptr[i + 1]], values[indptr[i] : indptr[i + 1]]

    return sparse


def width_of(x):
    """Return the number of features of a sparse row, 0 for a dense one."""
    raise NotImplementedError


@overload(width_of, jit_options=BARE_OPTIONS)
def _overload_width_of(x):
    if isinstance(x, types.Array):
        return lambda x: 0
    return lambda x: x[0].size


def room_left(scorers):
    raise NotImplementedError


@overload(room_left, jit_options=BARE_OPTIONS)
def _overload_room_left(scorers):
    if scorers.instance_class is DenseScorers:
        return lambda scorers: 2**40
    return lambda scorers: scorers.keys.size * 3 // 4 - scorers.used[0]


@kernel
def moved(keys, cells, new_keys, new_cells):
    """Copy a table into a larger empty one."""
    for at in range(keys.size):
        if keys[at] != EMPTY:
            to = slot(new_keys, keys[at])
            new_keys[to] = keys[at]
            copy_into(new_cells[to], cells[at], cells.shape[1])
