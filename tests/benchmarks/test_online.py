"""The tables of online label trees, on made-up data."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.sparse import csr_matrix

pytest.importorskip("matplotlib")
from benchmarks import pages
from benchmarks.experiments import online
from benchmarks.harness import output


def toy_suite(name: str) -> online.Suite:
    """Rows of one feature a label, with two labels each."""
    random = np.random.default_rng(0)
    labels = [sorted(random.choice(12, 2, replace=False).tolist()) for _ in range(140)]
    X = csr_matrix(np.array([[float(label in row) for label in range(12)] for row in labels], np.float32))

    def rows(part: slice) -> online.Rows:
        some = labels[part]
        return online.Rows(X[part], some, np.concatenate(some), np.arange(0, 2 * len(some) + 1, 2))

    return online.Suite(name, rows(slice(0, 110)), rows(slice(110, 140)), 12, True, np.ones(12))


def test_cells_have_means_and_deviations():
    assert online.cell([{"P@1": 0.5}, {"P@1": 0.7}], "P@1") == {"value": 0.6, "error": 0.14}
    assert online.cell([{"P@1": 0.5}], "P@1") == 0.5 and online.cell([{"P@1": None}], "P@1") is None


def test_trained_models_are_not_kept(monkeypatch):
    models = {name: online.published(passes=1) for name in ("IPLT, p=1", "OPLT")}
    monkeypatch.setattr(online, "trees_of_tables", lambda passes, seed: models)
    found = online.runs_of_tables(toy_suite("toy"))
    assert set(models) <= set(found) and not any(hasattr(model, "model_") for model in models.values())


@pytest.mark.slow
def test_tables_are_stored_for_every_suite_and_side_by_side(tmp_path, monkeypatch):
    monkeypatch.setattr(online.Suite, "read", toy_suite)
    monkeypatch.setattr(online, "TABLES", {"toy": (2, (1, 3), True), "other": (1, (1,), False)})
    for module in (output, pages):
        monkeypatch.setattr(module, "STORED", tmp_path)
    monkeypatch.setattr(output, "RESULTS", tmp_path)
    (tmp_path / "online-label-tree").mkdir()
    (tmp_path / "online-label-tree" / "page.json").write_text(json.dumps({"results": []}))
    online.tables(["other"])
    online.tables(["toy"])  # one suite alone: the columns of the other stay
    assert json.loads((tmp_path / "online-label-tree" / "page.json").read_text())["results"] == ["tables"]
    toy, tables = (
        {row[0]: row[1:] for row in json.loads((tmp_path / "online-label-tree" / f"{name}.json").read_text())["rows"]}
        for name in ("toy", "tables")
    )
    for name in (
        "IPLT, p=1",
        "OPLT-W 10%, p=3",
        "OPLT best-greedy, alpha=0.25, p=3",
        "IPLT-U, tree of 5%, no new labels, p=3",
    ):
        assert 0 < toy[name][0]["value"] <= 1 and toy[name][0]["error"] >= 0
    assert toy["OPLT best-greedy, p=3"][0]["value"] > 0.9
    assert toy["IPLT, 5% of the rows only, p=3"][0]["value"] < 0.9
    assert isinstance(toy["ContextualMemoryTree as published, p=3"][0], float)
    assert tables["IPLT, p=1"][:1] == toy["IPLT, p=1"][:1] and isinstance(tables["IPLT, p=1"][4], float)
    assert tables["IPLT, p=3"][4:] == [None] * 4  # the other suite has one pass
