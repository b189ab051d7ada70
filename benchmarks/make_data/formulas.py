"""Three names of a chemical compound -> its formula (PubChem). Few rows a class, and words that are parts of names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.make_data.packages import pypi
from benchmarks.make_data.splits import TextRow, write_texts

PACKAGE = "chemicals==1.5.2"
FILE = "chemicals/Identifiers/chemical identifiers pubchem large.tsv"
FORMULA, FIRST_NAME, N_NAMES = 2, 7, 3


def make(scratch: Path, folder: Path) -> None:
    write_texts(rows(pypi(PACKAGE, scratch) / FILE), folder)


def rows(table: Path) -> Iterator[TextRow]:
    for line in table.read_text().splitlines():
        cells = line.split("\t")
        yield [cells[FORMULA]], " ; ".join(cells[FIRST_NAME : FIRST_NAME + N_NAMES])
