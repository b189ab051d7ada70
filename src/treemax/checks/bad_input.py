"""Checks of bad and extreme input and parameters."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import treemax
from treemax.checks.examples import assert_raises, assert_same_predictions, example_data, facts, saved_and_loaded

ODD_VALUES: tuple[Any, ...] = (
    "x", "auto", None, True, -1, 0, 0.5, float("nan"), float("inf"), 1e-300, 1e300, 2**31 - 1, 2**63, -(10**30), 10**400,
    np.int8(100), np.uint8(0), np.float16(0.5), np.bool_(True), np.str_("x"), [1], np.array([1, 2]), 1j,
)  # fmt: skip
"""Invalid values of parameters."""


def check_bad_input_is_refused(estimator: Any) -> None:
    """Check that bad input raises an error that says what is wrong, and leaves the model unchanged."""
    X, y = example_data()
    model = clone(estimator).fit(X, y)
    before, known = model.predict_topk(X, 3), facts(model)
    not_a_number, infinite, wild = X.copy(), X.copy(), sp.csr_matrix(X)
    not_a_number[3, 4], infinite[5, 6] = np.nan, np.inf
    wild.indices[0] = 77
    bad_X = [
        (not_a_number, ("NaN", "row 3", "column 4")),
        (infinite, ("inf", "row 5", "column 6")),
        (sp.csr_matrix(not_a_number), ("NaN", "row 3", "column 4")),
        (wild, ("77", "row 0")),
        (X[:0], ("0 sample",)),
        (X[0], ("2D",)),
        (X.astype(complex), ("omplex",)),
    ]
    for features, words in bad_X:
        for answer in (model.predict_topk, model.predict, model.predict_proba):
            assert_raises(partial(answer, features), *words)
        assert_raises(partial(model.fit, features, y[:7]), *words)
        assert facts(model) == known, "a fit that raised has changed the model"
    assert_raises(lambda: model.predict(X[:, :-1]), "features")
    mixed: list[Any] = ["a", 1, *y[2:].tolist()]
    bad_y: list[tuple[Any, tuple[str, ...]]] = [
        (y[:-1], ("209", "210")), (mixed, ("row 1",)), (None, ("y",)), (np.linspace(0, 1, len(X)), ("label",)),
        ([None] * len(X), ("None", "row 0")), ([[]] * len(X), ("label",)), ([["a"], "b"] * 105, ("row 1",)),
    ]  # fmt: skip
    for labels, words in bad_y:
        assert_raises(partial(model.fit, X, labels), *words)
        assert facts(model) == known, "a fit that raised has changed the model"
    for k in (0, -1, 1.5, "3", True):
        assert_raises(partial(model.predict_topk, X, k), "k must be")
    after = model.predict_topk(X, 3)
    np.testing.assert_array_equal(before.labels, after.labels)
    np.testing.assert_array_equal(before.scores, after.scores)


def check_extreme_values(estimator: Any) -> None:
    """One extreme value in a row raises or does not spoil the model; predictions are always finite."""
    X, y = example_data(420)
    mixed = X.copy()
    mixed[::7] *= np.float32(1e-42)
    mixed[1::7] *= np.float32(1e-12)
    mixed[2::7] *= np.float32(1e12)
    wild = np.full((4, X.shape[1]), 1e15, dtype=np.float32)
    wild[1] *= -1.0
    wild[2, ::2] *= -1.0
    wild[3] = 1e-42
    for form in (np.asarray, sp.csr_matrix):
        trained: list[Any] = [clone(estimator).fit(form(X), y)]
        for value in (1e6, 1e15):
            wrong = X.copy()
            wrong[3, np.flatnonzero(X[3])[0]] = value
            trained.append(clone(estimator).fit(form(wrong), y))
            if hasattr(estimator, "partial_fit"):
                trained.append(clone(estimator).fit(form(X), y).partial_fit(form(wrong[:7]), y[:7]))
                alone = clone(estimator).partial_fit(form(wrong[3:4]), y[3:4]).partial_fit(form(X), y)
                trained.append(alone.partial_fit(form(X), y).partial_fit(form(X), y))
                begun = clone(estimator).partial_fit(form(wrong), y)
                trained.append(begun.partial_fit(form(X), y).partial_fit(form(X), y))
        for model in trained:
            assert model.score(form(X), y) > 0.85, f"one wrong value leaves an accuracy of {model.score(form(X), y)}"
        try:
            trained.append(clone(estimator).fit(form(mixed), y))
        except ValueError as error:
            assert "not finite numbers" in str(error)
        for model in trained:
            for rows in (wild, mixed, X):
                assert np.isfinite(model.predict_topk(form(rows), 3).scores).all()
                assert np.isfinite(model.predict_proba(form(rows))).all()
        _too_large_values_raise(estimator, form)


def _too_large_values_raise(estimator: Any, form: Callable[[Any], Any]) -> None:
    X, y = example_data()
    model = clone(estimator).fit(form(X), y)
    before, known = model.predict_topk(form(X), 3), facts(model)
    for value in (1.1e15, -1e20, 3e38):
        wrong = X.copy()
        wrong[3, 4] = value
        rows = form(wrong)
        for learn in (model.fit, getattr(model, "partial_fit", model.fit)):
            assert_raises(partial(learn, rows, y), "row 3", "column 4", "e+")
        assert_raises(partial(model.predict, rows), "row 3", "column 4", "e+")
    for scale in (1e-12, 1e-38, 1e-42):
        small = form(X * np.float32(scale))
        for learn in (clone(estimator).fit, getattr(clone(estimator), "partial_fit", model.fit)):
            assert_raises(partial(learn, small, y), "largest value", "too small")
    assert facts(model) == known, "rows that raised have changed the model"
    np.testing.assert_array_equal(before.scores, model.predict_topk(form(X), 3).scores)


def check_large_feature_ids(estimator: Any) -> None:
    """Check that memory and file size depend on the features that occur, not on their largest id."""
    X, y = example_data()
    narrow, far = sp.csr_matrix(X), 2**32 - 2
    column = sp.csr_matrix(([1.0, 1.0], ([3, 10], [0, 0])), shape=(len(X), 1))
    wide = sp.csr_matrix(sp.hstack([narrow, column]))
    wide = sp.csr_matrix(
        (wide.data, np.where(wide.indices == 20, far, wide.indices.astype(np.int64)), wide.indptr), shape=(len(X), far + 1)
    )  # fmt: skip
    models = [clone(estimator).fit(wide, y)]
    if hasattr(estimator, "partial_fit"):
        models += [
            clone(estimator).partial_fit(wide, y).partial_fit(narrow, y).partial_fit(wide, y),
            clone(estimator).fit(narrow, y).partial_fit(wide, y),
        ]
    for model in models:
        assert model.n_features_in_ == 21
        assert model.score(wide, y) > 0.9 and model.score(narrow, y) > 0.9
        loaded = saved_and_loaded(model, resume=True)
        assert_same_predictions(model, loaded, wide)
        assert_same_predictions(pickle.loads(pickle.dumps(model)), loaded, wide)
        if hasattr(estimator, "partial_fit"):
            assert_same_predictions(model.partial_fit(wide[:30], y[:30]), loaded.partial_fit(wide[:30], y[:30]), wide)
    known = clone(estimator).fit(narrow, y)
    np.testing.assert_allclose(known.predict_proba(wide), known.predict_proba(narrow), atol=1e-6)
    same = known.predict_topk(wide, 3).scores
    np.testing.assert_allclose(same, known.predict_topk(narrow, 3).scores, atol=1e-6)


def check_parameters_when_used(estimator: Any) -> None:
    """Check that parameters changed after `fit`, or in a file, work or raise ValueError or ModelFileError."""
    X, y = example_data()
    for form in (np.asarray, sp.csr_matrix):
        model = clone(estimator).fit(form(X), y)
        header, arrays = model.to_parts(resume=True)
        for name, good in model.get_params(deep=False).items():
            for value in ODD_VALUES:
                setattr(model, name, value)
                _predicts_or_raises(model, form(X[:20]), y[:20])
                if type(value) in (int, float, str, bool, type(None)):
                    changed = {**header, "parameters": {**header["parameters"], name: value}}
                    try:
                        parts = {"class": type(model).__name__, "state": changed}
                        loaded = treemax.modelfile.object_from_parts(parts, arrays)
                    except treemax.ModelFileError:
                        continue
                    _predicts_or_raises(loaded, form(X[:20]), y[:20])
            setattr(model, name, good)
        assert model.predict_topk(form(X), 3).labels.shape == (len(X), 3)


def _predicts_or_raises(model: Any, X: Any, y: Any) -> None:
    """Assert that the model predicts finite numbers, or raises with the name of the invalid parameter."""
    calls = (
        lambda: model.predict_topk(X, 3).scores,
        lambda: model.predict_proba(X),
        lambda: model.predict_above(X, 0.1),
    )
    refusals = 0
    for call in calls:
        try:
            answer = call()
        except ValueError as error:
            assert "must be" in str(error) or "cannot be used to seed" in str(error), f"not our error: {error}"
            refusals += 1
        else:
            assert len(answer) == X.shape[0] and (isinstance(answer, list) or np.isfinite(answer).all())
    assert refusals in (0, len(calls)), "some methods check the parameters, some do not"
    if refusals and hasattr(model, "partial_fit"):
        assert_raises(lambda: model.partial_fit(X, y), "")


def check_unfitted(estimator: Any) -> None:
    """Check that methods of an unfitted model raise NotFittedError."""
    X, _ = example_data()
    for call in ("predict", "predict_topk", "predict_proba", "predict_above"):
        try:
            getattr(clone(estimator), call)(X)
        except NotFittedError:
            continue
        raise AssertionError(f"{call} worked before fit")
