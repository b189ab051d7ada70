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

import numpy as np

from treemax.kernels.arithmetic import exp32
from treemax.kernels.intrinsics import empty, maximum, minimum
from treemax.kernels.jit import fast_inline_kernel, fast_kernel, kernel

SWEEPS = 10  # maximum number over the nonzero weights before all features are visited again
ENOUGH = 0.05  # a sweep whose decrease is below this fraction of the tolerance ends the round
TINY = 0.01  # fraction of the tolerance that all skipped steps together may forgo
BIAS_HALVINGS = 8
TOGETHER = 16  # classes whose exact scores are computed together
LARGEST = 1e25  # sums of exponentials beyond this are scaled down
LEAST = np.float32(1e-30)  # lower bound of exponentials: products with denormal numbers are slow

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


@fast_kernel
def _scores(starts, column_rows, column_values, weights, used, bias, scores):
    """Scores of all rows, from the weights that are not zero."""
    for i in range(scores.shape[0]):
        scores[i] = bias
    for j in range(weights.shape[0]):
        if used[j]:
            for c in range(weights.shape[1]):
                w = weights[j, c]
                if w != _ZERO:
                    for p in range(np.uint64(starts[j]), np.uint64(starts[j + 1])):
                        scores[column_rows[p], c] += w * column_values[p]


@fast_kernel
def _refresh(starts, column_rows, column_values, targets, costs, weights, used, bias, exponentials, totals, shares):
    """Exponentials, their sums and the costs divided by them, all from the weights; returns the loss."""
    _scores(starts, column_rows, column_values, weights, used, bias, exponentials)
    k = bias.size
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


@fast_kernel
def _update(
    first, last, c, column_rows, column_values, targets, costs, largest, alpha, ridge, least, weight,
    exponentials, totals, shares,
):  # fmt: skip
    """One step of one weight; returns its new value and the approximate decrease of the objective.

    A step with a decrease below `least` is skipped, unless it ends at zero.
    """
    slope, curvature = 0.0, 0.0
    for p in range(first, last):
        i = np.uint64(column_rows[p])
        x = np.float64(column_values[p])
        pull = np.float64(exponentials[i, c]) / totals[i]
        wrong = pull - (1.0 if targets[i] == c else 0.0)
        slope += costs[i] * x * wrong
        curvature += costs[i] * x * x * pull * (1.0 - pull)
    slope += ridge * np.float64(weight)
    curvature += ridge
    moved = np.float32(_step(slope, curvature, largest, np.float64(weight), alpha))
    step = moved - weight
    fall = 0.5 * abs(slope * step + alpha * (abs(moved) - abs(weight)))
    if step == _ZERO or (fall < least and moved != _ZERO):
        return weight, fall
    for p in range(first, last):
        i = np.uint64(column_rows[p])
        before = exponentials[i, c]
        after = maximum(before * exp32(step * column_values[p]), LEAST)
        exponentials[i, c] = after
        total = totals[i] + (np.float64(after) - np.float64(before))
        totals[i] = total
        shares[i] = np.float32(costs[i] / total)
        if total > LARGEST:
            _rescale(i, exponentials, totals, shares, costs[i])
    return moved, fall


@fast_kernel
def _slopes_of(first, last, column_rows, column_values, targets, costs, exponentials, shares, slopes):
    """The derivatives of the loss along one feature, for all classes."""
    slopes[:] = _ZERO
    k = slopes.size
    for p in range(first, last):
        i = np.uint64(column_rows[p])
        x = column_values[p]
        pull = x * shares[i]
        line = exponentials[i]
        for c in range(k):
            slopes[c] += pull * line[c]
        slopes[targets[i]] -= x * costs[i]


@fast_kernel
def _sweep_all(
    starts, column_rows, column_values, targets, costs, largest, mass, alpha, ridge, least, weights, used, exponentials,
    totals, shares,
):  # fmt: skip
    """A step for every weight that is or becomes nonzero; returns the approximate decrease of the objective."""
    k = weights.shape[1]
    slopes = empty(k, np.float32)
    taken = 0.0
    for j in range(weights.shape[0]):
        if mass[j] <= alpha and not used[j]:
            continue  # at zero a slope cannot be larger than the mass of its feature
        first, last = np.uint64(starts[j]), np.uint64(starts[j + 1])
        w = weights[j]
        _slopes_of(first, last, column_rows, column_values, targets, costs, exponentials, shares, slopes)
        any_used = False
        for c in range(k):
            if abs(slopes[c]) > alpha or (used[j] and w[c] != _ZERO):
                w[c], fell = _update(
                    first, last, c, column_rows, column_values, targets, costs, largest[j], alpha, ridge, least,
                    w[c], exponentials, totals, shares,
                )  # fmt: skip
                taken += fell
                any_used = any_used or w[c] != _ZERO
        used[j] = any_used
    return taken


