"""OnlineLabelTree beside the authors' program, napkinXC, over several orders of the training rows.

    python -m benchmarks.experiments.online_orders debtags icd

Both at the paper's settings. A third row trains our classifiers on the tree that napkinXC grew: what then differs from
its answers is not due to the tree.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.experiments.online import EQUATION_2, PAPERS, SETTINGS, Suite, online
from benchmarks.harness.accuracy import accuracies
from benchmarks.harness.output import help_if_asked, store
from benchmarks.harness.runner import run_stages
from benchmarks.harness.suites import CACHE, prepared
from benchmarks.harness.systems import ours, peers

N_ORDERS = 8  # that of the suite, and shuffles
FIGURES = ("P@1", "P@3", "P@5")
NAPKINXC, OURS, THEIR_TREE = "napkinXC OPLT", "OnlineLabelTree", "OnlineLabelTree, napkinXC's tree"


def write_shuffled(source: Path, seed: int, folder: Path) -> None:
    """A copy of a prepared data set with its training rows in another order; seed 0 keeps them."""
    shutil.copy(source / "facts.json", folder)
    with np.load(source / "data.npz") as found:
        arrays = {name: found[name] for name in found.files if not name.startswith("text")}
    n_rows = len(arrays["starts_train"]) - 1
    order = np.random.default_rng(seed).permutation(n_rows) if seed else np.arange(n_rows)
    for starts, *values in (("starts_train", "values_train", "indices_train"), ("label_starts_train", "labels_train")):
        first, sizes = arrays[starts][:-1][order], np.diff(arrays[starts])[order]
        arrays[starts] = np.concatenate([[0], np.cumsum(sizes)])
        places = np.repeat(first - arrays[starts][:-1], sizes) + np.arange(sizes.sum())
        arrays |= {name: arrays[name][places] for name in values}
    np.savez(folder / "data.npz", **arrays)


def read_tree(file: Path) -> list[tuple[Any, Any]]:
    """The tree that napkinXC saved, as pairs of parent and child; labels are numbers, other nodes have names."""
    nodes = [line.split() for line in file.read_text().splitlines()[1:] if line]
    return [
        (f"node {parent}", int(label[0]) if label else f"node {node}")
        for parent, node, *label in nodes
        if parent != "-1"
    ]


def runs_of(name: str, seed: int) -> Iterator[tuple[str, np.ndarray]]:
    """The ranked labels of each program, trained on the rows of a suite in one order."""
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="run-") as scratch:
        folder = Path(scratch) / "data"
        folder.mkdir()
        write_shuffled(prepared(name), seed, folder)
        paper = next(iter(SETTINGS.values()))
        answers, _ = run_stages(peers(paper[NAPKINXC])[0], folder, Path(scratch))
        yield NAPKINXC, answers["labels"]
        suite = Suite.from_folder(name, folder)
        settings = {
            key: value
            for key, value in ours(f"online-label-tree:{PAPERS},{EQUATION_2}")[0].settings.items()
            if key != "model"
        }
        tree = read_tree(Path(scratch) / "model" / "tree.txt")
    given = {"tree": tree, "policy": "none", "max_leaf": suite.n_labels}  # leaves are not divided
    for program, more in ((OURS, {}), (THEIR_TREE, given)):
        model = online(**{**settings, **more}).fit(suite.train.X, suite.targets(suite.train))
        yield program, model.classes_[np.argsort(-model.path_probabilities(suite.test.X), axis=1)[:, :5]]


def compare(names: list[str]) -> None:
    rows = []
    for name in names:
        suite = Suite.from_folder(name, prepared(name))
        found: dict[str, list[dict[str, float]]] = {NAPKINXC: [], OURS: [], THEIR_TREE: []}
        for seed in range(N_ORDERS):
            for program, ranked in runs_of(name, seed):
                if program == NAPKINXC:
                    reference = ranked[:, 0]
                figures = accuracies(ranked, suite.test.ids, suite.test.starts, suite.weights, True, False)
                figures["same"] = 100 * float(np.mean(ranked[:, 0] == reference))
                found[program].append(figures)
                print(
                    name,
                    seed,
                    program,
                    {key: round(figures[key], 4) for key in (*FIGURES, "same")},
                    file=sys.stderr,
                    flush=True,
                )
        for program, runs in found.items():
            cells = []
            for figure in FIGURES:
                of_runs = [run[figure] for run in runs]
                cells.append(
                    {"value": round(float(np.mean(of_runs)), 5), "error": round(float(np.std(of_runs, ddof=1)), 5)}
                )
            same = float(np.mean([run["same"] for run in runs]))
            rows.append([name, program, *cells, round(same, 2), round(runs[0]["P@1"], 5)])
    store(
        "online-label-tree",
        "napkinxc-orders",
        title="Beside the authors' program, over several orders of the rows",
        shows=f"Both programs at the paper's settings, ranked by equation 2 (siblings not scaled): mean and standard deviation over {N_ORDERS} "
        "orders of the training rows, and how often the first answer is that of napkinXC. The third row trains our classifiers on the tree "
        "that napkinXC grew. The last column has the order of the data set alone.",
        columns=[
            "suite",
            "program",
            *({"name": figure, "decimals": 4} for figure in FIGURES),
            {"name": "same first answer %", "decimals": 1},
            {"name": "P@1, given order", "decimals": 4},
        ],
        rows=rows,
    )


if __name__ == "__main__":
    help_if_asked(__doc__)
    compare(sys.argv[1:])
