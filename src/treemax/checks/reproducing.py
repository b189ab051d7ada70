"""Checks of repeated trainings, files and copies."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from treemax.checks.examples import (
    CLASSES,
    assert_same_predictions,
    example_data,
    example_lists,
    facts,
    saved_and_loaded,
)


def check_reproducible(estimator: Any) -> None:
    """Check that the same seed with one thread gives the same model; a second `fit` starts again."""
    X, y = example_data()
    one, other = clone(estimator).fit(X, y), clone(estimator).fit(X, y)
    assert_same_predictions(one, other, X)
    others: list[Any] = [y[::-1], np.char.add("x", y), [[label] for label in y.tolist()]]
    for before in others[:2] if estimator.ONE_LABEL_ONLY else others:
        other.fit(X[::-1], before)
        assert set(other.classes_) == set(np.ravel(before)), "classes_ are those of the previous fit"
        other.fit(X, y)
        assert_same_predictions(one, other, X)
        assert facts(other) == facts(one), "state of the previous fit is left"


def check_save_and_load(estimator: Any) -> None:
    """Check that a loaded model has the same class, parameters and predictions, bit for bit."""
    X, y = example_data()
    multi_X, lists = example_lists()
    problems = [(X, y), (sp.csr_matrix(X), y), (X, np.searchsorted(CLASSES, y)), (multi_X, lists)]
    for features, labels in problems[:3] if estimator.ONE_LABEL_ONLY else problems:
        model = clone(estimator).fit(features, labels)
        loaded = saved_and_loaded(model)
        assert type(loaded) is type(model) and loaded.get_params() == model.get_params()
        assert_same_predictions(model, loaded, features)
        np.testing.assert_array_equal(model.classes_, loaded.classes_)
        assert model.classes_.dtype == loaded.classes_.dtype
        assert facts(model) == facts(loaded)


def check_copies(estimator: Any) -> None:
    """Check that pickling keeps the model, cloning only the parameters."""
    X, y = example_data()
    model = clone(estimator).fit(X, y)
    assert_same_predictions(model, pickle.loads(pickle.dumps(model)), X)
    twin = clone(model)
    assert twin.get_params() == model.get_params()
    try:
        twin.predict(X)
    except NotFittedError:
        pass
    else:
        raise AssertionError("a clone predicts without being fitted")


def check_threads_agree(estimator: Any) -> None:
    """Check that predictions from several threads equal those of one thread; training with threads works."""
    X, y = example_data(2100)
    model = clone(estimator).fit(X, y)
    alone = model.predict_topk(X, 3)
    with ThreadPoolExecutor(4) as pool:
        for answer in pool.map(lambda _: model.predict_topk(X, 3), range(8)):
            np.testing.assert_array_equal(answer.labels, alone.labels)
            np.testing.assert_array_equal(answer.scores, alone.scores)
    if "n_jobs" in estimator.get_params():
        model.set_params(n_jobs=2)
        np.testing.assert_array_equal(model.predict_topk(X, 3).scores, alone.scores)
        assert clone(estimator).set_params(n_jobs=2).fit(X, y).score(X, y) > 0.9
