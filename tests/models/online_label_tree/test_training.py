"""The growth of the tree in training: its structure, and its classifiers against a slow reference.

The arrays of a tree are read and written by private methods, to compare classifiers and to build damaged trees.
"""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.models.online_label_tree.reference import OF_RECORDS, Reference, as_arrays, random_stream
from treemax.inputs.labels import Targets
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
    the free lane that stands for the auxiliary classifier."""
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


# --- against the reference ----------------------------------------------------------------------------------


def assert_agrees(tree, reference, rows, stream):
    assert nested(tree) == reference.root.nested()
    answers = tree.probabilities(rows)
    expected = np.zeros_like(answers)
    for i, (x, _) in enumerate(stream):
        for label, probability in reference.probabilities(x).items():
            if label is not None:
                expected[i, label] = probability
    np.testing.assert_allclose(answers, expected, atol=OF_RECORDS, rtol=OF_RECORDS)


@pytest.mark.parametrize("one_label", [False, True], ids=["multi-label", "multi-class"])
@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize(("arity", "max_leaf"), [(2, 5), (3, 17), (4, 3)])
@pytest.mark.parametrize("together", [False, True])
def test_the_reference_grows_and_answers_the_same(policy, arity, max_leaf, together, one_label):
    how = replace(PLAIN, policy=policy, arity=arity, max_leaf=max_leaf, together=together)
    how = replace(how, least_gradient=1e-3 if together else 0.0)
    stream = random_stream(arity * 100 + max_leaf, n_rows=80, n_labels=50, one_label=one_label)
    rows, targets = as_arrays(stream)
    reference = Reference(how, one_label, seed=7)
    for x, labels in stream:
        reference.learn(x, labels)
    tree = grown(rows, targets, how, one_label)
    assert_agrees(tree, reference, rows, stream)
    pairs = [(0, reference.root)]
    for node, twin in pairs:
        weights, bias = tree.classifier(node)
        twin_weights, twin_bias = twin.eta.parameters()
        features = sorted(weights.keys() | twin_weights.keys())
        np.testing.assert_allclose(
            [weights.get(f, 0.0) for f in features], [twin_weights.get(f, 0.0) for f in features], atol=OF_RECORDS
        )
        assert bias == pytest.approx(twin_bias, abs=OF_RECORDS)
        children = sorted(np.flatnonzero(tree.nodes.parent[: tree.n_nodes] == node), key=lambda c: tree.nodes.place[c])
        pairs += zip(map(int, children), twin.children)
    assert len(pairs) == tree.n_nodes


@settings(deadline=None, max_examples=30)
@given(growths(), st.booleans(), st.integers(0, 2**31))
def test_the_reference_grows_the_same_from_a_given_tree(how, one_label, seed):
    """With any arity beside any other width, and rows with many new labels."""
    how = replace(how, rate=1.0, epsilon=0.01, schedule="adagrad", least_gradient=0.0)
    stream = random_stream(seed, n_rows=25, n_labels=60, n_features=10, one_label=one_label)
    rows, targets = as_arrays(stream)
    tree = planted_first(targets, how, one_label, seed)
    if how.policy in ("complete", "complete-kary"):
        return  # the tree given is not one
    reference = Reference(how, one_label, seed=7, nested=nested(tree))
    for x, labels in stream:
        reference.learn(x, labels)
    assume(reference.closest > 1e-4)  # closer scores may differ in order in float32
    assert_agrees(taught(tree, rows, targets, how), reference, rows, stream)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_the_reference_is_proper_itself(policy):
    """Algorithm 3 and Algorithm 1 with the tree that it built: the same classifiers."""
    how = replace(PLAIN, policy=policy, arity=2)
    stream = random_stream(3, n_rows=40)
    online = Reference(how, False)
    for x, labels in stream:
        online.learn(x, labels)
    given_tree = Reference(how, False, nested=online.root.nested())
    for x, labels in stream:
        given_tree.learn(x, labels)
    assert online.root.nested() == given_tree.root.nested()
    for one, other in zip(online.nodes(), given_tree.nodes()):
        (weights, bias), (other_weights, other_bias) = one.eta.parameters(), other.eta.parameters()
        assert weights == pytest.approx(other_weights) and bias == pytest.approx(other_bias)


# --- properness and efficiency (Definitions 1 and 2) --------------------------------------------------------


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(growths(), streams())
def test_every_classifier_is_what_it_would_be_with_the_tree_given(how, stream):
    rows, targets, one_label = stream
    tree = grown(rows, targets, how, one_label)
    assert_sound(tree, how)
    assert set(tree.shape()[1][tree.shape()[1] >= 0]) == set(targets.ids.tolist())
    twin = taught(planted_like(tree, how), rows, targets, how)
    assert_sound(twin, how)
    assert_same_classifiers(tree, twin)
    np.testing.assert_array_equal(tree.probabilities(rows), twin.probabilities(rows))


@settings(deadline=None, max_examples=50)
@given(growths(), streams(), st.integers(0, 2**31))
def test_the_same_after_a_warm_start(how, stream, seed):
    """A first tree of any shape over some of the labels, which grows with the others."""
    rows, targets, one_label = stream
    first = taught(planted_first(targets, how, one_label, seed), rows, targets, how)
    assert_sound(first, how)
    twin = taught(planted_like(first, how), rows, targets, how)
    assert_same_classifiers(first, twin)
    np.testing.assert_array_equal(first.probabilities(rows), twin.probabilities(rows))


def planted_first(targets, how, one_label, seed):
    """A random tree over a random half of the labels: nodes of one child, leaves beside inner nodes."""
    random = np.random.RandomState(seed)
    ids = np.unique(targets.ids)
    ids = ids[random.uniform(size=len(ids)) < 0.5]
    if len(ids) == 0:
        return empty_tree(one_label, how, 7)
    parent, label = [-1], [-1]
    for number in range(len(ids)):
        at = int(random.choice([node for node in range(len(label)) if label[node] < 0]))
        while random.uniform() < 0.3:
            parent, label, at = [*parent, at], [*label, -1], len(parent)
        parent, label = [*parent, at], [*label, number]
    tree = Tree.from_parents(parent, label)
    return tree_with_structure(tree, one_label, how, 7, ids)


@settings(deadline=None, max_examples=60)
@given(growths(), streams())
def test_auxiliary_classifiers_at_most_double_the_work(how, stream):
    rows, targets, one_label = stream
    tree = grown(rows, targets, how, one_label)
    updates, auxiliary = tree.counts[kernels.UPDATES], tree.counts[kernels.AUXILIARY_UPDATES]
    roots = len(rows) if one_label else 0  # with one label a row, the root has an auxiliary classifier only
    assert auxiliary <= updates + roots
    twin = taught(planted_like(tree, how), rows, targets, how)
    assert updates <= twin.counts[kernels.UPDATES], "no more updates than with the tree given"
    n_labels = len(np.unique(targets.ids))
    assert tree.n_nodes <= max(1, 2 * n_labels - 1)
    assert tree.n_blocks <= 1 + 2 * tree.n_nodes


def test_work_is_counted_as_the_reference_counts_it():
    how = replace(PLAIN, arity=2, max_leaf=100)
    stream = random_stream(5, n_rows=50)
    reference = Reference(how, False)
    for x, labels in stream:
        reference.learn(x, labels)
    tree = grown(*as_arrays(stream), how, False)
    assert tree.counts[kernels.UPDATES] == reference.regular_updates
    assert tree.counts[kernels.AUXILIARY_UPDATES] <= reference.auxiliary_updates  # it has them everywhere


@settings(deadline=None, max_examples=40)
@given(streams(), st.sampled_from((2, 3, 16)), st.sampled_from((2, 5, 15, 16, 17)), st.booleans(), st.booleans())
def test_nodes_are_as_wide_as_they_may_be(stream, arity, max_leaf, together, greedy):
    rows, targets, one_label = stream
    policy = "best-greedy" if greedy else "random"
    how = replace(PLAIN, policy=policy, arity=arity, max_leaf=max_leaf, together=together)
    nodes, n = (tree := grown(rows, targets, how, one_label)).nodes, tree.n_nodes
    inner = nodes.n_inner[:n] > 0
    assert nodes.n_children[:n][inner].max(initial=0) <= arity
    assert nodes.n_children[:n][~inner].max(initial=0) <= max_leaf
    assert (nodes.n_children[:n][nodes.label[:n] < 0] >= 2).all() or n == 1


@pytest.mark.parametrize("n_labels", [1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33])
def test_the_depth_of_complete_and_one_level_trees(n_labels):
    stream = [([(label % 5, 1.0)], [label]) for label in range(n_labels)]
    for one_label in (False, True):
        complete = grown(*as_arrays(stream), replace(PLAIN, policy="complete"), one_label)
        assert complete.depth == int(np.ceil(np.log2(n_labels)))
        assert complete.n_nodes == 2 * n_labels - 1
        flat = grown(*as_arrays(stream), replace(PLAIN, policy="one-level"), one_label)
        assert flat.depth == min(1, n_labels - 1)


@pytest.mark.parametrize("arity", [2, 3, 4, 16, 17])
def test_a_complete_tree_is_filled_in_breadth(arity):
    """After n labels, all nodes but one have `arity` children or none, and leaves are on two levels."""
    how = replace(PLAIN, policy="complete-kary", arity=arity)
    for n_labels in (1, 2, 3, arity, arity + 1, 2 * arity - 1, 2 * arity, arity**2, arity**2 + 1):
        stream = [([(label % 5, 1.0)], [label]) for label in range(n_labels)]
        for one_label in (False, True):
            tree = grown(*as_arrays(stream), how, one_label)
            children = tree.nodes.n_children[: tree.n_nodes]
            partly = children[(children > 0) & (children < arity)]
            assert len(partly) <= 1 and children.max() <= arity
            assert partly.sum() == ((n_labels - 1) % (arity - 1) or -1) + 1
            levels = {depth_of(tree, leaf) for leaf in tree.leaf_of.tolist()}
            assert max(levels) - min(levels) <= 1
            assert_sound(tree, how)
    if arity == 2:
        binary = grown(*as_arrays(stream), replace(how, policy="complete"), False)
        assert nested(binary) == nested(grown(*as_arrays(stream), how, False))


def depth_of(tree, node):
    depth = 0
    while tree.nodes.parent[node] >= 0:
        node, depth = tree.nodes.parent[node], depth + 1
    return depth


@settings(deadline=None, max_examples=30)
@given(growths(), streams(), st.integers(0, 2**31))
def test_a_tree_that_does_not_grow_learns_its_own_labels_only(how, stream, seed):
    """IPLT-U: the same as Algorithm 1 on the stream without the labels that the tree does not have."""
    rows, targets, one_label = stream
    how = replace(how, policy="none")
    tree = planted_first(targets, how, one_label, seed)
    assume(tree.n_nodes > 1)
    tree.reserve_labels(int(targets.ids.max()) + 1)
    known = tree.leaf_of[targets.ids] >= 0
    kept_before = np.concatenate([[0], np.cumsum(known)])
    kept = Targets(kept_before[targets.indptr], targets.ids[known])
    twin = planted_first(targets, how, one_label, seed)
    shape = nested(tree)
    taught(tree, rows, targets, how)
    assert nested(tree) == shape
    assert_sound(tree, how)
    taught(twin, rows, kept, how)
    twin.reserve_labels(len(tree.leaf_of))
    assert_same_classifiers(tree, twin)


# --- estimates (Theorem 1) -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_the_error_of_a_label_is_bounded_by_those_on_its_path(seed):
    """Theorem 1, for instances whose distribution over all label sets is known."""
    random, n_labels, n_instances = np.random.RandomState(seed), 6, 4
    sets = np.array([[i >> j & 1 for j in range(n_labels)] for i in range(1 << n_labels)], dtype=bool)
    chances = random.dirichlet(np.full(len(sets), 0.05), size=n_instances)
    stream = []
    for _ in range(400):
        instance = random.randint(n_instances)
        labels = np.flatnonzero(sets[random.choice(len(sets), p=chances[instance])]).tolist()
        stream.append(([(instance, 1.0)], labels))
    rows, targets = as_arrays(stream)
    tree = grown(rows, targets, replace(PLAIN, arity=2, max_leaf=2), False)
    parent, label = tree.shape()
    below = np.zeros((tree.n_nodes, n_labels), dtype=bool)
    for leaf in np.flatnonzero(label >= 0):
        node = leaf
        while node >= 0:
            below[node, label[leaf]] = True
            node = parent[node]
    any_below = (sets[:, None, :] & below).any(axis=2)  # z of equation 1, of every set and node
    one_each, _ = as_arrays([([(instance, 1.0)], []) for instance in range(n_instances)])
    estimates = tree.probabilities(one_each)
    classifiers = [tree.classifier(node) for node in range(tree.n_nodes)]
    for instance in range(n_instances):
        of_node = chances[instance] @ any_below
        above = np.where(parent >= 0, of_node[parent], 1.0)
        conditional = of_node / np.where(above > 0, above, 1.0)
        scores = np.array([weights.get(instance, 0.0) + bias for weights, bias in classifiers])
        errors = above * np.abs(conditional - 1 / (1 + np.exp(-scores)))
        for j in range(n_labels):
            node, bound = int(tree.leaf_of[j]), 0.0
            while node >= 0:
                node, bound = int(parent[node]), bound + errors[node]
            truth = chances[instance] @ sets[:, j]
            assert abs(truth - estimates[instance, j]) <= bound + 1e-5


# --- to a file and back, damaged on the way ------------------------------------------------------------------


def copied(tree, how, resume=True):
    """The tree after going through its arrays."""
    arrays = {name: array.copy() for name, array in tree._arrays(resume).items()}
    twin = OnlineTree._from_arrays(arrays, tree.one_label, len(tree.leaf_of), tree.random_state, how.growth)
    twin.scale_siblings = how.scale_siblings
    return twin


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(growths(), streams(), st.integers(0, 70))
def test_stopped_and_continued_is_never_stopped(how, stream, cut):
    rows, targets, one_label = stream
    whole = grown(rows, targets, how, one_label)
    tree = taught(empty_tree(one_label, how, 7), rows[:cut], targets[:cut], how)
    tree.reserve_labels(len(whole.leaf_of))
    tree = taught(copied(tree, how), rows[cut:], targets[cut:], how, seen=min(cut, len(rows)))
    assert_sound(tree, how)
    assert_same_classifiers(whole, tree)
    assert nested(whole) == nested(tree)
    assert whole.random_state == tree.random_state
    np.testing.assert_array_equal(whole.probabilities(rows), tree.probabilities(rows))


@settings(deadline=None, max_examples=20)
@given(growths(), streams())
def test_without_the_learning_state_answers_are_the_same(how, stream):
    rows, targets, one_label = stream
    tree = grown(rows, targets, how, one_label)
    light = copied(tree, how, resume=False)
    assert not light.has_squares
    np.testing.assert_array_equal(tree.probabilities(rows), light.probabilities(rows))
    assert_sound(taught(light, rows, targets, how), how)


@pytest.mark.parametrize("policy", ["best-greedy", "complete"])
def test_files_of_earlier_versions_with_sixteen_lanes_everywhere(policy):
    how = replace(PLAIN, policy=policy, arity=2, max_leaf=3)
    stream = as_arrays(random_stream(4, n_rows=60, n_labels=40))
    tree = grown(*stream, how, False)
    arrays = {name: array.copy() for name, array in tree._arrays(resume=True).items()}
    grows = arrays["lanes"] != (1 << arrays["used"]) - 1
    arrays["lanes"][grows] = 0xFFFF
    for block in np.flatnonzero(grows):  # all free lanes were alike
        for name in ("bias", "bias_squares"):
            own = arrays[name][block * LANES : (block + 1) * LANES]
            own[arrays["used"][block] :] = own[arrays["used"][block]]
    earlier = OnlineTree._from_arrays(arrays, False, len(tree.leaf_of), tree.random_state, how.growth)
    assert (earlier.blocks.width[: tree.n_blocks] == 16).any() and not (tree.blocks.width[: tree.n_blocks] == 16).any()
    assert_same_classifiers(tree, earlier)
    more = as_arrays(random_stream(5, n_rows=60, n_labels=60))
    assert_same_classifiers(taught(tree, *more, how), taught(earlier, *more, how))
    assert_sound(earlier, how)


def small_model():
    """Blocks of every kind: a chain, an open one, a closed one, one that has no child yet."""
    how = replace(PLAIN, arity=2, max_leaf=17)
    stream = [([(f, 1.0 + f) for f in range(label % 7, 12)], [label]) for label in range(18)]
    tree = grown(*as_arrays(stream + stream), how, False)
    assert tree.blocks.used[: tree.n_blocks].tolist() == [1, 16, 1, 2, 0]
    return tree, how


def changed(**changes):
    """A way to damage arrays: each named array becomes what its function makes of it."""

    def damage(arrays):
        for name, change in changes.items():
            arrays[name] = change(arrays[name].copy())

    return damage


def with_entry(at, value):
    def put(array):
        array[at] = value
        return array

    return put


def without(name):
    def damage(arrays):
        del arrays[name]

    return damage


NAMES = ("label", "owner", "used", "lanes", "child", "filled", "bias", "bias_squares", "features", "weights", "squares")
DAMAGE = {
    **{f"no {name}": without(name) for name in NAMES},
    **{f"empty {name}": changed(**{name: lambda a: a[:0]}) for name in NAMES},
    **{f"short {name}": changed(**{name: lambda a: a[:-1]}) for name in NAMES},
    **{f"long {name}": changed(**{name: lambda a: np.append(a, a[-1:])}) for name in NAMES},
    **{f"other type of {name}": changed(**{name: lambda a: a.astype(np.float64)}) for name in NAMES},
    **{f"two dimensions of {name}": changed(**{name: lambda a: a[:, None]}) for name in NAMES},
    "weights and squares empty": changed(weights=lambda a: a[:0], squares=lambda a: a[:0]),
    "counts that wrap around": changed(filled=lambda a: np.r_[[2**62] * 4, a[4:] * 0], features=lambda a: a[:0]),
    "negative counts": changed(filled=lambda a: a - a.max() * (np.arange(len(a)) == 0)),
    "a label twice": changed(label=lambda a: np.where(a == 3, 4, a)),
    "a label too many": changed(label=lambda a: np.where(a == a.max(), 10**6, a)),
    "an inner node with a label": changed(label=with_entry(0, 3)),
    "a leaf without": changed(label=lambda a: np.where(a == 3, -1, a)),
    "a child twice": changed(child=with_entry(2, 1)),
    "a child outside": changed(child=with_entry(2, 10**6)),
    "a negative child": changed(child=with_entry(2, -1)),
    "an owner outside": changed(owner=with_entry(1, 10**6)),
    "two roots": changed(owner=with_entry(1, -1)),
    "a circle": changed(owner=lambda a: np.where(a == 0, a[2], a)),
    "a block overfull": changed(used=lambda a: a + 17 * (a == 16)),
    "no lanes": changed(lanes=lambda a: a * np.uint32(0)),
    "lanes of nobody": changed(lanes=lambda a: np.where(a == 0xFFFF, a, a << np.uint32(1)).astype(np.uint32)),
    "all closed": changed(lanes=lambda a: np.full_like(a, 1)),
    "a feature twice": changed(features=lambda a: a * 0),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_arrays_are_refused(damage):
    tree, how = small_model()
    arrays = tree._arrays(resume=True)
    DAMAGE[damage](arrays)
    with pytest.raises(ValueError):
        OnlineTree._from_arrays(arrays, False, len(tree.leaf_of), 0, how.growth)


NAMES_OF_ROUNDED = ("filled", "steps", "masks", "codes", "offsets")
DAMAGE_OF_ROUNDED = {
    **{f"no {name}": without(name) for name in NAMES_OF_ROUNDED},
    **{f"empty {name}": changed(**{name: lambda a: a[:0]}) for name in NAMES_OF_ROUNDED},
    **{f"short {name}": changed(**{name: lambda a: a[:-1]}) for name in NAMES_OF_ROUNDED},
    **{f"long {name}": changed(**{name: lambda a: np.append(a, a[-1:])}) for name in NAMES_OF_ROUNDED},
    **{f"other type of {name}": changed(**{name: lambda a: a.astype(np.float64)}) for name in NAMES_OF_ROUNDED},
    "a step that does not end": changed(steps=lambda a: a | np.uint8(0x80)),
    "a feature twice": changed(steps=lambda a: a * np.uint8(0)),
    "a feature too large": changed(steps=lambda a: np.r_[np.array([255, 255, 255, 255, 15], np.uint8), a[1:]]),
    "a mask of nothing": changed(masks=with_entry(3, 0)),
    "a mask of nobody": changed(masks=lambda a: np.full_like(a, 0xFFFF)),
    "a code of zero": changed(codes=with_entry(3, 0x80)),
    "an infinite weight": changed(offsets=with_entry(1, 369)),
}


@pytest.mark.parametrize("damage", DAMAGE_OF_ROUNDED)
def test_damaged_rounded_weights_are_refused(damage):
    tree, how = small_model()
    arrays = {name.removeprefix("tree/"): array for name, array in tree.to_rounded_parts()[1].items()}
    DAMAGE_OF_ROUNDED[damage](arrays)
    with pytest.raises(ValueError):
        OnlineTree._from_arrays(arrays, False, len(tree.leaf_of), 0, how.growth)


def test_rounded_weights_are_close_and_small_ones_are_gone():
    tree, how = small_model()
    arrays = {name.removeprefix("tree/"): array for name, array in tree.to_rounded_parts()[1].items()}
    loaded = OnlineTree._from_arrays(arrays, False, len(tree.leaf_of), 0, how.growth)
    dropped = 0
    for node in range(tree.n_nodes):
        (weights, bias), (rounded, same_bias) = tree.classifier(node), loaded.classifier(node)
        assert rounded.keys() <= weights.keys() and bias == same_bias
        assert all(abs(rounded[f] - weights[f]) <= abs(weights[f]) / 32 for f in rounded)
        gone = [abs(weights[f]) for f in weights.keys() - rounded.keys()]
        dropped += len(gone)
        assert max(gone, default=0) <= max(map(abs, weights.values()), default=0)
    assert dropped > 0
    again = loaded.to_rounded_parts()[1]
    for name, array in arrays.items():
        np.testing.assert_array_equal(again[f"tree/{name}"], array)


def test_a_tree_that_another_policy_could_not_extend_is_refused():
    tree, how = small_model()
    arrays = tree._arrays(resume=True)
    for policy in ("complete", "one-level"):
        growth = replace(how, policy=policy).growth
        with pytest.raises(ValueError, match="no lane free"):
            OnlineTree._from_arrays(arrays, False, len(tree.leaf_of), 0, growth)


BOUNDS = """
import sys
from dataclasses import replace
import numpy as np
from tests.models.online_label_tree.reference import as_arrays, random_stream
from treemax.models.online_label_tree.model import OnlineTree
from treemax.models.online_label_tree.training import POLICIES, OnlineTreeSettings, empty_tree, learn, add_missing_leaves

