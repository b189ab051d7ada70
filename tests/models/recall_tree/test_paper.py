"""RecallTree(algorithm="paper") against a slow reference: its bound, its options, and growth."""

import math

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import treemax
from tests.models import adagrad
from tests.models.online_trees import assert_damaged_parts_are_refused, problem
from treemax.inputs.labels import Targets
from treemax.kernels.jit import kernel
from treemax.kernels.scorers import LEAST_NEW
from treemax.models.recall_tree import paper_kernels as kernels
from treemax.models.recall_tree.paper_model import KEPT_FEATURES, Descent
from treemax.models.recall_tree.paper_training import candidates_for, depth_for, empty_model, learn
from treemax.models.recall_tree.paper_tree_kernels import recall
from treemax.models.recall_tree.training import RecallTreeSettings

SETTINGS = RecallTreeSettings(0.3, 0.2, 0.5, 1.0, 1e-3, 0.1)


def learned(X, y, descent, sparse=False, passes=1, node_only=False):
    model = empty_model(sparse, X.shape[1], int(y.max()) + 1, descent.n_candidates, node_only)
    rows = treemax.inputs.rows.as_rows(sp.csr_matrix(X) if sparse else X)
    targets = Targets(np.arange(len(y) + 1), y.astype(np.uint32))
    orders = [np.arange(len(y), dtype=np.uint32)] * passes
    list(learn(model, rows, targets, orders, SETTINGS, descent, passes * len(y)))
    return model, rows


def n_log_n(n):
    return n * math.log(n) if n else 0.0


def entropy(counts):
    total = sum(counts.values())
    return -sum(k / total * math.log(k / total) for k in counts.values()) if total else 0.0


def with_label(counts, label):
    return {**counts, label: counts.get(label, 0) + 1}


def bernstein(covered, total, bound):
    r = covered / total
    return r - math.sqrt(bound * r * (1 - r) / total) - bound / total


def random_numbers(seed, row):
    """The random numbers of a row: SplitMix64 gives the state of a linear congruential generator."""
    most = 2**64
    state = (seed + row * 0x9E3779B97F4A7C15) % most
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % most
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB % most
    state ^= state >> 31
    while True:
        state = (state * 6364136223846793005 + 1442695040888963407) % most
        yield (state >> 40) / 2**24


class Node:
    def __init__(self, number, n_features):
        self.number, self.left, self.right = number, None, None
        self.counts, self.candidates = {}, []
        self.weights, self.squares = np.zeros(n_features + 1), np.zeros(n_features + 1)

    @property
    def total(self):
        return sum(self.counts.values())


