"""Training time and objective, beside the same algorithm with scikit-learn's solvers at the nodes.

The reference is `benchmarks.experiments.tao_reference`: LIBLINEAR at decisions, SAGA at leaves. Both train as the paper does, from
class prototypes, one thread, in seconds of the processor.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any, NamedTuple

import numpy as np

from benchmarks import pages
from benchmarks.experiments import tao_reference
from benchmarks.experiments.softmax.models import DEPTH, LEAF_CLASSES, PAPER, softmax_tree
from benchmarks.harness.problem import Problem, hits, seconds

ITERATIONS, ALPHA = 3, 0.1
LOSSES: dict[str, float | None] = {"zero-one": None}  # the loss of a class that a leaf lacks; None counts errors


class Trained(NamedTuple):
    seconds: float
    objective: float
    training_error: float
    error: float


def reference(problem: Problem, beta: float | None) -> Trained:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # names about to change, and passes used up
        tree, history = tao_reference.train(
            problem.X, problem.y, DEPTH, LEAF_CLASSES, ALPHA, beta, ITERATIONS, "scikit-learn"
        )
    error = float(tree.losses(problem.X_test, problem.y_test, None).mean())
    spent = sum(record["seconds"] for record in history)
    return Trained(spent, history[-1]["objective"], 100 * history[-1]["error"], 100 * error)


def ours(problem: Problem, beta: float | None) -> Trained:
    loss: dict[str, Any] = {"missing": "zero-one"} if beta is None else {"missing": "beta", "beta": beta}
    model = softmax_tree(**{**PAPER, "alpha": ALPHA, "iterations": ITERATIONS, **loss})
    spent = seconds(lambda: model.fit(problem.X, problem.y))
    last = model.history_[-1]
    return Trained(spent, last.objective, 100 * last.error, 100 * float(1 - hits(model, problem, 1).mean()))


def main(arguments: list[str]) -> None:
    suite = arguments[0] if arguments else "glyphs1k"
    problem = Problem.read(suite)
    few = np.arange(len(problem.y)) % 20 == 0
    ours(Problem(problem.X[few], problem.y[few], problem.X_test[:5], problem.y_test[:5]), 10.0)  # compile
    rows = []
    for loss, beta in LOSSES.items():
        found = {"scikit-learn's": reference(problem, beta), "ours": ours(problem, beta)}
        slowest = found["scikit-learn's"].seconds
        for solvers, one in found.items():
            figures = (one.seconds, slowest / one.seconds, one.objective)
            errors = (round(one.training_error, 2), round(one.error, 2))
            rows.append([loss, solvers, *(float(f"{figure:.3g}") for figure in figures), *errors])
            print(rows[-1], file=sys.stderr, flush=True)
    pages.publish(
        f"softmax-training-{suite}",
        "softmax-tree",
        "training" if suite == "glyphs1k" else f"training-{suite}",
        title="Training time beside scikit-learn's solvers",
        shows=f"The settings as published on {suite}, with {ITERATIONS} iterations; the reference uses LIBLINEAR and 20 passes of SAGA, as the "
        "paper did. Processor seconds. A better optimum does not generalise better here.",
        columns=[
            *({"name": name} for name in ("missing class", "solvers", "train s", "times faster", "objective")),
            *({"name": name, "decimals": 1} for name in ("training error %", "test error %")),
        ],
        rows=rows,
    )
