"""Training on a Ray cluster: the same problems, worked on by other processes and other machines.

The table goes to Ray's object store once, in parts of rows. A task is a bundle of problems; it carries the numbers of
their rows, and reads the rows from the store of its own machine. Tasks keep nothing, so that Ray can repeat them
elsewhere when a worker or a machine dies; the results are the same.
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
from treemax.extras import imported
from treemax.parallel.pools import Arrays, Crew, Table, Work, gathered, using
from treemax.parallel.threads import one_blas_thread
from treemax.parameters import check_number

PART_BYTES = 2**28  # of a table, in one object of the store
LEAST_BYTES = 2**22  # of rows in a bundle: less is worked off sooner than sent
SHORT = 16  # times so much may be in a bundle of a short run
BUNDLES_A_WORKER = 16  # at least, of a long run: they are what is repeated when a machine dies
AHEAD = 3  # bundles for each worker that are under way
RETRIES = 10  # of a task whose worker has died
SMALL = 20_000  # bytes that travel with every task: the store would take longer
KNOCK_SECONDS = 10
TABLES_HELD = 2  # that a worker keeps open


@contextmanager
def cluster(address: str = "auto", workers: int | None = None) -> Iterator[None]:
    """Train on a Ray cluster all that is fitted inside: `LabelTree`, `SoftmaxTree` and `SoftmaxForest`.

    The models are those that threads would have given, bit for bit, if the machines are of one kind.

    Parameters
    ----------
    address : str
        "auto" for the cluster that this machine belongs to, "ray://host:10001" for one elsewhere, "local" to start one
        on this machine and stop it in the end. A connection that this process has already is used as it is.
    workers : int, optional
        How many cores may work at a time; without it, as many as the cluster has.

    Examples
    --------
    >>> import treemax
    >>> with treemax.cluster("local"):  # doctest: +SKIP
    ...     model = treemax.LabelTree().fit(X, y)
    """
    ray = _ray()
    if workers is not None:
        check_number("workers", workers, whole=True, least=1)
    if not isinstance(address, str) or not address:
        raise ValueError(
            f"address must be 'auto', 'local' or an address such as 'ray://host:10001', got {address!r}."
        )
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
    return imported("ray", "Training on a cluster", "ray")


def _connect(ray: Any, address: str, workers: int | None) -> None:
    options: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    if address == "local":
        ray.init(address="local", num_cpus=workers, include_dashboard=False, **options)
        return
    try:
        _knock(address)
        ray.init(address=address, **options)
    except ConnectionError as error:
        reason = str(error).partition(". ")[0].rstrip(".")  # then follows advice that is not for here
        raise ConnectionError(
            f"There is no Ray cluster at {address!r} ({reason}). Start one with `ray start --head`, or use 'local'."
        ) from error
    except ValueError as error:
        raise ValueError(
            f"Ray does not take the address {address!r}: {error}. Use 'auto', 'local' or one such as 'ray://host:10001'."
        ) from error


def _knock(address: str) -> None:
    """See that somebody listens at host:port; Ray would go on trying for minutes."""
    host, colon, port = address.rpartition(":")
    if not colon or "//" in address or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=KNOCK_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ConnectionError(f"nobody listens there: {error}") from None


def _check_workers(ray: Any, count: int) -> None:
    """Let every worker import what it needs, and see that all have this version of Treemax."""
    try:
        versions = set(ray.get([ray.remote(_version).remote() for _ in range(count)]))
    except ray.exceptions.RayTaskError as error:
        reason = str(error).strip().splitlines()[-1]
        raise ConnectionError(
            f"The workers cannot import Treemax ({reason}). Install Treemax {__version__} on every machine of the cluster."
        ) from error
    if versions != {__version__}:
        raise ConnectionError(
            f"The workers have Treemax {', '.join(sorted(versions))}, this process has {__version__}. Install one version."
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
    ahead: int = AHEAD  # one: no more than `workers` tasks at a time, where there are more cores

    @cached_property
    def work_off(self) -> Any:
        """The task. Ray sends it to the workers once, if it is made once."""
        return self.ray.remote(num_cpus=1, max_retries=RETRIES)(_work_off)

    def share(self, table: Table) -> Crew:
        n_parts = max(1, min(len(table), -(-table.n_bytes // self.part_bytes)))
        starts = np.linspace(0, len(table), n_parts + 1).astype(np.int64)
        parts = [self.ray.put(table.part(*ends)) for ends in zip(starts[:-1].tolist(), starts[1:].tolist())]
        return _RayCrew(
            self, _Shared(parts, starts[:-1]), self.least_bytes * len(table) / max(1, table.n_bytes)
        )


@dataclass(frozen=True, eq=False)
class _Shared:
    """A table in the object store: its parts, and the first row of each."""

    parts: list[Any]
    starts: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class _RayCrew:
    pool: RayPool
    shared: _Shared
    least: float  # rows in a bundle

    def run(
        self, work: Work, common: Any, problems: Sequence[Any], keep: bool = False
    ) -> Iterator[tuple[int, Arrays]]:
        if not problems:
            return
        ray, pool = self.pool.ray, self.pool
        if len(pickle.dumps(common)) > SMALL:
            common = ray.put(common)
        waiting = iter(bundles([len(problem.rows) for problem in problems], pool.workers, self.least))
        under_way: dict[Any, list[int]] = {}
        done: list[tuple[Any, list[int]]] = []
        try:
            while True:
                room = pool.ahead * pool.workers - len(under_way)
                for bundle in islice(waiting, room):  # before results are read, so that no worker waits
                    own = [problems[number] for number in bundle]
                    under_way[pool.work_off.remote(work, self.shared, common, own)] = bundle
                for reference, bundle in done:
                    yield from zip(bundle, _copied(_result(ray, reference)), strict=True)
                if not under_way:
                    return
                ready, _ = ray.wait(list(under_way), num_returns=1)
                done = [(reference, under_way.pop(reference)) for reference in ready]
        finally:
            for reference in under_way:  # after an interruption
                ray.cancel(reference)


def _result(ray: Any, reference: Any) -> Any:
    """What a task gave. An error of its own is raised as it was there, one of the cluster in a line: Ray's have the whole
    traceback of the worker in their message."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        if isinstance(cause, ValueError | MemoryError | OSError) and not isinstance(cause, type(error)):
            raise cause from None
        said = f"{type(cause).__name__}: {cause}".strip().splitlines()[0]
        raise ConnectionError(f"A task on the cluster has failed ({said}).") from error
    except ray.exceptions.RayError as error:
        said = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ConnectionError(f"The cluster has failed ({said}).") from error


