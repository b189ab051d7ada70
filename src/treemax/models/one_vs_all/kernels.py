"""Linear scores over all labels: learning with AdaGrad, scoring, and the best k.

Two layouts, each the one its rows read contiguously:

* label-major `weights[label, feature]` for dense rows: a score is a dot product of two contiguous vectors;
* feature-major `weights[feature, label]` for sparse rows: a non-zero adds one contiguous run to all scores.
  In its packed form a feature keeps its non-zero weights only.

Learning takes mini-batches: the scores and gradients of a batch come from the weights at its start, then
each example's gradient is applied by AdaGrad in turn. Gradients smaller than `least` are skipped: for a
softmax over many labels that is nearly all of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from treemax.kernels.arithmetic import copy_into, exp32, softmax
from treemax.kernels.intrinsics import empty, maximum, minimum
from treemax.kernels.jit import fast_kernel, kernel
from treemax.kernels.queues import offer

SOFTMAX, LOGISTIC, SQUARED_HINGE = 0, 1, 2  # losses
SOFTMAX_LINK, LOGISTIC_LINK, HINGE_LINK = 0, 1, 2  # from a score to a probability

LABEL_BLOCK = 4096  # labels scored at a time by a sparse row: 16 KB of scores stay in the first-level cache
LEAST_PROBABILITY = np.float32(1e-6)  # of the hinge's link function, which would otherwise give zero to all labels

STEEPEST = np.float32(100.0)  # gradient of the squared hinge: times a large value, its square must not overflow
_ONE = np.float32(1.0)


class Truth(NamedTuple):
    """The labels of each row: row i has ids[indptr[i]:indptr[i + 1]]. Weights multiply gradients; empty means one."""

    indptr: np.ndarray
    ids: np.ndarray
    row_weights: np.ndarray
    relevance: np.ndarray  # of the labels of the rows


class State(NamedTuple):
    """Weights and biases, and AdaGrad's sums of squared gradients."""

    weights: np.ndarray
    squares: np.ndarray
    bias: np.ndarray
    bias_squares: np.ndarray


class AdaGrad(NamedTuple):
    """Settings of the training."""

    initial: np.float32  # value of the sums of squared gradients
    constant: np.float32  # the value of the feature whose weight is the bias
    loss: int
    least: np.float32  # gradient that is not skipped
    batch_rows: int
    most_labels: int  # of a row


# --- learning ------------------------------------------------------------------------------------------


@fast_kernel
def _gradient(loss, scores, truth, held):
    """Replace the scores of one row by the derivative of its loss in each of them."""
    if loss == SOFTMAX:
        softmax(scores)
        share = _ONE / np.float32(maximum(1, truth.size))
        for j in range(truth.size):
            scores[truth[j]] -= share
        if truth.size == 0:  # a row without labels has no softmax loss
            scores[:] = np.float32(0.0)
    elif loss == LOGISTIC:
        for c in range(scores.size):
            scores[c] = _ONE / (_ONE + exp32(-scores[c]))
        for j in range(truth.size):
            scores[truth[j]] -= _ONE
    else:
        for j in range(truth.size):
            held[j] = scores[truth[j]]
        for c in range(scores.size):
            scores[c] = minimum(maximum(np.float32(0.0), _ONE + scores[c]), STEEPEST)
        for j in range(truth.size):
            scores[truth[j]] = -minimum(maximum(np.float32(0.0), _ONE - held[j]), STEEPEST)


@fast_kernel
def _apply_relevance(loss, gradient, truth, relevance):
    """Multiply the loss of each label of a row by its relevance."""
    if loss == SOFTMAX:
        share, total = _ONE / np.float32(maximum(1, truth.size)), np.float32(0.0)
        for j in range(truth.size):
            gradient[truth[j]] += share
            total += share * relevance[j]
        for c in range(gradient.size):
            gradient[c] *= total
        for j in range(truth.size):
            gradient[truth[j]] -= share * relevance[j]
    else:
        for j in range(truth.size):
            gradient[truth[j]] *= relevance[j]


@fast_kernel
def _multiply(values, count, weight):
    """Multiply the first values by the weight of their row."""
    for j in range(count):
        values[j] *= weight


@fast_kernel
def _large_gradients(gradient, least, labels, values):
    """Collect the labels whose gradient is at least `least`; returns how many."""
    count = np.uint64(0)
    for c in range(gradient.size):
        g = gradient[c]
        labels[count] = c
        values[count] = g
        if abs(g) >= least:
            count += np.uint64(1)
    return count


@fast_kernel
def _labels_to_update(scores, row, targets, loss, least, held, labels, values):
    """Replace the scores of a row by gradients; return the number of labels to update, with their gradients in `values`."""
    target_indptr, target_ids, row_weights, relevance = targets
    first, last = target_indptr[row], target_indptr[row + 1]
    truth = target_ids[first:last]
    _gradient(loss, scores, truth, held)
    if relevance.size:
        _apply_relevance(loss, scores, truth, relevance[first:last])
    count = _large_gradients(scores, least, labels, values)
    if row_weights.size:
        _multiply(values, count, row_weights[row])
    return count


