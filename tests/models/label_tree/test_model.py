"""The packed tree and its searches, against probabilities computed node by node in NumPy."""

import os
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.mutations import with_changed_number
from treemax.inputs.rows import as_rows
from treemax.kernels import search as kernels
from treemax.models.label_tree.model import LabelTreeModel
from treemax.models.label_tree.packed_tree import NodeWeights, PackedTree
from treemax.trees import Tree, complete_tree, huffman_tree

N_FEATURES = 20


def bfloat16(weights):
    """Rounded to the nearest number with eight bits of mantissa, ties to even."""
    word = np.asarray(weights, dtype=np.float32).view(np.uint32).astype(np.uint64)
    word = (word + 0x7FFF + ((word >> 16) & 1)) & 0xFFFF0000
    return word.astype(np.uint32).view(np.float32)


def uneven_tree(n_labels, seed, widest=6):
    """Groups of random size are merged until one is left."""
    random = np.random.RandomState(seed)
    parents, tops = [-1] * n_labels, list(range(n_labels))
    while len(tops) > 1 or tops[0] < n_labels:
        random.shuffle(tops)
        count = random.randint(1 if len(tops) == 1 else 2, min(widest, len(tops)) + 1)
        merged, tops = tops[:count], tops[count:]
        for child in merged:
            parents[child] = len(parents)
        tops.append(len(parents))
        parents.append(-1)
    return Tree.from_parents(parents, np.append(np.arange(n_labels), np.full(len(parents) - n_labels, -1)))


class RandomModel:
    """A tree with random sparse weights at most of its inner nodes, packed and dense."""

    def __init__(self, tree, seed, link, n_features=N_FEATURES, density=0.4, scale=1.0):
        random = np.random.RandomState(seed)
        self.tree, self.link = tree, link
        self.weights, self.bias = {}, np.zeros(len(tree), dtype=np.float32)
        parts = {}
        for node in np.flatnonzero(tree.n_children > 0).tolist():
            if random.uniform() < 0.1:
                continue  # a node that was never trained
            shape = (n_features, int(tree.n_children[node]))
            dense = scale * random.normal(size=shape) * (random.uniform(size=shape) < density)
            dense[random.uniform(size=n_features) < 0.3] = 0.0
            self.weights[node] = dense.astype(np.float32)
            bias = random.normal(size=shape[1]).astype(np.float32)
            self.bias[tree.first_child[node] : tree.first_child[node] + shape[1]] = bias
            parts[node] = node_weights(self.weights[node], bias)
        self.slopes = random.uniform(0.5, 3.0, tree.depth).astype(np.float32)
        self.shifts = random.normal(size=tree.depth).astype(np.float32)
        self.packed = PackedTree.pack(tree, parts, link, self.slopes, self.shifts)

    def probabilities(self, X):
        """Of every label, each node a plain product of NumPy."""
        tree = self.tree
        of_node = np.ones((len(X), len(tree)))
        for node in np.flatnonzero(tree.n_children > 0):
            own = list(tree.children(node))
            scores = np.tile(self.bias[own].astype(np.float64), (len(X), 1))
            if node in self.weights:
                known = X[:, : len(self.weights[node])].astype(np.float64)
                scores += known @ bfloat16(self.weights[node]).astype(np.float64)
            z = self.slopes[tree.level[node]].astype(np.float64) * scores
            if self.link == "softmax":
                e = np.exp(z - z.max(axis=1, keepdims=True))
                given_parent = e / e.sum(axis=1, keepdims=True)
            else:
                given_parent = 1 / (1 + np.exp(-(z + self.shifts[tree.level[node]])))
            of_node[:, own] = of_node[:, [node]] * given_parent
        return of_node[:, tree.leaf_of]


def node_weights(dense, bias):
    """The nonzero entries of a matrix (features, children) as the trainer gives them."""
    features = np.flatnonzero(dense.any(axis=1))
    row, child = np.nonzero(dense[features])
    starts = np.searchsorted(row, np.arange(len(features) + 1))
    return NodeWeights(
        features.astype(np.uint32), starts.astype(np.int64), child.astype(np.uint32), dense[features][row, child], bias
    )


