"""TreeSoftmax against a slow reference, and in typical uses of output layers."""

from __future__ import annotations

import copy
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.extras.reference_tree_softmax import slow_log_probabilities  # noqa: E402
from treemax.torch import TreeSoftmax  # noqa: E402

N_CLASSES, FEATURES = 23, 5
COUNTS = np.arange(N_CLASSES)[::-1] ** 2
GROUPS = np.array([-1, -1, 4, 4, 4, 9, 9, 0, 0, 0, 0, 0, 4, 9, 9, 9, 2, 2, 2, 0, 0, -1, 7])
PATHS = np.stack([GROUPS, np.arange(N_CLASSES) % 3], axis=1)
SETTINGS = {
    "default": {},
    "counts": {"counts": COUNTS, "n_direct": 6},
    "by frequency": {"counts": COUNTS, "n_direct": 3, "structure": "frequency"},
    "three levels": {"depth": 3},
    "mostly empty": {"depth": 3, "arity": 5},
    "groups": {"structure": GROUPS},
    "paths": {"structure": PATHS},
    "one group": {"structure": np.zeros(N_CLASSES, dtype=int)},
    "flat": {"depth": 1},
    "no bias": {"bias": False},
}


@pytest.fixture(params=SETTINGS)
def layer(request):
    torch.manual_seed(1)
    return TreeSoftmax(FEATURES, N_CLASSES, dtype=torch.float64, **SETTINGS[request.param])


def rows(n_rows=17, dtype=torch.float64):
    torch.manual_seed(2)
    return 2 * torch.randn(n_rows, FEATURES, dtype=dtype), torch.randint(N_CLASSES, (n_rows,))


# --- values and gradients ------------------------------------------------------------------------------


def test_log_probabilities_are_products_along_the_paths(layer):
    hidden, _ = rows()
    found = layer.log_prob(hidden)
    torch.testing.assert_close(found, slow_log_probabilities(layer, hidden))
    torch.testing.assert_close(found.exp().sum(dim=1), torch.ones(len(hidden), dtype=torch.float64))


def test_loss_and_gradients_are_those_of_the_reference(layer):
    hidden, target = rows()
    hidden.requires_grad_()
    parameters = [hidden, *layer.parameters()]
    loss = layer(hidden, target)
    expected = -slow_log_probabilities(layer, hidden).gather(1, target[:, None]).mean()
    torch.testing.assert_close(loss, expected)
    found = torch.autograd.grad(loss, parameters, retain_graph=True)
    wanted = torch.autograd.grad(expected, parameters, allow_unused=True)
    for one, other in zip(found, wanted):
        torch.testing.assert_close(one, torch.zeros_like(one) if other is None else other)
    again = torch.autograd.grad(loss, parameters)
    assert all(torch.equal(one, other) for one, other in zip(found, again))


def test_gradients_pass_gradcheck(layer):
    hidden, target = rows(6)
    layer.eval()

    def loss(hidden, *parameters):
        return layer.log_prob(hidden, target)

    hidden.requires_grad_()
    assert torch.autograd.gradcheck(loss, (hidden, *layer.parameters()))


def test_second_derivatives_are_refused():
    layer = TreeSoftmax(FEATURES, N_CLASSES, dtype=torch.float64)
    hidden, target = rows()
    with pytest.raises(RuntimeError, match="only once"):
        torch.autograd.grad(layer(hidden.requires_grad_(), target), hidden, create_graph=True)


def test_every_reduction(layer):
    hidden, target = rows()
    losses = -layer.log_prob(hidden, target)
    for reduction, expected in {"none": losses, "sum": losses.sum(), "mean": losses.mean()}.items():
        layer.reduction = reduction
        torch.testing.assert_close(layer(hidden, target), expected)


