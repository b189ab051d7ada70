"""The tree over the labels, its builders, and trees from clusters and from hierarchies."""

import heapq
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from treemax.inputs.labels import LabelIndex, read_labels, target_ids
from treemax.inputs.rows import as_rows
from treemax.trees import (
    Tree,
    complete_tree,
    frequent_at_root_tree,
    huffman_tree,
    kmeans_tree,
    label_vectors,
    random_tree,
    tree_of,
)
from treemax.trees.builders import even_arity


@st.composite
def parent_arrays(draw):
    """A random tree in a random order: parents, labels."""
    n_inner = draw(st.integers(1, 12))
    parents = [-1] + [draw(st.integers(0, node - 1)) for node in range(1, n_inner)]
    barren = [node for node in range(n_inner) if node not in parents]  # each needs a leaf at least
    extra = draw(st.lists(st.integers(0, n_inner - 1), max_size=20))
    parents += barren + extra
    n_labels = len(parents) - n_inner
    labels = [-1] * n_inner + draw(st.permutations(range(n_labels)))
    shuffle = np.array(draw(st.permutations(range(len(parents)))))
    moved = np.empty(len(parents), dtype=np.int64)
    moved[shuffle] = np.arange(len(parents))  # node v comes to stand at moved[v]
    parents = np.array(parents)
    parents[1:] = moved[parents[1:]]
    return parents[shuffle], np.array(labels)[shuffle]


def paths(parents, labels):
    """For each label, its depth and the label sets of all nodes above it: what makes the tree the same tree."""
    below = {}
    for leaf in np.flatnonzero(labels >= 0):
        node = leaf
        while node >= 0:
            below.setdefault(node, set()).add(int(labels[leaf]))
            node = parents[node]
    result = {}
    for leaf in np.flatnonzero(labels >= 0):
        chain, node = [], leaf
        while node >= 0:
            chain.append(frozenset(below[node]))
            node = parents[node]
        result[int(labels[leaf])] = chain
    return result


def check_invariants(tree):
    """What every tree promises, asked of the slow and plain way."""
    children = [list(tree.children(node)) for node in range(len(tree))]
    assert sorted(child for own in children for child in own) == list(range(1, len(tree)))
    assert tree.parent[0] == -1 and tree.level[0] == 0
    for node, own in enumerate(children):
        assert len(own) == tree.n_children[node]
        assert (tree.label[node] >= 0) == (len(own) == 0)
        for child in own:
            assert child > node and tree.parent[child] == node and tree.level[child] == tree.level[node] + 1
    assert (np.diff(tree.level) >= 0).all(), "breadth-first"
    assert tree.depth == tree.level.max()
    assert len(tree.level_bounds) == tree.depth + 1
    for level, (start, stop) in enumerate(tree.level_bounds):
        assert np.flatnonzero(tree.level == level).tolist() == list(range(start, stop))
    assert tree.label[tree.leaf_of].tolist() == list(range(tree.n_labels))


# --- the tree itself -----------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(parent_arrays())
def test_from_parents_in_any_order(arrays):
    parents, labels = arrays
    tree = Tree.from_parents(parents, labels)
    check_invariants(tree)
    assert paths(tree.parent, tree.label) == paths(parents, labels)
    again = Tree.from_parents(tree.parent, tree.label)
    for name in ("first_child", "n_children", "label"):
        assert np.array_equal(getattr(again, name), getattr(tree, name)), "already in order: nothing moves"


@settings(max_examples=30, deadline=None)
@given(parent_arrays())
def test_arrays_round_trip(arrays):
    tree = Tree.from_parents(*arrays)
    back = Tree.from_arrays(tree.arrays())
    check_invariants(back)
    for name in ("first_child", "n_children", "label", "parent", "level", "leaf_of"):
        assert np.array_equal(getattr(back, name), getattr(tree, name))


def test_siblings_keep_the_order_given():
    tree = Tree.from_parents([3, 3, 3, -1], [2, 0, 1, -1])
    assert tree.label.tolist() == [-1, 2, 0, 1]


