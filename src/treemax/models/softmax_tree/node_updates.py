"""Updates of one node of a softmax tree, in the steps of tree alternating optimisation.

They are functions of the rows that reach the node, so that an executor can run those of a depth at the same time.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from treemax.inputs.rows import SparseRows, take_rows
from treemax.models.softmax_tree.objective import Cost, Objective, weights_in
from treemax.models.softmax_tree.solvers import Matrix, l1_logistic, l1_softmax
from treemax.models.softmax_tree.start import balanced_leaves
from treemax.models.softmax_tree.state import Indices, Leaf, Plane, SoftmaxTreeState, TaoSettings
from treemax.parallel.pools import Arrays, Table

PLANE_STEPS = 5  # quasi-Newton steps at a decision node of dense rows, times `early_steps`


class Common(NamedTuple):
    """Shared arguments of the tasks of a depth."""

    settings: TaoSettings
    state: SoftmaxTreeState
    max_steps: int  # of the solvers


class NodeRows(NamedTuple):
    """A node, or the index of a leaf, and the rows that reach it."""

    node: int
    rows: Indices


class PlaneProblem(NamedTuple):
    """A decision node to train: the rows that reach it, which of them go right now, and their losses there."""

    node: int
    rows: Indices
    right: NDArray[np.bool_]
    losses: NDArray[np.float64]


class LeafProblem(NamedTuple):
    """A leaf to train: its `n_learned` training rows, followed by the rows that reach it, and the losses of these."""

    place: int
    rows: Indices
    n_learned: int
    weights: NDArray[np.float32]
    losses: NDArray[np.float64]


def _outcome(before: Cost, after: Cost, accepted: bool) -> NDArray[np.float64]:
    """Return the change of the objective, and whether the new parameters are accepted."""
    return np.array([after.finite - before.finite if accepted else 0.0, accepted])


def train_leaf(table: Table, rows: Indices, common: Common, problem: LeafProblem) -> Arrays:
    """Train the softmax of a leaf over its most frequent classes; also the losses of the rows that reach it, the change
    of the objective, and whether the softmax is accepted.

    It is rejected if the objective of the reduced problem increases, unless `accept_worse`. With spill it is always
    accepted, because its training rows are not those that reach it.
    """
    settings, old = common.settings, common.state.leaves[problem.place]
    objective = Objective(table, settings)
    learned, reduced, weights = rows[: problem.n_learned], rows[problem.n_learned :], problem.weights
    labels = objective.labels(learned)
    classes, inverse = np.unique(labels, return_inverse=True)
    if len(classes) > settings.n_classes:
        counts = np.bincount(inverse, weights)
        classes = np.sort(classes[np.argsort(-counts, kind="stable")[: settings.n_classes]])
    n_features = table.rows.shape[1]
    if not len(classes):
        leaf = old or empty_leaf(table)
        return *packed_leaf(leaf), objective.leaf_loss(leaf, reduced), np.array([0.0, old is None])
    among = Leaf(classes, empty_leaf(table).coef, np.zeros(0, np.float32)).places(labels)
    known = among >= 0
    start = None if old is None else _initial_weights(old, classes, n_features)
    found = l1_softmax(
        table.rows, learned[known], among[known], len(classes), settings.alpha, weights[known],
        ridge=settings.ridge, start=start, tolerance=settings.tolerance, max_iterations=common.max_steps,
        check_objective=settings.early_steps is None,
    )  # fmt: skip
    new = Leaf(classes, found.coef, found.bias)
    losses = objective.leaf_loss(new, reduced)
    if old is None:
        return *packed_leaf(new), losses, np.array([0.0, True])
    before, after = (Cost.of(own, settings.penalty(leaf)) for own, leaf in ((problem.losses, old), (losses, new)))
    if after <= before or settings.spill > 0 or settings.accept_worse:
        return *packed_leaf(new), losses, _outcome(before, after, True)
    return *packed_leaf(old), problem.losses, _outcome(before, after, False)


def train_plane(table: Table, rows: Indices, common: Common, problem: PlaneProblem) -> Arrays:
    """Train the hyperplane of a decision node on its pseudo-labels; also the losses of its rows, the change of the
    objective, and whether the hyperplane is accepted."""
    settings, state, node = common.settings, common.state, problem.node
    objective = Objective(table, settings)
    old = state.planes[node]
    if old is not None and old.is_constant:
        return *packed_plane(old), problem.losses, np.array([0.0, False])
    left, right = objective.losses_below(state, node, rows, problem.right, problem.losses)
    kept = np.isfinite(left) & np.isfinite(right)  # all rows, except with missing="drop"
    alpha, ridge = settings.plane_costs
    is_exact, steps = settings.early_steps is None, common.max_steps
    if not is_exact and not isinstance(table.rows, SparseRows):
        steps *= PLANE_STEPS
    found = l1_logistic(
        table.rows, rows[kept], np.where(right < left, 1, -1)[kept], alpha, np.abs(right[kept] - left[kept]), ridge=ridge,
        start=None if old is None else (old.coef, np.array([old.bias], np.float32)),
        tolerance=settings.tolerance, max_iterations=steps, check_objective=is_exact, newton=is_exact,
    )  # fmt: skip
    new = Plane(found.coef, float(found.bias[0]))
    losses = np.where(objective.goes_right(new, rows), right, left)
    if old is None:
        return *packed_plane(new), losses, np.array([0.0, True])
    costs = []
    for plane, own in ((old, problem.losses), (new, losses)):
        costs.append((Cost.of(own[kept], settings.penalty(plane)), Cost.of(own, settings.penalty(plane))))
    (before, before_of_all), (after, after_of_all) = costs
    if after <= before or settings.accept_worse:
        return *packed_plane(new), losses, _outcome(before_of_all, after_of_all, True)
    return *packed_plane(old), problem.losses, _outcome(before_of_all, after_of_all, False)


def split_leaf(table: Table, rows: Indices, common: Common, problem: NodeRows) -> Arrays:
    """Train a plane that separates two halves of the classes of a leaf's rows, found by balanced 2-means."""
    settings = common.settings
    classes, places = np.unique(table.columns["labels"][rows], return_inverse=True)
    own, random = take_rows(table.rows, rows), np.random.RandomState(0)
    weights = weights_in(table, rows)
    sides = balanced_leaves(own, places, len(classes), 1, random, weights)
    alpha, ridge = settings.plane_costs
    found = l1_logistic(
        table.rows, rows, np.where(sides == 1, 1, -1), alpha, weights, ridge=ridge, tolerance=settings.tolerance,
        max_iterations=common.max_steps,
    )  # fmt: skip
    return packed_plane(Plane(found.coef, float(found.bias[0])))


