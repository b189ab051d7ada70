"""The trees of a model as beam search takes them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.rows import SparseRows, read_only
from treemax.kernels import beams as kernels
from treemax.models.label_tree.packed_tree import LINKS, PackedTree


class BeamTrees:
    """The addresses and sizes of the arrays of trees, a row for each tree, and the arrays, which must outlive them.

    Copies, pickled ones too, have the addresses of their own arrays.
    """

    def __init__(self, arrays: list[list[NDArray[Any]]], sizes: list[list[int]]) -> None:
        self.arrays, self.sizes = arrays, sizes
        addresses = [[array.__array_interface__["data"][0] for array in of_tree] for of_tree in arrays]
        self.table = read_only(np.hstack([np.array(addresses, np.int64), np.array(sizes, np.int64)]))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.arrays, self.sizes)

    @classmethod
    def of(cls, trees: tuple[PackedTree, ...]) -> BeamTrees:
        """Return the trees of a model."""
        parts = [_parts(packed, several=len(trees) > 1) for packed in trees]
        return cls([arrays for arrays, _ in parts], [sizes for _, sizes in parts])

    def arguments(self, rows: SparseRows) -> tuple[Any, ...]:
        """Return the first arguments of `beam_labels`."""
        return rows.indptr, rows.indices, rows.values, self.table


def _parts(packed: PackedTree, several: bool) -> tuple[list[NDArray[Any]], list[int]]:
    """Return the arrays and the sizes of a tree, in the order of the fields of the kernels."""
    tree = packed.tree
    inner = np.flatnonzero(tree.n_children > 0)
    number = np.full(len(tree), -1)
    number[inner] = np.arange(len(inner))
    parent = number[tree.parent[inner[1:]]]  # of all inner nodes but the root
    records = np.zeros((len(inner), 8), dtype=np.uint32)
    records[:, kernels.FIRST_SLOT] = packed.tables[inner]
    records[:, kernels.N_SLOTS] = packed.tables[inner + 1] - packed.tables[inner]
    records[:, kernels.FIRST_CHILD] = tree.first_child[inner]
    records[:, kernels.N_CHILDREN] = tree.n_children[inner]
    records[:, kernels.LEVEL] = tree.level[inner]
    records[:, kernels.N_INNER] = np.bincount(parent, minlength=len(inner))
    records[1:, kernels.PARENT] = parent
    records[1:, kernels.PLACE] = inner[1:] - tree.first_child[inner[parent]]
    targets = np.where(number >= 0, -1 - number, tree.label).astype(np.int32)
    leaves = tree.leaf_of if several else np.empty(0, dtype=np.int64)
    above = tree.parent[leaves]
    parents, places = number[above].astype(np.uint32), (leaves - tree.first_child[above]).astype(np.uint32)
    arrays = [
        records, targets, packed.slots, packed.entries, packed.bias, packed.slopes, packed.shifts, parents, places,
    ]  # fmt: skip
    sizes = [
        tree.depth, LINKS[packed.link], len(inner), len(tree), len(leaves), len(packed.slots), len(packed.entries),
        int(tree.n_children.max()),
    ]  # fmt: skip
    return arrays, sizes
