"""The loss of rows with several labels along their paths: binary cross-entropy at every node with a label below it.

Each row is at all nodes above its labels, so a batch is a list of pairs of row and node for each level. The number of
distinct pairs is known only on the device, and the tensors have room for as many pairs as there are labels, so that
nothing synchronises with it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from treemax.torch import grouped, plain
from treemax.torch.layer import Entries, Gradients, Layer, Pairs, SavedForBackward, accumulation_dtype


def forward(
    hidden: Tensor, labels: Tensor, offsets: Tensor, layer: Layer, ignore_index: int, reduction: str
) -> tuple[Tensor, SavedForBackward]:
    """Return the binary cross-entropy of each row, and the tensors for the backward pass: there, outputs are errors.

    `labels` and `offsets` are `LabelLists`. A label may be repeated.
    """
    unused = labels == ignore_index
    known = labels.masked_fill(unused, 0)
    with torch.cuda.device_of(hidden):
        backend = _backend(hidden, layer)
        at = torch.arange(len(labels), device=labels.device)
        row = torch.searchsorted(offsets, at, right=True).sub_(1).clamp_(max=len(hidden) - 1)
        children = Entries(layer.root_child[known].masked_fill_(unused, -1), row, offsets)
        loss, root_error = backend.binary_at_root(backend.root_logits(hidden, layer), children, hidden.dtype)
        places = Entries(layer.place[known].long().masked_fill_(unused, layer.n_places), row, offsets)
        levels, errors = _pairs(places, len(hidden), layer), []
        for level, pairs in enumerate(levels):
            logits = backend.node_logits(hidden, layer, level, pairs.rows, pairs.starts)
            errors.append(backend.binary_at_level(logits, pairs, places, layer, level, loss, hidden.dtype))
    value = {"none": loss.clone, "sum": loss.sum, "mean": loss.mean}[reduction]()
    packed = [*(pairs.rows for pairs in levels), *(pairs.starts for pairs in levels)]
    return value, SavedForBackward(torch.cat([*packed, labels.new_empty(0)]), root_error, errors)


def backward(
    grad_output: Tensor, hidden: Tensor, layer: Layer, saved: SavedForBackward, reduction: str
) -> tuple[Tensor, Gradients]:
    """Return gradients by hidden and by the parameters."""
    n_rows = len(hidden)
    row_gradients = (grad_output / max(1, n_rows) if reduction == "mean" else grad_output).expand(n_rows)
    gradients = Gradients.like(layer)
    sizes = [*(len(error) for error in saved.outputs), *(len(table) + 1 for table in layer.children)]
    parts = saved.rows.split(sizes)
    n_levels = len(layer.children)
    with torch.cuda.device_of(hidden):
        backend = _backend(hidden, layer)
        hidden_gradient = plain.set_root(saved.root_error, hidden, layer, row_gradients, gradients)
        hidden_gradient = hidden_gradient.to(accumulation_dtype(hidden.dtype))
        for level, (rows, starts) in enumerate(zip(parts[:n_levels], parts[n_levels:])):
            error = (saved.outputs[level] * row_gradients[rows, None]).to(hidden.dtype)
            backend.add_level(error, hidden, layer, level, rows, starts, hidden_gradient, gradients)
    return hidden_gradient.to(hidden.dtype), gradients


def _backend(hidden: Tensor, layer: Layer) -> Any:
    return grouped if grouped.can_run(hidden, layer) else plain


def _pairs(places: Entries, n_rows: int, layer: Layer) -> list[Pairs]:
    """Return the pairs of row and node of each level."""
    if not layer.children:
        return []
    place, row, _ = places
    keys = torch.stack([place // (layer.n_places // len(table)) * n_rows + row for table in layer.children])
    keys = keys.sort(dim=1).values
    number = torch.zeros_like(keys)  # of each key among the distinct ones
    torch.cumsum(keys[:, 1:] != keys[:, :-1], dim=1, out=number[:, 1:])
    keys = torch.full_like(keys, (layer.n_places + 1) * n_rows).scatter_(1, number, keys)
    rows, nodes = keys % max(1, n_rows), keys // max(1, n_rows)
    bounds = [torch.arange(len(table) + 1, device=place.device) for table in layer.children]
    return [Pairs(*parts) for parts in zip(rows, map(torch.searchsorted, nodes, bounds), nodes)]
