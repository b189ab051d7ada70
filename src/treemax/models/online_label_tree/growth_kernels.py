"""Growth of the tree of an online label tree (Algorithms 4 to 6 and 8 of the paper)."""

from __future__ import annotations

import numpy as np

from treemax.kernels import vector
from treemax.kernels.jit import inline_kernel, kernel
from treemax.models.online_label_tree.kernels import (
    BEST_GREEDY_PRINTED,
    BLOCKS,
    COMPLETE,
    EMPTY,
    FEWEST_LANES,
    FIRST,
    LANES,
    LINES,
    LINES_WANTED,
    LOWER_HALF,
    MOST_LINES,
    NO_GROWTH,
    NODES,
    ONE_LEVEL,
    RANDOM,
    RANDOM_STATE,
    SELECTED,
    SLOTS_WANTED,
    SMALLEST_TABLE_BITS,
    START,
    UPPER_HALF,
    WIDEST,
    ZERO,
    all_lanes,
    block_scores,
    find_all,
    fits,
    lanes_for,
    new_record,
    new_table,
    record_address,
    squares_at,
)
from treemax.models.online_label_tree.search_kernels import logistic


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
def _new_block(bits, width, blocks, store, counts):
    """Allocate a block of untrained classifiers, all of them active."""
    block = counts[BLOCKS]
    counts[BLOCKS] += 1
    if counts[LINES] > MOST_LINES // 2:
        width = LANES  # the numbers of smaller records may not suffice
    blocks.following[block], blocks.used[block], blocks.filled[block] = -1, 0, 0
    blocks.width[block], blocks.lanes[block] = width, all_lanes(width)
    blocks.newest[block], blocks.lock[block] = -1, 0
    blocks.child[block * LANES : (block + 1) * LANES] = -1
    blocks.bias[block * LANES : (block + 1) * LANES] = ZERO
    blocks.bias_squares[block * LANES : (block + 1) * LANES] = ZERO
    blocks.table[block] = new_table(bits, store, counts) << 6 | bits
    return block


@kernel
def _copy_of_lane(source, lane, width, blocks, store, counts):
    """Allocate a block whose classifiers are all copies of one."""
    table = blocks.table[source]
    start, bits, source_width = table >> 6, table & 63, blocks.width[source]
    block = _new_block(bits, width, blocks, store, counts)
    width = blocks.width[block]
    blocks.bias[block * LANES : (block + 1) * LANES] = blocks.bias[source * LANES + lane]
    blocks.bias_squares[block * LANES : (block + 1) * LANES] = blocks.bias_squares[source * LANES + lane]
    new_start, zero = blocks.table[block] >> 6, vector.splat(ZERO)
    for at in range(start, start + (1 << bits)):
        slot = store.slots[at]
        if slot == EMPTY:
            continue
        record = new_record(block, blocks, counts)
        store.slots[new_start + at - start] = slot & UPPER_HALF | record
        old, new = record_address(store, slot & LOWER_HALF, source_width), record_address(store, record, width)
        weights = vector.splat(vector.extract(vector.load_halves_at(old), lane))
        vector.store_halves_at(new, weights, zero, np.uint64(width))
        squares = vector.splat(vector.extract(vector.load_bfloats_at(squares_at(old, source_width)), lane))
        vector.store_bfloats_at(squares_at(new, width), squares, zero, np.uint64(width))
    blocks.filled[block] = blocks.filled[source]
    return block


@kernel
def _invert_first_lane(block, blocks, store):
    """Invert the classifier of lane 0, as if the sign of all its updates were reversed."""
    blocks.bias[block * LANES] = ZERO - blocks.bias[block * LANES]  # not -0 for one that learned nothing
    table, width = blocks.table[block], blocks.width[block]
    zero = vector.splat(ZERO)
    for at in range(table >> 6, (table >> 6) + (1 << (table & 63))):
        if store.slots[at] != EMPTY:
            address = record_address(store, store.slots[at] & LOWER_HALF, width)
            weights = vector.load_halves_at(address)
            inverted = vector.choose(np.uint32(1), vector.subtract(zero, weights), weights)
            vector.store_halves_at(address, inverted, zero, np.uint64(width))


@kernel
def _put_child(child, parent, block, nodes, blocks, counts):
    """Assign the next free lane of a block to a child."""
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
def may_grow(node, policy, arity, nodes):
    """Return whether a node needs its auxiliary classifier, for more children or a node inserted below it."""
    if policy == COMPLETE:
        return nodes.n_children[node] == 0 or 2 < nodes.n_children[node] + 1 <= arity
    if policy == ONE_LEVEL:
        return node == 0
    if policy == NO_GROWTH:
        return False
    return nodes.n_inner[node] == 0 or nodes.n_children[node] < arity


