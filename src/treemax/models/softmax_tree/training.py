"""Tree alternating optimisation of a softmax tree: Algorithm 1 of Zharmagambetov et al. (2021).

The tree is complete. Node i has the children 2 i + 1 (left) and 2 i + 2 (right); a row goes right if the score of the
node's hyperplane is at least zero. A leaf has a softmax over a few classes. An iteration updates all nodes from the
leaves to the root, each on its *reduced set*, the rows that reach it. Beyond Algorithm 1, a node's new parameters are
accepted only if the objective of its reduced problem does not increase, so that the objective of the whole tree does not
increase either (unless `accept_worse`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.special import ndtr

from treemax.inputs.rows import Rows, SparseRows, take_rows
from treemax.models.softmax_tree.solvers import Matrix, l1_logistic, l1_softmax
from treemax.models.softmax_tree.start import balanced_leaves
from treemax.models.softmax_tree.state import (
    BETA,
    ZERO_ONE,
    Indices,
    Leaf,
    Plane,
    Record,
    SoftmaxTreeState,
    TaoSettings,
)
from treemax.parallel.pools import Arrays, Executor, Table, Work, all_results

ROWS_AT_ONCE = 4096  # per matrix product
ROWS_TO_SPLIT = 2  # per class that a leaf may have: smaller leaves are not split
LEAST_CHANCE = 0.02  # with spill, minimum probability that a row reaches a leaf that learns from it


class WeightedRows(NamedTuple):
    """The rows that a leaf learns from, and their weights."""

    rows: Indices
    weights: NDArray[np.float32]


def table_of(rows: Rows, labels: Indices, weights: NDArray[np.float32] | None = None) -> Table:
    """Return the rows with their classes, and their weights if they are not all one."""
    return Table(rows, {"labels": labels} if weights is None else {"labels": labels, "weights": weights})


def weights_in(table: Table, rows: Indices) -> NDArray[np.float32] | None:
    """Return the weights of some rows; None if all rows have weight one."""
    weights = table.columns.get("weights")
    return None if weights is None else weights[rows]


@dataclass(frozen=True, eq=False)
class Objective:
    """The loss of rows at a leaf or below a node."""

    table: Table  # with a column "labels"
    settings: TaoSettings

    def plane_scores(self, plane: Plane, rows: Indices) -> NDArray[np.float32]:
        coef: Any = plane.coef
        weights = coef.toarray()[0] if sp.issparse(coef) else coef[0]
        out = np.empty(len(rows), np.float32)
        for start in range(0, len(rows), ROWS_AT_ONCE):
            some = slice(start, start + ROWS_AT_ONCE)
            out[some] = self.table.matrix[rows[some]] @ weights
        return out + np.float32(plane.bias)

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
        """The cross-entropy of rows, infinite if the leaf lacks their class, and whether its prediction is wrong."""
        cross_entropy, wrong = np.full(len(rows), np.inf), np.ones(len(rows), bool)
        place = leaf.places(self.labels(rows))
        present = np.flatnonzero(place >= 0)
        for start in range(0, len(present), ROWS_AT_ONCE):
            some = present[start : start + ROWS_AT_ONCE]
            scores = self.table.matrix[rows[some]] @ leaf.coef.T
            scores = (scores.toarray() if sp.issparse(scores) else scores).astype(np.float64) + leaf.bias
            scores -= scores.max(axis=1, keepdims=True)
            own = scores[np.arange(len(some)), place[some]]
            cross_entropy[some] = np.log(np.exp(scores).sum(axis=1)) - own
            wrong[some] = scores.argmax(axis=1) != place[some]
        return cross_entropy, wrong


# --- tasks of the workers ------------------------------------------------------------------------------


class Common(NamedTuple):
    """Shared arguments of the tasks of a depth."""

    settings: TaoSettings
    state: SoftmaxTreeState


class NodeRows(NamedTuple):
    """A node, or the index of a leaf, and the rows that reach it."""

    node: int
    rows: Indices


class LeafProblem(NamedTuple):
    """A leaf to train: its `n_learned` training rows, followed by the rows that reach it."""

    place: int
    rows: Indices
    n_learned: int
    weights: NDArray[np.float32]


class Cost(NamedTuple):
    """The objective of a reduced problem; with `missing="drop"`, fewer dropped rows are better than less loss."""

    dropped: int
    finite: float


def _cost(losses: NDArray[np.float64], penalty_of_weights: float) -> Cost:
    finite = np.isfinite(losses)
    total = float(losses[finite].sum(dtype=np.float64))
    return Cost(len(losses) - int(np.count_nonzero(finite)), total + penalty_of_weights)


def _outcome(before: Cost, after: Cost, accepted: bool) -> NDArray[np.float64]:
    """Return the change of the objective, and whether the new parameters are accepted."""
    return np.array([after.finite - before.finite if accepted else 0.0, accepted])


def train_leaf(table: Table, rows: Indices, common: Common, problem: LeafProblem) -> Arrays:
    """Train the softmax of a leaf over its most frequent classes; also the change of the objective, and whether the
    softmax is accepted.

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
        return *packed_leaf(old or empty_leaf(table)), np.array([0.0, old is None])
    among = Leaf(classes, empty_leaf(table).coef, np.zeros(0, np.float32)).places(labels)
    known = among >= 0
    start = None if old is None else _initial_weights(old, classes, n_features)
    found = l1_softmax(
        table.rows, learned[known], among[known], len(classes), settings.alpha, weights[known],
        ridge=settings.ridge, start=start, tolerance=settings.tolerance, max_iterations=settings.max_steps,
    )  # fmt: skip
    new = Leaf(classes, found.coef, found.bias)
    if old is None:
        return *packed_leaf(new), np.array([0.0, True])
    before, after = (_cost(objective.leaf_loss(leaf, reduced), settings.penalty(leaf)) for leaf in (old, new))
    accepted = after <= before or settings.spill > 0 or settings.accept_worse
    return *packed_leaf(new if accepted else old), _outcome(before, after, accepted)


