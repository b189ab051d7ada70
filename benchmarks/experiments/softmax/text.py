"""All models of table 2 on one set of texts: softmax trees at the paper's settings beside their baselines."""

from __future__ import annotations

import sys
from typing import Any

from sklearn.base import clone

from benchmarks import pages
from benchmarks.experiments.softmax.double_sampling import COLUMNS, QUIET, measured
from benchmarks.harness.problem import Problem
from treemax import MACH, DoubleSampling, LOMTree, OneVsAll, RecallTree, SoftmaxTree

SUITE, ROWS = "icd", 10_000
SHAPE = {"depth": 6, "leaf_classes": 100}
MODELS: dict[str, Any] = {
    "RecallTree, paper": RecallTree(algorithm="paper", **QUIET),
    "LOMTree": LOMTree(**QUIET),
    "OneVsAll": OneVsAll(loss="logistic", **QUIET),
    "DoubleSampling as published, 50 candidates": DoubleSampling.as_published(n_candidates=50, **QUIET),
    "MACH, 16 x 85 buckets": MACH(n_buckets=85, **QUIET),
    "SoftmaxTree as published": SoftmaxTree.as_published(**SHAPE, **QUIET),
    "SoftmaxTree as published, beta = 100": SoftmaxTree.as_published(missing="beta", **SHAPE, **QUIET),
    "SoftmaxTree": SoftmaxTree(leaf_classes=100, **QUIET),
}


def main(arguments: list[str]) -> None:
    suite, limit = (*arguments, *(SUITE, str(ROWS))[len(arguments) :])
    problem, rows = Problem.read(suite, int(limit)), []
    for name, model in MODELS.items():
        trained = clone(model)
        found = measured(trained, problem)
        depth = trained.describe().get("depth", 0)
        rows.append([name, depth, *found])
        print(rows[-1], file=sys.stderr, flush=True)
    pages.publish(
        "softmax-text",
        "softmax-tree",
        "text",
        title="Softmax trees and their baselines on one set of texts",
        shows=f"Table 2 of the paper on {len(problem.y):,} rows of {suite}: test rows, one thread, processor time.",
        columns=[{"name": "model"}, {"name": "depth"}, *COLUMNS[2:]],
        rows=rows,
    )
