"""SoftmaxTree: the objective never increases, pruning changes no prediction, and saving.

`_prepared` gives rows as the solvers take them, `_progress_text` the text of the progress bar.
"""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import treemax
from treemax.inputs.rows import as_rows
from treemax.models.softmax_tree import start as tao_start
from treemax.models.softmax_tree import steps
from treemax.models.softmax_tree.estimator import ALPHA_FOR_FEW_ROWS, ALPHAS, _progress_text
from treemax.models.softmax_tree.model import Branch, Softmax, SoftmaxTreeModel
from treemax.models.softmax_tree.objective import Objective
from treemax.models.softmax_tree.smoothing import best_smoothing
from treemax.models.softmax_tree.state import BETA, DROP, ZERO_ONE, Leaf, Plane, Record, SoftmaxTreeState, TaoSettings
from treemax.models.softmax_tree.training import LEAST_CHANCE, MAX_STEPS, SURE, Tao, grow, table_of
from treemax.parallel.pools import Threads


def problem(n_rows=300, n_labels=15, n_features=8, noise=0.4, seed=0):
    random = np.random.RandomState(seed)
    y = random.randint(n_labels, size=n_rows)
    X = random.normal(size=(n_labels, n_features))[y] + noise * random.normal(size=(n_rows, n_features))
    return X.astype(np.float32), y.astype(np.int64)


def initial(X, y, depth, start, own, seed=0):
    state, leaf_of = steps.initial_state(X, y, int(y.max()) + 1, depth, start, np.random.RandomState(seed))
    return tao_of(X, y, own, state), leaf_of


def pruned_of(state, X, y, own):
    tao = tao_of(X, y, own, state)
    return steps.prune(tao.table, tao.executor, state, own)


def tao_of(X, y, own, state):
    table = table_of(X, y)
    return Tao(table, Threads().share(table), own, state)


# --- a slow and obvious tree ----------------------------------------------------------------------------


def path_of(x, state):
    node = 0
    while node < len(state.planes):
        plane = state.planes[node]
        weights = plane.coef.toarray()[0] if sp.issparse(plane.coef) else plane.coef[0]
        node = 2 * node + (2 if float(weights @ x) + plane.bias >= 0 else 1)
    return node - len(state.planes)


def slow_objective(X, y, state, own):
    """Equation 1, one row at a time."""
    total = 0.0
    for x, label in zip(X.astype(np.float64), y):
        leaf = state.leaves[path_of(x, state)]
        coef = leaf.coef.toarray() if sp.issparse(leaf.coef) else leaf.coef
        scores = coef.astype(np.float64) @ x + leaf.bias
        classes = leaf.classes.tolist()
        if own.missing == ZERO_ONE:
            total += not len(scores) or classes[int(np.argmax(scores))] != label
        elif label in classes:
            total += np.log(np.exp(scores - scores.max()).sum()) + scores.max() - scores[classes.index(label)]
        elif own.missing == BETA:
            total += own.beta
    plane_alpha = own.alpha if own.plane_alpha is None else own.plane_alpha
    for nodes, alpha, ridge in ((state.planes, plane_alpha, own.plane_ridge), (state.leaves, own.alpha, own.ridge)):
        for node in nodes:
            entries = node.coef.toarray() if sp.issparse(node.coef) else node.coef
            total += sum(alpha * abs(float(w)) + ridge / 2 * float(w) ** 2 for w in entries.ravel())
    return total


@pytest.mark.parametrize("missing", [ZERO_ONE, BETA, DROP])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("costs", [{}, {"ridge": 0.3, "plane_ridge": 2.0, "plane_alpha": 0.05}])
def test_the_objective_is_that_of_the_paper(missing, sparse, costs):
    """And with other costs of weights, which are ours."""
    X, y = problem()
    X[np.abs(X) < 0.5] = 0.0
    own = TaoSettings(0.2, 4, missing, **costs)
    rows = as_rows(sp.csr_matrix(X) if sparse else X)
    tao, leaf_of = initial(rows, y, 2, "prototypes", own)
    for record in tao.run(2, leaf_of):
        if record.depth == 0:
            expected = slow_objective(X, y, tao.state, own)
            assert math.isclose(record.objective, expected, rel_tol=1e-4)
            assert math.isclose(tao.objective(), expected, rel_tol=1e-4)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1000),
    depth=st.integers(0, 3),
    n_classes=st.integers(1, 8),
    alpha=st.sampled_from([0.0, 0.05, 1.0, 30.0]),
    ridge=st.sampled_from([0.0, 0.3, 10.0]),
    plane_ridge=st.sampled_from([0.0, 3.0]),
    plane_alpha=st.sampled_from([None, 0.0, 0.5]),
    missing=st.sampled_from([ZERO_ONE, BETA]),
    start=st.sampled_from(steps.STARTS),
    sparse=st.booleans(),
)
def test_no_update_of_any_node_raises_the_objective(
    seed, depth, n_classes, alpha, ridge, plane_ridge, plane_alpha, missing, start, sparse
):
    X, y = problem(120, 10, 6, noise=1.0, seed=seed)
    rows = as_rows(sp.csr_matrix(np.where(np.abs(X) > 0.3, X, 0)) if sparse else X)
    own = TaoSettings(
        alpha, n_classes, missing, beta=20.0, ridge=ridge, plane_ridge=plane_ridge, plane_alpha=plane_alpha
    )
    tao, leaf_of = initial(rows, y, depth, start, own, seed)
    for _ in tao.run(1, leaf_of):
        pass
    for iteration in (1, 2):
        tao.find_reduced_sets(iteration)
        before = tao.objective()
        updates = [(tao.update_leaves, place) for place in range(2**depth)]
        updates += [(tao.update_planes, node) for node in range(2**depth - 2, -1, -1)]
        for update, node in updates:
            change = update(range(node, node + 1))
            kept, tao.sets = tao.sets, list(tao.sets)
            tao.find_reduced_sets(iteration)  # the objective of the tree as it is now, from nothing but its parameters
            after = tao.objective()
            tao.sets = kept
            assert change <= 0.0
            assert after <= before + 1e-6 * max(1.0, before)
            assert math.isclose(after, before + change, rel_tol=1e-6, abs_tol=1e-4)
            before = after


