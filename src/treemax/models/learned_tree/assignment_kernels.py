"""Assignment of labels to the children of the nodes of a learned tree: Algorithm 2 from the root down."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from treemax.kernels.assignment import take_best_bounded
from treemax.kernels.intrinsics import empty, maximum, minimum, zeros
from treemax.kernels.jit import fast_kernel, kernel
from treemax.models.learned_tree.kernels import n_vectors, score_all, softmax_of_children

DIFFERENCE, GRADIENT, LOG_GRADIENT = 0, 1, 2  # scores of a pair of label and child


class Shape(NamedTuple):
    """The tree: the children of node v are `children[v * arity:v * arity + n_children[v]]`."""

    arity: int
    most_depth: int
    vectors_a_node: int
    children: np.ndarray
    n_children: np.ndarray
    rule: int  # of the scores
    prior_count: float  # examples that a new pair of node and label is taken to have had


@fast_kernel
def _mean_shares(labels, hidden, row_starts, vectors, first, n_children, means):
    """Compute the mean probability of each child over the rows of each label: p_j|i, equation 9."""
    weights, biases, width = vectors.weights, vectors.biases, vectors.width
    first, n_children = np.uint64(first), np.uint64(n_children)
    count = np.uint64(n_vectors(n_children))
    shares = empty(n_children, np.float32)
    for i in range(labels.size):
        start, stop = row_starts[labels[i]], row_starts[labels[i] + 1]
        for r in range(start, stop):
            score_all(hidden, np.uint64(r) * width, weights, biases, first, count, width, shares, np.uint64(0))
            softmax_of_children(shares, np.uint64(0), n_children)
            for j in range(shares.size):
                means[i, j] += shares[j]
        if stop - start > 1:
            for j in range(shares.size):
                means[i, j] /= stop - start


@kernel
def _summed_shares(labels, node, n_labels, statistics, prior_count, means, counts):
    """Return p_j|i from the running sums of Algorithm 1.

    A label that is new at this node has the prior, if any, or a count of zero."""
    keys, sums, seen = statistics
    n_children = means.shape[1]
    for i in range(labels.size):
        if prior_count > 0.0:
            counts[i] = prior_count
            means[i] = 0.5 / n_children
            means[i, labels[i] % n_children] += 0.5
        key = node * n_labels + labels[i]
        place = np.searchsorted(keys, key)
        if place < keys.size and keys[place] == key and seen[place] > 0:
            counts[i] = seen[place]
            for j in range(means.shape[1]):
                means[i, j] = sums[place, j] / seen[place]


@kernel
def score_pairs(counts, means, rule):
    """Replace p_j|i by the scores of pairs of label and child."""
    total = maximum(1.0, counts.sum())
    of_children = np.zeros(means.shape[1])
    for i in range(counts.size):
        for j in range(of_children.size):
            of_children[j] += counts[i] / total * means[i, j]
    for i in range(counts.size):
        share = counts[i] / total
        for j in range(of_children.size):
            more = means[i, j] - of_children[j]
            if rule == GRADIENT:
                more = np.sign(more)
            elif rule == LOG_GRADIENT:
                more = np.sign(more) * means[i, j]
            means[i, j] = share * (1.0 - share) * more


@kernel
def _prefer_in_turn(scores):
    """Round-robin scores of labels without statistics: the first prefers the first child, the next the second..."""
    n_children = scores.shape[1]
    for i in range(scores.shape[0]):
        for j in range(n_children):
            scores[i, (i + j) % n_children] = -j


@kernel
def _sort_by_child(labels, child_of_label, held, moved):
    """Sort labels by child, stably."""
    starts = zeros(held.size, np.int64)
    for j in range(1, held.size):
        starts[j] = starts[j - 1] + held[j - 1]
    for i in range(labels.size):
        child = child_of_label[i]
        moved[starts[child]] = labels[i]
        starts[child] += 1
    labels[:] = moved[: labels.size]


@kernel
def _room_below(n_labels, arity, levels):
    """Return the capacity of a node with `levels` levels below it, if less than `n_labels`."""
    room = 1
    for _ in range(levels):
        room *= arity
        if room >= n_labels:
            break
    return room


@kernel
def _divide(labels, arity, levels, scores, moved):
    """Algorithm 2 at one node: sorts the labels by child, and returns the number of labels of each child."""
    n_labels, n_children = scores.shape
    padded = maximum(n_labels, n_children)
    padded += (n_children - padded) % (n_children - 1)
    child_of_label = np.full(n_labels, -1, np.int64)
    held = zeros(n_children, np.int64)
    room = _room_below(n_labels, arity, levels)
    take_best_bounded(scores, padded, room, child_of_label, held)
    _sort_by_child(labels, child_of_label, held, moved)
    return held


@kernel
def reassign(labels, counts, hidden, row_starts, shape, vectors):
    """AssignLabels of Algorithm 2 from the current probabilities: the rows of label i are
    `hidden[row_starts[i]:row_starts[i + 1]]`."""
    nothing = (empty(0, np.int64), np.empty((0, 0), np.float32), empty(0, np.float32))
    renewed = empty(shape.n_children.size, np.bool_)
    _reassign(labels, counts, hidden.ravel(), row_starts, nothing, shape, vectors, renewed)


@kernel
def reassign_by_sums(labels, statistics, shape, vectors, renewed):
    """AssignLabels of Algorithm 2 from running sums: sorted keys node * labels + label, and for each the sums of
    probabilities and the number of examples. `renewed` marks the nodes that were reset."""
    none, no_rows = empty(0, np.float64), empty(0, np.float32)
    _reassign(labels, none, no_rows, empty(0, np.int64), statistics, shape, vectors, renewed)


class _Queue(NamedTuple):
    """Nodes to divide: their numbers (-1: none yet), ranges of labels, depths, and places in the parents' children."""

    nodes: np.ndarray
    starts: np.ndarray
    stops: np.ndarray
    depths: np.ndarray
    places: np.ndarray


