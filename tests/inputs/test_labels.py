"""Labels in every supported form, and the label index against a plain dictionary."""

from __future__ import annotations

import datetime
import decimal
import enum
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.exceptions import DataConversionWarning

from treemax.inputs.label_values import distinct
from treemax.inputs.labels import LabelIndex, RaggedLabels, read_labels, target_ids

WORDS = ["b", "a", "b"]
NUMBERS = [7, -2, 7]
LISTS = [["b", "a"], [], ["c"]]
INDICATOR = np.array([[0, 1, 1], [0, 0, 0], [1, 0, 0]])
LEAST, MOST = -(2**63), 2**63 - 1


class Colour(str, enum.Enum):
    RED = "red"


def listed(labels: RaggedLabels) -> list[list]:
    return [labels[row] for row in range(len(labels))]


# --- reading y ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "y",
    [
        WORDS,
        tuple(WORDS),
        iter(WORDS),
        np.array(WORDS),
        np.array(WORDS, dtype=object),
        np.array(WORDS, dtype="U20"),
        [np.str_(word) for word in WORDS],
        pd.Series(WORDS),
        pd.Series(WORDS, dtype=object),
        pd.Series(WORDS, dtype="string"),
        pd.Series(WORDS, dtype="string[pyarrow]"),
        pd.Series(WORDS, dtype="category"),
        pd.Index(WORDS),
        pd.Categorical(WORDS),
        pd.array(WORDS, dtype="string"),
        pl.Series(WORDS),
        pl.Series(WORDS, dtype=pl.Categorical),
        pl.Series(WORDS, dtype=pl.Enum(["a", "b"])),
    ],
)
def test_vectors_of_strings(y):
    labels = read_labels(y)
    assert labels.form == "vector" and not labels.multi_label
    assert listed(labels) == [["b"], ["a"], ["b"]]
    assert labels.dtype.kind in "UO"


@pytest.mark.skipif(not hasattr(np, "dtypes") or not hasattr(np.dtypes, "StringDType"), reason="NumPy 1")
def test_strings_of_any_length():
    assert listed(read_labels(np.array(WORDS, dtype=np.dtypes.StringDType()))) == [["b"], ["a"], ["b"]]


@pytest.mark.parametrize(
    "y",
    [
        NUMBERS,
        np.array(NUMBERS),
        np.array(NUMBERS, dtype=np.int8),
        np.array(NUMBERS, dtype=np.float32),
        np.array(NUMBERS, dtype=object),
        [np.int16(number) for number in NUMBERS],
        [float(number) for number in NUMBERS],
        pd.Series(NUMBERS),
        pd.Series(NUMBERS, dtype="Int64"),
        pd.Series(NUMBERS, dtype="int64[pyarrow]"),
        pd.Series(NUMBERS, dtype="category"),
        pl.Series(NUMBERS),
    ],
)
def test_vectors_of_integers(y):
    labels = read_labels(y)
    assert labels.form == "vector" and listed(labels) == [[7], [-2], [7]]
    assert labels.values.dtype == np.int64 and labels.dtype.kind in "if"


@pytest.mark.parametrize("y", [[True, False], np.array([True, False]), pd.Series([True, False]), [np.True_, False]])
def test_truth_values_are_labels_too(y):
    labels = read_labels(y)
    assert labels.dtype == bool and listed(labels) == [[1], [0]]


@pytest.mark.parametrize(
    "y",
    [
        LISTS,
        [tuple(row) for row in LISTS],
        [np.array(row, dtype=object) for row in LISTS],
        np.array([*LISTS, None], dtype=object)[:3],
        pd.Series(LISTS),
        pl.Series(LISTS, dtype=pl.List(pl.String)),
    ],
)
def test_lists_of_strings(y):
    labels = read_labels(y)
    assert labels.form == "lists" and labels.multi_label and listed(labels) == LISTS


