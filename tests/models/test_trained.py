"""Every trained model answers the calls of `TrainedModel`, under the same names."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from treemax.models import MODELS
from treemax.models.trained import TrainedModel

CALLS = ["top_k", "top_k_weighted", "probabilities", "above", "of_labels", "to_parts", "from_parts"]
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
