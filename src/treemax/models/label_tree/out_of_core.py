"""The training of a label tree on rows that lie on disk, to the same model as in memory.

Nodes whose rows fit in memory are trained as ever, subtree by subtree: the rows of all subtrees that fit together
are dealt out on the disk in one go and loaded one partition after the other. Nodes with more rows than that, the root at
least, are `LargeNode`s. What a node has learned goes to the disk until all of it is packed.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.labels import Targets
from treemax.inputs.rows import SparseRows
from treemax.memory import format_bytes, release_free_memory, used_bytes
from treemax.models.label_tree.large_nodes import ROW_BYTES, LargeNode
from treemax.models.label_tree.nodes import (
    Common,
    LevelScores,
    NodeProblem,
    NodeResult,
    node_costs,
    train_node,
)
from treemax.models.label_tree.packed_tree import PackedNode
from treemax.models.stored_rows import Partitions, Spool, StoredRows, even_partitions
from treemax.parallel.pools import Arrays, Table
from treemax.parallel.threads import for_each, one_blas_thread
from treemax.trees import Tree, label_vectors

ENTRY_BYTES = 16  # of an entry that is in memory, with its copy by local features
LEAST_ROOM = 16_000_000  # for rows in memory, below which it would take for ever
OVERHEAD = 64_000_000  # for compiled kernels, windows and the like


class Room(NamedTuple):
    """How much memory there is for rows, in bytes, and how many threads share it."""

    bytes: int
    threads: int

    @property
    def entries(self) -> int:
        """How many entries may be loaded together, by one thread."""
        return self.bytes // ENTRY_BYTES


def room_for_rows(memory: int, stored: StoredRows, n_labels: int, threads: int) -> Room:
    """What is left of `memory` for rows, once everything is counted that has to be there all the time."""
    per_row = ROW_BYTES * len(stored) + 16 * len(stored.targets.ids)
    per_feature = (100 + 80 * threads) * stored.n_features
    release_free_memory()
    left = memory - used_bytes() - OVERHEAD - per_row - per_feature - 64 * n_labels
    if left < LEAST_ROOM:
        needed = 1.05 * (memory - left + LEAST_ROOM)  # the process may take a little more another time
        raise MemoryError(
            f"memory={format_bytes(memory)} is too little for {len(stored):,} rows of {stored.n_features:,} features with "
            f"{n_labels:,} labels; {format_bytes(needed)} would do."
        )
    return Room(left, threads)


def stored_label_vectors(stored: StoredRows, n_labels: int, room: Room) -> SparseRows:
    """`trees.label_vectors` of rows on disk: labels whose rows fit in memory together, one partition after the other."""
    targets = stored.targets
    rows = _row_of_each(targets)
    widths = np.bincount(targets.ids, weights=stored.lengths()[rows], minlength=n_labels).astype(np.int64)
    partition_of_label = even_partitions(widths, room.entries)
    n_partitions = int(partition_of_label.max(initial=0)) + 1
    partitions = Partitions(stored, rows, partition_of_label[targets.ids], n_partitions)
    found = []
    for partition in range(n_partitions):
        first, last = np.searchsorted(partition_of_label, [partition, partition + 1])
        members, own = partitions.load(partition)
        each = Targets(np.arange(len(members) + 1), targets.ids[members] - np.uint32(first))
        found.append(label_vectors(own, each, int(last - first)))
    counts = np.concatenate([np.diff(vectors.indptr) for vectors in found])
    return SparseRows(
        np.concatenate([[0], np.cumsum(counts)]),
        np.concatenate([vectors.indices for vectors in found]),
        np.concatenate([vectors.values for vectors in found]),
        stored.n_features,
    )


def _row_of_each(targets: Targets) -> NDArray[np.uint32]:
    """The row of every label of every row."""
    return np.repeat(np.arange(len(targets), dtype=np.uint32), np.diff(targets.indptr))


class Below:
    """Which rows have a label below a node: rows in the order of the leaves, so that those of a node stand together."""

    def __init__(self, tree: Tree, stored: StoredRows, costs: NDArray[np.float64]) -> None:
        self.tree, self.n_rows, self.costs = tree, len(stored), costs
        n_leaves, self._first_leaf = _leaves_below(tree)
        place_of_label = self._first_leaf[tree.leaf_of].astype(np.uint32)
        places = place_of_label[stored.targets.ids]
        order = np.argsort(places, kind="stable")
        self._rows = _row_of_each(stored.targets)[order]
        self._starts = np.concatenate([[0], np.cumsum(np.bincount(places, minlength=tree.n_labels))])
        del order, places
        entries = np.concatenate([[0], np.cumsum(stored.lengths()[self._rows])])
        last_leaf = self._first_leaf + n_leaves
        bounds = self._starts[self._first_leaf], self._starts[last_leaf]
        self.counts = (
            bounds[1] - bounds[0]
        )  # rows of each node; with several labels, a row may count several times
        self.entries = entries[bounds[1]] - entries[bounds[0]]
        self.counts[0], self.entries[0] = self.n_rows, stored.nnz

    def rows(self, node: int) -> NDArray[np.uint32]:
        """The rows with a label below a node, in order of the leaves."""
        first = self._starts[self._first_leaf[node]]
        return self._rows[first : first + (len(self._rows) if node == 0 else self.counts[node])]

    def problem(self, node: int) -> NodeProblem:
        """The same as in `nodes.node_problems`."""
        n_children, first = int(self.tree.n_children[node]), int(self.tree.first_child[node])
        cost = float(self.costs[node])
        rows = self.rows(node).astype(np.int64)
        children = np.repeat(np.arange(n_children), self.counts[first : first + n_children])
        pairs = rows * n_children + children
        pairs.sort()
        pairs = pairs[np.diff(pairs, prepend=-1) != 0]
        row, child = pairs // n_children, (pairs % n_children).astype(np.uint32)
        if node == 0:  # also rows without labels
            whole = np.arange(self.n_rows, dtype=np.uint32)
            starts = np.searchsorted(row, np.arange(self.n_rows + 1))
            return NodeProblem(0, n_children, cost, whole, starts, child)
        starts = np.flatnonzero(np.diff(row, prepend=-1))
        return NodeProblem(
            node, n_children, cost, row[starts].astype(np.uint32), np.append(starts, len(row)), child
        )


def _leaves_below(tree: Tree) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How many leaves every node has below it (a leaf: itself), and the number of the first, depth first."""
    n_leaves = (tree.n_children == 0).astype(np.int64)
    first_leaf = np.zeros(len(tree), dtype=np.int64)
    inner = np.flatnonzero(tree.n_children).tolist()
    for node in reversed(inner):  # children come after their parent
        own = slice(int(tree.first_child[node]), int(tree.first_child[node] + tree.n_children[node]))
        n_leaves[node] = n_leaves[own].sum()
    for node in inner:
        own = slice(int(tree.first_child[node]), int(tree.first_child[node] + tree.n_children[node]))
        first_leaf[own] = first_leaf[node] + np.cumsum(n_leaves[own]) - n_leaves[own]
    return n_leaves, first_leaf


