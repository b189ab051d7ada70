"""MACH against a reference in plain NumPy, and its parts."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import treemax
from treemax.inputs.labels import Targets
from treemax.models.mach.model import PRIME, buckets_of
from treemax.models.mach.training import bucket_targets, default_buckets


def rows_and_labels(sparse, n_rows=600, n_labels=40, n_features=30, seed=0):
    random = np.random.default_rng(seed)
    y = random.integers(n_labels, size=n_rows)
    X = random.normal(size=(n_labels, n_features))[y] + 0.5 * random.normal(size=(n_rows, n_features))
    X = np.where(np.abs(X) > 0.5, X, 0).astype(np.float32)
    return (sp.csr_matrix(X) if sparse else X), y


def softmax(scores):
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def reference(model, X, combine, multi_label):
    """The probabilities before calibration, from the weights of the trained model."""
    trained = model.model_
    rows = X.toarray() if sp.issparse(X) else X
    scores = trained.flat.scores(rows).astype(np.float64).reshape(len(rows), -1, trained.n_buckets)
    of_buckets = 1 / (1 + np.exp(-scores)) if multi_label else softmax(scores)
    repetitions = np.arange(of_buckets.shape[1])[:, None]
    of_labels = of_buckets[:, repetitions, trained.buckets]
    combined = {"mean": np.mean, "min": np.min, "median": np.median}[combine](of_labels, axis=1)
    if multi_label:
        return combined
    estimate = np.maximum(combined - 1 / trained.n_buckets, 0) + 1e-6 * combined
    return estimate / estimate.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("combine", ["mean", "min", "median"])
@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
def test_probabilities_are_those_of_the_reference(sparse, multi_label, combine):
    X, y = rows_and_labels(sparse)
    labels = [[int(i), int(i) // 2] for i in y] if multi_label else y
    model = treemax.MACH(n_buckets=9, n_repetitions=6, combine=combine, calibration=0, verbose=0).fit(X, labels)
    expected = reference(model, X[:50], combine, multi_label)
    np.testing.assert_allclose(model.predict_proba(X[:50]), expected, atol=2e-6)
    _, scores = model.predict_topk(X[:50], k=3)
    np.testing.assert_allclose(scores, -np.sort(-expected, axis=1)[:, :3], atol=2e-6)
    assert model.model_.buckets.shape == (6, len(model.classes_))


def test_repetitions_tell_apart_labels_that_share_a_bucket():
    X, y = rows_and_labels(sparse=False, n_labels=60, n_rows=3000)
    accuracy = [
        treemax.MACH(n_buckets=12, n_repetitions=n, verbose=0).fit(X[:2500], y[:2500]).score(X[2500:], y[2500:])
        for n in (1, 16)
    ]
    assert accuracy[0] < 0.4 and accuracy[1] > 0.8


def test_a_model_has_as_many_outputs_as_buckets_not_labels():
    X, y = rows_and_labels(sparse=False, n_labels=40)
    model = treemax.MACH(n_buckets=5, n_repetitions=3, verbose=0).fit(X, y)
    assert model.model_.flat.weights.shape == (15, 30)
    assert model.describe()["buckets"] == 5 and model.describe()["repetitions"] == 3


def test_combine_may_change_after_training():
    X, y = rows_and_labels(sparse=True)
    model = treemax.MACH(n_buckets=9, n_repetitions=5, calibration=0, verbose=0).fit(X, y)
    model.set_params(combine="min")
    np.testing.assert_allclose(model.predict_proba(X[:20]), reference(model, X[:20], "min", False), atol=2e-6)


def test_hash_functions_spread_labels_evenly_and_collide_like_chance():
    random = np.random.default_rng(0)
    multipliers, offsets = random.integers(1, PRIME, 2000), random.integers(0, PRIME, 2000)
    buckets = buckets_of(multipliers, offsets, 10, np.arange(50))
    assert buckets.max() == 9 and abs(np.bincount(buckets.ravel()) / buckets.size - 0.1).max() < 0.01
    collide = (buckets[:, 3] == buckets[:, 31]).mean()
    assert abs(collide - 0.1) < 0.025  # 2-universal: the chance of a collision is one in ten


@given(st.lists(st.lists(st.integers(0, 19), max_size=4, unique=True), min_size=1, max_size=20))
@settings(deadline=None, max_examples=50)
def test_bucket_targets_are_the_buckets_of_the_labels(lists):
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in lists])])
    targets = Targets(indptr, np.array([i for row in lists for i in sorted(row)], dtype=np.uint32))
    buckets = (np.arange(20) * 7 % 6).astype(np.uint32)
    found = bucket_targets(targets, buckets)
    rows = [found.ids[found.indptr[i] : found.indptr[i + 1]].tolist() for i in range(len(lists))]
    assert rows == [sorted({int(buckets[i]) for i in row}) for row in lists]


def test_interrupted_training_keeps_the_finished_repetitions(monkeypatch):
    X, y = rows_and_labels(sparse=True)
    train, done = treemax.OneVsAll.train_ids, []

    def interrupted(self, *arguments):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(1)
        return train(self, *arguments)

    monkeypatch.setattr(treemax.OneVsAll, "train_ids", interrupted)
    model = treemax.MACH(n_repetitions=4, verbose=0)
    with pytest.raises(treemax.TrainingInterrupted, match="50%"):
        model.fit(X, y)
    assert len(model.model_.multipliers) == 2 and model.predict(X[:5]).shape == (5,)


def test_default_number_of_buckets_grows_with_the_root_of_the_labels():
    assert [default_buckets(n) for n in (1, 2, 100, 10_000, 1_000_000)] == [2, 3, 20, 200, 2000]
