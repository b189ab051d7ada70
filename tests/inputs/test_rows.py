"""X in every supported form, and in forms that must be rejected."""

from __future__ import annotations

import warnings
from fractions import Fraction

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from treemax.inputs.rows import MAX_FEATURES, SparseRows, as_rows, read_only
from treemax.kernels import validation

TABLE = np.array([[0.0, 2.0, 0.0], [1.5, 0.0, -3.0], [0.0, 0.0, 0.0]])
FORMATS = ("csr", "csc", "coo", "bsr", "dia", "lil", "dok")


def dense(rows) -> np.ndarray:
    return rows.to_scipy().toarray() if isinstance(rows, SparseRows) else rows


@pytest.mark.parametrize(
    "X",
    [
        TABLE.tolist(),
        tuple(map(tuple, TABLE)),
        TABLE,
        TABLE.astype(np.float32),
        np.asfortranarray(TABLE),
        TABLE.astype(">f8"),
        TABLE.astype(np.float16),
        TABLE.astype(object),
        np.repeat(TABLE, 2, axis=0)[::2],
        memoryview(TABLE),
        np.ma.array(TABLE),
        pd.DataFrame(TABLE),
        pd.DataFrame(TABLE).convert_dtypes(),
        pd.DataFrame(TABLE).convert_dtypes(dtype_backend="pyarrow"),
        pl.DataFrame(TABLE),
    ],
)
def test_dense_forms_become_one_contiguous_float32_matrix(X):
    rows = as_rows(X)
    assert rows.dtype == np.float32 and rows.flags.c_contiguous and not rows.flags.writeable
    np.testing.assert_array_equal(rows, TABLE.astype(np.float32))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("kind", [sp.csr_matrix, sp.csr_array])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, np.int8, np.bool_])
def test_every_sparse_format_becomes_sparse_rows(format, kind, dtype):
    table = TABLE.astype(dtype)
    X = kind(table).asformat(format)
    rows = as_rows(X)
    assert isinstance(rows, SparseRows) and rows.shape == table.shape
    assert (rows.indptr.dtype, rows.indices.dtype, rows.values.dtype) == (np.int64, np.uint32, np.float32)
    np.testing.assert_array_equal(dense(rows), table.astype(np.float32))
    assert X.dtype == dtype and X.format == format


def test_a_frame_of_sparse_columns_stays_sparse():
    rows = as_rows(pd.DataFrame.sparse.from_spmatrix(sp.csr_matrix(TABLE)))
    assert isinstance(rows, SparseRows)
    np.testing.assert_array_equal(dense(rows), TABLE.astype(np.float32))


@given(
    hnp.arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(1, 6)), elements=st.floats(-1e6, 1e6)),
    st.sampled_from(FORMATS),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_sparse_and_dense_agree_and_nothing_is_changed(table, format, as_array):
    X = (sp.csr_array if as_array else sp.csr_matrix)(table).asformat(format)
    before = X.copy()
    np.testing.assert_array_equal(dense(as_rows(X)), as_rows(table))
    assert type(X) is type(before) and (before != X).nnz == 0


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_unsorted_and_duplicate_entries_are_sorted_and_summed(data):
    n_rows, n_columns = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5))
    entry = st.tuples(st.integers(0, n_rows - 1), st.integers(0, n_columns - 1), st.integers(-9, 9))
    entries = data.draw(st.lists(entry, max_size=20))
    reference = np.zeros((n_rows, n_columns))
    for row, column, value in entries:
        reference[row, column] += value
    by_row = sorted(entries, key=lambda entry: entry[0])
    counts = np.bincount([row for row, _, _ in by_row], minlength=n_rows).astype(int)
    X = sp.csr_matrix((n_rows, n_columns))
    X.indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    X.indices = np.array([column for _, column, _ in by_row], dtype=np.int32)
    X.data = np.array([value for _, _, value in by_row], dtype=np.float64)
    lying = data.draw(st.booleans())
    if lying:  # flags that are out of date, as after a change in place
        X.has_sorted_indices = X.has_canonical_format = True
    before = (X.indptr.copy(), X.indices.copy(), X.data.copy())
    rows = as_rows(X)
    np.testing.assert_array_equal(dense(rows), reference)
    for start, stop in zip(rows.indptr, rows.indptr[1:]):
        assert (np.diff(rows.indices[start:stop].astype(np.int64)) > 0).all()
    for old, new in zip(before, (X.indptr, X.indices, X.data)):
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize("make", [np.asarray, sp.csr_matrix, sp.coo_array, sp.lil_matrix, pd.DataFrame])
@pytest.mark.parametrize(
    ("value", "word"), [(np.nan, "NaN"), (np.inf, "infinity"), (-np.inf, "infinity"), (1e300, "too large")]
)
def test_what_is_not_a_finite_float32_is_refused_by_row_and_column(make, value, word):
    table = TABLE.copy()
    table[1, 2] = value
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match=rf"Input X contains .*{word}.* at row 1, column 2"):
            as_rows(make(table))


