"""ContextualMemoryTree against a slow reference: growth, streams, and saving."""

import threading

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import treemax
from tests.models.memory_tree.reference import Reference
from tests.models.online_trees import assert_damaged_parts_are_refused
from treemax.inputs.labels import Targets
from treemax.inputs.rows import as_rows
from treemax.models.memory_tree import kernels
from treemax.models.memory_tree.kernels import CLIPPED, DEEPEST, REGRESSORS, SOFTMAX, Options
from treemax.models.memory_tree.training import MemoryTreeSettings, empty_model, remember, revisit

SETTINGS = MemoryTreeSettings(0.2, 0.1, 0.5, 0.1)
OPTIONS = Options(0.1, 2.0, 2, True, True, True, True, True, SOFTMAX, np.float32(10.0))
SEED = 12345


def problem(n_rows=300, n_labels=30, n_features=12, seed=0):
    random = np.random.RandomState(seed)
    y = random.randint(n_labels, size=n_rows)
    X = random.normal(size=(n_labels, n_features))[y] + 0.3 * random.normal(size=(n_rows, n_features))
    X[np.abs(X) < 0.4] = 0.0
    return X.astype(np.float32), y


def several(y, n_labels=30):
    """One to three labels a row."""
    return [sorted({label, (label + 7) % n_labels} if label % 3 else {label}) for label in np.asarray(y).tolist()]


def learned(X, labels, options, sparse=False, n_labels=30, later=()):
    model = empty_model(sparse, X.shape[1], n_labels, options.output, SEED)
    rows = as_rows(sp.csr_matrix(X) if sparse else X)
    indptr = np.concatenate([[0], np.cumsum([len(own) for own in labels])])
    targets = Targets(indptr, np.array([label for own in labels for label in own], np.uint32))
    list(remember(model, rows, targets, np.arange(len(X), dtype=np.uint32), SETTINGS, options))
    list(revisit(model, later, SETTINGS, options))
    return model, rows


# --- the algorithm ---------------------------------------------------------------------------------------

VARIANTS = {
    "the usual": OPTIONS,
    "no rewards at first, itself is found": OPTIONS._replace(rewards=False, skip_itself=False, alpha=0.3),
    "dreams do not train": OPTIONS._replace(train_dreams=False, dreams=3, leaf_factor=1.0),
    "cosine": OPTIONS._replace(learn_scorer=False, dreams=0, alpha=0.5),
    "several labels, nearest": OPTIONS._replace(output=CLIPPED),
    "several labels, one against some": OPTIONS._replace(output=REGRESSORS),
    "several labels, dreams do not train": OPTIONS._replace(output=REGRESSORS, train_dreams=False),
}


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", VARIANTS)
def test_learns_as_the_reference_does(name, sparse):
    options = VARIANTS[name]
    X, y = problem()
    labels = [[label] for label in y.tolist()] if options.output == SOFTMAX else several(y)
    later = [np.random.RandomState(1).permutation(len(X)).astype(np.uint32)]
    model, rows = learned(X, labels, options, sparse, later=later)
    reference = Reference(X.shape[1], SETTINGS, options, SEED, sparse)
    unit = X.astype(float) / np.linalg.norm(X.astype(float), axis=1)[:, None]
    for x, own in zip(unit, labels):
        reference.remember(x, own)
    for memory in later[0].tolist():
        reference.revisit(memory)
    assert int(model.random[0]) == reference.random.state
    assert model.found.tolist() == [reference.n_right, len(X)]
    assert model.n_nodes == reference.n_nodes > 10
    compare_nodes(model, reference.root)
    np.testing.assert_allclose(model.scorer.weights, reference.weights, atol=1e-4)
    assert np.abs(reference.weights).max() > 0.01 or not options.learn_scorer
    compare_answers(model, rows, unit, reference, options)


def compare_nodes(model, root):
    own, waiting = model.nodes, [(0, root)]
    while waiting:
        number, node = waiting.pop()
        assert own.sides[number].tolist() == node.counts and own.depths[number] == node.depth
        assert memories_of(model, number) == node.memories
        np.testing.assert_allclose(router_weights(model, number), node.weights, atol=1e-3)
        assert (own.left[number] == 0) == (node.left is None)
        if node.left is not None:
            left = int(own.left[number])
            waiting += [(left, node.left), (left + 1, node.right)]


def memories_of(model, leaf):
    found, memory = [], int(model.nodes.first[leaf])
    while memory >= 0:
        found.append(memory)
        memory = int(model.store.following[memory])
    assert len(found) == model.nodes.sizes[leaf]
    return found


def router_weights(model, number):
    bias = model.routers.bias[number]
    if not model.is_sparse:
        return np.append(model.routers.weights[number], bias)
    score = np.zeros(1, np.float32)
    unit = [
        score_of(model.routers, number, (np.array([d], np.uint32), np.ones(1, np.float32)), score)
        for d in range(model.n_features)
    ]
    return np.append(np.array(unit) - bias, bias)


@kernels.kernel
def score_of(routers, number, x, out):
    kernels.scores(routers, number, 1, x, out)
    return out[0]


