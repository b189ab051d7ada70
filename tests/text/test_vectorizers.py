"""Vectorisers against slow references, and text models with their vectorisers."""

from __future__ import annotations

import copy
import math
import os
import pickle
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.validation import check_is_fitted

from treemax import OneVsAll, TrainingInterrupted
from treemax.kernels import text as kernels
from treemax.kernels.jit import kernel
from treemax.kernels.text import sort_buckets
from treemax.modelfile import ModelFileError, load, prefixed, read_model, save, saveable, write_model
from treemax.models.text_model import TextModel
from treemax.text.vectorizers import HashingText, TfidfText, read_texts

TEXTS = [
    "The cat sat on the mat, the red mat.",
    "A dog sat on the red log",
    "",
    "Größe, naïve café: 模型 文本。 emoji 😀 हिन्दी",
    "the THE The — “quoted” x_1 3.14",
    "!!! ... ???",
]
LABELS = ["cat", "dog", "none", "cat", "dog", "none"]


@kernel
def is_word_character(code):
    return kernels.is_word_character(code)


def equal(one: Any, other: Any) -> bool:
    one, other = sp.csr_matrix(one), sp.csr_matrix(other)
    return one.shape == other.shape and all(
        getattr(one, part).tobytes() == getattr(other, part).tobytes() for part in ("data", "indices", "indptr")
    )


# --- what counts as a text -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["a", "b", 3], r"Row 2 of the texts is 3 \(int\)"),
        (["a", None], "Row 1 of the texts is None"),
        (["a", float("nan")], r"Row 1 of the texts is nan \(float\)"),
        (["a", b"bytes"], r"Row 1 of the texts is b'bytes' \(bytes\)"),
        ([["a"], ["b"]], r"Row 0 of the texts is \['a'\] \(list\)"),
        (np.array([["a"], ["b"]]), r"a table of shape \(2, 1\)"),
        ("one text", "one str; expected a list of strings"),
        (b"one text", "one bytes"),
        (7, "Expected a list of strings, got int"),
        (None, "Expected a list of strings, got NoneType"),
        (pd.DataFrame({"text": ["a"]}), "data frame; pass the column"),
        (np.zeros((2, 3)), r"a table of shape \(2, 3\)"),
        (pd.Series(["a", None], dtype=object), "Row 1 of the texts is None"),
    ],
)
@pytest.mark.parametrize("vectorizer", [TfidfText(), HashingText()], ids=["tfidf", "hashing"])
def test_what_is_not_text_is_refused(vectorizer: Any, texts: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        vectorizer.fit_transform(texts)


@pytest.mark.parametrize("kind", [tuple, iter, np.array, lambda t: np.array(t, dtype=object), pd.Series, pl.Series])
def test_texts_in_any_container(kind: Any) -> None:
    expected = HashingText().transform(TEXTS)
    assert equal(HashingText().transform(kind(TEXTS)), expected)
    assert read_texts(kind(TEXTS)) == TEXTS


# --- tf-idf --------------------------------------------------------------------------------------------


def test_tfidf_is_the_recipe() -> None:
    reference = TfidfVectorizer(sublinear_tf=True, min_df=2, dtype=np.float32)
    expected = reference.fit_transform(TEXTS)
    expected.sort_indices()
    vectorizer = TfidfText(min_df=2)
    fitted = vectorizer.fit_transform(TEXTS)
    assert equal(fitted, expected)
    assert equal(vectorizer.transform(TEXTS), reference.transform(TEXTS))
    assert np.allclose(fitted.toarray(), vectorizer.transform(TEXTS).toarray(), rtol=1e-6)
    assert equal(vectorizer.transform(["the unknown cat", ""]), reference.transform(["the unknown cat", ""]))
    assert fitted.dtype == np.float32 and fitted.format == "csr"
    assert vectorizer.get_feature_names_out().tolist() == reference.get_feature_names_out().tolist()


OPTIONS: list[dict[str, Any]] = [
    {},
    {"ngram_range": (1, 2), "min_df": 1},
    {"analyzer": "char_wb", "ngram_range": (2, 4), "max_features": 20},
    {"lowercase": False, "min_df": 1, "stop_words": ["the", "on"]},
    {"stop_words": ["the"], "min_df": 1, "binary": True, "norm": None},
    {"stop_words": "english", "min_df": 1, "strip_accents": "unicode", "sublinear_tf": False},
    {"token_pattern": r"\S+", "min_df": 0.2, "max_df": 0.9},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_a_saved_tfidf_transforms_bit_for_bit(tmp_path: Path, options: dict[str, Any]) -> None:
    vectorizer = TfidfText(**options).fit(TEXTS)
    save(vectorizer, tmp_path / "t.treemax")
    loaded = load(tmp_path / "t.treemax")
    assert type(loaded) is TfidfText
    assert equal(loaded.transform(TEXTS), vectorizer.transform(TEXTS))
    assert loaded.ngram_range == vectorizer.ngram_range and isinstance(loaded.ngram_range, tuple)
    save(loaded, tmp_path / "again.treemax")
    assert (tmp_path / "again.treemax").read_bytes() == (tmp_path / "t.treemax").read_bytes()
    assert clone(loaded).fit(TEXTS).get_feature_names_out().tolist() == loaded.get_feature_names_out().tolist()


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.lists(st.text(max_size=20), min_size=1, max_size=8))
def test_any_vocabulary_comes_back(texts: list[str]) -> None:
    vectorizer = TfidfText(min_df=1, analyzer="char", ngram_range=(1, 2))
    try:
        vectorizer.fit(texts)
    except ValueError as error:
        assert "No word" in str(error) and not any(texts)
        return
    loaded = TfidfText.from_parts(*vectorizer.to_parts())
    assert equal(loaded.transform(texts), vectorizer.transform(texts))


@pytest.mark.parametrize("options", [{"analyzer": str.split}, {"tokenizer": str.split, "token_pattern": None}])
def test_code_is_used_but_not_saved(tmp_path: Path, options: dict[str, Any]) -> None:
    vectorizer = TfidfText(min_df=1, **options)
    assert vectorizer.fit_transform(TEXTS).nnz
    with pytest.raises(ModelFileError, match=f"custom function as {next(iter(options))}"):
        save(vectorizer, tmp_path / "t.treemax")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("texts", "options"),
    [
        (["", ""], {}),
        (["one two", "three four"], {"min_df": 2}),
        (["the", "the"], {"stop_words": "english"}),
        ([], {}),
        (["one row"], {"min_df": 2}),
        (["one", "one", "one"], {"max_df": 1}),
    ],
)
def test_an_empty_vocabulary_is_explained(texts: list[str], options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"No word of the \d texts? is left.*min_df="):
        TfidfText(**options).fit(texts)


