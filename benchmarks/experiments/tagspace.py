"""Table 1 of the paper on learned trees, with its flat rows: a softmax over all labels, and TagSpace.

    python -m benchmarks.experiments.tagspace [SUITE...]

All models have the same representation, the sum of a row's embeddings times its values. The flat softmax is `LearnedTree` with a tree of depth
one. TagSpace (Weston et al., 2014) is written here: labels have embeddings, too, and a step moves one label of a row above a label
drawn at random that is less than a margin below it (WARP). Its rate is chosen on validation rows. One thread, processor time.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from scipy.sparse import csr_matrix

from benchmarks import pages
from benchmarks.harness.accuracy import accuracies, inverse_propensities
from benchmarks.harness.measure import Data
from benchmarks.harness.output import help_if_asked
from benchmarks.harness.problem import features, seconds
from benchmarks.harness.suites import prepared
from treemax import LearnedTree
from treemax.trees import Tree

SUITES = ("icd", "debtags")
DIMENSIONS = (50,)
RATES = (0.1, 0.3, 1.0)
PASSES = 6
MARGIN = np.float32(0.1)
TRIES = 100  # labels drawn in search of one that is not far enough below
COLUMNS = [
    *({"name": name} for name in ("suite", "dimension", "model")),
    *({"name": name, "decimals": 4} for name in ("P@1", "P@5")),
    *({"name": name} for name in ("train s", "predict us, batch")),
]


@numba.njit(nogil=True, error_model="numpy", fastmath=True)
def _learn(
    indptr, indices, values, order, label_starts, label_ids, weights, rates, embeddings, labels, squares, random
):
    """WARP by AdaGrad with one sum of squares a vector; `weights[r]` is the loss of rank r."""
    n_labels, dimension = labels.shape
    hidden, gradient = np.empty(dimension, np.float32), np.empty(dimension, np.float32)
    of_features, of_labels = squares
    for at in range(order.size):
        row = order[at]
        own = label_ids[label_starts[row] : label_starts[row + 1]]
        if own.size == 0 or own.size == n_labels:
            continue
        hidden[:] = 0.0
        for p in range(indptr[row], indptr[row + 1]):
            hidden += values[p] * embeddings[indices[p]]
        right = own[random.integers(0, own.size)]
        least = np.dot(labels[right], hidden) - MARGIN
        wrong, tries = -1, 0
        while tries < TRIES and wrong < 0:
            drawn = random.integers(0, n_labels)
            if not (own == drawn).any():
                tries += 1
                if np.dot(labels[drawn], hidden) > least:
                    wrong = drawn
        if wrong < 0:
            continue
        weight = weights[max(1, (n_labels - own.size) // tries)]
        gradient[:] = weight * (labels[right] - labels[wrong])
        for label, sign in ((right, np.float32(1.0)), (wrong, np.float32(-1.0))):
            of_labels[label] += weight * weight * np.dot(hidden, hidden) / np.float32(dimension)
            labels[label] += sign * weight * rates[at] / np.sqrt(of_labels[label]) * hidden
        size = np.dot(gradient, gradient) / np.float32(dimension)
        for p in range(indptr[row], indptr[row + 1]):
            feature = indices[p]
            of_features[feature] += values[p] * values[p] * size
            embeddings[feature] += values[p] * rates[at] / np.sqrt(of_features[feature]) * gradient


@dataclass
class TagSpace:
    """Embeddings of features and labels, ranked by their products."""

    dimension: int
    rate: float
    passes: int = PASSES

    def fit(self, X: csr_matrix, ids: np.ndarray, starts: np.ndarray, n_labels: int) -> TagSpace:
        random = np.random.default_rng(0)
        most = 1.0 / self.dimension
        self.embeddings, self.labels = (
            random.uniform(-most, most, (n, self.dimension)).astype(np.float32) for n in (X.shape[1], n_labels)
        )
        squares = np.full(X.shape[1], 1e-8, np.float32), np.full(n_labels, 1e-8, np.float32)
        weights = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, n_labels + 1))]).astype(np.float32)
        n, X = X.shape[0], X.astype(np.float32)
        for number in range(self.passes):
            rates = self.rate * (1 - (number + np.arange(n) / n) / self.passes)
            _learn(
                X.indptr, X.indices, X.data, random.permutation(n), starts, ids.astype(np.int64), weights,
                rates.astype(np.float32), self.embeddings, self.labels, squares, random,
            )  # fmt: skip
        return self

    def top(self, X: csr_matrix, k: int) -> np.ndarray:
        scores = np.asarray(X @ self.embeddings) @ self.labels.T
        some = np.argpartition(-scores, k - 1, axis=1)[:, :k]
        return np.take_along_axis(some, np.argsort(-np.take_along_axis(scores, some, axis=1), axis=1), axis=1)


def flat_tree(n_labels: int) -> Tree:
    """A root with all labels as children."""
    return Tree.from_parents([-1, *[0] * n_labels], [-1, *range(n_labels)])


class Suite:
    """Rows and labels of a suite, or of its part for validation."""

    def __init__(self, data: Data) -> None:
        self.X, self.X_test = features(data, "train"), features(data, "test")
        self.labels, self.test_labels = data.labels("train"), data.labels("test")
        self.lists, self.n_labels, self.multi_label = data.label_lists("train"), data.n_labels, data.multi_label

    @property
    def y(self) -> Any:
        return self.lists if self.multi_label else np.array([labels[0] for labels in self.lists])

    def figures(self, ranked: np.ndarray) -> list[float]:
        weights = inverse_propensities(self.labels[0], self.n_labels, len(self.lists))
        found = accuracies(ranked, *self.test_labels, weights, False, False)
        return [round(float(found[name] or 0), 4) for name in ("P@1", "P@5")]


def best_rate(suite: Suite, dimension: int) -> float:
    """The rate with the best P@1."""
    return max(RATES, key=lambda rate: _of_tagspace(suite, TagSpace(dimension, rate))[0])


def _of_tagspace(suite: Suite, model: TagSpace) -> list[float]:
    training = seconds(lambda: model.fit(suite.X, *suite.labels, suite.n_labels))
    figures = suite.figures(model.top(suite.X_test, 5))
    return [*figures, training, seconds(lambda: model.top(suite.X_test, 5), repeats=3)]


def _of_tree(suite: Suite, model: LearnedTree) -> list[float]:
    y = suite.y
    model.fit(suite.X[:100], y[:100]).predict_topk(suite.X_test[:1], 1) if isinstance(model.tree, str) else None
    training = seconds(lambda: model.fit(suite.X, y))
    figures = suite.figures(model.predict_topk(suite.X_test, 5).labels)
    return [*figures, training, seconds(lambda: model.predict_topk(suite.X_test, 5), repeats=3)]


def rows_of(name: str, suite: Suite, validation: Suite) -> list[list[Any]]:
    """The rows of the table for one suite."""
    rows = []
    for dimension in DIMENSIONS:
        settings: dict[str, Any] = {"dimension": dimension, "passes": PASSES, "n_jobs": 1, "verbose": 0}
        trees = {"learned": "learned", "Huffman": "huffman", "flat softmax": flat_tree(suite.n_labels)}
        for what, tree in trees.items():
            rows.append([name, dimension, what, *_of_tree(suite, LearnedTree(tree=tree, **settings))])
            print(rows[-1], file=sys.stderr, flush=True)
        rate = best_rate(validation, dimension)
        rows.append([name, dimension, f"TagSpace, rate {rate:g}", *_of_tagspace(suite, TagSpace(dimension, rate))])
        print(rows[-1], file=sys.stderr, flush=True)
    for row in rows:
        row[-2:] = float(f"{row[-2]:.3g}"), float(f"{1e6 * row[-1] / suite.X_test.shape[0]:.3g}")
    return rows


def main(arguments: list[str]) -> int:
    rows = []
    for name in arguments or SUITES:
        rows += rows_of(name, Suite(Data(prepared(name))), Suite(Data(prepared(name, validation=True))))
    pages.publish(
        "learned-tagspace",
        "learned-tree",
        "flat",
        title="Trees beside a flat softmax and TagSpace",
        shows=f"Table 1 with its flat rows: {PASSES} passes, arity {LearnedTree().arity}, test rows, one training each, one thread, "
        "processor time. The rate of TagSpace was chosen on validation rows.",
        columns=COLUMNS,
        rows=rows,
    )
    return 0


if __name__ == "__main__":
    help_if_asked(__doc__)
    sys.exit(main(sys.argv[1:]))
