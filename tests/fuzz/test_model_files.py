"""Forged and damaged model files: they are refused, or the model answers with numbers. `make fuzz` does more of it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

from tests.fuzz.model_files import Damaged, Forged, check, damaged, forged  # noqa: E402
from tests.fuzz.saved_models import NAMES_OF_ALL, kind_of, parts  # noqa: E402
from tests.fuzz.workers import run_cases  # noqa: E402
from treemax import modelfile  # noqa: E402

CORPUS = json.loads((Path(__file__).parent / "corpus.json").read_text())
SEED = 16
FORGED, DAMAGED = 12, 4  # of each model


@pytest.mark.filterwarnings("ignore:This model was saved without")
@pytest.mark.parametrize("model", NAMES_OF_ALL)
def test_files_are_refused_or_answer(model: str) -> None:
    assert check(Damaged(model, [])) == "answered"  # here, so that the processes below need not train or compile
    past = [Forged(model, entry["changes"]) for entry in CORPUS if entry["model"] == model]
    fresh = [forged(model, SEED + i) for i in range(FORGED)] + [damaged(model, SEED + i) for i in range(DAMAGED)]
    outcomes = list(run_cases([*past, *fresh], check))
    assert [(outcome.case, outcome.what) for outcome in outcomes if outcome.found] == []
    assert len(outcomes) == len(past) + len(fresh)


def test_the_corpus_names_models_that_there_are() -> None:
    assert {entry["model"] for entry in CORPUS} <= set(NAMES_OF_ALL)


@pytest.mark.parametrize("name", ["tallies/count", "tallies/counts"])
def test_counts_of_labels_stay_at_their_largest_number(name: str) -> None:
    """A stream may have more rows than a count has bits: then the count stays, and nothing is read outside."""
    model = "recall-tree, paper, to resume" if name == "tallies/count" else "lom-tree, to resume"
    header, arrays = parts(model)
    most = np.int32(2**31 - 1)
    changed = {**arrays, f"model/{name}": np.full_like(arrays[f"model/{name}"], most)}
    if name == "tallies/count":  # more rows at every node than at its children together
        n = len(arrays["model/nodes/total"])
        changed["model/nodes/total"] = 2 ** (60 - np.arange(n))
    else:
        changed["model/nodes/best"] = first_of_node(arrays["model/tallies/starts"], arrays["model/tallies/labels"])
    full = modelfile.object_from_parts(header, changed)
    _, X, y = kind_of(model)
    full.partial_fit(X, y)
    counts = modelfile.object_parts(full, resume=True)[1][f"model/{name}"]
    assert counts.min() >= 1
    assert (counts == most).sum() >= len(arrays[f"model/{name}"])
    assert np.isfinite(full.predict_topk(X, 3).scores).all()


def first_of_node(starts: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The first label of every node's list, -1 where the list is empty."""
    filled = np.diff(starts) > 0
    best = np.full(len(filled), -1, np.int32)
    best[filled] = labels[starts[:-1][filled]]
    return best
