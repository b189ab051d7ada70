"""Hierarchies in all supported forms give the same tree, features of labels, and error messages."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone

import treemax
from treemax.inputs.labels import LabelIndex
from treemax.inputs.rows import as_rows
from treemax.models.label_tree import training
from treemax.trees import (
    Tree,
    complete_tree,
    given_vectors,
    hierarchy_arrays,
    hierarchy_from_arrays,
    refine_tree,
    tree_of,
)
from treemax.trees.kmeans import unit_rows

ANIMALS = {"animal": {"mammal": ["cat", "dog"], "bird": ["owl", "tit"]}, "fern": {}}
EDGES = [
    ("animal", "mammal"),
    ("animal", "bird"),
    ("mammal", "cat"),
    ("mammal", "dog"),
    ("bird", "owl"),
    ("bird", "tit"),
]
LABELS = LabelIndex(["cat", "dog", "fern", "owl", "tit"])


def shape(tree):
    """A tree as nested sets of labels, whatever the order of its nodes."""
    below = {}
    for node in range(len(tree) - 1, -1, -1):
        children = tree.children(node)
        below[node] = frozenset(below[child] for child in children) if children else int(tree.label[node])
    return below[0]


def groups(*parts):
    return frozenset(groups(*part) if isinstance(part, tuple) else part for part in parts)


# --- forms ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "hierarchy",
    [
        ANIMALS,
        EDGES,
        [list(edge) for edge in EDGES],
        np.array(EDGES),
        {child: parent for parent, child in EDGES},
        {**{child: parent for parent, child in EDGES}, "animal": None},
        {"animal": {"bird": {"owl", "tit"}, "mammal": ("cat", "dog")}},
    ],
)
def test_every_form_gives_the_same_groups(hierarchy):
    assert shape(tree_of(hierarchy, LABELS)) == groups(2, ((0, 1), (3, 4)))


def test_parent_arrays():
    """Nodes 0 to 4 are the labels, 5 mammals, 6 birds, 7 animals."""
    parents = [5, 5, -1, 6, 6, 7, 7, -1]
    expected = groups(2, ((0, 1), (3, 4)))
    for array in (parents, tuple(parents), np.array(parents), np.array(parents, dtype=np.int16)):
        assert shape(tree_of(array, LABELS)) == expected
        assert shape(tree_of(array, LabelIndex([0, 1, 2, 3, 4]))) == expected
    # Integer labels are nodes by their value, strings by their order: a label that y lacks is dropped, or noticed.
    assert shape(tree_of(parents, LabelIndex([1, 3, 4]))) == groups(0, (1, 2))
    with pytest.raises(ValueError, match=r"Node 4 .* no children.*only 4"):
        tree_of(parents, LabelIndex(["cat", "dog", "fern", "owl"]))
    with pytest.raises(ValueError, match=r"node 1 of the parent array has parent 8"):
        tree_of([1, 8], LabelIndex([0, 1]))


def test_a_tree_as_it_is():
    tree = complete_tree(5, 2, 2)
    assert tree_of(tree, LABELS) is tree
    with pytest.raises(ValueError, match="6 labels and y has 5"):
        tree_of(complete_tree(6, 2, 2), LABELS)


def test_labels_that_are_inner_nodes_or_unknown():
    labels = LabelIndex(["animal", "cat", "dog", "stone"])
    assert shape(tree_of(ANIMALS, labels)) == groups(3, (0, (1, 2)))
    # Cats and dogs are all that is left of the animals: the chain above them decides nothing.
    assert shape(tree_of(ANIMALS, LabelIndex(["cat", "dog"]))) == groups(0, 1)


def test_labels_unlike_the_hierarchy():
    with pytest.raises(ValueError, match=r"none of the 2 labels: they are like 0, its nodes like 'mammal'"):
        tree_of(EDGES, LabelIndex([0, 1]))


@pytest.mark.parametrize(
    ("hierarchy", "words"),
    [
        ([("a", "b", "c")], "pair"),
        (["ab"], "pair"),
        ([("a", "b"), ("b", "a"), ("b", "cat")], "cycle"),
        ({"a": {"cat": 3}}, "below 'cat'"),
        ([("a", 1.5)], "strings or integers"),
        ([(("a",), "cat")], "strings or integers"),
        (7, "got int"),
    ],
)
def test_errors_for_people(hierarchy, words):
    with pytest.raises(ValueError, match=words):
        tree_of(hierarchy, LABELS)


def test_very_deep_chains():
    """Five thousand levels, each with a label of its own."""
    depth = 5000
    edges = [(f"n{i}", f"n{i + 1}") for i in range(depth)] + [(f"n{i}", i) for i in range(depth)]
    tree = tree_of(edges, LabelIndex(range(depth)))
    assert tree.depth == depth - 1
    only = tree_of(edges, LabelIndex([depth - 1, 3]))
    assert only.depth == 1 and only.n_labels == 2


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_hierarchy_of_any_labels(data):
    """A random forest over numbers: every label has its leaf below the leaf's ancestors, in every form."""
    n = data.draw(st.integers(2, 25))
    parents = [-1] + [data.draw(st.integers(-1, i - 1)) for i in range(1, n)]
    names = data.draw(st.lists(st.integers(0, n + 3), min_size=1, max_size=n, unique=True))
    if not set(names) & ({p for p in parents if p >= 0} | {i for i, p in enumerate(parents) if p >= 0}):
        return
    labels = LabelIndex(sorted(names))
    edges = [(parent, child) for child, parent in enumerate(parents) if parent >= 0]
    tree = tree_of(edges, labels)
    assert shape(tree) == shape(tree_of(parents, labels))
    for form in (edges, parents):
        again = hierarchy_from_arrays(hierarchy_arrays(form))
        assert np.array_equal(tree_of(again, labels).label, tree.label)

    def ancestors(node):
        found = {node} if 0 <= node < n else set()
        while 0 <= node < n and parents[node] >= 0:
            node = parents[node]
            found.add(node)
        return found

    def depth_together(a, b):  # levels that two leaves share
        one, other = path(a), path(b)
        return sum(x == y for x, y in zip(one, other))

    def path(label):
        node, found = int(tree.leaf_of[label]), []
        while node >= 0:
            found.append(node)
            node = int(tree.parent[node])
        return found[::-1]

    ids = range(len(labels))
    order = labels.classes.tolist()
    for a in ids:
        for b in ids:
            for c in ids:
                shared_ab = ancestors(order[a]) & ancestors(order[b])
                shared_ac = ancestors(order[a]) & ancestors(order[c])
                if len({a, b, c}) == 3 and shared_ab > shared_ac:
                    assert depth_together(a, b) >= depth_together(a, c)


