"""The solver of LabelTree: dual coordinate descent for sixteen siblings at a time.

Hsieh et al., "A dual coordinate descent method for large-scale linear SVM", 2008, for the squared hinge and, in the same
form, for the logistic loss. The order of the rows changes with every pass: in a fixed order it does not converge. A row
whose dual variables hardly changed is skipped for some passes, and training ends when hardly any row changes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from treemax.kernels import vector
from treemax.kernels.arithmetic import next_random, stride
from treemax.kernels.intrinsics import empty, minimum
from treemax.kernels.jit import (
    bare_fast_inline_kernel,
    bare_fast_kernel,
    bare_inline_kernel,
    bare_kernel,
    fast_inline_kernel,
    kernel,
)

SQUARED_HINGE, LOGISTIC = 0, 1
LEAST_GAP = np.float32(1e-3)  # between a logistic dual variable and its target, in units of the cost
_ONE = np.float32(1.0)
_WIDTH = np.uint64(vector.WIDTH)
_RESTS = 3  # passes until a row that hardly changed is visited again
_DONE = np.float32(0.02)  # training ends when at most this share of the rows still changes
_NEWTON_STEPS = 2  # of a logistic dual variable at each visit
_AHEAD = np.uint64(4)  # prefetch distance in rows
_FITS = 1 << 17  # weights that fit in the nearest caches, where prefetching does not pay


class Solver(NamedTuple):
    """The loss, and when its minimisation ends."""

    loss: int
    cost: np.float32
    small: np.float32  # smaller changes of a dual variable (less if the cost is far from one) are ignored; 0: none


class Visits(NamedTuple):
    """The start and the stride of each pass over the rows."""

    starts: np.ndarray
    steps: np.ndarray


class Block(NamedTuple):
    """Sixteen siblings in training. `costs` is empty, or has the cost of each row, or that of each row for each sibling:
    in the last case, and for the logistic loss, `inverse` has the squared lengths of the rows instead of the steps that they
    allow."""

    positive: np.ndarray  # bits of the positive siblings of each row
    valid: np.unsignedinteger[Any]  # bits of the siblings that exist
    inverse: np.ndarray
    costs: np.ndarray
    weights: np.ndarray  # by feature; the biases are last
    alphas: np.ndarray  # dual variables, by row
    resting: np.ndarray  # the next pass that visits a row


@fast_inline_kernel
def _hinge_step(alpha, sign, score, inverse, diagonal):
    """The best dual variable of a row for the squared hinge, all else given (Hsieh et al., Algorithm 1)."""
    gradient = vector.multiply_add(alpha, diagonal, vector.multiply_add(sign, score, vector.splat(-_ONE)))
    moved = vector.subtract(alpha, vector.multiply(gradient, inverse))
    return vector.maximum(moved, vector.splat(np.float32(0.0)))


@fast_inline_kernel
def _logistic_step(alpha, sign, score, squares, cost):
    """Return nearly the best dual variable of a row for the logistic loss, all else given.

    The best is cost * P(wrong), where P(wrong) is that after the step; it is between `alpha` and cost * P(wrong) before.
    Newton's method (Yu, Huang and Lin, "Dual coordinate descent methods for logistic regression and maximum entropy models",
    2011) begins where P(wrong) would be one half, and stays between these bounds. `squares` is the squared length of the row.
    `alpha` does not change if the bounds are closer than LEAST_GAP.
    """
    margin = vector.multiply(sign, score)
    wrong = vector.multiply(_probability_wrong(margin), cost)
    gap = vector.subtract(wrong, alpha)
    lower, upper = _minimum(alpha, wrong), vector.maximum(alpha, wrong)
    moved = vector.subtract(alpha, vector.divide(margin, squares))
    for _ in range(_NEWTON_STEPS):
        moved = vector.maximum(lower, _minimum(moved, upper))
        wrong = _probability_wrong(vector.multiply_add(squares, vector.subtract(moved, alpha), margin))
        excess = vector.subtract(moved, vector.multiply(wrong, cost))
        above = vector.bits_above(excess, vector.splat(np.float32(0.0)))
        lower, upper = vector.choose(above, lower, moved), vector.choose(above, moved, upper)
        curve = vector.multiply(vector.multiply(wrong, vector.subtract(vector.splat(_ONE), wrong)), squares)
        curve = vector.multiply_add(curve, cost, vector.splat(_ONE))
        moved = vector.subtract(moved, vector.divide(excess, curve))
    moved = vector.maximum(lower, _minimum(moved, upper))
    size = vector.maximum(gap, vector.subtract(vector.splat(np.float32(0.0)), gap))
    matters = vector.bits_above(size, vector.multiply(cost, vector.splat(LEAST_GAP)))
    return vector.choose(matters, moved, alpha)


@fast_inline_kernel
def _probability_wrong(margin):
    """1 / (1 + exp(margin))."""
    one = vector.splat(_ONE)
    return vector.divide(one, vector.add(one, vector.exponential(margin)))


@fast_inline_kernel
def _minimum(a, b):
    """The smaller of two numbers, for each sibling."""
    return vector.choose(vector.bits_above(a, b), b, a)


@fast_inline_kernel
def _weighted_step(alpha, sign, score, squares, cost, loss):
    """The step of a row of this squared length, with a cost for each sibling."""
    if loss == LOGISTIC:
        return _logistic_step(alpha, sign, score, squares, cost)
    one, diagonal = vector.splat(_ONE), vector.divide(vector.splat(np.float32(0.5)), cost)
    return _hinge_step(alpha, sign, score, vector.divide(one, vector.add(squares, diagonal)), diagonal)


@bare_fast_inline_kernel
def _scores(rows, first, last, weights, bias):
    """Return the scores of sixteen siblings for a row; two sums hide the latency of the additions."""
    indices, values = rows.indices, rows.values
    even, odd = vector.load(weights, bias), vector.splat(np.float32(0.0))
    p = first
    while p + np.uint64(1) < last:
        at, next_at = np.uint64(indices[p]) * _WIDTH, np.uint64(indices[p + np.uint64(1)]) * _WIDTH
        even = vector.multiply_add(vector.splat(values[p]), vector.load(weights, at), even)
        odd = vector.multiply_add(vector.splat(values[p + np.uint64(1)]), vector.load(weights, next_at), odd)
        p += np.uint64(2)
    if p < last:
        at = np.uint64(indices[p]) * _WIDTH
        even = vector.multiply_add(vector.splat(values[p]), vector.load(weights, at), even)
    return vector.add(even, odd)


@bare_fast_inline_kernel
def _prefetch(near, far, rows, weights, alphas):
    """Prefetch the weights of the next row, and the entries of a later one."""
    for p in range(np.uint64(rows.indptr[near]), np.uint64(rows.indptr[near + np.uint64(1)])):
        vector.prefetch(weights, np.uint64(rows.indices[p]) * _WIDTH)
    first = np.uint64(rows.indptr[far])
    for line in range(first, first + np.uint64(16), np.uint64(15)):
        vector.prefetch(rows.indices, line)
        vector.prefetch(rows.values, line)
    vector.prefetch(alphas, far * _WIDTH)


@bare_fast_kernel
def one_pass(number, start, step, rows, block, active, loss, constant, small):
    """One pass of dual coordinate descent over the rows that are not skipped, for sixteen siblings; returns the number
    of rows that changed by more than `small`, which is relative to the cost if the block has costs. `active` is scratch
    for the numbers of the rows."""
    positive, valid, inverse, costs, weights, alphas, resting = block
    indptr, indices, values = rows
    bias = np.uint64(weights.size) - _WIDTH
    one, zero, minus = vector.splat(_ONE), vector.splat(np.float32(0.0)), vector.splat(-_ONE)
    by_pair = costs.size > inverse.size
    moving, rests = 0, _RESTS if small > 0 else 0
    n_active = _find_active(number, start, step, resting, active)
    for a in range(n_active):
        if weights.size > _FITS:
            near, far = minimum(a + np.uint64(1), n_active - np.uint64(1)), minimum(a + _AHEAD, n_active - np.uint64(1))
            _prefetch(np.uint64(active[near]), np.uint64(active[far]), rows, weights, alphas)
        i = np.uint64(active[a])
        first, last = np.uint64(indptr[i]), np.uint64(indptr[i + np.uint64(1)])
        score = _scores(rows, first, last, weights, bias)
        sign = vector.choose(positive[i], one, minus)
        alpha, bound = vector.load(alphas, i * _WIDTH), vector.splat(small)
        if by_pair:
            cost = vector.load(costs, i * _WIDTH)
            moved = _weighted_step(alpha, sign, score, vector.splat(inverse[i]), cost, loss)
            bound = vector.multiply(bound, cost)
        else:
            if costs.size:
                constant = step_constant(loss, costs[i])
                bound = vector.splat(small * costs[i])
            if loss == LOGISTIC:
                moved = _logistic_step(alpha, sign, score, vector.splat(inverse[i]), vector.splat(constant))
            else:
                moved = _hinge_step(alpha, sign, score, vector.splat(inverse[i]), vector.splat(constant))
        moved = vector.choose(valid, moved, alpha)
        change = vector.subtract(moved, alpha)
        still = vector.bits_above(vector.maximum(change, vector.subtract(zero, change)), bound) == 0
        moving += not still
        resting[i] = number + rests * still
        if vector.any_differs(moved, alpha):
            vector.store(alphas, i * _WIDTH, moved)
            change = vector.multiply(change, sign)
            vector.store(weights, bias, vector.add(vector.load(weights, bias), change))
            for p in range(first, last):
                at = np.uint64(indices[p]) * _WIDTH
                w = vector.multiply_add(vector.splat(values[p]), change, vector.load(weights, at))
                vector.store(weights, at, w)
    return moving


@bare_kernel
def _find_active(number, start, step, resting, active):
    """Write the rows that pass `number` visits, in its order; return how many there are."""
    n, n_active = np.uint64(resting.size), np.uint64(0)
    i, step = np.uint64(start), np.uint64(step)
    for _ in range(n):
        active[n_active] = i
        n_active += np.uint64(resting[i] <= number)
        i = i + step if i + step < n else i + step - n
    return n_active


@bare_fast_kernel
def score_held(held, rows, weights, scores):
    """Write the scores of sixteen siblings for the held-out rows."""
    bias = np.uint64(weights.size) - _WIDTH
    for h in range(held.size):
        first, last = np.uint64(rows.indptr[held[h]]), np.uint64(rows.indptr[held[h] + 1])
        vector.store(scores, np.uint64(h) * _WIDTH, _scores(rows, first, last, weights, bias))


@bare_inline_kernel
def step_length(squares, loss, cost):
    """The length of the step that a row of this squared length and cost allows; for the logistic loss the squared length."""
    if loss == LOGISTIC:
        return squares
    return _ONE / (squares + np.float32(0.5) / cost)


@kernel
def visits(n, passes, seed):
    """Return the start and the stride of each pass over n rows."""
    starts, steps = empty(passes, np.int64), empty(passes, np.int64)
    random = next_random(np.uint64(seed))
    for number in range(passes):
        random = next_random(random)
        steps[number] = stride(n, np.int64(random >> np.uint64(33)))
        random = next_random(random)
        starts[number] = np.int64(random >> np.uint64(33)) % n
    return Visits(starts, steps)


@bare_kernel
def step_constant(loss, cost):
    """Return the constant of the update of a loss, which depends on the cost."""
    return cost if loss == LOGISTIC else np.float32(0.5) / cost


@bare_kernel
def least_move(solver, weighted):
    """Return the change of a dual variable that counts as one: smaller if the cost is far from one. If rows are weighted,
    it is relative to their costs."""
    least = solver.small * minimum(solver.cost, _ONE / solver.cost)
    return least / solver.cost if weighted else least


@bare_kernel
def is_settled(moving, n, small):
    """Whether so few of n rows changed that training has converged."""
    return moving <= _DONE * n if small > 0 else moving == 0


@bare_kernel
def run_passes(first, last, visits, rows, block, active, solver):
    """Run passes `first` to `last`, exclusive; fewer on convergence. `active` is scratch, as in `one_pass`."""
    n = block.inverse.size
    constant, least = step_constant(solver.loss, solver.cost), least_move(solver, block.costs.size > 0)
    for number in range(first, last):
        start, step = visits.starts[number], visits.steps[number]
        moving = one_pass(number, start, step, rows, block, active, solver.loss, constant, least)
        if is_settled(moving, n, solver.small):
            return


@bare_kernel
def start_resting(positive, held, join_at, small, resting):
    """Write the first pass that visits each row: of the rows without positive siblings, a third begins with each of the
    first passes, since all of them together teach little more at first."""
    for i in range(resting.size):
        resting[i] = i % _RESTS if positive[i] == 0 and small > 0 else 0
    for h in range(held.size):
        resting[held[h]] = join_at
