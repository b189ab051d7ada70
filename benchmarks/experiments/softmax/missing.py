"""What a row loses whose class is not in the leaf: the three treatments of section 4.1 (table 1)."""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.experiments.softmax.models import PAPER, Outcome, means, measured, softmax_tree
from benchmarks.harness.output import keep, table
from benchmarks.harness.problem import Problem

TREATMENTS: dict[str, dict[str, Any]] = {
    "rows left out (drop)": {"missing": "drop"},
    "beta = 10": {"missing": "beta", "beta": 10.0},
    "beta = 100": {"missing": "beta", "beta": 100.0},
    "errors in place of losses (zero-one)": {"missing": "zero-one"},
}
WAYS: dict[str, dict[str, Any]] = {
    "the paper's": PAPER,
    "the defaults": {"depth": "auto"},
}
ITERATIONS, SEEDS = 3, (0,)


def run(problem: Problem) -> dict[str, dict[str, Outcome]]:
    found: dict[str, dict[str, Outcome]] = {}
    for way, settings in WAYS.items():
        found[way] = {}
        for treatment, own in TREATMENTS.items():
            trees = [
                softmax_tree(**settings, **own, iterations=ITERATIONS, random_state=seed) for seed in SEEDS
            ]
            found[way][treatment] = means([measured(tree, problem) for tree in trees])
            print(f"{way}, {treatment}: {found[way][treatment]}", file=sys.stderr)
    return found


def page(found: dict[str, dict[str, Outcome]]) -> str:
    rows = []
    for way, by_treatment in found.items():
        for treatment, outcome in by_treatment.items():
            figures = (outcome.training_error, outcome.error, outcome.coverage, outcome.seconds)
            rows.append([way, treatment, *(f"{figure:.1f}" for figure in figures)])
    return table(
        ["algorithm", "missing class", "training error %", "test error %", "coverage %", "train s"], rows
    )


def main(arguments: list[str]) -> None:
    suite = arguments[0] if arguments else "glyphs1k"
    found = run(Problem.read(suite))
    keep(
        f"softmax-missing-{suite}",
        {way: {t: o._asdict() for t, o in rows.items()} for way, rows in found.items()},
    )
    print(page(found))
