"""End-to-end tests of the command line: all commands and formats, pipes, Ctrl-C, and errors without tracebacks.

`modelfile._write_array` is replaced to simulate a full disk.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import treemax
from treemax import OneVsAll
from treemax.cli.main import commands
from treemax.cli.options import read_value
from treemax.formats import FORMATS, read_examples, write_examples
from treemax.replacing import lock_folder

WORDS = {
    "fruit": ["apple", "pear", "plum", "ripe"],
    "car": ["wheel", "motor", "road", "fast"],
    "sea": ["wave", "salt", "fish", "deep"],
}
EVAL_LINES = [
    "n", "n_unlabelled", "n_unseen", "P@1", "P@3", "P@5", "recall@5", "nDCG@5", "PSP@1", "PSP@3", "PSP@5", "macro_F1@1",
    "label_coverage@5", "labels_known", "ms_per_example", "model_mb",
]  # fmt: skip
FEATURE_FORMATS = {
    "xmc": "data.xmc",
    "svmlight": "data.svm",
    "vw": "data.vw",
    "jsonl": "data.jsonl",
    "npz": "data.npz",
    "parquet": "data.parquet",
    "arrow": "data.arrow",
}
TEXT_FORMATS = {
    "fasttext": "text.ft", "jsonl": "text.jsonl", "npz": "text.npz", "parquet": "text.parquet", "arrow": "text.arrow",
    "csv": "text.csv", "tsv": "text.tsv",
}  # fmt: skip


def treemax_command(*arguments: object):
    """Run a command in this process; its result has exit_code, stdout and stderr."""
    result = CliRunner().invoke(commands, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result


def done(*arguments: object) -> str:
    result = treemax_command(*arguments)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def refused(*arguments: object, code: int = 1) -> str:
    result = treemax_command(*arguments)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.stderr and "Error: " in result.stderr
    return result.stderr.partition("Error: ")[2].strip()


def process(*arguments: object, **options) -> subprocess.CompletedProcess:
    """Run a command in a process of its own."""
    command = [sys.executable, "-m", "treemax", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Small data in every format, one- and multi-label, and a model of texts and one of features."""
    folder = tmp_path_factory.mktemp("cli")
    draw = random.Random(0)
    lines, multi, features = [], [], ["100 9 3"]
    for _ in range(100):
        name, other = draw.sample(list(WORDS), 2)
        lines.append(f"__label__{name} " + " ".join(draw.choices(WORDS[name], k=4)))
        multi.append(f"__label__{name} __label__{other} " + " ".join(draw.choices(WORDS[name] + WORDS[other], k=6)))
        label = draw.randrange(3)
        features.append(f"{label} {label + 1}:1 {draw.randrange(5, 9)}:0.5")
    (folder / "train.txt").write_text("\n".join(lines) + "\n")
    (folder / "multi.txt").write_text("\n".join(multi) + "\n")
    (folder / "data.xmc").write_text("\n".join(features) + "\n")
    examples = read_examples(folder / "data.xmc")
    for name in set(FEATURE_FORMATS.values()) - {"data.xmc"}:
        write_examples(folder / name, examples)
    texts = read_examples(folder / "train.txt")
    for name in TEXT_FORMATS.values():
        write_examples(folder / name, texts)
    done("fit", folder / "train.txt", "-o", folder / "text.treemax")
    done("fit", folder / "data.svm", "-o", folder / "features.treemax")
    return folder


# --- rounds ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["train.txt", "multi.txt", *FEATURE_FORMATS.values(), *TEXT_FORMATS.values()])
def test_fit_predict_eval_info_stream_in_every_format(folder, tmp_path, name):
    data, model = folder / name, tmp_path / "model.treemax"
    fitted = treemax_command("fit", data, "-o", model, "--model", "one-vs-all", "--set", "passes=4", "--jobs", 1)
    assert fitted.exit_code == 0 and fitted.stdout == ""
    assert "OneVsAll" in fitted.stderr and "100" in fitted.stderr

    answers = [json.loads(line) for line in done("predict", model, data, "--top", 2).splitlines()]
    truth = read_examples(data, zero_based=True).labels
    assert len(answers) == 100
    assert all(list(answer) == ["labels", "scores"] and len(answer["labels"]) == 2 for answer in answers)
    assert all(answer["scores"] == sorted(answer["scores"], reverse=True) for answer in answers)
    hits = np.mean([answer["labels"][0] in truth[row] for row, answer in enumerate(answers)])
    assert hits > 0.95

    measured = json.loads(done("eval", model, data, "--json"))
    assert set(EVAL_LINES) <= set(measured)
    assert measured["n"] == 100 and measured["P@1"] == pytest.approx(hits)
    assert measured["model_mb"] == model.stat().st_size / 1e6
    table = done("eval", model, data)
    shown = [line.split()[0] for line in table.splitlines()]
    of_predict = ["micro_F1", "macro_F1"] if name == "multi.txt" else []
    assert shown == [*EVAL_LINES[:-3], *of_predict, *EVAL_LINES[-3:]]

    facts = json.loads(done("info", model, "--json"))
    assert facts["model"] == "OneVsAll" and facts["labels"] == 3 and facts["bytes"] == model.stat().st_size
    assert facts["examples"] == 100 and facts["multi_label"] == (name == "multi.txt")
    assert "labels" in done("info", model, "--verify")

    reports = [json.loads(line) for line in done("stream", data, "--json").splitlines()]
    assert [report["examples"] for report in reports[:-1]] == [1, 2, 4, 8, 16, 32, 64, 100]
    assert reports[-1]["n"] == 100 and reports[-1]["P@1"] == reports[-2]["precision"] > 0.7


@pytest.mark.parametrize("name", ["train.txt", "multi.txt", "text.parquet", "data.svm", "data.arrow"])
def test_fit_with_little_memory_gives_the_same_file(folder, tmp_path, name):
    arguments = ["fit", folder / name, "--model", "label-tree", "--set", "max_leaf=2"]
    done(*arguments, "-o", tmp_path / "memory.treemax")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    for more in ([], ["--scratch", scratch]):
        done(*arguments, "-o", tmp_path / "disk.treemax", "--memory", "4GB", *more)
        assert (tmp_path / "disk.treemax").read_bytes() == (tmp_path / "memory.treemax").read_bytes()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["disk.treemax", "memory.treemax", "scratch"]
    assert "expected a size such as 2GB" in refused(*arguments, "-o", tmp_path / "x", "--memory", "lots", code=2)
    assert "is too little for" in refused(*arguments, "-o", tmp_path / "x", "--memory", "10MB")
    arguments[3] = "one-vs-all"
    assert "--memory is for label-tree" in refused(*arguments[:4], "-o", tmp_path / "x", "--memory", "1GB", code=2)


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


