"""Lack of memory raises MemoryError or an error of ours, and leaves the model usable."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")

from tests.faults.limits import ROUNDS  # noqa: E402
from tests.fuzz.model_files import FOLDER, Damaged, check  # noqa: E402
from tests.fuzz.saved_models import NAMES_OF_ALL, ask, kind_of, parts  # noqa: E402
from tests.fuzz.workers import is_ours, run_cases  # noqa: E402
from treemax import modelfile  # noqa: E402

# Bytes beyond what the process has. With less than a megabyte NumPy itself crashes, with a few it may.
ROOM = [2**21, 2**22, 2**24] if ROUNDS < 10 else [2**20, 2**21, 2**22, 2**24]
TIMES = 400  # as many rows as the model was trained with


def address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


@contextmanager
def memory_limit(room: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (address_space() + room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def used_up() -> list[np.ndarray]:
    """All that the allocator has left from before, so that whatever is large has to be asked of the system."""
    held: list[np.ndarray] = []
    with memory_limit(0):
        for size in (2**22, 2**19, 2**16):
            with suppress(MemoryError):
                while True:
                    held.append(np.empty(size, np.uint8))
    return held


def many(X: object) -> object:
    return X * TIMES if isinstance(X, list) else sp.vstack([X] * TIMES) if sp.issparse(X) else np.tile(X, (TIMES, 1))


def use_within_limit(case: tuple[str, int, int]) -> str:
    """Ask, learn and save with little memory; afterwards the model answers, learns and saves."""
    name, room, number = case
    path = f"{FOLDER}/treemax-memory-{os.getpid()}.treemax"
    _, X, y = kind_of(name)
    modelfile.write_model(path, *parts(name))
    model = modelfile.load(path)
    before, more = model.predict_proba(X), many(X)
    more_y = None if y is None else y * TIMES if isinstance(y, list) else np.concatenate([y] * TIMES)
    acts = [lambda: model.predict_proba(more), lambda: model.predict_topk(more, 3), lambda: modelfile.save(model, path)]
    if hasattr(model, "partial_fit"):
        some, some_y = more[: 72 * 20], more_y[: 72 * 20]
        acts.append(lambda: model.partial_fit(some, some_y))
    failed = 0
    try:
        for act in acts[number % 2 :]:
            try:
                held = used_up()
                with memory_limit(room):
                    act()
            except Exception as error:
                assert isinstance(error, MemoryError | OSError) or is_ours(error), repr(error)
                failed += 1
            held.clear()
            if act is not acts[-1] or len(acts) == 3:
                assert np.array_equal(model.predict_proba(X), before)
        ask(modelfile.load(path), X)
        ask(model, X)
        if hasattr(model, "partial_fit"):
            model.partial_fit(X, y)
            ask(model, X)
    finally:
        Path(path).unlink(missing_ok=True)
    return f"{failed} refused"


@pytest.mark.filterwarnings("ignore:This model was saved without")
@pytest.mark.parametrize("name", NAMES_OF_ALL)
def test_a_model_survives_a_lack_of_memory(name: str) -> None:
    assert check(Damaged(name, [])) == "answered"  # here, so that the processes below need not compile
    rounds = 1 if ROUNDS < 10 else 4
    cases = [(name, room, number) for number in range(rounds) for room in ROOM]
    outcomes = list(run_cases(cases, use_within_limit, memory=2**33))
    assert [(outcome.case, outcome.what) for outcome in outcomes if outcome.found] == []
    assert any(outcome.what != "0 refused" for outcome in outcomes)  # so that it was little indeed