@pytest.mark.parametrize(
    ("parents", "labels", "message"),
    [
        ([], [], "one parent and one label per node"),
        ([-1, 0], [-1], "one parent and one label per node"),
        ([[-1, 0]], [[-1, 0]], "one parent and one label per node"),
        ([-1, -1, 0, 1], [-1, -1, 0, 1], "one root"),
        ([1, 0], [0, -1], "one root"),
        ([-1, 0, 2], [-1, 0, 1], "cycle"),
        ([-1, 0, 3, 2], [-1, 0, -1, -1], "cycle"),
        ([-1, 0, 7], [-1, 0, 1], "node 2 has parent 7"),
        ([-1, 0, 0], [-1, 0, 0], "once each"),
        ([-1, 0, 0], [-1, 0, 2], "once each"),
        ([-1, 0, 0], [-1, 1, 2], "once each"),
        ([-1, 0, 1], [-1, 1, 0], "inner node"),
        ([-1, 0, 0], [2, 1, 0], "inner node"),
        ([-1, 0, 0], [-1, -1, 0], "leaf of the tree has no label"),
    ],
)
def test_what_is_not_one_tree_is_refused(parents, labels, message):
    with pytest.raises(ValueError, match=message):
        Tree.from_parents(parents, labels)


def damaged(**changes):
    arrays = {"n_children": np.array([2, 2, 0, 0, 0]), "label": np.array([-1, -1, 2, 0, 1])}
    return {**arrays, **changes}


@pytest.mark.parametrize(
    "arrays",
    [
        damaged(n_children=np.array([2, 2, 0, 0, 0], dtype=np.int32)),
        damaged(label=np.array([-1, -1, 2, 0, 1], dtype=">i8")),
        damaged(label=np.array([-1.0, -1, 2, 0, 1])),
        damaged(n_children=np.array([[2, 2, 0, 0, 0]]), label=np.array([[-1, -1, 2, 0, 1]])),
        damaged(n_children=np.array([2, 2, 0, 0])),
        damaged(n_children=np.empty(0, dtype=np.int64), label=np.empty(0, dtype=np.int64)),
        damaged(n_children=np.array([2, 3, 0, 0, 0])),
        damaged(n_children=np.array([2, 1, 0, 0, 0])),
        damaged(n_children=np.array([2, 3, 0, 0, -1])),
        damaged(n_children=np.array([2**62, 2**62, 2**62, 2**62, 4])),  # whose sum is 4 after overflow
        damaged(n_children=np.array([0, 2, 2, 0, 0]), label=np.array([2, -1, -1, 0, 1])),
        damaged(n_children=np.array([1, 0, 3, 0, 0]), label=np.array([-1, 2, -1, 0, 1])),  # a node its own child
        damaged(label=np.array([-1, -1, 2, 0, 0])),
        damaged(label=np.array([-1, -1, 2, 0, 2**40])),
        damaged(label=np.array([-1, 1, 2, 0, -1])),
        damaged(label=np.array([0, -1, 2, 0, 1])),
    ],
)
def test_damaged_arrays_are_refused(arrays):
    with pytest.raises(ValueError, match="tree"):
        Tree.from_arrays(arrays)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(-1, 5), min_size=1, max_size=7), st.lists(st.integers(-1, 5), min_size=1, max_size=7))
def test_arrays_are_a_tree_or_refused(n_children, label):
    try:
        tree = Tree.from_arrays({"n_children": np.array(n_children), "label": np.array(label)})
    except ValueError:
        return
    check_invariants(tree)


# --- builders that need no features --------------------------------------------------------------------


def labels_below(tree):
    """How many labels are under each node."""
    counts = (tree.label >= 0).astype(np.int64)
    for node in range(len(tree) - 1, 0, -1):
        counts[tree.parent[node]] += counts[node]
    return counts


def check_even(tree, arity, max_leaf):
    """Siblings differ by one label at most, and no node has more children than it may."""
    below = labels_below(tree)
    for node in np.flatnonzero(tree.n_children > 0):
        sizes = below[list(tree.children(node))]
        assert sizes.max() - sizes.min() <= 1
        last = below[node] <= max_leaf
        assert tree.n_children[node] == (below[node] if last else min(arity, below[node]))


