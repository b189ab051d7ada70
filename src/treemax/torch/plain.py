"""The loss along paths and its gradient in plain PyTorch, for any device and type.

A loop over the nodes that a batch reaches. Used on CPUs, and as the reference for the tests of the GPU kernels.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from treemax.torch.layer import Entries, Gradients, Layer, Pairs, Rows, SavedForBackward, accumulation_dtype
from treemax.torch.reassignment import Statistics


def forward(
    hidden: Tensor, target: Tensor, layer: Layer, ignore_index: int, reduction: str, statistics: Statistics | None
) -> tuple[Tensor, SavedForBackward]:
    """Return -log p of the targets, and the tensors for the backward pass; add the outputs to `statistics`."""
    packed = pack_rows(target, layer, ignore_index)
    rows = Rows.unpack(packed, len(target), layer)
    log_probability = torch.log_softmax(root_logits(hidden, layer), dim=1)
    counted = rows.root_target >= 0
    own = rows.root_target.clamp(min=0)[:, None]
    loss = -log_probability.gather(1, own).squeeze(1) * counted
    probability = log_probability.exp_()
    outputs = []
    for level in range(len(layer.children)):
        logits = node_logits(hidden, layer, level, rows.order, rows.starts[level])
        outputs.append(_level_softmax(logits, rows, level, layer, loss, hidden.dtype))
    if statistics is not None:
        _add_statistics(statistics, target, rows, probability, outputs)
    one = torch.ones_like(own, dtype=probability.dtype)
    root_error = probability.scatter_add_(1, own, -one).mul_(counted[:, None]).to(hidden.dtype)
    value = {"none": loss, "sum": loss.sum(), "mean": loss.sum() / rows.n_counted}[reduction]
    return value, SavedForBackward(packed, root_error, outputs)


def pack_rows(target: Tensor, layer: Layer, ignore_index: int) -> Tensor:
    """Return the rows of a batch sorted by place in the tree, packed for `Rows.unpack`."""
    counted = target != ignore_index
    known = target.masked_fill(~counted, 0)
    root_target = layer.root_child[known].masked_fill_(~counted, -1)
    place = layer.place[known].masked_fill_(~counted, layer.n_places).long()
    return packed_in_order(root_target, place, layer)


def packed_in_order(root_target: Tensor, place: Tensor, layer: Layer) -> Tensor:
    """Return `pack_rows` from the root's child and the place of each row."""
    in_order, order = torch.sort(place, stable=True)
    starts = torch.searchsorted(in_order, layer.bounds)
    numbers = torch.stack([(root_target >= 0).sum(), order.new_zeros(())])
    return torch.cat([root_target, order, in_order, starts, numbers])


def _level_softmax(logits: Tensor, rows: Rows, level: int, layer: Layer, loss: Tensor, dtype: torch.dtype) -> Tensor:
    """Return probabilities of the children of a level; adds -log p of the target children to the loss."""
    log_probability = torch.log_softmax(logits, dim=1)
    part = -log_probability.gather(1, _target_child(rows, layer, level)[:, None]).squeeze(1)
    loss.index_add_(0, rows.order, part.masked_fill_(rows.place >= layer.n_places, 0))
    return log_probability.exp_().to(dtype)


def _target_child(rows: Rows, layer: Layer, level: int) -> Tensor:
    """Return the index of the child on the path of each row's class, in the order of the tree."""
    below = layer.n_places // layer.children[level].numel()
    return rows.place // below % layer.children[level].shape[1]


def _add_statistics(
    statistics: Statistics, classes: Tensor, rows: Rows, probability: Tensor, outputs: list[Tensor]
) -> None:
    """Add outputs to the sums of the rows' classes, except for rows with a direct class."""
    n_direct, n_top = statistics.n_direct, statistics.sums[0].shape[1]
    counted = rows.root_target >= n_direct
    classes = torch.where(counted, classes, 0)
    statistics.counts.index_add_(0, classes, counted.to(statistics.counts.dtype))
    parts = [probability[:, n_direct : n_direct + n_top], *outputs]
    for level, (sums, part) in enumerate(zip(statistics.sums, parts)):
        order = rows.order if level else slice(None)
        part = torch.where(counted[order, None], part.to(sums.dtype), 0)
        sums.index_add_(0, classes[order], part)


