"""Features of texts, as `TfidfText` and `HashingText` compute them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treemax.light.rows import Row

Vectorizer = Callable[[str], Row]

# The word characters of `treemax.kernels.text`, which says why they are not those of Python.
HASHED_WORD = re.compile(
    "[0-9A-Za-z_\xaa\xb5\xba\xc0-\xd6\xd8-\xf6\xf8-\u167f\u1681-\u1fff\u200c\u200d\u2070-\u218f\u2c00-\u2dff"
    "\u2e80-\u2fff\u3005-\u3007\u3040-\ufe0f\ufe20-\ufe2f\ufe70-\ufeff\uff10-\uff19\uff21-\uff3a\uff41-\uff5a"
    "\uff66-\uffef\U00010000-\U0010ffff]+"
)
ALL_BITS = 2**64 - 1
OFFSET, PRIME = 0xCBF29CE484222325, 0x100000001B3  # constants of the hash function FNV-1a
MIX, JOIN = 0xFF51AFD7ED558CCD, 0x9E3779B97F4A7C15
CHARACTERS = 0xD6E8FEB86659FD93


class NeedsLibrary(ValueError):
    """A model that `treemax.light` cannot answer for."""


def check_analysis(parameters: dict[str, Any]) -> None:
    """Raise NeedsLibrary for the analyses of a `TfidfText` that only scikit-learn has."""
    for name, usual in {"analyzer": "word", "tokenizer": None, "stop_words": None, "strip_accents": None}.items():
        if parameters[name] != usual:
            raise NeedsLibrary(f"TfidfText({name}={parameters[name]!r:.60}) needs scikit-learn: use treemax.load.")


def tfidf(parameters: dict[str, Any], terms: list[str], idf: NDArray[Any]) -> Vectorizer:
    """Return the vectoriser of a `TfidfText`."""
    if idf.shape != (len(terms),):
        raise ValueError(f"there are {len(terms)} terms, but the weights have the shape {idf.shape}")
    column_of = {term: column for column, term in enumerate(terms)}
    pattern, (shortest, longest) = re.compile(parameters["token_pattern"]), parameters["ngram_range"]

    def vectorize(text: str) -> Row:
        words = pattern.findall(text.lower() if parameters["lowercase"] else text)
        grams = words if longest == 1 else _word_grams(words, shortest, longest)
        counts = Counter(column_of[gram] for gram in grams if gram in column_of)
        columns = np.array(sorted(counts), dtype=np.int64)
        values = np.array([counts[column] for column in columns.tolist()], dtype=np.float32)
        if parameters["binary"]:
            values[:] = 1.0
        if parameters["sublinear_tf"]:
            values = np.log(values) + np.float32(1.0)
        values = values * idf[columns].astype(np.float32)
        return Row(columns, _scaled(values, parameters["norm"]))

    return vectorize


def _word_grams(words: list[str], shortest: int, longest: int) -> list[str]:
    lengths = range(shortest, min(longest, len(words)) + 1)
    return [" ".join(words[i : i + n]) for n in lengths for i in range(len(words) - n + 1)]


def _scaled(values: NDArray[np.float32], norm: str | None) -> NDArray[np.float32]:
    if norm is None or len(values) == 0:
        return values
    wide = values.astype(np.float64)
    length = np.sqrt(wide @ wide) if norm == "l2" else np.abs(wide).sum()
    return (wide / length).astype(np.float32)


def hashing(parameters: dict[str, Any]) -> Vectorizer:
    """Return the vectoriser of a `HashingText`."""
    shift = 64 - parameters["bits"]
    of_words, of_characters = parameters["ngram_range"], parameters["char_ngram_range"]

    def vectorize(text: str) -> Row:
        words = HASHED_WORD.findall(text.lower() if parameters["lowercase"] else text)
        hashes: list[int] = []
        if of_words is not None:
            hashes += _hashed_word_grams([_fnv(word.encode("utf-8", "surrogatepass")) for word in words], *of_words)
        if of_characters is not None:
            for word in words:
                hashes += _hashed_character_grams(word, *of_characters)
        counts = Counter(_bucket(hashed, shift) for hashed in hashes)
        columns = np.array(sorted(counts), dtype=np.int64)
        values = np.array([counts[column] for column in columns.tolist()], dtype=np.float64)
        if parameters["log_counts"]:
            values = 1.0 + np.log(values)
        return Row(columns, _scaled(values.astype(np.float32), "l2" if parameters["unit_length"] else None))

    return vectorize


def _fnv(text: bytes, hashed: int = OFFSET) -> int:
    for byte in text:
        hashed = (hashed ^ byte) * PRIME & ALL_BITS
    return hashed


def _hashed_word_grams(words: list[int], shortest: int, longest: int) -> Iterator[int]:
    for last in range(len(words)):
        hashed = words[last]
        for length in range(1, min(longest, last + 1) + 1):
            if length > 1:
                hashed = (hashed * JOIN + words[last - length + 1] & ALL_BITS) ^ hashed >> 32
            if length >= shortest:
                yield hashed


def _hashed_character_grams(word: str, shortest: int, longest: int) -> Iterator[int]:
    """Yield the hashes of the character n-grams of a word with its markers; none begins with the closing one."""
    marked = ["\x02", *word, "\x03"]
    for start in range(len(marked) - 1):
        hashed = OFFSET ^ CHARACTERS
        for length, character in enumerate(marked[start : start + longest], start=1):
            hashed = _fnv(character.encode("utf-8", "surrogatepass"), hashed)
            if length >= shortest:
                yield hashed


def _bucket(hashed: int, shift: int) -> int:
    mixed = (hashed ^ hashed >> 32) * MIX & ALL_BITS
    return ((mixed ^ mixed >> 32) * JOIN & ALL_BITS) >> shift
