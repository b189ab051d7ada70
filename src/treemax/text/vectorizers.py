"""Texts into rows of features, and a text classifier in one piece.

`TfidfText` learns a vocabulary first and is the better choice when all texts are at hand. `HashingText`
learns nothing, so a stream can begin with its first text. `TextModel` puts either in front of an estimator,
and the two are saved as one model that takes raw text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.utils.validation import check_is_fitted

from treemax.inputs.labels import LabelIndex
from treemax.inputs.rows import is_arrow
from treemax.kernels.text import hash_texts
from treemax.modelfile import (
    LARGEST,
    Arrays,
    ModelFileError,
    part,
    prefixed,
    saveable,
)
from treemax.parameters import CheckedParameters
from treemax.text.vocabulary import Vocabulary, weighted
from treemax.text.words import WordCounter, encoded, word_counter

MAX_BITS = 30  # of a hashed feature: SciPy's indices are signed 32-bit integers
MAX_GRAM = 20  # the longest n-gram


def read_texts(texts: Any) -> list[str]:
    """`texts` as a list of strings; whatever is not a string is refused by its row.

    >>> read_texts(["a text", None])
    Traceback (most recent call last):
    ...
    ValueError: Row 1 of the texts is None; every text must be a string ('' for a missing one).
    """
    if isinstance(texts, str | bytes):
        raise ValueError(
            f"The texts are one {type(texts).__name__}; expected a list of strings, one for each row."
        )
    if hasattr(texts, "columns"):
        raise ValueError(
            "The texts are a data frame; pass the column that holds them, such as frame['text']."
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
            raise ValueError(
                f"Row {number} of the texts is {got}; every text must be a string ('' for a missing one)."
            )
    return rows


class _TextTransformer(TransformerMixin, BaseEstimator):
    """What both vectorisers tell scikit-learn: they take strings, not a table."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        return tags


@saveable
class TfidfText(CheckedParameters, _TextTransformer):
    """Words weighted by how telling they are, over a vocabulary learned from the training texts.

    What scikit-learn's `TfidfVectorizer` gives, to the last bit, with the recipe that suits long-tailed text: logarithmic
    counts (`sublinear_tf`), float32, and `min_df="auto"`, which keeps words that occur in two texts or more, and
    those of one text where that text has fewer than eight others: short texts and small collections keep all of
    their words, long texts lose what only they have. The other parameters mean what they mean there. With
    `ngram_range`, `analyzer`, `tokenizer`, `token_pattern`, `stop_words` and `strip_accents` as they are, it is several
    times as fast.

    >>> texts = ["red apple", "green apple", "red car"]
    >>> TfidfText().fit(texts).get_feature_names_out().tolist()
    ['apple', 'car', 'green', 'red']
    >>> TfidfText(min_df=2).fit(texts).get_feature_names_out().tolist()
    ['apple', 'red']
    """

    def __init__(
        self,
        *,
        ngram_range: tuple[int, int] = (1, 1),
        min_df: float | str = "auto",
        max_df: float = 1.0,
        max_features: int | None = None,
        sublinear_tf: bool = True,
        norm: str | None = "l2",
        binary: bool = False,
        lowercase: bool = True,
        strip_accents: str | None = None,
        stop_words: Any = None,
        analyzer: Any = "word",
        token_pattern: str = r"(?u)\b\w\w+\b",
        tokenizer: Any = None,
    ) -> None:
        self.ngram_range = ngram_range
        self.min_df = min_df
        self.max_df = max_df
        self.max_features = max_features
        self.sublinear_tf = sublinear_tf
        self.norm = norm
        self.binary = binary
        self.lowercase = lowercase
        self.strip_accents = strip_accents
        self.stop_words = stop_words
        self.analyzer = analyzer
        self.token_pattern = token_pattern
        self.tokenizer = tokenizer

    def fit(self, texts: Any, y: Any = None) -> TfidfText:
        """Learn the vocabulary and the weight of each word."""
        self.fit_transform(texts)
        return self

    def fit_transform(self, texts: Any, y: Any = None) -> sp.csr_matrix:
        """Learn the vocabulary and give the training texts as rows of features."""
        rows = read_texts(texts)
        vocabulary = self._vocabulary()
        counts = vocabulary.add(rows)
        self._adopt(vocabulary)
        return vocabulary.weighted(counts)

    def fit_chunks(self, chunks: Iterable[list[str]]) -> Callable[[list[str]], sp.csr_matrix]:
        """Learn from texts that come chunk by chunk what `fit` learns from all of them; gives the function that
        makes of a chunk the rows that `fit_transform` would have made."""
        vocabulary = self._vocabulary()
        for chunk in chunks:
            vocabulary.add(read_texts(chunk))
        self._adopt(vocabulary)
        return vocabulary.rows

    def _check_parameters(self) -> None:
        if isinstance(self.min_df, str) and self.min_df != "auto":
            raise ValueError(
                f"min_df must be 'auto', a number of texts or a share of them, got {self.min_df!r}."
            )
        least = 1 if self.min_df == "auto" else self.min_df
        try:  # scikit-learn checks the others
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
            raise ValueError(self._nothing_left(vocabulary.n_texts))
        self.idf_: NDArray[Any] = weights
        self.terms_ = LabelIndex(np.array(terms, dtype=object))
        self._reader: tuple[WordCounter, dict[str, Any]] | None = None

    def transform(self, texts: Any) -> sp.csr_matrix:
        """The texts as rows of features; words not in the vocabulary are left out."""
        check_is_fitted(self)
        if self._check_when_used() or self._reader is None:  # a loaded model opens without its dictionary
            parameters = self.get_params(deep=False)
            self._reader = word_counter(parameters, self.terms_.classes.tolist()), parameters
        counter, parameters = self._reader
        return weighted(counter.counts(read_texts(texts)), self.idf_, parameters)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """The word, or n-gram, of each column."""
        check_is_fitted(self)
        return self.terms_.classes

    def to_parts(self) -> tuple[dict[str, Any], Arrays]:
        """The fitted vectoriser as a header and arrays for the model file."""
        check_is_fitted(self)
        self._check_when_used()
        parameters = self.get_params(deep=False)
        for name in ("analyzer", "tokenizer"):
            if callable(parameters[name]):
                raise ModelFileError(
                    f"This TfidfText has a function of its own as {name} ({parameters[name]!r:.100}), and a model file "
                    "holds no code. Use the analyzers and token patterns of TfidfText, or save the estimator alone."
                )
        return {"parameters": parameters}, {"idf": self.idf_, **prefixed("terms", self.terms_.arrays())}

    @classmethod
    def from_parts(cls, header: dict[str, Any], arrays: Arrays) -> TfidfText:
        """The vectoriser back from its parts."""
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
            raise ValueError(f"the weights of the {len(text.terms_)} words are not sound")
        return text

    def _nothing_left(self, n_texts: int) -> str:
        return (
            f"No word of the {n_texts} text{'' if n_texts == 1 else 's'} is left for the vocabulary: a word must occur in at least "
            f"min_df={self.min_df} and at most max_df={self.max_df} of the texts, must not be among "
            "the stop_words, and, by the default token_pattern, must have two characters or more. min_df=1 keeps words "
            "that occur in one text."
        )


