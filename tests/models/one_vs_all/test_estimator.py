"""OneVsAll: what the generic checks do not cover."""

import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

import treemax
from treemax import OneVsAll
from treemax.models.calibration import Calibration


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    return train_test_split(X / 16.0 - 0.3, y, test_size=0.5, random_state=0)


@pytest.mark.parametrize("loss", ["softmax", "logistic", "squared_hinge"])
@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix], ids=["dense", "sparse"])
def test_as_accurate_as_scikit_learn(digits, loss, form):
    X_train, X_test, y_train, y_test = digits
    reference = LogisticRegression(max_iter=500).fit(X_train, y_train).score(X_test, y_test)
    ours = OneVsAll(loss=loss, passes=10).fit(form(X_train), y_train).score(form(X_test), y_test)
    assert ours > reference - 0.02


def test_probabilities_are_calibrated(digits):
    """Held-out log loss close to the reference's: the probabilities mean something."""
    X_train, X_test, y_train, y_test = digits
    reference = LogisticRegression(max_iter=500).fit(X_train, y_train).predict_proba(X_test)
    ours = OneVsAll(passes=5).fit(X_train, y_train).predict_proba(X_test)
    rows = np.arange(len(y_test))
    assert -np.log(ours[rows, y_test]).mean() < -np.log(reference[rows, y_test]).mean() + 0.1


def test_scale_of_the_features_does_not_matter(digits):
    """The rate is computed from the data: tiny and huge features learn as well as those of size one."""
    X_train, X_test, y_train, y_test = digits
    for scale in (1e-4, 1e4):
        assert OneVsAll().fit(X_train * scale, y_train).score(X_test * scale, y_test) > 0.93


def test_units_and_means_of_dense_features_do_not_matter(digits, tmp_path):
    """Every feature in a unit of its own, far from zero; saved and loaded, the scaling comes along."""
    X_train, X_test, y_train, y_test = digits
    random = np.random.RandomState(0)
    unit, mean = np.exp2(random.randint(-9, 10, 64)), 20.0 * random.normal(size=64)
    X_train, X_test = (unit * (X + mean) for X in (X_train, X_test))
    model = OneVsAll().fit(X_train, y_train)
    assert model.score(X_test, y_test) > 0.93
    assert OneVsAll(scale=False).fit(X_train, y_train).score(X_test, y_test) < 0.8
    model.save(tmp_path / "model.treemax", resume=True)
    again = treemax.load(tmp_path / "model.treemax")
    np.testing.assert_array_equal(again.predict_proba(X_test), model.predict_proba(X_test))
    for one in (model, again):
        one.partial_fit(X_test, y_test)
    np.testing.assert_array_equal(again.predict_proba(X_test), model.predict_proba(X_test))
    assert model.score(X_train, y_train) > 0.93