@inline_kernel
def leaf_may_grow(leaf, policy, nodes):
    """Return whether a new leaf needs an auxiliary classifier: with the paper's policies, beside inner nodes only."""
    if policy == COMPLETE:
        return True
    if policy == ONE_LEVEL or policy == NO_GROWTH:
        return False
    return nodes.n_inner[nodes.parent[leaf]] > 0


@kernel
def _lanes_below(node, n_children, n_inner, growth):
    """Return the lanes of the first block of a node with these children, for those that it may get and its auxiliary
    classifier, too."""
    policy, arity, most_children = growth[0], growth[1], growth[2]
    if policy == ONE_LEVEL and node == 0:
        return lanes_for(LANES)
    if policy == ONE_LEVEL or policy == NO_GROWTH:
        return lanes_for(n_children)
    if policy == COMPLETE or n_inner > 0:
        return lanes_for(max(arity, n_children))
    return lanes_for(max(most_children, n_children) + 1)


@kernel
def _insert_node(node, policy, arity, nodes, blocks, store, leaf_of, counts):
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
            copy = _copy_of_lane(block, FIRST, lanes_for(arity), blocks, store, counts)
            nodes.first_block[new] = nodes.last_block[new] = copy
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
        block = _copy_of_lane(block, blocks.width[block] - 1, lanes_for(arity), blocks, store, counts)
        nodes.first_block[node] = nodes.last_block[node] = block
    _invert_first_lane(block, blocks, store)
    _put_child(new, node, block, nodes, blocks, counts)


@kernel
def _add_leaf(label, parent, growth, nodes, blocks, store, leaf_of, counts):
    """Algorithm 6, AddLeaf: the new leaf is the inverse of the auxiliary classifier of its parent."""
    policy, arity = growth[0], growth[1]
    leaf = _new_node(parent, label, nodes, counts)
    leaf_of[label] = leaf
    block = nodes.last_block[parent]
    lane = _put_child(leaf, parent, block, nodes, blocks, counts)
    v = parent
    while v >= 0:
        nodes.n_leaves[v] += 1
        v = nodes.parent[v]
    if not may_grow(parent, policy, arity, nodes):
        blocks.lanes[block] = all_lanes(blocks.used[block])
    elif blocks.used[block] == blocks.width[block]:
        new = _copy_of_lane(block, lane, LANES, blocks, store, counts)
        blocks.following[block] = new
        nodes.last_block[parent] = new
    if leaf_may_grow(leaf, policy, nodes):
        width = _lanes_below(leaf, FIRST, FIRST, growth)
        new = _new_block(SMALLEST_TABLE_BITS, width, blocks, store, counts)
        nodes.first_block[leaf] = nodes.last_block[leaf] = new


@kernel
def plant(first_child, n_children, label, growth, nodes, blocks, store, leaf_of, counts):
    """Write a tree with these nodes and untrained classifiers; one node without a label is an empty tree."""
    policy, arity = growth[0], growth[1]
    _put_root_above(_new_block(SMALLEST_TABLE_BITS, FEWEST_LANES, blocks, store, counts), blocks)
    n = label.size
    for node in range(n):
        _new_node(np.int64(-1), label[node], nodes, counts)
        if label[node] >= 0:
            leaf_of[label[node]] = node
    nodes.place[0] = 0
    for node in range(n):
        if node > 0 and n_children[node] == 0 and not leaf_may_grow(node, policy, nodes):
            continue
        last = first_child[node] + n_children[node]
        n_inner = (label[first_child[node] : last] < 0).sum()
        width = _lanes_below(np.int64(node), n_children[node], np.int64(n_inner), growth)
        block = _new_block(SMALLEST_TABLE_BITS, width, blocks, store, counts)
        nodes.first_block[node] = nodes.last_block[node] = block
        for child in range(first_child[node], last):
            if blocks.used[block] == blocks.width[block]:
                block = _follow(block, node, nodes, blocks, store, counts)
            _put_child(child, node, block, nodes, blocks, counts)
        if not may_grow(node, policy, arity, nodes):
            blocks.lanes[block] = all_lanes(blocks.used[block])
        elif blocks.used[block] == blocks.width[block]:
            _follow(block, node, nodes, blocks, store, counts)
    for node in range(n - 1, 0, -1):  # parents come before children
        nodes.n_leaves[nodes.parent[node]] += nodes.n_leaves[node]


