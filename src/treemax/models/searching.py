"""What searching a tree with a kernel is, whichever tree: rows go to it in blocks, threads take them in turn.

`arguments` makes what a kernel takes first: the arrays of some rows, then those of the tree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.rows import Rows, SparseRows
from treemax.models.rows import blocks, sparsified
from treemax.parallel.threads import run_all

Arguments: TypeAlias = Callable[[SparseRows], tuple[Any, ...]]


class SparseProbabilities(NamedTuple):
    """Labels found in rows, by row and id, with their probabilities."""

    rows: NDArray[np.int64]
    ids: NDArray[np.int64]
    probabilities: NDArray[np.float32]


def empty_top_k(n_rows: int, k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Where a search writes the ids and probabilities of the k best labels."""
    return np.empty((n_rows, k), dtype=np.int64), np.empty((n_rows, k), dtype=np.float32)


def search_rows(
    search: Callable[..., None],
    arguments: Arguments,
    rows: Rows,
    threads: int,
    options: tuple[Any, ...],
    *by_row: NDArray[Any],
) -> None:
    """Search block by block; `by_row` are the arrays that have a line for every row."""
    sparse = sparsified(rows)
    if len(rows) == 1:  # nothing to divide
        search(*arguments(sparse), *options, *by_row)
        return

    def answer(block: slice) -> None:
        search(*arguments(sparse[block]), *options, *[array[block] for array in by_row])

    run_all(blocks(len(rows), by_row[-1].shape[1]), answer, threads)


def search_above(
    search: Callable[..., Any], arguments: Arguments, rows: Rows, threshold: float, threads: int
) -> SparseProbabilities:
    """All labels with at least this probability."""
    sparse = sparsified(rows)
    parts: dict[int, SparseProbabilities] = {}

    def answer(block: slice) -> None:
        starts = np.empty(block.stop - block.start + 1, dtype=np.int64)
        ids, probabilities = search(*arguments(sparse[block]), np.float32(threshold), starts)
        row = np.repeat(np.arange(block.start, block.stop), np.diff(starts))
        order = np.lexsort((ids, row))
        parts[block.start] = SparseProbabilities(row, ids[order], probabilities[order])

    run_all(blocks(len(rows), 1), answer, threads)
    return SparseProbabilities(*map(np.concatenate, zip(*[parts[start] for start in sorted(parts)])))
