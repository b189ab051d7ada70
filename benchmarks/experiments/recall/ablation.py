"""What each part of a recall tree is worth: candidates, path features, the bound, router weights (4.4, 4.5)."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from benchmarks import pages
from benchmarks.experiments.recall.models import recall_tree
from benchmarks.harness.output import canvas, draw, keep, store
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
SHOWN = {  # title, and what the table shows
    "candidates": (
        "Candidates and path features",
        'Figure 5b of the paper. *Paper* is `algorithm="paper"`, *beam* the default; *recall* is the share of test rows whose '
        "label is a candidate.",
    ),
    "bound": (
        "The bound of the recall",
        "Section 4.5 of the paper: lambda of equation 1; without a bound, down to a leaf.",
    ),
    "router-weight": ("The weight of a router's row", "Algorithm 3 of the paper, and other weights."),
}
IMAGE = {"file": "recall-tree-ablation.png", "text": "Error by candidates, bound and router weight"}
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


def spread(values: list[float]) -> dict[str, float]:
    """The mean, and how far the seeds are apart."""
    return {"value": round(float(np.mean(values)), 1), "low": round(min(values), 1), "high": round(max(values), 1)}


def tables(found: Found) -> dict[str, dict[str, Any]]:
    """Columns and rows: by the number of candidates, then one table for each of the others."""
    pages = {}
    compared = [name for name in COMPARED if name in found]
    if compared:
        columns = [f"{what} %, {TITLES[name]}" for name in compared for what in ("error", "recall")]
        rows: list[list[Any]] = []
        for value in found[compared[0]]:
            cells = [found[name][value] for name in compared]
            rows.append([int(value), *(spread(cell[what]) for cell in cells for what in ("error", "recall"))])
        pages["candidates"] = {"columns": with_decimals("candidates", columns), "rows": rows}
    for name in (name for name in found if name not in COMPARED):
        rows = [[value, spread(cell["error"]), spread(cell["recall"])] for value, cell in found[name].items()]
        columns = ["error %", "recall of the candidates %"]
        pages[name] = {"columns": with_decimals(f"{TITLES[name]}, paper", columns), "rows": rows}
    return pages


def with_decimals(first: str, others: list[str]) -> list[dict[str, Any]]:
    return [{"name": first}, *({"name": name, "decimals": 1} for name in others)]


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
    for name, result in tables(found).items():
        print(pages.table(result), end="\n\n")
        title, shows = SHOWN[name]
        own = suite == "glyphs1k"
        image = {"image": IMAGE} if own and not names and name == "candidates" else {}
        store(
            "recall-tree", name if own else f"{name}-{suite}", title=title if own else f"{title}: {suite}",
            shows=f"{shows} {suite}, {PASSES} passes, means of {len(SEEDS)} seeds, from the least to the largest.",
            **result, **image,
        )  # fmt: skip
    if not names:
        plot(suite, found)
