"""TreeSigmoid against a slow reference, and in typical uses of output layers."""

from __future__ import annotations

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.extras.reference_tree_sigmoid import slow_log_probabilities, slow_losses  # noqa: E402
from treemax.torch import TreeSigmoid  # noqa: E402

N_LABELS, FEATURES = 19, 4
COUNTS = np.arange(N_LABELS)[::-1] ** 2
GROUPS = np.array([-1, -1, 4, 4, 4, 9, 9, 0, 0, 0, 0, 0, 4, 9, 2, 2, 0, -1, 7])
SETTINGS = {
    "default": {},
    "counts": {"counts": COUNTS, "n_direct": 6},
    "three levels": {"depth": 3},
    "mostly empty": {"depth": 3, "arity": 5},
    "groups": {"structure": GROUPS},
    "paths": {"structure": np.stack([GROUPS, np.arange(N_LABELS) % 3], axis=1)},
    "one group": {"structure": np.zeros(N_LABELS, dtype=int)},
    "flat": {"depth": 1},
    "no bias": {"bias": False},
}
LISTS = [[3], [], [0, 1, 2, 17, 18], [5, 5, 5], [7, 12, 7], [18, 0], [4, 3], [], [9, 10, 11, 8]]


@pytest.fixture(params=SETTINGS)
def layer(request):
    torch.manual_seed(1)
    return TreeSigmoid(FEATURES, N_LABELS, dtype=torch.float64, **SETTINGS[request.param])


def one_layer(**settings):
    torch.manual_seed(1)
    return TreeSigmoid(FEATURES, N_LABELS, **{"dtype": torch.float64, **settings})


def vectors(n_rows=9, dtype=torch.float64):
    torch.manual_seed(2)
    return 2 * torch.randn(n_rows, FEATURES, dtype=dtype)


def padded(lists=LISTS, filling=-100):
    most = max(map(len, lists))
    return torch.tensor([[*labels, *[filling] * (most - len(labels))] for labels in lists])


def pair_of(lists):
    flat = [label for labels in lists for label in labels]
    return torch.tensor(flat), torch.tensor([0, *np.cumsum([len(labels) for labels in lists])[:-1].tolist()])


def multi_hot(lists=LISTS):
    return torch.tensor([[label in labels for label in range(N_LABELS)] for labels in lists])


# --- values and gradients ------------------------------------------------------------------------------


def test_loss_and_gradients_are_those_of_the_reference(layer):
    hidden = vectors().requires_grad_()
    parameters = [hidden, *layer.parameters()]
    loss = layer(hidden, padded())
    expected = slow_losses(layer, hidden, LISTS).mean()
    torch.testing.assert_close(loss, expected)
    found = torch.autograd.grad(loss, parameters, retain_graph=True)
    wanted = torch.autograd.grad(expected, parameters, allow_unused=True)
    for one, other in zip(found, wanted):
        torch.testing.assert_close(one, torch.zeros_like(one) if other is None else other)
    again = torch.autograd.grad(loss, parameters)
    assert all(torch.equal(one, other) for one, other in zip(found, again))


@pytest.mark.parametrize("name", [name for name in SETTINGS if name != "no bias"])
def test_biases_begin_at_the_frequencies_of_labels(name):
    """Without any input, the probability of a label is its share of the counts."""
    layer = one_layer(**SETTINGS[name])
    counts = torch.ones(N_LABELS) if layer._counts is None else layer._counts
    found = layer.log_prob(torch.zeros(1, FEATURES, dtype=torch.float64)).exp()
    torch.testing.assert_close(found[0], (counts / counts.sum()).double(), rtol=1e-4, atol=1e-5)


def test_labels_that_never_occur_begin_as_improbable():
    layer = one_layer(structure=GROUPS, counts=np.where(np.arange(N_LABELS) < 9, 0, 5))
    found = layer.log_prob(torch.zeros(1, FEATURES, dtype=torch.float64)).exp()[0]
    assert found[:9].max() < 1e-5 < 0.05 < found[9:].min()


def test_gradients_pass_gradcheck(layer):
    layer.reduction = "none"

    def losses(hidden, *parameters):
        return layer(hidden, padded(LISTS[2:6]))

    def some(hidden, *parameters):
        return layer.log_prob(hidden, padded(LISTS[2:6]))

    hidden = vectors(4).requires_grad_()
    assert torch.autograd.gradcheck(losses, (hidden, *layer.parameters()))
    assert torch.autograd.gradcheck(some, (hidden, *layer.parameters()))


