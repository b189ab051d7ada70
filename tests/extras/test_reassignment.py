"""Learning the tree of an output layer: the rule, its statistics, and training in two processes.

Statistics are private, since users only see the tree.
"""

from __future__ import annotations

import os
from datetime import timedelta

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models.learned_tree.reference import node_gradient
from treemax.models.learned_tree.assignment import assign_labels
from treemax.torch import TreeSoftmax
from treemax.torch.reassignment import UNKNOWN_SCORE, Statistics, assign_greedily, preferences, reassigned
from treemax.torch.structure import check_places

seeds = st.integers(0, 2**32 - 1)


@given(seeds, st.integers(1, 25), st.integers(2, 6), st.sampled_from(["plain", "ties", "unseen"]))
@settings(max_examples=60, deadline=None)
def test_rounds_are_greedy(seed, n_classes, n_children, kind):
    random = np.random.default_rng(seed)
    scores = random.normal(size=(n_classes, n_children)).astype(np.float32)
    if kind == "ties":
        scores = np.round(scores)
    if kind == "unseen":
        stays = random.integers(0, n_children, n_classes)
        unseen = random.random(n_classes) < 0.6
        scores[unseen] = UNKNOWN_SCORE
        scores[unseen, stays[unseen]] = 0
    room = random.multinomial(n_classes + random.integers(0, 4), np.full(n_children, 1 / n_children))
    found = assign_greedily(torch.from_numpy(scores), torch.zeros(n_classes, dtype=torch.int64), torch.from_numpy(room))
    np.testing.assert_array_equal(found.numpy(), assign_labels(scores, room))


@given(seeds, st.integers(1, 4), st.integers(2, 4))
@settings(max_examples=30, deadline=None)
def test_nodes_of_a_level_do_not_mind_each_other(seed, n_nodes, n_children):
    random = np.random.default_rng(seed)
    node = random.integers(0, n_nodes, 20)
    scores = random.normal(size=(20, n_children)).astype(np.float32)
    room = np.full(n_nodes * n_children, 20)
    room[random.random(len(room)) < 0.3] = 1
    room[::n_children] = 20  # enough for all
    found = assign_greedily(torch.from_numpy(scores), torch.from_numpy(node), torch.from_numpy(room)).numpy()
    for v in range(n_nodes):
        own = node == v
        expected = assign_labels(scores[own], room[v * n_children : (v + 1) * n_children])
        np.testing.assert_array_equal(found[own], expected)


def test_preferences_are_equation_twelve():
    random = np.random.default_rng(0)
    counts = np.array([4, 1, 0, 7, 2])
    sums = random.dirichlet(np.ones(3), size=5) * counts[:, None]
    found = preferences(
        torch.tensor(sums), torch.tensor(counts, dtype=torch.float64), torch.zeros(5, dtype=torch.int64),
        torch.tensor([0, 1, 2, 0, 1]),
    ).numpy()  # fmt: skip
    seen = counts > 0
    np.testing.assert_allclose(found[seen] * 2 / 3, node_gradient(sums, counts)[seen], rtol=1e-6)
    np.testing.assert_allclose(found[2], [UNKNOWN_SCORE, UNKNOWN_SCORE, 0])


def trained(**settings):
    torch.manual_seed(0)
    layer = TreeSoftmax(4, 60, reassign_every=10**9, **settings)
    hidden, target = torch.randn(500, 4), torch.randint(60, (500,))
    target[::7] = -100
    layer(hidden, target)
    return layer, hidden, target


