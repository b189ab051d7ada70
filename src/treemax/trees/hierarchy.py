"""Trees from a given hierarchy: a taxonomy as edges, a dictionary or a parent array."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.labels import LabelIndex
from treemax.trees.tree import NO_LABEL, Tree

Name = str | int
ParentOf = dict[Name, Name]
_BELOW = (Mapping, list, tuple, set, frozenset)  # types of the children in a nested dictionary


def tree_of(hierarchy: Any, labels: LabelIndex) -> Tree:
    """Build the tree of the part of a hierarchy above these labels.

    A hierarchy is one of

    - pairs (parent, child), as a list or as an array of two columns;
    - a nested dictionary, `{"animal": {"cat": {}, "dog": {}}, "plant": ["fern"]}`;
    - a dictionary from child to parent (None for a node without one);
    - a parent array: entry i is the parent of node i, -1 for none. Node i is the label i; if labels are strings,
      the first nodes are the labels in sorted order, and every node without children must be one;
    - a `Tree`, whose leaves are the ids of the labels in sorted order.

    Branches without a label and nodes with a single child are removed. A label that is itself a parent gets a leaf
    below that node; labels outside the hierarchy become children of the root.

    >>> tree = tree_of({"animal": {"cat": {}, "dog": {}}, "plant": ["fern"]}, LabelIndex(["cat", "dog", "fern"]))
    >>> tree.n_children.tolist(), tree.label.tolist()
    ([2, 2, 0, 0, 0], [-1, -1, 2, 0, 1])
    """
    if isinstance(hierarchy, Tree):
        return _check_n_labels(hierarchy, len(labels))
    parent_of = parents_by_name(hierarchy)
    names: list[Name] = labels.classes.tolist()
    if labels.holds_strings and _as_parent_array(hierarchy) is not None:
        parent_of = _named(parent_of, names)
    own = set(parent_of.values())
    if parent_of and not any(name in parent_of or name in own for name in names):
        raise ValueError(
            f"The hierarchy has none of the {len(names)} labels: they are like {names[0]!r}, "
            f"its nodes like {next(iter(parent_of))!r}."
        )
    return _branches_to(parent_of, own, names)


def parents_by_name(hierarchy: Any) -> ParentOf:
    """Return the parent of every node that has one, for any form of hierarchy except `Tree`.

    >>> parents_by_name([("animal", "cat"), ("animal", "dog")])
    {'cat': 'animal', 'dog': 'animal'}
    """
    parent_of: ParentOf = {}
    for parent, child in _pairs(hierarchy):
        if parent is None:
            continue
        parent, child = _name(parent), _name(child)
        if parent_of.setdefault(child, parent) != parent:
            raise ValueError(f"{child!r} has two parents in the hierarchy, {parent_of[child]!r} and {parent!r}.")
    return parent_of


def is_hierarchy(value: Any) -> bool:
    """Return whether a parameter is a hierarchy, not the name of a builder."""
    return isinstance(value, Tree | Mapping) or (isinstance(value, Iterable) and not isinstance(value, str))


def with_names(hierarchy: Any, names: Mapping[Any, Any]) -> Any:
    """Return a hierarchy whose nodes have new names; the children of nodes without one (None) move to their parents.

    Forms without names, and a hierarchy without these nodes, are returned as they are.

    >>> with_names({"animal": ["cat", "dog"]}, {"cat": None, "dog": "hound"})
    {'hound': 'animal'}
    """
    if isinstance(hierarchy, Tree) or _as_parent_array(hierarchy) is not None:
        return hierarchy
    parent_of = parents_by_name(hierarchy)
    if not (names.keys() & parent_of.keys() or names.keys() & set(parent_of.values())):
        return hierarchy
    changed: ParentOf = {}
    for child, parent in parent_of.items():
        while parent in parent_of and names.get(parent, parent) is None:
            parent = parent_of[parent]
        child, parent = names.get(child, child), names.get(parent, parent)
        if child is not None and parent is not None:
            changed[child] = parent
    return changed


def hierarchy_arrays(hierarchy: Any) -> dict[str, NDArray[Any]]:
    """Return the arrays of a hierarchy for the model file; names are stored as JSON."""
    if isinstance(hierarchy, Tree):
        return hierarchy.arrays()
    array = _as_parent_array(hierarchy)
    if array is not None:
        return {"parents": array}
    pairs = json.dumps(list(parents_by_name(hierarchy).items()), separators=(",", ":"))
    return {"names": np.frombuffer(pairs.encode("ascii"), dtype=np.uint8)}


def hierarchy_from_arrays(arrays: dict[str, NDArray[Any]]) -> Any:
    """Restore a hierarchy; edges and dictionaries become a dictionary from child to parent."""
    if "names" in arrays:
        return dict(json.loads(arrays["names"].tobytes()))
    return np.array(arrays["parents"]) if "parents" in arrays else Tree.from_arrays(arrays)


def _pairs(hierarchy: Any) -> Iterator[tuple[Any, Any]]:
    array = _as_parent_array(hierarchy)
    if array is not None:
        yield from _array_pairs(array)
    elif isinstance(hierarchy, Mapping):
        nested = any(isinstance(value, _BELOW) for value in hierarchy.values())
        if nested:
            yield from _nested_pairs(hierarchy)
        else:
            yield from ((parent, child) for child, parent in hierarchy.items())
    elif is_hierarchy(hierarchy) and not isinstance(hierarchy, Tree):
        rows = hierarchy.to_numpy() if hasattr(hierarchy, "to_numpy") else hierarchy
        yield from map(_edge, rows.tolist() if isinstance(rows, np.ndarray) else rows)
    else:
        raise ValueError(
            "a hierarchy must be pairs (parent, child), a dictionary or a parent array, got "
            f"{type(hierarchy).__name__}."
        )


def _as_parent_array(hierarchy: Any) -> NDArray[np.int64] | None:
    """Return the hierarchy as a parent array if it is a vector of integers, else None."""
    if isinstance(hierarchy, list | tuple):
        if not hierarchy or not all(isinstance(parent, int | np.integer) for parent in hierarchy):
            return None
        hierarchy = np.array(hierarchy)
    if not isinstance(hierarchy, np.ndarray) or hierarchy.ndim != 1 or hierarchy.dtype.kind not in "iu":
        return None
    return hierarchy.astype(np.int64)


def _array_pairs(parents: NDArray[np.int64]) -> Iterator[tuple[int | None, int]]:
    wrong = (parents < -1) | (parents >= len(parents))
    if wrong.any():
        node = int(np.argmax(wrong))
        raise ValueError(
            f"node {node} of the parent array has parent {parents[node]}; parents must be 0 to "
            f"{len(parents) - 1}, or -1 for none."
        )
    for child, parent in enumerate(parents.tolist()):
        yield (None if parent < 0 else parent), child


def _named(parent_of: ParentOf, names: list[Name]) -> ParentOf:
    """Rename the first nodes of a parent array to the string labels; inner nodes keep their numbers."""
    inner = set(parent_of.values())
    stray = [node for node in parent_of if node not in inner and int(node) >= len(names)]
    if stray:
        raise ValueError(
            f"Node {min(stray)} of the parent array has no children, so it must be a label, but there are only "
            f"{len(names)}: labels that are strings are the first nodes, in sorted order. A label may be missing "
            "in y; a dictionary from child to parent, or edges, name the labels and need no order."
        )

    def name(node: Name) -> Name:
        return names[int(node)] if int(node) < len(names) else node

    return {name(child): name(parent) for child, parent in parent_of.items()}


def _edge(pair: Any) -> tuple[Any, Any]:
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise ValueError(f"an edge of a hierarchy must be a pair (parent, child), got {pair!r}.")
    return pair[0], pair[1]


def _name(node: Any) -> Name:
    if isinstance(node, np.generic):
        node = node.item()
    if not isinstance(node, str | int):
        raise ValueError(f"the nodes of a hierarchy must be strings or integers, got {node!r} ({type(node).__name__}).")
    return node


def _nested_pairs(hierarchy: Mapping[Any, Any]) -> Iterator[tuple[Any, Any]]:
    waiting: list[tuple[Any, Any]] = [(hierarchy, None)]
    while waiting:
        branch, parent = waiting.pop()
        for child in branch:
            yield parent, child
            below = branch[child] if isinstance(branch, Mapping) else None
            if below is not None and not isinstance(below, _BELOW):
                raise ValueError(f"below {child!r} the hierarchy has {below!r}; expected a dictionary or a list.")
            if below:
                waiting.append((below, child))


def _check_n_labels(tree: Tree, n_labels: int) -> Tree:
    if tree.n_labels != n_labels:
        raise ValueError(f"The tree has {tree.n_labels} labels and y has {n_labels}: they must be the same.")
    return tree


def _branches_to(parent_of: ParentOf, own: set[Name], labels: list[Name]) -> Tree:
    """Build the tree of the branches that lead to the labels."""
    numbers: dict[Name, int] = {}  # inner node of the hierarchy -> node of the tree
    parents, names = [-1], [NO_LABEL]

    def inner(name: Name | None) -> int:
        chain: dict[Name, None] = {}
        while name is not None and name not in numbers:
            if name in chain:
                raise ValueError(f"the hierarchy has a cycle through {name!r}.")
            chain[name] = None
            name = parent_of.get(name)
        node = 0 if name is None else numbers[name]
        for step in reversed(chain):
            parents.append(node)
            names.append(NO_LABEL)
            node = numbers[step] = len(parents) - 1
        return node

    for number, label in enumerate(labels):
        above = inner(label) if label in own else inner(parent_of.get(label))
        parents.append(above)
        names.append(number)
    return Tree.from_parents(*_without_single_children(parents, names))


def _without_single_children(parents: list[int], names: list[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Replace nodes with a single child by that child."""
    parent, name = np.array(parents), np.array(names)
    children = np.bincount(parent[1:], minlength=len(parent))
    skipped = (children == 1) & (name == NO_LABEL)
    skipped[0] = False
    only_child = np.zeros(len(parent), dtype=np.int64)
    only_child[parent[1:]] = np.arange(1, len(parent))
    top = 0  # end of the chain of single children below the root: its children become the root's
    while children[top] == 1 and name[below := only_child[top]] == NO_LABEL:
        skipped[below], top = True, below
    for node in range(1, len(parent)):  # parents come before children
        while parent[node] > 0 and skipped[parent[node]]:
            parent[node] = parent[parent[node]]
    kept = np.flatnonzero(~skipped)
    number = np.full(len(parent) + 1, -1)
    number[kept] = np.arange(len(kept))
    return number[parent[kept]], name[kept]
