"""Validation and conversion of X into one of the two forms of the kernels.

Estimators work with a C-contiguous float32 matrix or `SparseRows` (float32 values, uint32 column indices, rows
sorted and without duplicates). Any other X is converted here; errors name the row and column.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.utils import check_array

from treemax.inputs.limits import MAX_FEATURES
from treemax.inputs.scipy_sparse import csr_parts
from treemax.kernels import sparse_rows, validation

LONGEST_QUOTED = 200  # characters of another library's message that ours repeats
SMALLEST = 1e-10  # lower bound of the largest value of training rows
_INT32, _FLOAT32 = np.dtype(np.int32), np.dtype(np.float32)


@dataclass(eq=False)  # not frozen: that would double the time to create one
class SparseRows:
    """Rows of a sparse matrix: row i holds `indices[indptr[i]:indptr[i+1]]` and the same part of `values`.

    `indptr` need not start at zero, so that a slice of rows is a view and copies nothing.

    >>> rows = as_rows(sp.csr_matrix([[0, 2.0], [1.0, 0], [0, 0]]))
    >>> rows.shape, rows[1:].nnz
    ((3, 2), 1)
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.uint32]
    values: NDArray[np.float32]
    n_features: int
    numbers: Any = None  # `FeatureNumbers`, if the indices are numbers instead of ids
    lowest_features: int | None = None  # every row has a value that is not zero of a feature below this; None: unknown

    def __post_init__(self) -> None:
        if self.indptr.flags.writeable:
            self.indptr = read_only(self.indptr)
        if self.indices.flags.writeable:
            self.indices = read_only(self.indices)
        if self.values.flags.writeable:
            self.values = read_only(self.values)

    def __len__(self) -> int:
        return len(self.indptr) - 1

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), self.n_features

    @property
    def arrays(self) -> sparse_rows.Rows:
        """The arrays as kernels take them."""
        return sparse_rows.Rows(self.indptr, self.indices, self.values)

    @property
    def nnz(self) -> int:
        return int(self.indptr[-1] - self.indptr[0])

    def __getitem__(self, rows: slice) -> SparseRows:
        start, stop, step = rows.indices(len(self))
        if step != 1:
            raise ValueError("SparseRows can be sliced in steps of one only")
        indptr = self.indptr[start : max(start, stop) + 1]
        return SparseRows(indptr, self.indices, self.values, self.n_features, lowest_features=self.lowest_features)

    def to_scipy(self) -> sp.csr_matrix:
        """Return the rows as a SciPy CSR matrix, which shares the values and, below 2^31 columns, the indices."""
        first, last = self.indptr[0], self.indptr[-1]
        indices = self.indices[first:last]
        signed = indices.view(np.int32) if self.n_features <= 2**31 else indices.astype(np.int64)
        return sp.csr_matrix((self.values[first:last], signed, self.indptr - first), shape=self.shape)


def take_rows(rows: Rows, indices: NDArray[Any]) -> Rows:
    """Return a copy of some rows."""
    if not isinstance(rows, SparseRows):
        return rows[indices]
    chosen = rows.to_scipy()[indices]
    return SparseRows(chosen.indptr.astype(np.int64), chosen.indices.astype(np.uint32), chosen.data, rows.n_features)


def times_weights(rows: SparseRows, weights: NDArray[np.float32]) -> SparseRows:
    """Return the rows, each multiplied by its weight."""
    first, last = int(rows.indptr[0]), int(rows.indptr[-1])
    values = rows.values[first:last] * np.repeat(weights, np.diff(rows.indptr))
    return SparseRows(rows.indptr - first, rows.indices[first:last], values, rows.n_features)


def take_sparse_rows(rows: SparseRows, numbers: NDArray[np.uint32]) -> SparseRows:
    """Return the rows with these sorted numbers; a copy, unless they are all rows."""
    if len(numbers) == len(rows):
        return rows
    lengths = np.diff(rows.indptr)[numbers]
    indices = np.empty(int(lengths.sum()), dtype=np.uint32)
    values = np.empty(len(indices), dtype=np.float32)
    first, last = rows.indptr[0], rows.indptr[-1]
    sparse_rows.copy_rows(rows.indptr, rows.indices[first:last], rows.values[first:last], numbers, indices, values)
    return SparseRows(np.concatenate([[0], np.cumsum(lengths)]), indices, values, rows.n_features)


