"""Mutated data files: refused by name and line, or read as plain parsers read them. `make fuzz` does more of it."""

from __future__ import annotations

import os

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

from tests.fuzz.plain_parsers import parsed  # noqa: E402
from tests.fuzz.readers import check, made  # noqa: E402
from tests.fuzz.workers import run_cases  # noqa: E402
from treemax.formats import FORMATS  # noqa: E402

SEED, FILES = 16, 150


@pytest.mark.parametrize("format", FORMATS)
def test_files_are_refused_or_read_as_by_a_plain_parser(format: str) -> None:
    files = [made(format, SEED + i) for i in range(FILES)]
    sound = [file for file in files if parsed(format, bytes.fromhex(file.content))]
    assert len(sound) > 10  # so that something is compared
    check(sound[0])  # here, so that the processes below need not compile
    outcomes = list(run_cases(files, check))
    assert [(outcome.case, outcome.what) for outcome in outcomes if outcome.found] == []
