"""The Triton kernels against plain PyTorch: on a GPU, or anywhere, slowly, under TRITON_INTERPRET=1.

The interpreter of Triton 3.8 does; that of 3.9 refuses masks made of a scalar and a vector.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from treemax.torch import TreeSigmoid, TreeSoftmax, grouped

interpreted = os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None
pytestmark = pytest.mark.skipif(
    not (torch.cuda.is_available() or interpreted), reason="needs a GPU, or Triton with TRITON_INTERPRET=1"
)
DEVICE = "cpu" if interpreted else "cuda"
SETTINGS = {
    "direct": {"counts": np.arange(50), "n_direct": 9},
    "three levels": {"depth": 3, "arity": 4, "reduction": "none"},
    "groups": {"structure": [i % 7 if i > 5 else -1 for i in range(50)], "reassign_every": 100, "bias": False},
    "many rows at a node": {"structure": [i % 2 for i in range(50)], "reassign_every": 1000},
}


@pytest.fixture
def high_precision():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("name", SETTINGS)
def test_kernels_agree_with_plain_pytorch(name, large, monkeypatch, high_precision):
    """As for a small batch, and as for one so large that rows are sorted and cuBLAS multiplies at the root."""
    torch.manual_seed(0)
    monkeypatch.setattr(grouped, "MOST_RANKED", 0 if large else 10_000)
    monkeypatch.setattr(grouped, "LARGE_PRODUCT", {True: 0 if large else 1e9})
    grouped._plan.cache_clear()
    layer = TreeSoftmax(24, 50, device=DEVICE, **SETTINGS[name])
    n_rows = 30 if name != "many rows at a node" else 150
    hidden = torch.randn(n_rows, 24, device=DEVICE, requires_grad=True)
    target = torch.randint(50, (n_rows,), device=DEVICE)
    target[:20], target[25:27] = 3, -100
    answers = []
    for fast in (False, True):
        monkeypatch.setattr(grouped, "can_use", lambda tensor, fast=fast: fast)
        answers.append(answers_of(layer, hidden, target))
    for plain, kernel in zip(*answers):
        torch.testing.assert_close(kernel, plain, rtol=1e-4, atol=1e-5)


def answers_of(layer, hidden, target):
    layer._statistics = None
    loss = layer(hidden, target)
    weighted = (loss * torch.linspace(0, 1, loss.numel(), device=DEVICE)).sum() if loss.dim() else loss
    gradients = torch.autograd.grad(weighted, [hidden, *layer.parameters()])
    exact, beam = layer.topk(hidden, 5, beam=None), layer.topk(hidden, 3, beam=3)
    return [loss.detach(), *gradients, *exact, *beam, layer._statistics.counts, *layer._statistics.sums]


@pytest.mark.parametrize("as_pair", [False, True])
@pytest.mark.parametrize("name", SETTINGS)
def test_kernels_of_several_labels_agree_with_plain_pytorch(name, as_pair, monkeypatch, high_precision):
    torch.manual_seed(0)
    settings = {key: value for key, value in SETTINGS[name].items() if key != "reassign_every"}
    layer = TreeSigmoid(24, 50, device=DEVICE, **settings)
    n_rows = 30 if name != "many rows at a node" else 150
    hidden = torch.randn(n_rows, 24, device=DEVICE, requires_grad=True)
    target = torch.randint(50, (n_rows, 4), device=DEVICE)
    target[:10, 1], target[10:20, 2:], target[25:27] = 3, -100, -100
    if as_pair:
        lengths = (target != -100).sum(dim=1)
        target = target[target != -100], lengths.cumsum(0) - lengths
    answers = []
    for fast in (False, True):
        monkeypatch.setattr(grouped, "can_use", lambda tensor, fast=fast: fast)
        loss = layer(hidden, target)
        weighted = (loss * torch.linspace(0, 1, loss.numel(), device=DEVICE)).sum() if loss.dim() else loss
        gradients = torch.autograd.grad(weighted, [hidden, *layer.parameters()])
        exact, beam = layer.topk(hidden, 5, beam=None), layer.topk(hidden, 3, beam=3)
        answers.append([loss.detach(), *gradients, *exact, *beam, layer.predict(hidden, 0.02)])
        assert (answers[-1][-1] >= 0).any()
    for plain, kernel in zip(*answers):
        torch.testing.assert_close(kernel, plain, rtol=1e-4, atol=1e-5)
