"""Set-up shared by all tests."""

import os
from pathlib import Path

import numba
import pytest

_root = Path(__file__).parent.parent
os.environ.setdefault("NUMBA_CACHE_DIR", str(_root / ".numba_cache/tests"))  # tests add "-bounds" and the like
numba.config.reload_config()  # pytest has imported Numba before, for a filter of warnings

# Processes that tests start, and the workers of Ray, import what tests share and functions of test files by name.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_root), os.environ.get("PYTHONPATH")]))

SLOW_FOLDERS = [_root / "tests" / name for name in ("benchmarks", "extras", "faults", "fuzz")]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`make check` leaves out what is marked as slow."""
    for item in items:
        if any(folder in item.path.parents for folder in SLOW_FOLDERS):
            item.add_marker(pytest.mark.slow)
