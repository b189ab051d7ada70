"""The demo: every model on WordNet, in one table."""

from __future__ import annotations

import inspect
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from treemax import load
from treemax.datasets import load_wordnet
from treemax.formats import Examples
from treemax.metrics import evaluate
from treemax.models import MODELS, TopK
from treemax.text.vectorizers import TfidfText

MINUTES = ("softmax-tree", "softmax-forest")  # models that take too long for a demo
HEADER = f"{'model':<20} {'P@1':>7} {'P@5':>7} {'train s':>9} {'us/example':>11} {'model MB':>9}"


def run(jobs: int = 1, rows: int | None = None) -> Iterator[str]:
    """Yield lines of text: the data, then one line per model."""
    train, test = load_wordnet()
    train = train[:rows] if rows else train
    yield f"WordNet: {len(train):,} synsets to train on, {len(test):,} to test on; the label is the hypernym."
    vectorizer = TfidfText()
    X_train, X_test = vectorizer.fit_transform(train.texts), vectorizer.transform(test.texts)
    yield f"{len(set(train.labels.values)):,} labels, {X_train.shape[1]:,} words; tf-idf, {jobs} thread(s). Default parameters; compilation is not timed."
    yield ""
    yield HEADER
    yield "-" * len(HEADER)
    best: tuple[float, str, Any] = (-1.0, "", None)
    for name, kind in MODELS.items():
        if name in MINUTES and rows is None:
            yield f"{name:<20} skipped: takes minutes on these rows"
            continue
        try:
            measured = _measured(kind, jobs, X_train, train, X_test)
        except MemoryError as error:  # a flat model may not fit into memory; continue with the others
            yield f"{name:<20} {error}"
            continue
        figures = evaluate(test.y, measured.top.labels, ks=(1, 5))
        yield (
            f"{name:<20} {figures['P@1']:>7.4f} {figures['P@5']:>7.4f} {measured.train_seconds:>9.1f} "
            f"{measured.microseconds:>11.1f} {measured.megabytes:>9.1f}"
        )
        best = max(best, (figures["P@1"], name, measured.top), key=lambda entry: entry[0])
    if best[2] is not None:
        yield from _examples(best[1], best[2], test)


class _Measured(NamedTuple):
    train_seconds: float
    microseconds: float
    megabytes: float
    top: TopK


def _measured(kind: type, jobs: int, X_train: Any, train: Examples, X_test: Any) -> _Measured:
    """Train, save, load and predict with a model."""
    model = kind(n_jobs=jobs) if "n_jobs" in inspect.signature(kind).parameters else kind()
    model.fit(X_train[:300], train[:300].y)  # compile before timing
    start = time.perf_counter()
    model.fit(X_train, train.y)
    train_seconds = time.perf_counter() - start
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.treemax"
        model.save(path)
        megabytes = path.stat().st_size / 1e6
        model = load(path)
        model.predict_topk(X_test[:2], 5)  # compile before timing
        start = time.perf_counter()
        top = model.predict_topk(X_test, 5)
        seconds = time.perf_counter() - start
    return _Measured(train_seconds, 1e6 * seconds / X_test.shape[0], megabytes, top)


def _examples(name: str, top: TopK, test: Examples) -> Iterator[str]:
    """Yield a few predictions."""
    yield ""
    yield f"Predictions of {name}:"
    for row in range(0, len(test), len(test) // 4)[:4]:
        text = test.texts[row] if test.texts else ""
        guesses = ", ".join(
            f"{label} {score:.2f}" for label, score in zip(top.labels[row][:3], top.scores[row])
        )
        yield f"  {text[:70]}"
        yield f"     is a kind of {guesses}   (true: {test.labels[row][0]})"
