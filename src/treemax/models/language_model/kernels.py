"""Gradient steps of a log-bilinear language model on a batch (Jernite, Choromanska and Sontag, 2017, section 6).

The softmaxes along the paths of the target words, computed for all rows that reach a node together; the softmax over
all words; and the updates of embeddings and matrices. The representations of the contexts are computed by NumPy.
Vectors have length `width`, a multiple of sixteen, as in `learned_tree`. The optimizer is AdaGrad with one sum of
squares per vector, or plain SGD.
"""

from __future__ import annotations

import math

import numpy as np

from treemax.kernels import vector
from treemax.kernels.arithmetic import exp32, log32, next_random
from treemax.kernels.intrinsics import empty, maximum, minimum, zeros
from treemax.kernels.jit import bare_fast_inline_kernel, fast_inline_kernel, fast_kernel, inline_kernel, kernel
from treemax.models.learned_tree.kernels import ADAGRAD

_ONE, _ZERO = np.float32(1.0), np.float32(0.0)
_FIRST, _NEXT, _FOUR = np.uint64(0), np.uint64(1), np.uint64(4)
_LANES = np.uint64(vector.WIDTH)


# --- the rows of a node ----------------------------------------------------------------------------------


@inline_kernel
def _n_vectors(n_children):
    """Return the number of weight vectors of a node with `n_children` children."""
    return n_children if n_children > 2 else n_children - 1


@kernel
def _rows_by_node(targets, paths, n_vectors):
    """The rows that reach each node as linked lists: the last entry of each node; and of each entry its row, its target
    child and the previous entry (-1 for none)."""
    path_starts, path_firsts, path_children, path_slots = paths
    n_entries = 0
    for r in range(targets.size):
        n_entries += path_starts[targets[r] + 1] - path_starts[targets[r]]
    last_of = np.full(n_vectors + 1, -1, np.int32)  # by the first vector of a node
    rows, slots, before = empty(n_entries, np.int32), empty(n_entries, np.int32), empty(n_entries, np.int32)
    steps = empty(n_entries, np.int64)
    n_nodes = n = 0
    for r in range(targets.size):
        for s in range(path_starts[targets[r]], path_starts[targets[r] + 1]):
            if path_children[s] < 2:  # nothing to decide
                continue
            first = path_firsts[s]
            if last_of[first] < 0:
                steps[n_nodes] = s
                n_nodes += 1
            rows[n], slots[n], before[n] = r, path_slots[s], last_of[first]
            last_of[first] = n
            n += 1
    return steps[:n_nodes], last_of, rows, slots, before


@fast_inline_kernel
def _score_four(hidden, rows, r, weights, at, width):
    """Return products of four rows, from `rows[r]` on, with one vector."""
    a, b = np.uint64(rows[r]) * width, np.uint64(rows[r + _NEXT]) * width
    c, d = np.uint64(rows[r + np.uint64(2)]) * width, np.uint64(rows[r + np.uint64(3)]) * width
    of_a, of_b = vector.splat(_ZERO), vector.splat(_ZERO)
    of_c, of_d = vector.splat(_ZERO), vector.splat(_ZERO)
    for i in range(_FIRST, width, _LANES):
        w = vector.load(weights, at + i)
        of_a = vector.multiply_add(vector.load(hidden, a + i), w, of_a)
        of_b = vector.multiply_add(vector.load(hidden, b + i), w, of_b)
        of_c = vector.multiply_add(vector.load(hidden, c + i), w, of_c)
        of_d = vector.multiply_add(vector.load(hidden, d + i), w, of_d)
    return vector.total(of_a), vector.total(of_b), vector.total(of_c), vector.total(of_d)


@fast_inline_kernel
def _score_one(hidden, a, weights, at, width):
    sums = vector.splat(_ZERO)
    for i in range(_FIRST, width, _LANES):
        sums = vector.multiply_add(vector.load(hidden, a + i), vector.load(weights, at + i), sums)
    return vector.total(sums)


@bare_fast_inline_kernel
def _score_rows(hidden, rows, n_rows, vectors, first, count, scores):
    """Compute scores[r * count + v]: the product of row r and vector v of a node, four rows at a time."""
    weights, width = vectors.weights, vectors.width
    for v in range(_FIRST, count):
        at, bias = (first + v) * width, vectors.biases[first + v]
        r = _FIRST
        while r + _FOUR <= n_rows:
            place = r * count + v
            of_a, of_b, of_c, of_d = _score_four(hidden, rows, r, weights, at, width)
            scores[place] = of_a + bias
            scores[place + count] = of_b + bias
            scores[place + np.uint64(2) * count] = of_c + bias
            scores[place + np.uint64(3) * count] = of_d + bias
            r += _FOUR
        while r < n_rows:
            scores[r * count + v] = _score_one(hidden, np.uint64(rows[r]) * width, weights, at, width) + bias
            r += _NEXT


