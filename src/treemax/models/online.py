"""What the classifiers share that also learn from a stream."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, islice
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from treemax import modelfile
from treemax.formats.training_rows import training_chunks
from treemax.inputs.labels import LabelIndex, RaggedLabels, Targets, read_labels, target_ids
from treemax.inputs.numbering import numbered
from treemax.inputs.rows import Rows, SparseRows, check_scale, chosen_rows, sliceable
from treemax.models.base import LabelClassifier, TopK
from treemax.models.rates import FAR_LONGER
from treemax.parallel.locks import ModelLock
from treemax.parallel.threads import thread_count
from treemax.parameters import check_number

Result = TypeVar("Result")
Self = TypeVar("Self", bound="OnlineLabelClassifier")

FIRST_ROWS = 16  # of a stream, after which its settings stay
FEW_ROWS = 256  # which are answered at once in any case
SECONDS_ALONE = 0.02  # a learner lets others in after so long, at the end of a block


class WithRate:
    """A classifier that shows the learning rate and the passes of its settings."""

    settings_: Any

    @property
    def learning_rate_(self) -> float:
        """AdaGrad's rate in use."""
        return float(self.settings_.rate)

    @property
    def passes_(self) -> int:
        """Passes of `fit` over the rows."""
        return int(self.settings_.passes)


