"""All children of one node trained together: they share their rows, and one pass serves sixteen at a time.

Weights stand feature by feature, the siblings of a feature side by side, over the features that occur in
the node's rows only: the local matrix is small enough for a cache, and a row's scores for sixteen siblings
are one vector. Dual coordinate descent (Hsieh et al., "A dual coordinate descent method for large-scale
linear SVM", 2008) for the squared hinge and, in the same shape, for the logistic loss. The rows are visited
in a new order every pass: in one and the same order it does not converge.
"""

from __future__ import annotations

import numpy as np

from treemax.kernels import vector
from treemax.kernels.arithmetic import exp32
from treemax.kernels.jit import fast_inline_kernel, fast_kernel, kernel

SQUARED_HINGE, LOGISTIC = 0, 1
BINS, HISTOGRAM_REACH = 512, 8  # of the scores of rows held out
LEAST_GAP = np.float32(1e-3)  # between a logistic dual variable and where it should be, in units of the cost
_ONE = np.float32(1.0)


@kernel
def _local_rows(indptr, indices, rows, local_of, local_indptr, local_indices, features):
    """Number the features of these rows 0, 1, 2, ... by first appearance; `local_of` is left as it was."""
    n_local = np.uint32(0)
    at = 0
    for i in range(rows.size):
        row = rows[i]
        for p in range(indptr[row], indptr[row + 1]):
            f = indices[p]
            if local_of[f] == 0:
                features[n_local] = f
                n_local += np.uint32(1)
                local_of[f] = n_local
            local_indices[at] = local_of[f] - np.uint32(1)
            at += 1
        local_indptr[i + 1] = at
    for j in range(n_local):
        local_of[features[j]] = 0
    return n_local


@kernel
def _aligned(n):
    """n zeros that begin at a cache line: loads that straddle two lines cost a quarter of the time."""
    room = np.zeros(n + 16, np.float32)
    skip = (64 - room.ctypes.data % 64) % 64 // 4
    return room[skip : skip + n]


@kernel
def _stride(n, random):
    """A step through 0..n-1 that visits every number once."""
    step = random % n if n > 1 else 1
    while True:
        a, b = n, step
        while b:
            a, b = b, a % b
        if a == 1:
            return step
        step = (step + 1) % n


@fast_inline_kernel
def _hinge_step(alpha, sign, score, inverse, diagonal):
    """The best dual variable of a row for the squared hinge, all else given (Hsieh et al., Algorithm 1)."""
    gradient = vector.multiply_add(alpha, diagonal, vector.multiply_add(sign, score, vector.splat(-_ONE)))
    moved = vector.subtract(alpha, vector.multiply(gradient, inverse))
    return vector.maximum(moved, vector.splat(np.float32(0.0)))


@fast_inline_kernel
def _logistic_step(alpha, sign, score, inverse, cost):
    """A step of the dual variable towards cost * P(wrong), short enough never to do harm (Shalev-Shwartz and
    Zhang, "Stochastic dual coordinate ascent", 2013); where the way is too short to matter it stays."""
    one = vector.splat(_ONE)
    wrong = vector.divide(one, vector.add(one, vector.exponential(vector.multiply(sign, score))))
    gap = vector.subtract(vector.multiply(wrong, cost), alpha)
    size = vector.maximum(gap, vector.subtract(vector.splat(np.float32(0.0)), gap))
    matters = vector.bits_above(size, vector.multiply(cost, vector.splat(LEAST_GAP)))
    return vector.choose(matters, vector.multiply_add(gap, inverse, alpha), alpha)


