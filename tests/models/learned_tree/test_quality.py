"""The quality of the splits of a tree, against NumPy."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import treemax
from tests.models.learned_tree.reference import best_objective, objective
from treemax.models.language_model.words import END
from treemax.models.learned_tree.quality import MEASURES, labels_by_leaf
from treemax.trees import Tree, random_tree


def rows(n_labels=12, n=600, seed=0):
    random = np.random.default_rng(seed)
    X = random.standard_normal((n, 20)).astype(np.float32)
    return X, X[:, :n_labels].argmax(axis=1)


def child_probabilities(model, node, hidden):
    """p_j|i of one node for the representation of every label, from its vectors."""
    n, first = int(model.tree.n_children[node]), int(model.first_vectors[node])
    scores = hidden @ model.weights[first : first + (n if n > 2 else 1)].T.astype(np.float64)
    scores += model.biases[first : first + (n if n > 2 else 1)]
    if n == 2:
        scores = np.hstack([np.zeros_like(scores), scores])
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return scores / scores.sum(axis=1, keepdims=True)


def reference(counts, probabilities):
    """The three measures of a node, from the examples of each label and p_j|i."""
    shares, n = counts / counts.sum(), probabilities.shape[1]
    impurity = (shares @ np.minimum(probabilities, 1 - probabilities)).sum() / n  # definition 2
    return objective(shares, probabilities) / best_objective(n), n * (shares @ probabilities).min(), 1 - n * impurity


def check_against_reference(found, model, counts, means):
    tree = model.tree
    assert found.nodes.tolist() == np.flatnonzero(tree.n_children >= 2).tolist()
    for place, node in enumerate(found.nodes):
        labels, _ = tree.below(node)
        assert found.examples[place] == counts[labels].sum()
        expected = reference(counts[labels], child_probabilities(model, node, means[labels]))
        np.testing.assert_allclose([getattr(found, name)[place] for name in MEASURES], expected, atol=1e-5)


@pytest.mark.parametrize("tree", ["learned", "random", "huffman"])
@pytest.mark.parametrize("arity", [2, 5])
def test_quality_of_a_classifier_is_that_of_numpy(tree, arity):
    X, y = rows()
    classifier = treemax.LearnedTree(tree=tree, arity=arity, dimension=16, passes=4, verbose=0).fit(X, y)
    model = classifier.model_
    hidden = X @ model.embeddings[: X.shape[1]]
    means = np.array([hidden[y == label].mean(axis=0) for label in classifier.classes_])
    found = classifier.node_quality()
    check_against_reference(found, model, np.bincount(y), means)
    weighted = [np.average(getattr(found, name), weights=found.examples) for name in MEASURES]
    assert list(classifier.describe()["quality"].values()) == pytest.approx(weighted, abs=1e-4)


def test_quality_of_running_sums_is_that_of_numpy():
    X, y = rows()
    classifier = treemax.LearnedTree(arity=3, dimension=16, passes=4, statistics="running", verbose=0).fit(X, y)
    found, model = classifier.node_quality(), classifier.model_
    state, tree = model.learning, model.tree
    inner = np.flatnonzero(tree.n_children > 0)
    for place, node in enumerate(found.nodes):
        labels, _ = tree.below(node)
        keys = np.searchsorted(inner, node) * 12 + labels
        at = [int(np.flatnonzero(state.keys == key)[0]) for key in keys]
        n, counts = tree.n_children[node], state.seen[at].astype(float)
        expected = reference(counts, state.sums[at][:, :n] / counts[:, None])
        assert found.examples[place] == counts.sum()
        np.testing.assert_allclose([getattr(found, name)[place] for name in MEASURES], expected, atol=1e-5)


def test_quality_of_a_language_model_is_that_of_numpy():
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(list("abcdefghijkl"), size=6)) for _ in range(4)]
    language = treemax.TreeLanguageModel(dimension=16, arity=4, passes=2, context=2, verbose=0).fit(texts)
    model, words = language.model_, {word: number for number, word in enumerate(language.classes_)}
    hidden = [[] for _ in words]
    for text in texts:
        ids = [words[word] for word in text.split()] + [words[END]]
        padded = [len(words)] * 2 + ids
        for at, word in enumerate(ids):
            context = np.array([padded[at : at + 2][::-1]], dtype=np.uint32)
            hidden[word].append(model.represent(context)[0])
    means = np.array([np.mean(part, axis=0) if part else np.zeros(16) for part in hidden])
    counts = np.array(list(map(len, hidden)))
    check_against_reference(language.node_quality(), model.learned_tree(means), counts, means)


def test_a_perfect_split_has_quality_one():
    X = np.repeat(np.eye(4) * 50, 30, axis=0)
    y = np.repeat(np.arange(4), 30)
    model = treemax.LearnedTree(tree={"a": [0, 1], "b": [2, 3]}, dimension=16, passes=60, verbose=0).fit(X, y)
    assert all(value > 0.95 for value in model.describe()["quality"].values())


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 30), st.integers(2, 5), st.integers(0, 99))
def test_labels_below_a_node_are_side_by_side(n_labels, arity, seed):
    tree = random_tree(n_labels, arity, arity, np.random.RandomState(seed))
    labels, starts, sizes = labels_by_leaf(tree)
    for node in range(len(tree)):
        below, n = tree.below(node)
        assert sizes[node] == n
        assert sorted(labels[starts[node] : starts[node] + n]) == sorted(below)


# --- through the life of a model --------------------------------------------------------------------------


def test_quality_survives_a_file_with_the_learning_state(tmp_path):
    X, y = rows()
    model = treemax.LearnedTree(arity=3, dimension=16, passes=2, verbose=0).fit(X, y)
    model.save(tmp_path / "resume", resume=True)
    assert treemax.load(tmp_path / "resume").describe() == model.describe()
    model.save(tmp_path / "small")
    small = treemax.load(tmp_path / "small")
    assert "quality" not in small.describe() and "quality" not in treemax.show_tree(small, form="json")
    with pytest.raises(ValueError, match=r"save\(path, resume=True\)"):
        small.node_quality()


def test_quality_of_a_language_model_survives_a_file(tmp_path):
    model = treemax.TreeLanguageModel(dimension=16, arity=3, passes=1, verbose=0).fit(["a b c d e f", "f e d c b a"])
    model.save(tmp_path / "model")
    loaded = treemax.load(tmp_path / "model")
    for now, before in zip(loaded.node_quality(), model.node_quality(), strict=True):
        np.testing.assert_allclose(now, before, rtol=1e-5)
    header, arrays = model.model_.to_parts()
    for wrong in ([[1.0]], [1.0] * 4, [["x"] * len(part) for part in header["quality"]]):
        with pytest.raises(ValueError, match="quality"):
            type(model.model_).from_parts({**header, "quality": wrong}, arrays, model.model_.tree.n_labels)
    flat = treemax.TreeLanguageModel(tree="flat", dimension=16, passes=1, verbose=0).fit(["a b c d", "d c b a"])
    assert "quality" not in flat.describe()
    with pytest.raises(ValueError, match="flat"):
        flat.node_quality()


def test_quality_in_a_stream_is_that_of_the_tree_as_it_is():
    X, y = rows()
    model = treemax.LearnedTree(arity=3, dimension=16, verbose=0, stream_assign_every=100)
    for start in range(0, 600, 100):
        model.partial_fit(X[start : start + 100], y[start : start + 100])
    found, packed = model.node_quality(), model.model_.packed()
    check_against_reference(found, packed, model.label_counts_, packed.learning.means.astype(np.float64))


def test_trees_without_a_split_have_no_quality():
    model = treemax.LearnedTree(dimension=16, passes=1, verbose=0).fit([[1.0], [2.0]], ["a", "a"])
    assert "quality" not in model.describe()
    assert len(model.node_quality().nodes) == 0


def test_trees_are_shown_with_the_quality_of_their_nodes():
    pytest.importorskip("matplotlib")
    X, y = rows()
    model = treemax.LearnedTree(arity=3, dimension=16, passes=2, verbose=0).fit(X, y)
    root = json.loads(treemax.show_tree(model, form="json"))
    assert root["quality"] == model.node_quality().at(0) and all(0 <= value <= 1 for value in root["quality"].values())
    leaves = [child for child in root["children"] if child["n_labels"] == 1]
    assert not any("quality" in leaf for leaf in leaves)
    shown = f"objective {root['quality']['objective']:.2f}, balance "
    axes = treemax.plot_tree(model)
    assert any(shown in text.get_text() for text in axes.texts)


def test_a_node_with_one_child_is_not_judged():
    tree = Tree.from_parents([-1, 0, 1, 1], [-1, -1, 0, 1])
    X, y = rows(n_labels=2)
    model = treemax.LearnedTree(tree=tree, dimension=16, passes=1, verbose=0).fit(X, y)
    assert model.node_quality().nodes.tolist() == [1] and model.node_quality().at(0) is None


def test_a_language_model_of_few_texts_can_be_loaded(tmp_path):
    """Splits that learned nothing have a purity of zero, and one below zero by rounding is refused by the reader."""
    for seed in range(7):
        words = np.random.default_rng(seed).integers(5, size=(2, 6))
        texts = [" ".join(f"w{word}" for word in text) for text in words]
        model = treemax.TreeLanguageModel.as_published(verbose=0, tree="random", passes=1).fit(texts)
        assert (model.node_quality().purity >= 0).all()
        model.save(tmp_path / "model")
        assert treemax.load(tmp_path / "model").perplexity(texts) == model.perplexity(texts)
