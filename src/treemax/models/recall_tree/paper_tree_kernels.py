"""Nodes of the paper's recall tree: counts of labels, candidates and routers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from treemax.kernels import atomic
from treemax.kernels.arithmetic import MOST_COUNT, exp32
from treemax.kernels.intrinsics import minimum
from treemax.kernels.jit import bare_inline_kernel
from treemax.kernels.scorers import scores, update

INCREASE, PRINTED, UNIT = 0, 1, 2  # importance weights of the routers
LEFT, RIGHT = 0, 1
NONE = -1  # no tally
TALLY = np.dtype(
    [
        ("label", np.int32), ("node", np.int32), ("count", np.int32),
        ("above", np.int32),  # the tally of the label at the parent, NONE at the root
        ("left", np.int32), ("right", np.int32),  # and at the children, 0 where there is none
        ("weight", np.float32), ("square", np.float32),  # of the path feature
    ]
)  # fmt: skip
FEW = 4096  # up to this count, the increment of n log n is tabulated
_COUNTS = np.arange(1.0, FEW + 1)
MORE = np.diff(np.concatenate([[0.0], _COUNTS * np.log(_COUNTS)]))  # (n + 1) log(n + 1) - n log n
_ONE = np.float32(1.0)
_ZERO = np.float32(0.0)


class Nodes(NamedTuple):
    """The tree."""

    used: np.ndarray  # number of nodes, number of routers
    routers: np.ndarray  # index of the node's router plus 1; 0 at a leaf
    children: np.ndarray  # nodes x (left, right); 0 where there is none yet
    total: np.ndarray  # rows that reached the node
    sums: np.ndarray  # of k log k over the counts k of the node's labels
    covered: np.ndarray  # rows whose label is a candidate now
    candidates: np.ndarray  # nodes x F, tallies, the most frequent first
    labels: np.ndarray  # of the candidates
    n_candidates: np.ndarray
    lock: np.ndarray


class Tallies(NamedTuple):
    """The labels that reached each node."""

    used: np.ndarray  # number of tallies
    first: np.ndarray  # of each label: index of its tally at the root plus 1
    records: np.ndarray


class Options(NamedTuple):
    """Options of the algorithm."""

    depth: int
    stops: bool  # whether the recall bound may end the descent
    bound: float  # lambda of equation 1
    path_features: bool
    router_weight: int
    n_threads: int  # with one there are no locks, whose memory fences are slow
    node_only: bool  # of the path, only the last node is a feature
    randomized: bool  # training rows are routed at random
    seed: np.uint64


class Rates(NamedTuple):
    """Learning rates and thresholds."""

    regressors: np.float32
    routers: np.float32
    initial: np.float32  # added to AdaGrad's sums
    least_gradient: np.float32


# --- nodes and tallies -----------------------------------------------------------------------------------


@bare_inline_kernel
def _new_tally(node, label, above, tallies):
    new = atomic.fetch_add(tallies.used, 0, 1)
    record = tallies.records[new]
    record.label, record.node, record.above = label, node, above
    return new


@bare_inline_kernel
def _root_tally(label, tallies):
    """Return the tally of a label at the root, created if missing. The caller holds the root's lock."""
    if tallies.first[label] == 0:
        tallies.first[label] = _new_tally(0, label, NONE, tallies) + 1
    return np.int64(tallies.first[label]) - 1


@bare_inline_kernel
def _child_tally(tally, side, child, tallies):
    """Return the tally of the same label at a child, created if missing. The caller holds the child's lock."""
    record = tallies.records[tally]
    if (record.left if side == LEFT else record.right) == 0:
        new = _new_tally(child, record.label, tally, tallies)
        if side == LEFT:
            record.left = new
        else:
            record.right = new
    return np.int64(record.left if side == LEFT else record.right)


@bare_inline_kernel
def _count(tally, tallies):
    """Return the count of a tally. Tally 0 is at the root, so as a link to a child 0 means none."""
    return np.int64(tallies.records[tally].count) if tally else np.int64(0)


@bare_inline_kernel
def one_more(n):
    """Return (n + 1) log(n + 1) - n log n."""
    if n < FEW:
        return MORE[n]
    part = 1.0 / n
    return np.log(np.float64(n)) + 1.0 + part * (0.5 - part * (1.0 / 6.0 - part / 12.0))


@bare_inline_kernel
def recall(node, options, nodes):
    """Return the lower bound of equation 1 on the recall of a node's candidates; 0 if the bound is not used."""
    if not options.stops:
        return 0.0
    m = np.float64(nodes.total[node])
    r = nodes.covered[node] / m
    return r - np.sqrt(options.bound * r * (1.0 - r) / m) - options.bound / m


