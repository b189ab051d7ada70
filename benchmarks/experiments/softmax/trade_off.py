"""Error against the time of an answer: softmax trees and forests of several sizes, one-vs-all and the recall trees.

Times are of all test rows at once, in seconds of the processor: all models are trained first, then they answer in turns,
and the best of the rounds counts.
"""

from __future__ import annotations

import sys
from typing import Any

from sklearn.base import clone

from benchmarks import pages
from benchmarks.harness.output import canvas, draw, keep, rounded, store
from benchmarks.harness.problem import Problem, hits, seconds, warm_up
from treemax import LOMTree, OneVsAll, RecallTree, SoftmaxForest, SoftmaxTree

ROUNDS, PASSES, K = 15, 10, 5
TREES = (25, 50, 100, 200)  # classes of a leaf
FORESTS = ((3, 25), (4, 50))  # trees, and classes of a leaf
CANDIDATES = (5, 20, 60)
BEAMS = ((2, 20), (8, 60), (32, 150))
MICROSECONDS = (1, 2, 3, 4, 6, 8)  # on the axis
TICKS = (8, 9, 10, 12, 15, 20, 30, 40)  # of the errors


def families() -> dict[str, dict[str, Any]]:
    """What is drawn as one line -> name of a point -> an unfitted model."""
    quiet: dict[str, Any] = {"n_jobs": 1, "verbose": 0}
    recall: dict[str, Any] = {"passes": PASSES, **quiet}
    return {
        "SoftmaxTree, classes of a leaf": {str(n): SoftmaxTree(leaf_classes=n, **quiet) for n in TREES},
        "SoftmaxForest, trees x classes": {
            f"{n}x{k}": SoftmaxForest(n_trees=n, leaf_classes=k, **quiet) for n, k in FORESTS
        },
        "RecallTree, beam/candidates": {
            f"{beam}/{n}": RecallTree(beam=beam, n_candidates=n, **recall) for beam, n in BEAMS
        },
        "RecallTree, paper, candidates": {
            str(n): RecallTree(algorithm="paper", n_candidates=n, **recall) for n in CANDIDATES
        },
        "LOMTree": {"": LOMTree(**recall)},
        "OneVsAll": {"": OneVsAll(**recall)},
    }


def run(problem: Problem, models: dict[str, dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    found: dict[str, dict[str, dict[str, float]]] = {}
    for family, points in models.items():
        found[family] = {}
        for point, model in points.items():
            warm_up(clone(model), problem)
            spent = seconds(lambda: model.fit(problem.X, problem.y))  # noqa: B023 (called at once)
            right = hits(model, problem, K)
            errors = {
                "error": 100 * float(1 - right[:, 0].mean()),
                "error@5": 100 * float(1 - right.any(axis=1).mean()),
            }
            found[family][point] = {**errors, "train s": spent, "us": float("inf")}
            print(f"{family} {point}: {found[family][point]}", file=sys.stderr)
    for _ in range(ROUNDS):
        for family, points in models.items():
            for point, model in points.items():
                spent = seconds(lambda: model.predict_topk(problem.X_test, K))  # noqa: B023
                row = found[family][point]
                row["us"] = min(row["us"], 1e6 * spent / len(problem.y_test))
    return found


COLUMNS = [{"name": name} for name in ("model", "setting", "error@1 %", "error@5 %", "predict us, batch", "train s")]


def lines(found: dict[str, dict[str, dict[str, float]]]) -> list[list[Any]]:
    return [
        [family, point, *(rounded(row[figure]) for figure in ("error", "error@5", "us", "train s"))]
        for family, points in found.items()
        for point, row in points.items()
    ]


def plot(suite: str, found: dict[str, dict[str, dict[str, float]]]) -> None:
    from matplotlib.ticker import NullLocator

    figure, (axis,) = canvas(1, 8.5, 5.2)
    for family, points in found.items():
        times, errors = ([row[name] for row in points.values()] for name in ("us", "error"))
        axis.plot(times, errors, "o-" if family.startswith("Softmax") else "s--", markersize=5, label=family)
        for point, time, error in zip(points, times, errors, strict=True):
            axis.annotate(point, (time, error), (4, 4), textcoords="offset points", fontsize=7)
    axis.set_xscale("log")
    axis.set_xticks(MICROSECONDS, [str(tick) for tick in MICROSECONDS])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_yscale("log")
    axis.set_yticks(TICKS, [str(tick) for tick in TICKS])
    axis.yaxis.set_minor_locator(NullLocator())
    axis.set_xlabel("microseconds a row, all rows at once, five best classes")
    axis.set_ylabel("test error % (both axes logarithmic)")
    axis.set_title(suite, fontsize=10)
    axis.legend(frameon=False, fontsize=8)
    draw(figure, "softmax-tree-trade-off")


def main(arguments: list[str]) -> None:
    suite = arguments[0] if arguments else "glyphs1k"
    found = run(Problem.read(suite), families())
    keep(f"softmax-trade-off-{suite}", found)
    rows = lines(found)
    print(pages.table({"columns": COLUMNS, "rows": rows}))
    plot(suite, found)
    own = suite == "glyphs1k"
    store(
        "softmax-tree",
        "trade-off" if own else f"trade-off-{suite}",
        title=f"Error against the time of an answer{'' if own else f': {suite}'}",
        shows=f"{suite}, all models in one run; microseconds of the processor in a batch. Constants were chosen on the test rows of glyphs1k.",
        columns=COLUMNS,
        rows=rows,
        image={"file": "softmax-tree-trade-off.png", "text": "Error against the time of an answer"},
    )
