"""Training of a label tree on rows on disk; the model equals that of training in memory.

Nodes whose rows fit in memory are trained as usual, in groups: the rows are grouped on disk in one pass, and the groups
are loaded one after the other. Larger nodes, such as the root, are trained by `LargeNode`. The results of nodes are
stored on disk until the tree is packed.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.labels import ALL_ONE, Targets
from treemax.inputs.rows import SparseRows
from treemax.memory import format_bytes, release_free_memory, used_bytes
from treemax.models.label_tree.large_nodes import ROW_BYTES, LargeNode
from treemax.models.label_tree.nodes import (
    Common,
    LevelStatistics,
    NodeProblem,
    NodeResult,
    node_costs,
    train_node,
    with_negatives,
)
from treemax.models.label_tree.packed_tree import PackedNode
from treemax.models.label_tree.routing import HardNegatives, above_labels
from treemax.models.training.stored_rows import Partitions, Spool, StoredRows, even_partitions
from treemax.parallel.pools import Arrays, Table
from treemax.parallel.threads import for_each, one_blas_thread
from treemax.trees import Tree, label_vectors

ENTRY_BYTES = 16  # memory of an entry, with its copy by local features
MIN_ROW_BYTES = 16_000_000  # for rows in memory; with less, training would be too slow
OVERHEAD = 64_000_000  # for compiled kernels, read buffers and the like


class MemoryBudget(NamedTuple):
    """Memory for rows, in bytes, and the number of threads that share it."""

    bytes: int
    threads: int

    @property
    def entries(self) -> int:
        """Number of entries that one thread may load together."""
        return self.bytes // ENTRY_BYTES


def memory_budget(memory: int, stored: StoredRows, n_labels: int, threads: int) -> MemoryBudget:
    """Return the part of `memory` that is left for rows, after everything that is always in memory."""
    per_label = 32 if stored.targets.relevance is None else 64
    per_row = ROW_BYTES * len(stored) + per_label * len(stored.targets.ids)
    per_feature = (100 + 80 * threads) * stored.n_features
    release_free_memory()
    left = memory - used_bytes() - OVERHEAD - per_row - per_feature - 64 * n_labels
    if left < MIN_ROW_BYTES:
        needed = 1.05 * (memory - left + MIN_ROW_BYTES)  # with a margin, since the use of memory varies
        raise MemoryError(
            f"memory={format_bytes(memory)} is too little for {len(stored):,} rows of {stored.n_features:,} features with "
            f"{n_labels:,} labels; use at least {format_bytes(needed)}."
        )
    return MemoryBudget(left, threads)


def stored_label_vectors(stored: StoredRows, n_labels: int, budget: MemoryBudget) -> SparseRows:
    """Return `trees.label_vectors` of rows on disk, by partitions of labels whose rows fit in memory together."""
    targets = stored.targets
    rows = _row_of_each(targets)
    widths = np.bincount(targets.ids, weights=stored.lengths()[rows], minlength=n_labels).astype(np.int64)
    partition_of_label = even_partitions(widths, budget.entries)
    n_partitions = int(partition_of_label.max(initial=0)) + 1
    partitions = Partitions(stored, rows, partition_of_label[targets.ids], n_partitions)
    found = []
    for partition in range(n_partitions):
        first, last = np.searchsorted(partition_of_label, [partition, partition + 1])
        members, part = partitions.load(partition)
        weights = None if targets.weights is None else targets.weights[rows[members]]
        each = Targets(np.arange(len(members) + 1), targets.ids[members] - np.uint32(first), weights)
        found.append(label_vectors(part, each, int(last - first)))
    counts = np.concatenate([np.diff(vectors.indptr) for vectors in found])
    return SparseRows(
        np.concatenate([[0], np.cumsum(counts)]),
        np.concatenate([vectors.indices for vectors in found]),
        np.concatenate([vectors.values for vectors in found]),
        stored.n_features,
    )


def _row_of_each(targets: Targets) -> NDArray[np.uint32]:
    """Return the row of each entry of `targets.ids`."""
    return np.repeat(np.arange(len(targets), dtype=np.uint32), np.diff(targets.indptr))


class NodeRows:
    """The rows that have a label below each node; stored in order of the leaves, so that those of a node are contiguous."""

    def __init__(self, tree: Tree, stored: StoredRows, costs: NDArray[np.float64]) -> None:
        self.tree, self.n_rows, self.costs, self.targets = tree, len(stored), costs, stored.targets
        n_leaves, self._first_leaf = _leaves_below(tree)
        place_of_label = self._first_leaf[tree.leaf_of].astype(np.uint32)
        places = place_of_label[stored.targets.ids]
        order = np.argsort(places, kind="stable")
        self._rows = _row_of_each(stored.targets)[order]
        relevance = stored.targets.relevance
        self._relevance = None if relevance is None else relevance[order]
        self._starts = np.concatenate([[0], np.cumsum(np.bincount(places, minlength=tree.n_labels))])
        del order, places
        entries = np.concatenate([[0], np.cumsum(stored.lengths()[self._rows])])
        last_leaf = self._first_leaf + n_leaves
        bounds = self._starts[self._first_leaf], self._starts[last_leaf]
        self.counts = bounds[1] - bounds[0]  # rows of each node; a row counts once for each of its labels
        self.entries = entries[bounds[1]] - entries[bounds[0]]
        self.counts[0], self.entries[0] = self.n_rows, stored.nnz

    def rows(self, node: int) -> NDArray[np.uint32]:
        """Return the rows that reach a node: all of the root, else those with a label below, in order of the leaves."""
        return np.arange(self.n_rows, dtype=np.uint32) if node == 0 else self._labelled(node)

    def _labelled(self, node: int) -> NDArray[np.uint32]:
        return self._rows[self._place(node)]

    def _place(self, node: int) -> slice:
        first = self._starts[self._first_leaf[node]]
        return slice(first, first + (len(self._rows) if node == 0 else self.counts[node]))

    def problem(self, node: int) -> NodeProblem:
        """Return the problem of a node as in `nodes.node_problems`."""
        problem = self._unweighted_problem(node)
        weights = self.targets.weights
        return problem if weights is None else problem._replace(row_weights=weights[problem.rows])

    def _unweighted_problem(self, node: int) -> NodeProblem:
        n_children, first = int(self.tree.n_children[node]), int(self.tree.first_child[node])
        cost = float(self.costs[node])
        rows = self._labelled(node).astype(np.int64)
        children = np.repeat(np.arange(n_children), self.counts[first : first + n_children])
        pairs, pair_weights = rows * n_children + children, ALL_ONE
        if self._relevance is None:
            pairs.sort()
        else:  # of a pair, that of the most relevant label
            pair_weights = self._relevance[self._place(node)]
            order = np.lexsort((-pair_weights, pairs))
            pairs, pair_weights = pairs[order], pair_weights[order]
        distinct = np.diff(pairs, prepend=-1) != 0
        pairs, pair_weights = pairs[distinct], pair_weights[distinct] if len(pair_weights) else ALL_ONE
        row, child = pairs // n_children, (pairs % n_children).astype(np.uint32)
        if node == 0:  # including rows without labels
            whole = np.arange(self.n_rows, dtype=np.uint32)
            starts = np.searchsorted(row, np.arange(self.n_rows + 1))
            return NodeProblem(0, n_children, cost, whole, starts, child, pair_weights=pair_weights)
        starts = np.flatnonzero(np.diff(row, prepend=-1))
        starts, own = np.append(starts, len(row)), row[starts].astype(np.uint32)
        return NodeProblem(node, n_children, cost, own, starts, child, pair_weights=pair_weights)


def _leaves_below(tree: Tree) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the number of leaves below every node (1 for a leaf), and the first of them in depth-first order."""
    n_leaves = (tree.n_children == 0).astype(np.int64)
    first_leaf = np.zeros(len(tree), dtype=np.int64)
    inner = np.flatnonzero(tree.n_children).tolist()
    for node in reversed(inner):  # children come after their parent
        children = slice(int(tree.first_child[node]), int(tree.first_child[node] + tree.n_children[node]))
        n_leaves[node] = n_leaves[children].sum()
    for node in inner:
        children = slice(int(tree.first_child[node]), int(tree.first_child[node] + tree.n_children[node]))
        first_leaf[children] = first_leaf[node] + np.cumsum(n_leaves[children]) - n_leaves[children]
    return n_leaves, first_leaf


