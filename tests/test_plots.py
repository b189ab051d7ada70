"""Plots show what the model recorded."""

import json

import numpy as np
import pytest
import scipy.sparse as sp

import treemax

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")


@pytest.fixture(scope="module")
def forest():
    random = np.random.RandomState(0)
    y = random.randint(12, size=300)
    X = random.normal(size=(12, 5))[y] + 0.5 * random.normal(size=(300, 5))
    return treemax.SoftmaxForest(n_trees=2, depth=2, leaf_classes=4, iterations=3, verbose=0).fit(X, y)


def test_the_history_has_a_line_a_tree_and_a_point_a_depth(forest):
    axes = treemax.plot_history(forest)
    assert len(axes.lines) == 2
    for line, state in zip(axes.lines, forest.states_):
        assert np.array_equal(line.get_ydata(), [r.objective for r in state.history], equal_nan=True)
        assert (np.diff(line.get_xdata()) > 0).all()
    errors = axes.figure.axes[1].lines[0]
    whole = [r.error for r in forest.states_[0].history if r.depth == 0]
    assert np.allclose(errors.get_ydata(), 100 * np.array(whole)) and list(errors.get_xdata()) == [1, 2, 3]


def test_it_is_drawn_where_one_wants_it(forest):
    from matplotlib import pyplot

    _, axes = pyplot.subplots()
    assert treemax.plot_history(forest, axes) is axes


def test_what_has_no_history_says_so(forest, tmp_path):
    with pytest.raises(TypeError, match="SoftmaxTree or SoftmaxForest, got LabelTree"):
        treemax.plot_history(treemax.LabelTree())
    with pytest.raises(ValueError, match="fit first"):
        treemax.plot_history(treemax.SoftmaxTree())
    forest.save(tmp_path / "model")
    with pytest.raises(ValueError, match="resume=True"):
        treemax.plot_history(treemax.load(tmp_path / "model"))


# --- the tree over the labels ----------------------------------------------------------------------------


def labelled_rows(n_rows=600, n_labels=40):
    random = np.random.RandomState(1)
    y = random.randint(n_labels, size=n_rows) * random.randint(2, size=n_rows)  # 0 is half of them
    return sp.csr_matrix(random.uniform(size=(n_labels, 30))[y]), np.array([f"label {i:02}" for i in range(40)])[y]


TREES = [
    treemax.LabelTree(arity=3, max_leaf=5, verbose=0),
    treemax.LearnedTree(arity=3, passes=2, verbose=0),
    treemax.OnlineLabelTree(max_leaf=5, verbose=0),
]


@pytest.mark.parametrize("model", TREES, ids=lambda model: type(model).__name__)
def test_the_tree_in_words_has_all_labels_and_examples(model):
    X, y = labelled_rows()
    model.fit(X, y)
    outline = json.loads(treemax.show_tree(model, depth=20, labels=40, children=40, form="json"))

    def check(node):
        assert len(node["labels"]) == node["n_labels"]
        assert node["examples"] == np.isin(y, node["labels"]).sum()
        if "children" in node:
            assert node["children_left_out"] == 0
            below = [label for child in node["children"] for label in child["labels"]]
            assert sorted(below) == sorted(node["labels"])
            for child in node["children"]:
                check(child)
        else:
            assert node["n_labels"] == 1

    check(outline)
    assert set(outline["labels"]) == set(model.classes_) and outline["labels"][0] == "label 00"


ROUTING_TREES = [
    treemax.SoftmaxTree(depth=3, leaf_classes=10, iterations=2, verbose=0),
    treemax.SoftmaxForest(n_trees=2, depth=2, leaf_classes=15, iterations=2, verbose=0),
    treemax.RecallTree(n_candidates=10, verbose=0),
    treemax.RecallTree(algorithm="paper", n_candidates=10, verbose=0),
    treemax.LOMTree(verbose=0),
    treemax.ContextualMemoryTree(leaf_factor=2.0, verbose=0),
]


