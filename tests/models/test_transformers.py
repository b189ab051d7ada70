"""Transformers of scikit-learn in TextModel, saved without pickle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer, TfidfTransformer, TfidfVectorizer
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MaxAbsScaler,
    MinMaxScaler,
    Normalizer,
    QuantileTransformer,
    StandardScaler,
)

import treemax
import treemax.models.transformers
from treemax.modelfile import ModelFileError, load, object_parts, save, write_model

TEXTS = ["Red apple", "green apple", "fast car", "red Car", "größer", ""] * 3
KINDS = ["fruit", "fruit", "vehicle", "vehicle", "other", "other"] * 3
DENSE = np.random.default_rng(0).normal(size=(18, 4))
TEXT_TRANSFORMERS = [
    TfidfVectorizer(),
    TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, stop_words=["fast"], dtype=np.float32, min_df=2),
    TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 3), use_idf=False, norm=None),
    TfidfVectorizer(vocabulary=["apple", "car", "unseen"]),
    CountVectorizer(binary=True, max_features=3),
    HashingVectorizer(n_features=64, alternate_sign=False, norm="l1"),
    make_pipeline(CountVectorizer(), TfidfTransformer(), MaxAbsScaler(), "passthrough"),
    make_pipeline(TfidfVectorizer(), TruncatedSVD(3), StandardScaler(), Normalizer()),
    make_pipeline(TfidfVectorizer(), StandardScaler(with_mean=False)),
    FeatureUnion(
        [("words", TfidfVectorizer()), ("characters", HashingVectorizer(n_features=32, analyzer="char"))],
        transformer_weights={"words": 2.0},
    ),
]


def same(one: Any, other: Any) -> None:
    if sp.issparse(one):
        assert one.dtype == other.dtype
        one, other = one.toarray(), other.toarray()
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("transformer", TEXT_TRANSFORMERS, ids=lambda made: type(made).__name__)
def test_a_transformer_of_texts_comes_back(transformer: Any, tmp_path: Path) -> None:
    transformer.fit(TEXTS)
    save(transformer, tmp_path / "t.treemax")
    loaded = load(tmp_path / "t.treemax")
    more = [*TEXTS[:6], "apple apple car unseen word", "x"]
    same(transformer.transform(more), loaded.transform(more))
    assert str(loaded.get_params()) == str(transformer.get_params())
    save(loaded, tmp_path / "again.treemax")
    assert (tmp_path / "again.treemax").read_bytes() == (tmp_path / "t.treemax").read_bytes()
    loaded.fit(TEXTS)  # as new


@pytest.mark.parametrize(
    "transformer",
    [StandardScaler(), StandardScaler(with_std=False), MaxAbsScaler(), MinMaxScaler(feature_range=(-1, 1)), Normalizer("l1")],
)  # fmt: skip
def test_a_transformer_of_vectors_comes_back(transformer: Any, tmp_path: Path) -> None:
    transformer.fit(DENSE)
    save(transformer, tmp_path / "t.treemax")
    same(transformer.transform(DENSE), load(tmp_path / "t.treemax").transform(DENSE))


@pytest.mark.parametrize("vectorizer", [TfidfVectorizer(), TEXT_TRANSFORMERS[-1]])
def test_a_text_model_of_them_is_saved(vectorizer: Any, tmp_path: Path) -> None:
    model = treemax.TextModel(vectorizer, treemax.OneVsAll(passes=5)).fit(TEXTS, KINDS)
    model.save(tmp_path / "m.treemax")
    loaded = treemax.load(tmp_path / "m.treemax")
    expected, found = (each.predict_topk(["a red apple", "cars"], 2) for each in (model, loaded))
    assert expected.labels.tolist() == found.labels.tolist()
    np.testing.assert_array_equal(expected.scores, found.scores)
    assert loaded.describe()["vectorizer"] == type(vectorizer).__name__


def test_the_parts_of_a_pipeline_make_a_text_model(tmp_path: Path) -> None:
    pipeline = make_pipeline(TfidfVectorizer(), treemax.OneVsAll(passes=5)).fit(TEXTS, KINDS)
    model = treemax.TextModel(pipeline[:-1], pipeline[-1])
    assert model.predict(TEXTS).tolist() == pipeline.predict(TEXTS).tolist()
    model.save(tmp_path / "m.treemax")
    loaded = treemax.load(tmp_path / "m.treemax")
    assert loaded.predict_topk(TEXTS, 1).labels[:, 0].tolist() == pipeline.predict(TEXTS).tolist()


@pytest.mark.parametrize(
    ("vectorizer", "message"),
    [
        (TfidfVectorizer(tokenizer=str.split), r"TfidfVectorizer\(tokenizer=<method 'split'.*cannot be saved"),
        (HashingVectorizer(preprocessor=str.lower, n_features=32), r"HashingVectorizer\(preprocessor="),
        (make_pipeline(TfidfVectorizer(), FunctionTransformer(abs)), "A FunctionTransformer cannot be saved"),
        (make_pipeline(TfidfVectorizer(), TruncatedSVD(2), QuantileTransformer(n_quantiles=5)),
         "A QuantileTransformer cannot be saved .* HashingVectorizer, Normalizer, TfidfTransformer"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:The parameter 'token_pattern'")
def test_what_cannot_be_saved_is_named(vectorizer: Any, message: str, tmp_path: Path) -> None:
    model = treemax.TextModel(vectorizer, treemax.OneVsAll(passes=2)).fit(TEXTS, KINDS)
    with pytest.raises(ModelFileError, match=message):
        model.save(tmp_path / "m.treemax")
    assert list(tmp_path.iterdir()) == []


def test_a_subclass_is_not_saved_as_its_base(tmp_path: Path) -> None:
    class Own(TfidfVectorizer):
        pass

    with pytest.raises(ModelFileError, match="A Own cannot be saved"):
        save(Own().fit(TEXTS), tmp_path / "t.treemax")


@pytest.mark.parametrize(
    ("transformer", "change"),
    [
        (TfidfVectorizer(), {"idf": np.ones(2)}),
        (TfidfVectorizer(), {"idf": np.full(6, np.nan)}),
        (make_pipeline(TfidfVectorizer(), MaxAbsScaler()), {"1/scale": np.ones((6, 1))}),
        (TfidfVectorizer(), {"parameters": {"input": "filename"}}),
        (TfidfVectorizer(), {"parameters": {"tokenizer": {"import": "os.system"}}}),
        (TfidfVectorizer(), {"parameters": {"norm": "l3"}}),
        (HashingVectorizer(), {"parameters": {"n_features": -1}}),
        (Pipeline([("a", TfidfVectorizer())]), {"steps": [["a", {"class": "OneVsAll", "state": {}}]]}),
        (Pipeline([("a", TfidfVectorizer())]), {"steps": [["a", {"class": "sklearn.Unheard", "state": {}}]]}),
        (Pipeline([("a", TfidfVectorizer())]), {"steps": [["a", "os.system"]]}),
    ],
)
def test_forged_files_are_refused(transformer: Any, change: dict[str, Any], tmp_path: Path) -> None:
    header, arrays = object_parts(transformer.fit(TEXTS))
    state = header["state"]
    for name, value in change.items():
        if isinstance(value, np.ndarray):
            assert name in arrays
            arrays[name] = value
        else:
            state[name] = {**state[name], **value} if isinstance(value, dict) else value
    write_model(tmp_path / "t.treemax", header, arrays)
    with pytest.raises(ModelFileError):
        load(tmp_path / "t.treemax", verify=False)
