"""OnlineLabelTree with `max_memory`: streams without an end, what is dropped, stops and starts."""

import threading
import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from click.testing import CliRunner

import treemax
from tests.models.online_label_tree.test_estimator import assert_same_model
from tests.models.online_label_tree.trees import assert_tables_are_sound
from treemax import OnlineLabelTree
from treemax.cli.main import commands
from treemax.models.online_label_tree import kernels
from treemax.models.online_label_tree.dropping import drop_smallest
from treemax.models.online_label_tree.model import SMALLEST_BYTES

BOUND = 0.0065  # GB, of which a piece of memory for weights takes 4.2 MB
VARIANTS = {
    "defaults": {},
    "paper": {"arity": 2, "max_leaf": 100, "together": True, "least_gradient": 0.0},
    "complete": {"policy": "complete"},
    "one-level": {"policy": "one-level"},
    "random": {"policy": "random", "arity": 3, "max_leaf": 7},
    "warm": {"tree": "random", "arity": 5, "max_leaf": 3},
}


def stream(seed=0, n_rows=400, n_labels=40, n_words=4000, words=40, new_words=True):
    """Rows whose words are those of their labels, and others; new labels and words appear as the stream goes on."""
    random = np.random.RandomState(seed)
    known = 2 + (n_labels - 2) * np.arange(n_rows) // n_rows
    y = [sorted(set(random.randint(0, k, 1 + random.randint(3)).tolist())) for k in known]
    low = np.arange(n_rows) * n_words // n_rows if new_words else np.zeros(n_rows, int)
    indices = [
        np.unique(np.r_[20 * np.repeat(own, 8) + random.randint(0, 20, 8 * len(own)), start + random.randint(0, n_words, words)])
        for own, start in zip(y, low, strict=True)
    ]  # fmt: skip
    indptr = np.cumsum([0, *map(len, indices)])
    values = np.ones(indptr[-1], np.float32)
    return sp.csr_matrix((values, np.concatenate(indices), indptr), shape=(n_rows, 2 * n_words)), y


def bounded(variant="defaults", **more):
    return OnlineLabelTree(**{"verbose": 0, "max_memory": BOUND, **VARIANTS[variant], **more})


def taught(model, X, y, step=50):
    for start, stop in pairwise([*range(0, X.shape[0], step), X.shape[0]]):
        model.partial_fit(X[start:stop], y[start:stop])
    return model


@pytest.mark.parametrize("jobs", [1, 2])
def test_memory_stays_below_the_bound_in_a_stream_without_an_end(jobs):
    taught(bounded(n_jobs=jobs), *stream())  # compiled
    model = bounded(max_labels=100, n_jobs=jobs)
    tracemalloc.start()
    with pytest.warns(UserWarning, match="max_labels=100"):
        for part in range(6):
            X, y = stream(part, 200)
            X = sp.hstack([sp.csr_matrix((200, 6000 * part)), X], format="csr")  # other words every time
            model.partial_fit(X, [[label + 30 * part for label in own] for own in y])
            assert model.model_.nbytes <= 1e9 * BOUND
    _, largest = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert_tables_are_sound(model.model_)
    facts = model.describe()
    assert facts["dropped_weights"] > 0 and facts["memory_mb"] * 2**20 <= 1e9 * BOUND
    assert largest < 1e9 * BOUND + 1.5e6, "with copies of arrays, the rows and the labels"


def test_new_labels_without_an_end_raise_an_error_and_leave_a_model():
    model = bounded()
    with pytest.raises(
        MemoryError, match=r"max_memory is 6.5 MB, but [0-9,]+ nodes and the next row may need .* set max_labels"
    ):
        for part in range(100):
            X, y = stream(part, 300, n_labels=300)
            model.partial_fit(X, [[f"{part} {label}" for label in own] for own in y])
            assert model.model_.nbytes <= 1e9 * BOUND
    assert model.model_.nbytes <= 1e9 * BOUND and len(model.classes_) > 1000
    assert_tables_are_sound(model.model_)
    n_known = len(model.classes_)
    model.set_params(max_memory=2 * BOUND).partial_fit(X[:5], [["another"]] * 5)
    assert len(model.classes_) > n_known and model.predict_topk(X, 3).labels.shape == (300, 3)


@pytest.mark.parametrize("learn", ["fit", "partial_fit"])
def test_a_bound_that_is_too_small_for_anything(learn):
    X, y = stream()
    with pytest.raises(MemoryError, match=r"max_memory is 4.* MB, but .* Raise max_memory"):
        getattr(bounded(max_memory=0.0044), learn)(X, y)
    with pytest.raises(ValueError, match="max_memory"):
        getattr(bounded(max_memory=0), learn)(X, y)


def test_a_bound_below_the_smallest_model_is_named_in_the_error():
    X, y = stream()
    with pytest.raises(MemoryError, match=r"max_memory is 30.0 kB, but .* may need 4.* MB"):
        bounded(max_memory=3e-5).partial_fit(X, y)