@fast_kernel
def update_bias(bias, bias_squares, labels, values, count, rate, initial, constant):
    """The bias is the weight of a feature that always has the value `constant`, times that value."""
    for j in range(count):
        c = labels[j]
        step = values[j] * constant
        total = bias_squares[c] + step * step
        bias_squares[c] = total
        bias[c] -= constant * rate * step / np.sqrt(total + initial)


@fast_kernel
def learn_dense(X, order, targets, state, rates, settings):
    """Learn the dense rows X[order] with label-major weights [labels, features]; rates[i] is batch i's."""
    weights, squares, bias, bias_squares = state
    initial, constant, loss, least, batch_rows, most_labels = settings
    n_labels, n_features = weights.shape
    batch = np.zeros((batch_rows, n_features), np.float32)
    scores = np.empty((batch_rows, n_labels), np.float32)
    labels = empty(n_labels + 1, np.uint32)
    values = empty(n_labels + 1, np.float32)
    held = empty(maximum(1, most_labels), np.float32)
    for number, start in enumerate(range(0, order.size, batch_rows)):
        size = minimum(batch_rows, order.size - start)
        for i in range(size):
            copy_into(batch[i], X[order[start + i]], n_features)
        np.dot(batch, weights.T, scores)
        scores += bias
        rate = rates[number]
        for i in range(size):
            row = order[start + i]
            count = _labels_to_update(scores[i], row, targets, loss, least, held, labels, values)
            x = batch[i]
            for j in range(count):
                w, s, g = weights[labels[j]], squares[labels[j]], values[j]
                for d in range(n_features):
                    step = g * x[d]
                    total = s[d] + step * step
                    s[d] = total
                    w[d] -= rate * step / np.sqrt(total + initial)
            update_bias(bias, bias_squares, labels, values, count, rate, initial, constant)


@kernel
def _add_run(scores, weights, start, stop, x):
    """scores += x * weights over one run of labels: without fused operations, so that the packed form of
    the same weights gives the same bits."""
    for c in range(start, stop):
        scores[c] += x * weights[c]


@kernel
def _score_sparse(scores, indices, values, weights, bias):
    """Compute the scores of one sparse row; columns the weights do not have are features never seen."""
    n_labels = np.uint64(bias.size)
    n_features = np.uint64(weights.shape[0])
    for start in range(np.uint64(0), n_labels, np.uint64(LABEL_BLOCK)):
        stop = minimum(start + np.uint64(LABEL_BLOCK), n_labels)
        for c in range(start, stop):
            scores[c] = bias[c]
        for p in range(np.uint64(indices.size)):
            if indices[p] < n_features:
                _add_run(scores, weights[indices[p]], start, stop, values[p])


@fast_kernel
def learn_sparse(rows, order, targets, state, rates, settings):
    """Learn sparse rows with feature-major weights [features, capacity for labels]; bias.size labels are in use."""
    indptr, indices, data = rows
    weights, squares, bias, bias_squares = state
    initial, constant, loss, least, batch_rows, most_labels = settings
    n_labels = bias.size
    scores = np.empty((batch_rows, n_labels), np.float32)
    labels = empty(n_labels + 1, np.uint32)
    values = empty(n_labels + 1, np.float32)
    held = empty(maximum(1, most_labels), np.float32)
    for number, start in enumerate(range(0, order.size, batch_rows)):
        size = minimum(batch_rows, order.size - start)
        for i in range(size):
            first, last = indptr[order[start + i]], indptr[order[start + i] + 1]
            _score_sparse(scores[i], indices[first:last], data[first:last], weights, bias)
        rate = rates[number]
        for i in range(size):
            row = order[start + i]
            count = _labels_to_update(scores[i], row, targets, loss, least, held, labels, values)
            for p in range(indptr[row], indptr[row + 1]):
                w, s, x = weights[indices[p]], squares[indices[p]], data[p]
                for j in range(count):
                    c = labels[j]
                    step = values[j] * x
                    total = s[c] + step * step
                    s[c] = total
                    w[c] -= rate * step / np.sqrt(total + initial)
            update_bias(bias, bias_squares, labels, values, count, rate, initial, constant)


# --- scoring -------------------------------------------------------------------------------------------


@fast_kernel
def score_dense_row(x, weights, bias, scores):
    """One dense row against label-major weights: a matrix-vector product at the memory's rate."""
    for c in range(weights.shape[0]):
        w = weights[c]
        total = np.float32(0.0)
        for d in range(x.size):
            total += w[d] * x[d]
        scores[c] = total + bias[c]


