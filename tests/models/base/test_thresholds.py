"""Thresholds chosen on validation rows, against plain enumeration."""

from __future__ import annotations

import numpy as np
import pytest

from treemax.models.base.thresholds import PRIOR_EXAMPLES, Decision, Ranked, choose


def ranked(seed: int, n_rows: int = 60, n_labels: int = 7) -> tuple[Ranked, np.ndarray, np.ndarray]:
    """All labels of each row, ranked; and probabilities and truth as matrices."""
    draw = np.random.default_rng(seed)
    probabilities = draw.random((n_rows, n_labels)).astype(np.float32) ** 2
    truth = draw.random((n_rows, n_labels)) < probabilities
    ids = np.argsort(-probabilities, axis=1)
    sorted_by = [np.take_along_axis(array, ids, axis=1) for array in (probabilities, truth)]
    return Ranked(ids, *sorted_by, truth.sum(axis=1), truth.sum(axis=0)), probabilities, truth


def f1(chosen: np.ndarray, truth: np.ndarray, axis: int | None) -> np.ndarray:
    sizes = chosen.sum(axis=axis) + truth.sum(axis=axis)
    return np.where(sizes > 0, 2 * (chosen & truth).sum(axis=axis) / np.maximum(sizes, 1), 1.0)


@pytest.mark.parametrize("seed", range(5))
def test_macro_f1_takes_the_best_threshold_of_each_label(seed, monkeypatch):
    rows, probabilities, truth = ranked(seed)
    common, one_at_least, thresholds = choose(rows, "macro-f1", None)
    assert not one_at_least
    own = (thresholds * (rows.counts + PRIOR_EXAMPLES) - PRIOR_EXAMPLES * common) / np.maximum(rows.counts, 1)
    for label in np.flatnonzero(rows.counts):
        best = max(f1(probabilities[:, label] >= t, truth[:, label], None) for t in probabilities[:, label])
        assert f1(probabilities[:, label] >= own[label], truth[:, label], None) == pytest.approx(best)


@pytest.mark.parametrize("seed", range(5))
def test_instance_f1_takes_the_best_common_threshold(seed):
    rows, probabilities, truth = ranked(seed)
    threshold, one_at_least, thresholds = choose(rows, "instance-f1", None)
    assert thresholds is None
    first = probabilities == probabilities.max(axis=1, keepdims=True)

    def mean(value: float, one: bool) -> float:
        chosen = probabilities >= value
        if one:
            chosen |= first
        return float(f1(chosen, truth, 1).mean())

    best = max(mean(value, one) for value in np.unique(probabilities) for one in (True, False))
    assert mean(threshold, one_at_least) == pytest.approx(best)


@pytest.mark.parametrize("wanted", [0.5, 0.8, 0.95])
def test_precision_takes_the_lowest_threshold_that_reaches_it(wanted):
    rows, probabilities, truth = ranked(0)
    threshold, one_at_least, thresholds = choose(rows, "precision", wanted)
    assert thresholds is None and not one_at_least
    reached = [value for value in np.unique(probabilities) if truth[probabilities >= value].mean() >= wanted]
    assert threshold == pytest.approx(min(reached))


def test_a_precision_out_of_reach_predicts_almost_nothing():
    rows = Ranked(np.array([[0]]), np.array([[0.9]], np.float32), np.array([[False]]), np.array([0]), np.array([0]))
    assert choose(rows, "precision", 0.9)[0] == 1.0


def test_labels_that_came_later_have_the_common_threshold():
    decision = Decision("macro-f1", 10, np.array([0.1, 0.9], np.float32))
    np.testing.assert_allclose(decision.of(np.array([0, 1, 2]), 0.4), [0.1, 0.9, 0.4], rtol=1e-6)
    assert decision.lowest(0.4) == pytest.approx(0.1)
    np.testing.assert_allclose(decision.without(np.array([False, True, True])).thresholds, [0.9], rtol=1e-6)


@pytest.mark.parametrize(
    ("header", "array"),
    [({"metric": "none", "n_rows": 3}, None), ([], None), ({"metric": "macro-f1", "n_rows": -1}, None),
     ({"metric": "macro-f1", "n_rows": 3}, [0.5, 2.0]), ({"metric": "macro-f1", "n_rows": 3}, [0.5, np.nan])],
)  # fmt: skip
def test_a_damaged_decision_is_refused(header, array):
    arrays = {} if array is None else {"label_thresholds": np.array(array, np.float32)}
    with pytest.raises(ValueError):
        Decision.from_parts(header, arrays, 2)
