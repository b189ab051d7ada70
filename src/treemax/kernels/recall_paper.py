"""The recall tree as Daumé et al. (2017) print it: their algorithms 1 to 4, under their names.

The tree is binary, and a row takes one path. Node 0 is the root; nodes are numbered as they are first needed. A
*tally* is a label at a node: how often it came there, and the weight of the node as a path feature of the label.
Tallies know that of the same label one node up, so that the path features of a candidate are a walk to the root.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from treemax.kernels.arithmetic import exp32
from treemax.kernels.jit import inline_kernel, kernel
from treemax.kernels.queues import offer
from treemax.kernels.scorers import pair, room_left, row_of, scores, slot, update, width_of

INCREASE, PRINTED, UNIT = 0, 1, 2  # what a router's importance weight is
LEFT, RIGHT = 0, 1
NONE = -1  # no tally
_ONE = np.float32(1.0)
_ZERO = np.float32(0.0)


class Nodes(NamedTuple):
    """The tree."""

    used: np.ndarray  # how many nodes there are, and how many routers
    routers: np.ndarray  # the number of the node's router, from 1; 0 at a leaf, which has none
    children: np.ndarray  # nodes x (left, right); 0 where there is none yet
    total: np.ndarray  # rows that came to or through the node
    sums: np.ndarray  # of k log k over the counts k of the node's labels
    covered: np.ndarray  # rows whose label is a candidate now
    candidates: np.ndarray  # nodes x F, tallies, the most frequent first
    n_candidates: np.ndarray


class Tallies(NamedTuple):
    """The labels that came to nodes."""

    used: np.ndarray  # how many tallies there are
    keys: np.ndarray  # a hash table: node in the upper half, label in the lower
    places: np.ndarray  # the tally of each key
    pairs: np.ndarray  # the key of each tally
    labels: np.ndarray
    counts: np.ndarray
    above: np.ndarray  # the tally of the label at the parent, NONE at the root
    weights: np.ndarray  # of the path feature
    squares: np.ndarray


class Way(NamedTuple):
    """What can be chosen."""

    depth: int
    stops: bool  # where the bound on the recall says so
    bound: float  # lambda of equation 1
    path_features: bool
    router_weight: int


class Rates(NamedTuple):
    """How learning goes."""

    regressors: np.float32
    routers: np.float32
    initial: np.float32  # added to AdaGrad's sums
    least_gradient: np.float32


# --- nodes and tallies -----------------------------------------------------------------------------------


@inline_kernel
def _count(node, label, tallies):
    """How often a label came to a node."""
    key = pair(node, label)
    at = slot(tallies.keys, key)
    return np.int64(tallies.counts[tallies.places[at]]) if tallies.keys[at] == key else np.int64(0)


@inline_kernel
def _tally(node, label, above, tallies):
    """The tally of a label at a node, a new one if need be."""
    key = pair(node, label)
    at = slot(tallies.keys, key)
    if tallies.keys[at] != key:
        new = tallies.used[0]
        tallies.used[0] = new + 1
        tallies.keys[at], tallies.places[at] = key, new
        tallies.pairs[new], tallies.labels[new], tallies.above[new] = key, label, above
    return np.int64(tallies.places[at])


@inline_kernel
def _n_log_n(n):
    return n * np.log(np.float64(n)) if n > 0 else 0.0


@inline_kernel
def recall(node, way, nodes):
    """The lower bound of equation 1 on the recall of a node's candidates; always 0 where it is not to stop a row."""
    if not way.stops:
        return 0.0
    m = np.float64(nodes.total[node])
    r = nodes.covered[node] / m
    return r - np.sqrt(way.bound * r * (1.0 - r) / m) - way.bound / m


@inline_kernel
def update_candidates(node, tally, nodes, tallies):
    """Count the label, and see to it that the candidates are the most frequent labels."""
    count = np.int64(tallies.counts[tally]) + 1
    tallies.counts[tally] = count
    nodes.total[node] += 1
    nodes.sums[node] += _n_log_n(count) - _n_log_n(count - 1)
    candidates, counts = nodes.candidates[node], tallies.counts
    n, room = nodes.n_candidates[node], candidates.size
    if n == room and candidates[n - 1] != tally and counts[candidates[n - 1]] >= count:
        return
    at = 0
    while at < n and candidates[at] != tally:
        at += 1
    if at == n < room:
        nodes.n_candidates[node] = n + 1
        nodes.covered[node] += count
    elif at == n:
        at -= 1
        nodes.covered[node] += count - counts[candidates[at]]
    else:
        nodes.covered[node] += 1
    while at > 0 and counts[candidates[at - 1]] < count:
        candidates[at] = candidates[at - 1]
        at -= 1
    candidates[at] = tally


