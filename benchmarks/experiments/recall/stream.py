"""What a stream in its own order is worth: progressive loss in order and permuted (4.3).

A row is answered, then learned; the loss is what the model itself keeps (`progressive_loss_`). Rows come in small
pieces through `partial_fit`, so that nothing is known ahead. Rows of gcc have several labels; the first of each,
in the order of the alphabet, is taken.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

from benchmarks import pages
from benchmarks.experiments.recall.models import recall_tree
from benchmarks.harness.output import canvas, draw, keep, store
from benchmarks.harness.problem import Problem
from treemax import MODELS

ROWS_A_STEP = 100
POINTS = 60  # of a curve, evenly on a logarithmic axis
FIRST_POINT = 1000
ORDERS = ("in order", "permuted")


def models() -> dict[str, Any]:
    found: dict[str, Any] = {"beam": recall_tree, "paper": lambda: recall_tree(algorithm="paper")}
    if "lom-tree" in MODELS:
        found["LOMTree"] = lambda: MODELS["lom-tree"](n_jobs=1, verbose=0)
    return found


def stream(problem: Problem, order: np.ndarray, model: Any) -> dict[str, list[float]]:
    """The progressive loss at points along the stream: of all rows up to there."""
    n = len(order)
    points = np.geomspace(min(FIRST_POINT, n), n, POINTS)
    curve: dict[str, list[float]] = {"rows": [], "loss": []}
    for start in range(0, n, ROWS_A_STEP):
        rows = order[start : start + ROWS_A_STEP]
        model.partial_fit(problem.X[rows], problem.y[rows])
        done = start + len(rows)
        if done >= points[0] or done == n:
            curve["rows"].append(done)
            curve["loss"].append(model.progressive_loss_)
            points = np.append(points[points > done], np.inf)
    return curve


def chance(first: float, second: float, n: int) -> float:
    """The N - 1 chi-squared test of two shares of n rows each, as the paper takes it: how likely by chance."""
    both = (first + second) / 2
    if both in (0.0, 1.0):
        return 1.0
    pearson = n * (first - second) ** 2 / (2 * both * (1 - both))
    return math.erfc(math.sqrt(pearson * (2 * n - 1) / (2 * n) / 2))


def run(problem: Problem) -> dict[str, dict[str, Any]]:
    permuted = np.random.default_rng(0).permutation(len(problem.y))
    found: dict[str, dict[str, Any]] = {}
    for name, new_model in models().items():
        found[name] = {}
        for order, rows in zip(ORDERS, (np.arange(len(problem.y)), permuted), strict=True):
            model = new_model()
            curve = stream(problem, rows, model)
            recall = getattr(model, "candidate_recall_", None)
            found[name][order] = {**curve, "candidate recall": recall}
            print(f"{name}, {order}: {curve['loss'][-1]:.4f}", file=sys.stderr, flush=True)
    return found


COLUMNS = [
    *({"name": name} for name in ("stream", "model", "rows")),
    *({"name": f"loss % {order}", "decimals": 2} for order in ORDERS),
    {"name": "difference", "decimals": 2, "signed": True},
    *({"name": f"recall % {order}", "decimals": 1} for order in ORDERS),
    {"name": "by chance"},
]


def lines(suite: str, found: dict[str, dict[str, Any]]) -> list[list[Any]]:
    rows: list[list[Any]] = []
    for name, runs in found.items():
        n = runs[ORDERS[0]]["rows"][-1]
        losses = [runs[order]["loss"][-1] for order in ORDERS]
        likely = chance(*losses, n)
        recalls = [runs[order]["candidate recall"] for order in ORDERS]
        rows.append(
            [suite, name, n, *(round(100 * loss, 2) for loss in losses), round(100 * (losses[0] - losses[1]), 2)]
            + [None if recall is None else round(100 * recall, 1) for recall in recalls]
            + ["< .0001" if likely < 1e-4 else f"{likely:.2g}"]
        )
    return rows


def plot(found: dict[str, dict[str, dict[str, Any]]]) -> None:
    figure, axes = canvas(len(found), 4.8 * len(found), 4.2)
    for axis, (suite, runs) in zip(axes, found.items(), strict=True):
        for number, (name, orders) in enumerate(runs.items()):
            for order, style in zip(ORDERS, ("-", "--"), strict=True):
                curve = orders[order]
                losses = [100 * loss for loss in curve["loss"]]
                axis.plot(curve["rows"], losses, style, color=f"C{number}", label=f"{name}, {order}")
        axis.set_xscale("log")
        axis.set_xlabel("rows of the stream")
        axis.set_ylabel("progressive loss %, mean so far")
        axis.set_title(suite, fontsize=10)
    axes[0].legend(frameon=False, fontsize=9)
    draw(figure, "recall-tree-stream")


def main(arguments: list[str]) -> None:
    found, rows = {}, []
    for suite in arguments or ["ptb"]:
        found[suite] = run(Problem.read(suite))
        keep(f"recall-stream-{suite}", found[suite])
        rows += lines(suite, found[suite])
    print(pages.table({"columns": COLUMNS, "rows": rows}))
    plot(found)
    store(
        "recall-tree",
        "stream",
        title="A stream in its own order",
        shows="Section 4.3 of the paper: progressive loss of rows in order and permuted.",
        columns=COLUMNS,
        rows=rows,
        image={"file": "recall-tree-stream.png", "text": "Progressive loss in order and permuted"},
    )