def test_slopes_of_single_rows(layer):
    layer.reduction = "none"
    hidden, target = rows()
    weights = torch.linspace(-1, 1, len(hidden), dtype=torch.float64)
    found = torch.autograd.grad((layer(hidden, target) * weights).sum(), list(layer.parameters()))
    expected = (-layer.log_prob(hidden).gather(1, target[:, None]).squeeze(1) * weights).sum()
    for one, other in zip(found, torch.autograd.grad(expected, list(layer.parameters()), allow_unused=True)):
        torch.testing.assert_close(one, torch.zeros_like(one) if other is None else other)


def test_ignored_rows_have_no_loss_and_no_gradient(layer):
    hidden, target = rows()
    hidden.requires_grad_()
    marked = target.clone()
    marked[[0, 3, 11]] = -100
    kept = marked != -100
    found = layer(hidden, marked)
    torch.testing.assert_close(found, layer(hidden[kept], target[kept]))
    (slope,) = torch.autograd.grad(found, [hidden])
    assert not slope[~kept].any() and slope[kept].any(dim=1).all()
    assert layer.log_prob(hidden, marked)[0] == 0


def test_any_leading_dimensions():
    layer = TreeSoftmax(FEATURES, N_CLASSES, dtype=torch.float64)
    hidden, target = rows(12)
    grid, grid_target = hidden.view(3, 4, FEATURES), target.view(3, 4)
    torch.testing.assert_close(layer(grid, grid_target), layer(hidden, target))
    assert layer.log_prob(grid).shape == (3, 4, N_CLASSES)
    assert layer.log_prob(grid, grid_target).shape == (3, 4)
    assert layer.topk(grid, 2)[1].shape == (3, 4, 2) and layer.predict(grid).shape == (3, 4)
    assert layer.topk(hidden[0], 2)[1].shape == (2,)
    assert torch.equal(layer.topk(grid.transpose(0, 1), 2)[1], layer.topk(grid, 2)[1].transpose(0, 1))


def test_an_empty_batch(layer):
    hidden, target = rows(0)
    layer.reduction = "sum"
    loss = layer(hidden.requires_grad_(), target)
    loss.backward()
    assert loss == 0 and not layer.weight.grad.any()
    assert layer.topk(hidden, 3)[1].shape == (0, 3) and layer.log_prob(hidden).shape == (0, N_CLASSES)


def test_half_precision_is_close():
    torch.manual_seed(3)
    exact = TreeSoftmax(FEATURES, N_CLASSES, counts=COUNTS, n_direct=4, reassign_every=0)
    hidden, target = rows(64, torch.float32)
    rough = copy.deepcopy(exact).to(torch.bfloat16)
    torch.testing.assert_close(rough(hidden.bfloat16(), target).float(), exact(hidden, target), rtol=0.02, atol=0.02)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = exact(hidden, target)
    assert loss.dtype == torch.float32
    loss.backward()
    assert exact.weight.grad.dtype == torch.float32
    torch.testing.assert_close(loss, exact(hidden, target), rtol=0.02, atol=0.02)


# --- answers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 4, N_CLASSES])
def test_exact_search_finds_the_best(layer, k):
    hidden, _ = rows(40)
    scores, classes = layer.topk(hidden, k, beam=None)
    expected = layer.log_prob(hidden).topk(k, dim=1)
    torch.testing.assert_close(scores, expected.values)
    assert torch.equal(classes, expected.indices)


def test_exact_search_widens_its_beam():
    torch.manual_seed(5)
    layer = TreeSoftmax(FEATURES, 900, dtype=torch.float64)
    with torch.no_grad():
        layer.node_weight *= 0.01  # all nodes alike, so that sixteen of thirty do not do
        layer.weight *= 3
    hidden, _ = rows(30)
    expected = layer.log_prob(hidden).topk(3, dim=1)
    assert torch.equal(layer.topk(hidden, 3, beam=None)[1], expected.indices)
    assert not torch.equal(layer.topk(hidden, 3, beam=3)[1], expected.indices)


