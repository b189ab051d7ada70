"""Split wide nodes of a hierarchy, so that they are cheap to train."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from treemax.inputs.rows import SparseRows, as_rows
from treemax.trees.builders import even_arity
from treemax.trees.kmeans import kmeans_tree, unit_rows
from treemax.trees.tree import NO_LABEL, Tree


def refine_tree(tree: Tree, vectors: SparseRows, max_leaf: int, seed: int = 0, threads: int = 1) -> Tree:
    """Insert inner nodes between each node with more than `max_leaf` children and its children.

    Children with similar label vectors are grouped. All nodes of the hierarchy keep their descendants.
    """
    wide = np.flatnonzero(tree.n_children > max_leaf)
    if len(wide) == 0:
        return tree
    label_matrix = vectors.to_scipy()
    parents, labels = tree.parent.tolist(), tree.label.tolist()
    for node in wide.tolist():
        children = tree.children(node)
        groups = kmeans_tree(
            _vectors_of_children(tree, node, label_matrix), even_arity(len(children), max_leaf), max_leaf,
            seed + node, threads,
        )  # fmt: skip
        number = np.full(len(groups), node)  # numbers of the new nodes in the whole tree; their root is the node itself
        for group in range(1, len(groups)):
            above = int(number[groups.parent[group]])
            if groups.label[group] >= 0:
                parents[children[groups.label[group]]] = above
                continue
            number[group] = len(parents)
            parents.append(above)
            labels.append(NO_LABEL)
    return Tree.from_parents(parents, labels)


def _vectors_of_children(tree: Tree, node: int, label_matrix: sp.csr_matrix) -> SparseRows:
    """Return the vector of each child of a node: the sum of the labels below it, with unit norm."""
    found, owners = _labels_below(tree, node)
    shape = (int(tree.n_children[node]), len(found))
    members = sp.csr_matrix((np.ones(len(found), np.float32), (owners, np.arange(len(found)))), shape=shape)
    sums = as_rows(sp.csr_matrix(members @ label_matrix[found]))
    assert isinstance(sums, SparseRows)
    return unit_rows(sums)


def _labels_below(tree: Tree, node: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the labels below a node, and the child that each of them is below."""
    start, stop = int(tree.first_child[node]), int(tree.first_child[node] + tree.n_children[node])
    owner = np.arange(stop - start)
    found, owners = [], []
    while start < stop:  # the descendants of a node are contiguous on every level
        leaves = tree.label[start:stop] >= 0
        found.append(tree.label[start:stop][leaves])
        owners.append(owner[leaves])
        below = tree.n_children[start:stop]
        inner = np.flatnonzero(below)
        owner = np.repeat(owner, below)
        start = int(tree.first_child[start + inner[0]]) if len(inner) else stop
        stop = start + len(owner) if len(inner) else stop
    return np.concatenate(found), np.concatenate(owners)
