"""Balanced hierarchical k-means: labels with similar examples get the same parent.

The labels of a node are bisected recursively by spherical 2-means into parts of given sizes, until there is one
part per child. So any arity is possible, and the sizes of siblings differ by at most one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from treemax.inputs.labels import Targets
from treemax.inputs.rows import Rows, SparseRows, read_only, times_weights
from treemax.kernels import clustering as kernels
from treemax.kernels import grouping
from treemax.parallel.pools import Arrays, Executor, Table, Threads, all_results, pool_for
from treemax.parameters import check_number
from treemax.trees.tree import NO_LABEL, Tree

MAX_ENTRIES = 100  # largest entries of a label vector that are kept: fewer cost accuracy, more only time
ITERATIONS = 10
PIECES = 32  # tasks for the sums of label vectors
SAMPLE = 512  # labels that find the first direction of a bisection
MANY_BISECTIONS = 8  # from here on, one task per bisection makes all those below it too
SMALL_NODE = 100  # labels up to which one task builds the whole subtree: calls cost more than the work


class LabelRows(NamedTuple):
    """The rows of some labels, concatenated, and where those of each label begin."""

    rows: NDArray[np.int64]
    starts: NDArray[np.int64]


def label_vectors(
    rows: SparseRows, targets: Targets, n_labels: int, most: int = MAX_ENTRIES, executor: Executor | None = None
) -> SparseRows:
    """Return the vector of each label: the normalised (weighted) sum of its rows, only the largest entries.

    An executor, if given, must share these rows.
    """
    if targets.weights is not None:
        rows, executor = times_weights(rows, targets.weights), None
    executor = executor or Threads().share(Table(rows))
    counts = np.bincount(targets.ids, minlength=n_labels)
    starts = np.concatenate([[0], np.cumsum(counts)])
    label_rows = np.empty(len(targets.ids), dtype=np.int64)
    grouping.rows_of_labels(read_only(targets.indptr), read_only(targets.ids), starts.copy(), label_rows)
    even = np.searchsorted(starts, np.linspace(0, starts[-1], PIECES + 1)[1:-1])
    bisections = np.unique(np.concatenate([[0], even, [n_labels]]))
    problems = [
        LabelRows(label_rows[starts[first] : starts[last]], starts[first : last + 1] - starts[first])
        for first, last in pairwise(bisections.tolist())
    ]
    found = all_results(executor, summed, most, problems)
    lengths, indices, values = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return SparseRows(np.concatenate([[0], np.cumsum(lengths)]), indices, values, rows.n_features)


def summed(table: Table, rows: NDArray[np.int64], most: int, problem: LabelRows) -> Arrays:
    """Return the vectors of some labels: the number of entries of each, and the entries."""
    source, n_labels = table.rows, len(problem.starts) - 1
    assert isinstance(source, SparseRows)
    widths = source.indptr[rows + 1] - source.indptr[rows]
    ends = np.concatenate([[0], np.cumsum(widths)])[problem.starts]
    room = int(np.minimum(np.diff(ends), most).sum())
    indptr = np.zeros(n_labels + 1, dtype=np.int64)
    indices, values = np.empty(room, dtype=np.uint32), np.empty(room, dtype=np.float32)
    used = kernels.label_vectors(
        source.indptr, source.indices, source.values, read_only(problem.starts), read_only(rows), most,
        np.zeros(source.n_features, dtype=np.float32), indptr, indices, values,
    )  # fmt: skip
    return np.diff(indptr), indices[:used], values[:used]


def unit_rows(rows: SparseRows) -> SparseRows:
    """Scale every row to unit norm."""
    each = Targets(np.arange(len(rows) + 1), np.arange(len(rows), dtype=np.uint32))
    return label_vectors(rows, each, len(rows), most=max(1, rows.n_features))


def kmeans_tree(
    vectors: SparseRows, arity: int = 16, max_leaf: int = 100, random_state: Any = 0, threads: int = 1
) -> Tree:
    """Build a tree by balanced hierarchical k-means over label vectors."""
    check_number("arity", arity, whole=True, least=2)
    check_number("max_leaf", max_leaf, whole=True, least=2)
    seed = int(check_random_state(random_state).randint(2**31))
    executor = pool_for(threads).share(Table(vectors))
    parents, labels = [-1], [NO_LABEL]
    level = [(0, np.arange(len(vectors), dtype=np.int64))]  # (node, its labels)
    done: set[int] = set()  # nodes whose labels are in cluster order
    while level:
        to_split = {node: members for node, members in level if len(members) > max_leaf and node not in done}
        parts_of = _partition_large_nodes(executor, to_split, arity, seed)
        ordered = _order_small_nodes(executor, to_split, arity, max_leaf, seed)
        following = []
        for node, members in level:
            if len(members) <= max_leaf:
                parents += [node] * len(members)
                labels += members.tolist()
                continue
            few = len(members) <= SMALL_NODE
            for part in _even_parts(ordered.get(node, members), arity) if few else parts_of[node]:
                if few:
                    done.add(len(parents))
                following.append((len(parents), part))
                parents.append(node)
                labels.append(NO_LABEL)
        level = following
    return Tree.from_parents(parents, labels)


def _partition_large_nodes(
    executor: Executor, to_split: dict[int, NDArray[np.int64]], arity: int, seed: int
) -> dict[int, list[NDArray[np.int64]]]:
    """Return the clusters of nodes with more than SMALL_NODE labels."""
    bisections = {
        node: Bisection.plan(members, min(arity, len(members)), np.random.RandomState([seed, node]))
        for node, members in to_split.items()
        if len(members) > SMALL_NODE
    }
    _run_all(executor, list(bisections.values()))
    return {node: list(bisection.parts()) for node, bisection in bisections.items()}


class SubtreeProblem(NamedTuple):
    """The labels of a node whose whole subtree is built, and its random seed."""

    rows: NDArray[np.int64]
    seed: tuple[int, int]


def _order_small_nodes(
    executor: Executor, to_split: dict[int, NDArray[np.int64]], arity: int, max_leaf: int, seed: int
) -> dict[int, NDArray[np.int64]]:
    """Return the labels of nodes with at most SMALL_NODE labels, in the order of all clusters below."""
    problems = {node: SubtreeProblem(ids, (seed, node)) for node, ids in to_split.items() if len(ids) <= SMALL_NODE}
    found = all_results(executor, order_subtree, (arity, max_leaf), list(problems.values()), keep=True)
    return {node: few.rows[places] for (node, few), (places,) in zip(problems.items(), found, strict=True)}


def order_subtree(table: Table, rows: NDArray[np.int64], shape: tuple[int, int], problem: SubtreeProblem) -> Arrays:
    """Return the positions of labels in the order of all clusters below a node."""
    vectors, number = table.rows, np.random.RandomState(list(problem.seed)).randint(2**31)
    assert isinstance(vectors, SparseRows)
    places = kernels.arrange(
        vectors.indptr, vectors.indices, vectors.values, read_only(rows), *shape, ITERATIONS, np.uint64(number),
        np.zeros(2 * vectors.n_features, dtype=np.float32),
    )  # fmt: skip
    return (places,)


def _even_parts(labels: NDArray[np.int64], n_parts: int) -> list[NDArray[np.int64]]:
    """Split labels into at most `n_parts` even parts, where `Bisection` and `arrange` split them."""
    ends = _even_ends(len(labels), min(n_parts, len(labels)))
    return [labels[start:stop] for start, stop in pairwise((0, *ends))]


@lru_cache(1024)
def _even_ends(n_labels: int, n_parts: int) -> tuple[int, ...]:
    """Return where the parts of a recursive bisection end."""
    if n_parts == 1:
        return (n_labels,)
    middle = _left_size(n_labels, n_parts)
    right = _even_ends(n_labels - middle, n_parts - n_parts // 2)
    return (*_even_ends(middle, n_parts // 2), *(middle + end for end in right))


@dataclass
class Bisection:
    """A recursive bisection of labels into `n_parts` parts."""

    labels: NDArray[np.int64]  # only their number is right until the bisection above is done
    n_parts: int
    order: NDArray[np.int64] | None = None  # random order of the labels; None for a single part
    below: tuple[Bisection, Bisection] | None = None

    @classmethod
    def plan(cls, labels: NDArray[np.int64], n_parts: int, random: np.random.RandomState) -> Bisection:
        """Plan a recursive bisection. Random orders are drawn here, so that bisections can run in any order."""
        if n_parts == 1:
            return cls(labels, 1)
        order, n_left = np.arange(len(labels)), _left_size(len(labels), n_parts)
        random.shuffle(order)
        left = cls.plan(labels[:n_left], n_parts // 2, random)
        right = cls.plan(labels[n_left:], n_parts - n_parts // 2, random)
        return cls(labels, n_parts, order, (left, right))

    def orders(self) -> Iterator[NDArray[np.int64]]:
        """Yield the orders of this bisection and of all below, as in `PartitionProblem`."""
        if self.order is not None:
            yield self.order
        for bisection in self.below or ():
            yield from bisection.orders()

    def problem(self) -> BisectProblem:
        return BisectProblem(self.labels[self.order], _left_size(len(self.labels), self.n_parts))

    def take(self, labels: NDArray[np.int64]) -> None:
        """Set the labels in the order of the parts, here and in all bisections below."""
        self.labels = labels
        if self.below is not None:
            n_left = _left_size(len(labels), self.n_parts)
            self.below[0].take(labels[:n_left])
            self.below[1].take(labels[n_left:])

    def parts(self) -> Iterator[NDArray[np.int64]]:
        """Yield the final parts, from left to right."""
        if self.below is None:
            yield self.labels
            return
        for bisection in self.below:
            yield from bisection.parts()


class BisectProblem(NamedTuple):
    """Labels to bisect, in random order."""

    rows: NDArray[np.int64]
    n_left: int


class PartitionProblem(NamedTuple):
    """Labels to split into parts, and the random orders of the bisections: the first, all on its left, all on its
    right."""

    rows: NDArray[np.int64]
    n_parts: int
    orders: NDArray[np.int64]


def _run_all(executor: Executor, bisections: list[Bisection]) -> None:
    """Run these bisections and all below. If there are many, one task runs each with all below it, because every call of
    an executor has a cost."""
    while bisections := [bisection for bisection in bisections if bisection.below is not None]:
        if len(bisections) >= MANY_BISECTIONS:
            problems = [
                PartitionProblem(bisection.labels, bisection.n_parts, np.concatenate(list(bisection.orders())))
                for bisection in bisections
            ]
            for bisection, (places,) in zip(bisections, all_results(executor, partition, None, problems, keep=True)):
                bisection.take(bisection.labels[places])
            return
        halves = [bisection.problem() for bisection in bisections]
        for bisection, problem, (places,) in zip(
            bisections, halves, all_results(executor, bisect, None, halves, keep=True)
        ):
            bisection.take(problem.rows[places])
        bisections = [below for bisection in bisections for below in bisection.below or ()]


def bisect(table: Table, rows: NDArray[np.int64], common: None, problem: BisectProblem) -> Arrays:
    """Bisect labels; return the positions of the left cluster, then of the right one."""
    return (_bisected(table.rows, rows, problem.n_left),)


def partition(table: Table, rows: NDArray[np.int64], common: None, problem: PartitionProblem) -> Arrays:
    """Split labels into clusters; return the positions of the first cluster, then of the second, and so on."""
    orders = problem.orders

    def split(places: NDArray[np.int64], n_parts: int) -> NDArray[np.int64]:
        nonlocal orders
        if n_parts == 1:
            return places
        order, orders = orders[: len(places)], orders[len(places) :]
        n_left = _left_size(len(places), n_parts)
        places = places[order]
        places = places[_bisected(table.rows, rows[places], n_left)]
        left = split(places[:n_left], n_parts // 2)
        return np.concatenate([left, split(places[n_left:], n_parts - n_parts // 2)])

    return (split(np.arange(len(rows)), problem.n_parts),)


def _left_size(n_labels: int, n_parts: int) -> int:
    """Return the number of labels in the left half of the first bisection."""
    return n_labels * (n_parts // 2) // n_parts


def _bisected(vectors: Rows, rows: NDArray[np.int64], n_left: int) -> NDArray[np.int64]:
    assert isinstance(vectors, SparseRows)
    n_sample = min(len(rows), max(SAMPLE, len(rows) // 8))
    places: NDArray[np.int64] = kernels.bisect(
        vectors.indptr, vectors.indices, vectors.values, read_only(rows), n_left, n_sample, ITERATIONS,
        np.zeros(2 * vectors.n_features, dtype=np.float32),
    )  # fmt: skip
    return places
