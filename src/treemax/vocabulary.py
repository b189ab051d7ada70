"""Tf-idf over texts that are not all at hand: their words are counted chunk by chunk, and then weighted.

What comes out is what scikit-learn's `TfidfVectorizer` makes of all texts at once, to the last bit. For that the
words of a text are taken in the order in which they were first met, because the length of a row is a sum, and the
order of a sum decides about its last bit.
"""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer


class Vocabulary:
    """Counts words: call `add` with all texts, chunk by chunk, and `finish`; then `rows` gives the rows of a chunk."""

    def __init__(self, parameters: dict[str, Any]) -> None:
        self._parameters = parameters
        self._vectorizer = TfidfVectorizer(dtype=np.float32, **parameters)
        self._words_of = self._vectorizer.build_analyzer()
        self._number_of: dict[str, int] = {}
        self._in_texts: list[int] = []  # of each word, in how many texts it is
        self._times: list[int] = []  # and how often
        self.n_texts = 0

    def add(self, texts: list[str]) -> None:
        """Count the words of more texts."""
        number_of, in_texts, times = self._number_of, self._in_texts, self._times
        often = self._parameters["max_features"] is not None and not self._parameters["binary"]
        for text in texts:
            words = self._words_of(text)
            for word in dict.fromkeys(words):
                number = number_of.setdefault(word, len(in_texts))
                if number == len(in_texts):
                    in_texts.append(0)
                    times.append(0)
                in_texts[number] += 1
            if often:
                for word in words:
                    times[number_of[word]] += 1
        self.n_texts += len(texts)

    def finish(self) -> tuple[list[str], NDArray[np.float32]]:
        """The words that are kept, in order, and their weights; none where nothing is left."""
        words = list(self._number_of)
        order = np.array(sorted(range(len(words)), key=words.__getitem__), dtype=np.int64)
        counts = np.array(self._in_texts, dtype=np.int64)[order]
        kept = order[self._kept(counts, np.array(self._times, dtype=np.float32)[order])]
        by_arrival = np.sort(kept)
        weights = _weights(np.array(self._in_texts, dtype=np.int64)[kept], self.n_texts)
        terms = [words[number] for number in kept.tolist()]
        self._number_of, self._in_texts, self._times = {}, [], []
        self._column_of = np.empty(len(kept), dtype=np.int32)
        self._column_of[np.searchsorted(by_arrival, kept)] = np.arange(len(kept), dtype=np.int32)
        self._weights = np.empty_like(weights)
        self._weights[np.searchsorted(by_arrival, kept)] = weights
        self._words = {words[number]: place for place, number in enumerate(by_arrival.tolist())}
        self._ready: TfidfVectorizer | None = None
        return terms, weights

    def rows(self, texts: list[str]) -> sp.csr_matrix:
        """Texts as rows of features."""
        if self._ready is None:
            self._ready = TfidfVectorizer(dtype=np.float32, vocabulary=self._words, **self._parameters)
            self._ready.idf_ = self._weights
        X = self._ready.transform(texts)
        X.indices = self._column_of[X.indices]
        X.has_sorted_indices = False
        X.sort_indices()
        return X

    def _kept(self, counts: NDArray[np.int64], times: NDArray[np.float32]) -> NDArray[np.int64]:
        """Which of the words, in order, are neither too rare nor too frequent; of those the most frequent."""
        least, most = (
            float(limit) if isinstance(limit, Integral) else limit * self.n_texts
            for limit in (self._parameters["min_df"], self._parameters["max_df"])
        )
        kept = np.flatnonzero((counts >= least) & (counts <= most))
        limit = self._parameters["max_features"]
        if limit is not None and len(kept) > limit:
            amounts = counts.astype(np.float32) if self._parameters["binary"] else times
            kept = np.sort(kept[(-amounts[kept]).argsort()[:limit]])
        return kept


def _weights(counts: NDArray[np.int64], n_texts: int) -> NDArray[np.float32]:
    """How telling each word is, as scikit-learn reckons it."""
    weights = np.full(len(counts), n_texts + 1, dtype=np.float32)
    weights /= counts.astype(np.float32) + np.float32(1.0)
    np.log(weights, out=weights)
    weights += np.float32(1.0)
    return weights