def test_the_history_never_rises_in_the_modes_of_the_paper():
    X, y = problem(600, 30, noise=0.8)
    for missing in (ZERO_ONE, BETA):
        model = treemax.SoftmaxTree(
            depth=3,
            leaf_classes=8,
            alpha=0.1,
            iterations=4,
            missing=missing,
            start="prototypes",
            spill=0,
            growth=1.0,
            verbose=0,
        ).fit(X, y)
        objectives = [record.objective for record in model.history_ if not math.isnan(record.objective)]
        assert len(objectives) > 4 and (np.diff(objectives) <= 1e-6 * objectives[0]).all()
        errors = [record.error for record in model.history_ if record.depth == 0]
        assert math.isclose(errors[-1], 1.0 - model.score(X, y), abs_tol=0.01)


def test_nodes_may_take_parameters_that_are_worse_as_in_algorithm_1():
    X, y = problem(400, 25, noise=1.0)
    own = {"depth": 3, "leaf_classes": 6, "spill": 0, "growth": 1.0, "alpha": 0.3, "iterations": 8, "verbose": 0}
    for missing in (ZERO_ONE, BETA):
        guarded, free = (
            treemax.SoftmaxTree(accept_worse=worse, missing=missing, **own).fit(X, y) for worse in (False, True)
        )
        rises = [np.diff([r.objective for r in m.history_ if r.iteration > 0]).max() for m in (guarded, free)]
        assert rises[0] <= 1e-6 * guarded.history_[-1].objective < rises[1]
        assert free.history_[-1].iteration == 7  # until the maximum number of iterations
        last = slow_objective(
            X, y, free.states_[0], TaoSettings(0.3, 6, missing, plane_alpha=3.0, ridge=0.1, plane_ridge=1.0)
        )
        assert math.isclose(free.history_[-1].objective, last, rel_tol=1e-4)


def test_the_history_is_finite_when_rows_are_dropped():
    """And has the objective of the tree at every depth, not only after an iteration."""
    X, y = problem(400, 20, noise=0.8)
    own = TaoSettings(0.1, 4, DROP)
    for start in ("prototypes", "random"):
        tao, leaf_of = initial(X, y, 2, start, own)
        for record in tao.run(4, leaf_of):
            if record.iteration > 0 or start == "random":
                assert math.isclose(record.objective, slow_objective(X, y, tao.state, own), rel_tol=1e-4)
        assert record.iteration == 3
    for more in ({"spill": 0, "growth": 1.0}, {}, {"start": "random"}):
        model = treemax.SoftmaxTree(depth=2, leaf_classes=4, missing=DROP, verbose=0, **more).fit(X, y)
        unknown = [(r.iteration, r.depth) for r in model.history_ if not math.isfinite(r.objective)]
        assert unknown == ([] if "start" in more else [(0, 2), (0, 1)]), "clusters have no planes at first"


# --- nodes ----------------------------------------------------------------------------------------------


def test_a_leaf_has_the_most_populous_classes_of_its_rows():
    X, y = problem(400, 12)
    tao, leaf_of = initial(X, y, 1, "random", TaoSettings(0.1, 3))
    tao.find_reduced_sets(0, leaf_of)
    for place in (0, 1):
        tao.update_leaves(range(place, place + 1))
        counts = np.bincount(y[tao.sets[1 + place]])
        assert counts[tao.state.leaves[place].classes].min() >= np.sort(counts)[-3]


def test_pseudo_labels_send_a_row_where_its_loss_is_lower():
    X = np.array([[-1.0], [-0.9], [0.9], [1.0]], np.float32)
    y = np.array([0, 0, 1, 1])
    state = SoftmaxTreeState.empty(1)
    zero = np.zeros((1, 1), np.float32)
    state.leaves = [Leaf(np.array([c]), zero, np.zeros(1, np.float32)) for c in (1, 0)]  # right has class 0
    state.planes = [Plane(np.array([[1.0]], np.float32), 0.0)]
    tao = tao_of(X, y, TaoSettings(0.01, 1), state)
    tao.find_reduced_sets(0)
    assert tao.objective() > 4
    assert tao.update_planes(range(1)) < -3.5
    assert state.planes[0].coef[0, 0] < 0


