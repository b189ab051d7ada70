"""Runs cases in forked processes, so that a crash, a hang or a huge allocation is a finding and not the end."""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECONDS = 20.0  # that one case may take
MEMORY = 2**30  # bytes that a case may ask for beside what the process has
OWN_CODE = ("treemax", "sklearn")  # packages whose errors are meant for the caller
CASES_A_PROCESS = 200


@dataclass
class Outcome:
    """What became of a case: "answered", "refused", or with `found` what is wrong with the library."""

    case: Any
    found: bool
    what: str


def run_cases(
    cases: Sequence[Any], check: Callable[[Any], str], seconds: float = SECONDS, memory: int = MEMORY
) -> Iterator[Outcome]:
    """Call `check` on every case in a forked process, and yield what became of each.

    `check` returns what the case came to; an error of ours counts as "refused", and whatever else is raised is a finding.
    """
    start = 0
    while start < len(cases):
        for outcome in _in_one_process(cases[start : start + CASES_A_PROCESS], check, seconds, memory):
            start += 1
            yield outcome


def _in_one_process(
    cases: Sequence[Any], check: Callable[[Any], str], seconds: float, memory: int
) -> Iterator[Outcome]:
    """The outcomes up to the first case that ends the process."""
    reading, writing = os.pipe()
    with tempfile.TemporaryFile() as errors:
        child = os.fork()
        if child == 0:
            os.close(reading)
            _work(cases, check, memory, writing, errors.fileno())
        os.close(writing)
        try:
            for case in cases:
                line = _line(reading, seconds)
                if line:
                    found, what = json.loads(line)
                    yield Outcome(case, found, what)
                    continue
                os.kill(child, signal.SIGKILL if line is None else 0)
                _, status = os.waitpid(child, 0)
                child = 0
                errors.seek(0)
                said = errors.read()[-300:].decode("utf-8", "replace")
                yield Outcome(case, True, _ending(line is None, status, seconds) + said)
                return
        finally:
            os.close(reading)
            if child:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)


def _ending(hung: bool, status: int, seconds: float) -> str:
    if hung:
        return f"no answer within {seconds:.0f} seconds "
    if os.WIFSIGNALED(status):
        return f"killed by signal {os.WTERMSIG(status)} "
    return f"ended with status {os.WEXITSTATUS(status)} "


def _line(reading: int, seconds: float) -> bytes | None:
    """The next line, b"" if there will be none, None if none came in time."""
    line, deadline = b"", time.monotonic() + seconds
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([reading], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return None
        byte = os.read(reading, 1)
        if not byte:
            return b""
        line += byte
    return line


def _work(cases: Sequence[Any], check: Callable[[Any], str], memory: int, writing: int, errors: int) -> None:
    """What the forked process does; it never returns."""
    try:
        faulthandler.disable()
        os.dup2(errors, 2)
        _end_with_parent()
        warnings.simplefilter("ignore")
        limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + memory
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
        for case in cases:
            os.write(writing, json.dumps(judged(check, case)).encode() + b"\n")
    finally:
        os._exit(0)


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def judged(check: Callable[[Any], str], case: Any) -> tuple[bool, str]:
    """Whether something was found, and what the case came to."""
    try:
        return False, check(case)
    except Exception as error:
        if is_ours(error):
            return False, "refused"
        return True, "".join(traceback.format_exception(error)[-6:])[-1500:]


def is_ours(error: Exception) -> bool:
    """Whether it is an error for the caller: raised on purpose, by us or by scikit-learn's validation."""
    frames = traceback.extract_tb(error.__traceback__)
    if not isinstance(error, ValueError | MemoryError) or not frames:
        return False
    last = frames[-1]
    package = [name for name in OWN_CODE if f"/{name}/" in last.filename]
    return bool(package) and (last.line or "").startswith("raise")
