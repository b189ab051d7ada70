"""A label tree that grows while it learns: Algorithms 1 to 10 of online probabilistic label trees
(Jasinska-Kobus et al., 2021).

The classifiers of up to sixteen siblings make a *block*, a classifier in each lane. A block has a hash table
from a feature to a *record*: sixteen weights and AdaGrad's sixteen sums of squared gradients, two cache lines
that are read and written as two vectors. A node has a chain of blocks.

The auxiliary classifier of a node, which sees the node's positive examples only, is kept inverted: as one
more child that is always negative. All lanes of a block that no child has taken yet are that classifier, bit
for bit. So a new leaf takes the next free lane and is, without copying anything, what it would be had it been
there from the beginning; a node that is inserted takes over all blocks of the one above.

Threads may learn at once: weights are updated without locks. A table is extended under a lock of its block,
and only the thread that knows it is alone adds nodes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from treemax.kernels import atomic, vector
from treemax.kernels.jit import inline_kernel, kernel
from treemax.kernels.queues import offer, pop, push

LANES = 16
RECORD_BYTES = 128  # sixteen weights, then sixteen sums of squares
CHUNK_BITS = 15  # records of a chunk of memory: 4 MB
SMALLEST_TABLE_BITS = 3

BEST_GREEDY, BEST_GREEDY_PRINTED, RANDOM, COMPLETE, ONE_LEVEL = 0, 1, 2, 3, 4  # policies

# What `counts` holds.
NODES, BLOCKS, RECORDS, SLOTS, RECORDS_PLANNED, SLOTS_PLANNED = 0, 1, 2, 3, 4, 5
SELECTED, RANDOM_STATE, UPDATES, AUXILIARY_UPDATES, TABLE_LOCK = 6, 7, 8, 9, 10
RECORDS_WANTED, SLOTS_WANTED, WIDEST, N_COUNTS = 11, 12, 13, 14  # WIDEST: the most children of a node

_EMPTY = np.uint64(0xFFFFFFFFFFFFFFFF)
_LOWER_HALF = np.uint64(0xFFFFFFFF)
_UPPER_HALF = np.uint64(0xFFFFFFFF00000000)
_MISSING = np.uint64(0)  # an address that no record has
_ALL_LANES = np.uint32(0xFFFF)
_MULTIPLIER = np.uint32(0x9E3779B1)
_ONE = np.float32(1.0)
_ZERO = np.float32(0.0)


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
    """Sixteen classifiers each; block 0 has one, that of the root."""

    following: np.ndarray  # the node's next block, or -1
    child: np.ndarray  # the node that a lane belongs to, or -1
    used: np.ndarray  # lanes that belong to a child
    lanes: np.ndarray  # bits of the lanes that learn: those used, and while the node may grow, all
    table: np.ndarray  # where its slots begin, times 64, plus the logarithm of how many there are
    filled: np.ndarray  # slots that are taken
    bias: np.ndarray
    bias_squares: np.ndarray
    lock: np.ndarray


class Store(NamedTuple):
    """Where the tables and records of all blocks are."""

    slots: np.ndarray  # feature in the upper half of a word, record in the lower
    free: np.ndarray  # for each size, the first table that is no longer used
    chunks: np.ndarray  # addresses of pieces of memory, each of 2**CHUNK_BITS records


class Scratch(NamedTuple):
    """What one thread needs for itself."""

    positive: np.ndarray  # the positive nodes of a row
    is_positive: np.ndarray
    targets: np.ndarray  # of each block, the lanes whose example is positive
    found: np.ndarray  # addresses of a row's records in one block


# --- tables and records ------------------------------------------------------------------------------------


@inline_kernel
def _home(feature, bits):
    mixed = np.uint32(np.uint32(feature) * _MULTIPLIER)  # Numba multiplies in 64 bits
    return np.uint64(mixed) >> (np.uint64(32) - bits)


@inline_kernel
def _address(store, record):
    chunk = store.chunks[record >> np.uint64(CHUNK_BITS)]
    return chunk + (record & np.uint64(2**CHUNK_BITS - 1)) * np.uint64(RECORD_BYTES)


@inline_kernel
def _squares(address):
    return address + np.uint64(RECORD_BYTES // 2)


@kernel
def _find_all(block, indices, blocks, store, found):
    """The addresses of the records of a row's features. The slots are far apart, and so are the records:
    each is asked for before the first is read."""
    table = np.uint64(blocks.table[block])
    start, bits = table >> np.uint64(6), table & np.uint64(63)
    slots, last = store.slots, (np.uint64(1) << bits) - np.uint64(1)
    n = np.uint64(indices.size)
    for p in range(n):
        found[p] = _home(indices[p], bits)
        vector.prefetch(slots, start + found[p])
    for p in range(n):
        feature, at = np.uint64(indices[p]), found[p]
        address = _MISSING
        while True:
            slot = slots[start + at]
            if slot == _EMPTY:
                break
            if slot >> np.uint64(32) == feature:
                address = _address(store, slot & _LOWER_HALF)
                vector.prefetch_at(address)
                break
            at = (at + np.uint64(1)) & last
        found[p] = address


@inline_kernel
def _table_bits(n_records):
    """The size of a table that is filled to three quarters at most."""
    bits = SMALLEST_TABLE_BITS
    while 3 * (1 << bits) < 4 * n_records:
        bits += 1
    return bits


@kernel
def _new_table(bits, store, counts):
    """Room for a table, all slots empty: one that is no longer used, or new; -1 where there is no room."""
    while not atomic.take(counts, TABLE_LOCK):
        pass
    start = store.free[bits]
    if start >= 0:
        store.free[bits] = _next_unused(store.slots[start])
    elif counts[SLOTS] + (1 << bits) <= store.slots.size:
        start = counts[SLOTS]
        counts[SLOTS] = start + (1 << bits)
    atomic.give(counts, TABLE_LOCK)
    if start >= 0:
        for at in range(start, start + (1 << bits)):
            store.slots[at] = _EMPTY
    return start


@inline_kernel
def _link(start):
    """A slot that leads to a table no longer used. A thread may still look for a feature in the table that
    it is written into: it has the one feature that no row has."""
    return _UPPER_HALF | np.uint64(start >> SMALLEST_TABLE_BITS)


@inline_kernel
def _next_unused(link):
    """The way back from `_link`."""
    start = link & _LOWER_HALF
    return np.int64(-1) if start == _LOWER_HALF else np.int64(start) << SMALLEST_TABLE_BITS


@kernel
def _put(slots, start, bits, slot):
    last = (np.uint64(1) << bits) - np.uint64(1)
    at = _home(slot >> np.uint64(32), bits)
    while slots[start + at] != _EMPTY:
        at = (at + np.uint64(1)) & last
    slots[start + at] = slot


@kernel
def _extend_table(block, bits, blocks, store, counts):
    """Move a block's slots to a table of the given size; False, and nothing changed, where there is no room."""
    old = blocks.table[block]
    old_start, old_bits = old >> 6, old & 63
    start = _new_table(bits, store, counts)
    if start < 0:
        return False
    for at in range(old_start, old_start + (1 << old_bits)):
        if store.slots[at] != _EMPTY:
            _put(store.slots, np.uint64(start), np.uint64(bits), store.slots[at])
    blocks.table[block] = start << 6 | bits
    while not atomic.take(counts, TABLE_LOCK):
        pass
    store.slots[old_start] = _link(store.free[old_bits])
    store.free[old_bits] = old_start
    atomic.give(counts, TABLE_LOCK)
    return True


