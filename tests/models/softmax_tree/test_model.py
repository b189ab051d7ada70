"""Predictions of dense softmax trees against slow ones from the same weights, for leaves and rows of any size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from treemax.models.softmax_tree import model as inference
from treemax.models.softmax_tree.model import Branch, Softmax, SoftmaxTreeModel

WIDTHS = (1, 7, 8, 9, 15, 16, 17, 24, 25, 32, 50)


def random_tree(random, depth, n_labels, n_features, widths):
    if depth == 0 or random.uniform() < 0.1:
        classes = random.permutation(n_labels)[: random.choice(widths)]
        coef = random.normal(size=(len(classes), n_features)).astype(np.float32)
        return Softmax(classes, coef, random.normal(size=len(classes)).astype(np.float32))
    sides = [random_tree(random, depth - 1, n_labels, n_features, widths) for _ in range(2)]
    return Branch(
        random.normal(size=(1, n_features)).astype(np.float32), float(random.normal() / 3), sides[0], sides[1]
    )


def random_model(seed, n_trees, n_features, widths=WIDTHS, n_labels=60, depth=3):
    random = np.random.RandomState(seed)
    trees = [random_tree(random, depth, n_labels, n_features, widths) for _ in range(n_trees)]
    return SoftmaxTreeModel.pack(trees, n_labels, n_features), trees, random


def rounded(coef):
    """Weights as they are kept: in half precision, times a power of two for each class."""
    scale = np.exp2(np.ceil(np.log2(np.abs(coef).max(axis=1, keepdims=True))))
    return (coef / scale).astype(np.float16).astype(np.float64) * scale


def slow_probabilities(trees, X, n_labels):
    out = np.zeros((len(X), n_labels))
    for x, own in zip(X.astype(np.float64), out):
        for node in trees:
            while isinstance(node, Branch):
                node = node.right if float(node.coef[0] @ x) + node.bias >= 0 else node.left
            scores = rounded(node.coef) @ x + node.bias
            e = np.exp(scores - scores.max())
            own[node.classes] += e / e.sum() / len(trees)
    return out


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 70), st.integers(1, 40), st.integers(1, 50))
@example(0, 1, 256, 5, 1)
@example(1, 4, 255, 20, 40)
def test_answers_agree_with_slow_ones(seed, n_trees, n_features, k, n_rows):
    model, trees, random = random_model(seed, n_trees, n_features)
    X = random.normal(size=(n_rows, n_features)).astype(np.float32)
    expected = slow_probabilities(trees, X, 60)
    np.testing.assert_allclose(model.probabilities(X), expected, rtol=2e-4, atol=1e-6)
    ids, probabilities = model.top_k(X, k)
    in_order = -np.sort(-expected, axis=1)[:, :k]
    np.testing.assert_allclose(probabilities, in_order, rtol=2e-4, atol=1e-6)
    n_known = np.minimum((expected > 0).sum(axis=1), k)
    assert ((ids >= 0).sum(axis=1) == n_known).all()
    for own_ids, own, all_own in zip(ids, probabilities, expected):
        known = own_ids[own_ids >= 0]
        assert len(set(known.tolist())) == len(known)
        np.testing.assert_allclose(own[: len(known)], all_own[known], rtol=2e-4, atol=1e-6)
        assert (own[len(known) :] == 0).all()


@pytest.mark.parametrize("n_trees", [1, 3])
@pytest.mark.parametrize("n_features", [3, 33, 64])
def test_a_row_has_one_answer_alone_in_a_batch_and_in_threads(n_trees, n_features, monkeypatch):
    monkeypatch.setattr(inference, "ROWS_AT_ONCE", 64)
    monkeypatch.setattr(inference, "ROWS_PER_THREAD", 16)
    model, _, random = random_model(5, n_trees, n_features)
    X = random.normal(size=(200, n_features)).astype(np.float32)
    ids, probabilities = model.top_k(X, 4)
    for i in range(len(X)):
        alone = model.top_k(X[i : i + 1], 4)
        np.testing.assert_array_equal(alone[0][0], ids[i])
        np.testing.assert_array_equal(alone[1][0], probabilities[i])
    for threads in (2, 3):
        for found, answer in zip((ids, probabilities), model.top_k(X, 4, threads=threads)):
            np.testing.assert_array_equal(found, answer)


@pytest.mark.parametrize("k", [1, 3, 16, 17, 40])
def test_among_equals_the_first_class_of_the_leaf_comes_first(k):
    classes = np.arange(40)[::-1]
    coef = np.zeros((40, 4), np.float32)
    bias = np.where(np.arange(40) % 3 == 1, 1.0, 0.0).astype(np.float32)
    model = SoftmaxTreeModel.pack([Softmax(classes, coef, bias)], 40, 4)
    ids, _ = model.top_k(np.ones((1, 4), np.float32), k)
    np.testing.assert_array_equal(ids[0], classes[np.argsort(-bias, kind="stable")][:k])


def test_scores_that_are_far_apart_give_probabilities():
    coef = np.array([[300.0], [-300.0], [0.0], [299.0]] * 5, np.float32)
    model = SoftmaxTreeModel.pack([Softmax(np.arange(20), coef, np.zeros(20, np.float32))], 20, 1)
    probabilities = model.probabilities(np.array([[1.0], [-1.0], [1e4]], np.float32))
    assert np.isfinite(probabilities).all()
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, rtol=1e-5)
    assert (np.argmax(probabilities, axis=1) == [0, 1, 0]).all()


@pytest.mark.parametrize("n_trees", [1, 3])
def test_rows_of_huge_numbers_are_answered(n_trees):
    model, _, random = random_model(3, n_trees, 20)
    X = (np.float32(3e38) * random.uniform(-1, 1, size=(50, 20))).astype(np.float32)
    ids, probabilities = model.top_k(X, 3)
    assert (ids[:, 0] >= 0).all() and np.isfinite(probabilities).all()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 40))
def test_the_parts_of_a_model_are_class_by_class(seed, n_trees, n_features):
    model, trees, random = random_model(seed, n_trees, n_features, depth=2)
    header, arrays = model.to_parts()
    stack, leaves = trees[::-1], []
    while stack:
        node = stack.pop()
        if isinstance(node, Branch):
            stack += [node.right, node.left]
        else:
            leaves.append(node)
    own = arrays["halves"].astype(np.float64) * arrays["scale"][:, None]
    np.testing.assert_array_equal(own, np.concatenate([rounded(leaf.coef) for leaf in leaves]))
    np.testing.assert_array_equal(arrays["classes"], np.concatenate([leaf.classes for leaf in leaves]))
    again = SoftmaxTreeModel.from_parts(header, arrays, 60)
    X = random.normal(size=(20, n_features)).astype(np.float32)
    for found, answer in zip(model.top_k(X, 3), again.top_k(X, 3)):
        np.testing.assert_array_equal(found, answer)
