"""LOMTree against a slow reference: growth, splits, swaps, and saving."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import treemax
from tests.models import adagrad
from tests.models.online_trees import assert_damaged_parts_are_refused, problem
from treemax.inputs.labels import Targets
from treemax.inputs.rows import as_rows
from treemax.models.lom_tree import kernels
from treemax.models.lom_tree.kernels import DEEPEST, Options
from treemax.models.lom_tree.training import LOMTreeSettings, empty_model, learn, nodes_for

SETTINGS = LOMTreeSettings(0.3, 0.5)


def learned(X, y, options, sparse=False, passes=1):
    model = empty_model(sparse, X.shape[1], int(np.max(y)) + 1)
    rows = as_rows(sp.csr_matrix(X) if sparse else X)
    targets = Targets(np.arange(len(y) + 1), np.asarray(y, np.uint32))
    orders = [np.arange(len(y), dtype=np.uint32)] * passes
    list(learn(model, rows, targets, orders, SETTINGS, options))
    return model, rows


# --- the algorithm ---------------------------------------------------------------------------------------


class Node:
    def __init__(self, parent, size):
        self.parent, self.left, self.right, self.size = parent, None, None, size
        self.counts, self.best = {}, None
        self.sums, self.trained = {}, {}
        self.weights = self.squares = None

    @property
    def smallest(self):
        return self.size if self.left is None else min(self.left.smallest, self.right.smallest)

    def replace(self, child, other):
        self.left, self.right = (other if one is child else one for one in (self.left, self.right))


class Reference:
    """Algorithm 1, plain: objects and dictionaries, the smallest leaf by looking at all of them."""

    def __init__(self, n_features, options):
        self.n_features, self.options, self.n_inner = n_features, options, 0
        self.root, self.n_swaps, self.n_right = Node(None, 0), 0, 0

    def count(self, node, label):
        node.counts[label] = node.counts.get(label, 0) + 1
        if node.best is None or node.counts[label] > node.counts[node.best]:
            node.best = label

    def may_split(self, leaf):
        if len(leaf.counts) < 2:
            return False
        gain, smallest = leaf.size - max(leaf.counts.values()), self.root.smallest
        enough = gain > self.options.swap_resistance * (smallest + 1) and leaf.size > smallest
        return self.n_inner < self.options.max_nodes or enough

    def take_out_smallest(self):
        leaf = self.root
        while leaf.left is not None:
            leaf = leaf.left if leaf.left.smallest == self.root.smallest else leaf.right
        parent = leaf.parent
        sibling = parent.right if parent.left is leaf else parent.left
        sibling.parent = parent.parent
        if parent is self.root:
            self.root = sibling
        else:
            parent.parent.replace(parent, sibling)
        self.n_swaps += 1
        self.n_inner -= 1

    def split(self, leaf):
        if self.n_inner == self.options.max_nodes:
            self.take_out_smallest()
        leaf.left, leaf.right = Node(leaf, leaf.size // 2), Node(leaf, leaf.size - leaf.size // 2)
        leaf.weights, leaf.squares = np.zeros((2, self.n_features + 1))
        self.n_inner += 1

    def mean(self, sums, trained):
        return sum(sums) / sum(trained) if sum(trained) else 0.0

    def train_node(self, node, x, label):
        everything = self.mean(node.sums.values(), node.trained.values())
        own = self.mean([node.sums.get(label, 0.0)], [node.trained.get(label, 0)])
        side = -1 if everything > own + 1e-12 else 1
        if side * (node.weights @ x) < 1:
            step = side * min(1.0, max(self.options.least_weight, abs(own - everything))) * x
            node.squares += step**2
            node.weights += adagrad.step(step, node.squares, SETTINGS.rate, SETTINGS.initial)
        node.sums[label] = node.sums.get(label, 0.0) + node.weights @ x
        node.trained[label] = node.trained.get(label, 0) + 1

    def child(self, node, x):
        return node.left if node.weights @ x < 0 else node.right

    def train(self, x, label):
        self.n_right += self.answering(x).best == label
        x, node = np.append(x.astype(float), 1.0), self.root
        while True:
            self.count(node, label)
            if node.left is None:
                if not self.may_split(node):
                    break
                self.split(node)
            self.train_node(node, x, label)
            node = self.child(node, x)
        node.size += 1

    def answering(self, x):
        x, node = np.append(x.astype(float), 1.0), self.root
        while node.left is not None:
            node = self.child(node, x)
        return node if node.counts or node.parent is None else node.parent


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(
    "options",
    [Options(39, 4.0, 0.1), Options(160, 4.0, 1.0), Options(20, 1.0, 0.3), Options(1, 1.0, 1.0), Options(6, 0.2, 0.1)],
)
def test_learns_as_the_reference_does(options, sparse):
    X, y = problem(600)
    X[np.abs(X) < 0.4] = 0.0
    model, rows = learned(X, y, options, sparse, passes=2)
    reference = Reference(X.shape[1], options)
    for x, label in zip([*X, *X], [*y.tolist(), *y.tolist()]):
        reference.train(x, label)
    assert reference.n_swaps > 0 or options.max_nodes > 100
    assert model.n_inner == reference.n_inner
    compare_nodes(model, reference.root)
    assert model.found.tolist() == [reference.n_right, 1200]
    ids, probabilities = model.top_k(rows, 5)
    for i in range(0, len(X), 7):
        node = reference.answering(X[i])
        counts, total = node.counts, sum(node.counts.values())
        expected = sorted(counts.values(), reverse=True)[:5]
        n = len(expected)
        np.testing.assert_allclose(probabilities[i, :n], np.array(expected) / total, rtol=1e-6)
        assert ids[i, 0] == node.best and (ids[i, n:] == -1).all()
        assert [counts[label] for label in ids[i, :n].tolist()] == expected


def compare_nodes(model, root):
    own, waiting = model.nodes, [(int(model.nodes.used[kernels.ROOT]), root)]
    while waiting:
        number, node = waiting.pop()
        assert (own.regressors[number] == 0) == (node.left is None)
        assert own.totals[number] == sum(node.counts.values())
        assert own.smallest[number] == node.smallest
        assert own.best[number] == (-1 if node.best is None else node.best)
        lists = model.lists(np.array([number]))
        assert dict(zip(lists.labels.tolist(), lists.counts.tolist())) == node.counts
        if node.left is not None:
            weights = np.append(model_weights(model, own.regressors[number] - 1), 0.0)[:-1]
            np.testing.assert_allclose(weights, node.weights, atol=2e-4)
            assert own.trained[number] == sum(node.trained.values())
            waiting += zip(own.children[number].tolist(), (node.left, node.right))


def model_weights(model, number):
    bias = model.regressors.bias[number]
    if not model.is_sparse:
        return np.append(model.regressors.weights[number], bias)
    score, n = np.zeros(1, np.float32), model.n_features
    unit = [
        score_of(model.regressors, number, (np.array([d], np.uint32), np.ones(1, np.float32)), score) for d in range(n)
    ]
    return np.append(np.array(unit) - bias, bias)


@kernels.kernel
def score_of(regressors, number, x, out):
    kernels.scores(regressors, number, 1, x, out)
    return out[0]


# --- the tree stays a tree -------------------------------------------------------------------------------


def check_tree(model, options, n_rows):
    """Whatever the rows were."""
    nodes = model.nodes
    levels = model.levels()
    order = np.concatenate(levels)
    assert len(np.unique(order)) == len(order) == 2 * model.n_inner + 1
    assert model.n_inner <= options.max_nodes and model.depth <= DEEPEST
    inner = order[nodes.regressors[order] > 0]
    leaves = order[nodes.regressors[order] == 0]
    assert len(np.unique(nodes.regressors[inner])) == len(inner)
    assert nodes.parents[order[0]] == order[0]
    for side in (0, 1):
        np.testing.assert_array_equal(nodes.parents[nodes.children[inner, side]], inner)
    np.testing.assert_array_equal(nodes.smallest[inner], nodes.smallest[nodes.children[inner]].min(axis=1))
    lists = model.lists(order)
    for i, node in enumerate(order):
        own = slice(lists.starts[i], lists.starts[i + 1])
        counts = lists.counts[own]
        assert len(np.unique(lists.labels[own])) == len(counts) and (counts > 0).all()
        assert nodes.totals[node] == counts.sum() and nodes.largest[node] == counts.max(initial=0)
        assert nodes.trained[node] == lists.trained[own].sum()
        if len(counts):
            assert counts[lists.labels[own] == nodes.best[node]] == nodes.largest[node]
    assert (nodes.totals[inner] > 1).all()
    if options.max_nodes >= n_rows:  # no swap: every row is in one leaf
        assert nodes.smallest[leaves].sum() == n_rows == nodes.totals[order[0]]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(-3, 3), st.integers(-3, 3)), min_size=1, max_size=200),
    st.one_of(st.integers(1, 12), st.just(1000)),
    st.sampled_from([0.0, 0.5, 1.0, 4.0]),
    st.sampled_from([1e-6, 0.1, 1.0]),
    st.booleans(),
)
def test_the_tree_stays_a_tree(examples, max_nodes, swap_resistance, least_weight, sparse):
    y, *columns = np.array(examples).T
    X, options = np.array(columns, dtype=np.float32).T.copy(), Options(max_nodes, swap_resistance, least_weight)
    model, rows = learned(X, y, options, sparse, passes=2)
    check_tree(model, options, 2 * len(y))
    ids, probabilities = model.top_k(rows, 3)
    assert (ids[:, 0] >= 0).all() and (np.diff(probabilities, axis=1) <= 0).all()
    all_of_them = model.probabilities(rows)
    np.testing.assert_allclose(all_of_them.sum(axis=1), 1.0, rtol=1e-5)
    np.testing.assert_array_equal(all_of_them[np.arange(len(y)), ids[:, 0]], probabilities[:, 0])
    header, arrays = model.to_parts(resume=True)
    again = type(model).from_parts(header, arrays, model.n_labels)
    check_tree(again, options, 2 * len(y))
    np.testing.assert_array_equal(again.top_k(rows, 3)[0], ids)


@pytest.mark.parametrize("sparse", [False, True])
def test_what_swaps_leave_behind_is_swept(sparse):
    """Labels that come one after another: the tree forgets, and its arrays do not grow with the stream."""
    random = np.random.RandomState(0)
    y = np.arange(30_000) // 100 % 100 * 3 + random.randint(3, size=30_000)
    X = random.normal(size=(300, 8))[y] + 0.3 * random.normal(size=(30_000, 8))
    options = Options(10, 1.0, 0.1)
    model, _ = learned(X.astype(np.float32), y, options, sparse)
    check_tree(model, options, len(y))
    assert len(model.nodes.totals) < 1000 and len(model.regressors.bias) < 500


def test_rows_that_cannot_be_told_apart_do_not_make_a_chain_without_end():
    y = np.random.RandomState(0).randint(2000, size=6000)
    options = Options(8000, 4.0, 0.1)
    model, _ = learned(np.zeros((6000, 3), np.float32), y, options)
    check_tree(model, options, 6000)


def test_one_label_needs_no_tree():
    model = treemax.LOMTree(verbose=0).fit(np.ones((5, 2)), ["only"] * 5)
    assert model.model_.n_inner == model.model_.depth == 0
    assert model.predict([[0.0, 7.0]]).tolist() == ["only"]


def test_a_leaf_that_no_row_came_to_answers_as_its_parent():
    """Two labels at the root split it; the row goes to one side, and the other is empty."""
    model, _ = learned(np.array([[1.0], [-1.0]], np.float32), np.array([0, 1]), Options(4, 4.0, 0.1))
    assert model.n_inner == 1 and sorted(model.nodes.totals[1:3].tolist()) == [0, 1]
    for x in ([[1.0]], [[-1.0]]):
        ids, probabilities = model.top_k(as_rows(np.array(x)), 2)
        assert (ids.tolist(), probabilities.tolist()) in (([[0, 1]], [[0.5, 0.5]]), ([[1, -1]], [[1.0, 0.0]]))


# --- the estimator ---------------------------------------------------------------------------------------


def tree(**parameters):
    return treemax.LOMTree(**{"verbose": 0, **parameters})


def test_more_nodes_and_passes_find_more_labels():
    X, y = problem(4000, 100, 24)
    scores = [tree(max_nodes=n, passes=5).fit(X, y).score(X, y) for n in (7, 99, "auto")]
    assert scores[0] < scores[1] < scores[2] and scores[2] > 0.6
    assert tree(passes=1).fit(X, y).progressive_loss_ > tree(passes=5).fit(X, y).progressive_loss_


def test_the_limit_follows_the_labels_of_a_stream():
    X, y = problem(6000, 300, 24)
    order = np.argsort(y, kind="stable")
    model = tree()
    for part in np.array_split(order, 20):
        model.partial_fit(X[part], y[part])
        assert model.model_.n_inner <= nodes_for(len(model.classes_))
    for _ in range(4):
        model.partial_fit(X, y)
    assert model.score(X, y) > 0.5
    assert model.describe()["nodes"] == model.model_.n_inner > 300


def test_fewer_labels_in_a_leaf_than_asked_for_are_filled_up():
    X, y = problem(1000, 30)
    top = tree().fit(X, y).predict_topk(X, 20)
    assert (top.labels == None).any() and (top.scores[top.labels == None] == 0.0).all()  # noqa: E711
    assert (top.labels[:, 0] != None).all()  # noqa: E711


def test_numbers_at_the_edge_of_what_is_accepted_do_no_harm():
    X, y = problem(300, 10)
    for scale in (1e-9, 1e14):
        model = tree().fit(X * np.float32(scale), y)
        check_tree(model.model_, Options(40, 4.0, 0.1), 900)
        assert np.isfinite(model.predict_proba(X)).all()


def test_damaged_parts_are_refused():
    X, y = problem(1000)
    model = tree(max_nodes=30).fit(X, y).model_
    damages = (
        ("nodes/inner", True, "do not form a tree"),
        ("nodes/inner", False, "do not form a tree"),
        ("nodes/best", 3, "most frequent"),
        ("nodes/smallest", -1, "values outside 0"),
        ("nodes/sums", np.nan, "counts do not fit"),
        ("tallies/labels", 40, "fit the labels"),
        ("tallies/labels", 1, "duplicate"),
        ("tallies/counts", 0, "not possible"),
        ("tallies/starts", 7, "fit the nodes"),
    )
    header, arrays = assert_damaged_parts_are_refused(model, 40, damages)
    with pytest.raises(ValueError, match="sizes of leaves"):
        type(model).from_parts(header, {**arrays, "nodes/smallest": arrays["nodes/smallest"][::-1]}, 40)


def test_a_file_with_a_chain_that_is_too_long_is_refused():
    n = 2 * (DEEPEST + 1) + 1
    inner = np.zeros(n, bool)
    inner[[0, *range(1, n - 2, 2)]] = True
    lists = {"starts": np.arange(n + 1), "labels": np.zeros(n, np.int32), "counts": np.ones(n, np.int32)}
    lists |= {"trained": np.zeros(n, np.int32), "sums": np.zeros(n)}
    header, arrays = empty_model(False, 1, 1).to_parts(resume=False)
    arrays |= {"nodes/inner": inner, "nodes/best": np.zeros(n, np.int32), "nodes/smallest": np.zeros(n, np.int64)}
    arrays |= {"nodes/sums": np.zeros(n), **{f"tallies/{name}": array for name, array in lists.items()}}
    for name in ("bias", "halves", "scale"):
        old = arrays[f"regressors/{name}"]
        arrays[f"regressors/{name}"] = np.zeros((n // 2, *old.shape[1:]), old.dtype)
    with pytest.raises(ValueError, match="levels deep"):
        type(empty_model(False, 1, 1)).from_parts(header, arrays, 1)