@fast_kernel
def _sweep_used(
    starts, column_rows, column_values, targets, costs, largest, alpha, ridge, least, weights, features, classes,
    exponentials, totals, shares,
):  # fmt: skip
    """A step for each of the weights listed."""
    taken = 0.0
    for a in range(features.size):
        j, c = features[a], classes[a]
        weights[j, c], fell = _update(
            np.uint64(starts[j]), np.uint64(starts[j + 1]), c, column_rows, column_values, targets, costs,
            largest[j], alpha, ridge, least, weights[j, c], exponentials, totals, shares,
        )  # fmt: skip
        taken += fell
    return taken


@kernel
def _list_used(weights, used):
    """Feature and class of every weight that is not zero."""
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
def _bias_steps(targets, costs, alpha, bias, exponentials, totals, shares, factors):
    """A joint step of all biases; returns the decrease of the objective.

    The Hessian of a softmax is at most twice its diagonal. The objective is checked, which needs only the sums of the
    exponentials.
    """
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
    """For each column, its largest value, and the sum of its values times the costs of their rows."""
    n = starts.size - 1
    largest, mass = np.zeros(n), np.zeros(n)
    for j in range(n):
        for p in range(starts[j], starts[j + 1]):
            x = np.float64(abs(column_values[p]))
            largest[j] = maximum(largest[j], x)
            mass[j] += costs[column_rows[p]] * x
    return largest, mass


@fast_kernel
def exact_loss(starts, column_rows, column_values, targets, costs, reference, weights, used, bias):
    """Return the loss with scores in double precision, a few classes at a time."""
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
                            scores[column_rows[p], c] += w * np.float64(column_values[p])
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
def penalty(weights, used, bias, alpha, bias_alpha, ridge):
    total, squares, total_bias = 0.0, 0.0, 0.0
    for j in range(weights.shape[0]):
        if used[j]:
            for c in range(weights.shape[1]):
                w = np.float64(weights[j, c])
                total += abs(w)
                squares += w * w
    for c in range(bias.size):
        total_bias += np.float64(abs(bias[c]))
    return alpha * total + bias_alpha * total_bias + 0.5 * ridge * squares


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
    """The starts of the nonzero weights of each class, and their number."""
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
def one_round(
    starts, column_rows, column_values, targets, costs, largest, mass, alpha, bias_alpha, ridge, tolerance,
    sweeps_over_used, weights, used, bias, exponentials, totals, shares,
):  # fmt: skip
    """One round; returns the objective at its start, its approximate decrease, and the number of sweeps."""
    before = _refresh(
        starts, column_rows, column_values, targets, costs, weights, used, bias, exponentials, totals,
        shares,
    )  # fmt: skip
    before += penalty(weights, used, bias, alpha, bias_alpha, ridge)
    factors = empty(bias.size, np.float32)
    taken = _bias_steps(targets, costs, bias_alpha, bias, exponentials, totals, shares, factors)
    taken += _sweep_all(
        starts, column_rows, column_values, targets, costs, largest, mass, alpha, ridge, 0.0, weights, used,
        exponentials, totals, shares,
    )  # fmt: skip
    features, classes = _list_used(weights, used)
    least = TINY * tolerance * before / maximum(1, features.size)
    sweeps = 1
    for _ in range(sweeps_over_used):
        fell = _bias_steps(targets, costs, bias_alpha, bias, exponentials, totals, shares, factors)
        fell += _sweep_used(
            starts, column_rows, column_values, targets, costs, largest, alpha, ridge, least, weights, features,
            classes, exponentials, totals, shares,
        )  # fmt: skip
        taken += fell
        sweeps += 1
        if fell <= ENOUGH * tolerance * before:
            break
    return before, taken, sweeps
