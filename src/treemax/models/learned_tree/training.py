"""Joint training of embeddings, node vectors and the tree.

Yacine Jernite, Anna Choromanska and David Sontag, "Simultaneous Learning of Trees and Representations for
Extreme Classification and Density Estimation", ICML 2017: Algorithm 1, on log p (section 6) or on p, and Algorithm 2
at regular intervals. The probabilities for Algorithm 2 are running sums, as in the paper, or computed from the current
parameters, which also covers labels that have just moved to a node.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.labels import Targets, take_targets
from treemax.inputs.rows import SparseRows, read_only, take_rows
from treemax.models.calibration import Calibration, calibration_from_top_k, labels_to_rank
from treemax.models.held_out import PASSES_WITH_ALL
from treemax.models.learned_tree import assignment_kernels, kernels
from treemax.models.learned_tree.assignment import RULES
from treemax.models.learned_tree.kernels import Paths
from treemax.models.learned_tree.model import LearnedTreeModel, aligned, padded, vectors_of, with_renumbered_features
from treemax.models.rates import mean_squared_length
from treemax.parallel.threads import for_each
from treemax.trees import Tree

ROWS_AT_ONCE = 2048
FEW_FEATURES = 0.5  # if a smaller fraction of the columns occurs, only these get embeddings
NUMBERS_TO_ASSIGN = 2**26  # bounds the memory of the representations for the assignment
MIN_ERROR = 1e-3  # of a child's probability: vectors with a smaller error are not updated
MIN_PASSES, MIN_ROWS = 6, 20_000  # the latter over all passes
LARGEST_FACTOR = 1e12  # bound on embeddings and node vectors, which are multiplied by each other and by feature values
INITIAL_SQUARES = np.float32(1e-8)
OPTIMIZERS = {"sgd": kernels.PLAIN, "adagrad": kernels.ADAGRAD}
OBJECTIVES = {"log-likelihood": kernels.LOG_LIKELIHOOD, "probability": kernels.PROBABILITY}
STATISTICS = ("means", "rows", "running")


def suggested_passes(n_rows: int, multi_label: bool) -> int:
    """Default number of passes, half as many for multi-label rows, each of which teaches several labels.

    >>> suggested_passes(100, False), suggested_passes(1_000_000, False), suggested_passes(1_000_000, True)
    (50, 12, 6)
    """
    fewest = MIN_PASSES if multi_label else 2 * MIN_PASSES
    return min(50, max(fewest, -(-MIN_ROWS // n_rows)))


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


@dataclass
class Structure:
    """A tree whose nodes keep their numbers while labels move: the children of inner node v are
    `children[starts[v]:starts[v] + n_children[v]]`, inner nodes by number and leaves as -1 - label."""

    children: NDArray[np.int64]
    starts: NDArray[np.int64]
    n_children: NDArray[np.int64]
    first_vectors: NDArray[np.int64]
    n_vectors: int
    n_labels: int

    @classmethod
    def of_tree(cls, tree: Tree) -> Structure:
        """A fixed tree."""
        inner = np.flatnonzero(tree.n_children)
        counts = tree.n_children[inner]
        starts = np.cumsum(counts) - counts
        vectors = vectors_of(counts)
        firsts = np.cumsum(vectors) - vectors
        return cls(_child_codes(tree), starts, counts.copy(), firsts, int(vectors.sum()), tree.n_labels)

    @classmethod
    def with_capacity(cls, tree: Tree, arity: int) -> Structure:
        """A tree that may change its shape, with capacity for `arity` children per node and for the nodes of any
        well-formed tree."""
        inner = np.flatnonzero(tree.n_children)
        room = max(len(inner), -(-(tree.n_labels - 1) // (arity - 1))) + 1
        children, n_children = np.full((room, arity), -1, dtype=np.int64), np.zeros(room, dtype=np.int64)
        counts = tree.n_children[inner]
        n_children[: len(inner)] = counts
        children[np.repeat(np.arange(len(inner)), counts), _ranks(counts)] = _child_codes(tree)
        per_node = vectors_per_node(arity)
        nodes = np.arange(room)
        return cls(children.ravel(), nodes * arity, n_children, nodes * per_node, room * per_node, tree.n_labels)

    def paths(self) -> Paths:
        """The path to every label."""
        n = len(self.n_children)
        parents, slots, depths, waiting = (np.zeros(n, dtype=np.int64) for _ in range(4))
        leaf_parents, leaf_slots = (np.zeros(self.n_labels, dtype=np.int64) for _ in range(2))
        kernels.parents_and_depths(
            self.children, self.starts, self.n_children, parents, slots, depths, leaf_parents, leaf_slots, waiting
        )  # fmt: skip
        starts = np.concatenate([[0], np.cumsum(depths[leaf_parents] + 1)])
        firsts, counts, targets = (np.empty(starts[-1], dtype=np.uint32) for _ in range(3))
        kernels.write_paths(
            starts, self.n_children, self.first_vectors, parents, slots, leaf_parents, leaf_slots, firsts, counts, targets
        )  # fmt: skip
        return Paths(*map(read_only, (starts, firsts, counts, targets)))

    def as_tree(self) -> tuple[Tree, NDArray[np.int64]]:
        """The tree in breadth-first order, and the indices of its nodes' vectors in that order."""
        levels, level = [], np.zeros(1, dtype=np.int64)
        while len(level):
            levels.append(level)
            inner = level[level >= 0]
            counts = self.n_children[inner]
            level = self.children[np.repeat(self.starts[inner], counts) + _ranks(counts)]
        codes = np.concatenate(levels)
        is_inner = codes >= 0
        n_children = np.where(is_inner, self.n_children[np.maximum(codes, 0)], 0)
        first_child = 1 + np.cumsum(n_children) - n_children
        tree = Tree(first_child, n_children, np.where(is_inner, -1, -1 - codes))
        own = codes[is_inner]
        counts = vectors_of(self.n_children[own])
        return tree, np.repeat(self.first_vectors[own], counts) + _ranks(counts)