def train_plane(table: Table, rows: Indices, common: Common, problem: NodeRows) -> Arrays:
    """Train the hyperplane of a decision node on its pseudo-labels; also the change of the objective, and whether the
    hyperplane is accepted."""
    settings, state, node = common.settings, common.state, problem.node
    objective = Objective(table, settings)
    old = state.planes[node]
    if old is not None and old.is_constant:
        return *packed_plane(old), np.array([0.0, False])
    left, right = objective.loss(state, 2 * node + 1, rows), objective.loss(state, 2 * node + 2, rows)
    kept = np.isfinite(left) & np.isfinite(right)  # all rows, except with missing="drop"
    alpha, ridge = settings.plane_costs
    found = l1_logistic(
        table.rows, rows[kept], np.where(right < left, 1, -1)[kept], alpha, np.abs(right[kept] - left[kept]), ridge=ridge,
        start=None if old is None else (old.coef, np.array([old.bias], np.float32)),
        tolerance=settings.tolerance, max_iterations=settings.max_steps,
    )  # fmt: skip
    new = Plane(found.coef, float(found.bias[0]))
    if old is None:
        return *packed_plane(new), np.array([0.0, True])
    costs = []
    for plane in (old, new):
        losses = np.where(objective.goes_right(plane, rows), right, left)
        costs.append((_cost(losses[kept], settings.penalty(plane)), _cost(losses, settings.penalty(plane))))
    (before, before_of_all), (after, after_of_all) = costs
    accepted = after <= before or settings.accept_worse
    return *packed_plane(new if accepted else old), _outcome(before_of_all, after_of_all, accepted)


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
        max_iterations=settings.max_steps,
    )  # fmt: skip
    return packed_plane(Plane(found.coef, float(found.bias[0])))


def score_node(table: Table, rows: Indices, common: Common, problem: NodeRows) -> Arrays:
    """Return the scores of rows at the plane of a node."""
    plane = common.state.planes[problem.node]
    assert plane is not None
    return (Objective(table, common.settings).plane_scores(plane, rows),)


