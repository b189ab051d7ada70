"""Data structures and updates of online probabilistic label trees (Jasinska-Kobus et al., 2021).

The classifiers of up to sixteen siblings make a *block*, a classifier in each lane. A block has a hash table
from a feature to a *record*: a weight in half precision for each lane, and AdaGrad's sums of squared gradients as bfloat16,
both rounded up or down by chance, since most of what is added is smaller than the last bit. A block has 2, 4, 8 or 16 lanes,
as many as its node may get children; a record of sixteen is one cache line, and smaller records of one block share a line.
Vectors always have sixteen lanes: those that a block does not have hold what lies behind its record, and are not used. A
node has a chain of blocks, all full but the last. A table is filled to three quarters at most, also one that was replaced or
is used again, so that every search for a feature ends at an empty slot.

The auxiliary classifier of a node, which is trained on the node's positive examples only, is stored inverted: as one
more child that is always negative. All free lanes of a block hold this classifier, bit for bit. So a new leaf takes
the next free lane and has, without copying, the weights that it would have had from the beginning; an inserted node
takes over all blocks of its parent.

Several threads may train: weights are updated without locks, a table is extended under a lock of its block, and nodes
are added only while a single thread runs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from treemax.kernels import atomic, vector
from treemax.kernels.arithmetic import copy_into
from treemax.kernels.jit import bare_inline_kernel, bare_kernel, kernel

LANES = 16
LINE_BITS, LINE_BYTES = 6, 64  # of a cache line: sixteen weights, then sixteen sums of squares
CHUNK_BITS = 16  # lines of a chunk of memory: 4 MB
FEWEST_LANES = 2
MOST_LINES = 2**32 * FEWEST_LANES // LANES  # if there are blocks with the fewest lanes: records have numbers of 32 bits
SMALLEST_TABLE_BITS = np.int64(3)

BEST_GREEDY, BEST_GREEDY_PRINTED, RANDOM, COMPLETE, ONE_LEVEL, NO_GROWTH = 0, 1, 2, 3, 4, 5  # policies

# Indices into `counts`.
NODES, BLOCKS, LINES, SLOTS, LINES_PLANNED, SLOTS_PLANNED = 0, 1, 2, 3, 4, 5
SELECTED, RANDOM_STATE, UPDATES, AUXILIARY_UPDATES, TABLE_LOCK = 6, 7, 8, 9, 10
LINES_WANTED, SLOTS_WANTED, WIDEST, START, TABLE_SLOTS, MOST_BYTES, SHARED, N_COUNTS = 11, 12, 13, 14, 15, 16, 17, 18
# WIDEST: the most children of a node; START: the node where the search for the place of a new label begins; TABLE_SLOTS:
# those of tables in use; MOST_BYTES: the bound on memory; SHARED: whether several threads learn

NO_BOUND = 2**62
# Bytes in all arrays of a node, a block and a slot. Within a bound, an array has an eighth of spare capacity at most, and
# there are two of it while it is copied to a larger one.
COPIES = 2.25
NODE_BYTES, BLOCK_BYTES, SLOT_BYTES = int(COPIES * 72), int(COPIES * 328), int(COPIES * 8)

EMPTY = np.uint64(0xFFFFFFFFFFFFFFFF)
LOWER_HALF = np.uint64(0xFFFFFFFF)
UPPER_HALF = np.uint64(0xFFFFFFFF00000000)
_MISSING = np.uint64(0)  # an address that no record has
_MULTIPLIER = np.uint32(0x9E3779B1)
ONE = np.float32(1.0)
ZERO = np.float32(0.0)
LARGEST_HALF = np.float32(65504.0)
FIRST = np.int64(0)  # block, lane or node; for a literal 0, Numba would compile the callees once more


class Nodes(NamedTuple):
    """The tree: an entry for every node; node 0 is the root."""

    parent: np.ndarray  # -1 for the root
    place: np.ndarray  # where its classifier is: block * 16 + lane
    label: np.ndarray  # of a leaf; -1 for an inner node
    first_block: np.ndarray  # of its children; -1 where there are none, and no auxiliary classifier
    last_block: np.ndarray
    n_children: np.ndarray
    n_inner: np.ndarray  # children that are not leaves
    n_leaves: np.ndarray  # below it


class Blocks(NamedTuple):
    """Up to sixteen classifiers each; block 0 has one, that of the root."""

    following: np.ndarray  # the node's next block, or -1
    child: np.ndarray  # the node that a lane belongs to, or -1
    width: np.ndarray  # lanes
    used: np.ndarray  # lanes that belong to a child
    lanes: np.ndarray  # bits of the lanes that learn: those used, and while the node may grow, all
    newest: np.ndarray  # record, or -1
    table: np.ndarray  # where its slots begin, times 64, plus the logarithm of how many there are
    filled: np.ndarray  # slots that are taken
    bias: np.ndarray
    bias_squares: np.ndarray
    lock: np.ndarray


class Store(NamedTuple):
    """Where the tables and records of all blocks are. Records are numbered as if all had the size of their block's."""

    slots: np.ndarray  # feature in the upper half of a word, record in the lower
    free: np.ndarray  # for each size, the first table that is no longer used
    chunks: np.ndarray  # addresses of pieces of memory, each of 2**CHUNK_BITS lines