class Reference:
    """Algorithms 1 to 4, plain: objects, dictionaries, entropies from their definition."""

    def __init__(self, n_labels, n_features, descent, least_new=0.0, node_only=False):
        self.node_only, self.n_rows = node_only, 0
        self.n_features, self.descent, self.n_nodes = n_features, descent, 1
        self.least_new, self.made = least_new, np.zeros((n_labels, n_features + 1), dtype=bool)
        self.made[:, -1] = True  # the biases
        self.root = Node(0, n_features)
        self.weights, self.squares = np.zeros((2, n_labels, n_features + 1))
        self.weights[:, -1] = -math.log(descent.n_candidates)
        self.path_weights, self.path_squares = {}, {}

    def recall(self, node):
        covered = sum(node.counts[label] for label in node.candidates)
        return bernstein(covered, node.total, self.descent.bound)

    def stops(self, node, child):
        return self.descent.bound is not None and self.recall(node) > self.recall(child)

    def update_candidates(self, node, label):
        node.counts[label] = node.counts.get(label, 0) + 1
        others = [(node.counts[other], -place, other) for place, other in enumerate(node.candidates)]
        if label not in node.candidates:  # of equals, those that came first stay first
            others.append((node.counts[label], -len(others), label))
        others.sort(reverse=True)
        node.candidates = [other for _, _, other in others][: self.descent.n_candidates]

    def advantage(self, node, label):
        left, right = (child.counts if child else {} for child in (node.left, node.right))
        if self.descent.router_weight == "printed":
            n_left, n_right = sum(left.values()), sum(right.values())
            if_left = n_left * entropy(with_label(left, label)) + n_right * entropy(right)
            if_right = n_left * entropy(left) + n_right * entropy(with_label(right, label))
            return (if_right - if_left) / node.total

        def increase(counts):
            n, k = sum(counts.values()), counts.get(label, 0)
            return (n_log_n(n + 1) - n_log_n(n)) - (n_log_n(k + 1) - n_log_n(k))

        return increase(right) - increase(left)

    def step(self, weights, squares, x, gradient, rate):
        squares += (gradient * x) ** 2
        weights -= adagrad.step(gradient * x, squares, rate, SETTINGS.initial)

    def update_router(self, x, label, node):
        advantage = self.advantage(node, label)
        if advantage != 0.0:
            weight = 1.0 if self.descent.router_weight == "unit" else abs(advantage)
            gradient = 1 / (1 + math.exp(-node.weights @ x)) - (advantage > 0)
            if abs(gradient) >= SETTINGS.least_gradient:
                self.step(node.weights, node.squares, x, weight * gradient, SETTINGS.router_rate)

    def score(self, x, path, label):
        own = self.weights[label] @ x
        if self.descent.path_features:
            own += sum(self.path_weights.get((label, number), 0.0) for number in self.features(path))
        return own

    def features(self, path):
        return path[-1:] if self.node_only else path

    def update_regressors(self, x, path, label, candidates):
        if label not in candidates:
            return
        scores = {candidate: self.score(x, path, candidate) for candidate in candidates}
        for candidate, score in scores.items():
            gradient = 1 / (1 + math.exp(-score)) - (candidate == label)
            if abs(gradient) < SETTINGS.least_gradient:
                continue
            if abs(gradient) >= self.least_new:
                self.made[candidate] |= x != 0
            seen = np.where(self.made[candidate], x, 0.0)
            self.step(self.weights[candidate], self.squares[candidate], seen, gradient, SETTINGS.rate)
            for number in self.features(path) if self.descent.path_features else []:
                key = candidate, number
                self.path_squares[key] = self.path_squares.get(key, 0.0) + gradient**2
                step = SETTINGS.rate * gradient / math.sqrt(self.path_squares[key] + SETTINGS.initial)
                self.path_weights[key] = self.path_weights.get(key, 0.0) - step

    def child(self, x, node):
        return node.left if node.weights @ x > 0 else node.right

    def train(self, x, label):
        x, node, path = np.append(x.astype(float), 1.0), self.root, []
        drawn, self.n_rows = random_numbers(self.descent.seed, self.n_rows), self.n_rows + 1
        self.update_candidates(node, label)
        for _ in range(self.descent.depth):
            self.update_router(x, label, node)
            score = node.weights @ x
            goes_left = next(drawn) < 0.5 + score if self.descent.randomized else score > 0
            side = "left" if goes_left else "right"
            if getattr(node, side) is None:
                new, self.n_nodes = Node(self.n_nodes, self.n_features), self.n_nodes + 1
                setattr(node, side, new)
            child = getattr(node, side)
            self.update_candidates(child, label)
            if self.stops(node, child):
                break
            node = child
            path.append(node.number)
        self.update_regressors(x, path, label, node.candidates)

    def predict(self, x):
        """The probabilities of the candidates."""
        x, node, path = np.append(x.astype(float), 1.0), self.root, []
        while (child := self.child(x, node)) is not None and not self.stops(node, child):
            node = child
            path.append(node.number)
        scores = {label: 1 / (1 + math.exp(-self.score(x, path, label))) for label in node.candidates}
        return {label: score / sum(scores.values()) for label, score in scores.items()}


