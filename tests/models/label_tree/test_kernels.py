"""The jointly trained classifiers of siblings against scikit-learn's, and vector instructions against NumPy."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from treemax.inputs.labels import ALL_ONE, Targets
from treemax.inputs.rows import as_rows, read_only
from treemax.kernels import vector
from treemax.kernels.jit import fast_kernel, kernel
from treemax.models.label_tree import kernels, solver_kernels
from treemax.models.label_tree.nodes import LOSSES, SLOPES, LevelStatistics, empty_statistics, node_problems
from treemax.trees import Tree, complete_tree, huffman_tree, random_tree

N_FEATURES = 12
SEED = 3


def problem(n_rows, n_children, seed=0, least=0, most=3):
    """Sparse rows of which each has `least` to `most - 1` of the children; the first row has no features."""
    random = np.random.RandomState(seed)
    X = random.normal(size=(n_rows, N_FEATURES)) * (random.uniform(size=(n_rows, N_FEATURES)) < 0.5)
    X[0] = 0.0
    X /= np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-9)
    directions = random.normal(size=(N_FEATURES, n_children))
    order = np.argsort(-(X @ directions + random.normal(size=(n_rows, n_children))), axis=1)
    counts = random.randint(least, min(most, n_children + 1), n_rows)
    return X.astype(np.float32), [sorted(row[:count].tolist()) for row, count in zip(order, counts)]


class Trained:
    """What `train_siblings` gives back, as dense weights of shape (features, children)."""

    def __init__(
        self, X, lists, n_children, loss="squared_hinge", cost=1.0, passes=5, held=0, least=0.0, rows=None, small=0.0,
        row_weights=ALL_ONE, pair_weights=ALL_ONE,
    ):  # fmt: skip
        source = as_rows(sp.csr_matrix(X))
        self.rows = np.arange(len(X), dtype=np.uint32) if rows is None else np.asarray(rows, dtype=np.uint32)
        indptr = np.concatenate([[0], np.cumsum([len(row) for row in lists])]).astype(np.int64)
        children = np.array([child for row in lists for child in row], dtype=np.uint32)
        statistics = empty_statistics()
        self.likelihood, self.histogram = statistics[1:]
        self.scratch = np.zeros(source.n_features, dtype=np.uint32)
        found = kernels.train_siblings(
            source.arrays, self.rows, self.rows,
            kernels.Siblings(indptr, children, n_children, read_only(row_weights), read_only(pair_weights)),
            solver_kernels.Solver(LOSSES[loss], np.float32(cost), np.float32(small)),
            kernels.Plan(np.float32(1), passes, held, SEED, np.float32(least)),
            statistics, np.ones(source.n_features, dtype=bool), self.scratch,
        )  # fmt: skip
        self.features, self.starts, self.children, self.weights, self.bias = found[:5]
        self.dense = np.zeros((source.n_features, n_children), dtype=np.float32)
        feature = np.repeat(self.features, np.diff(self.starts)).astype(np.int64)
        self.dense[feature, self.children] = self.weights


def objective(loss, X, truth, weights, bias, cost):
    """The primal objective of one child: the bias is a weight as any other."""
    sign = np.where(truth, 1.0, -1.0)
    margin = sign * (X.astype(np.float64) @ weights.astype(np.float64) + float(bias))
    losses = np.maximum(0.0, 1.0 - margin) ** 2 if loss == "squared_hinge" else np.logaddexp(0.0, -margin)
    return 0.5 * (np.square(weights, dtype=np.float64).sum() + float(bias) ** 2) + cost * losses.sum()


def reference(loss, X, truth, cost):
    """scikit-learn's solution of the same problem, with a constant column in place of the bias."""
    with_one = np.hstack([X.astype(np.float64), np.ones((len(X), 1))])
    if loss == "squared_hinge":
        model = LinearSVC(C=cost, dual=True, fit_intercept=False, tol=1e-8, max_iter=100_000, random_state=0)
    else:
        model = LogisticRegression(C=cost, fit_intercept=False, tol=1e-10, max_iter=10_000)
    coefficients = model.fit(with_one, truth).coef_[0]
    return coefficients[:-1], coefficients[-1]


