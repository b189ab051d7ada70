"""The tree of a training, whose nodes keep their numbers while labels move, and running sums of its probabilities."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.rows import read_only
from treemax.models.learned_tree import kernels
from treemax.models.learned_tree.kernels import Paths
from treemax.models.learned_tree.model import vectors_of
from treemax.trees import Tree


@dataclass
class Structure:
    """A tree whose nodes keep their numbers while labels move: the children of inner node v are
    `children[starts[v]:starts[v] + n_children[v]]`, inner nodes by number and leaves as -1 - label."""

    children: NDArray[np.int64]
    starts: NDArray[np.int64]
    n_children: NDArray[np.int64]
    first_vectors: NDArray[np.int64]
    n_vectors: int
    n_labels: int

    @classmethod
    def of_tree(cls, tree: Tree) -> Structure:
        """Return a fixed tree."""
        inner = np.flatnonzero(tree.n_children)
        counts = tree.n_children[inner]
        starts = np.cumsum(counts) - counts
        vectors = vectors_of(counts)
        firsts = np.cumsum(vectors) - vectors
        return cls(_child_codes(tree), starts, counts.copy(), firsts, int(vectors.sum()), tree.n_labels)

    @classmethod
    def with_capacity(cls, tree: Tree, arity: int) -> Structure:
        """Return a tree that may change its shape, with capacity for `arity` children per node and for the nodes of any
        well-formed tree."""
        inner = np.flatnonzero(tree.n_children)
        room = max(len(inner), -(-(tree.n_labels - 1) // (arity - 1))) + 1
        children, n_children = np.full((room, arity), -1, dtype=np.int64), np.zeros(room, dtype=np.int64)
        counts = tree.n_children[inner]
        n_children[: len(inner)] = counts
        children[np.repeat(np.arange(len(inner)), counts), ranks(counts)] = _child_codes(tree)
        per_node = vectors_per_node(arity)
        nodes = np.arange(room)
        return cls(children.ravel(), nodes * arity, n_children, nodes * per_node, room * per_node, tree.n_labels)

    def paths(self) -> Paths:
        """Return the path to every label."""
        n = len(self.n_children)
        parents, slots, depths, waiting = (np.zeros(n, dtype=np.int64) for _ in range(4))
        leaf_parents, leaf_slots = (np.zeros(self.n_labels, dtype=np.int64) for _ in range(2))
        kernels.parents_and_depths(
            self.children, self.starts, self.n_children, parents, slots, depths, leaf_parents, leaf_slots, waiting
        )
        starts = np.concatenate([[0], np.cumsum(depths[leaf_parents] + 1)])
        firsts, counts, targets = (np.empty(starts[-1], dtype=np.uint32) for _ in range(3))
        kernels.write_paths(
            starts, self.n_children, self.first_vectors, parents, slots, leaf_parents, leaf_slots, firsts, counts, targets
        )  # fmt: skip
        return Paths(*map(read_only, (starts, firsts, counts, targets)))

    def codes(self) -> NDArray[np.int64]:
        """Return the nodes in breadth-first order: inner nodes by number, leaves as -1 - label."""
        levels, level = [], np.zeros(1, dtype=np.int64)
        while len(level):
            levels.append(level)
            inner = level[level >= 0]
            counts = self.n_children[inner]
            level = self.children[np.repeat(self.starts[inner], counts) + ranks(counts)]
        return np.concatenate(levels)

    def as_tree(self) -> tuple[Tree, NDArray[np.int64]]:
        """Return the tree in breadth-first order, and the indices of its nodes' vectors in that order."""
        codes = self.codes()
        own = codes[codes >= 0]
        counts = vectors_of(self.n_children[own])
        return self.tree_of(codes), np.repeat(self.first_vectors[own], counts) + ranks(counts)

    def tree_of(self, codes: NDArray[np.int64]) -> Tree:
        """Return the tree whose nodes these are in breadth-first order."""
        is_inner = codes >= 0
        n_children = np.where(is_inner, self.n_children[np.maximum(codes, 0)], 0)
        first_child = 1 + np.cumsum(n_children) - n_children
        return Tree(first_child, n_children, np.where(is_inner, -1, -1 - codes))

    def enlarged(self, room: int, arity: int) -> Structure:
        """Return the structure with capacity for `room` nodes."""
        per_node, nodes, more = vectors_per_node(arity), np.arange(room), room - len(self.n_children)
        return Structure(
            np.concatenate([self.children, np.full(more * arity, -1)]), nodes * arity,
            np.concatenate([self.n_children, np.zeros(more, dtype=np.int64)]), nodes * per_node, room * per_node,
            self.n_labels,
        )  # fmt: skip


