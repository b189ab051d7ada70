"""Validation and conversion of y, and the label index (label <-> id) of every model.

Models work with ids 0, 1, 2, ... only. `read_labels` converts `y` to `RaggedLabels` (a list of labels per row),
`LabelIndex` assigns an id to every label, and `Targets` are the ids of each row.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, repeat
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.exceptions import DataConversionWarning

from treemax.inputs.label_values import LONGEST_FIXED, as_integers, dtype_for, uniform_values
from treemax.inputs.rows import ascends, is_arrow, read_only
from treemax.inputs.scipy_sparse import csr_parts
from treemax.kernels import validation
from treemax.numpy_only.storage import Strings, string_arrays

ALL_ONE = read_only(np.empty(0, dtype=np.float32))  # weights that are all one, for kernels
ROW_TYPES = (list, tuple, set, frozenset, np.ndarray)  # types of a row of several labels
LEAST_RELEVANCE = 1e-9  # as of other weights

Form = Literal["vector", "lists", "indicator", "dense-indicator"]
"""The form of `y`: a vector has one label per row, the other forms any number."""


@dataclass(frozen=True, eq=False)
class RaggedLabels(Sequence[Any]):
    """The labels of each row: row i has `values[indptr[i]:indptr[i+1]]`, integers or strings throughout.

    This is the form that the readers return and the fastest `y` for an estimator. It is also a sequence of lists.

    >>> y = read_labels([["b", "a"], [], ["c"]])
    >>> len(y), y[0]
    (3, ['b', 'a'])
    >>> np.asarray(read_labels(["north", "east"])).tolist()
    ['north', 'east']
    """

    indptr: NDArray[np.int64]
    values: NDArray[Any]  # int64, or object holding str
    dtype: np.dtype  # of the labels as the caller gave them
    form: Form = "lists"
    n_columns: int = 0  # of an indicator matrix
    relevance: NDArray[np.float32] | None = None  # of each entry of `values`; None: all one

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [self[i] for i in range(*row.indices(len(self)))]
        row = range(len(self))[row]
        return self.values[self.indptr[row] : self.indptr[row + 1]].tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Convert to a vector of labels if every row has one, else to a vector of lists."""
        if copy is False:
            raise ValueError("RaggedLabels cannot be converted to an array without a copy; remove copy=False.")
        if self.form == "vector":
            values = self.values[self.indptr[0] : self.indptr[-1]]
            return values.astype(dtype_for(values, self.dtype) if dtype is None else dtype)
        rows = np.empty(len(self), dtype=object)
        for row, labels in enumerate(self):
            rows[row] = labels
        return rows if dtype is None else rows.astype(dtype)

    @property
    def counts(self) -> NDArray[np.int64]:
        return np.diff(self.indptr)

    @property
    def multi_label(self) -> bool:
        return self.form != "vector"

    @property
    def is_indicator(self) -> bool:
        return self.form in ("indicator", "dense-indicator")

    def rows(self, start: int, stop: int) -> RaggedLabels:
        """Return a view of the rows `start` to `stop`."""
        indptr = self.indptr[start : stop + 1]
        first = int(indptr[0])
        values = self.values[first : int(indptr[-1])]
        relevance = None if self.relevance is None else self.relevance[first : int(indptr[-1])]
        return RaggedLabels(indptr - first, values, self.dtype, self.form, self.n_columns, relevance)

    def take(self, rows: NDArray[Any]) -> RaggedLabels:
        """Return the labels of some rows."""
        indptr, entries = _entries_of(self.indptr, rows)
        relevance = None if self.relevance is None else self.relevance[entries]
        return replace(self, indptr=indptr, values=self.values[entries], relevance=relevance)


