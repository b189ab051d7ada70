"""Short sorted lists and heaps of nodes with scores, for searches through trees."""

from __future__ import annotations

import numpy as np

from treemax.kernels.jit import bare_inline_kernel, bare_kernel

FOR_FIRST, FOR_ALLOWED = np.int64(1), np.int64(2)  # a node may lead to the best of all labels, or of the allowed ones
HUGE = np.float32(3e38)


@bare_kernel
def _place(node, score, nodes, scores, at):
    """Shift smaller entries down from `at`, and insert the node."""
    while at > 0 and scores[at - 1] < score:
        scores[at] = scores[at - 1]
        nodes[at] = nodes[at - 1]
        at -= 1
    scores[at] = score
    nodes[at] = node


@bare_inline_kernel
def offer(node, score, nodes, scores, filled):
    """Insert into a short list sorted by score, ties in order of insertion; return its length."""
    room = np.int64(nodes.size)
    if filled < room:
        _place(node, score, nodes, scores, filled)
        return filled + 1
    if score > scores[room - 1]:
        _place(node, score, nodes, scores, room - 1)
    return filled


@bare_inline_kernel
def pad(nodes, scores, filled):
    """Fill the rest of a short list with -1 and 0."""
    for j in range(filled, nodes.size):
        nodes[j] = -1
        scores[j] = np.float32(0.0)


@bare_inline_kernel
def opened_for(purpose, score, worst_first, worst_allowed, n_first, n_allowed, width):
    """Return the part of a node's purpose for which it is opened: its score is above the worst answer, and fewer than
    `width` nodes of its level were opened for that."""
    if score <= worst_first or n_first == width:
        purpose &= FOR_ALLOWED
    if score <= worst_allowed or n_allowed == width:
        purpose &= FOR_FIRST
    return purpose


@bare_inline_kernel
def _before(score, node, other_score, other_node):
    """Return whether an entry comes first: by larger score, ties by lower node."""
    return score > other_score or (score == other_score and node < other_node)


@bare_inline_kernel
def push(heap_nodes, heap_scores, size, node, score):
    """Push onto a max-heap; return its new size."""
    at = size
    while at > 0:
        above = (at - 1) // 2
        if not _before(score, node, heap_scores[above], heap_nodes[above]):
            break
        heap_scores[at], heap_nodes[at] = heap_scores[above], heap_nodes[above]
        at = above
    heap_scores[at], heap_nodes[at] = score, node
    return size + 1


@bare_inline_kernel
def pop(heap_nodes, heap_scores, size):
    """Pop the largest entry, moved to position size - 1; return the new size."""
    top_node, top_score = heap_nodes[0], heap_scores[0]
    last, at = size - 1, 0
    node, score = heap_nodes[last], heap_scores[last]
    while 2 * at + 1 < last:
        child = 2 * at + 1
        other = child + 1
        if other < last and _before(heap_scores[other], heap_nodes[other], heap_scores[child], heap_nodes[child]):
            child = other
        if not _before(heap_scores[child], heap_nodes[child], score, node):
            break
        heap_scores[at], heap_nodes[at] = heap_scores[child], heap_nodes[child]
        at = child
    heap_scores[at], heap_nodes[at] = score, node
    heap_nodes[last], heap_scores[last] = top_node, top_score
    return last
