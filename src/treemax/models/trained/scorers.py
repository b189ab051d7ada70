"""Dense linear scorers, with copies of their weights in half precision for prediction."""

from __future__ import annotations

from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.rows import read_only
from treemax.kernels import weights as kernels
from treemax.kernels.feature_tables import SparseScorers
from treemax.kernels.scorers import EMPTY, DenseScorers, HalfScorers, SparseGroups
from treemax.models.trained.hash_tables import SMALLEST_TABLE
from treemax.models.trained.sparse_scorers import empty_sparse_scorers
from treemax.parallel.locks import fork_safe

Scorers = DenseScorers | SparseScorers | SparseGroups
SCORER_ARRAYS = ("bias", "bias_squares", "weights", "squares", "halves", "scale", "stale")
SCORERS_AT_ONCE = 1024  # converted to half precision together, so that they fit in the cache
_WRITING = fork_safe(Lock())


def empty_scorers(sparse: bool, n_groups: int, width: int, n_features: int) -> Scorers:
    """Return scorers without weights, `width` of them in each group."""
    n = n_groups * width
    bias, squares = np.zeros(n, np.float32), np.zeros(n, np.float32)
    if not sparse:
        shape = (n, n_features)
        return dense_scorers(np.zeros(shape, np.float32), np.zeros(shape, np.float32), bias, squares)
    if width == 1:
        return empty_sparse_scorers(n, n_features)
    cells = np.zeros((SMALLEST_TABLE, 2 * width), np.float32)
    return SparseGroups(np.full(SMALLEST_TABLE, EMPTY), cells, np.zeros(2, np.int64), bias, squares)


def enlarged_scorers(scorers: Scorers, n: int) -> Scorers:
    """Return the scorers with capacity for n."""
    changed: dict[str, Any] = {
        name: enlarged_array(getattr(scorers, name), n) for name in SCORER_ARRAYS if hasattr(scorers, name)
    }
    return scorers._replace(**changed)


def enlarged_array(array: NDArray[Any], n: int) -> NDArray[Any]:
    """Return a copy with n rows, zero at the end."""
    enlarged = np.zeros((n, *array.shape[1:]), dtype=array.dtype)
    enlarged[: len(array)] = array
    return enlarged


def dense_scorers(
    weights: NDArray[np.float32],
    squares: NDArray[np.float32],
    bias: NDArray[np.float32],
    bias_squares: NDArray[np.float32],
) -> DenseScorers:
    """Return scorers whose half-precision weights are marked as stale."""
    n = len(weights)
    halves, scale = np.zeros(weights.shape, np.uint16), np.ones(n, np.float32)
    return DenseScorers(weights, squares, bias, bias_squares, halves, scale, np.ones(n, np.bool_))


def frozen_scorers(halves: NDArray[np.float16], scale: NDArray[np.float32], bias: NDArray[np.float32]) -> DenseScorers:
    """Return scorers for prediction only."""
    nothing = np.zeros((0, halves.shape[1]), np.float32)
    fresh = np.zeros(len(bias), np.bool_)
    return DenseScorers(nothing, nothing, bias, np.zeros_like(bias), halves.view(np.uint16), scale, fresh)


def trainable_scorers(scorers: Scorers) -> Scorers:
    """Restore the weights of scorers for prediction only, with zero AdaGrad sums; others are returned as they are."""
    if not isinstance(scorers, DenseScorers) or len(scorers.weights) == len(scorers.bias):
        return scorers
    weights = scorers.halves.view(np.float16).astype(np.float32) * scorers.scale[:, None]
    return scorers._replace(weights=weights, squares=np.zeros_like(weights))


def prediction_scorers(scorers: Scorers) -> HalfScorers | SparseScorers | SparseGroups:
    """Return the scorers for the prediction kernels, after updating stale half-precision weights.

    A stale flag is cleared before its weights are converted, so that a concurrent update sets it again. Other
    predicting threads wait for the conversion. Read-only arrays, as in shared memory, are copied.
    """
    if not isinstance(scorers, DenseScorers):
        return scorers
    with _WRITING:
        stale = np.flatnonzero(scorers.stale)
        if len(stale) and not scorers.stale.flags.writeable:
            scorers = scorers._replace(
                halves=scorers.halves.copy(), scale=scorers.scale.copy(), stale=scorers.stale.copy()
            )
        for start in range(0, len(stale), SCORERS_AT_ONCE):
            _write_halves(scorers, stale[start : start + SCORERS_AT_ONCE])
    return HalfScorers(scorers.halves, scorers.scale, scorers.bias)


def _write_halves(scorers: DenseScorers, some: NDArray[np.int64]) -> None:
    scorers.stale[some] = False
    weights = scorers.weights[some]
    scale = np.exp2(np.ceil(np.log2(np.maximum(np.abs(weights).max(axis=1, initial=0.0), 1e-30))))
    scorers.scale[some] = scale
    scorers.halves[some] = (weights / scale[:, None]).astype(np.float16).view(np.uint16)


def weights_of_features(scorers: Scorers, first: int, width: int, columns: NDArray[Any]) -> NDArray[np.float64]:
    """Return the weights of `width` scorers from `first` on for some features, as predictions use them."""
    if isinstance(scorers, DenseScorers):
        frozen = prediction_scorers(scorers)
        assert isinstance(frozen, HalfScorers)
        halves = frozen.halves[first : first + width].view(np.float16)[:, columns]
        return halves.astype(np.float64) * frozen.scale[first : first + width, None]
    columns = read_only(columns.astype(np.uint32))
    out = np.zeros((len(columns), width), np.float32)
    if isinstance(scorers, SparseScorers):
        kernels.sparse_weights(scorers, first, columns, out[:, 0])
    else:
        kernels.group_weights(scorers, first // width, columns, out)
    return out.T.astype(np.float64)
