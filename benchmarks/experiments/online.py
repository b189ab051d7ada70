"""The experiments of the paper on online label trees, in shape, on our data.

    python -m benchmarks.experiments.online tables gcc wordnet delicious     Tables 2, 4, 5, 7 and 8 as Markdown
    python -m benchmarks.experiments.online curve gcc                        progressive P@1 over the stream, and its plot
    python -m benchmarks.experiments.online depths debtags icd               depth by alpha and formula (Table 7)
    python -m benchmarks.experiments.online napkinxc debtags icd             beside the authors' program, same settings

One thread. Test rows are those of the suite; the stream is its training rows in the order of the suite.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from math import ceil, log2
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.base import clone

from benchmarks import FOLDER
from benchmarks.harness.accuracy import accuracies, inverse_propensities
from benchmarks.harness.measure import Data
from benchmarks.harness.output import help_if_asked, store
from benchmarks.harness.runner import run_all
from benchmarks.harness.suites import CACHE, RECIPES, prepared
from benchmarks.harness.systems import ours, peers
from benchmarks.pages import publish
from treemax import LabelTree, OnlineLabelTree

RESULTS = FOLDER / "results"
CURVE_PLOT = FOLDER.parent / "docs" / "images" / "online-curve.png"
ROWS_ONE_LEVEL = 30_000
ROWS_A_STEP = 100  # of the stream: predicted, then learned
ALPHAS = (0.25, 0.375, 0.5, 0.625, 0.75, 0.875)  # of table 7
PAPER = {"arity": 2, "max_leaf": 100, "together": True, "learning_rate": 1.0, "least_gradient": 0.0}


@dataclass
class Rows:
    """The rows of one part of a suite."""

    X: csr_matrix
    y: list[list[int]]
    ids: np.ndarray
    starts: np.ndarray


@dataclass
class Suite:
    name: str
    train: Rows
    test: Rows
    n_labels: int
    multi_label: bool
    weights: np.ndarray = field(default_factory=lambda: np.empty(0))

    @classmethod
    def read(cls, name: str) -> Suite:
        return cls.from_folder(name, CACHE / f"{name}-{RECIPES}")

    @classmethod
    def from_folder(cls, name: str, folder: Path) -> Suite:
        data = Data(folder)
        parts = []
        for part in ("train", "test"):
            arrays, shape = data.csr(part)
            parts.append(Rows(csr_matrix(arrays, shape=shape), data.label_lists(part), *data.labels(part)))
        weights = inverse_propensities(parts[0].ids, data.n_labels, data.n_rows("train"))
        return cls(name, *parts, data.n_labels, data.multi_label, weights)

    def targets(self, rows: Rows) -> Any:
        return rows.y if self.multi_label else np.array([labels[0] for labels in rows.y])


def judged(suite: Suite, model: Any) -> dict[str, Any]:
    """Accuracy on the test rows, and microseconds a row."""
    model.predict_topk(suite.test.X[:20], 5)
    start = time.perf_counter()
    labels = model.predict_topk(suite.test.X, 5).labels
    seconds = time.perf_counter() - start
    ranked = np.array([[-1 if label is None else label for label in row] for row in labels.tolist()])
    figures = accuracies(ranked, suite.test.ids, suite.test.starts, suite.weights, True, False)
    return {**figures, "us a row": 1e6 * seconds / len(ranked), "depth": model.describe()["depth"]}


def trained(suite: Suite, model: Any, rows: slice | None = None) -> dict[str, Any]:
    """Fit and judge a model; `rows` are the training rows to take."""
    X, y = suite.train.X[rows or slice(None)], suite.targets(suite.train)[rows or slice(None)]
    type(model)(**{**model.get_params(), "sample": None} if "sample" in model.get_params() else {}).fit(X[:50], y[:50])
    start = time.perf_counter()
    model.fit(X, y)
    return {"train s": time.perf_counter() - start, **judged(suite, model)}


def online(**settings: Any) -> OnlineLabelTree:
    return OnlineLabelTree(**{"n_jobs": 1, "verbose": 0, **settings})


def settings_of_tables() -> dict[str, Any]:
    """Rows of Tables 2, 4, 5 and 7: name -> model."""
    rows: dict[str, Any] = {"LabelTree (batch)": LabelTree(verbose=0, n_jobs=1)}
    for passes in (1, 3):
        rows[f"IPLT, p={passes}"] = online(tree="kmeans", passes=passes)
        rows[f"OPLT random, p={passes}"] = online(policy="random", passes=passes)
        rows[f"OPLT best-greedy, p={passes}"] = online(passes=passes)
        for share in (0.05, 0.1, 0.15):
            rows[f"OPLT-W {share:.0%}, p={passes}"] = online(tree="kmeans", sample=share, passes=passes)
    rows["OPLT random, the paper's settings"] = online(policy="random", **PAPER)
    rows["OPLT best-greedy, the paper's settings"] = online(**PAPER)
    rows["CPET, complete binary tree"] = online(policy="complete")
    for alpha in ALPHAS:
        rows[f"OPLT best-greedy, alpha={alpha}"] = online(alpha=alpha)
    return rows


def warm_start_rows(suite: Suite, share: float) -> dict[str, Any]:
    """Table 8: the sample alone, its tree without new labels on all rows, and the tree that grows."""
    n_first = int(share * len(suite.train.y))
    known = set(suite.train.ids[: suite.train.starts[n_first]].tolist())
    kept = [[label for label in labels if label in known] for labels in suite.train.y]
    with_labels = np.flatnonzero([len(labels) > 0 for labels in kept])
    known_only = Rows(suite.train.X[with_labels], [kept[i] for i in with_labels], suite.train.ids, suite.train.starts)
    n_known = int(np.searchsorted(with_labels, n_first))
    only = Suite(suite.name, known_only, suite.test, suite.n_labels, suite.multi_label, suite.weights)
    return {
        f"IPLT, {share:.0%} of the rows only": trained(suite, online(tree="kmeans"), slice(0, n_first)),
        f"IPLT-U, tree of {share:.0%}, no new labels": trained(
            only, online(tree="kmeans", sample=n_known / len(with_labels))
        ),
        f"OPLT-W {share:.0%}": trained(suite, online(tree="kmeans", sample=share)),
    }


def table(suite: Suite, found: dict[str, dict[str, Any]]) -> str:
    columns = ["P@1", "P@3", "P@5", *(f"PSP@{k}" for k in (1, 3, 5)), "train s", "us a row", "depth"]
    form = {"train s": "{:.2f}", "us a row": "{:.1f}", "depth": "{:d}"}
    lines = [f"| {suite.name} | " + " | ".join(columns) + " |", "|---" + "|--:" * len(columns) + "|"]
    for name, figures in found.items():
        cells = (form.get(column, "{:.4f}").format(figures[column]) for column in columns)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def tables(names: list[str]) -> None:
    for name in names:
        suite = Suite.read(name)
        found = {}
        for row, model in settings_of_tables().items():
            found[row] = trained(suite, clone(model))  # a model is large: none is kept
            print(row, {key: round(value, 4) for key, value in found[row].items()}, file=sys.stderr, flush=True)
        for share in (0.05, 0.1, 0.15):
            found |= warm_start_rows(suite, share)
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"online-{name}.json").write_text(json.dumps(found, indent=1))
        print(table(suite, found), flush=True)


# --- beside the authors' program --------------------------------------------------------------------------

PAPERS, THEIRS = "alpha=0.75,epsilon=0.01", "alpha=0.5,epsilon=0.001"
SAME = "learning_rate=1.0,arity=2,max_leaf=100,together=True,least_gradient=0.0,search=exact"
EQUATION_2 = f"{SAME},scale_siblings=False"
SETTINGS = {
    "the paper's: alpha 0.75, epsilon 0.01, no pruning": {
        "napkinXC OPLT": "napkinxc-oplt:online_tree_alpha=0.75,adagrad_eps=0.01,weights_threshold=0",
        "OnlineLabelTree": f"online-label-tree:{PAPERS},{EQUATION_2}",
        "OnlineLabelTree, siblings scaled": f"online-label-tree:{PAPERS},{SAME}",
        "OnlineLabelTree, printed formula, siblings scaled": f"online-label-tree:policy=best-greedy-printed,{PAPERS},{SAME}",
    },
    "napkinXC's defaults: alpha 0.5, epsilon 0.001, pruning at 0.1": {
        "napkinXC OPLT": "napkinxc-oplt",
        "napkinXC OPLT, no pruning": "napkinxc-oplt:weights_threshold=0",
        "OnlineLabelTree, no pruning, siblings scaled": f"online-label-tree:{THEIRS},{SAME}",
    },
    "our defaults": {"OnlineLabelTree": "online-label-tree"},
}


def compare_with_napkinxc(names: list[str]) -> None:
    """Both programs at the paper's settings and at their defaults; one pass."""
    texts = [text for systems in SETTINGS.values() for text in systems.values()]
    found = {}
    for name in names:
        systems = [(peers if text.startswith("napkinxc") else ours)(text)[0] for text in texts]
        outcomes = run_all(systems, prepared(name))
        found[name] = {outcome.system.name: outcome.runs[0] for outcome in outcomes}
    store_comparison(found)


