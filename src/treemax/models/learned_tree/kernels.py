"""Joint training of embeddings and the softmaxes along a path (Jernite, Choromanska and Sontag, 2017).

A row is represented by the sum of its features' embeddings, each times the feature's value. A node with c children
has c vectors and computes the softmax of their products with the row; a node with two children needs one vector,
and one with a single child none. All vectors have length `width`, a multiple of sixteen, padded with zeros. The
optimizer is AdaGrad with one sum of squares per vector, or plain SGD.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from treemax.kernels import vector
from treemax.kernels.arithmetic import exp32, log32, next_random
from treemax.kernels.intrinsics import empty, maximum
from treemax.kernels.jit import (
    bare_fast_inline_kernel,
    bare_inline_kernel,
    fast_inline_kernel,
    fast_kernel,
    inline_kernel,
    kernel,
)

ALL_LABELS, ONE_LABEL = 0, 1  # of a row, in one step
PLAIN, ADAGRAD = 0, 1
LOG_LIKELIHOOD, PROBABILITY = 0, 1  # objective of a step at a node: log p of the target child, or p
ONE, ZERO = np.float32(1.0), np.float32(0.0)
_NEXT, _TWO, _THREE, _FOUR = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)
_AHEAD = np.uint64(2)  # rows before which vectors and embeddings are prefetched
_STEP = np.uint64(4)  # rows before that, each step of the way to them is prefetched
_MOST_LINES = np.uint64(32)  # cache lines to prefetch; more would delay the current row
_LANES = np.uint64(vector.WIDTH)
_SMALLEST = np.float32(1e-30)
_TINY = np.float32(1e-18)  # whose square is not zero


class Paths(NamedTuple):
    """For every label the nodes from the root to it: first vector, number of children, and target child."""

    starts: np.ndarray
    firsts: np.ndarray
    counts: np.ndarray
    slots: np.ndarray


class Vectors(NamedTuple):
    """The vectors of all nodes, their biases and AdaGrad's sums of squares."""

    weights: np.ndarray
    biases: np.ndarray
    squares: np.ndarray
    width: np.uint64


class Embeddings(NamedTuple):
    """The embeddings of features, AdaGrad's sums of squares, and the factor of a row's values."""

    numbers: np.ndarray
    squares: np.ndarray
    scale: np.float32


class Step(NamedTuple):
    """Settings of a step of gradient descent."""

    rate: np.float32
    least: np.float32  # error of a vector to be updated
    optimizer: int
    objective: int
    labels: int  # all labels of a row, or one
    dropout: float
    seed: np.uint64


class Scratch(NamedTuple):
    """Scratch memory of one thread: a row, its gradient, vectors of a path, and features after dropout."""

    hidden: np.ndarray
    gradient: np.ndarray
    numbers: np.ndarray
    kept: np.ndarray
    scores: np.ndarray
    sizes: np.ndarray
    indices: np.ndarray
    values: np.ndarray


@fast_inline_kernel
def _clear(array, width):
    zero = vector.splat(ZERO)
    for i in range(np.uint64(0), width, _LANES):
        vector.store(array, i, zero)


@fast_inline_kernel
def sum_embeddings(indices, values, first, last, scale, embeddings, width, out):
    """The sum of the embeddings of a row's features, sixteen dimensions at a time."""
    for i in range(np.uint64(0), width, _LANES):
        even, odd = vector.splat(ZERO), vector.splat(ZERO)
        p = first
        while p + _NEXT < last:
            at = np.uint64(indices[p]) * width + i
            next_at = np.uint64(indices[p + _NEXT]) * width + i
            even = vector.multiply_add(vector.splat(values[p]), vector.load(embeddings, at), even)
            odd = vector.multiply_add(vector.splat(values[p + _NEXT]), vector.load(embeddings, next_at), odd)
            p += np.uint64(2)
        if p < last:
            at = np.uint64(indices[p]) * width + i
            even = vector.multiply_add(vector.splat(values[p]), vector.load(embeddings, at), even)
        vector.store(out, i, vector.multiply(vector.add(even, odd), vector.splat(scale)))


