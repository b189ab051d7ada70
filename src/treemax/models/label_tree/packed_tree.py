"""A label tree with packed weights, as it is stored and searched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.rows import Rows, SparseRows, read_only
from treemax.kernels import beams
from treemax.kernels import search as kernels
from treemax.models.trained.searching import (
    SparseProbabilities,
    TopKAllowed,
    allowed_among,
    empty_top_k,
    largest_weights,
    search_rows,
    search_sorted,
)
from treemax.trees import Tree

LINKS = {"softmax": kernels.SOFTMAX_LINK, "logistic": kernels.LOGISTIC_LINK}
MOST_CHILDREN = 2**16  # a child index has sixteen bits
MAX_SLOPE = 1e6  # bound of the slope of a level, and of its absolute shift
LOAD_FACTOR = 0.75  # of hash tables: a larger one saves memory and costs time


class NodeWeights(NamedTuple):
    """The weights of the children of one node, by feature: features[i] has entries starts[i] to starts[i + 1]."""

    features: NDArray[np.uint32]
    starts: NDArray[np.int64]
    children: NDArray[np.uint32]
    weights: NDArray[np.float32]
    biases: NDArray[np.float32]


class PackedNode(NamedTuple):
    """`NodeWeights` as a hash table: slots and entries as in `PackedTree`, entries numbered from 0."""

    slots: NDArray[np.uint64]
    entries: NDArray[np.uint32]
    biases: NDArray[np.float32]

    @classmethod
    def of(cls, part: NodeWeights) -> PackedNode:
        n_children, n_features = len(part.biases), len(part.features)
        size = int(np.ceil(n_features / LOAD_FACTOR)) + 1 if n_features else 0
        n_entries = int(np.minimum(np.diff(part.starts), (n_children + 1) // 2).sum())
        packed = cls(np.empty(size, dtype=np.uint64), np.empty(n_entries, dtype=np.uint32), part.biases)
        kernels.fill_table(
            part.features, part.starts, part.children, part.weights, n_children, packed.slots, packed.entries, 0
        )
        return packed


@dataclass(frozen=True, eq=False)
class PackedTree:
    """A tree and, for every inner node, a hash table from features to the weights of its children.

    Node v has the slots `tables[v]` to `tables[v + 1]`; a slot is a feature (upper half) and the start of its entries
    (lower half), which end where those of the next slot begin; the last slot only marks the end. The probabilities of
    the children of a node at level l are the softmax of `slopes[l]` times their scores, or, with the logistic link,
    1 / (1 + exp(-(slope * score + shift))) each.
    """

    tree: Tree
    tables: NDArray[np.int64]
    slots: NDArray[np.uint64]
    entries: NDArray[np.uint32]
    bias: NDArray[np.float32]
    slopes: NDArray[np.float32]
    shifts: NDArray[np.float32]
    link: str
    scales: NDArray[np.float32] | None = None  # of 8-bit weights, for each node

    @classmethod
    def join(
        cls,
        tree: Tree,
        nodes: Mapping[int, PackedNode],
        link: str,
        slopes: NDArray[Any],
        shifts: NDArray[Any],
        scales: NDArray[np.float32] | None = None,
    ) -> PackedTree:
        """Join the nodes to a tree."""
        n_slots, n_entries = np.zeros(len(tree), dtype=np.int64), np.zeros(len(tree), dtype=np.int64)
        for node, part in nodes.items():
            n_slots[node], n_entries[node] = len(part.slots), len(part.entries)
        tables, ends = np.concatenate([[0], np.cumsum(n_slots)]), np.cumsum(n_entries)
        if max(ends[-1], tables[-1]) >= 2**32 - 1:
            raise MemoryError(f"{ends[-1]:,} weights are too many for one tree; use a larger threshold.")
        slots = np.empty(tables[-1] + 1, dtype=np.uint64)
        entries = np.empty(ends[-1], dtype=np.uint32)
        bias = np.zeros(len(tree), dtype=np.float32)
        for node, part in nodes.items():
            offset, first = int(ends[node] - n_entries[node]), int(tree.first_child[node])
            np.add(part.slots, np.uint64(offset), out=slots[tables[node] : tables[node + 1]])
            entries[offset : ends[node]] = part.entries
            bias[first : first + len(part.biases)] = part.biases
        slots[-1] = kernels.NO_FEATURE << np.uint64(32) | np.uint64(ends[-1])
        calibration = (slopes.astype(np.float32), shifts.astype(np.float32))
        return cls(tree, tables, slots, entries, bias, *calibration, link, scales)

    @classmethod
    def pack(cls, tree: Tree, weights: Mapping[int, NodeWeights], *others: Any) -> PackedTree:
        """Pack the weights of all inner nodes."""
        return cls.join(tree, {node: PackedNode.of(part) for node, part in weights.items()}, *others)

    @property
    def n_weights(self) -> int:
        """Number of stored weights."""
        return len(kernels.unpacked(self.tables, self.slots, self.entries, self.tree.n_children)[-1])

    def features_of(self, node: int) -> NDArray[np.uint32]:
        """Return the features with a weight at a node, in the order of its table."""
        found = self.slots[self.tables[node] : self.tables[node + 1]] >> np.uint64(32)
        return found[found != kernels.NO_FEATURE].astype(np.uint32)

    def top_k(
        self, rows: Rows, k: int, search: int | None = None, threads: int = 1
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the ids (-1 where fewer were found) and probabilities of the k best labels, by a beam of width `search`.

        None is exact.
        """
        if search is not None:
            return self.beams.top_k(rows, k, search, threads)
        ids, probabilities = empty_top_k(len(rows), k)
        search_rows(kernels.best_labels, self._arguments, rows, threads, (len(self.tree),), ids, probabilities)
        return ids, probabilities

    @cached_property
    def beams(self) -> BeamTrees:
        """The tree as beam search takes it."""
        return BeamTrees.of((self,))

    def top_k_weighted(
        self, rows: Rows, k: int, weights: NDArray[np.float32], search: int | None = None, threads: int = 1
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The k labels with the largest products of probability and weight; subtrees of weight 0 are not searched."""
        width = len(self.tree) if search is None else min(search, len(self.tree))
        ids, probabilities = empty_top_k(len(rows), k)
        tree = self.tree
        options = width, largest_weights(self, tree.parent, tree.leaf_of, weights, len(tree)).values
        search_rows(kernels.best_weighted_labels, self._arguments, rows, threads, options, ids, probabilities)
        return ids, probabilities

    def top_k_allowed(
        self, rows: Rows, k: int, n_first: int, weights: NDArray[np.float32], search: int | None, threads: int = 1
    ) -> TopKAllowed:
        """Return the best of all labels and the k best of those with a weight, in one search."""
        tree = self.tree
        of_nodes = largest_weights(self, tree.parent, tree.leaf_of, weights, len(tree))
        if n := of_nodes.n_to_filter(k, n_first):
            return allowed_among(*self.top_k(rows, n, search, threads), k, n_first, weights)
        if search is not None:
            return self.beams.top_k_allowed(rows, k, n_first, of_nodes.values, search, threads)
        found = TopKAllowed.empty(len(rows), n_first, k)
        search_rows(kernels.best_allowed_labels, self._arguments, rows, threads, (of_nodes.values,), *found)
        return found

    def probabilities(self, rows: Rows, search: int | None = None, threads: int = 1) -> NDArray[np.float32]:
        """Return the probability of every label."""
        out = np.empty((len(rows), self.tree.n_labels), dtype=np.float32)
        search_rows(kernels.all_probabilities, self._arguments, rows, threads, (), out)
        return out

    def of_labels(
        self, rows: Rows, ids: NDArray[np.int64], search: int | None = None, threads: int = 1
    ) -> NDArray[np.float32]:
        """Return the probabilities of given labels, ids[i] those of row i; 0 where the id is -1."""
        out = np.empty(ids.shape, dtype=np.float32)
        above = (read_only(self.tree.parent), read_only(self.tree.leaf_of))
        search_rows(kernels.probabilities_of, self._arguments, rows, threads, above, read_only(ids), out)
        return out

    def above(self, rows: Rows, threshold: float, search: int | None = None, threads: int = 1) -> SparseProbabilities:
        """Return all labels with at least this probability."""
        return self.beams.above(rows, threshold, threads)

    def _arguments(self, rows: SparseRows) -> tuple[Any, ...]:
        return (rows.indptr, rows.indices, rows.values, *self._tree_arguments)

    @cached_property
    def _tree_arguments(self) -> tuple[Any, ...]:
        tree = self.tree
        arrays: tuple[NDArray[Any], ...] = (
            tree.first_child, tree.n_children, self.tables, self.slots, self.entries, self.bias, tree.label, tree.level,
            self.slopes, self.shifts,
        )  # fmt: skip
        sizes = int(tree.n_children.max()), int((tree.n_children > 0).sum())
        return (*[read_only(array) for array in arrays], LINKS[self.link], *sizes)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of the model file."""
        names = ("tables", "slots", "entries", "bias", "slopes", "shifts")
        return {**self.tree.arrays(), **{name: getattr(self, name) for name in names}}

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[Any]], link: str) -> PackedTree:
        """Restore the tree from the arrays of a model file; raise ValueError if they are invalid."""
        of_tree = ("n_children", "label")
        tree = Tree.from_arrays({name: arrays[name] for name in of_tree})
        if link not in LINKS:
            raise ValueError(f"unknown link {link!r}")
        packed = cls(tree, link=link, **{name: array for name, array in arrays.items() if name not in of_tree})
        _check(packed)
        return packed


