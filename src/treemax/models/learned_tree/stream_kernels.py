"""Embeddings of new features, and mean representations of labels, in a stream."""

from __future__ import annotations

import numpy as np

from treemax.kernels.arithmetic import next_random, random_for
from treemax.kernels.intrinsics import empty, minimum
from treemax.kernels.jit import fast_kernel, kernel
from treemax.models.learned_tree.kernels import represent_row


@kernel
def draw_embeddings(features, seed, dimension, most, embeddings):
    """Compute uniform random numbers from -most to most, which depend on the feature only."""
    for i in range(features.size):
        random = random_for(seed, features[i])
        for j in range(dimension):
            random = next_random(random)
            embeddings[i, j] = most * (np.float32(random >> np.uint64(40)) * np.float32(2.0**-23) - np.float32(1.0))


@fast_kernel
def update_means(rows, label_starts, labels, embeddings, counts, horizon, means):
    """Move the mean of each label of a row towards the row's representation, by one over its examples or `horizon`."""
    width = np.uint64(means.shape[1])
    hidden = empty(width, np.float32)
    for row in range(rows.indptr.size - 1):
        represent_row(rows, row, embeddings.scale, embeddings.numbers, width, hidden)
        for place in range(label_starts[row], label_starts[row + 1]):
            label = labels[place]
            counts[label] += 1
            share = np.float32(1.0 / minimum(counts[label], horizon))
            for j in range(means.shape[1]):
                means[label, j] += share * (hidden[j] - means[label, j])
