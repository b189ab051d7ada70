"""Triton kernels of the loss of a tree softmax, and of its search.

The children of a node are rows of the weights, at the indices of a table. Each row is several hundred contiguous bytes,
so gathering rows costs little, and nothing is copied when the tree changes. Launching a kernel often takes longer than
running it, so one launch does several independent tasks, divided by program id.

`rows` is packed as in `treemax.torch.layer.Rows`: the root's child of each row, the rows in the order of the tree,
their places, where the rows of each node start, and two numbers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from treemax.torch.triton_gradients import level_gradients_kernel as level_gradients_kernel
from treemax.torch.triton_gradients import root_gradients_kernel as root_gradients_kernel
from treemax.torch.triton_tree import root_children, tile_of_rows

VERSION = tuple(int(part) for part in triton.__version__.split(".")[:2])


def stream_of(device: int) -> int:
    """Return the current CUDA stream of PyTorch on a device."""
    return triton.runtime.driver.active.get_current_stream(device)


# --- rows and the root ---------------------------------------------------------------------------------


@triton.jit
def prepare_kernel(
    target, root_child, place, bounds, rows, hidden, weight, bias, node_weight, node_bias, direct, root_empty, logits, n_rows,
    N_BOUNDS: tl.constexpr, N_PLACES: tl.constexpr, IGNORED: tl.constexpr, RANKS: tl.constexpr,
    ITEMS: tl.constexpr, OTHERS: tl.constexpr,
    N_DIRECT: tl.constexpr, N_TOP: tl.constexpr, WIDTH: tl.constexpr, FEATURES: tl.constexpr, HAS_BIAS: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_CHILDREN: tl.constexpr, BLOCK_FEATURES: tl.constexpr,
):  # fmt: skip
    """Sort the rows in the order of the tree, and compute the logits of the root's children."""
    n_items = n_rows
    if RANKS:
        n_items += N_BOUNDS
    n_first = (n_items + ITEMS - 1) // ITEMS
    at = tl.program_id(0)
    if at < n_first:
        _order_rows(
            at * ITEMS, target, root_child, place, bounds, rows, n_rows, N_BOUNDS, N_PLACES, IGNORED, RANKS, ITEMS,
            OTHERS,
        )  # fmt: skip
    else:
        _root_logits(
            at - n_first, hidden, weight, bias, node_weight, node_bias, direct, root_empty, logits, n_rows,
            N_DIRECT, N_TOP, WIDTH, FEATURES, HAS_BIAS, PRECISION, BLOCK_ROWS, BLOCK_CHILDREN, BLOCK_FEATURES,
        )  # fmt: skip


@triton.jit
def _order_rows(
    first_item, target, root_child, place, bounds, rows, n_rows, N_BOUNDS: tl.constexpr, N_PLACES: tl.constexpr,
    IGNORED: tl.constexpr, RANKS: tl.constexpr, ITEMS: tl.constexpr, OTHERS: tl.constexpr,
):  # fmt: skip
    """Compute the positions of some rows in the order of the tree, by counting the rows before each.

    Counting compares all pairs of rows, which is faster than sorting unless there are many. The number of rows before
    each node is counted in the same way. Without RANKS, rows keep the order of the batch.
    """
    item = first_item + tl.arange(0, ITEMS)
    is_row = item < n_rows
    wanted = tl.load(target + item, mask=is_row, other=IGNORED)
    counted = wanted != IGNORED
    root_target = tl.load(root_child + wanted, mask=counted, other=-1)
    tl.store(rows + item, root_target, mask=is_row)
    own = tl.load(place + wanted, mask=counted, other=N_PLACES)
    rank = item
    if RANKS:
        is_bound = (item >= n_rows) & (item < n_rows + N_BOUNDS)
        bound = tl.load(bounds + item - n_rows, mask=is_bound, other=0).to(own.dtype)
        own = tl.where(is_row, own, bound)
        rank, n_counted = _rank(own, tl.where(is_row, item, 0), target, place, n_rows, N_PLACES, IGNORED, ITEMS, OTHERS)
        tl.store(rows + n_rows + rank, item.to(tl.int64), mask=is_row)
        tl.store(rows + 3 * n_rows + item - n_rows, rank.to(tl.int64), mask=is_bound)
        if first_item == 0:
            tl.store(rows + 3 * n_rows + N_BOUNDS, n_counted.to(tl.int64))
            tl.store(rows + 3 * n_rows + N_BOUNDS + 1, 0)
    tl.store(rows + 2 * n_rows + rank, own.to(tl.int64), mask=is_row)


