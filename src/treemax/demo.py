"""The demo: models on WordNet in one table, and a few predictions of a tree."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from treemax.datasets import load_wordnet
from treemax.explanations.explanation import shown_labels
from treemax.formats import Examples
from treemax.metrics import evaluate
from treemax.modelfile import load
from treemax.models import MODELS, LabelTree
from treemax.models.text_model import TextModel
from treemax.text.vectorizers import TfidfText

TREES: dict[str, tuple[str, dict[str, Any]]] = {  # the shown name, the model, its settings
    "label-tree": ("label-tree", {}),
    "label-tree, 3 trees": ("label-tree", {"n_trees": 3}),
    "online-label-tree": ("online-label-tree", {}),
}
OTHERS = ("learned-tree", "recall-tree", "one-vs-all", "lom-tree")  # the softmax trees take minutes
TEXTS = ("a river in Africa", "a former Spanish gold coin", "a small sailing boat")
HEADER = f"{'model':<20} {'P@1':>7} {'P@5':>7} {'train s':>9} {'us/example':>11} {'model MB':>9}"


def run(jobs: int = 1, rows: int | None = None, all_models: bool = False) -> Iterator[str]:
    """Yield lines of text: the data, one line per model, and predictions of the first."""
    train, test = load_wordnet()
    train = train[:rows] if rows else train
    yield f"WordNet: {len(train):,} short texts to learn from, {len(test):,} to test on. What is it a kind of?"
    vectorizer = TfidfText()
    X_train, X_test = vectorizer.fit_transform(train.texts), vectorizer.transform(test.texts)
    yield f"{len(set(train.labels.values)):,} labels, {X_train.shape[1]:,} words, tf-idf, default parameters, {jobs} thread(s)."
    yield ""
    yield HEADER
    yield "-" * len(HEADER)
    answering = None
    entries = {**TREES, **{name: (name, {}) for name in OTHERS if all_models}}
    for shown, (name, settings) in entries.items():
        try:
            measured = _measured(MODELS[name](n_jobs=jobs, **settings), X_train, train, X_test)
        except MemoryError as error:  # a flat model may not fit into memory; continue with the others
            yield f"{shown:<20} {error}"
            continue
        figures = evaluate(test.y, measured.labels, ks=(1, 5))
        yield (
            f"{shown:<20} {figures['P@1']:>7.4f} {figures['P@5']:>7.4f} {measured.train_seconds:>9.1f} "
            f"{measured.microseconds:>11.1f} {measured.megabytes:>9.1f}"
        )
        answering = answering or measured.model
    if isinstance(answering, LabelTree):
        yield from _predictions(answering, vectorizer)


class _Measured(NamedTuple):
    model: Any
    labels: Any
    train_seconds: float
    microseconds: float
    megabytes: float


def _measured(model: Any, X_train: Any, train: Examples, X_test: Any) -> _Measured:
    """Train, save, load and predict with a model; compiling is not timed."""
    model.fit(X_train[:300], train[:300].y).predict_topk(X_test[:2], 5)
    start = time.perf_counter()
    model.fit(X_train, train.y)
    train_seconds = time.perf_counter() - start
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.treemax"
        model.save(path)
        megabytes = path.stat().st_size / 1e6
        loaded = load(path)
        start = time.perf_counter()
        labels = loaded.predict_topk(X_test, 5).labels
        seconds = time.perf_counter() - start
    return _Measured(model, labels, train_seconds, 1e6 * seconds / X_test.shape[0], megabytes)


def _predictions(model: LabelTree, vectorizer: TfidfText) -> Iterator[str]:
    """Yield predictions of a tree, and the path to the first label of each."""
    text_model = TextModel(vectorizer, model)
    yield ""
    yield "Predictions of label-tree, and the path from the root to the first label (treemax explain shows more):"
    for text in TEXTS:
        told = text_model.explain(text, k=3)
        yield ""
        yield _readable(f"{text}: " + ", ".join(f"{each.label} {each.probability:.2f}" for each in told.candidates))
        for level, step in enumerate(told.paths[0].steps, 1):
            yield "  " * level + _readable(f"{step.probability:.2f}  {shown_labels(step)}")


def _readable(labels: str) -> str:
    """
    >>> _readable("noun:08716193:African_country 0.08")
    'African country 0.08'
    """
    return re.sub(r"\w+:\d+:", "", labels).replace("_", " ")