@dataclass(frozen=True, eq=False)
class Targets:
    """Label ids of each row, sorted and without duplicates: row i has `ids[indptr[i]:indptr[i+1]]`.

    The weight of a row multiplies its loss, the relevance of a label the loss of that label in the row.
    """

    indptr: NDArray[np.int64]
    ids: NDArray[np.uint32]
    weights: NDArray[np.float32] | None = None  # of each row; None: all one
    relevance: NDArray[np.float32] | None = None  # of each entry of `ids`; None: all one

    def __post_init__(self) -> None:
        for name in ("indptr", "ids", "weights", "relevance"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, read_only(getattr(self, name)))

    @property
    def row_weights(self) -> NDArray[np.float32]:
        """The weights of the rows for kernels: empty if all are one."""
        return ALL_ONE if self.weights is None else self.weights

    @property
    def entry_weights(self) -> NDArray[np.float32]:
        """The relevance of the entries for kernels: empty if all are one."""
        return ALL_ONE if self.relevance is None else self.relevance

    @property
    def total(self) -> float:
        """The number of rows, or the sum of their weights."""
        return len(self) if self.weights is None else float(self.weights.sum(dtype=np.float64))

    def label_totals(self, n_labels: int) -> NDArray[Any]:
        """Return the number of rows of each label, or the sum of their weights."""
        ids = self.ids[self.indptr[0] : self.indptr[-1]]
        of_entries = None if self.weights is None else np.repeat(self.weights, np.diff(self.indptr))
        return np.bincount(ids, of_entries, minlength=n_labels)

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def __getitem__(self, rows: slice) -> Targets:
        start, stop, _ = rows.indices(len(self))
        weights = None if self.weights is None else self.weights[rows]
        return Targets(self.indptr[start : max(start, stop) + 1], self.ids, weights, self.relevance)


def take_targets(targets: Targets, rows: NDArray[Any]) -> Targets:
    """Return the label ids of some rows, with their weights."""
    indptr, entries = _entries_of(targets.indptr, rows)
    weights = None if targets.weights is None else targets.weights[rows]
    relevance = None if targets.relevance is None else targets.relevance[entries]
    return Targets(indptr, targets.ids[entries], weights, relevance)


