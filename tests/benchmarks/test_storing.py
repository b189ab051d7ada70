"""Experiments that measure for long: what they store, with made-up measurements."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("matplotlib")
from benchmarks.experiments import hierarchy, online, readers, scaling, solvers, texts, time_of_choices
from benchmarks.experiments.recall import figure4
from benchmarks.harness import output, suites


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """The rows of a table that was stored, by column."""
    for name in ("RESULTS", "STORED", "IMAGES"):
        monkeypatch.setattr(output, name, tmp_path)
    monkeypatch.setattr(sys, "argv", ["experiment"])
    for page in ("systems", "label-tree", "softmax-tree", "recall-tree", "online-label-tree"):
        (tmp_path / page).mkdir()
        (tmp_path / page / "page.json").write_text('{"results": []}')

    def rows(name):
        table = json.loads((tmp_path / f"{name}.json").read_text())
        names = [column["name"] for column in table["columns"]]
        return [dict(zip(names, row, strict=True)) for row in table["rows"]]

    return rows


def test_readers(stored, tmp_path, monkeypatch):
    (tmp_path / "a.svm").write_bytes(b"1" * 4_000_000)
    monkeypatch.setattr(readers, "make_files", lambda folder: [(".svm, one", tmp_path / "a.svm")])
    monkeypatch.setattr(readers, "compare", lambda path: (0.02, 0.4, True))
    readers.main()
    [row] = stored("systems/readers")
    assert row == {
        "file": ".svm, one",
        "MB": 4.0,
        "treemax MB/s": 200.0,
        "scikit-learn MB/s": 10.0,
        "times as fast": 20.0,
    }
    monkeypatch.setattr(readers, "compare", lambda path: (0.02, 0.4, False))
    with pytest.raises(AssertionError, match=r"\.svm, one: the matrices differ"):
        readers.main()


def test_texts(stored, monkeypatch):
    seconds = {
        f"{who} {what}": [t, 2 * t]
        for who, t in (("theirs", 0.5), ("ours", 0.125))
        for what in ("fit", "transform", "one")
    }
    monkeypatch.setattr(texts, "compared", lambda rows: seconds)
    monkeypatch.setattr(texts, "load_wordnet", lambda: [SimpleNamespace(texts=["a" * 1_000_000])])
    monkeypatch.setattr(texts, "LONG_BYTES", 1000)
    texts.main()
    rows = stored("systems/texts")
    assert [row["texts"] for row in rows][:3] == ["WordNet, fit", "WordNet, transform", "WordNet, one"] and len(
        rows
    ) == 6
    assert {row["ratio"] for row in rows} == {4.0} and rows[0]["MB a second"] == 8.0 and rows[2]["MB a second"] is None


def test_scaling(stored, monkeypatch):
    def run(command, **options):
        name, n = command[-2], int(command[-1])
        figures = {"labels": n, "depth": 2, "peak MB": 300.4, "P@1": 0.5}
        return SimpleNamespace(stdout=json.dumps({"model": name, **figures, **dict.fromkeys(COSTS, 1.2345)}))

    COSTS = ("train s", "train us a row", "predict us a row")
    monkeypatch.setattr(scaling.subprocess, "run", run)
    monkeypatch.setattr(scaling, "plot", lambda found: None)
    scaling.main([1000, 2000])
    rows = stored("label-tree/scaling")
    models = [(row["model"], row["labels"]) for row in rows]
    assert models == [(name, n) for name in scaling.MODELS for n in (1000, 2000)]
    assert rows[0]["peak MB"] == 300 and rows[0]["train s"] == 1.23


def test_hierarchy(stored, monkeypatch):
    part = SimpleNamespace(texts=["net : a thing"], labels=SimpleNamespace(values=FakeValues(["noun:1:net"])))
    monkeypatch.setattr(hierarchy, "load_wordnet", lambda: (part, part))
    monkeypatch.setattr(hierarchy, "measured", lambda tree, train, test: [0.5, 0.25, 0.125, 3, 1.5, 12.0])
    hierarchy.main()
    rows = stored("label-tree/hierarchy")
    assert [row["wordnet, tree"] for row in rows] == ["kmeans", "hypernyms", "complete", "random"]
    assert rows[0]["P@5"] == 0.125 and rows[0]["depth"] == 3


class FakeValues(list):
    def tolist(self):
        return list(self)


def test_solvers(stored, monkeypatch):
    run = {
        "problem": "glyphs1k, leaf", "rows": 1400, "features": 256, "classes": 100, "alpha": 0.1, "weights": 3265,
        "ours_s": 0.2, "ours_gap": 0.0002, "peer": "SAGA", "setting": 60, "peer_s": 7.0, "peer_gap": 0.2,
    }  # fmt: skip
    monkeypatch.setattr(solvers, "problems", lambda only: [None])
    monkeypatch.setattr(solvers, "measure", lambda problem, patience: dict(run))
    solvers.main()
    [row] = stored("softmax-tree/solvers")
    assert row["ours, ms"] == 200.0 and row["peer"] == "SAGA, 60 passes" and row["times faster"] == "> 35"
    assert row["above best %"] == 0.02 and row["peer above best %"] == 20.0


def test_figure_4_has_the_difference_from_one_against_all(stored, monkeypatch):
    names = {**figure4.SYSTEMS, **figure4.PEERS}

    def run(suite):
        figures = {"error": None, "train_cpu_seconds": 1.0, "batch_cpu_microseconds": 2.0, "one_cpu_microseconds": 3.0}
        rows = {name: {"error@1": 10.0 + i, **figures} for i, name in enumerate(names)}
        return {**rows, "VW --log_multi": {"error": "crashed"}}

    monkeypatch.setattr(figure4, "run", run)
    figure4.main(["toy"])
    rows = {row["model"]: row for row in stored("recall-tree/figure4")}
    assert rows["**OneVsAll**"]["less OneVsAll"] == 0.0 and rows["**RecallTree**"]["less OneVsAll"] == -3.0
    assert rows["VW --log_multi"]["error %"] is None and rows["VW --recall_tree"]["train s"] == 1.0


def test_the_curve_has_no_figures_of_what_saw_a_part(stored, tmp_path, monkeypatch):
    figures = {"train s": 1.0, "P@1": 0.5, "P@3": 0.25, "P@5": 0.125, "us a row": 10.0, "depth": 2}
    suite = SimpleNamespace(train=SimpleNamespace(y=[[0]] * 60_000, ids=[0]))
    monkeypatch.setattr(online.Suite, "read", lambda name: suite)
    monkeypatch.setattr(online, "tree_of_all", lambda suite: None)
    monkeypatch.setattr(online, "CURVE_PLOT", tmp_path / "curve.png")
    monkeypatch.setattr(online, "streamed", lambda suite, model, first, classes, n: {"hits": [1.0] * n, **figures})
    online.curve("gcc")
    rows = stored("online-label-tree/curve")
    assert rows[0]["model"] == "OPLT best-greedy" and rows[0]["progressive P@1"] == 1.0 and rows[0]["P@5"] == 0.125
    assert rows[-1]["model"] == "one-vs-rest, 30,000 rows" and rows[-1]["P@1"] is None and rows[-1]["train s"] == 1.0


def test_time_of_choices_in_per_cent(monkeypatch):
    monkeypatch.setattr(time_of_choices, "times", lambda name: (1.5, 1.2, 1.0))
    assert list(time_of_choices.lines(["toy"])) == [["toy", 1.5, 25, 20, 50]]
    monkeypatch.setattr(time_of_choices, "times", missing)
    assert list(time_of_choices.lines(["toy"])) == []


def missing(name):
    raise suites.DataMissing("no files")
