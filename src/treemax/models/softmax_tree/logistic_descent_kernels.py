"""Logistic regression with an L1 and an L2 penalty over sparse rows: coordinate descent.

The algorithm of `softmax_descent_kernels` for one output and a reference class. Each row caches the exponential of
its score and the first and second derivative of its loss, so that a weight that stays zero costs one read per row.

Targets are 0 where the sign is 1, and 1 where it is -1. Columns are those of `kernels.columns.local_columns`,
without the last.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from treemax.kernels.arithmetic import exp32
from treemax.kernels.intrinsics import maximum, minimum
from treemax.kernels.jit import bare_fast_kernel, fast_inline_kernel, fast_kernel, kernel

ENOUGH = 0.05  # a sweep whose decrease is below this fraction of the tolerance ends the round
TINY = 0.01  # fraction of the tolerance that all skipped steps together may forgo

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)
_LEAST, _MOST = np.float32(1e-30), np.float32(1e30)  # bounds of exponentials
_FIRST, _SECOND = np.uint64(0), np.uint64(1)


class RowScores(NamedTuple):
    """What is kept for each row."""

    exponentials: np.ndarray
    derivatives: np.ndarray  # first and second


@fast_inline_kernel
def _derive(i, exponential, target, cost, derivatives):
    """Enter the derivatives of one row's loss."""
    rest = _ONE / (_ONE + exponential)
    own = exponential * rest
    derivatives[i, _FIRST] = -cost * rest if target == 0 else cost * own
    derivatives[i, _SECOND] = cost * own * rest


@fast_kernel
def _refresh(columns, model, rows):
    """Compute exponentials and derivatives of all rows from the weights; return the loss."""
    exponentials, targets, costs = rows.exponentials, columns.targets, columns.costs
    exponentials[:] = model.bias[0]
    for j in range(model.weights.size):
        if model.used[j]:
            for p in range(np.uint64(columns.starts[j]), np.uint64(columns.starts[j + 1])):
                exponentials[columns.rows[p]] += model.weights[j] * columns.values[p]
    loss = 0.0
    for i in range(np.uint64(costs.size)):
        score = exponentials[i]
        margin = score if targets[i] == 0 else -score
        loss += np.float64(costs[i]) * (
            math.log(1.0 + np.float64(exp32(-abs(margin)))) + maximum(-np.float64(margin), 0.0)
        )
        exponentials[i] = minimum(maximum(exp32(score), _LEAST), _MOST)
        _derive(i, exponentials[i], targets[i], costs[i], rows.derivatives)
    return loss


@fast_inline_kernel
def _moved(slope, curvature, largest, weight, alpha):
    """Return the new value of a weight: towards the minimum of loss plus penalty, not beyond it, nor beyond zero.

    The third derivative is at most `largest`, the largest value of the feature, times the second.
    """
    if weight > 0.0:
        g = slope + alpha
    elif weight < 0.0:
        g = slope - alpha
    else:
        g = maximum(slope - alpha, 0.0) + minimum(slope + alpha, 0.0)
    moved = weight - g / (curvature + 0.5 * largest * abs(g) + 1e-12)
    return 0.0 if weight * moved < 0.0 else moved


@bare_fast_kernel
def _update(j, columns, penalties, least, weights, rows):
    """Make one step of one weight, in place; return the approximate decrease of the objective.

    A step with a decrease below `least` is skipped, unless it ends at zero.
    """
    exponentials, derivatives = rows
    first, last, weight = np.uint64(columns.starts[j]), np.uint64(columns.starts[j + 1]), weights[j]
    slope, curvature = 0.0, 0.0
    for p in range(first, last):
        i, x = np.uint64(columns.rows[p]), columns.values[p]
        slope += x * derivatives[i, _FIRST]
        curvature += x * x * derivatives[i, _SECOND]
    slope += penalties.ridge * weight
    curvature += penalties.ridge
    if weight == _ZERO and abs(slope) <= penalties.alpha:
        return 0.0
    moved = np.float32(_moved(slope, curvature, columns.largest[j], np.float64(weight), penalties.alpha))
    step = moved - weight
    fall = 0.5 * abs(slope * step + penalties.alpha * (abs(moved) - abs(weight)))
    if step == _ZERO or (fall < least and moved != _ZERO):
        return fall
    for p in range(first, last):
        i = np.uint64(columns.rows[p])
        e = exponentials[i] * exp32(step * columns.values[p])
        e = minimum(maximum(e, _LEAST), _MOST)
        exponentials[i] = e
        _derive(i, e, columns.targets[i], columns.costs[i], derivatives)
    weights[j] = moved
    return fall


@bare_fast_kernel
def _update_bias(columns, alpha, bias, rows):
    """Make one step of the bias; return the approximate decrease of the objective."""
    exponentials, derivatives = rows
    slope, curvature = 0.0, 0.0
    for i in range(np.uint64(columns.costs.size)):
        slope += derivatives[i, _FIRST]
        curvature += derivatives[i, _SECOND]
    moved = np.float32(_moved(slope, curvature, 1.0, np.float64(bias[0]), alpha))
    step = moved - bias[0]
    if step == _ZERO:
        return 0.0
    factor = exp32(step)
    for i in range(np.uint64(columns.costs.size)):
        exponentials[i] = minimum(maximum(exponentials[i] * factor, _LEAST), _MOST)
        _derive(i, exponentials[i], columns.targets[i], columns.costs[i], derivatives)
    fell = 0.5 * abs(slope * step + alpha * (abs(moved) - abs(bias[0])))
    bias[0] = moved
    return fell


@kernel
def one_round(columns, penalties, tolerance, sweeps_over_used, model, rows):
    """Recompute the rows, sweep once over all features, and then over the nonzero weights.

    Returns the objective at the start, its approximate decrease, and the number of sweeps.
    """
    alpha, bias_alpha, ridge = penalties
    weights, used, bias = model
    before = _refresh(columns, model, rows)
    before += alpha * np.abs(weights).sum() + bias_alpha * abs(bias[0]) + 0.5 * ridge * np.square(weights).sum()
    least = TINY * tolerance * before / weights.size
    taken = _update_bias(columns, bias_alpha, bias, rows)
    for j in range(np.uint64(weights.size)):
        if used[j] or columns.mass[j] > alpha:  # at zero a slope cannot be larger than the mass of its feature
            taken += _update(j, columns, penalties, least, weights, rows)
            used[j] = weights[j] != _ZERO
    features = np.flatnonzero(used)
    least = TINY * tolerance * before / maximum(1, features.size)
    sweeps = 1
    for _ in range(sweeps_over_used):
        fell_all = _update_bias(columns, bias_alpha, bias, rows)
        for feature in features:
            fell_all += _update(np.uint64(feature), columns, penalties, least, weights, rows)
        taken += fell_all
        sweeps += 1
        if fell_all <= ENOUGH * tolerance * before:
            break
    return before, taken, sweeps
