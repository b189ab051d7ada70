"""fastText's format: `__label__a __label__b text`, one example a line.

Labels are at the start of the line. Every line is an example, even without labels or without text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import IO

from treemax.formats.errors import BadLines, quoted
from treemax.formats.examples import Examples, string_labels
from treemax.formats.lines import BLANK, PREFIX, split_line
from treemax.formats.options import Options
from treemax.formats.streams import LineReader

_BREAKS = re.compile(r"\r\n|\r|\n")
_WHITE_SPACE = re.compile(f"[{BLANK}\\n]")


def read_fasttext(source: LineReader, options: Options, bad: BadLines) -> Iterator[Examples]:
    """Yield the examples of a fastText file in blocks."""
    empty = True
    for first, lines in source.text_blocks():
        labels: list[list[str]] = []
        texts: list[str] = []
        for number, line in enumerate(lines, first):
            try:
                found, text = split_line(line.decode("utf-8"))
            except UnicodeDecodeError as error:
                bad.report(number, f"not UTF-8 at byte {error.start + 1} of the line, got {quoted(line)}")
            except ValueError as error:
                bad.report(number, str(error))
            else:
                labels.append(found)
                texts.append(text)
        empty = False
        yield Examples(string_labels(labels), texts=texts)
    if empty:
        yield Examples(string_labels([]), texts=[])


def write_fasttext(chunks: Iterable[Examples], target: IO[bytes]) -> None:
    """Write examples as fastText; line breaks inside a text become spaces."""
    n_rows = 0
    for chunk in chunks:
        if chunk.texts is None:
            raise ValueError(
                "The fasttext format holds text, but these examples have numeric features. Write xmc, svmlight, vw, jsonl, npz, parquet or arrow."
            )
        for row, (labels, text) in enumerate(zip(chunk.labels, chunk.texts), n_rows):
            words = [PREFIX + _checked(str(label), row) for label in labels]
            target.write(" ".join([*words, _one_line(text, row)]).encode() + b"\n")
        n_rows += len(chunk)


def _checked(label: str, row: int) -> str:
    if not label or _WHITE_SPACE.search(label):
        raise ValueError(
            f"The fasttext format cannot hold the label {quoted(label)} of row {row}: "
            "a label is not empty and has no white space. Rename it, or write jsonl."
        )
    return label


def _one_line(text: str, row: int) -> str:
    text = _BREAKS.sub(" ", text)
    if text.lstrip(" \t\v\f").startswith(PREFIX):
        raise ValueError(
            f"The text of row {row} begins with {PREFIX}, which the fasttext format reads as a label: {quoted(text)}"
        )
    return text