class NodesOnDisk(Mapping[int, PackedNode]):
    """Mapping from node to packed weights, stored on disk."""

    def __init__(self, folder: Any) -> None:
        self._spool = Spool(folder)
        self._parts: dict[int, list[tuple[int, int, np.dtype]]] = {}

    def store(self, node: int, packed: PackedNode) -> None:
        self._parts[node] = [(self._spool.append(part), len(part), part.dtype) for part in packed]

    def __getitem__(self, node: int) -> PackedNode:
        return PackedNode(*(self._spool.read(*part) for part in self._parts[node]))

    def __iter__(self) -> Iterator[int]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


class StoredTraining:
    """Training of all nodes of a tree on rows on disk; `run` sets `nodes`, `holdout_nodes`, `scales` and `statistics`."""

    def __init__(self, tree: Tree, source: RowsOnDisk, common: Common, multi_label: bool) -> None:
        self.tree, self.source, self.common, self.multi_label = tree, source, common, multi_label
        self.stored, self.budget = source.stored, source.budget
        self.node_rows = NodeRows(tree, self.stored, node_costs(tree, common.settings))
        self.negatives = HardNegatives.none(tree)
        self.nodes = NodesOnDisk(self.stored.folder)
        self.holdout_nodes = NodesOnDisk(self.stored.folder)
        self.scales = np.zeros(len(tree), dtype=np.float32)
        self._histograms = LevelStatistics(tree.depth)
        self._likelihood: dict[int, NDArray[np.float64]] = {}
        self._lock = threading.Lock()

    @property
    def work(self) -> int:
        """The total work: the sum over nodes of their rows."""
        return int(self.node_rows.counts[self.tree.n_children > 0].sum())

    @property
    def statistics(self) -> LevelStatistics:
        """Statistics of the nodes trained so far."""
        total = LevelStatistics(self.tree.depth)
        total.histogram += self._histograms.histogram
        for node in sorted(self._likelihood):  # in the same order as in memory
            total.likelihood[int(self.tree.level[node])] += self._likelihood[node]
        return total

    def run(self) -> Iterator[int]:
        """Train the upper nodes, then those above labels; yield the work of each."""
        ends, used = above_labels(self.tree), (self.tree.n_children > 0) & (self.node_rows.counts > 0)
        yield from self._train(np.flatnonzero(used & ~ends))
        share, link = self.common.settings.hard_negatives, self.statistics.link(self.multi_label)
        self.negatives = HardNegatives.find(self.tree, self.nodes, link, self.source, share)
        yield from self._train(np.flatnonzero(used & ends))

    def _problem(self, node: int) -> NodeProblem:
        return with_negatives(self.node_rows.problem(node), self.negatives.of(node), self.stored.targets)

    def _train(self, nodes: NDArray[np.int64]) -> Iterator[int]:
        """Train the nodes that are too large for memory, then the others, in groups whose rows fit."""
        lengths, most = self.stored.lengths(), self.budget.bytes // self.budget.threads
        negatives = [self.negatives.of(node) for node in nodes.tolist()]
        n_rows = self.node_rows.counts[nodes] + [len(own) for own in negatives]
        entries = self.node_rows.entries[nodes] + [int(lengths[own].sum()) for own in negatives]
        sizes = ENTRY_BYTES * entries + ROW_BYTES * n_rows
        fits = sizes <= most
        if not fits.all() and self.common.settings.penalty == "l1":
            raise MemoryError(
                f"penalty='l1' needs the rows of a node in memory, here {format_bytes(int(sizes.max()) * self.budget.threads)} in "
                "addition to the rest; increase memory, or use penalty='l2'."
            )
        for node in nodes[~fits].tolist():
            problem = self._problem(node)
            self._store(node, LargeNode(self.stored, self.common, problem, self.budget.entries).train())
            yield int(self.node_rows.counts[node])
        if fits.any():
            yield from self._train_groups(nodes[fits], even_partitions(sizes[fits], most))

    def _train_groups(self, nodes: NDArray[np.int64], group_of: NDArray[np.uint32]) -> Iterator[int]:
        """Train nodes by groups whose rows are in memory together."""
        n_groups = int(group_of.max()) + 1
        pairs = []
        for group in range(n_groups):
            own = nodes[group_of == group].tolist()
            rows = np.concatenate(
                [part for node in own for part in (self.node_rows.rows(node), self.negatives.of(node))]
            )
            pairs.append(np.unique(rows).astype(np.int64) * n_groups + group)
        ordered = np.sort(np.concatenate(pairs))
        rows, groups = (ordered // n_groups).astype(np.uint32), (ordered % n_groups).astype(np.uint32)
        partitions = Partitions(self.stored, rows, groups, n_groups)
        del pairs, ordered, rows, groups
        for group in range(n_groups):
            members, loaded = partitions.load(group)
            yield from self._train_group(nodes[group_of == group].tolist(), partitions.rows[members], loaded)

    def _train_group(self, nodes: list[int], rows: NDArray[np.uint32], loaded: SparseRows) -> Iterator[int]:
        table = Table(loaded)

        def work(node: int) -> None:
            problem = self._problem(node)
            places = np.searchsorted(rows, problem.rows).astype(np.uint32)
            self._store(node, train_node(table, places, self.common, problem))

        with one_blas_thread():
            for node in for_each(nodes, work, self.budget.threads):
                yield int(self.node_rows.counts[node])

    def _store(self, node: int, arrays: Arrays) -> None:
        result = NodeResult.of(arrays)
        with self._lock:
            self.nodes.store(node, result.final)
            self.holdout_nodes.store(node, result.holdout)
            self.scales[node] = result.scale[0]
            self._likelihood[node] = result.likelihood
            self._histograms.histogram[int(self.tree.level[node])] += result.histogram


class RowsOnDisk:
    """The training rows of a label tree on disk; the same results as `RowsInMemory`, bit for bit."""

    def __init__(self, stored: StoredRows, budget: MemoryBudget) -> None:
        self.stored, self.budget, self.targets = stored, budget, stored.targets
        self.rows, self.threads = empty_rows_like(stored), budget.threads
        self.length = math.sqrt(stored.mean_squared_length())

    def label_vectors(self, n_labels: int) -> SparseRows:
        return stored_label_vectors(self.stored, n_labels, self.budget)

    def load(self, rows: NDArray[np.uint32]) -> SparseRows:
        return Partitions(self.stored, rows, np.zeros(len(rows), dtype=np.uint32), 1).load(0)[1]

    def run(self, work: Any, common: Common, problems: Sequence[Any]) -> list[Arrays]:
        numbers = np.unique(np.concatenate([problem.rows for problem in problems]))
        table = Table(self.load(numbers))
        return [
            work(table, np.searchsorted(numbers, problem.rows).astype(np.uint32), common, problem)
            for problem in problems
        ]

    def blocks(self) -> Iterator[tuple[int, SparseRows]]:
        """Yield all rows, by blocks, with the number of the first."""
        for start, stop in self.stored.windows():
            yield start, self.stored.part(start, stop)

    def training(self, tree: Tree, common: Common, multi_label: bool) -> StoredTraining:
        return StoredTraining(tree, self, common, multi_label)


def empty_rows_like(stored: StoredRows) -> SparseRows:
    """Return the rows without entries, of the shape of `stored`."""
    nothing = np.zeros(len(stored) + 1, dtype=np.int64)
    return SparseRows(nothing, np.empty(0, np.uint32), np.empty(0, np.float32), stored.n_features)
