"""Errors are one line without a traceback, and say what is wrong."""

from __future__ import annotations

import pytest

from tests.cli.commands import refused, treemax_command
from treemax.formats import read_examples


@pytest.mark.parametrize("command", ["fit", "stream"])
def test_a_model_never_replaces_its_data(folder, tmp_path, command):
    data, link = tmp_path / "train.txt", tmp_path / "link.treemax"
    data.write_bytes((folder / "train.txt").read_bytes())
    link.symlink_to(data)
    for arguments in ((data, "-o", data), ("-o", data, data), ("-o", link, data)):
        result = treemax_command(command, *arguments)
        assert result.exit_code == 2 and "is DATA itself" in result.stderr
    assert data.read_bytes() == (folder / "train.txt").read_bytes()


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
