"""Compilation in advance: small trainings that compile all that a model usually needs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from treemax.modelfile import load
from treemax.models import MODELS
from treemax.models.base.classifier import LabelClassifier
from treemax.models.text_model import TextModel
from treemax.text.vectorizers import HashingText, TfidfText

N_LABELS = 2000  # enough that label trees have several levels and that most weights are zero
N_DENSE_LABELS, N_NUMBERS = 300, 50
ROWS_A_LABEL, WORDS_A_ROW = 2, 5


def compile_model(name: str) -> None:
    """Compile the kernels of a model for texts, sparse and dense rows, with one label per row or several."""
    kind = MODELS[name]
    with tempfile.TemporaryDirectory() as folder:
        for X, y in _data(kind):
            model = kind(random_state=0, verbose=0)
            _train_and_predict(model, X, y, Path(folder) / "model.treemax")
    if "n_trees" in kind().get_params():
        X, y = next(_data(kind))
        _predict(kind(random_state=0, verbose=0, n_trees=3).fit(X, y), X)


def _data(kind: type[LabelClassifier]) -> Iterator[tuple[Any, Any]]:
    """Yield rows and labels of each sort that the model takes."""
    labels = np.repeat(np.arange(N_LABELS), ROWS_A_LABEL)
    words = (labels[:, np.newaxis] + np.arange(WORDS_A_ROW)) % N_LABELS
    starts = np.arange(0, words.size + 1, WORDS_A_ROW)
    sparse = csr_matrix((np.ones(words.size, dtype=np.float32), words.ravel(), starts))
    texts = [" ".join(f"word{word}" for word in row) for row in words]
    few = labels[: ROWS_A_LABEL * N_DENSE_LABELS]
    dense = np.random.default_rng(0).standard_normal((len(few), N_NUMBERS)).astype(np.float32)
    for X, numbers in ((sparse, labels), (dense, few), (texts, labels)):
        yield X, np.array([f"label {number}" for number in numbers])
        if not kind.ONE_LABEL_ONLY:
            yield X, [[f"label {number}", f"label {number // 2}"] for number in numbers]


def _train_and_predict(model: Any, X: Any, y: Any, path: Path) -> None:
    """Train, save, load and predict as a user would."""
    if isinstance(X, list):
        if hasattr(model, "partial_fit"):
            TextModel(HashingText(), type(model)(random_state=0, verbose=0)).partial_fit(X, y)
        model = TextModel(TfidfText(), model)
    model.fit(X, y)
    _predict(model, X)
    if not isinstance(X, list) and hasattr(model, "partial_fit"):
        model.partial_fit(X, y)
    model.save(path)
    _predict(load(path), X)


def _predict(model: Any, X: Any) -> None:
    for rows in (X, X[:1]):
        model.predict(rows)
        model.predict_topk(rows, 5)
        model.predict_proba(rows)
    if hasattr(model.model_, "trace"):
        model.explain(X[:1])
