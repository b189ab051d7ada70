"""The hierarchical softmax of appendix C: a binary Huffman tree over the classes, a logistic model at each inner node.

The probability of a class is the product along its path. `approximate` follows the likelier child from the root; the next
answers begin at the most probable child that was not followed. Steps are on single rows, as in the paper, by AdaGrad: its
rate needs no schedule, and the paper's (.005, times .995 after each step) ends after a few thousand rows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numba
import numpy as np

from treemax.trees import Tree, huffman_tree

BLOCK = 2048  # rows whose probabilities are held at a time
FIRST_SQUARES = 1e-2  # of AdaGrad, so that first steps are not too long


@numba.njit(nogil=True, error_model="numpy", fastmath=True)
def _learn(X, y, order, starts, nodes, sides, weights, bias, squares, rate):
    """Minimise the log loss of every decision on the path of each row's class."""
    for i in order:
        x = X[i]
        for p in range(starts[y[i]], starts[y[i] + 1]):
            w, s = weights[nodes[p]], squares[nodes[p]]
            score = bias[nodes[p]]
            for d in range(x.size):
                score += w[d] * x[d]
            error = np.float32(1.0) / (np.float32(1.0) + np.exp(-score)) - sides[p]
            for d in range(x.size):
                step = error * x[d]
                s[d] += step * step
                w[d] -= rate * step / np.sqrt(s[d])
            s[x.size] += error * error
            bias[nodes[p]] -= rate * error / np.sqrt(s[x.size])


@numba.njit(nogil=True, error_model="numpy")
def _class_logs(scores, first_child, label, inner, out):
    """Log probabilities of all classes from the scores of all inner nodes; parents come before children."""
    logs = np.empty(label.size)
    for i in range(scores.shape[0]):
        logs[0] = 0.0
        for node in range(label.size):
            if label[node] >= 0:
                out[i, label[node]] = logs[node]
                continue
            score = np.float64(scores[i, inner[node]])
            logs[first_child[node]] = logs[node] - np.log1p(np.exp(score))
            logs[first_child[node] + 1] = logs[node] - np.log1p(np.exp(-score))


@numba.njit(nogil=True, error_model="numpy", fastmath=True)
def _follow(X, first_child, label, inner, weights, bias, ids):
    """The classes at the ends of the likeliest paths: from the root, then from the most probable child left behind."""
    most = ids.shape[1]
    left, left_logs = np.empty(64 * most, np.int64), np.empty(64 * most)
    for i in range(X.shape[0]):
        n_left, x = 1, X[i]
        left[0], left_logs[0] = 0, 0.0
        for j in range(most):
            if n_left == 0:
                ids[i, j:] = -1
                break
            best = 0
            for other in range(1, n_left):
                if left_logs[other] > left_logs[best]:
                    best = other
            node, log = left[best], left_logs[best]
            n_left -= 1
            left[best], left_logs[best] = left[n_left], left_logs[n_left]
            while label[node] < 0:
                w, score = weights[inner[node]], bias[inner[node]]
                for d in range(x.size):
                    score += w[d] * x[d]
                side = 1 if score > 0 else 0
                left[n_left] = first_child[node] + 1 - side
                left_logs[n_left] = log - np.log1p(np.exp(np.float64(abs(score))))
                log -= np.log1p(np.exp(-np.float64(abs(score))))
                node = first_child[node] + side
                n_left += 1
            ids[i, j] = label[node]


class HierarchicalSoftmax:
    """HSM, and with `approximate` HSM-approx."""

    def __init__(
        self, *, approximate: bool = False, passes: int = 5, rate: float = 0.05, n_jobs: int = 1, verbose: int = 0
    ) -> None:
        self.approximate, self.passes, self.rate = approximate, passes, rate

    def fit(self, X: np.ndarray, y: np.ndarray) -> HierarchicalSoftmax:
        counts = np.bincount(y)
        self._plant(huffman_tree(counts))
        n_inner = len(counts) - 1
        self.weights, self.bias = np.zeros((n_inner, X.shape[1]), np.float32), np.zeros(n_inner, np.float32)
        squares = np.full((n_inner, X.shape[1] + 1), FIRST_SQUARES, np.float32)
        paths, random = self._paths(), np.random.default_rng(0)
        for done in range(self.passes):
            rate = np.float32(self.rate * (1 - done / self.passes))
            _learn(X, y, random.permutation(len(y)), *paths, self.weights, self.bias, squares, rate)
        return self

    def _plant(self, tree: Tree) -> None:
        self.tree = tree
        self.inner = np.cumsum(tree.label < 0) - 1  # the place of an inner node among them

    def _paths(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Inner nodes on the path of every class, and the side that it takes: 1 is the second child."""
        tree, nodes, sides, starts = self.tree, [], [], [0]
        for leaf in tree.leaf_of:
            node = leaf
            while node > 0:
                above = tree.parent[node]
                nodes.append(self.inner[above])
                sides.append(node - tree.first_child[above])
                node = above
            starts.append(len(nodes))
        return np.array(starts), np.array(nodes), np.array(sides, dtype=np.float32)

    @property
    def depth(self) -> int:
        return self.tree.depth

    def logs(self, X: np.ndarray) -> np.ndarray:
        """Log probabilities of all classes."""
        out = np.empty((len(X), self.tree.n_labels))
        scores = X @ self.weights.T + self.bias
        _class_logs(scores, self.tree.first_child, self.tree.label, self.inner, out)
        return out

    def top(self, X: np.ndarray, k: int = 5) -> np.ndarray:
        """The k first answers."""
        found = np.empty((len(X), k), np.int64)
        if self.approximate:
            tree = self.tree
            _follow(X, tree.first_child, tree.label, self.inner, self.weights, self.bias, found)
            return found
        for start in range(0, len(X), BLOCK):
            logs = self.logs(X[start : start + BLOCK])
            some = np.argpartition(-logs, min(k, logs.shape[1]) - 1, axis=1)[:, :k]
            order = np.argsort(-np.take_along_axis(logs, some, axis=1), axis=1, kind="stable")
            found[start : start + BLOCK] = np.take_along_axis(some, order, axis=1)
        return found

    def alone(self, X: np.ndarray) -> Any:
        """The answers of rows one at a time."""
        return self.top(X) if self.approximate else [self.top(X[i : i + 1]) for i in range(len(X))]

    def save(self, path: Path) -> None:
        parts = {"approximate": self.approximate, "weights": self.weights, "bias": self.bias, **self.tree.arrays()}
        with path.open("wb") as file:
            np.savez(file, **parts)

    @classmethod
    def load(cls, path: Path) -> HierarchicalSoftmax:
        parts = dict(np.load(path))
        model = cls(approximate=bool(parts["approximate"]))
        model.weights, model.bias = parts["weights"], parts["bias"]
        model._plant(Tree.from_arrays(parts))
        return model