def some_rows(n_rows, seed, n_features=N_FEATURES):
    """Sparse rows, the first of them empty."""
    random = np.random.RandomState(seed)
    X = random.normal(size=(n_rows, n_features)) * (random.uniform(size=(n_rows, n_features)) < 0.3)
    X[0] = 0.0
    return X.astype(np.float32)


def check_top(ids, scores, probabilities, k):
    """The k best in order: the same probabilities, and each label with its own."""
    n_found = min(k, probabilities.shape[1])
    best = -np.sort(-probabilities, axis=1)[:, :n_found]
    np.testing.assert_allclose(scores[:, :n_found], best, rtol=1e-5, atol=1e-30)
    for row in range(len(ids)):
        found = ids[row, :n_found]
        assert len(set(found.tolist())) == n_found and found.min() >= 0
        np.testing.assert_allclose(scores[row, :n_found], probabilities[row, found], rtol=1e-5, atol=1e-30)
    assert (ids[:, n_found:] == -1).all() and (scores[:, n_found:] == 0.0).all()


links = st.sampled_from(["softmax", "logistic"])


# --- against NumPy -------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), st.integers(0, 10_000), links, st.integers(1, 70))
def test_every_search_on_random_trees(n_labels, seed, link, k):
    model = RandomModel(uneven_tree(n_labels, seed), seed, link)
    X = some_rows(6, seed)
    rows = as_rows(sp.csr_matrix(X))
    expected = model.probabilities(X)
    probabilities = model.packed.probabilities(rows)
    np.testing.assert_allclose(probabilities, expected, rtol=2e-5, atol=1e-30)
    if link == "softmax":
        np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, rtol=1e-5)
    check_top(*model.packed.top_k(rows, k), probabilities, k)
    check_top(*model.packed.top_k(rows, k, len(model.tree)), probabilities, k)


def reference_beam(model, x, k, width):
    """Level by level the best `width` inner nodes; all leaves met on the way count."""
    tree = model.tree
    per_node = np.ones(len(tree))
    for node in range(1, len(tree)):
        per_node[node] = node_probability(model, x, node) * per_node[tree.parent[node]]
    beam, found = [0], []
    while beam:
        below = [child for node in beam for child in tree.children(node)]
        found += [node for node in below if tree.label[node] >= 0]
        inner = [node for node in below if tree.label[node] < 0]
        beam = sorted(inner, key=lambda node: -per_node[node])[:width]
    best = sorted(found, key=lambda node: -per_node[node])[:k]
    return tree.label[best], per_node[best]


def node_probability(model, x, node):
    """Of one node, given its parent."""
    tree = model.tree
    parent = tree.parent[node]
    own = list(tree.children(parent))
    scores = model.bias[own].astype(np.float64)
    if parent in model.weights:
        scores = scores + x.astype(np.float64) @ bfloat16(model.weights[parent])
    z = float(model.slopes[tree.level[parent]]) * scores
    if model.link == "softmax":
        e = np.exp(z - z.max())
        return (e / e.sum())[node - own[0]]
    return 1 / (1 + np.exp(-(z[node - own[0]] + float(model.shifts[tree.level[parent]]))))


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 40), st.integers(0, 10_000), links, st.integers(1, 6), st.integers(1, 5))
def test_a_narrow_beam(n_labels, seed, link, k, width):
    model = RandomModel(uneven_tree(n_labels, seed, widest=4), seed, link)
    X = some_rows(3, seed)
    ids, scores = model.packed.top_k(as_rows(sp.csr_matrix(X)), k, width)
    everything = model.packed.probabilities(as_rows(sp.csr_matrix(X)))
    exact_scores = model.packed.top_k(as_rows(sp.csr_matrix(X)), k)[1]
    assert (scores <= exact_scores * (1 + 1e-6)).all(), "never better than the truth"
    for row in range(len(X)):
        labels, expected = reference_beam(model, X[row], k, width)
        n_found = len(labels)
        np.testing.assert_allclose(scores[row, :n_found], expected, rtol=2e-5, atol=1e-30)
        np.testing.assert_allclose(scores[row, :n_found], everything[row, ids[row, :n_found]], rtol=1e-6)
        assert (ids[row, n_found:] == -1).all() and (scores[row, n_found:] == 0).all()
        assert (np.diff(scores[row]) <= 0).all()


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.integers(0, 10_000), links)
def test_probabilities_of_given_labels(n_labels, seed, link):
    model = RandomModel(uneven_tree(n_labels, seed), seed, link)
    rows = as_rows(sp.csr_matrix(some_rows(6, seed)))
    ids = np.random.RandomState(seed).randint(-1, n_labels, size=(6, 9)).astype(np.int64)
    everything = np.hstack([model.packed.probabilities(rows), np.zeros((6, 1), dtype=np.float32)])
    assert np.array_equal(model.packed.of_labels(rows, ids), np.take_along_axis(everything, ids, axis=1))
    assert np.array_equal(model.packed.of_labels(rows, ids, threads=2), model.packed.of_labels(rows, ids))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 30), st.integers(0, 10_000), links, st.integers(1, 4), st.integers(1, 35))
