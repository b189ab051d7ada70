"""Training the node classifiers of a label tree, every node on the rows that reach it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.labels import Targets
from treemax.inputs.rows import SparseRows, picked_rows, read_only
from treemax.kernels import grouping
from treemax.models.calibration import logistic_curve
from treemax.models.finite import check_learned
from treemax.models.label_tree import kernels
from treemax.models.label_tree.compact import rounded
from treemax.models.label_tree.lasso import train_sparsely
from treemax.models.label_tree.packed_tree import NodeWeights, PackedNode
from treemax.models.rates import mean_squared_length
from treemax.parallel.pools import Arrays, Executor, Table, all_results, pool_for
from treemax.trees import Tree, label_vectors

LOSSES = {"squared_hinge": kernels.SQUARED_HINGE, "logistic": kernels.LOGISTIC}
SMALL = np.float32(0.03)  # change of a dual variable that is not worth another visit of the row
PENALTIES = ("l2", "l1")
SLOPES = np.geomspace(0.5, 32.0, 25).astype(np.float32)  # among which a softmax over siblings is calibrated


@dataclass(frozen=True)
class LabelTreeSettings:
    """How the classifiers of a node are trained."""

    loss: str
    cost: float  # of the nodes above other inner nodes
    leaf_cost: float  # of the nodes above labels
    passes: int
    threshold: float
    held_share: int  # one row in so many calibrates the probabilities before it joins the training; 0: none
    penalty: str = "l2"
    precision: str = "bfloat16"


class NodeProblem(NamedTuple):
    """The rows that reach a node, which of its children each of them has, and the cost of errors."""

    node: int
    n_children: int
    cost: float
    rows: NDArray[np.uint32]
    child_indptr: NDArray[np.int64]
    children: NDArray[np.uint32]


class LevelScores:
    """What the rows held out say about the scores of nodes, level by level."""

    def __init__(self, depth: int) -> None:
        self.likelihood = np.zeros((depth, len(SLOPES)))
        self.histogram = np.zeros((depth, 2, kernels.BINS), dtype=np.int64)

    def add(self, level: int, likelihood: NDArray[np.float64], histogram: NDArray[np.int64]) -> None:
        self.likelihood[level] += likelihood
        self.histogram[level] += histogram

    def softmax_slopes(self) -> NDArray[np.float32]:
        """The slope of each level under which the rows held out are most likely; 4 where there were none."""
        best = SLOPES[self.likelihood.argmax(axis=1)]
        return np.where(self.likelihood.any(axis=1), best, np.float32(4.0)).astype(np.float32)

    def logistic_slopes(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Slope and shift of each level, by Platt's scaling of the scores held out."""
        pairs = [platt(wrong, right)[:2] for wrong, right in self.histogram]
        slopes, shifts = np.array(pairs, dtype=np.float32).T
        return slopes, shifts


def node_costs(tree: Tree, settings: LabelTreeSettings) -> NDArray[np.float64]:
    """The cost of every inner node: one where most of the children are labels, another where they are nodes."""
    children = np.arange(1, len(tree))  # of all nodes but the root
    leaves = np.bincount(tree.parent[children], weights=tree.n_children[children] == 0, minlength=len(tree))
    return np.where(2 * leaves > tree.n_children, settings.leaf_cost, settings.cost)