@triton.jit
def _rank(
    own, own_number, target, place, n_rows, N_PLACES: tl.constexpr, IGNORED: tl.constexpr, ITEMS: tl.constexpr,
    OTHERS: tl.constexpr,
):  # fmt: skip
    """Return how many rows precede each item, by place and then by number, and how many rows have a loss."""
    before = tl.zeros((ITEMS,), tl.int32)
    counted = tl.zeros((OTHERS,), tl.int32)
    for first in range(0, n_rows, OTHERS):
        other = first + tl.arange(0, OTHERS)
        is_row = other < n_rows
        wanted = tl.load(target + other, mask=is_row, other=IGNORED)
        counts = wanted != IGNORED
        counted += counts.to(tl.int32)
        theirs = tl.load(place + wanted, mask=counts, other=N_PLACES)
        theirs = tl.where(is_row, theirs, N_PLACES + 2)[None, :]  # after everything
        earlier = (theirs < own[:, None]) | ((theirs == own[:, None]) & (other[None, :] < own_number[:, None]))
        before += tl.sum(earlier.to(tl.int32), axis=1)
    return before, tl.sum(counted, axis=0)


@triton.jit
def root_logits_kernel(
    hidden, weight, bias, node_weight, node_bias, direct, root_empty, logits, n_rows,
    N_DIRECT: tl.constexpr, N_TOP: tl.constexpr, WIDTH: tl.constexpr, FEATURES: tl.constexpr, HAS_BIAS: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_CHILDREN: tl.constexpr, BLOCK_FEATURES: tl.constexpr,
):  # fmt: skip
    """Compute the logits of the root's children."""
    _root_logits(
        tl.program_id(0), hidden, weight, bias, node_weight, node_bias, direct, root_empty, logits, n_rows,
        N_DIRECT, N_TOP, WIDTH, FEATURES, HAS_BIAS, PRECISION, BLOCK_ROWS, BLOCK_CHILDREN, BLOCK_FEATURES,
    )  # fmt: skip


