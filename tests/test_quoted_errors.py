"""Error messages that the documentation quotes are those of the code."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

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


def fit_not_a_number() -> None:
    X = np.ones((3, 3))
    X[2, 1] = np.nan
    treemax.OneVsAll().fit(X, ["a", "b", "c"])


def read_bad_value() -> None:
    Path("train.svm").write_text("1 3:1\n2 12:nan\n")
    read_examples("train.svm")


PROVOKED: dict[str, Callable[[], object]] = {
    "ValueError: Input X contains NaN": fit_not_a_number,
    "FormatError: train.svm:2:": read_bad_value,
}


@pytest.mark.parametrize("message", quoted_errors())
def test_quoted_messages_are_those_of_the_code(message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    [provoke] = [call for start, call in PROVOKED.items() if message.startswith(start)]
    with pytest.raises(ValueError) as caught:
        provoke()
    said = f"{type(caught.value).__name__}: {caught.value}"
    pattern = ".*".join(map(re.escape, message.split("...")))  # "..." stands for what the page leaves out
    assert re.fullmatch(pattern, said, re.DOTALL), f"{quoted_errors()[message]} quotes {message!r}, got {said!r}"


def test_every_provoked_message_is_quoted():
    for start in PROVOKED:
        assert any(message.startswith(start) for message in quoted_errors()), start