@fast_inline_kernel
def _product(hidden, row, weights, start, width):
    """Return the product of the row that begins at `row` and the vector that begins at `start`."""
    sums = vector.splat(ZERO)
    for i in range(np.uint64(0), width, _LANES):
        sums = vector.multiply_add(vector.load(hidden, row + i), vector.load(weights, start + i), sums)
    return vector.total(sums)


@inline_kernel
def n_vectors(n_children):
    """Return the number of weight vectors of a node with `n_children` children."""
    return n_children if n_children > 2 else n_children - 1


@fast_inline_kernel
def _store_four_products(hidden, row, weights, start, width, out, at):
    """Store the products of a row and the four vectors that begin at `start`."""
    second, third, fourth = start + width, start + _TWO * width, start + _THREE * width
    a, b, c, d = vector.splat(ZERO), vector.splat(ZERO), vector.splat(ZERO), vector.splat(ZERO)
    for i in range(np.uint64(0), width, _LANES):
        numbers = vector.load(hidden, row + i)
        a = vector.multiply_add(numbers, vector.load(weights, start + i), a)
        b = vector.multiply_add(numbers, vector.load(weights, second + i), b)
        c = vector.multiply_add(numbers, vector.load(weights, third + i), c)
        d = vector.multiply_add(numbers, vector.load(weights, fourth + i), d)
    vector.store_totals(out, at, a, b, c, d)


@fast_inline_kernel
def score_all(hidden, row, weights, biases, first, n, width, out, at):
    """Compute products of the row at offset `row` with n consecutive vectors, plus biases."""
    fours = n - n % _FOUR
    for v in range(np.uint64(0), fours, _FOUR):
        _store_four_products(hidden, row, weights, (first + v) * width, width, out, at + v)
    for v in range(np.uint64(0), fours):
        out[at + v] += biases[first + v]
    for v in range(fours, n):
        number = first + v
        out[at + v] = _product(hidden, row, weights, number * width, width) + biases[number]


@fast_inline_kernel
def softmax_of_children(scores, at, n_children):
    """Replace the scores of a node's vectors by the probabilities of its children.

    In place: with two arrays, LLVM selects a loop by their addresses, which can change the last bit.
    """
    if n_children == np.uint64(1):
        scores[at] = ONE
        return
    if n_children == np.uint64(2):
        second = ONE / (ONE + exp32(-scores[at]))
        scores[at] = ONE - second
        scores[at + _NEXT] = second
        return
    top = scores[at]
    for c in range(_NEXT, n_children):
        top = maximum(top, scores[at + c])
    total = ZERO
    for c in range(np.uint64(0), n_children):
        e = exp32(scores[at + c] - top)
        scores[at + c] = e
        total += e
    share = ONE / total
    for c in range(np.uint64(0), n_children):
        scores[at + c] *= share


@fast_inline_kernel
def _errors(scores, at, n_children, target):
    """Replace the scores of a node's vectors by one-hot target minus probability; returns p(target)."""
    if n_children == np.uint64(2):
        second = ONE / (ONE + exp32(-scores[at]))
        chosen = second if target == _NEXT else ONE - second
        scores[at] = np.float32(target) - second
        return chosen
    softmax_of_children(scores, at, n_children)
    chosen = scores[at + target]
    for c in range(np.uint64(0), n_children):
        scores[at + c] = -scores[at + c]
    scores[at + target] = ONE - chosen
    return chosen


@fast_inline_kernel
def _note_shares(errors, at, n_children, target, sums, to):
    """Add the probabilities of a node's children, recovered from the errors, to `sums`."""
    if n_children == np.uint64(2):
        second = np.float32(target) - errors[at]
        sums[to] += ONE - second
        sums[to + _NEXT] += second
        return
    for c in range(np.uint64(0), n_children):
        sums[to + c] -= errors[at + c]
    sums[to + target] += ONE


@fast_inline_kernel
def _squared(array, width):
    sums = vector.splat(ZERO)
    for i in range(np.uint64(0), width, _LANES):
        numbers = vector.load(array, i)
        sums = vector.multiply_add(numbers, numbers, sums)
    return vector.total(sums)


