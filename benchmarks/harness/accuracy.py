"""How good ranked answers are. Plain NumPy and apart from `treemax.metrics`, as the judge of every system alike.

`ranked` is an [n, k] table of label ids, best first, -1 for none; `labels` and `starts` are the true ids of
all rows one after the other and where each row starts.
"""

from __future__ import annotations

import numpy as np

PROPENSITY_A, PROPENSITY_B = 0.55, 1.5  # Jain and others, 2016


def accuracies(
    ranked: np.ndarray, labels: np.ndarray, starts: np.ndarray, weights: np.ndarray, multi_label: bool, dense: bool
) -> dict[str, float | None]:
    """The figures a suite reports: error@k in per cent for dense data, P@k for sparse, and PSP@k with several labels.

    `weights` are the inverse propensities of the labels. A figure at a k beyond what the system answers is None.
    """
    depth = depth_of(ranked)
    hits = correct(ranked, labels, starts, len(weights))
    counts = row_counts(hits, depth, dense)
    names = [f"error@{k}" for k in (1, 5)] if dense else [f"P@{k}" for k in (1, 3, 5)]
    figures: dict[str, float | None] = {
        name: unit(name) * float(counts[name].mean()) if name in counts else None for name in names
    }
    if multi_label and not dense:
        gained = np.where(hits, weights[np.where(hits, ranked, 0)], 0.0)
        for k in (1, 3, 5):
            attainable = best_gain(weights, labels, starts, k)
            figures[f"PSP@{k}"] = float(gained[:, :k].sum()) / attainable if k <= depth else None
    return figures


def depth_of(ranked: np.ndarray) -> int:
    """How many answers a row the system gives."""
    return int((ranked >= 0).any(axis=0).sum())


def row_counts(hits: np.ndarray, depth: int, dense: bool) -> dict[str, np.ndarray]:
    """What each row counts: its right answers among the first k, or 1 where they are all wrong (error@k)."""
    if dense:
        return {f"error@{k}": np.logical_not(hits[:, :k].any(axis=1)) for k in (1, 5) if k <= depth}
    return {f"P@{k}": hits[:, :k].sum(axis=1) for k in (1, 3, 5) if k <= depth}


def unit(figure: str) -> float:
    """A figure is the mean of what its rows count, times this.

    >>> unit("error@1"), unit("P@5")
    (100.0, 0.2)
    """
    return 100.0 if figure.startswith("error") else 1 / int(figure.partition("@")[2])


def correct(ranked: np.ndarray, labels: np.ndarray, starts: np.ndarray, n_labels: int) -> np.ndarray:
    """Which entries of `ranked` are labels of their row. A label given twice counts once."""
    ranked = np.where(ranked < n_labels, ranked, -1)  # some systems answer with labels that do not exist
    rows = np.arange(len(ranked))
    pairs = np.repeat(rows, np.diff(starts)) * n_labels + labels
    hits = np.isin(rows[:, None] * n_labels + ranked, pairs) & (ranked >= 0)
    for k in range(1, ranked.shape[1]):
        hits[:, k] &= (ranked[:, :k] != ranked[:, k : k + 1]).all(axis=1)
    return hits


def inverse_propensities(labels: np.ndarray, n_labels: int, n_rows: int) -> np.ndarray:
    """One weight a label, the larger the rarer it is in the training rows."""
    c = (np.log(n_rows) - 1) * (PROPENSITY_B + 1) ** PROPENSITY_A
    return 1 + c * (np.bincount(labels, minlength=n_labels) + PROPENSITY_B) ** -PROPENSITY_A


def best_gain(weights: np.ndarray, labels: np.ndarray, starts: np.ndarray, k: int) -> float:
    """What k perfect answers a row would gain in all."""
    rows = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    order = np.lexsort((-weights[labels], rows))
    rank = np.arange(len(labels)) - starts[rows]
    return float(weights[labels[order]][rank < k].sum())


def expected_error(probabilities: np.ndarray, right: np.ndarray) -> float:
    """Expected calibration error: mean distance from the diagonal, ten bins with the same number of answers."""
    parts = np.array_split(np.argsort(probabilities), 10)
    off = [abs(probabilities[part].mean() - right[part].mean()) * len(part) for part in parts if len(part)]
    return float(np.sum(off) / len(probabilities))


def micro_f1(
    chosen: np.ndarray, chosen_starts: np.ndarray, labels: np.ndarray, starts: np.ndarray, n_labels: int
) -> float:
    """F1 over all pairs of a row and a label; the sets of labels are given as `labels` and `starts` are."""
    rows = np.arange(len(starts) - 1)
    given = np.repeat(rows, np.diff(chosen_starts)) * n_labels + chosen
    true = np.repeat(rows, np.diff(starts)) * n_labels + labels
    return 2 * len(np.intersect1d(given, true)) / max(1, len(given) + len(true))
