"""The loss of a batch along the paths of its classes, as one differentiable step.

Forward and backward are written out, so that the gradient of the class weights is filled once, by whoever knows
which rows it has: the automatic one would make a gradient of full size for each use of the weights and add them
up. Eager calls go through a `torch.autograd.Function`, compiled ones through operators that the compiler need not
look into; both call the same functions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from treemax.torch import grouped, plain
from treemax.torch.layer import Gradients, Kept, Layer, accumulated


def path_loss(
    hidden: Tensor, target: Tensor, layer: Layer, ignore_index: int, reduction: str
) -> tuple[Tensor, Kept]:
    """-log p of the classes of the rows (reduction "none"), their mean or their sum; and the outputs of nodes.

    Computed in the type of `hidden`, whatever the type of the parameters. Rows whose target is `ignore_index`
    have no loss.
    """
    if torch.compiler.is_compiling():
        value, *rest = _forward(hidden, target, *layer, ignore_index, reduction)
        return value, Kept(*rest)
    call = _Call(target, layer[4:], ignore_index, reduction)
    return _PathLoss.apply(hidden, *layer[:4], call), call.kept


def _compute(
    hidden: Tensor, target: Tensor, layer: Layer, ignore_index: int, reduction: str
) -> tuple[Tensor, Kept]:
    way = grouped if grouped.can_run(hidden, layer) else plain
    return way.forward(hidden.contiguous(), target.contiguous(), layer, ignore_index, reduction)


def _differentiate(slope: Tensor, hidden: Tensor, layer: Layer, kept: Kept) -> tuple[Tensor, Gradients]:
    way = grouped if grouped.can_run(hidden, layer) else plain
    return way.backward(slope, hidden.contiguous(), layer, kept)


def _flat(layer: Layer) -> tuple[Any, ...]:
    return (*layer[:8], *layer.bounds, *layer.children)


def _layer_of(flat: Any) -> Layer:
    """The layer back from `_flat`."""
    n_levels = (len(flat) - 8) // 2
    return Layer._make([*flat[:8], list(flat[8 : 8 + n_levels]), list(flat[8 + n_levels :])])


def _kept_of(flat: Any) -> Kept:
    """What was kept back from its tensors one after the other."""
    n_levels = (len(flat) - 4) // 4
    return Kept(*flat[:4], *(flat[4 + i * n_levels : 4 + (i + 1) * n_levels] for i in range(4)))


class _Call:
    """What a step is about but for the tensors that have gradients, and what the forward pass leaves."""

    kept: Kept

    def __init__(self, target: Tensor, tables: tuple[Any, ...], ignore_index: int, reduction: str) -> None:
        self.target, self.tables = target, tables
        self.ignore_index, self.reduction = ignore_index, reduction


class _PathLoss(torch.autograd.Function):
    """For eager calls. Each argument and result of such a function takes time, so they are few."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        hidden, *parameters, call = arguments
        layer = Layer(*parameters, *call.tables)
        value, call.kept = _compute(hidden, call.target, layer, call.ignore_index, call.reduction)
        kept = call.kept
        ctx.save_for_backward(
            hidden, *parameters, *kept[:4], *kept.outputs, *kept.orders, *kept.starts, *kept.child
        )
        ctx.tables = call.tables
        return value

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "the loss of a tree softmax can be differentiated only once (create_graph=False)."
            )
        hidden, *saved = ctx.saved_tensors
        layer = Layer(*saved[:4], *ctx.tables)
        hidden_gradient, gradients = _differentiate(slope, hidden, layer, _kept_of(saved[4:]))
        return hidden_gradient, *gradients, None


# --- operators for the compiler ------------------------------------------------------------------------

_LAYER = (
    "Tensor weight, Tensor? bias, Tensor node_weight, Tensor? node_bias, Tensor root_child, Tensor place, "
    "Tensor direct, Tensor root_empty, Tensor[] bounds, Tensor[] children"
)
_KEPT = (
    "Tensor root_target, Tensor root_weight, Tensor root_output, Tensor scale, Tensor[] outputs, Tensor[] orders, "
    "Tensor[] starts, Tensor[] child"
)


def _forward_operator(hidden: Tensor, target: Tensor, *rest: Any) -> tuple[Any, ...]:
    *layer, ignore_index, reduction = rest
    value, kept = _compute(hidden, target, Layer(*layer), ignore_index, reduction)
    return value, *kept


def _backward_operator(slope: Tensor, hidden: Tensor, *rest: Any) -> tuple[Any, ...]:
    hidden_gradient, gradients = _differentiate(slope, hidden, Layer(*rest[:10]), Kept(*rest[10:]))
    nothing = hidden_gradient.new_empty(0)
    return hidden_gradient, *(nothing.clone() if part is None else part for part in gradients)


_forward = torch.library.custom_op(
    "treemax::path_loss", _forward_operator, mutates_args=(),
    schema=f"(Tensor hidden, Tensor target, {_LAYER}, int ignore_index, str reduction)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor[], Tensor[], Tensor[], Tensor[])",
)  # fmt: skip
_backward = torch.library.custom_op(
    "treemax::path_loss_backward", _backward_operator, mutates_args=(),
    schema=f"(Tensor slope, Tensor hidden, {_LAYER}, {_KEPT}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)  # fmt: skip


@_forward.register_fake
def _forward_shapes(hidden: Tensor, target: Tensor, *rest: Any) -> Any:
    layer, reduction = Layer(*rest[:10]), rest[-1]
    rows, width = hidden.shape[0], layer.root_empty.shape[0]
    kind = accumulated(hidden.dtype)
    value = hidden.new_empty(rows if reduction == "none" else (), dtype=kind)
    return (
        value,
        layer.root_child.new_empty(rows),
        hidden.new_empty(width, hidden.shape[1]),
        hidden.new_empty(rows, width),
        hidden.new_empty((), dtype=kind),
        [hidden.new_empty(rows, table.shape[1]) for table in layer.children],
        [layer.place.new_empty(rows, dtype=torch.int64) for _ in layer.children],
        [layer.place.new_empty(table.shape[0] + 1, dtype=torch.int64) for table in layer.children],
        [layer.place.new_empty(rows) for _ in layer.children],
    )


@_backward.register_fake
def _backward_shapes(slope: Tensor, hidden: Tensor, *rest: Any) -> Any:
    nothing = hidden.new_empty(0)
    parts = (nothing.clone() if part is None else torch.empty_like(part) for part in rest[:4])
    return torch.empty_like(hidden), *parts


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    hidden, _, *rest = inputs
    layer = Layer(*rest[:10])
    _, *kept = output
    ctx.set_materialize_grads(False)
    ctx.n_levels = len(layer.children)
    ctx.save_for_backward(
        hidden, *_flat(layer), *kept[:4], *(tensor for tensors in kept[4:] for tensor in tensors)
    )


def _differentiate_operator(ctx: Any, slope: Tensor | None, *others: Any) -> tuple[Any, ...]:
    n_levels = ctx.n_levels
    nothing = [None] * n_levels
    if slope is None:
        return (*[None] * 10, nothing, nothing, None, None)
    hidden, *saved = ctx.saved_tensors
    n_flat = 8 + 2 * n_levels
    layer, tensors = _layer_of(saved[:n_flat]), saved[n_flat:]
    hidden_gradient, *parts = _backward(slope, hidden, *layer, *_kept_of(tensors))
    parts = [None if parameter is None else part for parameter, part in zip(layer[:4], parts)]
    return hidden_gradient, None, *parts, *[None] * 4, nothing, nothing, None, None


_forward.register_autograd(_differentiate_operator, setup_context=_keep)
