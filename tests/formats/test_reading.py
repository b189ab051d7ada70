"""Data files that are written and read again, whole or in chunks, from files, gzip and standard input."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.datasets import dump_svmlight_file, load_svmlight_file
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import normalize
from sklearn.utils.extmath import row_norms

import treemax
from treemax.formats import (
    FORMATS,
    Examples,
    FormatError,
    detect_format,
    hash_name,
    open_examples,
    read_examples,
    write_examples,
)
from treemax.inputs.labels import read_labels
from treemax.inputs.rows import SparseRows, as_rows

QUICK = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
NUMERIC = ("xmc", "svmlight", "vw", "jsonl", "npz")
TEXTUAL = ("fasttext", "jsonl", "npz", "csv", "tsv")
ONLY_TEXT = ("fasttext", "csv", "tsv")


def sparse_examples(n_rows: int = 300, n_features: int = 50, seed: int = 0) -> Examples:
    rng = np.random.default_rng(seed)
    X = sp.random(n_rows, n_features, 0.2, "csr", np.float32, rng)
    X.data -= np.float32(0.3)
    labels = [rng.choice(30, rng.integers(0, 4), replace=False).tolist() for _ in range(n_rows)]
    labels[0] = [29]
    return Examples(read_labels(labels), as_rows(X))


def text_examples(n_rows: int = 300, seed: int = 0) -> Examples:
    rng = np.random.default_rng(seed)
    words = ["cat", "dog", "Käse", "日本", "a:b", "|", "#", "x\u00a0y"]
    labels = [[f"l{i}" for i in rng.integers(0, 9, rng.integers(0, 3))] for _ in range(n_rows)]
    return Examples(read_labels(labels), texts=[" ".join(rng.choice(words, rng.integers(0, 6))) for _ in range(n_rows)])


def matrix(examples: Examples) -> np.ndarray:
    rows = examples.rows
    return rows.to_scipy().toarray() if isinstance(rows, SparseRows) else np.asarray(rows)


def assert_same(got: Examples, expected: Examples) -> None:
    assert list(got.labels) == list(expected.labels)
    assert got.texts == expected.texts
    if expected.rows is not None:
        width = min(got.rows.shape[1], expected.rows.shape[1])
        assert np.array_equal(matrix(got)[:, :width], matrix(expected)[:, :width])
        assert not matrix(got)[:, width:].any()
        assert not matrix(expected)[:, width:].any()


# Round trips


@pytest.mark.parametrize("format", NUMERIC)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_numbers_come_back(tmp_path, format, suffix):
    examples = sparse_examples()
    path = tmp_path / f"data.{format}{suffix}"
    write_examples(path, examples)
    assert_same(read_examples(path), examples)
    assert (path.read_bytes()[:2] == b"\x1f\x8b") == bool(suffix)


@pytest.mark.parametrize("format", TEXTUAL)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_text_comes_back(tmp_path, format, suffix):
    examples = text_examples()
    path = tmp_path / f"data.{format}{suffix}"
    write_examples(path, examples, format)
    assert_same(read_examples(path, format), examples)


@pytest.mark.parametrize("format", ["jsonl", "npz"])
def test_dense_rows_stay_dense(tmp_path, format):
    rows = np.random.default_rng(0).normal(size=(20, 5)).astype(np.float32)
    write_examples(tmp_path / "data", Examples(read_labels(list("ab" * 10)), rows), format)
    got = read_examples(tmp_path / "data", format)
    assert isinstance(got.rows, np.ndarray)
    assert np.array_equal(got.rows, rows)
    assert got.y.tolist() == list("ab" * 10)


finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
label_lists = st.lists(st.lists(st.integers(0, 2**40), max_size=3), min_size=1, max_size=6)


@pytest.mark.parametrize("format", NUMERIC)
@QUICK
@given(lists=label_lists, data=st.data())
def test_any_finite_number_comes_back(format, lists, data):
    rows = [data.draw(st.dictionaries(st.integers(0, 60), finite, max_size=4)) for _ in lists]
    dense = np.zeros((len(rows), 61), dtype=np.float32)
    for i, row in enumerate(rows):
        dense[i, list(row)] = list(row.values())
    X = sp.csr_matrix(dense)
    sparse = SparseRows(X.indptr.astype(np.int64), X.indices.astype(np.uint32), X.data, 61)
    examples = Examples(read_labels(lists), sparse)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data"
        write_examples(path, examples, format)
        got = read_examples(path, format)
    assert_same(got, examples)


printable = st.text(st.characters(blacklist_categories=("Cs",)), max_size=12)


@pytest.mark.parametrize("format", TEXTUAL)
@QUICK
@given(rows=st.lists(st.tuples(st.lists(printable, max_size=3), printable), min_size=1, max_size=5))
def test_any_text_comes_back(format, rows):
    examples = Examples(read_labels([labels for labels, _ in rows]), texts=[text for _, text in rows])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data"
        try:
            write_examples(path, examples, format)
        except ValueError as error:
            assert format in ONLY_TEXT and "cannot hold the label" in str(error)
            return
        got = read_examples(path, format)
    assert list(got.labels) == list(examples.labels)
    breaks = ("\r\n", "\r", "\n") if format == "fasttext" else ()
    expected = examples.texts
    for line_break in breaks:
        expected = [text.replace(line_break, " ") for text in expected]
    assert got.texts == expected


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("chunk_rows", [1, 7, 64, 299, 300, 301, 10_000])
def test_every_chunk_size_gives_the_same(tmp_path, monkeypatch, format, chunk_rows):
    examples = text_examples() if format in ONLY_TEXT else sparse_examples()
    path = tmp_path / "data"
    write_examples(path, examples, format)
    monkeypatch.setattr("treemax.formats.streams.BLOCK_BYTES", 1000)  # many blocks even of a small file
    monkeypatch.setattr("treemax.formats.npz._CHUNK_ROWS", 13)
    with open_examples(path, format, chunk_rows=chunk_rows) as reader:
        chunks = list(reader)
    assert [len(chunk) for chunk in chunks[:-1]] == [chunk_rows] * (len(chunks) - 1)
    assert sum(map(len, chunks)) == 300
    start = 0
    for chunk in chunks:
        assert_same(chunk, examples[start : start + len(chunk)])
        start += len(chunk)


@pytest.mark.parametrize("format", FORMATS)
def test_chunks_are_written_like_the_whole(tmp_path, format):
    examples = text_examples() if format in ONLY_TEXT else sparse_examples()
    write_examples(tmp_path / "whole", examples, format)
    write_examples(tmp_path / "chunks", (examples[i : i + 41] for i in range(0, 300, 41)), format)
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "chunks").read_bytes()


@pytest.mark.parametrize("source", NUMERIC)
@pytest.mark.parametrize("target", NUMERIC)
def test_converts_chunk_by_chunk(tmp_path, source, target):
    examples = sparse_examples()
    write_examples(tmp_path / "a", examples, source)
    with open_examples(tmp_path / "a", source, chunk_rows=37) as reader:
        write_examples(tmp_path / "b", reader, target)
    assert_same(read_examples(tmp_path / "b", target, zero_based=True), examples)


# Each format as it is written by others


def test_xmc_as_published(tmp_path):
    path = tmp_path / "data.txt"
    path.write_text("4 5 10\n1,9 0:0.5 4:-1e-3\n 2:1\n\n3\n")
    got = read_examples(path)
    assert list(got.labels) == [[1, 9], [], [], [3]]
    assert got.labels.n_columns == 10
    expected = np.zeros((4, 5), np.float32)
    expected[0, 0], expected[0, 4], expected[1, 2] = 0.5, -1e-3, 1
    assert np.array_equal(matrix(got), expected)


def test_xmc_keeps_its_header(tmp_path):
    path = tmp_path / "data.xmc"
    path.write_text("2 7 10\n1 0:1\n2 1:1\n")
    write_examples(tmp_path / "again.xmc", read_examples(path))
    assert (tmp_path / "again.xmc").read_text() == "2 7 10\n1 0:1\n2 1:1\n"


def test_xmc_without_rows(tmp_path):
    path = tmp_path / "data.xmc"
    path.write_text("0 7 10\n")
    assert read_examples(path).rows.shape == (0, 7)


def test_svmlight_as_sklearn_reads_it(tmp_path):
    path = tmp_path / "data.svm"
    path.write_text(
        "# made by hand\n1,5 3:0.5 7:2 # a comment\n\n-1.0 qid:3 1:1e3\n+2\t2:.5  4:5.\r\n5:1 6:1\n3#c\n1e1 9:1"
    )
    for zero_based in (True, False, "auto"):
        X, y = load_svmlight_file(str(path), multilabel=True, zero_based=zero_based)
        got = read_examples(path, zero_based=zero_based)
        assert got.rows.shape == X.shape
        assert np.array_equal(got.rows.to_scipy().toarray(), X.toarray().astype(np.float32))
        assert list(got.labels) == [[int(label) for label in labels] for labels in y]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("zero_based", [True, False])
def test_svmlight_as_sklearn_writes_it(tmp_path, seed, zero_based):
    rng = np.random.default_rng(seed)
    X = sp.random(100, 30, 0.3, "csr", None, rng)
    X.data *= 10.0 ** rng.integers(-30, 30, X.nnz)
    y = rng.integers(-3, 5, 100)
    path = tmp_path / "data.svm"
    dump_svmlight_file(X, y, str(path), zero_based=zero_based)
    expected, labels = load_svmlight_file(str(path))
    got = read_examples(path)
    assert np.array_equal(got.y, labels)
    ours = got.rows.to_scipy()
    assert ours.shape == expected.shape
    assert np.array_equal(ours.indptr, expected.indptr)
    assert np.array_equal(ours.indices, expected.indices)
    assert np.array_equal(ours.data, expected.data.astype(np.float32))


def test_what_we_write_sklearn_reads(tmp_path):
    rows = np.zeros((3, 9), np.float32)
    rows[1, 3], rows[2, 4] = 0.1, -7
    write_examples(tmp_path / "data.svm", Examples(read_labels([[1], [], [2, 3]]), rows))
    X, y = load_svmlight_file(str(tmp_path / "data.svm"), multilabel=True)
    assert np.array_equal(X.toarray().astype(np.float32), rows)  # neither shifted nor narrowed
    assert y == [(1.0,), (), (2.0, 3.0)]


def test_svmlight_chunks_take_indices_as_they_are(tmp_path):
    path = tmp_path / "data.svm"
    path.write_text("1 1:1\n2 3:1\n")
    with open_examples(path) as reader:
        assert next(iter(reader)).rows.indices.tolist() == [1, 3]
    with open_examples(path, zero_based=False) as reader:
        assert next(iter(reader)).rows.indices.tolist() == [0, 2]
    assert read_examples(path).rows.indices.tolist() == [0, 2]
    assert read_examples(path, n_features=3).rows.shape == (2, 3)
    assert read_examples(path, n_features=9).rows.shape == (2, 9)


def test_unsorted_and_repeated_indices(tmp_path):
    path = tmp_path / "data.svm"
    path.write_text("1 5:1 0:2 5:0.25 3:4\n2 " + " ".join(f"{i % 501}:{i % 7}" for i in range(2000, 0, -1)))
    got = read_examples(path)
    expected = np.zeros((2, 501), np.float32)
    expected[0, [0, 3, 5]] = 2, 4, 1.25
    np.add.at(expected[1], np.arange(2000, 0, -1) % 501, np.arange(2000, 0, -1) % 7)
    assert np.array_equal(matrix(got), expected)
    assert all((np.diff(part) > 0).all() for part in np.split(got.rows.indices.astype(int), got.rows.indptr[1:-1]))


def test_vowpal_wabbit_hashes(tmp_path):
    """Columns that Vowpal Wabbit 9.11.9 itself gives to these lines (-b 18, without its constant)."""
    path = tmp_path / "data.vw"
    path.write_text(
        "1 |f price:2 12:3 a_longer_name 07 |other:2.5 price b:-2 | price 5 |7 5 abc\n"
        "2 |Ünï cödé x |f :3 :4 a\n"
        "1 1.0 'tag|f a b\n",
        encoding="utf-8",
    )
    rows = read_examples(path).rows
    columns = np.split(rows.indices, rows.indptr[1:-1])
    values = np.split(rows.values, rows.indptr[1:-1])
    assert columns[0].tolist() == [5, 12, 742, 34882, 34887, 95866, 132684, 218793, 229902, 249862]
    assert values[0].tolist() == [1, 1, 2, 1, 3, -5, 1, 1, 1, 2.5]
    assert columns[1].tolist() == [14355, 34875, 34876, 78184, 180781]
    assert values[1].tolist() == [1, 3, 4, 1, 1]
    assert columns[2].tolist() == [14355, 146788]
    assert hash_name("a", "f") % 2**18 == 14355


def test_vowpal_wabbit_labels(tmp_path):
    path = tmp_path / "data.vw"
    path.write_text("1,5,7 |x a\n| b\n|x a\n3 1 |x a\n+2 'tag |x a\n-1.0 word|x a\n'tag |x a\n\nword|x a\n")
    got = read_examples(path)
    assert list(got.labels) == [[1, 5, 7], [], [], [3], [2], [-1], [], []]
    path.write_text("| a\ncat |x a\n3 |x a\ndog,1.0 'tag |x a\n")
    assert list(read_examples(path).labels) == [[], ["cat"], ["3"], ["dog", "1.0"]]


def test_vowpal_wabbit_adds_up_what_falls_together(tmp_path):
    path = tmp_path / "data.vw"
    path.write_text("1 | 3:1 11:2 3:4\n")
    rows = read_examples(path, bits=3).rows
    assert (rows.indices.tolist(), rows.values.tolist(), rows.n_features) == ([3], [7.0], 8)


def test_fasttext_lines(tmp_path):
    path = tmp_path / "data.txt"
    path.write_bytes("\ufeff__label__a  __label__b text  here \r\nno label __label__x\n\n__label__c\n".encode())
    got = read_examples(path)
    assert list(got.labels) == [["a", "b"], [], [], ["c"]]
    assert got.texts == ["text  here ", "no label __label__x", "", ""]


def test_jsonl_features(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text('{"features": {"10": 2, "3": 0.5}, "label": 7, "date": 1}\n\n{"features": {}, "labels": []}\n')
    got = read_examples(path)
    assert (got.rows.indices.tolist(), got.rows.shape, list(got.labels)) == ([3, 10], (2, 11), [[7], []])
    path.write_text('{"features": {"price": 2, "12": 3}, "label": "a"}\n{"features": {"12": 1}}\n')
    got = read_examples(path)
    assert got.rows.to_scipy()[0, hash_name("price") % 2**18] == 2
    assert got.rows.to_scipy()[:, 12].toarray().ravel().tolist() == [3, 1]
    path.write_text('{"features": [1, 2.5]}\n{"features": [0, -1]}\n')
    assert read_examples(path).rows.tolist() == [[1, 2.5], [0, -1]]


def test_jsonl_and_vw_hash_alike(tmp_path):
    names = [f"name{i}" for i in range(300)]
    (tmp_path / "a.vw").write_text("1 | " + " ".join(f"{name}:0.1" for name in names))
    pairs = ", ".join(f'"{name}": 0.1' for name in names)
    (tmp_path / "a.jsonl").write_text('{"label": 1, "features": {' + pairs + "}}")
    assert_same(read_examples(tmp_path / "a.vw", bits=6), read_examples(tmp_path / "a.jsonl", bits=6))


def test_npz_of_others(tmp_path):
    path = tmp_path / "data.npz"
    X = sp.random(30, 8, 0.3, "csr", None, np.random.default_rng(0))
    sp.save_npz(path, X)
    got = read_examples(path)
    assert np.array_equal(matrix(got), X.toarray().astype(np.float32))
    assert list(got.labels) == [[]] * 30
    dense = np.asfortranarray(np.arange(12, dtype=np.uint8).reshape(4, 3))
    for y, expected in [
        (np.array(["a", "bé", "c", "a"]), [["a"], ["bé"], ["c"], ["a"]]),
        (np.array([3, 1, 2, 3], dtype=np.int32), [[3], [1], [2], [3]]),
        (np.array([[0, 1], [1, 1], [0, 0], [1, 0]]), [[1], [0, 1], [], [0]]),
    ]:
        np.savez_compressed(path, X=dense, y=y)
        got = read_examples(path)
        assert got.rows.tolist() == dense.tolist()
        assert list(got.labels) == expected


def test_npz_we_write_scipy_reads(tmp_path):
    examples = sparse_examples()
    write_examples(tmp_path / "data.npz", examples)
    assert (sp.load_npz(tmp_path / "data.npz") != examples.rows.to_scipy()).nnz == 0
    with np.load(tmp_path / "data.npz", allow_pickle=False) as arrays:
        assert {"y_values", "y_indptr"} <= set(arrays)


# The interface


def test_examples_for_fit():
    one = Examples(read_labels([["a"], ["b"]]), texts=["x", "y"])
    assert one.y.tolist() == ["a", "b"] and one.X == ["x", "y"]
    assert list(Examples(read_labels([["a"], []]), texts=["x", "y"]).y) == [["a"], []]
    with pytest.raises(ValueError, match="exactly one"):
        Examples(read_labels([["a"]]))
    with pytest.raises(ValueError, match="1 rows of labels but 2"):
        Examples(read_labels([["a"]]), texts=["x", "y"])


@pytest.fixture(params=["sparse", "dense"])
def examples_of_one_label(request, tmp_path) -> Examples:
    X = sparse_examples().rows.to_scipy()
    rows = as_rows(X if request.param == "sparse" else X.toarray())
    write_examples(tmp_path / "data.npz", Examples(read_labels(["even", "odd"] * 150), rows))
    return read_examples(tmp_path / "data.npz")


def test_scikit_learn_takes_what_readers_give(examples_of_one_label):
    X, y = examples_of_one_label.X, examples_of_one_label.y
    np.testing.assert_allclose(row_norms(normalize(X)), 1, rtol=1e-5)
    X_train, X_test, y_train, y_test = train_test_split(X, y, stratify=y, random_state=0)
    assert X_train.shape == (225, 50) and X_test.shape == (75, 50)
    assert SGDClassifier(random_state=0).fit(X_train, y_train).predict(X_test).shape == y_test.shape
    split = treemax.OneVsAll(passes=1, verbose=0).fit(X_train, y_train)
    assert not split.multi_label_ and split.classes_.tolist() == ["even", "odd"]


def test_the_matrix_of_a_reader_is_made_once_and_shares_its_memory(examples_of_one_label):
    X, rows = examples_of_one_label.X, examples_of_one_label.rows
    assert X is examples_of_one_label.X
    if isinstance(rows, SparseRows):
        assert isinstance(X, sp.csr_matrix)
        again = as_rows(X)
        for part in ("indices", "values"):
            assert np.shares_memory(getattr(again, part), getattr(rows, part))
    else:
        assert X is rows


def test_x_and_y_train_the_same_model_as_the_internal_form(examples_of_one_label, tmp_path):
    for name, (X, y) in {
        "outside": (examples_of_one_label.X, examples_of_one_label.y),
        "inside": (examples_of_one_label.features, examples_of_one_label.targets),
    }.items():
        treemax.LabelTree(verbose=0).fit(X, y).save(tmp_path / name)
    assert (tmp_path / "outside").read_bytes() == (tmp_path / "inside").read_bytes()


@pytest.mark.parametrize(
    ("content", "format"),
    [
        (b"3 5 7\n1 0:1\n", "xmc"),
        (b"1,2 0:1 3:4\n", "svmlight"),
        (b"# hello\n\n-1 qid:3 1:0.5 # x\n", "svmlight"),
        (b"3\n1:1 2:1\n", "svmlight"),
        (b"3 0.5 'tag |ns a:2 b\n", "vw"),
        (b"|x a b\n", "vw"),
        (b"cat |x a\n", "vw"),
        (b'\xef\xbb\xbf{"text": "x"}\n', "jsonl"),
        (b"__label__x some | text\n", "fasttext"),
        (b"PK\x03\x04junk", "npz"),
    ],
)
def test_format_is_recognised(tmp_path, content, format):
    path = tmp_path / "data.txt"
    path.write_bytes(content)
    assert detect_format(path) == format
    path.write_bytes(gzip.compress(content))
    assert detect_format(str(path)) == format


def test_format_by_name(tmp_path):
    names = {
        "a.SVM": "svmlight",
        "b.xmc.gz": "xmc",
        "c.ndjson": "jsonl",
        "d.ft": "fasttext",
        "e.vw": "vw",
        "f.CSV.gz": "csv",
    }
    assert {name: detect_format(name) for name in names} == names


@pytest.mark.parametrize("content", [b"# a comment\n1\n", b"just a sentence\n", b"\x00\x01\x02", b"1:1:1:1" * 9999])
def test_format_not_recognised(tmp_path, content):
    (tmp_path / "data").write_bytes(content)
    with pytest.raises(FormatError, match=r"cannot tell the format .* fasttext, xmc, svmlight, vw, jsonl, npz"):
        open_examples(tmp_path / "data")


def test_one_array_is_to_be_stored_with_its_labels(tmp_path):
    np.save(tmp_path / "X.npy", np.eye(3))
    with pytest.raises(FormatError, match=r"X.npy: is one NumPy array; store X and y together: np.savez"):
        open_examples(tmp_path / "X.npy")


@pytest.mark.parametrize("content", [b"", b"\n\n"])
@pytest.mark.parametrize("name", ["data", "data.csv"])
def test_an_empty_file_is_called_empty(tmp_path, content, name):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FormatError, match=f"{name}: is empty"), open_examples(tmp_path / name) as reader:
        reader.read_all()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("compressed", [False, True])
def test_standard_input(tmp_path, monkeypatch, format, compressed):
    examples = text_examples() if format in ONLY_TEXT else sparse_examples()
    write_examples(tmp_path / "data", examples, format)
    data = (tmp_path / "data").read_bytes()
    stdin = io.TextIOWrapper(io.BytesIO(gzip.compress(data) if compressed else data))
    monkeypatch.setattr("sys.stdin", stdin)
    if format in ONLY_TEXT:
        assert_same(read_examples("-", format), examples)
    else:
        assert_same(read_examples("-"), examples)
    assert not stdin.closed


@pytest.mark.parametrize("format", FORMATS)
def test_standard_output(tmp_path, monkeypatch, format):
    examples = text_examples(20) if format in ONLY_TEXT else sparse_examples(20)
    stdout = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr("sys.stdout", stdout)
    write_examples("-", examples, format)
    (tmp_path / "data").write_bytes(stdout.buffer.getvalue())
    assert_same(read_examples(tmp_path / "data", format), examples)


@pytest.mark.slow
def test_pipe(tmp_path):
    write_examples(tmp_path / "data.svm", sparse_examples())
    code = "from treemax.formats import *; write_examples('-', open_examples('-'), 'xmc')"
    content = (tmp_path / "data.svm").read_bytes()
    done = subprocess.run([sys.executable, "-c", code], input=content, capture_output=True, check=True)
    (tmp_path / "data.xmc").write_bytes(done.stdout)
    assert_same(read_examples(tmp_path / "data.xmc"), sparse_examples())


def test_standard_input_as_it_arrives(monkeypatch):
    """A chunk is there when its lines are, not when the sender has finished."""
    receiver, sender = os.pipe()
    with open(receiver, "rb") as stdin, open(sender, "wb", buffering=0) as pipe:  # noqa: PTH123
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(stdin))
        timer = threading.Timer(20, pipe.close)  # so that a failure is not an endless wait
        timer.start()
        pipe.write(b"1 0:1\n2 0")
        with open_examples("-", chunk_rows=1) as reader:
            chunks = iter(reader)
            assert next(chunks).labels[0] == [1]
            pipe.write(b":1\n3 0:2\n")
            assert next(chunks).labels[0] == [2]
            assert timer.is_alive()
            timer.cancel()
            pipe.close()
            assert next(chunks).labels[0] == [3]


def test_reader_tells_its_progress(tmp_path):
    write_examples(tmp_path / "data.xmc", sparse_examples())
    with open_examples(tmp_path / "data.xmc") as reader:
        assert (reader.format, reader.name) == ("xmc", str(tmp_path / "data.xmc"))
        assert sum(map(len, reader)) == 300
        assert reader.position == reader.size == (tmp_path / "data.xmc").stat().st_size
        assert list(reader) == []
    with pytest.raises(ValueError, match="chunks already"):
        reader.read_all()


def test_long_lines_and_no_last_newline(tmp_path):
    path = tmp_path / "data.svm"
    row = " ".join(f"{i}:{i % 10}" for i in range(200_000))  # longer than a block
    path.write_text(f"1 {row}\n2 {row}\n3 {row}")
    got = read_examples(path)
    assert np.array_equal(matrix(got), np.tile(np.arange(200_000) % 10, (3, 1)))


def test_empty_files(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(b"")
    for format in ("fasttext", "svmlight", "vw", "jsonl"):
        assert len(read_examples(path, format)) == 0
        with open_examples(path, format) as reader:
            assert list(reader) == []


def test_settings_are_checked(tmp_path):
    path = tmp_path / "data.svm"
    path.write_text("1 0:1\n")
    for wrong in ({"bits": 0}, {"bits": 99}, {"n_features": 0}, {"zero_based": "maybe"}, {"format": "xls"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            read_examples(path, **wrong)
    with pytest.raises(ValueError, match="chunk_rows"):
        open_examples(path, chunk_rows=0)
    with pytest.raises(FileNotFoundError):
        open_examples(tmp_path / "none.svm")


# Writing


@pytest.mark.parametrize(
    ("format", "examples", "message"),
    [
        ("fasttext", Examples(read_labels([["a b"]]), texts=["x"]), "label 'a b' of row 0"),
        ("fasttext", Examples(read_labels([[""]]), texts=["x"]), "label '' of row 0"),
        ("fasttext", Examples(read_labels([[]]), texts=["__label__x y"]), "begins with __label__"),
        ("fasttext", sparse_examples(2), "holds text"),
        ("xmc", text_examples(2), "holds numbers"),
        ("svmlight", Examples(read_labels([["cat"]]), np.ones((1, 2), np.float32)), "integer labels only, got 'cat'"),
        ("xmc", Examples(read_labels([[-1]]), np.ones((1, 2), np.float32)), "no negative labels"),
        ("vw", Examples(read_labels([["a|b"]]), np.ones((1, 2), np.float32)), r"label 'a\|b' of row 0"),
        ("jsonl", Examples(read_labels([["a"]]), texts=["\ud800"]), "surrogate"),
    ],
)
def test_what_cannot_be_written(tmp_path, format, examples, message):
    path = tmp_path / "data"
    path.write_text("precious")
    with pytest.raises(ValueError, match=message):
        write_examples(path, examples, format)
    assert path.read_text() == "precious"
    assert [left.name for left in tmp_path.iterdir()] == ["data"]


def test_failure_in_the_middle_leaves_nothing(tmp_path):
    def chunks():
        yield sparse_examples()
        raise RuntimeError("the source broke")

    for format in NUMERIC:
        with pytest.raises(RuntimeError):
            write_examples(tmp_path / "data", chunks(), format)
    assert list(tmp_path.iterdir()) == []


def test_writing_where_the_reader_reads(tmp_path):
    path = tmp_path / "data.svm"
    write_examples(path, sparse_examples())
    with open_examples(path, chunk_rows=10) as reader:
        write_examples(path, reader)
    assert_same(read_examples(path), sparse_examples())


def test_targets_that_are_no_files(tmp_path):
    write_examples("/dev/null", sparse_examples(), "svmlight")
    assert not Path("/dev/null").is_file()
    with pytest.raises(IsADirectoryError):
        write_examples(tmp_path, sparse_examples(), "svmlight")
    with pytest.raises(ValueError, match="is not that of a format"):
        write_examples(tmp_path / "data", sparse_examples())
    link = tmp_path / "link.svm"
    link.symlink_to(tmp_path / "real.svm")
    write_examples(link, sparse_examples())
    assert link.is_symlink() and (tmp_path / "real.svm").is_file()


@pytest.mark.slow
def test_memory_is_bounded(tmp_path):
    """Reading in chunks needs far less than the file holds."""
    path = tmp_path / "data.svm"
    line = "1 " + " ".join(f"{i}:0.5" for i in range(1000)) + "\n"
    with path.open("w") as file:
        for _ in range(4000):
            file.write(line)
    code = (
        "import resource, sys\n"
        "from treemax.formats import open_examples\n"
        f"reader = open_examples({str(path)!r}, chunk_rows=100)\n"
        "chunks = iter(reader); next(chunks)\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "rows = sum(len(chunk) for chunk in chunks)\n"
        "print(rows, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)\n"
    )
    rows, grown = map(int, subprocess.check_output([sys.executable, "-c", code]).split())
    assert rows == 3900
    assert grown < 8  # MB, of 32 MB of values in the file
