"""Algorithm 1 on a stream: labels and features are added as they come, and labels are assigned as rows arrive."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treemax.explanations import Trace
from treemax.inputs.conversions import known_features, sparsified
from treemax.inputs.labels import Targets
from treemax.inputs.rows import Rows, SparseRows, read_only
from treemax.kernels.validation import squared_lengths
from treemax.models.learned_tree import stream_kernels
from treemax.models.learned_tree.model import Floats, LearnedTreeModel, LearningState, aligned, padded
from treemax.models.learned_tree.steps import INITIAL_SQUARES, ROWS_AT_ONCE, LearnedTreeSettings, Learner
from treemax.models.learned_tree.structure import RunningSums, Structure
from treemax.models.trained.searching import SparseProbabilities, TopKAllowed
from treemax.models.trained.tracing import row_entries
from treemax.models.training.learning_rates import power_of_two
from treemax.parallel.threads import run_all
from treemax.trees import Tree

FIRST_ASSIGNMENT = 1000  # rows, and the least between two assignments
GROWTH = (
    2.0  # factor by which the number of rows grows between assignments; chosen on validation rows of icd and wordnet
)
HORIZON = 100  # number of examples of a label that its running mean representation averages over
LONGEST = 5.0  # rows longer than this multiple of the mean length are shortened, since AdaGrad never forgets them
RESTARTED_SQUARES = np.float32(1.0)  # initial sums of squares in a model that was saved without its learning state


@dataclass(frozen=True)
class StreamView(LearnedTreeModel):
    """The model of a stream, which shares its arrays: vectors and embeddings are in any order."""

    vector_starts: NDArray[np.int64] | None = None
    places: NDArray[np.int32] | None = None
    scale: float = 1.0

    @property
    def first_vectors(self) -> NDArray[np.int64]:
        assert self.vector_starts is not None
        return self.vector_starts

    def known(self, rows: Rows) -> SparseRows:
        assert self.places is not None
        return _placed(known_features(sparsified(rows), self.n_features), self.places, self.scale)

    def columns(self, row: Rows) -> NDArray[np.uint32]:
        assert self.places is not None
        columns, _ = row_entries(row, self.n_features)
        return columns[self.places[columns] >= 0]


class GrowingTree(Learner):
    """A tree that learns from a stream. Labels and features have capacity to grow, and no fixed order.

    `means` are the mean representations of labels. Without them, and without running sums, the tree is not changed.
    """

    def __init__(
        self, tree: Tree, settings: LearnedTreeSettings, arity: int, n_features: int, scale: float, grows: bool = True
    ) -> None:
        self.settings, self.arity, self.n_features, self.grows = settings, arity, n_features, grows
        self.scale = np.float32(scale)
        self.structure = Structure.with_capacity(tree, arity) if grows else Structure.of_tree(tree)
        width = padded(settings.dimension)
        self.weights = aligned((self.structure.n_vectors, width))
        self.biases = np.zeros(self.structure.n_vectors, dtype=np.float32)
        self.squares = np.full(self.structure.n_vectors, INITIAL_SQUARES)
        self.embeddings, self.n_embeddings = aligned((1, width)), 0
        self.feature_squares = np.full(1, INITIAL_SQUARES)
        self.places = np.full(n_features, -1, dtype=np.int32)  # of the embedding of each feature
        self.paths, self.sums = self.structure.paths(), RunningSums.empty(arity)
        self.means: Floats | None = None
        self.counts: NDArray[np.int64] = np.zeros(self.n_labels, dtype=np.int64)
        self.labels_a_row = 1.0  # in a multi-label stream, from `n_labelled` rows with labels
        self.n_labelled = self.assigned_at = 0

    def start_statistics(self) -> None:
        """Begin to collect what assignments need."""
        if self.settings.statistics == "running":
            self._update_paths(np.zeros(len(self.structure.n_children), dtype=bool))
        else:
            self.means = np.zeros((self.n_labels, self.embeddings.shape[1]), dtype=np.float32)

    @classmethod
    def from_model(
        cls, model: LearnedTreeModel, settings: LearnedTreeSettings, arity: int, grows: bool, learns_tree: bool,
        counts: NDArray[np.int64],
    ) -> GrowingTree:  # fmt: skip
        """Return a trained model, to be trained further; `counts` are the examples of each label."""
        state = model.learning
        new = cls(model.tree, settings, arity, model.n_features, power_of_two(state.scale if state else 1.0), grows)
        features = np.arange(model.n_features) if model.features is None else model.features.astype(np.int64)
        new._ensure_embeddings(len(features))
        new.embeddings[: len(features)] = model.embeddings[: len(features)] / new.scale
        new.feature_squares[: len(features)] = state.feature_squares[: len(features)] if state else RESTARTED_SQUARES
        new.places[features] = np.arange(len(features))
        new.n_embeddings = len(features)
        _, vectors = new.structure.as_tree()
        new.weights[vectors], new.biases[vectors] = model.weights, model.biases
        new.squares[vectors] = state.squares if state else RESTARTED_SQUARES
        new.labels_a_row = model.labels_a_row
        if state is None:
            new.n_labelled = round(int(counts.sum()) / model.labels_a_row)
        else:
            new.n_labelled, new.assigned_at = state.n_labelled, state.assigned_at
            new._continue_statistics(state, learns_tree)
        return new

    def _continue_statistics(self, state: LearningState, learns_tree: bool) -> None:
        if not learns_tree:
            return
        if self.settings.statistics == "means" and state.means is not None:
            self.means = np.array(state.means)
        elif self.settings.statistics == "running" and state.sums is not None and state.sums.shape[1] == self.arity:
            places = np.zeros(0, dtype=np.uint32)
            self.sums = RunningSums(np.array(state.keys), np.array(state.sums), np.array(state.seen), places)
            self._update_paths(np.zeros(len(self.structure.n_children), dtype=bool))

    # --- growth -----------------------------------------------------------------------------------------

    def grow(self, n_features: int, n_labels: int) -> None:
        """Add features and labels."""
        if n_features > self.n_features:
            more = np.full(n_features - self.n_features, -1, dtype=np.int32)
            self.places = np.concatenate([self.places, more])
            self.n_features = n_features
        if n_labels > self.n_labels:
            self._add_labels(n_labels)
        self._view = None

    def _add_labels(self, n_labels: int) -> None:
        """Put each new label under the shallowest node with room; if there is none, a leaf becomes such a node."""
        before, codes = self.n_labels, self.structure.codes()
        used = codes[codes >= 0]
        most_new = -(-(n_labels - before) // (self.arity - 1)) + 1
        self._ensure_nodes(max(len(used) + most_new, -(-(n_labels - 1) // (self.arity - 1)) + 1))
        children, n_children, arity = self.structure.children, self.structure.n_children, self.arity
        open_nodes = deque(used[n_children[used] < arity].tolist())
        places = np.concatenate([node * arity + np.arange(n_children[node]) for node in used])
        leaves = deque(places[children[places] < 0].tolist())  # in breadth-first order
        is_free = np.ones(len(n_children), dtype=bool)
        is_free[used] = False
        free = iter(np.flatnonzero(is_free).tolist())
        for label in range(before, n_labels):
            while open_nodes and n_children[open_nodes[0]] == arity:
                open_nodes.popleft()
            if not open_nodes:
                place, node = leaves.popleft(), next(free)
                n_children[node] = 0
                leaves.append(self._add_child(node, int(children[place])))
                children[place] = node
                open_nodes.append(node)
            leaves.append(self._add_child(open_nodes[0], -1 - label))
        self.structure.n_labels = n_labels
        if self.means is not None:
            self.means = np.concatenate([self.means, np.zeros((n_labels - before, self.means.shape[1]), np.float32)])
        if self._sums_probabilities:
            self.sums = self.sums.with_labels(before, n_labels)
            self._update_paths(np.zeros(len(n_children), dtype=bool))
        self.paths = self.structure.paths()
        self._tree = None

    def _add_child(self, node: int, code: int) -> int:
        """Add a child to a node, whose other children keep their proportions; returns its place."""
        structure, n = self.structure, int(self.structure.n_children[node])
        first = int(structure.first_vectors[node])
        if n == 2:  # one vector becomes two
            for array in (self.weights, self.biases):
                array[first + 1] = array[first] / 2
                array[first] = -array[first] / 2
            self.squares[first + 1] = self.squares[first]
        if n > 0:
            new = first if n == 1 else first + n
            self.weights[new], self.biases[new], self.squares[new] = 0.0, 0.0, INITIAL_SQUARES
        place = int(structure.starts[node]) + n
        structure.children[place] = code
        structure.n_children[node] += 1
        return place

    def _ensure_nodes(self, room: int) -> None:
        if room <= len(self.structure.n_children):
            return
        self.structure = self.structure.enlarged(room + room // 4, self.arity)
        n = self.structure.n_vectors
        self.weights, self.biases = _enlarged(self.weights, n), _enlarged(self.biases, n)
        self.squares = _enlarged(self.squares, n, INITIAL_SQUARES)

    def _ensure_embeddings(self, n: int) -> None:
        if n <= len(self.embeddings):
            return
        room = n + n // 2
        self.embeddings = _enlarged(self.embeddings, room)
        self.feature_squares = _enlarged(self.feature_squares, room, INITIAL_SQUARES)

    def _add_features(self, rows: SparseRows, seed: int) -> None:
        """Draw embeddings of the features that the rows have and the model has not."""
        indices = rows.indices[rows.indptr[0] : rows.indptr[-1]]
        new = np.unique(indices[self.places[indices] < 0]).astype(np.int64)
        if not len(new):
            return
        begin, self.n_embeddings = self.n_embeddings, self.n_embeddings + len(new)
        self._ensure_embeddings(self.n_embeddings)
        dimension = self.settings.dimension
        most = np.float32(1.0 / dimension)
        stream_kernels.draw_embeddings(
            new, np.uint64(seed), dimension, most, self.embeddings[begin : self.n_embeddings]
        )
        self.places[new] = np.arange(begin, self.n_embeddings)

    # --- learning ---------------------------------------------------------------------------------------

    def learn(
        self, rows: Rows, targets: Targets, counts: NDArray[np.int64], n_before: int, seed: int, threads: int,
        assign_every: int | None, multi_label: bool,
    ) -> Iterator[int]:  # fmt: skip
        """Learn the rows in order; yields the size of each block.

        `n_before` rows came before, and `counts` are the examples of each label, to which the caller adds each block.
        """
        self.counts = counts
        sparse = sparsified(rows)
        self._add_features(sparse, seed)
        placed = self._shortened(_placed(sparse, self.places))
        longest = int(np.diff(placed.indptr).max(initial=0)) + 1
        start = 0
        while start < len(placed):
            due = self._next_assignment(assign_every)
            if due is not None and n_before + start >= due:
                self.assign()
                self.assigned_at = n_before + start
                due = self._next_assignment(assign_every)
            stop = min(start + threads * ROWS_AT_ONCE, len(placed))
            if due is not None:
                stop = min(stop, due - n_before)
            self._learn_block(placed, targets, start, stop, seed + n_before, threads, longest)
            if multi_label and self.n_labelled:
                n_labels = int(self.counts.sum() + targets.indptr[stop] - targets.indptr[start])
                self.labels_a_row = n_labels / self.n_labelled
            self._view = None
            yield stop - start
            start = stop

    def _learn_block(
        self, rows: SparseRows, targets: Targets, start: int, stop: int, seed: int, threads: int, longest: int
    ) -> None:
        """Learn some rows; several threads update without locks."""

        def work(begin: int) -> None:
            order = np.arange(begin, min(begin + ROWS_AT_ONCE, stop), dtype=np.uint32)
            self._step(rows, targets, order, self.settings.rate, seed + begin, longest)

        run_all(range(start, stop, ROWS_AT_ONCE), work, threads)
        label_starts = targets.indptr[start : stop + 1]
        self.n_labelled += int((np.diff(label_starts) > 0).sum())
        if self.means is not None:
            stream_kernels.update_means(
                rows[start:stop].arrays, label_starts, targets.ids, self._embeddings(), self.counts.copy(), HORIZON,
                self.means,
            )  # fmt: skip

    def _shortened(self, rows: SparseRows) -> SparseRows:
        """Return the rows, those that are far too long shortened."""
        lengths = np.sqrt(squared_lengths(rows.indptr, rows.values)) * float(self.scale)
        if lengths.max(initial=0.0) <= LONGEST:
            return rows
        factors = np.repeat(LONGEST / np.maximum(lengths, LONGEST), np.diff(rows.indptr))
        return replace(rows, values=(rows.values * factors).astype(np.float32))

    def _next_assignment(self, every: int | None) -> int | None:
        """Return the number of rows at which labels are assigned next; None if the tree is not learned."""
        if self.means is None and not self._sums_probabilities:
            return None
        if every is None:
            return max(self.assigned_at + FIRST_ASSIGNMENT, math.ceil(GROWTH * self.assigned_at))
        return self.assigned_at + every

    @property
    def _sums_probabilities(self) -> bool:
        return len(self.sums.places) > 0

    def assign(self) -> None:
        super().assign()
        self._tree = None

    def _label_counts(self) -> NDArray[np.int64]:
        return self.counts

    def _label_representations(self) -> tuple[Floats, NDArray[np.int64]]:
        assert self.means is not None
        return self.means, np.arange(self.n_labels + 1)

    # --- answers ----------------------------------------------------------------------------------------

    _tree: tuple[Tree, NDArray[np.int64]] | None = None
    _view: StreamView | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the view, which shares arrays."""
        return {name: value for name, value in vars(self).items() if name not in ("_view", "_most_scores")}

    def view(self) -> StreamView:
        """Return the model as it is now."""
        view = self._view
        if view is None:
            tree, vector_starts = self._current_tree()
            view = self._view = StreamView(
                tree, self.settings.dimension, self.n_features, None, self.embeddings, self.weights, self.biases,
                self.labels_a_row, vector_starts=vector_starts, places=self.places, scale=float(self.scale),
            )  # fmt: skip
        return view

    def _current_tree(self) -> tuple[Tree, NDArray[np.int64]]:
        """Return the tree, and the first vector of each of its nodes."""
        found = self._tree
        if found is None:
            codes = self.structure.codes()
            starts = np.where(codes >= 0, self.structure.first_vectors[np.maximum(codes, 0)], 0)
            found = self._tree = self.structure.tree_of(codes), starts
        return found

    @property
    def tree(self) -> Tree:
        return self._current_tree()[0]

    def top_k(self, *arguments: Any, **options: Any) -> tuple[NDArray[np.int64], Floats]:
        """Return the ids and probabilities of the k best labels of each row."""
        return self.view().top_k(*arguments, **options)

    def top_k_weighted(self, *arguments: Any, **options: Any) -> tuple[NDArray[np.int64], Floats]:
        """Return the k labels with the largest products of probability and weight."""
        return self.view().top_k_weighted(*arguments, **options)

    def top_k_allowed(self, *arguments: Any, **options: Any) -> TopKAllowed:
        """Return the best of all labels and the k best of those with a weight."""
        return self.view().top_k_allowed(*arguments, **options)

    def above(self, *arguments: Any, **options: Any) -> SparseProbabilities:
        """Return all labels with at least a probability."""
        return self.view().above(*arguments, **options)

    def probabilities(self, *arguments: Any, **options: Any) -> Floats:
        """Return the probability of every label."""
        return self.view().probabilities(*arguments, **options)

    def of_labels(self, *arguments: Any, **options: Any) -> Floats:
        """Return the probabilities of given labels."""
        return self.view().of_labels(*arguments, **options)

    def trace(self, *arguments: Any, **options: Any) -> Trace:
        """Return the paths to labels, for `explain`."""
        return self.view().trace(*arguments, **options)

    # --- to a file --------------------------------------------------------------------------------------

    def packed(self) -> LearnedTreeModel:
        """Return the model in the order of its tree and its features."""
        tree, vectors = self.structure.as_tree()
        features = np.flatnonzero(self.places >= 0)
        rows = self.places[features]
        statistics: dict[str, Any] = {} if self.means is None else {"means": self.means}
        if self._sums_probabilities:
            statistics = self.sums.by_rank(self.structure)
        embeddings = aligned((max(1, len(rows)), self.embeddings.shape[1]))
        squares = np.full(len(embeddings), INITIAL_SQUARES)
        embeddings[: len(rows)], squares[: len(rows)] = self.embeddings[rows] * self.scale, self.feature_squares[rows]
        state = LearningState(
            self.squares[vectors], squares, float(self.scale), self.n_labelled, self.assigned_at, **statistics
        )
        return LearnedTreeModel(
            tree, self.settings.dimension, self.n_features,
            None if len(features) == self.n_features else features.astype(np.uint32), embeddings, self.weights[vectors],
            self.biases[vectors], self.labels_a_row, learning=state,
        )  # fmt: skip

    def without_labels(self, kept: NDArray[np.bool_]) -> LearnedTreeModel:
        """Return the model of the `kept` labels, renumbered."""
        return self.packed().without_labels(kept)

    def to_parts(self, resume: bool = False) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return a JSON-serialisable header and arrays."""
        return self.packed().to_parts(resume)


def _placed(rows: SparseRows, places: NDArray[np.int32], scale: float = 1.0) -> SparseRows:
    """Return the rows with each feature replaced by the place of its embedding, without features that have none."""
    first, last = rows.indptr[0], rows.indptr[-1]
    found, values = places[rows.indices[first:last]], rows.values[first:last]
    known = found >= 0
    starts = rows.indptr - first
    if not known.all():
        starts, found, values = np.concatenate([[0], np.cumsum(known)])[starts], found[known], values[known]
    return SparseRows(starts, found.astype(np.uint32), read_only(values * np.float32(scale)), max(1, len(places)))


def _enlarged(array: NDArray[Any], n: int, fill: Any = 0.0) -> NDArray[Any]:
    """Return a copy with capacity for n entries."""
    new = aligned((n, *array.shape[1:]))
    new[: len(array)], new[len(array) :] = array, fill
    return new
