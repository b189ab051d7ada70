"""RecallTree against a slow reference: growth, threads, and saving.

`_restored_candidates` is called with sizes for which a model file would be too large.
"""

import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp

import treemax
from tests.models import adagrad, online_trees
from treemax.inputs.labels import Targets
from treemax.kernels.scorers import EMPTY, LEAST_NEW
from treemax.models.calibration import Calibration
from treemax.models.recall_tree.kernels import FIRST_COUNT, LEAST_MASS, RARE_COUNT, RARE_TOTAL
from treemax.models.recall_tree.model import Beam, _restored_candidates
from treemax.models.recall_tree.training import (
    RecallTreeSettings,
    candidates_for,
    depth_for,
    empty_model,
    learn,
    with_one_more_level,
)


def problem(n_rows=300, n_labels=30, n_features=12, seed=0):
    return online_trees.problem(n_rows, n_labels, n_features, seed)


class Reference:
    """The same algorithm, plain: dictionaries, lists, one number at a time."""

    def __init__(self, arity, depth, n_labels, n_features, beam, settings, least_new=0.0):
        self.arity, self.depth, self.beam, self.settings = arity, depth, beam, settings
        self.first_leaf = (arity**depth - 1) // (arity - 1)
        n_nodes = self.first_leaf * arity + 1
        self.routers = np.zeros((n_nodes, n_features + 1))
        self.router_squares = np.zeros_like(self.routers)
        self.regressors = np.zeros((n_labels, n_features + 1))
        self.regressor_squares = np.zeros_like(self.regressors)
        self.counts = [{} for _ in range(n_nodes)]
        self.least_new, self.made = least_new, np.zeros(self.regressors.shape, dtype=bool)
        self.made[:, -1] = True  # the biases

    def children(self, node):
        return range(node * self.arity + 1, node * self.arity + 1 + self.arity)

    def shares_of_children(self, node, x):
        scores = np.array([self.routers[c] @ x for c in self.children(node)])
        scores = np.exp(scores - scores.max())
        return scores / scores.sum()

    def descend(self, x):
        opened, beam = [], [(0, 1.0)]
        for _ in range(self.depth):
            following = []
            for node, share in beam:
                shares = self.shares_of_children(node, x)
                opened.append((node, share, shares))
                following += zip(self.children(node), share * shares)
            following = [pair for pair in following if pair[1] >= self.beam.least_share]
            beam = sorted(following, key=lambda pair: -pair[1])[: self.beam.width]
        return opened, beam

    def candidates(self, beam):
        n_labels = len(self.regressors)
        mass = dict.fromkeys(range(n_labels), 0.0) if n_labels <= self.beam.n_candidates else {}
        for node, share in beam:
            total = sum(self.counts[node].values())
            for label, count in self.counts[node].items():
                if share * count / total < float(LEAST_MASS):
                    continue
                mass[label] = mass.get(label, 0.0) + share * count / total
        return dict(sorted(mass.items(), key=lambda pair: -pair[1])[: self.beam.n_candidates])

    def scored(self, x, mass):
        labels = list(mass)
        prior = self.beam.prior * np.log(np.array([mass[label] for label in labels]) + float(LEAST_MASS))
        return labels, np.array([self.regressors[label] @ x for label in labels]) + prior

    def step(self, weights, squares, x, gradient, rate):
        if abs(gradient) >= self.settings.least_gradient:
            squares += (gradient * x) ** 2
            weights -= adagrad.step(gradient * x, squares, rate, self.settings.initial)

    def learn(self, x, label, drawn):
        x = np.append(x.astype(float), 1.0)
        opened, beam = self.descend(x)
        mass = self.candidates(beam)
        mass.setdefault(label, 0.0)
        labels, scores = self.scored(x, mass)
        gradients = np.exp(scores - scores.max())
        gradients /= gradients.sum()
        for candidate, gradient in zip(labels, gradients - (np.array(labels) == label)):
            own = self.regressors[candidate], self.regressor_squares[candidate]
            if abs(gradient) >= self.least_new:
                self.made[candidate] |= x != 0
            self.step(*own, np.where(self.made[candidate], x, 0.0), gradient, self.settings.rate)
        best = 0
        for node, share, shares in opened:
            if share >= self.settings.least_share or node == best:
                self.learn_router(node, share, shares, label, x, node == best, drawn(node, label))
            if node == best:
                best = self.children(node)[int(np.argmax(shares))]

    def learn_router(self, node, share, shares, label, x, on_path, drawn):
        likelihood = []
        for place, child in enumerate(self.children(node)):
            expected = float(FIRST_COUNT if place == drawn else RARE_COUNT)
            total = sum(self.counts[child].values())
            likelihood.append((self.counts[child].get(label, 0.0) + expected) / (total + float(RARE_TOTAL)))
        after = shares * likelihood
        after /= after.sum()
        for place, child in enumerate(self.children(node)):
            own = self.routers[child], self.router_squares[child]
            self.step(*own, x, (shares[place] - after[place]) * share, self.settings.router_rate)
        for place, child in enumerate(self.children(node)):
            part = share * shares[place]
            if part >= self.settings.least_share or (on_path and place == int(np.argmax(shares))):
                self.counts[child][label] = self.counts[child].get(label, 0.0) + max(part, 0.01)


