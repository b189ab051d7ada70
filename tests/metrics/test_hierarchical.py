"""Hierarchical precision, recall, F and distance, beside sets of Python."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trees.test_taxonomy import distance, edges_of, graphs, paths
from treemax import Taxonomy
from treemax.metrics import (
    HierarchicalScores,
    hierarchical_f1,
    hierarchical_precision,
    hierarchical_recall,
    tree_distance,
)

ANIMALS = {"animal": {"pet": ["cat", "dog"], "fish": ["eel"]}, "plant": ["fern"]}


def by_sets(parents, y_true, y_pred):
    """Micro and macro precision, recall and F, and the distance, row by row."""
    truth = [{node for label in row for path in paths(parents, label) for node in path} for row in y_true]
    found = [{node for label in row for path in paths(parents, label) for node in path} for row in y_pred]
    common = [len(a & b) for a, b in zip(truth, found)]
    precisions = [c / len(p) if p else 0.0 for c, p in zip(common, found)]
    recalls = [c / len(t) if t else 0.0 for c, t in zip(common, truth)]
    precision = sum(common) / max(1, sum(map(len, found)))
    recall = sum(common) / max(1, sum(map(len, truth)))

    def f(p, r):
        return 2 * p * r / (p + r) if p + r else 0.0

    depth = {name: min(map(len, paths(parents, name))) for name in parents}
    far = [
        np.mean([min([distance(parents, t, p) for p in predicted], default=depth[t]) for t in own]) if own else 0.0
        for own, predicted in zip(y_true, y_pred)
    ]
    return {
        "micro": (precision, recall, f(precision, recall)),
        "macro": (np.mean(precisions), np.mean(recalls), np.mean([f(*both) for both in zip(precisions, recalls)])),
        "distance": np.mean(far),
    }


@settings(max_examples=60, deadline=None)
@given(graphs(), st.data())
def test_any_answers(parents, data):
    nodes = [*parents, 100, 101]  # two that are not in the taxonomy
    rows = st.lists(st.lists(st.sampled_from(nodes), max_size=3, unique=True), min_size=1, max_size=6)
    y_true = data.draw(rows)
    y_pred = data.draw(st.lists(st.lists(st.sampled_from(nodes), max_size=3, unique=True),
                                min_size=len(y_true), max_size=len(y_true)))  # fmt: skip
    whole = {**parents, 100: [], 101: []}
    expected = by_sets(whole, y_true, y_pred)
    taxonomy = Taxonomy(edges_of(parents))
    for average in ("micro", "macro"):
        functions = (hierarchical_precision, hierarchical_recall, hierarchical_f1)
        found = [function(y_true, y_pred, taxonomy, average) for function in functions]
        assert found == pytest.approx(expected[average])
    assert tree_distance(y_true, y_pred, taxonomy) == pytest.approx(expected["distance"])
    scores = HierarchicalScores(taxonomy)
    for row in range(len(y_true)):
        scores.update(y_true[row : row + 1], y_pred[row : row + 1])
    result = scores.result()
    assert [result[name] for name in ("hP", "hR", "hF")] == pytest.approx(expected["micro"])
    assert result["distance"] == pytest.approx(expected["distance"])
    assert result["answered"] == np.mean([len(row) > 0 for row in y_pred])


def test_forms_of_answers():
    y_true, y_pred = ["cat", "eel", "fern"], np.array(["dog", None, "fern"], dtype=object)
    assert hierarchical_precision(y_true, y_pred, ANIMALS) == 4 / 5
    assert hierarchical_recall(np.array(y_true), y_pred, ANIMALS) == 4 / 8
    assert tree_distance([["cat"], ["eel"], ["fern"]], y_pred, ANIMALS) == (2 + 3 + 0) / 3
    assert hierarchical_recall(["cat"], ["animal"], ANIMALS) == 1 / 3  # any node is an answer
    assert hierarchical_f1([3, 4], [3, 7], {7: [3, 4]}) == pytest.approx(2 * 1 * (3 / 4) / (1 + 3 / 4))
    matrix = sp.csr_matrix(np.eye(3, dtype=int))
    assert hierarchical_f1(matrix, [0, 1, 2], {9: [0, 1, 2]}) == 1
    assert hierarchical_precision([["cat"]], np.array([["cat", None]], dtype=object), ANIMALS) == 1


def test_cases_of_hiclass():
    """Rows are paths; the values are those of hiclass's own tests."""
    assert hierarchical_precision([1, 2, 3, 4], [1, 2, 5, 6]) == 0.5
    one, other = [[1, 2, 3, 4], [1, 2, 5, 6]], [[1, 2, 5, 6], [1, 2, 3, 4]]
    assert hierarchical_precision(one, other) == 0.5
    assert hierarchical_precision(one, [[1, 5, 6, 7], [1, 2, 3, 4]], average="macro") == 0.375
    assert hierarchical_f1(one, [[1, 5, 6], [1, 2, 3]], average="macro") == pytest.approx(0.4285714)
    assert hierarchical_f1([["2", "3"], ["1"], ["4", "5", "6"]], [["1"], ["2", "3"], ["4", "5", "6"]]) == 0.5
    mixed = [["human", "mermaid", "", ""], ["human", "minotaur", "bull", "minotaur"]]
    full = [["human", "mermaid", "fish", "mermaid"], ["human", "minotaur", "bull", "minotaur"]]
    assert hierarchical_precision(mixed, full) == pytest.approx(5 / 6)
    assert hierarchical_f1(full, mixed) == pytest.approx(0.909, rel=1e-3)
    assert hierarchical_f1(full, mixed, average="macro") == pytest.approx(0.9)
    for average in ("micro", "macro"):
        assert hierarchical_f1([1, 2], [3, 4], average=average) == 0.0
        assert hierarchical_f1([1, 2], [3, 4], average=average, zero_division=1.0) == 1.0
        assert np.isnan(hierarchical_f1([1, 2], [3, 4], average=average, zero_division=np.nan))


def test_wrong_arguments():
    with pytest.raises(ValueError, match="2"):
        hierarchical_precision(["cat"], ["cat", "dog"], ANIMALS)
    with pytest.raises(ValueError, match="average must be micro or macro, got 'weighted'"):
        hierarchical_f1(["cat"], ["cat"], ANIMALS, "weighted")
    with pytest.raises(ValueError, match="nothing to evaluate"):
        hierarchical_f1([], [], ANIMALS)
    with pytest.raises(ValueError, match=r"strings or integers, got 1\.5"):
        hierarchical_f1([1.5], [1], ANIMALS)
    with pytest.raises(ValueError, match="cycle"):
        tree_distance(["a"], ["a"], [("a", "b"), ("b", "a")])
