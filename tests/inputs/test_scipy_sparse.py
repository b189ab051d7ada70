"""Inconsistent SciPy matrices raise ValueError and do not crash."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import scipy.sparse as sp

from treemax.inputs.scipy_sparse import csr_parts

FAR = 2**31 - 1


def damaged(kind, **parts):
    """A small matrix with some of its arrays replaced."""
    X = kind(np.array([[0, 1.0, 0], [2.0, 0, 3.0]]))
    for name, value in parts.items():
        setattr(X, name, np.array(value, dtype=np.float64 if name == "data" else np.int32))
    return X


@pytest.mark.parametrize("kind", [sp.csr_matrix, sp.csr_array])
@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"indptr": [0, 5, 3]}, "indptr is inconsistent at row 1"),
        ({"indptr": [0, -5, 3]}, "indptr is inconsistent at row 0"),
        ({"indptr": [1, 2, 3]}, "indptr is inconsistent at row 0"),
        ({"indptr": [0, 1, FAR]}, "indptr is inconsistent at row 1"),
        ({"indptr": [0, 1]}, "indptr has 2 entries for 2 rows"),
        ({"indptr": []}, "indptr has 0 entries for 2 rows"),
        ({"indptr": [0, 1, 2, 3]}, "indptr has 4 entries for 2 rows"),
        ({"indices": [0, -1, 1]}, "column index -1 in row 1, outside its 3 columns"),
        ({"indices": [FAR, 0, 1]}, f"column index {FAR} in row 0"),
        ({"indices": [0]}, "with 1 indices and 3 values"),
        ({"indices": [[0, 1, 2]]}, "indices is not a vector of integers"),
        ({"data": [1.0]}, "with 3 indices and 1 values"),
        ({"data": [[1.0], [2.0], [3.0]]}, "data is not a vector"),
    ],
)
def test_damaged_csr(kind, parts, message):
    with pytest.raises(ValueError, match=message):
        csr_parts(damaged(kind, **parts), "X")


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"indices": [0, 9, 1]}, "row index 9 in column 1, outside its 2 rows"),
        ({"indptr": [0, 1, 2, FAR]}, "inconsistent at column 2"),
        ({"indptr": [0, 3]}, "2 entries for 3 columns"),
    ],
)
def test_damaged_csc(parts, message):
    with pytest.raises(ValueError, match=message):
        csr_parts(damaged(sp.csc_matrix, **parts), "X")


@pytest.mark.parametrize(
    ("row", "column", "values", "message"),
    [
        ([0, 1, FAR], [0, 1, 2], 3, f"row index {FAR} at entry 2, outside its 2 rows"),
        ([0, -1, 1], [0, 1, 2], 3, "row index -1 at entry 1"),
        ([0, 1, 1], [0, 9, 2], 3, "column index 9 at entry 1, outside its 3 columns"),
        ([0, 1], [0, 1, 2], 3, "2 row indices, 3 column indices and 3 values"),
        ([0, 1, 1], [0, 1, 2], 2, "3 column indices and 2 values"),
    ],
)
@pytest.mark.parametrize("kind", [sp.coo_matrix, sp.coo_array])
def test_damaged_coo(kind, row, column, values, message):
    X = kind((2, 3))
    X.row, X.col, X.data = np.array(row), np.array(column), np.ones(values)
    with pytest.raises(ValueError, match=message):
        csr_parts(X, "X")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("indices", [0, 1, 2, 0, 1, 9], "block column index 9 in block row 1, outside its 3 block columns"),
        ("indptr", [0, 3, FAR], "inconsistent at block row 1"),
        ("indptr", [0, 6], "2 entries for 2 block rows"),
        ("data", np.ones((6, 3, 5)), "blocks of 3 x 5 do not fill"),
        ("data", np.ones((6, 0, 0)), "data has the shape"),
        ("data", np.ones((6, 2)), "data has the shape"),
    ],
)
def test_damaged_bsr(name, value, message):
    X = sp.bsr_matrix(np.arange(24.0).reshape(4, 6), blocksize=(2, 2))
    setattr(X, name, np.array(value))
    with pytest.raises(ValueError, match=message):
        csr_parts(X, "X")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("offsets", [0], "1 offsets for data of shape"),
        ("offsets", [0, 2**62], "an offset of"),
        ("offsets", [0.0, 1.0], "offsets is not a vector of integers"),
        ("data", np.ones(4), "data of shape"),
    ],
)
def test_damaged_dia(name, value, message):
    X = sp.dia_matrix((np.ones((2, 4)), np.array([0, 1])), shape=(4, 4))
    setattr(X, name, np.array(value))
    with pytest.raises(ValueError, match=message):
        csr_parts(X, "X")


@pytest.mark.parametrize(
    ("columns", "values", "message"),
    [
        ([[0, 99], [1]], [[1.0, 2.0], [3.0]], "column index 99 in row 0"),
        ([[0, -1], [1]], [[1.0, 2.0], [3.0]], "column index -1 in row 0"),
        ([["a"], [1]], [[1.0], [3.0]], "column index 'a' in row 0"),
        ([[0, 1], [1]], [[1.0], [3.0]], "row 0 has the columns"),
        ([None, [1]], [None, [3.0]], "row 0 has the columns None"),
        ([[0]], [[1.0]], "1 lists of columns and 1 of values for 2 rows"),
    ],
)
def test_damaged_lil(columns, values, message):
    X = sp.lil_matrix((2, 3))
    X.rows, X.data = np.empty(len(columns), dtype=object), np.empty(len(values), dtype=object)
    X.rows[:], X.data[:] = columns, values
    with pytest.raises(ValueError, match=message):
        csr_parts(X, "X")


@pytest.mark.parametrize("key", [(5, 0), (FAR, 0), (-1, 0), (0, 9), (0,), (0, 2**70), "a"])
def test_damaged_dok(key):
    X = sp.dok_matrix((2, 3))
    X._dict[key] = 1.0
    with pytest.raises(ValueError, match="X is not a valid dok matrix"):
        csr_parts(X, "X")


def test_room_at_the_end_of_the_arrays_is_not_read():
    X = damaged(sp.csr_matrix, indices=[1, 0, 2, 99, -7], data=[1.0, 2.0, 3.0, np.nan, np.inf])
    indptr, indices, values = csr_parts(X, "X")
    assert (indptr.tolist(), indices.tolist(), values.tolist()) == ([0, 1, 3], [1, 0, 2], [1.0, 2.0, 3.0])


def test_the_callers_matrix_keeps_its_arrays_and_flags():
    for format in ("csr", "csc", "bsr"):
        X = sp.csr_matrix(np.array([[0, 1.0], [2.0, 3.0]])).asformat(format)
        X.indptr, X.indices = X.indptr.astype(np.int64), X.indices.astype(np.int64)
        X.indices, X.data = np.concatenate([X.indices, [0]]), np.concatenate([X.data, X.data[:1]])
        arrays = (X.indptr, X.indices, X.data)
        csr_parts(X, "X")
        assert all(a is b for a, b in zip(arrays, (X.indptr, X.indices, X.data)))


@pytest.mark.slow
def test_no_damage_ends_the_process():
    """The same in a process of its own, through an estimator, many at random: an access outside would kill it."""
    script = """
        import numpy as np, scipy.sparse as sp, warnings
        from treemax import OneVsAll
        from treemax.inputs.labels import read_labels
        warnings.simplefilter("ignore")
        random = np.random.default_rng(0)
        model = OneVsAll(passes=1).fit(sp.csr_matrix(np.eye(6)), list("abcabc"))
        wild = np.array([-(2**31), -7, -1, 0, 1, 2, 5, 6, 1000, 2**31 - 1])
        answered = refused = 0
        for trial in range(3000):
            X = sp.random(6, 6, 0.4, format=("csr", "csc", "coo", "bsr", "dia")[trial % 5], random_state=trial)
            names = {"coo": ("row", "col", "data"), "dia": ("offsets", "data")}.get(X.format, ("indptr", "indices", "data"))
            name = names[random.integers(len(names))]
            array = np.array(getattr(X, name))
            if len(array) and random.random() < 0.7 and name != "data":
                array[random.integers(len(array))] = random.choice(wild)
            elif random.random() < 0.5:
                array = array[: random.integers(len(array) + 1)]
            else:
                array = np.concatenate([array, array, array])
            try:
                setattr(X, name, array)
                if trial % 2:
                    X.has_canonical_format = True
            except ValueError:
                continue
            for use in (model.predict, lambda X: model.partial_fit(X, list("abcabc")), read_labels):
                try:
                    use(X)
                    answered += 1
                except ValueError as error:
                    assert str(error)
                    refused += 1
        print(answered > 100 and refused > 1000, answered, refused)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, env=os.environ, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("True"), done.stdout
