"""Changes of the labels of a trained model: forget, rename, merge."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.labels import LabelIndex, read_labels
from treemax.inputs.rows import Rows, read_only
from treemax.models.base.empty_rows import EmptyRows
from treemax.models.base.label_weights import LabelWeights, LastWeights
from treemax.models.base.thread_safety import SharedEstimator
from treemax.models.base.thresholds import Decision
from treemax.models.trained.parts import whole_number
from treemax.models.trained.searching import SparseProbabilities, best_weighted
from treemax.numpy_only.frequencies import most_frequent
from treemax.parallel.locks import fork_safe

Ids = NDArray[np.int64]
Floats = NDArray[np.float32]
Self = TypeVar("Self", bound="ChangeableLabels")

FORGOT, RENAMED, MERGED, LEARNED_AGAIN, ADDED = KINDS = ("forgot", "renamed", "merged", "learned_again", "added")
CHANGING = fork_safe(Lock())  # two threads may change labels of one model


@dataclass(frozen=True, eq=False)
class LabelChanges:
    """The labels that a model does not answer although it has weights for them, by id, and a log of all changes."""

    forgotten: frozenset[int] = frozenset()
    merged: Mapping[int, int] = field(default_factory=dict)  # part -> the label that it belongs to
    log: tuple[tuple[str, int], ...] = ()  # kind of a change, and the number of labels
    n_columns: int | None = None  # of the indicator matrix of training, if some of its labels were removed
    _weights: dict[str, Any] = field(default_factory=dict, repr=False)  # derived, and of the last call

    def __bool__(self) -> bool:
        return bool(self.forgotten or self.merged)

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields without what was derived: other threads may add to it while this is copied."""
        return {**self.__dict__, "_weights": {}}

    @property
    def last_weights(self) -> LastWeights | None:
        """The weights of the last call with given labels; kept here, since all calls share this object."""
        return self._weights.get("last")

    def keep_weights(self, last: LastWeights) -> None:
        self._weights["last"] = last

    def changed(self, kind: str, n_labels: int, **attributes: Any) -> LabelChanges:
        """Return these changes and one more."""
        return replace(self, log=(*self.log, (kind, n_labels)), _weights={}, **attributes)

    @property
    def heads(self) -> Ids:
        """The labels that others were merged into."""
        return np.unique(np.fromiter(self.merged.values(), np.int64, len(self.merged)))

    @property
    def members(self) -> Ids:
        """The parts of all merged labels, each after its head, in the order of `heads`."""
        parts = sorted([(head, -1) for head in self.heads.tolist()] + [(b, a) for a, b in self.merged.items()])
        return np.array([head if part < 0 else part for head, part in parts], dtype=np.int64)

    def present(self, n_labels: int) -> Floats:
        """Return weights of all labels: 0 for those that were forgotten, else 1."""
        return self._masked("present", n_labels, self.forgotten)

    def kept(self, n_labels: int) -> Floats:
        """Return weights of all labels: 0 also for those that were merged into others."""
        return self._masked("kept", n_labels, self.forgotten, self.merged)

    def unmerged(self, n_labels: int) -> Floats:
        """Return weights of all labels: 0 also for those that others were merged into."""
        return self._masked("unmerged", n_labels, self.forgotten, self.merged, self.merged.values())

    def _masked(self, name: str, n_labels: int, *hidden: Iterable[int]) -> Floats:
        """Return weights, the same array for the same number of labels: models cache what they derive from them."""
        of_size, weights = self._weights.get(name, (-1, None))
        if weights is None or of_size != n_labels:
            weights = np.ones(n_labels, dtype=np.float32)
            for ids in hidden:
                weights[list(ids)] = 0.0
            weights = read_only(weights)
            self._weights[name] = n_labels, weights
        return weights

    def united(self, probabilities: Floats, multi_label: bool) -> Floats:
        """Return the probabilities of `heads` from those of `members`, in columns.

        Their sum if rows have one label, else the probability of at least one of independent labels.
        """
        starts = np.searchsorted(np.sort([*self.heads, *self.merged.values()]), self.heads)
        if multi_label:
            with np.errstate(divide="ignore"):
                of_none = np.add.reduceat(np.log1p(-probabilities.astype(np.float64)), starts, axis=1)
            return (-np.expm1(of_none)).astype(np.float32)
        return np.minimum(np.add.reduceat(probabilities, starts, axis=1), np.float32(1.0))

    def united_counts(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the counts of labels, plus those of the labels merged into them."""
        counts = counts.copy()
        for part, head in self.merged.items():
            counts[head] += counts[part]
        return counts

    def without_forgotten(self, kept: NDArray[np.bool_], n_columns: int | None) -> LabelChanges:
        """Return the changes for a model that has the `kept` labels only."""
        number = np.cumsum(kept) - 1
        merged = {int(number[part]): int(number[head]) for part, head in self.merged.items()}
        return replace(self, forgotten=frozenset(), merged=merged, n_columns=self.n_columns or n_columns, _weights={})

    def described(self) -> dict[str, Any]:
        """Return the log for `describe`; nothing without changes."""
        return {"label_changes": [{kind: n} for kind, n in self.log]} if self.log else {}

    def header(self) -> dict[str, Any]:
        """Return the part of the header of the model file; nothing without changes."""
        if not self.log:
            return {}
        merged = sorted([part, head] for part, head in self.merged.items())
        log = [[kind, n] for kind, n in self.log]
        return {"label_changes": {"log": log, "merged": merged, "n_columns": self.n_columns}}

    @classmethod
    def from_header(cls, header: dict[str, Any], n_labels: int) -> LabelChanges:
        """Restore the changes; raise ValueError if they do not fit the labels."""
        saved = header.get("label_changes")
        if saved is None:
            return cls()
        log = tuple((kind, whole_number("label_changes", n)) for kind, n in saved["log"])
        if not all(kind in KINDS for kind, _ in log):
            raise ValueError(f"the changes of labels are damaged: {saved!r:.80}")
        merged = {
            whole_number("merged", part, most=n_labels - 1): whole_number("merged", head, most=n_labels - 1)
            for part, head in saved["merged"]
        }
        if len(merged) != len(saved["merged"]) or set(merged) & set(merged.values()):
            raise ValueError("the merged labels do not fit together")
        n_columns = saved["n_columns"]
        return cls(frozenset(), merged, log, None if n_columns is None else whole_number("n_columns", n_columns))


class ChangeableLabels(SharedEstimator):
    """Mixin: `forget`, `rename`, `merge` and `compact`, and the answers of a model with such changes.

    Where `supports_compact` is set, the trained model has `without_labels(kept)`, which returns the model of some labels.
    """

    supports_compact: bool
    label_index_: LabelIndex
    label_counts_: NDArray[np.int64]
    label_weights_: NDArray[np.float64] | None
    _empty_rows: EmptyRows | None
    multi_label_: bool
    decision_: Decision | None
    class_weight: Any
    model_: Any
    _label_form: str
    _changes: LabelChanges = LabelChanges()

    # Methods of the classifier.
    _check_trained: Callable[[], None]
    _taxonomy_with_names: Callable[[dict[Any, Any]], dict[str, Any]]
    _weighted_top: Callable[[Rows, int, LabelWeights], tuple[Ids, Floats]]
    _scored_labels: Callable[[Rows, Ids], tuple[Floats, Floats]]
    _frequencies: Callable[[int], Floats]

    # --- changes ------------------------------------------------------------------------------------------

    def forget(self: Self, labels: Any) -> Self:
        """Never answer these labels again. It takes microseconds; the others keep their probabilities.

        In `predict_proba` forgotten labels have probability 0, and the rows of a multi-class model are scaled to sum to
        one. Their weights and names remain in memory until `compact`; saved files do not have them. `fit` starts anew,
        and `partial_fit` with a forgotten label brings it back.
        """
        self._check_trained()
        return self._with_write_access(type(self)._forget, _listed("labels", labels))

    def _forget(self: Self, labels: list[Any]) -> Self:
        with CHANGING:
            changes, ids = self._changes, set(self._answered_ids(labels))
            ids |= {part for part, head in changes.merged.items() if head in ids}
            if len(changes.forgotten) + len(ids) == len(self.label_index_):
                raise ValueError("No label would be left: a model cannot forget all of its labels.")
            merged = {part: head for part, head in changes.merged.items() if head not in ids}
            if ids:
                self._changes = changes.changed(
                    FORGOT, len(set(labels)), forgotten=changes.forgotten | ids, merged=merged
                )
        return self

    def rename(self: Self, names: Mapping[Any, Any]) -> Self:
        """Give labels new names, from a dictionary of old to new names; ids and answers stay as they are.

        A name that another label has is refused, unless that one is renamed too: see `merge`.
        """
        self._check_trained()
        return self._with_exclusive_access(type(self)._rename, _mapping("names", names))

    def _rename(self: Self, names: dict[Any, Any]) -> Self:
        if not names:
            return self
        if self._label_form.endswith("indicator"):
            raise ValueError(
                "The labels are columns of an indicator matrix, which have no names: train with label lists."
            )
        with CHANGING:
            ids = self._answered_ids(list(names))
            new = read_labels(list(names.values()), "names")
            if new.multi_label:
                raise ValueError("names must be a dictionary from one label to one label.")
            index = self.label_index_
            index.check_kind(new.dtype)
            given = new.values.tolist()
            taken = [label for label in given if label in index and label not in names]
            if taken or len(set(given)) < len(given):
                twice = taken[0] if taken else next(label for label in given if given.count(label) > 1)
                raise ValueError(f"Two labels would have the name {twice!r}: use merge to make them one label.")
            changed = {
                "label_index_": index.renamed(ids, given),
                "_changes": self._changes.changed(RENAMED, len(names)),
                **self._parameters_with_names(dict(zip(names, given))),
            }
            self.__dict__ = {**self.__dict__, **changed}
        return self

    def merge(self: Self, labels: Mapping[Any, Any]) -> Self:
        """Make labels parts of others, from a dictionary of labels to the labels that they belong to from now on.

        The probability of a merged label is the sum of those of its parts; of a multi-label model, that of at least one
        of its parts if they are independent. Both are computed for each row, so that a merged label takes the time of its
        parts. `partial_fit` takes the names of the parts, too.
        """
        self._check_trained()
        return self._with_write_access(type(self)._merge, _mapping("labels", labels))

    def _merge(self: Self, labels: dict[Any, Any]) -> Self:
        if not labels:
            return self
        with CHANGING:
            parts = self._answered_ids(list(labels))
            heads = self._answered_ids(list(labels.values()))
            if set(parts) & set(heads):
                both = next(label for label, part in zip(labels, parts) if part in set(heads))
                raise ValueError(f"merge: {both!r} is both a part and a label that others are merged into.")
            into = dict(zip(parts, heads))
            earlier = {part: into.get(head, head) for part, head in self._changes.merged.items()}
            self._changes = self._changes.changed(MERGED, len(labels), merged={**earlier, **into})
        return self

    def compact(self: Self) -> Self:
        """Remove forgotten labels from the model: weights, counts and names. `save` does it in the file.

        `classes_` has the other labels, in the same order. Where probabilities of siblings are scaled to sum to one, they
        take the share of those that were removed.
        """
        self._check_trained()
        return self._with_exclusive_access(type(self)._compact)

    def _compact(self: Self) -> Self:
        with CHANGING:
            if self._changes.forgotten:
                self.__dict__ = self._compacted().__dict__
        return self

    def _compacted(self: Self) -> Self:
        """Return a copy without the forgotten labels."""
        if not self.supports_compact:
            from treemax.models import MODELS  # circular import

            able = ", ".join(kind.__name__ for kind in MODELS.values() if kind.supports_compact)
            raise ValueError(
                f"{type(self).__name__} has forgotten {len(self._changes.forgotten)} labels, but cannot remove their weights, "
                f"which compact and save do. Models that can are {able}. Train again without these labels."
            )
        index, forgotten = self.label_index_, sorted(self._changes.forgotten)
        kept = np.ones(len(index), dtype=bool)
        kept[forgotten] = False
        twin: Self = SharedEstimator._snapshot(self)
        for kept_from_before in ("_classes", "_checked"):  # which have the names of forgotten labels
            twin.__dict__.pop(kept_from_before, None)
        twin.model_ = self.model_.without_labels(kept)
        twin._compact_state(kept)
        twin.label_index_ = index.without(forgotten)
        twin.label_counts_ = self.label_counts_[kept]
        twin.label_weights_ = None if self.label_weights_ is None else self.label_weights_[kept]
        if self._empty_rows is not None:
            counts = self._empty_rows.array(len(index))[:-1][kept]
            twin._empty_rows = self._empty_rows._replace(label_counts=counts)
        if self.decision_ is not None:
            twin.decision_ = self.decision_.without(kept)
        n_columns = len(index) if self._label_form.endswith("indicator") else None
        twin._changes = self._changes.without_forgotten(kept, n_columns)
        twin.__dict__.update(self._parameters_with_names(dict.fromkeys(index.labels(forgotten).tolist())))
        return twin

    def _compact_state(self, kept: NDArray[np.bool_]) -> None:
        """Remove the other labels from what training continues from beside `model_`."""

    def _parameters_with_names(self, names: dict[Any, Any]) -> dict[str, Any]:
        """Return the attributes that name labels, with new names; those whose new name is None are left out."""
        changed = self._taxonomy_with_names(names)
        if not isinstance(self.class_weight, Mapping):
            return changed
        named = {names.get(label, label): weight for label, weight in self.class_weight.items()}
        named.pop(None, None)
        return {**changed, "class_weight": named}

    def _restore_relearned(self, ids: Ids) -> None:
        """Answer labels again that were learned after they had been forgotten."""
        again = self._changes.forgotten & set(ids.tolist())
        if again:
            self._changes = self._changes.changed(LEARNED_AGAIN, len(again), forgotten=self._changes.forgotten - again)

    def _answered_ids(self, labels: list[Any]) -> list[int]:
        """Return the ids of labels; raise ValueError for those that are unknown, forgotten or merged into others."""
        try:
            ids = self.label_index_.ids(labels).tolist()
        except TypeError:
            raise ValueError(f"Labels must be strings or integers, got {labels!r:.80}.") from None
        changes = self._changes
        unknown = [
            label
            for label, known in zip(labels, ids)
            if known < 0 or known in changes.forgotten or known in changes.merged
        ]
        if unknown:
            names = ", ".join(map(repr, unknown[:5]))
            raise ValueError(
                f"The model has no label {names}{' ...' if len(unknown) > 5 else ''} ({len(unknown)} of {len(labels)} given "
                "are unknown, forgotten, or merged into others). Nothing was changed."
            )
        return ids

    # --- answers ------------------------------------------------------------------------------------------

    def _merged_top(self, rows: Rows, k: int, weights: LabelWeights) -> tuple[Ids, Floats]:
        """Return the ids and probabilities of the k best labels by probability x weight, of a model with merged labels."""
        changes, values = self._changes, weights.values
        unmerged = changes.unmerged(len(values))
        same = values is changes.kept(len(values))
        others = LabelWeights(unmerged if same else read_only(values * unmerged))
        n_others = min(k, others.n_allowed)
        ids, probabilities = np.empty((len(rows), 0), np.int64), np.empty((len(rows), 0), np.float32)
        if n_others:
            ids, probabilities = self._weighted_top(rows, n_others, others)
        heads = np.broadcast_to(changes.heads, (len(rows), len(changes.heads)))
        return best_weighted(np.hstack([ids, heads]), np.hstack([probabilities, self._of_merged(rows)]), values, k)

    def _of_merged(self, rows: Rows) -> Floats:
        """Return probabilities of the labels that others were merged into, in columns."""
        members = self._changes.members
        ids = np.ascontiguousarray(np.broadcast_to(members, (len(rows), len(members))))
        return self._changes.united(self._scored_labels(rows, ids)[1], self.multi_label_)

    def _changed_above(self, rows: Rows, threshold: float, found: SparseProbabilities) -> SparseProbabilities:
        """Apply the changes to the labels above a threshold."""
        changes = self._changes
        kept = changes.unmerged(len(self.label_index_))[found.ids] > 0
        row_of, ids, probabilities = found.rows[kept], found.ids[kept], found.probabilities[kept]
        if not changes.merged:
            return SparseProbabilities(row_of, ids, probabilities)
        merged = self._of_merged(rows)
        row, place = np.nonzero(merged >= np.float32(threshold))
        row_of, ids = np.concatenate([row_of, row]), np.concatenate([ids, changes.heads[place]])
        order = np.lexsort((ids, row_of))
        probabilities = np.concatenate([probabilities, merged[row, place]])
        return SparseProbabilities(row_of[order], ids[order], probabilities[order])

    def _changed_of_labels(self, rows: Rows, ids: Ids, probabilities: Floats) -> Floats:
        """Apply the changes to the probabilities of given labels."""
        changes = self._changes
        answer = probabilities * np.append(changes.kept(len(self.label_index_)), np.float32(0.0))[ids]
        if changes.merged and np.isin(ids, changes.heads).any():
            merged, place = self._of_merged(rows), np.searchsorted(changes.heads, ids)
            place = np.minimum(place, len(changes.heads) - 1)
            answer = np.where(changes.heads[place] == ids, np.take_along_axis(merged, place, axis=1), answer)
        return answer

    def _changed_of_all(self, probabilities: Floats) -> Floats:
        """Apply the changes to the probabilities of all labels; those of a multi-class model sum to one."""
        changes = self._changes
        kept = changes.kept(probabilities.shape[1])
        if changes.merged:
            probabilities[:, changes.heads] = changes.united(probabilities[:, changes.members], self.multi_label_)
        answer = probabilities * kept
        if self.multi_label_:
            return answer
        total = answer.sum(axis=1, keepdims=True)
        frequencies = self._frequencies(len(kept)) * kept
        even = kept / kept.sum()
        instead = frequencies / frequencies.sum() if frequencies.any() else even
        return np.where(total > 0, answer / np.maximum(total, 1e-30), instead)

    def _with_some_label(self, ids: Ids) -> Ids:
        """Replace -1, where no candidate of a row is left, by the most frequent label."""
        if (ids >= 0).all():
            return ids
        kept = self._changes.kept(len(self.label_index_))
        frequent = most_frequent(np.where(kept > 0, self._frequencies(len(kept)), -1), 1)
        return np.where(ids >= 0, ids, frequent[0])


def _listed(name: str, labels: Any) -> list[Any]:
    if isinstance(labels, str | bytes | Mapping) or not isinstance(labels, Iterable):
        raise ValueError(f"{name} must be a list of labels, got {labels!r:.80}.")
    return labels.tolist() if isinstance(labels, np.ndarray) else list(labels)


def _mapping(name: str, labels: Any) -> dict[Any, Any]:
    if not isinstance(labels, Mapping):
        raise ValueError(f"{name} must be a dictionary from labels to labels, got {labels!r:.80}.")
    return dict(labels)
