"""Encoding of labels as the ids that the metrics use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.labels import LabelIndex, RaggedLabels, Targets, read_labels, target_ids


class IdEncoder:
    """Encoder of true and predicted labels with one index, including labels unknown to the model.

    >>> encoder = IdEncoder()
    >>> encoder.targets([["cat", "dog"], ["yak"]]).ids.tolist()
    [0, 1, 2]
    >>> encoder.ranking([["dog", "emu"], ["cat", None]]).tolist()
    [[1, 3], [0, -1]]
    """

    def __init__(self, index: LabelIndex | None = None) -> None:
        self._index = LabelIndex() if index is None else index.copy()

    def __len__(self) -> int:
        """Return the number of distinct labels so far."""
        return len(self._index)

    @property
    def index(self) -> LabelIndex:
        """The label index."""
        return self._index

    def targets(self, y_true: Any) -> Targets:
        """Return the ids of the true labels of each row."""
        labels = read_labels(y_true, "y_true")
        if not len(labels.values):  # must not set the type of the index
            return Targets(labels.indptr.astype(np.int64), np.zeros(0, dtype=np.uint32))
        self._check_kind(labels.values.dtype, "y_true")
        dtype = None if labels.values.dtype == object else labels.values.dtype
        return target_ids(labels, self._index.add(labels.values, dtype))

    def ranking(self, top_labels: Any) -> NDArray[np.int64]:
        """Return the ids of predicted labels, -1 for missing predictions (None, NaN or masked)."""
        labels, present = _as_matrix(top_labels)
        ids = np.full(labels.shape, -1, dtype=np.int64)
        given = labels[present]
        if given.size:
            ids[present] = self._add_predicted(given)
        return ids

    def _add_predicted(self, given: NDArray[Any]) -> NDArray[np.int64]:
        if given.dtype.kind in "biu" and given.max() <= np.iinfo(np.int64).max:
            self._check_kind(given.dtype, "top_labels")
            return self._index.add(given.astype(np.int64), np.int64)
        labels = given.tolist()
        if isinstance(labels[0], str | int | float):  # the index raises for any other type
            self._check_kind(np.dtype(object if isinstance(labels[0], str) else np.int64), "top_labels")
        return self._index.add(labels)

    def counts(self, label_counts: Any) -> NDArray[np.float64]:
        """Return training counts by id, from a mapping of labels to counts or, for integer labels, a vector."""
        if not isinstance(label_counts, Mapping):
            vector = np.asarray(label_counts)
            if vector.ndim != 1 or vector.dtype.kind not in "iuf":
                raise ValueError(
                    "label_counts must map labels to counts, or be a vector of counts whose entry j is for the "
                    f"integer label j; got {type(label_counts).__name__} of shape {vector.shape}."
                )
            label_counts = dict(enumerate(vector.tolist()))
        if not label_counts:
            return np.zeros(0)
        labels = list(label_counts)
        strings = isinstance(labels[0], str)
        self._check_kind(np.dtype(object if strings else np.int64), "label_counts")
        ids = self._index.add(labels)
        by_id = np.zeros(len(self._index))
        by_id[ids] = list(label_counts.values())
        return by_id

    def _check_kind(self, dtype: np.dtype, name: str) -> None:
        """Raise if strings are compared with integers, which would all be misses."""
        strings = dtype.kind in "UO"
        if self._index.dtype is not None and strings != self._index.holds_strings:
            kinds = ("strings", "integers") if strings else ("integers", "strings")
            raise ValueError(
                f"{name} has labels that are {kinds[0]}, but the other labels are {kinds[1]}; "
                "true labels, predictions and label_counts must be of one kind."
            )


def _as_matrix(top_labels: Any) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return predicted labels as a matrix, and the mask of its predictions."""
    top_labels = getattr(top_labels, "labels", top_labels)  # accepts the result of predict_topk
    if isinstance(top_labels, list | tuple):
        top_labels = _pad(top_labels)
    present = ~np.ma.getmaskarray(top_labels)
    labels = np.ma.getdata(top_labels)
    if labels.ndim != 2:
        raise ValueError(
            f"top_labels must have a row per example and the best labels first, got shape {labels.shape}; "
            "for a vector of single predictions pass predictions[:, None]."
        )
    if labels.dtype == object:
        # Only NaN is not equal to itself.
        given = [label is not None and label == label for label in labels.flat]
        present &= np.array(given, dtype=bool).reshape(labels.shape)
    elif labels.dtype.kind == "f":
        present &= ~np.isnan(labels)
    elif labels.dtype.kind not in "biuU" and labels.size:
        raise ValueError(f"top_labels has dtype {labels.dtype}; labels must be strings or integers.")
    return labels, present


def _pad(rows: list[Any] | tuple[Any, ...]) -> NDArray[Any]:
    """Convert rankings of different lengths to one matrix, padded with None."""
    for i, row in enumerate(rows):
        if isinstance(row, str | bytes) or not hasattr(row, "__len__"):
            raise ValueError(f"top_labels must have a list of labels per row, the best first; row {i} is {row!r}.")
    padded = np.full((len(rows), max((len(row) for row in rows), default=0)), None, dtype=object)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = list(row)
    return padded


def count_labels(y: Any) -> dict[Any, int]:
    """Return the number of rows with each label: the `label_counts` of a training set.

    >>> count_labels([["a", "b"], ["a"], []])
    {'a': 2, 'b': 1}
    """
    labels: RaggedLabels = read_labels(y)
    index = LabelIndex()
    if not len(labels.values):
        return {}
    targets = target_ids(labels, index.add(labels.values.tolist()))
    return dict(zip(index.classes.tolist(), np.bincount(targets.ids).tolist()))