def test_beam_finds_what_is_below_the_best_nodes(layer):
    hidden, _ = rows(40)
    scores, classes = layer.topk(hidden, 3, beam=1)
    everything = layer.log_prob(hidden)
    torch.testing.assert_close(scores, everything.gather(1, classes))
    assert (scores[:, 0] <= everything.max(dim=1).values + 1e-12).all()
    assert (scores.diff(dim=1) <= 0).all()
    wide = layer.topk(hidden, 3, beam=100)
    assert torch.equal(wide[1], layer.topk(hidden, 3, beam=None)[1])
    assert torch.equal(layer.predict(hidden, beam=None), everything.argmax(dim=1))


# --- in use --------------------------------------------------------------------------------------------


def test_state_holds_the_tree(tmp_path):
    torch.manual_seed(4)
    layer = TreeSoftmax(FEATURES, N_CLASSES, dtype=torch.float64, reassign_every=10)
    hidden, target = rows(40)
    for _ in range(4):
        layer(hidden, target)
    assert layer.reassign() >= 0
    torch.save(layer.state_dict(), tmp_path / "layer.pt")
    other = TreeSoftmax(FEATURES, N_CLASSES, dtype=torch.float64, seed=9)
    assert not torch.equal(other.places, layer.places)
    other.load_state_dict(torch.load(tmp_path / "layer.pt", weights_only=True))
    assert torch.equal(other.places, layer.places)
    torch.testing.assert_close(other.log_prob(hidden), layer.log_prob(hidden))
    torch.testing.assert_close(other(hidden, target), layer(hidden, target))


def test_state_of_another_tree_is_refused():
    layer = TreeSoftmax(FEATURES, N_CLASSES, depth=2)
    with pytest.raises(RuntimeError, match=r"the tree of the state has the shape .* create the layer with the same"):
        layer.load_state_dict(TreeSoftmax(FEATURES, N_CLASSES, depth=3).state_dict())
    for change, what in (
        (lambda places: places.fill_(1), "two classes"),
        (lambda places: places.sub_(1), "does not exist"),
    ):
        damaged = layer.state_dict()
        damaged["places"] = damaged["places"].clone()
        change(damaged["places"])
        with pytest.raises(RuntimeError, match=what):
            layer.load_state_dict(damaged)


def test_copies_and_conversions_keep_the_tree():
    layer = TreeSoftmax(FEATURES, N_CLASSES, counts=COUNTS, n_direct=4)
    hidden, target = rows(dtype=torch.float32)
    expected = layer(hidden, target)
    torch.testing.assert_close(copy.deepcopy(layer)(hidden, target), expected)
    torch.testing.assert_close(layer.double()(hidden.double(), target).float(), expected)
    empty = TreeSoftmax(FEATURES, N_CLASSES, counts=COUNTS, n_direct=4, device="meta").to_empty(device="cpu")
    empty.places.fill_(-1)
    with pytest.raises(RuntimeError, match="no tree yet"):
        empty.float()(hidden, target)
    empty.load_state_dict(layer.float().state_dict())
    torch.testing.assert_close(empty(hidden, target), expected)


def test_weights_can_be_tied_to_an_embedding():
    embedding = torch.nn.Embedding(N_CLASSES, FEATURES)
    layer = TreeSoftmax(FEATURES, N_CLASSES)
    layer.weight = embedding.weight
    _, target = rows()
    layer(embedding(target), target).backward()
    assert embedding.weight.grad.abs().sum() > 0
    assert len({id(parameter) for parameter in [*layer.parameters(), *embedding.parameters()]}) == 4