@kernel
def _reassign(labels, counts, hidden, row_starts, statistics, shape, vectors, renewed):
    """Assign labels to children from the root down.

    A node keeps its number and its vectors while its number of children stays the same. A leaf that becomes an inner
    node gets a free number and zero vectors. `labels` is sorted by leaf.
    """
    n_nodes = shape.n_children.size
    moved = empty(labels.size, np.int64)
    used = zeros(n_nodes, np.bool_)
    used[0] = True
    columns = np.zeros((5, n_nodes + 1), np.int64)
    queue = _Queue(columns[0], columns[1], columns[2], columns[3], columns[4])
    queue.stops[0] = labels.size
    without_number = zeros(n_nodes + 1, np.int64)  # entries, divided after those that keep their number
    n_queued, at, n_without, at_without, free = 1, 0, 0, 0, 0
    while at < n_queued or at_without < n_without:
        if at < n_queued:
            entry = at
            at += 1
            if queue.nodes[entry] < 0:
                without_number[n_without] = entry
                n_without += 1
                continue
        else:  # numbers not in use by now are free
            entry = without_number[at_without]
            at_without += 1
            while used[free]:
                free += 1
            used[free] = True
            queue.nodes[entry] = shape.children[queue.places[entry]] = free
            shape.n_children[free] = 0
        node, here = queue.nodes[entry], labels[queue.starts[entry] : queue.stops[entry]]
        n_children = minimum(shape.arity, here.size)
        renewed[node] = shape.n_children[node] != n_children
        scores = np.zeros((here.size, n_children))
        if renewed[node]:
            _reset_vectors(vectors, node * shape.vectors_a_node, shape.vectors_a_node)
            _prefer_in_turn(scores)
        else:
            _score_labels(here, counts, hidden, row_starts, statistics, node, labels.size, shape, vectors, scores)
        held = _divide(here, shape.arity, shape.most_depth - queue.depths[entry] - 1, scores, moved)
        n_queued = _place_children(entry, labels, held, shape, renewed[node], used, queue, n_queued)
        shape.n_children[node] = n_children


