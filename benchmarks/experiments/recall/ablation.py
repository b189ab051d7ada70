"""What each part of a recall tree is worth: candidates, path features, the bound, router weights (4.4, 4.5)."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from benchmarks.experiments.recall.models import recall_tree
from benchmarks.harness.output import canvas, draw, keep, table
from benchmarks.harness.problem import Problem, hits

PASSES, SEEDS = 3, (0, 1, 2)
CANDIDATES = (1, 2, 5, 10, 20, 40, 70, 100)
BOUNDS = (None, 0, 0.1, 1, 4)
ROUTER_WEIGHTS = ("increase", "unit", "printed")
PAPER = {"algorithm": "paper"}

SERIES: dict[str, dict[str, dict[str, Any]]] = {
    "with-path": {str(n): {**PAPER, "n_candidates": n} for n in CANDIDATES},
    "without-path": {str(n): {**PAPER, "n_candidates": n, "path_features": False} for n in CANDIDATES},
    "beam": {str(n): {"n_candidates": n} for n in CANDIDATES},
    "bound": {str(bound): {**PAPER, "bound": bound} for bound in BOUNDS},
    "router-weight": {name: {**PAPER, "router_weight": name} for name in ROUTER_WEIGHTS},
}
TITLES = {
    "with-path": "paper, path features",
    "without-path": "paper, no path features",
    "beam": "beam",
    "bound": "bound",
    "router-weight": "router weight",
}
COMPARED = ("with-path", "without-path", "beam")  # by the number of candidates
Found = dict[str, dict[str, dict[str, list[float]]]]


def measure(problem: Problem, settings: dict[str, Any], seed: int) -> tuple[float, float]:
    """Error and recall of the candidates on the test rows, in per cent."""
    model = recall_tree(passes=PASSES, random_state=seed, **settings).fit(problem.X, problem.y)
    right = hits(model, problem, model.describe()["candidates"])
    return 100 * float(1 - right[:, 0].mean()), 100 * float(right.any(axis=1).mean())


def run(problem: Problem, series: dict[str, dict[str, dict[str, Any]]]) -> Found:
    found: Found = {}
    for name, values in series.items():
        found[name] = {}
        for value, settings in values.items():
            pairs = [measure(problem, settings, seed) for seed in SEEDS]
            errors, recalls = (list(figures) for figures in zip(*pairs, strict=True))
            found[name][value] = {"error": errors, "recall": recalls}
            print(f"{name} {value}: {spread(errors)}", file=sys.stderr, flush=True)
    return found


def spread(values: list[float]) -> str:
    """The mean, and how far the seeds are apart."""
    return f"{np.mean(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def tables(found: Found) -> str:
    """By the number of candidates, then one table for each of the others."""
    pages = []
    compared = [name for name in COMPARED if name in found]
    if compared:
        columns = [f"{what} %, {TITLES[name]}" for name in compared for what in ("error", "recall")]
        rows = []
        for value in found[compared[0]]:
            cells = [found[name][value] for name in compared]
            rows.append([value, *(spread(cell[what]) for cell in cells for what in ("error", "recall"))])
        pages.append(table(["candidates", *columns], rows))
    for name in (name for name in found if name not in COMPARED):
        rows = [[value, spread(cell["error"]), spread(cell["recall"])] for value, cell in found[name].items()]
        pages.append(table([TITLES[name], "error %", "recall of the candidates %"], rows))
    return "\n\n".join(pages)


def plot(suite: str, found: Found) -> None:
    figure, (candidates, bound, weight) = canvas(3, 11, 4.2, width_ratios=(2.2, 1.2, 0.9))
    for name in COMPARED:
        line = "--" if name == "without-path" else "-"  # it lies nearly on the other
        points(candidates, [int(value) for value in found[name]], found[name], TITLES[name], line)
    candidates.set_xscale("log")
    candidates.set_xticks(CANDIDATES, [str(n) for n in CANDIDATES])
    candidates.minorticks_off()
    candidates.set_xlabel("candidates")
    candidates.legend(frameon=False)
    for axis, name, label in ((bound, "bound", "bound (lambda)"), (weight, "router-weight", "router weight")):
        points(axis, range(len(found[name])), found[name], TITLES[name], "")
        axis.set_xticks(range(len(found[name])), list(found[name]))
        axis.margins(x=0.2)
        axis.set_xlabel(label)
    for axis, title in ((candidates, suite), (bound, "paper"), (weight, "paper")):
        axis.margins(y=0.1)
        axis.set_ylim(bottom=0)
        axis.set_ylabel("test error %")
        axis.set_title(title, fontsize=10)
    draw(figure, "recall-tree-ablation")


def points(axis: Any, places: Any, cells: dict[str, dict[str, list[float]]], label: str, line: str) -> None:
    """Means of the seeds, with a bar from the least to the largest."""
    errors = np.array([cell["error"] for cell in cells.values()])
    means = errors.mean(axis=1)
    ends = np.abs(np.array([errors.min(axis=1), errors.max(axis=1)]) - means)
    axis.errorbar(list(places), means, yerr=ends, marker="o", markersize=4, capsize=3, linestyle=line, label=label)


def main(arguments: list[str]) -> None:
    suite, *names = arguments or ["glyphs1k"]
    found = run(Problem.read(suite), {name: SERIES[name] for name in names or SERIES})
    keep(f"recall-ablation-{suite}" + "".join(f"-{name}" for name in names), found)
    print(tables(found))
    if not names:
        plot(suite, found)
