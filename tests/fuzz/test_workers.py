"""What the fuzzers take for a finding: without this, they could not fail."""

from __future__ import annotations

import ctypes
import os
import time

import numpy as np
import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

from tests.fuzz.workers import run_cases  # noqa: E402
from treemax import modelfile  # noqa: E402


def work(case: str) -> str:
    if case == "crash":
        ctypes.string_at(0)
    if case == "hang":
        time.sleep(60)
    if case == "exit":
        os._exit(3)
    if case == "huge":
        np.zeros(2**33)
    if case == "foreign":
        int("x")
    if case == "ours":
        modelfile.write_model("/x.treemax", {}, {"bad name": np.zeros(1)})
    return "answered"


def test_crashes_hangs_and_foreign_errors_are_found() -> None:
    cases = ["fine", "crash", "ours", "hang", "exit", "huge", "foreign", "fine"]
    outcomes = list(run_cases(cases, work, seconds=1.0, memory=2**30))
    assert [outcome.case for outcome in outcomes] == cases
    found = {outcome.case: outcome.what for outcome in outcomes if outcome.found}
    assert list(found) == ["crash", "hang", "exit", "huge", "foreign"]
    assert "signal 11" in found["crash"]
    assert "no answer" in found["hang"]
    assert "Unable to allocate" in found["huge"]
    assert [outcome.what for outcome in outcomes if not outcome.found] == ["answered", "refused", "answered"]
