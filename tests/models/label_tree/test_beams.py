"""Beam search of several rows and trees side by side, bit for bit against one row and one tree after the other."""

import copy
import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import treemax
from tests.models.label_tree.test_model import RandomModel, links, some_rows, uneven_tree
from treemax.inputs.rows import as_rows, read_only
from treemax.kernels import search as kernels
from treemax.kernels.vector import WIDTH
from treemax.models.label_tree.model import LabelTreeModel, _without_duplicates
from treemax.models.trained.searching import largest_weights


def searched(packed, rows, k, width):
    """The answers of a heap of nodes."""
    ids, probabilities = np.empty((len(rows), k), np.int64), np.empty((len(rows), k), np.float32)
    kernels.best_labels(*packed._arguments(rows), min(width, len(packed.tree)), ids, probabilities)
    return ids, probabilities


def ranked(trees, rows, k, width):
    """The labels that any tree finds, by the mean of their probabilities."""
    model = LabelTreeModel(tuple(trees), "logistic", 1.0)
    candidates = _without_duplicates([searched(packed, rows, k, width) for packed in trees])
    ids, probabilities = np.empty((len(rows), k), np.int64), np.empty((len(rows), k), np.float32)
    kernels.rank(candidates, model.of_labels(rows, candidates), ids, probabilities)
    return ids, probabilities


def assert_same(found, expected):
    for one, other in zip(found, expected):
        np.testing.assert_array_equal(one, other)


widths, sizes = st.sampled_from([1, 2, 3, 10, 1000]), st.sampled_from([1, 2, 7, 9, 40])


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 80), st.integers(0, 10_000), links, widths, st.integers(1, 25), sizes)
def test_one_tree(n_labels, seed, link, width, k, n_rows):
    packed = RandomModel(uneven_tree(n_labels, seed, widest=25), seed, link).packed
    rows = as_rows(sp.csr_matrix(some_rows(n_rows, seed)))
    assert_same(packed.top_k(rows, k, width), searched(packed, rows, k, width))


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 60), st.integers(0, 10_000), links, widths, st.integers(1, 25), sizes, st.integers(2, 11))
def test_several_trees(n_labels, seed, link, width, k, n_rows, n_trees):
    trees = [RandomModel(uneven_tree(n_labels, seed + i), seed + i, link).packed for i in range(n_trees)]
    rows = as_rows(sp.csr_matrix(some_rows(n_rows, seed)))
    found = LabelTreeModel(tuple(trees), "logistic", 1.0).top_k(rows, k, width)
    assert_same(found, ranked(trees, rows, k, width))


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 60), st.integers(0, 10_000), widths, st.integers(1, 25), st.integers(1, 3))
def test_ties_are_broken_alike(n_labels, seed, width, k, n_trees):
    """With few different weights, all large or zero, many probabilities are equal, often zero or one."""
    trees = []
    for i in range(n_trees):
        model = RandomModel(uneven_tree(n_labels, seed + i), seed, "logistic", density=0.1, scale=50.0)
        model.packed.bias[:] = 0.0
        model.packed.shifts[:] = 0.0
        trees.append(model.packed)
    rows = as_rows(sp.csr_matrix(np.sign(some_rows(12, seed))))
    expected = searched(trees[0], rows, k, width) if n_trees == 1 else ranked(trees, rows, k, width)
    assert_same(LabelTreeModel(tuple(trees), "logistic", 1.0).top_k(rows, k, width), expected)


@settings(max_examples=80, deadline=None)
@given(
    st.integers(1, 80), st.integers(0, 10_000), links, widths, st.integers(1, 25), st.integers(0, 7), sizes, st.floats(0.02, 1.2)
)  # fmt: skip
def test_allowed_labels_and_the_best_of_all(n_labels, seed, link, width, k, n_first, n_rows, share):
    packed = RandomModel(uneven_tree(n_labels, seed, widest=25), seed, link).packed
    rows = as_rows(sp.csr_matrix(some_rows(n_rows, seed)))
    weights = (np.random.default_rng(seed).random(n_labels) < share).astype(np.float32)
    first, of_first, *allowed = packed.top_k_allowed(rows, k, n_first, weights, width)
    assert first.shape == of_first.shape == (n_rows, n_first)
    if n_first:
        assert_same((first, of_first), searched(packed, rows, n_first, width))
    assert_same(allowed, packed.top_k_weighted(rows, k, weights, width))
    exact = packed.top_k_allowed(rows, k, n_first, weights, None)
    assert_same(exact, packed.top_k_allowed(rows, k, n_first, weights, len(packed.tree)))


