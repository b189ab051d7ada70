"""Read NumPy archives: a zip of `.npy` arrays, never pickled objects.

| part | arrays |
|---|---|
| dense features | `X`, a matrix |
| sparse features | `data`, `indices`, `indptr`, `shape`: as `scipy.sparse.save_npz` writes a CSR matrix |
| text | `text_bytes` (UTF-8) and `text_offsets` |
| labels, one a row | `y`, a vector of integers or strings; or `y_bytes` (UTF-8) and `y_offsets` |
| labels, any number a row | the same, or `y_values` for `y`, and `y_indptr`; or `y` as an indicator matrix |

Arrays are read from the archive in chunks, compressed or not, so that memory use is bounded.
"""

from __future__ import annotations

import itertools
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from treemax.formats.errors import BadLines, FormatError, reason
from treemax.formats.examples import Examples, integer_labels, keep_where, no_labels, string_labels
from treemax.formats.options import Options
from treemax.formats.streams import LineReader, seekable
from treemax.inputs.labels import RaggedLabels, read_labels
from treemax.inputs.limits import MAX_FEATURES
from treemax.inputs.rows import SparseRows, ascends
from treemax.zip_layout import HEADER_MEMBER

_CHUNK_ROWS = 4096
_CHUNK_BYTES = 4 * 1024 * 1024  # size of a chunk of dense rows
# Exceptions of zipfile for an archive that is truncated, damaged or not an archive.
_ZIP_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    KeyError,
    MemoryError,
    OSError,
    ValueError,
    OverflowError,
    NotImplementedError,
    RuntimeError,
)
_INVALID_LABEL = "a label is neither UTF-8 text nor a 64-bit integer, or not 0 or 1 in an indicator matrix"
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_npz(source: LineReader, options: Options, bad: BadLines) -> Iterator[Examples]:
    """Yield the examples of an archive in chunks. Standard input is copied to a temporary file first."""
    with seekable(source) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                yield from _read_archive(_Archive(archive, source.name), options, bad)
        except FormatError:
            raise
        except _ZIP_ERRORS as error:
            raise FormatError.at(source.name, None, f"not a valid npz archive ({reason(error)})") from None


class _Archive:
    """The arrays of an archive by name."""

    def __init__(self, archive: zipfile.ZipFile, name: str) -> None:
        self._archive = archive
        self.name = name
        members = archive.namelist()
        if members[:1] == [HEADER_MEMBER]:
            raise self.error("is a Treemax model, not data")
        self.arrays = {member.removesuffix(".npy") for member in members if member.endswith(".npy")}

    def has(self, *names: str) -> bool:
        return self.arrays.issuperset(names)

    def error(self, what: str) -> FormatError:
        return FormatError.at(self.name, None, what)

    def open(self, name: str) -> _Column:
        return _Column(self, name, self._archive.open(name + ".npy"))


class _Column:
    """An array in an archive, read along its first axis."""

    def __init__(self, archive: _Archive, name: str, stream: IO[bytes]) -> None:
        self._stream = stream
        self.archive = archive
        self.name = name
        try:
            version = npy.read_magic(stream)
            self.shape, fortran, self.dtype = _HEADERS[version](stream)
        except Exception as error:  # NumPy evaluates the header as Python, which may raise anything
            raise archive.error(f"array {name} has no readable header ({reason(error)})") from None
        if self.dtype.hasobject or self.dtype.names:
            raise archive.error(f"array {name} holds Python objects or records, got dtype {self.dtype}")
        self._whole = self._transposed() if fortran and len(self.shape) > 1 else None
        self._at = 0

    def __len__(self) -> int:
        return int(self.shape[0]) if self.shape else 0

    def take(self, count: int) -> NDArray[Any]:
        """Read the next `count` entries."""
        if self._whole is not None:
            self._at += count
            return self._whole[self._at - count : self._at]
        return self._values(count * _product(self.shape[1:])).reshape(count, *self.shape[1:])

    def scalar(self) -> NDArray[Any]:
        """Read a zero-dimensional array."""
        return self._values(1)[0]

    def check(self, kinds: str, dimensions: int, what: str) -> _Column:
        """Raise if the array has another dtype kind or number of dimensions."""
        if self.dtype.kind not in kinds or len(self.shape) != dimensions:
            raise self.archive.error(f"array {self.name} should be {what}, got {self.dtype} of shape {self.shape}")
        return self

    def _values(self, count: int) -> NDArray[Any]:
        n_bytes = count * self.dtype.itemsize
        data = self._stream.read(n_bytes)
        if len(data) < n_bytes:
            raise self.archive.error(f"array {self.name} is shorter than its shape {self.shape}")
        return np.frombuffer(data, dtype=self.dtype) if n_bytes else np.zeros(count, dtype=self.dtype)

    def _transposed(self) -> NDArray[Any]:
        """Read a Fortran-ordered array as a whole: its rows are not contiguous."""
        return self._values(_product(self.shape)).reshape(self.shape, order="F")


