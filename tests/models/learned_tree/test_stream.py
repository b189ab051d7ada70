"""LearnedTree on streams: growth, statistics and assignments against NumPy, and resumed learning bit for bit.

`_learn_block` is replaced to record the state after every block.
"""

from __future__ import annotations

import copy
from itertools import combinations, pairwise

import numpy as np
import pytest
import scipy.sparse as sp

import treemax
from tests.models.learned_tree.test_estimator import check_well_formed, grouped_problem, node_shares
from treemax import LearnedTree, modelfile
from treemax.checks.examples import example_data
from treemax.models.learned_tree.stream import FIRST_ASSIGNMENT, GROWTH, HORIZON, LONGEST, GrowingTree, power_of_two

OWN = {"insect": ["ant", "bee"], "other": {"four legs": ["cat", "dog", "fox", "gnu"], "water": ["eel"]}}


def small(**options):
    return LearnedTree(**{"dimension": 8, "arity": 3, "verbose": 0, "stream_assign_every": 40, **options})


def growing_stream(n_chunks=8, n_rows=30):
    """Chunks in which labels and features keep arriving."""
    for number in range(n_chunks):
        random = np.random.default_rng(number)
        y = random.integers(0, 3 + 4 * number, n_rows)
        n_columns = 20 + 30 * number
        columns = (y[:, None] * np.array([7, 13]) + random.integers(0, 2, (n_rows, 2))) % n_columns
        starts = np.arange(0, 2 * n_rows + 1, 2)
        yield (
            sp.csr_matrix(
                (random.random(2 * n_rows, dtype=np.float32) + 0.2, columns.ravel(), starts), (n_rows, n_columns)
            ),
            y,
        )


def check_same(one, other):
    (header, arrays), (other_header, other_arrays) = (modelfile.object_parts(m, resume=True) for m in (one, other))
    assert header == other_header and arrays.keys() == other_arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, other_arrays[name], err_msg=name)


@pytest.mark.parametrize(
    "options",
    [{}, {"statistics": "running"}, {"statistics": "running", "prior_count": 1.0, "assign_by": "log-gradient"},
     {"arity": 2}, {"tree": "random"}, {"optimizer": "sgd", "objective": "probability"}, {"arity": 20}],
)  # fmt: skip
def test_a_saved_model_goes_on_as_if_it_had_never_stopped(options, tmp_path):
    whole, chunks = small(**options), list(growing_stream())
    for X, y in chunks:
        whole.partial_fit(X, y)
    model = small(**options)
    for number, (X, y) in enumerate(chunks):
        model.partial_fit(X, y)
        model.save(tmp_path / f"{number}.treemax", resume=True)
        answers = model.predict_topk(X, 3)
        model = treemax.load(tmp_path / f"{number}.treemax")
        np.testing.assert_array_equal(answers.scores, model.predict_topk(X, 3).scores)
        np.testing.assert_array_equal(answers.labels, model.predict_topk(X, 3).labels)
    check_same(whole, model)
    assert (whole.label_tree().label == model.label_tree().label).all()


@pytest.mark.parametrize("options", [{}, {"statistics": "running"}, {"tree": "huffman"}, {"labels": "one"}])
def test_training_goes_on_after_fit(options, tmp_path):
    (X, y), *chunks = growing_stream()
    model = small(passes=3, **options).fit(X, y)
    model.save(tmp_path / "model.treemax", resume=True)
    loaded = treemax.load(tmp_path / "model.treemax")
    check_same(model, loaded)
    before = model.predict_topk(X, 3)
    for X, y in chunks:
        for each in (model, loaded):
            each.partial_fit(X, y)
    check_same(model, loaded)
    assert before.scores.shape == (30, 3) and model.n_examples_ == 240


@pytest.mark.parametrize("arity", [2, 3, 7])
def test_the_tree_grows_with_the_labels(arity):
    """Every label has a leaf, and nodes have room left nowhere but in one."""
    model = small(arity=arity, tree="random")
    model.partial_fit(np.eye(40, dtype=np.float32)[:1], [0])
    for n in range(2, 40):
        grown = model.model_
        grown.grow(40, n)
        tree = check_well_formed(grown.structure, arity, n)
        inner = tree.n_children[tree.n_children > 0]
        assert (inner < arity).sum() <= 1 and tree.depth <= np.ceil(np.log(n) / np.log(arity) - 1e-9) + 1
        after = grown.probabilities(np.eye(40, dtype=np.float32))
        np.testing.assert_allclose(after.sum(axis=1), 1.0, rtol=1e-5)
        model.partial_fit(np.eye(40, dtype=np.float32)[:n], np.arange(n))
        assert len(model.classes_) == n


def test_a_child_that_is_added_leaves_the_others_their_proportions():
    model = small(arity=5, tree="random").partial_fit(np.eye(6, dtype=np.float32)[:2], [0, 1])
    grown, rows = model.model_, np.eye(6, dtype=np.float32)
    model.partial_fit(rows[:2], [1, 0])
    for n in (3, 4, 5):
        before = grown.probabilities(rows)
        grown.grow(6, n)
        after = grown.probabilities(rows)[:, : n - 1]
        np.testing.assert_allclose(after / after.sum(axis=1, keepdims=True), before, atol=1e-6)
        grown.counts = np.zeros(n, dtype=np.int64)