def root_logits(hidden: Tensor, layer: Layer) -> Tensor:
    """Return logits of the root's children, differentiable; minus infinity for those without classes below."""
    logits = (hidden @ root_weight(hidden.dtype, layer).T).to(accumulation_dtype(hidden.dtype))
    return logits + root_bias(layer)


def root_weight(dtype: torch.dtype, layer: Layer) -> Tensor:
    """Return weights of the root's children: direct classes, top nodes, padding."""
    rows = torch.cat([layer.weight.index_select(0, layer.direct), layer.node_weight[: layer.n_top]]).to(dtype)
    return torch.nn.functional.pad(rows, (0, 0, 0, len(layer.root_empty) - len(rows)))


def root_bias(layer: Layer) -> Tensor:
    """Return biases of the root's children; minus infinity for those without classes below."""
    if layer.bias is None or layer.node_bias is None:
        bias = layer.weight.new_zeros(len(layer.root_empty))
    else:
        bias = torch.cat([layer.bias.index_select(0, layer.direct), layer.node_bias[: layer.n_top]])
        bias = torch.nn.functional.pad(bias, (0, len(layer.root_empty) - len(bias)))
    return bias.to(accumulation_dtype(bias.dtype)).masked_fill(layer.root_empty, -torch.inf)


def node_logits(hidden: Tensor, layer: Layer, level: int, rows: Tensor, starts: Tensor) -> Tensor:
    """Return logits of the children of each row's node, in the order of the groups; -inf for missing children.

    Rows after the last group get zeros.
    """
    table = layer.children[level]
    weight, bias = layer.parameters_of(level)
    kind = accumulation_dtype(hidden.dtype)
    logits = torch.zeros(len(rows), table.shape[1], dtype=kind, device=hidden.device)
    for node, start, stop in _nonempty_nodes(starts):
        child = table[node]
        at = child.clamp(min=0).long()
        part = (hidden[rows[start:stop]] @ weight[at].to(hidden.dtype).T).to(kind)
        if bias is not None:
            part += bias[at].to(kind)
        logits[start:stop] = part.masked_fill_(child < 0, -torch.inf)
    return logits


def _nonempty_nodes(starts: Tensor) -> list[tuple[int, int, int]]:
    """Return nodes with rows, and the start and end of their rows."""
    bounds = starts.tolist()
    return [(node, a, b) for node, (a, b) in enumerate(pairwise(bounds)) if b > a]


