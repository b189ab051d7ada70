"""The loss along paths and its gradient in plain PyTorch, for any device and type.

A loop over the nodes that a batch comes to. It is what runs on a CPU, and what the kernels for GPUs are tested
against.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from treemax.torch.layer import Gradients, Groups, Kept, Layer, accumulated, group_rows


def forward(
    hidden: Tensor, target: Tensor, layer: Layer, ignore_index: int, reduction: str
) -> tuple[Tensor, Kept]:
    """-log p of the classes of the rows, and what is needed later."""
    kept = target != ignore_index
    known = target.masked_fill(~kept, 0)
    root_target = layer.root_child[known].masked_fill_(~kept, -1)
    place = layer.place[known].masked_fill_(~kept, layer.n_places)
    weight = root_weight(hidden.dtype, layer)
    log_probability = torch.log_softmax(
        (hidden @ weight.T).to(accumulated(hidden.dtype)) + root_bias(layer), dim=1
    )
    loss = -log_probability.gather(1, root_target.clamp(min=0)[:, None]).squeeze(1) * kept
    outputs, groups = [], []
    for level in range(len(layer.children)):
        group = group_rows(layer, place, level)
        logits = node_logits(hidden, layer, level, group.order, group.starts)
        outputs.append(_level_softmax(logits, group, loss, hidden.dtype))
        groups.append(group)
    value, scale = _reduced(loss, kept, reduction)
    lists = ([group[i] for group in groups] for i in range(3))
    return value, Kept(root_target, weight, log_probability.exp_().to(hidden.dtype), scale, outputs, *lists)


def _reduced(loss: Tensor, kept: Tensor, reduction: str) -> tuple[Tensor, Tensor]:
    scale = 1 / kept.sum().to(loss.dtype) if reduction == "mean" else loss.new_ones(())
    return (loss if reduction == "none" else loss.sum() * scale), scale


def root_weight(dtype: torch.dtype, layer: Layer) -> Tensor:
    """A row for every child of the root: the direct classes, the top nodes, and what is there for padding."""
    rows = torch.cat([layer.weight.index_select(0, layer.direct), layer.node_weight[: layer.n_top]]).to(dtype)
    return torch.nn.functional.pad(rows, (0, 0, 0, len(layer.root_empty) - len(rows)))


def root_bias(layer: Layer) -> Tensor:
    """Their biases; minus infinity where there is nothing below."""
    if layer.bias is None or layer.node_bias is None:
        bias = layer.weight.new_zeros(len(layer.root_empty))
    else:
        bias = torch.cat([layer.bias.index_select(0, layer.direct), layer.node_bias[: layer.n_top]])
        bias = torch.nn.functional.pad(bias, (0, len(layer.root_empty) - len(bias)))
    return bias.to(accumulated(bias.dtype)).masked_fill(layer.root_empty, -torch.inf)


def node_logits(hidden: Tensor, layer: Layer, level: int, rows: Tensor, starts: Tensor) -> Tensor:
    """Logits of the children of each row's node, in the order of the groups; -inf where there is no child.

    Rows after the last group get zeros.
    """
    table = layer.children[level]
    weight, bias = layer.parameters_of(level)
    kind = accumulated(hidden.dtype)
    logits = torch.zeros(len(rows), table.shape[1], dtype=kind, device=hidden.device)
    for node, start, stop in _occupied(starts):
        child = table[node]
        at = child.clamp(min=0).long()
        part = (hidden[rows[start:stop]] @ weight[at].to(hidden.dtype).T).to(kind)
        if bias is not None:
            part += bias[at].to(kind)
        logits[start:stop] = part.masked_fill_(child < 0, -torch.inf)
    return logits


def _occupied(starts: Tensor) -> list[tuple[int, int, int]]:
    """Nodes with rows, and where their rows begin and end."""
    bounds = starts.tolist()
    return [(node, a, b) for node, (a, b) in enumerate(pairwise(bounds)) if b > a]


def _level_softmax(logits: Tensor, group: Groups, loss: Tensor, dtype: torch.dtype) -> Tensor:
    """Probabilities of the children of a level; -log of the targets' are added to the loss."""
    log_probability = torch.log_softmax(logits, dim=1)
    part = -log_probability.gather(1, (group.child % logits.shape[1])[:, None]).squeeze(1)
    reached = torch.arange(len(part), device=part.device) < group.starts[-1]
    loss.index_add_(0, group.order, part.masked_fill_(~reached, 0))
    return log_probability.exp_().to(dtype)


