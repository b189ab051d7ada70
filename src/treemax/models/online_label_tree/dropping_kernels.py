"""The records of an online label tree that are dropped within a bound on memory, and the lines that they leave."""

from __future__ import annotations

import numpy as np

from treemax.kernels import vector
from treemax.kernels.intrinsics import empty, reinterpret
from treemax.kernels.jit import bare_inline_kernel, kernel
from treemax.models.online_label_tree.file_kernels import sort, stored_lanes
from treemax.models.online_label_tree.kernels import (
    EMPTY,
    LANES,
    LINE_BYTES,
    LINES,
    LOWER_HALF,
    SLOT_BYTES,
    TABLE_SLOTS,
    UPPER_HALF,
    ZERO,
    put_slot,
    record_address,
    table_bits,
)

SLOTS_A_RECORD = 2  # about, in a table that is filled to between three and six eighths
N_USES = 1 << 16
FREE, IN_USE = -1, -2  # of a line; other numbers: where it was moved


@bare_inline_kernel
def _use(slot, stored, width, store):
    """Return how much the weights of a record matter: the upper half of the sum of their squares, in their order."""
    weights = vector.load_halves_at(record_address(store, slot & LOWER_HALF, width))
    weights = vector.choose(stored, weights, vector.splat(ZERO))
    return reinterpret(np.float32(vector.total(vector.multiply(weights, weights))), np.uint32) >> np.uint32(16)


@kernel
def bytes_by_use(first, last, blocks, store, sizes):
    """Add the bytes of the records of some blocks to `sizes`, by how much they matter."""
    for block in range(first, last):
        stored, width = np.uint32((1 << stored_lanes(block, blocks)) - 1), blocks.width[block]
        table = blocks.table[block]
        for position in range(table >> 6, (table >> 6) + (1 << (table & 63))):
            slot = store.slots[position]
            if slot != EMPTY:
                sizes[_use(slot, stored, width, store)] += 4 * width + SLOTS_A_RECORD * SLOT_BYTES


@kernel
def drop_records(first, last, least, blocks, store, counts, place_of_line):
    """Drop the records of some blocks that matter less than `least`, and move the others to smaller tables; return the
    numbers of weights dropped and of lines left. `place_of_line` is scratch for each line, FREE at first."""
    n_dropped, n_lines = np.int64(0), np.int64(0)
    most = blocks.filled[first:last].max()
    room, lines = empty(most, np.uint64), empty(most, np.uint64)
    for block in range(first, last):
        n_stored, width = stored_lanes(block, blocks), blocks.width[block]
        stored, table, n = np.uint32((1 << n_stored) - 1), blocks.table[block], 0
        start, bits = table >> 6, table & 63
        for position in range(start, start + (1 << bits)):
            slot = store.slots[position]
            if slot != EMPTY and _use(slot, stored, width, store) >= least:
                room[n] = slot
                n += 1
        n_dropped += (blocks.filled[block] - n) * n_stored
        n_lines += _close_up(block, room[:n], lines, blocks, store, place_of_line)
        smaller = table_bits(n)
        store.slots[start : start + (1 << smaller)] = EMPTY
        for i in range(n):
            put_slot(store.slots, np.uint64(start), np.uint64(smaller), room[i])
        blocks.table[block], blocks.filled[block] = start << 6 | smaller, n
        counts[TABLE_SLOTS] -= (1 << bits) - (1 << smaller)
    return n_dropped, n_lines


@kernel
def _close_up(block, kept, lines, blocks, store, place_of_line):
    """Move the records that a block keeps to the first of its lines; return how many lines these are."""
    width = blocks.width[block]
    a_line = np.uint64(LANES // width)
    for i in range(kept.size):
        kept[i] = kept[i] << np.uint64(32) | kept[i] >> np.uint64(32)
    if a_line > 1:
        sort(kept)
    n_lines = np.int64(0)
    for i in range(kept.size):
        line = (kept[i] >> np.uint64(32)) // a_line
        if n_lines == 0 or lines[n_lines - 1] != line:
            lines[n_lines] = line
            n_lines += 1
    record = np.uint64(0)
    for i in range(np.uint64(kept.size)):
        record = lines[i // a_line] * a_line + i % a_line  # this record's place, or one of those before it
        _copy(record_address(store, kept[i] >> np.uint64(32), width), record_address(store, record, width), 4 * width)
        kept[i] = kept[i] << np.uint64(32) | record
    blocks.newest[block] = np.int64(record) if kept.size else -1
    n_lines = -(-kept.size // np.int64(a_line))
    for i in range(n_lines):
        place_of_line[lines[i]] = IN_USE
    while kept.size and (record + np.uint64(1)) % a_line > 0:
        record += np.uint64(1)
        _clear(record, width, store)
    return n_lines


@kernel
def move_lines(first, last, n_lines, free, blocks, store, place_of_line):
    """Move the lines of some blocks to the first `n_lines`, of which those before `free` are taken; return the next."""
    for block in range(first, last):
        width, table = blocks.width[block], blocks.table[block]
        for position in range(table >> 6, (table >> 6) + (1 << (table & 63))):
            slot = store.slots[position]
            if slot != EMPTY:
                record, free = _moved(np.int64(slot & LOWER_HALF), width, n_lines, free, store, place_of_line)
                store.slots[position] = slot & UPPER_HALF | np.uint64(record)
        if blocks.newest[block] >= 0:
            blocks.newest[block], free = _moved(blocks.newest[block], width, n_lines, free, store, place_of_line)
    return free


@kernel
def clear_lines(n_lines, store, counts):
    """Free all lines but the first, for new records, which are zero at first."""
    for line in range(n_lines, counts[LINES]):
        _clear(np.uint64(line), np.int64(LANES), store)
    counts[LINES] = n_lines


@kernel
def _moved(record, width, n_lines, free, store, place_of_line):
    """Return the number of a record once its line has moved, and the first line that may be free."""
    a_line = LANES // width
    line = record // a_line
    if line < n_lines:
        return record, free
    if place_of_line[line] == IN_USE:
        while place_of_line[free] != FREE:
            free += 1
        whole = np.int64(LANES)
        _copy(record_address(store, np.uint64(line), whole), record_address(store, np.uint64(free), whole), LINE_BYTES)
        place_of_line[line], place_of_line[free] = free, IN_USE
    return place_of_line[line] * a_line + record % a_line, free


@bare_inline_kernel
def _clear(record, width, store):
    address = record_address(store, record, width)
    for at in range(np.uint64(0), np.uint64(4 * width), np.uint64(2)):
        vector.store_short_at(address + at, np.uint16(0))


@bare_inline_kernel
def _copy(source, target, n_bytes):
    if source != target:
        for at in range(np.uint64(0), np.uint64(n_bytes), np.uint64(2)):
            vector.store_short_at(target + at, vector.load_short_at(source + at))
