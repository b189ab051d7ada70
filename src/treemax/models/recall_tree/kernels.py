"""Recall tree: a tree selects a few candidates, and regressors rank them (Daumé et al., 2017).

Nodes are numbered so that the children of node n are n * arity + 1 to n * arity + arity. A router is a softmax
over the children of its node, with one scorer per child. A node's histogram counts the labels that reached each
child; the leaves keep their most frequent labels as candidates.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from treemax.kernels import atomic, vector
from treemax.kernels.arithmetic import exp32, log32, softmax
from treemax.kernels.feature_tables import MIX
from treemax.kernels.intrinsics import maximum, minimum
from treemax.kernels.jit import bare_inline_kernel, bare_kernel, fast_kernel, kernel
from treemax.kernels.queues import offer, pad
from treemax.kernels.scorers import (
    buckets_needed,
    pair,
    release,
    reserve,
    room_left,
    row_of,
    scores,
    scores_of,
    slot,
    slot_for,
    update,
    update_of,
    width_of,
)

LEAST_MASS = np.float32(3e-4)  # the tree's probability of a label that is not a candidate
FIRST_COUNT = np.float32(0.1)  # initial count of a new label in one random child, to break the symmetry
RARE_COUNT, RARE_TOTAL = np.float32(0.01), np.float32(0.5)  # additive smoothing of the counts
_ONE = np.float32(1.0)
_ZERO = np.float32(0.0)


class Histograms(NamedTuple):
    """Counts of labels at the children of each node, and the candidates of the leaves."""

    keys: np.ndarray  # node in the upper half, label in the lower
    counts: np.ndarray  # slots x arity
    used: np.ndarray  # occupied slots; a lock
    total: np.ndarray  # of each node
    labels: np.ndarray  # nodes x candidates, the most frequent first
    label_counts: np.ndarray
    n_labels: np.ndarray
    lock: np.ndarray  # of each node's candidates


class Shape(NamedTuple):
    """Shape of the tree and settings of the search."""

    arity: int
    depth: int
    beam: int
    n_candidates: int
    n_labels: int  # if all labels are candidates, else 0
    least_share: np.float32  # nodes with a smaller probability are not expanded
    prior: np.float32  # weight of the tree's log-probability of a label in its score
    sharpness: np.float32  # inverse temperature of the softmax over the candidates


class Rates(NamedTuple):
    """Learning rates and thresholds."""

    regressors: np.float32
    routers: np.float32
    initial: np.float32  # added to AdaGrad's sums
    least_gradient: np.float32
    least_share: np.float32  # nodes with a smaller probability do not learn from the row


# --- histograms ------------------------------------------------------------------------------------------


@bare_kernel
def _count(node, label, weight, arity, histograms):
    """Count a label at a node, with a weight."""
    parent, child = (node - 1) // arity, (node - 1) % arity
    at = slot_for(histograms.keys, pair(parent, label), histograms.used)
    histograms.counts[at, child] += weight
    histograms.total[node] += weight
    return histograms.counts[at, child]


@bare_kernel
def _enter(node, label, count, histograms):
    """Update the candidates of a node, its most frequent labels, with a new count."""
    while not atomic.acquire(histograms.lock, node):
        pass
    labels, counts = histograms.labels[node], histograms.label_counts[node]
    n, at = histograms.n_labels[node], 0
    while at < n and labels[at] != label:
        at += 1
    if at == labels.size:
        at -= 1
        if count <= counts[at]:
            atomic.release(histograms.lock, node)
            return
    elif at == n:
        histograms.n_labels[node] = n + 1
    while at > 0 and counts[at - 1] < count:
        labels[at], counts[at] = labels[at - 1], counts[at - 1]
        at -= 1
    labels[at], counts[at] = label, count
    atomic.release(histograms.lock, node)


@bare_kernel
def divide_counts(leaves, arity, labels, label_counts, n_labels, histograms):
    """Divide the label counts of former leaves evenly among their children."""
    for leaf in leaves:
        for q in range(n_labels[leaf]):
            at = slot_for(histograms.keys, pair(leaf, labels[leaf, q]), histograms.used)
            for c in range(arity):
                histograms.counts[at, c] = label_counts[leaf, q] / np.float32(arity)


# --- the search ------------------------------------------------------------------------------------------


class Workspace(NamedTuple):
    """Buffers of one thread."""

    nodes: np.ndarray  # expanded nodes, in order
    shares: np.ndarray  # the probability of each of them
    children: np.ndarray  # the conditional probability of each child
    beam: np.ndarray
    beam_shares: np.ndarray
    following: np.ndarray
    following_shares: np.ndarray
    mass: np.ndarray  # the tree's probability of each label; zero between rows
    candidates: np.ndarray
    masses: np.ndarray
    scores: np.ndarray
    gradients: np.ndarray


@bare_kernel
def _descend(x, routers, shape, search):
    """Search from the root to the leaves with a beam; return the number of expanded nodes and the size of the beam."""
    n_open, size = 0, 1
    search.beam[0], search.beam_shares[0] = 0, _ONE
    beam, shares = search.beam, search.beam_shares
    following, following_shares = search.following[: shape.beam], search.following_shares[: shape.beam]
    for _ in range(shape.depth):
        n_following = 0
        for j in range(size):
            children = search.children[n_open]
            scores(routers, beam[j], shape.arity, x, children)
            softmax(children)
            search.nodes[n_open], search.shares[n_open] = beam[j], shares[j]
            n_open += 1
            first = beam[j] * shape.arity + 1
            for c in range(shape.arity):
                share = shares[j] * children[c]
                if share >= shape.least_share:
                    n_following = offer(first + c, share, following, following_shares, n_following)
        size = n_following
        for j in range(size):
            beam[j], shares[j] = following[j], following_shares[j]
    return n_open, size


@bare_inline_kernel
def _swap(a, b, i, j):
    a[i], a[j] = a[j], a[i]
    b[i], b[j] = b[j], b[i]


@bare_kernel
def _keep_largest(items, values, n, kept):
    """Bring the `kept` largest of the first n values to the front, in no order (Hoare's selection)."""
    low, high = 0, n - 1
    while low < high:
        pivot = values[(low + high) // 2]
        i, j = low, high
        while i <= j:
            while values[i] > pivot:
                i += 1
            while values[j] < pivot:
                j -= 1
            if i <= j:
                _swap(items, values, i, j)
                i, j = i + 1, j - 1
        if kept - 1 <= j:
            high = j
        elif kept - 1 >= i:
            low = i
        else:
            return


@bare_kernel
def _gather(size, shape, histograms, search):
    """Collect the most probable candidates of all leaves in the beam; returns their number."""
    n = 0
    mass, found = search.mass, search.candidates
    width, line = np.uint64(histograms.labels.shape[1]), np.uint64(16)
    for j in range(size):  # the nodes are far apart in memory: prefetch all before reading the first
        first = np.uint64(search.beam[j]) * width
        for q in range(np.uint64(0), minimum(width, np.uint64(48)), line):
            vector.prefetch(histograms.labels, first + q)
            vector.prefetch(histograms.label_counts, first + q)
    for j in range(size):
        node = search.beam[j]
        if histograms.total[node] <= _ZERO:
            continue
        share = search.beam_shares[j] / histograms.total[node]
        labels, counts = histograms.labels[node], histograms.label_counts[node]
        for q in range(histograms.n_labels[node]):
            if share * counts[q] < LEAST_MASS:
                break  # the most frequent come first
            label = labels[q]
            if mass[label] == _ZERO:
                found[n] = label
                n += 1
            mass[label] += share * counts[q]
    if shape.n_labels:
        n = shape.n_labels
        for label in range(n):
            found[label] = label
    for q in range(n):
        search.masses[q] = mass[found[q]]
        mass[found[q]] = _ZERO
    if n > shape.n_candidates:
        _keep_largest(found, search.masses, n, shape.n_candidates)
        n = shape.n_candidates
    return n


@fast_kernel
def _add_prior(scores, masses, prior):
    for q in range(scores.size):
        scores[q] += prior * log32(masses[q] + LEAST_MASS)


@fast_kernel
def _sum_of_exponentials(scores, top, sharpness):
    total = _ZERO
    for q in range(scores.size):
        total += exp32(sharpness * (scores[q] - top))
    return total


@bare_kernel
def _score(n, x, regressors, shape, search):
    """Compute the scores of the first n candidates: regressor plus weighted log-probability of the tree."""
    scores_of(regressors, search.candidates, n, x, search.scores)
    _add_prior(search.scores[:n], search.masses[:n], shape.prior)


# --- learning --------------------------------------------------------------------------------------------


@bare_kernel
def _learn_regressors(n, label, x, weight, regressors, shape, rates, search):
    """Update a softmax over the candidates, and the true label if it is not among them (one-against-some)."""
    place = -1
    for q in range(n):
        if search.candidates[q] == label:
            place = q
    thought_of = place >= 0
    if not thought_of:
        place = n
        search.candidates[n], search.masses[n] = label, _ZERO
        n += 1
    _score(n, x, regressors, shape, search)
    best = 0
    for q in range(n):
        if search.scores[q] > search.scores[best]:
            best = q
    right = thought_of and best == place
    softmax(search.scores[:n])
    search.scores[place] -= _ONE
    for q in range(n):
        if abs(search.scores[q]) < rates.least_gradient:
            search.scores[q] = _ZERO
        search.scores[q] *= weight
    update_of(regressors, search.candidates, search.scores, n, x, rates.regressors, rates.initial)
    return right


@bare_kernel
def _learn_routers(n_open, label, x, weight, routers, histograms, shape, rates, search):
    """Update the routers of the expanded nodes towards the children in which the label is frequent.

    The probability of a label at a node is a mixture over the children c: the router's probability of c times the
    frequency of the label in c. The gradient of its logarithm is the posterior of c given the label minus its prior.
    """
    arity = shape.arity
    best = 0  # the most probable path always learns
    for e in range(n_open):
        node, share, children = search.nodes[e], search.shares[e], search.children[e]
        on_path = node == best
        if share < rates.least_share and not on_path:
            continue
        first = node * arity + 1
        key = pair(node, label)
        at = slot(histograms.keys, key)
        known = histograms.keys[at] == key
        gradients = search.gradients[:arity]
        drawn = (key * MIX >> np.uint64(40)) % np.uint64(arity)
        explained, largest = _ZERO, 0
        for c in range(arity):
            count = histograms.counts[at, c] if known else _ZERO
            expected = FIRST_COUNT if c == drawn else RARE_COUNT
            likelihood = (count + expected) / (histograms.total[first + c] + RARE_TOTAL)
            gradients[c] = children[c] * likelihood
            explained += gradients[c]
            if children[c] > children[largest]:
                largest = c
        for c in range(arity):
            gradients[c] = (children[c] - gradients[c] / explained) * share
            if abs(gradients[c]) < rates.least_gradient:
                gradients[c] = _ZERO
            gradients[c] *= weight
        update(routers, node, gradients, arity, x, rates.routers, rates.initial)
        for c in range(arity):
            part = share * children[c]
            if part >= rates.least_share or (on_path and c == largest):
                count = _count(first + c, label, weight * maximum(part, np.float32(0.01)), arity, histograms)
                if first * arity + 1 >= histograms.total.size:
                    _enter(first + c, label, count, histograms)
        if on_path:
            best = first + largest


@bare_kernel
def _has_room(width, n_threads, routers, histograms, search):
    """Return whether no table can overflow with the next row of every thread."""
    n_open = n_threads * search.nodes.size
    return room_left(routers) >= width * n_open and histograms.keys.size * 3 // 4 - histograms.used[0] >= n_open


@kernel
def learn(examples, order, start, fall, n_threads, tree, shape, rates, search, found):
    """Learn the rows order[start:]; returns how many are done, fewer if a table must be enlarged first.

    `tree` has all that is learned. The rates of row i are multiplied by fall[i], gradients and counts by the weight of
    the row, if there are weights. `found` counts the rows whose label was predicted (0) and among the candidates (1)
    before they were learned.
    """
    rows, labels, row_weights = examples
    routers, regressors, histograms = tree
    for i in range(start, order.size):
        x, label = row_of(rows, order[i]), labels[order[i]]
        n_buckets = buckets_needed(regressors, x, n_threads * (shape.n_candidates + 1))
        has_room = _has_room(width_of(x), n_threads, routers, histograms, search)
        if not (has_room and reserve(regressors, n_buckets)):
            return i
        now = Rates(
            rates.regressors * fall[i], rates.routers * fall[i], rates.initial, rates.least_gradient, rates.least_share
        )  # fmt: skip
        weight = row_weights[order[i]] if row_weights.size else _ONE
        n_open, size = _descend(x, routers, shape, search)
        n = _gather(size, shape, histograms, search)
        for q in range(n):
            found[1] += search.candidates[q] == label
        found[0] += _learn_regressors(n, label, x, weight, regressors, shape, now, search)
        _learn_routers(n_open, label, x, weight, routers, histograms, shape, now, search)
        release(regressors, n_buckets)
    return order.size


@kernel
def room_for(rows, i, n_threads, regressors, shape):
    """Return the maximum number of hash buckets that the regressors need for a row."""
    return buckets_needed(regressors, row_of(rows, i), n_threads * (shape.n_candidates + 1))


@kernel
def predict(rows, n_rows, routers, regressors, histograms, shape, search, weights, first, of_first, ids, probabilities):
    """Compute the best candidates of each row (`first`), the best of those with a weight, and their probabilities; either
    may have no columns."""
    n_first, k = first.shape[1], ids.shape[1]
    for i in range(n_rows):
        x = row_of(rows, i)
        _, size = _descend(x, routers, shape, search)
        n = _gather(size, shape, histograms, search)
        _score(n, x, regressors, shape, search)
        n_leading, filled, top = 0, 0, search.scores[0]
        for q in range(n):
            label, score = search.candidates[q], search.scores[q]
            top = maximum(top, score)
            if n_first:
                n_leading = offer(label, score, first[i], of_first[i], n_leading)
            if k and weights[label] > _ZERO:
                filled = offer(label, score, ids[i], probabilities[i], filled)
        total = _sum_of_exponentials(search.scores[:n], top, shape.sharpness) if n else _ZERO
        _to_shares(first[i], of_first[i], n_leading, top, total, shape.sharpness)
        _to_shares(ids[i], probabilities[i], filled, top, total, shape.sharpness)


@bare_inline_kernel
def _to_shares(labels, scores, n, top, total, sharpness):
    """Convert the scores of the best n labels to probabilities; the rest are -1 and 0."""
    for q in range(n):
        scores[q] = exp32(sharpness * (scores[q] - top)) / total
    pad(labels, scores, n)
