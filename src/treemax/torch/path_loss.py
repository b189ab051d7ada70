"""The loss of a batch along the paths of its classes, as an operator that PyTorch can compile around.

Forward and backward are written out, so that the gradient of the class weights is filled once, by whoever
knows which rows it has: the automatic one would make a gradient of full size for each use of the weights and
add them up. On a GPU the nodes below the root are computed by the kernels of `treemax.torch.grouped`; what is
here in plain PyTorch serves everywhere else, and is what those kernels are tested against.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from treemax.torch import grouped


class Layer(NamedTuple):
    """The parameters and tables of a tree, as the operators take them."""

    weight: Tensor
    bias: Tensor | None
    node_weight: Tensor
    node_bias: Tensor | None
    direct: Tensor
    root_empty: Tensor
    children: list[Tensor]

    def root_weight(self, dtype: torch.dtype) -> Tensor:
        """A row for every child of the root: the direct classes and the top nodes."""
        n_top = len(self.root_empty) - len(self.direct)
        return torch.cat([self.weight.index_select(0, self.direct), self.node_weight[:n_top]]).to(dtype)

    def root_bias(self) -> Tensor:
        """Their biases; minus infinity where there is nothing below."""
        n_top = len(self.root_empty) - len(self.direct)
        if self.bias is None or self.node_bias is None:
            bias = torch.zeros(len(self.root_empty), dtype=self.weight.dtype, device=self.weight.device)
        else:
            bias = torch.cat([self.bias.index_select(0, self.direct), self.node_bias[:n_top]])
        return bias.to(accumulated(bias.dtype)).masked_fill_(self.root_empty, -torch.inf)

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
    """Rows ordered by the node that they are at: rows order[starts[v] : starts[v + 1]] are at node v.

    Rows whose class is direct are at no node and come last. `child` is which child of the node is the target's,
    for the rows in this order.
    """

    order: Tensor
    starts: Tensor
    child: Tensor


def group_rows(layer: Layer, place: Tensor, level: int) -> Groups:
    """Group rows by the nodes of a level above their places."""
    n_nodes, arity = layer.children[level].shape
    child, order = torch.sort(place // layer.places_below(level + 1), stable=True)
    starts = torch.searchsorted(child, arity * torch.arange(n_nodes + 1, device=place.device))
    return Groups(order, starts, child % arity)


def accumulated(dtype: torch.dtype) -> torch.dtype:
    """The type in which logits are added up and normalised."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


