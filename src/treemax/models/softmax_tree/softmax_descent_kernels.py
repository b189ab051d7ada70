"""Softmax with an L1 and an L2 penalty over sparse rows: coordinate descent, one weight of one class at a time.

Each row keeps the exponentials of its scores and their sum. A new weight of class c for feature j multiplies
the exponential of class c in the rows that have j, and touches nothing else; the biases of all classes
multiply all of them at once. The third derivative along a weight is at most the largest value of its feature
times the second, so that the step g / (h + largest |g| / 2) cannot overshoot the minimum: no line search is needed.
The L2 penalty, half of `ridge` times the squared weights, adds to g and h, and has no third derivative.

A round recomputes the exponentials from the weights, sweeps once over all features, which finds the weights that
leave zero, and then a few times over the nonzero weights.

Columns are those of `kernels.columns.local_columns`, without the last.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from treemax.kernels.arithmetic import copy_into, exp32
from treemax.kernels.intrinsics import empty, maximum, minimum
from treemax.kernels.jit import bare_fast_kernel, fast_inline_kernel, fast_kernel, kernel

SWEEPS = 10  # maximum number over the nonzero weights before all features are visited again
ENOUGH = 0.05  # a sweep whose decrease is below this fraction of the tolerance ends the round
TINY = 0.01  # fraction of the tolerance that all skipped steps together may forgo
BIAS_HALVINGS = 8
TOGETHER = 16  # classes whose exact scores are computed together
LARGEST = 1e25  # sums of exponentials beyond this are scaled down
LEAST = np.float32(1e-30)  # lower bound of exponentials: products with denormal numbers are slow

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


class Columns(NamedTuple):
    """The rows, by column."""

    starts: np.ndarray
    rows: np.ndarray
    values: np.ndarray
    targets: np.ndarray  # of the rows
    costs: np.ndarray
    largest: np.ndarray  # value of each column
    mass: np.ndarray  # sum of the values of each column times the costs of their rows


class Coefficients(NamedTuple):
    """What is learned."""

    weights: np.ndarray  # columns x classes
    used: np.ndarray  # whether a column has a weight that is not zero
    bias: np.ndarray


class Scores(NamedTuple):
    """What is kept for each row."""

    exponentials: np.ndarray  # rows x classes
    totals: np.ndarray  # their sums
    shares: np.ndarray  # costs divided by the sums


@fast_kernel
def _scores(columns, model, scores):
    """Compute scores of all rows, from the weights that are not zero."""
    starts, weights = columns.starts, model.weights
    for i in range(scores.shape[0]):
        copy_into(scores[i], model.bias, model.bias.size)
    for j in range(weights.shape[0]):
        if model.used[j]:
            for c in range(weights.shape[1]):
                w = weights[j, c]
                if w != _ZERO:
                    for p in range(np.uint64(starts[j]), np.uint64(starts[j + 1])):
                        scores[columns.rows[p], c] += w * columns.values[p]


@fast_kernel
def _refresh(columns, model, scores):
    """Compute exponentials, their sums and the costs divided by them, all from the weights; return the loss."""
    exponentials, totals, shares = scores
    targets, costs = columns.targets, columns.costs
    _scores(columns, model, exponentials)
    k = model.bias.size
    loss = 0.0
    for i in range(costs.size):
        line = exponentials[i]
        top = line[0]
        for c in range(k):
            top = maximum(top, line[c])
        own = line[targets[i]]
        total = _ZERO
        for c in range(k):
            e = maximum(exp32(line[c] - top), LEAST)
            line[c] = e
            total += e
        totals[i] = np.float64(total)
        shares[i] = np.float32(costs[i] / totals[i])
        loss += costs[i] * (math.log(totals[i]) + np.float64(top) - np.float64(own))
    return loss


@fast_inline_kernel
def _step(slope, curvature, largest, weight, alpha):
    """Return the new value of a weight: towards the minimum of loss plus penalty, not beyond it, nor beyond zero."""
    if weight > 0.0:
        g = slope + alpha
    elif weight < 0.0:
        g = slope - alpha
    else:
        g = maximum(slope - alpha, 0.0) + minimum(slope + alpha, 0.0)
    if g == 0.0:
        return weight
    moved = weight - g / (curvature + 0.5 * largest * abs(g) + 1e-12)
    if weight * moved < 0.0:
        return 0.0
    return moved


@fast_kernel
def _rescale(i, exponentials, totals, shares, cost):
    """Bring a row whose exponentials have grown back to a sum of one."""
    scale = 1.0 / totals[i]
    line = exponentials[i]
    for c in range(line.size):
        line[c] = maximum(line[c] * np.float32(scale), LEAST)
    totals[i] = 1.0
    shares[i] = np.float32(cost)


@bare_fast_kernel
def _update(j, c, columns, penalties, least, weights, scores):
    """Make one step of one weight, in place; return the approximate decrease of the objective.

    A step with a decrease below `least` is skipped, unless it ends at zero.
    """
    exponentials, totals, shares = scores
    first, last, weight = np.uint64(columns.starts[j]), np.uint64(columns.starts[j + 1]), weights[j, c]
    slope, curvature = 0.0, 0.0
    for p in range(first, last):
        i = np.uint64(columns.rows[p])
        x = np.float64(columns.values[p])
        pull = np.float64(exponentials[i, c]) / totals[i]
        wrong = pull - (1.0 if columns.targets[i] == c else 0.0)
        slope += columns.costs[i] * x * wrong
        curvature += columns.costs[i] * x * x * pull * (1.0 - pull)
    slope += penalties.ridge * np.float64(weight)
    curvature += penalties.ridge
    moved = np.float32(_step(slope, curvature, columns.largest[j], np.float64(weight), penalties.alpha))
    step = moved - weight
    fall = 0.5 * abs(slope * step + penalties.alpha * (abs(moved) - abs(weight)))
    if step == _ZERO or (fall < least and moved != _ZERO):
        return fall
    for p in range(first, last):
        i = np.uint64(columns.rows[p])
        before = exponentials[i, c]
        after = maximum(before * exp32(step * columns.values[p]), LEAST)
        exponentials[i, c] = after
        total = totals[i] + (np.float64(after) - np.float64(before))
        totals[i] = total
        shares[i] = np.float32(columns.costs[i] / total)
        if total > LARGEST:
            _rescale(i, exponentials, totals, shares, columns.costs[i])
    weights[j, c] = moved
    return fall


@bare_fast_kernel
def _slopes_of(j, columns, scores, slopes):
    """Compute the derivatives of the loss along one feature, for all classes."""
    slopes[:] = _ZERO
    k = slopes.size
    for p in range(np.uint64(columns.starts[j]), np.uint64(columns.starts[j + 1])):
        i = np.uint64(columns.rows[p])
        x = columns.values[p]
        pull = x * scores.shares[i]
        line = scores.exponentials[i]
        for c in range(k):
            slopes[c] += pull * line[c]
        slopes[columns.targets[i]] -= x * columns.costs[i]


@fast_kernel
def _sweep_all(columns, penalties, model, scores):
    """Make a step for every weight that is or becomes nonzero; return the approximate decrease of the objective."""
    weights, used, alpha = model.weights, model.used, penalties.alpha
    k = weights.shape[1]
    slopes = empty(k, np.float32)
    taken = 0.0
    for j in range(np.uint64(weights.shape[0])):
        if columns.mass[j] <= alpha and not used[j]:
            continue  # at zero a slope cannot be larger than the mass of its feature
        _slopes_of(j, columns, scores, slopes)
        any_used = False
        for c in range(np.uint64(k)):
            if abs(slopes[c]) > alpha or (used[j] and weights[j, c] != _ZERO):
                taken += _update(j, c, columns, penalties, 0.0, weights, scores)
                any_used = any_used or weights[j, c] != _ZERO
        used[j] = any_used
    return taken


@fast_kernel
def _sweep_used(columns, penalties, least, weights, features, classes, scores):
    """Make a step for each of the weights listed; return the approximate decrease of the objective."""
    taken = 0.0
    for a in range(features.size):
        taken += _update(np.uint64(features[a]), np.uint64(classes[a]), columns, penalties, least, weights, scores)
    return taken


@kernel
def _list_used(weights, used):
    """Return feature and class of every weight that is not zero."""
    count = 0
    for j in range(weights.shape[0]):
        if used[j]:
            for c in range(weights.shape[1]):
                count += weights[j, c] != _ZERO
    features, classes = empty(count, np.uint32), empty(count, np.uint32)
    at = 0
    for j in range(weights.shape[0]):
        if used[j]:
            for c in range(weights.shape[1]):
                if weights[j, c] != _ZERO:
                    features[at], classes[at] = j, c
                    at += 1
    return features, classes


@fast_kernel
def _bias_steps(columns, alpha, bias, scores, factors):
    """Make a joint step of all biases; return the decrease of the objective.

    The Hessian of a softmax is at most twice its diagonal. The objective is checked, which needs only the sums of the
    exponentials.
    """
    exponentials, totals, shares = scores
    targets, costs = columns.targets, columns.costs
    k, n = bias.size, costs.size
    slopes, curvatures, steps = np.zeros(k), np.zeros(k), np.empty(k)
    for i in range(n):
        share, line = shares[i], exponentials[i]
        scale = np.float32(1.0 / totals[i])
        for c in range(k):
            slopes[c] += share * line[c]
            curvatures[c] += share * line[c] * (_ONE - scale * line[c])
        slopes[targets[i]] -= costs[i]
    for c in range(k):
        steps[c] = _step(slopes[c], 2.0 * curvatures[c], 1.0, np.float64(bias[c]), alpha) - bias[c]
    for _ in range(BIAS_HALVINGS):
        change = 0.0
        for c in range(k):
            factors[c] = exp32(np.float32(steps[c]))
            change += alpha * (abs(bias[c] + steps[c]) - abs(bias[c]))
        for i in range(n):
            line = exponentials[i]
            total = _ZERO
            for c in range(k):
                total += line[c] * factors[c]
            change += costs[i] * math.log(np.float64(total) / totals[i])
            change -= costs[i] * steps[targets[i]]
        if change <= 0.0:
            _move_biases(steps, factors, costs, bias, exponentials, totals, shares)
            return -change
        steps *= 0.5
    return 0.0


@fast_kernel
def _move_biases(steps, factors, costs, bias, exponentials, totals, shares):
    for c in range(bias.size):
        bias[c] += np.float32(steps[c])
    for i in range(costs.size):
        line = exponentials[i]
        total = _ZERO
        for c in range(bias.size):
            line[c] = maximum(line[c] * factors[c], LEAST)
            total += line[c]
        totals[i] = np.float64(total)
        shares[i] = np.float32(costs[i] / totals[i])


@kernel
def column_facts(starts, column_rows, column_values, costs):
    """Return the largest value of each column, and the sum of its values times the costs of their rows."""
    n = starts.size - 1
    largest, mass = np.zeros(n), np.zeros(n)
    for j in range(n):
        for p in range(starts[j], starts[j + 1]):
            x = np.float64(abs(column_values[p]))
            largest[j] = maximum(largest[j], x)
            mass[j] += costs[column_rows[p]] * x
    return largest, mass


@fast_kernel
def exact_loss(columns, reference, model):
    """Return the loss with scores in double precision, a few classes at a time."""
    starts, targets, costs = columns.starts, columns.targets, columns.costs
    weights, used, bias = model
    n, k = costs.size, bias.size
    scores, own, totals = np.empty((n, TOGETHER)), np.zeros(n), np.full(n, 1.0 if reference else 0.0)
    tops = np.full(n, 0.0 if reference else -1e300)
    for first in range(0, k, TOGETHER):
        count = minimum(TOGETHER, k - first)
        for i in range(n):
            for c in range(count):
                scores[i, c] = np.float64(bias[first + c])
        for j in range(weights.shape[0]):
            if used[j]:
                for c in range(count):
                    w = np.float64(weights[j, first + c])
                    if w != 0.0:
                        for p in range(np.uint64(starts[j]), np.uint64(starts[j + 1])):
                            scores[columns.rows[p], c] += w * np.float64(columns.values[p])
        for i in range(n):
            line, top = scores[i], tops[i]
            for c in range(count):
                top = maximum(top, line[c])
            if first <= targets[i] < first + count:
                own[i] = line[targets[i] - first]
            total = 0.0
            for c in range(count):
                total += np.float64(exp32(np.float32(line[c] - top)))
            if top > tops[i]:
                total += totals[i] * np.float64(exp32(np.float32(maximum(tops[i] - top, -1e4))))
                tops[i] = top
            else:
                total += totals[i]
            totals[i] = total
    loss = 0.0
    for i in range(n):
        loss += costs[i] * (math.log(totals[i]) + tops[i] - own[i])
    return loss


@fast_kernel
def penalty(model, penalties):
    weights, used, bias = model
    total, squares, total_bias = 0.0, 0.0, 0.0
    for j in range(weights.shape[0]):
        if used[j]:
            for c in range(weights.shape[1]):
                w = np.float64(weights[j, c])
                total += abs(w)
                squares += w * w
    for c in range(bias.size):
        total_bias += np.float64(abs(bias[c]))
    return penalties.alpha * total + penalties.bias_alpha * total_bias + 0.5 * penalties.ridge * squares


@kernel
def local_weights(indptr, indices, values, features, local_of, weights, used, elsewhere):
    """Enter the weights of a CSR matrix for the features that occur; the others go to `elsewhere`, whose number is returned.

    `local_of` is zeroed scratch over all features, and is left zeroed.
    """
    for j in range(features.size):
        local_of[features[j]] = j + 1
    n_elsewhere = np.int64(0)
    for c in range(indptr.size - 1):
        for p in range(indptr[c], indptr[c + 1]):
            j = local_of[indices[p]]
            if j == 0:
                elsewhere[n_elsewhere] = values[p]
                n_elsewhere += 1
            elif values[p] != _ZERO:
                weights[j - 1, c] = values[p]
                used[j - 1] = True
    for j in range(features.size):
        local_of[features[j]] = 0
    return n_elsewhere


@kernel
def class_sizes(weights, columns, indptr):
    """Compute the starts of the nonzero weights of each class, and their number."""
    indptr[:] = 0
    for a in range(columns.size):
        line = weights[columns[a]]
        for c in range(line.size):
            indptr[c + 1] += line[c] != _ZERO
    for c in range(indptr.size - 1):
        indptr[c + 1] += indptr[c]


@kernel
def by_class(weights, columns, features, indptr, indices, values):
    """Enter the nonzero weights of the columns, in their order, as a CSR matrix over all features."""
    at = indptr.copy()
    for a in range(columns.size):
        line = weights[columns[a]]
        for c in range(line.size):
            if line[c] != _ZERO:
                indices[at[c]], values[at[c]] = features[columns[a]], line[c]
                at[c] += 1


@kernel
def one_round(columns, penalties, tolerance, sweeps_over_used, model, scores):
    """Do one round; return the objective at its start, its approximate decrease, and the number of sweeps."""
    before = _refresh(columns, model, scores) + penalty(model, penalties)
    factors = empty(model.bias.size, np.float32)
    taken = _bias_steps(columns, penalties.bias_alpha, model.bias, scores, factors)
    taken += _sweep_all(columns, penalties, model, scores)
    features, classes = _list_used(model.weights, model.used)
    least = TINY * tolerance * before / maximum(1, features.size)
    sweeps = 1
    for _ in range(sweeps_over_used):
        fell = _bias_steps(columns, penalties.bias_alpha, model.bias, scores, factors)
        fell += _sweep_used(columns, penalties, least, model.weights, features, classes, scores)
        taken += fell
        sweeps += 1
        if fell <= ENOUGH * tolerance * before:
            break
    return before, taken, sweeps
