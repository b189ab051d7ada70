"""A trained LearnedTree: embeddings of features, the tree, and the vectors of its nodes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treemax.explanations import Trace
from treemax.inputs.conversions import known_features, sparsified
from treemax.inputs.rows import Rows, SparseRows, read_only
from treemax.kernels.vector import WIDTH
from treemax.modelfile import LARGEST
from treemax.models.calibration import Calibration
from treemax.models.learned_tree import search_kernels
from treemax.models.learned_tree.tracing import trace_labels
from treemax.models.trained.parts import expect, expect_counts, expect_squares, real_number, truth, whole_number
from treemax.models.trained.searching import (
    SparseProbabilities,
    TopKAllowed,
    allowed_among,
    empty_top_k,
    largest_weights,
    search_above,
    search_rows,
    two_searches,
)
from treemax.models.trained.tracing import row_entries
from treemax.trees import Tree

Floats = NDArray[np.float32]
LARGEST_FACTOR = 1e12  # bound on embeddings and node vectors, which are multiplied by each other and by feature values


def padded(dimension: int) -> int:
    """Return the dimension rounded up to a multiple of sixteen.

    >>> padded(50), padded(64)
    (64, 64)
    """
    return -(-dimension // WIDTH) * WIDTH


def aligned(shape: tuple[int, ...]) -> Floats:
    """Return zeros aligned to a cache line: loads that straddle two lines are slower."""
    n = int(np.prod(shape))
    room = np.zeros(n + WIDTH, dtype=np.float32)
    skip = (-room.ctypes.data % 64) // 4
    return room[skip : skip + n].reshape(shape)


def vectors_of(n_children: NDArray[Any]) -> NDArray[np.int64]:
    """Return the number of vectors of nodes with `n_children` children: one suffices for two.

    >>> vectors_of(np.array([0, 1, 2, 3])).tolist()
    [0, 0, 1, 3]
    """
    return np.where(n_children > 2, n_children, np.maximum(n_children - 1, 0)).astype(np.int64)


@dataclass(frozen=True)
class LearningState:
    """What training continues with: AdaGrad's sums for vectors and embeddings, the scale of the rows, the number of rows
    with labels, and the number of rows before the last assignment. Where the tree is learned, also the mean representation
    of each label, or running sums: their sorted keys inner node * labels + label, the sums and the numbers of examples.
    """

    squares: Floats
    feature_squares: Floats
    scale: float
    n_labelled: int
    assigned_at: int
    means: Floats | None = None
    keys: NDArray[np.int64] | None = None
    sums: Floats | None = None
    seen: Floats | None = None

    def without_labels(
        self, kept: NDArray[np.bool_], before: Tree, tree: Tree, nodes: NDArray[np.int64]
    ) -> LearningState:
        """Return the statistics of the `kept` labels; those of nodes that lost children start anew."""
        if self.means is not None:
            return replace(self, means=self.means[kept])
        if self.keys is None or self.sums is None or self.seen is None:
            return self
        rank = np.full(int((before.n_children > 0).sum()), -1)
        inner = nodes[tree.n_children > 0]
        whole = before.n_children[inner] == tree.n_children[tree.n_children > 0]
        old_rank = np.cumsum(before.n_children > 0) - 1
        rank[old_rank[inner[whole]]] = np.flatnonzero(whole)
        node, label = np.divmod(self.keys, len(kept))
        stays = kept[label] & (rank[node] >= 0)
        keys = rank[node[stays]] * int(kept.sum()) + (np.cumsum(kept) - 1)[label[stays]]
        return replace(self, keys=keys, sums=self.sums[stays], seen=self.seen[stays])

    def to_parts(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return a JSON-serialisable header and arrays."""
        parts = {name: value for name, value in vars(self).items() if value is not None}
        arrays = {f"learning/{name}": value for name, value in parts.items() if isinstance(value, np.ndarray)}
        return {name: value for name, value in parts.items() if f"learning/{name}" not in arrays}, arrays

    @classmethod
    def from_parts(
        cls, header: dict[str, Any], arrays: dict[str, NDArray[Any]], model: LearnedTreeModel
    ) -> LearningState:
        """Restore the state of a model from `to_parts`; raises ValueError if the parts are inconsistent."""
        n_labels, width = model.tree.n_labels, model.weights.shape[1]
        statistics: dict[str, Any] = {}
        if "learning/means" in arrays:
            statistics["means"] = expect(arrays, "learning/means", np.float32, (n_labels, width))
        elif "learning/keys" in arrays:
            keys, n_inner = arrays["learning/keys"], int((model.tree.n_children > 0).sum())
            expect(arrays, "learning/keys", np.int64, (len(keys),))
            if len(keys) and (keys[0] < 0 or keys[-1] >= n_inner * n_labels or (np.diff(keys) <= 0).any()):
                raise ValueError("the running sums do not fit the tree")
            columns = arrays["learning/sums"].shape[-1]
            if columns < model.tree.n_children.max():
                raise ValueError("the running sums do not fit the children")
            statistics = {
                "keys": keys,
                "sums": expect_counts(arrays, "learning/sums", np.float32, (len(keys), columns), most=LARGEST),
                "seen": expect_counts(arrays, "learning/seen", np.float32, (len(keys),), most=LARGEST),
            }
        return cls(
            expect_squares(arrays, "learning/squares", (len(model.weights),)),
            expect_squares(arrays, "learning/feature_squares", (len(model.embeddings),)),
            real_number("scale", header["scale"], least=1e-30),
            whole_number("n_labelled", header["n_labelled"]), whole_number("assigned_at", header["assigned_at"]), **statistics,
        )  # fmt: skip