def test_early_iterations_learn_from_a_share_of_the_rows_and_the_last_from_all():
    X, y = problem()
    own = TaoSettings(0.05, 4, missing=BETA, beta=10.0, early_share=0.3)
    tao, leaf_of = initial(X, y, 2, "balanced", own)
    seen = {}
    for record in tao.run(3, leaf_of):
        seen[record.iteration] = tao.learned
        everything = np.sort(np.concatenate(tao.sets[3:]))
        np.testing.assert_array_equal(everything, tao.learned)
    assert [len(rows) for rows in seen.values()] == [90, 90, 300]
    assert set(seen[0]) != set(seen[1])
    assert record.objective == pytest.approx(slow_objective(X, y, tao.state, own), rel=1e-5)
    again, leaf_of = initial(X, y, 2, "balanced", own)
    assert [r.objective for r in again.run(3, leaf_of)][-1] == record.objective


@pytest.mark.parametrize("kind", [treemax.SoftmaxTree, treemax.SoftmaxForest])
def test_the_early_share_of_a_model_reaches_its_training(kind):
    X, y = problem()
    some, everything = (
        kind(depth=2, leaf_classes=4, iterations=2, early_share=share, verbose=0).fit(X, y) for share in (0.3, 1.0)
    )
    first, of_all = (
        [r.error for r in model.history_ if (r.iteration, r.depth) == (0, 0)] for model in (some, everything)
    )
    assert first != of_all


def test_rows_near_a_plane_train_the_leaves_on_both_sides_by_the_chance_that_they_come_there():
    X, y = problem(500)
    tao, leaf_of = initial(X, y, 2, "balanced", TaoSettings(0.1, 5, spill=0.3))
    for _ in tao.run(1, leaf_of):
        pass
    tao.find_reduced_sets(1)
    chance = np.ones((len(X), 7))
    for node in range(3):
        plane = tao.state.planes[node]
        score = X @ plane.coef[0] + plane.bias
        error = 0.3 * score[tao.sets[node]].std()
        chance[:, 2 * node + 2] = chance[:, node] * [0.5 * math.erfc(-s / error / 2**0.5) for s in score]
        chance[:, 2 * node + 1] = chance[:, node] - chance[:, 2 * node + 2]
    for place, (rows, weights) in enumerate(tao.leaf_rows):
        expected = chance[:, 3 + place]
        assert np.allclose(weights, expected[rows], atol=1e-4)
        assert expected[np.setdiff1d(np.arange(len(X)), rows)].max() < LEAST_CHANCE + 1e-4
    assert sum(len(own.rows) for own in tao.leaf_rows) > 1.2 * len(X)


def test_early_iterations_learn_from_a_sample_of_the_rows_that_are_unlikely_to_come_to_a_leaf():
    X, y = problem(2000)
    taos = []
    for early_steps in (None, 5):
        tao, leaf_of = initial(X, y, 2, "balanced", TaoSettings(0.1, 5, spill=0.6))
        for _ in tao.run(1, leaf_of):
            pass
        tao.settings, tao._is_early = replace(tao.settings, early_steps=early_steps), early_steps is not None
        tao.find_reduced_sets(1)
        taos.append(tao)
    for everything, sample in zip(taos[0].leaf_rows, taos[1].leaf_rows, strict=True):
        chance = np.zeros(len(X))
        chance[everything.rows] = everything.weights
        assert 0.5 * len(everything.rows) < len(sample.rows) < 0.95 * len(everything.rows)
        assert set(everything.rows[everything.weights >= SURE]) <= set(sample.rows)
        np.testing.assert_allclose(sample.weights, np.maximum(chance[sample.rows], SURE), rtol=1e-6)
        unlikely = chance < SURE
        drawn = sample.weights[unlikely[sample.rows]].sum()
        assert math.isclose(drawn, chance[unlikely].sum(), rel_tol=0.25)


@pytest.mark.parametrize("sparse", [False, True])
def test_with_early_steps_the_last_iteration_trains_only_leaves(sparse):
    X, y = problem(1200, 30, noise=0.8)
    rows = as_rows(sp.csr_matrix(X) if sparse else X)
    own = TaoSettings(0.02, 8, spill=0.4, early_steps=2)
    tao, leaf_of = initial(rows, y, 2, "balanced", own)
    steps_of, planes, leaves = {}, {}, {}
    for record in tao.run(4, leaf_of):
        steps_of[record.iteration] = tao.max_steps
        planes[record.iteration], leaves[record.iteration] = list(tao.state.planes), list(tao.state.leaves)
    assert list(steps_of.values()) == [2, 2, 2, MAX_STEPS]
    assert all(a is b for a, b in zip(planes[2], planes[3])) and not all(a is b for a, b in zip(planes[0], planes[2]))
    assert not any(a is b for a, b in zip(leaves[2], leaves[3]))
    assert [(r.iteration, r.depth) for r in tao.state.history[-2:]] == [(3, 2), (3, 0)]
    expected = slow_objective(X, y, tao.state, own)
    assert math.isclose(record.objective, expected, rel_tol=1e-4)