@pytest.mark.parametrize("command", ["fit", "stream"])
def test_a_model_never_replaces_its_data(folder, tmp_path, command):
    data, link = tmp_path / "train.txt", tmp_path / "link.treemax"
    data.write_bytes((folder / "train.txt").read_bytes())
    link.symlink_to(data)
    for arguments in ((data, "-o", data), ("-o", data, data), ("-o", link, data)):
        result = treemax_command(command, *arguments)
        assert result.exit_code == 2 and "is DATA itself" in result.stderr
    assert data.read_bytes() == (folder / "train.txt").read_bytes()


def test_gzip_is_read_and_written_as_it_is(folder, tmp_path):
    packed = tmp_path / "train.txt.gz"
    packed.write_bytes(gzip.compress((folder / "train.txt").read_bytes()))
    plain = done("predict", folder / "text.treemax", folder / "train.txt")
    assert done("predict", folder / "text.treemax", packed) == plain
    done("convert", packed, tmp_path / "out.jsonl.gz")
    assert (tmp_path / "out.jsonl.gz").read_bytes()[:2] == b"\x1f\x8b"
    assert read_examples(tmp_path / "out.jsonl.gz").texts == read_examples(folder / "train.txt").texts


def test_a_stream_is_continued_where_it_stopped(folder, tmp_path):
    lines = (folder / "train.txt").read_text().splitlines(keepends=True)
    for name, part in (("first", lines[:60]), ("second", lines[60:])):
        (tmp_path / f"{name}.txt").write_text("".join(part))
    done("stream", folder / "train.txt", "-o", tmp_path / "whole.treemax")
    done("stream", tmp_path / "first.txt", "-o", tmp_path / "half.treemax")
    done("stream", tmp_path / "second.txt", "--start", tmp_path / "half.treemax", "-o", tmp_path / "both.treemax")
    answers = [done("predict", tmp_path / f"{name}.treemax", folder / "train.txt") for name in ("whole", "both")]
    assert answers[0] == answers[1]
    assert json.loads(done("info", tmp_path / "both.treemax", "--json"))["examples"] == 100


def test_a_stream_finds_out_whether_rows_have_several_labels(tmp_path):
    data = tmp_path / "data.txt"
    data.write_text("__label__a x\n__label__a __label__b y\nz\n")
    model = tmp_path / "model.treemax"
    assert json.loads(done("stream", data, "--json", "-o", model).splitlines()[-1])["n"] == 3
    assert json.loads(done("info", model, "--json"))["multi_label"]
    data.write_text("__label__a x\n__label__ y\n__label__a __label__b y\n")  # the malformed line comes first
    assert "data.txt:2:" in refused("stream", data)
    assert json.loads(done("stream", data, "--json", "--skip-bad").splitlines()[-1])["n"] == 2


def test_a_model_may_be_named_as_its_class(folder, tmp_path):
    models = [tmp_path / name for name in ("LabelTree", "label-tree")]
    for model in models:
        done("fit", folder / "train.txt", "-o", model, "--model", model.name)
    assert models[0].read_bytes() == models[1].read_bytes()


def streamed(rows, *options):
    result = CliRunner().invoke(commands, ["stream", "-", "--json", *map(str, options)], input=rows.encode())
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()], result.stderr


def test_a_pipe_becomes_multi_label_at_the_first_row_with_several_labels(tmp_path):
    rows = "".join(f"__label__{row % 3} word{row % 3}\n" for row in range(5)) + "z\n"
    rows += "__label__0 __label__1 word0 word1\n__label__2 word2\n"
    models = [tmp_path / "found.treemax", tmp_path / "told.treemax"]
    predictions = tmp_path / "predictions.jsonl"
    found, messages = streamed(rows, "-o", models[0], "--predictions", predictions)
    told, _ = streamed(rows, "-o", models[1], "--multi-label")
    assert "Example 7 has several labels" in messages
    assert [line["examples"] for line in found[:-1]] == [1, 2, 4, 8]
    assert found[-1]["n"] == 8 and found[-1]["P@1"] == told[-1]["P@1"]
    assert models[0].read_bytes() == models[1].read_bytes()
    assert len(predictions.read_text().splitlines()) == 7  # the row without a label was not predicted at first


def test_a_stream_that_cannot_become_multi_label_keeps_what_it_learned(tmp_path, monkeypatch):
    rows = "__label__a x\n__label__b y\n__label__a __label__b y\n"
    model = tmp_path / "model.treemax"
    for options in (["--model", "recall-tree"], ["--start", str(model)]):
        result = CliRunner().invoke(commands, ["stream", "-", "-o", str(model), *options], input=rows.encode())
        assert result.exit_code == 1
        assert ("one label per row" in result.stderr) == (options[0] == "--model")
        assert ("without --start" in result.stderr) == (options[0] == "--start")
    assert json.loads(done("info", model, "--json"))["examples"] == 4
    monkeypatch.setattr("treemax.cli.stream.KEPT_EXAMPLES", 1)
    result = CliRunner().invoke(commands, ["stream", "-"], input=rows.encode())
    assert result.exit_code == 1 and "example 3 has several labels" in result.stderr
    assert "--multi-label" in result.stderr


@pytest.mark.parametrize("chunk", ["1", "2", "1000"])
def test_a_multi_label_stream_may_begin_without_labels(chunk):
    options = ("--multi-label", "--format", "fasttext", "--chunk", chunk)
    rows = "x\n__label__a y\n__label__a __label__b z\n"
    for model in ("auto", "online-label-tree"):
        lines, messages = streamed(rows, *options, "--model", model)
        assert lines[-1]["n"] == 3 and "Left out" not in messages
    lines, messages = streamed(rows, *options, "--model", "one-vs-all")  # it begins with the first label
    left_out = chunk == "1"
    assert lines[-1]["n"] == 3 - left_out and ("Left out 1 row before the first" in messages) == left_out


def test_eval_and_stream_report_the_same(folder, tmp_path):
    data, model = folder / "multi.txt", tmp_path / "model.treemax"
    lines = done("stream", data, "--chunk", 50, "-o", model, "--k", 2, "--json").splitlines()
    streamed = json.loads(lines[-1])
    measured = json.loads(done("eval", model, data, "--k", 2, "--json"))
    assert "P@2" in measured and "P@5" not in measured
    in_both = [name for name in measured if name in streamed]
    assert in_both == [name for name in streamed if name in measured]
    only = {"PSP", "PSnDCG", "n_unseen", "model_mb"}  # of a model that is trained, and a file
    of_predict = {"micro_F1", "macro_F1"}
    assert {name.partition("@")[0] for name in measured.keys() - streamed.keys()} == only | of_predict
    assert streamed.keys() - measured.keys() == {"learn_ms_per_example"}
    tables = [
        [line.split()[0] for line in done(*command, "--k", 2).split("\n\n")[-1].splitlines()]
        for command in (["eval", model, data], ["stream", data, "--chunk", 50])
    ]
    assert [name for name in tables[0] if name in tables[1]] == tables[1][:-1]


