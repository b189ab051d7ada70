"""Search of trees by kernels, in blocks of rows and with several threads.

`arguments` returns the first arguments of a kernel: the arrays of the given rows, then those of the tree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.conversions import blocks, sparsified
from treemax.inputs.rows import Rows, SparseRows, read_only, take_rows
from treemax.kernels import search as kernels
from treemax.kernels.vector import WIDTH
from treemax.parallel.threads import run_all

MOST_FILTERED = 2  # times as many labels as are needed anyway, where a few are left out

Arguments: TypeAlias = Callable[[SparseRows], tuple[Any, ...]]


class SparseProbabilities(NamedTuple):
    """Labels of rows with their probabilities, sorted by row and id."""

    rows: NDArray[np.int64]
    ids: NDArray[np.int64]
    probabilities: NDArray[np.float32]


class TopKAllowed(NamedTuple):
    """Ids and probabilities of the best of all labels of each row, and of the best allowed ones; -1 and 0 where fewer
    were found."""

    first: NDArray[np.int64]
    of_first: NDArray[np.float32]
    ids: NDArray[np.int64]
    probabilities: NDArray[np.float32]

    @classmethod
    def empty(cls, n_rows: int, n_first: int, k: int) -> TopKAllowed:
        """Return uninitialised arrays."""
        return cls(*empty_top_k(n_rows, n_first), *empty_top_k(n_rows, k))


def two_searches(
    model: Any, rows: Rows, k: int, n_first: int, weights: NDArray[np.float32], search: Any, threads: int
) -> TopKAllowed:
    """Return what `top_k` and `top_k_weighted` find; the latter searches rows with too few allowed labels among the first."""
    if n_first == 0:
        return TopKAllowed(*empty_top_k(len(rows), 0), *model.top_k_weighted(rows, k, weights, search, threads))
    first, of_first = model.top_k(rows, max(k, n_first), search, threads)
    ids, probabilities = first_allowed(first, of_first, weights, k)
    short = np.flatnonzero(ids[:, -1] < 0)
    if len(short) == len(rows):
        ids, probabilities = model.top_k_weighted(rows, k, weights, search, threads)
    elif len(short):
        again = model.top_k_weighted(take_rows(rows, short), k, weights, search, threads)
        ids[short], probabilities[short] = again
    return TopKAllowed(first[:, :n_first], of_first[:, :n_first], ids, probabilities)


def first_allowed(
    candidates: NDArray[np.int64], scores: NDArray[np.float32], weights: NDArray[np.float32], k: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the first k labels with a weight of each row and their scores; -1 and 0 where there are fewer."""
    ids, probabilities = empty_top_k(len(candidates), k)
    kernels.first_allowed(candidates, scores, read_only(weights), ids, probabilities)
    return ids, probabilities


def allowed_among(
    candidates: NDArray[np.int64], scores: NDArray[np.float32], k: int, n_first: int, weights: NDArray[np.float32]
) -> TopKAllowed:
    """Return the first candidates of each row, which are sorted, and the first k with a weight."""
    allowed = first_allowed(candidates, scores, weights, k)
    return TopKAllowed(candidates[:, :n_first], scores[:, :n_first], *allowed)


