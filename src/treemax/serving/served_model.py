"""One version of a model that is served."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import clone

from treemax.models.text_model import TextModel
from treemax.parallel.threads import thread_count
from treemax.serving.label_search import GrowingSearch
from treemax.serving.outline import has_tree


@dataclass(eq=False)
class ServedModel:
    """A loaded model, its name, and its properties that requests need."""

    name: str
    model: Any
    fingerprint: str  # of the file that it was loaded from
    learns: bool = False  # whether it is learned from requests
    sequence: int = 0  # of the last example that it has learned
    search: GrowingSearch = field(default_factory=GrowingSearch)
    tree: bool = False
    errors: dict[str, list[int]] = field(default_factory=dict)  # of test data, by node: rows, and wrong ones

    def __post_init__(self) -> None:
        self.is_text = isinstance(self.model, TextModel)
        self.estimator = self.model.estimator if self.is_text else self.model
        self.is_sparse = bool(self.estimator.sparse_input_)
        self.tree = has_tree(self.model)
        if thread_count(getattr(self.estimator, "n_jobs", None)) != 1:
            self.estimator.set_params(n_jobs=1)  # requests are answered at the same time, and learning is repeatable

    @property
    def n_features(self) -> int:
        return int(self.estimator.n_features_in_)

    @property
    def version(self) -> str:
        """The file, and the number of the last example that was learned since."""
        return f"{self.fingerprint[:12]}+{self.sequence}" if self.learns else self.fingerprint[:12]

    def describe(self) -> dict[str, Any]:
        """Return the description of the model for /models."""
        return {
            "name": self.name,
            "model": type(self.estimator).__name__,
            "n_labels": len(self.estimator.label_index_),
            "n_features": self.n_features,
            "input": "text" if self.is_text else "vectors",
            "multi_label": bool(self.estimator.multi_label_),
            "learns": self.learns,
            "tree": self.tree,
            "version": self.version,
        }

    def warm_up(self) -> None:
        """Answer once, so that no request waits for compilation; raises if the model is broken."""
        if len(self.estimator.label_index_):
            _answer(self.estimator, self._rows())
            if self.is_text:
                _answer(self.model, ["a text of some words", "a"])

    def warm_up_learning(self) -> None:
        """Teach an untrained copy of the model, so that the first example does not wait for compilation."""
        label: Any = "label" if self.estimator.label_index_.holds_strings else 0
        model, rows = clone(self.estimator), self._rows()[:1]
        for _ in range(2):
            model.partial_fit(rows, self.targets([label]))
            _answer(model, rows)

    def _rows(self) -> Any:
        """Return two rows, one of them empty."""
        rows = sp.csr_matrix(([1.0], ([0], [0])), shape=(2, self.n_features), dtype=np.float32)
        return rows if self.is_sparse else rows.toarray()

    def targets(self, labels: list[Any]) -> Any:
        """Return the labels of one example in the form that the model was trained with."""
        form = self.estimator._label_form
        if form == "vector":
            return labels
        if form == "lists":
            return [labels]
        columns = sorted(set(labels))
        y = sp.csr_matrix(
            (np.ones(len(columns)), ([0] * len(columns), columns)), shape=(1, len(self.estimator.label_index_))
        )
        return y if form == "indicator" else y.toarray()


def _answer(model: Any, X: Any) -> None:
    """Do what requests do."""
    best = model.predict_topk(X, 5).labels
    model.predict_topk(X, 5, labels=best[0, :1])
    model.predict_above(X, 0.5, scores=True)
    if hasattr(model, "explain"):
        model.explain(X)


def can_learn(model: Any) -> bool:
    """Return whether a model learns online."""
    return hasattr(model, "partial_fit")