sizes = st.tuples(st.integers(1, 500), st.integers(2, 20), st.integers(2, 120))


@settings(max_examples=60, deadline=None)
@given(sizes)
def test_complete_tree(size):
    tree = complete_tree(*size)
    check_invariants(tree)
    assert tree.n_labels == size[0]
    check_even(tree, *size[1:])
    leaves = tree.leaf_of[np.arange(size[0])]
    # Neighbouring labels stand together: under any node, a range of labels.
    for start, stop in tree.level_bounds:
        on_level = leaves[(leaves >= start) & (leaves < stop)]
        assert (np.diff(on_level) > 0).all()


@pytest.mark.parametrize("build", [complete_tree, random_tree])
def test_more_children_than_labels_left(build):
    for n_labels, arity, max_leaf in [(10, 16, 3), (3, 16, 2), (40, 64, 32), (7, 3, 2)]:
        tree = build(n_labels, arity, max_leaf)
        check_invariants(tree)
        assert tree.n_labels == n_labels
        assert tree.n_children.max() <= max(arity, max_leaf)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 10**7), st.integers(2, 500))
def test_the_arity_that_fits(n_labels, max_leaf):
    """As shallow as 32 children a node allow, and never more children than there are labels for."""
    arity = even_arity(n_labels, max_leaf)
    assert 2 <= arity <= 32
    levels, nodes = 1, arity
    while nodes * max_leaf < n_labels:
        levels, nodes = levels + 1, nodes * arity
    assert levels == 1 or 32 ** (levels - 1) * max_leaf < n_labels, "no shallower tree would do"
    if n_labels <= 3000:
        tree = complete_tree(n_labels, arity, max_leaf)
        assert tree.depth <= levels + 1
        check_even(tree, arity, max_leaf)


@settings(max_examples=30, deadline=None)
@given(sizes, st.integers(0, 2**31))
def test_random_tree(size, seed):
    tree = random_tree(*size, random_state=seed)
    check_invariants(tree)
    assert tree.n_labels == size[0]
    check_even(tree, *size[1:])
    assert np.array_equal(tree.label, random_tree(*size, random_state=seed).label)


def test_random_trees_differ_by_seed():
    assert not np.array_equal(random_tree(300, random_state=0).label, random_tree(300, random_state=1).label)
    state = np.random.RandomState(0)
    assert not np.array_equal(random_tree(300, random_state=state).label, random_tree(300, random_state=state).label)


@pytest.mark.parametrize("name", ["arity", "max_leaf"])
@pytest.mark.parametrize("value", [1, 0, -3, 2.5, "four", True, None])
def test_builders_refuse_by_name_and_value(name, value):
    vectors = as_rows(sp.eye(5, format="csr"))
    for build, given_ in ((complete_tree, 5), (random_tree, 5), (kmeans_tree, vectors)):
        with pytest.raises(ValueError, match=f"{name} must be an integer at least 2, got {value!r}"):
            build(given_, **{name: value})
    if name == "arity":
        with pytest.raises(ValueError, match="arity must be"):
            huffman_tree(np.ones(5, dtype=int), arity=value)


def optimal_path_length(counts, arity):
    """Sum over the examples of the depth of their label, by merging with zeros added to make it come out."""
    heap = sorted(map(int, counts))
    heap = [0] * (-(len(heap) - 1) % (arity - 1)) + heap
    heapq.heapify(heap)
    total = 0
    while len(heap) > 1:
        merged = sum(heapq.heappop(heap) for _ in range(arity))
        total += merged
        heapq.heappush(heap, merged)
    return total


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 1000), min_size=2, max_size=200), st.sampled_from([2, 3, 5, 16]))
def test_huffman_is_optimal(counts, arity):
    counts = np.array(counts)
    tree = huffman_tree(counts, arity)
    check_invariants(tree)
    assert tree.n_labels == len(counts)
    assert tree.n_children[tree.n_children > 0].min() >= 2 and tree.n_children.max() <= arity
    assert int((counts * tree.level[tree.leaf_of]).sum()) == optimal_path_length(counts, arity)
    assert np.array_equal(tree.label, huffman_tree(counts, arity).label)


