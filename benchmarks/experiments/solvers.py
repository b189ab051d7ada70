"""The solvers of a softmax tree's nodes beside those of scikit-learn: `python -m benchmarks.experiments.solvers`.

Leaves: rows of some classes and a softmax over them. Decision nodes: rows of some classes, each class on the
side of the first principal component on which its mean lies, one row in ten on the other side, and weights
drawn from an exponential distribution. The best objective known is that of our solver at a tolerance of
1e-7; a peer gets the loosest of its settings that comes within a thousandth of it, and its data in the form
it likes best beforehand. One thread; ours and the peer take turns, and the best time of each counts, in seconds of the processor.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy is loaded

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import svds
from sklearn.linear_model import LogisticRegression

from benchmarks.harness.measure import Data
from benchmarks.harness.output import keep, rounded, store
from benchmarks.harness.suites import prepared
from benchmarks.pages import table
from treemax.inputs.rows import Rows, as_rows
from treemax.models.softmax_tree.solvers import l1_logistic, l1_softmax

CLOSE = 1e-3  # of the best objective
ROUNDS = 3


@dataclass
class Problem:
    """One node: rows X, targets (classes, or signs), and the weights of the rows."""

    name: str
    X: Any
    y: np.ndarray
    n_classes: int  # 1 for a decision node
    alpha: float
    weights: np.ndarray | None = None

    @property
    def rows(self) -> Rows:
        return as_rows(self.X)

    @property
    def matrix(self) -> Any:
        """The rows as scikit-learn's solvers take them: without features that none of them has."""
        if sp.issparse(self.X):
            return self.X[:, np.unique(self.X.indices)].astype(np.float64)
        return self.X.astype(np.float64)

    def objective(self, matrix: Any, coef: np.ndarray, bias: np.ndarray) -> float:
        """In double precision; LIBLINEAR's problem, where the bias is penalised, for a decision node."""
        scores = np.asarray(matrix @ coef.T) + bias
        cost = self.alpha * np.abs(coef).sum()
        if self.n_classes == 1:
            losses = np.logaddexp(0.0, -self.y * scores[:, 0])
            return float(self.weights @ losses + cost + self.alpha * np.abs(bias).sum())
        top = scores.max(axis=1)
        losses = np.log(np.exp(scores - top[:, None]).sum(axis=1)) + top - scores[np.arange(len(self.y)), self.y]
        return float(losses.sum() + cost)


class Source:
    """The training rows of a suite with one class each."""

    def __init__(self, suite: str) -> None:
        data = Data(prepared(suite))
        ids, starts = data.labels("train")
        single = np.flatnonzero(np.diff(starts) == 1)
        self.y = ids[starts[:-1][single]]
        X = sp.csr_matrix(data.csr("train")[0], data.csr("train")[1]) if data.sparse else data.dense("train")
        self.X, self.suite, self.random = X[single], suite, np.random.RandomState(0)

    def some(self, n_classes: int, most_rows: int | None) -> tuple[Any, np.ndarray]:
        chosen = np.sort(self.random.choice(np.unique(self.y), n_classes, replace=False))
        at = np.flatnonzero(np.isin(self.y, chosen))
        if most_rows is not None and most_rows < len(at):
            at = np.sort(self.random.choice(at, most_rows, replace=False))
        return self.X[at], np.searchsorted(chosen, self.y[at])

    def leaf(self, n_classes: int, alpha: float, most_rows: int | None = None) -> Problem:
        X, y = self.some(n_classes, most_rows)
        return Problem(f"{self.suite}, leaf", X, y, n_classes, alpha)

    def decision(self, n_classes: int, alpha: float, most_rows: int | None = None) -> Problem:
        X, y = self.some(n_classes, most_rows)
        members = sp.csr_matrix((np.ones(len(y)), (y, np.arange(len(y)))), shape=(n_classes, len(y)))
        means = members @ X / np.maximum(np.asarray(members.sum(axis=1)), 1)
        means = means - means.mean(axis=0) if not sp.issparse(means) else means
        side = svds(means.astype(np.float64), k=1, random_state=0)[0][:, 0]
        signs = np.where(side > np.median(side), 1, -1)[y]
        signs[self.random.uniform(size=len(y)) < 0.1] *= -1
        weights = self.random.exponential(size=len(y)).astype(np.float32)
        return Problem(f"{self.suite}, decision", X, signs, 1, alpha, weights)


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """The answer, and the processor's seconds: there is one thread, and the core may be shared."""
    start = time.process_time()
    answer = work()
    return answer, time.process_time() - start


def ours(problem: Problem, rows: Rows, tolerance: float = 1e-4) -> Any:
    indices = np.arange(len(problem.y))
    options: dict[str, Any] = {"tolerance": tolerance, "max_iterations": 20_000}
    if problem.n_classes == 1:
        return l1_logistic(rows, indices, problem.y, problem.alpha, problem.weights, penalise_bias=True, **options)
    return l1_softmax(rows, indices, problem.y, problem.n_classes, problem.alpha, **options)


