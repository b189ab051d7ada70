"""`TfidfText` beside scikit-learn's `TfidfVectorizer`: `python -m benchmarks.experiments.texts`.

Short texts are those of the embedded WordNet data, long ones twenty of them in a row, as in `benchmarks.experiments.out_of_core`. Both vectorisers have
the same settings and must give the same rows, bit for bit. The best of several times in turn; seconds of the processor, one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

from benchmarks.experiments.out_of_core import examples
from benchmarks.harness.output import help_if_asked, rounded
from benchmarks.pages import publish
from treemax import TfidfText
from treemax.datasets import load_wordnet

REPEATS = 5
LONG_BYTES = 60_000_000


def main() -> None:
    suites = {
        "WordNet": list(load_wordnet()[0].texts),
        "long": [line.decode().partition(" ")[2] for line in examples(LONG_BYTES)],
    }
    rows: list[list[Any]] = []
    for name, texts in suites.items():
        seconds = compared(texts)
        megabytes = sum(len(text.encode()) for text in texts) / 1e6
        best = {what: min(taken) for what, taken in seconds.items()}
        for what in ("fit", "transform", "one"):
            theirs, ours = best[f"theirs {what}"], best[f"ours {what}"]
            rate = None if what == "one" else rounded(megabytes / ours)
            rows.append([f"{name}, {what}", rounded(theirs), rounded(ours), round(theirs / ours, 1), rate])
    publish(
        "texts",
        "systems",
        "texts",
        title="TfidfText beside TfidfVectorizer",
        shows=f"Processor seconds, best of {REPEATS}, one thread; the same matrix.",
        columns=[{"name": name} for name in ("texts", "scikit-learn, s", "`TfidfText`, s", "ratio", "MB a second")],
        rows=rows,
    )


def compared(texts: list[str]) -> dict[str, list[float]]:
    """Seconds of both to learn and transform all texts, to transform them, and for one text alone."""
    seconds: dict[str, list[float]] = {}
    TfidfText().fit(texts[:100]).transform(texts[:1])  # compiles
    for _ in range(REPEATS):
        theirs, ours = TfidfVectorizer(sublinear_tf=True, min_df=2, dtype=np.float32), TfidfText()
        one, other = (
            timed(seconds, f"{who} fit", lambda model=model: model.fit_transform(texts))
            for who, model in (("theirs", theirs), ("ours", ours))
        )
        one.sort_indices()
        check_same(one, other)
        ours.transform(texts[:1])  # makes its table
        check_same(
            *(
                timed(seconds, f"{who} transform", lambda model=model: model.transform(texts))
                for who, model in (("theirs", theirs), ("ours", ours))
            )
        )
        for who, model in (("theirs", theirs), ("ours", ours)):
            timed(seconds, f"{who} one", lambda model=model: [model.transform([text]) for text in texts[:200]])
            seconds[f"{who} one"][-1] /= 200
    return seconds


def timed(seconds: dict[str, list[float]], name: str, work: Callable[[], Any]) -> Any:
    start = time.process_time()
    result = work()
    seconds.setdefault(name, []).append(time.process_time() - start)
    return result


def check_same(one: Any, other: Any) -> None:
    assert all(np.array_equal(getattr(one, part), getattr(other, part)) for part in ("indptr", "indices", "data"))


if __name__ == "__main__":
    help_if_asked(__doc__)
    main()