def drawn_child(arity):
    def drawn(node, label):
        key = (node << 32 | label) * 0x9E3779B97F4A7C15 % 2**64
        return (key >> 40) % arity

    return drawn


SETTINGS = RecallTreeSettings(0.3, 0.4, 0.5, 1.0, 1e-3, 0.1)


@pytest.mark.parametrize("arity, depth, n_candidates", [(3, 2, 8), (4, 1, 5), (2, 3, 100)])
@pytest.mark.parametrize("sparse", [False, True])
def test_learns_as_the_reference_does(arity, depth, n_candidates, sparse):
    X, y = problem()
    X[np.abs(X) < 0.4] = 0.0
    beam = Beam(3, n_candidates, 0.0, 0.3)
    model = empty_model(sparse, X.shape[1], 30, arity, depth, 30)
    rows = treemax.inputs.rows.as_rows(sp.csr_matrix(X) if sparse else X)
    targets = Targets(np.arange(len(y) + 1), y.astype(np.uint32))
    list(learn(model, rows, targets, [np.arange(len(y), dtype=np.uint32)], SETTINGS, beam, len(y)))
    reference = Reference(arity, depth, 30, X.shape[1], beam, SETTINGS, LEAST_NEW if sparse else 0.0)
    for x, label in zip(X, y.tolist()):
        reference.learn(x, label, drawn_child(arity))
    _, probabilities = model.top_k(rows, 3, beam)
    for i in range(0, len(X), 7):
        _, found = reference.descend(np.append(X[i].astype(float), 1.0))
        mass = reference.candidates(found)
        _, scores = reference.scored(np.append(X[i].astype(float), 1.0), mass)
        expected = np.exp(scores - scores.max())
        expected = np.sort(expected / expected.sum())[::-1][:3]
        np.testing.assert_allclose(probabilities[i, : len(expected)], expected, atol=2e-3)
    totals = [sum(counts.values()) for counts in reference.counts]
    np.testing.assert_allclose(model.histograms.total, totals, rtol=1e-3, atol=1e-2)


def test_candidates_are_the_most_frequent_labels_of_a_node():
    X, y = problem(600, 50)
    model = treemax.RecallTree(n_candidates=8, arity=4, depth=2, verbose=0).fit(X, y).model_
    own, first_leaf = model.histograms, (4**2 - 1) // 3
    taken = own.keys != EMPTY
    parent, label = own.keys[taken] >> np.uint64(32), (own.keys[taken] & np.uint64(0xFFFFFFFF)).astype(int)
    for node in range(first_leaf, len(own.total)):
        here = parent == (node - 1) // 4
        counts = dict(zip(label[here], own.counts[taken][here, (node - 1) % 4]))
        assert abs(sum(counts.values()) - own.total[node]) < 1e-2
        kept = own.label_counts[node, : own.n_labels[node]]
        assert (np.diff(kept) <= 0).all()
        np.testing.assert_allclose(kept, sorted(counts.values(), reverse=True)[:8][: len(kept)], rtol=1e-4)


def test_few_labels_are_all_candidates():
    X, y = problem(n_labels=12)
    model = treemax.RecallTree(n_candidates=12, verbose=0).fit(X, y)
    assert model.candidate_recall_ == 1.0
    assert (model.predict_proba(X) > 0).all()