@pytest.mark.parametrize(
    "settings", [{}, {"depth": 3}, {"counts": np.arange(60), "n_direct": 11}, {"depth": 3, "arity": 6}]
)
def test_statistics_are_sums_of_outputs(settings):
    layer, hidden, target = trained(**settings)
    probabilities = layer.log_prob(hidden).exp()
    shape = layer.shape
    statistics = layer._statistics
    tail = layer.places < shape.n_places
    for c in range(60):
        own = target == c
        if not tail[c]:
            assert statistics.counts[c] == 0
            continue
        assert statistics.counts[c] == own.sum()
        above = torch.ones(int(own.sum()))
        for level, sums in enumerate(statistics.sums):
            below = shape.places_below(level)
            first = 0 if level == 0 else int(layer.places[c]) // (below * sums.shape[1]) * sums.shape[1]
            children = torch.stack(
                [probabilities[own][:, tail & (layer.places // below == first + j)].sum(1) for j in range(sums.shape[1])],
                dim=1,
            )  # fmt: skip
            expected = (children / above[:, None]).sum(0)
            torch.testing.assert_close(sums[c], expected, rtol=1e-4, atol=1e-5)
            above = children[:, int(layer.places[c]) // below % sums.shape[1]]


@pytest.mark.parametrize(
    "settings", [{}, {"depth": 3}, {"counts": np.arange(60), "n_direct": 11}, {"depth": 3, "arity": 6}]
)
def test_new_places_are_a_tree(settings):
    layer, hidden, _ = trained(**settings)
    before = layer.places.clone()
    expected = reassigned(layer.shape, before, layer._statistics)
    check_places(layer.shape, expected)
    moved = layer.reassign()
    assert torch.equal(layer.places, expected)
    last = layer.shape.arities[-1]
    assert moved == (before // last != expected // last).sum() > 0
    direct = before == layer.shape.n_places
    assert torch.equal(expected == layer.shape.n_places, direct)
    torch.testing.assert_close(layer.log_prob(hidden).exp().sum(1), torch.ones(500))


def test_a_class_goes_where_its_examples_are_sent():
    """Two nodes of four classes; the node above sends the examples of each class to the other one."""
    layer = TreeSoftmax(2, 8, structure=[0, 0, 0, 0, 1, 1, 1, 1], reassign_every=10**9)
    statistics = Statistics(layer.shape, torch.device("cpu"))
    wanted = torch.tensor([0, 1, 0, 1, 0, 1, 0, 1])
    statistics.counts += 10
    statistics.sums[0] += 1 + 8 * torch.nn.functional.one_hot(wanted, 2)
    layer._statistics = statistics
    assert layer.reassign() == 4
    assert torch.equal(layer.places // 4, wanted)


def test_classes_never_seen_stay_where_there_is_room():
    layer = TreeSoftmax(2, 12, structure=np.arange(12) // 4, reassign_every=10**9)
    statistics = Statistics(layer.shape, torch.device("cpu"))
    statistics.counts[[0, 4]] = 5
    statistics.sums[0][0] = torch.tensor([0.5, 0.5, 4])  # class 0 wants to be where 8 to 11 are
    statistics.sums[0][4] = torch.tensor([1.0, 3, 1])
    layer._statistics = statistics
    assert layer.reassign() == 2
    node = layer.places // 4
    assert node[0] == 2 and (node[1:4] == 0).all() and (node[4:8] == 1).all()
    assert (node[8:] == 2).sum() == 3 and (node[8:] == 0).sum() == 1


def test_a_tree_learned_is_better_than_a_random_one():
    """Classes in blocks that look alike: a tree that has found the blocks predicts them better."""
    losses = []
    for reassign_every in (0, 2_000):
        torch.manual_seed(1)
        random = torch.Generator().manual_seed(2)
        centres = 3 * torch.randn(8, 16, generator=random)
        layer = TreeSoftmax(16, 64, reassign_every=reassign_every)
        optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
        shuffled = torch.randperm(64, generator=random)
        for _ in range(120):
            block, within = (torch.randint(8, (200,), generator=random) for _ in range(2))
            hidden = centres[block] + 0.5 * torch.randn(200, 16, generator=random)
            optimizer.zero_grad()
            layer(hidden, shuffled[block * 8 + within]).backward()
            optimizer.step()
        layer.eval()
        block = torch.randint(8, (2000,), generator=random)
        target = shuffled[block * 8 + torch.randint(8, (2000,), generator=random)]
        losses.append(float(layer(centres[block] + 0.5 * torch.randn(2000, 16, generator=random), target).detach()))
    assert losses[1] < losses[0] - 0.02, losses


def test_reassigning_between_forward_and_backward_is_harmless():
    layer, hidden, target = trained()
    loss = layer(hidden, target)
    expected = torch.autograd.grad(loss, list(layer.parameters()), retain_graph=True)
    layer.reassign()
    for one, other in zip(torch.autograd.grad(loss, list(layer.parameters())), expected):
        assert torch.equal(one, other)


def test_reassigns_by_itself_in_training_only():
    torch.manual_seed(0)
    layer = TreeSoftmax(4, 60, reassign_every=100)
    before = layer.places.clone()
    hidden, target = torch.randn(60, 4), torch.randint(60, (60,))
    layer.eval()
    for _ in range(5):
        layer(hidden, target)
    assert layer._statistics is None and torch.equal(layer.places, before)
    layer.train()
    layer(hidden, target)
    layer(hidden, target)
    assert torch.equal(layer.places, before)
    layer(hidden, target)
    assert not torch.equal(layer.places, before)


# --- two processes -------------------------------------------------------------------------------------


def _train_part(rank: int, n_processes: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=n_processes, timeout=timedelta(minutes=2)
    )
    model = torch.nn.parallel.DistributedDataParallel(_model())
    _train(model, model.module[1], rank, n_processes)
    torch.save(model.module.state_dict(), f"{folder}/state{rank}.pt")
    torch.distributed.barrier()
    os._exit(0)  # taking gloo down can wait for itself for ever


def _model():
    torch.manual_seed(3)
    layer = TreeSoftmax(6, 40, reassign_every=300, counts=np.arange(40), n_direct=4)
    return _WithLoss(torch.nn.Linear(6, 6), layer)


class _WithLoss(torch.nn.Sequential):
    def forward(self, hidden, target):
        return self[1](self[0](hidden), target)


def _train(model, layer, rank: int, n_processes: int) -> None:
    random = torch.Generator().manual_seed(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(12):
        hidden = torch.randn(64, 6, generator=random)
        target = (hidden @ torch.randn(6, 40, generator=torch.Generator().manual_seed(5))).argmax(1)
        own = slice(rank * 64 // n_processes, (rank + 1) * 64 // n_processes)
        optimizer.zero_grad()
        model(hidden[own], target[own]).backward()
        optimizer.step()


def test_two_processes_learn_what_one_does(tmp_path):
    torch.multiprocessing.spawn(_train_part, args=(2, str(tmp_path)), nprocs=2)
    alone = _model()
    before = alone[1].places.clone()
    _train(alone, alone[1], 0, 1)
    assert not torch.equal(alone[1].places, before)
    states = [torch.load(tmp_path / f"state{rank}.pt", weights_only=True) for rank in range(2)]
    for name, value in alone.state_dict().items():
        assert torch.equal(states[0][name], states[1][name])
        torch.testing.assert_close(states[0][name], value, rtol=1e-4, atol=1e-5)
