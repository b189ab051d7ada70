"""The kernels of flat linear models against slow references in plain NumPy."""

import os
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from treemax.inputs.labels import LabelIndex, read_labels, target_ids
from treemax.inputs.rows import as_rows
from treemax.kernels.arithmetic import exp32, log32
from treemax.kernels.jit import fast_kernel
from treemax.models.one_vs_all import kernels
from treemax.models.one_vs_all import model as linear
from treemax.models.one_vs_all.sampling_kernels import Sampling
from treemax.models.one_vs_all.training import LOSSES, AdaGradSettings, empty_model, learn, prior_bias

N_FEATURES, N_LABELS = 9, 6


def problem(n_rows=40, seed=0, multi_label=True):
    random = np.random.RandomState(seed)
    X = random.normal(size=(n_rows, N_FEATURES)) * (random.uniform(size=(n_rows, N_FEATURES)) < 0.5)
    counts = random.randint(0, 4, n_rows) if multi_label else np.ones(n_rows, dtype=int)
    lists = [sorted(random.choice(N_LABELS, count, replace=False).tolist()) for count in counts]
    index = LabelIndex(range(N_LABELS))
    labels = read_labels(lists)
    return X.astype(np.float32), lists, target_ids(labels, index.ids(labels.values))


def reference_gradient(loss, scores, truth):
    y = np.zeros(len(scores))
    y[truth] = 1.0
    if loss == "softmax":
        if not truth:
            return np.zeros(len(scores))
        e = np.exp(scores - scores.max())
        return e / e.sum() - y / len(truth)
    if loss == "logistic":
        return 1.0 / (1.0 + np.exp(-scores)) - y
    sign = 2.0 * y - 1.0
    return -sign * np.maximum(0.0, 1.0 - sign * scores)


def drawn_negatives(seed, row, truth, n):
    """Labels drawn until there are n that the row does not have: SplitMix64, then a congruential generator."""
    most = 2**64
    state = (seed + row * 0x9E3779B97F4A7C15) % most
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % most
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB % most
    state ^= state >> 31
    found = []
    while len(found) < min(n, N_LABELS - len(truth)):
        state = (state * 6364136223846793005 + 1442695040888963407) % most
        label = (state >> 32) * N_LABELS >> 32
        if label not in found and label not in truth:
            found.append(label)
    return found


def reference_learn(X, lists, order, settings, bias, negatives=None, first=0):
    """Mini-batches: scores from the weights at the start of the batch, then one AdaGrad step per example."""
    weights, squares = np.zeros((N_LABELS, N_FEATURES)), np.zeros((N_LABELS, N_FEATURES))
    bias, bias_squares = bias.astype(float), np.zeros(N_LABELS)
    planned, done = len(order), first
    for start in range(0, len(order), settings.batch_rows):
        rate = settings.rate * (1 - (1 - settings.final_rate) * start / planned)
        batch = order[start : start + settings.batch_rows]
        scores = X[batch].astype(float) @ weights.T + bias
        for row, row_scores in zip(batch, scores):
            truth = lists[row]
            if negatives is not None:
                row_scores = weights @ X[row] + bias
            g = reference_gradient(settings.loss, row_scores, truth)
            g[np.abs(g) < settings.least_gradient] = 0.0
            if negatives is not None:
                sample = drawn_negatives(5, done, truth, negatives)
                factor = np.zeros(N_LABELS)
                factor[sample] = (N_LABELS - len(truth)) / max(1, len(sample))
                factor[truth] = 1.0
                g *= factor
            done += 1
            step = np.outer(g, X[row])
            squares += step**2
            weights -= rate * step / np.sqrt(squares + settings.initial)
            step = g * settings.constant
            bias_squares += step**2
            bias -= settings.constant * rate * step / np.sqrt(bias_squares + settings.initial)
    return weights, bias


@pytest.mark.parametrize("batch_rows", [1, 7, 64])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix], ids=["dense", "sparse"])
def test_learning_follows_the_reference(loss, form, batch_rows):
    X, lists, targets = problem()
    how = AdaGradSettings(loss, 0.4, 0.3, 0.5, final_rate=0.2, batch_rows=batch_rows, least_gradient=0.05)
    order = np.random.RandomState(1).permutation(len(X)).astype(np.uint32)
    bias = np.linspace(-1, 1, N_LABELS).astype(np.float32)
    model = empty_model(form is sp.csr_matrix, N_FEATURES, bias.copy())
    done = sum(learn(model, as_rows(form(X)), targets, [order], how, len(order), 1))
    assert done == len(X)
    weights, expected_bias = reference_learn(X, lists, order, how, bias)
    learned = model.weights if isinstance(model, linear.LabelMajor) else model.weights.T
    np.testing.assert_allclose(learned, weights, rtol=2e-3, atol=2e-5)
    np.testing.assert_allclose(model.bias, expected_bias, rtol=2e-3, atol=2e-5)


