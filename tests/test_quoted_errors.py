"""Error messages that the documentation quotes are those of the code."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

import treemax
from tests.test_documentation import PAGES, named
from treemax.formats import read_examples

QUOTED = re.compile(r"(?:`|^)(\w*Error: [^`\n]+)", re.MULTILINE)


def quoted_errors() -> dict[str, str]:
    """Every quoted message (`...Error: message`, in a span or at the start of a line of a block) and its page."""
    return {
        message.strip(): named(page)
        for page in PAGES
        for message in QUOTED.findall(page.read_text())
        if page.name != "CHANGELOG.md"
    }


def fit(X: object, y: object = ("a", "b", "c"), **parameters: object) -> None:
    treemax.OneVsAll(**parameters).fit(X, y)


def value_at(value: float) -> np.ndarray:
    """Three rows of three numbers, one of which is bad."""
    X = np.ones((3, 3))
    X[2, 1] = value
    return X


def predict_with_another_width() -> None:
    treemax.OneVsAll(passes=1).fit(np.eye(3), ["a", "b", "c"]).predict([[1.0, 2.0]])


def continue_with(first: object, then: object) -> Callable[[], None]:
    return lambda: treemax.OneVsAll().partial_fit(np.eye(2), first).partial_fit(np.eye(2), then)


def read_bad_value() -> None:
    Path("train.svm").write_text("1 3:1\n2 12:nan\n")
    read_examples("train.svm")


def need_too_much_memory() -> None:
    X = sp.csr_array(([1.0], ([0], [262_143])), shape=(50_000, 262_144))
    treemax.OneVsAll(max_memory=16.0).fit(X, np.arange(50_000))


ROWS = np.eye(2)
PROVOKED: dict[str, Callable[[], object]] = {
    "ValueError: Input X contains NaN": lambda: fit(value_at(np.nan)),
    "ValueError: Input X contains infinity": lambda: fit(value_at(np.inf)),
    "ValueError: Input X contains the value": lambda: fit(value_at(1e20)),
    "ValueError: The largest value in X": lambda: fit(np.full((3, 3), 1e-12)),
    "ValueError: Input X is not a table of numbers": lambda: fit([["red"], ["blue"], ["red"]]),
    "ValueError: X has 2 features": predict_with_another_width,
    "ValueError: Found array with 0 sample(s)": lambda: fit(np.empty((0, 2)), []),
    "ValueError: sample_weight has": lambda: treemax.OneVsAll().fit(ROWS, ["a", "b"], sample_weight=[-1.0, 1.0]),
    "ValueError: sample_weight is zero": lambda: treemax.OneVsAll().fit(ROWS, ["a", "b"], sample_weight=[0, 0]),
    "ValueError: y mixes strings and integers": lambda: fit(ROWS, ["a", 1]),
    "ValueError: y mixes label lists and single labels": lambda: fit(ROWS, [["a"], "b"]),
    "ValueError: Unknown label type: y has None": lambda: fit(ROWS, ["a", None]),
    "ValueError: Unknown label type: continuous": lambda: fit(ROWS, [1.5, 2.5]),
    "ValueError: y is not an indicator matrix": lambda: fit(ROWS, np.diag([2, 1])),
    "ValueError: y has no labels at all: every": lambda: fit(ROWS, [[], []]),
    "ValueError: y is one str": lambda: fit(ROWS, "ab"),
    "ValueError: The labels so far are strings": continue_with(["a", "b"], [1, 2]),
    "ValueError: The model was started as multi-class": continue_with(["a", "b"], [["a"], ["b", "a"]]),
    "ValueError: y has no labels at all: the first": lambda: treemax.OneVsAll().partial_fit(ROWS, [[], []]),
    "ValueError: passes must be": lambda: fit(ROWS, ["a", "b"], passes=0),
    "ValueError: loss must be": lambda: fit(ROWS, ["a", "b"], loss="hinge"),
    "FormatError: train.svm:2:": read_bad_value,
    "MemoryError: OneVsAll for": need_too_much_memory,
}


@pytest.mark.parametrize("message", quoted_errors())
def test_quoted_messages_are_those_of_the_code(message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    [provoke] = [call for start, call in PROVOKED.items() if message.startswith(start)]
    with pytest.raises((ValueError, MemoryError)) as caught:
        provoke()
    said = f"{type(caught.value).__name__}: {caught.value}"
    pattern = ".*".join(map(re.escape, message.split("...")))  # "..." stands for what the page leaves out
    assert re.fullmatch(pattern, said, re.DOTALL), f"{quoted_errors()[message]} quotes {message!r}, got {said!r}"


def test_every_provoked_message_is_quoted():
    for start in PROVOKED:
        assert any(message.startswith(start) for message in quoted_errors()), start