def _product(shape: tuple[int, ...]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


class _Starts:
    """The `indptr` of ragged rows in an array of `total` entries."""

    def __init__(self, column: _Column, total: int) -> None:
        self._column = column.check("iu", 1, "a vector of positions")
        if not len(column):
            raise column.archive.error(f"array {column.name} is empty; it needs one entry more than rows")
        self._total = total
        self._last = column.take(1).astype(np.int64)
        if self._last[0] != 0:
            raise column.archive.error(f"array {column.name} should begin with 0, got {self._last[0]}")

    def __len__(self) -> int:
        return len(self._column) - 1

    def take(self, count: int) -> NDArray[np.int64]:
        """Read the `indptr` of the next `count` rows, starting at 0."""
        starts = np.concatenate([self._last, self._column.take(count).astype(np.int64)])
        if not ascends(starts) or starts[-1] > self._total:
            raise self._column.archive.error(
                f"array {self._column.name} must be non-decreasing and at most {self._total}"
            )
        self._last = starts[-1:]
        return starts - starts[0]


class _Dense:
    """Features as a matrix `X`."""

    def __init__(self, archive: _Archive, options: Options) -> None:
        self._column = archive.open("X").check("biuf", 2, "a matrix of numbers")
        self.width = int(self._column.shape[1])
        if not 1 <= self.width <= MAX_FEATURES or options.n_features not in (None, self.width):
            expected = options.n_features or f"1 to {MAX_FEATURES:,}"
            raise archive.error(f"array X has {self.width} columns, expected {expected}")
        self.step = max(1, min(65536, _CHUNK_BYTES // (self.width * 8)))

    def __len__(self) -> int:
        return len(self._column)

    def take(self, count: int) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        with np.errstate(over="ignore"):
            rows = np.ascontiguousarray(self._column.take(count), dtype=np.float32)
        return rows, np.asarray(np.isfinite(rows).all(axis=1))


class _Sparse:
    """Features as the arrays of a CSR matrix."""

    step = _CHUNK_ROWS

    def __init__(self, archive: _Archive, options: Options) -> None:
        self._values = archive.open("data").check("biuf", 1, "a vector of numbers")
        self._indices = archive.open("indices").check("iu", 1, "a vector of column indices")
        shape = archive.open("shape").check("iu", 1, "the shape of a matrix")
        self._starts = _Starts(archive.open("indptr"), min(len(self._values), len(self._indices)))
        _check_format(archive)
        n_rows, self.width = map(int, shape.take(2)) if len(shape) == 2 else (-1, 0)
        if n_rows != len(self._starts) or not 1 <= self.width <= MAX_FEATURES:
            raise archive.error(f"array shape does not fit the matrix: its indptr has {len(self._starts)} rows")
        self._columns = self.width
        if options.n_features is not None:
            if options.n_features < self.width:
                raise archive.error(f"has {self.width} columns, more than n_features={options.n_features}")
            self.width = options.n_features

    def __len__(self) -> int:
        return len(self._starts)

    def take(self, count: int) -> tuple[SparseRows, NDArray[np.bool_]]:
        starts = self._starts.take(count)
        indices = self._indices.take(int(starts[-1])).astype(np.int64)
        with np.errstate(over="ignore"):
            values = self._values.take(int(starts[-1])).astype(np.float32)
        outside = _rows_with((indices < 0) | (indices >= self._columns), starts)
        rows = _canonical(SparseRows(starts, indices.astype(np.uint32), values, self.width))
        return rows, ~(outside | _rows_with(~np.isfinite(rows.values), rows.indptr))


def _rows_with(marked: NDArray[np.bool_], starts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which rows have a marked entry."""
    before = np.concatenate([[0], np.cumsum(marked)])
    return before[starts[1:]] > before[starts[:-1]]


def _check_format(archive: _Archive) -> None:
    if archive.has("format"):
        found = archive.open("format")
        written = found.check("SU", 0, "the name of a format").scalar().astype(str)
        if written != "csr":
            raise archive.error(f"the sparse matrix should be in CSR format, got {str(written)!r:.20}")


def _canonical(rows: SparseRows) -> SparseRows:
    """Sort the indices of each row and sum duplicates."""
    row = np.repeat(np.arange(len(rows)), np.diff(rows.indptr))
    in_order = (row[1:] != row[:-1]) | (rows.indices[1:] > rows.indices[:-1])
    if in_order.all():
        return rows
    order = np.lexsort((rows.indices, row))
    row, indices, values = row[order], rows.indices[order], rows.values[order]
    fresh = np.ones(len(row), dtype=bool)
    fresh[1:] = (row[1:] != row[:-1]) | (indices[1:] != indices[:-1])
    with np.errstate(over="ignore"):
        sums = np.add.reduceat(values, np.flatnonzero(fresh))
    starts = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(np.bincount(row[fresh], minlength=len(rows)), out=starts[1:])
    return SparseRows(starts, indices[fresh], sums, rows.n_features)


class _Strings:
    """Strings as UTF-8 bytes and offsets."""

    step = _CHUNK_ROWS

    def __init__(self, archive: _Archive, name: str) -> None:
        self._bytes = archive.open(f"{name}_bytes").check("u", 1, "a vector of bytes (uint8)")
        self._offsets = _Starts(archive.open(f"{name}_offsets"), len(self._bytes))

    def __len__(self) -> int:
        return len(self._offsets)

    def take(self, count: int) -> tuple[list[str], NDArray[np.bool_]]:
        starts = self._offsets.take(count).tolist()
        data = self._bytes.take(starts[-1]).astype(np.uint8, copy=False).tobytes()
        strings, good = [], np.ones(count, dtype=bool)
        for place, (first, last) in enumerate(itertools.pairwise(starts)):
            try:
                strings.append(data[first:last].decode("utf-8"))
            except UnicodeDecodeError:
                strings.append("")
                good[place] = False
        return strings, good


class _LabelVector:
    """Labels as a vector, one per row, or as an indicator matrix."""

    def __init__(self, archive: _Archive, name: str) -> None:
        self._column = archive.open(name)

    def __len__(self) -> int:
        return len(self._column)

    def take(self, count: int) -> tuple[RaggedLabels, NDArray[np.bool_]]:
        values = self._column.take(count)
        if values.dtype.kind == "U":
            return string_labels([[label] for label in values.tolist()]), np.ones(count, dtype=bool)
        good = _are_labels(values)
        if not good.all():
            values = np.where(good[:, None] if values.ndim == 2 else good, values, 0).astype(values.dtype)
        return _checked_labels(values, self._column), good


class _LabelStrings:
    """Labels as strings, one per row."""

    def __init__(self, archive: _Archive) -> None:
        self._strings = _Strings(archive, "y")

    def __len__(self) -> int:
        return len(self._strings)

    def take(self, count: int) -> tuple[RaggedLabels, NDArray[np.bool_]]:
        strings, good = self._strings.take(count)
        return string_labels([[label] for label in strings]), good


class _LabelLists:
    """Labels as strings or integers, any number per row."""

    def __init__(self, archive: _Archive, vector: _LabelVector | _LabelStrings) -> None:
        self._vector = vector
        self._starts = _Starts(archive.open("y_indptr"), len(vector))

    def __len__(self) -> int:
        return len(self._starts)

    def take(self, count: int) -> tuple[RaggedLabels, NDArray[np.bool_]]:
        starts = self._starts.take(count)
        flat, good = self._vector.take(int(starts[-1]))
        return RaggedLabels(starts, flat.values, flat.dtype, "lists"), ~_rows_with(~good, starts)


class _NoLabels:
    """An archive of features only."""

    def __init__(self, n_rows: int) -> None:
        self._n_rows = n_rows

    def __len__(self) -> int:
        return self._n_rows

    def take(self, count: int) -> tuple[RaggedLabels, NDArray[np.bool_]]:
        return no_labels(count), np.ones(count, dtype=bool)


def _are_labels(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which entries are 64-bit integers, or which rows of a matrix are all zeros and ones."""
    if values.dtype.kind not in "biuf" or values.ndim not in (1, 2):
        return np.ones(len(values), dtype=bool)  # `read_labels` raises for these
    if values.ndim == 2 and values.shape[1] != 1:
        return np.asarray(((values == 0) | (values == 1)).all(axis=1))
    values = values.reshape(len(values))
    if values.dtype.kind == "f":
        return np.isfinite(values) & (np.abs(values) < 2**53) & (np.floor(values) == values)
    return np.asarray(values <= np.iinfo(np.int64).max)


def _checked_labels(values: NDArray[Any], column: _Column) -> RaggedLabels:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a matrix of one column
            labels = read_labels(values, column.name)
    except ValueError as error:
        raise column.archive.error(str(error)) from None
    return integer_labels(labels.indptr, labels.values.astype(np.int64), labels.n_columns)


def _labels_of(archive: _Archive, n_rows: int) -> Any:
    """Return the reader for the form of the labels."""
    name = next((name for name in ("y", "y_values") if archive.has(name)), None)
    labels: Any
    if name is not None:
        labels = _LabelVector(archive, name)
    elif archive.has("y_bytes", "y_offsets"):
        labels = _LabelStrings(archive)
    else:
        return _NoLabels(n_rows)
    if archive.has("y_indptr"):
        labels = _LabelLists(archive, labels)
    if len(labels) != n_rows:
        raise archive.error(f"has labels for {len(labels)} rows but features for {n_rows}")
    return labels


def _features_of(archive: _Archive, options: Options) -> Any:
    """Return the reader for the form of the features."""
    if archive.has("X"):
        return _Dense(archive, options)
    if archive.has("data", "indices", "indptr", "shape"):
        return _Sparse(archive, options)
    if archive.has("text_bytes", "text_offsets"):
        return _Strings(archive, "text")
    raise archive.error(
        "has no features: expected an array X, or data, indices, indptr and shape, or text_bytes and "
        f"text_offsets; got {', '.join(sorted(archive.arrays)[:10]) or 'no array'}"
    )


def _read_archive(archive: _Archive, options: Options, bad: BadLines) -> Iterator[Examples]:
    features = _features_of(archive, options)
    labels = _labels_of(archive, len(features))
    for first in range(0, max(1, len(features)), features.step):
        count = min(features.step, len(features) - first)
        rows, good = features.take(count)
        row_labels, labels_good = labels.take(count)
        for row in np.flatnonzero(~(good & labels_good)).tolist():
            bad.report(None, f"row {first + row}: {_invalid_row(rows) if not good[row] else _INVALID_LABEL}")
        good &= labels_good
        yield keep_where(_examples(rows, row_labels), good)


def _examples(rows: Any, labels: RaggedLabels) -> Examples:
    return Examples(labels, texts=rows) if isinstance(rows, list) else Examples(labels, rows)


def _invalid_row(rows: Any) -> str:
    if isinstance(rows, list):
        return "the text is not UTF-8"
    return "NaN, infinity, too large for float32, or a column out of range"