class SpooledNodes(Mapping[int, PackedNode]):
    """What nodes have learned, on disk until they are asked for."""

    def __init__(self, folder: Any) -> None:
        self._spool = Spool(folder)
        self._parts: dict[int, list[tuple[int, int, np.dtype]]] = {}

    def keep(self, node: int, packed: PackedNode) -> None:
        self._parts[node] = [(self._spool.append(part), len(part), part.dtype) for part in packed]

    def __getitem__(self, node: int) -> PackedNode:
        return PackedNode(*(self._spool.read(*part) for part in self._parts[node]))

    def __iter__(self) -> Iterator[int]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


class StoredTraining:
    """The training of all nodes of a tree on rows on disk: run it, then take `nodes`, `early_nodes`, `scales` and `scores`."""

    def __init__(self, tree: Tree, stored: StoredRows, common: Common, room: Room) -> None:
        self.tree, self.stored, self.common, self.room = tree, stored, common, room
        self.below = Below(tree, stored, node_costs(tree, common.settings))
        self.nodes = SpooledNodes(stored.folder)
        self.early_nodes = SpooledNodes(stored.folder)
        self.scales = np.zeros(len(tree), dtype=np.float32)
        self.scores = LevelScores(tree.depth)
        self.large, self.groups = self._planned()
        self._likelihood: dict[int, NDArray[np.float64]] = {}
        self._lock = threading.Lock()
        if self.large and common.settings.penalty == "l1":
            largest = max(self._cost(node) for node in self.large)
            raise MemoryError(
                f"penalty='l1' needs the rows of a node in memory, here {format_bytes(largest * room.threads)} more than the "
                "rest takes; give more memory, or take penalty='l2'."
            )

    @property
    def work(self) -> int:
        """How much there is to do, in rows times nodes."""
        return int(self.below.counts[self.tree.n_children > 0].sum())

    def _cost(self, node: int) -> int:
        return int(ENTRY_BYTES * self.below.entries[node] + ROW_BYTES * self.below.counts[node])

    def _planned(self) -> tuple[list[int], list[list[int]]]:
        """The nodes that are too large for memory, and the roots of the subtrees that are not, in groups that fit."""
        large, fitting, waiting = [], [], [0]
        most = self.room.bytes // self.room.threads
        while waiting:
            node = waiting.pop()
            if self._cost(node) <= most:
                fitting.append(node)
                continue
            large.append(node)
            waiting += [child for child in self.tree.children(node)[::-1] if self.tree.n_children[child]]
        group_of = even_partitions(np.array([self._cost(node) for node in fitting], dtype=np.int64), most)
        groups: list[list[int]] = [[] for _ in set(group_of.tolist())]
        for node, group in zip(fitting, group_of.tolist()):
            groups[group].append(node)
        return large, groups

    def run(self) -> Iterator[int]:
        """Train node after node; yields the work done with each."""
        for node in self.large:
            problem = self.below.problem(node)
            if len(problem.rows):
                self._keep(node, LargeNode(self.stored, self.common, problem, self.room.entries).train())
            yield int(self.below.counts[node])
        if self.groups:
            yield from self._run_groups()
        for node in sorted(self._likelihood):  # in one order, as in memory
            self.scores.likelihood[int(self.tree.level[node])] += self._likelihood[node]

    def _run_groups(self) -> Iterator[int]:
        pairs = []
        for number, group in enumerate(self.groups):
            whole = np.arange(len(self.stored), dtype=np.uint32)
            rows = whole if group == [0] else np.concatenate([self.below.rows(node) for node in group])
            pairs.append(np.unique(rows).astype(np.int64) * len(self.groups) + number)
        ordered = np.sort(np.concatenate(pairs))
        rows, group_of = ordered // len(self.groups), ordered % len(self.groups)
        partitions = Partitions(
            self.stored, rows.astype(np.uint32), group_of.astype(np.uint32), len(self.groups)
        )
        del pairs, ordered, rows, group_of
        for number, group in enumerate(self.groups):
            members, own = partitions.load(number)
            yield from self._train_group(group, partitions.rows[members], own)

    def _train_group(self, group: list[int], rows: NDArray[np.uint32], own: SparseRows) -> Iterator[int]:
        table = Table(own)

        def work(node: int) -> None:
            problem = self.below.problem(node)
            places = np.searchsorted(rows, problem.rows).astype(np.uint32)
            self._keep(node, train_node(table, places, self.common, problem))

        with one_blas_thread():
            for node in for_each(self._nodes_below(group), work, self.room.threads):
                yield int(self.below.counts[node])

    def _nodes_below(self, roots: list[int]) -> Iterator[int]:
        """The inner nodes of subtrees that have rows."""
        waiting = list(reversed(roots))
        while waiting:
            node = waiting.pop()
            if self.below.counts[node]:
                yield node
                waiting += [child for child in self.tree.children(node)[::-1] if self.tree.n_children[child]]

    def _keep(self, node: int, found: Arrays) -> None:
        result = NodeResult.of(found)
        with self._lock:
            self.nodes.keep(node, result.late)
            self.early_nodes.keep(node, result.early)
            self.scales[node] = result.scale[0]
            self._likelihood[node] = result.likelihood
            self.scores.histogram[int(self.tree.level[node])] += result.histogram