def score_leaf(table: Table, rows: Indices, common: Common, problem: NodeRows) -> Arrays:
    """Return the loss of the rows of a leaf, and the number of wrong predictions."""
    objective, leaf = Objective(table, common.settings), common.state.leaves[problem.node]
    assert leaf is not None
    cross_entropy, wrong = objective.leaf_losses(leaf, rows)
    loss = objective.weighted(objective.counted(cross_entropy, wrong), rows)
    n_wrong = objective.weighted(wrong.astype(np.float64), rows).sum()
    return (np.array([_cost(loss, 0.0).finite, n_wrong], np.float64),)


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


def _plane_from(bias: NDArray[np.float64], *coef: NDArray[Any]) -> Plane:
    return Plane(_matrix_from(*coef), float(bias[0]))


def _leaf_from(classes: Indices, bias: NDArray[np.float32], *coef: NDArray[Any]) -> Leaf:
    return Leaf(classes, _matrix_from(*coef), bias)


def _packed_matrix(coef: Any) -> Arrays:
    return (coef.data, coef.indices, coef.indptr, np.array(coef.shape)) if sp.issparse(coef) else (coef,)


def _matrix_from(*parts: NDArray[Any]) -> Matrix:
    if len(parts) == 1:
        return parts[0]
    data, indices, indptr, shape = parts
    return sp.csr_matrix((data, indices, indptr), shape=tuple(shape.tolist()))


# --- the tree ------------------------------------------------------------------------------------------


