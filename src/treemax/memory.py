"""Available memory, so that a model that does not fit raises before training."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from pathlib import Path


def available_bytes() -> int:
    """Return the memory available without swapping, also inside a container."""
    amounts = [_meminfo_available(), _cgroup_left()]
    known = [amount for amount in amounts if amount is not None]
    if known:
        return min(known)
    if sys.platform == "win32":
        status = (ctypes.c_uint64 * 8)(64)  # a MEMORYSTATUSEX, which begins with its size
        ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status))
        return int(status[2])  # ullAvailPhys
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def format_bytes(n_bytes: float) -> str:
    """Format a size for messages.

    >>> format_bytes(512), format_bytes(3.5e9)
    ('512 bytes', '3.5 GB')
    """
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= size:
            return f"{n_bytes / size:.1f} {unit}"
    return f"{n_bytes:.0f} bytes"


def check_fits(needed: float, what: str, remedy: str, limit: float | None = None) -> None:
    """Raise a MemoryError where `needed` bytes are more than `limit`, by default four fifths of what is available."""
    limit = 0.8 * available_bytes() if limit is None else limit
    if needed > limit:
        raise MemoryError(
            f"{what} needs {format_bytes(needed)}, more than the {format_bytes(limit)} it may use. {remedy}"
        )


def parse_bytes(size: int | float | str) -> int:
    """Parse a size to bytes.

    >>> parse_bytes("1.5 GB"), parse_bytes(2_000_000)
    (1500000000, 2000000)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([kMGT]?)i?B?\s*", str(size), re.IGNORECASE)
    if found is None or isinstance(size, bool) or float(found[1]) <= 0:
        raise ValueError(f"memory must be a size such as '2GB' or a number of bytes, got {size!r}.")
    step = 1024 if "i" in str(size).lower() else 1000
    return int(float(found[1]) * step ** ("kmgt".index(found[2].lower()) + 1 if found[2] else 0))


def used_bytes() -> int:
    """Return the resident memory of this process, including its libraries."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        if sys.platform == "win32":
            counters = (ctypes.c_uint64 * 9)(72)  # PROCESS_MEMORY_COUNTERS of this process, whose handle is -1
            ctypes.windll.kernel32.K32GetProcessMemoryInfo(ctypes.c_void_p(-1), ctypes.byref(counters), 72)
            return int(counters[2])  # WorkingSetSize
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def release_free_memory() -> None:
    """Return the allocator's free memory to the system (glibc only), so that `used_bytes` counts only memory in use."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


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
