"""Training of the node classifiers of a label tree, each on the rows that reach its node."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.labels import ALL_ONE, Targets
from treemax.inputs.rows import SparseRows, read_only, take_sparse_rows
from treemax.kernels import grouping
from treemax.models.calibration import logistic_curve
from treemax.models.label_tree import kernels, solver_kernels
from treemax.models.label_tree.compact import rounded
from treemax.models.label_tree.lasso import train_l1
from treemax.models.label_tree.packed_tree import NodeWeights, PackedNode
from treemax.models.label_tree.routing import HardNegatives, Link, above_labels
from treemax.models.training.finite import check_learned
from treemax.models.training.learning_rates import mean_squared_length
from treemax.parallel.pools import Arrays, Table, all_results, pool_for
from treemax.trees import Tree, label_vectors

LOSSES = {"squared_hinge": solver_kernels.SQUARED_HINGE, "logistic": solver_kernels.LOGISTIC}
SMALL = np.float32(0.03)  # rows whose dual variables change by less are skipped for some passes
PENALTIES = ("l2", "l1")
NEGATIVE_WEIGHT = np.float32(
    0.25
)  # weight of hard negatives: with a larger one, less frequent labels are found less often
ROWS_AT_ONCE = 20_000  # block size of the search for hard negatives
SLOPES = np.geomspace(0.5, 32.0, 25).astype(np.float32)  # grid for the calibration of a softmax over siblings
USUAL_SLOPE, PRIOR = 4.0, 0.5  # the prior of its logarithm, and its strength in nats: for few held-out rows


@dataclass(frozen=True)
class LabelTreeSettings:
    """Settings of the node classifiers."""

    loss: str
    cost: float  # of the nodes above other inner nodes
    leaf_cost: float  # of the nodes above labels
    passes: int
    threshold: float
    held_share: int  # one row in `held_share` is held out for calibration in the first half of the passes; 0: none
    penalty: str = "l2"
    precision: str = "bfloat16"
    hard_negatives: float = 0.0  # rows added to the nodes above labels, as a share of their own


class NodeProblem(NamedTuple):
    """The rows that reach a node, the positive children of each, and the cost."""

    node: int
    n_children: int
    cost: float
    rows: NDArray[np.uint32]
    child_indptr: NDArray[np.int64]
    children: NDArray[np.uint32]
    row_weights: NDArray[np.float32] = ALL_ONE  # empty: all one
    pair_weights: NDArray[np.float32] = ALL_ONE  # of `children`


class LevelStatistics:
    """Calibration statistics from the held-out rows, by level of the tree."""

    def __init__(self, depth: int) -> None:
        self.likelihood = np.zeros((depth, len(SLOPES)))
        self.histogram = np.zeros((depth, 2, kernels.BINS), dtype=np.float64)

    def add(self, level: int, likelihood: NDArray[np.float64], histogram: NDArray[np.float64]) -> None:
        self.likelihood[level] += likelihood
        self.histogram[level] += histogram

    def link(self, multi_label: bool) -> Link:
        """Return the link that fits the held-out rows, for each level."""
        if multi_label:
            return Link("logistic", *self.logistic_slopes())
        slopes = self.softmax_slopes()
        return Link("softmax", slopes, np.zeros_like(slopes))

    def softmax_slopes(self) -> NDArray[np.float32]:
        """Return the most probable slope of each level, given the held-out rows."""
        prior = PRIOR * np.log(SLOPES / USUAL_SLOPE) ** 2
        return SLOPES[(self.likelihood - prior).argmax(axis=1)]

    def logistic_slopes(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return slope and shift of each level, by Platt scaling of the held-out scores."""
        pairs = [platt(wrong, right)[:2] for wrong, right in self.histogram]
        slopes, shifts = np.array(pairs, dtype=np.float32).T
        return slopes, shifts


def node_costs(tree: Tree, settings: LabelTreeSettings) -> NDArray[np.float64]:
    """Return the cost of every node: `leaf_cost` where most of the children are labels, else `cost`."""
    return np.where(above_labels(tree), settings.leaf_cost, settings.cost)