def test_sets_are_put_in_order():
    assert listed(read_labels([{"b", "a", "c"}, frozenset()])) == [["a", "b", "c"], []]


def test_lists_of_integers_and_of_truth_values():
    assert listed(read_labels([[3, -1], [], [2**63 - 1]])) == [[3, -1], [], [2**63 - 1]]
    assert read_labels([[True], [False]]).dtype == bool
    assert listed(read_labels(pl.Series([[1, 2], [3, 4]], dtype=pl.Array(pl.Int64, 2)))) == [[1, 2], [3, 4]]


@pytest.mark.parametrize("format", ["csr", "csc", "coo", "bsr", "dia", "lil", "dok"])
@pytest.mark.parametrize("kind", [sp.csr_matrix, sp.csr_array])
@pytest.mark.parametrize("dtype", [np.int64, np.float32, np.bool_])
def test_sparse_indicators(format, kind, dtype):
    y = kind(INDICATOR.astype(dtype)).asformat(format)
    labels = read_labels(y)
    assert (labels.form, labels.n_columns) == ("indicator", 3)
    assert listed(labels) == [[1, 2], [], [0]]


@pytest.mark.parametrize(
    "make", [np.asarray, pd.DataFrame, pl.DataFrame, lambda y: y.astype(bool), lambda y: y.astype(float)]
)
def test_dense_indicators(make):
    labels = read_labels(make(INDICATOR))
    assert (labels.form, labels.n_columns) == ("dense-indicator", 3)
    assert listed(labels) == [[1, 2], [], [0]]


def test_indicators_with_zeros_written_out_and_entries_unsorted():
    y = sp.csr_matrix((np.array([1, 1, 0]), np.array([2, 0, 1]), np.array([0, 2, 3])), shape=(2, 4))
    before = (y.data.copy(), y.indices.copy(), y.indptr.copy())
    labels = read_labels(y)
    assert listed(labels) == [[0, 2], []] and labels.n_columns == 4
    for old, new in zip(before, (y.data, y.indices, y.indptr)):
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize(
    "y", [np.array([["b"], ["a"]]), np.array([["b"], ["a"]], dtype=object), pd.DataFrame({"y": ["b", "a"]})]
)
def test_a_column_is_a_vector_with_a_warning(y):
    with pytest.warns(DataConversionWarning, match="column-vector"):
        labels = read_labels(y)
    assert labels.form == "vector" and listed(labels) == [["b"], ["a"]]


def test_unusual_strings_are_kept_to_the_letter():
    y = ["", " ", "a\0", "a", "\ud800", "é", "e\u0301", "😀", "x" * 100_000, "\n"]
    labels = read_labels(y)
    assert labels.values.tolist() == y
    index = LabelIndex()
    ids = index.add(labels.values, labels.dtype)
    assert ids.tolist() == list(range(len(y))) and index.labels(ids).tolist() == y


def test_subclasses_of_strings_and_integers_become_plain():
    number = enum.IntEnum("Number", "ONE TWO")
    assert [type(label) for label in read_labels([Colour.RED]).values.tolist()] == [str]
    assert read_labels([Colour.RED]).values.tolist() == ["red"]
    assert read_labels([number.TWO]).values.tolist() == [2]


def test_the_range_of_integers():
    assert read_labels([MOST, LEAST]).values.tolist() == [MOST, LEAST]
    assert read_labels(np.array([MOST], dtype=np.uint64)).values.tolist() == [MOST]


@pytest.mark.parametrize(
    "y", [[2**63], [LEAST - 1], [[2**64]], [10**400, 1.0], np.array([2**63], dtype=np.uint64), [np.uint64(2**63)]]
)
def test_integers_out_of_range_are_refused(y):
    with pytest.raises(ValueError, match="outside the range of 64-bit integers"):
        read_labels(y)