@kernel
def score_sparse_rows(indptr, indices, values, weights, bias, scores):
    """Score sparse rows by feature-major weights."""
    for row in range(indptr.size - 1):
        first, last = indptr[row], indptr[row + 1]
        _score_sparse(scores[row], indices[first:last], values[first:last], weights, bias)


@kernel
def score_packed_rows(indptr, indices, values, feature_indptr, labels, weights, bias, scores):
    """Score sparse rows by packed weights: feature f has weights[feature_indptr[f]:feature_indptr[f + 1]]."""
    n_features = feature_indptr.size - 1
    for row in range(indptr.size - 1):
        line = scores[row]
        copy_into(line, bias, bias.size)
        for p in range(indptr[row], indptr[row + 1]):
            feature, x = indices[p], values[p]
            if feature < n_features:
                for q in range(np.uint64(feature_indptr[feature]), np.uint64(feature_indptr[feature + 1])):
                    line[labels[q]] += x * weights[q]


@kernel
def count_used(weights, squares, n_labels, counts):
    """Count the weights of every feature that were ever updated, among the first `n_labels` labels."""
    for f in range(weights.shape[0]):
        w, s, count = weights[f], squares[f], 0
        for c in range(n_labels):
            count += (w[c] != 0) | (s[c] != 0)
        counts[f] = count


@kernel
def pack_used(weights, squares, n_labels, feature_indptr, labels, packed_weights, packed_squares):
    """Fill the packed form, whose `feature_indptr` comes from `count_used`."""
    for f in range(weights.shape[0]):
        w, s, at = weights[f], squares[f], feature_indptr[f]
        for c in range(n_labels):
            if (w[c] != 0) | (s[c] != 0):
                labels[at] = c
                packed_weights[at] = w[c]
                packed_squares[at] = s[c]
                at += 1


@kernel
def unpack(feature_indptr, labels, packed, table):
    """Unpack weights, or their squares, into a feature-major table."""
    for f in range(feature_indptr.size - 1):
        for q in range(feature_indptr[f], feature_indptr[f + 1]):
            table[f, labels[q]] = packed[q]


# --- from scores to answers ----------------------------------------------------------------------------


@fast_kernel
def to_probabilities(scores, link, normalise):
    """Convert scores of one row to probabilities, in place; normalised over the labels for multi-class."""
    if link == SOFTMAX_LINK:
        softmax(scores)
        return
    total = np.float32(0.0)
    for c in range(scores.size):
        if link == LOGISTIC_LINK:
            p = _ONE / (_ONE + exp32(-scores[c]))
        else:
            p = minimum(maximum((_ONE + scores[c]) * np.float32(0.5), LEAST_PROBABILITY), _ONE)
        scores[c] = p
        total += p
    if normalise:
        scale = _ONE / total
        for c in range(scores.size):
            scores[c] *= scale


@fast_kernel
def rows_to_probabilities(scores, link, normalise):
    """Convert the scores of every row with `to_probabilities`."""
    for i in range(scores.shape[0]):
        to_probabilities(scores[i], link, normalise)


@kernel
def _best(scores, ids, best):
    """Write the best ids.size labels in order, equal scores by the smaller id, by insertion into a short
    list; blocks that hold nothing better than the worst of it cost one comparison each."""
    k, n, filled = ids.size, scores.size, np.int64(0)
    for start in range(0, n, 64):
        stop = minimum(start + 64, n)
        if filled == k:
            top = scores[start]
            for c in range(start, stop):
                top = maximum(top, scores[c])
            if not top > best[k - 1]:
                continue
        for c in range(start, stop):
            filled = offer(c, scores[c], ids, best, filled)


@kernel
def best_of_rows(scores, ids, best):
    """Compute the best labels of every row and their scores."""
    for i in range(scores.shape[0]):
        _best(scores[i], ids[i], best[i])


@kernel
def best_of_allowed(scores, weights, ids, best):
    """Compute the best labels with a weight of every row and their scores; there are at least as many."""
    allowed = empty(weights.size, np.float32)
    for i in range(scores.shape[0]):
        for c in range(weights.size):
            allowed[c] = scores[i, c] if weights[c] > 0 else -np.float32(np.inf)
        _best(allowed, ids[i], best[i])


@fast_kernel
def probabilities_of_best(scores, best, link, normalise):
    """Convert the best scores of each row to probabilities, given all scores of the row, which are overwritten."""
    for i in range(best.shape[0]):
        line, top = scores[i], best[i]
        if link == SOFTMAX_LINK:
            total, peak = np.float32(0.0), top[0]
            for c in range(line.size):
                total += exp32(line[c] - peak)
            for j in range(top.size):
                top[j] = exp32(top[j] - peak) / total
        else:
            if normalise:
                to_probabilities(line, link, False)
                total = np.float32(0.0)
                for c in range(line.size):
                    total += line[c]
            else:
                total = _ONE
            to_probabilities(top, link, False)
            for j in range(top.size):
                top[j] /= total