def brute_force_best(counts):
    """The least total path length over all binary trees, by trying every one."""
    counts = tuple(sorted(counts))
    if len(counts) == 1:
        return 0
    best = np.inf
    for i in range(len(counts)):
        for j in range(i):
            rest = [counts[m] for m in range(len(counts)) if m not in (i, j)]
            best = min(best, counts[i] + counts[j] + brute_force_best((*rest, counts[i] + counts[j])))
    return best


def test_huffman_against_every_binary_tree():
    random = np.random.RandomState(0)
    for n_labels in (2, 3, 4, 5, 6):
        counts = random.randint(0, 20, n_labels)
        tree = huffman_tree(counts)
        assert (counts * tree.level[tree.leaf_of]).sum() == brute_force_best(counts.tolist())


def test_huffman_of_one_label_has_a_root_with_a_child():
    assert huffman_tree(np.array([3])).n_children.tolist() == [1, 0]


def test_huffman_may_be_deep():
    counts = [1, 1]
    while len(counts) < 60:
        counts.append(counts[-1] + counts[-2])
    assert huffman_tree(np.array(counts)).depth == 59


# --- label vectors and clusters ------------------------------------------------------------------------


def rows_and_targets(X, lists):
    labels = read_labels(lists)
    return as_rows(sp.csr_matrix(X)), target_ids(labels, labels.values.astype(np.int64))


def reference_vectors(X, lists, n_labels, most):
    """The sum of the rows of each label, its `most` largest entries, scaled to length one."""
    out = np.zeros((n_labels, X.shape[1]))
    for label in range(n_labels):
        total = sum((X[i] for i, row in enumerate(lists) if label in row), np.zeros(X.shape[1]))
        out[label, np.argsort(-np.abs(total), kind="stable")[:most]] = 1.0
        out[label] *= total
        length = np.linalg.norm(out[label])
        out[label] /= length or 1.0
    return out


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([1, 3, 100]))
def test_label_vectors_against_numpy(seed, most):
    random = np.random.RandomState(seed)
    n_labels = random.randint(1, 9)
    X = (random.normal(size=(30, 12)) * (random.uniform(size=(30, 12)) < 0.3)).astype(np.float32)
    lists = [random.choice(n_labels, random.randint(0, min(4, n_labels + 1)), replace=False).tolist() for _ in X]
    lists[0] = lists[0] or [0]
    rows, targets = rows_and_targets(X, lists)
    vectors = label_vectors(rows, targets, n_labels, most)
    assert vectors.shape == (n_labels, 12) and np.diff(vectors.indptr).max() <= most
    np.testing.assert_allclose(vectors.to_scipy().toarray(), reference_vectors(X, lists, n_labels, most), atol=1e-5)


CANCELLING = """
import numpy as np, scipy.sparse as sp
from treemax.inputs.rows import as_rows
from treemax.inputs.labels import Targets
from treemax.trees import label_vectors
for n in (4, 200_000):
    X = sp.csr_matrix(np.tile([[1.0], [-1.0]], (n // 2, 1)))
    vectors = label_vectors(as_rows(X), Targets(np.arange(n + 1), np.zeros(n, dtype=np.uint32)), 1)
    assert len(vectors.indices) <= 1, vectors.indices
"""
HUGE = """
import numpy as np, scipy.sparse as sp
from treemax.inputs.rows import as_rows
from treemax.inputs.labels import Targets
from treemax.trees import kmeans_tree, label_vectors
random = np.random.RandomState(0)
X = sp.csr_matrix((random.uniform(0.5, 1.0, size=(400, 6)) * 1e15).astype(np.float32))
targets = Targets(np.arange(401), (np.arange(400) % 40).astype(np.uint32))
vectors = label_vectors(as_rows(X), targets, 40)
assert np.isfinite(vectors.values).all()
assert kmeans_tree(vectors, arity=4, max_leaf=5).n_labels == 40
"""