# --- the solver ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("loss", "tolerance"), [("squared_hinge", 1e-4), ("logistic", 1e-3)])
@pytest.mark.parametrize("n_children", [1, 15, 16, 17, 33])
@pytest.mark.parametrize("cost", [0.3, 1.0, 8.0])
def test_the_same_solution_as_scikit_learn(loss, tolerance, n_children, cost):
    X, lists = problem(120, n_children, seed=n_children)
    trained = Trained(X, lists, n_children, loss, cost, passes=400)
    for child in {0, n_children // 2, n_children - 1}:
        truth = np.array([child in row for row in lists])
        assert 0 < truth.sum() < len(truth)
        weights, bias = reference(loss, X, truth, cost)
        best = objective(loss, X, truth, weights, bias, cost)
        got = objective(loss, X, truth, trained.dense[:, child], trained.bias[child], cost)
        assert best * (1 - 1e-6) <= got <= best * (1 + tolerance)
        difference = np.append(trained.dense[:, child] - weights, trained.bias[child] - bias)
        assert np.abs(difference).max() < (2e-3 if loss == "squared_hinge" else 0.05 * max(1.0, cost))


@pytest.mark.parametrize("loss", LOSSES)
def test_wide_nodes(loss):
    """Three hundred children, more than a byte counts: every one of them as if it were alone."""
    X, lists = problem(90, 300, seed=1, least=1, most=5)
    together = Trained(X, lists, 300, loss, passes=60)
    for child in (0, 15, 16, 254, 255, 256, 257, 299):
        alone = Trained(X, [[0] if child in row else [] for row in lists], 1, loss, passes=60)
        np.testing.assert_allclose(together.dense[:, child], alone.dense[:, 0], atol=2e-3)
        np.testing.assert_allclose(together.bias[child], alone.bias[0], atol=2e-3)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("n_children", [1, 2, 7, 15])
def test_lanes_without_a_child_do_not_leak(loss, n_children):
    """Children of a narrow node have bit for bit the weights they have beside sixteen others."""
    X, lists = problem(50, n_children, seed=2)
    narrow = Trained(X, lists, n_children, loss)
    wide = Trained(X, lists, 16, loss)
    assert narrow.children.max(initial=0) < n_children and len(narrow.bias) == n_children
    assert np.array_equal(narrow.dense, wide.dense[:, :n_children])
    assert np.array_equal(narrow.bias, wide.bias[:n_children])


def following(number):
    """The kernel's generator of random numbers."""
    return (number * 6364136223846793005 + 1442695040888963407) % 2**64


def shuffled(n):
    """The order in which the kernel takes the rows up."""
    order, random = np.arange(n), SEED
    for i in range(n - 1, 0, -1):
        random = following(random)
        j = (random >> 32) * (i + 1) >> 32
        order[i], order[j] = order[j], order[i]
    return order


def logistic_step(alpha, margin, squares, cost):
    """Two of Newton's steps towards cost * P(wrong after the step)."""

    def wrong(at):
        return 1 / (1 + np.exp(margin + squares * (at - alpha)))

    lower, upper = np.minimum(alpha, wrong(alpha) * cost), np.maximum(alpha, wrong(alpha) * cost)
    moved = alpha - margin / squares
    for _ in range(2):
        moved = np.clip(moved, lower, upper)
        chance = wrong(moved)
        excess = moved - chance * cost
        lower, upper = np.where(excess > 0, lower, moved), np.where(excess > 0, moved, upper)
        moved = moved - excess / (1 + cost * squares * chance * (1 - chance))
    matters = np.abs(wrong(alpha) * cost - alpha) > 1e-3 * cost
    return np.where(matters, np.clip(moved, lower, upper), alpha)


@pytest.mark.parametrize("cost", [1e-3, 0.3, 10.0, 100.0])
@pytest.mark.parametrize("length", [0.0, 1.0, 3.0])
def test_a_logistic_step_is_nearly_the_best(length, cost):
    """Of one row, the bias is the dual variable: the best is cost * P(wrong), which bisection finds."""
    squares, low, high = length**2 + 1, 0.0, cost
    for _ in range(60):
        middle = (low + high) / 2
        too_low = np.log(cost / middle - 1) > squares * middle
        low, high = (middle, high) if too_low else (low, middle)
    found = [Trained(np.array([[length]]), [[0]], 1, "logistic", cost, passes=passes).bias[0] for passes in (1, 4)]
    assert (0.95 if squares * cost <= 30 else 0.5) < found[0] / low < 1.001
    assert 0.98 < found[1] / low < 1.001


def plain_passes(X, lists, n_children, loss, cost, passes, held=None):
    """One coordinate at a time, in the order of the kernel, in double precision; rows held are passed over."""
    n = len(X)
    truth = np.array([[1.0 if child in row else -1.0 for child in range(n_children)] for row in lists])
    with_one = np.hstack([X.astype(np.float64), np.ones((n, 1))])
    squares = np.square(with_one).sum(axis=1)
    weights, alphas = np.zeros((with_one.shape[1], n_children)), np.zeros((n, n_children))
    order, random = shuffled(n), following(SEED)
    for _ in range(passes):
        random = following(random)
        step = (random >> 33) % n if n > 1 else 1
        while np.gcd(n, step) != 1:
            step = (step + 1) % n
        random = following(random)
        for i in order[((random >> 33) % n + step * np.arange(n)) % n]:
            if held is not None and held[i]:
                continue
            scores = with_one[i] @ weights
            if loss == "squared_hinge":
                gradient = truth[i] * scores - 1 + alphas[i] / (2 * cost)
                moved = np.maximum(alphas[i] - gradient / (squares[i] + 0.5 / cost), 0.0)
            else:
                moved = logistic_step(alphas[i], truth[i] * scores, squares[i], cost)
            weights += np.outer(with_one[i], (moved - alphas[i]) * truth[i])
            alphas[i] = moved
    return weights[:-1], weights[-1]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("n_rows", "n_children"), [(1, 1), (2, 3), (30, 16), (41, 20)])
