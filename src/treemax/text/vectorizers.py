"""Vectorisers of texts.

`TfidfText` learns a vocabulary and is the better choice for training on a fixed data set. `HashingText` is stateless,
for streams. `TextModel` combines either with an estimator into one model that takes raw text.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.utils.validation import check_is_fitted

from treemax.inputs.labels import LabelIndex
from treemax.inputs.rows import SparseRows, is_arrow
from treemax.kernels.text import hash_texts
from treemax.modelfile import LARGEST, Arrays, ModelFileError, part, prefixed, saveable
from treemax.parameters import CheckedParameters
from treemax.text.vocabulary import Vocabulary, weighted
from treemax.text.words import WordCounter, encoded, word_counter

MAX_BITS = 30  # SciPy's indices are signed 32-bit integers
MAX_GRAM = 20  # the longest n-gram


def holds_texts(X: Any) -> bool:
    """Return whether X is a list of texts, not a table of numbers."""
    table = sp.issparse(X) or isinstance(X, SparseRows) or getattr(X, "ndim", 1) != 1
    if table or isinstance(X, str | bytes) or hasattr(X, "columns") or not hasattr(X, "__iter__"):
        return False
    first: Any = next(iter(X), None)
    return isinstance(first.as_py() if is_arrow(first) else first, str)


def read_texts(texts: Any) -> list[str]:
    """Return `texts` as a list of strings; raises for the first row that is not a string.

    >>> read_texts(["a text", None])
    Traceback (most recent call last):
    ...
    ValueError: Row 1 of the texts is None; every text must be a string ('' for a missing one).
    """
    if isinstance(texts, str | bytes):
        raise ValueError(f"The texts are one {type(texts).__name__}; expected a list of strings, one for each row.")
    if hasattr(texts, "columns"):
        raise ValueError("The texts are a data frame; pass the column that holds them, such as frame['text'].")
    if len(shape := getattr(texts, "shape", ())) > 1:
        raise ValueError(
            f"The texts are a table of shape {tuple(shape)}; expected a list of strings, one for each row."
        )
    try:
        rows = texts.to_pylist() if is_arrow(texts) else list(texts)
    except TypeError:
        raise ValueError(f"Expected a list of strings, got {type(texts).__name__}.") from None
    if set(map(type, rows)) <= {str, np.str_}:
        return rows
    for number, row in enumerate(rows):
        if not isinstance(row, str):
            got = "None" if row is None else f"{row!r:.60} ({type(row).__name__})"
            raise ValueError(f"Row {number} of the texts is {got}; every text must be a string ('' for a missing one).")
    return rows


class TextInput:
    """Mixin with scikit-learn's tags of an estimator of strings."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        return tags


