"""Malformed data files: known mistakes, and random ones."""

from __future__ import annotations

import gzip
import io
import random
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest

from treemax.formats import FORMATS, Examples, FormatError, open_examples, read_examples, write_examples
from treemax.inputs.labels import read_labels

# format, good lines around it, the malformed line, what the message says
MALFORMED = [
    ("xmc", "1 0:1", "x 0:1", "the label is not an integer, got 'x'"),
    ("xmc", "1 0:1", "1.5 0:1", "the label is not an integer, got '1.5'"),
    ("xmc", "1 0:1", "1, 0:1", "the label is not an integer, got '1,'"),
    ("xmc", "1 0:1", "7 0:1", r"the label is out of range \(0 to 6\), got '7'"),
    ("xmc", "1 0:1", "-1 0:1", r"the label is out of range \(0 to 6\), got '-1'"),
    ("xmc", "1 0:1", "1 5:1", r"the index is out of range \(0 to 4\), got '5:1'"),
    ("xmc", "1 0:1", "1 0:1 2", "expected index:value, the index a whole number, got '2'"),
    ("xmc", "1 0:1", "1 0:1 # no comments here", "expected index:value, the index a whole number, got '#'"),
    ("svmlight", "1 0:1", "1 -3:1", "expected index:value, the index a whole number, got '-3:1'"),
    ("svmlight", "1 0:1", "1 a:1", "expected index:value, the index a whole number, got 'a:1'"),
    ("svmlight", "1 0:1", "1 3 :1", "expected index:value, the index a whole number, got '3'"),
    ("svmlight", "1 0:1", "1 4294967295:1", "the index is out of range .*, got '4294967295:1'"),
    ("svmlight", "1 0:1", "1 99999999999999999999:1", "the index is out of range .*, got '9+:1'"),
    ("svmlight", "1 0:1", "1 3:nan", "the value is not a finite number, got '3:nan'"),
    ("svmlight", "1 0:1", "1 3:-inf", "the value is not a finite number, got '3:-inf'"),
    ("svmlight", "1 0:1", "1 3:0x10", "the value is not a finite number, got '3:0x10'"),
    ("svmlight", "1 0:1", "1 3:1_0", "the value is not a finite number, got '3:1_0'"),
    ("svmlight", "1 0:1", "1 3:1e", "the value is not a finite number, got '3:1e'"),
    ("svmlight", "1 0:1", "1 3:", "the value is not a finite number, got '3:'"),
    ("svmlight", "1 0:1", "1 3:.", "the value is not a finite number, got '3:.'"),
    ("svmlight", "1 0:1", "1 3:1:2", "the value is not a finite number, got '3:1:2'"),
    ("svmlight", "1 0:1", "1 3:1e39", "the value is too large for float32, got '3:1e39'"),
    ("svmlight", "1 0:1", "1 3:-340282356779733661637539395458142568448", "too large for float32, got '3:-34"),
    ("svmlight", "1 0:1", "1 3:3e38 3:3e38", "the sum of the values of one index overflows float32"),
    ("svmlight", "1 0:1", "1234567890123456789 0:1", "the label is not an integer, got '1234567890123456789'"),
    ("vw", "1 |x a", "1 x a", r"no '\|' before the features, got '1'"),
    ("vw", "1 |x a", "1 -1 |x a", "the weight is neither 0 nor a number from 1e-09 to"),
    ("vw", "1 |x a", "1 2 3 |x a", "expected a label, an importance and a tag before '|', got '1 2 3 '"),
    ("vw", "1 |x a", "1 many |x a", "the importance after the label is not a number, got 'many'"),
    ("vw", "1 |x a", "1,,2 |x a", "a label is empty"),
    ("vw", "1 |x a", "1|x a", r"no space between the label and '\|', got '1\|'"),
    ("vw", "1 |x a", "0.5 |x a", "the label is not an integer, got '0.5'"),
    ("vw", "1 |x a", "cat |x a", "the labels before this one are integers, got 'cat'"),
    ("vw", "1 |x a", "1 |x a:b", "the value is not a finite number, got 'a:b'"),
    ("vw", "1 |x a", "1 |x:inf a", "the value is not a finite number, got '\\|x:inf'"),
    ("vw", "1 |x a", "1 |x:1e30 a:1e30", "the value is too large for float32, got 'a:1e30'"),
    ("jsonl", '{"text": "x"}', "{", r"not JSON \(.*\), got '{'"),
    ("jsonl", '{"text": "x"}', "[1]", r"not a JSON object, got '\[1\]'"),
    ("jsonl", '{"text": "x"}', "[" * 100_000, "nested too deeply"),
    ("jsonl", '{"text": "x"}', '{"labels": []}', 'neither "text" nor "features"'),
    ("jsonl", '{"text": "x"}', '{"text": "", "features": []}', 'both "text" and "features"'),
    ("jsonl", '{"text": "x"}', '{"text": 3}', '"text" is not a string, got 3'),
    ("jsonl", '{"text": "x"}', '{"features": [1]}', "has a list of numbers, those before it have a text"),
    ("jsonl", '{"text": "x"}', '{"text": "x", "labels": "a"}', "\"labels\" is not a list, got 'a'"),
    ("jsonl", '{"text": "x"}', '{"text": "x", "label": 1.5}', "neither a string nor a 64-bit integer, got 1.5"),
    ("jsonl", '{"text": "x"}', '{"text": "x", "label": true}', "neither a string nor a 64-bit integer, got True"),
    ("jsonl", '{"text": "x"}', '{"text": "x", "label": 9999999999999999999}', "nor a 64-bit integer"),
    ("jsonl", '{"text": "x", "label": 1}', '{"text": "x", "label": "a"}', "before this one are integers, got 'a'"),
    ("jsonl", '{"text": "x"}', '{"text": "\\ud800"}', "unpaired surrogate"),
    ("jsonl", '{"features": [1, 2]}', '{"features": [1]}', '"features" has 1 numbers, expected 2'),
    ("jsonl", '{"features": [1, 2]}', '{"features": [1, NaN]}', "NaN is not a finite number"),
    ("jsonl", '{"features": [1, 2]}', '{"features": [1, 1e39]}', "too large for float32, got 1e\\+39"),
    ("jsonl", '{"features": [1, 2]}', '{"features": [1, "x"]}', "is not a number, got 'x'"),
    ("jsonl", '{"features": [1, 2]}', '{"features": 3}', "neither a list nor an object, got 3"),
    ("jsonl", '{"features": {"1": 1}}', '{"features": {"4294967295": 1}}', "the column is out of range"),
    ("jsonl", '{"features": {"1": 1}}', '{"features": {"a": 1}}', "has named features, those before it have an obj"),
    ("fasttext", "__label__x a", "__label__ a", "__label__ without a name"),
]


