"""Every trained model has the methods of `TrainedModel`, and they agree.

The search options that estimators pass to these are private.
"""

from __future__ import annotations

import inspect
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treemax.inputs.rows import as_rows
from treemax.models import MODELS
from treemax.models.trained import TrainedModel

CALLS = ["top_k", "top_k_weighted", "top_k_allowed", "probabilities", "above", "of_labels", "to_parts", "from_parts"]
X = np.repeat(np.eye(4, dtype=np.float32), 8, axis=0)


@pytest.mark.parametrize("name", MODELS)
def test_a_trained_model_answers_the_calls_of_all(name):
    model = MODELS[name]().set_params(verbose=0).fit(X, np.repeat(list("abcd"), 8))
    for call in CALLS:
        own = inspect.signature(getattr(type(model.model_), call)).parameters
        assert list(own) == list(inspect.signature(getattr(TrainedModel, call)).parameters), call
    ids, best = model.model_.top_k(X, 2, model._search())
    everything = model.model_.probabilities(X, model._search())
    of_best = model.model_.of_labels(X, ids, model._search())
    np.testing.assert_array_equal(of_best, np.where(ids < 0, 0, np.take_along_axis(everything, np.maximum(ids, 0), 1)))
    np.testing.assert_allclose(best[ids >= 0], of_best[ids >= 0], atol=1e-6)
    rows, found, probabilities = model.model_.above(X, 0.25, model._search())
    assert list(zip(rows, found)) == list(zip(*np.nonzero(everything >= np.float32(0.25))))
    np.testing.assert_array_equal(probabilities, everything[rows, found])


@pytest.mark.parametrize("name", MODELS)
def test_weighted_labels_are_the_best_products(name):
    model = MODELS[name]().set_params(verbose=0).fit(X, np.repeat(list("abcd"), 8))
    everything = model.model_.probabilities(X, model._search())
    for weights in ([1, 1, 1, 1], [0, 1, 0, 1], [0.5, 3, 0, 0.25]):
        weights = np.array(weights, dtype=np.float32)
        ids, found = model.model_.top_k_weighted(X, 3, weights, model._search())
        products = everything * weights
        n_answers = np.minimum((products > 0).sum(axis=1), 3)
        assert (ids[:, 0] >= 0)[n_answers > 0].all() and (weights[ids[ids >= 0]] > 0).all()
        np.testing.assert_array_equal(
            found, np.where(ids < 0, 0, np.take_along_axis(everything, np.maximum(ids, 0), 1))
        )
        of_found = np.where(ids < 0, 0, np.take_along_axis(products, np.maximum(ids, 0), 1))
        np.testing.assert_allclose(of_found, -np.sort(-products, axis=1)[:, :3], atol=1e-7)


@pytest.mark.parametrize("name", MODELS)
def test_allowed_labels_and_the_best_of_all_are_those_of_two_searches(name):
    model = MODELS[name]().set_params(verbose=0).fit(X, np.repeat(list("abcd"), 8))
    for weights, k in (([1, 1, 1, 1], 3), ([0, 1, 0, 1], 2), ([0, 0, 1, 0], 1)):
        weights = np.array(weights, dtype=np.float32)
        for n_first in (0, 3):
            check_allowed(model.model_, X, k, n_first, weights, model._search())


def check_allowed(model, rows, k, n_first, weights, search):
    found = model.top_k_allowed(rows, k, n_first, weights, search)
    if n_first:
        first, of_first = model.top_k(rows, n_first, search)
        np.testing.assert_array_equal(found.first, first)
        np.testing.assert_allclose(found.of_first, of_first, rtol=1e-6)
    assert found.first.shape == (len(rows), n_first)
    ids, probabilities = model.top_k_weighted(rows, k, weights, search)
    np.testing.assert_allclose(found.probabilities, probabilities, rtol=1e-6)
    untied = np.diff(probabilities, axis=1, prepend=2, append=-1) != 0
    untied = untied[:, 1:] & untied[:, :-1]
    untied[:, -1] = False  # the next label may be equal
    np.testing.assert_array_equal(found.ids[untied], ids[untied])


@cache
def larger(name, multi_label):
    """A model of forty labels, and rows."""
    random = np.random.default_rng(3)
    y = random.integers(0, 40, 400)
    rows = random.normal(size=(400, 12)).astype(np.float32) + random.normal(size=(40, 12)).astype(np.float32)[y]
    rows *= np.abs(rows) > 0.5
    labels = [[label, (label * 7 + 1) % 40] for label in y.tolist()] if multi_label else y
    name, trees = ("label-tree", {"n_trees": 3}) if name == "label-trees" else (name, {})
    return MODELS[name]().set_params(verbose=0, **trees).fit(rows, labels), as_rows(rows[:20])


@pytest.mark.parametrize("name", ["label-trees", *sorted(MODELS)])
@pytest.mark.parametrize("k", [1, 5])
def test_allowed_labels_of_every_model_among_many(name, k):
    model, rows = larger(name, False)
    random = np.random.default_rng(k)
    for share in (0.2, 0.9):
        weights = (random.uniform(size=40) < share).astype(np.float32)
        for n_first in (0, 6):
            check_allowed(model.model_, rows, k, n_first, weights, model._search())


@pytest.mark.parametrize("name", ["label-tree", "online-label-tree", "learned-tree", "one-vs-all"])
@settings(max_examples=40, deadline=None)
@given(st.booleans(), st.integers(0, 10**6), st.floats(0.01, 1.0), st.integers(1, 8), st.sampled_from([1, 3, None]))
def test_allowed_labels_are_the_filtered_probabilities(name, multi_label, seed, share, k, beam):
    model, rows = larger(name, multi_label)
    random = np.random.default_rng(seed)
    weights = (random.uniform(size=40) < share).astype(np.float32)
    weights[random.integers(40)] = 1.0
    k = min(k, int(weights.sum()))
    search = {"one-vs-all": model._search(), "learned-tree": None}.get(name, beam)
    for n_first in (0, 6):
        check_allowed(model.model_, rows, k, n_first, weights, search)
    if search is None or name == "one-vs-all":
        of_allowed = model.model_.probabilities(rows, search)[:, weights > 0]
        found = model.model_.top_k_allowed(rows, k, 0, weights, search)
        np.testing.assert_allclose(found.probabilities, -np.sort(-of_allowed, axis=1)[:, :k], rtol=1e-6)
        of_found = model.model_.of_labels(rows, found.ids, search)
        np.testing.assert_allclose(found.probabilities, of_found, rtol=1e-6)
