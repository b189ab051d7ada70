"""New labels in a trained label tree: where they are put, and the classifiers that they get there.

A label is put below the lowest inner node that its examples reach with the highest probability. There it is trained
against the other rows that reach the node, and against the weights of its siblings in place of their rows, which the
model does not have. No other weight changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from treemax.inputs.conversions import blocks
from treemax.inputs.labels import Targets
from treemax.inputs.rows import SparseRows
from treemax.kernels import search as kernels
from treemax.models.label_tree.compact import MAX_CODE, rounded
from treemax.models.label_tree.model import LabelTreeModel
from treemax.models.label_tree.nodes import (
    Common,
    LabelTreeSettings,
    NodeProblem,
    NodeResult,
    RowsInMemory,
    node_costs,
    node_problems,
    train_node,
)
from treemax.models.label_tree.packed_tree import MOST_CHILDREN, NodeWeights, PackedNode, PackedTree
from treemax.models.label_tree.routing import Link, Router, above_labels
from treemax.parallel.threads import interruptible
from treemax.trees import Tree

PROTOTYPE_WEIGHT = (
    0.3  # in rows, of the weights of a sibling: a smaller one finds more new labels and misses more known ones
)
LEAST_PROBABILITY = 1e-4  # minimum probability of a node, so that a single distant example does not decide


class Addition(NamedTuple):
    """New labels and their examples."""

    rows: SparseRows
    targets: Targets  # ids of known labels are kept, those of new labels follow
    n_new: int
    below: Mapping[int, list[int]]  # id of a new label -> known labels that it belongs to; empty for others
    settings: LabelTreeSettings
    max_leaf: int
    seeds: list[int]
    threads: int


def with_new_labels(model: LabelTreeModel, addition: Addition) -> LabelTreeModel:
    """Return the model with new labels."""
    settings = replace(addition.settings, loss=model.loss, leaf_cost=model.cost, held_share=0, precision="bfloat16")
    addition = addition._replace(settings=settings)
    with interruptible():
        trees = tuple(_extended(tree, addition, seed) for tree, seed in zip(model.trees, addition.seeds))
    return replace(model, trees=trees)


def _extended(packed: PackedTree, addition: Addition, seed: int) -> PackedTree:
    """Return one tree with the new labels."""
    old, n_old = packed.tree, packed.tree.n_labels
    parents = _parents(packed, addition)
    tree = Tree.from_parents(
        np.concatenate([old.parent, parents]), np.concatenate([old.label, n_old + np.arange(addition.n_new)])
    )
    number = _numbers(old, tree)
    touched = np.unique(parents)
    trained = _train(packed, tree, number, touched, addition, seed)
    nodes, scales = {}, None
    for node in np.flatnonzero(old.n_children).tolist():
        nodes[int(number[node])] = node_of(packed, node)
    if packed.scales is not None:
        scales = np.zeros(len(tree), dtype=np.float32)
        scales[number] = packed.scales
    for node, new in zip(touched.tolist(), trained):
        at = int(number[node])
        if scales is not None:
            scales[at] = scales[at] or rounded(new)[1]
            new = _quantised(new, scales[at])
        nodes[at] = PackedNode.of(_joined(unpack(node_of(packed, node)), new))
    return PackedTree.join(tree, nodes, packed.link, packed.slopes, packed.shifts, scales)


# --- where labels are put -----------------------------------------------------------------------------------


def _parents(packed: PackedTree, addition: Addition) -> NDArray[np.int64]:
    """Return the node that each new label is put below."""
    tree, n_old = packed.tree, packed.tree.n_labels
    chosen = np.full(addition.n_new, -1)
    for new, known in addition.below.items():
        chosen[new - n_old] = lowest_common(tree, known)
    free = np.flatnonzero(chosen < 0)
    if len(free):
        nodes, scores = _scores_of_nodes(packed, addition)
        room = np.maximum(2 * addition.max_leaf - tree.n_children[nodes], 0)
        for new in free.tolist():
            order = np.argsort(-scores[new], kind="stable")
            best = order[np.argmax(room[order] > 0)] if room.any() else order[0]
            room[best] -= 1
            chosen[new] = nodes[best]
    most = np.bincount(chosen) + tree.n_children[: chosen.max() + 1]
    if most.max() > MOST_CHILDREN:
        raise ValueError(
            f"A node of the tree would have {most.max():,} children, at most {MOST_CHILDREN:,} are possible."
        )
    return chosen


def lowest_common(tree: Tree, labels: list[int]) -> int:
    """Return the lowest inner node above all of these labels."""
    paths = [[0, *tree.path_to(label)[:-1]] for label in labels]
    common = 0
    for steps in zip(*paths):
        if len(set(steps)) > 1:
            break
        common = steps[0]
    return common


def _scores_of_nodes(packed: PackedTree, addition: Addition) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the nodes above labels, and the mean logarithm of their probabilities for the rows of each new label."""
    upper = np.flatnonzero((packed.tree.n_children > 0) & ~above_labels(packed.tree)).tolist()
    if not upper:
        return np.zeros(1, np.int64), np.zeros((addition.n_new, 1))
    link = Link(packed.link, packed.slopes, packed.shifts)
    top, nodes = Router.of(packed.tree, {node: node_of(packed, node) for node in upper}, link)
    scores = np.zeros((addition.n_new, len(nodes)))
    rows, targets, n_old = addition.rows, addition.targets, packed.tree.n_labels
    for block in blocks(len(rows), top.tree.n_labels):
        found = top.probabilities(rows[block], threads=addition.threads)[:, : len(nodes)]
        logs = np.log(np.maximum(found, LEAST_PROBABILITY))
        part = targets[block]
        row = np.repeat(np.arange(len(part)), np.diff(part.indptr))
        ids = part.ids[part.indptr[0] : part.indptr[-1]].astype(np.int64) - n_old
        new = ids >= 0
        pairs = sp.csr_matrix((np.ones(int(new.sum())), (ids[new], row[new])), shape=(addition.n_new, len(part)))
        scores += pairs @ logs
    return nodes, scores


