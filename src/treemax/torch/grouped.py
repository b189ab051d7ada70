"""A tree softmax on a GPU: many small softmaxes at once, each row at the node that it belongs to.

Rows are ordered by node and cut into tiles that lie within one node. Nothing here waits for the device: how
many tiles a node has is known to the kernels only, and programs without rows end at once. So a step can be
recorded as a graph.
"""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

from treemax.torch.layer import Gradients, Groups, Kept, Layer, group_rows

HALVES = (torch.bfloat16, torch.float16)
WIDEST_NODE = 16_384  # children whose logits one program can hold
WIDEST_BEST = 8_192  # numbers of which one program can find the best
MOST_BEST = 32  # of them, one after the other


class Blocks(NamedTuple):
    """How much of a matrix one program of a kernel has at a time, and how Triton is to run it."""

    children: int
    features: int
    warps: int
    stages: int

    def within(self, arity: int, features: int) -> Blocks:
        """No larger than what there is."""
        return self._replace(
            children=min(self.children, max(16, _power_of_two(arity))),
            features=min(self.features, max(16, _power_of_two(features))),
        )


# Found by trying on an NVIDIA H200, with rows of 200 and 1,024 features. Products of float32 first.
LOGITS = {True: Blocks(64, 64, 4, 3), False: Blocks(64, 128, 4, 3)}
HIDDEN_GRADIENT = {True: Blocks(32, 128, 4, 3), False: Blocks(32, 128, 4, 3)}
WEIGHT_GRADIENT = {True: Blocks(32, 128, 4, 3), False: Blocks(64, 128, 4, 3)}


def can_run(hidden: Tensor, layer: Layer) -> bool:
    """Whether the kernels can be used: on a GPU, with types that its matrix units know, and nodes not too wide."""
    widest = max([table.shape[1] for table in layer.children], default=0)
    return can_use(hidden) and layer.weight.dtype in (*HALVES, torch.float32) and widest <= WIDEST_NODE


def can_use(tensor: Tensor) -> bool:
    """Whether kernels can work on a tensor."""
    return tensor.is_cuda and tensor.dtype in (*HALVES, torch.float32) and _kernels() is not None


@cache
def _kernels() -> Any:
    """The module with the kernels; none where Triton is not installed or is switched off."""
    if find_spec("triton") is None or os.environ.get("TREEMAX_TRITON") == "0":
        return None
    from treemax.torch import triton_kernels

    return triton_kernels


def _precision(dtype: torch.dtype) -> str:
    """Products of float32 are rounded to the 10 bits of TF32 where PyTorch is allowed to do so, else they
    are put together from three."""
    return (
        "tf32x3" if dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest" else "tf32"
    )


def _power_of_two(number: int) -> int:
    """The next one."""
    return 1 << max(0, number - 1).bit_length()


