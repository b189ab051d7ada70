"""Metrics of answers in a taxonomy: precision, recall and F over nodes and their ancestors, and distance."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.labels import ROW_TYPES, check_same_length, read_labels
from treemax.trees import Taxonomy

Ids = NDArray[np.int64]


class HierarchicalScores:
    """Accumulator of the hierarchical metrics over a stream; call `update` with each chunk.

    For row i, `T` are the true labels and all their ancestors in the taxonomy, and `P` the same of the predicted ones.

    >>> taxonomy = Taxonomy({"animal": {"pet": ["cat", "dog"]}, "plant": ["fern"]})
    >>> scores = HierarchicalScores(taxonomy)
    >>> scores.update(["cat", "fern"], ["dog", None])
    >>> {name: round(value, 3) for name, value in scores.result().items()}
    {'n': 2, 'answered': 0.5, 'hP': 0.667, 'hR': 0.4, 'hF': 0.5, 'distance': 2.0}
    """

    def __init__(self, taxonomy: Any = None) -> None:
        self.taxonomy = taxonomy if isinstance(taxonomy, Taxonomy) else Taxonomy([] if taxonomy is None else taxonomy)
        self._sizes: list[NDArray[np.int64]] = []  # of T, P and their intersection, for the rows of each chunk
        self._distances: list[NDArray[np.float64]] = []

    def update(self, y_true: Any, y_pred: Any) -> None:
        """Add rows: their true and their predicted labels, one or a list each; None is no answer."""
        true_rows, true_names, n_rows = _rows_and_names(y_true, "y_true")
        rows, names, n_predicted = _rows_and_names(y_pred, "y_pred")
        check_same_length(n_predicted, n_rows)
        nodes, n_unknown = self._nodes(true_names + names)
        true_nodes, predicted = nodes[: len(true_names)], nodes[len(true_names) :]
        truth = self._with_ancestors(true_rows, true_nodes, n_unknown)
        answer = self._with_ancestors(rows, predicted, n_unknown)
        common = np.intersect1d(truth, answer, assume_unique=True)
        stride = len(self.taxonomy) + n_unknown
        self._sizes.append(
            np.array([np.bincount(part // stride, minlength=n_rows) for part in (truth, answer, common)])
        )
        self._distances.append(self._nearest(n_rows, true_rows, true_nodes, rows, predicted))

    def result(self) -> dict[str, float]:
        """Return the metrics so far; hP, hR and hF are micro-averaged, as `hierarchical_precision` and others."""
        sizes, distances = self._all()
        return {
            "n": sizes.shape[1],
            "answered": float((sizes[1] > 0).mean()),
            "hP": _micro(sizes, 1),
            "hR": _micro(sizes, 0),
            "hF": f1(_micro(sizes, 1), _micro(sizes, 0), 0.0),
            "distance": float(distances.mean()),
        }

    def _all(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        if not self._sizes or not any(sizes.shape[1] for sizes in self._sizes):
            raise ValueError("there is nothing to evaluate: y_true has no rows.")
        return np.concatenate(self._sizes, axis=1), np.concatenate(self._distances)

    def _nodes(self, names: list[Any]) -> tuple[Ids, int]:
        """Return the nodes of names, and the number of those that are not in the taxonomy: they are nodes of their own."""
        nodes = self.taxonomy.nodes_of(names)
        unknown = np.flatnonzero(nodes < 0)
        numbers: dict[Any, int] = {}
        for i in unknown.tolist():
            nodes[i] = len(self.taxonomy) + numbers.setdefault(names[i], len(numbers))
        return nodes, len(numbers)

    def _with_ancestors(self, rows: Ids, nodes: Ids, n_unknown: int) -> Ids:
        """Return row * (number of nodes) + node of all nodes and their ancestors, sorted and distinct."""
        inside = nodes < len(self.taxonomy)
        position, above, _ = self.taxonomy.above.of(nodes[inside])
        stride = len(self.taxonomy) + n_unknown
        return np.unique(
            np.concatenate([rows[inside][position] * stride + above, rows[~inside] * stride + nodes[~inside]])
        )

    def _nearest(self, n_rows: int, true_rows: Ids, true_nodes: Ids, rows: Ids, predicted: Ids) -> NDArray[np.float64]:
        """Return the mean distance of each row's true labels from the nearest predicted one, or from the root."""
        counts, starts = np.bincount(rows, minlength=n_rows), np.searchsorted(rows, np.arange(n_rows))
        pairs = np.maximum(counts[true_rows], 1)
        first = np.cumsum(pairs) - pairs
        place = np.arange(pairs.sum()) - np.repeat(first, pairs)
        entry = np.repeat(starts[true_rows], pairs) + place
        answered = np.repeat(counts[true_rows] > 0, pairs)
        others = np.full(len(entry), -1, dtype=np.int64)
        others[answered] = predicted[entry[answered]]
        distances = self._distances_between(np.repeat(true_nodes, pairs), others)
        nearest = np.minimum.reduceat(distances, first) if len(first) else distances
        n_true = np.bincount(true_rows, minlength=n_rows)
        return np.bincount(true_rows, nearest, minlength=n_rows) / np.maximum(n_true, 1)

    def _distances_between(self, ones: Ids, others: Ids) -> Ids:
        """Return the distances between nodes; those outside the taxonomy are one edge below the root."""
        size = len(self.taxonomy)
        outside = (ones >= size).astype(np.int64) + (others >= size)
        found = outside + self.taxonomy.distances(np.where(ones < size, ones, -1), np.where(others < size, others, -1))
        found[(ones == others) & (ones >= size)] = 0
        return found