def compare_answers(model, rows, unit, reference, options):
    ids, probabilities = model.top_k(rows, 3, options)
    of_all = model.probabilities(rows, options)
    for i in range(0, len(unit), 7):
        if min(abs(node.score(unit[i])) for node in reference.path(unit[i], reference.root)[:-1]) < 2e-3:
            continue  # routers of dense rows answer in half precision
        scores = reference.answer(unit[i])
        values = np.array(list(scores.values()))
        if options.output == SOFTMAX:
            values = np.exp(options.sharpness * (values - values.max()))
            values /= values.sum()
        else:
            values = np.clip(values, 0, 1) if options.output == CLIPPED else 1 / (1 + np.exp(-values))
        expected = dict(zip(scores, values.tolist()))
        assert set(np.flatnonzero(of_all[i]).tolist()) <= set(expected)
        np.testing.assert_allclose(of_all[i, list(expected)], values, atol=3e-3)
        n = min(3, len(expected))
        np.testing.assert_allclose(probabilities[i, :n], sorted(values, reverse=True)[:n], atol=3e-3)
        np.testing.assert_array_equal(of_all[i, ids[i, :n]], probabilities[i, :n])
        assert (ids[i, n:] == -1).all()


# --- the tree stays a tree -------------------------------------------------------------------------------


def check_tree(model):
    """Whatever the rows were: every memory is in one leaf, and counts are those of the memories below."""
    nodes, n, below = model.nodes, model.n_nodes, {}
    for node in range(n - 1, -1, -1):
        left = int(nodes.left[node])
        if left:
            assert nodes.sizes[node] == 0 and nodes.sides[node].tolist() == [len(below[left]), len(below[left + 1])]
            assert nodes.depths[left] == nodes.depths[left + 1] == nodes.depths[node] + 1
            below[node] = below.pop(left) + below.pop(left + 1)
        else:
            below[node] = memories_of(model, node)
    assert sorted(below[0]) == list(range(model.store.n)) and model.depth <= DEEPEST


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(-3, 3), st.integers(-3, 3)), min_size=1, max_size=200),
    st.sampled_from([0.1, 1.0, 4.0]),
    st.sampled_from([0.0, 0.1, 1.0]),
    st.integers(0, 3),
    st.booleans(),
    st.booleans(),
)
def test_the_tree_stays_a_tree(examples, leaf_factor, alpha, dreams, sparse, multi_label):
    y, *columns = np.array(examples).T
    X, output = np.array(columns, dtype=np.float32).T.copy(), REGRESSORS if multi_label else SOFTMAX
    options = OPTIONS._replace(leaf_factor=leaf_factor, alpha=alpha, dreams=dreams, output=output)
    labels = [[label] for label in y.tolist()]
    model, rows = learned(X, labels, options, sparse, 9, later=[np.arange(len(y), dtype=np.uint32)])
    check_tree(model)
    ids, probabilities = model.top_k(rows, 3, options)
    assert (ids[:, 0] >= 0).all() and (np.diff(probabilities, axis=1) <= 0).all()
    header, arrays = model.to_parts(resume=True)
    again = type(model).from_parts(header, arrays, model.n_labels)
    check_tree(again)
    np.testing.assert_array_equal(again.top_k(rows, 3, options)[0], ids)
    np.testing.assert_array_equal(again.probabilities(rows, options), model.probabilities(rows, options))


def test_rows_that_cannot_be_told_apart_stay_in_one_leaf():
    options = OPTIONS._replace(leaf_factor=1.0)
    model, _ = learned(np.ones((500, 3), np.float32), [[i % 30] for i in range(500)], options)
    assert model.n_nodes == 1 and model.nodes.sizes[0] == 500
    check_tree(model)


def test_a_leaf_without_memories_is_not_asked():
    """Every answer comes from a memory, also where dreams have emptied a leaf."""
    X, y = problem(200, 10)
    options = OPTIONS._replace(leaf_factor=0.3, dreams=3)
    model, _ = learned(X, [[label] for label in y.tolist()], options, n_labels=10)
    leaves = model.nodes.left[: model.n_nodes] == 0
    assert (model.nodes.sizes[: model.n_nodes][leaves] == 0).any()
    ids, _ = model.top_k(as_rows(np.random.RandomState(3).normal(size=(500, 12)).astype(np.float32)), 1, options)
    assert (ids >= 0).all()


# --- the estimator ---------------------------------------------------------------------------------------


def tree(**parameters):
    return treemax.ContextualMemoryTree(**{"verbose": 0, **parameters})


def test_rewards_send_rows_to_the_leaves_of_their_labels():
    X, y = problem(3000, 60, 12)
    scores = [
        tree(passes=passes, leaf_factor=0.5, reward_first_pass=False).fit(X[:2000], y[:2000]).score(X[2000:], y[2000:])
        for passes in (1, 8)
    ]
    assert scores[0] + 0.05 < scores[1]


