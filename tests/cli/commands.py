"""What the tests of the command line share."""

from __future__ import annotations

import subprocess
import sys

from click.testing import CliRunner

from treemax.cli.main import commands

WORDS = {
    "fruit": ["apple", "pear", "plum", "ripe"],
    "car": ["wheel", "motor", "road", "fast"],
    "sea": ["wave", "salt", "fish", "deep"],
}


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


def lines(n: int) -> str:
    return "".join(f"{i % 7} {i % 7}:1 {10 + i % 5}:0.5\n" for i in range(n))
