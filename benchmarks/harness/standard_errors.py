"""How sure a figure is: standard errors over the rows that were predicted, of a figure and of paired differences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.harness.accuracy import unit

Estimate = dict[str, float]


def row_values(runs: Sequence[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Figure by figure, what each row adds to it: the mean over the runs of what it counts."""
    found = {}
    for figure in runs[0].get("hits", {}) if runs else ():
        digits = [np.frombuffer(run["hits"][figure].encode(), np.uint8) - ord("0") for run in runs]
        found[figure] = unit(figure) * np.mean(digits, axis=0)
    return found


def estimate(values: np.ndarray) -> Estimate:
    """The mean, and its standard error (0 for a single row, which says nothing about others)."""
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
    return {"value": float(values.mean()), "error": float(error)}


def difference(ours: dict[str, np.ndarray], peer: dict[str, np.ndarray]) -> dict[str, Estimate]:
    """Ours - peer, row by row, for every figure that both have."""
    return {figure: estimate(ours[figure] - peer[figure]) for figure in ours if figure in peer}
