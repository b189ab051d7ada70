"""Features of large ids, numbered as they occur."""

import numpy as np
import pytest
import scipy.sparse as sp

import treemax
from treemax.checks.examples import example_data
from treemax.inputs.labels import LabelIndex
from treemax.inputs.numbering import MANY_FEATURES, FeatureNumbers, numbered
from treemax.inputs.rows import SparseRows, as_rows
from treemax.trees.features import given_vectors

FAR = 2**32 - 2


def rows_of(*rows: dict[int, float], width: int = FAR + 1) -> SparseRows:
    indptr = np.cumsum([0, *map(len, rows)])
    indices = np.array([j for row in rows for j in sorted(row)], dtype=np.uint32)
    values = np.array([row[j] for row in rows for j in sorted(row)], dtype=np.float32)
    return SparseRows(indptr, indices, values, width)


def dense(rows):
    return rows.to_scipy().toarray().tolist()


def test_features_are_numbered_as_they_occur():
    first = numbered(rows_of({5: 1.0, FAR: 2.0}, {}, {7: 3.0}))
    assert dense(first) == [[1.0, 0.0, 2.0], [0.0, 0.0, 0.0], [0.0, 3.0, 0.0]]
    assert first.numbers.ids.tolist() == [5, 7, FAR] and [first.numbers.id_of(i) for i in range(3)] == [5, 7, FAR]
    more = numbered(rows_of({6: 1.0, 7: 2.0, FAR: 4.0}), first.numbers)
    assert dense(more) == [[0.0, 2.0, 4.0, 1.0]] and more.n_features == 4
    assert dense(first.numbers.rows(rows_of({6: 1.0, 7: 2.0, FAR - 1: 9.0}))) == [[0.0, 2.0, 0.0]]


def test_features_that_a_model_has_room_for_keep_their_ids():
    rows = numbered(rows_of({0: 1.0, 2: 1.0, 3: 5.0, FAR: 7.0}), None, 3)
    assert rows.numbers.direct == 3 and dense(rows) == [[1.0, 0.0, 1.0, 5.0, 7.0]]
    assert [rows.numbers.id_of(i) for i in range(5)] == [0, 1, 2, 3, FAR]
    some = rows_of({1: 1.0}, {2: 2.0, FAR: 3.0})[1:]
    assert dense(rows.numbers.rows(some)) == [[0.0, 0.0, 2.0, 0.0, 3.0]]


def test_where_ids_are_few_or_entries_many_nothing_changes():
    for rows in (rows_of({1: 1.0}, width=MANY_FEATURES), as_rows(np.eye(3)), as_rows(sp.csr_matrix(np.eye(3)))):
        assert numbered(rows) is rows
    assert numbered(rows_of({1: 1.0}), None, FAR + 1).numbers is None


def test_numbers_of_a_file_are_checked():
    ids = np.array([9, 5], dtype=np.uint32)
    assert FeatureNumbers.checked(3, ids, 5).id_of(4) == 5
    for direct, wrong, n in (
        (3, ids, 6),
        (6, ids, 8),
        (-1, ids, 1),
        (True, ids, 3),
        (3, ids[[0, 0]], 5),
        (3, ids.astype(float), 5),
    ):
        with pytest.raises(ValueError, match="feature numbers are invalid"):
            FeatureNumbers.checked(direct, wrong, n)


def test_features_of_labels_may_have_large_ids():
    index = LabelIndex()
    index.add(np.array([0, 1]), np.int64)
    matrix = sp.csr_matrix(([3.0, 4.0], ([0, 1], [7, FAR])), shape=(2, FAR + 1))
    assert dense(given_vectors(([0, 1], matrix), index)) == [[1.0, 0.0], [0.0, 1.0]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        treemax.SoftmaxTree(depth=2, leaf_classes=2, growth=1.0),
        treemax.LabelTree(),
        treemax.OnlineLabelTree(),
        treemax.LearnedTree(),
    ],
    ids=str,
)
def test_explanations_name_the_ids(kind):
    X, y = example_data()
    matrix = sp.csr_matrix(X)
    shifted = sp.csr_matrix((matrix.data, matrix.indices + np.int64(2**31), matrix.indptr), shape=(len(X), 2**31 + 20))
    told = kind.set_params(verbose=0).fit(shifted, y).explain(shifted[:1])
    assert told.features == told.columns.tolist() == (2**31 + np.flatnonzero(X[0])).tolist()