@pytest.mark.parametrize("y", [[2.0**53], np.array([0.0, -(2.0**63)]), [2.0**53 - 1, 2**53 + 1], [1e300]])
def test_floats_that_stand_for_several_integers_are_refused(y):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match="a float of that size does not represent integers exactly"):
            read_labels(y)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (None, "requires y to be passed"),
        ("abc", "y is one str"),
        (b"abc", "y is one bytes"),
        (5, "y is one int"),
        ({"a", "b"}, "y is one set"),
        ({"a": 1}, "y is one dict"),
        (np.array(5), r"shape \(\)"),
        (np.array(None, dtype=object), r"shape \(\)"),
        (["a", 1], "mixes strings and integers: row 1 has 1 after 'a'"),
        ([1, "a"], "mixes strings and integers: row 1 has 'a' after 1"),
        ([["a"], ["b", 1]], "mixes strings and integers: row 1 has 1 after 'a'"),
        (np.array(["a", 1], dtype=object), "mixes strings and integers: row 1"),
        (["a", ["b"]], "mixes label lists and single labels: row 0 is 'a'"),
        ([["a"], None], "row 1 is None, not a list"),
        ([np.array(1), np.array(2)], "row 0 is array"),
        ([[["a"]]], r"\['a'\] \(list\) at row 0"),
        (["a", None], r"None \(NoneType\) at row 1"),
        ([1, None], r"None \(NoneType\) at row 1"),
        (["a", float("nan")], r"nan \(float\) at row 1"),
        ([b"a"], r"b'a' \(bytes\) at row 0"),
        (np.array([b"a"]), "dtype .*S1"),
        ([1j], "complex"),
        (np.array([1j]), "complex128"),
        ([datetime.date(2020, 1, 1)], "date"),
        (np.array(["2020-01-01"], dtype="M8[D]"), "datetime64"),
        ([decimal.Decimal(3)], "Decimal"),
        ([{"a": 1}], "dict"),
        ([1.0, np.nan], "NaN or infinity at row 1"),
        (np.array([np.inf]), "NaN or infinity at row 0"),
        ([[1.0], [], [2.0, np.nan]], "NaN or infinity at row 2"),
        ([1.0, 2.5], "continuous.* 2.5 at row 1"),
        ([[1], [], [2, 0.5]], "continuous.* 0.5 at row 2"),
        (np.array([0.5]), "continuous"),
        (np.ma.array([1, 2], mask=[False, True]), "masked values at row 1"),
        (np.zeros((2, 2, 2)), r"shape \(2, 2, 2\)"),
        (np.array([["a", "b"]]), r"shape \(1, 2\)"),
        (np.array([["a", "b"]], dtype=object), r"shape \(1, 2\)"),
        (pd.Series(["a", None], dtype="string"), "at row 1"),
        (pd.Series(["a", None], dtype="category"), "at row 1"),
        (pd.Series([1, None], dtype="Int64"), "at row 1"),
        (pd.Series(pd.to_datetime(["2020-01-01"])), "datetime64"),
        (pl.Series(["a", None]), "at row 1"),
        (pl.Series([1, None]), "at row 1"),
        (np.array([[0, 2]]), "not an indicator matrix: it has 2 at row 0, column 1"),
        (np.array([[0, 0], [0.5, 0]]), "0.5 at row 1, column 0"),
        (np.array([[0, np.nan]]), "nan at row 0, column 1"),
        (sp.csr_matrix([[0, -1]]), "-1 at row 0, column 1"),
        (sp.coo_matrix(([1, 1], ([0, 0], [1, 1])), shape=(1, 2)), "2 at row 0, column 1"),
        (sp.csr_matrix([[1j, 0]]), "not an indicator"),
    ],
)
def test_what_is_refused_and_where(y, message):
    with pytest.raises(ValueError, match=message):
        read_labels(y)


def test_the_name_of_the_argument_is_in_the_message():
    with pytest.raises(ValueError, match=r"^classes mixes strings and integers"):
        read_labels(["a", 1], "classes")