@pytest.mark.parametrize(
    "descent, node_only",
    [
        (Descent(8, 6), False),
        (Descent(8, 6), True),
        (Descent(5, 4, 0.1, True, "unit"), False),
        (Descent(8, 5, 0.0, False, "increase"), False),
        (Descent(6, 3, None, True, "printed"), False),
        (Descent(8, 6, 1.0, True, "increase", True, 5), False),
        (Descent(6, 3, None, True, "increase", True, 6), True),
    ],
)
@pytest.mark.parametrize("sparse", [False, True])
def test_learns_as_the_reference_does(descent, node_only, sparse):
    X, y = problem()
    X[np.abs(X) < 0.4] = 0.0
    model, rows = learned(X, y, descent, sparse, node_only=node_only)
    reference = Reference(40, X.shape[1], descent, LEAST_NEW if sparse else 0.0, node_only)
    for x, label in zip(X, y.tolist()):
        reference.train(x, label)
    assert model.n_nodes == reference.n_nodes > 7
    ids, probabilities = model.top_k(rows, 5, descent)
    for i in range(0, len(X), 7):
        expected = reference.predict(X[i])
        best = sorted(expected.values(), reverse=True)[:5]
        np.testing.assert_allclose(probabilities[i, : len(best)], best, atol=2e-3)
        assert set(ids[i, : len(best)].tolist()) <= set(expected)
    compare_nodes(model, reference.root)


def compare_nodes(model, root):
    waiting = [root]
    while waiting:
        node = waiting.pop()
        own = model.nodes
        left, right = own.children[node.number]
        assert left == (node.left.number if node.left else 0)
        assert right == (node.right.number if node.right else 0)
        assert own.total[node.number] == node.total
        assert own.covered[node.number] == sum(node.counts[label] for label in node.candidates)
        assert own.sums[node.number] == pytest.approx(sum(map(n_log_n, node.counts.values())), abs=1e-9)
        tallies = own.candidates[node.number, : own.n_candidates[node.number]]
        assert own.labels[node.number, : len(tallies)].tolist() == node.candidates
        assert model.tallies.records["label"][tallies].tolist() == node.candidates
        waiting += [child for child in (node.left, node.right) if child]


@kernel
def recall_of_node(node, options, nodes):
    return recall(node, options, nodes)


@settings(deadline=None)
@given(st.integers(1, 10**6), st.floats(0, 1), st.floats(0, 10))
def test_the_bound_is_equation_1(total, share, bound):
    covered = int(share * total)
    nodes = empty_model(False, 1, 1, 1).nodes
    nodes.total[0], nodes.covered[0] = total, covered
    assert recall_of_node(0, Descent(1, 1, bound).options, nodes) == pytest.approx(
        bernstein(covered, total, bound), abs=1e-12
    )


def test_the_example_of_the_paper_for_empirical_recall():
    """Label 1 twice, label 4 fifty times, label 3 ten times, two candidates: 60 of 62."""
    y = np.array([1] * 2 + [4] * 50 + [3] * 10)
    model, _ = learned(np.zeros((62, 2), np.float32), y, Descent(2, 1))
    assert recall_of_node(0, Descent(2, 1, 0.0).options, model.nodes) == pytest.approx(60 / 62)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=150), st.integers(1, 6))
def test_candidates_are_the_most_frequent_labels(y, n_candidates):
    model, _ = learned(np.zeros((len(y), 2), np.float32), np.array(y), Descent(n_candidates, 1))
    counts = sorted(np.bincount(y).tolist(), reverse=True)[:n_candidates]
    counts = [count for count in counts if count]
    n = int(model.nodes.n_candidates[0])
    assert model.tallies.records["count"][model.nodes.candidates[0, :n]].tolist() == counts
    assert model.nodes.covered[0] == sum(counts) and model.nodes.total[0] == len(y)