def test_a_few_passes_against_plain_numpy(loss, n_rows, n_children):
    X, lists = problem(n_rows, n_children, seed=n_rows)
    trained = Trained(X, lists, n_children, loss, cost=0.7, passes=3)
    weights, bias = plain_passes(X, lists, n_children, loss, 0.7, 3)
    np.testing.assert_allclose(trained.dense, weights, atol=2e-3)
    np.testing.assert_allclose(trained.bias, bias, atol=2e-3)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("cost", [0.1, 1.0, 10.0])
def test_resting_rows_cost_little(loss, cost):
    """Rows that hardly move rest, and the passes end early: near the solution, whatever the cost."""
    X, lists = problem(300, 20, seed=2)
    exact = Trained(X, lists, 20, loss, cost=cost, passes=300)
    rested = Trained(X, lists, 20, loss, cost=cost, passes=300, small=0.03)
    assert not np.array_equal(exact.dense, rested.dense), "else nothing rested"
    for child in range(20):
        truth = np.array([child in row for row in lists])
        least = objective(loss, X, truth, exact.dense[:, child], exact.bias[child], cost)
        reached = objective(loss, X, truth, rested.dense[:, child], rested.bias[child], cost)
        assert reached <= 1.05 * least


@pytest.mark.parametrize("passes", [2, 8])
def test_rows_held_out_learn_though_the_others_rest(passes):
    """They join when the others have long come to rest, and still move the weights."""
    X, lists = problem(200, 5, seed=3)
    held = held_rows(np.arange(200), 4)
    without = Trained(X[~held], [lists[i] for i in np.flatnonzero(~held)], 5, passes=100)
    joined = Trained(X, lists, 5, passes=passes * 20, held=4, small=0.03)
    everything = Trained(X, lists, 5, passes=300)
    assert np.abs(joined.dense - everything.dense).max() < 0.5 * np.abs(joined.dense - without.dense).max()


@pytest.mark.parametrize("loss", LOSSES)
def test_some_rows_of_a_larger_matrix(loss):
    X, lists = problem(60, 5, seed=4)
    some = np.arange(1, 60, 3)
    taken = Trained(X, [lists[i] for i in some], 5, loss, rows=some)
    alone = Trained(X[some], [lists[i] for i in some], 5, loss)
    assert np.array_equal(taken.dense, alone.dense) and np.array_equal(taken.bias, alone.bias)
    assert not taken.scratch.any(), "the scratch is left as it was"