def file_of(path: Path, format: str, lines: list[bytes]) -> Path:
    header = [b"%d 5 7" % len(lines)] if format == "xmc" else []
    path.write_bytes(b"\n".join([*header, *lines]) + b"\n")
    return path


@pytest.mark.parametrize(("format", "good", "wrong", "message"), MALFORMED)
def test_malformed_line(tmp_path, format, good, wrong, message):
    lines = [good.encode()] * 3 + [wrong.encode()] + [good.encode()] * 2
    path = file_of(tmp_path / "data", format, lines)
    number = 5 if format == "xmc" else 4
    with pytest.raises(FormatError, match=message) as caught:
        read_examples(path, format)
    assert str(caught.value).startswith(f"{path}:{number}: ")
    with open_examples(path, format, skip_bad=True, chunk_rows=2) as reader:
        assert sum(map(len, reader)) == 5
        assert reader.bad_lines == 1
        assert reader.bad_messages == [str(caught.value)]
    with pytest.warns(UserWarning, match="1 malformed line"):
        assert len(read_examples(path, format, skip_bad=True)) == 5


@pytest.mark.parametrize("format", ["fasttext", "vw", "jsonl"])
def test_text_that_is_not_utf8(tmp_path, format):
    lines = {"fasttext": b"__label__a \xff", "vw": b"\xff |x a", "jsonl": b'{"text": "\xff"}'}
    path = file_of(tmp_path / "data", format, [lines[format]])
    with pytest.raises(FormatError, match=r"data:1: not UTF-8.* got '.*\\\\xff"):
        read_examples(path, format)


