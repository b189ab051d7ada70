"""The loss of a batch along the paths of its classes, as one differentiable function.

The backward pass is explicit, so that the gradient of the class weights is written once; autograd would allocate a
full-size gradient for each use of the weights and add them. Eager calls use a `torch.autograd.Function`, compiled calls
custom operators that are opaque to the compiler; both call the same functions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from treemax.torch import grouped, label_loss, plain
from treemax.torch.layer import Gradients, Layer, Pairs, Rows, SavedForBackward, accumulation_dtype
from treemax.torch.reassignment import Statistics


def path_loss(
    hidden: Tensor,
    target: Tensor,
    layer: Layer,
    ignore_index: int,
    reduction: str,
    statistics: Statistics | None = None,
    offsets: Tensor | None = None,
) -> Tensor:
    """Return -log p of the targets (reduction "none"), their mean or their sum.

    Computed in the type of `hidden`. Rows whose target is `ignore_index` have no loss. Eager calls add the outputs of
    nodes to `statistics`, if given. With offsets, rows have several labels, as in `LabelLists`, and the loss is that of
    `treemax.torch.label_loss`.
    """
    if torch.compiler.is_compiling():
        return _forward(hidden, target, offsets, *layer, ignore_index, reduction)[0]
    call = _Call(target, offsets, layer[4:], ignore_index, reduction, statistics)
    return _PathLoss.apply(hidden, *layer[:4], call)


def _compute(
    hidden: Tensor,
    target: Tensor,
    offsets: Tensor | None,
    layer: Layer,
    ignore_index: int,
    reduction: str,
    statistics: Statistics | None = None,
) -> tuple[Tensor, SavedForBackward]:
    hidden, target = hidden.contiguous(), target.contiguous()
    if offsets is not None:
        return label_loss.forward(hidden, target, offsets, layer, ignore_index, reduction)
    backend = grouped if grouped.can_run(hidden, layer) else plain
    return backend.forward(hidden, target, layer, ignore_index, reduction, statistics)


def _differentiate(
    grad_output: Tensor, hidden: Tensor, layer: Layer, saved: SavedForBackward, reduction: str, several: bool
) -> tuple[Tensor, Gradients]:
    if several:
        return label_loss.backward(grad_output, hidden.contiguous(), layer, saved, reduction)
    backend = grouped if grouped.can_run(hidden, layer) else plain
    return backend.backward(grad_output, hidden.contiguous(), layer, saved, reduction)


class _Call(NamedTuple):
    """Arguments of a step without gradients."""

    target: Tensor
    offsets: Tensor | None
    tables: tuple[Any, ...]
    ignore_index: int
    reduction: str
    statistics: Statistics | None


class _PathLoss(torch.autograd.Function):
    """For eager calls. Few arguments and results, because each of them costs time."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        hidden, *parameters, call = arguments
        layer = Layer(*parameters, *call.tables)
        value, saved = _compute(
            hidden, call.target, call.offsets, layer, call.ignore_index, call.reduction, call.statistics
        )
        ctx.save_for_backward(hidden, *parameters, *saved[:2], *saved.outputs)
        ctx.tables, ctx.reduction, ctx.plan = call.tables, call.reduction, saved.plan
        ctx.several = call.offsets is not None
        return value

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError("the loss of a tree layer can be differentiated only once (create_graph=False).")
        hidden, weight, bias, node_weight, node_bias, *tensors = ctx.saved_tensors
        layer = Layer(weight, bias, node_weight, node_bias, *ctx.tables)
        rows, root_error, *outputs = tensors
        saved = SavedForBackward(rows, root_error, outputs, ctx.plan)
        hidden_gradient, gradients = _differentiate(grad_output, hidden, layer, saved, ctx.reduction, ctx.several)
        return hidden_gradient, *gradients, None


# --- custom operators for torch.compile ----------------------------------------------------------------

