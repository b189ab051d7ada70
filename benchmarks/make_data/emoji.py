"""The name of a character of Unicode in one of several languages -> its keywords there (Unicode CLDR)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from benchmarks.make_data.packages import npm
from benchmarks.make_data.splits import TextRow, write_texts

PACKAGE = "cldr-annotations-full@48.2.0"
LANGUAGES = ("en", "de", "fr", "es", "it", "pt", "nl", "pl", "sv", "da", "fi", "cs", "hu", "ro", "tr", "id")
LEAST_KEYWORDS = 3


def make(scratch: Path, folder: Path) -> None:
    write_texts(rows(npm(PACKAGE, scratch)), folder)


def rows(package: Path) -> Iterator[TextRow]:
    for language in LANGUAGES:
        found = json.loads((package / f"annotations/{language}/annotations.json").read_text())
        for entry in found["annotations"]["annotations"].values():
            if "tts" in entry and len(entry.get("default", ())) >= LEAST_KEYWORDS:
                yield [keyword.lower() for keyword in entry["default"]], entry["tts"][0]
