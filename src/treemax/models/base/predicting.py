"""Predictions of the classifiers: from rows to labels and calibrated probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted, validate_data

from treemax.explanations import Explanation, Trace
from treemax.inputs.labels import Form, requested_ids
from treemax.inputs.numbering import FeatureNumbers
from treemax.inputs.rows import Rows, SparseRows, as_rows, is_arrow, take_rows
from treemax.memory import check_fits
from treemax.metrics import precision_at_k
from treemax.models.base.deciding import DecidingEstimator
from treemax.models.base.empty_rows import EmptyRows, replace_rows, without_known_features
from treemax.models.base.explaining import as_table, explain_row
from treemax.models.base.label_weights import LabelWeights
from treemax.models.base.new_labels import GrowingLabels
from treemax.models.base.single_rows import Predictor
from treemax.models.base.taxonomies import TaxonomyEstimator
from treemax.models.base.thread_safety import read_access, read_access_by_rows
from treemax.models.calibration import largest
from treemax.models.trained.searching import SparseProbabilities
from treemax.numpy_only.calibration import LEADING
from treemax.numpy_only.frequencies import label_frequencies, most_frequent
from treemax.numpy_only.topk import TopK, check_k
from treemax.parallel.threads import thread_count
from treemax.parameters import check_number

FEW_IDS = 64  # of which Python finds the least sooner than NumPy


class PredictingEstimator(DecidingEstimator, TaxonomyEstimator, GrowingLabels):
    """Mixin of the classifiers: all methods that predict, from the scores of `model_`.

    A subclass overrides `_top`, `_probabilities` and their like where `model_` needs more than its standard calls.
    """

    n_features_in_: int
    label_weights_: NDArray[np.float64] | None = None
    sparse_input_: bool  # whether the training rows were sparse, so that a row without entries has no features
    _total_weight: float = 0.0  # of the rows, where they have weights
    _empty_rows: EmptyRows | None = None  # training rows without features, if there were any
    _feature_numbers: FeatureNumbers | None = None  # renumbering of sparse feature ids, where ids are large and few
    _label_form: Form

    # --- scores of the trained model --------------------------------------------------------------------

    def _search(self) -> Any:
        """Return the search option of `model_` from the parameters; None where it has none."""
        return None

    def _top(self, rows: Rows, k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the ids of the k best labels of each row (-1 where fewer were found) and their scores, best first.

        Scores are between 0 and 1, before calibration, here and in the next three methods.
        """
        return self.model_.top_k(rows, k, self._search(), self._threads())

    def _probabilities(self, rows: Rows) -> NDArray[np.float32]:
        """Return scores of all labels for each row."""
        return self.model_.probabilities(rows, self._search(), self._threads())

    def _above(self, rows: Rows, threshold: float) -> SparseProbabilities:
        """Return row, id and score of all labels with at least this score, sorted by row and id."""
        return self.model_.above(rows, threshold, self._search(), self._threads())

    def _probabilities_of(self, rows: Rows, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return scores of given labels, ids[i] those of row i; 0 where the id is -1."""
        return self.model_.of_labels(rows, ids, self._search(), self._threads())

    def _trace(self, row: Rows, ids: list[int], scores: list[float]) -> Trace:
        """Return the decisions that lead to labels with these scores, for one row; raise if a label is not reached."""
        if not hasattr(self.model_, "trace"):
            raise ValueError(f"{type(self).__name__} cannot explain its predictions.")
        return self.model_.trace(row, ids, scores, self._search())

    def _threads(self) -> int:
        return thread_count(getattr(self, "n_jobs", None))

    # --- labels -----------------------------------------------------------------------------------------

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

    def predictor(self, k: int = 5) -> Predictor:
        """Return a function that predicts the k most probable labels like `predict_topk`, but sooner for a single row.

        It answers from the model as it is now: training does not change it, and any number of threads may call it. A model
        that learns in place is copied. See `Predictor` for the rows it takes.

        >>> import numpy as np, scipy.sparse as sp, treemax
        >>> model = treemax.LabelTree(verbose=0).fit(sp.csr_matrix(np.eye(3, dtype=np.float32)), ["a", "b", "c"])
        >>> predictor = model.predictor(k=1)
        >>> predictor(np.array([2]), np.array([1.0])).labels.tolist()
        ['c']
        """
        check_k(k)
        check_is_fitted(self, "model_")
        return Predictor(self._frozen(), int(k))

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
        """Return scores before calibration and probabilities of given labels, 0 where the id is -1."""
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
        """Return probabilities of all labels, without regard to changed labels and rows without known features."""
        scores = self._probabilities(rows)
        if self.multi_label_ or not self.calibration_.changes_scores:
            return self.calibration_.probabilities(scores)
        is_first = np.arange(scores.shape[1]) == scores.argmax(axis=1)[:, None]
        return self.calibration_.multiclass_probabilities(scores, largest(scores, LEADING), is_first)

    def _all_probabilities(self, rows: Rows) -> NDArray[np.float32]:
        """Return probabilities of all labels as in `predict_topk`: those of a multi-class model need not sum to one."""
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
        """Return ids and probabilities of the k most probable labels, or best by probability x weight."""
        if weights is not None:
            return (self._merged_top if self._changes.merged else self._weighted_top)(rows, k, weights)
        ids, _, probabilities = self._scored_top(rows, k)
        return ids, probabilities

    def _best(self, rows: Rows) -> NDArray[np.int64]:
        """Return the id of the most probable label of each row."""
        return self._with_some_label(self._calibrated_top(rows, 1, self._weights_of_labels(None, None, None))[0][:, 0])

    def _candidates(self, rows: Rows, k: int) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]:
        """Return ids, scores before calibration and probabilities of the k best labels that were not forgotten, parts
        of merged labels by themselves."""
        if not self._changes.forgotten:
            return self._scored_top(rows, min(k, len(self.label_index_)))
        weights = LabelWeights(self._changes.present(len(self.label_index_)))
        ids, _ = self._weighted_top(rows, min(k, weights.n_allowed), weights)
        return ids, *self._scored_labels(rows, ids)

    def _scored_top(self, rows: Rows, k: int) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]:
        """Return ids, scores before calibration and probabilities of the k most probable labels."""
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
        """Return row, id and probability of all labels with at least this probability, sorted by row and id."""
        found = self._unchanged_above(rows, threshold)
        return self._changed_above(rows, threshold, found) if self._changes else found

    def _unchanged_above(self, rows: Rows, threshold: float) -> SparseProbabilities:
        """Return the same without the changes of labels."""
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
        """Return row, id and probability of a superset of the labels above a threshold, for a multi-class model."""
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
        """Return the ids and scores of the best labels: k, and at least as many as the multi-class calibration needs."""
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
        """Return rows without any feature seen in training, or None; only if sparse, since a dense zero is a value."""
        return without_known_features(rows, self.n_features_in_) if self.sparse_input_ else None

    def _frequencies(self, n_labels: int) -> NDArray[np.float32]:
        """Return relative frequencies of the first labels, whose number may differ while another thread learns."""
        weighted = self.label_weights_ is not None
        known = self.label_weights_ if self.label_weights_ is not None else self.label_counts_
        counts = np.zeros(n_labels, dtype=known.dtype)
        counts[: len(known)] = known[:n_labels]
        return label_frequencies(counts, self._total_weight if weighted else self.n_examples_, self.multi_label_)

    def _frequencies_if_unknown(self, n_labels: int) -> NDArray[np.float32]:
        """Return the probabilities of the first labels for a row without known features."""
        frequencies, empty = self._frequencies(n_labels), self._empty_rows
        return frequencies if empty is None else empty.frequencies(frequencies)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the precision at 1 (accuracy for multi-class), weighted by `sample_weight`."""
        return precision_at_k(y, self.predict_topk(X, 1).labels, 1, sample_weight)

    def _rows_to_predict(self, X: Any) -> Rows:
        if "model_" not in self.__dict__:  # check_is_fitted takes as long as a small search
            check_is_fitted(self, "model_")
        rows = as_rows(X)
        self._check_width(X, rows)
        if self._feature_numbers is not None and isinstance(rows, SparseRows):
            return self._feature_numbers.rows(rows)
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
        if ids.size and (min(ids.ravel().tolist()) if ids.size <= FEW_IDS else ids.min()) < 0:
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
