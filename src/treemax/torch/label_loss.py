"""The loss of rows with several labels along their paths: binary cross-entropy at every node with a label below it.

Each row is at all nodes above its labels, so a batch is a list of pairs of row and node for each level. The number of
distinct pairs is known only on the device, and the tensors have room for as many pairs as there are labels, so that
nothing synchronises with it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from treemax.torch import grouped, plain
from treemax.torch.layer import Gradients, Layer, SavedForBackward, accumulation_dtype


class Pairs(NamedTuple):
    """The distinct pairs of row and node of a level, sorted by node.

    The rows at node v are rows[starts[v] : starts[v + 1]]; entries after the last node are unused.
    """

    rows: Tensor
    starts: Tensor

    @classmethod
    def packed_size(cls, n_labels: int, layer: Layer) -> int:
        """Size of the tensor that packs the pairs of all levels."""
        return len(layer.children) * n_labels + layer.bounds.shape[0]

    @classmethod
    def unpack(cls, packed: Tensor, layer: Layer) -> list[Pairs]:
        """Views of a tensor with the rows of all levels, then the starts of all levels."""
        n_starts = [table.shape[0] + 1 for table in layer.children]
        n_levels = len(n_starts)
        n_labels = (len(packed) - sum(n_starts)) // max(1, n_levels)
        parts = packed.split([*[n_labels] * n_levels, *n_starts])
        return [cls(rows, starts) for rows, starts in zip(parts[:n_levels], parts[n_levels:])]


class Positives(NamedTuple):
    """The positive children of a level: their rows, their indices among all logits, and which entries are used."""

    rows: Tensor
    at: Tensor
    used: Tensor


def forward(
    hidden: Tensor, target: Tensor, layer: Layer, ignore_index: int, reduction: str
) -> tuple[Tensor, SavedForBackward]:
    """The binary cross-entropy of each row, and the tensors for the backward pass: there, outputs are errors.

    `target` has the labels of each row, filled up with `ignore_index`. A label may be repeated.
    """
    with torch.cuda.device_of(hidden):
        used = target != ignore_index
        known = target.masked_fill(~used, 0)
        loss, root_error = _root_loss(hidden, layer, layer.root_child[known], used)
        pairs, positives = _pairs(layer.place[known].masked_fill_(~used, layer.n_places).long(), layer)
        errors = [_level_loss(hidden, layer, level, *parts, loss) for level, parts in enumerate(zip(pairs, positives))]
    value = {"none": loss, "sum": loss.sum(), "mean": loss.mean()}[reduction]
    packed = torch.cat([*(part.rows for part in pairs), *(part.starts for part in pairs), target.new_empty(0)])
    return value, SavedForBackward(packed, root_error, errors)


def backward(
    grad_output: Tensor, hidden: Tensor, layer: Layer, saved: SavedForBackward, reduction: str
) -> tuple[Tensor, Gradients]:
    """Gradients by hidden and by the parameters."""
    n_rows = len(hidden)
    row_gradients = (grad_output / max(1, n_rows) if reduction == "mean" else grad_output).expand(n_rows)
    gradients = Gradients.like(layer)
    with torch.cuda.device_of(hidden):
        backend = _backend(hidden, layer)
        hidden_gradient = plain.set_root(saved.root_error, hidden, layer, row_gradients, gradients)
        hidden_gradient = hidden_gradient.to(accumulation_dtype(hidden.dtype))
        for level, (rows, starts) in enumerate(Pairs.unpack(saved.rows, layer)):
            error = (saved.outputs[level] * row_gradients[rows, None]).to(hidden.dtype)
            backend.add_level(error, hidden, layer, level, rows, starts, hidden_gradient, gradients)
    return hidden_gradient.to(hidden.dtype), gradients


def _backend(hidden: Tensor, layer: Layer) -> Any:
    return grouped if grouped.can_run(hidden, layer) else plain


def _root_loss(hidden: Tensor, layer: Layer, children: Tensor, used: Tensor) -> tuple[Tensor, Tensor]:
    """The loss of each row at the root, and its gradient by the logits."""
    logits = _backend(hidden, layer).root_logits(hidden, layer)
    positive = torch.zeros_like(logits, dtype=hidden.dtype)
    positive.scatter_reduce_(1, children, used.to(hidden.dtype), "amax")
    loss = _negative_loss(logits) - torch.where(positive > 0, logits, 0).sum(dim=1)
    return loss, logits.sigmoid_().to(hidden.dtype).sub_(positive)


def _negative_loss(logits: Tensor) -> Tensor:
    """The sum of -log(1 - p) of the children; 0 for a missing child, whose logit is minus infinity."""
    return torch.logaddexp(logits, logits.new_zeros(())).sum(dim=1)


def _pairs(place: Tensor, layer: Layer) -> tuple[list[Pairs], list[Positives]]:
    """For each level, the pairs of row and node, and the positive children, which are the pairs of the next level.

    `place` has the places of each row's labels; that of a direct label, or of none, is the number of places.
    """
    if not layer.children:
        return [], []
    n_rows, n_labels = len(place), place.numel()
    row = torch.arange(n_rows, device=place.device)[:, None].expand_as(place).flatten()
    n_nodes = [*(len(table) for table in layer.children), layer.n_places]  # of each level, and places
    keys = torch.stack([place.flatten() // (layer.n_places // number) for number in n_nodes]) * n_rows + row
    keys = keys.sort(dim=1).values
    number = torch.zeros_like(keys)  # of each key among the distinct ones
    torch.cumsum(keys[:, 1:] != keys[:, :-1], dim=1, out=number[:, 1:])
    at = torch.arange(n_labels, device=place.device)
    unused = (layer.n_places + 1) * n_rows + at % n_rows  # after all others
    keys = unused.repeat(len(n_nodes), 1).scatter_(1, number, keys)
    pairs, positives = [], []
    for level, table in enumerate(layer.children):
        rows, starts = keys[level] % n_rows, torch.arange(len(table) + 1, device=place.device) * n_rows
        pairs.append(Pairs(rows, torch.searchsorted(keys[level], starts)))
        child, rows = keys[level + 1] // n_rows, keys[level + 1] % n_rows
        pair = torch.searchsorted(keys[level], child // table.shape[1] * n_rows + rows)
        used = child < table.numel()
        positives.append(Positives(rows, torch.where(used, pair * table.shape[1] + child % table.shape[1], at), used))
    return pairs, positives


def _level_loss(hidden: Tensor, layer: Layer, level: int, pairs: Pairs, positives: Positives, loss: Tensor) -> Tensor:
    """Add the loss at the nodes of a level to that of the rows; returns its gradient by the logits."""
    logits = _backend(hidden, layer).node_logits(hidden, layer, level, *pairs)
    used = torch.arange(len(logits), device=logits.device) < pairs.starts[-1]
    loss.index_add_(0, pairs.rows, _negative_loss(logits).masked_fill_(~used, 0))
    loss.index_add_(0, positives.rows, -logits.flatten()[positives.at].masked_fill_(~positives.used, 0))
    errors = logits.sigmoid_()
    errors.view(-1).scatter_add_(0, positives.at, -positives.used.to(errors.dtype))
    return errors.to(hidden.dtype)
