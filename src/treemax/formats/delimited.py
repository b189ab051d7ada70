"""CSV and TSV files with a header: a column of texts and a column of labels, which are strings.

Fields are quoted as for Python's csv module: a quoted one may have delimiters, quotes (doubled) and line breaks.
"""

from __future__ import annotations

import csv
import io
from collections import deque
from collections.abc import Iterable, Iterator
from typing import IO

from treemax.formats.errors import BadLines, FormatError, quoted
from treemax.formats.examples import Examples, string_labels, weights_of
from treemax.formats.kinds import weight_of
from treemax.formats.options import DELIMITERS, Options
from treemax.formats.streams import LineReader

MAX_FIELD = 16 * 1024 * 1024  # characters, so that a quote that is never closed does not take all memory
SEPARATOR = "|"  # separates the labels in a column called `labels`
_PIECE_ROWS = 4096
_SHOWN_COLUMNS = 20


def read_delimited(source: LineReader, options: Options, bad: BadLines, format: str) -> Iterator[Examples]:
    """Yield the examples of a CSV or TSV file in pieces."""
    records = _Records(source, DELIMITERS[format], BadLines(bad.name, skip=False))
    header = records.next()
    if header is None:
        raise FormatError.at(bad.name, None, "is empty: there is no header with the names of the columns")
    records.bad = bad
    parser = _RowParser(header, options, bad.name, records.first_line)
    labels: list[list[str]] = []
    texts: list[str] = []
    weights: list[float] = []
    while (record := records.next()) is not None:
        try:
            row = parser.parse(record)
        except ValueError as error:
            bad.report(records.first_line, str(error))
        else:
            texts.append(row[0])
            labels.append(row[1])
            weights.append(row[2])
        if texts and (len(texts) == _PIECE_ROWS or records.block_ended):
            yield Examples(string_labels(labels), texts=texts, weights=weights_of(weights))
            labels, texts, weights = [], [], []
    yield Examples(string_labels(labels), texts=texts, weights=weights_of(weights))


class _Records:
    """Records of a file, each a list of fields; an iterator of lines for the csv module."""

    def __init__(self, source: LineReader, delimiter: str, bad: BadLines) -> None:
        # The limit is one for the whole process. It is only ever raised: a text may be longer than 131,072 characters.
        csv.field_size_limit(max(csv.field_size_limit(), MAX_FIELD))
        self.first_line = source.line  # of the current record
        self._reader = csv.reader(self, delimiter=delimiter)
        self._blocks = source.blocks()
        self.bad = bad
        self._lines: deque[tuple[int, str]] = deque()
        self._taken: list[tuple[int, str]] = []  # lines of the current record
        self._ended = False

    def next(self) -> list[str] | None:
        """Return the next record that is not empty, or None at the end of the file; malformed ones are reported."""
        while True:
            self._taken = []
            try:
                record = next(self._reader, None)
            except csv.Error as error:
                self._reread_rest(_explained(error))
                continue
            self.first_line = self._taken[0][0] if self._taken else self.first_line
            if self._ended and self._taken:
                self._ended = False
                self._reread_rest("a quoted field is not closed before the end of the file")
            elif record is None or record:
                return record

    @property
    def block_ended(self) -> bool:
        """Whether the next record needs more of the file, which may not have arrived yet."""
        return not self._lines

    def _reread_rest(self, what: str) -> None:
        """Report the first line of the current record; what follows it is read again, as records of their own."""
        self.first_line = self._taken[0][0]
        self.bad.report(self.first_line, f"{what}, got {quoted(self._taken[0][1])}")
        self._lines.extendleft(reversed(self._taken[1:]))

    def __iter__(self) -> _Records:
        return self

    def __next__(self) -> str:
        if not self._lines:
            first, block = next(self._blocks, (0, None))
            if block is None:
                self._ended = True
                raise StopIteration
            lines = block.tobytes().decode("utf-8", "surrogateescape").split("\n")
            self._lines.extend((number, line + "\n") for number, line in enumerate(lines[:-1], first))
        self._taken.append(self._lines.popleft())
        return self._taken[-1][1]


def _explained(error: csv.Error) -> str:
    if "new-line" in str(error):
        return "a carriage return outside quotes"
    if "limit" in str(error):
        return f"a field is longer than {MAX_FIELD:,} characters, or its quote is not closed"
    return f"malformed ({error})"


