"""Hash tables of the online trees: enlarged, and restored from the arrays of a model file."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from treemax.kernels.scorers import EMPTY, moved
from treemax.models.trained.parts import expect

SMALLEST_TABLE = 1024


def larger_table(keys: NDArray[np.uint64], cells: NDArray[Any], needed: int) -> tuple[NDArray[np.uint64], NDArray[Any]]:
    """Return the table with capacity for `needed` entries, doubled if necessary."""
    size = len(keys)
    while size * 3 // 4 < needed:
        size *= 2
    if size == len(keys):
        return keys, cells
    new_keys, new_cells = np.full(size, EMPTY), np.zeros((size, *cells.shape[1:]), dtype=cells.dtype)
    moved(keys, cells, new_keys, new_cells)
    return new_keys, new_cells


def table_from_arrays(
    arrays: dict[str, NDArray[Any]], prefix: str, width: int, present: bool, stored: int | None = None
) -> tuple[NDArray[np.uint64], NDArray[np.float32]]:
    """Restore a hash table from its entries."""
    name = f"{prefix}cells" if prefix else "counts"
    if not present:
        return np.full(SMALLEST_TABLE, EMPTY), np.zeros((SMALLEST_TABLE, width), np.float32)
    keys, n = arrays[f"{prefix}keys"], len(arrays[f"{prefix}keys"])
    expect(arrays, f"{prefix}keys", np.uint64, (n,))
    cells = expect(arrays, name, np.float32, (n, stored or width))
    if (keys == EMPTY).any() or len(np.unique(keys)) != n:
        raise ValueError("a hash table has duplicate entries")
    size = SMALLEST_TABLE
    while size * 3 // 4 < n:
        size *= 2
    new_keys, new_cells = np.full(size, EMPTY), np.zeros((size, width), dtype=np.float32)
    whole = np.zeros((n, width), dtype=np.float32)
    whole[:, : cells.shape[1]] = cells
    if (whole[:, width // 2 if prefix else 0 :] < 0).any():  # the squares after the weights, or the counts
        raise ValueError(f"{name} has negative numbers")
    moved(np.array(keys), whole, new_keys, new_cells)
    return new_keys, new_cells