def test_a_bound_beyond_all_memory():
    X, y = stream(n_rows=20)
    for bound in (1e9, 1e10, 1e30):
        assert_same_model(bounded(max_memory=bound).partial_fit(X, y), bounded(max_memory=None).partial_fit(X, y), X)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_model_that_is_saved_in_between_drops_the_same(variant, tmp_path):
    X, y = stream(1)
    whole, pieces = bounded(variant).partial_fit(X[:100], y[:100]), bounded(variant).partial_fit(X[:100], y[:100])
    whole.partial_fit(X[100:], y[100:])
    for start, stop in pairwise([100, 101, 160, 237, 300, 400]):
        pieces.save(tmp_path / "model.treemax", resume=True)
        pieces = treemax.load(tmp_path / "model.treemax").partial_fit(X[start:stop], y[start:stop])
        assert pieces.model_.nbytes <= 1e9 * BOUND
    assert_same_model(whole, pieces, X)
    assert pieces.describe() == {**whole.describe(), "memory_mb": pieces.describe()["memory_mb"]}
    assert whole.describe()["dropped_weights"] > 10_000
    pieces.save(tmp_path / "model.treemax")
    assert treemax.load(tmp_path / "model.treemax").describe()["dropped_weights"] > 10_000


def test_the_same_seed_gives_the_same_model():
    X, y = stream(2)
    one, other = (bounded("random", random_state=3).fit(X, y) for _ in range(2))
    assert one.model_.n_dropped > 0
    assert_same_model(one, other, X)


def test_a_bound_that_is_not_reached_changes_nothing():
    X, y = stream(3)
    free, large = (taught(bounded(max_memory=gigabytes), X, y) for gigabytes in (None, 1.0))
    assert_same_model(free, large, X)
    assert free.describe()["dropped_weights"] == large.describe()["dropped_weights"] == 0


def magnitudes(tree):
    """The sum of squared weights of every record, by block and feature."""
    packed, widths = tree._packed_records(with_squares=False), tree._stored_lanes()
    found, record, at = {}, 0, 0
    for block, width in enumerate(widths.tolist()):
        for feature in packed["features"][record : record + int(tree.blocks.filled[block])].tolist():
            found[block, feature] = float((packed["weights"][at : at + width].astype(np.float32) ** 2).sum())
            record, at = record + 1, at + width
    return found


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_smallest_weights_are_dropped_and_the_others_stay(variant):
    X, y = stream(4, 200)
    tree = bounded(variant, max_memory=None).partial_fit(X, y).model_
    before, answers = magnitudes(tree), tree.probabilities(treemax.inputs.rows.as_rows(X))
    tree.bound_memory(0.9 * kernels.bytes_needed(0, 0, tree.counts) + SMALLEST_BYTES)
    drop_smallest(tree, 100, 100)
    after = magnitudes(tree)
    assert_tables_are_sound(tree)
    assert 0.5 * len(before) < len(after) < 0.95 * len(before)
    assert all(before[key] == magnitude for key, magnitude in after.items())
    smallest, largest = min(after.values()), max(before[key] for key in before.keys() - after.keys())
    assert largest <= 1.01 * smallest
    changed = np.abs(tree.probabilities(treemax.inputs.rows.as_rows(X)) - answers).mean()
    assert 0 < changed < 0.05


def test_a_lower_bound_holds_from_the_next_call_on():
    X, y = stream(5)
    model = bounded(max_memory=None).partial_fit(X, y)
    before = model.model_.nbytes
    model.set_params(max_memory=0.0055).partial_fit(X[:1], y[:1])
    assert model.model_.nbytes <= 5.5e6 < before
    assert_tables_are_sound(model.model_)


def test_forgotten_labels_keep_the_bound():
    X, y = stream(6)
    model = taught(bounded(), X, y).forget([1, 2, 3]).compact()
    dropped = model.describe()["dropped_weights"]
    taught(model, *stream(7))
    assert 0 < dropped < model.describe()["dropped_weights"] and model.model_.nbytes <= 1e9 * BOUND


def test_other_threads_may_ask_while_weights_are_dropped():
    X, y = stream(8, 600)
    model, errors, ended = bounded(n_jobs=2).partial_fit(X[:50], y[:50]), [], threading.Event()

    def ask():
        try:
            while not ended.is_set():
                scores = model.predict_topk(X[:20], 5).scores
                assert ((scores >= 0) & (scores <= 1)).all()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        taught(model, X, y, 20)
    ended.set()
    for thread in threads:
        thread.join()
    assert not errors and model.model_.n_dropped > 0
    assert_tables_are_sound(model.model_)


def test_the_command_line_sets_the_bound(tmp_path):
    X, y = stream(9)
    lines = [
        " ".join([*(f"__label__{label}" for label in own), *(f"word{word}" for word in X[row].indices)]) + "\n"
        for row, own in enumerate(y)
    ]
    (tmp_path / "rows.txt").write_text("".join(lines))
    path = str(tmp_path / "model.treemax")
    options = ["--model", "online-label-tree", "--set", f"max_memory={BOUND}", "-o", path]
    learned = CliRunner().invoke(commands, ["stream", str(tmp_path / "rows.txt"), *options])
    assert learned.exit_code == 0, learned.output
    assert treemax.load(path).describe()["dropped_weights"] > 0
    refused = CliRunner().invoke(
        commands, ["stream", str(tmp_path / "rows.txt"), *options, "--set", "max_memory=0.001"]
    )
    assert refused.exit_code == 1 and "Raise max_memory" in refused.output
