"""Scaling of dense rows, and passes in which held-out rows are trained on late."""

import numpy as np
import pytest

from treemax.inputs.labels import Targets, take_targets
from treemax.inputs.rows import as_rows
from treemax.models.trained.scaling import Scaling, scaling_of
from treemax.models.training.held_out import Schedule, held_out_rows


def test_scaling_centres_and_brings_spreads_to_between_a_third_and_one():
    random = np.random.RandomState(0)
    spreads = np.array([0.5, 1.0, 1.0, 1.0, 2.0, 1e4, 1e-4])
    X = (random.normal(size=(5000, 7)) * spreads + 7.0 * spreads).astype(np.float32)
    scaled = scaling_of(X)(X)
    np.testing.assert_allclose(scaled.mean(axis=0), 0.0, atol=1e-2)
    np.testing.assert_allclose(scaled.std(axis=0), [0.5, 1, 1, 1, 1, 1, 1 / 3], rtol=0.1)


def test_constant_features_become_zero_and_sparse_rows_stay():
    X = np.random.RandomState(0).normal(size=(100, 3)).astype(np.float32)
    X[:, 1] = 1e6
    assert (scaling_of(X)(X)[:, 1] == 0.0).all()
    assert scaling_of(np.ones((5, 2), np.float32)) is None
    import scipy.sparse as sp

    assert scaling_of(as_rows(sp.csr_matrix(X))) is None


def test_features_that_come_later_stay_as_they_are():
    wider = Scaling(np.ones(2, np.float32), np.full(2, 3.0, np.float32)).widened(4)
    np.testing.assert_array_equal(wider(np.full((1, 4), 2.0, np.float32)), [[3.0, 3.0, 2.0, 2.0]])


def test_rows_held_out_are_some_and_never_too_many():
    assert len(held_out_rows(2000, 0.05, 0)) == 100
    assert len(np.unique(held_out_rows(10**6, 0.05, 0))) == 2000
    assert len(held_out_rows(40, 0.1, 0)) == 0  # four rows say nothing


@pytest.mark.parametrize("passes", [1, 2, 3, 10])
def test_schedule_learns_every_row_and_judges_rows_before_it_learns_them(passes):
    schedule = Schedule.of(1000, passes, 0.1, 0)
    first, last = ([*part.orders] for part in schedule.parts)
    assert [part.calibrates for part in schedule.parts] == [False, True]
    assert len(schedule.held) == 100 and not np.isin(np.concatenate(first), schedule.held).any()
    counts = np.bincount(np.concatenate(first + last), minlength=1000)
    assert counts.min() >= 1 and counts.max() == passes and counts.sum() == schedule.planned


def test_labels_of_some_rows():
    targets = Targets(np.array([0, 2, 2, 3]), np.array([1, 4, 0], dtype=np.uint32))
    some = take_targets(targets, np.array([2, 0, 1], dtype=np.uint32))
    assert some.indptr.tolist() == [0, 1, 3, 3] and some.ids.tolist() == [0, 1, 4]