def backward(slope: Tensor, hidden: Tensor, layer: Layer, kept: Kept) -> tuple[Tensor, Gradients]:
    """Gradients of hidden and of the parameters, from that of the loss."""
    slopes = (slope * kept.scale).expand(len(hidden)).masked_fill(kept.root_target < 0, 0)
    gradients = Gradients.like(layer)
    error = _error(kept.root_output, kept.root_target.clamp(min=0), slopes, hidden.dtype)
    hidden_gradient = error @ kept.root_weight
    _set_root(gradients, layer, error.T @ hidden, error.sum(dim=0, dtype=accumulated(error.dtype)))
    for level in range(len(layer.children)):
        _add_level(hidden, layer, level, kept, slopes, hidden_gradient, gradients)
    return hidden_gradient, gradients


def _set_root(gradients: Gradients, layer: Layer, weight: Tensor, bias: Tensor) -> None:
    n_direct, n_top = len(layer.direct), layer.n_top
    gradients.weight.index_copy_(0, layer.direct, weight[:n_direct].to(gradients.weight.dtype))
    gradients.node_weight[:n_top] = weight[n_direct : n_direct + n_top]
    if gradients.bias is not None and gradients.node_bias is not None:
        gradients.bias.index_copy_(0, layer.direct, bias[:n_direct].to(gradients.bias.dtype))
        gradients.node_bias[:n_top] = bias[n_direct : n_direct + n_top]


def _error(output: Tensor, target: Tensor, slope: Tensor, dtype: torch.dtype) -> Tensor:
    """The gradient of the loss by the logits."""
    error = output.to(slope.dtype) * slope[:, None]
    error.scatter_add_(1, target[:, None], -slope[:, None])
    return error.to(dtype)


def _add_level(
    hidden: Tensor,
    layer: Layer,
    level: int,
    kept: Kept,
    slopes: Tensor,
    hidden_gradient: Tensor,
    gradients: Gradients,
) -> None:
    """Add what a level says of hidden, and fill in the gradients of its children's parameters."""
    table, group = layer.children[level], kept.group(level)
    weight, _ = layer.parameters_of(level)
    weight_gradient, bias_gradient = gradients.parameters_of(layer, level)
    rows_of_level = table[table >= 0].long()
    weight_gradient[rows_of_level] = 0
    if bias_gradient is not None:
        bias_gradient[rows_of_level] = 0
    error = _error(kept.outputs[level], group.child % table.shape[1], slopes[group.order], hidden.dtype)
    for node, start, stop in _occupied(group.starts):
        exists = table[node] >= 0
        at = table[node][exists].long()
        rows, part = group.order[start:stop], error[start:stop][:, exists]
        hidden_gradient[rows] += part @ weight[at].to(hidden.dtype)
        weight_gradient[at] = (part.T @ hidden[rows]).to(weight.dtype)
        if bias_gradient is not None:
            bias_gradient[at] = part.sum(dim=0, dtype=accumulated(part.dtype)).to(bias_gradient.dtype)


def note(
    sums: Tensor, counts: Tensor | None, classes: Tensor, counted: Tensor, probabilities: Tensor
) -> None:
    """Add outputs to the sums of their classes where they count; elsewhere they may be anything."""
    sums.index_add_(0, classes, torch.where(counted[:, None], probabilities.to(sums.dtype), 0))
    if counts is not None:
        counts.index_add_(0, classes, counted.to(counts.dtype))