@pytest.mark.parametrize("name", ["train.txt", "data.svm"])
@pytest.mark.parametrize("kind", ["one-vs-all", "softmax-tree"])
def test_perplexity_and_coverage_are_shown_when_asked_for(folder, tmp_path, name, kind):
    data, model = folder / name, tmp_path / "model.treemax"
    done("fit", data, "-o", model, "--model", kind)
    measured = json.loads(done("eval", model, data, "--perplexity", "--json"))
    loaded, examples = treemax.load(model), read_examples(data, zero_based=True)
    own = loaded.predict_proba_of(examples.X, np.reshape(examples.y, (-1, 1)))[:, 0]
    expected = treemax.metrics.perplexity(own)
    assert measured["perplexity"] == pytest.approx(expected.perplexity)
    assert measured["coverage"] == pytest.approx(expected.coverage)
    plain, more = (
        [line.split()[0] for line in done("eval", model, data, *flag).splitlines()] for flag in ([], ["--perplexity"])
    )
    assert set(more) - set(plain) == {"perplexity", "coverage", "error@1", "error@3", "error@5"}
    assert plain == [line for line in more if line in plain]


def test_labels_that_training_never_had_are_not_covered(folder, tmp_path):
    model, data = tmp_path / "model.treemax", tmp_path / "data.txt"
    lines = (folder / "train.txt").read_text().splitlines()[:10]
    data.write_text("\n".join([*lines, *(f"__label__unheard {line.partition(' ')[2]}" for line in lines)]) + "\n")
    done("fit", folder / "train.txt", "-o", model, "--model", "one-vs-all")
    assert json.loads(done("eval", model, data, "--perplexity", "--json"))["coverage"] == 0.5
    done("fit", folder / "multi.txt", "-o", model, "--model", "one-vs-all")
    assert "is multi-label" in refused("eval", model, data, "--perplexity")


def test_predict_from_allowed_labels_and_with_weights(folder, tmp_path):
    labels, weights, numbers = tmp_path / "labels.txt", tmp_path / "weights.tsv", tmp_path / "numbers.txt"
    labels.write_text("car\nsea\nunheard\n")
    weights.write_text("fruit\t1e6\n")
    numbers.write_text("0\n2\n")
    text, data = ("predict", folder / "text.treemax", folder / "train.txt"), ("predict", folder / "features.treemax")

    def answers(*command):
        return [json.loads(line)["labels"] for line in done(*command).splitlines()]

    assert all(set(row) == {"car", "sea"} for row in answers(*text, "--labels", labels))
    assert all(row == ["fruit"] for row in answers(*text, "--exclude", labels))
    assert all(row[0] == "fruit" for row in answers(*text, "--label-weights", weights))
    assert answers(*text, "--label-weights", "propensity", "--labels", labels) == answers(*text, "--labels", labels)
    assert all(row == [1] for row in answers(*data, folder / "data.svm", "--exclude", numbers))
    assert "are integers, got 'car'" in refused(*data, folder / "data.svm", "--labels", labels, code=2)
    assert "expected a label, a tab and a weight" in refused(*text, "--label-weights", labels, code=2)
    assert "none.txt: No such file or directory." in refused(*text, "--labels", tmp_path / "none.txt", code=2)
    assert "cannot be combined" in refused(*text, "--labels", labels, "--threshold", 0.5, code=2)
    labels.write_text("unheard\n")
    assert "knows none of the 1 allowed labels" in refused(*text, "--labels", labels)


def test_thresholds_are_chosen_and_kept(folder, tmp_path):
    model, chosen = tmp_path / "model.treemax", tmp_path / "chosen.treemax"
    done("fit", folder / "multi.txt", "-o", model, "--model", "label-tree")
    done("thresholds", model, folder / "multi.txt", "-o", chosen)
    assert "a threshold for each label, chosen for macro-f1 on 100 rows" in done("info", chosen)
    done("thresholds", model, folder / "multi.txt", "-o", chosen, "--precision", 0.9)
    assert "one threshold, chosen for precision" in treemax.load(chosen).describe()["decision"]
    assert "is MODEL itself" in refused("thresholds", model, folder / "multi.txt", "-o", model, code=2)
    assert "one label per example" in refused("thresholds", folder / "text.treemax", folder / "train.txt", "-o", chosen)


@pytest.mark.parametrize("name", ["train.txt", "data.svm"])
def test_predictions_and_figures_of_every_label(folder, tmp_path, name):
    data, model, out = folder / name, tmp_path / "model.treemax", tmp_path / "predictions.jsonl"
    done("fit", data, "-o", model, "--model", "one-vs-all")
    options = ["--per-label", "--predictions", out, "--json"]
    truth = [list(own) for own in read_examples(data, zero_based=True).labels]
    for command in (["eval", model, data], ["stream", data]):
        measured = json.loads(done(*command, *options).splitlines()[-1])
        answers = [json.loads(line) for line in out.read_text().splitlines()]
        assert [answer["true"] for answer in answers] == truth
        first = [answer["labels"][0] if answer["labels"] else None for answer in answers]
        hits = [answer in own for answer, own in zip(first, truth)]
        assert measured["P@1"] == pytest.approx(np.mean(hits))
        figures = {row["label"]: row for row in measured["per_label"]}
        assert len(figures) == 3
        assert [row["examples"] for row in measured["per_label"]] == sorted(
            (row["examples"] for row in figures.values()), reverse=True
        )
        for label, row in figures.items():
            right = sum(hit for hit, own in zip(hits, truth) if own == [label])
            assert row["examples"] == truth.count([label]) and row["predicted"] == first.count(label)
            assert row["recall"] == pytest.approx(right / row["examples"], abs=1e-3)
            assert row["precision"] == pytest.approx(right / max(1, row["predicted"]), abs=1e-3)
    table = done("eval", model, data, "--per-label").split("\n\n")[1].splitlines()
    assert table[0].split() == [
        "label",
        "examples",
        "predicted",
        "precision",
        "recall",
        "F1",
        "recall@5",
        "confused_with",
    ]
    assert len(table) == 4
    with_checkpoint = ["--predictions", out, "--checkpoint", tmp_path / "kept"]
    assert "cannot be combined" in refused("stream", data, *with_checkpoint, code=2)
    for command in (["eval", model, data], ["stream", data]):
        assert "is DATA itself" in refused(*command, "--predictions", data, code=2)
    assert "is MODEL itself" in refused("eval", "--predictions", model, model, data, code=2)


