"""The loss of a batch along the paths of its classes, as one differentiable step.

Forward and backward are written out, so that the gradient of the class weights is filled once, by whoever knows
which rows it has: the automatic one would make a gradient of full size for each use of the weights and add them
up. Eager calls go through a `torch.autograd.Function`, compiled ones through operators that the compiler need not
look into; both call the same functions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from treemax.torch import grouped, plain
from treemax.torch.layer import Gradients, Kept, Layer, Rows, accumulated
from treemax.torch.reassignment import Statistics


def path_loss(
    hidden: Tensor,
    target: Tensor,
    layer: Layer,
    ignore_index: int,
    reduction: str,
    statistics: Statistics | None = None,
) -> Tensor:
    """-log p of the classes of the rows (reduction "none"), their mean or their sum.

    Computed in the type of `hidden`, whatever the type of the parameters. Rows whose target is `ignore_index`
    have no loss. The outputs of nodes are added to the statistics, if there are any; not by compiled calls.
    """
    if torch.compiler.is_compiling():
        return _forward(hidden, target, *layer, ignore_index, reduction)[0]
    call = _Call(target, layer[4:], ignore_index, reduction, statistics)
    return _PathLoss.apply(hidden, *layer[:4], call)


def _compute(
    hidden: Tensor,
    target: Tensor,
    layer: Layer,
    ignore_index: int,
    reduction: str,
    statistics: Statistics | None = None,
) -> tuple[Tensor, Kept]:
    way = grouped if grouped.can_run(hidden, layer) else plain
    return way.forward(hidden.contiguous(), target.contiguous(), layer, ignore_index, reduction, statistics)


def _differentiate(
    slope: Tensor, hidden: Tensor, layer: Layer, kept: Kept, reduction: str
) -> tuple[Tensor, Gradients]:
    way = grouped if grouped.can_run(hidden, layer) else plain
    return way.backward(slope, hidden.contiguous(), layer, kept, reduction)


class _Call(NamedTuple):
    """What a step is about but for the tensors that have gradients."""

    target: Tensor
    tables: tuple[Any, ...]
    ignore_index: int
    reduction: str
    statistics: Statistics | None


class _PathLoss(torch.autograd.Function):
    """For eager calls. Each argument and result of such a function takes time, so they are few."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        hidden, *parameters, call = arguments
        layer = Layer(*parameters, *call.tables)
        value, kept = _compute(hidden, call.target, layer, call.ignore_index, call.reduction, call.statistics)
        ctx.save_for_backward(hidden, *parameters, *kept[:2], *kept.outputs)
        ctx.tables, ctx.reduction, ctx.plan = call.tables, call.reduction, kept.plan
        return value

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "the loss of a tree softmax can be differentiated only once (create_graph=False)."
            )
        hidden, weight, bias, node_weight, node_bias, *saved = ctx.saved_tensors
        layer = Layer(weight, bias, node_weight, node_bias, *ctx.tables)
        rows, root_error, *outputs = saved
        kept = Kept(rows, root_error, outputs, ctx.plan)
        hidden_gradient, gradients = _differentiate(slope, hidden, layer, kept, ctx.reduction)
        return hidden_gradient, *gradients, None


# --- operators for the compiler ------------------------------------------------------------------------

_LAYER = (
    "Tensor weight, Tensor? bias, Tensor node_weight, Tensor? node_bias, Tensor root_child, Tensor place, "
    "Tensor direct, Tensor root_empty, Tensor bounds, Tensor[] children"
)
_KEPT = "Tensor rows, Tensor root_error, Tensor[] outputs"


def _forward_operator(hidden: Tensor, target: Tensor, *rest: Any) -> tuple[Any, ...]:
    *layer, ignore_index, reduction = rest
    value, kept = _compute(hidden, target, Layer(*layer), ignore_index, reduction)
    return value, *kept[:3]


def _backward_operator(slope: Tensor, hidden: Tensor, *rest: Any) -> tuple[Any, ...]:
    layer, kept, reduction = Layer(*rest[:10]), Kept(*rest[10:13]), rest[13]
    hidden_gradient, gradients = _differentiate(slope, hidden, layer, kept, reduction)
    nothing = hidden_gradient.new_empty(0)
    return hidden_gradient, *(nothing.clone() if part is None else part for part in gradients)


_forward = torch.library.custom_op(
    "treemax::path_loss", _forward_operator, mutates_args=(),
    schema=f"(Tensor hidden, Tensor target, {_LAYER}, int ignore_index, str reduction)"
    " -> (Tensor, Tensor, Tensor, Tensor[])",
)  # fmt: skip
_backward = torch.library.custom_op(
    "treemax::path_loss_backward", _backward_operator, mutates_args=(),
    schema=f"(Tensor slope, Tensor hidden, {_LAYER}, {_KEPT}, str reduction)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)  # fmt: skip


@_forward.register_fake
def _forward_shapes(hidden: Tensor, target: Tensor, *rest: Any) -> Any:
    layer, reduction = Layer(*rest[:10]), rest[-1]
    n_rows, width = hidden.shape[0], layer.root_empty.shape[0]
    return (
        hidden.new_empty(n_rows if reduction == "none" else (), dtype=accumulated(hidden.dtype)),
        target.new_empty(Rows.packed_size(n_rows, layer)),
        hidden.new_empty(n_rows, width),
        [hidden.new_empty(n_rows, table.shape[1]) for table in layer.children],
    )


@_backward.register_fake
def _backward_shapes(slope: Tensor, hidden: Tensor, *rest: Any) -> Any:
    nothing = hidden.new_empty(0)
    parts = (nothing.clone() if part is None else torch.empty_like(part) for part in rest[:4])
    return torch.empty_like(hidden), *parts


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    hidden, _, *rest = inputs
    layer = Layer(*rest[:10])
    _, *kept, outputs = output
    ctx.set_materialize_grads(False)
    ctx.reduction, ctx.n_levels = rest[-1], len(layer.children)
    ctx.save_for_backward(hidden, *layer[:9], *layer.children, *kept, *outputs)


def _differentiate_operator(ctx: Any, slope: Tensor | None, *others: Any) -> tuple[Any, ...]:
    n_levels = ctx.n_levels
    if slope is None:
        return (*[None] * 11, [None] * n_levels, None, None)
    hidden, *saved = ctx.saved_tensors
    children, (rows, root_error, *outputs) = saved[9 : 9 + n_levels], saved[9 + n_levels :]
    layer = Layer._make([*saved[:9], children])
    hidden_gradient, *parts = _backward(slope, hidden, *layer, rows, root_error, outputs, ctx.reduction)
    parts = [None if parameter is None else part for parameter, part in zip(layer[:4], parts)]
    return hidden_gradient, None, *parts, *[None] * 5, [None] * n_levels, None, None


_forward.register_autograd(_differentiate_operator, setup_context=_keep)
