"""`python -m benchmarks.experiments` lists, shows and runs the stored tables."""

from __future__ import annotations

import gzip
import importlib
import importlib.util
import multiprocessing
import runpy
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

import treemax.datasets
from benchmarks.experiments import __main__ as command
from benchmarks.harness import suites
from treemax.models.base.classifier import LabelClassifier

ROOT = Path(__file__).parents[2]
COMMANDS = sorted({result["command"] for result in command.stored().values()})
OF_EXTRAS = {"torch", "ray", "annif", "river", "optuna", "matplotlib", "triton"}
# Their tables are put together from several runs, as benchmarks/README.md says.
PRINTED_ONLY = {"cluster", "linux", "out_of_core", "tune", "defaults_dense", "torch_layers", "torch_language"}


def test_list_has_every_table_with_its_command(capsys):
    assert command.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(command.stored()) > 50
    assert any(line.split("  ")[0] == "softmax-tree/missing" and "benchmarks.experiments" in line for line in lines)


def test_a_table_is_shown(capsys):
    assert command.main(["softmax-tree/missing"]) == 0
    shown = capsys.readouterr().out
    result = command.stored()["softmax-tree/missing"]
    assert result["title"] in shown and result["command"] in shown and shown.count("\n|") > len(result["rows"])


def test_run_runs_the_command_in_the_folder_of_the_project(monkeypatch):
    ran = []

    def fake(words, cwd):
        ran.append((words[1:], cwd))
        return type("Done", (), {"returncode": 3})

    monkeypatch.setattr(command.subprocess, "run", fake)
    assert command.main(["softmax-tree/missing", "--run"]) == 3
    assert ran == [(["-m", "benchmarks.experiments.softmax", "missing"], command.FOLDER.parent)]


def test_a_command_with_blanks_is_not_run(monkeypatch):
    monkeypatch.setattr(command.subprocess, "run", None)
    with pytest.raises(SystemExit, match="FOLDER filled in"):
        command.main(["peers/means", "--run"])


@pytest.mark.parametrize("arguments", [["no/such"], ["softmax-tree/missing", "--rnu"]])
def test_unknown_words_show_the_tables(arguments, capsys):
    assert command.main(arguments) == 2
    assert "softmax-tree/missing" in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(command.stored()))
def test_commands_name_modules_and_experiments_that_exist(name):
    words = command.stored()[name]["command"].split()
    if words[0] == "make":
        return
    assert words[:2] == ["python", "-m"]
    found = importlib.util.find_spec(words[2])
    assert found is not None
    if found.submodule_search_locations is not None:  # a package, whose commands are experiments or works
        main = importlib.import_module(f"{words[2]}.__main__")
        experiments = getattr(main, "EXPERIMENTS", None)
        assert experiments is None or words[3] in experiments


class StartedError(BaseException):
    """A command has taken its arguments, and asks for data, another process or a training."""


class Watched(dict):
    """Names a suite that exists, and nothing more."""

    def __getitem__(self, name):
        super().__getitem__(name)
        raise StartedError


@pytest.fixture
def stopped(monkeypatch):
    """Everything that costs time ends at once."""
    importlib.import_module("matplotlib.pyplot")  # makes folders: an import that ends there would spoil later ones

    def stop(*args, **options):
        raise StartedError

    monkeypatch.setattr(suites, "SUITES", Watched(suites.SUITES))
    monkeypatch.setattr(treemax.datasets, "load_wordnet", stop)
    monkeypatch.setattr(LabelClassifier, "fit", stop)
    works = {subprocess: ("run", "Popen"), tempfile: ("TemporaryDirectory",), gzip: ("open",), np: ("load",)}
    works |= {np.random: ("default_rng",), Path: ("mkdir",), multiprocessing: ("get_context",)}
    for module, names in works.items():
        for name in names:
            monkeypatch.setattr(module, name, stop)
    before = signal.signal(signal.SIGALRM, stop_with_failure)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def stop_with_failure(*args):
    pytest.fail("the command works without data, a process or a training: the test must stop it earlier")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize("text", [text for text in COMMANDS if not any(word.isupper() for word in shlex.split(text))])
def test_stored_commands_start_to_work(text, stopped, monkeypatch):
    """Their arguments are understood: an error in them would end the command before."""
    program, *arguments = shlex.split(text)
    if program == "make":
        targets = (ROOT / "Makefile").read_text()
        assert f"\n{arguments[0]}:" in targets
        return
    monkeypatch.setattr(sys, "argv", ["program", *arguments[2:]])
    try:
        with pytest.raises(StartedError):
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    except ModuleNotFoundError as error:
        if error.name.partition(".")[0] not in OF_EXTRAS:
            raise
        pytest.skip(f"needs {error.name}")


def source(module):
    """The text of a module, or of all modules of a package."""
    place = ROOT / module.replace(".", "/")
    files = place.glob("*.py") if place.is_dir() else [place.with_suffix(".py")]
    return "\n".join(file.read_text() for file in files)


@pytest.mark.parametrize("name", sorted(command.stored()))
def test_a_command_stores_its_table_or_the_readme_says_why_not(name):
    program, _, module, *_ = [*command.stored()[name]["command"].split(), "", ""]
    if program == "make" or module == "benchmarks":  # reports, as of every run of the harness
        return
    experiment = module.rpartition(".")[2]
    stores = any(call in source(module) for call in (" store(", "publish("))
    assert stores != (experiment in PRINTED_ONLY)
    if not stores:
        readme = (ROOT / "benchmarks" / "README.md").read_text()
        assert f"`{experiment}`" in readme.partition("## Storing a result")[2].partition("## The data")[0]
