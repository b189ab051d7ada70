"""Checkpoints of training: the results of trained nodes are written to a folder.

Training the same model on the same rows produces the problems of the nodes in the same order, and the result of a node
depends only on its problem. So results are stored by number, and a restarted training reads them instead of computing
them; everything else, such as which rows reach which node, is computed again.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treemax import __version__, modelfile
from treemax.inputs.labels import Targets
from treemax.inputs.rows import SparseRows
from treemax.parallel.pools import Arrays, Executor, Pool, Table, Work, wrapped

SECONDS_BETWEEN = 10.0  # minimum time between checkpoint files; an interruption loses at most this much work
BYTES_BETWEEN = 2**28


@dataclass(frozen=True)
class _Place:
    """A checkpoint folder, and the subfolders used by this block."""

    folder: Path
    used: set[Path] = field(default_factory=set)


_PLACE: ContextVar[_Place | None] = ContextVar("treemax_checkpoint_place", default=None)


@contextmanager
def checkpoint(folder: str | Path) -> Iterator[None]:
    """Write the progress of training inside the block to a folder, every ten seconds.

    After a crash, run the same program again: training the same model on the same rows continues from the checkpoint.
    For `LabelTree`, `SoftmaxTree` and `SoftmaxForest`, with threads and on a cluster. When the block ends without an
    error its checkpoints are removed, so save the model inside it; other files in the folder are not touched.

    Examples
    --------
    >>> import treemax
    >>> with treemax.checkpoint("training"):  # doctest: +SKIP
    ...     treemax.LabelTree().fit(X, y).save("model.treemax")
    """
    path = Path(folder)
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(f"checkpoint needs a folder, but {path} is a file.")
    path.mkdir(parents=True, exist_ok=True)
    place = _Place(path.absolute())
    token = _PLACE.set(place)
    try:
        yield
    finally:
        _PLACE.reset(token)
    for subfolder in place.used:
        shutil.rmtree(subfolder)


@contextmanager
def checkpoint_training(estimator: Any, targets: Targets) -> Iterator[None]:
    """Context manager: checkpoint the training of an estimator, inside `checkpoint`."""
    place = _PLACE.get()
    if place is None:
        yield
        return
    journal = Journal(place.folder / f"training-{_fingerprint(estimator, targets)}")
    place.used.add(journal.folder)
    with wrapped(lambda pool: _CheckpointPool(pool, journal)):
        yield


def checkpoints_enabled() -> bool:
    return _PLACE.get() is not None


def _fingerprint(estimator: Any, targets: Targets) -> str:
    """Return a hash of the model and the labels, for the name of the folder. File names have those of the rows and problems."""
    state = estimator.get_params(deep=False).get("random_state")
    if state is None:
        raise ValueError("checkpoint needs a fixed random_state, got None.")
    if estimator.get_params(deep=False).get("warm_start") and hasattr(estimator, "model_"):
        raise ValueError("checkpoint does not support warm_start: set warm_start=False.")
    parameters, arrays = estimator._parameter_parts()
    parameters |= {"n_jobs": None, "verbose": 0}
    if isinstance(state, np.random.RandomState):
        kind, keys, *rest = state.get_state()
        parameters["random_state"], arrays = [kind, *rest], {**arrays, "random_state": keys}
    what = f"{__version__} {type(estimator).__name__} {sorted(parameters.items())!r}"
    weights = [array for array in (targets.weights, targets.relevance) if array is not None]
    return _digest(what, [*arrays.values(), targets.indptr, targets.ids, *weights])


def _digest(what: str, arrays: Iterable[NDArray[Any]]) -> str:
    digest = hashlib.blake2b(what.encode(), digest_size=12)
    for array in arrays:
        digest.update(f"{array.shape} {array.dtype}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


@dataclass
class Journal:
    """A folder of results. A run is one call of an executor; each of its numbered files has the results of some
    problems, concatenated."""

    folder: Path
    next_run: int = 0

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)

    def next_run_name(self, digest: str) -> str:
        """Return the name of the next run, whose table and problems have this digest."""
        self.next_run += 1
        return f"{self.next_run - 1:05d}-{digest}"

    def read(self, run: str) -> Iterator[tuple[int, Arrays]]:
        """Yield the stored results of a run."""
        for path in sorted(self.folder.glob(f"{run}-*.treemax")):
            try:
                header, arrays = modelfile.read_model(path, verify=True)
            except modelfile.ModelFileError as error:
                raise modelfile.ModelFileError(
                    f"{error} Remove this checkpoint file: its nodes are trained again."
                ) from error
            columns = [_split(modelfile.part(str(place), arrays)) for place in range(header["arrays"])]
            yield from zip(arrays["problems"].tolist(), zip(*columns, strict=True), strict=True)

    def write(self, run: str, results: dict[int, Arrays]) -> None:
        columns = list(zip(*results.values(), strict=True))
        arrays: modelfile.Arrays = {"problems": np.array(list(results))}
        for place, column in enumerate(columns):
            arrays |= modelfile.prefixed(str(place), _concatenated(column))
        number = len(list(self.folder.glob(f"{run}-*.treemax")))
        modelfile.write_model(self.folder / f"{run}-{number:05d}.treemax", {"arrays": len(columns)}, arrays)


def _concatenated(arrays: Sequence[NDArray[Any]]) -> modelfile.Arrays:
    """Concatenate arrays of each dtype; return them with their shapes."""
    assert len({(array.dtype, array.ndim) for array in arrays}) == 1
    return {
        "shapes": np.array([array.shape for array in arrays], np.int64),
        "numbers": np.concatenate([array.ravel() for array in arrays]),
    }


def _split(arrays: modelfile.Arrays) -> list[NDArray[Any]]:
    shapes, ends = arrays["shapes"], np.cumsum(arrays["shapes"].prod(axis=1))
    parts = np.split(arrays["numbers"], ends[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


@dataclass(frozen=True, eq=False)
class _CheckpointPool:
    pool: Pool
    journal: Journal

    def share(self, table: Table) -> Executor:
        rows = table.rows
        arrays = (rows.indptr, rows.indices, rows.values) if isinstance(rows, SparseRows) else (rows,)
        digest = _digest(str(rows.shape), [*arrays, *table.columns.values()])
        return _CheckpointExecutor(self.pool.share(table), self.journal, digest)


@dataclass(frozen=True, eq=False)
class _CheckpointExecutor:
    executor: Executor
    journal: Journal
    table: str

    def run(self, work: Work, common: Any, problems: Sequence[Any], keep: bool = False) -> Iterator[tuple[int, Arrays]]:
        if not keep or not problems:
            yield from self.executor.run(work, common, problems)
            return
        fields = [np.asarray(field) for problem in problems for field in problem]
        run, done = self.journal.next_run_name(_digest(self.table, fields)), set()
        for number, results in self.journal.read(run):
            done.add(number)
            yield number, results
        left = [number for number in range(len(problems)) if number not in done]
        fresh: dict[int, Arrays] = {}
        written, n_bytes = time.monotonic(), 0
        try:
            for place, results in self.executor.run(work, common, [problems[number] for number in left]):
                fresh[left[place]] = results
                n_bytes += sum(array.nbytes for array in results)
                if time.monotonic() - written > SECONDS_BETWEEN or n_bytes > BYTES_BETWEEN:
                    self.journal.write(run, fresh)
                    fresh, written, n_bytes = {}, time.monotonic(), 0
                yield left[place], results
        finally:
            if fresh:
                self.journal.write(run, fresh)