def use(tree, rows, targets, how):
    tree.reserve_labels(int(targets.ids.max()) + 2)
    for _ in learn(tree, rows, targets, [np.arange(len(rows), dtype=np.uint32)], how, 10):
        pass
    add_missing_leaves(tree, how)
    for k in (1, 3, 200):
        for ids, _ in (tree.top_k(rows, k), tree.top_k(rows, k, 3)):
            assert ids.max() < len(tree.leaf_of)
    assert np.isfinite(tree.probabilities(rows)).all()
    return tree

random = np.random.RandomState(int(sys.argv[1]))
accepted = 0
for number in range(int(sys.argv[2])):
    how = OnlineTreeSettings(sorted(POLICIES)[number % 5], int(random.choice((2, 3, 16, 17))), int(random.choice((2, 5, 16, 17))), 0.75,
                   bool(random.randint(2)), "adagrad", 1.0, 0.01, 0.0)
    one_label = bool(random.randint(2))
    stream = random_stream(number, n_rows=20, n_labels=25 if number % 3 else 70, n_features=9, one_label=one_label)
    rows, targets = as_arrays(stream)
    tree = use(empty_tree(one_label, how, number), rows, targets, how)
    arrays = {name: array.copy() for name, array in tree._arrays(resume=bool(random.randint(2))).items()}
    for _ in range(random.randint(1, 4)):
        name = sorted(arrays)[random.randint(len(arrays))]
        array = arrays[name]
        if len(array) == 0:
            continue
        at, raw, kind = random.randint(len(array)), array.view(f"u{array.itemsize}"), random.randint(7)
        if kind == 0:
            raw[at] ^= raw.dtype.type(1 << random.randint(8 * array.itemsize))
        elif kind == 1:
            raw[at] = raw[random.randint(len(array))]
        elif kind == 2:
            raw[at] = raw.dtype.type(np.iinfo(raw.dtype).max >> random.randint(4))
        elif kind == 3:
            arrays[name] = np.delete(array, at)
        elif kind == 4:
            other = random.randint(len(array))
            raw[[at, other]] = raw[[other, at]]
        elif kind == 5:
            arrays[name] = array[random.permutation(len(array))]
        else:
            raw[at] = raw.dtype.type(random.randint(20))
    try:
        tree = OnlineTree._from_arrays(arrays, one_label, len(tree.leaf_of), 0, how.growth)
    except ValueError:
        continue
    accepted += 1
    with np.errstate(all="ignore"):
        use(tree, *as_arrays(random_stream(number + 1, n_rows=20, n_labels=90, n_features=30, one_label=one_label)), how)