def test_second_derivatives_are_refused():
    hidden = vectors().requires_grad_()
    with pytest.raises(RuntimeError, match="only once"):
        torch.autograd.grad(one_layer()(hidden, padded()), hidden, create_graph=True)


def test_log_probabilities_are_sums_along_the_paths(layer):
    hidden = vectors()
    found = layer.log_prob(hidden)
    torch.testing.assert_close(found, slow_log_probabilities(layer, hidden))
    some = padded()
    used = some >= 0
    expected = found.gather(1, some.clamp(min=0)).masked_fill(~used, 0)
    torch.testing.assert_close(layer.log_prob(hidden, some), expected)


def test_children_are_never_more_probable_than_their_parent():
    layer = one_layer(depth=3)
    hidden = vectors(30)
    found = layer.log_prob(hidden)
    for level in range(len(layer.shape.arities)):
        node = layer.places // layer.shape.places_below(level)
        row = layer.shape.first_row(level) + node
        logits = hidden @ layer.node_weight[row].T + layer.node_bias[row]
        assert (found <= torch.nn.functional.logsigmoid(logits)).all()


def test_every_reduction_and_slopes_of_single_rows(layer):
    hidden = vectors()
    expected = slow_losses(layer, hidden, LISTS)
    for reduction, value in {"sum": expected.sum(), "mean": expected.mean(), "none": expected}.items():
        layer.reduction = reduction
        torch.testing.assert_close(layer(hidden, padded()), value)
    weights = torch.linspace(-1, 1, len(hidden), dtype=torch.float64)
    found = torch.autograd.grad((layer(hidden, padded()) * weights).sum(), list(layer.parameters()))
    wanted = torch.autograd.grad((expected * weights).sum(), list(layer.parameters()), allow_unused=True)
    for one, other in zip(found, wanted):
        torch.testing.assert_close(one, torch.zeros_like(one) if other is None else other)


def test_a_flat_tree_is_binary_cross_entropy():
    layer = one_layer(depth=1, reduction="sum")
    hidden = vectors()
    logits = torch.nn.functional.linear(hidden, layer.weight, layer.bias)
    expected = torch.nn.functional.binary_cross_entropy_with_logits(logits, multi_hot().double(), reduction="sum")
    torch.testing.assert_close(layer(hidden, padded()), expected)
    torch.testing.assert_close(layer.log_prob(hidden).exp(), torch.sigmoid(logits))


def test_extreme_logits_have_a_finite_loss():
    layer = one_layer(dtype=torch.float32, depth=3)
    hidden = (1e4 * vectors(dtype=torch.float32)).requires_grad_()
    loss = layer(hidden, padded())
    loss.backward()
    assert loss.isfinite() and hidden.grad.isfinite().all() and layer.weight.grad.isfinite().all()


# --- targets -------------------------------------------------------------------------------------------


def test_every_form_of_target_gives_the_same_loss(layer):
    hidden = vectors()
    expected = layer(hidden, padded())
    hot = multi_hot()
    for target in (
        pair_of(LISTS), hot, hot.double(), hot.float().to_sparse(), hot.float().to_sparse_csr(),
        torch.nn.functional.pad(padded(), (1, 2), value=-100), padded().flip(1),
    ):  # fmt: skip
        torch.testing.assert_close(layer(hidden, target), expected)
    layer.ignore_index = -1
    torch.testing.assert_close(layer(hidden, padded(filling=-1)), expected)


def test_rows_without_labels_have_the_loss_of_the_root(layer):
    hidden = vectors(3)
    expected = slow_losses(layer, hidden, [[], [], []]).mean()
    hot = multi_hot([[], [], []])
    pair = torch.empty(0, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)
    lists = torch.full((3, 2), -100), torch.empty(3, 0, dtype=torch.int64)
    for target in (*lists, pair, hot, hot.float().to_sparse(), hot.float().to_sparse_csr()):
        torch.testing.assert_close(layer(hidden, target), expected)


def test_any_leading_dimensions():
    layer = one_layer()
    hidden, target = vectors(8), padded(LISTS[:8])
    grid, grid_target = hidden.view(2, 4, FEATURES), target.view(2, 4, -1)
    torch.testing.assert_close(layer(grid, grid_target), layer(hidden, target))
    torch.testing.assert_close(layer(grid, multi_hot(LISTS[:8]).view(2, 4, -1)), layer(hidden, target))
    assert (
        layer.log_prob(grid).shape == (2, 4, N_LABELS) and layer.log_prob(grid, grid_target).shape == grid_target.shape
    )
    assert layer.topk(grid, 2)[1].shape == (2, 4, 2) and layer.predict(grid).shape[:2] == (2, 4)
    torch.testing.assert_close(layer(hidden[0], target[0]), layer(hidden[:1], target[:1]))
    layer.reduction = "none"
    assert layer(grid, grid_target).shape == (2, 4)