def _copied(results: list[Arrays]) -> list[Arrays]:
    """Results in memory of their own: the object store is small, and holds what is looked at."""
    return [tuple(map(np.array, arrays)) for arrays in results]


def bundles(sizes: Sequence[int], workers: int, least: float = 0) -> list[list[int]]:
    """Problems for one task each: those that stand together, a part of what is left, so that the last bundles are small and
    nobody is waited for long; not fewer rows than `least`, and in long runs not more than a sixteenth of a worker's share.

    >>> bundles([40, 10, 10, 10, 4, 4, 4], workers=1, least=5)
    [[0], [1, 2], [3], [4], [5], [6]]
    """
    left = sum(sizes)
    most = max(left / (BUNDLES_A_WORKER * workers), SHORT * least)
    found: list[list[int]] = []
    room = 0.0
    for number, own in enumerate(sizes):
        if own > room or not found:
            found.append([])
            room = min(max(left / (2 * workers), least), most)
        found[-1].append(number)
        room -= own
        left -= own
    return found


# --- in the workers ------------------------------------------------------------------------------------

_TABLES: OrderedDict[Any, Table] = OrderedDict()
_SCRATCH: dict[int, list[NDArray[np.uint32]]] = {}
_LOCK = threading.Lock()


def _work_off(work: Work, shared: _Shared, common: Any, problems: Sequence[Any]) -> list[Arrays]:
    """A bundle of problems, one after the other."""
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
    """The rows of a problem, from the parts of the table that have some of them."""
    needed = set(np.unique(np.searchsorted(shared.starts, rows, side="right") - 1).tolist()) or {0}
    parts = [_fetched(part) if number in needed else None for number, part in enumerate(shared.parts)]
    n_features = next(part for part in parts if part is not None).rows.shape[1]
    return gathered(parts, shared.starts, rows, _SCRATCH.setdefault(n_features, []))


def _opened(part: Any) -> Table:
    """A table that this worker keeps open for the tasks to come."""
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
