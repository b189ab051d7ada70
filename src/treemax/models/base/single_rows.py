"""Predictions for single rows, with little work around the search."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.limits import MAX_FEATURES
from treemax.inputs.rows import SparseRows, read_only
from treemax.kernels import validation
from treemax.numpy_only.topk import TopK

_INT32, _FLOAT32 = np.dtype(np.int32), np.dtype(np.float32)


class Predictor:
    """Predicts the k most probable labels of rows, as `model.predictor(k)` returns it.

    `predictor(indices, values)` predicts one sparse row, given by the ids of its features, ascending and distinct, and
    their values; its labels and scores are vectors. Arrays of int32 and float32 are fastest. Ids below 2^31 without a
    weight have no effect. `predictor(X)` takes what `predict_topk` takes, and returns the same.

    Neither looks at parameters that were set since, nor waits for training. A row whose ids are not ascending, or
    negative, or whose values are not finite, raises ValueError.
    """

    def __init__(self, estimator: Any, k: int) -> None:
        self._estimator, self._k = estimator, k
        self._weights = estimator._weights_of_labels(None, None, None)
        n_labels = len(estimator.label_index_) if self._weights is None else self._weights.n_allowed
        self._n_answers = min(k, n_labels)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._estimator, self._k)

    def __call__(self, X: Any, values: Any = None) -> TopK:
        """Return the labels and their probabilities, best first."""
        estimator = self._estimator
        rows = estimator._rows_to_predict(X if values is None else _one_row(X, values))
        ids, scores = estimator._calibrated_top(rows, self._n_answers, self._weights)
        labels = estimator._labels_of(ids)
        return TopK(labels, scores) if values is None else TopK(labels[0], scores[0])


def _one_row(indices: Any, values: Any) -> SparseRows:
    """Return a sparse row; raise ValueError if it is not valid."""
    if type(indices) is not np.ndarray or indices.dtype != _INT32 or not indices.flags.c_contiguous:
        indices = _as_int32(indices)
    if type(values) is not np.ndarray or values.dtype != _FLOAT32 or not values.flags.c_contiguous:
        with np.errstate(over="ignore"):  # overflow becomes infinity, which raises below
            values = np.asarray(values, dtype=np.float32, order="C")
    if indices.ndim != 1 or indices.shape != values.shape:
        raise ValueError(f"indices and values must be vectors of equal length, got {indices.shape} and {values.shape}.")
    indptr, short = _starts(len(indices))
    indices, values = read_only(indices), read_only(values)
    lowest = validation.lowest_features(short, indices, values, 1, MAX_FEATURES)
    if lowest < 0:
        raise ValueError("indices must be ascending, distinct and not negative, and values finite and at most 1e15.")
    return SparseRows(indptr, indices.view(np.uint32), values, MAX_FEATURES, lowest_features=lowest)


def _as_int32(indices: Any) -> NDArray[np.int32]:
    """Convert the ids of features; raise ValueError if they do not fit."""
    found = np.asarray(indices)
    if found.size == 0:
        return np.empty(found.shape, dtype=np.int32)
    if found.dtype.kind not in "iu":
        raise ValueError(f"indices must be integers, got dtype {found.dtype}.")
    if found.min() < 0 or found.max() >= 2**31:
        raise ValueError(f"indices must be between 0 and 2^31 - 1, got {found.min()} to {found.max()}.")
    return np.asarray(found, dtype=np.int32, order="C")


@lru_cache(maxsize=4096)
def _starts(n: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the `indptr` of a row of n entries."""
    return read_only(np.array([0, n])), read_only(np.array([0, n], dtype=np.int32))
