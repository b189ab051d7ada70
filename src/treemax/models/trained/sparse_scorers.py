"""Sparse linear scorers: allocation, and conversion to and from the arrays of a model file."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from treemax.kernels.buckets import LANES
from treemax.kernels.feature_tables import BUCKET_WORDS, FULL, SparseScorers, fill, list_entries, repack

MIN_BUCKETS = 256
_CACHE_LINE = 64
_ENTRIES, _SIZE_BITS = np.uint64(5), np.uint64(31)


def empty_sparse_scorers(n_owners: int, n_features: int) -> SparseScorers:
    """Return scorers without weights."""
    bias, bias_squares = np.zeros(n_owners, np.float32), np.zeros(n_owners, np.float32)
    tables = np.zeros(n_features, np.uint64)
    return SparseScorers(tables, *_buckets(MIN_BUCKETS), np.zeros(4, np.int64), bias, bias_squares)


def _buckets(n: int) -> tuple[NDArray[np.uint32], NDArray[np.float32]]:
    """Return empty buckets, each aligned to a cache line, and the AdaGrad sums of their entries."""
    words = np.zeros((n + 1) * BUCKET_WORDS, np.uint32)
    start = (-words.ctypes.data % _CACHE_LINE) // words.itemsize
    return words[start : start + n * BUCKET_WORDS], np.zeros(n * LANES, np.float32)


def with_features(scorers: SparseScorers, n_features: int) -> SparseScorers:
    """Return the scorers with capacity for at least this number of features."""
    missing = n_features - len(scorers.tables)
    if missing <= 0:
        return scorers
    return scorers._replace(tables=np.concatenate([scorers.tables, np.zeros(missing, np.uint64)]))


def with_buckets(scorers: SparseScorers, n_buckets: int) -> SparseScorers:
    """Return the scorers with capacity for `n_buckets` more; when they are reallocated, unused buckets are removed."""
    if int(scorers.used[0]) + n_buckets <= len(scorers.entry_squares) // LANES:
        return scorers
    in_use = int(_sizes(scorers.tables).sum())
    buckets, squares = _buckets(in_use + max(in_use, n_buckets))
    packed = scorers._replace(
        tables=np.zeros_like(scorers.tables), buckets=buckets, entry_squares=squares, used=np.zeros(4, np.int64)
    )
    packed.used[3] = scorers.used[3]
    repack(scorers, packed)
    return packed


def n_entries(scorers: SparseScorers) -> NDArray[np.int64]:
    """Return the number of weights of each feature."""
    return (scorers.tables >> _ENTRIES & np.uint64(2**27 - 1)).astype(np.int64)


def _sizes(tables: NDArray[np.uint64]) -> NDArray[np.int64]:
    return np.where(tables > 0, np.int64(1) << (tables & _SIZE_BITS).astype(np.int64), 0)


# --- model file ------------------------------------------------------------------------------------------


def stored_sparse(scorers: SparseScorers, resume: bool) -> dict[str, NDArray[Any]]:
    """Return the weights by feature; with `resume` also AdaGrad's sums.

    With `resume` they are sorted by owner, since the order in the tables depends on when they grew, and a resumed
    stream must end with the same file.
    """
    entries = n_entries(scorers)
    n = int(entries.sum())
    owners, weights, squares = np.empty(n, np.uint32), np.empty(n, np.float32), np.empty(n, np.float32)
    list_entries(scorers, owners, weights, squares)
    if resume:
        order = np.lexsort((owners, np.repeat(np.arange(len(entries)), entries)))
        owners, weights, squares = owners[order], weights[order], squares[order]
    parts = {"entries": entries.astype(np.uint32), "owners": owners, "weights": weights}
    return {**parts, "squares": squares} if resume else parts


def restored_sparse(
    entries: NDArray[np.uint32],
    owners: NDArray[np.uint32],
    weights: NDArray[np.float32],
    squares: NDArray[np.float32] | None,
    bias: NDArray[np.float32],
    bias_squares: NDArray[np.float32],
) -> SparseScorers:
    """Restore the scorers from their arrays; raise ValueError if they are inconsistent."""
    counts = entries.astype(np.int64)
    if counts.sum() != len(owners) or (owners >= len(bias)).any():
        raise ValueError("the weights do not fit the labels and features")
    bits = np.zeros(len(counts), np.int64)
    while (short := counts > np.where(bits > 0, FULL << bits, LANES)).any():
        bits[short] += 1
    sizes = np.where(counts > 0, 1 << bits, 0)
    words = (np.cumsum(sizes) - sizes) << 32 | counts << 5 | bits
    tables = np.where(counts > 0, words, 0).astype(np.uint64)
    used = np.array([sizes.sum(), 0, 0, 0], np.int64)
    scorers = SparseScorers(tables, *_buckets(max(MIN_BUCKETS, int(used[0]))), used, bias, bias_squares)
    sums = np.zeros(len(weights), np.float32) if squares is None else np.array(squares)
    if not fill(scorers, counts, np.array(owners), np.array(weights), sums):
        raise ValueError("a weight occurs twice")
    return scorers
