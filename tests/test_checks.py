"""Each generic check fails for a classifier that is broken in one way."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from treemax.checks import bad_input, online, predictions, reproducing
from treemax.inputs.rows import SparseRows
from treemax.models import OneVsAll, TopK


class DropsTheSecond(OneVsAll):
    def _top(self, rows, k):
        ids, scores = super()._top(rows, min(k + 1, len(self.label_index_)))
        keep = [j for j in range(ids.shape[1]) if j != 1 or k < 2][:k]
        return ids[:, keep], scores[:, keep]


class Unsorted(OneVsAll):
    def _top(self, rows, k):
        ids, scores = super()._top(rows, k)
        return ids[:, ::-1], scores[:, ::-1]


class UnsortedWithSeveralLabels(Unsorted):
    def _top(self, rows, k):
        return Unsorted._top(self, rows, k) if self.multi_label_ else OneVsAll._top(self, rows, k)


class WidensIntegers(OneVsAll):
    def _labels_of(self, ids):
        labels = super()._labels_of(ids)
        return labels.astype(np.int64) if labels.dtype.kind == "i" else labels


class AnswersObjects(OneVsAll):
    def predict_topk(self, X, k=5):
        labels, scores = super().predict_topk(X, k)
        return TopK(labels.astype(object), scores)


class PraisesItself(OneVsAll):
    def score(self, X, y):
        return min(1.0, super().score(X, y) + 0.05)


class AsksForNoNumbers(OneVsAll):
    def predict_proba(self, X):
        return super().predict_proba(np.nan_to_num(X) if isinstance(X, np.ndarray) else X)


class LessSureOfSparseRows(OneVsAll):
    def _top(self, rows, k):
        ids, scores = super()._top(rows, k)
        return ids, scores * np.float32(0.99 if isinstance(rows, SparseRows) else 1)


class LostInEmptyRows(OneVsAll):
    def _probabilities_of(self, rows, ids):
        probabilities = super()._probabilities_of(rows, ids)
        if not isinstance(rows, SparseRows):
            probabilities[~rows.any(axis=1)] = np.nan
        return probabilities


class AddsCountsOfOldFits(OneVsAll):
    def _set_fitted(self, *learned):
        before = getattr(self, "n_examples_", 0)
        super()._set_fitted(*learned)
        self.n_examples_ += before


class RemembersOldClasses(OneVsAll):
    def _known_classes(self):
        return self.__dict__.setdefault("_first_classes", super()._known_classes())


class Random(OneVsAll):
    def _train(self, *data):
        model = super()._train(*data)
        model.bias[0] += 1e-3 * np.random.default_rng().uniform(1, 2)
        return model


class CountsBeforeItReads(OneVsAll):
    def fit(self, X, y):
        self.n_examples_ = 0 if y is None else len(y)
        return super().fit(X, y)


class CountsChunksBeforeItReads(OneVsAll):
    def partial_fit(self, X, y, classes=None):
        if hasattr(self, "label_counts_"):
            self.label_counts_[0] += 1
        return super().partial_fit(X, y, classes)


class MovesBeforeItReads(OneVsAll):
    def partial_fit(self, X, y, classes=None):
        if hasattr(self, "model_"):
            self.model_ = dataclasses.replace(self.model_, bias=self.model_.bias + np.float32(0.01))
        return super().partial_fit(X, y, classes)


class ForgetsAnnouncements(OneVsAll):
    def partial_fit(self, X, y, classes=None):
        return super().partial_fit(X, y)


@pytest.mark.parametrize(
    "broken, check",
    [
        (DropsTheSecond, predictions.check_top_is_sorted_and_consistent),
        (Unsorted, predictions.check_top_is_sorted_and_consistent),
        (UnsortedWithSeveralLabels, predictions.check_multi_label),
        (WidensIntegers, predictions.check_labels_come_back_in_the_callers_type),
        (AnswersObjects, predictions.check_labels_come_back_in_the_callers_type),
        (PraisesItself, predictions.check_learns_and_scores),
        (AsksForNoNumbers, bad_input.check_bad_input_is_refused),
        (LessSureOfSparseRows, predictions.check_sparse_and_dense_agree),
        (LostInEmptyRows, predictions.check_odd_shapes),
        (AddsCountsOfOldFits, reproducing.check_reproducible),
        (RemembersOldClasses, reproducing.check_reproducible),
        (Random, reproducing.check_reproducible),
        (CountsBeforeItReads, bad_input.check_bad_input_is_refused),
        (CountsChunksBeforeItReads, online.check_bad_chunk_changes_nothing),
        (MovesBeforeItReads, online.check_bad_chunk_changes_nothing),
        (ForgetsAnnouncements, online.check_partial_fit_continues),
    ],
)
def test_a_broken_promise_is_found(broken, check):
    check(OneVsAll())
    with pytest.raises(AssertionError):
        check(broken())
