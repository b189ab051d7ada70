"""Expected utilities beside slow references, and values of the package xcolumns 0.0.2."""

import itertools

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from treemax import LabelTree
from treemax.checks.examples import example_lists
from treemax.metrics import best_for_utility, expected_utility
from treemax.metrics.utility import UTILITIES

MACRO = [name for name in UTILITIES if name != "instance-precision"]


def reference(p, chosen, utility):
    """The expected utility, from its definition."""
    n, values = len(p), []
    for own, label in zip(chosen.T, p.T):
        correct, predicted, positive = (own * label).sum(), own.sum(), label.sum()
        if utility == "macro-precision":
            values.append(correct / predicted if predicted else 0)
        if utility == "macro-recall":
            values.append(correct / positive if positive else 0)
        if utility == "macro-f1":
            values.append(2 * correct / (predicted + positive) if predicted + positive else 0)
        if utility == "macro-balanced-accuracy":
            recall, negative = correct / positive if positive else 0, n - positive
            values.append((recall + ((negative - predicted + correct) / negative if negative else 0)) / 2)
        if utility == "coverage":
            values.append(1 - np.prod(1 - own * label))
    return np.mean(values)


def drawn(seed, n=40, m=12, density=0.5):
    random = np.random.default_rng(seed)
    p = random.beta(0.4, 1.5, size=(n, m)) * (random.uniform(size=(n, m)) < density)
    p[:, 0] = random.uniform(0.2, 0.9, size=n)  # a frequent label
    return p


@pytest.mark.parametrize("utility", MACRO)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), k=st.integers(1, 4))
def test_no_change_of_one_row_gains(utility, seed, k):
    p = drawn(seed)
    chosen = best_for_utility(sp.csr_matrix(p), k, utility).toarray()
    assert (chosen.sum(axis=1) == np.minimum(k, (p > 0).sum(axis=1))).all()
    value = reference(p, chosen, utility)
    assert expected_utility(p, chosen, utility) == pytest.approx(value, abs=1e-9)
    most_probable = np.zeros_like(chosen)
    np.put_along_axis(most_probable, np.argsort(-p, axis=1)[:, :k], 1, axis=1)
    assert value >= reference(p, most_probable * (p > 0), utility) - 1e-9
    for row in range(3):
        for labels in itertools.combinations(np.flatnonzero(p[row]), int(chosen[row].sum())):
            other = chosen.copy()
            other[row] = 0
            other[row, list(labels)] = 1
            # A pass that gains less than the tolerance is the last.
            assert reference(p, other, utility) <= value + 2e-6


# predict_using_bc_with_0approx and predict_optimizing_coverage_using_bc of xcolumns 0.0.2, init_y_pred="top",
# shuffle_order=False, on `drawn(seed, 200, 30)`: the expected utility of its answers by `reference`.
XCOLUMNS = {
    ("macro-precision", 1, 1): 0.896590,
    ("macro-precision", 2, 3): 0.761374,
    ("macro-recall", 1, 1): 0.233688,
    ("macro-recall", 2, 3): 0.540767,
    ("macro-f1", 1, 1): 0.345059,
    ("macro-f1", 2, 3): 0.561139,
    ("macro-balanced-accuracy", 1, 1): 0.611195,
    ("macro-balanced-accuracy", 2, 3): 0.746435,
    ("coverage", 1, 1): 0.999896,
    ("coverage", 2, 3): 1.000000,
}


@pytest.mark.parametrize("utility, seed, k", XCOLUMNS)
def test_as_good_as_xcolumns(utility, seed, k):
    p = drawn(seed, 200, 30)
    found = reference(p, best_for_utility(p, k, utility).toarray(), utility)
    assert found == pytest.approx(XCOLUMNS[utility, seed, k], rel=2e-3)


def test_most_probable_labels_maximise_the_precision_of_rows():
    p = drawn(0)
    chosen = best_for_utility(p, 2, "instance-precision").toarray()
    assert expected_utility(p, chosen, "instance-precision") == pytest.approx(np.sort(p, axis=1)[:, -2:].mean())


def test_models_answer_for_a_utility():
    X, lists = example_lists()
    model = LabelTree(verbose=0).fit(X, lists)
    p = model.predict_proba(X)
    for utility in UTILITIES:
        found = model.predict_for_utility(X, 2, utility)
        assert found.labels.shape == (len(X), 2)
        ids = model.label_index_.ids(found.labels.ravel()).reshape(-1, 2)
        np.testing.assert_allclose(found.scores, np.take_along_axis(p, ids, axis=1), rtol=1e-5)
        assert (np.diff(found.scores, axis=1) <= 0).all()
        chosen = np.zeros_like(p)
        np.put_along_axis(chosen, ids, 1, axis=1)
        best = expected_utility(p, best_for_utility(p, 2, utility), utility)
        assert expected_utility(p, chosen, utility) == pytest.approx(best, abs=1e-4)
    assert not np.isin(model.predict_for_utility(X, 2, exclude=["ant"]).labels, ["ant"]).any()


def test_bad_arguments():
    with pytest.raises(ValueError, match="utility must be one of macro-precision"):
        best_for_utility([[0.5]], 1, "f1")
    with pytest.raises(ValueError, match="k must be a positive integer"):
        best_for_utility([[0.5]], 0)
    with pytest.raises(ValueError, match="from 0 to 1"):
        best_for_utility([[1.5]], 1)
    with pytest.raises(ValueError, match="shape"):
        expected_utility([[0.5]], [[1, 0]])