def test_infinities_that_cancel_are_still_refused():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match="row 0, column 0"):
            as_rows(np.array([[np.inf, -np.inf]], dtype=np.float32))


def test_values_whose_squares_float32_cannot_hold_are_refused():
    X = np.full((4, 4), -1e15, dtype=np.float32)
    for form in (np.asarray, sp.csr_matrix, sp.coo_matrix, lambda X: as_rows(sp.csr_matrix(X))):
        np.testing.assert_array_equal(dense(as_rows(form(X))), X)
    for value in (1.1e15, -1e20, 3e38):
        X[2, 1] = value
        rows = SparseRows(np.arange(0, 17, 4), np.arange(16, dtype=np.uint32) % 4, X.ravel(), 4)
        for wrong in (X, sp.csr_matrix(X), sp.coo_matrix(X), rows):
            with pytest.raises(ValueError, match=r"the value .*e\+\d\d at row 2, column 1; at most 1e\+15") as caught:
                as_rows(wrong)
            assert f"{np.float32(value):.3g}" in str(caught.value)
        np.testing.assert_array_equal(dense(as_rows(rows[:2])), X[:2])


@pytest.mark.parametrize("make", [np.zeros, sp.csr_matrix, sp.coo_array, sp.dok_matrix])
@pytest.mark.parametrize(("shape", "what"), [((0, 3), "sample"), ((3, 0), "feature"), ((0, 0), "sample")])
def test_empty_input_is_refused(make, shape, what):
    with pytest.raises(ValueError, match=rf"0 {what}\(s\) .*minimum of 1"):
        as_rows(make(shape))


@settings(max_examples=100, deadline=None)
@given(hnp.arrays(np.uint32, st.tuples(st.integers(1, 5), st.integers(1, 40))))
def test_whatever_is_not_finite_is_seen(bits):
    matrix = read_only(np.ascontiguousarray(bits).view(np.float32))
    largest = validation.largest_magnitude(matrix)
    assert np.isfinite(largest) == np.isfinite(matrix).all()
    if np.isfinite(largest):
        assert largest == np.abs(matrix).max()


@pytest.mark.parametrize("special", [np.nan, -np.nan, np.inf, -np.inf, 3.4e38, -3.4e38, 1e-45, -0.0])
@pytest.mark.parametrize("at", [0, 15, 16, 36])
def test_special_numbers_at_any_place(special, at):
    matrix = np.ones((1, 37), np.float32)
    matrix[0, at] = special
    largest = validation.largest_magnitude(read_only(matrix))
    np.testing.assert_equal(largest, np.abs(np.float32(special)) if not abs(special) < 1 else 1.0)


@pytest.mark.parametrize("rows", [[TABLE[0].astype(np.float32)], [TABLE[1]], [TABLE[1].tolist()], list(TABLE)])
def test_a_list_of_rows_is_read_as_a_matrix(rows):
    found = as_rows(rows)
    assert found.dtype == np.float32 and found.flags.c_contiguous
    np.testing.assert_array_equal(found, np.array(rows, np.float32))


def test_an_empty_frame_is_refused():
    for frame in (pd.DataFrame(), pl.DataFrame(), pd.DataFrame({"a": []})):
        with pytest.raises(ValueError, match="minimum of 1"):
            as_rows(frame)


