"""Training on a Ray cluster.

The table is put into Ray's object store once, in parts. A task is a batch of problems; it has the numbers of their
rows, and reads the rows from the store of its machine. Tasks are stateless, so that Ray can retry them elsewhere when
a worker or a machine dies, with the same results.
"""

from __future__ import annotations

import pickle
import socket
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treemax import __version__
from treemax.extras import import_extra
from treemax.parallel.pools import Arrays, Executor, Table, Work, gathered, using
from treemax.parallel.threads import one_blas_thread
from treemax.parameters import check_number

PART_BYTES = 2**28  # size of the parts of a table, each an object in Ray's store
LEAST_BYTES = 2**22  # minimum size of the rows of a batch: training on fewer takes less time than sending the task
SHORT = 16  # a batch of a short run may have this many times LEAST_BYTES
BATCHES_PER_WORKER = 16  # minimum in a long run: batches are retried when a machine fails
AHEAD = 3  # batches submitted per worker
RETRIES = 10  # maximum per task, after its worker has failed
SMALL = 20_000  # bytes that are sent with every task, which is faster than the store
CONNECT_SECONDS = 10
TABLES_HELD = 2  # cached by a worker


@contextmanager
def cluster(address: str = "auto", workers: int | None = None) -> Iterator[None]:
    """Train on a Ray cluster inside the block: `LabelTree`, `SoftmaxTree` and `SoftmaxForest`.

    Models are equal bit for bit to those trained with threads, if the machines are of one kind.

    Parameters
    ----------
    address : str
        "auto" for the cluster of this machine, "ray://host:10001" for a remote one, "local" to start one on this
        machine and stop it at the end. An existing connection of this process is reused.
    workers : int, optional
        Number of cores to use at a time; by default all of the cluster.

    Examples
    --------
    >>> import treemax
    >>> with treemax.cluster("local"):  # doctest: +SKIP
    ...     model = treemax.LabelTree().fit(X, y)
    """
    ray = _ray()
    check_number("workers", workers, whole=True, least=1, optional=True)
    if not isinstance(address, str) or not address:
        raise ValueError(f"address must be 'auto', 'local' or an address such as 'ray://host:10001', got {address!r}.")
    ours = not ray.is_initialized()
    if ours:
        _connect(ray, address, workers)
    try:
        cores = int(max(1, ray.cluster_resources().get("CPU", 1)))
        pool = RayPool(ray, workers or cores, ahead=AHEAD if workers is None or workers >= cores else 1)
        _check_workers(ray, pool.workers)
        with using(pool):
            yield
    finally:
        if ours:
            ray.shutdown()


def _ray() -> Any:
    return import_extra("ray", "Training on a cluster", "ray")


def _connect(ray: Any, address: str, workers: int | None) -> None:
    options: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    if address == "local":
        ray.init(address="local", num_cpus=workers, include_dashboard=False, **options)
        return
    try:
        _check_reachable(address)
        ray.init(address=address, **options)
    except ConnectionError as error:
        reason = str(error).partition(". ")[0].rstrip(".")  # without Ray's advice
        raise ConnectionError(
            f"There is no Ray cluster at {address!r} ({reason}). Start one with `ray start --head`, or use 'local'."
        ) from error
    except ValueError as error:
        raise ValueError(
            f"Ray does not accept the address {address!r}: {error}. Use 'auto', 'local' or one such as 'ray://host:10001'."
        ) from error


def _check_reachable(address: str) -> None:
    """Raise unless host:port accepts connections; Ray would retry for minutes."""
    host, colon, port = address.rpartition(":")
    if not colon or "//" in address or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ConnectionError(f"connection failed: {error}") from None


def _check_workers(ray: Any, count: int) -> None:
    """Import Treemax on every worker, and check that all have the same version."""
    try:
        versions = set(ray.get([ray.remote(_version).remote() for _ in range(count)]))
    except ray.exceptions.RayTaskError as error:
        reason = str(error).strip().splitlines()[-1]
        raise ConnectionError(
            f"The workers cannot import Treemax ({reason}). Install Treemax {__version__} on every machine of the cluster."
        ) from error
    if versions != {__version__}:
        raise ConnectionError(
            f"The workers have Treemax {', '.join(sorted(versions))}, this process has {__version__}. Install the same version."
        )


def _version() -> str:
    from treemax.models.label_tree import nodes as label_tree
    from treemax.models.softmax_tree import training as tao
    from treemax.trees import kmeans

    assert label_tree and tao and kmeans
    return __version__


