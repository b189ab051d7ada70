"""Triton kernels of a tree softmax.

The children of a node are rows of the weights given by a table, anywhere in memory: a row is several hundred
bytes in one piece, so that nothing is lost by fetching them one by one, and nothing need be copied when the
tree changes.
"""

from __future__ import annotations

import triton
import triton.language as tl

VERSION = tuple(int(part) for part in triton.__version__.split(".")[:2])

# --- rows and the root ---------------------------------------------------------------------------------


@triton.jit
def look_up_kernel(
    target, root_child, place, root_target, row_place, n_rows, n_places, ignore_index, BLOCK: tl.constexpr
):
    """The root's child and the place of each row's class; none for rows without loss."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_row = row < n_rows
    wanted = tl.load(target + row, mask=is_row, other=ignore_index)
    counts = is_row & (wanted != ignore_index)
    tl.store(root_target + row, tl.load(root_child + wanted, mask=counts, other=-1), mask=is_row)
    tl.store(row_place + row, tl.load(place + wanted, mask=counts, other=n_places), mask=is_row)


@triton.jit
def gather_root_kernel(
    weight, bias, node_weight, node_bias, direct, root_empty, root_weight, root_bias, n_direct, n_top,
    FEATURES: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The weights of one child of the root, and its bias: minus infinity where there is no class below."""
    at = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    is_direct = at < n_direct
    child = tl.load(direct + at, mask=is_direct, other=0)
    node = tl.maximum(at - n_direct, 0)
    is_node = (at >= n_direct) & (node < n_top)
    for first in range(0, FEATURES, BLOCK):
        inside = first + column < FEATURES
        own = tl.load(weight + child * FEATURES + first + column, mask=inside & is_direct, other=0.0)
        of_node = tl.load(node_weight + node * FEATURES + first + column, mask=inside & is_node, other=0.0)
        value = tl.where(is_direct, own, of_node).to(root_weight.dtype.element_ty)
        tl.store(root_weight + at * FEATURES + first + column, value, mask=inside)
    value = 0.0
    if HAS_BIAS:
        value += tl.load(bias + child, mask=is_direct, other=0.0).to(tl.float32)
        value += tl.load(node_bias + node, mask=is_node, other=0.0).to(tl.float32)
    value = tl.where(tl.load(root_empty + at) != 0, -float("inf"), value)
    tl.store(root_bias + at, value)


@triton.jit
def scatter_root_kernel(
    root_gradient, root_bias_gradient, direct, weight, bias, node_weight, node_bias, n_direct,
    FEATURES: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient of one child of the root to where it belongs."""
    at = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    is_direct = at < n_direct
    child = tl.load(direct + at, mask=is_direct, other=0)
    node = tl.maximum(at - n_direct, 0)
    for first in range(0, FEATURES, BLOCK):
        inside = first + column < FEATURES
        value = tl.load(root_gradient + at * FEATURES + first + column, mask=inside, other=0.0)
        value = value.to(weight.dtype.element_ty)
        tl.store(weight + child * FEATURES + first + column, value, mask=inside & is_direct)
        tl.store(node_weight + node * FEATURES + first + column, value, mask=inside & (at >= n_direct))
    if HAS_BIAS:
        value = tl.load(root_bias_gradient + at).to(bias.dtype.element_ty)
        tl.store(bias + child, value, mask=is_direct)
        tl.store(node_bias + node, value, mask=at >= n_direct)


@triton.jit
def root_softmax_kernel(logits, bias, root_target, loss, output, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Probabilities of the root's children for one row, and -log of the target's."""
    at = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    largest = -float("inf")
    total = 0.0
    for first in range(0, WIDTH, BLOCK):
        value = _with_bias(logits, bias, at, first + column, WIDTH)
        new = tl.maximum(largest, tl.max(value, axis=0))
        total = total * tl.exp(largest - new) + tl.sum(tl.exp(value - new), axis=0)
        largest = new
    log_total = largest + tl.log(total)
    wanted = tl.load(root_target + at)
    counts = wanted >= 0
    own = tl.load(logits + at * WIDTH + wanted, mask=counts, other=0.0).to(tl.float32)
    own += tl.load(bias + wanted, mask=counts, other=0.0)
    tl.store(loss + at, tl.where(counts, log_total - own, 0.0))
    tl.debug_barrier()  # the output may be the logits' own memory
    for first in range(0, WIDTH, BLOCK):
        value = _with_bias(logits, bias, at, first + column, WIDTH)
        probability = tl.exp(value - log_total).to(output.dtype.element_ty)
        tl.store(output + at * WIDTH + first + column, probability, mask=first + column < WIDTH)


@triton.jit
def _with_bias(logits, bias, at, column, WIDTH: tl.constexpr):
    value = tl.load(logits + at * WIDTH + column, mask=column < WIDTH, other=-float("inf")).to(tl.float32)
    return value + tl.load(bias + column, mask=column < WIDTH, other=0.0)


@triton.jit
def reduce_kernel(loss, root_target, value, scale, n_rows, MEAN: tl.constexpr, BLOCK: tl.constexpr):
    """The sum or the mean of the rows' losses, and what each was multiplied by."""
    column = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    number = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, n_rows, BLOCK):
        inside = first + column < n_rows
        total += tl.load(loss + first + column, mask=inside, other=0.0)
        number += (tl.load(root_target + first + column, mask=inside, other=-1) >= 0).to(tl.float32)
    factor = 1.0
    if MEAN:
        factor = factor / tl.sum(number, axis=0)
    tl.store(value, tl.sum(total, axis=0) * factor)
    tl.store(scale, factor)