@bare_fast_inline_kernel
def _step_sizes(n, squared, weight, step, squares, scratch):
    """Select the vectors whose error is not negligible; writes their numbers to `kept`, and their step sizes."""
    numbers, errors, kept, sizes = scratch.numbers, scratch.scores, scratch.kept, scratch.sizes
    left = np.uint64(0)
    for v in range(np.uint64(0), n):
        error = errors[v] * weight
        if abs(error) < step.least:
            continue
        number = numbers[v]
        size = step.rate * error
        if step.optimizer == ADAGRAD:
            square = squares[number] + error * error * squared
            squares[number] = square
            size /= np.float32(math.sqrt(square))
        kept[left] = number
        errors[left] = error
        sizes[left] = size
        left += _NEXT
    return left


@bare_fast_inline_kernel
def _move(left, vectors, scratch):
    """Update the vectors, and add the gradient by the row to `gradient`."""
    weights, width, hidden, gradient = vectors.weights, vectors.width, scratch.hidden, scratch.gradient
    errors, kept, sizes = scratch.scores, scratch.kept, scratch.sizes
    for i in range(np.uint64(0), width, _LANES):
        row, wanted = vector.load(hidden, i), vector.load(gradient, i)
        for v in range(np.uint64(0), left):
            at = np.uint64(kept[v]) * width + i
            numbers = vector.load(weights, at)
            wanted = vector.multiply_add(vector.splat(errors[v]), numbers, wanted)
            vector.store(weights, at, vector.multiply_add(vector.splat(sizes[v]), row, numbers))
        vector.store(gradient, i, wanted)
    for v in range(np.uint64(0), left):
        vectors.biases[kept[v]] += sizes[v]


