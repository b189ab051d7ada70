"""Features as they come, made into the two forms the kernels know.

Every estimator sees either a C-contiguous float32 matrix or `SparseRows` (float32 values, uint32 column
indices, rows sorted and without duplicates). Whatever else a caller brings is converted here, once, and
whatever cannot be converted is refused here with an error that says what is wrong and where.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.utils import check_array

MAX_FEATURES = 2**32 - 1  # column indices are uint32


@dataclass(frozen=True, eq=False)
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

    def __post_init__(self) -> None:
        for name in ("indptr", "indices", "values"):
            object.__setattr__(self, name, read_only(getattr(self, name)))

    def __len__(self) -> int:
        return len(self.indptr) - 1

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), self.n_features

    @property
    def nnz(self) -> int:
        return int(self.indptr[-1] - self.indptr[0])

    def __getitem__(self, rows: slice) -> SparseRows:
        start, stop, step = rows.indices(len(self))
        if step != 1:
            raise ValueError("SparseRows can be sliced in steps of one only")
        return SparseRows(
            self.indptr[start : max(start, stop) + 1], self.indices, self.values, self.n_features
        )

    def to_scipy(self) -> sp.csr_matrix:
        """The same rows as a SciPy CSR matrix."""
        first, last = self.indptr[0], self.indptr[-1]
        indices = self.indices[first:last]
        index_dtype = np.int32 if self.n_features <= np.iinfo(np.int32).max else np.int64
        parts = (self.values[first:last], indices.astype(index_dtype), self.indptr - first)
        return sp.csr_matrix(parts, shape=self.shape)


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """A view that cannot be written to.

    Numba compiles a kernel once for arrays it may write to and once for those it may not. What is mapped
    from a file is always read-only, so kernels see everything that they only read that way: one version,
    and the same bits before and after saving.
    """
    if not array.flags.writeable:
        return array
    view = array.view()
    view.flags.writeable = False
    return view


Rows: TypeAlias = "NDArray[np.float32] | SparseRows"


def as_rows(X: Any, name: str = "X") -> Rows:
    """Convert `X` (array, list, data frame, any SciPy sparse format) into rows for the kernels.

    Refuses NaN, infinities, values too large for float32, column indices outside the matrix, empty input
    and anything that is not a table of numbers. Unsorted indices are sorted and duplicates summed.

    >>> as_rows([[0, 1], [2, float("nan")]])
    Traceback (most recent call last):
    ...
    ValueError: Input X contains NaN at row 1, column 1.
    """
    if isinstance(X, SparseRows):
        return X
    if sp.issparse(X):
        return _sparse_rows(X, name)
    if type(X) is np.ndarray and X.dtype == np.float32 and X.ndim == 2 and X.flags.c_contiguous and X.size:
        matrix = X  # the common case of a single row in a service: no copy, no detour
    else:
        with np.errstate(over="ignore"):  # too large for float32 becomes infinite and is refused below
            matrix = check_array(
                X, dtype=np.float32, order="C", ensure_all_finite=False, input_name=name, accept_sparse=True
            )
        if sp.issparse(matrix):  # a data frame of sparse columns
            return _sparse_rows(matrix, name)
    if not np.isfinite(matrix.sum(dtype=np.float64)):
        _refuse_non_finite(matrix, name)
    return read_only(matrix)


def _refuse_non_finite(matrix: NDArray[np.float32], name: str) -> None:
    row, column = np.argwhere(~np.isfinite(matrix))[0]
    raise ValueError(f"Input {name} contains {_what(matrix[row, column])} at row {row}, column {column}.")


def _what(value: np.float32) -> str:
    return "NaN" if np.isnan(value) else "infinity or a value too large for float32"


def _sparse_rows(X: Any, name: str) -> SparseRows:
    if X.ndim != 2:
        raise ValueError(f"Expected 2D array, got a {X.ndim}D sparse array as {name} instead.")
    if X.dtype.kind not in "fiub":
        what = "Complex data not supported" if X.dtype.kind == "c" else f"dtype {X.dtype} is not numeric"
        raise ValueError(f"{what}: sparse {name}")
    n_rows, n_features = X.shape
    if n_rows == 0:
        raise ValueError(
            f"Found array with 0 sample(s) (shape={X.shape}) as {name}: a minimum of 1 is required."
        )
    if n_features == 0:
        raise ValueError(
            f"Found array with 0 feature(s) (shape={X.shape}) as {name}: a minimum of 1 is required."
        )
    if n_features > MAX_FEATURES:
        raise ValueError(f"{name} has {n_features:,} columns; at most {MAX_FEATURES:,} are supported.")
    if X.format in ("csc", "bsr"):
        X.check_format(full_check=True)  # SciPy converts without looking, out of bounds if need be
    csr = X.tocsr()
    _check_structure(csr, name)
    if not csr.has_canonical_format:
        csr = csr.copy() if csr is X or np.shares_memory(csr.data, getattr(X, "data", csr.data)) else csr
        csr.sum_duplicates()
    with np.errstate(over="ignore"):
        values = np.ascontiguousarray(csr.data, dtype=np.float32)
    if not np.isfinite(values.sum(dtype=np.float64)):
        at = int(np.flatnonzero(~np.isfinite(values))[0])
        row = int(np.searchsorted(csr.indptr, at, side="right")) - 1
        raise ValueError(f"Input {name} contains {_what(values[at])} at row {row}, column {csr.indices[at]}.")
    return SparseRows(
        np.ascontiguousarray(csr.indptr, dtype=np.int64),
        np.ascontiguousarray(csr.indices).astype(np.uint32, copy=False),
        values,
        n_features,
    )


def _check_structure(csr: Any, name: str) -> None:
    """A CSR matrix may be assembled by hand: make sure that nothing in it points outside."""
    indptr, indices = csr.indptr, csr.indices
    steps = np.diff(indptr)
    if indptr[0] != 0 or indptr[-1] > min(len(indices), len(csr.data)) or (steps < 0).any():
        bad = int(np.argmax(steps < 0)) if (steps < 0).any() else 0
        raise ValueError(f"{name} is not a valid CSR matrix: indptr is inconsistent at row {bad}.")
    used = indices[: indptr[-1]]
    if used.size and (used.min() < 0 or used.max() >= csr.shape[1]):
        at = int(np.argmax((used < 0) | (used >= csr.shape[1])))
        row = int(np.searchsorted(indptr, at, side="right")) - 1
        raise ValueError(
            f"{name} has column index {used[at]} in row {row}, outside its {csr.shape[1]} columns (0 to {csr.shape[1] - 1})."
        )
