"""The few-shot problems: the same classes for all numbers of rows, and the command line of Vowpal Wabbit."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

pytest.importorskip("matplotlib")
from benchmarks.experiments import few_shot


def test_every_class_has_the_same_number_of_rows():
    y = np.random.RandomState(0).randint(40, size=400)
    y[y == 7] = 8
    test_y = np.arange(20)
    several = [few_shot.few_rows(y, test_y, shots) for shots in (1, 3, 5)]
    for shots, rows in zip((1, 3, 5), several):
        classes, counts = np.unique(y[rows], return_counts=True)
        assert (counts == shots).all() and 7 not in classes and classes.max() < 20
        assert set(classes) == set(y[several[0]])
    assert set(several[0]) < set(several[1]) < set(several[2])


def test_a_shuffle_keeps_rows_and_classes_together():
    y = np.arange(10)
    problem = few_shot.Problem(sp.csr_matrix(np.diag(y + 1.0)), y, None, y)
    other = problem.shuffled(3)
    assert other.y.tolist() != y.tolist() and problem.is_sparse
    np.testing.assert_array_equal(other.X.sum(axis=1).ravel(), [other.y + 1])


def test_vowpal_wabbit_gets_the_settings_of_its_authors():
    problem = few_shot.Problem(np.ones((3000, 2)), np.arange(3000) % 10, None, None)
    options = few_shot.vw_tree(problem, 3, 4, few_shot.VW_DENSE, 1)
    assert "--memory_tree 389 --leaf_example_multiplier 4 --max_number_of_labels 10" in options
    assert "--dream_repeats 3" in options and "--learn_at_leaf" in options
