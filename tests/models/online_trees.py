"""A problem, and the properties of learning from a stream, for the tests of several online trees."""

from __future__ import annotations

import numpy as np
import pytest

import treemax


def problem(n_rows=400, n_labels=40, n_features=12, seed=0):
    """Labels with a centre each, and rows around them."""
    random = np.random.RandomState(seed)
    y = random.randint(n_labels, size=n_rows)
    centres = random.normal(size=(n_labels, n_features))
    X = centres[y] + 0.3 * random.normal(size=(n_rows, n_features))
    return X.astype(np.float32), y


def assert_same_in_pieces(make, X, y):
    """A stream of 600 rows with ten labels gives the same model in one call and in several."""
    whole, pieces = (make().partial_fit(X[:10], y[:10], classes=np.arange(10)) for _ in range(2))
    whole.partial_fit(X[10:], y[10:])
    for start in range(10, 600, 59):
        pieces.partial_fit(X[start : start + 59], y[start : start + 59])
    np.testing.assert_array_equal(whole.predict_proba(X), pieces.predict_proba(X))
    assert whole.progressive_loss_ == pieces.progressive_loss_


def wrong_before_learning(model, X, y):
    """Learn row by row, and return how many rows were predicted wrongly before they were learned; the first is not asked."""
    wrong = 0
    for i in range(X.shape[0]):
        if i:
            wrong += model.predict(X[i : i + 1])[0] != y[i]
        model.partial_fit(X[i : i + 1], y[i : i + 1])
    return wrong


def assert_warns_without_learning_state(model, path, X, y):
    """A model saved without its learning state warns once when it learns on, and learns."""
    model.save(path)
    loaded = treemax.load(path)
    with pytest.warns(UserWarning, match="resume=True"):
        loaded.partial_fit(X, y)
    loaded.partial_fit(X, y)
    assert loaded.score(X, y) > 0.5


def assert_continues_after_loading(model, path, X, y):
    """A model saved with its learning state learns on as if it had never been saved; return the loaded one."""
    model.save(path, resume=True)
    again = treemax.load(path)
    for one in (model, again):
        one.partial_fit(X, y)
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    for answer, expected in zip(again.predict_topk(X, 5), model.predict_topk(X, 5)):
        np.testing.assert_array_equal(answer, expected)
    assert again.progressive_loss_ == model.progressive_loss_
    return again


def assert_damaged_parts_are_refused(model, n_labels, damages, resume=True):
    """Arrays that are too short, or have one value everywhere, are refused; return the parts."""
    header, arrays = model.to_parts(resume=resume)
    type(model).from_parts(header, arrays, n_labels)
    for name, array in arrays.items():
        with pytest.raises(ValueError):
            type(model).from_parts(header, {**arrays, name: array[:-1]}, n_labels)
    for name, value, message in damages:
        with pytest.raises(ValueError, match=message):
            type(model).from_parts(header, {**arrays, name: np.full_like(arrays[name], value)}, n_labels)
    return header, arrays