def sliceable(X: Any) -> Any:
    """Convert `X` to a form whose slices are views; numbers are validated and converted once."""
    if sp.issparse(X) or (isinstance(X, np.ndarray) and X.dtype.kind in "biuf"):
        return as_rows(X)
    return X.iloc if hasattr(X, "iloc") else X


def ascends(numbers: NDArray[Any], strictly: bool = False) -> bool:
    """Return whether numbers are non-decreasing, without differences, which may overflow.

    >>> ascends(np.array([0, 2, 2])), ascends(np.array([0, -(2**63), 2]))
    (True, False)
    """
    later, before = numbers[1:], numbers[:-1]
    return bool((later > before).all() if strictly else (later >= before).all())


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Return a read-only view.

    Numba compiles separate versions of a kernel for writable and for read-only arrays. Memory-mapped arrays are
    read-only, so kernels get all their inputs read-only: one version, and equal results before and after saving.
    """
    if not array.flags.writeable:
        return array
    view = array.view()
    view.setflags(write=False)
    return view


Rows: TypeAlias = "NDArray[np.float32] | SparseRows"


def as_rows(X: Any, name: str = "X") -> Rows:
    """Validate and convert `X` (array, list, data frame, SciPy sparse matrix, Arrow table) to rows for the kernels.

    Raises for NaN, infinities, values beyond 1e15 (whose sums of squares overflow float32), column indices outside
    the matrix, empty input and anything that is not a table of numbers. Unsorted indices are sorted and duplicates
    summed.

    >>> as_rows([[0, 1], [2, float("nan")]])
    Traceback (most recent call last):
    ...
    ValueError: Input X contains NaN at row 1, column 1.
    """
    if isinstance(X, SparseRows):
        if X.lowest_features is None:  # else they were validated
            _check_magnitudes(X.indptr, X.indices, X.values, name)
        return X
    if sp.issparse(X):
        return _sparse_rows(X, name)
    _reject_texts_and_dicts(X, name)
    if is_arrow(X):
        from treemax.inputs.arrow_columns import table_rows  # imports this module

        return table_rows(X, name)
    matrix = _plain_floats(X)
    if matrix is None:
        matrix = _matrix(X, name)
        if sp.issparse(matrix):  # a data frame of sparse columns
            return _sparse_rows(matrix, name)
    matrix = read_only(matrix)
    if not validation.largest_magnitude(matrix) <= validation.LARGEST:
        row, column = np.argwhere(~(np.abs(matrix) <= validation.LARGEST))[0]
        _raise_for_value(matrix[row, column], row, column, name)
    return matrix


def check_scale(rows: Rows) -> None:
    """Raise for training rows whose values are all so small that their squares underflow."""
    values = rows.values[rows.indptr[0] : rows.indptr[-1]] if isinstance(rows, SparseRows) else rows
    largest = float(validation.largest_magnitude(values))
    if 0 < largest < SMALLEST:
        raise ValueError(
            f"The largest value in X is {largest:.3g}: too small to learn from. Multiply X by a constant so that values are about one."
        )


def is_arrow(thing: Any) -> bool:
    """Return whether `thing` is a pyarrow table, batch or array, without importing pyarrow."""
    return type(thing).__module__.partition(".")[0] == "pyarrow"


def _plain_floats(X: Any) -> NDArray[np.float32] | None:
    """Convert an array or a list with a single row of floats, the common case of a service, without
    scikit-learn's validation, which takes longer than most predictions."""
    if type(X) is list:
        try:
            X = np.asarray(X)
        except (TypeError, ValueError, OverflowError):
            return None
    if type(X) is not np.ndarray or X.dtype.kind != "f" or X.ndim != 2 or not X.size:
        return None
    if X.dtype == np.float32 and X.flags.c_contiguous:
        return X
    with np.errstate(over="ignore"):  # overflow becomes infinity, which raises later
        return X.astype(np.float32, order="C")


