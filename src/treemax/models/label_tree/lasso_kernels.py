"""Joint training of the children of one node with an L1 penalty, sixteen at a time.

Primal coordinate descent with Newton steps, feature by feature, on C times the loss plus the absolute values of the
weights. This is the problem of LIBLINEAR (Yuan et al., "A comparison of optimization methods and software for
large-scale L1-regularized linear classification", 2010); as there, the bias is the penalised weight of a feature that
is always one. The scores of all rows are updated, so that a step reads only one column of the node's matrix. A feature
with zero weight and a small gradient is skipped for a few passes.
"""

from __future__ import annotations

import numpy as np

from treemax.kernels import vector
from treemax.kernels.arithmetic import next_random, stride
from treemax.kernels.columns import local_columns
from treemax.kernels.intrinsics import empty, maximum, minimum, zeros
from treemax.kernels.jit import fast_inline_kernel, fast_kernel, kernel
from treemax.models.label_tree.solver_kernels import LOGISTIC

SETTLED = 1e-2  # sum of the violations of the optimality conditions of a sibling at which training ends
SUFFICIENT = np.float32(0.01)  # share of the predicted decrease that a step must reach (Armijo's rule)
HALVINGS = 12
WAKING = 5  # passes after which skipped features are checked again
_ZERO, _ONE = np.float32(0.0), np.float32(1.0)
_WIDTH = np.uint64(vector.WIDTH)


@fast_inline_kernel
def _absolute(a):
    return vector.maximum(a, vector.subtract(vector.splat(_ZERO), a))


@fast_inline_kernel
def _derivatives(first, last, rows, values, costs, positive, scores, loss, out):
    """Write the first and second derivatives of sixteen losses along one feature."""
    one, minus, zero = vector.splat(_ONE), vector.splat(-_ONE), vector.splat(_ZERO)
    slope, curvature = zero, zero
    for p in range(first, last):
        i = np.uint64(rows[p])
        x = values[p]
        pull = vector.splat(costs[i] * x)
        sign = vector.choose(positive[i], one, minus)
        score = vector.load(scores, i * _WIDTH)
        margin = vector.multiply(sign, score)
        if loss == LOGISTIC:
            wrong = vector.divide(one, vector.add(one, vector.exponential(margin)))
            slope = vector.subtract(slope, vector.multiply(pull, vector.multiply(sign, wrong)))
            spread = vector.multiply(wrong, vector.subtract(one, wrong))
            curvature = vector.multiply_add(vector.multiply(pull, vector.splat(x)), spread, curvature)
        else:
            short = vector.subtract(one, margin)
            twice = vector.add(pull, pull)
            active = vector.bits_above(short, zero)
            lack = vector.multiply(sign, vector.maximum(short, zero))
            slope = vector.subtract(slope, vector.multiply(twice, lack))
            grown = vector.multiply_add(twice, vector.splat(x), curvature)
            curvature = vector.choose(active, grown, curvature)
    vector.store(out, np.uint64(0), slope)
    vector.store(out, _WIDTH, curvature)


@fast_inline_kernel
def _violation(weight, slope):
    """Return how far each weight is from its optimum: the smallest subgradient of loss plus penalty."""
    zero, one = vector.splat(_ZERO), vector.splat(_ONE)
    above, below = vector.bits_above(weight, zero), vector.bits_above(zero, weight)
    at_zero = vector.maximum(vector.subtract(_absolute(slope), one), zero)
    if_positive = _absolute(vector.add(slope, one))
    if_negative = _absolute(vector.subtract(slope, one))
    return vector.choose(above, if_positive, vector.choose(below, if_negative, at_zero))


@fast_inline_kernel
def _newton(weight, slope, curvature):
    """Newton's step for a quadratic loss plus the penalty: shrink towards zero, and no further."""
    zero, one = vector.splat(_ZERO), vector.splat(_ONE)
    reach = vector.multiply(curvature, weight)
    up, down = vector.add(slope, one), vector.subtract(slope, one)
    rise = vector.divide(vector.subtract(zero, up), curvature)
    fall = vector.divide(vector.subtract(zero, down), curvature)
    step = vector.choose(vector.bits_above(down, reach), fall, vector.subtract(zero, weight))
    return vector.choose(vector.bits_above(reach, up), rise, step)


