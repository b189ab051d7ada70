"""Conversions between all formats, tables and compressed files."""

from __future__ import annotations

import csv
import gzip
import itertools
import json

import numpy as np
import pytest

from tests.cli.commands import FEATURE_FORMATS, TEXT_FORMATS, done, refused, treemax_command
from treemax.formats import read_examples


@pytest.mark.parametrize(("source", "target"), list(itertools.permutations(FEATURE_FORMATS, 2)))
def test_features_convert_between_all_formats(folder, tmp_path, source, target):
    out = tmp_path / f"out.{target}"
    done("convert", folder / FEATURE_FORMATS[source], out, "--format", target, "--from", source)
    original, converted = read_examples(folder / "data.xmc"), read_examples(out, target, zero_based=True)
    assert [list(row) for row in converted.labels] == [list(row) for row in original.labels]
    ours, theirs = original.rows.to_scipy().toarray(), converted.rows
    theirs = theirs if isinstance(theirs, np.ndarray) else theirs.to_scipy().toarray()
    columns = np.flatnonzero(ours.any(axis=0))
    if "vw" in (source, target) and theirs.shape[1] > 9:  # names of columns may have been hashed
        columns = np.flatnonzero(theirs.any(axis=0))
        assert sorted(map(sorted, theirs[:, columns].tolist())) == sorted(
            sorted(row) for row in ours[:, np.flatnonzero(ours.any(axis=0))].tolist()
        )
    else:
        np.testing.assert_array_equal(theirs[:, columns], ours[:, columns])


@pytest.mark.parametrize(("source", "target"), list(itertools.permutations(TEXT_FORMATS, 2)))
def test_texts_convert_between_all_formats(folder, tmp_path, source, target):
    out = tmp_path / ("out." + TEXT_FORMATS[target].partition(".")[2])
    done("convert", folder / TEXT_FORMATS[source], out)
    original, converted = read_examples(folder / "train.txt"), read_examples(out)
    assert converted.texts == original.texts and list(converted.labels) == list(original.labels)


@pytest.mark.parametrize(
    ("source", "target"),
    [("train.txt", "svmlight"), ("train.txt", "xmc"), ("train.txt", "vw"), ("data.svm", "fasttext")],
)
def test_conversions_that_make_no_sense_say_so(folder, tmp_path, source, target):
    out = tmp_path / "out.data"
    out.write_text("what was there")
    message = refused("convert", folder / source, out, "--format", target)
    assert target in message or "text" in message
    assert out.read_text() == "what was there" and list(tmp_path.iterdir()) == [out]


def test_tables_with_columns_of_other_names(folder, tmp_path):
    """The columns of training are those of the model, and of the data that it is given later."""
    texts = read_examples(folder / "multi.txt")
    table = tmp_path / "table.csv"
    with table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "body", "kinds"])
        writer.writerows([row, text, "; ".join(own)] for row, (text, own) in enumerate(zip(texts.texts, texts.labels)))
    columns = ["--text-column", "body", "--label-column", "kinds", "--label-separator", ";"]
    model, same = tmp_path / "table.treemax", tmp_path / "same.treemax"
    done("fit", table, "-o", model, "--model", "one-vs-all", *columns)
    done("fit", folder / "multi.txt", "-o", same, "--model", "one-vs-all")
    assert done("predict", model, table) == done("predict", same, folder / "multi.txt", "--jobs", 1)
    measured = json.loads(done("eval", model, table, "--json"))
    assert measured["P@1"] == json.loads(done("eval", same, folder / "multi.txt", "--json"))["P@1"]
    assert json.loads(done("stream", table, "--json", *columns).splitlines()[-1])["n"] == 100

    (tmp_path / "new.csv").write_text("id,body\n1,ripe apple\n")  # there need not be labels to predict
    assert len(done("predict", model, tmp_path / "new.csv").splitlines()) == 1
    assert "new.csv:1: no column is called 'kinds'" in refused("eval", model, tmp_path / "new.csv")
    assert "--text-column" in refused("fit", table, "-o", model)
    message = refused("fit", folder / "train.txt", "-o", model, "--text-column", "body")
    assert "text_column is for csv and tsv files" in message
    done("convert", table, tmp_path / "out.jsonl", *columns)
    assert list(read_examples(tmp_path / "out.jsonl").labels) == list(texts.labels)
    done("convert", tmp_path / "out.jsonl", tmp_path / "out.tsv", "--label-separator", ";")
    assert list(read_examples(tmp_path / "out.tsv", label_separator=";").labels) == list(texts.labels)


def test_malformed_rows_of_a_table_are_skipped(tmp_path):
    table = tmp_path / "table.csv"
    table.write_text("text,label\nripe apple,fruit\nfast car\nfast motor,car\n")
    assert "table.csv:3: 1 fields, but the header has 2" in refused("fit", table, "-o", tmp_path / "m.treemax")
    result = treemax_command("fit", table, "-o", tmp_path / "m.treemax", "--skip-bad")
    assert result.exit_code == 0 and "Skipped 1 malformed line" in result.stderr


def test_converting_a_file_onto_itself_keeps_it(folder, tmp_path):
    data = tmp_path / "data.svm"
    data.write_bytes((folder / "data.svm").read_bytes())
    done("convert", data, data)
    assert data.read_bytes() == (folder / "data.svm").read_bytes()


def test_gzip_is_read_and_written_as_it_is(folder, tmp_path):
    packed = tmp_path / "train.txt.gz"
    packed.write_bytes(gzip.compress((folder / "train.txt").read_bytes()))
    plain = done("predict", folder / "text.treemax", folder / "train.txt")
    assert done("predict", folder / "text.treemax", packed) == plain
    done("convert", packed, tmp_path / "out.jsonl.gz")
    assert (tmp_path / "out.jsonl.gz").read_bytes()[:2] == b"\x1f\x8b"
    assert read_examples(tmp_path / "out.jsonl.gz").texts == read_examples(folder / "train.txt").texts
