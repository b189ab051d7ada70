"""The updates of an online label tree's classifiers."""

from __future__ import annotations

import numpy as np

from treemax.kernels import atomic
from treemax.kernels.jit import bare_inline_kernel, bare_kernel, kernel
from treemax.models.online_label_tree.growth_kernels import update_tree
from treemax.models.online_label_tree.kernels import (
    AUXILIARY_UPDATES,
    FIRST,
    LANES,
    LINES_PLANNED,
    LINES_WANTED,
    ONE,
    SLOTS_PLANNED,
    SLOTS_WANTED,
    UPDATES,
    fits,
    has_free_lane,
    table_bits,
    update_block,
)


@bare_kernel
def _assign_to_nodes(labels, nodes, leaf_of, scratch):
    """Algorithm 9, AssignToNodes: collects the positive nodes, and marks each in its parent's block. Negative
    nodes are the other children of positive ones: they learn with their block."""
    count = 0
    for j in range(labels.size):
        node = leaf_of[labels[j]]
        while node >= 0 and not scratch.is_positive[node]:
            scratch.is_positive[node] = True
            scratch.positive[count] = node
            count += 1
            place = nodes.place[node]
            scratch.targets[place >> 4] |= np.uint32(1) << np.uint32(place & 15)
            node = nodes.parent[node]
    return count


@bare_inline_kernel
def _slots_needed(block, n_features, blocks):
    """Return an upper bound of the slots that a table needs while it grows by so many features."""
    n_records = blocks.filled[block] + n_features
    return 2 << table_bits(n_records) if 4 * n_records > 3 << (blocks.table[block] & 63) else 0


@bare_kernel
def _plan(count, n_features, nodes, blocks, store, counts, scratch):
    """Reserve capacity for the update of a row; return the lines and slots reserved, or (-1, 0) if it is exhausted."""
    lines, slots = n_features, _slots_needed(FIRST, n_features, blocks)
    for i in range(count):
        block = nodes.first_block[scratch.positive[i]]
        while block >= 0:
            lines += n_features
            slots += _slots_needed(block, n_features, blocks)
            block = blocks.following[block]
    others = atomic.fetch_add(counts, LINES_PLANNED, lines)
    other_slots = atomic.fetch_add(counts, SLOTS_PLANNED, slots)
    if not fits(others + lines, other_slots + slots, store, counts):
        atomic.fetch_add(counts, LINES_PLANNED, -lines)
        atomic.fetch_add(counts, SLOTS_PLANNED, -slots)
        counts[LINES_WANTED], counts[SLOTS_WANTED] = lines, slots
        return -1, 0
    return lines, slots


@bare_kernel
def _update_classifiers(labels, x, learns_root, nodes, blocks, store, leaf_of, counts, scratch, learner):
    """Algorithm 7, UpdateClassifiers, for one row; False, with nothing changed, if the capacity is exhausted."""
    indices, values = x
    count = _assign_to_nodes(labels, nodes, leaf_of, scratch)
    lines, slots = _plan(count, indices.size, nodes, blocks, store, counts, scratch)
    if lines >= 0 and learns_root:
        targets = np.uint32(1 if count else 0)
        update_block(FIRST, targets, indices, values, blocks, store, counts, scratch.found, learner)
        counts[UPDATES] += 1
    scratch.targets[0] = 0
    for i in range(count):
        node = scratch.positive[i]
        scratch.is_positive[node] = False
        block = nodes.first_block[node]
        last = block
        while block >= 0:
            if lines >= 0:
                update_block(
                    block, scratch.targets[block], indices, values, blocks, store, counts, scratch.found, learner
                )  # fmt: skip
            scratch.targets[block] = 0
            last, block = block, blocks.following[block]
        if lines >= 0 and last >= 0:
            counts[UPDATES] += nodes.n_children[node]
            counts[AUXILIARY_UPDATES] += has_free_lane(last, blocks)
    if lines < 0:
        return False
    atomic.fetch_add(counts, LINES_PLANNED, -lines)
    atomic.fetch_add(counts, SLOTS_PLANNED, -slots)
    return True


@kernel
def learn(rows, targets, order, start, learns_root, rates, settings, tree, scratch):
    """Algorithm 3, OPLT.Train, on the rows order[start:]; with a tree that has all labels, Algorithm 1.

    Returns the number of rows learned, which is smaller if an array must be enlarged first. With `learns_root` the
    root has a classifier too, of whether a row has any label. The settings are AdaGrad's epsilon, the least gradient
    and whether AdaGrad is used, and those of growth. Row weights multiply the gradients; empty for one.
    """
    indptr, indices, values = rows
    target_indptr, target_ids, row_weights = targets
    constants, growth = settings
    nodes, blocks, store, leaf_of, counts = tree
    room = np.empty(LANES, np.float32)
    for i in range(start, order.size):
        row = order[i]
        labels = target_ids[target_indptr[row] : target_indptr[row + 1]]
        own = slice(indptr[row], indptr[row + 1])
        x = indices[own], values[own]
        weight = row_weights[row] if row_weights.size else ONE
        learner = (rates[i], constants[0], constants[1], constants[2], weight)
        found = scratch.found
        if not update_tree(labels, x, growth, nodes, blocks, store, leaf_of, counts, found, room):
            return i
        if not _update_classifiers(labels, x, learns_root, nodes, blocks, store, leaf_of, counts, scratch, learner):
            return i
    return order.size