@fast_inline_kernel
def _softmax_errors(scores, at, count, target):
    """Replace the scores of a softmax by one-hot target minus probability; returns log p(target)."""
    top = scores[at]
    for v in range(_NEXT, count):
        top = maximum(top, scores[at + v])
    wanted = scores[at + target] - top
    total = _ZERO
    for v in range(_FIRST, count):
        e = exp32(scores[at + v] - top)
        scores[at + v] = e
        total += e
    share = -_ONE / total
    for v in range(_FIRST, count):
        scores[at + v] *= share
    scores[at + target] += _ONE
    return wanted - log32(total)


@fast_inline_kernel
def _errors(scores, at, count, target):
    """Return the same for any node: one with two children has one score, that of its second child."""
    if count > _NEXT:
        return _softmax_errors(scores, at, count, target)
    score = scores[at] if target == _NEXT else -scores[at]
    small = exp32(-abs(score))
    chosen = _ONE / (_ONE + small) if score > _ZERO else small / (_ONE + small)
    scores[at] = _ONE - chosen if target == _NEXT else chosen - _ONE
    return minimum(score, _ZERO) - log32(_ONE + small)


# --- the step of a node ----------------------------------------------------------------------------------


@fast_inline_kernel
def _add_to_rows(rows, n_rows, errors, weights, first, count, width, gradient):
    """Add the node's part of the gradient by the rows to `gradient`, four rows at a time."""
    r = _FIRST
    while r + _FOUR <= n_rows:
        a, b = np.uint64(rows[r]) * width, np.uint64(rows[r + _NEXT]) * width
        c, d = np.uint64(rows[r + np.uint64(2)]) * width, np.uint64(rows[r + np.uint64(3)]) * width
        for i in range(_FIRST, width, _LANES):
            of_a, of_b = vector.load(gradient, a + i), vector.load(gradient, b + i)
            of_c, of_d = vector.load(gradient, c + i), vector.load(gradient, d + i)
            place = r * count
            for v in range(_FIRST, count):
                w = vector.load(weights, (first + v) * width + i)
                of_a = vector.multiply_add(vector.splat(errors[place + v]), w, of_a)
                of_b = vector.multiply_add(vector.splat(errors[place + count + v]), w, of_b)
                of_c = vector.multiply_add(vector.splat(errors[place + np.uint64(2) * count + v]), w, of_c)
                of_d = vector.multiply_add(vector.splat(errors[place + np.uint64(3) * count + v]), w, of_d)
            vector.store(gradient, a + i, of_a)
            vector.store(gradient, b + i, of_b)
            vector.store(gradient, c + i, of_c)
            vector.store(gradient, d + i, of_d)
        r += _FOUR
    while r < n_rows:
        a = np.uint64(rows[r]) * width
        for i in range(_FIRST, width, _LANES):
            of_a = vector.load(gradient, a + i)
            for v in range(_FIRST, count):
                w = vector.load(weights, (first + v) * width + i)
                of_a = vector.multiply_add(vector.splat(errors[r * count + v]), w, of_a)
            vector.store(gradient, a + i, of_a)
        r += _NEXT


@fast_inline_kernel
def _sum_over_rows(hidden, rows, n_rows, errors, count, width, sums):
    """Compute the gradients of a node's vectors, side by side in `sums`, four vectors at a time."""
    v = _FIRST
    while v + _FOUR <= count:
        for i in range(_FIRST, width, _LANES):
            of_a, of_b = vector.splat(_ZERO), vector.splat(_ZERO)
            of_c, of_d = vector.splat(_ZERO), vector.splat(_ZERO)
            for r in range(_FIRST, n_rows):
                h, place = vector.load(hidden, np.uint64(rows[r]) * width + i), r * count + v
                of_a = vector.multiply_add(vector.splat(errors[place]), h, of_a)
                of_b = vector.multiply_add(vector.splat(errors[place + _NEXT]), h, of_b)
                of_c = vector.multiply_add(vector.splat(errors[place + np.uint64(2)]), h, of_c)
                of_d = vector.multiply_add(vector.splat(errors[place + np.uint64(3)]), h, of_d)
            at = v * width + i
            vector.store(sums, at, of_a)
            vector.store(sums, at + width, of_b)
            vector.store(sums, at + np.uint64(2) * width, of_c)
            vector.store(sums, at + np.uint64(3) * width, of_d)
        v += _FOUR
    while v < count:
        for i in range(_FIRST, width, _LANES):
            of_a = vector.splat(_ZERO)
            for r in range(_FIRST, n_rows):
                h = vector.load(hidden, np.uint64(rows[r]) * width + i)
                of_a = vector.multiply_add(vector.splat(errors[r * count + v]), h, of_a)
            vector.store(sums, v * width + i, of_a)
        v += _NEXT