@dataclass(frozen=True, eq=False)
class RayPool:
    """The workers of a cluster."""

    ray: Any
    workers: int
    part_bytes: int = PART_BYTES
    least_bytes: int = LEAST_BYTES
    ahead: int = AHEAD  # 1 runs at most `workers` tasks at a time on a cluster with more cores

    @cached_property
    def run_batch(self) -> Any:
        """The remote function, created once so that Ray sends it to the workers once."""
        return self.ray.remote(num_cpus=1, max_retries=RETRIES)(_run_batch)

    def share(self, table: Table) -> Executor:
        n_parts = max(1, min(len(table), -(-table.n_bytes // self.part_bytes)))
        starts = np.linspace(0, len(table), n_parts + 1).astype(np.int64)
        parts = [self.ray.put(table.part(*ends)) for ends in zip(starts[:-1].tolist(), starts[1:].tolist())]
        return _RayExecutor(self, _Shared(parts, starts[:-1]), self.least_bytes * len(table) / max(1, table.n_bytes))


@dataclass(frozen=True, eq=False)
class _Shared:
    """A table in the object store: its parts and their first rows."""

    parts: list[Any]
    starts: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class _RayExecutor:
    pool: RayPool
    shared: _Shared
    least: float  # rows per batch

    def run(self, work: Work, common: Any, problems: Sequence[Any], keep: bool = False) -> Iterator[tuple[int, Arrays]]:
        if not problems:
            return
        ray, pool = self.pool.ray, self.pool
        if len(pickle.dumps(common)) > SMALL:
            common = ray.put(common)
        waiting = iter(batches([len(problem.rows) for problem in problems], pool.workers, self.least))
        submitted: dict[Any, list[int]] = {}
        done: list[tuple[Any, list[int]]] = []
        try:
            while True:
                room = pool.ahead * pool.workers - len(submitted)
                for batch in islice(waiting, room):  # before reading results, so that no worker is idle
                    own = [problems[number] for number in batch]
                    submitted[pool.run_batch.remote(work, self.shared, common, own)] = batch
                for reference, batch in done:
                    yield from zip(batch, _copied(_result(ray, reference)), strict=True)
                if not submitted:
                    return
                ready, _ = ray.wait(list(submitted), num_returns=1)
                done = [(reference, submitted.pop(reference)) for reference in ready]
        finally:
            for reference in submitted:  # after an interruption
                ray.cancel(reference)


def _result(ray: Any, reference: Any) -> Any:
    """Return the result of a task. Errors of the task are raised unchanged, those of the cluster with a one-line
    message: Ray's messages contain the whole traceback of the worker."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        if isinstance(cause, ValueError | MemoryError | OSError) and not isinstance(cause, type(error)):
            raise cause from None
        message = f"{type(cause).__name__}: {cause}".strip().splitlines()[0]
        raise ConnectionError(f"A task on the cluster has failed ({message}).") from error
    except ray.exceptions.RayError as error:
        message = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ConnectionError(f"The cluster has failed ({message}).") from error


def _copied(results: list[Arrays]) -> list[Arrays]:
    """Copy results out of the object store, which is small and keeps what is referenced."""
    return [tuple(map(np.array, arrays)) for arrays in results]


def batches(sizes: Sequence[int], workers: int, least: float = 0) -> list[list[int]]:
    """Split problems into contiguous batches, one per task.

    Each takes a share of the remaining rows, so that the last batches are small and end at about the same time; at
    least `least` rows, and in long runs at most a sixteenth of a worker's share.

    >>> batches([40, 10, 10, 10, 4, 4, 4], workers=1, least=5)
    [[0], [1, 2], [3], [4], [5], [6]]
    """
    left = sum(sizes)
    most = max(left / (BATCHES_PER_WORKER * workers), SHORT * least)
    found: list[list[int]] = []
    room = 0.0
    for number, size in enumerate(sizes):
        if size > room or not found:
            found.append([])
            room = min(max(left / (2 * workers), least), most)
        found[-1].append(number)
        room -= size
        left -= size
    return found


# --- in the workers ------------------------------------------------------------------------------------

_TABLES: OrderedDict[Any, Table] = OrderedDict()
_SCRATCH: dict[int, list[NDArray[np.uint32]]] = {}
_LOCK = threading.Lock()


def _run_batch(work: Work, shared: _Shared, common: Any, problems: Sequence[Any]) -> list[Arrays]:
    """Run a batch of problems."""
    with one_blas_thread():
        if len(shared.parts) == 1:
            table = _opened(shared.parts[0])
            return [work(table, problem.rows, common, problem) for problem in problems]
        return [
            work(
                _of_problem(shared, problem.rows),
                np.arange(len(problem.rows), dtype=problem.rows.dtype),
                common,
                problem,
            )
            for problem in problems
        ]


def _of_problem(shared: _Shared, rows: NDArray[Any]) -> Table:
    """Gather the rows of a problem from the parts of the table."""
    needed = set(np.unique(np.searchsorted(shared.starts, rows, side="right") - 1).tolist()) or {0}
    parts = [_fetched(part) if number in needed else None for number, part in enumerate(shared.parts)]
    n_features = next(part for part in parts if part is not None).rows.shape[1]
    return gathered(parts, shared.starts, rows, _SCRATCH.setdefault(n_features, []))


def _opened(part: Any) -> Table:
    """Return a table from the cache of this worker."""
    with _LOCK:
        if part in _TABLES:
            _TABLES.move_to_end(part)
        else:
            _TABLES[part] = _fetched(part)
            if len(_TABLES) > TABLES_HELD:
                _TABLES.popitem(last=False)
        return _TABLES[part]


def _fetched(part: Any) -> Table:
    table: Table = _ray().get(part)
    return table
