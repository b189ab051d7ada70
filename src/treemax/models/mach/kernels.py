"""Scores of labels from the probabilities of their buckets."""

from __future__ import annotations

import numpy as np

from treemax.kernels.intrinsics import empty, maximum, minimum
from treemax.kernels.jit import fast_kernel, kernel

MEAN, MIN, MEDIAN = 0, 1, 2
_RANKING = np.float32(1e-6)  # weight that keeps the order of labels whose estimate is zero
_ZERO = np.float32(0.0)


@fast_kernel
def bucket_probabilities(scores, n_buckets, one_label):
    """Convert the scores of buckets to probabilities: a softmax in each repetition, or one by one."""
    for i in range(scores.shape[0]):
        line = scores[i]
        if not one_label:
            for b in range(line.size):
                line[b] = np.float32(1.0) / (np.float32(1.0) + np.exp(-line[b]))
            continue
        for first in range(0, line.size, n_buckets):
            top = line[first]
            for b in range(first, first + n_buckets):
                top = maximum(top, line[b])
            total = _ZERO
            for b in range(first, first + n_buckets):
                line[b] = np.exp(line[b] - top)
                total += line[b]
            for b in range(first, first + n_buckets):
                line[b] /= total


@kernel
def label_scores(probabilities, buckets, n_buckets, combine, out):
    """Combine the probabilities of the bucket of each label in all repetitions, by mean, minimum or median."""
    n_repetitions, n_labels = buckets.shape
    of_label = empty(n_repetitions, np.float32)
    for i in range(probabilities.shape[0]):
        line, scores = probabilities[i], out[i]
        if combine == MEDIAN:
            for label in range(n_labels):
                for r in range(n_repetitions):
                    of_label[r] = line[r * n_buckets + buckets[r, label]]
                of_label.sort()
                upper = of_label[n_repetitions // 2]
                scores[label] = (of_label[(n_repetitions - 1) // 2] + upper) / np.float32(2.0)
            continue
        scores[:] = _ZERO if combine == MEAN else np.float32(1.0)
        for r in range(n_repetitions):
            first = r * n_buckets
            for label in range(n_labels):
                probability = line[first + buckets[r, label]]
                if combine == MEAN:
                    scores[label] += probability / np.float32(n_repetitions)
                else:
                    scores[label] = minimum(scores[label], probability)


@fast_kernel
def normalise(scores, n_buckets):
    """Turn the combined probabilities of a multi-class problem into probabilities of labels that sum to one.

    Chance puts other labels into the bucket of a label, with a total probability of 1 / n_buckets.
    """
    chance = np.float32(1.0) / np.float32(n_buckets)
    for i in range(scores.shape[0]):
        line, total = scores[i], _ZERO
        for label in range(line.size):
            line[label] = maximum(line[label] - chance, _ZERO) + _RANKING * line[label]
            total += line[label]
        if total > _ZERO:
            for label in range(line.size):
                line[label] /= total
        else:
            line[:] = np.float32(1.0) / np.float32(line.size)
