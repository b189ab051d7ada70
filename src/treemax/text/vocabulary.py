"""Tf-idf over chunks of texts: words are counted chunk by chunk, then weighted.

The result is equal bit for bit to scikit-learn's `TfidfVectorizer` on all texts at once. So the words of a text are
kept in the order of their first occurrence: the norm of a row is a sum, whose last bit depends on the order.
"""

from __future__ import annotations

from collections.abc import Iterator
from numbers import Integral
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.utils.sparsefuncs_fast import inplace_csr_row_normalize_l1, inplace_csr_row_normalize_l2

from treemax.kernels.text import renumber, tally
from treemax.text.words import word_counter

PIECE = 2**20  # entries processed at a time
ENOUGH_WORDS = 8  # shared with other texts: then a text's unique words are dropped
NORMS = {"l1": inplace_csr_row_normalize_l1, "l2": inplace_csr_row_normalize_l2}


class Vocabulary:
    """Word counts of chunks of texts.

    Call `add` with each chunk, then `finish`. Then `rows` transforms a chunk of texts, and `weighted` the counts that
    `add` returned."""

    def __init__(self, parameters: dict[str, Any]) -> None:
        self._parameters = parameters
        self._counter = word_counter(parameters)
        self._in_texts = np.zeros(0, dtype=np.int64)  # document frequency of each word
        self._times = np.zeros(0, dtype=np.int64)  # number of occurrences of each word
        self._last_text = np.zeros(0, dtype=np.int64)  # last text with each word
        self._text_words: list[NDArray[np.int32]] = []  # number of distinct words of each text
        self.n_texts = 0

    def add(self, texts: list[str]) -> sp.csr_matrix:
        """Count the words of more texts."""
        counts = self._counter.counts(texts)
        more = np.zeros(counts.shape[1] - len(self._times), dtype=np.int64)
        self._in_texts, self._times, self._last_text = (
            np.append(old, more) for old in (self._in_texts, self._times, self._last_text)
        )
        tally(counts.indices, counts.data, self._in_texts, self._times)
        n_words = np.diff(counts.indptr).astype(np.int32)
        self._last_text[counts.indices] = np.repeat(self.n_texts + np.arange(len(texts)), n_words)
        self._text_words.append(n_words)
        self.n_texts += len(texts)
        return counts

    def finish(self) -> tuple[list[str], NDArray[np.float32]]:
        """Return the sorted vocabulary and the idf weights, which may be empty."""
        words = self._counter.words()
        if not words:
            return [], np.empty(0, dtype=np.float32)
        order = np.array(sorted(range(len(words)), key=words.__getitem__), dtype=np.int64)
        kept = order[self._kept(order)]
        self._by_arrival = np.sort(kept)
        weights = _weights(self._in_texts[kept], self.n_texts)
        self._column_of = np.empty(len(kept), dtype=np.int32)
        self._column_of[np.searchsorted(self._by_arrival, kept)] = np.arange(len(kept), dtype=np.int32)
        self._weights = weights[self._column_of]
        arrived = [words[number] for number in self._by_arrival.tolist()]
        self._counter = word_counter(self._parameters, arrived)
        return [words[number] for number in kept.tolist()], weights

    def rows(self, texts: list[str]) -> sp.csr_matrix:
        """Convert texts to features."""
        return self._in_columns(self._counter.counts(texts))

    def weighted(self, counts: sp.csr_matrix) -> sp.csr_matrix:
        """Convert counts of `add` to features, in place."""
        place_of = np.full(len(self._in_texts), -1, dtype=np.int32)
        place_of[self._by_arrival] = np.arange(len(self._by_arrival), dtype=np.int32)
        indptr, indices, data = counts.indptr, counts.indices, counts.data
        size = renumber(indptr, indices, data, place_of)
        shape = (counts.shape[0], len(self._by_arrival))
        return self._in_columns(sp.csr_matrix((data[:size], indices[:size], indptr), shape=shape))

    def _in_columns(self, counts: sp.csr_matrix) -> sp.csr_matrix:
        X = weighted(counts, self._weights, self._parameters)
        for some in _pieces(X.nnz):
            X.indices[some] = self._column_of[X.indices[some]]
        X.has_sorted_indices = False
        X.sort_indices()
        return X

    def _kept(self, order: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which of the words, in this order, are in the vocabulary, by min_df, max_df and max_features."""
        counts, parameters = self._in_texts[order], self._parameters
        kept = np.flatnonzero(self._frequent(order) & (counts <= self._limit(parameters["max_df"])))
        limit = parameters["max_features"]
        if limit is not None and len(kept) > limit:
            amounts = (counts if parameters["binary"] else self._times[order]).astype(np.float32)
            kept = np.sort(kept[(-amounts[kept]).argsort()[:limit]])
        return kept

    def _limit(self, given: float) -> float:
        """Return a number of texts, given as a count or a fraction."""
        return float(given) if isinstance(given, Integral) else given * self.n_texts

    def _frequent(self, order: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which words satisfy min_df.

        "auto" keeps a word of a single text if that text has few other words: otherwise little would remain of
        short texts and of small collections.
        """
        counts, least = self._in_texts[order], self._parameters["min_df"]
        if least != "auto":
            return counts >= self._limit(least)
        single, last_text = self._in_texts == 1, self._last_text
        n_unique = np.bincount(last_text[single], minlength=self.n_texts)
        shared = np.concatenate(self._text_words) - n_unique
        return (counts >= 2) | (shared[last_text[order]] < ENOUGH_WORDS)


def weighted(counts: sp.csr_matrix, weights: NDArray[np.float32], parameters: dict[str, Any]) -> sp.csr_matrix:
    """Convert counts to tf-idf with these idf weights and the parameters of `TfidfText`."""
    if parameters["binary"]:
        counts.data.fill(1)
    if parameters["sublinear_tf"]:
        np.log(counts.data, out=counts.data)
        counts.data += np.float32(1.0)
    for some in _pieces(counts.nnz):
        counts.data[some] *= weights[counts.indices[some]]
    if parameters["norm"] is not None:
        NORMS[parameters["norm"]](counts)
    return counts


def _pieces(size: int) -> Iterator[slice]:
    """Yield slices of bounded size, to bound the memory of temporary copies."""
    return (slice(start, start + PIECE) for start in range(0, size, PIECE))


def _weights(counts: NDArray[np.int64], n_texts: int) -> NDArray[np.float32]:
    """Return the smoothed inverse document frequency, as scikit-learn."""
    weights = np.full(len(counts), n_texts + 1, dtype=np.float32)
    weights /= counts.astype(np.float32) + np.float32(1.0)
    np.log(weights, out=weights)
    weights += np.float32(1.0)
    return weights
