"""Output layers of PyTorch side by side: `python -m benchmarks.experiments.torch_layers --device cuda`.

A batch of hidden vectors and classes drawn by Zipf's law (the class of rank r with a share of 1 / r) goes
through each layer, forward and backward, and the gradients of all parameters are there in the end. The median time
counts, by events of the device, and the best of three medians. Beside it the most memory held above the
parameters, the gradients included, and the time of the five best classes of the batch.

`--check` compares the kernels with plain PyTorch in float64 first. `--profile` adds where the time goes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks import FOLDER
from treemax.torch import TreeSoftmax

RESULTS = FOLDER / "results"
BATCHES = 4  # different ones, in turn


class Flat(nn.Module):
    """A linear layer and cross-entropy."""

    def __init__(self, features: int, n_classes: int, **kind: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(features, n_classes, **kind)

    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(self.linear(hidden), target)

    def topk(self, hidden: Tensor, k: int) -> Tensor:
        return self.linear(hidden).topk(k, dim=1).indices


class Adaptive(nn.Module):
    """PyTorch's adaptive softmax, which wants classes by frequency."""

    def __init__(self, features: int, n_classes: int, **kind: Any) -> None:
        super().__init__()
        cutoffs = [cut for cut in (2_000, 20_000, 100_000) if cut < n_classes]
        self.inner = nn.AdaptiveLogSoftmaxWithLoss(features, n_classes, cutoffs, **kind)

    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:
        return self.inner(hidden, target).loss

    def topk(self, hidden: Tensor, k: int) -> Tensor:
        return self.inner.log_prob(hidden).topk(k, dim=1).indices