@kernel
def _put_root_above(block, blocks):
    blocks.child[block * LANES], blocks.used[block], blocks.lanes[block] = 0, 1, np.uint32(1)


@kernel
def _follow(block, node, nodes, blocks, store, counts):
    new = _new_block(SMALLEST_TABLE_BITS, LANES, blocks, store, counts)
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
    while number >= blocks.used[block]:
        block, number = blocks.following[block], number - blocks.used[block]
    return blocks.child[block * LANES + number]


@inline_kernel
def _emptiness(n_leaves, mean_leaves, printed):
    """Return the balance term of a child: the logarithm of the mean number of leaves per child over its own. The paper
    prints the latter outside of the logarithm."""
    return np.log(mean_leaves) / n_leaves if printed else np.log(mean_leaves / n_leaves)


@kernel
def _best_child(node, indices, values, alpha, printed, nodes, blocks, store, found, room):
    """Return the child with the best score and balance (Algorithm 8, line 6)."""
    mean_leaves = nodes.n_leaves[node] / nodes.n_children[node]
    best, best_score = -1, -np.inf
    block = nodes.first_block[node]
    while block >= 0:
        find_all(block, indices, blocks, store, found)
        vector.store(room, np.uint64(0), logistic(block_scores(block, values, blocks, found)))
        for lane in range(blocks.used[block]):
            child = blocks.child[block * LANES + lane]
            score = (1.0 - alpha) * room[lane] + alpha * _emptiness(nodes.n_leaves[child], mean_leaves, printed)
            if score > best_score:
                best, best_score = child, score
        block = blocks.following[block]
    return best


@kernel
def _only_leaf(node, nodes, blocks):
    """Return the only leaf among the children of a node, or -1 if there is none or more than one."""
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
def _next_in_breadth(arity, nodes, blocks):
    """Return the first node in breadth, of a complete tree, that is a leaf or has fewer than `arity` children."""
    offset, width = ((nodes.n_leaves[0] - 1) // (arity - 1), np.int64(1))  # the number of full nodes, all before it
    while offset >= width:
        offset, width = offset - width, width * arity
    node, child = FIRST, FIRST
    while nodes.n_children[node] > 0 and not (width == 1 and may_grow(node, COMPLETE, arity, nodes)):
        if width > 1:
            width //= arity
            child, offset = offset // width, offset % width
        node = _nth_child(node, min(child, nodes.n_children[node] - 1), nodes, blocks)
    return node


@kernel
def _select(indices, values, growth, nodes, blocks, store, counts, found, room):
    """A_policy: the node to extend. Algorithm 8 for the random and the best-greedy policy."""
    policy, arity, most_children, alpha, together = growth
    if policy == COMPLETE:
        return _next_in_breadth(arity, nodes, blocks)
    if policy == ONE_LEVEL:
        return FIRST
    node = counts[START]
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
    counts[LINES_WANTED] = 2 * blocks.filled[block]
    return (
        counts[NODES] + 2 <= nodes.parent.size
        and counts[BLOCKS] + 4 <= blocks.following.size
        and fits(counts[LINES_WANTED], counts[SLOTS_WANTED], store, counts)
    )


@kernel
def update_tree(labels, x, growth, nodes, blocks, store, leaf_of, counts, found, room):
    """Algorithm 4, UpdateTree, for the labels of one row; False if the capacity is exhausted."""
    indices, values = x
    policy, arity, most_children = growth[0], growth[1], growth[2]
    if policy == NO_GROWTH:
        return True
    may_split = policy != ONE_LEVEL and policy != COMPLETE
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
        if nodes.label[node] >= 0 or (may_split and _is_full(node, most_children, nodes)):
            _insert_node(node, policy, arity, nodes, blocks, store, leaf_of, counts)
        _add_leaf(label, node, growth, nodes, blocks, store, leaf_of, counts)
    counts[SELECTED] = -1
    return True


@kernel
def grow_tree(rows, targets, order, start, growth, tree, found):
    """Add a leaf for every new label of the rows order[start:], without training; returns the position of the first row
    that is not complete. The arguments are plain tuples, see `learn`."""
    indptr, indices, values = rows
    target_indptr, target_ids, _ = targets
    nodes, blocks, store, leaf_of, counts = tree
    room = np.empty(LANES, np.float32)
    for i in range(start, order.size):
        row = order[i]
        labels = target_ids[target_indptr[row] : target_indptr[row + 1]]
        own = slice(indptr[row], indptr[row + 1])
        x = indices[own], values[own]
        if not update_tree(labels, x, growth, nodes, blocks, store, leaf_of, counts, found, room):
            return i
    return order.size