@settings(max_examples=40, deadline=None)
@given(st.integers(20, 80), st.integers(0, 10_000), links, widths, st.integers(1, 6), st.integers(0, 6))
def test_few_labels_left_out(n_labels, seed, link, width, k, n_left_out):
    """The best labels of all, filtered, are those of a search for allowed labels, as long as no branch is pruned."""
    packed = RandomModel(uneven_tree(n_labels, seed, widest=25), seed, link).packed
    tree, rows = packed.tree, as_rows(sp.csr_matrix(some_rows(9, seed)))
    weights = np.ones(n_labels, np.float32)
    weights[np.random.default_rng(seed).choice(n_labels, n_left_out, replace=False)] = 0
    of_nodes = largest_weights(packed, tree.parent, tree.leaf_of, weights, len(tree))
    pruned = (of_nodes.values[: len(tree)] == 0)[tree.n_children > 0].any()
    assert of_nodes.n_to_filter(k, 6) == (0 if pruned else max(6, k + n_left_out))
    assert of_nodes.n_to_filter(1, 0) == 0 and of_nodes.n_to_filter(13, 6) == 0
    expected = packed.beams.top_k_allowed(rows, k, 6, of_nodes.values, width)
    assert_same(packed.top_k_allowed(rows, k, 6, weights, width), expected)


def test_allowed_labels_of_some_rows_and_threads():
    packed = RandomModel(uneven_tree(200, 0, widest=40), 0, "softmax").packed
    rows, weights = as_rows(sp.csr_matrix(some_rows(700, 1))), (np.arange(200) % 9 == 0).astype(np.float32)
    found = packed.top_k_allowed(rows, 5, 6, weights, 10)
    assert_same(packed.top_k_allowed(rows, 5, 6, weights, 10, threads=3), found)
    for i in range(20):
        assert_same(packed.top_k_allowed(rows[i : i + 1], 5, 6, weights, 10), [part[i : i + 1] for part in found])


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))])
def test_copies_keep_what_is_read_in_whole_vectors(copied):
    packed = RandomModel(uneven_tree(50, 0), 0, "softmax").packed
    rows, weights = as_rows(sp.csr_matrix(some_rows(9, 0))), (np.arange(50) % 3 == 0).astype(np.float32)
    expected = packed.top_k_allowed(rows, 5, 0, weights, 10)
    again, same_weights = copied((packed, weights))
    assert_same(again.top_k_allowed(rows, 5, 0, same_weights, 10), expected)
    of_nodes = again.__dict__["_last_weights"][2].values
    of_all = of_nodes if of_nodes.base is None else of_nodes.base
    assert len(of_all) == len(packed.tree) + WIDTH


def test_part_of_the_rows_and_threads():
    trees = tuple(RandomModel(uneven_tree(200, i, widest=40), i, "softmax").packed for i in range(3))
    rows = as_rows(sp.csr_matrix(some_rows(700, 1)))
    for model in (LabelTreeModel(trees[:1], "logistic", 1.0), LabelTreeModel(trees, "logistic", 1.0)):
        ids, probabilities = model.top_k(rows, 5, 10)
        assert_same(model.top_k(rows, 5, 10, threads=3), (ids, probabilities))
        assert_same(model.top_k(rows[300:333], 5, 10), (ids[300:333], probabilities[300:333]))
        for i in range(20):
            assert_same(model.top_k(rows[i : i + 1], 5, 10), (ids[i : i + 1], probabilities[i : i + 1]))


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_have_addresses_of_their_own(copied):
    """A copied or pickled tree must not look into the memory of the first one, which may be gone."""
    packed = RandomModel(uneven_tree(50, 0), 0, "softmax").packed
    rows = as_rows(sp.csr_matrix(some_rows(9, 0)))
    expected = packed.top_k(rows, 5, 10)
    again = copied(packed)
    del packed
    assert_same(again.top_k(rows, 5, 10), expected)
    for array, address in zip(again.beams.arrays[0], again.beams.table[0]):
        assert array.__array_interface__["data"][0] == address
    assert again.slots is again.beams.arrays[0][2]


def test_features_beyond_all_and_empty_rows():
    packed = RandomModel(uneven_tree(30, 3), 3, "logistic").packed
    X = sp.csr_matrix((np.ones(2, np.float32), [5, 2**31 - 1], [0, 0, 2, 2]), shape=(3, 2**31 - 1 + 1))
    rows = as_rows(X)
    last = treemax.inputs.rows.SparseRows(
        np.array([0, 2]), read_only(np.array([5, 2**32 - 1], dtype=np.uint32)), np.ones(2, np.float32), 2**32 - 1
    )
    assert_same(packed.top_k(last, 4, 3), searched(packed, last, 4, 3))
    assert_same(packed.top_k(rows, 4, 3), searched(packed, rows, 4, 3))