@bare_inline_kernel
def update_candidates(node, tally, nodes, tallies):
    """Count a label and update the candidates, the most frequent labels. The caller holds the node's lock."""
    records = tallies.records
    count = minimum(np.int64(records[tally].count) + np.int64(1), np.int64(MOST_COUNT))
    records[tally].count = count
    nodes.total[node] += 1
    nodes.sums[node] += one_more(count - 1)
    candidates, labels = nodes.candidates[node], nodes.labels[node]
    n, room = nodes.n_candidates[node], candidates.size
    if n == room and candidates[n - 1] != tally and records[candidates[n - 1]].count >= count:
        return
    at = 0
    while at < n and candidates[at] != tally:
        at += 1
    if at == n < room:
        nodes.n_candidates[node] = n + 1
        nodes.covered[node] += count
    elif at == n:
        at -= 1
        nodes.covered[node] += count - records[candidates[at]].count
    else:
        nodes.covered[node] += 1
    while at > 0 and records[candidates[at - 1]].count < count:
        candidates[at], labels[at] = candidates[at - 1], labels[at - 1]
        at -= 1
    candidates[at], labels[at] = tally, records[tally].label


@bare_inline_kernel
def _take_lock(node, nodes, options):
    while not (options.n_threads == 1 or atomic.acquire(nodes.lock, node)):
        pass


@bare_inline_kernel
def count_at_root(label, nodes, tallies, options):
    _take_lock(0, nodes, options)
    tally = _root_tally(label, tallies)
    update_candidates(0, tally, nodes, tallies)
    atomic.release(nodes.lock, 0)
    return tally


@bare_inline_kernel
def count_at_child(child, tally, side, nodes, tallies, options):
    _take_lock(child, nodes, options)
    own = _child_tally(tally, side, child, tallies)
    update_candidates(child, own, nodes, tallies)
    atomic.release(nodes.lock, child)
    return own


@bare_inline_kernel
def router_of(node, nodes, options):
    """Return the router of a node, created if missing."""
    if nodes.routers[node] == 0:
        _take_lock(node, nodes, options)
        if nodes.routers[node] == 0:
            nodes.routers[node] = atomic.fetch_add(nodes.used, 1, 1) + 1
        atomic.release(nodes.lock, node)
    return np.int64(nodes.routers[node]) - 1


@bare_inline_kernel
def child_of(node, side, nodes, options):
    """Return a child of a node, created if missing."""
    if nodes.children[node, side] == 0:
        _take_lock(node, nodes, options)
        if nodes.children[node, side] == 0:
            nodes.children[node, side] = atomic.fetch_add(nodes.used, 0, 1)
        atomic.release(nodes.lock, node)
    return np.int64(nodes.children[node, side])


# --- routers ---------------------------------------------------------------------------------------------


@bare_inline_kernel
def sigmoid(score):
    return _ONE / (_ONE + exp32(-score))


@bare_inline_kernel
def _increase(n, k):
    """Return the increase of rows times entropy of a child with n rows by one more of a label with count k."""
    return one_more(n) - one_more(k)


@bare_inline_kernel
def _entropies(n, total, k):
    """Return the entropy of the labels at a child with n rows, before and after one more of a label with count k."""
    if not n:
        return 0.0, 0.0
    return np.log(n) - total / n, np.log(n + 1) - (total + one_more(k)) / (n + 1)


@bare_inline_kernel
def _entropy_difference(node, in_left, in_right, nodes):
    """Algorithm 3: expected entropy if the row goes right, minus that if it goes left."""
    left, right = nodes.children[node, LEFT], nodes.children[node, RIGHT]
    left_total, right_total = nodes.total[left] if left else 0, nodes.total[right] if right else 0
    left_now, left_then = _entropies(left_total, nodes.sums[left], in_left)
    right_now, right_then = _entropies(right_total, nodes.sums[right], in_right)
    total = nodes.total[node]
    if_left = left_total / total * left_then + right_total / total * right_now
    if_right = left_total / total * left_now + right_total / total * right_then
    return if_right - if_left


@bare_inline_kernel
def advantage_of(node, tally, nodes, tallies, options):
    """Return the importance weight of a row, positive if the left side has the lower entropy."""
    in_left = _count(tallies.records[tally].left, tallies)
    in_right = _count(tallies.records[tally].right, tallies)
    if options.router_weight == PRINTED:
        return _entropy_difference(node, in_left, in_right, nodes)
    left, right = nodes.children[node, LEFT], nodes.children[node, RIGHT]
    n_left, n_right = nodes.total[left] if left else 0, nodes.total[right] if right else 0
    return _increase(n_right, in_right) - _increase(n_left, in_left)


@bare_inline_kernel
def update_router(x, router, score, advantage, routers, options, rates, one):
    """Algorithm 3: train the router towards the side with the lower entropy, weighted by the difference.

    Returns the router's new score of the row.
    """
    if advantage == 0.0:
        return score
    weight = _ONE if options.router_weight == UNIT else np.float32(abs(advantage))
    gradient = sigmoid(score) - (_ONE if advantage > 0.0 else _ZERO)
    if abs(gradient) < rates.least_gradient:
        return score
    one[0] = weight * gradient
    update(routers, router, one, 1, x, rates.routers, rates.initial)
    return router_score(x, router, routers, one)


@bare_inline_kernel
def router_score(x, router, routers, one):
    scores(routers, router, 1, x, one)
    return one[0]
