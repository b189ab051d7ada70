"""The interface of trained models."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.rows import Rows
from treemax.kernels import search as kernels
from treemax.modelfile import Arrays
from treemax.models.trained.searching import (
    SparseProbabilities,
    TopKAllowed,
    allowed_among,
    best_weighted,
    empty_top_k,
    two_searches,
)

Ids: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float32]
Model = TypeVar("Model")

ROWS_AT_ONCE = 1024  # rows whose probabilities of all labels are computed together


class TrainedModel(Protocol):
    """A trained model: its arrays, and predictions from them.

    `search` is the search option from the estimator's parameters, such as a beam width; None where the model has none.
    Rows are validated; labels are ids. Probabilities are not yet calibrated.
    """

    def top_k(self, rows: Rows, k: int, search: Any, threads: int = 1) -> tuple[Ids, Floats]:
        """Return ids (-1 where fewer were found) and probabilities of the k best labels of each row, best first."""

    def top_k_weighted(self, rows: Rows, k: int, weights: Floats, search: Any, threads: int = 1) -> tuple[Ids, Floats]:
        """Return the k labels with the largest products of probability and weight, and their probabilities.

        `weights` has the weight of every label; labels of weight 0 are left out.
        """

    def top_k_allowed(
        self, rows: Rows, k: int, n_first: int, weights: Floats, search: Any, threads: int = 1
    ) -> TopKAllowed:
        """Return the `n_first` best of all labels (may be 0), as of `top_k`, and the k best of those with a weight."""

    def probabilities(self, rows: Rows, search: Any, threads: int = 1) -> Floats:
        """Return the probability of every label for each row."""

    def above(self, rows: Rows, threshold: float, search: Any, threads: int = 1) -> SparseProbabilities:
        """Return all labels with at least this probability, by row and id."""

    def of_labels(self, rows: Rows, ids: Ids, search: Any, threads: int = 1) -> Floats:
        """Return the probabilities of given labels, ids[i] those of row i; 0 where the id is -1."""

    def to_parts(self, resume: bool = False) -> tuple[dict[str, Any], Arrays]:
        """Return the model as a JSON-able header and arrays; with `resume`, including the optimiser state."""

    @classmethod
    def from_parts(cls: type[Model], header: dict[str, Any], arrays: Arrays, n_labels: int) -> Model:
        """Restore the model from its parts; raise ValueError if they are inconsistent."""


class FromAllProbabilities:
    """Mixin: all other predictions for a model that always computes the probabilities of all labels."""

    def probabilities(self, rows: Rows, search: Any, threads: int = 1) -> Floats:
        """Return the probability of every label for each row."""
        raise NotImplementedError

    def top_k_weighted(self, rows: Rows, k: int, weights: Floats, search: Any, threads: int = 1) -> tuple[Ids, Floats]:
        """Return the k labels with the largest products of probability and weight, and their probabilities."""
        ids, probabilities = empty_top_k(len(rows), k)
        for start in range(0, len(rows), ROWS_AT_ONCE):
            block = slice(start, start + ROWS_AT_ONCE)
            of_all = self.probabilities(rows[block], search, threads)
            kernels.rank_weighted(of_all, weights, ids[block], probabilities[block])
        return ids, probabilities

    def top_k_allowed(
        self, rows: Rows, k: int, n_first: int, weights: Floats, search: Any, threads: int = 1
    ) -> TopKAllowed:
        """Return the `n_first` best of all labels and the k best of those with a weight."""
        return two_searches(self, rows, k, n_first, weights, search, threads)

    def above(self, rows: Rows, threshold: float, search: Any, threads: int = 1) -> SparseProbabilities:
        """Return all labels with at least this probability, by row and id."""
        found = []
        for start in range(0, len(rows), ROWS_AT_ONCE):
            probabilities = self.probabilities(rows[start : start + ROWS_AT_ONCE], search, threads)
            row, ids = np.nonzero(probabilities >= np.float32(threshold))
            found.append((row + start, ids, probabilities[row, ids]))
        return SparseProbabilities(*map(np.concatenate, zip(*found)))

    def of_labels(self, rows: Rows, ids: Ids, search: Any, threads: int = 1) -> Floats:
        """Return the probabilities of given labels, ids[i] those of row i; 0 where the id is -1."""
        out = np.empty(ids.shape, dtype=np.float32)
        for start in range(0, len(rows), ROWS_AT_ONCE):
            block = slice(start, start + ROWS_AT_ONCE)
            of_all = self.probabilities(rows[block], search, threads)
            out[block] = np.take_along_axis(of_all, np.maximum(ids[block], 0), axis=1)
        out[ids < 0] = 0.0
        return out


class FromCandidates(FromAllProbabilities):
    """Mixin: all other predictions for a model whose `top_k` finds few labels of a row, -1 if there are fewer than k."""

    n_labels: int

    def top_k(self, rows: Rows, k: int, search: Any, threads: int = 1) -> tuple[Ids, Floats]:
        """Return the k best labels of each row, best first, and their probabilities."""
        raise NotImplementedError

    def n_candidates(self, search: Any) -> int:
        """Return the largest number of labels of a row that may have a probability."""
        raise NotImplementedError

    def top_k_weighted(self, rows: Rows, k: int, weights: Floats, search: Any, threads: int = 1) -> tuple[Ids, Floats]:
        """Return the k candidates with the largest products of probability and weight, and their probabilities."""
        return best_weighted(*self.top_k(rows, self.n_candidates(search), search, threads), weights, k)

    def top_k_allowed(
        self, rows: Rows, k: int, n_first: int, weights: Floats, search: Any, threads: int = 1
    ) -> TopKAllowed:
        """Return the `n_first` best candidates and the k best of those with a weight."""
        ids, scores = self.top_k(rows, max(n_first, self.n_candidates(search)), search, threads)
        return allowed_among(ids, scores, k, n_first, weights)

    def probabilities(self, rows: Rows, search: Any, threads: int = 1) -> Floats:
        """Return the probability of every label for each row; zero if it is not a candidate."""
        ids, scores = self.top_k(rows, self.n_candidates(search), search, threads)
        out = np.zeros((len(rows), self.n_labels), dtype=np.float32)
        row, place = np.nonzero(ids >= 0)
        out[row, ids[row, place]] = scores[row, place]
        return out