@pytest.mark.slow
@pytest.mark.parametrize("script", [CANCELLING, HUGE], ids=["cancelling", "huge"])
def test_values_at_the_limits_do_not_end_the_process(script):
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def groups_of_leaves(tree):
    """The label sets of the children of the root."""
    found = []
    for child in tree.children(0):
        inside = [node == child for node in range(len(tree))]
        for node in range(child + 1, len(tree)):
            inside[node] = inside[tree.parent[node]]
        found.append(frozenset(tree.label[np.flatnonzero(inside)][tree.label[np.flatnonzero(inside)] >= 0].tolist()))
    return set(found)


def clustered(n_clusters, size, seed=0, noise=0.3):
    """Labels around n_clusters directions, shuffled: the vectors, and the cluster of each."""
    random = np.random.RandomState(seed)
    cluster = random.permutation(np.repeat(np.arange(n_clusters), size))
    X = np.abs(noise * random.uniform(size=(len(cluster), 8 * n_clusters))) * (
        random.uniform(size=(len(cluster), 8 * n_clusters)) < 0.2
    )
    for offset in range(8):
        X[np.arange(len(cluster)), 8 * cluster + offset] += 1.0
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    return as_rows(sp.csr_matrix(X)), cluster


@pytest.mark.parametrize(
    ("n_clusters", "size", "least"), [(2, 50, 1.0), (2, 700, 1.0), (3, 30, 0.9), (4, 40, 0.9), (8, 20, 0.75)]
)
def test_kmeans_finds_plain_clusters(n_clusters, size, least):
    """Two clusters always; more than two are found by halving, which may misplace a few."""
    for seed in range(5):
        vectors, cluster = clustered(n_clusters, size, seed)
        tree = kmeans_tree(vectors, arity=n_clusters, max_leaf=size, random_state=seed)
        alike = sum(np.bincount(cluster[list(group)]).max() for group in groups_of_leaves(tree))
        assert alike >= least * len(cluster)


@settings(max_examples=30, deadline=None)
@given(sizes, st.integers(0, 1000))
def test_kmeans_is_even_whatever_the_vectors(size, seed):
    n_labels, arity, max_leaf = size
    X = sp.random(n_labels, 30, density=0.1, format="csr", random_state=seed, dtype=np.float32)
    tree = kmeans_tree(as_rows(X), arity, max_leaf, random_state=seed)
    check_invariants(tree)
    assert tree.n_labels == n_labels
    check_even(tree, arity, max_leaf)


@pytest.mark.parametrize("arity", [2, 7, 16])
def test_kmeans_one_cut_at_a_time_and_all_at_once(arity, monkeypatch):
    vectors = as_rows(sp.csr_matrix(np.random.RandomState(arity).normal(size=(900, 12))))
    trees = []
    for many in (1, 3, 10**6):
        monkeypatch.setattr("treemax.trees.kmeans.MANY_BISECTIONS", many)
        trees.append(kmeans_tree(vectors, arity, max_leaf=5, random_state=1))
    for tree in trees[1:]:
        np.testing.assert_array_equal(tree.label, trees[0].label)
        np.testing.assert_array_equal(tree.n_children, trees[0].n_children)


def test_kmeans_with_more_children_than_labels_left():
    X = as_rows(sp.random(10, 20, density=0.5, format="csr", random_state=0))
    tree = kmeans_tree(X, arity=16, max_leaf=3)
    check_invariants(tree)


@pytest.mark.parametrize(
    "X",
    [
        np.zeros((40, 3)),
        np.ones((40, 3)),
        np.repeat(np.eye(2), 20, axis=0),
        np.vstack([np.zeros((20, 3)), np.ones((20, 3))]),
        -np.ones((40, 3)),
        np.tile([[1.0, -1.0], [-1.0, 1.0]], (20, 1)),
    ],
    ids=["no features", "identical", "two points", "half without", "negative", "opposed"],
)
def test_kmeans_of_vectors_without_a_direction(X):
    tree = kmeans_tree(as_rows(sp.csr_matrix(X)), arity=4, max_leaf=5)
    check_invariants(tree)
    check_even(tree, 4, 5)


