"""Files of hierarchies: lines of parent, tab, child, or JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from treemax.formats.errors import FormatError


def read_hierarchy(path: Any, integers: bool = False) -> Any:
    """Read a hierarchy from lines of parent, tab, child, or from a file `*.json`.

    JSON is a nested object of children, an object from child to parent, or an array of pairs [parent, child]. With
    `integers`, names that are whole numbers are read as integers.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: is not UTF-8: {error}") from None
    if path.suffix.lower() == ".json":
        try:
            return _with_integers(json.loads(text), integers)
        except (json.JSONDecodeError, RecursionError) as error:
            raise FormatError(f"{path}: is not JSON: {error}") from None
    return [_edge(path, number, line, integers) for number, line in enumerate(text.split("\n"), 1) if line.strip()]


def _edge(path: Path, number: int, line: str, integers: bool) -> tuple[Any, Any]:
    names = line.rstrip("\r").split("\t")
    if len(names) != 2:
        raise FormatError.at(str(path), number, f"expected parent, tab, child, got {line.rstrip()!r:.80}")
    return _named(names[0], integers), _named(names[1], integers)


def _named(name: Any, integers: bool) -> Any:
    """Return a name as an integer if it is one and labels are integers."""
    return int(name) if integers and isinstance(name, str) and name.lstrip("-").isdecimal() else name


def _with_integers(found: Any, integers: bool) -> Any:
    if isinstance(found, dict):
        return {_named(key, integers): _with_integers(value, integers) for key, value in found.items()}
    if isinstance(found, list):
        return [_with_integers(value, integers) for value in found]
    return _named(found, integers)