# --- wide nodes ----------------------------------------------------------------------------------------


def test_wide_nodes_are_divided_by_what_is_below():
    """Three hundred labels under one node, three kinds of them: what is alike comes together, what the
    hierarchy says stays."""
    n = 300
    vectors = unit_rows(as_rows(sp.csr_matrix(np.eye(3)[np.arange(n) % 3] + 0.01)))
    tree = tree_of([("left", i) for i in range(n)] + [("right", i) for i in range(n, n + 5)], LabelIndex(range(n + 5)))
    padded = sp.vstack([vectors.to_scipy(), sp.csr_matrix((5, 3))], format="csr")
    fine = refine_tree(tree, as_rows(padded.astype(np.float32)), max_leaf=100)
    assert fine.n_children.max() <= 100 and fine.n_labels == n + 5
    left = fine.parent[fine.leaf_of[0]]
    kinds = {}
    for label in range(n):
        kinds.setdefault(int(fine.parent[fine.leaf_of[label]]), set()).add(label % 3)
    assert left in kinds and all(len(kind) == 1 for kind in kinds.values())
    top = [{int(x) for x in members(fine, child)} for child in fine.children(0)]
    assert sorted(map(len, top)) == [5, n]
    assert refine_tree(tree, as_rows(padded.astype(np.float32)), max_leaf=n) is tree


def members(tree, node):
    return (
        [tree.label[node]]
        if tree.label[node] >= 0
        else [label for child in tree.children(node) for label in members(tree, child)]
    )


