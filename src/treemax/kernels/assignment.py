"""Giving labels to the children of a node, best pairs first (Jernite, Choromanska and Sontag, 2017)."""

from __future__ import annotations

import numpy as np

from treemax.kernels.jit import inline_kernel, kernel

OPEN = np.int64(-1)  # a label without a child


@kernel
def take_pairs(order, n_children, room, child_of_label):
    """Walk (label, child) pairs from the best to the worst; a label goes where there is room first.

    `order` has pairs as label * n_children + child. Both `room` and `child_of_label` are changed.
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


@kernel
def take_pairs_well_formed(order, n_children, n_labels, child_of_label, held):
    """The same where no child has a size of its own, but each must end with a number of labels that is
    1 modulo (n_children - 1), so that the tree below it can be full: CheckFull of Algorithm 2.

    A child that holds such a number may go on only by a whole block of n_children - 1 labels. `blocks`
    counts those that are left.
    """
    blocks = (n_labels - n_children) // (n_children - 1)
    left = n_labels
    for pair in order:
        label = pair // n_children
        child = pair % n_children
        if child_of_label[label] != OPEN:
            continue
        begins_block = _is_complete(held[child], n_children)
        if begins_block and blocks == 0:
            continue
        if begins_block:
            blocks -= 1
        child_of_label[label] = child
        held[child] += 1
        left -= 1
        if left == 0:
            return


@inline_kernel
def _is_complete(held, n_children):
    return held > 0 and (held - 1) % (n_children - 1) == 0


@kernel
def take_pairs_bounded(order, n_children, n_labels, most, child_of_label, held):
    """The same as `take_pairs_well_formed` with two bounds: a child gets no more than `most` labels, itself a
    well-formed number, so that the tree below it need not be too deep; and no child stays empty while there are
    labels, as could happen where `n_labels` is more than there are."""
    blocks = (n_labels - n_children) // (n_children - 1)
    left = child_of_label.size
    empty = min(n_children, left)
    for pair in order:
        label = pair // n_children
        child = pair % n_children
        if child_of_label[label] != OPEN:
            continue
        begins_block = _is_complete(held[child], n_children)
        if held[child] > 0 and (left <= empty or held[child] >= most or (begins_block and blocks == 0)):
            continue
        if begins_block:
            blocks -= 1
        if held[child] == 0:
            empty -= 1
        child_of_label[label] = child
        held[child] += 1
        left -= 1
        if left == 0:
            return
