"""Label vectors and their balanced bisection."""

from __future__ import annotations

import numpy as np

from treemax.kernels.arithmetic import copy_into, next_random
from treemax.kernels.intrinsics import empty, maximum, minimum, zeros
from treemax.kernels.jit import fast_inline_kernel, fast_kernel, kernel

_HUGE = np.float32(3e38)


@kernel
def _select_largest(values, count, order):
    """Move the positions of the `count` largest values to order[:count], by quickselect."""
    low, high = 0, order.size - 1
    while low < high:
        pivot = values[order[(low + high) // 2]]
        i, j = low, high
        while i <= j:
            while values[order[i]] > pivot:
                i += 1
            while values[order[j]] < pivot:
                j -= 1
            if i <= j:
                order[i], order[j] = order[j], order[i]
                i += 1
                j -= 1
        if count - 1 <= j:
            high = j
        elif count - 1 >= i:
            low = i
        else:
            return


@kernel
def label_vectors(indptr, indices, values, label_indptr, label_rows, most, total, out_indptr, out_indices, out_values):
    """Write the `most` largest entries of the normalised sum of the rows of every label; `total` is zeroed scratch.

    Returns the number of entries written; out_indices and out_values have room for `most` per label.
    """
    touched = empty(total.size, np.uint32)
    entered = zeros(total.size, np.bool_)  # a sum may return to zero
    order = empty(total.size, np.int64)
    amounts = empty(total.size, np.float32)
    at = 0
    for label in range(label_indptr.size - 1):
        count = 0
        for q in range(label_indptr[label], label_indptr[label + 1]):
            row = label_rows[q]
            for p in range(indptr[row], indptr[row + 1]):
                f = indices[p]
                if not entered[f]:
                    entered[f] = True
                    touched[count] = f
                    count += 1
                total[f] += values[p]
        for j in range(count):
            order[j] = j
            total[touched[j]] = minimum(maximum(total[touched[j]], -_HUGE), _HUGE)  # sums may overflow
            amounts[j] = abs(total[touched[j]])
        kept = minimum(count, most)
        if kept < count:
            _select_largest(amounts, kept, order[:count])
        squares = 0.0
        for j in range(kept):
            squares += np.float64(amounts[order[j]]) * np.float64(amounts[order[j]])
        scale = 1.0 / np.sqrt(squares) if squares > 0 else 0.0
        for j in range(kept):
            f = touched[order[j]]
            out_indices[at] = f
            out_values[at] = total[f] * scale
            at += 1
        for j in range(count):
            total[touched[j]] = np.float32(0.0)
            entered[touched[j]] = False
        out_indptr[label + 1] = at
    return at


@fast_inline_kernel
def _move(indptr, indices, values, member, side, sign, sums, squares):
    """Add a member to the sum of a side, or subtract it; updates the squared norm of the sum."""
    change = 0.0
    for p in range(indptr[member], indptr[member + 1]):
        at = np.uint64(2) * np.uint64(indices[p]) + np.uint64(side)
        v = sign * values[p]
        change += v * (np.float32(2.0) * sums[at] + v)
        sums[at] += v
    squares[side] += change


@fast_kernel
def _part(indptr, indices, values, members, n_left, sums, squares, gain, order):
    """Move the members closest to the left centroid, relative to the right one, to order[:n_left]; return the
    separation of the two sides."""
    left = np.float32(1.0 / np.sqrt(maximum(squares[0], 1e-20)))
    right = np.float32(1.0 / np.sqrt(maximum(squares[1], 1e-20)))
    for m in range(members.size):
        to_left, to_right = np.float32(0.0), np.float32(0.0)
        for p in range(indptr[members[m]], indptr[members[m] + 1]):
            at = np.uint64(2) * np.uint64(indices[p])
            to_left += values[p] * sums[at]
            to_right += values[p] * sums[at + np.uint64(1)]
        gain[m] = to_left * left - to_right * right
        order[m] = m
    _select_largest(gain, n_left, order[: members.size])
    apart = np.float32(0.0)
    for m in range(members.size):
        apart += gain[order[m]] if m < n_left else -gain[order[m]]
    return apart


@kernel
def _change_sides(indptr, indices, values, members, n_left, order, side, sums, squares):
    """Move the members that changed sides: few, after the first iterations."""
    for m in range(members.size):
        i, new = order[m], np.int8(m >= n_left)
        if side[i] != new:
            if side[i] >= 0:
                _move(indptr, indices, values, members[i], side[i], np.float32(-1.0), sums, squares)
            _move(indptr, indices, values, members[i], new, np.float32(1.0), sums, squares)
            side[i] = new


@kernel
def bisect(indptr, indices, values, members, n_left, n_sample, iterations, sums):
    """Split members into two clusters of given sizes by spherical 2-means; return positions, the first n_left on the left.

    The members closest to the left centroid, relative to the right one, go left. The first and the last of the first
    n_sample members are the initial centroids; these members find the centroids, then all are assigned twice. `sums` is
    zeroed scratch with two entries per feature, the sums of the two sides.
    """
    n = members.size
    side, squares = empty(n, np.int8), zeros(2, np.float64)
    gain, order = empty(n, np.float32), empty(n, np.int64)
    for m in range(n):
        side[m] = -1
    sample, sample_left = members[:n_sample], maximum(1, n_sample * n_left // n)
    for new, i in ((0, 0), (1, n_sample - 1)):
        _move(indptr, indices, values, members[i], np.int8(new), np.float32(1.0), sums, squares)
        side[i] = new
    before = np.float32(-1e30)
    for _ in range(iterations):
        now = _part(indptr, indices, values, sample, sample_left, sums, squares, gain, order)
        if now <= before * np.float32(1.001) + np.float32(1e-6):
            break
        before = now
        _change_sides(indptr, indices, values, sample, sample_left, order, side, sums, squares)
    if n_sample < n:
        _part(indptr, indices, values, members, n_left, sums, squares, gain, order)
        _change_sides(indptr, indices, values, members, n_left, order, side, sums, squares)
        _part(indptr, indices, values, members, n_left, sums, squares, gain, order)
    for m in range(n):
        for p in range(indptr[members[m]], indptr[members[m] + 1]):
            sums[2 * np.int64(indices[p])] = np.float32(0.0)
            sums[2 * np.int64(indices[p]) + 1] = np.float32(0.0)
    return order


@kernel
def _shuffle(members, random):
    """Shuffle members; return the new state of the random generator."""
    for i in range(members.size - 1, 0, -1):
        random = next_random(random)
        j = np.int64((random >> np.uint64(32)) % np.uint64(i + 1))
        members[i], members[j] = members[j], members[i]
    return random


@kernel
def arrange(indptr, indices, values, members, arity, max_leaf, iterations, random, sums):
    """Order a few members so that the clusters of a whole subtree are contiguous.

    Parts larger than `max_leaf` are split recursively into `arity` even parts, whose bounds follow from their sizes.
    Returns positions in `members`.
    """
    places = empty(members.size, np.int64)
    for m in range(members.size):
        places[m] = m
    room = 2 * members.size + 2
    starts, stops, n_parts = empty(room, np.int64), empty(room, np.int64), empty(room, np.int64)
    starts[0], stops[0], n_parts[0] = 0, members.size, 1
    n = 1
    while n > 0:
        n -= 1
        start, stop, wanted = starts[n], stops[n], n_parts[n]
        if wanted == 1:
            if stop - start <= max_leaf:
                continue
            wanted = minimum(arity, stop - start)
        here, left_parts = places[start:stop], wanted // 2
        n_left = here.size * left_parts // wanted
        random = _shuffle(here, random)
        order = bisect(indptr, indices, values, members[here], n_left, here.size, iterations, sums)
        copy_into(here, here[order], here.size)
        middle = start + n_left
        starts[n], stops[n], n_parts[n] = start, middle, left_parts
        starts[n + 1], stops[n + 1], n_parts[n + 1] = middle, stop, wanted - left_parts
        n += 2
    return places
