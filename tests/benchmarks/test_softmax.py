"""The experiments with softmax trees: their counts, and a small run of each."""

from __future__ import annotations

import json

import numpy as np
import pytest

import treemax
from benchmarks.experiments.softmax import __main__ as command
from benchmarks.experiments.softmax import (
    answers,
    double_sampling,
    missing,
    models,
    shape,
    starts,
    text,
    trade_off,
    training,
    training_times,
)
from benchmarks.harness import output
from benchmarks.harness.problem import Problem
from treemax.models.softmax_tree.model import Branch, Softmax, SoftmaxTreeModel


def leaf(classes, n_features, random):
    coef = random.normal(size=(len(classes), n_features)).astype(np.float32)
    return Softmax(np.array(classes), coef, np.zeros(len(classes), np.float32))


@pytest.fixture(scope="module")
def model():
    """Two trees over three features: rows with x0 >= 0 go right in both, and in the first then by x1."""
    random = np.random.RandomState(0)

    def split(feature, left, right):
        return Branch(np.eye(3, dtype=np.float32)[[feature]], 0.0, left, right)

    deep = split(0, leaf([0, 1], 3, random), split(1, leaf([2, 3, 4], 3, random), leaf([5], 3, random)))
    flat = split(0, leaf([0, 2, 4, 5], 3, random), leaf([1, 3], 3, random))
    return SoftmaxTreeModel.pack([deep, flat], 6, 3)


def test_multiply_adds_are_those_of_the_path_and_of_the_leaf(model):
    left = np.array([[-1.0, 0.0, 0.0]], np.float32)
    right_left = np.array([[1.0, -1.0, 0.0]], np.float32)
    assert answers.multiply_adds(model, left) == 3 * ((1 + 2) + (1 + 4))
    assert answers.multiply_adds(model, right_left) == 3 * ((2 + 3) + (1 + 2))
    both = np.concatenate([left, right_left])
    assert answers.multiply_adds(model, both) == 3 * (3 + 5 + 5 + 3) / 2


def test_the_kernel_alone_answers_as_the_model_does(model):
    rows = np.random.RandomState(1).normal(size=(50, 3)).astype(np.float32)
    for found, expected in zip(answers.singly(model, rows, 3), model.top_k(rows, 3)):
        np.testing.assert_array_equal(found, expected)


def test_all_take_turns_and_times_are_by_row():
    calls = []
    works = {("a", "one"): (lambda: calls.append("a"), 1), ("b", "one"): (lambda: calls.append("b"), 10)}
    times = answers.timed(works, 3)
    assert "".join(calls) == "ab" * 4 and set(times) == set(works)
    assert all(0 <= time < 1e6 for time in times.values())


def test_what_was_not_measured_is_left_empty():
    [line] = answers.lines([{"model": "m", "error": 9.125, "multiply_adds": 58.2, "one": 4.694}])
    assert line == ["m", 9.12, 58.2, 4.69, *[None] * 5] and len(line) == len(answers.COLUMNS)


def test_the_command_says_what_there_is(capsys):
    assert command.main([]) == 2 and "answers" in capsys.readouterr().err


# --- the experiments, on a small problem ---------------------------------------------------------------


@pytest.fixture
def problem(tmp_path, monkeypatch):
    """Eight classes around points in the plane; what is found goes to a folder of its own."""
    monkeypatch.setattr(output, "RESULTS", tmp_path)
    monkeypatch.setattr(output, "IMAGES", tmp_path)
    monkeypatch.setattr(output, "STORED", tmp_path / "stored")
    (tmp_path / "stored/softmax-tree").mkdir(parents=True)
    (tmp_path / "stored/softmax-tree/page.json").write_text('{"title": "Softmax trees", "results": []}')
    monkeypatch.setattr(models, "DEPTH", 2)
    monkeypatch.setattr(models, "LEAF_CLASSES", 4)
    random = np.random.default_rng(0)
    angle = np.arange(8) * np.pi / 4
    centres = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    y, y_test = random.integers(0, 8, 400), random.integers(0, 8, 60)
    X, X_test = (centres[labels] + 0.1 * random.standard_normal((len(labels), 2)) for labels in (y, y_test))
    found = Problem(X.astype(np.float32), y, X_test.astype(np.float32), y_test)
    monkeypatch.setattr(Problem, "read", classmethod(lambda cls, suite, limit=None: found))
    return found


def test_the_command_lists_every_experiment(capsys):
    command.main(["nonsense"])
    said = capsys.readouterr().err
    assert all(f"benchmarks.experiments.softmax {name}" in said for name in command.EXPERIMENTS)


