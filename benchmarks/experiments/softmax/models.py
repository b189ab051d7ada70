"""The settings that the experiments compare, and what they ask of a model."""

from __future__ import annotations

from typing import Any, NamedTuple

from benchmarks.harness.problem import Problem, hits, seconds
from treemax import SoftmaxTree

PAPER = dict(SoftmaxTree._PUBLISHED or {})
DEPTH, LEAF_CLASSES = 5, 100


class Outcome(NamedTuple):
    """How well a tree answers, and how long it takes."""

    error: float  # per cent, of the test rows
    training_error: float
    coverage: float  # per cent of the test rows that find their class in the leaf
    microseconds: float  # of an answer, all rows at once
    seconds: float  # of training
    leaves: int
    leaf_classes: float  # of a leaf, on average


def softmax_tree(**settings: Any) -> SoftmaxTree:
    return SoftmaxTree(**{"depth": DEPTH, "leaf_classes": LEAF_CLASSES, "n_jobs": 1, "verbose": 0, **settings})


def measured(model: SoftmaxTree, problem: Problem) -> Outcome:
    """Train a model, or go on with it, and try it on the test rows."""
    training = seconds(lambda: model.fit(problem.X, problem.y))
    wrong = 1.0 - hits(model, problem, 1)[:, 0].mean()
    answering = seconds(lambda: model.predict(problem.X_test), repeats=5)
    facts = model.describe()
    return Outcome(
        error=100 * float(wrong),
        training_error=100 * model.history_[-1].error,
        coverage=100 * model.perplexity(problem.X_test, problem.y_test).coverage,
        microseconds=1e6 * answering / len(problem.y_test),
        seconds=training,
        leaves=facts["leaves"],
        leaf_classes=facts["classes_of_a_leaf"],
    )