# --- classifiers of new labels ---------------------------------------------------------------------------


def _train(
    packed: PackedTree, tree: Tree, number: NDArray[np.int64], touched: NDArray[np.int64], addition: Addition, seed: int
) -> list[NodeWeights]:
    """Train the new children of the touched nodes; `number` has the nodes of the old tree in the new one."""
    prototypes = [_prototypes(unpack(node_of(packed, node)), addition.rows) for node in touched.tolist()]
    table = _stacked([addition.rows, *prototypes])
    source = RowsInMemory(table, Targets(np.zeros(len(table) + 1, np.int64), np.zeros(0, np.uint32)), addition.threads)
    all_problems = node_problems(tree, addition.targets, node_costs(tree, addition.settings))
    problem_of = {problem.node: problem for problem in all_problems}
    problems, first = [], len(addition.rows)
    for node, extra in zip(touched.tolist(), prototypes):
        n_old = int(packed.tree.n_children[node])
        problems.append(_problem(problem_of[int(number[node])], n_old, np.arange(first, first + len(extra))))
        first += len(extra)
    length = RowsInMemory(addition.rows, addition.targets, 1).length
    common = Common(addition.settings, seed, length, np.zeros(table.n_features, dtype=bool))
    return [unpack(NodeResult.of(arrays).final) for arrays in source.run(train_node, common, problems)]


def _problem(problem: NodeProblem, n_old: int, prototypes: NDArray[np.int64]) -> NodeProblem:
    """Return the problem of the new children of a node, for which its other rows and the prototypes are negative."""
    new = problem.children >= n_old
    counts = np.concatenate([[0], np.cumsum(new)])[problem.child_indptr - problem.child_indptr[0]]
    n_rows, weights = len(problem.rows), problem.row_weights
    weights = weights if len(weights) else np.ones(n_rows, dtype=np.float32)
    weights = np.append(weights, np.full(len(prototypes), PROTOTYPE_WEIGHT, dtype=np.float32))
    return problem._replace(
        n_children=problem.n_children - n_old,
        rows=np.concatenate([problem.rows, prototypes.astype(np.uint32)]),
        child_indptr=np.concatenate([counts, np.full(len(prototypes), counts[-1])]).astype(np.int64),
        children=(problem.children[new] - n_old).astype(np.uint32),
        row_weights=weights,
        pair_weights=problem.pair_weights[new] if len(problem.pair_weights) else problem.pair_weights,
    )