class RowsOnDisk:
    """The training rows of a label tree, on disk; the same answers as `RowsInMemory`, bit for bit."""

    def __init__(self, stored: StoredRows, room: Room) -> None:
        self.stored, self.room, self.targets = stored, room, stored.targets
        self.rows = without_entries(stored)
        self.length = math.sqrt(stored.mean_squared_length())

    def label_vectors(self, n_labels: int) -> SparseRows:
        return stored_label_vectors(self.stored, n_labels, self.room)

    def load(self, rows: NDArray[np.uint32]) -> SparseRows:
        return Partitions(self.stored, rows, np.zeros(len(rows), dtype=np.uint32), 1).load(0)[1]

    def run(self, work: Any, common: Common, problems: Sequence[Any]) -> list[Arrays]:
        numbers = np.unique(np.concatenate([problem.rows for problem in problems]))
        table = Table(self.load(numbers))
        return [
            work(table, np.searchsorted(numbers, problem.rows).astype(np.uint32), common, problem)
            for problem in problems
        ]

    def training(self, tree: Tree, common: Common) -> StoredTraining:
        return StoredTraining(tree, self.stored, common, self.room)


def without_entries(stored: StoredRows) -> SparseRows:
    """Rows without entries, as many and as wide as those stored."""
    nothing = np.zeros(len(stored) + 1, dtype=np.int64)
    return SparseRows(nothing, np.empty(0, np.uint32), np.empty(0, np.float32), stored.n_features)