def test_regressors_do_not_learn_where_the_label_is_no_candidate():
    """Empty rows: one label fills the only place on the right, one that on the left, and a third comes once."""
    y = np.array([0] * 5 + [1] * 5 + [2])
    X, descent = np.zeros((len(y), 2), np.float32), Descent(1, 1, None)
    before, _ = learned(X[:10], y[:10], descent)
    after, _ = learned(X, y, descent)
    assert before.regressors.bias.all()
    np.testing.assert_array_equal(after.regressors.bias, [*before.regressors.bias, 0.0])  # where it began
    assert after.nodes.total[0] == 11


# --- theory ----------------------------------------------------------------------------------------------


def grid(n=21):
    """All points of a grid over the plane."""
    line = np.linspace(-3, 3, n, dtype=np.float32)
    return np.stack(np.meshgrid(line, line), axis=-1).reshape(-1, 2)


@pytest.mark.parametrize("bound", [None, 1.0])
def test_path_features_can_be_as_good_as_the_tree(bound):
    """The proposition of section 3.2: with weights of nodes alone, the regressors answer as the tree does.

    The tree answers with the most frequent label of the node where a row ends. Each node outweighs those above it.
    """
    X, y = problem(600, 9, 2)
    descent = Descent(3, 4, bound)
    model, _ = learned(X, y, descent)
    rows = treemax.inputs.rows.as_rows(grid())
    records = model.tallies.records
    model.regressors.weights[:], model.regressors.bias[:], records["weight"] = 0.0, 0.0, 0.0
    depth = {0: 0}
    for node in range(model.n_nodes):
        depth.update(dict.fromkeys(model.nodes.children[node][model.nodes.children[node] > 0], depth[node] + 1))
        records["weight"][model.nodes.candidates[node, 0]] = 3.0 ** depth[node]
    model.regressors.bias[model.nodes.labels[0, 0]] = 0.5  # the root has no feature
    ends = np.empty(len(rows), np.int64)
    kernels.find_nodes(
        model.rows(rows),
        np.arange(len(rows), dtype=np.uint32),
        model.nodes,
        model.routers,
        descent.options,
        model.workspace(descent),
        ends,
    )
    model.path_scores = None
    ids, _ = model.top_k(rows, 1, descent)
    np.testing.assert_array_equal(ids[:, 0], model.nodes.labels[ends, 0])
    assert len(set(ends.tolist())) > 3 and len(set(ids[:, 0].tolist())) > 2


@pytest.mark.parametrize("router_weight", ["increase", "printed", "unit"])
@pytest.mark.parametrize("seed", range(3))
def test_the_error_of_a_grown_tree_is_bounded(router_weight, seed):
    """Theorem 2: after t > 2 splits, largest leaf first, of which each lowers the mean entropy of its leaf by gamma,
    the error is at most H_1 - gamma ln(t + 1). Entropies are those that the model keeps, in bits."""
    X, y = problem(3000, 24, 6, seed)
    model, _ = learned(X, y, Descent(24, 5, None, True, router_weight))
    nodes, records = model.nodes, model.tallies.records[: model.tallies.used[0]]

    def bits(node):
        n = nodes.total[node]
        return float((np.log(n) - nodes.sums[node] / n) / np.log(2))

    for node in range(model.n_nodes):
        counts = records["count"][records["node"] == node]
        assert bits(node) == pytest.approx(entropy(dict(enumerate(counts.tolist()))) / math.log(2), abs=1e-9)
    n_rows, leaves, gamma, n_splits = len(y), [0], math.inf, 0
    while True:
        largest = max(leaves, key=lambda node: nodes.total[node])
        children = nodes.children[largest][nodes.children[largest] > 0].tolist()
        if len(children) < 2:
            break
        below = sum(nodes.total[child] / nodes.total[largest] * bits(child) for child in children)
        gamma, n_splits = min(gamma, bits(largest) - below), n_splits + 1
        leaves = [leaf for leaf in leaves if leaf != largest] + children
        right = sum(int(records["count"][nodes.candidates[leaf, 0]]) for leaf in leaves)
        mean_entropy = sum(nodes.total[leaf] / n_rows * bits(leaf) for leaf in leaves)
        assert gamma > -1e-12
        assert 1 - right / n_rows <= mean_entropy + 1e-12
        if n_splits > 2:
            assert 1 - right / n_rows <= bits(0) - gamma * math.log(n_splits + 1) + 1e-12
    assert n_splits > 2


