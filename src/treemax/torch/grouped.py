"""A tree softmax on a GPU: many small softmaxes at once, each row at the node that it belongs to.

Rows are ordered by node and cut into tiles that lie within one node. Nothing here waits for the device: how
many tiles a node has is known to the kernels only, and programs without rows end at once. So a step can be
recorded as a graph.
"""

from __future__ import annotations

import math
import os
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

from treemax.torch.layer import Gradients, Kept, Layer, group_rows

HALVES = (torch.bfloat16, torch.float16)
WIDEST_NODE = 16_384  # children whose logits one program can hold
WIDEST_BEST = 8_192  # numbers of which one program can find the best
MOST_BEST = 32  # of them, one after the other
LAUNCHES_BY_VERSION = (
    3,
    5,
)  # of Triton: since then a compiled kernel takes the arguments that its source names


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

    def options(self) -> dict[str, int]:
        """As arguments of a kernel."""
        return {
            "BLOCK_CHILDREN": self.children,
            "BLOCK_FEATURES": self.features,
            "num_warps": self.warps,
            "num_stages": self.stages,
        }


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
    """Rows of a tile: at most about those of a node."""
    return min(64, max(16, _power_of_two(n_rows // max(1, n_nodes)) // 2))


class Program:
    """A kernel with its grid and its constants.

    Triton takes longer to find the right version of a kernel than a small one runs. It looks at types, alignment and
    numbers of the arguments; here those are the same with every call, so that it need look only once.
    """

    def __init__(self, name: str, grid: tuple[int, ...], **constants: Any) -> None:
        self.kernel = getattr(_kernels(), f"{name}_kernel")
        self.grid, self.constants = grid, constants
        self.start: Any = None
        self.values: list[Any] = []

    def __call__(self, stream: int | None, *arguments: Any) -> None:
        if self.start is not None:
            self.start(*arguments, *self.values, stream=stream)
        elif math.prod(self.grid):
            compiled = self.kernel[self.grid](*arguments, **self.constants)
            if hasattr(compiled, "packed_metadata") and _kernels().VERSION >= LAUNCHES_BY_VERSION:
                self.values = [self.constants[name] for name in self.kernel.arg_names[len(arguments) :]]
                self.start = compiled[(*self.grid, 1, 1)[:3]]


def _stream(tensor: Tensor) -> int | None:
    """The stream to launch on; Triton's own choice where there is none."""
    return torch.cuda.current_stream(tensor.device).cuda_stream if tensor.is_cuda else None


def _is_current(tensor: Tensor) -> bool:
    """Whether kernels would be launched where the tensor is."""
    return not tensor.is_cuda or torch.cuda.current_device() == tensor.get_device()


def _unaligned(*tensors: Tensor | None) -> int:
    """Whether one of them does not begin at a whole 16 bytes: kernels are made for one or the other."""
    places = 0
    for tensor in tensors:
        if tensor is not None:
            places |= tensor.data_ptr()
    return places & 15


# --- what a step consists of ---------------------------------------------------------------------------


class LevelPlan(NamedTuple):
    logits: Program
    softmax: Program
    hidden_gradient: Program
    weight_gradient: Program


class Plan(NamedTuple):
    """The programs of a step, for batches of one size."""

    look_up: Program
    gather_root: Program
    root_softmax: Program
    reduce: Program
    root_error: Program
    scatter_root: Program
    levels: list[LevelPlan]


class Sizes(NamedTuple):
    """All that a plan depends on."""

    device: int
    n_rows: int
    features: int
    root_width: int
    n_direct: int
    nodes: tuple[tuple[int, int], ...]
    hidden_type: torch.dtype
    weight_type: torch.dtype
    has_bias: bool
    reduction: str
    precision: str
    slope_step: int
    unaligned: int


def _sizes(hidden: Tensor, layer: Layer, reduction: str, slope: Tensor | None = None) -> Sizes:
    parameters = layer[:4]
    return Sizes(
        hidden.get_device(), hidden.shape[0], hidden.shape[1], layer.root_empty.shape[0], layer.direct.shape[0],
        tuple([tuple(table.shape) for table in layer.children]), hidden.dtype, layer.weight.dtype,
        layer.bias is not None, reduction, _precision(hidden.dtype), 0 if slope is None else slope.dim(),
        _unaligned(hidden, slope, *parameters),
    )  # fmt: skip


@lru_cache(maxsize=256)
def _plan(sizes: Sizes) -> Plan:
    n_rows, features, width = sizes.n_rows, sizes.features, sizes.root_width
    wide = min(4096, _power_of_two(width))
    narrow = min(1024, _power_of_two(width))
    row_block = min(1024, _power_of_two(features))
    n_real = sizes.n_direct + (sizes.nodes[0][0] if sizes.nodes else 0)
    return Plan(
        Program("look_up", (-(-n_rows // 256),), BLOCK=256),
        Program("gather_root", (width,), FEATURES=features, HAS_BIAS=sizes.has_bias, BLOCK=row_block),
        Program("root_softmax", (n_rows,), WIDTH=width, BLOCK=wide, num_warps=4 if wide <= 1024 else 8),
        Program("reduce", (1,), MEAN=sizes.reduction == "mean", BLOCK=1024),
        Program("root_error", (n_rows, -(-width // narrow)), SLOPE_STEP=sizes.slope_step, WIDTH=width, BLOCK=narrow),
        Program("scatter_root", (n_real,), FEATURES=features, HAS_BIAS=sizes.has_bias, BLOCK=row_block),
        [_level_plan(sizes, n_nodes, arity) for n_nodes, arity in sizes.nodes],
    )  # fmt: skip


def _level_plan(sizes: Sizes, n_nodes: int, arity: int) -> LevelPlan:
    n_rows, features, single = sizes.n_rows, sizes.features, sizes.hidden_type == torch.float32
    block_rows = _tile_rows(n_rows, n_nodes)
    tiles = n_rows // block_rows + n_nodes if n_rows else 0
    shared = {"ARITY": arity, "FEATURES": features, "PRECISION": sizes.precision}
    by_tile = {"BLOCK_ROWS": block_rows, "STEPS": n_nodes.bit_length()}
    logits, hidden, weight = (
        kind[single].within(arity, features) for kind in (LOGITS, HIDDEN_GRADIENT, WEIGHT_GRADIENT)
    )
    return LevelPlan(
        Program(
            "node_logits", (tiles, -(-arity // logits.children)), HAS_BIAS=sizes.has_bias, **shared, **by_tile,
            **logits.options(),
        ),
        Program("level_softmax", (n_rows,), WIDTH=arity, BLOCK=_power_of_two(arity)),
        Program(
            "hidden_gradient", (tiles, -(-features // hidden.features)), SLOPE_STEP=sizes.slope_step, **shared,
            **by_tile, **hidden.options(),
        ),
        Program(
            "weight_gradient", (n_nodes, -(-arity // weight.children)), SLOPE_STEP=sizes.slope_step,
            HAS_BIAS=sizes.has_bias, BLOCK_ROWS=16, **shared, **weight.options(),
        ),
    )  # fmt: skip


# --- forward and backward ------------------------------------------------------------------------------


def forward(
    hidden: Tensor, target: Tensor, layer: Layer, ignore_index: int, reduction: str
) -> tuple[Tensor, Kept]:
    """As `treemax.torch.plain.forward`."""
    if _is_current(hidden):
        return _forward(hidden, target, layer, ignore_index, reduction)
    with torch.cuda.device_of(hidden):
        return _forward(hidden, target, layer, ignore_index, reduction)


def _forward(
    hidden: Tensor, target: Tensor, layer: Layer, ignore_index: int, reduction: str
) -> tuple[Tensor, Kept]:
    plan, stream = _plan(_sizes(hidden, layer, reduction)), _stream(hidden)
    n_rows, width = hidden.shape[0], layer.root_empty.shape[0]
    root_target, place = torch.empty_like(target), torch.empty_like(target, dtype=torch.int32)
    plan.look_up(
        stream,
        target,
        layer.root_child,
        layer.place,
        root_target,
        place,
        n_rows,
        layer.n_places,
        ignore_index,
    )
    root_weight, bias = _gather_root(plan.gather_root, stream, hidden.dtype, layer)
    logits = _product(hidden, root_weight)
    loss = torch.empty(n_rows, dtype=torch.float32, device=hidden.device)
    root_output = logits if logits.dtype == hidden.dtype else hidden.new_empty(n_rows, width)
    plan.root_softmax(stream, logits, bias, root_target, loss, root_output)
    outputs, groups = [], []
    for level, programs in enumerate(plan.levels):
        group = group_rows(layer, place, level)
        table = layer.children[level]
        n_nodes, arity = table.shape
        weight, bias_of_children = layer.parameters_of(level)
        logits = torch.empty(n_rows, arity, dtype=torch.float32, device=hidden.device)
        output = logits if logits.dtype == hidden.dtype else hidden.new_empty(n_rows, arity)
        programs.logits(
            stream, hidden, weight, bias_of_children, table, group.order, group.starts, logits, n_nodes
        )
        programs.softmax(stream, logits, group.child, group.order, group.starts, loss, output, n_nodes)
        outputs.append(output)
        groups.append(group)
    value, scale = _reduced(plan.reduce, stream, loss, root_target, reduction)
    lists = ([group[i] for group in groups] for i in range(3))
    return value, Kept(root_target, root_weight, root_output, scale, outputs, *lists)


def _gather_root(
    program: Program, stream: int | None, dtype: torch.dtype, layer: Layer
) -> tuple[Tensor, Tensor]:
    """Weights and biases of the root's children."""
    width, features = layer.root_empty.shape[0], layer.weight.shape[1]
    weight = torch.empty(width, features, dtype=dtype, device=layer.weight.device)
    bias = torch.empty(width, dtype=torch.float32, device=layer.weight.device)
    program(
        stream, layer.weight, layer.bias, layer.node_weight, layer.node_bias, layer.direct, layer.root_empty, weight, bias,
        layer.direct.shape[0], layer.n_top,
    )  # fmt: skip
    return weight, bias


def _product(hidden: Tensor, root_weight: Tensor) -> Tensor:
    """Logits of the root's children without biases, in the type that they were added up in."""
    if hidden.is_cuda and hidden.dtype in HALVES:
        return torch.mm(hidden, root_weight.t(), out_dtype=torch.float32)
    return torch.mm(hidden, root_weight.t()).to(torch.float32)


def _reduced(
    program: Program, stream: int | None, loss: Tensor, root_target: Tensor, reduction: str
) -> tuple[Tensor, Tensor]:
    if reduction == "none":
        return loss, torch.ones((), device=loss.device)
    value, scale = (torch.empty((), dtype=torch.float32, device=loss.device) for _ in range(2))
    program(stream, loss, root_target, value, scale, loss.shape[0])
    return value, scale


def backward(slope: Tensor, hidden: Tensor, layer: Layer, kept: Kept) -> tuple[Tensor, Gradients]:
    """As `treemax.torch.plain.backward`."""
    if _is_current(hidden):
        return _backward(slope.contiguous(), hidden, layer, kept)
    with torch.cuda.device_of(hidden):
        return _backward(slope.contiguous(), hidden, layer, kept)


def _backward(slope: Tensor, hidden: Tensor, layer: Layer, kept: Kept) -> tuple[Tensor, Gradients]:
    plan, stream = _plan(_sizes(hidden, layer, "backward", slope)), _stream(hidden)
    error = torch.empty_like(kept.root_output)
    plan.root_error(stream, kept.root_output, kept.root_target, slope, kept.scale, error)
    hidden_gradient = torch.mm(error, kept.root_weight)
    root_gradient = torch.mm(error.t(), hidden)
    root_bias_gradient = None if layer.bias is None else error.sum(dim=0, dtype=torch.float32)
    del error  # before there are the large ones
    gradients = Gradients.like(layer)
    plan.scatter_root(
        stream, root_gradient, root_bias_gradient, layer.direct, *gradients, layer.direct.shape[0]
    )
    for level, programs in enumerate(plan.levels):
        table, (order, starts, child), output = layer.children[level], kept.group(level), kept.outputs[level]
        weight, _ = layer.parameters_of(level)
        programs.hidden_gradient(
            stream,
            output,
            weight,
            table,
            order,
            starts,
            child,
            slope,
            kept.scale,
            hidden_gradient,
            table.shape[0],
        )
        programs.weight_gradient(
            stream, hidden, output, table, order, starts, child, slope, kept.scale,
            *gradients.parameters_of(layer, level),
        )  # fmt: skip
    return hidden_gradient, gradients


# --- statistics and answers ----------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _program(name: str, grid: tuple[int, ...], kind: Any, constants: tuple[tuple[str, Any], ...]) -> Program:
    """A program for arguments of one kind."""
    return Program(name, grid, **dict(constants))


def _run(name: str, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Launch a kernel by its name."""
    tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
    numbers = tuple([argument for argument in arguments if not isinstance(argument, Tensor)])
    kind = (
        tensors[0].get_device(),
        _unaligned(*tensors),
        numbers,
        tuple([tensor.dtype for tensor in tensors]),
    )
    _program(name, grid, kind, tuple(constants.items()))(_stream(tensors[0]), *arguments)


def note(
    sums: Tensor, counts: Tensor | None, classes: Tensor, counted: Tensor, probabilities: Tensor
) -> None:
    """As `treemax.torch.plain.note`."""
    n_rows, width = probabilities.shape
    block = min(1024, _power_of_two(width))
    _run(
        "note", (n_rows, -(-width // block)), sums, counts, classes, counted, probabilities, probabilities.stride(0),
        HAS_COUNTS=counts is not None, WIDTH=width, BLOCK=block,
    )  # fmt: skip


def node_logits(hidden: Tensor, layer: Layer, level: int, rows: Tensor, starts: Tensor) -> Tensor:
    """As `treemax.torch.plain.node_logits`, but rows after the last group are not written."""
    table = layer.children[level]
    weight, bias = layer.parameters_of(level)
    n_nodes, arity = table.shape
    logits = torch.empty(len(rows), arity, dtype=torch.float32, device=hidden.device)
    sizes = _sizes(hidden, layer, "none")._replace(n_rows=len(rows))
    _plan(sizes).levels[level].logits(
        _stream(hidden), hidden, weight, bias, table, rows, starts, logits, n_nodes
    )
    return logits


def can_find_best(hidden: Tensor, layer: Layer, k: int, beam: int) -> bool:
    """Whether `best_at_root` and `best_below` can do it: one program looks at all children of a node."""
    widths = [len(layer.root_empty), *(table.shape[1] for table in layer.children)]
    return can_run(hidden, layer) and max(widths) <= WIDEST_BEST and max(k, beam) <= MOST_BEST


def best_at_root(hidden: Tensor, layer: Layer, k: int, beam: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """log p and numbers of the best direct classes, and of one more than `beam` of the best nodes."""
    plan = _plan(_sizes(hidden, layer, "none"))
    weight, bias = _gather_root(plan.gather_root, _stream(hidden), hidden.dtype, layer)
    logits = _product(hidden, weight)
    n_rows, width = logits.shape
    scores, node_scores = (logits.new_empty(n_rows, number) for number in (k, beam + 1))
    classes, nodes = (torch.empty_like(part, dtype=torch.int64) for part in (scores, node_scores))
    block = _power_of_two(width)
    _run(
        "root_best", (n_rows,), logits, bias, layer.direct, scores, classes, node_scores, nodes, len(layer.direct),
        WIDTH=width, BLOCK=block, BEST=k, BEAM=beam, num_warps=4 if block <= 2048 else 8,
    )  # fmt: skip
    return scores, classes, node_scores, nodes


def best_below(
    logits: Tensor, order: Tensor, nodes: Tensor, above: Tensor, table: Tensor, k: int
) -> tuple[Tensor, Tensor]:
    """log p and numbers of the k best classes below each of some nodes; logits are in the order of `order`."""
    n_pairs, width = logits.shape
    scores = logits.new_empty(n_pairs, k)
    classes = torch.empty_like(scores, dtype=torch.int64)
    _run(
        "level_best", (n_pairs,), logits, order, nodes.contiguous(), above.contiguous(), table, scores, classes,
        WIDTH=width, BLOCK=_power_of_two(width), BEST=k, num_warps=2 if width <= 1024 else 4,
    )  # fmt: skip
    return scores, classes