@kernel
def _insert(block, feature, blocks, store, counts):
    """The address of the record of a feature that had none; zeros, unless another thread was faster.

    Missing where the table is full and there is no room for a larger one: other threads have added features
    to this block since this one planned its row. Alone, a thread has planned enough."""
    while not atomic.take(blocks.lock, block):
        pass
    table = np.uint64(blocks.table[block])
    start, bits = table >> np.uint64(6), table & np.uint64(63)
    last, at = (np.uint64(1) << bits) - np.uint64(1), _home(feature, bits)
    while store.slots[start + at] != _EMPTY:
        slot = store.slots[start + at]
        if slot >> np.uint64(32) == np.uint64(feature):
            atomic.give(blocks.lock, block)
            return _address(store, slot & _LOWER_HALF)
        at = (at + np.uint64(1)) & last
    full = 4 * (blocks.filled[block] + 1) > 3 << bits
    if full and not _extend_table(block, np.int64(bits) + 1, blocks, store, counts):
        atomic.give(blocks.lock, block)
        return _MISSING
    record = np.uint64(atomic.fetch_add(counts, RECORDS, 1))
    slot = np.uint64(feature) << np.uint64(32) | record
    blocks.filled[block] += 1
    if full:
        table = np.uint64(blocks.table[block])
        _put(store.slots, table >> np.uint64(6), table & np.uint64(63), slot)
    else:
        store.slots[start + at] = slot
    atomic.give(blocks.lock, block)
    return _address(store, record)


# --- the classifiers of a block ------------------------------------------------------------------------------


@inline_kernel
def _scores(block, values, blocks, found):
    """The scores of sixteen classifiers for a row, once its records are found."""
    score = vector.load(blocks.bias, np.uint64(block) * np.uint64(LANES))
    for p in range(np.uint64(values.size)):
        if found[p] != _MISSING:
            score = vector.multiply_add(vector.splat(values[p]), vector.load_at(found[p]), score)
    return score


@inline_kernel
def _moved(weight, squares, step, learner):
    """A weight after a step of AdaGrad (its sum of squares includes the step), or of plain gradient descent."""
    rate = vector.multiply(step, vector.splat(learner[0]))
    if learner[3] > _ZERO:
        rate = vector.divide(rate, vector.square_root(vector.add(squares, vector.splat(learner[1]))))
    return vector.subtract(weight, rate)