@fast_inline_kernel
def _damped(weight, slope, curvature, largest):
    """Return a step that is guaranteed to decrease a logistic loss plus the penalty.

    The third derivative is at most `largest`, the largest value of the feature, times the second, so that
    g / (h + largest |g| / 2) is never beyond the minimum. It stops at zero.
    """
    zero, one = vector.splat(_ZERO), vector.splat(_ONE)
    up, down = vector.add(slope, one), vector.subtract(slope, one)
    above, below = vector.bits_above(weight, zero), vector.bits_above(zero, weight)
    rises = vector.bits_above(zero, up)
    falls = vector.bits_above(down, zero)
    at_zero = vector.choose(rises, up, vector.choose(falls, down, zero))
    g = vector.choose(above, up, vector.choose(below, down, at_zero))
    room = vector.multiply_add(vector.splat(np.float32(0.5) * largest), _absolute(g), curvature)
    moved = vector.subtract(weight, vector.divide(g, room))
    moved = vector.choose(above, vector.maximum(moved, zero), vector.choose(below, vector.minimum(moved, zero), moved))
    return vector.subtract(moved, weight)


@fast_inline_kernel
def _hinge_change(first, last, rows, values, costs, positive, scores, step):
    """By how much a step changes sixteen squared hinges."""
    one, minus, zero = vector.splat(_ONE), vector.splat(-_ONE), vector.splat(_ZERO)
    total = zero
    for p in range(first, last):
        i = np.uint64(rows[p])
        sign = vector.choose(positive[i], one, minus)
        score = vector.load(scores, i * _WIDTH)
        later = vector.multiply_add(vector.splat(values[p]), step, score)
        before = vector.maximum(vector.subtract(one, vector.multiply(sign, score)), zero)
        after = vector.maximum(vector.subtract(one, vector.multiply(sign, later)), zero)
        squares = vector.multiply(vector.subtract(after, before), vector.add(after, before))
        total = vector.multiply_add(vector.splat(costs[i]), squares, total)
    return total


@fast_inline_kernel
def _searched(first, last, rows, values, costs, positive, scores, weight, slope, bound, step):
    """Return the step, halved until the objective decreases sufficiently (Armijo's rule); the loss is not computed where
    a quadratic bound shows the decrease."""
    zero = vector.splat(_ZERO)
    promised = vector.subtract(_absolute(vector.add(weight, step)), _absolute(weight))
    promised = vector.multiply_add(slope, step, promised)  # not above zero
    share = vector.splat(_ONE)
    half_bound = vector.splat(np.float32(0.5) * bound)
    for _ in range(HALVINGS):
        penalty = vector.subtract(_absolute(vector.add(weight, step)), _absolute(weight))
        wanted = vector.multiply(vector.multiply(promised, share), vector.splat(SUFFICIENT))
        least = vector.subtract(penalty, wanted)
        curve = vector.multiply(vector.multiply(step, step), half_bound)
        missed = vector.bits_above(vector.add(least, vector.multiply_add(slope, step, curve)), zero)
        if missed == 0:
            break
        change = _hinge_change(first, last, rows, values, costs, positive, scores, step)
        missed = missed & vector.bits_above(vector.add(least, change), zero)
        if missed == 0:
            break
        half = vector.splat(np.float32(0.5))
        step = vector.choose(missed, vector.multiply(step, half), step)
        share = vector.choose(missed, vector.multiply(share, half), share)
    return step


@kernel
def _sum(numbers):
    total = 0.0
    for number in numbers:
        total += number
    return total


@fast_kernel
def _one_pass(
    start, jump, starts, rows, values, costs, positive, valid, loss, bounds, largest, matters, resting, weights,
    scores, violations, derivatives,
):  # fmt: skip
    """One pass over the features; writes the sum and the maximum of the violations into `violations`."""
    n = np.uint64(starts.size - 1)
    zero = vector.splat(_ZERO)
    total, most = zero, zero
    j = np.uint64(start)
    for _ in range(n):
        if not resting[j]:
            first, last = np.uint64(starts[j]), np.uint64(starts[j + np.uint64(1)])
            _derivatives(first, last, rows, values, costs, positive, scores, loss, derivatives)
            slope = vector.load(derivatives, np.uint64(0))
            curvature = vector.maximum(vector.load(derivatives, _WIDTH), vector.splat(np.float32(1e-6)))
            weight = vector.load(weights, j * _WIDTH)
            violation = vector.choose(valid, _violation(weight, slope), zero)
            total = vector.add(total, violation)
            most = vector.maximum(most, violation)
            if vector.any_differs(violation, zero):
                if loss == LOGISTIC:
                    step = _damped(weight, slope, curvature, largest[j])
                else:
                    step = _newton(weight, slope, curvature)
                    step = _searched(first, last, rows, values, costs, positive, scores, weight, slope, bounds[j], step)
                step = vector.choose(valid, step, zero)
                vector.store(weights, j * _WIDTH, vector.add(weight, step))
                for p in range(first, last):
                    at = np.uint64(rows[p]) * _WIDTH
                    moved = vector.multiply_add(vector.splat(values[p]), step, vector.load(scores, at))
                    vector.store(scores, at, moved)
            elif not vector.any_differs(vector.choose(valid, weight, zero), zero):
                near = vector.bits_above(_absolute(slope), vector.splat(matters))
                resting[j] = (near & valid) == 0
        j += np.uint64(jump)
        if j >= n:
            j -= n
    vector.store(violations, np.uint64(0), total)
    vector.store(violations, _WIDTH, most)


