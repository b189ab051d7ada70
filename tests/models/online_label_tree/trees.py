"""Random ways to grow, random streams, and what is true of every online tree.

The arrays of a tree are read, to compare classifiers.
"""

import numpy as np
from hypothesis import strategies as st

from tests.models.online_label_tree.reference import as_arrays, random_stream
from treemax.models.online_label_tree import kernels
from treemax.models.online_label_tree.model import OnlineTree
from treemax.models.online_label_tree.training import (
    POLICIES,
    SCHEDULES,
    OnlineTreeSettings,
    empty_tree,
    learn,
    tree_with_structure,
)
from treemax.trees import Tree

LANES = kernels.LANES
CHUNK_LINES = 1 << kernels.CHUNK_BITS
PLAIN = OnlineTreeSettings("best-greedy", 3, 4, 0.75, False, "adagrad", 1.0, 0.01, 0.0)
NEGATIVE_ZERO = 0x8000  # in half precision
NEAR_LANES = (14, 15, 16, 17, 31, 32, 33)


@st.composite
def growths(draw):
    """Ways to grow and to learn, the awkward ones among them."""
    return OnlineTreeSettings(
        policy=draw(st.sampled_from(sorted(POLICIES))),
        arity=draw(st.sampled_from((2, 3, 5, 15, 16, 17, 18))),
        max_leaf=draw(st.sampled_from((2, 3, 5, *NEAR_LANES))),
        alpha=draw(st.sampled_from((0.0, 0.3, 0.75, 1.0))),
        together=draw(st.booleans()),
        schedule=draw(st.sampled_from(SCHEDULES)),
        rate=draw(st.sampled_from((0.1, 1.0, 3.0))),
        epsilon=draw(st.sampled_from((1e-6, 0.01, 1.0))),
        least_gradient=draw(st.sampled_from((0.0, 1e-3, 0.2, 0.5))),
        scale_siblings=draw(st.booleans()),
    )


@st.composite
def streams(draw):
    """(rows, targets, one_label)"""
    one_label = draw(st.booleans())
    stream = random_stream(
        draw(st.integers(0, 2**31)),
        n_rows=draw(st.integers(1, 70)),
        n_labels=draw(st.sampled_from((1, 2, 3, 20, 40, 90))),
        n_features=draw(st.sampled_from((1, 5, 40))),
        most_labels=draw(st.sampled_from((1, 3, 9))),
        one_label=one_label,
    )
    return (*as_arrays(stream), one_label)


def taught(tree, rows, targets, how, seen=0, threads=1):
    """The tree after one pass."""
    tree.reserve_labels(int(max(targets.ids, default=-1)) + 1)
    order = np.arange(len(rows), dtype=np.uint32)
    tree.stream.rows = seen
    for _ in learn(tree, rows, targets, [order], how, 10, threads):
        pass
    return tree


def grown(rows, targets, how, one_label, seed=7):
    return taught(empty_tree(one_label, how, seed), rows, targets, how)


def planted_like(tree, how, seed=7):
    """The same shape, knowing nothing."""
    parent, label = tree.shape()
    ids, own = np.unique(label[label >= 0], return_inverse=True)
    compact = label.copy()
    compact[label >= 0] = own
    if len(ids) == 0:
        return empty_tree(tree.one_label, how, seed)
    return tree_with_structure(Tree.from_parents(parent, compact), tree.one_label, how, seed, ids)


def states(tree):
    """Bit by bit what the classifier of each place (block * 16 + lane) is, AdaGrad's sums included; also of
    the free lane that stands for the auxiliary classifier. Zeros have no sign: w - w is 0 for -w, too."""
    arrays = tree._arrays(resume=True)
    widths, first, start, known = tree._stored_lanes(), 0, 0, {}
    for block, (filled, width) in enumerate(zip(arrays["filled"].tolist(), widths.tolist())):
        features = arrays["features"][first : first + filled]
        pieces = [
            arrays[name][start : start + filled * width].reshape(filled, width) for name in ("weights", "squares")
        ]
        by_feature = np.argsort(features)
        for lane in range(width):
            bits = [piece[by_feature, lane].view(np.uint16) for piece in pieces]
            bits[0][bits[0] == NEGATIVE_ZERO] = 0
            matters = (bits[0] | bits[1]) != 0
            place = block * LANES + lane
            bias = [arrays[name][place : place + 1].tobytes() for name in ("bias", "bias_squares")]
            known[place] = (features[by_feature][matters].tobytes(), *(b[matters].tobytes() for b in bits), *bias)
        first, start = first + filled, start + filled * width
    return known


