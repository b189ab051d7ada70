"""The decisions of an online label tree for one row, with the weights of its features."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from treemax.explanations import Path, Step, Trace, linear_step
from treemax.inputs.rows import Rows, read_only
from treemax.models.online_label_tree.kernels import LANES, Blocks, Nodes, Store
from treemax.models.online_label_tree.weight_kernels import block_weights, labels_below
from treemax.models.trained.tracing import row_entries

if TYPE_CHECKING:
    from treemax.models.online_label_tree.model import OnlineTree

LABELS_BELOW = 64  # among which the most frequent are found
NONE_BELOW = np.zeros(0, np.int64)  # only the labels below the nodes of the first label are shown


class Siblings(NamedTuple):
    """The children of a node: their numbers, biases, weights for the features of the row, and probabilities."""

    nodes: NDArray[np.int64]
    biases: NDArray[np.float64]
    weights: NDArray[np.float64]
    probabilities: NDArray[np.float64]


def trace_labels(tree: OnlineTree, row: Rows, ids: Sequence[int]) -> Trace:
    """Return the paths to labels; none for a label that has no leaf."""
    columns, values = row_entries(row)
    arrays = read_arrays(tree)
    opened: dict[int, Siblings] = {}
    steps: dict[int, Step] = {}  # by child: paths share the first ones

    def step_to(parent: int, node: int, is_first: bool) -> Step:
        if node not in steps:
            if parent not in opened:
                opened[parent] = scored_siblings(tree, parent, columns, values, arrays)
            below = some_labels_below(tree, node, arrays[0]) if is_first else NONE_BELOW
            steps[node] = _step(tree, parent, node, opened[parent], values, below)
        return steps[node]

    paths = [_paths(tree, label, step_to, place == 0) for place, label in enumerate(ids)]
    return Trace(columns.astype(np.int64), values, paths, "float32")


def read_arrays(tree: OnlineTree) -> tuple[Blocks, Store]:
    """Return the arrays of the weights for kernels."""
    return Blocks(*map(read_only, tree.blocks)), Store(*map(read_only, tree.store))


def _paths(tree: OnlineTree, label: int, step_to: Callable[[int, int, bool], Step], is_first: bool) -> list[Path]:
    node = int(tree.leaf_of[label])
    if node < 0:
        return []
    steps = []
    while node >= 0:
        parent = int(tree.nodes.parent[node])
        if parent >= 0 or not tree.one_label:  # the root has a classifier if rows may have no label
            steps.append(step_to(parent, node, is_first))
        node = parent
    return [Path(steps[::-1])]


def _step(
    tree: OnlineTree,
    parent: int,
    node: int,
    siblings: Siblings,
    values: NDArray[np.float32],
    below: Sequence[int] | NDArray[np.int64],
) -> Step:
    at = int(np.flatnonzero(siblings.nodes == node)[0])
    branch = f"child {at + 1} of {len(siblings.nodes)}" if parent >= 0 else "any label at all"
    return linear_step(
        parent, node, branch, float(siblings.probabilities[at]), {"bias": float(siblings.biases[at])},
        siblings.weights[at] * values, below, int(tree.nodes.n_leaves[node]),
    )  # fmt: skip


def scored_siblings(
    tree: OnlineTree,
    parent: int,
    columns: NDArray[np.uint32],
    values: NDArray[np.float32],
    arrays: tuple[Blocks, Store] | None = None,
) -> Siblings:
    """Look up the classifiers of the children of a node, or that of the root; `arrays` are those of `read_arrays`."""
    arrays = arrays or read_arrays(tree)
    found, parts, places = np.empty(len(columns), np.uint64), [], []
    for block in _blocks(tree, parent):
        out, own = np.zeros((len(columns), LANES), np.float32), _places(tree, block)
        block_weights(block, columns, *arrays, found, out.reshape(-1))
        parts.append(out[:, : own.stop - own.start].T)
        places.append(own)
    biases = np.concatenate([tree.blocks.bias[own] for own in places], dtype=np.float64)
    nodes = np.concatenate([tree.blocks.child[own] for own in places])
    weights = np.concatenate(parts, dtype=np.float64)
    logits = np.clip(biases + weights @ values, -700.0, 700.0)  # without overflow
    probabilities = 1.0 / (1.0 + np.exp(-logits))
    if tree.scaled:
        probabilities /= probabilities.sum()
    return Siblings(nodes, biases, weights, probabilities)


def children_of(tree: OnlineTree, node: int) -> list[int]:
    """Return the children of a node."""
    return [child for block in _blocks(tree, node) for child in tree.blocks.child[_places(tree, block)].tolist()]


def _blocks(tree: OnlineTree, parent: int) -> Iterator[int]:
    block = int(tree.nodes.first_block[parent]) if parent >= 0 else 0
    while block >= 0:
        yield block
        block = int(tree.blocks.following[block]) if parent >= 0 else -1


def _places(tree: OnlineTree, block: int) -> slice:
    return slice(block * LANES, block * LANES + int(tree.blocks.used[block]))


def some_labels_below(tree: OnlineTree, node: int, blocks: Blocks | None = None) -> NDArray[np.int64]:
    """Return some labels below a node, those near to it first."""
    nodes, blocks = Nodes(*map(read_only, tree.nodes)), blocks or read_arrays(tree)[0]
    waiting, labels = np.empty(16 * LABELS_BELOW, np.int64), np.empty(LABELS_BELOW, np.int64)
    return labels[: labels_below(node, nodes, blocks, waiting, labels)]
