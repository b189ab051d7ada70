"""What commands print and store: help, tables, figures and plots."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks import FOLDER

RESULTS = FOLDER / "results"
IMAGES = FOLDER.parent / "docs" / "images"


def help_if_asked(text: str | None) -> None:
    """Print the docstring of an experiment, and end, if the command line asks for help."""
    if "--help" in sys.argv[1:] or "-h" in sys.argv[1:]:
        print(text)
        sys.exit()


def keep(name: str, found: Any) -> None:
    """Store what was found, for programs."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(found, indent=1))


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """
    >>> print(table(["bound", "error %"], [["None", "20.7"]]))
    | bound | error % |
    |---|--:|
    | None | 20.7 |
    """
    lines = ["| " + " | ".join(columns) + " |", "|---" + "|--:" * (len(columns) - 1) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def number(value: float) -> str:
    """Three digits, which is what a measurement is worth.

    >>> number(0.01234), number(12.345), number(1234.5)
    ('0.0123', '12.3', '1,234')
    """
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def canvas(columns: int, width: float = 9, height: float = 3.8, **options: Any) -> tuple[Any, Any]:
    """A figure and its axes side by side, drawn without a screen."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, columns, figsize=(width, height), squeeze=False, **options)
    for axis in axes[0]:
        axis.grid(alpha=0.3)
    return figure, axes[0]


def draw(figure: Any, name: str) -> None:
    figure.tight_layout()
    IMAGES.mkdir(exist_ok=True)
    figure.savefig(IMAGES / f"{name}.png", dpi=110)
