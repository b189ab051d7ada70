"""Training the node classifiers of a label tree, every node on the rows that reach it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from treemax.inference.compact import rounded
from treemax.inference.label_tree import NodeWeights, PackedNode
from treemax.inputs import SparseRows, read_only
from treemax.kernels import grouping
from treemax.kernels import siblings as kernels
from treemax.labels import Targets
from treemax.learning.lasso import train_sparsely
from treemax.pools import Arrays, Crew, Table
from treemax.threads import one_blas_thread
from treemax.trees import Tree

LOSSES = {"squared_hinge": kernels.SQUARED_HINGE, "logistic": kernels.LOGISTIC}
SMALL = np.float32(0.03)  # change of a dual variable that is not worth another visit of the row
PENALTIES = ("l2", "l1")
SLOPES = np.geomspace(0.5, 32.0, 25).astype(np.float32)  # among which a softmax over siblings is calibrated


@dataclass(frozen=True)
class Settings:
    """How the classifiers of a node are trained."""

    loss: str
    cost: float
    passes: int
    threshold: float
    held_share: int  # one row in so many calibrates the probabilities before it joins the training
    penalty: str = "l2"
    precision: str = "bfloat16"


class NodeProblem(NamedTuple):
    """The rows that reach a node, and which of its children each of them has."""

    node: int
    n_children: int
    rows: NDArray[np.uint32]
    child_indptr: NDArray[np.int64]
    children: NDArray[np.uint32]


class Calibration:
    """What the rows held out say about the scores, level by level."""

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
        with one_blas_thread():  # threads would take longer to wake than the sums take
            pairs = [_platt(wrong, right) for wrong, right in self.histogram]
        slopes, shifts = np.array(pairs, dtype=np.float32).T
        return slopes, shifts


def node_problems(tree: Tree, targets: Targets) -> list[NodeProblem]:
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
            rows[row_starts[node] : row_starts[node + 1]],
            child_indptr[row_starts[node] + node : row_starts[node + 1] + node + 1],
            children[pair_starts[node] : pair_starts[node + 1]],
        )
        for node in np.flatnonzero(n_rows).tolist()
    ]


class Common(NamedTuple):
    """What the problems of all nodes have in common."""

    settings: Settings
    seed: int
    length: float  # of the rows: what they are divided by, since cost and threshold are meant for rows of length one


class TreeTraining:
    """The training of all nodes of a tree: run it, then take `nodes`, `scales` and `calibration`."""

    def __init__(
        self, tree: Tree, crew: Crew, length: float, targets: Targets, settings: Settings, seed: int
    ) -> None:
        self.tree, self.crew = tree, crew
        self.common = Common(settings, seed, length)
        self.problems = sorted(node_problems(tree, targets), key=lambda problem: -len(problem.rows))
        self.nodes: dict[int, PackedNode] = {}
        self.scales = np.zeros(len(tree), dtype=np.float32)
        self.calibration = Calibration(tree.depth)

    @property
    def work(self) -> int:
        """How much there is to do, in rows times nodes."""
        return sum(len(problem.rows) for problem in self.problems)

    def run(self) -> Iterator[int]:
        """Train node after node, the largest first; yields the work done with each."""
        found: dict[int, tuple[NDArray[np.float64], NDArray[np.int64]]] = {}
        for number, arrays in self.crew.run(train_node, self.common, self.problems, keep=True):
            problem, (*packed, scale, likelihood, histogram) = self.problems[number], arrays
            self.nodes[problem.node] = PackedNode(*packed)
            self.scales[problem.node] = scale[0]
            found[problem.node] = (likelihood, histogram)
            yield len(problem.rows)
        for node in sorted(found):  # in one order, whoever was first
            self.calibration.add(int(self.tree.level[node]), *found[node])


def train_node(table: Table, rows: NDArray[np.uint32], common: Common, problem: NodeProblem) -> Arrays:
    """The classifiers of a node's children, as `learned` gives them."""
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
                source, rows, numbers, child_indptr, children, n_children, common.length, settings.loss, settings.cost, settings.passes,
                settings.held_share, seed, settings.threshold, SLOPES, likelihood,
                histogram, kernels.HISTOGRAM_REACH, scratch,
            )  # fmt: skip
        else:
            found = kernels.train_siblings(
                source.indptr, source.indices, source.values, rows, numbers, child_indptr, children, n_children,
                np.float32(common.length), LOSSES[settings.loss], np.float32(settings.cost), settings.passes, SMALL, settings.held_share, seed,
                np.float32(settings.threshold), SLOPES, likelihood, histogram, scratch,
            )  # fmt: skip
    return learned(NodeWeights(*found), common, likelihood, histogram)


def learned(
    part: NodeWeights, common: Common, likelihood: NDArray[np.float64], histogram: NDArray[np.int64]
) -> Arrays:
    """What a node has learned, packed: the arrays of `PackedNode`, the scale of its weights (0: none), and what rows
    held out say of the scores."""
    part = part._replace(weights=(part.weights / np.float32(common.length)).astype(np.float32))
    scale = np.float32(0.0)
    if common.settings.precision == "int8":
        part, scale = rounded(part)
    return (*PackedNode.of(part), np.array([scale]), likelihood, histogram)


def _platt(wrong: NDArray[np.int64], right: NDArray[np.int64]) -> tuple[float, float]:
    """Slope and shift of the logistic curve that fits counts of wrong and right answers by score."""
    reach = kernels.HISTOGRAM_REACH
    score = (np.arange(kernels.BINS) + 0.5) * (2 * reach / kernels.BINS) - reach
    n_right, n_wrong = right.sum(), wrong.sum()
    if n_right == 0 or n_wrong == 0:
        return 4.0, 0.0
    total = n_right + n_wrong

    def loss(parameters: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        z = np.exp(parameters[0]) * score + parameters[1]
        value = (right * np.logaddexp(0, -z) + wrong * np.logaddexp(0, z)).sum() / total
        slack = ((right + wrong) / (1 + np.exp(-z)) - right) / total
        return value, np.array([(slack * score).sum() * np.exp(parameters[0]), slack.sum()])

    fit = minimize(loss, np.array([1.0, 0.0]), jac=True, bounds=[(-2.0, 4.0), (-20.0, 20.0)])
    return float(np.exp(fit.x[0])), float(fit.x[1])