@pytest.mark.parametrize("n_labels", [1, 2, 3, 16])
def test_kmeans_of_few_labels_is_one_level(n_labels):
    tree = kmeans_tree(as_rows(sp.eye(n_labels, format="csr")))
    assert tree.depth == 1 and tree.n_labels == n_labels == tree.n_children[0]


def test_kmeans_is_the_same_for_any_number_of_threads():
    X = as_rows(sp.random(2000, 300, density=0.02, format="csr", random_state=0, dtype=np.float32))
    trees = [kmeans_tree(X, 4, 10, random_state=7, threads=threads) for threads in (1, 1, 2, 4)]
    for tree in trees[1:]:
        assert np.array_equal(tree.label, trees[0].label)
        assert np.array_equal(tree.n_children, trees[0].n_children)
    assert not np.array_equal(kmeans_tree(X, 4, 10, random_state=8).label, trees[0].label)


# --- the user's own hierarchy --------------------------------------------------------------------------

NESTED = {"animal": {"cat": {}, "dog": {"puppy": {}, "hound": {}}}, "plant": {"fern": {}, "moss": {}}}
EDGES = [("animal", "cat"), ("animal", "dog"), ("dog", "puppy"), ("dog", "hound"), ("plant", "fern"), ("plant", "moss")]
ANIMALS = ["moss", "cat", "hound", "puppy", "fern"]


def groups(tree, labels):
    """The sets of names under the inner nodes."""
    chains = paths(tree.parent, tree.label)
    sets = {below for chain in chains.values() for below in chain[1:]}
    return {frozenset(labels[i] for i in below) for below in sets}


@pytest.mark.parametrize(
    "hierarchy",
    [
        NESTED,
        EDGES,
        iter(EDGES),
        [list(edge) for edge in reversed(EDGES)],
        EDGES + EDGES,
        {child: parent for parent, child in EDGES},
        {**{child: parent for parent, child in EDGES}, "animal": None, "plant": None},
        {"animal": {"cat": None, "dog": ["puppy", "hound"]}, "plant": ("fern", "moss")},
        {"animal": {"cat": {}, "dog": ["puppy", "hound"]}, "plant": {"fern", "moss"}},
    ],
    ids=["nested", "edges", "iterator", "shuffled", "repeated", "parents", "roots", "lists", "sets"],
)
def test_every_form_of_a_hierarchy(hierarchy):
    tree = tree_of(hierarchy, LabelIndex(ANIMALS))
    check_invariants(tree)
    assert tree.n_labels == len(ANIMALS)
    assert groups(tree, ANIMALS) == {
        frozenset(ANIMALS),
        frozenset({"cat", "hound", "puppy"}),
        frozenset({"hound", "puppy"}),
        frozenset({"fern", "moss"}),
    }


def test_a_label_that_is_a_parent_gets_a_leaf_under_itself():
    names = ["animal", "cat", "dog", "puppy", "fern"]
    tree = tree_of(NESTED, LabelIndex(names))
    check_invariants(tree)
    assert groups(tree, names) == {
        frozenset(names),
        frozenset({"animal", "cat", "dog", "puppy"}),
        frozenset({"dog", "puppy"}),
    }
    assert tree.parent[tree.leaf_of[0]] == tree.parent[tree.leaf_of[1]]


def test_labels_the_hierarchy_does_not_know_hang_from_the_root():
    names = ["cat", "quark", "puppy", "fern", "moss"]
    tree = tree_of(NESTED, LabelIndex(names))
    assert tree.parent[tree.leaf_of[1]] == 0
    for hierarchy in ({}, []):
        assert tree_of(hierarchy, LabelIndex(names)).n_children.tolist() == [5, 0, 0, 0, 0, 0]
    with pytest.raises(ValueError, match="has none of the 5 labels"):
        tree_of({"x": {"y": {}}}, LabelIndex(names))


