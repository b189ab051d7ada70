"""Models and clients of the service, for its tests."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import treemax
from treemax.serving.running import Settings, make_application

WORDS = ["river", "stone", "bird", "wing", "boat", "apple", "pear", "tree", "leaf", "wheel", "road", "car"]
HOST = {"host": "localhost"}


def texts_and_labels(n: int, seed: int = 0) -> tuple[list[str], list[str]]:
    """Random texts, each with the label of one of its words."""
    random = np.random.default_rng(seed)
    rows = [random.choice(WORDS, 4).tolist() for _ in range(n)]
    return [" ".join(row) for row in rows], [f"about {sorted(row)[0]}" for row in rows]


def static_model(path: Path, seed: int = 0) -> Any:
    """Train and save a small LabelTree of texts."""
    texts, labels = texts_and_labels(60, seed)
    model = treemax.TextModel(estimator=treemax.LabelTree(random_state=seed)).fit(texts, labels)
    model.save(path)
    return model


def client_of(**settings: Any) -> Any:
    """Return a client of an application with these settings, to be used in a `with` block."""
    from starlette.testclient import TestClient

    return TestClient(make_application(Settings(**settings)), base_url="http://localhost:8000")


def online_model(path: Path, n: int = 20) -> Any:
    """Start and save a small OnlineLabelTree of texts, to be continued."""
    texts, labels = texts_and_labels(n)
    model = treemax.TextModel(treemax.HashingText(), treemax.OnlineLabelTree(random_state=0)).partial_fit(texts, labels)
    model.save(path, resume=True)
    return model


def same_model(one: Any, other: Any) -> bool:
    """Return whether all arrays of two models are the same, bit for bit, the learning state included."""
    (header, arrays), (other_header, other_arrays) = one.to_parts(resume=True), other.to_parts(resume=True)
    same = header == other_header and arrays.keys() == other_arrays.keys()
    return same and all(arrays[name].tobytes() == other_arrays[name].tobytes() for name in arrays)


class Server:
    """`treemax serve` in a process of its own, to be used in a `with` block."""

    def __init__(self, *arguments: str, program: Sequence[str] = (sys.executable, "-m", "treemax")) -> None:
        self.process = subprocess.Popen(
            [*program, "serve", "--port", "0", *arguments], stderr=subprocess.PIPE, text=True
        )
        assert self.process.stderr is not None
        lines = []
        for line in self.process.stderr:
            lines.append(line)
            if found := re.search(r"on http://127\.0\.0\.1:(\d+)", line):
                self.port = int(found[1])
                break
        else:
            raise AssertionError(f"the server did not start: {''.join(lines)}")
        threading.Thread(target=self.process.stderr.read, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.port}"

    def kill(self) -> None:
        """Kill the process at once."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
