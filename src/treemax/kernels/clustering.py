"""Labels as vectors, and the balanced bisection of a set of them."""

from __future__ import annotations

import numpy as np

from treemax.kernels.jit import fast_kernel, kernel

_HUGE = np.float32(3e38)


@kernel
def _strongest(values, count, order):
    """Leave in order[:count] the positions of the `count` largest values, by quickselect."""
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
def label_vectors(
    indptr, indices, values, label_indptr, label_rows, most, total, out_indptr, out_indices, out_values
):
    """The normalised sum of the rows of every label, its `most` largest entries; total is a zeroed scratch.

    Returns the entries written; out_indices and out_values have room for `most` a label.
    """
    touched = np.empty(total.size, np.uint32)
    entered = np.zeros(total.size, np.bool_)  # a sum may be back at zero
    order = np.empty(total.size, np.int64)
    amounts = np.empty(total.size, np.float32)
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
            total[touched[j]] = min(max(total[touched[j]], -_HUGE), _HUGE)  # sums may overflow
            amounts[j] = abs(total[touched[j]])
        kept = min(count, most)
        if kept < count:
            _strongest(amounts, kept, order[:count])
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


@fast_kernel
def _set_direction(indptr, indices, values, members, n_left, left, right, direction):
    """The difference of the two normalised centroids, over the features that occur; scratch is cleared."""
    left_squares, right_squares = np.float32(0.0), np.float32(0.0)
    for m in range(members.size):
        total = left if m < n_left else right
        for p in range(indptr[members[m]], indptr[members[m] + 1]):
            total[indices[p]] += values[p]
    for m in range(members.size):  # the sum over the members of v . total is the squared length of total
        total = left if m < n_left else right
        squares = np.float32(0.0)
        for p in range(indptr[members[m]], indptr[members[m] + 1]):
            squares += values[p] * total[indices[p]]
        if m < n_left:
            left_squares += squares
        else:
            right_squares += squares
    left_scale = np.float32(1.0) / np.sqrt(max(left_squares, np.float32(1e-20)))
    right_scale = np.float32(1.0) / np.sqrt(max(right_squares, np.float32(1e-20)))
    for m in range(members.size):
        for p in range(indptr[members[m]], indptr[members[m] + 1]):
            f = indices[p]
            if left[f] != 0 or right[f] != 0:
                direction[f] = left[f] * left_scale - right[f] * right_scale
                left[f] = np.float32(0.0)
                right[f] = np.float32(0.0)


@fast_kernel
def _split_off(indptr, indices, values, members, n_left, direction):
    """Bring the n_left members furthest along the direction to the front; returns how far apart they are."""
    n = members.size
    gain = np.empty(n, np.float32)
    order = np.arange(n)
    for m in range(n):
        dot = np.float32(0.0)
        for p in range(indptr[members[m]], indptr[members[m] + 1]):
            dot += values[p] * direction[indices[p]]
        gain[m] = dot
    _strongest(gain, n_left, order)
    apart = np.float32(0.0)
    for m in range(n):
        apart += gain[order[m]] if m < n_left else -gain[order[m]]
    members[:] = members[order]
    return apart


@fast_kernel
def bisect(indptr, indices, values, members, n_left, n_sample, iterations, left, right, direction):
    """Reorder `members` so that the first n_left and the rest are two clusters: spherical 2-means with sizes
    given. The labels closest to the left centroid, compared with the right one, go left.

    The first and the last of the first n_sample members are the first centroids, and those members alone
    find the direction; then all of them have a say twice. `left`, `right` and `direction` are zeroed scratch
    vectors over the features.
    """
    n = members.size
    seeds = np.array([members[0], members[n_sample - 1]])
    _set_direction(indptr, indices, values, seeds, 1, left, right, direction)
    sample = members[:n_sample]
    sample_left = max(1, n_sample * n_left // n)
    before = np.float32(-1e30)
    for _ in range(iterations):
        now = _split_off(indptr, indices, values, sample, sample_left, direction)
        if now <= before * np.float32(1.001) + np.float32(1e-6):
            break
        before = now
        _set_direction(indptr, indices, values, sample, sample_left, left, right, direction)
    if n_sample < n:
        _split_off(indptr, indices, values, members, n_left, direction)
        _set_direction(indptr, indices, values, members, n_left, left, right, direction)
        _split_off(indptr, indices, values, members, n_left, direction)
    for m in range(n):
        for p in range(indptr[members[m]], indptr[members[m] + 1]):
            direction[indices[p]] = np.float32(0.0)
