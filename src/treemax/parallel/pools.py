"""Pools that train the nodes of a tree: threads, or a cluster.

A model that is trained node by node puts its rows into a `Table` and shares it with the pool of `pool_for`, which
returns an `Executor`. The executor maps a module-level function (`Work`) over problems; a problem has the numbers of
its rows, not the rows. The function returns arrays only, which can be sent and stored. Results do not depend on the
pool: the function sees only its rows, its problem and the common arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.rows import Rows, SparseRows, read_only
from treemax.parallel.threads import for_each, one_blas_thread

Arrays: TypeAlias = "tuple[NDArray[Any], ...]"


@dataclass(frozen=True, eq=False)
class Table:
    """Rows, and columns with one entry per row, shared by all problems."""

    rows: Rows
    columns: dict[str, NDArray[Any]] = field(default_factory=dict)
    _scratch: list[NDArray[np.uint32]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def matrix(self) -> Any:
        """The rows as a NumPy array or a SciPy matrix."""
        return self.rows.to_scipy() if isinstance(self.rows, SparseRows) else self.rows

    @contextmanager
    def scratch(self) -> Iterator[NDArray[np.uint32]]:
        """Borrow a zeroed array with one entry per feature, to be returned zeroed.

        Threads reuse a few, because allocation takes longer than training a small node."""
        try:
            array = self._scratch.pop()
        except IndexError:
            array = np.zeros(self.rows.shape[1], dtype=np.uint32)
        yield array
        self._scratch.append(array)

    @property
    def n_bytes(self) -> int:
        rows = self.rows
        of_rows = 8 * (rows.nnz + len(rows)) if isinstance(rows, SparseRows) else rows.nbytes
        return of_rows + sum(column.nbytes for column in self.columns.values())

    def part(self, start: int, stop: int) -> Table:
        """Return the rows `start` to `stop`, with arrays of their size."""
        columns = {name: column[start:stop] for name, column in self.columns.items()}
        rows = self.rows[start:stop]
        if isinstance(rows, SparseRows):
            first, last = int(rows.indptr[0]), int(rows.indptr[-1])
            rows = SparseRows(rows.indptr - first, rows.indices[first:last], rows.values[first:last], rows.n_features)
        return Table(rows, columns)


def gathered(
    parts: Sequence[Table | None], starts: NDArray[np.int64], chosen: NDArray[Any], scratch: list[NDArray[np.uint32]]
) -> Table:
    """Gather the chosen rows of a table in parts, in order; parts without such rows may be None."""
    part_of = np.searchsorted(starts, chosen, side="right") - 1
    places = [np.flatnonzero(part_of == number) for number in range(len(parts))]
    selections = [
        (part, place, chosen[place].astype(np.int64) - starts[number])
        for number, (part, place) in enumerate(zip(parts, places, strict=True))
        if part is not None and len(place)
    ]
    first = next(part for part in parts if part is not None)
    columns = {}
    for name, column in first.columns.items():
        columns[name] = np.empty((len(chosen), *column.shape[1:]), column.dtype)
        for part, place, local in selections:
            columns[name][place] = part.columns[name][local]
    if not isinstance(first.rows, SparseRows):
        dense = np.empty((len(chosen), first.rows.shape[1]), np.float32)
        for part, place, local in selections:
            dense[place] = np.asarray(part.rows)[local]
        return Table(read_only(dense), columns, scratch)
    return Table(_gathered_rows(selections, len(chosen), first.rows.n_features), columns, scratch)


def _gathered_rows(selections: Sequence[tuple[Any, ...]], n_rows: int, n_features: int) -> SparseRows:
    lengths = np.zeros(n_rows, np.int64)
    for part, place, local in selections:
        lengths[place] = part.rows.indptr[local + 1] - part.rows.indptr[local]
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    indices, values = np.empty(indptr[-1], np.uint32), np.empty(indptr[-1], np.float32)
    for part, place, local in selections:
        entry = np.arange(lengths[place].sum()) - np.repeat(np.cumsum(lengths[place]) - lengths[place], lengths[place])
        to = np.repeat(indptr[place], lengths[place]) + entry
        source = np.repeat(part.rows.indptr[local], lengths[place]) + entry
        indices[to], values[to] = part.rows.indices[source], part.rows.values[source]
    return SparseRows(indptr, indices, values, n_features)


class NodeProblem(Protocol):
    """The training problem of a node: a named tuple of numbers and arrays. `rows` are row numbers in the table."""

    @property
    def rows(self) -> NDArray[Any]: ...


# (table, numbers of the problem's rows in this table, common arguments, problem) -> results
Work: TypeAlias = Callable[[Table, NDArray[Any], Any, Any], Arrays]


class Executor(Protocol):
    """Executor of problems on a shared table."""

    def run(self, work: Work, common: Any, problems: Sequence[Any], keep: bool = False) -> Iterator[tuple[int, Arrays]]:
        """Run `work` on every problem; yield the number of each problem and its results as they complete.

        BLAS uses one thread per problem. `keep` stores the results in checkpoints, if there are any.
        """
        ...


class Pool(Protocol):
    """Workers with which a table can be shared."""

    def share(self, table: Table) -> Executor: ...


@dataclass(frozen=True)
class Threads:
    """Threads of this process."""

    count: int = 1

    def share(self, table: Table) -> Executor:
        return _ThreadExecutor(table, self.count)


@dataclass(frozen=True, eq=False)
class _ThreadExecutor:
    table: Table
    threads: int

    def run(self, work: Work, common: Any, problems: Sequence[Any], keep: bool = False) -> Iterator[tuple[int, Arrays]]:
        results: dict[int, Arrays] = {}

        def do(number: int) -> None:
            problem = problems[number]
            results[number] = work(self.table, problem.rows, common, problem)

        with one_blas_thread():
            for number in for_each(range(len(problems)), do, self.threads):
                yield number, results.pop(number)


def all_results(
    executor: Executor, work: Work, common: Any, problems: Sequence[Any], keep: bool = False
) -> list[Arrays]:
    """Return the results of all problems, in order."""
    found = dict(executor.run(work, common, problems, keep))
    return [found[number] for number in range(len(problems))]


# --- which pool ----------------------------------------------------------------------------------------

_CLUSTER: ContextVar[Pool | None] = ContextVar("treemax_cluster", default=None)
_WRAPPER: ContextVar[Callable[[Pool], Pool] | None] = ContextVar("treemax_pool_wrapper", default=None)


def pool_for(threads: int) -> Pool:
    """Return the active cluster, or a pool of `threads` threads."""
    pool = _CLUSTER.get() or Threads(threads)
    wrapper = _WRAPPER.get()
    return pool if wrapper is None else wrapper(pool)


def cluster_in_use() -> bool:
    return _CLUSTER.get() is not None


@contextmanager
def using(pool: Pool) -> Iterator[None]:
    """Context manager: train on this pool."""
    token = _CLUSTER.set(pool)
    try:
        yield
    finally:
        _CLUSTER.reset(token)


@contextmanager
def wrapped(wrapper: Callable[[Pool], Pool]) -> Iterator[None]:
    """Context manager: `pool_for` returns wrapped pools."""
    token = _WRAPPER.set(wrapper)
    try:
        yield
    finally:
        _WRAPPER.reset(token)