@pytest.mark.parametrize("fullgraph", [True, False])
def test_compiled_layers_agree(fullgraph):
    torch.manual_seed(6)
    layer = TreeSoftmax(FEATURES, N_CLASSES, counts=COUNTS, n_direct=4, reassign_every=0 if fullgraph else 30)
    model = torch.nn.Sequential(torch.nn.Linear(FEATURES, FEATURES), torch.nn.Tanh())

    def loss_of(hidden, target):
        return layer(model(hidden), target)

    compiled = torch.compile(loss_of, backend="aot_eager", fullgraph=fullgraph)
    hidden, target = rows(20, torch.float32)
    for _ in range(4):
        parameters = [*layer.parameters(), *model.parameters()]
        found = torch.autograd.grad(compiled(hidden, target), parameters)
        layer.eval()
        expected = torch.autograd.grad(loss_of(hidden, target), parameters)
        layer.train()
        for one, other in zip(found, expected):
            torch.testing.assert_close(one, other)


def test_learning_beats_knowing_nothing():
    torch.manual_seed(7)
    hidden = torch.randn(400, 8)
    target = (hidden @ torch.randn(8, N_CLASSES)).argmax(dim=1)
    layer = TreeSoftmax(8, N_CLASSES, reassign_every=1000)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    for _ in range(150):
        optimizer.zero_grad()
        loss = layer(hidden, target)
        loss.backward()
        optimizer.step()
    assert loss < 1.2
    assert (layer.predict(hidden) == target).float().mean() > 0.7


# --- what is refused -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"depth": 0}, "depth must be an integer at least 1, got 0"),
        ({"arity": 1}, "arity must be an integer at least 2"),
        ({"arity": 3, "depth": 2}, "has room for 9 classes, but there are 23: raise arity or depth"),
        ({"n_direct": 30, "counts": COUNTS}, "n_direct must be an integer at least 0 and at most 23"),
        ({"n_direct": 3}, "need counts"),
        ({"structure": "frequency"}, "need counts"),
        ({"structure": "huffman"}, "structure must be one of auto, random, frequency, or an array"),
        ({"structure": [0, 1]}, r"for each of the 23 classes, got an array of shape \(2,\)"),
        ({"structure": np.full(N_CLASSES, -2)}, "negative group"),
        ({"structure": np.zeros(N_CLASSES)}, "must have an integer"),
        ({"counts": [1, 2]}, "one number for each of the 23 classes"),
        ({"counts": np.full(N_CLASSES, np.nan)}, "finite"),
        ({"reduction": "max"}, "reduction must be one of mean, sum, none, got 'max'"),
        ({"reassign_every": -1}, "reassign_every"),
    ],
)
def test_bad_settings_are_refused(settings, what):
    with pytest.raises(ValueError, match=what):
        TreeSoftmax(FEATURES, N_CLASSES, **settings)


def test_bad_input_is_refused():
    layer = TreeSoftmax(FEATURES, N_CLASSES)
    hidden, target = rows(dtype=torch.float32)
    with pytest.raises(ValueError, match=r"hidden must have 5 numbers in its last dimension .* got shape \(17, 4\)"):
        layer(hidden[:, :4], target)
    with pytest.raises(ValueError, match=r"target must have the shape of hidden .* \(17,\), got \(3,\)"):
        layer(hidden, target[:3])
    with pytest.raises(ValueError, match=r"target must be of type torch.int64, got torch.float32"):
        layer(hidden, target.float())
    with pytest.raises(ValueError, match="target must be classes from 0 to 22, or -100 to ignore a row, got 23"):
        layer(hidden, torch.full_like(target, 23))
    with pytest.raises(ValueError, match=r"hidden has type torch.float64, but the layer torch.float32"):
        layer(hidden.double(), target)
    with pytest.raises(ValueError, match="floating-point"):
        layer(hidden.long(), target)
    with pytest.raises(ValueError, match="k must be an integer at least 1 and at most 23"):
        layer.topk(hidden, 24)
    with pytest.raises(ValueError, match="beam must be"):
        layer.topk(hidden, 2, beam=0)
    with pytest.raises(RuntimeError, match="no statistics"):
        layer.reassign()


def test_importing_treemax_does_not_import_torch():
    code = "import treemax, treemax.models, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_the_layers_does_not_import_numba():
    code = "import treemax.torch, sys; assert not {'numba', 'sklearn'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)
