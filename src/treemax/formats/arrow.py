"""Read and write Parquet and Arrow files, Arrow tables and data sets. `treemax.inputs.arrow_columns` defines the columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import IO, Any

import numpy as np

from treemax.extras import import_extra
from treemax.formats.errors import BadLines, FormatError, reason
from treemax.formats.examples import Examples, keep_where, rechunk
from treemax.formats.options import Options
from treemax.formats.streams import LineReader, seekable
from treemax.inputs.arrow_columns import RowErrors, labels_of, layout_of, rows_of, texts_of
from treemax.inputs.rows import SparseRows

BATCH_ROWS = 4096
GROUP_ROWS = 16_384  # per row group written
_LOOK_AHEAD = 16  # chunks buffered until a label shows whether labels are strings or integers


def read_parquet(source: LineReader, options: Options, bad: BadLines) -> Iterator[Examples]:
    """Yield the examples of a Parquet file in batches."""
    import_extra("pyarrow", "Parquet", "arrow")
    from pyarrow import parquet

    with seekable(source) as file, _reading_errors("Parquet file", source.name):
        opened = parquet.ParquetFile(file, pre_buffer=False)
        wanted = _layout(opened.schema_arrow, source.name).wanted
        batches = opened.iter_batches(BATCH_ROWS, columns=wanted, use_threads=False)
        yield from _examples(opened.schema_arrow, batches, options, bad)


def read_arrow(source: LineReader, options: Options, bad: BadLines) -> Iterator[Examples]:
    """Yield the examples of an Arrow (Feather) file or an Arrow IPC stream in batches."""
    import_extra("pyarrow", "Arrow", "arrow")
    from pyarrow import ipc

    with seekable(source) as file, _reading_errors("Arrow file", source.name):
        whole = file.read(6) == b"ARROW1"
        file.seek(0)
        if whole:
            opened = ipc.open_file(file)
            batches = map(opened.get_batch, range(opened.num_record_batches))
        else:
            opened = batches = ipc.open_stream(file)
        yield from _examples(opened.schema, _split_batches(batches), options, bad)


@contextmanager
def _reading_errors(what: str, name: str) -> Iterator[None]:
    """Raise errors of pyarrow as FormatError with the name of the file."""
    import pyarrow

    try:
        yield
    except FormatError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError, MemoryError, TypeError, LookupError) as error:
        raise FormatError.at(name, None, f"not a valid {what} ({reason(error)})") from None


def _layout(schema: Any, name: str) -> Any:
    try:
        return layout_of(schema)
    except ValueError as error:
        raise FormatError.at(name, None, str(error)) from None


def _examples(schema: Any, batches: Iterable[Any], options: Options, bad: BadLines) -> Iterator[Examples]:
    """Convert batches to examples; invalid rows are reported and dropped."""
    layout = _layout(schema, bad.name)
    n_read, width, dense_width = 0, options.n_features or 1, options.n_features
    for batch in batches:
        _validate(batch)
        errors = RowErrors()
        try:
            labels = labels_of(batch, layout, errors)
            if layout.kind == "text":
                examples = Examples(labels, texts=texts_of(batch, layout, errors))
            else:
                examples = Examples(labels, rows_of(batch, layout, errors, dense_width))
        except ValueError as error:
            raise FormatError.at(bad.name, None, f"rows {n_read} and following: {error}") from None
        for row in sorted(errors.messages):
            bad.report(None, f"row {n_read + row}: {errors.messages[row]}")
        if errors.messages:
            keep = np.ones(len(examples), dtype=bool)
            keep[list(errors.messages)] = False
            examples = keep_where(examples, keep)
        if isinstance(examples.rows, np.ndarray) and len(examples):
            dense_width = examples.rows.shape[1]
        if isinstance(examples.rows, SparseRows):
            width = max(width, examples.rows.n_features)
            rows = SparseRows(examples.rows.indptr, examples.rows.indices, examples.rows.values, width)
            examples = Examples(examples.labels, rows)
        n_read += batch.num_rows
        yield examples
    if n_read == 0:
        yield from _empty_examples(schema, options, bad)


def _validate(batch: Any) -> None:
    """Raise for a batch with invalid offsets. Invalid UTF-8 is reported later, row by row."""
    import pyarrow

    try:
        batch.validate(full=True)
    except pyarrow.ArrowInvalid as error:
        if "UTF8" not in str(error):
            raise
        for column in batch.columns:
            _as_bytes(column).validate(full=True)


def _as_bytes(column: Any) -> Any:
    """View strings, or lists of strings, as binary, without a copy."""
    import pyarrow

    kind, raw = column.type, {"string": pyarrow.binary(), "large_string": pyarrow.large_binary()}
    if str(kind) in raw:
        return column.view(raw[str(kind)])
    if pyarrow.types.is_list(kind) and str(kind.value_type) in raw:
        return column.view(pyarrow.list_(raw[str(kind.value_type)]))
    return column


def _empty_examples(schema: Any, options: Options, bad: BadLines) -> Iterator[Examples]:
    import pyarrow

    layout = _layout(schema, bad.name)
    batch = pyarrow.RecordBatch.from_pylist([], schema=schema)
    labels = labels_of(batch, layout, RowErrors())
    if layout.kind == "text":
        yield Examples(labels, texts=[])
    else:
        yield Examples(labels, rows_of(batch, layout, RowErrors()))


def _split_batches(batches: Iterable[Any]) -> Iterator[Any]:
    """Split batches into views of at most BATCH_ROWS rows: a file may be one batch."""
    for batch in batches:
        for start in range(0, batch.num_rows, BATCH_ROWS):
            yield batch.slice(start, BATCH_ROWS)


# --- tables and data sets in memory --------------------------------------------------------------------


class Tables:
    """Reader of an Arrow table, record batches, or a data set of pyarrow or Hugging Face."""

    def __init__(self, given: Any) -> None:
        self.name = f"the {type(given).__name__}"
        self.size: int | None = None
        self.position = 0
        self._given = given

    def close(self) -> None:
        """Do nothing: there is no file to close."""

    def read(self, options: Options, bad: BadLines) -> Iterator[Examples]:
        """Yield the examples in batches."""
        import pyarrow

        batches = _batches_of(self._given)
        first = next(batches, None)
        if first is None:
            schema = getattr(self._given, "schema", None)
            if not isinstance(schema, pyarrow.Schema):
                raise FormatError.at(self.name, None, "has no examples")
            yield from _examples(schema, [], options, bad)
            return
        yield from _examples(first.schema, _split_batches(chain([first], batches)), options, bad)


def is_tabular(thing: Any) -> bool:
    """Return whether `thing` yields Arrow batches: pyarrow, Hugging Face, or Arrow's PyCapsule protocol."""
    return _batch_iterator(thing) is not None or _is_split(thing)