def test_the_tree_deepens_with_the_labels_that_arrive():
    X, y = problem(6000, 400, 24)
    order = np.argsort(y, kind="stable")
    model = treemax.RecallTree(arity=4, verbose=0)
    depths = []
    for part in np.array_split(order, 20):
        model.partial_fit(X[part], y[part])
        depths.append(model.model_.depth)
    assert depths[0] == depth_for(20, 4, 300) and depths[-1] == depth_for(400, 4, 5700) == 3 > depths[0]
    assert model.describe()["candidates"] == candidates_for(400)
    model.partial_fit(X, y)
    assert model.score(X, y) > 0.8


def test_a_tree_is_no_deeper_than_its_rows_can_teach():
    assert depth_for(5000, 16, 200_000) == 3
    assert depth_for(5000, 16, 20_000) == 2
    assert depth_for(50_000, 16, 500_000) == 3 and depth_for(50_000, 16, 2_000_000) == 4
    assert depth_for(1, 16, 0) == 1


def test_a_deeper_tree_gives_the_same_to_every_label():
    X, y = problem(500, 40)
    model = treemax.RecallTree(arity=4, depth=1, n_candidates=40, verbose=0).fit(X, y).model_
    deeper = with_one_more_level(model, 40)
    assert deeper.depth == 2
    beam = Beam(64, 40, 0.0, 0.3)
    before, after = model.probabilities(X, beam), deeper.probabilities(X, beam)
    assert (before.argmax(axis=1) == after.argmax(axis=1)).mean() > 0.99
    assert np.abs(before - after).max() < 0.05  # what is divided may fall below the least that counts


def test_threads_learn_as_well_as_one():
    X, y = problem(4000, 60, 20)
    alone = treemax.RecallTree(n_candidates=20, n_jobs=1, verbose=0).fit(X, y).score(X, y)
    together = treemax.RecallTree(n_candidates=20, n_jobs=4, verbose=0).fit(X, y)
    assert abs(together.score(X, y) - alone) < 0.05
    assert together.label_counts_.sum() == len(y)


def calibration_error(model, X, y):
    """The mean distance of probability and accuracy of first answers, in five groups of the same size."""
    top = model.predict_topk(X, k=1)
    right, probability = top.labels[:, 0] == y, top.scores[:, 0]
    groups = np.array_split(np.argsort(probability), 5)
    return np.mean([abs(right[group].mean() - probability[group].mean()) for group in groups])


@pytest.mark.parametrize("sparse", [False, True])
def test_probabilities_are_calibrated_on_rows_that_are_learned_later(sparse, tmp_path):
    random = np.random.RandomState(0)
    y = random.randint(50, size=8000)
    X = random.normal(size=(50, 20))[y] + 1.2 * random.normal(size=(8000, 20))
    X = sp.csr_matrix(np.where(np.abs(X) > 1.0, X, 0.0)) if sparse else X
    plain, calibrated = (
        treemax.RecallTree(n_candidates=20, learning_rate=0.8, calibration=share, verbose=0).fit(X[:4000], y[:4000])
        for share in (0.0, 0.1)
    )
    assert plain.model_.sharpness == 1.0 != calibrated.model_.sharpness
    errors = [calibration_error(model, X[4000:], y[4000:]) for model in (plain, calibrated)]
    assert errors[1] < 0.6 * errors[0]
    first, last = (4, 1) if sparse else (8, 2)
    assert calibrated.model_.found[2] == first * 3600 + last * 4000  # those held out were learned later
    assert calibrated.passes_ == first + last
    calibrated.save(tmp_path / "model.treemax")
    expected = calibrated.predict_proba(X[:50])
    np.testing.assert_allclose(treemax.load(tmp_path / "model.treemax").predict_proba(X[:50]), expected, rtol=1e-5)


def test_calibration_keeps_the_ranking_and_leaves_something_to_other_labels():
    random = np.random.RandomState(1)
    y = random.randint(300, size=6000)
    X = random.normal(size=(300, 10))[y] + 0.8 * random.normal(size=(6000, 10))
    model = treemax.RecallTree(n_candidates=10, verbose=0).fit(X[:5000], y[:5000])
    assert model.calibration_ != Calibration()
    labels, scores = model.predict_topk(X[5000:], 10)
    assert (np.diff(scores, axis=1) <= 0).all()
    model.calibration_ = Calibration()
    np.testing.assert_array_equal(model.predict_topk(X[5000:], 10).labels, labels)
    model.calibration_ = Calibration(1.0, -2.0)  # far less sure than the candidates are
    assert model.predict_topk(X[5000:], 10).scores.sum(axis=1).max() < 0.9
    np.testing.assert_allclose(model.predict_proba(X[5000:5100]).sum(axis=1), 1.0, atol=1e-4)


