"""Error messages for invalid input: what is wrong, where, and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
import scipy.sparse as sp

import treemax

ROWS = np.eye(2)


def fit(X: object, y: object = ("a", "b", "c"), sample_weight: object = None) -> Callable[[], object]:
    return lambda: treemax.OneVsAll().fit(X, y, sample_weight=sample_weight)


def with_value(value: float) -> np.ndarray:
    """Three rows of three numbers, one of which is bad."""
    X = np.ones((3, 3))
    X[2, 1] = value
    return X


def continue_with(first: object, then: object) -> Callable[[], object]:
    return lambda: treemax.OneVsAll().partial_fit(ROWS, first).partial_fit(ROWS, then)


def predict_with_another_width() -> None:
    treemax.OneVsAll(passes=1).fit(np.eye(3), ["a", "b", "c"]).predict([[1.0, 2.0]])


def need_too_much_memory() -> None:
    X = sp.csr_array(([1.0], ([0], [262_143])), shape=(50_000, 262_144))
    treemax.OneVsAll(max_memory=16.0).fit(X, np.arange(50_000))


MESSAGES: list[tuple[str, Callable[[], object]]] = [
    ("Input X contains infinity or a value too large for float32 at row 2, column 1.", fit(with_value(np.inf))),
    (
        "Input X contains the value 1e+20 at row 2, column 1; at most 1e+15 is supported. "
        "Scale the column, or remove the row.",
        fit(with_value(1e20)),
    ),
    (
        "The largest value in X is 1e-12: too small to learn from. "
        "Multiply X by a constant so that values are about one.",
        fit(np.full((3, 3), 1e-12)),
    ),
    (
        "Input X is not a table of numbers: row 0, column 0 is 'red', a string. "
        "Convert strings to numbers first, or give texts to treemax.TextModel().",
        fit([["red"], ["blue"], ["red"]]),
    ),
    ("X has 2 features, but OneVsAll is expecting 3 features as input.", predict_with_another_width),
    ("Found array with 0 sample(s) (shape=(0, 2)) while a minimum of 1 is required.", fit(np.empty((0, 2)), [])),
    (
        "y mixes strings and integers: row 1 has 1 after 'a'. Labels must be all strings or all integers.",
        fit(ROWS, ["a", 1]),
    ),
    (
        "y mixes label lists and single labels: row 1 is 'b', not a list. "
        "Give every row a list of labels (it may be empty).",
        fit(ROWS, [["a"], "b"]),
    ),
    ("Unknown label type: y has None (NoneType) at row 1; labels must be strings or integers.", fit(ROWS, ["a", None])),
    ("Unknown label type: continuous. y has 1.5 at row 0; labels must be strings or integers.", fit(ROWS, [1.5, 2.5])),
    ("y is not an indicator matrix: it has 2 at row 0, column 0; expected 0 or 1.", fit(ROWS, np.diag([2, 1]))),
    ("y has no labels at all: every row's label list is empty.", fit(ROWS, [[], []])),
    ("y is one str; expected one label, or a list of labels, per row.", fit(ROWS, "ab")),
    (
        "sample_weight has -1.0 at row 0: weights must be 0 or from 1e-09 to 1e+09. "
        "Multiply all by a constant if they are too small or too large.",
        fit(ROWS, ["a", "b"], [-1.0, 1.0]),
    ),
    (
        "sample_weight is zero for all rows: at least one row must have a positive weight.",
        fit(ROWS, ["a", "b"], [0, 0]),
    ),
    (
        "The labels so far are strings, but these are integers; labels must be of one kind.",
        continue_with(["a", "b"], [1, 2]),
    ),
    (
        "The model was started as multi-class, with one label per row, but y is multi-label.",
        continue_with(["a", "b"], [["a"], ["b", "a"]]),
    ),
    (
        "y has no labels at all: the first call of partial_fit needs at least one label.",
        lambda: treemax.OneVsAll().partial_fit(ROWS, [[], []]),
    ),
    (
        "loss must be 'auto' or one of softmax, logistic, squared_hinge, got 'hinge'.",
        lambda: treemax.OneVsAll(loss="hinge").fit(ROWS, ["a", "b"]),
    ),
    ("passes must be an integer at least 1, got 0.", lambda: treemax.OneVsAll(passes=0).fit(ROWS, ["a", "b"])),
]


@pytest.mark.parametrize(("message", "call"), MESSAGES, ids=[message for message, _ in MESSAGES])
def test_rejected_input_is_explained(message, call):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


def test_a_lack_of_memory_is_explained():
    needed = "OneVsAll for 262,144 features x 50,000 labels needs 104.9 GB, more than the 16.0 GB it may use."
    with pytest.raises(MemoryError, match=re.escape(needed)):
        need_too_much_memory()
