"""Beam search in label trees with packed weights, of several rows or trees side by side.

A step opens one node for every lane, a row in a tree: first the lanes look for the slots of their features, then for
the entries, then they add up scores, so that the memory that one lane waits for is loaded while others work. The
answers are those of `search.best_labels`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from treemax.kernels import vector
from treemax.kernels.intrinsics import array_at, empty, maximum, minimum, reinterpret, zeros
from treemax.kernels.jit import bare_fast_inline_kernel, bare_inline_kernel, bare_kernel, kernel
from treemax.kernels.queues import offer, pad
from treemax.kernels.search import NO_FEATURE, _home, _to_probabilities
from treemax.kernels.sparse_rows import Rows

LANES = 8  # at most, unless there are more trees
FIRST_SLOT, N_SLOTS, FIRST_CHILD, N_CHILDREN, LEVEL, N_INNER, PARENT, PLACE = range(8)  # of a record
N_FIELDS = np.uint64(8)
# A tree is an array of the addresses of arrays, and of numbers:
RECORDS, TARGETS, SLOTS, ENTRIES, BIAS, SLOPES, SHIFTS, PARENTS, PLACES = range(9)
DEPTH, LINK, N_RECORDS, N_NODES, N_LABELS, ALL_SLOTS, ALL_ENTRIES, MOST_CHILDREN = range(9, 17)
_LOW_WORD = np.uint64(0xFFFFFFFF)
_HIGH_HALF, _LOW_HALF = np.uint32(0xFFFF0000), np.uint32(0xFFFF)
_ONE, _ZERO = np.float32(1.0), np.float32(0.0)
_WIDTH = np.uint64(vector.WIDTH)


class Lanes(NamedTuple):
    """The state of the searches that run side by side, and their scratch memory.

    Every lane has for each level a list of the best nodes, sorted, of which the first are opened already.
    """

    width: int  # nodes of a level that are opened at most
    depth: int  # of the deepest tree
    k: int
    queue: np.ndarray  # lanes x levels x width: numbers of nodes
    queue_scores: np.ndarray
    filled: np.ndarray  # lanes x levels: nodes of a list
    opened: np.ndarray  # lanes x levels: those that are opened
    first_level: np.ndarray  # of each lane: the levels above have no node that is not opened
    row: np.ndarray  # of each lane
    tree: np.ndarray  # of each lane
    current: np.ndarray  # the node to open; -1 if the search has ended
    above: np.ndarray  # its probability
    longest: int  # features of a row
    runs: np.ndarray  # lanes x longest row: slots, then the start and the end of entries
    values: np.ndarray  # lanes x longest row: of the features that have entries
    n_runs: np.ndarray
    scores: np.ndarray  # lanes x opened nodes x stride: scores, then probabilities of children
    stride: int
    best: np.ndarray  # lanes x k: the leaves found
    best_scores: np.ndarray
    n_best: np.ndarray


class Found(NamedTuple):
    """The labels that any tree found for every row."""

    capacity: int  # labels of a row
    labels: np.ndarray  # rows x capacity
    n: np.ndarray  # labels of each row
    of_lane: np.ndarray  # the row of each lane, counted from the first that is searched now
    n_known: np.ndarray  # of each lane: the labels whose parents are opened


class Opened(NamedTuple):
    """The opened nodes of every lane, whose probabilities are kept if there are several trees."""

    capacity: int  # nodes of a lane
    n_nodes: int  # inner nodes of the largest tree
    n_opened: np.ndarray
    nodes: np.ndarray  # lanes x capacity
    place: np.ndarray  # lanes x inner nodes: the place of the node among those opened, from 1; 0 if it is not


@kernel
def beam_labels(indptr, indices, values, trees, width, ids, probabilities):
    """Find the k labels with the largest mean of the probabilities in the trees, of those that any tree finds.

    `trees` has a row for each tree, the addresses of its arrays and their sizes: to convert so many arrays would take
    longer than to search for one row.
    """
    rows, n_rows, n_trees = Rows(indptr, indices, values), indptr.size - 1, trees.shape[0]
    longest, depth, stride, n_inner = 0, 0, 0, 0
    for row in range(n_rows):
        longest = maximum(longest, indptr[row + 1] - indptr[row])
    for t in range(n_trees):
        depth, n_inner = maximum(depth, trees[t, DEPTH]), maximum(n_inner, trees[t, N_RECORDS])
        stride = maximum(stride, (trees[t, MOST_CHILDREN] + 15) & ~15)
    width = minimum(width, n_inner)
    at_once = minimum(n_rows, maximum(1, LANES // n_trees))  # rows
    n_lanes = at_once * n_trees
    k, several = ids.shape[1], n_trees > 1
    capacity = minimum(n_inner, depth * (width + n_trees * k)) if several else 1
    n_queue, n_kept = n_lanes * depth * width, n_lanes * k if several else 0
    lanes = Lanes(
        width, depth, k, empty(n_queue, np.uint32), empty(n_queue, np.float32),
        empty(n_lanes * depth, np.int64), empty(n_lanes * depth, np.int64), empty(n_lanes, np.int64),
        empty(n_lanes, np.int64), empty(n_lanes, np.int64), empty(n_lanes, np.int64), empty(n_lanes, np.float32),
        longest, empty(n_lanes * longest, np.uint64), empty(n_lanes * longest, np.float32), empty(n_lanes, np.int64),
        empty(n_lanes * capacity * stride, np.float32), stride,
        empty(n_kept, np.int64), empty(n_kept, np.float32), empty(n_lanes, np.int64),
    )  # fmt: skip
    opened = Opened(
        capacity, n_inner, zeros(n_lanes, np.int64),
        empty(n_lanes * capacity if several else 0, np.int64), zeros(n_lanes * n_inner if several else 0, np.uint32),
    )  # fmt: skip
    found = Found(
        n_trees * k,
        empty(n_kept, np.int64),
        empty(at_once, np.int64),
        empty(n_lanes, np.int64),
        empty(n_lanes, np.int64),
    )
    first = 0
    while first < n_rows:
        n = minimum(at_once, n_rows - first)
        for i in range(n):
            for t in range(n_trees):
                lane = i * n_trees + t
                lanes.row[lane], lanes.tree[lane], found.of_lane[lane], found.n_known[lane] = first + i, t, i, 0
        best, best_scores = lanes.best, lanes.best_scores
        if not several:
            best, best_scores = ids[first : first + n].reshape(-1), probabilities[first : first + n].reshape(-1)
        for number in range(2 if several else 1):  # one call, with a variable: another one would be compiled anew
            if number == 1:
                _collect(n, trees, lanes, found)
            _search(rows, n * n_trees, number == 1, trees, lanes, opened, found, best, best_scores)
        if several:
            for i in range(n):
                _rank_by_mean(i, trees, lanes, opened, found, ids[first + i], probabilities[first + i])
        else:
            _to_labels(trees, lanes, n, best, best_scores)
        first += n


@bare_kernel
def _search(rows, n_lanes, completing, trees, lanes, opened, found, best, best_scores):
    """Search in all lanes, or, if `completing`, open the nodes above the labels that any tree found.

    All functions that are called for a node are inlined: calls with so many arrays would take a third of the time.
    """
    for lane in range(n_lanes):
        lanes.current[lane] = 0
        if not completing:
            _start(lane, lanes)
    searching = True
    while searching:
        searching = False
        for lane in range(n_lanes):
            if lanes.current[lane] >= 0:
                tree = trees[lanes.tree[lane]]
                if completing:
                    node = _next_above_found(lane, tree, lanes, opened, found)
                else:
                    node = _next_node(lane, lanes, best_scores)
                lanes.current[lane] = node
                if node >= 0:
                    searching = True
                    _find_slots(lane, node, rows, tree, lanes)
        for lane in range(n_lanes):
            if lanes.current[lane] >= 0:
                _find_entries(lane, lanes.current[lane], rows, trees[lanes.tree[lane]], lanes)
        for lane in range(n_lanes):
            if lanes.current[lane] >= 0:
                scores = lanes.scores[_scores_of(lane, _keep_opened(lane, lanes.current[lane], opened), lanes, opened)]
                _add_up(lane, lanes.current[lane], trees[lanes.tree[lane]], lanes, scores)
        for lane in range(n_lanes):
            if lanes.current[lane] >= 0:
                tree = trees[lanes.tree[lane]]
                scores = lanes.scores[_scores_of(lane, _last_opened(lane, opened), lanes, opened)]
                _convert(lanes.current[lane], lanes.above[lane], tree, scores)
                if not completing:
                    _take_children(lane, lanes.current[lane], tree, lanes, scores, best, best_scores)


@bare_inline_kernel
def _start(lane, lanes):
    """Begin a search at the root."""
    for level in range(lane * lanes.depth, (lane + 1) * lanes.depth):
        lanes.filled[level] = 0
        lanes.opened[level] = 0
    root = lane * lanes.depth
    lanes.filled[root] = 1
    lanes.queue[root * lanes.width] = 0
    lanes.queue_scores[root * lanes.width] = _ONE
    lanes.first_level[lane] = 0
    lanes.current[lane] = 0
    lanes.n_best[lane] = 0


@bare_inline_kernel
def _worst(lane, lanes, best_scores):
    """Return the score that a label must exceed."""
    return best_scores[(lane + 1) * lanes.k - 1] if lanes.n_best[lane] == lanes.k else -_ONE


@bare_inline_kernel
def _next_node(lane, lanes, best_scores):
    """Return the most probable node to open, of equal ones the first, or -1 if none leads to better labels."""
    score, found = _worst(lane, lanes, best_scores), np.int64(-1)
    empty_above = True
    for level in range(lanes.first_level[lane], lanes.depth):
        at = lane * lanes.depth + level
        n = lanes.opened[at]
        if n < lanes.filled[at]:
            empty_above = False
            if lanes.queue_scores[at * lanes.width + n] > score:
                score, found = lanes.queue_scores[at * lanes.width + n], at
        elif empty_above:
            lanes.first_level[lane] = level + 1
    if found < 0:
        return np.int64(-1)
    node = np.int64(lanes.queue[found * lanes.width + lanes.opened[found]])
    lanes.opened[found] += 1
    lanes.above[lane] = score
    return node


@bare_inline_kernel
def _field(tree, node, field):
    """Return a field of the record of a node."""
    records = array_at(tree[RECORDS], tree[N_RECORDS] * 8, np.uint32)
    return np.uint64(records[np.uint64(node) * N_FIELDS + np.uint64(field)])


@bare_inline_kernel
def _find_slots(lane, node, rows, tree, lanes):
    """Compute the slots where the features of the row may be, and prefetch them."""
    table, size = _field(tree, node, FIRST_SLOT), _field(tree, node, N_SLOTS)
    row = lanes.row[lane]
    begin, end = np.uint64(rows.indptr[row]), np.uint64(rows.indptr[row + 1])
    own = np.uint64(lane * (lanes.longest))
    slots = array_at(tree[SLOTS], tree[ALL_SLOTS], np.uint64)
    if size:
        for p in range(end - begin):
            at = table + _home(rows.indices[begin + p], size)
            lanes.runs[own + p] = at
            vector.prefetch(slots, at)
            vector.prefetch(slots, at + np.uint64(7))  # the next cache line, where the search may end
    start, count = _field(tree, node, FIRST_CHILD), _field(tree, node, N_CHILDREN)
    bias = array_at(tree[BIAS], tree[N_NODES], np.float32)
    for c in range(np.uint64(0), count, _WIDTH):
        vector.prefetch(bias, start + c)


@bare_inline_kernel
def _find_entries(lane, node, rows, tree, lanes):
    """Find the entries of the features of the row, and prefetch them."""
    table, size = _field(tree, node, FIRST_SLOT), _field(tree, node, N_SLOTS)
    row = lanes.row[lane]
    begin, end = np.uint64(rows.indptr[row]), np.uint64(rows.indptr[row + 1])
    own = np.uint64(lane * (lanes.longest))
    slots = array_at(tree[SLOTS], tree[ALL_SLOTS], np.uint64)
    entries, n = array_at(tree[ENTRIES], tree[ALL_ENTRIES], np.uint32), np.uint64(0)
    if size:
        for p in range(end - begin):
            feature = np.uint64(rows.indices[begin + p])
            at = _slot_of(slots, lanes.runs[own + p], feature, table, table + size)
            start, stop = slots[at] & _LOW_WORD, slots[at + np.uint64(1)] & _LOW_WORD
            vector.prefetch(entries, start)  # most have up to three cache lines
            vector.prefetch(entries, start + np.uint64(16))
            vector.prefetch(entries, stop - np.uint64(1))
            lanes.runs[own + n] = start | stop << np.uint64(32)
            lanes.values[own + n] = rows.values[begin + p]  # branchless, since the branch is unpredictable
            n += np.uint64(slots[at] >> np.uint64(32) == feature)
    lanes.n_runs[lane] = n


@bare_inline_kernel
def _slot_of(slots, at, feature, first, end):
    """Return the slot of a feature, or the empty one where it would be, from slot `at` of a table on."""
    key = slots[at] >> np.uint64(32)
    while key != feature and key != NO_FEATURE:
        at = at + np.uint64(1) if at + np.uint64(1) < end else first
        key = slots[at] >> np.uint64(32)
    return at


@bare_inline_kernel
def _scores_of(lane, place, lanes, opened):
    """Return where the scores of the children of an opened node are."""
    start = (lane * opened.capacity + place) * lanes.stride
    return slice(start, start + lanes.stride)


@bare_inline_kernel
def _last_opened(lane, opened):
    return opened.n_opened[lane] - 1 if opened.place.size else 0


@bare_inline_kernel
def _keep_opened(lane, node, opened):
    """Add a node to those that are opened; return its place."""
    if opened.place.size == 0:
        return np.int64(0)
    at = opened.n_opened[lane]
    opened.nodes[lane * opened.capacity + at] = node
    opened.n_opened[lane] = at + 1
    opened.place[lane * opened.n_nodes + node] = at + 1
    return at


@bare_fast_inline_kernel
def _add_up(lane, node, tree, lanes, scores):
    """Compute the scores of all children of a node."""
    entries = array_at(tree[ENTRIES], tree[ALL_ENTRIES], np.uint32)
    bias = array_at(tree[BIAS], tree[N_NODES], np.float32)
    start, count = _field(tree, node, FIRST_CHILD), _field(tree, node, N_CHILDREN)
    for c in range(count):
        scores[c] = bias[start + c]
    own = np.uint64(lane * (lanes.longest))
    half = (count + np.uint64(1)) >> np.uint64(1)
    for j in range(own, own + np.uint64(lanes.n_runs[lane])):
        first, last, x = lanes.runs[j] & _LOW_WORD, lanes.runs[j] >> np.uint64(32), lanes.values[j]
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
def _convert(node, above, tree, scores):
    """Convert the scores of the children of a node of probability `above` to probabilities."""
    level = _field(tree, node, LEVEL)
    slopes, shifts = array_at(tree[SLOPES], tree[DEPTH], np.float32), array_at(tree[SHIFTS], tree[DEPTH], np.float32)
    _to_probabilities(scores, _field(tree, node, N_CHILDREN), tree[LINK], slopes[level], shifts[level], above)


@bare_inline_kernel
def _take_children(lane, node, tree, lanes, scores, best, best_scores):
    """Offer the children of a node, leaves to the best of the lane and inner nodes to the list of their level."""
    first, count = np.int64(_field(tree, node, FIRST_CHILD)), _field(tree, node, N_CHILDREN)
    own, own_scores = best[lane * lanes.k : (lane + 1) * lanes.k], best_scores[lane * lanes.k : (lane + 1) * lanes.k]
    n_best, k = lanes.n_best[lane], lanes.k
    blocks = (count + _WIDTH - np.uint64(1)) // _WIDTH
    if _field(tree, node, N_INNER) == 0:
        for b in range(blocks):
            worst = own_scores[k - 1] if n_best == k else -_ONE
            better = vector.bits_above(vector.load(scores, b * _WIDTH), vector.splat(worst))
            while better:
                c = b * _WIDTH + np.uint64(vector.lowest_bit(better))
                better &= better - np.uint32(1)
                n_best = offer(first + np.int64(c), scores[c], own, own_scores, n_best)
        lanes.n_best[lane] = n_best
        return
    level = lane * lanes.depth + np.int64(_field(tree, node, LEVEL)) + 1
    targets = array_at(tree[TARGETS], tree[N_NODES], np.int32)
    for b in range(blocks):
        worst = own_scores[k - 1] if n_best == k else -_ONE
        if _field(tree, node, N_INNER) == count:
            worst = maximum(worst, _least(level, lanes))
        better = vector.bits_above(vector.load(scores, b * _WIDTH), vector.splat(worst))
        while better:
            c = b * _WIDTH + np.uint64(vector.lowest_bit(better))
            better &= better - np.uint32(1)
            child = first + np.int64(c)
            target = targets[child]
            if target >= 0:
                n_best = offer(child, scores[c], own, own_scores, n_best)
            elif n_best < k or scores[c] > own_scores[k - 1]:
                _insert(np.uint32(-1 - target), scores[c], level, lanes)
    lanes.n_best[lane] = n_best


@bare_inline_kernel
def _least(level, lanes):
    """Return a number below the least score that enters the list of a level, close to it."""
    if lanes.filled[level] < lanes.width:
        return -_ONE
    least = lanes.queue_scores[(level + 1) * lanes.width - 1]
    return reinterpret(np.uint32(reinterpret(least, np.uint32) - np.uint32(1)), np.float32) if least > 0 else -_ONE


@bare_inline_kernel
def _insert(node, score, level, lanes):
    """Insert a node into the list of its level, unless that is full of better ones."""
    n, nodes, scores = lanes.filled[level], lanes.queue, lanes.queue_scores
    start = level * lanes.width
    if n == lanes.width:
        n -= 1
        last = start + n
        if n < lanes.opened[level] or score < scores[last] or (score == scores[last] and node > nodes[last]):
            return
    at, least = start + n, start + lanes.opened[level]
    while at > least and (score > scores[at - 1] or (score == scores[at - 1] and node < nodes[at - 1])):
        scores[at], nodes[at] = scores[at - 1], nodes[at - 1]
        at -= 1
    scores[at], nodes[at] = score, node
    lanes.filled[level] = n + 1


@bare_kernel
def _to_labels(trees, lanes, n, ids, probabilities):
    """Replace the leaves found in one tree by their labels."""
    targets = array_at(trees[0, TARGETS], trees[0, N_NODES], np.int32)
    for lane in range(n):
        own = ids[lane * lanes.k : (lane + 1) * lanes.k]
        for j in range(lanes.n_best[lane]):
            own[j] = targets[own[j]]
        pad(own, probabilities[lane * lanes.k : (lane + 1) * lanes.k], lanes.n_best[lane])


@bare_kernel
def _collect(n_rows, trees, lanes, found):
    """Collect the labels that any tree found for each row."""
    n_trees = trees.shape[0]
    for i in range(n_rows):
        n, first = np.int64(0), i * found.capacity
        for t in range(n_trees):
            lane, targets = i * n_trees + t, array_at(trees[t, TARGETS], trees[t, N_NODES], np.int32)
            before = n
            for j in range(lane * lanes.k, lane * lanes.k + lanes.n_best[lane]):
                label = np.int64(targets[lanes.best[j]])
                if not _has(found.labels, first, first + before, label):
                    found.labels[first + n] = label
                    n += 1
        found.n[i] = n


@bare_inline_kernel
def _next_above_found(lane, tree, lanes, opened, found):
    """Return a node above the labels of a row that can be opened since its parent is, or -1 if all are opened."""
    place = opened.place[lane * opened.n_nodes : (lane + 1) * opened.n_nodes]
    parents = array_at(tree[PARENTS], tree[N_LABELS], np.uint32)
    i = found.of_lane[lane]
    for c in range(found.n_known[lane], found.n[i]):
        node = np.int64(parents[found.labels[i * found.capacity + c]])
        if place[node] == 0:
            found.n_known[lane] = c
            while place[_field(tree, node, PARENT)] == 0:
                node = np.int64(_field(tree, node, PARENT))
            known = np.int64(place[_field(tree, node, PARENT)]) - 1
            lanes.above[lane] = lanes.scores[_scores_of(lane, known, lanes, opened)][_field(tree, node, PLACE)]
            return node
    return np.int64(-1)


@bare_kernel
def _rank_by_mean(i, trees, lanes, opened, found, ids, probabilities):
    """Write the labels found for row i, best first by the mean of their probabilities, ties by id."""
    n_trees, n_best = trees.shape[0], np.int64(0)
    for c in range(i * found.capacity, i * found.capacity + found.n[i]):
        label, total = found.labels[c], _ZERO
        for t in range(n_trees):
            lane = i * n_trees + t
            parents = array_at(trees[t, PARENTS], trees[t, N_LABELS], np.uint32)
            places = array_at(trees[t, PLACES], trees[t, N_LABELS], np.uint32)
            known = np.int64(opened.place[lane * opened.n_nodes + parents[label]]) - 1
            total += lanes.scores[_scores_of(lane, known, lanes, opened)][places[label]]
        n_best = _offer_by_id(label, total / np.float32(n_trees), ids, probabilities, n_best)
    pad(ids, probabilities, n_best)
    for lane in range(i * n_trees, (i + 1) * n_trees):
        for j in range(opened.n_opened[lane]):
            opened.place[lane * opened.n_nodes + opened.nodes[lane * opened.capacity + j]] = 0
        opened.n_opened[lane] = 0


@bare_inline_kernel
def _has(labels, first, last, label):
    for j in range(first, last):
        if labels[j] == label:
            return True
    return False


@bare_inline_kernel
def _offer_by_id(label, score, ids, scores, filled):
    """Insert into a short list sorted by score, ties by id; return its length."""
    if filled == ids.size:
        last = filled - 1
        if score < scores[last] or (score == scores[last] and label > ids[last]):
            return filled
        filled = last
    at = filled
    while at > 0 and (score > scores[at - 1] or (score == scores[at - 1] and label < ids[at - 1])):
        scores[at], ids[at] = scores[at - 1], ids[at - 1]
        at -= 1
    scores[at], ids[at] = score, label
    return filled + 1
