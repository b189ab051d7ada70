"""Scorers in half precision are close to the trained weights, and up to date."""

import numpy as np
import pytest

import treemax
from treemax.kernels.jit import kernel
from treemax.kernels.scorers import HalfScorers, scores, scores_of, update
from treemax.models.trained.scorers import dense_scorers, frozen_scorers, prediction_scorers, trainable_scorers


@kernel
def score_group(scorers, group, width, x, out):
    scores(scorers, group, width, x, out)


@kernel
def score_owners(scorers, owners, n, x, out):
    scores_of(scorers, owners, n, x, out)


@kernel
def learn_one(scorers, owner, gradients, x):
    update(scorers, owner, gradients, 1, x, np.float32(0.5), np.float32(1.0))


def some_scorers(n=12, n_features=40, size=1.0, seed=0):
    random = np.random.RandomState(seed)
    weights = (size * random.normal(size=(n, n_features))).astype(np.float32)
    bias = random.normal(size=n).astype(np.float32)
    return dense_scorers(weights, np.zeros_like(weights), bias, np.zeros_like(bias))


@pytest.mark.parametrize("n_features", [1, 15, 16, 31, 32, 33, 100])
@pytest.mark.parametrize("size", [1e-12, 1.0, 1e12])
def test_halves_score_as_the_weights_do(n_features, size):
    scorers = some_scorers(12, n_features, size)
    x = np.random.RandomState(1).normal(size=n_features).astype(np.float32)
    answering = prediction_scorers(scorers)
    assert isinstance(answering, HalfScorers)
    got, expected = np.zeros(4, np.float32), scorers.weights @ x + scorers.bias
    error = size * 1e-3 * (1.0 + np.abs(x).sum()) + 1e-6
    score_group(answering, 1, 4, x, got)
    np.testing.assert_allclose(got, expected[4:8], atol=error)
    owners, of_some = np.array([11, 0, 5]), np.zeros(3, np.float32)
    score_owners(answering, owners, 3, x, of_some)
    np.testing.assert_allclose(of_some, expected[owners], atol=error)
    score_owners(scorers, owners, 3, x, of_some)
    np.testing.assert_allclose(of_some, expected[owners], rtol=1e-4, atol=size * 1e-5)


def test_what_was_learned_is_in_the_next_answers():
    scorers, x = some_scorers(), np.ones(40, np.float32)
    prediction_scorers(scorers)
    assert not scorers.stale.any()
    before = scorers.halves.copy()
    learn_one(scorers, 3, np.array([0.7], np.float32), x)
    assert np.flatnonzero(scorers.stale).tolist() == [3]
    prediction_scorers(scorers)
    assert np.flatnonzero((scorers.halves != before).any(axis=1)).tolist() == [3]
    got = scorers.halves.view(np.float16)[3].astype(np.float32) * scorers.scale[3]
    np.testing.assert_allclose(got, scorers.weights[3], rtol=1e-3, atol=1e-5)


def test_no_weights_at_all_are_zeros_as_halves():
    scorers = some_scorers(size=0.0)
    prediction_scorers(scorers)
    assert not scorers.halves.view(np.float16).any() and np.isfinite(scorers.scale).all()


def test_scorers_kept_for_answers_can_learn_again():
    scorers = some_scorers()
    prediction_scorers(scorers)
    frozen = frozen_scorers(scorers.halves.view(np.float16), scorers.scale, scorers.bias)
    assert frozen.weights.nbytes == 0
    woken = trainable_scorers(frozen)
    np.testing.assert_allclose(woken.weights, scorers.weights, rtol=1e-3, atol=1e-5)
    assert trainable_scorers(woken) is woken


@pytest.mark.parametrize("algorithm", ["beam", "paper"])
def test_a_model_without_its_learning_state_is_small_and_answers_the_same(tmp_path, algorithm):
    random = np.random.RandomState(0)
    y = random.randint(40, size=800)
    X = (random.normal(size=(40, 100))[y] + 0.3 * random.normal(size=(800, 100))).astype(np.float32)
    model = treemax.RecallTree(algorithm=algorithm, n_candidates=8, verbose=0).fit(X, y)
    model.save(tmp_path / "answers.treemax")
    model.save(tmp_path / "learns.treemax", resume=True)
    sizes = [(tmp_path / name).stat().st_size for name in ("answers.treemax", "learns.treemax")]
    assert sizes[0] < 0.5 * sizes[1]
    expected = model.predict_proba(X)
    for name in ("answers.treemax", "learns.treemax"):
        np.testing.assert_array_equal(treemax.load(tmp_path / name).predict_proba(X), expected)
    loaded = treemax.load(tmp_path / "answers.treemax")
    with pytest.warns(UserWarning, match="without its learning state"):
        loaded.partial_fit(X[:100], y[:100])
    assert loaded.score(X, y) > 0.9 * model.score(X, y)