@pytest.mark.parametrize("name", ["blank.txt", "data.jsonl", "data.svm", "dense.jsonl"])
def test_a_row_without_a_label_is_left_out_of_multi_class_data(tmp_path, name):
    rows = {
        "blank.txt": ["__label__a red apple", "", "__label__b red car"],
        "data.jsonl": ['{"text": "red apple", "label": "a"}', '{"text": "red"}', '{"text": "red car", "label": "b"}'],
        "data.svm": ["1 1:1", " 2:1", "2 1:1 3:1"],
        "dense.jsonl": ['{"features": [1, 0], "label": 1}', '{"features": [1, 1]}', '{"features": [0, 1], "label": 2}'],
    }[name]
    data, model = tmp_path / name, tmp_path / "m.treemax"
    data.write_text("\n".join([rows[1], *rows * 5]) + "\n")
    fitted = treemax_command("fit", data, "-o", model)
    assert fitted.exit_code == 0 and "Left out 6 rows without a label" in fitted.stderr
    facts = json.loads(done("info", model, "--json"))
    assert facts["examples"] == 10 and not facts["multi_label"]
    for chunk in (1, 4, 100):
        streamed = treemax_command("stream", data, "--json", "--chunk", chunk)
        assert streamed.exit_code == 0 and "Left out 6 rows without a label" in streamed.stderr
        assert json.loads(streamed.stdout.splitlines()[-1])["n"] == 10
    data.write_text(rows[1] + "\n")
    for command in (("fit", data, "-o", model), ("stream", data)):
        assert "no labels" in refused(
            *command, "--format", {".txt": "fasttext", ".svm": "svmlight"}.get(data.suffix, "auto")
        )


def test_fit_advises_on_labels_that_look_joined_or_like_numbers_of_rows(tmp_path):
    data, model = tmp_path / "data.csv", tmp_path / "m.treemax"
    rows = [
        f"{i},text of row {i},{'; '.join(sorted({'abc'[i % 3], 'bca'[i % 2], 'cab'[i // 9 % 3]}))}" for i in range(120)
    ]
    data.write_text("\n".join(["id,text,tags", *rows]) + "\n")
    joined = treemax_command("fit", data, "-o", model, "--label-column", "tags")
    assert joined.exit_code == 0 and "if it separates labels, add --label-separator ';'" in joined.stderr
    parted = treemax_command("fit", data, "-o", model, "--label-column", "tags", "--label-separator", ";")
    assert parted.exit_code == 0 and "separator" not in parted.stderr
    numbered = treemax_command("fit", data, "-o", model, "--label-column", "id")
    assert numbered.exit_code == 0 and "Each of the 120 rows has another label" in numbered.stderr
    assert "m.treemax: is a Treemax model, not data" in refused("fit", model, "-o", tmp_path / "other.treemax")


def test_a_stream_that_is_never_right_is_valid_json(tmp_path):
    (tmp_path / "one.txt").write_text("__label__a x\n")

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    for line in done("stream", tmp_path / "one.txt", "--json").splitlines():
        json.loads(line, parse_constant=refuse)


def test_a_model_of_one_label_is_evaluated(tmp_path):
    (tmp_path / "one.txt").write_text("__label__only red apple\n__label__only red pear\n")
    done("fit", tmp_path / "one.txt", "-o", tmp_path / "m.treemax")
    measured = json.loads(done("eval", tmp_path / "m.treemax", tmp_path / "one.txt", "--json"))
    assert measured["P@1"] == 1.0 and measured["P@5"] == pytest.approx(0.2)
    assert json.loads(done("predict", tmp_path / "m.treemax", tmp_path / "one.txt").splitlines()[0]) == {
        "labels": ["only"], "scores": [1.0],
    }  # fmt: skip


def test_a_blank_line_is_no_example_to_measure(tmp_path):
    (tmp_path / "data.txt").write_text("__label__a red apple\n__label__b red car\n\n" * 3)
    done("fit", tmp_path / "data.txt", "-o", tmp_path / "m.treemax")
    measured = json.loads(done("eval", tmp_path / "m.treemax", tmp_path / "data.txt", "--json").splitlines()[-1])
    assert measured["n"] == 6 and measured["P@1"] == 1.0


def test_answers_do_not_depend_on_the_chunk(folder):
    model, data = folder / "features.treemax", folder / "data.svm"
    assert done("predict", model, data, "--chunk", 1) == done("predict", model, data, "--chunk", 7)


def test_resume_keeps_what_learning_needs(folder, tmp_path):
    for name, options in (("small", ()), ("large", ("--resume",))):
        done("fit", folder / "data.svm", "-o", tmp_path / name, "--model", "one-vs-all", *options)
    assert (tmp_path / "large").stat().st_size > (tmp_path / "small").stat().st_size


def test_hashed_text_and_its_settings(folder, tmp_path):
    model = tmp_path / "m.treemax"
    options = ("--text", "hashing", "--text-set", "bits=10", "--text-set", "ngram_range=1,2")
    done("fit", folder / "train.txt", "-o", model, *options)
    vectorizer = treemax.load(model).vectorizer
    assert vectorizer.bits == 10 and tuple(vectorizer.ngram_range) == (1, 2)


def test_names_are_hashed_as_for_the_training(tmp_path):
    data, model = tmp_path / "data.vw", tmp_path / "m.treemax"
    data.write_text("1 |x red round\n2 |x fast loud\n" * 5)
    done("fit", data, "-o", model, "--bits", 9)
    assert treemax.load(model).reading_ == {"bits": 9}
    assert json.loads(done("eval", model, data, "--json"))["P@1"] == 1.0
    for options in ([], ["--bits", 9]):
        answers = done("predict", model, data, "--top", 1, *options)
        assert json.loads(answers.splitlines()[0])["labels"] == [1]
    for command in (["predict", model, data], ["eval", model, data], ["stream", data, "--start", model]):
        assert "--bits 12 differs from that of the model, 9" in refused(*command, "--bits", 12, code=2)


def test_labels_of_every_script_come_out_readable(tmp_path):
    data, model = tmp_path / "data.jsonl", tmp_path / "m.treemax"
    names = ["größe", "模型", "😀", 'quote"', "a b"]
    rows = [{"features": {str(i): 1.0}, "labels": [name]} for i, name in enumerate(names) for _ in range(5)]
    data.write_text("\n".join(map(json.dumps, rows)) + "\n")
    done("fit", data, "-o", model)
    out = done("predict", model, data, "--top", 1)
    assert [json.loads(line)["labels"] for line in out.splitlines()] == [row["labels"] for row in rows]
    assert "größe" in out and "模型" in out


def test_half_a_character_is_escaped(folder, tmp_path):
    OneVsAll().fit(np.eye(2), ["\ud800", "b"]).save(tmp_path / "m.treemax")
    line = done("predict", tmp_path / "m.treemax", folder / "data.svm").splitlines()[0]
    assert "\ud800" in json.loads(line)["labels"]


def test_changed_labels(folder, tmp_path):
    model, new = folder / "text.treemax", tmp_path / "new.treemax"
    before = treemax.load(model)
    first, second, third = before.classes_[:3].tolist()
    for name, text in (("gone", f"{first}\n"), ("names", f"{second}\tanother\n"), ("parts", f"{third}\tanother\n")):
        (tmp_path / name).write_text(text)
    done("labels", model, "--forget", tmp_path / "gone", "--rename", tmp_path / "names", "--merge", tmp_path / "parts",
         "-o", new)  # fmt: skip
    changed = treemax.load(new)
    assert changed.describe()["label_changes"] == [{"forgot": 1}, {"renamed": 1}, {"merged": 1}]
    assert changed.describe()["labels"] == len(before.classes_) - 2
    assert first not in changed.classes_ and "another" in changed.classes_
    assert "label_changes" in done("info", new)
    assert "Give --forget" in refused("labels", model, "-o", new, code=2)
    assert "expected a label, a tab and a label" in refused(
        "labels", model, "--merge", tmp_path / "gone", "-o", new, code=2
    )
    (tmp_path / "gone").write_text("yak\n")
    assert "no label 'yak'" in refused("labels", model, "--forget", tmp_path / "gone", "-o", new)