_LAYER = (
    "Tensor weight, Tensor? bias, Tensor node_weight, Tensor? node_bias, Tensor root_child, Tensor place, "
    "Tensor direct, Tensor root_empty, Tensor bounds, Tensor[] children"
)
_SAVED = "Tensor rows, Tensor root_error, Tensor[] outputs"


def _forward_operator(hidden: Tensor, target: Tensor, offsets: Tensor | None, *rest: Any) -> tuple[Any, ...]:
    *layer, ignore_index, reduction = rest
    value, saved = _compute(hidden, target, offsets, Layer(*layer), ignore_index, reduction)
    return value, *saved[:3]


def _backward_operator(grad_output: Tensor, hidden: Tensor, *rest: Any) -> tuple[Any, ...]:
    layer, saved = Layer(*rest[:10]), SavedForBackward(*rest[10:13])
    hidden_gradient, gradients = _differentiate(grad_output, hidden, layer, saved, *rest[13:])
    nothing = hidden_gradient.new_empty(0)
    return hidden_gradient, *(nothing.clone() if part is None else part for part in gradients)


_forward = torch.library.custom_op(
    "treemax::path_loss", _forward_operator, mutates_args=(),
    schema=f"(Tensor hidden, Tensor target, Tensor? offsets, {_LAYER}, int ignore_index, str reduction)"
    " -> (Tensor, Tensor, Tensor, Tensor[])",
)  # fmt: skip
_backward = torch.library.custom_op(
    "treemax::path_loss_backward", _backward_operator, mutates_args=(),
    schema=f"(Tensor grad_output, Tensor hidden, {_LAYER}, {_SAVED}, str reduction, bool several)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)  # fmt: skip


@_forward.register_fake
def _forward_shapes(hidden: Tensor, target: Tensor, offsets: Tensor | None, *rest: Any) -> Any:
    layer, reduction = Layer(*rest[:10]), rest[-1]
    n_rows, width = hidden.shape[0], layer.root_empty.shape[0]
    kind = Rows if offsets is None else Pairs
    return (
        hidden.new_empty(n_rows if reduction == "none" else (), dtype=accumulation_dtype(hidden.dtype)),
        target.new_empty(kind.packed_size(target.numel(), layer)),
        hidden.new_empty(n_rows, width),
        [hidden.new_empty(target.numel(), table.shape[1]) for table in layer.children],
    )


@_backward.register_fake
def _backward_shapes(grad_output: Tensor, hidden: Tensor, *rest: Any) -> Any:
    nothing = hidden.new_empty(0)
    parts = (nothing.clone() if part is None else torch.empty_like(part) for part in rest[:4])
    return torch.empty_like(hidden), *parts


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    hidden, _, offsets, *rest = inputs
    layer = Layer(*rest[:10])
    _, *saved, outputs = output
    ctx.set_materialize_grads(False)
    ctx.reduction, ctx.n_levels, ctx.several = rest[-1], len(layer.children), offsets is not None
    ctx.save_for_backward(hidden, *layer[:9], *layer.children, *saved, *outputs)


def _differentiate_operator(ctx: Any, grad_output: Tensor | None, *others: Any) -> tuple[Any, ...]:
    n_levels = ctx.n_levels
    if grad_output is None:
        return (*[None] * 12, [None] * n_levels, None, None)
    hidden, *tensors = ctx.saved_tensors
    children, (rows, root_error, *outputs) = tensors[9 : 9 + n_levels], tensors[9 + n_levels :]
    layer = Layer._make([*tensors[:9], children])
    saved = rows, root_error, outputs
    hidden_gradient, *parts = _backward(grad_output, hidden, *layer, *saved, ctx.reduction, ctx.several)
    parts = [None if parameter is None else part for parameter, part in zip(layer[:4], parts)]
    return hidden_gradient, None, None, *parts, *[None] * 5, [None] * n_levels, None, None


_forward.register_autograd(_differentiate_operator, setup_context=_setup_context)
