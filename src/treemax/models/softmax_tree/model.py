"""Trained softmax trees: a hard path in each tree, and the softmax of its leaf.

One structure holds a tree or a forest, which averages the probabilities of its trees.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from treemax.explanations import Trace
from treemax.inputs.conversions import SCORES_AT_ONCE, densified, sparsified
from treemax.inputs.rows import Rows, SparseRows, ascends, read_only
from treemax.kernels import search as sparse_kernels
from treemax.kernels.weights import packed_weights
from treemax.models.softmax_tree import kernels
from treemax.models.softmax_tree.kernels import FEW, PANEL, Leaves, Planes, Structure
from treemax.models.softmax_tree.tracing import trace_labels
from treemax.models.trained import FromCandidates
from treemax.models.trained.parts import expect, truth, whole_number
from treemax.models.trained.scorers import SCORERS_AT_ONCE, dense_scorers, prediction_scorers
from treemax.parallel.threads import run_all
from treemax.trees import NodeLabels

FILLED = 0.7  # load factor of the hash table of a node
ROWS_AT_ONCE = 1024  # rows at the same leaf share memory reads
ROWS_PER_THREAD = 256  # minimum, if there are enough rows
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Branch:
    """A decision node: rows with a score of at least zero go right. `node` is its number in training."""

    coef: Any  # [1, features]
    bias: float
    left: Branch | Softmax
    right: Branch | Softmax
    node: int = 0


@dataclass(frozen=True, eq=False)
class Softmax:
    """A leaf."""

    classes: NDArray[np.int64]
    coef: Any  # [classes, features]
    bias: NDArray[np.float32]


@dataclass
class SoftmaxTreeModel(FromCandidates):
    """Trees packed for prediction."""

    n_labels: int
    n_features: int
    structure: Structure
    plane_bias: NDArray[np.float32]
    precision: ClassVar[str]  # of the weights

    @classmethod
    def pack(
        cls, trees: list[Branch | Softmax], n_labels: int, n_features: int, factor: float = 1.0
    ) -> SoftmaxTreeModel:
        """Number the nodes of all trees, each after its parent, and pack their weights, times `factor`, into one structure."""
        branches: list[Branch] = []
        leaves: list[Softmax] = []
        links: list[tuple[int, int]] = []

        def number(tree: Branch | Softmax) -> int:
            tree = tree if factor == 1.0 else replace(tree, coef=tree.coef * np.float32(factor))
            if isinstance(tree, Softmax):
                leaves.append(tree)
                return -len(leaves)
            own = len(branches)
            branches.append(tree)
            links.append((0, 0))
            links[own] = (number(tree.left), number(tree.right))
            return own

        roots = np.array([number(tree) for tree in trees], np.int32)
        starts = np.concatenate([[0], np.cumsum([len(leaf.classes) for leaf in leaves])]).astype(np.int64)
        structure = Structure(
            roots, np.array(links, np.int32).reshape(-1, 2), starts, np.concatenate([leaf.classes for leaf in leaves]).astype(np.int32)
        )  # fmt: skip
        kind = SparseSoftmaxTrees if sp.issparse(leaves[0].coef) else DenseSoftmaxTrees
        plane_bias = np.array([branch.bias for branch in branches], np.float32)
        return kind._pack(n_labels, n_features, structure, plane_bias, branches, leaves)

    @property
    def n_branches(self) -> int:
        return len(self.structure.children)

    @property
    def n_leaves(self) -> int:
        return len(self.structure.starts) - 1

    def node_labels(self) -> NodeLabels:
        """Return the classes at each node of the first tree."""
        codes, children = [int(self.structure.roots[0])], []
        for code in codes:  # appended to during the iteration
            n = len(codes)
            children.append([n, n + 1] if code >= 0 else [])
            codes += self.structure.children[code].tolist() if code >= 0 else []
        starts, classes = self.structure.starts, self.structure.classes
        own = [classes[starts[-1 - code] : starts[-code]] if code < 0 else classes[:0] for code in codes]
        return NodeLabels.from_leaves(children, own)

    @property
    def depth(self) -> int:
        """Depth of the deepest leaf."""
        depths, deepest = np.zeros(self.n_branches, np.int64), 0
        for node, links in enumerate(self.structure.children):
            deepest = max(deepest, int(depths[node]) + 1)
            depths[links[links >= 0]] = depths[node] + 1
        return deepest

    @cached_property
    def widest(self) -> int:
        """The largest number of classes of a leaf."""
        return int(np.diff(self.structure.starts).max(initial=0))

    def most_answers(self) -> int:
        return self.widest * len(self.structure.roots)

    def top_k(
        self, rows: Rows, k: int, search: float = 0.0, threads: int = 1
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the k most probable classes of each row (-1 where the leaves have fewer), with their probabilities.

        `search` is the smoothing: the weight of each class that the leaves do not have.
        """
        ids, probabilities = self._unsmoothed_top_k(rows, k, threads)
        if search:
            found, _ = self._unsmoothed_top_k(rows, self.n_candidates(), threads)
            n_missing = self.n_labels - (found >= 0).sum(axis=1)
            return ids, probabilities / np.float32(1.0 + search * n_missing[:, None])
        return ids, probabilities

    def n_candidates(self, search: float = 0.0) -> int:
        return min(self.n_labels, self.most_answers())

    def _unsmoothed_top_k(self, rows: Rows, k: int, threads: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        ids, probabilities = np.empty((len(rows), k), np.int64), np.empty((len(rows), k), np.float32)

        n_rows, size = len(rows), _rows_at_once(len(rows), max(k, self.most_answers()), threads)
        if n_rows <= size:
            self._answer(rows, ids, probabilities)
            return ids, probabilities

        def answer(block: slice) -> None:
            self._answer(rows[block], ids[block], probabilities[block])

        run_all((slice(start, start + size) for start in range(0, n_rows, size)), answer, threads)
        return ids, probabilities

    def probabilities(self, rows: Rows, search: float = 0.0, threads: int = 1) -> NDArray[np.float32]:
        """Return the probability of every label; without smoothing (`search`) zero for those that the leaves lack."""
        out = super().probabilities(rows, 0.0, threads)
        if search:
            out[out == 0] = search
            out /= out.sum(axis=1, keepdims=True)
        return out

    def trace(self, row: Rows, ids: list[int], scores: list[float], search: float = 0.0) -> Trace:
        """Return the paths to labels, for `explain`."""
        return trace_labels(self, row, ids, search)

    def classes_of(self, leaf: int) -> NDArray[np.int32]:
        """Return the labels of a leaf."""
        starts = self.structure.starts
        return self.structure.classes[starts[leaf] : starts[leaf + 1]]

    @cached_property
    def parents(self) -> NDArray[np.int64]:
        """The decision node above each node, -1 above roots; leaves, with negative numbers, are at the end."""
        parents = np.full(self.n_branches + self.n_leaves, -1, np.int64)
        parents[self.structure.children] = np.arange(self.n_branches)[:, None]
        return parents

    def coverage(
        self, rows: Rows, labels: NDArray[np.int64], threads: int = 1
    ) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Return whether the label of each row is at its leaves, and the number of classes that are not."""
        covered, n_missing = np.empty(len(rows), bool), np.empty(len(rows), np.int64)
        for start in range(0, len(rows), ROWS_AT_ONCE):
            some = slice(start, start + ROWS_AT_ONCE)
            ids, _ = self._unsmoothed_top_k(rows[some], self.n_candidates(), threads)
            covered[some] = (ids == labels[some, None]).any(axis=1)
            n_missing[some] = self.n_labels - (ids >= 0).sum(axis=1)
        return covered, n_missing

    def without_labels(self, kept: NDArray[np.bool_]) -> SoftmaxTreeModel:
        """Return the model of the `kept` labels, renumbered; the sibling of an empty leaf replaces the parent."""
        remaining = _remaining(self.structure, kept)
        if not len(remaining.structure.roots):
            raise ValueError("No leaf would have a label left. Train again without the forgotten labels.")
        return self._reduced(remaining, int(kept.sum()))

    # --- implemented for dense and for sparse rows ------------------------------------------------------

    @classmethod
    def _pack(
        cls, n_labels: int, n_features: int, structure: Structure, plane_bias: NDArray[np.float32], branches: list[Branch],
        leaves: list[Softmax],
    ) -> SoftmaxTreeModel:  # fmt: skip
        raise NotImplementedError

    def _reduced(self, remaining: Remaining, n_labels: int) -> SoftmaxTreeModel:
        raise NotImplementedError

    def _answer(self, rows: Rows, ids: NDArray[np.int64], probabilities: NDArray[np.float32]) -> None:
        raise NotImplementedError

    def leaves_of(self, rows: Rows) -> NDArray[np.int64]:
        """Return the leaf of each row in each tree."""
        raise NotImplementedError

    def node_weights(
        self, node: int, columns: NDArray[np.uint32], values: NDArray[np.float32]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the biases of a decision node, or of the classes of a leaf, and their weights for features."""
        raise NotImplementedError

    # --- to a file and back -----------------------------------------------------------------------------

    def to_parts(self, resume: bool = False) -> tuple[dict[str, Any], Arrays]:
        """Return a JSON-serialisable header and arrays."""
        header = {"n_features": self.n_features, "sparse": isinstance(self, SparseSoftmaxTrees)}
        arrays: Arrays = dict(zip(Structure._fields, self.structure))
        return header, {**arrays, "plane_bias": self.plane_bias, **self._weights()}

    def _weights(self) -> Arrays:
        raise NotImplementedError

    @classmethod
    def from_parts(cls, header: dict[str, Any], arrays: Arrays, n_labels: int) -> SoftmaxTreeModel:
        """Restore a model from `to_parts`; raises ValueError if the parts are inconsistent."""
        structure = _checked_structure(arrays, n_labels)
        plane_bias = expect(arrays, "plane_bias", np.float32, (len(structure.children),))
        kind = SparseSoftmaxTrees if truth("sparse", header["sparse"]) else DenseSoftmaxTrees
        n_features = whole_number("n_features", header["n_features"], least=1)
        return kind._restored(n_labels, n_features, structure, np.array(plane_bias), arrays)

    @classmethod
    def _restored(
        cls, n_labels: int, n_features: int, structure: Structure, plane_bias: NDArray[np.float32], arrays: Arrays
    ) -> SoftmaxTreeModel:
        raise NotImplementedError


@dataclass
class DenseSoftmaxTrees(SoftmaxTreeModel):
    """Trees over dense rows: planes in float32, the weights of leaves in half precision."""

    planes: NDArray[np.float32]
    leaves: Leaves
    precision: ClassVar[str] = "float32 at decisions, float16 with a scale for each class at leaves"

    @classmethod
    def _pack(
        cls, n_labels: int, n_features: int, structure: Structure, plane_bias: NDArray[np.float32], branches: list[Branch],
        leaves: list[Softmax],
    ) -> DenseSoftmaxTrees:  # fmt: skip
        planes = np.zeros((len(branches), n_features), np.float32)
        for branch, own in zip(branches, planes):
            own[:] = branch.coef[0]
        n = int(structure.starts[-1])
        halves, scale = np.empty((n, n_features), np.uint16), np.empty(n, np.float32)
        bias = np.concatenate([leaf.bias for leaf in leaves])
        for leaf, start, end in zip(leaves, structure.starts, structure.starts[1:]):
            for first in range(0, end - start, SCORERS_AT_ONCE):
                some = leaf.coef[first : first + SCORERS_AT_ONCE]
                zeros = np.zeros(len(some), np.float32)
                small: Any = prediction_scorers(dense_scorers(some, some, zeros, zeros))
                own_rows = slice(start + first, start + first + len(some))
                halves[own_rows], scale[own_rows] = small.halves, small.scale
        packed = _in_panels(halves, scale, bias, structure.starts)
        return cls(n_labels, n_features, structure, plane_bias, planes, packed)

    def _reduced(self, remaining: Remaining, n_labels: int) -> DenseSoftmaxTrees:
        own, structure, planes = self._weights(), remaining.structure, self.planes[remaining.planes]
        halves, scale, bias = (own[name][remaining.classes] for name in ("halves", "scale", "bias"))
        leaves = _in_panels(halves.view(np.uint16), scale, bias, structure.starts)
        return type(self)(n_labels, self.n_features, structure, self.plane_bias[remaining.planes], planes, leaves)

    def _form(self, rows: Rows) -> NDArray[np.float32]:
        return densified(rows, self.n_features) if isinstance(rows, SparseRows) else rows

    def _answer(self, rows: Rows, ids: NDArray[np.int64], probabilities: NDArray[np.float32]) -> None:
        predict: Any = kernels.predict
        predict(
            self._form(rows), tuple(self.structure), (self.planes, self.plane_bias), tuple(self.leaves), self.widest,
            self.n_labels, ids, probabilities,
        )  # fmt: skip

    def leaves_of(self, rows: Rows) -> NDArray[np.int64]:
        found = np.empty(len(rows) * len(self.structure.roots), np.int64)
        kernels.paths(self._form(rows), self.structure, Planes(self.planes, self.plane_bias), found)
        return found.reshape(len(rows), -1)

    def node_weights(
        self, node: int, columns: NDArray[np.uint32], values: NDArray[np.float32]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        if node < self.n_branches:
            return self.plane_bias[node : node + 1].astype(np.float64), self.planes[node : node + 1, columns].astype(
                float
            )
        leaf = node - self.n_branches
        first, last = self.structure.starts[leaf : leaf + 2].tolist()
        packed = self.leaves.halves[first * self.n_features : last * self.n_features]
        halves = _unpanelled(packed, np.array([0, last - first]), self.n_features).view(np.float16)
        scale, bias = self.leaves.scale[first:last], self.leaves.bias[first:last]
        return bias.astype(np.float64), halves[:, columns].astype(float) * scale[:, None]

    def _weights(self) -> Arrays:
        n = int(self.structure.starts[-1])
        packed = self.leaves.halves[:-PANEL]
        halves = _unpanelled(packed, self.structure.starts, self.n_features).view(np.float16)
        return {"planes": self.planes, "halves": halves, "scale": self.leaves.scale[:n], "bias": self.leaves.bias[:n]}

    @classmethod
    def _restored(
        cls, n_labels: int, n_features: int, structure: Structure, plane_bias: NDArray[np.float32], arrays: Arrays
    ) -> DenseSoftmaxTrees:
        n = int(structure.starts[-1])
        planes = expect(arrays, "planes", np.float32, (len(structure.children), n_features))
        halves = expect(arrays, "halves", np.float16, (n, n_features)).view(np.uint16)
        scale, bias = (expect(arrays, name, np.float32, (n,)) for name in ("scale", "bias"))
        packed = _in_panels(halves, scale, bias, structure.starts)
        return cls(n_labels, n_features, structure, plane_bias, np.array(planes), packed)


@dataclass
class SparseSoftmaxTrees(SoftmaxTreeModel):
    """Trees over sparse rows: every node has a hash table from features to its weights, as in a label tree."""

    tables: NDArray[np.int64]
    slots: NDArray[np.uint64]
    entries: NDArray[np.uint32]
    bias: NDArray[np.float32]
    precision: ClassVar[str] = "bfloat16"

    @classmethod
    def _pack(
        cls, n_labels: int, n_features: int, structure: Structure, plane_bias: NDArray[np.float32], branches: list[Branch],
        leaves: list[Softmax],
    ) -> SparseSoftmaxTrees:  # fmt: skip
        nodes: list[Branch | Softmax] = [*branches, *leaves]
        columns = [_by_feature(node.coef) for node in nodes]
        bias = np.concatenate([plane_bias, *(leaf.bias for leaf in leaves)])
        return cls._joined(n_labels, n_features, structure, plane_bias, columns, bias)

    @classmethod
    def _joined(
        cls, n_labels: int, n_features: int, structure: Structure, plane_bias: NDArray[np.float32],
        columns: list[tuple[Any, ...]], bias: NDArray[np.float32],
    ) -> SparseSoftmaxTrees:  # fmt: skip
        """Pack the weights of the nodes, by feature as `_by_feature` returns them."""
        sizes = [int(np.ceil(len(part[0]) / FILLED)) + 1 if len(part[0]) else 0 for part in columns]
        tables = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        widths = np.concatenate([np.ones(len(plane_bias), np.int64), np.diff(structure.starts)])
        n_entries = sum(
            int(np.minimum(np.diff(part[1]), (width + 1) // 2).sum()) for part, width in zip(columns, widths)
        )
        if max(n_entries, tables[-1]) >= 2**32 - 1:
            raise MemoryError(f"{n_entries:,} weights are too many for one structure; raise alpha.")
        slots, entries = np.empty(tables[-1] + 1, np.uint64), np.empty(n_entries, np.uint32)
        offset = 0
        for node, (part, width) in enumerate(zip(columns, widths)):
            own = slots[tables[node] : tables[node + 1]]
            fill_table: Any = sparse_kernels.fill_table
            offset = fill_table(*part, int(width), own, entries, offset)
        slots[-1] = sparse_kernels.NO_FEATURE << np.uint64(32) | np.uint64(n_entries)
        return cls(n_labels, n_features, structure, plane_bias, tables, slots, entries[:offset], bias)

    def _reduced(self, remaining: Remaining, n_labels: int) -> SparseSoftmaxTrees:
        first, widths = self._nodes()
        arrays = sparse_kernels.unpacked(self.tables, self.slots, self.entries, widths)
        node, features, counts, outputs, weights = arrays
        owner, feature = np.repeat(node, counts), np.repeat(features, counts).astype(np.int64)
        n = self.n_branches
        kept_output = np.concatenate([np.ones(n, dtype=bool), remaining.classes])
        within = np.concatenate([[0], np.cumsum(kept_output)])  # of the outputs of a leaf, those before each one
        flat = first[owner] + outputs
        columns = []
        for number in [*remaining.planes.tolist(), *(n + remaining.leaves).tolist()]:
            own = np.arange(*np.searchsorted(owner, [number, number + 1]))
            own = own[kept_output[flat[own]]]
            output = within[flat[own]] - within[first[number]]
            shape = int(within[first[number] + widths[number]] - within[first[number]]), self.n_features
            columns.append(_by_feature(sp.csr_matrix((weights[own], (output, feature[own])), shape=shape)))
        plane_bias = self.plane_bias[remaining.planes]
        bias = np.concatenate([plane_bias, self.bias[n:][remaining.classes]])
        return self._joined(n_labels, self.n_features, remaining.structure, plane_bias, columns, bias)

    def _nodes(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the index of the first bias of each node, and the number of its biases."""
        n, starts = self.n_branches, self.structure.starts
        first = np.concatenate([np.arange(n), n + starts[:-1]])
        return first, np.concatenate([np.ones(n, np.int64), np.diff(starts)])

    def _arguments(self, rows: Rows) -> tuple[Any, sparse_kernels.HardTrees, sparse_kernels.Scratch]:
        """Return the first arguments of both kernels."""
        own = sparsified(rows)
        longest = int(np.diff(own.indptr).max(initial=0))
        scores = np.zeros(16 * (self.widest // 16 + 2), np.float32)
        scratch = sparse_kernels.Scratch(np.zeros(longest + 1, np.uint64), scores)
        return own.arrays, self._trees, scratch

    @cached_property
    def _trees(self) -> sparse_kernels.HardTrees:
        weights = sparse_kernels.Weights(*self._nodes(), self.tables, self.slots, self.entries, self.bias)
        structure = self.structure
        return sparse_kernels.HardTrees(weights, structure.roots, structure.children, structure.classes)

    def _answer(self, rows: Rows, ids: NDArray[np.int64], probabilities: NDArray[np.float32]) -> None:
        mass, touched = np.zeros(self.n_labels, np.float32), np.zeros(self.most_answers(), np.int64)
        sparse_kernels.hard_softmax(*self._arguments(rows), mass, touched, ids, probabilities)

    def leaves_of(self, rows: Rows) -> NDArray[np.int64]:
        leaves = np.empty((len(rows), len(self.structure.roots)), np.int64)
        sparse_kernels.hard_paths(*self._arguments(rows), leaves)
        return leaves

    def node_weights(
        self, node: int, columns: NDArray[np.uint32], values: NDArray[np.float32]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        own = self._trees.weights
        first, count = int(own.first_child[node]), int(own.n_children[node])
        weights, scores = np.zeros((count, len(columns)), np.float32), np.zeros(count)
        n_children, tables, slots, entries = map(read_only, (own.n_children, own.tables, own.slots, own.entries))
        packed_weights(node, columns, values, n_children, tables, slots, entries, np.arange(count), scores, weights)
        return self.bias[first : first + count].astype(np.float64), weights.astype(np.float64)

    def _weights(self) -> Arrays:
        return {"tables": self.tables, "slots": self.slots, "entries": self.entries, "bias": self.bias}

    @classmethod
    def _restored(
        cls, n_labels: int, n_features: int, structure: Structure, plane_bias: NDArray[np.float32], arrays: Arrays
    ) -> SparseSoftmaxTrees:
        n_nodes = len(structure.children) + len(structure.starts) - 1
        tables = np.array(expect(arrays, "tables", np.int64, (n_nodes + 1,)))
        if tables[0] != 0 or not ascends(tables):
            raise ValueError("the tables of the nodes are not in order")
        slots = np.array(expect(arrays, "slots", np.uint64, (int(tables[-1]) + 1,)))
        entries = np.array(expect(arrays, "entries", np.uint32, (len(arrays["entries"]),)))
        n_bias = len(structure.children) + int(structure.starts[-1])
        bias = np.array(expect(arrays, "bias", np.float32, (n_bias,)))
        own = cls(n_labels, n_features, structure, plane_bias, tables, slots, entries, bias)
        _, n_children = own._nodes()
        if not sparse_kernels.is_valid(tables, slots, entries, n_children):
            raise ValueError("the packed weights do not fit together")
        return own


class Remaining(NamedTuple):
    """The trees after the removal of labels: structure, planes, leaves, and the classes that leaves keep."""

    structure: Structure
    planes: NDArray[np.int64]
    leaves: NDArray[np.int64]
    classes: NDArray[np.bool_]


def _remaining(structure: Structure, kept: NDArray[np.bool_]) -> Remaining:
    """Remove the labels that are not `kept` from all leaves, and leaves without a label."""
    classes = kept[structure.classes]
    counts = np.diff(np.concatenate([[0], np.cumsum(classes)])[structure.starts])
    n = len(structure.children)
    stands_for: dict[int, int | None] = {-1 - leaf: -1 - leaf if count else None for leaf, count in enumerate(counts)}
    for node in range(n - 1, -1, -1):  # children have higher numbers
        left, right = (stands_for[code] for code in structure.children[node].tolist())
        stands_for[node] = node if left is not None and right is not None else left if right is None else right
    planes = np.array([node for node in range(n) if stands_for[node] == node], dtype=np.int64)
    leaves = np.flatnonzero(counts)
    number = {int(node): place for place, node in enumerate(planes)}
    number |= {-1 - int(leaf): -1 - place for place, leaf in enumerate(leaves)}

    def numbered(code: int) -> int:
        own = stands_for[code]
        assert own is not None
        return number[own]

    children = [[numbered(code) for code in structure.children[node].tolist()] for node in planes]
    roots = [number[own] for root in structure.roots.tolist() if (own := stands_for[root]) is not None]
    reduced = Structure(
        np.array(roots, np.int32), np.array(children, np.int32).reshape(-1, 2),
        np.concatenate([[0], np.cumsum(counts[leaves])]).astype(np.int64),
        (np.cumsum(kept) - 1)[structure.classes[classes]].astype(np.int32),
    )  # fmt: skip
    return Remaining(reduced, planes, leaves, classes)


def _rows_at_once(n_rows: int, n_answers: int, threads: int) -> int:
    """Return the rows per block, so that all threads have rows and the scores of a block fit into memory."""
    fair = max(ROWS_PER_THREAD, -(-n_rows // threads))
    return min(ROWS_AT_ONCE, fair, max(1, SCORES_AT_ONCE // n_answers))


def _panels(starts: NDArray[np.int64]) -> Iterator[slice]:
    """Yield the classes of each panel: sixteen of a leaf, or the remaining ones if they are more than FEW."""
    for start, end in pairwise(starts.tolist()):
        for first in range(start, end - FEW, PANEL):
            yield slice(first, min(first + PANEL, end))


def _in_panels(
    halves: NDArray[np.uint16], scale: NDArray[np.float32], bias: NDArray[np.float32], starts: NDArray[np.int64]
) -> Leaves:
    """Convert weights stored class by class to panels, padded by one panel."""
    packed = np.concatenate([halves.ravel(), np.zeros(PANEL, np.uint16)])
    own_rows = packed[: halves.size].reshape(halves.shape)
    for own in _panels(starts):
        own_rows[own] = halves[own].T.reshape(-1, halves.shape[1])
    spare = np.zeros(PANEL, np.float32)
    return Leaves(packed, np.concatenate([scale, spare]), np.concatenate([bias, spare]))


def _unpanelled(packed: NDArray[np.uint16], starts: NDArray[np.int64], n_features: int) -> NDArray[np.uint16]:
    """Convert panels, without the padding, back to weights stored class by class."""
    halves = packed.reshape(-1, n_features).copy()
    for own in _panels(starts):
        halves[own] = halves[own].reshape(n_features, -1).T
    return halves


def _by_feature(coef: sp.csr_matrix) -> tuple[Any, ...]:
    """Return the nonzero weights by feature: features, start of each, outputs and values."""
    columns = sp.csc_matrix(coef)
    columns.eliminate_zeros()
    columns.sort_indices()
    features = np.flatnonzero(np.diff(columns.indptr))
    starts = np.concatenate([columns.indptr[features], columns.indptr[-1:]]).astype(np.int64)
    return (features.astype(np.uint32), starts, columns.indices.astype(np.uint32), columns.data.astype(np.float32))


def _checked_structure(arrays: Arrays, n_labels: int) -> Structure:
    """Return the structure, if each node except the roots has one parent, which precedes it, and all classes exist."""
    n, n_leaves = len(arrays["children"]), len(arrays["starts"]) - 1
    children = expect(arrays, "children", np.int32, (n, 2))
    roots = expect(arrays, "roots", np.int32, (len(arrays["roots"]),))
    starts = expect(arrays, "starts", np.int64, (n_leaves + 1,))
    named = np.sort(np.concatenate([roots, children.ravel()]).astype(np.int64))
    later = (children < 0) | (children > np.arange(n)[:, None])
    if n_leaves < 1 or not later.all() or (named != np.arange(-n_leaves, n)).any() or not len(roots):
        raise ValueError("the nodes do not form trees")
    if starts[0] != 0 or not ascends(starts, strictly=True):
        raise ValueError("the starts of the leaves' classes are not increasing")
    classes = expect(arrays, "classes", np.int32, (int(starts[-1]),))
    if (classes < 0).any() or (classes >= n_labels).any():
        raise ValueError("the classes of the leaves do not fit the labels")
    return Structure(*(np.array(array) for array in (roots, children, starts, classes)))
