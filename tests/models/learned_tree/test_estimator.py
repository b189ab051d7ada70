"""LearnedTree: steps against NumPy, assignments against the rule of the paper, valid trees, and predictions.

Single training steps (`_learn`), statistics and scores before calibration are private.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import treemax
from tests.models.learned_tree.reference import numeric_gradient, objective_gradient
from treemax import HashingText, LearnedTree, TextModel
from treemax.checks.examples import example_data, example_lists
from treemax.inputs.labels import Targets
from treemax.inputs.rows import as_rows
from treemax.kernels.assignment import take_best_bounded
from treemax.kernels.jit import kernel
from treemax.models import TrainingInterrupted
from treemax.models.learned_tree.assignment_kernels import _summed_shares
from treemax.models.learned_tree.model import LearnedTreeModel, aligned, padded, vectors_of
from treemax.models.learned_tree.steps import LearnedTreeSettings
from treemax.models.learned_tree.structure import Structure, max_depth
from treemax.models.learned_tree.training import Training, suggested_passes
from treemax.trees import Tree, huffman_tree, random_tree

seeds = st.integers(0, 2**32 - 1)


# --- steps ---------------------------------------------------------------------------------------------


def small_training(
    arity=3, n_labels=7, dimension=5, optimizer="sgd", rate=0.1, seed=0, n_rows=12, lists=None, room=False, **options
):
    """A training on a few random rows whose parameters are all random, so that no gradient is zero."""
    random = np.random.RandomState(seed)
    rows = as_rows(sp.csr_matrix(random.normal(size=(n_rows, 6)) * (random.uniform(size=(n_rows, 6)) < 0.6)))
    lists = lists or [[int(i)] for i in random.randint(n_labels, size=n_rows)]
    targets = Targets(
        np.concatenate([[0], np.cumsum([len(row) for row in lists])]),
        np.array([label for row in lists for label in row], dtype=np.uint32),
    )
    tree = random_tree(n_labels, arity, arity, random)
    structure = Structure.with_capacity(tree, arity) if room else Structure.of_tree(tree)
    training = Training(
        rows, targets, LearnedTreeSettings(dimension, rate, 1, optimizer=optimizer, **options), structure, random, arity
    )
    training.embeddings[:, :dimension] = random.normal(size=(6, dimension))
    training.weights[:, :dimension] = random.normal(size=(len(training.weights), dimension))
    training.biases[:] = random.normal(size=len(training.biases))
    return training


def dense_rows(training):
    return training.rows.to_scipy().toarray().astype(np.float64) * training.scale


def node_shares(hidden, weights, biases, first, children):
    """The probabilities of a node's children."""
    if children == 2:
        scores = np.array([0.0, weights[first] @ hidden + biases[first]])
    else:
        scores = weights[first : first + children] @ hidden + biases[first : first + children]
    shares = np.exp(scores - scores.max())
    return shares / shares.sum()


def path_shares(training, embeddings, weights, biases, row, label):
    """The probabilities of all children of every node on the way to a label, and which child is right."""
    hidden, paths = dense_rows(training)[row] @ embeddings, training.paths
    for s in range(paths.starts[label], paths.starts[label + 1]):
        shares = node_shares(hidden, weights, biases, int(paths.firsts[s]), int(paths.counts[s]))
        yield shares, int(paths.slots[s])


def log_probability(*arguments):
    """log p(label | row), node after node."""
    return sum(np.log(shares[slot]) for shares, slot in path_shares(*arguments))


def sum_of_probabilities(*arguments):
    """What Algorithm 1 goes along: p of the right child, summed over the nodes of the path."""
    return sum(shares[slot] for shares, slot in path_shares(*arguments))


@pytest.mark.parametrize(("arity", "n_labels"), [(2, 2), (2, 7), (3, 7), (5, 6), (20, 9)])
@pytest.mark.parametrize(
    ("name", "objective"), [("log-likelihood", log_probability), ("probability", sum_of_probabilities)]
)
def test_a_step_goes_along_the_gradient(arity, n_labels, name, objective):
    training = small_training(arity, n_labels, objective=name)
    before = [array.astype(np.float64) for array in (training.embeddings, training.weights, training.biases)]
    row = 3
    label = int(training.targets.ids[row])
    likelihood, n = training._learn(np.array([row], dtype=np.uint32), 0.1, 0)
    assert n == 1
    assert likelihood == pytest.approx(log_probability(training, *before, row, label), rel=1e-4)
    for place, after in enumerate((training.embeddings, training.weights, training.biases)):
        wanted = numeric_gradient(
            lambda array, place=place: objective(training, *before[:place], array, *before[place + 1 :], row, label),
            before[place],
        )
        wanted[np.abs(wanted) < 1e-3] = 0.0  # what is hardly wrong is let be
        np.testing.assert_allclose(after - before[place], 0.1 * wanted, atol=3e-4)