class BeamTrees:
    """The addresses and sizes of the arrays of trees, a row for each tree, and the arrays, which must outlive them.

    Copies, pickled ones too, have the addresses of their own arrays.
    """

    def __init__(self, arrays: list[list[NDArray[Any]]], sizes: list[list[int]]) -> None:
        self.arrays, self.sizes = [[np.ascontiguousarray(array) for array in of_tree] for of_tree in arrays], sizes
        addresses = [[array.__array_interface__["data"][0] for array in of_tree] for of_tree in self.arrays]
        self.table = read_only(np.hstack([np.array(addresses, np.int64), np.array(sizes, np.int64)]))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.arrays, self.sizes)

    @classmethod
    def of(cls, trees: tuple[PackedTree, ...]) -> BeamTrees:
        """Return the trees of a model."""
        parts = [_parts(packed, several=len(trees) > 1) for packed in trees]
        return cls([arrays for arrays, _ in parts], [sizes for _, sizes in parts])

    def top_k(self, rows: Rows, k: int, search: int, threads: int = 1) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the ids (-1 where fewer were found) and the mean probabilities of the k best labels, by a beam."""
        ids, probabilities = empty_top_k(len(rows), k)
        search_beams = beams.beam_labels if len(self.arrays) == 1 else beams.beam_labels_of_trees
        search_rows(search_beams, self._arguments, rows, threads, (search,), ids, probabilities)
        return ids, probabilities

    def top_k_allowed(
        self, rows: Rows, k: int, n_first: int, of_nodes: NDArray[np.float32], search: int, threads: int = 1
    ) -> TopKAllowed:
        """Return the best of all labels of the only tree, and the k best below nodes with a weight, by beams."""
        found = TopKAllowed.empty(len(rows), n_first, k)
        search_rows(beams.beam_allowed_labels, self._arguments, rows, threads, (search, of_nodes), *found)
        return found

    def above(self, rows: Rows, threshold: float, threads: int = 1) -> SparseProbabilities:
        """Return all labels of the only tree with at least this probability."""

        def search(block: SparseRows) -> SparseProbabilities:
            found = beams.labels_above(block.indptr, block.indices, block.values, self.table, np.float32(threshold))
            return SparseProbabilities(*found)

        return search_sorted(search, rows, threads)

    def _arguments(self, rows: SparseRows) -> tuple[Any, ...]:
        return rows.indptr, rows.indices, rows.values, self.table


def _parts(packed: PackedTree, several: bool) -> tuple[list[NDArray[Any]], list[int]]:
    """Return the arrays and the sizes of a tree, in the order of the fields of the beams."""
    tree = packed.tree
    inner = np.flatnonzero(tree.n_children > 0)
    number = np.full(len(tree), -1)
    number[inner] = np.arange(len(inner))
    parent = number[tree.parent[inner[1:]]]  # of all inner nodes but the root
    records = np.zeros((len(inner), 8), dtype=np.uint32)
    records[:, beams.FIRST_SLOT] = packed.tables[inner]
    records[:, beams.N_SLOTS] = packed.tables[inner + 1] - packed.tables[inner]
    records[:, beams.FIRST_CHILD] = tree.first_child[inner]
    records[:, beams.N_CHILDREN] = tree.n_children[inner]
    records[:, beams.LEVEL] = tree.level[inner]
    records[:, beams.N_INNER] = np.bincount(parent, minlength=len(inner))
    records[1:, beams.PARENT] = parent
    records[1:, beams.PLACE] = inner[1:] - tree.first_child[inner[parent]]
    targets = np.where(number >= 0, -1 - number, tree.label).astype(np.int32)
    leaves = tree.leaf_of if several else np.empty(0, dtype=np.int64)
    above = tree.parent[leaves]
    parents, places = number[above].astype(np.uint32), (leaves - tree.first_child[above]).astype(np.uint32)
    arrays: list[NDArray[Any]] = [
        records, targets, packed.slots, packed.entries, packed.bias, packed.slopes, packed.shifts, parents, places,
    ]  # fmt: skip
    sizes = [tree.depth, LINKS[packed.link], len(inner), int(tree.n_children.max())]
    return arrays, sizes


def check_slopes(slopes: NDArray[np.float32], shifts: NDArray[np.float32]) -> None:
    """Raise ValueError if slopes or shifts are out of range."""
    if not ((slopes > 0) & (slopes <= MAX_SLOPE) & (np.abs(shifts) <= MAX_SLOPE)).all():
        raise ValueError("the slopes and shifts of the levels are not valid")


def _check(packed: PackedTree) -> None:
    """Raise ValueError unless everything holds that searches assume without checking."""
    expected = {
        "tables": (np.int64, len(packed.tree) + 1), "bias": (np.float32, len(packed.tree)),
        "slopes": (np.float32, packed.tree.depth), "shifts": (np.float32, packed.tree.depth),
        "slots": (np.uint64, len(packed.slots)), "entries": (np.uint32, len(packed.entries)),
    }  # fmt: skip
    for name, (dtype, length) in expected.items():
        array = getattr(packed, name)
        if array.dtype != dtype or array.shape != (length,):
            raise ValueError(
                f"{name} has dtype {array.dtype} and shape {array.shape}, expected {length} x {np.dtype(dtype)}"
            )
    check_slopes(packed.slopes, packed.shifts)
    tables = packed.tables
    valid = packed.tree.depth > 0 and tables[0] == 0 and tables[-1] + 1 == len(packed.slots)
    valid = valid and len(packed.slots) < 2**32 and bool((tables[1:] >= tables[:-1]).all())
    valid = valid and kernels.is_valid(tables, packed.slots, packed.entries, packed.tree.n_children)
    if not valid:
        raise ValueError("the packed weights do not fit together")