def test_wide_nodes_of_inner_nodes():
    """Children that are themselves branches: divided as wholes."""
    edges = [(f"b{i // 2}", i) for i in range(40)]
    labels = LabelIndex(range(40))
    vectors = unit_rows(as_rows(sp.csr_matrix(np.random.RandomState(0).uniform(size=(40, 6)))))
    fine = refine_tree(tree_of(edges, labels), vectors, max_leaf=4)
    assert fine.n_children.max() == 5  # of 20: five groups of four
    for i in range(0, 40, 2):
        assert fine.parent[fine.leaf_of[i]] == fine.parent[fine.leaf_of[i + 1]]


# --- in a model ----------------------------------------------------------------------------------------


def animals(n_rows=200, seed=0):
    random = np.random.RandomState(seed)
    y = random.choice(LABELS.classes, n_rows)
    X = (np.eye(5)[LABELS.ids(y)] + 0.2 * random.uniform(size=(n_rows, 5))).astype(np.float32)
    return X, y


@pytest.mark.parametrize("hierarchy", [EDGES, ANIMALS, np.array([5, 5, -1, 6, 6, 7, 7, -1]), complete_tree(5, 2, 2)])
def test_a_model_over_ones_own_hierarchy(hierarchy, tmp_path):
    X, y = animals()
    model = clone(treemax.LabelTree(tree=hierarchy, n_trees=2, verbose=0)).fit(X, y)
    assert model.score(*animals(seed=1)) > 0.97
    assert shape(model.model_.trees[0].tree) == shape(tree_of(hierarchy, LABELS))
    assert model.describe()["depth"] == model.model_.trees[0].tree.depth > 1
    model.save(tmp_path / "model.treemax")
    loaded = treemax.load(tmp_path / "model.treemax")
    assert np.array_equal(loaded.predict_proba(X), model.predict_proba(X))
    again = clone(loaded).fit(X, y)  # the hierarchy is in the file
    assert np.array_equal(again.predict_proba(X), model.predict_proba(X))
    again.save(tmp_path / "again.treemax")
    np.testing.assert_array_equal(treemax.load(tmp_path / "again.treemax").predict(X), model.predict(X))
    assert isinstance(loaded.tree, dict | np.ndarray | Tree)


def test_multi_label_and_text():
    y = [["cat", "owl"], ["dog"], [], ["fern", "tit"]] * 10
    texts = ["cat owl", "dog", "nothing at all", "fern tit"] * 10
    estimator = treemax.LabelTree(tree=EDGES, verbose=0)
    model = treemax.TextModel(treemax.HashingText(bits=10), estimator).fit(texts, y)
    assert model.predict(texts[:4]) == y[:4]
    model.fit(texts, y, label_features={name: np.eye(5)[i] for i, name in enumerate(LABELS.classes)})
    assert model.predict(texts[:4]) == y[:4]


def test_a_hierarchy_that_does_not_fit_leaves_the_model_as_it_was():
    X, y = animals()
    model = treemax.LabelTree(verbose=0).fit(X, y)
    before = model.predict_proba(X)
    for wrong, words in (([*EDGES, ("cat", "animal")], "cycle"), ("ball", "tree must be one of"), (3.5, "tree")):
        with pytest.raises(ValueError, match=words):
            model.set_params(tree=wrong).fit(X, y)
    np.testing.assert_array_equal(model.set_params(tree="kmeans").predict_proba(X), before)


# --- features of labels --------------------------------------------------------------------------------


