"""Online trees that grow large, and learn in several threads."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from tests.models.online_label_tree.reference import as_arrays, random_stream
from tests.models.online_label_tree.trees import (
    CHUNK_LINES,
    LANES,
    PLAIN,
    assert_nothing_beyond,
    assert_same_classifiers,
    assert_sound,
    assert_tables_are_sound,
    copied,
    grown,
    planted_like,
    taught,
)
from treemax.models.online_label_tree import kernels
from treemax.models.online_label_tree.model import OnlineTree
from treemax.models.online_label_tree.training import POLICIES, SCHEDULES, empty_tree


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


def free_tables(tree):
    """Where the tables begin that are no longer used."""
    starts = []
    for link in tree.store.free:
        start = int(link)
        while start >= 0:
            starts.append(start)
            start = int(kernels._next_unused.py_func(tree.store.slots[start]))
    return starts


def test_several_threads_reuse_no_table():
    """A thread may search a table that another one has freed; for a block of another width, it would follow what is there
    to records that do not exist."""
    random = np.random.RandomState(0)
    stream = [(x, [i % 40]) for i, x in enumerate(wide_rows(random, 800, 2000, 20))]
    rows, targets = as_arrays(stream)
    tree = taught(empty_tree(False, PLAIN), rows[:200], targets[:200], PLAIN)
    tree.reserve(slots=2**20)  # which reuses the free ones
    taught(tree, rows[200:400], targets[200:400], PLAIN, seen=200)
    slots, before = tree.store.slots, free_tables(tree)
    taught(tree, rows[400:], targets[400:], PLAIN, seen=400, threads=2)
    assert tree.store.slots is slots, "the tables were not moved"
    assert before and set(before) < set(free_tables(tree))
    assert_tables_are_sound(tree)


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
