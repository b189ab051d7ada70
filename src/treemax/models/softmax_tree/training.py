"""Tree alternating optimisation of a softmax tree: Algorithm 1 of Zharmagambetov et al. (2021).

The tree is complete. Node i has the children 2 i + 1 (left) and 2 i + 2 (right); a row goes right if the score of the
node's hyperplane is at least zero. A leaf has a softmax over a few classes. An iteration updates all nodes from the
leaves to the root, each on its *reduced set*, the rows that reach it. Beyond Algorithm 1, a node's new parameters are
accepted only if the objective of its reduced problem does not increase, so that the objective of the whole tree does not
increase either (unless `accept_worse`).

With `early_steps`, the solvers stop after a few steps, which continue in the next iteration: decisions need only to know
which side predicts the class, and the trees are as accurate. The last iteration trains only leaves, to the tolerance, on
the rows of the final decisions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from treemax.inputs.rows import Rows
from treemax.models.softmax_tree.node_updates import (
    Common,
    LeafProblem,
    NodeRows,
    PlaneProblem,
    constant_plane,
    empty_leaf,
    leaf_from,
    plane_from,
    score_leaf,
    score_node,
    score_node_losses,
    split_leaf,
    train_leaf,
    train_plane,
)
from treemax.models.softmax_tree.objective import Cost, weights_in
from treemax.models.softmax_tree.state import Indices, Record, SoftmaxTreeState, TaoSettings
from treemax.parallel.pools import Executor, Table, Work, all_results

MAX_STEPS = 200  # of the solvers, at one node
ROWS_TO_SPLIT = 2  # per class that a leaf may have: smaller leaves are not split
LEAST_CHANCE = 0.02  # with spill, minimum probability that a row reaches a leaf that learns from it
SURE = 0.2  # a row that reaches a leaf with a smaller probability is one of a sample


class WeightedRows(NamedTuple):
    """The rows that a leaf learns from, and their weights."""

    rows: Indices
    weights: NDArray[np.float32]


def table_of(rows: Rows, labels: Indices, weights: NDArray[np.float32] | None = None) -> Table:
    """Return the rows with their classes, and their weights if they are not all one."""
    return Table(rows, {"labels": labels} if weights is None else {"labels": labels, "weights": weights})


@dataclass
class Tao:
    """State of the training: rows with classes, workers, and the tree, which is updated in place."""

    table: Table  # from `table_of`
    executor: Executor  # shares the table
    settings: TaoSettings
    state: SoftmaxTreeState
    learned: Indices = field(default_factory=lambda: np.zeros(0, np.int64))  # the rows of an iteration
    sets: list[Indices] = field(default_factory=list)  # the reduced set of every node
    losses: NDArray[np.float64] | None = None  # of each row in the tree as it is, where they are known
    max_steps: int = MAX_STEPS  # of the solvers
    _is_early: bool = False  # whether this iteration has few steps
    _only_leaves: bool = False  # whether decision nodes stay as they are in this iteration
    _spills: bool = False
    _iteration: int = 0
    _spreads: list[float] = field(default_factory=list)  # the noise of the scores of every decision node
    _leaf_rows: list[WeightedRows] | None = None

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
            is_last, has_planes = iteration == iterations - 1, None not in state.planes
            early_steps = self.settings.early_steps
            if early_steps is not None:
                self._is_early, self._only_leaves = not is_last, is_last and has_planes
                self.max_steps = early_steps if self._is_early else MAX_STEPS
            if iteration == first or self.settings.early_share < 1.0:
                self.learned = self.rows_to_learn(iteration, iterations)
                self.find_reduced_sets(iteration, None if has_planes else leaf_of)
                self._find_losses(min((depth for when, depth in done if when == iteration), default=state.depth))
            if self._may_grow(iteration) and grow(self):
                state.history.append(Record(iteration, state.depth + 1, self._sum_of_losses(), float("nan")))
            value = self._sum_of_losses() if state.is_complete else float("nan")
            before = state.history[-1].objective if state.history else float("inf")
            for depth in range(state.depth, -1, -1):
                if (iteration, depth) in done or (self._only_leaves and 0 < depth < state.depth):
                    continue
                value += self.update_depth(depth)
                if math.isnan(value) and state.is_complete:  # the first time: random planes had no leaves
                    value = self._sum_of_losses()
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
        ended = last is not None and (last.iteration, last.depth) == (iteration - 1, 0)
        return self.settings.growth < 1.0 and ended and not self._only_leaves

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
        return 0.0 if self._only_leaves else self.update_planes(range(2**depth - 1, 2 ** (depth + 1) - 1))

    def update_leaves(self, places: range) -> float:
        """Update the softmaxes of some leaves; returns the change of the objective."""
        first = 2**self.state.depth - 1
        problems = [self._leaf_problem(place, self.sets[first + place]) for place in places]
        reduced = self.sets[first + places.start : first + places.stop]
        return self._update(train_leaf, problems, reduced, self.state.leaves, places, leaf_from)

    def update_planes(self, nodes: range) -> float:
        """Update the hyperplanes of some decision nodes of one depth; returns the change of the objective."""
        goes_right, problems = np.zeros(len(self.table), bool), []
        for node in nodes:
            own = self.sets[node]
            goes_right[self.sets[2 * node + 2]] = True
            problems.append(PlaneProblem(node, own, goes_right[own], self._losses()[own]))
        reduced = self.sets[nodes.start : nodes.stop]
        return self._update(train_plane, problems, reduced, self.state.planes, nodes, plane_from)

    def _update(
        self, train: Work, problems: Sequence[Any], reduced: Sequence[Indices], parameters: list[Any], places: range,
        restored: Callable[..., Any],
    ) -> float:  # fmt: skip
        """Train nodes, and store the new parameters that decrease the objective; returns its change."""
        common, changes, losses = (
            Common(self.settings, self.state, self.max_steps),
            np.zeros(len(places)),
            self._losses(),
        )
        for number, (*arrays, own, outcome) in self.executor.run(train, common, problems, keep=True):
            changes[number], accepted = outcome
            losses[reduced[number]] = own
            if accepted:
                parameters[places[number]] = restored(*arrays)
        return float(changes.sum())

    def _leaf_problem(self, place: int, reduced: Indices) -> LeafProblem:
        learned, weights = self.leaf_rows[place]
        return LeafProblem(place, np.concatenate([learned, reduced]), len(learned), weights, self._losses()[reduced])

    # --- reduced sets -----------------------------------------------------------------------------------

    def find_reduced_sets(self, iteration: int, leaf_of: Indices | None = None) -> None:
        """Find the rows that reach every node, by the planes or by `leaf_of`."""
        self.sets, self._spreads = [self.learned], []
        self._iteration, self._spills = iteration, bool(self.settings.spill) and iteration > 0 and leaf_of is None
        self.losses = None
        for level in range(self.state.depth):
            self.divide_sets(level, leaf_of)

    def divide_sets(self, level: int, leaf_of: Indices | None = None) -> None:
        """Find the rows that reach the children of the nodes of a level."""
        nodes = range(2**level - 1, 2 ** (level + 1) - 1)
        self._leaf_rows = None
        if leaf_of is None:
            scores = self._scores(nodes, self.sets)
            self._spreads += [self._score_noise(*pair) for pair in zip(nodes, scores, strict=True)]
            right_of = [score >= 0 for score in scores]
        else:
            depth = self.state.depth
            right_of = [leaf_of[self.sets[node]] >= _middle(_leaves_below(node, depth)) for node in nodes]
        for node, right in zip(nodes, right_of, strict=True):
            own = self.sets[node]
            self.sets += [own[~right], own[right]]

    @property
    def leaf_rows(self) -> list[WeightedRows]:
        """What leaves learn from: with spill, more than the rows that reach them."""
        if self._leaf_rows is None:
            own = self.sets[2**self.state.depth - 1 :]
            self._leaf_rows = (
                self._spilled()
                if self._spills
                else [self._weighted(rows, np.ones(len(rows), np.float32)) for rows in own]
            )
        return self._leaf_rows

    def _weighted(self, rows: Indices, chances: NDArray[np.float32]) -> WeightedRows:
        """Return the rows with these probabilities of reaching a leaf, times their weights."""
        weights = weights_in(self.table, rows)
        return WeightedRows(rows, chances if weights is None else chances * weights)

    def _scores(self, nodes: range, rows_of: Sequence[Indices]) -> list[NDArray[np.float32]]:
        """Return the scores of the rows of each node at its plane."""
        problems = [NodeRows(node, rows_of[node]) for node in nodes]
        found = all_results(self.executor, score_node, Common(self.settings, self.state, self.max_steps), problems)
        return [scores for (scores,) in found]

    def _spilled(self) -> list[WeightedRows]:
        """Return training rows of the leaves with spill, weighted by the probability of reaching the leaf.

        The scores of a plane are assumed to have normal noise, with `spill` times the standard deviation of the scores
        of the rows that reach the node. With `early_steps`, before the last iteration, of the rows that reach a leaf with a
        probability p below `SURE`, which are most, a random share p / `SURE` is kept, with the weight `SURE`.
        """
        n_inner = 2**self.state.depth - 1
        rows_of = [self.learned]
        weights_of = [np.ones(len(self.learned), np.float32)]
        for level in range(self.state.depth):
            nodes = range(2**level - 1, 2 ** (level + 1) - 1)
            for node, score in zip(nodes, self._scores(nodes, rows_of), strict=True):
                error = self._spreads[node]
                right = ndtr(score / error) if error > 0.0 else score >= 0
                for chance in (1.0 - right, right):
                    reached = (weights_of[node] * chance).astype(np.float32)
                    kept = reached >= LEAST_CHANCE
                    rows_of.append(rows_of[node][kept])
                    weights_of.append(reached[kept])
        own = [WeightedRows(*pair) for pair in zip(rows_of[n_inner:], weights_of[n_inner:], strict=True)]
        if self._is_early:
            own = [self._sampled(place, *pair) for place, pair in enumerate(own)]
        return [self._weighted(*pair) for pair in own]

    def _sampled(self, place: int, rows: Indices, chances: NDArray[np.float32]) -> WeightedRows:
        """Keep all rows with the probability `SURE` or more, and a random sample of the others."""
        drawn = np.random.default_rng((self._iteration, place)).random(len(rows), np.float32)
        kept = drawn * np.float32(SURE) < chances
        return WeightedRows(rows[kept], np.maximum(chances[kept], np.float32(SURE)))

    def _score_noise(self, node: int, scores: NDArray[np.float32]) -> float:
        """Return the standard deviation of the noise of a node's scores."""
        plane = self.state.planes[node]
        assert plane is not None
        return 0.0 if plane.is_constant or not len(scores) else self.settings.spill * float(scores.std())

    # --- evaluation -------------------------------------------------------------------------------------

    def objective(self) -> float:
        """Return the objective (equation 1), without dropped rows."""
        return self.evaluate()[0]

    def evaluate(self) -> tuple[float, float]:
        """Return the objective (equation 1, without dropped rows) and the error on the training rows."""
        own = self.sets[2**self.state.depth - 1 :]
        problems = [NodeRows(place, rows) for place, rows in enumerate(own)]
        common, wrong = Common(self.settings, self.state, self.max_steps), 0.0
        self.losses = np.full(len(self.table), np.nan)
        for rows, (losses, n_wrong) in zip(own, all_results(self.executor, score_leaf, common, problems), strict=True):
            self.losses[rows] = losses
            wrong += float(n_wrong[0])
        weights = weights_in(self.table, self.learned)
        total = max(1, len(self.learned)) if weights is None else float(weights.sum(dtype=np.float64))
        return self._sum_of_losses(), wrong / total

    def _losses(self) -> NDArray[np.float64]:
        if self.losses is None:
            self._find_losses(self.state.depth)
        assert self.losses is not None
        return self.losses

    def _find_losses(self, depth: int) -> None:
        """Find the losses of all rows, from the nodes of a depth down; NaN where these have no parameters yet."""
        self.losses = np.full(len(self.table), np.nan)
        nodes = range(2**depth - 1, 2 ** (depth + 1) - 1)
        if None in self.state.leaves:
            return
        problems = [NodeRows(node, self.sets[node]) for node in nodes]
        common = Common(self.settings, self.state, self.max_steps)
        for node, (losses,) in zip(nodes, all_results(self.executor, score_node_losses, common, problems), strict=True):
            self.losses[self.sets[node]] = losses

    def _sum_of_losses(self) -> float:
        """Return the objective by the losses of rows that are known."""
        return Cost.of(self._losses()[self.learned], self.state.penalty(self.settings)).finite


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
    found = all_results(tao.executor, split_leaf, Common(tao.settings, state, tao.max_steps), problems, keep=True)
    plane_of = {place: plane_from(*parts) for place, parts in zip(split, found, strict=True)}
    planes = [plane_of.get(place, constant_plane(tao.table)) for place in range(len(state.leaves))]
    leaves = []
    for leaf, plane in zip(state.leaves, planes, strict=True):
        leaves += [leaf, empty_leaf(tao.table) if plane.is_constant else leaf]
    state.planes, state.leaves, state.depth = [*state.planes, *planes], leaves, state.depth + 1
    tao.divide_sets(state.depth - 1)
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
