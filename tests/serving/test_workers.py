"""Several worker processes: all learn the same examples, and a killed worker is restarted."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.serving.service import Server, online_model

pytest.importorskip("starlette")
httpx = pytest.importorskip("httpx")

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="needs POSIX")]


def asked(url: str, path: str, **content: Any) -> Any:
    reply = httpx.post(url + path, json=content, timeout=60)
    assert reply.status_code == 200, reply.text
    return reply.json()


def wait_for(condition: Any, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.2)


def workers_of(server: Server) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(server.process.pid)], capture_output=True, text=True)
    return [int(number) for number in found.stdout.split()]


def test_all_workers_answer_what_one_has_learned(tmp_path: Path) -> None:
    path = tmp_path / "model.treemax"
    online_model(path)
    with Server(str(path), "--workers", "2") as server:

        def versions() -> set[str]:
            answers = [asked(server.url, "/predict", texts=["zebra"], k=1) for _ in range(12)]
            return {answer["version"].partition("+")[2] for answer in answers}

        for _ in range(3):
            last = asked(server.url, "/learn", texts=["zebra"], labels=[["a new label"]])["sequence"]
        assert last == 3
        wait_for(lambda: versions() == {"3"})
        best = asked(server.url, "/predict", texts=["zebra"], k=1)["predictions"][0][0]
        assert best["label"] == "a new label"
        before = workers_of(server)
        os.kill(before[0], signal.SIGKILL)
        wait_for(lambda: len(set(workers_of(server)) - {before[0]}) == 2)
        assert asked(server.url, "/learn", texts=["zebra"], labels=[["a new label"]])["sequence"] == 4
        wait_for(lambda: versions() == {"4"})


def test_full_garbage_collections_leave_out_what_was_loaded(monkeypatch: Any) -> None:
    """They would stop all answers for a tenth of a second, every few thousand requests."""
    import gc

    import uvicorn

    from treemax.serving.server import bound_socket, serve

    frozen: list[int] = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: frozen.append(gc.get_freeze_count()))
    before = gc.get_freeze_count()
    try:
        with bound_socket("127.0.0.1", 0) as listening:
            serve(lambda: None, listening, 10, 1.0)
        assert frozen[0] > before + 10_000
    finally:
        gc.unfreeze()
