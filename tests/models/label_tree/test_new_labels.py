"""Labels added to trained models."""

import threading

import numpy as np
import pytest
import scipy.sparse as sp
from click.testing import CliRunner

import treemax
from treemax import LabelTree, OneVsAll, OnlineLabelTree, SoftmaxTree, TextModel
from treemax.checks.examples import CLASSES, example_data, example_lists
from treemax.cli.main import commands

QUIET = {"verbose": 0}
NEW = ["fox", "gnu"]
FORMS = [np.asarray, sp.csr_matrix]


def split(form=np.asarray, lists=False, n_few=5):
    """Rows without the labels NEW, and a few rows with them."""
    X, y = example_lists() if lists else example_data()
    has_new = np.array([bool(set(row) & set(NEW)) for row in (y if lists else [[label] for label in y])])
    few = np.flatnonzero(has_new)[: (20 if lists else 2 * n_few)]
    take = (lambda rows: [y[i] for i in rows]) if lists else (lambda rows: y[rows])
    old = np.flatnonzero(~has_new)
    return form(X[old]), take(old), form(X[few]), take(few), form(X[has_new]), take(np.flatnonzero(has_new))


def node_bits(model, tree=0):
    """Weights of all children of every node, by the path of labels below it: the node's table, unpacked."""
    from treemax.models.label_tree.new_labels import node_of, unpack  # the bits of nodes are not public

    packed = model.model_.trees[tree]
    found = {}
    for node in np.flatnonzero(packed.tree.n_children).tolist():
        part = unpack(node_of(packed, node))
        feature = np.repeat(part.features, np.diff(part.starts))
        for child, below in enumerate(packed.tree.children(node)):
            labels = frozenset(model.label_index_.labels(packed.tree.below(below)[0]).tolist()) - set(NEW)
            own = part.children == child
            key = (node == 0, packed.tree.n_children[below] == 0, labels)
            found[key] = (dict(zip(feature[own].tolist(), part.weights[own].tolist())), float(part.biases[child]))
    return found


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "options", [{}, {"n_trees": 3}, {"precision": "int8"}, {"penalty": "l1"}, {"loss": "logistic"}]
)
def test_new_labels_are_found_and_others_keep_their_weights(tmp_path, form, options):
    X, y, X_few, y_few, X_new, y_new = split(form)
    model = LabelTree(max_leaf=2, arity=2, **options, **QUIET).fit(X, y)
    before = node_bits(model)
    path = tmp_path / "model.treemax"
    model.save(path)
    assert model.add_labels(X_few, y_few) is model
    assert model.classes_.tolist() == [*CLASSES[:5], *NEW]
    assert model.describe()["label_changes"] == [{"added": 2}] and model.describe()["labels"] == 7
    assert model.label_counts_.tolist() == [30] * 5 + [5, 5] and model.n_examples_ == len(y) + len(y_few)
    after = node_bits(model)
    assert all(after[key] == weights for key, weights in before.items()), "weights of known labels have changed"
    assert model.score(X_new, y_new) >= 0.8
    assert model.score(X, y) >= 0.9
    loaded = treemax.load(path).add_labels(X_few, y_few)
    np.testing.assert_array_equal(loaded.predict_topk(X_new, 7).labels, model.predict_topk(X_new, 7).labels)
    model.save(path)
    again = treemax.load(path)
    np.testing.assert_array_equal(again.predict_proba(X_new), model.predict_proba(X_new))
    assert again.describe() == model.describe()
    explained = again.explain(X_new[:1], label="fox")
    assert explained.label == "fox"


@pytest.mark.parametrize("form", FORMS)
def test_probabilities_of_known_labels_of_a_multi_label_model_stay(form):
    X, y, X_few, y_few, X_new, y_new = split(form, lists=True)
    model = LabelTree(max_leaf=2, arity=2, search="exact", **QUIET).fit(X, y)
    before = model.predict_proba(X_new)
    model.add_labels(X_few, y_few)
    np.testing.assert_array_equal(model.predict_proba(X_new)[:, :5], before)
    of_new = model.predict_proba(X_new)[:, 5:]
    right = np.array([[label in row for label in NEW] for row in y_new])
    assert of_new[right].mean() > 2 * of_new[~right].mean()


def test_rows_of_known_labels_are_examples_of_what_new_labels_are_not():
    X, y, X_few, y_few, _, _ = split()
    alone = LabelTree(**QUIET).fit(X, y).add_labels(X_few, y_few)
    both = LabelTree(**QUIET).fit(X, y).add_labels(np.vstack([X_few, X[:50]]), np.concatenate([y_few, y[:50]]))
    of_new = [model.predict_proba(X)[:, 5:].mean() for model in (alone, both)]
    assert of_new[1] < of_new[0]


HIERARCHY = {"small": ["ant", "bee"], "large": {"pets": ["cat", "dog"], "wild": ["eel"]}}


