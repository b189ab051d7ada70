"""Available memory: of the machine, in a container, and as text."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from treemax import memory
from treemax.memory import available_bytes, format_bytes


@pytest.fixture
def files(monkeypatch):
    """The files of the system, as the test wants them."""
    contents: dict[str, str] = {}

    def read(path: Path) -> str:
        if str(path) not in contents:
            raise FileNotFoundError(path)
        return contents[str(path)]

    monkeypatch.setattr(memory.Path, "read_text", read)
    return contents


def test_this_machine_has_some_memory():
    assert 10**6 < available_bytes() < 10**15


def test_the_smaller_of_machine_and_container(files):
    files["/proc/meminfo"] = "MemTotal: 99 kB\nMemAvailable:    2000 kB\n"
    assert available_bytes() == 2000 * 1024
    files["/sys/fs/cgroup/memory.max"] = "1000000\n"
    files["/sys/fs/cgroup/memory.current"] = "400000\n"
    assert available_bytes() == 600_000
    files["/sys/fs/cgroup/memory.max"] = "max\n"
    assert available_bytes() == 2000 * 1024


def test_a_container_over_its_limit_has_nothing_left(files):
    files["/proc/meminfo"] = "MemAvailable: 2000 kB\n"
    files["/sys/fs/cgroup/memory.max"] = "1000"
    files["/sys/fs/cgroup/memory.current"] = "5000"
    assert available_bytes() == 0


@pytest.mark.parametrize("limit", ["", "nonsense"])
def test_files_that_say_nothing_are_left_out_of_account(files, limit):
    files["/proc/meminfo"] = "MemTotal: 99 kB\n"
    files["/sys/fs/cgroup/memory.max"] = limit
    files["/sys/fs/cgroup/memory.current"] = "7"
    assert available_bytes() > 10**6  # all there is on the machine


def test_windows_is_asked_by_its_own_calls(files, monkeypatch):
    """Its structures as arrays of 64-bit words; that this is their layout only Windows can say."""

    class Kernel32:
        def GlobalMemoryStatusEx(self, status):
            assert status._obj[0] == ctypes.sizeof(status._obj) == 64
            status._obj[1:3] = 16_000_000, 5_000_000

        def K32GetProcessMemoryInfo(self, process, counters, size):
            assert counters._obj[0] == ctypes.sizeof(counters._obj) == size
            counters._obj[1:3] = 9_000_000, 7_000_000

    monkeypatch.setattr(memory.sys, "platform", "win32")
    monkeypatch.setattr(ctypes, "windll", SimpleNamespace(kernel32=Kernel32()), raising=False)
    assert (available_bytes(), memory.used_bytes()) == (5_000_000, 7_000_000)


@pytest.mark.parametrize(
    ("size", "words"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1.0 kB"), (1.5e6, "1.5 MB"), (2e9, "2.0 GB"), (7.25e15, "7250.0 TB")],
)
def test_sizes_in_words(size, words):
    assert format_bytes(size) == words


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc can hand memory back")
def test_memory_that_is_free_goes_back_to_the_system():
    script = (
        "import numpy as np\n"
        "from treemax.memory import release_free_memory, used_bytes\n"
        "blocks = [np.ones(2_000) for _ in range(4_000)]  # 64 MB, small enough to come from the heap\n"
        "kept = blocks[::500]\n"
        "del blocks\n"
        "before = used_bytes()\n"
        "release_free_memory()\n"
        "print(before - used_bytes())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 30_000_000
