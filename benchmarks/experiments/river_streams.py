"""The adapters for river beside models of river, on a stream with many classes.

    python -m benchmarks.experiments.river_streams icd 4000

Progressive validation: each row is predicted, then learned. Features are counts of words; rows come in a random order.
Seconds are of the processor. Needs `treemax[river]`.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.harness.output import help_if_asked, store
from benchmarks.harness.suites import data_folder
from treemax.formats import read_examples

MACHINE = "one core of a two-core x86-64 machine (AMD EPYC, AVX-512), shared with other work"


def systems() -> dict[str, Callable[[], Any]]:
    from river import linear_model, multiclass, naive_bayes, tree

    import treemax
    from treemax.river import TreemaxClassifier

    ours = (treemax.OnlineLabelTree, treemax.RecallTree, treemax.LOMTree, treemax.OneVsAll, treemax.LearnedTree)
    return {
        **{f"treemax, {kind.__name__}": lambda kind=kind: TreemaxClassifier(kind()) for kind in ours},
        "river, MultinomialNB": naive_bayes.MultinomialNB,
        "river, HoeffdingTreeClassifier": tree.HoeffdingTreeClassifier,
        "river, OneVsRestClassifier of LogisticRegression": lambda: multiclass.OneVsRestClassifier(
            linear_model.LogisticRegression()
        ),
    }


def read(suite: str, n_rows: int) -> list[tuple[dict[str, int], str]]:
    from river import feature_extraction

    examples = read_examples(data_folder() / suite / "train.txt.gz", "fasttext")
    rows = list(zip(examples.texts or [], (labels[0] for labels in examples.labels)))
    random.Random(0).shuffle(rows)
    words = feature_extraction.BagOfWords()
    return [(dict(words.transform_one(text)), label) for text, label in rows[:n_rows]]


def measure(model: Any, rows: list[tuple[dict[str, int], str]]) -> list[float]:
    """Accuracy of the stream and of its second half, and milliseconds of an answer and of learning a row."""
    right, answering, learning = [], 0.0, 0.0
    for x, y in rows:
        before = time.process_time()
        answer = model.predict_one(x)
        between = time.process_time()
        model.learn_one(x, y)
        learning += time.process_time() - between
        answering += between - before
        right.append(answer == y)
    half = len(rows) // 2
    milliseconds = [1000 * answering / len(rows), 1000 * learning / len(rows)]
    return [sum(right) / len(rows), sum(right[half:]) / (len(rows) - half), *milliseconds]


def main(suite: str, n_rows: str) -> None:
    rows, found = read(suite, int(n_rows)), []
    for name, make in systems().items():
        if name.startswith("treemax"):
            measure(make(), rows[:300])  # compiles
        found.append([name, *measure(make(), rows)])
        print(found[-1], file=sys.stderr, flush=True)
        store_models(suite, len(rows), len({y for _, y in rows}), found)  # what is measured is stored at once


def store_models(suite: str, n_rows: int, n_classes: int, found: list[list[Any]]) -> None:
    accuracies = [{"name": name, "decimals": 4} for name in ("accuracy", "accuracy of the second half")]
    times = [{"name": name, "decimals": 3} for name in ("ms an answer", "ms a row learned")]
    store(
        "adapters",
        "river",
        title="A stream with many classes",
        shows=f"Progressive validation on {n_rows:,} rows of {suite} in a random order, with {n_classes:,} classes: counts of words, river 0.26.1, all models with their defaults. Processor time; the machine was busy with other work, which makes all of them slower.",
        columns=["model", *accuracies, *times],
        rows=found,
        machine=MACHINE,
    )


if __name__ == "__main__":
    help_if_asked(__doc__)
    main(*sys.argv[1:])
