"""Answers by weights of labels, and thresholds of multi-label predictions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from treemax.inputs.labels import LabelIndex, check_same_length, read_labels, target_ids
from treemax.inputs.rows import Rows
from treemax.metrics.utility import check_utility, choose
from treemax.models.base import thresholds
from treemax.models.base.label_changes import LabelChanges
from treemax.models.base.label_weights import LabelWeights, LastWeights, label_weights
from treemax.models.base.thread_safety import SharedEstimator, read_access
from treemax.models.calibration import Calibration
from treemax.models.trained.searching import TopKAllowed, best_weighted
from treemax.numpy_only.calibration import LEADING
from treemax.numpy_only.frequencies import most_frequent
from treemax.numpy_only.topk import TopK
from treemax.parameters import check_number

Self = TypeVar("Self", bound="DecidingEstimator")

RANKED_LABELS = 100  # number of labels per row that are ranked to choose thresholds, or labels for a utility


class DecidingEstimator(SharedEstimator):
    """Mixin of the classifiers: from probabilities to answers."""

    label_index_: LabelIndex
    label_counts_: NDArray[np.int64]
    n_examples_: int
    multi_label_: bool
    calibration_: Calibration
    decision_: thresholds.Decision | None = None  # the rule of `choose_thresholds`
    model_: Any
    _changes: LabelChanges
    _threshold_was_set: bool

    # Methods of the classifier.
    _rows_to_predict: Callable[[Any], Rows]
    _search: Callable[[], Any]
    _threads: Callable[[], int]
    _unknown: Callable[[Rows], NDArray[np.int64] | None]
    _frequencies_if_unknown: Callable[[int], NDArray[np.float32]]
    _leading: Callable[..., tuple[NDArray[np.int64], NDArray[np.float32]]]
    _calibrated_top: Callable[..., tuple[NDArray[np.int64], NDArray[np.float32]]]
    _labels_of: Callable[[NDArray[np.int64]], NDArray[Any]]

    # --- weights of labels --------------------------------------------------------------------------------

    @read_access
    def make_label_weights(
        self, labels: Any = None, exclude: Any = None, label_weights: Any = None, priors: Any = None
    ) -> LabelWeights:
        """Return weights of all labels for `predict_topk(..., label_weights=...)`; `values` has them by `classes_`.

        Faster than the same arguments in every call. Labels of weight 0 are never predicted.

        Parameters
        ----------
        labels : list, optional
            The labels that are allowed; those that the model does not know are ignored.
        exclude : list, optional
            Labels that are not allowed.
        label_weights : dict, array or "propensity", optional
            Weights by label (1 for labels not in the dictionary), or in the order of `classes_`. "propensity" weighs by
            inverse propensity (Jain et al., 2016), which favours rare labels: best for PSP@k.
        priors : dict, optional
            Shares of labels where the model is used; the weight is this share divided by that in training.
        """
        check_is_fitted(self, "model_")
        return self._new_label_weights(labels, exclude, label_weights, priors)

    def _new_label_weights(self, labels: Any, exclude: Any, weights: Any, priors: Any = None) -> LabelWeights:
        counts = np.zeros(len(self.label_index_), dtype=np.int64)
        counts[: len(self.label_counts_)] = self.label_counts_[: len(counts)]  # may differ while another thread learns
        changes = self._changes
        kept = changes.kept(len(counts)) if changes else None
        counts = changes.united_counts(counts)
        return label_weights(self.label_index_, counts, self.n_examples_, labels, exclude, weights, priors, kept)

    def _weights_of_labels(self, labels: Any, exclude: Any, weights: Any) -> LabelWeights | None:
        """Return the weights of all labels, None if all are one; those of the last call again if nothing has changed."""
        if labels is None and exclude is None:
            if weights is None:
                return LabelWeights(self._changes.kept(len(self.label_index_))) if self._changes else None
            if not self._changes and isinstance(weights, LabelWeights):
                if len(weights.values) != len(self.label_index_):
                    raise ValueError("label_weights are those of another model, or labels have been added since.")
                return weights
        last = self._changes.last_weights
        if last is not None and last.answer(self.label_index_, labels, exclude, weights):
            return last.weights
        found = self._new_label_weights(labels, exclude, weights)
        if last is not None and np.array_equal(last.weights.values, found.values):
            found = last.weights  # models keep what they derived from it
        self._changes.keep_weights(LastWeights.of(self.label_index_, labels, exclude, weights, found))
        return found

    def _weighted_top(self, rows: Rows, k: int, weights: LabelWeights) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the ids and probabilities of the k labels with the largest products of probability and weight."""
        if self.multi_label_ or not self.calibration_.changes_scores:
            ids, probabilities = self._weighted_by_score(rows, k, weights)
        else:
            ids, probabilities = self._weighted_multiclass(rows, k, weights)
        unknown = self._unknown(rows)
        if unknown is not None:
            frequencies = self._frequencies_if_unknown(len(self.label_index_))
            first = most_frequent(np.where(weights.values > 0, frequencies * weights.values, -1.0), k)
            ids[unknown], probabilities[unknown] = first, frequencies[first]
        return ids, probabilities

    def _top_weighted(self, rows: Rows, k: int, weights: LabelWeights) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        return self.model_.top_k_weighted(rows, k, weights.values, self._search(), self._threads())

    def _top_allowed(self, rows: Rows, k: int, n_first: int, weights: LabelWeights) -> TopKAllowed:
        return self.model_.top_k_allowed(rows, k, n_first, weights.values, self._search(), self._threads())

    def _weighted_by_score(
        self, rows: Rows, k: int, weights: LabelWeights
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the weighted top k where the probability of a label depends on its score alone.

        The search multiplies weights with scores. If calibration changes these and weights differ, more than k labels
        are found, and ranked again.
        """
        if weights.only_select:
            found = self._top_allowed(rows, k, 0, weights)
            return found.ids, self.calibration_.probabilities(found.probabilities)
        if not self.calibration_.changes_scores:
            return self._top_weighted(rows, k, weights)
        ids, scores = self._top_weighted(rows, 2 * k + 10, weights)
        return best_weighted(ids, self.calibration_.probabilities(scores), weights.values, k)

    def _weighted_multiclass(
        self, rows: Rows, k: int, weights: LabelWeights
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the weighted top k of a calibrated multi-class model, which depends on the leading scores.

        Calibration scales all labels but the leading ones by the same factor, so that the search may rank by score.
        """
        if weights.only_select:
            n_leading = min(LEADING, len(self.label_index_))
            first, leading, ids, scores = self._top_allowed(rows, k, n_leading, weights)
        else:
            first, leading = self._leading(rows, k)
            found, of_found = self._top_weighted(rows, k + LEADING, weights)
            new = np.where((found[:, :, None] == first[:, None]).any(axis=2), -1, found)
            ids, scores = np.hstack([first, new]), np.hstack([leading, of_found])
        is_first = ids == first[:, :1]
        probabilities = self.calibration_.multiclass_probabilities(scores, leading[:, :LEADING], is_first)
        probabilities[ids < 0] = 0.0
        return (ids, probabilities) if weights.only_select else best_weighted(ids, probabilities, weights.values, k)

    # --- expected utility ---------------------------------------------------------------------------------

    @read_access
    def predict_for_utility(
        self,
        X: Any,
        k: int = 5,
        utility: str = "macro-f1",
        *,
        labels: Any = None,
        exclude: Any = None,
        label_weights: Any = None,
        candidates: int = RANKED_LABELS,
    ) -> TopK:
        """Predict the k labels of each row that maximise an expected utility of all rows of X together.

        Which labels a row gets depends on the others: macro-averages and coverage reward answers that are rare elsewhere. The
        labels are chosen from the `candidates` best of each row, see `treemax.metrics.best_for_utility`; the other
        arguments are those of `predict_topk`. The most probable label is first.

        Parameters
        ----------
        X
            All rows to be answered.
        k : int
            Labels of each row.
        utility : {"macro-f1", "macro-precision", "macro-recall", "macro-balanced-accuracy", "coverage", "instance-precision"}
            What to maximise.
        labels, exclude, label_weights
            Which labels are considered, and how candidates are ranked.
        candidates : int
            Labels of each row to choose from.
        """
        check_utility(utility)
        check_number("k", k, whole=True, least=1)
        check_number("candidates", candidates, whole=True, least=1)
        rows = self._rows_to_predict(X)
        weights = self._weights_of_labels(labels, exclude, label_weights)
        n_labels = len(self.label_index_)
        n_allowed = n_labels if weights is None else weights.n_allowed
        k = min(int(k), n_allowed)
        ids, probabilities = self._calibrated_top(rows, min(max(int(candidates), k), n_allowed), weights)
        order = np.argsort(-probabilities, axis=1, kind="stable")
        ids, probabilities = np.take_along_axis(ids, order, axis=1), np.take_along_axis(probabilities, order, axis=1)
        chosen = choose(ids, probabilities.astype(np.float64), n_labels, k, utility)
        order = np.argsort(~chosen, axis=1, kind="stable")[:, :k]
        kept = np.take_along_axis(chosen, order, axis=1)
        best = np.where(kept, np.take_along_axis(ids, order, axis=1), -1)
        scores = np.where(kept, np.take_along_axis(probabilities, order, axis=1), np.float32(0.0))
        return TopK(self._labels_of(best), scores)

    # --- thresholds ---------------------------------------------------------------------------------------

    def choose_thresholds(self: Self, X: Any, y: Any, metric: str = "macro-f1", precision: float | None = None) -> Self:
        """Choose on validation rows from which probabilities on a multi-label `predict` returns labels.

        Use rows that `fit` has not seen. The choice replaces `threshold_`, is saved with the model and described by
        `describe`; setting `threshold_` or fitting again removes it.

        Parameters
        ----------
        X, y
            Validation rows and their labels, as for `fit`.
        metric : {"micro-f1", "macro-f1", "instance-f1", "precision"}
            "macro-f1" chooses a threshold for each label, drawn to a common one where a label has few rows; the others
            choose one for all. "instance-f1" is the mean of the F1 of rows. "precision" takes the lowest threshold
            from which on the share of right labels is at least `precision`.
        precision : float
            The wanted precision; only for metric="precision".
        """
        if metric not in thresholds.METRICS:
            raise ValueError(f"metric must be one of {', '.join(thresholds.METRICS)}, got {metric!r}.")
        if (metric == "precision") != (precision is not None):
            raise ValueError(f"precision goes with metric='precision', got metric={metric!r}, precision={precision!r}.")
        check_number("precision", precision, above=0, most=1, optional=True)
        ranked = self._rank_validation_rows(X, y)
        threshold, one_at_least, of_labels = thresholds.choose(ranked, metric, precision)
        found = thresholds.Decision(metric, len(ranked.n_labels), of_labels)
        self._with_write_access(type(self)._set_decision, threshold, one_at_least, found)
        return self

    @read_access
    def _rank_validation_rows(self, X: Any, y: Any) -> thresholds.Ranked:
        """Rank the best labels of rows with known labels."""
        rows, labels = self._rows_to_predict(X), read_labels(y)
        if not self.multi_label_:
            raise ValueError("choose_thresholds is for multi-label models; this one always predicts one label a row.")
        check_same_length(len(rows), len(labels))
        if not labels.multi_label:
            raise ValueError("y must be multi-label, as in fit: label lists or an indicator matrix.")
        known = target_ids(labels, self.label_index_.ids(labels.values))
        if len(known.ids) == 0:
            raise ValueError("choose_thresholds needs rows with labels that the model knows, but y has none.")
        n_known = len(self.label_index_)
        mean = len(labels.values) / max(1, len(rows))
        weights = self._weights_of_labels(None, None, None)
        n_answered = n_known if weights is None else weights.n_allowed
        k = int(min(n_answered, max(RANKED_LABELS, np.ceil(4 * mean))))
        ids, probabilities = self._calibrated_top(rows, k, weights)
        row_of = np.repeat(np.arange(len(rows)), np.diff(known.indptr))
        right = row_of * n_known + known.ids.astype(np.int64)
        hits = np.isin(np.arange(len(rows))[:, None] * n_known + ids, right) & (ids >= 0)
        counts = np.bincount(known.ids, minlength=n_known)
        return thresholds.Ranked(ids, probabilities, hits, labels.counts, counts)

    def _set_decision(self, threshold: float, one_at_least: bool, decision: thresholds.Decision) -> None:
        self.calibration_ = self.calibration_._replace(threshold=threshold, one_at_least=one_at_least)
        self._threshold_was_set, self.decision_ = True, decision
