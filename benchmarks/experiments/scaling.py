"""Time and memory against the number of labels: `python -m benchmarks.experiments.scaling [SIZE...]`.

The data is generated, so that everything but the number of labels stays the same: every label has twenty
words of its own from a vocabulary of 200,000 in which words are as unevenly frequent as in a language; a row
is ten of the twenty and five others. Four training rows a label, one label a row. Every run has a process of
its own, one thread, and reports the most memory it held.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from benchmarks import FOLDER
from benchmarks.harness.output import help_if_asked, rounded
from benchmarks.pages import publish

PLOT = FOLDER.parent / "docs" / "images" / "scaling.png"
VOCABULARY, WORDS_OF_A_LABEL, OWN_WORDS, OTHER_WORDS, ROWS_OF_A_LABEL = 200_000, 20, 10, 5, 4
TEST_ROWS = 20_000
SIZES = [1_000, 10_000, 100_000, 1_000_000]
MODELS = ("label-tree", "online-label-tree")


def words(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Words drawn with a probability that falls with their rank, as in a text."""
    return (VOCABULARY * random.random(shape) ** 3).astype(np.int32)


def rows_of(labels: np.ndarray, of_label: np.ndarray, random: np.random.Generator) -> csr_matrix:
    n = len(labels)
    chosen = random.integers(0, WORDS_OF_A_LABEL, (n, OWN_WORDS))
    own = np.take_along_axis(of_label[labels], chosen, axis=1)
    indices = np.concatenate([own, words(random, (n, OTHER_WORDS))], axis=1)
    values = (1.0 / np.log(2.0 + VOCABULARY / (1.0 + indices))).astype(np.float32) ** -1  # rare words weigh more
    width = OWN_WORDS + OTHER_WORDS
    X = csr_matrix((values.ravel(), indices.ravel(), np.arange(n + 1) * width), shape=(n, VOCABULARY))
    X.sum_duplicates()
    lengths = np.sqrt(np.add.reduceat(X.data**2, X.indptr[:-1]))
    X.data /= np.repeat(lengths, np.diff(X.indptr))
    return X


def measure(name: str, n_labels: int) -> dict[str, Any]:
    """One run, in this process."""
    from treemax import MODELS as CLASSES

    random = np.random.default_rng(0)
    of_label = words(random, (n_labels, WORDS_OF_A_LABEL))
    y = random.permutation(np.repeat(np.arange(n_labels), ROWS_OF_A_LABEL))
    X = rows_of(y, of_label, random)
    y_test = random.integers(0, n_labels, TEST_ROWS)
    X_test = rows_of(y_test, of_label, random)
    kind = CLASSES[name]
    kind(n_jobs=1, verbose=0).fit(X[:200], y[:200]).predict_topk(X_test[:10])  # compile
    data_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    start = time.perf_counter()
    model = kind(n_jobs=1, verbose=0).fit(X, y)
    train_s = time.perf_counter() - start
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    start = time.perf_counter()
    answers = model.predict_topk(X_test, 5).labels
    predict_s = time.perf_counter() - start
    return {
        "model": name,
        "labels": n_labels,
        "rows": len(y),
        "train s": train_s,
        "train us a row": 1e6 * train_s / len(y),
        "predict us a row": 1e6 * predict_s / TEST_ROWS,
        "P@1": float((answers[:, 0] == y_test).mean()),
        "depth": model.describe()["depth"],
        "data MB": data_mb,
        "peak MB": peak_mb,
    }


def main(sizes: list[int]) -> None:
    found = []
    for n_labels in sizes:
        for name in MODELS:
            command = [sys.executable, "-m", "benchmarks.experiments.scaling", "--one", name, str(n_labels)]
            answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            found.append(json.loads(answer.splitlines()[-1]))
            print(found[-1], file=sys.stderr, flush=True)
    plot(found)
    counts, figures = ("labels", "depth", "peak MB"), ("train s", "train us a row", "predict us a row", "P@1")
    publish(
        "scaling",
        "label-tree",
        "scaling",
        title="From a thousand to a million labels",
        shows="Generated rows, four a label, so that only the number of labels changes.",
        columns=[{"name": name} for name in ("model", *counts, *figures)],
        rows=[
            [run["model"], *(round(run[name]) for name in counts), *(rounded(run[name]) for name in figures)]
            for run in sorted(found, key=lambda run: run["model"])
        ],
        image={"file": "scaling.png", "text": "Microseconds a row against the number of labels"},
    )


def plot(found: list[dict[str, Any]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharex=True)
    for ax, what in zip(axes, ("train us a row", "predict us a row"), strict=True):
        for name in MODELS:
            runs = [run for run in found if run["model"] == name]
            labels, cost = [run["labels"] for run in runs], [run[what] for run in runs]
            (line,) = ax.plot(labels, cost, "o-", label=name)
            per_doubling = cost[0] / np.log2(labels[0])
            bound = [per_doubling * np.log2(n) for n in labels]
            ax.plot(labels, bound, ":", color=line.get_color(), label="in proportion to the logarithm")
        ax.set_xscale("log")
        ax.set_ylim(bottom=0)
        ax.set_xlabel("labels")
        ax.set_title(what, fontsize=10)
        ax.grid(alpha=0.3)
    axes[0].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    PLOT.parent.mkdir(exist_ok=True)
    figure.savefig(PLOT, dpi=110)


if __name__ == "__main__":
    help_if_asked(__doc__)
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measure(sys.argv[2], int(sys.argv[3]))))
    else:
        main([int(size) for size in sys.argv[1:]] or SIZES)
