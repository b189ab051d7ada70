"""Searching a label tree with packed weights.

The weights of a node's children stand together: a small hash table from a feature to a run of `entries`, a
count followed by one word per child that has a weight for the feature: the weight in the upper sixteen bits
(bfloat16), the child in the lower. A row looks up its features once per node it visits.
"""

from __future__ import annotations

import numpy as np

from treemax.kernels import vector
from treemax.kernels.arithmetic import exp32
from treemax.kernels.jit import fast_kernel, inline_kernel, kernel

SOFTMAX_LINK, LOGISTIC_LINK = 0, 1  # from the scores of siblings to probabilities given their parent

EMPTY = np.uint64(0xFFFFFFFFFFFFFFFF)
_MULTIPLIER = np.uint32(0x9E3779B1)  # Knuth's: consecutive features fall far apart
_HIGH_HALF = np.uint32(0xFFFF0000)
_LOW_HALF = np.uint32(0xFFFF)
_ONE = np.float32(1.0)


@inline_kernel
def _home(feature, size):
    """Where a feature's slot would be in a table of `size` slots."""
    mixed = np.uint32(np.uint32(feature) * _MULTIPLIER)  # Numba multiplies in 64 bits
    return (np.uint64(mixed) * np.uint64(size)) >> np.uint64(32)


@inline_kernel
def _rounded(weight):
    """The bits of the bfloat16 number nearest to a weight, in the upper half of a word."""
    word = np.float32(weight).view(np.uint32)
    return (word + np.uint32(0x7FFF) + ((word >> np.uint32(16)) & np.uint32(1))) & _HIGH_HALF


@kernel
def fill_table(features, starts, children, weights, slots, entries, offset):
    """Write the weights of one node: its slots, and its entries from `offset` on; returns where they end."""
    size = np.uint64(slots.size)
    for j in range(features.size):
        at = _home(features[j], size)
        while slots[at] != EMPTY:
            at = at + np.uint64(1) if at + np.uint64(1) < size else np.uint64(0)
        slots[at] = np.uint64(features[j]) << np.uint64(32) | np.uint64(offset)
        entries[offset] = starts[j + 1] - starts[j]
        offset += 1
        for q in range(starts[j], starts[j + 1]):
            entries[offset] = np.uint32(_rounded(weights[q])) | np.uint32(children[q])
            offset += 1
    return offset


@fast_kernel
def _score_children(
    node, indices, values, first_child, n_children, tables, slots, entries, bias, found, scores
):
    """The scores of all children of a node for one row. `found` is scratch for the row's slots."""
    start, count = np.uint64(first_child[node]), np.uint64(n_children[node])
    for c in range(count):
        scores[c] = bias[start + c]
    table = np.uint64(tables[node])
    size = np.uint64(tables[node + 1]) - table
    if size == 0:
        return
    n = np.uint64(indices.size)
    for p in range(n):  # the slots are far apart: ask for all of them before the first is read
        at = table + _home(indices[p], size)
        found[p] = at
        vector.prefetch(slots, at)
    for p in range(n):
        feature = np.uint64(indices[p])
        at = found[p]
        found[p] = EMPTY
        while True:
            slot = slots[at]
            if slot >> np.uint64(32) == feature:
                found[p] = slot & np.uint64(0xFFFFFFFF)
                vector.prefetch(entries, found[p])
                break
            if slot == EMPTY:
                break
            at = at + np.uint64(1) if at + np.uint64(1) < table + size else table
    for p in range(n):
        if found[p] != EMPTY:
            x = values[p]
            first = found[p] + np.uint64(1)
            for q in range(first, first + np.uint64(entries[found[p]])):
                word = entries[q]
                scores[word & _LOW_HALF] += x * np.uint32(word & _HIGH_HALF).view(np.float32)


