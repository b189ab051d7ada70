"""TreeSigmoid beside a flat layer with binary cross-entropy: `python -m benchmarks.experiments.tree_sigmoid`.

Rows have five labels each, drawn by Zipf's law. A step is measured as in `torch_layers`: forward and backward, the
median time, best of three, and the most memory above the parameters, gradients included. The flat layer has the loss in
two forms: `nn.BCEWithLogitsLoss` with a multi-hot target, which is made within the step, and softplus of all logits
less the logits of the labels, which needs no such target. Needs a GPU.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.experiments.torch_layers import (
    BATCHES,
    graph_milliseconds,
    milliseconds,
    peak_megabytes,
    step_of,
    zipf_classes,
)
from benchmarks.harness.output import help_if_asked, keep, store
from treemax.torch import TreeSigmoid

N_LABELS, FEATURES, ROWS = (131_072, 670_000), (512, 1_024), (1_024, 4_096)
LABELS_OF_A_ROW = 5
SECONDS = 0.3  # of measuring, three times
MACHINE = "one NVIDIA H200"


class Flat(nn.Module):
    """A linear layer and `nn.BCEWithLogitsLoss`, summed over labels."""

    def __init__(self, features: int, n_labels: int, **kind: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(features, n_labels, **kind)
        self.loss = nn.BCEWithLogitsLoss(reduction="sum")

    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:
        logits = self.linear(hidden)
        return self.loss(logits, torch.zeros_like(logits).scatter_(1, target, 1)) / len(hidden)

    def topk(self, hidden: Tensor, k: int) -> Tensor:
        return self.linear(hidden).topk(k, dim=1).indices


class FlatSparse(Flat):
    """The same loss without a multi-hot target; the labels of a row must differ."""

    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:
        logits = self.linear(hidden)
        return (F.softplus(logits).sum(dtype=torch.float32) - logits.gather(1, target).sum()) / len(hidden)


class Tree(nn.Module):
    """Ours, with the frequencies of the labels or without."""

    def __init__(self, features: int, n_labels: int, with_counts: bool = True, **kind: Any) -> None:
        super().__init__()
        counts = 1 / torch.arange(1, n_labels + 1) if with_counts else None
        self.inner = TreeSigmoid(features, n_labels, counts=counts, **kind)

    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:
        return self.inner(hidden, target)

    def topk(self, hidden: Tensor, k: int) -> Tensor:
        return self.inner.topk(hidden, k)[1]


LAYERS: dict[str, Any] = {
    "flat, BCEWithLogitsLoss": Flat,
    "flat, no multi-hot target": FlatSparse,
    "TreeSigmoid(counts=...)": Tree,
    "TreeSigmoid()": lambda *sizes, **kind: Tree(*sizes, with_counts=False, **kind),
}


def distinct_labels(n_labels: int, n_rows: int, device: str) -> Tensor:
    """Labels drawn by Zipf's law; of those that a row would have twice, one is replaced by its neighbour."""
    drawn = zipf_classes(n_labels - LABELS_OF_A_ROW, n_rows * LABELS_OF_A_ROW, torch.device(device))
    drawn = drawn.view(n_rows, -1).sort(dim=1).values
    for column in range(1, LABELS_OF_A_ROW):
        drawn[:, column] = torch.maximum(drawn[:, column], drawn[:, column - 1] + 1)
    return drawn


def measured(name: str, shape: tuple[int, int, int], dtype: torch.dtype, device: str) -> dict[str, Any]:
    """The milliseconds of a step and of the top 5, and the most megabytes of a step above the parameters."""
    torch.manual_seed(0)
    n_labels, features, n_rows = shape
    data = [
        (
            torch.randn(n_rows, features, device=device, dtype=dtype).requires_grad_(),
            distinct_labels(n_labels, n_rows, device),
        )
        for _ in range(BATCHES)
    ]
    layer = LAYERS[name](features, n_labels, device=device, dtype=dtype)
    step = step_of(layer, data)
    found: dict[str, Any] = {"layer": name, "shape": shape, "dtype": str(dtype)[6:]}
    found["ms"] = min(milliseconds(step, device, SECONDS) for _ in range(3))
    if device == "cuda":
        found["mb"] = peak_megabytes(layer, step, data)
        torch.cuda.empty_cache()  # a graph has memory of its own
        found["graph_ms"] = graph_milliseconds(step, argparse.Namespace(device=device, seconds=SECONDS))
    layer.zero_grad(set_to_none=True)
    with torch.no_grad():
        found["top5_ms"] = milliseconds(lambda i: layer.topk(data[i % BATCHES][0], 5), device, SECONDS)
    return found


def cell(row: dict[str, Any] | None) -> str | None:
    return None if row is None else f"{row['ms']:.2f} / {row['graph_ms']:.2f} ({row['mb']:,.0f}), {row['top5_ms']:.2f}"


def main() -> None:
    help_if_asked(__doc__)
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--labels", type=int, nargs="+", default=N_LABELS)
    parser.add_argument("--layers", nargs="+", default=[""], help="parts of names")
    options = parser.parse_args()
    torch.set_float32_matmul_precision("high")  # TF32
    found = []
    shapes = [(labels, features, rows) for labels in options.labels for features in FEATURES for rows in ROWS]
    for dtype in (torch.bfloat16, torch.float32):
        for shape in shapes:
            for name in [name for name in LAYERS if any(part in name for part in options.layers)]:
                found.append(measured(name, shape, dtype, options.device))
                print(found[-1], flush=True)
                if options.device == "cuda":
                    torch.cuda.empty_cache()
    keep("tree_sigmoid", found)
    if options.device != "cuda" or tuple(options.labels) != N_LABELS or options.layers != [""]:
        return
    by_place = {(row["dtype"], row["shape"], row["layer"]): row for row in found}
    store(
        "tree-softmax",
        "several-labels",
        title="Several labels a row",
        shows=(
            "Milliseconds of a forward and backward pass, called from Python / replayed as a CUDA graph, in brackets the most "
            "megabytes above the parameters, gradients included, and then milliseconds of the top 5, with five labels a row. "
            "Float32 products are TF32. Time and memory only: no accuracy is measured here."
        ),
        columns=["type", "labels x d, batch", *LAYERS],
        rows=[
            [
                dtype,
                f"{shape[0]:,} x {shape[1]:,}, {shape[2]:,}",
                *(cell(by_place.get((dtype, shape, name))) for name in LAYERS),
            ]
            for dtype in ("bfloat16", "float32")
            for shape in shapes
        ],
        machine=MACHINE,
    )


if __name__ == "__main__":
    main()