@triton.jit
def root_error_kernel(
    output,
    root_target,
    slope,
    scale,
    error,
    SLOPE_STEP: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The gradient of the loss by the logits of the root's children, for one row."""
    at = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    wanted = tl.load(root_target + at)
    row_slope = tl.load(slope + at * SLOPE_STEP).to(tl.float32) * tl.load(scale)
    row_slope = tl.where(wanted >= 0, row_slope, 0.0)
    value = tl.load(output + at * WIDTH + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    value = (value - tl.where(column == wanted, 1.0, 0.0)) * row_slope
    tl.store(error + at * WIDTH + column, value.to(error.dtype.element_ty), mask=column < WIDTH)


# --- levels below the root -----------------------------------------------------------------------------


@triton.jit
def _tile(starts, tile, n_nodes, BLOCK_ROWS: tl.constexpr, STEPS: tl.constexpr):
    """The node of a tile of rows, the tile's first row and the end of the node's rows.

    The tiles of node v begin at starts[v] // BLOCK_ROWS + v: that leaves each node as many as it needs, and needs
    no counting. A tile too many begins after the end.
    """
    low = 0
    high = n_nodes - 1
    for _ in tl.static_range(STEPS):
        middle = (low + high + 1) // 2
        begins = tl.load(starts + middle) // BLOCK_ROWS + middle <= tile
        low = tl.where(begins, middle, low)
        high = tl.where(begins, high, middle - 1)
    start = tl.load(starts + low)
    first = start + (tile - start // BLOCK_ROWS - low) * BLOCK_ROWS
    return low, first, tl.load(starts + low + 1)


@triton.jit
def node_logits_kernel(
    hidden, weight, bias, table, rows, starts, logits, n_nodes,
    ARITY: tl.constexpr, FEATURES: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK_ROWS: tl.constexpr,
    BLOCK_CHILDREN: tl.constexpr, BLOCK_FEATURES: tl.constexpr, STEPS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Logits of one tile of rows, all at one node, for a block of the node's children."""
    node, start, stop = _tile(starts, tl.program_id(0), n_nodes, BLOCK_ROWS, STEPS)
    if start >= stop:
        return
    position = start + tl.arange(0, BLOCK_ROWS)
    is_row = position < stop
    row = tl.load(rows + position, mask=is_row, other=0)
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


@triton.jit
def level_softmax_kernel(
    logits, child, order, starts, loss, output, n_nodes, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):
    """Probabilities of the children of one row's node; -log of the target's is added to the row's loss."""
    at = tl.program_id(0).to(tl.int64)
    if at >= tl.load(starts + n_nodes):
        return
    column = tl.arange(0, BLOCK)
    value = tl.load(logits + at * WIDTH + column, mask=column < WIDTH, other=-float("inf"))
    largest = tl.max(value, axis=0)
    log_total = largest + tl.log(tl.sum(tl.exp(value - largest), axis=0))
    wanted = tl.load(child + at) % WIDTH
    own = tl.sum(tl.where(column == wanted, value, 0.0), axis=0)
    row = tl.load(order + at)
    tl.store(loss + row, tl.load(loss + row) + log_total - own)
    probability = tl.exp(value - log_total).to(output.dtype.element_ty)
    tl.store(output + at * WIDTH + column, probability, mask=column < WIDTH)


@triton.jit
def _error(output, at, column, inside, wanted, slope, WIDTH: tl.constexpr):
    """The gradient of the loss by logits; zero outside."""
    value = tl.load(output + at * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    return tl.where(inside, (value - tl.where(column == wanted, 1.0, 0.0)) * slope, 0.0)


@triton.jit
def hidden_gradient_kernel(
    output, weight, table, order, starts, child_of_row, slope, scale, gradient, n_nodes,
    SLOPE_STEP: tl.constexpr, ARITY: tl.constexpr, FEATURES: tl.constexpr, BLOCK_ROWS: tl.constexpr,
    BLOCK_CHILDREN: tl.constexpr, BLOCK_FEATURES: tl.constexpr, STEPS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add the gradient that a level gives to one tile of rows, for a block of features."""
    node, start, stop = _tile(starts, tl.program_id(0), n_nodes, BLOCK_ROWS, STEPS)
    if start >= stop:
        return
    position = start + tl.arange(0, BLOCK_ROWS)
    is_row = position < stop
    row = tl.load(order + position, mask=is_row, other=0)
    wanted = tl.load(child_of_row + position, mask=is_row, other=0) - node * ARITY
    row_slope = tl.load(slope + row * SLOPE_STEP, mask=is_row, other=0.0).to(tl.float32) * tl.load(scale)
    feature = tl.program_id(1) * BLOCK_FEATURES + tl.arange(0, BLOCK_FEATURES)
    is_feature = feature < FEATURES
    total = tl.zeros((BLOCK_ROWS, BLOCK_FEATURES), tl.float32)
    for first in range(0, ARITY, BLOCK_CHILDREN):
        column = first + tl.arange(0, BLOCK_CHILDREN)
        inside = is_row[:, None] & (column < ARITY)[None, :]
        error = _error(
            output, position[:, None], column[None, :], inside, wanted[:, None], row_slope[:, None], ARITY
        )
        child = tl.load(table + node * ARITY + column, mask=column < ARITY, other=-1).to(tl.int64)
        w = tl.load(
            weight + child[:, None] * FEATURES + feature[None, :],
            mask=(child >= 0)[:, None] & is_feature[None, :], other=0.0,
        )  # fmt: skip
        kind = gradient.dtype.element_ty
        total = tl.dot(error.to(kind), w.to(kind), total, input_precision=PRECISION)
    to = gradient + row[:, None] * FEATURES + feature[None, :]
    mask = is_row[:, None] & is_feature[None, :]
    before = tl.load(to, mask=mask, other=0.0).to(tl.float32)
    tl.store(to, (before + total).to(gradient.dtype.element_ty), mask=mask)


@triton.jit
def weight_gradient_kernel(
    hidden, output, table, order, starts, child_of_row, slope, scale, gradient, bias_gradient,
    SLOPE_STEP: tl.constexpr, ARITY: tl.constexpr, FEATURES: tl.constexpr, HAS_BIAS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_CHILDREN: tl.constexpr, BLOCK_FEATURES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of a block of a node's children, zero where the node has no rows.

    Most nodes have few rows, so their errors are fetched once for all features; those with many are gone through
    again for each block of features.
    """
    node = tl.program_id(0)
    start, stop = tl.load(starts + node), tl.load(starts + node + 1)
    column = tl.program_id(1) * BLOCK_CHILDREN + tl.arange(0, BLOCK_CHILDREN)
    child = tl.load(table + node * ARITY + column, mask=column < ARITY, other=-1).to(tl.int64)
    is_child = child >= 0
    feature = tl.arange(0, BLOCK_FEATURES)
    to = gradient + child[:, None] * FEATURES + feature[None, :]
    row, error = _errors_of(
        output,
        order,
        child_of_row,
        slope,
        scale,
        start,
        stop,
        node,
        column,
        is_child,
        SLOPE_STEP,
        ARITY,
        BLOCK_ROWS,
    )
    bias_total = tl.sum(error, axis=1)
    is_row = start + tl.arange(0, BLOCK_ROWS) < stop
    for first in range(0, FEATURES, BLOCK_FEATURES):
        inside = first + feature[None, :] < FEATURES
        at = hidden + row[:, None] * FEATURES + first + feature[None, :]
        x = tl.load(at, mask=is_row[:, None] & inside, other=0.0)
        total = tl.dot(error.to(x.dtype), x, input_precision=PRECISION)
        for later in range(start + BLOCK_ROWS, stop, BLOCK_ROWS):
            more_rows, more = _errors_of(
                output, order, child_of_row, slope, scale, later, stop, node, column, is_child, SLOPE_STEP, ARITY,
                BLOCK_ROWS,
            )  # fmt: skip
            at = hidden + more_rows[:, None] * FEATURES + first + feature[None, :]
            x = tl.load(at, mask=(later + tl.arange(0, BLOCK_ROWS) < stop)[:, None] & inside, other=0.0)
            total = tl.dot(more.to(x.dtype), x, total, input_precision=PRECISION)
            if first == 0:
                bias_total += tl.sum(more, axis=1)
        tl.store(to + first, total.to(gradient.dtype.element_ty), mask=is_child[:, None] & inside)
    if HAS_BIAS:
        tl.store(bias_gradient + child, bias_total.to(bias_gradient.dtype.element_ty), mask=is_child)


@triton.jit
def _errors_of(
    output, order, child_of_row, slope, scale, start, stop, node, column, is_child, SLOPE_STEP: tl.constexpr,
    ARITY: tl.constexpr, BLOCK_ROWS: tl.constexpr,
):  # fmt: skip
    """Some rows of a node, and the gradients by the logits of some children, children first."""
    position = start + tl.arange(0, BLOCK_ROWS)
    is_row = position < stop
    row = tl.load(order + position, mask=is_row, other=0)
    wanted = tl.load(child_of_row + position, mask=is_row, other=0) - node * ARITY
    row_slope = tl.load(slope + row * SLOPE_STEP, mask=is_row, other=0.0).to(tl.float32) * tl.load(scale)
    inside = is_child[:, None] & is_row[None, :]
    error = _error(
        output, position[None, :], column[:, None], inside, wanted[None, :], row_slope[None, :], ARITY
    )
    return row, error


# --- statistics ----------------------------------------------------------------------------------------


@triton.jit
def note_kernel(
    sums, counts, classes, counted, outputs, output_step, HAS_COUNTS: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Add a row's output to the sums of its class."""
    at = tl.program_id(0).to(tl.int64)
    if tl.load(counted + at) == 0:
        return
    own = tl.load(classes + at)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(outputs + at * output_step + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    tl.atomic_add(sums + own * WIDTH + column, value, mask=column < WIDTH)
    if HAS_COUNTS:
        if tl.program_id(1) == 0:
            tl.atomic_add(counts + own, 1.0)


# --- the best of many ----------------------------------------------------------------------------------


@triton.jit
def _sortable(value, column):
    """One whole number that orders by value, the lower column first among equals."""
    bits = value.to(tl.int32, bitcast=True)
    bits = tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF)
    return (bits.to(tl.int64) << 32) | (0x7FFFFFFF - column).to(tl.int64)


@triton.jit
def _value_of(key):
    bits = (key >> 32).to(tl.int32)
    bits = tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def root_best_kernel(
    logits, bias, direct, class_scores, classes, node_scores, nodes, n_direct,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, BEST: tl.constexpr, BEAM: tl.constexpr,
):  # fmt: skip
    """log p of the best direct classes of a row, and of its best nodes, one more than the beam is wide."""
    at = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    value = _with_bias(logits, bias, at, column, WIDTH)
    largest = tl.max(value, axis=0)
    log_total = largest + tl.log(tl.sum(tl.exp(value - largest), axis=0))
    value = value - log_total
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
    logits,
    order,
    nodes,
    above,
    table,
    scores,
    classes,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    BEST: tl.constexpr,
):
    """log p of the best classes below one node of a row."""
    at = tl.program_id(0).to(tl.int64)
    pair = tl.load(order + at)
    node = tl.load(nodes + pair)
    column = tl.arange(0, BLOCK)
    value = tl.load(logits + at * WIDTH + column, mask=column < WIDTH, other=-float("inf"))
    largest = tl.max(value, axis=0)
    log_total = largest + tl.log(tl.sum(tl.exp(value - largest), axis=0))
    value = value - log_total + tl.load(above + pair)
    nothing = tl.full((BLOCK,), -float("inf"), tl.float32)
    value = tl.where(value == value, value, nothing)  # below a node without classes there is no number
    key = _sortable(value, column)
    for i in range(BEST):
        best = tl.max(key, axis=0)
        found = 0x7FFFFFFF - (best & 0x7FFFFFFF)
        tl.store(scores + pair * BEST + i, _value_of(best))
        tl.store(
            classes + pair * BEST + i, tl.load(table + node * WIDTH + found, mask=found < WIDTH, other=-1)
        )
        key = tl.where(column == found, _sortable(nothing, column), key)
