"""A tree softmax on a GPU: Triton kernels for many small softmaxes, grouped by node.

Rows are sorted by node and divided into tiles within one node. Nothing synchronises with the device: only the kernels
know the number of tiles of a node, and programs without rows return at once. So a step can be captured as a CUDA graph.
Launches dominate the time of a step, those of cuBLAS most of all, so there are few: three forward and two backward, and
three more for every level after the first.
"""

from __future__ import annotations

import math
import os
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

from treemax.torch.layer import Entries, Gradients, Layer, Pairs, Rows, SavedForBackward
from treemax.torch.plain import packed_in_order, root_weight
from treemax.torch.reassignment import Statistics

HALF_PRECISION = (torch.bfloat16, torch.float16)
TYPES = (*HALF_PRECISION, torch.float32)
WIDEST_NODE = 16_384  # maximum number of children of a node: one program holds their logits
WIDEST_BEST = 8_192  # maximum number of values of which one program selects the top k
MOST_BEST = 32  # maximum k
MOST_RANKED = 16_384  # rows that are sorted by pairwise comparison
ITEMS_RANKED = 16  # per program
LEAST_ROWS = 16  # minimum number of rows of a tile
# Versions of Triton whose launch interface is known.
LAUNCHED_DIRECTLY = ((3, 6), (3, 8))


class Blocks(NamedTuple):
    """Block sizes and launch options of a Triton kernel."""

    children: int
    features: int
    warps: int
    stages: int
    registers: int | None = None  # at most, of a thread

    def within(self, arity: int, features: int) -> Blocks:
        """Return block sizes limited to the size of the matrix."""
        return self._replace(
            children=min(self.children, max(16, _power_of_two(arity))),
            features=min(self.features, max(16, _power_of_two(features))),
        )

    def options(self) -> dict[str, Any]:
        """Return keyword arguments of a kernel."""
        return {
            "BLOCK_CHILDREN": self.children,
            "BLOCK_FEATURES": self.features,
            "num_warps": self.warps,
            "num_stages": self.stages,
            "maxnreg": self.registers,
        }


# Tuned on an NVIDIA H200, with 200 and 1,024 features. The key is whether the type is float32.
LOGITS = {True: Blocks(64, 64, 4, 3), False: Blocks(64, 128, 4, 3)}
HIDDEN_GRADIENT = {True: Blocks(16, 256, 4, 3, 128), False: Blocks(32, 256, 4, 3, 128)}
WEIGHT_GRADIENT = {True: Blocks(32, 64, 4, 3, 128), False: Blocks(32, 128, 4, 3, 128)}
ROOT_LOGITS = {True: Blocks(128, 32, 4, 3), False: Blocks(128, 64, 4, 3)}
ROOT_GRADIENTS = {True: Blocks(32, 128, 4, 4), False: Blocks(64, 128, 4, 3)}
ROOT_ROWS = 64  # rows per program at the root
ROOT_SUM = 16  # biases of the root's children per program
# Multiplications at the root above which cuBLAS saves more than its launches cost.
LARGE_PRODUCT = {True: 4e9, False: 1.5e10}


def can_run(hidden: Tensor, layer: Layer) -> bool:
    """Return whether the kernels support the device, the types and the width of the nodes."""
    if not can_use(hidden) or layer.weight.dtype not in TYPES or hidden.shape[0] == 0:
        return False
    widest = max([table.shape[1] for table in layer.children], default=0)
    return 0 < widest <= WIDEST_NODE


def can_use(tensor: Tensor) -> bool:
    """Return whether the kernels support the device and type of a tensor."""
    return tensor.is_cuda and tensor.dtype in TYPES and _kernels() is not None


@cache
def _kernels() -> Any:
    """Return the module of the kernels; None if Triton is missing or disabled by TREEMAX_TRITON=0."""
    if find_spec("triton") is None or os.environ.get("TREEMAX_TRITON") == "0":
        return None
    from treemax.torch import triton_kernels

    return triton_kernels


