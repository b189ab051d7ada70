"""Base class of the classifiers with `partial_fit` and `fit_stream`."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, islice
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from treemax import modelfile
from treemax.formats.training_rows import training_chunks
from treemax.inputs.labels import LabelIndex, RaggedLabels, Targets, read_labels, target_ids
from treemax.inputs.numbering import numbered
from treemax.inputs.rows import Rows, SparseRows, check_scale, sliceable, take_rows
from treemax.models.base.classifier import LabelClassifier
from treemax.models.base.empty_rows import empty_rows
from treemax.models.base.label_changes import ADDED, CHANGING
from treemax.models.training.learning_rates import FAR_LONGER
from treemax.numpy_only.topk import TopK
from treemax.parallel.locks import ModelLock
from treemax.parallel.threads import thread_count
from treemax.parameters import check_number

Result = TypeVar("Result")
Self = TypeVar("Self", bound="OnlineLabelClassifier")

FIRST_ROWS = 16  # rows of a stream after which its settings are fixed
FEW_ROWS = 256  # predicted in one block in any case
MAX_WRITE_SECONDS = 0.02  # after which `partial_fit` releases the lock, at the end of a block


class Batch(NamedTuple):
    """The validated rows of a call of `partial_fit`."""

    X: Any
    rows: Rows
    labels: RaggedLabels
    announced: RaggedLabels | None  # labels of `classes`
    weights: NDArray[np.float32] | None


class WithRate:
    """Mixin: `learning_rate_` and `passes_` from the settings."""

    settings_: Any

    @property
    def learning_rate_(self) -> float:
        """AdaGrad's learning rate."""
        return float(self.settings_.rate)

    @property
    def passes_(self) -> int:
        """Passes of `fit` over the rows."""
        return int(self.settings_.passes)


