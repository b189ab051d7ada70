"""Words as numbers: the kernel and scikit-learn's analysers find the same words and give the same tf-idf.

Both private word counters are compared, since `word_counter` returns only one of them.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer

from treemax import TfidfText
from treemax.text.words import PLAIN, _AnalysedWords, _PlainWords, _word_characters, word_counter

PARAMETERS = {**TfidfText().get_params(), "min_df": 1}
WORDS = st.sampled_from(
    [
        "cat",
        "Cat",
        "dog",
        "of",
        "a",
        "I",
        "naïve",
        "NAÏVE",
        "東京",
        "x_1",
        "२३",
        "ß",
        "İstanbul",
        "\ud800",
        "co\u0301te",
    ]
)
MARKS = st.sampled_from([" ", "  ", ",", "-", "\n", "\u2003", "…", "", "😀", "\x00"])
MIXED = st.lists(st.tuples(WORDS, MARKS), max_size=12).map(lambda pairs: "".join(a + b for a, b in pairs))
TEXTS = st.lists(MIXED | st.text(max_size=15), min_size=1, max_size=6)


def same(one, other):
    return one.shape == other.shape and all(
        np.array_equal(getattr(one, name), getattr(other, name)) for name in ("indptr", "indices", "data")
    )


def test_word_characters_are_those_of_regular_expressions():
    table, pattern = _word_characters(0x110000), re.compile(r"\w")
    assert table.tolist() == [pattern.match(chr(code)) is not None for code in range(0x110000)]
    assert table[:128].tolist() == _word_characters(128).tolist()


def test_which_settings_go_to_the_kernel():
    assert isinstance(word_counter(PARAMETERS), _PlainWords)
    assert isinstance(word_counter({**PARAMETERS, "ngram_range": [1, 1]}), _PlainWords)
    for name, other in (
        ("analyzer", "char"), ("tokenizer", str.split), ("token_pattern", r"\S+"), ("stop_words", ["the"]),
        ("strip_accents", "ascii"), ("ngram_range", (1, 2)),
    ):  # fmt: skip
        assert name in PLAIN and isinstance(word_counter({**PARAMETERS, name: other}), _AnalysedWords)


@settings(max_examples=150, deadline=None)
@given(TEXTS, TEXTS, st.booleans())
def test_words_and_counts_are_those_of_the_analyzer(first, second, lowercase):
    parameters = {**PARAMETERS, "lowercase": lowercase}
    plain = _PlainWords(lowercase, None)
    analysed = _AnalysedWords(TfidfVectorizer(**parameters).build_analyzer(), None)
    for texts in (first, second, first):
        assert same(plain.counts(texts), analysed.counts(texts))
        assert plain.words() == analysed.words() and len(plain) == len(analysed)
    known = plain.words()[::2]
    plain, analysed = (
        _PlainWords(lowercase, known), _AnalysedWords(TfidfVectorizer(**parameters).build_analyzer(), known)
    )  # fmt: skip
    assert same(plain.counts(second), analysed.counts(second)) and plain.words() == known


@pytest.mark.parametrize("batch", [1, 50, 2**20])
def test_many_words_in_small_batches(batch, monkeypatch):
    monkeypatch.setattr("treemax.text.words.BATCH_BYTES", batch)
    random = np.random.RandomState(0)
    texts = [" ".join(f"w{n}" for n in random.zipf(1.3, random.randint(0, 200)) % 5000) for _ in range(300)]
    reference = CountVectorizer(dtype=np.float32)
    expected = reference.fit_transform(texts)
    counter = word_counter(PARAMETERS)
    found = counter.counts(texts)
    column_of = np.array([reference.vocabulary_[word] for word in counter.words()])
    assert (found.tocoo().toarray() == expected.toarray()[:, column_of]).all()


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    TEXTS, TEXTS, st.sampled_from(["l1", "l2", None]), st.booleans(), st.booleans(), st.sampled_from([None, 1, 3]), st.sampled_from([1, 2, 0.4])
)  # fmt: skip
def test_tfidf_is_that_of_scikit_learn_to_the_last_bit(texts, others, norm, binary, sublinear, most, least):
    options = {"norm": norm, "binary": binary, "sublinear_tf": sublinear, "max_features": most, "min_df": least}
    reference, ours = TfidfVectorizer(dtype=np.float32, **options), TfidfText(**options)
    try:
        expected = reference.fit_transform(texts)
    except ValueError:
        with pytest.raises(ValueError, match="No word"):
            ours.fit(texts)
        return
    expected.sort_indices()
    assert same(ours.fit_transform(texts), expected)
    assert ours.get_feature_names_out().tolist() == reference.get_feature_names_out().tolist()
    assert same(ours.transform(others), reference.transform(others))


def test_threads_may_transform_at_the_same_time():
    texts = [f"word{n % 97} text{n % 31} and{n % 13} more{n % 7}" for n in range(4000)]
    ours = TfidfText().fit(texts)
    expected = ours.transform(texts)
    with ThreadPoolExecutor(4) as pool:
        assert all(same(found, expected) for found in pool.map(ours.transform, [texts] * 8))
