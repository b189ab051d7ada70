"""What every trained model answers, under the same names in all of them."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.rows import Rows
from treemax.modelfile import Arrays
from treemax.models.searching import SparseProbabilities

Ids: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float32]
Model = TypeVar("Model")

ROWS_AT_ONCE = 1024  # when the probabilities of all labels are looked through


class TrainedModel(Protocol):
    """The arrays of a trained model, and the answers that they give.

    `search` is how the estimator's parameters want the labels to be searched: a beam width, for example, or None where
    the model has one way only. Rows are validated; labels are ids. Probabilities are not yet calibrated.
    """

    def top_k(self, rows: Rows, k: int, search: Any, threads: int = 1) -> tuple[Ids, Floats]:
        """Ids (-1 where fewer were found) and probabilities of the k best labels of each row, best first."""

    def probabilities(self, rows: Rows, search: Any, threads: int = 1) -> Floats:
        """The probability of every label for each row."""

    def above(self, rows: Rows, threshold: float, search: Any, threads: int = 1) -> SparseProbabilities:
        """All labels with at least this probability, by row and id."""

    def of_labels(self, rows: Rows, ids: Ids, search: Any, threads: int = 1) -> Floats:
        """The probabilities of given labels, ids[i] those of row i; 0 where the id is -1."""

    def to_parts(self, resume: bool = False) -> tuple[dict[str, Any], Arrays]:
        """The model as a JSON-able header and arrays; with `resume`, all that learning needs to continue."""

    @classmethod
    def from_parts(cls: type[Model], header: dict[str, Any], arrays: Arrays, n_labels: int) -> Model:
        """The model back from its parts; a ValueError where they do not fit together."""


class FromAllProbabilities:
    """`above` and `of_labels` of a model that computes the probabilities of all labels in any case."""

    def probabilities(self, rows: Rows, search: Any, threads: int = 1) -> Floats:
        """The probability of every label for each row."""
        raise NotImplementedError

    def above(self, rows: Rows, threshold: float, search: Any, threads: int = 1) -> SparseProbabilities:
        """All labels with at least this probability, by row and id."""
        found = []
        for start in range(0, len(rows), ROWS_AT_ONCE):
            probabilities = self.probabilities(rows[start : start + ROWS_AT_ONCE], search, threads)
            row, ids = np.nonzero(probabilities >= np.float32(threshold))
            found.append((row + start, ids, probabilities[row, ids]))
        return SparseProbabilities(*map(np.concatenate, zip(*found)))

    def of_labels(self, rows: Rows, ids: Ids, search: Any, threads: int = 1) -> Floats:
        """The probabilities of given labels, ids[i] those of row i; 0 where the id is -1."""
        answer = np.empty(ids.shape, dtype=np.float32)
        for start in range(0, len(rows), ROWS_AT_ONCE):
            block = slice(start, start + ROWS_AT_ONCE)
            of_all = self.probabilities(rows[block], search, threads)
            answer[block] = np.take_along_axis(of_all, np.maximum(ids[block], 0), axis=1)
        answer[ids < 0] = 0.0
        return answer
