"""Predictions added to Arrow tables: what the workers of Ray Data do, without Ray."""

import numpy as np
import pyarrow as pa
import pytest

import treemax
from treemax.parallel.ray_data import Answering

TEXTS = ["red apple", "green apple", "fast car", "red car"] * 10
LABELS = ["fruit", "fruit", "vehicle", "vehicle"] * 10


@pytest.fixture(scope="module")
def text_model(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "text.treemax"
    treemax.TextModel(treemax.HashingText(bits=8), treemax.LabelTree(verbose=0)).fit(TEXTS, LABELS).save(path)
    return str(path)


def test_texts(text_model):
    table = pa.table({"text": TEXTS[:4], "id": [1, 2, 3, 4]})
    found = Answering(text_model, 2)(table)
    assert found.column_names == ["text", "id", "predicted", "scores"]
    assert [labels[0] for labels in found["predicted"].to_pylist()] == LABELS[:4]
    expected = treemax.load(text_model).predict_topk(TEXTS[:4], 2)
    np.testing.assert_array_equal(np.array(found["scores"].to_pylist(), np.float32), expected.scores)
    empty = Answering(text_model, 2)(table[:0])
    assert empty.num_rows == 0 and empty.schema == found.schema, "one kind of column, also without rows"


def test_numbers_and_fewer_answers_than_were_asked_for(tmp_path):
    X = np.random.RandomState(0).normal(size=(60, 3)).astype(np.float32)
    y = np.arange(60) % 4
    treemax.SoftmaxTree(depth=1, leaf_classes=2, iterations=1, growth=1.0, verbose=0).fit(X, y).save(tmp_path / "m")
    table = pa.table({"features": pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), 3)})
    found = Answering(str(tmp_path / "m"), 4)(table)
    assert found["predicted"].type == pa.list_(pa.int64())
    expected = treemax.load(tmp_path / "m").predict_topk(X, 4).labels
    for labels, scores, own in zip(found["predicted"].to_pylist(), found["scores"].to_pylist(), expected, strict=True):
        assert labels == [label for label in own if label is not None] and len(scores) == len(labels) <= 2


def test_what_does_not_fit_is_refused(text_model):
    with pytest.raises(ValueError, match="trained on text, but the data holds features"):
        Answering(text_model, 1)(pa.table({"a": [1.0], "b": [2.0]}))
    with pytest.raises(ValueError, match="already has a column 'scores'"):
        Answering(text_model, 1)(pa.table({"text": ["x"], "scores": [1]}))
    with pytest.raises(ValueError, match="row 1"):
        Answering(text_model, 1)(pa.table({"text": ["x", None]}))
