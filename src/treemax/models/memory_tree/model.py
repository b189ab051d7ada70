"""A trained contextual memory tree: the rows it remembers, nodes, routers and a scorer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treemax.explanations import Trace
from treemax.inputs.conversions import ROWS_AT_ONCE, blocks, known_features, normalized, sparsified
from treemax.inputs.labels import ALL_ONE, Targets
from treemax.inputs.rows import Rows, SparseRows, ascends, read_only
from treemax.models.memory_tree import kernels
from treemax.models.memory_tree.kernels import (
    DEEPEST,
    INSERTED,
    NODES,
    NONE,
    REGRESSORS,
    Memories,
    Nodes,
    Options,
    Scorer,
    Workspace,
)
from treemax.models.memory_tree.tracing import trace_labels
from treemax.models.trained.online_trees import OnlineTreeModel
from treemax.models.trained.parts import (
    check_memory,
    expect,
    expect_counts,
    expect_squares,
    truth,
    whole_number,
    whole_numbers,
)
from treemax.models.trained.scorer_parts import regressors_without, scorer_arrays, scorers_from_arrays
from treemax.models.trained.scorers import Scorers, empty_scorers, enlarged_array, prediction_scorers
from treemax.models.trained.searching import TopKAllowed
from treemax.models.training.finite import LARGEST_WEIGHT
from treemax.parallel.threads import run_all
from treemax.trees import NodeLabels


@dataclass
class MemoryStore:
    """The remembered rows and their labels, in arrays with capacity for more."""

    n: int
    rows: tuple[NDArray[Any], ...]  # a matrix; or indptr, indices and values
    starts: NDArray[np.int64]
    labels: NDArray[np.uint32]
    following: NDArray[np.int64]  # of each memory: the next in its leaf, or NONE

    @property
    def is_sparse(self) -> bool:
        return len(self.rows) == 3

    def view(self) -> Memories:
        """Return the memories as kernels read them."""
        starts, labels = read_only(self.starts[: self.n + 1]), read_only(self.labels)
        return Memories(self._rows_of_view(), starts, labels, self.following)

    def _rows_of_view(self) -> Any:
        if not self.is_sparse:
            return read_only(self.rows[0][: self.n])
        indptr, indices, values = self.rows
        return read_only(indptr[: self.n + 1]), read_only(indices), read_only(values)

    def add(self, form: Any, targets: Targets) -> None:
        """Append rows of the model's form, and their labels."""
        n = len(targets.indptr) - 1
        ids = targets.ids[targets.indptr[0] : targets.indptr[-1]]
        self.labels = _extended(self.labels, int(self.starts[self.n]), ids)
        self.starts = _extended(self.starts, self.n + 1, self.starts[self.n] + targets.indptr[1:] - targets.indptr[0])
        if not self.is_sparse:
            self.rows = (_extended(self.rows[0], self.n, form),)
        else:
            stored, (indptr, indices, values) = self.rows, form
            end, part = int(stored[0][self.n]), slice(int(indptr[0]), int(indptr[-1]))
            self.rows = (
                _extended(stored[0], self.n + 1, end + indptr[1:] - indptr[0]),
                _extended(stored[1], end, indices[part]),
                _extended(stored[2], end, values[part]),
            )
        self.n += n
        if self.n > len(self.following):
            self.following = enlarged_array(self.following, max(self.n, 2 * len(self.following)))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays to save, without spare capacity."""
        found: dict[str, NDArray[Any]] = {
            "starts": self.starts[: self.n + 1],
            "labels": self.labels[: self.starts[self.n]],
        }
        if not self.is_sparse:
            return {**found, "rows": self.rows[0][: self.n]}
        end = int(self.rows[0][self.n])
        return {
            **found,
            "indptr": self.rows[0][: self.n + 1],
            "indices": self.rows[1][:end],
            "values": self.rows[2][:end],
        }

    @classmethod
    def empty(cls, sparse: bool, n_features: int) -> MemoryStore:
        start = np.zeros(1, np.int64)
        rows: tuple[NDArray[Any], ...] = (np.zeros((0, n_features), np.float32),)
        if sparse:
            rows = (start, np.zeros(0, np.uint32), np.zeros(0, np.float32))
        return cls(0, rows, start, np.zeros(0, np.uint32), np.zeros(0, np.int64))

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[Any]], sparse: bool, n_features: int, n_labels: int) -> MemoryStore:
        """Restore the memories; raise ValueError if the arrays are inconsistent."""
        n, n_ids = len(arrays["memories/starts"]) - 1, len(arrays["memories/labels"])
        starts = _expect_starts(arrays, "memories/starts", n, n_ids)
        labels = expect(arrays, "memories/labels", np.uint32, (n_ids,))
        if n_ids and labels.max() >= n_labels:
            raise ValueError("the memories do not fit the labels")
        within = np.ones(n_ids, np.bool_)
        within[starts[:-1][np.diff(starts) > 0]] = False
        if (np.diff(labels.astype(np.int64)) <= 0)[within[1:]].any():
            raise ValueError("the labels of a memory are not sorted")
        if not sparse:
            rows: tuple[NDArray[Any], ...] = (expect(arrays, "memories/rows", np.float32, (n, n_features)),)
        else:
            n_values = len(arrays["memories/values"])
            indptr = _expect_starts(arrays, "memories/indptr", n, n_values)
            indices = expect(arrays, "memories/indices", np.uint32, (n_values,))
            if n_values and indices.max() >= n_features:
                raise ValueError("the memories do not fit the features")
            rows = (indptr, indices, expect(arrays, "memories/values", np.float32, (n_values,)))
        if not np.abs(rows[-1]).max(initial=0.0) <= 2.0:
            raise ValueError("the memories are not rows of length one")
        return cls(n, rows, starts, labels, np.full(n, NONE, np.int64))


def _extended(array: NDArray[Any], n: int, more: NDArray[Any]) -> NDArray[Any]:
    """Return the array with `more` after its first n entries, enlarged or copied where it must be."""
    end = n + len(more)
    if end > len(array) or not array.flags.writeable:
        larger = np.zeros((max(end, 2 * n), *array.shape[1:]), array.dtype)
        larger[:n] = array[:n]
        array = larger
    array[n:end] = more
    return array


def _expect_starts(arrays: dict[str, NDArray[Any]], name: str, n: int, end: int) -> NDArray[np.int64]:
    starts = expect(arrays, name, np.int64, (n + 1,))
    if starts[0] != 0 or starts[-1] != end or not ascends(starts):
        raise ValueError(f"{name} does not fit the memories")
    return starts


@dataclass
class MemoryTreeModel(OnlineTreeModel):
    """A binary tree grown online, with memories in its leaves; `n_labels` labels are known so far."""

    n_labels: int
    n_features: int
    output: int  # scores become probabilities
    routers: Scorers
    regressors: Scorers  # one-against-some, for rows with several labels; else none
    scorer: Scorer
    nodes: Nodes
    store: MemoryStore
    random: NDArray[np.uint64]
    found: NDArray[np.int64] = field(default_factory=lambda: np.zeros(2, dtype=np.int64))
    knows_squares: bool = True

    @property
    def is_sparse(self) -> bool:
        return self.store.is_sparse

    @property
    def n_nodes(self) -> int:
        return int(self.nodes.used[NODES])

    @property
    def depth(self) -> int:
        """Depth of the deepest leaf."""
        return int(self.nodes.depths[: self.n_nodes].max())

    def rows(self, rows: Rows) -> Any:
        """Convert rows to the format of the training rows, of length one without unknown features."""
        if not self.is_sparse:
            return normalized(super().rows(rows))
        sparse = normalized(known_features(sparsified(rows), self.n_features))
        assert isinstance(sparse, SparseRows)
        return sparse.indptr, sparse.indices, sparse.values

    def tree(self, routers: Any, regressors: Any) -> tuple[Any, ...]:
        """Return what is learned, as kernels take it, with these scorers."""
        return self.store.view(), self.nodes, routers, regressors, self.scorer

    def workspace(self) -> Workspace:
        """Return buffers of one thread; untouched pages of large ones take no memory."""
        n, real = max(1, self.n_labels), np.float32
        return Workspace(
            np.zeros(self.n_features, real), np.zeros(n, np.int32), np.zeros(n, np.int64), np.zeros(n, real), np.zeros(n, real), np.zeros(n, real),
            np.zeros(DEEPEST + 1, np.int64), np.zeros(1, real),
        )  # fmt: skip

    def top_k(self, rows: Rows, k: int, search: Options, threads: int = 1) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return ids of the k best labels of each row's leaf (-1 if there are fewer), and their probabilities."""
        found = self.top_k_allowed(rows, 0, k, ALL_ONE, search, threads)
        return found.first, found.of_first

    def trace(self, row: Rows, ids: list[int], scores: list[float], search: Options) -> Trace:
        """Return the path to the leaf of the row, and the remembered rows there, for `explain`."""
        return trace_labels(self, row, ids, scores, search)

    def top_k_allowed(
        self, rows: Rows, k: int, n_first: int, weights: NDArray[np.float32], search: Options, threads: int = 1
    ) -> TopKAllowed:
        """Return the `n_first` best labels of each row's leaf, and the k best of those with a weight."""
        found, weights = TopKAllowed.empty(len(rows), n_first, k), read_only(weights)

        def outputs(block: slice) -> tuple[NDArray[Any], ...]:
            return (weights, *(array[block] for array in found))

        self._run(rows, k + n_first, threads, search, outputs, kernels.predict)
        return found

    def probabilities(self, rows: Rows, search: Options, threads: int = 1) -> NDArray[np.float32]:
        """Return the probability of every label; zero if it is not in the row's leaf."""
        out = np.zeros((len(rows), self.n_labels), np.float32)
        self._run(rows, self.n_labels, threads, search, lambda block: (out[block],), kernels.probabilities_of_all)
        return out

    def _run(self, rows: Rows, width: int, threads: int, options: Options, outputs: Any, kernel: Any) -> None:
        tree = self.tree(prediction_scorers(self.routers), prediction_scorers(self.regressors))

        def answer(block: slice) -> None:
            n_rows = block.stop - block.start
            kernel(self.rows(rows[block]), n_rows, tree, options, self.workspace(), *outputs(block))

        run_all(blocks(len(rows), width), answer, threads)

    def lists(self) -> NDArray[np.int64]:
        """Return the memories, leaf by leaf in the order of the nodes, each leaf's in the order of its list."""
        order = np.empty(self.store.n, np.int64)
        kernels.gather(self.nodes, self.store.view(), order)
        return order

    def node_labels(self) -> NodeLabels:
        """Return the labels of the memories below each node."""
        n = self.n_nodes
        ends = np.cumsum(self.nodes.sizes[:n])
        starts, ids = self.store.starts, self.store.labels
        labels, counts = [], []
        for members in np.split(self.lists(), ends[:-1]):
            of_leaf = np.concatenate([ids[starts[m] : starts[m + 1]] for m in members] or [ids[:0]])
            found, count = np.unique(of_leaf, return_counts=True)
            labels.append(found.astype(np.int64))
            counts.append(count)
        left = self.nodes.left[:n].tolist()
        inner = self.nodes.left[:n] > 0
        totals = np.where(inner, self.nodes.sides[:n].sum(axis=1), self.nodes.sizes[:n])
        children = [[first, first + 1] if first else [] for first in left]
        return NodeLabels.from_leaves(children, labels, counts, totals.tolist())

    # --- to a file and back -----------------------------------------------------------------------------

    def without_labels(self, kept: NDArray[np.bool_]) -> MemoryTreeModel:
        """Return the model of the `kept` labels, renumbered, without the memories of others."""
        header, arrays = self.to_parts(self.knows_squares)
        starts, labels = arrays["memories/starts"], arrays["memories/labels"]
        of_kept = kept[labels]
        n_left = np.diff(np.concatenate([[0], np.cumsum(of_kept)])[starts])
        stays = (n_left > 0) | (np.diff(starts) == 0)
        arrays["memories/labels"] = (np.cumsum(kept) - 1)[labels[of_kept]].astype(np.uint32)
        arrays["memories/starts"] = np.concatenate([[0], np.cumsum(n_left[stays])])
        if self.is_sparse:
            counts = np.diff(arrays["memories/indptr"])
            entries = np.repeat(stays, counts)
            arrays["memories/indptr"] = np.concatenate([[0], np.cumsum(counts[stays])])
            for name in ("memories/indices", "memories/values"):
                arrays[name] = arrays[name][entries]
        else:
            arrays["memories/rows"] = arrays["memories/rows"][stays]
        arrays |= _tree_without(arrays, stays)
        if self.output == REGRESSORS:
            arrays |= regressors_without(arrays, kept)
        return self.from_parts(header, arrays, int(kept.sum()))

    def to_parts(self, resume: bool = False) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return a JSON-serialisable header and arrays; with `resume` including AdaGrad's squares."""
        n = self.n_nodes
        header = {
            "n_features": self.n_features, "sparse": self.is_sparse, "found": self.found.tolist(), "resume": resume,
            "random": [int(self.random[0]) >> 32, int(self.random[0]) & 0xFFFFFFFF],
            "how": self.output,
        }  # fmt: skip
        arrays = {f"nodes/{name}": getattr(self.nodes, name)[:n] for name in ("left", "sides", "sizes")}
        arrays["nodes/memories"] = self.lists()
        arrays |= {f"memories/{name}": array for name, array in self.store.arrays().items()}
        arrays["scorer/weights"] = self.scorer.weights[: self.n_features]
        if resume:
            arrays["scorer/squares"] = self.scorer.squares[: self.n_features]
        arrays |= {f"routers/{key}": array for key, array in scorer_arrays(self.routers, n, resume).items()}
        if self.output == REGRESSORS:
            regressors = scorer_arrays(self.regressors, self.n_labels, resume)
            arrays |= {f"regressors/{key}": array for key, array in regressors.items()}
        return header, arrays

    @classmethod
    def from_parts(cls, header: dict[str, Any], arrays: dict[str, NDArray[Any]], n_labels: int) -> MemoryTreeModel:
        """Restore a model from `to_parts`; raises ValueError if the parts are inconsistent."""
        sparse, resume = (truth(name, header[name]) for name in ("sparse", "resume"))
        output = whole_number("how", header["how"], most=REGRESSORS)
        n_features = whole_number("n_features", header["n_features"])
        if not sparse:
            check_memory("a block of rows", 4 * ROWS_AT_ONCE * n_features)
        store = MemoryStore.from_arrays(arrays, sparse, n_features, n_labels)
        nodes = _restored_tree(arrays, store)
        routers = scorers_from_arrays(arrays, "routers", len(nodes.left), 1, n_features, sparse, resume)
        regressors = empty_scorers(sparse, 0, 1, n_features)
        if output == REGRESSORS:
            regressors = scorers_from_arrays(arrays, "regressors", n_labels, 1, n_features, sparse, resume)
        weights = np.array(expect(arrays, "scorer/weights", np.float32, (n_features,)))
        if not np.abs(weights).max(initial=0.0) <= LARGEST_WEIGHT:
            raise ValueError("the weights of the scorer are too large")
        squares = (
            np.array(expect_squares(arrays, "scorer/squares", (n_features,))) if resume else np.zeros_like(weights)
        )
        high, low = whole_numbers("random", header["random"], 2).tolist()
        random = np.array([(high % 2**32) << 32 | low % 2**32], np.uint64)
        found = whole_numbers("found", header["found"], 2)
        return cls(
            n_labels, n_features, output, routers, regressors, Scorer(weights, squares), nodes, store, random, found, resume
        )  # fmt: skip


