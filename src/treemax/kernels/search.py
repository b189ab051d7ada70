"""Search in a label tree with packed weights.

The weights of a node's children are stored together: a small hash table maps a feature to a run of `entries`. Runs are
in the order of the slots: a run begins at the offset of its slot and ends at that of the next. A run has one word per
child with a weight for the feature: the weight in the upper sixteen bits (bfloat16), the child in the lower. If at
least half of the children have a weight, the run is full instead: two weights per word, those of the first half of the
children in the upper bits, of the second half in the lower. A row looks up its features once per visited node.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from treemax.kernels import vector
from treemax.kernels.arithmetic import copy_into
from treemax.kernels.intrinsics import address_of, empty, maximum, minimum, pointer_at, reinterpret, zeros
from treemax.kernels.jit import bare_fast_inline_kernel, bare_fast_kernel, bare_inline_kernel, inline_kernel, kernel
from treemax.kernels.queues import FOR_ALLOWED, FOR_FIRST, HUGE, offer, pad, pop, push
from treemax.kernels.sparse_rows import Rows

SOFTMAX_LINK, LOGISTIC_LINK = 0, 1  # from scores of siblings to conditional probabilities given the parent

NO_FEATURE = np.uint64(0xFFFFFFFF)  # in the upper half of an empty slot; the lower half is an offset as in all slots
_LOW_WORD = np.uint64(0xFFFFFFFF)
_MULTIPLIER = np.uint32(0x9E3779B1)  # Knuth's multiplicative hashing, which spreads consecutive features
_HIGH_HALF = np.uint32(0xFFFF0000)
_LOW_HALF = np.uint32(0xFFFF)
_ONE = np.float32(1.0)
_WIDTH = np.uint64(vector.WIDTH)


class Weights(NamedTuple):
    """The packed weights of all nodes."""

    first_child: np.ndarray  # of each node: where the biases of its children begin
    n_children: np.ndarray
    tables: np.ndarray  # the first slot of each node
    slots: np.ndarray
    entries: np.ndarray
    bias: np.ndarray


class SearchTree(NamedTuple):
    """A label tree: node 0 is the root, and parents come before children."""

    weights: Weights
    label: np.ndarray  # of each node; -1 for an inner node
    level: np.ndarray  # of each node
    slopes: np.ndarray  # of each level
    shifts: np.ndarray
    link: int


class HardTrees(NamedTuple):
    """Binary trees whose nodes follow their children in `branches`; leaves are the nodes after the inner ones."""

    weights: Weights
    roots: np.ndarray
    branches: np.ndarray  # inner nodes x (left, right); a negative child is a leaf, -1 the first
    classes: np.ndarray  # of all leaves


class Scratch(NamedTuple):
    """Scratch memory of one thread."""

    found: np.ndarray  # slots of a row's features
    scores: np.ndarray  # of the children of a node


@inline_kernel
def _home(feature, size):
    """Return the first slot to probe for a feature in a table of `size` slots."""
    mixed = np.uint32(np.uint32(feature) * _MULTIPLIER)  # Numba multiplies in 64 bits
    return (np.uint64(mixed) * np.uint64(size)) >> np.uint64(32)


@inline_kernel
def _rounded(weight):
    """Round a weight to bfloat16; return its bits in the upper half of a word."""
    word = reinterpret(np.float32(weight), np.uint32)
    return (word + np.uint32(0x7FFF) + ((word >> np.uint32(16)) & np.uint32(1))) & _HIGH_HALF


@kernel
def fill_table(features, starts, children, weights, n_children, slots, entries, offset):
    """Write the slots of a node and its entries from `offset` on; return the end of the entries."""
    size = np.uint64(slots.size)
    held = zeros(slots.size, np.int64)  # the feature of each slot, counted from one
    for j in range(features.size):
        at = _home(features[j], size)
        while held[at]:
            at = at + np.uint64(1) if at + np.uint64(1) < size else np.uint64(0)
        held[at] = j + 1
    half = (n_children + 1) // 2
    for at in range(slots.size):
        j = held[at] - 1
        if j < 0:
            slots[at] = NO_FEATURE << np.uint64(32) | np.uint64(offset)
            continue
        slots[at] = np.uint64(features[j]) << np.uint64(32) | np.uint64(offset)
        if starts[j + 1] - starts[j] < half:
            for q in range(starts[j], starts[j + 1]):
                entries[offset] = np.uint32(_rounded(weights[q])) | np.uint32(children[q])
                offset += 1
            continue
        for q in range(offset, offset + half):
            entries[q] = 0
        for q in range(starts[j], starts[j + 1]):
            word, c = np.uint32(_rounded(weights[q])), children[q]
            if c < half:
                entries[offset + c] |= word
            else:
                entries[offset + c - half] |= word >> np.uint32(16)
        offset += half
    return offset


@kernel
def unpacked(tables, slots, entries, n_children):
    """Unpack the tables: the node, feature and number of weights of every used slot; the child and value of every
    weight. Weights of zero are dropped."""
    n_used = 0
    for at in range(slots.size):
        n_used += slots[at] >> np.uint64(32) != NO_FEATURE
    nodes, features = empty(n_used, np.int64), empty(n_used, np.uint32)
    counts = zeros(n_used, np.int64)
    children, weights = empty(2 * entries.size, np.uint32), empty(2 * entries.size, np.float32)
    j, n = 0, 0
    for node in range(n_children.size):
        half = (n_children[node] + 1) // 2
        for at in range(tables[node], tables[node + 1]):
            if slots[at] >> np.uint64(32) == NO_FEATURE:
                continue
            nodes[j], features[j] = node, slots[at] >> np.uint64(32)
            first, last = np.int64(slots[at] & _LOW_WORD), np.int64(slots[at + 1] & _LOW_WORD)
            before = n
            full = last - first == half
            for q in range(first, last):
                upper = reinterpret(np.uint32(entries[q] & _HIGH_HALF), np.float32)
                if upper != 0:
                    children[n] = np.uint32(q - first) if full else entries[q] & _LOW_HALF
                    weights[n] = upper
                    n += 1
            for q in range(first, last if full else first):
                lower = reinterpret(np.uint32(entries[q] << np.uint32(16)), np.float32)
                if lower != 0:
                    children[n] = half + q - first
                    weights[n] = lower
                    n += 1
            counts[j] = n - before
            j += 1
    return nodes, features, counts, children[:n], weights[:n]


@bare_fast_inline_kernel
def _score_children(node, rows, begin, end, weights, scratch):
    """Compute the scores of all children of a node for the row from `begin` to `end`."""
    indices, values, slots, entries = rows.indices, rows.values, weights.slots, weights.entries
    found, scores = scratch.found, scratch.scores
    start, count = np.uint64(weights.first_child[node]), np.uint64(weights.n_children[node])
    for c in range(count):
        scores[c] = weights.bias[start + c]
    table = np.uint64(weights.tables[node])
    size = np.uint64(weights.tables[node + 1]) - table
    if size == 0:
        return
    n = end - begin
    for p in range(n):  # the slots are far apart: prefetch all of them first
        at = table + _home(indices[begin + p], size)
        found[p] = at
        vector.prefetch(slots, at)
    n_found = np.uint64(0)
    for p in range(n):
        feature = np.uint64(indices[begin + p])
        at = found[p]
        key = slots[at] >> np.uint64(32)
        while key != feature and key != NO_FEATURE:
            at = at + np.uint64(1) if at + np.uint64(1) < table + size else table
            key = slots[at] >> np.uint64(32)
        vector.prefetch(entries, slots[at] & _LOW_WORD)
        found[n_found] = at << np.uint64(32) | p  # branchless, since the branch is unpredictable
        n_found += np.uint64(key == feature)
    half = (count + np.uint64(1)) >> np.uint64(1)
    for j in range(n_found):
        at, x = found[j] >> np.uint64(32), values[begin + (found[j] & _LOW_WORD)]
        first, last = slots[at] & _LOW_WORD, slots[at + np.uint64(1)] & _LOW_WORD
        if last - first == half:
            for c in range(half):
                scores[c] += x * reinterpret(np.uint32(entries[first + c] & _HIGH_HALF), np.float32)
            for c in range(count - half):
                scores[half + c] += x * reinterpret(np.uint32(entries[first + c] << np.uint32(16)), np.float32)
        else:
            for q in range(first, last):
                word = entries[q]
                scores[word & _LOW_HALF] += x * reinterpret(np.uint32(word & _HIGH_HALF), np.float32)


@bare_fast_inline_kernel
def _to_probabilities(scores, count, link, slope, shift, above):
    """Convert scores of siblings to probabilities, times that of their parent, in place; padding is -1."""
    blocks = (count + np.uint64(15)) // _WIDTH
    for c in range(count, blocks * _WIDTH):
        scores[c] = -HUGE
    one, slopes = vector.splat(_ONE), vector.splat(slope)
    if link == SOFTMAX_LINK:
        most = vector.load(scores, np.uint64(0))
        for b in range(np.uint64(1), blocks):
            most = vector.maximum(most, vector.load(scores, b * _WIDTH))
        top = vector.splat(vector.largest(most))
        total = vector.splat(np.float32(0.0))
        for b in range(blocks):
            below = vector.subtract(vector.load(scores, b * _WIDTH), top)
            e = vector.exponential(vector.multiply(slopes, below))
            vector.store(scores, b * _WIDTH, e)
            total = vector.add(total, e)
        scale = vector.splat(above / vector.total(total))
        for b in range(blocks):
            vector.store(scores, b * _WIDTH, vector.multiply(scale, vector.load(scores, b * _WIDTH)))
    else:
        parent, down, shifts = vector.splat(above), vector.splat(-slope), vector.splat(-shift)
        for b in range(blocks):
            e = vector.exponential(vector.multiply_add(down, vector.load(scores, b * _WIDTH), shifts))
            vector.store(scores, b * _WIDTH, vector.divide(parent, vector.add(one, e)))
    for c in range(count, blocks * _WIDTH):
        scores[c] = -_ONE


@bare_inline_kernel
def _numbers(scores):
    return pointer_at(address_of(scores), np.float32)


@bare_fast_kernel
def _expand(node, above, rows, begin, end, tree, scratch):
    """Compute the probabilities of all children of a node of probability `above` for a row."""
    weights = tree.weights
    _score_children(node, rows, begin, end, weights, scratch)
    depth = tree.level[node]
    count = np.uint64(weights.n_children[node])
    _to_probabilities(_numbers(scratch.scores), count, tree.link, tree.slopes[depth], tree.shifts[depth], above)


@kernel
def _new_scratch(indptr, most_children):
    longest = np.int64(0)
    for i in range(indptr.size - 1):
        longest = maximum(longest, indptr[i + 1] - indptr[i])
    return Scratch(empty(longest, np.uint64), empty(most_children + 15, np.float32))


# The searches take arrays one by one: unboxing tuples of them adds 2 microseconds to a call for one row.


@kernel
def all_probabilities(
    indptr, indices, values, first_child, n_children, tables, slots, entries, bias, label, level, slopes, shifts, link,
    most_children, n_inner, out,
):  # fmt: skip
    """Compute the probability of every label for each row; visits every node."""
    rows = Rows(indptr, indices, values)
    weights = Weights(first_child, n_children, tables, slots, entries, bias)
    tree = SearchTree(weights, label, level, slopes, shifts, link)
    scratch = _new_scratch(indptr, most_children)
    of_node = empty(n_children.size, np.float32)
    for row in range(indptr.size - 1):
        begin, end = np.uint64(indptr[row]), np.uint64(indptr[row + 1])
        of_node[0] = _ONE
        for node in range(n_children.size):  # parents come before children
            if label[node] >= 0:
                out[row, label[node]] = of_node[node]
                continue
            _expand(node, of_node[node], rows, begin, end, tree, scratch)
            copy_into(of_node[first_child[node] :], scratch.scores, n_children[node])


@kernel
def probabilities_of(
    indptr, indices, values, first_child, n_children, tables, slots, entries, bias, label, level, slopes, shifts, link,
    most_children, n_inner, parent, leaf_of, ids, out,
):  # fmt: skip
    """Compute the probabilities of given labels (0 for -1); visits only their ancestors, each once per row."""
    rows = Rows(indptr, indices, values)
    weights = Weights(first_child, n_children, tables, slots, entries, bias)
    tree = SearchTree(weights, label, level, slopes, shifts, link)
    scratch = _new_scratch(indptr, most_children)
    of_node = empty(n_children.size, np.float32)
    known = zeros(n_children.size, np.bool_)  # nodes whose probability is known for the current row
    path, opened = empty(slopes.size + 1, np.int64), empty(n_inner, np.int64)
    of_node[0], known[0] = _ONE, True
    for row in range(indptr.size - 1):
        begin, end = np.uint64(indptr[row]), np.uint64(indptr[row + 1])
        n_opened = 0
        for j in range(ids.shape[1]):
            if ids[row, j] < 0:
                out[row, j] = np.float32(0.0)
                continue
            node, length = leaf_of[ids[row, j]], 0
            while not known[node]:
                node = parent[node]
                path[length] = node
                length += 1
            for step in range(length - 1, -1, -1):
                node = path[step]
                _expand(node, of_node[node], rows, begin, end, tree, scratch)
                copy_into(of_node[first_child[node] :], scratch.scores, n_children[node])
                known[first_child[node] : first_child[node] + n_children[node]] = True
                opened[n_opened] = node
                n_opened += 1
            out[row, j] = of_node[leaf_of[ids[row, j]]]
        for j in range(n_opened):
            first = first_child[opened[j]]
            known[first : first + n_children[opened[j]]] = False


@kernel
def best_labels(
    indptr, indices, values, first_child, n_children, tables, slots, entries, bias, label, level, slopes, shifts, link,
    most_children, n_inner, width, ids, probabilities,
):  # fmt: skip
    """Uniform-cost search (Jasinska-Kobus et al., 2021, Algorithm 10) that expands at most `width` nodes per level.

    Nodes are expanded in order of probability. No label is more probable than its ancestors, so the search ends when
    the next node cannot improve the k labels found: without a limit they are the true top k, with one those of a beam
    search, since the nodes of each level come best first.
    """
    rows = Rows(indptr, indices, values)
    weights = Weights(first_child, n_children, tables, slots, entries, bias)
    tree = SearchTree(weights, label, level, slopes, shifts, link)
    scratch = _new_scratch(indptr, most_children)
    scores = scratch.scores
    heap_nodes, heap_scores = empty(n_inner, np.int64), empty(n_inner, np.float32)
    opened = empty(slopes.size, np.int64)
    k = ids.shape[1]
    for row in range(indptr.size - 1):
        begin, end = np.uint64(indptr[row]), np.uint64(indptr[row + 1])
        best, best_scores, n_best = ids[row], probabilities[row], np.int64(0)
        opened[:] = 0
        heap_nodes[0], heap_scores[0], size = 0, _ONE, np.int64(1)
        while size:
            size = pop(heap_nodes, heap_scores, size)
            node, above = heap_nodes[size], heap_scores[size]
            if n_best == k and above <= best_scores[k - 1]:
                break
            depth = level[node]
            if opened[depth] == width:
                continue
            opened[depth] += 1
            _expand(node, above, rows, begin, end, tree, scratch)
            for b in range((np.uint64(n_children[node]) + np.uint64(15)) // _WIDTH):
                worst = best_scores[k - 1] if n_best == k else -_ONE
                better = vector.bits_above(vector.load(scores, b * _WIDTH), vector.splat(worst))
                while better:
                    c = b * _WIDTH + np.uint64(vector.lowest_bit(better))
                    better &= better - np.uint32(1)
                    child = first_child[node] + np.int64(c)
                    if label[child] >= 0:
                        n_best = offer(label[child], scores[c], best, best_scores, n_best)
                    elif n_best < k or scores[c] > best_scores[k - 1]:
                        size = push(heap_nodes, heap_scores, size, child, scores[c])
        pad(best, best_scores, n_best)


@kernel
def largest_weights(parent, leaf_of, weights, out):
    """Write the largest weight of the labels below every node; `out` is zeroed. A label without a leaf (-1) has none."""
    for label in range(weights.size):
        node, weight = leaf_of[label], weights[label]
        while node >= 0 and out[node] < weight:
            out[node] = weight
            node = parent[node]


@kernel
def best_weighted_labels(
    indptr, indices, values, first_child, n_children, tables, slots, entries, bias, label, level, slopes, shifts, link,
    most_children, n_inner, width, node_weights, ids, probabilities,
):  # fmt: skip
    """Like `best_labels`, for the largest products of probability and weight; labels of weight 0 are left out.

    `node_weights` are those of `largest_weights`: no label below a node has a larger product than the node.
    """
    rows = Rows(indptr, indices, values)
    weights = Weights(first_child, n_children, tables, slots, entries, bias)
    tree = SearchTree(weights, label, level, slopes, shifts, link)
    scratch = _new_scratch(indptr, most_children)
    scores = scratch.scores
    heap_nodes, heap_products = empty(n_inner, np.int64), empty(n_inner, np.float32)
    of_node = empty(n_children.size, np.float32)  # probabilities of the nodes that were reached
    opened = empty(slopes.size, np.int64)
    k = ids.shape[1]
    products = empty(k, np.float32)
    for row in range(indptr.size - 1):
        begin, end = np.uint64(indptr[row]), np.uint64(indptr[row + 1])
        best, n_best = ids[row], np.int64(0)  # leaves, until the search ends
        opened[:] = 0
        heap_nodes[0], heap_products[0], size = 0, node_weights[0], np.int64(node_weights[0] > 0)
        of_node[0] = _ONE
        while size:
            size = pop(heap_nodes, heap_products, size)
            node = heap_nodes[size]
            if n_best == k and heap_products[size] <= products[k - 1]:
                break
            depth = level[node]
            if opened[depth] == width:
                continue
            opened[depth] += 1
            _expand(node, of_node[node], rows, begin, end, tree, scratch)
            for b in range((np.uint64(n_children[node]) + np.uint64(15)) // _WIDTH):
                worst = products[k - 1] / node_weights[node] if n_best == k else -_ONE
                better = vector.bits_above(vector.load(scores, b * _WIDTH), vector.splat(worst))
                while better:
                    c = b * _WIDTH + np.uint64(vector.lowest_bit(better))
                    better &= better - np.uint32(1)
                    child = first_child[node] + np.int64(c)
                    product = scores[c] * node_weights[child]
                    if product == 0 or (n_best == k and product <= products[k - 1]):
                        continue
                    of_node[child] = scores[c]
                    if label[child] >= 0:
                        n_best = offer(child, product, best, products, n_best)
                    else:
                        size = push(heap_nodes, heap_products, size, child, product)
        for j in range(n_best):
            probabilities[row, j] = of_node[best[j]]
            best[j] = label[best[j]]
        for j in range(n_best, k):
            best[j] = -1
            probabilities[row, j] = np.float32(0.0)


@kernel
def best_allowed_labels(
    indptr, indices, values, first_child, n_children, tables, slots, entries, bias, label, level, slopes, shifts, link,
    most_children, n_inner, node_weights, first, of_first, ids, probabilities,
):  # fmt: skip
    """Find the best of all labels (`first`, may have no columns) and the best allowed ones, those below nodes with a
    weight, in one exact search like `best_labels` that opens no node twice.
    """
    rows = Rows(indptr, indices, values)
    weights = Weights(first_child, n_children, tables, slots, entries, bias)
    tree = SearchTree(weights, label, level, slopes, shifts, link)
    scratch = _new_scratch(indptr, most_children)
    scores = scratch.scores
    heap, heap_scores = empty(n_inner, np.int64), empty(n_inner, np.float32)  # 4 * node + what it is opened for
    n_first, k = first.shape[1], ids.shape[1]
    for row in range(indptr.size - 1):
        begin, end = np.uint64(indptr[row]), np.uint64(indptr[row + 1])
        best, best_scores, n_best, worst = ids[row], probabilities[row], np.int64(0), -_ONE
        leading, leading_scores, n_leading = first[row], of_first[row], np.int64(0)
        worst_leading = -_ONE if n_first else HUGE
        heap[0], heap_scores[0], size = FOR_FIRST | FOR_ALLOWED, _ONE, np.int64(1)
        while size:
            size = pop(heap, heap_scores, size)
            node, purpose, above = heap[size] >> 2, heap[size] & 3, heap_scores[size]
            if above <= minimum(worst, worst_leading):
                break
            for_first = purpose & FOR_FIRST != 0 and above > worst_leading
            for_allowed = purpose & FOR_ALLOWED != 0 and above > worst
            if not (for_first or for_allowed):
                continue
            _expand(node, above, rows, begin, end, tree, scratch)
            for b in range((np.uint64(n_children[node]) + np.uint64(15)) // _WIDTH):
                least = minimum(worst_leading if for_first else HUGE, worst if for_allowed else HUGE)
                better = vector.bits_above(vector.load(scores, b * _WIDTH), vector.splat(least))
                while better:
                    c = b * _WIDTH + np.uint64(vector.lowest_bit(better))
                    better &= better - np.uint32(1)
                    child, score = first_child[node] + np.int64(c), scores[c]
                    leads = for_first and score > worst_leading
                    allowed = for_allowed and score > worst and node_weights[child] > 0
                    if label[child] < 0:
                        if leads or allowed:
                            purpose = (FOR_FIRST if leads else 0) | (FOR_ALLOWED if allowed else 0)
                            size = push(heap, heap_scores, size, 4 * child + purpose, score)
                        continue
                    if leads:
                        n_leading = offer(label[child], score, leading, leading_scores, n_leading)
                        worst_leading = leading_scores[n_first - 1] if n_leading == n_first else -_ONE
                    if allowed:
                        n_best = offer(label[child], score, best, best_scores, n_best)
                        worst = best_scores[k - 1] if n_best == k else -_ONE
        pad(leading, leading_scores, n_leading)
        pad(best, best_scores, n_best)


@kernel
def mask_duplicates(ids):
    """Sort the ids of each row, and replace duplicates by -1."""
    for row in range(ids.shape[0]):
        ids[row].sort()
        before = np.int64(-1)
        for j in range(ids.shape[1]):
            if ids[row, j] == before:
                ids[row, j] = -1
            else:
                before = ids[row, j]


@kernel
def rank(candidates, scores, ids, probabilities):
    """Write the best candidates of each row, best first, padded with -1 and 0."""
    for row in range(candidates.shape[0]):
        n_best = np.int64(0)
        for j in range(candidates.shape[1]):
            if candidates[row, j] >= 0:
                n_best = offer(candidates[row, j], scores[row, j], ids[row], probabilities[row], n_best)
        ids[row, n_best:] = -1
        probabilities[row, n_best:] = np.float32(0.0)


@kernel
def first_allowed(candidates, scores, weights, ids, probabilities):
    """Write the first labels with a weight of each row, whose candidates are sorted, padded with -1 and 0."""
    k = ids.shape[1]
    for row in range(candidates.shape[0]):
        n = 0
        for j in range(candidates.shape[1]):
            label = candidates[row, j]
            if n == k or label < 0:
                break
            if weights[label] > 0:
                ids[row, n], probabilities[row, n] = label, scores[row, j]
                n += 1
        for j in range(n, k):
            ids[row, j], probabilities[row, j] = -1, np.float32(0.0)


@kernel
def rank_weighted(scores, weights, ids, probabilities):
    """Write the labels of each row with the largest products of score and weight, and their scores."""
    k = ids.shape[1]
    products = empty(k, np.float32)
    for row in range(scores.shape[0]):
        n_best = np.int64(0)
        for label in range(weights.size):
            if weights[label] > 0:
                n_best = offer(label, scores[row, label] * weights[label], ids[row], products, n_best)
        for j in range(n_best):
            probabilities[row, j] = scores[row, ids[row, j]]
        ids[row, n_best:] = -1
        probabilities[row, n_best:] = np.float32(0.0)


_EXPONENT = 0x7F80  # exponent bits of a bfloat16
_LARGEST = (127 + 99) << 7  # that of 2**99, about 6e29


@kernel
def is_valid(tables, slots, entries, n_children):
    """Return whether every table has an empty slot, and all runs are in bounds, at most of full length, with valid
    children and finite weights that are not too large."""
    end = np.int64(0)  # end of the runs so far
    for node in range(n_children.size):
        first, last = tables[node], tables[node + 1]
        empty = first == last
        half = (n_children[node] + 1) // 2
        for at in range(first, last):
            begin = end
            end = np.int64(slots[at + 1] & _LOW_WORD)
            if np.int64(slots[at] & _LOW_WORD) != begin or end < begin or end > entries.size:
                return False
            if slots[at] >> np.uint64(32) == NO_FEATURE:
                empty = True
                if end != begin:
                    return False
            if end - begin > half:
                return False
            full = end - begin == half  # two weights per entry, else a child and its weight
            for q in range(begin, end):
                upper, lower = np.int64(entries[q] >> np.uint32(16)), np.int64(entries[q] & _LOW_HALF)
                if (upper & _EXPONENT) > _LARGEST or (full and (lower & _EXPONENT) > _LARGEST):
                    return False
                if not full and lower >= n_children[node]:
                    return False
        if not empty:
            return False
    last_slot = slots[slots.size - 1]
    return end == entries.size and last_slot == NO_FEATURE << np.uint64(32) | np.uint64(end)


# --- hard trees ------------------------------------------------------------------------------------------


@kernel
def _hard_leaf(root, rows, begin, end, trees, scratch):
    """Return the leaf of a row in a binary tree: right if the score of a node is at least zero."""
    node = np.int64(root)
    while node >= 0:
        _score_children(node, rows, begin, end, trees.weights, scratch)
        node = np.int64(trees.branches[node, 1 if scratch.scores[0] >= np.float32(0.0) else 0])
    return -1 - node


@kernel
def hard_paths(rows, trees, scratch, leaves):
    """Find the leaf of each row in each tree."""
    for i in range(rows.indptr.size - 1):
        for t in range(trees.roots.size):
            leaves[i, t] = _hard_leaf(trees.roots[t], rows, rows.indptr[i], rows.indptr[i + 1], trees, scratch)


@kernel
def hard_softmax(rows, trees, scratch, mass, touched, ids, probabilities):
    """Find the top classes of each row by the mean over the trees of the softmax of its leaf.

    `mass` is zeroed scratch over all labels, and is left zeroed.
    """
    n_inner, share = trees.branches.shape[0], _ONE / np.float32(trees.roots.size)
    scores, weights = scratch.scores, trees.weights
    for i in range(rows.indptr.size - 1):
        begin, end, n_touched = rows.indptr[i], rows.indptr[i + 1], 0
        for t in range(trees.roots.size):
            leaf = n_inner + _hard_leaf(trees.roots[t], rows, begin, end, trees, scratch)
            _score_children(leaf, rows, begin, end, weights, scratch)
            n = np.uint64(weights.n_children[leaf])
            _to_probabilities(_numbers(scores), n, SOFTMAX_LINK, _ONE, np.float32(0.0), share)
            first = np.uint64(weights.first_child[leaf]) - np.uint64(n_inner)
            for q in range(n):
                label = trees.classes[first + q]
                if mass[label] == np.float32(0.0):
                    touched[n_touched] = label
                    n_touched += 1
                mass[label] += maximum(scores[q], np.float32(1e-30))
        best, own, filled = ids[i], probabilities[i], np.int64(0)
        for q in range(n_touched):
            label = touched[q]
            filled = offer(label, mass[label], best, own, filled)
            mass[label] = np.float32(0.0)
        for q in range(filled, best.size):
            best[q] = -1
            own[q] = np.float32(0.0)