# --- routers ---------------------------------------------------------------------------------------------


@inline_kernel
def _sigmoid(score):
    return _ONE / (_ONE + exp32(-score))


@inline_kernel
def _increase(child, label, nodes, tallies):
    """By how much the total times the entropy of a child grows if the label comes to it."""
    n, k = (nodes.total[child], _count(child, label, tallies)) if child else (0, 0)
    return (_n_log_n(n + 1) - _n_log_n(n)) - (_n_log_n(k + 1) - _n_log_n(k))


@inline_kernel
def entropy(child, label, nodes, tallies):
    """The entropy of the labels at a child, without and with one more."""
    if not child:
        return 0.0, 0.0
    n, total, k = nodes.total[child], nodes.sums[child], _count(child, label, tallies)
    more = total + _n_log_n(k + 1) - _n_log_n(k)
    return np.log(n) - total / n, np.log(n + 1) - more / (n + 1)


@inline_kernel
def _entropy_difference(node, label, nodes, tallies):
    """Algorithm 3: the entropy that is expected if the row goes right, less that if it goes left."""
    left, right = nodes.children[node, LEFT], nodes.children[node, RIGHT]
    left_total, right_total = nodes.total[left] if left else 0, nodes.total[right] if right else 0
    left_now, left_then = entropy(left, label, nodes, tallies)
    right_now, right_then = entropy(right, label, nodes, tallies)
    total = nodes.total[node]
    if_left = left_total / total * left_then + right_total / total * right_now
    if_right = left_total / total * left_now + right_total / total * right_then
    return if_right - if_left


@inline_kernel
def update_router(x, label, node, router, nodes, tallies, routers, way, rates, one):
    """Algorithm 3: the router learns the side that keeps the entropy lower, by how much it does."""
    if way.router_weight == PRINTED:
        advantage = _entropy_difference(node, label, nodes, tallies)
    else:
        left, right = nodes.children[node, LEFT], nodes.children[node, RIGHT]
        advantage = _increase(right, label, nodes, tallies) - _increase(left, label, nodes, tallies)
    if advantage == 0.0:
        return
    weight = _ONE if way.router_weight == UNIT else np.float32(abs(advantage))
    scores(routers, router, 1, x, one)
    gradient = _sigmoid(one[0]) - (_ONE if advantage > 0.0 else _ZERO)
    if abs(gradient) >= rates.least_gradient:
        one[0] = weight * gradient
        update(routers, router, one, 1, x, rates.routers, rates.initial)


@inline_kernel
def _side(x, router, routers, one):
    scores(routers, router, 1, x, one)
    return LEFT if one[0] > _ZERO else RIGHT


# --- regressors ------------------------------------------------------------------------------------------


@inline_kernel
def _score(x, node, nodes, tallies, regressors, way, one, out):
    """The scores of the candidates of a node: their regressors, over the row and the path."""
    n = nodes.n_candidates[node]
    for q in range(n):
        scores(regressors, tallies.labels[nodes.candidates[node, q]], 1, x, one)
        out[q] = one[0]
    if way.path_features:
        for q in range(n):  # a loop of their own, so that the walks overlap: what they read is far apart
            tally, total = np.uint64(nodes.candidates[node, q]), _ZERO
            while tallies.above[tally] != NONE:
                total += tallies.weights[tally]
                tally = np.uint64(tallies.above[tally])
            out[q] += total
    return n


@inline_kernel
def update_regressors(x, label, node, nodes, tallies, regressors, way, rates, one, out):
    """Algorithm 4: one against some, if the label is among the candidates at all."""
    among = False
    for q in range(nodes.n_candidates[node]):
        among |= tallies.labels[nodes.candidates[node, q]] == label
    if not among:
        return
    n = _score(x, node, nodes, tallies, regressors, way, one, out)
    for q in range(n):
        tally = np.uint64(nodes.candidates[node, q])
        own = tallies.labels[tally]
        gradient = _sigmoid(out[q]) - (_ONE if own == label else _ZERO)
        if abs(gradient) < rates.least_gradient:
            continue
        one[0] = gradient
        update(regressors, own, one, 1, x, rates.regressors, rates.initial)
        if way.path_features:
            while tallies.above[tally] != NONE:
                tallies.squares[tally] += gradient * gradient
                step = rates.regressors * gradient / np.sqrt(tallies.squares[tally] + rates.initial)
                tallies.weights[tally] -= step
                tally = np.uint64(tallies.above[tally])


# --- rows ------------------------------------------------------------------------------------------------


