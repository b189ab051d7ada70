"""Examples, the result of every reader and the input of every writer: rows with their labels."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from treemax.inputs.labels import RaggedLabels
from treemax.inputs.rows import SparseRows


@dataclass(frozen=True, eq=False)
class Examples:
    """A file, or a chunk of one: `X` and `y` for `fit`, here and in scikit-learn.

    `labels` are the labels of each example, `rows` its features, or `texts` its text, and `weights` its weight.

    >>> from treemax.inputs.labels import read_labels
    >>> examples = Examples(read_labels([["a"], ["b", "c"]]), texts=["one", "two"])
    >>> len(examples), examples[1:].labels[0], examples.X
    (2, ['b', 'c'], ['one', 'two'])
    """

    labels: RaggedLabels
    rows: SparseRows | NDArray[np.float32] | None = None
    texts: list[str] | None = None
    weights: NDArray[np.float32] | None = None  # `sample_weight` of `fit`; None if the file has none, or all are one

    def __post_init__(self) -> None:
        if (self.rows is None) == (self.texts is None):
            raise ValueError("Examples have either rows of features or texts; give exactly one of the two.")
        if len(self.features) != len(self.labels):
            raise ValueError(f"Examples have {len(self.labels)} rows of labels but {len(self.features)} of features.")
        if self.weights is not None and len(self.weights) != len(self.labels):
            raise ValueError(f"Examples have {len(self.labels)} rows of labels but {len(self.weights)} weights.")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, part: slice) -> Examples:
        start, stop, step = part.indices(len(self))
        if step != 1:
            raise ValueError("Examples can be sliced in steps of one only")
        stop = max(start, stop)
        return Examples(
            self.labels.rows(start, stop),
            None if self.rows is None else self.rows[start:stop],
            None if self.texts is None else self.texts[start:stop],
            None if self.weights is None else self.weights[start:stop],
        )

    @cached_property
    def X(self) -> sp.csr_matrix | NDArray[np.float32] | list[str]:
        """The features as a SciPy CSR matrix or a NumPy array, or the texts of a file of texts.

        A sparse matrix shares its memory with `rows` and is read-only: copy it before changing it in place.
        """
        return self.rows.to_scipy() if isinstance(self.rows, SparseRows) else self.features

    @cached_property
    def y(self) -> NDArray[Any] | RaggedLabels:
        """The labels: a NumPy vector when every row has exactly one label, else a sequence of label lists."""
        return self.targets if self.targets.multi_label else np.asarray(self.targets)

    @property
    def features(self) -> SparseRows | NDArray[np.float32] | list[str]:
        """`X` without conversion, as the estimators use it."""
        return self.texts if self.rows is None else self.rows  # type: ignore[return-value]

    @property
    def targets(self) -> RaggedLabels:
        """`y` without a conversion, in the form in which estimators use it."""
        one_each = len(self) > 0 and bool((self.labels.counts == 1).all())
        return dataclasses.replace(self.labels, form="vector" if one_each else "lists")


def string_labels(lists: Sequence[Sequence[str]]) -> RaggedLabels:
    """Convert lists of strings, without checking each."""
    indptr = np.zeros(len(lists) + 1, dtype=np.int64)
    np.cumsum([len(labels) for labels in lists], out=indptr[1:])
    values = np.empty(int(indptr[-1]), dtype=object)
    values[:] = [label for labels in lists for label in labels]
    return RaggedLabels(indptr, values, np.dtype(str), "lists")


def integer_labels(indptr: NDArray[np.int64], values: NDArray[np.int64], n_labels: int = 0) -> RaggedLabels:
    """Convert integer labels in CSR form; `n_labels` if the file declares their number."""
    return RaggedLabels(indptr, values, np.dtype(np.int64), "lists", n_labels)


def labels_of_kind(lists: Sequence[Sequence[Any]], strings: bool | None) -> RaggedLabels:
    """Convert lists of integers, or else of strings."""
    if strings is not False:
        return string_labels(lists)
    indptr = np.zeros(len(lists) + 1, dtype=np.int64)
    np.cumsum([len(labels) for labels in lists], out=indptr[1:])
    return integer_labels(indptr, np.array([i for row in lists for i in row], dtype=np.int64))


def no_labels(n_rows: int) -> RaggedLabels:
    """Return `n_rows` rows without labels."""
    return integer_labels(np.zeros(n_rows + 1, dtype=np.int64), np.empty(0, dtype=np.int64))


def concatenate(parts: Sequence[Examples]) -> Examples:
    """Concatenate examples."""
    if len(parts) == 1:
        return parts[0]
    labels, weights = _concatenate_labels([part.labels for part in parts]), _concatenate_weights(parts)
    if parts[0].texts is not None:
        return Examples(labels, texts=[text for part in parts for text in part.texts or ()], weights=weights)
    rows = [part.rows for part in parts]
    if isinstance(rows[0], np.ndarray):
        return Examples(labels, np.concatenate(rows), weights=weights)  # type: ignore[arg-type]
    return Examples(labels, _concatenate_rows(rows), weights=weights)  # type: ignore[arg-type]


def _concatenate_weights(parts: Sequence[Examples]) -> NDArray[np.float32] | None:
    if all(part.weights is None for part in parts):
        return None
    ones = (np.ones(len(part), np.float32) if part.weights is None else part.weights for part in parts)
    return np.concatenate(list(ones))


def weights_of(numbers: Sequence[float]) -> NDArray[np.float32] | None:
    """Return the weights of a block of examples; None if all are one."""
    return None if all(number == 1 for number in numbers) else np.array(numbers, dtype=np.float32)


def _joined_starts(starts: Iterable[NDArray[np.int64]]) -> NDArray[np.int64]:
    steps = [np.diff(part) for part in starts]
    joined = np.zeros(sum(map(len, steps)) + 1, dtype=np.int64)
    np.cumsum(np.concatenate(steps), out=joined[1:])
    return joined


def _concatenate_labels(parts: list[RaggedLabels]) -> RaggedLabels:
    """Concatenate labels; the dtype is that of the parts that have labels."""
    indptr = _joined_starts(part.indptr for part in parts)
    non_empty = [part for part in parts if len(part.values)] or parts[:1]
    values = np.concatenate([part.values[part.indptr[0] : part.indptr[-1]] for part in non_empty])
    return RaggedLabels(indptr, values, non_empty[0].dtype, "lists", max(part.n_columns for part in parts))


def _concatenate_rows(parts: list[SparseRows]) -> SparseRows:
    return SparseRows(
        _joined_starts(part.indptr for part in parts),
        np.concatenate([part.indices[part.indptr[0] : part.indptr[-1]] for part in parts]),
        np.concatenate([part.values[part.indptr[0] : part.indptr[-1]] for part in parts]),
        max(part.n_features for part in parts),
    )


def keep_rows(rows: SparseRows, keep: NDArray[np.bool_]) -> SparseRows:
    """Return the rows where `keep` is true."""
    counts = np.diff(rows.indptr)
    entries = np.repeat(keep, counts)
    first, last = rows.indptr[0], rows.indptr[-1]
    indptr = np.zeros(int(keep.sum()) + 1, dtype=np.int64)
    np.cumsum(counts[keep], out=indptr[1:])
    return SparseRows(indptr, rows.indices[first:last][entries], rows.values[first:last][entries], rows.n_features)


def keep_labels(labels: RaggedLabels, keep: NDArray[np.bool_]) -> RaggedLabels:
    """Return the labels of the rows where `keep` is true."""
    indptr = np.zeros(int(keep.sum()) + 1, dtype=np.int64)
    np.cumsum(labels.counts[keep], out=indptr[1:])
    values = labels.values[labels.indptr[0] : labels.indptr[-1]]
    return dataclasses.replace(labels, indptr=indptr, values=values[np.repeat(keep, labels.counts)])


def keep_where(examples: Examples, keep: NDArray[np.bool_]) -> Examples:
    """Return the examples where `keep` is true."""
    if keep.all():
        return examples
    labels = keep_labels(examples.labels, keep)
    weights = None if examples.weights is None else examples.weights[keep]
    if examples.texts is not None:
        return Examples(labels, texts=[text for text, kept in zip(examples.texts, keep) if kept], weights=weights)
    rows = examples.rows
    return Examples(labels, keep_rows(rows, keep) if isinstance(rows, SparseRows) else rows[keep], weights=weights)  # type: ignore[index]


def rechunk(pieces: Iterable[Examples], chunk_rows: int) -> Generator[Examples, None, None]:
    """Yield the same examples in chunks of `chunk_rows` (the last may be shorter, none is empty)."""
    pending: list[Examples] = []
    n_pending = 0
    for piece in pieces:
        start = 0
        while n_pending + len(piece) - start >= chunk_rows:
            stop = start + chunk_rows - n_pending
            yield concatenate([*pending, piece[start:stop]])
            pending, n_pending, start = [], 0, stop
        if start < len(piece):
            pending.append(piece[start:])
            n_pending += len(piece) - start
    if pending:
        yield concatenate(pending)
