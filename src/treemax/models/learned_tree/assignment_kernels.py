"""Assignment of labels to the children of the nodes of a learned tree: Algorithm 2 from the root down."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from treemax.kernels.assignment import take_best_bounded
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
    """The mean probability of each child over the rows of each label: p_j|i, equation 9."""
    weights, biases, width = vectors.weights, vectors.biases, vectors.width
    first, n_children = np.uint64(first), np.uint64(n_children)
    count = np.uint64(n_vectors(n_children))
    shares = np.empty(n_children, np.float32)
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
    """p_j|i from the running sums of Algorithm 1. A label new at this node has the prior, if any, or a count of zero."""
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
    total = max(1.0, counts.sum())
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
    starts = np.zeros(held.size, np.int64)
    for j in range(1, held.size):
        starts[j] = starts[j - 1] + held[j - 1]
    for i in range(labels.size):
        child = child_of_label[i]
        moved[starts[child]] = labels[i]
        starts[child] += 1
    labels[:] = moved[: labels.size]


@kernel
def _room_below(n_labels, arity, levels):
    """Capacity of a node with `levels` levels below it, if less than `n_labels`."""
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
    padded = max(n_labels, n_children)
    padded += (n_children - padded) % (n_children - 1)
    child_of_label = np.full(n_labels, -1, np.int64)
    held = np.zeros(n_children, np.int64)
    room = _room_below(n_labels, arity, levels)
    take_best_bounded(scores, padded, room, child_of_label, held)
    _sort_by_child(labels, child_of_label, held, moved)
    return held


@kernel
def reassign(labels, counts, hidden, row_starts, shape, vectors):
    """AssignLabels of Algorithm 2 from the current probabilities: the rows of label i are
    `hidden[row_starts[i]:row_starts[i + 1]]`."""
    nothing = (np.empty(0, np.int64), np.empty((0, 0), np.float32), np.empty(0, np.float32))
    renewed = np.empty(shape.n_children.size, np.bool_)
    _reassign(labels, counts, hidden.ravel(), row_starts, nothing, shape, vectors, renewed)


@kernel
def reassign_by_sums(labels, statistics, shape, vectors, renewed):
    """AssignLabels of Algorithm 2 from running sums: sorted keys node * labels + label, and for each the sums of
    probabilities and the number of examples. `renewed` marks the nodes that were reset."""
    none, no_rows = np.empty(0, np.float64), np.empty(0, np.float32)
    _reassign(labels, none, no_rows, np.empty(0, np.int64), statistics, shape, vectors, renewed)


@kernel
def _reassign(labels, counts, hidden, row_starts, statistics, shape, vectors, renewed):
    """Assign labels to children from the root down.

    A node keeps its number and its vectors while its number of children stays the same. A leaf that becomes an inner
    node gets a free number and zero vectors. `labels` is sorted by leaf.
    """
    arity, most_depth, vectors_a_node, children, n_children, rule, prior_count = shape
    n_labels, width = labels.size, np.int64(vectors.width)
    moved = np.empty(n_labels, np.int64)
    used = np.zeros(n_children.size, np.bool_)
    # Queue of nodes: number (-1: not known yet), labels, depth, and where to write the number.
    nodes, starts, stops, depths, places = [np.zeros(n_children.size + 1, np.int64) for _ in range(5)]
    late = np.zeros(n_children.size + 1, np.int64)
    n_late = 0
    stops[0] = n_labels
    places[0] = -1
    n_known = 1  # entries
    at = 0
    free = 0
    late_at = 0
    used[0] = True
    while at < n_known or late_at < n_late:
        if at < n_known:
            entry = at
            at += 1
            if nodes[entry] < 0:
                late[n_late] = entry
                n_late += 1
                continue
            node = nodes[entry]
            fresh = False
        else:  # numbers not in use by now are free
            entry = late[late_at]
            late_at += 1
            while used[free]:
                free += 1
            node = free
            used[node] = True
            children[places[entry]] = node
            fresh = True
        here = labels[starts[entry] : stops[entry]]
        fresh = fresh or n_children[node] != min(arity, here.size)
        n_here = min(arity, here.size)
        first = node * vectors_a_node
        renewed[node] = fresh
        if fresh:
            vectors.weights[first * width : (first + vectors_a_node) * width] = 0.0
            vectors.biases[first : first + vectors_a_node] = 0.0
            vectors.squares[first : first + vectors_a_node] = np.float32(1e-8)
        scores = np.zeros((here.size, n_here))
        if fresh:
            _prefer_in_turn(scores)
        else:
            if row_starts.size > 0:
                counts_here = counts[here]
                _mean_shares(here, hidden, row_starts, vectors, first, n_here, scores)
            else:
                counts_here = np.zeros(here.size)
                _summed_shares(here, node, n_labels, statistics, prior_count, scores, counts_here)
            score_pairs(counts_here, scores, rule)
        held = _divide(here, arity, most_depth - depths[entry] - 1, scores, moved)
        begin = starts[entry]
        for j in range(n_here):
            place = node * arity + j
            if held[j] == 1:
                children[place] = -1 - labels[begin]
            else:
                kept = not fresh and children[place] >= 0
                nodes[n_known] = children[place] if kept else -1
                if kept:
                    used[children[place]] = True
                starts[n_known], stops[n_known] = begin, begin + held[j]
                depths[n_known], places[n_known] = depths[entry] + 1, place
                n_known += 1
            begin += held[j]
        n_children[node] = n_here


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
                    share = count[0] / max(total, 1.0)
                    for j in range(n_here):
                        distance += share * abs(shares[0, j] - of_children[j])
                        impurity += share * min(shares[0, j], 1.0 - shares[0, j])
            if turn == 0:
                of_children /= max(total, 1.0)
        found[v] = total, 2.0 / n_here * distance, of_children.min(), impurity / n_here