@fast_kernel
def _one_pass(
    start, step, without_held, held, indptr, indices, values, positive, inverse, valid, weights, alphas, blocks,
    loss, constant,
):  # fmt: skip
    """One pass of dual coordinate descent over the rows and all siblings; returns the number of updates."""
    n = np.uint64(held.size)
    width = np.uint64(16 * blocks)
    bias = np.uint64(weights.size) - width
    one = vector.splat(_ONE)
    minus = vector.splat(-_ONE)
    constants = vector.splat(constant)
    updates = 0
    i = np.uint64(start)
    for _ in range(n):
        first, last = np.uint64(indptr[i]), np.uint64(indptr[i + np.uint64(1)])
        scale = vector.splat(inverse[i])
        for b in range(np.uint64(0 if without_held and held[i] else blocks)):
            lane = b * np.uint64(16)
            score = vector.load(weights, bias + lane)
            for p in range(first, last):
                at = np.uint64(indices[p]) * width + lane
                score = vector.multiply_add(vector.splat(values[p]), vector.load(weights, at), score)
            sign = vector.choose(positive[i * np.uint64(blocks) + b], one, minus)
            alpha = vector.load(alphas, i * width + lane)
            if loss == LOGISTIC:
                moved = _logistic_step(alpha, sign, score, scale, constants)
            else:
                moved = _hinge_step(alpha, sign, score, scale, constants)
            moved = vector.choose(valid[b], moved, alpha)
            if vector.any_differs(moved, alpha):
                updates += 1
                vector.store(alphas, i * width + lane, moved)
                change = vector.multiply(vector.subtract(moved, alpha), sign)
                vector.store(weights, bias + lane, vector.add(vector.load(weights, bias + lane), change))
                for p in range(first, last):
                    at = np.uint64(indices[p]) * width + lane
                    w = vector.multiply_add(vector.splat(values[p]), change, vector.load(weights, at))
                    vector.store(weights, at, w)
        i += np.uint64(step)
        if i >= n:
            i -= n
    return updates


@fast_kernel
def _calibrate(
    held,
    indptr,
    indices,
    values,
    child_indptr,
    children,
    n_children,
    weights,
    blocks,
    slopes,
    likelihood,
    histogram,
):
    """What the rows held out say of the scores: the log-likelihood of a softmax over the siblings at each of
    the slopes, and how often a child with a given score is right (row 1) or wrong (row 0)."""
    width = 16 * blocks
    bias = weights.size - width
    scores = np.empty(n_children, np.float32)
    for i in range(held.size):
        if not held[i]:
            continue
        for c in range(n_children):
            scores[c] = weights[bias + c]
        for p in range(indptr[i], indptr[i + 1]):
            for c in range(n_children):
                scores[c] += values[p] * weights[indices[p] * width + c]
        for c in range(n_children):
            histogram[0, _bin(scores[c])] += 1
        for q in range(child_indptr[i], child_indptr[i + 1]):
            at = _bin(scores[children[q]])
            histogram[0, at] -= 1
            histogram[1, at] += 1
        if child_indptr[i + 1] - child_indptr[i] != 1:
            continue
        top = scores[0]
        for c in range(n_children):
            top = max(top, scores[c])
        for g in range(slopes.size):
            total = np.float32(0.0)
            for c in range(n_children):
                total += exp32(slopes[g] * (scores[c] - top))
            likelihood[g] += slopes[g] * (scores[children[child_indptr[i]]] - top) - np.log(total)


@fast_inline_kernel
def _bin(score):
    """The bin of a score: BINS of them between -HISTOGRAM_REACH and HISTOGRAM_REACH."""
    place = (score + np.float32(HISTOGRAM_REACH)) * np.float32(BINS / (2 * HISTOGRAM_REACH))
    return np.int64(min(max(place, np.float32(0.0)), np.float32(BINS - 1)))


@kernel
def _next(random):
    return random * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)