def _prototypes(part: NodeWeights, rows: SparseRows) -> SparseRows:
    """Return the positive weights of every child of a node as a row, as long as the given rows are on average."""
    n_children = len(part.biases)
    feature = np.repeat(part.features, np.diff(part.starts))
    kept = part.weights > 0
    matrix = sp.csr_matrix(
        (part.weights[kept], (part.children[kept], feature[kept])), shape=(n_children, max(rows.n_features, int(feature.max(initial=0)) + 1))
    )  # fmt: skip
    lengths = np.sqrt(matrix.multiply(matrix).sum(axis=1)).A.ravel()
    whole = np.sqrt(np.square(rows.values.astype(np.float64)).sum() / max(1, len(rows)))
    matrix = sp.diags_array(np.divide(whole, lengths, out=np.zeros(n_children), where=lengths > 0)) @ matrix
    matrix = sp.csr_matrix(matrix[lengths > 0], dtype=np.float32)
    matrix.sort_indices()
    return SparseRows(matrix.indptr.astype(np.int64), matrix.indices.astype(np.uint32), matrix.data, matrix.shape[1])


def _stacked(parts: list[SparseRows]) -> SparseRows:
    """Return the rows of several tables as one."""
    ends = np.cumsum([part.indptr[-1] - part.indptr[0] for part in parts])
    starts = ends - [part.indptr[-1] - part.indptr[0] for part in parts]
    indptr = [part.indptr[:-1] - part.indptr[0] + start for part, start in zip(parts, starts)]
    within = [slice(part.indptr[0], part.indptr[-1]) for part in parts]
    return SparseRows(
        np.concatenate([*indptr, ends[-1:]]).astype(np.int64),
        np.concatenate([part.indices[inside] for part, inside in zip(parts, within)]),
        np.concatenate([part.values[inside] for part, inside in zip(parts, within)]),
        max(part.n_features for part in parts),
    )


# --- packed nodes -------------------------------------------------------------------------------------------

_LOW = np.uint64(2**32 - 1)


def node_of(packed: PackedTree, node: int) -> PackedNode:
    """Return the table of one node of a tree."""
    first, last = packed.tables[node], packed.tables[node + 1]
    begin, end = packed.slots[first] & _LOW, packed.slots[last] & _LOW
    slots = packed.slots[first:last] - begin
    return PackedNode(slots, packed.entries[int(begin) : int(end)], packed.bias[packed.tree.children(node)])


def unpack(node: PackedNode) -> NodeWeights:
    """Return the weights of a packed node, by feature in ascending order."""
    slots = np.append(node.slots, kernels.NO_FEATURE << np.uint64(32) | np.uint64(len(node.entries)))
    tables, n_children = np.array([0, len(node.slots)]), np.array([len(node.biases)])
    _, features, counts, children, weights = kernels.unpacked(tables, slots, node.entries, n_children)
    feature = np.repeat(features, counts)
    order = np.argsort(feature, kind="stable")
    return _by_feature(feature[order], children[order], weights[order], node.biases)


def _by_feature(
    feature: NDArray[np.uint32], children: NDArray[np.uint32], weights: NDArray[np.float32], biases: NDArray[np.float32]
) -> NodeWeights:
    features, counts = np.unique(feature, return_counts=True)
    return NodeWeights(features, np.concatenate([[0], np.cumsum(counts)]), children, weights, biases)


def _joined(old: NodeWeights, new: NodeWeights) -> NodeWeights:
    """Return the weights of a node with more children."""
    feature = np.concatenate([np.repeat(part.features, np.diff(part.starts)) for part in (old, new)])
    children = np.concatenate([old.children, new.children + np.uint32(len(old.biases))])
    order = np.argsort(feature, kind="stable")
    weights = np.concatenate([old.weights, new.weights])[order]
    return _by_feature(feature[order], children[order], weights, np.concatenate([old.biases, new.biases]))


def _quantised(part: NodeWeights, scale: np.float32) -> NodeWeights:
    """Round weights to multiples of the scale of their node, so that those of its other children stay as they are."""
    codes = np.clip(np.rint(part.weights / scale), -MAX_CODE, MAX_CODE) if scale > 0 else np.zeros_like(part.weights)
    kept = codes != 0
    feature = np.repeat(part.features, np.diff(part.starts))[kept]
    return _by_feature(feature, part.children[kept], (codes[kept] * scale).astype(np.float32), part.biases)


def _numbers(old: Tree, new: Tree) -> NDArray[np.int64]:
    """Return the numbers in the new tree of the nodes of the old one; new children come after old ones."""
    number = np.zeros(len(old), dtype=np.int64)
    for start, stop in old.level_bounds[1:]:
        nodes = np.arange(start, stop)
        above = old.parent[nodes]
        number[nodes] = new.first_child[number[above]] + nodes - old.first_child[above]
    return number