class OnlineLabelClassifier(LabelClassifier):
    """A classifier that also learns from a stream: labels and features never seen before simply arrive.

    A subclass adds `_start` (an empty model for a stream), `_resized` (room for what is new) and `_continue`
    (learn on). All that can be refused is refused before anything is changed.

    Any threads may learn, ask, save, describe, pickle and copy one model at the same time. Calls that learn take turns.
    Between two blocks of their rows, a few thousand at most, answers are given and the model is saved.
    """

    n_jobs: int | None
    settings_: Any
    max_labels: int | None = None
    _warned_of_labels = False

    def _check_parameters(self) -> None:
        if self.max_labels is not None:
            check_number("max_labels", self.max_labels, whole=True, least=1)

    def _check_labels(self, n_labels: int) -> None:
        if self.max_labels is not None and n_labels > self.max_labels:
            raise ValueError(
                f"{n_labels:,} labels are more than {type(self).__name__} may know (max_labels={self.max_labels}). Raise "
                "max_labels, or leave out the rare ones."
            )

    def _start(self, rows: Rows, targets: Targets, index: LabelIndex, multi_label: bool) -> Any:
        """A model that knows nothing yet, for a stream that begins with these rows."""
        raise NotImplementedError

    def _stream_settings(self, rows: Rows, multi_label: bool) -> Any:
        """Settings for a stream that begins with these rows, where they depend on the rows."""
        return None

    def _resized(self, model: Any, n_features: int, n_labels: int) -> Any:
        """The model with room for so many features and labels; the one given stays as it is."""
        raise NotImplementedError

    def _continue(self, model: Any, rows: Rows, targets: Targets) -> Iterator[int]:
        """Learn the rows in the order given, in place, block by block; yields the rows of each block.

        Between two blocks nothing runs, and the model is whole: other threads ask and save it then.
        """
        raise NotImplementedError

    def partial_fit(self: Self, X: Any, y: Any, classes: Any = None) -> Self:
        """Learn these rows, in order, on top of what was learned before.

        `classes` may announce labels (scikit-learn's manner); nothing needs to be announced. When `max_labels` are known,
        new ones are left out, with one warning: rows that have no other label are not learned, and labels that are known
        go on learning. Labels are never forgotten.
        """
        self._check_when_used()
        rows, labels = self._read(X, y)
        announced = None if classes is None else read_labels(classes, "classes")
        with self._lock.training:
            learner = self._snapshot()  # its parameters stay, whatever another thread sets meanwhile
            learner._check_when_used()
            blocks = learner._learned(X, rows, labels, announced)
            while self._lock.write(self._go_through, learner, blocks):
                pass
        return self

    def _go_through(self: Self, learner: Self, blocks: Iterator[int]) -> bool:
        """Let a twin learn a block, and more while they take no time to speak of; whether there may be others."""
        before, end = dict(learner.__dict__), perf_counter() + SECONDS_ALONE
        try:
            more = any(perf_counter() > end for _ in blocks)
        finally:
            super()._update_from(learner, before)
        if not more and self.__sklearn_is_fitted__():
            self._calibrate_again()
        return more

    def fit_stream(
        self: Self, source: Any, *, chunk_rows: int = 1000, multi_label: bool = False, **reading: Any
    ) -> Self:
        """Learn a stream of any length on top of what was learned before, in order, a chunk at a time.

        `source` is a file, a folder of files, a table or data set (whatever `treemax.formats.open_examples`
        takes, with its options as `reading`), or anything that gives chunks: pairs (X, y), or examples of a
        reader. Memory holds one chunk and the model, however long the stream. Where rows have one label each,
        those without one are left out; `multi_label` says that rows may have several although the first have one.
        """
        several = bool(getattr(self, "multi_label_", False))
        for X, y in training_chunks(source, chunk_rows, multi_label or several, **reading):
            self.partial_fit(X, y)
        return self

    def _begin(self, X: Any, rows: Rows, labels: RaggedLabels, announced: RaggedLabels | None) -> Targets:
        """Make a model that has learned nothing yet."""
        check_scale(rows)
        if announced is not None:
            missing = set(labels.values.tolist()) - set(announced.values.tolist())
            if missing:
                raise ValueError(f"y has labels that are not in classes: {sorted(missing)[:5]}.")
        index = LabelIndex()
        n_labels = self._labels_to_be(index, labels, announced, rows.shape[1])
        if n_labels == 0:
            raise ValueError("y has no labels at all: nothing can be learned before the first label.")
        targets = _indexed(index, labels, announced)
        model = self._start(rows, targets, index, labels.multi_label)
        self._set_fitted(X, rows, labels, index, targets, model)
        self.label_counts_[:], self.n_examples_ = 0, 0
        return targets

    def _go_on(self, X: Any, rows: Rows, labels: RaggedLabels, announced: RaggedLabels | None) -> Targets:
        """Make room in the model for what is new in these rows."""
        self._check_width(X, rows)
        self._check_form(labels)
        n_features = max(rows.shape[1], self.n_features_in_)
        n_labels = self._labels_to_be(self.label_index_, labels, announced, n_features)
        model = self._resized(self.model_, n_features, n_labels)
        targets = _indexed(self.label_index_, labels, announced)
        self._reconsider_settings(rows)
        self.model_, self.n_features_in_ = model, n_features
        self._feature_numbers = getattr(rows, "numbers", None) or self._feature_numbers
        n_new = n_labels - len(self.label_counts_)
        if n_new or not self.label_counts_.flags.writeable:
            self.label_counts_ = np.concatenate([self.label_counts_, np.zeros(n_new, dtype=np.int64)])
        return targets

    def _learned(
        self, X: Any, rows: Rows, labels: RaggedLabels, announced: RaggedLabels | None
    ) -> Iterator[int]:
        """Learn the rows, and count them; yields after each block."""
        is_fitted = self.__sklearn_is_fitted__()
        if self.max_labels is not None:
            rows, labels = self._within_bound(rows, labels, announced)
            if not len(rows):
                return
        start = self._go_on if is_fitted else self._begin
        rows = numbered(rows, *((self._feature_numbers, self.n_features_in_) if is_fitted else ()))
        targets, done = start(X, rows, labels, announced), 0
        for n in self._continue(self.model_, rows, targets):
            ids = targets.ids[targets.indptr[done] : targets.indptr[done + n]]
            np.add.at(self.label_counts_, ids, 1)
            self.n_examples_ += n
            done += n
            yield n
        self._check_biases(targets)

    def _within_bound(
        self, rows: Rows, labels: RaggedLabels, announced: RaggedLabels | None
    ) -> tuple[Rows, RaggedLabels]:
        """The rows and labels without the labels, by arrival, that are more than `max_labels`."""
        index = self.label_index_ if self.__sklearn_is_fitted__() else LabelIndex()
        if announced is not None or labels.is_indicator:  # the caller counts on all of them
            self._check_labels(self._labels_to_be(index, labels, announced, rows.shape[1]))
            return rows, labels
        values = labels.values[labels.indptr[0] : labels.indptr[-1]]
        if len(values):
            index.check_kind(labels.dtype)
        new = dict.fromkeys(values[index.ids(values) < 0].tolist())
        room = max(0, int(self.max_labels or 0) - len(index))
        if len(new) <= room:
            return rows, labels
        if not self._warned_of_labels:
            warnings.warn(
                f"This {type(self).__name__} knows as many labels as it may (max_labels={self.max_labels}): new ones are left "
                "out from now on.",
                stacklevel=7,
            )
            self._warned_of_labels = True
        left_out = set(islice(new, room, None))
        kept = np.fromiter((label not in left_out for label in values.tolist()), bool, len(values))
        counts = np.bincount(np.repeat(np.arange(len(labels)), labels.counts)[kept], minlength=len(labels))
        learned = np.flatnonzero((counts > 0) | (labels.counts == 0))
        indptr = np.concatenate([[0], np.cumsum(counts[learned])])
        return chosen_rows(rows, learned), replace(labels, indptr=indptr, values=values[kept])

    def _check_biases(self, targets: Targets) -> None:
        """Say so if learning went wrong: a weight that is no number soon makes the biases of the labels such."""
        ids = targets.ids[targets.indptr[0] : targets.indptr[-1]]
        if not np.isfinite(self._biases(self.model_, ids)).all():
            raise ValueError(
                f"{type(self).__name__} has learned weights that are not finite numbers, and cannot be used any more. "
                "Go on from the last model that was saved, with a lower learning rate and features of about one."
            )

    def _biases(self, model: Any, ids: NDArray[np.uint32]) -> NDArray[np.float32]:
        """Biases that change with every row of these labels."""
        return np.zeros(0, dtype=np.float32)

    def _calibrate_again(self) -> None:
        """Take over what the model found of its scores while it learned, if it looks."""
        found = self._calibration_of(self.model_) or self.calibration_
        threshold = self.threshold_ if self._threshold_was_set else found.threshold
        self.calibration_ = found._replace(threshold=threshold)

    def _check_form(self, labels: RaggedLabels) -> None:
        if labels.multi_label and not self.multi_label_:
            raise ValueError(
                "The model began as multi-class, with one label a row; y is now multi-label. "
                "Begin with label lists (or an indicator matrix) where rows may have several labels."
            )
        if self._label_form in ("indicator", "dense-indicator") and not labels.is_indicator:
            raise ValueError("The model began with an indicator matrix as y; keep to that form.")

    def _reconsider_settings(self, rows: Rows) -> None:
        """Take other rates when those of the first rows prove to come from a row far larger than the others."""
        if self.n_examples_ >= FIRST_ROWS or getattr(self.model_, "scaling", None) is not None:
            return
        values = rows.values[rows.indptr[0] : rows.indptr[-1]] if isinstance(rows, SparseRows) else rows
        if not values.any():
            return
        settings = self._stream_settings(rows, self.multi_label_)
        if settings is not None and 0 < FAR_LONGER**2 * settings.initial < self.settings_.initial:
            self.settings_ = settings

    def _labels_to_be(
        self, index: LabelIndex, labels: RaggedLabels, announced: RaggedLabels | None, n_features: int
    ) -> int:
        """How many labels there will be, if they are of one kind and fit in memory."""
        columns = labels.n_columns if labels.is_indicator else 0
        growing = self.__sklearn_is_fitted__()
        self._check_size(n_features, max(len(index), columns), growing)
        new = {j for j in range(columns) if j not in index}
        for part in (labels, announced):
            if part is not None and len(part.values):
                index.check_kind(part.dtype)
                new.update(np.asarray(part.values)[index.ids(part.values) < 0].tolist())
        self._check_size(n_features, len(index) + len(new), growing)
        return len(index) + len(new)

    # --- one model, many threads --------------------------------------------------------------------------

    @property
    def _lock(self) -> ModelLock:
        """Made when first needed, for scikit-learn wants nothing but parameters in a new estimator."""
        lock = self.__dict__.get("_model_lock")
        return self.__dict__.setdefault("_model_lock", ModelLock()) if lock is None else lock

    def _with_read_access(self, work: Callable[..., Result], *args: Any, **options: Any) -> Result:
        return self._lock.read(super()._with_read_access, work, *args, **options)

    def _with_read_access_by_rows(self, work: Callable[..., Any], X: Any, *args: Any, **options: Any) -> Any:
        """Many rows are answered in blocks, so that a learner, and those who wait for it, wait for one only.

        When `fit` replaces the model meanwhile, all of them are answered anew.
        """
        n_rows = _n_rows(X)
        size = n_rows if n_rows <= FEW_ROWS else self._rows_at_once()
        if n_rows <= size or self.__dict__.get("_label_form") not in ("vector", "lists"):
            return self._with_read_access(work, X, *args, **options)
        rows = sliceable(X)

        def answered(twin: Self, start: int) -> tuple[Any, LabelIndex]:
            return work(twin, rows[start : start + size], *args, **options), twin.label_index_

        while True:
            parts = [self._with_read_access(answered, start) for start in range(0, n_rows, size)]
            if all(index is parts[0][1] for _, index in parts):
                return _joined([answers for answers, _ in parts])

    def _rows_at_once(self) -> int:
        """How many rows are answered while others wait."""
        return 2048 * thread_count(self.n_jobs)

    def _with_snapshot(self, work: Callable[..., Result], *args: Any, **options: Any) -> Result:
        return self._lock.snapshot(work, self, *args, **options)

    def _with_write_access(self, work: Callable[..., Result], *args: Any, **options: Any) -> Result:
        return self._lock.write(work, self, *args, **options)

    def set_params(self: Self, **params: Any) -> Self:
        """Set parameters, between two calls that learn or ask: each of them uses one set of values."""
        with self._lock.training:
            return self._lock.write(super().set_params, **params)

    def _snapshot(self: Self) -> Self:
        return self._lock.read(super()._snapshot)

    def _known_classes(self) -> NDArray[Any]:
        return self._lock.read(super()._known_classes)

    def _update_from(self, trained: Any, before: dict[str, Any]) -> None:
        with self._lock.training:
            self._lock.write(super()._update_from, trained, before)

    def to_parts(self, resume: bool = False) -> tuple[dict[str, Any], modelfile.Arrays]:
        """This estimator as a JSON-able header and named arrays, which learning does not change."""
        parts = super().to_parts
        if self._lock.in_snapshot:  # as while a file is written: no copies are needed
            return parts(resume)
        return self._lock.snapshot(lambda: copy.deepcopy(parts(resume)))

    def __getstate__(self) -> dict[str, Any]:
        """A copy of everything: what reads it comes back to it after others have gone on learning."""
        state = super().__getstate__

        def copied() -> dict[str, Any]:
            return copy.deepcopy({name: value for name, value in state().items() if name != "_model_lock"})

        return self._lock.snapshot(copied)

    def __deepcopy__(self: Self, memo: dict[int, Any]) -> Self:
        twin: Self = object.__new__(type(self))
        memo[id(self)] = twin
        twin.__setstate__(self.__getstate__())
        return twin


def _n_rows(X: Any) -> int:
    """The rows of what can be cut into blocks of rows; 0 of anything else."""
    if sp.issparse(X) or isinstance(X, np.ndarray | SparseRows) or hasattr(X, "iloc"):
        return X.shape[0] if len(X.shape) == 2 else 0
    return len(X) if isinstance(X, list) else 0


def _joined(parts: list[Any]) -> Any:
    """The answers to several blocks of rows as one. Those to later ones may know more labels."""
    if isinstance(parts[0], list):
        return list(chain.from_iterable(parts))
    if isinstance(parts[0], TopK):
        k = min(part.scores.shape[1] for part in parts)
        return TopK(*(np.concatenate([part[i][:, :k] for part in parts]) for i in range(2)))
    return np.concatenate(parts)


def _indexed(index: LabelIndex, labels: RaggedLabels, announced: RaggedLabels | None) -> Targets:
    """Give every label that needs one its id."""
    if announced is not None:
        index.add(announced.values, announced.dtype)
    if labels.is_indicator:
        index.add(np.arange(labels.n_columns), np.int64)
    return target_ids(labels, index.add(labels.values, labels.dtype))