@dataclass
class Tao:
    """State of the training: rows with classes, workers, and the tree, which is updated in place."""

    table: Table  # from `table_of`
    executor: Executor  # shares the table
    settings: TaoSettings
    state: SoftmaxTreeState
    learned: Indices = field(default_factory=lambda: np.zeros(0, np.int64))  # the rows of an iteration
    sets: list[Indices] = field(default_factory=list)  # the reduced set of every node
    leaf_rows: list[WeightedRows] = field(
        default_factory=list
    )  # what leaves learn from; more than their sets with spill

    def __post_init__(self) -> None:
        self.learned = np.arange(len(self.table))

    # --- the algorithm ----------------------------------------------------------------------------------

    def run(self, iterations: int, leaf_of: Indices | None = None) -> Iterator[Record]:
        """Run iterations; yields a record after every depth. `leaf_of` has the leaf of each row before there are planes.

        An interrupted iteration continues after its last complete depth.
        """
        state = self.state
        done = [(record.iteration, record.depth) for record in state.history]
        first = done[-1][0] + (done[-1][1] == 0) if done else 0
        for iteration in range(first, iterations):
            has_planes = None not in state.planes
            self.learned = self.rows_to_learn(iteration, iterations)
            self.find_reduced_sets(iteration, None if has_planes else leaf_of)
            if self._may_grow(iteration) and grow(self):
                self.find_reduced_sets(iteration)
                state.history.append(Record(iteration, state.depth + 1, self.objective(), float("nan")))
            value = self.objective() if state.is_complete else float("nan")
            before = state.history[-1].objective if state.history else float("inf")
            for depth in range(state.depth, -1, -1):
                if (iteration, depth) in done:
                    continue
                value += self.update_depth(depth)
                error = float("nan")
                if depth == 0:
                    self.find_reduced_sets(iteration + 1)
                    value, error = self.evaluate()
                state.history.append(Record(iteration, depth, value, error))
                yield state.history[-1]
            if value >= before and self.settings.is_monotone:  # no progress in a full iteration
                return

    def _may_grow(self, iteration: int) -> bool:
        """Return whether leaves may be split now, between two iterations."""
        last = self.state.history[-1] if self.state.history else None
        return self.settings.growth < 1.0 and last is not None and (last.iteration, last.depth) == (iteration - 1, 0)

    def rows_to_learn(self, iteration: int, iterations: int) -> Indices:
        """Return all rows in the last iteration, before that a random sample of the rows."""
        n, share = len(self.table), self.settings.early_share
        if share == 1.0 or iteration == iterations - 1:
            return np.arange(n)
        some = np.random.default_rng(iteration).choice(n, max(1, round(share * n)), replace=False)
        return np.sort(some)

    def update_depth(self, depth: int) -> float:
        """Update all nodes of a depth in parallel; returns the change of the objective."""
        if depth == self.state.depth:
            return self.update_leaves(range(2**depth))
        return self.update_planes(range(2**depth - 1, 2 ** (depth + 1) - 1))

    def update_leaves(self, places: range) -> float:
        """Update the softmaxes of some leaves; returns the change of the objective."""
        problems = [self._leaf_problem(place) for place in places]
        return self._update(train_leaf, problems, self.state.leaves, places, _leaf_from)

    def update_planes(self, nodes: range) -> float:
        """Update the hyperplanes of some decision nodes of one depth; returns the change of the objective."""
        problems = [NodeRows(node, self.sets[node]) for node in nodes]
        return self._update(train_plane, problems, self.state.planes, nodes, _plane_from)

    def _update(
        self, train: Work, problems: Sequence[Any], parameters: list[Any], places: range, restored: Callable[..., Any]
    ) -> float:
        """Train nodes, and store the new parameters that decrease the objective; returns its change."""
        common, changes = Common(self.settings, self.state), np.zeros(len(places))
        for number, (*arrays, outcome) in self.executor.run(train, common, problems, keep=True):
            changes[number], accepted = outcome
            if accepted:
                parameters[places[number]] = restored(*arrays)
        return float(changes.sum())

    def _leaf_problem(self, place: int) -> LeafProblem:
        learned, weights = self.leaf_rows[place]
        reduced = self.sets[2**self.state.depth - 1 + place]
        return LeafProblem(place, np.concatenate([learned, reduced]), len(learned), weights)

    # --- reduced sets -----------------------------------------------------------------------------------

    def find_reduced_sets(self, iteration: int, leaf_of: Indices | None = None) -> None:
        """Find the rows that reach every node, by the planes or by `leaf_of`."""
        depth, n_inner = self.state.depth, 2**self.state.depth - 1
        self.sets = [np.zeros(0, np.int64)] * (2 * n_inner + 1)
        self.sets[0] = self.learned
        spreads = np.zeros(n_inner)
        for level in range(depth):
            nodes = range(2**level - 1, 2 ** (level + 1) - 1)
            if leaf_of is None:
                scores = self._scores(nodes, self.sets)
                spreads[nodes.start : nodes.stop] = [
                    self._score_noise(*pair) for pair in zip(nodes, scores, strict=True)
                ]
                right_of = [score >= 0 for score in scores]
            else:
                right_of = [leaf_of[self.sets[node]] >= _middle(_leaves_below(node, depth)) for node in nodes]
            for node, right in zip(nodes, right_of, strict=True):
                own = self.sets[node]
                self.sets[2 * node + 1], self.sets[2 * node + 2] = own[~right], own[right]
        if self.settings.spill and iteration > 0 and leaf_of is None:
            self.leaf_rows = self._spilled(spreads)
        else:
            self.leaf_rows = [self._weighted(own, np.ones(len(own), np.float32)) for own in self.sets[n_inner:]]

    def _weighted(self, rows: Indices, chances: NDArray[np.float32]) -> WeightedRows:
        """Return the rows with these probabilities of reaching a leaf, times their weights."""
        weights = weights_in(self.table, rows)
        return WeightedRows(rows, chances if weights is None else chances * weights)

    def _scores(self, nodes: range, rows_of: Sequence[Indices]) -> list[NDArray[np.float32]]:
        """Return the scores of the rows of each node at its plane."""
        problems = [NodeRows(node, rows_of[node]) for node in nodes]
        found = all_results(self.executor, score_node, Common(self.settings, self.state), problems)
        return [scores for (scores,) in found]

    def _spilled(self, spreads: NDArray[np.float64]) -> list[WeightedRows]:
        """Training rows of the leaves with spill, weighted by the probability of reaching the leaf.

        The scores of a plane are assumed to have normal noise, with `spill` times the standard deviation of the scores
        of the rows that reach the node.
        """
        n_inner = 2**self.state.depth - 1
        everything = self.learned
        rows_of = [everything] + [everything[:0]] * (2 * n_inner)
        weights_of = [np.ones(len(everything), np.float32)] + [np.zeros(0, np.float32)] * (2 * n_inner)
        for level in range(self.state.depth):
            nodes = range(2**level - 1, 2 ** (level + 1) - 1)
            for node, score in zip(nodes, self._scores(nodes, rows_of), strict=True):
                error = float(spreads[node])
                right = ndtr(score / error) if error > 0.0 else score >= 0
                for child, chance in ((2 * node + 1, 1.0 - right), (2 * node + 2, right)):
                    reached = (weights_of[node] * chance).astype(np.float32)
                    kept = reached >= LEAST_CHANCE
                    rows_of[child], weights_of[child] = rows_of[node][kept], reached[kept]
        return [self._weighted(*own) for own in zip(rows_of[n_inner:], weights_of[n_inner:], strict=True)]

    def _score_noise(self, node: int, scores: NDArray[np.float32]) -> float:
        """Standard deviation of the noise of a node's scores."""
        plane = self.state.planes[node]
        assert plane is not None
        return 0.0 if plane.is_constant or not len(scores) else self.settings.spill * float(scores.std())

    # --- evaluation -------------------------------------------------------------------------------------

    def objective(self) -> float:
        """Return the objective (equation 1), without dropped rows."""
        return self.evaluate()[0]

    def evaluate(self) -> tuple[float, float]:
        """Return the objective (equation 1, without dropped rows) and the error on the training rows."""
        first = 2**self.state.depth - 1
        problems = [NodeRows(place, own) for place, own in enumerate(self.sets[first:])]
        common = Common(self.settings, self.state)
        losses, wrong = np.sum([found for (found,) in all_results(self.executor, score_leaf, common, problems)], axis=0)
        weights = weights_in(self.table, self.learned)
        total = max(1, len(self.learned)) if weights is None else float(weights.sum(dtype=np.float64))
        return float(losses) + self.state.penalty(self.settings), float(wrong) / total