def _entries_of(indptr: NDArray[np.int64], rows: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the indptr of some rows, and the places of their entries."""
    starts, counts = indptr[rows], indptr[rows + 1] - indptr[rows]
    taken = np.concatenate([[0], np.cumsum(counts)])
    return taken, np.repeat(starts, counts) + np.arange(taken[-1]) - np.repeat(taken[:-1], counts)


def check_same_length(n_rows: int, n_labels: int) -> None:
    """Raise if X and y have different numbers of rows."""
    if n_rows != n_labels:
        raise ValueError(
            f"Found input variables with inconsistent numbers of samples: X has {n_rows} rows, y has {n_labels}."
        )


def read_labels(y: Any, name: str = "y") -> RaggedLabels:
    """Validate and convert `y`: a vector of strings or integers, a list of label lists, or an indicator matrix.

    >>> read_labels(["cat", "dog"]).form
    'vector'
    >>> read_labels(["cat", 7])
    Traceback (most recent call last):
    ...
    ValueError: y mixes strings and integers: row 1 has 7 after 'cat'. Labels must be all strings or all integers.
    """
    if y is None:
        raise ValueError("This estimator requires y to be passed, but the target y is None.")
    if isinstance(y, RaggedLabels):
        return _checked(y, name)
    if sp.issparse(y):
        return _read_indicator(y, name)
    y = _unwrapped(y, name)
    if not isinstance(y, np.ndarray):
        return _read_rows(list(y), name, np.dtype(str))
    if y.ndim == 2 and y.shape[1] == 1:
        warnings.warn(
            "A column-vector y was passed when a 1d array was expected; it is used as a vector.",
            DataConversionWarning,
            stacklevel=3,
        )
        y = y.ravel()
    if y.dtype != object:
        return _read_array(y, name)
    if y.ndim != 1:
        raise ValueError(
            f"{name} should be a 1d array or a list of label lists, got an object array of shape {y.shape}."
        )
    return _read_rows(list(y), name, np.dtype(object))


def _checked(labels: RaggedLabels, name: str) -> RaggedLabels:
    """Check the `indptr` of RaggedLabels made by the caller."""
    indptr = labels.indptr
    if not len(indptr) or indptr[0] < 0 or indptr[-1] > len(labels.values) or not ascends(indptr):
        raise ValueError(
            f"{name} is not a valid RaggedLabels: its indptr does not fit its {len(labels.values)} values."
        )
    return labels


def _unwrapped(y: Any, name: str) -> Any:
    """Convert series, data frames and tensors to an array or a list; raises if there are no rows."""
    if np.ma.is_masked(y):
        raise ValueError(f"{name} has masked values at row {int(np.argmax(np.ma.getmaskarray(y)))}.")
    if isinstance(y, np.ndarray):
        return y.astype(object) if y.dtype.kind == "T" else y  # variable-width strings
    if is_arrow(y) and hasattr(y, "to_pylist") and not hasattr(y, "schema"):  # an array, not a table
        return y.to_pylist()
    if hasattr(y, "to_list"):  # a pandas or polars series
        as_list = str(y.dtype).startswith(("List", "Array", "object", "str", "String"))
        return y.to_list() if as_list else y.to_numpy()
    if hasattr(y, "to_numpy"):  # a data frame: a column, or an indicator matrix
        return y.to_numpy()
    if hasattr(y, "__array__"):
        return np.asarray(y)
    if isinstance(y, str | bytes | dict | set | frozenset) or not isinstance(y, Iterable):
        raise ValueError(f"{name} is one {type(y).__name__}; expected one label, or a list of labels, per row.")
    return y


def _read_rows(rows: list[Any], name: str, string_dtype: np.dtype) -> RaggedLabels:
    """Convert a list of labels or of label lists."""
    if any(isinstance(row, ROW_TYPES) for row in rows):
        return _read_lists(rows, name)
    values, dtype = uniform_values(rows, name, None)
    return RaggedLabels(np.arange(len(rows) + 1), values, string_dtype if dtype.kind == "O" else dtype, "vector")


def _read_array(y: NDArray[Any], name: str) -> RaggedLabels:
    if y.ndim == 2 and y.dtype.kind in "biuf":
        return _read_indicator(sp.csr_matrix(y), name, "dense-indicator")
    if y.ndim != 1:
        raise ValueError(f"{name} should be a 1d array or a list of label lists, got an array of shape {y.shape}.")
    if y.dtype.kind == "U":
        return RaggedLabels(np.arange(len(y) + 1), y.astype(object), np.dtype(str), "vector")
    if y.dtype.kind not in "biuf":
        raise ValueError(f"Unknown label type: {name} has dtype {y.dtype}; labels must be strings or integers.")
    return RaggedLabels(np.arange(len(y) + 1), as_integers(y, name), y.dtype, "vector")


def _read_lists(rows: list[Any], name: str) -> RaggedLabels:
    if not set(map(type, rows)) <= {list, tuple}:  # fast check for the common case
        rows = _in_order(rows, name)
    indptr = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(np.fromiter(map(len, rows), np.int64, len(rows)), out=indptr[1:])
    values, dtype = uniform_values(list(chain.from_iterable(rows)), name, indptr)
    return RaggedLabels(indptr, values, np.dtype(str) if dtype.kind == "O" else dtype, "lists")


def _in_order(rows: list[Any], name: str) -> list[Any]:
    """Convert rows that are sets or arrays to lists; raises for anything else."""
    for i, row in enumerate(rows):
        if not isinstance(row, ROW_TYPES) or (isinstance(row, np.ndarray) and row.ndim != 1):
            raise ValueError(
                f"{name} mixes label lists and single labels: row {i} is {row!r:.80}, not a list. "
                "Give every row a list of labels (it may be empty)."
            )
    return [sorted(row, key=str) if isinstance(row, set | frozenset) else row for row in rows]


def _read_indicator(y: Any, name: str, form: Form = "indicator") -> RaggedLabels:
    """Convert an indicator matrix; column j is the label j. Other floats of a sparse matrix are relevances."""
    indptr, indices, values = csr_parts(y, name)
    row_of = np.repeat(np.arange(y.shape[0]), np.diff(indptr))
    wrong = (values != 0) & (values != 1)
    weighted = form == "indicator" and np.dtype(y.dtype).kind == "f" and bool(wrong.any())
    if weighted:
        wrong &= ~((values >= LEAST_RELEVANCE) & (values <= 1 / LEAST_RELEVANCE))
    if wrong.any():
        at = int(np.argmax(wrong))
        expected = f"0, or a relevance from {LEAST_RELEVANCE:g} to {1 / LEAST_RELEVANCE:g}" if weighted else "0 or 1"
        raise ValueError(
            f"{name} is not an indicator matrix: it has {values[at]} at row {row_of[at]}, column {indices[at]}; "
            f"expected {expected}."
        )
    kept = values != 0
    starts = np.zeros(y.shape[0] + 1, dtype=np.int64)
    np.cumsum(np.bincount(row_of[kept], minlength=y.shape[0]), out=starts[1:])
    relevance = values[kept].astype(np.float32) if weighted else None
    return RaggedLabels(starts, indices[kept].astype(np.int64), np.dtype(np.int64), form, y.shape[1], relevance)


def requested_ids(labels: Any, index: LabelIndex, n_rows: int) -> NDArray[np.int64]:
    """Return the ids of requested labels: the same labels for every row, or a table with a list per row.

    None in a table means no label, as in the results of `predict_topk`, and has the id -1.
    """
    if isinstance(labels, str) or not isinstance(labels, Iterable):
        raise ValueError(f"labels must be a list of labels, or one list for each row, got {labels!r}.")
    rows = labels.tolist() if isinstance(labels, np.ndarray) else list(labels)
    nested = any(isinstance(row, ROW_TYPES) for row in rows)
    table = [list(row) for row in rows if isinstance(row, ROW_TYPES)] if nested else [rows]
    if len({len(row) for row in table}) > 1 or (nested and not len(table) == len(rows) == n_rows):
        raise ValueError(
            f"labels must be one list for all rows, or as many lists of one length as X has rows ({n_rows})."
        )
    ids = np.array([index.ids(row) for row in table], dtype=np.int64).reshape(len(table), -1)
    for row, known in zip(table, ids):
        unknown = [label for label, number in zip(row, known) if number < 0 and not (nested and label is None)]
        if unknown:
            raise ValueError(f"The model does not know the label {unknown[0]!r}.")
    return np.ascontiguousarray(np.broadcast_to(ids, (n_rows, ids.shape[1])))


class LabelIndex:
    """Mapping between labels and ids 0, 1, 2, ... in order of arrival; ids never change.

    >>> index = LabelIndex(["cat", "dog"])
    >>> index.add(["eel", "cat"])
    array([2, 0])
    >>> index.labels([2, 1]).tolist()
    ['eel', 'dog']
    >>> index.ids(["dog", "yak"])
    array([ 1, -1])
    """

    def __init__(self, labels: Iterable[Any] = (), dtype: Any = None) -> None:
        values = labels if isinstance(labels, np.ndarray) and labels.dtype == object else list(labels)
        self.dtype: np.dtype | None = None if dtype is None else np.dtype(dtype)
        self._packed: Strings | None = None  # of a loaded model
        self._values: NDArray[Any] | None = np.empty(0, dtype=object)  # by id, with spare capacity
        self._size = 0
        self._ids: dict[Any, int] | None = {}
        if len(values):
            self.add(values)

    def __len__(self) -> int:
        return self._size

    def __contains__(self, label: Any) -> bool:
        return label in self._lookup()

    @property
    def holds_strings(self) -> bool:
        """Whether labels are strings; False for integers and for an empty index."""
        return self.dtype is not None and self.dtype.kind in "UO"

    @property
    def classes(self) -> NDArray[Any]:
        """All labels in the order of their ids, in the caller's dtype."""
        return self._as_given(self._all())

    def add(self, labels: Any, dtype: Any = None) -> NDArray[np.int64]:
        """Return the ids of `labels`; new labels get the next ids."""
        values, found = (labels, np.dtype(dtype)) if dtype is not None else uniform_values(list(labels), "labels", None)
        if len(values) == 0:  # neither strings nor integers
            return np.empty(0, dtype=np.int64)
        self.check_kind(found)
        lookup = self._lookup()
        before = len(lookup)
        given = values.tolist()
        for label in dict.fromkeys(given):
            lookup.setdefault(label, len(lookup))
        ids = np.fromiter(map(lookup.__getitem__, given), np.int64, len(given))
        self.dtype = self._merged_dtype(found)
        if len(lookup) > before:
            self._append(list(lookup) if before == 0 else _newest(lookup, len(lookup) - before))
        return ids

    def ids(self, labels: Any) -> NDArray[np.int64]:
        """Return the ids of `labels`, -1 for unknown ones, without adding them."""
        values = labels.tolist() if isinstance(labels, np.ndarray) else list(labels)
        lookup = self._lookup()
        return np.fromiter(map(lookup.get, values, repeat(-1)), np.int64, len(values))

    def labels(self, ids: Any) -> NDArray[Any]:
        """Return the labels of an array of ids, in the caller's dtype and the array's shape."""
        ids = np.asarray(ids)
        if self._packed is not None and self._values is None and ids.size < self._size // 16:
            out = np.empty(ids.shape, dtype=object)
            out.ravel()[:] = [self._packed[i] for i in ids.ravel().tolist()]
            return self._as_given(out)
        return self._as_given(self._all().take(ids))  # NumPy's indexing may crash here when out of memory

    def check_kind(self, dtype: np.dtype) -> None:
        """Raise for strings in an index of integers, or integers in one of strings."""
        if self.dtype is not None and (dtype.kind in "UO") != self.holds_strings:
            have, got = ("strings", "integers") if self.holds_strings else ("integers", "strings")
            raise ValueError(f"The labels so far are {have}, but these are {got}; labels must be of one kind.")

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays for the model file."""
        if not self.holds_strings:
            return {"integers": self._all().astype(np.int64)}
        return string_arrays(self._all())

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[Any]], dtype: str | None) -> LabelIndex:
        """Restore an index from arrays, which are validated; strings are decoded on demand."""
        try:
            index = cls(dtype=dtype)
        except TypeError:
            raise ValueError(f"the label index is damaged: labels of type {dtype!r:.40}") from None
        if index.dtype is not None and index.dtype.kind not in ("biuf" if "integers" in arrays else "UO"):
            raise ValueError(f"the label index is damaged: its labels are not of type {dtype!r:.40}")
        index._ids = None
        if "integers" in arrays:
            index._take_integers(arrays["integers"])
        else:
            index._take_strings(arrays["bytes"], arrays["offsets"])
        if index.dtype is None and len(index):
            raise ValueError("the label index is damaged: its labels have no type")
        return index

    def _take_integers(self, integers: NDArray[Any]) -> None:
        if integers.ndim != 1 or integers.dtype != np.int64:
            raise ValueError("the label index is damaged: integer labels are not a vector of int64")
        with np.errstate(invalid="ignore"):
            same = self.dtype is None or (integers.astype(self.dtype).astype(np.int64) == integers).all()
        if not same:
            raise ValueError(f"the label index is damaged: its labels are not of type {self.dtype}")
        if (integers[1:] <= integers[:-1]).any() and len(np.unique(integers)) < len(integers):
            raise ValueError("the label index is damaged: a label occurs twice")
        self._values, self._size = integers.astype(object), len(integers)

    def _take_strings(self, text: NDArray[Any], offsets: NDArray[Any]) -> None:
        valid = text.ndim == offsets.ndim == 1 and text.dtype == np.uint8 and offsets.dtype == np.int64
        if not (valid and len(offsets) and offsets[0] == 0 and offsets[-1] == len(text)) or not ascends(offsets):
            raise ValueError("the label index is damaged: the offsets do not fit its text")
        self._packed, self._values, self._size = Strings(text, offsets), None, len(offsets) - 1
        _check_utf8(text, offsets)
        hashes = np.empty(self._size, dtype=np.uint64)
        validation.string_hashes(read_only(text), read_only(offsets), hashes)
        hashes.sort()
        if (hashes[1:] == hashes[:-1]).any():  # otherwise all labels are distinct
            self._lookup()
        if self.dtype is not None and self.dtype.kind == "U":
            long = np.flatnonzero(np.diff(offsets) > LONGEST_FIXED).tolist()
            self.dtype = dtype_for(map(self._packed.__getitem__, long), np.dtype(str))

    def copy(self) -> LabelIndex:
        """Return an independent copy."""
        twin = LabelIndex(dtype=self.dtype)
        twin._packed, twin._size = self._packed, self._size
        twin._values = None if self._values is None else self._values[: self._size].copy()
        twin._ids = None if self._ids is None else dict(self._ids)
        return twin

    def renamed(self, ids: list[int], labels: list[Any]) -> LabelIndex:
        """Return an index in which the labels with these ids have other names."""
        values = self._all().copy()
        values[ids] = labels
        return self._of(values)

    def without(self, ids: list[int]) -> LabelIndex:
        """Return an index of all labels but those with these ids; the others keep their order."""
        return self._of(np.delete(self._all(), ids))

    def _of(self, values: NDArray[Any]) -> LabelIndex:
        other = LabelIndex()
        other.add(values, self.dtype)
        return other

    def _lookup(self) -> dict[Any, int]:
        if self._ids is None:
            lookup = {label: i for i, label in enumerate(self._all().tolist())}
            if len(lookup) != self._size:
                raise ValueError("the label index is damaged: a label occurs twice")
            self._ids = lookup
        return self._ids

    def _all(self) -> NDArray[Any]:
        if self._values is None:
            assert self._packed is not None
            values = np.empty(self._size, dtype=object)
            values[:] = self._packed.all()
            self._values = values
        return self._values[: self._size]

    def _append(self, labels: list[Any]) -> None:
        if self.dtype is not None:
            self.dtype = dtype_for(labels, self.dtype)
        values = self._all()
        size = self._size + len(labels)
        room = self._values
        assert room is not None
        if size > len(room):
            room = np.empty(max(size, 2 * len(room)), dtype=object)
            room[: self._size] = values
            self._values = room
        room[self._size : size] = labels
        self._size = size

    def _merged_dtype(self, found: np.dtype) -> np.dtype:
        if self.dtype is None or self.holds_strings:
            return self.dtype or found
        merged = np.result_type(self.dtype, found)
        # NumPy promotes floats with integers, and uint64 with int64, to float64, which is not exact.
        exact = merged.kind != "f" or self.dtype.kind == found.kind == "f"
        return merged if exact else np.dtype(np.int64)

    def _as_given(self, values: NDArray[Any]) -> NDArray[Any]:
        return values.copy() if self.dtype is None else values.astype(self.dtype)


def _check_utf8(text: NDArray[np.uint8], offsets: NDArray[np.int64]) -> None:
    """Raise for labels that are not UTF-8, or that begin within a character."""
    try:
        text.tobytes().decode("utf-8", "surrogatepass")
        at = None
    except UnicodeDecodeError as error:
        at = error.start
    starts = offsets[:-1][offsets[:-1] < len(text)]
    within = starts[(text[starts] & 0xC0) == 0x80]
    if at is None and len(within):
        at = int(within[0])
    if at is not None:
        label = int(np.searchsorted(offsets, at, side="right")) - 1
        raise ValueError(f"the label index is damaged: label {label} is not UTF-8")


def _newest(lookup: dict[Any, int], count: int) -> list[Any]:
    """Return the last `count` labels in order of arrival, which dictionaries keep."""
    newest = [label for label, _ in zip(reversed(lookup), range(count))]
    return newest[::-1]


def _is_sorted(labels: RaggedLabels, ids: NDArray[np.int64]) -> bool:
    """Return whether the ids of every row are sorted and distinct."""
    if labels.indptr[0] != 0 or labels.indptr[-1] != len(ids):
        return False
    rises = np.ones(len(ids) + 1, dtype=bool)
    rises[1:-1] = ids[1:] > ids[:-1]
    rises[labels.indptr] = True
    return bool(rises.all())


def target_ids(labels: RaggedLabels, ids: NDArray[np.int64]) -> Targets:
    """Return the ids of each row, sorted and distinct; `ids` has one per entry of `labels`, -1 is dropped."""
    if (ids >= 0).all() and (not labels.multi_label or _is_sorted(labels, ids)):
        return Targets(labels.indptr.astype(np.int64), ids.astype(np.uint32), relevance=labels.relevance)
    if labels.relevance is not None:
        raise ValueError("y has a column twice, or columns that are not sorted, in a row with relevances.")
    row = np.repeat(np.arange(len(labels)), labels.counts)
    known = ids >= 0
    pairs = np.sort(row[known] << 32 | ids[known])  # ids fit into 32 bits
    fresh = np.ones(len(pairs), dtype=bool)
    fresh[1:] = pairs[1:] != pairs[:-1]
    row, ids = pairs[fresh] >> 32, pairs[fresh] & 0xFFFFFFFF
    indptr = np.zeros(len(labels) + 1, dtype=np.int64)
    np.cumsum(np.bincount(row, minlength=len(labels)), out=indptr[1:])
    return Targets(indptr, ids.astype(np.uint32))
