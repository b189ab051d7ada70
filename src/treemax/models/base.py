"""Base class of the classifiers.

An estimator has parameters, a label index and `model_`, the trained model, which works on rows and label ids. The
base class validates X and y, maps labels to ids and back, calibrates probabilities and saves. A subclass implements
training (`_train`), prediction where `model_` needs more than its standard calls (`_top`, `_probabilities`), and the
conversion of its model to and from arrays (`_model_parts`, `_model_from_parts`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, get_args

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted, validate_data

import treemax
from treemax import modelfile
from treemax.calibration import LEADING
from treemax.explanations import Explanation, Trace
from treemax.frequencies import label_frequencies, most_frequent
from treemax.inputs.labels import (
    Form,
    LabelIndex,
    RaggedLabels,
    Targets,
    check_same_length,
    distinct,
    read_labels,
    requested_ids,
    target_ids,
)
from treemax.inputs.limits import MAX_FEATURES
from treemax.inputs.numbering import FeatureNumbers, numbered
from treemax.inputs.rows import Rows, SparseRows, as_rows, check_scale, is_arrow, take_rows
from treemax.inputs.weights import check_known_labels, read_weights, repetitions, with_class_weight
from treemax.memory import check_fits
from treemax.metrics import precision_at_k
from treemax.models import decisions
from treemax.models.calibration import Calibration, largest
from treemax.models.deciding import DecidingEstimator
from treemax.models.explaining import as_table, explain_row
from treemax.models.finite import LARGEST_WEIGHT, check_learned
from treemax.models.label_changes import LabelChanges
from treemax.models.label_weights import LabelWeights
from treemax.models.new_labels import GrowingLabels
from treemax.models.parts import MOST_COUNTED, expect_counts, truth, whole_number
from treemax.models.prior import EmptyRows, empty_rows, replace_rows, without_known_features
from treemax.models.published import PublishedSettings
from treemax.models.searching import SparseProbabilities
from treemax.models.sharing import read_access, read_access_by_rows, snapshot_access
from treemax.models.taxonomies import TaxonomyEstimator
from treemax.parallel.checkpoints import checkpoint_training, checkpoints_enabled
from treemax.parallel.pools import cluster_in_use
from treemax.parallel.progress import progress_bar
from treemax.parallel.threads import thread_count
from treemax.parameters import check_number
from treemax.topk import TopK as TopK
from treemax.topk import check_k

Self = TypeVar("Self", bound="LabelClassifier")

OFTEN_WITHOUT_LABELS = 0.05  # above this share of unlabelled training rows, predictions may be empty


class TrainingInterrupted(KeyboardInterrupt):
    """Raised by `fit` after Ctrl-C when the partially trained model is usable; the estimator keeps it."""

    def __init__(self, model: Any, done: float) -> None:
        super().__init__(f"interrupted after {done:.0%} of the training; what was learned so far is kept")
        self.model = model
        self.done = done


class LabelClassifier(
    PublishedSettings, DecidingEstimator, TaxonomyEstimator, GrowingLabels, ClassifierMixin, BaseEstimator
):
    """Base class of all classifiers; `OneVsAll` is the simplest subclass.

    Learned attributes: `label_index_` (label <-> id), `classes_`, `label_counts_` (training examples of each
    label), `label_weights_` (the sum of their weights; None without weights), `n_examples_` (training examples seen), `n_features_in_`, `multi_label_`, `calibration_` (from scores to
    probabilities), `threshold_` (of multi-label `predict`), and `model_`.
    """

    ONE_LABEL_ONLY = False  # whether multi-label targets are unsupported
    STARTS_WITHOUT_LABELS = False  # whether a stream may begin with rows that have no labels
    supports_weights = False  # whether rows may have weights
    supports_relevance = False  # whether the labels of a row may have weights of their own
    supports_compact = False  # whether forgotten labels can be removed from the model
    supports_distributed = False  # whether nodes are trained by an executor: on clusters, with checkpoints
    LARGEST_WEIGHT = LARGEST_WEIGHT  # smaller where scores are products of weights

    label_index_: LabelIndex
    label_counts_: NDArray[np.int64]
    label_weights_: NDArray[np.float64] | None = None
    _total_weight: float = 0.0  # of the rows, where they have weights
    _empty_rows: EmptyRows | None = None  # training rows without features, if there were any
    class_weight: Any = None
    n_examples_: int
    n_features_in_: int
    multi_label_: bool
    calibration_: Calibration
    sparse_input_: bool  # whether the training rows were sparse, so that a row without entries has no features
    model_: Any
    verbose: int
    _feature_numbers: FeatureNumbers | None = None  # renumbering of sparse feature ids, where ids are large and few
    reading_: dict[str, Any]  # reader options of the command line for the training data, reused for other data

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

    def _search(self) -> Any:
        """Return the search option of `model_` from the parameters; None where it has none."""
        return None

    def _top(self, rows: Rows, k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Ids of the k best labels of each row (-1 where fewer were found) and their scores, best first.

        Scores are between 0 and 1, before calibration, here and in the next three methods.
        """
        return self.model_.top_k(rows, k, self._search(), self._threads())

    def _probabilities(self, rows: Rows) -> NDArray[np.float32]:
        """Scores of all labels for each row."""
        return self.model_.probabilities(rows, self._search(), self._threads())

    def _above(self, rows: Rows, threshold: float) -> SparseProbabilities:
        """Row, id and score of all labels with at least this score, sorted by row and id."""
        return self.model_.above(rows, threshold, self._search(), self._threads())

    def _probabilities_of(self, rows: Rows, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Scores of given labels, ids[i] those of row i; 0 where the id is -1."""
        return self.model_.of_labels(rows, ids, self._search(), self._threads())

    def _trace(self, row: Rows, ids: list[int], scores: list[float]) -> Trace:
        """Return the decisions that lead to labels with these scores, for one row; raise if a label is not reached."""
        if not hasattr(self.model_, "trace"):
            raise ValueError(f"{type(self).__name__} cannot explain its predictions.")
        return self.model_.trace(row, ids, scores, self._search())

    def _threads(self) -> int:
        return thread_count(getattr(self, "n_jobs", None))

    def _calibration_of(self, model: Any) -> Calibration | None:
        """Return the calibration fitted during training, if any."""
        return getattr(model, "calibration", None)

    def _model_parts(self, resume: bool) -> tuple[dict[str, Any], modelfile.Arrays]:
        """Return the model as a JSON-able header and arrays; with `resume`, including the optimiser state."""
        return self.model_.to_parts(resume)

    def _model_from_parts(self, header: dict[str, Any], arrays: modelfile.Arrays) -> Any:
        """Restore the model from its parts; raise ValueError if they are invalid."""
        raise NotImplementedError

    def _parameter_parts(self) -> tuple[dict[str, Any], modelfile.Arrays]:
        """Return the parameters as a JSON-able dictionary, and as arrays those that are large."""
        return saved_parameters(self.get_params(deep=False)), {}

    @classmethod
    def _parameters_from_parts(cls, saved: dict[str, Any], arrays: modelfile.Arrays) -> dict[str, Any]:
        """Restore the parameters from their parts."""
        return restored_parameters(saved)

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
        check_known_labels(self.class_weight, labels)
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
        """Whether rows are learned as often as their weights say, since the model counts rows."""
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

    @property
    def classes_(self) -> NDArray[Any]:
        """All labels in the order of their ids: sorted after `fit`, by arrival after `partial_fit`."""
        if "label_index_" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__} has no classes_ before it is fitted")
        return self._known_classes()

    def _known_classes(self) -> NDArray[Any]:
        """Return the labels of the index, cached."""
        index = self.label_index_
        of_index, known = self.__dict__.get("_classes", (None, ()))
        if of_index is not index or len(known) != len(index):
            known = index.classes
            self.__dict__["_classes"] = index, known
        return known

    # --- prediction -------------------------------------------------------------------------------------

    @read_access_by_rows
    def predict_topk(
        self, X: Any, k: int = 5, *, labels: Any = None, exclude: Any = None, label_weights: Any = None
    ) -> TopK:
        """Predict the k most probable labels of each row, best first, with their probabilities.

        If there are fewer than k labels, all of them. With `labels`, only these are considered; with `exclude`, all but
        these; with `label_weights`, labels are ranked by probability times weight, see `make_label_weights`. Trees are
        searched only where such labels are. Probabilities do not change.
        """
        check_k(k)
        rows = self._rows_to_predict(X)
        weights = self._weights_of_labels(labels, exclude, label_weights)
        n_labels = len(self.label_index_) if weights is None else weights.n_allowed
        ids, scores = self._calibrated_top(rows, min(int(k), n_labels), weights)
        return TopK(self._labels_of(ids), scores)

    @read_access_by_rows
    def predict(self, X: Any) -> Any:
        """Predict the most probable label of each row; of a multi-label model, all labels with at least `threshold_`.

        `fit` chooses `threshold_` on held-out rows to maximise micro-averaged F1; it may be set. A row where no label
        reaches it gets its most probable label, unless that lowers F1 by more than 0.03 or more than one training row
        in twenty has no label. `choose_thresholds` chooses others. A multi-label model returns the form of the `y` it was trained with: label lists or an
        indicator matrix.
        """
        rows = self._rows_to_predict(X)
        if not self.multi_label_:
            return self._labels_of(self._best(rows))
        lowest = self.threshold_ if self.decision_ is None else self.decision_.lowest(self.threshold_)
        row_of, ids, probabilities = self._calibrated_above(rows, lowest)
        if self.decision_ is not None:
            kept = probabilities >= self.decision_.of(ids, self.threshold_)
            row_of, ids = row_of[kept], ids[kept]
        if self.calibration_.one_at_least:
            row_of, ids = self._with_one_at_least(rows, row_of, ids)
        return self._in_caller_form(row_of, ids, len(rows))

    @property
    def threshold_(self) -> float:
        """The probability from which a multi-label `predict` returns a label."""
        if "calibration_" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__} has no threshold_ before it is fitted")
        return self.calibration_.threshold

    @threshold_.setter
    def threshold_(self, value: float) -> None:
        check_number("threshold_", value, least=0, most=1)
        self._with_write_access(type(self)._set_threshold, float(value))

    def _set_threshold(self, value: float) -> None:
        self.calibration_ = self.calibration_._replace(threshold=value)
        self._threshold_was_set, self.decision_ = True, None

    @read_access_by_rows
    def predict_above(self, X: Any, threshold: float = 0.5, scores: bool = False) -> Any:
        """Predict all labels of each row whose probability is at least `threshold`.

        Returns the form of the `y` of training: label lists (also for a multi-class model) or an indicator
        matrix. With `scores`, a list of pairs (label, probability) for each row, best first.
        """
        check_number("threshold", threshold, least=0, most=1)
        rows = self._rows_to_predict(X)
        row_of, ids, probabilities = self._calibrated_above(rows, float(threshold))
        if not scores:
            return self._in_caller_form(row_of, ids, len(rows))
        order = np.lexsort((-probabilities, row_of))
        pairs = list(zip(self.label_index_.labels(ids[order]).tolist(), probabilities[order].tolist()))
        ends = np.searchsorted(row_of, np.arange(1, len(rows) + 1)).tolist()
        return [pairs[start:end] for start, end in zip([0, *ends], ends)]

    @read_access
    def predict_proba_of(self, X: Any, labels: Any) -> NDArray[np.float32]:
        """Predict the probabilities of given labels, of shape (n_rows, n_labels), without computing all others.

        `labels` is a list of labels for all rows, or a 2-d array with a row of labels for each row of X, such as
        the labels of `predict_topk` (where None stands for no label, with probability 0).
        """
        rows = self._rows_to_predict(X)
        ids = requested_ids(labels, self.label_index_, len(rows))
        probabilities = self._scored_labels(rows, ids)[1]
        return self._changed_of_labels(rows, ids, probabilities) if self._changes else probabilities

    def _scored_labels(self, rows: Rows, ids: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Scores before calibration and probabilities of given labels, 0 where the id is -1."""
        scores = self._probabilities_of(rows, ids)
        if self.multi_label_ or not self.calibration_.changes_scores:
            answer = self.calibration_.probabilities(scores)
        else:
            first, leading = self._leading(rows)
            answer = self.calibration_.multiclass_probabilities(scores, leading, ids == first[:, :1])
        unknown = self._unknown(rows)
        if unknown is not None:
            frequencies = self._frequencies_if_unknown(len(self.label_index_))
            scores[unknown] = answer[unknown] = np.where(ids[unknown] >= 0, frequencies[ids[unknown]], 0.0)
        return scores, answer

    @read_access
    def explain(self, X: Any, label: Any = None, k: int = 5) -> Explanation | list[Explanation]:
        """Explain why `label`, or by default the answer, has its probability; see `Explanation`.

        Returns one explanation for one row, a list for several. `k` is the number of candidates to list.
        """
        check_k(k)
        rows = self._rows_to_predict(as_table(X))
        wanted = None if label is None else int(requested_ids([label], self.label_index_, 1)[0, 0])
        found = [explain_row(self, rows[i : i + 1], wanted, int(k)) for i in range(len(rows))]
        return found[0] if len(found) == 1 else found

    @read_access
    def predict_proba(self, X: Any) -> NDArray[np.float32]:
        """Predict the probability of every label, in the order of `classes_`; of a multi-class model they sum to one.

        The other methods reserve probability for labels unseen in training. The result is dense: if it would not fit in
        memory an error is raised. Prefer `predict_topk` with many labels.
        """
        rows = self._rows_to_predict(X)
        n_labels = len(self.label_index_)
        check_fits(
            4 * len(rows) * n_labels,
            f"predict_proba for {len(rows):,} rows x {n_labels:,} labels",
            "Use predict_topk(X, k), or fewer rows at a time.",
        )
        answer = self._calibrated_all(rows)
        if not self.multi_label_ and self.calibration_.changes_scores:
            total = answer.sum(axis=1, keepdims=True)
            answer = np.where(total > 0, answer / np.maximum(total, 1e-30), self._frequencies(answer.shape[1]))
        unknown = self._unknown(rows)
        if unknown is not None:
            answer[unknown] = self._frequencies_if_unknown(answer.shape[1])
        return self._changed_of_all(answer) if self._changes else answer

    def _calibrated_all(self, rows: Rows) -> NDArray[np.float32]:
        """Probabilities of all labels, before rows without known features and changes of labels are considered."""
        scores = self._probabilities(rows)
        if self.multi_label_ or not self.calibration_.changes_scores:
            return self.calibration_.probabilities(scores)
        is_first = np.arange(scores.shape[1]) == scores.argmax(axis=1)[:, None]
        return self.calibration_.multiclass_probabilities(scores, largest(scores, LEADING), is_first)

    def _all_probabilities(self, rows: Rows) -> NDArray[np.float32]:
        """Probabilities of all labels as in `predict_topk`: those of a multi-class model are not scaled to sum to one."""
        answer, unknown = self._calibrated_all(rows), self._unknown(rows)
        if unknown is not None:
            answer[unknown] = self._frequencies_if_unknown(answer.shape[1])
        if not self._changes:
            return answer
        answer *= self._changes.kept(answer.shape[1])
        if self._changes.merged:
            answer[:, self._changes.heads] = self._of_merged(rows)
        return answer

    def _calibrated_top(
        self, rows: Rows, k: int, weights: LabelWeights | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Ids and probabilities of the k most probable labels; with `weights`, of the k best by probability x weight."""
        if weights is not None:
            return (self._merged_top if self._changes.merged else self._weighted_top)(rows, k, weights)
        ids, _, probabilities = self._scored_top(rows, k)
        return ids, probabilities

    def _best(self, rows: Rows) -> NDArray[np.int64]:
        """Id of the most probable label of each row."""
        return self._with_some_label(self._calibrated_top(rows, 1, self._weights_of_labels(None, None, None))[0][:, 0])

    def _candidates(self, rows: Rows, k: int) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]:
        """Ids, scores before calibration and probabilities of the k best labels that were not forgotten, parts of merged
        labels by themselves."""
        if not self._changes.forgotten:
            return self._scored_top(rows, min(k, len(self.label_index_)))
        weights = LabelWeights(self._changes.present(len(self.label_index_)))
        ids, _ = self._weighted_top(rows, min(k, weights.n_allowed), weights)
        return ids, *self._scored_labels(rows, ids)

    def _scored_top(self, rows: Rows, k: int) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]:
        """Ids, scores before calibration and probabilities of the k most probable labels."""
        if self.multi_label_ or not self.calibration_.changes_scores:
            ids, scores = self._top(rows, k)
            probabilities = self.calibration_.probabilities(scores)
        else:
            ids, scores = self._leading(rows, k)
            ids, leading, is_first = ids[:, :k], scores[:, :LEADING], np.zeros((len(rows), k), dtype=bool)
            is_first[:, 0], scores = True, scores[:, :k]
            probabilities = self.calibration_.multiclass_probabilities(scores, leading, is_first)
        unknown = self._unknown(rows)
        if unknown is not None:
            frequencies = self._frequencies_if_unknown(len(self.label_index_))
            first = most_frequent(frequencies, k)
            ids[unknown], scores[unknown], probabilities[unknown] = first, frequencies[first], frequencies[first]
        return ids, scores, probabilities

    def _calibrated_above(self, rows: Rows, threshold: float) -> SparseProbabilities:
        """Row, id and probability of all labels with at least this probability, sorted by row and id."""
        found = self._unchanged_above(rows, threshold)
        return self._changed_above(rows, threshold, found) if self._changes else found

    def _unchanged_above(self, rows: Rows, threshold: float) -> SparseProbabilities:
        """The same without the changes of labels."""
        if self.multi_label_ or not self.calibration_.changes_scores:
            row_of, ids, scores = self._above(rows, self.calibration_.lowest_score(threshold))
            probabilities = self.calibration_.probabilities(scores)
        else:
            row_of, ids, probabilities = self._multiclass_above(rows, threshold)
        kept = probabilities >= np.float32(threshold)
        found = SparseProbabilities(row_of[kept], ids[kept], probabilities[kept])
        unknown = self._unknown(rows)
        if unknown is None:
            return found
        frequencies = self._frequencies_if_unknown(len(self.label_index_))
        frequent = np.flatnonzero(frequencies >= np.float32(threshold))
        return replace_rows(found, unknown, frequent, frequencies[frequent])

    def _multiclass_above(self, rows: Rows, threshold: float) -> SparseProbabilities:
        """Row, id and probability of a superset of the labels with at least this probability, for a multi-class model."""
        first, leading = self._leading(rows)
        n_leading = first.shape[1]
        row_of, ids, scores = np.repeat(np.arange(len(rows)), n_leading), first.ravel(), leading.ravel()
        lowest = self.calibration_.lowest_score_after_leading(leading, threshold)
        if lowest <= 1.0:
            more_rows, more_ids, more_scores = self._above(rows, lowest)
            new = (more_ids[:, None] != first[more_rows]).all(axis=1)
            row_of, ids = np.concatenate([row_of, more_rows[new]]), np.concatenate([ids, more_ids[new]])
            scores = np.concatenate([scores, more_scores[new]])
        order = np.lexsort((ids, row_of))
        order = order[ids[order] >= 0]
        row_of, ids, scores = row_of[order], ids[order], scores[order]
        is_first = ids == first[row_of, 0]
        found = self.calibration_.multiclass_probabilities(scores[:, None], leading[row_of], is_first[:, None])
        return SparseProbabilities(row_of, ids, found[:, 0])

    def _leading(self, rows: Rows, k: int = 1) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Ids and scores of the best labels: k, and at least as many as the multi-class calibration needs."""
        return self._top(rows, min(max(k, LEADING), len(self.label_index_)))

    def _with_one_at_least(
        self, rows: Rows, row_of: NDArray[np.int64], ids: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Add the best label of every row without labels to rows and ids."""
        empty = np.flatnonzero(np.bincount(row_of, minlength=len(rows)) == 0)
        if len(empty) == 0:
            return row_of, ids
        first = self._best(take_rows(rows, empty))
        place = np.searchsorted(row_of, empty)
        return np.insert(row_of, place, empty), np.insert(ids, place, first)

    def _unknown(self, rows: Rows) -> NDArray[np.int64] | None:
        """Rows without any feature seen in training, or None; only in sparse data, since a dense zero is a value."""
        return without_known_features(rows, self.n_features_in_) if self.sparse_input_ else None

    def _frequencies(self, n_labels: int) -> NDArray[np.float32]:
        """Relative frequencies of the first labels; `label_counts_` may differ in length while another thread learns."""
        weighted = self.label_weights_ is not None
        known = self.label_weights_ if self.label_weights_ is not None else self.label_counts_
        counts = np.zeros(n_labels, dtype=known.dtype)
        counts[: len(known)] = known[:n_labels]
        return label_frequencies(counts, self._total_weight if weighted else self.n_examples_, self.multi_label_)

    def _frequencies_if_unknown(self, n_labels: int) -> NDArray[np.float32]:
        """The probabilities of the first labels for a row without known features."""
        frequencies, empty = self._frequencies(n_labels), self._empty_rows
        return frequencies if empty is None else empty.frequencies(frequencies)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the precision at 1 (accuracy for multi-class), weighted by `sample_weight`."""
        return precision_at_k(y, self.predict_topk(X, 1).labels, 1, sample_weight)

    def _rows_to_predict(self, X: Any) -> Rows:
        if "model_" not in self.__dict__:  # check_is_fitted takes as long as a small search
            check_is_fitted(self, "model_")
        self._check_when_used()
        rows = as_rows(X)
        self._check_width(X, rows)
        if self._feature_numbers is not None and isinstance(rows, SparseRows):
            return self._feature_numbers.rows(rows)
        return rows

    def _prepared(self, rows: Rows) -> Rows:
        """Return training rows as the model learns them."""
        return rows

    def _check_width(self, X: Any, rows: Rows) -> None:
        """Raise if dense rows do not have the columns of training.

        Columns of sparse rows are feature ids; unseen ones have no weight, as files and streams need it.
        """
        if isinstance(rows, SparseRows):
            return
        if type(X) in (np.ndarray, list) and not hasattr(self, "feature_names_in_"):
            if rows.shape[1] != self.n_features_in_:
                raise ValueError(
                    f"X has {rows.shape[1]} features, but {type(self).__name__} is expecting "
                    f"{self.n_features_in_} features as input."
                )
            return
        validate_data(self, rows if is_arrow(X) else X, skip_check_array=True, reset=False)

    def _labels_of(self, ids: NDArray[np.int64]) -> NDArray[Any]:
        if ids.size and ids.min() < 0:
            found = ids >= 0
            labels = np.full(ids.shape, None, dtype=object)
            labels[found] = self.label_index_.labels(ids[found])
            return labels
        return self.label_index_.labels(ids)

    def _in_caller_form(self, row_of: NDArray[np.int64], ids: NDArray[np.int64], n_rows: int) -> Any:
        if self._label_form in ("lists", "vector"):
            cuts = np.searchsorted(row_of, np.arange(1, n_rows))
            return [part.tolist() for part in np.split(self.label_index_.labels(ids), cuts)]
        columns = self.label_index_.labels(ids).astype(np.int64)
        shape = (n_rows, self._changes.n_columns or int(self.label_index_.classes.max()) + 1)
        matrix = sp.csr_matrix((np.ones(len(ids), dtype=np.int64), (row_of, columns)), shape=shape)
        return matrix if self._label_form == "indicator" else matrix.toarray()

    # --- saving -----------------------------------------------------------------------------------------

    def save(self, path: str | Path, resume: bool = False) -> None:
        """Save the model to one `.treemax` file, without pickle; `treemax.load` restores it.

        With `resume` the file includes the optimiser state, to continue training as if it had not been interrupted.
        """
        check_is_fitted(self, "model_")
        modelfile.save(self, path, resume=resume)

    @snapshot_access
    def to_parts(self, resume: bool = False) -> tuple[dict[str, Any], modelfile.Arrays]:
        """Return the estimator as a JSON-able header and named arrays, without forgotten labels."""
        self._check_trained()  # a file with invalid parameters could not be loaded
        if self._changes.forgotten:
            self = self._compacted()
        header, arrays = self._model_parts(resume)
        parameters, parameter_arrays = self._parameter_parts()
        decision, decision_arrays = ({}, {}) if self.decision_ is None else self.decision_.to_parts()
        index_dtype = self.label_index_.dtype
        return {
            "treemax": treemax.__version__,
            "parameters": parameters,
            "label_dtype": None if index_dtype is None else index_dtype.str.replace("<U0", "<U"),
            "label_form": self._label_form,
            "n_features": self.n_features_in_,
            "direct_features": None if self._feature_numbers is None else self._feature_numbers.direct,
            "n_examples": self.n_examples_,
            "sparse_input": self.sparse_input_,
            "calibration": list(self.calibration_),
            "threshold_was_set": self._threshold_was_set,
            "reading": self.reading_,
            **({"decision": decision} if decision else {}),
            "feature_names": list(map(str, getattr(self, "feature_names_in_", []))),
            **self._changes.header(),
            "model": header,
        }, {
            **modelfile.prefixed("labels", self.label_index_.arrays()),
            "label_counts": self.label_counts_,
            **(
                {}
                if self.label_weights_ is None
                else {"label_weights": np.append(self.label_weights_, self._total_weight)}
            ),
            **({} if self._empty_rows is None else {"empty_rows": self._empty_rows.array(len(self.label_index_))}),
            **decision_arrays,
            **modelfile.prefixed("taxonomy", self._taxonomy_arrays()),
            **modelfile.prefixed("model", arrays),
            **modelfile.prefixed("parameters", parameter_arrays),
            **({} if self._feature_numbers is None else {"feature_ids": self._feature_numbers.ids}),
        }

    @classmethod
    def from_parts(cls: type[Self], header: dict[str, Any], arrays: modelfile.Arrays) -> Self:
        """Restore the estimator from its parts."""
        parameters = modelfile.part("parameters", arrays)
        estimator = cls(**cls._parameters_from_parts(header["parameters"], parameters))
        estimator._check_when_used()
        index = LabelIndex.from_arrays(modelfile.part("labels", arrays), header["label_dtype"])
        form, names = header["label_form"], header["feature_names"]
        may_be_empty = cls.STARTS_WITHOUT_LABELS and form == "lists"
        if (len(index) == 0 and not may_be_empty) or form not in get_args(Form):
            raise ValueError(f"it has {len(index)} labels, in the form {form!r:.40}")
        changes = estimator._changes = LabelChanges.from_header(header, len(index))
        if form.endswith("indicator") and not _are_columns(index.classes, changes.n_columns):
            raise ValueError("the labels are not the columns of an indicator matrix")
        estimator.label_index_ = index
        n_examples = estimator.n_examples_ = whole_number(
            "n_examples", header["n_examples"], most=MOST_COUNTED // max(1, len(index))
        )
        counts = expect_counts(arrays, "label_counts", np.int64, (len(index),), most=n_examples)
        estimator.label_counts_ = np.array(counts)
        if "label_weights" in arrays:
            totals = expect_counts(arrays, "label_weights", np.float64, (len(index) + 1,), most=MOST_COUNTED)
            estimator.label_weights_, estimator._total_weight = np.array(totals[:-1]), float(totals[-1])
        if "empty_rows" in arrays:
            estimator._empty_rows = EmptyRows.checked(
                expect_counts(arrays, "empty_rows", np.float64, (len(index) + 1,), most=MOST_COUNTED)
            )
        estimator.n_features_in_ = whole_number("n_features", header["n_features"], most=MAX_FEATURES)
        if header.get("direct_features") is not None:
            estimator._feature_numbers = FeatureNumbers.checked(
                header["direct_features"], arrays["feature_ids"], estimator.n_features_in_
            )
        estimator.sparse_input_ = truth("sparse_input", header["sparse_input"])
        estimator.calibration_ = Calibration.checked(header["calibration"])
        estimator._threshold_was_set = truth("threshold_was_set", header["threshold_was_set"])
        if "decision" in header:
            estimator.decision_ = decisions.Decision.from_parts(header["decision"], arrays, len(index))
        estimator._set_taxonomy_from(modelfile.part("taxonomy", arrays))
        estimator.multi_label_ = form != "vector"
        estimator._label_form = form
        estimator.reading_ = dict(header["reading"])
        if not isinstance(names, list) or not all(type(name) is str for name in names):
            raise ValueError("the names of the features are not strings")
        if names and len(names) != estimator.n_features_in_:
            raise ValueError(f"it has {len(names)} names for {estimator.n_features_in_} features")
        if names:
            estimator.feature_names_in_ = np.array(names, dtype=object)
        model = estimator._model_from_parts(header["model"], modelfile.part("model", arrays))
        if getattr(model, "n_features", estimator.n_features_in_) != estimator.n_features_in_:
            raise ValueError("the weights do not fit the features")
        estimator.model_ = model
        return estimator

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.target_tags.required = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return "model_" in self.__dict__


def _are_columns(labels: NDArray[Any], n_columns: int | None) -> bool:
    """Return whether labels are the columns of an indicator matrix; with `n_columns`, some were removed."""
    if n_columns is None:
        return np.array_equal(labels, np.arange(len(labels)))
    return labels[0] >= 0 and labels[-1] < n_columns and bool((np.diff(labels) > 0).all())


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


def saved_parameters(given: dict[str, Any]) -> dict[str, Any]:
    """Return parameters for the header of a model file; class weights are stored as pairs, and only if they are given."""
    saved = {name: jsonable(name, value) for name, value in given.items() if name != "class_weight"}
    class_weight = given.get("class_weight")
    if isinstance(class_weight, Mapping):
        saved["class_weight"] = [[jsonable("class_weight", part) for part in pair] for pair in class_weight.items()]
    elif class_weight is not None:
        saved["class_weight"] = class_weight
    return saved


def restored_parameters(saved: dict[str, Any]) -> dict[str, Any]:
    """Restore the parameters that `saved_parameters` returned."""
    pairs = saved.get("class_weight")
    if not isinstance(pairs, list):
        return saved
    if not all(isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str | int) for pair in pairs):
        raise ValueError(f"class_weight is {pairs!r:.40}, expected pairs of a label and a weight")
    return {**saved, "class_weight": dict(pairs)}


def jsonable(name: str, value: Any) -> Any:
    """Return a parameter for the header of a model file; raise ValueError if it cannot be stored."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.random.RandomState):
        return None  # its state is not stored; a loaded model draws a new sequence
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(f"Parameter {name}={value!r} cannot be saved; use a number, a string, True, False or None.")