def store_comparison(found: dict[str, dict[str, Any]]) -> None:
    figures = {"P@1": 4, "P@3": 4, "P@5": 4, "train_seconds": 1}
    store(
        "online-label-tree",
        "napkinxc",
        title="Beside the authors' program, at the same settings",
        shows="OnlineLabelTree and napkinXC 0.7.2, the authors' program, with the same features: one pass, one thread, best-greedy policy, "
        "exact search. The defaults of napkinXC are not the settings of the paper.",
        columns=[
            "settings",
            "program",
            *(
                {"name": f"{name} {figure.replace('train_seconds', 'train s')}", "decimals": decimals}
                for name in found
                for figure, decimals in figures.items()
            ),
        ],
        rows=[
            [
                settings,
                program,
                *(round(of_suite[text][figure], 4) for of_suite in found.values() for figure in figures),
            ]
            for settings, systems in SETTINGS.items()
            for program, text in systems.items()
        ],
        machine="one core of a two-core x86-64 machine (AMD EPYC, AVX-512), shared with other work",
    )


# --- depth by alpha ----------------------------------------------------------------------------------------


def depths(names: list[str]) -> None:
    """The depth of best-greedy trees with the number of leaves inside the logarithm and outside, as printed."""
    rows = []
    for name in names:
        suite = Suite.read(name)
        balanced = 1 + ceil(log2(suite.n_labels / PAPER["max_leaf"]))
        for policy in ("best-greedy", "best-greedy-printed"):
            models = [online(policy=policy, alpha=alpha, **PAPER) for alpha in ALPHAS]
            found = [model.fit(suite.train.X, suite.targets(suite.train)).describe()["depth"] for model in models]
            rows.append([name, policy, *found, balanced])
            print(rows[-1], file=sys.stderr, flush=True)
    publish(
        "online-depths",
        "online-label-tree",
        "depths",
        title="Depth by alpha",
        shows="The depth column of table 7: the paper's settings with alpha as the column says, one pass in the order of the data. "
        "In the paper, on AmazonCat, it falls from 30 to 10, that of the balanced tree.",
        columns=[
            {"name": name} for name in ("suite", "policy", *(f"alpha {alpha}" for alpha in ALPHAS), "balanced tree")
        ],
        rows=rows,
    )


