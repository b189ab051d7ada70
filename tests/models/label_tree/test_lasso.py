"""The L1 solver of a node against LIBLINEAR, lane by lane, and the size of the models."""

import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

import treemax
from treemax.inputs.labels import ALL_ONE
from treemax.inputs.rows import as_rows, read_only
from treemax.models.label_tree import kernels as siblings
from treemax.models.label_tree import lasso_kernels as kernels
from treemax.models.label_tree.lasso import held_out, train_l1
from treemax.models.label_tree.nodes import LOSSES, empty_statistics
from treemax.models.label_tree.solver_kernels import SQUARED_HINGE, Solver


def problem(n_rows, n_children, n_features=25, seed=0, share=0.4, most=3):
    """Sparse rows of length one, and up to `most` children of each that go with its features."""
    random = np.random.RandomState(seed)
    X = random.normal(size=(n_rows, n_features)) * (random.uniform(size=(n_rows, n_features)) < share)
    X /= np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-9)
    order = np.argsort(-X @ random.normal(size=(n_features, n_children)), axis=1)
    counts = random.randint(0, min(most, n_children) + 1, n_rows)
    return X.astype(np.float32), [sorted(row[:count].tolist()) for row, count in zip(order, counts)]


def solve(X, lists, n_children, loss, cost=1.0, passes=2000, held=None, rows=None, weights=ALL_ONE):
    """Dense weights (features by children), biases and the scores of rows held out."""
    source = as_rows(sp.csr_matrix(X))
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in lists])]).astype(np.int64)
    children = np.array([child for row in lists for child in row], dtype=np.uint32)
    rows = np.arange(len(X), dtype=np.uint32) if rows is None else np.asarray(rows, dtype=np.uint32)
    held = np.zeros(len(rows), dtype=bool) if held is None else held
    scratch = np.zeros(source.n_features, dtype=np.uint32)
    features, weights, _, held_scores = kernels.train_sparsely(
        source.arrays, rows, siblings.Siblings(indptr, children, n_children, read_only(weights), ALL_ONE),
        Solver(LOSSES[loss], np.float32(cost), np.float32(0)),
        siblings.Plan(np.float32(1), passes, 0, 3, np.float32(0)), held, scratch,
    )  # fmt: skip
    assert not scratch.any(), "the scratch is left as it was"
    dense = np.zeros((source.n_features, n_children))
    dense[features] = weights[:-1]
    return dense, weights[-1].astype(float), held_scores


def objective(loss, X, truth, weights, bias, cost):
    """What LIBLINEAR minimises: the bias is penalised as the other weights are."""
    margin = np.where(truth, 1.0, -1.0) * (X.astype(np.float64) @ weights + bias)
    losses = np.maximum(0.0, 1.0 - margin) ** 2 if loss == "squared_hinge" else np.logaddexp(0.0, -margin)
    return np.abs(weights).sum() + abs(bias) + cost * losses.sum()


