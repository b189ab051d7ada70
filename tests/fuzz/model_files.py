"""Forged model files: arrays and metadata changed with valid checksums, or raw bytes changed; then the model is used."""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.fuzz import mutations
from tests.fuzz.saved_models import NAMES_OF_ALL, parts, use
from treemax import modelfile

FOLDER = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()


class Forged(NamedTuple):
    """A model by its name, and the changes to its header and arrays."""

    model: str
    changes: list[mutations.Change]


class Damaged(NamedTuple):
    """A model by its name, and the bytes of its file that are changed: (place, byte); a byte of -1 cuts the file there."""

    model: str
    bytes: list[tuple[int, int]]


def forged(model: str, seed: int) -> Forged:
    """A forged file that follows from the seed."""
    random = np.random.default_rng([seed, NAMES_OF_ALL.index(model)])
    return Forged(model, mutations.random_changes(random, parts(model)))


def damaged(model: str, seed: int) -> Damaged:
    """A file with changed bytes that follow from the seed."""
    random = np.random.default_rng([seed, NAMES_OF_ALL.index(model)])
    n = len(content(model))
    places = random.integers(0, n, random.integers(1, 4)).tolist()
    if random.random() < 0.5:  # the structure is at both ends
        places = [place % 2000 if random.random() < 0.5 else n - 1 - place % 2000 for place in places]
    return Damaged(model, [(place, -1 if random.random() < 0.05 else int(random.integers(256))) for place in places])


@cache
def content(model: str) -> bytes:
    """The file of a model."""
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        path = Path(folder) / "model.treemax"
        modelfile.write_model(path, *parts(model))
        return path.read_bytes()


def check(case: Forged | Damaged) -> str:
    """Load the file and use the model; raises what is raised there."""
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        path = Path(folder) / "model.treemax"
        try:
            _write(case, path)
        except (LookupError, ValueError, TypeError):
            return "cannot be written"  # such as a change below one that was taken out
        model: Any = modelfile.load(path)
        return use(model, case.model, str(path))


def _write(case: Forged | Damaged, path: Path) -> None:
    if isinstance(case, Forged):
        modelfile.write_model(path, *mutations.applied(case.changes, parts(case.model)))
        return
    changed = bytearray(content(case.model))
    for place, byte in case.bytes:
        if byte < 0:
            del changed[place:]
        elif place < len(changed):
            changed[place] = byte
    path.write_bytes(changed)
