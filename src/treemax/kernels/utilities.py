"""Block coordinate ascent of an expected utility over all rows: the labels of one row are chosen, given those of the others."""

from __future__ import annotations

import numpy as np

from treemax.kernels.intrinsics import minimum
from treemax.kernels.jit import inline_kernel, kernel

PRECISION, RECALL, F1, BALANCED_ACCURACY, COVERAGE, INSTANCE = range(6)


@inline_kernel
def _value(utility, correct, predicted, positive, n_rows):
    """Return the utility of a label from its expected numbers of correct, predicted and positive rows.

    For coverage, `correct` is the logarithm of the probability that no answer with the label is right.
    """
    if utility == PRECISION:
        return correct / predicted if predicted > 0 else 0.0
    if utility == RECALL:
        return correct / positive if positive > 0 else 0.0
    if utility == F1:
        return 2 * correct / (predicted + positive) if predicted + positive > 0 else 0.0
    if utility == BALANCED_ACCURACY:
        recall = correct / positive if positive > 0 else 0.0
        negative = n_rows - positive
        return 0.5 * (recall + ((negative - predicted + correct) / negative if negative > 0 else 0.0))
    if utility == COVERAGE:
        return -np.expm1(correct)
    return correct


@inline_kernel
def _contribution(utility, probability):
    """What a row with this probability of a label adds to `correct` if the label is predicted."""
    return np.log1p(-minimum(probability, 1 - 1e-9)) if utility == COVERAGE else probability


@kernel
def ascend(ids, probabilities, order, k, utility, positive, correct, predicted, chosen):
    """Choose the k candidates of each row, in this order, that gain most given the choices of all other rows.

    `ids` (-1: none) and `probabilities` are the candidates of the rows, `chosen` which of them are predicted; `positive`,
    `correct` and `predicted` are sums over the rows by label, and change with the choice.
    """
    n_rows, width = ids.shape
    gains = np.empty(width)
    for row in order:
        for c in range(width):
            label, probability = ids[row, c], probabilities[row, c]
            if label < 0:
                gains[c] = -np.inf
                continue
            gain = _contribution(utility, probability)
            if chosen[row, c]:
                correct[label] -= gain
                predicted[label] -= 1
                chosen[row, c] = False
            before = _value(utility, correct[label], predicted[label], positive[label], n_rows)
            gains[c] = _value(utility, correct[label] + gain, predicted[label] + 1, positive[label], n_rows) - before
        for _ in range(k):
            best = np.int64(0)
            for c in range(1, width):
                if gains[c] > gains[best]:
                    best = np.int64(c)
            if gains[best] == -np.inf:
                break
            gains[best] = -np.inf
            label = ids[row, best]
            chosen[row, best] = True
            correct[label] += _contribution(utility, probabilities[row, best])
            predicted[label] += 1


@kernel
def values(utility, positive, correct, predicted, n_rows, out):
    """Compute the utility of every label."""
    for label in range(out.size):
        out[label] = _value(utility, correct[label], predicted[label], positive[label], n_rows)
