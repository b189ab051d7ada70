"""LOMTree of Choromanska and Langford (2015): algorithm 1, with the names of the paper.

The tree is binary. An inner node has a regressor; a row goes left if its score is negative, else right. A *tally* is
the record of a label at a node: its count, and the sum of its scores. The tallies are in one hash table, and those of
a node also form a linked list.

Nodes removed by a swap keep their number, regressor and tallies until the model is compacted; nodes that replace them
get new ones. So the hash table needs no deletion.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from treemax.kernels.arithmetic import MOST_COUNT
from treemax.kernels.intrinsics import maximum, minimum, zeros
from treemax.kernels.jit import bare_inline_kernel, bare_kernel, kernel
from treemax.kernels.queues import offer, pad
from treemax.kernels.scorers import (
    EMPTY,
    TOGETHER,
    buckets_needed,
    pair,
    prefetch_row,
    prefetch_score,
    release,
    reserve,
    row_of,
    score_of_row,
    scores,
    slot,
    update,
)

LEFT, RIGHT = 0, 1
NODES, REGRESSORS, ROOT, INNER = 0, 1, 2, 3  # places in `used`
NONE = -1
DEEPEST = 64  # levels of regressors on a path, so that a row takes bounded time whatever the data
_ONE = np.float32(1.0)
_ZERO = np.float32(0.0)
_LOWER_HALF = np.uint64(0xFFFFFFFF)


class Nodes(NamedTuple):
    """The tree, with the paper's symbols in brackets."""

    used: np.ndarray  # numbers given to nodes, and to regressors; the root; inner nodes of the tree (t)
    parents: np.ndarray  # the root's is itself
    children: np.ndarray  # nodes x (left, right)
    regressors: np.ndarray  # index of the node's regressor plus 1; 0 at a leaf
    totals: np.ndarray  # rows that reached the node
    largest: np.ndarray  # the count of its most frequent label
    best: np.ndarray  # the most frequent label, the first to reach the count among ties; NONE without rows
    smallest: np.ndarray  # rows of the smallest leaf below (C)
    trained: np.ndarray  # rows that the regressor was trained on
    sums: np.ndarray  # of their scores; divided by `trained` it is the mean score (E)
    first: np.ndarray  # the slot of the first of its tallies, NONE without rows


class Tallies(NamedTuple):
    """The labels that reached each node: a hash table, whose arrays are the fields of one record."""

    used: np.ndarray  # occupied slots
    keys: np.ndarray  # node in the upper half, label in the lower
    sums: np.ndarray  # of the scores (m)
    counts: np.ndarray  # rows of the label that reached the node (l)
    trained: np.ndarray  # rows of the label that the regressor was trained on (n)
    following: np.ndarray  # the slot of the next tally of the node, or NONE


class Options(NamedTuple):
    """Options of the algorithm."""

    max_nodes: int  # inner nodes (T)
    swap_resistance: float  # (R_S)
    least_weight: float  # minimum weight of a row; 1 is the rule of the paper


class Rates(NamedTuple):
    """The learning rate, and the initial value of AdaGrad's sums."""

    regressors: np.float32
    initial: np.float32


# --- nodes -----------------------------------------------------------------------------------------------


@bare_inline_kernel
def update_smallest(node, nodes):
    """UpdateC: propagate the size of the smallest leaf from a node to its ancestors."""
    root = nodes.used[ROOT]
    while node != root and nodes.smallest[nodes.parents[node]] != nodes.smallest[node]:
        node = nodes.parents[node]
        left, right = nodes.children[node, LEFT], nodes.children[node, RIGHT]
        nodes.smallest[node] = minimum(nodes.smallest[left], nodes.smallest[right])


@bare_inline_kernel
def _smallest_leaf(nodes):
    node = nodes.used[ROOT]
    while nodes.regressors[node]:
        left, right = nodes.children[node, LEFT], nodes.children[node, RIGHT]
        node = left if nodes.smallest[left] == nodes.smallest[node] else right
    return node