@pytest.mark.parametrize("indptr", [[0, 5], [0, 2, 1], [-1, 1], []])
def test_ragged_labels_put_together_wrongly_are_refused(indptr):
    labels = RaggedLabels(np.array(indptr, dtype=np.int64), np.array([1, 2]), np.dtype(int))
    with pytest.raises(ValueError, match="indptr does not fit its 2 values"):
        read_labels(labels)


def test_ragged_labels_are_an_array_to_numpy():
    answers = np.array(["a", "b", "c"])
    for one_each in (read_labels(["a", "b", "b"]), read_labels(np.array(["x", "a", "b", "b"])).rows(1, 4)):
        assert np.asarray(one_each).tolist() == ["a", "b", "b"]
        assert (answers == one_each).tolist() == [True, True, False]
    assert np.asarray(read_labels(np.array([3, 1], np.int16))).dtype == np.int16
    for lists in ([["a"], ["b"]], [["a", "b"], []], []):
        found = np.asarray(read_labels(lists, "y") if lists else read_labels([[]]).rows(0, 0))
        assert found.dtype == object and found.ndim == 1 and found.tolist() == lists
    if np.lib.NumpyVersion(np.__version__) >= "2.0.0":
        with pytest.raises(ValueError, match="without a copy"):
            np.array(read_labels(["a"]), copy=False)


def test_ragged_labels_are_a_sequence():
    labels = read_labels(LISTS)
    assert read_labels(labels) is labels
    assert list(labels) == LISTS and labels[-1] == ["c"] and labels[1:] == LISTS[1:] and len(labels) == 3
    assert list(labels.rows(1, 3)) == LISTS[1:]
    with pytest.raises(IndexError):
        labels[3]


def test_reading_changes_nothing_of_the_callers():
    y = [["b", "a"], ["a", "a"]]
    read_labels(y)
    assert y == [["b", "a"], ["a", "a"]]


# --- ids of rows ----------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(0, 6), max_size=6), min_size=1, max_size=8), st.sets(st.integers(0, 6)))
@settings(max_examples=80, deadline=None)
def test_target_ids_are_sorted_sets_of_what_is_known(rows, known):
    labels = read_labels(rows)
    ids = np.array([value if value in known else -1 for value in labels.values.tolist()], dtype=np.int64)
    targets = target_ids(labels, ids)
    assert len(targets) == len(rows) and targets.ids.dtype == np.uint32
    for row, expected in enumerate(rows):
        got = targets.ids[targets.indptr[row] : targets.indptr[row + 1]].tolist()
        assert got == sorted(set(expected) & known)
    part = targets[1:3]
    assert len(part) == len(rows[1:3])


# --- the index ------------------------------------------------------------------------------------------

strings = st.text(st.characters(min_codepoint=0, max_codepoint=0x10FFFF), max_size=6)  # surrogates and all
integers = st.one_of(st.integers(-5, 5), st.integers(LEAST, LEAST + 3), st.integers(MOST - 3, MOST))


@given(st.one_of(st.lists(st.lists(strings, max_size=6)), st.lists(st.lists(integers, max_size=6))), st.data())
@settings(max_examples=120, deadline=None)
def test_any_history_gives_what_a_dictionary_gives(batches, data):
    index, reference = LabelIndex(), {}
    for batch in batches:
        expected = [reference.setdefault(label, len(reference)) for label in batch]
        assert index.add(batch).tolist() == expected
        assert len(index) == len(reference)
        if data.draw(st.booleans()):  # through a file and back, as a stream that is continued
            index = LabelIndex.from_arrays(index.arrays(), None if index.dtype is None else index.dtype.str)
        if data.draw(st.booleans()):
            twin = index.copy()
            twin.add(["something else" * 3] if index.holds_strings else [4711])  # must not be noticed
        if data.draw(st.booleans()):
            some = data.draw(st.lists(st.sampled_from(list(reference)), max_size=4)) if reference else []
            assert index.ids(some).tolist() == [reference[label] for label in some]
    labels = list(reference)
    assert index.classes.tolist() == labels
    assert index.labels(np.arange(len(labels))).tolist() == labels
    assert all(label in index for label in labels)
    assert index.ids(["\ud8ff nobody has this"]).tolist() == [-1]


