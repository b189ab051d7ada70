"""Every trained model answers the calls of `TrainedModel`, under the same names."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from treemax.models import MODELS
from treemax.models.trained import TrainedModel

CALLS = ["top_k", "probabilities", "above", "of_labels", "to_parts", "from_parts"]
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