def pairs_of_nodes(one, other):
    """Which node of one tree is which of the other; the shapes must be the same."""
    pairs = {0: 0}
    np.testing.assert_array_equal(one.leaf_of >= 0, other.leaf_of >= 0)
    for label in np.flatnonzero(one.leaf_of >= 0):
        a, b = int(one.leaf_of[label]), int(other.leaf_of[label])
        while a >= 0:
            assert pairs.setdefault(a, b) == b
            a, b = int(one.nodes.parent[a]), int(other.nodes.parent[b])
        assert b == -1
    assert len(pairs) == len(set(pairs.values())) == one.n_nodes == other.n_nodes
    return pairs


def auxiliary_place(tree, node):
    """Where the auxiliary classifier of a node is, or None."""
    block = int(tree.nodes.last_block[node])
    if block < 0:
        return None
    used, width = int(tree.blocks.used[block]), int(tree.blocks.width[block])
    if tree.blocks.lanes[block] != (1 << width) - 1 or used == width:
        return None
    return block * LANES + used


def assert_same_classifiers(one, other):
    """Every node's classifier, and the auxiliary ones, are the same in every bit."""
    own, others = states(one), states(other)
    for a, b in pairs_of_nodes(one, other).items():
        assert own[int(one.nodes.place[a])] == others[int(other.nodes.place[b])], f"node {a}"
        places = auxiliary_place(one, a), auxiliary_place(other, b)
        assert (places[0] is None) == (places[1] is None), f"auxiliary classifier of node {a}"
        if places[0] is not None:
            assert own[places[0]] == others[places[1]], f"auxiliary classifier of node {a}"


def assert_sound(tree, how, one_thread=True):
    """Everything that holds of the structure after any stream."""
    nodes, blocks, n_nodes, n_blocks = tree.nodes, tree.blocks, tree.n_nodes, tree.n_blocks
    parent, label = tree.shape()
    owned, leaves_below = [0], np.zeros(n_nodes, int)
    assert parent[0] == -1 and (parent[1:] >= 0).all()
    assert blocks.child[0] == 0 and nodes.place[0] == 0 and blocks.used[0] == 1 and blocks.lanes[0] == 1
    for node in range(n_nodes):
        children, block = [], int(nodes.first_block[node])
        while block >= 0:
            owned.append(block)
            used, width = int(blocks.used[block]), int(blocks.width[block])
            assert width in (2, 4, 8, LANES)
            own = blocks.child[block * LANES : (block + 1) * LANES]
            assert (own[:used] >= 0).all() and (own[used:] == -1).all()
            children += own[:used].tolist()
            if blocks.following[block] < 0:
                assert block == nodes.last_block[node]
                assert blocks.lanes[block] in ((1 << used) - 1, (1 << width) - 1)
            else:
                assert used == width and blocks.lanes[block] == (1 << width) - 1
            assert blocks.lock[block] == 0
            block = int(blocks.following[block])
        assert children == sorted(children, key=lambda child: nodes.place[child])
        assert [parent[child] for child in children] == [node] * len(children)
        assert sorted(children) == np.flatnonzero(parent == node).tolist()
        assert nodes.n_children[node] == len(children)
        assert nodes.n_inner[node] == sum(label[child] < 0 for child in children)
        assert (label[node] >= 0) == (not children) or n_nodes == 1
        at = node
        while label[node] >= 0 and at >= 0:
            leaves_below[at] += 1
            at = parent[at]
        assert_may_grow_when_it_should(tree, node, how)
    assert sorted(owned) == list(range(n_blocks)), "every block belongs to one node"
    np.testing.assert_array_equal(nodes.n_leaves[:n_nodes], leaves_below)
    leaves = np.flatnonzero(label >= 0)
    np.testing.assert_array_equal(tree.leaf_of[label[leaves]], leaves)
    assert (tree.leaf_of >= 0).sum() == len(leaves)
    assert_tables_are_sound(tree)
    if one_thread:
        assert_free_lanes_are_alike(tree)
    for count in (kernels.LINES_PLANNED, kernels.SLOTS_PLANNED, kernels.TABLE_LOCK):
        assert tree.counts[count] == 0
    assert tree.counts[kernels.SELECTED] == -1
    assert_nothing_beyond(tree)


def assert_nothing_beyond(tree):
    """What was made larger than needed is still as it was made."""
    assert not any(array[tree.n_nodes :].any() for array in tree.nodes)
    for name, array in zip(tree.blocks._fields, tree.blocks):
        width = LANES if name in ("child", "bias", "bias_squares") else 1
        assert not array[width * tree.n_blocks :].any(), name
    assert not tree.store.slots[tree.n_slots :].any()
    assert not tree.chunks[-1].reshape(-1, 32)[tree.n_lines % CHUNK_LINES :][:1000].any()


