"""Losses of rows at the leaves, and scores of planes, during the training of softmax trees."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from treemax.kernels.arithmetic import exp32
from treemax.kernels.intrinsics import empty
from treemax.kernels.jit import fast_inline_kernel, fast_kernel, kernel

_ZERO = np.float32(0.0)


class ColumnWeights(NamedTuple):
    """The weights of a leaf's classes, those of a feature together."""

    starts: np.ndarray
    classes: np.ndarray
    weights: np.ndarray


@fast_kernel
def dense_plane_scores(X, rows, weights, bias, out):
    """Compute the scores of some rows at a plane."""
    for i in range(rows.size):
        x, total = X[rows[i]], _ZERO
        for j in range(weights.size):
            total += x[j] * weights[j]
        out[i] = total + bias


@kernel
def sparse_plane_scores(indptr, indices, values, rows, weights, bias, out):
    """Compute the same for sparse rows."""
    for i in range(rows.size):
        total = _ZERO
        for p in range(indptr[rows[i]], indptr[rows[i] + 1]):
            total += values[p] * weights[indices[p]]
        out[i] = total + bias


@fast_inline_kernel
def _outcome(scores, own, needs_loss):
    """Return the cross-entropy of a row's class, if it is needed, and whether another class is the prediction."""
    best = 0
    for c in range(scores.size):
        if scores[c] > scores[best]:
            best = c
    loss = 0.0
    if needs_loss:
        total = 0.0
        for c in range(scores.size):
            total += np.float64(exp32(scores[c] - scores[best]))
        loss = math.log(total) + np.float64(scores[best]) - np.float64(scores[own])
    return loss, best != own


@fast_kernel
def dense_outcomes(scores, bias, places, needs_loss, cross_entropy, wrong):
    """Compute the outcomes of rows whose scores are given without the bias of each class."""
    for i in range(places.size):
        line = scores[i]
        for c in range(bias.size):
            line[c] += bias[c]
        cross_entropy[i], wrong[i] = _outcome(line, places[i], needs_loss)


@fast_kernel
def sparse_outcomes(data, rows, columns, bias, places, needs_loss, cross_entropy, wrong):
    """Compute the same for some of the sparse rows of `data`."""
    line = empty(bias.size, np.float32)
    for i in range(rows.size):
        for c in range(bias.size):
            line[c] = bias[c]
        for p in range(data.indptr[rows[i]], data.indptr[rows[i] + 1]):
            feature, value = data.indices[p], data.values[p]
            for q in range(columns.starts[feature], columns.starts[feature + 1]):
                line[columns.classes[q]] += value * columns.weights[q]
        cross_entropy[i], wrong[i] = _outcome(line, places[i], needs_loss)