@kernel
def _update_block(block, targets, indices, values, blocks, store, counts, found, learner):
    """A_online.Update for every classifier of a block: logistic loss, positive in the lanes of `targets`.

    Positive and negative updates mirror each other bit for bit, which is what the inverted auxiliary
    classifier needs. `learner`: the rate, AdaGrad's epsilon, the least gradient, whether AdaGrad at all.
    """
    _find_all(block, indices, blocks, store, found)
    one = vector.splat(_ONE)
    sign = vector.choose(targets, one, vector.splat(-_ONE))
    margin = vector.multiply(sign, _scores(block, values, blocks, found))
    wrong = vector.divide(one, vector.add(one, vector.exponential(margin)))
    matters = vector.bits_above(wrong, vector.splat(learner[2])) & blocks.lanes[block]
    if matters == 0:
        return
    gradient = vector.choose(matters, vector.multiply(sign, wrong), vector.splat(_ZERO))
    gradient = vector.subtract(vector.splat(_ZERO), gradient)
    first = np.uint64(block) * np.uint64(LANES)
    squares = vector.multiply_add(gradient, gradient, vector.load(blocks.bias_squares, first))
    vector.store(blocks.bias_squares, first, squares)
    vector.store(blocks.bias, first, _moved(vector.load(blocks.bias, first), squares, gradient, learner))
    for p in range(np.uint64(values.size)):
        address = found[p]
        if address == _MISSING:
            address = _insert(block, indices[p], blocks, store, counts)
            if address == _MISSING:
                continue
        step = vector.multiply(gradient, vector.splat(values[p]))
        squares = vector.multiply_add(step, step, vector.load_at(_squares(address)))
        vector.store_at(_squares(address), squares)
        vector.store_at(address, _moved(vector.load_at(address), squares, step, learner))


# --- the tree grows --------------------------------------------------------------------------------------


@kernel
def _new_node(parent, label, nodes, counts):
    node = counts[NODES]
    counts[NODES] += 1
    nodes.parent[node], nodes.label[node], nodes.place[node] = parent, label, -1
    nodes.first_block[node], nodes.last_block[node] = -1, -1
    nodes.n_children[node], nodes.n_inner[node] = 0, 0
    nodes.n_leaves[node] = 1 if label >= 0 else 0
    return node


@kernel
def _new_block(bits, blocks, store, counts):
    """A block whose classifiers know nothing, all of them learning."""
    block = counts[BLOCKS]
    counts[BLOCKS] += 1
    blocks.following[block], blocks.used[block], blocks.filled[block] = -1, 0, 0
    blocks.lanes[block], blocks.lock[block] = _ALL_LANES, 0
    blocks.child[block * LANES : (block + 1) * LANES] = -1
    blocks.bias[block * LANES : (block + 1) * LANES] = _ZERO
    blocks.bias_squares[block * LANES : (block + 1) * LANES] = _ZERO
    blocks.table[block] = _new_table(bits, store, counts) << 6 | bits
    return block


@kernel
def _copy_of_lane(source, lane, blocks, store, counts):
    """A new block, all of whose classifiers are copies of one."""
    table = blocks.table[source]
    start, bits = table >> 6, table & 63
    block = _new_block(bits, blocks, store, counts)
    blocks.bias[block * LANES : (block + 1) * LANES] = blocks.bias[source * LANES + lane]
    blocks.bias_squares[block * LANES : (block + 1) * LANES] = blocks.bias_squares[source * LANES + lane]
    new_start = blocks.table[block] >> 6
    for at in range(start, start + (1 << bits)):
        slot = store.slots[at]
        if slot == _EMPTY:
            continue
        record = np.uint64(atomic.fetch_add(counts, RECORDS, 1))
        store.slots[new_start + at - start] = slot & _UPPER_HALF | record
        old, new = _address(store, slot & _LOWER_HALF), _address(store, record)
        vector.store_at(new, vector.splat(vector.extract(vector.load_at(old), lane)))
        vector.store_at(_squares(new), vector.splat(vector.extract(vector.load_at(_squares(old)), lane)))
    blocks.filled[block] = blocks.filled[source]
    return block


@kernel
def _invert_first_lane(block, blocks, store):
    """The classifier of lane 0 becomes its inverse: every update it had counts the other way round."""
    blocks.bias[block * LANES] = _ZERO - blocks.bias[block * LANES]  # not -0 for one that learned nothing
    table = blocks.table[block]
    zero = vector.splat(_ZERO)
    for at in range(table >> 6, (table >> 6) + (1 << (table & 63))):
        if store.slots[at] != _EMPTY:
            address = _address(store, store.slots[at] & _LOWER_HALF)
            weights = vector.load_at(address)
            vector.store_at(address, vector.choose(np.uint32(1), vector.subtract(zero, weights), weights))


@kernel
def _put_child(child, parent, block, nodes, blocks, counts):
    """The child takes the next free lane of a block."""
    lane = blocks.used[block]
    blocks.used[block] = lane + 1
    blocks.child[block * LANES + lane] = child
    nodes.place[child] = block * LANES + lane
    nodes.parent[child] = parent
    nodes.n_children[parent] += 1
    nodes.n_inner[parent] += nodes.label[child] < 0
    counts[WIDEST] = max(counts[WIDEST], nodes.n_children[parent])
    return lane


@inline_kernel
def _may_grow(node, policy, arity, nodes):
    """Whether a node may get more children, or a node inserted below it: then it keeps its auxiliary
    classifier."""
    if policy == COMPLETE:
        return nodes.n_children[node] == 0
    if policy == ONE_LEVEL:
        return node == 0
    return nodes.n_inner[node] == 0 or nodes.n_children[node] < arity


@inline_kernel
def _leaf_may_grow(leaf, policy, nodes):
    """Whether a new leaf needs an auxiliary classifier: with the paper's policies, beside inner nodes only."""
    if policy == COMPLETE:
        return True
    return policy != ONE_LEVEL and nodes.n_inner[nodes.parent[leaf]] > 0