@kernel
def train_siblings(
    indptr, indices, values, rows, child_indptr, children, n_children,
    loss, cost, passes, held_share, seed, least, slopes, likelihood, histogram, local_of,
):  # fmt: skip
    """Train the siblings of one node on its rows; child_indptr and children say which of them each row has.

    About one row in `held_share` (none if 0) takes no part until the scores of those rows have been entered
    into `likelihood` and `histogram`, then joins for the last passes. `local_of` is a zeroed scratch over the
    features. Returns the features kept, where the weights of each begin, the child and weight of every entry
    kept (at least `least` in absolute value), and the biases.
    """
    nnz = 0
    for i in range(rows.size):
        nnz += indptr[rows[i] + 1] - indptr[rows[i]]
    local_indptr = np.zeros(rows.size + 1, np.int64)
    local_indices, local_values = np.empty(nnz, np.uint32), np.empty(nnz, np.float32)
    features = np.empty(min(nnz, local_of.size), np.uint32)
    n_local = _local_rows(indptr, indices, rows, local_of, local_indptr, local_indices, features)
    blocks = (n_children + 15) // 16
    inverse = np.empty(rows.size, np.float32)
    held = np.zeros(rows.size, np.bool_)
    positive = np.zeros(rows.size * blocks, np.uint32)
    for i in range(rows.size):
        squares, at = np.float32(1.0), local_indptr[i]
        for p in range(indptr[rows[i]], indptr[rows[i] + 1]):
            local_values[at] = values[p]
            squares += values[p] * values[p]
            at += 1
        if loss == LOGISTIC:
            inverse[i] = _ONE / max(_ONE, np.float32(0.25) + squares * cost)
        else:
            inverse[i] = _ONE / (squares + np.float32(0.5) / cost)
        for q in range(child_indptr[i], child_indptr[i + 1]):
            c = children[q]
            positive[i * blocks + c // 16] |= np.uint32(1) << np.uint32(c % 16)
        held[i] = held_share > 0 and (_next(np.uint64(rows[i])) >> np.uint64(33)) % np.uint64(held_share) == 0
    valid = np.full(blocks, 0xFFFF, np.uint32)
    if n_children % 16:
        valid[blocks - 1] = (np.uint32(1) << np.uint32(n_children % 16)) - np.uint32(1)
    weights = _aligned((np.int64(n_local) + 1) * 16 * blocks)
    alphas = _aligned(rows.size * 16 * blocks)
    constant = cost if loss == LOGISTIC else np.float32(0.5) / cost
    random = _next(np.uint64(seed))
    join_at = max(1, passes // 2) if held_share > 0 else -1
    for number in range(passes):
        if number == join_at:
            _calibrate(
                held, local_indptr, local_indices, local_values, child_indptr, children, n_children, weights, blocks,
                slopes, likelihood, histogram,
            )  # fmt: skip
        random = _next(random)
        step = _stride(rows.size, np.int64(random >> np.uint64(33)))
        random = _next(random)
        start = np.int64(random >> np.uint64(33)) % rows.size
        updates = _one_pass(
            start, step, number < join_at, held, local_indptr, local_indices, local_values, positive, inverse, valid,
            weights, alphas, blocks, loss, constant,
        )  # fmt: skip
        if updates == 0 and number >= join_at:
            break
    return _kept(weights, features, n_local, n_children, blocks, least)


@kernel
def _kept(weights, features, n_local, n_children, blocks, least):
    width = 16 * blocks
    count, n_kept = 0, 0
    for j in range(n_local):
        before = count
        for c in range(n_children):
            count += abs(weights[j * width + c]) >= least
        n_kept += count > before
    kept, starts = np.empty(n_kept, np.uint32), np.zeros(n_kept + 1, np.int64)
    entry_children, entry_weights = np.empty(count, np.uint32), np.empty(count, np.float32)
    at, k = 0, 0
    for j in range(n_local):
        before = at
        for c in range(n_children):
            w = weights[j * width + c]
            if abs(w) >= least:
                entry_children[at] = c
                entry_weights[at] = w
                at += 1
        if at > before:
            kept[k] = features[j]
            k += 1
            starts[k] = at
    biases = weights[n_local * width : n_local * width + n_children].copy()
    return kept, starts, entry_children, entry_weights, biases