print(accepted)
"""


@pytest.mark.slow
def test_nothing_points_outside(tmp_path):
    """Sound trees, and mutants of them that are accepted, learn, grow and answer in a process whose kernels
    check every index; records lie in whole chunks, so that the index of the chunk is all there is to check."""
    cache = os.environ.get("NUMBA_CACHE_DIR", ".numba_cache") + "-bounds"
    done = subprocess.run(
        [sys.executable, "-c", BOUNDS, "0", "250"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": cache},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) > 30, "enough of them were used"


# --- searching ---------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=80)
@given(growths(), streams(), st.integers(1, 100))
def test_every_search_finds_the_best(how, stream, k):
    rows, targets, one_label = stream
    tree = grown(rows, targets, replace(how, rate=3.0), one_label)
    everything = tree.probabilities(rows)
    best = -np.sort(-everything, axis=1)[:, :k]
    known = int((tree.leaf_of >= 0).sum())
    for ids, scores in (tree.top_k(rows, k), tree.top_k(rows, k, tree.n_nodes)):
        assert (ids[:, known:] == -1).all() and (scores[:, known:] == 0.0).all()
        ids, scores = ids[:, :known], scores[:, :known]
        np.testing.assert_array_equal(scores, best[:, :known])
        np.testing.assert_array_equal(scores, np.take_along_axis(everything, ids, axis=1))
        assert all(len(set(row)) == len(row) for row in ids.tolist())
    if one_label and known and how.scale_siblings:
        np.testing.assert_allclose(everything.sum(axis=1), 1.0, atol=1e-4)


def test_the_probability_of_a_label_is_the_product_along_its_path():
    stream = random_stream(9, n_rows=60, n_labels=40)
    rows, targets = as_arrays(stream)
    for one_label in (False, True):
        tree = grown(rows, targets, replace(PLAIN, arity=2, max_leaf=3), one_label)
        everything = tree.probabilities(rows)
        models = [tree.classifier(node) for node in range(tree.n_nodes)]
        for (x, _), row in zip(stream[::7], everything[::7]):
            own = [1 / (1 + np.exp(-bias - sum(v * weights.get(f, 0.0) for f, v in x))) for weights, bias in models]
            for label in np.flatnonzero(tree.leaf_of >= 0):
                node, product = int(tree.leaf_of[label]), 1.0
                while node > 0:
                    parent = tree.nodes.parent[node]
                    siblings = np.flatnonzero(tree.nodes.parent[: tree.n_nodes] == parent)
                    product *= own[node] / (sum(own[s] for s in siblings) if one_label else 1.0)
                    node = int(parent)
                assert row[label] == pytest.approx(product * (1.0 if one_label else own[0]), rel=1e-3, abs=1e-6)


@settings(deadline=None, max_examples=30)
@given(growths(), streams(), st.integers(1, 5), st.integers(1, 6))
def test_a_narrow_beam_answers_soundly(how, stream, width, k):
    rows, targets, one_label = stream
    tree = grown(rows, targets, how, one_label)
    everything = tree.probabilities(rows)
    ids, scores = tree.top_k(rows, k, width)
    found = ids >= 0
    assert (np.diff(scores, axis=1) <= 0).all() and (np.diff(found.astype(int), axis=1) <= 0).all()
    row = np.nonzero(found)[0]
    np.testing.assert_array_equal(scores[found], everything[row, ids[found]])
    assert not len(targets.ids) or found[:, 0].all()


# --- growing large -----------------------------------------------------------------------------------------


def wide_rows(random, n_rows, n_features, length):
    """Rows of this many features each, feature 0 always among them."""
    return [
        [
            (int(f), float(np.float32(random.normal())))
            for f in np.unique(np.r_[0, random.randint(n_features, size=length)])
        ]
        for _ in range(n_rows)
    ]


@pytest.mark.parametrize(
    ("policy", "arity", "inner", "lowest"),
    [("best-greedy", 2, 2, 16), ("random", 3, 4, 16), ("complete", 16, 2, 2), ("complete-kary", 5, 8, 8)],
)
def test_records_have_as_many_lanes_as_a_node_may_have_children(policy, arity, inner, lowest):
    random = np.random.RandomState(0)
    stream = [(x, [i]) for i, x in enumerate(wide_rows(random, 100, 50, 4))]
    tree = grown(*as_arrays(stream), replace(PLAIN, policy=policy, arity=arity, max_leaf=10), False)
    nodes, blocks = tree.nodes, tree.blocks
    assert blocks.width[0] == 2, "one classifier, of the root"
    with_inner = np.flatnonzero(nodes.n_inner[: tree.n_nodes])
    assert (blocks.width[nodes.first_block[with_inner]] == inner).all()
    others = [node for node in range(tree.n_nodes) if nodes.n_inner[node] == 0 and nodes.first_block[node] >= 0]
    assert (blocks.width[nodes.first_block[others]] == lowest).all()
    a_line = LANES // blocks.width[: tree.n_blocks]
    assert tree.n_lines == (-(-blocks.filled[: tree.n_blocks] // a_line)).sum()


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["best-greedy", "complete", "one-level"])
def test_tables_and_records_grow_many_times(policy):
    """Thousands of features a row, up to the last one there is, and more records than a chunk has."""
    random = np.random.RandomState(0)
    stream = [
        (x, sorted(set(random.randint(i + 1, size=2).tolist())))
        for i, x in enumerate(wide_rows(random, 30, 2**32 - 1, 2500))
    ]
    stream[0][0].append((2**32 - 2, 1.0))
    rows, targets = as_arrays(stream)
    how = replace(PLAIN, policy=policy)
    tree = grown(rows, targets, how, False)
    assert tree.n_lines > CHUNK_LINES and len(tree.chunks) > 1
    assert_sound(tree, how)
    twin = taught(planted_like(tree, how), rows, targets, how)
    assert_same_classifiers(tree, twin)
    assert 2**32 - 2 in tree.classifier(0)[0]
    copy = copied(tree, how)
    assert_same_classifiers(tree, copy)
    np.testing.assert_array_equal(tree.probabilities(rows), copy.probabilities(rows))


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_thousands_of_labels(policy):
    random = np.random.RandomState(0)
    stream = [(x, [i, i + 1]) for i, x in enumerate(wide_rows(random, 3000, 50, 4))]
    stream[1500] = (stream[1500][0], list(range(1000, 2500)))  # a row with many new labels
    rows, targets = as_arrays(stream)
    how = replace(PLAIN, policy=policy, arity=16, max_leaf=15)
    tree = grown(rows, targets, how, False)
    assert (tree.leaf_of >= 0).all() and len(tree.leaf_of) == 3001
    if policy != "best-greedy-printed":
        assert tree.depth <= {"one-level": 1, "complete": 12, "complete-kary": 4, "random": 8, "best-greedy": 8}[policy]
    _, label = tree.shape()
    assert len(np.unique(label[label >= 0])) == 3001
    assert_tables_are_sound(tree)
    assert_nothing_beyond(tree)
    ids, scores = tree.top_k(rows[:50], 3001)
    np.testing.assert_array_equal(scores, -np.sort(-tree.probabilities(rows[:50]), axis=1))
    assert (np.sort(ids, axis=1) == np.arange(3001)).all()


def test_numbers_beyond_all_bounds_break_nothing():
    """Values near the end of float32 overflow; the tree still grows, answers and comes back from its arrays."""
    random = np.random.RandomState(0)
    for schedule in SCHEDULES:
        how = replace(PLAIN, schedule=schedule, rate=1e30)
        stream = [
            ([(f, float(np.float32(v * 1e38))) for f, v in x], [i % 40])
            for i, x in enumerate(wide_rows(random, 120, 10, 5))
        ]
        rows, targets = as_arrays(stream)
        tree = grown(rows, targets, how, False)
        assert (tree.leaf_of >= 0).all()
        copied(tree, how).top_k(rows, 40)
        answers = tree.probabilities(rows)
        assert ((answers >= 0.0) & (answers <= 1.0)).all()


def test_ctrl_c_while_tables_are_moved_leaves_them_sound():
    """An interruption between any two instructions of Python: `fit` keeps the tree and adds leaves to it."""
    rows, targets = as_arrays(random_stream(3, n_rows=60, n_labels=40, n_features=40))

    def interrupt(number):
        """Move the tables; raise at an instruction of this number. Returns the tree, and whether there was one."""
        tree, left = grown(rows, targets, PLAIN, False), number

        def trace(frame, event, argument):
            nonlocal left
            if frame.f_code not in (OnlineTree.reserve.__code__, OnlineTree._move_tables.__code__):
                return None
            frame.f_trace_opcodes = True
            left -= event == "opcode"
            if event == "opcode" and left == 0:
                raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            tree.reserve(nodes=100, blocks=100, lines=CHUNK_LINES, slots=len(tree.store.slots))
        except KeyboardInterrupt:
            return tree, True
        finally:
            sys.settrace(before)
        return tree, False

    number, interrupted = 0, True
    while interrupted:
        number += 1
        tree, interrupted = interrupt(number)
        assert_tables_are_sound(tree)
        if number % 10 == 0:
            assert_sound(taught(tree, rows, targets, PLAIN), PLAIN)
    assert number > 100


# --- threads -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("threads", [2, 4])
@pytest.mark.parametrize("policy", ["best-greedy", "random", "complete", "one-level"])
def test_threads_keep_the_structure_sound(policy, threads):
    """Few blocks and many new features: all threads extend the same tables all the time."""
    random = np.random.RandomState(threads)
    stream = [
        (x, sorted(set(random.randint(1 + i // 10, size=2).tolist())))
        for i, x in enumerate(wide_rows(random, 1500, 20_000, 40))
    ]
    rows, targets = as_arrays(stream)
    how = replace(PLAIN, policy=policy)
    tree = taught(empty_tree(False, how), rows, targets, how, threads=threads)
    assert_sound(tree, how, one_thread=False)
    assert set(np.flatnonzero(tree.leaf_of >= 0).tolist()) == set(targets.ids.tolist())
    assert np.isfinite(tree.probabilities(rows[:100])).all()
    one, other = tree.top_k(rows, 5), tree.top_k(rows, 5, threads=threads)
    np.testing.assert_array_equal(one[0], other[0])
    np.testing.assert_array_equal(one[1], other[1])


@pytest.mark.slow
def test_tables_that_cannot_grow_lose_a_step_and_nothing_else():
    """What threads may do to each other: room that was planned is gone. Here nothing is planned at all."""
    how = PLAIN
    tree = grown(*as_arrays([([(1, 1.0)], [0]), ([(2, 1.0)], [1])]), how, False)
    tree.store = tree.store._replace(slots=tree.store.slots[: tree.n_slots].copy())
    before = int(tree.blocks.filled[0])
    indices, values = np.arange(100, dtype=np.uint32), np.ones(100, dtype=np.float32)
    learner = (np.float32(1.0), *how.constants, np.float32(1.0))
    kernels.update_block(
        0, np.uint32(1), indices, values, tree.blocks, tree.store, tree.counts, np.empty(100, np.uint64), learner
    )
    bits = int(tree.blocks.table[0]) & 63
    assert 4 * tree.blocks.filled[0] <= 3 << bits and tree.blocks.filled[0] - before < 100
    assert_tables_are_sound(tree)
    weights, _ = tree.classifier(0)
    assert len(weights) == tree.blocks.filled[0]


def test_a_table_that_was_given_up_has_no_feature():
    """Another thread may still be looking there: it must find nothing, feature 0 included."""
    how = PLAIN
    tree = grown(*as_arrays([([(0, 1.0), (7, 1.0)], [0]), ([(9, 1.0)], [1])]), how, False)
    tree.reserve(slots=10_000, lines=1000)
    old, features = tree.blocks.table.copy(), np.arange(200, dtype=np.uint32)
    found = np.empty(200, np.uint64)
    learner = (np.float32(1.0), *how.constants, np.float32(1.0))
    ones = np.ones(200, np.float32)
    for block in range(2):  # the second leaves a link to what the first has left
        kernels.update_block(block, np.uint32(1), features, ones, tree.blocks, tree.store, tree.counts, found, learner)
    assert (tree.blocks.table[:2] != old[:2]).all()
    stale = tree.blocks._replace(table=old)
    for block in range(2):
        kernels.find_all(block, features[:1], stale, tree.store, found)
        assert found[0] == kernels._MISSING
    assert_tables_are_sound(tree)