def assert_may_grow_when_it_should(tree, node, how):
    """A node that a policy may extend has its auxiliary classifier; others have none."""
    nodes = tree.nodes
    leaf, beside_inner = nodes.n_children[node] == 0, node > 0 and nodes.n_inner[nodes.parent[node]] > 0
    if how.policy == "complete":
        open_ended = leaf
    elif how.policy == "complete-kary":
        open_ended = leaf or 2 <= nodes.n_children[node] < how.arity
    elif how.policy == "none":
        open_ended = False
    elif how.policy == "one-level":
        open_ended = node == 0
    elif leaf:
        open_ended = node == 0 or beside_inner
    else:
        open_ended = nodes.n_inner[node] == 0 or nodes.n_children[node] < how.arity
    assert (auxiliary_place(tree, node) is not None) == open_ended, f"node {node}"


def assert_tables_are_sound(tree):
    """No two tables share a slot, no two slots a record, no two blocks a line, every feature can be found, and every
    search ends: at an empty slot, since no table is filled to more than three quarters. What belongs to no table is in the
    lists of free ones."""
    taken, lines = np.zeros(tree.n_slots, bool), []
    for block in range(tree.n_blocks):
        start, bits = divmod(int(tree.blocks.table[block]), 64)
        assert start + (1 << bits) <= tree.n_slots <= len(tree.store.slots)
        assert not taken[start : start + (1 << bits)].any()
        taken[start : start + (1 << bits)] = True
        slots = tree.store.slots[start : start + (1 << bits)]
        full = slots[slots != kernels.EMPTY]
        assert len(full) == tree.blocks.filled[block] and 4 * len(full) <= 3 << bits
        features = full >> np.uint64(32)
        assert len(np.unique(features)) == len(full)
        records, a_line = full & np.uint64(0xFFFFFFFF), LANES // int(tree.blocks.width[block])
        assert len(np.unique(records)) == len(records)
        lines.append(np.unique(records // np.uint64(a_line)))
        assert len(lines[-1]) == -(-len(records) // a_line), "lines are full but for the last"
        homes = (features * np.uint64(0x9E3779B1) & np.uint64(0xFFFFFFFF)) >> np.uint64(32 - bits)
        for home, at in zip(homes.tolist(), np.flatnonzero(slots != kernels.EMPTY).tolist()):
            between = slots.take(np.arange(home, home + (at - home) % len(slots)), mode="wrap")
            assert (between != kernels.EMPTY).all()
    for bits, start in enumerate(tree.store.free.tolist()):
        while start >= 0:
            assert start + (1 << bits) <= tree.n_slots and not taken[start : start + (1 << bits)].any()
            taken[start : start + (1 << bits)] = True
            link = int(tree.store.slots[start])
            assert link >> 32 == 0xFFFFFFFF
            start = -1 if link == int(kernels.EMPTY) else (link & 0xFFFFFFFF) << int(kernels.SMALLEST_TABLE_BITS)
    assert taken.all()
    numbers = np.concatenate(lines)
    assert len(np.unique(numbers)) == len(numbers) == tree.n_lines
    assert numbers.max(initial=0) < max(1, tree.n_lines)


def record(tree, block, number):
    """Weights and sums of squares of one record."""
    width = int(tree.blocks.width[block])
    chunk, at = divmod(int(number) * 2 * width, 32 << kernels.CHUNK_BITS)
    return tree.chunks[chunk][at : at + 2 * width].reshape(2, width)


def assert_free_lanes_are_alike(tree):
    for node in range(tree.n_nodes):
        place = auxiliary_place(tree, node)
        if place is None:
            continue
        block, lane = divmod(place, LANES)
        start, bits = divmod(int(tree.blocks.table[block]), 64)
        parts = [tree.blocks.bias[block * LANES :][:LANES], tree.blocks.bias_squares[block * LANES :][:LANES]]
        for slot in tree.store.slots[start : start + (1 << bits)]:
            if slot != kernels.EMPTY:
                parts += [*record(tree, block, slot & np.uint64(0xFFFFFFFF))]
        for part in parts:
            assert len({number.tobytes() for number in part[lane : tree.blocks.width[block]]}) == 1


def nested(tree, node=0):
    """The shape, as the reference gives it."""
    if tree.nodes.n_children[node] == 0:
        label = int(tree.nodes.label[node])
        return None if label < 0 else label
    parts, block = [], int(tree.nodes.first_block[node])
    while block >= 0:
        own = tree.blocks.child[block * LANES :][: tree.blocks.used[block]]
        parts += [nested(tree, int(child)) for child in own]
        block = int(tree.blocks.following[block])
    return tuple(parts)


def copied(tree, how, resume=True):
    """The tree after going through its arrays."""
    arrays = {name: array.copy() for name, array in tree._arrays(resume).items()}
    twin = OnlineTree._from_arrays(arrays, tree.one_label, len(tree.leaf_of), tree.random_state, how.growth)
    twin.scale_siblings = how.scale_siblings
    return twin