# --- switches --------------------------------------------------------------------------------------------


def paper(**parameters):
    return treemax.RecallTree(**{"algorithm": "paper", "n_candidates": 6, "verbose": 0, **parameters})


def test_without_path_features_the_path_has_no_weights():
    X, y = problem(1000)
    model = paper(path_features=False).fit(X, y)
    assert not model.model_.tallies.records["weight"].any()
    assert paper().fit(X, y).model_.tallies.records["weight"].any()


def test_without_a_bound_every_row_comes_to_a_leaf():
    X, y = problem(1500)
    deep = paper(bound=None, depth=4, passes=1).fit(X, y).model_.nodes
    inner = deep.children.any(axis=1)
    sums = np.where(deep.children > 0, deep.total[deep.children], 0).sum(axis=1)
    np.testing.assert_array_equal(deep.total[inner], sums[inner])
    shallow = paper(bound=50.0, depth=4, passes=1).fit(X, y).model_.nodes
    assert shallow.used[0] < deep.used[0] <= 2**5 - 1


def test_few_labels_are_all_candidates():
    X, y = problem(n_labels=12)
    model = paper(n_candidates=12).fit(X, y)
    assert (model.predict_proba(X) > 0).all()
    assert model.score(X, y) > 0.95


def test_one_feature_for_the_last_node_in_place_of_the_path(tmp_path):
    X, y = problem(1500, 40)
    path, node = paper().fit(X, y), paper(path_features="node").fit(X, y)
    assert (path.predict_proba(X) != node.predict_proba(X)).any()
    assert node.score(X, y) > 0.8
    for resume in (False, True):
        node.save(tmp_path / "model", resume=resume)
        again = treemax.load(tmp_path / "model")
        np.testing.assert_array_equal(again.predict_proba(X), node.predict_proba(X))
        again.model_.restart_learning()
        np.testing.assert_allclose(again.predict_proba(X), node.predict_proba(X), atol=1e-3)
    with pytest.raises(ValueError, match="this model has features of the last node only"):
        node.set_params(path_features=True).partial_fit(X, y)
    with pytest.raises(ValueError, match="this model has features of whole paths"):
        path.set_params(path_features="node").partial_fit(X, y)


def test_random_sides_are_those_of_the_seed_and_of_no_answer():
    X, y = problem(1500, 40)
    first, again, other, greedy = (
        paper(randomized_routing=random, random_state=seed, passes=1).partial_fit(X, y)
        for random, seed in ((True, 1), (True, 1), (True, 2), (False, 1))
    )
    np.testing.assert_array_equal(first.predict_proba(X), first.predict_proba(X))
    np.testing.assert_array_equal(first.predict_proba(X), again.predict_proba(X))
    assert (first.predict_proba(X) != other.predict_proba(X)).any()
    assert first.model_.n_nodes > greedy.model_.n_nodes  # rows near the boundary see both sides
    pieces = paper(randomized_routing=True, random_state=1)
    for part in np.array_split(np.arange(len(X)), 7):
        pieces.partial_fit(X[part], y[part], classes=np.arange(40))
    assert_counts_are_sound(pieces.model_, len(X))


@pytest.mark.parametrize("router_weight", ["increase", "unit"])
def test_routers_learn_to_find_the_label(router_weight):
    X, y = problem(4000, 100, 24)
    model = paper(n_candidates=8, router_weight=router_weight, passes=5).fit(X, y)
    assert model.score(X, y) > 0.6  # eight labels at the root could not give more than about 0.1
    assert 0.0 <= model.progressive_loss_ <= 1.0
    assert model.candidate_recall_ >= 1.0 - model.progressive_loss_