@pytest.mark.parametrize(
    ("X", "message"),
    [
        ([], "Expected 2D array"),
        (np.zeros(3), "Expected 2D array"),
        (np.zeros((2, 2, 2)), "dim 3"),
        (5, "Expected 2D array"),
        (None, "not a table of numbers"),
        ("some text", "is a text, not a table of numbers: it begins with 'some text'. Use treemax.TextModel()"),
        (["some text", "more"], "is a list of texts, not a table of numbers: it begins with 'some text'. Use "),
        (pd.Series(["some text"], index=[7]), "is a list of texts"),
        (pl.Series(["some text"]), "is a list of texts"),
        (np.array(["some text"], dtype=object), "is a list of texts"),
        ([{"price": 2.5}, {"colour": 1}], "is a list of dicts, .* begins with {'price': 2.5}. .*DictVectorizer"),
        (np.array([{"price": 2.5}, {}], dtype=object), "is a list of dicts"),
        ([[1, 2], {"price": 2.5}], "row 1 is {'price': 2.5}"),
        ([[1, 2], None], "row 1 is None"),
        ([[1, 2], "some text"], "row 1 is the text 'some text'"),
        ([[1, 2], [3]], "row 1 has 1 values, row 0 has 2"),
        ([[1, 2], [3, "x"]], "row 1, column 1 is 'x'"),
        ([["1", "2"]], "row 0, column 0 is '1', a string"),
        ([[1, 2], [3, "4"]], "row 1, column 1 is '4', a string"),
        (np.array([["1", "2"]]), "row 0, column 0 is '1', a string"),
        (np.array([[b"1"]]), "row 0, column 0 is b'1', a string"),
        (np.array([[1, "2"]], dtype=object), "row 0, column 1 is '2', a string"),
        (pd.DataFrame({"a": [1, 2], "b": ["1", "2"]}), "row 0, column 1 is '1', a string"),
        (pl.DataFrame({"a": ["1"]}), "row 0, column 0 is '1', a string"),
        ([[1, 10**400]], "row 0, column 1 is 1000"),
        ([[1, [2]]], r"row 0, column 1 is \[2\]"),
        (np.array([[1j]]), "Complex data not supported"),
        (sp.csr_matrix([[1j]]), "Complex data not supported"),
        (np.array([["2020-01-01"]], dtype="M8[D]"), "dates or times"),
        (pd.DataFrame({"a": [1, 2], "b": ["x", "y"]}), "row 0, column 1 is 'x'"),
        (pd.DataFrame({"a": pd.to_datetime(["2020-01-01"])}), "dates or times"),
        (pd.DataFrame({"a": pd.array([1, None], dtype="Int64")}), "NaN at row 1, column 0"),
        (pl.DataFrame({"a": [1, None]}), "NaN at row 1, column 0"),
        (pl.DataFrame({"a": ["x"]}), "row 0, column 0 is 'x'"),
        (pl.DataFrame({"a": [1]}).lazy(), "collect"),
        (pd.Series([1, 2]), "2-dimensional"),
        (np.ma.array([[1.0, 2.0]], mask=[[True, False]]), "masked"),
        (sp.coo_array(np.array([1.0, 0.0])), "1D sparse"),
        (sp.csr_matrix(([1.0], ([0], [2**32])), shape=(1, 2**32 + 1)), "at most 4,294,967,295"),
    ],
)
def test_what_is_no_table_of_numbers_is_refused_in_words(X, message):
    with pytest.raises(ValueError, match=message):
        as_rows(X)


@pytest.mark.parametrize("wrap", [list, tuple, np.array, pd.Series, lambda texts: [[1.0], *texts], pd.DataFrame])
def test_whole_documents_are_not_quoted(wrap):
    document = 'It\'s a "long" document. ' * 10_000
    with pytest.raises(ValueError, match="not a table of numbers") as caught:
        as_rows(wrap([document, document]))
    said = str(caught.value)
    assert len(said) < 300 and "'It\\'s a \"long\" document. It\\'s a \"long\"'..." in said


@pytest.mark.parametrize("X", [{"a": 1}, [[1, 2j]], (row for row in TABLE), np.matrix(TABLE)])
def test_what_scikit_learn_calls_a_type_error_is_one_here(X):
    with pytest.raises(TypeError):
        as_rows(X)


def test_the_name_of_the_argument_is_in_the_message():
    with pytest.raises(ValueError, match="Input queries contains NaN"):
        as_rows([[np.nan]], "queries")


def test_numbers_that_are_not_floats_are_taken_as_they_are():
    assert as_rows([[True, 2, Fraction(1, 2)]]).tolist() == [[1.0, 2.0, 0.5]]
    assert as_rows(np.array([[2**49 - 1]], dtype=np.uint64)).tolist() == [[2.0**49]]


def test_the_widest_matrix_there_may_be():
    rows = as_rows(sp.csr_matrix(([1.0], ([0], [MAX_FEATURES - 1])), shape=(1, MAX_FEATURES)))
    assert rows.n_features == MAX_FEATURES and rows.indices.tolist() == [MAX_FEATURES - 1]
    assert rows.to_scipy().indices.tolist() == [MAX_FEATURES - 1]


def test_all_zero_rows_are_rows():
    rows = as_rows(sp.csr_matrix((3, 4)))
    assert rows.shape == (3, 4) and rows.nnz == 0


def test_a_float32_matrix_is_not_copied_and_not_locked():
    X = np.eye(3, dtype=np.float32)
    rows = as_rows(X)
    assert np.shares_memory(rows, X)
    X[0, 0] = 2.0  # the caller may still write to it
    with pytest.raises(ValueError):
        rows[0, 0] = 3.0


def test_rows_that_are_rows_already_are_handed_through():
    rows = as_rows(sp.csr_matrix(TABLE))
    assert as_rows(rows) is rows


@given(st.integers(-5, 5), st.integers(-5, 5))
def test_a_slice_of_sparse_rows_is_a_view_of_them(start, stop):
    rows = as_rows(sp.csr_matrix(TABLE))
    part = rows[start:stop]
    assert part.shape == (len(TABLE[start:stop]), 3)
    assert np.shares_memory(part.values, rows.values)
    np.testing.assert_array_equal(dense(part), TABLE[start:stop].astype(np.float32))
    assert part.nnz == np.count_nonzero(TABLE[start:stop])


def test_sparse_rows_refuse_other_steps():
    with pytest.raises(ValueError, match="steps of one"):
        as_rows(sp.csr_matrix(TABLE))[::2]


def test_read_only_leaves_the_original_writeable():
    array = np.zeros(3)
    view = read_only(array)
    assert array.flags.writeable and not view.flags.writeable and read_only(view) is view