def test_only_large_weights_are_kept():
    X, lists = problem(60, 20, seed=5)
    everything, most = Trained(X, lists, 20), Trained(X, lists, 20, least=0.2)
    expected = np.where(np.abs(everything.dense) >= np.float32(0.2), everything.dense, 0.0)
    assert np.array_equal(most.dense, expected) and np.array_equal(most.bias, everything.bias)
    assert (np.abs(most.weights) >= np.float32(0.2)).all()
    assert (np.diff(most.starts) > 0).all(), "a feature without a weight is not kept"
    nothing = Trained(X, lists, 20, least=1e9)
    assert len(nothing.features) == len(nothing.weights) == 0 and nothing.starts.tolist() == [0]
    for j in range(len(most.features)):
        own = most.children[most.starts[j] : most.starts[j + 1]]
        assert (np.diff(own.astype(int)) > 0).all()


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", ["no features", "all positive", "all negative", "one row", "no labels"])
def test_problems_with_nothing_to_learn(loss, kind):
    X, lists = problem(10, 3, least=1)
    X, lists = {
        "no features": (np.zeros_like(X), lists),
        "all positive": (X, [[0, 1, 2]] * 10),
        "all negative": (X, [[]] * 10),
        "one row": (X[1:2], [[1]]),
        "no labels": (X[:1], [[]]),
    }[kind]
    trained = Trained(X, lists, 3, loss, passes=20, held=10)
    assert np.isfinite(trained.dense).all() and np.isfinite(trained.bias).all()
    assert np.isfinite(trained.likelihood).all() and (trained.histogram >= 0).all()
    if kind == "all positive":
        assert (trained.bias > 0).all()
    if kind == "all negative":
        assert (trained.bias < 0).all()


@pytest.mark.parametrize(("scale", "cost"), [(1.0, 1000.0), (40.0, 1.0)])
def test_logistic_regression_at_any_scale(scale, cost):
    X, lists = problem(60, 2, seed=6, least=1, most=2)
    trained = Trained(X * np.float32(scale), lists, 2, "logistic", cost, passes=50)
    truth = np.array([0 in row for row in lists])
    weights, bias = reference("logistic", X * scale, truth, cost)
    best = objective("logistic", X * scale, truth, weights, bias, cost)
    start = objective("logistic", X, truth, np.zeros(N_FEATURES), 0.0, cost)
    got = objective("logistic", X * np.float32(scale), truth, trained.dense[:, 0], trained.bias[0], cost)
    assert got < best + 0.5 * (start - best)


# --- rows held out -------------------------------------------------------------------------------------


def held_rows(rows, share):
    return np.array([(following(int(row)) >> 33) % share == 0 for row in rows])


def expected_calibration(X, lists, held, weights, bias):
    """Likelihood and histogram of the rows held out, under these weights."""
    scores = X.astype(np.float64) @ weights + bias
    likelihood = np.zeros(len(SLOPES))
    counts = np.zeros((2, kernels.BINS), dtype=np.int64)
    for i in np.flatnonzero(held):
        for child, score in enumerate(scores[i]):
            place = (score + kernels.HISTOGRAM_REACH) * kernels.BINS / (2 * kernels.HISTOGRAM_REACH)
            counts[int(child in lists[i]), int(np.clip(place, 0, kernels.BINS - 1))] += 1
        if len(lists[i]) == 1:
            z = np.outer(SLOPES.astype(np.float64), scores[i] - scores[i].max())
            likelihood += z[:, lists[i][0]] - np.log(np.exp(z).sum(axis=1))
    return likelihood, counts


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("passes", [2, 3, 5])
@pytest.mark.parametrize(("n_children", "most"), [(1, 2), (7, 2), (20, 4)])
def test_rows_held_out(loss, passes, n_children, most):
    """They are judged by weights that never saw them, after some passes of the others and before the end."""
    X, lists = problem(150, n_children, seed=7, most=most)
    trained = Trained(X, lists, n_children, loss, passes=passes, held=4)
    held = held_rows(trained.rows, 4)
    assert 10 < held.sum() < 80
    agree = []
    for number in range(1, passes):
        weights, bias = plain_passes(X, lists, n_children, loss, 1.0, number, held)
        likelihood, counts = expected_calibration(X, lists, held, weights, bias)
        assert trained.histogram.sum(axis=1).tolist() == counts.sum(axis=1).tolist()
        # Rounding may move a score across the edge of a bin, not further.
        moved = np.cumsum(trained.histogram - counts, axis=1)
        agree.append(np.abs(moved).max() <= 2 and np.allclose(trained.likelihood, likelihood, rtol=2e-3, atol=0.02))
    assert any(agree)