@saveable
@dataclass(kw_only=True, eq=False, repr=False)
class TfidfText(CheckedParameters, TextInput, TransformerMixin, BaseEstimator):
    """Convert texts to tf-idf features over a vocabulary learned from the training texts.

    Equal bit for bit to scikit-learn's `TfidfVectorizer`, with defaults that suit long-tailed text: logarithmic
    counts (`sublinear_tf`), float32, and `min_df="auto"`, which keeps words that occur in at least two texts, and
    words of a single text if that text has fewer than eight other words. So short texts and small collections keep
    all words, and long texts lose the words that only they have. The other parameters are those of
    `TfidfVectorizer`. With the defaults of `ngram_range`, `analyzer`, `tokenizer`, `token_pattern`, `stop_words` and
    `strip_accents`, it is several times as fast.

    >>> texts = ["red apple", "green apple", "red car"]
    >>> TfidfText().fit(texts).get_feature_names_out().tolist()
    ['apple', 'car', 'green', 'red']
    >>> TfidfText(min_df=2).fit(texts).get_feature_names_out().tolist()
    ['apple', 'red']
    """

    ngram_range: tuple[int, int] = (1, 1)
    min_df: float | str = "auto"
    max_df: float = 1.0
    max_features: int | None = None
    sublinear_tf: bool = True
    norm: str | None = "l2"
    binary: bool = False
    lowercase: bool = True
    strip_accents: str | None = None
    stop_words: Any = None
    analyzer: Any = "word"
    token_pattern: str = r"(?u)\b\w\w+\b"
    tokenizer: Any = None

    def fit(self, texts: Any, y: Any = None) -> TfidfText:
        """Learn the vocabulary and the idf weights."""
        self.fit_transform(texts)
        return self

    def fit_transform(self, texts: Any, y: Any = None) -> sp.csr_matrix:
        """Learn the vocabulary and return the features of the training texts."""
        rows = read_texts(texts)
        vocabulary = self._vocabulary()
        counts = vocabulary.add(rows)
        self._adopt(vocabulary)
        return vocabulary.weighted(counts)

    def fit_chunks(self, chunks: Iterable[list[str]]) -> Callable[[list[str]], sp.csr_matrix]:
        """Learn from chunks of texts what `fit` learns from all of them.

        Returns the function that transforms a chunk as `fit_transform` does."""
        vocabulary = self._vocabulary()
        for chunk in chunks:
            vocabulary.add(read_texts(chunk))
        self._adopt(vocabulary)
        return vocabulary.rows

    def _check_parameters(self) -> None:
        if isinstance(self.min_df, str) and self.min_df != "auto":
            raise ValueError(f"min_df must be 'auto', a number of texts or a share of them, got {self.min_df!r}.")
        least = 1 if self.min_df == "auto" else self.min_df
        try:  # scikit-learn validates the others
            TfidfVectorizer(vocabulary=["word"], **{**self.get_params(deep=False), "min_df": least}).fit([""])
        except re.error as error:
            raise ValueError(
                f"token_pattern must be a regular expression, got {self.token_pattern!r}: {error}."
            ) from None

    def _vocabulary(self) -> Vocabulary:
        self._check_when_used()
        return Vocabulary(self.get_params(deep=False))

    def _adopt(self, vocabulary: Vocabulary) -> None:
        terms, weights = vocabulary.finish()
        if not terms:
            raise ValueError(self._empty_vocabulary(vocabulary.n_texts))
        self.idf_: NDArray[Any] = weights
        self.terms_ = LabelIndex(np.array(terms, dtype=object))
        self._reader: tuple[WordCounter, dict[str, Any]] | None = None

    def with_words_of(self, texts: Any) -> TfidfText:
        """Return a copy with the words of more texts at the end of the vocabulary; known words keep column and weight.

        New words have the largest idf weight so far. With `max_features` none are added.

        >>> text = TfidfText().fit(["red apple", "green apple"])
        >>> text.with_words_of(["yellow apple"]).get_feature_names_out().tolist()
        ['apple', 'green', 'red', 'yellow']
        """
        check_is_fitted(self)
        twin = copy.copy(self)
        if self.max_features is not None:
            return twin
        vocabulary = self._vocabulary()
        vocabulary.add(read_texts(texts))
        new = [word for word in vocabulary.finish()[0] if word not in self.terms_]
        if new:
            twin.terms_ = self.terms_.copy()
            twin.terms_.add(np.array(new, dtype=object), object)
            twin.idf_ = np.append(self.idf_, np.full(len(new), self.idf_.max(), dtype=self.idf_.dtype))
            twin._reader = None
        return twin

    def transform(self, texts: Any) -> sp.csr_matrix:
        """Convert texts to features; words outside the vocabulary are ignored."""
        check_is_fitted(self)
        if self._check_when_used() or self._reader is None:  # a loaded model builds its dictionary on first use
            parameters = self.get_params(deep=False)
            self._reader = word_counter(parameters, self.terms_.classes.tolist()), parameters
        counter, parameters = self._reader
        return weighted(counter.counts(read_texts(texts)), self.idf_, parameters)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """Return the word, or n-gram, of each column."""
        check_is_fitted(self)
        return self.terms_.classes

    def to_parts(self) -> tuple[dict[str, Any], Arrays]:
        """Return the header and arrays for the model file."""
        check_is_fitted(self)
        self._check_when_used()
        parameters = self.get_params(deep=False)
        for name in ("analyzer", "tokenizer"):
            if callable(parameters[name]):
                raise ModelFileError(
                    f"This TfidfText has a custom function as {name} ({parameters[name]!r:.100}), and a model file "
                    "holds no code. Use the analyzers and token patterns of TfidfText, or save the estimator alone."
                )
        return {"parameters": parameters}, {"idf": self.idf_, **prefixed("terms", self.terms_.arrays())}

    @classmethod
    def from_parts(cls, header: dict[str, Any], arrays: Arrays) -> TfidfText:
        """Restore the vectoriser from its parts."""
        text = cls(**_with_pairs(header["parameters"]))
        text._check_when_used()
        text.terms_ = LabelIndex.from_arrays(part("terms", arrays), "O")
        text.idf_ = arrays["idf"]
        text._reader = None
        if (
            text.idf_.shape != (len(text.terms_),)
            or text.idf_.dtype.kind != "f"
            or not ((text.idf_ >= 0) & (text.idf_ <= LARGEST)).all()
        ):
            raise ValueError(f"the weights of the {len(text.terms_)} words are invalid")
        return text

    def _empty_vocabulary(self, n_texts: int) -> str:
        return (
            f"No word of the {n_texts} text{'' if n_texts == 1 else 's'} is left for the vocabulary: a word must occur in at least "
            f"min_df={self.min_df} and at most max_df={self.max_df} of the texts, must not be among "
            "the stop_words, and, by the default token_pattern, must have two characters or more. min_df=1 keeps words "
            "that occur in one text."
        )