def test_adagrad_divides_by_the_sum_of_squares_of_a_vector():
    training, plain = (small_training(3, 7, optimizer=name) for name in ("adagrad", "sgd"))
    order = np.array([3], dtype=np.uint32)
    before = training.weights.copy()
    for each in (training, plain):
        each._learn(order, 1.0, 0)
    steps, gradients = training.weights - before, plain.weights - before
    bias_gradients = np.abs(plain.biases - small_training(3, 7).biases)
    for step, gradient, bias in zip(steps, gradients, bias_gradients):
        length = np.hypot(np.linalg.norm(gradient), bias)
        np.testing.assert_allclose(step, gradient / length if length else 0 * gradient, atol=1e-3)
    moved = training.embeddings - small_training(3, 7).embeddings
    lengths = np.linalg.norm(moved, axis=1)
    np.testing.assert_allclose(lengths[lengths > 0], 1.0, rtol=1e-3)


def test_several_labels_teach_their_mean():
    lists = [[0, 2, 5]] + [[1]] * 11
    training = small_training(2, 7, lists=lists)
    before = training.embeddings.astype(np.float64)
    others = training.weights.astype(np.float64), training.biases.astype(np.float64)

    def mean(embeddings):
        return np.mean([log_probability(training, embeddings, *others, 0, label) for label in lists[0]])

    training._learn(np.array([0], dtype=np.uint32), 1e-3, 0)  # a short one: paths share nodes, which move in between
    np.testing.assert_allclose(training.embeddings - before, 1e-3 * numeric_gradient(mean, before), atol=1e-5)


def test_padding_stays_zero():
    X, y = example_data()
    model = LearnedTree(dimension=7, verbose=0).fit(X, y).model_
    assert padded(7) == 16 and model.embeddings.shape[1] == 16
    assert not model.embeddings[:, 7:].any() and not model.weights[:, 7:].any()
    assert model.embeddings[:, :7].any()


# --- trees ---------------------------------------------------------------------------------------------


def shortest(counts, arity):
    """The least sum of count times depth over all trees with at most `arity` children a node: every way to take
    some of the nodes together, again and again."""

    def least(nodes):
        if len(nodes) == 1:
            return 0
        found = []
        for size in range(2, min(arity, len(nodes)) + 1):
            for taken in combinations(range(len(nodes)), size):
                together = sum(nodes[i] for i in taken)
                rest = [node for i, node in enumerate(nodes) if i not in taken]
                found.append(together + least([*rest, together]))
        return min(found)

    return least(list(counts))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=2, max_size=6), st.integers(2, 4))
def test_huffman_trees_are_shortest(counts, arity):
    tree = huffman_tree(np.array(counts), arity)
    assert int(np.dot(counts, tree.level[tree.leaf_of])) == shortest(counts, arity)


def check_well_formed(structure, arity, n_labels):
    tree, vectors = structure.as_tree()
    Tree.from_arrays(tree.arrays())  # refuses whatever is no tree with one leaf a label
    inner = tree.n_children[tree.n_children > 0]
    assert tree.n_labels == n_labels
    assert inner.max() <= arity and (inner >= 2).all()
    assert len(np.unique(vectors)) == len(vectors) == vectors_of(tree.n_children).sum()
    return tree