@kernel
def _reset_vectors(vectors, first, count):
    """Set vectors and biases to zero, and the sums of squared gradients to their start."""
    width = np.int64(vectors.width)
    vectors.weights[first * width : (first + count) * width] = 0.0
    vectors.biases[first : first + count] = 0.0
    vectors.squares[first : first + count] = np.float32(1e-8)


@kernel
def _score_labels(here, counts, hidden, row_starts, statistics, node, n_labels, shape, vectors, scores):
    """Compute scores of the pairs of label and child of a node, from rows or from running sums."""
    if row_starts.size > 0:
        counts_here = counts[here]
        first = node * shape.vectors_a_node
        _mean_shares(here, hidden, row_starts, vectors, first, scores.shape[1], scores)
    else:
        counts_here = np.zeros(here.size)
        _summed_shares(here, node, n_labels, statistics, shape.prior_count, scores, counts_here)
    score_pairs(counts_here, scores, shape.rule)


@kernel
def _place_children(entry, labels, held, shape, is_renewed, used, queue, n_queued):
    """Store a child with one label as a leaf and queue the others; return the length of the queue."""
    begin = queue.starts[entry]
    for j in range(held.size):
        place = queue.nodes[entry] * shape.arity + j
        if held[j] == 1:
            shape.children[place] = -1 - labels[begin]
        else:
            keeps_number = not is_renewed and shape.children[place] >= 0
            queue.nodes[n_queued] = shape.children[place] if keeps_number else -1
            if keeps_number:
                used[shape.children[place]] = True
            queue.starts[n_queued], queue.stops[n_queued] = begin, begin + held[j]
            queue.depths[n_queued], queue.places[n_queued] = queue.depths[entry] + 1, place
            n_queued += 1
        begin += held[j]
    return n_queued


@kernel
def node_qualities(labels, ranges, firsts, n_children, counts, hidden, row_starts, statistics, vectors, found):
    """Of each node, whose labels are `labels[ranges[v, 0]:ranges[v, 1]]`: the number of examples, J (equation 6), the least
    p_j (definition 1) and the sum of definition 2.

    p_j|i are means over the rows of a label, `hidden[row_starts[i]:row_starts[i + 1]]`, or running sums as in
    `reassign_by_sums`, with `ranges[v, 2]` as the number of the node. Probabilities are computed twice and not kept: a
    node may have many labels and many children.
    """
    count = np.zeros(1)
    for v in range(n_children.size):
        start, stop, node = ranges[v]
        n_here = n_children[v]
        shares, of_children = np.zeros((1, n_here)), np.zeros(n_here)
        total = distance = impurity = 0.0
        for turn in range(2):
            for at in range(start, stop):
                label = labels[at : at + 1]
                shares[:] = 0.0
                if row_starts.size > 0:
                    count[0] = counts[labels[at]]
                    _mean_shares(label, hidden, row_starts, vectors, firsts[v], n_here, shares)
                else:
                    count[0] = 0.0
                    _summed_shares(label, node, counts.size, statistics, 0.0, shares, count)
                if turn == 0:
                    total += count[0]
                    of_children += count[0] * shares[0]
                else:
                    share = count[0] / maximum(total, 1.0)
                    for j in range(n_here):
                        distance += share * abs(shares[0, j] - of_children[j])
                        impurity += share * minimum(shares[0, j], 1.0 - shares[0, j])
            if turn == 0:
                of_children /= maximum(total, 1.0)
        found[v] = total, 2.0 / n_here * distance, of_children.min(), impurity / n_here
