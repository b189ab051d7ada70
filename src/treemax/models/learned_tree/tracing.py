"""The decisions of a learned tree for one row: the part of each feature in its embedding, which is linear."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from treemax.explanations import Path, Step, Trace, linear_step
from treemax.inputs.rows import Rows
from treemax.models.trained.tracing import MOST_BELOW, logistic, row_entries, shares

if TYPE_CHECKING:
    from treemax.models.learned_tree.model import LearnedTreeModel


def trace_labels(model: LearnedTreeModel, row: Rows, ids: Sequence[int]) -> Trace:
    """Return the paths to labels."""
    numbers, values = row_entries(model.known(row))
    parts = model.embeddings[numbers].astype(np.float64) * values[:, None]  # their sum represents the row
    paths = []
    for label in ids:
        steps = [_step(model, int(model.tree.parent[child]), child, parts) for child in model.tree.path_to(label)]
        path = Path(steps)
        weight = min(model.labels_a_row, 1.0 / max(path.probability, 1e-300))
        paths.append([Path(steps, weight)])
    return Trace(model.columns(row).astype(np.int64), values, paths, "float32, through the embeddings of the features")


def _step(model: LearnedTreeModel, node: int, child: int, parts: NDArray[np.float64]) -> Step:
    tree, first = model.tree, int(model.first_vectors[node])
    at, count = child - int(tree.first_child[node]), int(tree.n_children[node])
    branch, below = f"child {at + 1} of {count}", tree.below(child, MOST_BELOW)
    if count == 1:
        return Step(node, child, branch, 1.0, labels=below[0], n_labels=below[1])
    if count == 2:  # one vector, whose score is that of the second child against the first
        sign = 2 * at - 1
        added, bias = sign * (parts @ model.weights[first]), sign * float(model.biases[first])
        return linear_step(node, child, branch, logistic(bias + added.sum()), {"bias": bias}, added, *below)
    vectors = model.weights[first : first + count].astype(np.float64)
    biases = model.biases[first : first + count].astype(np.float64)
    added = parts @ vectors.T
    probability = float(shares(biases + added.sum(axis=0))[at])
    return linear_step(node, child, branch, probability, {"bias": float(biases[at])}, added[:, at], *below)
