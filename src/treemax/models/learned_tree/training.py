"""Joint training of embeddings, node vectors and the tree.

Yacine Jernite, Anna Choromanska and David Sontag, "Simultaneous Learning of Trees and Representations for
Extreme Classification and Density Estimation", ICML 2017.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.labels import Targets, take_targets
from treemax.inputs.rows import SparseRows, take_rows
from treemax.models.calibration import Calibration, calibration_from_top_k, labels_to_rank
from treemax.models.learned_tree import kernels
from treemax.models.learned_tree.model import LearnedTreeModel, LearningState, aligned, padded, with_renumbered_features
from treemax.models.learned_tree.steps import INITIAL_SQUARES, ROWS_AT_ONCE, LearnedTreeSettings, Learner
from treemax.models.learned_tree.structure import RunningSums, Structure, ranks
from treemax.models.training.held_out import PASSES_WITH_ALL
from treemax.models.training.learning_rates import mean_squared_length
from treemax.parallel.threads import for_each, run_all

FEW_FEATURES = 0.5  # if a smaller fraction of the columns occurs, only these get embeddings
NUMBERS_TO_ASSIGN = 2**26  # bounds the memory of the representations for the assignment
MIN_PASSES, MIN_ROWS = 6, 20_000  # the latter over all passes
LARGEST_MEAN = 1e6  # bound of the values of a mean representation, since rows may have outliers


def suggested_passes(n_rows: int, multi_label: bool) -> int:
    """Return the default number of passes, half as many for multi-label rows, each of which teaches several labels.

    >>> suggested_passes(100, False), suggested_passes(1_000_000, False), suggested_passes(1_000_000, True)
    (50, 12, 6)
    """
    fewest = MIN_PASSES if multi_label else 2 * MIN_PASSES
    return min(50, max(fewest, -(-MIN_ROWS // n_rows)))


@dataclass
class Training(Learner):
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
    _threads: int = 1

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

    # --- steps ------------------------------------------------------------------------------------------

    def run(self, threads: int, assign_every: int = 0, assign_until: int = 0) -> Iterator[int]:
        """Run all epochs; yields the size of each batch. Labels are reassigned after every `assign_every` rows, until
        `assign_until`."""
        done, epochs, self._threads = 0, self.settings.epochs, threads
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
        ids, scores = self.model().top_k(rows, k, threads=self._threads)
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
        """Return the learning rate after the given fraction of the training."""
        return self.settings.rate * min(1.0, (1.0 - share) / max(1e-9, 1.0 - self.settings.hold))

    def _learn(self, order: NDArray[np.uint32], rate: float, seed: int) -> tuple[float, int]:
        return self._step(self.rows, self.targets, order, rate, seed, self._longest)

    # --- the tree ---------------------------------------------------------------------------------------

    def _label_counts(self) -> NDArray[np.int64]:
        return np.bincount(self.targets.ids, minlength=self.n_labels)

    def _label_representations(self) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        if self.settings.statistics == "means":
            return self._label_means(), np.arange(self.n_labels + 1)
        (chosen, starts), width = self._rows_by_label, np.uint64(self.embeddings.shape[1])
        hidden = np.empty((len(chosen), width), dtype=np.float32)
        kernels.represent(self.rows.arrays, chosen, self._embeddings(), width, hidden)
        return hidden, starts

    def _label_means(self) -> NDArray[np.float32]:
        """Return the mean representation of the rows of each label."""
        (chosen, starts), width = self._rows_by_label, np.uint64(self.embeddings.shape[1])
        means = np.empty((self.n_labels, width), dtype=np.float32)
        cuts = np.searchsorted(starts, np.linspace(0, starts[-1], 4 * self._threads + 1)[1:-1])

        def work(labels: tuple[int, int]) -> None:
            first, last = labels
            own = starts[first : last + 1]
            kernels.represent_means(self.rows.arrays, chosen, own, self._embeddings(), width, means[first:last])

        run_all(pairwise([0, *cuts.tolist(), self.n_labels]), work, self._threads)
        return means

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
            order, counts = order[ranks(counts) < most], np.minimum(counts, most)
        return row_of[order], np.concatenate([[0], np.cumsum(counts)])

    def model(self) -> LearnedTreeModel:
        """Return the model as it is now."""
        tree, vectors = self.structure.as_tree()
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
            labels_a_row=len(self.targets.ids) / max(1, self._n_labelled) if self.multi_label else 1.0,
            calibration=self.calibration,
        )

    def trained(self, learns_tree: bool) -> LearnedTreeModel:
        """Return the model with all that `partial_fit` and `node_quality` need."""
        _, vectors = self.structure.as_tree()
        statistics: dict[str, Any] = {}
        if learns_tree and self.settings.statistics == "running":
            statistics = self.sums.by_rank(self.structure)
        else:  # of a fixed tree for `node_quality` alone
            statistics = {"means": np.clip(self._label_means(), -LARGEST_MEAN, LARGEST_MEAN)}
        learning = LearningState(
            self.squares[vectors], self.feature_squares, float(self.scale), self._n_labelled, len(self.rows), **statistics
        )  # fmt: skip
        return replace(self.model(), learning=learning)

    @property
    def _n_labelled(self) -> int:
        """The number of rows with labels."""
        return int((np.diff(self.targets.indptr) > 0).sum())


def ranges_between_assignments(n: int, done: int, every: int) -> Iterator[range]:
    """Return ranges that cover 0 to n - 1 and end where the total, with `done` before, is a multiple of `every`.

    >>> list(ranges_between_assignments(10, 20, 8))
    [range(0, 4), range(4, 10)]
    """
    cuts = [*range((every - done) % every or every, n, every)] if every else []
    yield from map(range, [0, *cuts], [*cuts, n])


def _features_in_use(rows: SparseRows) -> NDArray[np.uint32] | None:
    """Return the columns that occur, or None if most of them do."""
    if rows.nnz >= FEW_FEATURES * rows.n_features:
        seen = np.zeros(rows.n_features, dtype=bool)
        seen[rows.indices[rows.indptr[0] : rows.indptr[-1]]] = True
        if seen.mean() >= FEW_FEATURES:
            return None
        return np.flatnonzero(seen).astype(np.uint32)
    return np.unique(rows.indices[rows.indptr[0] : rows.indptr[-1]])
