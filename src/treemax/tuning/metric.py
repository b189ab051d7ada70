"""The metric that a search maximises."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.labels import LabelIndex, RaggedLabels
from treemax.metrics import IdEncoder, Scores

NAMES = {"p": "P", "psp": "PSP", "ndcg": "nDCG", "macro-f1": "macro-F1", "micro-f1": "micro-F1"}
OF_PREDICT = ("macro-F1", "micro-F1")  # without @k, of the labels of `predict`
KEYS = {"macro-F1": "macro_F1", "micro-F1": "micro_F1"}  # names in the results of `Scores`


@dataclass(frozen=True)
class Metric:
    """A metric to maximise; without k, of the labels of `predict`."""

    name: str
    k: int | None

    def __str__(self) -> str:
        return self.name if self.k is None else f"{self.name}@{self.k}"


def parse_metric(text: str) -> Metric:
    """Parse the name of a metric, in upper or lower case.

    >>> str(parse_metric("ndcg@5")), str(parse_metric("Macro-F1"))
    ('nDCG@5', 'macro-F1')
    >>> parse_metric("accuracy")
    Traceback (most recent call last):
    ...
    ValueError: metric must be P@k, PSP@k, nDCG@k, macro-F1 or micro-F1, such as P@5; got 'accuracy'.
    """
    match = re.fullmatch(r"([a-z]+(?:[-_]f1)?)(?:@([1-9][0-9]{0,3}))?", str(text).strip().lower())
    name = NAMES.get(match[1].replace("_", "-")) if match else None
    if match is None or name is None or (match[2] is None and name not in OF_PREDICT):
        raise ValueError(f"metric must be P@k, PSP@k, nDCG@k, macro-F1 or micro-F1, such as P@5; got {text!r:.40}.")
    return Metric(name, None if match[2] is None else int(match[2]))


def default_metric(multi_label: bool) -> Metric:
    """Return P@5 for multi-label data, else P@1."""
    return Metric("P", 5 if multi_label else 1)


class Objective:
    """Evaluation of models by a metric."""

    def __init__(self, metric: Metric, index: LabelIndex, label_counts: NDArray[np.int64], n_train: int) -> None:
        self.metric = metric
        self._encoder = IdEncoder(index)
        self._counts, self._n_train = label_counts, n_train

    @property
    def top(self) -> int:
        """Number of labels to predict per row."""
        return self.metric.k or 1

    def value(self, model: Any, X: Any, labels: RaggedLabels, top: Any) -> float:
        """Return the metric of a model for rows with these labels; `top` is its `predict_topk` for them."""
        ranking = self._encoder.ranking(top.labels)
        if self.metric.k is None and labels.multi_label:
            ranking = self._encoder.ranking(model.predict(X))
        k = self.metric.k or max(1, ranking.shape[1])
        scores = Scores([k], self._counts, self._n_train)
        scores.update(self._encoder.targets(labels), ranking)
        return scores.result()[f"{KEYS.get(self.metric.name, self.metric.name)}@{k}"]
