"""Triton functions that find the children of nodes, for all kernels of a tree softmax."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def root_children(
    block, direct, direct_blocks: tl.constexpr, N_DIRECT: tl.constexpr, N_TOP: tl.constexpr, BLOCK: tl.constexpr
):
    """Return whether a block of the root's children has classes or nodes, their indices below the root and among the
    classes or nodes, and which of them exist."""
    is_direct = block < direct_blocks
    first = tl.where(is_direct, block * BLOCK, N_DIRECT + (block - direct_blocks) * BLOCK)
    column = first.to(tl.int64) + tl.arange(0, BLOCK)
    is_child = column < tl.where(is_direct, N_DIRECT, N_DIRECT + N_TOP)
    own_class = tl.load(direct + column, mask=is_direct & is_child, other=0)
    return is_direct, column, tl.where(is_direct, own_class, column - N_DIRECT), is_child


@triton.jit
def tile_of_rows(starts, tile, n_nodes, BLOCK_ROWS: tl.constexpr, STEP: tl.constexpr, STEPS: tl.constexpr):
    """Return the node of a tile of rows, the first row of the tile and the end of the node's rows.

    The tiles of node v begin at starts[v] // BLOCK_ROWS + v, which is enough for every node without counting tiles; the
    first row of a superfluous tile is after the end. The node is searched in two steps: every STEP-th, then those between.
    """
    node = tl.arange(0, STEPS) * STEP
    inside = node < n_nodes
    begins = tl.load(starts + node, mask=inside, other=0) // BLOCK_ROWS + node <= tile
    low = (tl.sum((inside & begins).to(tl.int32), axis=0) - 1) * STEP
    node = low + tl.arange(0, STEP)
    inside = node < n_nodes
    begins = tl.load(starts + node, mask=inside, other=0) // BLOCK_ROWS + node <= tile
    low += tl.sum((inside & begins).to(tl.int32), axis=0) - 1
    start = tl.load(starts + low)
    first = start + (tile - start // BLOCK_ROWS - low) * BLOCK_ROWS
    return low, first, tl.load(starts + low + 1)
