"""A softmax over all classes, trained until it gets no better: what the trees are compared with.

    python full_softmax.py PREPARED WEIGHTS.npz [--ridge 3] [--held-out 0.1]

It runs in the environment `torch` of the benchmarks, on a GPU if there is one, and imports nothing of the harness.
PREPARED is the folder of a prepared suite with dense features. Adam with a rate that falls to zero; with `--held-out` so many of the
training rows are kept apart and judged after every pass, which is how `ridge` and the passes were chosen.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy

PASSES, RATE, BATCH = 20, 3e-3, 2048


def judged(weights, bias, X, y) -> str:
    """Error of the first answer and of the first five in per cent, and perplexity."""
    wrong = wrong_5 = loss = 0.0
    with torch.no_grad():
        for start in range(0, len(y), 4096):
            scores, own = X[start : start + 4096] @ weights + bias, y[start : start + 4096]
            top = scores.topk(5, 1).indices
            wrong += (top[:, 0] != own).sum().item()
            wrong_5 += (top != own[:, None]).all(1).sum().item()
            loss += cross_entropy(scores, own, reduction="sum").item()
    n = len(y)
    return f"{100 * wrong / n:.2f} {100 * wrong_5 / n:.2f} {math.exp(loss / n):.1f}"


def trained(X, y, n_classes: int, ridge: float, after_pass) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights [features, classes] and biases; biases begin at the frequencies of the classes."""
    weights = torch.zeros(X.shape[1], n_classes, device=X.device, requires_grad=True)
    counts = torch.bincount(y, minlength=n_classes)
    bias = torch.log(counts + 0.1).requires_grad_(True)
    optimiser = torch.optim.Adam([weights, bias], lr=RATE, betas=(0.9, 0.99))
    steps, done = PASSES * (len(y) // BATCH), 0
    for number in range(1, PASSES + 1):
        order = torch.randperm(len(y), device=X.device)
        for start in range(0, len(y) - BATCH + 1, BATCH):
            optimiser.param_groups[0]["lr"] = RATE * (1 - done / steps)
            some = order[start : start + BATCH]
            loss = cross_entropy(X[some] @ weights + bias, y[some])
            loss = loss + ridge / (2 * len(y)) * weights.square().sum()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            done += 1
        after_pass(number, weights, bias)
    return weights.detach(), bias.detach()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prepared", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--ridge", type=float, default=3.0)
    parser.add_argument("--held-out", type=float, default=0.0)
    options = parser.parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    arrays = np.load(options.prepared / "data.npz")
    X, y, X_test, y_test = (
        torch.from_numpy(arrays[name]).to(device) for name in ("X_train", "labels_train", "X_test", "labels_test")
    )
    order = torch.randperm(len(y))
    n_held = int(options.held_out * len(y))
    held, kept = order[:n_held].to(device), order[n_held:].to(device)
    X_held, y_held = X[held], y[held]

    def show(number, weights, bias):
        found = judged(weights, bias, X_held, y_held) if n_held else ""
        print(f"ridge {options.ridge:g}, pass {number}: {found}", flush=True)

    weights, bias = trained(X[kept], y[kept], int(y.max()) + 1, options.ridge, show)
    print(f"test: {judged(weights, bias, X_test, y_test)}")
    np.savez(options.weights, coef=weights.T.cpu().numpy(), bias=bias.cpu().numpy())


if __name__ == "__main__":
    main()
