"""The benchmark of softmax trees' answers: what it counts, and that the kernel alone answers as the model does."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))  # benchmarks is a folder of the project

from benchmarks.softmax import __main__ as command
from benchmarks.softmax import answers

from treemax.inference.softmax_tree import Branch, Softmax, SoftmaxTreeModel


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
    for found, expected in zip(answers.singly(model, rows, 3), model.best(rows, 3)):
        np.testing.assert_array_equal(found, expected)


def test_all_take_turns_and_times_are_by_row():
    calls = []
    works = {("a", "one"): (lambda: calls.append("a"), 1), ("b", "one"): (lambda: calls.append("b"), 10)}
    times = answers.timed(works, 3)
    assert "".join(calls) == "ab" * 4 and set(times) == set(works)
    assert all(0 <= time < 1e6 for time in times.values())


def test_what_was_not_measured_is_left_empty():
    _, _, line = answers.page([{"model": "m", "error": 9.125, "multiply_adds": 58.2, "one": 4.694}]).split(
        "\n"
    )
    assert line == "| m | 9.12 | 58.2 | 4.69 |  |  |  |  |  |"


def test_the_command_says_what_there_is(capsys):
    assert command.main([]) == 2 and "answers" in capsys.readouterr().err
