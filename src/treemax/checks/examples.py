"""Small data and assertions for the checks."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import treemax

CLASSES = ("ant", "bee", "cat", "dog", "eel", "fox", "gnu")


def example_data(n_rows: int = 210, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Return seven well separated classes of points, with a fifth of the entries non-zero."""
    random = np.random.RandomState(seed)
    y = np.arange(n_rows) % len(CLASSES)
    centres = random.uniform(1.0, 2.0, (len(CLASSES), 20)) * (random.uniform(size=(len(CLASSES), 20)) < 0.3)
    X = (centres[y] + 0.2 * random.normal(size=(n_rows, 20))) * (centres[y] > 0)
    return np.ascontiguousarray(X, dtype=np.float32), np.array(CLASSES)[y]


def example_lists(n_rows: int = 210) -> tuple[NDArray[np.float32], list[list[str]]]:
    """Return multi-label data: the sum of two points has the labels of both; some rows have one label or none."""
    X, y = example_data(n_rows)
    order = np.random.RandomState(1).permutation(n_rows)
    lists = [sorted({a, b}) for a, b in zip(y.tolist(), y[order].tolist())]
    X = X + X[order]
    X[::50], lists[::50] = 0.0, [[] for _ in lists[::50]]
    return X, lists


def assert_same_predictions(one: Any, other: Any, X: Any) -> None:
    """Assert that both models predict the same top 3, bit for bit."""
    a, b = one.predict_topk(X, 3), other.predict_topk(X, 3)
    np.testing.assert_array_equal(a.labels, b.labels)
    np.testing.assert_array_equal(a.scores, b.scores)


def saved_and_loaded(model: Any, resume: bool = False) -> Any:
    """Return the model from a file."""
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model.treemax", resume=resume)
        return treemax.load(Path(folder) / "model.treemax")


def facts(model: Any) -> tuple[Any, ...]:
    """Return the labels, counts, examples, features and description of a model, without what only learning models know."""
    described = {name: fact for name, fact in model.describe().items() if name != "quality"}
    counts = model.label_counts_.tolist()
    return model.classes_.tolist(), counts, model.n_examples_, model.n_features_in_, described


def assert_raises(call: Callable[[], Any], *words: str) -> None:
    """Assert that the call raises a ValueError whose message has these words."""
    try:
        call()
    except ValueError as error:
        missing = [word for word in words if word not in str(error)]
        assert not missing, f"the error does not say {missing}: {error}"
    else:
        raise AssertionError("bad input was accepted")


def ambiguous_data() -> tuple[NDArray[np.float32], NDArray[Any], NDArray[Any]]:
    """Return the rows twice, first with their label, then with the label of the next class, and whether they are the first."""
    X, y = example_data()
    following = np.array(CLASSES)[(np.searchsorted(CLASSES, y) + 1) % len(CLASSES)]
    order = np.random.RandomState(2).permutation(2 * len(y))
    is_first = np.arange(2 * len(y)) < len(y)
    return np.concatenate([X, X])[order], np.concatenate([y, following])[order], is_first[order]
