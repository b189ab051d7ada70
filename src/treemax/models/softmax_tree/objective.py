"""The objective of tree alternating optimisation: the losses of rows at leaves and below nodes, and their sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from treemax.inputs.rows import SparseRows, read_only
from treemax.models.softmax_tree import loss_kernels
from treemax.models.softmax_tree.state import BETA, ZERO_ONE, Indices, Leaf, Plane, SoftmaxTreeState, TaoSettings
from treemax.parallel.pools import Table

ROWS_AT_ONCE = 1024  # per matrix product


def weights_in(table: Table, rows: Indices) -> NDArray[np.float32] | None:
    """Return the weights of some rows; None if all rows have weight one."""
    weights = table.columns.get("weights")
    return None if weights is None else weights[rows]


class Cost(NamedTuple):
    """The objective of a reduced problem; with `missing="drop"`, fewer dropped rows are better than less loss."""

    dropped: int
    finite: float

    @classmethod
    def of(cls, losses: NDArray[np.float64], penalty_of_weights: float) -> Cost:
        finite = np.isfinite(losses)
        total = float(losses[finite].sum(dtype=np.float64))
        return cls(len(losses) - int(np.count_nonzero(finite)), total + penalty_of_weights)


@dataclass(frozen=True, eq=False)
class Objective:
    """The loss of rows at a leaf or below a node."""

    table: Table  # with a column "labels"
    settings: TaoSettings

    def plane_scores(self, plane: Plane, rows: Indices) -> NDArray[np.float32]:
        coef: Any = plane.coef
        weights = read_only(coef.toarray()[0] if sp.issparse(coef) else np.ascontiguousarray(coef[0]))
        out, own, bias = np.empty(len(rows), np.float32), self.table.rows, np.float32(plane.bias)
        if isinstance(own, SparseRows):
            loss_kernels.sparse_plane_scores(
                own.indptr, own.indices, own.values, read_only(rows), weights, bias, out
            )  # fmt: skip
        else:
            loss_kernels.dense_plane_scores(read_only(own), read_only(rows), weights, bias, out)
        return out

    def goes_right(self, plane: Plane, rows: Indices) -> NDArray[np.bool_]:
        return self.plane_scores(plane, rows) >= 0

    def labels(self, rows: Indices) -> Indices:
        own: Indices = self.table.columns["labels"][rows]
        return own

    def loss(self, state: SoftmaxTreeState, node: int, rows: Indices) -> NDArray[np.float64]:
        """Return the loss of rows in the subtree of a node."""
        n_inner = 2**state.depth - 1
        if node >= n_inner:
            leaf = state.leaves[node - n_inner]
            assert leaf is not None
            return self.leaf_loss(leaf, rows)
        plane = state.planes[node]
        assert plane is not None
        right, out = self.goes_right(plane, rows), np.empty(len(rows))
        out[~right] = self.loss(state, 2 * node + 1, rows[~right])
        out[right] = self.loss(state, 2 * node + 2, rows[right])
        return out

    def losses_below(
        self, state: SoftmaxTreeState, node: int, rows: Indices, right: NDArray[np.bool_], losses: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the loss of rows at both children of a node, from the losses of those that go right and of the others."""
        other = np.empty(len(rows))
        for child, missing in ((2 * node + 1, right), (2 * node + 2, ~right)):
            other[missing] = self.loss(state, child, rows[missing])
        return np.where(right, other, losses), np.where(right, losses, other)

    def leaf_loss(self, leaf: Leaf, rows: Indices) -> NDArray[np.float64]:
        """Return the loss of rows at a leaf in the objective, times their weights."""
        return self.weighted(self.counted(*self.leaf_losses(leaf, rows)), rows)

    def weighted(self, losses: NDArray[np.float64], rows: Indices) -> NDArray[np.float64]:
        weights = weights_in(self.table, rows)
        return losses if weights is None else losses * weights

    def counted(self, cross_entropy: NDArray[np.float64], wrong: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return the loss in the objective, from the cross-entropy and the zero-one loss."""
        if self.settings.missing == ZERO_ONE:
            return wrong.astype(np.float64)
        if self.settings.missing == BETA:
            return np.where(np.isinf(cross_entropy), self.settings.beta, cross_entropy)
        return cross_entropy

    def leaf_losses(self, leaf: Leaf, rows: Indices) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return the cross-entropy of rows, infinite if the leaf lacks their class, and whether predictions are wrong.

        The cross-entropy is left out, and zero, if the objective is the zero-one loss.
        """
        cross_entropy, wrong = np.full(len(rows), np.inf), np.ones(len(rows), bool)
        places = leaf.places(self.labels(rows))
        present = np.flatnonzero(places >= 0)
        if len(present):
            score = self._sparse_outcomes if isinstance(self.table.rows, SparseRows) else self._dense_outcomes
            cross_entropy[present], wrong[present] = score(leaf, rows[present], places[present])
        return cross_entropy, wrong

    def _dense_outcomes(
        self, leaf: Leaf, rows: Indices, places: Indices
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        cross_entropy, wrong = np.empty(len(rows)), np.empty(len(rows), bool)
        X: Any = self.table.rows
        for start in range(0, len(rows), ROWS_AT_ONCE):
            some = slice(start, start + ROWS_AT_ONCE)
            scores = X[rows[some]] @ leaf.coef.T
            loss_kernels.dense_outcomes(
                scores, read_only(leaf.bias), read_only(places[some]), self.settings.missing != ZERO_ONE,
                cross_entropy[some], wrong[some],
            )  # fmt: skip
        return cross_entropy, wrong

    def _sparse_outcomes(
        self, leaf: Leaf, rows: Indices, places: Indices
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        cross_entropy, wrong = np.empty(len(rows)), np.empty(len(rows), bool)
        own: Any = self.table.rows
        columns = sp.csc_matrix(leaf.coef)
        loss_kernels.sparse_outcomes(
            own.arrays, read_only(rows), loss_kernels.ColumnWeights(columns.indptr, columns.indices, columns.data),
            read_only(leaf.bias), read_only(places), self.settings.missing != ZERO_ONE, cross_entropy, wrong,
        )  # fmt: skip
        return cross_entropy, wrong
