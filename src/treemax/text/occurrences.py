"""Where the features of a text are in it, for explanations."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from sklearn.feature_extraction import FeatureHasher
from sklearn.feature_extraction.text import (
    CountVectorizer,
    HashingVectorizer,
    TfidfTransformer,
    TfidfVectorizer,
    strip_accents_ascii,
    strip_accents_unicode,
)
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, Normalizer, StandardScaler

from treemax.kernels.text import features_of_text, is_word_character
from treemax.text.vectorizers import HashingText, TfidfText
from treemax.text.words import encoded

KEEP_COLUMNS = (TfidfTransformer, Normalizer, MaxAbsScaler, MinMaxScaler, StandardScaler)
_ACCENTS = {"ascii": strip_accents_ascii, "unicode": strip_accents_unicode}
Place: TypeAlias = tuple[int, int]


class Occurrence(NamedTuple):
    """An n-gram of the text, the column of its feature, and the words or the characters that it covers."""

    name: str
    column: int
    places: list[Place]
    of_characters: bool = False


class _Token(NamedTuple):
    name: str
    places: list[Place]  # positions in the normalised text
    of_characters: bool = False


def is_hashed(vectorizer: Any) -> bool:
    """Return whether several words may share a column."""
    if isinstance(vectorizer, Pipeline):
        return is_hashed(vectorizer.steps[0][1])
    if isinstance(vectorizer, FeatureUnion):
        return any(is_hashed(part) for _, part in vectorizer.transformer_list)
    return isinstance(vectorizer, HashingText | HashingVectorizer)


def occurrences(vectorizer: Any, text: str) -> list[Occurrence]:
    """Return the n-grams of a text that are features, with their places; an empty list for an unknown vectoriser.

    >>> [(found.name, found.places) for found in occurrences(TfidfText().fit(["red apple"]), "An APPLE, red.")]
    [('apple', [(3, 8)]), ('red', [(10, 13)])]
    """
    if isinstance(vectorizer, Pipeline):
        first, *others = [step for _, step in vectorizer.steps if step != "passthrough"]
        return occurrences(first, text) if all(isinstance(step, KEEP_COLUMNS) for step in others) else []
    if isinstance(vectorizer, FeatureUnion):
        return list(_of_union(vectorizer, text))
    if isinstance(vectorizer, HashingText):
        return list(_hashed(vectorizer, text))
    if isinstance(vectorizer, TfidfText | CountVectorizer | HashingVectorizer):
        return list(_analysed(vectorizer, text))
    return []


def _of_union(union: FeatureUnion, text: str) -> Iterator[Occurrence]:
    first = 0
    for _, part in union.transformer_list:
        if part == "drop":
            continue
        for found in occurrences(part, text):
            yield found._replace(column=first + found.column)
        first += part.transform([text]).shape[1]


# --- HashingText -----------------------------------------------------------------------------------------


def _hashed(vectorizer: HashingText, text: str) -> Iterator[Occurrence]:
    """Yield the n-grams in the order of the kernel that hashes them."""
    words, characters = vectorizer._checked()
    lowered, origin = _mapped(text, str.lower if vectorizer.lowercase else str)
    if not lowered:
        return
    [(encoded_text, offsets)] = encoded([lowered], False)
    tokens = list(_hashed_tokens(lowered, words.tolist(), characters.tolist()))
    columns = np.empty(max(1, len(tokens)), dtype=np.uint32)
    n = features_of_text(
        encoded_text, offsets[0], offsets[1], words, characters, np.uint64(64 - int(vectorizer.bits)),
        np.empty(max(1, int(words[1])), dtype=np.uint64), columns,
    )  # fmt: skip
    if n == len(tokens):
        yield from _placed(tokens, columns.tolist(), origin)


def _hashed_tokens(text: str, words: list[int], characters: list[int]) -> Iterator[_Token]:
    found: list[Place] = []
    for word in _hashed_words(text):
        found.append(word)
        for length in range(1, min(words[1], len(found)) + 1):
            if length >= words[0]:
                gram = found[len(found) - length :]
                yield _Token(" ".join(text[a:b] for a, b in gram), gram)
        if characters[1]:
            yield from _marked_grams(text, word, *characters)


def _marked_grams(text: str, word: Place, low: int, high: int) -> Iterator[_Token]:
    """Yield the character n-grams of a word with a marker at both ends, which have no place in the text."""
    start, stop = word
    for first in range(start - 1, stop):
        for length in range(low, min(high, stop + 1 - first) + 1):
            place = (max(first, start), min(first + length, stop))
            marked = "^" * (first < start) + text[slice(*place)] + "$" * (first + length > stop)
            yield _Token(marked, [place], True)


def _hashed_words(text: str) -> Iterator[Place]:
    inside = [False, *(_is_in_word(character) for character in text), False]
    edges = [place for place, (before, after) in enumerate(pairwise(inside)) if before != after]
    yield from zip(edges[::2], edges[1::2])


@lru_cache(maxsize=4096)
def _is_in_word(character: str) -> bool:
    return bool(is_word_character.py_func(ord(character)))  # type: ignore[attr-defined]


# --- vectorisers with scikit-learn's analysis ------------------------------------------------------------


def _analysed(vectorizer: Any, text: str) -> Iterator[Occurrence]:
    analyser = vectorizer
    if isinstance(vectorizer, TfidfText):
        parameters = vectorizer.get_params(deep=False) if vectorizer._reader is None else vectorizer._reader[1]
        analyser = TfidfVectorizer(**{**parameters, "min_df": 1})
    if callable(analyser.analyzer) or analyser.preprocessor is not None or callable(analyser.strip_accents):
        return
    strip = _ACCENTS.get(analyser.strip_accents, str)
    normal, origin = _mapped(text, lambda c: strip(c.lower() if analyser.lowercase else c))
    if analyser.build_preprocessor()(text) != normal:
        return
    low, high = analyser.ngram_range
    if analyser.analyzer == "word":
        tokens = list(_word_grams(analyser, normal, low, high))
    else:
        tokens = list(_character_grams(normal, low, high, analyser.analyzer == "char_wb"))
    yield from _placed(tokens, _columns(vectorizer, [token.name for token in tokens]), origin)


def _columns(vectorizer: Any, names: list[str]) -> list[int]:
    """Return the columns of n-grams, -1 for those that are no features."""
    if isinstance(vectorizer, TfidfText):
        return vectorizer.terms_.ids(names).tolist()
    if isinstance(vectorizer, HashingVectorizer):
        hasher = FeatureHasher(vectorizer.n_features, input_type="string", alternate_sign=False)
        return hasher.transform([[name] for name in names]).indices.tolist() if names else []
    return [int(vectorizer.vocabulary_.get(name, -1)) for name in names]


def _word_grams(vectorizer: Any, text: str, low: int, high: int) -> Iterator[_Token]:
    stop_words = vectorizer.get_stop_words() or ()
    words = [(word, place) for word, place in _words(vectorizer, text) if word not in stop_words]
    if low == 1:
        yield from (_Token(word, [place]) for word, place in words)
    for length in range(max(low, 2), min(high, len(words)) + 1):
        for gram in zip(*(words[first:] for first in range(length))):
            yield _Token(" ".join([word for word, _ in gram]), [place for _, place in gram])


def _words(vectorizer: Any, text: str) -> Iterator[tuple[str, Place]]:
    if vectorizer.tokenizer is None:
        pattern = re.compile(vectorizer.token_pattern)
        group = min(1, pattern.groups)
        yield from ((match[group], match.span(group)) for match in pattern.finditer(text))
        return
    at = 0
    for word in vectorizer.tokenizer(text):
        found = text.find(word, at)
        yield word, (found, found + len(word)) if found >= 0 else (at, at)
        at = max(at, found + len(word)) if found >= 0 else at


def _character_grams(text: str, low: int, high: int, within_words: bool) -> Iterator[_Token]:
    """Yield the character n-grams of `analyzer="char"` and "char_wb": runs of spaces count as one."""
    spaces = re.compile(r"\s\s+")
    kept: list[int] = []  # places in `text` of the characters that are left
    at = 0
    for run in spaces.finditer(text):
        kept += range(at, run.start() + 1)
        at = run.end()
    kept += range(at, len(text))
    shorter = spaces.sub(" ", text)
    words = [match.span() for match in re.finditer(r"\S+", shorter)] if within_words else [(0, len(shorter))]
    for start, stop in words:
        padded = f" {shorter[start:stop]} " if within_words else shorter[start:stop]
        first = start - within_words  # the place of padded[0]
        for length in range(low, high + 1):
            last = max(0, len(padded) - length)
            for offset in range(last + 1):
                a, b = max(start, first + offset), min(stop, first + offset + length)
                place = (kept[a], kept[b - 1] + 1) if a < b else (0, 0)
                yield _Token(padded[offset : offset + length], [place], True)
            if last == 0:
                break


# --- places in the text as it was given ------------------------------------------------------------------


def _mapped(text: str, change: Callable[[str], str]) -> tuple[str, Sequence[int]]:
    """Return the changed text, and the original position of each of its characters."""
    changed = change(text)
    if text.isascii():  # the changes keep its length
        return changed, range(len(text))
    parts = [change(character) for character in text]
    origin = [place for place, part in enumerate(parts) for _ in part]
    return (changed if len(changed) == len(origin) else "".join(parts)), origin


def _placed(tokens: list[_Token], columns: list[int], origin: Sequence[int]) -> Iterator[Occurrence]:
    """Yield the tokens that are features, with places in the text as it was given."""
    unchanged = isinstance(origin, range)
    for (name, places, of_characters), column in zip(tokens, columns):
        if column >= 0:
            spans = [(a, b) if unchanged else (origin[a], origin[b - 1] + 1) for a, b in places if a < b]
            yield Occurrence(name, column, spans, of_characters)
