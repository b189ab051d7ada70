"""Word counts of texts.

With scikit-learn's default analysis, words of two characters or more, a kernel counts words about ten times as fast;
all other settings use scikit-learn's analyzers, with the same result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer

from treemax.kernels.text import count_words, enter_words

BATCH_BYTES = 2**20  # bytes of text per kernel call; small enough that Ctrl-C takes effect quickly
PLAIN = {
    "analyzer": "word", "tokenizer": None, "token_pattern": r"(?u)\b\w\w+\b", "stop_words": None, "strip_accents": None,
    "ngram_range": (1, 1),
}  # fmt: skip


class WordCounter(Protocol):
    """Counter of words, numbered in order of arrival or by a given vocabulary."""

    def __len__(self) -> int: ...

    def counts(self, texts: list[str]) -> sp.csr_matrix:
        """Return the word counts of each text, sorted by word number."""
        ...

    def words(self) -> list[str]:
        """Return all words by number."""
        ...


def word_counter(parameters: dict[str, Any], known: list[str] | None = None) -> WordCounter:
    """Return a counter for these parameters of `TfidfText`; with `known`, only those words are counted."""
    analysis = {name: parameters[name] for name in PLAIN}
    if isinstance(analysis["ngram_range"], list):
        analysis["ngram_range"] = tuple(analysis["ngram_range"])
    if analysis == PLAIN:
        return _PlainWords(bool(parameters["lowercase"]), known)
    return _AnalysedWords(TfidfVectorizer(**parameters).build_analyzer(), known)


class _AnalysedWords:
    def __init__(self, analyzer: Any, known: list[str] | None) -> None:
        self._analyzer, self._grows = analyzer, known is None
        self._number_of = {word: number for number, word in enumerate(known or [])}

    def __len__(self) -> int:
        return len(self._number_of)

    def words(self) -> list[str]:
        return list(self._number_of)

    def counts(self, texts: list[str]) -> sp.csr_matrix:
        number_of, indptr = self._number_of, [0]
        indices: list[int] = []
        counts: list[int] = []
        for text in texts:
            words = self._analyzer(text)
            if self._grows:
                found = Counter(number_of.setdefault(word, len(number_of)) for word in words)
            else:
                found = Counter(number_of[word] for word in words if word in number_of)
            indices += found
            counts += found.values()
            indptr.append(len(indices))
        return _matrix(np.array(indptr), np.array(indices, np.int32), np.array(counts, np.float32), len(self))


class _PlainWords:
    def __init__(self, lowercase: bool, known: list[str] | None) -> None:
        self._lowercase, self._grows = lowercase, known is None
        words = [word.encode("utf-8", "surrogatepass") for word in known or []]
        self._n_words = len(words)
        self._starts = np.zeros(len(words) + 1, dtype=np.int64)
        np.cumsum([len(word) for word in words], out=self._starts[1:])
        self._arena = np.frombuffer(b"".join(words), dtype=np.uint8).copy()
        self._enter(len(words))

    def __len__(self) -> int:
        return self._n_words

    def words(self) -> list[str]:
        text = self._arena.tobytes()
        starts = self._starts[: self._n_words + 1].tolist()
        return [text[a:b].decode("utf-8", "surrogatepass") for a, b in pairwise(starts)]

    def counts(self, texts: list[str]) -> sp.csr_matrix:
        plain = all(map(str.isascii, texts))
        batches = [self._counted(*batch, plain) for batch in encoded(texts, self._lowercase)]
        lengths = [np.zeros(1, dtype=np.int64), *(np.diff(indptr) for indptr, _, _ in batches)]
        indices = np.concatenate([np.empty(0, np.int32), *(indices for _, indices, _ in batches)])
        counts = np.concatenate([np.empty(0, np.float32), *(counts for _, _, counts in batches)])
        return _matrix(np.cumsum(np.concatenate(lengths)), indices, counts, len(self))

    def _counted(self, text: NDArray[np.uint8], offsets: NDArray[np.int64], plain: bool) -> tuple[Any, ...]:
        most = len(text) // 3 + len(offsets)  # words of two characters and a separator
        if self._grows:
            self._make_room(most, len(text))
        indptr = np.zeros(len(offsets), dtype=np.int64)
        indices, counts = np.empty(most, dtype=np.int32), np.empty(most, dtype=np.float32)
        self._n_words = count_words(
            text, offsets, _word_characters(128 if plain else 0x110000), self._grows, self._table, self._n_words,
            np.empty(most, dtype=np.uint32), np.empty(most, dtype=np.uint32), len(self._hashes).bit_length(),
            (indptr, indices, counts),
        )  # fmt: skip
        return indptr, indices[: indptr[-1]].copy(), counts[: indptr[-1]].copy()

    def _make_room(self, n_words: int, n_bytes: int) -> None:
        """Grow the arrays for `n_words` more words of `n_bytes` bytes."""
        used = int(self._starts[self._n_words])
        if used + n_bytes > len(self._arena):
            self._arena = _longer(self._arena, 2 * (used + n_bytes))
        if self._n_words + n_words > len(self._hashes):
            self._starts = _longer(self._starts, 2 * (self._n_words + n_words) + 1)
            self._enter(2 * (self._n_words + n_words))

    def _enter(self, capacity: int) -> None:
        """Rebuild the hash table with this capacity."""
        self._hashes = np.zeros(capacity, dtype=np.uint64)
        self._slots = np.full(2 ** (2 * capacity).bit_length(), -1, dtype=np.int32)
        enter_words(self._n_words, self._table)

    @property
    def _table(self) -> tuple[Any, ...]:
        return (self._slots, self._hashes, self._starts, self._arena)


def _longer(array: NDArray[Any], length: int) -> NDArray[Any]:
    longer = np.zeros(length, dtype=array.dtype)
    longer[: len(array)] = array
    return longer


def _matrix(
    indptr: NDArray[np.int64], indices: NDArray[np.int32], counts: NDArray[np.float32], n_words: int
) -> sp.csr_matrix:
    X = sp.csr_matrix((counts, indices, indptr), shape=(len(indptr) - 1, n_words))
    X.sort_indices()
    return X


@lru_cache(maxsize=2)
def _word_characters(n_codes: int) -> NDArray[np.bool_]:
    """Return which of the first `n_codes` code points match `\\w` of a regular expression."""
    return np.array([chr(code).isalnum() or code == ord("_") for code in range(n_codes)])


def encoded(rows: list[str], lowercase: bool) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.int64]]]:
    """Yield batches of texts in UTF-8: text i of a batch is `text[offsets[i]:offsets[i+1]]`."""
    batch: list[bytes] = []
    size = 0
    for number, row in enumerate(rows):
        batch.append((row.lower() if lowercase else row).encode("utf-8", "surrogatepass"))
        size += len(batch[-1])
        if size >= BATCH_BYTES or number == len(rows) - 1:
            offsets = np.zeros(len(batch) + 1, dtype=np.int64)
            np.cumsum([len(text) for text in batch], out=offsets[1:])
            yield np.frombuffer(b"".join(batch), dtype=np.uint8), offsets
            batch, size = [], 0