# --- the curve -------------------------------------------------------------------------------------------


def streamed(suite: Suite, model: OnlineLabelTree, n_first: int, classes: Any, n_rows: int) -> dict[str, Any]:
    """Predict, then learn, a step at a time; whether the first answer of each row was right.

    The first `n_first` rows are learned in one call: the sample of a warm start. `classes` are announced.
    """
    X, y = suite.train.X, suite.targets(suite.train)
    n_first = max(n_first, ROWS_A_STEP)
    hits = [np.nan] * n_first  # not asked for
    clock = time.process_time()
    model.partial_fit(X[:n_first], y[:n_first], classes=classes)
    seconds = time.process_time() - clock
    for start in range(n_first, n_rows, ROWS_A_STEP):
        step = slice(start, min(n_rows, start + ROWS_A_STEP))
        answers = model.predict_topk(X[step], 1).labels[:, 0].tolist()
        hits += [float(label in truth) for label, truth in zip(answers, suite.train.y[step], strict=True)]
        clock = time.process_time()
        model.partial_fit(X[step], y[step])
        seconds += time.process_time() - clock
    return {"hits": hits, "train s": seconds, **judged(suite, model)}


def curve(name: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    suite = Suite.read(name)
    n_rows = len(suite.train.y)
    n_tenth = n_rows // 10
    runs = {
        "OPLT best-greedy": (online(), 0, None, n_rows),
        "OPLT random": (online(policy="random"), 0, None, n_rows),
        "OPLT-W, first 10%": (online(tree="kmeans"), n_tenth, None, n_rows),
        "IPLT, tree of all rows": (online(tree=tree_of_all(suite)), 0, np.unique(suite.train.ids), n_rows),
        # time and memory in the number of labels: the first rows must do
        f"one-vs-rest, {ROWS_ONE_LEVEL:,} rows": (online(policy="one-level"), 0, None, min(ROWS_ONE_LEVEL, n_rows)),
    }
    figure, axes = plt.subplots(figsize=(8, 4.5))
    found = {}
    for label, (model, n_first, classes, n_rows) in runs.items():
        result = streamed(suite, clone(model), n_first, classes, n_rows)
        hits = np.array(result.pop("hits"))
        result["progressive P@1"] = float(hits[n_tenth:].mean())  # from where all of them are asked
        window = 5000
        moving = np.convolve(hits, np.ones(window) / window, mode="valid")
        axes.plot(
            np.arange(window, len(hits) + 1),
            moving,
            label=f"{label} (depth {result['depth']}, {result['train s']:.1f} s)",
        )
        found[label] = result
        print(label, {key: round(value, 4) for key, value in result.items()}, flush=True)
    axes.set_xlabel("rows of the stream")
    axes.set_ylabel(f"right first answers, last {window:,} rows")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(CURVE_PLOT, dpi=110)
    columns = ("progressive P@1", "P@1", "P@3", "P@5", "depth", "train s", "us a row")
    print("| " + name + " | " + " | ".join(columns) + " |\n|---" + "|--:" * len(columns) + "|")
    for label, result in found.items():
        print(f"| {label} | " + " | ".join(f"{result[c]:.4g}" for c in columns) + " |")


def tree_of_all(suite: Suite) -> Any:
    """The tree of all rows, which a stream does not have: a bound on what growing one can reach."""
    batch = LabelTree(arity=15, max_leaf=15, passes=1, verbose=0, n_jobs=1)
    return batch.fit(suite.train.X, suite.targets(suite.train)).model_.trees[0].tree


if __name__ == "__main__":
    help_if_asked(__doc__)
    command, *arguments = sys.argv[1:]
    if command in ("depths", "napkinxc"):
        {"depths": depths, "napkinxc": compare_with_napkinxc}[command](arguments)
    else:
        tables(arguments) if command == "tables" else curve(*arguments)
