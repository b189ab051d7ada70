"""Double sampling beside a label tree and the nearest centroid, where the other baselines of table 2 were measured."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from sklearn.base import clone

from benchmarks import pages
from benchmarks.harness.problem import Problem, hits, seconds, warm_up
from treemax import DoubleSampling, LabelTree

SUITES = ("wordnet", "icd", "glyphs1k")
QUIET: dict[str, Any] = {"n_jobs": 1, "verbose": 0}
MODELS: dict[str, Any] = {
    "DoubleSampling": DoubleSampling(**QUIET),
    "DoubleSampling as published, 50 candidates": DoubleSampling.as_published(n_candidates=50, **QUIET),
    "nearest centroid, Euclidean": DoubleSampling(n_candidates=1, distance="euclidean", **QUIET),
    "LabelTree": LabelTree(**QUIET),
}
COLUMNS = [
    *({"name": name} for name in ("suite", "model")),
    *({"name": name, "decimals": 2} for name in ("error@1 %", "error@5 %")),
    *({"name": name} for name in ("train s", "predict us, batch", "model MB")),
]


def measured(model: Any, problem: Problem) -> list[float | None]:
    """Errors in per cent, processor seconds of training, microseconds of an answer, and MB of the file."""
    warm_up(clone(model), problem)
    training = seconds(lambda: model.fit(problem.X, problem.y))
    right = hits(model, problem, 5)
    answering = seconds(lambda: model.predict_topk(problem.X_test, 5), repeats=3)
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model.treemax")
        megabytes = (Path(folder) / "model.treemax").stat().st_size / 2**20
    first, five = (round(100 * float(1 - found.mean()), 2) for found in (right[:, 0], right.any(axis=1)))
    alone = getattr(model, "n_candidates", None) == 1  # the other answers are none
    return [first, None if alone else five, *(float(f"{n:.3g}") for n in (training, 1e6 * answering / len(right), megabytes))]  # fmt: skip


def main(arguments: list[str]) -> None:
    rows = []
    for suite in arguments or SUITES:
        problem = Problem.read(suite)
        for name, model in MODELS.items():
            rows.append([suite, name, *measured(clone(model), problem)])
            print(rows[-1], file=sys.stderr)
    pages.publish(
        "softmax-double-sampling",
        "softmax-tree",
        "double-sampling",
        title="Double sampling beside a tree and the nearest centroid",
        shows="The baseline that table 2 of the paper has beside MACH. Test rows, one thread, processor time.",
        columns=COLUMNS,
        rows=rows,
    )