def test_few_early_steps_are_as_accurate():
    X, y = problem(6000, 60, noise=1.0)
    quick, slow = (
        treemax.SoftmaxTree(leaf_classes=15, early_steps=early_steps, verbose=0).fit(X[:4000], y[:4000])
        for early_steps in ("auto", None)
    )
    assert quick.score(X[4000:], y[4000:]) > slow.score(X[4000:], y[4000:]) - 0.02


def test_one_column_of_a_far_larger_scale_is_learned():
    random = np.random.RandomState(0)
    y = random.randint(0, 10, 600)
    X = random.normal(size=(600, 2)).astype(np.float32)
    X[:, 0] += 10 * y
    scores = [
        treemax.SoftmaxTree(early_steps=steps, verbose=0).fit(X[:300], y[:300]).score(X[300:], y[300:])
        for steps in ("auto", None)
    ]
    assert min(scores) > 0.95


def test_without_spill_leaves_learn_from_the_rows_that_come_to_them():
    X, y = problem(300)
    tao, leaf_of = initial(X, y, 2, "balanced", TaoSettings(0.1, 5))
    for _ in tao.run(2, leaf_of):
        pass
    assert all((learned.rows == own).all() for learned, own in zip(tao.leaf_rows, tao.sets[3:]))
    assert all((own.weights == 1).all() for own in tao.leaf_rows)


def test_progress_says_where_training_is():
    nothing = float("nan")
    begun_history = [Record(0, 2, nothing, nothing)]
    assert _progress_text(begun_history) == "iteration 1, depth 2"
    later = [*begun_history, Record(0, 0, 1234.6, 0.25), Record(1, 2, 1200.0, nothing)]
    assert _progress_text(later) == "iteration 2, depth 2, objective 1,200, training error 25.0%"


# --- growth ---------------------------------------------------------------------------------------------


def grown_once(growth):
    X, y = problem(600, 24)
    tao, leaf_of = initial(X, y, 1, "balanced", TaoSettings(0.1, 8, growth=growth))
    for _ in tao.run(1, leaf_of):
        pass
    missed = [1 - np.isin(y[own], leaf.classes).mean() for own, leaf in zip(tao.sets[1:], tao.state.leaves)]
    return tao, missed


def test_leaves_that_miss_many_classes_are_split_and_nothing_is_lost_by_it():
    tao, missed = grown_once(0.1)
    assert min(missed) > 0.1
    before = Objective(tao.table, tao.settings).loss(tao.state, 0, tao.sets[0])
    assert grow(tao)
    tao.find_reduced_sets(1)
    assert tao.state.depth == 2 and len(tao.state.planes) == 3 and len(tao.state.leaves) == 4
    assert not any(plane.is_constant for plane in tao.state.planes)
    assert (Objective(tao.table, tao.settings).loss(tao.state, 0, tao.sets[0]) == before).all()
    assert all(len(own) > 100 for own in tao.sets[3:])


def test_only_those_leaves_are_split():
    tao, missed = grown_once(0.1)
    between = (min(missed) + max(missed)) / 2
    assert min(missed) < between < max(missed)
    tao.settings = replace(tao.settings, growth=between)
    assert grow(tao)
    closed = [plane.is_constant for plane in tao.state.planes[1:]]
    assert closed == [share < between for share in missed]
    tao.find_reduced_sets(1)
    for depth in (2, 1, 0):
        tao.update_depth(depth)
    assert [plane.is_constant for plane in tao.state.planes[1:]] == closed
    model = steps.prune(tao.table, tao.executor, tao.state, tao.settings)
    kinds = [isinstance(side, Branch) for side in (model.left, model.right)]
    assert kinds == [not is_constant for is_constant in closed]


def test_a_tree_that_misses_nothing_does_not_grow():
    X, y = problem(200, 6)
    tao, leaf_of = initial(X, y, 1, "balanced", TaoSettings(0.1, 6, growth=0.01))
    for _ in tao.run(2, leaf_of):
        pass
    assert tao.state.depth == 1


def test_growing_finds_the_depth_that_a_problem_needs(tmp_path):
    X, y = problem(1500, 60)
    settings = {"depth": 1, "leaf_classes": 10, "growth": 0.05, "early_steps": None, "verbose": 0}
    small = treemax.SoftmaxTree(**{**settings, "growth": 1.0}).fit(X, y)
    model = treemax.SoftmaxTree(**settings).fit(X, y)
    assert model.describe()["depth"] >= 3
    assert model.score(X, y) > small.score(X, y) + 0.3
    begun_model = treemax.SoftmaxTree(**{**settings, "iterations": 2}).fit(X, y)
    begun_model.save(tmp_path / "model", resume=True)
    resumed = treemax.load(tmp_path / "model").set_params(iterations=6, warm_start=True).fit(X, y)
    assert (resumed.predict_proba(X) == model.predict_proba(X)).all()


