"""How good ranked answers are. Plain NumPy and apart from `treemax.metrics`, as the judge of every system alike.

`ranked` is an [n, k] table of label ids, best first, -1 for none; `labels` and `starts` are the true ids of
all rows one after the other and where each row starts.
"""

from __future__ import annotations

import numpy as np

PROPENSITY_A, PROPENSITY_B = 0.55, 1.5  # Jain and others, 2016


def accuracies(
    ranked: np.ndarray,
    labels: np.ndarray,
    starts: np.ndarray,
    weights: np.ndarray,
    multi_label: bool,
    dense: bool,
) -> dict[str, float | None]:
    """The figures a suite reports: error@k in per cent for dense data, P@k for sparse, and PSP@k with several labels.

    `weights` are the inverse propensities of the labels. A figure at a k beyond what the system answers is None.
    """
    depth = int((ranked >= 0).any(axis=0).sum())
    ranked = np.where(ranked < len(weights), ranked, -1)  # some systems answer with labels that do not exist
    hits = correct(ranked, labels, starts, len(weights))
    figures: dict[str, float | None] = {}
    if dense:
        for k in (1, 5):
            figures[f"error@{k}"] = 100 * float(1 - hits[:, :k].any(axis=1).mean()) if k <= depth else None
        return figures
    for k in (1, 3, 5):
        figures[f"P@{k}"] = float(hits[:, :k].sum()) / (k * len(ranked)) if k <= depth else None
    if multi_label:
        gained = np.where(hits, weights[ranked], 0.0)
        for k in (1, 3, 5):
            attainable = best_gain(weights, labels, starts, k)
            figures[f"PSP@{k}"] = float(gained[:, :k].sum()) / attainable if k <= depth else None
    return figures


def correct(ranked: np.ndarray, labels: np.ndarray, starts: np.ndarray, n_labels: int) -> np.ndarray:
    """Which entries of `ranked` are labels of their row. A label given twice counts once."""
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