def score_node(table: Table, rows: Indices, common: Common, problem: NodeRows) -> Arrays:
    """Return the scores of rows at the plane of a node."""
    plane = common.state.planes[problem.node]
    assert plane is not None
    return (Objective(table, common.settings).plane_scores(plane, rows),)


def score_node_losses(table: Table, rows: Indices, common: Common, problem: NodeRows) -> Arrays:
    """Return the losses of rows in the subtree of a node."""
    return (Objective(table, common.settings).loss(common.state, problem.node, rows),)


def score_leaf(table: Table, rows: Indices, common: Common, problem: NodeRows) -> Arrays:
    """Return the loss of each row of a leaf, and the weight of the wrong predictions."""
    objective, leaf = Objective(table, common.settings), common.state.leaves[problem.node]
    assert leaf is not None
    cross_entropy, wrong = objective.leaf_losses(leaf, rows)
    n_wrong = objective.weighted(wrong.astype(np.float64), rows).sum()
    return objective.weighted(objective.counted(cross_entropy, wrong), rows), np.array([n_wrong])


def empty_leaf(table: Table) -> Leaf:
    return Leaf(np.zeros(0, np.int64), _zeros(table, 0), np.zeros(0, np.float32))


def constant_plane(table: Table) -> Plane:
    return Plane(_zeros(table, 1), -math.inf)


def _zeros(table: Table, n: int) -> Matrix:
    shape = (n, table.rows.shape[1])
    sparse = isinstance(table.rows, SparseRows)
    return sp.csr_matrix(shape, dtype=np.float32) if sparse else np.zeros(shape, np.float32)


def _initial_weights(old: Leaf, classes: Indices, n_features: int) -> tuple[Matrix, NDArray[np.float32]]:
    """Return the weights of a leaf for the given classes, zero for new ones."""
    place = old.places(classes)
    known = np.flatnonzero(place >= 0)
    bias = np.zeros(len(classes), np.float32)
    bias[known] = old.bias[place[known]]
    if sp.issparse(old.coef):
        chosen = sp.csr_matrix(
            (np.ones(len(known), np.float32), (known, place[known])), shape=(len(classes), len(old.classes))
        )
        return chosen @ old.coef, bias
    coef = np.zeros((len(classes), n_features), np.float32)
    coef[known] = old.coef[place[known]]
    return coef, bias


# --- serialisation of task results ---------------------------------------------------------------------


def packed_plane(plane: Plane) -> Arrays:
    return np.array([plane.bias]), *_packed_matrix(plane.coef)


def packed_leaf(leaf: Leaf) -> Arrays:
    return leaf.classes, leaf.bias, *_packed_matrix(leaf.coef)


def plane_from(bias: NDArray[np.float64], *coef: NDArray[Any]) -> Plane:
    return Plane(_matrix_from(*coef), float(bias[0]))


def leaf_from(classes: Indices, bias: NDArray[np.float32], *coef: NDArray[Any]) -> Leaf:
    return Leaf(classes, _matrix_from(*coef), bias)


def _packed_matrix(coef: Any) -> Arrays:
    return (coef.data, coef.indices, coef.indptr, np.array(coef.shape)) if sp.issparse(coef) else (coef,)


def _matrix_from(*parts: NDArray[Any]) -> Matrix:
    if len(parts) == 1:
        return parts[0]
    data, indices, indptr, shape = parts
    return sp.csr_matrix((data, indices, indptr), shape=tuple(shape.tolist()))