def peer(problem: Problem, matrix: Any, setting: float) -> float:
    """LIBLINEAR down to a tolerance, or SAGA for a number of passes; returns the objective."""
    common: dict[str, Any] = {"C": 1 / problem.alpha, "penalty": "l1", "random_state": 0}
    if problem.n_classes == 1:
        model = LogisticRegression(**common, solver="liblinear", tol=setting, max_iter=10_000)
        model.fit(matrix, problem.y, sample_weight=problem.weights)
    else:
        model = LogisticRegression(**common, solver="saga", tol=0.0, max_iter=int(setting))
        model.fit(matrix, problem.y)
    return problem.objective(matrix, model.coef_, model.intercept_)


def loosest(
    problem: Problem, matrix: Any, best: float, patience: float
) -> tuple[float, list[tuple[float, float, float]]]:
    """The loosest setting of the peer that comes close, or the last one tried; and all that were tried."""
    tried = []
    settings = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5) if problem.n_classes == 1 else (20, 60, 200, 600, 2000)
    for setting in settings:
        found, seconds = timed(lambda setting=setting: peer(problem, matrix, setting))
        tried.append((setting, seconds, found / best - 1))
        print("   ", problem.name, tried[-1], file=sys.stderr, flush=True)
        if found <= best * (1 + CLOSE) or seconds > patience:
            break
    return setting, tried


def measure(problem: Problem, patience: float) -> dict[str, Any]:
    matrix, rows = problem.matrix, problem.rows
    best = ours(problem, rows, 1e-7).objective
    setting, tried = loosest(problem, matrix, best, patience)
    mine, theirs, found = np.inf, tried[-1][1], None
    for _ in range(ROUNDS):
        found, seconds = timed(lambda: ours(problem, rows))
        mine = min(mine, seconds)
        if theirs < patience / 5:
            theirs = min(theirs, timed(lambda: peer(problem, matrix, setting))[1])
    assert found is not None
    return {
        "problem": problem.name,
        "rows": len(problem.y),
        "features": matrix.shape[1],
        "classes": max(2, problem.n_classes),
        "alpha": problem.alpha,
        "weights": int((found.coef != 0).sum()),
        "best": best,
        "ours_s": mine,
        "ours_gap": found.objective / best - 1,
        "iterations": found.iterations,
        "peer": "LIBLINEAR" if problem.n_classes == 1 else "SAGA",
        "setting": setting,
        "peer_s": theirs,
        "peer_gap": tried[-1][2],
        "tried": tried,
    }


LEAVES = (  # suite, classes, alpha, at most this many rows
    ("glyphs1k", 100, 0.1, 1400),
    ("glyphs1k", 100, 0.1, None),
    ("glyphs1k", 100, 1.0, None),
    ("ptb", 100, 1.0, 4000),
    ("wordnet", 100, 0.1, None),
    ("wordnet", 300, 0.1, None),
    ("wordnet", 300, 1.0, None),
)
DECISIONS = (
    ("glyphs1k", 100, 0.1, None),
    ("glyphs1k", 100, 1.0, None),
    ("glyphs1k", 500, 1.0, None),
    ("ptb", 1000, 1.0, 20_000),
    ("wordnet", 300, 0.1, None),
    ("wordnet", 5000, 0.1, None),
    ("wordnet", 5000, 1.0, None),
)


def problems(only: str) -> Iterator[Problem]:
    sources: dict[str, Source] = {}
    for kind, settings_of in (("leaf", LEAVES), ("decision", DECISIONS)):
        for suite, *settings in settings_of:
            if only in f"{suite}, {kind}":
                sources[suite] = sources.get(suite) or Source(suite)
                yield getattr(sources[suite], kind)(*settings)


COLUMNS = [
    {"name": name}
    for name in (
        "node", "rows", "features", "classes", "alpha", "weights", "ours, ms", "above best %", "peer", "peer, ms",
        "peer above best %", "times faster",
    )
]  # fmt: skip


def cells(run: dict[str, Any]) -> list[Any]:
    """A row of the table."""
    reached = "" if run["peer_gap"] <= CLOSE else "> "
    setting = f"tol {run['setting']:g}" if run["peer"] == "LIBLINEAR" else f"{run['setting']} passes"
    return [
        *(run[name] for name in ("problem", "rows", "features", "classes", "alpha", "weights")),
        rounded(1e3 * run["ours_s"]), rounded(100 * run["ours_gap"], 1), f"{run['peer']}, {setting}",
        rounded(1e3 * run["peer_s"]), rounded(100 * run["peer_gap"], 2),
        f"{reached}{run['peer_s'] / run['ours_s']:.2g}",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="problems with this in their name")
    parser.add_argument(
        "--patience", type=float, default=60.0,
        help="seconds: a peer that took longer and is not close gets no more passes",
    )  # fmt: skip
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")  # of scikit-learn: names about to change, and passes used up
    found = []
    for problem in problems(chosen.only):
        found.append(measure(problem, chosen.patience))
        print(cells(found[-1]), file=sys.stderr, flush=True)
    print(table({"columns": COLUMNS, "rows": [cells(run) for run in found]}))
    keep(f"solvers{chosen.only}", found)
    if not chosen.only:
        store(
            "softmax-tree",
            "solvers",
            title="The solvers of nodes beside scikit-learn's",
            shows=f"Milliseconds of the processor, best of {ROUNDS}. A peer gets the loosest setting that comes within {100 * CLOSE:g} per cent "
            f"of the best objective, or the first that took {chosen.patience:g} seconds; then the ratio has a `>`.",
            columns=COLUMNS,
            rows=[cells(run) for run in found],
        )


if __name__ == "__main__":
    main()
