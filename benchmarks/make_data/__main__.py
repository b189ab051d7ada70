"""`python -m benchmarks.make_data NAME ...`: fetch the packages of a set and write it below `.cache/raw`."""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import suites


def make(name: str) -> Path:
    """Make the set `name`; its folder."""
    folder = suites.made_folder() / name
    recipe = importlib.import_module(f"benchmarks.make_data.{name.replace('-', '_')}")
    suites.CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=suites.CACHE, prefix="make-") as scratch:
        recipe.make(Path(scratch), folder)
    return folder


def main() -> int:
    names = [name for name, suite in suites.SUITES.items() if suite.made]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.make_data", description=__doc__)
    parser.add_argument("names", nargs="+", metavar="NAME", choices=names, help=", ".join(names))
    for name in parser.parse_args().names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        print(make(name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
