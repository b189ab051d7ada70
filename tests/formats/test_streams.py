"""Chunks from every kind of source, with memory that does not grow with their number."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

import treemax
from treemax.formats import FORMATS, Examples, open_examples, write_examples
from treemax.inputs.labels import read_labels
from treemax.inputs.rows import SparseRows

ONLINE = ("OneVsAll", "OnlineLabelTree", "RecallTree", "LOMTree", "LearnedTree")


def chunk(seed: int, n_rows: int = 500, n_features: int = 500, width: int = 20) -> Examples:
    rng = np.random.default_rng(seed)
    starts = np.arange(0, n_rows * width + 1, width)
    columns = rng.permuted(np.tile(np.arange(n_features, dtype=np.uint32), (n_rows, 1)), axis=1)[:, :width]
    rows = SparseRows(
        starts, np.sort(columns, axis=1).ravel(), rng.random(n_rows * width, dtype=np.float32), n_features
    )
    return Examples(read_labels([[int(label)] for label in columns[:, 0] % 10]), rows)


def texts(seed: int, n_rows: int = 500) -> Examples:
    rng = np.random.default_rng(seed)
    words = rng.integers(0, 300, (n_rows, 12))
    return Examples(
        read_labels([[f"label{row[0] % 10}"] for row in words]),
        texts=[" ".join(map("word{}".format, row)) for row in words],
    )


# --- reading -------------------------------------------------------------------------------------------


def peak_of_reading(path: Path, format: str) -> int:
    tracemalloc.start()
    try:
        with open_examples(path, format, chunk_rows=500) as reader:
            assert sum(map(len, reader)) > 0
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
def test_reading_takes_the_same_memory_however_long_the_file(format, tmp_path):
    def parts(count: int):
        return (texts(seed) if format in ("fasttext", "csv", "tsv") else chunk(seed, width=10) for seed in range(count))

    n_chunks = 10 if format == "jsonl" else 30  # a few blocks of the file, and three times as many
    for name, count in (("short", n_chunks), ("long", 3 * n_chunks)):
        write_examples(tmp_path / name, parts(count), format)
    short, long = (peak_of_reading(tmp_path / name, format) for name in ("short", "long"))
    assert long < 1.5 * short + 300_000


# --- learning ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ONLINE)
def test_a_stream_teaches_what_its_chunks_teach(name, tmp_path):
    chunks = [chunk(seed, 100) for seed in range(4)]
    write_examples(tmp_path / "stream.npz", chunks)
    by_hand, by_file, by_chunks = (getattr(treemax, name)(random_state=0) for _ in range(3))
    for part in chunks:
        by_hand.partial_fit(part.X, part.y)
    by_file.fit_stream(tmp_path / "stream.npz", chunk_rows=100)
    by_chunks.fit_stream((part.X, part.y) for part in chunks)
    answers = [model.predict_topk(chunks[0].X, 3).scores.tobytes() for model in (by_hand, by_file, by_chunks)]
    assert answers[0] == answers[1] == answers[2]
    assert by_file.n_examples_ == 400


def test_rows_without_a_label_are_left_out_where_rows_have_one(tmp_path):
    path = tmp_path / "stream.jsonl"
    lines = [{"text": f"word{i}", "labels": [i % 3] if i % 4 else []} for i in range(40)]
    path.write_text("\n".join(map(json.dumps, lines)))
    model = treemax.TextModel(treemax.HashingText(), treemax.OneVsAll(verbose=0)).fit_stream(path, chunk_rows=7)
    assert model.n_examples_ == 30 and not model.multi_label_
    model = treemax.TextModel(treemax.HashingText(), treemax.OneVsAll(verbose=0))
    model.fit_stream(path, chunk_rows=7, multi_label=True)
    assert model.n_examples_ == 40 and model.multi_label_
    model.fit_stream(path, chunk_rows=7)  # goes on as it began
    assert model.n_examples_ == 80


def test_several_labels_after_one_are_refused(tmp_path):
    path = tmp_path / "stream.jsonl"
    path.write_text('{"text": "a", "labels": [1]}\n' * 9 + '{"text": "b", "labels": [1, 2]}\n')
    model = treemax.TextModel(treemax.HashingText(), treemax.OnlineLabelTree())
    with pytest.raises(ValueError, match=r"example 10 has several labels.*pass multi_label=True"):
        model.fit_stream(path, chunk_rows=4)
    assert model.n_examples_ == 8  # what came before is learned


def test_chunks_that_are_none_are_refused():
    model = treemax.OneVsAll(verbose=0)
    with pytest.raises(ValueError, match="chunk 0 of the stream is a ndarray, not a pair"):
        model.fit_stream([np.zeros(3)])
    with pytest.raises(ValueError, match="format: only files and tables have reading options"):
        model.fit_stream([], format="npz")


SCRIPT = """
import sys, numpy as np, scipy.sparse as sp, treemax

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

def stream(n_chunks):
    rng = np.random.default_rng(0)
    for number in range(n_chunks):
        if number == n_chunks // 5:
            marks.append(resident())
        columns = rng.integers(0, 2000, 400 * 400).astype(np.int32)
        X = sp.csr_matrix((rng.random(400 * 400, dtype=np.float32), columns, np.arange(0, 400 * 400 + 1, 400)),
                          shape=(400, 2000))
        X.sum_duplicates()
        yield X, columns[::400] % 10