def test_parents_from_the_hierarchy_and_by_name():
    X, y, X_few, y_few, _, _ = split()
    given = {**dict.fromkeys(("ant", "bee"), "small"), "cat": "pets", "dog": "pets", "pets": "large", "eel": "wild",
             "wild": "large"}  # fmt: skip
    model = LabelTree(tree=HIERARCHY, **QUIET).fit(X, y).add_labels(X_few, y_few, parent={"fox": "pets", "gnu": "ant"})
    assert siblings(model, "fox") == {"cat", "dog", "fox"} and siblings(model, "gnu") == {"ant", "bee", "gnu"}
    assert model.tree == {**given, "fox": "pets", "gnu": "ant"}
    known = {**given, "fox": "small", "gnu": "hoofed", "hoofed": "large"}
    model = LabelTree(tree=known, **QUIET).fit(X, y).add_labels(X_few, y_few)
    assert siblings(model, "fox") == {"ant", "bee", "fox"}
    assert siblings(model, "gnu") == {"eel", "gnu"}  # a child of "large", whose other child has no label
    with pytest.raises(ValueError, match="parent of 'fox' is 'plant'"):
        LabelTree(tree=HIERARCHY, **QUIET).fit(X, y).add_labels(X_few, y_few, parent={"fox": "plant"})
    with pytest.raises(ValueError, match="parent has 'ant'"):
        model = LabelTree(tree=HIERARCHY, **QUIET).fit(X, y)
        model.add_labels(X_few, y_few, parent={"ant": "small"})
    with pytest.raises(ValueError, match="dictionary"):
        model.add_labels(X_few, y_few, parent=["small"])
    assert len(model.classes_) == 5 and "label_changes" not in model.describe()


def siblings(model, label):
    tree = model.label_tree()
    parent = tree.parent[tree.leaf_of[model.label_index_.ids([label])[0]]]
    own = tree.label[list(tree.children(parent))]
    return set(model.label_index_.labels(own[own >= 0]).tolist())


