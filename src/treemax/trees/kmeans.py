"""Balanced hierarchical k-means: labels with similar examples come to stand under one parent.

A node's labels are halved again and again, each time by spherical 2-means into two parts of given sizes,
until there are as many parts as children are wanted. So any arity is possible, and siblings differ in size
by one at most.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from treemax.inputs import SparseRows
from treemax.kernels import clustering as kernels
from treemax.labels import Targets
from treemax.parameters import check_number
from treemax.pools import Arrays, Table, all_results, pool_for
from treemax.trees.tree import NO_LABEL, Tree

STRONGEST = 100  # entries of a label's vector that are used: fewer cost accuracy, more cost time only
ITERATIONS = 10
SAMPLE = 512  # labels that find a direction on their own, before all have a say


def label_vectors(rows: SparseRows, targets: Targets, n_labels: int, most: int = STRONGEST) -> SparseRows:
    """What a label looks like: the sum of its rows, scaled to length one, its largest entries only."""
    counts = np.bincount(targets.ids, minlength=n_labels)
    label_indptr = np.concatenate([[0], np.cumsum(counts)])
    row_of = np.repeat(np.arange(len(targets)), np.diff(targets.indptr))
    label_rows = row_of[np.argsort(targets.ids, kind="stable")]
    widths = np.bincount(targets.ids, weights=np.diff(rows.indptr)[row_of], minlength=n_labels)
    room = int(np.minimum(widths, most).sum())
    indptr = np.zeros(n_labels + 1, dtype=np.int64)
    indices, values = np.empty(room, dtype=np.uint32), np.empty(room, dtype=np.float32)
    scratch = np.zeros(rows.n_features, dtype=np.float32)
    used = kernels.label_vectors(
        rows.indptr,
        rows.indices,
        rows.values,
        label_indptr,
        label_rows,
        most,
        scratch,
        indptr,
        indices,
        values,
    )
    return SparseRows(indptr, indices[:used], values[:used], rows.n_features)


def unit_rows(rows: SparseRows) -> SparseRows:
    """Every row scaled to length one."""
    each = Targets(np.arange(len(rows) + 1), np.arange(len(rows), dtype=np.uint32))
    return label_vectors(rows, each, len(rows), most=max(1, rows.n_features))


class Cut(NamedTuple):
    """A node to be split: its labels, and into how many parts."""

    rows: NDArray[np.int64]
    n_parts: int
    seed: tuple[int, int]


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
    while level:
        split = [(node, own) for node, own in level if len(own) > max_leaf]
        cuts = [Cut(own, min(arity, len(own)), (seed, node)) for node, own in split]
        parts_of = {
            node: found for (node, _), found in zip(split, all_results(crew, parted, None, cuts, keep=True))
        }
        following = []
        for node, own in level:
            if node not in parts_of:
                parents += [node] * len(own)
                labels += own.tolist()
                continue
            ordered, starts = parts_of[node]
            for start, stop in pairwise(starts.tolist()):
                following.append((len(parents), ordered[start:stop]))
                parents.append(node)
                labels.append(NO_LABEL)
        level = following
    return Tree.from_parents(parents, labels)


def parted(table: Table, rows: NDArray[np.int64], common: None, cut: Cut) -> Arrays:
    """Cut labels into clusters of even size: the labels in their order, and where each cluster begins."""
    vectors, random = table.rows, np.random.RandomState(list(cut.seed))
    assert isinstance(vectors, SparseRows)
    sums = np.zeros(2 * vectors.n_features, dtype=np.float32)
    own, starts, waiting = rows.astype(np.int64), [0], [(slice(0, len(rows)), cut.n_parts)]
    while waiting:
        part, n_parts = waiting.pop()
        if n_parts == 1:
            starts.append(part.stop)
            continue
        members, left_parts = own[part], n_parts // 2
        n_left = len(members) * left_parts // n_parts
        random.shuffle(members)
        n_sample = min(len(members), max(SAMPLE, len(members) // 8))
        kernels.bisect(
            vectors.indptr, vectors.indices, vectors.values, members, n_left, n_sample, ITERATIONS, sums
        )
        middle = part.start + n_left
        waiting.append((slice(middle, part.stop), n_parts - left_parts))
        waiting.append((slice(part.start, middle), left_parts))
    by_place = np.argsort(rows, kind="stable")
    return cut.rows[by_place[np.searchsorted(rows[by_place], own)]], np.array(starts)
