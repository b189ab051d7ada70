"""Greedy assignment of labels to the children of a node (Jernite, Choromanska and Sontag, 2017)."""

from __future__ import annotations

import numpy as np

from treemax.kernels.intrinsics import minimum
from treemax.kernels.jit import inline_kernel, kernel

OPEN = np.int64(-1)  # a label without a child


@kernel
def take_pairs(order, n_children, room, child_of_label):
    """Assign labels greedily to children with free capacity, from the best (label, child) pair to the worst.

    `order` has pairs as label * n_children + child. Updates `room` and `child_of_label`.
    """
    left = child_of_label.size
    for pair in order:
        label = pair // n_children
        child = pair % n_children
        if child_of_label[label] == OPEN and room[child] > 0:
            child_of_label[label] = child
            room[child] -= 1
            left -= 1
            if left == 0:
                return


@inline_kernel
def _is_complete(held, n_children):
    return held > 0 and (held - 1) % (n_children - 1) == 0


@inline_kernel
def _is_closed(held, n_children, most, blocks, scarce):
    """Return whether a child with `held` labels gets no more; a closed child stays closed."""
    return held > 0 and (scarce or held >= most or (blocks == 0 and _is_complete(held, n_children)))


@inline_kernel
def _comes_first(a, b, best):
    return best[a] > best[b] or (best[a] == best[b] and a < b)


@kernel
def _sift_down(heap, size, at, best):
    """Restore the heap below a position."""
    label = heap[at]
    while True:
        below = 2 * at + 1
        if below >= size:
            break
        if below + 1 < size and _comes_first(heap[below + 1], heap[below], best):
            below += 1
        if not _comes_first(heap[below], label, best):
            break
        heap[at] = heap[below]
        at = below
    heap[at] = label


@kernel
def take_best_bounded(scores, n_labels, most, child_of_label, held):
    """Assign labels so that the number of labels of each child is 1 modulo (n_children - 1): CheckFull of Algorithm 2.

    The tree below each child can then be full. A child with such a number may only grow by a whole block of
    n_children - 1 labels; `blocks` counts the remaining ones. A child gets at most `most` labels, itself such a number,
    which bounds the depth of the tree; and no child stays empty while there are labels, which could happen if
    `n_labels` exceeds their number.

    Takes scores of shape (labels, children) instead of sorted pairs: a heap has every label with its best child. If
    that child has closed, the label is pushed again with the best open one.
    """
    n_children = scores.shape[1]
    blocks = (n_labels - n_children) // (n_children - 1)
    left = child_of_label.size
    empty = minimum(n_children, left)
    heap, best, wanted = np.empty(left, np.int64), np.empty(left, scores.dtype), np.empty(left, np.int64)
    for label in range(left):
        heap[label] = label
        wanted[label] = np.argmax(scores[label])
        best[label] = scores[label, wanted[label]]
    for at in range(left // 2 - 1, -1, -1):
        _sift_down(heap, left, at, best)
    while left > 0:
        label, scarce = heap[0], left <= empty
        child = wanted[label]
        if not _is_closed(held[child], n_children, most, blocks, scarce):
            blocks -= _is_complete(held[child], n_children)
            empty -= held[child] == 0
            child_of_label[label] = child
            held[child] += 1
            left -= 1
            heap[0] = heap[left]
        else:
            wanted[label] = OPEN
            for other in range(n_children):
                if (wanted[label] == OPEN or scores[label, other] > best[label]) and not _is_closed(
                    held[other], n_children, most, blocks, scarce
                ):
                    wanted[label] = other
                    best[label] = scores[label, other]
        _sift_down(heap, left, 0, best)
