"""Models learn equally well from features in other units."""

import numpy as np
import pytest
import scipy.sparse as sp

import treemax

MODELS = {
    "label tree": treemax.LabelTree,
    "online label tree": treemax.OnlineLabelTree,
    "one against all": treemax.OneVsAll,
    "recall tree": treemax.RecallTree,
    "learned tree": treemax.LearnedTree,
    "softmax tree": treemax.SoftmaxTree,
    "softmax forest": treemax.SoftmaxForest,
}


def words(n_rows=3000, n_labels=30):
    """Counts of ten words, six of them from the vocabulary of the label."""
    random = np.random.default_rng(0)
    y = random.integers(n_labels, size=n_rows)
    own = y[:, None] * 10 + random.integers(10, size=(n_rows, 6))
    columns = np.hstack([own, random.integers(10 * n_labels, size=(n_rows, 4))])
    starts = np.arange(0, columns.size + 1, columns.shape[1])
    X = sp.csr_matrix((np.ones(columns.size, np.float32), columns.ravel(), starts))
    X.sum_duplicates()
    return X, y


@pytest.mark.parametrize("way", ["fit", "partial_fit"])
@pytest.mark.parametrize("name", MODELS)
def test_units_do_not_matter(name, way):
    X, y = words()
    found = []
    for unit in (1e-3, 1.0, 1e3):
        model = MODELS[name](verbose=0, random_state=0)
        if way == "fit":
            model.fit(unit * X[:2000], y[:2000])
        elif not hasattr(model, way):
            pytest.skip("learns in batch only")
        else:
            for start in range(0, 2000, 100):
                model.partial_fit(unit * X[start : start + 100], y[start : start + 100])
        found.append(model.score(unit * X[2000:], y[2000:]))
    assert min(found) > 0.8 and max(found) - min(found) < 0.03, found


def test_rows_of_length_one_are_not_copied():
    X = sp.csr_matrix(np.eye(3, dtype=np.float32))
    from treemax.inputs.conversions import normalized
    from treemax.inputs.rows import as_rows

    rows = as_rows(X)
    assert normalized(rows) is rows
    doubled = normalized(as_rows(2 * X)[1:])
    assert doubled.values.tolist() == [1.0, 1.0] and doubled.indptr.tolist() == [0, 1, 2]
    dense = normalized(np.array([[3.0, 4.0], [0.0, 0.0]], np.float32))
    assert dense.tolist() == [[np.float32(0.6), np.float32(0.8)], [0.0, 0.0]]


def test_counts_are_learned_as_well_as_normalized_rows():
    X, y = words()
    raw, scaled = (
        treemax.OnlineLabelTree(verbose=0, normalize=flag).fit(X[:2000], y[:2000]).score(X[2000:], y[2000:])
        for flag in (False, True)
    )
    assert scaled >= raw - 0.01