def node_problems(tree: Tree, targets: Targets, costs: NDArray[np.float64]) -> list[NodeProblem]:
    """Return the problem of every inner node that has rows.

    The root has all rows, including those without labels; every other node those with a label below it (positive nodes
    and their siblings, Algorithm 9).
    """
    labels = (targets.indptr, targets.ids, read_only(tree.leaf_of), read_only(tree.parent))
    n_rows, n_pairs = np.zeros(len(tree), np.int64), np.zeros(len(tree), np.int64)
    grouping.count_reached(*labels, n_rows, n_pairs)
    row_starts, pair_starts = (read_only(np.concatenate([[0], np.cumsum(counts)])) for counts in (n_rows, n_pairs))
    rows, children = (np.empty(starts[-1], np.uint32) for starts in (row_starts, pair_starts))
    child_indptr = np.empty(row_starts[-1] + len(tree), np.int64)
    grouping.fill_reached(*labels, read_only(tree.first_child), row_starts, pair_starts, rows, child_indptr, children)
    problems = [
        NodeProblem(
            node,
            int(tree.n_children[node]),
            float(costs[node]),
            rows[row_starts[node] : row_starts[node + 1]],
            child_indptr[row_starts[node] + node : row_starts[node + 1] + node + 1],
            children[pair_starts[node] : pair_starts[node + 1]],
        )
        for node in np.flatnonzero(n_rows).tolist()
    ]
    return _weighted(problems, tree, targets)


def with_negatives(problem: NodeProblem, rows: NDArray[np.uint32], targets: Targets) -> NodeProblem:
    """Return the problem with further rows, of less weight, which are negative for all children."""
    if len(rows) == 0:
        return problem
    all_rows = np.concatenate([problem.rows, rows])
    order = np.argsort(all_rows, kind="stable")
    counts = np.concatenate([np.diff(problem.child_indptr), np.zeros(len(rows), dtype=np.int64)])
    weights = np.ones(len(all_rows), np.float32) if targets.weights is None else targets.weights[all_rows]
    weights[len(problem.rows) :] *= NEGATIVE_WEIGHT
    return problem._replace(
        rows=all_rows[order], child_indptr=np.concatenate([[0], np.cumsum(counts[order])]), row_weights=weights[order]
    )


def _weighted(problems: list[NodeProblem], tree: Tree, targets: Targets) -> list[NodeProblem]:
    """Return the problems with the weights of the rows, and the relevance of their children."""
    if targets.weights is not None:
        problems = [problem._replace(row_weights=targets.weights[problem.rows]) for problem in problems]
    if targets.relevance is not None:
        relevance = _NodeRelevance(tree, targets)
        problems = [problem._replace(pair_weights=relevance.of(problem)) for problem in problems]
    return problems


class _NodeRelevance:
    """The relevance of every node for every row: that of the most relevant label of the row below the node."""

    def __init__(self, tree: Tree, targets: Targets) -> None:
        assert targets.relevance is not None
        self._tree = tree
        row = np.repeat(np.arange(len(targets)), np.diff(targets.indptr))
        keys, most = row * len(tree) + tree.leaf_of[targets.ids], targets.relevance
        found = [(keys, most)]
        while len(keys):
            row, node = np.divmod(keys, len(tree))
            inner = tree.parent[node] > 0
            above = row[inner] * len(tree) + tree.parent[node[inner]]
            keys, place = np.unique(above, return_inverse=True)
            higher = np.zeros(len(keys), dtype=np.float32)
            np.maximum.at(higher, place, most[inner])
            most = higher
            found.append((keys, most))
        keys, most = (np.concatenate(parts) for parts in zip(*found, strict=True))
        order = np.lexsort((-most, keys))  # a node at several distances from labels: the most relevant first
        self._keys, self._most = keys[order], most[order]

    def of(self, problem: NodeProblem) -> NDArray[np.float32]:
        """Return the relevance of the children of a problem."""
        row = np.repeat(problem.rows.astype(np.int64), np.diff(problem.child_indptr))
        child = self._tree.first_child[problem.node] + problem.children.astype(np.int64)
        return self._most[np.searchsorted(self._keys, row * len(self._tree) + child)]


