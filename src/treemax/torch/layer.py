"""Named tuples of a tree softmax: parameters and tables, rows sorted by place in the tree, gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Layer(NamedTuple):
    """Parameters of classes and nodes, and the tables of `treemax.torch.structure.TreeTables`."""

    weight: Tensor
    bias: Tensor | None
    node_weight: Tensor
    node_bias: Tensor | None
    root_child: Tensor
    place: Tensor
    direct: Tensor
    root_empty: Tensor
    bounds: Tensor
    children: list[Tensor]

    @property
    def n_top(self) -> int:
        """Number of nodes that are children of the root."""
        return len(self.children[0]) if self.children else 0

    @property
    def n_places(self) -> int:
        return self.children[-1].numel() if self.children else 0

    def parameters_of(self, level: int) -> tuple[Tensor, Tensor | None]:
        """Return the weights and biases of the children at a level."""
        last = level == len(self.children) - 1
        return (self.weight, self.bias) if last else (self.node_weight, self.node_bias)


class Rows(NamedTuple):
    """The rows of a batch sorted by the places of their classes in the tree.

    The rows at a node are contiguous on every level: those of node v are order[starts[v] : starts[v + 1]]. Last come the
    rows at no node, with a direct class or without a loss. `place` is in this order. `root_target` is in the order of
    the batch: the root's child on the path of each row's class, -1 for a row without a loss. `n_counted` is the number
    of rows with a loss.
    """

    root_target: Tensor
    order: Tensor
    place: Tensor
    starts: list[Tensor]
    n_counted: Tensor

    @classmethod
    def packed_size(cls, n_rows: int, layer: Layer) -> int:
        """Return the size of the tensor that packs all fields; its last element is a counter of the kernels."""
        return 3 * n_rows + layer.bounds.shape[0] + 2

    @classmethod
    def unpack(cls, packed: Tensor, n_rows: int, layer: Layer) -> Rows:
        """Return views of a tensor with the concatenated fields."""
        n_starts = [table.shape[0] + 1 for table in layer.children]
        root_target, order, place, *starts, n_counted, _ = packed.split([*[n_rows] * 3, *n_starts, 1, 1])
        return cls(root_target, order, place, starts, n_counted[0])


class Entries(NamedTuple):
    """The labels of all rows of a batch, as places in the tree or as children of the root.

    `values[i]` belongs to row[i]; those of row r are values[offsets[r] : offsets[r + 1]].
    """

    values: Tensor
    row: Tensor
    offsets: Tensor


class Pairs(NamedTuple):
    """The distinct pairs of row and node of a level, sorted by node.

    The rows at node v are rows[starts[v] : starts[v + 1]]; entries after the last node are unused.
    """

    rows: Tensor
    starts: Tensor
    nodes: Tensor

    @classmethod
    def packed_size(cls, n_labels: int, layer: Layer) -> int:
        """Return the size of the tensor that packs the rows and starts of all levels."""
        return len(layer.children) * n_labels + layer.bounds.shape[0]


class Gradients(NamedTuple):
    """Gradients of the parameters. Every class is a child of one node, so every row is written once."""

    weight: Tensor
    bias: Tensor | None
    node_weight: Tensor
    node_bias: Tensor | None

    @classmethod
    def like(cls, layer: Layer) -> Gradients:
        """Return uninitialised gradients, except zeros for nodes below the top ones, which may have no classes."""
        of_nodes = torch.zeros_like if len(layer.children) > 1 else torch.empty_like
        return cls(
            torch.empty_like(layer.weight),
            None if layer.bias is None else torch.empty_like(layer.bias),
            of_nodes(layer.node_weight),
            None if layer.node_bias is None else of_nodes(layer.node_bias),
        )

    def parameters_of(self, layer: Layer, level: int) -> tuple[Tensor, Tensor | None]:
        last = level == len(layer.children) - 1
        return (self.weight, self.bias) if last else (self.node_weight, self.node_bias)


class SavedForBackward(NamedTuple):
    """Tensors that the forward pass saves for the backward pass.

    `rows` is packed (see `Rows`); `root_error` is the gradient of each row's loss by the logits of the root's children;
    `outputs` are the probabilities of the children at each level, in the order of the tree, undefined for rows at no
    node. `plan` is an optional cache of the backend.
    """

    rows: Tensor
    root_error: Tensor
    outputs: list[Tensor]
    plan: Any = None


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which logits are accumulated and normalised."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
