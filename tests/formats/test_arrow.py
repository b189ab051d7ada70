"""Parquet and Arrow: files, folders, tables in memory, and imitations of data sets of Hugging Face.

`_validate` is replaced to simulate a lack of memory.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import treemax
from treemax.extras import MissingExtra
from treemax.formats import Examples, FormatError, detect_format, open_examples, read_examples, write_examples
from treemax.inputs.labels import read_labels
from treemax.inputs.rows import SparseRows, as_rows

QUICK = settings(max_examples=40, deadline=None)
KINDS = ("parquet", "arrow")


def sparse_examples(n_rows: int = 60) -> Examples:
    rng = np.random.default_rng(0)
    X = sp.random(n_rows, 30, 0.2, "csr", np.float32, rng)
    X = sp.vstack([sp.csr_matrix(np.eye(30, dtype=np.float32)[-1:]), X[1:]], "csr")
    return Examples(read_labels([[int(i) % 7, 9] for i in range(n_rows)]), as_rows(X))


def dense(examples: Examples) -> np.ndarray:
    return examples.rows.to_scipy().toarray() if isinstance(examples.rows, SparseRows) else examples.rows


def write(path: Path, table: pa.Table) -> Path:
    pq.write_table(table, path)
    return path


# --- what is written is read again ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@QUICK
@given(
    texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=9), min_size=1, max_size=9),
    labels=st.lists(st.lists(st.text("ab∂", max_size=3), max_size=3), min_size=9, max_size=9),
)
def test_texts_come_back(kind, texts, labels):
    labels = labels[: len(texts)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"data.{kind}"
        write_examples(path, Examples(read_labels(labels), texts=texts))
        found = read_examples(path)
    assert found.texts == texts and list(found.labels) == labels


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_rows_come_back(kind, suffix, tmp_path):
    examples = sparse_examples()
    for number, rows in enumerate((examples.rows, dense(examples))):
        path = tmp_path / f"{number}.{kind}{suffix}"
        write_examples(path, Examples(examples.labels, rows))
        found = read_examples(path)
        assert isinstance(found.rows, SparseRows) == (number == 0)
        np.testing.assert_array_equal(dense(found), dense(examples))
        assert list(found.labels) == list(examples.labels)
        with open_examples(path, chunk_rows=7) as reader:
            chunks = list(reader)
        assert [len(chunk) for chunk in chunks] == [7] * 8 + [4]


@pytest.mark.parametrize("kind", KINDS)
def test_first_chunks_without_labels_do_not_decide_their_kind(kind, tmp_path):
    texts = [str(number) for number in range(20_000)]
    labels = [[] for _ in texts[1:]] + [["late"]]
    chunks = [Examples(read_labels(labels), texts=texts)]
    write_examples(tmp_path / f"a.{kind}", chunks)
    found = read_examples(tmp_path / f"a.{kind}")
    assert found.texts == texts and found.labels[-1] == ["late"] and found.labels[0] == []


def test_format_is_known_by_content(tmp_path):
    for kind in KINDS:
        write_examples(tmp_path / f"x.{kind}", sparse_examples())
        (tmp_path / f"x.{kind}").rename(tmp_path / kind)
        assert detect_format(tmp_path / kind) == kind


def test_arrow_stream_files_are_read(tmp_path):
    table = pa.table({"text": ["a", "b"], "label": [1, 2]})
    with pa.ipc.new_stream(tmp_path / "x.arrow", table.schema) as writer:
        writer.write_table(table)
    assert read_examples(tmp_path / "x.arrow").texts == ["a", "b"]


# --- columns -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"features": pa.array([[1, 2], [3, 4]], pa.list_(pa.int8()))}, [[1, 2], [3, 4]]),
        ({"features": pa.array([[1, 2], [3, 4]], pa.list_(pa.float64(), 2))}, [[1, 2], [3, 4]]),
        ({"b": [1.5, 2.5], "name": ["x", "y"], "a": [True, False]}, [[1.5, 1], [2.5, 0]]),
        ({"indices": [[2, 0], [1]], "values": [[1.0, 2.0], [3.0]]}, [[2, 0, 1], [0, 3, 0]]),
        ({"indices": [[2, 0, 2], []]}, [[1, 0, 2], [0, 0, 0]]),
        ({"indices": pa.array([[2, 2], [0]], pa.large_list(pa.uint32())), "values": [[1, 2], [4]]},
         [[0, 0, 3], [4, 0, 0]]),
    ],
)  # fmt: skip
def test_columns_of_features(columns, expected):
    table = pa.table({**columns, "label": ["x", "y"]})
    found = read_examples(table)
    np.testing.assert_array_equal(dense(found), np.array(expected, dtype=np.float32))
    as_given = as_rows(table)
    np.testing.assert_array_equal(dense(Examples(found.labels, as_given)), expected)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({"label": ["a", None]}, [["a"], []]),
        ({"label": [1.0, 2.0]}, [[1], [2]]),
        ({"label": pa.array(["a", "b"]).dictionary_encode()}, [["a"], ["b"]]),
        ({"labels": [["a", "b"], None]}, [["a", "b"], []]),
        ({"labels": pa.array([[1], [2]], pa.list_(pa.uint64(), 1))}, [[1], [2]]),
        ({"labels": [["a"], ["b"]], "label": [1, 2]}, [["a"], ["b"]]),
        ({"label": pa.nulls(2)}, [[], []]),
        ({}, [[], []]),
    ],
)
def test_columns_of_labels(labels, expected):
    assert list(read_examples(pa.table({"text": ["x", "y"], **labels})).labels) == expected


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ({"text": [1, 2]}, "text does not hold strings, got int64"),
        ({"text": ["a", "b"], "features": [[1.0], [2.0]]}, "columns text and features"),
        ({"name": ["a", "b"]}, r"no column holds features: .* got name \(string\)"),
        ({"features": [[1.0], [1.0, 2.0]]}, "row 1: the list of features has 2 numbers, expected 1"),
        ({"features": ["a", "b"]}, "features does not hold lists of numbers, got string"),
        ({"features": [["a"], ["b"]]}, "features does not hold numbers, got string"),
        ({"indices": [[1.5], [2.0]]}, "indices does not hold lists of integers"),
        ({"text": ["a", "b"], "labels": ["x", "y"]}, "labels does not hold lists, got string"),
        ({"text": ["a", "b"], "label": [True, False]}, "neither strings nor integers, got bool"),
        ({"text": ["a", "b"], "label": [b"x", b"y"]}, "neither strings nor integers, got binary"),
    ],
)
def test_wrong_columns_are_refused(columns, complaint, tmp_path):
    path = write(tmp_path / "x.parquet", pa.table(columns))
    with pytest.raises(FormatError, match=complaint) as error:
        read_examples(path)
    assert str(error.value).startswith(str(path))


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ({"text": ["a", None, "c"]}, "row 1: the text is missing"),
        ({"features": [[1.0], None, [2.0]]}, "row 1: the features are missing"),
        ({"features": [[1.0], [float("nan")], [2.0]]}, "row 1: a feature is not a finite number"),
        ({"features": [[1.0], [1e39], [2.0]]}, "row 1: a feature is not a finite number"),
        ({"a": [1, None, 2]}, "row 1: a feature is not a finite number"),
        ({"indices": [[1], [-1], [2]]}, "row 1: an index is out of range"),
        ({"indices": [[1], [2**32], [2]]}, "row 1: an index is out of range"),
        ({"indices": [[1], [None], [2]]}, "row 1: an index is missing"),
        ({"indices": [[1], [1, 2], [2]], "values": [[1.0], [1.0], [1.0]]}, "row 1: the numbers of values and of indices differ"),
        ({"indices": [[1], [3, 3], [2]], "values": [[1.0], [3e38, 3e38], [1.0]]}, "row 1: the sum of the values of one index overflows"),
        ({"text": ["a", "b", "c"], "labels": [["x"], ["y", None], []]}, "row 1: a label is missing"),
        ({"text": ["a", "b", "c"], "label": [1.0, 1.5, 2.0]}, "row 1: the label is neither"),
        ({"text": ["a", "b", "c"], "label": pa.array([1, 2**63, 2], pa.uint64())}, "row 1: the label is neither"),
    ],
)  # fmt: skip
def test_bad_rows_are_refused_or_left_out(columns, complaint, tmp_path):
    path = write(tmp_path / "x.parquet", pa.table(columns))
    with pytest.raises(FormatError, match=complaint):
        read_examples(path)
    with open_examples(path, skip_bad=True) as reader:
        assert sum(map(len, reader)) == 2
    assert reader.bad_lines == 1 and complaint.replace("\\", "") in reader.bad_messages[0]


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_are_refused(kind, tmp_path):
    whole = tmp_path / f"whole.{kind}"
    write_examples(whole, sparse_examples())
    content = whole.read_bytes()
    for number, damaged in enumerate((content[:-9], content[: len(content) // 2], content[:20], b"")):
        path = tmp_path / f"{number}.{kind}"
        path.write_bytes(damaged)
        with pytest.raises(FormatError, match="not a valid"):
            read_examples(path)


def test_table_without_rows(tmp_path):
    path = write(tmp_path / "x.parquet", pa.table({"text": pa.array([], pa.string())}))
    assert len(read_examples(path)) == 0
    with pytest.raises(ValueError, match="no examples to write"):
        write_examples(tmp_path / "y.parquet", [])
    assert not (tmp_path / "y.parquet").exists()


# --- folders -------------------------------------------------------------------------------------------


def folder_of(tmp_path: Path, suffix: str = "parquet") -> tuple[Path, Examples]:
    examples = sparse_examples()
    folder = tmp_path / "shards"
    (folder / "later").mkdir(parents=True)
    for name, part in (("b", slice(20, 40)), ("a", slice(0, 20)), ("later/c", slice(40, 60))):
        write_examples(folder / f"{name}.{suffix}", examples[part])
    (folder / "_SUCCESS").write_text("")
    (folder / ".hidden").write_text("{")
    return folder, examples


@pytest.mark.parametrize("suffix", ["parquet", "svm.gz", "jsonl"])
def test_folder_is_read_in_the_order_of_names(suffix, tmp_path):
    folder, examples = folder_of(tmp_path, suffix)
    found = read_examples(folder, zero_based=True)
    np.testing.assert_array_equal(dense(found), dense(examples))
    assert list(found.labels) == list(examples.labels)
    with open_examples(folder, chunk_rows=9) as reader:
        assert [len(chunk) for chunk in reader] == [9] * 6 + [6]
        assert reader.position == reader.size


def test_empty_shards_do_no_harm(tmp_path):
    folder, examples = folder_of(tmp_path)
    empty = pa.table({"indices": pa.array([], pa.list_(pa.uint32())), "labels": pa.array([], pa.list_(pa.string()))})
    write(folder / "aa.parquet", empty)
    np.testing.assert_array_equal(dense(read_examples(folder)), dense(examples))


def test_folders_that_do_not_go_together_are_refused(tmp_path):
    folder, _ = folder_of(tmp_path)
    write_examples(folder / "d.svm", sparse_examples())
    with pytest.raises(FormatError, match=r"files of one format are expected, got a.parquet \(parquet\) and d.svm"):
        open_examples(folder)
    (folder / "d.svm").unlink()
    write(folder / "d.parquet", pa.table({"text": ["x"]}))
    with pytest.raises(FormatError, match=r"d.parquet: has texts, the files before it have sparse rows"):
        read_examples(folder)
    write(folder / "d.parquet", pa.table({"indices": [[1]], "label": ["x"]}))
    with pytest.raises(FormatError, match=r"d.parquet: labels are strings, those before them integers"):
        read_examples(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FormatError, match="no files in this folder"):
        open_examples(tmp_path / "empty")


def test_shard_that_vanishes_is_named(tmp_path):
    folder, _ = folder_of(tmp_path)
    with open_examples(folder, chunk_rows=5) as reader:
        chunks = iter(reader)
        next(chunks)
        (folder / "b.parquet").unlink()
        with pytest.raises(FileNotFoundError, match=r"b\.parquet"):
            list(chunks)


def test_bad_rows_name_their_shard(tmp_path):
    folder, _ = folder_of(tmp_path)
    write(folder / "bad.parquet", pa.table({"indices": [[1], None], "labels": [[1], [2]]}))
    with pytest.raises(FormatError, match=r"bad\.parquet: row 1: the indices are missing"):
        read_examples(folder)


# --- tables and data sets ------------------------------------------------------------------------------


class LooksLikeHuggingFace:
    """The two methods that the library asks a data set of Hugging Face for."""

    def __init__(self, table: pa.Table, as_dictionaries: bool) -> None:
        self.table, self.as_dictionaries = table, as_dictionaries
        self.format = None

    def with_format(self, format: str) -> LooksLikeHuggingFace:
        twin = LooksLikeHuggingFace(self.table, self.as_dictionaries)
        twin.format = format
        return twin

    def iter(self, batch_size: int):
        assert self.format == "arrow"
        for start in range(0, len(self.table), batch_size):
            part = self.table.slice(start, batch_size)
            yield part.to_pydict() if self.as_dictionaries else part


def texts_table() -> pa.Table:
    rng = np.random.default_rng(0)
    words = rng.choice(["red", "green", "fast", "slow", "loud"], (400, 3))
    return pa.table({"text": [" ".join(row) for row in words], "label": [row[0] for row in words]})


def ways(table: pa.Table, folder: Path) -> dict[str, object]:
    """One and the same table in all forms that are accepted."""
    pq.write_table(table, folder / "x.parquet", row_group_size=150)
    return {
        "file": folder / "x.parquet",
        "table": table,
        "batches": pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=70)),
        "batch": table.combine_chunks().to_batches()[0],
        "dataset": pyarrow.dataset.dataset(folder / "x.parquet"),
        "hugging face": LooksLikeHuggingFace(table, False),
        "hugging face, dictionaries": LooksLikeHuggingFace(table, True),
    }


def test_all_forms_give_the_same_examples_and_the_same_model(tmp_path):
    table = texts_table()
    answers = {}
    for name, source in ways(table, tmp_path).items():
        model = treemax.TextModel(treemax.HashingText(bits=10), treemax.OnlineLabelTree())
        model.fit_stream(source, chunk_rows=64)
        answers[name] = model.predict_topk(table["text"], 3).scores.tobytes()
    assert len(set(answers.values())) == 1
    for source in ways(table, tmp_path).values():
        found = read_examples(source)
        assert found.texts == table["text"].to_pylist()
        assert [labels[0] for labels in found.labels] == table["label"].to_pylist()


def test_splits_must_be_chosen():
    splits = {name: LooksLikeHuggingFace(texts_table(), False) for name in ("train", "test")}
    with pytest.raises(ValueError, match=r"splits train, test: choose one, such as data\['train'\]"):
        read_examples(splits)


def test_tables_as_X_and_y():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 4)).astype(np.float32)
    table = pa.table({**{f"c{j}": X[:, j] for j in range(4)}, "label": ["a" if x > 0 else "b" for x in X[:, 0]]})
    model = treemax.OneVsAll(verbose=0).fit(table, table["label"])
    assert model.n_features_in_ == 4
    np.testing.assert_array_equal(model.predict(table), model.predict(X))
    with pytest.raises(ValueError, match=r"Input X, row 1: a feature is not a finite number"):
        model.predict(pa.table({"c": [1.0, None]}))
    with pytest.raises(ValueError, match="holds texts"):
        as_rows(pa.table({"text": ["a"]}))


def test_progressive_validation_takes_tables_and_files(tmp_path):
    table = texts_table()
    results = []
    for source in (ways(table, tmp_path)["file"], table):
        model = treemax.TextModel(treemax.HashingText(bits=10), treemax.OneVsAll(verbose=0))
        results.append(treemax.progressive_validation(model, source, chunk_rows=10).metrics["P@1"])
    assert results[0] == results[1] > 0.4


def test_without_pyarrow_the_error_says_what_to_install(monkeypatch, tmp_path):
    path = tmp_path / "x.parquet"
    write_examples(path, sparse_examples())
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyarrow"]:
        monkeypatch.setitem(sys.modules, name, None)
    for work in (lambda: read_examples(path), lambda: write_examples(tmp_path / "y.arrow", sparse_examples())):
        with pytest.raises(MissingExtra, match=r"(Parquet|Arrow) needs pyarrow: pip install 'treemax\[arrow\]'"):
            work()


# --- files that are not what they should be ------------------------------------------------------------


def saved(path: Path, table: pa.Table) -> Path:
    if path.suffix == ".parquet":
        return write(path, table)
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_lists_of_features_that_are_missing_or_of_another_length(kind, tmp_path):
    lists = [None, None, [1.0, 2.0], [1.0], [], [3.0, 4.0], None]
    path = saved(tmp_path / f"data.{kind}", pa.table({"features": lists, "label": list("abcdefg")}))
    with pytest.raises(FormatError, match=r"row 0: the features are missing"):
        read_examples(path)
    with open_examples(path, skip_bad=True) as reader:
        (chunk,) = reader
    assert chunk.rows.tolist() == [[1, 2], [3, 4]] and list(chunk.labels) == [["c"], ["f"]]
    assert "row 3: the list of features has 1 numbers, expected 2" in reader.bad_messages[2]
    nothing = pa.table({"features": pa.array([None, None], pa.list_(pa.float32())), "label": [1, 2]})
    with pytest.warns(UserWarning, match="2 malformed"):
        assert len(read_examples(saved(path, nothing), skip_bad=True)) == 0
    assert len(read_examples(saved(path, nothing[:0]))) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_strings_that_are_not_utf8_are_skipped_by_row(kind, tmp_path):
    texts = pa.array([b"a", b"\xff", b"c", b"d"]).view(pa.string())
    flat = pa.array([b"x", b"y", b"\xfe", b"z"]).view(pa.string())
    labels = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3, 4], pa.int32()), flat)
    path = saved(tmp_path / f"data.{kind}", pa.table({"text": texts, "labels": labels}))
    with pytest.raises(FormatError, match="row 1: a string is not UTF-8"):
        read_examples(path)
    with pytest.warns(UserWarning, match="2 malformed"):
        found = read_examples(path, skip_bad=True)
    assert found.texts == ["a", "d"] and list(found.labels) == [["x"], ["z"]]


def test_names_of_columns_that_are_not_utf8(tmp_path):
    path = write(tmp_path / "data.parquet", pa.table({"text": ["a"], "colour": ["b"]}))
    path.write_bytes(path.read_bytes().replace(b"colour", b"c\xffl\xffur"))
    with pytest.raises(FormatError, match=r"data\.parquet: not a valid Parquet file"):
        read_examples(path)


def test_an_arrow_file_that_claims_more_memory_than_there_is(tmp_path, monkeypatch):
    path = saved(tmp_path / "data.arrow", pa.table({"text": ["a"], "label": [1]}))

    def no_memory(batch):
        raise MemoryError

    monkeypatch.setattr("treemax.formats.arrow._validate", no_memory)
    with pytest.raises(FormatError, match=r"data\.arrow: not a valid Arrow file \(out of memory"):
        read_examples(path)
