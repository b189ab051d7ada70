"""The softmax tree as its paper trains it, slowly: `python -m benchmarks.experiments.tao_reference glyphs1k --depth 5 --classes 100`.

Algorithm 1 of Zharmagambetov, Gabidolla and Carreira-Perpiñán (2021) node after node, written to be read
beside the paper: scikit-learn's LIBLINEAR at decision nodes and SAGA with 20 passes at leaves (appendix C),
the tree of class prototypes to begin with (algorithm 2), dense rows. `--solvers ours` puts the solvers of
this library in their place and changes nothing else. The yardstick for training time and objective.

LIBLINEAR penalises the bias, and so does objective (1) with |theta|_1 read to the letter; here only weights
count in the objective, for both.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy is loaded

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression

from benchmarks import FOLDER
from benchmarks.harness.measure import Data
from benchmarks.harness.suites import prepared
from treemax.models.softmax_tree.solvers import l1_logistic, l1_softmax

RESULTS = FOLDER / "results"
SAGA_PASSES = 20
K_MEANS_RUNS = 10  # scikit-learn's default when the paper was written


@dataclass
class Leaf:
    """A softmax over a few classes."""

    classes: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    W: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    w: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def losses(self, X: np.ndarray, y: np.ndarray, beta: float | None) -> np.ndarray:
        """Cross-entropy with beta in place of infinity; the 0/1 loss where beta is None."""
        if not len(self.classes):
            return np.full(len(y), 1.0 if beta is None else beta)
        scores = X @ self.W.T + self.w
        if beta is None:
            return (self.classes[scores.argmax(axis=1)] != y).astype(np.float64)
        scores -= scores.max(axis=1, keepdims=True)
        log_total = np.log(np.exp(scores).sum(axis=1))
        place = np.minimum(np.searchsorted(self.classes, y), len(self.classes) - 1)
        own = log_total - scores[np.arange(len(y)), place]
        return np.where(self.classes[place] == y, own, beta)

    def penalty(self) -> float:
        return float(np.abs(self.W).sum())


@dataclass
class Decision:
    """A hyperplane: right where w.x + b is not below zero."""

    w: np.ndarray
    b: float = 0.0

    def right(self, X: np.ndarray) -> np.ndarray:
        return X @ self.w + self.b >= 0

    def penalty(self) -> float:
        return float(np.abs(self.w).sum())


@dataclass
class Tree:
    """A complete tree as a heap: the children of node i are 2i + 1 and 2i + 2."""

    depth: int
    decisions: list[Decision]
    leaves: list[Leaf]

    def leaf_of(self, X: np.ndarray, node: int = 0) -> np.ndarray:
        """The number of the leaf that each row reaches from a node."""
        found = np.empty(len(X), dtype=np.int64)
        if node >= len(self.decisions):
            found[:] = node - len(self.decisions)
            return found
        right = self.decisions[node].right(X)
        for side in (False, True):
            at = right == side
            found[at] = self.leaf_of(X[at], 2 * node + 1 + side)
        return found

    def losses(self, X: np.ndarray, y: np.ndarray, beta: float | None, node: int = 0) -> np.ndarray:
        """The loss of each row from a node on."""
        found, reached = np.empty(len(X)), self.leaf_of(X, node)
        for leaf in np.unique(reached):
            at = reached == leaf
            found[at] = self.leaves[leaf].losses(X[at], y[at], beta)
        return found

    def objective(self, X: np.ndarray, y: np.ndarray, alpha: float, beta: float | None) -> float:
        """Equation (1)."""
        nodes = [*self.decisions, *self.leaves]
        return float(self.losses(X, y, beta).sum() + alpha * sum(node.penalty() for node in nodes))


# --- the solvers of the nodes --------------------------------------------------------------------------


def peers_decision(X: np.ndarray, signs: np.ndarray, weights: np.ndarray, alpha: float, old: Decision) -> Decision:
    model = LogisticRegression(penalty="l1", solver="liblinear", C=1 / alpha, random_state=0)
    model.fit(X, signs, sample_weight=weights)
    return Decision(model.coef_[0].astype(np.float32), float(model.intercept_[0]))


def peers_leaf(X: np.ndarray, y: np.ndarray, classes: np.ndarray, alpha: float, old: Leaf) -> Leaf:
    if len(classes) == 1:
        return Leaf(classes, np.zeros((1, X.shape[1])), np.zeros(1))
    model = LogisticRegression(
        penalty="l1", solver="saga", C=1 / alpha, max_iter=SAGA_PASSES, random_state=0, warm_start=True
    )
    if len(classes) > 2 and np.array_equal(classes, old.classes):
        model.classes_, model.coef_, model.intercept_ = classes, old.W, old.w
    model.fit(X, y)
    if len(classes) == 2:  # scikit-learn keeps one row of weights for two classes
        return Leaf(classes, np.vstack([-model.coef_, model.coef_]) / 2, np.r_[-model.intercept_, model.intercept_] / 2)
    return Leaf(classes, model.coef_, model.intercept_)


def our_decision(X: np.ndarray, signs: np.ndarray, weights: np.ndarray, alpha: float, old: Decision) -> Decision:
    start = (old.w[None].astype(np.float32), np.array([old.b], dtype=np.float32))
    found = l1_logistic(X, np.arange(len(X)), signs, alpha, weights, start=start)
    return Decision(found.coef[0], float(found.bias[0]))


def our_leaf(X: np.ndarray, y: np.ndarray, classes: np.ndarray, alpha: float, old: Leaf) -> Leaf:
    """From the old weights of the classes that stay."""
    start = (np.zeros((len(classes), X.shape[1]), dtype=np.float32), np.zeros(len(classes), dtype=np.float32))
    for row in np.flatnonzero(np.isin(classes, old.classes)):
        place = np.searchsorted(old.classes, classes[row])
        start[0][row], start[1][row] = old.W[place], old.w[place]
    found = l1_softmax(X, np.arange(len(X)), np.searchsorted(classes, y), len(classes), alpha, start=start)
    return Leaf(classes, found.coef, found.bias)


SOLVERS: dict[str, tuple[Callable[..., Decision], Callable[..., Leaf]]] = {
    "scikit-learn": (peers_decision, peers_leaf),
    "ours": (our_decision, our_leaf),
}


# --- algorithm 2: the initial tree ---------------------------------------------------------------------


def prototype_leaves(X: np.ndarray, y: np.ndarray, depth: int) -> np.ndarray:
    """The leaf of every row: k-means on the means of the classes, then greedy merging level by level."""
    labels, counts = np.unique(y, return_counts=True)
    means = np.stack([X[y == label].mean(axis=0) for label in labels])
    clusters = KMeans(2**depth, n_init=K_MEANS_RUNS, random_state=0).fit(means, sample_weight=counts)
    centres = clusters.cluster_centers_.astype(np.float64)
    sizes = np.bincount(clusters.labels_, counts, minlength=2**depth)
    groups = [[leaf] for leaf in range(2**depth)]
    while len(groups) > 1:
        distances = ((centres[:, None] - centres[None]) ** 2).sum(axis=2)
        distances[np.tril_indices(len(groups))] = np.inf
        merged, new_centres, new_sizes = [], [], []
        for _ in range(len(groups) // 2):
            a, b = np.unravel_index(np.argmin(distances), distances.shape)
            distances[[a, b]] = distances[:, [a, b]] = np.inf
            merged.append(groups[a] + groups[b])
            new_sizes.append(sizes[a] + sizes[b])
            new_centres.append((sizes[a] * centres[a] + sizes[b] * centres[b]) / max(1, new_sizes[-1]))
        groups, centres, sizes = merged, np.array(new_centres), np.array(new_sizes)
    place = np.empty(2**depth, dtype=np.int64)
    place[groups[0]] = np.arange(2**depth)
    return place[clusters.labels_][np.searchsorted(labels, y)]


# --- algorithm 1 ---------------------------------------------------------------------------------------


def train(
    X: np.ndarray, y: np.ndarray, depth: int, k: int, alpha: float, beta: float | None, iterations: int, solvers: str
) -> tuple[Tree, list[dict[str, float]]]:
    """Reverse breadth-first, iteration after iteration; also what each iteration cost and came to."""
    fit_decision, fit_leaf = SOLVERS[solvers]
    n_decisions = 2**depth - 1
    tree = Tree(
        depth, [Decision(np.zeros(X.shape[1], dtype=np.float32)) for _ in range(n_decisions)],
        [Leaf() for _ in range(n_decisions + 1)],
    )  # fmt: skip
    reached = prototype_leaves(X, y, depth)
    history = []
    for iteration in range(iterations):
        started, at_leaves = time.process_time(), 0.0
        for number, leaf in enumerate(tree.leaves):
            rows = np.flatnonzero(reached == number)
            labels, counts = np.unique(y[rows], return_counts=True)
            classes = np.sort(labels[np.argsort(-counts, kind="stable")[:k]])
            rows = rows[np.isin(y[rows], classes)]
            if len(rows):
                tree.leaves[number] = fit_leaf(X[rows], y[rows], classes, alpha, leaf)
        at_leaves = time.process_time() - started
        for node in range(n_decisions - 1, -1, -1):
            level = (node + 1).bit_length() - 1
            below = depth - level  # leaves below the node are one run
            first = (node + 1 - 2**level) << below
            rows = np.flatnonzero((reached >= first) & (reached < first + (1 << below)))
            if len(rows):
                update_decision(tree, node, X[rows], y[rows], alpha, beta, fit_decision)
        seconds = time.process_time() - started
        reached = tree.leaf_of(X)
        history.append(
            {
                "iteration": iteration + 1, "seconds": seconds, "seconds at leaves": at_leaves,
                "objective": tree.objective(X, y, alpha, beta), "error": float(tree.losses(X, y, None).mean()),
            }
        )  # fmt: skip
        print(history[-1], file=sys.stderr, flush=True)
    return tree, history


def update_decision(
    tree: Tree, node: int, X: np.ndarray, y: np.ndarray, alpha: float, beta: float | None, fit: Callable[..., Decision]
) -> None:
    """The reduced problem (2): pseudo-labels and weights from the losses below."""
    left, right = tree.losses(X, y, beta, 2 * node + 1), tree.losses(X, y, beta, 2 * node + 2)
    care = np.flatnonzero(left != right)
    if not len(care):
        return
    signs = np.where(right < left, 1, -1)[care]
    old = tree.decisions[node]
    if (signs == signs[0]).all():
        tree.decisions[node] = Decision(np.zeros_like(old.w), float(signs[0]))
    else:
        tree.decisions[node] = fit(X[care], signs, np.abs(left - right)[care], alpha, old)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("suite", nargs="?", default="glyphs1k")
    parser.add_argument("--depth", type=int, default=5)
    parser.add_argument("--classes", type=int, default=100, help="at most, of a leaf")
    parser.add_argument("--alpha", type=float, default=0.1)
    parser.add_argument("--beta", type=float, help="the loss of a class that a leaf lacks; without it, the 0/1 loss")
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--solvers", choices=sorted(SOLVERS), default="scikit-learn")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")  # of scikit-learn: names about to change, and passes used up
    data = Data(prepared(chosen.suite))
    X, y = data.dense("train"), data.classes("train")
    settings = (chosen.depth, chosen.classes, chosen.alpha, chosen.beta, chosen.iterations, chosen.solvers)
    tree, history = train(X, y, *settings)
    error = float(tree.losses(data.dense("test"), data.classes("test"), None).mean())
    nonzero = int(sum(np.count_nonzero(leaf.W) for leaf in tree.leaves))
    print(
        f"{chosen.solvers}: {sum(h['seconds'] for h in history):.1f} s, test error {100 * error:.2f} %, leaf weights {nonzero:,}"
    )
    RESULTS.mkdir(exist_ok=True)
    report = vars(chosen) | {"history": history, "test error": error, "leaf weights": nonzero}
    (RESULTS / f"tao-{chosen.suite}-{chosen.solvers}.json").write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
