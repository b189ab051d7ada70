"""Weights of examples: read from vw, JSON lines and CSV, kept by slices and chunks, and used by fit and stream."""

import json

import numpy as np
import pytest

import treemax
from treemax.formats import Examples, open_examples, read_examples, write_examples
from treemax.formats.examples import concatenate, keep_where
from treemax.formats.training_rows import training_chunks
from treemax.inputs.labels import read_labels

ROWS = [("red apple", "fruit", 2.5), ("green pear", "fruit", 0), ("fast car", "vehicle", 1)]
FILES = {
    "a.jsonl": "".join(
        json.dumps({"text": text, "label": label, **({} if weight == 1 else {"weight": weight})}) + "\n"
        for text, label, weight in ROWS
    ),
    "a.csv": "text,label,importance\n" + "".join(f"{text},{label},{weight}\n" for text, label, weight in ROWS),
    "a.vw": "".join(f"{label} {weight} | {text}\n" for text, label, weight in ROWS),
}


@pytest.fixture(params=FILES)
def path(request, tmp_path):
    (tmp_path / request.param).write_text(FILES[request.param])
    return tmp_path / request.param


def column(path):
    return {"weight_column": "importance"} if path.suffix == ".csv" else {}


def test_the_weights_of_a_file_are_read(path):
    examples = read_examples(path, **column(path))
    assert examples.weights.dtype == np.float32 and examples.weights.tolist() == [2.5, 0, 1]
    assert examples[1:].weights.tolist() == [0, 1]
    with open_examples(path, chunk_rows=2, **column(path)) as reader:
        assert [chunk.weights.tolist() for chunk in reader] == [[2.5, 0], [1]]
    chunks = list(training_chunks(path, 1, **column(path)))
    assert [weights.tolist() for _, _, weights in chunks] == [[2.5], [1]], "a chunk of weight zero is left out"


def test_a_file_without_weights_has_none(tmp_path):
    (tmp_path / "a.vw").write_text("fruit | red\nvehicle 1 | fast\n")
    assert read_examples(tmp_path / "a.vw").weights is None
    (tmp_path / "a.csv").write_text("text,label\nred,fruit\n")
    assert read_examples(tmp_path / "a.csv").weights is None


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"text": "a", "label": "b", "weight": "2"}\n', '"weight" is not a number'),
        ("a.jsonl", '{"text": "a", "label": "b", "weight": -1}\n', "the weight is neither 0 nor a number"),
        ("a.csv", "text,label,importance\na,b,many\n", "the weight is neither 0 nor a number"),
        ("a.csv", "text,label\na,b\n", "--weight-column"),
        ("a.vw", "b 1e20 | a\n", "the weight is neither 0 nor a number"),
    ],
)
def test_wrong_weights_are_refused_with_their_line(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(treemax.formats.FormatError, match=message):
        read_examples(tmp_path / name, **column(tmp_path / name))


def test_weights_are_kept_and_written(tmp_path):
    labels = read_labels([["a"], ["b"], ["c"]])
    one = Examples(labels, np.eye(3, dtype=np.float32), weights=np.array([1, 0.5, 3], np.float32))
    two = Examples(labels, np.eye(3, dtype=np.float32))
    assert concatenate([one, two]).weights.tolist() == [1, 0.5, 3, 1, 1, 1] and concatenate([two, two]).weights is None
    assert keep_where(one, np.array([True, False, True])).weights.tolist() == [1, 3]
    for name in ("a.vw", "a.jsonl"):
        write_examples(tmp_path / name, one)
        assert read_examples(tmp_path / name).weights.tolist() == [1, 0.5, 3]
    with pytest.raises(ValueError, match="cannot hold weights"):
        write_examples(tmp_path / "a.svm", one)
    with pytest.raises(ValueError, match="3 rows of labels but 2 weights"):
        Examples(labels, np.eye(3, dtype=np.float32), weights=np.ones(2, np.float32))


def test_streams_learn_with_the_weights_of_their_file(tmp_path):
    lines = [{"text": "red apple", "label": label, "weight": weight} for label, weight in (("a", 0.1), ("b", 4))] * 20
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    texts, y, weights = (list(part) for part in zip(*(line.values() for line in lines)))
    model = treemax.TextModel(treemax.HashingText(), treemax.OnlineLabelTree(verbose=0)).fit_stream(path)
    twin = treemax.TextModel(treemax.HashingText(), treemax.OnlineLabelTree(verbose=0))
    twin.partial_fit(texts, y, sample_weight=weights)
    np.testing.assert_array_equal(model.predict_proba(texts[:1]), twin.predict_proba(texts[:1]))
    assert model.predict(texts[:1]).tolist() == ["b"]
    triples = [(texts[:20], y[:20], weights[:20]), (texts[20:], y[20:], weights[20:])]
    again = treemax.TextModel(treemax.HashingText(), treemax.OnlineLabelTree(verbose=0)).fit_stream(triples)
    np.testing.assert_array_equal(again.predict_proba(texts[:1]), twin.predict_proba(texts[:1]))