def test_integer_labels():
    tree = tree_of({10: [1, 2], 20: [3, 4]}, LabelIndex([1, 2, 3, 4]))
    assert groups(tree, [1, 2, 3, 4]) == {frozenset({1, 2, 3, 4}), frozenset({1, 2}), frozenset({3, 4})}
    tree = tree_of({1: 10, 2: 10, 3: 20, 4: 20}, LabelIndex([1, 2, 3, 4]))
    assert groups(tree, [1, 2, 3, 4]) == {frozenset({1, 2, 3, 4}), frozenset({1, 2}), frozenset({3, 4})}


def test_chains_are_left_out():
    chain = [("top", "one"), *((f"s{i}", f"s{i + 1}") for i in range(3000)), ("top", "s0"), ("s3000", "two")]
    tree = tree_of([*chain, ("s3000", "three")], LabelIndex(["one", "two", "three"]))
    assert tree.depth <= 3 and tree.n_labels == 3
    assert groups(tree, ["one", "two", "three"]) >= {frozenset({"two", "three"})}
    assert tree_of(chain, LabelIndex(["two"])).n_children.tolist() == [1, 0]


def test_a_single_top_is_left_out():
    tree = tree_of({"entity": {"cat": {}, "dog": {}}}, LabelIndex(["cat", "dog"]))
    assert tree.n_children.tolist() == [2, 0, 0]


@pytest.mark.parametrize(
    ("hierarchy", "message"),
    [
        ([("a", "cat"), ("cat", "a")], "cycle"),
        ([("cat", "cat")], "cycle"),
        ([("a", "b"), ("b", "c"), ("c", "a"), ("b", "cat")], "cycle"),
        ({"cat": "a", "a": "b", "b": "a"}, "cycle"),
        ([("a", "b", "cat")], "pair"),
        ([("cat",)], "pair"),
        ("cat", "got str"),
        (7, "got int"),
        (None, "got NoneType"),
    ],
)
def test_what_is_no_hierarchy_is_refused(hierarchy, message):
    with pytest.raises(ValueError, match=message):
        tree_of(hierarchy, LabelIndex(["cat", "dog"]))


@pytest.mark.parametrize("hierarchy", [{"a": ["cat"], "b": "dog"}, [1, 2], ["ab"]])
def test_what_is_no_edge_is_refused(hierarchy):
    with pytest.raises(ValueError, match=r"pair|children|hierarchy|parent array"):
        tree_of(hierarchy, LabelIndex(["cat", "dog"]))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000))
def test_random_hierarchies(seed):
    """Every two labels meet where the hierarchy says, seen from the sets of labels under common nodes."""
    random = np.random.RandomState(seed)
    n_nodes = random.randint(2, 40)
    parent_of = {node: int(random.randint(0, node)) for node in range(1, n_nodes)}
    names = random.permutation(n_nodes)[: random.randint(1, n_nodes + 1)].tolist()
    tree = tree_of(parent_of, LabelIndex(names))
    check_invariants(tree)
    assert tree.n_labels == len(names)
    below = {}
    for name in names:
        node = name
        while node is not None:
            below.setdefault(node, set()).add(name)
            node = parent_of.get(node)
    expected = {frozenset(under) for under in below.values() if len(under) > 1} | {frozenset(names)}
    assert groups(tree, names) == expected
    inner = tree.n_children[1:][tree.n_children[1:] > 0]
    assert (inner > 1).all()


@given(st.integers(1, 200), st.integers(2, 9), st.data())
def test_frequent_labels_are_children_of_the_root(n_labels, arity, data):
    n_direct = data.draw(st.integers(0, arity - 1))
    order = np.array(data.draw(st.permutations(range(n_labels))))
    tree = frequent_at_root_tree(order, n_direct, arity)
    assert sorted(tree.label[tree.label >= 0]) == list(range(n_labels))
    assert tree.n_children.max() <= arity
    levels = tree.level[tree.leaf_of]
    if n_labels <= arity:
        assert (levels == 1).all()
    else:
        assert (levels[order[:n_direct]] == 1).all() and (levels[order[n_direct:]] > 1).all()
