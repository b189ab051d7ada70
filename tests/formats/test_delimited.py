"""CSV and TSV files."""

from __future__ import annotations

import csv
import gzip
import io
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treemax.formats import Examples, FormatError, detect_format, open_examples, read_examples, write_examples
from treemax.formats.delimited import MAX_FIELD
from treemax.inputs.labels import read_labels


def read(path: Path, content: str | bytes, **options: object) -> tuple[list[str], list[list[str]]]:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    examples = read_examples(path, **options)
    return examples.texts, [list(labels) for labels in examples.labels]


def error_of(path: Path, content: str | bytes, **options: object) -> str:
    with pytest.raises(FormatError) as caught:
        read(path, content, **options)
    said = str(caught.value)
    assert said.startswith(str(path))
    return said.removeprefix(str(path))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data.csv"


def test_a_header_and_quoted_fields_with_line_breaks(path: Path) -> None:
    content = '\ufefftext,id,label\r\n"It ""purrs"",\r\nand sleeps",1,cat\r\n\r\nIt barks.,2,dog\nIt is,3,'
    expected = ['It "purrs",\r\nand sleeps', "It barks.", "It is"], [["cat"], ["dog"], []]
    assert read(path, content) == expected
    assert read(path.with_suffix(".csv.gz"), gzip.compress(content.encode())) == expected
    assert read(path.with_suffix(".tsv"), content.replace(",", "\t"))[1] == expected[1]
    assert read(path.with_suffix(".txt"), content, format="csv") == expected
    assert [detect_format(name) for name in ("a.csv", "b.CSV.gz", "c.tsv")] == ["csv", "csv", "tsv"]


def test_columns_by_name_and_several_labels(path: Path) -> None:
    content = 'body,tags,title\nIt purrs.,"cat, pet,",x\nIt is.,,y\n'
    named = {"text_column": "body", "label_column": "tags"}
    assert read(path, content, **named) == (["It purrs.", "It is."], [["cat, pet,"], []])
    assert read(path, content, **named, label_separator=",")[1] == [["cat", "pet"], []]
    assert read(path, content, text_column="title", label_column="") == (["x", "y"], [[], []])
    assert read(path, "text,labels\nIt purrs., cat|pet \n")[1] == [["cat", "pet"]]
    assert read(path, "text,label\nIt purrs.,cat|pet\n")[1] == [["cat|pet"]]
    assert read(path, "text,label\ncode,0101\nother,7.5\n")[1] == [["0101"], ["7.5"]]  # labels are strings
    assert read(path, "text\nIt purrs.\n") == (["It purrs."], [[]])
    with open_examples(path, text_column="text") as reader:
        assert reader.read_all().texts == ["It purrs."]


@pytest.mark.parametrize(
    ("header", "options", "said"),
    [
        ("a,b", {}, ":1: no column is called 'text'. Name the column of the texts with text_column (--text-column); "
         "columns of numbers are not read as features, use parquet, npz or svmlight for those. The columns are 'a', 'b'"),
        ("text,kind", {}, ":1: no column is called 'label' or 'labels'. Name the column of the labels with label_column "
         "(--label-column), \"\" for none. The columns are 'text', 'kind'"),
        ("text,kind", {"label_column": "kinds"}, ":1: no column is called 'kinds'."),
        ("text,label,labels", {}, ":1: more than one column is called 'label' or 'labels'."),
        ("text,text,label", {}, ":1: more than one column is called 'text'."),
        ('"text,label', {}, ":1: a quoted field is not closed before the end of the file, got"),
        ("", {}, ": is empty: there is no header with the names of the columns"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("skip_bad", [False, True])
def test_what_is_wrong_with_a_header(
    path: Path, header: str, options: dict[str, str], said: str, skip_bad: bool
) -> None:
    assert error_of(path, header + "\n", skip_bad=skip_bad, **options).startswith(said)


def test_many_columns_are_not_all_listed(path: Path) -> None:
    said = error_of(path, ",".join(f"column {number}" for number in range(5000)) + "\n")
    assert "--text-column" in said and "'column 9'" in said and len(said) < 600


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"one,two,three", "3 fields, but the header has 2, got 'one' first"),
        (b"one", "1 fields, but the header has 2"),
        (b"a\rb,x", "a carriage return outside quotes"),
        (b"\xff,x", "column 'text' is not UTF-8"),
        (b"x,\xe9", "column 'label' is not UTF-8"),
    ],
)
def test_malformed_rows_are_named_and_skipped(path: Path, line: bytes, said: str) -> None:
    content = b'text,label\n"first\nrow",a\n' + line + b"\nlast,b\n"
    assert error_of(path, content).startswith(f":4: {said}")
    with pytest.warns(UserWarning, match=r"1 malformed line\(s\) skipped, first .*data.csv:4: "):
        assert read(path, content, skip_bad=True) == (["first\nrow", "last"], [["a"], ["b"]])


