"""The command `stream`: continuing, streams that become multi-label, and checkpoints."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

import treemax
from tests.cli.commands import done, lines, refused, treemax_command
from treemax.cli.main import commands
from treemax.replacing import lock_folder


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


def test_a_stream_that_is_never_right_is_valid_json(tmp_path):
    (tmp_path / "one.txt").write_text("__label__a x\n")

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    for line in done("stream", tmp_path / "one.txt", "--json").splitlines():
        json.loads(line, parse_constant=refuse)


def test_a_stream_is_not_for_every_model(folder, tmp_path):
    batch = tmp_path / "batch.treemax"
    done("fit", folder / "train.txt", "-o", batch, "--model", "label-tree", "--text", "hashing")
    for options in (["--model", "label-tree"], ["--start", batch]):
        error = refused("stream", folder / "train.txt", *options)
        assert "LabelTree cannot learn from a stream: it has no partial_fit" in error and "online-label-tree" in error


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
