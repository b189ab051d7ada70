"""Choice of the cost and the temperature, and calibration of a label tree, on held-out rows.

The cost is chosen before training on a sample of the nodes above labels, with 32 labels each. The temperature and the
calibration use the scores of the tree trained without the held-out rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.labels import ALL_ONE, Targets
from treemax.inputs.rows import SparseRows, read_only
from treemax.models.calibration import Calibration, calibration_from_top_k, labels_to_rank, mean_precision
from treemax.models.label_tree import kernels, solver_kernels
from treemax.models.label_tree.model import LabelTreeModel
from treemax.models.label_tree.nodes import LOSSES, SMALL, Common, platt, siblings_of
from treemax.parallel.pools import Arrays, Table
from treemax.trees import Tree

COSTS = {  # each is the one before times a constant; the middle one is the default
    "squared_hinge": np.array([0.25, 0.5, 1.0, 2.0, 4.0], dtype=np.float32),
    "logistic": np.array([1.0, 3.0, 9.0, 27.0, 81.0], dtype=np.float32),
}
PASSES = 2  # for each cost
HELD_SHARE = 5  # one row in five is held out to compare costs
LABELS = 32  # labels of each sampled node
SHARE_OF_WORK = 0.012  # fraction of all pairs of row and child that is spent on comparing costs
MIN_ROWS, MAX_ROWS = 12_000, 400_000  # total number of rows of the sampled nodes
PRIOR = 2.0  # penalty in nats, times the squared number of steps from the default cost
TEMPERATURES, USUAL_TEMPERATURE = (1.0, 1.32, 1.75, 2.3), 1.75
TEMPERATURE_PRIOR = 1.0  # penalty in rows, times the squared number of doublings of the usual temperature
CALIBRATION_ROWS = 2_000  # at most this many rows,
CALIBRATION_SHARE = 12  # and at most one row in twelve

RunProblems = Callable[[Callable[..., Arrays], Common, "list[CostProblem]"], "list[Arrays]"]


class CostProblem(NamedTuple):
    """Some of the labels of a node, and the rows that reach it."""

    node: int
    n_children: int
    rows: NDArray[np.uint32]
    child_indptr: NDArray[np.int64]
    children: NDArray[np.uint32]
    row_weights: NDArray[np.float32] = ALL_ONE  # empty: all one
    pair_weights: NDArray[np.float32] = ALL_ONE  # of `children`


def default_cost(loss: str) -> float:
    """Return the default cost of a loss."""
    return float(COSTS[loss][len(COSTS[loss]) // 2])


def choose_cost(trees: Sequence[Tree], targets: Targets, commons: Sequence[Common], run: RunProblems) -> float:
    """Return the cost of the nodes above labels that maximises the likelihood of held-out rows in all trees."""
    loss = commons[0].settings.loss
    costs = COSTS[loss]
    histograms = np.zeros((len(costs), 2, kernels.BINS))
    for tree, common in zip(trees, commons, strict=True):
        for (histogram,) in run(try_costs, common, cost_problems(tree, targets, common.seed)):
            histograms += histogram
    losses = np.array([platt(wrong, right)[2] for wrong, right in histograms])
    steps = np.arange(len(costs)) - len(costs) // 2
    losses += PRIOR * steps**2
    return default_cost(loss) * float(costs[1] / costs[0]) ** lowest_point(steps, losses)


def lowest_point(x: NDArray[np.int64], y: NDArray[np.float64]) -> float:
    """Return the minimum of the parabola through the lowest of equidistant points and its neighbours.

    >>> lowest_point(np.array([-1, 0, 1]), np.array([1.0, 0.0, 3.0]))
    -0.25
    """
    lowest = int(y.argmin())
    if lowest in (0, len(x) - 1):
        return float(x[lowest])
    before, at, after = y[lowest - 1 : lowest + 2]
    curve = before - 2 * at + after
    return float(x[lowest] + (0.5 * (before - after) / curve if curve > 0 else 0.0))


def try_costs(table: Table, rows: NDArray[np.uint32], common: Common, problem: CostProblem) -> Arrays:
    """Train with each cost in ascending order, each from the previous solution, the first with twice the passes.

    Otherwise as `kernels.train_siblings`. Returns, for each cost, histograms of the scores of wrong and right labels of
    held-out rows.
    """
    source, loss, costs = table.rows, LOSSES[common.settings.loss], COSTS[common.settings.loss]
    assert isinstance(source, SparseRows)
    rows, seed, n = read_only(rows), common.seed + problem.node, len(rows)
    siblings, solvers = siblings_of(problem), [solver_kernels.Solver(loss, cost, SMALL) for cost in costs]
    with table.scratch() as scratch:
        order, local, features = kernels.local_problem(source.arrays, rows, np.float32(common.length), seed, scratch)
    inverse = np.empty((len(costs), n), np.float32)
    for solver, own in zip(solvers, inverse):
        kernels.write_inverse(local, order, siblings, solver, own)
    positive = kernels.positive_bits(order, siblings).reshape(-1, n)
    held = kernels.held_places(read_only(problem.rows), order, HELD_SHARE)
    last_pass = PASSES * (len(costs) + 1)
    visits = solver_kernels.visits(n, last_pass, seed)
    weights, alphas = kernels.aligned((len(features) + 1) * 16), kernels.aligned(n * 16)
    active = np.empty(n, np.uint32)
    row_costs = kernels.empty_costs(n, siblings)
    scores = np.empty((len(costs), len(positive), len(held) * 16), np.float32)
    for b, own_positive in enumerate(positive):
        valid = np.uint64((1 << min(16, problem.n_children - 16 * b)) - 1)
        weights[:], alphas[:] = 0, 0
        for c, solver in enumerate(solvers):
            resting = np.zeros(n, np.int32)
            resting[held] = last_pass
            kernels.write_costs(order, solver.cost, siblings, b, row_costs)
            block = solver_kernels.Block(own_positive, valid, inverse[c], row_costs, weights, alphas, resting)
            solver_kernels.run_passes(PASSES * (c + (c > 0)), PASSES * (c + 2), visits, local, block, active, solver)
            solver_kernels.score_held(held, local, weights, scores[c, b])
    histograms = np.zeros((len(costs), 2, kernels.BINS))
    no_slopes = (np.empty(0, np.float32), np.empty(0))
    for own_scores, histogram in zip(scores, histograms):
        kernels.calibrate(order[held], siblings, own_scores.ravel(), kernels.Statistics(*no_slopes, histogram))
    return (histograms,)


def cost_problems(tree: Tree, targets: Targets, seed: int) -> list[CostProblem]:
    """Sample nodes above labels, some labels of each, with a small share of all rows."""
    node_of = tree.parent[tree.leaf_of]  # of every label
    rows_of_node = np.bincount(node_of[targets.ids], minlength=len(tree))
    rows_of_node[0] = len(targets) if rows_of_node[0] else 0
    budget = int(SHARE_OF_WORK * (rows_of_node * -(-tree.n_children // 16)).sum())  # in rows
    budget = min(max(budget, MIN_ROWS), MAX_ROWS)
    random = np.random.default_rng(seed)
    nodes = random.permutation(np.flatnonzero(rows_of_node))
    nodes = nodes[: int(np.searchsorted(np.cumsum(rows_of_node[nodes]), budget)) + 1]
    pairs = _PairsOfNodes(tree, targets, node_of, nodes)
    problems = []
    for node in nodes.tolist():
        row, child, relevance = pairs.of(node)
        rows = np.arange(len(targets), dtype=np.uint32) if node == 0 else np.unique(row)
        if len(rows) > budget:
            rows = np.sort(random.choice(rows, budget, replace=False))
        budget = max(budget - len(rows), MIN_ROWS // 4)
        n_children = int(tree.n_children[node])
        chosen = random.permutation(n_children)[:LABELS]
        problem = _cost_problem(node, rows, row, child, relevance, chosen, n_children)
        if targets.weights is not None:
            problem = problem._replace(row_weights=targets.weights[rows])
        problems.append(problem)
    return problems


class _PairsOfNodes:
    """Row and child of all labels below some nodes."""

    def __init__(self, tree: Tree, targets: Targets, node_of: NDArray[np.int64], nodes: NDArray[np.int64]) -> None:
        used = np.zeros(len(tree), dtype=bool)
        used[nodes] = True
        place = np.flatnonzero(used[node_of[targets.ids]])
        place = place[np.argsort(node_of[targets.ids[place]], kind="stable")]
        ids = targets.ids[place]
        self._node = node_of[ids]
        self._row = (np.searchsorted(targets.indptr, place, side="right") - 1).astype(np.uint32)
        self._child = tree.leaf_of[ids] - tree.first_child[self._node]
        self._relevance = ALL_ONE if targets.relevance is None else targets.relevance[place]

    def of(self, node: int) -> tuple[NDArray[np.uint32], NDArray[np.int64], NDArray[np.float32]]:
        pairs = slice(*np.searchsorted(self._node, [node, node + 1]).tolist())
        return self._row[pairs], self._child[pairs], self._relevance[pairs]


def _cost_problem(
    node: int, rows: NDArray[np.uint32], row: NDArray[np.uint32], child: NDArray[np.int64],
    relevance: NDArray[np.float32], chosen: NDArray[np.int64], n_children: int,
) -> CostProblem:  # fmt: skip
    """Return the problem of the chosen children on these rows, from all pairs of row and child of the node."""
    number = np.full(n_children, -1)
    number[chosen] = np.arange(len(chosen))
    at = np.minimum(np.searchsorted(rows, row), len(rows) - 1)
    kept = (number[child] >= 0) & (rows[at] == row)
    at, child = at[kept], number[child[kept]]
    order = np.lexsort((child, at))
    starts = np.searchsorted(at[order], np.arange(len(rows) + 1))
    pair_weights = relevance[kept][order] if len(relevance) else ALL_ONE
    positive = starts.astype(np.int64), child[order].astype(np.uint32)
    return CostProblem(node, len(chosen), rows, *positive, pair_weights=pair_weights)


def held_out_share(n_rows: int) -> int:
    """Return n such that one row in n is held out: about 2,000 rows, but an eighth to a twentieth of all."""
    return min(max(n_rows // CALIBRATION_ROWS, 8), 20)


def calibration_rows(n_rows: int, held_share: int) -> NDArray[np.uint32]:
    """Return the rows that calibrate the whole tree: a sample of the held-out rows, in ascending order."""
    numbers = read_only(np.arange(n_rows, dtype=np.uint32))
    held = kernels.held_places(numbers, np.arange(n_rows), held_share)
    most = min(CALIBRATION_ROWS, -(-n_rows // CALIBRATION_SHARE))
    return held[:: max(1, -(-len(held) // most))].astype(np.uint32)


def choose_temperature(
    model: LabelTreeModel, rows: SparseRows, targets: Targets, beam: int | None, threads: int
) -> float:
    """Return the temperature of the highest precision for these rows of a model trained without them.

    A high temperature reduces the effect of errors at upper nodes, a low one that of errors at the nodes above labels.
    """
    found: dict[int, float] = {}

    def score(at: int) -> float:
        temperature = TEMPERATURES[at]
        ids, _ = model.at_temperature(temperature).top_k(rows, min(5, model.n_labels), beam, threads)
        precision = len(rows) * mean_precision(ids, targets, model.n_labels)
        return precision - TEMPERATURE_PRIOR * math.log2(temperature / USUAL_TEMPERATURE) ** 2

    best = TEMPERATURES.index(USUAL_TEMPERATURE)
    while True:  # until both neighbours are worse
        near = [at for at in (best - 1, best, best + 1) if 0 <= at < len(TEMPERATURES)]
        found.update({at: score(at) for at in near if at not in found})
        if max(near, key=found.__getitem__) == best:
            return TEMPERATURES[best]
        best = max(near, key=found.__getitem__)


def calibrate(
    model: LabelTreeModel, rows: SparseRows, targets: Targets, multi_label: bool, beam: int | None, threads: int
) -> Calibration:
    """Fit a calibration to the scores of a model trained without these rows; `targets` are their labels."""
    n_labels = model.n_labels
    ids, scores = model.top_k(rows, labels_to_rank(targets, n_labels, multi_label), beam, threads)
    return calibration_from_top_k(ids, scores, targets, n_labels, multi_label)
