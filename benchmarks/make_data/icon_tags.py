"""The name of an icon or emoji -> the tags its makers gave it, from seven collections."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.make_data.packages import npm
from benchmarks.make_data.splits import TextRow, write_texts

LEAST_TAGS = 2


def make(scratch: Path, folder: Path) -> None:
    write_texts(rows(scratch), folder)


def rows(scratch: Path) -> Iterator[TextRow]:
    for name, tags in named_tags(scratch):
        found = sorted({tag.strip().lower() for tag in tags} - {""})
        if len(found) >= LEAST_TAGS:
            yield found, name.replace("-", " ")


def named_tags(scratch: Path) -> Iterator[tuple[str, list[str]]]:
    for icon in read(npm("@tabler/icons@3.51.0", scratch) / "icons.json").values():
        yield icon["name"], [str(tag) for tag in icon["tags"]]
    yield from read(npm("lucide-static@1.62.0", scratch) / "tags.json").items()
    families = read(npm("@fortawesome/fontawesome-free@7.3.1", scratch) / "metadata/icon-families.json")
    for icon in families.values():
        yield icon["label"], icon["search"]["terms"]
    for icon in read(npm("ionicons@8.1.0", scratch) / "dist/ionicons.json")["icons"]:
        yield icon["name"], icon["tags"]
    for emoji in read(npm("openmoji@17.0.0", scratch) / "data/openmoji.json"):
        if not emoji["skintone"]:
            yield emoji["annotation"], f"{emoji['tags']},{emoji['openmoji_tags']}".split(",")
    for icon in read(npm("@mdi/svg@7.4.47", scratch) / "meta.json"):
        yield icon["name"], icon["aliases"] + icon["tags"]
    keywords = npm("@vscode/codicons@0.0.45", scratch) / "_iconCloud/keywords.csv"
    for name, words in list(csv.reader(keywords.read_text().splitlines()))[1:]:
        yield name, words.split()


def read(path: Path) -> Any:
    return json.loads(path.read_text())