class OnlineLabelClassifier(LabelClassifier):
    """Base class of classifiers that learn from a stream, in which new labels and features may appear at any time.

    A subclass implements `_start` (an untrained model), `_resized` (capacity for new labels and features) and
    `_continue` (training on more rows). Input is validated before anything is changed.

    Several threads may train, predict with, save, describe, pickle and copy one model at the same time. Training calls
    are serialised; predictions and saves run between their blocks of at most a few thousand rows.
    """

    n_jobs: int | None
    settings_: Any
    max_labels: int | None = None
    FIXED_IN_STREAM: tuple[str, ...] = ()  # parameters that are only read when a stream begins
    _started_with: dict[str, Any] | None = None  # their values then
    _warned_of_labels = False
    _learned_again: NDArray[np.int64]  # labels of the rows being learned, of a model with forgotten labels
    _n_repeated = 0  # rows of `partial_fit` so far, before they were repeated

    def _check_parameters(self) -> None:
        check_number("max_labels", self.max_labels, whole=True, least=1, optional=True)

    def _check_labels(self, n_labels: int) -> None:
        if self.max_labels is not None and n_labels > self.max_labels:
            raise ValueError(
                f"{n_labels:,} labels are more than {type(self).__name__} allows (max_labels={self.max_labels}). Raise "
                "max_labels, or remove rare labels."
            )

    def _start(self, rows: Rows, targets: Targets, index: LabelIndex, multi_label: bool) -> Any:
        """Return an untrained model for a stream that begins with these rows."""
        raise NotImplementedError

    def _stream_settings(self, rows: Rows, multi_label: bool) -> Any:
        """Return settings for a stream that begins with these rows; None if they do not depend on them."""
        return None

    def _resized(self, model: Any, n_features: int, n_labels: int) -> Any:
        """Return the model with capacity for this number of features and labels."""
        raise NotImplementedError

    def _continue(self, model: Any, rows: Rows, targets: Targets) -> Iterator[int]:
        """Train in place on the rows in order; yield the number of rows after each block.

        Between blocks the model is consistent: other threads may predict with it and save it.
        """
        raise NotImplementedError

    def partial_fit(self: Self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Update the model with these rows, in order.

        `classes` may list labels in advance, as in scikit-learn; this is optional. Once `max_labels` are known, new labels
        are ignored with one warning, and rows without other labels are skipped. Labels are never removed.
        `sample_weight` has a number for each row, by which its gradient is multiplied; rows of weight zero are left out.
        Parameters set between calls (`set_params`) hold from the next call on; those that are only read when a stream
        begins raise an error.
        """
        self._check_when_used()
        rows, labels, weights = self._read(X, y, sample_weight)
        if isinstance(self.class_weight, str):
            raise ValueError(
                "class_weight='balanced' needs the counts of all labels, which partial_fit does not know. Use fit, or "
                "a dictionary from labels to weights."
            )
        if not self.__sklearn_is_fitted__():
            if not len(rows) and weights is not None:
                raise ValueError(
                    "sample_weight is zero for all rows: the first call of partial_fit needs a positive weight."
                )
            check_scale(rows)
        elif not len(rows) and weights is not None:
            return self
        rows = self._prepared(rows)
        announced = None if classes is None else read_labels(classes, "classes")
        if self._repeats_rows():
            n_before = self._n_repeated
            self._n_repeated += len(rows)
            rows, labels, weights = self._repeated(rows, labels, weights, n_before)
            if not len(rows):
                return self
        with self._lock.training:
            learner = self._snapshot()  # keeps its parameters if another thread sets others
            learner._check_when_used()
            blocks = learner._learn_blocks(Batch(X, rows, labels, announced, weights))
            while self._lock.write(self._advance, learner, blocks):
                pass
        return self

    def _advance(self: Self, learner: Self, blocks: Iterator[int]) -> bool:
        """Train a snapshot on blocks for `MAX_WRITE_SECONDS`, at least one; return whether blocks remain."""
        before, end = dict(learner.__dict__), perf_counter() + MAX_WRITE_SECONDS
        try:
            more = any(perf_counter() > end for _ in blocks)
        finally:
            learned_again = learner.__dict__.pop("_learned_again", None)
            super()._update_from(learner, before)
        if learned_again is not None:
            self._restore_relearned(learned_again)
        if not more and self.__sklearn_is_fitted__():
            self._update_calibration()
        return more

    def add_labels(self: Self, X: Any, y: Any, parent: Any = None, sample_weight: Any = None) -> Self:
        """Learn rows with new labels: `partial_fit`, logged in `describe`. Rows of known labels are learned, too."""
        self._check_trained()
        if parent is not None:
            raise ValueError(f"{type(self).__name__} places new labels itself: leave out parent.")
        n_known = len(self.label_index_)
        self.partial_fit(X, y, sample_weight=sample_weight)
        n_new = len(self.label_index_) - n_known
        if n_new:
            with CHANGING:
                self._changes = self._changes.changed(ADDED, n_new)
        return self

    def fit_stream(
        self: Self, source: Any, *, chunk_rows: int = 1000, multi_label: bool = False, **reading: Any
    ) -> Self:
        """Update the model with a stream of any length, in order, chunk by chunk.

        `source` is a file, a folder of files, a table or data set (anything that `treemax.formats.open_examples`
        takes, with its options as `reading`), or an iterable of chunks: pairs (X, y), triples with weights, or `Examples`. Only one chunk is
        in memory at a time. In multi-class data, rows without a label are dropped; set `multi_label` if rows may
        have several labels although the first have one.
        """
        multi_label = multi_label or bool(getattr(self, "multi_label_", False))
        for X, y, weights in training_chunks(source, chunk_rows, multi_label, **reading):
            self.partial_fit(X, y, sample_weight=weights)
        return self

    def _initialize(self, batch: Batch) -> Targets:
        """Create an untrained model; return the targets of the rows."""
        X, rows, labels, announced, weights = batch
        if announced is not None:
            missing = set(labels.values.tolist()) - set(announced.values.tolist())
            if missing:
                raise ValueError(f"y has labels that are not in classes: {sorted(missing)[:5]}.")
        index = LabelIndex()
        if self._count_labels(index, batch, rows.shape[1]) == 0 and not (
            self.STARTS_WITHOUT_LABELS and labels.form == "lists"
        ):
            raise ValueError("y has no labels at all: the first call of partial_fit needs at least one label.")
        targets = self._weighted(_indexed(index, labels, announced), weights, index, labels.multi_label)
        model = self._start(rows, targets, index, labels.multi_label)
        self._set_fitted(X, rows, labels, index, targets, model)
        self.label_counts_[:], self.n_examples_, self.label_weights_, self._empty_rows = 0, 0, None, None
        return targets

    def _extend(self, batch: Batch) -> Targets:
        """Add the new labels and features of these rows to the model; return the targets of the rows."""
        X, rows, labels, announced, weights = batch
        self._check_width(X, rows)
        self._check_form(labels)
        self._check_fixed_parameters()
        n_features = max(rows.shape[1], self.n_features_in_)
        n_labels = self._count_labels(self.label_index_, batch, n_features)
        model = self._resized(self.model_, n_features, n_labels)
        targets = _indexed(self.label_index_, labels, announced)
        if self._changes.forgotten:
            self._learned_again = np.unique(targets.ids).astype(np.int64)
        targets = self._weighted(targets, weights, self.label_index_, labels.multi_label)
        self._update_settings(rows)
        self.model_, self.n_features_in_ = model, n_features
        self._feature_numbers = getattr(rows, "numbers", None) or self._feature_numbers
        n_new = n_labels - len(self.label_counts_)
        if n_new or not self.label_counts_.flags.writeable:
            self.label_counts_ = np.concatenate([self.label_counts_, np.zeros(n_new, dtype=np.int64)])
        return targets

    def _learn_blocks(self, batch: Batch) -> Iterator[int]:
        """Train on the rows and count them; yield after each block."""
        is_fitted = self.__sklearn_is_fitted__()
        if self.max_labels is not None:
            batch = self._drop_excess_labels(batch)
            if not len(batch.rows):
                return
        rows = numbered(batch.rows, *((self._feature_numbers, self.n_features_in_) if is_fitted else ()))
        start = self._extend if is_fitted else self._initialize
        targets, done = start(batch._replace(rows=rows)), 0
        for n in self._continue(self.model_, rows, targets):
            self._count(targets[done : done + n])
            self._count_empty(rows, targets, done, done + n)
            done += n
            yield n
        self._check_biases(targets)

    def _count_empty(self, rows: Rows, targets: Targets, start: int, stop: int) -> None:
        """Count the learned rows without features."""
        if isinstance(rows, SparseRows):
            empty = empty_rows(rows.indptr[start : stop + 1], targets[start:stop], len(self.label_counts_))
            if empty is not None:
                self._empty_rows = empty if self._empty_rows is None else self._empty_rows.plus(empty)

    def _count(self, targets: Targets) -> None:
        """Add learned rows to the counts of examples and labels, and to the sums of their weights."""
        ids = targets.ids[targets.indptr[0] : targets.indptr[-1]]
        if targets.weights is not None and self.label_weights_ is None:
            self.label_weights_, self._total_weight = self.label_counts_.astype(np.float64), float(self.n_examples_)
        if self.label_weights_ is not None:
            n_new = len(self.label_counts_) - len(self.label_weights_)
            if n_new:
                self.label_weights_ = np.pad(self.label_weights_, (0, n_new))
            each = 1.0 if targets.weights is None else np.repeat(targets.weights, np.diff(targets.indptr))
            np.add.at(self.label_weights_, ids, each)
            self._total_weight += targets.total
        np.add.at(self.label_counts_, ids, 1)
        self.n_examples_ += len(targets)

    def _drop_excess_labels(self, batch: Batch) -> Batch:
        """Drop new labels beyond `max_labels`, and rows that have no others."""
        _, rows, labels, announced, weights = batch
        index = self.label_index_ if self.__sklearn_is_fitted__() else LabelIndex()
        if announced is not None or labels.is_indicator:  # the caller relies on all of them
            self._check_labels(self._count_labels(index, batch, rows.shape[1]))
            return batch
        values = labels.values[labels.indptr[0] : labels.indptr[-1]]
        if len(values):
            index.check_kind(labels.dtype)
        new = dict.fromkeys(values[index.ids(values) < 0].tolist())
        remaining = max(0, int(self.max_labels or 0) - len(index))
        if len(new) <= remaining:
            return batch
        if not self._warned_of_labels:
            warnings.warn(
                f"{type(self).__name__} has reached max_labels={self.max_labels}: new labels are ignored from now on.",
                stacklevel=7,
            )
            self._warned_of_labels = True
        left_out = set(islice(new, remaining, None))
        kept = np.fromiter((label not in left_out for label in values.tolist()), bool, len(values))
        counts = np.bincount(np.repeat(np.arange(len(labels)), labels.counts)[kept], minlength=len(labels))
        learned = np.flatnonzero((counts > 0) | (labels.counts == 0))
        indptr = np.concatenate([[0], np.cumsum(counts[learned])])
        return batch._replace(
            rows=take_rows(rows, learned),
            labels=replace(labels, indptr=indptr, values=values[kept]),
            weights=None if weights is None else weights[learned],
        )

    def _check_biases(self, targets: Targets) -> None:
        """Raise if training diverged: weights that are NaN or infinite soon spread to the biases of the labels."""
        ids = targets.ids[targets.indptr[0] : targets.indptr[-1]]
        if not np.isfinite(self._biases(self.model_, ids)).all():
            raise ValueError(
                f"{type(self).__name__} diverged: it has weights that are not finite numbers, and cannot be used any more. "
                "Continue from the last saved model, with a lower learning rate and features scaled to about one."
            )

    def _biases(self, model: Any, ids: NDArray[np.uint32]) -> NDArray[np.float32]:
        """Return the biases that every row of these labels updates."""
        return np.zeros(0, dtype=np.float32)

    def _update_calibration(self) -> None:
        """Set `calibration_` from the model, if it fits one while training; a threshold set by the user is kept."""
        calibration = self._calibration_of(self.model_) or self.calibration_
        threshold = self.threshold_ if self._threshold_was_set else calibration.threshold
        self.calibration_ = calibration._replace(threshold=threshold)

    def _set_fitted(self, *fitted: Any) -> None:
        super()._set_fitted(*fitted)
        self._started_with = self._fixed_parameters()

    def _parameters_with_names(self, names: dict[Any, Any]) -> dict[str, Any]:
        changed, started = super()._parameters_with_names(names), self._started_with or {}
        return {**changed, "_started_with": {name: changed.get(name, value) for name, value in started.items()}}

    @classmethod
    def from_parts(cls: type[Self], header: dict[str, Any], arrays: modelfile.Arrays) -> Self:
        """Restore the estimator from its parts."""
        estimator = super().from_parts(header, arrays)
        estimator._started_with = estimator._fixed_parameters()
        return estimator

    def _fixed_parameters(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.FIXED_IN_STREAM}

    def _check_fixed_parameters(self) -> None:
        """Raise if a parameter was changed that has no effect any more."""
        for name, before in (self._started_with or {}).items():
            if not _same(before, now := getattr(self, name)):
                raise ValueError(
                    f"{name} cannot be changed in the middle of a stream: the model was started with "
                    f"{before!r:.60}, got {now!r:.60}. Set it back, or start a new model."
                )

    def _update_settings(self, rows: Rows) -> None:
        """Recompute the learning rate if the first rows turn out to be outliers, far longer than these."""
        if self.n_examples_ >= FIRST_ROWS or getattr(self.model_, "scaling", None) is not None:
            return
        values = rows.values[rows.indptr[0] : rows.indptr[-1]] if isinstance(rows, SparseRows) else rows
        if not values.any():
            return
        settings = self._stream_settings(rows, self.multi_label_)
        if settings is not None and 0 < FAR_LONGER**2 * settings.initial < self.settings_.initial:
            self.settings_ = settings

    def _count_labels(self, index: LabelIndex, batch: Batch, n_features: int) -> int:
        """Return the number of known and new labels; raise if their types are mixed or they do not fit in memory."""
        columns = batch.labels.n_columns if batch.labels.is_indicator else 0
        growing = self.__sklearn_is_fitted__()
        self._check_size(n_features, max(len(index), columns), growing)
        new = {j for j in range(columns) if j not in index}
        for part in (batch.labels, batch.announced):
            if part is not None and len(part.values):
                index.check_kind(part.dtype)
                new.update(np.asarray(part.values)[index.ids(part.values) < 0].tolist())
        self._check_size(n_features, len(index) + len(new), growing)
        return len(index) + len(new)

    # --- thread safety ------------------------------------------------------------------------------------

    @property
    def _lock(self) -> ModelLock:
        """Created on first use, since scikit-learn allows only parameters in a new estimator."""
        lock = self.__dict__.get("_model_lock")
        return self.__dict__.setdefault("_model_lock", ModelLock()) if lock is None else lock

    def _with_read_access(self, work: Callable[..., Result], *args: Any, **options: Any) -> Result:
        return self._lock.read(super()._with_read_access, work, *args, **options)

    def _with_read_access_by_rows(self, work: Callable[..., Any], X: Any, *args: Any, **options: Any) -> Any:
        """Predict many rows in blocks, so that a writer waits for one block only.

        If `fit` replaces the model in between, all blocks are predicted again.
        """
        n_rows = _n_rows(X)
        size = n_rows if n_rows <= FEW_ROWS else self._rows_at_once()
        if n_rows <= size or self.__dict__.get("_label_form") not in ("vector", "lists"):
            return self._with_read_access(work, X, *args, **options)
        rows = sliceable(X)

        def predict_block(snapshot: Self, start: int) -> tuple[Any, LabelIndex]:
            return work(snapshot, rows[start : start + size], *args, **options), snapshot.label_index_

        while True:
            parts = [self._with_read_access(predict_block, start) for start in range(0, n_rows, size)]
            if all(index is parts[0][1] for _, index in parts):
                return _concatenated([predictions for predictions, _ in parts])

    def _rows_at_once(self) -> int:
        """Return the number of rows that are predicted under one read lock."""
        return 2048 * thread_count(self.n_jobs)

    def _with_snapshot(self, work: Callable[..., Result], *args: Any, **options: Any) -> Result:
        return self._lock.snapshot(work, self, *args, **options)

    def _with_write_access(self, work: Callable[..., Result], *args: Any, **options: Any) -> Result:
        return self._lock.write(work, self, *args, **options)

    def _with_exclusive_access(self, work: Callable[..., Result], *args: Any, **options: Any) -> Result:
        with self._lock.training:
            return self._with_write_access(work, *args, **options)

    def set_params(self: Self, **params: Any) -> Self:
        """Set parameters; calls that are running in other threads keep the old values."""
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
        """Return the estimator as a JSON-able header and named arrays, copied from the model."""
        parts = super().to_parts
        if self._lock.in_snapshot:  # such as while a file is written: no copies are needed
            return parts(resume)
        return self._lock.snapshot(lambda: copy.deepcopy(parts(resume)))

    def __getstate__(self) -> dict[str, Any]:
        """Return a deep copy of the state, since it is pickled after the lock is released."""
        state = super().__getstate__

        def copied() -> dict[str, Any]:
            return copy.deepcopy({name: value for name, value in state().items() if name != "_model_lock"})

        return self._lock.snapshot(copied)

    def __deepcopy__(self: Self, memo: dict[int, Any]) -> Self:
        duplicate: Self = object.__new__(type(self))
        memo[id(self)] = duplicate
        duplicate.__setstate__(self.__getstate__())
        return duplicate


def _same(one: Any, other: Any) -> bool:
    """Return whether two values of a parameter are the same object or equal."""
    if one is other:
        return True
    try:
        return type(one) is type(other) and bool(np.all(one == other))
    except ValueError:  # values that cannot be compared
        return False


def _n_rows(X: Any) -> int:
    """Return the number of rows of X if it can be sliced by row, else 0."""
    if sp.issparse(X) or isinstance(X, np.ndarray | SparseRows) or hasattr(X, "iloc"):
        return X.shape[0] if len(X.shape) == 2 else 0
    return len(X) if isinstance(X, list) else 0


def _concatenated(parts: list[Any]) -> Any:
    """Concatenate the predictions of blocks of rows. Later blocks may have more labels."""
    if isinstance(parts[0], list):
        return list(chain.from_iterable(parts))
    if isinstance(parts[0], TopK):
        k = min(part.scores.shape[1] for part in parts)
        return TopK(*(np.concatenate([part[i][:, :k] for part in parts]) for i in range(2)))
    return np.concatenate(parts)


def _indexed(index: LabelIndex, labels: RaggedLabels, announced: RaggedLabels | None) -> Targets:
    """Add new labels to the index; return the targets of the rows."""
    if announced is not None:
        index.add(announced.values, announced.dtype)
    if labels.is_indicator:
        index.add(np.arange(labels.n_columns), np.int64)
    return target_ids(labels, index.add(labels.values, labels.dtype))
