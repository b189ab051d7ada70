"""Convert Arrow columns to texts, features and labels.

Columns are recognised by name, as in JSON lines: `text`; or `features`, lists of numbers of the same length; or
`indices` and `values`, lists of columns and their values (ones without `values`); or else all numeric columns.
`label` is one label per row, `labels` a list of labels. pyarrow is imported on demand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from treemax.inputs.labels import RaggedLabels
from treemax.inputs.limits import MAX_FEATURES
from treemax.inputs.rows import Rows, SparseRows, as_rows

EXPECTED = "expected text, features, indices with values, or columns of numbers"
_LABEL_COLUMNS = ("labels", "label")


@dataclass(frozen=True)
class Layout:
    """Roles of the columns of a table."""

    kind: str  # "text", "dense", "sparse" or "numbers"
    columns: tuple[str, ...]
    labels: str | None

    @property
    def wanted(self) -> list[str]:
        return [*self.columns, *([] if self.labels is None else [self.labels])]


def layout_of(schema: Any) -> Layout:
    """Return the layout of a schema; raises ValueError if no column holds features."""
    names = list(schema.names)
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(f"two columns are called {twice[0]!r}")
    labels = next((name for name in _LABEL_COLUMNS if name in names), None)
    given = [name for name in ("text", "features", "indices") if name in names]
    if len(given) > 1:
        raise ValueError(f"there are columns {' and '.join(given)}; expected one of them")
    if given:
        columns = (given[0], "values") if given == ["indices"] and "values" in names else (given[0],)
        kind = {"text": "text", "features": "dense", "indices": "sparse"}[given[0]]
        return Layout(kind, columns, labels)
    numbers = tuple(field.name for field in schema if _is_number(field.type) and field.name not in _LABEL_COLUMNS)
    if not numbers:
        shown = ", ".join(f"{field.name} ({field.type})" for field in schema)
        raise ValueError(f"no column holds features: {EXPECTED}, got {shown or 'no columns'}")
    return Layout("numbers", numbers, labels)


class RowErrors:
    """The first error of each invalid row."""

    def __init__(self) -> None:
        self.messages: dict[int, str] = {}

    def add(self, rows: NDArray[Any], what: str) -> None:
        for row in rows.tolist():
            self.messages.setdefault(row, what)


def texts_of(batch: Any, layout: Layout, errors: RowErrors) -> list[str]:
    """Return the texts of a batch; a missing text is "" and an error."""
    column = _plain(batch.column(layout.columns[0]))
    if not _is_string(column.type):
        raise ValueError(f"the column text does not hold strings, got {column.type}")
    errors.add(_nulls(column), "the text is missing (null)")
    return _strings(column, np.arange(len(column)), errors)


def rows_of(batch: Any, layout: Layout, errors: RowErrors, n_features: int | None = None) -> Rows:
    """Return the features of a batch; those of rows with an error are arbitrary."""
    if layout.kind == "sparse":
        return _sparse_rows(batch, layout, errors, n_features)
    if layout.kind == "dense":
        matrix = _listed(batch, errors, n_features)
    else:
        matrix = _columns(batch, layout)
        if n_features is not None and matrix.shape[1] != n_features and len(matrix):
            raise ValueError(f"rows have {matrix.shape[1]} numbers, expected {n_features}")
    errors.add(np.flatnonzero(~np.isfinite(matrix).all(axis=1)), "a feature is not a finite number")
    return matrix


def labels_of(batch: Any, layout: Layout, errors: RowErrors) -> RaggedLabels:
    """Return the labels of a batch; rows without labels or with a null label have none."""
    n_rows = batch.num_rows
    if layout.labels is None:
        return _ragged(np.zeros(n_rows, dtype=np.int64), np.empty(0, dtype=np.int64))
    column = _plain(batch.column(layout.labels))
    if _is_list(column.type):
        counts, flat = _lengths(column), _plain(column.flatten())
    elif layout.labels == "labels" and not _is_null(column.type):
        raise ValueError(
            f"the column labels does not hold lists, got {column.type}; use the column label for a single label"
        )
    else:
        present = np.asarray(column.is_valid())
        counts, flat = present.astype(np.int64), column.drop_null()
    row_of = np.repeat(np.arange(n_rows), counts)
    errors.add(row_of[_nulls(flat)], "a label is missing (null)")
    return _ragged(counts, _label_values(flat, row_of, errors))


def _ragged(counts: NDArray[np.int64], values: NDArray[Any]) -> RaggedLabels:
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    dtype = np.dtype(str) if values.dtype == object else np.dtype(np.int64)
    return RaggedLabels(indptr, values, dtype, "lists")


def _label_values(flat: Any, row_of: NDArray[np.int64], errors: RowErrors) -> NDArray[Any]:
    """Return labels as strings, or as 64-bit integers if they are numbers."""
    from pyarrow import types

    if _is_null(flat.type):
        return np.zeros(len(flat), dtype=np.int64)
    if _is_string(flat.type):
        return np.array([*_strings(flat, row_of, errors), None], dtype=object)[:-1]  # strings, one by one
    if not _is_number(flat.type) or types.is_boolean(flat.type):
        raise ValueError(f"labels are neither strings nor integers, got {flat.type}")
    values = flat.fill_null(0).to_numpy(zero_copy_only=False)
    if values.dtype.kind == "f":
        whole = np.isfinite(values) & (np.floor(values) == values) & (np.abs(values) < 2**53)
    else:
        whole = values <= np.iinfo(np.int64).max
    errors.add(row_of[~whole], f"the label is neither a string nor a 64-bit integer, got a column of {flat.type}")
    return np.where(whole, values, 0).astype(np.int64)


def _strings(column: Any, row_of: NDArray[np.int64], errors: RowErrors) -> list[str]:
    """Return the strings of a column; a null is "", and invalid UTF-8 is "" and an error."""
    column = column.fill_null("")
    try:
        return column.to_pylist()
    except UnicodeDecodeError:
        pass
    found: list[str] = []
    for row, raw in zip(row_of, column.cast("large_binary").to_pylist()):
        try:
            found.append(raw.decode("utf-8"))
        except UnicodeDecodeError:
            errors.add(np.array([row]), "a string is not UTF-8")
            found.append("")
    return found


def _columns(batch: Any, layout: Layout) -> NDArray[np.float32]:
    matrix = np.empty((batch.num_rows, len(layout.columns)), dtype=np.float32)
    for place, name in enumerate(layout.columns):
        matrix[:, place] = _floats(_plain(batch.column(name)), name)
    return matrix


def _listed(batch: Any, errors: RowErrors, n_features: int | None) -> NDArray[np.float32]:
    """Convert lists of numbers to a matrix with `n_features` columns, by default the length of the first list."""
    column = _list_column(batch, "features")
    lengths = _lengths(column)
    present = np.asarray(column.is_valid())
    errors.add(np.flatnonzero(~present), "the features are missing (null)")
    fixed = getattr(column.type, "list_size", -1)
    first = fixed if fixed >= 0 else int(next(iter(lengths[present & (lengths > 0)]), 0))
    width = n_features or first or 1
    for length in np.unique(lengths[present & (lengths != width)]).tolist():
        errors.add(
            np.flatnonzero(present & (lengths == length)),
            f"the list of features has {length} numbers, expected {width}; use the columns indices and values for sparse rows",
        )
    usable = present & (lengths == width)
    flat = _floats(_plain(column.flatten()), "features")
    matrix = np.zeros((batch.num_rows, width), dtype=np.float32)
    matrix[usable] = flat[np.repeat(usable, lengths)].reshape(-1, width)
    return matrix


def _sparse_rows(batch: Any, layout: Layout, errors: RowErrors, n_features: int | None) -> SparseRows:
    from pyarrow import types

    column = _list_column(batch, "indices")
    errors.add(_nulls(column), "the indices are missing (null)")
    lengths = _lengths(column)
    row_of = np.repeat(np.arange(batch.num_rows), lengths)
    flat = _plain(column.flatten())
    if not types.is_integer(flat.type) and len(flat):
        raise ValueError(f"the column indices does not hold lists of integers, got {column.type}")
    limit = n_features or MAX_FEATURES
    errors.add(row_of[_nulls(flat)], "an index is missing (null)")
    indices = flat.fill_null(0).to_numpy(zero_copy_only=False)
    outside = (indices < 0) | (indices >= limit)
    errors.add(row_of[outside], f"an index is out of range (0 to {limit - 1})")
    indices = np.where(outside, 0, indices).astype(np.int64)
    values = _values_beside(batch, layout, lengths, row_of, errors)
    width = n_features or int(indices.max(initial=0)) + 1
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    return _sorted_rows(indptr, indices, values, width, errors)


def _values_beside(
    batch: Any, layout: Layout, lengths: NDArray[np.int64], row_of: NDArray[np.int64], errors: RowErrors
) -> NDArray[np.float32]:
    """Return the values of the indices; zeros for rows with another number of values."""
    if "values" not in layout.columns:
        return np.ones(len(row_of), dtype=np.float32)
    column = _list_column(batch, "values")
    n_values = _lengths(column)
    uneven = n_values != lengths
    errors.add(np.flatnonzero(uneven), "the numbers of values and of indices differ")
    flat = _floats(_plain(column.flatten()), "values")
    values = np.zeros(len(row_of), dtype=np.float32)
    values[~uneven[row_of]] = flat[np.repeat(~uneven, n_values)]
    errors.add(row_of[~np.isfinite(values)], "a feature is not a finite number")
    return np.where(np.isfinite(values), values, 0).astype(np.float32)


def _sorted_rows(
    indptr: NDArray[np.int64], indices: NDArray[np.int64], values: NDArray[np.float32], width: int, errors: RowErrors
) -> SparseRows:
    """Sort the indices of each row and sum the values of duplicates."""
    steps = np.diff(indices, prepend=-1)
    steps[indptr[:-1][np.diff(indptr) > 0]] = 1
    if (steps <= 0).any():
        matrix = sp.csr_matrix((values, indices, indptr), shape=(len(indptr) - 1, width))
        with np.errstate(over="ignore"):
            matrix.sum_duplicates()
        indptr, indices, values = matrix.indptr.astype(np.int64), matrix.indices, matrix.data
        row_of = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
        errors.add(row_of[~np.isfinite(values)], "the sum of the values of one index overflows float32")
    return SparseRows(indptr, indices.astype(np.uint32), values, width)


def table_rows(table: Any, name: str = "X") -> Rows:
    """Convert an Arrow table, record batch or array to features; raises for invalid rows."""
    import pyarrow as pa

    if isinstance(table, pa.Array | pa.ChunkedArray):
        table = pa.table({"text" if _is_string(table.type) else "features": table})
    batch = _one_batch(table)
    layout = layout_of(batch.schema)
    if layout.kind == "text":
        raise ValueError(f"Input {name} holds texts: use treemax.TextModel(), which turns texts into features.")
    errors = RowErrors()
    rows = rows_of(batch, layout, errors)
    for row in sorted(errors.messages):
        raise ValueError(f"Input {name}, row {row}: {errors.messages[row]}.")
    return rows if isinstance(rows, SparseRows) else as_rows(rows, name)


def _one_batch(table: Any) -> Any:
    """Return a table as one record batch."""
    import pyarrow as pa

    if isinstance(table, pa.RecordBatch):
        return table
    columns = [column.combine_chunks() if column.num_chunks != 1 else column.chunk(0) for column in table.columns]
    return pa.RecordBatch.from_arrays(columns, names=table.column_names)


def _plain(column: Any) -> Any:
    """Return the column without dictionary encoding and chunks."""
    if hasattr(column, "combine_chunks"):
        column = column.combine_chunks()
    return column.dictionary_decode() if hasattr(column, "dictionary_decode") else column


def _list_column(batch: Any, name: str) -> Any:
    column = _plain(batch.column(name))
    if not _is_list(column.type):
        raise ValueError(f"the column {name} does not hold lists of numbers, got {column.type}")
    return column


def _lengths(column: Any) -> NDArray[np.int64]:
    """Return the length of each list, 0 for null."""
    import pyarrow.compute as pc

    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    lengths[_nulls(column)] = 0
    return lengths


def _floats(column: Any, name: str) -> NDArray[np.float32]:
    """Convert numbers to float32; null becomes NaN."""
    from pyarrow import types

    if not _is_number(column.type) and not _is_null(column.type):
        raise ValueError(f"the column {name} does not hold numbers, got {column.type}")
    if not types.is_floating(column.type):
        column = column.cast("float64", safe=False)
    with np.errstate(over="ignore"):
        return column.to_numpy(zero_copy_only=False).astype(np.float32)


def _nulls(column: Any) -> NDArray[np.int64]:
    return np.flatnonzero(np.asarray(column.is_null())) if column.null_count else np.empty(0, dtype=np.int64)


def _is_string(kind: Any) -> bool:
    from pyarrow import types

    if types.is_dictionary(kind):
        return _is_string(kind.value_type)
    return types.is_string(kind) or types.is_large_string(kind) or str(kind) == "string_view"


def _is_number(kind: Any) -> bool:
    from pyarrow import types

    return types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)


def _is_list(kind: Any) -> bool:
    from pyarrow import types

    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def _is_null(kind: Any) -> bool:
    from pyarrow import types

    return types.is_null(kind)
