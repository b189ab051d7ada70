"""Processes killed while saving: the file is always complete, and is the last one confirmed or a later one."""

from __future__ import annotations

import os
import signal
import struct
import time
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

from tests.faults.limits import ROUNDS, SECONDS  # noqa: E402
from tests.fuzz.saved_models import NAMES_OF_ALL, ask, kind_of, parts  # noqa: E402
from treemax import modelfile  # noqa: E402

LONGEST = 0.05  # seconds until the kill


def save_for_ever(name: str, path: Path, confirm: int) -> None:
    """Save the model with a number that rises, and confirm each save; it never returns."""
    header, arrays = parts(name)
    number = 1
    while True:
        modelfile.write_model(path, {**header, "number": number}, arrays)
        os.write(confirm, struct.pack("<q", number))
        number += 1


def forked(work: object, *arguments: object) -> int:
    child = os.fork()
    if child == 0:
        try:
            work(*arguments)  # type: ignore[operator]
        finally:
            os._exit(1)
    return child


def confirmed(reading: int) -> int:
    """The last number that was confirmed, once nobody writes any more."""
    content = b""
    while piece := os.read(reading, 2**16):
        content += piece
    return struct.unpack_from("<q", content, len(content) // 8 * 8 - 8)[0] if len(content) >= 8 else 0


@pytest.mark.parametrize("name", NAMES_OF_ALL)
def test_a_killed_save_leaves_a_whole_file(name: str, tmp_path: Path) -> None:
    path, random = tmp_path / "model.treemax", np.random.default_rng(7)
    header, arrays = parts(name)
    for _ in range(ROUNDS):
        modelfile.write_model(path, {**header, "number": 0}, arrays)
        reading, writing = os.pipe()
        child = forked(save_for_ever, name, path, writing)
        os.close(writing)
        time.sleep(random.uniform(0, LONGEST))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        last = confirmed(reading)
        os.close(reading)
        found = modelfile.read_model(path, verify=True)[0]["number"]
        assert last <= found <= last + 1
    ask(modelfile.load(path), kind_of(name)[1])


def test_two_writers_and_a_reader_of_one_file(tmp_path: Path) -> None:
    path, name = tmp_path / "model.treemax", "online-label-tree, to resume"
    header, arrays = parts(name)
    modelfile.write_model(path, {**header, "number": 0}, arrays)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    writers = [forked(save_for_ever, name, path, nowhere) for _ in range(2)]
    try:
        seen, end = set(), time.monotonic() + min(SECONDS, 60)
        while time.monotonic() < end:
            found, content = modelfile.read_model(path, verify=True)
            seen.add(found["number"])
            assert all(np.array_equal(content[key], array, equal_nan=True) for key, array in arrays.items())
        ended = [os.waitpid(writer, os.WNOHANG)[0] for writer in writers]
        assert ended == [0, 0]  # neither gave up
        assert len(seen) > 1
    finally:
        for writer in writers:
            os.kill(writer, signal.SIGKILL)
            os.waitpid(writer, 0)
        os.close(nowhere)