def _tree_without(arrays: dict[str, NDArray[Any]], stays: NDArray[np.bool_]) -> dict[str, NDArray[Any]]:
    """Return the arrays of the nodes with some of the memories."""
    order, sizes, left = arrays["nodes/memories"], arrays["nodes/sizes"], arrays["nodes/left"]
    leaf = np.repeat(np.arange(len(sizes)), sizes)
    sizes = np.bincount(leaf[stays[order]], minlength=len(sizes)).astype(np.int64)
    below, sides = sizes.copy(), np.zeros_like(arrays["nodes/sides"])
    for node in np.flatnonzero(left)[::-1].tolist():  # children have higher numbers
        sides[node] = below[left[node] : left[node] + 2]
        below[node] = sides[node].sum()
    number = np.cumsum(stays) - 1
    return {"nodes/sizes": sizes, "nodes/sides": sides, "nodes/memories": number[order[stays[order]]]}


def empty_nodes(n: int) -> Nodes:
    """Return a root without memories, and capacity for n nodes."""
    return Nodes(
        np.array([1, 0], np.int64), np.zeros(n, np.int32), np.zeros(n, np.int32), np.zeros((n, 2), np.int64),
        np.zeros(n, np.int64), np.full(n, NONE, np.int64),
    )  # fmt: skip