def _matrix(X: Any, name: str) -> Any:
    """Convert a table of numbers to float32 (or to sparse, for a data frame of sparse columns)."""
    _reject_ambiguous_types(X, name)
    try:
        with np.errstate(over="ignore"):  # overflow becomes infinity, which raises later
            return check_array(
                X, dtype=np.float32, order="C", ensure_all_finite=False, input_name=name, accept_sparse=True
            )
    except (TypeError, ValueError, OverflowError) as error:
        where = _first_non_numeric(X)
        if not where:
            raise
        kind = TypeError if isinstance(error, TypeError) else ValueError
        more = f" {error}" if len(str(error)) <= LONGEST_QUOTED else ""  # it may quote whole documents
        raise kind(f"Input {name} is not a table of numbers: {where}.{more}") from None


def _reject_texts_and_dicts(X: Any, name: str) -> None:
    """Raise for texts and for dicts of features, before anything converts all of them."""
    first: Any = X
    if isinstance(X, str | bytes):
        what = "a text"
    elif isinstance(X, list | tuple) or len(getattr(X, "shape", (0, 0))) == 1:
        what, first = "a list of texts", next(iter(X), None)
    else:
        return
    if isinstance(first, str | bytes):
        raise ValueError(
            f"Input {name} is {what}, not a table of numbers: it begins with {_shown(first)}. Use treemax.TextModel(), "
            "which turns texts into features, or a vectorizer such as treemax.TfidfText."
        )
    if isinstance(first, dict):
        raise ValueError(
            f"Input {name} is a list of dicts, not a table of numbers: it begins with {_shown(first)}. Convert features by "
            "name to a matrix first, with sklearn.feature_extraction.DictVectorizer or FeatureHasher."
        )


