"""`python -m benchmarks.pages`: write docs/experiments/*.md, and the table of the README, from the stored results.

A folder of docs/experiments/results is a page. Its `page.json` has the title, what the page is about, the names of the
results it shows, in order, and for long tables the `rows` to show; every other JSON file in the folder is a result,
written by `benchmarks.harness.output.store`. Results that the page does not show are linked at its end.
"""

from __future__ import annotations

import json
import re
from calendar import month_name
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks import FOLDER
from benchmarks.harness.output import STORED, help_if_asked, keep, store

README = FOLDER.parent / "README.md"
Result = dict[str, Any]  # what `store` writes


def pages() -> dict[Path, str]:
    """The file and the text of every page, and of the README."""
    folders = sorted(path for path in STORED.iterdir() if path.is_dir())
    return {README: readme(), **{STORED.parent / f"{folder.name}.md": page(folder) for folder in folders}}


def readme() -> str:
    """The README with the tables of the results that its comments name."""

    def filled(match: re.Match[str]) -> str:
        return f"{match[1]}\n{table(json.loads((STORED / f'{match[2]}.json').read_text()))}\n{match[3]}"

    return re.sub(r"(<!-- table: (.+?) -->).*?(<!-- end -->)", filled, README.read_text(), flags=re.DOTALL)


def page(folder: Path) -> str:
    about = json.loads((folder / "page.json").read_text())
    results = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    del results["page"]
    shown = {name: results[name] for name in about["results"]}
    usual = Counter(map(measured, shown.values())).most_common(1)[0][0]
    for name, kept in about.get("rows", {}).items():
        shown[name] = some_rows(shown[name], kept, f"results/{folder.name}/{name}.json")
    parts = [
        f"# {about['title']}",
        "<!-- Written by `python -m benchmarks.pages`; change docs/experiments/results instead. -->",
        f"{about['about']} Unless noted: {usual}.",
        *sections(list(shown.values()), usual),
    ]
    others = [
        f"- [{result['title']}](results/{folder.name}/{name}.json)"
        for name, result in results.items()
        if name not in shown
    ]
    if others:
        parts += ["## More results, as JSON", "\n".join(others)]
    return "\n\n".join(parts) + "\n"


def measured(result: Result) -> str:
    """When and where.

    >>> measured({"date": "2026-11", "machine": "one core"})
    'November 2026, one core'
    """
    year, month = result["date"].split("-")[:2]
    return f"{month_name[int(month)]} {year}, {result['machine']}"


def some_rows(result: Result, kept: dict[str, list[str]], file: str) -> Result:
    """A result with the rows that have these cells in some columns, and a link to all.

    >>> shorter = some_rows({"shows": "Two.", "columns": [{"name": "x"}], "rows": [["a"], ["b"]]}, {"x": ["b"]}, "x.json")
    >>> shorter["shows"], shorter["rows"]
    ('Two. [All rows](x.json).', [['b']])
    """
    names = [column["name"] for column in result["columns"]]
    rows = [row for row in result["rows"] if all(row[names.index(name)] in cells for name, cells in kept.items())]
    return {**result, "rows": rows, "shows": f"{result['shows']} [All rows]({file})."}


def sections(results: list[Result], usual: str) -> list[str]:
    """The sections of a page, without the command where it is that of the section before."""
    commands = ["", *(result["command"] for result in results)]
    return [
        section(result, usual, result["command"] != before) for result, before in zip(results, commands, strict=False)
    ]


def section(result: Result, usual: str, with_command: bool = True) -> str:
    """The heading, the sentences, the command, the picture and the table of a result."""
    about = result["shows"] if measured(result) == usual else f"{result['shows']} ({measured(result)}.)"
    parts = [f"## {result['title']}", about, *[f"```text\n{result['command']}\n```"] * with_command]
    if "image" in result:
        file, text = f"../images/{result['image']['file']}", result["image"]["text"]
        parts.append(f"[![{text}]({file})]({file})")
    return "\n\n".join([*parts, table(result)])


def publish(kept_as: str, page: str, name: str, **result: Any) -> None:
    """Keep the rows of a result, print them as a table, and `store` it."""
    keep(kept_as, result["rows"])
    print(table({"columns": result["columns"], "rows": result["rows"]}))
    store(page, name, **result)


def table(result: Result) -> str:
    columns, rows = result["columns"], result["rows"]
    numeric = [all(not isinstance(row[i], str) for row in rows) for i in range(len(columns))]
    lines = [
        "| " + " | ".join(column["name"].strip() for column in columns) + " |",
        "|" + "|".join("--:" if right else "---" for right in numeric) + "|",
    ]
    for row in rows:
        lines.append("| " + " | ".join(map(written, row, columns)) + " |")
    return "\n".join(lines)


def written(cell: Any, column: dict[str, Any]) -> str:
    """A cell as text: a string, a number, or a number with its error, its range or a second number.

    >>> written(0.5, {"decimals": 4}), written(1041, {}), written(None, {})
    ('0.5000', '1,041', '')
    >>> written({"value": 0.0064, "error": 0.0025}, {"decimals": 4, "signed": True})
    '+0.0064 ±0.0025'
    >>> written({"value": 66.5, "low": 63.9, "high": 67.9}, {}), written({"value": 2.6, "beside": 3}, {})
    ('66.5 (63.9 to 67.9)', '2.6 (3)')
    """
    if cell is None or isinstance(cell, str):
        return cell or ""
    decimals = f".{column['decimals']}f" if "decimals" in column else ""
    if not isinstance(cell, dict):
        return format(cell, f"{'+' if column.get('signed') else ''},{decimals}")
    value = written(cell["value"], column)
    if "error" in cell:
        return f"{value} ±{cell['error']:,{decimals}}"
    if "low" in cell:
        return f"{value} ({cell['low']:,{decimals}} to {cell['high']:,{decimals}})"
    return f"{value} ({cell['beside']:,})"


def main() -> None:
    help_if_asked(__doc__)
    for file, text in pages().items():
        if not file.exists() or file.read_text() != text:
            file.write_text(text)
            print(f"wrote {file.name}")


if __name__ == "__main__":
    main()