@kernel
def _insert_node(node, policy, nodes, blocks, store, leaf_of, counts):
    """Algorithm 5, InsertNode: a new node becomes the only child of `node` and takes over what was below."""
    label = nodes.label[node]
    new = _new_node(node, label, nodes, counts)
    block = nodes.last_block[node]
    if label >= 0:
        leaf_of[label] = new
        nodes.label[node] = -1
        parent = nodes.parent[node]
        if parent >= 0:
            nodes.n_inner[parent] += 1
        if policy == COMPLETE:
            nodes.first_block[new] = nodes.last_block[new] = _copy_of_lane(block, 0, blocks, store, counts)
    else:
        b = nodes.first_block[node]
        nodes.first_block[new], nodes.last_block[new] = b, block
        while b >= 0:
            for lane in range(blocks.used[b]):
                nodes.parent[blocks.child[b * LANES + lane]] = new
            b = blocks.following[b]
        nodes.n_children[new], nodes.n_inner[new] = nodes.n_children[node], nodes.n_inner[node]
        nodes.n_leaves[new] = nodes.n_leaves[node]
        nodes.n_children[node], nodes.n_inner[node] = 0, 0
        block = _copy_of_lane(block, LANES - 1, blocks, store, counts)
        nodes.first_block[node] = nodes.last_block[node] = block
    _invert_first_lane(block, blocks, store)
    _put_child(new, node, block, nodes, blocks, counts)


@kernel
def _add_leaf(label, parent, policy, arity, nodes, blocks, store, leaf_of, counts):
    """Algorithm 6, AddLeaf: the new leaf is the inverse of the auxiliary classifier of its parent."""
    leaf = _new_node(parent, label, nodes, counts)
    leaf_of[label] = leaf
    block = nodes.last_block[parent]
    lane = _put_child(leaf, parent, block, nodes, blocks, counts)
    v = parent
    while v >= 0:
        nodes.n_leaves[v] += 1
        v = nodes.parent[v]
    if not _may_grow(parent, policy, arity, nodes):
        blocks.lanes[block] = (np.uint32(1) << np.uint32(blocks.used[block])) - np.uint32(1)
    elif blocks.used[block] == LANES:
        new = _copy_of_lane(block, lane, blocks, store, counts)
        blocks.following[block] = new
        nodes.last_block[parent] = new
    if _leaf_may_grow(leaf, policy, nodes):
        new = _new_block(SMALLEST_TABLE_BITS, blocks, store, counts)
        nodes.first_block[leaf] = nodes.last_block[leaf] = new


@kernel
def plant(first_child, n_children, label, growth, nodes, blocks, store, leaf_of, counts):
    """A tree with these nodes, whose classifiers know nothing; one node without a label is an empty tree."""
    policy, arity = growth[0], growth[1]
    _put_root_above(_new_block(SMALLEST_TABLE_BITS, blocks, store, counts), blocks)
    n = label.size
    for node in range(n):
        _new_node(-1, label[node], nodes, counts)
        if label[node] >= 0:
            leaf_of[label[node]] = node
    nodes.place[0] = 0
    for node in range(n):
        if node > 0 and n_children[node] == 0 and not _leaf_may_grow(node, policy, nodes):
            continue
        block = _new_block(SMALLEST_TABLE_BITS, blocks, store, counts)
        nodes.first_block[node] = nodes.last_block[node] = block
        for child in range(first_child[node], first_child[node] + n_children[node]):
            if blocks.used[block] == LANES:
                block = _follow(block, node, nodes, blocks, store, counts)
            _put_child(child, node, block, nodes, blocks, counts)
        if not _may_grow(node, policy, arity, nodes):
            blocks.lanes[block] = (np.uint32(1) << np.uint32(blocks.used[block])) - np.uint32(1)
        elif blocks.used[block] == LANES:
            _follow(block, node, nodes, blocks, store, counts)
    for node in range(n - 1, 0, -1):  # parents come before children
        nodes.n_leaves[nodes.parent[node]] += nodes.n_leaves[node]


@kernel
def _put_root_above(block, blocks):
    blocks.child[block * LANES], blocks.used[block], blocks.lanes[block] = 0, 1, np.uint32(1)


@kernel
def _follow(block, node, nodes, blocks, store, counts):
    new = _new_block(SMALLEST_TABLE_BITS, blocks, store, counts)
    blocks.following[block] = new
    nodes.last_block[node] = new
    return new


@inline_kernel
def _random_below(n, counts):
    state = np.uint64(counts[RANDOM_STATE]) * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
    counts[RANDOM_STATE] = np.int64(state)
    return np.int64(((state >> np.uint64(32)) * np.uint64(n)) >> np.uint64(32))


@kernel
def _nth_child(node, number, nodes, blocks):
    block = nodes.first_block[node]
    while number >= LANES:
        block, number = blocks.following[block], number - LANES
    return blocks.child[block * LANES + number]


@inline_kernel
def _emptiness(n_leaves, mean_leaves, printed):
    """How much a child would do for the balance of the tree: the logarithm of how many leaves it would have
    on average over how many it has. The paper prints the latter outside of the logarithm."""
    return np.log(mean_leaves) / n_leaves if printed else np.log(mean_leaves / n_leaves)


