"""`python -m benchmarks.experiments` lists, shows and runs the stored tables."""

from __future__ import annotations

import importlib.util

import pytest

from benchmarks.experiments import __main__ as command


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