def test_explanations_of_texts_and_rows(folder, tmp_path):
    model, text = folder / "text.treemax", "ripe apple <b>"
    told = treemax.load(model).explain(text, k=2)
    assert done("explain", model, text, "-k", 2) == f"{told}\n"
    assert json.loads(done("explain", model, text, "--format", "json", "-k", 2)) == json.loads(told.to_json())
    page = tmp_path / "page.html"
    assert done("explain", model, text, "--format", "html", "-o", page) == ""
    assert page.read_text().startswith("<!DOCTYPE html>") and "<b>ripe" not in page.read_text()
    other = told.candidates[1].label
    assert f"{other}, probability" in done("explain", model, text, "--label", other)
    rows = folder / "train.txt"
    assert done("explain", model, "--data", rows, "--row", 2).splitlines()[0] in rows.read_text().splitlines()[1]
    assert "does not know the label 'yak'" in refused("explain", model, text, "--label", "yak")
    assert "so there is no row 99,999" in refused("explain", model, "--data", rows, "--row", 99999)
    assert "Give either TEXT or --data" in refused("explain", model, code=2)
    numbers = tmp_path / "numbers.treemax"
    OneVsAll().fit(np.eye(3), [3, 4, 5]).save(numbers)
    (tmp_path / "rows.svm").write_text("3 0:1\n4 1:1\n")
    assert "OneVsAll: 4" in done("explain", numbers, "--data", tmp_path / "rows.svm", "--row", 2, "--label", 4)
    assert "labels of the model are integers" in refused(
        "explain", numbers, "--data", tmp_path / "rows.svm", "--label", "x"
    )
    assert "give a row of features with --data" in refused("explain", numbers, "a text")


# --- options and help -----------------------------------------------------------------------------------


def test_every_flag_of_the_contract_exists():
    contract = {
        "fit": {"-o", "--model", "--as-published", "--set", "--format", "--jobs"},
        "predict": {"--top"},
        "explain": {"--label", "-k", "--format", "--output"},
        "eval": {"--json"},
        "stream": {"--model", "--as-published", "--json"},
        "info": {"--json"},
        "convert": {"--format"},
        "demo": {"--all"},
        "compile": set(),
    }
    for name, flags in contract.items():
        command = commands.commands[name]
        assert flags <= {flag for parameter in command.params for flag in parameter.opts}, name
        assert done(name, "--help").startswith("Usage:")
    formats = next(parameter for parameter in commands.commands["fit"].params if "--format" in parameter.opts).type
    assert list(formats.choices) == ["auto", *FORMATS]


def test_commands_are_listed_in_the_order_of_use_and_in_whole_sentences():
    listed = done("--help").partition("Commands:\n")[2]
    assert [line.split()[0] for line in listed.splitlines()] == list(commands.commands)
    assert "..." not in listed


@pytest.mark.parametrize("command", ["fit", "stream"])
def test_published_settings_can_be_changed_one_by_one(folder, tmp_path, command):
    model = tmp_path / "model.treemax"
    options = ["--model", "online-label-tree", "--as-published", "--set", "arity=3"]
    done(command, folder / "train.txt", "-o", model, *options)
    assert treemax.load(model).estimator.get_params() == (
        treemax.OnlineLabelTree.as_published(arity=3, n_jobs=1).get_params()
    )


def test_a_stream_is_not_for_every_model(folder, tmp_path):
    batch = tmp_path / "batch.treemax"
    done("fit", folder / "train.txt", "-o", batch, "--model", "label-tree", "--text", "hashing")
    for options in (["--model", "label-tree"], ["--start", batch]):
        error = refused("stream", folder / "train.txt", *options)
        assert "LabelTree cannot learn from a stream: it has no partial_fit" in error and "online-label-tree" in error


@pytest.mark.slow
def test_the_demo_shows_trees_and_a_path(tmp_path):
    lines = done("demo", "--rows", 3000).splitlines()
    table = lines.index("")
    assert [line.split("  ")[0] for line in lines[table + 3 : table + 6]] == [
        "label-tree", "label-tree, 3 trees", "online-label-tree",
    ]  # fmt: skip
    answer = next(number for number, line in enumerate(lines) if line.startswith("a river in Africa: "))
    assert lines[answer + 1].startswith("  ") and " labels: " in lines[answer + 1]


def test_version_models_and_completion():
    assert treemax.__version__ in done("--version")
    assert "one-vs-all" in json.loads(done("info", "--models", "--json"))
    assert "one-vs-all" in done("info", "--models")
    for shell in ("bash", "zsh", "fish"):
        assert "_TREEMAX_COMPLETE" in done("completion", shell)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3), ("-2", -2), ("0.5", 0.5), ("1e-3", 1e-3), ("true", True), ("False", False), ("none", None),
        ("softmax", "softmax"), ("1,2", (1, 2)), ("", ""), ("a=b", "a=b"),
    ],
)  # fmt: skip
def test_values_of_settings(text, value):
    assert read_value(text) == value and type(read_value(text)) is type(value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nope"], "No such command"),
        (["fit"], "Missing argument 'DATA'"),
        (["fit", "DATA"], "Missing option '-o'"),
        (["info"], "Missing argument 'MODEL'"),
        (["fit", "DATA", "-o", "OUT", "--model", "nope"], "unknown model 'nope'; choose from auto, label-tree"),
        (
            ["fit", "DATA", "-o", "OUT", "--model", "one-vs-all", "--set", "nope=1"],
            "OneVsAll has no parameter 'nope'; it has loss, passes",
        ),
        (["fit", "DATA", "-o", "OUT", "--model", "one-vs-all", "--set", "passes"], "expected NAME=VALUE, got 'passes'"),
        (["fit", "DATA", "-o", "OUT", "--text-set", "bits=3"], "TfidfText has no parameter 'bits'"),
        (["fit", "DATA", "-o", "OUT", "--format", "nope"], "'nope' is not one of"),
        (["fit", "DATA", "-o", "OUT", "--jobs", "many"], "not a valid integer"),
        (["fit", "DATA", "-o", "nowhere/model"], "nowhere does not exist"),
        (["fit", "DATA", "-o", "."], "is a folder"),
        (["stream", "DATA", "-o", "nowhere/model"], "nowhere does not exist"),
        (
            ["stream", "DATA", "--start", "MODEL", "--set", "passes=1"],
            "--set, --text-set and --as-published are for a new model",
        ),
        (["stream", "DATA", "--start", "MODEL", "--as-published"], "--as-published are for a new model"),
        (["stream", "DATA", "--start", "MODEL", "--model", "one-vs-all"], "--model, --set, "),
        (
            ["fit", "DATA", "-o", "OUT", "--model", "one-vs-all", "--as-published"],
            "OneVsAll does not come from a paper, so it has no published settings",
        ),
        (["stream", "DATA", "--model", "nope"], "unknown model 'nope'"),
        (["stream", "DATA", "--chunk", "0"], "x>=1"),
        (["predict", "MODEL", "DATA", "--top", "0"], "x>=1"),
        (["predict", "MODEL", "DATA", "--k", "-1"], "x>=1"),
        (["fit", "DATA", "-o", "OUT", "--bits", "99"], "1<=x<=31"),
        (["demo", "--rows", "0"], "x>=1"),
        (["completion", "tcsh"], "'tcsh' is not one of"),
    ],
)
def test_a_command_called_wrongly_ends_with_2(folder, tmp_path, arguments, message):
    names = {"DATA": folder / "train.txt", "MODEL": folder / "text.treemax", "OUT": tmp_path / "out.treemax"}
    assert message in refused(*[names.get(argument, argument) for argument in arguments], code=2)
    assert not (tmp_path / "out.treemax").exists()


