"""Held-out loss of output layers under one language model: `python -m benchmarks.experiments.torch_language --device cuda`.

An LSTM reads GCC's ChangeLogs word by word and predicts the next word. Words seen twice or more in training are
classes, about 171,000; entries held out at random are the test. All layers get the same network, batches, seed and
rate, and are trained for the same number of passes. `--prepare` makes the numbers of the words once, from the data
that the other benchmarks use.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks import FOLDER
from benchmarks.harness.suites import data_folder
from treemax.torch import TreeSoftmax

WORDS = FOLDER / ".cache" / "gcc-words.npz"
WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9]*|\d+|[^\w\s]")
STREAMS, LENGTH = 128, 32  # texts read side by side, and words of each in a batch


# --- the text ------------------------------------------------------------------------------------------


def prepare(file: Path) -> None:
    """Words as numbers by frequency, in training and test."""
    folder = data_folder()
    with gzip.open(folder / "gcc" / "stream.jsonl.gz", "rt") as lines:
        entries = [[*WORD.findall(json.loads(line)["text"]), "<end>"] for line in lines]
    held_out = np.random.default_rng(0).random(len(entries)) < 0.05
    counts = Counter(word for entry, out in zip(entries, held_out) if not out for word in entry)
    number = {word: i for i, (word, count) in enumerate(counts.most_common(), 1) if count > 1}
    train, test = (
        np.fromiter((number.get(word, 0) for entry, out in zip(entries, held_out) if out == part for word in entry), np.uint32)
        for part in (False, True)
    )  # fmt: skip
    order = np.argsort(-np.bincount(train, minlength=len(number) + 1), kind="stable")  # unknown words among them
    rank = np.empty(len(order), np.uint32)
    rank[order] = np.arange(len(order))
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(file, train=rank[train], test=rank[test], n_words=len(order))


def streams(words: np.ndarray, device: str) -> Tensor:
    """The text cut into as many pieces as are read side by side."""
    length = len(words) // STREAMS
    return torch.from_numpy(words[: STREAMS * length].astype(np.int64)).view(STREAMS, length).to(device)


# --- the network ---------------------------------------------------------------------------------------


class LanguageModel(nn.Module):
    """Embedding, LSTM, and an output layer that gives the loss."""

    def __init__(self, n_words: int, size: int, output: nn.Module) -> None:
        super().__init__()
        self.embedding = nn.Embedding(n_words, size)
        self.lstm = nn.LSTM(size, 2 * size, batch_first=True)
        self.down = nn.Linear(2 * size, size)
        self.dropout = nn.Dropout(0.1)
        self.output = output

    def hidden(self, words: Tensor, state: Any) -> tuple[Tensor, Any]:
        read, state = self.lstm(self.dropout(self.embedding(words)), state)
        return self.dropout(self.down(read)), state

    def forward(self, words: Tensor, following: Tensor, state: Any) -> tuple[Tensor, Any]:
        hidden, state = self.hidden(words, state)
        return self.output(hidden.flatten(0, 1), following.flatten()), state


class Flat(nn.Module):
    def __init__(self, size: int, n_words: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, n_words)

    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.linear(hidden), target)


class Adaptive(nn.Module):
    def __init__(self, size: int, n_words: int) -> None:
        super().__init__()
        cutoffs = [cut for cut in (2_000, 20_000, 100_000) if cut < n_words]
        self.inner = nn.AdaptiveLogSoftmaxWithLoss(size, n_words, cutoffs)

    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:
        with torch.autocast(hidden.device.type, enabled=False):  # it fails with mixed types
            return self.inner(hidden.float(), target).loss


def outputs(size: int, n_words: int, counts: np.ndarray) -> dict[str, Any]:
    """Name -> what makes the layer."""

    def tree(**settings: Any) -> Any:
        return lambda: TreeSoftmax(size, n_words, **settings)

    return {
        "adaptive": lambda: Adaptive(size, n_words),
        "tree": tree(counts=counts),
        "tree, begun by frequency": tree(counts=counts, structure="frequency"),
        "tree, fixed at random": tree(counts=counts, reassign_every=0),
        "tree, fixed by frequency": tree(counts=counts, reassign_every=0, structure="frequency"),
        "flat": lambda: Flat(size, n_words),
        "tree without counts": tree(),
        "tree without counts, fixed": tree(reassign_every=0),
        "tree, 65-ary depth 3": tree(arity=65, depth=3),
        "tree, 65-ary depth 3, fixed": tree(arity=65, depth=3, reassign_every=0),
    }


# --- training ------------------------------------------------------------------------------------------


def rate_at(share: float) -> float:
    """Up in the first twentieth, then down along a cosine."""
    return share / 0.05 if share < 0.05 else 0.5 * (1 + math.cos(math.pi * (share - 0.05) / 0.95))


def train(model: LanguageModel, text: Tensor, passes: float, rate: float) -> float:
    """Train, and give the seconds that it took."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, fused=text.is_cuda)
    n_batches = (text.shape[1] - 1) // LENGTH
    n_steps = int(passes * n_batches)
    start = time.perf_counter()
    state = None
    for step in range(n_steps):
        at = step % n_batches * LENGTH
        state = None if at == 0 or state is None else tuple(part.detach() for part in state)
        for group in optimizer.param_groups:
            group["lr"] = rate * rate_at(step / n_steps)
        with torch.autocast(text.device.type, dtype=torch.bfloat16, enabled=text.is_cuda):
            loss, state = model(text[:, at : at + LENGTH], text[:, at + 1 : at + 1 + LENGTH], state)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    if text.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


