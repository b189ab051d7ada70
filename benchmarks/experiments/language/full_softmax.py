"""A linear model of all classes, trained until it gets no better: what the trees are compared with.

    python full_softmax.py PREPARED WEIGHTS.npz [--loss softmax] [--ridge 3] [--held-out 0.1]

The loss is that of a softmax, or with `--loss one-vs-all` of a logistic model for each class.

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
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, one_hot

PASSES, RATE, BATCH = 20, 3e-3, 2048


def one_vs_all(scores, y, reduction="mean"):
    """The logistic loss of every class, added up."""
    truth = one_hot(y, scores.shape[1]).to(scores.dtype)
    losses = binary_cross_entropy_with_logits(scores, truth, reduction="none").sum(1)
    return losses.sum() if reduction == "sum" else losses.mean()


LOSSES = {"softmax": cross_entropy, "one-vs-all": one_vs_all}


def log_probabilities(scores, loss: str):
    """Of every class; the probabilities of one-vs-all are scaled to sum to one."""
    if loss == "softmax":
        return scores.log_softmax(1)
    logs = torch.nn.functional.logsigmoid(scores)
    return logs - logs.logsumexp(1, keepdim=True)


def judged(weights, bias, X, y, loss: str) -> str:
    """Error of the first answer and of the first five in per cent, and perplexity."""
    wrong = wrong_5 = total = 0.0
    with torch.no_grad():
        for start in range(0, len(y), 4096):
            scores, own = X[start : start + 4096] @ weights + bias, y[start : start + 4096]
            top = scores.topk(5, 1).indices
            wrong += (top[:, 0] != own).sum().item()
            wrong_5 += (top != own[:, None]).all(1).sum().item()
            total -= log_probabilities(scores, loss).gather(1, own[:, None]).sum().item()
    n = len(y)
    return f"{100 * wrong / n:.2f} {100 * wrong_5 / n:.2f} {math.exp(total / n):.1f}"


def trained(X, y, n_classes: int, loss: str, ridge: float, after_pass) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights [features, classes] and biases; biases begin at the frequencies of the classes."""
    weights = torch.zeros(X.shape[1], n_classes, device=X.device, requires_grad=True)
    counts = torch.bincount(y, minlength=n_classes)
    bias = torch.log(counts + 0.1) - (math.log(len(y)) if loss == "one-vs-all" else 0.0)
    bias.requires_grad_(True)
    optimiser = torch.optim.Adam([weights, bias], lr=RATE, betas=(0.9, 0.99))
    steps, done = PASSES * (len(y) // BATCH), 0
    for number in range(1, PASSES + 1):
        order = torch.randperm(len(y), device=X.device)
        for start in range(0, len(y) - BATCH + 1, BATCH):
            optimiser.param_groups[0]["lr"] = RATE * (1 - done / steps)
            some = order[start : start + BATCH]
            objective = LOSSES[loss](X[some] @ weights + bias, y[some])
            objective = objective + ridge / (2 * len(y)) * weights.square().sum()
            optimiser.zero_grad()
            objective.backward()
            optimiser.step()
            done += 1
        after_pass(number, weights, bias)
    return weights.detach(), bias.detach()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prepared", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--loss", choices=LOSSES, default="softmax")
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
        found = judged(weights, bias, X_held, y_held, options.loss) if n_held else ""
        print(f"{options.loss}, ridge {options.ridge:g}, pass {number}: {found}", flush=True)

    weights, bias = trained(X[kept], y[kept], int(y.max()) + 1, options.loss, options.ridge, show)
    print(f"test: {judged(weights, bias, X_test, y_test, options.loss)}")
    np.savez(options.weights, coef=weights.T.cpu().numpy(), bias=bias.cpu().numpy())


if __name__ == "__main__":
    main()