def test_means_are_of_the_rows_of_a_label():
    model, chunks = small(dimension=5), list(growing_stream(3))
    model.partial_fit(*chunks[0])
    growing = model.model_
    expected, seen = np.array(growing.means, dtype=np.float64), np.array(model.label_counts_)
    learn = growing._learn_block
    growing._learn_block = lambda *arguments: (learn(*arguments), blocks.append(growing.embeddings.copy()))
    blocks = []
    model.set_params(stream_assign_every=10**6).partial_fit(*chunks[1])
    (embeddings,) = blocks  # after the step, which is when means are updated
    X, y = chunks[1]
    expected = np.vstack([expected, np.zeros((len(model.classes_) - len(expected), expected.shape[1]))])
    seen = np.concatenate([seen, np.zeros(len(expected) - len(seen), dtype=np.int64)])
    places, dense = growing.places, X.toarray().astype(np.float64) * float(growing.scale)
    known = np.flatnonzero(places[: dense.shape[1]] >= 0)
    for row, label in zip(dense, y):
        number = model.classes_.tolist().index(label)
        seen[number] += 1
        hidden = row[known] @ embeddings[places[known]]
        expected[number] += (hidden - expected[number]) / min(seen[number], HORIZON)
    np.testing.assert_allclose(growing.means, expected, atol=1e-5)
    del growing._learn_block


def test_running_sums_are_of_the_rows_of_a_label():
    """At the root, which no assignment resets once it is full: sums of probabilities just before each step."""
    X, y, _ = grouped_problem(n_rows=80)
    model = small(arity=4, statistics="running", stream_assign_every=25)
    model.partial_fit(np.ones((4, X.shape[1]), dtype=np.float32), [100, 101, 102, 103])  # all features, a full root
    expected, seen = {}, {}
    for row, label in zip(X, y.tolist()):
        growing = model.model_
        assert growing.structure.n_children[0] == 4
        hidden = float(growing.scale) * row.astype(np.float64) @ growing.embeddings[growing.places]
        expected[label] = expected.get(label, 0) + node_shares(hidden, growing.weights, growing.biases, 0, 4)
        seen[label] = seen.get(label, 0) + 1
        model.partial_fit(row[np.newaxis], [label])
    sums, classes = model.model_.sums, model.classes_.tolist()
    at_root = {classes[key]: place for place, key in enumerate(sums.keys.tolist()) if key < len(classes)}
    assert len(seen) > 10
    for label, n in seen.items():
        assert sums.seen[at_root[label]] == n
        np.testing.assert_allclose(sums.sums[at_root[label]], expected[label], atol=1e-4)


def test_labels_are_assigned_as_rows_arrive(monkeypatch):
    X, y, _ = grouped_problem(n_rows=8000)
    plain, times = GrowingTree.assign, []

    def assign(tree):
        times.append(int(tree.counts.sum()))
        plain(tree)

    monkeypatch.setattr(GrowingTree, "assign", assign)
    model = small(stream_assign_every=30)
    for start in range(0, 200, 70):
        model.partial_fit(X[start : start + 70][: 200 - start], y[start : start + 70][: 200 - start])
    assert times == [30, 60, 90, 120, 150, 180]
    times.clear()
    model = small(stream_assign_every="auto").partial_fit(X, y)
    assert times[0] == FIRST_ASSIGNMENT and len(times) == 3
    assert all(after == max(before + FIRST_ASSIGNMENT, np.ceil(GROWTH * before)) for before, after in pairwise(times))
    times.clear()
    small(tree="random").partial_fit(X[:300], y[:300])
    small(tree="huffman").partial_fit(X[:300], y[:300])
    assert not times


@pytest.mark.parametrize("statistics", ["means", "running"])
def test_a_stream_finds_the_groups(statistics):
    """From the order in which labels came, those that share their words come to stand together."""
    X, y, group = grouped_problem(n_rows=4000)

    def together(model):
        tree, groups = model.label_tree(), group[model.classes_]
        parents = tree.parent[tree.leaf_of]
        pairs = [(a, b) for a, b in combinations(range(16), 2) if parents[a] == parents[b]]
        return np.mean([groups[a] == groups[b] for a, b in pairs])

    found = []
    for seed in range(3):
        order = np.random.RandomState(seed).permutation(len(y))
        models = [
            small(arity=4, dimension=16, tree=tree, statistics=statistics, stream_assign_every=200)
            for tree in ("learned", "random")
        ]
        for start in range(0, len(y), 100):
            part = order[start : start + 100]
            for model in models:
                model.partial_fit(X[part], y[part])
        found.append([together(model) for model in models])
    learned, fixed = np.mean(found, axis=0)
    assert learned > fixed + 0.3


