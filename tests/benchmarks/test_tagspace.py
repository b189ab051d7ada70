"""The flat rows of table 1 of the learned-tree paper, on synthetic data."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp

from benchmarks.experiments import tagspace
from benchmarks.harness import output


class Rows:
    """As `harness.measure.Data`: rows whose labels are their largest features."""

    sparse, n_labels = True, 8

    def __init__(self, multi_label, n=(600, 100)):
        random, self.multi_label = np.random.default_rng(0), multi_label
        self.parts = {}
        for part, rows in zip(("train", "test"), n):
            X = np.abs(random.standard_normal((rows, 12))).astype(np.float32)
            X[:, :8] *= X[:, :8] > 0.6
            order = np.argsort(-X[:, :8], axis=1)
            self.parts[part] = sp.csr_matrix(X), [row[: 2 if multi_label else 1].tolist() for row in order]

    def csr(self, part):
        X = self.parts[part][0]
        return (X.data, X.indices, X.indptr), X.shape

    def label_lists(self, part):
        return self.parts[part][1]

    def labels(self, part):
        lists = self.label_lists(part)
        return np.concatenate(lists), np.concatenate([[0], np.cumsum(list(map(len, lists)))])


def test_tagspace_ranks_labels_that_it_learned():
    suite = tagspace.Suite(Rows(multi_label=False))
    model = tagspace.TagSpace(16, 0.3).fit(suite.X, *suite.labels, 8)
    ranked = model.top(suite.X_test, 5)
    scores = (suite.X_test @ model.embeddings) @ model.labels.T
    np.testing.assert_array_equal(ranked, np.argsort(-scores, axis=1)[:, :5])
    assert suite.figures(ranked)[0] > 0.6
    again = tagspace.TagSpace(16, 0.3).fit(suite.X, *suite.labels, 8)
    np.testing.assert_array_equal(again.embeddings, model.embeddings)


def test_one_step_of_tagspace_is_that_of_numpy():
    """One row, one feature and two labels: the only wrong label is drawn at the first try."""
    X, rate = sp.csr_matrix(np.ones((1, 1), np.float32)), 0.5
    start = tagspace.TagSpace(4, 0.0, passes=1).fit(X, np.array([1]), np.array([0, 1]), 2)
    model = tagspace.TagSpace(4, rate, passes=1).fit(X, np.array([1]), np.array([0, 1]), 2)
    hidden, gradient = start.embeddings[0], start.labels[1] - start.labels[0]
    step = rate * hidden / np.sqrt(1e-8 + (hidden**2).mean())
    np.testing.assert_allclose(model.labels, start.labels + np.array([-step, step]), rtol=1e-4)
    moved = hidden + rate * gradient / np.sqrt(1e-8 + (gradient**2).mean())
    np.testing.assert_allclose(model.embeddings[0], moved, rtol=1e-4)


def test_a_flat_tree_has_all_labels_at_the_root():
    tree = tagspace.flat_tree(5)
    assert tree.depth == 1 and tree.n_children[0] == 5 and tree.label[1:].tolist() == list(range(5))


@pytest.mark.slow
@pytest.mark.parametrize("multi_label", [False, True])
def test_the_table_has_a_row_for_every_model(multi_label, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tagspace, "DIMENSIONS", (16,))
    monkeypatch.setattr(tagspace, "RATES", (0.1, 0.3))
    monkeypatch.setattr(tagspace, "prepared", lambda name, validation=False: SimpleNamespace(name=name))
    monkeypatch.setattr(tagspace, "Data", lambda folder: Rows(multi_label))
    monkeypatch.setattr(output, "RESULTS", tmp_path)
    monkeypatch.setattr(output, "STORED", tmp_path)
    (tmp_path / "learned-tree").mkdir()
    (tmp_path / "learned-tree" / "page.json").write_text(json.dumps({"results": []}))
    assert tagspace.main(["toy"]) == 0
    rows = json.loads((tmp_path / "learned-tree" / "flat.json").read_text())["rows"]
    assert [row[2].partition(",")[0] for row in rows] == ["learned", "Huffman", "flat softmax", "TagSpace"]
    assert all(row[3] > 0.5 and row[5] > 0 and row[6] > 0 for row in rows)
    assert capsys.readouterr().out.count("| toy |") == 4
