"""Prediction of softmax trees for dense rows: one path in each tree, and the softmax of its leaf.

Nodes of all trees are numbered together. `children[node]` are the left and the right child of a decision node;
a number below zero is a leaf, -1 the first. The classes of leaf l are those from starts[l] to starts[l + 1].

Nearly all of the time is spent on the weights of leaves. They are stored in panels of sixteen classes, so that one
vector register has the same feature of all of them, and a leaf is read sequentially. Rows at the same leaf are scored
four at a time, to share memory reads. A score is summed in the same order whether a row is alone or with others, so
that predictions are bit-identical.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from treemax.kernels import vector
from treemax.kernels.intrinsics import empty, maximum, minimum, zeros
from treemax.kernels.jit import bare_inline_kernel, bare_kernel, kernel

PANEL = vector.WIDTH  # classes whose weights are interleaved, feature by feature
FEW = 8  # classes at the end of a leaf for which a panel would be a waste
TOGETHER = 8  # rows that descend together: their features stay in the L1 cache
_ZERO, _ONE, _LEAST = np.float32(0.0), np.float32(1.0), np.float32(1e-30)
_LOWEST = np.float32(-3e38)
_NEXT, _TWO, _THREE, _FOUR = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)
_WIDE, _FEW = np.uint64(PANEL), np.uint64(FEW)


class Structure(NamedTuple):
    """The shape of all trees."""

    roots: np.ndarray
    children: np.ndarray
    starts: np.ndarray  # of the classes of each leaf
    classes: np.ndarray


class Planes(NamedTuple):
    """The hyperplanes of decision nodes."""

    weights: np.ndarray
    bias: np.ndarray


class Leaves(NamedTuple):
    """The softmaxes of leaves: float16 weights, multiplied by the scale of their class; those of leaf l start at
    starts[l] times the features. A panel has the weights of sixteen classes for one feature, then for the next. The
    remaining classes of a leaf are a narrower panel, which is also read in whole vectors, so that all arrays are padded
    by sixteen; or, if they are few, stored class by class.
    """

    halves: np.ndarray
    scale: np.ndarray
    bias: np.ndarray


class Room(NamedTuple):
    """Buffers for averaging the labels of several trees."""

    mass: np.ndarray  # of every label; zero between rows
    labels: np.ndarray  # of a row in all trees


@bare_inline_kernel
def _plane_score(weights, bias, x):
    n, step = np.uint64(x.size), _FOUR * _WIDE
    whole, wide = n - n % step, n - n % _WIDE
    a, b, c, e = vector.splat(_ZERO), vector.splat(_ZERO), vector.splat(_ZERO), vector.splat(_ZERO)
    for d in range(np.uint64(0), whole, step):
        a = vector.multiply_add(vector.load(weights, d), vector.load(x, d), a)
        at = d + _WIDE
        b = vector.multiply_add(vector.load(weights, at), vector.load(x, at), b)
        at += _WIDE
        c = vector.multiply_add(vector.load(weights, at), vector.load(x, at), c)
        at += _WIDE
        e = vector.multiply_add(vector.load(weights, at), vector.load(x, at), e)
    for d in range(whole, wide, _WIDE):
        a = vector.multiply_add(vector.load(weights, d), vector.load(x, d), a)
    score = vector.total(vector.add(vector.add(a, b), vector.add(c, e)))
    for d in range(wide, n):
        score += weights[d] * x[d]
    return score + bias


@bare_inline_kernel
def _descend(rows, first, last, structure, planes, found):
    """Descend all trees with several rows in lockstep, so that their dot products overlap."""
    n_trees = structure.roots.size
    for visit in range(first * n_trees, last * n_trees):
        found[visit] = structure.roots[visit % n_trees]
    going = True
    while going:
        going = False
        for i in range(first, last):
            for visit in range(i * n_trees, (i + 1) * n_trees):
                node = found[visit]
                if node >= 0:
                    score = _plane_score(planes.weights[node], planes.bias[node], rows[i])
                    node = structure.children[node, 1 if score >= _ZERO else 0]
                    found[visit] = node
                    going |= node >= 0


@bare_kernel
def paths(rows, structure, planes, found):
    """Compute the leaf of each row in each tree, row by row."""
    n_rows = rows.shape[0]
    for first in range(0, n_rows, TOGETHER):
        _descend(rows, first, minimum(first + TOGETHER, n_rows), structure, planes, found)
    for visit in range(found.size):
        found[visit] = -1 - found[visit]


@bare_kernel
def _sort_by_leaf(found, counts, order):
    """Counting sort of visits (pairs of row and tree) by leaf; `counts` are zeros, one more than leaves."""
    for leaf in found:
        counts[leaf + 1] += 1
    for leaf in range(1, counts.size):
        counts[leaf] += counts[leaf - 1]
    for visit in range(found.size):
        leaf = found[visit]
        order[counts[leaf]] = visit
        counts[leaf] += 1


@bare_inline_kernel
def _add_feature(leaves, at, rows, i, d, total):
    """Add the part of a feature to the scores of a panel."""
    return vector.multiply_add(vector.load_halves(leaves.halves, at), vector.splat(rows[i, d]), total)


@bare_inline_kernel
def _store_scores(total, own, leaves, out, place):
    scale, bias = vector.load(leaves.scale, own), vector.load(leaves.bias, own)
    vector.store(out, place, vector.multiply_add(total, scale, bias))


@bare_inline_kernel
def _score_one(rows, i, leaves, own, width, out, place):
    """Compute the scores of the panel whose first class is `own`, for a row."""
    n, at = np.uint64(rows.shape[1]), own * np.uint64(rows.shape[1])
    pairs = n - n % _TWO
    even, odd = vector.splat(_ZERO), vector.splat(_ZERO)
    for d in range(np.uint64(0), pairs, _TWO):
        even = _add_feature(leaves, at, rows, i, d, even)
        odd = _add_feature(leaves, at + width, rows, i, d + _NEXT, odd)
        at += _TWO * width
    if pairs < n:
        even = _add_feature(leaves, at, rows, i, pairs, even)
    _store_scores(vector.add(even, odd), own, leaves, out, place)


@bare_inline_kernel
def _add_feature_of_four(leaves, at, rows, four, d, totals):
    weights = vector.load_halves(leaves.halves, at)
    return (
        vector.multiply_add(weights, vector.splat(rows[four[0], d]), totals[0]),
        vector.multiply_add(weights, vector.splat(rows[four[1], d]), totals[1]),
        vector.multiply_add(weights, vector.splat(rows[four[2], d]), totals[2]),
        vector.multiply_add(weights, vector.splat(rows[four[3], d]), totals[3]),
    )


@bare_inline_kernel
def _score_four(rows, four, leaves, own, width, out, places):
    """Compute the same for four rows, which share the weights that are read."""
    n, at = np.uint64(rows.shape[1]), own * np.uint64(rows.shape[1])
    pairs = n - n % _TWO
    even = (vector.splat(_ZERO), vector.splat(_ZERO), vector.splat(_ZERO), vector.splat(_ZERO))
    odd = even
    for d in range(np.uint64(0), pairs, _TWO):
        even = _add_feature_of_four(leaves, at, rows, four, d, even)
        odd = _add_feature_of_four(leaves, at + width, rows, four, d + _NEXT, odd)
        at += _TWO * width
    if pairs < n:
        even = _add_feature_of_four(leaves, at, rows, four, pairs, even)
    _store_scores(vector.add(even[0], odd[0]), own, leaves, out, places[0])
    _store_scores(vector.add(even[1], odd[1]), own, leaves, out, places[1])
    _store_scores(vector.add(even[2], odd[2]), own, leaves, out, places[2])
    _store_scores(vector.add(even[3], odd[3]), own, leaves, out, places[3])


@bare_inline_kernel
def _score_class(x, leaves, own):
    """Return the score of a class whose weights lie together."""
    n, step = np.uint64(x.size), _TWO * _WIDE
    start, whole = own * n, n - n % step
    even, odd = vector.splat(_ZERO), vector.splat(_ZERO)
    for d in range(np.uint64(0), whole, step):
        even = vector.multiply_add(vector.load_halves(leaves.halves, start + d), vector.load(x, d), even)
        at = d + _WIDE
        odd = vector.multiply_add(vector.load_halves(leaves.halves, start + at), vector.load(x, at), odd)
    total = vector.total(vector.add(even, odd))
    for d in range(whole, n):
        total += vector.load_half(leaves.halves, start + d) * x[d]
    return total * leaves.scale[own] + leaves.bias[own]


@bare_inline_kernel
def _score_few(rows, i, leaves, first, end, out, place):
    """Compute the scores of the classes that are left over from the panels of a leaf."""
    for own in range(first, end):
        out[place + own - first] = _score_class(rows[i], leaves, own)


@bare_inline_kernel
def _visit(rows, visit, n_trees, first, end, leaves, scores, stride):
    """The scores of a visit to the leaf that has the classes from `first` to `end`."""
    row, place = visit // n_trees, visit * stride
    in_panels = _end_of_panels(first, end)
    for own in range(first, in_panels, _WIDE):
        _score_one(rows, row, leaves, own, minimum(_WIDE, end - own), scores, place + own - first)
    _score_few(rows, row, leaves, in_panels, end, scores, place + in_panels - first)


@bare_inline_kernel
def _four_visits(rows, visits, n_trees, first, end, leaves, scores, stride):
    """Compute the same for four visits to one leaf."""
    a, b, c, d = visits
    four = (a // n_trees, b // n_trees, c // n_trees, d // n_trees)
    in_panels = _end_of_panels(first, end)
    for own in range(first, in_panels, _WIDE):
        at = own - first
        places = (a * stride + at, b * stride + at, c * stride + at, d * stride + at)
        _score_four(rows, four, leaves, own, minimum(_WIDE, end - own), scores, places)
    for visit in visits:
        _score_few(rows, visit // n_trees, leaves, in_panels, end, scores, visit * stride + in_panels - first)


@bare_inline_kernel
def _end_of_panels(first, end):
    """Return where the classes of a leaf begin that are too few for a panel."""
    left = (end - first) % _WIDE
    return end - left if left <= _FEW else end


@bare_kernel
def _score_leaves(rows, found, order, structure, leaves, scores, stride):
    """Compute the scores of all visits, leaf by leaf."""
    n, n_trees = np.uint64(found.size), np.uint64(structure.roots.size)
    at = np.uint64(0)
    while at < n:
        leaf = found[order[at]]
        first, end = np.uint64(structure.starts[leaf]), np.uint64(structure.starts[leaf + 1])
        are_four = at + _THREE < n and found[order[at + _THREE]] == leaf
        after = at + (_FOUR if are_four else _NEXT)
        if are_four:
            visits = (order[at], order[at + _NEXT], order[at + _TWO], order[at + _THREE])
            _four_visits(rows, visits, n_trees, first, end, leaves, scores, stride)
        else:
            _visit(rows, order[at], n_trees, first, end, leaves, scores, stride)
        at = after


@bare_inline_kernel
def _lanes(n):
    """Return bits of the lanes of a panel that n values fill."""
    return np.uint32((1 << minimum(_WIDE, n)) - 1)


@bare_inline_kernel
def _softmax(scores, n, mass):
    """Replace n scores by probabilities that sum to `mass`; the last panel is padded with zeros.

    Scores of huge features may be infinite or NaN: then probabilities mean little, but they are finite.
    """
    lowest, zero = vector.splat(_LOWEST), vector.splat(_ZERO)
    tops, totals = lowest, zero
    for q in range(np.uint64(0), n, _WIDE):
        tops = vector.maximum(vector.choose(_lanes(n - q), vector.load(scores, q), lowest), tops)  # so NaN is left out
    top = vector.splat(minimum(vector.largest(tops), -_LOWEST))
    for q in range(np.uint64(0), n, _WIDE):
        exponentials = vector.exponential(vector.subtract(vector.load(scores, q), top))
        exponentials = vector.choose(_lanes(n - q), exponentials, zero)
        vector.store(scores, q, exponentials)
        totals = vector.add(totals, exponentials)
    share = vector.splat(mass / vector.total(totals))
    for q in range(np.uint64(0), n, _WIDE):
        vector.store(scores, q, vector.multiply(vector.load(scores, q), share))


@bare_inline_kernel
def _insert(label, value, best, own):
    """Put a label into a sorted list in place of the last one, after those with the same value."""
    at = np.uint64(own.size - 1)
    while at > 0 and own[at - _NEXT] < value:
        own[at], best[at] = own[at - _NEXT], best[at - _NEXT]
        at -= _NEXT
    own[at], best[at] = value, label


@bare_inline_kernel
def _floor(values, n, k):
    """Return a lower bound of the k-th largest of n values: the k-th largest of the maxima of the lanes."""
    if k > PANEL:
        return -_ONE
    tops = vector.splat(_ZERO)
    for first in range(np.uint64(0), n, _WIDE):
        tops = vector.maximum(tops, vector.load(values, first))
    top = vector.largest(tops)
    for _ in range(1, k):
        tops = vector.choose(vector.bits_above(vector.splat(top), tops), tops, vector.splat(_ZERO))
        top = vector.largest(tops)
    return top


@bare_inline_kernel
def _select(labels, values, n, best, own):
    """Compute the best of n labels by values not below zero, which end in whole panels of zeros."""
    best[:] = -1
    own[:] = -_ONE
    last, floor = np.uint64(own.size - 1), _floor(values, n, own.size)
    for first in range(np.uint64(0), n, _WIDE):
        least = vector.splat(maximum(floor, own[last]))
        bits = ~vector.bits_above(least, vector.load(values, first))
        bits &= _lanes(n - first)
        while bits:
            at = first + np.uint64(vector.lowest_bit(bits))
            if values[at] > own[last]:
                _insert(labels[at], values[at], best, own)
            bits &= bits - np.uint32(1)
    for q in range(own.size):
        own[q] = maximum(own[q], _ZERO)


@bare_kernel
def _answer_tree(found, structure, scores, stride, ids, probabilities):
    """Compute the best classes of each row."""
    for i in range(np.uint64(ids.shape[0])):
        first, end = structure.starts[found[i]], structure.starts[found[i] + 1]
        own, n = scores[i * stride : (i + _NEXT) * stride], np.uint64(end - first)
        _softmax(own, n, _ONE)
        _select(structure.classes[first:end], own, n, ids[i], probabilities[i])


@bare_inline_kernel
def _add_labels(classes, probabilities, room, n):
    """Add the labels of a leaf to the n labels of a row; returns their new number."""
    for q in range(np.uint64(classes.size)):
        label = np.uint64(classes[q])
        before = room.mass[label]
        room.labels[n] = label  # overwritten unless the label is new: avoids an unpredictable branch
        n += np.uint64(before == _ZERO)
        room.mass[label] = before + maximum(probabilities[q], _LEAST)
    return n


@bare_kernel
def _answer_forest(found, structure, scores, stride, room, ids, probabilities):
    """Compute the best classes of each row, by the mean of the probabilities in all trees."""
    n_trees = np.uint64(structure.roots.size)
    share = _ONE / np.float32(n_trees)
    for i in range(np.uint64(ids.shape[0])):
        n = np.uint64(0)
        for visit in range(i * n_trees, (i + _NEXT) * n_trees):
            first, end = structure.starts[found[visit]], structure.starts[found[visit] + 1]
            own = scores[visit * stride : (visit + _NEXT) * stride]
            _softmax(own, np.uint64(end - first), share)
            n = _add_labels(structure.classes[first:end], own, room, n)
        sums = scores[i * n_trees * stride : (i + _NEXT) * n_trees * stride]  # overwrites its own input
        for q in range(n):
            label = np.uint64(room.labels[q])
            sums[q] = room.mass[label]
            room.mass[label] = _ZERO
        for q in range(n, (n + _WIDE - _NEXT) // _WIDE * _WIDE):
            sums[q] = _ZERO
        _select(room.labels, sums, n, ids[i], probabilities[i])


@kernel
def predict(rows, structure, planes, leaves, widest, n_labels, ids, probabilities):
    """Compute the best classes of each row. `widest` is the number of classes of the leaf that has most.

    Takes plain instead of named tuples, because unboxing these takes as long as the prediction of a row.
    """
    structure, planes, leaves = Structure(*structure), Planes(*planes), Leaves(*leaves)
    roots, starts = structure.roots, structure.starts
    n_visits, stride = ids.shape[0] * roots.size, (widest + PANEL - 1) // PANEL * PANEL
    found, order = empty(n_visits, np.int64), empty(n_visits, np.uint64)
    paths(rows, structure, planes, found)
    if ids.shape[0] > 1:
        _sort_by_leaf(found, zeros(starts.size, np.int64), order)
    else:  # trees are numbered one after the other, and so are their leaves
        for visit in range(n_visits):
            order[visit] = visit
    scores = empty(n_visits * stride, np.float32)
    _score_leaves(rows, found, order, structure, leaves, scores, np.uint64(stride))
    if roots.size == 1:
        _answer_tree(found, structure, scores, np.uint64(stride), ids, probabilities)
    else:
        room = Room(zeros(n_labels, np.float32), empty(roots.size * widest, np.int64))
        _answer_forest(found, structure, scores, np.uint64(stride), room, ids, probabilities)
