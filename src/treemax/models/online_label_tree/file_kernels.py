"""The records of an online label tree, packed for a file and unpacked again."""

from __future__ import annotations

import numpy as np

from treemax.kernels import vector
from treemax.kernels.jit import kernel
from treemax.models.online_label_tree.growth_kernels import leaf_may_grow, may_grow
from treemax.models.online_label_tree.kernels import (
    EMPTY,
    LANES,
    LOWER_HALF,
    ZERO,
    has_free_lane,
    insert,
    new_table,
    record_address,
    squares_at,
    table_bits,
)

# Codes of weights in half precision (see `rounding`).
MAGNITUDE, SIGN = 0x7FFF, 0x80  # bits of a weight without its sign; the sign of a code
DROPPED_BITS, HALF_STEP = 6, 0x20  # of the ten bits of a significand, and half of what they stand for
HIGHEST_RANK, HIGHEST_CODE = 0x7BFF >> DROPPED_BITS, 0x7F


@kernel
def stored_lanes(block, blocks):
    """Return how many lanes of a block need to be stored: those of children, and one for all that are free."""
    return blocks.used[block] + (1 if has_free_lane(block, blocks) else 0)


@kernel
def sort(numbers):
    """Shell sort in place; Numba's own sort takes many seconds to compile."""
    gap = 1
    while gap < numbers.size:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, numbers.size):
            number, j = numbers[i], i
            while j >= gap and numbers[j - gap] > number:
                numbers[j] = numbers[j - gap]
                j -= gap
            numbers[j] = number
        gap //= 3


@kernel
def _sorted_slots(block, blocks, store, room):
    """Write the slots of a block, sorted by feature, since the order in a table depends on when it grew."""
    table, n = blocks.table[block], 0
    for position in range(table >> 6, (table >> 6) + (1 << (table & 63))):
        if store.slots[position] != EMPTY:
            room[n] = store.slots[position]
            n += 1
    own = room[:n]
    sort(own)
    return own


@kernel
def pack_records(n_blocks, blocks, store, features, weights, squares):
    """Write the feature of every record, block by block, and the bits of its weights and squares in the lanes stored."""
    record, at = 0, 0
    room = np.empty(blocks.filled[:n_blocks].max(), np.uint64)
    for block in range(n_blocks):
        width, own = stored_lanes(block, blocks), blocks.width[block]
        for slot in _sorted_slots(block, blocks, store, room):
            features[record] = slot >> np.uint64(32)
            record += 1
            address = record_address(store, slot & LOWER_HALF, own)
            for lane in range(np.uint64(width)):
                weights[at] = vector.load_short_at(address + np.uint64(2) * lane)
                if squares.size:
                    squares[at] = vector.load_short_at(squares_at(address, own) + np.uint64(2) * lane)
                at += 1


@kernel
def can_grow(growth, n_nodes, nodes, blocks):
    """Return whether every node that the policy may select has its auxiliary classifier."""
    policy, arity = growth[0], growth[1]
    for node in range(n_nodes):
        if node > 0 and nodes.label[node] >= 0:
            selectable = leaf_may_grow(node, policy, nodes)
        else:
            selectable = may_grow(node, policy, arity, nodes)
        last = nodes.last_block[node]
        if selectable and (last < 0 or not has_free_lane(last, blocks)):
            return False
    return True


@kernel
def unpack_records(n_blocks, filled, features, weights, squares, blocks, store, counts):
    """Rebuild the tables and records of all blocks; False if a feature comes twice in a block."""
    record, at = 0, 0
    for block in range(n_blocks):
        width = stored_lanes(block, blocks)
        bits = table_bits(filled[block])
        blocks.table[block] = new_table(bits, store, counts) << 6 | bits
        for _ in range(filled[block]):
            address = insert(block, features[record], blocks, store, counts)
            for lane in range(np.uint64(blocks.width[block])):
                stored = at + min(np.int64(lane), width - 1)
                vector.store_short_at(address + np.uint64(2) * lane, weights[stored])
                if squares.size:
                    vector.store_short_at(
                        squares_at(address, blocks.width[block]) + np.uint64(2) * lane, squares[stored]
                    )
            record, at = record + 1, at + width
        if blocks.filled[block] != filled[block]:
            return False
    return True


# --- weights of one byte -------------------------------------------------------------------------------------


