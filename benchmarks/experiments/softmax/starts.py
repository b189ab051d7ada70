"""Error after every iteration by where training begins (figure 3), as the paper trains and as we do."""

from __future__ import annotations

import sys
from typing import Any

from benchmarks import pages
from benchmarks.experiments.softmax.models import DEPTH, LEAF_CLASSES, PAPER, Outcome, measured, softmax_tree
from benchmarks.harness.output import canvas, draw
from benchmarks.harness.problem import Problem

STARTS = ("gaussian", "random", "kmeans", "prototypes", "balanced")
WAYS: dict[str, dict[str, Any]] = {"as published": PAPER, "the defaults, `growth=1.0`": {"growth": 1.0}}
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


def rows(found: Found) -> list[list[Any]]:
    return [
        [
            way,
            start,
            *(
                round(error, 2)
                for error in (*(outcome.error for outcome in after), after[-1].training_error, after[-1].coverage)
            ),
        ]
        for way, by_start in found.items()
        for start, after in by_start.items()
    ]


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
    plot(suite, found)
    figures = [*(f"error %, {iteration}" for iteration in range(1, ITERATIONS + 1)), "training error %", "coverage %"]
    pages.publish(
        f"softmax-starts-{suite}",
        "softmax-tree",
        "starts" if suite == "glyphs1k" else f"starts-{suite}",
        title="Where training begins",
        shows=f"Figure 3 of the paper: test error on {suite} after each iteration, depth {DEPTH}, {LEAF_CLASSES} classes a leaf. Coverage is the "
        'share of test rows that find their class in the leaf. "gaussian" is the random start of the paper, "random" one through the '
        "median of the rows.",
        columns=[{"name": "algorithm"}, {"name": "start"}, *({"name": name, "decimals": 1} for name in figures)],
        rows=rows(found),
        image={"file": "softmax-tree-starts.png", "text": "Error after each iteration by start"},
    )
