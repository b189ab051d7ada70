"""Checks of `partial_fit`."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import clone

from treemax.checks.examples import (
    CLASSES,
    assert_raises,
    assert_same_predictions,
    example_data,
    facts,
    saved_and_loaded,
)


def check_partial_fit_continues(estimator: Any) -> None:
    """Check that a stream is learned in chunks with new labels and features; known labels keep their ids."""
    if not hasattr(estimator, "partial_fit"):
        return
    X, y = example_data(2100)
    model = clone(estimator)
    late = np.isin(y, CLASSES[4:]) & (np.arange(len(X)) < 700)
    order = np.concatenate([np.flatnonzero(~late), np.flatnonzero(late)])  # three classes appear after 400 rows
    for start in range(0, len(X), 100):
        known = list(getattr(model, "classes_", []))
        part = order[start : start + 100]
        model.partial_fit(X[part], y[part])
        assert list(model.classes_[: len(known)]) == known, "a label has changed its id"
    assert set(model.classes_) == set(CLASSES)
    assert model.n_examples_ == len(X) and model.label_counts_.sum() == len(X)
    assert model.score(X, y) > 0.85
    announced = clone(estimator).partial_fit(X[:70], y[:70], classes=[*CLASSES, "yak"])
    assert set(announced.classes_) == {*CLASSES, "yak"}, "announced classes are not known"
    wider = clone(estimator).partial_fit(sp.csr_matrix(X[:700, :10]), y[:700])
    wider.partial_fit(sp.csr_matrix(X), y)
    assert wider.n_features_in_ == X.shape[1] and wider.score(sp.csr_matrix(X), y) > 0.85


def check_partial_fit_after_fit_and_load(estimator: Any) -> None:
    """Check that `partial_fit` continues after `fit`, and after saving with `resume`, bit for bit."""
    if not hasattr(estimator, "partial_fit"):
        return
    X, y = example_data()
    more_X, more_y = example_data(seed=5)
    for form in (np.asarray, sp.csr_matrix):
        model = clone(estimator).fit(form(X), y)
        loaded, lean = saved_and_loaded(model, resume=True), saved_and_loaded(model)
        for twin in (model, loaded):
            twin.partial_fit(form(more_X), np.where(more_y == "ant", "auk", more_y))
        assert_same_predictions(model, loaded, form(X))
        assert model.classes_[-1] == loaded.classes_[-1] == "auk"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it may warn that the learning state was not saved
            lean.partial_fit(form(more_X), more_y)
        assert len(lean.predict(form(X))) == len(X)


def check_bad_chunk_changes_nothing(estimator: Any) -> None:
    """Check that a chunk that raises leaves the model unchanged, also for later learning."""
    if not hasattr(estimator, "partial_fit"):
        return
    X, y = example_data()
    model, twin = clone(estimator).partial_fit(X, y), clone(estimator).partial_fit(X, y)
    before, known = model.predict_topk(X, 3), facts(model)
    broken = X.copy()
    broken[2, 2] = np.nan
    newcomer = np.where(y == "ant", "yak", y)
    assert_raises(lambda: model.partial_fit(broken, newcomer), "row 2")
    assert_raises(lambda: model.partial_fit(X, newcomer[:-1]), "209")
    assert_raises(lambda: model.partial_fit(X, np.arange(len(X))), "integers")
    assert_raises(lambda: model.partial_fit(X[:, :-1], newcomer), "features")
    word = "one label" if estimator.ONE_LABEL_ONLY else "multi-class"
    assert_raises(lambda: model.partial_fit(X, [[label] for label in newcomer]), word)
    assert facts(model) == known, "a chunk that raised has changed the model"
    np.testing.assert_array_equal(before.scores, model.predict_topk(X, 3).scores)
    assert_same_predictions(model.partial_fit(X, newcomer), twin.partial_fit(X, newcomer), X)
