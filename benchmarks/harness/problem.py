"""The rows of a suite with one label each, and what every experiment asks of a model."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from benchmarks.harness.measure import Data
from benchmarks.harness.suites import prepared

UNKNOWN = -1  # the label of a test row whose label was not in training
WARM_UP_ROWS = 300


@dataclass
class Problem:
    """Training and test rows, one label a row."""

    X: Any
    y: np.ndarray
    X_test: Any
    y_test: np.ndarray

    @classmethod
    def read(cls, suite: str, limit: int | None = None) -> Problem:
        data = Data(prepared(suite, limit))
        parts: list[Any] = []
        for part in ("train", "test"):
            parts += [features(data, part), first_labels(*data.labels(part))]
        return cls(*parts)


def features(data: Data, part: str) -> Any:
    if not data.sparse:
        return data.dense(part)
    arrays, shape = data.csr(part)
    return csr_matrix(arrays, shape=shape)


def first_labels(ids: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """The first label of each row, as a suite with several labels a row lists them: the least."""
    found = np.full(len(starts) - 1, UNKNOWN, dtype=np.int64)
    has_one = np.diff(starts) > 0
    found[has_one] = ids[starts[:-1][has_one]]
    return found


def warm_up(model: Any, problem: Problem) -> None:
    """Compile what learning and answering need, with a few rows."""
    n = min(WARM_UP_ROWS, len(problem.y))
    model.fit(problem.X[:n], problem.y[:n]).predict_topk(problem.X_test[:1], 1)


def hits(model: Any, problem: Problem, k: int) -> np.ndarray:
    """[row, place]: whether the answer at this place is the label of the row."""
    return np.asarray(model.predict_topk(problem.X_test, k).labels == problem.y_test[:, None], dtype=bool)


def seconds(work: Callable[[], Any], repeats: int = 1) -> float:
    """Processor seconds, the least of several: a core that is shared counts only what we had of it."""
    found = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return min(found)