@bare_fast_inline_kernel
def _move(gradient, at, more, rate, optimizer, vectors, number):
    """Update a vector by the gradient at offset `at`; returns the step size.

    `more` is added to the squared norm of the gradient, for a bias that shares the sum of squares."""
    weights, squares, width = vectors.weights, vectors.squares, vectors.width
    size, to = rate, number * width
    if optimizer == ADAGRAD:
        lengths = vector.splat(_ZERO)
        for i in range(_FIRST, width, _LANES):
            g = vector.load(gradient, at + i)
            lengths = vector.multiply_add(g, g, lengths)
        square = squares[number] + vector.total(lengths) + more
        squares[number] = square
        size /= np.float32(math.sqrt(square))
    step = vector.splat(size)
    for i in range(_FIRST, width, _LANES):
        moved = vector.multiply_add(step, vector.load(gradient, at + i), vector.load(weights, to + i))
        vector.store(weights, to + i, moved)
    return size


@fast_kernel
def learn_paths(hidden, targets, paths, vectors, rate, optimizer, gradient):
    """One step on the sum of log p of the targets, which it returns; writes its gradient by the rows."""
    width, rate = vectors.width, np.float32(rate)
    steps, last_of, entry_rows, entry_slots, before = _rows_by_node(targets, paths, vectors.biases.size)
    widest = 1
    for node in range(steps.size):
        widest = maximum(widest, paths.counts[steps[node]])
    rows, slots = empty(targets.size, np.uint32), empty(targets.size, np.uint32)
    scores = empty(targets.size * widest, np.float32)
    sums = empty(np.uint64(widest) * width, np.float32)
    gradient[:] = _ZERO
    likelihood = 0.0
    for node in range(steps.size):
        first = np.uint64(paths.firsts[steps[node]])
        count = np.uint64(_n_vectors(paths.counts[steps[node]]))
        n_rows, entry = _FIRST, last_of[first]
        while entry >= 0:
            rows[n_rows], slots[n_rows] = entry_rows[entry], entry_slots[entry]
            n_rows += _NEXT
            entry = before[entry]
        _score_rows(hidden, rows, n_rows, vectors, first, count, scores)
        for r in range(_FIRST, n_rows):
            likelihood += _errors(scores, r * count, count, np.uint64(slots[r]))
        _add_to_rows(rows, n_rows, scores, vectors.weights, first, count, width, gradient)
        _sum_over_rows(hidden, rows, n_rows, scores, count, width, sums)
        for v in range(_FIRST, count):
            error = _ZERO
            for r in range(_FIRST, n_rows):
                error += scores[r * count + v]
            number = first + v
            size = _move(sums, v * width, error * error, rate, optimizer, vectors, number)
            vectors.biases[number] += size * error
    return likelihood


# --- a softmax over all words ----------------------------------------------------------------------------


@fast_kernel
def flat_errors(scores, biases, targets, out):
    """Replace the scores of all words, without biases, by errors; writes log p of the targets to `out`."""
    n_words = np.uint64(biases.size)
    flat = scores.ravel()
    for r in range(np.uint64(targets.size)):
        at = r * n_words
        for v in range(_FIRST, n_words):
            flat[at + v] += biases[v]
        out[r] = _softmax_errors(flat, at, n_words, np.uint64(targets[r]))


# --- embeddings and transitions --------------------------------------------------------------------------


@fast_kernel
def move_all(gradient, bias_gradient, rate, optimizer, vectors):
    """Update every vector and its bias, if it has one."""
    rate = np.float32(rate)
    for number in range(np.uint64(vectors.squares.size)):
        error = bias_gradient[number] if bias_gradient.size else _ZERO
        size = _move(gradient, number * vectors.width, error * error, rate, optimizer, vectors, number)
        if bias_gradient.size:
            vectors.biases[number] += size * error


@fast_kernel
def move_embeddings(words, gradient, rate, optimizer, embeddings):
    """Update the embedding of every word in `words`; `gradient` has a row for each of them."""
    width, rate = embeddings.width, np.float32(rate)
    n_embeddings = embeddings.squares.size
    place_of = np.full(n_embeddings, -1, np.int32)
    used = empty(words.size, np.uint32)
    sums = zeros(minimum(words.size, n_embeddings) * width, np.float32)
    n_used = _FIRST
    for e in range(np.uint64(words.size)):
        word = np.uint64(words[e])
        if place_of[word] < 0:
            place_of[word] = n_used
            used[n_used] = word
            n_used += _NEXT
        at, to = e * width, np.uint64(place_of[word]) * width
        for i in range(_FIRST, width, _LANES):
            vector.store(sums, to + i, vector.add(vector.load(sums, to + i), vector.load(gradient, at + i)))
    for u in range(_FIRST, n_used):
        _move(sums, u * width, _ZERO, rate, optimizer, embeddings, np.uint64(used[u]))


@fast_kernel
def drop(numbers, share, random, mask):
    """Inverted dropout with probability `share`, in place; writes the factors to `mask`."""
    kept = np.float32(1.0 / (1.0 - share))
    least = np.uint64(share * 4294967296.0)
    for i in range(numbers.size):
        random = next_random(random)
        scale = kept if (random >> np.uint64(32)) >= least else _ZERO
        mask[i] = scale
        numbers[i] *= scale