@saveable
class HashingText(_TextTransformer):
    """Words, word n-grams and character n-grams hashed into 2^`bits` columns, without learning anything.

    The column of an n-gram is a hash of its bytes, the same on every machine. It is unsigned: a value is
    never negative and two n-grams that share a column add up, so nothing cancels out. With 18 bits and a
    hundred different words in a text, one pair in some fifty texts meets.

    A word is a run of letters, digits and underscores, and everything beyond ASCII that is not punctuation,
    a symbol or a space. Character n-grams are taken within words, with a mark at either end of the word;
    they add accuracy (two to three points on WordNet with `char_ngram_range=(4, 4)`) and make rows five times
    as long, and they are the way to go for languages written without spaces.

    Parameters
    ----------
    bits : int
        The number of columns is 2**bits, 1 to 30.
    ngram_range : tuple or None
        The shortest and the longest word n-gram, or None for no words.
    char_ngram_range : tuple or None
        The shortest and the longest character n-gram, or None for none.
    lowercase : bool
        Whether upper and lower case are the same.
    log_counts : bool
        Whether n occurrences count as 1 + ln n rather than n.
    unit_length : bool
        Whether rows are scaled to Euclidean length one.

    Examples
    --------
    >>> X = HashingText().transform(["The cat, the mat", "Cat the mat the"])
    >>> X.shape, X.nnz, bool((X[0] != X[1]).nnz)
    ((2, 262144), 6, False)
    """

    def __init__(
        self,
        *,
        bits: int = 18,
        ngram_range: tuple[int, int] | None = (1, 1),
        char_ngram_range: tuple[int, int] | None = None,
        lowercase: bool = True,
        log_counts: bool = True,
        unit_length: bool = True,
    ) -> None:
        self.bits = bits
        self.ngram_range = ngram_range
        self.char_ngram_range = char_ngram_range
        self.lowercase = lowercase
        self.log_counts = log_counts
        self.unit_length = unit_length

    def fit(self, texts: Any = None, y: Any = None) -> HashingText:
        """Check the parameters; there is nothing to learn."""
        self._checked()
        return self

    def fit_transform(self, texts: Any, y: Any = None) -> sp.csr_matrix:
        """The same as `transform`."""
        return self.fit().transform(texts)

    def transform(self, texts: Any) -> sp.csr_matrix:
        """The texts as rows of features."""
        words, characters = self._checked()
        rows = read_texts(texts)
        batches = [
            self._hashed(text, offsets, words, characters) for text, offsets in encoded(rows, self.lowercase)
        ]
        indptr = np.zeros(len(rows) + 1, dtype=np.int64)
        if rows:
            np.cumsum(np.concatenate([counts for counts, _, _ in batches]), out=indptr[1:])
        indices = np.concatenate([np.empty(0, np.int32), *(indices for _, indices, _ in batches)])
        values = np.concatenate([np.empty(0, np.float32), *(values for _, _, values in batches)])
        X = sp.csr_matrix((values, indices, indptr), shape=(len(rows), 2 ** int(self.bits)))
        X.has_canonical_format = True  # sorted and summed by the kernel
        return X

    def to_parts(self) -> tuple[dict[str, Any], Arrays]:
        """The parameters for the model file; a stateless vectoriser has no arrays."""
        self._checked()
        return {"parameters": self.get_params(deep=False), "hash": 1}, {}

    @classmethod
    def from_parts(cls, header: dict[str, Any], arrays: Arrays) -> HashingText:
        """The vectoriser back from its parts."""
        if header["hash"] != 1:
            raise ValueError(f"it hashes text in the way {header['hash']!r:.20}, this Treemax in the way 1")
        return cls(**_with_pairs(header["parameters"])).fit()

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        return tags

    def _checked(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Shortest and longest word and character n-grams, after a look at all parameters."""
        if isinstance(self.bits, bool) or not isinstance(self.bits, int | np.integer):
            raise ValueError(f"bits must be an integer, got {self.bits!r}.")
        if not 1 <= self.bits <= MAX_BITS:
            raise ValueError(f"bits must be from 1 to {MAX_BITS}, got {self.bits}.")
        if self.ngram_range is None and self.char_ngram_range is None:
            raise ValueError("ngram_range and char_ngram_range are both None: there would be no features.")
        return _gram_range("ngram_range", self.ngram_range), _gram_range(
            "char_ngram_range", self.char_ngram_range
        )

    def _hashed(
        self,
        text: NDArray[np.uint8],
        offsets: NDArray[np.int64],
        words: NDArray[np.int64],
        characters: NDArray[np.int64],
    ) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float32]]:
        """Features per row, their columns and values."""
        grams = _most_grams(np.diff(offsets), words, characters)
        found = np.empty(int(grams.max()), dtype=np.uint32)
        distinct = int(np.minimum(grams, 2 ** int(self.bits)).sum())
        indptr = np.empty(len(offsets), dtype=np.int64)
        indices, values = np.empty(distinct, dtype=np.int32), np.empty(distinct, dtype=np.float32)
        size = hash_texts(
            text,
            offsets,
            words,
            characters,
            int(self.bits),
            bool(self.log_counts),
            bool(self.unit_length),
            np.empty(max(1, int(words[1])), dtype=np.uint64),
            found,
            np.empty_like(found),
            indptr,
            indices,
            values,
        )
        return np.diff(indptr), indices[:size].copy(), values[:size].copy()


def _gram_range(name: str, given: Any) -> NDArray[np.int64]:
    """The shortest and longest n-gram as the kernel wants them: a longest of zero for none."""
    if given is None:
        return np.zeros(2, dtype=np.int64)
    try:
        low, high = given
        sound = 1 <= low <= high <= MAX_GRAM and low == int(low) and high == int(high)
    except (TypeError, ValueError):
        sound = False
    if not sound:
        raise ValueError(
            f"{name} must be a pair (shortest, longest) of integers from 1 to {MAX_GRAM}, got {given!r}."
        )
    return np.array([low, high], dtype=np.int64)


def _most_grams(
    n_bytes: NDArray[np.int64], words: NDArray[np.int64], characters: NDArray[np.int64]
) -> NDArray[np.int64]:
    """An upper bound of the n-grams in texts of so many bytes: words of one byte with one between them.

    Each word and each mark begins a character n-gram of every length; a word of c characters has two marks.
    """
    most_words = (n_bytes + 1) // 2
    per_word = words[1] - words[0] + 1 if words[1] else 0
    per_character = characters[1] - characters[0] + 1 if characters[1] else 0
    return most_words * per_word + (n_bytes + 2 * most_words) * per_character


def _with_pairs(parameters: dict[str, Any]) -> dict[str, Any]:
    """Parameters as they were before JSON turned their pairs into lists."""
    return {
        name: tuple(value) if name.endswith("ngram_range") and value is not None else value
        for name, value in parameters.items()
    }
