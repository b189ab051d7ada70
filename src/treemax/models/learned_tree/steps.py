"""Steps of gradient descent and assignments of labels, which `fit` and streams share.

Algorithm 1 on log p (section 6 of the paper) or on p, and Algorithm 2 at regular intervals. The probabilities for
Algorithm 2 are running sums, as in the paper, or computed from the current parameters, which also covers labels that
have just moved to a node.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.labels import Targets
from treemax.inputs.rows import SparseRows, read_only
from treemax.models.learned_tree import assignment_kernels, kernels
from treemax.models.learned_tree.assignment import RULES
from treemax.models.learned_tree.kernels import Paths
from treemax.models.learned_tree.model import Floats, aligned
from treemax.models.learned_tree.structure import RunningSums, Structure, max_depth, vectors_per_node

ROWS_AT_ONCE = 2048
MIN_ERROR = 1e-3  # vectors of children whose probability has a smaller error are not updated
INITIAL_SQUARES = np.float32(1e-8)
OPTIMIZERS = {"sgd": kernels.PLAIN, "adagrad": kernels.ADAGRAD}
OBJECTIVES = {"log-likelihood": kernels.LOG_LIKELIHOOD, "probability": kernels.PROBABILITY}
STATISTICS = ("means", "rows", "running")


@dataclass(frozen=True)
class LearnedTreeSettings:
    """Training settings. `hold` is the fraction of the training with a constant rate, before it decays to zero."""

    dimension: int
    rate: float
    epochs: int
    hold: float = 0.0
    optimizer: str = "adagrad"
    dropout: float = 0.0  # probability to drop a feature of a row in a step
    one_label: bool = False  # learn one random label of a row in a step instead of all
    objective: str = "log-likelihood"
    statistics: str = "means"  # of the assignment of labels
    assign_by: str = "difference"
    max_depth: int | None = None  # of the tree after an assignment
    prior_count: float = 0.0  # of new pairs of node and label in running sums


class Learner:
    """Tree and parameters in training. A subclass knows the frequencies of the labels and their representations."""

    settings: LearnedTreeSettings
    structure: Structure
    arity: int
    paths: Paths
    sums: RunningSums
    embeddings: Floats
    feature_squares: Floats
    weights: Floats
    biases: Floats
    squares: Floats
    scale: np.float32  # of the rows

    @property
    def n_labels(self) -> int:
        return self.structure.n_labels

    def _label_counts(self) -> NDArray[np.int64]:
        """Compute the number of examples of each label."""
        raise NotImplementedError

    def _label_representations(self) -> tuple[Floats, NDArray[np.int64]]:
        """Compute representations of each label, its mean or its rows, and where those of each label start."""
        raise NotImplementedError

    def _step(
        self, rows: SparseRows, targets: Targets, order: NDArray[np.uint32], rate: float, seed: int, longest: int
    ) -> tuple[float, int]:
        """Learn the rows of `order`, of at most `longest` features; the sum of log p, and the rows in it."""
        settings, width = self.settings, self.embeddings.shape[1]
        n_scores = self._scores_on_a_path() + 1
        sizes = [(n_scores, np.uint32)] * 2 + [(n_scores, np.float32)] * 2
        sizes += [(longest, np.uint32), (longest, np.float32)]
        scratch = kernels.Scratch(aligned((width,)), aligned((width,)), *[np.empty(*size) for size in sizes])
        step = kernels.Step(
            np.float32(rate), np.float32(MIN_ERROR), OPTIMIZERS[settings.optimizer], OBJECTIVES[settings.objective],
            kernels.ONE_LABEL if settings.one_label else kernels.ALL_LABELS, float(settings.dropout), np.uint64(seed),
        )  # fmt: skip
        statistics = (read_only(self.sums.places), self.sums.sums.ravel(), self.sums.seen)
        return kernels.learn(
            rows.arrays, order, targets.indptr, targets.ids, self.paths, self._embeddings(1.0 - settings.dropout),
            self._vectors(), step, statistics, scratch,
        )  # fmt: skip

    def _embeddings(self, share: float = 1.0) -> kernels.Embeddings:
        """Return the embeddings, scaled for a share of the features."""
        return kernels.Embeddings(self.embeddings.ravel(), self.feature_squares, np.float32(self.scale / share))

    def _vectors(self) -> kernels.Vectors:
        width = np.uint64(self.weights.shape[1])
        return kernels.Vectors(self.weights.ravel(), self.biases, self.squares, width)

    def _scores_on_a_path(self) -> int:
        """Return the largest number of children of the nodes on a path together."""
        of_paths, most = self.__dict__.get("_most_scores", (None, 0))
        if of_paths is not self.paths:
            sums = np.concatenate([[0], np.cumsum(self.paths.counts, dtype=np.int64)])
            most = int((sums[self.paths.starts[1:]] - sums[self.paths.starts[:-1]]).max())
            self._most_scores = self.paths, most
        return most

    def assign(self) -> None:
        """Algorithm 2 at every node, from the root down."""
        if self.n_labels <= 1:
            return
        structure = self.structure
        shape = assignment_kernels.Shape(
            self.arity, self.settings.max_depth or max_depth(self.n_labels, self.arity), vectors_per_node(self.arity),
            structure.children, structure.n_children, RULES[self.settings.assign_by], float(self.settings.prior_count),
        )  # fmt: skip
        labels, vectors = np.arange(self.n_labels), self._vectors()
        if self.settings.statistics == "running":
            renewed = np.zeros(len(structure.n_children), dtype=bool)
            sums = (self.sums.keys, self.sums.sums, self.sums.seen)
            assignment_kernels.reassign_by_sums(labels, sums, shape, vectors, renewed)
            self._update_paths(renewed)
            return
        counts = self._label_counts().astype(np.float64)
        assignment_kernels.reassign(labels, counts, *self._label_representations(), shape, vectors)
        self.paths = structure.paths()

    def _update_paths(self, renewed: NDArray[np.bool_]) -> None:
        """Recompute the paths of the tree, and extend the running sums to them."""
        self.paths = self.structure.paths()
        nodes = self.paths.firsts.astype(np.int64) // vectors_per_node(self.arity)
        prior = self.settings.prior_count
        self.sums = self.sums.for_paths(self.paths, nodes, self.n_labels, renewed, prior)
