"""The language experiments on synthetic data."""

from __future__ import annotations

import gzip
import json
import math

import numpy as np
import pytest

import treemax
from benchmarks.experiments import language_model
from benchmarks.experiments.language import __main__ as command
from benchmarks.experiments.language import judging, models, problems
from benchmarks.experiments.language.hierarchical import HierarchicalSoftmax
from benchmarks.experiments.language.problems import PROBLEMS, Problem, Rows, known_rows
from benchmarks.harness import output, suites

N_CLASSES = 12


def rows(n, seed):
    random = np.random.default_rng(seed)
    y = random.integers(0, N_CLASSES, n)
    angles = 2 * np.pi * y / N_CLASSES
    X = np.stack([np.cos(angles), np.sin(angles)], axis=1) + 0.2 * random.standard_normal((n, 2))
    return Rows(X.astype(np.float32), y)


@pytest.fixture(scope="module")
def problem():
    random = np.random.default_rng(9)
    coef, bias = random.standard_normal((N_CLASSES, 2)), random.standard_normal(N_CLASSES)
    return Problem(rows(600, 0), rows(80, 1), rows(90, 2), N_CLASSES, "softmax", coef, bias)


@pytest.fixture(scope="module")
def tree(problem):
    return treemax.SoftmaxTree(depth=2, leaf_classes=3, iterations=2, growth=1.0, verbose=0).fit(
        problem.train.X, problem.train.y
    )


def test_answers_of_a_softmax_are_those_of_its_scores(problem):
    model = judging.Linear(problem.coef, problem.bias)
    found = judging.answers(model, problem.test)
    scores = problem.test.X @ problem.coef.T + problem.bias
    probabilities = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    assert (found.top == np.argsort(-scores, axis=1)[:, :5]).all()
    np.testing.assert_allclose(found.own, probabilities[np.arange(90), problem.test.y], rtol=1e-5)
    assert (found.known == N_CLASSES).all()


def test_quality_of_a_tree_is_what_the_tree_says_itself(tree, problem):
    found = judging.quality(judging.answers(tree, problem.test), problem.test.y)
    own = tree.perplexity(problem.test.X, problem.test.y)
    assert found.coverage == pytest.approx(100 * own.coverage) and 0 < found.coverage < 100
    assert found.perplexity == pytest.approx(own.perplexity, rel=1e-5)
    assert found.error == pytest.approx(100 * (tree.predict(problem.test.X) != problem.test.y).mean())
    top = tree.predict_topk(problem.test.X, 5)
    misses = [own not in labels[scores > 0] for own, labels, scores in zip(problem.test.y, *top)]
    assert found.error_5 == pytest.approx(100 * np.mean(misses))


def test_smoothing_is_that_of_the_model(tree, problem):
    found = judging.answers(tree, problem.test)
    tree.smoothing = 1e-3
    try:
        expected = tree.perplexity(problem.test.X, problem.test.y)
    finally:
        tree.smoothing = 0.0
    assert judging.smoothed_perplexity(found, N_CLASSES, 1e-3) == pytest.approx(expected.perplexity, rel=1e-4)
    best = judging.best_epsilon(found, N_CLASSES)
    assert all(
        judging.smoothed_perplexity(found, N_CLASSES, best) <= judging.smoothed_perplexity(found, N_CLASSES, other)
        for other in judging.EPSILONS
    )


@pytest.fixture(scope="module")
def hierarchical(problem):
    return HierarchicalSoftmax(passes=20, rate=0.3).fit(problem.train.X, problem.train.y)


def walked(model, x):
    """Probabilities of all classes, and of all nodes, by walking down the tree."""
    tree, of_node = model.tree, {0: 1.0}
    for node in range(len(tree)):
        if tree.label[node] < 0:
            right = 1 / (1 + math.exp(-(model.weights[model.inner[node]] @ x + model.bias[model.inner[node]])))
            first, second = tree.children(node)
            of_node |= {first: of_node[node] * (1 - right), second: of_node[node] * right}
    return np.array([of_node[leaf] for leaf in tree.leaf_of]), of_node


def test_a_hierarchical_softmax_multiplies_along_the_path(hierarchical, problem):
    found = judging.answers(hierarchical, problem.test)
    for x, own, top, y in zip(problem.test.X, found.own, found.top, problem.test.y, strict=True):
        probabilities, _ = walked(hierarchical, x)
        assert probabilities.sum() == pytest.approx(1) and own == pytest.approx(probabilities[y], rel=1e-4)
        assert top.tolist() == np.argsort(-probabilities)[:5].tolist()
    assert judging.quality(found, problem.test.y).perplexity < N_CLASSES / 2
    assert judging.size(hierarchical, N_CLASSES) == {
        "depth": hierarchical.tree.depth,
        "leaves": N_CLASSES,
        "leaf_classes": 1,
    }


def test_its_approximation_follows_the_likelier_child(hierarchical, problem, tmp_path):
    path = tmp_path / "hsm.treemax"
    hierarchical.save(path)
    approximate = HierarchicalSoftmax.load(path)
    approximate.approximate = True
    found = approximate.top(problem.test.X, N_CLASSES)
    assert (np.sort(found, axis=1) == np.arange(N_CLASSES)).all(), "every class comes once"
    tree = approximate.tree
    for x, labels in zip(problem.test.X, found, strict=True):
        _, of_node = walked(approximate, x)
        node, left = 0, []
        for label in labels[:3]:
            while tree.label[node] < 0:
                worse, node = sorted(tree.children(node), key=of_node.__getitem__)
                left.append(worse)
            assert tree.label[node] == label
            node = max(left, key=of_node.__getitem__)
            left.remove(node)


