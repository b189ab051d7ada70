"""How much memory there is, so that a model that cannot fit says so before it tries."""

from __future__ import annotations

import os
from pathlib import Path


def available_bytes() -> int:
    """Memory that can be had without swapping, also inside a container."""
    amounts = [_meminfo_available(), _cgroup_left()]
    known = [amount for amount in amounts if amount is not None]
    return min(known) if known else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def in_words(n_bytes: float) -> str:
    """A size for people.

    >>> in_words(512), in_words(3.5e9)
    ('512 bytes', '3.5 GB')
    """
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= size:
            return f"{n_bytes / size:.1f} {unit}"
    return f"{n_bytes:.0f} bytes"


def _meminfo_available() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = [line for line in lines if line.startswith("MemAvailable:")]
    return int(found[0].split()[1]) * 1024 if found else None


def _cgroup_left() -> int | None:
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = Path("/sys/fs/cgroup/memory.current").read_text().strip()
        return None if limit == "max" else max(0, int(limit) - int(used))
    except (OSError, ValueError):
        return None