def test_short_texts_keep_their_own_words_and_long_ones_do_not() -> None:
    few = ["red apple", "green apple", "fast car", "red car"]
    assert TfidfText().fit(few).get_feature_names_out().tolist() == ["apple", "car", "fast", "green", "red"]
    shared = [f"shared{i}" for i in range(8)]
    long, short = " ".join([*shared, "longword"]), " ".join([*shared[:7], "shortword"])
    words = TfidfText().fit([" ".join(shared), long, short]).get_feature_names_out().tolist()
    assert words == [*shared, "shortword"]  # the long text has eight words that others have, the short one seven


def test_automatic_frequencies_do_not_depend_on_the_chunks() -> None:
    texts = [*TEXTS, "alone in a text", *TEXTS, " ".join(TEXTS) + " rare"]
    whole, cut = TfidfText().fit(texts), TfidfText()
    cut.fit_chunks(texts[start : start + 2] for start in range(0, len(texts), 2))
    assert cut.get_feature_names_out().tolist() == whole.get_feature_names_out().tolist()
    assert "rare" not in whole.get_feature_names_out() and "alone" in whole.get_feature_names_out()


def test_a_wrong_min_df_is_refused() -> None:
    with pytest.raises(ValueError, match=r"min_df must be 'auto'.*'two'"):
        TfidfText(min_df="two").fit(TEXTS)


