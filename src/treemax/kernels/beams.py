"""Beam search in label trees with packed weights, of several rows or trees side by side.

A step opens one node for every lane, a row in a tree: first the lanes look for the slots of their features, then for
the entries, then they add up scores, so that the memory that one lane waits for is loaded while others work. The
answers are those of `search.best_labels`.

Lanes and trees are pointers, not arrays: they compile in a third of the time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from treemax.kernels import vector
from treemax.kernels.arithmetic import copy_into
from treemax.kernels.intrinsics import (
    Pointer,
    address_of,
    empty,
    maximum,
    minimum,
    moved,
    pointer_at,
    reinterpret,
    zeros,
)
from treemax.kernels.jit import bare_fast_inline_kernel, bare_inline_kernel, bare_kernel, kernel
from treemax.kernels.search import NO_FEATURE, _home, _to_probabilities
from treemax.kernels.sparse_rows import Rows

LANES = 8  # at most, unless there are more trees
FIRST_SLOT, N_SLOTS, FIRST_CHILD, N_CHILDREN, LEVEL, N_INNER, PARENT, PLACE = range(8)  # of a record
# A tree is an array of the addresses of arrays, and of numbers:
RECORDS, TARGETS, SLOTS, ENTRIES, BIAS, SLOPES, SHIFTS, PARENTS, PLACES = range(9)
DEPTH, LINK, N_RECORDS, MOST_CHILDREN, N_FIELDS = range(9, 14)
_LOW_WORD = np.uint64(0xFFFFFFFF)
_HIGH_HALF, _LOW_HALF = np.uint32(0xFFFF0000), np.uint32(0xFFFF)
_ONE, _ZERO = np.float32(1.0), np.float32(0.0)
_WIDTH = np.uint64(vector.WIDTH)


class Sizes(NamedTuple):
    """The sizes of the memory of lanes."""

    n_lanes: int
    width: int  # nodes of a level that are opened at most
    depth: int  # of the deepest tree
    k: int
    longest: int  # features of a row
    n_kept: int  # opened nodes of a lane whose probabilities of children are kept; 1 if there is one tree
    stride: int  # numbers for the children of a node


class Lanes(NamedTuple):
    """The state of the searches that run side by side, and their scratch memory.

    Every lane has for each level a list of the best nodes, sorted, of which the first are opened already.
    """

    sizes: Sizes
    row: Pointer  # of each lane
    tree: Pointer  # of each lane
    current: Pointer  # of each lane: the node to open; -1 if the search has ended
    first_level: Pointer  # of each lane: the levels above have no node that is not opened
    n_runs: Pointer  # of each lane
    n_best: Pointer  # of each lane
    n_opened: Pointer  # of each lane: nodes that are kept, if there are several trees
    filled: Pointer  # lanes x levels: nodes of a list
    opened: Pointer  # lanes x levels: those that are opened
    nodes: Pointer  # lanes x kept nodes
    runs: Pointer  # lanes x longest row: slots, then the start and the end of entries
    queue: Pointer  # lanes x levels x width: numbers of nodes
    above: Pointer  # of each lane: the probability of the node
    queue_scores: Pointer
    values: Pointer  # lanes x longest row: of the features that have entries
    scores: Pointer  # lanes x kept nodes x stride: scores, then probabilities of children


class Found(NamedTuple):
    """What the searches in several trees found."""

    best: Pointer  # lanes x k: leaves
    best_scores: Pointer
    n_inner: int  # inner nodes of the largest tree
    places: np.ndarray  # lanes x inner nodes: the place of a node among those opened, from 1; 0 if it is not
    n_most: int  # labels of a row
    labels: np.ndarray  # rows x most labels: those that any tree found
    n_labels: np.ndarray  # of each row
    n_known: np.ndarray  # of each lane: the labels whose parents are opened


@kernel
def beam_labels(indptr, indices, values, tree, width, ids, probabilities):
    """Find the k most probable labels of each row.

    `tree` has the addresses of arrays and their sizes: to convert so many arrays would take longer than to search for
    one row.
    """
    rows, n_rows, k = _row_pointers(indptr, indices, values), indptr.size - 1, ids.shape[1]
    trees = pointer_at(address_of(tree), np.int64)
    n_lanes, width = maximum(1, minimum(n_rows, LANES)), minimum(width, trees[N_RECORDS])
    sizes = Sizes(n_lanes, width, trees[DEPTH], k, _longest(rows, n_rows), np.int64(1), _stride(trees))
    memory = empty(_n_numbers(sizes), np.int64)
    lanes = _lanes(address_of(memory), sizes)
    targets = pointer_at(trees[TARGETS], np.int32)
    best, best_scores = pointer_at(address_of(ids), np.int64), pointer_at(address_of(probabilities), np.float32)
    for first in range(0, n_rows, n_lanes):
        n = minimum(n_lanes, n_rows - first)
        for lane in range(n):
            lanes.row[lane], lanes.tree[lane] = first + lane, 0
        own, own_scores = moved(best, first * k), moved(best_scores, first * k)
        _search(n, rows, trees, lanes, own, own_scores)
        for lane in range(n):
            _to_labels(targets, moved(own, lane * k), lanes.n_best[lane])
            _pad(moved(own, lane * k), moved(own_scores, lane * k), lanes.n_best[lane], k)
    memory[0] = 0  # a pointer does not keep it


@kernel
def beam_allowed_labels(
    indptr, indices, values, tree, width, node_weights, first, of_first, ids, probabilities
):  # fmt: skip
    """Find the best of all labels of each row (`first`, may have no columns) and the best allowed ones, those below nodes
    with a weight. `tree` as in `beam_labels`; `node_weights` can be read in whole vectors.

    The answers are those of two beams, but no node is opened twice.
    """
    rows, n_rows, n_first, k = _row_pointers(indptr, indices, values), indptr.size - 1, first.shape[1], ids.shape[1]
    trees = pointer_at(address_of(tree), np.int64)
    n_lanes, width, depth = maximum(1, minimum(n_rows, LANES)), minimum(width, trees[N_RECORDS]), trees[DEPTH]
    one, zero = np.int64(1), np.int64(0)
    sizes = Sizes(n_lanes, zero, depth, zero, _longest(rows, n_rows), one, _stride(trees))
    of_all, of_allowed = (
        Sizes(n_lanes, width, depth, n_first, zero, one, zero),
        Sizes(n_lanes, width, depth, k, zero, one, zero),
    )
    memory = empty(_n_numbers(sizes) + _n_numbers(of_all) + _n_numbers(of_allowed), np.int64)
    start = address_of(memory)
    lanes, start = _lanes(start, sizes), start + 8 * _n_numbers(sizes)
    all_labels, allowed = _lanes(start, of_all), _lanes(start + 8 * _n_numbers(of_all), of_allowed)
    targets, weights = pointer_at(trees[TARGETS], np.int32), pointer_at(address_of(node_weights), np.float32)
    leading, leading_scores = pointer_at(address_of(first), np.int64), pointer_at(address_of(of_first), np.float32)
    best, best_scores = pointer_at(address_of(ids), np.int64), pointer_at(address_of(probabilities), np.float32)
    for lane in range(n_lanes):
        lanes.tree[lane] = 0
    for begin in range(0, n_rows, n_lanes):
        n = minimum(n_lanes, n_rows - begin)
        for lane in range(n):
            lanes.row[lane] = begin + lane
        of_first_row, of_row = begin * n_first, begin * k
        _search_both(
            n, rows, trees, lanes, weights,
            all_labels, moved(leading, of_first_row), moved(leading_scores, of_first_row),
            allowed, moved(best, of_row), moved(best_scores, of_row),
        )  # fmt: skip
        for lane in range(n):
            own, found = of_first_row + lane * n_first, all_labels.n_best[lane]
            _to_labels(targets, moved(leading, own), found)
            _pad(moved(leading, own), moved(leading_scores, own), found, n_first)
            own, found = of_row + lane * k, allowed.n_best[lane]
            _to_labels(targets, moved(best, own), found)
            _pad(moved(best, own), moved(best_scores, own), found, k)
    memory[0] = 0  # a pointer does not keep it


@kernel
def beam_labels_of_trees(indptr, indices, values, table, width, ids, probabilities):
    """Find the k labels with the largest mean of the probabilities in the trees, of those that any tree finds.

    `table` has a row for each tree, as in `beam_labels`.
    """
    rows, n_rows, k = _row_pointers(indptr, indices, values), indptr.size - 1, ids.shape[1]
    trees, n_trees = pointer_at(address_of(table), np.int64), table.shape[0]
    depth, stride, n_inner = np.int64(0), np.int64(0), np.int64(0)
    for t in range(n_trees):
        tree = moved(trees, t * N_FIELDS)
        depth, n_inner, stride = (
            maximum(depth, tree[DEPTH]),
            maximum(n_inner, tree[N_RECORDS]),
            maximum(stride, _stride(tree)),
        )
    width, at_once = minimum(width, n_inner), maximum(1, minimum(n_rows, LANES // n_trees))  # rows
    n_kept = maximum(2, minimum(n_inner, depth * (width + n_trees * k)))
    sizes = Sizes(at_once * n_trees, width, depth, k, _longest(rows, n_rows), n_kept, stride)
    memory, leaves = empty(_n_numbers(sizes), np.int64), empty(sizes.n_lanes * k, np.int64)
    leaf_scores = empty(sizes.n_lanes * k, np.float32)
    lanes = _lanes(address_of(memory), sizes)
    found = Found(
        pointer_at(address_of(leaves), np.int64), pointer_at(address_of(leaf_scores), np.float32),
        n_inner, zeros(sizes.n_lanes * n_inner, np.uint32), n_trees * k, empty(sizes.n_lanes * k, np.int64),
        empty(at_once, np.int64), empty(sizes.n_lanes, np.int64),
    )  # fmt: skip
    for first in range(0, n_rows, at_once):
        n = minimum(at_once, n_rows - first)
        for lane in range(n * n_trees):
            lanes.row[lane], lanes.tree[lane] = first + lane // n_trees, lane % n_trees
        _search(n * n_trees, rows, trees, lanes, found.best, found.best_scores)
        _collect(n, n_trees, trees, lanes, found)
        _complete(n * n_trees, n_trees, rows, trees, lanes, found)
        for i in range(n):
            _rank_by_mean(i, n_trees, trees, lanes, found, ids[first + i], probabilities[first + i])
    memory[0], leaves[0], leaf_scores[0] = 0, 0, _ZERO  # pointers do not keep them


@kernel
def labels_above(indptr, indices, values, tree, threshold):
    """Return the row, the label and the probability of all labels with at least this probability, in no order.

    No label is more probable than its ancestors, so branches below the threshold are pruned. `tree` as in `beam_labels`.
    """
    rows, n_rows = _row_pointers(indptr, indices, values), indptr.size - 1
    trees = pointer_at(address_of(tree), np.int64)
    n_lanes, depth, one = maximum(1, minimum(n_rows, LANES)), trees[DEPTH], np.int64(1)
    width = (trees[N_RECORDS] + depth - 1) // depth  # the lists of all levels are one stack of nodes
    sizes = Sizes(n_lanes, width, depth, one, _longest(rows, n_rows), one, _stride(trees))
    memory = empty(_n_numbers(sizes), np.int64)
    lanes = _lanes(address_of(memory), sizes)
    found, ids, probabilities = empty(1024, np.int64), empty(1024, np.int64), empty(1024, np.float32)
    count = np.int64(0)
    tolerance = minimum(_ONE, np.float32(1e-6) * depth)  # for rounding
    worth_opening = threshold * (_ONE - tolerance)
    for first in range(0, n_rows, n_lanes):
        n = minimum(n_lanes, n_rows - first)
        for lane in range(n):
            lanes.row[lane], lanes.tree[lane], lanes.n_opened[lane] = first + lane, 0, 0
            lanes.current[lane], lanes.above[lane], lanes.n_best[lane] = 0, _ONE, 0
        searching = True
        while searching:
            _score_children(n, rows, trees, lanes)
            while count + n * trees[MOST_CHILDREN] > ids.size:
                found, ids, probabilities = _doubled(found, count), _doubled(ids, count), _doubled(probabilities, count)
            searching = False
            for lane in range(n):
                if lanes.current[lane] >= 0:
                    count = _keep_above(lane, trees, lanes, threshold, worth_opening, found, ids, probabilities, count)
                    searching |= lanes.current[lane] >= 0
    memory[0] = 0  # a pointer does not keep it
    return found[:count], ids[:count], probabilities[:count]


@bare_inline_kernel
def _keep_above(lane, trees, lanes, threshold, worth_opening, found, ids, probabilities, count):
    """Add the labels among the children of the node of a lane to those found, and take its next node, -1 if there is none;
    return the number of labels."""
    record, scores, size = _record(lanes.current[lane], trees), _scores(lane, lanes), lanes.n_best[lane]
    targets = moved(pointer_at(trees[TARGETS], np.int32), record[FIRST_CHILD])
    stack = lane * lanes.sizes.depth * lanes.sizes.width
    nodes, of_nodes = moved(lanes.queue, stack), moved(lanes.queue_scores, stack)
    for c in range(record[N_CHILDREN]):
        if targets[c] < 0:
            if scores[c] >= worth_opening:
                nodes[size], of_nodes[size] = -1 - targets[c], scores[c]
                size += 1
        elif scores[c] >= threshold:
            found[count], ids[count], probabilities[count] = lanes.row[lane], targets[c], scores[c]
            count += 1
    lanes.current[lane] = -1
    if size:
        size -= 1
        lanes.current[lane], lanes.above[lane] = nodes[size], of_nodes[size]
    lanes.n_best[lane] = size
    return count


@kernel
def _doubled(array, used):
    """Return a copy with twice the capacity, at least that of a wide node."""
    larger = empty(2 * array.size + 65536, array.dtype)
    copy_into(larger, array, used)
    return larger


@bare_inline_kernel
def _row_pointers(indptr, indices, values):
    return Rows(
        pointer_at(address_of(indptr), indptr.dtype),
        pointer_at(address_of(indices), indices.dtype),
        pointer_at(address_of(values), np.float32),
    )


@bare_inline_kernel
def _longest(rows, n_rows):
    longest = np.int64(0)
    for row in range(n_rows):
        longest = maximum(longest, np.int64(rows.indptr[row + 1] - rows.indptr[row]))
    return longest


@bare_inline_kernel
def _stride(tree):
    """Return how many numbers the children of a node take, in whole vectors."""
    return (tree[MOST_CHILDREN] + 15) & ~15


@bare_inline_kernel
def _n_numbers(sizes):
    """Return how many numbers of eight bytes the lanes take, with those of four bytes as if of eight."""
    of_level = 2 + 2 * sizes.width
    return sizes.n_lanes * (8 + sizes.depth * of_level + 2 * sizes.longest + sizes.n_kept * (1 + sizes.stride))


@bare_inline_kernel
def _lanes(address, sizes):
    """Return the lanes in memory at an address."""
    size = 8 * sizes.n_lanes
    levels = address + 8 * size
    nodes = levels + 2 * size * sizes.depth
    runs = nodes + size * sizes.n_kept
    queue = runs + size * sizes.longest
    queue_scores = queue + size * sizes.depth * sizes.width
    values = queue_scores + size * sizes.depth * sizes.width
    scores = values + size * sizes.longest
    return Lanes(
        sizes,
        pointer_at(address, np.int64),
        pointer_at(address + size, np.int64),
        pointer_at(address + 2 * size, np.int64),
        pointer_at(address + 3 * size, np.int64),
        pointer_at(address + 4 * size, np.int64),
        pointer_at(address + 5 * size, np.int64),
        pointer_at(address + 6 * size, np.int64),
        pointer_at(levels, np.int64),
        pointer_at(levels + size * sizes.depth, np.int64),
        pointer_at(nodes, np.int64),
        pointer_at(runs, np.uint64),
        pointer_at(queue, np.uint32),
        pointer_at(address + 7 * size, np.float32),
        pointer_at(queue_scores, np.float32),
        pointer_at(values, np.float32),
        pointer_at(scores, np.float32),
    )


@bare_kernel
def _search(n_lanes, rows, trees, lanes, best, best_scores):
    """Search in all lanes, each in its tree."""
    for lane in range(n_lanes):
        _start(lane, lanes)
    searching = True
    while searching:
        searching = False
        for lane in range(n_lanes):
            if lanes.current[lane] >= 0:
                searching |= _open(lane, _next_node(lane, lanes, best_scores), lanes)
        _score_children(n_lanes, rows, trees, lanes)
        for lane in range(n_lanes):
            if lanes.current[lane] >= 0:
                node, scores = lanes.current[lane], _scores(lane, lanes)
                tree = _tree_of(lane, trees, lanes)
                _take_children(lane, node, scores, False, scores, tree, lanes, best, best_scores)


@bare_kernel
def _search_both(
    n_lanes, rows, trees, lanes, weights, all_labels, leading, leading_scores, allowed, best, best_scores
):  # fmt: skip
    """Search in one tree for the best of all labels and the best allowed ones; `lanes` score the nodes of both."""
    for lane in range(n_lanes):
        _start(lane, all_labels)
        _start(lane, allowed)
        lanes.current[lane], lanes.n_opened[lane] = 0, 0
    searching = True
    while searching:
        searching = False
        for lane in range(n_lanes):
            if lanes.current[lane] >= 0:
                searching |= _open_for_both(lane, lanes, all_labels, leading_scores, allowed, best_scores)
        _score_children(n_lanes, rows, trees, lanes)
        for lane in range(n_lanes):
            node, scores = lanes.current[lane], _scores(lane, lanes)
            if node >= 0 and all_labels.current[lane] >= 0:
                _take_children(lane, node, scores, False, scores, trees, all_labels, leading, leading_scores)
            if node >= 0 and allowed.current[lane] >= 0:
                _take_children(lane, node, scores, True, weights, trees, allowed, best, best_scores)


@bare_inline_kernel
def _open_for_both(lane, lanes, all_labels, leading_scores, allowed, best_scores):
    """Open the more probable of the next nodes of two searches, for both if it is the same; return whether there is one."""
    one = _next_list(lane, all_labels, leading_scores) if all_labels.sizes.k else np.int64(-1)
    other = _next_list(lane, allowed, best_scores)
    if one >= 0 and other >= 0 and _next_of(one, all_labels) != _next_of(other, allowed):
        if _next_score(one, all_labels) < _next_score(other, allowed):
            one = np.int64(-1)
        else:
            other = np.int64(-1)
    all_labels.current[lane] = _take_next(lane, one, all_labels)
    allowed.current[lane] = _take_next(lane, other, allowed)
    lanes.current[lane] = maximum(all_labels.current[lane], allowed.current[lane])
    lanes.above[lane] = all_labels.above[lane] if one >= 0 else allowed.above[lane]
    return lanes.current[lane] >= 0


@bare_kernel
def _complete(n_lanes, n_trees, rows, trees, lanes, found):
    """Open the nodes above the labels that any tree found."""
    for lane in range(n_lanes):
        lanes.current[lane] = 0
        found.n_known[lane] = 0
        for j in range(lanes.n_opened[lane]):
            found.places[lane * found.n_inner + lanes.nodes[lane * lanes.sizes.n_kept + j]] = j + 1
    searching = True
    while searching:
        searching = False
        for lane in range(n_lanes):
            if lanes.current[lane] >= 0:
                node = _next_above_found(lane, lane // n_trees, trees, lanes, found)
                if _open(lane, node, lanes):
                    searching = True
                    found.places[lane * found.n_inner + node] = lanes.n_opened[lane]
        _score_children(n_lanes, rows, trees, lanes)


@bare_kernel
def _score_children(n_lanes, rows, trees, lanes):
    """Compute the probabilities of the children of the node of every lane.

    All functions that are called for a node are inlined: calls with so many arguments would take a third of the time.
    """
    for lane in range(n_lanes):
        if lanes.current[lane] >= 0:
            _find_slots(lane, rows, _tree_of(lane, trees, lanes), lanes)
    for lane in range(n_lanes):
        if lanes.current[lane] >= 0:
            _find_entries(lane, rows, _tree_of(lane, trees, lanes), lanes)
    for lane in range(n_lanes):
        if lanes.current[lane] >= 0:
            _add_up(lane, _tree_of(lane, trees, lanes), lanes)
    for lane in range(n_lanes):
        if lanes.current[lane] >= 0:
            _convert(lane, _tree_of(lane, trees, lanes), lanes)


@bare_inline_kernel
def _tree_of(lane, trees, lanes):
    return moved(trees, lanes.tree[lane] * N_FIELDS)


@bare_inline_kernel
def _record(node, tree):
    """Return the fields of a node."""
    return moved(pointer_at(tree[RECORDS], np.uint32), node * 8)


@bare_inline_kernel
def _scores(lane, lanes):
    """Return the scores of the children of the node of a lane."""
    kept = lane * lanes.sizes.n_kept + maximum(lanes.n_opened[lane] - 1, 0)
    return moved(lanes.scores, kept * lanes.sizes.stride)


@bare_inline_kernel
def _start(lane, lanes):
    """Begin a search at the root."""
    root = lane * lanes.sizes.depth
    for level in range(root, root + lanes.sizes.depth):
        lanes.filled[level] = 0
        lanes.opened[level] = 0
    lanes.filled[root] = 1
    lanes.queue[root * lanes.sizes.width] = 0
    lanes.queue_scores[root * lanes.sizes.width] = _ONE
    lanes.first_level[lane] = 0
    lanes.current[lane] = 0
    lanes.n_best[lane] = 0
    lanes.n_opened[lane] = 0


@bare_inline_kernel
def _next_node(lane, lanes, best_scores):
    """Return the most probable node to open, of equal ones the first, or -1 if none leads to better labels."""
    return _take_next(lane, _next_list(lane, lanes, best_scores), lanes)


@bare_inline_kernel
def _next_list(lane, lanes, best_scores):
    """Return the list whose next node is the most probable one to open, or -1 if none leads to better labels."""
    width, depth, k = lanes.sizes.width, lanes.sizes.depth, lanes.sizes.k
    score, found = best_scores[(lane + 1) * k - 1] if lanes.n_best[lane] == k else -_ONE, np.int64(-1)
    empty_above = True
    for level in range(lanes.first_level[lane], depth):
        at = lane * depth + level
        n = lanes.opened[at]
        if n < lanes.filled[at]:
            empty_above = False
            if lanes.queue_scores[at * width + n] > score:
                score, found = lanes.queue_scores[at * width + n], at
        elif empty_above:
            lanes.first_level[lane] = level + 1
    return found


@bare_inline_kernel
def _next_of(at, lanes):
    """Return the next node of a list."""
    return np.int64(lanes.queue[at * lanes.sizes.width + lanes.opened[at]])


@bare_inline_kernel
def _next_score(at, lanes):
    """Return the probability of the next node of a list."""
    return lanes.queue_scores[at * lanes.sizes.width + lanes.opened[at]]


@bare_inline_kernel
def _take_next(lane, at, lanes):
    """Take the next node of a list, -1 if the list is -1."""
    if at < 0:
        return np.int64(-1)
    node = _next_of(at, lanes)
    lanes.above[lane] = _next_score(at, lanes)
    lanes.opened[at] += 1
    return node


@bare_inline_kernel
def _open(lane, node, lanes):
    """Open a node in a lane, or end its search if there is none; return whether there is."""
    lanes.current[lane] = node
    n = lanes.n_opened[lane]
    if node >= 0 and lanes.sizes.n_kept > 1:
        lanes.nodes[lane * lanes.sizes.n_kept + n] = node
        lanes.n_opened[lane] = n + 1
    return node >= 0


@bare_inline_kernel
def _find_slots(lane, rows, tree, lanes):
    """Compute the slots where the features of the row may be, and prefetch them."""
    record = _record(lanes.current[lane], tree)
    table, size = np.uint64(record[FIRST_SLOT]), np.uint64(record[N_SLOTS])
    begin, end = np.uint64(rows.indptr[lanes.row[lane]]), np.uint64(rows.indptr[lanes.row[lane] + 1])
    slots, runs = pointer_at(tree[SLOTS], np.uint64), moved(lanes.runs, lane * lanes.sizes.longest)
    if size:
        for p in range(end - begin):
            at = table + _home(rows.indices[begin + p], size)
            runs[p] = at
            vector.prefetch(slots, at)
            vector.prefetch(slots, at + np.uint64(7))  # the next cache line, where the search may end
    bias, start = pointer_at(tree[BIAS], np.float32), np.uint64(record[FIRST_CHILD])
    for c in range(np.uint64(0), np.uint64(record[N_CHILDREN]), _WIDTH):
        vector.prefetch(bias, start + c)


@bare_inline_kernel
def _find_entries(lane, rows, tree, lanes):
    """Find the entries of the features of the row, and prefetch them."""
    record = _record(lanes.current[lane], tree)
    table, size = np.uint64(record[FIRST_SLOT]), np.uint64(record[N_SLOTS])
    begin, end = np.uint64(rows.indptr[lanes.row[lane]]), np.uint64(rows.indptr[lanes.row[lane] + 1])
    slots, entries = pointer_at(tree[SLOTS], np.uint64), pointer_at(tree[ENTRIES], np.uint32)
    runs = moved(lanes.runs, lane * lanes.sizes.longest)
    values, n = moved(lanes.values, lane * lanes.sizes.longest), np.uint64(0)
    if size:
        for p in range(end - begin):
            feature, at = np.uint64(rows.indices[begin + p]), runs[p]
            key = slots[at] >> np.uint64(32)
            while key != feature and key != NO_FEATURE:
                at = at + np.uint64(1) if at + np.uint64(1) < table + size else table
                key = slots[at] >> np.uint64(32)
            start, stop = slots[at] & _LOW_WORD, slots[at + np.uint64(1)] & _LOW_WORD
            vector.prefetch(entries, start)  # most have up to three cache lines
            vector.prefetch(entries, start + np.uint64(16))
            vector.prefetch(entries, stop - np.uint64(1))
            runs[n] = start | stop << np.uint64(32)
            values[n] = rows.values[begin + p]  # branchless, since the branch is unpredictable
            n += np.uint64(key == feature)
    lanes.n_runs[lane] = n


@bare_fast_inline_kernel
def _add_up(lane, tree, lanes):
    """Compute the scores of all children of a node."""
    entries, scores, record = (
        pointer_at(tree[ENTRIES], np.uint32),
        _scores(lane, lanes),
        _record(lanes.current[lane], tree),
    )
    bias, count = moved(pointer_at(tree[BIAS], np.float32), record[FIRST_CHILD]), np.uint64(record[N_CHILDREN])
    for c in range(count):
        scores[c] = bias[c]
    own = lane * lanes.sizes.longest
    half = (count + np.uint64(1)) >> np.uint64(1)
    for j in range(own, own + lanes.n_runs[lane]):
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
def _convert(lane, tree, lanes):
    """Convert the scores of the children of a node to probabilities."""
    record = _record(lanes.current[lane], tree)
    slopes, shifts = pointer_at(tree[SLOPES], np.float32), pointer_at(tree[SHIFTS], np.float32)
    count, level = np.uint64(record[N_CHILDREN]), record[LEVEL]
    _to_probabilities(_scores(lane, lanes), count, tree[LINK], slopes[level], shifts[level], lanes.above[lane])


@bare_inline_kernel
def _take_children(lane, node, scores, weighted, weights, tree, lanes, best, best_scores):
    """Offer the children of a node, leaves to the best of the lane and inner nodes to the list of their level; if
    `weighted`, only those with a weight."""
    record, k = _record(node, tree), lanes.sizes.k
    first, count, n_inner = np.int64(record[FIRST_CHILD]), np.uint64(record[N_CHILDREN]), record[N_INNER]
    own, own_scores, n_best = moved(best, lane * k), moved(best_scores, lane * k), lanes.n_best[lane]
    level = lane * lanes.sizes.depth + np.int64(record[LEVEL]) + 1
    targets = moved(pointer_at(tree[TARGETS], np.int32), first)
    for b in range((count + _WIDTH - np.uint64(1)) // _WIDTH):
        worst = own_scores[k - 1] if n_best == k else -_ONE
        if n_inner == count:
            worst = maximum(worst, _least(level, lanes))
        better = vector.bits_above(vector.load(scores, b * _WIDTH), vector.splat(worst))
        if weighted:
            of_children = vector.load(weights, np.uint64(first) + b * _WIDTH)
            better &= vector.bits_above(of_children, vector.splat(_ZERO))
        while better:
            c = b * _WIDTH + np.uint64(vector.lowest_bit(better))
            better &= better - np.uint32(1)
            if n_best == k and scores[c] <= own_scores[k - 1]:
                continue
            if targets[c] < 0:
                _insert(np.uint32(-1 - targets[c]), scores[c], level, lanes)
                continue
            at = minimum(n_best, k - 1)
            n_best = at + 1
            while at > 0 and own_scores[at - 1] < scores[c]:
                own[at], own_scores[at] = own[at - 1], own_scores[at - 1]
                at -= 1
            own[at], own_scores[at] = first + np.int64(c), scores[c]
    lanes.n_best[lane] = n_best


@bare_inline_kernel
def _least(level, lanes):
    """Return a number below the least score that enters the list of a level, close to it."""
    if lanes.filled[level] < lanes.sizes.width:
        return -_ONE
    least = lanes.queue_scores[(level + 1) * lanes.sizes.width - 1]
    return reinterpret(np.uint32(reinterpret(least, np.uint32) - np.uint32(1)), np.float32) if least > 0 else -_ONE


@bare_inline_kernel
def _insert(node, score, level, lanes):
    """Insert a node into the list of its level, unless that is full of better ones."""
    n, width = lanes.filled[level], lanes.sizes.width
    nodes, scores = moved(lanes.queue, level * width), moved(lanes.queue_scores, level * width)
    if n == width:
        n -= 1
        if n < lanes.opened[level] or score < scores[n] or (score == scores[n] and node > nodes[n]):
            return
    at, least = n, lanes.opened[level]
    while at > least and (score > scores[at - 1] or (score == scores[at - 1] and node < nodes[at - 1])):
        scores[at], nodes[at] = scores[at - 1], nodes[at - 1]
        at -= 1
    scores[at], nodes[at] = score, node
    lanes.filled[level] = n + 1


@bare_inline_kernel
def _to_labels(targets, leaves, n):
    """Replace leaves by their labels."""
    for j in range(n):
        leaves[j] = targets[leaves[j]]


@bare_inline_kernel
def _pad(ids, probabilities, n, k):
    """Fill the rest of k labels with -1 and 0."""
    for j in range(n, k):
        ids[j], probabilities[j] = -1, _ZERO


@bare_kernel
def _collect(n_rows, n_trees, trees, lanes, found):
    """Collect the labels that any tree found for each row."""
    k = lanes.sizes.k
    for i in range(n_rows):
        first, n = i * found.n_most, np.int64(0)
        for lane in range(i * n_trees, (i + 1) * n_trees):
            _to_labels(
                pointer_at(_tree_of(lane, trees, lanes)[TARGETS], np.int32),
                moved(found.best, lane * k),
                lanes.n_best[lane],
            )
            before = n
            for j in range(lane * k, lane * k + lanes.n_best[lane]):
                if not _has(found.labels, first, first + before, found.best[j]):
                    found.labels[first + n] = found.best[j]
                    n += 1
        found.n_labels[i] = n


@bare_inline_kernel
def _has(labels, first, last, label):
    for j in range(first, last):
        if labels[j] == label:
            return True
    return False


@bare_inline_kernel
def _next_above_found(lane, i, trees, lanes, found):
    """Return a node above the labels of row i that can be opened since its parent is, or -1 if all are opened."""
    tree = _tree_of(lane, trees, lanes)
    places, parents = found.places[lane * found.n_inner :], pointer_at(tree[PARENTS], np.uint32)
    for c in range(found.n_known[lane], found.n_labels[i]):
        node = np.int64(parents[found.labels[i * found.n_most + c]])
        if places[node] == 0:
            found.n_known[lane] = c
            while places[_record(node, tree)[PARENT]] == 0:
                node = np.int64(_record(node, tree)[PARENT])
            record = _record(node, tree)
            lanes.above[lane] = _kept_probability(lane, places[record[PARENT]], record[PLACE], lanes)
            return node
    return np.int64(-1)


@bare_inline_kernel
def _kept_probability(lane, place, child, lanes):
    """Return the probability of a child of an opened node, whose places count from 1."""
    return lanes.scores[(lane * lanes.sizes.n_kept + np.int64(place) - 1) * lanes.sizes.stride + child]


@bare_kernel
def _rank_by_mean(i, n_trees, trees, lanes, found, ids, probabilities):
    """Write the labels found for row i, best first by the mean of their probabilities, ties by id."""
    n_best, k = np.int64(0), lanes.sizes.k
    for c in range(i * found.n_most, i * found.n_most + found.n_labels[i]):
        label, total = found.labels[c], _ZERO
        for lane in range(i * n_trees, (i + 1) * n_trees):
            tree = _tree_of(lane, trees, lanes)
            parent, child = pointer_at(tree[PARENTS], np.uint32)[label], pointer_at(tree[PLACES], np.uint32)[label]
            total += _kept_probability(lane, found.places[lane * found.n_inner + parent], child, lanes)
        n_best = _offer_by_id(label, total / np.float32(n_trees), ids, probabilities, n_best)
    _pad(ids, probabilities, n_best, k)
    for lane in range(i * n_trees, (i + 1) * n_trees):
        for j in range(lanes.n_opened[lane]):
            found.places[lane * found.n_inner + lanes.nodes[lane * lanes.sizes.n_kept + j]] = 0


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
