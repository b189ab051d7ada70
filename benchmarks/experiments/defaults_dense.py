"""Settings of RecallTree, OneVsAll and LearnedTree over many suites at once, on validation parts only.

    python -m benchmarks.experiments.defaults_dense recall-tree [--suites a,b] [--rows N] [--output FILE]

Every setting is fitted on the training part of every suite and judged on its validation part; no test row is
read. The table has the share of right first answers, the mean rank of a setting, its worst loss against the best
setting of a suite, and the largest calibration error. Below it: for each suite, the setting that the other suites would have
chosen, and what that choice loses there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import scipy.sparse as sp
from scipy.stats import rankdata

import treemax
from benchmarks.harness.measure import Data
from benchmarks.harness.suites import prepared

DENSE = ("glyphs1k", "glyphs5k", "icons", "ptb", "wordnet-glove", "wordnet-minilm", "icd-minilm")
SPARSE = ("wordnet", "icd", "debtags", "kinc", "builddeps")
ODD = ("few", "units", "narrow")  # made of glyphs1k: few rows a class, random units and means, twenty features
BINS = 15

Setting = dict[str, Any]
RECALL_TREE: list[Setting] = [
    {}, {"passes": 3}, {"passes": 6}, {"passes": 20}, {"scale": False}, {"calibration": 0.0},
    {"prior": 0.1}, {"prior": 1.0}, {"n_candidates": 50}, {"final_rate": 0.01},
]  # fmt: skip
ONE_VS_ALL: list[Setting] = [
    {}, {"passes": 3}, {"passes": 10}, {"scale": False}, {"calibration": 0.0}, {"loss": "logistic"},
]  # fmt: skip
LEARNED_TREE: list[Setting] = [
    {}, {"passes": 6}, {"passes": 12}, {"dimension": 200}, {"dropout": 0.5}, {"learning_rate": 1.0},
    {"tree": "random"}, {"calibration": 0.0},
]  # fmt: skip
GRIDS: dict[str, tuple[type, tuple[str, ...], list[Setting]]] = {
    "recall-tree": (treemax.RecallTree, (*DENSE, *ODD), RECALL_TREE),
    "one-vs-all": (treemax.OneVsAll, ("glyphs1k", "icons", *ODD, *SPARSE), ONE_VS_ALL),
    "learned-tree": (treemax.LearnedTree, SPARSE, LEARNED_TREE),
}


class Problem:
    """Training and validation rows of a suite, or of an odd shape made of one."""

    def __init__(self, name: str, rows: int) -> None:
        data = Data(prepared("glyphs1k" if name in ODD else name, rows, validation=True))
        self.X, self.X_held = (_features(data, part) for part in ("train", "test"))
        self.lists = data.label_lists("test")
        self.y: Any = data.label_lists("train") if data.multi_label else data.classes("train")
        if name in ODD:
            self._deform(name)

    def _deform(self, name: str) -> None:
        random = np.random.default_rng(0)
        if name == "few":
            order = random.permutation(len(self.y))
            order = order[np.argsort(self.y[order], kind="stable")]
            rank = np.arange(len(order)) - np.searchsorted(self.y[order], self.y[order])
            chosen = np.sort(order[rank < 4])
            self.X, self.y = self.X[chosen], self.y[chosen]
        elif name == "units":
            unit, mean = np.exp(random.normal(0, 2, self.X.shape[1])), random.normal(0, 2, self.X.shape[1])
            self.X, self.X_held = (((X + mean) * unit).astype(np.float32) for X in (self.X, self.X_held))
        else:
            directions = np.linalg.svd(self.X[:5000], full_matrices=False)[2][:20].T
            self.X, self.X_held = self.X @ directions, self.X_held @ directions

    def judged(self, model: Any) -> tuple[float, float]:
        """The share of right first answers on the validation rows, and their calibration error."""
        labels, scores = (array[:, 0] for array in model.fit(self.X, self.y).predict_topk(self.X_held, 1))
        right = np.array([label in row for label, row in zip(labels.tolist(), self.lists)])
        of_bin = np.minimum((scores * BINS).astype(int), BINS - 1)
        gaps = [abs(float((scores - right)[of_bin == number].sum())) for number in range(BINS)]
        return float(right.mean()), sum(gaps) / len(right)


def _features(data: Data, part: str) -> Any:
    if not data.sparse:
        return data.dense(part)
    parts, shape = data.csr(part)
    return sp.csr_matrix(parts, shape=shape)


def lines(names: list[str], suites: list[str], right: np.ndarray, errors: np.ndarray) -> Iterator[str]:
    """The table of settings by suites, and the choice that leaves out a suite."""
    loss = right.max(axis=0) - right
    ranks = rankdata(-right, axis=0)
    yield "| setting | " + " | ".join(suites) + " | mean rank | worst loss | largest ECE |"
    yield "|---|" + "--:|" * (len(suites) + 3)
    for i, name in enumerate(names):
        cells = [f"{value:.4f}" for value in right[i]]
        yield (
            f"| {name} | "
            + " | ".join([*cells, f"{ranks[i].mean():.2f}", f"{loss[i].max():.4f}", f"{errors[i].max():.4f}"])
            + " |"
        )
    yield ""
    yield "| suite left out | chosen by mean rank of the others | loss there |"
    yield "|---|---|--:|"
    for j, suite in enumerate(suites):
        chosen = int(np.delete(ranks, j, axis=1).mean(axis=1).argmin()) if len(suites) > 1 else 0
        yield f"| {suite} | {names[chosen]} | {loss[chosen, j]:.4f} |"


@click.command()
@click.argument("model", type=click.Choice(sorted(GRIDS)))
@click.option("--suites", help="Commas between names; all of the model's by default.")
@click.option("--rows", default=20_000, show_default=True, help="Of each part, at most.")
@click.option("--output", type=click.Path(dir_okay=False), help="JSON of all figures.")
def main(model: str, suites: str | None, rows: int, output: str | None) -> None:
    """Compare settings of MODEL on validation parts."""
    kind, default, grid = GRIDS[model]
    chosen = suites.split(",") if suites else list(default)
    right, errors = np.zeros((len(grid), len(chosen))), np.zeros((len(grid), len(chosen)))
    for j, suite in enumerate(chosen):
        problem = Problem(suite, rows)
        for i, settings in enumerate(grid):
            right[i, j], errors[i, j] = problem.judged(kind(verbose=0, random_state=0, **settings))
            click.echo(f"{suite} {settings}: {right[i, j]:.4f}, ECE {errors[i, j]:.4f}", err=True)
    names = [", ".join(f"{name}={value}" for name, value in one.items()) or "defaults" for one in grid]
    click.echo("\n".join(lines(names, chosen, right, errors)))
    if output:
        figures = {"settings": names, "suites": chosen, "right": right.tolist(), "ece": errors.tolist()}
        Path(output).write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
