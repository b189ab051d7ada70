"""The similarity of a row and a memory, for dense and sparse rows; compiled for the type of the rows (`overload`)."""

from __future__ import annotations

import numpy as np
from numba import types
from numba.extending import overload

from treemax.kernels.jit import BARE_OPTIONS, fast_inline_kernel

_ONE = np.float32(1.0)
_ZERO = np.float32(0.0)


def spread(x, out):
    """Write a row into a dense array of zeros."""
    raise NotImplementedError


def clear(x, out):
    """Set the features of a row back to zero."""
    raise NotImplementedError


def similarity(dense, rows, memory, weights):
    """Compute the score of a memory for a row."""
    raise NotImplementedError


def update_similarity(dense, rows, memory, gradient, scorer, rate, initial):
    """Update the scorer by AdaGrad."""
    raise NotImplementedError


@overload(spread, jit_options=BARE_OPTIONS)
def _overload_spread(x, out):
    if isinstance(x, types.Array):

        def dense(x, out):
            for d in range(x.size):
                out[d] = x[d]

        return dense

    def sparse(x, out):
        indices, values = x
        for p in range(indices.size):
            out[indices[p]] = values[p]

    return sparse


@overload(clear, jit_options=BARE_OPTIONS)
def _overload_clear(x, out):
    if isinstance(x, types.Array):
        return lambda x, out: None

    def sparse(x, out):
        for feature in x[0]:
            out[feature] = _ZERO

    return sparse


@fast_inline_kernel
def _weighted_dot(a, rows, memory, weights):
    total = _ZERO
    for d in range(rows.shape[1]):
        total += a[d] * rows[memory, d] * (_ONE + weights[d])
    return total


@fast_inline_kernel
def _dense_step(a, rows, memory, gradient, weights, squares, rate, initial):
    for d in range(rows.shape[1]):
        step = gradient * a[d] * rows[memory, d]
        total = squares[d] + step * step
        squares[d] = total
        weights[d] -= rate * step / np.sqrt(total + initial)


@overload(similarity, jit_options=BARE_OPTIONS)
def _overload_similarity(dense, rows, memory, weights):
    if isinstance(rows, types.Array):
        return lambda dense, rows, memory, weights: _weighted_dot(dense, rows, memory, weights)

    def sparse(dense, rows, memory, weights):
        indptr, indices, values = rows
        total = _ZERO
        for p in range(np.uint64(indptr[memory]), np.uint64(indptr[memory + 1])):
            value = dense[indices[p]]
            if value != _ZERO:
                total += value * values[p] * (_ONE + weights[indices[p]])
        return total

    return sparse


@overload(update_similarity, jit_options=BARE_OPTIONS)
def _overload_update_similarity(dense, rows, memory, gradient, scorer, rate, initial):
    if isinstance(rows, types.Array):

        def of_dense(dense, rows, memory, gradient, scorer, rate, initial):
            _dense_step(dense, rows, memory, gradient, scorer.weights, scorer.squares, rate, initial)

        return of_dense

    def of_sparse(dense, rows, memory, gradient, scorer, rate, initial):
        indptr, indices, values = rows
        for p in range(np.uint64(indptr[memory]), np.uint64(indptr[memory + 1])):
            feature = indices[p]
            step = gradient * dense[feature] * values[p]
            if step != _ZERO:
                total = scorer.squares[feature] + step * step
                scorer.squares[feature] = total
                scorer.weights[feature] -= rate * step / np.sqrt(total + initial)

    return of_sparse
