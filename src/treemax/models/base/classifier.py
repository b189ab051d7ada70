"""Base class of the classifiers.

An estimator has parameters, a label index and `model_`, the trained model, which works on rows and label ids. The
base class validates X and y and trains; `predicting` maps ids to labels and calibrates probabilities, `saving` converts
to and from files. A subclass implements training (`_train`), prediction where `model_` needs more than its standard
calls (`_top`, `_probabilities`), and the conversion of its model to and from arrays (`_model_parts`,
`_model_from_parts`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from treemax.inputs.label_values import distinct
from treemax.inputs.labels import LabelIndex, RaggedLabels, Targets, check_same_length, read_labels, target_ids
from treemax.inputs.numbering import numbered
from treemax.inputs.rows import Rows, SparseRows, as_rows, check_scale, is_arrow, take_rows
from treemax.inputs.weights import check_known_labels, read_weights, repetitions, with_class_weight
from treemax.models.base.empty_rows import empty_rows
from treemax.models.base.label_changes import LabelChanges
from treemax.models.base.published import PublishedSettings
from treemax.models.base.saving import SavedEstimator
from treemax.models.base.thread_safety import snapshot_access
from treemax.models.calibration import Calibration
from treemax.models.training.finite import LARGEST_WEIGHT, check_learned
from treemax.parallel.checkpoints import checkpoint_training, checkpoints_enabled
from treemax.parallel.pools import cluster_in_use
from treemax.parallel.progress import progress_bar

Self = TypeVar("Self", bound="LabelClassifier")

OFTEN_WITHOUT_LABELS = 0.05  # with a larger share of unlabelled training rows, predictions may be empty


class TrainingInterrupted(KeyboardInterrupt):
    """Raised by `fit` after Ctrl-C when the partially trained model is usable; the estimator keeps it."""

    def __init__(self, model: Any, done: float) -> None:
        super().__init__(f"interrupted after {done:.0%} of the training; what was learned so far is kept")
        self.model = model
        self.done = done


class LabelClassifier(PublishedSettings, SavedEstimator, ClassifierMixin, BaseEstimator):
    """Base class of all classifiers; `OneVsAll` is the simplest subclass.

    Learned attributes: `label_index_` (label <-> id), `classes_`, `label_counts_` (training examples of each label),
    `label_weights_` (the sum of their weights; None without weights), `n_examples_` (training examples seen),
    `n_features_in_`, `multi_label_`, `calibration_` (from scores to probabilities), `threshold_` (of multi-label
    `predict`), and `model_`.
    """

    ONE_LABEL_ONLY = False  # whether multi-label targets are unsupported
    supports_weights = False  # whether rows may have weights
    supports_relevance = False  # whether the labels of a row may have weights of their own
    supports_compact = False  # whether forgotten labels can be removed from the model
    supports_distributed = False  # whether nodes are trained by an executor: on clusters, with checkpoints
    LARGEST_WEIGHT = LARGEST_WEIGHT  # smaller where scores are products of weights

    class_weight: Any = None
    verbose: int

    # --- to be implemented by subclasses ----------------------------------------------------------------

    def _check_size(self, n_features: int, n_labels: int, growing: bool = False) -> None:
        """Raise if the model would not fit in memory; with `growing`, `model_` is enlarged."""

    def _check_labels(self, n_labels: int) -> None:
        """Raise if there are more labels than the model supports."""

    def _train(self, rows: Rows, targets: Targets, index: LabelIndex, multi_label: bool) -> Any:
        """Train and return a new model; after Ctrl-C raise `TrainingInterrupted` where possible.

        `index` has the labels. Additional arguments of `fit` are passed by name.
        """
        raise NotImplementedError

    def _calibration_of(self, model: Any) -> Calibration | None:
        """Return the calibration fitted during training, if any."""
        return getattr(model, "calibration", None)

    def _prepared(self, rows: Rows) -> Rows:
        """Return training rows as the model learns them."""
        return rows

    @snapshot_access
    def describe(self) -> dict[str, Any]:
        """Return the main properties of the model: labels, features, examples, and those of the subclass."""
        self._check_trained()
        facts = {
            "model": type(self).__name__,
            "labels": len(self.label_index_) - len(self._changes.forgotten) - len(self._changes.merged),
            "features": self.n_features_in_,
            "examples": self.n_examples_,
            "multi_label": self.multi_label_,
            **self._changes.described(),
        }
        if self.multi_label_:
            facts["threshold"] = round(self.threshold_, 3)
        if self.decision_ is not None:
            facts["decision"] = self.decision_.describe()
        if self._taxonomy is not None:
            facts["taxonomy"] = {"nodes": len(self._taxonomy), "levels": self._taxonomy.n_levels}
        return facts

    # --- learning ---------------------------------------------------------------------------------------

    def fit(self: Self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train a new model; an earlier one is replaced only when training succeeds.

        X: matrix, data frame or any SciPy sparse format. y: a vector of strings or integers (multi-class), or
        a list of label lists or an indicator matrix (multi-label). `sample_weight`: a number for each row, by which its
        loss is multiplied; rows of weight zero are left out.
        """
        return self._fit(X, y, sample_weight)

    def _fit(self: Self, X: Any, y: Any, sample_weight: Any = None, **options: Any) -> Self:
        """Implement `fit`; `options` are passed to `_train`."""
        self._check_when_used()
        rows, labels, weights = self._read(X, y, sample_weight)
        if not len(rows) and weights is not None:
            raise ValueError("sample_weight is zero for all rows: at least one row must have a positive weight.")
        if isinstance(self.class_weight, Mapping):  # before rows of small weights are left out
            check_known_labels(self.class_weight, _sorted_index(labels)[0])
        rows, labels, weights = self._repeated(rows, labels, weights)
        check_scale(rows)
        rows = numbered(self._prepared(rows))
        if labels.is_indicator:
            self._check_size(rows.shape[1], labels.n_columns)
        index, ids = _sorted_index(labels)
        self._check_labels(len(index))
        self._check_size(rows.shape[1], len(index))
        targets = self._weighted(target_ids(labels, ids), weights, index, labels.multi_label)
        self._check_distributed()
        with self._training() as trainee:
            try:
                with checkpoint_training(self, targets):
                    model = trainee._train(rows, targets, index, labels.multi_label, **options)
            except TrainingInterrupted as interruption:
                trainee._set_fitted(X, rows, labels, index, targets, interruption.model)
                raise
            trainee._set_fitted(X, rows, labels, index, targets, model)
        return self

    @contextmanager
    def _training(self: Self) -> Iterator[Self]:
        """Context manager: a copy to train, whose attributes replace those of `self` atomically at the end.

        After an error they are discarded, except after `TrainingInterrupted`. Other threads see the old model until then.
        """
        trainee = self._snapshot()
        trainee._check_when_used()  # another thread may have set parameters
        before = dict(trainee.__dict__)
        try:
            yield trainee
        except TrainingInterrupted:
            self._update_from(trainee, before)
            raise
        self._update_from(trainee, before)

    def _train_blocks(self, blocks: Iterable[int], planned: int, title: str, trained: Callable[[], Any]) -> Any:
        """Train with a progress bar, and return `trained()`; after Ctrl-C raise `TrainingInterrupted` with it.

        `blocks` trains and yields the number of rows of each block, `planned` in total.
        """
        done = 0
        with progress_bar(planned, title, "rows", self.verbose) as bar:
            try:
                for n in blocks:
                    done += n
                    bar.update(n)
            except KeyboardInterrupt:
                raise TrainingInterrupted(trained(), done / planned) from None
        return trained()

    def _check_trained(self) -> None:
        check_is_fitted(self, "model_")
        self._check_when_used()

    def _check_distributed(self) -> None:
        """Raise inside `cluster` and `checkpoint` if the model does not support them."""
        if self.supports_distributed or not (cluster_in_use() or checkpoints_enabled()):
            return
        context, unsupported = (
            ("cluster", "train on a cluster") if cluster_in_use() else ("checkpoint", "keep checkpoints")
        )
        raise ValueError(
            f"{type(self).__name__} cannot {unsupported}: fit it outside treemax.{context}, or use one of "
            f"{_models(lambda kind: kind.supports_distributed)}."
        )

    def _read(self, X: Any, y: Any, sample_weight: Any = None) -> tuple[Rows, RaggedLabels, NDArray[np.float32] | None]:
        """Validate X, y and weights, and leave out rows of weight zero."""
        rows, labels = as_rows(X), read_labels(y)
        check_same_length(len(rows), len(labels))
        if sample_weight is not None and not self.supports_weights:
            raise ValueError(
                f"{type(self).__name__} does not support sample_weight. Repeat rows instead, or use one of "
                f"{_models(lambda kind: kind.supports_weights)}."
            )
        weights = read_weights(sample_weight, len(rows))
        if labels.multi_label and self.ONE_LABEL_ONLY:
            raise ValueError(
                f"{type(self).__name__} supports one label per row, but y is multi-label (label lists or an indicator "
                f"matrix). Use one of {_models(lambda kind: not kind.ONE_LABEL_ONLY)}."
            )
        if not labels.multi_label and not (labels.counts == 1).all():
            row = int(np.argmax(labels.counts != 1))
            raise ValueError(f"y: row {row} has {labels.counts[row]} labels, expected one.")
        if labels.relevance is not None and not self.supports_relevance:
            raise ValueError(
                f"{type(self).__name__} does not support the relevance of single labels, but y has values other than 0 "
                f"and 1. Use one of {_models(lambda kind: kind.supports_relevance)}."
            )
        if weights is not None and not weights.all():
            kept = np.flatnonzero(weights)
            return take_rows(rows, kept), labels.take(kept), weights[kept]
        return rows, labels, weights

    def _repeats_rows(self) -> bool:
        """Return whether rows are learned as often as their weights say, since the model counts rows."""
        return False

    def _repeated(
        self, rows: Rows, labels: RaggedLabels, weights: NDArray[np.float32] | None, n_before: int = 0
    ) -> tuple[Rows, RaggedLabels, NDArray[np.float32] | None]:
        """Repeat rows as often as their weights say if the model needs it; `n_before` rows were repeated before."""
        if not self._repeats_rows() or (weights is None and self.class_weight is None):
            return rows, labels, weights
        self._check_class_weight(labels.multi_label)
        index, ids = _sorted_index(labels)
        targets = replace(target_ids(labels, ids), weights=weights)
        targets = with_class_weight(targets, self.class_weight, index, multi_label=False)
        copies = repetitions(targets.row_weights, n_before)
        return take_rows(rows, copies), labels.take(copies), None

    def _check_class_weight(self, multi_label: bool) -> None:
        if self.class_weight is not None and multi_label and not self.supports_relevance:
            raise ValueError(
                f"{type(self).__name__} supports class_weight with one label per row only; use sample_weight, or one "
                f"of {_models(lambda kind: kind.supports_relevance)}."
            )

    def _weighted(
        self, targets: Targets, weights: NDArray[np.float32] | None, index: LabelIndex, multi_label: bool
    ) -> Targets:
        """Return the targets with the weights of rows and labels."""
        if self._repeats_rows():
            return targets
        self._check_class_weight(multi_label)
        return with_class_weight(replace(targets, weights=weights), self.class_weight, index, multi_label)

    def _check_form(self, labels: RaggedLabels) -> None:
        if labels.multi_label and not self.multi_label_:
            raise ValueError(
                "The model was started as multi-class, with one label per row, but y is multi-label. "
                "Start with label lists (or an indicator matrix) if rows may have several labels."
            )
        if self._label_form in ("indicator", "dense-indicator") and not labels.is_indicator:
            raise ValueError("The model was started with an indicator matrix as y, but y is not one.")
        if self._changes.n_columns is not None:
            raise ValueError(
                "The model cannot learn from an indicator matrix any more, since columns of it were forgotten and removed. "
                "Start a new model."
            )

    def _set_fitted(
        self, X: Any, rows: Rows, labels: RaggedLabels, index: LabelIndex, targets: Targets, model: Any
    ) -> None:
        """Set the learned attributes."""
        check_learned(model, type(self).__name__, self.LARGEST_WEIGHT)
        if isinstance(rows, SparseRows):
            self.__dict__.pop("feature_names_in_", None)
            self.n_features_in_ = rows.n_features
            self._feature_numbers = rows.numbers
        else:
            validate_data(self, rows if is_arrow(X) else X, skip_check_array=True, reset=True)
            self._feature_numbers = None
        self.label_index_ = index
        self._changes = LabelChanges()
        self.label_counts_ = np.bincount(targets.ids, minlength=len(index)).astype(np.int64)
        self.label_weights_ = None if targets.weights is None else targets.label_totals(len(index))
        self._total_weight = targets.total
        self._empty_rows = empty_rows(rows.indptr, targets, len(index)) if isinstance(rows, SparseRows) else None
        self.n_examples_ = len(rows)
        self.multi_label_ = labels.multi_label
        self.sparse_input_ = isinstance(rows, SparseRows)
        self._label_form = labels.form
        calibration = self._calibration_of(model) or Calibration()
        often_without = (labels.counts == 0).mean() > OFTEN_WITHOUT_LABELS
        self.calibration_ = calibration._replace(one_at_least=calibration.one_at_least and not often_without)
        self._threshold_was_set, self.decision_ = False, None
        self.model_ = model
        self.reading_ = {}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.target_tags.required = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return "model_" in self.__dict__


def _models(condition: Callable[[Any], bool]) -> str:
    """Return the names of the models that meet a condition, for error messages."""
    from treemax.models import MODELS  # circular import

    return ", ".join(kind.__name__ for kind in MODELS.values() if condition(kind))


def _sorted_index(labels: RaggedLabels) -> tuple[LabelIndex, NDArray[np.int64]]:
    """Return the label index of a new model (labels sorted, as in scikit-learn), and the ids of the labels."""
    values = labels.values
    if labels.is_indicator:
        names, ids = np.arange(labels.n_columns), values
    elif values.dtype == object:
        names, ids = np.array(sorted(set(values.tolist())), dtype=object), None
    else:
        names, ids = distinct(values)
    if len(names) == 0:
        raise ValueError("y has no labels at all: every row's label list is empty.")
    index = LabelIndex()
    index.add(names, labels.dtype)
    return index, index.ids(values) if ids is None else ids