def test_label_features_in_every_form():
    labels = LabelIndex(["a", "b", "c"])
    matrix = np.array([[3.0, 4.0, 0.0], [0.0, 0.0, 2.0], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    names = ["c", "a", "b", "unused"]
    expected = np.array([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0], [0.6, 0.8, 0.0]])
    forms = [
        (names, matrix),
        (np.array(names), sp.csc_matrix(matrix)),
        dict(zip(names, matrix)),
        {name: sp.csr_matrix(row) for name, row in zip(names, matrix)},
        {name: row.tolist() for name, row in zip(names, matrix)},
    ]
    for form in forms:
        np.testing.assert_allclose(given_vectors(form, labels).to_scipy().toarray(), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("label_features", "words"),
    [
        (np.eye(2), "mapping"),
        ((["a", "b"], np.eye(3)), "2 labels and 3 rows"),
        ((["a", "a"], np.eye(2)), "two rows"),
        ((["a"], np.eye(1)), r"no row for 1 of the 2 labels of y, such as 'b'"),
        ((["a", "b"], [[1.0], [np.nan]]), "NaN"),
        ({"a": [1.0, 2.0], "b": [1.0]}, "label_features"),
    ],
)
def test_label_features_that_do_not_fit(label_features, words):
    with pytest.raises(ValueError, match=words):
        given_vectors(label_features, LabelIndex(["a", "b"]))


def test_label_features_group_the_labels():
    """Examples say nothing of the groups here, the features of the labels everything."""
    random = np.random.RandomState(0)
    y = random.randint(0, 40, 600)
    X = np.eye(40, dtype=np.float32)[y]
    features = (np.arange(40), np.eye(2)[np.arange(40) % 2] + 0.1 * random.uniform(size=(40, 2)))
    model = treemax.LabelTree(arity=2, max_leaf=20, verbose=0).fit(X, y, label_features=features)
    tree = model.model_.trees[0].tree
    parents = tree.parent[tree.leaf_of]
    assert len(set(parents[::2].tolist())) == len(set(parents[1::2].tolist())) == 1
    assert parents[0] != parents[1]
    for tree_kind in ("random", "complete", "huffman"):
        with pytest.raises(ValueError, match="label_features are not used with tree"):
            treemax.LabelTree(tree=tree_kind, verbose=0).fit(X, y, label_features=features)


def test_unit_rows_are_label_vectors_of_single_rows():
    rows = as_rows(sp.random(20, 200, 0.8, format="csr", random_state=0, dtype=np.float32))
    dense = rows.to_scipy().toarray()
    lengths = np.linalg.norm(dense, axis=1, keepdims=True)
    np.testing.assert_allclose(unit_rows(rows).to_scipy().toarray(), dense / lengths, rtol=1e-5)
    assert unit_rows(rows).nnz == rows.nnz


# --- Ctrl-C and what was chosen ------------------------------------------------------------------------


def interrupted_after(monkeypatch, n_trees):
    """Ctrl-C while a tree is trained, after so many are ready."""
    whole, count = training.train_nodes, []

    def train_nodes(*arguments):
        if len(count) == n_trees:
            raise KeyboardInterrupt
        count.append(1)
        return whole(*arguments)

    monkeypatch.setattr(training, "train_nodes", train_nodes)


def test_trees_that_are_ready_are_kept(monkeypatch, tmp_path):
    X, y = animals()
    interrupted_after(monkeypatch, 2)
    model = treemax.LabelTree(n_trees=5, verbose=0)
    with pytest.raises(treemax.TrainingInterrupted) as stop:
        model.fit(X, y)
    assert stop.value.done == pytest.approx(0.4) and model.describe()["trees"] == 2
    monkeypatch.undo()
    first = treemax.LabelTree(n_trees=5, verbose=0).fit(X, y)
    for one, other in zip(model.model_.trees, first.model_.trees[:2]):
        assert np.array_equal(one.entries, other.entries)
    model.save(tmp_path / "model.treemax")
    assert np.array_equal(treemax.load(tmp_path / "model.treemax").predict(X), model.predict(X))


def test_without_a_tree_nothing_changes(monkeypatch):
    X, y = animals()
    model = treemax.LabelTree(n_trees=2, verbose=0).fit(X, y)
    before, facts = model.predict_proba(X), model.describe()
    interrupted_after(monkeypatch, 0)
    with pytest.raises(KeyboardInterrupt) as stop:
        model.set_params(loss="logistic").fit(X[:100], y[:100])
    assert not isinstance(stop.value, treemax.TrainingInterrupted)
    assert model.describe() == facts and np.array_equal(model.predict_proba(X), before)
    fresh = treemax.LabelTree(verbose=0)
    with pytest.raises(KeyboardInterrupt):
        fresh.fit(X, y)
    assert not hasattr(fresh, "model_") and not hasattr(fresh, "loss_")


def test_the_cost_chosen_is_shown(tmp_path):
    X, y = animals()
    model = treemax.LabelTree(verbose=0).fit(X, y)
    assert model.describe()["loss"] == "squared_hinge" and model.describe()["cost"] == round(model.cost_, 3)
    assert treemax.LabelTree(verbose=0, cost=3.0).fit(X, y).cost_ == 3.0
    model.save(tmp_path / "model.treemax")
    assert treemax.load(tmp_path / "model.treemax").describe() == model.describe()
