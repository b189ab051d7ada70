"""Theorem 3.1: a linear classifier is an oblique tree with one class at each leaf, and not the other way round."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from treemax.models.softmax_tree.linear import MOST_CLASSES, tree_of_linear_classifier
from treemax.models.softmax_tree.model import Branch, Softmax, SoftmaxTreeModel

GRID = np.array(list(product(range(-3, 4), repeat=2)), np.float32)  # sums of small integers are exact


@pytest.mark.parametrize("n_classes", range(1, 8))
@pytest.mark.parametrize("seed", range(5))
def test_the_tree_answers_as_the_classifier_at_every_point(n_classes, seed):
    """Also at the boundaries between classes, of which integers have many."""
    random = np.random.RandomState(seed)
    coef, intercept = random.randint(-3, 4, size=(n_classes, 2)), random.randint(-3, 4, size=n_classes)
    scores = GRID @ coef.T + intercept
    tree = tree_of_linear_classifier(coef, intercept)
    ids, probabilities = tree.top_k(GRID, 1)
    np.testing.assert_array_equal(ids[:, 0], scores.argmax(axis=1))
    assert (probabilities == 1).all()
    if n_classes > 2:
        assert (np.sort(scores, axis=1)[:, -1] == np.sort(scores, axis=1)[:, -2]).any()


@pytest.mark.parametrize("n_classes", range(1, 8))
def test_the_tree_is_complete_of_depth_one_less_than_the_classes(n_classes):
    tree = tree_of_linear_classifier(np.eye(n_classes), np.zeros(n_classes))
    assert tree.n_leaves == 2 ** (n_classes - 1) and tree.depth == n_classes - 1
    leaves_of = np.bincount(tree.structure.classes, minlength=n_classes)
    assert leaves_of.tolist() == [1, *(2 ** max(0, c - 1) for c in range(1, n_classes))]


def test_a_tree_may_have_a_class_whose_region_is_not_convex():
    """So no linear classifier answers as it does: (-2) and (2) are of class 0, the point between them is of class 1."""
    leaves = [Softmax(np.array([c]), np.zeros((1, 1), np.float32), np.zeros(1, np.float32)) for c in (0, 1, 0)]
    one = np.ones((1, 1), np.float32)
    tree = SoftmaxTreeModel.pack([Branch(one, 1.0, leaves[0], Branch(one, -1.0, leaves[1], leaves[2]))], 2, 1)
    ids, _ = tree.top_k(np.array([[-2.0], [0.0], [2.0]], np.float32), 1)
    assert ids.ravel().tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    "coef, intercept, message",
    [
        (np.zeros(3), np.zeros(3), "coef must have shape"),
        (np.zeros((3, 2)), np.zeros(2), "coef must have shape"),
        (np.zeros((MOST_CLASSES + 1, 2)), np.zeros(MOST_CLASSES + 1), "1 to 16 classes, got 17"),
    ],
)
def test_other_shapes_are_refused(coef, intercept, message):
    with pytest.raises(ValueError, match=message):
        tree_of_linear_classifier(coef, intercept)
