"""Vocabulary of a language model: converts texts to word ids."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.labels import LabelIndex

END, UNKNOWN = "</s>", "<unk>"  # the end of a text; any unknown word


@dataclass
class WordVocabulary:
    """Words by id, the most frequent first, including the end of a text and the unknown word."""

    index: LabelIndex
    counts: NDArray[np.int64]  # in the training texts, by id

    def __post_init__(self) -> None:
        self.end, self.unknown = (int(number) for number in self.index.ids([END, UNKNOWN]))
        if min(self.end, self.unknown) < 0:
            raise ValueError(f"the vocabulary lacks {END} or {UNKNOWN}")

    def __len__(self) -> int:
        return len(self.index)

    @classmethod
    def from_texts(
        cls, texts: Any, min_count: int, max_words: int | None
    ) -> tuple[WordVocabulary, list[NDArray[np.int64]]]:
        """Return the vocabulary of texts, and the word ids of each text, including its end."""
        arrivals = defaultdict(count(2).__next__, {END: 0, UNKNOWN: 1})
        numbers: list[int] = []
        ends = []
        for words in tokens(texts):
            numbers += map(arrivals.__getitem__, words)
            numbers.append(0)
            ends.append(len(numbers))
        if not ends:
            raise ValueError("There are no texts to learn from: the list is empty.")
        names, found = np.array(list(arrivals), dtype=object), np.array(numbers, dtype=np.int64)
        counts = np.bincount(found, minlength=len(names))
        kept = _selected_words(counts, names, min_count, max_words)
        id_of = np.full(len(names), -1, dtype=np.int64)
        id_of[kept] = np.arange(len(kept))
        id_of[id_of < 0] = id_of[1]
        ids = id_of[found]
        index = LabelIndex()
        index.add(names[kept], np.dtype(object))
        return cls(index, np.bincount(ids, minlength=len(kept))), np.split(ids, ends[:-1])

    def ids(self, texts: Any, with_end: bool = True) -> list[NDArray[np.int64]]:
        """Return the word ids of each text."""
        last = [self.end] if with_end else []
        found = []
        for words in tokens(texts):
            ids = self.index.ids(words)
            ids[ids < 0] = self.unknown
            found.append(np.concatenate([ids, np.array(last, dtype=np.int64)]))
        return found


def _selected_words(
    counts: NDArray[np.int64], names: NDArray[Any], min_count: int, max_words: int | None
) -> NDArray[np.int64]:
    """Return the indices of the words to keep, the most frequent first, ties by name. The first two are always kept."""
    order = np.array(sorted(range(2, len(names)), key=lambda place: (-counts[place], names[place])), dtype=np.int64)
    order = order[counts[order] >= min_count]
    if max_words is not None:
        order = order[: max_words - 2]
    dropped = counts[2:].sum() - counts[order].sum()
    ranks = counts.copy()
    ranks[1] += dropped
    stay = np.concatenate([[0, 1], order])
    return stay[np.argsort(-ranks[stay], kind="stable")]


def tokens(texts: Any) -> Iterator[list[str]]:
    """Return the words of each text: strings are split at white space, lists of words are unchanged.

    >>> list(tokens(["a red car", ["a", "car"], ""]))
    [['a', 'red', 'car'], ['a', 'car'], []]
    """
    if isinstance(texts, str | bytes):
        raise ValueError(
            f"The texts are one {type(texts).__name__}; expected a list of texts, each a string or a list of words."
        )
    if hasattr(texts, "columns"):
        raise ValueError("The texts are a data frame; pass the column that holds them, such as frame['text'].")
    if isinstance(texts, dict | set | frozenset) or not isinstance(texts, Iterable):
        raise ValueError(f"Expected a list of texts, each a string or a list of words, got {type(texts).__name__}.")
    for number, text in enumerate(texts):
        words = text.split() if isinstance(text, str) else _words(number, text)
        if END in words:
            raise ValueError(
                f"Text {number} contains the word {END!r}, which marks the end of a text and is added automatically: "
                "remove it, or split the text in two."
            )
        yield words


def _words(number: int, text: Any) -> list[str]:
    if not isinstance(text, list | tuple | np.ndarray) or (isinstance(text, np.ndarray) and text.ndim != 1):
        got = "None" if text is None else f"{text!r:.60} ({type(text).__name__})"
        raise ValueError(f"Text {number} is {got}; expected a string or a list of words.")
    for word in text:
        if not isinstance(word, str) or not word:
            raise ValueError(f"Text {number} has {word!r:.60} among its words; expected non-empty strings.")
    return [str(word) for word in text]