def test_rows_held_out_join_in_the_end():
    """With passes enough the solution is that of all rows, held out at first or not."""
    X, lists = problem(120, 4, seed=8)
    first, second = Trained(X, lists, 4, passes=300, held=0), Trained(X, lists, 4, passes=2, held=4)
    third = Trained(X, lists, 4, passes=300, held=4)
    assert not first.histogram.any() and not first.likelihood.any()
    assert np.array_equal(second.histogram.sum(axis=0) > 0, second.histogram.any(axis=0))
    assert np.abs(third.dense - first.dense).max() < 0.4, "two passes with all rows, from near the solution"


def test_the_calibration_chooses_the_best_slope():
    random = np.random.RandomState(0)
    calibration = LevelStatistics(3)
    calibration.add(0, -np.square(SLOPES - 5.0), np.zeros((2, kernels.BINS), dtype=np.int64))
    assert abs(calibration.softmax_slopes()[0] - 5.0) <= np.diff(SLOPES).max()
    assert calibration.softmax_slopes()[1] == 4.0
    score = random.normal(size=200_000)
    right = random.uniform(size=len(score)) < 1 / (1 + np.exp(-(2.5 * score - 1.0)))
    edges = np.linspace(-kernels.HISTOGRAM_REACH, kernels.HISTOGRAM_REACH, kernels.BINS + 1)
    histogram = np.stack([np.histogram(score[~right], edges)[0], np.histogram(score[right], edges)[0]])
    calibration.add(1, np.zeros(len(SLOPES)), histogram)
    calibration.add(2, np.zeros(len(SLOPES)), np.where([[False], [True]], 3, np.zeros_like(histogram)))
    slopes, shifts = calibration.logistic_slopes()
    assert abs(slopes[1] - 2.5) < 0.1 and abs(shifts[1] + 1.0) < 0.1
    assert np.isfinite(slopes).all() and np.isfinite(shifts).all() and (slopes > 0).all()


# --- which rows reach which node -----------------------------------------------------------------------


def assign_to_nodes(tree, labels):
    """Algorithm 9 word for word: positive and negative nodes of one example."""
    positive, negative = set(), {0}
    for label in labels:
        node = int(tree.leaf_of[label])
        while node >= 0 and node not in positive:
            positive.add(node)
            negative.discard(node)
            for child in tree.children(node):
                if child not in positive:
                    negative.add(child)
            node = int(tree.parent[node])
    return positive, negative


def uneven_tree(n_labels, seed):
    """A random tree: groups of random size are merged until one is left."""
    random = np.random.RandomState(seed)
    parents, tops = [-1] * n_labels, list(range(n_labels))
    while len(tops) > 1 or tops[0] < n_labels:
        random.shuffle(tops)
        count = random.randint(1 if len(tops) == 1 else 2, min(6, len(tops)) + 1)
        merged, tops = tops[:count], tops[count:]
        for child in merged:
            parents[child] = len(parents)
        tops.append(len(parents))
        parents.append(-1)
    return Tree.from_parents(parents, np.append(np.arange(n_labels), np.full(len(parents) - n_labels, -1)))


def check_problems(tree, lists, targets):
    found = {problem.node: problem for problem in node_problems(tree, targets, np.ones(len(tree)))}
    assert len(found) == len(node_problems(tree, targets, np.ones(len(tree)))), "one problem a node"
    assigned = [assign_to_nodes(tree, row) for row in lists]
    for node in np.flatnonzero(tree.n_children > 0):
        expected = {}
        for i, (positive, negative) in enumerate(assigned):
            own = set(tree.children(node))
            if node == 0 or own & (positive | negative):
                expected[i] = sorted(own & positive)
        if not any(expected.values()):
            assert node not in found
            continue
        problem = found[node]
        assert problem.rows.tolist() == sorted(expected)
        assert problem.rows.dtype == problem.children.dtype == np.uint32
        assert problem.child_indptr.dtype == np.int64
        for i, row in enumerate(problem.rows):
            part = problem.children[problem.child_indptr[i] : problem.child_indptr[i + 1]]
            assert (part + tree.first_child[node]).tolist() == expected[row]


def targets_of(lists):
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in lists])]).astype(np.int64)
    return Targets(indptr, np.array([label for row in lists for label in row], dtype=np.uint32))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 30), st.integers(0, 10_000), st.integers(1, 25))
