"""Training on a Ray cluster: the same problems, worked on by other processes and other machines.

The table goes to Ray's object store once, in parts of rows. A task is a bundle of problems; it carries the numbers of
their rows, and reads the rows from the store of its own machine. Tasks keep nothing, so that Ray can repeat them
elsewhere when a worker or a machine dies; the results are the same.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treemax import __version__
from treemax.extras import imported
from treemax.parameters import check_number
from treemax.pools import Arrays, Crew, Table, Work, gathered, using
from treemax.threads import one_blas_thread

PART_BYTES = 2**28  # of a table, in one object of the store
BUNDLES_A_WORKER = (
    16  # of one run: fewer and the last ones are waited for, more and sending them takes its time
)
AHEAD = 3  # bundles for each worker that are under way
RETRIES = 10  # of a task whose worker has died
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
        Cores to plan for: the work is cut into pieces for so many; without it, as many as the cluster has.

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
        count = int(workers or max(1, ray.cluster_resources().get("CPU", 1)))
        _check_workers(ray, count)
        with using(RayPool(ray, count)):
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
        ray.init(address=address, **options)
    except ConnectionError as error:
        raise ConnectionError(
            f"There is no Ray cluster at {address!r}: {error} Start one with `ray start --head`, or use address='local'."
        ) from None


def _check_workers(ray: Any, count: int) -> None:
    """Let every worker import what it needs, and see that all have this version of Treemax."""
    versions = set(ray.get([ray.remote(_version).remote() for _ in range(count)]))
    if versions != {__version__}:
        raise RuntimeError(
            f"The workers have Treemax {', '.join(sorted(versions))}, this process has {__version__}. Install one version."
        )


def _version() -> str:
    from treemax.learning import label_tree, tao
    from treemax.trees import kmeans

    assert label_tree and tao and kmeans
    return __version__


@dataclass(frozen=True, eq=False)
class RayPool:
    """The workers of a cluster."""

    ray: Any
    workers: int
    part_bytes: int = PART_BYTES

    def share(self, table: Table) -> Crew:
        n_parts = max(1, min(len(table), -(-table.n_bytes // self.part_bytes)))
        starts = np.linspace(0, len(table), n_parts + 1).astype(np.int64)
        parts = [self.ray.put(table.part(*ends)) for ends in zip(starts[:-1].tolist(), starts[1:].tolist())]
        return _RayCrew(self.ray, self.workers, _Shared(parts, starts[:-1]))


@dataclass(frozen=True, eq=False)
class _Shared:
    """A table in the object store: its parts, and the first row of each."""

    parts: list[Any]
    starts: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class _RayCrew:
    ray: Any
    workers: int
    shared: _Shared

    def run(
        self, work: Work, common: Any, problems: Sequence[Any], keep: bool = False
    ) -> Iterator[tuple[int, Arrays]]:
        ray = self.ray
        if not problems:
            return
        remote = ray.remote(num_cpus=1, max_retries=RETRIES)(_work_off)
        shared, common = ray.put(self.shared), ray.put(common)
        waiting = iter(bundles([len(problem.rows) for problem in problems], self.workers))
        under_way: dict[Any, list[int]] = {}
        try:
            while True:
                for bundle in waiting:
                    reference = remote.remote(work, shared, common, [problems[number] for number in bundle])
                    under_way[reference] = bundle
                    if len(under_way) >= AHEAD * self.workers:
                        break
                if not under_way:
                    return
                done, _ = ray.wait(list(under_way), num_returns=1)
                for reference in done:
                    yield from zip(under_way.pop(reference), ray.get(reference), strict=True)
        finally:
            for reference in under_way:  # after an interruption
                ray.cancel(reference)


def bundles(sizes: Sequence[int], workers: int) -> list[list[int]]:
    """Problems for one task each: those that stand together, up to the share of a bundle.

    >>> bundles([140, 5, 5, 5, 5], workers=1)
    [[0], [1, 2], [3, 4]]
    """
    share = sum(sizes) / (BUNDLES_A_WORKER * workers)
    found: list[list[int]] = []
    size = float("inf")
    for number, own in enumerate(sizes):
        if size + own > max(share, 1):
            found.append([])
            size = 0.0
        found[-1].append(number)
        size += own
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