# --- what is wrong with the data, the model or the machine ----------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit", "missing.txt", "-o", "OUT"], "missing.txt: No such file or directory"),
        (["predict", "MODEL", "missing.txt"], "missing.txt: No such file or directory"),
        (["predict", "missing.treemax", "DATA"], "missing.treemax: No such file or directory"),
        (["info", "missing.treemax"], "missing.treemax: No such file or directory"),
        (["convert", "missing.svm", "OUT", "--format", "xmc"], "missing.svm: No such file or directory"),
        (["convert", "DATA", "nowhere/data.npz"], "nowhere: The folder to write to does not exist"),
        (["fit", "docs", "-o", "OUT"], "cannot tell the format"),
        (["predict", ".", "DATA"], "is a folder, not a Treemax model"),
        (["predict", "DATA", "DATA"], "is not a Treemax model"),
        (["fit", "DATA", "-o", "OUT", "--format", "svmlight"], "train.txt:1: the label is not an integer"),
        (["fit", "DATA", "-o", "OUT", "--format", "xmc"], "train.txt:1: the header is not three numbers"),
        (["fit", "DATA", "-o", "OUT", "--format", "jsonl"], "train.txt:1: not JSON"),
        (["fit", "DATA", "-o", "OUT", "--format", "npz"], "train.txt: not a valid npz archive"),
        (["fit", "DATA", "-o", "OUT", "--format", "vw"], "train.txt:1: "),
        (
            ["fit", "DATA", "-o", "OUT", "--model", "one-vs-all", "--set", "passes=0"],
            "passes must be an integer at least 1, got 0",
        ),
        (["fit", "DATA", "-o", "OUT", "--model", "one-vs-all", "--set", "loss=foo"], "loss must be 'auto' or one of"),
        (["fit", "DATA", "-o", "OUT", "--jobs", "0"], "n_jobs must be None or an integer other than zero"),
        (
            ["fit", "DATA", "-o", "OUT", "--model", "one-vs-all", "--set", "max_memory=1e-9"],
            "OneVsAll for 12 features x 3 labels needs",
        ),
        (["predict", "MODEL", "FEATURES"], "the model was trained on text, but"),
        (["eval", "MODEL", "FEATURES"], "the model was trained on text, but"),
        (["stream", "FEATURES", "--start", "MODEL"], "the model was trained on text, but"),
        (["predict", "VECTORS", "DATA"], "the model was trained on features, but"),
        (["eval", "VECTORS", "DATA"], "treemax fit TEXTS -o MODEL (--text chooses the vectoriser)"),
        (["predict", "VECTORS", "NOTES"], "If it is text: the model was trained on features. Give it features, or"),
        (["fit", "EMPTY", "-o", "OUT", "--format", "fasttext"], "has no examples"),
        (["eval", "MODEL", "EMPTY", "--format", "fasttext"], "has no examples"),
        (["stream", "EMPTY", "--format", "fasttext"], "has no examples"),
        (["eval", "MODEL", "UNLABELLED"], "no example has a label"),
        (["eval", "MODEL", "NUMBERED"], "strings"),
    ],
)
def test_errors_are_one_line_and_end_with_1(folder, tmp_path, arguments, message):
    names = {
        "DATA": folder / "train.txt", "FEATURES": folder / "data.svm", "MODEL": folder / "text.treemax",
        "OUT": tmp_path / "out.treemax", "EMPTY": tmp_path / "empty.txt", "UNLABELLED": tmp_path / "unlabelled.jsonl",
        "NUMBERED": tmp_path / "numbered.jsonl", "VECTORS": folder / "features.treemax", "NOTES": tmp_path / "notes.txt",
    }  # fmt: skip
    names["EMPTY"].write_text("")
    names["UNLABELLED"].write_text('{"text": "apple"}\n')
    names["NUMBERED"].write_text('{"text": "apple", "labels": [1]}\n')
    names["NOTES"].write_text("A long sentence. " * 1000)
    error = refused(*[names.get(argument, argument) for argument in arguments])
    assert message in error and "\n" not in error and "Errno" not in error and len(error) < 600
    assert not (tmp_path / "out.treemax").exists()


def test_a_model_of_features_refuses_text(folder):
    for command in ("predict", "eval"):
        error = refused(command, folder / "features.treemax", folder / "train.txt")
        assert "the model was trained on features, but" in error and "train.txt" in error


