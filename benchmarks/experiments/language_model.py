"""Trees under one log-bilinear language model of the Penn Treebank: table 2 and figure 2 of the paper on learned trees.

    python -m benchmarks.experiments.language_model train [NAME...]     learn and keep the models; one thread, all with one schedule
    python -m benchmarks.experiments.language_model table               judge those that are kept, side by side
    python -m benchmarks.experiments.language_model figure              perplexity after every pass, and the top of the learned tree
    python -m benchmarks.experiments.language_model run                 all of it, where models are not kept
    python -m benchmarks.experiments.language_model wider               learned trees by arity and words at the root

The data is looked for in `ptb` of the folder of the benchmarks' data. Settings were chosen on the validation texts; the test texts
are for the table only. Times are seconds of the processor.
"""

from __future__ import annotations

import gzip
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

import treemax
from benchmarks import FOLDER, pages
from benchmarks.harness.output import canvas, draw, help_if_asked, keep, number, table
from benchmarks.harness.problem import seconds
from benchmarks.harness.suites import data_folder
from treemax.parallel.threads import one_blas_thread

KEPT = FOLDER / ".cache" / "language-model"
NAMES = ("learned", "random", "clusters", "huffman", "flat")
COLUMNS = (
    "tree", "depth", "validation", "test", "output us a word", "train us a word", "train s", "test us a word", "top 5 us",
)  # fmt: skip
TOP_CONTEXTS, REPEATS = 4096, 3
WIDER = ((320, 192), (320, 256), (480, 400), (640, 480), (640, 540), (1024, 614), (1024, 820), (1024, 920))


def folder() -> Path:
    return data_folder() / "ptb"


def texts(part: str) -> list[str]:
    with gzip.open(folder() / f"{part}.txt.gz", "rt") as lines:
        return lines.read().splitlines()


def train(names: list[str]) -> None:
    KEPT.mkdir(parents=True, exist_ok=True)
    learned, validation = texts("train"), texts("valid")
    for name in names:
        model = treemax.TreeLanguageModel(tree=name, verbose=0)
        model.fit(learned[:300], validation=validation[:3])  # compiles what is needed
        model.fit(learned, validation=validation)
        model.save(path_of(name))
        print(name, [round(entry["validation"], 1) for entry in model.history_], flush=True)


def kept() -> dict[str, Any]:
    return {name: treemax.load(path_of(name)) for name in NAMES if path_of(name).exists()}


def path_of(name: str) -> Path:
    return KEPT / f"{name}.treemax"


def judged(models: dict[str, Any], test: list[str]) -> list[dict[str, Any]]:
    """A row of figures for every model. They take turns, and the best of several rounds counts."""
    contexts = [text.split()[:place] for place, text in enumerate(test[:TOP_CONTEXTS], 1)]
    best = {name: [math.inf, math.inf] for name in models}
    with one_blas_thread():
        for _ in range(REPEATS):
            for name, model in models.items():
                rows = model._contexts(contexts)
                work = (lambda: model.perplexity(test), lambda: model.model_.top_k(rows, 5))  # noqa: B023
                for place, action in enumerate(work):
                    best[name][place] = min(best[name][place], seconds(action))
    n_words = sum(len(text.split()) + 1 for text in test)
    found = []
    for name, model in models.items():
        last = model.history_[-1]
        words = model.n_examples_ * len(model.history_)
        found.append(
            {
                "tree": name, "depth": model.describe()["mean_depth"], "validation": last["validation"],
                "test": model.perplexity(test), "output": 1e6 * last["output_seconds"] / words,
                "train": 1e6 * last["seconds"] / words, "seconds": last["seconds"],
                "answer": 1e6 * best[name][0] / n_words, "top": 1e6 * best[name][1] / len(contexts),
                "history": model.history_, "parameters": model.describe(),
            }
        )  # fmt: skip
    return found


def line(row: dict[str, Any]) -> list[str]:
    perplexities = [f"{row[name]:.1f}" for name in ("validation", "test")]
    times = [number(row[name]) for name in ("output", "train", "seconds", "answer", "top")]
    return [row["tree"], f"{row['depth']:.2f}", *perplexities, *times]


def figure(models: dict[str, Any]) -> None:
    """Figure 2: perplexity after every pass, of the validation texts."""
    drawing, (axes,) = canvas(1, width=6)
    for name, model in models.items():
        values = [entry["validation"] for entry in model.history_]
        axes.plot(np.arange(1, len(values) + 1), values, "o-", label=name, markersize=4)
    axes.set_xlabel("passes")
    axes.set_ylabel("perplexity of the validation texts")
    axes.set_xticks(range(1, 1 + max(len(model.history_) for model in models.values())))
    axes.legend()
    draw(drawing, "language-model-passes")


def wider() -> None:
    """Store the validation perplexity and the time of the output layer of wider and narrower learned trees."""
    learned, validation, rows = texts("train"), texts("valid"), []
    for arity, direct in WIDER:
        model = treemax.TreeLanguageModel(arity=arity, direct=direct, verbose=0).fit(learned, validation=validation)
        last = model.history_[-1]
        output = 1e6 * last["output_seconds"] / (model.n_examples_ * len(model.history_))
        rows.append([arity, direct, round(last["validation"], 1), round(output, 1)])
    pages.publish(
        "language-model-wider", "learned-tree", "wider-trees", title="Wider trees", rows=rows,
        columns=[{"name": name} for name in ("children", "words (`direct`)", "perplexity", "output us")],
        shows="Validation perplexity and microseconds of the output layer a word, by the children of the root and the words among "
        "them.",
    )  # fmt: skip


def main(arguments: list[str]) -> int:
    work, chosen = (arguments[0] if arguments else ""), arguments[1:]
    if work not in ("train", "table", "figure", "run", "wider") or not set(chosen) <= set(NAMES):
        print(__doc__, file=sys.stderr)
        return 2
    if not folder().exists():
        print(f"There is no {folder()}: nothing to do.", file=sys.stderr)
        return 0
    if work == "wider":
        wider()
        return 0
    if work in ("train", "run"):
        train([name for name in chosen or NAMES if work == "train" or not path_of(name).exists()])
    models = kept()
    if not models:
        print("No models are kept; `train` comes first.", file=sys.stderr)
        return 1
    if work in ("figure", "run"):
        figure(models)
        print(treemax.show_tree(models["learned"], depth=1) if "learned" in models else "")
    if work in ("train", "figure"):
        return 0
    rows = judged(models, texts("test"))
    keep("language-model", rows)
    print(table(COLUMNS, [line(row) for row in rows]))
    return 0


if __name__ == "__main__":
    help_if_asked(__doc__)
    sys.exit(main(sys.argv[1:]))
