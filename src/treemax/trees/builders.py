"""Trees that need no features: complete, random and Huffman.

`max_leaf` is the arity of the last inner nodes, those whose children are leaves. A wide last level makes a
tree shallow where it is cheap: the labels of one parent share their examples.
"""

from __future__ import annotations

import heapq
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from treemax.parameters import check_number
from treemax.trees.tree import NO_LABEL, Tree

FULL = 0.7  # how full nodes are where labels are to move between them
MOST_CHILDREN = 32  # of an inner node, where the arity is not given: wider trains slower


def even_arity(n_labels: int, max_leaf: int) -> int:
    """The arity of the shallowest tree with few enough children a node, and last nodes nearly full.

    >>> even_arity(44_408, 100), even_arity(50, 100)
    (22, 2)
    """
    last_nodes = max(1.0, n_labels / max_leaf)
    levels = max(1, math.ceil(math.log(last_nodes) / math.log(MOST_CHILDREN)))
    return max(2, math.ceil(last_nodes ** (1 / levels) - 1e-9))


def complete_tree(n_labels: int, arity: int = 16, max_leaf: int = 100) -> Tree:
    """A tree as even as can be, neighbouring labels together.

    >>> complete_tree(10, arity=2, max_leaf=3).depth
    3
    """
    return grouped_tree(np.arange(n_labels), arity, max_leaf)


def random_tree(n_labels: int, arity: int = 16, max_leaf: int = 100, random_state: Any = 0) -> Tree:
    """A complete tree over the labels in random order."""
    return grouped_tree(check_random_state(random_state).permutation(n_labels), arity, max_leaf)


def grouped_tree(order: NDArray[np.int64], arity: int, max_leaf: int) -> Tree:
    """A complete tree whose leaves have the labels in this order."""
    check_number("arity", arity, whole=True, least=2)
    check_number("max_leaf", max_leaf, whole=True, least=2)
    groups = [np.asarray(order)]
    parents, labels = [-1], [NO_LABEL]
    level_start = 0
    while groups:
        following: list[NDArray[np.int64]] = []
        next_start = len(parents)
        for node, group in enumerate(groups, level_start):
            parts = split_evenly(group, arity, max_leaf)
            if len(group) == 1 and node > 0:  # a root has children, be it one
                labels[node] = int(group[0])
                continue
            for part in parts:
                parents.append(node)
                labels.append(NO_LABEL)
                following.append(part)
        groups, level_start = following, next_start
    return Tree.from_parents(parents, labels)


def crowned_tree(order: NDArray[np.int64], n_direct: int, arity: int) -> Tree:
    """The first labels of an order hang from the root; the others are spread evenly below the nodes that are its other
    children, as many as there is room for, and deeper ones as few as leave some room.

    >>> tree = crowned_tree(np.arange(10), 2, 4)
    >>> tree.level[tree.leaf_of].tolist(), tree.n_children[:5].tolist()
    ([1, 1, 2, 2, 2, 2, 2, 2, 2, 2], [4, 0, 0, 4, 4])
    """
    check_number("arity", arity, whole=True, least=2)
    if len(order) <= arity:
        return grouped_tree(order, arity, arity)
    check_number("n_direct", n_direct, whole=True, least=0, most=arity - 1)
    rest = order[n_direct:]
    parents, labels = [-1] + [0] * n_direct, [NO_LABEL, *order[:n_direct].tolist()]
    waiting = [(0, part) for part in np.array_split(rest, min(arity - n_direct, -(-len(rest) // 2)))]
    while waiting:
        parent, group = waiting.pop(0)
        node = len(parents)
        parents.append(parent)
        labels.append(NO_LABEL)
        if len(group) <= arity:
            parents += [node] * len(group)
            labels += group.tolist()
            continue
        room = arity  # of a child
        while room * arity < len(group):
            room *= arity
        n_parts = min(arity, -(-len(group) // int(FULL * room)))
        waiting += [(node, part) for part in np.array_split(group, n_parts)]
    return Tree.from_parents(parents, labels)


def split_evenly(group: NDArray[np.int64], arity: int, max_leaf: int) -> list[NDArray[np.int64]]:
    """The children of a node with these labels: leaves if they are few enough, else `arity` even parts."""
    n_parts = len(group) if len(group) <= max_leaf else min(arity, len(group))
    return np.array_split(group, n_parts)


def huffman_tree(counts: NDArray[np.int64], arity: int = 2) -> Tree:
    """Huffman's tree: frequent labels near the root, so that the mean path over the examples is shortest.

    >>> tree = huffman_tree(np.array([8, 1, 1, 2]))
    >>> tree.level[tree.leaf_of].tolist()
    [1, 3, 3, 2]
    """
    check_number("arity", arity, whole=True, least=2)
    n_labels = len(counts)
    if n_labels == 1:
        return complete_tree(1)
    parents: list[int] = [-1] * n_labels
    heap = [(int(count), node) for node, count in enumerate(counts)]
    # The first merger takes fewer, so that every later one, and so the root, is full.
    short = (n_labels - 1) % (arity - 1)
    heapq.heapify(heap)
    take = short + 1 if short else arity
    while len(heap) > 1:
        merged = [heapq.heappop(heap) for _ in range(min(take, len(heap)))]
        node = len(parents)
        parents.append(-1)
        for _, child in merged:
            parents[child] = node
        heapq.heappush(heap, (sum(count for count, _ in merged), node))
        take = arity
    labels = np.full(len(parents), NO_LABEL, dtype=np.int64)
    labels[:n_labels] = np.arange(n_labels)
    return Tree.from_parents(parents, labels)