@inline_kernel
def _descend(x, nodes, routers, way, one):
    """Algorithm 1: the node whose candidates are to be scored."""
    node, own = 0, recall(0, way, nodes)
    while nodes.routers[node]:
        child = nodes.children[node, _side(x, nodes.routers[node] - 1, routers, one)]
        if child == 0:
            return node
        following = recall(child, way, nodes)
        if own > following:
            return node
        node, own = child, following
    return node


@inline_kernel
def _router(node, nodes):
    """The router of a node, a new one if need be."""
    if nodes.routers[node] == 0:
        nodes.used[1] += 1
        nodes.routers[node] = nodes.used[1]
    return np.int64(nodes.routers[node]) - 1


@inline_kernel
def _child(node, side, nodes):
    """A child of a node, a new one if need be."""
    if nodes.children[node, side] == 0:
        nodes.children[node, side] = nodes.used[0]
        nodes.used[0] += 1
    return np.int64(nodes.children[node, side])


@inline_kernel
def _train(x, label, nodes, tallies, routers, regressors, way, rates, one, out):
    """Algorithm 2. The root counts the row too: every row comes to it."""
    node = 0
    tally = _tally(node, label, NONE, tallies)
    update_candidates(node, tally, nodes, tallies)
    own = recall(node, way, nodes)
    for _ in range(way.depth):
        router = _router(node, nodes)
        update_router(x, label, node, router, nodes, tallies, routers, way, rates, one)
        child = _child(node, _side(x, router, routers, one), nodes)
        tally = _tally(child, label, tally, tallies)
        update_candidates(child, tally, nodes, tallies)
        following = recall(child, way, nodes)
        if own > following:
            break
        node, own = child, following
    update_regressors(x, label, node, nodes, tallies, regressors, way, rates, one, out)


@inline_kernel
def _ask(x, label, nodes, tallies, routers, regressors, way, one, out, found):
    """Count whether the label is the first answer, and whether it is among the candidates, before it is learned."""
    node = _descend(x, nodes, routers, way, one)
    n = _score(x, node, nodes, tallies, regressors, way, one, out)
    best = 0
    for q in range(n):
        if out[q] > out[best]:
            best = q
        found[1] += tallies.labels[nodes.candidates[node, q]] == label
    if n:
        found[0] += tallies.labels[nodes.candidates[node, best]] == label


@inline_kernel
def _has_room(width, nodes, tallies, routers, regressors, way):
    """Whether no table can run full with the next row."""
    return (
        nodes.total.size - nodes.used[0] >= way.depth
        and routers.bias.size - nodes.used[1] >= way.depth
        and tallies.counts.size - tallies.used[0] > way.depth
        and tallies.keys.size * 3 // 4 - tallies.used[0] > way.depth
        and room_left(routers) >= width * way.depth
        and room_left(regressors) >= width * nodes.candidates.shape[1]
    )


@kernel
def learn(rows, labels, order, start, fall, nodes, tallies, routers, regressors, way, rates, found):
    """Learn the rows order[start:]; returns how many are done, fewer where tables need room first.

    The rates of row i are multiplied by fall[i]. `found` counts the rows whose label was first (0), and among
    the candidates (1), before they were learned.
    """
    one, out = np.zeros(1, np.float32), np.zeros(nodes.candidates.shape[1], np.float32)
    for i in range(start, order.size):
        x, label = row_of(rows, order[i]), labels[order[i]]
        if not _has_room(width_of(x), nodes, tallies, routers, regressors, way):
            return i
        now = Rates(rates.regressors * fall[i], rates.routers * fall[i], rates.initial, rates.least_gradient)
        _ask(x, label, nodes, tallies, routers, regressors, way, one, out, found)
        _train(x, label, nodes, tallies, routers, regressors, way, now, one, out)
    return order.size


@kernel
def predict(rows, n_rows, nodes, tallies, routers, regressors, way, ids, probabilities):
    """The best candidates of each row; probabilities are the logistic ones, made to sum to one."""
    k = ids.shape[1]
    one, out = np.zeros(1, np.float32), np.zeros(nodes.candidates.shape[1], np.float32)
    for i in range(n_rows):
        x = row_of(rows, i)
        node = _descend(x, nodes, routers, way, one)
        n = _score(x, node, nodes, tallies, regressors, way, one, out)
        total, filled = _ZERO, 0
        for q in range(n):
            filled = offer(
                tallies.labels[nodes.candidates[node, q]], out[q], ids[i], probabilities[i], filled
            )
            total += _sigmoid(out[q])
        for q in range(filled):
            probabilities[i, q] = _sigmoid(probabilities[i, q]) / total
        for q in range(filled, k):
            ids[i, q] = -1
            probabilities[i, q] = _ZERO
