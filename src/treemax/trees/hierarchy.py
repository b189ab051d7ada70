"""A tree from the user's own hierarchy: a taxonomy as edges, as a nested dictionary or as a parent array."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from treemax.labels import LabelIndex
from treemax.trees.tree import NO_LABEL, Tree


def tree_of(hierarchy: Any, labels: LabelIndex) -> Tree:
    """The part of a hierarchy that leads to these labels, as a tree.

    A hierarchy is a nested dictionary (`{"animal": {"cat": {}, "dog": {}}}`; a list may stand for leaves), a
    dictionary from child to parent, or pairs (parent, child). Branches without a label are left out, and so
    are nodes with a single child. A label that is itself a parent gets a leaf of its own under that node;
    labels that the hierarchy does not know hang from the root.

    >>> tree = tree_of({"animal": {"cat": {}, "dog": {}}, "plant": ["fern"]}, LabelIndex(["cat", "dog", "fern"]))
    >>> tree.n_children.tolist(), tree.label.tolist()
    ([2, 2, 0, 0, 0], [-1, -1, 2, 0, 1])
    """
    parent_of = _read(hierarchy)
    numbers: dict[Any, int] = {}  # inner nodes of the hierarchy in use -> node
    parents, names = [-1], [NO_LABEL]

    def inner(name: Any) -> int:
        chain = []
        seen = set()
        while name is not None and name not in numbers:
            if name in seen:
                raise ValueError(f"the hierarchy has a circle through {name!r}.")
            seen.add(name)
            chain.append(name)
            name = parent_of.get(name)
        node = 0 if name is None else numbers[name]
        for step in reversed(chain):
            parents.append(node)
            names.append(NO_LABEL)
            node = numbers[step] = len(parents) - 1
        return node

    own = set(parent_of.values())
    for number, label in enumerate(labels.classes.tolist()):
        above = inner(label) if label in own else inner(parent_of.get(label))
        parents.append(above)
        names.append(number)
    return Tree.from_parents(*_without_single_children(parents, names))


def _read(hierarchy: Any) -> dict[Any, Any]:
    """The parent of every node that has one."""
    if isinstance(hierarchy, Mapping):
        nested = any(isinstance(value, Mapping | list | tuple | set) for value in hierarchy.values())
        pairs = (
            _nested_pairs(hierarchy, None)
            if nested
            else ((parent, child) for child, parent in hierarchy.items())
        )
    elif isinstance(hierarchy, Iterable) and not isinstance(hierarchy, str):
        pairs = (_edge(pair) for pair in hierarchy)
    else:
        raise ValueError(
            f"a hierarchy is a dictionary or pairs (parent, child), got {type(hierarchy).__name__}."
        )
    parent_of: dict[Any, Any] = {}
    for parent, child in pairs:
        if parent is None:
            continue
        if parent_of.setdefault(child, parent) != parent:
            raise ValueError(
                f"{child!r} has two parents in the hierarchy, {parent_of[child]!r} and {parent!r}."
            )
    return parent_of


def _edge(pair: Any) -> tuple[Any, Any]:
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise ValueError(f"an edge of a hierarchy is a pair (parent, child), got {pair!r}.")
    return pair[0], pair[1]


def _nested_pairs(branch: Any, parent: Any) -> Iterable[tuple[Any, Any]]:
    waiting = [(branch, parent)]
    while waiting:
        branch, parent = waiting.pop()
        for child in branch:
            yield parent, child
            below = branch[child] if isinstance(branch, Mapping) else None
            if below is not None and not isinstance(below, Mapping | list | tuple | set):
                raise ValueError(
                    f"below {child!r} the hierarchy has {below!r}; expected a dictionary or a list."
                )
            if below:
                waiting.append((below, child))


def _without_single_children(parents: list[int], names: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """A node with one child decides nothing: its child takes its place."""
    parent, name = np.array(parents), np.array(names)
    children = np.bincount(parent[1:], minlength=len(parent))
    skipped = (children == 1) & (name == NO_LABEL)
    skipped[0] = False
    top = 0  # a chain of single children below the root: the last of them gives its children to the root
    while children[top] == 1 and name[below := int(np.flatnonzero(parent == top)[0])] == NO_LABEL:
        skipped[below], top = True, below
    for node in range(1, len(parent)):  # parents come before children
        while parent[node] > 0 and skipped[parent[node]]:
            parent[node] = parent[parent[node]]
    kept = np.flatnonzero(~skipped)
    number = np.full(len(parent) + 1, -1)
    number[kept] = np.arange(len(kept))
    return number[parent[kept]], name[kept]