@kernel
def _best_child(node, indices, values, alpha, printed, nodes, blocks, store, found, room):
    """The child that suits the row and keeps the tree balanced (Algorithm 8, line 6)."""
    mean_leaves = nodes.n_leaves[node] / nodes.n_children[node]
    best, best_score = -1, -np.inf
    block = nodes.first_block[node]
    while block >= 0:
        _find_all(block, indices, blocks, store, found)
        vector.store(room, np.uint64(0), _logistic(_scores(block, values, blocks, found)))
        for lane in range(blocks.used[block]):
            child = blocks.child[block * LANES + lane]
            score = (1.0 - alpha) * room[lane] + alpha * _emptiness(
                nodes.n_leaves[child], mean_leaves, printed
            )
            if score > best_score:
                best, best_score = child, score
        block = blocks.following[block]
    return best


@kernel
def _only_leaf(node, nodes, blocks):
    """The one leaf among the children of a node, or -1 where there is none, or more than one."""
    if nodes.n_children[node] - nodes.n_inner[node] != 1:
        return -1
    block = nodes.first_block[node]
    while block >= 0:
        for lane in range(blocks.used[block]):
            child = blocks.child[block * LANES + lane]
            if nodes.label[child] >= 0:
                return child
        block = blocks.following[block]
    return -1


@kernel
def _select(indices, values, growth, nodes, blocks, store, counts, found, room):
    """A_policy: the node to extend. Algorithm 8 for the random and the best-greedy policy."""
    policy, arity, most_children, alpha, together = growth
    node = 0
    if policy == COMPLETE:  # the bits of the number of leaves lead to the leaf that is next in breadth
        level = 1
        while nodes.n_leaves[0] >> level > 0:
            level += 1
        while nodes.n_children[node] > 0:
            level -= 1
            bit = (nodes.n_leaves[0] >> max(0, level - 1)) & 1
            node = _nth_child(node, min(bit, nodes.n_children[node] - 1), nodes, blocks)
        return node
    if policy == ONE_LEVEL:
        return node
    before = counts[SELECTED]  # where the row's last new label went
    if before >= 0 and (together or not _is_full(before, most_children, nodes)):
        node = before
    if node != before or _only_leaf(node, nodes, blocks) < 0:
        while nodes.n_inner[node] > 0 and nodes.n_children[node] >= arity:
            if policy == RANDOM:
                node = _nth_child(node, _random_below(nodes.n_children[node], counts), nodes, blocks)
            else:
                printed = policy == BEST_GREEDY_PRINTED
                node = _best_child(node, indices, values, alpha, printed, nodes, blocks, store, found, room)
    leaf = _only_leaf(node, nodes, blocks)
    if leaf >= 0 and nodes.first_block[leaf] >= 0:
        node = leaf
    counts[SELECTED] = node
    return node


@inline_kernel
def _is_full(node, most_children, nodes):
    return nodes.n_inner[node] == 0 and nodes.n_children[node] >= most_children


@kernel
def _room_to_extend(node, nodes, blocks, store, counts):
    block = nodes.last_block[node]
    counts[SLOTS_WANTED] = (2 << (blocks.table[block] & 63)) + (4 << SMALLEST_TABLE_BITS)
    counts[RECORDS_WANTED] = 2 * blocks.filled[block]
    return (
        counts[NODES] + 2 <= nodes.parent.size
        and counts[BLOCKS] + 4 <= blocks.following.size
        and counts[SLOTS] + counts[SLOTS_WANTED] <= store.slots.size
        and counts[RECORDS] + counts[RECORDS_WANTED] <= store.chunks.size << CHUNK_BITS
    )


@kernel
def _update_tree(labels, indices, values, growth, nodes, blocks, store, leaf_of, counts, found, room):
    """Algorithm 4, UpdateTree, for the labels of one row; False where there was no room for all of them."""
    policy, arity, most_children = growth[0], growth[1], growth[2]
    for j in range(labels.size):
        label = labels[j]
        if leaf_of[label] >= 0:
            continue
        if nodes.n_leaves[0] == 0:  # the first label of all
            nodes.label[0], nodes.n_leaves[0], leaf_of[label] = label, 1, 0
            continue
        before, random_state = counts[SELECTED], counts[RANDOM_STATE]
        node = _select(indices, values, growth, nodes, blocks, store, counts, found, room)
        if not _room_to_extend(node, nodes, blocks, store, counts):
            counts[SELECTED], counts[RANDOM_STATE] = before, random_state  # to select the same again
            return False
        if nodes.label[node] >= 0 or (policy != ONE_LEVEL and _is_full(node, most_children, nodes)):
            _insert_node(node, policy, nodes, blocks, store, leaf_of, counts)
        _add_leaf(label, node, policy, arity, nodes, blocks, store, leaf_of, counts)
    counts[SELECTED] = -1
    return True


@kernel
def grow_tree(
    indptr, indices, values, target_indptr, target_ids, order, start, growth, nodes, blocks, store, leaf_of, counts,
    found,
):  # fmt: skip
    """Give every new label of the rows order[start:] a leaf, without learning anything else; returns how far
    it came."""
    room = np.empty(LANES, np.float32)
    for i in range(start, order.size):
        row = order[i]
        labels = target_ids[target_indptr[row] : target_indptr[row + 1]]
        x = slice(indptr[row], indptr[row + 1])
        if not _update_tree(
            labels, indices[x], values[x], growth, nodes, blocks, store, leaf_of, counts, found, room
        ):
            return i
    return order.size


# --- learning --------------------------------------------------------------------------------------------


