"""The part of the harness that runs inside a system's own environment, in a process of its own.

It needs NumPy and nothing else: the environments of some peers are old, and none of them has treemax but
its own. One call is one stage of one run: `prepare` writes the files a system reads, `train` fits and saves
a model and notes time and peak memory, `predict` loads that model and times its answers. What was measured
is written as JSON for the harness to pick up.

    python measure.py JOB.json
"""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

WARM_UP_ROWS = 20
SINGLE_ROWS = 1000  # predictions one at a time: enough for a steady mean, quick even at 10 ms each
BATCH_SECONDS = 3.0  # repeat the batch until this much time has passed, at most BATCH_REPEATS times
BATCH_REPEATS = 5


class Data:
    """One prepared data set, read from `data.npz` member by member, when first asked for.

    A system that trains from a file never touches the arrays, so they do not count towards its memory.
    `part` is "train" or "test" throughout.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._arrays = np.load(self.folder / "data.npz", allow_pickle=False)
        facts = json.loads((self.folder / "facts.json").read_text())
        self.n_features: int = facts["features"]
        self.n_labels: int = facts["labels"]
        self.multi_label: bool = facts["multi_label"]
        self.sparse: bool = facts["sparse"]
        self.has_text: bool = facts["text"]

    def n_rows(self, part: str) -> int:
        return len(self._arrays[f"label_starts_{part}"]) - 1

    def dense(self, part: str) -> np.ndarray:
        """Features as one float32 matrix."""
        if self.sparse:
            raise ValueError("this system takes dense features only, and the data set is sparse")
        return self._arrays[f"X_{part}"]

    def csr(self, part: str) -> tuple[tuple[np.ndarray, np.ndarray, np.ndarray], tuple[int, int]]:
        """Features as `((values, indices, starts), shape)`, what `scipy.sparse.csr_matrix` takes."""
        shape = (self.n_rows(part), self.n_features)
        if self.sparse:
            names = (f"values_{part}", f"indices_{part}", f"starts_{part}")
            values, indices, starts = (self._arrays[name] for name in names)
            return (values, indices, starts), shape
        columns = np.tile(np.arange(shape[1], dtype=np.int32), shape[0])
        starts = np.arange(shape[0] + 1, dtype=np.int64) * shape[1]
        return (self.dense(part).ravel(), columns, starts), shape

    def pairs(self, part: str) -> Iterator[list[tuple[int, float]]]:
        """Features row by row as (index, value) pairs, for the text formats."""
        (values, indices, starts), _ = self.csr(part)
        for start, stop in pairwise(starts.tolist()):
            yield list(zip(indices[start:stop].tolist(), values[start:stop].tolist()))

    def labels(self, part: str) -> tuple[np.ndarray, np.ndarray]:
        """Label ids of all rows one after the other, and where each row starts.

        A test label that the training rows do not have is left out; such a row counts as a miss.
        """
        return self._arrays[f"labels_{part}"], self._arrays[f"label_starts_{part}"]

    def label_lists(self, part: str) -> list[list[int]]:
        ids, starts = self.labels(part)
        return [ids[start:stop].tolist() for start, stop in pairwise(starts.tolist())]

    def classes(self, part: str) -> np.ndarray:
        """The one class of each row."""
        if self.multi_label:
            raise ValueError("this system takes one class a row, and the data set has several labels a row")
        return self.labels(part)[0]

    def texts(self, part: str) -> list[str]:
        """The raw text of each row, for systems that bring their own features."""
        return bytes(self._arrays[f"text_{part}"]).decode().split("\n")

    def write_lines(self, name: str, lines: Any) -> Path:
        """Write the file `name` of this data set once, and complete or not at all."""
        path = self.folder / name
        if not path.exists():
            unfinished = path.with_name(f"{name}.{os.getpid()}")
            with unfinished.open("w", encoding="utf-8") as out:
                out.writelines(lines)
            unfinished.rename(path)
        return path

    def path(self, name: str) -> str:
        return str(self.folder / name)


def prepare(driver: ModuleType, job: dict[str, Any]) -> dict[str, Any]:
    if hasattr(driver, "prepare"):
        driver.prepare(Data(job["data"]), job["settings"])
    return {}


def train(driver: ModuleType, job: dict[str, Any]) -> dict[str, Any]:
    data, settings, folder = Data(job["data"]), job["settings"], Path(job["folder"])
    inputs = driver.load(data, settings)
    model, wall, cpu = timed(lambda: driver.train(inputs, settings, folder))
    peak = peak_megabytes()
    driver.save(model, folder)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return {"train_seconds": wall, "train_cpu_seconds": cpu, "peak_mb": peak, "model_mb": size / 2**20}


def predict(driver: ModuleType, job: dict[str, Any]) -> dict[str, Any]:
    data, settings, k = Data(job["data"]), job["settings"], job["k"]
    model = driver.restore(Path(job["folder"]), data, settings)
    rows = driver.rows(model, data, settings)
    n_rows = data.n_rows("test")
    singles = [driver.single(rows, i) for i in range(min(n_rows, SINGLE_ROWS))]
    for row in singles[:WARM_UP_ROWS]:
        driver.predict_one(model, row, k)
    _, one_seconds, one_cpu_seconds = timed(lambda: [driver.predict_one(model, row, k) for row in singles])
    timings: list[tuple[float, float]] = []
    while len(timings) < BATCH_REPEATS and sum(wall for wall, _ in timings) < BATCH_SECONDS:
        answers, *seconds = timed(lambda: driver.predict_batch(model, rows, k))
        timings.append(tuple(seconds))
    found = {"labels": as_table(driver.labels(answers), n_rows, k)}
    if hasattr(driver, "scores"):
        found["scores"] = np.asarray(driver.scores(answers), dtype=np.float64)
    if hasattr(driver, "chosen") and data.multi_label:
        lists = driver.chosen(model, rows)
        found["chosen"] = np.array([label for row in lists for label in row], dtype=np.int64)
        found["chosen_starts"] = np.cumsum([0, *map(len, lists)])
    np.savez(job["predictions"], **found)
    batch_seconds, batch_cpu_seconds = min(timings)
    return {
        "batch_microseconds": 1e6 * batch_seconds / n_rows,
        "batch_cpu_microseconds": 1e6 * batch_cpu_seconds / n_rows,
        "one_microseconds": 1e6 * one_seconds / len(singles),
        "one_cpu_microseconds": 1e6 * one_cpu_seconds / len(singles),
    }


def timed(work: Callable[[], Any]) -> tuple[Any, float, float]:
    """What `work` gives, and the seconds it took on the wall clock and of the processor."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    return result, time.perf_counter() - wall, time.process_time() - cpu


