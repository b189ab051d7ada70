"""Learning with a random sample of the negative labels: only the labels of a row and the sample are scored."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from treemax.kernels.arithmetic import exp32, next_random, random_for
from treemax.kernels.intrinsics import empty, maximum, minimum, zeros
from treemax.kernels.jit import bare_fast_inline_kernel, bare_inline_kernel, fast_kernel
from treemax.models.one_vs_all.kernels import LOGISTIC, STEEPEST, update_bias

_ONE = np.float32(1.0)
_ZERO = np.float32(0.0)


class Sampling(NamedTuple):
    """How many negative labels a row gets, and the random numbers of its draws."""

    n_negatives: int
    seed: np.uint64
    first: int  # rows learned before


class Chosen(NamedTuple):
    """The labels of a row, then its negatives, with their scores and gradients."""

    labels: np.ndarray
    values: np.ndarray
    drawn: np.ndarray  # whether a label is chosen; all False between rows


@bare_inline_kernel
def _choose(truth, n_negatives, random, chosen):
    """Return the labels of a row and `n_negatives` others, all sets of which are equally likely."""
    n_labels, count = np.uint64(chosen.drawn.size), 0
    for j in range(truth.size):
        chosen.labels[count] = truth[j]
        chosen.drawn[truth[j]] = True
        count += 1
    while count < truth.size + n_negatives:
        random = next_random(random)
        label = (random >> np.uint64(32)) * n_labels >> np.uint64(32)
        if not chosen.drawn[label]:
            chosen.labels[count] = label
            chosen.drawn[label] = True
            count += 1
    for j in range(count):
        chosen.drawn[chosen.labels[j]] = False
    return count


@bare_fast_inline_kernel
def _find_gradients(count, n_true, n_negatives, n_labels, loss, least, row_weight, relevance, chosen):
    """Replace scores by gradients; those of the negatives have the weight of all negatives. Small ones are left out.

    They are multiplied by the weight of the row, and by the relevance of its labels unless it is empty. Returns the
    number of those that are left.
    """
    weight, kept = np.float32(n_labels - n_true) / np.float32(maximum(1, n_negatives)), 0
    for j in range(count):
        score = chosen.values[j]
        if loss == LOGISTIC:
            gradient = _ONE / (_ONE + exp32(-score)) - (_ONE if j < n_true else _ZERO)
        elif j < n_true:
            gradient = -minimum(maximum(_ZERO, _ONE - score), STEEPEST)
        else:
            gradient = minimum(maximum(_ZERO, _ONE + score), STEEPEST)
        if abs(gradient) >= least:
            chosen.labels[kept] = chosen.labels[j]
            chosen.values[kept] = gradient if j < n_true else gradient * weight
            if j < n_true and relevance.size:
                chosen.values[kept] *= relevance[j]
            chosen.values[kept] *= row_weight
            kept += 1
    return kept


@fast_kernel
def learn_dense(X, order, targets, state, rates, settings, sampling):
    """Learn the dense rows X[order] one by one with label-major weights."""
    target_indptr, target_ids, row_weights, relevance = targets
    weights, squares, bias, bias_squares = state
    initial, constant, loss, least, batch_rows, most_labels = settings
    n_labels, n_features = weights.shape
    size = minimum(n_labels, most_labels + sampling.n_negatives)
    chosen = Chosen(empty(size, np.uint32), empty(size, np.float32), zeros(n_labels, np.bool_))
    for i in range(order.size):
        x, truth = X[order[i]], target_ids[target_indptr[order[i]] : target_indptr[order[i] + 1]]
        n_negatives = minimum(sampling.n_negatives, n_labels - truth.size)
        count = _choose(truth, n_negatives, random_for(sampling.seed, sampling.first + i), chosen)
        for j in range(count):
            w, score = weights[chosen.labels[j]], _ZERO
            for d in range(n_features):
                score += w[d] * x[d]
            chosen.values[j] = score + bias[chosen.labels[j]]
        of_truth = relevance[target_indptr[order[i]] : target_indptr[order[i] + 1]] if relevance.size else relevance
        row_weight = row_weights[order[i]] if row_weights.size else _ONE
        kept = _find_gradients(count, truth.size, n_negatives, n_labels, loss, least, row_weight, of_truth, chosen)
        rate = rates[i // batch_rows]
        for j in range(kept):
            w, s, g = weights[chosen.labels[j]], squares[chosen.labels[j]], chosen.values[j]
            for d in range(n_features):
                step = g * x[d]
                total = s[d] + step * step
                s[d] = total
                w[d] -= rate * step / np.sqrt(total + initial)
        update_bias(bias, bias_squares, chosen.labels, chosen.values, kept, rate, initial, constant)


@fast_kernel
def learn_sparse(rows, order, targets, state, rates, settings, sampling):
    """Learn sparse rows one by one with feature-major weights; bias.size labels are in use."""
    indptr, indices, data = rows
    target_indptr, target_ids, row_weights, relevance = targets
    weights, squares, bias, bias_squares = state
    initial, constant, loss, least, batch_rows, most_labels = settings
    n_labels = bias.size
    size = minimum(n_labels, most_labels + sampling.n_negatives)
    chosen = Chosen(empty(size, np.uint32), empty(size, np.float32), zeros(n_labels, np.bool_))
    for i in range(order.size):
        row = order[i]
        truth = target_ids[target_indptr[row] : target_indptr[row + 1]]
        n_negatives = minimum(sampling.n_negatives, n_labels - truth.size)
        count = _choose(truth, n_negatives, random_for(sampling.seed, sampling.first + i), chosen)
        for j in range(count):
            chosen.values[j] = bias[chosen.labels[j]]
        for p in range(indptr[row], indptr[row + 1]):
            w, x = weights[indices[p]], data[p]
            for j in range(count):
                chosen.values[j] += x * w[chosen.labels[j]]
        of_truth = relevance[target_indptr[row] : target_indptr[row + 1]] if relevance.size else relevance
        row_weight = row_weights[row] if row_weights.size else _ONE
        kept = _find_gradients(count, truth.size, n_negatives, n_labels, loss, least, row_weight, of_truth, chosen)
        rate = rates[i // batch_rows]
        for p in range(indptr[row], indptr[row + 1]):
            w, s, x = weights[indices[p]], squares[indices[p]], data[p]
            for j in range(kept):
                c = chosen.labels[j]
                step = chosen.values[j] * x
                total = s[c] + step * step
                s[c] = total
                w[c] -= rate * step / np.sqrt(total + initial)
        update_bias(bias, bias_squares, chosen.labels, chosen.values, kept, rate, initial, constant)
