"""Logistic regression with an L1 and an L2 penalty over dense rows of moderate width: Newton's method.

Friedman, Hastie and Tibshirani, "Regularization paths for generalized linear models via coordinate descent",
2010, and Yuan, Ho and Lin, "An improved GLMNET for L1-regularized logistic regression", 2012: the loss
is approximated by a quadratic, coordinate descent minimises it together with the penalty, and a line search ensures
that the objective decreases. The Hessian of the active weights (nonzero, or with a nonzero subgradient) is one matrix
product; after that a sweep over the weights reads no rows.

The L2 penalty, half of `ridge` times the squared weights, is a quadratic already: its slopes are part of the
gradient, and `ridge` is added to the Hessian's diagonal.

Parameters are the weights, then the bias. Targets are 0 where the sign is 1, and 1 where it is -1.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from treemax.kernels.arithmetic import copy_into, exp32, next_random, stride
from treemax.kernels.intrinsics import empty, maximum, minimum
from treemax.kernels.jit import fast_kernel, kernel

SWEEPS = 200  # maximum number over the weights of a quadratic
SETTLED = 0.01  # sweeps end when one gives less than this fraction of the decrease so far
HALVINGS = 20
SUFFICIENT = 0.01  # a step is accepted if it gives this fraction of the decrease predicted by the slope
DAMPING = 1e-7  # added to the Hessian's diagonal, relative to its mean, for problems with fewer rows than features
SAMPLE = 16  # rows for each active parameter that the Hessian is made of
LEAST_SAMPLE = 512
BLOCK = 512  # rows of the Hessian's product at a time

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


class Data(NamedTuple):
    """The rows of a problem."""

    X: np.ndarray
    rows: np.ndarray  # of X
    targets: np.ndarray
    weights: np.ndarray


@fast_kernel
def _loss(data, parameters, gradient, curvatures):
    """Return the loss; writes its gradient, and the second derivative of each row's loss along its score."""
    X, rows, targets, weights = data
    d = X.shape[1]
    w, g = parameters[:d], gradient[:d]
    g[:] = _ZERO
    bias = parameters[d]
    loss, slope = 0.0, 0.0
    for i in range(rows.size):
        x = X[rows[i]]
        score = _ZERO
        for j in range(d):
            score += x[j] * w[j]
        score += bias
        margin = score if targets[i] == 0 else -score
        small = exp32(-abs(margin))  # at most one
        share = _ONE / (_ONE + small)
        wrong = small * share if margin > _ZERO else share
        loss += np.float64(weights[i]) * (math.log1p(np.float64(small)) + maximum(-np.float64(margin), 0.0))
        pull = -weights[i] * wrong if targets[i] == 0 else weights[i] * wrong
        curvatures[i] = weights[i] * small * share * share
        slope += np.float64(pull)
        for j in range(d):
            g[j] += pull * x[j]
    gradient[d] = slope
    return loss


@fast_kernel
def _hessian(X, rows, curvatures, active, random):
    """Return the second derivatives of the loss along the active parameters, from a sample of many rows.

    A sample of m rows errs by about sqrt(active / m); more steps, each a fraction of the work.
    """
    d, a, n = X.shape[1], active.size, rows.size
    sample = maximum(LEAST_SAMPLE, SAMPLE * a)
    if n < 3 * sample:
        sample = n
    jump = stride(n, np.int64(random >> np.uint64(33))) if sample < n else 1
    scale = np.float32(n / sample)
    size = minimum(BLOCK, sample)
    block, part = np.empty((size, a), np.float32), np.empty((a, a), np.float32)
    hessian = np.zeros((a, a), np.float64)
    at = 0
    for start in range(0, sample, size):
        count = minimum(size, sample - start)
        for i in range(count):
            x, line = X[rows[at]], block[i]
            root = math.sqrt(scale * curvatures[at])
            at += jump
            if at >= n:
                at -= n
            for q in range(a):
                line[q] = root * x[active[q]] if active[q] < d else root
        np.dot(block[:count].T, block[:count], part)
        for q in range(a):
            for r in range(a):
                hessian[q, r] += part[q, r]
    damping = 0.0
    for q in range(a):
        damping += hessian[q, q]
    damping = DAMPING * damping / a + 1e-12
    for q in range(a):
        hessian[q, q] += damping
    return hessian


