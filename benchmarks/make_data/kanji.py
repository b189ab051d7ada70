"""The English meaning of a Japanese word -> the Chinese characters it is written with (JMdict). Short texts."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from pathlib import Path

from benchmarks.make_data.packages import debian
from benchmarks.make_data.splits import TextRow, sampled, write_texts

PACKAGE = "dict-freedict-jpn-eng"
MOST_ROWS = 80_000
KANJI = re.compile("[\u4e00-\u9fff]")
HEADWORD = re.compile(r"^\s*(?:\[\w+\]\s*)*([^\s/,]+) /", re.MULTILINE)
NOT_MEANING = re.compile(r"^\s*(?:\d+\.)?\s*\(.*\)\s*$|\{.*?\}|Note: .*|\[\w+\]|^\s*\d+\.", re.MULTILINE)


def make(scratch: Path, folder: Path) -> None:
    file = debian(PACKAGE, scratch) / "usr/share/dictd/freedict-jpn-eng.dict.dz"
    write_texts(sampled(rows(gzip.decompress(file.read_bytes()).decode()), MOST_ROWS), folder)


def rows(dictionary: str) -> Iterator[TextRow]:
    """One row for each word; it starts with the ways to write it, each with its pronunciation between slashes."""
    starts = list(HEADWORD.finditer(dictionary))
    for word, after in zip(starts, [*starts[1:], None]):
        entry = dictionary[word.end() : after.start() if after else None]
        meaning = NOT_MEANING.sub(" ", entry.partition("\n")[2])
        characters = sorted(set(KANJI.findall(word[1])))
        if characters and not KANJI.search(meaning):
            yield characters, meaning
