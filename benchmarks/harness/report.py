"""The outcome as a table and as ratios, for the eye (Markdown) and for programs (JSON)."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import standard_errors
from benchmarks.harness.runner import Outcome

COSTS = {
    "train_seconds": "train s",
    "batch_microseconds": "predict us, batch",
    "one_microseconds": "predict us, one",
    "peak_mb": "peak MB",
    "model_mb": "model MB",
}
FRACTIONS = ("ECE", "micro-F1", "empty")  # beside P@k and PSP@k; `empty`: rows that `predict` gives no label
BUSY = 1.25  # wall time over processor time from which on a core was evidently not ours alone

Row = dict[str, Any]


def summary(outcome: Outcome) -> Row:
    """One line of the table: the best time, the mean accuracy, the largest memory of all runs."""
    row: Row = {"system": outcome.system.name, "ours": outcome.system.ours, "error": outcome.error}
    if not outcome.runs:
        return row
    for name in outcome.runs[0]:
        if name == "hits":  # a string a figure, see below
            continue
        values = [run[name] for run in outcome.runs]
        if None in values:
            row[name] = None
        elif name.endswith(("seconds", "microseconds")):
            row[name] = min(values)
        elif name.endswith("_mb"):
            row[name] = max(values)
        else:
            row[name] = sum(values) / len(values)
    figures = standard_errors.row_values(outcome.runs)
    row["standard_errors"] = {name: standard_errors.estimate(values)["error"] for name, values in figures.items()}
    return row


def figures_of(rows: Sequence[Row]) -> dict[str, str]:
    """The columns: accuracies as the suite has them, then what they cost."""
    names = dict.fromkeys(name for row in rows for name in row if "@" in name or name in FRACTIONS)
    return {**{name: name for name in names}, **COSTS}


def ratios(rows: Sequence[Row]) -> list[Row]:
    """Each of ours over each peer, figure by figure; None where either has no figure."""
    found = []
    for our in (row for row in rows if row["ours"] and "train_seconds" in row):
        for peer in (row for row in rows if not row["ours"] and "train_seconds" in row):
            line = {"ours": our["system"], "peer": peer["system"]}
            for name in figures_of(rows):
                above, below = our.get(name), peer.get(name)
                line[name] = above / below if above is not None and below else None
            found.append(line)
    return found


def differences(outcomes: Sequence[Outcome]) -> list[Row]:
    """Each of ours - each peer over the same rows, with standard errors."""
    values = [(outcome.system, standard_errors.row_values(outcome.runs)) for outcome in outcomes]
    return [
        {"ours": our.name, "peer": peer.name, **standard_errors.difference(of_ours, of_peer)}
        for our, of_ours in values
        for peer, of_peer in values
        if our.ours and not peer.ours and of_ours and of_peer
    ]


def report(name: str, facts: dict[str, Any], outcomes: Sequence[Outcome], options: dict[str, Any]) -> dict[str, Any]:
    """Everything about one run of a suite."""
    rows = [summary(outcome) for outcome in outcomes]
    return {
        "suite": name,
        "data": facts,
        "date": time.strftime("%Y-%m-%d %H:%M:%S"),
        "machine": {"processor": processor(), "cores": os.cpu_count(), "python": platform.python_version()},
        "options": options,
        "rows": rows,
        "ratios": ratios(rows),
        "differences": differences(outcomes),
        "runs": [{"system": o.system.name, "settings": o.system.settings, "runs": o.runs} for o in outcomes],
    }


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def markdown(outcome: dict[str, Any]) -> str:
    """The report as a page."""
    rows, data, options = outcome["rows"], outcome["data"], outcome["options"]
    columns = figures_of(rows)
    predicted = "validation" if options.get("validation") else "test"
    page = [
        f"# {outcome['suite']}, {outcome['date']}",
        "",
        f"{data['train_rows']:,} training and {data['test_rows']:,} {predicted} rows, {data['features']:,} features, "
        f"{data['labels']:,} labels. {outcome['machine']['processor']}, {options['threads']} thread(s), "
        f"best of {options['repeat']}.",
        "",
    ]
    body = [[("**{}**" if row["ours"] else "{}").format(row["system"]), *_cells(row, columns)] for row in rows]
    page += table(["system", *columns.values()], body)
    compared = [name for name in columns if any(name in line for line in outcome["differences"])]
    if compared:
        page += ["", "Differences, ours - peer, over the same rows, and their standard errors.", ""]
        body = [
            [line["ours"], line["peer"], *(with_error(name, line.get(name)) for name in compared)]
            for line in outcome["differences"]
        ]
        page += table(["ours", "peer", *compared], body)
    if outcome["ratios"]:
        page += ["", "Ratios, ours / peer. Better is below 1 for time, memory, size and ECE.", ""]
        columns = {
            name: head
            for name, head in columns.items()
            if name not in compared and any(line[name] is not None for line in outcome["ratios"])
        }
        body = [[line["ours"], line["peer"], *_cells(line, columns, ratio=True)] for line in outcome["ratios"]]
        page += table(["ours", "peer", *columns.values()], body)
    return "\n".join([*page, *_notes(rows), ""])


def with_error(name: str, found: standard_errors.Estimate | None, signed: bool = True) -> str:
    """A figure or a difference with its standard error.

    >>> with_error("P@1", {"value": -0.012345, "error": 0.00123})
    '-.0123 ±.0012'
    >>> with_error("error@1", {"value": 31.26, "error": 0.57}, signed=False)
    '31.26 ±0.57'
    """
    if found is None:
        return ""
    if name.startswith("error"):
        return f"{found['value']:{'+' if signed else ''}.2f} ±{found['error']:.2f}"
    value = f"{found['value']:{'+' if signed else ''}.4f}".replace("0.", ".", 1)
    return f"{value} ±{found['error']:.4f}".replace("±0.", "±.")


def _notes(rows: Sequence[Row]) -> list[str]:
    notes = [f"- {row['system']} failed: {row['error']}" for row in rows if row["error"]]
    shared = [row["system"] for row in rows if _core_was_shared(row)]
    if shared:
        notes.append(f"- The core was shared during these, read their times with care: {', '.join(shared)}.")
    return ["", *notes] if notes else []


def _core_was_shared(row: Row) -> bool:
    pairs = (("train_seconds", "train_cpu_seconds"), ("batch_microseconds", "batch_cpu_microseconds"))
    return any(wall in row and cpu in row and row[wall] > BUSY * row[cpu] for wall, cpu in pairs)


def _cells(row: Row, columns: dict[str, str], ratio: bool = False) -> list[str]:
    errors = {} if ratio else row.get("standard_errors", {})
    cells = [
        with_error(name, {"value": row[name], "error": errors[name]}, signed=False)
        if name in errors
        else _cell(name, row.get(name), ratio)
        for name in columns
    ]
    return cells if any(cells) else ["failed", *cells[1:]]


def _cell(name: str, value: float | None, ratio: bool) -> str:
    """
    >>> _cell("P@1", 0.36789, False), _cell("train_seconds", 27.123, False), _cell("model_mb", 0.0213, True)
    ('.3679', '27.1', '.0213')
    """
    if value is None:
        return ""
    if (name.startswith("P") or name in FRACTIONS) and not ratio:
        return f"{value:.4f}".lstrip("0")
    if value >= 1000:
        return f"{value:,.0f}"
    text = f"{value:#.3g}" if value < 100 else f"{value:.0f}"
    return text.removesuffix(".").removeprefix("0") if value < 1 else text


def table(head: list[str], body: list[list[str]]) -> list[str]:
    """A Markdown table that is also readable as it stands: the first column left, figures right.

    >>> print(*table(["system", "P@1"], [["a", ".5"]]), sep="\\n")
    | system | P@1 |
    |:-------|----:|
    | a      |  .5 |
    """
    lines = [head, *body]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    left = [
        not any(line[i][:1].isdigit() or line[i][:1] in (".", "+", "-") for line in body if line[i]) and i < 2
        for i in range(len(head))
    ]
    drawn = [
        "| "
        + " | ".join(cell.ljust(w) if to_left else cell.rjust(w) for cell, w, to_left in zip(line, widths, left))
        + " |"
        for line in lines
    ]
    rule = (
        "|"
        + "|".join(":" + "-" * (w + 1) if to_left else "-" * (w + 1) + ":" for w, to_left in zip(widths, left))
        + "|"
    )
    return [drawn[0], rule, *drawn[1:]]


def store(outcome: dict[str, Any], folder: Path) -> Path:
    """Write the report as JSON and Markdown; earlier reports stay. Returns the path of the Markdown."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{outcome['suite']}-{outcome['date'].replace(' ', '-').replace(':', '')}"
    (folder / f"{stem}.json").write_text(json.dumps(outcome, indent=2) + "\n")
    page = folder / f"{stem}.md"
    page.write_text(markdown(outcome))
    return page
