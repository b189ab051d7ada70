"""The experiments with memory trees on synthetic data."""

from __future__ import annotations

import doctest
import json
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
from benchmarks.experiments import memory_trees
from benchmarks.harness import output
from tests.benchmarks.test_tagspace import Rows


def test_examples_in_the_docstrings_hold():
    assert doctest.testmod(memory_trees).failed == 0


def test_sets_are_judged_by_f1_and_hamming_loss():
    suite = memory_trees.Suite(Rows(multi_label=True, n=(20, 2)))
    suite.y_test = [[1, 2], [3]]
    assert suite.of_sets([[1, 2], [3]]) == [1.0, 0.0]
    assert suite.of_sets([[1, 4], []]) == pytest.approx([0.25, 1.5])


@pytest.mark.slow
def test_the_table_has_ours_and_says_where_vowpal_wabbit_failed(tmp_path, monkeypatch):
    def no_vw(suite, passes):
        raise ValueError("no such program")

    monkeypatch.setattr(memory_trees, "of_vw", no_vw)
    monkeypatch.setattr(memory_trees, "PASSES", (1,))
    monkeypatch.setattr(memory_trees, "prepared", lambda name: name)
    monkeypatch.setattr(memory_trees, "Data", lambda folder: Rows(multi_label=True))
    monkeypatch.setattr(output, "RESULTS", tmp_path)
    monkeypatch.setattr(output, "STORED", tmp_path)
    (tmp_path / "online-label-tree").mkdir()
    (tmp_path / "online-label-tree" / "page.json").write_text(json.dumps({"results": []}))
    assert memory_trees.main(["toy"]) == 0
    rows = json.loads((tmp_path / "online-label-tree" / "memory-trees.json").read_text())["rows"]
    assert len(rows) == 4 and rows[-1][1].endswith("failed") and rows[-1][3:] == [None] * 7
    for row in rows[:3]:
        assert 0.3 < row[3] <= 1 and 0 < row[6] <= 1 and row[8] > 0 and row[9] > 0


def test_answers_of_vowpal_wabbit_are_judged(monkeypatch):
    suite = memory_trees.Suite(Rows(multi_label=True, n=(20, 3)))
    truth = "".join(",".join(str(label + 1) for label in labels) + "\n" for labels in suite.y_test)
    commands = []

    def run(options, *more):
        commands.append(options)
        if " -p " in f" {options}":
            Path(options.split("-p ")[1].split()[0]).write_text(truth)
        return 0.5

    monkeypatch.setattr(memory_trees, "run_vw", run)
    found = memory_trees.of_vw(suite, 3)
    assert found[:3] == [None] * 3 and found[3:6] == [1.0, 0.0, 0.5]
    assert "--oas" in commands[0] and "--passes 3" in commands[0] and "--max_number_of_labels 8" in commands[0]
