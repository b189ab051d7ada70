"""The service killed while it learns: what was acknowledged is in the log and in the model, in order."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette")
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs POSIX")

from tests.faults.limits import ROUNDS  # noqa: E402
from tests.serving.service import Server, online_model, same_model, texts_and_labels  # noqa: E402

KILLS = max(3, ROUNDS // 10)
TEACHERS = 4


def teach_until_killed(
    server: Server, name: str, acknowledged: list[tuple[int, str]], progress: threading.Event
) -> None:
    """Send examples until the server is gone; keep what it acknowledged."""
    import httpx

    texts, labels = texts_and_labels(2000, seed=hash(name) % 2**31)
    with httpx.Client(base_url=server.url, timeout=30) as client:
        for i, (text, label) in enumerate(zip(texts, labels)):
            own = f"{name}x{i} {text}"
            try:
                reply = client.post("/learn", json={"texts": [own], "labels": [[label]], "wait": i % 2 == 0})
            except httpx.HTTPError:
                return
            assert reply.status_code == 200, reply.text
            acknowledged.append((reply.json()["sequence"], own))
            progress.set()


def test_killed_while_learning(tmp_path: Path) -> None:
    import httpx

    path, random = tmp_path / "model.treemax", np.random.default_rng(3)
    online_model(path)
    acknowledged: list[tuple[int, str]] = []
    for kill in range(KILLS):
        with Server(str(path)) as server:
            progress = threading.Event()
            teachers = [
                threading.Thread(target=teach_until_killed, args=(server, f"k{kill}t{i}", acknowledged, progress))
                for i in range(TEACHERS)
            ]
            for teacher in teachers:
                teacher.start()
            assert progress.wait(60)
            if kill % 3 == 1:
                httpx.post(server.url + "/undo", json={"n": 1}, timeout=30)
            time.sleep(random.uniform(0, 0.5))
            server.kill()
            for teacher in teachers:
                teacher.join()
    check_restarted(path, acknowledged)


def check_restarted(path: Path, acknowledged: list[tuple[int, str]]) -> None:
    """Check that all acknowledged examples are in the log, and that the model has learned the log in order."""
    from tests.serving.service import client_of
    from tests.serving.test_learning import exported, trained_on

    with client_of(models={"model": str(path)}) as client:
        logged: dict[int, dict[str, Any]] = {}
        while page := client.get("/log", params={"after": max(logged, default=0), "limit": 1000}).json()["examples"]:
            logged.update({entry["sequence"]: entry for entry in page})
        assert list(logged) == list(range(1, len(logged) + 1))
        assert all(logged[sequence]["text"] == text for sequence, text in acknowledged)
        assert len(acknowledged) == len(set(acknowledged))
        examples = exported(client)
        assert [each["text"] for each in examples] == [each["text"] for each in logged.values() if not each["undone"]]
        assert same_model(client.app.models["model"].served.model, trained_on(path, examples))
        assert json.loads(client.get("/progress").text)["n"] > 0
