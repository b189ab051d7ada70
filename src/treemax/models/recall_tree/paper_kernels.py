"""Recall tree of Daumé et al. (2017): algorithms 1 to 4, with the names of the paper.

The tree is binary, and a row takes one path. Node 0 is the root; nodes are numbered in the order of creation. A
*tally* is the record of a label at a node: its count, and the weight of the node as a path feature of the label.
Tallies are linked to those of the same label at the parent and the children: counting a row follows the links from
the root, and the path features of a candidate are summed on the way to the root.

Several threads may learn at once. The counts of a node are protected by its lock; weights are not.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from treemax.kernels.arithmetic import exp32, next_random, random_for
from treemax.kernels.intrinsics import empty, minimum
from treemax.kernels.jit import bare_fast_kernel, bare_inline_kernel, bare_kernel, kernel
from treemax.kernels.queues import offer
from treemax.kernels.scorers import (
    TOGETHER,
    begin_group,
    buckets_needed,
    end_group,
    prefetch_row,
    prefetch_score,
    release,
    reserve,
    row_of,
    score_of_row,
    scores,
    scores_in_group,
    scores_of,
    update_of,
)
from treemax.models.recall_tree.paper_tree_kernels import (
    LEFT,
    NONE,
    RIGHT,
    Nodes,
    Options,
    Rates,
    advantage_of,
    child_of,
    count_at_child,
    count_at_root,
    recall,
    router_of,
    router_score,
    sigmoid,
    update_router,
)

_ONE = np.float32(1.0)
_ZERO = np.float32(0.0)
_HALF = np.float32(0.5)
_UNIT = np.float32(2.0**-24)


class Workspace(NamedTuple):
    """Buffers of one thread."""

    path: np.ndarray  # the nodes on the path of a prediction
    sides: np.ndarray  # the scores of their routers
    labels: np.ndarray  # the candidates at the end of the path
    scores: np.ndarray
    gradients: np.ndarray
    one: np.ndarray
    ends: np.ndarray  # of the rows that descend together: their nodes
    bounds: np.ndarray
    descends: np.ndarray  # those not yet at their last node


# --- regressors ------------------------------------------------------------------------------------------


@bare_inline_kernel
def _path_score(tally, tallies, node_only):
    """Return the sum of the path features of a candidate, over its nodes except the root, or that of the last node."""
    total, at = _ZERO, np.uint64(tally)
    while tallies.records[at].above != NONE:
        total += tallies.records[at].weight
        if node_only:
            break
        at = np.uint64(tallies.records[at].above)
    return total


@bare_inline_kernel
def _score(x, node, nodes, tallies, regressors, options, out):
    """Return the scores of the candidates of a node: their regressors, over the row and the path."""
    n = nodes.n_candidates[node]
    scores_of(regressors, nodes.labels[node], n, x, out)
    if options.path_features:
        for q in range(n):  # a separate loop lets the memory reads of the walks overlap
            out[q] += _path_score(nodes.candidates[node, q], tallies, options.node_only)
    return n


@bare_inline_kernel
def _score_again(x, node, nodes, tallies, regressors, options, own):
    """Return the scores of the candidates if the prediction ended at the same node: only those that moved are new.

    No label can have become a candidate since: the prediction is scored only if the label already is one.
    """
    n, labels = nodes.n_candidates[node], nodes.labels[node]
    for q in range(n):
        if own.labels[q] != labels[q]:
            scores(regressors, labels[q], 1, x, own.one)
            own.scores[q] = own.one[0]
            if options.path_features:
                own.scores[q] += _path_score(nodes.candidates[node, q], tallies, options.node_only)
    return n


@bare_inline_kernel
def _is_candidate(label, node, nodes):
    labels, among = nodes.labels[node], False
    for q in range(nodes.n_candidates[node]):
        among |= labels[q] == label
    return among


@bare_inline_kernel
def update_regressors(x, label, node, asked, nodes, tallies, regressors, options, rates, own):
    """Algorithm 4: one-against-some update, if the label is among the candidates.

    `asked` is the node where the prediction ended if the scores of its candidates are computed, else NONE.
    """
    if not _is_candidate(label, node, nodes):
        return
    labels = nodes.labels[node]
    if node == asked:
        n = _score_again(x, node, nodes, tallies, regressors, options, own)
    else:
        n = _score(x, node, nodes, tallies, regressors, options, own.scores)
    _find_gradients(own.scores[:n], labels, label, rates.least_gradient, own.gradients)
    update_of(regressors, labels, own.gradients, n, x, rates.regressors, rates.initial)
    if options.path_features:
        for q in range(n):
            if own.gradients[q] != _ZERO:
                _update_path(nodes.candidates[node, q], own.gradients[q], tallies, options, rates)


@bare_fast_kernel
def _find_gradients(scores, labels, label, least, out):
    """Compute the gradients of the logistic loss, zero where they are small."""
    for q in range(scores.size):
        gradient = _ONE / (_ONE + exp32(-scores[q])) - (_ONE if labels[q] == label else _ZERO)
        out[q] = gradient if abs(gradient) >= least else _ZERO


@bare_fast_kernel
def _add_and_total(scores, of_path):
    """Add the path scores to the scores; returns the sum of their logistic functions."""
    total = _ZERO
    for q in range(scores.size):
        scores[q] += of_path[q]
        total += _ONE / (_ONE + exp32(-scores[q]))
    return total


@bare_inline_kernel
def _update_path(tally, gradient, tallies, options, rates):
    at = np.uint64(tally)
    while tallies.records[at].above != NONE:
        record = tallies.records[at]
        record.square += gradient * gradient
        record.weight -= rates.regressors * gradient / np.sqrt(record.square + rates.initial)
        if options.node_only:
            break
        at = np.uint64(record.above)


# --- rows ------------------------------------------------------------------------------------------------


@bare_inline_kernel
def _descend(x, nodes, routers, options, own):
    """Algorithm 1: the node whose candidates are scored, and the length of the path, which is stored."""
    node, bound, length = 0, recall(0, options, nodes), 0
    while nodes.routers[node]:
        side = router_score(x, nodes.routers[node] - 1, routers, own.one)
        if length < own.path.size:  # a loaded tree may be deeper than the maximum depth of further training
            own.path[length], own.sides[length] = node, side
            length += 1
        child = nodes.children[node, LEFT if side > _ZERO else RIGHT]
        if child == 0:
            break
        following = recall(child, options, nodes)
        if bound > following:
            break
        node, bound = child, following
    return node, length


@bare_kernel
def _descend_together(rows, order, first, last, nodes, routers, options, own, learns):
    """Algorithm 1 for the rows order[first:last], a level at a time, so that memory is prefetched for all of them at once.

    Their nodes are written to `own.ends`. With `learns`, what updates of the routers read is prefetched, too.
    """
    n = last - first
    for j in range(n):
        own.ends[j], own.bounds[j], own.descends[j] = 0, recall(0, options, nodes), j
        prefetch_row(routers, rows, order[first + j])
    while n:
        for q in range(n):
            j = own.descends[q]
            router = nodes.routers[own.ends[j]]
            if router:
                prefetch_score(routers, router - 1, rows, order[first + j], learns)
        left = 0
        for q in range(n):
            j = own.descends[q]
            router = nodes.routers[own.ends[j]]
            if router == 0:
                continue
            side = score_of_row(routers, router - 1, rows, order[first + j], own.one)
            child = nodes.children[own.ends[j], LEFT if side > _ZERO else RIGHT]
            following = recall(child, options, nodes) if child else 0.0
            if child and own.bounds[j] <= following:
                own.ends[j], own.bounds[j], own.descends[left] = child, following, j
                left += 1
        n = left


@bare_inline_kernel
def _side(score, options, random):
    """Return the side to which a training row goes; at random, left with probability 1/2 + score."""
    if not options.randomized:
        return LEFT if score > _ZERO else RIGHT
    return LEFT if np.float32(random >> np.uint64(40)) * _UNIT < _HALF + score else RIGHT


@bare_inline_kernel
def _train(x, label, asked, length, nodes, tallies, routers, regressors, options, rates, own, random):
    """Algorithm 2. Unlike in the paper, the root counts the row too.

    The prediction before passed `length` routers to the node `asked`; their scores are reused.
    """
    node = 0
    tally = count_at_root(label, nodes, tallies, options)
    bound = recall(node, options, nodes)
    for level in range(options.depth):
        router = router_of(node, nodes, options)
        if level < length and own.path[level] == node:
            score = own.sides[level]
        else:
            score = router_score(x, router, routers, own.one)
        advantage = advantage_of(node, tally, nodes, tallies, options)
        score = update_router(x, router, score, advantage, routers, options, rates, own.one)
        random = next_random(random)
        side = _side(score, options, random)
        child = child_of(node, side, nodes, options)
        tally = count_at_child(child, tally, side, nodes, tallies, options)
        following = recall(child, options, nodes)
        if bound > following:
            break
        node, bound = child, following
    update_regressors(x, label, node, asked, nodes, tallies, regressors, options, rates, own)


@bare_inline_kernel
def _ask(x, label, nodes, tallies, routers, regressors, options, own, found):
    """Predict before learning, and count whether the label is predicted and whether it is among the candidates.

    Returns the node, NONE if the label is not among its candidates (they are not scored then), and the path length.
    """
    node, length = _descend(x, nodes, routers, options, own)
    if not _is_candidate(label, node, nodes):
        return NONE, length
    n, labels, best = _score(x, node, nodes, tallies, regressors, options, own.scores), nodes.labels[node], 0
    for q in range(n):
        own.labels[q] = labels[q]
        if own.scores[q] > own.scores[best]:
            best = q
    found[0] += labels[best] == label
    found[1] += 1
    return node, length


@bare_inline_kernel
def _has_room(nodes, tallies, routers, options):
    """Return whether no array can overflow with the next row of every thread."""
    n_threads = options.n_threads
    return (
        nodes.total.size - nodes.used[0] >= n_threads * options.depth
        and routers.bias.size - nodes.used[1] >= n_threads * options.depth
        and tallies.records.size - tallies.used[0] > n_threads * (options.depth + 1)
    )


@kernel
def learn(rows, labels, order, start, fall, tree, options, rates, own, found):
    """Learn the rows order[start:]; returns how many are done, fewer if a table must be enlarged first.

    `tree` has all that is learned. The rates of row i are multiplied by fall[i]. `found` counts the rows whose label was
    predicted (0) and among the candidates (1) before they were learned.
    """
    nodes, tallies, routers, regressors = tree
    for i in range(start, order.size):
        if (i - start) % TOGETHER == 0:  # prefetches: the rows descend again one by one, while the routers learn
            last = minimum(i + TOGETHER, order.size)
            _descend_together(rows, order, i, last, nodes, routers, options, own, True)
        x, label = row_of(rows, order[i]), labels[order[i]]
        for_routers = buckets_needed(routers, x, options.n_threads * options.depth)
        for_regressors = buckets_needed(regressors, x, options.n_threads * nodes.candidates.shape[1])
        if not (_has_room(nodes, tallies, routers, options) and reserve(routers, for_routers)):
            return i
        if not reserve(regressors, for_regressors):
            release(routers, for_routers)
            return i
        now = Rates(rates.regressors * fall[i], rates.routers * fall[i], rates.initial, rates.least_gradient)
        asked, length = _ask(x, label, nodes, tallies, routers, regressors, options, own, found)
        random = random_for(options.seed, i)
        _train(x, label, asked, length, nodes, tallies, routers, regressors, options, now, own, random)
        release(routers, for_routers)
        release(regressors, for_regressors)
    return order.size


@kernel
def room_for(rows, i, routers, regressors, options, n_candidates):
    """Return the maximum number of hash buckets that the routers and the regressors need for a row."""
    x, n_threads = row_of(rows, i), options.n_threads
    for_routers = buckets_needed(routers, x, n_threads * options.depth)
    return for_routers, buckets_needed(regressors, x, n_threads * n_candidates)


@bare_kernel
def path_scores(nodes, tallies, node_only, out):
    """Compute the score of each candidate by its path features, which is the same for all rows that end at the node."""
    for node in range(nodes.used[0]):
        for q in range(nodes.n_candidates[node]):
            out[node, q] = _path_score(nodes.candidates[node, q], tallies, node_only)


@kernel
def find_nodes(rows, order, nodes, routers, options, own, ends):
    """Compute the node at which each row ends."""
    for first in range(0, order.size, TOGETHER):
        last = minimum(first + TOGETHER, order.size)
        _descend_together(rows, order, first, last, nodes, routers, options, own, False)
        for j in range(last - first):
            ends[order[first + j]] = own.ends[j]


@kernel
def predict_row(rows, nodes, of_paths, routers, regressors, stops, bound, ids, probabilities):
    """Compute the same for a single row; arrays and scorers come as plain tuples."""
    nodes = Nodes(*nodes)
    options = Options(0, stops, bound, False, 0, 1, False, False, np.uint64(0))
    one, out, x = empty(1, np.float32), empty(nodes.labels.shape[1], np.float32), row_of(rows, 0)
    node = _last_node(rows, nodes, routers, options, one)
    n, labels = nodes.n_candidates[node], nodes.labels[node]
    scores_of(regressors, labels, n, x, out)
    _best(out[:n], labels, of_paths[node], ids[0], probabilities[0])


@bare_kernel
def _last_node(rows, nodes, routers, options, one):
    """Algorithm 1 for a single row: while a node decides, the weights of both its children are prefetched."""
    node, bound = 0, recall(0, options, nodes)
    prefetch_row(routers, rows, 0)
    while nodes.routers[node]:
        for side in range(2):
            router = nodes.routers[nodes.children[node, side]]
            if router:
                prefetch_score(routers, router - 1, rows, 0, False)
        score = score_of_row(routers, nodes.routers[node] - 1, rows, 0, one)
        child = nodes.children[node, LEFT if score > _ZERO else RIGHT]
        following = recall(child, options, nodes) if child else 0.0
        if child == 0 or bound > following:
            break
        node, bound = child, following
    return node


@bare_kernel
def _best(scores, labels, of_path, best, found):
    """Write the best candidates and their probabilities."""
    total, filled = _add_and_total(scores, of_path), 0
    for q in range(scores.size):
        filled = offer(np.int64(labels[q]), scores[q], best, found, filled)
    for q in range(filled):
        found[q] = sigmoid(found[q]) / total
    for q in range(filled, best.size):
        best[q] = -1
        found[q] = _ZERO


@kernel
def predict(rows, order, ends, nodes, of_paths, regressors, own, kept, ids, probabilities):
    """Compute the best candidates of each row, and their logistic probabilities normalised to sum to one.

    `order` groups the rows by the node where they end, because they read the same weights.
    """
    out, node = own.scores, np.int64(NONE)
    for i in order:
        if ends[i] != node:
            if node != NONE:
                end_group(kept, nodes.labels[node], nodes.n_candidates[node])
            node = ends[i]
            begin_group(kept, node, nodes.labels[node], nodes.n_candidates[node])
        x = row_of(rows, i)
        n, labels = nodes.n_candidates[node], nodes.labels[node]
        scores_in_group(regressors, labels, n, x, kept, out)
        _best(out[:n], labels, of_paths[node], ids[i], probabilities[i])
