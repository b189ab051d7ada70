"""Online classifiers as river's estimators."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
from river import base
from river.utils import dataframe
from sklearn.base import clone

from treemax.inputs.labels import check_same_length
from treemax.inputs.rows import SparseRows
from treemax.models import OnlineLabelClassifier, OnlineLabelTree
from treemax.river.features import Columns, Numbers

Features = Mapping[Hashable, Any]


class _Adapter:
    """What both adapters share: an online classifier of rows whose labels are numbers, and the names of both."""

    model: Any

    def __init__(self, model: Any = None) -> None:
        if model is not None and not isinstance(model, OnlineLabelClassifier):
            raise ValueError(
                f"model must be a classifier of treemax with partial_fit, such as OnlineLabelTree(), got {model!r:.60}."
            )
        self.model = model
        self._learner = OnlineLabelTree() if model is None else clone(model)
        self._columns = Columns()
        self._labels = Numbers()

    @property
    def learner(self) -> Any:
        """The classifier that learns. Its labels are numbers by arrival, and so are its features."""
        return self._learner

    def predict_topk_one(self, x: Features, k: int = 5) -> dict[Any, float]:
        """Predict the k most probable labels, best first, with their probabilities.

        Unlike `predict_proba_one` its time is not linear in the number of labels.
        """
        if not self._is_fitted():
            return {}
        labels, scores = self._learner.predict_topk(self._columns.rows([x]), k)
        names = self._labels.things
        pairs = zip(labels[0].tolist(), scores[0].tolist())
        return {names[label]: score for label, score in pairs if label is not None}

    def _is_fitted(self) -> bool:
        return self._learner.__sklearn_is_fitted__()

    def _known_labels(self) -> list[Any]:
        """Return the labels in the order of the learner's probabilities."""
        names = self._labels.things
        return [names[number] for number in self._learner.classes_.tolist()]

    def _learn(self, rows: SparseRows, y: Any, w: float) -> None:
        self._learner.partial_fit(rows, y, **({} if w == 1.0 else {"sample_weight": [w] * len(rows)}))


class TreemaxClassifier(_Adapter, base.MiniBatchClassifier):
    """An online classifier of treemax as a classifier of river, for any number of classes.

    Features and classes may appear at any time. Values are numbers, bools, or strings, which are categories; None, NaN
    and zero stand for a feature that is absent. Classes are of any type. Rows are learned as sparse rows.

    Parameters
    ----------
    model
        A classifier with `partial_fit`: `OnlineLabelTree()` by default, `RecallTree`, `LOMTree`, `OneVsAll`,
        `LearnedTree`, ... It is cloned.

    Examples
    --------
    >>> from river import feature_extraction
    >>> from treemax.river import TreemaxClassifier
    >>> model = feature_extraction.BagOfWords() | TreemaxClassifier()
    >>> for text, y in [("red apple", "fruit"), ("fast car", "vehicle"), ("green apple", "fruit")]:
    ...     model.learn_one(text, y)
    >>> model.predict_one("an apple")
    'fruit'
    """

    @property
    def _multiclass(self) -> bool:
        return True

    def learn_one(self, x: Features, y: Any, w: float = 1.0) -> None:
        """Update the model with one row of weight `w`."""
        self._learn_rows(self._columns.rows([x], learning=True), [y], w)

    def learn_many(self, X: Any, y: Any, w: float = 1.0) -> None:
        """Update the model with the rows of a data frame, in order, as if they came one by one."""
        rows, labels = self._frame_rows(X, learning=True), dataframe.into_series(y).to_list()
        check_same_length(len(rows), len(labels))
        # Other models may depend on how rows are grouped.
        size = len(rows) if isinstance(self._learner, OnlineLabelTree) else 1
        for start in range(0, len(rows), max(1, size)):
            self._learn_rows(rows[start : start + size], labels[start : start + size], w)

    def _learn_rows(self, rows: SparseRows, labels: list[Any], w: float) -> None:
        self._labels.add(labels)
        self._learn(rows, [self._labels.of(label) for label in labels], w)

    def predict_one(self, x: Features, **kwargs: Any) -> Any:
        """Predict the most probable class; None before anything was learned."""
        if not self._is_fitted():
            return None
        return self._labels.things[int(self._learner.predict(self._columns.rows([x]))[0])]

    def predict_many(self, X: Any) -> Any:
        """Predict the most probable class of each row of a data frame."""
        rows, names = self._frame_rows(X), self._labels.things
        fitted = self._is_fitted() and len(rows)
        labels = [names[number] for number in self._learner.predict(rows).tolist()] if fitted else [None] * len(rows)
        return dataframe.to_native_series(labels, name=None, like=dataframe.into_frame(X))

    def predict_proba_one(self, x: Features, **kwargs: Any) -> dict[Any, float]:
        """Predict the probability of every class; linear in their number."""
        if not self._is_fitted():
            return {}
        return dict(zip(self._known_labels(), self._probabilities(self._columns.rows([x]))[0].tolist()))

    def predict_proba_many(self, X: Any) -> Any:
        """Predict the probability of every class for each row of a data frame."""
        rows, found = self._frame_rows(X), {}
        if self._is_fitted() and len(rows):
            found = dict(zip(self._known_labels(), np.ascontiguousarray(self._probabilities(rows).T)))
        return dataframe.to_native_frame(found, like=dataframe.into_frame(X))

    def _frame_rows(self, X: Any, learning: bool = False) -> SparseRows:
        frame = dataframe.into_frame(X)
        return self._columns.rows((dict(zip(frame.columns, row)) for row in frame.iter_rows()), learning)

    def _probabilities(self, rows: SparseRows) -> Any:
        if not hasattr(self._learner, "predict_proba"):
            raise NotImplementedError(f"{type(self._learner).__name__} does not estimate probabilities.")
        found = self._learner.predict_proba(rows).astype(np.float64)
        return found / found.sum(axis=1, keepdims=True)