def test_node_problems_are_those_of_algorithm_9(n_labels, seed, n_rows):
    random = np.random.RandomState(seed)
    tree = uneven_tree(n_labels, seed)
    counts = random.randint(0, min(5, n_labels + 1), n_rows)
    lists = [sorted(random.choice(n_labels, count, replace=False).tolist()) for count in counts]
    lists[-1] = lists[-1] or [0]
    targets = targets_of(lists)
    check_problems(tree, lists, targets)
    check_problems(tree, lists[n_rows // 2 :], targets[n_rows // 2 :])


@pytest.mark.parametrize("tree", [complete_tree(200, 4, 6), random_tree(200, 3, 3), huffman_tree(np.arange(200) ** 3)])
def test_one_label_a_row(tree):
    labels = np.random.RandomState(0).randint(0, 200, 150)
    check_problems(tree, [[label] for label in labels], targets_of([[label] for label in labels]))


def test_rows_without_any_label():
    tree = complete_tree(5)
    problems = node_problems(tree, targets_of([[], []]), np.ones(len(tree)))
    assert [len(problem.rows) for problem in problems if problem.node == 0] in ([], [2])


# --- vectors of sixteen --------------------------------------------------------------------------------


@kernel
def two_at_a_time(a, b, out):
    x, y = vector.load(a, 3), vector.load(b, 0)
    vector.store(out, 0, vector.add(x, y))
    vector.store(out, 16, vector.subtract(x, y))
    vector.store(out, 32, vector.multiply(x, y))
    vector.store(out, 48, vector.divide(x, y))
    vector.store(out, 64, vector.minimum(x, y))
    vector.store(out, 80, vector.maximum(x, y))


@kernel
def the_others(a, b, c, bits, out):
    x, y, z = vector.load(a, 0), vector.load(b, 0), vector.load(c, 0)
    vector.store(out, 0, vector.multiply_add(x, y, z))
    vector.store(out, 16, vector.floor(x))
    vector.store(out, 32, vector.power_of_two(vector.floor(x)))
    vector.store(out, 48, vector.choose(bits, x, y))
    vector.store(out, 64, vector.splat(a[5]))
    vector.prefetch(a, 2)
    return vector.bits_above(x, y), vector.any_differs(x, y), vector.any_differs(x, x)


@fast_kernel
def exponentials(x, out):
    for start in range(0, x.size, 16):
        vector.store(out, start, vector.exponential(vector.load(x, start)))


numbers = st.lists(st.floats(-1e3, 1e3, width=32), min_size=16, max_size=16)


def as_array(values):
    return np.array(values, dtype=np.float32)


@settings(max_examples=50, deadline=None)
@given(numbers, numbers)
def test_arithmetic_of_vectors(a, b):
    a, b = as_array([7.0, 7.0, 7.0, *a, 7.0]), as_array(b)
    out = np.full(16 * 6 + 2, 9.0, dtype=np.float32)
    two_at_a_time(a, b, out)
    x = a[3:19]
    with np.errstate(all="ignore"):
        expected = [x + b, x - b, x * b, x / b, np.minimum(x, b), np.maximum(x, b)]
    assert np.array_equal(out[:96].reshape(6, 16), np.stack(expected), equal_nan=True)
    assert (out[96:] == 9.0).all(), "nothing is written behind the sixteen"


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-100, 100, width=32), min_size=16, max_size=16), numbers, numbers, st.integers(0, 2**32 - 1))
def test_the_other_operations(a, b, c, bits):
    a, b, c = as_array(a), as_array(b), as_array(c)
    out = np.empty(80, dtype=np.float32)
    above, differs, same = the_others(a, b, c, np.uint32(bits), out)
    fused, floor, power, chosen, splat = out.reshape(5, 16)
    exact = a.astype(np.float64) * b + c
    np.testing.assert_allclose(fused, exact.astype(np.float32), rtol=2e-7, atol=1e-30)
    assert np.array_equal(floor, np.floor(a)) and np.array_equal(power, np.exp2(np.floor(a)))
    assert np.array_equal(chosen, np.where((bits >> np.arange(16)) & 1, a, b))
    assert (splat == a[5]).all()
    assert above == sum(1 << i for i in range(16) if a[i] > b[i])
    assert differs == bool((a != b).any()) and not same


def test_multiply_add_rounds_once():
    a = np.full(16, 1 + 2**-12, dtype=np.float32)
    out = np.empty(80, dtype=np.float32)
    the_others(a, a, np.full(16, -(1 + 2**-11), dtype=np.float32), np.uint32(0), out)
    assert (out[:16] == np.float32(2**-24)).all()


