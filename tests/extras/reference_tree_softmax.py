"""Reference implementation of a tree softmax: slow loops over classes, from the root down."""

from __future__ import annotations

import torch
from torch import Tensor


def slow_log_probabilities(layer, hidden: Tensor) -> Tensor:
    """log p of every class, from the parameters of a layer, its shape and its places alone."""
    shape, places = layer.shape, layer.places.tolist()
    direct = [c for c, place in enumerate(places) if place == shape.n_places]
    tops = sorted({place // shape.places_below(0) for place in places if place < shape.n_places})
    root = [class_score(layer, hidden, c) for c in direct] + [node_score(layer, hidden, 0, node) for node in tops]
    root = torch.log_softmax(torch.stack(root, dim=1), dim=1)
    columns = []
    for own, place in enumerate(places):
        if place == shape.n_places:
            columns.append(root[:, direct.index(own)])
            continue
        top = place // shape.places_below(0)
        total = root[:, len(direct) + tops.index(top)]
        for level in range(len(shape.arities)):
            total = total + within_node(layer, hidden, level, place, places)
        columns.append(total)
    return torch.stack(columns, dim=1)


def within_node(layer, hidden: Tensor, level: int, place: int, places: list[int]) -> Tensor:
    """log p of the child that leads to a place, at the node of a level above it."""
    shape = layer.shape
    node, step = place // shape.places_below(level), shape.places_below(level + 1)
    inside = [other for other in places if other < shape.n_places and other // shape.places_below(level) == node]
    children = sorted({other // step for other in inside})
    last = level == len(shape.arities) - 1
    if last:
        scores = [class_score(layer, hidden, places.index(child)) for child in children]
    else:
        scores = [node_score(layer, hidden, level + 1, child) for child in children]
    scores = torch.log_softmax(torch.stack(scores, dim=1), dim=1)
    return scores[:, children.index(place // step)]


def class_score(layer, hidden: Tensor, own: int) -> Tensor:
    score = hidden @ layer.weight[own]
    return score if layer.bias is None else score + layer.bias[own]


def node_score(layer, hidden: Tensor, level: int, node: int) -> Tensor:
    row = layer.shape.first_row(level) + node
    score = hidden @ layer.node_weight[row]
    return score if layer.node_bias is None else score + layer.node_bias[row]