class TwoLevel(nn.Module):
    """A class softmax in a few lines: random groups, and grouped products where PyTorch has them."""

    def __init__(self, features: int, n_classes: int, **kind: Any) -> None:
        super().__init__()
        self.size = 8 * -(-int(n_classes**0.5) // 8)  # grouped products want rows of whole 16 bytes
        n_groups = -(-n_classes // self.size)
        self.of_group = nn.Linear(features, n_groups, **kind)
        self.within = nn.Parameter(torch.randn(n_groups, self.size, features, **kind) / features**0.5)
        self.register_buffer("place", torch.randperm(n_classes, device=kind.get("device")))

    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:
        place = self.place[target]
        group, order = torch.sort(place // self.size)
        rows = hidden[order]
        starts = torch.searchsorted(group, torch.arange(len(self.within) + 1, device=group.device))
        if rows.is_cuda and rows.dtype == torch.bfloat16:
            logits = torch._grouped_mm(rows, self.within.transpose(1, 2), offs=starts[1:].int())
        else:
            logits = self._padded(rows, group, starts)
        return F.cross_entropy(self.of_group(rows), group) + F.cross_entropy(logits, (place % self.size)[order])

    def _padded(self, rows: Tensor, group: Tensor, starts: Tensor) -> Tensor:
        rank = torch.arange(len(group), device=group.device) - starts[group]
        padded = rows.new_zeros(len(self.within), int(rank.max()) + 1, rows.shape[1])
        padded = padded.index_put((group, rank), rows)
        return torch.bmm(padded, self.within.transpose(1, 2))[group, rank]


class Tree(nn.Module):
    """Ours."""

    def __init__(self, features: int, n_classes: int, device: Any, dtype: torch.dtype, **settings: Any) -> None:
        super().__init__()
        self.beam = settings.pop("beam", 16)
        if settings.pop("with_counts", True):
            settings["counts"] = 1 / torch.arange(1, n_classes + 1)
        settings.setdefault("reassign_every", 0)
        self.inner = TreeSoftmax(features, n_classes, device=device, dtype=dtype, **settings)

    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:
        return self.inner(hidden, target)

    def topk(self, hidden: Tensor, k: int) -> Tensor:
        return self.inner.topk(hidden, k, beam=self.beam)[1]


def layers() -> dict[str, Callable[..., nn.Module]]:
    """Name -> what makes the layer."""

    def tree(**settings: Any) -> Callable[..., nn.Module]:
        return lambda *arguments, **kind: Tree(*arguments, **kind, **settings)

    return {
        "flat softmax": Flat,
        "AdaptiveLogSoftmaxWithLoss, cutoffs 2k/20k/100k": Adaptive,
        "plain two-level class softmax": TwoLevel,
        "TreeSoftmax(counts=...)": tree(),
        "TreeSoftmax(counts=...), learning its tree": tree(reassign_every=2**31 - 1),
        "TreeSoftmax(), no counts": tree(with_counts=False),
        "TreeSoftmax(counts=..., depth=3)": tree(depth=3),
        "TreeSoftmax(arity=65, depth=3), the paper's": tree(with_counts=False, arity=65, depth=3),
    }


def zipf_classes(n_classes: int, size: int, device: torch.device) -> Tensor:
    share = 1 / torch.arange(1, n_classes + 1, device=device, dtype=torch.float64)
    drawn = torch.rand(size, device=device, dtype=torch.float64) * share.sum()
    return torch.searchsorted(share.cumsum(0), drawn).clamp(max=n_classes - 1)


def batches(features: int, options: argparse.Namespace, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    device = torch.device(options.device)
    return [
        (
            torch.randn(options.batch, features, device=device, dtype=dtype).requires_grad_(),
            zipf_classes(options.classes, options.batch, device),
        )
        for _ in range(BATCHES)
    ]


# --- measuring -----------------------------------------------------------------------------------------


def milliseconds(action: Callable[[int], Any], device: str, seconds: float) -> float:
    """The median time of an action, after a few calls that are not counted."""
    for i in range(5):
        action(i)
    if device == "cpu":
        times, until = [], time.perf_counter() + seconds
        while not times or time.perf_counter() < until:
            start = time.perf_counter()
            action(len(times))
            times.append(1000 * (time.perf_counter() - start))
        return statistics.median(times)
    torch.cuda.synchronize()
    start = time.perf_counter()
    action(0)
    torch.cuda.synchronize()
    repeats = max(5, min(200, int(seconds / (time.perf_counter() - start))))
    marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for i, (before, after) in enumerate(marks):
        before.record()
        action(i)
        after.record()
    torch.cuda.synchronize()
    return statistics.median(before.elapsed_time(after) for before, after in marks)


def step_of(layer: nn.Module, data: list[tuple[Tensor, Tensor]]) -> Callable[[int], None]:
    def step(i: int) -> None:
        hidden, target = data[i % len(data)]
        layer.zero_grad(set_to_none=True)
        hidden.grad = None
        layer(hidden, target).backward()

    return step


def peak_megabytes(layer: nn.Module, step: Callable[[int], None], data: list[tuple[Tensor, Tensor]]) -> float:
    """The most memory held during a step above what was there before it, without any gradients then."""
    layer.zero_grad(set_to_none=True)
    for hidden, _ in data:
        hidden.grad = None
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step(0)
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def measure(name: str, features: int, dtype: torch.dtype, options: argparse.Namespace) -> dict[str, Any]:
    torch.manual_seed(0)
    data = batches(features, options, dtype)
    layer = layers()[name](features, options.classes, device=options.device, dtype=dtype)
    step = step_of(layer, data)
    times = [milliseconds(step, options.device, options.seconds) for _ in range(3)]
    result: dict[str, Any] = {
        "layer": name,
        "features": features,
        "dtype": str(dtype)[6:],
        "step_ms": min(times),
        "runs": times,
    }
    if options.device != "cpu":
        result["peak_mb"] = peak_megabytes(layer, step, data)
        if not layer_waits(layer, dtype):  # what waits for the device cannot be recorded
            result["graph_ms"] = graph_milliseconds(step, options)
    layer.eval()
    layer.zero_grad(set_to_none=True)
    with torch.no_grad():
        if hasattr(layer, "topk"):
            result["top5_ms"] = milliseconds(
                lambda i: layer.topk(data[i % BATCHES][0], 5), options.device, options.seconds
            )
    return result


def layer_waits(layer: nn.Module, dtype: torch.dtype) -> bool:
    return isinstance(layer, Adaptive) or (isinstance(layer, TwoLevel) and dtype != torch.bfloat16)


def graph_milliseconds(step: Callable[[int], None], options: argparse.Namespace) -> float:
    """The time of a step that was recorded as a graph, which leaves out what Python and launches cost."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step(0)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(0)
    return milliseconds(lambda i: graph.replay(), options.device, options.seconds / 2)


def limits(device: str) -> dict[str, float]:
    """What the device reaches: copying, in bytes read and written, and products of matrices."""
    source = torch.randn(2**28, device=device)
    target = torch.empty_like(source)
    copy = milliseconds(lambda i: target.copy_(source), device, 0.3)
    found = {"copy_tb_s": 2 * source.numel() * 4 / copy / 1e9}
    for dtype in (torch.bfloat16, torch.float32):
        pair = [torch.randn(8192, 8192, device=device, dtype=dtype) for _ in range(2)]
        found[f"{str(dtype)[6:]}_tflop_s"] = (
            2 * 8192**3 / milliseconds(lambda i, pair=pair: pair[0] @ pair[1], device, 0.3) / 1e9
        )
    return found


# --- checking ------------------------------------------------------------------------------------------


def check(device: str) -> Iterator[str]:
    """Relative errors of loss, gradients and best log p against plain PyTorch in float64."""
    two_levels, three_levels = {"counts": 1 / torch.arange(1, 5_004)}, {"depth": 3, "bias": False}
    before = torch.get_float32_matmul_precision()
    for precision in ("highest", "high"):
        torch.set_float32_matmul_precision(precision)
        yield f"float32, {precision}: {errors(torch.float32, torch.float32, two_levels, 200, device)}"
    torch.set_float32_matmul_precision(before)
    yield f"float32, three levels: {errors(torch.float32, torch.float32, three_levels, 72, device)}"
    yield f"bfloat16: {errors(torch.bfloat16, torch.bfloat16, two_levels, 1_024, device)}"
    yield f"bfloat16, three levels: {errors(torch.bfloat16, torch.bfloat16, three_levels, 72, device)}"
    yield f"float32 under autocast: {errors(torch.float32, torch.bfloat16, two_levels, 200, device)}"


def errors(dtype: torch.dtype, computed: torch.dtype, settings: dict[str, Any], features: int, device: str) -> str:
    n_classes, n_rows = 5_003, 700
    layer = TreeSoftmax(features, n_classes, device=device, dtype=dtype, reassign_every=0, **settings)
    hidden = torch.randn(n_rows, features, device=device, dtype=dtype, requires_grad=True)
    target = zipf_classes(n_classes, n_rows, torch.device(device))
    exact = TreeSoftmax(features, n_classes, device=device, dtype=torch.float64, reassign_every=0, **settings)
    with torch.no_grad():
        for mine, theirs in zip(exact.parameters(), layer.parameters()):
            mine.copy_(theirs)
    wide = hidden.detach().double().requires_grad_()
    with torch.autocast(torch.device(device).type, dtype=computed, enabled=computed != dtype):
        got = [layer(hidden, target)]
        best = layer.topk(hidden, 5, beam=None)[0]
    wanted = [exact(wide, target)]
    got += torch.autograd.grad(got[0], [hidden, *layer.parameters()])
    wanted += torch.autograd.grad(wanted[0], [wide, *exact.parameters()])
    pairs = zip([*got, best], [*wanted, exact.topk(wide, 5, beam=None)[0]])
    parts = [(a.detach().double(), b.detach()) for a, b in pairs]
    return " ".join(f"{float((a - b).norm() / b.norm()):.1e}" for a, b in parts)


def profile(features: int, dtype: torch.dtype, options: argparse.Namespace, name: str) -> str:
    torch.manual_seed(0)
    data = batches(features, options, dtype)
    layer = layers()[name](features, options.classes, device=options.device, dtype=dtype)
    step = step_of(layer, data)
    for i in range(5):
        step(i)
    torch.cuda.synchronize()
    with torch.profiler.profile() as recorded:
        for i in range(10):
            step(i)
        torch.cuda.synchronize()
    return recorded.key_averages().table(sort_by="self_cuda_time_total", row_limit=25, max_name_column_width=60)


# --- the command ---------------------------------------------------------------------------------------


def table(results: list[dict[str, Any]]) -> str:
    lines = ["| layer | d | type | step ms | as a graph | peak MB | top-5 ms |", "|---|---|---|---|---|---|---|"]
    for row in results:
        cells = [row["layer"], row["features"], row["dtype"]]
        for key in ("step_ms", "graph_ms", "peak_mb", "top5_ms"):
            value = row.get(key)
            cells.append("" if value is None else f"{value:.0f}" if key == "peak_mb" else f"{value:.2f}")
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--classes", type=int, default=250_000)
    parser.add_argument("--batch", type=int, default=4_096)
    parser.add_argument("--features", type=int, nargs="+", default=[200, 1_024])
    parser.add_argument("--types", nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--layers", nargs="+", default=[""], help="parts of names; all by default")
    parser.add_argument("--seconds", type=float, default=0.5, help="of measuring, each time")
    parser.add_argument("--precision", default="high", help="of float32 products: highest, high (TF32)")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_float32_matmul_precision(options.precision)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.check:
        print("\n".join(check(options.device)), flush=True)
    results = []
    names = [name for name in layers() if any(part in name for part in options.layers)]
    for features in options.features:
        for kind in options.types:
            for name in names:
                results.append(measure(name, features, getattr(torch, kind), options))
                print(table(results[-1:]).split("\n")[-1], flush=True)
                if options.device != "cpu":
                    torch.cuda.empty_cache()
    report = {"settings": {**vars(options), "out": None}, "torch": torch.__version__, "results": results}
    if options.device != "cpu":
        report["limits"] = limits(options.device)
        print(report["limits"])
    (options.out / "torch_layers.json").write_text(json.dumps(report, indent=1, default=str))
    (options.out / "torch_layers.md").write_text(table(results) + "\n")
    if options.profile:
        kinds = [(features, getattr(torch, kind)) for features in options.features for kind in options.types]
        text = "\n\n".join(
            f"{n} {f} {k}\n" + profile(f, k, options, n)
            for f, k in kinds
            for n in names
            if n == "TreeSoftmax(counts=...)"
        )
        (options.out / "torch_profile.txt").write_text(text)


if __name__ == "__main__":
    main()