def test_line_numbers_far_into_a_file(tmp_path):
    path = file_of(tmp_path / "data", "svmlight", [b"1 0:1"] * 200_000 + [b"oops"] + [b"1 0:1"] * 200_000)
    with pytest.raises(FormatError, match=r"data:200001: .* 'oops'"):
        read_examples(path, "svmlight")


def test_many_malformed_lines_are_counted(tmp_path):
    path = file_of(tmp_path / "data", "svmlight", [b"1 0:1", b"x"] * 5000)
    with open_examples(path, "svmlight", skip_bad=True) as reader:
        assert sum(map(len, reader)) == 5000
        assert reader.bad_lines == 5000
        assert reader.bad_messages[-1].startswith(f"{path}:20: ")


@pytest.mark.parametrize("header", ["", "3 5", "3 5 x", "-3 5 7", "3 0 7", "1 0:1", "3 4294967296 7"])
def test_xmc_header(tmp_path, header):
    path = tmp_path / "data.xmc"
    path.write_text(header + "\n1 0:1\n")
    with pytest.raises(FormatError, match=r"data.xmc:1: the header"):
        read_examples(path, skip_bad=True)


def test_xmc_rows_other_than_the_header_says(tmp_path):
    path = tmp_path / "data.xmc"
    path.write_text("3 5 7\n1 0:1\n2 0:1\n")
    with pytest.raises(FormatError, match=r"data.xmc:4: the file ends after 2 rows, the header says 3"):
        read_examples(path)
    path.write_text("1 5 7\n1 0:1\n2 0:1\n\n3 0:1\n")
    with pytest.raises(FormatError, match=r"data.xmc:3: more rows than the 1 of the header; got '2 0:1'"):
        read_examples(path)
    with open_examples(path, skip_bad=True) as reader:
        assert sum(map(len, reader)) == 1
        assert reader.bad_lines == 2
    path.write_text("1 5 7\n1 0:1\n\n \n")
    assert len(read_examples(path)) == 1


def test_n_features_is_kept_to(tmp_path):
    path = tmp_path / "data.svm"
    path.write_text("1 0:1 3:1\n")
    for zero_based in (True, "auto"):
        with pytest.raises(FormatError, match=r"index .*3"):
            read_examples(path, n_features=3, zero_based=zero_based)
    with pytest.raises(FormatError, match=r"data.svm:1: the index is out of range \(1 to 4294967294\), got '0:1'"):
        read_examples(path, zero_based=False)
    path = tmp_path / "data.xmc"
    path.write_text("1 5 7\n1 0:1\n")
    assert read_examples(path, n_features=9).rows.shape == (1, 9)
    with pytest.raises(FormatError, match="n_features=4"):
        read_examples(path, n_features=4)


