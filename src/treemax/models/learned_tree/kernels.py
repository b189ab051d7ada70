"""Embeddings and the softmaxes along a path, learned together (Jernite, Choromanska and Sontag, 2017).

A row is the sum of its features' embeddings, each times the feature's value. A node with c children has c
vectors and answers with the softmax of their products with the row; one with two children needs one vector,
and one with a single child none. All vectors are `width` numbers long, a multiple of sixteen, of which the
last may be padding that stays zero. A step is that of AdaGrad with one sum of squares for each vector.
"""

from __future__ import annotations

import math

import numpy as np

from treemax.kernels import vector
from treemax.kernels.arithmetic import exp32, log32, next_random
from treemax.kernels.assignment import take_best_bounded
from treemax.kernels.jit import fast_inline_kernel, fast_kernel, inline_kernel, kernel

ALL_LABELS, ONE_LABEL = 0, 1  # of a row, in one step
PLAIN, ADAGRAD = 0, 1
LOG_LIKELIHOOD, PROBABILITY = 0, 1  # what a step increases at a node: log p of the right child, or p
_ONE, _ZERO = np.float32(1.0), np.float32(0.0)
_NEXT = np.uint64(1)
_AHEAD = np.uint64(2)  # rows
_MOST_LINES = np.uint64(32)  # to ask for in advance; more of them would hold up the work at hand
_LANES = np.uint64(vector.WIDTH)
_SMALLEST = np.float32(1e-30)
_TINY = np.float32(1e-18)  # whose square is not zero


@fast_inline_kernel
def _clear(array, width):
    zero = vector.splat(_ZERO)
    for i in range(np.uint64(0), width, _LANES):
        vector.store(array, i, zero)


@fast_inline_kernel
def _represent(indices, values, first, last, scale, embeddings, width, out):
    """The sum of the embeddings of a row's features, sixteen dimensions after the other."""
    for i in range(np.uint64(0), width, _LANES):
        even, odd = vector.splat(_ZERO), vector.splat(_ZERO)
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
    """The product of the row that begins at `row` and the vector that begins at `start`."""
    sums = vector.splat(_ZERO)
    for i in range(np.uint64(0), width, _LANES):
        sums = vector.multiply_add(vector.load(hidden, row + i), vector.load(weights, start + i), sums)
    return vector.total(sums)


@inline_kernel
def n_vectors(n_children):
    """How many vectors a node with so many children has."""
    return n_children if n_children > 2 else n_children - 1


@fast_inline_kernel
def _score_all(hidden, row, weights, biases, first, n, width, out, at):
    """Products of the row that begins at `row` with n vectors that stand side by side."""
    for v in range(np.uint64(0), n):
        number = first + v
        out[at + v] = _product(hidden, row, weights, number * width, width) + biases[number]


@fast_inline_kernel
def _share(scores, at, n_children):
    """The scores of a node's vectors become the probabilities of its children.

    In place: with two arrays, LLVM chooses the loop by their addresses, and the last bit with it.
    """
    if n_children == np.uint64(1):
        scores[at] = _ONE
        return
    if n_children == np.uint64(2):
        second = _ONE / (_ONE + exp32(-scores[at]))
        scores[at] = _ONE - second
        scores[at + _NEXT] = second
        return
    top = scores[at]
    for c in range(_NEXT, n_children):
        top = max(top, scores[at + c])
    total = _ZERO
    for c in range(np.uint64(0), n_children):
        e = exp32(scores[at + c] - top)
        scores[at + c] = e
        total += e
    share = _ONE / total
    for c in range(np.uint64(0), n_children):
        scores[at + c] *= share


@fast_inline_kernel
def _errors(scores, at, n_children, target):
    """Scores of a node's vectors become 1 or 0, as they should be, less what they are; returns p(target)."""
    if n_children == np.uint64(2):
        second = _ONE / (_ONE + exp32(-scores[at]))
        chosen = second if target == _NEXT else _ONE - second
        scores[at] = np.float32(target) - second
        return chosen
    _share(scores, at, n_children)
    chosen = scores[at + target]
    for c in range(np.uint64(0), n_children):
        scores[at + c] = -scores[at + c]
    scores[at + target] = _ONE - chosen
    return chosen