def test_a_failed_fit_leaves_the_vectoriser_as_it_was() -> None:
    vectorizer = TfidfText().fit(TEXTS)
    before = vectorizer.transform(TEXTS)
    with pytest.raises(ValueError, match="No word"):
        vectorizer.fit(["", ""])
    assert equal(vectorizer.transform(TEXTS), before)


def test_tfidf_must_be_fitted(tmp_path: Path) -> None:
    for call in (lambda: TfidfText().transform(TEXTS), lambda: save(TfidfText(), tmp_path / "t.treemax")):
        with pytest.raises(NotFittedError):
            call()


def damaged_tfidf(change: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    header, arrays = TfidfText().fit(TEXTS).to_parts()
    change(header, arrays)
    return {"class": "TfidfText", "state": header}, arrays


@pytest.mark.parametrize(
    "change",
    [
        lambda header, arrays: arrays.pop("idf"),
        lambda header, arrays: arrays.update(idf=arrays["idf"][1:]),
        lambda header, arrays: arrays.update(idf=arrays["idf"].astype(np.int32)),
        lambda header, arrays: arrays.pop("terms/bytes"),
        lambda header, arrays: arrays.update({"terms/offsets": arrays["terms/offsets"][::-1]}),
        lambda header, arrays: arrays.update({"terms/offsets": arrays["terms/offsets"] * 2**40}),
        lambda header, arrays: header.pop("parameters"),
        lambda header, arrays: header["parameters"].update(unheard_of=1),
        lambda header, arrays: header["parameters"].update(ngram_range=5),
        lambda header, arrays: header.update(parameters=[1]),
    ],
)
def test_damaged_parts_are_refused(tmp_path: Path, change: Any) -> None:
    write_model(tmp_path / "t.treemax", *damaged_tfidf(change))
    with pytest.raises(ModelFileError, match="are not those of a TfidfText"):
        load(tmp_path / "t.treemax")


# --- hashing -------------------------------------------------------------------------------------------

MASK = 2**64 - 1


def fnv(content: bytes, start: int = 0xCBF29CE484222325) -> int:
    for byte in content:
        start = ((start ^ byte) * 0x100000001B3) & MASK
    return start


def bucket(hashed: int, bits: int) -> int:
    mixed = ((hashed ^ hashed >> 32) * 0xFF51AFD7ED558CCD) & MASK
    mixed = ((mixed ^ mixed >> 32) * 0x9E3779B97F4A7C15) & MASK
    return mixed >> (64 - bits)


def joined(words: list[int]) -> int:
    hashed = words[-1]
    for word in reversed(words[:-1]):
        hashed = ((hashed * 0x9E3779B97F4A7C15 + word) & MASK) ^ (hashed >> 32)
    return hashed


def slow_buckets(text: str, bits: int, words: Any, characters: Any) -> Counter[int]:
    """The n-grams of a text the obvious way: strings, slices and Python's integers."""
    spaced = "".join(c if is_word_character(ord(c)) else " " for c in text.lower())
    tokens = [token for token in spaced.split(" ") if token]
    found: Counter[int] = Counter()
    hashes = [fnv(token.encode("utf-8", "surrogatepass")) for token in tokens]
    for n in range(words[0], words[1] + 1) if words else ():
        for i in range(len(tokens) - n + 1):
            found[bucket(joined(hashes[i : i + n]), bits)] += 1
    for token in tokens if characters else ():
        marked = ["\x02", *token, "\x03"]
        for n in range(characters[0], characters[1] + 1):
            for i in range(len(marked) - n + 1):
                if marked[i] == "\x03":
                    continue
                gram = "".join(marked[i : i + n]).encode("utf-8", "surrogatepass")
                found[bucket(fnv(gram, 0xCBF29CE484222325 ^ 0xD6E8FEB86659FD93), bits)] += 1
    return found


def slow_rows(texts: list[str], vectorizer: HashingText) -> np.ndarray:
    out = np.zeros((len(texts), 2**vectorizer.bits))
    for row, text in enumerate(texts):
        for column, count in slow_buckets(
            text, vectorizer.bits, vectorizer.ngram_range, vectorizer.char_ngram_range
        ).items():
            out[row, column] = 1 + math.log(count) if vectorizer.log_counts else count
        if vectorizer.unit_length and out[row].any():
            out[row] /= np.linalg.norm(out[row])
    return out


gram_ranges = st.none() | st.tuples(st.integers(1, 3), st.integers(0, 3)).map(lambda p: (p[0], p[0] + p[1]))


@settings(max_examples=80, deadline=None)
@given(
    texts=st.lists(st.text(max_size=40) | st.text("ab _-é—模😀\ud800", max_size=60), min_size=0, max_size=5),
    bits=st.integers(1, 12),
    words=gram_ranges,
    characters=gram_ranges,
    log_counts=st.booleans(),
    unit_length=st.booleans(),
)
def test_hashing_equals_the_slow_reference(
    texts: list[str], bits: int, words: Any, characters: Any, log_counts: bool, unit_length: bool
) -> None:
    if words is None and characters is None:
        words = (1, 1)
    vectorizer = HashingText(
        bits=bits, ngram_range=words, char_ngram_range=characters, log_counts=log_counts, unit_length=unit_length
    )
    X = vectorizer.transform(texts)
    assert X.dtype == np.float32 and X.format == "csr" and X.shape == (len(texts), 2**bits)
    assert X.indices.dtype == np.int32
    X.check_format(full_check=True)
    for row in range(len(texts)):
        assert (np.diff(X.indices[X.indptr[row] : X.indptr[row + 1]]) > 0).all()
    np.testing.assert_allclose(X.toarray(), slow_rows(texts, vectorizer), rtol=1e-6)


def test_batches_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"{text} {i}" for i in range(50) for text in TEXTS]
    whole = HashingText(char_ngram_range=(3, 4)).transform(texts)
    for size in (0, 1, 100, 1000):
        monkeypatch.setattr("treemax.text.words.BATCH_BYTES", size)
        assert equal(HashingText(char_ngram_range=(3, 4)).transform(texts), whole)


