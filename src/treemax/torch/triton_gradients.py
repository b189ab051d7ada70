"""Triton kernels of the gradients of a tree softmax."""

from __future__ import annotations

import triton
import triton.language as tl

from treemax.torch.triton_tree import root_children, tile_of_rows


@triton.jit
def _scale(rows, n_rows, N_BOUNDS: tl.constexpr, MEAN: tl.constexpr):
    """Return the factor of the losses of rows in the reduced loss."""
    scale = 1.0
    if MEAN:
        scale = scale / tl.maximum(tl.load(rows + 3 * n_rows + N_BOUNDS), 1).to(tl.float32)
    return scale


@triton.jit
def level_gradients_kernel(
    hidden, weight, table, rows, output, slope, hidden_gradient, weight_gradient, bias_gradient, n_rows,
    ADDS: tl.constexpr, PAIRS: tl.constexpr, MEAN: tl.constexpr, SLOPE_STEP: tl.constexpr, N_BOUNDS: tl.constexpr,
    ORDER: tl.constexpr, STARTS: tl.constexpr, FIRST: tl.constexpr, BELOW: tl.constexpr, N_NODES: tl.constexpr, ARITY: tl.constexpr, FEATURES: tl.constexpr, HAS_BIAS: tl.constexpr,
    PRECISION: tl.constexpr, STEP: tl.constexpr, STEPS: tl.constexpr, BLOCK_ROWS: tl.constexpr,
    CHILDREN_OF_ROWS: tl.constexpr, FEATURES_OF_ROWS: tl.constexpr, CHILDREN_OF_NODE: tl.constexpr,
    FEATURES_OF_NODE: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of a level: of the rows at its nodes, without the gradient of the loss, and of the parameters.

    With PAIRS a row may be at several nodes, and `output` has errors that include the gradient of the loss.
    """
    order = rows + ORDER * n_rows
    starts = rows + STARTS * n_rows + FIRST
    feature_blocks: tl.constexpr = (FEATURES + FEATURES_OF_ROWS - 1) // FEATURES_OF_ROWS
    child_blocks: tl.constexpr = (ARITY + CHILDREN_OF_NODE - 1) // CHILDREN_OF_NODE
    tiles = n_rows // BLOCK_ROWS + N_NODES
    at = tl.program_id(0)
    if at < tiles * feature_blocks:
        _hidden_gradient(
            at // feature_blocks, at % feature_blocks, weight, table, order, starts, output, hidden_gradient,
            n_rows, ADDS, PAIRS, BELOW, N_NODES, ARITY, FEATURES, PRECISION, STEP, STEPS, BLOCK_ROWS, CHILDREN_OF_ROWS,
            FEATURES_OF_ROWS,
        )  # fmt: skip
    else:
        at -= tiles * feature_blocks
        scale = _scale(rows, n_rows, N_BOUNDS, MEAN)
        _weight_gradient(
            at // child_blocks, at % child_blocks, hidden, order, starts, table, output, slope, scale, weight_gradient,
            bias_gradient, n_rows, PAIRS, SLOPE_STEP, BELOW, ARITY, FEATURES, HAS_BIAS, PRECISION, 16, CHILDREN_OF_NODE,
            FEATURES_OF_NODE,
        )  # fmt: skip


@triton.jit
def _error(output, at, column, inside, wanted, WIDTH: tl.constexpr):
    """Return the gradient of the losses of rows with respect to the logits; zero outside."""
    value = tl.load(output + at * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    return tl.where(inside, value - tl.where(column == wanted, 1.0, 0.0), 0.0)


@triton.jit
def _hidden_gradient(
    tile, feature_block, weight, table, order, starts, output, gradient, n_rows, ADDS: tl.constexpr,
    PAIRS: tl.constexpr, BELOW: tl.constexpr, N_NODES: tl.constexpr, ARITY: tl.constexpr, FEATURES: tl.constexpr, PRECISION: tl.constexpr,
    STEP: tl.constexpr, STEPS: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_CHILDREN: tl.constexpr,
    BLOCK_FEATURES: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of a tile of rows at a level, for a block of features; with ADDS, add to the previous levels."""
    node, start, stop = tile_of_rows(starts, tile, N_NODES, BLOCK_ROWS, STEP, STEPS)
    if start < stop:
        position = start + tl.arange(0, BLOCK_ROWS)
        is_row = position < stop
        row = tl.load(order + position, mask=is_row, other=0)
        feature = feature_block * BLOCK_FEATURES + tl.arange(0, BLOCK_FEATURES)
        is_feature = feature < FEATURES
        kind = output.dtype.element_ty
        total = tl.zeros((BLOCK_ROWS, BLOCK_FEATURES), tl.float32)
        wanted = _wanted(order, position, is_row, node, n_rows, PAIRS, BELOW, ARITY)
        for first in range(0, ARITY, BLOCK_CHILDREN):
            column = first + tl.arange(0, BLOCK_CHILDREN)
            inside = is_row[:, None] & (column < ARITY)[None, :]
            error = _error(output, position[:, None], column[None, :], inside, wanted[:, None], ARITY)
            child = tl.load(table + node * ARITY + column, mask=column < ARITY, other=-1).to(tl.int64)
            mask = (child >= 0)[:, None] & is_feature[None, :]
            w = tl.load(weight + child[:, None] * FEATURES + feature[None, :], mask=mask, other=0.0)
            total = tl.dot(error.to(kind), w.to(kind), total, input_precision=PRECISION)
        to = gradient + row[:, None] * FEATURES + feature[None, :]
        mask = is_row[:, None] & is_feature[None, :]
        if PAIRS:
            tl.atomic_add(to, total, mask=mask, sem="relaxed")
        else:
            if ADDS:
                total += tl.load(to, mask=mask, other=0.0).to(tl.float32)
            tl.store(to, total.to(kind), mask=mask)


@triton.jit
def _weight_gradient(
    node, child_block, hidden, order, starts, table, output, slope, scale, gradient, bias_gradient, n_rows,
    PAIRS: tl.constexpr, SLOPE_STEP: tl.constexpr, BELOW: tl.constexpr, ARITY: tl.constexpr, FEATURES: tl.constexpr,
    HAS_BIAS: tl.constexpr, PRECISION: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_CHILDREN: tl.constexpr,
    BLOCK_FEATURES: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of the parameters of a block of a node's children; zero if the node has no rows.

    Most nodes have few rows, whose errors are loaded once for all features; those of more rows are loaded again for each
    block of features.
    """
    start, stop = tl.load(starts + node), tl.load(starts + node + 1)
    column = child_block * BLOCK_CHILDREN + tl.arange(0, BLOCK_CHILDREN)
    child = tl.load(table + node * ARITY + column, mask=column < ARITY, other=-1).to(tl.int64)
    is_child = child >= 0
    bias_total = tl.zeros((BLOCK_CHILDREN,), tl.float32)
    feature = tl.arange(0, BLOCK_FEATURES)[None, :]
    to = gradient + child[:, None] * FEATURES + feature
    if stop - start <= BLOCK_ROWS:
        row, error = _errors_of(
            start,
            stop,
            node,
            column,
            is_child,
            order,
            output,
            slope,
            scale,
            n_rows,
            PAIRS,
            SLOPE_STEP,
            BELOW,
            ARITY,
            BLOCK_ROWS,
        )
        bias_total += tl.sum(error, axis=1)
        error = error.to(hidden.dtype.element_ty)
        at = hidden + row[:, None] * FEATURES + feature
        is_row = (start + tl.arange(0, BLOCK_ROWS) < stop)[:, None]
        for first in range(0, FEATURES, BLOCK_FEATURES):
            inside = first + feature < FEATURES
            x = tl.load(at + first, mask=is_row & inside, other=0.0)
            total = tl.dot(error, x, input_precision=PRECISION)
            tl.store(to + first, total.to(gradient.dtype.element_ty), mask=is_child[:, None] & inside)
    else:
        for first in range(0, FEATURES, BLOCK_FEATURES):
            inside = first + feature < FEATURES
            total = tl.zeros((BLOCK_CHILDREN, BLOCK_FEATURES), tl.float32)
            for later in range(start, stop, BLOCK_ROWS):
                row, error = _errors_of(
                    later, stop, node, column, is_child, order, output, slope, scale, n_rows, PAIRS, SLOPE_STEP, BELOW,
                    ARITY, BLOCK_ROWS,
                )  # fmt: skip
                is_row = (later + tl.arange(0, BLOCK_ROWS) < stop)[:, None]
                at = hidden + row[:, None] * FEATURES + first + feature
                x = tl.load(at, mask=is_row & inside, other=0.0)
                total = tl.dot(error.to(x.dtype), x, total, input_precision=PRECISION)
                if first == 0:
                    bias_total += tl.sum(error, axis=1)
            tl.store(to + first, total.to(gradient.dtype.element_ty), mask=is_child[:, None] & inside)
    if HAS_BIAS:
        tl.store(bias_gradient + child, bias_total.to(bias_gradient.dtype.element_ty), mask=is_child)


@triton.jit
def _errors_of(
    start, stop, node, column, is_child, order, output, slope, scale, n_rows, PAIRS: tl.constexpr,
    SLOPE_STEP: tl.constexpr, BELOW: tl.constexpr, ARITY: tl.constexpr, BLOCK_ROWS: tl.constexpr,
):  # fmt: skip
    """Return some rows of a node, and the gradient of the loss with respect to logits, with shape (children, rows)."""
    position = start + tl.arange(0, BLOCK_ROWS)
    is_row = position < stop
    row = tl.load(order + position, mask=is_row, other=0)
    wanted = _wanted(order, position, is_row, node, n_rows, PAIRS, BELOW, ARITY)
    inside = is_child[:, None] & is_row[None, :]
    error = _error(output, position[None, :], column[:, None], inside, wanted[None, :], ARITY)
    if not PAIRS:
        row_slope = tl.load(slope + row * SLOPE_STEP, mask=is_row, other=0.0).to(tl.float32) * scale
        error = error * row_slope[None, :]
    return row, error


@triton.jit
def _wanted(order, position, is_row, node, n_rows, PAIRS: tl.constexpr, BELOW: tl.constexpr, ARITY: tl.constexpr):
    """Return the child on the path of each row; -1 with PAIRS, whose outputs are already errors."""
    wanted = position * 0 - 1
    if not PAIRS:
        wanted = tl.load(order + n_rows + position, mask=is_row, other=0) // BELOW - node * ARITY
    return wanted


@triton.jit
def root_gradients_kernel(
    hidden, weight, node_weight, direct, rows, error, slope, hidden_product, root_product,
    hidden_gradient, weight_gradient, bias_gradient, node_gradient, node_bias_gradient, n_rows,
    MULTIPLIES: tl.constexpr, MEAN: tl.constexpr, SLOPE_STEP: tl.constexpr, N_BOUNDS: tl.constexpr,
    N_DIRECT: tl.constexpr, N_TOP: tl.constexpr, WIDTH: tl.constexpr, FEATURES: tl.constexpr, HAS_BIAS: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_CHILDREN: tl.constexpr, BLOCK_FEATURES: tl.constexpr,
    BLOCK_SUM: tl.constexpr,
):  # fmt: skip
    """Compute the gradients at the root: of the parameters of its children, and of `hidden`, added to those of the levels.

    Without MULTIPLIES, the matrix products are given (`hidden_product`, `root_product`).
    """
    scale = _scale(rows, n_rows, N_BOUNDS, MEAN)
    feature_blocks: tl.constexpr = (FEATURES + BLOCK_FEATURES - 1) // BLOCK_FEATURES
    direct_blocks: tl.constexpr = (N_DIRECT + BLOCK_CHILDREN - 1) // BLOCK_CHILDREN
    child_blocks: tl.constexpr = direct_blocks + (WIDTH - N_DIRECT + BLOCK_CHILDREN - 1) // BLOCK_CHILDREN
    at = tl.program_id(0)
    feature = at % feature_blocks * BLOCK_FEATURES + tl.arange(0, BLOCK_FEATURES)
    block = at // feature_blocks
    if block < child_blocks:
        _root_weight_gradient(
            block, feature, hidden, direct, error, slope, scale, root_product, weight_gradient, node_gradient, n_rows,
            direct_blocks, MULTIPLIES, SLOPE_STEP, N_DIRECT, N_TOP, WIDTH, FEATURES, PRECISION, BLOCK_ROWS, BLOCK_CHILDREN, BLOCK_FEATURES,
        )  # fmt: skip
    elif block < child_blocks + (n_rows + BLOCK_ROWS - 1) // BLOCK_ROWS:
        _root_hidden_gradient(
            (block - child_blocks) * BLOCK_ROWS, feature, weight, node_weight, direct, rows, error, slope, scale, hidden_product,
            hidden_gradient, n_rows, MULTIPLIES, SLOPE_STEP, N_DIRECT, N_TOP, WIDTH, FEATURES, PRECISION, BLOCK_ROWS, BLOCK_CHILDREN, BLOCK_FEATURES,
        )  # fmt: skip
    elif HAS_BIAS:
        at -= (child_blocks + (n_rows + BLOCK_ROWS - 1) // BLOCK_ROWS) * feature_blocks
        _root_bias_gradient(
            at * BLOCK_SUM, error, slope, scale, direct, bias_gradient, node_bias_gradient, n_rows, SLOPE_STEP, N_DIRECT,
            N_TOP, WIDTH, BLOCK_SUM,
        )  # fmt: skip


@triton.jit
def _root_weight_gradient(
    block, feature, hidden, direct, error, slope, scale, product, weight_gradient, node_gradient, n_rows,
    direct_blocks: tl.constexpr, MULTIPLIES: tl.constexpr, SLOPE_STEP: tl.constexpr, N_DIRECT: tl.constexpr, N_TOP: tl.constexpr,
    WIDTH: tl.constexpr, FEATURES: tl.constexpr, PRECISION: tl.constexpr, BLOCK_ROWS: tl.constexpr,
    BLOCK_CHILDREN: tl.constexpr, BLOCK_FEATURES: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of the weights of a block of children, for a block of features."""
    is_direct, column, child, is_child = root_children(block, direct, direct_blocks, N_DIRECT, N_TOP, BLOCK_CHILDREN)
    gradient = tl.where(is_direct, weight_gradient, node_gradient)
    is_feature = (feature < FEATURES)[None, :]
    total = tl.zeros((BLOCK_CHILDREN, BLOCK_FEATURES), tl.float32)
    if MULTIPLIES:
        row = tl.arange(0, BLOCK_ROWS).to(tl.int64)
        error_at = error + row[:, None] * WIDTH + column[None, :]
        hidden_at = hidden + row[:, None] * FEATURES + feature[None, :]
        for first in range(0, n_rows, BLOCK_ROWS):
            is_row = (first + row < n_rows)[:, None]
            e = tl.load(error_at, mask=is_row & is_child[None, :], other=0.0)
            x = tl.load(hidden_at, mask=is_row & is_feature, other=0.0)
            if SLOPE_STEP == 1:
                row_slope = tl.load(slope + first + row, mask=first + row < n_rows, other=0.0).to(tl.float32)
                e = (e.to(tl.float32) * row_slope[:, None]).to(x.dtype)
            total = tl.dot(tl.trans(e), x, total, input_precision=PRECISION)
            error_at += BLOCK_ROWS * WIDTH
            hidden_at += BLOCK_ROWS * FEATURES
    else:
        at = product + column[:, None] * FEATURES + feature[None, :]
        total += tl.load(at, mask=is_child[:, None] & is_feature, other=0.0).to(tl.float32)
    if SLOPE_STEP == 0:
        total = total * tl.load(slope).to(tl.float32)
    to = gradient + child[:, None] * FEATURES + feature[None, :]
    tl.store(to, (total * scale).to(weight_gradient.dtype.element_ty), mask=is_child[:, None] & is_feature)


@triton.jit
def _root_hidden_gradient(
    first_row, feature, weight, node_weight, direct, rows, error, slope, scale, product, gradient, n_rows,
    MULTIPLIES: tl.constexpr, SLOPE_STEP: tl.constexpr, N_DIRECT: tl.constexpr, N_TOP: tl.constexpr, WIDTH: tl.constexpr,
    FEATURES: tl.constexpr, PRECISION: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_CHILDREN: tl.constexpr,
    BLOCK_FEATURES: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of a block of rows for a block of features, times the gradient of the loss."""
    row = (first_row + tl.arange(0, BLOCK_ROWS)).to(tl.int64)
    is_row = row < n_rows
    is_feature = (feature < FEATURES)[None, :]
    kind = gradient.dtype.element_ty
    to = gradient + row[:, None] * FEATURES + feature[None, :]
    total = tl.zeros((BLOCK_ROWS, BLOCK_FEATURES), tl.float32)
    if MULTIPLIES:
        for first in range(0, N_DIRECT, BLOCK_CHILDREN):
            column = first + tl.arange(0, BLOCK_CHILDREN)
            is_child = column < N_DIRECT
            child = tl.load(direct + column, mask=is_child, other=0)
            e = tl.load(
                error + row[:, None] * WIDTH + column[None, :], mask=is_row[:, None] & is_child[None, :], other=0.0
            )
            at = weight + child[:, None] * FEATURES + feature[None, :]
            w = tl.load(at, mask=is_child[:, None] & is_feature, other=0.0)
            total = tl.dot(e, w.to(kind), total, input_precision=PRECISION)
        for first in range(0, N_TOP, BLOCK_CHILDREN):
            node = first + tl.arange(0, BLOCK_CHILDREN)
            is_child = node < N_TOP
            at = error + row[:, None] * WIDTH + N_DIRECT + node[None, :]
            e = tl.load(at, mask=is_row[:, None] & is_child[None, :], other=0.0)
            at = node_weight + node[:, None] * FEATURES + feature[None, :]
            w = tl.load(at, mask=is_child[:, None] & is_feature, other=0.0)
            total = tl.dot(e, w.to(kind), total, input_precision=PRECISION)
    else:
        at = product + row[:, None] * FEATURES + feature[None, :]
        total += tl.load(at, mask=is_row[:, None] & is_feature, other=0.0).to(tl.float32)
    has_more = tl.load(rows + row, mask=is_row, other=-1) >= N_DIRECT
    total += tl.load(to, mask=has_more[:, None] & is_feature, other=0.0).to(tl.float32)
    row_slope = tl.load(slope + row * SLOPE_STEP, mask=is_row, other=0.0).to(tl.float32) * scale
    tl.store(to, (total * row_slope[:, None]).to(kind), mask=is_row[:, None] & is_feature)


@triton.jit
def _root_bias_gradient(
    first_child, error, slope, scale, direct, bias, node_bias, n_rows, SLOPE_STEP: tl.constexpr,
    N_DIRECT: tl.constexpr, N_TOP: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of the biases of a few children of the root."""
    at = first_child + tl.arange(0, BLOCK)
    is_direct = at < N_DIRECT
    is_node = (at >= N_DIRECT) & (at < N_DIRECT + N_TOP)
    total = tl.zeros((128, BLOCK), tl.float32)
    for first in range(0, n_rows, 128):
        row = (first + tl.arange(0, 128)).to(tl.int64)
        is_row = row < n_rows
        e = tl.load(error + row[:, None] * WIDTH + at[None, :], mask=is_row[:, None] & (at < WIDTH)[None, :], other=0.0)
        row_slope = tl.load(slope + row * SLOPE_STEP, mask=is_row, other=0.0).to(tl.float32)
        total += e.to(tl.float32) * row_slope[:, None]
    value = (tl.sum(total, axis=0) * scale).to(bias.dtype.element_ty)
    child = tl.load(direct + at, mask=is_direct, other=0)
    tl.store(bias + child, value, mask=is_direct)
    tl.store(node_bias + at - N_DIRECT, value, mask=is_node)