@pytest.mark.parametrize("model", ROUTING_TREES, ids=lambda model: type(model).__name__)
def test_trees_that_route_rows_show_the_labels_below(model, tmp_path):
    X, y = labelled_rows()
    model.fit(X.toarray(), y)
    outline = json.loads(treemax.show_tree(model, depth=30, labels=40, children=40, form="json"))
    counts = dict(zip(*np.unique(y, return_counts=True)))
    knows_examples = not isinstance(model, treemax.SoftmaxTree)
    grown = isinstance(model, treemax.LOMTree) or getattr(model, "algorithm", None) == "paper"

    def check(node):
        assert len(node["labels"]) == node["n_labels"] == len(set(node["labels"]))
        assert (node["examples"] is not None) == knows_examples
        below = node.get("children", [])
        if below and not grown:  # a node that was a leaf once knows what came before it had children
            assert set().union(*(set(child["labels"]) for child in below)) == set(node["labels"])
        if not knows_examples:
            assert [counts[label] for label in node["labels"]] == sorted(
                (counts[label] for label in node["labels"]), reverse=True
            )
        for child in below:
            check(child)

    check(outline)
    assert outline["labels"][0] == "label 00" and "children" in outline
    lines = treemax.show_tree(model, depth=1, labels=2)
    assert lines.startswith(f"{outline['n_labels']} labels") and ("examples" in lines) == knows_examples
    treemax.plot_tree(model).figure.savefig(tmp_path / "tree.svg")
    model.save(tmp_path / "model")
    assert treemax.show_tree(treemax.load(tmp_path / "model"), form="json") == treemax.show_tree(model, form="json")


def test_a_lom_tree_shows_what_came_to_each_node():
    X, y = labelled_rows()
    model = treemax.LOMTree(passes=1, verbose=0).fit(X.toarray(), y)
    nodes = model.node_labels()
    assert nodes.examples[0] == 600 and set(nodes.labels[0].tolist()) == set(range(len(model.classes_)))
    root = dict(zip(nodes.labels[0].tolist(), nodes.counts[0].tolist()))
    assert [root[i] for i in range(len(root))] == np.unique(y, return_counts=True)[1].tolist()
    for labels, counts, examples in zip(nodes.labels, nodes.counts, nodes.examples):
        assert len(labels) == len(counts) and counts.sum() == examples


def test_only_what_was_asked_for_is_shown():
    X, y = labelled_rows()
    model = treemax.LearnedTree(arity=5, passes=2, verbose=0).fit(X, y)
    lines = treemax.show_tree(model, depth=1, labels=2, children=3).split("\n")
    assert len(lines) == 5 and lines[-1].strip() == "and 2 more"
    assert lines[0].startswith("40 labels, 600 examples: label 00, ") and lines[0].endswith(", ...")
    assert all(line.startswith("  ") and not line.startswith("   ") for line in lines[1:])


def test_the_tree_is_drawn_and_written(tmp_path):
    X, y = labelled_rows()
    model = treemax.LearnedTree(arity=4, passes=2, verbose=0).fit(X, y)
    axes = treemax.plot_tree(model, depth=2, labels=2, children=2)
    texts = [text.get_text() for text in axes.texts]
    assert any(text.startswith("40 labels\nlabel 00") for text in texts) and "2 more" in texts
    for name in ("tree.svg", "tree.png"):
        axes.figure.savefig(tmp_path / name)
        assert (tmp_path / name).stat().st_size > 1000


def test_what_has_no_tree_says_so():
    with pytest.raises(TypeError, match="got OneVsAll"):
        treemax.show_tree(treemax.OneVsAll())
    with pytest.raises(ValueError, match="fit first"):
        treemax.plot_tree(treemax.LearnedTree())
    model = treemax.LabelTree(verbose=0).fit([[0.0], [1.0]], ["a", "b"])
    for wrong in ({"depth": 0}, {"labels": 0}, {"children": 1.5}, {"form": "xml"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            treemax.show_tree(model, **wrong)


def test_a_model_of_texts_shows_its_tree():
    texts = ["red apple", "green apple", "fast car", "red car"] * 5
    model = treemax.TextModel(treemax.TfidfText(), treemax.LabelTree(verbose=0))
    model.fit(texts, ["fruit", "fruit", "vehicle", "vehicle"] * 5)
    assert treemax.show_tree(model).startswith("2 labels, 20 examples: fruit, vehicle")