def test_an_open_quote_costs_one_row(path: Path) -> None:
    rows = [f"text {number},label" for number in range(20_000)]
    rows[5] = '"open,label'
    content = "text,label\n" + "\n".join(rows) + "\n"
    assert error_of(path, content).startswith(":7: a quoted field is not closed")
    with open_examples(path, skip_bad=True) as reader:
        assert sum(map(len, reader)) == 19_999 and reader.bad_lines == 1


def test_a_text_may_be_long_but_not_endless(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(read(path, "text,label\n" + "a" * 300_000 + ",b\n")[0][0]) == 300_000
    assert csv.field_size_limit() >= MAX_FIELD
    limit = csv.field_size_limit(1000)
    try:
        monkeypatch.setattr("treemax.formats.delimited.MAX_FIELD", 1000)
        content = 'text,label\n"' + "open\n" * 900 + "good,b\n"
        assert "or its quote is not closed" in error_of(path, content)
        with open_examples(path, skip_bad=True) as reader:
            assert [chunk.texts for chunk in reader] == [["good"]]
    finally:
        csv.field_size_limit(limit)


texts = st.text(st.characters(blacklist_categories=("Cs",)), max_size=12)


@settings(deadline=None)
@given(rows=st.lists(st.tuples(texts, texts), max_size=6), delimiter=st.sampled_from(",\t"))
def test_reads_as_the_csv_module(tmp_path_factory: pytest.TempPathFactory, rows, delimiter) -> None:
    out = io.StringIO(newline="")
    csv.writer(out, delimiter=delimiter).writerows([("text", "label"), *rows])
    path = tmp_path_factory.mktemp("table") / f"data.{'csv' if delimiter == ',' else 'tsv'}"
    found = read(path, out.getvalue())
    assert found == ([text for text, _ in rows], [[label] if label else [] for _, label in rows])


def test_written_with_another_separator(path: Path) -> None:
    examples = Examples(read_labels([["a|b", "c"], []]), texts=["one\ntwo", "three"])
    with pytest.raises(ValueError, match=r"cannot hold the label 'a\|b' of row 0.*--label-separator"):
        write_examples(path, examples)
    write_examples(path, examples, label_separator=";")
    assert path.read_text().splitlines()[0] == "text,labels"
    assert list(read_examples(path, label_separator=";").labels) == [["a|b", "c"], []]
    with pytest.raises(ValueError, match="The csv format holds text"):
        write_examples(path, Examples(read_labels([["a"]]), read_vectors()))


def read_vectors():
    from treemax.inputs.rows import as_rows

    return as_rows([[1.0, 2.0]])


def test_columns_are_for_tables_only(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text('{"text": "a", "label": "b"}\n')
    with pytest.raises(ValueError, match=r"text_column is for csv and tsv files, but .*jsonl is read as jsonl"):
        read_examples(tmp_path / "data.jsonl", text_column="body")
    with pytest.raises(ValueError, match="label_column must be a string, got 3"):
        read_examples(tmp_path / "data.jsonl", label_column=3)


def test_a_folder_of_tables(tmp_path: Path) -> None:
    for name in "ba":
        (tmp_path / f"{name}.csv").write_text(f"label,text\n{name},text {name}\n")
    assert read_examples(tmp_path).texts == ["text a", "text b"]
    assert detect_format(tmp_path) == "csv"


def test_rows_are_there_as_they_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    receiver, sender = os.pipe()
    with open(receiver, "rb") as stdin, open(sender, "wb", buffering=0) as pipe:  # noqa: PTH123
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(stdin))
        timer = threading.Timer(60, pipe.close)  # so that a failure is not an endless wait
        timer.start()
        pipe.write(b"text,label\none,a\n")
        with open_examples("-", "csv", chunk_rows=1) as reader:
            chunks = iter(reader)
            assert next(chunks).texts == ["one"]
            pipe.write(b"two,b\n")
            assert next(chunks).texts == ["two"]
            assert timer.is_alive()
            timer.cancel()
            pipe.close()
            assert next(chunks, None) is None