class Common(NamedTuple):
    """Inputs that the problems of all nodes share."""

    settings: LabelTreeSettings
    seed: int
    length: float  # rows are divided by it, since cost and threshold are meant for rows of length one
    calibration_features: NDArray[np.bool_]  # whether a feature occurs in the rows that calibrate the whole tree


class TreeTraining:
    """Training of all nodes of a tree; `run` sets `nodes`, `holdout_nodes`, `scales` and `statistics`."""

    def __init__(self, tree: Tree, source: RowsInMemory, common: Common, multi_label: bool) -> None:
        self.tree, self.source, self.common, self.multi_label = tree, source, common, multi_label
        problems = node_problems(tree, source.targets, node_costs(tree, common.settings))
        self.problems = sorted(problems, key=lambda problem: -len(problem.rows))
        self.nodes: dict[int, PackedNode] = {}
        self.holdout_nodes: dict[int, PackedNode] = {}
        self.scales = np.zeros(len(tree), dtype=np.float32)
        self._statistics: dict[int, tuple[NDArray[np.float64], NDArray[np.float64]]] = {}

    @property
    def work(self) -> int:
        """The total work: the sum over nodes of their rows."""
        return sum(len(problem.rows) for problem in self.problems)

    @property
    def statistics(self) -> LevelStatistics:
        """Statistics of the nodes trained so far."""
        total = LevelStatistics(self.tree.depth)
        for node in sorted(self._statistics):  # in a fixed order, so that the sums are reproducible
            total.add(int(self.tree.level[node]), *self._statistics[node])
        return total

    def run(self) -> Iterator[int]:
        """Train the upper nodes, then those above labels, the largest first; yield the work of each."""
        ends = above_labels(self.tree)
        yield from self._train([problem for problem in self.problems if not ends[problem.node]])
        share, link = self.common.settings.hard_negatives, self.statistics.link(self.multi_label)
        negatives = HardNegatives.find(self.tree, self.nodes, link, self.source, share)
        yield from self._train([problem for problem in self.problems if ends[problem.node]], negatives)

    def _train(self, problems: list[NodeProblem], negatives: HardNegatives | None = None) -> Iterator[int]:
        n_rows = [len(problem.rows) for problem in problems]
        if negatives is not None:
            targets = self.source.targets
            problems = [with_negatives(problem, negatives.of(problem.node), targets) for problem in problems]
        for number, arrays in self.source.executor.run(train_node, self.common, problems, keep=True):
            node, result = problems[number].node, NodeResult.of(arrays)
            self.nodes[node], self.holdout_nodes[node] = result.final, result.holdout
            self.scales[node] = result.scale[0]
            self._statistics[node] = (result.likelihood, result.histogram)
            yield n_rows[number]


class RowsInMemory:
    """The training rows of a label tree in memory, and the executor that trains on them."""

    def __init__(self, rows: SparseRows, targets: Targets, threads: int) -> None:
        self.rows, self.targets, self.threads = rows, targets, threads
        self.length = math.sqrt(mean_squared_length(rows, targets.weights)[0])
        self.executor = pool_for(threads).share(Table(rows))

    def label_vectors(self, n_labels: int) -> SparseRows:
        """Return the feature vectors of the labels for clustering."""
        return label_vectors(self.rows, self.targets, n_labels, executor=self.executor)

    def load(self, rows: NDArray[np.uint32]) -> SparseRows:
        """Return some rows, by number in ascending order."""
        return take_sparse_rows(self.rows, rows)

    def blocks(self) -> Iterator[tuple[int, SparseRows]]:
        """Yield all rows, by blocks, with the number of the first."""
        for first in range(0, len(self.rows), ROWS_AT_ONCE):
            yield first, self.rows[first : first + ROWS_AT_ONCE]

    def run(self, work: Any, common: Common, problems: Sequence[Any]) -> list[Arrays]:
        """Return the results of all problems, in their order."""
        return all_results(self.executor, work, common, problems)

    def training(self, tree: Tree, common: Common, multi_label: bool) -> TreeTraining:
        return TreeTraining(tree, self, common, multi_label)


