"""Scorers for sparse rows: against dictionaries, while their tables grow, and saved."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treemax.kernels.jit import kernel
from treemax.kernels.scorers import LEAST_NEW, buckets_needed, release, reserve, scores, scores_of, update, update_of
from treemax.models.trained.sparse_scorers import (
    empty_sparse_scorers,
    n_entries,
    restored_sparse,
    stored_sparse,
    with_buckets,
    with_features,
)

RATE, INITIAL = np.float32(0.5), np.float32(1.0)


@kernel
def score(scorers, owners, x, out):
    scores_of(scorers, owners, owners.size, x, out)


@kernel
def score_one(scorers, owner, x, out):
    scores(scorers, owner, 1, x, out)


@kernel
def learn(scorers, owners, gradients, x):
    update_of(scorers, owners, gradients, owners.size, x, RATE, INITIAL)


@kernel
def learn_one(scorers, owner, gradients, x):
    update(scorers, owner, gradients, 1, x, RATE, INITIAL)


@kernel
def needed(scorers, x, n_owners):
    return buckets_needed(scorers, x, n_owners)


@kernel
def ask_for(scorers, n):
    return reserve(scorers, n)


@kernel
def give_back(scorers, n):
    release(scorers, n)


class Plain:
    """The same with dictionaries."""

    def __init__(self):
        self.weights, self.squares = {}, {}

    def score(self, owner, indices, values):
        own = sum(self.weights.get((owner, f), 0.0) * v for f, v in zip(indices.tolist(), values.tolist()))
        return self.weights.get((owner, None), 0.0) + own

    def step(self, key, step):
        self.squares[key] = self.squares.get(key, 0.0) + step**2
        change = float(RATE) * step / math.sqrt(self.squares[key] + float(INITIAL))
        self.weights[key] = self.weights.get(key, 0.0) - change

    def learn(self, owner, gradient, indices, values, least_new):
        if gradient:
            self.step((owner, None), gradient)
            for feature, value in zip(indices.tolist(), values.tolist()):
                if (owner, feature) in self.weights or abs(gradient) >= least_new:
                    self.step((owner, feature), gradient * value)


def row(random, n_features):
    indices = np.sort(random.choice(n_features, min(n_features, 5), replace=False)).astype(np.uint32)
    return indices, random.normal(size=len(indices)).astype(np.float32)


def taught(n_owners, n_features, n_rows, seed):
    """Scorers and their plain twin after the same lessons, many owners at a time and one at a time."""
    random = np.random.RandomState(seed)
    scorers, plain = empty_sparse_scorers(n_owners, n_features), Plain()
    for i in range(n_rows):
        x = row(random, n_features)
        owners = random.choice(n_owners, min(n_owners, 12), replace=False).astype(np.int32)
        gradients = (random.normal(size=len(owners)) * random.choice([0.01, 1.0])).astype(np.float32)
        gradients[1::4] = 0.0
        scorers = with_buckets(scorers, needed(scorers, x, len(owners)))
        before = int(scorers.used[0])
        reserved = needed(scorers, x, len(owners))
        if i % 3:
            learn(scorers, owners, gradients, x)
            for owner, gradient in zip(owners.tolist(), gradients.tolist()):
                plain.learn(owner, gradient, *x, float(LEAST_NEW))
        else:
            learn_one(scorers, owners[0], gradients[:1], x)
            plain.learn(int(owners[0]), float(gradients[0]), *x, 0.0)
        assert scorers.used[0] - before <= reserved
    return scorers, plain


def assert_same(scorers, plain, n_owners, n_features):
    known = {key for key in plain.weights if key[1] is not None}
    assert n_entries(scorers).sum() == len(known)
    random = np.random.RandomState(7)
    owners, out, one = (np.arange(n_owners, dtype=np.int32), np.zeros(n_owners, np.float32), np.zeros(1, np.float32))
    for _ in range(20):
        x = row(random, n_features)
        score(scorers, owners, x, out)
        np.testing.assert_allclose(out, [plain.score(owner, *x) for owner in range(n_owners)], atol=1e-4)
        score_one(scorers, 3 % n_owners, x, one)
        assert one[0] == pytest.approx(out[3 % n_owners], abs=1e-5)


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 400), st.integers(1, 60), st.integers(0, 300), st.integers(0, 1000))
def test_they_learn_as_dictionaries_do(n_owners, n_features, n_rows, seed):
    assert_same(*taught(n_owners, n_features, n_rows, seed), n_owners, n_features)


@pytest.mark.parametrize("resume", [True, False])
def test_a_file_has_every_weight_and_nothing_else(resume):
    scorers, plain = taught(100, 30, 300, 0)
    stored = stored_sparse(scorers, resume)
    assert len(stored["owners"]) == n_entries(scorers).sum() and ("squares" in stored) == resume
    again = restored_sparse(
        stored["entries"], stored["owners"], stored["weights"], stored.get("squares"), scorers.bias, scorers.bias_squares
    )  # fmt: skip
    assert_same(again, plain, 100, 30)
    if resume:
        x, owners = row(np.random.RandomState(3), 30), np.arange(100, dtype=np.int32)
        gradients = np.full(100, 0.5, np.float32)
        one, other = np.zeros(100, np.float32), np.zeros(100, np.float32)
        bias = scorers.bias.copy(), scorers.bias_squares.copy()
        again = again._replace(bias=bias[0], bias_squares=bias[1])
        for each, out in ((scorers, one), (again, other)):
            ready = with_buckets(each, needed(each, x, 100))
            learn(ready, owners, gradients, x)
            score(ready, owners, x, out)
        np.testing.assert_array_equal(one, other)


def test_damaged_files_are_refused():
    scorers, _ = taught(100, 30, 300, 0)
    stored = stored_sparse(scorers, False)
    own = {"squares": None, "bias": scorers.bias, "bias_squares": scorers.bias_squares}
    restored_sparse(**stored, **own)
    twice = stored["owners"].copy()
    twice[: stored["entries"][0]] = 5
    for name, array in (("owners", twice), ("owners", stored["owners"] + 100), ("entries", stored["entries"] + 1)):
        with pytest.raises(ValueError):
            restored_sparse(**{**stored, name: array}, **own)


def test_more_features_may_come():
    scorers, plain = taught(50, 20, 100, 0)
    assert_same(with_features(scorers, 60), plain, 50, 60)
    assert with_features(scorers, 10) is scorers


def test_closing_holes_keeps_everything():
    scorers, plain = taught(200, 10, 300, 1)
    packed = with_buckets(scorers, 10**5)
    assert packed.used[0] <= scorers.used[0] and packed.buckets.ctypes.data % 64 == 0
    assert_same(packed, plain, 200, 10)


def test_what_is_promised_is_kept_until_it_is_settled():
    scorers = empty_sparse_scorers(5, 5)
    room = len(scorers.entry_squares) // 8
    assert ask_for(scorers, room - 1) and not ask_for(scorers, 2) and ask_for(scorers, 1)
    give_back(scorers, room)
    assert ask_for(scorers, room) and scorers.used.tolist() == [0, 0, room, 0]