class _RowParser:
    """Text and labels of a record, by the columns of the header."""

    def __init__(self, header: list[str], options: Options, name: str, line: int) -> None:
        self._width = len(header)
        self._names = header
        try:
            self._text = self._position(options.text_column, ("text",), "text")
            assert self._text is not None
            self._label = self._label_position(options.label_column)
            self._weight: int | None = None
            if options.weight_column is not None:
                self._weight = self._position(options.weight_column, (), "weight")
        except ValueError as error:
            raise FormatError.at(name, line, str(error)) from None
        of_many = self._label is not None and header[self._label] == "labels"
        self._separator = options.label_separator or (SEPARATOR if of_many else None)

    def parse(self, record: list[str]) -> tuple[str, list[str], float]:
        """Return the text, the labels and the weight of a record."""
        if len(record) != self._width:
            raise ValueError(f"{len(record)} fields, but the header has {self._width}, got {quoted(record[0])} first")
        assert self._text is not None
        cell = "" if self._label is None else self._checked(record, self._label)
        if self._separator is None:
            labels = [cell] if cell else []
        else:
            labels = [label for part in cell.split(self._separator) if (label := part.strip())]
        weight = 1.0 if self._weight is None else weight_of(record[self._weight])
        return self._checked(record, self._text), labels, weight

    def _checked(self, record: list[str], column: int) -> str:
        cell = record[column]
        if not cell.isascii():
            try:
                cell.encode()
            except UnicodeEncodeError:
                raise ValueError(f"column {quoted(self._names[column])} is not UTF-8, got {quoted(cell)}") from None
        return cell

    def _label_position(self, wanted: str | None) -> int | None:
        """Return the column of the labels; None if the texts are the only column, or for the name ""."""
        if wanted == "" or (wanted is None and self._width == 1):
            return None
        return self._position(wanted, ("label", "labels"), "label")

    def _position(self, wanted: str | None, usual: tuple[str, ...], what: str) -> int | None:
        names = usual if wanted is None else (wanted,)
        found = [column for column, name in enumerate(self._names) if name in names]
        if len(found) == 1:
            return found[0]
        shown = ", ".join(map(quoted, self._names[:_SHOWN_COLUMNS]))
        shown += ", ..." if self._width > _SHOWN_COLUMNS else ""
        how_many = "more than one column is" if found else "no column is"
        more = (
            ', "" for none'
            if what == "label"
            else ""
            if what == "weight"
            else "; columns of numbers are not read as features, use parquet, npz or svmlight for those"
        )
        raise ValueError(
            f"{how_many} called {' or '.join(map(quoted, names))}. Name the column of the {what}s with {what}_column "
            f"(--{what}-column){more}. The columns are {shown}"
        )


def write_delimited(
    chunks: Iterable[Examples], target: IO[bytes], format: str, label_separator: str | None = None
) -> None:
    """Write the columns `text` and `labels`, with the labels of a row separated by `label_separator`, by default `|`."""
    separator = label_separator or SEPARATOR
    lines = io.StringIO()
    writer = csv.writer(lines, delimiter=DELIMITERS[format])
    writer.writerow(["text", "labels"])
    n_rows = 0
    for chunk in chunks:
        if chunk.texts is None:
            raise ValueError(
                f"The {format} format holds text, but these examples have numeric features. Write xmc, svmlight, vw, "
                "jsonl, npz, parquet or arrow."
            )
        for row, (labels, text) in enumerate(zip(chunk.labels, chunk.texts), n_rows):
            names = [_writable(str(label), separator, row, format) for label in labels]
            writer.writerow([text, separator.join(names)])
        n_rows += len(chunk)
        _flush(lines, target)
    _flush(lines, target)


def _writable(label: str, separator: str, row: int, format: str) -> str:
    if not label or separator in label or label != label.strip():
        raise ValueError(
            f"The {format} format cannot hold the label {quoted(label)} of row {row}: a label is not empty, has no white "
            f"space at its ends, and does not have the separator {separator!r}. Choose another label_separator "
            "(--label-separator), rename it, or write jsonl."
        )
    return label


def _flush(lines: io.StringIO, target: IO[bytes]) -> None:
    try:
        target.write(lines.getvalue().encode())
    except UnicodeEncodeError as error:
        raise ValueError(f"An unpaired surrogate cannot be written as UTF-8: {error}") from None
    lines.seek(0)
    lines.truncate()