@bare_inline_kernel
def _take_out_smallest_leaf(nodes):
    """Do the first half of Swap: remove the smallest leaf and its parent, which is replaced by the leaf's sibling."""
    leaf = _smallest_leaf(nodes)
    parent = nodes.parents[leaf]
    above = nodes.parents[parent]
    sibling = nodes.children[parent, RIGHT if nodes.children[parent, LEFT] == leaf else LEFT]
    if parent == nodes.used[ROOT]:
        nodes.used[ROOT] = sibling
        nodes.parents[sibling] = sibling
    else:
        nodes.children[above, LEFT if nodes.children[above, LEFT] == parent else RIGHT] = sibling
        nodes.parents[sibling] = above
        update_smallest(sibling, nodes)
    nodes.used[INNER] -= 1


@bare_inline_kernel
def _wants_to_split(leaf, depth, nodes, options):
    """Return whether a leaf has several labels, and there is a free node or the swap criterion holds."""
    if nodes.largest[leaf] == nodes.totals[leaf] or depth == DEEPEST:
        return False
    gain = nodes.smallest[leaf] - nodes.largest[leaf]
    weakest = nodes.smallest[nodes.used[ROOT]]
    return nodes.used[INNER] < options.max_nodes or (
        weakest < nodes.smallest[leaf] and gain > options.swap_resistance * (weakest + 1)
    )


@bare_inline_kernel
def _split(leaf, nodes, options):
    """Split a leaf into two new ones, each with half of its size."""
    if nodes.used[INNER] >= options.max_nodes:
        _take_out_smallest_leaf(nodes)
    left = nodes.used[NODES]
    nodes.used[NODES] += 2
    nodes.used[REGRESSORS] += 1
    nodes.used[INNER] += 1
    nodes.regressors[leaf] = nodes.used[REGRESSORS]
    size = nodes.smallest[leaf]
    for side in (LEFT, RIGHT):
        child = left + side
        nodes.children[leaf, side], nodes.parents[child] = child, leaf
        nodes.best[child] = nodes.first[child] = NONE
        nodes.smallest[child] = size // 2 if side == LEFT else size - size // 2
    update_smallest(left, nodes)


@bare_inline_kernel
def _tally(node, label, nodes, tallies):
    """Return the slot of a label at a node, created if missing."""
    key = pair(node, label)
    at = slot(tallies.keys, key)
    if tallies.keys[at] != key:
        tallies.keys[at] = key
        tallies.following[at] = nodes.first[node]
        nodes.first[node] = at
        tallies.used[0] += 1
    return at


@bare_inline_kernel
def _count(node, label, nodes, tallies):
    """Count the label at a node; returns its tally."""
    at = _tally(node, label, nodes, tallies)
    count = minimum(np.int64(tallies.counts[at]) + np.int64(1), np.int64(MOST_COUNT))
    tallies.counts[at] = count
    nodes.totals[node] += 1
    if count > nodes.largest[node]:
        nodes.largest[node], nodes.best[node] = count, label
    return at


# --- rows ------------------------------------------------------------------------------------------------


@bare_inline_kernel
def _score(x, node, nodes, regressors, one):
    scores(regressors, nodes.regressors[node] - 1, 1, x, one)
    return one[0]


@bare_inline_kernel
def _child(node, score, nodes):
    return np.int64(nodes.children[node, LEFT if score < _ZERO else RIGHT])


@bare_inline_kernel
def _with_rows(leaf, nodes):
    return leaf if nodes.totals[leaf] else np.int64(nodes.parents[leaf])


@bare_inline_kernel
def _descend(x, node, nodes, regressors, one):
    """Return the leaf of a row below a node; its parent if the leaf has no rows yet."""
    while nodes.regressors[node]:
        node = _child(node, _score(x, node, nodes, regressors, one), nodes)
    return _with_rows(node, nodes)


@bare_kernel
def _descend_together(rows, order, first, last, nodes, regressors, one, ends, descending, learns):
    """Write the node without a regressor that each of the rows order[first:last] reaches to `ends`.

    They descend a level at a time, so that memory is prefetched for all of them at once; with `learns`, also what updates of
    the regressors read.
    """
    n = last - first
    for j in range(n):
        ends[j], descending[j] = nodes.used[ROOT], j
        prefetch_row(regressors, rows, order[first + j])
    while n:
        left = 0
        for q in range(n):
            j = descending[q]
            regressor = nodes.regressors[ends[j]]
            if regressor:
                prefetch_score(regressors, regressor - 1, rows, order[first + j], learns)
                descending[left] = j
                left += 1
        n = left
        for q in range(n):
            j = descending[q]
            score = score_of_row(regressors, nodes.regressors[ends[j]] - 1, rows, order[first + j], one)
            ends[j] = _child(ends[j], score, nodes)


