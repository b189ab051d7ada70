"""One-against-all with a sample of the negative labels (4.2): error and training time by their number."""

from __future__ import annotations

import sys
from typing import Any

from sklearn.base import clone

from benchmarks import pages
from benchmarks.experiments.recall.models import recall_tree
from benchmarks.harness.problem import Problem, hits, seconds, warm_up
from treemax import OneVsAll

SUITES = ("icd", "glyphs5k")
NEGATIVES = (10, 30, 100, 300, 1000, None)
PASSES = 1
COLUMNS = [
    *({"name": name} for name in ("suite", "model", "negatives")),
    *({"name": name, "decimals": 2} for name in ("error@1 %", "error@5 %")),
    *({"name": name} for name in ("train s", "predict us, batch")),
]


def models(passes: int = PASSES) -> list[tuple[str, str, Any]]:
    """Name, number of negatives and model; a tree as the last."""
    flat = [
        ("OneVsAll, logistic", "all" if n is None else f"{n:,}", {"loss": "logistic", "negatives": n})
        for n in NEGATIVES
    ]
    flat.append(("OneVsAll, softmax", "all", {"loss": "softmax"}))
    found = [(name, n, OneVsAll(passes=passes, n_jobs=1, verbose=0, **settings)) for name, n, settings in flat]
    return [*found, ("RecallTree", "", recall_tree(passes=passes))]


def measured(model: Any, problem: Problem) -> list[float]:
    """Errors in per cent, processor seconds of training and microseconds of an answer."""
    warm_up(clone(model), problem)
    training = seconds(lambda: model.fit(problem.X, problem.y))
    right = hits(model, problem, 5)
    answering = seconds(lambda: model.predict_topk(problem.X_test, 5), repeats=3)
    errors = (round(100 * float(1 - found.mean()), 2) for found in (right[:, 0], right.any(axis=1)))
    return [*errors, *(float(f"{n:.3g}") for n in (training, 1e6 * answering / len(right)))]


def main(arguments: list[str]) -> None:
    rows = []
    for suite in arguments or SUITES:
        problem = Problem.read(suite)
        for name, negatives, model in models():
            rows.append([suite, name, negatives, *measured(model, problem)])
            print(rows[-1], file=sys.stderr, flush=True)
    pages.publish(
        "recall-negatives",
        "recall-tree",
        "negatives",
        title="One-against-all with a sample of the negatives",
        shows="`OneVsAll(negatives=N)`, one pass, test rows, one thread, processor time.",
        columns=COLUMNS,
        rows=rows,
    )
