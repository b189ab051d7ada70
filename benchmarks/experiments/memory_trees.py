"""The contextual memory tree where rows have several labels, beside online label trees (Tables 2 and 4 of their paper).

    python -m benchmarks.experiments.memory_trees [SUITE...]

Vowpal Wabbit's memory tree with one-against-some at the leaves (`--oas`) answers with a set of labels, so that the table has
F1 and the Hamming loss of sets besides the P@k of models that rank. One thread, processor time.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from benchmarks import pages
from benchmarks.experiments.few_shot import VW_BITS, run_vw, vw_nodes
from benchmarks.harness.accuracy import accuracies, inverse_propensities
from benchmarks.harness.measure import Data
from benchmarks.harness.output import help_if_asked
from benchmarks.harness.problem import features
from benchmarks.harness.suites import prepared
from treemax import ContextualMemoryTree, OnlineLabelTree

SUITES = ("debtags",)
PASSES = (1,)
# As the authors' scripts for several labels a row.
VW_OPTIONS = (
    "--oas --learn_at_leaf --alpha 0.1 -l 0.1 --dream_at_update 1 --dream_repeats 3 --leaf_example_multiplier 10"
)
COLUMNS = [
    *({"name": name} for name in ("suite", "model", "passes")),
    *({"name": name, "decimals": 4} for name in ("P@1", "P@3", "P@5", "instance F1")),
    {"name": "Hamming loss", "decimals": 2},
    *({"name": name} for name in ("train s", "predict us")),
]


class Suite:
    """Rows and label lists of a suite."""

    def __init__(self, data: Data) -> None:
        self.X, self.X_test = features(data, "train"), features(data, "test")
        self.y, self.y_test = data.label_lists("train"), data.label_lists("test")
        self.n_labels, self.test_labels = data.n_labels, data.labels("test")
        self.weights = inverse_propensities(data.labels("train")[0], data.n_labels, len(self.y))

    def of_sets(self, answers: list[list[int]]) -> list[float]:
        """Mean F1 of a row, and mean number of labels that are missing or wrong."""
        scores, wrong = [], []
        for answer, truth in zip(map(set, answers), map(set, self.y_test), strict=True):
            both = len(answer & truth)
            scores.append(2 * both / max(1, len(answer) + len(truth)) if answer or truth else 1.0)
            wrong.append(len(answer ^ truth))
        return [float(np.mean(scores)), float(np.mean(wrong))]


def models(passes: int) -> dict[str, Any]:
    options = {"passes": passes, "n_jobs": 1, "verbose": 0}
    return {
        "OPLT best-greedy, as published": OnlineLabelTree.as_published(**options),
        "ContextualMemoryTree": ContextualMemoryTree(**options),
        "ContextualMemoryTree, as published": ContextualMemoryTree.as_published(**options),
    }


def of_ours(suite: Suite, model: Any) -> list[float]:
    model.fit(suite.X[:50], suite.y[:50]).predict_topk(suite.X_test[:2], 5)
    start = time.process_time()
    model.fit(suite.X, suite.y)
    trained = time.process_time()
    top = model.predict_topk(suite.X_test, 5).labels
    answered = time.process_time()
    ranked = np.array([[-1 if label is None else label for label in row] for row in top.tolist()])
    found = accuracies(ranked, *suite.test_labels, suite.weights, False, False)
    sets = suite.of_sets([list(labels) for labels in model.predict(suite.X_test)])
    times = [trained - start, 1e6 * (answered - trained) / len(ranked)]
    return [*(float(found[f"P@{k}"] or 0) for k in (1, 3, 5)), *sets, *times]


def vw_lines(X: Any, y: list[list[int]] | None) -> str:
    """Rows in Vowpal Wabbit's format for several labels; labels count from 1.

    >>> vw_lines(np.array([[0, 0.5], [1, 0]]), [[3, 0], []])
    '4,1 | 1:0.5\\n | 0:1\\n'
    """
    rows, lines = sp.csr_matrix(X), []
    for i, (start, stop) in enumerate(pairwise(rows.indptr.tolist())):
        pairs = zip(rows.indices[start:stop].tolist(), rows.data[start:stop].tolist())
        labels = "" if y is None else ",".join(str(label + 1) for label in y[i])
        lines.append(f"{labels} | " + " ".join(f"{j}:{value:.6g}" for j, value in pairs) + "\n")
    return "".join(lines)


def vw_answers(text: str) -> list[list[int]]:
    """The sets of labels that Vowpal Wabbit wrote.

    >>> vw_answers("4,1\\n\\n2\\n")
    [[3, 0], [], [1]]
    """
    return [[int(label) - 1 for label in line.split(",") if label.strip()] for line in text.splitlines()]


def of_vw(suite: Suite, passes: int) -> list[float | None]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train").write_text(vw_lines(suite.X, suite.y))
        (folder / "test").write_text(vw_lines(suite.X_test, None))
        tree = (
            f"--memory_tree {vw_nodes(len(suite.y), passes, 10)} --max_number_of_labels {suite.n_labels} {VW_OPTIONS}"
        )
        several = f"--passes {passes} --cache_file {folder / 'cache'} -k" if passes > 1 else ""
        common = f"--loss_function squared -b {VW_BITS} --holdout_off {several}"
        seconds = run_vw(f"{tree} {common} -d {folder / 'train'} -f {folder / 'model'}")
        asking = run_vw(f"-i {folder / 'model'} -d {folder / 'test'} -p {folder / 'answers'}")
        answers = vw_answers((folder / "answers").read_text())
    return [None, None, None, *suite.of_sets(answers), seconds, 1e6 * asking / len(answers)]


def row(suite: str, name: str, passes: int, found: list[float | None]) -> list[Any]:
    digits = [4, 4, 4, 4, 2]
    measured = [None if value is None else round(value, n) for value, n in zip(found, digits)]
    return [suite, name, passes, *measured, *(float(f"{value:.3g}") for value in found[5:] if value is not None)]


def main(arguments: list[str]) -> int:
    rows = []
    for name in arguments or SUITES:
        suite = Suite(Data(prepared(name)))
        for passes in PASSES:
            for label, model in models(passes).items():
                rows.append(row(name, label, passes, list(of_ours(suite, model))))
                print(rows[-1], file=sys.stderr, flush=True)
            try:
                rows.append(row(name, "VW --memory_tree --oas", passes, of_vw(suite, passes)))
            except (subprocess.CalledProcessError, ValueError) as error:
                print(f"Vowpal Wabbit failed: {error}", file=sys.stderr)
                rows.append([name, "VW --memory_tree --oas: failed", passes, *[None] * 7])
            print(rows[-1], file=sys.stderr, flush=True)
    pages.publish(
        "memory-trees",
        "online-label-tree",
        "memory-trees",
        title="Memory trees with several labels a row",
        shows="Test rows, one pass, one run each, one thread, processor time. Sets are what `predict` chooses; Vowpal Wabbit (VW) gives a set only, and its "
        "seconds include its start and the reading of text.",
        columns=COLUMNS,
        rows=rows,
    )
    return 0


if __name__ == "__main__":
    help_if_asked(__doc__)
    sys.exit(main(sys.argv[1:]))