def _precision(dtype: torch.dtype) -> str:
    """Return the precision of float32 products: TF32 if PyTorch may use it, else the sum of three TF32 products."""
    return "tf32x3" if dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest" else "tf32"


def _power_of_two(number: int) -> int:
    """Return the smallest power of two that is at least `number`."""
    return 1 << max(0, number - 1).bit_length()


class Program:
    """A kernel with its grid and its constants.

    Triton selects a compiled version by the types, alignment and values of the arguments, which takes longer than a
    small kernel runs. Here they are the same in every call, so the version is selected once.
    """

    def __init__(self, name: str, grid: tuple[int, ...], **constants: Any) -> None:
        self.kernel = getattr(_kernels(), f"{name}_kernel")
        self.grid, self.constants = grid, constants
        self.launch: Any = None
        self.before: list[Any] = []
        self.after: list[Any] = []

    def __call__(self, stream: int | None, *arguments: Any) -> None:
        if self.launch is not None:
            self.launch(*self.grid, stream, *self.before, *arguments, *self.after)
            return
        compiled = self.kernel[self.grid](*arguments, **self.constants)
        first, last = LAUNCHED_DIRECTLY
        if hasattr(compiled, "packed_metadata") and first <= _kernels().VERSION <= last:
            self.grid = (*self.grid, 1, 1)[:3]
            self.before = [compiled.function, compiled.packed_metadata, None, None, None]  # no hooks
            self.after = [self.constants[name] for name in self.kernel.arg_names[len(arguments) :]]
            self.launch = compiled.run


def _stream(tensor: Tensor) -> int | None:
    """Return the stream to launch on; None lets Triton choose."""
    return _kernels().stream_of(tensor.get_device()) if tensor.is_cuda else None


def _is_current(tensor: Tensor) -> bool:
    """Return whether the tensor is on the current device."""
    return not tensor.is_cuda or torch.cuda.current_device() == tensor.get_device()


def _aligned(tensor: Tensor) -> Tensor:
    """Return the tensor, copied unless it is aligned to 16 bytes."""
    return tensor if tensor.data_ptr() % 16 == 0 else tensor.clone()


def _unaligned(*tensors: Tensor | None) -> int:
    """Return nonzero if a tensor is not aligned to 16 bytes, which needs another version of a kernel."""
    places = 0
    for tensor in tensors:
        if tensor is not None:
            places |= tensor.data_ptr()
    return places & 15


# --- the programs of a step ----------------------------------------------------------------------------


class LevelPlan(NamedTuple):
    """`gradients` are for a scalar output gradient, and for one per row."""

    logits: Program
    softmax: Program
    gradients: tuple[Program, Program]


class Plan(NamedTuple):
    """The programs of a step, for batches of one size."""

    prepare: Program
    levels: list[LevelPlan]
    root_gradients: tuple[Program, Program]
    multiplies: bool  # whether root_gradients computes the matrix products too, instead of cuBLAS


class Sizes(NamedTuple):
    """The cache key of a plan."""

    device: int
    n_rows: int
    features: int
    root_width: int
    n_direct: int
    nodes: tuple[torch.Size, ...]
    hidden_type: torch.dtype
    weight_type: torch.dtype
    has_bias: bool
    reduction: str
    ignore_index: int
    has_statistics: bool
    precision: str
    unaligned: int

    @property
    def n_bounds(self) -> int:
        return sum(n_nodes + 1 for n_nodes, _ in self.nodes)

    @property
    def n_places(self) -> int:
        return math.prod(self.nodes[-1])

    @property
    def multiplies(self) -> bool:
        """Whether the kernels, not cuBLAS, compute the products of the gradients at the root."""
        size = self.n_rows * self.root_width * self.features
        return size < LARGE_PRODUCT[self.hidden_type == torch.float32] or self.hidden_type == torch.float16

    @property
    def ranks(self) -> bool:
        """Whether rows are sorted by pairwise comparison."""
        return self.n_rows <= MOST_RANKED


