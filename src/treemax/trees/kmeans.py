"""Balanced hierarchical k-means: labels with similar examples come to stand under one parent.

A node's labels are halved again and again, each time by spherical 2-means into two parts of given sizes,
until there are as many parts as children are wanted. So any arity is possible, and siblings differ in size
by one at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from treemax.inputs.labels import Targets
from treemax.inputs.rows import Rows, SparseRows, read_only
from treemax.kernels import clustering as kernels
from treemax.kernels import grouping
from treemax.parallel.pools import Arrays, Crew, Table, Threads, all_results, pool_for
from treemax.parameters import check_number
from treemax.trees.tree import NO_LABEL, Tree

STRONGEST = 100  # entries of a label's vector that are used: fewer cost accuracy, more cost time only
ITERATIONS = 10
PIECES = 32  # in which label vectors are summed up
SAMPLE = 512  # labels that find a direction on their own, before all have a say
MANY_CUTS = 8  # that are made at a time with all that is below them
FEW = 100  # labels whose whole subtree is found in one call: a call and a seed cost more than the work


class LabelRows(NamedTuple):
    """Some labels: the rows of the first, then those of the second, ..., and where those of each begin."""

    rows: NDArray[np.int64]
    starts: NDArray[np.int64]


def label_vectors(
    rows: SparseRows, targets: Targets, n_labels: int, most: int = STRONGEST, crew: Crew | None = None
) -> SparseRows:
    """What a label looks like: the sum of its rows, scaled to length one, its largest entries only.

    A crew, if there is one, must have these rows.
    """
    crew = crew or Threads().share(Table(rows))
    counts = np.bincount(targets.ids, minlength=n_labels)
    starts = np.concatenate([[0], np.cumsum(counts)])
    label_rows = np.empty(len(targets.ids), dtype=np.int64)
    grouping.rows_of_labels(read_only(targets.indptr), read_only(targets.ids), read_only(starts), label_rows)
    even = np.searchsorted(starts, np.linspace(0, starts[-1], PIECES + 1)[1:-1])
    cuts = np.unique(np.concatenate([[0], even, [n_labels]]))
    problems = [
        LabelRows(label_rows[starts[first] : starts[last]], starts[first : last + 1] - starts[first])
        for first, last in pairwise(cuts.tolist())
    ]
    found = all_results(crew, summed, most, problems)
    lengths, indices, values = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return SparseRows(np.concatenate([[0], np.cumsum(lengths)]), indices, values, rows.n_features)


def summed(table: Table, rows: NDArray[np.int64], most: int, problem: LabelRows) -> Arrays:
    """The vectors of some labels: how many entries each has, and the entries."""
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
    """Every row scaled to length one."""
    each = Targets(np.arange(len(rows) + 1), np.arange(len(rows), dtype=np.uint32))
    return label_vectors(rows, each, len(rows), most=max(1, rows.n_features))


def kmeans_tree(
    vectors: SparseRows, arity: int = 16, max_leaf: int = 100, random_state: Any = 0, threads: int = 1
) -> Tree:
    """A tree by balanced hierarchical k-means over label vectors."""
    check_number("arity", arity, whole=True, least=2)
    check_number("max_leaf", max_leaf, whole=True, least=2)
    seed = int(check_random_state(random_state).randint(2**31))
    crew = pool_for(threads).share(Table(vectors))
    parents, labels = [-1], [NO_LABEL]
    level = [(0, np.arange(len(vectors), dtype=np.int64))]  # (node, its labels)
    done: set[int] = set()  # nodes whose labels are in the order of their clusters
    while level:
        to_split = {node: own for node, own in level if len(own) > max_leaf and node not in done}
        parts_of = _parts_of_many(crew, to_split, arity, seed)
        ordered = _arranged(crew, to_split, arity, max_leaf, seed)
        following = []
        for node, own in level:
            if len(own) <= max_leaf:
                parents += [node] * len(own)
                labels += own.tolist()
                continue
            few = len(own) <= FEW
            for part in _cut(ordered.get(node, own), arity) if few else parts_of[node]:
                if few:
                    done.add(len(parents))
                following.append((len(parents), part))
                parents.append(node)
                labels.append(NO_LABEL)
        level = following
    return Tree.from_parents(parents, labels)


def _parts_of_many(
    crew: Crew, to_split: dict[int, NDArray[np.int64]], arity: int, seed: int
) -> dict[int, list[NDArray[np.int64]]]:
    """The clusters of nodes with more than a few labels."""
    cuts = {
        node: Cut.planned(own, min(arity, len(own)), np.random.RandomState([seed, node]))
        for node, own in to_split.items()
        if len(own) > FEW
    }
    _make_all(crew, list(cuts.values()))
    return {node: list(cut.parts()) for node, cut in cuts.items()}


class Few(NamedTuple):
    """Labels of a node whose whole subtree is to be found, and where its random numbers begin."""

    rows: NDArray[np.int64]
    seed: tuple[int, int]


def _arranged(
    crew: Crew, to_split: dict[int, NDArray[np.int64]], arity: int, max_leaf: int, seed: int
) -> dict[int, NDArray[np.int64]]:
    """The labels of nodes with a few of them, in the order of all clusters below."""
    problems = {node: Few(own, (seed, node)) for node, own in to_split.items() if len(own) <= FEW}
    found = all_results(crew, arranged, (arity, max_leaf), list(problems.values()), keep=True)
    return {node: few.rows[places] for (node, few), (places,) in zip(problems.items(), found, strict=True)}


def arranged(table: Table, rows: NDArray[np.int64], shape: tuple[int, int], problem: Few) -> Arrays:
    """The places of labels in the order of all clusters below a node."""
    vectors, number = table.rows, np.random.RandomState(list(problem.seed)).randint(2**31)
    assert isinstance(vectors, SparseRows)
    places = kernels.arrange(
        vectors.indptr, vectors.indices, vectors.values, read_only(rows), *shape, ITERATIONS, np.uint64(number),
        np.zeros(2 * vectors.n_features, dtype=np.float32),
    )  # fmt: skip
    return (places,)


def _cut(labels: NDArray[np.int64], n_parts: int) -> list[NDArray[np.int64]]:
    """Labels in so many parts, at most, of even size; where `Cut` and `arrange` cut them."""
    n_parts = min(n_parts, len(labels))
    if n_parts == 1:
        return [labels]
    middle = _left_of(len(labels), n_parts)
    return _cut(labels[:middle], n_parts // 2) + _cut(labels[middle:], n_parts - n_parts // 2)


@dataclass
class Cut:
    """Labels that are to be cut in two, and then each part again, until there are enough parts."""

    labels: NDArray[np.int64]  # until the cut above is made, only their number is right
    n_parts: int
    order: NDArray[np.int64] | None = None  # in which to take them; None: not to be cut
    below: tuple[Cut, Cut] | None = None

    @classmethod
    def planned(cls, labels: NDArray[np.int64], n_parts: int, random: np.random.RandomState) -> Cut:
        """A cut with all that are to follow. Orders are drawn here, so that cuts can be made in any order."""
        if n_parts == 1:
            return cls(labels, 1)
        order, n_left = np.arange(len(labels)), _left_of(len(labels), n_parts)
        random.shuffle(order)
        left = cls.planned(labels[:n_left], n_parts // 2, random)
        right = cls.planned(labels[n_left:], n_parts - n_parts // 2, random)
        return cls(labels, n_parts, order, (left, right))

    def orders(self) -> Iterator[NDArray[np.int64]]:
        """The orders of this cut and of all below, as `Parts` has them."""
        if self.order is not None:
            yield self.order
        for cut in self.below or ():
            yield from cut.orders()

    def halves(self) -> Halves:
        return Halves(self.labels[self.order], _left_of(len(self.labels), self.n_parts))

    def take(self, labels: NDArray[np.int64]) -> None:
        """Labels in the order of the parts; all below have theirs afterwards."""
        self.labels = labels
        if self.below is not None:
            n_left = _left_of(len(labels), self.n_parts)
            self.below[0].take(labels[:n_left])
            self.below[1].take(labels[n_left:])

    def parts(self) -> Iterator[NDArray[np.int64]]:
        """The parts that are not cut any further, from left to right."""
        if self.below is None:
            yield self.labels
            return
        for cut in self.below:
            yield from cut.parts()


class Halves(NamedTuple):
    """Labels to be cut in two, in the order in which to take them."""

    rows: NDArray[np.int64]
    n_left: int


class Parts(NamedTuple):
    """Labels to be cut into parts, and the orders in which to take them: of the first cut, of all below it on the left, and of
    all on the right."""

    rows: NDArray[np.int64]
    n_parts: int
    orders: NDArray[np.int64]


def _make_all(crew: Crew, cuts: list[Cut]) -> None:
    """Make these cuts, then those below them, until none is left. Where there are many, each is made with all that is below
    it, since every run of a crew costs some time."""
    while cuts := [cut for cut in cuts if cut.below is not None]:
        if len(cuts) >= MANY_CUTS:
            problems = [Parts(cut.labels, cut.n_parts, np.concatenate(list(cut.orders()))) for cut in cuts]
            for cut, (places,) in zip(cuts, all_results(crew, parted, None, problems, keep=True)):
                cut.take(cut.labels[places])
            return
        halves = [cut.halves() for cut in cuts]
        for cut, own, (places,) in zip(cuts, halves, all_results(crew, halved, None, halves, keep=True)):
            cut.take(own.rows[places])
        cuts = [below for cut in cuts for below in cut.below or ()]


def halved(table: Table, rows: NDArray[np.int64], common: None, problem: Halves) -> Arrays:
    """Cut labels into two clusters: the places of those on the left, then of those on the right."""
    return (_bisected(table.rows, rows, problem.n_left),)


def parted(table: Table, rows: NDArray[np.int64], common: None, problem: Parts) -> Arrays:
    """Cut labels into clusters: the places of those in the first, then of those in the second, and so on."""
    orders = problem.orders

    def cut(places: NDArray[np.int64], n_parts: int) -> NDArray[np.int64]:
        nonlocal orders
        if n_parts == 1:
            return places
        order, orders = orders[: len(places)], orders[len(places) :]
        n_left = _left_of(len(places), n_parts)
        places = places[order]
        places = places[_bisected(table.rows, rows[places], n_left)]
        left = cut(places[:n_left], n_parts // 2)
        return np.concatenate([left, cut(places[n_left:], n_parts - n_parts // 2)])

    return (cut(np.arange(len(rows)), problem.n_parts),)


def _left_of(n_labels: int, n_parts: int) -> int:
    """How many of the labels stand left of the first cut."""
    return n_labels * (n_parts // 2) // n_parts


def _bisected(vectors: Rows, rows: NDArray[np.int64], n_left: int) -> NDArray[np.int64]:
    assert isinstance(vectors, SparseRows)
    n_sample = min(len(rows), max(SAMPLE, len(rows) // 8))
    places: NDArray[np.int64] = kernels.bisect(
        vectors.indptr, vectors.indices, vectors.values, read_only(rows), n_left, n_sample, ITERATIONS,
        np.zeros(2 * vectors.n_features, dtype=np.float32),
    )  # fmt: skip
    return places