def _shown(value: Any) -> str:
    """Return a value for a message, shortened."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, str | bytes) and len(value) > 40:
        return f"{value[:37]!r}..."
    return f"{value!r:.40}"


def _reject_ambiguous_types(X: Any, name: str) -> None:
    """Raise for types that NumPy would convert silently or with a misleading message."""
    if len(getattr(X, "shape", ())) == 2:
        _check_extent(X.shape)
    if hasattr(X, "collect"):
        raise ValueError(f"Input {name} is a {type(X).__name__}: collect() it first.")
    if np.ma.is_masked(X):
        raise ValueError(f"Input {name} has masked values; fill them in, or leave their rows out.")
    for dtype in X.dtypes if hasattr(X, "columns") else [getattr(X, "dtype", "")]:
        if str(dtype).lower().startswith(("date", "time", "duration", "period")):
            raise ValueError(f"Input {name} contains dates or times ({dtype}); expected numbers.")
    _reject_strings(X, name)


def _reject_strings(X: Any, name: str) -> None:
    """Raise for strings that NumPy would parse as numbers."""
    dtypes = list(X.dtypes) if hasattr(X, "columns") else [getattr(X, "dtype", None)]
    if all(getattr(dtype, "kind", "O") in "biufc" for dtype in dtypes):
        return
    table = X.to_numpy() if hasattr(X, "to_numpy") else X
    if not isinstance(table, np.ndarray | list | tuple) or getattr(table, "ndim", 2) != 2:
        return
    try:
        kind = np.asarray(table).dtype.kind  # a string dtype if any entry is a string
    except (TypeError, ValueError, OverflowError):
        kind = "O"
    if kind in "biufc":
        return
    for i, row in enumerate(table):
        for j, value in enumerate(row if isinstance(row, np.ndarray | list | tuple) else ()):
            if isinstance(value, str | bytes):
                raise ValueError(
                    f"Input {name} is not a table of numbers: row {i}, column {j} is {_shown(value)}, a string. Convert "
                    "strings to numbers first, or give texts to treemax.TextModel()."
                )


def _first_non_numeric(X: Any) -> str:
    """Describe the first entry that is not a number, if it can be found."""
    if getattr(getattr(X, "dtype", None), "kind", "O") in "biufc":
        return ""
    table = X.to_numpy() if hasattr(X, "to_numpy") else X
    if not isinstance(table, np.ndarray | list | tuple):
        return f"it is a {type(X).__name__}"
    for i, row in enumerate(table):
        if isinstance(row, str | bytes):
            return f"row {i} is the text {_shown(row)}"
        if row is None or isinstance(row, dict):
            return f"row {i} is {_shown(row)}"
        if not isinstance(row, np.ndarray | list | tuple):
            return ""
        for j, value in enumerate(row):
            try:
                float(value)
            except (TypeError, ValueError, OverflowError):
                return f"row {i}, column {j} is {_shown(value)}"
        if len(row) != len(table[0]):
            return f"row {i} has {len(row)} values, row 0 has {len(table[0])}"
    return ""


def _check_extent(shape: tuple[int, int]) -> None:
    for size, what in zip(shape, ("sample", "feature")):
        if size == 0:
            raise ValueError(f"Found array with 0 {what}(s) (shape={shape}) while a minimum of 1 is required.")


def _check_magnitudes(indptr: NDArray[np.int64], indices: NDArray[Any], values: NDArray[np.float32], name: str) -> None:
    """Raise for sparse rows with a value that is not finite or too large."""
    first, last = int(indptr[0]), int(indptr[-1])
    used = read_only(values[first:last])
    if not validation.largest_magnitude(used) <= validation.LARGEST:
        at = first + int(np.argmin(np.abs(used) <= validation.LARGEST))
        _raise_for_value(values[at], int(np.searchsorted(indptr, at, side="right")) - 1, indices[at], name)


def _raise_for_value(value: np.float32, row: int, column: int, name: str) -> None:
    if np.isnan(value):
        what, advice = "NaN", ""
    elif np.isinf(value):
        what, advice = "infinity or a value too large for float32", ""
    else:
        what = f"the value {value:.3g}"
        advice = f"; at most {validation.LARGEST:.0e} is supported. Scale the column, or remove the row"
    raise ValueError(f"Input {name} contains {what} at row {row}, column {column}{advice}.")


def _usable_rows(X: Any) -> SparseRows | None:
    """Return the rows of a CSR matrix that needs no conversion, or None.

    For single rows in a service most of the time is spent here, so every array is read once."""
    if X.format != "csr" or len(shape := X.shape) != 2 or not 0 < shape[1] <= MAX_FEATURES or shape[0] == 0:
        return None
    indptr, indices, values = X.indptr, X.indices, X.data
    if type(indptr) is not np.ndarray or type(indices) is not np.ndarray or type(values) is not np.ndarray:
        return None
    if indptr.dtype != _INT32 or indices.dtype != _INT32 or values.dtype != _FLOAT32:
        return None
    if indptr.ndim != 1 or indices.ndim != 1 or values.ndim != 1:
        return None
    if not (indptr.flags.c_contiguous and indices.flags.c_contiguous and values.flags.c_contiguous):
        return None
    indptr, indices, values = read_only(indptr), read_only(indices), read_only(values)
    lowest = validation.lowest_features(indptr, indices, values, *shape)
    if lowest < 0:
        return None
    return SparseRows(indptr.astype(np.int64), indices.view(np.uint32), values, shape[1], lowest_features=lowest)


def _sparse_rows(X: Any, name: str) -> SparseRows:
    usable = _usable_rows(X)
    if usable is not None:
        return usable
    if X.dtype.kind not in "fiub":
        what = "Complex data not supported" if X.dtype.kind == "c" else f"dtype {X.dtype} is not numeric"
        raise ValueError(f"{what}: sparse {name}")
    if X.ndim == 2:
        _check_extent(X.shape)
    if X.shape[-1] > MAX_FEATURES:
        raise ValueError(f"{name} has {X.shape[-1]:,} columns; at most {MAX_FEATURES:,} are supported.")
    indptr, indices, data = csr_parts(X, name)
    with np.errstate(over="ignore", invalid="ignore"):
        values = np.ascontiguousarray(data, dtype=np.float32)
    _check_magnitudes(indptr, indices, values, name)
    return SparseRows(
        np.ascontiguousarray(indptr, dtype=np.int64), np.ascontiguousarray(indices, dtype=np.uint32), values, X.shape[1]
    )