@dataclass
class RunningSums:
    """SumProbas and Counts of Algorithm 1, for every pair of node and label that was ever on a path.

    `keys` are node * labels + label, sorted; `places` has the index into them of each node of `Paths`.
    """

    keys: NDArray[np.int64]
    sums: NDArray[np.float32]
    seen: NDArray[np.float32]
    places: NDArray[np.uint32]

    @classmethod
    def empty(cls, arity: int) -> RunningSums:
        """Without any pairs."""
        empty = np.empty(0, dtype=np.float32)
        return cls(np.empty(0, dtype=np.int64), empty.reshape(0, arity), empty, np.empty(0, dtype=np.uint32))

    def for_paths(
        self,
        paths: Paths,
        nodes: NDArray[np.int64],
        n_labels: int,
        renewed: NDArray[np.bool_],
        prior_count: float = 0.0,
    ) -> RunningSums:
        """The sums extended to new paths, and without those of nodes that were reset.

        With a prior, a new pair starts as if half of `prior_count` examples had gone to one child, in turn by label, and
        half evenly to all.
        """  # fmt: skip
        labels = np.repeat(np.arange(n_labels), np.diff(paths.starts))
        needed = nodes * n_labels + labels
        kept = ~renewed[self.keys // n_labels]
        keys = np.union1d(self.keys[kept], needed)
        sums = np.zeros((len(keys), self.sums.shape[1]), dtype=np.float32)
        seen = np.zeros(len(keys), dtype=np.float32)
        places = np.searchsorted(keys, needed)
        if prior_count > 0:
            n_children = paths.counts.astype(np.int64)
            sums[places] = np.where(np.arange(sums.shape[1]) < n_children[:, None], 0.5 / n_children[:, None], 0)
            sums[places, labels % n_children] += 0.5
            sums[places] *= prior_count
            seen[places] = prior_count
        old = np.searchsorted(keys, self.keys[kept])
        sums[old], seen[old] = self.sums[kept], self.seen[kept]
        return RunningSums(keys, sums, seen, places.astype(np.uint32))


def vectors_per_node(arity: int) -> int:
    """Number of vectors of a node with `arity` children."""
    return int(vectors_of(np.array([arity]))[0])


def _child_codes(tree: Tree) -> NDArray[np.int64]:
    """The nodes except the root, as `Structure.children` has them: inner nodes by number, leaves as -1 - label."""
    numbers = np.cumsum(tree.n_children > 0) - 1
    return np.where(tree.label >= 0, -1 - tree.label, numbers)[1:]


def _ranks(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Concatenated ranges 0, ..., count - 1."""
    return np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)


def max_depth(n_labels: int, arity: int) -> int:
    """Default maximum depth of a learned tree: that of a complete tree plus a half, at least one more level."""
    complete = complete_depth(n_labels, arity)
    return complete + max(1, complete // 2)


def complete_depth(n_labels: int, arity: int) -> int:
    """Depth of a complete tree."""
    return max(1, math.ceil(math.log(max(2, n_labels)) / math.log(arity) - 1e-9))


@dataclass
class Training:
    """State of the training: data, tree and parameters."""

    rows: SparseRows
    targets: Targets
    settings: LearnedTreeSettings
    structure: Structure
    random: np.random.RandomState
    arity: int
    multi_label: bool = False
    history: list[float] = field(default_factory=list)  # training loss of each epoch
    held: NDArray[np.uint32] = field(
        default_factory=lambda: np.zeros(0, np.uint32)
    )  # rows for the calibration, learned in the last epochs only
    calibration: Calibration | None = None

    def __post_init__(self) -> None:
        rows, dimension = self.rows, self.settings.dimension
        self.original_rows = rows
        self.n_features = rows.n_features
        self.features = _features_in_use(rows)
        if self.features is not None:
            self.rows = rows = with_renumbered_features(rows, self.features)
        self.scale = np.float32(1.0 / math.sqrt(mean_squared_length(rows)[0]))
        self._longest = int(np.diff(rows.indptr).max(initial=0)) + 1
        width = padded(dimension)
        self.embeddings = aligned((rows.n_features, width))
        most = 1.0 / dimension
        for start in range(0, len(self.embeddings), ROWS_AT_ONCE):
            block = self.embeddings[start : start + ROWS_AT_ONCE, :dimension]
            block[:] = self.random.uniform(-most, most, block.shape)
        self.weights = aligned((self.structure.n_vectors, width))
        self.biases = np.zeros(self.structure.n_vectors, dtype=np.float32)
        self.squares = np.full(self.structure.n_vectors, INITIAL_SQUARES)
        self.feature_squares = np.full(rows.n_features, INITIAL_SQUARES)
        self.paths = self.structure.paths()
        self.sums = RunningSums.empty(self.arity)
        if self.settings.statistics == "running":
            self._update_paths(np.zeros(len(self.structure.n_children), dtype=bool))

    @property
    def n_labels(self) -> int:
        return self.structure.n_labels

    # --- steps ------------------------------------------------------------------------------------------

    def run(self, threads: int, assign_every: int = 0, assign_until: int = 0) -> Iterator[int]:
        """Run all epochs; yields the size of each batch. Labels are reassigned after every `assign_every` rows, until
        `assign_until`."""
        done, epochs = 0, self.settings.epochs
        for epoch in range(epochs):
            order = self.random.permutation(len(self.rows)).astype(np.uint32)
            if len(self.held):
                n_last = max(1, round(PASSES_WITH_ALL * epochs))
                if epoch == max(1, epochs - n_last):
                    self.calibrate()
                if epoch < max(1, epochs - n_last):
                    order = order[~np.isin(order, self.held)]
            total = learned = 0.0
            for part in ranges_between_assignments(len(order), done, assign_every):
                if assign_every and 0 < done <= assign_until and done % assign_every == 0:
                    self.assign()
                for n, likelihood, n_learned in self._learn_all(order[part.start : part.stop], done, threads):
                    done += n
                    total, learned = total + likelihood, learned + n_learned
                    yield n
            self.history.append(-total / max(1.0, learned))

    def calibrate(self) -> None:
        """Calibrate on the held-out rows."""
        rows, targets = take_rows(self.original_rows, self.held), take_targets(self.targets, self.held)
        k = labels_to_rank(targets, self.n_labels, self.multi_label)
        ids, scores = self.model().top_k(rows, k)
        self.calibration = calibration_from_top_k(ids, scores, targets, self.n_labels, self.multi_label)

    def _learn_all(self, order: NDArray[np.uint32], done: int, threads: int) -> Iterator[tuple[int, float, int]]:
        """Learn the rows in this order; several threads update without locks (Hogwild).

        Yields for each batch its size, the sum of log p and the number of labels in this sum.
        """
        results: dict[int, tuple[float, int]] = {}
        seed, planned = int(self.random.randint(2**31)), self.settings.epochs * len(self.rows)

        def work(start: int) -> None:
            rate = self.rate((done + start) / planned)
            results[start] = self._learn(order[start : start + ROWS_AT_ONCE], rate, seed + start)

        for start in for_each(range(0, len(order), ROWS_AT_ONCE), work, threads):
            yield min(ROWS_AT_ONCE, len(order) - start), *results.pop(start)

    def rate(self, share: float) -> float:
        """The learning rate after the given fraction of the training."""
        return self.settings.rate * min(1.0, (1.0 - share) / max(1e-9, 1.0 - self.settings.hold))

    def _learn(self, order: NDArray[np.uint32], rate: float, seed: int) -> tuple[float, int]:
        rows, targets, settings = self.rows, self.targets, self.settings
        width = self.embeddings.shape[1]
        n_scores = int(self._scores_on_a_path()) + 1
        sizes = [(n_scores, np.uint32)] * 2 + [(n_scores, np.float32)] * 2
        sizes += [(self._longest, np.uint32), (self._longest, np.float32)]
        scratch = kernels.Scratch(aligned((width,)), aligned((width,)), *[np.empty(*size) for size in sizes])
        step = kernels.Step(
            np.float32(rate), np.float32(MIN_ERROR), OPTIMIZERS[settings.optimizer], OBJECTIVES[settings.objective],
            kernels.ONE_LABEL if settings.one_label else kernels.ALL_LABELS, float(settings.dropout),
        )  # fmt: skip
        statistics = (read_only(self.sums.places), self.sums.sums.ravel(), self.sums.seen)
        return kernels.learn(
            rows.arrays, order, targets.indptr, targets.ids, self.paths, self._embeddings(1.0 - settings.dropout),
            self._vectors(), step, statistics, np.uint64(seed), scratch,
        )  # fmt: skip

    def _embeddings(self, share: float = 1.0) -> kernels.Embeddings:
        """The embeddings, scaled for a share of the features."""
        return kernels.Embeddings(self.embeddings.ravel(), self.feature_squares, np.float32(self.scale / share))

    def _vectors(self) -> kernels.Vectors:
        width = np.uint64(self.weights.shape[1])
        return kernels.Vectors(self.weights.ravel(), self.biases, self.squares, width)

    def _scores_on_a_path(self) -> int:
        sums = np.concatenate([[0], np.cumsum(self.paths.counts, dtype=np.int64)])
        return int((sums[self.paths.starts[1:]] - sums[self.paths.starts[:-1]]).max())

    # --- the tree ---------------------------------------------------------------------------------------

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
        counts = np.bincount(self.targets.ids, minlength=self.n_labels).astype(np.float64)
        assignment_kernels.reassign(labels, counts, *self._label_representations(), shape, vectors)
        self.paths = structure.paths()

    def _update_paths(self, renewed: NDArray[np.bool_]) -> None:
        """Recompute the paths of the tree, and extend the running sums to them."""
        self.paths = self.structure.paths()
        nodes = self.paths.firsts.astype(np.int64) // vectors_per_node(self.arity)
        prior = self.settings.prior_count
        self.sums = self.sums.for_paths(self.paths, nodes, self.n_labels, renewed, prior)

    def _label_representations(self) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Representations of each label, its mean or its rows, and where those of each label start."""
        (chosen, starts), width = self._rows_by_label, np.uint64(self.embeddings.shape[1])
        if self.settings.statistics == "means":
            means = np.empty((self.n_labels, width), dtype=np.float32)
            kernels.represent_means(self.rows.arrays, chosen, starts, self._embeddings(), width, means)
            return means, np.arange(self.n_labels + 1)
        hidden = np.empty((len(chosen), width), dtype=np.float32)
        kernels.represent(self.rows.arrays, chosen, self._embeddings(), width, hidden)
        return hidden, starts

    @cached_property
    def _rows_by_label(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows sorted by label, and where those of each label start; all, or a random sample of each label."""
        ids, indptr = self.targets.ids, self.targets.indptr
        row_of = np.repeat(np.arange(len(self.targets)), np.diff(indptr))
        order = self.random.permutation(len(ids))
        order = order[np.argsort(ids[order], kind="stable")]
        counts = np.bincount(ids, minlength=self.n_labels)
        width = self.embeddings.shape[1]
        if self.settings.statistics == "rows" and len(ids) * width > NUMBERS_TO_ASSIGN:
            most = max(1, NUMBERS_TO_ASSIGN // (width * self.n_labels))
            order, counts = order[_ranks(counts) < most], np.minimum(counts, most)
        return row_of[order], np.concatenate([[0], np.cumsum(counts)])

    def model(self) -> LearnedTreeModel:
        """The trained model."""
        tree, vectors = self.structure.as_tree()
        labels_a_row = 1.0
        if self.multi_label:
            labels_a_row = len(self.targets.ids) / max(1, int((np.diff(self.targets.indptr) > 0).sum()))
        embeddings = aligned(self.embeddings.shape)
        np.multiply(self.embeddings, self.scale, out=embeddings)
        weights = aligned((len(vectors), self.embeddings.shape[1]))
        weights[:] = self.weights[vectors]
        return LearnedTreeModel(
            tree=tree,
            dimension=self.settings.dimension,
            n_features=self.n_features,
            features=self.features,
            embeddings=embeddings,
            weights=weights,
            biases=self.biases[vectors],
            labels_a_row=labels_a_row,
            calibration=self.calibration,
        )


def ranges_between_assignments(n: int, done: int, every: int) -> Iterator[range]:
    """Ranges that cover 0 to n - 1 and end where the total, with `done` before, is a multiple of `every`.

    >>> list(ranges_between_assignments(10, 20, 8))
    [range(0, 4), range(4, 10)]
    """
    cuts = [*range((every - done) % every or every, n, every)] if every else []
    yield from map(range, [0, *cuts], [*cuts, n])


def _features_in_use(rows: SparseRows) -> NDArray[np.uint32] | None:
    """The columns that occur, or None if most of them do."""
    if rows.nnz >= FEW_FEATURES * rows.n_features:
        seen = np.zeros(rows.n_features, dtype=bool)
        seen[rows.indices[rows.indptr[0] : rows.indptr[-1]]] = True
        if seen.mean() >= FEW_FEATURES:
            return None
        return np.flatnonzero(seen).astype(np.uint32)
    return np.unique(rows.indices[rows.indptr[0] : rows.indptr[-1]])