def _is_split(thing: Any) -> bool:
    return (
        isinstance(thing, Mapping) and bool(thing) and all(_batch_iterator(part) is not None for part in thing.values())
    )


def _batch_iterator(thing: Any) -> Callable[[Any], Iterator[Any]] | None:
    """Return the function that iterates over the batches of `thing`, or None."""
    if hasattr(thing, "__arrow_c_stream__"):  # tables, readers, polars and pandas frames
        return _from_stream
    if hasattr(thing, "__arrow_c_array__") and hasattr(thing, "schema"):
        return lambda batch: iter([batch])
    if hasattr(thing, "to_batches") and hasattr(thing, "schema"):  # a pyarrow data set
        return lambda dataset: iter(dataset.to_batches(batch_size=BATCH_ROWS))
    if hasattr(thing, "with_format") and hasattr(thing, "iter"):  # a Hugging Face data set, loaded or streamed
        return _from_hugging_face
    return None


def _batches_of(thing: Any) -> Iterator[Any]:
    if _is_split(thing):
        raise ValueError(
            f"The data has the splits {', '.join(thing)}: choose one, such as data[{next(iter(thing))!r}]."
        )
    import_extra("pyarrow", type(thing).__name__, "arrow")
    found = _batch_iterator(thing)
    assert found is not None
    return found(thing)