def test_ids_come_back_in_the_shape_asked_for():
    index = LabelIndex(["a", "b", "c"])
    assert index.labels([[2, 0], [1, 1]]).tolist() == [["c", "a"], ["b", "b"]]
    assert index.labels(np.empty((0, 3), dtype=np.int64)).shape == (0, 3)


def test_a_loaded_index_decodes_few_labels_without_the_rest():
    words = [f"label {i}" for i in range(1000)]
    index = LabelIndex.from_arrays(LabelIndex(words).arrays(), "U")
    assert index.labels([999, 3]).tolist() == ["label 999", "label 3"]
    assert index.ids(["label 5", "label 1000"]).tolist() == [5, -1]
    assert index.add(["new", "label 7"]).tolist() == [1000, 7]
    assert index.classes.tolist() == [*words, "new"]


def test_kinds_do_not_mix_and_a_refusal_changes_nothing():
    for start, other in ((["a"], [1]), ([1], ["a"])):
        index = LabelIndex(start)
        with pytest.raises(ValueError, match="labels must be of one kind"):
            index.add(other)
        with pytest.raises(ValueError, match="mixes strings and integers"):
            index.add([*start, *other])
        assert index.classes.tolist() == start and len(index) == 1


def test_no_labels_are_of_no_kind():
    index = LabelIndex([1])
    assert index.add(np.empty(0, dtype=object), np.dtype(str)).tolist() == []
    assert index.add([2]).tolist() == [1] and not index.holds_strings
    empty = LabelIndex()
    empty.add([])
    assert empty.dtype is None and empty.add(["a"]).tolist() == [0]


@pytest.mark.parametrize(
    ("first", "second", "dtype"),
    [
        (np.array([1], dtype=np.int8), np.array([300], dtype=np.int64), np.int64),
        (np.array([2**63 - 1], dtype=np.uint64), np.array([-5]), np.int64),
        (np.array([1.0]), np.array([2**60 + 1]), np.int64),
        (np.array([2**60 + 1]), np.array([1.0]), np.int64),
        (np.array([1.0], dtype=np.float32), np.array([2.0]), np.float64),
        (np.array([True]), np.array([5]), np.int64),
    ],
)
def test_integers_of_different_types_keep_their_values(first, second, dtype):
    index = LabelIndex()
    for part in (first, second):
        labels = read_labels(part)
        index.add(labels.values, labels.dtype)
    assert index.dtype == dtype
    assert [int(label) for label in index.classes] == [int(first[0]), int(second[0])]


@pytest.mark.parametrize("labels", [["", "é", "\ud800", "x" * 10_000], [LEAST, 0, MOST], []])
def test_arrays_and_back(labels):
    index = LabelIndex(labels)
    arrays = index.arrays()
    assert all(array.dtype != object for array in arrays.values())
    back = LabelIndex.from_arrays(arrays, None if index.dtype is None else index.dtype.str)
    assert back.classes.tolist() == labels and len(back) == len(labels)
    assert back.ids(labels).tolist() == list(range(len(labels)))


def text_arrays(text: bytes, offsets: list[int], dtype=np.int64) -> dict:
    return {"bytes": np.frombuffer(text, dtype=np.uint8), "offsets": np.array(offsets, dtype=dtype)}