# --- threads ---------------------------------------------------------------------------------------------


def assert_counts_are_sound(model, n_rows):
    """What was counted adds up, node by node and label by label, whoever counted it."""
    nodes, records = model.nodes, model.tallies.records[: model.tallies.used[0]]
    assert nodes.total[0] == n_rows and not nodes.lock.any()
    pairs = set(zip(records["node"].tolist(), records["label"].tolist()))
    assert len(pairs) == len(records)
    for node in range(model.n_nodes):
        here = records[records["node"] == node]
        assert here["count"].sum() == nodes.total[node] and (here["count"] > 0).all()
        n = int(nodes.n_candidates[node])
        assert n == min(len(here), nodes.labels.shape[1])
        counts = records["count"][nodes.candidates[node, :n]]
        assert counts.tolist() == sorted(here["count"].tolist(), reverse=True)[:n]
        assert nodes.covered[node] == counts.sum()
        assert nodes.labels[node, :n].tolist() == records["label"][nodes.candidates[node, :n]].tolist()
        children = nodes.children[node][nodes.children[node] > 0]
        assert nodes.total[children].sum() <= nodes.total[node]
    assert len(np.unique(nodes.routers[nodes.routers > 0])) == nodes.used[1]
    for name, side in (("left", 0), ("right", 1)):
        has = records[name] > 0
        below = records[records[name][has]]
        assert (below["label"] == records["label"][has]).all()
        assert (below["node"] == nodes.children[records["node"][has], side]).all()


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("threads", [1, 4])
def test_threads_keep_counts_sound(sparse, threads):
    """Few rows a piece would hide races: all threads meet at the root, and make nodes and tables all the time."""
    X, y = problem(6000, 200, 40, seed=threads)
    X[np.abs(X) < 0.7] = 0.0
    descent = Descent(6, 8)
    model = empty_model(sparse, 40, 200, 6)
    rows = treemax.inputs.rows.as_rows(sp.csr_matrix(X) if sparse else X)
    targets = Targets(np.arange(len(y) + 1), y.astype(np.uint32))
    orders = [np.random.RandomState(i).permutation(len(y)).astype(np.uint32) for i in range(3)]
    list(learn(model, rows, targets, orders, SETTINGS, descent, 3 * len(y), threads))
    assert_counts_are_sound(model, 3 * len(y))
    ids, probabilities = model.top_k(rows, 3, descent)
    assert np.isfinite(probabilities).all() and (ids < 200).all()


def test_threads_learn_as_well_as_one():
    X, y = problem(6000, 60, 20)
    alone = paper(n_candidates=20, n_jobs=1).fit(X, y).score(X, y)
    together = paper(n_candidates=20, n_jobs=4).fit(X, y)
    assert abs(together.score(X, y) - alone) < 0.05
    assert abs(together.progressive_loss_ - paper(n_candidates=20).fit(X, y).progressive_loss_) < 0.05


# --- streams and files -----------------------------------------------------------------------------------


def test_the_tree_and_its_candidates_grow_with_the_labels_that_arrive():
    X, y = problem(6000, 400, 24)
    order = np.argsort(y, kind="stable")
    model = paper(n_candidates="auto")
    widths, nodes = [], []
    for part in np.array_split(order, 20):
        model.partial_fit(X[part], y[part])
        widths.append(model.model_.nodes.candidates.shape[1])
        nodes.append(model.model_.n_nodes)
    assert widths[0] == candidates_for(20) and widths[-1] == candidates_for(400) > widths[0]
    assert sorted(nodes) == nodes and nodes[-1] > nodes[0]
    assert model.model_.depth <= depth_for(400)
    for _ in range(3):
        model.partial_fit(X, y)
    assert model.score(X, y) > 0.6