@fast_kernel
def _to_probabilities(scores, link, slope, shift, above):
    """Scores of siblings to probabilities, times that of their parent, in place."""
    if link == SOFTMAX_LINK:
        top = scores[0]
        for c in range(scores.size):
            top = max(top, scores[c])
        total = np.float32(0.0)
        for c in range(scores.size):
            e = exp32(slope * (scores[c] - top))
            scores[c] = e
            total += e
        scale = above / total
        for c in range(scores.size):
            scores[c] *= scale
    else:
        for c in range(scores.size):
            scores[c] = above / (_ONE + exp32(-(slope * scores[c] + shift)))


@kernel
def _offer(node, score, nodes, scores, filled):
    """Insert into a short list sorted by score, the first offered first among equals; returns its length."""
    room = np.int64(nodes.size)
    if filled < room:
        at = filled
        filled += 1
    elif score > scores[room - 1]:
        at = room - 1
    else:
        return filled
    while at > 0 and scores[at - 1] < score:
        scores[at] = scores[at - 1]
        nodes[at] = nodes[at - 1]
        at -= 1
    scores[at] = score
    nodes[at] = node
    return filled


@kernel
def _longest(indptr):
    longest = 0
    for i in range(indptr.size - 1):
        longest = max(longest, indptr[i + 1] - indptr[i])
    return longest


@kernel
def beam_search(
    indptr, indices, values, first_child, n_children, label, level, tables, slots, entries, bias, slopes, shifts,
    most_children, link, width, ids, probabilities,
):  # fmt: skip
    """The best labels of each row among those that a beam of `width` nodes a level reaches."""
    room = np.empty(most_children, np.float32)
    found = np.empty(_longest(indptr), np.uint64)
    beam, beam_scores = np.empty(width, np.int64), np.empty(width, np.float32)
    following, following_scores = np.empty(width, np.int64), np.empty(width, np.float32)
    k = ids.shape[1]
    for row in range(indptr.size - 1):
        row_indices = indices[indptr[row] : indptr[row + 1]]
        row_values = values[indptr[row] : indptr[row + 1]]
        best, best_scores = ids[row], probabilities[row]
        beam[0], beam_scores[0], size, n_best = 0, _ONE, 1, 0
        while size:
            n_following = 0
            for j in range(size):
                node = beam[j]
                scores = room[: n_children[node]]
                _score_children(
                    node,
                    row_indices,
                    row_values,
                    first_child,
                    n_children,
                    tables,
                    slots,
                    entries,
                    bias,
                    found,
                    scores,
                )
                _to_probabilities(scores, link, slopes[level[node]], shifts[level[node]], beam_scores[j])
                for c in range(scores.size):
                    child = first_child[node] + c
                    if label[child] >= 0:
                        if n_best < k or scores[c] > best_scores[k - 1]:
                            n_best = _offer(label[child], scores[c], best, best_scores, n_best)
                    elif n_following < width or scores[c] > following_scores[width - 1]:
                        n_following = _offer(child, scores[c], following, following_scores, n_following)
            beam, following = following, beam
            beam_scores, following_scores = following_scores, beam_scores
            size = n_following
        for j in range(n_best, k):
            best[j] = -1
            best_scores[j] = np.float32(0.0)


@kernel
def all_probabilities(
    indptr, indices, values, first_child, n_children, label, level, tables, slots, entries, bias, slopes, shifts,
    most_children, link, out,
):  # fmt: skip
    """The probability of every label for each row: every node is visited."""
    room = np.empty(most_children, np.float32)
    found = np.empty(_longest(indptr), np.uint64)
    of_node = np.empty(n_children.size, np.float32)
    for row in range(indptr.size - 1):
        row_indices = indices[indptr[row] : indptr[row + 1]]
        row_values = values[indptr[row] : indptr[row + 1]]
        of_node[0] = _ONE
        for node in range(n_children.size):  # parents come before children
            if label[node] >= 0:
                out[row, label[node]] = of_node[node]
                continue
            scores = room[: n_children[node]]
            _score_children(
                node,
                row_indices,
                row_values,
                first_child,
                n_children,
                tables,
                slots,
                entries,
                bias,
                found,
                scores,
            )
            _to_probabilities(scores, link, slopes[level[node]], shifts[level[node]], of_node[node])
            of_node[first_child[node] : first_child[node] + scores.size] = scores