def test_a_forest_averages_its_trees(n_labels, seed, link, n_trees, k):
    models = [RandomModel(uneven_tree(n_labels, seed + i), seed + i, link) for i in range(n_trees)]
    forest = LabelTreeModel(tuple(model.packed for model in models), "logistic", 1.0)
    X = some_rows(5, seed)
    rows = as_rows(sp.csr_matrix(X))
    mean = np.mean([model.probabilities(X) for model in models], axis=0)
    probabilities = forest.probabilities(rows)
    np.testing.assert_allclose(probabilities, mean, rtol=3e-5, atol=1e-30)
    for width in (None, 2, 100):
        ids, scores = forest.top_k(rows, k, width)
        assert ids.shape == scores.shape == (5, k)
        found = [
            model.packed.top_k(rows, k)[0] if width is None else model.packed.top_k(rows, k, width)[0]
            for model in models
        ]
        for row in range(5):
            candidates = np.setdiff1d(np.concatenate([part[row] for part in found]), [-1])
            best = -np.sort(-probabilities[row, candidates])[:k]
            np.testing.assert_allclose(scores[row, : len(best)], best, rtol=1e-5, atol=1e-30)
            own = ids[row, : len(best)]
            assert set(own.tolist()) <= set(candidates.tolist()) and len(set(own.tolist())) == len(own)
            np.testing.assert_allclose(scores[row, : len(best)], probabilities[row, own], rtol=1e-5, atol=1e-30)
            assert (ids[row, len(best) :] == -1).all() and (scores[row, len(best) :] == 0.0).all()
    check_top(*forest.top_k(rows, n_labels, None), probabilities, n_labels)


@pytest.mark.parametrize("link", ["softmax", "logistic"])
@pytest.mark.parametrize(("arity", "max_leaf"), [(2, 330), (300, 2), (300, 300)])
def test_wide_nodes(link, arity, max_leaf):
    """More children than a byte counts, at the top and at the bottom."""
    n_labels = 650 if max_leaf == 330 else 600
    tree = complete_tree(n_labels, arity, max_leaf)
    assert tree.n_children.max() >= 300
    model = RandomModel(tree, 1, link, density=0.8)
    X = some_rows(5, 1)
    rows = as_rows(sp.csr_matrix(X))
    probabilities = model.packed.probabilities(rows)
    np.testing.assert_allclose(probabilities, model.probabilities(X), rtol=2e-5, atol=1e-30)
    check_top(*model.packed.top_k(rows, 20), probabilities, 20)
    check_top(*model.packed.top_k(rows, 20, len(tree)), probabilities, 20)


def test_the_widest_node_there_may_be():
    """65,536 children: the last is written with all sixteen bits set."""
    tree = complete_tree(2**16, 2, 2**16)
    dense = np.zeros((3, 2**16), dtype=np.float32)
    dense[0, -1], dense[1, 0], dense[2, 300] = 5.0, 6.0, 7.0
    packed = PackedTree.pack(
        tree, {0: node_weights(dense, np.zeros(2**16, dtype=np.float32))}, "logistic", np.ones(1), np.zeros(1)
    )
    ids, _ = packed.top_k(as_rows(sp.eye(3, format="csr", dtype=np.float32)), 1)
    assert tree.label[1 + np.array([2**16 - 1, 0, 300])].tolist() == ids[:, 0].tolist()
    PackedTree.from_arrays(packed.arrays(), "logistic")


