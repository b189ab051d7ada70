"""Triton kernels over rows grouped by node.

The children of a node are rows of the weights given by a table, anywhere in memory: a row is several hundred
bytes in one piece, so that nothing is lost by fetching them one by one, and nothing need be copied when the
tree changes.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _first_above(ends, value, n_nodes, STEPS: tl.constexpr):
    """The first node whose end is above the value, by bisection."""
    low = 0
    high = n_nodes - 1
    for _ in tl.static_range(STEPS):
        middle = (low + high) // 2
        beyond = tl.load(ends + middle) <= value
        low = tl.where(beyond, middle + 1, low)
        high = tl.where(beyond, high, middle)
    return low


@triton.jit
def _tile(tile_ends, starts, tile, n_nodes, BLOCK_ROWS: tl.constexpr, STEPS: tl.constexpr):
    """The node of a tile of rows, its first row and the end of the node's rows."""
    node = _first_above(tile_ends, tile, n_nodes, STEPS)
    before = tl.load(tile_ends + node - 1, mask=node > 0, other=0)
    start = tl.load(starts + node) + (tile - before) * BLOCK_ROWS
    return node, start, tl.load(starts + node + 1)


@triton.jit
def node_logits_kernel(
    hidden, weight, bias, table, rows, starts, tile_ends, logits, n_nodes,
    ARITY: tl.constexpr, FEATURES: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK_ROWS: tl.constexpr,
    BLOCK_CHILDREN: tl.constexpr, BLOCK_FEATURES: tl.constexpr, STEPS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Logits of one tile of rows, all of one node, for a block of the node's children."""
    tile = tl.program_id(0)
    if tile >= tl.load(tile_ends + n_nodes - 1):
        return
    node, start, stop = _tile(tile_ends, starts, tile, n_nodes, BLOCK_ROWS, STEPS)
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
def softmax_kernel(
    logits, bias, target, order, starts, loss, output, n_nodes, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    HAS_BIAS: tl.constexpr, IN_GROUPS: tl.constexpr,
):  # fmt: skip
    """Probabilities of a row, and -log of the target's: set as the row's loss, or added to it in groups."""
    at = tl.program_id(0).to(tl.int64)
    if IN_GROUPS:
        if at >= tl.load(starts + n_nodes):
            return
    column = tl.arange(0, BLOCK)
    largest = -float("inf")
    total = 0.0
    for first in range(0, WIDTH, BLOCK):
        value = _shifted(logits, bias, at, first + column, WIDTH, HAS_BIAS)
        new = tl.maximum(largest, tl.max(value, axis=0))
        total = total * tl.exp(largest - new) + tl.sum(tl.exp(value - new), axis=0)
        largest = new
    log_total = largest + tl.log(total)
    wanted = tl.load(target + at)
    own = tl.load(logits + at * WIDTH + wanted).to(tl.float32)
    if HAS_BIAS:
        own += tl.load(bias + wanted).to(tl.float32)
    if IN_GROUPS:
        row = tl.load(order + at)
        tl.store(loss + row, tl.load(loss + row) + log_total - own)
    else:
        tl.store(loss + at, log_total - own)
    tl.debug_barrier()  # the output may be the logits' own memory
    for first in range(0, WIDTH, BLOCK):
        value = _shifted(logits, bias, at, first + column, WIDTH, HAS_BIAS)
        probability = tl.exp(value - log_total).to(output.dtype.element_ty)
        tl.store(output + at * WIDTH + first + column, probability, mask=first + column < WIDTH)


@triton.jit
def _shifted(logits, bias, at, column, WIDTH: tl.constexpr, HAS_BIAS: tl.constexpr):
    value = tl.load(logits + at * WIDTH + column, mask=column < WIDTH, other=-float("inf")).to(tl.float32)
    if HAS_BIAS:
        value += tl.load(bias + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    return value


@triton.jit
def error_kernel(output, target, slope, error, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """The gradient of a row's loss by its logits."""
    at = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    value = _error(output, at, column, column < WIDTH, tl.load(target + at), tl.load(slope + at), WIDTH)
    tl.store(error + at * WIDTH + column, value.to(error.dtype.element_ty), mask=column < WIDTH)


@triton.jit
def _error(output, at, column, inside, wanted, slope, WIDTH: tl.constexpr):
    value = tl.load(output + at * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    return (value - tl.where(column == wanted, 1.0, 0.0)) * slope


@triton.jit
def hidden_gradient_kernel(
    output, weight, table, order, starts, tile_ends, target, slope, gradient, n_nodes,
    ARITY: tl.constexpr, FEATURES: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_CHILDREN: tl.constexpr,
    BLOCK_FEATURES: tl.constexpr, STEPS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add the gradient that a level gives to one tile of rows, for a block of features."""
    tile = tl.program_id(0)
    if tile >= tl.load(tile_ends + n_nodes - 1):
        return
    node, start, stop = _tile(tile_ends, starts, tile, n_nodes, BLOCK_ROWS, STEPS)
    position = start + tl.arange(0, BLOCK_ROWS)
    is_row = position < stop
    row = tl.load(order + position, mask=is_row, other=0)
    wanted = tl.load(target + position, mask=is_row, other=0)
    row_slope = tl.load(slope + row, mask=is_row, other=0.0).to(tl.float32)
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
    hidden, output, table, order, starts, target, slope, gradient, bias_gradient,
    ARITY: tl.constexpr, FEATURES: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK_ROWS: tl.constexpr,
    BLOCK_CHILDREN: tl.constexpr, BLOCK_FEATURES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of a block of a node's children, zero where the node has no rows."""
    node = tl.program_id(0).to(tl.int64)
    start, stop = tl.load(starts + node), tl.load(starts + node + 1)
    column = tl.program_id(1) * BLOCK_CHILDREN + tl.arange(0, BLOCK_CHILDREN)
    child = tl.load(table + node * ARITY + column, mask=column < ARITY, other=-1).to(tl.int64)
    is_child = child >= 0
    feature = tl.program_id(2) * BLOCK_FEATURES + tl.arange(0, BLOCK_FEATURES)
    is_feature = feature < FEATURES
    total = tl.zeros((BLOCK_CHILDREN, BLOCK_FEATURES), tl.float32)
    bias_total = tl.zeros((BLOCK_CHILDREN,), tl.float32)
    for first in range(start, stop, BLOCK_ROWS):
        position = first + tl.arange(0, BLOCK_ROWS)
        is_row = position < stop
        row = tl.load(order + position, mask=is_row, other=0)
        wanted = tl.load(target + position, mask=is_row, other=0)
        row_slope = tl.load(slope + row, mask=is_row, other=0.0).to(tl.float32)
        inside = is_child[:, None] & is_row[None, :]
        error = _error(
            output, position[None, :], column[:, None], inside, wanted[None, :], row_slope[None, :], ARITY
        )
        error = tl.where(inside, error, 0.0)
        x = tl.load(
            hidden + row[:, None] * FEATURES + feature[None, :],
            mask=is_row[:, None] & is_feature[None, :], other=0.0,
        )  # fmt: skip
        total = tl.dot(error.to(x.dtype), x, total, input_precision=PRECISION)
        bias_total += tl.sum(error, axis=1)
    to = gradient + child[:, None] * FEATURES + feature[None, :]
    mask = is_child[:, None] & is_feature[None, :]
    tl.store(to, total.to(gradient.dtype.element_ty), mask=mask)
    if HAS_BIAS:
        if tl.program_id(2) == 0:
            tl.store(bias_gradient + child, bias_total.to(bias_gradient.dtype.element_ty), mask=is_child)
