"""Trees built without features: complete, random and Huffman.

`max_leaf` is the arity of the last inner nodes, whose children are leaves. A wide last level makes the tree
shallower at little cost, because the labels of one parent share their examples.
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

FULL = 0.7  # fill factor of nodes between which labels will be reassigned
MOST_CHILDREN = 32  # default maximum of an inner node; wider trees train more slowly


def even_arity(n_labels: int, max_leaf: int) -> int:
    """Return the arity of the shallowest tree with at most MOST_CHILDREN per node and nearly full last nodes.

    >>> even_arity(44_408, 100), even_arity(50, 100)
    (22, 2)
    """
    last_nodes = max(1.0, n_labels / max_leaf)
    levels = max(1, math.ceil(math.log(last_nodes) / math.log(MOST_CHILDREN)))
    return max(2, math.ceil(last_nodes ** (1 / levels) - 1e-9))


def complete_tree(n_labels: int, arity: int = 16, max_leaf: int = 100) -> Tree:
    """Build a balanced tree over the labels in order.

    >>> complete_tree(10, arity=2, max_leaf=3).depth
    3
    """
    return grouped_tree(np.arange(n_labels), arity, max_leaf)


def random_tree(n_labels: int, arity: int = 16, max_leaf: int = 100, random_state: Any = 0) -> Tree:
    """Build a complete tree over the labels in random order."""
    return grouped_tree(check_random_state(random_state).permutation(n_labels), arity, max_leaf)


def grouped_tree(order: NDArray[np.int64], arity: int, max_leaf: int) -> Tree:
    """Build a complete tree over the labels in this order."""
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
            if len(group) == 1 and node > 0:  # the root always has children, at least one
                labels[node] = int(group[0])
                continue
            for part in parts:
                parents.append(node)
                labels.append(NO_LABEL)
                following.append(part)
        groups, level_start = following, next_start
    return Tree.from_parents(parents, labels)


def frequent_at_root_tree(order: NDArray[np.int64], n_direct: int, arity: int) -> Tree:
    """Build a tree with the first `n_direct` labels as children of the root.

    The others are distributed evenly below the root's other children, with spare capacity in every node.

    >>> tree = frequent_at_root_tree(np.arange(10), 2, 4)
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
        room = arity  # capacity of a child
        while room * arity < len(group):
            room *= arity
        n_parts = min(arity, -(-len(group) // int(FULL * room)))
        waiting += [(node, part) for part in np.array_split(group, n_parts)]
    return Tree.from_parents(parents, labels)


def split_evenly(group: NDArray[np.int64], arity: int, max_leaf: int) -> list[NDArray[np.int64]]:
    """Split the labels of a node: single labels if there are at most `max_leaf`, else `arity` even parts."""
    n_parts = len(group) if len(group) <= max_leaf else min(arity, len(group))
    return np.array_split(group, n_parts)


def huffman_tree(counts: NDArray[Any], arity: int = 2) -> Tree:
    """Build the Huffman tree, which minimises the mean path length over the examples.

    >>> tree = huffman_tree(np.array([8, 1, 1, 2]))
    >>> tree.level[tree.leaf_of].tolist()
    [1, 3, 3, 2]
    """
    check_number("arity", arity, whole=True, least=2)
    n_labels = len(counts)
    if n_labels == 1:
        return complete_tree(1)
    parents: list[int] = [-1] * n_labels
    heap = [(float(count), node) for node, count in enumerate(counts)]
    # The first merge takes fewer nodes, so that all later ones, including the root, are full.
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
