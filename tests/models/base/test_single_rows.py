"""`model.predictor()`: the answers of `predict_topk`, of the model as it was."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import treemax

KINDS = (
    treemax.LabelTree(verbose=0), treemax.LabelTree(verbose=0, n_trees=3), treemax.LabelTree(verbose=0, search="exact"),
    treemax.OneVsAll(verbose=0), treemax.OnlineLabelTree(verbose=0), treemax.LearnedTree(verbose=0),
)  # fmt: skip


def data(n_rows=300, n_labels=12, seed=0):
    random = np.random.RandomState(seed)
    y = random.randint(n_labels, size=n_rows)
    X = (random.uniform(size=(n_rows, 40)) < 0.15) * random.uniform(0.5, 1.0, size=(n_rows, 40))
    X[np.arange(n_rows), y] = 1.0
    return sp.csr_matrix(X.astype(np.float32)), np.array([f"label {label}" for label in y])


def rows_of(X):
    return [(X.indices[start:stop], X.data[start:stop]) for start, stop in zip(X.indptr, X.indptr[1:])]


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("kind", KINDS, ids=repr)
def test_answers_are_those_of_predict_topk(kind, several):
    X, y = data()
    model = clone(kind).fit(X, [[label, y[0]] for label in y] if several else y)
    predictor = model.predictor(k=4)
    X_test = sp.vstack([data(30, seed=1)[0], sp.csr_matrix((1, 40), dtype=np.float32)]).tocsr()  # the last is empty
    expected = model.predict_topk(X_test, 4)
    found = predictor(X_test)
    np.testing.assert_array_equal(found.labels, expected.labels)
    np.testing.assert_array_equal(found.scores, expected.scores)
    for i, (indices, values) in enumerate(rows_of(X_test)):
        labels, scores = predictor(indices, values)
        assert labels.shape == scores.shape == (4,)
        np.testing.assert_array_equal(labels, expected.labels[i])
        np.testing.assert_array_equal(scores, expected.scores[i])
        again = predictor(indices.tolist(), values.astype(np.float64).tolist())
        np.testing.assert_array_equal(again.labels, labels)
        unknown = predictor(np.append(indices, [1000, 2**31 - 1]), np.append(values, [1.0, 1.0]))
        if isinstance(model, treemax.LabelTree | treemax.OneVsAll | treemax.OnlineLabelTree):
            np.testing.assert_array_equal(unknown.labels, labels)
        one = predictor(X_test[i])
        np.testing.assert_array_equal(one.labels[0], expected.labels[i])
    dense = predictor(X_test[:3].toarray())
    np.testing.assert_array_equal(dense.labels, model.predict_topk(X_test[:3].toarray(), 4).labels)


def test_dense_training_rows():
    X, y = data()
    model = treemax.OneVsAll(verbose=0).fit(X.toarray(), y)
    predictor = model.predictor(3)
    np.testing.assert_array_equal(predictor(X[:9].toarray()).labels, model.predict_topk(X[:9].toarray(), 3).labels)
    indices, values = rows_of(X)[0]
    np.testing.assert_array_equal(predictor(indices, values).labels, model.predict_topk(X[:1], 3).labels[0])
    with pytest.raises(ValueError, match="features"):
        predictor(np.ones((2, 39), dtype=np.float32))


@pytest.mark.parametrize("kind", [treemax.LabelTree, treemax.OnlineLabelTree, treemax.LearnedTree])
def test_later_training_does_not_change_it(kind):
    X, y = data()
    model = kind(verbose=0).fit(X, y)
    predictor = model.predictor()
    before = predictor(X[:50])
    if hasattr(model, "partial_fit"):
        model.partial_fit(X, np.roll(y, 1))
    model.fit(X, np.roll(y, 1))
    after = predictor(X[:50])
    np.testing.assert_array_equal(after.labels, before.labels)
    np.testing.assert_array_equal(after.scores, before.scores)


def test_forgotten_labels():
    X, y = data()
    model = treemax.OnlineLabelTree(verbose=0).fit(X, y)
    model.forget(["label 3"])
    for loaded in (model, pickle.loads(pickle.dumps(model))):
        predictor = loaded.predictor(k=20)
        expected = model.predict_topk(X[:20], 20)
        assert "label 3" not in predictor(*rows_of(X)[0]).labels.tolist()
        np.testing.assert_array_equal(predictor(X[:20]).labels, expected.labels)


def test_pickle_and_files(tmp_path):
    X, y = data()
    model = treemax.LabelTree(verbose=0, n_trees=2).fit(X, y)
    expected = model.predict_topk(X[:20], 3)
    model.save(tmp_path / "model.treemax")
    loaded = treemax.load(tmp_path / "model.treemax").predictor(3)
    for predictor in (loaded, pickle.loads(pickle.dumps(loaded)), pickle.loads(pickle.dumps(model.predictor(3)))):
        np.testing.assert_array_equal(predictor(X[:20]).labels, expected.labels)
        np.testing.assert_array_equal(predictor(*rows_of(X)[7]).scores, expected.scores[7])


def test_threads():
    X, y = data()
    model = treemax.LabelTree(verbose=0, n_trees=3).fit(X, y)
    predictor, rows = model.predictor(3), rows_of(X)
    expected = model.predict_topk(X, 3)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda row: predictor(*row), rows))
    for i, answer in enumerate(answers):
        np.testing.assert_array_equal(answer.labels, expected.labels[i])


@pytest.mark.parametrize(
    "indices, values",
    [
        ([3, 1], [1.0, 1.0]), ([1, 1], [1.0, 1.0]), ([-1, 2], [1.0, 1.0]), ([1, 2], [1.0, np.nan]),
        ([1, 2], [np.inf, 1.0]), ([1, 2], [1.0, 1e30]), ([1, 2], [1.0]), ([[1, 2]], [[1.0, 1.0]]), ([1.5], [1.0]),
        ([2**31], [1.0]), ([-(2**40)], [1.0]), (["a"], [1.0]), ([1], [1e200]), (1, 2.0), ([1], 2.0),
        (1, [2.0]),
    ],
)  # fmt: skip
def test_wrong_rows_raise(indices, values):
    X, y = data()
    predictor = treemax.LabelTree(verbose=0).fit(X, y).predictor()
    with pytest.raises(ValueError, match=r"indices|convert"):
        predictor(indices, values)
    for kind in (np.int32, np.int64):
        if np.array(indices).dtype.kind == "i" and np.abs(np.array(indices)).max() < 2**31:
            with pytest.raises(ValueError, match="indices"):
                predictor(np.array(indices, dtype=kind), np.array(values))


def test_not_fitted_and_wrong_k():
    with pytest.raises(NotFittedError):
        treemax.LabelTree().predictor()
    X, y = data()
    with pytest.raises(ValueError, match="k must be"):
        treemax.LabelTree(verbose=0).fit(X, y).predictor(k=0)