def test_the_hash_is_the_same_for_ever() -> None:
    """A saved model depends on these columns: a change here needs a new `hash` number in the model file."""
    X = HashingText(ngram_range=(1, 2), char_ngram_range=(3, 3)).transform(["Red cat"])
    assert X.indices.tolist() == [7749, 33148, 94493, 108609, 108872, 156009, 223650, 237665, 254674]


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 30), st.integers(0, 200), st.integers(0, 2**32 - 1))
def test_buckets_are_sorted(bits: int, count: int, seed: int) -> None:
    numbers = np.random.default_rng(seed).integers(0, 2**bits, count + 3).astype(np.uint32)
    expected = np.r_[np.sort(numbers[:count]), numbers[count:]]
    sort_buckets(numbers, np.empty_like(numbers), count, bits)
    assert np.array_equal(numbers, expected)


def test_word_characters_are_nearly_those_of_unicode() -> None:
    """Our fixed table against Python's: they may differ in what is rare, not in living alphabets."""
    for first, last in [(0x20, 0x7E), (0xC0, 0x24F), (0x391, 0x3A1), (0x410, 0x44F), (0x4E00, 0x9FA5)]:
        for code in range(first, last + 1):
            assert bool(is_word_character(code)) == bool(re.match(r"\w", chr(code))), hex(code)
    for mark in "   —–“”‘’…«»¡¿、。「」！？（），：；\u3000→≤■☎":
        assert not is_word_character(ord(mark)), mark
    for sign in "ªµº_ßİ्々😀０Ａｚ":
        assert is_word_character(ord(sign)), sign


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bits": 0}, "bits must be from 1 to 30, got 0"),
        ({"bits": 31}, "bits must be from 1 to 30, got 31"),
        ({"bits": 18.0}, "bits must be an integer, got 18.0"),
        ({"bits": True}, "bits must be an integer"),
        ({"ngram_range": None}, "both None"),
        ({"ngram_range": (0, 1)}, r"ngram_range must be a pair .* got \(0, 1\)"),
        ({"ngram_range": (2, 1)}, "ngram_range must be a pair"),
        ({"ngram_range": (1, 21)}, "ngram_range must be a pair"),
        ({"ngram_range": 2}, "ngram_range must be a pair"),
        ({"ngram_range": (1, 1.5)}, "ngram_range must be a pair"),
        ({"char_ngram_range": ("a", "b")}, "char_ngram_range must be a pair"),
    ],
)
def test_hashing_parameters_are_checked(options: dict[str, Any], message: str) -> None:
    for call in (lambda v: v.fit(TEXTS), lambda v: v.transform(TEXTS)):
        with pytest.raises(ValueError, match=message):
            call(HashingText(**options))


