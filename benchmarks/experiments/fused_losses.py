"""TreeSoftmax beside fused losses of large vocabularies: `python -m benchmarks.experiments.fused_losses`.

Liger's fused linear cross-entropy and Cut Cross-Entropy compute a flat softmax without keeping its logits. A step is
measured as in `torch_layers`, in bfloat16 without biases, which Cut Cross-Entropy does not have. Needs a GPU, and
`pip install liger-kernel cut-cross-entropy`.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.experiments.torch_layers import Tree, batches, milliseconds, peak_megabytes, step_of
from benchmarks.harness.output import help_if_asked, keep, store

SHAPES = [  # classes, features, rows of a batch
    (250_000, 200, 4_096),
    (250_000, 1_024, 4_096),
    (128_256, 4_096, 8_192),
    (256_000, 2_304, 8_192),
    (1_000_000, 512, 8_192),
]
SECONDS = 0.5  # of measuring, three times
MACHINE = "one NVIDIA H200"


class OneMatrix(nn.Module):
    """The weights of a flat softmax, and a loss computed from them."""

    def __init__(self, features: int, n_classes: int, **kind: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_classes, features, **kind) / math.sqrt(features))

    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(hidden, self.weight), target)


class Liger(OneMatrix):
    """Liger's kernel, which computes the gradients in the forward pass, some rows at a time."""

    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:
        from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction

        found = LigerFusedLinearCrossEntropyFunction.apply(hidden, self.weight, target)
        return found[0] if isinstance(found, tuple) else found


class CutCrossEntropy(OneMatrix):
    """Apple's kernel, which computes the logits twice and skips gradients that vanish in bfloat16."""

    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:
        from cut_cross_entropy import linear_cross_entropy

        return linear_cross_entropy(hidden, self.weight, target)


LAYERS: dict[str, Any] = {
    "flat softmax": OneMatrix,
    "Liger": Liger,
    "Cut Cross-Entropy": CutCrossEntropy,
    "TreeSoftmax, fixed": lambda *sizes, **kind: Tree(*sizes, **kind, bias=False),
    "TreeSoftmax, learning": lambda *sizes, **kind: Tree(*sizes, **kind, bias=False, reassign_every=2**31 - 1),
}


def measured(name: str, n_classes: int, features: int, n_rows: int) -> dict[str, float]:
    """The milliseconds of a step, and the most megabytes it needs above the parameters."""
    torch.manual_seed(0)
    options = argparse.Namespace(device="cuda", classes=n_classes, batch=n_rows)
    data = batches(features, options, torch.bfloat16)
    layer = LAYERS[name](features, n_classes, device="cuda", dtype=torch.bfloat16)
    step = step_of(layer, data)
    found = {"ms": min(milliseconds(step, "cuda", SECONDS) for _ in range(3)), "mb": peak_megabytes(layer, step, data)}
    del layer, data, step
    torch.cuda.empty_cache()
    return found


def main() -> None:
    help_if_asked(__doc__)
    found: list[dict[str, Any]] = []
    for shape in SHAPES:
        for name in LAYERS:
            found.append({"shape": shape, "layer": name, **measured(name, *shape)})
            print(found[-1], flush=True)
    keep("fused_losses", found)
    by_place = {(row["shape"], row["layer"]): row for row in found}
    store(
        "tree-softmax",
        "fused-losses",
        title="Beside fused losses",
        shows=(
            "Milliseconds of a forward and backward pass in bfloat16, in brackets the most megabytes above the parameters, "
            "gradients included. Liger and Cut Cross-Entropy compute the flat softmax without keeping its logits. A tree "
            "that learns keeps statistics beside its parameters, which are not counted here."
        ),
        columns=["classes x d, batch", *LAYERS],
        rows=[
            [
                f"{shape[0]:,} x {shape[1]:,}, {shape[2]:,}",
                *(f"{by_place[shape, name]['ms']:.2f} ({by_place[shape, name]['mb']:,.0f})" for name in LAYERS),
            ]
            for shape in SHAPES
        ],
        machine=MACHINE,
    )


if __name__ == "__main__":
    main()
