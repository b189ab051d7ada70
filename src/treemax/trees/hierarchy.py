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
_END: Any = object()


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
    below that node; labels outside the hierarchy become children of the root. Of several parents of a node, the first
    in the given order is taken.

    >>> tree = tree_of({"animal": {"cat": {}, "dog": {}}, "plant": ["fern"]}, LabelIndex(["cat", "dog", "fern"]))
    >>> tree.n_children.tolist(), tree.label.tolist()
    ([2, 2, 0, 0, 0], [-1, -1, 2, 0, 1])
    """
    if isinstance(hierarchy, Tree):
        return _check_n_labels(hierarchy, len(labels))
    parent_of = parents_by_name(hierarchy)
    names: list[Name] = labels.classes.tolist()
    if labels.holds_strings and parent_array(hierarchy) is not None:
        parent_of = dict(named_nodes(parent_of.items(), names))
    parents = set(parent_of.values())
    if parent_of and not any(name in parent_of or name in parents for name in names):
        raise ValueError(
            f"The hierarchy has none of the {len(names)} labels: they are like {names[0]!r}, "
            f"its nodes like {next(iter(parent_of))!r}."
        )
    return _branches_to(parent_of, parents, names)


def parents_by_name(hierarchy: Any) -> ParentOf:
    """Return the first parent of every node that has one, for any form of hierarchy except `Tree`.

    >>> parents_by_name([("animal", "cat"), ("animal", "dog"), ("pet", "dog")])
    {'cat': 'animal', 'dog': 'animal'}
    """
    parent_of: ParentOf = {}
    for parent, child in named_pairs(hierarchy):
        if parent is not None:
            parent_of.setdefault(child, parent)
    return parent_of


def named_pairs(hierarchy: Any) -> Iterator[tuple[Name | None, Name]]:
    """Yield pairs (parent, child) of any form of hierarchy except `Tree`; the parent may be None.

    >>> list(named_pairs({"animal": {"cat": {}}, "fern": {}}))
    [(None, 'animal'), ('animal', 'cat'), (None, 'fern')]
    """
    for parent, child in _pairs(hierarchy):
        yield (None if parent is None else _name(parent)), _name(child)


def is_hierarchy(value: Any) -> bool:
    """Return whether a parameter is a hierarchy, not the name of a builder."""
    if isinstance(value, Tree | Mapping) or hasattr(value, "hierarchy_pairs"):
        return True
    return isinstance(value, Iterable) and not isinstance(value, str)


def with_names(hierarchy: Any, names: Mapping[Any, Any]) -> Any:
    """Return a hierarchy whose nodes have new names; the children of nodes without one (None) move to their parents.

    Forms without names, and a hierarchy without these nodes, are returned as they are.

    >>> with_names({"animal": ["cat", "dog"]}, {"cat": None, "dog": "hound"})
    {'hound': 'animal'}
    """
    if isinstance(hierarchy, Tree) or parent_array(hierarchy) is not None:
        return hierarchy
    pairs = [pair for pair in named_pairs(hierarchy) if pair[0] is not None]
    if not any(name in names for pair in pairs for name in pair):
        return hierarchy
    parents: dict[Any, list[Any]] = {}
    for parent, child in pairs:
        parents.setdefault(child, []).append(parent)
    changed = {
        (names.get(above, above), names.get(child, child)): None
        for child in parents
        if names.get(child, child) is not None
        for above in _nearest_named(child, parents, names)
    }
    return _dictionary_or_pairs(list(changed))


def _nearest_named(child: Any, parents: dict[Any, list[Any]], names: Mapping[Any, Any]) -> list[Any]:
    """Return the nearest ancestors of a node that keep a name, in the order of its parents."""
    found: dict[Any, None] = {}
    waiting, seen = parents[child][::-1], {child}
    while waiting:
        above = waiting.pop()
        if names.get(above, above) is not None:
            found[above] = None
        elif above not in seen:
            seen.add(above)
            waiting += parents.get(above, [])[::-1]
    return list(found)


def _dictionary_or_pairs(pairs: list[tuple[Any, Any]]) -> Any:
    """Return pairs (parent, child) as a dictionary from child to parent if every child has one parent."""
    parent_of = {child: parent for parent, child in pairs}
    return parent_of if len(parent_of) == len(pairs) else pairs


def hierarchy_arrays(hierarchy: Any) -> dict[str, NDArray[Any]]:
    """Return the arrays of a hierarchy for the model file; names are stored as JSON."""
    if isinstance(hierarchy, Tree):
        return hierarchy.arrays()
    array = parent_array(hierarchy)
    if array is not None:
        return {"parents": array}
    children = dict.fromkeys((child, parent) for parent, child in named_pairs(hierarchy) if parent is not None)
    pairs = json.dumps(list(children), separators=(",", ":"))
    return {"names": np.frombuffer(pairs.encode("ascii"), dtype=np.uint8)}


def hierarchy_from_arrays(arrays: dict[str, NDArray[Any]]) -> Any:
    """Restore a hierarchy; edges and dictionaries become a dictionary from child to parent, or edges if a node has
    several parents."""
    if "names" in arrays:
        return _dictionary_or_pairs(
            [(_name(parent), _name(child)) for child, parent in json.loads(arrays["names"].tobytes())]
        )
    return np.array(arrays["parents"]) if "parents" in arrays else Tree.from_arrays(arrays)


def _pairs(hierarchy: Any) -> Iterator[tuple[Any, Any]]:
    array = parent_array(hierarchy)
    if array is not None:
        yield from _array_pairs(array)
    elif hasattr(hierarchy, "hierarchy_pairs"):  # a Taxonomy
        yield from hierarchy.hierarchy_pairs()
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
            f"{type(hierarchy).__name__}. Taxonomy.from_file reads a file."
        )


def parent_array(hierarchy: Any) -> NDArray[np.int64] | None:
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


def named_nodes(pairs: Iterable[tuple[Name, Name]], names: list[Name]) -> list[tuple[Name, Name]]:
    """Rename the first nodes in pairs (child, parent) of a parent array to the string labels; inner nodes keep their
    numbers."""
    pairs = list(pairs)
    inner = {parent for _, parent in pairs}
    stray = [node for node, _ in pairs if node not in inner and int(node) >= len(names)]
    if stray:
        raise ValueError(
            f"Node {min(stray)} of the parent array has no children, so it must be a label, but there are only "
            f"{len(names)}: labels that are strings are the first nodes, in sorted order. A label may be missing "
            "in y; a dictionary from child to parent, or edges, name the labels and need no order."
        )

    def name(node: Name) -> Name:
        return names[int(node)] if int(node) < len(names) else node

    return [(name(child), name(parent)) for child, parent in pairs]


def _edge(pair: Any) -> tuple[Any, Any]:
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise ValueError(f"an edge of a hierarchy must be a pair (parent, child), got {pair!r}.")
    return pair[0], pair[1]


def _name(node: Any) -> Name:
    if type(node) is str or type(node) is int:
        return node
    if isinstance(node, np.generic):
        node = node.item()
    if not isinstance(node, str | int):
        raise ValueError(f"the nodes of a hierarchy must be strings or integers, got {node!r} ({type(node).__name__}).")
    return node


def _nested_pairs(hierarchy: Mapping[Any, Any]) -> Iterator[tuple[Any, Any]]:
    """Yield pairs (parent, child) in the order in which the dictionary is written."""
    open_branches: list[tuple[Any, Any, Iterator[Any]]] = [(None, hierarchy, iter(hierarchy))]
    while open_branches:
        parent, branch, children = open_branches[-1]
        child = next(children, _END)
        if child is _END:
            open_branches.pop()
            continue
        yield parent, child
        below = branch[child] if isinstance(branch, Mapping) else None
        if below is not None and not isinstance(below, _BELOW):
            raise ValueError(f"below {child!r} the hierarchy has {below!r}; expected a dictionary or a list.")
        if below:
            open_branches.append((child, below, iter(below)))


def _check_n_labels(tree: Tree, n_labels: int) -> Tree:
    if tree.n_labels != n_labels:
        raise ValueError(f"The tree has {tree.n_labels} labels and y has {n_labels}: they must be the same.")
    return tree


def _branches_to(parent_of: ParentOf, with_children: set[Name], labels: list[Name]) -> Tree:
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
        above = inner(label) if label in with_children else inner(parent_of.get(label))
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
