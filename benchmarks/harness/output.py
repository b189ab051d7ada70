"""What commands print and store: help, tables, figures and plots."""

from __future__ import annotations

import importlib
import json
import os
import platform
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks import FOLDER

RESULTS = FOLDER / "results"
IMAGES = FOLDER.parent / "docs" / "images"
STORED = FOLDER.parent / "docs" / "experiments" / "results"


def help_if_asked(text: str | None) -> None:
    """Print the docstring of an experiment, and end, if the command line asks for help."""
    if "--help" in sys.argv[1:] or "-h" in sys.argv[1:]:
        print(text)
        sys.exit()


def keep(name: str, found: Any) -> None:
    """Store what was found, for programs."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(found, indent=1))


def run_experiment(package: str, experiments: Sequence[str], text: str | None, arguments: list[str]) -> int:
    """Run the experiment of a package that the first argument names; print the docstring if there is none."""
    if not arguments or arguments[0] not in experiments:
        print(text, file=sys.stderr)
        return 2
    importlib.import_module(f"{package}.{arguments[0].replace('-', '_')}").main(arguments[1:])
    return 0


def store(
    page: str,
    name: str,
    *,
    title: str,
    shows: str,
    columns: Sequence[str | dict[str, Any]],
    rows: Sequence[Sequence[Any]],
    command: str | None = None,
    machine: str | None = None,
    image: dict[str, str] | None = None,
    listed: bool = True,
) -> None:
    """Store a result for a page of docs/experiments, and put it at the end of the page if it is new, or only link it.

    A column is a name, or a dictionary with `name`, `decimals` and `signed`. A cell is a number, a string, None, or a
    dictionary with `value` and `error`, `value`, `low` and `high`, or `value` and `beside`.
    """
    folder = STORED / page
    about = json.loads((folder / "page.json").read_text())
    found = {
        "title": title,
        "command": command or command_line(),
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine or f"a machine with {os.cpu_count()} {platform.machine()} cores",
        "shows": shows,
        **({"image": image} if image else {}),
        "columns": [{"name": column} if isinstance(column, str) else column for column in columns],
        "rows": [list(row) for row in rows],
    }
    (folder / f"{name}.json").write_text(one_row_a_line(found))
    if listed and name not in about["results"]:
        about["results"].append(name)
        (folder / "page.json").write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n")


def command_line() -> str:
    """The command of this process, as a person types it."""
    main = sys.modules["__main__"].__spec__
    program = f"-m {main.name.removesuffix('.__main__')}" if main else sys.argv[0]
    return " ".join(["python", program, *sys.argv[1:]])


def one_row_a_line(found: dict[str, Any]) -> str:
    """JSON with every column and every row on a line of its own.

    >>> print(one_row_a_line({"title": "P@1", "rows": [["icd", 0.88], ["gcc", None]]}), end="")
    {
     "title": "P@1",
     "rows": [
      ["icd", 0.88],
      ["gcc", null]
     ]
    }
    """
    lines = []
    for key, value in found.items():
        text = json.dumps(value, ensure_ascii=False)
        if isinstance(value, list):
            text = "[\n  " + ",\n  ".join(json.dumps(item, ensure_ascii=False) for item in value) + "\n ]"
        lines.append(f" {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


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


def rounded(value: float | None, digits: int = 3) -> float | None:
    """A number with so many digits, to be stored.

    >>> rounded(0.012345), rounded(12345.6), rounded(None)
    (0.0123, 12300.0, None)
    """
    return None if value is None else float(f"{value:.{digits}g}")


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