def _tile_rows(n_rows: int, n_nodes: int) -> int:
    """Rows of a tile: about those of a node."""
    return min(128, max(16, _power_of_two(n_rows // max(1, n_nodes))))


# --- forward -------------------------------------------------------------------------------------------


def forward(
    hidden: Tensor, target: Tensor, layer: Layer, ignore_index: int, reduction: str
) -> tuple[Tensor, Kept]:
    """As `treemax.torch.plain.forward`."""
    root_target, place = _look_up(target, layer, ignore_index)
    root_weight, bias = _gather_root(hidden.dtype, layer)
    root_output, loss = _root_softmax(_product(hidden, root_weight), bias, root_target, hidden.dtype)
    outputs, groups = [], []
    for level in range(len(layer.children)):
        group = group_rows(layer, place, level)
        logits = node_logits(hidden, layer, level, group.order, group.starts)
        outputs.append(_level_softmax(logits, group, loss, hidden.dtype))
        groups.append(group)
    value, scale = _reduced(loss, root_target, reduction)
    lists = ([group[i] for group in groups] for i in range(3))
    return value, Kept(root_target, root_weight, root_output, scale, outputs, *lists)


def _look_up(target: Tensor, layer: Layer, ignore_index: int) -> tuple[Tensor, Tensor]:
    root_target, place = torch.empty_like(target), torch.empty_like(target, dtype=torch.int32)
    if len(target):
        _kernels().look_up_kernel[(-(-len(target) // 256),)](
            target, layer.root_child, layer.place, root_target, place, len(target), layer.n_places, ignore_index,
            BLOCK=256,
        )  # fmt: skip
    return root_target, place


def _gather_root(dtype: torch.dtype, layer: Layer) -> tuple[Tensor, Tensor]:
    """Weights and biases of the root's children."""
    width, features = len(layer.root_empty), layer.weight.shape[1]
    weight = torch.empty(width, features, dtype=dtype, device=layer.weight.device)
    bias = torch.empty(width, dtype=torch.float32, device=layer.weight.device)
    _kernels().gather_root_kernel[(width,)](
        layer.weight, layer.bias, layer.node_weight, layer.node_bias, layer.direct, layer.root_empty, weight, bias,
        len(layer.direct), FEATURES=features, HAS_BIAS=layer.bias is not None, BLOCK=min(1024, _power_of_two(features)),
    )  # fmt: skip
    return weight, bias


def _product(hidden: Tensor, root_weight: Tensor) -> Tensor:
    """Logits of the root's children without biases, in the type that they were added up in."""
    if hidden.is_cuda and hidden.dtype in HALVES:
        return torch.mm(hidden, root_weight.T, out_dtype=torch.float32)
    return (hidden @ root_weight.T).to(torch.float32)


def _root_softmax(logits: Tensor, bias: Tensor, target: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Probabilities, and -log of the target's. Logits of the same type are overwritten."""
    n_rows, width = logits.shape
    loss = torch.empty(n_rows, dtype=torch.float32, device=logits.device)
    output = (
        logits if logits.dtype == dtype else torch.empty(n_rows, width, dtype=dtype, device=logits.device)
    )
    if n_rows:
        block = min(4096, _power_of_two(width))
        _kernels().root_softmax_kernel[(n_rows,)](
            logits, bias, target, loss, output, WIDTH=width, BLOCK=block, num_warps=4 if block <= 1024 else 8
        )
    return output, loss


def node_logits(hidden: Tensor, layer: Layer, level: int, rows: Tensor, starts: Tensor) -> Tensor:
    """As `treemax.torch.plain.node_logits`, but rows after the last group are not written."""
    table = layer.children[level]
    weight, bias = layer.parameters_of(level)
    n_nodes, arity = table.shape
    logits = torch.empty(len(rows), arity, dtype=torch.float32, device=hidden.device)
    if len(rows) == 0:
        return logits
    block_rows = _tile_rows(len(rows), n_nodes)
    blocks = LOGITS[hidden.dtype == torch.float32].within(arity, hidden.shape[1])
    grid = (len(rows) // block_rows + n_nodes, -(-arity // blocks.children))
    _kernels().node_logits_kernel[grid](
        hidden, weight, bias, table, rows, starts, logits, n_nodes, ARITY=arity, FEATURES=hidden.shape[1],
        HAS_BIAS=bias is not None, BLOCK_ROWS=block_rows, BLOCK_CHILDREN=blocks.children,
        BLOCK_FEATURES=blocks.features, STEPS=n_nodes.bit_length(), PRECISION=_precision(hidden.dtype),
        num_warps=blocks.warps, num_stages=blocks.stages,
    )  # fmt: skip
    return logits


def _level_softmax(logits: Tensor, group: Groups, loss: Tensor, dtype: torch.dtype) -> Tensor:
    """Probabilities; -log of the targets' are added to the loss."""
    n_rows, width = logits.shape
    output = (
        logits if logits.dtype == dtype else torch.empty(n_rows, width, dtype=dtype, device=logits.device)
    )
    if n_rows:
        _kernels().level_softmax_kernel[(n_rows,)](
            logits, group.child, group.order, group.starts, loss, output, len(group.starts) - 1, WIDTH=width,
            BLOCK=_power_of_two(width),
        )  # fmt: skip
    return output


def _reduced(loss: Tensor, root_target: Tensor, reduction: str) -> tuple[Tensor, Tensor]:
    if reduction == "none":
        return loss, torch.ones((), device=loss.device)
    value, scale = (torch.empty((), dtype=torch.float32, device=loss.device) for _ in range(2))
    _kernels().reduce_kernel[(1,)](
        loss, root_target, value, scale, len(loss), MEAN=reduction == "mean", BLOCK=1024, num_warps=4
    )
    return value, scale


# --- backward ------------------------------------------------------------------------------------------


def backward(slope: Tensor, hidden: Tensor, layer: Layer, kept: Kept) -> tuple[Tensor, Gradients]:
    """As `treemax.torch.plain.backward`."""
    slope = slope.contiguous()
    gradients = Gradients.like(layer)
    error = _root_error(slope, kept)
    hidden_gradient = error @ kept.root_weight
    _scatter_root(gradients, layer, error.T @ hidden, error)
    for level in range(len(layer.children)):
        _add_hidden_gradient(hidden_gradient, layer, level, kept, slope)
        _set_weight_gradient(gradients, hidden, layer, level, kept, slope)
    return hidden_gradient, gradients


def _step(slope: Tensor) -> int:
    """From one row's slope to the next: all rows of a reduced loss have the same."""
    return int(slope.dim() > 0)


def _root_error(slope: Tensor, kept: Kept) -> Tensor:
    n_rows, width = kept.root_output.shape
    error = torch.empty_like(kept.root_output)
    if n_rows:
        block = min(1024, _power_of_two(width))
        _kernels().root_error_kernel[(n_rows, -(-width // block))](
            kept.root_output, kept.root_target, slope, kept.scale, error, SLOPE_STEP=_step(slope), WIDTH=width,
            BLOCK=block,
        )  # fmt: skip
    return error


def _scatter_root(gradients: Gradients, layer: Layer, root_gradient: Tensor, error: Tensor) -> None:
    width, features = root_gradient.shape
    has_bias = gradients.bias is not None
    _kernels().scatter_root_kernel[(width,)](
        root_gradient, error.sum(dim=0, dtype=torch.float32) if has_bias else None, layer.direct, *gradients,
        len(layer.direct), FEATURES=features, HAS_BIAS=has_bias, BLOCK=min(1024, _power_of_two(features)),
    )  # fmt: skip


def _add_hidden_gradient(
    hidden_gradient: Tensor, layer: Layer, level: int, kept: Kept, slope: Tensor
) -> None:
    n_rows, features = hidden_gradient.shape
    if n_rows == 0:
        return
    table, group = layer.children[level], kept.group(level)
    n_nodes, arity = table.shape
    block_rows = _tile_rows(n_rows, n_nodes)
    single = hidden_gradient.dtype == torch.float32
    blocks = HIDDEN_GRADIENT[single].within(arity, features)
    grid = (n_rows // block_rows + n_nodes, -(-features // blocks.features))
    _kernels().hidden_gradient_kernel[grid](
        kept.outputs[level], layer.parameters_of(level)[0], table, group.order, group.starts, group.child, slope,
        kept.scale, hidden_gradient, n_nodes, SLOPE_STEP=_step(slope), ARITY=arity, FEATURES=features,
        BLOCK_ROWS=block_rows, BLOCK_CHILDREN=blocks.children, BLOCK_FEATURES=blocks.features,
        STEPS=n_nodes.bit_length(), PRECISION=_precision(hidden_gradient.dtype), num_warps=blocks.warps,
        num_stages=blocks.stages,
    )  # fmt: skip


def _set_weight_gradient(
    gradients: Gradients, hidden: Tensor, layer: Layer, level: int, kept: Kept, slope: Tensor
) -> None:
    table, group = layer.children[level], kept.group(level)
    n_nodes, arity = table.shape
    features = hidden.shape[1]
    weight_gradient, bias_gradient = gradients.parameters_of(layer, level)
    blocks = WEIGHT_GRADIENT[hidden.dtype == torch.float32].within(arity, features)
    _kernels().weight_gradient_kernel[(n_nodes, -(-arity // blocks.children))](
        hidden, kept.outputs[level], table, group.order, group.starts, group.child, slope, kept.scale,
        weight_gradient, bias_gradient, SLOPE_STEP=_step(slope), ARITY=arity, FEATURES=features,
        HAS_BIAS=bias_gradient is not None, BLOCK_ROWS=16, BLOCK_CHILDREN=blocks.children,
        BLOCK_FEATURES=blocks.features, PRECISION=_precision(hidden.dtype), num_warps=blocks.warps,
        num_stages=blocks.stages,
    )  # fmt: skip


# --- statistics and answers ----------------------------------------------------------------------------


def note(
    sums: Tensor, counts: Tensor | None, classes: Tensor, counted: Tensor, probabilities: Tensor
) -> None:
    """As `treemax.torch.plain.note`."""
    n_rows, width = probabilities.shape
    if n_rows:
        block = min(1024, _power_of_two(width))
        _kernels().note_kernel[(n_rows, -(-width // block))](
            sums, counts, classes, counted, probabilities, probabilities.stride(0), HAS_COUNTS=counts is not None,
            WIDTH=width, BLOCK=block,
        )  # fmt: skip


def can_find_best(hidden: Tensor, layer: Layer, k: int, beam: int) -> bool:
    """Whether `best_at_root` and `best_below` can do it: one program looks at all children of a node."""
    widths = [len(layer.root_empty), *(table.shape[1] for table in layer.children)]
    return can_run(hidden, layer) and max(widths) <= WIDEST_BEST and max(k, beam) <= MOST_BEST


def best_at_root(hidden: Tensor, layer: Layer, k: int, beam: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """log p and numbers of the best direct classes, and of one more than `beam` of the best nodes."""
    weight, bias = _gather_root(hidden.dtype, layer)
    logits = _product(hidden, weight)
    n_rows, width = logits.shape
    scores, node_scores = (logits.new_empty(n_rows, number) for number in (k, beam + 1))
    classes, nodes = (torch.empty_like(part, dtype=torch.int64) for part in (scores, node_scores))
    block = _power_of_two(width)
    if n_rows:
        _kernels().root_best_kernel[(n_rows,)](
            logits, bias, layer.direct, scores, classes, node_scores, nodes, len(layer.direct), WIDTH=width,
            BLOCK=block, BEST=k, BEAM=beam, num_warps=4 if block <= 2048 else 8,
        )  # fmt: skip
    return scores, classes, node_scores, nodes


def best_below(
    logits: Tensor, order: Tensor, nodes: Tensor, above: Tensor, table: Tensor, k: int
) -> tuple[Tensor, Tensor]:
    """log p and numbers of the k best classes below each of some nodes; logits are in the order of `order`."""
    n_pairs, width = logits.shape
    scores = logits.new_empty(n_pairs, k)
    classes = torch.empty_like(scores, dtype=torch.int64)
    if n_pairs:
        _kernels().level_best_kernel[(n_pairs,)](
            logits, order, nodes.contiguous(), above.contiguous(), table, scores, classes, WIDTH=width, BLOCK=_power_of_two(width), BEST=k,
            num_warps=2 if width <= 1024 else 4,
        )  # fmt: skip
    return scores, classes