def test_damaged_parts_are_refused():
    X, y = problem()
    model = paper().fit(X, y).model_
    damages = (
        ("nodes/children", 10**6, "do not form a tree"),
        ("nodes/candidates", 10**6, "candidates"),
        ("nodes/covered", 10**6, "counts"),
        ("nodes/routers", 1, "routers"),
        ("tallies/above", 10**6, "fit together"),
        ("tallies/label", 39, "fit together"),
        ("tallies/node", 1, "fit together"),
    )
    header, arrays = assert_damaged_parts_are_refused(model, 40, damages)
    with pytest.raises(ValueError, match="fit together"):
        type(model).from_parts(header, arrays, 39)
    damages = (("nodes/labels", 40, "candidates"), ("nodes/n_candidates", 41, "candidates"))
    assert_damaged_parts_are_refused(model, 40, damages, resume=False)


@pytest.mark.parametrize("sparse", [False, True])
def test_saved_to_answer_it_is_small_and_learns_again(tmp_path, sparse):
    """Without its learning state only candidates are kept; they are enough to go on."""
    X, y = problem(4000, 200, 24)
    X = sp.csr_matrix(X) if sparse else X
    model = paper(passes=3).fit(X, y)
    model.save(tmp_path / "model")
    lean = treemax.load(tmp_path / "model")
    np.testing.assert_array_equal(lean.predict_proba(X), model.predict_proba(X))
    assert lean.model_.nbytes < model.model_.nbytes / 2
    lean.save(tmp_path / "again", resume=True)  # there is nothing more to keep
    np.testing.assert_array_equal(treemax.load(tmp_path / "again").predict_proba(X), lean.predict_proba(X))
    with pytest.warns(UserWarning, match="without its learning state"):
        lean.partial_fit(X[:1], y[:1])
    records, nodes = lean.model_.tallies.records[: lean.model_.tallies.used[0]], lean.model_.nodes
    for node in range(lean.model_.n_nodes):
        here = records["count"][records["node"] == node]
        n = int(nodes.n_candidates[node])
        counts = records["count"][nodes.candidates[node, :n]].tolist()
        assert counts == sorted(here.tolist(), reverse=True)[:n] and nodes.covered[node] == sum(counts)
        assert here.sum() <= nodes.total[node]
    before = model.score(X, y)
    for _ in range(2):
        lean.partial_fit(X, y)
    assert lean.score(X, y) > before - 0.05


@pytest.mark.parametrize("one_label_share", [0.0, 1.0])
def test_rows_together_are_scored_as_one_by_one(one_label_share):
    """Together, rows descend a level at a time, and those at one node share what was found; more features than are kept,
    of which some are known for few labels and some for more than are looked through."""
    random = np.random.RandomState(5)
    n_rows, n_labels, n_features = 1500, 300, 3000
    y = random.randint(0, n_labels, n_rows) * (random.uniform(size=n_rows) >= 0.2 * one_label_share)
    rare = (y[:, None] * 10 + random.randint(0, 10, (n_rows, 6))) % n_features
    X = np.zeros((n_rows, n_features), np.float32)
    np.put_along_axis(X, rare, 1.0, axis=1)
    X[:, :20] = random.uniform(size=(n_rows, 20)) < 0.5
    X = sp.csr_matrix(X)
    model = treemax.RecallTree(algorithm="paper", passes=2, verbose=0).fit(X, y)
    entries = model.model_.regressors.tables >> np.uint64(5) & np.uint64(2**27 - 1)
    assert entries.max() > 3 * model._search().n_candidates and np.median(entries[entries > 0]) < 20
    assert len(np.unique(X.indices)) > KEPT_FEATURES
    together, k = model.predict_topk(X, 5), np.arange(0, n_rows, 7)
    for i in k.tolist():
        one = model.predict_topk(X[i], 5)
        np.testing.assert_array_equal(one.labels[0], together.labels[i])
        np.testing.assert_array_equal(one.scores[0], together.scores[i])
