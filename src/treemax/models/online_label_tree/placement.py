"""Where the new labels of a given hierarchy belong in a tree that grows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.labels import LabelIndex
from treemax.models.online_label_tree.model import OnlineTree
from treemax.trees.hierarchy import ParentOf, parents_by_name


class Placement:
    """The tree node of each category of a hierarchy: the lowest one above all known labels of the category."""

    def __init__(self, hierarchy: object, index: LabelIndex, tree: OnlineTree) -> None:
        self._parent_of: ParentOf = parents_by_name(hierarchy)
        self._categories = set(self._parent_of.values())
        self.index = index
        self._node_of: dict[str | int, int] = {}
        self._categories_at: dict[int, set[str | int]] = defaultdict(set)
        for label in np.flatnonzero(tree.leaf_of >= 0).tolist():
            self._add(tree, label)
        self.n_nodes = tree.n_nodes  # when it was last up to date

    def start(self, tree: OnlineTree, label: int) -> int:
        """Return the node from which the policy places a new label: that of its nearest category with known labels."""
        known = (self._node_of[name] for name in self._ancestors(label) if name in self._node_of)
        node = next(known, 0)
        if tree.nodes.first_block[node] < 0:  # a leaf that cannot be extended: the label goes beside it
            return int(tree.nodes.parent[node])
        return node

    def update(self, tree: OnlineTree, label: int) -> None:
        """Take a new leaf into account, and the node that was inserted above its siblings, if any."""
        if tree.n_nodes == self.n_nodes + 2:
            inserted = self.n_nodes
            for name in self._categories_at.pop(int(tree.nodes.parent[inserted]), set()):
                self._put(name, inserted)
        self._add(tree, label)
        self.n_nodes = tree.n_nodes

    def _add(self, tree: OnlineTree, label: int) -> None:
        leaf = int(tree.leaf_of[label])
        for name in self._ancestors(label):
            before = self._node_of.get(name)
            node = leaf if before is None else _lowest_common(tree.nodes.parent, before, leaf)
            if node == before:
                return  # categories further up have nodes further up
            if before is not None:
                self._categories_at[before].discard(name)
            self._put(name, node)

    def _put(self, name: str | int, node: int) -> None:
        self._node_of[name] = node
        self._categories_at[node].add(name)

    def _ancestors(self, label: int) -> Iterator[str | int]:
        """Yield the categories of a label, the nearest first."""
        first: str | int = self.index.labels([label]).tolist()[0]
        name = first if first in self._categories else self._parent_of.get(first)
        passed: set[str | int] = set()
        while name is not None:
            if name in passed:
                raise ValueError(f"the hierarchy has a cycle through {name!r}.")
            passed.add(name)
            yield name
            name = self._parent_of.get(name)


def _lowest_common(parent: NDArray[np.int64], one: int, other: int) -> int:
    """Return the lowest node that is above or equal to both."""
    above = {one}
    while parent[one] >= 0:
        one = int(parent[one])
        above.add(one)
    while other not in above:
        other = int(parent[other])
    return other
