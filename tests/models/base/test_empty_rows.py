"""Rows without known features: predicted from the label frequencies of training rows without features."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import treemax
from treemax.numpy_only.frequencies import PRIOR_ROWS

RARE = 20  # rows without features, all but two of them with the label "rare"
MODELS = {
    "label-tree": lambda: treemax.LabelTree(verbose=0),
    "one-vs-all": lambda: treemax.OneVsAll(verbose=0),
    "online-label-tree": lambda: treemax.OnlineLabelTree(verbose=0),
}


def data(multi_label: bool = False):
    """Forty rows with features, and `RARE` rows without."""
    random = np.random.default_rng(0)
    y = ["first", "second"] * 20 + ["rare"] * (RARE - 2) + ["first"] * 2
    X = np.zeros((len(y), 8))
    X[:40] = random.random((40, 8)) + np.eye(2, 8)[[0, 1] * 20]
    return sp.csr_matrix(X), [[label] for label in y] if multi_label else y


def expected(y, weights=None):
    """The frequencies in the rows without features, with those in all rows as `PRIOR_ROWS` more rows."""
    weights = np.ones(len(y)) if weights is None else weights
    found = {}
    for label in sorted(set(y)):
        own = weights * (np.array(y) == label)
        of_all = own.sum() / weights.sum()
        found[label] = (own[40:].sum() + PRIOR_ROWS * of_all) / (weights[40:].sum() + PRIOR_ROWS)
    return found


def check(model, wanted):
    """All ways to ask agree with the frequencies."""
    for rows in (sp.csr_matrix((2, 8)), sp.csr_matrix(([1.0, 1.0], ([0, 1], [50, 60])))):
        labels, scores = model.predict_topk(rows, 3)
        ranked = sorted(wanted, key=lambda label: -wanted[label])
        assert labels[0].tolist() == labels[1].tolist() == ranked
        np.testing.assert_allclose(scores[1], [wanted[label] for label in ranked], rtol=1e-5)
        all_of = model.predict_proba(rows)[0]
        np.testing.assert_allclose(all_of, [wanted[label] for label in model.classes_.tolist()], rtol=1e-5)
        weighted = model.predict_topk(rows, 1, exclude=[ranked[0]])
        assert weighted.labels[0, 0] == ranked[1]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("multi_label", [False, True])
def test_prediction_of_empty_rows_is_that_of_empty_training_rows(name, multi_label, tmp_path):
    X, y = data(multi_label)
    model = MODELS[name]().fit(X, y)
    wanted = expected(data()[1])
    assert max(wanted, key=wanted.get) == "rare"
    check(model, wanted)
    model.save(tmp_path / "model.treemax")
    check(treemax.load(tmp_path / "model.treemax"), wanted)


def test_rows_without_empty_ones_keep_all_frequencies():
    X, y = data()
    model = treemax.LabelTree(verbose=0).fit(X[:40], y[:40])
    assert "empty_rows" not in model.to_parts()[1]
    assert model.predict_proba(sp.csr_matrix((1, 8))).tolist() == [[0.5, 0.5]]


def test_weights_of_rows_count():
    X, y = data()
    weights = np.arange(1.0, len(y) + 1)
    model = treemax.LabelTree(verbose=0).fit(X, y, sample_weight=weights)
    check(model, expected(y, weights))


def test_partial_fit_counts_as_fit_does():
    X, y = data()
    model = treemax.OnlineLabelTree(verbose=0)
    for start in range(0, len(y), 7):
        model.partial_fit(X[start : start + 7], y[start : start + 7])
    check(model, expected(y))


def test_a_new_fit_forgets_the_empty_rows():
    X, y = data()
    model = treemax.LabelTree(verbose=0).fit(X, y).fit(X[:40], y[:40])
    assert model.predict_proba(sp.csr_matrix((1, 8))).tolist() == [[0.5, 0.5]]


def test_compact_keeps_the_counts_of_the_other_labels():
    X, y = data()
    model = treemax.LabelTree(verbose=0).fit(X, y)
    before = dict(zip(*(part[0].tolist() for part in model.predict_topk(sp.csr_matrix((1, 8)), 3)), strict=True))
    model.forget(["second"])
    model.compact()
    labels, scores = model.predict_topk(sp.csr_matrix((1, 8)), 2)
    assert labels[0].tolist() == ["rare", "first"]
    assert scores[0, 0] >= before["rare"] * 0.99


def test_fit_file_equals_fit(tmp_path):
    X, y = data()
    path = tmp_path / "rows.svm"
    lines = []
    for row, label in zip(X, y, strict=True):
        pairs = " ".join(f"{index}:{value!r}" for index, value in zip(row.indices.tolist(), row.data.tolist()))
        lines.append(f"{sorted(set(y)).index(label)} {pairs}".strip())
    path.write_text("\n".join(lines) + "\n")
    model = treemax.LabelTree(verbose=0).fit_file(path)
    wanted = expected([sorted(set(y)).index(label) for label in y])
    labels, scores = model.predict_topk(sp.csr_matrix((1, 8)), 3)
    found = dict(zip([int(label) for label in labels[0]], scores[0].tolist(), strict=True))
    assert found == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("forged", [[5.0, 0.0, 0.0, 1.0], [-1.0, 0.0, 0.0, 1.0], [np.nan, 0.0, 0.0, 1.0], [0.0, 1.0]])
def test_forged_counts_are_refused(forged):
    X, y = data()
    header, arrays = treemax.LabelTree(verbose=0).fit(X, y).to_parts()
    assert len(arrays["empty_rows"]) == 4
    with pytest.raises(ValueError, match=r"empty_rows|without features"):
        treemax.LabelTree.from_parts(header, {**arrays, "empty_rows": np.array(forged)})
