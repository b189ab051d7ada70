"""Data sets of Hugging Face; `tests/formats/test_arrow.py` has imitations of them."""

from __future__ import annotations

import numpy as np
import pytest

import treemax
from treemax.formats import open_examples, read_examples

datasets = pytest.importorskip("datasets")


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    words = rng.choice(["red", "green", "fast", "slow", "loud"], (2500, 3)).tolist()
    names = datasets.ClassLabel(names=["fast", "green", "loud", "red", "slow"])
    features = datasets.Features({"text": datasets.Value("string"), "label": names})
    columns = {"text": [" ".join(row) for row in words], "label": [row[0] for row in words]}
    return datasets.Dataset.from_dict(columns, features=features)


def test_whole_data_sets(data):
    found = read_examples(data)
    assert found.texts == list(data["text"])
    assert [labels[0] for labels in found.labels] == list(data["label"])
    assert read_examples(data.select(range(10, 20))).texts == list(data["text"])[10:20]
    assert read_examples(data.with_format("numpy")).texts == found.texts


def test_streamed_data_sets(data):
    streamed = data.to_iterable_dataset(num_shards=3)
    assert read_examples(streamed).texts == list(data["text"])
    upper = streamed.map(lambda row: {"text": row["text"].upper()})
    with open_examples(upper, chunk_rows=100) as reader:
        assert next(iter(reader)).texts == [text.upper() for text in data["text"][:100]]
    models = [
        treemax.TextModel(treemax.HashingText(bits=10), treemax.OnlineLabelTree()).fit_stream(source)
        for source in (data, streamed)
    ]
    answers = [model.predict_topk(list(data["text"]), 3).scores.tobytes() for model in models]
    assert answers[0] == answers[1]
    assert models[0].score(list(data["text"]), list(data["label"])) > 0.5


def test_splits_must_be_chosen(data):
    with pytest.raises(ValueError, match="splits train, test: choose one"):
        read_examples(data.train_test_split(0.1))


def test_numbers(data):
    rows = datasets.Dataset.from_dict({"indices": [[1, 3], [0]], "values": [[1.0, 2.0], [3.0]], "labels": [["a"], []]})
    found = read_examples(rows)
    assert found.rows.to_scipy().toarray().tolist() == [[0, 1, 0, 2], [3, 0, 0, 0]]
    assert list(found.labels) == [["a"], []]