@kernel
def _find_active(parameters, gradient, penalties):
    """Parameters that are not zero or want to leave zero."""
    d = parameters.size - 1
    active = empty(d + 1, np.uint32)
    count = 0
    for j in range(d + 1):
        if parameters[j] != _ZERO or abs(gradient[j]) > (penalties.alpha if j < d else penalties.bias_alpha):
            active[count] = j
            count += 1
    return active[:count]


@fast_kernel
def _minimise_quadratic(hessian, slopes, weights, alphas, steps):
    """Coordinate descent on slopes.s + s.H.s / 2 + alphas.|weights + s|; `slopes` follow the steps."""
    a = weights.size
    taken = 0.0
    for _ in range(SWEEPS):
        fell = 0.0
        for q in range(a):
            line = hessian[q]
            h, old = line[q], weights[q] + steps[q]
            goal = old - slopes[q] / h
            room = alphas[q] / h
            new = maximum(goal - room, 0.0) + minimum(goal + room, 0.0)
            step = new - old
            if step != 0.0:
                fell -= step * (slopes[q] + 0.5 * h * step) + alphas[q] * (abs(new) - abs(old))
                steps[q] += step
                for r in range(a):
                    slopes[r] += step * line[r]
        taken += fell
        if fell <= SETTLED * taken:
            break


@fast_kernel
def _penalty(parameters, penalties):
    total = 0.0
    d = parameters.size - 1
    for j in range(d):
        total += np.float64(abs(parameters[j]))
    return penalties.alpha * total + penalties.bias_alpha * np.float64(abs(parameters[d]))


@fast_kernel
def _ridge_penalty(weights, ridge, gradient):
    """Return the L2 penalty; its slopes are added to the gradient."""
    total = 0.0
    for j in range(weights.size):
        total += np.float64(weights[j]) * np.float64(weights[j])
        gradient[j] += ridge * weights[j]
    return 0.5 * ridge * total


@kernel
def evaluate(data, penalties, parameters, gradient, curvatures):
    """Fill gradient and curvatures; returns the objective. The L1 penalty is not in the gradient."""
    value = _loss(data, parameters, gradient, curvatures)
    value += _penalty(parameters, penalties)
    if penalties.ridge > 0.0:
        value += _ridge_penalty(parameters[:-1], penalties.ridge, gradient)
    return value


@kernel
def newton_step(data, penalties, parameters, gradient, curvatures, objective, iteration):
    """One iteration; returns the new objective, and the decrease predicted by the slope, which is twice the distance
    to the minimum of the quadratic. Leaves the parameters unchanged if no step decreases the objective."""
    active = _find_active(parameters, gradient, penalties)
    if active.size == 0:
        return objective, 0.0
    hessian = _hessian(data.X, data.rows, curvatures, active, next_random(next_random(np.uint64(iteration))))
    own, slopes, alphas = (
        np.empty(active.size),
        np.empty(active.size),
        np.full(active.size, np.float64(penalties.alpha)),
    )
    for q in range(active.size):
        own[q], slopes[q] = parameters[active[q]], gradient[active[q]]
        if active[q] == parameters.size - 1:
            alphas[q] = penalties.bias_alpha
        else:
            hessian[q, q] += penalties.ridge
    first = slopes.copy()
    steps = np.zeros(active.size)
    _minimise_quadratic(hessian, slopes, own, alphas, steps)
    promised = 0.0
    for q in range(active.size):
        promised -= first[q] * steps[q] + alphas[q] * (abs(own[q] + steps[q]) - abs(own[q]))
    trial, trial_gradient = parameters.copy(), np.empty_like(gradient)
    trial_curvatures = np.empty_like(curvatures)
    share = 1.0
    for _ in range(HALVINGS):
        for q in range(active.size):
            trial[active[q]] = np.float32(own[q] + share * steps[q])
        value = evaluate(data, penalties, trial, trial_gradient, trial_curvatures)
        if value <= objective - SUFFICIENT * share * promised:
            copy_into(parameters, trial, parameters.size)
            copy_into(gradient, trial_gradient, gradient.size)
            copy_into(curvatures, trial_curvatures, curvatures.size)
            return value, promised
        share *= 0.5
    return objective, 0.0