@pytest.mark.parametrize("damage", ["cut", "flip", "header", "empty"])
def test_damaged_models_are_refused(folder, tmp_path, damage):
    whole = bytearray((folder / "text.treemax").read_bytes())
    broken = {
        "cut": whole[: len(whole) // 2],
        "flip": whole[: len(whole) // 2] + bytes([whole[len(whole) // 2] ^ 0xFF]) + whole[len(whole) // 2 + 1 :],
        "header": b"PK\x03\x04" + whole[40:],
        "empty": b"",
    }[damage]
    path = tmp_path / "damaged.treemax"
    path.write_bytes(broken)
    for arguments in (("predict", path, folder / "train.txt"), ("info", path), ("eval", path, folder / "train.txt")):
        assert "damaged.treemax" in refused(*arguments)


def test_malformed_lines_are_named_or_skipped_and_counted(folder, tmp_path):
    data = tmp_path / "bad.svm"
    data.write_text("0 1:1\nbad line\n1 2:1\n2 x:1\n0 1:2\n")
    model = tmp_path / "m.treemax"
    assert "bad.svm:2: " in refused("fit", data, "-o", model)
    assert not model.exists()
    result = treemax_command("fit", data, "-o", model, "--skip-bad")
    assert result.exit_code == 0 and "examples 3" in result.stderr
    assert f"Skipped 2 malformed lines; the first: {data}:2: " in result.stderr
    predicted = treemax_command("predict", model, data, "--skip-bad")
    assert len(predicted.stdout.splitlines()) == 3 and "Skipped 2 malformed lines" in predicted.stderr
    assert "Skipped" in treemax_command("stream", data, "--skip-bad").stderr
    assert "Skipped" in treemax_command("eval", model, data, "--skip-bad", "--json").stderr
    assert "Skipped" in treemax_command("convert", data, tmp_path / "out.xmc", "--skip-bad").stderr
    assert len(read_examples(tmp_path / "out.xmc")) == 3


def test_lines_that_are_all_malformed_are_counted_before_the_error(tmp_path):
    data = tmp_path / "bad.svm"
    data.write_text("bad\nworse\n")
    result = treemax_command("fit", data, "-o", tmp_path / "m.treemax", "--skip-bad")
    assert result.exit_code == 1
    assert "Skipped 2 malformed lines" in result.stderr and "has no examples" in result.stderr


def test_a_stream_that_meets_a_malformed_line_keeps_what_it_learned(tmp_path):
    data, model = tmp_path / "long.svm", tmp_path / "m.treemax"
    good = "".join(f"{i % 3} {i % 3 + 1}:1\n" for i in range(200_000))
    data.write_text(good + "bad\n")
    result = treemax_command("stream", data, "-o", model, "--chunk", 5000)
    assert result.exit_code == 1 and "long.svm:200001: " in result.stderr
    assert treemax.load(model).n_examples_ >= 5000 and "P@1" in result.stdout


def test_a_stream_whose_first_example_is_refused_says_why(tmp_path):
    data, model = tmp_path / "data.svm", tmp_path / "m.treemax"
    data.write_text("1 1:1e30\n2 2:1\n")
    result = treemax_command("stream", data, "--model", "online-label-tree", "-o", model)
    assert result.exit_code == 1 and "at most 1e+15 is supported" in result.stderr and not model.exists()


# --- processes: exit codes, pipes, signals --------------------------------------------------------------


@pytest.mark.slow
def test_a_process_answers_from_standard_input(folder):
    command = [sys.executable, "-m", "treemax", "predict", folder / "text.treemax", "-", "--top", "1"]
    packed = gzip.compress((folder / "train.txt").read_bytes())
    answer = subprocess.run(command, input=packed, capture_output=True, timeout=60)
    assert answer.returncode == 0 and b"Error" not in answer.stderr
    assert len(answer.stdout.splitlines()) == 100


@pytest.mark.slow
def test_a_process_says_what_is_wrong_without_a_traceback(folder, tmp_path):
    missing = process("fit", "missing.txt", "-o", tmp_path / "m.treemax")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert missing.stderr == "Error: missing.txt: No such file or directory\n"
    wrong = process("fit")
    assert wrong.returncode == 2 and "Missing argument" in wrong.stderr


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no such pipes")
@pytest.mark.parametrize("arguments", [["predict", "MODEL", "DATA"], ["convert", "DATA", "-", "--format", "jsonl"]])
def test_a_reader_that_leaves_early_is_no_error(folder, tmp_path, arguments):
    data = tmp_path / "long.txt"
    data.write_text((folder / "train.txt").read_text() * 100)
    names = {"DATA": data, "MODEL": folder / "text.treemax"}
    command = [sys.executable, "-m", "treemax", *(str(names.get(argument, argument)) for argument in arguments)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert running.stdout.readline().startswith(b"{")
    running.stdout.close()
    error = running.stderr.read()
    assert running.wait(60) == 0 and b"Error" not in error


def interrupted(command: str, data: Path, model: Path, delay: float) -> tuple[int, str]:
    """Start a long command, press Ctrl-C when it has been at work for a while; exit code and standard error."""
    options = ["--set", "passes=1000000"] if command == "fit" else []
    running = subprocess.Popen(
        [sys.executable, "-m", "treemax", command, str(data), "-o", str(model), "--model", "one-vs-all", *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    if command == "stream":
        assert running.stdout is not None
        while "256" not in running.stdout.readline():
            pass
    else:
        time.sleep(delay)
    assert running.poll() is None and not model.exists()
    for _ in range(3):  # a library that is just being imported may swallow a signal: people press again
        running.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            _, error = running.communicate(timeout=20)
            return running.returncode, error
    running.kill()
    raise AssertionError("three interruptions were ignored")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
@pytest.mark.parametrize("command", ["fit", "stream"])
def test_control_c_ends_with_130_and_leaves_a_model(tmp_path, command):
    data, model = tmp_path / "data.svm", tmp_path / "m.treemax"
    data.write_text("".join(f"{i % 50} {i % 50}:1 {50 + i % 7}:0.5\n" for i in range(20_000)))
    for delay in (3, 6, 12, 30, 60):  # a busy machine may not have begun to learn when the signal comes
        code, error = interrupted(command, data, model, delay)
        if model.exists():
            break
    assert code == 130 and "Traceback" not in error and "\nInterrupted" in f"\n{error}"
    assert treemax.load(model).predict(read_examples(data).rows[:2]).shape == (2,)


# --- a hierarchy of one's own --------------------------------------------------------------------------


@pytest.mark.parametrize("numbers", [False, True])
def test_fit_with_a_hierarchy(tmp_path, numbers):
    data, edges, model = tmp_path / "data.vw", tmp_path / "edges.tsv", tmp_path / "model.treemax"
    names = ["0", "1", "2", "3"] if numbers else ["cat", "dog", "owl", "tit"]
    kind = "svmlight" if numbers else "vw"
    if numbers:
        data.write_text("".join(f"{name} {name}:1\n" for name in names * 10))
    else:
        data.write_text("".join(f"{name} | f{name}\n" for name in names * 10))
    edges.write_text("".join(f"{'mammal' if i < 2 else 'bird'}\t{name}\r\n\n" for i, name in enumerate(names)))
    arguments = ("fit", data, "-o", model, "--format", kind, "--hierarchy", edges)
    done(*arguments, "--model", "label-tree")
    tree = treemax.load(model).model_.trees[0].tree
    assert tree.depth == 2 and tree.parent[tree.leaf_of].tolist() == [1, 1, 2, 2]
    assert treemax.load(model).taxonomy_.n_levels == 2
    done(*arguments, "--model", "one-vs-all")  # remembers it, for predict and eval
    assert treemax.load(model).taxonomy_.n_levels == 2
    done(*arguments, "--model", "label-tree", "--set", "tree=complete")
    assert treemax.load(model).tree == "complete" and treemax.load(model).taxonomy_.n_levels == 2
    assert "Model: LabelTree, for --hierarchy" in treemax_command(*arguments).stderr
    edges.write_text("mammal\tcat\nbird owl\n")
    assert f"{edges}:2: expected parent, tab, child" in refused(*arguments, "--model", "label-tree")


def test_fit_says_which_loss_it_chose(tmp_path):
    data = tmp_path / "data.vw"
    data.write_text("a | x\nb | y\n" * 10)
    result = treemax_command("fit", data, "-o", tmp_path / "m.treemax", "--format", "vw", "--model", "label-tree")
    assert "loss squared_hinge" in result.stderr


# --- where to train ------------------------------------------------------------------------------------


def test_fit_with_a_checkpoint(tmp_path):
    data, model, kept = tmp_path / "data.svm", tmp_path / "m.treemax", tmp_path / "kept"
    data.write_text("".join(f"{i % 5} {i % 5}:1\n" for i in range(50)))
    done("fit", data, "-o", model, "--model", "label-tree", "--checkpoint", kept)
    assert treemax.load(model).describe()["labels"] == 5
    assert list(kept.iterdir()) == []
    assert "--checkpoint is for label-tree, softmax-tree, softmax-forest, not for recall-tree" in refused(
        "fit", data, "-o", model, "--model", "recall-tree", "--checkpoint", kept, code=2
    )


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ("-", ["--memory", "2GB"], "standard input can be read once: use a file"),
        ("data.svm", ["--memory", "2GB", "--cluster", "auto"], "--cluster cannot be combined with --memory"),
        ("data.svm", ["--memory", "2GB", "--checkpoint", "kept"], "--checkpoint cannot be combined with --memory"),
        ("data.svm", ["--scratch", "."], "--scratch needs --memory"),
    ],
)
def test_places_to_train_that_do_not_go_together(tmp_path, monkeypatch, data, options, message):
    monkeypatch.chdir(tmp_path)
    assert message in refused("fit", data, "-o", "m.treemax", "--model", "label-tree", *options, code=2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is here")
def test_fit_on_a_cluster_without_ray(tmp_path):
    data = tmp_path / "data.svm"
    data.write_text("0 1:1\n1 2:1\n")
    assert "pip install 'treemax[ray]'" in refused(
        "fit", data, "-o", tmp_path / "m.treemax", "--model", "label-tree", "--cluster", "auto"
    )


# --- checkpoints of a stream, and standard streams -----------------------------------------------------


def lines(n: int) -> str:
    return "".join(f"{i % 7} {i % 7}:1 {10 + i % 5}:0.5\n" for i in range(n))


def stopped_after(data: Path, folder: Path, n: int, monkeypatch, *options: str) -> None:
    """Leave the checkpoint of a stream that was lost after its first examples."""
    whole = data.read_text()
    data.write_text("".join(whole.splitlines(keepends=True)[:n]))
    with monkeypatch.context() as patch:
        patch.setattr("treemax.cli.checkpoint.StreamCheckpoint.remove", lambda self: None)
        done("stream", data, "--checkpoint", folder, "--every", "0", *options)
    data.write_text(whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    "model", ["one-vs-all", "online-label-tree", "recall-tree", "lom-tree", "learned-tree", "memory-tree"]
)
def test_a_stream_goes_on_from_its_checkpoint(tmp_path, monkeypatch, model):
    data, folder = tmp_path / "data.svm", tmp_path / "kept"
    data.write_text(lines(300))
    done("stream", data, "-o", tmp_path / "a", "--model", model)
    stopped_after(data, folder, 120, monkeypatch, "--model", model)
    result = treemax_command("stream", data, "-o", tmp_path / "b", "--checkpoint", folder, "--model", model, "--json")
    assert result.exit_code == 0 and "after 120 examples" in result.stderr
    assert json.loads(result.stdout.splitlines()[-1])["n"] == 300
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert list(folder.iterdir()) == []


def test_a_checkpoint_is_for_the_same_data_and_options(tmp_path, monkeypatch):
    data, folder, model = tmp_path / "data.svm", tmp_path / "kept", tmp_path / "model"
    data.write_text(lines(50))
    stopped_after(data, folder, 40, monkeypatch)
    kept = (folder / "stream.treemax").read_bytes()
    again = ["stream", data, "-o", model, "--checkpoint", folder]
    for content, complaint in ((lines(30), "it ends before the 40 examples"), ("9 9:1\n" + lines(50), "differ")):
        data.write_text(content)
        result = treemax_command(*again)
        assert result.exit_code == 1 and complaint in result.stderr and not model.exists()
        assert (folder / "stream.treemax").read_bytes() == kept
    result = treemax_command(*again, "--chunk", "2")
    assert result.exit_code == 2 and "--chunk was 1, and is 2 now" in " ".join(result.stderr.split())
    result = treemax_command(*again, "--every", "soon")
    assert result.exit_code == 2 and "30s, 5m or 1h" in result.stderr


@pytest.mark.skipif(os.name != "posix", reason="needs locks of folders")
def test_a_folder_of_checkpoints_is_for_one_stream_at_a_time(tmp_path):
    data, folder = tmp_path / "data.svm", tmp_path / "kept"
    data.write_text(lines(20))
    folder.mkdir()
    release = lock_folder(folder)
    result = treemax_command("stream", data, "--checkpoint", folder)
    assert result.exit_code == 2 and "is in use by another treemax stream" in " ".join(result.stderr.split())
    release()
    for _ in range(2):  # and free again after each
        done("stream", data, "--checkpoint", folder)


def test_a_model_without_a_place_is_written_elsewhere(tmp_path, monkeypatch):
    data, model, spare = tmp_path / "data.svm", tmp_path / "model.treemax", tmp_path / "spare"
    data.write_text(lines(50))
    spare.mkdir()
    write = treemax.modelfile._write_array

    def full(file, *rest):
        if not Path(f"/proc/self/fd/{file.fileno()}").readlink().is_relative_to(spare):
            raise OSError(28, "No space left on device")
        return write(file, *rest)

    monkeypatch.setattr("treemax.modelfile._write_array", full)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(spare))
    for name in ("fit", "stream"):
        result = treemax_command(name, data, "-o", model)
        assert result.exit_code == 1 and f"{model}: No space left on device: it needs" in result.stderr
        (found,) = spare.glob("treemax-*/model.treemax")
        assert f"the model is in {found}" in result.stderr and treemax.load(found).n_examples_ == 50
        found.unlink()


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs a shell")
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("info MODEL >&-", 1, "Error: standard output: The stream is closed\n"),
        ("info MODEL >/dev/full", 1, "Error: standard output: No space left on device\n"),
        ("predict MODEL - <&-", 1, "Error: standard input: The stream is closed\n"),
        ("info MODEL >&- 2>&- <&-", 1, ""),
        ("info MODEL 2>&- <&- >/dev/null", 0, ""),
    ],
)
def test_standard_streams_that_are_closed_or_full(folder, arguments, code, message):
    shell = f"{sys.executable} -m treemax {arguments.replace('MODEL', str(folder / 'features.treemax'))}"
    result = subprocess.run(["sh", "-c", shell], capture_output=True, text=True)
    lines = result.stderr.splitlines(keepends=True)
    said = "".join(line for line in lines if not line.startswith("treemax: compiling"))
    assert (result.returncode, said) == (code, message)


def test_help_does_not_wait_for_large_libraries():
    code = "import sys, treemax.cli; print([name for name in ('numba', 'pandas', 'scipy', 'sklearn') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
