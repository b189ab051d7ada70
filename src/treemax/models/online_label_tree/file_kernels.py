"""The records of an online label tree, packed for a file and unpacked again."""

from __future__ import annotations

import numpy as np

from treemax.kernels import vector
from treemax.kernels.jit import kernel
from treemax.models.online_label_tree.growth_kernels import leaf_may_grow, may_grow
from treemax.models.online_label_tree.kernels import (
    ALL_LANES,
    EMPTY,
    LANES,
    LOWER_HALF,
    ZERO,
    insert,
    new_table,
    record_address,
    squares_at,
    table_bits,
)


@kernel
def stored_lanes(used, lanes):
    """How many lanes of a block need to be stored: those of children, and one for all that are free."""
    free = used < LANES and (lanes >> np.uint32(used)) & np.uint32(1)
    return used + (1 if free else 0)


@kernel
def pack_records(n_blocks, blocks, store, features, weights, squares):
    """Write the feature of every record, block by block, and its weights and squares in the lanes stored."""
    record, at = 0, 0
    row = np.empty(LANES, np.float32)
    row_squares = np.empty(LANES, np.float32)
    for block in range(n_blocks):
        width = stored_lanes(blocks.used[block], blocks.lanes[block])
        table = blocks.table[block]
        for position in range(table >> 6, (table >> 6) + (1 << (table & 63))):
            slot = store.slots[position]
            if slot == EMPTY:
                continue
            features[record] = slot >> np.uint64(32)
            record += 1
            address = record_address(store, slot & LOWER_HALF)
            vector.store(row, np.uint64(0), vector.load_at(address))
            vector.store(row_squares, np.uint64(0), vector.load_at(squares_at(address)))
            for lane in range(width):
                weights[at] = row[lane]
                if squares.size:
                    squares[at] = row_squares[lane]
                at += 1


@kernel
def can_grow(growth, n_nodes, nodes, blocks):
    """Whether every node that the policy may select has its auxiliary classifier."""
    policy, arity = growth[0], growth[1]
    for node in range(n_nodes):
        if node > 0 and nodes.label[node] >= 0:
            selectable = leaf_may_grow(node, policy, nodes)
        else:
            selectable = may_grow(node, policy, arity, nodes)
        last = nodes.last_block[node]
        if selectable and (last < 0 or blocks.used[last] == LANES or blocks.lanes[last] != ALL_LANES):
            return False
    return True


@kernel
def unpack_records(n_blocks, filled, features, weights, squares, blocks, store, counts):
    """Rebuild the tables and records of all blocks; False if a feature comes twice in a block."""
    record, at = 0, 0
    row, row_squares = np.zeros(LANES, np.float32), np.zeros(LANES, np.float32)
    for block in range(n_blocks):
        width = stored_lanes(blocks.used[block], blocks.lanes[block])
        bits = table_bits(filled[block])
        blocks.table[block] = new_table(bits, store, counts) << 6 | bits
        for _ in range(filled[block]):
            for lane in range(LANES):
                row[lane] = weights[at + min(lane, width - 1)]
                row_squares[lane] = squares[at + min(lane, width - 1)] if squares.size else ZERO
            address = insert(block, features[record], blocks, store, counts)
            vector.store_at(address, vector.load(row, np.uint64(0)))
            vector.store_at(squares_at(address), vector.load(row_squares, np.uint64(0)))
            record, at = record + 1, at + width
        if blocks.filled[block] != filled[block]:
            return False
    return True