@dataclass(frozen=True)
class LearnedTreeModel:
    """Embeddings of the features seen in training (all, or `features`), and a vector and a bias for every child of a
    node (one for two children), in the order of the tree.

    The tree models the probability of a label drawn at random from the row's labels. In a multi-label model it is
    multiplied by `labels_a_row`, the mean number of labels per row.
    """

    tree: Tree
    dimension: int
    n_features: int
    features: NDArray[np.uint32] | None
    embeddings: Floats
    weights: Floats
    biases: Floats
    labels_a_row: float = 1.0
    calibration: Calibration | None = None  # from the held-out rows
    learning: LearningState | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields, without what was derived: other threads may add to it while this is copied."""
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}

    @cached_property
    def first_vectors(self) -> NDArray[np.int64]:
        """The first vector of every node."""
        counts = vectors_of(self.tree.n_children)
        return np.concatenate([[0], np.cumsum(counts)[:-1]])

    @cached_property
    def _arrays(self) -> tuple[Any, ...]:
        """The arrays of `search_kernels.SearchTree`."""
        tree = self.tree
        arrays: list[NDArray[Any]] = [
            tree.first_child, tree.n_children, tree.label, self.first_vectors, self.weights.ravel(), self.biases,
        ]  # fmt: skip
        widest = int(tree.n_children.max())
        width = np.uint64(self.embeddings.shape[1])
        return (read_only(self.embeddings.ravel()), width, widest, *map(read_only, arrays))

    def known(self, rows: Rows) -> SparseRows:
        """Return the rows with features renumbered as rows of the embeddings; features not seen in training are dropped."""
        sparse = known_features(sparsified(rows), self.n_features)
        if self.features is None:
            return sparse
        return with_renumbered_features(sparse, self.features)

    def columns(self, row: Rows) -> NDArray[np.uint32]:
        """Return the columns of the features of one row in `known`."""
        columns, _ = row_entries(row, self.n_features)
        return columns if self.features is None else columns[np.isin(columns, self.features)]

    def _arguments(self, rows: SparseRows) -> tuple[Any, ...]:
        known = self.known(rows)
        return tuple(known.arrays), self._arrays

    # --- answers ----------------------------------------------------------------------------------------

    def top_k(
        self, rows: Rows, k: int, search: int | None = None, threads: int = 1
    ) -> tuple[NDArray[np.int64], Floats]:
        """Return the ids and probabilities of the k best labels of each row; `search` is the beam width, None is exact."""
        ids, probabilities = empty_top_k(len(rows), k)
        if search is None:
            kernel, option = search_kernels.best_exact, max(1, self.tree.depth)
        else:
            kernel, option = search_kernels.best_beam, search
        search_rows(kernel, self._arguments, rows, threads, (option,), ids, probabilities)
        return ids, self._per_row(probabilities)

    def top_k_weighted(
        self, rows: Rows, k: int, weights: Floats, search: int | None = None, threads: int = 1
    ) -> tuple[NDArray[np.int64], Floats]:
        """Return the k labels with the largest products of probability and weight, without subtrees of weight 0."""
        tree = self.tree
        ids, probabilities = empty_top_k(len(rows), k)
        beam = len(tree) if search is None else min(search, len(tree))
        of_nodes = largest_weights(self, tree.parent, tree.leaf_of, weights, len(tree)).values
        options = read_only(tree.level), tree.depth, beam, of_nodes
        search_rows(search_kernels.best_weighted, self._arguments, rows, threads, options, ids, probabilities)
        return ids, self._per_row(probabilities)

    def top_k_allowed(
        self, rows: Rows, k: int, n_first: int, weights: Floats, search: int | None = None, threads: int = 1
    ) -> TopKAllowed:
        """Return the `n_first` best of all labels and the k best with a weight; exact search finds them together."""
        if search is not None:
            return two_searches(self, rows, k, n_first, weights, search, threads)
        tree = self.tree
        of_nodes = largest_weights(self, tree.parent, tree.leaf_of, weights, len(tree))
        if n := of_nodes.n_to_filter(k, n_first):
            return allowed_among(*self.top_k(rows, n, search, threads), k, n_first, weights)
        found = TopKAllowed.empty(len(rows), n_first, k)
        options = max(1, tree.depth), of_nodes.values
        search_rows(search_kernels.best_allowed, self._arguments, rows, threads, options, *found)
        return found._replace(of_first=self._per_row(found.of_first), probabilities=self._per_row(found.probabilities))

    def above(self, rows: Rows, threshold: float, search: int | None = None, threads: int = 1) -> SparseProbabilities:
        """Return all labels with at least this probability."""
        depth = max(1, self.tree.depth)

        def arguments(part: SparseRows) -> tuple[Any, ...]:
            return (*self._arguments(part), depth)

        found = search_above(search_kernels.all_above, arguments, rows, threshold / self.labels_a_row, threads)
        return SparseProbabilities(found.rows, found.ids, self._per_row(found.probabilities))

    def probabilities(self, rows: Rows, search: int | None = None, threads: int = 1) -> Floats:
        """Return the probability of every label."""
        out = np.empty((len(rows), self.tree.n_labels), dtype=np.float32)
        search_rows(search_kernels.probabilities_of_all, self._arguments, rows, threads, (), out)
        return self._per_row(out)

    def of_labels(self, rows: Rows, ids: NDArray[np.int64], search: int | None = None, threads: int = 1) -> Floats:
        """Return the probabilities of given labels."""
        out = np.empty(ids.shape, dtype=np.float32)
        options = (read_only(self.tree.parent), read_only(self.tree.leaf_of))
        search_rows(search_kernels.probabilities_of_given, self._arguments, rows, threads, options, ids, out)
        return self._per_row(out)

    def trace(self, row: Rows, ids: list[int], scores: list[float], search: int | None = None) -> Trace:
        """Return the paths to labels, for `explain`."""
        return trace_labels(self, row, ids)

    def _per_row(self, probabilities: Floats) -> Floats:
        if self.labels_a_row == 1.0:
            return probabilities
        return np.minimum(probabilities * np.float32(self.labels_a_row), np.float32(1.0))

    def without_labels(self, kept: NDArray[np.bool_]) -> LearnedTreeModel:
        """Return the model of the `kept` labels, renumbered; nodes without labels below them are removed.

        Of three or more children of which two are left, the difference of their vectors is the one vector of both.
        """
        tree, nodes = self.tree.without_labels(kept)
        new = replace(self, tree=tree, weights=self.weights[:0], biases=self.biases[:0], learning=None)
        child = np.arange(1, len(tree))
        parent = tree.parent[child]
        before = nodes[parent]  # their parents in this tree
        source = self.first_vectors[before] + nodes[child] - self.tree.first_child[before]
        place = child - tree.first_child[parent]
        many, second = tree.n_children[parent] > 2, (tree.n_children[parent] == 2) & (place == 1)
        same = second & (self.tree.n_children[before] == 2)
        pair = np.flatnonzero(second & ~same)
        target = np.where(many, new.first_vectors[parent] + place, new.first_vectors[parent])
        n_vectors = int(vectors_of(tree.n_children).sum())

        def moved(array: Floats, differ: bool = True) -> Floats:
            out = np.zeros((n_vectors, *array.shape[1:]), dtype=np.float32)
            out[target[many]] = array[source[many]]
            out[target[same]] = array[self.first_vectors[before[same]]]
            one, other = array[source[pair]], array[source[pair - 1]]
            out[target[pair]] = one - other if differ else np.maximum(one, other)
            return out

        weights = aligned((n_vectors, self.weights.shape[1]))
        weights[:] = moved(self.weights)
        learning = None if self.learning is None else self.learning.without_labels(kept, self.tree, tree, nodes)
        if learning is not None and self.learning is not None:
            learning = replace(learning, squares=moved(self.learning.squares, differ=False))
        return replace(new, weights=weights, biases=moved(self.biases), learning=learning)

    # --- to a file and back -----------------------------------------------------------------------------

    def to_parts(self, resume: bool = False) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return a JSON-serialisable header and arrays."""
        header: dict[str, Any] = {
            "dimension": self.dimension, "n_features": self.n_features, "labels_a_row": self.labels_a_row,
            "some_features": self.features is not None,
        }  # fmt: skip
        arrays = {f"tree/{name}": array for name, array in self.tree.arrays().items()}
        arrays |= {"embeddings": self.embeddings, "weights": self.weights, "biases": self.biases}
        if self.features is not None:
            arrays["features"] = self.features
        if resume and self.learning is not None:
            header["learning"], more = self.learning.to_parts()
            arrays |= more
        return header, arrays

    @classmethod
    def from_parts(cls, header: dict[str, Any], arrays: dict[str, NDArray[Any]], n_labels: int) -> LearnedTreeModel:
        """Restore a model from `to_parts`; raises ValueError if the parts are inconsistent."""
        tree = Tree.from_arrays(
            {name.removeprefix("tree/"): arrays[name] for name in ("tree/n_children", "tree/label")}
        )
        if tree.n_labels != n_labels:
            raise ValueError("the tree does not match the labels")
        dimension, n_features = (whole_number(name, header[name], least=1) for name in ("dimension", "n_features"))
        labels_a_row = real_number("labels_a_row", header["labels_a_row"], least=1e-30)
        features, n_rows = None, n_features
        if truth("some_features", header["some_features"]):
            features = arrays["features"]
            n_rows = len(features)
            expect(arrays, "features", np.uint32, (n_rows,))
            if (np.diff(features.astype(np.int64)) <= 0).any() or (n_rows and features[-1] >= n_features):
                raise ValueError("the features are not sorted, or exceed n_features")
        n_vectors = int(vectors_of(tree.n_children).sum())
        width = padded(dimension)
        model = cls(
            tree, dimension, n_features, features,
            _factors(arrays, "embeddings", (max(1, n_rows), width)), _factors(arrays, "weights", (n_vectors, width)),
            _factors(arrays, "biases", (n_vectors,)), labels_a_row,
        )  # fmt: skip
        if "learning" not in header:
            return model
        return replace(model, learning=LearningState.from_parts(header["learning"], arrays, model))


def with_renumbered_features(rows: SparseRows, features: NDArray[np.uint32]) -> SparseRows:
    """Return the rows with each column replaced by its index in `features`, which is sorted; other columns are dropped."""
    first, last = rows.indptr[0], rows.indptr[-1]
    indices, values = rows.indices[first:last], rows.values[first:last]
    places = np.searchsorted(features, indices)
    known = features[np.minimum(places, len(features) - 1)] == indices if len(features) else indices < 0
    starts = np.concatenate([[0], np.cumsum(known)])[rows.indptr - first]
    return SparseRows(starts, places[known].astype(np.uint32), values[known], max(1, len(features)))


def _factors(arrays: dict[str, NDArray[Any]], name: str, shape: tuple[int, ...]) -> Floats:
    """Return an array of a file as `expect`; raise ValueError if scores could overflow."""
    return expect_counts(arrays, name, np.float32, shape, least=-LARGEST_FACTOR, most=LARGEST_FACTOR)