@kernel
def block_magnitudes(n_blocks, blocks, store, squares, largest):
    """Write the sum of the squared weights of each block and the bits of its largest absolute weight."""
    for block in range(n_blocks):
        width = stored_lanes(block, blocks)
        stored = np.uint32((1 << width) - 1)
        table = blocks.table[block]
        for position in range(table >> 6, (table >> 6) + (1 << (table & 63))):
            if store.slots[position] == EMPTY:
                continue
            address = record_address(store, store.slots[position] & LOWER_HALF, blocks.width[block])
            weights = vector.choose(stored, vector.load_halves_at(address), vector.splat(ZERO))
            squares[block] += vector.total(vector.multiply(weights, weights))
            for lane in range(np.uint64(width)):
                largest[block] = max(largest[block], vector.load_short_at(address + np.uint64(2) * lane) & MAGNITUDE)


@kernel
def pack_codes(n_blocks, blocks, store, least, offsets, filled, steps, masks, codes):
    """Write the weights from `least` of their block on as codes (see `rounding`), and for each record that has some, the
    step from the feature before it, as LEB128, and a mask of their lanes. Returns the numbers of bytes, records and
    codes; `filled` are the records of each block."""
    n_bytes, record, at = 0, 0, 0
    room = np.empty(blocks.filled[:n_blocks].max(), np.uint64)
    for block in range(n_blocks):
        width = stored_lanes(block, blocks)
        first, before = record, np.uint64(0)
        for slot in _sorted_slots(block, blocks, store, room):
            address, mask = record_address(store, slot & LOWER_HALF, blocks.width[block]), 0
            for lane in range(np.uint64(width)):
                bits = np.int64(vector.load_short_at(address + np.uint64(2) * lane))
                code = min(((bits & MAGNITUDE) + HALF_STEP) >> DROPPED_BITS, HIGHEST_RANK) - np.int64(offsets[block])
                if (bits & MAGNITUDE) >= least[block] and code > 0:
                    codes[at] = code | (bits >> 8 & SIGN)
                    mask |= 1 << lane
                    at += 1
            if mask:
                step, before = (slot >> np.uint64(32)) - before, slot >> np.uint64(32)
                while step >= np.uint64(0x80):
                    steps[n_bytes] = step & np.uint64(0x7F) | np.uint64(0x80)
                    step, n_bytes = step >> np.uint64(7), n_bytes + 1
                steps[n_bytes], masks[record] = step, mask
                n_bytes, record = n_bytes + 1, record + 1
        filled[block] = record - first
    return n_bytes, record, at


@kernel
def unpack_codes(n_blocks, filled, steps, masks, codes, offsets, blocks, store, counts):
    """Rebuild the tables and records of all blocks from what `pack_codes` wrote; False if that is damaged."""
    n_bytes, record, at = 0, 0, 0
    weights = np.empty(LANES, np.uint16)
    for block in range(n_blocks):
        width = stored_lanes(block, blocks)
        bits = table_bits(filled[block])
        blocks.table[block] = new_table(bits, store, counts) << 6 | bits
        feature = np.int64(0)
        for number in range(filled[block]):
            step, shift = np.int64(0), 0
            while n_bytes < steps.size and steps[n_bytes] >= 0x80 and shift < 28:
                step, shift, n_bytes = step | np.int64(steps[n_bytes] & 0x7F) << shift, shift + 7, n_bytes + 1
            if n_bytes == steps.size or steps[n_bytes] >= 0x80:
                return False
            step, n_bytes = step | np.int64(steps[n_bytes]) << shift, n_bytes + 1
            feature += step
            if feature >= 0xFFFFFFFF or (number and step == 0) or np.int64(masks[record]) >> width:
                return False
            for lane in range(LANES):
                if lane >= width:
                    weights[lane] = weights[width - 1]
                elif masks[record] >> lane & 1 == 0:
                    weights[lane] = 0
                elif at == codes.size:
                    return False
                else:
                    rank = np.int64(codes[at] & HIGHEST_CODE) + np.int64(offsets[block])
                    weights[lane] = rank << DROPPED_BITS | np.int64(codes[at] & SIGN) << 8
                    at += 1
            address = insert(block, np.uint32(feature), blocks, store, counts)
            for lane in range(blocks.width[block]):
                vector.store_short_at(address + np.uint64(2 * lane), weights[lane])
            record += 1
    return n_bytes == steps.size and at == codes.size
