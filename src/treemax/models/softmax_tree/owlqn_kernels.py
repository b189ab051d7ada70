"""Softmax with an L1 and an L2 penalty over dense rows: OWL-QN.

Andrew and Gao, "Scalable training of L1-regularized log-linear models", 2007: the quasi-Newton method of
L-BFGS inside the orthant that the weights and their slope choose. A step costs two products of matrices,
scores and gradient, and little else; rows are gathered a block at a time, so that the block stays in the
cache and the data is not copied. The L2 penalty, half of `ridge` times the squared weights, is smooth: its
slopes are part of the gradient.

Rows are centred by their mean, which takes a fraction of the iterations if features are far from zero. Without a
penalty on the bias the problem is equivalent: the biases differ by `centre` times the weights.

Parameters are one vector: weights [features, outputs], then the biases. With `reference` there is one class
more, number `outputs`, whose score is always zero: one output and a reference is logistic regression.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from treemax.kernels.arithmetic import copy_into, exp32
from treemax.kernels.intrinsics import empty, maximum, minimum
from treemax.kernels.jit import fast_inline_kernel, fast_kernel, kernel

MEMORY = 10  # number of stored pairs of steps and changes of the gradient
WINDOW = 5  # iterations of the convergence test
HALVINGS = 30
SUFFICIENT = 1e-4  # a step is accepted if it gives this fraction of the decrease predicted by the slope
BLOCK = 512  # rows scored at a time
LEAST = np.float32(1e-15)  # smaller probabilities are set to zero: denormal numbers are slow

RUNNING, CONVERGED = 0, 1
STORED, NEXT, DONE = 0, 1, 2  # counters: pairs stored, where the next goes, iterations done

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


class Data(NamedTuple):
    """The rows of a problem."""

    X: np.ndarray
    rows: np.ndarray  # of X
    centre: np.ndarray  # is subtracted from them
    targets: np.ndarray
    weights: np.ndarray
    reference: bool


class History(NamedTuple):
    """The memory of L-BFGS and of the convergence test."""

    steps: np.ndarray
    changes: np.ndarray  # of the gradient
    counters: np.ndarray
    past: np.ndarray  # the objectives of the last WINDOW iterations


# --- loss and gradient ---------------------------------------------------------------------------------


@fast_kernel
def _residuals(scores, target, weight, reference):
    """Return the loss of one row times its weight; its scores become the derivatives of it."""
    k = scores.size
    top = _ZERO if reference else scores[0]
    for c in range(k):
        top = maximum(top, scores[c])
    own = scores[target] if target < k else _ZERO
    total = exp32(-top) if reference else _ZERO
    for c in range(k):
        e = exp32(scores[c] - top)
        scores[c] = e
        total += e
    scale = weight / total
    least = LEAST * weight
    for c in range(k):
        pull = scores[c] * scale
        scores[c] = pull if pull > least else _ZERO
    if target < k:
        scores[target] -= weight
    return np.float64(weight) * (math.log(np.float64(total)) + np.float64(top) - np.float64(own))


@fast_inline_kernel
def _evaluate_one(data, parameters, gradient):
    """Return loss and gradient of a single output with a reference class: row by row, straight from the data."""
    X, rows, centre, targets, weights, _ = data
    d = X.shape[1]
    w, g = parameters[:d], gradient[:d]
    score = empty(1, np.float32)
    g[:] = _ZERO
    loss, slope = 0.0, 0.0
    for i in range(rows.size):
        x = X[rows[i]]
        total = _ZERO
        for j in range(d):
            total += (x[j] - centre[j]) * w[j]
        score[0] = total + parameters[d]
        loss += _residuals(score, targets[i], weights[i], True)
        slope += score[0]
        pull = score[0]
        for j in range(d):
            g[j] += pull * (x[j] - centre[j])
    gradient[d] = slope
    return loss


@fast_inline_kernel
def _evaluate_many(data, parameters, gradient):
    """Return loss and gradient of several outputs, by products of matrices."""
    X, rows, centre, targets, weights, reference = data
    d = X.shape[1]
    k = parameters.size // (d + 1)
    size = minimum(BLOCK, rows.size)
    W, bias = parameters[: d * k].reshape(d, k), parameters[d * k :]
    G, bias_gradient = gradient[: d * k].reshape(d, k), gradient[d * k :]
    block, scores, part = (
        np.empty((size, d), np.float32),
        np.empty((size, k), np.float32),
        np.empty((d, k), np.float32),
    )
    gradient[:] = _ZERO
    loss = 0.0
    for start in range(0, rows.size, size):
        count = minimum(size, rows.size - start)
        for i in range(count):
            x, line = X[rows[start + i]], block[i]
            for j in range(d):
                line[j] = x[j] - centre[j]
        np.dot(block[:count], W, scores[:count])
        for i in range(count):
            line = scores[i]
            for c in range(k):
                line[c] += bias[c]
            loss += _residuals(line, targets[start + i], weights[start + i], reference)
            for c in range(k):
                bias_gradient[c] += line[c]
        np.dot(block[:count].T, scores[:count], part)
        for j in range(d):
            for c in range(k):
                G[j, c] += part[j, c]
    return loss


@fast_inline_kernel
def _add_ridge_slopes(parameters, n_weights, ridge, gradient):
    for p in range(n_weights):
        gradient[p] += ridge * parameters[p]


@fast_kernel
def mean_of(X, rows, weights):
    """Return the weighted mean of the rows."""
    total, mean = 0.0, np.zeros(X.shape[1])
    for i in range(rows.size):
        x, weight = X[rows[i]], np.float64(weights[i])
        total += weight
        for j in range(mean.size):
            mean[j] += weight * x[j]
    return (mean / total).astype(np.float32)


@fast_kernel
def exact_loss(X, rows, targets, weights, reference, parameters):
    """Return the loss alone, with scores in double precision."""
    d = X.shape[1]
    k = parameters.size // (d + 1)
    W = parameters[: d * k].reshape(d, k).astype(np.float64)
    bias = parameters[d * k :].astype(np.float64)
    size = minimum(BLOCK // 4, rows.size)
    block, scores = np.empty((size, d), np.float64), np.empty((size, k), np.float64)
    loss = 0.0
    for start in range(0, rows.size, size):
        count = minimum(size, rows.size - start)
        for i in range(count):
            x = X[rows[start + i]]
            for j in range(d):
                block[i, j] = x[j]
        np.dot(block[:count], W, scores[:count])
        for i in range(count):
            line = scores[i]
            top = 0.0 if reference else line[0] + bias[0]
            for c in range(k):
                line[c] += bias[c]
                top = maximum(top, line[c])
            total = np.float64(exp32(np.float32(-top))) if reference else 0.0
            for c in range(k):
                total += np.float64(exp32(np.float32(line[c] - top)))
            target = targets[start + i]
            own = line[target] if target < k else 0.0
            loss += weights[start + i] * (math.log(total) + top - own)
    return loss


@fast_kernel
def _squares(weights):
    total = 0.0
    for p in range(weights.size):
        total += np.float64(weights[p]) * np.float64(weights[p])
    return total


@fast_kernel
def penalty(parameters, n_weights, penalties):
    """Return the L1 penalty of weights and biases, and the L2 penalty of weights."""
    total, total_bias = 0.0, 0.0
    for p in range(n_weights):
        total += np.float64(abs(parameters[p]))
    for p in range(n_weights, parameters.size):
        total_bias += np.float64(abs(parameters[p]))
    cost = penalties.alpha * total + penalties.bias_alpha * total_bias
    if penalties.ridge > 0.0:
        cost += 0.5 * penalties.ridge * _squares(parameters[:n_weights])
    return cost


@kernel
def evaluate(data, penalties, parameters, gradient):
    """Return the objective; writes the gradient of all of it but the L1 penalty."""
    d = data.X.shape[1]
    n_weights = parameters.size // (d + 1) * d
    if parameters.size == d + 1 and data.reference:
        loss = _evaluate_one(data, parameters, gradient)
    else:
        loss = _evaluate_many(data, parameters, gradient)
    if penalties.ridge > 0.0:
        _add_ridge_slopes(parameters, n_weights, penalties.ridge, gradient)
    return loss + penalty(parameters, n_weights, penalties)


# --- the method ----------------------------------------------------------------------------------------


@fast_kernel
def _slopes(parameters, gradient, n_weights, penalties, slopes, free):
    """Compute the pseudo-gradient of loss plus penalty, and whether each parameter is free, not held at zero (1, else 0);
    return the squared norm of the pseudo-gradient."""
    square = 0.0
    for p in range(parameters.size):
        a = penalties.alpha if p < n_weights else penalties.bias_alpha
        w, g = parameters[p], gradient[p]
        at_zero = maximum(g - a, _ZERO) + minimum(g + a, _ZERO)
        s = g + a if w > _ZERO else (g - a if w < _ZERO else at_zero)
        slopes[p] = s
        free[p] = _ONE if w != _ZERO or s != _ZERO else _ZERO
        square += np.float64(s) * np.float64(s)
    return square


@fast_kernel
def _dot(a, b, free):
    """Return the product over the free parameters only."""
    total = 0.0
    for p in range(a.size):
        total += np.float64(a[p] * free[p]) * np.float64(b[p])
    return total


@fast_kernel
def _add(target, factor, source, free):
    f = np.float32(factor)
    for p in range(target.size):
        target[p] += f * source[p] * free[p]


@fast_kernel
def _direction(slopes, square, history, free, direction):
    """Compute the L-BFGS descent direction, minus inverse Hessian times slopes, projected to descent coordinates.

    All products are over the free parameters only. Pairs without curvature there are skipped.
    """
    steps, changes = history.steps, history.changes
    stored, last = history.counters[STORED], history.counters[NEXT]
    share, product = np.zeros(MEMORY), np.zeros(MEMORY)
    copy_into(direction, slopes, direction.size)
    scale = 0.0
    for back in range(stored):
        m = (last - 1 - back) % MEMORY
        product[m] = _dot(steps[m], changes[m], free)
        square_change = _dot(changes[m], changes[m], free)
        if product[m] <= 1e-9 * math.sqrt(_dot(steps[m], steps[m], free) * square_change):
            product[m] = 0.0
            continue
        if scale == 0.0:
            scale = product[m] / square_change
        share[m] = _dot(steps[m], direction, free) / product[m]
        _add(direction, -share[m], changes[m], free)
    if scale == 0.0:
        scale = 1.0 / math.sqrt(square)
    for p in range(direction.size):
        direction[p] *= np.float32(scale)
    for back in range(stored - 1, -1, -1):
        m = (last - 1 - back) % MEMORY
        if product[m] > 0.0:
            _add(direction, share[m] - _dot(changes[m], direction, free) / product[m], steps[m], free)
    for p in range(direction.size):
        direction[p] = -direction[p] if direction[p] * slopes[p] > _ZERO else _ZERO


@fast_kernel
def _move(parameters, direction, step, slopes, n_weights, penalties, trial):
    """Write the point after a step, projected to the orthant; returns the decrease predicted by the slopes."""
    t = np.float32(step)
    promised = 0.0
    for p in range(parameters.size):
        w = parameters[p]
        moved = w + t * direction[p]
        a = penalties.alpha if p < n_weights else penalties.bias_alpha
        side = w if w != _ZERO else -slopes[p]
        if a > _ZERO and moved * side <= _ZERO:
            moved = _ZERO
        trial[p] = moved
        promised += np.float64(slopes[p]) * np.float64(moved - w)
    return promised


@fast_kernel
def _remember(parameters, trial, gradient, trial_gradient, history):
    """Keep the pair of step and change of gradient."""
    counters = history.counters
    m = counters[NEXT]
    step, change = history.steps[m], history.changes[m]
    for p in range(parameters.size):
        step[p] = trial[p] - parameters[p]
        change[p] = trial_gradient[p] - gradient[p]
    counters[NEXT] = (m + 1) % MEMORY
    counters[STORED] = minimum(MEMORY, counters[STORED] + 1)


@kernel
def advance(data, penalties, tolerance, least, iterations, parameters, gradient, history, objective):
    """Run up to `iterations` iterations. The objective never rises.

    Returns the objective and whether it has converged: the decrease over WINDOW iterations is less than
    tolerance / 2 times the objective, it is below `least`, or no step decreases it.
    """
    size = parameters.size
    n_weights = size // (data.X.shape[1] + 1) * data.X.shape[1]
    counters, past = history.counters, history.past
    slopes, direction = empty(size, np.float32), empty(size, np.float32)
    free = empty(size, np.float32)
    trial, trial_gradient = empty(size, np.float32), empty(size, np.float32)
    for _ in range(iterations):
        square = _slopes(parameters, gradient, n_weights, penalties, slopes, free)
        if square == 0.0 or objective <= least:
            return objective, CONVERGED
        _direction(slopes, square, history, free, direction)
        step, found, value = 1.0, False, objective
        for _ in range(HALVINGS):
            promised = _move(parameters, direction, step, slopes, n_weights, penalties, trial)
            if promised >= 0.0:
                break
            value = evaluate(data, penalties, trial, trial_gradient)
            if value <= objective + SUFFICIENT * promised:
                found = True
                break
            step *= 0.5
        if not found:
            if counters[STORED] == 0:
                return objective, CONVERGED
            counters[STORED] = 0  # drop the L-BFGS memory and retry with steepest descent
            continue
        _remember(parameters, trial, gradient, trial_gradient, history)
        copy_into(parameters, trial, parameters.size)
        copy_into(gradient, trial_gradient, gradient.size)
        done = counters[DONE]
        before = past[done % WINDOW]
        past[done % WINDOW] = objective
        counters[DONE] = done + 1
        objective = value
        if done >= WINDOW and before - objective <= 0.5 * tolerance * objective:
            return objective, CONVERGED
    return objective, RUNNING