class TreemaxMultiLabelClassifier(_Adapter, base.MultiLabelClassifier):
    """An online classifier of treemax as a multi-label classifier of river.

    As `TreemaxClassifier`, with any number of labels a row: `y` is a dictionary from labels to bools. With many labels,
    give only those that are True.

    Parameters
    ----------
    model
        A classifier with `partial_fit` that supports several labels a row: `OnlineLabelTree()` by default, or `OneVsAll`.
        It is cloned.

    Examples
    --------
    >>> from treemax.river import TreemaxMultiLabelClassifier
    >>> model = TreemaxMultiLabelClassifier()
    >>> for _ in range(20):
    ...     model.learn_one({"apple": 1}, {"fruit": True, "red": True})
    ...     model.learn_one({"pear": 1}, {"fruit": True, "red": False})
    >>> model.predict_one({"pear": 1})
    {'red': False, 'fruit': True}
    """

    def __init__(self, model: Any = None) -> None:
        super().__init__(model)
        if self._learner.ONE_LABEL_ONLY:
            raise ValueError(
                f"{type(model).__name__} supports one label per row only. Use TreemaxClassifier, or OnlineLabelTree()."
            )
        self._negatives: dict[Any, bool] = {}  # labels that were given as False

    def learn_one(self, x: Features, y: Mapping[Any, bool], w: float = 1.0) -> None:
        """Update the model with one row of weight `w`; labels that are not in `y` are False."""
        if not isinstance(y, Mapping):
            raise ValueError(
                f"y is a {type(y).__name__}, expected a dictionary from labels to bools. Use TreemaxClassifier for rows with one label."
            )
        rows = self._columns.rows([x], learning=True)
        self._negatives.update((label, False) for label, given in y.items() if not given)
        labels = [label for label, given in y.items() if given]
        if not labels and not self._is_fitted() and not self._learner.STARTS_WITHOUT_LABELS:
            return  # the model has no label yet of which this row could be a negative example
        self._labels.add(labels)
        self._learn(rows, [[self._labels.of(label) for label in labels]], w)

    def predict_one(self, x: Features, **kwargs: Any) -> dict[Any, bool]:
        """Predict the labels: those that are True, and as False those that were ever given as False.

        The dictionary answers False for any other label.
        """
        answer = Answer(self._negatives)
        if self._is_fitted():
            names = self._labels.things
            answer.update((names[number], True) for number in self._learner.predict(self._columns.rows([x]))[0])
        return answer

    def predict_proba_one(self, x: Features, **kwargs: Any) -> dict[Any, dict[bool, float]]:
        """Predict the probability of every label; linear in their number."""
        answer = {label: {False: 1.0, True: 0.0} for label in self._negatives}
        if self._is_fitted() and len(self._learner.classes_):
            scores = self._learner.predict_proba(self._columns.rows([x]))[0].tolist()
            answer.update((label, {False: 1.0 - p, True: p}) for label, p in zip(self._known_labels(), scores))
        return answer


class Answer(dict[Any, bool]):
    """Predicted labels; any other label is False.

    >>> Answer(fruit=True)["animal"]
    False
    """

    def __missing__(self, label: Any) -> bool:
        return False
