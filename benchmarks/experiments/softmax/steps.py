"""Few solver steps in early iterations (`early_steps`) beside solving every node in every iteration, on validation rows."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import pages
from benchmarks.harness.measure import Data
from benchmarks.harness.output import STORED
from benchmarks.harness.problem import Problem, features, first_labels, hits, seconds, warm_up
from benchmarks.harness.suites import prepared
from treemax import SoftmaxTree

SUITES = {"glyphs1k": 15_000, "icons": 10_000, "ptb": 10_000, "wordnet": 20_000, "icd": 10_000}  # rows of each
WAYS: dict[str, dict[str, Any]] = {"to the tolerance": {"early_steps": None}, "few steps (default)": {}}
SEEDS = (0, 1)
COLUMNS = [
    *({"name": name} for name in ("suite", "rows", "early iterations")),
    *({"name": name, "decimals": 2} for name in ("error@1 %", "error@5 %")),
    {"name": "difference of error@1", "decimals": 2, "signed": True},
    *({"name": name} for name in ("train s", "times faster", "model MB")),
]


def validation(suite: str, rows: int) -> Problem:
    data = Data(prepared(suite, rows, validation=True))
    parts: list[Any] = []
    for part in ("train", "test"):
        parts += [features(data, part), first_labels(*data.labels(part))]
    return Problem(*parts)


def megabytes(model: SoftmaxTree) -> float:
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model.treemax")
        return (Path(folder) / "model.treemax").stat().st_size / 2**20


def lines_of(suite: str, rows: int) -> list[list[Any]]:
    """A line for every way of training: means over the seeds, the paired difference to the first way, and its error."""
    problem, lines = validation(suite, rows), []
    right: list[np.ndarray] = []
    for way, settings in WAYS.items():
        warm_up(SoftmaxTree(n_jobs=1, verbose=0, **settings), problem)
        times, sizes, found = [], [], []
        for seed in SEEDS:
            model = SoftmaxTree(n_jobs=1, verbose=0, random_state=seed, **settings)
            times.append(seconds(lambda model=model: model.fit(problem.X, problem.y)))
            sizes.append(megabytes(model))
            found.append(hits(model, problem, 5))
        right.append(np.mean([own[:, 0] for own in found], axis=0))
        first, five = (100 * (1 - np.mean([own[:, :k].any(axis=1) for own in found])) for k in (1, 5))
        gap = 100 * (right[0] - right[-1])
        beside = {"value": round(float(gap.mean()), 2), "error": round(float(gap.std(ddof=1)) / len(gap) ** 0.5, 2)}
        mean = float(np.mean(times))
        lines.append([suite, rows, way, round(float(first), 2), round(float(five), 2), beside if lines else None])
        lines[-1] += [float(f"{mean:.3g}"), float(f"{lines[0][6] / mean:.2g}") if lines[1:] else None]
        lines[-1].append(float(f"{np.mean(sizes):.3g}"))
        print(*lines[-1], file=sys.stderr, flush=True)
    return lines


def main(arguments: list[str]) -> None:
    suites = {name: SUITES[name] for name in arguments} or SUITES
    stored = STORED / "softmax-tree" / "steps.json"
    lines = json.loads(stored.read_text())["rows"] if stored.exists() else []
    rows = [line for line in lines if line[0] not in suites]  # of suites that are not measured now
    rows += [line for suite, limit in suites.items() for line in lines_of(suite, limit)]
    rows.sort(key=lambda line: list(SUITES).index(line[0]))
    pages.publish(
        "softmax-steps",
        "softmax-tree",
        "steps",
        title="Few solver steps in early iterations",
        shows="The defaults with `early_steps=None`, which solves the problem of every node to the tolerance in every iteration, and with few "
        "steps. Validation rows of samples, on which the numbers of steps were chosen; means of two seeds, the standard error of the paired "
        "difference over rows; processor seconds.",
        columns=COLUMNS,
        rows=rows,
    )