def test_the_similarity_learns_to_leave_out_what_says_nothing():
    X, y = problem(3000, 60, 12)
    noise = np.random.RandomState(5).normal(scale=3.0, size=(3000, 4)).astype(np.float32)
    X = np.hstack([X, noise])
    models = [tree(passes=8, scorer_rate=rate).fit(X[:2000], y[:2000]) for rate in (0.0, 0.1)]
    scores = [model.score(X[2000:], y[2000:]) for model in models]
    assert scores[0] + 0.1 < scores[1]
    weights = models[1].model_.scorer.weights
    assert weights[12:].max() < weights[:12].min() and not models[0].model_.scorer.weights.any()


@pytest.mark.parametrize("sparse", [False, True])
def test_one_against_some_finds_all_labels_of_a_row(sparse):
    X, y = problem(2000, 30, 16)
    labels, X = several(y), sp.csr_matrix(X) if sparse else X
    model = tree().fit(X[:1500], labels[:1500])
    assert model.score(X[1500:], labels[1500:]) > 0.8
    answers = model.predict(X[1500:])
    overlap = sum(len(set(one) & set(two)) for one, two in zip(answers, labels[1500:]))
    assert 2 * overlap / (sum(map(len, answers)) + sum(map(len, labels[1500:]))) > 0.8
    assert tree(one_against_some=False).fit(X[:1500], labels[:1500]).score(X[1500:], labels[1500:]) > 0.8


def test_fewer_labels_in_a_leaf_than_asked_for_are_filled_up():
    X, y = problem(1000, 30)
    top = tree(leaf_factor=1.0).fit(X, y).predict_topk(X, 20)
    assert (top.labels == None).any() and (top.scores[top.labels == None] == 0.0).all()  # noqa: E711
    assert (top.labels[:, 0] != None).all()  # noqa: E711


def test_new_labels_and_features_may_appear_in_a_stream():
    X, y = problem(900, 30, 12)
    model, labels = tree(), several(y)
    for start, n_features in ((0, 6), (300, 9), (600, 12)):
        part = slice(start, start + 300)
        model.partial_fit(sp.csr_matrix(X[part, :n_features]), labels[part])
    assert model.n_features_in_ == 12 and model.describe()["memories"] == 900
    assert model.score(sp.csr_matrix(X[600:]), labels[600:]) > 0.5


def test_answers_while_it_learns_come_from_one_state():
    X, y = problem(2000, 30)
    model, failed, done = tree().partial_fit(X[:200], y[:200]), [], threading.Event()

    def ask():
        while not done.is_set():
            found = model.predict_topk(X[:300], 1)
            if (found.labels == None).any() or not np.isfinite(found.scores).all():  # noqa: E711
                failed.append(found)

    readers = [threading.Thread(target=ask) for _ in range(2)]
    for reader in readers:
        reader.start()
    for start in range(200, 2000, 100):
        model.partial_fit(X[start : start + 100], y[start : start + 100])
    done.set()
    for reader in readers:
        reader.join()
    assert not failed and model.describe()["memories"] == 2000


def test_numbers_at_the_edge_of_what_is_accepted_do_no_harm():
    X, y = problem(300, 10)
    for scale in (1e-9, 1e14):
        model = tree().fit(X * np.float32(scale), y)
        check_tree(model.model_)
        assert np.isfinite(model.predict_proba(X)).all()


def test_damaged_parts_are_refused():
    X, y = problem(600)
    for sparse in (False, True):
        model = tree(leaf_factor=1.0).fit(sp.csr_matrix(X) if sparse else X, several(y)).model_
        damages = (
            ("nodes/left", 0, "do not form a tree"),
            ("nodes/left", 1, "do not form a tree"),
            ("nodes/sizes", 1, "fit the leaves"),
            ("nodes/memories", 3, "fit the leaves"),
            ("nodes/sides", 2, "counts do not fit"),
            ("nodes/sides", -1, "values outside 0"),
            ("memories/labels", 30, "fit the labels"),
            ("memories/labels", 1, "not sorted"),
            ("memories/starts", 7, "fit the memories"),
            ("memories/indices" if sparse else "memories/rows", 99, "fit the features" if sparse else "length one"),
            ("scorer/weights", np.nan, "too large"),
            ("scorer/squares", -1.0, "values outside 0"),
        )
        header, arrays = assert_damaged_parts_are_refused(model, 30, damages)
        with pytest.raises(ValueError, match="how is"):
            type(model).from_parts({**header, "how": 3}, arrays, 30)


def test_a_file_with_a_chain_that_is_too_long_is_refused():
    model = empty_model(False, 1, 1, SOFTMAX, 0)
    header, arrays = model.to_parts(resume=True)
    n = 2 * (DEEPEST + 1) + 1
    left = np.zeros(n, np.int32)
    left[[0, *range(1, n - 2, 2)]] = np.arange(1, n, 2)
    arrays |= {"nodes/left": left, "nodes/sides": np.zeros((n, 2), np.int64), "nodes/sizes": np.zeros(n, np.int64)}
    for name in ("bias", "bias_squares", "weights", "squares"):
        old = arrays[f"routers/{name}"]
        arrays[f"routers/{name}"] = np.zeros((n, *old.shape[1:]), old.dtype)
    with pytest.raises(ValueError, match="levels deep"):
        type(model).from_parts(header, arrays, 1)