# --- starts ---------------------------------------------------------------------------------------------


def test_the_closest_clusters_become_siblings():
    centres = np.array([[0.0], [10.0], [0.1], [10.2], [50.0], [50.3], [52.0], [53.0]])
    leaf = tao_start.merged_order(centres, np.ones(8), 3)
    assert sorted(leaf) == list(range(8))
    for a, b in ((0, 2), (1, 3), (4, 5), (6, 7)):
        assert leaf[a] // 2 == leaf[b] // 2
    assert len({int(leaf[c]) // 4 for c in (0, 1, 2, 3)}) == 1


def test_fewer_clusters_than_leaves_leave_leaves_empty():
    leaf = tao_start.merged_order(np.array([[0.0], [1.0], [5.0]]), np.ones(3), 3)
    assert len(set(leaf)) == 3 and leaf.max() < 8


def slow_order(centres, sizes, depth):
    """Algorithm 2 by enumeration: at each depth the two closest clusters that are left; empty ones come last."""
    level = [([i], np.array(c, float), float(n)) for i, (c, n) in enumerate(zip(centres, sizes))]
    level += [([None], None, 0.0)] * (2**depth - len(level))
    while len(level) > 1:
        merged, left = [], list(range(len(level)))
        while left:
            pairs = [(a, b) for a in left for b in left if a < b]
            a, b = min(pairs, key=lambda pair: slow_distance(level[pair[0]], level[pair[1]]))
            (first, one, n), (second, other, m) = level[a], level[b]
            mean = (n * one + m * other) / (n + m) if n and m else one if n else other
            merged.append((first + second, mean, n + m))
            left = [c for c in left if c not in (a, b)]
        level = merged
    leaves = level[0][0]
    return [leaves.index(i) for i in range(len(centres))]


def slow_distance(one, other):
    return math.dist(one[1], other[1]) if one[2] and other[2] else math.inf


def test_empty_subtrees_are_not_clusters_at_the_origin():
    centres = np.array([[0.5], [0.6], [2.0], [2.1], [50.0]])
    leaf = tao_start.merged_order(centres, np.ones(5), 3)
    assert len({int(place) // 4 for place in leaf[:4]}) == 1  # the near pairs share a side of the root
    assert leaf[4] // 4 != leaf[0] // 4


@pytest.mark.parametrize("seed", range(20))
def test_clusters_are_merged_as_in_algorithm_2(seed):
    random = np.random.RandomState(seed)
    depth = random.randint(1, 5)
    n = random.randint(1, 2**depth + 1)
    centres, sizes = random.normal(size=(n, 2)), random.randint(1, 9, size=n)
    leaf = tao_start.merged_order(centres, sizes, depth)
    for level in range(1, depth + 1):  # the same groups at every depth, whichever side they are on
        found, expected = ([place >> level for place in places] for places in (leaf, slow_order(centres, sizes, depth)))
        assert [[a == b for b in found] for a in found] == [[a == b for b in expected] for a in expected]


@pytest.mark.parametrize("sparse", [False, True])
def test_balanced_leaves_have_similar_numbers_of_rows_and_whole_classes(sparse):
    X, y = problem(2000, 64)
    rows = as_rows(sp.csr_matrix(X)) if sparse else X
    leaf = tao_start.balanced_leaves(rows, y, 64, 3, np.random.RandomState(0))
    counts = np.bincount(leaf, minlength=8)
    assert counts.min() > 0.6 * 250 and counts.max() < 1.5 * 250
    assert all(len(set(leaf[y == label])) == 1 for label in range(64))


def test_the_random_start_of_the_paper_is_normal_and_of_unit_length():
    drawn = np.random.RandomState(3).normal(size=(7, 9))
    expected = drawn / np.sqrt((drawn**2).sum(axis=1, keepdims=True))
    X, y = problem(100, 5)
    for rows in (X, as_rows(sp.csr_matrix(X))):
        state, leaf_of = steps.initial_state(rows, y, 5, 3, "gaussian", np.random.RandomState(3))
        assert leaf_of is None
        for plane, own in zip(state.planes, expected):
            weights = plane.coef.toarray() if sp.issparse(plane.coef) else plane.coef
            np.testing.assert_allclose([*weights[0], plane.bias], own, rtol=1e-6)


@pytest.mark.parametrize("sparse", [False, True])
def test_a_tree_learns_from_the_random_start_of_the_paper(sparse):
    X, y = problem(600, 12)
    model = treemax.SoftmaxTree.as_published(depth=3, leaf_classes=6, start="gaussian", iterations=5, verbose=0).fit(
        sp.csr_matrix(X) if sparse else X, y
    )
    assert model.score(X, y) > 0.8


def test_several_runs_of_k_means_give_the_tightest_clusters():
    X, _ = problem(300, 30)

    def spread(n_init, seed):
        leaf = tao_start.kmeans_leaves(X, 4, np.random.RandomState(seed), n_init)
        return sum(((X[leaf == own] - X[leaf == own].mean(axis=0)) ** 2).sum() for own in np.unique(leaf))

    pairs = [(spread(1, seed), spread(8, seed)) for seed in range(5)]
    assert all(best <= one * (1 + 1e-6) for one, best in pairs)
    assert any(best < 0.99 * one for one, best in pairs)


def test_the_number_of_runs_of_a_model_reaches_k_means(monkeypatch):
    X, y = problem(200, 12)
    seen = []
    kind = tao_start.KMeans

    def noted(n_clusters, n_init, random_state):
        seen.append(n_init)
        return kind(n_clusters, n_init=n_init, random_state=random_state)

    monkeypatch.setattr(tao_start, "KMeans", noted)
    for start in ("prototypes", "kmeans"):
        treemax.SoftmaxTree(depth=2, start=start, n_init=3, iterations=1, verbose=0).fit(X, y)
    assert seen == [3, 3]


# --- answers --------------------------------------------------------------------------------------------


def slow_answers(X, state, n_labels):
    out = np.zeros((len(X), n_labels))
    for i, x in enumerate(X.astype(np.float64)):
        leaf = state.leaves[path_of(x, state)]
        coef = leaf.coef.toarray() if sp.issparse(leaf.coef) else leaf.coef
        scores = coef.astype(np.float64) @ x + leaf.bias
        out[i, leaf.classes] = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
    return out


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("n_trees", [1, 3])
def test_answers_are_the_softmax_at_the_end_of_the_path(sparse, n_trees):
    X, y = problem(500, 20)
    X[np.abs(X) < 0.5] = 0.0
    matrix = sp.csr_matrix(X) if sparse else X
    model = treemax.SoftmaxForest(n_trees=n_trees, leaf_classes=6, alpha=0.1, iterations=2, verbose=0).fit(matrix, y)
    expected = np.mean([slow_answers(X, state, 20) for state in model.states_], axis=0)
    found = model.predict_proba(matrix)
    close = np.abs(found - expected).max(axis=1) < 0.03  # weights are rounded: rows next to a plane may change sides
    assert close.mean() > 0.97
    np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=1e-4)
    top = model.predict_topk(matrix, k=3)
    np.testing.assert_allclose(top.scores[:, 0], found.max(axis=1), rtol=1e-5)


@pytest.mark.parametrize("sparse", [False, True])
def test_pruning_changes_no_answer(sparse):
    X, y = problem(400, 6, noise=0.9)
    matrix = as_rows(sp.csr_matrix(X) if sparse else X)
    own = TaoSettings(3.0, 3, BETA)
    tao, leaf_of = initial(matrix, y, 5, "prototypes", own)
    for _ in tao.run(3, leaf_of):
        pass
    tree = steps.prune(tao.table, tao.executor, tao.state, own)
    n_kept = 0
    stack = [tree]
    while stack:
        node = stack.pop()
        n_kept += 1
        stack += [node.left, node.right] if isinstance(node, Branch) else []
    assert n_kept < 63  # a strong penalty leaves decisions that are none
    found = SoftmaxTreeModel.pack([tree], 6, X.shape[1]).probabilities(matrix)
    expected = slow_answers(X, tao.state, 6)
    assert (np.abs(found - expected).max(axis=1) < 0.03).mean() > 0.99


def test_pure_siblings_are_one_leaf():
    X = np.array([[-2.0], [-1.0], [1.0], [2.0]], np.float32)
    y = np.array([0, 0, 1, 1])
    state = SoftmaxTreeState.empty(2)
    zero, none = np.zeros((1, 1), np.float32), np.zeros(1, np.float32)
    one = np.array([[1.0]], np.float32)
    state.planes = [Plane(one, 0.0), Plane(one, 1.5), Plane(one, -1.5)]
    state.leaves = [Leaf(np.array([c]), zero, none) for c in (0, 0, 1, 1)]
    tree = pruned_of(state, X, y, TaoSettings(0.1, 1))
    assert isinstance(tree, Branch) and isinstance(tree.left, Softmax) and isinstance(tree.right, Softmax)
    assert tree.left.classes.tolist() == [0] and tree.right.classes.tolist() == [1]


def test_smoothing_gives_every_label_a_probability():
    X, y = problem(400, 20, noise=1.5)
    model = treemax.SoftmaxTree(leaf_classes=4, alpha=0.1, verbose=0).fit(X, y)
    before, coverage, _ = model.perplexity(X, y)
    assert 0.5 < coverage < 1.0
    model.smoothing = 1e-3
    found = model.predict_proba(X)
    assert (found > 0).all()
    np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=1e-5)
    top = model.predict_topk(X, k=2)
    np.testing.assert_allclose(top.scores[:, 0], found.max(axis=1), rtol=1e-4)
    after = model.perplexity(X, y)
    assert after.coverage == 1.0 and after.perplexity > before


@pytest.mark.parametrize("seed", range(5))
def test_the_best_smoothing_has_the_largest_likelihood(seed):
    random = np.random.RandomState(seed)
    covered, n_missing = (random.uniform(size=200) < random.uniform(0.3, 0.99), random.randint(5, 400, size=200))

    def likelihood(smoothing):
        return np.log(np.where(covered, 1.0, smoothing) / (1.0 + smoothing * n_missing)).sum()

    best = best_smoothing(covered, n_missing)
    assert likelihood(best) >= max(likelihood(s) for s in np.geomspace(1e-6, 1.0, 400)) - 1e-9


def test_smoothing_where_there_is_nothing_to_smooth():
    everything = np.ones(30, bool)
    assert best_smoothing(everything, np.zeros(30, np.int64)) == 0.0
    assert 0 < best_smoothing(everything, np.full(30, 5)) < 0.01
    assert best_smoothing(~everything, np.full(30, 5)) == 1.0


@pytest.mark.parametrize("kind", [treemax.SoftmaxTree, treemax.SoftmaxForest])
def test_smoothing_is_chosen_on_rows_held_out(kind, tmp_path):
    X, y = problem(2400, 30, noise=1.2)
    train, test = slice(0, 1600), slice(1600, None)
    own = {"leaf_classes": 6, "iterations": 2, "early_steps": None, "verbose": 0}
    model = kind(smoothing="auto", **own).fit(X[train], y[train])
    plain = kind(**own).fit(X[train], y[train])
    assert (model.predict(X) == plain.predict(X)).all()  # the trees do not depend on the smoothing
    found = model.perplexity(X[test], y[test])
    assert found.coverage == 1.0 and model.describe()["smoothing"] == model.smoothing_ > 0
    grid = [plain.set_params(smoothing=s).perplexity(X[test], y[test]).perplexity for s in np.geomspace(1e-5, 1, 40)]
    assert found.perplexity < 1.02 * min(grid)
    model.save(tmp_path / "model")
    assert treemax.load(tmp_path / "model").perplexity(X[test], y[test]) == found
    few = kind(smoothing="auto", **own).fit(X[:150], y[:150])
    assert few.smoothing_ == best_smoothing(*few.model_.coverage(few._prepared(X[:150]), few.label_index_.ids(y[:150])))
    with pytest.raises(ValueError, match="smoothing must be a number, since fit did not choose it"):
        plain.set_params(smoothing="auto").predict(X)
    assert not hasattr(plain, "smoothing_")


@pytest.mark.parametrize("sparse", [False, True])
def test_an_explanation_is_the_way_of_the_row(sparse):
    X, y = problem(400, 20)
    matrix = sp.csr_matrix(X) if sparse else X
    model = treemax.SoftmaxTree(leaf_classes=5, alpha=0.1, verbose=0).fit(matrix, y)
    told = model.explain(matrix[3:4], k=20)
    [path] = told.paths
    assert len(path.steps) > 1 and all(step.logit >= 0 for step in path.steps[:-1])
    for step, after in itertools.pairwise(path.steps):
        links = model.model_.structure.children[step.node].tolist()
        child = after.node if after is not path.steps[-1] else model.model_.n_branches - 1 - after.node
        assert links[("left", "right").index(step.branch)] == child
    answers = model.predict_topk(matrix[3:4], k=20).labels[0]
    assert [label for label in answers if label is not None] == [each.label for each in told.candidates]
    other = next(label for label in model.classes_.tolist() if label not in answers)
    with pytest.raises(ValueError, match=f"does not consider the label {other!r}"):
        model.explain(matrix[3:4], label=other)


# --- training as a user sees it -------------------------------------------------------------------------


def test_alpha_is_chosen_on_rows_held_out():
    X, y = problem(500, 20, noise=0.8)
    model = treemax.SoftmaxTree(leaf_classes=6, alpha="auto", iterations=1, verbose=0).fit(X, y)
    assert model.alpha_ in ALPHAS and model.describe()["alpha"] == model.alpha_
    few = treemax.SoftmaxTree(leaf_classes=6, alpha="auto", iterations=1, verbose=0).fit(X[:60], y[:60])
    assert few.alpha_ == ALPHA_FOR_FEW_ROWS


def test_alphas_above_one_are_tried_while_the_largest_is_best(monkeypatch):
    tried = []
    train = steps.train

    def noted(table, executor, state, leaf_of, settings, iterations):
        tried.append(settings.alpha)
        return train(table, executor, state, leaf_of, settings, iterations)

    monkeypatch.setattr(steps, "train", noted)
    own = {
        "leaf_classes": None,
        "depth": 1,
        "alpha": "auto",
        "ridge": 0,
        "iterations": 1,
        "early_steps": None,
        "verbose": 0,
    }
    random = np.random.RandomState(0)
    y = random.randint(2, size=400)
    X = random.normal(size=(400, 200)).astype(np.float32)
    X[:, 0] = np.where(random.uniform(size=400) < 0.85, 1, -1) * (2 * y - 1)  # the others are noise
    model = treemax.SoftmaxTree(**own).fit(X, y)
    assert model.alpha_ > 1 and tuple(tried[:-1]) == ALPHAS[: len(tried) - 1] and len(tried) > 7
    tried.clear()
    X, y = problem(500, 20, noise=0.5)
    model = treemax.SoftmaxTree(**own).fit(X, y)
    assert model.alpha_ < 1 and tuple(tried[:-1]) == ALPHAS[:6]


def test_threads_give_the_same_tree():
    X, y = problem(500, 20)
    models = [treemax.SoftmaxTree(leaf_classes=6, n_jobs=n, verbose=0).fit(X, y) for n in (1, 3)]
    np.testing.assert_array_equal(models[0].predict_proba(X), models[1].predict_proba(X))


@pytest.mark.parametrize("sparse", [False, True])
def test_training_goes_on_where_it_stopped(tmp_path, sparse):
    X, y = problem(500, 20)
    matrix = sp.csr_matrix(X) if sparse else X
    own = {"depth": 2, "leaf_classes": 6, "alpha": 0.1, "early_steps": None, "verbose": 0}
    at_once = treemax.SoftmaxTree(iterations=4, **own).fit(matrix, y)
    half = treemax.SoftmaxTree(iterations=2, **own).fit(matrix, y)
    half.save(tmp_path / "half.treemax", resume=True)
    half = treemax.load(tmp_path / "half.treemax")
    half.set_params(iterations=4, warm_start=True)
    half.fit(matrix, y)
    np.testing.assert_array_equal(half.predict_proba(matrix), at_once.predict_proba(matrix))
    half.save(tmp_path / "answers.treemax")
    answering = treemax.load(tmp_path / "answers.treemax")
    with pytest.raises(ValueError, match="learning state"):
        answering.fit(matrix, y)


def test_an_interrupted_iteration_is_taken_up_after_its_last_depth(monkeypatch):
    X, y = problem(500, 20)
    own = {"depth": 2, "leaf_classes": 6, "alpha": 0.1, "iterations": 3, "verbose": 0}
    whole = treemax.SoftmaxTree(**own).fit(X, y)
    update, calls = Tao.update_depth, []

    def interrupted(self, depth):
        calls.append(depth)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return update(self, depth)

    monkeypatch.setattr(Tao, "update_depth", interrupted)
    model = treemax.SoftmaxTree(**own)
    with pytest.raises(treemax.TrainingInterrupted):
        model.fit(X, y)
    assert model.score(X, y) > 0.5
    monkeypatch.setattr(Tao, "update_depth", update)
    model.set_params(warm_start=True).fit(X, y)
    np.testing.assert_array_equal(model.predict_proba(X), whole.predict_proba(X))


def test_sizes_are_chosen_from_the_number_of_labels():
    assert steps.depth_for(1000, steps.classes_for(1000)) == 5
    assert steps.depth_for(100_000, steps.classes_for(100_000)) == 8
    assert steps.depth_for(5, 5) == 0 and steps.classes_for(1) == 1


def test_damaged_parts_are_refused():
    X, y = problem()
    for matrix in (X, sp.csr_matrix(X)):
        model = treemax.SoftmaxTree(leaf_classes=4, alpha=0.1, verbose=0).fit(matrix, y)
        header, arrays = model.model_.to_parts()
        for name, array in arrays.items():
            with pytest.raises((ValueError, IndexError)):
                SoftmaxTreeModel.from_parts(header, {**arrays, name: array[:-1]}, 15)
        loop = arrays["children"].copy()
        loop[-1, 0] = 0
        with pytest.raises(ValueError, match="do not form trees"):
            SoftmaxTreeModel.from_parts(header, {**arrays, "children": loop}, 15)


def test_perplexity_counts_a_label_that_training_never_had_as_not_covered():
    X, y = np.eye(4, dtype=np.float32).repeat(10, axis=0), np.repeat(list("abcd"), 10)
    model = treemax.SoftmaxTree(verbose=0, iterations=1, smoothing=0.01).fit(X, y)
    known = model.perplexity(X, y)
    found = model.perplexity(np.vstack([X, X[:10]]), [*y, *["new"] * 10])
    assert known.coverage == 1.0 and found.coverage == 0.8
    assert found.perplexity == pytest.approx(known.perplexity)
    assert model.perplexity(X[:2], ["new", "newer"]) == (np.inf, 0.0, 2)


@pytest.mark.parametrize("n_classes", [1, 4])
def test_drop_that_sends_all_rows_to_empty_leaves_gives_a_tree(n_classes):
    X = np.random.default_rng(0).random((20, 4)).astype(np.float32)
    settings = {"depth": 3, "missing": "drop", "iterations": 1, "alpha": 0.1}
    model = treemax.SoftmaxTree.as_published(verbose=0, **settings).fit(X, np.arange(20) % n_classes)
    assert model.model_.n_leaves >= 1
    assert np.isin(model.predict(X), np.arange(n_classes)).all()
    assert np.isfinite([model.history_[-1].objective, model.history_[-1].error]).all()