def test_hashing_is_saved_with_its_parameters(tmp_path: Path) -> None:
    vectorizer = HashingText(bits=10, ngram_range=(1, 3), char_ngram_range=(2, 4), log_counts=False)
    save(vectorizer, tmp_path / "h.treemax")
    loaded = load(tmp_path / "h.treemax")
    assert loaded.get_params() == vectorizer.get_params()
    assert equal(loaded.transform(TEXTS), vectorizer.transform(TEXTS))


@pytest.mark.parametrize("change", [{"hash": 2}, {"parameters": {"bits": 99}}, {"parameters": 3}])
def test_hashing_of_another_kind_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    header, arrays = HashingText().to_parts()
    write_model(tmp_path / "h.treemax", {"class": "HashingText", "state": {**header, **change}}, arrays)
    with pytest.raises(ModelFileError, match="are not those of a HashingText"):
        load(tmp_path / "h.treemax")


@pytest.mark.slow
def test_kernels_stay_within_their_arrays(tmp_path: Path) -> None:
    """The tightest texts (words of one letter, lone bytes of each length) with bounds checked."""
    program = """
from treemax.text.vectorizers import HashingText
texts = ["a", "a a", "a b c d e f g", "", "é", "模", "😀", "a\\ud800", " ", "ab" * 40]
for characters in (None, (1, 1), (1, 4)):
    for bits in (1, 12):
        HashingText(bits=bits, ngram_range=(1, 3), char_ngram_range=characters).transform(texts)
"""
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


# --- in scikit-learn's manner --------------------------------------------------------------------------


@pytest.mark.parametrize("vectorizer", [TfidfText(min_df=1), HashingText(bits=8)], ids=["tfidf", "hashing"])
def test_vectorisers_work_in_a_pipeline(vectorizer: Any) -> None:
    pipeline = make_pipeline(clone(vectorizer), LogisticRegression())
    pipeline.fit(TEXTS * 3, LABELS * 3)
    assert pipeline.predict(TEXTS[:2]).tolist() == ["cat", "dog"]
    twin = pickle.loads(pickle.dumps(pipeline))
    assert np.array_equal(twin.predict_proba(TEXTS), pipeline.predict_proba(TEXTS))
    assert clone(pipeline).get_params()[f"{type(vectorizer).__name__.lower()}__ngram_range"] == (1, 1)


# --- the text model ------------------------------------------------------------------------------------