def reference(loss, X, truth, cost):
    if loss == "squared_hinge":
        model = LinearSVC(C=cost, penalty="l1", dual=False, tol=1e-7, max_iter=50_000, random_state=0)
    else:
        model = LogisticRegression(C=cost, penalty="l1", solver="liblinear", tol=1e-7, max_iter=5000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of scikit-learn, whose names for penalties are about to change
        model.fit(X.astype(np.float64), truth)
    return model.coef_[0], float(model.intercept_[0])


# --- the solution --------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("n_children", [1, 15, 16, 17, 33])
@pytest.mark.parametrize("cost", [0.3, 1.0, 10.0])
def test_the_same_objective_as_liblinear(loss, n_children, cost):
    X, lists = problem(150, n_children, seed=n_children)
    weights, biases, _ = solve(X, lists, n_children, loss, cost)
    for child in {0, n_children // 2, n_children - 1}:
        truth = np.array([child in row for row in lists])
        assert 0 < truth.sum() < len(truth)
        best = objective(loss, X, truth, *reference(loss, X, truth, cost), cost)
        got = objective(loss, X, truth, weights[:, child], biases[child], cost)
        assert best * (1 - 1e-4) <= got <= best * (1 + 1e-3)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("scale", [0.05, 30.0])
def test_features_of_any_scale(loss, scale):
    X, lists = problem(120, 2, seed=5)
    X = X * np.float32(scale)
    weights, biases, _ = solve(X, lists, 2, loss, 2.0, passes=20_000)
    truth = np.array([0 in row for row in lists])
    best = objective(loss, X, truth, *reference(loss, X, truth, 2.0), 2.0)
    assert objective(loss, X, truth, weights[:, 0], biases[0], 2.0) <= best * (1 + 1e-2)


@pytest.mark.parametrize("loss", LOSSES)
def test_every_pass_decreases_the_objective(loss):
    """Also where Newton's step would overshoot: a high cost, and rows of one column."""
    for X, lists in (problem(80, 4, seed=2), problem(80, 4, n_features=2, seed=3)):
        values = []
        for passes in range(1, 12):
            weights, biases, _ = solve(X, lists, 4, loss, 20.0, passes)
            truths = np.array([[child in row for row in lists] for child in range(4)])
            values.append([objective(loss, X, truths[c], weights[:, c], biases[c], 20.0) for c in range(4)])
        steps = np.diff(np.array(values), axis=0)
        assert (steps <= 1e-4 * np.abs(values[0])).all()


@pytest.mark.parametrize("loss", LOSSES)
def test_children_do_not_disturb_each_other(loss):
    """Three hundred children: each has the weights that it has alone, up to when the solver stops."""
    X, lists = problem(90, 300, seed=1, most=5)
    together, biases, _ = solve(X, lists, 300, loss)
    for child in (0, 15, 16, 255, 256, 299):
        alone, bias, _ = solve(X, [[0] if child in row else [] for row in lists], 1, loss)
        truth = np.array([child in row for row in lists])
        one = objective(loss, X, truth, alone[:, 0], bias[0], 1.0)
        other = objective(loss, X, truth, together[:, child], biases[child], 1.0)
        assert one == pytest.approx(other, rel=1e-3)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 30), st.integers(1, 20), st.integers(0, 10**6), st.sampled_from(sorted(LOSSES)))
def test_the_optimum_has_no_slope(n_rows, n_children, seed, loss):
    """The conditions of an optimum, without another solver: |gradient| <= 1, and = -sign(w) where w is not 0."""
    X, lists = problem(n_rows, n_children, n_features=8, seed=seed)
    weights, biases, _ = solve(X, lists, n_children, loss, 1.0)
    with_one = np.hstack([X.astype(np.float64), np.ones((n_rows, 1))])
    whole = np.vstack([weights, biases])
    sign = np.array([[1.0 if child in row else -1.0 for child in range(n_children)] for row in lists])
    margin = sign * (with_one @ whole)
    pull = 2 * np.maximum(0, 1 - margin) if loss == "squared_hinge" else 1 / (1 + np.exp(margin))
    gradient = -with_one.T @ (sign * pull)
    off = np.where(whole == 0, np.maximum(np.abs(gradient) - 1, 0), np.abs(gradient + np.sign(whole)))
    assert off.max() < 0.01 * min(16, n_children) + 0.01  # where the solver stops


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", ["no features", "all positive", "all negative", "one row", "no labels"])
def test_problems_with_nothing_to_learn(loss, kind):
    X, lists = problem(10, 3)
    X, lists = {
        "no features": (np.zeros_like(X), lists),
        "all positive": (X, [[0, 1, 2]] * 10),
        "all negative": (X, [[]] * 10),
        "one row": (X[1:2], [[1]]),
        "no labels": (X[:1], [[]]),
    }[kind]
    weights, biases, _ = solve(X, lists, 3, loss, 1.0, 20, held=held_out(np.arange(len(X)), 3))
    assert np.isfinite(weights).all() and np.isfinite(biases).all()
    if kind == "all positive":
        assert (biases > 0).all()


