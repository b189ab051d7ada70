"""The nodes of a level on a GPU: many small softmaxes at once, each row at the node that it belongs to.

Rows are ordered by node and cut into tiles that lie within one node. Nothing here waits for the device: how
many tiles there are is known to the kernels only, and programs beyond the last one end at once.
"""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from treemax.torch.path_loss import Gradients, Groups, Layer

HALVES = (torch.bfloat16, torch.float16)


def can_run(hidden: Tensor, weight: Tensor) -> bool:
    """Whether the kernels can be used: on a GPU, with types that its matrix units know."""
    kinds = (*HALVES, torch.float32)
    return hidden.is_cuda and hidden.dtype in kinds and weight.dtype in kinds and _kernels() is not None


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
    return "tf32x3" if dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest" else "tf32"


def _power_of_two(number: int) -> int:
    """The next one."""
    return 1 << max(0, number - 1).bit_length()


def _tile_rows(n_rows: int, n_nodes: int) -> int:
    """Rows of a tile: about those of a node."""
    return min(128, max(16, _power_of_two(n_rows // max(1, n_nodes))))


def _tiles(starts: Tensor, tile_rows: int) -> Tensor:
    """Where the tiles of each node end, counted over all nodes."""
    return torch.cumsum((starts.diff() + (tile_rows - 1)) // tile_rows, dim=0)


def _most_tiles(n_rows: int, n_nodes: int, tile_rows: int) -> int:
    return n_rows // tile_rows + min(n_rows, n_nodes)


def _steps(n_nodes: int) -> int:
    """Steps of a bisection over so many."""
    return n_nodes.bit_length() + 1


def node_logits(hidden: Tensor, layer: Layer, level: int, rows: Tensor, starts: Tensor) -> Tensor:
    """As `plain_node_logits`, but rows after the last group are not written."""
    table = layer.children[level]
    weight, bias = layer.parameters_of(level)
    n_nodes, arity = table.shape
    logits = torch.empty(len(rows), arity, dtype=torch.float32, device=hidden.device)
    if len(rows) == 0:
        return logits
    block_rows = _tile_rows(len(rows), n_nodes)
    block_children = min(64, max(16, _power_of_two(arity)))
    grid = (_most_tiles(len(rows), n_nodes, block_rows), -(-arity // block_children))
    _kernels().node_logits_kernel[grid](
        hidden.contiguous(), weight, weight if bias is None else bias, table, rows, starts, _tiles(starts, block_rows),
        logits, n_nodes, ARITY=arity, FEATURES=hidden.shape[1], HAS_BIAS=bias is not None, BLOCK_ROWS=block_rows,
        BLOCK_CHILDREN=block_children, BLOCK_FEATURES=64, STEPS=_steps(n_nodes), PRECISION=_precision(hidden.dtype),
    )  # fmt: skip
    return logits


def root_softmax(logits: Tensor, bias: Tensor, target: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Probabilities of the root's children, and -log of the target's; logits of the same type are overwritten."""
    loss = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    return _softmax(logits, bias, target, target, target, loss, dtype, in_groups=False), loss


def level_softmax(logits: Tensor, group: Groups, loss: Tensor, dtype: torch.dtype) -> Tensor:
    """Probabilities of the children of a level; -log of the targets' are added to the loss."""
    return _softmax(logits, logits, group.child, group.order, group.starts, loss, dtype, in_groups=True)


def _softmax(
    logits: Tensor, bias: Tensor, target: Tensor, order: Tensor, starts: Tensor, loss: Tensor, dtype: torch.dtype,
    in_groups: bool,
) -> Tensor:  # fmt: skip
    n_rows, width = logits.shape
    output = logits if logits.dtype == dtype else torch.empty(n_rows, width, dtype=dtype, device=logits.device)
    if n_rows:
        block = min(4096, _power_of_two(width))
        _kernels().softmax_kernel[(n_rows,)](
            logits, bias, target, order, starts, loss, output, len(starts) - 1, WIDTH=width, BLOCK=block,
            HAS_BIAS=not in_groups, IN_GROUPS=in_groups, num_warps=4 if block <= 1024 else 8,
        )  # fmt: skip
    return output


def error_of(output: Tensor, target: Tensor, slope: Tensor) -> Tensor:
    """The gradient of the loss by the logits of the root."""
    n_rows, width = output.shape
    error = torch.empty_like(output)
    if n_rows:
        block = min(1024, _power_of_two(width))
        grid = (n_rows, -(-width // block))
        _kernels().error_kernel[grid](output, target, slope, error, WIDTH=width, BLOCK=block)
    return error


def add_level_gradients(
    hidden: Tensor, layer: Layer, level: int, group: Groups, output: Tensor, slope: Tensor, hidden_gradient: Tensor,
    gradients: Gradients,
) -> None:  # fmt: skip
    """As `plain_level_gradients`."""
    table = layer.children[level]
    n_nodes, arity = table.shape
    weight, bias = layer.parameters_of(level)
    weight_gradient, bias_gradient = gradients.parameters_of(layer, level)
    features, precision = hidden.shape[1], _precision(hidden.dtype)
    block_children = min(64, max(16, _power_of_two(arity)))
    block_features = min(128, max(16, _power_of_two(features)))
    feature_blocks = -(-features // block_features)
    if len(hidden):
        block_rows = _tile_rows(len(hidden), n_nodes)
        grid = (_most_tiles(len(hidden), n_nodes, block_rows), feature_blocks)
        _kernels().hidden_gradient_kernel[grid](
            output, weight, table, group.order, group.starts, _tiles(group.starts, block_rows), group.child, slope,
            hidden_gradient, n_nodes, ARITY=arity, FEATURES=features, BLOCK_ROWS=block_rows,
            BLOCK_CHILDREN=block_children, BLOCK_FEATURES=block_features, STEPS=_steps(n_nodes), PRECISION=precision,
        )  # fmt: skip
    _kernels().weight_gradient_kernel[(n_nodes, -(-arity // block_children), feature_blocks)](
        hidden.contiguous(), output, table, group.order, group.starts, group.child, slope, weight_gradient,
        bias_gradient, ARITY=arity, FEATURES=features, HAS_BIAS=bias is not None, BLOCK_ROWS=16,
        BLOCK_CHILDREN=block_children, BLOCK_FEATURES=block_features, PRECISION=precision,
    )  # fmt: skip
