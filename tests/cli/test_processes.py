"""Processes: exit codes, pipes, Ctrl-C, closed streams.

`modelfile._write_array` is replaced to simulate a full disk.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import treemax
from tests.cli.commands import lines, process, treemax_command
from treemax.formats import read_examples


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