SCHEMA = (
    "(Tensor hidden, Tensor root_child, Tensor place, Tensor weight, Tensor? bias, Tensor node_weight, "
    "Tensor? node_bias, Tensor direct, Tensor root_empty, Tensor[] children)"
    " -> (Tensor, Tensor, Tensor[], Tensor[], Tensor[], Tensor[])"
)
BACKWARD_SCHEMA = (
    "(Tensor slope, Tensor hidden, Tensor root_child, Tensor weight, Tensor? bias, Tensor node_weight, "
    "Tensor? node_bias, Tensor direct, Tensor root_empty, Tensor[] children, Tensor root_output, "
    "Tensor[] outputs, Tensor[] orders, Tensor[] starts, Tensor[] target_children)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)


def path_loss_forward(
    hidden: Tensor, root_child: Tensor, place: Tensor, weight: Tensor, bias: Tensor | None, node_weight: Tensor,
    node_bias: Tensor | None, direct: Tensor, root_empty: Tensor, children: list[Tensor],
) -> tuple[Tensor, Tensor, list[Tensor], list[Tensor], list[Tensor], list[Tensor]]:  # fmt: skip
    """-log p of the class of each row, and what the backward pass and the statistics need: the probabilities
    of the root's children, and for each level those of the node's children, with the grouping of its rows."""
    layer = Layer(weight, bias, node_weight, node_bias, direct, root_empty, children)
    fast = grouped.can_run(hidden, weight)
    node_logits = grouped.node_logits if fast else plain_node_logits
    level_softmax = grouped.level_softmax if fast else plain_level_softmax
    root_softmax = grouped.root_softmax if fast else plain_root_softmax
    hidden = hidden.contiguous()
    root_output, loss = root_softmax(root_logits(hidden, layer), layer.root_bias(), root_child, hidden.dtype)
    outputs, groups = [], []
    for level in range(len(children)):
        group = group_rows(layer, place, level)
        logits = node_logits(hidden, layer, level, group.order, group.starts)
        outputs.append(level_softmax(logits, group, loss, hidden.dtype))
        groups.append(group)
    orders, starts, targets = ([group[i] for group in groups] for i in range(3))
    return loss, root_output, outputs, orders, starts, targets


def root_logits(hidden: Tensor, layer: Layer) -> Tensor:
    """Without biases; in the type that they were added up in, where the device gives that."""
    weight = layer.root_weight(hidden.dtype)
    if hidden.is_cuda and hidden.dtype in grouped.HALVES:
        return torch.mm(hidden, weight.T, out_dtype=torch.float32)
    return hidden @ weight.T


def plain_root_softmax(logits: Tensor, bias: Tensor, target: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Probabilities of the root's children, and -log of the target's."""
    log_probability = torch.log_softmax(logits.to(accumulated(dtype)) + bias, dim=1)
    loss = -log_probability.gather(1, target[:, None]).squeeze(1)
    return log_probability.exp_().to(dtype), loss


def plain_level_softmax(logits: Tensor, group: Groups, loss: Tensor, dtype: torch.dtype) -> Tensor:
    """Probabilities of the children of a level; -log of the targets' are added to the loss."""
    log_probability = torch.log_softmax(logits, dim=1)
    part = -log_probability.gather(1, group.child[:, None]).squeeze(1)
    reached = torch.arange(len(part), device=part.device) < group.starts[-1]
    loss.index_add_(0, group.order, part.masked_fill_(~reached, 0))
    return log_probability.exp_().to(dtype)


def plain_node_logits(hidden: Tensor, layer: Layer, level: int, rows: Tensor, starts: Tensor) -> Tensor:
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
    return [(node, a, b) for node, (a, b) in enumerate(zip(bounds, bounds[1:])) if b > a]


def path_loss_backward(
    slope: Tensor, hidden: Tensor, root_child: Tensor, weight: Tensor, bias: Tensor | None, node_weight: Tensor,
    node_bias: Tensor | None, direct: Tensor, root_empty: Tensor, children: list[Tensor], root_output: Tensor,
    outputs: list[Tensor], orders: list[Tensor], starts: list[Tensor], target_children: list[Tensor],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of hidden, weight, bias, node_weight and node_bias; `slope` is that of each row's loss."""
    layer = Layer(weight, bias, node_weight, node_bias, direct, root_empty, children)
    fast = grouped.can_run(hidden, weight)
    gradients = Gradients.like(layer)
    if fast:
        error = grouped.error_of(root_output, root_child, slope)
    else:
        error = _error(root_output, root_child, slope, hidden.dtype)
    hidden_gradient = error @ layer.root_weight(hidden.dtype)
    gradients.set_root(layer, error.T @ hidden, error.sum(dim=0, dtype=accumulated(error.dtype)))
    add_level = grouped.add_level_gradients if fast else plain_level_gradients
    for level in range(len(children)):
        group = Groups(orders[level], starts[level], target_children[level])
        add_level(hidden, layer, level, group, outputs[level], slope, hidden_gradient, gradients)
    return hidden_gradient, *gradients


class Gradients(NamedTuple):
    """Of the parameters. Every class is a child of one node, so every row is written once."""

    weight: Tensor
    bias: Tensor
    node_weight: Tensor
    node_bias: Tensor

    @classmethod
    def like(cls, layer: Layer) -> Gradients:
        """Unwritten, but for nodes without classes, which have no gradient; no biases, no room for theirs."""
        n_classes, n_nodes = len(layer.weight), len(layer.node_weight)
        return cls(
            torch.empty_like(layer.weight),
            layer.weight.new_empty(n_classes if layer.bias is not None else 0),
            torch.zeros_like(layer.node_weight),
            layer.weight.new_zeros(n_nodes if layer.node_bias is not None else 0),
        )

    def set_root(self, layer: Layer, weight: Tensor, bias: Tensor) -> None:
        n_direct = len(layer.direct)
        n_top = len(layer.root_empty) - n_direct
        self.weight.index_copy_(0, layer.direct, weight[:n_direct].to(self.weight.dtype))
        self.node_weight[:n_top] = weight[n_direct:]
        if layer.bias is not None:
            self.bias.index_copy_(0, layer.direct, bias[:n_direct].to(self.bias.dtype))
            self.node_bias[:n_top] = bias[n_direct:]

    def parameters_of(self, layer: Layer, level: int) -> tuple[Tensor, Tensor]:
        last = level == len(layer.children) - 1
        return (self.weight, self.bias) if last else (self.node_weight, self.node_bias)


def _error(output: Tensor, target: Tensor, slope: Tensor, dtype: torch.dtype) -> Tensor:
    """The gradient of the loss by the logits."""
    error = output.to(slope.dtype) * slope[:, None]
    error.scatter_add_(1, target[:, None], -slope[:, None])
    return error.to(dtype)


def plain_level_gradients(
    hidden: Tensor, layer: Layer, level: int, group: Groups, output: Tensor, slope: Tensor, hidden_gradient: Tensor,
    gradients: Gradients,
) -> None:  # fmt: skip
    """Add what a level says of hidden, and fill in the gradients of its children's parameters."""
    table = layer.children[level]
    weight, bias = layer.parameters_of(level)
    weight_gradient, bias_gradient = gradients.parameters_of(layer, level)
    rows_of_level = table[table >= 0].long()
    weight_gradient[rows_of_level] = 0
    if bias is not None:
        bias_gradient[rows_of_level] = 0
    error = _error(output, group.child, slope[group.order], hidden.dtype)
    for node, start, stop in _occupied(group.starts):
        exists = table[node] >= 0
        at = table[node][exists].long()
        rows, part = group.order[start:stop], error[start:stop][:, exists]
        hidden_gradient[rows] += part @ weight[at].to(hidden.dtype)
        weight_gradient[at] = (part.T @ hidden[rows]).to(weight.dtype)
        if bias is not None:
            bias_gradient[at] = part.sum(dim=0, dtype=accumulated(part.dtype)).to(bias.dtype)


# --- the operators -------------------------------------------------------------------------------------

_forward = torch.library.custom_op(
    "treemax::path_loss", path_loss_forward, mutates_args=(), schema=SCHEMA
)
_backward = torch.library.custom_op(
    "treemax::path_loss_backward", path_loss_backward, mutates_args=(), schema=BACKWARD_SCHEMA
)


@_forward.register_fake
def _forward_shapes(
    hidden: Tensor, root_child: Tensor, place: Tensor, weight: Tensor, bias: Tensor | None, node_weight: Tensor,
    node_bias: Tensor | None, direct: Tensor, root_empty: Tensor, children: list[Tensor],
) -> Any:  # fmt: skip
    rows = hidden.shape[0]
    loss = hidden.new_empty(rows, dtype=accumulated(hidden.dtype))
    outputs = [hidden.new_empty(rows, table.shape[1]) for table in children]
    orders, targets = ([place.new_empty(rows) for _ in children] for _ in range(2))
    starts = [place.new_empty(table.shape[0] + 1) for table in children]
    return loss, hidden.new_empty(rows, len(root_empty)), outputs, orders, starts, targets


@_backward.register_fake
def _backward_shapes(
    slope: Tensor, hidden: Tensor, root_child: Tensor, weight: Tensor, bias: Tensor | None, node_weight: Tensor,
    node_bias: Tensor | None, *rest: Any,
) -> Any:  # fmt: skip
    return (
        torch.empty_like(hidden),
        torch.empty_like(weight),
        weight.new_empty(0 if bias is None else bias.shape[0]),
        torch.empty_like(node_weight),
        weight.new_empty(0 if node_bias is None else node_bias.shape[0]),
    )


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    hidden, root_child, _, weight, bias, node_weight, node_bias, direct, root_empty, children = inputs
    _, root_output, outputs, orders, starts, targets = output
    ctx.set_materialize_grads(False)
    ctx.n_levels = len(children)
    ctx.save_for_backward(
        hidden, root_child, weight, bias, node_weight, node_bias, direct, root_empty, root_output,
        *children, *outputs, *orders, *starts, *targets,
    )  # fmt: skip


def _differentiate(ctx: Any, slope: Tensor | None, *others: Any) -> tuple[Any, ...]:
    if slope is None:
        return (*[None] * 9, [None] * ctx.n_levels)
    hidden, root_child, weight, bias, node_weight, node_bias, direct, root_empty, root_output, *lists = (
        ctx.saved_tensors
    )
    children, outputs, orders, starts, targets = (
        lists[i * ctx.n_levels : (i + 1) * ctx.n_levels] for i in range(5)
    )
    dx, dw, db, dn, dnb = _backward(
        slope.contiguous(), hidden, root_child, weight, bias, node_weight, node_bias, direct, root_empty, children,
        root_output, outputs, orders, starts, targets,
    )  # fmt: skip
    if bias is None:
        db = dnb = None
    return dx, None, None, dw, db, dn, dnb, None, None, [None] * ctx.n_levels


_forward.register_autograd(_differentiate, setup_context=_keep)


def path_loss(hidden: Tensor, root_child: Tensor, place: Tensor, layer: Layer) -> tuple[Any, ...]:
    """-log p of each row's class, differentiable, and the further results of `path_loss_forward`.

    Computed in the type of `hidden`, whatever the type of the parameters.
    """
    return _forward(hidden, root_child, place, *layer)
