"""The parameters and tables of a tree softmax, as the computations take them, and rows in the order of the tree."""

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
        """Nodes below the root."""
        return len(self.children[0]) if self.children else 0

    @property
    def n_places(self) -> int:
        return self.children[-1].numel() if self.children else 0

    def parameters_of(self, level: int) -> tuple[Tensor, Tensor | None]:
        """Weights and biases that the children of a level are rows of."""
        last = level == len(self.children) - 1
        return (self.weight, self.bias) if last else (self.node_weight, self.node_bias)


class Rows(NamedTuple):
    """The rows of a batch in the order of the tree, by the places of their classes.

    So the rows at one node are together, whatever the level: those of node v of a level are
    order[starts[v] : starts[v + 1]], and after the last node come those at none, because their class is direct or
    they have no loss. `place` is in this order. `root_target` is in the order of the batch: the root's child above
    each row's class, -1 for a row without loss. `n_counted` says how many have one.
    """

    root_target: Tensor
    order: Tensor
    place: Tensor
    starts: list[Tensor]
    n_counted: Tensor

    @classmethod
    def packed_size(cls, n_rows: int, layer: Layer) -> int:
        """Numbers in the one tensor that holds all of it; the last is for the kernels to count by."""
        return 3 * n_rows + layer.bounds.shape[0] + 2

    @classmethod
    def unpack(cls, packed: Tensor, n_rows: int, layer: Layer) -> Rows:
        """Views of a tensor that has the parts one after the other, `starts` of all levels together."""
        n_starts = [table.shape[0] + 1 for table in layer.children]
        root_target, order, place, *starts, n_counted, _ = packed.split([*[n_rows] * 3, *n_starts, 1, 1])
        return cls(root_target, order, place, starts, n_counted[0])


class Gradients(NamedTuple):
    """Of the parameters. Every class is a child of one node, so every row is written once."""

    weight: Tensor
    bias: Tensor | None
    node_weight: Tensor
    node_bias: Tensor | None

    @classmethod
    def like(cls, layer: Layer) -> Gradients:
        """Unwritten, but for nodes below the top ones: some may have no classes, and so no gradient."""
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


class Kept(NamedTuple):
    """What a forward pass leaves for the backward pass.

    `rows` is packed (see `Rows`); `root_error` is the gradient of each row's own loss by the logits of the root's
    children, `outputs` are the probabilities of the children at each level, in the order of the tree, where rows
    that are at no node may have anything. `plan` is for the way that it was computed in, which can do without.
    """

    rows: Tensor
    root_error: Tensor
    outputs: list[Tensor]
    plan: Any = None


def accumulated(dtype: torch.dtype) -> torch.dtype:
    """The type in which logits are added up and normalised."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