def test_an_empty_batch(layer):
    hidden = vectors(0)
    layer.reduction = "sum"
    nothing = torch.empty(0, dtype=torch.int64)
    hot = torch.empty(0, N_LABELS)
    for target in (torch.empty(0, 3, dtype=torch.int64), (nothing, nothing), hot, hot.to_sparse(), hot.to_sparse_csr()):
        layer.zero_grad()
        loss = layer(hidden.requires_grad_(), target)
        loss.backward()
        assert loss == 0 and not layer.weight.grad.any()
    assert layer.topk(hidden, 3)[1].shape == (0, 3) and layer.log_prob(hidden).shape == (0, N_LABELS)
    assert layer.predict(hidden).shape == (0, 0)


# --- answers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 4, N_LABELS])
def test_exact_search_finds_the_best(layer, k):
    hidden = vectors(40)
    scores, labels = layer.topk(hidden, k, beam=None)
    expected = layer.log_prob(hidden).sort(dim=1, descending=True)
    torch.testing.assert_close(scores, expected.values[:, :k])
    assert torch.equal(labels, expected.indices[:, :k])


def test_exact_search_widens_its_beam():
    torch.manual_seed(5)
    layer = TreeSigmoid(FEATURES, 900, dtype=torch.float64)
    with torch.no_grad():
        layer.node_weight *= 0.01  # all nodes alike, so that sixteen of thirty do not do
        layer.weight *= 3
    hidden = vectors(30)
    expected = layer.log_prob(hidden).topk(3, dim=1)
    assert torch.equal(layer.topk(hidden, 3, beam=None)[1], expected.indices)
    narrow, labels = layer.topk(hidden, 3, beam=3)
    assert not torch.equal(labels, expected.indices)
    torch.testing.assert_close(narrow, layer.log_prob(hidden, labels))


@pytest.mark.parametrize("threshold", [0.05, 0.5, 1.0])
def test_predict_finds_the_labels_above_the_threshold(layer, threshold, monkeypatch):
    monkeypatch.setattr("treemax.torch.search.AT_ONCE", 64)  # several blocks of pairs
    for bias in (layer.bias, layer.node_bias) if layer.bias is not None else ():
        torch.nn.init.zeros_(bias)  # so that some labels are probable
    hidden = vectors(40)
    probability = layer.log_prob(hidden).exp()
    expected = [
        [label for label in row.argsort(descending=True).tolist() if row[label] >= threshold] for row in probability
    ]
    found = [[label for label in row if label != -100] for row in layer.predict(hidden, threshold).tolist()]
    assert found == expected
    assert threshold == 1 or any(expected)


# --- in use --------------------------------------------------------------------------------------------


def test_half_precision_is_close():
    exact = one_layer(dtype=torch.float32, counts=COUNTS, n_direct=4)
    hidden = vectors(dtype=torch.float32)
    rough = copy.deepcopy(exact).to(torch.bfloat16)
    loss = rough(hidden.bfloat16(), padded())
    torch.testing.assert_close(loss.float(), exact(hidden, padded()), rtol=0.02, atol=0.02)
    loss.backward()
    assert rough.weight.grad.dtype == torch.bfloat16
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = exact(hidden, padded())
        some = exact.log_prob(hidden, padded())
    assert loss.dtype == torch.float32
    loss.backward()
    assert exact.weight.grad.dtype == torch.float32
    torch.testing.assert_close(rough.weight.grad.float(), exact.weight.grad, rtol=0.1, atol=0.02)
    torch.testing.assert_close(some.float(), exact.log_prob(hidden, padded()), rtol=0.05, atol=0.05)


def test_state_holds_the_tree(tmp_path):
    layer = one_layer(seed=3)
    torch.save(layer.state_dict(), tmp_path / "layer.pt")
    other = one_layer(seed=9)
    assert not torch.equal(other.places, layer.places)
    other.load_state_dict(torch.load(tmp_path / "layer.pt", weights_only=True))
    assert torch.equal(other.places, layer.places)
    torch.testing.assert_close(other(vectors(), padded()), layer(vectors(), padded()))
    torch.testing.assert_close(copy.deepcopy(layer).log_prob(vectors()), layer.log_prob(vectors()))
    without_tree = one_layer(device="meta").to_empty(device="cpu")
    without_tree.reset_parameters()
    without_tree.load_state_dict(layer.state_dict())
    torch.testing.assert_close(without_tree.log_prob(vectors()), layer.log_prob(vectors()))
    with pytest.raises(RuntimeError, match="the tree of the state has the shape"):
        layer.load_state_dict(one_layer(depth=3).state_dict())