@kernel
def _bounds(starts, rows, values, costs, loss, bounds, largest):
    """Write for each column an upper bound of the second derivative, and its largest value."""
    factor = np.float32(0.25 if loss == LOGISTIC else 2.0)
    for j in range(starts.size - 1):
        squares, top = _ZERO, _ZERO
        for p in range(starts[j], starts[j + 1]):
            squares += costs[rows[p]] * values[p] * values[p]
            top = maximum(top, abs(values[p]))
        bounds[j] = factor * squares
        largest[j] = top


@kernel
def _descend(starts, rows, values, costs, positive, valid, loss, passes, random, bounds, largest, weights, scores):
    """Run passes over the features until convergence, from the given weights."""
    n = starts.size - 1
    _bounds(starts, rows, values, costs, loss, bounds, largest)
    resting = zeros(n, np.bool_)
    n_siblings = 0
    for lane in range(16):
        n_siblings += valid >> np.uint32(lane) & np.uint32(1)
    violations, derivatives = empty(32, np.float32), empty(32, np.float32)
    matters = _ZERO
    for number in range(passes):
        random = next_random(random)
        jump = stride(n, np.int64(random >> np.uint64(33)))
        random = next_random(random)
        start = np.int64(random >> np.uint64(33)) % n
        _one_pass(
            start, jump, starts, rows, values, costs, positive, valid, loss, bounds, largest, matters, resting,
            weights, scores, violations, derivatives,
        )  # fmt: skip
        matters = _ONE - minimum(_ONE, violations[16:].max() / np.float32(costs.size))
        settled = _sum(violations[:16]) <= SETTLED * n_siblings
        if settled and not resting.any():
            break
        if settled or number % WAKING == WAKING - 1:
            resting[:] = False
    return random


@kernel
def train_sparsely(source, rows, siblings, solver, plan, held, local_of):
    """Train the siblings of one node on its rows; weights of pairs are ignored.

    Rows marked in `held` are held out in the first half of the passes. Returns the features, the weights (features by
    children, the biases in the last row) at the end and after the first half, and the scores of the held-out rows after
    the first half.
    """
    child_indptr, children, n_children, row_weights, _ = siblings
    loss, cost, passes = solver.loss, solver.cost, plan.passes
    features, starts, column_rows, column_values = local_columns(
        source.indptr, source.indices, source.values, rows, local_of
    )
    n, n_columns = rows.size, starts.size - 1
    for p in range(starts[n_columns - 1]):  # all but the column of the bias
        column_values[p] /= plan.length
    weights, early = (np.zeros((n_columns, n_children), np.float32), np.zeros((n_columns, n_children), np.float32))
    held_rows = np.flatnonzero(held)
    held_scores = np.zeros((held_rows.size, n_children), np.float32)
    bounds, largest = empty(n_columns, np.float32), empty(n_columns, np.float32)
    costs = empty(n, np.float32)
    for block in range((n_children + 15) // 16):
        low, high = 16 * block, minimum(n_children, 16 * block + 16)
        valid = (np.uint32(1) << np.uint32(high - low)) - np.uint32(1)
        positive = zeros(n, np.uint32)
        for i in range(n):
            own = cost * row_weights[i] if row_weights.size else cost
            costs[i] = _ZERO if held[i] else own
            for q in range(child_indptr[i], child_indptr[i + 1]):
                if low <= children[q] < high:
                    positive[i] |= np.uint32(1) << np.uint32(children[q] - low)
        own, scores = zeros(n_columns * 16, np.float32), zeros(n * 16, np.float32)
        random = next_random(np.uint64(plan.seed))
        first_passes = maximum(1, passes // 2) if held_rows.size else 0
        random = _descend(
            starts, column_rows, column_values, costs, positive, valid, loss, first_passes, random, bounds, largest,
            own, scores,
        )  # fmt: skip
        for h in range(held_rows.size):
            held_scores[h, low:high] = scores[held_rows[h] * 16 : held_rows[h] * 16 + high - low]
        for j in range(n_columns):
            early[j, low:high] = own[j * 16 : j * 16 + high - low]
        for i in range(n):
            costs[i] = cost * row_weights[i] if row_weights.size else cost
        _descend(
            starts, column_rows, column_values, costs, positive, valid, loss, passes - first_passes, random, bounds,
            largest, own, scores,
        )  # fmt: skip
        for j in range(n_columns):
            weights[j, low:high] = own[j * 16 : j * 16 + high - low]
    return features, weights, early, held_scores
