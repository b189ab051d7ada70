"""Strings and sorted integers as arrays of bytes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treemax.numpy_only.storage import Strings, decode_sorted, encode_sorted, string_arrays


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(0, 2**32 - 1), unique=True, max_size=8), max_size=6))
def test_sorted_numbers_come_back(lists):
    numbers = np.array([number for own in lists for number in sorted(own)], dtype=np.int64)
    counts = np.array([len(own) for own in lists], dtype=np.int64)
    written = encode_sorted(numbers, counts)
    assert written.dtype == np.uint8
    np.testing.assert_array_equal(decode_sorted(written, counts), numbers)


@pytest.mark.parametrize(
    ("text", "counts", "message"),
    [
        ([5, 0x80], [1], "damaged"),  # ends within a number
        ([0x80, 0x80, 0x80, 0x80, 0x80, 1], [1], "damaged"),  # more than 35 bits
        ([5, 6], [1], "there are 2"),
        ([5], [2, -1], "there are 1"),
    ],
)
def test_damaged_numbers_are_refused(text, counts, message):
    with pytest.raises(ValueError, match=message):
        decode_sorted(np.array(text, dtype=np.uint8), np.array(counts))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(st.characters(), max_size=5), max_size=8))  # with surrogates
def test_strings_come_back(given_strings):
    strings = Strings(**string_arrays(given_strings))
    assert strings.all() == given_strings
    assert [strings[number] for number in range(len(strings))] == given_strings
