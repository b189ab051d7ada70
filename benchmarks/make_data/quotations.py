"""A quotation in the Collaborative International Dictionary of English -> the writer or the book it is from."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from pathlib import Path

from benchmarks.make_data.packages import debian
from benchmarks.make_data.splits import TextRow, write_texts

PACKAGE = "dict-gcide"
QUOTATION = re.compile(r"((?:^ {12,}\S.*\n)*?^ {12,}(?:\S.*?)??)--([A-Z][^\n]*)\n", re.MULTILINE)
END_OF_NAME = re.compile(r"[(\[,;:?]|\d|\b[ivxlc]+\.")
LEAST_WORDS = 4


def make(scratch: Path, folder: Path) -> None:
    file = debian(PACKAGE, scratch) / "usr/share/dictd/gcide.dict.dz"
    write_texts(rows(gzip.decompress(file.read_bytes()).decode(errors="replace")), folder)


def rows(dictionary: str) -> Iterator[TextRow]:
    for text, source in QUOTATION.findall(dictionary):
        name = END_OF_NAME.split(source)[0].strip(" .")
        if name and len(text.split()) >= LEAST_WORDS:
            yield [name], text