def hierarchical_precision(y_true: Any, y_pred: Any, taxonomy: Any = None, average: str = "micro") -> float:
    """Return the share of the predicted nodes, with all ancestors, that are true; 0 where nothing is predicted.

    Parameters
    ----------
    y_true, y_pred
        Labels of each row: one, or a list; any node of the taxonomy. None is no answer.
    taxonomy
        A `Taxonomy` or a hierarchy. With None, rows have all ancestors already: paths.
    average : {"micro", "macro"}
        "micro" divides sums over rows, "macro" is the mean over rows.

    Examples
    --------
    >>> taxonomy = {"animal": {"pet": ["cat", "dog"], "fish": ["eel"]}}
    >>> hierarchical_precision(["cat", "eel"], ["dog", "fish"], taxonomy)
    0.8
    """
    sizes = _sizes(y_true, y_pred, taxonomy, average)
    return _micro(sizes, 1) if average == "micro" else float(_by_row(sizes, 1).mean())


def hierarchical_recall(y_true: Any, y_pred: Any, taxonomy: Any = None, average: str = "micro") -> float:
    """Return the share of the true nodes, with all ancestors, that are predicted; see `hierarchical_precision`."""
    sizes = _sizes(y_true, y_pred, taxonomy, average)
    return _micro(sizes, 0) if average == "micro" else float(_by_row(sizes, 0).mean())


def hierarchical_f1(
    y_true: Any, y_pred: Any, taxonomy: Any = None, average: str = "micro", zero_division: float = 0.0
) -> float:
    """Return the harmonic mean of hierarchical precision and recall, `zero_division` where both are 0.

    "macro" is the mean of that of rows. The other parameters are those of `hierarchical_precision`.
    """
    sizes = _sizes(y_true, y_pred, taxonomy, average)
    if average == "micro":
        return f1(_micro(sizes, 1), _micro(sizes, 0), zero_division)
    rows = zip(_by_row(sizes, 1).tolist(), _by_row(sizes, 0).tolist())
    return float(np.mean([f1(precision, recall, zero_division) for precision, recall in rows]))


def tree_distance(y_true: Any, y_pred: Any, taxonomy: Any) -> float:
    """Return the mean number of edges between true and predicted labels in the taxonomy.

    Each true label counts its distance to the nearest predicted one, and to the root where nothing is predicted. Nodes
    without a common ancestor are connected by the root, one edge above the first level.

    >>> tree_distance(["cat", "cat", "cat"], ["cat", "eel", "pet"], {"animal": {"pet": ["cat"], "fish": ["eel"]}})
    1.6666666666666667
    """
    return HierarchicalScores.result(_scores(y_true, y_pred, taxonomy))["distance"]


def f1(precision: float, recall: float, zero_division: float) -> float:
    """Return the harmonic mean of precision and recall."""
    return 2 * precision * recall / (precision + recall) if precision + recall > 0 else float(zero_division)


def _scores(y_true: Any, y_pred: Any, taxonomy: Any) -> HierarchicalScores:
    scores = HierarchicalScores(taxonomy)
    scores.update(y_true, y_pred)
    return scores


def _sizes(y_true: Any, y_pred: Any, taxonomy: Any, average: str) -> NDArray[np.int64]:
    if average not in ("micro", "macro"):
        raise ValueError(f"average must be micro or macro, got {average!r}.")
    return _scores(y_true, y_pred, taxonomy)._all()[0]


def _micro(sizes: NDArray[np.int64], whole: int) -> float:
    return int(sizes[2].sum()) / max(1, int(sizes[whole].sum()))


def _by_row(sizes: NDArray[np.int64], whole: int) -> NDArray[np.float64]:
    return sizes[2] / np.maximum(sizes[whole], 1)


def _rows_and_names(y: Any, name: str) -> tuple[Ids, list[Any], int]:
    """Return the row and the name of every label, and the number of rows; None, NaN and "" are left out."""
    if isinstance(y, np.ndarray) and (y.ndim == 1 or y.dtype.kind in "OU"):
        y = y.tolist()
    if not isinstance(y, list | tuple):
        labels = read_labels(y, name)
        return np.repeat(np.arange(len(labels)), labels.counts), labels.values.tolist(), len(labels)
    listed = [_listed(row) for row in y]
    counts = [len(row) for row in listed]
    names = [label for row in listed for label in row]
    for label in names:
        if not isinstance(label, str | int | np.integer):
            raise ValueError(f"{name} must have labels that are strings or integers, got {label!r}.")
    return np.repeat(np.arange(len(listed)), counts), names, len(listed)


def _listed(row: Any) -> list[Any]:
    labels: Iterable[Any] = row if isinstance(row, ROW_TYPES) else [row]
    return [label for label in labels if label is not None and label == label and label != ""]