@dataclass
class RunningSums:
    """SumProbas and Counts of Algorithm 1, for every pair of node and label that was ever on a path.

    `keys` are node * labels + label, sorted; `places` has the index into them of each node of `Paths`.
    """

    keys: NDArray[np.int64]
    sums: NDArray[np.float32]
    seen: NDArray[np.float32]
    places: NDArray[np.uint32]

    @classmethod
    def empty(cls, arity: int) -> RunningSums:
        """Return sums without any pairs."""
        empty = np.empty(0, dtype=np.float32)
        return cls(np.empty(0, dtype=np.int64), empty.reshape(0, arity), empty, np.empty(0, dtype=np.uint32))

    def for_paths(
        self,
        paths: Paths,
        nodes: NDArray[np.int64],
        n_labels: int,
        renewed: NDArray[np.bool_],
        prior_count: float = 0.0,
    ) -> RunningSums:
        """Return the sums extended to new paths, and without those of nodes that were reset.

        With a prior, a new pair starts as if half of `prior_count` examples had gone to one child, in turn by label, and
        half evenly to all.
        """
        labels = np.repeat(np.arange(n_labels), np.diff(paths.starts))
        needed = nodes * n_labels + labels
        kept = ~renewed[self.keys // n_labels]
        keys = np.union1d(self.keys[kept], needed)
        sums = np.zeros((len(keys), self.sums.shape[1]), dtype=np.float32)
        seen = np.zeros(len(keys), dtype=np.float32)
        places = np.searchsorted(keys, needed)
        if prior_count > 0:
            n_children = paths.counts.astype(np.int64)
            sums[places] = np.where(np.arange(sums.shape[1]) < n_children[:, None], 0.5 / n_children[:, None], 0)
            sums[places, labels % n_children] += 0.5
            sums[places] *= prior_count
            seen[places] = prior_count
        old = np.searchsorted(keys, self.keys[kept])
        sums[old], seen[old] = self.sums[kept], self.seen[kept]
        return RunningSums(keys, sums, seen, places.astype(np.uint32))

    def with_labels(self, before: int, n_labels: int) -> RunningSums:
        """Return the sums with keys for a larger number of labels."""
        return replace(self, keys=self.keys // before * n_labels + self.keys % before)

    def by_rank(self, structure: Structure) -> dict[str, NDArray[Any]]:
        """Return keys, sums and numbers of examples, with inner nodes numbered in breadth-first order."""
        codes = structure.codes()
        rank = np.full(len(structure.n_children), -1)
        rank[codes[codes >= 0]] = np.arange((codes >= 0).sum())
        nodes, labels = np.divmod(self.keys, structure.n_labels)
        keys = rank[nodes] * structure.n_labels + labels
        order = np.argsort(keys)
        order = order[rank[nodes[order]] >= 0]  # the statistics of other nodes are reset
        return {"keys": keys[order], "sums": self.sums[order], "seen": self.seen[order]}


def vectors_per_node(arity: int) -> int:
    """Return the number of vectors of a node with `arity` children."""
    return int(vectors_of(np.array([arity]))[0])


def _child_codes(tree: Tree) -> NDArray[np.int64]:
    """Return the nodes except the root, as in `Structure.children`: inner nodes by number, leaves as -1 - label."""
    numbers = np.cumsum(tree.n_children > 0) - 1
    return np.where(tree.label >= 0, -1 - tree.label, numbers)[1:]


def ranks(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return concatenated ranges 0, ..., count - 1."""
    return np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)


def max_depth(n_labels: int, arity: int) -> int:
    """Return the default maximum depth: that of a complete tree plus a half, at least one more level."""
    complete = complete_depth(n_labels, arity)
    return complete + max(1, complete // 2)


def complete_depth(n_labels: int, arity: int) -> int:
    """Return the depth of a complete tree."""
    return max(1, math.ceil(math.log(max(2, n_labels)) / math.log(arity) - 1e-9))