@triton.jit
def _root_logits(
    at, hidden, weight, bias, node_weight, node_bias, direct, root_empty, logits, n_rows,
    N_DIRECT: tl.constexpr, N_TOP: tl.constexpr, WIDTH: tl.constexpr, FEATURES: tl.constexpr, HAS_BIAS: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_CHILDREN: tl.constexpr, BLOCK_FEATURES: tl.constexpr,
):  # fmt: skip
    """Compute the logits of some rows for a block of the root's children; minus infinity if a child has no classes."""
    direct_blocks: tl.constexpr = (N_DIRECT + BLOCK_CHILDREN - 1) // BLOCK_CHILDREN
    child_blocks: tl.constexpr = direct_blocks + (WIDTH - N_DIRECT + BLOCK_CHILDREN - 1) // BLOCK_CHILDREN
    row = (at // child_blocks * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)).to(tl.int64)
    is_row = row < n_rows
    is_direct, column, child, is_child = root_children(
        at % child_blocks, direct, direct_blocks, N_DIRECT, N_TOP, BLOCK_CHILDREN
    )
    is_column = is_child | ((column >= N_DIRECT + N_TOP) & (column < WIDTH))
    feature = tl.arange(0, BLOCK_FEATURES)
    hidden_at = hidden + row[:, None] * FEATURES + feature[None, :]
    weight_at = tl.where(is_direct, weight, node_weight) + child[:, None] * FEATURES + feature[None, :]
    total = tl.zeros((BLOCK_ROWS, BLOCK_CHILDREN), tl.float32)
    for first in range(0, FEATURES, BLOCK_FEATURES):
        inside = first + feature[None, :] < FEATURES
        x = tl.load(hidden_at + first, mask=is_row[:, None] & inside, other=0.0)
        w = tl.load(weight_at + first, mask=is_child[:, None] & inside, other=0.0).to(x.dtype)
        total = tl.dot(x, tl.trans(w), total, input_precision=PRECISION)
    if HAS_BIAS:
        bias_at = tl.where(is_direct, bias, node_bias) + child
        total += tl.load(bias_at, mask=is_child, other=0.0).to(tl.float32)[None, :]
    empty = tl.load(root_empty + column, mask=is_column, other=1) != 0
    total = tl.where(empty[None, :], -float("inf"), total)
    to = logits + row[:, None] * WIDTH + column[None, :]
    tl.store(to, total, mask=is_row[:, None] & is_column[None, :])


# --- from logits to the loss ---------------------------------------------------------------------------


@triton.jit
def softmax_kernel(
    logits, rows, level_logits, target, loss, error, output, value, counts, root_sums, level_sums, n_rows,
    ROOT: tl.constexpr, REDUCES: tl.constexpr, MEAN: tl.constexpr, ROOT_SUMS: tl.constexpr,
    LEVEL_SUMS: tl.constexpr, N_BOUNDS: tl.constexpr, N_PLACES: tl.constexpr, BELOW: tl.constexpr,
    N_DIRECT: tl.constexpr, N_TOP: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ARITY: tl.constexpr,
    ARITY_BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the softmax of one row at its node of a level, and with ROOT also at the root, and add to its loss.

    With REDUCES, the last program to finish reduces the losses of all rows.
    """
    at = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + n_rows + at)
    place = tl.load(rows + 2 * n_rows + at)
    if ROOT:
        row_loss = _root_softmax(
            row, logits, rows, target, error, counts, root_sums, ROOT_SUMS, N_DIRECT, N_TOP, WIDTH, BLOCK
        )
    else:
        row_loss = tl.load(loss + row)
    if place < N_PLACES:
        row_loss += _level_softmax(
            at, row, place // BELOW % ARITY, level_logits, target, output, level_sums, LEVEL_SUMS, ARITY, ARITY_BLOCK
        )
    tl.store(loss + row, row_loss)
    if REDUCES:
        tl.debug_barrier()
        if tl.atomic_add(rows + 3 * n_rows + N_BOUNDS + 1, 1) == n_rows - 1:
            n_counted = tl.load(rows + 3 * n_rows + N_BOUNDS)
            _reduce(loss, value, n_rows, n_counted, MEAN, BLOCK)


@triton.jit
def _root_softmax(
    row, logits, rows, target, error, counts, sums, SUMS: tl.constexpr, N_DIRECT: tl.constexpr,
    N_TOP: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Return the cross-entropy of a row at the root, and store its gradient with respect to the logits."""
    column = tl.arange(0, BLOCK)
    largest = -float("inf")
    total = 0.0
    for first in range(0, WIDTH, BLOCK):
        value = _logits(logits, row, first + column, WIDTH)
        new = tl.maximum(largest, tl.max(value, axis=0))
        total = total * tl.exp(largest - new) + tl.sum(tl.exp(value - new), axis=0)
        largest = new
    log_total = largest + tl.log(total)
    wanted = tl.load(rows + row)
    counted = wanted >= 0
    own = tl.load(logits + row * WIDTH + wanted, mask=counted, other=0.0)
    tl.debug_barrier()  # the error may be in the logits' own memory
    for first in range(0, WIDTH, BLOCK):
        to = first + column
        probability = tl.exp(_logits(logits, row, to, WIDTH) - log_total)
        difference = tl.where(counted, probability - tl.where(to == wanted, 1.0, 0.0), 0.0)
        tl.store(error + row * WIDTH + to, difference.to(error.dtype.element_ty), mask=to < WIDTH)
        if SUMS:
            if wanted >= N_DIRECT:
                sums_of_class = sums + tl.load(target + row) * N_TOP
                is_node = (to >= N_DIRECT) & (to < N_DIRECT + N_TOP)
                tl.atomic_add(sums_of_class + to - N_DIRECT, probability, mask=is_node)
    if SUMS:
        if wanted >= N_DIRECT:
            tl.atomic_add(counts + tl.load(target + row), 1.0)
    return tl.where(counted, log_total - own, 0.0)


@triton.jit
def _logits(logits, at, column, WIDTH: tl.constexpr):
    return tl.load(logits + at * WIDTH + column, mask=column < WIDTH, other=-float("inf"))


@triton.jit
def _level_softmax(
    at, row, wanted, logits, target, output, sums, SUMS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):
    """Return the cross-entropy of a row at its node, and store the probabilities of the children."""
    column = tl.arange(0, BLOCK)
    value = tl.load(logits + at * WIDTH + column, mask=column < WIDTH, other=-float("inf"))
    largest = tl.max(value, axis=0)
    log_total = largest + tl.log(tl.sum(tl.exp(value - largest), axis=0))
    own = tl.sum(tl.where(column == wanted, value, 0.0), axis=0)
    probability = tl.exp(value - log_total)
    tl.store(output + at * WIDTH + column, probability.to(output.dtype.element_ty), mask=column < WIDTH)
    if SUMS:
        tl.atomic_add(sums + tl.load(target + row) * WIDTH + column, probability, mask=column < WIDTH)
    return log_total - own


@triton.jit
def binary_kernel(
    logits, rows, n_used, nodes, places, offsets, loss, error, PAIRS: tl.constexpr, BELOW: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the binary cross-entropy of a row at the root, or with PAIRS of a pair of row and node, and its gradient
    with respect to the logits. A child is positive if a label of the row is below it."""
    at = tl.program_id(0).to(tl.int64)
    row = at
    first_child = at * 0
    if PAIRS:
        if at >= tl.load(n_used):
            return
        row = tl.load(rows + at)
        first_child = tl.load(nodes + at) * WIDTH
    first_label, end = tl.load(offsets + row), tl.load(offsets + row + 1)
    total = 0.0
    for first in range(0, WIDTH, BLOCK):
        column = first + tl.arange(0, BLOCK)
        value = _logits(logits, at, column, WIDTH)
        positive = tl.zeros((BLOCK,), tl.float32)
        for i in range(first_label, end):
            child = tl.load(places + i) // BELOW - first_child
            positive = tl.where((column == child) & (column < WIDTH), 1.0, positive)
        small = tl.exp(-tl.abs(value))
        losses = tl.maximum(value, 0.0) + tl.log(1.0 + small) - tl.where(positive > 0, value, 0.0)
        total += tl.sum(losses, axis=0)
        probability = tl.where(value >= 0, 1.0, small) / (1.0 + small)
        difference = (probability - positive).to(error.dtype.element_ty)
        tl.store(error + at * WIDTH + column, difference, mask=column < WIDTH)
    if PAIRS:
        tl.atomic_add(loss + row, total, sem="relaxed")
    else:
        tl.store(loss + row, total)


@triton.jit
def _reduce(loss, value, n_rows, n_counted, MEAN: tl.constexpr, BLOCK: tl.constexpr):
    """Compute the sum or the mean of the losses of all rows, which other programs have stored."""
    column = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, n_rows, BLOCK):
        total += tl.load(loss + first + column, mask=first + column < n_rows, other=0.0, cache_modifier=".cg")
    result = tl.sum(total, axis=0)
    if MEAN:
        result = result / n_counted.to(tl.float32)
    tl.store(value, result)


# --- levels below the root -----------------------------------------------------------------------------


@triton.jit
def node_logits_kernel(
    hidden, weight, bias, table, rows, logits, n_rows, N_NODES: tl.constexpr,
    ORDER: tl.constexpr, STARTS: tl.constexpr, FIRST: tl.constexpr, ARITY: tl.constexpr, FEATURES: tl.constexpr,
    HAS_BIAS: tl.constexpr, BLOCK_ROWS: tl.constexpr, STEP: tl.constexpr, STEPS: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_CHILDREN: tl.constexpr, BLOCK_FEATURES: tl.constexpr,
):  # fmt: skip
    """Compute the logits of a tile of rows, all at one node, for a block of the node's children.

    The order of the rows is part ORDER of `rows`; the first row of each node is in part STARTS, from index FIRST.
    """
    starts = rows + STARTS * n_rows + FIRST
    node, start, stop = tile_of_rows(starts, tl.program_id(0), N_NODES, BLOCK_ROWS, STEP, STEPS)
    if start >= stop:
        return
    position = start + tl.arange(0, BLOCK_ROWS)
    is_row = position < stop
    row = tl.load(rows + ORDER * n_rows + position, mask=is_row, other=0)
    column = tl.program_id(1) * BLOCK_CHILDREN + tl.arange(0, BLOCK_CHILDREN)
    child = tl.load(table + node * ARITY + column, mask=column < ARITY, other=-1).to(tl.int64)
    is_child = child >= 0
    feature = tl.arange(0, BLOCK_FEATURES)
    hidden_at = hidden + row[:, None] * FEATURES + feature[None, :]
    weight_at = weight + child[:, None] * FEATURES + feature[None, :]
    total = tl.zeros((BLOCK_ROWS, BLOCK_CHILDREN), tl.float32)
    for first in range(0, FEATURES, BLOCK_FEATURES):
        inside = first + feature[None, :] < FEATURES
        x = tl.load(hidden_at + first, mask=is_row[:, None] & inside, other=0.0)
        w = tl.load(weight_at + first, mask=is_child[:, None] & inside, other=0.0).to(x.dtype)
        total = tl.dot(x, tl.trans(w), total, input_precision=PRECISION)
    if HAS_BIAS:
        total += tl.load(bias + child, mask=is_child, other=0.0).to(tl.float32)[None, :]
    total = tl.where(is_child[None, :], total, -float("inf"))
    to = logits + position[:, None] * ARITY + column[None, :]
    tl.store(to, total, mask=is_row[:, None] & (column < ARITY)[None, :])


# --- the best of many ----------------------------------------------------------------------------------


@triton.jit
def _sortable(value, column):
    """Return an integer that sorts by value, and by column among equal values, the lower first."""
    bits = value.to(tl.int32, bitcast=True)
    bits = tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF)
    return (bits.to(tl.int64) << 32) | (0x7FFFFFFF - column).to(tl.int64)


@triton.jit
def _value_of(key):
    bits = (key >> 32).to(tl.int32)
    bits = tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _log_probabilities(logits, SIGMOID: tl.constexpr):
    """Return the log-probabilities of the children of a node: log-softmax, or the log-sigmoid of each."""
    if SIGMOID:
        found = tl.minimum(logits, 0.0) - tl.log(1.0 + tl.exp(-tl.abs(logits)))
    else:
        largest = tl.max(logits, axis=0)
        found = logits - (largest + tl.log(tl.sum(tl.exp(logits - largest), axis=0)))
    return found


@triton.jit
def root_best_kernel(
    logits, direct, class_scores, classes, node_scores, nodes, n_direct,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, BEST: tl.constexpr, BEAM: tl.constexpr, SIGMOID: tl.constexpr,
):  # fmt: skip
    """Find the best direct classes of a row and its best nodes, one more than the beam width, with log-probabilities."""
    at = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    value = _log_probabilities(_logits(logits, at, column, WIDTH), SIGMOID)
    nothing = tl.full((BLOCK,), -float("inf"), tl.float32)
    key = _sortable(tl.where(column < n_direct, value, nothing), column)
    for i in range(BEST):
        best = tl.max(key, axis=0)
        found = 0x7FFFFFFF - (best & 0x7FFFFFFF)
        tl.store(class_scores + at * BEST + i, _value_of(best))
        tl.store(classes + at * BEST + i, tl.load(direct + found, mask=found < n_direct, other=0))
        key = tl.where(column == found, _sortable(nothing, column), key)
    key = _sortable(tl.where(column >= n_direct, value, nothing), column)
    for i in range(BEAM + 1):
        best = tl.max(key, axis=0)
        found = 0x7FFFFFFF - (best & 0x7FFFFFFF)
        tl.store(node_scores + at * (BEAM + 1) + i, _value_of(best))
        tl.store(nodes + at * (BEAM + 1) + i, tl.maximum(found - n_direct, 0))
        key = tl.where(column == found, _sortable(nothing, column), key)


@triton.jit
def level_best_kernel(
    logits, order, nodes, above, table, scores, classes, WIDTH: tl.constexpr, BLOCK: tl.constexpr, BEST: tl.constexpr,
    SIGMOID: tl.constexpr,
):  # fmt: skip
    """Find the best classes below one node of a row, with log-probabilities."""
    at = tl.program_id(0).to(tl.int64)
    pair = tl.load(order + at)
    node = tl.load(nodes + pair)
    column = tl.arange(0, BLOCK)
    value = _log_probabilities(_logits(logits, at, column, WIDTH), SIGMOID) + tl.load(above + pair)
    nothing = tl.full((BLOCK,), -float("inf"), tl.float32)
    value = tl.where(value == value, value, nothing)  # below a node without classes there is no number
    key = _sortable(value, column)
    for i in range(BEST):
        best = tl.max(key, axis=0)
        found = 0x7FFFFFFF - (best & 0x7FFFFFFF)
        tl.store(scores + pair * BEST + i, _value_of(best))
        tl.store(classes + pair * BEST + i, tl.load(table + node * WIDTH + found, mask=found < WIDTH, other=-1))
        key = tl.where(column == found, _sortable(nothing, column), key)
