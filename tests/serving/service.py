"""Models and clients of the service, for its tests."""

from __future__ import annotations

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
