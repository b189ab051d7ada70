"""Plots, for those who have Matplotlib: `pip install treemax[plot]`."""

from __future__ import annotations

import math
from typing import Any

from treemax.learning.tao import Record


def plot_history(model: Any, axes: Any = None) -> Any:
    """Draw how the training of a `SoftmaxTree` or `SoftmaxForest` went; returns Matplotlib's axes.

    The objective after every depth that was updated, iteration after iteration, one line a tree; and on an axis
    of its own, at the right, the training error after every iteration.

    Parameters
    ----------
    model : SoftmaxTree or SoftmaxForest
        A fitted one, which still has its learning state.
    axes : matplotlib.axes.Axes, optional
        Where to draw; new ones if not given.
    """
    trees = _histories(model)
    axes = _new_axes() if axes is None else axes
    errors = axes.twinx()
    for records in trees:
        n_depths = 1 + max(record.depth for record in records)
        at = [record.iteration + 1 - record.depth / n_depths for record in records]
        axes.plot(at, [record.objective for record in records], ".-", color="tab:blue", alpha=0.7)
        whole = [record for record in records if not math.isnan(record.error)]
        times = [record.iteration + 1 for record in whole]
        errors.plot(times, [100 * r.error for r in whole], "s--", color="tab:orange", alpha=0.7, markersize=4)
    axes.set_xlabel("iterations (a point for every depth, from the leaves to the root)")
    axes.set_ylabel("objective", color="tab:blue")
    errors.set_ylabel("training error %", color="tab:orange")
    errors.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    return axes


def _histories(model: Any) -> list[list[Record]]:
    """What was recorded, tree by tree."""
    if not hasattr(type(model), "history_"):
        raise TypeError(
            f"plot_history draws the training of a SoftmaxTree or SoftmaxForest, got {type(model).__name__}."
        )
    if "model_" not in vars(model):
        raise ValueError("plot_history needs a fitted model; call fit first.")
    if not model.states_:
        raise ValueError(
            "This model was saved without its learning state and has no history. Save it with save(path, resume=True)."
        )
    return [state.history for state in model.states_]


def _new_axes() -> Any:
    try:
        from matplotlib import pyplot
    except ImportError:
        raise ImportError("Plots need Matplotlib: pip install treemax[plot].") from None
    return pyplot.subplots(figsize=(7, 4))[1]