@pytest.mark.parametrize("format", ["fasttext", "xmc", "svmlight", "vw", "jsonl"])
def test_gzip_that_is_cut_or_damaged(tmp_path, format):
    lines = {"fasttext": "__label__a text", "jsonl": '{"text": "a", "label": 1}', "vw": "1 |x a"}
    body = "\n".join(f"{lines.get(format, '1 0:1')}" for _ in range(20_000))
    data = gzip.compress((("20000 5 7\n" if format == "xmc" else "") + body).encode())
    path = tmp_path / "data.gz"
    for damaged in (data[: len(data) // 2], data[:-4], data[:200] + b"\x55" * 20 + data[220:], data + b"junk"):
        path.write_bytes(damaged)
        for skip_bad in (False, True):
            with pytest.raises(FormatError, match=r"data.gz:\d+: the gzip data is (truncated|damaged)"):
                read_examples(path, format, skip_bad=skip_bad)


def test_line_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr("treemax.formats.streams.MAX_LINE_BYTES", 10**6)
    path = tmp_path / "data.svm"
    path.write_bytes(b"1 0:1\n" + b"1" * 4_000_000)
    with pytest.raises(FormatError, match=r"data.svm:2: the line is longer than"):
        read_examples(path)


# npz


def npz(path: Path, **arrays: object) -> Path:
    np.savez(path, **arrays)
    return path


CSR = {
    "data": np.ones(3, np.float32),
    "indices": np.array([0, 2, 1]),
    "indptr": np.array([0, 2, 3]),
    "shape": np.array([2, 3]),
}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"Z": np.ones(3)}, "has no features: .* got Z"),
        ({"X": np.ones(3)}, r"array X should be a matrix of numbers, got float64 of shape \(3,\)"),
        ({"X": np.array([["a"]])}, "array X should be a matrix of numbers"),
        ({"X": np.array([[object()]])}, "array X holds Python objects"),
        ({"X": np.ones((3, 0))}, "array X has 0 columns"),
        ({"X": np.ones((3, 2)), "y": np.arange(2)}, "labels for 2 rows but features for 3"),
        ({"X": np.ones((2, 2)), "y": np.array([1.5, 2])}, "row 0: a label is neither"),
        ({"X": np.ones((2, 2)), "y": np.array([2, np.nan])}, "row 1: a label is neither"),
        ({"X": np.ones((2, 2)), "y": np.array([[1, 0], [0, 3]])}, "row 1: a label is neither"),
        (
            {"X": np.ones((2, 2)), "y_bytes": np.array([97, 255], np.uint8), "y_offsets": np.arange(3)},
            "row 1: a label is neither UTF-8",
        ),
        ({"X": np.ones((2, 2)), "y": np.array(["a", None])}, "array y holds Python objects"),
        (
            {"X": np.ones((2, 2)), "y_values": np.arange(3), "y_indptr": np.array([0, 2, 9])},
            "y_indptr must be non-decreasing",
        ),
        ({"X": np.ones((2, 2)), "y_values": np.arange(3), "y_indptr": np.array([1, 2, 3])}, "should begin with 0"),
        ({"X": np.array([[1, 2], [np.nan, 1]])}, "row 1: NaN"),
        ({"X": np.array([[1, 2], [1e39, 1]])}, "row 1: NaN, infinity, too large"),
        ({**CSR, "indices": np.array([0, 3, 1])}, "row 0: .*column out of range"),
        ({**CSR, "indices": np.array([0, -1, 1])}, "row 0: .*column out of range"),
        ({**CSR, "data": np.array([1, 2, np.inf])}, "row 1: NaN, infinity"),
        ({**CSR, "indptr": np.array([0, 3, 2])}, "indptr must be non-decreasing"),
        ({**CSR, "indptr": np.array([0, 2, 99])}, "indptr must be non-decreasing and at most 3"),
        ({**CSR, "shape": np.array([5, 3])}, "shape does not fit"),
        ({**CSR, "shape": np.array([2])}, "shape does not fit"),
        ({**CSR, "format": np.array(b"csc")}, "CSR format, got 'csc'"),
        ({"text_bytes": np.array([255], np.uint8), "text_offsets": np.array([0, 1])}, "row 0: the text is not UTF-8"),
    ],
)
def test_malformed_npz(tmp_path, arrays, message):
    path = npz(tmp_path / "data.npz", **arrays)
    with pytest.raises(FormatError, match=message) as caught:
        read_examples(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_malformed_npz_rows_are_skipped(tmp_path):
    X = np.arange(12, dtype=float).reshape(6, 2)
    X[2, 1] = np.nan
    path = npz(tmp_path / "data.npz", X=X, y=np.arange(6))
    with open_examples(path, skip_bad=True) as reader:
        (chunk,) = reader
    assert chunk.labels.values.tolist() == [0, 1, 3, 4, 5]
    assert chunk.rows.tolist() == X[[0, 1, 3, 4, 5]].tolist()
    assert reader.bad_messages == [f"{path}: row 2: NaN, infinity, too large for float32, or a column out of range"]
    path = npz(tmp_path / "data.npz", **{**CSR, "indices": np.array([0, 3, 1])}, y=np.array(["a", "b"]))
    with pytest.warns(UserWarning, match="1 malformed"):
        got = read_examples(path, skip_bad=True)
    assert (got.rows.indices.tolist(), list(got.labels)) == ([1], [["b"]])


def test_npz_rows_with_malformed_texts_and_labels_are_skipped(tmp_path):
    path = npz(
        tmp_path / "data.npz",
        text_bytes=np.frombuffer(b"ab\xffcd", np.uint8),
        text_offsets=np.arange(6),
        y_values=np.array([1, 2, 3.5, 4, 5, 6]),
        y_indptr=np.array([0, 1, 3, 4, 5, 6]),
    )
    with open_examples(path, skip_bad=True) as reader:
        (chunk,) = reader
    assert chunk.texts == ["a", "c", "d"] and list(chunk.labels) == [[1], [5], [6]]
    assert [message.partition(": row ")[2][:1] for message in reader.bad_messages] == ["1", "2"]


def test_npz_members_that_are_no_arrays(tmp_path):
    """A member called y is no array y, and what NumPy's headers hold is not repeated at length."""
    path = tmp_path / "data.npz"
    npz(path, X=np.ones((2, 2)))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("y", b"not an array")
    assert read_examples(path).labels.counts.tolist() == [0, 0]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("X.npy", b"\x93NUMPY\x02\x00" + (50_000).to_bytes(4, "little") + b"(" * 50_000)
    with pytest.raises(FormatError, match="array X has no readable header") as caught:
        read_examples(path)
    assert len(str(caught.value)) < 1000


def test_jsonl_kinds_after_an_empty_object(tmp_path):
    """An object without features is of features by name, not a list of numbers nor a text."""
    path = tmp_path / "data.jsonl"
    for other, complaint in (('{"features": [1, 2]}', "a list of numbers"), ('{"text": "a"}', "a text")):
        path.write_text('{"features": {}}\n' + other + '\n{"features": {"4": 2}}\n')
        with pytest.raises(FormatError, match=f":2: this example has {complaint}, those before it"):
            read_examples(path)
        with pytest.warns(UserWarning, match="1 malformed"):
            rows = read_examples(path, skip_bad=True).rows
        assert rows.indptr.tolist() == [0, 0, 1] and rows.indices.tolist() == [4]


def test_jsonl_with_nothing_good_in_its_first_block(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text("nothing\n" * 100_000 + '{"features": {"1": 2}, "label": 3}\n')
    with open_examples(path, skip_bad=True) as reader:
        (chunk,) = reader
    assert chunk.rows.indices.tolist() == [1] and reader.bad_lines == 100_000


def test_the_first_line_of_fasttext_may_lack_a_label(tmp_path):
    for first in ("no label here", "3:1 was the result", "12 9 7"):
        path = tmp_path / "data.txt"
        path.write_text(f"{first}\n__label__a one\n")
        assert read_examples(path).texts == [first, "one"]


def test_npz_with_unsorted_and_repeated_indices(tmp_path):
    path = npz(tmp_path / "data.npz", **{**CSR, "indices": np.array([2, 2, 1]), "indptr": np.array([0, 3, 3])})
    rows = read_examples(path).rows
    assert (rows.indices.tolist(), rows.values.tolist(), rows.indptr.tolist()) == ([1, 2], [1, 2], [0, 2, 2])


def test_npz_that_is_cut_or_foreign(tmp_path):
    path = npz(tmp_path / "data.npz", X=np.ones((500, 20)), y=np.arange(500))
    data = path.read_bytes()
    for damaged in (b"", b"hello", data[: len(data) // 2], data[:-10], data[50:]):
        path.write_bytes(damaged)
        with pytest.raises(FormatError, match=r"data.npz"):
            read_examples(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("X.npy", b"no array")
    with pytest.raises(FormatError, match="array X has no readable header"):
        read_examples(path)
    buffer = io.BytesIO()
    np.save(buffer, np.ones((500, 20)))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("X.npy", buffer.getvalue()[:-100])
    with pytest.raises(FormatError, match="array X is shorter than its shape"):
        read_examples(path)


# Anything at all


def sample(format: str) -> bytes:
    path = Path(sample.folder) / f"sample.{format}"
    if not path.exists():
        labels = read_labels([[1, 2], [3], [], [4]])
        rows = np.array([[1, 0, 0.25], [0, 1e-7, 3], [0, 0, 0], [-1, 123456.75, 0]], np.float32)
        texts = ["a b", "c: d", "", "|#"]
        as_text = format in ("fasttext", "csv", "tsv")
        examples = Examples(labels, texts=texts) if as_text else Examples(labels, rows)
        write_examples(path, examples, format)
    return path.read_bytes()


@pytest.fixture(autouse=True, scope="module")
def _folder(tmp_path_factory):
    sample.folder = tmp_path_factory.mktemp("samples")


def mutated(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(changed) + 1)
        kind = rng.randrange(4)
        if kind == 0:
            changed[at : at + 1] = bytes([rng.choice(b"0123456789:,.|-+eE #\n\r\t\x00\xff{}[]\"'_")])
        elif kind == 1:
            del changed[at : at + rng.randrange(1, 9)]
        elif kind == 2:
            changed[at:at] = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 5)))
        else:
            start = rng.randrange(len(changed) + 1)
            changed[at:at] = changed[start : start + rng.randrange(1, 30)]
    return bytes(changed)


def consistent(examples: Examples) -> None:
    assert len(examples.features) == len(examples.labels)
    if hasattr(examples.rows, "indices"):
        rows = examples.rows
        assert np.isfinite(rows.values).all()
        assert not rows.nnz or rows.indices.max() < rows.n_features
        assert all(
            (np.diff(rows.indices[first:last].astype(np.int64)) > 0).all()
            for first, last in zip(rows.indptr, rows.indptr[1:])
        )


@pytest.mark.parametrize("format", FORMATS)
def test_mutated_files_never_crash(tmp_path, format):
    rng = random.Random(f"{format} 7")
    path = tmp_path / "data"
    good = sample(format)
    for _ in range(150):
        path.write_bytes(mutated(good, rng))
        results = []
        for chunk_rows in (1, 1000):
            try:
                with open_examples(path, format, chunk_rows=chunk_rows, zero_based=True) as reader:
                    for chunk in reader:
                        consistent(chunk)
                results.append("read")
            except FormatError as error:
                assert str(path) in str(error)
                results.append(str(error))
        assert results[0] == results[1]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                consistent(read_examples(path, format, skip_bad=True))
            except FormatError as error:
                assert format in ("xmc", "npz", "parquet", "arrow", "csv", "tsv") or "n_features" in str(error)


@pytest.mark.parametrize("format", FORMATS)
def test_random_bytes_never_crash(tmp_path, format):
    rng = random.Random(5)
    path = tmp_path / "data"
    alphabets = [bytes(range(256)), b"0123456789:.,e+- \n", b'{}[]":,01\n ', b"__label__ |'a:1\n"]
    for _ in range(100):
        alphabet = rng.choice(alphabets)
        path.write_bytes(bytes(rng.choices(alphabet, k=rng.randrange(200))))
        for name in (format, "auto"):
            try:
                consistent(read_examples(path, name))
            except FormatError:
                continue