def peak_megabytes() -> float:
    """The most memory this process has held."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would count the harness too: its peak is inherited through exec
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024**2 if sys.platform == "darwin" else 1024)


def as_table(answers: Any, n_rows: int, k: int) -> np.ndarray:
    """Ranked labels of each row (lists of any length, or an array) as an [n, k] table, -1 where there is none."""
    table = np.full((n_rows, k), -1, dtype=np.int64)
    if len(answers) != n_rows:
        raise ValueError(f"the driver gave {len(answers)} answers for {n_rows} rows")
    if isinstance(answers, np.ndarray):
        answers = answers.reshape(n_rows, -1)[:, :k]
        table[:, : answers.shape[1]] = answers
        return table
    for row, ranked in enumerate(answers):
        ranked = ranked[:k]
        table[row, : len(ranked)] = ranked
    return table


def load_driver(path: str | Path) -> ModuleType:
    """The driver in the file `path`, under a name that cannot hide the package it drives."""
    spec = importlib.util.spec_from_file_location(f"driver_{Path(path).stem}", path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(f"no driver at {path}")
    driver = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(driver)
    return driver


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    if job["cores"] and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, job["cores"])
    stage = {"prepare": prepare, "train": train, "predict": predict}[job["stage"]]
    measured = stage(load_driver(job["driver"]), job)
    Path(job["result"]).write_text(json.dumps(measured))


if __name__ == "__main__":
    main()
