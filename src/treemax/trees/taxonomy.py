"""Taxonomies: hierarchies with labels at any node, where a node may have several parents."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from treemax.trees.hierarchy import Name, named_pairs
from treemax.trees.hierarchy_files import read_hierarchy
from treemax.trees.tree import Tree

Ids = NDArray[np.int64]


class Ancestors(NamedTuple):
    """Every node and its ancestors: those of node v are `nodes[starts[v]:starts[v + 1]]`, sorted, v itself last.

    `steps` is the smallest number of edges from v to each.
    """

    starts: Ids
    nodes: Ids
    steps: Ids

    def of(self, nodes: Ids) -> tuple[Ids, Ids, Ids]:
        """Return the ancestors of several nodes: the position in `nodes`, the ancestor, and the steps to it."""
        counts = self.starts[nodes + 1] - self.starts[nodes]
        position = np.repeat(np.arange(len(nodes)), counts)
        entries = np.repeat(self.starts[nodes] - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        return position, self.nodes[entries], self.steps[entries]


class Taxonomy:
    """A hierarchy of labels for answers and metrics: labels may be at any node, and a node may have several parents.

    Level 1 are the nodes without parents. The depth of a node is the length of the longest path to it, so that it is
    always deeper than all of its ancestors. A taxonomy never changes.

    Parameters
    ----------
    hierarchy
        Pairs (parent, child), a nested dictionary, a dictionary from child to parent, or a parent array.

    Examples
    --------
    >>> from treemax import Taxonomy
    >>> taxonomy = Taxonomy([("animal", "mammal"), ("mammal", "whale"), ("sea", "whale"), ("sea", "kelp")])
    >>> taxonomy.ancestors("whale"), taxonomy.depth("whale")
    (['animal', 'sea', 'mammal'], 3)
    >>> taxonomy.distance("whale", "kelp"), taxonomy.distance("animal", "kelp")
    (2, 3)
    """

    def __init__(self, hierarchy: Any) -> None:
        if isinstance(hierarchy, Tree):
            raise ValueError("a Taxonomy needs names, and the inner nodes of a Tree have none.")
        given = dict.fromkeys(named_pairs(hierarchy))
        first = dict.fromkeys(name for pair in given for name in pair if name is not None)
        number = {name: i for i, name in enumerate(first)}
        edges = np.array(
            [(number[parent], number[child]) for parent, child in given if parent is not None], dtype=np.int64
        ).reshape(-1, 2)
        depth = _depths(edges, list(first))
        order = np.argsort(depth, kind="stable")
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        listed = list(first)
        self.names: list[Name] = [listed[i] for i in order.tolist()]
        self.depths: Ids = depth[order]
        self.edges: Ids = place[edges] if len(edges) else edges  # (parent, child), in the given order
        self._node_of = {name: i for i, name in enumerate(self.names)}
        self._bindings: Any = WeakKeyDictionary()

    @classmethod
    def from_file(cls, path: Any, integers: bool = False) -> Taxonomy:
        """Read a taxonomy: lines of parent, tab, child, or JSON in a file `*.json`.

        With `integers`, names that are whole numbers are integers, as labels of a model may be.
        """
        return cls(read_hierarchy(path, integers))

    def __len__(self) -> int:
        """Return the number of nodes."""
        return len(self.names)

    def __contains__(self, name: Any) -> bool:
        return name in self._node_of

    def __repr__(self) -> str:
        return f"Taxonomy of {len(self):,} nodes on {self.n_levels} levels"

    def __deepcopy__(self, memo: dict[int, Any]) -> Taxonomy:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_bindings": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = {**state, "_bindings": WeakKeyDictionary()}

    @property
    def n_levels(self) -> int:
        """The depth of the deepest node."""
        return int(self.depths[-1]) if len(self) else 0

    def level(self, depth: int) -> list[Name]:
        """Return the nodes of this depth; 1 for the nodes without parents."""
        start, stop = np.searchsorted(self.depths, [depth, depth + 1])
        return self.names[start:stop]

    def parents(self, name: Name) -> list[Name]:
        """Return the parents of a node, in the given order."""
        return [self.names[i] for i in self.edges[self.edges[:, 1] == self._node(name), 0].tolist()]

    def children(self, name: Name) -> list[Name]:
        """Return the children of a node, in the given order."""
        return [self.names[i] for i in self.edges[self.edges[:, 0] == self._node(name), 1].tolist()]

    def ancestors(self, name: Name) -> list[Name]:
        """Return all nodes above a node, those of smaller depth first."""
        return [self.names[i] for i in self.above.of(np.array([self._node(name)]))[1][:-1].tolist()]

    def depth(self, name: Name) -> int:
        """Return the length of the longest path to a node; 1 for nodes without parents."""
        return int(self.depths[self._node(name)])

    def distance(self, one: Name, other: Name) -> int:
        """Return the number of edges between two nodes, up to a common ancestor and down.

        A root above all nodes without parents connects those that have no common ancestor.
        """
        nodes = np.array([[self._node(one)], [self._node(other)]])
        return int(self.distances(nodes[0], nodes[1])[0])

    def nodes_of(self, names: list[Any]) -> Ids:
        """Return the numbers of nodes, -1 for names that are not in the taxonomy."""
        return np.array([self._node_of.get(name, -1) for name in names], dtype=np.int64)

    @cached_property
    def above(self) -> Ancestors:
        """The ancestors of every node."""
        return _ancestors(self.edges, self.depths)

    @cached_property
    def steps_to_root(self) -> Ids:
        """The smallest number of edges from every node to a root above all nodes without parents."""
        return np.minimum.reduceat(
            np.where(self.depths[self.above.nodes] == 1, self.above.steps + 1, len(self) + 1), self.above.starts[:-1]
        )

    def distances(self, ones: Ids, others: Ids) -> Ids:
        """Return the distances between pairs of nodes; -1 stands for the root."""
        to_root = np.append(self.steps_to_root, 0) if len(self) else np.zeros(1, dtype=np.int64)
        found = to_root[ones] + to_root[others]
        both = np.flatnonzero((ones >= 0) & (others >= 0))
        pair, node, steps = self.above.of(ones[both])
        other_pair, other_node, other_steps = self.above.of(others[both])
        _, first, second = np.intersect1d(
            pair * len(self) + node, other_pair * len(self) + other_node, assume_unique=True, return_indices=True
        )
        np.minimum.at(found, both[pair[first]], steps[first] + other_steps[second])
        return found

    def hierarchy_pairs(self) -> Iterator[tuple[Name | None, Name]]:
        """Yield pairs (parent, child), and (None, node) for nodes without parents."""
        for name in self.level(1):
            yield None, name
        for parent, child in self.edges.tolist():
            yield self.names[parent], self.names[child]

    def _node(self, name: Any) -> int:
        if name not in self._node_of:
            raise ValueError(f"{name!r} is not in the taxonomy.")
        return self._node_of[name]


def _depths(edges: Ids, names: list[Name]) -> Ids:
    """Return the length of the longest path to every node; raise ValueError if there is a cycle."""
    n_nodes = len(names)
    waiting = np.bincount(edges[:, 1], minlength=n_nodes)  # parents without a depth
    by_parent = edges[np.argsort(edges[:, 0], kind="stable"), 1]
    starts = np.concatenate([[0], np.cumsum(np.bincount(edges[:, 0], minlength=n_nodes))])
    depth = np.zeros(n_nodes, dtype=np.int64)
    level, reached = np.flatnonzero(waiting == 0), 0
    while len(level):
        reached += 1
        depth[level] = reached
        counts = starts[level + 1] - starts[level]
        entries = np.repeat(starts[level] - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        children, n_parents = np.unique(by_parent[entries], return_counts=True)
        waiting[children] -= n_parents
        level = children[waiting[children] == 0]
    if (depth == 0).any():
        raise ValueError(f"the hierarchy has a cycle through {names[_on_cycle(edges, depth == 0)]!r}.")
    return depth


def _on_cycle(edges: Ids, left: NDArray[np.bool_]) -> int:
    """Return a node of a cycle; all nodes that are `left` have a parent that is left."""
    parent_of = {child: parent for parent, child in edges.tolist() if left[parent] and left[child]}
    node, passed = int(np.argmax(left)), set()
    while node not in passed:
        passed.add(node)
        node = parent_of[node]
    return node


def _ancestors(edges: Ids, depths: Ids) -> Ancestors:
    """Return the ancestors of every node, level by level; nodes are sorted by depth."""
    n_nodes = len(depths)
    edges = edges[np.argsort(edges[:, 1], kind="stable")]
    first_edge = np.searchsorted(edges[:, 1], np.arange(n_nodes + 1))
    bounds = np.searchsorted(depths, np.arange(1, (depths[-1] if n_nodes else 0) + 2))
    starts = np.zeros(n_nodes + 1, dtype=np.int64)
    known = Ancestors(starts, np.empty(0, np.int64), np.empty(0, np.int64))
    size, room = 0, 0
    for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist()):
        of_level = edges[first_edge[begin] : first_edge[end]]
        child, above, far = _of_level(of_level, np.arange(begin, end), known)
        starts[begin + 1 : end + 1] = size + np.cumsum(np.bincount(child - begin, minlength=end - begin))
        if size + len(above) > room:  # double the arrays, since there may be thousands of levels
            room = 2 * (size + len(above))
            known = Ancestors(starts, *(np.resize(part, room) for part in known[1:]))
        known.nodes[size : size + len(above)], known.steps[size : size + len(above)] = above, far
        size += len(above)
    return Ancestors(starts, known.nodes[:size].copy(), known.steps[:size].copy())


def _of_level(edges: Ids, nodes: Ids, known: Ancestors) -> tuple[Ids, Ids, Ids]:
    """Return node, ancestor and steps for the nodes `own` of one level, from the edges to them, sorted by child."""
    position, above, far = known.of(edges[:, 0])
    child = edges[position, 1]
    if len(np.unique(edges[:, 1])) == len(edges):  # one parent each: the ancestors are those of the parent
        last = np.searchsorted(child, nodes, side="right")
        return np.insert(child, last, nodes), np.insert(above, last, nodes), np.insert(far + 1, last, 0)
    child, above = np.concatenate([child, nodes]), np.concatenate([above, nodes])
    far = np.concatenate([far + 1, np.zeros(len(nodes), dtype=np.int64)])
    order = np.lexsort((far, above, child))
    child, above, far = child[order], above[order], far[order]
    new = np.append(True, (np.diff(child) != 0) | (np.diff(above) != 0))
    return child[new], above[new], far[new]