@pytest.mark.parametrize(
    ("arrays", "dtype"),
    [
        (text_arrays(b"abc", [0, 1, 4]), "U"),
        (text_arrays(b"abc", [1, 3]), "U"),
        (text_arrays(b"abc", [0, 2, 1, 3]), "U"),
        (text_arrays(b"abc", [0, -1, 3]), "U"),
        (text_arrays(b"abc", []), "U"),
        (text_arrays(b"abc", [0, 3], np.float64), "U"),
        (text_arrays(b"abc", [0, 3], np.int32), "U"),
        ({"bytes": np.zeros((3, 1), dtype=np.uint8), "offsets": np.array([0, 3])}, "U"),
        ({"bytes": np.zeros(3, dtype=np.int8), "offsets": np.array([0, 3])}, "U"),
        ({"integers": np.array([1.0, 2.0])}, "<i8"),
        ({"integers": np.array([[1]])}, "<i8"),
        ({"integers": np.array([1])}, "U"),
        ({"integers": np.array([1])}, "O"),
        ({"integers": np.array([1])}, "c16"),
        ({"integers": np.array([1])}, "no such type"),
        (text_arrays(b"abc", [0, 3]), "<i8"),
        (text_arrays(b"abc", [0, 3]), "S3"),
        (text_arrays(b"abc", [0, 3]), "M8[s]"),
        (text_arrays(b"ab\xff", [0, 2, 3]), "U"),  # not UTF-8
        (text_arrays("aé".encode(), [0, 2, 3]), "U"),  # a label that begins within a character
        (text_arrays(b"aba", [0, 1, 2, 3]), "U"),  # a label that occurs twice
        ({"integers": np.array([3, 5, 3])}, "<i8"),
        ({"integers": np.array([300])}, "|i1"),  # the type would change the label
        ({"integers": np.array([2**60 + 1])}, "<f8"),
    ],
)
def test_damaged_arrays_are_refused_on_opening(arrays, dtype):
    with pytest.raises(ValueError, match="the label index is damaged"):
        LabelIndex.from_arrays(arrays, dtype)


def test_a_label_that_is_not_utf8_is_named():
    with pytest.raises(ValueError, match="label 1 is not UTF-8"):
        LabelIndex.from_arrays(text_arrays(b"ab\xff", [0, 2, 3]), "U")


def test_the_type_of_a_file_does_not_cut_labels():
    index = LabelIndex.from_arrays(text_arrays(b"northsouth", [0, 5, 10]), "<U2")
    assert index.classes.tolist() == ["north", "south"]


def test_a_long_label_makes_objects_of_all():
    """NumPy's strings are all as wide as the longest: one long label would make every answer as large."""
    short, long = ["cat", "dog"], "x" * 1_000_000
    index = LabelIndex(short, str)
    assert index.classes.dtype.kind == "U"
    index.add([long])
    loaded = LabelIndex.from_arrays(index.arrays(), "<U")
    for known in (index, loaded, index.copy(), LabelIndex([long, *short], str)):
        assert known.classes.dtype == object and known.labels([[0, 1]]).dtype == object
        assert known.ids([long, "dog"]).min() >= 0
    assert np.asarray(read_labels([*short, long])).dtype == object
    assert np.asarray(read_labels(short)).dtype.kind == "U"
    assert LabelIndex(["y" * 100], str).classes.dtype.kind == "U"


@given(st.lists(st.integers(-(2**63), 2**63 - 1)) | st.lists(st.integers(-20, 20)))
def test_distinct_numbers(numbers):
    given_numbers = np.array(numbers, dtype=np.int64)
    names, places = distinct(given_numbers)
    assert names.tolist() == sorted(set(numbers))
    np.testing.assert_array_equal(names[places], given_numbers)


@given(st.lists(st.lists(st.integers(-1, 9), max_size=5), max_size=8))
def test_targets_are_sorted_sets(rows):
    labels = read_labels([[number + 1 for number in row] for row in rows] or [[0]])
    found = target_ids(labels, labels.values - 1)
    for row, start, stop in zip(rows, found.indptr, found.indptr[1:]):
        assert found.ids[start:stop].tolist() == sorted({number for number in row if number >= 0})