@kernel
def _assign_to_nodes(labels, nodes, leaf_of, scratch):
    """Algorithm 9, AssignToNodes: collects the positive nodes, and marks each in its parent's block. Negative
    nodes are the other children of positive ones: they learn with their block."""
    count = 0
    for j in range(labels.size):
        node = leaf_of[labels[j]]
        while node >= 0 and not scratch.is_positive[node]:
            scratch.is_positive[node] = True
            scratch.positive[count] = node
            count += 1
            place = nodes.place[node]
            scratch.targets[place >> 4] |= np.uint32(1) << np.uint32(place & 15)
            node = nodes.parent[node]
    return count


@inline_kernel
def _slots_needed(block, n_features, blocks):
    """Slots that a table may take on its way to room for so many more features."""
    n_records = blocks.filled[block] + n_features
    return 2 << _table_bits(n_records) if 4 * n_records > 3 << (blocks.table[block] & 63) else 0


@kernel
def _plan(count, n_features, nodes, blocks, store, counts, scratch):
    """Reserve what the update of a row may take; the records and slots planned, or (-1, 0) without room."""
    records, slots = n_features, _slots_needed(0, n_features, blocks)
    for i in range(count):
        block = nodes.first_block[scratch.positive[i]]
        while block >= 0:
            records += n_features
            slots += _slots_needed(block, n_features, blocks)
            block = blocks.following[block]
    others = atomic.fetch_add(counts, RECORDS_PLANNED, records)
    other_slots = atomic.fetch_add(counts, SLOTS_PLANNED, slots)
    if (
        counts[RECORDS] + others + records > store.chunks.size << CHUNK_BITS
        or counts[SLOTS] + other_slots + slots > store.slots.size
    ):
        atomic.fetch_add(counts, RECORDS_PLANNED, -records)
        atomic.fetch_add(counts, SLOTS_PLANNED, -slots)
        counts[RECORDS_WANTED], counts[SLOTS_WANTED] = records, slots
        return -1, 0
    return records, slots


@kernel
def _update_classifiers(
    labels, indices, values, crowned, nodes, blocks, store, leaf_of, counts, scratch, learner
):
    """Algorithm 7, UpdateClassifiers, for one row; False, and nothing changed, where there was no room."""
    count = _assign_to_nodes(labels, nodes, leaf_of, scratch)
    records, slots = _plan(count, indices.size, nodes, blocks, store, counts, scratch)
    if records >= 0 and crowned:
        targets = np.uint32(1 if count else 0)
        _update_block(0, targets, indices, values, blocks, store, counts, scratch.found, learner)
        counts[UPDATES] += 1
    scratch.targets[0] = 0
    for i in range(count):
        node = scratch.positive[i]
        scratch.is_positive[node] = False
        block = nodes.first_block[node]
        last = block
        while block >= 0:
            if records >= 0:
                _update_block(
                    block, scratch.targets[block], indices, values, blocks, store, counts, scratch.found, learner
                )  # fmt: skip
            scratch.targets[block] = 0
            last, block = block, blocks.following[block]
        if records >= 0 and last >= 0:
            counts[UPDATES] += nodes.n_children[node]
            counts[AUXILIARY_UPDATES] += blocks.lanes[last] == _ALL_LANES and blocks.used[last] < LANES
    if records < 0:
        return False
    atomic.fetch_add(counts, RECORDS_PLANNED, -records)
    atomic.fetch_add(counts, SLOTS_PLANNED, -slots)
    return True


@kernel
def learn(
    indptr, indices, values, target_indptr, target_ids, order, start, crowned, rates, constants, growth, nodes, blocks,
    store, leaf_of, counts, scratch,
):  # fmt: skip
    """Algorithm 3, OPLT.Train, on the rows order[start:]; with a tree that has all labels, Algorithm 1.

    Returns the number of rows done, fewer than there are where room is needed before going on. `crowned`:
    the root has a classifier too, which says whether there is any label at all. `constants`: AdaGrad's
    epsilon, the least gradient, whether AdaGrad at all.
    """
    room = np.empty(LANES, np.float32)
    for i in range(start, order.size):
        row = order[i]
        labels = target_ids[target_indptr[row] : target_indptr[row + 1]]
        x = slice(indptr[row], indptr[row + 1])
        learner = (rates[i], constants[0], constants[1], constants[2])
        found = scratch.found
        if not _update_tree(
            labels, indices[x], values[x], growth, nodes, blocks, store, leaf_of, counts, found, room
        ):
            return i
        if not _update_classifiers(
            labels, indices[x], values[x], crowned, nodes, blocks, store, leaf_of, counts, scratch, learner
        ):
            return i
    return order.size


# --- to a file and back ----------------------------------------------------------------------------------


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
            if slot == _EMPTY:
                continue
            features[record] = slot >> np.uint64(32)
            record += 1
            address = _address(store, slot & _LOWER_HALF)
            vector.store(row, np.uint64(0), vector.load_at(address))
            vector.store(row_squares, np.uint64(0), vector.load_at(_squares(address)))
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
            selectable = _leaf_may_grow(node, policy, nodes)
        else:
            selectable = _may_grow(node, policy, arity, nodes)
        last = nodes.last_block[node]
        if selectable and (last < 0 or blocks.used[last] == LANES or blocks.lanes[last] != _ALL_LANES):
            return False
    return True


