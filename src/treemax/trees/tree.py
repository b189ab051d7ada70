"""A tree over labels, as flat arrays.

Nodes are numbered breadth-first from the root, 0, so that siblings are contiguous and parents come before
children. Every leaf is one label; every label has one leaf.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

NO_LABEL = -1


@dataclass(frozen=True, eq=False)
class Tree:
    """A tree over labels.

    The children of node v are `first_child[v]` to `first_child[v] + n_children[v] - 1`; a leaf has none, and
    `label[v]` is the id of its label (-1 for inner nodes).

    >>> tree = Tree.from_parents([-1, 0, 0, 1, 1], [-1, -1, 2, 0, 1])
    >>> tree.children(1), tree.label.tolist(), tree.depth
    (range(3, 5), [-1, -1, 2, 0, 1], 2)
    """

    first_child: NDArray[np.int64]
    n_children: NDArray[np.int64]
    label: NDArray[np.int64]

    @classmethod
    def from_parents(cls, parents: Sequence[int] | NDArray[Any], label: Sequence[int] | NDArray[Any]) -> Tree:
        """Build a tree from the parent of every node (-1 for the root) and the label of every leaf (-1 elsewhere).

        Nodes may be in any order. Raises unless they form one tree with one leaf per label."""
        parent, labels = np.asarray(parents, dtype=np.int64), np.asarray(label, dtype=np.int64)
        _check_parents(parent, labels)
        order = _breadth_first(parent)
        number = np.empty(len(parent), dtype=np.int64)
        number[order] = np.arange(len(parent))
        new_parent = np.where(parent[order] < 0, -1, number[parent[order]])
        n_children = np.bincount(new_parent[1:], minlength=len(parent))
        first_child = 1 + np.concatenate([[0], np.cumsum(n_children)[:-1]])
        tree = cls(first_child, n_children, labels[order])
        _check_labels(tree)
        return tree

    def __len__(self) -> int:
        return len(self.label)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tree:
        """Return the tree itself, which never changes; what is derived from it may, while it is copied."""
        return self

    @property
    def n_labels(self) -> int:
        return int((self.label >= 0).sum())

    def children(self, node: int) -> range:
        return range(self.first_child[node], self.first_child[node] + self.n_children[node])

    @cached_property
    def parent(self) -> NDArray[np.int64]:
        """The parent of every node; -1 for the root."""
        parent = np.full(len(self), -1, dtype=np.int64)
        parent[1:] = np.repeat(np.arange(len(self)), self.n_children)
        return parent

    @cached_property
    def leaf_of(self) -> NDArray[np.int64]:
        """The leaf of every label."""
        leaf = np.empty(self.n_labels, dtype=np.int64)
        leaves = np.flatnonzero(self.label >= 0)
        leaf[self.label[leaves]] = leaves
        return leaf

    def path_to(self, label: int) -> list[int]:
        """Return the nodes from a child of the root to the leaf of a label."""
        node, nodes = int(self.leaf_of[label]), []
        while node > 0:
            nodes.append(node)
            node = int(self.parent[node])
        return nodes[::-1]

    def below(self, node: int, most: int | None = None) -> tuple[NDArray[np.int64], int]:
        """Return at most `most` of the labels below a node, and the number of all; only these nodes are visited."""
        first, stop, n_labels, found = node, node + 1, 0, [self.label[:0]]
        while first < stop:  # the descendants on a level are contiguous
            n_labels += stop - first - int(self._inner_before[stop] - self._inner_before[first])
            if most is None or sum(map(len, found)) < most:
                labels = self.label[first : stop if most is None else min(stop, first + most)]
                found.append(labels[labels >= 0])
            first, stop = int(self.first_child[first]), int(self.first_child[stop - 1] + self.n_children[stop - 1])
        return np.concatenate(found)[:most], n_labels

    @cached_property
    def _inner_before(self) -> NDArray[np.int64]:
        """The number of inner nodes before every node, and in all."""
        return np.concatenate([[0], np.cumsum(self.n_children > 0)])

    @cached_property
    def level(self) -> NDArray[np.int64]:
        """The depth of every node; the root's is 0."""
        level = np.zeros(len(self), dtype=np.int64)
        for start, stop in self.level_bounds[1:]:
            level[start:stop] = level[self.parent[start]] + 1
        return level

    @cached_property
    def level_bounds(self) -> list[tuple[int, int]]:
        """First and past-the-end node of every level."""
        bounds = [(0, 1)]
        while True:
            start, stop = bounds[-1]
            width = int(self.n_children[start:stop].sum())
            if width == 0:
                return bounds
            bounds.append((stop, stop + width))

    @property
    def depth(self) -> int:
        """Number of edges from the root to the deepest leaf."""
        return len(self.level_bounds) - 1

    def without_labels(self, kept: NDArray[np.bool_]) -> tuple[Tree, NDArray[np.int64]]:
        """Return the tree of the `kept` labels, renumbered, and its nodes as numbers of this tree.

        Nodes without labels below them are removed; nodes with a single child remain.

        >>> tree = Tree.from_parents([-1, 0, 0, 1, 1], [-1, -1, 2, 0, 1])
        >>> smaller, nodes = tree.without_labels(np.array([True, False, False]))
        >>> smaller.label.tolist(), nodes.tolist()
        ([-1, -1, 0], [0, 1, 3])
        """
        stays = np.zeros(len(self), dtype=bool)
        stays[self.leaf_of[kept]] = True
        for start, stop in self.level_bounds[:0:-1]:
            stays[self.parent[start:stop][stays[start:stop]]] = True
        nodes = np.flatnonzero(stays)
        n_children = np.bincount(self.parent[nodes[1:]], minlength=len(self))[nodes]
        first_child = 1 + np.concatenate([[0], np.cumsum(n_children)[:-1]])
        number = np.append(np.cumsum(kept) - 1, NO_LABEL)
        return Tree(first_child, n_children, number[self.label[nodes]]), nodes

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays for the model file."""
        return {"n_children": self.n_children, "label": self.label}

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[Any]]) -> Tree:
        """Validate and restore a tree from its arrays."""
        n_children, label = arrays["n_children"], arrays["label"]
        valid = n_children.dtype == label.dtype == np.int64 and n_children.shape == label.shape
        valid = valid and n_children.ndim == 1 and len(label) > 0 and int(n_children.min()) >= 0
        valid = valid and int(n_children.max()) < len(label) and int(n_children.sum()) == len(label) - 1
        if not valid:
            raise ValueError("the tree is damaged: its arrays are inconsistent")
        first_child = 1 + np.concatenate([[0], np.cumsum(n_children)[:-1]])
        inner = n_children > 0
        if (first_child[inner] <= np.flatnonzero(inner)).any():
            raise ValueError("the tree is damaged: a node precedes its parent")
        tree = cls(first_child, n_children, label)
        _check_labels(tree)
        return tree


def _check_parents(parent: NDArray[np.int64], label: NDArray[np.int64]) -> None:
    if parent.ndim != 1 or parent.shape != label.shape or len(parent) == 0:
        raise ValueError(
            f"a tree needs one parent and one label per node, got shapes {parent.shape} and {label.shape}."
        )
    roots = np.flatnonzero(parent < 0)
    if len(roots) != 1:
        raise ValueError(f"a tree has one root (parent -1), got {len(roots)}.")
    if parent.max(initial=-1) >= len(parent):
        raise ValueError(f"node {int(parent.argmax())} has parent {parent.max()}, but there are {len(parent)} nodes.")


def _breadth_first(parent: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the nodes by depth, siblings together and in the given order."""
    by_parent = np.argsort(parent, kind="stable")
    starts = np.searchsorted(parent[by_parent], np.arange(len(parent) + 1))
    level = by_parent[:1]  # the root has the smallest parent
    levels = [level]
    while len(level):
        first, count = starts[level], starts[level + 1] - starts[level]
        level = by_parent[np.repeat(first - np.cumsum(count) + count, count) + np.arange(count.sum())]
        levels.append(level)
    order = np.concatenate(levels)
    if len(order) != len(parent):
        missing = np.setdiff1d(np.arange(len(parent)), order)
        raise ValueError(f"node {missing[0]} cannot be reached from the root: its parents form a cycle.")
    return order


def _check_labels(tree: Tree) -> None:
    """Check that the leaves have the labels 0, 1, 2, ... once each, and inner nodes none."""
    leaves = tree.n_children == 0
    if (tree.label[~leaves] >= 0).any():
        raise ValueError("an inner node of the tree has a label; only leaves may.")
    labels = tree.label[leaves]
    if (labels < 0).any():
        raise ValueError("a leaf of the tree has no label.")
    if not np.array_equal(np.sort(labels), np.arange(len(labels))):
        raise ValueError(
            f"the {len(labels)} leaves of the tree must have the labels 0 to {len(labels) - 1}, once each."
        )