@pytest.mark.parametrize("several", [False, True])
def test_calibration_makes_first_answers_honest_and_keeps_the_ranking(several):
    random = np.random.RandomState(0)
    y = random.randint(20, size=6000)
    X = random.normal(size=(20, 30))[y] + 2.5 * random.normal(size=(6000, 30))
    labels = [[label, 20 + label // 2] for label in y] if several else y
    sure, honest = (
        OneVsAll(learning_rate=1.0, calibration=share, verbose=0).fit(X[:1000], labels[:1000]) for share in (0.0, 0.4)
    )
    assert sure.calibration_ == Calibration() and honest.calibration_.slope < 0.9

    def loss(model):
        """Of saying how probable the best answers are."""
        found, probabilities = model.predict_topk(X[3000:], 5 if several else 1)
        right = (found == y[3000:, None]) | (several & (found == 20 + y[3000:, None] // 2))
        p = np.clip(np.where(right, probabilities, 1 - probabilities), 1e-6, 1)
        return -np.log(p).mean()

    assert loss(honest) < loss(sure)
    ranking = honest.predict_topk(X[3000:], 5).labels
    honest.calibration_ = sure.calibration_
    np.testing.assert_array_equal(honest.predict_topk(X[3000:], 5).labels, ranking)


def test_loss_is_chosen_by_the_form_of_y():
    X = np.eye(4)
    assert OneVsAll().fit(X, [0, 1, 0, 1]).settings_.loss == "softmax"
    assert OneVsAll().fit(X, [[0], [1], [0, 1], []]).settings_.loss == "logistic"
    assert OneVsAll(loss="squared_hinge").fit(X, [0, 1, 0, 1]).settings_.loss == "squared_hinge"


def test_refuses_politely_what_would_not_fit():
    X = sp.csr_matrix(([1.0, 1.0], ([0, 1], [0, 1])), shape=(2, 2**24))
    with pytest.raises(MemoryError, match=r"OneVsAll for 16,777,216 features x 2 labels needs .* MB.*fewer features"):
        OneVsAll(max_memory=0.1).fit(X, ["a", "b"])
    small = OneVsAll(max_memory=1e-5)
    small.partial_fit(np.eye(3), ["a", "b", "c"])
    before = small.predict_proba(np.eye(3))
    with pytest.raises(MemoryError):
        small.partial_fit(np.repeat(np.eye(3), 200, axis=0), [f"label {i}" for i in range(600)])
    assert small.classes_.tolist() == ["a", "b", "c"]
    np.testing.assert_array_equal(before, small.predict_proba(np.eye(3)))


def test_probabilities_that_would_not_fit_point_to_top_k(monkeypatch):
    model = OneVsAll().fit(np.eye(3), ["a", "b", "c"])
    monkeypatch.setattr("treemax.memory.available_bytes", lambda: 20)
    with pytest.raises(MemoryError, match="predict_topk"):
        model.predict_proba(np.eye(3))


def test_sparse_models_keep_only_what_was_touched(tmp_path):
    random = np.random.RandomState(0)
    X = sp.random(300, 2000, density=0.005, format="csr", random_state=random)
    y = random.randint(0, 150, 300)
    model = OneVsAll(passes=2, least_gradient=0.02).fit(X, y)
    assert model.describe()["layout"] == "packed-features"
    model.save(tmp_path / "small.treemax")
    model.save(tmp_path / "whole.treemax", resume=True)
    assert (tmp_path / "small.treemax").stat().st_size < 0.5 * 4 * 2000 * 150
    loaded = treemax.load(tmp_path / "small.treemax")
    with pytest.warns(UserWarning, match="resume=True"):
        loaded.partial_fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        treemax.load(tmp_path / "whole.treemax").partial_fit(X, y)


def test_threads_learn_as_well_as_one(digits):
    X_train, X_test, y_train, y_test = digits
    scores = [
        OneVsAll(passes=5, n_jobs=4, random_state=seed).fit(X_train, y_train).score(X_test, y_test) for seed in range(3)
    ]
    assert min(scores) > OneVsAll(passes=5).fit(X_train, y_train).score(X_test, y_test) - 0.02


# --- a sample of the negative labels -------------------------------------------------------------------


@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix], ids=["dense", "sparse"])
def test_a_sample_of_negatives_is_nearly_as_accurate(form):
    random = np.random.RandomState(0)
    y = random.randint(50, size=3000)
    X = form((random.normal(size=(50, 20))[y] + 0.7 * random.normal(size=(3000, 20))).astype(np.float32))
    everything = treemax.OneVsAll(loss="logistic", verbose=0).fit(X[:2000], y[:2000])
    sampled = treemax.OneVsAll(negatives=5, verbose=0).fit(X[:2000], y[:2000])
    assert sampled.settings_.loss == "logistic"
    assert sampled.score(X[2000:], y[2000:]) > everything.score(X[2000:], y[2000:]) - 0.05
    again = treemax.OneVsAll(negatives=5, verbose=0).fit(X[:2000], y[:2000])
    np.testing.assert_array_equal(again.predict_proba(X), sampled.predict_proba(X))


def test_a_stream_draws_other_negatives_for_every_row(tmp_path):
    random = np.random.RandomState(0)
    X, y = np.ones((40, 3), dtype=np.float32), random.randint(20, size=40)
    whole, pieces = (
        treemax.OneVsAll(negatives=2, verbose=0, learning_rate=0.1, initial_accumulator=1.0) for _ in range(2)
    )
    whole.partial_fit(X, y, classes=np.arange(20))
    for start in range(0, 40, 10):
        pieces.partial_fit(X[start : start + 10], y[start : start + 10], classes=np.arange(20))
        pieces.save(tmp_path / "model", resume=True)
        pieces = treemax.load(tmp_path / "model")
    np.testing.assert_allclose(pieces.predict_proba(X), whole.predict_proba(X), rtol=1e-5)


def test_the_softmax_takes_no_sample():
    with pytest.raises(ValueError, match="negatives is 3, but the softmax needs all labels"):
        treemax.OneVsAll(loss="softmax", negatives=3).fit([[0.0], [1.0]], [0, 1])
    with pytest.raises(ValueError, match="negatives must be an integer at least 1"):
        treemax.OneVsAll(negatives=0).fit([[0.0], [1.0]], [0, 1])