@kernel
def unpack_records(n_blocks, filled, features, weights, squares, blocks, store, counts):
    """Rebuild the tables and records of all blocks; False if a feature comes twice in a block."""
    record, at = 0, 0
    row, row_squares = np.zeros(LANES, np.float32), np.zeros(LANES, np.float32)
    for block in range(n_blocks):
        width = stored_lanes(blocks.used[block], blocks.lanes[block])
        bits = _table_bits(filled[block])
        blocks.table[block] = _new_table(bits, store, counts) << 6 | bits
        for _ in range(filled[block]):
            for lane in range(LANES):
                row[lane] = weights[at + min(lane, width - 1)]
                row_squares[lane] = squares[at + min(lane, width - 1)] if squares.size else _ZERO
            address = _insert(block, features[record], blocks, store, counts)
            vector.store_at(address, vector.load(row, np.uint64(0)))
            vector.store_at(_squares(address), vector.load(row_squares, np.uint64(0)))
            record, at = record + 1, at + width
        if blocks.filled[block] != filled[block]:
            return False
    return True


# --- searching -------------------------------------------------------------------------------------------


@inline_kernel
def _logistic(score):
    one = vector.splat(_ONE)
    return vector.divide(
        one, vector.add(one, vector.exponential(vector.subtract(vector.splat(_ZERO), score)))
    )


@kernel
def _expand(node, above, indices, values, one_label, nodes, blocks, store, found, scores):
    """The probabilities of a node's children: `above`, that of the node, times what their classifiers say.
    Where a row has one label, exactly one child is right and they are scaled to sum to one."""
    block, start = nodes.first_block[node], 0
    while block >= 0:
        _find_all(block, indices, blocks, store, found)
        vector.store(scores, np.uint64(start), _logistic(_scores(block, values, blocks, found)))
        start += LANES
        block = blocks.following[block]
    n = nodes.n_children[node]
    scale = above
    if one_label:
        total = _ZERO
        for c in range(n):
            total += scores[c]
        scale = above / total
    for c in range(n):
        scores[c] *= scale
    return n


@kernel
def _root_probability(indices, values, one_label, blocks, store, found, scores):
    if one_label:
        return _ONE
    _find_all(0, indices, blocks, store, found)
    vector.store(scores, np.uint64(0), _logistic(_scores(0, values, blocks, found)))
    return scores[0]


@kernel
def _rooms(indptr, widest):
    """Scratch for one row: addresses of its records, scores of a node's children."""
    longest = 0
    for i in range(indptr.size - 1):
        longest = max(longest, indptr[i + 1] - indptr[i])
    return np.empty(longest, np.uint64), np.empty(widest + 2 * LANES, np.float32)


@kernel
def beam_search(
    indptr, indices, values, one_label, n_nodes, widest, nodes, blocks, store, width, ids, probabilities
):
    """The best labels of each row among those that a beam of `width` nodes a level reaches."""
    found, scores = _rooms(indptr, widest)
    beam, beam_scores = np.empty(width, np.int64), np.empty(width, np.float32)
    following, following_scores = np.empty(width, np.int64), np.empty(width, np.float32)
    k = ids.shape[1]
    for row in range(indptr.size - 1):
        x = slice(indptr[row], indptr[row + 1])
        best, best_scores = ids[row], probabilities[row]
        root = _root_probability(indices[x], values[x], one_label, blocks, store, found, scores)
        beam[0], beam_scores[0], size, n_best = 0, root, 1, 0
        if nodes.label[0] >= 0:
            n_best, size = offer(nodes.label[0], root, best, best_scores, 0), 0
        while size:
            n_following = 0
            for j in range(size):
                node = beam[j]
                if n_best == k and beam_scores[j] <= best_scores[k - 1]:
                    break  # sorted: no label below this one or those after it can enter
                _expand(
                    node,
                    beam_scores[j],
                    indices[x],
                    values[x],
                    one_label,
                    nodes,
                    blocks,
                    store,
                    found,
                    scores,
                )
                block, c = nodes.first_block[node], 0
                while block >= 0:
                    for lane in range(blocks.used[block]):
                        child = blocks.child[block * LANES + lane]
                        if nodes.label[child] >= 0:
                            n_best = offer(nodes.label[child], scores[c], best, best_scores, n_best)
                        else:
                            n_following = offer(child, scores[c], following, following_scores, n_following)
                        c += 1
                    block = blocks.following[block]
            beam, following = following, beam
            beam_scores, following_scores = following_scores, beam_scores
            size = n_following
        for j in range(n_best, k):
            best[j] = -1
            best_scores[j] = _ZERO