def test_a_sample_has_every_class(problem, monkeypatch):
    monkeypatch.setattr(problems, "SAMPLE", 50)
    chosen = problems.sample(problem)
    assert len(chosen.train.y) <= 50 and set(chosen.train.y) == set(problem.train.y)
    assert chosen.test is problem.test


def test_nothing_covered_is_an_infinite_perplexity():
    found = judging.Answers(np.zeros((2, 5), int), np.zeros(2), np.full(2, 3))
    assert judging.quality(found, np.array([1, 2])) == (100.0, 100.0, 0.0, math.inf)


def test_rows_of_unknown_words_are_left_out():
    part = suites.Part(np.arange(6.0).reshape(3, 2), [["b"], ["new"], ["a"]])
    found = known_rows(part, ["a", "b"])
    assert found.y.tolist() == [1, 0] and found.X.tolist() == [[0, 1], [4, 5]]


def test_train_and_table(problem, tmp_path, monkeypatch, capsys):
    settings = {"depth": 1, "leaf_classes": 6, "iterations": 1, "growth": 1.0}
    named = {
        "tree": (treemax.SoftmaxTree, settings),
        "forest, small": (treemax.SoftmaxForest, {"n_trees": 2, **settings}),
        "all": (treemax.OneVsAll, {"passes": 1}),
        "not trained": (treemax.SoftmaxTree, settings),
        "HSM": (HierarchicalSoftmax, {"passes": 1}),
    }
    monkeypatch.setitem(PROBLEMS, "ngram", lambda: problem)
    monkeypatch.setattr(models, "models", lambda name: named)
    monkeypatch.setattr(models, "KEPT", tmp_path)
    monkeypatch.setattr(output, "RESULTS", tmp_path)
    monkeypatch.setattr(output, "STORED", tmp_path)
    page = tmp_path / "softmax-tree"
    page.mkdir()
    (page / "page.json").write_text('{"results": []}')
    before = {"columns": [{"name": "model"}, {"name": "error@1 %"}], "rows": [["older", 50.0], ["tree", 60.0]]}
    (page / "next-word.json").write_text(json.dumps(before))
    assert command.main(["train", "ngram", "tree", "forest, small"]) == 0
    assert command.main(["run", "ngram", "tree", "all", "HSM"]) == 0  # the tree is kept
    stored = json.loads((tmp_path / "language-ngram.json").read_text())
    assert [row["model"] for row in stored] == ["softmax", "tree", "forest, small", "all", "HSM"]
    assert [row["depth"] for row in stored[:4]] == [0, 1, 1, 0] and stored[4]["depth"] >= 4
    assert [row["leaves"] for row in stored] == [1, 2, 4, 1, N_CLASSES]
    assert all(0 <= row["training"]["error_5"] <= row["training"]["error"] <= 100 for row in stored)
    assert stored[0]["coverage"] == 100 and stored[1]["coverage"] < 100
    assert stored[0]["times_faster"] == [1.0, 1.0]
    said = capsys.readouterr().out
    assert "| forest, small | 1 |" in said and said.count("ngram, tree:") == 1
    table = json.loads((page / "next-word.json").read_text())
    kept = [row[0] for row in table["rows"]]
    assert kept == ["softmax", "tree", "forest, small", "all", "HSM", "older"], "those of before stay"
    figures = dict(zip([column["name"] for column in table["columns"]], table["rows"][-1], strict=True))
    assert figures["error@1 %"] == 50.0 and figures["perplexity"] is None


def test_what_is_not_there_is_said(capsys):
    assert command.main([]) == command.main(["train", "nothing"]) == 2
    assert "benchmarks.experiments.language run lstm" in capsys.readouterr().err
    assert command.main(["train", "ngram", "nobody"]) == 2
    assert "ngram has no model 'nobody'" in capsys.readouterr().err


def test_every_model_of_the_tables_has_settings_that_it_takes():
    for name in PROBLEMS:
        for kind, settings in models.models(name).values():
            assert kind(n_jobs=1, verbose=0, **settings)


def test_trees_of_a_language_model_are_judged_side_by_side(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TREEMAX_DATA", str(tmp_path))
    assert language_model.main(["table"]) == 0, "without data there is nothing to do"
    assert language_model.main(["train", "oak"]) == 2
    (tmp_path / "ptb").mkdir()
    for part, n in (("train", 40), ("valid", 5), ("test", 8)):
        with gzip.open(tmp_path / "ptb" / f"{part}.txt.gz", "wt") as file:
            file.write("the cat sat on the mat\na dog ran\n" * n)
    monkeypatch.setattr(language_model, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(output, "RESULTS", tmp_path)
    assert language_model.main(["table"]) == 1, "no models yet"
    assert language_model.main(["train", "learned", "flat"]) == 0
    assert language_model.main(["table"]) == 0
    printed = capsys.readouterr().out
    assert "| learned |" in printed and "| flat |" in printed
    found = json.loads((tmp_path / "language-model.json").read_text())
    assert all(1 < row["test"] < 12 and row["output"] > 0 for row in found)
