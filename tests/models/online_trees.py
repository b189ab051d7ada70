"""A problem, and what is refused in files, for the tests of several online trees."""

from __future__ import annotations

import numpy as np
import pytest


def problem(n_rows=400, n_labels=40, n_features=12, seed=0):
    """Labels with a centre each, and rows around them."""
    random = np.random.RandomState(seed)
    y = random.randint(n_labels, size=n_rows)
    centres = random.normal(size=(n_labels, n_features))
    X = centres[y] + 0.3 * random.normal(size=(n_rows, n_features))
    return X.astype(np.float32), y


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
