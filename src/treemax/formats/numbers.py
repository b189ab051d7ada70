"""Format numbers with the fewest digits that give the same float32 when read."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from treemax.formats.examples import Examples
from treemax.inputs.rows import SparseRows


def shortest(values: NDArray[np.float32]) -> list[str]:
    """Format each value with its fewest digits.

    >>> shortest(np.array([1.0, 0.1, 1e-20], dtype=np.float32))
    ['1', '0.1', '1e-20']
    """
    return [text.removesuffix(".0") for text in values.astype(str).tolist()]


def sparse_rows_to_write(chunk: Examples, name: str) -> SparseRows:
    """Return the features of a chunk as sparse rows, without the zeros of dense rows; raises for text."""
    if chunk.rows is None:
        raise ValueError(
            f"The {name} format holds numbers, but these examples are text. "
            "Vectorise the text first, or write fasttext or jsonl."
        )
    if isinstance(chunk.rows, SparseRows):
        return chunk.rows
    row, column = np.nonzero(chunk.rows)
    starts = np.zeros(len(chunk) + 1, dtype=np.int64)
    np.cumsum(np.bincount(row, minlength=len(chunk)), out=starts[1:])
    return SparseRows(starts, column.astype(np.uint32), chunk.rows[row, column], chunk.rows.shape[1])


def pairs(rows: SparseRows) -> list[bytes]:
    """Format each row as `index:value index:value ...`."""
    start = rows.indptr[0]
    indices = rows.indices[start : rows.indptr[-1]].tolist()
    values = shortest(rows.values[start : rows.indptr[-1]])
    joined = [f"{index}:{value}" for index, value in zip(indices, values)]
    ends = (rows.indptr - start).tolist()
    return [" ".join(joined[first:last]).encode() for first, last in itertools.pairwise(ends)]
