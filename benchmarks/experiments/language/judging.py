"""Errors, coverage, perplexity and speed of trees and of softmaxes over all classes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from benchmarks.experiments.language.hierarchical import HierarchicalSoftmax
from benchmarks.experiments.language.problems import Rows
from benchmarks.experiments.softmax.answers import singly
from treemax.models.softmax_tree.model import DenseSoftmaxTrees
from treemax.parallel.threads import one_blas_thread

BLOCK = 2048  # rows whose probabilities are held at a time
EPSILONS = (1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6, 1e-6)
REPEATS = 5
BATCH_ROWS, SINGLE_ROWS = 10_000, 2000  # random rows whose answers are timed


class Answers(NamedTuple):
    """Of each row: the five best classes, the probability of its own class, and how many classes have any."""

    top: np.ndarray
    own: np.ndarray
    known: np.ndarray


class Quality(NamedTuple):
    """Errors and coverage in per cent."""

    error: float
    error_5: float
    coverage: float
    perplexity: float  # over the rows whose class has a probability


class Linear:
    """A softmax over all classes, from weights [classes, features] and biases."""

    def __init__(self, coef: np.ndarray, bias: np.ndarray) -> None:
        self.coef, self.bias = np.ascontiguousarray(coef, dtype=np.float32), bias.astype(np.float32)

    def scores(self, X: np.ndarray) -> np.ndarray:
        return X @ self.coef.T + self.bias

    def top(self, X: np.ndarray) -> np.ndarray:
        """The five best classes, in blocks: a softmax in a batch is a product of matrices."""
        found = []
        for start in range(0, len(X), BLOCK):
            scores = self.scores(X[start : start + BLOCK])
            some = np.argpartition(-scores, 4, axis=1)[:, :5]
            order = np.argsort(-np.take_along_axis(scores, some, axis=1), axis=1)
            found.append(np.take_along_axis(some, order, axis=1))
        return np.concatenate(found)


# --- quality -------------------------------------------------------------------------------------------


def answers(model: Any, rows: Rows) -> Answers:
    """What a model says of rows; a softmax tree gives probabilities to the classes of its leaves only."""
    blocks = [slice(start, start + BLOCK) for start in range(0, len(rows.y), BLOCK)]
    found = [_answers(model, rows.X[block], rows.y[block]) for block in blocks]
    return Answers(*(np.concatenate(parts) for parts in zip(*found)))


def _answers(model: Any, X: np.ndarray, y: np.ndarray) -> Answers:
    if isinstance(model, Linear):
        scores = model.scores(X).astype(np.float64)
        scores -= scores.max(axis=1, keepdims=True)
        own = np.exp(scores[np.arange(len(y)), y]) / np.exp(scores).sum(axis=1)
        return Answers(model.top(X), own, np.full(len(y), scores.shape[1]))
    if isinstance(model, HierarchicalSoftmax):
        own = np.exp(model.logs(X)[np.arange(len(y)), y])
        return Answers(model.top(X), own, np.full(len(y), model.tree.n_labels))
    if not isinstance(model.model_, DenseSoftmaxTrees):
        own = model.predict_proba_of(X, y[:, None])[:, 0].astype(np.float64)
        return Answers(model.predict_topk(X, 5).labels, own, np.full(len(y), len(model.classes_)))
    labels, probabilities = model.predict_topk(X, max(5, model.model_.most_answers()))
    own = np.where((labels == y[:, None]) & (probabilities > 0), probabilities, 0.0).sum(axis=1)
    return Answers(labels[:, :5], own, (probabilities > 0).sum(axis=1))


def quality(found: Answers, y: np.ndarray) -> Quality:
    hits, covered = found.top == y[:, None], found.own > 0
    mean = -np.log(found.own[covered]).mean() if covered.any() else math.inf
    errors = 100 * (1 - hits[:, 0].mean()), 100 * (1 - hits.any(axis=1).mean())
    return Quality(*map(float, errors), 100 * float(covered.mean()), math.exp(mean))


def size(model: Any, n_classes: int) -> dict[str, float]:
    """Depth, leaves and mean number of classes of a leaf; a model of all classes is one leaf."""
    if isinstance(model, HierarchicalSoftmax):
        return {"depth": model.tree.depth, "leaves": model.tree.n_labels, "leaf_classes": 1}
    if not isinstance(getattr(model, "model_", None), DenseSoftmaxTrees):
        return {"depth": 0, "leaves": 1, "leaf_classes": n_classes}
    facts = model.describe()
    return {"depth": facts["depth"], "leaves": facts["leaves"], "leaf_classes": facts["classes_of_a_leaf"]}


def smoothed_perplexity(found: Answers, n_classes: int, epsilon: float) -> float:
    """Perplexity over all rows, where every class without a probability gets epsilon and all are made to sum to one."""
    total = 1.0 + epsilon * (n_classes - found.known)
    return math.exp(-np.log(np.where(found.own > 0, found.own, epsilon) / total).mean())


def best_epsilon(found: Answers, n_classes: int) -> float:
    return min(EPSILONS, key=lambda epsilon: smoothed_perplexity(found, n_classes, epsilon))


# --- speed ---------------------------------------------------------------------------------------------


def microseconds(models: dict[str, Any], X: np.ndarray) -> dict[str, tuple[float, float]]:
    """Processor time of a row, in a batch and alone; the models take turns, and the best of several rounds counts.

    A batch is one call of Python for the five best classes of all rows; alone, the kernel of a tree takes one row at a time, without
    Python in between. A softmax over all classes is a bare product, of matrices or of a matrix and a vector: no choice
    of the best is in its time.
    """
    X = X[np.random.default_rng(0).permutation(len(X))[:BATCH_ROWS]]
    single = X[:SINGLE_ROWS]
    best = {name: [math.inf, math.inf] for name in models}
    with one_blas_thread():
        for _ in range(REPEATS):
            for name, model in models.items():
                for way, (work, n_rows) in enumerate(
                    ((_batch(model, X), len(X)), (_alone(model, single), len(single)))
                ):
                    best[name][way] = min(best[name][way], 1e6 * seconds(work) / n_rows)
    return {name: (batch, alone) for name, (batch, alone) in best.items()}


def _batch(model: Any, X: np.ndarray) -> Callable[[], Any]:
    if isinstance(model, Linear):
        return lambda: [model.scores(X[start : start + BLOCK]) for start in range(0, len(X), BLOCK)]
    if isinstance(model, HierarchicalSoftmax):
        return lambda: model.top(X)
    return lambda: model.predict_topk(X, 5)


def _alone(model: Any, X: np.ndarray) -> Callable[[], Any]:
    if isinstance(model, HierarchicalSoftmax):
        return lambda: model.alone(X)
    own = getattr(model, "model_", None)
    if isinstance(own, DenseSoftmaxTrees):
        return lambda: singly(own, X, 5)
    coef = model.coef if isinstance(model, Linear) else np.zeros((len(model.classes_), X.shape[1]), np.float32)
    out = np.empty(len(coef), np.float32)
    return lambda: [np.dot(coef, x, out=out) for x in X]


def seconds(work: Callable[[], Any]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start
