"""Every model learns what it learned before; a change that is meant to change it stores the results anew."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.pinned.trained import CASES, STORED, machine

BEFORE = json.loads(STORED.read_text())


@pytest.mark.parametrize("name", CASES)
def test_a_model_learns_what_it_learned_before(name):
    before, now = BEFORE[name], CASES[name]()
    same = np.mean([one == other for one, other in zip(now["first"], before["first"], strict=True)])
    assert same >= 0.9, "first answers differ"
    if machine() == BEFORE["machine"]:
        assert now["answers"] == before["answers"], "the answers differ in their bits"
        assert now["file"] == before["file"], "the files differ"
