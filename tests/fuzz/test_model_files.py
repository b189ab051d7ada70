"""Forged and damaged model files: they are refused, or the model answers with numbers. `make fuzz` does more of it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

from fuzz.model_files import Damaged, Forged, check, damaged, forged  # noqa: E402
from fuzz.saved_models import NAMES_OF_ALL  # noqa: E402
from fuzz.workers import run_cases  # noqa: E402

CORPUS = json.loads((Path(__file__).parent / "corpus.json").read_text())
SEED = 16
FORGED, DAMAGED = 12, 4  # of each model


@pytest.mark.filterwarnings("ignore:This model was saved without")
@pytest.mark.parametrize("model", NAMES_OF_ALL)
def test_files_are_refused_or_answer(model: str) -> None:
    assert (
        check(Damaged(model, [])) == "answered"
    )  # here, so that the processes below need not train or compile
    past = [Forged(model, entry["changes"]) for entry in CORPUS if entry["model"] == model]
    fresh = [forged(model, SEED + i) for i in range(FORGED)] + [
        damaged(model, SEED + i) for i in range(DAMAGED)
    ]
    outcomes = list(run_cases([*past, *fresh], check))
    assert [(outcome.case, outcome.what) for outcome in outcomes if outcome.found] == []
    assert len(outcomes) == len(past) + len(fresh)


def test_the_corpus_names_models_that_there_are() -> None:
    assert {entry["model"] for entry in CORPUS} <= set(NAMES_OF_ALL)
