"""The solvers of nodes with an L1 penalty: scikit-learn's objectives, the conditions of an optimum, descent."""

import doctest
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from treemax.inputs.rows import as_rows
from treemax.models.softmax_tree import logistic_newton_kernels as logistic_newton
from treemax.models.softmax_tree import solvers as l1
from treemax.models.softmax_tree.solvers import Solution, l1_logistic, l1_softmax

FORMS = {"dense": np.asarray, "sparse": sp.csr_matrix}
TIGHT = 1e-8


def data(n_rows, n_features, n_classes, seed=0, share=0.6):
    """Rows whose class goes with their features, some of them at random."""
    random = np.random.RandomState(seed)
    X = random.normal(size=(n_rows, n_features)) * (random.uniform(size=(n_rows, n_features)) < share)
    y = np.argmax(X @ random.normal(size=(n_features, n_classes)), axis=1)
    noisy = random.uniform(size=n_rows) < 0.1
    y[noisy] = random.randint(0, n_classes, noisy.sum())
    return X.astype(np.float32), y


def plain(coef):
    return (coef.toarray() if sp.issparse(coef) else np.asarray(coef)).astype(np.float64)


def softmax_losses(scores, y):
    top = scores.max(axis=1, keepdims=True)
    return np.log(np.exp(scores - top).sum(axis=1)) + top[:, 0] - scores[np.arange(len(y)), y]


def objective(X, y, weights, coef, bias, alpha, bias_alpha=0.0, ridge=0.0):
    """The objective in plain NumPy and double precision; y are classes, or signs for a single output."""
    scores = X.astype(np.float64) @ plain(coef).T + bias.astype(np.float64)
    losses = np.logaddexp(0.0, -y * scores[:, 0]) if len(bias) == 1 else softmax_losses(scores, y)
    counts = np.ones(len(y)) if weights is None else np.asarray(weights, dtype=np.float64)
    return (
        counts @ losses
        + alpha * np.abs(plain(coef)).sum()
        + bias_alpha * np.abs(bias.astype(np.float64)).sum()
        + ridge / 2 * np.square(plain(coef)).sum()
    )


def solve(X, y, n_classes, alpha, weights=None, form="dense", indices=None, **options):
    """Logistic regression on signs where there are two classes and `n_classes` is 1, else a softmax."""
    rows = as_rows(FORMS[form](X))
    indices = np.arange(len(X)) if indices is None else indices
    if n_classes == 1:
        return l1_logistic(rows, indices, y, alpha, weights, **options)
    return l1_softmax(rows, indices, y, n_classes, alpha, weights, **options)


def check_account(found, X, y, weights, alpha, bias_alpha=0.0, ridge=0.0):
    """The objective that is returned is that of the numbers that are returned."""
    assert found.coef.dtype == found.bias.dtype == np.float32
    expected = objective(X, y, weights, found.coef, found.bias, alpha, bias_alpha, ridge)
    assert found.objective == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert found.objective <= found.start_objective