@settings(max_examples=60, deadline=None)
@given(seeds, st.integers(2, 60), st.integers(2, 7), st.booleans())
def test_trees_stay_well_formed(seed, n_labels, arity, uneven):
    random = np.random.RandomState(seed)
    n_rows = 2 * n_labels
    y = random.randint(n_labels, size=n_rows) ** (2 if uneven else 1) % n_labels
    training = small_training(2, n_labels, seed=seed, n_rows=n_rows, lists=[[int(i)] for i in y])
    start = random_tree(n_labels, arity, arity, random)
    training.structure, training.arity = Structure.with_capacity(start, arity), arity
    training.weights = aligned((training.structure.n_vectors, 16))
    training.weights[:, :5] = random.normal(size=(len(training.weights), 5)) * 3
    training.biases, training.squares = (np.zeros(len(training.weights), dtype=np.float32) for _ in range(2))
    check_well_formed(training.structure, arity, n_labels)
    for _ in range(3):
        training.assign()
        tree = check_well_formed(training.structure, arity, n_labels)
        assert tree.depth <= max_depth(n_labels, arity)
        assert (tree.n_children > 0).sum() <= -(-(n_labels - 1) // (arity - 1))  # as few as there can be
        training.weights[:, :5] += random.normal(size=(len(training.weights), 5))


def pairs_one_by_one(scores, padded_number, most):
    """Algorithm 2 with its bounds, as it reads: pairs from the highest score to the lowest."""
    n_labels, n_children = scores.shape
    blocks = (padded_number - n_children) // (n_children - 1)
    child_of_label, held = np.full(n_labels, -1), np.zeros(n_children, dtype=np.int64)
    for pair in np.argsort(-scores.ravel(), kind="stable"):
        label, child = divmod(int(pair), n_children)
        left, empty = (child_of_label < 0).sum(), min(n_labels, n_children) - (held > 0).sum()
        begins_block = held[child] > 0 and (held[child] - 1) % (n_children - 1) == 0
        full = held[child] >= most or (begins_block and blocks == 0) or left <= empty
        if child_of_label[label] >= 0 or (held[child] > 0 and full):
            continue
        blocks -= begins_block
        child_of_label[label] = child
        held[child] += 1
    return child_of_label


def padded_to_well_formed(n_labels, n_children):
    least = max(n_labels, n_children)
    return least + (n_children - least) % (n_children - 1)


@settings(max_examples=100, deadline=None)
@given(seeds, st.integers(2, 5), st.integers(2, 60), st.booleans())
def test_bounded_labels_are_those_of_all_pairs_in_order(seed, n_children, n_labels, ties):
    most = n_children ** (max_depth(n_labels, n_children) - 1)
    random = np.random.default_rng(seed)
    scores = random.normal(size=(n_labels, n_children))
    if ties:
        scores = random.integers(3, size=(n_labels, n_children)).astype(np.float64)
    padded_number = padded_to_well_formed(n_labels, n_children)
    child_of_label, held = np.full(n_labels, -1), np.zeros(n_children, dtype=np.int64)
    take_best_bounded(scores, padded_number, most, child_of_label, held)
    np.testing.assert_array_equal(child_of_label, pairs_one_by_one(scores, padded_number, most))
    assert held.max() <= most and (held > 0).sum() == min(n_labels, n_children)
    np.testing.assert_array_equal(np.bincount(child_of_label, minlength=n_children), held)


def labels_below(structure):
    """For each child of the root the labels under it."""
    tree, _ = structure.as_tree()

    def leaves(node):
        if tree.n_children[node] == 0:
            return {int(tree.label[node])}
        return set().union(*(leaves(child) for child in tree.children(node)))

    return [leaves(child) for child in tree.children(0)]


def means_at_root(training, statistics):
    """The mean probabilities of the root's children for each label, and how often it was seen, from the definition."""
    hidden, y = dense_rows(training) @ training.embeddings, training.targets.ids
    counts = np.bincount(y, minlength=training.n_labels)
    of_root = training.weights, training.biases, 0, int(training.structure.n_children[0])
    means = np.zeros((training.n_labels, of_root[3]))
    for label in np.flatnonzero(counts):
        rows = hidden[y == label]
        rows = rows.mean(axis=0, keepdims=True) if statistics == "means" else rows
        means[label] = np.mean([node_shares(row, *of_root) for row in rows], axis=0)
    return means, counts


@pytest.mark.parametrize("assign_by", ["difference", "gradient", "log-gradient"])
@pytest.mark.parametrize("statistics", ["means", "rows", "running"])
@pytest.mark.parametrize("arity", [2, 3, 5])
def test_labels_go_where_their_examples_go(arity, statistics, assign_by):
    options = {"statistics": statistics, "assign_by": assign_by}
    training = small_training(arity, 20, n_rows=60, room=True, rate=0.0, **options)
    training._learn(np.arange(60, dtype=np.uint32), 0.0, 0)  # nothing moves, and sums are those of now
    means, counts = means_at_root(training, statistics)
    shares = counts / counts.sum()
    if assign_by == "difference":
        scores = (shares * (1 - shares))[:, None] * (means - shares @ means)
    else:
        scores = objective_gradient(shares, means, of_logarithm=assign_by == "log-gradient")
    training.assign()
    most = arity ** (max_depth(20, arity) - 1)
    children = pairs_one_by_one(scores, padded_to_well_formed(20, arity), most)
    wanted = [set(np.flatnonzero(children == child).tolist()) for child in range(scores.shape[1])]
    assert labels_below(training.structure) == wanted


def test_running_sums_are_of_what_was_learned():
    """SumProbas and Counts of Algorithm 1, which outlast assignments, but for nodes that start anew."""
    training = small_training(3, 20, n_rows=60, room=True, statistics="running")
    expected = {}
    for part in range(3):
        for row in range(60):
            label, paths = int(training.targets.ids[row]), training.paths
            before = training.embeddings, training.weights, training.biases
            steps = range(paths.starts[label], paths.starts[label + 1])
            for s, (shares, _) in zip(steps, path_shares(training, *before, row, label)):
                key = int(paths.firsts[s]) // 3 * 20 + label
                total, n = expected.get(key, (np.zeros(3), 0))
                expected[key] = total + np.pad(shares, (0, 3 - len(shares))), n + 1
            training._learn(np.array([row], dtype=np.uint32), 0.1, 0)
        sums = training.sums
        seen = {key: n for key, n in zip(sums.keys.tolist(), sums.seen.tolist()) if n}
        assert seen == {key: n for key, (_, n) in expected.items()}
        for key, total in zip(sums.keys.tolist(), sums.sums):
            np.testing.assert_allclose(total, expected.get(key, (np.zeros(3), 0))[0], atol=1e-4)
        children_before = training.structure.n_children.copy()
        training.assign()
        kept = set(training.sums.keys[training.sums.seen > 0].tolist())
        assert kept <= set(expected)
        assert all(children_before[key // 20] > 0 for key in kept)
        expected = {key: value for key, value in expected.items() if key in kept}
        assert part > 1 or any(key // 20 == 0 for key in kept)


@kernel
def shares_at_node(labels, node, statistics, prior_count, means, counts):
    _summed_shares(labels, node, 20, statistics, prior_count, means, counts)


@pytest.mark.parametrize("prior_count", [0.0, 2.0])
def test_a_label_new_at_a_node_has_the_prior(prior_count):
    training = small_training(4, 20, n_rows=60, room=True, statistics="running", prior_count=prior_count)
    sums, labels = training.sums, np.arange(20)
    expected = np.full((20, 4), 0.125)
    expected[labels, labels % 4] += 0.5
    at_root = sums.keys < 20
    assert (sums.seen[at_root] == prior_count).all()
    np.testing.assert_allclose(sums.sums[at_root], prior_count * expected)
    assert (sums.sums.sum(axis=1) == pytest.approx(prior_count)) and at_root.sum() == 20
    means, counts = np.zeros((20, 4)), np.zeros(20)
    statistics = (sums.keys, sums.sums, sums.seen)
    shares_at_node(labels, len(training.structure.n_children) + 1, statistics, prior_count, means, counts)
    np.testing.assert_allclose(means, expected if prior_count else 0.0)
    assert (counts == prior_count).all()
    training._learn(np.arange(60, dtype=np.uint32), 0.1, 0)
    seen = training.sums.seen[training.sums.keys < 20]
    np.testing.assert_array_equal(seen, prior_count + np.bincount(training.targets.ids, minlength=20))


def test_the_prior_divides_labels_in_turn():
    training = small_training(4, 16, n_rows=60, room=True, statistics="running", prior_count=1.0, assign_by="gradient")
    training.assign()
    assert labels_below(training.structure) == [set(range(child, 16, 4)) for child in range(4)]


@pytest.mark.parametrize("max_depth, deepest", [(2, 2), (3, 3), (None, 16)])
def test_the_depth_is_bounded(max_depth, deepest):
    X, y, _ = grouped_problem()
    model = LearnedTree(arity=4, dimension=8, max_depth=max_depth, start="huffman", verbose=0).fit(X, y)
    assert model.label_tree().depth <= deepest
    with pytest.raises(ValueError, match="max_depth must be at least 2 for 16 labels and arity 4, got 1"):
        model.set_params(max_depth=1).fit(X, y)


def test_a_number_of_assignments(monkeypatch):
    X, y, _ = grouped_problem(n_rows=500)
    plain, times = Training.assign, []

    def assign(training):
        times.append(len(training.history))
        plain(training)

    monkeypatch.setattr(Training, "assign", assign)
    options = {"dimension": 8, "passes": 12, "calibration": 0, "verbose": 0}
    LearnedTree(n_assignments=10, assign_until=0.5, **options).fit(X, y)
    assert len(times) == 10 and times == sorted(times) and times[0] == 0 and times[-1] == 6
    times.clear()
    LearnedTree(n_assignments=10, assign_until=0.0, **options).fit(X, y)
    LearnedTree(n_assignments=10, tree="huffman", **options).fit(X, y)
    assert not times


def grouped_problem(n_groups=4, in_group=4, n_rows=1600, seed=0):
    """Labels in groups: a row has the words of its group and, less reliably, that of its label."""
    random = np.random.RandomState(seed)
    y = random.randint(n_groups * in_group, size=n_rows)
    X = np.zeros((n_rows, n_groups + n_groups * in_group), dtype=np.float32)
    X[np.arange(n_rows), y // in_group] = 1.0
    X[np.arange(n_rows), n_groups + y] = 0.3 * (random.uniform(size=n_rows) < 0.5)
    order = random.permutation(n_groups * in_group)  # so that the numbers of labels say nothing about groups
    return X, order[y], np.argsort(order) // in_group


def test_a_learned_tree_finds_the_groups():
    """From a random tree, labels that share their words come to stand together."""
    X, y, group = grouped_problem()

    def together(tree):
        parents = tree.parent[tree.leaf_of]
        pairs = [(a, b) for a, b in combinations(range(16), 2) if parents[a] == parents[b]]
        return np.mean([group[a] == group[b] for a, b in pairs])

    options = {"arity": 4, "dimension": 16, "passes": 20, "verbose": 0}
    before = [LearnedTree(tree="random", random_state=seed, **options).fit(X, y) for seed in range(3)]
    after = [LearnedTree(start="random", assign_every=0.1, random_state=seed, **options).fit(X, y) for seed in range(3)]
    assert (
        np.mean([together(m.label_tree()) for m in after]) > np.mean([together(m.label_tree()) for m in before]) + 0.3
    )


def test_own_trees_are_kept():
    X, y = example_data()
    own = {"insect": ["ant", "bee"], "other": {"four legs": ["cat", "dog", "fox", "gnu"], "water": ["eel"]}}
    model = LearnedTree(tree=own, verbose=0).fit(X, y)
    assert model.score(X, y) > 0.9
    leaves = model.label_tree().leaf_of
    assert model.label_tree().parent[leaves[0]] == model.label_tree().parent[leaves[1]]  # ant and bee
    assert model.describe()["tree"] == "own tree"
    wide = LearnedTree(tree=Tree.from_parents([-1] + [0] * 7, [-1, *range(7)]), verbose=0).fit(X, y)
    assert wide.label_tree().depth == 1 and wide.score(X, y) > 0.9


@pytest.mark.parametrize("tree", ["learned", "clusters", "huffman", "random"])
def test_trees_by_name(tree):
    X, y = example_data()
    model = LearnedTree(tree=tree, arity=2, verbose=0).fit(X, y)
    assert model.score(X, y) > 0.9
    assert model.describe()["tree"] == tree and model.describe()["arity"] == 2


# --- answers -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def many_labels():
    """300 labels, hardly learned, so that many are about as likely."""
    random = np.random.RandomState(5)
    X = sp.csr_matrix(random.normal(size=(900, 40)) * (random.uniform(size=(900, 40)) < 0.2))
    y = random.randint(300, size=900)
    return LearnedTree(arity=3, passes=2, verbose=0).fit(X, y), X[:60]


def test_exact_search_is_that_of_all_probabilities(many_labels):
    model, X = many_labels
    probabilities = model._probabilities(as_rows(X))
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, atol=1e-4)
    ids, scores = model._top(as_rows(X), 7)
    best = -np.sort(-probabilities, axis=1)[:, :7]
    np.testing.assert_allclose(scores, best, rtol=1e-5)
    np.testing.assert_array_equal(np.take_along_axis(probabilities, ids, axis=1), scores)


def test_a_beam_wide_enough_is_exact(many_labels):
    model, X = many_labels
    rows = as_rows(X)
    exact = model.model_.top_k(rows, 5, None)
    wide = model.model_.top_k(rows, 5, 300)
    np.testing.assert_array_equal(exact[0], wide[0])
    np.testing.assert_array_equal(exact[1], wide[1])
    ids, scores = model.model_.top_k(rows, 5, 1)  # greedy: what was found is right, and never better
    assert (scores <= exact[1]).all() and (ids[:, 0] >= 0).all()
    probabilities = model._probabilities(as_rows(X))
    found = ids >= 0
    np.testing.assert_array_equal(np.take_along_axis(probabilities, np.maximum(ids, 0), axis=1)[found], scores[found])


def test_greedy_follows_the_best_child(many_labels):
    model, X = many_labels
    packed = model.model_
    hidden = X @ packed.embeddings
    ids, _ = packed.top_k(as_rows(X), 1, 1)
    for row, answer in zip(hidden, ids[:, 0]):
        node, best_leaf = 0, (-1.0, -1)
        chance = 1.0
        while packed.tree.n_children[node]:
            first, n = packed.first_vectors[node], packed.tree.n_children[node]
            count = vectors_of(np.array([n]))[0]
            scores = packed.weights[first : first + count] @ row + packed.biases[first : first + count]
            scores = np.array([0.0, *scores]) if n == 2 else scores
            shares = chance * np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
            children = np.array(packed.tree.children(node))
            leaves = packed.tree.n_children[children] == 0
            for child, share in zip(children[leaves], shares[leaves]):
                best_leaf = max(best_leaf, (float(share), int(packed.tree.label[child])))
            if leaves.all():
                break
            at = np.argmax(np.where(leaves, -1.0, shares))
            node, chance = children[at], shares[at]
        assert answer == best_leaf[1]


def test_multi_label_probabilities_are_of_having_a_label():
    X, lists = example_lists()
    for labels in ("all", "one"):
        model = LearnedTree(labels=labels, verbose=0).fit(X, lists)
        kept = [row for row in lists if row]
        assert model.model_.labels_a_row == pytest.approx(sum(map(len, kept)) / len(kept))
        assert model.predict_proba(X).max() <= 1.0
        expected = model.predict_proba(X).sum(axis=1)[[bool(row) for row in lists]]
        assert abs(expected.mean() - model.model_.labels_a_row) < 0.3


def test_columns_that_do_not_occur_have_no_embedding(tmp_path):
    X, y = example_data()
    wide = sp.csr_matrix(X)
    wide = sp.csr_matrix((wide.data, wide.indices * 50_000_000, wide.indptr), shape=(len(y), 2**30))
    model = LearnedTree(verbose=0).fit(wide, y)
    assert model.model_.embeddings.shape[0] <= 20 and model.n_features_in_ <= 20
    assert model.score(wide, y) > 0.9
    model.save(tmp_path / "m.treemax")
    np.testing.assert_array_equal(treemax.load(tmp_path / "m.treemax").predict_proba(wide), model.predict_proba(wide))
    unknown = sp.csr_matrix((np.ones(1), ([0], [7])), shape=(1, 2**30))
    nothing = sp.csr_matrix((1, 2**30))
    np.testing.assert_array_equal(model.predict_proba(unknown), model.predict_proba(nothing))


def test_one_seed_gives_one_model():
    X, y = example_data()
    for options in ({}, {"labels": "one"}, {"tree": "random", "dropout": 0.0}, {"statistics": "running"}):
        one, other = (LearnedTree(random_state=3, verbose=0, **options).fit(X, y) for _ in range(2))
        for name in ("embeddings", "weights", "biases"):
            np.testing.assert_array_equal(getattr(one.model_, name), getattr(other.model_, name))
    different = LearnedTree(random_state=4, verbose=0).fit(X, y)
    assert (different.model_.embeddings != LearnedTree(random_state=3, verbose=0).fit(X, y).model_.embeddings).any()


def test_huge_and_tiny_rows_are_learned_alike():
    X, y = example_data()
    plain = LearnedTree(verbose=0).fit(X, y)
    for factor in (1e-6, 1e6):
        scaled = LearnedTree(verbose=0).fit(factor * X, y)
        np.testing.assert_allclose(scaled.predict_proba(factor * X), plain.predict_proba(X), atol=1e-2)


def test_texts():
    texts = ["red apple pie", "green apple tart", "fast car race", "red car drive"] * 30
    labels = ["fruit", "fruit", "vehicle", "vehicle"] * 30
    model = TextModel(HashingText(bits=18, ngram_range=(1, 2)), LearnedTree(dimension=16, verbose=0))
    assert model.fit(texts, labels).predict(["green apple", "race car"]).tolist() == ["fruit", "vehicle"]


def test_interrupted_training_keeps_what_was_learned(monkeypatch):
    X, y = example_data()
    done = Training._learn
    calls = []

    def interrupted(self, *arguments):
        calls.append(1)
        if len(calls) > 60:
            raise KeyboardInterrupt
        return done(self, *arguments)

    monkeypatch.setattr(Training, "_learn", interrupted)
    model = LearnedTree(verbose=0)
    with pytest.raises(TrainingInterrupted):
        model.fit(X, y)
    assert model.score(X, y) > 0.5


# --- bad input -----------------------------------------------------------------------------------------


def test_damaged_parts_are_refused():
    X, y = example_data()
    model = LearnedTree(verbose=0).fit(X, y).model_
    header, arrays = model.to_parts()
    LearnedTreeModel.from_parts(header, arrays, 7)
    damages = [
        (header, arrays, 8),
        ({**header, "dimension": 200}, arrays, 7),
        ({**header, "dimension": 0}, arrays, 7),
        ({**header, "labels_a_row": -1.0}, arrays, 7),
        ({**header, "n_features": 5}, arrays, 7),
        (header, {**arrays, "weights": arrays["weights"][:-1]}, 7),
        (header, {**arrays, "biases": arrays["biases"].astype(np.float64)}, 7),
        ({**header, "some_features": True}, {**arrays, "features": np.zeros(20, dtype=np.uint32)}, 7),
    ]
    for damage in damages:
        with pytest.raises(ValueError):
            LearnedTreeModel.from_parts(*damage)


@pytest.mark.parametrize("several", [False, True])
def test_probabilities_are_calibrated_on_rows_learned_later(several, tmp_path):
    random = np.random.RandomState(0)
    y = random.randint(12, size=3000)
    X = np.abs(random.normal(size=(12, 30)))[y] + 1.5 * random.normal(size=(3000, 30))
    labels = [[label, 12 + label // 3] for label in y.tolist()] if several else y
    plain, honest = (
        treemax.LearnedTree(passes=20, dimension=16, dropout=0.0, calibration=share, verbose=0).fit(
            X[:1500], labels[:1500]
        )
        for share in (0.0, 0.2)
    )
    assert plain.model_.calibration is None and honest.model_.calibration is not None

    def loss(model):
        found, probabilities = model.predict_topk(X[1500:], 5 if several else 1)
        right = (found == y[1500:, None]) | (several & (found == 12 + y[1500:, None] // 3))
        return -np.log(np.clip(np.where(right, probabilities, 1 - probabilities), 1e-6, 1)).mean()

    assert loss(honest) < loss(plain)
    honest.save(tmp_path / "model.treemax")
    again = treemax.load(tmp_path / "model.treemax")
    everything = honest.predict_proba(X[1500:1600])
    np.testing.assert_allclose(again.predict_proba(X[1500:1600]), everything, rtol=1e-5)
    if not several:
        np.testing.assert_allclose(everything.sum(axis=1), 1.0, atol=1e-3)
    found = [set(row) for row in honest.predict_above(X[1500:1600], 0.3)]
    of_all = honest.predict_proba_of(X[1500:1600], honest.classes_)
    assert found == [set(np.flatnonzero(row >= 0.3)) for row in of_all]


def test_suggestions():
    assert suggested_passes(1, False) == suggested_passes(1, True) == 50
    assert suggested_passes(10**7, False) == 12 and suggested_passes(10**7, True) == 6
    assert max_depth(1000, 10) >= 3 and max_depth(2, 2) >= 1


@pytest.mark.parametrize("X", [sp.csr_matrix((30, 200), dtype=np.float32), np.zeros((30, 4))])
def test_rows_of_nothing_make_a_model_that_can_be_loaded(X, tmp_path):
    model = LearnedTree(verbose=0).fit(X, [i % 3 for i in range(30)])
    model.save(tmp_path / "model.treemax")
    np.testing.assert_array_equal(treemax.load(tmp_path / "model.treemax").predict_proba(X), model.predict_proba(X))