# --- growth --------------------------------------------------------------------------------------------


def grow(tao: Tao) -> bool:
    """Split the leaves that lack the classes of too many of their rows; returns whether there are any.

    The depth increases by one. A split leaf becomes two copies below a plane that separates its rows' classes in two
    halves, which leaves predictions unchanged until the next iteration. Other leaves are put below a constant plane.
    """
    state, first = tao.state, 2**tao.state.depth - 1
    split = [place for place in range(len(state.leaves)) if _should_split(tao, place)]
    if not split:
        return False
    problems = [NodeRows(place, tao.sets[first + place]) for place in split]
    found = all_results(tao.executor, split_leaf, Common(tao.settings, state), problems, keep=True)
    plane_of = {place: _plane_from(*parts) for place, parts in zip(split, found, strict=True)}
    planes = [plane_of.get(place, constant_plane(tao.table)) for place in range(len(state.leaves))]
    leaves = []
    for leaf, plane in zip(state.leaves, planes, strict=True):
        leaves += [leaf, empty_leaf(tao.table) if plane.is_constant else leaf]
    state.planes, state.leaves, state.depth = [*state.planes, *planes], leaves, state.depth + 1
    return True


def _should_split(tao: Tao, place: int) -> bool:
    leaf, rows = tao.state.leaves[place], tao.sets[2**tao.state.depth - 1 + place]
    assert leaf is not None
    if len(rows) < ROWS_TO_SPLIT * tao.settings.n_classes:
        return False
    missed = leaf.places(tao.table.columns["labels"][rows]) < 0
    return float(np.average(missed, weights=weights_in(tao.table, rows))) > tao.settings.growth


def _middle(part: slice) -> int:
    return int(part.start + (part.stop - part.start) // 2)


def _leaves_below(node: int, depth: int) -> slice:
    """Return the indices of the leaves below a node."""
    own = int(np.log2(node + 1))
    width, place = 2 ** (depth - own), node + 1 - 2**own
    return slice(place * width, (place + 1) * width)