def quietly(model, *arguments, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # names of penalties that are about to change, and iterations used up
        return model.fit(*arguments, **options)


# --- the same objective as scikit-learn ----------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("alpha", [0.05, 0.5, 5.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_same_objective_as_liblinear(form, alpha, weighted):
    """LIBLINEAR penalises the bias as the other weights; its C is one over alpha."""
    X, y = data(200, 12, 2, seed=3)
    signs = np.where(y == 1, 1, -1)
    weights = np.random.RandomState(1).exponential(size=200).astype(np.float32) if weighted else None
    model = LogisticRegression(C=1 / alpha, penalty="l1", solver="liblinear", tol=1e-8, max_iter=10_000)
    quietly(model, X.astype(np.float64), signs, sample_weight=weights)
    best = objective(X, signs, weights, model.coef_, model.intercept_, alpha, alpha)
    found = solve(X, signs, 1, alpha, weights, form, penalise_bias=True)
    check_account(found, X, signs, weights, alpha, alpha)
    assert found.converged and best * (1 - 1e-6) <= found.objective <= best * (1 + 1e-3)
    assert solve(X, signs, 1, alpha, weights, form, penalise_bias=True, tolerance=TIGHT).objective <= best * (1 + 1e-5)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("alpha", [0.1, 1.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_same_objective_as_saga(form, alpha, weighted):
    """With weights above one scikit-learn's SAGA was seen not to converge: here they are not."""
    X, y = data(150, 8, 4, seed=5)
    weights = np.random.RandomState(1).uniform(0.1, 1, size=150).astype(np.float32) if weighted else None
    model = LogisticRegression(C=1 / alpha, penalty="l1", solver="saga", tol=1e-8, max_iter=20_000, random_state=0)
    quietly(model, X.astype(np.float64), y, sample_weight=weights)
    best = objective(X, y, weights, model.coef_, model.intercept_, alpha)
    found = solve(X, y, 4, alpha, weights, form)
    check_account(found, X, y, weights, alpha)
    assert found.converged and best * (1 - 1e-5) <= found.objective <= best * (1 + 1e-3)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n_classes", [1, 4])
@pytest.mark.parametrize("alpha, ridge", [(0.0, 0.3), (0.0, 5.0), (0.2, 0.3), (1.0, 3.0)])
def test_the_same_objective_as_scikit_learn_with_a_ridge(form, n_classes, alpha, ridge):
    """scikit-learn's C multiplies the loss; its elastic net has a share of the L1 penalty."""
    X, y = data(150, 8, 4, seed=5)
    y = np.where(y == 0, 1, -1) if n_classes == 1 else y
    if alpha == 0.0:
        model = LogisticRegression(C=1 / ridge, solver="lbfgs", tol=1e-8, max_iter=10_000)
    else:
        total = alpha + ridge
        model = LogisticRegression(
            C=1 / total, penalty="elasticnet", l1_ratio=alpha / total, solver="saga", tol=1e-8,
            max_iter=20_000, random_state=0,
        )  # fmt: skip
    quietly(model, X.astype(np.float64), y)
    best = objective(X, y, None, model.coef_, model.intercept_, alpha, ridge=ridge)
    found = solve(X, y, n_classes, alpha, form=form, ridge=ridge)
    check_account(found, X, y, None, alpha, ridge=ridge)
    assert found.converged and best * (1 - 1e-5) <= found.objective <= best * (1 + 1e-3)


@pytest.mark.parametrize("ridge", [0.0, 0.7])
@pytest.mark.parametrize("method", ["newton", "quasi-newton"])
def test_both_methods_for_dense_rows_agree(method, ridge, monkeypatch):
    X, y = data(200, 15, 2, seed=8)
    signs = np.where(y == 1, 1, -1)
    sparse = solve(X, signs, 1, 0.3, form="sparse", tolerance=TIGHT, ridge=ridge)
    if method == "quasi-newton":
        monkeypatch.setattr(l1, "NEWTON_FEATURES", 0)
    dense = solve(X, signs, 1, 0.3, tolerance=TIGHT, ridge=ridge)
    check_account(dense, X, signs, None, 0.3, ridge=ridge)
    assert dense.objective == pytest.approx(sparse.objective, rel=1e-5)


@pytest.mark.parametrize("sorted_rows", [False, True])
def test_a_hessian_of_some_of_the_rows_is_enough(sorted_rows):
    """Also where rows that come one after the other are alike."""
    X, y = data(2500, 6, 2, seed=12)
    assert len(X) >= 3 * logistic_newton.LEAST_SAMPLE  # so that a sample is taken
    order = np.lexsort((X[:, 0], y)) if sorted_rows else np.arange(2500)
    signs = np.where(y == 1, 1, -1)[order]
    dense, sparse = (solve(X[order], signs, 1, 0.5, form=form, tolerance=TIGHT) for form in FORMS)
    assert dense.converged and dense.objective == pytest.approx(sparse.objective, rel=1e-6)


# --- conditions of the optimum -------------------------------------------------------------------------


@st.composite
def problems(draw):
    """Small problems with everything that can go wrong in them, and a form of the rows."""
    n_rows, n_features = draw(st.integers(1, 40)), draw(st.integers(1, 12))
    n_classes = draw(st.integers(1, 5))
    seed = draw(st.integers(0, 10**6))
    random = np.random.RandomState(seed)
    X, y = data(n_rows, n_features, max(2, n_classes), seed, draw(st.sampled_from([0.2, 1.0])))
    if draw(st.booleans()):
        X[:, 0] = draw(st.sampled_from([0.0, 1.0, -2.0]))  # a constant column
    if draw(st.booleans()):
        twice = random.randint(0, n_rows, n_rows // 2)
        X[: len(twice)] = X[twice]  # the same rows with other classes
    if draw(st.booleans()):
        y[:] = y[0]  # one class only
    if draw(st.booleans()):
        X[:, -1] = X[:, 0]  # a column twice
    weights = draw(st.sampled_from([None, "some zero", "unequal"]))
    if weights is not None:
        some = random.exponential(size=n_rows) ** 2
        weights = (some * (random.uniform(size=n_rows) < 0.6) if weights == "some zero" else some).astype(np.float32)
    alpha = draw(st.sampled_from([0.01, 0.3, 2.0, 1000.0]))
    ridge = draw(st.sampled_from([0.0, 0.1, 3.0, 100.0]))
    if ridge > 0.0 and draw(st.booleans()):
        alpha = 0.0
    if n_classes == 1:
        y = np.where(y == 0, 1, -1)
    return X, y, n_classes, alpha, ridge, weights, draw(st.sampled_from(sorted(FORMS)))


def slopes(X, y, weights, coef, bias, n_classes):
    """The gradient of the loss, [outputs, features], and along the biases."""
    scores = X.astype(np.float64) @ plain(coef).T + bias.astype(np.float64)
    if n_classes == 1:
        pull = -(y / (1 + np.exp(np.clip(y * scores[:, 0], -500, 500))))[:, None]
    else:
        pull = np.exp(scores - scores.max(axis=1, keepdims=True))
        pull /= pull.sum(axis=1, keepdims=True)
        pull[np.arange(len(y)), y] -= 1
    pull *= 1.0 if weights is None else weights[:, None].astype(np.float64)
    return pull.T @ X.astype(np.float64), pull.sum(axis=0)


@settings(max_examples=150, deadline=None)
@given(problems())
def test_the_conditions_of_an_optimum(problem):
    """|slope| <= alpha, and = -alpha sign(w) where w is not zero, the slope of the ridge included; no slope along
    the biases."""
    X, y, n_classes, alpha, ridge, weights, form = problem
    found = solve(X, y, n_classes, alpha, weights, form, tolerance=TIGHT, max_iterations=5000, ridge=ridge)
    check_account(found, X, y, weights, alpha, ridge=ridge)
    along, along_bias = slopes(X, y, weights, found.coef, found.bias, n_classes)
    coef = plain(found.coef)
    along += ridge * coef
    off = np.where(coef == 0, np.maximum(np.abs(along) - alpha, 0), np.abs(along + alpha * np.sign(coef)))
    total = len(X) if weights is None else float(weights.sum())
    assert off.max() <= 2e-3 * max(1.0, total)
    assert np.abs(along_bias).max() <= 2e-3 * max(1.0, total)
    if alpha == 1000.0:
        assert not coef.any()
        if n_classes > 1 and total > 0:  # only the biases are left: the shares of the classes
            shares = np.bincount(y, weights, minlength=n_classes) / (len(y) if weights is None else weights.sum())
            got = np.exp(found.bias - found.bias.max())
            np.testing.assert_allclose(got / got.sum(), shares, atol=2e-3)


@settings(max_examples=60, deadline=None)
@given(problems(), st.integers(0, 4))
def test_nothing_above_the_start_is_returned(problem, max_iterations):
    """From any start and after any number of iterations, also from the optimum itself."""
    X, y, n_classes, alpha, ridge, weights, form = problem
    random = np.random.RandomState(0)
    start = (
        random.normal(size=(n_classes, X.shape[1])).astype(np.float32),
        random.normal(size=n_classes).astype(np.float32),
    )
    last = objective(X, y, weights, *start, alpha, ridge=ridge)
    for _ in range(3):
        found = solve(X, y, n_classes, alpha, weights, form, start=start, max_iterations=max_iterations, ridge=ridge)
        check_account(found, X, y, weights, alpha, ridge=ridge)
        assert found.start_objective == pytest.approx(last, rel=1e-6, abs=1e-9)
        assert found.iterations <= max_iterations
        start, last = found, found.objective
    best = solve(X, y, n_classes, alpha, weights, form, tolerance=TIGHT, ridge=ridge)
    again = solve(X, y, n_classes, alpha, weights, form, start=best, tolerance=TIGHT, ridge=ridge)
    assert again.objective <= best.objective == again.start_objective


@settings(max_examples=40, deadline=None)
@given(problems())
def test_dense_and_sparse_rows_have_the_same_optimum(problem):
    X, y, n_classes, alpha, ridge, weights, _ = problem
    one, other = (
        solve(X, y, n_classes, alpha, weights, form, tolerance=TIGHT, max_iterations=5000, ridge=ridge).objective
        for form in FORMS
    )
    total = len(X) if weights is None else float(weights.sum())
    assert one == pytest.approx(other, rel=1e-4, abs=1e-4 * total)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n_classes", [1, 3])
def test_separable_rows_with_hardly_any_penalty(form, n_classes):
    X = np.repeat(np.eye(3, dtype=np.float32), 5, axis=0)
    y = np.repeat([0, 1, 2], 5)
    y = np.where(y == 0, 1, -1) if n_classes == 1 else y
    found = solve(X, y, n_classes, 1e-6, form=form)
    check_account(found, X, y, None, 1e-6)
    assert found.objective < 0.01 and np.isfinite(plain(found.coef)).all()
    free = solve(X, y, n_classes, 0.0, form=form)
    assert free.objective < 0.01 and np.isfinite(plain(free.coef)).all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scale", [1e-3, 1e3])
@pytest.mark.parametrize("n_classes", [1, 4])
def test_features_of_any_scale(form, scale, n_classes):
    """Features a thousand times as large, with a penalty as many times as large, are the same problem."""
    X, y = data(120, 6, 4, seed=11)
    y = np.where(y == 0, 1, -1) if n_classes == 1 else y
    one = solve(X, y, n_classes, 0.5, form=form, tolerance=TIGHT)
    other = solve(X * np.float32(scale), y, n_classes, 0.5 * scale, form=form, tolerance=TIGHT, max_iterations=5000)
    assert other.objective == pytest.approx(one.objective, rel=2e-3)


# --- subsets, threads, sizes ---------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n_classes", [1, 4])
def test_a_subset_is_its_rows_alone(form, n_classes):
    X, y = data(300, 10, 4, seed=2)
    y = np.where(y == 0, 1, -1) if n_classes == 1 else y
    indices = np.random.RandomState(0).permutation(300)[:120]
    chosen = solve(X, y[indices], n_classes, 0.4, form=form, indices=indices)
    alone = solve(X[indices], y[indices], n_classes, 0.4, form=form)
    assert chosen.objective == alone.objective
    np.testing.assert_array_equal(plain(chosen.coef), plain(alone.coef))
    np.testing.assert_array_equal(chosen.bias, alone.bias)
    with_zeros = np.zeros(300, dtype=np.float32)
    with_zeros[indices] = 1.0
    weighed = solve(X, y, n_classes, 0.4, with_zeros, form)
    assert weighed.objective == pytest.approx(alone.objective, rel=1e-4)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n_classes", [1, 3])
def test_no_rows_need_no_weights(form, n_classes):
    X, _ = data(5, 4, 3)
    start = (np.ones((n_classes, 4), dtype=np.float32), np.ones(n_classes, dtype=np.float32))
    nothing = np.zeros(0, dtype=int)
    found = solve(X, nothing, n_classes, 0.5, form=form, indices=nothing, start=start, ridge=0.3)
    assert not plain(found.coef).any() and found.objective == 0.0 and found.converged
    assert found.start_objective == pytest.approx((2.0 + 0.6) * n_classes)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n_classes", [1, 20])
def test_threads_find_the_same_bits(form, n_classes):
    X, y = data(900, 20, 20, seed=4)
    y = np.where(y < 10, 1, -1) if n_classes == 1 else y
    parts = [np.arange(start, 900, 6) for start in range(6)]

    def at_node(indices):
        return solve(X, y[indices], n_classes, 0.2, form=form, indices=indices)

    one = [at_node(part) for part in parts]
    with ThreadPoolExecutor(4) as pool:
        many = list(pool.map(at_node, parts))
    for a, b in zip(one, many):
        assert a.objective == b.objective and a.iterations == b.iterations
        np.testing.assert_array_equal(plain(a.coef), plain(b.coef))


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_many_classes_and_more_rows_than_a_block(form):
    X, y = data(1300, 12, 300, seed=6)
    found = solve(X, y, 300, 0.5, form=form)
    check_account(found, X, y, None, 0.5)
    best = solve(X, y, 300, 0.5, form=form, tolerance=1e-7, max_iterations=3000)
    assert found.objective <= best.objective * (1 + 1e-3)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n_classes", [1, 3])
@pytest.mark.parametrize("alpha, ridge", [(0.3, 0.0), (0.3, 2.0), (0.0, 2.0)])
def test_features_that_the_rows_lack_lose_their_weights(form, n_classes, alpha, ridge):
    """A warm start from a node that saw other rows."""
    X, y = data(60, 6, 3, seed=9)
    y = np.where(y == 0, 1, -1) if n_classes == 1 else y
    X[:, 4:] = 0.0
    start = (np.full((n_classes, 6), 2, dtype=np.float32), np.zeros(n_classes, dtype=np.float32))
    found = solve(X, y, n_classes, alpha, form=form, start=start, ridge=ridge)
    check_account(found, X, y, None, alpha, ridge=ridge)
    began = objective(X, y, None, *start, alpha, ridge=ridge)
    assert found.start_objective == pytest.approx(began, rel=1e-6)
    assert np.abs(plain(found.coef)[:, 4:]).max() <= (0.0 if alpha else 0.02)


@pytest.mark.parametrize("form", FORMS)
def test_a_single_class_needs_no_weights(form):
    X, _ = data(20, 4, 2)
    start = (np.ones((1, 4), dtype=np.float32), np.ones(1, dtype=np.float32))
    found = l1_softmax(as_rows(FORMS[form](X)), np.arange(20), np.zeros(20, dtype=int), 1, 0.5, start=start)
    assert not plain(found.coef).any() and found.objective == 0.0 and found.start_objective == pytest.approx(2.0)


def test_the_forms_of_what_is_returned_and_taken():
    X, y = data(60, 6, 3, seed=10)
    dense, sparse = solve(X, y, 3, 0.3), solve(X, y, 3, 0.3, form="sparse")
    assert isinstance(dense, Solution) and isinstance(dense.coef, np.ndarray) and dense.coef.shape == (3, 6)
    assert sp.issparse(sparse.coef) and sparse.coef.shape == (3, 6) and sparse.coef.has_sorted_indices
    assert (sparse.coef.data != 0).all()
    assert solve(X, y, 3, 0.3, start=sparse).objective <= sparse.objective * (1 + 1e-6)
    assert solve(X, y, 3, 0.3, form="sparse", start=dense).objective <= dense.objective * (1 + 1e-6)


def test_examples_in_the_docstrings_hold():
    assert doctest.testmod(l1).failed == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classes": [0, 1, 3]}, "classes must be from 0 to 2, got"),
        ({"classes": [0, 1]}, "3 indices need as many targets, got 2"),
        ({"indices": [0, 1, 9]}, "indices must be rows from 0 to 3, got 0 to 9"),
        ({"alpha": -1.0}, "alpha must not be below zero, got -1.0"),
        ({"alpha": float("nan")}, "alpha must not be below zero, got nan"),
        ({"ridge": -0.5}, "ridge must not be below zero, got -0.5"),
        ({"ridge": float("nan")}, "ridge must not be below zero, got nan"),
        ({"weights": [1.0, -1.0, 1.0]}, "weights must be finite and not below zero"),
        ({"weights": [1.0]}, "3 indices need as many weights, got 1"),
        ({"n_classes": 0}, "n_classes must be at least 1, got 0"),
        ({"start": (np.zeros((2, 4)), np.zeros(3))}, r"start must have weights \(3, 4\) and 3 biases"),
    ],
)
def test_what_cannot_be_is_refused(change, message):
    problem = {"indices": [0, 1, 2], "classes": [0, 1, 2], "n_classes": 3, "alpha": 1.0} | change
    with pytest.raises(ValueError, match=message):
        l1_softmax(np.eye(4, dtype=np.float32), **problem)


@pytest.mark.parametrize("form", sorted(FORMS))
@pytest.mark.parametrize("n_classes", [1, 4])
def test_without_the_check_the_same_weights_are_found(form, n_classes):
    X, y = data(200, 9, max(2, n_classes), 0, 0.5)
    y = np.where(y == 0, 1, -1) if n_classes == 1 else y
    checked, quick = (solve(X, y, n_classes, 0.1, form=form, check_objective=check) for check in (True, False))
    assert (plain(checked.coef) == plain(quick.coef)).all() and (checked.bias == quick.bias).all()
    assert np.isnan([quick.objective, quick.start_objective]).all()


def test_quasi_newton_steps_find_the_optimum_of_newton_s_method():
    X, y = data(300, 12, 2, 1, 1.0)
    signs = np.where(y == 0, 1, -1)
    newton, quasi = (solve(X, signs, 1, 0.3, tolerance=1e-8, newton=choice) for choice in (True, False))
    assert quasi.iterations > newton.iterations
    assert quasi.objective == pytest.approx(newton.objective, rel=1e-5)


@pytest.mark.parametrize("n_classes", [1, 3])
def test_a_start_with_duplicate_entries_is_their_sum(n_classes):
    X, y = data(100, 5, max(2, n_classes), 2, 1.0)
    y = np.where(y == 0, 1, -1) if n_classes == 1 else y
    twice = sp.csr_matrix((np.full(2, 0.25, np.float32), [3, 3], [0, 2, *[2] * (n_classes - 1)]), shape=(n_classes, 5))
    once = sp.csr_matrix((np.full(1, 0.5, np.float32), [3], [0, 1, *[1] * (n_classes - 1)]), shape=(n_classes, 5))
    bias = np.zeros(n_classes, np.float32)
    a, b = (solve(X, y, n_classes, 0.1, form="sparse", start=(coef, bias)) for coef in (twice, once))
    assert a.start_objective == b.start_objective and (plain(a.coef) == plain(b.coef)).all()
    assert twice.nnz == 2


def test_signs_must_be_signs():
    with pytest.raises(ValueError, match="signs must be -1 or 1, got"):
        l1_logistic(np.eye(2, dtype=np.float32), np.arange(2), [0, 1], 1.0)