def test_nan_differs_from_itself():
    a = np.zeros(16, dtype=np.float32)
    a[4] = np.nan
    _, _, differs = the_others(a, a, a, np.uint32(0), np.empty(80, dtype=np.float32))
    assert differs


def test_exponential_of_vectors_is_accurate():
    x = np.linspace(-86.9, 87.9, 16 * 40_000).astype(np.float32)
    x = np.concatenate([x, np.linspace(-1e-3, 1e-3, 160).astype(np.float32)])
    out = np.empty_like(x)
    exponentials(x, out)
    assert np.abs(out / np.exp(x.astype(np.float64)) - 1).max() < 3e-7
    extreme = as_array([-np.inf, -3e38, -1000, -88, 0, -0.0, 88, 89, 1000, 3e38, np.inf, 1, 2, 3, 4, 5])
    out = np.empty_like(extreme)
    exponentials(extreme, out)
    assert np.isfinite(out).all() and (out[:4] < 2e-38).all() and (out[6:11] > 1e38).all()
    assert (out[4:6] == 1.0).all()


def test_vectors_refuse_other_arrays():
    with pytest.raises(Exception, match="load"):
        two_at_a_time(np.zeros(20), np.zeros(16), np.zeros(96))
    with pytest.raises(Exception, match="load"):
        two_at_a_time(
            np.zeros(40, dtype=np.float32)[::2], np.zeros(16, dtype=np.float32), np.zeros(96, dtype=np.float32)
        )


@pytest.mark.parametrize("loss", LOSSES)
def test_a_weight_is_a_repetition_of_the_row(loss):
    X, lists = problem(60, 20, 5, 1, 3)
    times = np.random.RandomState(1).randint(1, 5, len(X))
    repeated = np.repeat(np.arange(len(X)), times)
    weighted = Trained(X, lists, 20, loss, passes=2000, row_weights=times.astype(np.float32))
    expected = Trained(X[repeated], [lists[row] for row in repeated], 20, loss, passes=2000)
    plain = Trained(X, lists, 20, loss, passes=2000)
    atol = 0.02 if loss == "logistic" else 2e-3  # which ignores small steps
    np.testing.assert_allclose(weighted.dense, expected.dense, atol=atol)
    np.testing.assert_allclose(weighted.bias, expected.bias, atol=atol)
    assert np.abs(plain.dense - expected.dense).max() > 0.05


@pytest.mark.parametrize("loss", LOSSES)
def test_a_relevance_multiplies_the_loss_of_its_pair(loss):
    """The objective with relevances is at its minimum: no weight can be moved to decrease it."""
    X, lists = problem(60, 20, 5, 1, 3)
    relevance = np.random.RandomState(2).uniform(0.2, 4, sum(map(len, lists))).astype(np.float32)
    own = np.random.RandomState(3).uniform(0.5, 2, len(X)).astype(np.float32)
    trained = Trained(X, lists, 20, loss, passes=3000, row_weights=own, pair_weights=relevance)
    of_pair = dict(zip([(row, child) for row, children in enumerate(lists) for child in children], relevance.tolist()))
    for child in range(20):
        truth = np.array([child in row for row in lists])
        cost = own * np.array([of_pair.get((row, child), 1.0) for row in range(len(X))])
        sign = np.where(truth, 1.0, -1.0)

        def value(weights, bias, sign=sign, cost=cost):
            margin = sign * (X.astype(float) @ weights + bias)
            losses = np.maximum(0, 1 - margin) ** 2 if loss == "squared_hinge" else np.logaddexp(0, -margin)
            return float(cost @ losses + 0.5 * (weights @ weights + bias * bias))

        weights, bias = trained.dense[:, child].astype(float), float(trained.bias[child])
        least = value(weights, bias)
        for feature in range(len(weights)):
            for step in (-0.02, 0.02):
                moved = weights.copy()
                moved[feature] += step
                assert value(moved, bias) > least - 1e-4 * abs(least)


def test_held_out_rows_count_by_their_weights():
    X, lists = problem(200, 5, 3, 1, 2)
    one = Trained(X, lists, 5, held=4)
    two = Trained(X, lists, 5, held=4, row_weights=np.full(len(X), 2, dtype=np.float32))
    np.testing.assert_allclose(two.histogram.sum(axis=1), 2 * one.histogram.sum(axis=1))
