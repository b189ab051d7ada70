"""The service killed while it learns: acknowledged examples are in the log and in the model, in order."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette")
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs POSIX")

import treemax  # noqa: E402
from tests.faults.limits import ROUNDS  # noqa: E402
from tests.serving.service import Server, client_of, online_model, same_model, texts_and_labels  # noqa: E402
from tests.serving.test_learning import exported, learn_all, served_model  # noqa: E402

KILLS = max(3, ROUNDS // 2)
TEACHERS = 4
CHECKED = 5  # kills after which the model is compared with one that was trained on the log
# Snapshots every 0.1 seconds in place of 60, so that many kills hit while one is written.
OFTEN = """
import treemax.serving.learning
treemax.serving.learning.SNAPSHOT_SECONDS = treemax.serving.learning.SNAPSHOT_SHARE = 0.1
from treemax.cli import main
main()
"""

Acknowledged = list[tuple[int, str]]


def teach_until_killed(url: str, name: str, acknowledged: Acknowledged, enough: threading.Event) -> None:
    """Send examples until the server is gone; keep what it acknowledged."""
    import httpx

    texts, labels = texts_and_labels(2000, seed=len(acknowledged))
    last = 0
    with httpx.Client(base_url=url, timeout=30) as client:
        for i, (text, label) in enumerate(zip(texts, labels)):
            own = f"{name}x{i} {text}"
            try:
                reply = client.post("/learn", json={"texts": [own], "labels": [[label]], "wait": i % 2 == 0})
            except httpx.HTTPError:
                return
            assert reply.status_code == 200, reply.text
            sequence = reply.json()["sequence"]
            assert sequence > last  # in the order in which they were sent
            last = sequence
            acknowledged.append((sequence, own))
            enough.set()


@contextlib.contextmanager
def load(server: Server, name: str, acknowledged: Acknowledged) -> Iterator[threading.Event]:
    """Context manager for teachers that end when the server is killed; the event tells of the first answer."""
    enough, failed = threading.Event(), []

    def teach(i: int) -> None:
        try:
            teach_until_killed(server.url, f"{name}t{i}", acknowledged, enough)
        except BaseException as error:
            failed.append(error)
            enough.set()

    teachers = [threading.Thread(target=teach, args=(i,)) for i in range(TEACHERS)]
    for teacher in teachers:
        teacher.start()
    try:
        yield enough
    finally:
        server.kill()
        for teacher in teachers:
            teacher.join()
    assert not failed, failed[0]


def test_killed_while_learning(tmp_path: Path) -> None:
    """Kill the service at random moments: while it starts, learns, restores, undoes and writes snapshots."""
    import httpx

    path, random = tmp_path / "model.treemax", np.random.default_rng(3)
    online_model(path)
    expected = Expected(path)
    acknowledged: Acknowledged = []
    for kill in range(KILLS):
        server = Server(str(path), program=[sys.executable, "-c", OFTEN])
        with server, load(server, f"k{kill}", acknowledged) as enough:
            if kill % 4 != 3:
                assert enough.wait(60)
            if kill % 10 == 1:
                httpx.post(server.url + "/undo", json={"n": 3}, timeout=30)
            time.sleep(random.uniform(0, 0.4))
        check_files(path.with_name("model.treemax.serve"), acknowledged)
        if kill % CHECKED == 0 or kill == KILLS - 1:
            expected.check()
    print(f"{KILLS} kills, {len(acknowledged):,} examples acknowledged, {expected.n_compared} models compared")


def check_files(folder: Path, acknowledged: Acknowledged) -> None:
    """Check what the kill left: the log is intact and has all that was acknowledged, and all snapshots can be read."""
    with contextlib.closing(sqlite3.connect(folder / "log.sqlite")) as log:
        assert log.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        logged = dict(log.execute("SELECT sequence, input FROM examples"))
    assert sorted(logged) == list(range(1, len(logged) + 1))
    assert all(logged[sequence] == f'"{text}"' for sequence, text in acknowledged)
    assert len(acknowledged) == len({sequence for sequence, _ in acknowledged})
    for file in [*folder.glob("snapshot-*.treemax"), *folder.glob("file-*.treemax")]:
        treemax.load(file, verify=True)


class Expected:
    """A model that learns the log here, without kills."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._model, self._learned = treemax.load(path), []
        self.n_compared = 0

    def check(self) -> None:
        """Restart the service in this process; its model must equal, bit for bit, one that learned the log in order."""
        with client_of(models={"model": str(self._path)}) as client:
            self._learn(exported(client))
            assert same_model(served_model(client), self._model)
            assert client.get("/progress").json()["n"] > 0
        self.n_compared += 1

    def _learn(self, examples: list[dict[str, Any]]) -> None:
        if examples[: len(self._learned)] != self._learned:  # some of them were undone
            self._model, self._learned = treemax.load(self._path), []
        learn_all(self._model, examples[len(self._learned) :])
        self._learned = examples