class NodeResult(NamedTuple):
    """The result of training a node: its weights, those trained without the held-out rows (`holdout`), the scale of its
    weights (0: none), and calibration statistics from the held-out rows."""

    final: PackedNode
    holdout: PackedNode
    scale: NDArray[np.float32]
    likelihood: NDArray[np.float64]
    histogram: NDArray[np.float64]

    def arrays(self) -> Arrays:
        """Return the result as a flat tuple of arrays, for transport and checkpoints."""
        return (*self.final, *self.holdout, *self[2:])

    @classmethod
    def of(cls, arrays: Arrays) -> NodeResult:
        return cls(PackedNode(*arrays[:3]), PackedNode(*arrays[3:6]), *arrays[6:])


def siblings_of(problem: Any) -> kernels.Siblings:
    """Return the positive children of each row of a problem, as kernels take them."""
    return kernels.Siblings(
        read_only(problem.child_indptr), read_only(problem.children), problem.n_children,
        read_only(problem.row_weights), read_only(problem.pair_weights),
    )  # fmt: skip


def empty_statistics() -> kernels.Statistics:
    """Return calibration statistics of no rows."""
    return kernels.Statistics(SLOPES, np.zeros(len(SLOPES)), np.zeros((2, kernels.BINS)))


def train_node(table: Table, rows: NDArray[np.uint32], common: Common, problem: NodeProblem) -> Arrays:
    """Train the classifiers of a node's children; return the arrays of a `NodeResult`."""
    settings, source = common.settings, table.rows
    assert isinstance(source, SparseRows)
    statistics = empty_statistics()
    rows, numbers = read_only(rows), read_only(problem.rows)
    siblings, solver = (
        siblings_of(problem),
        solver_kernels.Solver(LOSSES[settings.loss], np.float32(problem.cost), SMALL),
    )
    plan = kernels.Plan(
        np.float32(common.length), settings.passes, settings.held_share, common.seed + problem.node, np.float32(settings.threshold)
    )  # fmt: skip
    with table.scratch() as scratch:
        weights = (train_l1 if settings.penalty == "l1" else kernels.train_siblings)(
            source.arrays, rows, numbers, siblings, solver, plan, statistics, common.calibration_features, scratch
        )
    return pack_result(NodeWeights(*weights[:5]), NodeWeights(*weights[5:]), common, statistics)


def pack_result(final: NodeWeights, holdout: NodeWeights, common: Common, statistics: kernels.Statistics) -> Arrays:
    """Pack the weights of a node; return the arrays of a `NodeResult`."""
    final, holdout = _unscaled(final, common.length), _unscaled(holdout, common.length)
    check_learned((final, holdout), "LabelTree")
    scale = np.float32(0.0)
    if common.settings.precision == "int8":
        final, scale = rounded(final)
    _, likelihood, histogram = statistics
    result = NodeResult(PackedNode.of(final), PackedNode.of(holdout), np.array([scale]), likelihood, histogram)
    return result.arrays()


def _unscaled(part: NodeWeights, length: float) -> NodeWeights:
    """Return the weights for rows that are not divided by `length`."""
    return part._replace(weights=(part.weights / np.float32(length)).astype(np.float32))


def platt(wrong: NDArray[np.float64], right: NDArray[np.float64]) -> tuple[float, float, float]:
    """Fit a logistic curve to histograms of the scores of wrong and right labels; return slope, shift and loss."""
    reach = kernels.HISTOGRAM_REACH
    score = np.linspace(-reach, reach, kernels.BINS, endpoint=False) + reach / kernels.BINS
    if right.sum() == 0 or wrong.sum() == 0:
        return 4.0, 0.0, 0.0
    slope, shift, loss = logistic_curve(score, right, wrong, 1e-3)
    return float(np.clip(slope, 0.13, 55.0)), float(np.clip(shift, -20.0, 20.0)), loss
