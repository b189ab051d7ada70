"""The decisions of label trees for one row, with the weights of its features."""

from __future__ import annotations

from collections.abc import Container, Sequence

import numpy as np
from numpy.typing import NDArray

from treemax.explanations import Path, Step, Trace, linear_step
from treemax.inputs.rows import Rows
from treemax.kernels.weights import packed_weights
from treemax.models.label_tree.packed_tree import PackedTree
from treemax.models.trained.tracing import MOST_BELOW, NOTHING, logistic, row_entries, shares


def trace_labels(trees: Sequence[PackedTree], row: Rows, ids: Sequence[int]) -> Trace:
    """Return the paths to labels in all trees."""
    indices, values = row_entries(row)
    by_tree = [_paths(packed, number, indices, values, ids, 1.0 / len(trees)) for number, packed in enumerate(trees)]
    eight_bits = any(packed.scales is not None for packed in trees)
    weights = "8 bits with a scale for each node, as bfloat16" if eight_bits else "bfloat16"
    return Trace(indices.astype(np.int64), values, list(zip(*by_tree)), weights)


def _paths(
    packed: PackedTree,
    number: int,
    indices: NDArray[np.uint32],
    values: NDArray[np.float32],
    ids: Sequence[int],
    weight: float,
) -> list[Path]:
    """Return the path to each label in one tree; nodes that several paths share are scored once."""
    chains = [packed.tree.path_to(label) for label in ids]
    shown = set(chains[0])  # of the first label: the labels below are only shown there
    wanted: dict[int, set[int]] = {}
    for child in {child for chain in chains for child in chain}:
        wanted.setdefault(int(packed.tree.parent[child]), set()).add(child)
    steps: dict[int, Step] = {}
    for node, children in wanted.items():
        steps.update(node_steps(packed, node, sorted(children), indices, values, shown))
    return [Path([steps[child] for child in chain], weight, number) for chain in chains]


def node_steps(
    packed: PackedTree,
    node: int,
    children: Sequence[int],
    indices: NDArray[np.uint32],
    values: NDArray[np.float32],
    shown: Container[int] | None = None,
) -> dict[int, Step]:
    """Return the steps from a node to some of its children; labels below are those of the children `shown`, or all."""
    tree, (first, count) = packed.tree, (int(packed.tree.first_child[node]), int(packed.tree.n_children[node]))
    place = np.full(count, -1, dtype=np.int64)
    place[np.array(children) - first] = np.arange(len(children))
    biases = packed.bias[first : first + count].astype(np.float64)
    scores, weights = biases.copy(), np.zeros((len(children), len(indices)), dtype=np.float32)
    _, n_children, tables, slots, entries, *_ = packed._tree_arguments
    packed_weights(node, indices, values, n_children, tables, slots, entries, place, scores, weights)
    level = int(tree.level[node])
    slope, shift = float(packed.slopes[level]), float(packed.shifts[level])
    if packed.link == "softmax":
        shift, probabilities = 0.0, shares(slope * scores)[np.array(children) - first].tolist()
    else:
        probabilities = [logistic(slope * score + shift) for score in scores[np.array(children) - first].tolist()]
    steps = {}
    for child, probability, own in zip(children, probabilities, weights):
        at = child - first
        is_shown = shown is None or child in shown
        labels, n_labels = tree.below(child, MOST_BELOW) if is_shown else (NOTHING, None)
        steps[child] = linear_step(
            node, child, f"child {at + 1} of {count}", probability, {"bias": slope * float(biases[at]) + shift},
            slope * values.astype(np.float64) * own, labels, n_labels,
        )  # fmt: skip
    return steps