class Scratch(NamedTuple):
    """Scratch memory of one thread."""

    positive: np.ndarray  # the positive nodes of a row
    is_positive: np.ndarray
    targets: np.ndarray  # of each block, the lanes whose example is positive
    found: np.ndarray  # addresses of a row's records in one block


# --- tables and records ------------------------------------------------------------------------------------


@bare_inline_kernel
def _home(feature, bits):
    mixed = np.uint32(np.uint32(feature) * _MULTIPLIER)  # Numba multiplies in 64 bits
    return np.uint64(mixed) >> (np.uint64(32) - bits)


@bare_inline_kernel
def lanes_for(n):
    """Return the lanes of a block for n children."""
    lanes = FEWEST_LANES
    while lanes < n and lanes < LANES:
        lanes *= 2
    return lanes


@bare_inline_kernel
def all_lanes(width):
    """Return the bits of all lanes of a block."""
    return (np.uint32(1) << np.uint32(width)) - np.uint32(1)


@bare_inline_kernel
def has_free_lane(block, blocks):
    """Return whether a block has lanes without a child that hold the auxiliary classifier."""
    used = blocks.used[block]
    return used < blocks.width[block] and (blocks.lanes[block] >> np.uint32(used)) & np.uint32(1) > 0


@bare_inline_kernel
def record_address(store, record, width):
    place = record * np.uint64(width) * np.uint64(LINE_BYTES // LANES)
    chunk = store.chunks[place >> np.uint64(CHUNK_BITS + LINE_BITS)]
    return chunk + (place & np.uint64(2 ** (CHUNK_BITS + LINE_BITS) - 1))


@bare_inline_kernel
def squares_at(address, width):
    return address + np.uint64(2) * np.uint64(width)


@bare_inline_kernel
def new_record(block, blocks, counts):
    """Allocate a record: the next of the block's last line, or the first of a new line."""
    a_line = LANES // blocks.width[block]
    record = blocks.newest[block] + 1
    if record % a_line == 0:
        record = atomic.fetch_add(counts, LINES, 1) * a_line
    blocks.newest[block] = record
    return np.uint64(record)


@bare_inline_kernel
def store_weights(address, weights, dither, width):
    """Write the weights of a record, at most the largest half-precision number."""
    most = vector.splat(LARGEST_HALF)
    weights = vector.maximum(vector.minimum(weights, most), vector.splat(-LARGEST_HALF))
    vector.store_halves_at(address, weights, dither, np.uint64(width))


@bare_kernel
def find_all(block, indices, blocks, store, found):
    """Write the addresses of the records of a row's features; slots and records are prefetched."""
    table = np.uint64(blocks.table[block])
    start, bits = table >> np.uint64(6), table & np.uint64(63)
    slots, last, width = store.slots, (np.uint64(1) << bits) - np.uint64(1), blocks.width[block]
    n = np.uint64(indices.size)
    for p in range(n):
        found[p] = _home(indices[p], bits)
        vector.prefetch(slots, start + found[p])
    for p in range(n):
        feature, at = np.uint64(indices[p]), found[p]
        address = _MISSING
        while True:
            slot = slots[start + at]
            if slot == EMPTY:
                break
            if slot >> np.uint64(32) == feature:
                address = record_address(store, slot & LOWER_HALF, width)
                vector.prefetch_at(address)
                break
            at = (at + np.uint64(1)) & last
        found[p] = address


@bare_inline_kernel
def table_bits(n_records):
    """Return the size of a table that is filled to three quarters at most."""
    bits = SMALLEST_TABLE_BITS
    while 3 * (1 << bits) < 4 * n_records:
        bits += 1
    return bits


@kernel
def bytes_needed(lines, slots, counts):
    """Return the most memory that the tree takes with so many more lines and slots."""
    fixed = counts[NODES] * NODE_BYTES + counts[BLOCKS] * BLOCK_BYTES
    return fixed + (counts[LINES] + lines) * LINE_BYTES + (counts[TABLE_SLOTS] + slots) * SLOT_BYTES


@bare_inline_kernel
def fits(lines, slots, store, counts):
    """Return whether there is capacity for so many more lines and slots, and the bound on memory allows them."""
    return (
        counts[LINES] + lines <= store.chunks.size << CHUNK_BITS
        and counts[SLOTS] + slots <= store.slots.size
        and bytes_needed(lines, slots, counts) <= counts[MOST_BYTES]
    )


@bare_kernel
def new_table(bits, store, counts):
    """Allocate a table with empty slots, reusing a free one if possible; -1 if the capacity is exhausted.

    While several threads learn none is reused: one may still search it for another block, and look for records of that
    block's width where there are none."""
    while not atomic.acquire(counts, TABLE_LOCK):
        pass
    start = np.int64(-1) if counts[SHARED] else store.free[bits]
    if start >= 0:
        store.free[bits] = _next_unused(store.slots[start])
    elif counts[SLOTS] + (1 << bits) <= store.slots.size:
        start = counts[SLOTS]
        counts[SLOTS] = start + (1 << bits)
    if start >= 0:
        counts[TABLE_SLOTS] += 1 << bits
    atomic.release(counts, TABLE_LOCK)
    if start >= 0:
        for at in range(start, start + (1 << bits)):
            store.slots[at] = EMPTY
    return start


@kernel
def move_tables(n_blocks, table, slots, new_table, new_slots):
    """Copy all tables, one after the other, without those that are free; return the number of their slots."""
    count = 0
    for block in range(n_blocks):
        start, bits = table[block] >> 6, table[block] & 63
        copy_into(new_slots[count:], slots[start:], 1 << bits)
        new_table[block] = count << 6 | bits
        count += 1 << bits
    return count


@bare_inline_kernel
def _link(start):
    """Return a slot that links to a free table. Its feature is one that no row has, since another thread may still
    search the table it is written into."""
    return UPPER_HALF | np.uint64(start >> SMALLEST_TABLE_BITS)


@bare_inline_kernel
def _next_unused(link):
    """Invert `_link`."""
    start = link & LOWER_HALF
    return np.int64(-1) if start == LOWER_HALF else np.int64(start) << SMALLEST_TABLE_BITS


@bare_kernel
def put_slot(slots, start, bits, slot):
    last = (np.uint64(1) << bits) - np.uint64(1)
    at = _home(slot >> np.uint64(32), bits)
    while slots[start + at] != EMPTY:
        at = (at + np.uint64(1)) & last
    slots[start + at] = slot


@bare_kernel
def _extend_table(block, bits, blocks, store, counts):
    """Move a block's slots to a table of the given size; False, with nothing changed, if the capacity is exhausted."""
    old = blocks.table[block]
    old_start, old_bits = old >> 6, old & 63
    start = new_table(bits, store, counts)
    if start < 0:
        return False
    for at in range(old_start, old_start + (1 << old_bits)):
        if store.slots[at] != EMPTY:
            put_slot(store.slots, np.uint64(start), np.uint64(bits), store.slots[at])
    blocks.table[block] = start << 6 | bits
    while not atomic.acquire(counts, TABLE_LOCK):
        pass
    store.slots[old_start] = _link(store.free[old_bits])
    store.free[old_bits] = old_start
    counts[TABLE_SLOTS] -= 1 << old_bits
    atomic.release(counts, TABLE_LOCK)
    return True


@bare_kernel
def insert(block, feature, blocks, store, counts):
    """Insert a record for a feature and return its address; zeros, unless another thread inserted it first.

    `_MISSING` if the table is full and the capacity is exhausted, since other threads have added features to this block
    since this thread reserved capacity for its row. This cannot happen with a single thread."""
    while not atomic.acquire(blocks.lock, block):
        pass
    table = np.uint64(blocks.table[block])
    start, bits = table >> np.uint64(6), table & np.uint64(63)
    last, at, width = (np.uint64(1) << bits) - np.uint64(1), _home(feature, bits), blocks.width[block]
    while store.slots[start + at] != EMPTY:
        slot = store.slots[start + at]
        if slot >> np.uint64(32) == np.uint64(feature):
            atomic.release(blocks.lock, block)
            return record_address(store, slot & LOWER_HALF, width)
        at = (at + np.uint64(1)) & last
    full = 4 * (blocks.filled[block] + 1) > 3 << bits
    if full and not _extend_table(block, np.int64(bits) + 1, blocks, store, counts):
        atomic.release(blocks.lock, block)
        return _MISSING
    record = new_record(block, blocks, counts)
    slot = np.uint64(feature) << np.uint64(32) | record
    blocks.filled[block] += 1
    if full:
        table = np.uint64(blocks.table[block])
        put_slot(store.slots, table >> np.uint64(6), table & np.uint64(63), slot)
    else:
        store.slots[start + at] = slot
    atomic.release(blocks.lock, block)
    return record_address(store, record, width)


# --- the classifiers of a block ------------------------------------------------------------------------------


@bare_inline_kernel
def block_scores(block, values, blocks, found):
    """Return the scores of a block's classifiers for a row whose records are found; lanes that it lacks have any."""
    score = vector.load(blocks.bias, np.uint64(block) * np.uint64(LANES))
    for p in range(np.uint64(values.size)):
        if found[p] != _MISSING:
            score = vector.multiply_add(vector.splat(values[p]), vector.load_halves_at(found[p]), score)
    return score


@bare_inline_kernel
def _moved(weight, squares, step, learner):
    """Return a weight after a step of AdaGrad (its sum of squares includes the step), or of plain gradient descent."""
    rate = vector.multiply(step, vector.splat(learner[0]))
    if learner[3] > ZERO:
        rate = vector.divide(rate, vector.square_root(vector.add(squares, vector.splat(learner[1]))))
    return vector.subtract(weight, rate)


@bare_inline_kernel
def _update_records(block, width, gradient, indices, values, blocks, store, counts, found, learner):
    """Update the weights of a row's features, where `found` is; insert those that are missing."""
    for p in range(np.uint64(values.size)):
        address = found[p]
        if address == _MISSING:
            address = insert(block, indices[p], blocks, store, counts)
            if address == _MISSING:
                continue
        step = vector.multiply(gradient, vector.splat(values[p]))
        squares = vector.multiply_add(step, step, vector.load_bfloats_at(squares_at(address, width)))
        dither = vector.hashed(step)
        vector.store_bfloats_at(squares_at(address, width), squares, dither, np.uint64(width))
        store_weights(address, _moved(vector.load_halves_at(address), squares, step, learner), dither, width)


@bare_kernel
def update_block(block, targets, indices, values, blocks, store, counts, found, learner):
    """A_online.Update for every classifier of a block: logistic loss, positive in the lanes of `targets`.

    Positive and negative updates mirror each other bit for bit, which is what the inverted auxiliary
    classifier needs. `learner`: the rate, AdaGrad's epsilon, the least gradient, whether AdaGrad at all, the weight of
    the row.
    """
    find_all(block, indices, blocks, store, found)
    one = vector.splat(ONE)
    sign = vector.choose(targets, one, vector.splat(-ONE))
    margin = vector.multiply(sign, block_scores(block, values, blocks, found))
    wrong = vector.divide(one, vector.add(one, vector.exponential(margin)))
    matters = vector.bits_above(wrong, vector.splat(learner[2])) & blocks.lanes[block]
    if matters == 0:
        return
    gradient = vector.choose(matters, vector.multiply(sign, wrong), vector.splat(ZERO))
    gradient = vector.multiply(vector.subtract(vector.splat(ZERO), gradient), vector.splat(learner[4]))
    first, width = np.uint64(block) * np.uint64(LANES), blocks.width[block]
    squares = vector.multiply_add(gradient, gradient, vector.load(blocks.bias_squares, first))
    vector.store(blocks.bias_squares, first, squares)
    vector.store(blocks.bias, first, _moved(vector.load(blocks.bias, first), squares, gradient, learner))
    if width == LANES:  # compiled apart, without a choice of stores
        _update_records(block, LANES, gradient, indices, values, blocks, store, counts, found, learner)
    else:
        _update_records(block, width, gradient, indices, values, blocks, store, counts, found, learner)