def _sizes(
    hidden: Tensor, layer: Layer, reduction: str = "none", ignore_index: int = 0, has_statistics: bool = False
) -> Sizes:
    weight, bias, node_weight, node_bias = layer[:4]
    return Sizes(
        hidden.get_device(), hidden.shape[0], hidden.shape[1], layer.root_empty.shape[0], layer.direct.shape[0],
        tuple([table.shape for table in layer.children]), hidden.dtype, weight.dtype, bias is not None, reduction,
        ignore_index, has_statistics, _precision(hidden.dtype), _unaligned(weight, bias, node_weight, node_bias),
    )  # fmt: skip


@lru_cache(maxsize=256)
def _plan(sizes: Sizes) -> Plan:
    n_items = sizes.n_rows + (sizes.n_bounds if sizes.ranks else 0)
    n_tiles, root = _root_tiling(sizes)
    blocks = ROOT_GRADIENTS[sizes.hidden_type == torch.float32].within(sizes.root_width, sizes.features)
    n_blocks = _root_blocks(sizes, blocks.children) + -(-sizes.n_rows // blocks.children)
    n_programs = n_blocks * -(-sizes.features // blocks.features) + -(-sizes.root_width // ROOT_SUM)
    shared = {
        "N_BOUNDS": sizes.n_bounds, "N_DIRECT": sizes.n_direct, "N_TOP": sizes.nodes[0][0], "WIDTH": sizes.root_width,
        "FEATURES": sizes.features, "HAS_BIAS": sizes.has_bias, "PRECISION": sizes.precision,
    }  # fmt: skip
    gradients = [
        Program(
            "root_gradients", (n_programs,), MEAN=sizes.reduction == "mean", SLOPE_STEP=step, MULTIPLIES=sizes.multiplies,
            BLOCK_ROWS=blocks.children, BLOCK_SUM=ROOT_SUM, **blocks.options(), **shared,
        )
        for step in (0, 1)
    ]  # fmt: skip
    return Plan(
        Program(
            "prepare", (-(-n_items // ITEMS_RANKED) + n_tiles,), N_PLACES=sizes.n_places, IGNORED=sizes.ignore_index,
            RANKS=sizes.ranks, ITEMS=ITEMS_RANKED, OTHERS=1024, **{**shared, **root},
        ),
        [_level_plan(sizes, level) for level in range(len(sizes.nodes))],
        (gradients[0], gradients[1]),
        sizes.multiplies,
    )  # fmt: skip


def _root_tiling(sizes: Sizes) -> tuple[int, dict[str, Any]]:
    """Return the number of tiles of the logits at the root, and the constants of their kernels."""
    blocks = ROOT_LOGITS[sizes.hidden_type == torch.float32].within(sizes.root_width, sizes.features)
    n_tiles = -(-sizes.n_rows // ROOT_ROWS) * _root_blocks(sizes, blocks.children)
    return n_tiles, {
        "N_DIRECT": sizes.n_direct, "N_TOP": sizes.nodes[0][0], "WIDTH": sizes.root_width, "FEATURES": sizes.features,
        "HAS_BIAS": sizes.has_bias, "PRECISION": sizes.precision, "BLOCK_ROWS": ROOT_ROWS, **blocks.options(),
    }  # fmt: skip


def _root_blocks(sizes: Sizes, children: int) -> int:
    """Return the number of blocks of the root's children: direct classes, and nodes with padding."""
    return -(-sizes.n_direct // children) + -(-(sizes.root_width - sizes.n_direct) // children)


def _level_plan(sizes: Sizes, level: int) -> LevelPlan:
    n_nodes, arity = sizes.nodes[level]
    last = level == len(sizes.nodes) - 1
    wide = min(4096, _power_of_two(sizes.root_width))
    below = sizes.n_places // (n_nodes * arity)
    softmax = Program(
        "softmax", (sizes.n_rows,), ROOT=level == 0, REDUCES=last and sizes.reduction != "none",
        MEAN=sizes.reduction == "mean", ROOT_SUMS=sizes.has_statistics and level == 0, LEVEL_SUMS=sizes.has_statistics and not last,
        N_BOUNDS=sizes.n_bounds, N_PLACES=sizes.n_places, BELOW=below, N_DIRECT=sizes.n_direct, N_TOP=sizes.nodes[0][0],
        WIDTH=sizes.root_width, BLOCK=wide, ARITY=arity, ARITY_BLOCK=_power_of_two(arity), num_warps=4,
    )  # fmt: skip
    gradients = [_level_gradients(sizes, level, step, pairs=False) for step in (0, 1)]
    return LevelPlan(_logits_program(sizes, level, pairs=False), softmax, (gradients[0], gradients[1]))


def _fields(sizes: Sizes, level: int, pairs: bool) -> dict[str, int]:
    """Return where the kernels find the rows and the starts of the nodes: in packed `Rows`, or in pairs of row and
    node, with rows and starts of one level."""
    if pairs:
        return {"ORDER": 0, "STARTS": 1, "FIRST": 0}
    return {"ORDER": 1, "STARTS": 3, "FIRST": sum(above + 1 for above, _ in sizes.nodes[:level])}


def _logits_program(sizes: Sizes, level: int, pairs: bool) -> Program:
    """Return logits of a level."""
    n_nodes, arity = sizes.nodes[level]
    blocks = LOGITS[sizes.hidden_type == torch.float32].within(arity, sizes.features)
    n_tiles, tiling = _tiling(sizes.n_rows, n_nodes)
    return Program(
        "node_logits", (n_tiles, -(-arity // blocks.children)), N_NODES=n_nodes, ARITY=arity,
        FEATURES=sizes.features, HAS_BIAS=sizes.has_bias, PRECISION=sizes.precision, **_fields(sizes, level, pairs),
        **tiling, **blocks.options(),
    )  # fmt: skip


def _level_gradients(sizes: Sizes, level: int, slope_step: int, pairs: bool) -> Program:
    """Return gradients of a level. For pairs, the outputs are errors that include the output gradient."""
    n_nodes, arity = sizes.nodes[level]
    below = sizes.n_places // (n_nodes * arity)
    single = sizes.hidden_type == torch.float32
    rows, node = (kind[single].within(arity, sizes.features) for kind in (HIDDEN_GRADIENT, WEIGHT_GRADIENT))
    n_tiles, tiling = _tiling(sizes.n_rows, n_nodes)
    smaller = tiling["BLOCK_ROWS"] // LEAST_ROWS  # larger tiles need more registers: fewer features, no limit
    rows = rows._replace(features=max(16, rows.features // smaller))
    registers = node.registers if smaller == 1 else None
    n_programs = n_tiles * -(-sizes.features // rows.features) + n_nodes * -(-arity // node.children)
    return Program(
        "level_gradients", (n_programs,), ADDS=level > 0, PAIRS=pairs, MEAN=sizes.reduction == "mean", SLOPE_STEP=slope_step,
        N_BOUNDS=sizes.n_bounds, **_fields(sizes, level, pairs), BELOW=below, N_NODES=n_nodes, ARITY=arity, FEATURES=sizes.features, HAS_BIAS=sizes.has_bias, PRECISION=sizes.precision, **tiling,
        CHILDREN_OF_ROWS=rows.children, FEATURES_OF_ROWS=rows.features, CHILDREN_OF_NODE=node.children,
        FEATURES_OF_NODE=node.features, num_warps=node.warps, num_stages=node.stages, maxnreg=registers,
    )  # fmt: skip


def _tiling(n_rows: int, n_nodes: int) -> tuple[int, dict[str, int]]:
    """Return the maximum number of tiles, and the constants by which the kernels find the tiles of a node."""
    block_rows = min(64, max(LEAST_ROWS, _power_of_two(n_rows // n_nodes) // 2))
    step = _power_of_two(math.isqrt(n_nodes) + 1)
    options = {"BLOCK_ROWS": block_rows, "STEP": step, "STEPS": _power_of_two(-(-n_nodes // step))}
    return n_rows // block_rows + n_nodes, options


# --- forward and backward ------------------------------------------------------------------------------


def forward(
    hidden: Tensor, target: Tensor, layer: Layer, ignore_index: int, reduction: str, statistics: Statistics | None
) -> tuple[Tensor, SavedForBackward]:
    """See `treemax.torch.plain.forward`."""
    if _is_current(hidden):
        return _forward(hidden, target, layer, ignore_index, reduction, statistics)
    with torch.cuda.device_of(hidden):
        return _forward(hidden, target, layer, ignore_index, reduction, statistics)


def _forward(
    hidden: Tensor, target: Tensor, layer: Layer, ignore_index: int, reduction: str, statistics: Statistics | None
) -> tuple[Tensor, SavedForBackward]:
    hidden, target = _aligned(hidden), _aligned(target)
    sizes = _sizes(hidden, layer, reduction, ignore_index, statistics is not None)
    plan, stream, n_rows = _plan(sizes), _stream(hidden), sizes.n_rows
    packed = torch.empty(Rows.packed_size(n_rows, layer), dtype=torch.int64, device=hidden.device)
    root_logits = torch.empty(n_rows, sizes.root_width, dtype=torch.float32, device=hidden.device)
    plan.prepare(
        stream, target, layer.root_child, layer.place, layer.bounds, packed, hidden, *layer[:4], layer.direct,
        layer.root_empty, root_logits, n_rows,
    )  # fmt: skip
    if not sizes.ranks:
        packed = packed_in_order(packed[:n_rows], packed[2 * n_rows : 3 * n_rows], layer)
    root_error = root_logits if hidden.dtype == torch.float32 else hidden.new_empty(root_logits.shape)
    loss = torch.empty(n_rows, dtype=torch.float32, device=hidden.device)
    value = loss if reduction == "none" else loss.new_empty(())
    sums = [None] * len(plan.levels) if statistics is None else [*statistics.sums, None]
    counts = None if statistics is None else statistics.counts
    outputs = []
    for level, programs in enumerate(plan.levels):
        table = layer.children[level]
        logits = loss.new_empty(n_rows, table.shape[1])
        output = logits if hidden.dtype == torch.float32 else hidden.new_empty(logits.shape)
        programs.logits(stream, hidden, *layer.parameters_of(level), table, packed, logits, n_rows)
        programs.softmax(
            stream, root_logits, packed, logits, target, loss, root_error, output, value, counts, sums[0],
            sums[min(level + 1, len(sums) - 1)], n_rows,
        )  # fmt: skip
        outputs.append(output)
    return value, SavedForBackward(packed, root_error, outputs, plan)


def backward(
    grad_output: Tensor, hidden: Tensor, layer: Layer, saved: SavedForBackward, reduction: str
) -> tuple[Tensor, Gradients]:
    """See `treemax.torch.plain.backward`."""
    if _is_current(hidden):
        return _backward(grad_output, hidden, layer, saved, reduction)
    with torch.cuda.device_of(hidden):
        return _backward(grad_output, hidden, layer, saved, reduction)


def _backward(
    grad_output: Tensor, hidden: Tensor, layer: Layer, saved: SavedForBackward, reduction: str
) -> tuple[Tensor, Gradients]:
    hidden, grad_output = _aligned(hidden), _aligned(grad_output.contiguous())
    plan, stream, n_rows = (saved.plan or _plan(_sizes(hidden, layer, reduction)), _stream(hidden), hidden.shape[0])
    hidden_gradient, gradients = torch.empty_like(hidden), Gradients.like(layer)
    for level, programs in enumerate(plan.levels):
        weight, _ = layer.parameters_of(level)
        programs.gradients[grad_output.dim()](
            stream, hidden, weight, layer.children[level], saved.rows, saved.outputs[level], grad_output, hidden_gradient,
            *gradients.parameters_of(layer, level), n_rows,
        )  # fmt: skip
    products = (None, None) if plan.multiplies else _root_products(hidden, layer, saved, grad_output)
    plan.root_gradients[grad_output.dim()](
        stream, hidden, layer.weight, layer.node_weight, layer.direct, saved.rows, saved.root_error, grad_output, *products,
        hidden_gradient, *gradients, n_rows,
    )  # fmt: skip
    return hidden_gradient, gradients


def _root_products(hidden: Tensor, layer: Layer, saved: SavedForBackward, grad_output: Tensor) -> tuple[Tensor, Tensor]:
    """Return root products of the gradients by hidden (without the output gradient) and by the root's children."""
    of_hidden = torch.mm(saved.root_error, root_weight(hidden.dtype, layer))
    error = saved.root_error if grad_output.dim() == 0 else saved.root_error * grad_output[:, None].to(hidden.dtype)
    return of_hidden, torch.mm(error.t(), hidden)


# --- inference -----------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _program(name: str, grid: tuple[int, ...], kind: Any, constants: tuple[tuple[str, Any], ...]) -> Program:
    """Return a program, cached by the types and alignment of its arguments."""
    return Program(name, grid, **dict(constants))


def _run(name: str, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Launch a kernel by its name."""
    tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
    numbers = tuple([argument for argument in arguments if not isinstance(argument, Tensor)])
    kind = (tensors[0].get_device(), _unaligned(*tensors), numbers, tuple([tensor.dtype for tensor in tensors]))
    _program(name, grid, kind, tuple(constants.items()))(_stream(tensors[0]), *arguments)


def node_logits(hidden: Tensor, layer: Layer, level: int, rows: Tensor, starts: Tensor) -> Tensor:
    """See `treemax.torch.plain.node_logits`; rows after the last group are not written."""
    table = layer.children[level]
    logits = torch.empty(len(rows), table.shape[1], dtype=torch.float32, device=hidden.device)
    sizes = _sizes(hidden, layer)._replace(n_rows=len(rows))
    _pair_program(sizes, level)(
        _stream(hidden), hidden, *layer.parameters_of(level), table, torch.cat([rows, starts]), logits, len(rows)
    )
    return logits


@lru_cache(maxsize=256)
def _pair_program(sizes: Sizes, level: int) -> Program:
    """Return logits for pairs of row and node."""
    return _logits_program(sizes, level, pairs=True)


def add_level(
    error: Tensor, hidden: Tensor, layer: Layer, level: int, rows: Tensor, starts: Tensor, hidden_gradient: Tensor,
    gradients: Gradients,
) -> None:  # fmt: skip
    """See `treemax.torch.plain.add_level`; the gradient by hidden, in float32, is summed in no fixed order."""
    sizes = _sizes(hidden, layer)._replace(n_rows=len(rows))
    weight, _ = layer.parameters_of(level)
    _pair_gradients(sizes, level)(
        _stream(hidden), hidden, weight, layer.children[level], torch.cat([rows, starts]), error, None, hidden_gradient,
        *gradients.parameters_of(layer, level), len(rows),
    )  # fmt: skip


@lru_cache(maxsize=256)
def _pair_gradients(sizes: Sizes, level: int) -> Program:
    return _level_gradients(sizes, level, 0, pairs=True)


def binary_at_root(logits: Tensor, children: Entries, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """See `treemax.torch.plain.binary_at_root`."""
    loss = logits.new_empty(len(logits))
    return loss, _binary(logits, None, children, loss, dtype, 1)


def binary_at_level(
    logits: Tensor, pairs: Pairs, places: Entries, layer: Layer, level: int, loss: Tensor, dtype: torch.dtype
) -> Tensor:
    """See `treemax.torch.plain.binary_at_level`; the parts of a row's loss are summed in no fixed order."""
    return _binary(logits, pairs, places, loss, dtype, layer.n_places // layer.children[level].numel())


def _binary(
    logits: Tensor, pairs: Pairs | None, entries: Entries, loss: Tensor, dtype: torch.dtype, below: int
) -> Tensor:
    n_pairs, width = logits.shape
    error = logits if dtype == torch.float32 else torch.empty_like(logits, dtype=dtype)
    rows, n_used, nodes = (None, None, None) if pairs is None else (pairs.rows, pairs.starts[-1:], pairs.nodes)
    block = min(2048, _power_of_two(width))
    _run(
        "binary", (n_pairs,), logits, rows, n_used, nodes, entries.values, entries.offsets, loss, error,
        PAIRS=pairs is not None, BELOW=below, WIDTH=width, BLOCK=block, num_warps=2 if block <= 512 else 4,
    )  # fmt: skip
    return error


def root_logits(hidden: Tensor, layer: Layer) -> Tensor:
    """See `treemax.torch.plain.root_logits`; not differentiable."""
    sizes = _sizes(hidden, layer)
    logits = torch.empty(sizes.n_rows, sizes.root_width, dtype=torch.float32, device=hidden.device)
    _root_program(sizes)(_stream(hidden), hidden, *layer[:4], layer.direct, layer.root_empty, logits, sizes.n_rows)
    return logits


@lru_cache(maxsize=256)
def _root_program(sizes: Sizes) -> Program:
    """Return logits of the root's children."""
    n_tiles, root = _root_tiling(sizes)
    return Program("root_logits", (n_tiles,), **root)


def can_find_best(hidden: Tensor, layer: Layer, k: int, beam: int) -> bool:
    """Return whether `best_at_root` and `best_below` support the sizes: one program reads all children of a node."""
    widths = [len(layer.root_empty), *(table.shape[1] for table in layer.children)]
    return can_run(hidden, layer) and max(widths) <= WIDEST_BEST and max(k, beam) <= MOST_BEST


def best_at_root(
    hidden: Tensor, layer: Layer, k: int, beam: int, sigmoid: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return log p and indices of the k best direct classes, and of the `beam` + 1 best nodes."""
    logits = root_logits(hidden, layer)
    n_rows, width = logits.shape
    scores, node_scores = (logits.new_empty(n_rows, number) for number in (k, beam + 1))
    classes, nodes = (torch.empty_like(part, dtype=torch.int64) for part in (scores, node_scores))
    block = _power_of_two(width)
    _run(
        "root_best", (n_rows,), logits, layer.direct, scores, classes, node_scores, nodes, len(layer.direct),
        WIDTH=width, BLOCK=block, BEST=k, BEAM=beam, SIGMOID=sigmoid, num_warps=4 if block <= 2048 else 8,
    )  # fmt: skip
    return scores, classes, node_scores, nodes


def best_below(
    logits: Tensor, order: Tensor, nodes: Tensor, above: Tensor, table: Tensor, k: int, sigmoid: bool
) -> tuple[Tensor, Tensor]:
    """Return log p and indices of the k best classes below each of some nodes; logits are in the order of `order`."""
    n_pairs, width = logits.shape
    scores = logits.new_empty(n_pairs, k)
    classes = torch.empty_like(scores, dtype=torch.int64)
    _run(
        "level_best", (n_pairs,), logits, order, nodes.contiguous(), above.contiguous(), table, scores, classes,
        WIDTH=width, BLOCK=_power_of_two(width), BEST=k, SIGMOID=sigmoid, num_warps=2 if width <= 1024 else 4,
    )  # fmt: skip
    return scores, classes
