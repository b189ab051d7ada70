"""Double sampling against a reference in plain NumPy, and its parts."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import treemax
from treemax.inputs.rows import as_rows
from treemax.models.double_sampling import kernels
from treemax.models.double_sampling.model import SIMILARITIES
from treemax.models.double_sampling.training import class_statistics, pairwise_weights, sample_rows

NOBODY = -1


def rows_and_labels(n_rows=300, n_labels=12, n_features=40, seed=0):
    """Counts of words, each class with words of its own."""
    random = np.random.default_rng(seed)
    y = random.integers(n_labels, size=n_rows)
    y[:n_labels] = np.arange(n_labels)
    rates = random.gamma(0.3, 1.0, size=(n_labels, n_features))
    return random.poisson(rates[y]).astype(np.float32), y


def reference_similarities(X, y, row, label, left_out=None):
    """The ten joint features of a row and a class; `left_out` is the place of the row among its class."""
    n, n_labels = len(X), y.max() + 1
    own = X[np.flatnonzero((y == label) & (np.arange(n) != (NOBODY if left_out is None else left_out)))]
    in_class, in_all = np.abs(own.sum(axis=0)), np.abs(X).sum(axis=0)
    idf = np.log(n / np.maximum(1, (X != 0).sum(axis=0)))
    mean_length = max(1.0, (X != 0).sum() / n_labels)
    length = (own != 0).sum() / mean_length
    common = (row != 0) & (in_class > 0)
    frequency, share = in_class[common], in_class[common] / in_class.sum() if common.any() else in_class[common]
    rarity, x = in_all.sum() / in_all[common], np.abs(row[common])
    return np.array([
        np.log(1 + frequency).sum(), np.log(1 + rarity).sum(), idf[common].sum(), (share * idf[common]).sum(),
        np.log(1 + share).sum(), np.log(1 + share * idf[common]).sum(), np.log(1 + share * rarity).sum(), common.sum(),
        (idf[common] * 2 * x / (x + 0.25 + 0.75 * length)).sum(),
        np.linalg.norm(row - (own.mean(axis=0) if len(own) else 0)),
    ])  # fmt: skip


def reference_nearest(X, y, row, k, distance):
    centroids = np.array([X[y == label].mean(axis=0) for label in range(y.max() + 1)])
    if distance == "cosine":
        lengths = np.linalg.norm(centroids, axis=1)
        far = -(centroids @ row) / np.where(lengths > 0, lengths, 1)
    else:
        far = np.linalg.norm(centroids - row, axis=1)
    return np.argsort(far, kind="stable")[:k]


def statistics_of(X, y):
    return class_statistics(as_rows(sp.csr_matrix(X)), y.astype(np.uint32), int(y.max()) + 1)


@given(st.integers(0, 10_000))
@settings(deadline=None, max_examples=25)
def test_joint_features_are_those_of_the_reference(seed):
    X, y = rows_and_labels(n_rows=40, n_labels=5, n_features=12, seed=seed)
    statistics, rows = statistics_of(X, y), as_rows(sp.csr_matrix(X[:8]))
    ids = np.tile(np.array([3, NOBODY, 0, 4, 1, 2]), (8, 1))
    for own in (np.full(8, NOBODY), y[:8]):
        found = statistics.similarities(rows, ids, own)
        for i in range(8):
            for place, label in enumerate(ids[i]):
                left_out = i if label == own[i] else None
                expected = (
                    np.zeros(len(SIMILARITIES))
                    if label == NOBODY
                    else reference_similarities(X, y, X[i], label, left_out)
                )
                if left_out is not None and (y == label).sum() == 1:
                    expected[kernels.DISTANCE] = np.linalg.norm(X[i])
                np.testing.assert_allclose(found[i, place], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_candidates_are_the_nearest_centroids(distance):
    X, y = rows_and_labels()
    model = treemax.DoubleSampling(n_candidates=4, distance=distance, calibration=0, verbose=0).fit(X, y)
    unseen, _ = rows_and_labels(n_rows=50, seed=1)
    labels, scores = model.predict_topk(unseen, 6)
    for row, found, score in zip(unseen, labels, scores, strict=True):
        assert {label for label in found if label is not None} == set(reference_nearest(X, y, row, 4, distance))
        assert (score[4:] == 0).all() and score.sum() == pytest.approx(1, abs=1e-5)


def test_a_class_leaves_a_row_out_when_the_nearest_are_found():
    X, y = rows_and_labels()
    statistics, rows = statistics_of(X, y), as_rows(sp.csr_matrix(X[:30]))
    for distance in ("cosine", "euclidean"):
        found = statistics.nearest(rows, y[:30], 3, distance)
        for i in range(30):
            others = np.arange(len(X)) != i
            assert found[i].tolist() == reference_nearest(X[others], y[others], X[i], 3, distance).tolist()


def test_probabilities_are_a_softmax_over_the_candidates():
    X, y = rows_and_labels()
    model = treemax.DoubleSampling(n_candidates=5, calibration=0, verbose=0).fit(X, y)
    weights = np.array(list(model.similarity_weights_.values()))
    probabilities = model.predict_proba(X[:20])
    for row, found in zip(X[:20], probabilities, strict=True):
        candidates = reference_nearest(X, y, row, 5, "cosine")
        scores = np.array([weights @ reference_similarities(X, y, row, label) for label in candidates])
        expected = np.zeros(len(found))
        expected[candidates] = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
        np.testing.assert_allclose(found, expected, atol=2e-3)


def test_weights_are_the_least_logistic_loss():
    random = np.random.default_rng(0)
    pairs = random.normal(size=(500, 3)) * [1.0, 10.0, 0.0] + [0.5, -2.0, 0.0]
    weights = pairwise_weights(pairs)
    wrong = 1 / (1 + np.exp(pairs @ weights))
    np.testing.assert_allclose(wrong @ pairs / len(pairs), 0, atol=2e-3)
    assert weights[0] > 0 > weights[1] and weights[2] == 0
    assert np.isfinite(pairwise_weights(np.abs(pairs))).all(), "separable pairs"


def test_adversaries_at_random_are_distinct_and_never_the_own_class():
    own = np.arange(2000) % 7
    ids = np.empty((2000, 4), dtype=np.int64)
    kernels.draw_others(own, 7, np.random.default_rng(0).random(ids.shape), ids)
    assert all(len(set(row)) == 4 for row in ids.tolist()) and (ids != own[:, None]).all()
    counts = np.bincount(ids[own == 0].ravel(), minlength=7)[1:]
    assert abs(counts / counts.sum() - 1 / 6).max() < 0.03
    everyone = np.empty((7, 6), dtype=np.int64)
    kernels.draw_others(np.arange(7), 7, np.random.default_rng(0).random(everyone.shape), everyone)
    assert [sorted(row) for row in everyone.tolist()] == [[j for j in range(7) if j != i] for i in range(7)]


def test_large_classes_are_sampled_and_small_ones_whole():
    labels = np.repeat([0, 1, 2], [5000, 1000, 8]).astype(np.uint32)
    kept = np.bincount(labels[sample_rows(labels, 100, np.random.RandomState(0))])
    assert 60 < kept[0] < 140 and 60 < kept[1] < 140 and kept[2] == 8


def test_ranking_is_better_than_the_nearest_centroid():
    X, y = rows_and_labels(n_rows=2500, n_labels=30)
    model = treemax.DoubleSampling(n_candidates=1, verbose=0).fit(X[:2000], y[:2000])
    accuracy = model.score(X[2000:], y[2000:])
    assert model.set_params(n_candidates=20).score(X[2000:], y[2000:]) > accuracy + 0.02


def test_without_pairs_the_nearest_centroid_wins():
    X, y = rows_and_labels(n_rows=12)
    model = treemax.DoubleSampling(distance="euclidean", verbose=0).fit(X, y)
    assert model.similarity_weights_["distance to the centroid"] == -1
    assert (model.predict(X) == y).mean() > 0.9


def test_a_model_of_empty_rows_can_be_loaded(tmp_path):
    """`np.bincount` counts in integers where there is nothing to count, which the reader refuses."""
    X, y = np.zeros((6, 3), np.float32), list("abcabc")
    model = treemax.DoubleSampling(verbose=0).fit(X, y)
    model.save(tmp_path / "m.treemax")
    loaded = treemax.load(tmp_path / "m.treemax")
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