def empty_top_k(n_rows: int, k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return uninitialised arrays for the ids and probabilities of the k best labels."""
    return np.empty((n_rows, k), dtype=np.int64), np.empty((n_rows, k), dtype=np.float32)


class NodeWeights(NamedTuple):
    """The largest weight of the labels below every node, then zeros, since kernels read whole vectors, and the number of
    labels without a weight; -1 if an inner node has none."""

    values: NDArray[np.float32]
    n_left_out: int

    def n_to_filter(self, k: int, n_first: int) -> int:
        """Return how many of the best labels include the best k with a weight, or 0 if a search for both is faster.

        If no inner node is pruned, a search for labels with a weight opens the same nodes.
        """
        n = max(k + self.n_left_out, n_first)
        return n if self.n_left_out >= 0 and n <= MOST_FILTERED * n_first else 0


def largest_weights(
    model: Any, parent: NDArray[np.int64], leaf_of: NDArray[np.int64], weights: NDArray[np.float32], n_nodes: int
) -> NodeWeights:
    """Return the largest weight of the labels below every node of a tree.

    `model` keeps it for the next call, which often has the same weights.
    """
    last = model.__dict__.get("_last_weights")
    if last is None or last[0] is not weights or last[1] is not parent or len(last[2].values) != n_nodes + WIDTH:
        out = np.zeros(n_nodes + WIDTH, dtype=np.float32)
        kernels.largest_weights(read_only(parent), read_only(leaf_of), read_only(weights), out)
        pruned = out[:n_nodes] == 0
        pruned[leaf_of[leaf_of >= 0]] = False
        n_left_out = -1 if pruned.any() else int(np.count_nonzero(weights == 0))
        model.__dict__["_last_weights"] = last = weights, parent, NodeWeights(read_only(out), n_left_out)
    return last[2]


def best_weighted(
    ids: NDArray[np.int64], probabilities: NDArray[np.float32], weights: NDArray[np.float32], k: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the k candidates of each row with the largest products of probability and weight, and their probabilities.

    Labels of weight 0 are left out; where there are fewer than k, ids are -1.
    """
    of_id = weights[ids]
    kept = (of_id > 0) & (ids >= 0)
    products = np.where(kept, probabilities * of_id, np.float32(-1.0))
    order = np.argsort(-products, axis=1, kind="stable")[:, :k]
    kept = np.take_along_axis(kept, order, axis=1)
    best = np.where(kept, np.take_along_axis(ids, order, axis=1), -1)
    scores = np.where(kept, np.take_along_axis(probabilities, order, axis=1), np.float32(0.0))
    missing = k - best.shape[1]
    if missing > 0:
        best = np.pad(best, ((0, 0), (0, missing)), constant_values=-1)
        scores = np.pad(scores, ((0, 0), (0, missing)))
    return best, scores


def search_rows(
    search: Callable[..., None],
    arguments: Arguments,
    rows: Rows,
    threads: int,
    options: tuple[Any, ...],
    *by_row: NDArray[Any],
) -> None:
    """Call the kernel `search` for blocks of rows; `by_row` are its arrays with one entry per row."""
    sparse = sparsified(rows)
    if len(rows) == 1:
        search(*arguments(sparse), *options, *by_row)
        return

    def search_block(block: slice) -> None:
        search(*arguments(sparse[block]), *options, *[array[block] for array in by_row])

    run_all(blocks(len(rows), sum(array.shape[1] for array in by_row)), search_block, threads)


def search_above(
    search: Callable[..., Any], arguments: Arguments, rows: Rows, threshold: float, threads: int
) -> SparseProbabilities:
    """Return all labels with at least this probability; `search` writes where those of each row start."""

    def search_block(block: SparseRows) -> SparseProbabilities:
        starts = np.empty(len(block) + 1, dtype=np.int64)
        ids, probabilities = search(*arguments(block), np.float32(threshold), starts)
        return SparseProbabilities(np.repeat(np.arange(len(block)), np.diff(starts)), ids, probabilities)

    return search_sorted(search_block, rows, threads)


def search_sorted(search: Callable[[SparseRows], SparseProbabilities], rows: Rows, threads: int) -> SparseProbabilities:
    """Call `search` for blocks of rows, and sort what it finds by row and id."""
    sparse = sparsified(rows)
    parts: dict[int, SparseProbabilities] = {}

    def search_block(block: slice) -> None:
        found = search(sparse[block])
        order = np.lexsort((found.ids, found.rows))
        parts[block.start] = SparseProbabilities(
            block.start + found.rows[order], found.ids[order], found.probabilities[order]
        )

    run_all(blocks(len(rows), 1), search_block, threads)
    return SparseProbabilities(*map(np.concatenate, zip(*[parts[start] for start in sorted(parts)])))