@pytest.mark.parametrize("negatives", [1, 2, 10])
@pytest.mark.parametrize("loss", ["logistic", "squared_hinge"])
@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix], ids=["dense", "sparse"])
def test_learning_from_a_sample_of_labels_follows_the_reference(loss, form, negatives):
    X, lists, targets = problem()
    how = AdaGradSettings(loss, 0.4, 0.3, 0.5, final_rate=0.2, batch_rows=7, least_gradient=0.05)
    order = np.random.RandomState(1).permutation(len(X)).astype(np.uint32)
    bias = np.linspace(-1, 1, N_LABELS).astype(np.float32)
    model = empty_model(form is sp.csr_matrix, N_FEATURES, bias.copy())
    sampling = Sampling(negatives, np.uint64(5), 3)
    rows = as_rows(form(X))
    assert sum(learn(model, rows, targets, [order], how, len(order), 1, sampling=sampling)) == len(X)
    weights, expected_bias = reference_learn(X, lists, order, how, bias, negatives, first=3)
    learned = model.weights if isinstance(model, linear.LabelMajor) else model.weights.T
    np.testing.assert_allclose(learned, weights, rtol=2e-3, atol=2e-5)
    np.testing.assert_allclose(model.bias, expected_bias, rtol=2e-3, atol=2e-5)


def test_every_negative_label_is_equally_likely():
    """So that the expected gradient is that of all labels."""
    counts = np.bincount(
        [label for row in range(6000) for label in drawn_negatives(1, row, [2], 2)], minlength=N_LABELS
    )
    assert counts[2] == 0
    np.testing.assert_allclose(np.delete(counts, 2) / 6000, 2 / 5, atol=0.03)


def test_the_priors_are_the_best_constants():
    counts, n = np.array([10, 300, 690]), 1000
    share = counts / n
    softmax = np.exp(prior_bias("softmax", counts, n))
    np.testing.assert_allclose(softmax / softmax.sum(), share, atol=1e-3)
    np.testing.assert_allclose(1 / (1 + np.exp(-prior_bias("logistic", counts, n))), share, atol=1e-3)
    margins = np.linspace(-2, 2, 4001)
    for p, bias in zip(share, prior_bias("squared_hinge", counts, n)):
        risk = p * np.maximum(0, 1 - margins) ** 2 + (1 - p) * np.maximum(0, 1 + margins) ** 2
        assert abs(margins[risk.argmin()] - bias) < 2e-3


@fast_kernel
def exp_all(x, out):
    for i in range(x.size):
        out[i] = exp32(x[i])


@fast_kernel
def log_all(x, out):
    for i in range(x.size):
        out[i] = log32(x[i])


def test_exponential_is_accurate_everywhere():
    x = np.concatenate([np.linspace(-86, 87, 400_001), np.linspace(-1e-3, 1e-3, 1001)]).astype(np.float32)
    out = np.empty_like(x)
    exp_all(x, out)
    relative = np.abs(out / np.exp(x.astype(np.float64)) - 1)
    assert relative.max() < 3e-7
    extreme = np.array([-np.inf, -1e30, -1000, 1000, 3e38], dtype=np.float32)
    out = np.empty_like(extreme)
    exp_all(extreme, out)
    assert np.isfinite(out).all() and (out[:3] < 1e-37).all() and (out[3:] > 1e38).all()


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.integers(1, 12), st.integers(0, 2**32 - 1), st.booleans())
def test_the_best_are_those_of_a_stable_sort(n_labels, k, seed, ties):
    random = np.random.RandomState(seed)
    scores = random.normal(size=(3, n_labels)).astype(np.float32)
    scores = np.round(scores) if ties else scores
    k = min(k, n_labels)
    ids, best = np.empty((3, k), dtype=np.int64), np.empty((3, k), dtype=np.float32)
    kernels.best_of_rows(scores, ids, best)
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(ids, expected)
    np.testing.assert_array_equal(best, np.take_along_axis(scores, expected, axis=1))


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("link", linear.LINKS)
def test_probabilities_of_scores(link, normalise):
    scores = np.random.RandomState(0).normal(scale=4, size=(5, 50)).astype(np.float32)
    expected = {
        "softmax": np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True),
        "logistic": 1 / (1 + np.exp(-scores)),
        "squared_hinge": np.clip((1 + scores) / 2, 1e-6, 1),
    }[link]
    if normalise:
        expected = expected / expected.sum(axis=1, keepdims=True)
    all_of_them = scores.copy()
    kernels.rows_to_probabilities(all_of_them, linear.LINKS[link], normalise)
    np.testing.assert_allclose(all_of_them, expected, rtol=1e-4, atol=1e-7)
    ids, best = np.empty((5, 4), dtype=np.int64), np.empty((5, 4), dtype=np.float32)
    kernels.best_of_rows(scores, ids, best)
    kernels.probabilities_of_best(scores.copy(), best, linear.LINKS[link], normalise)
    np.testing.assert_allclose(best, np.take_along_axis(expected, ids, axis=1), rtol=1e-4, atol=1e-7)


