"""What a row loses whose class is not in the leaf: the three treatments of section 4.1 (table 1)."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from benchmarks import pages
from benchmarks.experiments.softmax.models import PAPER, Outcome, measured, softmax_tree
from benchmarks.harness.output import keep, store
from benchmarks.harness.problem import Problem

TREATMENTS: dict[str, dict[str, Any]] = {
    "rows left out (drop)": {"missing": "drop"},
    "beta = 10": {"missing": "beta", "beta": 10.0},
    "beta = 100": {"missing": "beta", "beta": 100.0},
    "beta = 10^7": {"missing": "beta", "beta": 1e7},
    "errors in place of losses (zero-one)": {"missing": "zero-one"},
}
WAYS: dict[str, dict[str, Any]] = {"the paper's": PAPER, "the defaults": {"depth": "auto"}}
ITERATIONS, SEEDS = 3, (0, 1, 2)
FIGURES = ("training_error", "error", "coverage", "seconds")

Found = dict[str, dict[str, list[Outcome]]]


def run(problem: Problem) -> Found:
    """Train every tree with every seed."""
    found: Found = {}
    for way, settings in WAYS.items():
        found[way] = {}
        for treatment, own in TREATMENTS.items():
            trees = [
                softmax_tree(**{**settings, **own, "iterations": ITERATIONS, "random_state": seed}) for seed in SEEDS
            ]
            found[way][treatment] = [measured(tree, problem) for tree in trees]
            print(f"{way}, {treatment}: {found[way][treatment]}", file=sys.stderr)
    return found


def rows(found: Found) -> list[list[Any]]:
    """Mean and standard deviation of each figure over the seeds."""
    lines: list[list[Any]] = []
    for way, by_treatment in found.items():
        for treatment, outcomes in by_treatment.items():
            values = np.array([[getattr(outcome, figure) for figure in FIGURES] for outcome in outcomes])
            spread = values.std(axis=0, ddof=1) if len(outcomes) > 1 else np.zeros(len(FIGURES))
            cells = [{"value": round(m, 2), "error": round(s, 2)} for m, s in zip(values.mean(axis=0), spread)]
            lines.append([way, treatment, *cells])
    return lines


def main(arguments: list[str]) -> None:
    suite = arguments[0] if arguments else "glyphs1k"
    limit = int(arguments[1]) if arguments[1:] else None
    found = run(Problem.read(suite, limit))
    dictionaries = {way: {t: [o._asdict() for o in all_] for t, all_ in by.items()} for way, by in found.items()}
    keep(f"softmax-missing-{suite}", dictionaries)
    names = ("training error %", "test error %", "coverage %", "train s")
    columns = [{"name": "algorithm"}, {"name": "missing class"}, *({"name": name, "decimals": 1} for name in names)]
    lines = rows(found)
    print(pages.table({"columns": columns, "rows": lines}))
    store(
        "softmax-tree",
        "missing" if suite == "glyphs1k" else f"missing-{suite}",
        title="A class that is not in the leaf" + ("" if suite == "glyphs1k" else f": {suite}"),
        shows=f"Table 1 of the paper on {suite}{f', {limit:,} rows of it' if limit else ''}: {ITERATIONS} iterations, mean and standard deviation of {len(SEEDS)} seeds.",
        columns=columns,
        rows=lines,
    )