for name in sys.argv[1:]:
    marks = []
    getattr(treemax, name)().fit_stream(stream(5))  # what is compiled and loaded once
    marks = []
    getattr(treemax, name)().fit_stream(stream(40))
    print(name, (resident() - marks[0]) / 1e6)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="asks Linux how much memory there is in use")
def test_learning_takes_no_more_memory_as_the_stream_goes_on():
    """40 chunks of 400 rows of 400 numbers are 51 MB; what stays is the model, of labels and features all seen
    in the first fifth."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *ONLINE], capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": str(Path(treemax.__file__).parents[1])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    grown = dict(line.split() for line in done.stdout.splitlines())
    assert set(grown) == set(ONLINE)
    for name, megabytes in grown.items():
        assert float(megabytes) < 25, f"{name} grew by {megabytes} MB"


@pytest.mark.parametrize("name", ONLINE)
def test_a_warning_about_a_fresh_start_names_the_line_of_the_caller(name, tmp_path):
    X, y = np.eye(4, dtype=np.float32), ["a", "b", "c", "d"]
    getattr(treemax, name)(verbose=0).partial_fit(X, y).save(tmp_path / "model.treemax")
    with pytest.warns(UserWarning, match="without its learning state") as told:
        treemax.load(tmp_path / "model.treemax").partial_fit(X, y)
    assert [warning.filename for warning in told] == [__file__]


def labelled_rows(n_rows, n_labels):
    y = np.random.default_rng(0).integers(0, n_labels, n_rows)
    return np.cos(np.outer(y + 1, np.arange(1, 9))).astype(np.float32), y


@pytest.mark.slow
@pytest.mark.parametrize("name", ONLINE)
def test_at_the_bound_new_labels_are_left_out_and_known_ones_are_learned(name, tmp_path):
    X, y = labelled_rows(200, 30)
    first = list(dict.fromkeys(y.tolist()))[:5]
    bounded, plain = (getattr(treemax, name)(verbose=0) for _ in range(2))
    bounded.set_params(max_labels=5)
    with pytest.warns(UserWarning, match="max_labels=5") as told:
        for part in np.array_split(np.arange(200), 7):
            bounded.partial_fit(X[part], y[part])
            known = part[np.isin(y[part], first)]
            if len(known):
                plain.partial_fit(X[known], y[known])
    assert len(told) == 1 and told[0].filename == __file__
    assert bounded.classes_.tolist() == first and bounded.n_examples_ == np.isin(y, first).sum()
    assert bounded.label_counts_.tolist() == [int((y == label).sum()) for label in first]
    np.testing.assert_array_equal(bounded.predict_topk(X, 3).scores, plain.predict_topk(X, 3).scores)
    bounded.save(tmp_path / "model.treemax", resume=True)
    loaded = treemax.load(tmp_path / "model.treemax")
    with pytest.warns(UserWarning, match="max_labels=5"):
        loaded.partial_fit(X, y)
    assert loaded.max_labels == 5 and loaded.classes_.tolist() == first


@pytest.mark.parametrize("name", ONLINE)
def test_sparse_rows_may_all_be_left_out_at_the_bound(name):
    X = sp.csr_matrix(np.eye(6, dtype=np.float32))
    model = getattr(treemax, name)(verbose=0, max_labels=3).partial_fit(X[:3], ["a", "b", "c"])
    before = model.predict_topk(X, 3).scores
    with pytest.warns(UserWarning, match="max_labels=3"):
        model.partial_fit(X[3:], ["d", "e", "f"])
    assert model.n_examples_ == 3 and (model.predict_topk(X, 3).scores == before).all()


@pytest.mark.parametrize("name", ["OneVsAll", "OnlineLabelTree", "LearnedTree"])
def test_rows_keep_the_labels_that_are_known_at_the_bound(name):
    X = np.eye(5, dtype=np.float32)
    bounded, plain = (getattr(treemax, name)(verbose=0) for _ in range(2))
    with pytest.warns(UserWarning, match="max_labels=2"):
        bounded.set_params(max_labels=2).partial_fit(X, [["a"], ["b", "c"], ["c"], [], ["d", "a"]])
    plain.partial_fit(X[[0, 1, 3, 4]], [["a"], ["b"], [], ["a"]])
    assert bounded.classes_.tolist() == ["a", "b"] and bounded.n_examples_ == 4
    np.testing.assert_array_equal(bounded.predict_proba(X), plain.predict_proba(X))
    before = bounded.predict_proba(X)
    bounded.partial_fit(X[:2], [["e"], ["f"]])
    assert bounded.n_examples_ == 4 and (bounded.predict_proba(X) == before).all()


@pytest.mark.parametrize("name", ONLINE)
def test_more_labels_than_the_bound_are_refused_where_all_of_them_are_meant(name):
    X, y = labelled_rows(60, 10)
    model = getattr(treemax, name)(verbose=0, max_labels=4)
    with pytest.raises(ValueError, match=r"10 labels are more than \w+ allows \(max_labels=4\)"):
        model.fit(X, y)
    with pytest.raises(ValueError, match="5 labels are more than"):
        model.partial_fit(X[:1], [1], classes=[1, 2, 3, 4, 5])
    for wrong in (0, 2.5, "many"):
        with pytest.raises(ValueError, match="max_labels must be"):
            model.set_params(max_labels=wrong).partial_fit(X, y)
    few = y < 4
    assert model.set_params(max_labels=4).fit(X[few], y[few]).predict(X[few]).max() < 4