def test_wrong_rows_change_nothing():
    X, y, X_few, y_few, _, _ = split()
    model = LabelTree(**QUIET).fit(X, y)
    before = model.predict_proba(X)
    for wrong, labels, words in [
        (X[:3], y[:3], "no new label"), (X_few, y_few[:3], "rows"), (X_few[:, :5], y_few, "features"),
        (X_few, [[label] for label in y_few], "multi-label"), (X_few, np.arange(len(y_few)), "strings"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=words):
            model.add_labels(wrong, labels)
    np.testing.assert_array_equal(model.predict_proba(X), before)
    with pytest.raises(ValueError, match="label lists"):
        LabelTree(**QUIET).fit(X, [[label] for label in y]).add_labels(X_few, y_few)
    with pytest.raises(ValueError, match=r"SoftmaxTree cannot add labels.*LabelTree.*OnlineLabelTree"):
        SoftmaxTree(**QUIET).fit(X, y).add_labels(X_few, y_few)


def test_columns_of_an_indicator_matrix():
    X, y = example_data()
    columns = np.eye(7, dtype=int)[np.searchsorted(CLASSES, y)]
    known = columns[:, 5:].sum(axis=1) == 0
    model = LabelTree(**QUIET).fit(X[known], columns[known][:, :5])
    model.add_labels(X[~known], columns[~known])
    assert model.predict(X).shape == columns.shape
    assert (model.predict(X) == columns).mean() > 0.9
    with pytest.raises(ValueError, match="Column 8"):
        more = np.hstack([columns, np.zeros((len(columns), 2), dtype=int)])
        more[0, 7] = 1
        model.add_labels(X, more)


def test_forgotten_labels_are_removed_first():
    X, y, X_few, y_few, X_new, y_new = split()
    model = LabelTree(**QUIET).fit(X, y).forget(["bee"])
    model.add_labels(np.vstack([X_few, X[y == "bee"][:5]]), [*y_few, *["bee"] * 5])
    assert model.classes_.tolist() == ["ant", "cat", "dog", "eel", "bee", "fox", "gnu"]
    assert model.describe()["label_changes"] == [{"forgot": 1}, {"added": 3}]
    assert model.score(X_new, y_new) >= 0.8 and model.score(X[y == "bee"], y[y == "bee"]) >= 0.8


def test_weights_of_rows():
    X, y, X_few, y_few, _, _ = split()
    zero = np.where(y_few == "gnu", 0.0, 1.0)
    model = LabelTree(**QUIET).fit(X, y).add_labels(X_few, y_few, sample_weight=zero)
    assert model.classes_.tolist()[5:] == ["fox"]
    assert model.label_weights_.tolist() == [30.0] * 5 + [5.0]


def test_rows_without_features_are_only_counted():
    """They must not make a new label probable for every row."""
    X, y, few, labels, others, _ = split(sp.csr_matrix)
    empty = sp.csr_matrix((1, X.shape[1]), dtype=X.dtype)
    with_them, without = (LabelTree(**QUIET).fit(X, y) for _ in range(2))
    with_them.add_labels(sp.vstack([few, empty, empty]), [*labels, NEW[0], y[0]])
    without.add_labels(few, labels)
    np.testing.assert_array_equal(with_them.predict_topk(others, 3).labels, without.predict_topk(others, 3).labels)
    assert with_them.n_examples_ == without.n_examples_ + 2
    assert with_them.label_counts_[-2] == without.label_counts_[-2] + 1
    assert with_them.predict_proba_of(empty, [NEW[0]]) > 1.5 * without.predict_proba_of(empty, [NEW[0]])
    before = without.predict_topk(X, 3)
    with pytest.raises(ValueError, match="No row of the new label 'none' has a feature"):
        without.add_labels(sp.vstack([few[:1], empty]), ["some", "none"])
    np.testing.assert_array_equal(without.predict_topk(X, 3).scores, before.scores)


def test_many_labels_go_to_nodes_with_room():
    random = np.random.default_rng(0)
    X, y = random.normal(size=(200, 10)).astype(np.float32), np.repeat(np.arange(20), 10)
    model = LabelTree(max_leaf=5, arity=2, **QUIET).fit(X, y)
    model.add_labels(np.tile(X[:1], (20, 1)), np.arange(100, 120))
    assert model.label_tree().n_children.max() <= 11
    assert model.label_tree().n_labels == 40


def test_answers_while_labels_are_added():
    X, y, X_few, y_few, _, _ = split()
    model = LabelTree(**QUIET).fit(X, y)
    errors = []

    def ask():
        try:
            for _ in range(30):
                assert model.predict_topk(X, 3).labels.shape == (len(y), 3)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    adders = [threading.Thread(target=model.add_labels, args=(X_few[y_few == label], [label] * 5)) for label in NEW]
    for thread in threads + adders:
        thread.start()
    for thread in threads + adders:
        thread.join()
    assert not errors and set(model.classes_) == set(CLASSES)


@pytest.mark.parametrize("kind", [OnlineLabelTree, OneVsAll])
def test_online_models_learn_them(kind):
    X, y, X_few, y_few, X_new, _ = split()
    model = kind(**QUIET).fit(X, y).add_labels(X_few, y_few)
    same = kind(**QUIET).fit(X, y).partial_fit(X_few, y_few)
    np.testing.assert_array_equal(model.predict_topk(X_new, 3).labels, same.predict_topk(X_new, 3).labels)
    assert model.describe()["label_changes"] == [{"added": 2}]
    assert type(model).from_parts(*model.to_parts()).describe()["label_changes"] == [{"added": 2}]
    with pytest.raises(ValueError, match="leave out parent"):
        model.add_labels(X_few, y_few, parent={})


TEXTS = ["red apple", "sweet apple", "green pear", "ripe pear", "fast car", "old car"] * 5
LABELS = ["apple", "apple", "pear", "pear", "car", "car"] * 5


def test_texts_bring_new_words(tmp_path):
    model = TextModel(estimator=LabelTree(**QUIET)).fit(TEXTS, LABELS)
    names = model.vectorizer.get_feature_names_out().tolist()
    model.add_labels(["quick bicycle", "old bicycle", "red bicycle"], ["bicycle"] * 3)
    assert model.vectorizer.get_feature_names_out().tolist() == [*names, "bicycle", "quick"]
    model.save(tmp_path / "model.treemax")
    for each in (model, treemax.load(tmp_path / "model.treemax")):
        assert each.predict(["green bicycle", "ripe pear", "old car"]).tolist() == ["bicycle", "pear", "car"]
    with pytest.raises(ValueError, match="no new label"):
        model.add_labels(["silver tram"], ["car"])
    assert "tram" not in model.vectorizer.get_feature_names_out(), "a failed call has changed the vocabulary"


def test_command_line(tmp_path):
    rows = [f"__label__{label} {text}" for label, text in zip(LABELS, TEXTS)]
    (tmp_path / "data.txt").write_text("\n".join(rows))
    (tmp_path / "new.txt").write_text("__label__bicycle quick bicycle\n__label__bicycle old bicycle\n")
    (tmp_path / "parents.txt").write_text("bicycle\tcar\n")
    path, new = str(tmp_path / "model.treemax"), str(tmp_path / "new.treemax")
    treemax.TextModel(estimator=LabelTree(**QUIET)).fit(TEXTS, LABELS).save(path)
    run = CliRunner().invoke
    options = ["--add", str(tmp_path / "new.txt"), "--parents", str(tmp_path / "parents.txt"), "-o", new]
    result = run(commands, ["labels", path, *options], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert treemax.load(new).predict(["red bicycle"]).tolist() == ["bicycle"]
    result = run(commands, ["labels", path, "--parents", str(tmp_path / "parents.txt"), "-o", new])
    assert result.exit_code == 2 and "--add" in result.output