@saveable
class DummyCentroids(ClassifierMixin, BaseEstimator):
    """Sums of rows by label: the least that learns, continues and saves."""

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def fit(self, X: Any, y: Any) -> DummyCentroids:
        if len(y) != X.shape[0]:
            raise ValueError("lengths differ")
        self.labels_, self.sums_ = [], np.zeros((0, X.shape[1]), np.float32)
        return self.partial_fit(X, y)

    def partial_fit(self, X: Any, y: Any) -> DummyCentroids:
        if not hasattr(self, "labels_"):
            return self.fit(X, y)
        labels = list(dict.fromkeys([*self.labels_, *y]))
        sums = np.zeros((len(labels), X.shape[1]), np.float32)
        sums[: len(self.sums_)] = self.sums_
        np.add.at(sums, [labels.index(label) for label in y], self.scale * X.toarray())
        self.labels_, self.sums_ = labels, sums
        return self

    @property
    def classes_(self) -> np.ndarray:
        return np.array(self.labels_)

    def predict_proba(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        scores = np.exp(X @ self.sums_.T)
        return scores / scores.sum(axis=1, keepdims=True)

    def predict(self, X: Any) -> np.ndarray:
        return self.classes_[self.predict_proba(X).argmax(axis=1)]

    def predict_topk(self, X: Any, k: int) -> tuple[np.ndarray, np.ndarray]:
        scores = self.predict_proba(X)
        order = np.argsort(-scores, axis=1)[:, :k]
        return self.classes_[order], np.take_along_axis(scores, order, axis=1)

    def to_parts(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"scale": self.scale, "labels": self.labels_}, {"sums": self.sums_}

    @classmethod
    def from_parts(cls, header: dict[str, Any], arrays: dict[str, Any]) -> DummyCentroids:
        model = cls(header["scale"])
        model.labels_, model.sums_ = header["labels"], arrays["sums"]
        return model


VECTORIZERS = [TfidfText(min_df=1), HashingText(bits=8, char_ngram_range=(2, 3))]


@pytest.fixture(params=VECTORIZERS, ids=["tfidf", "hashing"])
def model(request: pytest.FixtureRequest) -> TextModel:
    return TextModel(clone(request.param), DummyCentroids())


def test_the_model_is_its_two_parts(model: TextModel) -> None:
    assert model.fit(TEXTS, LABELS) is model
    X = model.vectorizer.transform(TEXTS)
    assert np.array_equal(model.predict(TEXTS), model.estimator.predict(X))
    assert np.array_equal(model.predict_proba(TEXTS), model.estimator.predict_proba(X))
    for ours, theirs in zip(model.predict_topk(TEXTS, k=2), model.estimator.predict_topk(X, 2)):
        assert np.array_equal(ours, theirs)
    assert model.score(TEXTS, LABELS) == model.estimator.score(X, LABELS)
    weights = [1, 2, 3, 4, 5, 6]
    assert model.score(TEXTS, LABELS, weights) == model.estimator.score(X, LABELS, weights)
    assert model.classes_.tolist() == ["cat", "dog", "none"]


def test_the_model_is_saved_as_one(model: TextModel, tmp_path: Path) -> None:
    path = tmp_path / "m.treemax"
    model.fit(TEXTS, LABELS).save(path)
    loaded = load(path)
    assert type(loaded) is TextModel and type(loaded.estimator) is DummyCentroids
    assert type(loaded.vectorizer) is type(model.vectorizer)
    assert np.array_equal(loaded.predict_proba(TEXTS), model.predict_proba(TEXTS))
    names = set(read_model(path)[1])
    assert "estimator/sums" in names
    assert all(name.startswith(("vectorizer/", "estimator/")) for name in names)
    loaded.partial_fit(["a new text"], ["new"])
    assert "new" in loaded.classes_ and "new" not in model.classes_


def test_streams_need_a_vectoriser_that_is_ready() -> None:
    with pytest.raises(NotFittedError, match=r"unfitted TfidfText.*HashingText"):
        TextModel(TfidfText(), DummyCentroids()).partial_fit(TEXTS, LABELS)
    TextModel(TfidfText().fit(TEXTS), DummyCentroids()).partial_fit(TEXTS, LABELS)
    stream = TextModel(HashingText(bits=8), DummyCentroids())
    for text, label in zip(TEXTS, LABELS):
        stream.partial_fit([text], [label])
    whole = TextModel(HashingText(bits=8), DummyCentroids()).fit(TEXTS, LABELS)
    assert np.allclose(stream.predict_proba(TEXTS), whole.predict_proba(TEXTS))


def test_what_the_estimator_cannot_the_model_cannot() -> None:
    class Bare(BaseEstimator):
        def fit(self, X: Any, y: Any) -> Bare:
            return self

        def __sklearn_is_fitted__(self) -> bool:
            return True

    model = TextModel(HashingText(), Bare())
    assert not hasattr(model, "partial_fit") and not hasattr(model, "predict_proba")
    assert not hasattr(model, "classes_") and not hasattr(model, "anything")
    with pytest.raises(ModelFileError, match="A Bare cannot be saved"):
        model.save("unused.treemax")
    assert not Path("unused.treemax").exists()


def test_a_refused_fit_leaves_the_model_as_it_was(model: TextModel) -> None:
    model.fit(TEXTS, LABELS)
    before = model.predict_proba(TEXTS)
    for texts, labels in [(["other words only"] * 2, ["cat"]), (["a", None], LABELS[:2]), (TEXTS, LABELS[1:])]:
        with pytest.raises(ValueError, match=r"lengths differ|Row 1"):
            model.fit(texts, labels)
        assert np.array_equal(model.predict_proba(TEXTS), before)


def test_an_interrupted_fit_keeps_what_was_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    model = TextModel(TfidfText(min_df=1), DummyCentroids()).fit(TEXTS, LABELS)
    fit = DummyCentroids.fit

    def interrupted(self: DummyCentroids, X: Any, y: Any) -> None:
        fit(self, X, y)
        raise TrainingInterrupted(None, 0.5)

    monkeypatch.setattr(DummyCentroids, "fit", interrupted)
    with pytest.raises(TrainingInterrupted):
        model.fit(["other words", "quite different"], ["x", "y"])
    assert model.predict(["words", "different"]).tolist() == ["x", "y"]


def test_with_a_real_estimator(tmp_path: Path) -> None:
    model = TextModel(TfidfText(min_df=1), OneVsAll(passes=5)).fit(TEXTS, LABELS)
    for options in ({}, {"resume": True}):
        model.save(tmp_path / "m.treemax", **options)
        loaded = load(tmp_path / "m.treemax")
        ours, theirs = loaded.predict_topk(TEXTS, 2), model.predict_topk(TEXTS, 2)
        assert np.array_equal(ours.labels, theirs.labels)
        assert np.allclose(ours.scores, theirs.scores, rtol=1e-5)
        assert loaded.label_index_.classes.tolist() == model.classes_.tolist()
        assert loaded.describe()["vectorizer"] == "TfidfText"


def test_an_unfitted_model_says_so(model: TextModel, tmp_path: Path) -> None:
    for call in (lambda: model.predict(TEXTS), lambda: model.predict_topk(TEXTS, 2), lambda: check_is_fitted(model)):
        with pytest.raises(NotFittedError):
            call()
    with pytest.raises(NotFittedError):
        model.save(tmp_path / "m.treemax")
    assert list(tmp_path.iterdir()) == []


def test_clone_copy_pickle_and_cross_validation(model: TextModel) -> None:
    model.set_params(estimator__scale=2.0).fit(TEXTS, LABELS)
    fresh = clone(model)
    assert fresh.estimator.scale == 2.0 and not hasattr(fresh, "classes_")
    for twin in (copy.deepcopy(model), copy.copy(model), pickle.loads(pickle.dumps(model))):
        assert np.array_equal(twin.predict_proba(TEXTS), model.predict_proba(TEXTS))
    assert cross_val_score(fresh, TEXTS * 3, LABELS * 3, cv=3).min() > 0


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({}, "are not those of a TextModel"),
        ({"vectorizer": {"class": "HashingText", "state": {}}, "estimator": {}}, "are not those of a HashingText"),
        ({"vectorizer": {"class": "Gone", "state": {}}, "estimator": {}}, "'Gone'.*newer Treemax"),
        ({"vectorizer": "HashingText"}, "are not those of a TextModel"),
    ],
)
def test_a_damaged_model_is_refused(tmp_path: Path, header: dict[str, Any], message: str) -> None:
    write_model(tmp_path / "m.treemax", {"class": "TextModel", "state": header}, {})
    with pytest.raises(ModelFileError, match=message):
        load(tmp_path / "m.treemax")


def test_parts_of_the_wrong_kind_are_refused(tmp_path: Path) -> None:
    (header, arrays) = DummyCentroids().fit(sp.eye(2).tocsr(), ["a", "b"]).to_parts()
    piece = {"class": "DummyCentroids", "state": header}
    both = {**prefixed("vectorizer", arrays), **prefixed("estimator", arrays)}
    content = {"class": "TextModel", "state": {"vectorizer": piece, "estimator": piece}}
    write_model(tmp_path / "m.treemax", content, both)
    with pytest.raises(ModelFileError, match="do not go together"):
        load(tmp_path / "m.treemax")
