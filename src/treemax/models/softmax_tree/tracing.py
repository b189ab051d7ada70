"""The decisions of softmax trees for one row, with the weights of its features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from treemax.explanations import Path, Step, Trace, linear_step
from treemax.inputs.rows import Rows
from treemax.models.trained.tracing import row_entries, shares

if TYPE_CHECKING:
    from treemax.models.softmax_tree.model import SoftmaxTreeModel

SIDES = ("left", "right")


def trace_labels(model: SoftmaxTreeModel, row: Rows, ids: Sequence[int], smoothing: float) -> Trace:
    """Return the path of the row in each tree, to labels of its leaves; none for a label that no leaf has."""
    columns, values = row_entries(row, model.n_features)
    leaves = model.leaves_of(row)[0].tolist()
    classes = [model.classes_of(leaf) for leaf in leaves]
    n_missing = model.n_labels - len(np.unique(np.concatenate(classes)))
    weight = 1.0 / (len(leaves) * (1.0 + smoothing * n_missing))
    before = [_decisions(model, leaf, columns, values) for leaf in leaves]
    paths: list[list[Path]] = []
    for label in ids:
        found = [_class_step(model, leaf, label, columns, values) for leaf in leaves]
        reached = any(step.logit is not None for step in found)
        own = [Path([*steps, last], weight, tree) for tree, (steps, last) in enumerate(zip(before, found))]
        paths.append(own if reached else [])
    return Trace(columns.astype(np.int64), values, paths, model.precision)


def _decisions(
    model: SoftmaxTreeModel, leaf: int, columns: NDArray[np.uint32], values: NDArray[np.float32]
) -> list[Step]:
    """Return the decisions from the root to a leaf."""
    steps, code = [], -1 - leaf
    while (node := int(model.parents[code])) >= 0:
        side = int(model.structure.children[node, 1] == code)
        _, weights = model.node_weights(node, columns, values)
        child = code if code >= 0 else model.n_branches - 1 - code
        sign = 2 * side - 1  # of the side taken
        bias = {"bias": sign * float(model.plane_bias[node])}
        steps.append(linear_step(node, child, SIDES[side], 1.0, bias, sign * weights[0] * values))
        code = node
    return steps[::-1]


def _class_step(
    model: SoftmaxTreeModel, leaf: int, label: int, columns: NDArray[np.uint32], values: NDArray[np.float32]
) -> Step:
    """Return the softmax of a leaf; its probability is 0 for a label that it does not have."""
    node, classes = model.n_branches + leaf, model.classes_of(leaf)
    at = np.flatnonzero(classes == label)
    if len(at) == 0:
        return Step(node, label, f"not among the {len(classes)} classes of the leaf", 0.0)
    biases, weights = model.node_weights(node, columns, values)
    scores = biases + weights @ values.astype(np.float64)
    place = int(at[0])
    return linear_step(
        node, label, f"class {place + 1} of {len(classes)}", float(shares(scores)[place]), {"bias": float(biases[place])},
        weights[place] * values, [label], 1,
    )  # fmt: skip