@bare_inline_kernel
def _train_node(x, node, tally, score, nodes, tallies, regressors, options, rates, one):
    """Update the regressor towards the side of the label; returns the new score of the row.

    The side is right if the mean score of the label (e) is at least that of all rows (E); the row is weighted by
    their difference. The loss is the hinge loss.
    """
    own = tallies.sums[tally] / tallies.trained[tally] if tallies.trained[tally] else 0.0
    mean = nodes.sums[node] / nodes.trained[node] if nodes.trained[node] else 0.0
    side = -_ONE if mean > own else _ONE
    if side * score < _ONE:
        weight = np.float32(minimum(1.0, maximum(options.least_weight, abs(own - mean))))
        one[0] = -side * weight
        update(regressors, nodes.regressors[node] - 1, one, 1, x, rates.regressors, rates.initial)
        score = _score(x, node, nodes, regressors, one)
    tallies.sums[tally] += score
    tallies.trained[tally] = minimum(np.int64(tallies.trained[tally]) + np.int64(1), np.int64(MOST_COUNT))
    nodes.sums[node] += score
    nodes.trained[node] += 1
    return score


@bare_inline_kernel
def _train(x, label, nodes, tallies, regressors, options, rates, one):
    """Algorithm 1 for one row; returns the prediction before it was learned.

    The prediction is that of the leaf which the row reaches if no regressor is updated on the way: the same path, until
    an update changes the side. `above` is the prediction of an empty leaf: its parent's, before the row is counted.
    """
    node, depth = nodes.used[ROOT], 0
    asking, answer, above = True, np.int64(NONE), np.int64(NONE)
    while nodes.regressors[node]:
        above = np.int64(nodes.best[node])
        tally = _count(node, label, nodes, tallies)
        before = _score(x, node, nodes, regressors, one)
        score = _train_node(x, node, tally, before, nodes, tallies, regressors, options, rates, one)
        if asking and (before < _ZERO) != (score < _ZERO):
            other = _descend(x, _child(node, before, nodes), nodes, regressors, one)
            answer, asking = np.int64(nodes.best[other]) if other != node else above, False
        node = _child(node, score, nodes)
        depth += 1
    if asking:
        answer = np.int64(nodes.best[node]) if nodes.totals[node] else above
    tally = _count(node, label, nodes, tallies)
    if _wants_to_split(node, depth, nodes, options):
        _split(node, nodes, options)
        score = _train_node(x, node, tally, _ZERO, nodes, tallies, regressors, options, rates, one)
        node = _child(node, score, nodes)
        _count(node, label, nodes, tallies)
    nodes.smallest[node] += 1
    update_smallest(node, nodes)
    return answer


@bare_inline_kernel
def _has_room(nodes, tallies, regressors):
    """Return whether nothing can overflow with the next row, which splits at most one leaf."""
    return (
        nodes.totals.size - nodes.used[NODES] >= 2
        and regressors.bias.size > nodes.used[REGRESSORS]
        and tallies.keys.size * 3 // 4 - tallies.used[0] > DEEPEST
    )


@kernel
def learn(rows, labels, order, start, rates, nodes, tallies, regressors, options, found):
    """Learn the rows order[start:]; returns how many are done, fewer if a table must be enlarged first.

    `found` counts the rows whose label was predicted before they were learned.
    """
    one, ends, descending = zeros(1, np.float32), zeros(TOGETHER, np.int64), zeros(TOGETHER, np.int64)
    for i in range(start, order.size):
        if (i - start) % TOGETHER == 0:  # prefetches: the rows descend again one by one, while the regressors learn
            last = minimum(i + TOGETHER, order.size)
            _descend_together(rows, order, i, last, nodes, regressors, one, ends, descending, True)
        x, label = row_of(rows, order[i]), labels[order[i]]
        n_buckets = buckets_needed(regressors, x, DEEPEST)
        if not (_has_room(nodes, tallies, regressors) and reserve(regressors, n_buckets)):
            return i
        found[0] += _train(x, label, nodes, tallies, regressors, options, rates, one) == label
        release(regressors, n_buckets)
    return order.size


