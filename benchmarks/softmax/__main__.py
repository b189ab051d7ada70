"""Softmax trees on our data. One thread.

    python -m benchmarks.softmax answers [FOLDER]       the time of an answer, beside a full softmax's bare product

The table is printed, and what was found stored as JSON in `results`. Models are trained first; with a FOLDER they are
kept there, and taken from there the next time.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy is loaded

import importlib
import sys

EXPERIMENTS = ("answers",)


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] not in EXPERIMENTS:
        print(__doc__, file=sys.stderr)
        return 2
    importlib.import_module(f"benchmarks.softmax.{arguments[0]}").main(arguments[1:])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
