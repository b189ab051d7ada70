"""What an operation of a web service does -> all fields of its request and response (Amazon). Many labels a row."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.make_data.packages import pypi
from benchmarks.make_data.splits import TextRow, write_texts

PACKAGE = "botocore==1.44.3"
TAG = re.compile("<[^>]*>")
WORD_OF_NAME = re.compile("[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z0-9]+|[A-Z]+")

Shapes = dict[str, dict[str, Any]]  # the data types of a service by name


def make(scratch: Path, folder: Path) -> None:
    services = sorted((pypi(PACKAGE, scratch) / "botocore/data").iterdir())
    newest = (max(service.glob("*/service-2.json.gz"), default=None) for service in services if service.is_dir())
    write_texts((row for file in newest if file for row in rows(file)), folder)


def rows(service: Path) -> Iterator[TextRow]:
    described = json.loads(gzip.decompress(service.read_bytes()))
    for name, operation in described["operations"].items():
        about = TAG.sub(" ", operation.get("documentation", ""))
        fields: set[str] = set()
        for part in ("input", "output"):
            if part in operation:
                add_fields(operation[part]["shape"], described["shapes"], set(), fields)
        if fields:
            yield sorted(fields), f"{' '.join(WORD_OF_NAME.findall(name))} {about}"


def add_fields(shape: str, shapes: Shapes, seen: set[str], fields: set[str]) -> None:
    """Add the fields of a data type and of all types within it."""
    if shape in seen:
        return
    seen.add(shape)
    described = shapes[shape]
    inner = [
        *described.get("members", {}).values(),
        *(described[part] for part in ("member", "value") if part in described),
    ]
    fields.update(described.get("members", {}))
    for part in inner:
        add_fields(part["shape"], shapes, seen, fields)
