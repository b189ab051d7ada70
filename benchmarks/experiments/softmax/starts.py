"""Error after every iteration by where training begins (figure 3), as the paper trains and as we do."""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.experiments.softmax.models import PAPER, Outcome, measured, softmax_tree
from benchmarks.harness.output import canvas, draw, keep, table
from benchmarks.harness.problem import Problem

STARTS = ("random", "kmeans", "prototypes", "balanced")
WAYS: dict[str, dict[str, Any]] = {"the paper's algorithm": PAPER, "the defaults, complete tree": {"growth": 1.0}}
ITERATIONS = 5
Found = dict[str, dict[str, list[Outcome]]]  # by way and start: after each iteration


def run(problem: Problem) -> Found:
    found: Found = {}
    for way, settings in WAYS.items():
        found[way] = {}
        for start in STARTS:
            model = softmax_tree(**{**settings, "start": start, "warm_start": True, "iterations": 1})
            found[way][start] = []
            for iteration in range(1, ITERATIONS + 1):
                found[way][start].append(measured(model.set_params(iterations=iteration), problem))
            print(f"{way}, {start}: {[round(o.error, 1) for o in found[way][start]]}", file=sys.stderr)
    return found


def page(found: Found) -> str:
    rows = []
    for way, by_start in found.items():
        for start, after in by_start.items():
            last = after[-1]
            rows.append([way, start, *(f"{outcome.error:.1f}" for outcome in after), f"{last.training_error:.1f}", f"{last.coverage:.1f}"])  # fmt: skip
    counted = [f"error %, {i + 1}" for i in range(ITERATIONS)]
    return table(["", "start", *counted, "training error %", "coverage %"], rows)


def plot(suite: str, found: Found) -> None:
    figure, axes = canvas(len(found), 9, 3.8, sharey=True)
    for axis, (way, by_start) in zip(axes, found.items(), strict=True):
        for start, after in by_start.items():
            axis.plot(range(1, len(after) + 1), [outcome.error for outcome in after], "o-", markersize=4, label=start)
        axis.set_xlabel("iterations")
        axis.set_xticks(range(1, ITERATIONS + 1))
        axis.set_title(f"{suite}, {way}", fontsize=10)
    axes[0].set_ylabel("test error %")
    axes[0].set_ylim(bottom=0)
    axes[-1].legend(frameon=False)
    draw(figure, "softmax-tree-starts")


def main(arguments: list[str]) -> None:
    suite = arguments[0] if arguments else "glyphs1k"
    found = run(Problem.read(suite))
    keep(f"softmax-starts-{suite}", {way: {s: [o._asdict() for o in after] for s, after in rows.items()} for way, rows in found.items()})  # fmt: skip
    print(page(found))
    plot(suite, found)
