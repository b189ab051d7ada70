"""The formats of `index:value` pairs with integer labels: XMC repository and svmlight (libsvm).

Both are parsed by one kernel. An XMC file begins with a header, `rows columns labels`, which is checked against
the data; every line after it is a row. In the svmlight format blank lines are skipped, `#` begins a comment and
`qid:` is ignored, as in scikit-learn.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from typing import IO

import numpy as np
from numpy.typing import NDArray

from treemax.formats.blocks import BlockParser, Limits
from treemax.formats.errors import BadLines, FormatError, quoted
from treemax.formats.examples import Examples, integer_labels
from treemax.formats.numbers import pairs, sparse_rows_to_write
from treemax.formats.options import Options
from treemax.formats.streams import LineReader, append
from treemax.inputs.limits import MAX_FEATURES
from treemax.inputs.rows import SparseRows
from treemax.replacing import temporary_files


def read_xmc(source: LineReader, options: Options, bad: BadLines) -> Iterator[Examples]:
    """Yield the examples of an XMC file in blocks."""
    n_rows, n_features, n_labels = _read_header(source)
    if options.n_features is not None and options.n_features < n_features:
        raise FormatError.at(
            source.name, 1, f"the header has {n_features} columns, more than n_features={options.n_features}"
        )
    width = options.n_features or n_features
    parser = BlockParser(Limits(0, n_labels, 0, n_features), keep_blank=True)
    left = n_rows
    for first, block in source.blocks():
        end = _end_of_rows(block, left)
        parsed = parser.parse(block[:end], first, bad)
        left -= int(np.count_nonzero(block[:end] == 10))
        labels = integer_labels(parsed.label_starts, parsed.labels, n_labels)
        yield Examples(labels, SparseRows(parsed.row_starts, parsed.indices, parsed.values, width))
        if end < len(block):
            _report_extra(block[end:], first + int(np.count_nonzero(block[:end] == 10)), n_rows, bad)
    if left:
        bad.report(source.line, f"the file ends after {n_rows - left} rows, the header says {n_rows}")
    yield _empty_examples(width, n_labels)


def _empty_examples(n_features: int, n_labels: int = 0) -> Examples:
    """Return examples without rows that carry the numbers of features and labels."""
    starts = np.zeros(1, dtype=np.int64)
    rows = SparseRows(starts, np.empty(0, dtype=np.uint32), np.empty(0, dtype=np.float32), n_features)
    return Examples(integer_labels(starts, np.empty(0, dtype=np.int64), n_labels), rows)


def _read_header(source: LineReader) -> tuple[int, int, int]:
    line = source.take_line() or b""
    fields = line.split()
    if len(fields) != 3 or not all(field.isdigit() and len(field) < 19 for field in fields):
        raise FormatError.at(
            source.name, 1, f"the header is not three numbers (rows, columns, labels), got {quoted(line)}"
        )
    n_rows, n_features, n_labels = map(int, fields)
    if not 1 <= n_features <= MAX_FEATURES:
        raise FormatError.at(
            source.name, 1, f"the header's number of columns is not in 1 to {MAX_FEATURES:,}, got {n_features}"
        )
    return n_rows, n_features, n_labels


def _end_of_rows(block: NDArray[np.uint8], left: int) -> int:
    """Return how many bytes of the block belong to the `left` remaining rows."""
    if left > len(block):
        return len(block)
    ends = np.flatnonzero(block == 10)
    if left >= len(ends):
        return len(block)
    return int(ends[left - 1]) + 1 if left else 0


def _report_extra(block: NDArray[np.uint8], first: int, n_rows: int, bad: BadLines) -> None:
    """Report lines after the last row, unless blank."""
    for number, line in enumerate(block.tobytes().split(b"\n"), first):
        if line.strip():
            bad.report(number, f"more rows than the {n_rows} of the header; got {quoted(line)}")


def read_svmlight(source: LineReader, options: Options, bad: BadLines) -> Iterator[Examples]:
    """Yield the examples of an svmlight file in blocks; `auto` does not shift the indices."""
    first_index = 0 if options.zero_based else 1
    # When the whole file is read, `rebase` may find that indices start at one: allow one index more.
    slack = 1 if options.whole and options.zero_based == "auto" else first_index
    limit = MAX_FEATURES if options.n_features is None else options.n_features + slack
    parser = BlockParser(Limits(-(2**62), 2**62, first_index, limit), keep_blank=False)
    width = options.n_features or 1
    for first, block in source.blocks():
        parsed = parser.parse(block, first, bad)
        if len(parsed.indices):
            width = max(width, int(parsed.indices.max()) + 1)
        rows = SparseRows(parsed.row_starts, parsed.indices, parsed.values, width)
        yield Examples(integer_labels(parsed.label_starts, parsed.labels), rows)
    yield _empty_examples(width)


def rebase(examples: Examples, n_features: int | None, name: str) -> Examples:
    """Shift the indices to start at 0 if none is 0, as scikit-learn guesses for a whole file."""
    rows = examples.rows
    assert isinstance(rows, SparseRows)
    counts_from_one = rows.nnz > 0 and int(rows.indices.min()) > 0
    highest = (int(rows.indices.max()) if rows.nnz else 0) - counts_from_one
    if n_features is not None and highest >= n_features:
        raise FormatError.at(name, None, f"has index {highest} (from 0), outside n_features={n_features}")
    width = n_features or highest + 1
    indices = rows.indices - np.uint32(1) if counts_from_one else rows.indices
    return Examples(examples.labels, SparseRows(rows.indptr, indices, rows.values, width))


def write_xmc(chunks: Iterable[Examples], target: IO[bytes]) -> None:
    """Write examples as XMC; the header needs the totals, so the rows go to a temporary file first."""
    n_rows, n_features, n_labels = 0, 1, 0
    with tempfile.TemporaryFile() as body:
        for chunk in chunks:
            rows = sparse_rows_to_write(chunk, "xmc")
            labels = _labels_to_write(chunk, "xmc", n_rows)
            if len(labels) and int(labels.min()) < 0:
                raise ValueError(f"The xmc format has no negative labels, got {int(labels.min())}.")
            n_rows += len(chunk)
            n_features = max(n_features, rows.n_features)
            n_labels = max(n_labels, chunk.labels.n_columns, int(labels.max(initial=-1)) + 1)
            features = pairs(rows)
            with temporary_files():
                body.writelines(b"%s %s\n" % (_joined(labels), row) for labels, row in zip(chunk.labels, features))
        target.write(b"%d %d %d\n" % (n_rows, n_features, n_labels))
        append(target, body)


def write_svmlight(chunks: Iterable[Examples], target: IO[bytes]) -> None:
    """Write examples as svmlight, with indices from zero.

    The first row has the first and the last column, as explicit zeros if need be, so that readers that guess
    the first index and the number of columns guess right.
    """
    n_rows = 0
    for chunk in chunks:
        rows = sparse_rows_to_write(chunk, "svmlight")
        _labels_to_write(chunk, "svmlight", n_rows)
        features = pairs(rows)
        if n_rows == 0 and len(chunk):
            features[0] = _with_corners(rows, features[0])
        # A line with neither label nor feature would be skipped.
        target.writelines(b"%s %s\n" % (_joined(labels), row or b"0:0") for labels, row in zip(chunk.labels, features))
        n_rows += len(chunk)


def _with_corners(rows: SparseRows, features: bytes) -> bytes:
    used = rows.indices[rows.indptr[0] : rows.indptr[1]]
    last = rows.n_features - 1
    parts = [b"0:0"] if not (len(used) and used[0] == 0) else []
    parts += [features] if features else []
    parts += [b"%d:0" % last] if last > 0 and not (len(used) and used[-1] == last) else []
    return b" ".join(parts)


def _joined(labels: list[int]) -> bytes:
    return ",".join(map(str, labels)).encode()


def _labels_to_write(chunk: Examples, name: str, row: int) -> NDArray[np.int64]:
    """Return the labels as integers; raises for strings."""
    labels = chunk.labels
    values = labels.values[labels.indptr[0] : labels.indptr[-1]]
    if len(values) and labels.dtype.kind in "UO":
        first = row + int(np.argmax(labels.counts > 0))
        raise ValueError(
            f"The {name} format supports integer labels only, got {quoted(values[0])} in row {first}. "
            "Number the labels, or write fasttext or jsonl."
        )
    return np.asarray(values, dtype=np.int64)