def test_deep_trees():
    tree = huffman_tree(np.array([2**i for i in range(40)]))
    assert tree.depth == 39
    for link in ("softmax", "logistic"):
        model = RandomModel(tree, 0, link)
        X = some_rows(4, 0)
        rows = as_rows(sp.csr_matrix(X))
        probabilities = model.packed.probabilities(rows)
        np.testing.assert_allclose(probabilities, model.probabilities(X), rtol=1e-4, atol=1e-30)
        check_top(*model.packed.top_k(rows, 40), probabilities, 40)


def test_features_never_seen():
    model = RandomModel(uneven_tree(30, 3), 3, "softmax")
    X = some_rows(8, 3)
    wide = sp.hstack([sp.csr_matrix(X), sp.random(8, 5000, 0.1, random_state=0, format="csr")], format="csr")
    far = sp.csr_matrix((np.ones(2), ([0, 1], [2**32 - 2, 2**31])), shape=(2, 2**32 - 1))
    packed = model.packed
    assert np.array_equal(packed.probabilities(as_rows(wide)), packed.probabilities(as_rows(sp.csr_matrix(X))))
    nothing = packed.probabilities(as_rows(sp.csr_matrix((2, N_FEATURES))))
    assert np.array_equal(packed.probabilities(as_rows(far)), nothing)
    np.testing.assert_allclose(nothing, model.probabilities(np.zeros((2, N_FEATURES))), rtol=2e-5)


def test_dense_rows_are_the_same_as_sparse():
    model = RandomModel(uneven_tree(30, 4), 4, "logistic")
    X = some_rows(50, 4)
    for search in (lambda rows: model.packed.top_k(rows, 3), lambda rows: model.packed.top_k(rows, 3, 4)):
        for one, other in zip(search(as_rows(X)), search(as_rows(sp.csr_matrix(X)))):
            assert np.array_equal(one, other)


@pytest.mark.parametrize("link", ["softmax", "logistic"])
def test_threads_and_parts_of_rows_change_nothing(link):
    model = RandomModel(uneven_tree(50, 5), 5, link)
    rows = as_rows(sp.csr_matrix(some_rows(3000, 5)))
    packed = model.packed
    for search in (
        lambda rows, threads: packed.top_k(rows, 4, threads=threads),
        lambda rows, threads: packed.top_k(rows, 4, 3, threads),
        lambda rows, threads: (packed.probabilities(rows, threads=threads),),
    ):
        whole = search(rows, 1)
        for one, other in zip(whole, search(rows, 3)):
            assert np.array_equal(one, other)
        for one, other in zip(whole, search(rows[1000:1100], 1)):
            assert np.array_equal(one[1000:1100], other)


@pytest.mark.parametrize("link", ["softmax", "logistic"])
@pytest.mark.parametrize("scale", [1e2, 1e10, 1e30])
def test_extreme_scores_stay_probabilities(link, scale):
    model = RandomModel(uneven_tree(40, 6), 6, link, scale=scale)
    rows = as_rows(sp.csr_matrix(some_rows(20, 6)))
    probabilities = model.packed.probabilities(rows)
    assert np.isfinite(probabilities).all() and (probabilities >= 0).all() and (probabilities <= 1 + 1e-6).all()
    ids, scores = model.packed.top_k(rows, 40)
    assert all(sorted(row) == list(range(40)) for row in ids.tolist())
    assert (np.diff(scores, axis=1) <= 0).all()


def test_ties_are_broken_somehow_but_soundly():
    tree = complete_tree(50, 3, 4)
    packed = PackedTree.pack(tree, {}, "logistic", np.ones(tree.depth), np.zeros(tree.depth))
    rows = as_rows(sp.csr_matrix((2, 3)))
    for ids, scores in (packed.top_k(rows, 50), packed.top_k(rows, 50, 100)):
        assert all(sorted(row) == list(range(50)) for row in ids.tolist())
        assert (np.diff(scores, axis=1) <= 0).all()


# --- packing -------------------------------------------------------------------------------------------