@torch.no_grad()
def held_out_loss(model: LanguageModel, text: Tensor) -> float:
    model.eval()
    state, total, n_batches = None, 0.0, (text.shape[1] - 1) // LENGTH
    for at in range(0, n_batches * LENGTH, LENGTH):
        with torch.autocast(text.device.type, dtype=torch.bfloat16, enabled=text.is_cuda):
            loss, state = model(text[:, at : at + LENGTH], text[:, at + 1 : at + 1 + LENGTH], state)
        total += float(loss)
    return total / n_batches


@torch.no_grad()
def beam_agreement(model: LanguageModel, text: Tensor, beams: tuple[int, ...] = (8, 16, 32)) -> dict[str, float]:
    """Which part of the five best, and of the best, a beam finds; and the milliseconds of both."""
    hidden, _ = model.hidden(text[:, : 2 * LENGTH], None)
    hidden = hidden[:, LENGTH:].flatten(0, 1)
    layer = model.output
    exact = layer.topk(hidden, 5, beam=None)[1]
    found: dict[str, float] = {"exact ms": best_time(lambda: layer.topk(hidden, 5, beam=None), text)}
    for beam in beams:
        answer = layer.topk(hidden, 5, beam=beam)[1]
        found[f"top-1 agrees, beam {beam}"] = float((answer[:, 0] == exact[:, 0]).float().mean())
        same = (answer[:, :, None] == exact[:, None, :]).any(2).float().mean()
        found[f"top-5 agrees, beam {beam}"] = float(same)
        found[f"beam {beam} ms"] = best_time(lambda beam=beam: layer.topk(hidden, 5, beam=beam), text)
    return found


def best_time(action: Any, text: Tensor) -> float:
    times = []
    for _ in range(5):
        start = time.perf_counter()
        action()
        if text.is_cuda:
            torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - start))
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--prepare", action="store_true")
    parser.add_argument("--words", type=Path, default=WORDS)
    parser.add_argument("--outputs", nargs="+", default=["adaptive", "tree", "tree, fixed at random", "flat"])
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--passes", type=float, default=2.0)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--limit", type=int, default=None, help="words of training")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=FOLDER / "results")
    options = parser.parse_args()
    if options.prepare:
        prepare(options.words)
    with np.load(options.words) as stored:
        train_words, test_words, n_words = (stored["train"][: options.limit], stored["test"], int(stored["n_words"]))
    if options.limit:  # a small vocabulary for a small text
        n_words = int(train_words.max()) + 1
        test_words = np.minimum(test_words, n_words - 1)[: options.limit // 10]
    counts = np.bincount(train_words, minlength=n_words)
    torch.set_float32_matmul_precision("high")
    options.out.mkdir(parents=True, exist_ok=True)
    text, test = streams(train_words, options.device), streams(test_words, options.device)
    results = []
    for name in options.outputs:
        torch.manual_seed(options.seed)
        output = outputs(options.size, n_words, counts)[name]()
        model = LanguageModel(n_words, options.size, output).to(options.device)
        seconds = train(model, text, options.passes, options.rate)
        result: dict[str, Any] = {"output": name, "loss": held_out_loss(model, test), "seconds": seconds}
        result["perplexity"] = math.exp(result["loss"])
        if isinstance(output, TreeSoftmax):
            result["shape"] = str(output.shape)
        if name == "tree":
            result |= beam_agreement(model, test)
        results.append(result)
        print(json.dumps(result), flush=True)
        (options.out / f"torch_language_{options.seed}.json").write_text(
            json.dumps({"settings": vars(options), "results": results}, indent=1, default=str)
        )
        del model, output


if __name__ == "__main__":
    main()