@kernel
def room_for(rows, i, regressors):
    """Return the maximum number of hash buckets that the regressors need for a row."""
    return buckets_needed(regressors, row_of(rows, i), DEEPEST)


@kernel
def predict(rows, order, nodes, tallies, regressors, weights, first, of_first, ids, probabilities):
    """Compute the most frequent of all labels of each row's leaf (`first`), those of the labels with a weight (`ids`),
    and their relative frequencies; either may have no columns."""
    one, n_first, k = zeros(1, np.float32), first.shape[1], ids.shape[1]
    ends, descending = zeros(TOGETHER, np.int64), zeros(TOGETHER, np.int64)
    for i in range(order.size):
        if i % TOGETHER == 0:
            last = minimum(i + TOGETHER, order.size)
            _descend_together(rows, order, i, last, nodes, regressors, one, ends, descending, False)
        node = _with_rows(ends[i % TOGETHER], nodes)
        best, n_leading, filled = nodes.best[node], 0, 0
        if best != NONE:
            most = np.float32(nodes.largest[node])
            if n_first:
                n_leading = offer(best, most, first[i], of_first[i], n_leading)
            if k and weights[best] > _ZERO:
                filled = offer(best, most, ids[i], probabilities[i], filled)
        at = nodes.first[node] if n_first > 1 or k else NONE
        while at != NONE:
            label, count = np.int64(tallies.keys[at] & _LOWER_HALF), np.float32(tallies.counts[at])
            if label != best:
                if n_first:
                    n_leading = offer(label, count, first[i], of_first[i], n_leading)
                if k and weights[label] > _ZERO:
                    filled = offer(label, count, ids[i], probabilities[i], filled)
            at = tallies.following[at]
        total = np.float32(nodes.totals[node])
        for c in range(n_leading):
            of_first[i, c] /= total
        for c in range(filled):
            probabilities[i, c] /= total
        pad(first[i], of_first[i], n_leading)
        pad(ids[i], probabilities[i], filled)


@kernel
def probabilities_of_all(rows, n_rows, nodes, tallies, regressors, out):
    """Compute the relative frequency of every label in each row's leaf; `out` must be zero."""
    one = zeros(1, np.float32)
    for i in range(n_rows):
        node = _descend(row_of(rows, i), nodes.used[ROOT], nodes, regressors, one)
        at = nodes.first[node]
        while at != NONE:
            label = np.int64(tallies.keys[at] & _LOWER_HALF)
            out[i, label] = np.float32(tallies.counts[at]) / np.float32(nodes.totals[node])
            at = tallies.following[at]


# --- tallies from one table to another -------------------------------------------------------------------


@bare_kernel
def gather(order, first, tallies, starts, labels, counts, trained, sums):
    """Write the tallies of nodes in the given order, those of a node in the order of its list."""
    n = 0
    for i in range(order.size):
        starts[i] = n
        at = first[order[i]]
        while at != NONE:
            labels[n] = tallies.keys[at] & _LOWER_HALF
            counts[n], trained[n], sums[n] = tallies.counts[at], tallies.trained[at], tallies.sums[at]
            n += 1
            at = tallies.following[at]
    starts[order.size] = n


@bare_kernel
def scatter(starts, labels, counts, trained, sums, first, tallies):
    """Insert the output of `gather` into an empty table; returns False if a node has a duplicate label."""
    for node in range(starts.size - 1):
        before = np.int64(NONE)
        for n in range(starts[node], starts[node + 1]):
            key = pair(node, labels[n])
            at = slot(tallies.keys, key)
            if tallies.keys[at] != EMPTY:
                return False
            tallies.keys[at], tallies.following[at] = key, NONE
            tallies.counts[at], tallies.trained[at], tallies.sums[at] = counts[n], trained[n], sums[n]
            if before == NONE:
                first[node] = at
            else:
                tallies.following[before] = at
            before = np.int64(at)
        if before == NONE:
            first[node] = NONE
    tallies.used[0] = starts[-1]
    return True