def test_weights_are_rounded_to_the_nearest():
    weights = np.array([1.0, -1.0, 1 + 2**-8, 1 + 3 * 2**-8, 0.1, -3e38, 1e-38, 0.0, 1 + 2**-7], dtype=np.float32)
    tree = complete_tree(len(weights), 2, 20)
    part = node_weights(weights[None, :], np.zeros(len(weights), dtype=np.float32))
    packed = PackedTree.pack(tree, {0: part}, "logistic", np.ones(1), np.zeros(1))
    halves = [(packed.entries & np.uint32(0xFFFF0000)), packed.entries << np.uint32(16)]
    stored = np.concatenate(halves).view(np.float32)[: len(weights)]
    assert np.array_equal(stored, bfloat16(weights))
    with np.errstate(invalid="ignore"):
        assert (np.abs(stored - weights) <= np.abs(weights) * 2**-8).all()


@pytest.mark.parametrize("n_features", [1, 2, 3, 1000])
def test_full_tables_find_everything(n_features):
    """Consecutive features and features far apart, with a slot or two to spare."""
    random = np.random.RandomState(0)
    far = np.unique(random.randint(0, 2**31, n_features))
    for features in (np.arange(n_features), far, far // 2**11 * 2**11):
        features = np.unique(features)
        values = bfloat16(random.normal(size=len(features)))
        part = NodeWeights(
            features.astype(np.uint32),
            np.arange(len(features) + 1),
            np.zeros(len(features), dtype=np.uint32),
            values,
            np.zeros(2, dtype=np.float32),
        )
        packed = PackedTree.pack(complete_tree(2), {0: part}, "logistic", np.ones(1), np.zeros(1))
        X = sp.csr_matrix(
            (np.ones(len(features), dtype=np.float32), (np.arange(len(features)), features)),
            shape=(len(features), 2**31),
        )
        got = packed.probabilities(as_rows(X))[:, 0]
        np.testing.assert_allclose(got, 1 / (1 + np.exp(-values.astype(np.float64))), rtol=1e-5)


@pytest.mark.parametrize("density", [0.05, 0.5, 1.0])
def test_full_and_short_runs_hold_the_same(density):
    """Runs with a word per child and runs with two children a word, side by side in one model."""
    model = RandomModel(uneven_tree(60, 3, widest=20), 3, "softmax", density=density)
    packed, tree = model.packed, model.tree
    node, feature, counts, children, weights = kernels.unpacked(
        packed.tables, packed.slots, packed.entries, tree.n_children
    )
    dense = {parent: np.zeros_like(table) for parent, table in model.weights.items()}
    for n, f, c, w in zip(np.repeat(node, counts), np.repeat(feature, counts), children, weights):
        dense[n][f, c] = w
    for parent, table in model.weights.items():
        assert np.array_equal(dense[parent], bfloat16(table))
    most = sum(int((table != 0).sum()) for table in model.weights.values())
    assert packed.n_weights == most and len(packed.entries) <= most
    if density == 1.0:
        half = sum(
            int((table != 0).any(axis=1).sum()) * ((table.shape[1] + 1) // 2) for table in model.weights.values()
        )
        assert len(packed.entries) == half


def test_arrays_round_trip():
    model = RandomModel(uneven_tree(30, 7), 7, "softmax")
    rows = as_rows(sp.csr_matrix(some_rows(10, 7)))
    back = PackedTree.from_arrays(model.packed.arrays(), "softmax")
    assert np.array_equal(back.probabilities(rows), model.packed.probabilities(rows))


# --- arrays that are not a packed tree -----------------------------------------------------------------


def sound_arrays(seed=8):
    return {
        name: array.copy()
        for name, array in RandomModel(uneven_tree(12, seed), seed, "softmax").packed.arrays().items()
    }


def changed(name, change):
    arrays = sound_arrays()
    arrays[name] = change(arrays[name])
    return arrays


def is_empty(slots):
    return slots >> np.uint64(32) == kernels.NO_FEATURE


def filled(slots):
    """A table without an empty slot: its searches would never end."""
    slots = slots.copy()
    slots[:-1][is_empty(slots[:-1])] &= np.uint64(0xFFFFFFFF)
    return slots


def with_item(position, value):
    def change(array):
        array = array.copy()
        array[position] = value
        return array

    return change


def offset_of_slot(number, value):
    def change(slots):
        at = int(np.flatnonzero(~is_empty(slots))[number])
        return with_item(at, np.uint64(int(slots[at]) & 0xFFFFFFFF00000000 | value))(slots)

    return change


def with_child(child):
    """The first run that names its children, with another child at its first entry."""
    arrays = sound_arrays()
    n_children, slots = arrays["n_children"], arrays["slots"]
    node = np.repeat(np.arange(len(n_children)), np.diff(arrays["tables"]))
    lengths = np.diff((slots & np.uint64(0xFFFFFFFF)).astype(np.int64))
    naming = np.flatnonzero((lengths > 0) & (lengths < (n_children[node] + 1) // 2))
    at = int(slots[naming[0]] & np.uint64(0xFFFFFFFF))
    arrays["entries"][at] = arrays["entries"][at] & np.uint32(0xFFFF0000) | np.uint32(child)
    return arrays


def with_a_longer_run():
    """A run as long as there are children: longer than any may be. The entries are longer by as much."""
    arrays = sound_arrays()
    slots = arrays["slots"]
    arrays["entries"] = np.append(arrays["entries"], np.zeros(9, dtype=np.uint32))
    at = int(np.flatnonzero(~is_empty(slots))[0])
    slots[at + 1 :] += np.uint64(9)
    return arrays


DAMAGES = {
    "tables too short": changed("tables", lambda a: a[:-1]),
    "tables too long": changed("tables", lambda a: np.append(a, a[-1])),
    "tables of int32": changed("tables", lambda a: a.astype(np.int32)),
    "tables of uint64": changed("tables", lambda a: a.astype(np.uint64)),
    "tables start late": changed("tables", with_item(0, 1)),
    "tables start before": changed("tables", with_item(0, -1)),
    "tables end late": changed("tables", lambda a: with_item(-1, a[-1] + 1)(a)),
    "tables end early": changed("tables", lambda a: with_item(-1, a[-1] - 1)(a)),
    "tables go back": changed("tables", with_item(2, -5)),
    "tables far outside": changed("tables", with_item(2, 2**62)),
    "slots cut": changed("slots", lambda a: a[:-1]),
    "slots of int64": changed("slots", lambda a: a.view(np.int64)),
    "slots 2d": changed("slots", lambda a: a.reshape(1, -1)),
    "no empty slot": changed("slots", filled),
    "offset outside": changed("slots", offset_of_slot(0, 2**32 - 2)),
    "offset at the end": changed("slots", offset_of_slot(0, len(sound_arrays()["entries"]))),
    "offset goes back": changed("slots", offset_of_slot(3, 0)),
    "last slot in use": changed("slots", lambda a: with_item(-1, a[-1] & np.uint64(0xFFFFFFFF))(a)),
    "last slot ends late": changed("slots", lambda a: with_item(-1, a[-1] + np.uint64(1))(a)),
    "no last slot": changed("slots", lambda a: a[:0]),
    "entries cut": changed("entries", lambda a: a[:-1]),
    "entries none": changed("entries", lambda a: a[:0]),
    "entries of uint64": changed("entries", lambda a: a.astype(np.uint64)),
    "entries too many": changed("entries", lambda a: np.append(a, a[:1])),
    "run too long": with_a_longer_run(),
    "child too large": with_child(12),
    "child 65535": with_child(0xFFFF),
    "bias too short": changed("bias", lambda a: a[:-1]),
    "bias of float64": changed("bias", lambda a: a.astype(np.float64)),
    "slopes too short": changed("slopes", lambda a: a[:-1]),
    "slopes too long": changed("slopes", lambda a: np.append(a, a)),
    "shifts too short": changed("shifts", lambda a: a[:-1]),
    "shifts of int": changed("shifts", lambda a: a.astype(np.int32)),
    "children too many": changed("n_children", lambda a: with_item(0, a[0] + 1)(a)),
    "label twice": changed("label", lambda a: with_item(-1, a[-2])(a)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_arrays_are_refused(damage):
    with pytest.raises(ValueError):
        PackedTree.from_arrays(dict(DAMAGES[damage]), "softmax")


def test_unknown_links_are_refused():
    with pytest.raises(ValueError, match="unknown link 'probit'"):
        PackedTree.from_arrays(sound_arrays(), "probit")


def test_from_arrays_leaves_the_callers_dictionary_alone():
    arrays = sound_arrays()
    names = set(arrays)
    PackedTree.from_arrays(arrays, "softmax")
    assert set(arrays) == names


MUTANTS = """
import sys
import numpy as np, scipy.sparse as sp
from treemax.models.label_tree.packed_tree import PackedTree
from treemax.inputs.rows import as_rows
rows = as_rows(sp.random(5, 20, 0.4, format="csr", random_state=0, dtype=np.float32))
accepted = 0
models = {}
for name, array in np.load(sys.argv[1]).items():
    number, link, name = name.split("-")
    models.setdefault((number, link), {})[name] = array
for (_, link), arrays in models.items():
    try:
        packed = PackedTree.from_arrays(arrays, link)
    except ValueError:
        continue
    accepted += 1
    packed.probabilities(rows)
    for k in (1, 3, 50):
        ids, _ = packed.top_k(rows, k)
        assert ids.max() < packed.tree.n_labels
        ids, _ = packed.top_k(rows, k, 2)
        assert ids.max() < packed.tree.n_labels
        packed.of_labels(rows, ids)
print(accepted)
"""


def searched_apart(models, folder):
    """Refuse or search these models in a process whose kernels check every index."""
    path = folder / "models.npz"
    np.savez(
        path,
        **{f"{i}-{link}-{name}": array for i, (arrays, link) in enumerate(models) for name, array in arrays.items()},
    )
    cache = os.environ.get("NUMBA_CACHE_DIR", ".numba_cache") + "-bounds"  # not to be mixed up with the others
    return subprocess.run(
        [sys.executable, "-c", MUTANTS, str(path)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": cache},
    )


def mutant(random):
    """A sound model with one to three numbers changed, in the ways that a file is changed."""
    seed = random.randint(40)
    link = ("softmax", "logistic")[random.randint(2)]
    tree = uneven_tree(random.randint(1, 15), seed)
    arrays = dict(RandomModel(tree, seed, link).packed.arrays())
    for _ in range(random.randint(1, 4)):
        name = list(arrays)[random.randint(len(arrays))]
        arrays[name] = with_changed_number(arrays[name], random)
    return arrays, link


@pytest.mark.slow
def test_what_is_accepted_stays_inside(tmp_path):
    """Mutants are refused, or searched without a step outside the arrays."""
    random = np.random.RandomState(0)
    done = searched_apart([mutant(random) for _ in range(800)], tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 100, "enough of them were searched"


@pytest.mark.slow
def test_tables_that_wrap_around_are_refused(tmp_path):
    """In 64 bits, steps that are all positive can lead around the circle."""
    packed = RandomModel(complete_tree(16, 4, 4), 0, "softmax").packed  # every node has room for every child
    arrays = {name: array.copy() for name, array in packed.arrays().items()}
    arrays["tables"][1:5] = [2**63 - 1, -(2**63), -(2**62), 0]
    assert (np.diff(arrays["tables"]) >= 0).all()
    done = searched_apart([(arrays, "softmax")], tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_tree_of_one_node():
    arrays = {
        "n_children": np.zeros(1, dtype=np.int64),
        "label": np.zeros(1, dtype=np.int64),
        "tables": np.zeros(2, dtype=np.int64),
        "slots": np.array([kernels.NO_FEATURE << np.uint64(32)], dtype=np.uint64),
        "entries": np.empty(0, dtype=np.uint32),
        "bias": np.zeros(1, dtype=np.float32),
        "slopes": np.empty(0, dtype=np.float32),
        "shifts": np.empty(0, dtype=np.float32),
    }
    try:
        packed = PackedTree.from_arrays(arrays, "softmax")
    except ValueError:
        return
    ids, scores = packed.top_k(as_rows(sp.eye(3, format="csr", dtype=np.float32)), 1, 10)
    assert (ids == 0).all() and (scores == 1.0).all()