@fast_inline_kernel
def _note_shares(errors, at, n_children, target, sums, to):
    """Add the probabilities of a node's children to sums of them, from the errors."""
    if n_children == np.uint64(2):
        second = np.float32(target) - errors[at]
        sums[to] += _ONE - second
        sums[to + _NEXT] += second
        return
    for c in range(np.uint64(0), n_children):
        sums[to + c] -= errors[at + c]
    sums[to + target] += _ONE


@fast_inline_kernel
def _squared(array, width):
    sums = vector.splat(_ZERO)
    for i in range(np.uint64(0), width, _LANES):
        numbers = vector.load(array, i)
        sums = vector.multiply_add(numbers, numbers, sums)
    return vector.total(sums)


@fast_inline_kernel
def _step_sizes(n, numbers, errors, squared, weight, rate, least, optimizer, squares, kept, sizes):
    """What is left to do of n vectors: which, how wrong, and how far each goes; `kept` are their numbers."""
    left = np.uint64(0)
    for v in range(np.uint64(0), n):
        error = errors[v] * weight
        if abs(error) < least:
            continue
        number = numbers[v]
        size = rate * error
        if optimizer == ADAGRAD:
            square = squares[number] + error * error * squared
            squares[number] = square
            size /= np.float32(math.sqrt(square))
        kept[left] = number
        errors[left] = error
        sizes[left] = size
        left += _NEXT
    return left


@fast_inline_kernel
def _move(left, kept, errors, sizes, hidden, gradient, weights, biases, width):
    """The vectors go towards the row, and `gradient` gets where the row should go."""
    for i in range(np.uint64(0), width, _LANES):
        row, wanted = vector.load(hidden, i), vector.load(gradient, i)
        for v in range(np.uint64(0), left):
            at = np.uint64(kept[v]) * width + i
            numbers = vector.load(weights, at)
            wanted = vector.multiply_add(vector.splat(errors[v]), numbers, wanted)
            vector.store(weights, at, vector.multiply_add(vector.splat(sizes[v]), row, numbers))
        vector.store(gradient, i, wanted)
    for v in range(np.uint64(0), left):
        biases[kept[v]] += sizes[v]