def _restored_tree(arrays: dict[str, NDArray[Any]], store: MemoryStore) -> Nodes:
    """Restore the nodes, and the lists of memories in the store; raise ValueError if they are inconsistent."""
    n, n_memories, following = len(arrays["nodes/left"]), store.n, store.following
    left = expect(arrays, "nodes/left", np.int32, (n,))
    inner = np.flatnonzero(left)
    if not np.array_equal(np.sort(left[inner]), np.arange(1, n, 2)) or not n % 2 or (left[inner] <= inner).any():
        raise ValueError("the nodes do not form a tree")
    nodes = empty_nodes(n)
    nodes.left[:] = left
    nodes.sides[:] = expect_counts(arrays, "nodes/sides", np.int64, (n, 2))
    nodes.sizes[:] = expect_counts(arrays, "nodes/sizes", np.int64, (n,), most=n_memories)
    order = expect(arrays, "nodes/memories", np.int64, (n_memories,))
    if nodes.sizes.sum() != n_memories or nodes.sizes[inner].any() or (np.sort(order) != np.arange(n_memories)).any():
        raise ValueError("the memories do not fit the leaves")
    nodes.used[NODES], nodes.used[INSERTED] = n, n_memories
    below = nodes.sizes.copy()
    for node in inner[::-1].tolist():  # children have higher numbers
        if nodes.sides[node].tolist() != below[left[node] : left[node] + 2].tolist():
            raise ValueError("the counts do not fit the nodes")
        below[node] = nodes.sides[node].sum()
    for node in inner.tolist():
        nodes.depths[left[node] : left[node] + 2] = nodes.depths[node] + 1
    if nodes.depths.max() > DEEPEST:
        raise ValueError(f"the tree is {nodes.depths.max()} levels deep, expected at most {DEEPEST}")
    following[order[:-1]] = order[1:]
    filled = np.flatnonzero(nodes.sizes)
    ends = np.cumsum(nodes.sizes[filled])
    following[order[ends - 1]] = NONE
    nodes.first[filled] = order[ends - nodes.sizes[filled]]
    return nodes