@kernel
def probabilities_of(
    indptr, indices, values, first_child, n_children, label, level, tables, slots, entries, bias, slopes, shifts,
    most_children, link, parent, leaf_of, ids, out,
):  # fmt: skip
    """The probabilities of given labels (0 for -1): only the nodes above them are visited, each once a row."""
    room = np.empty(most_children, np.float32)
    found = np.empty(_longest(indptr), np.uint64)
    of_node = np.empty(n_children.size, np.float32)
    known_in = np.full(n_children.size, -1, np.int64)  # the row for which a node's probability is known
    path = np.empty(slopes.size + 1, np.int64)
    of_node[0] = _ONE
    for row in range(indptr.size - 1):
        row_indices = indices[indptr[row] : indptr[row + 1]]
        row_values = values[indptr[row] : indptr[row + 1]]
        known_in[0] = row
        for j in range(ids.shape[1]):
            if ids[row, j] < 0:
                out[row, j] = np.float32(0.0)
                continue
            node, length = leaf_of[ids[row, j]], 0
            while known_in[node] != row:
                node = parent[node]
                path[length] = node
                length += 1
            for step in range(length - 1, -1, -1):
                node = path[step]
                scores = room[: n_children[node]]
                _score_children(
                    node,
                    row_indices,
                    row_values,
                    first_child,
                    n_children,
                    tables,
                    slots,
                    entries,
                    bias,
                    found,
                    scores,
                )
                _to_probabilities(scores, link, slopes[level[node]], shifts[level[node]], of_node[node])
                of_node[first_child[node] : first_child[node] + scores.size] = scores
                known_in[first_child[node] : first_child[node] + scores.size] = row
            out[row, j] = of_node[leaf_of[ids[row, j]]]