@fast_inline_kernel
def _learn_path(
    label, path_starts, path_firsts, path_children, path_slots, hidden, gradient, weights, biases, squares, width,
    squared, weight, rate, least, optimizer, objective, statistics, numbers, kept, scores, sizes,
):  # fmt: skip
    """One step on log p of a label, or on the p of each node of its path; returns log p.

    `statistics` has the place of each node of a path among sums of probabilities, those sums and how many examples
    they are of: SumProbas and Counts of Algorithm 1. Without places nothing is summed up.
    """
    places, sums, seen = statistics
    begin, end = np.uint64(path_starts[label]), np.uint64(path_starts[label + _NEXT])
    n = np.uint64(0)
    for s in range(begin, end):
        first, count = np.uint64(path_firsts[s]), np.uint64(n_vectors(path_children[s]))
        _score_all(hidden, np.uint64(0), weights, biases, first, count, width, scores, n)
        for v in range(np.uint64(0), count):
            numbers[n + v] = np.uint32(first + v)
        n += count
    likelihood, product = _ZERO, _ONE
    n = np.uint64(0)
    for s in range(begin, end):
        children, target = np.uint64(path_children[s]), np.uint64(path_slots[s])
        count = np.uint64(n_vectors(path_children[s]))
        if children > _NEXT:
            chosen = _errors(scores, n, children, target)
            if places.size > 0:
                place = np.uint64(places[s])
                _note_shares(scores, n, children, target, sums, place * np.uint64(sums.size // seen.size))
                seen[place] += _ONE
            if objective == PROBABILITY:  # the gradient of p is p times that of log p
                for v in range(n, n + count):
                    scores[v] *= chosen
            product *= max(chosen, _TINY)
            if product < _TINY:  # one logarithm for many factors
                likelihood += log32(product)
                product = _ONE
        n += count
    likelihood += log32(product)
    left = _step_sizes(n, numbers, scores, squared, weight, rate, least, optimizer, squares, kept, sizes)
    _move(left, kept, scores, sizes, hidden, gradient, weights, biases, width)
    return likelihood


@fast_inline_kernel
def _move_embeddings(
    indices, values, first, last, scale, rate, optimizer, gradient, embeddings, squares, width
):
    """Every feature of the row goes where the row should go."""
    length = _squared(gradient, width)
    for p in range(first, last):
        feature = np.uint64(indices[p])
        value = values[p] * scale
        size = rate * value
        if optimizer == ADAGRAD:
            square = squares[feature] + value * value * length
            squares[feature] = square
            size /= np.float32(math.sqrt(max(square, _SMALLEST)))
        step = vector.splat(size)
        for i in range(np.uint64(0), width, _LANES):
            at = feature * width + i
            vector.store(
                embeddings,
                at,
                vector.multiply_add(step, vector.load(gradient, i), vector.load(embeddings, at)),
            )


@fast_inline_kernel
def _ask_for_path(label, path_starts, path_firsts, path_children, weights, width):
    """Have the vectors of the last nodes of a path in the cache; those near the root are there anyway."""
    s, asked = np.uint64(path_starts[label + _NEXT]), np.uint64(0)
    while s > np.uint64(path_starts[label]) and asked < _MOST_LINES:
        s -= _NEXT
        at, length = np.uint64(path_firsts[s]) * width, np.uint64(n_vectors(path_children[s])) * width
        for i in range(np.uint64(0), length, _LANES):
            vector.prefetch(weights, at + i)
        asked += length // _LANES


@fast_inline_kernel
def _ask_for(indices, first, last, embeddings, width):
    """Have the embeddings of the row to come in the cache."""
    for p in range(first, last):
        at = np.uint64(indices[p]) * width
        for i in range(np.uint64(0), width, _LANES):
            vector.prefetch(embeddings, at + i)


@inline_kernel
def _drop(indices, values, first, last, most, random, kept_indices, kept_values):
    """Copy the features of a row whose random number is below `most` (of 2**32); returns their number, and what
    the random numbers have become. One is always kept."""
    n = np.uint64(0)
    for p in range(first, last):
        random = next_random(random)
        if (random >> np.uint64(32)) < most or (n == np.uint64(0) and p + _NEXT == last):
            kept_indices[n] = indices[p]
            kept_values[n] = values[p]
            n += _NEXT
    return n, random


@fast_kernel
def learn(
    indptr, indices, values, order, label_starts, labels, paths, scale, embeddings, feature_squares, weights, biases,
    squares, width, rate, least, optimizer, objective, which, dropout, statistics, random, scratch,
):  # fmt: skip
    """Learn the rows of `order`; returns the sum of log p of what was learned, and of how many labels."""
    path_starts, path_firsts, path_children, path_slots = paths
    hidden, gradient, numbers, kept, scores, sizes, kept_indices, kept_values = scratch
    width = np.uint64(width)
    likelihood, n_learned = 0.0, 0
    most = np.uint64((1.0 - dropout) * 4294967296.0)
    for o in range(np.uint64(0), np.uint64(order.size)):
        row = np.uint64(order[o])
        if o + _AHEAD < np.uint64(order.size):
            ahead = np.uint64(order[o + _AHEAD])
            _ask_for(indices, np.uint64(indptr[ahead]), np.uint64(indptr[ahead + _NEXT]), embeddings, width)
            if label_starts[ahead] < label_starts[ahead + _NEXT]:
                label = np.uint64(labels[label_starts[ahead]])
                _ask_for_path(label, path_starts, path_firsts, path_children, weights, width)
        begin, end = np.uint64(label_starts[row]), np.uint64(label_starts[row + _NEXT])
        if begin == end:
            continue
        if which == ONE_LABEL and end - begin > _NEXT:
            random = next_random(random)
            begin += (random >> np.uint64(32)) % (end - begin)
            end = begin + _NEXT
        first, last = np.uint64(indptr[row]), np.uint64(indptr[row + _NEXT])
        n_kept, random = _drop(indices, values, first, last, most, random, kept_indices, kept_values)
        first, last = np.uint64(0), n_kept
        _represent(kept_indices, kept_values, first, last, scale, embeddings, width, hidden)
        _clear(gradient, width)
        squared = _squared(hidden, width) + _ONE  # the one is for the bias
        weight = _ONE / np.float32(end - begin)
        for place in range(begin, end):
            likelihood += weight * _learn_path(
                np.uint64(labels[place]), path_starts, path_firsts, path_children, path_slots, hidden, gradient, weights,
                biases, squares, width, squared, weight, rate, least, optimizer, objective, statistics, numbers, kept,
                scores, sizes,
            )  # fmt: skip
        n_learned += 1
        _move_embeddings(
            kept_indices, kept_values, first, last, scale, rate, optimizer, gradient, embeddings, feature_squares,
            width,
        )  # fmt: skip
    return likelihood, n_learned


# --- the structure of the tree ---------------------------------------------------------------------------


@kernel
def parents_and_depths(
    children, child_starts, n_children, parents, slots, depths, leaf_parents, leaf_slots, waiting
):
    """The parent of every inner node and leaf, which of its children it is, and how deep inner nodes are.

    A child is the number of an inner node, or -1 less the label of a leaf. `waiting` has room for all nodes;
    afterwards it has those in use, parents first. Returns how many they are.
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
    """For every label the nodes from the root to it: the first vector, the number of children, and which of them."""
    for label in range(leaf_parents.size):
        node, slot = leaf_parents[label], leaf_slots[label]
        for s in range(path_starts[label + 1] - 1, path_starts[label] - 1, -1):
            firsts[s] = first_vectors[node]
            counts[s] = n_children[node]
            targets[s] = slot
            slot = slots[node]
            node = parents[node]


@fast_kernel
def represent(indptr, indices, values, rows, scale, embeddings, width, out):
    """The representations of the given rows, one after the other."""
    width = np.uint64(width)
    hidden = np.empty(width, np.float32)
    for r in range(rows.size):
        if r + 2 < rows.size:
            ahead = rows[r + 2]
            _ask_for(indices, np.uint64(indptr[ahead]), np.uint64(indptr[ahead + 1]), embeddings, width)
        first, last = np.uint64(indptr[rows[r]]), np.uint64(indptr[rows[r] + 1])
        _represent(indices, values, first, last, scale, embeddings, width, hidden)
        out[r] = hidden


@fast_kernel
def represent_means(indptr, indices, values, rows, row_starts, scale, embeddings, width, out):
    """The mean representation of each group of rows, such as those of a label; zeros where there are none."""
    width = np.uint64(width)
    hidden, sums = np.empty(width, np.float32), np.empty(width, np.float32)
    for label in range(row_starts.size - 1):
        sums[:] = _ZERO
        for r in range(row_starts[label], row_starts[label + 1]):
            if r + 2 < rows.size:
                ahead = rows[r + 2]
                _ask_for(indices, np.uint64(indptr[ahead]), np.uint64(indptr[ahead + 1]), embeddings, width)
            first, last = np.uint64(indptr[rows[r]]), np.uint64(indptr[rows[r] + 1])
            _represent(indices, values, first, last, scale, embeddings, width, hidden)
            sums += hidden
        out[label] = sums / np.float32(max(1, row_starts[label + 1] - row_starts[label]))


# --- the assignment of labels ----------------------------------------------------------------------------


@fast_kernel
def _mean_shares(labels, hidden, row_starts, weights, biases, first, n_children, width, means):
    """The mean probability of each child over the rows of each label: p_j|i, equation 9."""
    width, first, n_children = np.uint64(width), np.uint64(first), np.uint64(n_children)
    count = np.uint64(n_vectors(n_children))
    shares = np.empty(n_children, np.float32)
    for i in range(labels.size):
        start, stop = row_starts[labels[i]], row_starts[labels[i] + 1]
        for r in range(start, stop):
            _score_all(
                hidden, np.uint64(r) * width, weights, biases, first, count, width, shares, np.uint64(0)
            )
            _share(shares, np.uint64(0), n_children)
            for j in range(shares.size):
                means[i, j] += shares[j]
        if stop - start > 1:
            for j in range(shares.size):
                means[i, j] /= stop - start


@kernel
def _summed_shares(labels, node, n_labels, keys, sums, seen, means, counts):
    """The same from what was summed up while it was learned. A label that was never learned at this node has a
    count of zero."""
    for i in range(labels.size):
        key = node * n_labels + labels[i]
        place = np.searchsorted(keys, key)
        if place < keys.size and keys[place] == key and seen[place] > 0:
            counts[i] = seen[place]
            for j in range(means.shape[1]):
                means[i, j] = sums[place, j] / seen[place]


@kernel
def _gradients(counts, means):
    """p_j|i become what more of log p_j|i adds to the objective of the node, equation 12."""
    total = max(1.0, counts.sum())
    of_children = np.zeros(means.shape[1])
    for i in range(counts.size):
        for j in range(of_children.size):
            of_children[j] += counts[i] / total * means[i, j]
    for i in range(counts.size):
        share = counts[i] / total
        for j in range(of_children.size):
            means[i, j] = share * (1.0 - share) * (means[i, j] - of_children[j])


@kernel
def _prefer_in_turn(scores):
    """Scores of labels about which nothing is known: the first prefers the first child, the next the second..."""
    n_children = scores.shape[1]
    for i in range(scores.shape[0]):
        for j in range(n_children):
            scores[i, (i + j) % n_children] = -j


@kernel
def _sort_by_child(labels, child_of_label, held, moved):
    """Labels of the first child first, then those of the second, in the order in which they stand."""
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
    """How many labels fit under a node with so many levels below it, or all of them."""
    room = 1
    for _ in range(levels):
        room *= arity
        if room >= n_labels:
            break
    return room


@kernel
def _divide(labels, arity, levels, scores, moved):
    """Algorithm 2 at one node: labels in the order of its children, and how many each child has."""
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
def reassign(
    labels, counts, hidden, row_starts, arity, most_depth, children, n_children, vectors_a_node, weights, biases, squares,
    width,
):  # fmt: skip
    """AssignLabels of Algorithm 2 by the probabilities of children for rows of each label as they are now: those of
    label i are `hidden[row_starts[i]:row_starts[i + 1]]`."""
    nothing = (np.empty(0, np.int64), np.empty((0, 0), np.float32), np.empty(0, np.float32))
    _reassign(
        labels, counts, hidden.ravel(), row_starts, nothing, arity, most_depth, children, n_children, vectors_a_node,
        weights, biases, squares, width, np.empty(n_children.size, np.bool_),
    )  # fmt: skip


@kernel
def reassign_by_sums(
    labels, statistics, arity, most_depth, children, n_children, vectors_a_node, weights, biases, squares, width, renewed,
):  # fmt: skip
    """AssignLabels of Algorithm 2 by what was summed up while it was learned: sorted keys node * labels + label, and
    for each the sums of probabilities and of how many examples. `renewed` says which nodes have started anew."""
    none, no_rows = np.empty(0, np.float64), np.empty(0, np.float32)
    _reassign(
        labels, none, no_rows, np.empty(0, np.int64), statistics, arity, most_depth, children, n_children,
        vectors_a_node, weights, biases, squares, width, renewed,
    )  # fmt: skip


@kernel
def _reassign(
    labels, counts, hidden, row_starts, statistics, arity, most_depth, children, n_children, vectors_a_node, weights,
    biases, squares, width, renewed,
):  # fmt: skip
    """From the root down: which labels go to which child of which node.

    A node keeps its number and its vectors as long as it has as many children; a child that was a leaf and now has
    labels below it takes a number that is free, and starts with vectors of zeros. `labels` is put in the order of
    the leaves.
    """
    keys, sums, seen = statistics
    n_labels = labels.size
    moved = np.empty(n_labels, np.int64)
    used = np.zeros(n_children.size, np.bool_)
    # Nodes to do: their number (-1: not known yet), labels, depth, and where their number is to be written.
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
        else:  # whatever is not in use now is free
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
            weights[first * width : (first + vectors_a_node) * width] = 0.0
            biases[first : first + vectors_a_node] = 0.0
            squares[first : first + vectors_a_node] = np.float32(1e-8)
        scores = np.zeros((here.size, n_here))
        if fresh:
            _prefer_in_turn(scores)
        else:
            if row_starts.size > 0:
                counts_here = counts[here]
                _mean_shares(here, hidden, row_starts, weights, biases, first, n_here, width, scores)
            else:
                counts_here = np.zeros(here.size)
                _summed_shares(here, node, n_labels, keys, sums, seen, scores, counts_here)
            _gradients(counts_here, scores)
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


# --- answers ---------------------------------------------------------------------------------------------
# `widest` is the largest number of children: to look for it would take longer than the answer for one row.


@inline_kernel
def _offer(label, probability, ids, probabilities, filled):
    """Put a label where it belongs among the best; among equals the lower id first. Returns how many there are."""
    at = filled
    if filled == ids.size:
        worse = probability < probabilities[filled - 1]
        if worse or (probability == probabilities[filled - 1] and label > ids[filled - 1]):
            return filled
        at = filled - 1
    else:
        filled += 1
    while at > 0 and (
        probabilities[at - 1] < probability or (probabilities[at - 1] == probability and ids[at - 1] > label)
    ):
        ids[at] = ids[at - 1]
        probabilities[at] = probabilities[at - 1]
        at -= 1
    ids[at] = label
    probabilities[at] = probability
    return filled


@fast_inline_kernel
def _shares_at(node, n_children, first_vectors, hidden, weights, biases, width, shares):
    """The probabilities of a node's children."""
    count = np.uint64(n_vectors(n_children[node]))
    first = np.uint64(first_vectors[node])
    _score_all(hidden, np.uint64(0), weights, biases, first, count, width, shares, np.uint64(0))
    _share(shares, np.uint64(0), np.uint64(n_children[node]))


@inline_kernel
def _insert(nodes, probabilities, begin, n, node, probability):
    """Put a node among those from `begin` on, the best of which stands last."""
    at = n
    while at > begin and probabilities[at - 1] > probability:
        nodes[at] = nodes[at - 1]
        probabilities[at] = probabilities[at - 1]
        at -= 1
    nodes[at] = node
    probabilities[at] = probability


@fast_kernel
def best_exact(
    indptr, indices, values, embeddings, width, widest, first_child, n_children, labels, first_vectors, weights, biases, depth,
    ids, probabilities,
):  # fmt: skip
    """The k most probable labels of each row: depth first, the best child first, and nothing below what is
    already less probable than the k-th best."""
    width = np.uint64(width)
    hidden = np.empty(width, np.float32)
    shares = np.empty(widest, np.float32)
    nodes, chances = np.empty(depth * widest + 2, np.int64), np.empty(depth * widest + 2, np.float32)
    k = ids.shape[1]
    for r in range(ids.shape[0]):
        first, last = np.uint64(indptr[r]), np.uint64(indptr[r + 1])
        _represent(indices, values, first, last, _ONE, embeddings, width, hidden)
        filled = 0
        nodes[0], chances[0] = 0, _ONE
        n = 1
        while n > 0:
            n -= 1
            node, chance = nodes[n], chances[n]
            if filled == k and chance < probabilities[r, k - 1]:
                continue
            _shares_at(node, n_children, first_vectors, hidden, weights, biases, width, shares)
            begin = n
            for c in range(n_children[node]):
                child, probability = first_child[node] + c, chance * shares[c]
                if filled == k and probability < probabilities[r, k - 1]:
                    continue
                if n_children[child] == 0:
                    filled = _offer(labels[child], probability, ids[r], probabilities[r], filled)
                else:
                    _insert(nodes, chances, begin, n, child, probability)
                    n += 1


@fast_kernel
def best_beam(
    indptr, indices, values, embeddings, width, widest, first_child, n_children, labels, first_vectors, weights, biases, beam,
    ids, probabilities,
):  # fmt: skip
    """The best labels below the `beam` most probable nodes of each level."""
    width = np.uint64(width)
    hidden = np.empty(width, np.float32)
    shares = np.empty(widest, np.float32)
    nodes, following = np.empty(beam, np.int64), np.empty(beam, np.int64)
    chances, coming = np.empty(beam, np.float32), np.empty(beam, np.float32)
    k = ids.shape[1]
    for r in range(ids.shape[0]):
        first, last = np.uint64(indptr[r]), np.uint64(indptr[r + 1])
        _represent(indices, values, first, last, _ONE, embeddings, width, hidden)
        filled = 0
        nodes[0], chances[0] = 0, _ONE
        n = 1
        while n > 0:
            n_following = 0
            for b in range(n):
                node = nodes[b]
                if filled == k and chances[b] < probabilities[r, k - 1]:
                    continue
                _shares_at(node, n_children, first_vectors, hidden, weights, biases, width, shares)
                for c in range(n_children[node]):
                    child, probability = first_child[node] + c, chances[b] * shares[c]
                    if n_children[child] == 0:
                        filled = _offer(labels[child], probability, ids[r], probabilities[r], filled)
                    else:
                        n_following = _offer(child, probability, following, coming, n_following)
            nodes, following = following, nodes
            chances, coming = coming, chances
            n = n_following
        ids[r, filled:] = -1
        probabilities[r, filled:] = _ZERO


@fast_kernel
def all_above(
    indptr, indices, values, embeddings, width, widest, first_child, n_children, labels, first_vectors, weights, biases, depth,
    threshold, starts,
):  # fmt: skip
    """Ids and probabilities of all labels with at least this probability, row after row; `starts` says where."""
    width = np.uint64(width)
    hidden = np.empty(width, np.float32)
    shares = np.empty(widest, np.float32)
    nodes, chances = np.empty(depth * widest + 2, np.int64), np.empty(depth * widest + 2, np.float32)
    ids, probabilities = np.empty(256, np.int64), np.empty(256, np.float32)
    found = 0
    starts[0] = 0
    for r in range(starts.size - 1):
        first, last = np.uint64(indptr[r]), np.uint64(indptr[r + 1])
        _represent(indices, values, first, last, _ONE, embeddings, width, hidden)
        nodes[0], chances[0] = 0, _ONE
        n = 1
        while n > 0:
            n -= 1
            node, chance = nodes[n], chances[n]
            _shares_at(node, n_children, first_vectors, hidden, weights, biases, width, shares)
            for c in range(n_children[node]):
                child, probability = first_child[node] + c, chance * shares[c]
                if probability < threshold:
                    continue
                if n_children[child] > 0:
                    nodes[n], chances[n] = child, probability
                    n += 1
                    continue
                if found == ids.size:
                    ids = np.concatenate((ids, np.empty(found, np.int64)))
                    probabilities = np.concatenate((probabilities, np.empty(found, np.float32)))
                ids[found], probabilities[found] = labels[child], probability
                found += 1
        starts[r + 1] = found
    return ids[:found], probabilities[:found]


@fast_kernel
def probabilities_of_all(
    indptr,
    indices,
    values,
    embeddings,
    width,
    widest,
    first_child,
    n_children,
    labels,
    first_vectors,
    weights,
    biases,
    out,
):
    """The probability of every label, from the root down."""
    width = np.uint64(width)
    hidden = np.empty(width, np.float32)
    shares = np.empty(widest, np.float32)
    chances = np.empty(n_children.size, np.float32)
    for r in range(out.shape[0]):
        first, last = np.uint64(indptr[r]), np.uint64(indptr[r + 1])
        _represent(indices, values, first, last, _ONE, embeddings, width, hidden)
        chances[0] = _ONE
        for node in range(n_children.size):
            if n_children[node] == 0:
                out[r, labels[node]] = chances[node]
                continue
            _shares_at(node, n_children, first_vectors, hidden, weights, biases, width, shares)
            for c in range(n_children[node]):
                chances[first_child[node] + c] = chances[node] * shares[c]


@fast_kernel
def probabilities_of_given(
    indptr, indices, values, embeddings, width, widest, first_child, n_children, labels, first_vectors, weights, biases, parents,
    leaves, ids, out,
):  # fmt: skip
    """The probabilities of given labels, from the leaf up; zero for an id of -1."""
    width = np.uint64(width)
    hidden = np.empty(width, np.float32)
    shares = np.empty(widest, np.float32)
    for r in range(out.shape[0]):
        first, last = np.uint64(indptr[r]), np.uint64(indptr[r + 1])
        _represent(indices, values, first, last, _ONE, embeddings, width, hidden)
        for i in range(ids.shape[1]):
            out[r, i] = _ZERO
            if ids[r, i] < 0:
                continue
            node, probability = leaves[ids[r, i]], _ONE
            while node > 0:
                parent = parents[node]
                _shares_at(parent, n_children, first_vectors, hidden, weights, biases, width, shares)
                probability *= shares[node - first_child[parent]]
                node = parent
            out[r, i] = probability
