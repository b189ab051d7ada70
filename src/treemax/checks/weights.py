"""Checks of the weights of rows, classes and labels."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import clone

from treemax.checks.examples import (
    CLASSES,
    ambiguous_data,
    assert_raises,
    assert_same_predictions,
    example_data,
    facts,
    saved_and_loaded,
)


def check_weights_of_zero(estimator: Any) -> None:
    """Check that rows of weight zero are left out, with the labels that only they have."""
    X, y = example_data()
    if not estimator.supports_weights:
        assert_raises(lambda: clone(estimator).fit(X, y, sample_weight=np.ones(len(y))), "sample_weight")
        return
    weights = np.random.RandomState(1).uniform(0.5, 2.0, len(y)) * ((np.arange(len(y)) % 3 > 0) & (y != CLASSES[2]))
    for features in (X, sp.csr_matrix(X)):
        left_out = clone(estimator).fit(features[weights > 0], y[weights > 0], sample_weight=weights[weights > 0])
        zero = clone(estimator).fit(features, y, sample_weight=weights)
        assert_same_predictions(left_out, zero, features)
        assert facts(left_out) == facts(zero) and CLASSES[2] not in zero.classes_
        ones = clone(estimator).fit(features, y, sample_weight=[1] * len(y))
        assert_same_predictions(clone(estimator).fit(features, y), ones, features)
    if hasattr(estimator, "partial_fit"):
        left_out, zero = clone(estimator), clone(estimator)
        for part in (slice(0, 100), slice(100, None)):
            kept = weights[part] > 0
            left_out.partial_fit(X[part][kept], y[part][kept], sample_weight=weights[part][kept])
            zero.partial_fit(X[part], y[part], sample_weight=weights[part])
        zero.partial_fit(X[:3], y[:3], sample_weight=[0, 0, 0])
        assert_same_predictions(left_out, zero, X)
        assert facts(left_out) == facts(zero)


def check_weights_decide(estimator: Any) -> None:
    """Check that of rows with contradicting labels the heavier win, by weights of rows or labels, also after saving."""
    if not estimator.supports_weights:
        return
    X, y, is_first = ambiguous_data()
    for heavy in (is_first, ~is_first):
        model = clone(estimator).fit(X, y, sample_weight=np.where(heavy, 2.0, 0.25))
        # A LOM tree has 0.79 to 0.83 with fractions, 1 with whole weights.
        won, least = model.score(X[heavy], y[heavy]), 0.75 if model._repeats_rows() else 0.9
        assert won > least, f"the heavier labels win in only {won}"
        by_weight = model.score(X, y, sample_weight=np.where(heavy, 2.0, 0.25))
        accuracy = np.average(model.predict(X) == y, weights=np.where(heavy, 2.0, 0.25))
        assert abs(by_weight - accuracy) < 1e-6, "score does not weight the rows"
        repeats = model._repeats_rows()
        total = model.label_counts_.sum() if repeats else model.label_weights_.sum()
        np.testing.assert_allclose(total, 1.125 * len(y), rtol=0.02 if repeats else 1e-6)
        loaded = saved_and_loaded(model)
        assert_same_predictions(model, loaded, X)
        np.testing.assert_array_equal(model.label_weights_, loaded.label_weights_)
        if hasattr(estimator, "partial_fit"):
            stream = clone(estimator)
            for _ in range(5):
                stream.partial_fit(X, y, sample_weight=np.where(heavy, 2.0, 0.25))
            assert stream.score(X[heavy], y[heavy]) > 0.7, "the heavier labels do not win in a stream"
    sparse = clone(estimator).fit(sp.csr_matrix(X), y, sample_weight=np.where(y == CLASSES[3], 50.0, 1.0))
    assert sparse.predict(sp.csr_matrix((1, X.shape[1]))).tolist() == [CLASSES[3]], "frequencies are not weighted"


def check_whole_weights(estimator: Any) -> None:
    """Check that a model that counts rows learns a row of a whole weight as often as it says, bit for bit."""
    if not estimator.supports_weights or not estimator._repeats_rows():
        return
    X, y = example_data()
    times = np.random.RandomState(3).randint(0, 4, len(y))
    repeated = np.repeat(np.arange(len(y)), times)
    methods = ("fit", "partial_fit") if hasattr(estimator, "partial_fit") else ("fit",)
    for method in methods:
        weighted = getattr(clone(estimator), method)(X, y, sample_weight=times)
        expected = getattr(clone(estimator), method)(X[repeated], y[repeated])
        assert_same_predictions(weighted, expected, X)
        assert facts(weighted) == facts(expected)


def check_class_weights(estimator: Any) -> None:
    """Check that class weights act as weights of the rows of a label, and are saved."""
    X, y, _ = ambiguous_data()
    if "class_weight" not in estimator.get_params():
        return
    favoured = {label: 2.0 if place % 2 == 0 else 0.25 for place, label in enumerate(CLASSES)}
    model = clone(estimator).set_params(class_weight=favoured).fit(X, y)
    weights = [favoured[label] for label in y.tolist()]
    of_rows = clone(estimator).fit(X, y, sample_weight=weights)
    assert_same_predictions(model, of_rows, X)
    # Without weights it is 0.57. Double sampling as published takes the same number of rows of each class, and has 0.63.
    assert np.isin(model.predict(X), CLASSES[::2]).mean() > (0.6 if model._repeats_rows() else 0.8)
    if hasattr(estimator, "partial_fit"):
        of_labels = clone(estimator).set_params(class_weight=favoured).partial_fit(X, y)
        assert_same_predictions(of_labels, clone(estimator).partial_fit(X, y, sample_weight=weights), X)
    assert saved_and_loaded(model).class_weight == favoured
    few = (y != CLASSES[0]) | (np.arange(len(y)) % 7 == 0)
    balanced = clone(estimator).set_params(class_weight="balanced").fit(X[few], y[few])
    totals = balanced.label_counts_ if balanced._repeats_rows() else balanced.label_weights_
    np.testing.assert_allclose(totals, few.sum() / len(CLASSES), rtol=0.2 if balanced._repeats_rows() else 1e-5)
    for wrong in ("even", {CLASSES[0]: -1.0}, {CLASSES[0]: "x"}, [1.0], {"yak": 2.0}):
        assert_raises(partial(clone(estimator).set_params(class_weight=wrong).fit, X, y), "class_weight")


def check_relevance(estimator: Any) -> None:
    """Check that other values of a sparse y than 0 and 1 decide how probable labels become."""
    X, y = example_data()
    number = np.searchsorted(CLASSES, y)
    indicator = np.tile(np.eye(len(CLASSES))[number], (2, 1))  # of the rows twice,
    second = len(y) + np.arange(len(y)), (number + 1) % len(CLASSES)  # the second time with one label more
    X, order = np.concatenate([X, X]), np.random.RandomState(2).permutation(2 * len(y))

    def with_relevance(relevance: float) -> Any:
        indicator[second] = relevance
        return sp.csr_matrix(indicator[order])

    if not estimator.supports_relevance:
        expected = "one label per row" if estimator.ONE_LABEL_ONLY else "relevance"
        assert_raises(lambda: clone(estimator).fit(X[order], with_relevance(0.5)), expected)
        return
    if estimator.get_params().get("penalty") == "l1":
        assert_raises(lambda: clone(estimator).fit(X[order], with_relevance(0.5)), "penalty")
        return
    low, one, high = (
        clone(estimator).fit(X[order], with_relevance(relevance)).predict_proba(X)[second].mean()
        for relevance in (0.05, 1.0, 20.0)
    )
    assert low < 0.5 * one and one + 0.1 < high, f"the probabilities are {low}, {one} and {high}"
    for wrong in (-1.0, np.nan, np.inf):
        assert_raises(partial(clone(estimator).fit, X[order], with_relevance(wrong)), "y")


def check_wrong_weights(estimator: Any) -> None:
    """Check that weights that are not one finite number from zero for each row are refused."""
    if not estimator.supports_weights:
        return
    X, y = example_data()
    ones = np.ones(len(y))
    for wrong in (
        ones[:-1],
        ones[:, None],
        np.where(ones, -1.0, 0.0),
        ones * np.nan,
        ones * np.inf,
        0 * ones,
        "x",
        ["x"] * len(y),
    ):
        for method in ("fit", "partial_fit"):
            if hasattr(estimator, method):
                learn = getattr(clone(estimator), method)
                assert_raises(partial(learn, X, y, sample_weight=wrong), "sample_weight")
