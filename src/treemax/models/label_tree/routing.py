"""The upper part of a label tree: which nodes above labels a row reaches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.labels import Targets, take_targets
from treemax.inputs.rows import SparseRows
from treemax.models.label_tree.packed_tree import PackedNode, PackedTree
from treemax.models.trained.searching import SparseProbabilities
from treemax.trees import Tree

SAMPLE = 4_000  # rows from which the least probability of hard negatives is estimated
LEAST_PROBABILITY = 0.01  # minimum probability of a hard negative


class Link(NamedTuple):
    """How scores become probabilities, as in `PackedTree`."""

    name: str
    slopes: NDArray[np.float32]
    shifts: NDArray[np.float32]


def above_labels(tree: Tree) -> NDArray[np.bool_]:
    """Return which nodes are above labels: most of their children are."""
    children = np.arange(1, len(tree))
    labels = np.bincount(tree.parent[children], weights=tree.n_children[children] == 0, minlength=len(tree))
    return 2 * labels > tree.n_children


class Router(NamedTuple):
    """A tree down to the nodes above labels, which are its first labels."""

    packed: PackedTree
    nodes: NDArray[np.int64]  # of the whole tree, by label

    @classmethod
    def of(cls, tree: Tree, parts: Mapping[int, PackedNode], link: Link) -> Router:
        """Return the router of a tree with these upper nodes."""
        ends = above_labels(tree)
        kept = np.zeros(len(tree), dtype=bool)
        kept[0] = True
        for start, stop in tree.level_bounds[1:]:
            above = tree.parent[start:stop]
            kept[start:stop] = kept[above] & ~ends[above]
        nodes = np.flatnonzero(kept)
        inner = (tree.n_children[nodes] > 0) & ~ends[nodes]
        order = np.concatenate([np.flatnonzero(ends[nodes]), np.flatnonzero(tree.n_children[nodes] == 0)])
        label = np.full(len(nodes), -1)
        label[order] = np.arange(len(order))
        number = np.append(np.cumsum(kept) - 1, -1)
        top = Tree.from_parents(number[tree.parent[nodes]], label)
        own = {new: parts[old] for new, old in enumerate(nodes.tolist()) if inner[new] and old in parts}
        packed = PackedTree.join(top, own, link.name, link.slopes[: top.depth], link.shifts[: top.depth])
        return cls(packed, nodes[ends[nodes]])

    def reached(self, rows: SparseRows, least: float, threads: int) -> SparseProbabilities:
        """Return the nodes above labels that rows reach with at least this probability."""
        found = self.packed.above(rows, least, threads=threads)
        known = found.ids < len(self.nodes)
        return SparseProbabilities(found.rows[known], self.nodes[found.ids[known]], found.probabilities[known])


class TrainingRows(Protocol):
    """The rows of a training, in memory or on disk."""

    targets: Targets

    @property
    def threads(self) -> int: ...

    def load(self, rows: NDArray[np.uint32]) -> SparseRows:
        """Return some rows, by number in ascending order."""

    def blocks(self) -> Iterator[tuple[int, SparseRows]]:
        """Yield all rows, by blocks, with the number of the first."""


class HardNegatives:
    """Rows without a label below a node that the nodes above it take for its own, for every node above labels."""

    def __init__(self, rows: NDArray[np.uint32], nodes: NDArray[np.int64], n_nodes: int) -> None:
        order = np.argsort(nodes, kind="stable")
        self._rows = rows[order]
        self._starts = np.searchsorted(nodes[order], np.arange(n_nodes + 1))

    @classmethod
    def none(cls, tree: Tree) -> HardNegatives:
        return cls(np.empty(0, np.uint32), np.empty(0, np.int64), len(tree))

    @classmethod
    def find(
        cls, tree: Tree, parts: Mapping[int, PackedNode], link: Link, source: TrainingRows, share: float
    ) -> HardNegatives:
        """Find the most probable ones with these upper nodes, about `share` times the rows of the nodes above labels."""
        if share == 0 or not len(parts):
            return cls.none(tree)
        router, targets = Router.of(tree, parts, link), source.targets
        sample = np.arange(0, len(targets), max(1, -(-len(targets) // SAMPLE)), dtype=np.uint32)
        reached = router.reached(source.load(sample), LEAST_PROBABILITY, source.threads)
        least = _least_probability(tree, reached, take_targets(targets, sample), share)
        found_rows, found_nodes = [], []
        for first, block in source.blocks():
            reached = router.reached(block, least, source.threads)
            negative = _are_negative(tree, reached, _positive_pairs(tree, targets[first : first + len(block)]))
            found_rows.append((first + reached.rows[negative]).astype(np.uint32))
            found_nodes.append(reached.ids[negative])
        return cls(np.concatenate(found_rows), np.concatenate(found_nodes), len(tree))

    def of(self, node: int) -> NDArray[np.uint32]:
        """Return the rows to add to a node, in ascending order."""
        return self._rows[self._starts[node] : self._starts[node + 1]]


def _least_probability(tree: Tree, reached: SparseProbabilities, targets: Targets, share: float) -> float:
    """Return the probability from which there are `share` times as many hard negatives as rows of nodes."""
    positive = _positive_pairs(tree, targets)
    negative = reached.probabilities[_are_negative(tree, reached, positive)]
    wanted = round(share * len(positive))
    if wanted >= len(negative):
        return LEAST_PROBABILITY
    return float(np.partition(negative, -wanted - 1)[-wanted - 1])


def _are_negative(tree: Tree, reached: SparseProbabilities, positive: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which of the nodes that rows reach have no label of the row."""
    return ~np.isin(reached.rows * len(tree) + reached.ids, positive)


def _positive_pairs(tree: Tree, targets: Targets) -> NDArray[np.int64]:
    """Return the pairs of a row and the parent of one of its labels, each once, as row * nodes + parent."""
    row = np.repeat(np.arange(len(targets)), np.diff(targets.indptr))
    ids = targets.ids[targets.indptr[0] : targets.indptr[-1]]
    return np.unique(row * len(tree) + tree.parent[tree.leaf_of[ids]])
