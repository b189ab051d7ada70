"""Answers of softmax trees for dense rows: one path in each tree, and the softmax of the leaf at its end.

Nodes of all trees are numbered together. `children[node]` are the left and the right child of a decision node;
a number below zero is a leaf, -1 the first. The classes of leaf l are those from starts[l] to starts[l + 1],
each with a scorer of its own.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from treemax.kernels.arithmetic import softmax
from treemax.kernels.jit import fast_inline_kernel, inline_kernel, kernel
from treemax.kernels.queues import offer
from treemax.kernels.scorers import row_of, scores_of

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


class Structure(NamedTuple):
    """The shape of all trees."""

    roots: np.ndarray
    children: np.ndarray
    starts: np.ndarray  # of the classes of each leaf
    classes: np.ndarray


class Room(NamedTuple):
    """What one thread needs for itself."""

    owners: np.ndarray
    scores: np.ndarray
    mass: np.ndarray  # of every label; zero between rows
    touched: np.ndarray


@fast_inline_kernel
def _plane_score(weights, bias, x):
    total = bias
    for d in range(x.size):
        total += weights[d] * x[d]
    return total


@inline_kernel
def _leaf(root, x, structure, planes, plane_bias):
    """The leaf that a row comes to."""
    node = np.int64(root)
    while node >= 0:
        right = _plane_score(planes[node], plane_bias[node], x) >= _ZERO
        node = np.int64(structure.children[node, 1 if right else 0])
    return -1 - node


@inline_kernel
def _leaf_probabilities(leaf, x, structure, scorers, room):
    """The softmax of a leaf, into room.scores; returns how many classes it has."""
    first = structure.starts[leaf]
    n = structure.starts[leaf + 1] - first
    for q in range(n):
        room.owners[q] = first + q
    scores_of(scorers, room.owners, n, x, room.scores)
    softmax(room.scores[:n])
    return n


@kernel
def paths(rows, n_rows, structure, planes, plane_bias, leaves):
    """The leaf that each row comes to in each tree."""
    for i in range(n_rows):
        for t in range(structure.roots.size):
            leaves[i, t] = _leaf(structure.roots[t], row_of(rows, i), structure, planes, plane_bias)


@kernel
def predict(rows, n_rows, structure, planes, plane_bias, scorers, room, ids, probabilities):
    """The best classes of each row, by the mean of the probabilities in all trees."""
    n_trees, k = structure.roots.size, ids.shape[1]
    share = _ONE / np.float32(n_trees)
    for i in range(n_rows):
        x, best, own, filled = row_of(rows, i), ids[i], probabilities[i], 0
        n_touched = 0
        for t in range(n_trees):
            leaf = _leaf(structure.roots[t], x, structure, planes, plane_bias)
            n = _leaf_probabilities(leaf, x, structure, scorers, room)
            first = structure.starts[leaf]
            for q in range(n):
                label = structure.classes[first + q]
                if n_trees == 1:
                    filled = offer(label, room.scores[q], best, own, filled)
                    continue
                if room.mass[label] == _ZERO:
                    room.touched[n_touched] = label
                    n_touched += 1
                room.mass[label] += share * max(room.scores[q], np.float32(1e-30))
        for q in range(n_touched):
            label = room.touched[q]
            filled = offer(label, room.mass[label], best, own, filled)
            room.mass[label] = _ZERO
        for q in range(filled, k):
            best[q] = -1
            own[q] = _ZERO
