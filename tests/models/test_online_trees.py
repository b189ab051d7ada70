"""What the online trees of linear scorers promise about streams, beside the checks of `test_battery.py`."""

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone

import treemax
from tests.models.online_trees import problem

PAPER = treemax.RecallTree(algorithm="paper", n_candidates=6, verbose=0)
LOM, MEMORY = treemax.LOMTree(max_nodes=50, swap_resistance=1.0, verbose=0), treemax.ContextualMemoryTree(verbose=0)
KINDS = {
    "recall-tree": (PAPER, False),
    "lom-tree": (LOM, False),
    "memory-tree": (MEMORY, False),
    "several": (MEMORY, True),
}


@pytest.fixture(params=[False, True], ids=["dense", "sparse"])
def sparse(request):
    return request.param


@pytest.fixture(params=KINDS)
def stream(request, sparse):
    """An untrained model, and rows with one label, or with several."""
    model, several = KINDS[request.param]
    X, y = problem(1600)
    labels = [sorted({label, (label + 7) % 40} if label % 3 else {label}) for label in y.tolist()] if several else y
    return model, sp.csr_matrix(X) if sparse else X, labels


def test_a_stream_in_pieces_is_the_same_as_in_one(stream):
    model, X, y = stream
    whole, pieces = (clone(model).partial_fit(X[:10], y[:10], classes=np.arange(40)) for _ in range(2))
    whole.partial_fit(X[10:600], y[10:600])
    for start in range(10, 600, 59):
        pieces.partial_fit(X[start : start + 59], y[start : start + 59])
    np.testing.assert_array_equal(whole.predict_proba(X), pieces.predict_proba(X))
    assert whole.progressive_loss_ == pieces.progressive_loss_


@pytest.mark.parametrize(
    "model, sparse",
    [(PAPER, False), (LOM, False), (MEMORY, True)],  # dense routers of memory trees answer in half precision
    ids=["recall-tree", "lom-tree", "memory-tree"],
)
def test_progressive_loss_is_that_of_answers_before_learning(model, sparse):
    X, y = problem(300, 10)
    model, X = clone(model), sp.csr_matrix(X) if sparse else X
    wrong = 1  # the first row is not asked
    for i in range(300):
        wrong += i > 0 and model.predict(X[i : i + 1])[0] != y[i]
        model.partial_fit(X[i : i + 1], y[i : i + 1])
    assert model.progressive_loss_ * 300 == pytest.approx(wrong)


def test_saved_and_learned_on_it_is_as_if_it_had_never_stopped(stream, tmp_path):
    model, X, y = stream
    model = clone(model).partial_fit(X[:800], y[:800], classes=np.arange(40))
    model.save(tmp_path / "model", resume=True)
    again = treemax.load(tmp_path / "model")
    for one in (model, again):
        one.partial_fit(X[800:], y[800:])
    for answer, expected in zip(again.predict_topk(X, 5), model.predict_topk(X, 5)):
        np.testing.assert_array_equal(answer, expected)
    arrays = again.to_parts(resume=True)[1]
    for name, array in model.to_parts(resume=True)[1].items():
        np.testing.assert_array_equal(arrays[name], array, err_msg=name)


@pytest.mark.parametrize("model", [PAPER, LOM, MEMORY], ids=["recall-tree", "lom-tree", "memory-tree"])
def test_without_its_learning_state_it_warns_and_goes_on(model, tmp_path):
    X, y = problem(800)
    clone(model).fit(X, y).save(tmp_path / "model")
    loaded = treemax.load(tmp_path / "model")
    with pytest.warns(UserWarning, match="resume=True"):
        loaded.partial_fit(X, y)
    loaded.partial_fit(X, y)
    assert loaded.score(X, y) > 0.5


@pytest.mark.parametrize(
    "model", [LOM, MEMORY, PAPER, treemax.RecallTree(verbose=0)], ids=lambda model: str(model)[:20]
)
def test_a_model_of_dense_rows_refuses_more_features(model):
    X, y = problem(200)
    model = clone(model).partial_fit(X, y)
    before = model.predict_proba(X)
    name = type(model).__name__
    with pytest.raises(ValueError, match=f"X has 24 features, but {name} was started with 12 dense features"):
        model.partial_fit(sp.csr_matrix(np.hstack([X, X])), y)
    np.testing.assert_array_equal(model.predict_proba(X), before)
