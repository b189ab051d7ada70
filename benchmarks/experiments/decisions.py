"""Answers under restrictions: `python -m benchmarks.experiments.decisions [time|propensity|thresholds] [SUITE...]`.

`time` compares `predict_topk` from allowed labels with that from all: microseconds a row, one at a
time and all rows at once. `propensity` ranks by probability over propensity, beside napkinXC's probabilities.
`thresholds` chooses them on one half of the validation rows and judges `predict` on the other.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

import treemax
from benchmarks.experiments.choosing import parts
from benchmarks.harness.measure import Data
from benchmarks.harness.output import help_if_asked, keep, store, table
from benchmarks.harness.problem import features
from benchmarks.harness.report import summary
from benchmarks.harness.runner import run_all
from benchmarks.harness.suites import prepared
from benchmarks.harness.systems import peers
from treemax.metrics import evaluate

MODELS = ("label-tree", "online-label-tree", "learned-tree")
MODELS_OF = {"delicious": (*MODELS, "one-vs-all", "mach"), "wordnet": (*MODELS, "recall-tree", "lom-tree")}
SHARES = (0.01, 0.1, 0.5, 0.99)
REPEATS = 40
ROWS_ONE, ROWS_BATCH = 20, 250
CHOICES: dict[str, tuple[Any, ...] | None] = {
    "`threshold_` of `fit`": None,
    "micro-f1": ("micro-f1",),
    "macro-f1": ("macro-f1",),
    "instance-f1": ("instance-f1",),
    "precision 0.8": ("precision", 0.8),
}
FIGURES = ("P@1", "P@5", "PSP@1", "PSP@3", "PSP@5")


def read(suite: str) -> tuple[Any, Any, Any, Any]:
    """X and y of training, X and label lists of the test rows."""
    data = Data(prepared(suite))
    y: Any = data.label_lists("train") if data.multi_label else data.classes("train")
    return features(data, "train"), y, features(data, "test"), data.label_lists("test")


def restrictions(model: Any) -> dict[str, dict[str, Any]]:
    """Arguments of `predict_topk` by what they allow: labels drawn at random, and all but the most frequent ones."""
    n, draw = len(model.classes_), np.random.default_rng(0)
    found: dict[str, dict[str, Any]] = {"all labels": {}}
    for size in (1, 10, *(int(share * n) for share in SHARES)):
        title = f"{size} of the labels" if size <= 10 else f"{size / n:.0%} of the labels"
        found[title] = {"labels": model.classes_[draw.choice(n, size, replace=False)].tolist()}
    frequent = model.classes_[np.argsort(-model.label_counts_)].tolist()
    for size in (1, 10, n // 100):
        found[f"all but {size if size in (1, 10) else '1%'}"] = {"exclude": frequent[:size]}
    return found


def microseconds(model: Any, X: Any, asked: dict[str, dict[str, Any]]) -> dict[str, NDArray[np.float64]]:
    """Best of many turns: one row at a time, and all rows at once."""
    rows = [X[i : i + 1] for i in range(ROWS_ONE)]
    best = {title: np.full(2, np.inf) for title in asked}
    for _ in range(REPEATS):
        for title, options in asked.items():
            model.predict_topk(rows[0], 5, **options)
            start = time.process_time()
            for row in rows:
                model.predict_topk(row, 5, **options)
            between = time.process_time()
            model.predict_topk(X, 5, **options)
            took = (between - start) / len(rows), (time.process_time() - between) / X.shape[0]
            best[title] = np.minimum(best[title], took)
    return {title: 1e6 * figures for title, figures in best.items()}


def times(suite: str) -> list[list[Any]]:
    """A row for every model and restriction."""
    X_train, y_train, X_test, _ = read(suite)
    rows: list[list[Any]] = []
    for name in MODELS_OF[suite]:
        model = treemax.MODELS[name](n_jobs=1, verbose=0).fit(X_train, y_train)
        found = microseconds(model, X_test[:ROWS_BATCH], restrictions(model))
        of_all = found["all labels"]
        for title, (one, batch) in found.items():
            rows.append([suite, name, title, one, one / of_all[0], batch, batch / of_all[1]])
            print(rows[-1], file=sys.stderr, flush=True)
    return rows


def propensity(suite: str) -> list[list[Any]]:
    """Propensity-scored precision with and without weights."""
    X_train, y_train, X_test, y_test = read(suite)
    rows = []
    for name in MODELS[:2]:
        model = treemax.MODELS[name](n_jobs=1, verbose=0).fit(X_train, y_train)
        for title, weights in (("probability", None), ("probability / propensity", "propensity")):
            top = model.predict_topk(X_test, 5, label_weights=weights)
            counts = dict(zip(model.classes_.tolist(), model.label_counts_.tolist(), strict=True))
            found = evaluate(y_test, top.labels, label_counts=counts, n_train=model.n_examples_)
            rows.append([suite, name, title, *(round(found[figure], 4) for figure in FIGURES)])
            print(rows[-1], file=sys.stderr, flush=True)
    beside = {"probability": "napkinxc-plt", "probability / propensity": "napkinxc-plt:weights=propensity"}
    of_peers = {row["system"]: row for row in map(summary, run_all(peers(",".join(beside.values())), prepared(suite)))}
    for title, system in beside.items():
        rows.append([suite, "napkinXC PLT", title, *(round(of_peers[system][figure], 4) for figure in FIGURES)])
    return rows


def thresholds(suite: str) -> list[list[Any]]:
    """F1 of `predict` by the metric for which thresholds were chosen; macro F1 over the labels of the judged rows."""
    X, y, X_held, lists = parts(suite)
    order = np.random.default_rng(0).permutation(len(lists))
    chosen_on, judged = order[: len(order) // 2], order[len(order) // 2 :]
    model = treemax.LabelTree(n_jobs=1, verbose=0).fit(X, y)
    truth = [set(lists[i]) for i in judged]
    rows = []
    for title, options in CHOICES.items():
        if options is not None:
            model.choose_thresholds(X_held[chosen_on], [lists[i] for i in chosen_on], *options)
        found = [set(row) for row in model.predict(X_held[judged])]
        rows.append([suite, title, *(round(figure, 4) for figure in f1_scores(truth, found))])
        print(rows[-1], file=sys.stderr, flush=True)
    return rows


def f1_scores(truth: list[set[Any]], found: list[set[Any]]) -> tuple[float, float, float, float]:
    """Micro, macro and instance F1, and precision."""
    n_right, n_sizes = Counter[Any](), Counter[Any]()
    for own, answer in zip(truth, found, strict=True):
        n_right.update(own & answer)
        n_sizes.update(own)
        n_sizes.update(answer)
    macro = np.mean([2 * n_right[label] / n_sizes[label] for label in set().union(*truth)])
    instance = np.mean([2 * len(a & b) / max(1, len(a) + len(b)) for a, b in zip(truth, found, strict=True)])
    right, n_found = sum(n_right.values()), sum(map(len, found))
    return 2 * right / sum(n_sizes.values()), float(macro), float(instance), right / max(1, n_found)


SHOWS = (
    "`predict_topk(X, 5)` with `labels` drawn at random, or with the most frequent labels in `exclude`; best "
    "of {repeats} interleaved turns on a shared machine, one training run. One row takes {one} times as long as "
    "with all labels. In batches it takes {several} times as long with several labels a row (delicious), and "
    "{single} times with one (wordnet): calibration needs the best of all labels, too, which the same search "
    "finds, and the best allowed labels are in less probable nodes, of which an exact search, that of LearnedTree, "
    "has to open several times as many."
)
COLUMNS = {
    "time": ["model", "allowed", "one row, us", "ratio", "batch, us", "ratio"],
    "propensity": ["model", "ranked by", *FIGURES],
    "thresholds": ["chosen for", "micro F1", "macro F1", "instance F1", "precision"],
}


def ratios(rows: list[list[Any]], column: int, suite: str | None = None) -> str:
    """The smallest and the largest ratio of a column, of the rows with restrictions."""
    found = [row[column] for row in rows if row[2] != "all labels" and suite in (None, row[0])]
    return f"{min(found):.1f} to {max(found):.1f}" if found else "(not measured)"


def main(arguments: list[str]) -> None:
    what, *suites = arguments or ["time"]
    measure = {"time": times, "propensity": propensity, "thresholds": thresholds}[what]
    found = [row for suite in suites or ["delicious", "wordnet"] for row in measure(suite)]
    keep(f"decisions-{what}", found)
    if what == "time":
        columns = ["data", "model", "allowed", *({"name": name, "decimals": 2} for name in COLUMNS[what][2:])]
        shows = SHOWS.format(
            repeats=REPEATS,
            one=ratios(found, 4),
            several=ratios(found, 6, "delicious"),
            single=ratios(found, 6, "wordnet"),
        )
        store(
            "label-tree", "restrictions", title="Answers from allowed labels", shows=shows, columns=columns, rows=found
        )
    print(table(["data", *COLUMNS[what]], [[str(cell) for cell in row] for row in found]))


if __name__ == "__main__":
    help_if_asked(__doc__)
    main(sys.argv[1:])
