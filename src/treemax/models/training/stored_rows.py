"""Out-of-core storage of rows and their label ids.

`RowWriter` writes rows chunk by chunk, `StoredRows` reads them window by window, and `Partitions` groups them on disk
in one pass, so that each group can be loaded at once. The temporary files are unlinked: they are deleted when they are
closed, even if the process is killed. They are not memory-mapped, so that only arrays in use count as memory.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.labels import Targets
from treemax.inputs.rows import SparseRows
from treemax.kernels import sparse_rows as kernels
from treemax.kernels.validation import squared_lengths
from treemax.models.training.learning_rates import SUMMED_TOGETHER, mean_without_outliers, squared_sum
from treemax.replacing import temporary_files

WINDOW = 2 * SUMMED_TOGETHER  # entries read from the disk at a time


class Spool:
    """An unlinked temporary file of arrays."""

    def __init__(self, folder: str | os.PathLike[str] | None) -> None:
        self._folder = folder
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        self.size = 0

    def append(self, array: NDArray[Any]) -> int:
        """Write an array at the end; return its offset in bytes."""
        start = self.size
        self.write(start, array)
        return start

    def write(self, start: int, array: NDArray[Any]) -> None:
        """Write an array at an offset in bytes."""
        plain: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        content = memoryview(plain)
        with temporary_files(self._folder):
            while content:
                done = os.pwrite(self._file.fileno(), content, start)
                content, start = content[done:], start + done
        self.size = max(self.size, start)

    def read(self, start: int, count: int, dtype: Any) -> NDArray[Any]:
        """Read `count` numbers at an offset in bytes."""
        array: Any = np.empty(count, dtype=dtype)
        content = memoryview(array.view(np.uint8))
        while content:
            done = os.preadv(self._file.fileno(), [content], start)
            if done == 0:
                raise OSError("A temporary file was truncated: it is shorter than what was written to it.")
            content, start = content[done:], start + done
        return array


class RowWriter:
    """Write rows and their label ids to disk, chunk by chunk."""

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        if folder is not None and not Path(folder).is_dir():
            raise ValueError(f"The folder for temporary files does not exist: {folder}.")
        self._folder = folder
        self._indices, self._values = Spool(folder), Spool(folder)
        self._lengths: list[NDArray[np.uint32]] = []
        self._counts: list[NDArray[np.uint32]] = []
        self._ids: list[NDArray[np.uint32]] = []
        self._weights: list[NDArray[np.float32]] = []
        self._weighted = False
        self._n_features = 1

    def add(self, rows: SparseRows, targets: Targets) -> None:
        """Append a chunk."""
        first, last = int(rows.indptr[0]), int(rows.indptr[-1])
        self._indices.append(rows.indices[first:last])
        self._values.append(rows.values[first:last])
        self._lengths.append(np.diff(rows.indptr).astype(np.uint32))
        self._counts.append(np.diff(targets.indptr).astype(np.uint32))
        self._ids.append(targets.ids[targets.indptr[0] : targets.indptr[-1]].copy())
        self._weights.append(np.ones(len(targets), np.float32) if targets.weights is None else targets.weights)
        self._weighted = self._weighted or targets.weights is not None
        self._n_features = max(self._n_features, rows.n_features)

    def finish(self, n_features: int) -> StoredRows:
        """Return all rows; no more can be added."""
        ids = _joined(self._ids, np.uint32)
        weights = _joined(self._weights, np.float32)
        targets = Targets(_starts(_joined(self._counts, np.uint32)), ids, weights if self._weighted else None)
        return StoredRows(
            _starts(_joined(self._lengths, np.uint32)),
            max(n_features, self._n_features),
            targets,
            self._indices,
            self._values,
            self._folder,
        )


def _joined(parts: list[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    joined = np.concatenate([np.empty(0, dtype=dtype), *parts])
    parts.clear()
    return joined


def _starts(counts: NDArray[Any]) -> NDArray[np.int64]:
    starts = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


@dataclass(frozen=True, eq=False)
class StoredRows:
    """Rows on disk, with `indptr` and the label ids in memory."""

    indptr: NDArray[np.int64]
    n_features: int
    targets: Targets
    indices: Spool
    values: Spool
    folder: str | os.PathLike[str] | None

    def __len__(self) -> int:
        return len(self.indptr) - 1

    @property
    def nnz(self) -> int:
        return int(self.indptr[-1])

    def lengths(self) -> NDArray[np.int64]:
        """Return the number of entries of each row."""
        return np.diff(self.indptr)

    def part(self, start: int, stop: int) -> SparseRows:
        """Read rows `start` to `stop`."""
        first, last = int(self.indptr[start]), int(self.indptr[stop])
        indices = self.indices.read(4 * first, last - first, np.uint32)
        values = self.values.read(4 * first, last - first, np.float32)
        return SparseRows(self.indptr[start : stop + 1] - first, indices, values, self.n_features)

    def windows(self) -> Iterator[tuple[int, int]]:
        """Yield start and stop of the blocks of rows that are read together."""
        start = 0
        while start < len(self):
            stop = int(np.searchsorted(self.indptr, self.indptr[start] + WINDOW, side="right")) - 1
            stop = min(max(stop, start + 1), len(self))
            yield start, stop
            start = stop

    def mean_squared_length(self) -> float:
        """Return the mean squared length as `rates.mean_squared_length` does, bit for bit."""
        total = sum(
            squared_sum(self.values.read(4 * first, min(SUMMED_TOGETHER, self.nnz - first), np.float32))
            for first in range(0, self.nnz, SUMMED_TOGETHER)
        )
        if total <= 0.0:
            return 1.0
        parts = (self.part(start, stop) for start, stop in self.windows())
        squared = np.concatenate([squared_lengths(part.indptr, part.values) for part in parts])
        mean = total / max(1, int((self.lengths() > 0).sum()))
        return mean_without_outliers(squared, mean, self.targets.weights)


class Partitions:
    """Rows grouped into partitions on disk, in one pass; a row may be in several partitions.

    `rows` are row numbers in ascending order, and `partition_of` is the partition of each.
    """

    def __init__(
        self, stored: StoredRows, rows: NDArray[np.uint32], partition_of: NDArray[np.uint32], n_partitions: int
    ) -> None:
        self.stored, self.rows, self.partition_of = stored, rows, partition_of
        lengths = stored.indptr[rows.astype(np.int64) + 1] - stored.indptr[rows]
        self._starts = np.zeros(n_partitions + 1, dtype=np.int64)
        np.cumsum(np.bincount(partition_of, weights=lengths, minlength=n_partitions), out=self._starts[1:])
        self._lengths = lengths.astype(np.uint32)
        self._indices, self._values = Spool(stored.folder), Spool(stored.folder)
        at = self._starts[:-1].copy()
        for start, stop in stored.windows():
            low, high = np.searchsorted(rows, [start, stop])
            if low < high:
                self._write(stored.part(start, stop), rows[low:high] - np.uint32(start), slice(low, high), at)

    def _write(self, window: SparseRows, rows: NDArray[np.uint32], place: slice, at: NDArray[np.int64]) -> None:
        """Append rows of a window to their partitions; `at` is the current end of each partition."""
        partition_of = self.partition_of[place]
        order = np.argsort(partition_of, kind="stable")
        counts = np.bincount(partition_of, weights=self._lengths[place], minlength=len(at)).astype(np.int64)
        indices = np.empty(int(counts.sum()), dtype=np.uint32)
        values = np.empty(len(indices), dtype=np.float32)
        kernels.copy_rows(window.indptr, window.indices, window.values, rows[order], indices, values)
        ends = np.cumsum(counts)
        for partition in np.flatnonzero(counts).tolist():
            part = slice(int(ends[partition] - counts[partition]), int(ends[partition]))
            self._indices.write(4 * int(at[partition]), indices[part])
            self._values.write(4 * int(at[partition]), values[part])
        at += counts

    def load(self, partition: int) -> tuple[NDArray[np.int64], SparseRows]:
        """Load a partition: the positions in `rows` of its members, and the rows, in ascending order."""
        members = np.flatnonzero(self.partition_of == partition)
        first, last = int(self._starts[partition]), int(self._starts[partition + 1])
        indices = self._indices.read(4 * first, last - first, np.uint32)
        values = self._values.read(4 * first, last - first, np.float32)
        return members, SparseRows(_starts(self._lengths[members]), indices, values, self.stored.n_features)


def even_partitions(sizes: NDArray[np.int64], most: int) -> NDArray[np.uint32]:
    """Assign consecutive items to partitions of at most `most` in total size, or of one larger item."""
    partition_of = np.empty(len(sizes), dtype=np.uint32)
    ends = np.cumsum(sizes)
    start = partition = 0
    while start < len(sizes):
        before = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + most, side="right")))
        partition_of[start:stop] = partition
        start, partition = stop, partition + 1
    return partition_of