def binary_at_root(logits: Tensor, children: Entries, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the binary cross-entropy of each row at the root, and its gradient by the logits; overwrites the logits.

    `children` are the positive children of the rows, -1 for none.
    """
    return _binary(logits, children.row, children.values, children.values >= 0, dtype)


def binary_at_level(
    logits: Tensor, pairs: Pairs, places: Entries, layer: Layer, level: int, loss: Tensor, dtype: torch.dtype
) -> Tensor:
    """The gradient of the binary cross-entropy by the logits of pairs of row and node; adds it to the rows' losses."""
    table = layer.children[level]
    n_rows, (n_nodes, arity) = len(loss), table.shape
    child = places.values // (layer.n_places // table.numel())
    pair = torch.searchsorted(pairs.nodes * n_rows + pairs.rows, child // arity * n_rows + places.row)
    part, error = _binary(logits, pair, child % arity, child < n_nodes * arity, dtype)
    used = torch.arange(len(part), device=part.device) < pairs.starts[-1]
    loss.index_add_(0, pairs.rows, part.masked_fill_(~used, 0))
    return error


def _binary(logits: Tensor, at: Tensor, child: Tensor, is_child: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return binary cross-entropy where child[i] of row at[i] is positive, and its gradient by the logits."""
    positive = torch.zeros_like(logits, dtype=torch.int8)
    place = at * logits.shape[1] + child.masked_fill(~is_child, 0)
    positive.view(-1).scatter_reduce_(0, place, is_child.to(torch.int8), "amax")
    negative_loss = torch.logaddexp(logits, logits.new_zeros(())).sum(dim=1)  # 0 for missing children, of logit -inf
    loss = negative_loss - torch.where(positive > 0, logits, 0).sum(dim=1)
    return loss, logits.sigmoid_().sub_(positive).to(dtype)


def backward(
    grad_output: Tensor, hidden: Tensor, layer: Layer, saved: SavedForBackward, reduction: str
) -> tuple[Tensor, Gradients]:
    """Return gradients by hidden and by the parameters."""
    rows = Rows.unpack(saved.rows, len(hidden), layer)
    if reduction == "mean":
        grad_output = grad_output / rows.n_counted.clamp(min=1)
    row_gradients = grad_output.expand(len(hidden))
    gradients = Gradients.like(layer)
    hidden_gradient = set_root(saved.root_error, hidden, layer, row_gradients, gradients)
    for level in range(len(layer.children)):
        error = _error(saved.outputs[level], _target_child(rows, layer, level), row_gradients[rows.order], hidden.dtype)
        add_level(error, hidden, layer, level, rows.order, rows.starts[level], hidden_gradient, gradients)
    return hidden_gradient, gradients


def set_root(root_error: Tensor, hidden: Tensor, layer: Layer, row_gradients: Tensor, gradients: Gradients) -> Tensor:
    """Write the gradients by the parameters of the root's children; returns the root's part of that by hidden."""
    error = (root_error * row_gradients[:, None]).to(hidden.dtype)
    weight, bias = error.T @ hidden, error.sum(dim=0, dtype=accumulation_dtype(error.dtype))
    n_direct, n_top = len(layer.direct), layer.n_top
    gradients.weight.index_copy_(0, layer.direct, weight[:n_direct].to(gradients.weight.dtype))
    gradients.node_weight[:n_top] = weight[n_direct : n_direct + n_top]
    if gradients.bias is not None and gradients.node_bias is not None:
        gradients.bias.index_copy_(0, layer.direct, bias[:n_direct].to(gradients.bias.dtype))
        gradients.node_bias[:n_top] = bias[n_direct : n_direct + n_top]
    return error @ root_weight(hidden.dtype, layer)


def _error(output: Tensor, target: Tensor, grad_output: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the gradient of the loss by the logits."""
    error = output.to(grad_output.dtype) * grad_output[:, None]
    error.scatter_add_(1, target[:, None], -grad_output[:, None])
    return error.to(dtype)


def add_level(
    error: Tensor, hidden: Tensor, layer: Layer, level: int, order: Tensor, starts: Tensor, hidden_gradient: Tensor,
    gradients: Gradients,
) -> None:  # fmt: skip
    """Add the gradient by hidden of a level, and write the gradients by its children's parameters.

    The rows of node v are order[starts[v] : starts[v + 1]]; the errors are in this order.
    """
    table = layer.children[level]
    weight, _ = layer.parameters_of(level)
    weight_gradient, bias_gradient = gradients.parameters_of(layer, level)
    rows_of_level = table[table >= 0].long()
    weight_gradient[rows_of_level] = 0
    if bias_gradient is not None:
        bias_gradient[rows_of_level] = 0
    for node, start, stop in _nonempty_nodes(starts):
        exists = table[node] >= 0
        at = table[node][exists].long()
        of_node, part = order[start:stop], error[start:stop][:, exists]
        hidden_gradient[of_node] += part @ weight[at].to(hidden.dtype)
        weight_gradient[at] = (part.T @ hidden[of_node]).to(weight.dtype)
        if bias_gradient is not None:
            bias_gradient[at] = part.sum(dim=0, dtype=accumulation_dtype(part.dtype)).to(bias_gradient.dtype)
