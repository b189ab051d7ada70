"""The decisions of an online label tree for one row, with the weights of its features."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from treemax.explanations import Path, Step, Trace, linear_step
from treemax.inputs.rows import Rows, read_only
from treemax.models.explaining import row_entries
from treemax.models.online_label_tree.kernels import LANES, Blocks, Store
from treemax.models.online_label_tree.weight_kernels import block_weights

if TYPE_CHECKING:
    from treemax.models.online_label_tree.model import OnlineTree

LABELS_BELOW = 64  # among which the most frequent are found


class Siblings(NamedTuple):
    """The children of a node: their numbers, biases, weights for the features of the row, and probabilities."""

    nodes: NDArray[np.int64]
    biases: NDArray[np.float64]
    weights: NDArray[np.float64]
    probabilities: NDArray[np.float64]


def trace_labels(tree: OnlineTree, row: Rows, ids: Sequence[int]) -> Trace:
    """Return the paths to labels; none for a label that has no leaf."""
    columns, values = row_entries(row)
    opened: dict[int, Siblings] = {}

    def siblings(parent: int) -> Siblings:
        if parent not in opened:
            opened[parent] = scored_siblings(tree, parent, columns, values)
        return opened[parent]

    paths = [_paths(tree, label, values, siblings) for label in ids]
    return Trace(columns.astype(np.int64), values, paths, "float32")


def _paths(
    tree: OnlineTree, label: int, values: NDArray[np.float32], siblings: Callable[[int], Siblings]
) -> list[Path]:
    node = int(tree.leaf_of[label])
    if node < 0:
        return []
    steps = []
    while node >= 0:
        parent = int(tree.nodes.parent[node])
        if parent >= 0 or not tree.one_label:  # the root has a classifier if rows may have no label
            steps.append(_step(tree, parent, node, siblings(parent), values))
        node = parent
    return [Path(steps[::-1])]


def _step(tree: OnlineTree, parent: int, node: int, siblings: Siblings, values: NDArray[np.float32]) -> Step:
    at = int(np.flatnonzero(siblings.nodes == node)[0])
    branch = f"child {at + 1} of {len(siblings.nodes)}" if parent >= 0 else "any label at all"
    return linear_step(
        parent, node, branch, float(siblings.probabilities[at]), {"bias": float(siblings.biases[at])},
        siblings.weights[at] * values, some_labels_below(tree, node), int(tree.nodes.n_leaves[node]),
    )  # fmt: skip


def scored_siblings(
    tree: OnlineTree, parent: int, columns: NDArray[np.uint32], values: NDArray[np.float32]
) -> Siblings:
    """Look up the classifiers of the children of a node, or that of the root."""
    arrays = Blocks(*map(read_only, tree.blocks)), Store(*map(read_only, tree.store))
    found, parts = np.empty(len(columns), np.uint64), []
    for block in _blocks(tree, parent):
        out = np.zeros(len(columns) * LANES, np.float32)
        block_weights(block, columns, *arrays, found, out)
        used = int(tree.blocks.used[block])
        parts.append(out.reshape(-1, LANES)[:, :used].T)
    places = np.concatenate([_places(tree, block) for block in _blocks(tree, parent)])
    biases, weights = tree.blocks.bias[places].astype(np.float64), np.concatenate(parts).astype(np.float64)
    with np.errstate(over="ignore"):
        probabilities = 1.0 / (1.0 + np.exp(-(biases + weights @ values.astype(np.float64))))
    if tree.one_label:
        probabilities /= probabilities.sum()
    return Siblings(tree.blocks.child[places], biases, weights, probabilities)


def children_of(tree: OnlineTree, node: int) -> list[int]:
    """Return the children of a node."""
    return [child for block in _blocks(tree, node) for child in tree.blocks.child[_places(tree, block)].tolist()]


def _blocks(tree: OnlineTree, parent: int) -> Iterator[int]:
    block = int(tree.nodes.first_block[parent]) if parent >= 0 else 0
    while block >= 0:
        yield block
        block = int(tree.blocks.following[block]) if parent >= 0 else -1


def _places(tree: OnlineTree, block: int) -> NDArray[np.int64]:
    return np.arange(block * LANES, block * LANES + int(tree.blocks.used[block]))


def some_labels_below(tree: OnlineTree, node: int) -> list[int]:
    """Return some labels below a node, those near to it first."""
    waiting = [node]
    labels: list[int] = []
    for place in waiting:  # appended to during the iteration
        if len(labels) >= LABELS_BELOW:
            break
        if tree.nodes.label[place] >= 0:
            labels.append(int(tree.nodes.label[place]))
            continue
        for block in _blocks(tree, place):
            waiting += tree.blocks.child[_places(tree, block)].tolist()
            if len(waiting) > 2 * LABELS_BELOW:
                break
    return labels