def test_the_scale_and_the_mean_of_dense_features_do_not_matter(tmp_path):
    X, y = problem(600, 12)
    random = np.random.RandomState(0)
    scale, mean = np.exp2(random.randint(-9, 10, X.shape[1])), 100.0 * random.normal(size=X.shape[1])
    model, moved = (treemax.RecallTree(verbose=0, random_state=0).fit(rows, y) for rows in (X, scale * (X + mean)))
    as_it_is = treemax.RecallTree(verbose=0, scale=False).fit(scale * (X + mean), y)
    assert moved.score(scale * (X + mean), y) > max(0.9, as_it_is.score(scale * (X + mean), y) + 0.2)
    assert abs(moved.score(scale * (X + mean), y) - model.score(X, y)) < 0.05
    moved.save(tmp_path / "model.treemax")
    again = treemax.load(tmp_path / "model.treemax")
    np.testing.assert_array_equal(again.predict(scale * (X + mean)), moved.predict(scale * (X + mean)))


def test_progressive_loss_is_that_of_answers_before_learning():
    X, y = problem(200, 10)
    model, wrong = treemax.RecallTree(verbose=0), 0
    for i in range(200):
        wrong += i > 0 and model.predict(X[i : i + 1])[0] != y[i]
        model.partial_fit(X[i : i + 1], y[i : i + 1])
    assert abs(model.progressive_loss_ * len(X) - wrong) <= 1 + (10 - 1)  # a label's first row counts as wrong


def test_damaged_parts_are_refused():
    X, y = problem()
    model = treemax.RecallTree(n_candidates=5, verbose=0).fit(X, y).model_
    damages = [("labels", 30, "candidates")]
    header, arrays = online_trees.assert_damaged_parts_are_refused(model, 30, damages)
    with pytest.raises(ValueError, match="is not possible"):
        type(model).from_parts({**header, "depth": 60}, arrays, 30)


@pytest.mark.slow
def test_threads_find_room_for_their_rows():
    """In a process of its own, which is ended should it go on for ever."""
    code = """
import numpy as np, treemax
y = np.arange(3000) % 300
X = np.random.RandomState(0).normal(size=(300, 20))[y]
for n_jobs in (2, 8):
    assert treemax.RecallTree(n_jobs=n_jobs, passes=2, depth=2, verbose=0).fit(X, y).score(X, y) > 0.9
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_beam_wider_than_the_tree_is_as_wide_as_the_tree():
    X, y = problem()
    wide = treemax.RecallTree(beam=2**31 - 1, n_candidates=2**31 - 1, verbose=0).fit(X, y)
    whole = treemax.RecallTree(beam=16, n_candidates=30, verbose=0).fit(X, y)
    np.testing.assert_array_equal(wide.predict_topk(X, 3).scores, whole.predict_topk(X, 3).scores)


def test_a_file_cannot_unfold_to_more_than_memory():
    n = 10**6
    n_labels = np.zeros(n, np.int32)
    n_labels[7] = n
    with pytest.raises(ValueError, match="table of candidates would need 9"):
        _restored_candidates({"n_labels": n_labels}, n, n)


def test_a_tree_grows_deeper_with_its_arity():
    X, y = np.eye(400, dtype=np.float32), np.arange(400)
    model = treemax.RecallTree(arity=16, verbose=0).partial_fit(X[:5], y[:5])
    with pytest.raises(ValueError, match="arity cannot be changed in the middle of a stream"):
        model.set_params(arity=2).partial_fit(X, y)
    model.set_params(arity=16)
    for _ in range(20):
        model.partial_fit(X, y)
    assert (model.model_.arity, model.model_.depth) == (16, depth_for(400, 16, 8000))


@pytest.mark.parametrize("depth", [10, 1000])
def test_a_tree_too_deep_for_memory_is_refused_with_a_remedy(depth):
    with pytest.raises(MemoryError, match=rf"depth {depth} with 16 children a node needs .* Use a smaller depth"):
        treemax.RecallTree(depth=depth, verbose=0).fit(np.eye(3, dtype=np.float32), [0, 1, 2])
