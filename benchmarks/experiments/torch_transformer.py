"""The loss of a small transformer after equal time, by output layer: `python -m benchmarks.experiments.torch_transformer`.

A causal transformer reads GCC's ChangeLogs, or with `--text linux` the source of Linux, and predicts the next of 128,000
words (rarer ones count as one). Every output layer gets the same network, batches, seeds and seconds of training; the
rate is the better of `RATES` on held-out words of the training text, and the loss is that of the test.
`torch_language --prepare` makes the numbers of the words of the one, `linux prepare` and then `--prepare-linux` those of
the other. Needs a GPU, and `pip install liger-kernel cut-cross-entropy`.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks import FOLDER
from benchmarks.experiments.fused_losses import MACHINE, CutCrossEntropy, Liger, OneMatrix
from benchmarks.experiments.torch_language import WORDS
from benchmarks.harness.output import help_if_asked, keep, store
from treemax.torch import TreeSoftmax

LINUX = FOLDER / ".cache" / "linux-words.npz"
N_WORDS = 128_000
SIZE, LAYERS, HEADS, CONTEXT, BATCH = 512, 4, 8, 256, 64
RATES = (5e-4, 1e-3)
MARKS = (5, 10, 20, 30)  # seconds of training after which the loss is measured
SEEDS = (0, 1)
HELD_OUT = 40 * CONTEXT * BATCH // 4  # words


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(SIZE), nn.LayerNorm(SIZE)
        self.qkv, self.out = nn.Linear(SIZE, 3 * SIZE), nn.Linear(SIZE, SIZE)
        self.mlp = nn.Sequential(nn.Linear(SIZE, 4 * SIZE), nn.GELU(), nn.Linear(4 * SIZE, SIZE))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, _ = x.shape
        parts = self.qkv(self.before_attention(x)).view(rows, length, 3, HEADS, SIZE // HEADS).transpose(1, 3)
        read = F.scaled_dot_product_attention(*parts.unbind(2), is_causal=True)
        x = x + self.dropout(self.out(read.transpose(1, 2).reshape(rows, length, SIZE)))
        return x + self.dropout(self.mlp(self.before_mlp(x)))


class Transformer(nn.Module):
    """Embedding, blocks, and an output layer that gives the loss."""

    def __init__(self, output: nn.Module) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(N_WORDS, SIZE), nn.Embedding(CONTEXT, SIZE)
        nn.init.normal_(self.embedding.weight, std=0.02)
        nn.init.normal_(self.position.weight, std=0.02)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)), nn.LayerNorm(SIZE))
        self.output = output

    def forward(self, words: Tensor) -> Tensor:
        """The mean loss of windows of `CONTEXT + 1` words."""
        with torch.autocast("cuda", dtype=torch.bfloat16):
            hidden = self.blocks(self.embedding(words[:, :-1]) + self.position.weight)
            return self.output(hidden.flatten(0, 1).bfloat16(), words[:, 1:].flatten())


class LowPrecision(nn.Module):
    """A fused loss with its weights in bfloat16 at every step, as autocast does for other layers."""

    def __init__(self, kind: type[OneMatrix]) -> None:
        super().__init__()
        self.inner = kind(SIZE, N_WORDS)

    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:
        weight = self.inner.weight.bfloat16()
        return torch.func.functional_call(self.inner, {"weight": weight}, (hidden, target))


def outputs(counts: np.ndarray) -> dict[str, Any]:
    """Name -> what makes the layer."""
    return {
        "flat softmax": lambda: OneMatrix(SIZE, N_WORDS),
        "Liger": lambda: LowPrecision(Liger),
        "Cut Cross-Entropy": lambda: LowPrecision(CutCrossEntropy),
        "TreeSoftmax(counts=...), fixed": lambda: TreeSoftmax(SIZE, N_WORDS, counts=counts, reassign_every=0),
        "TreeSoftmax(counts=...), learning": lambda: TreeSoftmax(SIZE, N_WORDS, counts=counts),
    }


@torch.no_grad()
def loss_of(model: Transformer, words: Tensor) -> float:
    model.eval()
    windows = words[: len(words) // (CONTEXT + 1) * (CONTEXT + 1)].view(-1, CONTEXT + 1)
    parts = windows.split(BATCH // 2)
    total = sum(float(model(part)) * len(part) for part in parts)
    model.train()
    return total / len(windows)


def trained(output: Any, text: Tensor, parts: dict[str, Tensor], rate: float, seed: int) -> dict[str, Any]:
    """The losses of the parts at each mark, and the words read until then; the time of judging does not count."""
    torch.manual_seed(seed)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    model = Transformer(output()).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01, fused=True)
    random = torch.Generator(device="cuda").manual_seed(seed)
    offsets, found, seconds, steps = torch.arange(CONTEXT + 1, device="cuda"), [], 0.0, 0

    def step() -> None:
        starts = torch.randint(len(text) - CONTEXT, (BATCH, 1), device="cuda", generator=random)
        model(text[starts + offsets]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for group in optimizer.param_groups:
        group["lr"] = 0.0
    for _ in range(3):  # kernels are compiled
        step()
    for mark in MARKS:
        torch.cuda.synchronize()
        began = time.perf_counter()
        while seconds + time.perf_counter() - began < mark:
            for group in optimizer.param_groups:
                group["lr"] = rate * min(1.0, (steps + 1) / 200)
            for _ in range(10):
                step()
            steps += 10
            torch.cuda.synchronize()
        seconds += time.perf_counter() - began
        losses = {name: loss_of(model, words) for name, words in parts.items()}
        found.append({"seconds": seconds, "words": steps * BATCH * CONTEXT, **losses})
    return {"rate": rate, "peak_gb": torch.cuda.max_memory_allocated() / 2**30, "marks": found}


def prepare_linux() -> None:
    """Write the words of the Linux source as numbers, the most frequent first; test words are of other files."""
    from benchmarks.experiments.linux import files_and_tokens

    tokens, _, train, test = files_and_tokens(None)
    tokens = np.minimum(tokens, N_WORDS - 1)
    np.savez_compressed(LINUX, train=tokens[train], test=tokens[test[:HELD_OUT]])


TEXTS = {"gcc": (WORDS, "GCC's ChangeLogs"), "linux": (LINUX, "the source of Linux")}


def main() -> None:
    help_if_asked(__doc__)
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--text", choices=TEXTS, default="gcc")
    parser.add_argument("--prepare-linux", action="store_true")
    options = parser.parse_args()
    if options.prepare_linux:
        prepare_linux()
        return
    torch.set_float32_matmul_precision("high")
    path, name_of_text = TEXTS[options.text]
    with np.load(path) as stored:
        train, test = (np.minimum(stored[name], N_WORDS - 1).astype(np.int64) for name in ("train", "test"))
    counts = np.bincount(train, minlength=N_WORDS)
    held_out, text = (torch.from_numpy(part).cuda() for part in (train[:HELD_OUT], train[HELD_OUT:]))
    parts = {"held-out": held_out, "test": torch.from_numpy(test[:HELD_OUT]).cuda()}
    found: dict[str, Any] = {}
    for name, make in outputs(counts).items():
        first = [trained(make, text, parts, rate, SEEDS[0]) for rate in RATES]
        best = min(first, key=lambda run: run["marks"][-1]["held-out"])
        found[name] = [best, *(trained(make, text, parts, best["rate"], seed) for seed in SEEDS[1:])]
        print(name, first, found[name][1:], flush=True)
        keep(f"torch_transformer_{options.text}", found)
    store(
        "tree-softmax",
        "transformer" if options.text == "gcc" else f"transformer-{options.text}",
        title=f"A small transformer after equal time: {name_of_text}",
        shows=(
            f"{LAYERS} layers of {SIZE}, {N_WORDS:,} words, windows of {CONTEXT}: mean -log p of test words after so many "
            f"seconds of training, means of {len(SEEDS)} seeds; the rate is the better of {' and '.join(map(str, RATES))} on "
            f"held-out words. The text has {len(text) / 1e6:.0f} million words."
        ),
        columns=["output layer", *(f"{mark} s" for mark in MARKS), "million words read", "peak GB"],
        rows=[
            [
                name,
                *(round(float(np.mean([run["marks"][i]["test"] for run in runs])), 3) for i in range(len(MARKS))),
                round(runs[0]["marks"][-1]["words"] / 1e6, 1),
                round(max(run["peak_gb"] for run in runs), 1),
            ]
            for name, runs in found.items()
        ],
        machine=MACHINE,
    )


if __name__ == "__main__":
    main()
