"""Words of documents as the analyzers of Annif normalise them."""

from __future__ import annotations

import pickle
import re
from typing import Any

from sklearn.feature_extraction.text import TfidfVectorizer

_WORDS = re.compile(r"\w+")


class Words:
    """A tokenizer for scikit-learn's vectorisers, with the analyzer of a project.

    NLTK's tokenizer takes longer than the training of a model. So words are sequences of letters, digits and underscores,
    and the analyzer only filters and normalises them, each one once. Analyzers with a tokenizer of their own keep it.
    """

    def __init__(self, analyzer: Any) -> None:
        self.analyzer = analyzer
        self._normalized: dict[str, str | None] = {}

    def __call__(self, text: str) -> list[str]:
        if not self._splits_by_nltk():
            return self.analyzer.tokenize_words(text)
        known = self._normalized
        found = []
        for word in _WORDS.findall(text):
            normalized = known[word] if word in known else self._normalize(word)
            if normalized is not None:
                found.append(normalized)
        return found

    def _splits_by_nltk(self) -> bool:
        from annif.analyzer.analyzer import Analyzer

        return type(self.analyzer).tokenize_words is Analyzer.tokenize_words

    def _normalize(self, word: str) -> str | None:
        normalized = self.analyzer._normalize_word(word) if self.analyzer.is_valid_token(word) else None
        self._normalized[word] = normalized
        return normalized

    def __getstate__(self) -> dict[str, Any]:
        return {"analyzer": self.analyzer, "_normalized": {}}


class Vectorizer(TfidfVectorizer):
    """scikit-learn's vectoriser, with its vocabulary as bytes in a file: joblib, by which Annif saves it, is slow with words."""

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        if "vocabulary_" in state:
            vocabulary = state["vocabulary_"]
            state["vocabulary_"] = pickle.dumps(sorted(vocabulary, key=vocabulary.__getitem__))
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "vocabulary_" in state:
            words = pickle.loads(state["vocabulary_"])
            state = {**state, "vocabulary_": dict(zip(words, range(len(words))))}
        super().__setstate__(state)
