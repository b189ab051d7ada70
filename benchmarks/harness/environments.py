"""Every peer in a virtual environment of its own, made on first use from its pinned requirement file."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks import FOLDER

ENVIRONMENTS = FOLDER / ".envs"
REQUIREMENTS = FOLDER / "requirements"
PROJECT = FOLDER.parent / ".venv"


class EnvironmentFailed(Exception):
    """The packages of a peer could not be installed here."""


def python_of(name: str) -> Path:
    """The interpreter of the environment `name`, which is made, or made anew, if it is not as its file says."""
    if name == "project":
        own = PROJECT / "bin" / "python"
        return own if own.exists() else Path(sys.executable)
    folder = ENVIRONMENTS / name
    wanted = (REQUIREMENTS / f"{name}.txt").read_text()
    installed = folder / "installed.txt"
    if not installed.exists() or installed.read_text() != wanted:
        print(f"making the environment of {name} ...", file=sys.stderr, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        _call([sys.executable, "-m", "venv", str(folder)])
        # The files name every package that is needed, so that nothing unpinned (or of 6 GB) slips in.
        install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        _call([str(folder / "bin" / "python"), *install, "-r", str(REQUIREMENTS / f"{name}.txt")])
        installed.write_text(wanted)
    return folder / "bin" / "python"


def _call(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        reason = " ".join(errors) or done.stderr.strip()[-300:]
        raise EnvironmentFailed(f"cannot be installed here: {reason}")