@kernel
def exact_search(
    indptr, indices, values, one_label, n_nodes, widest, nodes, blocks, store, ids, probabilities
):
    """Algorithm 10, uniform-cost search: the true top k of each row."""
    found, scores = _rooms(indptr, widest)
    heap_nodes, heap_scores = np.empty(n_nodes, np.int64), np.empty(n_nodes, np.float32)
    k = ids.shape[1]
    bound, bound_nodes = np.empty(k, np.float32), np.empty(k, np.int64)
    for row in range(indptr.size - 1):
        x = slice(indptr[row], indptr[row + 1])
        root = _root_probability(indices[x], values[x], one_label, blocks, store, found, scores)
        size = push(heap_nodes, heap_scores, 0, 0, root)
        n_bound, n_found = 0, 0
        while size and n_found < k:
            size = pop(heap_nodes, heap_scores, size)
            node, score = heap_nodes[size], heap_scores[size]
            if nodes.label[node] >= 0:
                ids[row, n_found] = nodes.label[node]
                probabilities[row, n_found] = score
                n_found += 1
                continue
            _expand(node, score, indices[x], values[x], one_label, nodes, blocks, store, found, scores)
            block, c = nodes.first_block[node], 0
            while block >= 0:
                for lane in range(blocks.used[block]):
                    child = blocks.child[block * LANES + lane]
                    if n_bound < k or scores[c] >= bound[k - 1]:
                        size = push(heap_nodes, heap_scores, size, child, scores[c])
                        if nodes.label[child] >= 0:
                            n_bound = offer(child, scores[c], bound_nodes, bound, n_bound)
                    c += 1
                block = blocks.following[block]
        for j in range(n_found, k):
            ids[row, j] = -1
            probabilities[row, j] = _ZERO


@kernel
def all_probabilities(indptr, indices, values, one_label, n_nodes, widest, nodes, blocks, store, out):
    """The probability of every label for each row: every node is visited. Labels without a leaf have none."""
    found, scores = _rooms(indptr, widest)
    waiting, above = np.empty(n_nodes, np.int64), np.empty(n_nodes, np.float32)
    for row in range(indptr.size - 1):
        x = slice(indptr[row], indptr[row + 1])
        out[row] = _ZERO
        waiting[0], size = 0, 1
        above[0] = _root_probability(indices[x], values[x], one_label, blocks, store, found, scores)
        while size:
            size -= 1
            node = waiting[size]
            if nodes.label[node] >= 0:
                out[row, nodes.label[node]] = above[size]
                continue
            _expand(node, above[size], indices[x], values[x], one_label, nodes, blocks, store, found, scores)
            block, c = nodes.first_block[node], 0
            while block >= 0:
                for lane in range(blocks.used[block]):
                    waiting[size] = blocks.child[block * LANES + lane]
                    above[size] = scores[c]
                    size, c = size + 1, c + 1
                block = blocks.following[block]


@kernel
def probabilities_of(
    indptr, indices, values, one_label, n_nodes, widest, nodes, blocks, store, leaf_of, ids, out
):
    """The probabilities of given labels (0 for -1): only the nodes above them are visited, each once a row."""
    found, scores = _rooms(indptr, widest)
    of_node = np.empty(n_nodes, np.float32)
    known_in = np.full(n_nodes, -1, np.int64)  # the row for which a node's probability is known
    path = np.empty(n_nodes, np.int64)
    for row in range(indptr.size - 1):
        x = slice(indptr[row], indptr[row + 1])
        of_node[0] = _root_probability(indices[x], values[x], one_label, blocks, store, found, scores)
        known_in[0] = row
        for j in range(ids.shape[1]):
            leaf = leaf_of[ids[row, j]] if ids[row, j] >= 0 else -1
            if leaf < 0:
                out[row, j] = _ZERO
                continue
            node, length = leaf, 0
            while known_in[node] != row:
                node = nodes.parent[node]
                path[length] = node
                length += 1
            for step in range(length - 1, -1, -1):
                node = path[step]
                _expand(
                    node, of_node[node], indices[x], values[x], one_label, nodes, blocks, store, found, scores
                )
                block, c = nodes.first_block[node], 0
                while block >= 0:
                    for lane in range(blocks.used[block]):
                        child = blocks.child[block * LANES + lane]
                        of_node[child], known_in[child] = scores[c], row
                        c += 1
                    block = blocks.following[block]
            out[row, j] = of_node[leaf]


@kernel
def labels_above(
    indptr, indices, values, one_label, n_nodes, widest, nodes, blocks, store, threshold, starts
):
    """All labels whose probability is at least `threshold`: no branch below it is opened. Those of row i are
    starts[i] to starts[i + 1] of what is returned."""
    found, scores = _rooms(indptr, widest)
    waiting, above = np.empty(n_nodes, np.int64), np.empty(n_nodes, np.float32)
    ids, probabilities = np.empty(64, np.int64), np.empty(64, np.float32)
    count = 0
    for row in range(indptr.size - 1):
        x = slice(indptr[row], indptr[row + 1])
        starts[row] = count
        waiting[0], size = 0, 1
        above[0] = _root_probability(indices[x], values[x], one_label, blocks, store, found, scores)
        while size:
            size -= 1
            node, probability = waiting[size], above[size]
            if probability < threshold:
                continue
            if nodes.label[node] >= 0:
                if count == ids.size:
                    ids = np.append(ids, np.empty(count, np.int64))
                    probabilities = np.append(probabilities, np.empty(count, np.float32))
                ids[count], probabilities[count] = nodes.label[node], probability
                count += 1
                continue
            _expand(node, probability, indices[x], values[x], one_label, nodes, blocks, store, found, scores)
            block, c = nodes.first_block[node], 0
            while block >= 0:
                for lane in range(blocks.used[block]):
                    if scores[c] >= threshold:
                        waiting[size], above[size] = blocks.child[block * LANES + lane], scores[c]
                        size += 1
                    c += 1
                block = blocks.following[block]
    starts[indptr.size - 1] = count
    return ids[:count], probabilities[:count]
