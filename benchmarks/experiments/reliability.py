"""How far the probabilities of a label tree can be trusted: the plot of docs/label-tree.md.

    python -m benchmarks.experiments.reliability [PNG]

For each answer of a given probability, how often it is right: above, the first answer of every row; below, all
labels with a probability of a hundredth or more. On the diagonal, what it says is what is true.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

import treemax
from benchmarks import FOLDER
from benchmarks.harness.accuracy import expected_error
from benchmarks.harness.measure import Data
from benchmarks.harness.output import help_if_asked
from benchmarks.harness.suites import prepared

SUITES = ("wordnet", "gcc")
SETTINGS = [(loss, temperature) for loss in ("squared_hinge", "logistic") for temperature in (1.0, 1.75)]
STYLES = {"squared_hinge": "C0", "logistic": "C1", 1.0: "-", 1.75: "--"}
LEAST = 30  # answers, for a point of a curve
EDGES = np.array([0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0])


class Answers:
    """Probabilities and whether they were right: of first answers, and of all labels that were likely enough."""

    def __init__(self, model: treemax.LabelTree, X: Any, lists: list[list[int]]) -> None:
        truth = {(row, label) for row, labels in enumerate(lists) for label in labels}
        top = model.predict_topk(X, 1)
        first = [(row, label) for row, label in enumerate(top.labels[:, 0].tolist())]
        self.first = (top.scores[:, 0], np.array([pair in truth for pair in first]))
        found = model.predict_above(X, float(EDGES[0]), scores=True)
        likely = [(row, label, score) for row, pairs in enumerate(found) for label, score in pairs]
        right = np.array([(row, label) in truth for row, label, _ in likely])
        self.all = (np.array([score for _, _, score in likely]), right)


def curve(probabilities: np.ndarray, right: np.ndarray) -> tuple[list[float], list[float]]:
    """Mean probability and share of right answers, bin by bin."""
    of_bin = np.digitize(probabilities, EDGES[1:-1])
    bins = [of_bin == number for number in range(len(EDGES) - 1) if (of_bin == number).sum() >= LEAST]
    return [float(probabilities[b].mean()) for b in bins], [float(right[b].mean()) for b in bins]


def answers_of(suite: str) -> dict[tuple[str, float], Answers]:
    data = Data(prepared(suite))
    parts, shape = data.csr("train")
    X = sp.csr_matrix(parts, shape=shape)
    parts, shape = data.csr("test")
    X_test, lists = sp.csr_matrix(parts, shape=shape), data.label_lists("test")
    y = data.label_lists("train") if data.multi_label else data.classes("train")
    found = {}
    for loss, temperature in SETTINGS:
        model = treemax.LabelTree(loss=loss, temperature=temperature).fit(X, y)
        found[loss, temperature] = answers = Answers(model, X_test, lists)
        probabilities, right = answers.first
        print(
            f"| {suite} | {loss} | {temperature} | {right.mean():.4f} | {probabilities.mean():.3f} "
            f"| {expected_error(*answers.first):.3f} | {expected_error(*answers.all):.3f} |",
            flush=True,
        )
    return found


def main(path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    print("| data | loss | temperature | P@1 | mean probability | error, first answers | error, likely labels |")
    print("|---|---|--:|--:|--:|--:|--:|")
    figure, axes = pyplot.subplots(2, len(SUITES), figsize=(9, 8.4), sharex=True, sharey=True)
    for column, suite in enumerate(SUITES):
        found = answers_of(suite)
        for axis, kind, title in zip(axes[:, column], ("first", "all"), ("first answers", "likely labels")):
            axis.plot([0, 1], [0, 1], color="0.8", zorder=0)
            for (loss, temperature), answers in found.items():
                style = {"color": STYLES[loss], "linestyle": STYLES[temperature], "marker": "."}
                axis.plot(*curve(*getattr(answers, kind)), label=f"{loss}, {temperature:g}", **style)
            axis.set_title(f"{suite}: {title}")
    axes[0, 0].legend(title="loss, temperature", frameon=False)
    for axis in axes[:, 0]:
        axis.set_ylabel("share that is right")
    for axis in axes[-1]:
        axis.set_xlabel("probability")
    figure.tight_layout()
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    help_if_asked(__doc__)
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER / "results" / "label-tree-reliability.png")