def test_own_trees_take_the_labels_that_were_announced():
    X, y = example_data()
    model = LearnedTree(tree=OWN, verbose=0).partial_fit(X[:50], y[:50], classes=np.unique(y))
    for _ in range(5):
        model.partial_fit(X, y)
    assert model.score(X, y) > 0.9
    tree, classes = model.label_tree(), model.classes_.tolist()
    leaves = tree.leaf_of
    assert tree.parent[leaves[classes.index("ant")]] == tree.parent[leaves[classes.index("bee")]]
    for begun in (model, LearnedTree(tree=OWN, passes=2, verbose=0).fit(X, y)):
        before = begun.predict_proba(X)
        with pytest.raises(ValueError, match=r"hierarchy of yours\. Pass all labels as classes"):
            begun.partial_fit(X, np.where(y == "ant", "auk", y))
        np.testing.assert_array_equal(begun.predict_proba(X), before)


def test_statistics_of_all_rows_are_refused():
    X, y = example_data()
    with pytest.raises(ValueError, match="statistics='rows' needs all rows at once"):
        LearnedTree(statistics="rows", verbose=0).partial_fit(X, y)
    model = LearnedTree(verbose=0).partial_fit(X, y)
    for name, value in (("arity", 3), ("dimension", 7), ("statistics", "running"), ("tree", "random")):
        with pytest.raises(ValueError, match=f"{name} cannot be changed in the middle of a stream"):
            model.set_params(**{name: value}).partial_fit(X, y)
        model.set_params(**{name: getattr(LearnedTree(), name)})
    with pytest.raises(ValueError, match="max_depth must be at least 2 for 21 labels"):
        model.set_params(max_depth=1).partial_fit(X[:14], [f"new {i}" for i in range(14)])
    assert len(model.classes_) == 7


def test_a_model_saved_without_its_learning_state_keeps_its_tree(tmp_path):
    X, y, _ = grouped_problem(n_rows=400)
    for model in (small().partial_fit(X, y), small(passes=5).fit(X, y)):
        model.save(tmp_path / "model.treemax")
        loaded = treemax.load(tmp_path / "model.treemax")
        before, score = loaded.label_tree().label.tolist(), loaded.score(X, y)
        with pytest.warns(
            UserWarning, match="saved without its learning state: steps start afresh, and its tree is fixed"
        ):
            loaded.partial_fit(X, y)
        assert loaded.label_tree().label.tolist() == before
        assert loaded.score(X, y) > score - 0.1
        loaded.partial_fit(X[:1], [99])
        assert len(loaded.classes_) == 17


def test_only_features_that_occur_have_embeddings():
    X = sp.csr_matrix(([1.0, 2.0, 1.0], ([0, 1, 1], [5, 900, 5])), shape=(2, 1000))
    model = small().partial_fit(X, ["a", "b"])
    assert model.model_.n_embeddings == 2 and len(model.model_.packed().embeddings) == 2
    more = sp.csr_matrix(([1.0], ([0], [77])), shape=(1, 2000))
    model.partial_fit(more, ["c"])
    assert model.model_.n_embeddings == 3 and model.n_features_in_ == 2000
    assert model.model_.packed().features.tolist() == [5, 77, 900]
    other = small().partial_fit(more, ["c"])  # the first numbers of an embedding depend on the feature only
    drawn = [m.model_.embeddings[m.model_.places[77]] for m in (small().partial_fit(more, ["c"]), other)]
    np.testing.assert_array_equal(*drawn)
    assert np.abs(drawn[0][:8]).max() > 0 and not drawn[0][8:].any()


def test_several_labels_in_a_stream():
    random = np.random.default_rng(0)
    y = [sorted(set(random.integers(0, 6, 1 + row % 3).tolist())) if row % 5 else [] for row in range(400)]
    X = np.zeros((400, 6), dtype=np.float32)
    for row, labels in enumerate(y):
        X[row, labels] = 1.0
    model = small()
    for start in range(0, 400, 50):
        model.partial_fit(X[start : start + 50], y[start : start + 50])
    mean = sum(map(len, y)) / sum(map(bool, y))
    assert model.model_.labels_a_row == pytest.approx(mean)
    assert treemax.metrics.precision_at_k(y, model.predict_topk(X, 1).labels, 1) > 0.7


def test_long_rows_are_shortened():
    model = small().partial_fit(np.eye(3, dtype=np.float32), [0, 1, 2])
    rows = treemax.inputs.rows.as_rows(sp.csr_matrix(np.diag([1.0, 1e9, 2.0]).astype(np.float32)))
    lengths = np.linalg.norm(model.model_._shortened(rows).to_scipy().toarray(), axis=1)
    np.testing.assert_allclose(lengths, [1.0, LONGEST, 2.0], rtol=1e-6)
    assert power_of_two(0.6) == 0.5 and power_of_two(3.1) == 4.0


def test_copies_of_a_stream_learn_on_their_own():
    chunks = list(growing_stream())
    model = small().partial_fit(*chunks[0])
    model.predict(chunks[0][0])  # makes the view of it
    other = copy.deepcopy(model)
    for X, y in chunks[1:]:
        model.partial_fit(X, y)
        other.partial_fit(X, y)
        np.testing.assert_array_equal(model.predict_proba(X), other.predict_proba(X))
    check_same(model, other)
