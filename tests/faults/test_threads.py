"""Learning, asking and saving from many threads at once; TREEMAX_FAULTS_SECONDS makes each run longer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SECONDS = float(os.environ.get("TREEMAX_FAULTS_SECONDS", "2"))
ONLINE = [
    "one-vs-all/dense", "one-vs-all/sparse", "one-vs-all/lists", "recall/dense", "recall/sparse", "paper/dense",
    "paper/sparse", "lom/dense", "lom/sparse", "online-label-tree/sparse", "online-label-tree/lists",
    "online-label-tree/texts", "learned-tree/sparse", "learned-tree/lists", "learned-tree/sparse/2", "one-vs-all/dense/2", "paper/sparse/2", "online-label-tree/sparse/2",
]  # fmt: skip
REFITTED = ["label-tree", "learned-tree", "softmax-tree", "recall", "one-vs-all", "text"]


def stressed(name: str) -> dict[str, int]:
    """What `stress_threads` did, in a process of its own: what goes wrong here may end it."""
    script = Path(__file__).with_name("stress_threads.py")
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", str(script), name, str(SECONDS)], capture_output=True, text=True,
        timeout=SECONDS + 300,
    )  # fmt: skip
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr[-5000:]}"
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", ONLINE)
def test_online_models_are_asked_and_saved_while_they_learn(name):
    counts = stressed(name)
    assert counts["chunks learned"] > 1
    assert sum(n for what, n in counts.items() if what.startswith("asked")) > 10
    assert sum(n for what, n in counts.items() if what.startswith("looked")) > 0
    assert name.endswith("/2") or counts["compared with learning in peace"]


@pytest.mark.parametrize("kind", REFITTED)
def test_models_are_asked_and_saved_while_they_are_fitted_again(kind):
    counts = stressed(f"{kind}/refit")
    assert min(counts["asked"], counts["fitted"], counts["saved"]) > 0


@pytest.mark.parametrize("kind", ["one-vs-all", "recall", "paper", "lom", "online-label-tree", "learned-tree"])
def test_parameters_are_assigned_while_others_learn_and_ask(kind):
    counts = stressed(f"{kind}/assigned")
    assert min(counts["assigned"], counts["refused"], counts["asked topk"], counts["chunks learned"]) > 0