@saveable
@dataclass(kw_only=True, eq=False, repr=False)
class HashingText(TextInput, TransformerMixin, BaseEstimator):
    """Hash words, word n-grams and character n-grams into 2^`bits` columns; stateless.

    The column of an n-gram is a hash of its bytes, the same on every machine. The hash is unsigned: the values of
    n-grams that share a column are added, so they never cancel. With 18 bits and a hundred distinct words per text,
    about one text in fifty has a collision.

    A word is a sequence of letters, digits and underscores, and of characters beyond ASCII that are not punctuation,
    symbols or spaces. Character n-grams are taken within words, with a marker at both ends of the word; they add
    accuracy (two to three points on WordNet with `char_ngram_range=(4, 4)`), make rows five times as long, and suit
    languages written without spaces.

    Parameters
    ----------
    bits : int
        The number of columns is 2**bits, 1 to 30.
    ngram_range : tuple or None
        The minimum and maximum length of word n-grams, or None for no words.
    char_ngram_range : tuple or None
        The minimum and maximum length of character n-grams, or None for none.
    lowercase : bool
        Whether to convert texts to lower case.
    log_counts : bool
        Whether n occurrences count as 1 + ln n instead of n.
    unit_length : bool
        Whether rows are scaled to unit Euclidean norm.

    Notes
    -----
    The hash, for programs in other languages (`hash` is 1 in the model file). Arithmetic is modulo 2^64.

    - The text is lower-cased and encoded in UTF-8. A word is a longest run of ASCII letters, digits, `_`, and characters
      beyond ASCII except the punctuation, symbols and spaces listed in `treemax/kernels/text.py`.
    - The hash of a word is FNV-1a (64 bits). For a word n-gram, start with the hash of the last word; for each word w
      before it, h becomes (h * 0x9E3779B97F4A7C15 + w) xor (h >> 32).
    - A character n-gram is a run of n characters of a word between the marks 0x02 and 0x03 (the closing mark alone does
      not count), hashed with FNV-1a, started at the usual offset xor 0xD6E8FEB86659FD93.
    - The column is the top `bits` bits of m(m(h, 0xFF51AFD7ED558CCD), 0x9E3779B97F4A7C15) where m(h, c) is
      (h xor (h >> 32)) * c.
    - The value is the number n of n-grams in the column, or 1 + ln n; then the row is divided by its norm.

    Examples
    --------
    >>> X = HashingText().transform(["The cat, the mat", "Cat the mat the"])
    >>> X.shape, X.nnz, bool((X[0] != X[1]).nnz)
    ((2, 262144), 6, False)
    """

    bits: int = 18
    ngram_range: tuple[int, int] | None = (1, 1)
    char_ngram_range: tuple[int, int] | None = None
    lowercase: bool = True
    log_counts: bool = True
    unit_length: bool = True

    def fit(self, texts: Any = None, y: Any = None) -> HashingText:
        """Validate the parameters; nothing is learned."""
        self._checked()
        return self

    def fit_transform(self, texts: Any, y: Any = None) -> sp.csr_matrix:
        """Transform texts, as `transform` does."""
        return self.fit().transform(texts)

    def transform(self, texts: Any) -> sp.csr_matrix:
        """Convert texts to features."""
        words, characters = self._checked()
        rows = read_texts(texts)
        batches = [self._hashed(text, offsets, words, characters) for text, offsets in encoded(rows, self.lowercase)]
        indptr = np.zeros(len(rows) + 1, dtype=np.int64)
        if rows:
            np.cumsum(np.concatenate([counts for counts, _, _ in batches]), out=indptr[1:])
        indices = np.concatenate([np.empty(0, np.int32), *(indices for _, indices, _ in batches)])
        values = np.concatenate([np.empty(0, np.float32), *(values for _, _, values in batches)])
        X = sp.csr_matrix((values, indices, indptr), shape=(len(rows), 2 ** int(self.bits)))
        X.has_canonical_format = True  # sorted and summed by the kernel
        return X

    def to_parts(self) -> tuple[dict[str, Any], Arrays]:
        """Return the parameters for the model file, and no arrays."""
        self._checked()
        return {"parameters": self.get_params(deep=False), "hash": 1}, {}

    @classmethod
    def from_parts(cls, header: dict[str, Any], arrays: Arrays) -> HashingText:
        """Restore the vectoriser from its parts."""
        if header["hash"] != 1:
            raise ValueError(f"it uses version {header['hash']!r:.20} of the text hash, this Treemax version 1")
        return cls(**_with_pairs(header["parameters"])).fit()

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        return tags

    def _checked(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Validate the parameters and return the ranges of word and character n-grams."""
        if isinstance(self.bits, bool) or not isinstance(self.bits, int | np.integer):
            raise ValueError(f"bits must be an integer, got {self.bits!r}.")
        if not 1 <= self.bits <= MAX_BITS:
            raise ValueError(f"bits must be from 1 to {MAX_BITS}, got {self.bits}.")
        if self.ngram_range is None and self.char_ngram_range is None:
            raise ValueError("ngram_range and char_ngram_range are both None: there would be no features.")
        return _gram_range("ngram_range", self.ngram_range), _gram_range("char_ngram_range", self.char_ngram_range)

    def _hashed(
        self,
        text: NDArray[np.uint8],
        offsets: NDArray[np.int64],
        words: NDArray[np.int64],
        characters: NDArray[np.int64],
    ) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float32]]:
        """Return the number of features per row, their columns and values."""
        grams = _most_grams(np.diff(offsets), words, characters)
        found = np.empty(int(grams.max()), dtype=np.uint32)
        distinct = int(np.minimum(grams, 2 ** int(self.bits)).sum())
        indptr = np.empty(len(offsets), dtype=np.int64)
        indices, values = np.empty(distinct, dtype=np.int32), np.empty(distinct, dtype=np.float32)
        options = words, characters, int(self.bits), bool(self.log_counts), bool(self.unit_length)
        recent = np.empty(max(1, int(words[1])), dtype=np.uint64)
        size = hash_texts(text, offsets, options, recent, found, np.empty_like(found), indptr, indices, values)
        return np.diff(indptr), indices[:size].copy(), values[:size].copy()


def _gram_range(name: str, given: Any) -> NDArray[np.int64]:
    """Return the range of n-grams for the kernel: a maximum of zero for none."""
    if given is None:
        return np.zeros(2, dtype=np.int64)
    try:
        low, high = given
        valid = 1 <= low <= high <= MAX_GRAM and low == int(low) and high == int(high)
    except (TypeError, ValueError):
        valid = False
    if not valid:
        raise ValueError(f"{name} must be a pair (shortest, longest) of integers from 1 to {MAX_GRAM}, got {given!r}.")
    return np.array([low, high], dtype=np.int64)


def _most_grams(
    n_bytes: NDArray[np.int64], words: NDArray[np.int64], characters: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return an upper bound of the number of n-grams in texts of this size: words of one byte, separated by one.

    Each word and each marker begins a character n-gram of every length; a word of c characters has two markers.
    """
    most_words = (n_bytes + 1) // 2
    per_word = words[1] - words[0] + 1 if words[1] else 0
    per_character = characters[1] - characters[0] + 1 if characters[1] else 0
    return most_words * per_word + (n_bytes + 2 * most_words) * per_character


def _with_pairs(parameters: dict[str, Any]) -> dict[str, Any]:
    """Convert the lists of JSON back to tuples."""
    return {
        name: tuple(value) if name.endswith("ngram_range") and value is not None else value
        for name, value in parameters.items()
    }