def test_shape_has_an_outcome_for_every_depth_and_size(problem, tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(shape, "DEPTHS", (1, 2))
    monkeypatch.setattr(shape, "LEAF_CLASSES", (1, None))
    command.main(["shape"])
    table = capsys.readouterr().out.splitlines()
    assert table[0].startswith("| training | classes of a leaf | depth |") and len(table) == 2 + 2 * 2 * len(shape.WAYS)
    found = json.loads((tmp_path / "softmax-shape-glyphs1k.json").read_text())
    for by_classes in found.values():
        assert by_classes["1"]["1"]["coverage"] < 40 < 90 < by_classes["all"]["1"]["coverage"]
    stored = json.loads((tmp_path / "stored/softmax-tree/shape.json").read_text())
    assert [row[:3] for row in stored["rows"][:3]] == [["ours", "1", 1], ["ours", "1", 2], ["ours", "all", 1]]
    assert stored["rows"][0][5:7] == [2, 1] and stored["rows"][0][3] == pytest.approx(
        found["ours"]["1"]["1"]["error"], abs=0.1
    )
    assert (tmp_path / "softmax-tree-shape.png").stat().st_size > 0


def test_double_sampling_is_measured_beside_a_label_tree(problem, tmp_path, capsys):
    command.main(["double-sampling", "glyphs1k"])
    stored = json.loads((tmp_path / "stored/softmax-tree/double-sampling.json").read_text())
    assert [row[1] for row in stored["rows"]] == list(double_sampling.MODELS)
    assert all(row[2] < 20 and row[4] > 0 and row[6] > 0 for row in stored["rows"])
    nearest = next(row for row in stored["rows"] if row[1].startswith("nearest"))
    assert nearest[3] is None and "| glyphs1k | LabelTree |" in capsys.readouterr().out


def test_softmax_trees_are_measured_beside_their_baselines(problem, tmp_path, monkeypatch):
    few = ("OneVsAll", "SoftmaxTree")
    monkeypatch.setattr(text, "MODELS", {name: text.MODELS[name] for name in few})
    command.main(["text"])
    stored = json.loads((tmp_path / "stored/softmax-tree/text.json").read_text())
    assert [row[0] for row in stored["rows"]] == list(few) and stored["rows"][0][1] == 0
    assert all(0 <= row[3] <= row[2] < 20 and row[4] > 0 and row[6] > 0 for row in stored["rows"])
    assert "Table 2" in stored["shows"] and len(stored["columns"]) == 7


def test_starts_are_followed_from_iteration_to_iteration(problem, tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(starts, "ITERATIONS", 2)
    command.main(["starts"])
    found = json.loads((tmp_path / "softmax-starts-glyphs1k.json").read_text())
    assert [row[:2] for row in found] == [[way, start] for way in starts.WAYS for start in starts.STARTS]
    assert all(len(row) == 2 + starts.ITERATIONS + 2 for row in found)
    assert "| as published | random |" in capsys.readouterr().out


def test_every_treatment_of_missing_classes_is_tried_with_every_seed(problem, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(missing, "SEEDS", (0, 1))
    command.main(["missing"])
    rows = capsys.readouterr().out.splitlines()[2:]
    assert len(rows) == len(missing.WAYS) * len(missing.TREATMENTS)
    kept = json.loads((tmp_path / "softmax-missing-glyphs1k.json").read_text())
    errors = [outcome["error"] for outcome in kept["the paper's"]["beta = 10"]]
    stored = json.loads((tmp_path / "stored/softmax-tree/missing.json").read_text())
    cell = stored["rows"][1][3]
    assert stored["rows"][1][1] == "beta = 10" and len(errors) == 2
    assert cell["value"] == pytest.approx(np.mean(errors), abs=0.01)
    assert cell["error"] == pytest.approx(np.std(errors, ddof=1), abs=0.01)


def test_training_is_compared_with_the_reference(problem, monkeypatch, capsys):
    monkeypatch.setattr(training, "DEPTH", 1)
    monkeypatch.setattr(training, "LEAF_CLASSES", 4)
    monkeypatch.setattr(training, "ITERATIONS", 1)
    command.main(["training"])
    rows = capsys.readouterr().out.splitlines()[2:]
    assert [row.split("|")[2].strip() for row in rows] == ["scikit-learn's", "ours"]
    assert rows[0].split("|")[4].strip() == "1.0"


def test_training_times_are_those_of_every_model(problem, tmp_path, monkeypatch):
    small = {"SoftmaxTree": treemax.SoftmaxTree(leaf_classes=2, verbose=0), "OneVsAll": treemax.OneVsAll(verbose=0)}
    assert {type(model) for model in training_times.models().values()} >= {
        treemax.OneVsAll, treemax.LOMTree, treemax.RecallTree, treemax.MACH, treemax.SoftmaxTree
    }  # fmt: skip
    monkeypatch.setattr(training_times, "models", lambda: small)
    command.main(["training-times"])
    rows = json.loads((tmp_path / "stored/softmax-tree/training-times.json").read_text())["rows"]
    assert [row[0] for row in rows] == list(small) and min(row[2] for row in rows) == 1.0
    assert all(row[1] > 0 and 0 <= row[4] <= row[3] < 30 for row in rows)


def test_every_model_of_the_trade_off_is_trained_and_timed(problem, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(trade_off, "ROUNDS", 1)
    small = {"SoftmaxTree": {"2": treemax.SoftmaxTree(leaf_classes=2, verbose=0)}, "OneVsAll": {"": treemax.OneVsAll()}}
    monkeypatch.setattr(trade_off, "families", lambda: small)
    command.main(["trade-off"])
    found = json.loads((tmp_path / "softmax-trade-off-glyphs1k.json").read_text())
    rows = [found["SoftmaxTree"]["2"], found["OneVsAll"][""]]
    stored = json.loads((tmp_path / "stored/softmax-tree/trade-off.json").read_text())["rows"]
    assert [row[:2] for row in stored] == [["SoftmaxTree", "2"], ["OneVsAll", ""]]
    assert all(row["error"] < 30 and row["us"] > 0 for row in rows)
    assert (tmp_path / "softmax-tree-trade-off.png").stat().st_size > 0