@bare_fast_inline_kernel
def _learn_path(label, paths, vectors, squared, weight, step, statistics, scratch):
    """One step on log p of a label, or on the p of each node of its path; returns log p.

    `statistics` has the index of each node of a path into sums of probabilities, these sums and their numbers of
    examples: SumProbas and Counts of Algorithm 1. Without indices nothing is summed.
    """
    places, sums, seen = statistics
    scores = scratch.scores
    begin, end = np.uint64(paths.starts[label]), np.uint64(paths.starts[label + _NEXT])
    n = np.uint64(0)
    for s in range(begin, end):
        first, count = np.uint64(paths.firsts[s]), np.uint64(n_vectors(paths.counts[s]))
        score_all(scratch.hidden, np.uint64(0), vectors.weights, vectors.biases, first, count, vectors.width, scores, n)
        for v in range(np.uint64(0), count):
            scratch.numbers[n + v] = np.uint32(first + v)
        n += count
    likelihood, product = ZERO, ONE
    n = np.uint64(0)
    for s in range(begin, end):
        children, target = np.uint64(paths.counts[s]), np.uint64(paths.slots[s])
        count = np.uint64(n_vectors(paths.counts[s]))
        if children > _NEXT:
            chosen = _errors(scores, n, children, target)
            if places.size > 0:
                place = np.uint64(places[s])
                _note_shares(scores, n, children, target, sums, place * np.uint64(sums.size // seen.size))
                seen[place] += ONE
            if step.objective == PROBABILITY:  # the gradient of p is p times that of log p
                for v in range(n, n + count):
                    scores[v] *= chosen
            product *= maximum(chosen, _TINY)
            if product < _TINY:  # one logarithm for many factors
                likelihood += log32(product)
                product = ONE
        n += count
    likelihood += log32(product)
    _move(_step_sizes(n, squared, weight, step, vectors.squares, scratch), vectors, scratch)
    return likelihood


@bare_fast_inline_kernel
def _move_embeddings(n, embeddings, step, width, scratch):
    """Update the embeddings of the row's features, `n` after dropout."""
    numbers, squares, gradient = embeddings.numbers, embeddings.squares, scratch.gradient
    length = _squared(gradient, width)
    for p in range(np.uint64(0), n):
        feature = np.uint64(scratch.indices[p])
        value = scratch.values[p] * embeddings.scale
        size = step.rate * value
        if step.optimizer == ADAGRAD:
            square = squares[feature] + value * value * length
            squares[feature] = square
            size /= np.float32(math.sqrt(maximum(square, _SMALLEST)))
        for i in range(np.uint64(0), width, _LANES):
            at = feature * width + i
            moved = vector.multiply_add(vector.splat(size), vector.load(gradient, i), vector.load(numbers, at))
            vector.store(numbers, at, moved)


@bare_fast_inline_kernel
def _prefetch_path(label, paths, weights, width):
    """Prefetch the vectors of the last nodes of a path; those near the root are in the cache anyway."""
    s, asked = np.uint64(paths.starts[label + _NEXT]), np.uint64(0)
    while s > np.uint64(paths.starts[label]) and asked < _MOST_LINES:
        s -= _NEXT
        at, length = np.uint64(paths.firsts[s]) * width, np.uint64(n_vectors(paths.counts[s])) * width
        for i in range(np.uint64(0), length, _LANES):
            vector.prefetch(weights, at + i)
        asked += length // _LANES


@bare_fast_inline_kernel
def _prefetch(rows, row, embeddings, width):
    """Prefetch the embeddings of a later row."""
    for p in range(np.uint64(rows.indptr[row]), np.uint64(rows.indptr[row + _NEXT])):
        at = np.uint64(rows.indices[p]) * width
        for i in range(np.uint64(0), width, _LANES):
            vector.prefetch(embeddings, at + i)


@bare_fast_inline_kernel
def _prefetch_steps(rows, order, o, label_starts, labels, paths):
    """Prefetch what `_prefetch` and `_prefetch_path` will read: where later rows begin, then their entries and labels,
    then where the labels' paths begin, then the paths."""
    n, at = np.uint64(order.size), o + _AHEAD + _STEP
    if at < n:
        row = np.uint64(order[at])
        if label_starts[row] < label_starts[row + _NEXT]:
            start = np.uint64(paths.starts[np.uint64(labels[label_starts[row]])])
            vector.prefetch(paths.firsts, start)
            vector.prefetch(paths.counts, start)
            vector.prefetch(paths.slots, start)
    at += _STEP
    if at < n:
        row = np.uint64(order[at])
        if label_starts[row] < label_starts[row + _NEXT]:
            vector.prefetch(paths.starts, np.uint64(labels[label_starts[row]]))
    at += _STEP
    if at < n:
        row = np.uint64(order[at])
        vector.prefetch(labels, np.uint64(label_starts[row]))
        start, last = np.uint64(rows.indptr[row]), np.uint64(rows.indptr[row + _NEXT])
        for p in range(start, last, _LANES):
            vector.prefetch(rows.indices, p)
            vector.prefetch(rows.values, p)
    at += _STEP
    if at < n:
        row = np.uint64(order[at])
        vector.prefetch(rows.indptr, row)
        vector.prefetch(label_starts, row)


@bare_inline_kernel
def _drop(rows, row, most, random, scratch):
    """Dropout: copy the features of a row whose random number is below `most` (of 2**32), at least one.

    Returns their number and the new state of the random number generator."""
    n, last = np.uint64(0), np.uint64(rows.indptr[row + _NEXT])
    for p in range(np.uint64(rows.indptr[row]), last):
        random = next_random(random)
        scratch.indices[n] = rows.indices[p]
        scratch.values[n] = rows.values[p]
        n += np.uint64((random >> np.uint64(32)) < most)  # no branch, which could not be predicted
    if n == np.uint64(0) and np.uint64(rows.indptr[row]) < last:
        return _NEXT, random
    return n, random


@fast_kernel
def learn(rows, order, label_starts, labels, paths, embeddings, vectors, step, statistics, scratch):
    """Learn the rows of `order`; returns the sum of log p and the number of labels in it."""
    hidden, width = scratch.hidden, vectors.width
    likelihood, n_learned, random = 0.0, 0, step.seed
    most = np.uint64((1.0 - step.dropout) * 4294967296.0)
    for o in range(np.uint64(0), np.uint64(order.size)):
        row = np.uint64(order[o])
        _prefetch_steps(rows, order, o, label_starts, labels, paths)
        if o + _AHEAD < np.uint64(order.size):
            ahead = np.uint64(order[o + _AHEAD])
            _prefetch(rows, ahead, embeddings.numbers, width)
            if label_starts[ahead] < label_starts[ahead + _NEXT]:
                _prefetch_path(np.uint64(labels[label_starts[ahead]]), paths, vectors.weights, width)
        begin, end = np.uint64(label_starts[row]), np.uint64(label_starts[row + _NEXT])
        if begin == end:
            continue
        if step.labels == ONE_LABEL and end - begin > _NEXT:
            random = next_random(random)
            begin += (random >> np.uint64(32)) % (end - begin)
            end = begin + _NEXT
        n_kept, random = _drop(rows, row, most, random, scratch)
        sum_embeddings(
            scratch.indices, scratch.values, np.uint64(0), n_kept, embeddings.scale, embeddings.numbers, width, hidden
        )  # fmt: skip
        _clear(scratch.gradient, width)
        squared = _squared(hidden, width) + ONE  # the one is for the bias
        weight = ONE / np.float32(end - begin)
        for place in range(begin, end):
            label = np.uint64(labels[place])
            likelihood += weight * _learn_path(label, paths, vectors, squared, weight, step, statistics, scratch)
        n_learned += 1
        _move_embeddings(n_kept, embeddings, step, width, scratch)
    return likelihood, n_learned


# --- the structure of the tree ---------------------------------------------------------------------------


@kernel
def parents_and_depths(children, child_starts, n_children, parents, slots, depths, leaf_parents, leaf_slots, waiting):
    """Return the parent and the position among its children of every inner node and leaf, and the depth of inner nodes.

    A child is the number of an inner node, or -1 - label for a leaf. `waiting` is a buffer for all nodes and returns
    those in use, parents first. Returns their number.
    """
    waiting[0], depths[0], parents[0] = 0, 0, 0
    n = 1
    at = 0
    while at < n:
        node = waiting[at]
        at += 1
        for slot in range(n_children[node]):
            child = children[child_starts[node] + slot]
            if child < 0:
                leaf_parents[-1 - child] = node
                leaf_slots[-1 - child] = slot
                continue
            parents[child] = node
            slots[child] = slot
            depths[child] = depths[node] + 1
            waiting[n] = child
            n += 1
    return n


@kernel
def write_paths(
    path_starts, n_children, first_vectors, parents, slots, leaf_parents, leaf_slots, firsts, counts, targets
):
    """For every label the nodes of its path: the first vector, the number of children, and the target child."""
    for label in range(leaf_parents.size):
        node, slot = leaf_parents[label], leaf_slots[label]
        for s in range(path_starts[label + 1] - 1, path_starts[label] - 1, -1):
            firsts[s] = first_vectors[node]
            counts[s] = n_children[node]
            targets[s] = slot
            slot = slots[node]
            node = parents[node]


@bare_fast_inline_kernel
def represent_row(rows, row, scale, embeddings, width, out):
    """Compute the sum of the embeddings of a row's features."""
    first, last = np.uint64(rows.indptr[row]), np.uint64(rows.indptr[row + 1])
    sum_embeddings(rows.indices, rows.values, first, last, scale, embeddings, width, out)


@fast_kernel
def represent(rows, chosen, embeddings, width, out):
    """Compute the representations of the chosen rows, one after the other."""
    hidden = empty(width, np.float32)
    for r in range(chosen.size):
        if r + 2 < chosen.size:
            _prefetch(rows, np.uint64(chosen[r + 2]), embeddings.numbers, width)
        represent_row(rows, chosen[r], embeddings.scale, embeddings.numbers, width, hidden)
        out[r] = hidden


@fast_kernel
def represent_means(rows, chosen, starts, embeddings, width, out):
    """Compute the mean representation of each group of rows, such as those of a label; zeros where there are none."""
    hidden, sums = empty(width, np.float32), empty(width, np.float32)
    for label in range(starts.size - 1):
        sums[:] = ZERO
        for r in range(starts[label], starts[label + 1]):
            if r + 2 < chosen.size:
                _prefetch(rows, np.uint64(chosen[r + 2]), embeddings.numbers, width)
            represent_row(rows, chosen[r], embeddings.scale, embeddings.numbers, width, hidden)
            sums += hidden
        out[label] = sums / np.float32(maximum(1, starts[label + 1] - starts[label]))
