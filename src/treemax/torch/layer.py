"""The parameters and tables of a tree softmax, as the computations take them, and rows grouped by node."""

from __future__ import annotations

from typing import NamedTuple

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
    bounds: list[Tensor]
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

    def places_below(self, level: int) -> int:
        """Places of classes below one node of a level."""
        places = 1
        for table in self.children[level:]:
            places *= table.shape[1]
        return places


class Groups(NamedTuple):
    """Rows in the order of the nodes that they are at: rows order[starts[v] : starts[v + 1]] are at node v.

    Rows at no node, because their class is direct, come last. `child` numbers the children of all nodes of the
    level from left to right; for each row in this order it is the one above its class.
    """

    order: Tensor
    starts: Tensor
    child: Tensor


def group_rows(layer: Layer, place: Tensor, level: int) -> Groups:
    """Group rows by the nodes of a level above their places."""
    below = layer.places_below(level + 1)
    child, order = torch.sort(place if below == 1 else place // below, stable=True)
    return Groups(order, torch.searchsorted(child, layer.bounds[level]), child)


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
    """What a forward pass leaves for the backward pass and for the statistics of the classes.

    `root_target` is the root's child above each row's class, -1 for a row without loss; `root_weight` has a row
    for each child of the root; `root_output` and `outputs` are the probabilities of the children, at the root and
    in the order of the groups of each level, where rows that are at no node may have anything. `scale` is what
    the losses of rows were multiplied by.
    """

    root_target: Tensor
    root_weight: Tensor
    root_output: Tensor
    scale: Tensor
    outputs: list[Tensor]
    orders: list[Tensor]
    starts: list[Tensor]
    child: list[Tensor]

    def group(self, level: int) -> Groups:
        return Groups(self.orders[level], self.starts[level], self.child[level])


def accumulated(dtype: torch.dtype) -> torch.dtype:
    """The type in which logits are added up and normalised."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
