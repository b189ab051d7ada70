"""New labels of a trained model: `add_labels`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.labels import LabelIndex, RaggedLabels, Targets, take_targets, target_ids
from treemax.inputs.numbering import FeatureNumbers, numbered
from treemax.inputs.rows import Rows, SparseRows, check_scale, take_rows
from treemax.inputs.weights import with_class_weight
from treemax.models.base.empty_rows import empty_rows
from treemax.models.base.label_changes import ADDED, CHANGING, ChangeableLabels
from treemax.trees import Tree, is_hierarchy, parents_by_name

Self = TypeVar("Self", bound="GrowingLabels")


class NewLabels(NamedTuple):
    """Rows with new labels, the labels of the model and the new ones, and the ids of the labels of the rows."""

    rows: Rows
    labels: LabelIndex
    targets: Targets
    cost: float = 1.0  # multiplies the weights of the rows in training, not in the counts of labels


class GrowingLabels(ChangeableLabels):
    """Mixin: `add_labels`, for models whose trained model can be extended (`_with_new_labels`)."""

    n_examples_: int
    n_features_in_: int
    _total_weight: float
    _feature_numbers: FeatureNumbers | None

    # Methods of the classifier.
    _training: Callable[[], Any]
    _read: Callable[..., tuple[Rows, RaggedLabels, NDArray[np.float32] | None]]
    _check_width: Callable[[Any, Rows], None]
    _check_form: Callable[[RaggedLabels], None]
    _check_labels: Callable[[int], None]
    _prepared: Callable[[Rows], Rows]

    def add_labels(self: Self, X: Any, y: Any, parent: Any = None, sample_weight: Any = None) -> Self:
        """Add labels to a trained model from a few examples of each, without training the others again.

        A label is put where its examples lead in the tree, and is trained there against the other rows of X that lead to
        the same node and the weights of the labels beside it. The weights of all other labels keep their bits; where
        probabilities of siblings sum to one, the new labels take their share. Rows of known labels may be among X: they
        are examples of what the new labels are not. Forgotten labels are removed first, as by `compact`.

        Parameters
        ----------
        X, y
            Rows and their labels, as for `fit`. New features of sparse rows are learned, too. Of an indicator matrix, the
            new labels are further columns.
        parent : dict, optional
            Where to put new labels: below a node of the hierarchy that is the parameter `tree`, or beside a known label.
            New labels that the hierarchy has are put where it has them.
        sample_weight : array, optional
            A weight for each row.
        """
        self._check_trained()
        if parent is not None and not isinstance(parent, Mapping):
            raise ValueError(f"parent must be a dictionary from new labels to their places, got {parent!r:.80}.")
        return self._with_exclusive_access(type(self)._add_labels, X, y, parent, sample_weight)

    def _add_labels(
        self: Self, X: Any, y: Any, parent: Mapping[Any, Any] | None, sample_weight: Any, cost: float = 1.0
    ) -> Self:
        with CHANGING, self._training() as trainee:
            if trainee._changes.forgotten:
                trainee.__dict__ = trainee._compacted().__dict__
            new = trainee._read_new_labels(X, y, sample_weight)._replace(cost=cost)
            trainee.model_ = trainee._with_new_labels(trainee._without_empty_rows(new), parent)
            trainee._count_new_labels(new)
        return self

    def _with_new_labels(self, new: NewLabels, parent: Mapping[Any, Any] | None) -> Any:
        """Return the trained model with the new labels."""
        from treemax.models import MODELS  # circular import

        able = [
            kind.__name__ for kind in MODELS.values() if kind._with_new_labels is not GrowingLabels._with_new_labels
        ]
        online = [kind.__name__ for kind in MODELS.values() if hasattr(kind, "partial_fit")]
        raise ValueError(
            f"{type(self).__name__} cannot add labels to a trained model: train again with all rows, or use "
            f"{', '.join(able)}, or a model that learns online: {', '.join(online)}."
        )

    def _read_new_labels(self, X: Any, y: Any, sample_weight: Any) -> NewLabels:
        """Validate the arguments of `add_labels`."""
        rows, labels, weights = self._read(X, y, sample_weight)
        self._check_width(X, rows)
        self._check_form(labels)
        if labels.multi_label != self.multi_label_:
            raise ValueError("The model is multi-label: y must have label lists (or an indicator matrix), as in fit.")
        check_scale(rows)
        rows = numbered(self._prepared(rows), self._feature_numbers, self.n_features_in_)
        n_known, index = len(self.label_index_), self.label_index_.copy()
        if labels.is_indicator:
            index.add(np.arange(n_known, max(n_known, labels.n_columns)), labels.dtype)
        elif len(labels.values):
            index.check_kind(labels.dtype)
            new = sorted(set(labels.values[index.ids(labels.values) < 0].tolist()))
            index.add(np.array(new, dtype=labels.values.dtype), labels.dtype)
        ids = index.ids(labels.values)
        if len(index) == n_known:
            raise ValueError("y has no new label: the model knows all of them.")
        without = n_known + np.flatnonzero(np.bincount(ids, minlength=len(index))[n_known:] == 0)
        if len(without):
            raise ValueError(f"Column {without[0]} of y, a new label, has no row: each new label needs an example.")
        self._check_labels(len(index))
        targets = replace(target_ids(labels, ids), weights=weights)
        if isinstance(self.class_weight, Mapping):
            targets = with_class_weight(targets, self.class_weight, index, self.multi_label_)
        return NewLabels(rows, index, targets)

    def _without_empty_rows(self, new: NewLabels) -> NewLabels:
        """Return the rows to train on: those without features say nothing about the rows that a new label has."""
        if not isinstance(new.rows, SparseRows) or (np.diff(new.rows.indptr) > 0).all():
            return new
        kept = np.flatnonzero(np.diff(new.rows.indptr) > 0)
        left = new._replace(rows=take_rows(new.rows, kept), targets=take_targets(new.targets, kept))
        n_known, counts = len(self.label_index_), np.bincount(left.targets.ids, minlength=len(new.labels))
        without = n_known + np.flatnonzero(counts[n_known:] == 0)
        if len(without):
            label = new.labels.labels(without[:1]).tolist()[0]
            raise ValueError(
                f"No row of the new label {label!r} has a feature (such as a word of two letters or more): a label needs "
                "an example with one."
            )
        return left

    def _count_new_labels(self, new: NewLabels) -> None:
        """Set the learned attributes that depend on the labels and the number of rows."""
        n_new, n_labels, ids = len(new.labels) - len(self.label_index_), len(new.labels), new.targets.ids
        weighted = self.label_weights_ is not None or new.targets.weights is not None
        if weighted:
            before = self.label_counts_ if self.label_weights_ is None else self.label_weights_
            total = float(self.n_examples_) if self.label_weights_ is None else self._total_weight
            self.label_weights_ = np.pad(before.astype(np.float64), (0, n_new)) + new.targets.label_totals(n_labels)
            self._total_weight = total + new.targets.total
        counts: NDArray[np.int64] = np.bincount(ids, minlength=n_labels)
        self.label_counts_ = np.pad(self.label_counts_, (0, n_new)) + counts
        self.n_examples_ += len(new.rows)
        empty = empty_rows(new.rows.indptr, new.targets, n_labels) if isinstance(new.rows, SparseRows) else None
        if empty is not None:
            self._empty_rows = empty if self._empty_rows is None else self._empty_rows.plus(empty)
        self.n_features_in_ = max(self.n_features_in_, new.rows.shape[1])
        self._feature_numbers = getattr(new.rows, "numbers", None) or self._feature_numbers
        self.label_index_ = new.labels
        self._changes = self._changes.changed(ADDED, n_new)


def places_of(
    tree: Any, known: LabelIndex, index: LabelIndex, parent: Mapping[Any, Any] | None
) -> tuple[dict[int, list[int]], Any]:
    """Return the known labels that each new label belongs to, and the hierarchy with the new labels.

    `index` has the known labels and the new ones. New labels without a place are left out.
    """
    names = index.labels(np.arange(len(known), len(index))).tolist()
    given = dict(parent or {})
    stray = [label for label in given if label not in index or label in known]
    if stray:
        raise ValueError(f"parent has {stray[0]!r}, which is not a new label of y.")
    above = parents_by_name(tree) if is_hierarchy(tree) and not isinstance(tree, Tree) else {}
    under = _labels_below(above, known)
    places = {}
    for number, name in enumerate(names, len(known)):
        place = given.get(name, above.get(name))
        if name in given and place not in under and place not in known:
            raise ValueError(
                f"parent of {name!r} is {place!r}, which is neither a known label nor a node of the hierarchy with known labels."
            )
        while place is not None and place not in under and place not in known:
            place = above.get(place)
        if place is not None:
            places[number] = under.get(place) or known.ids([place]).tolist()
    return places, {**above, **given} if above else tree


def _labels_below(above: dict[Any, Any], known: LabelIndex) -> dict[Any, list[int]]:
    """Return the ids of the known labels below every node of a hierarchy that has some."""
    below: dict[Any, list[int]] = {}
    for number, name in enumerate(known.classes.tolist() if above else ()):
        node, seen = above.get(name), set()
        while node is not None and node not in seen:
            seen.add(node)
            below.setdefault(node, []).append(number)
            node = above.get(node)
    return below
