"""The weights of single features, for explanations: where searches only need sums."""

from __future__ import annotations

import numpy as np

from treemax.kernels.feature_tables import weight_of
from treemax.kernels.intrinsics import reinterpret
from treemax.kernels.jit import inline_kernel, kernel
from treemax.kernels.scorers import pair, slot
from treemax.kernels.search import NO_FEATURE, _home

_LOW_WORD = np.uint64(0xFFFFFFFF)
_HIGH_HALF = np.uint32(0xFFFF0000)
_LOW_HALF = np.uint32(0xFFFF)
_HALF_BITS = np.uint32(16)


@inline_kernel
def _slot_of(feature, table, size, slots):
    """Return the slot of a feature in the table of a node, or an empty one."""
    at = table + _home(feature, size)
    key = slots[at] >> np.uint64(32)
    while key != np.uint64(feature) and key != NO_FEATURE:
        at = at + np.uint64(1) if at + np.uint64(1) < table + size else table
        key = slots[at] >> np.uint64(32)
    return at


@inline_kernel
def _take(child, weight, p, x, place, scores, weights):
    scores[child] += np.float64(x) * np.float64(weight)
    if place[child] >= 0:
        weights[place[child], p] = weight


@kernel
def packed_weights(node, indices, values, n_children, tables, slots, entries, place, scores, weights):
    """Look up the weights of the children of a node for the features of a row, packed as in `search`.

    Adds the products of weights and values to `scores`, one for each child, in double precision, and writes the weights
    of a child c with place[c] >= 0 to weights[place[c]], which must be zero.
    """
    table = np.uint64(tables[node])
    size = np.uint64(tables[node + 1]) - table
    if size == 0:
        return
    count = np.int64(n_children[node])
    half = (count + 1) // 2
    for p in range(indices.size):
        at = _slot_of(indices[p], table, size, slots)
        if slots[at] >> np.uint64(32) == NO_FEATURE:
            continue
        first, last = np.int64(slots[at] & _LOW_WORD), np.int64(slots[at + np.uint64(1)] & _LOW_WORD)
        if last - first == half:
            for c in range(half):
                upper = reinterpret(np.uint32(entries[first + c] & _HIGH_HALF), np.float32)
                _take(c, upper, p, values[p], place, scores, weights)
            for c in range(count - half):
                lower = reinterpret(np.uint32(entries[first + c] << _HALF_BITS), np.float32)
                _take(half + c, lower, p, values[p], place, scores, weights)
        else:
            for q in range(first, last):
                upper = reinterpret(np.uint32(entries[q] & _HIGH_HALF), np.float32)
                _take(np.int64(entries[q] & _LOW_HALF), upper, p, values[p], place, scores, weights)


@kernel
def sparse_weights(scorers, owner, indices, out):
    """Write the weight of each feature in one of `SparseScorers`."""
    wanted = np.uint32(owner + 1)
    for p in range(indices.size):
        word = scorers.tables[indices[p]]
        out[p] = weight_of(scorers.buckets, word, wanted) if word else np.float32(0.0)


@kernel
def group_weights(scorers, group, indices, out):
    """Write the weights of each feature in a group of `SparseGroups`: a row of `out` for each feature."""
    for p in range(indices.size):
        key = pair(group, indices[p])
        at = slot(scorers.keys, key)
        for c in range(out.shape[1]):
            out[p, c] = scorers.cells[at, c] if scorers.keys[at] == key else np.float32(0.0)