def test_compiled_layers_agree():
    layer = one_layer(dtype=torch.float32, depth=3)
    model = torch.nn.Linear(FEATURES, FEATURES)

    def loss_of(hidden, target):
        return layer(model(hidden), target)

    parameters = [*layer.parameters(), *model.parameters()]
    of_lists = torch.compile(loss_of, backend="aot_eager", fullgraph=True)
    of_pairs = torch.compile(loss_of, backend="aot_eager")
    for lists in (LISTS, LISTS[2:6]):  # the second with dynamic shapes
        hidden, target = vectors(len(lists), dtype=torch.float32), padded(lists)
        wanted = torch.autograd.grad(loss_of(hidden, target), parameters)
        for loss in (of_lists(hidden, target), of_pairs(hidden, pair_of(lists))):
            for one, other in zip(torch.autograd.grad(loss, parameters), wanted):
                torch.testing.assert_close(one, other)


def test_learning_finds_the_labels():
    torch.manual_seed(7)
    groups = torch.arange(N_LABELS) % 4
    vectors_of_labels = torch.randn(N_LABELS, 32) + 2 * torch.randn(4, 32)[groups]
    wanted = torch.rand(300, N_LABELS) < 0.1
    hidden = wanted.float() @ vectors_of_labels
    layer = TreeSigmoid(32, N_LABELS, structure=groups.numpy())
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
    for _ in range(100):
        optimizer.zero_grad()
        layer(hidden, wanted).backward()
        optimizer.step()
    found = torch.zeros(300, N_LABELS + 1, dtype=torch.bool)
    labels = layer.predict(hidden)
    found.scatter_(1, labels.masked_fill(labels < 0, N_LABELS), True)
    found = found[:, :N_LABELS]
    assert 2 * (found & wanted).sum() / (found.sum() + wanted.sum()) > 0.8  # F1


# --- what is refused -----------------------------------------------------------------------------------


def test_bad_settings_are_refused():
    for settings, what in (
        ({"reduction": "max"}, "reduction must be one of mean, sum, none"),
        ({"structure": "huffman"}, "structure must be one of"),
        ({"structure": [0, 1]}, "for each of the 19"),
        ({"n_direct": 3}, "need counts"),
    ):
        with pytest.raises(ValueError, match=what):
            one_layer(**settings)
    with pytest.raises(ValueError, match="n_labels must be an integer at least 2"):
        TreeSigmoid(FEATURES, 1)


def test_bad_input_is_refused():
    layer = one_layer()
    hidden, target = vectors(), padded()
    number = torch.tensor
    for bad, what in (
        (
            target[:3],
            r"target must have the shape \(9,\) of the rows of hidden and one more dimension, .* got \(3, 5\)",
        ),
        (target[:, 0], r"one more dimension, for the labels of a row, got \(9,\)"),
        (target.int(), r"indices of type torch.int64, or be multi-hot, .* with 19 columns, got torch.int32"),
        (target.double(), r"with 19 columns, got torch.float64 and shape \(9, 5\)"),
        (torch.full_like(target, 19), "target must be classes from 0 to 18, or -100 to fill up a row, got 19"),
        (torch.full_like(target, -1), "got -1"),
        ([[1], [2]], "target must be a tensor, or a pair of indices and offsets, got list"),
        ((number([1, 2]), number([0, 1])), r"an offset for each of the rows of hidden, \(9,\), got 2"),
        ((number([1, 2]), number([0, 2, 1, 2, 2, 2, 2, 2, 2])), "offsets of target must begin with 0 and rise"),
        ((number([1.0]), number([0])), "two vectors of type torch.int64"),
    ):
        with pytest.raises(ValueError, match=what):
            layer(hidden, bad)
    with pytest.raises(ValueError, match="hidden must have 4 numbers in its last dimension"):
        layer(hidden[:, :3], target)
    with pytest.raises(ValueError, match=r"hidden has type torch.float32, but the layer torch.float64"):
        layer(hidden.float(), target)
    with pytest.raises(ValueError, match=r"labels must have the shape \(9,\)"):
        layer.log_prob(hidden, target[:, 0])
    for threshold in (0, 1.5):
        with pytest.raises(ValueError, match="threshold must be a number above 0 and at most 1"):
            layer.predict(hidden, threshold)
