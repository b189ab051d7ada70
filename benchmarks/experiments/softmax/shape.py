"""Error and the time of an answer by depth and by the classes of a leaf (figures 2 and 4), of complete trees.

Each way of training has a table of its own: ours, and the paper's from its random start, as in figure 2.
"""

from __future__ import annotations

import sys
from typing import Any

from benchmarks import pages
from benchmarks.experiments.softmax.models import PAPER, Outcome, measured, softmax_tree
from benchmarks.harness.output import canvas, draw, keep, store
from benchmarks.harness.problem import Problem

DEPTHS = (3, 5, 7)
LEAF_CLASSES: tuple[int | None, ...] = (25, 50, 100, 200, None)  # None is every class that comes to the leaf
ITERATIONS = 3
WAYS: dict[str, dict[str, Any]] = {"ours": {"growth": 1.0}, "the paper's": {**PAPER, "start": "gaussian"}}
MICROSECONDS = (0.2, 0.3, 0.5, 1, 2, 3, 5)  # on the axis
Found = dict[str, dict[str, dict[int, Outcome]]]  # by the way of training, the classes of a leaf and the depth


def name(n_classes: int | None) -> str:
    return "all" if n_classes is None else str(n_classes)


def run(problem: Problem) -> Found:
    found: Found = {}
    for way, settings in WAYS.items():
        for n_classes in LEAF_CLASSES:
            cells = found.setdefault(way, {}).setdefault(name(n_classes), {})
            for depth in DEPTHS:
                model = softmax_tree(
                    **{**settings, "depth": depth, "leaf_classes": n_classes, "iterations": ITERATIONS}
                )
                cells[depth] = measured(model, problem)
                print(f"{way}, {name(n_classes)} classes, depth {depth}: {cells[depth]}", file=sys.stderr, flush=True)
    return found


def rows(found: Found) -> list[list[Any]]:
    """A line for every tree."""
    lines: list[list[Any]] = []
    for way, by_classes in found.items():
        for n_classes, cells in by_classes.items():
            for depth, cell in cells.items():
                figures = (
                    cell.error,
                    cell.training_error,
                    cell.leaves,
                    cell.leaf_classes,
                    cell.microseconds,
                    cell.seconds,
                )
                lines.append([way, n_classes, depth, *(float(f"{figure:.3g}") for figure in figures)])
    return lines


def plot(suite: str, found: Found) -> None:
    figure, axes = canvas(2 * len(found), 16, 4.2, sharey=True)
    for place, (way, by_classes) in enumerate(found.items()):
        by_depth, by_time = axes[2 * place : 2 * place + 2]
        for n_classes, cells in by_classes.items():
            errors = [cell.error for cell in cells.values()]
            by_depth.plot(list(cells), errors, "o-", markersize=4, label=f"{n_classes} classes")
            by_time.plot([cell.microseconds for cell in cells.values()], errors, "o-", markersize=4)
            for depth, cell in cells.items():
                at = (cell.microseconds, cell.error)
                by_time.annotate(str(depth), at, (3, 3), textcoords="offset points", fontsize=7)
        by_depth.set_xticks(DEPTHS)
        by_depth.set_xlabel("depth")
        by_depth.set_title(f"{suite}, {way}", fontsize=10)
        by_time.set_xscale("log")
        by_time.set_xticks(MICROSECONDS, [str(tick) for tick in MICROSECONDS])
        by_time.set_xlabel("microseconds of an answer; figures: depth")
    for axis in axes:
        axis.set_yscale("log")
        axis.set_yticks((10, 15, 20, 30, 50, 80), ("10", "15", "20", "30", "50", "80"))
        axis.minorticks_off()
    axes[0].set_ylabel("test error % (logarithmic)")
    axes[0].legend(frameon=False, title="in a leaf, at most", fontsize=8)
    draw(figure, "softmax-tree-shape")


def main(arguments: list[str]) -> None:
    suite = arguments[0] if arguments else "glyphs1k"
    found = run(Problem.read(suite))
    keep(
        f"softmax-shape-{suite}",
        {way: {k: {d: c._asdict() for d, c in by.items()} for k, by in each.items()} for way, each in found.items()},
    )
    columns = [
        *({"name": text} for text in ("training", "classes of a leaf", "depth")),
        *({"name": text, "decimals": 1} for text in ("test error %", "training error %")),
        *({"name": text} for text in ("leaves", "mean classes", "predict us", "train s")),
    ]
    print(pages.table({"columns": columns, "rows": rows(found)}))
    plot(suite, found)
    store(
        "softmax-tree",
        "shape" if suite == "glyphs1k" else f"shape-{suite}",
        title="Depth and classes of a leaf",
        shows=f"Figures 2 and 4, and the columns of table 9, on {suite}: complete trees, {ITERATIONS} iterations.",
        columns=columns,
        rows=rows(found),
        image={"file": "softmax-tree-shape.png", "text": "Error by depth and by time"},
    )
