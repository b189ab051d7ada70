"""Read files of examples in chunks of bounded size, or whole."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

from treemax.formats.arrow import Tables, is_tabular, read_arrow, read_parquet
from treemax.formats.delimited import read_delimited
from treemax.formats.detection import format_of_source
from treemax.formats.errors import BadLines
from treemax.formats.examples import Examples, concatenate, rechunk
from treemax.formats.fasttext import read_fasttext
from treemax.formats.folders import Folder
from treemax.formats.jsonl import read_jsonl
from treemax.formats.npz import read_npz
from treemax.formats.numeric import read_svmlight, read_xmc, rebase
from treemax.formats.options import Options, check_format
from treemax.formats.streams import LineReader
from treemax.formats.vw import read_vw

CHUNK_ROWS = 4096

_READERS: dict[str, Callable[[Any, Options, BadLines], Iterator[Examples]]] = {
    "fasttext": read_fasttext,
    "xmc": read_xmc,
    "svmlight": read_svmlight,
    "vw": read_vw,
    "jsonl": read_jsonl,
    "npz": read_npz,
    "parquet": read_parquet,
    "arrow": read_arrow,
    "csv": partial(read_delimited, format="csv"),
    "tsv": partial(read_delimited, format="tsv"),
}


class Reader:
    """An open file of examples: iterate over it once for chunks, or read all of it with `read_all`.

    Attributes: `name` of the file (for messages), its `format`, the number of `bad_lines` skipped so far and
    the first few `bad_messages`, and for a progress bar `position` of `size` bytes (`size` is None if unknown).
    """

    def __init__(
        self, source: LineReader | Folder | Tables, format: str, chunk_rows: int, skip_bad: bool, options: Options
    ) -> None:
        options.check_columns(source.name, format)
        self.name = source.name
        self.format = format
        self._source = source
        self._chunk_rows = chunk_rows
        self._options = options
        self._bad = BadLines(source.name, skip_bad)
        self._chunks: Generator[Examples, None, None] | None = None

    def __iter__(self) -> Iterator[Examples]:
        if self._chunks is None:
            self._chunks = rechunk(self._pieces(self._options), self._chunk_rows)
        return self._chunks

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def read_all(self) -> Examples:
        """Read the whole file; `zero_based="auto"` guesses the first svmlight index as scikit-learn does."""
        if self._chunks is not None:
            raise ValueError(f"{self.name} is being read in chunks already; open it again to read the whole.")
        options = dataclasses.replace(self._options, whole=True)
        pieces = list(self._pieces(options))
        self._chunks = rechunk([], 1)  # no more chunks
        examples = concatenate([piece for piece in pieces if len(piece)] or pieces[-1:])
        if self.format == "svmlight" and options.zero_based == "auto":
            return rebase(examples, options.n_features, self.name)
        return examples

    def close(self) -> None:
        """Close the file; iteration ends."""
        if self._chunks is not None:
            self._chunks.close()
        self._chunks = rechunk([], 1)
        self._source.close()

    @property
    def bad_lines(self) -> int:
        return self._bad.count

    @property
    def bad_messages(self) -> list[str]:
        return self._bad.messages

    @property
    def size(self) -> int | None:
        return self._source.size

    @property
    def position(self) -> int:
        return self._source.position

    def _pieces(self, options: Options) -> Iterator[Examples]:
        if isinstance(self._source, Tables):
            return self._source.read(options, self._bad)
        if isinstance(self._source, Folder):
            return self._source.read(_READERS[self.format], options, self._bad)
        return _READERS[self.format](self._source, options, self._bad)


def is_source(thing: Any) -> bool:
    """Return whether `open_examples` accepts `thing`: a path, a table or a data set, not an array.

    >>> is_source("train.svm"), is_source([[1.0, 2.0]])
    (True, False)
    """
    return isinstance(thing, str | os.PathLike) or is_tabular(thing)


def open_examples(
    path: Any,
    format: str = "auto",
    *,
    chunk_rows: int = CHUNK_ROWS,
    skip_bad: bool = False,
    bits: int = 18,
    n_features: int | None = None,
    zero_based: bool | Literal["auto"] = "auto",
    holds_text: bool = False,
    text_column: str | None = None,
    label_column: str | None = None,
    label_separator: str | None = None,
    weight_column: str | None = None,
) -> Reader:
    """Open a file, a folder or a table of examples for reading in chunks, with bounded memory.

    Parameters
    ----------
    path
        A file, an open `LineReader`, or `-` for standard input; gzip is recognised by its content. Or a folder of files
        of one format, which are read in the order of their names. Or a pyarrow table, record batches or data set, a
        Hugging Face data set, or any object with Arrow's PyCapsule protocol.
    format
        One of `FORMATS`, or "auto" to detect it by the name of the file, else by its first lines.
    chunk_rows
        Number of examples per chunk; the last may have fewer.
    skip_bad
        Skip malformed lines and count them, instead of raising `FormatError` at the first.
    bits
        Feature names (vw, jsonl) are hashed into `2**bits` columns.
    n_features
        Number of columns; by default the largest index so far plus one (xmc: the header's number).
    zero_based
        Whether svmlight indices start at zero; "auto" does not shift them.
    holds_text
        With format "auto", read lines that are not JSON as text, even if they look like another format.
    text_column
        The column of the texts in a CSV or TSV file; by default `text`.
    label_column
        The column of the labels in a CSV or TSV file, "" for none; by default `label` or `labels`.
    label_separator
        What separates the labels of a row in a CSV or TSV file. By default a cell is one label, and in a column
        called `labels` they are separated by `|`.
    weight_column
        The column of the weights in a CSV or TSV file; by default all rows have weight one.

    Examples
    --------
    >>> with open_examples("train.svm") as reader:  # doctest: +SKIP
    ...     for chunk in reader:
    ...         model.partial_fit(chunk.X, chunk.y)
    """
    if chunk_rows < 1:
        raise ValueError(f"chunk_rows must be at least 1, got {chunk_rows}.")
    options = Options(bits, n_features, zero_based, text_column, label_column, label_separator, weight_column)
    check_format(format)
    if is_tabular(path):
        return Reader(Tables(path), "arrow", chunk_rows, skip_bad, options)
    opened = isinstance(path, LineReader)
    if not opened and str(path) != "-" and Path(path).is_dir():
        folder = Folder(path, format, holds_text)
        return Reader(folder, folder.format, chunk_rows, skip_bad, options)
    source = path if opened else LineReader(path)
    try:
        found = format_of_source(source, holds_text) if format == "auto" else format
        return Reader(source, found, chunk_rows, skip_bad, options)
    except BaseException:
        source.close()
        raise


def read_examples(
    path: Any,
    format: str = "auto",
    *,
    skip_bad: bool = False,
    bits: int = 18,
    n_features: int | None = None,
    zero_based: bool | Literal["auto"] = "auto",
    text_column: str | None = None,
    label_column: str | None = None,
    label_separator: str | None = None,
    weight_column: str | None = None,
) -> Examples:
    """Read a whole file of examples; the parameters are those of `open_examples`. Skipped lines give a warning.

    With `zero_based="auto"`, the indices of an svmlight file without an index 0 are assumed to start at one,
    as in scikit-learn.
    """
    with open_examples(
        path,
        format,
        skip_bad=skip_bad,
        bits=bits,
        n_features=n_features,
        zero_based=zero_based,
        text_column=text_column,
        label_column=label_column,
        label_separator=label_separator,
        weight_column=weight_column,
    ) as reader:
        examples = reader.read_all()
    if reader.bad_lines:
        warnings.warn(f"{reader.bad_lines} malformed line(s) skipped, first {reader.bad_messages[0]}", stacklevel=2)
    return examples
