"""Reference implementation of a probabilistic label tree: slow loops over rows, nodes and children."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from tests.extras.reference_tree_softmax import class_score, node_score


def slow_losses(layer, hidden: Tensor, lists: list[list[int]]) -> Tensor:
    """The binary cross-entropy of each row: at the root, and at all nodes above its labels."""
    losses = []
    for row, labels in zip(hidden, lists):
        nodes = [None] + [node for node in all_nodes(layer) if labels_below(layer, node) & set(labels)]
        children = [child for node in nodes for child in children_of(layer, node)]
        logits = torch.stack([score(layer, row, child) for child in children])
        wanted = torch.tensor([bool(labels_below(layer, child) & set(labels)) for child in children])
        losses.append(binary_cross_entropy_with_logits(logits, wanted.to(logits.dtype), reduction="sum"))
    return torch.stack(losses)


def slow_log_probabilities(layer, hidden: Tensor) -> Tensor:
    """log p of every label: the sum along its path, the label itself included."""
    columns = []
    for label in range(layer.n_labels):
        path = [node for node in all_nodes(layer) if label in labels_below(layer, node)] + [label]
        columns.append(sum(logsigmoid(score(layer, hidden, child)) for child in path))
    return torch.stack(columns, dim=1)


def all_nodes(layer) -> list[tuple[int, int]]:
    """Level and index of every node that has labels below it."""
    shape = layer.shape
    nodes = [(level, index) for level in range(len(shape.arities)) for index in range(shape.nodes(level))]
    return [node for node in nodes if labels_below(layer, node)]


def children_of(layer, node: tuple[int, int] | None) -> list:
    """The children of a node (None is the root): nodes and labels."""
    nodes, places = all_nodes(layer), layer.places.tolist()
    if node is None:
        direct = [label for label, place in enumerate(places) if place == layer.shape.n_places]
        return direct + [child for child in nodes if child[0] == 0]
    level, index = node
    if level == len(layer.shape.arities) - 1:
        return sorted(labels_below(layer, node))
    return [child for child in nodes if child[0] == level + 1 and child[1] // layer.shape.arities[level] == index]


def labels_below(layer, child) -> set[int]:
    """The labels below a node; a label is below itself."""
    if isinstance(child, int):
        return {child}
    level, index = child
    below = layer.shape.places_below(level)
    inside = layer.places.tolist()
    return {label for label, at in enumerate(inside) if at < layer.shape.n_places and at // below == index}


def score(layer, hidden: Tensor, child) -> Tensor:
    return class_score(layer, hidden, child) if isinstance(child, int) else node_score(layer, hidden, *child)
