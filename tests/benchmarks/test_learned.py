"""The tables of learned trees, on made-up data."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix

from benchmarks.experiments import learned
from benchmarks.harness.problem import Problem


def test_every_tree_is_trained_by_arity_and_dimension(monkeypatch, capsys):
    for name, value in (("DIMENSIONS", (4,)), ("ARITIES", (3,)), ("PASSES", 8)):
        monkeypatch.setattr(learned, name, value)
    y = np.arange(240) % 8
    X = csr_matrix(np.eye(8, dtype=np.float32)[y])
    problem = Problem(X[:200], y[:200], X[200:], y[200:])
    found = learned.trees(problem)
    assert set(found) == {"2, 4", "3, 4"} and all(set(of_shape) == set(learned.TREES) for of_shape in found.values())
    assert all(value > 0.5 and took > 0 for of_shape in found.values() for value, took in of_shape.values())
    assert "| arity, dimension | learned |" in capsys.readouterr().out
    assert learned.published(problem).keys() == found.keys()