# --- rows held out, and what is kept -------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
def test_rows_held_out_are_judged_by_weights_that_never_saw_them(loss):
    X, lists = problem(150, 20, seed=7)
    held = held_out(np.arange(150), 4)
    assert 15 < held.sum() < 70
    _, _, scores = solve(X, lists, 20, loss, 1.0, 1000, held)
    seen = np.flatnonzero(~held)
    weights, biases, _ = solve(X[seen], [lists[i] for i in seen], 20, loss, 1.0, 500)
    np.testing.assert_allclose(scores, X[held] @ weights + biases, atol=0.05)


def test_the_same_rows_are_held_out_as_with_the_other_penalty():
    X, lists = problem(200, 5, seed=8)
    source = as_rows(sp.csr_matrix(X))
    rows = np.arange(200, dtype=np.uint32)
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in lists])]).astype(np.int64)
    children = np.array([child for row in lists for child in row], dtype=np.uint32)
    found = []
    for train in (siblings.train_siblings, train_l1):
        statistics = empty_statistics()
        scratch = np.zeros(source.n_features, dtype=np.uint32)
        everything = np.ones(source.n_features, dtype=bool)
        kept = train(
            source.arrays, rows, rows, siblings.Siblings(indptr, children, 5, ALL_ONE, ALL_ONE),
            Solver(SQUARED_HINGE, np.float32(1), np.float32(0)),
            siblings.Plan(np.float32(1), 10, 4, 3, np.float32(0.1)), statistics, everything, scratch,
        )  # fmt: skip
        found.append(statistics.histogram.sum(axis=1).tolist())
        assert (statistics.likelihood < 0).all()
    assert found[0] == found[1]
    features, starts, entry_children, weights, biases = kept[:5]
    assert (np.abs(weights) >= np.float32(0.1)).all() and (np.diff(starts) > 0).all()
    assert starts[-1] == len(weights) == len(entry_children) and len(features) == len(starts) - 1
    assert len(biases) == 5 and weights.dtype == np.float32


# --- models --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
def test_most_weights_are_zero(loss):
    """Ten features mean something, two hundred do not: hardly any of those is left."""
    random = np.random.RandomState(0)
    y = random.randint(0, 10, 800)
    X = np.hstack([np.eye(10)[y], random.uniform(size=(800, 200)) * (random.uniform(size=(800, 200)) < 0.1)])
    X = sp.csr_matrix(X / np.linalg.norm(X, axis=1, keepdims=True))
    small, large = (
        treemax.LabelTree(penalty=penalty, loss=loss, threshold=0.0, verbose=0).fit(X, y) for penalty in ("l1", "l2")
    )
    assert small.score(X, y) > 0.95
    assert small.describe()["weights"] < 0.1 * large.describe()["weights"]


def test_an_unknown_penalty_is_refused():
    with pytest.raises(ValueError, match="penalty must be one of l2, l1, got 'l0'"):
        treemax.LabelTree(penalty="l0").fit([[0.0], [1.0]], ["a", "b"])


@pytest.mark.parametrize("loss", LOSSES)
def test_a_weight_is_a_repetition_of_the_row(loss):
    random = np.random.RandomState(4)
    X, lists = random.normal(size=(60, 8)).astype(np.float32), [[int(child)] for child in random.randint(0, 4, 60)]
    times = random.randint(1, 5, len(X))
    repeated = np.repeat(np.arange(len(X)), times)
    weighted, bias, _ = solve(X, lists, 4, loss, weights=times.astype(np.float32))
    expected, expected_bias, _ = solve(X[repeated], [lists[row] for row in repeated], 4, loss)
    np.testing.assert_allclose(weighted, expected, atol=5e-3)
    np.testing.assert_allclose(bias, expected_bias, atol=5e-3)
    assert np.abs(solve(X, lists, 4, loss)[0] - expected).max() > 0.02
