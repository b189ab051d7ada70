"""What the traces of several models share: the features of a row, shares, and the decisions of linear scorers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from treemax.explanations import Path, Step, Trace, linear_step
from treemax.inputs.conversions import sparsified
from treemax.inputs.rows import Rows, read_only
from treemax.kernels.feature_tables import SparseScorers
from treemax.models.trained.online_trees import OnlineTreeModel
from treemax.models.trained.scorers import Scorers, weights_of_features

MOST_BELOW = 1024  # labels below a node among which the most frequent are found
NOTHING = np.zeros(0, dtype=np.int64)
RANKING = -1  # the node of a ranking of candidates


def row_entries(row: Rows, n_features: int | None = None) -> tuple[NDArray[np.uint32], NDArray[np.float32]]:
    """Return the columns of one row, those below `n_features`, and their values."""
    sparse = sparsified(row)
    part = slice(int(sparse.indptr[0]), int(sparse.indptr[1]))
    columns, values = sparse.indices[part], sparse.values[part]
    if n_features is None or len(columns) == 0 or int(columns[-1]) < n_features:
        return columns, values
    known = columns < n_features
    return read_only(columns[known]), read_only(values[known])


def shares(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the softmax of scores."""
    powers = np.exp(scores - scores.max())
    return powers / powers.sum()


def logistic(score: float) -> float:
    """Return the logistic function of a score."""
    return float(1.0 / (1.0 + np.exp(-score))) if score > -700 else 0.0


def flat_trace(columns: NDArray[Any], values: NDArray[np.float32], steps: Sequence[Step], weights: str) -> Trace:
    """Return the trace of labels with a single step each."""
    return Trace(columns.astype(np.int64), values, [[Path([step])] for step in steps], weights)


class Entries(NamedTuple):
    """The features of a row as a model takes them."""

    columns: NDArray[Any]
    values: NDArray[np.float32]

    @classmethod
    def of(cls, model: OnlineTreeModel, row: Rows) -> Entries:
        if model.is_sparse:
            return cls(*row_entries(row, model.n_features))
        form = model.rows(row)
        columns = np.flatnonzero(form[0])
        return cls(columns, form[0][columns])


def precision(scorers: Scorers) -> str:
    """Return the precision of the weights in prediction."""
    return "float32" if isinstance(scorers, SparseScorers) else "float16 with a scale for each scorer"


def decision(
    scorers: Scorers, scorer: int, entries: Entries, node: int, children: tuple[int, int], words: tuple[str, str],
    zero_is_second: bool = False,
) -> Step:  # fmt: skip
    """Return the step of one scorer that sends a row to the second child if its score is above 0, else to the first.

    The logit is that of the child taken, so never negative.
    """
    added = weights_of_features(scorers, scorer, 1, entries.columns)[0] * entries.values
    bias = float(scorers.bias[scorer])
    score = bias + float(added.sum())
    side = int(score > 0 or (zero_is_second and score == 0))
    sign = 2 * side - 1
    return linear_step(node, children[side], words[side], 1.0, {"bias": sign * bias}, sign * added)
