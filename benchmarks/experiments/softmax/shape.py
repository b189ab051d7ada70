"""Error and the time of an answer by depth and by the classes of a leaf (figures 2 and 4), of complete trees."""

from __future__ import annotations

import sys

from benchmarks.experiments.softmax.models import Outcome, measured, softmax_tree
from benchmarks.harness.output import canvas, draw, keep, number, table
from benchmarks.harness.problem import Problem

DEPTHS = (3, 5, 7)
LEAF_CLASSES: tuple[int | None, ...] = (25, 50, 100, 200)  # None is every class that comes to the leaf
ITERATIONS = 3
MICROSECONDS = (0.5, 0.7, 1, 1.5, 2)  # on the axis
Found = dict[str, dict[int, Outcome]]  # by the classes of a leaf and the depth


def name(n_classes: int | None) -> str:
    return "all" if n_classes is None else str(n_classes)


def run(problem: Problem) -> Found:
    found: Found = {}
    for n_classes in LEAF_CLASSES:
        for depth in DEPTHS:
            model = softmax_tree(depth=depth, leaf_classes=n_classes, growth=1.0, iterations=ITERATIONS)
            found.setdefault(name(n_classes), {})[depth] = measured(model, problem)
            print(f"{name(n_classes)} classes, depth {depth}: {found[name(n_classes)][depth]}", file=sys.stderr)
    return found


def page(found: Found) -> str:
    rows = []
    for n_classes, by_depth in found.items():
        cells = [f"{cell.error:.1f} ({number(cell.microseconds)})" for cell in by_depth.values()]
        rows.append([n_classes, *cells])
    return table(["classes of a leaf", *(f"depth {depth}" for depth in next(iter(found.values())))], rows)


def plot(suite: str, found: Found) -> None:
    figure, (by_depth, by_time) = canvas(2, 10, 4.2, sharey=True)
    for n_classes, cells in found.items():
        errors = [cell.error for cell in cells.values()]
        by_depth.plot(list(cells), errors, "o-", markersize=4, label=f"{n_classes} classes")
        by_time.plot([cell.microseconds for cell in cells.values()], errors, "o-", markersize=4)
        for depth, cell in cells.items():
            by_time.annotate(
                str(depth), (cell.microseconds, cell.error), (3, 3), textcoords="offset points", fontsize=7
            )
    for axis in (by_depth, by_time):
        axis.set_yscale("log")
        axis.set_yticks((10, 15, 20, 30, 50, 80), ("10", "15", "20", "30", "50", "80"))
        axis.minorticks_off()
    by_depth.set_xticks(DEPTHS)
    by_depth.set_xlabel("depth")
    by_depth.set_ylabel("test error % (logarithmic)")
    by_depth.legend(frameon=False, title="in a leaf, at most", fontsize=8)
    by_time.set_xscale("log")
    by_time.set_xticks(MICROSECONDS, [str(tick) for tick in MICROSECONDS])
    by_time.minorticks_off()
    by_time.set_xlabel("microseconds of an answer, all rows at once; figures: depth")
    by_depth.set_title(suite, fontsize=10)
    draw(figure, "softmax-tree-shape")


def main(arguments: list[str]) -> None:
    suite = arguments[0] if arguments else "glyphs1k"
    found = run(Problem.read(suite))
    keep(f"softmax-shape-{suite}", {key: {d: c._asdict() for d, c in cells.items()} for key, cells in found.items()})
    print(page(found))
    plot(suite, found)
