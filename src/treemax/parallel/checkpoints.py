"""Training that can be taken up again: what the nodes of a tree have learned is written down as it is learned.

The problems of the nodes come in the same order whenever the same model is trained on the same rows, and what a node
learns depends on its problem only. So results are kept by their number, and a training that begins again gets them
from the folder in place of working them out; what was in between, as which rows come to which node, is found again.
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
from treemax.parallel.pools import Arrays, Crew, Pool, Table, Work, wrapped

SECONDS_BETWEEN = 10.0  # two files: what a stop may cost
BYTES_BETWEEN = 2**28


@dataclass(frozen=True)
class _Place:
    """A folder for checkpoints, and the folders in it that trainings of this block have."""

    folder: Path
    used: set[Path] = field(default_factory=set)


_PLACE: ContextVar[_Place | None] = ContextVar("treemax_checkpoint_place", default=None)


@contextmanager
def checkpoint(folder: str | Path) -> Iterator[None]:
    """Keep what trainings inside have learned so far in a folder, every ten seconds, until the block is left.

    When the process was lost, run the same program again: the same model on the same rows goes on where it was. For
    `LabelTree`, `SoftmaxTree` and `SoftmaxForest`, with threads and on a cluster. When the block ends without an error
    what its trainings have written is removed, so save the model inside of it; all else in the folder is left alone.

    Examples
    --------
    >>> import treemax
    >>> with treemax.checkpoint("training"):  # doctest: +SKIP
    ...     treemax.LabelTree().fit(X, y).save("model.treemax")
    """
    path = Path(folder)
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(f"checkpoint needs a folder, and {path} is a file.")
    path.mkdir(parents=True, exist_ok=True)
    place = _Place(path.absolute())
    token = _PLACE.set(place)
    try:
        yield
    finally:
        _PLACE.reset(token)
    for own in place.used:
        shutil.rmtree(own)


@contextmanager
def kept(estimator: Any, targets: Targets) -> Iterator[None]:
    """Write down the training of an estimator inside, if checkpoints are kept."""
    place = _PLACE.get()
    if place is None:
        yield
        return
    journal = Journal(place.folder / f"training-{_fingerprint(estimator, targets)}")
    place.used.add(journal.folder)
    with wrapped(lambda pool: _KeptPool(pool, journal)):
        yield


def checkpoints_are_kept() -> bool:
    return _PLACE.get() is not None


def _fingerprint(estimator: Any, targets: Targets) -> str:
    """The model and the labels in a word: others have another folder. Rows and problems are in the names of the files."""
    state = estimator.get_params(deep=False).get("random_state")
    if state is None:
        raise ValueError("checkpoint needs a random_state that is the same next time, got None.")
    if estimator.get_params(deep=False).get("warm_start") and hasattr(estimator, "model_"):
        raise ValueError("checkpoint needs a training from the beginning: set warm_start=False.")
    parameters, arrays = estimator._parameter_parts()
    parameters |= {"n_jobs": None, "verbose": 0}
    if isinstance(state, np.random.RandomState):
        kind, keys, *rest = state.get_state()
        parameters["random_state"], arrays = [kind, *rest], {**arrays, "random_state": keys}
    what = f"{__version__} {type(estimator).__name__} {sorted(parameters.items())!r}"
    return _digest(what, [*arrays.values(), targets.indptr, targets.ids])


def _digest(what: str, arrays: Iterable[NDArray[Any]]) -> str:
    digest = hashlib.blake2b(what.encode(), digest_size=12)
    for array in arrays:
        digest.update(f"{array.shape} {array.dtype}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


@dataclass
class Journal:
    """A folder of results. A run is one call of a crew; its files are numbered, each has the results of some of its
    problems, as arrays of all of them one after the other."""

    folder: Path
    next_run: int = 0

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)

    def begun(self, digest: str) -> str:
        """The name of the next run, whose table and problems have this digest."""
        self.next_run += 1
        return f"{self.next_run - 1:05d}-{digest}"

    def read(self, run: str) -> Iterator[tuple[int, Arrays]]:
        """The results of a run that are in the folder."""
        for path in sorted(self.folder.glob(f"{run}-*.treemax")):
            try:
                header, arrays = modelfile.read_model(path, verify=True)
            except modelfile.ModelFileError as error:
                raise modelfile.ModelFileError(
                    f"{error} Remove this file of the checkpoint: what was in it is learned again."
                ) from error
            columns = [_apart(modelfile.part(str(place), arrays)) for place in range(header["arrays"])]
            yield from zip(arrays["problems"].tolist(), zip(*columns, strict=True), strict=True)

    def write(self, run: str, results: dict[int, Arrays]) -> None:
        columns = list(zip(*results.values(), strict=True))
        arrays: modelfile.Arrays = {"problems": np.array(list(results))}
        for place, column in enumerate(columns):
            arrays |= modelfile.prefixed(str(place), _together(column))
        number = len(list(self.folder.glob(f"{run}-*.treemax")))
        modelfile.write_model(self.folder / f"{run}-{number:05d}.treemax", {"arrays": len(columns)}, arrays)


def _together(arrays: Sequence[NDArray[Any]]) -> modelfile.Arrays:
    """Arrays of one type as one, and their shapes."""
    assert len({(array.dtype, array.ndim) for array in arrays}) == 1
    return {
        "shapes": np.array([array.shape for array in arrays], np.int64),
        "numbers": np.concatenate([array.ravel() for array in arrays]),
    }


def _apart(arrays: modelfile.Arrays) -> list[NDArray[Any]]:
    shapes, ends = arrays["shapes"], np.cumsum(arrays["shapes"].prod(axis=1))
    parts = np.split(arrays["numbers"], ends[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


@dataclass(frozen=True, eq=False)
class _KeptPool:
    pool: Pool
    journal: Journal

    def share(self, table: Table) -> Crew:
        rows = table.rows
        arrays = (rows.indptr, rows.indices, rows.values) if isinstance(rows, SparseRows) else (rows,)
        digest = _digest(str(rows.shape), [*arrays, *table.columns.values()])
        return _KeptCrew(self.pool.share(table), self.journal, digest)


@dataclass(frozen=True, eq=False)
class _KeptCrew:
    crew: Crew
    journal: Journal
    table: str

    def run(
        self, work: Work, common: Any, problems: Sequence[Any], keep: bool = False
    ) -> Iterator[tuple[int, Arrays]]:
        if not keep or not problems:
            yield from self.crew.run(work, common, problems)
            return
        fields = [np.asarray(field) for problem in problems for field in problem]
        run, done = self.journal.begun(_digest(self.table, fields)), set()
        for number, results in self.journal.read(run):
            done.add(number)
            yield number, results
        left = [number for number in range(len(problems)) if number not in done]
        fresh: dict[int, Arrays] = {}
        written, n_bytes = time.monotonic(), 0
        try:
            for place, results in self.crew.run(work, common, [problems[number] for number in left]):
                fresh[left[place]] = results
                n_bytes += sum(array.nbytes for array in results)
                if time.monotonic() - written > SECONDS_BETWEEN or n_bytes > BYTES_BETWEEN:
                    self.journal.write(run, fresh)
                    fresh, written, n_bytes = {}, time.monotonic(), 0
                yield left[place], results
        finally:
            if fresh:
                self.journal.write(run, fresh)