def node_problems(tree: Tree, targets: Targets, costs: NDArray[np.float64]) -> list[NodeProblem]:
    """The problem of every inner node that has rows. The root sees all rows, also those without labels; every
    other node those with a label below it (positive nodes and their siblings, Algorithm 9)."""
    labels = (targets.indptr, targets.ids, read_only(tree.leaf_of), read_only(tree.parent))
    n_rows, n_pairs = np.zeros(len(tree), np.int64), np.zeros(len(tree), np.int64)
    grouping.count_reached(*labels, n_rows, n_pairs)
    row_starts, pair_starts = (
        read_only(np.concatenate([[0], np.cumsum(counts)])) for counts in (n_rows, n_pairs)
    )
    rows, children = (np.empty(starts[-1], np.uint32) for starts in (row_starts, pair_starts))
    child_indptr = np.empty(row_starts[-1] + len(tree), np.int64)
    grouping.fill_reached(
        *labels, read_only(tree.first_child), row_starts, pair_starts, rows, child_indptr, children
    )
    return [
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


class Common(NamedTuple):
    """What the problems of all nodes have in common."""

    settings: LabelTreeSettings
    seed: int
    length: float  # of the rows: what they are divided by, since cost and threshold are meant for rows of length one
    early_features: NDArray[np.bool_]  # of the rows that calibrate the whole tree


class TreeTraining:
    """The training of all nodes of a tree: run it, then take `nodes`, `early_nodes`, `scales` and `scores`."""

    def __init__(self, tree: Tree, executor: Executor, targets: Targets, common: Common) -> None:
        self.tree, self.executor, self.common = tree, executor, common
        problems = node_problems(tree, targets, node_costs(tree, common.settings))
        self.problems = sorted(problems, key=lambda problem: -len(problem.rows))
        self.nodes: dict[int, PackedNode] = {}
        self.early_nodes: dict[int, PackedNode] = {}
        self.scales = np.zeros(len(tree), dtype=np.float32)
        self.scores = LevelScores(tree.depth)

    @property
    def work(self) -> int:
        """How much there is to do, in rows times nodes."""
        return sum(len(problem.rows) for problem in self.problems)

    def run(self) -> Iterator[int]:
        """Train node after node, the largest first; yields the work done with each."""
        found: dict[int, tuple[NDArray[np.float64], NDArray[np.int64]]] = {}
        for number, arrays in self.executor.run(train_node, self.common, self.problems, keep=True):
            problem, result = self.problems[number], NodeResult.of(arrays)
            self.nodes[problem.node], self.early_nodes[problem.node] = result.late, result.early
            self.scales[problem.node] = result.scale[0]
            found[problem.node] = (result.likelihood, result.histogram)
            yield len(problem.rows)
        for node in sorted(found):  # in one order, whoever was first
            self.scores.add(int(self.tree.level[node]), *found[node])


class RowsInMemory:
    """The training rows of a label tree, with those who work on them."""

    def __init__(self, rows: SparseRows, targets: Targets, threads: int) -> None:
        self.rows, self.targets = rows, targets
        self.length = math.sqrt(mean_squared_length(rows)[0])
        self._executor = pool_for(threads).share(Table(rows))

    def label_vectors(self, n_labels: int) -> SparseRows:
        """What the rows of each label look like."""
        return label_vectors(self.rows, self.targets, n_labels, executor=self._executor)

    def load(self, rows: NDArray[np.uint32]) -> SparseRows:
        """Some rows, by number in ascending order."""
        return picked_rows(self.rows, rows)

    def run(self, work: Any, common: Common, problems: Sequence[Any]) -> list[Arrays]:
        """The results of all problems, in their order."""
        return all_results(self._executor, work, common, problems)

    def training(self, tree: Tree, common: Common) -> TreeTraining:
        return TreeTraining(tree, self._executor, self.targets, common)


class NodeResult(NamedTuple):
    """What a node has learned: its weights, those before the rows held out joined, the scale of its weights (0: none),
    and what the rows held out say of the scores."""

    late: PackedNode
    early: PackedNode
    scale: NDArray[np.float32]
    likelihood: NDArray[np.float64]
    histogram: NDArray[np.int64]

    def arrays(self) -> Arrays:
        """As plain arrays, which can travel."""
        return (*self.late, *self.early, *self[2:])

    @classmethod
    def of(cls, arrays: Arrays) -> NodeResult:
        return cls(PackedNode(*arrays[:3]), PackedNode(*arrays[3:6]), *arrays[6:])


def train_node(table: Table, rows: NDArray[np.uint32], common: Common, problem: NodeProblem) -> Arrays:
    """The classifiers of a node's children: the arrays of a `NodeResult`."""
    settings, source = common.settings, table.rows
    assert isinstance(source, SparseRows)
    likelihood = np.zeros(len(SLOPES))
    histogram = np.zeros((2, kernels.BINS), dtype=np.int64)
    rows, numbers = read_only(rows), read_only(problem.rows)
    child_indptr, children = read_only(problem.child_indptr), read_only(problem.children)
    n_children, seed = problem.n_children, common.seed + problem.node
    with table.scratch() as scratch:
        if settings.penalty == "l1":
            found = train_sparsely(
                source, rows, numbers, child_indptr, children, n_children, common.length, settings.loss, problem.cost, settings.passes,
                settings.held_share, seed, settings.threshold, SLOPES, likelihood,
                histogram, kernels.HISTOGRAM_REACH, common.early_features, scratch,
            )  # fmt: skip
        else:
            found = kernels.train_siblings(
                source.indptr, source.indices, source.values, rows, numbers, child_indptr, children, n_children,
                np.float32(common.length), LOSSES[settings.loss], np.float32(problem.cost), settings.passes, SMALL, settings.held_share, seed,
                np.float32(settings.threshold), SLOPES, likelihood, histogram, common.early_features, scratch,
            )  # fmt: skip
    return learned(NodeWeights(*found[:5]), NodeWeights(*found[5:]), common, likelihood, histogram)


def learned(
    late: NodeWeights,
    early: NodeWeights,
    common: Common,
    likelihood: NDArray[np.float64],
    histogram: NDArray[np.int64],
) -> Arrays:
    """What a node has learned, packed: the arrays of a `NodeResult`."""
    late, early = _unscaled(late, common.length), _unscaled(early, common.length)
    check_learned((late, early), "LabelTree")
    scale = np.float32(0.0)
    if common.settings.precision == "int8":
        late, scale = rounded(late)
    result = NodeResult(PackedNode.of(late), PackedNode.of(early), np.array([scale]), likelihood, histogram)
    return result.arrays()


def _unscaled(part: NodeWeights, length: float) -> NodeWeights:
    """The weights for rows that are not divided by their length."""
    return part._replace(weights=(part.weights / np.float32(length)).astype(np.float32))


def platt(wrong: NDArray[np.int64], right: NDArray[np.int64]) -> tuple[float, float, float]:
    """Slope and shift of the logistic curve that fits counts of wrong and right answers by score, and its loss."""
    reach = kernels.HISTOGRAM_REACH
    score = np.linspace(-reach, reach, kernels.BINS, endpoint=False) + reach / kernels.BINS
    if right.sum() == 0 or wrong.sum() == 0:
        return 4.0, 0.0, 0.0
    slope, shift, loss = logistic_curve(score, right.astype(np.float64), wrong.astype(np.float64), 1e-3)
    return float(np.clip(slope, 0.13, 55.0)), float(np.clip(shift, -20.0, 20.0)), loss