def linear_models(seed=0):
    random = np.random.RandomState(seed)
    weights = random.normal(size=(N_FEATURES, N_LABELS)) * (random.uniform(size=(N_FEATURES, N_LABELS)) < 0.3)
    weights, bias = weights.astype(np.float32), random.normal(size=N_LABELS).astype(np.float32)
    table = linear.FeatureMajor(weights, bias, weights**2, bias**2)
    return table, linear.packed(table), linear.LabelMajor(np.ascontiguousarray(weights.T), bias)


@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix], ids=["dense", "sparse"])
def test_every_layout_gives_the_same_scores(form):
    X, _, _ = problem()
    table, packed, label_major = linear_models()
    assert isinstance(packed, linear.PackedFeatures)
    expected = X.astype(float) @ table.weights + table.bias
    rows = as_rows(form(X))
    for model in (table, packed, label_major):
        np.testing.assert_allclose(model.scores(rows), expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(model.scores(rows[3:4]), expected[3:4], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(table.scores(rows), packed.scores(rows))


def test_packing_loses_nothing():
    table, packed, _ = linear_models()
    again = linear.unpacked(packed)
    for name in ("weights", "squares", "bias", "bias_squares"):
        np.testing.assert_array_equal(getattr(again, name), getattr(table, name))
    full = linear.FeatureMajor(np.ones((3, 3), np.float32), np.ones(3, np.float32))
    assert linear.packed(full) is full, "a full table stays a table"


def test_features_never_seen_have_no_weight():
    table, packed, label_major = linear_models()
    X = np.random.RandomState(3).normal(size=(4, N_FEATURES + 5)).astype(np.float32)
    for model in (table, packed, label_major):
        wide, narrow = as_rows(sp.csr_matrix(X)), as_rows(sp.csr_matrix(X[:, :N_FEATURES]))
        np.testing.assert_array_equal(model.scores(wide), model.scores(narrow))


@pytest.mark.parametrize(
    "damage",
    [
        {"labels": np.full(3, 99, np.uint32)},
        {"indptr": np.array([0, 2, 1, 3])},
        {"indptr": np.array([0, 1, 2, 9])},
        {"indptr": np.array([1, 1, 2, 3])},
        {"weights": np.zeros(2, np.float32)},
        {"weights": np.zeros(3, np.float64)},
        {"bias": np.zeros((2, 2), np.float32)},
        {"squares": np.zeros(7, np.float32)},
    ],
    ids=str,
)
def test_arrays_that_point_outside_are_refused(damage):
    sound = {
        "indptr": np.array([0, 1, 2, 3]),
        "labels": np.array([0, 1, 0], np.uint32),
        "weights": np.ones(3, np.float32),
        "bias": np.zeros(2, np.float32),
    }
    linear.LinearModel.from_parts({"layout": "packed-features"}, sound, 2)
    with pytest.raises(ValueError):
        linear.LinearModel.from_parts({"layout": "packed-features"}, {**sound, **damage}, 2)


@pytest.mark.slow
def test_no_kernel_reaches_outside_its_arrays(tmp_path):
    """The battery's learning and predicting once more, with Numba checking every index."""
    program = """
import numpy as np, scipy.sparse as sp
from treemax import OneVsAll
from treemax.checks.examples import example_data, example_lists
X, y = example_data(60)
multi, lists = example_lists(60)
for form in (np.asarray, sp.csr_matrix):
    for loss in ("softmax", "logistic", "squared_hinge"):
        model = OneVsAll(loss=loss, passes=1).fit(form(X), y).partial_fit(form(X), np.roll(y, 1))
        model.predict_topk(form(X), 3), model.predict_proba(form(X)), model.predict_topk(form(X[:1]), 7)
    OneVsAll(passes=1).fit(form(multi), lists).predict(form(multi))
model = OneVsAll(passes=1).fit(sp.csr_matrix(X), y)
model.predict(sp.hstack([sp.csr_matrix(X)] * 2).tocsr())
"""
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_log32_is_exact_to_a_few_units_in_the_last_place():
    wide, near_one = np.geomspace(1.2e-38, 3e38, 20_001), np.linspace(0.5, 2.0, 20_001)
    x = np.concatenate([wide, near_one]).astype(np.float32)
    out = np.empty_like(x)
    log_all(x, out)
    exact = np.log(x.astype(np.float64))
    assert (np.abs(out - exact) <= 3e-7 * np.maximum(1.0, np.abs(exact))).all()