def _from_stream(thing: Any) -> Iterator[Any]:
    import pyarrow

    yield from pyarrow.RecordBatchReader.from_stream(thing)


def _from_hugging_face(thing: Any) -> Iterator[Any]:
    import pyarrow

    for batch in thing.with_format("arrow").iter(batch_size=1000):
        table = pyarrow.table(dict(batch)) if isinstance(batch, Mapping) else batch
        yield from table.to_batches() if hasattr(table, "to_batches") else [table]


# --- writing -------------------------------------------------------------------------------------------


def write_parquet(chunks: Iterable[Examples], target: IO[bytes]) -> None:
    """Write the columns text, features (dense), or indices and values (sparse), and labels as lists."""
    import_extra("pyarrow", "Parquet", "arrow")
    from pyarrow import parquet

    _write(chunks, lambda schema: parquet.ParquetWriter(target, schema))


def write_arrow(chunks: Iterable[Examples], target: IO[bytes]) -> None:
    """Write the columns of `write_parquet` as an Arrow file."""
    import_extra("pyarrow", "Arrow", "arrow")
    from pyarrow import ipc

    _write(chunks, lambda schema: ipc.new_file(target, schema))


def _write(chunks: Iterable[Examples], new_writer: Callable[[Any], Any]) -> None:
    groups = rechunk(chunks, GROUP_ROWS)
    waiting: list[Examples] = []
    while len(waiting) < _LOOK_AHEAD and not (waiting and len(waiting[-1].labels.values)):
        group = next(groups, None)
        if group is None:
            break
        waiting.append(group)
    if not waiting:
        raise ValueError("There are no examples to write: without a row, the columns of the table are unknown.")
    schema = _schema(waiting[-1])
    with new_writer(schema) as writer:
        for group in chain(waiting, groups):
            writer.write_batch(_batch(group, schema))


def _schema(chunk: Examples) -> Any:
    import pyarrow as pa

    string = len(chunk.labels.values) and chunk.labels.values.dtype == object
    labels = ("labels", pa.list_(pa.string() if string else pa.int64()))
    if chunk.texts is not None:
        return pa.schema([("text", pa.string()), labels])
    if isinstance(chunk.rows, SparseRows):
        return pa.schema([("indices", pa.list_(pa.uint32())), ("values", pa.list_(pa.float32())), labels])
    assert chunk.rows is not None
    return pa.schema([("features", pa.list_(pa.float32(), chunk.rows.shape[1])), labels])


def _batch(chunk: Examples, schema: Any) -> Any:
    import pyarrow as pa

    lists = chunk.labels
    kind = schema.field("labels").type.value_type
    if len(lists.values) and (lists.values.dtype == object) != (kind == pa.string()):
        raise ValueError("The labels are strings in one part of the data and integers in another.")
    flat = lists.values[lists.indptr[0] : lists.indptr[-1]].tolist()
    labels = pa.ListArray.from_arrays((lists.indptr - lists.indptr[0]).astype("int32"), pa.array(flat, kind))
    if chunk.texts is not None:
        return pa.RecordBatch.from_arrays([pa.array(chunk.texts, pa.string()), labels], schema=schema)
    rows = chunk.rows
    if isinstance(rows, SparseRows):
        first, last = rows.indptr[0], rows.indptr[-1]
        starts = pa.array((rows.indptr - first).astype("int32"))
        parts = [pa.ListArray.from_arrays(starts, pa.array(part[first:last])) for part in (rows.indices, rows.values)]
        return pa.RecordBatch.from_arrays([*parts, labels], schema=schema)
    assert rows is not None
    dense = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1])
    return pa.RecordBatch.from_arrays([dense, labels], schema=schema)