@kernel
def _push(heap_nodes, heap_scores, size, node, score):
    at = size
    while at > 0 and heap_scores[(at - 1) // 2] < score:
        heap_scores[at] = heap_scores[(at - 1) // 2]
        heap_nodes[at] = heap_nodes[(at - 1) // 2]
        at = (at - 1) // 2
    heap_scores[at] = score
    heap_nodes[at] = node
    return size + 1


@kernel
def _pop(heap_nodes, heap_scores, size):
    """Take the largest off the heap; it is left behind its end, at position size - 1."""
    top_node, top_score = heap_nodes[0], heap_scores[0]
    node, score = heap_nodes[size - 1], heap_scores[size - 1]
    last, at = size - 1, 0
    while 2 * at + 1 < last:
        child = 2 * at + 1
        if child + 1 < last and heap_scores[child + 1] > heap_scores[child]:
            child += 1
        if heap_scores[child] <= score:
            break
        heap_scores[at] = heap_scores[child]
        heap_nodes[at] = heap_nodes[child]
        at = child
    heap_scores[at] = score
    heap_nodes[at] = node
    heap_nodes[last], heap_scores[last] = top_node, top_score
    return last


@kernel
def exact_search(
    indptr, indices, values, first_child, n_children, label, level, tables, slots, entries, bias, slopes, shifts,
    most_children, link, ids, probabilities,
):  # fmt: skip
    """Uniform-cost search (Jasinska-Kobus et al., 2021, Algorithm 10): the true top k of each row.

    A node is expanded in order of its probability; no label under it can have a larger one, so the first k
    leaves to leave the queue are the best. Nodes that cannot reach the k best seen so far are not queued.
    """
    room = np.empty(most_children, np.float32)
    found = np.empty(_longest(indptr), np.uint64)
    heap_nodes, heap_scores = np.empty(n_children.size, np.int64), np.empty(n_children.size, np.float32)
    k = ids.shape[1]
    bound, bound_nodes = np.empty(k, np.float32), np.empty(k, np.int64)
    for row in range(indptr.size - 1):
        row_indices = indices[indptr[row] : indptr[row + 1]]
        row_values = values[indptr[row] : indptr[row + 1]]
        size = _push(heap_nodes, heap_scores, 0, 0, _ONE)
        n_bound, n_found = 0, 0
        while size and n_found < k:
            size = _pop(heap_nodes, heap_scores, size)
            node, score = heap_nodes[size], heap_scores[size]
            if label[node] >= 0:
                ids[row, n_found] = label[node]
                probabilities[row, n_found] = score
                n_found += 1
                continue
            scores = room[: n_children[node]]
            _score_children(
                node,
                row_indices,
                row_values,
                first_child,
                n_children,
                tables,
                slots,
                entries,
                bias,
                found,
                scores,
            )
            _to_probabilities(scores, link, slopes[level[node]], shifts[level[node]], score)
            for c in range(scores.size):
                if n_bound == k and scores[c] < bound[k - 1]:
                    continue
                child = first_child[node] + c
                size = _push(heap_nodes, heap_scores, size, child, scores[c])
                if label[child] >= 0:
                    n_bound = _offer(child, scores[c], bound_nodes, bound, n_bound)
        for j in range(n_found, k):
            ids[row, j] = -1
            probabilities[row, j] = np.float32(0.0)


@kernel
def labels_above(
    indptr, indices, values, first_child, n_children, label, level, tables, slots, entries, bias, slopes, shifts,
    most_children, link, threshold, starts,
):  # fmt: skip
    """All labels of each row with at least this probability, and their probabilities; `starts` gets where each
    row begins. No label is more probable than the nodes above it, so branches below the threshold stay shut."""
    room = np.empty(most_children, np.float32)
    found = np.empty(_longest(indptr), np.uint64)
    waiting, waiting_scores = np.empty(n_children.size, np.int64), np.empty(n_children.size, np.float32)
    ids, probabilities, count = np.empty(1024, np.int64), np.empty(1024, np.float32), 0
    worth_opening = threshold * (
        _ONE - min(_ONE, np.float32(1e-6) * slopes.size)
    )  # rounding may add a little
    starts[0] = 0
    for row in range(indptr.size - 1):
        row_indices = indices[indptr[row] : indptr[row + 1]]
        row_values = values[indptr[row] : indptr[row + 1]]
        waiting[0], waiting_scores[0], size = 0, _ONE, 1
        while size:
            size -= 1
            node, above = waiting[size], waiting_scores[size]
            scores = room[: n_children[node]]
            _score_children(
                node,
                row_indices,
                row_values,
                first_child,
                n_children,
                tables,
                slots,
                entries,
                bias,
                found,
                scores,
            )
            _to_probabilities(scores, link, slopes[level[node]], shifts[level[node]], above)
            if count + scores.size > ids.size:
                ids, probabilities = _doubled(ids, count), _doubled(probabilities, count)
            for c in range(scores.size):
                child = first_child[node] + c
                if label[child] < 0:
                    if scores[c] >= worth_opening:
                        waiting[size], waiting_scores[size] = child, scores[c]
                        size += 1
                elif scores[c] >= threshold:
                    ids[count], probabilities[count] = label[child], scores[c]
                    count += 1
        starts[row + 1] = count
    return ids[:count], probabilities[:count]


@kernel
def _doubled(array, used):
    """The same numbers with twice the room, and at least a wide node's."""
    larger = np.empty(2 * array.size + 65536, array.dtype)
    larger[:used] = array[:used]
    return larger


@kernel
def is_sound(tables, slots, entries, n_children):
    """Whether every table ends its searches at an empty slot, and no run of entries leaves the array or
    names a child that is not there."""
    for node in range(n_children.size):
        first, last = tables[node], tables[node + 1]
        empty = first == last
        for at in range(first, last):
            if slots[at] == EMPTY:
                empty = True
                continue
            offset = np.int64(slots[at] & np.uint64(0xFFFFFFFF))
            if offset >= entries.size or offset + np.int64(entries[offset]) >= entries.size:
                return False
            for q in range(offset + 1, offset + 1 + np.int64(entries[offset])):
                if np.int64(entries[q] & _LOW_HALF) >= n_children[node]:
                    return False
        if not empty:
            return False
    return True
