"""Byte parsers of the XMC, svmlight and Vowpal Wabbit readers.

A kernel gets a block of bytes that ends with a newline (a sentinel that stops every inner loop without comparing with
the end of the block) and fills preallocated arrays of the size `capacity`. A malformed line only adds an entry to
`bad`.

Numbers are exact: a value equals `numpy.float32(float(text))`, bit for bit. If float64 arithmetic cannot decide the
last bit (about one in thirty million of the numbers with more than 15 digits), the kernel defers the number: the
caller finds its position in `deferred`, parses it with Python, and calls again with the value in `known`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from treemax.kernels.intrinsics import minimum
from treemax.kernels.jit import inline_kernel, kernel
from treemax.kernels.row_sorting import MAX_FLOAT32, sort_row

# Error codes of malformed lines.
BAD_LABEL = 1
LABEL_RANGE = 2
BAD_INDEX = 3
INDEX_RANGE = 4
BAD_VALUE = 5
VALUE_RANGE = 6
NO_BAR = 7
SUM_RANGE = 8

_NEWLINE, _RETURN, _TAB, _SPACE = np.uint8(10), np.uint8(13), np.uint8(9), np.uint8(32)
_HASH, _PLUS, _COMMA, _MINUS, _POINT = np.uint8(35), np.uint8(43), np.uint8(44), np.uint8(45), np.uint8(46)
_ZERO, _COLON, _UPPER_E, _LOWER_E, _BAR = (np.uint8(48), np.uint8(58), np.uint8(69), np.uint8(101), np.uint8(124))
_NINE = np.uint8(9)
_ONE, _TWO, _THREE, _FOUR, _TEN = (np.uint64(number) for number in (1, 2, 3, 4, 10))
_SHIFT, _LOW_HALF = np.uint64(32), np.uint64(2**32 - 1)
_LOWEST, _HIGHEST = np.int64(-(2**62)), np.int64(2**62)

_POWERS = np.array([10.0**power for power in range(23)])  # all exact in float64
_INTEGER_POWERS = np.array([10**power for power in range(19)], dtype=np.int64)
_MAX_LABEL_DIGITS = 18  # any number of this many digits fits into a signed 64-bit integer
_MAX_DIGITS = 19  # any number of this many digits fits into an unsigned 64-bit integer
_EXACT_MANTISSA = np.uint64(2**53)
_MARGIN = 2.0**-50  # above the error of the five roundings of `_nearby`
_MAX_EXPONENT = 10**12  # no line has enough digits for a larger one to matter

# Status of a parsed number.
_GOOD, _MALFORMED, _TOO_LARGE, _UNDECIDED = 0, 1, 2, 3


class Ranges(NamedTuple):
    """Valid labels and indices: from the first of two, below the second."""

    lowest_label: np.int64
    label_limit: np.int64
    first_index: np.uint64
    index_limit: np.uint64


class ParsedRows(NamedTuple):
    """The rows of a block."""

    label_starts: np.ndarray
    labels: np.ndarray
    starts: np.ndarray
    indices: np.ndarray
    values: np.ndarray


class Buffers(NamedTuple):
    """Buffers of `sort_row`."""

    keys: np.ndarray
    spare: np.ndarray
    row_values: np.ndarray


class Numbers(NamedTuple):
    """Numbers that Python parses."""

    known_at: np.ndarray  # positions of those that are parsed
    known: np.ndarray
    deferred: np.ndarray  # positions of the others


def capacity(n_bytes: int) -> tuple[int, int, int]:
    """Return the most rows, labels and values in a block of `n_bytes`: "\\n", "1," and "1:1 " are the shortest."""
    return n_bytes + 1, n_bytes // 2 + 2, n_bytes // 2 + 2


@inline_kernel
def _is_digit(character):
    return np.uint8(character - _ZERO) <= _NINE


@inline_kernel
def _is_blank(character):
    return character == _SPACE or character == _TAB or character == _RETURN


@inline_kernel
def _skip_blanks(block, at):
    while _is_blank(block[at]):
        at += _ONE
    return at


@inline_kernel
def _line_end(block, at):
    while block[at] != _NEWLINE:
        at += _ONE
    return at


@kernel
def _nearby(mantissa, exponent):
    """Return mantissa * 10**exponent as float32, if float64 arithmetic determines it in spite of its error."""
    if mantissa == 0 or exponent < -66:
        return 0.0, _GOOD  # below half of the smallest float32
    if exponent > 38:
        return 0.0, _TOO_LARGE
    estimate = float(mantissa)
    while exponent < 0:
        step = minimum(-exponent, 22)
        estimate /= _POWERS[np.uint64(step)]
        exponent += step
    while exponent > 0:
        step = minimum(exponent, 22)
        estimate *= _POWERS[np.uint64(step)]
        exponent -= step
    low = np.float32(estimate * (1.0 - _MARGIN))
    high = np.float32(estimate * (1.0 + _MARGIN))
    if low != high:
        return 0.0, _UNDECIDED
    if float(low) > MAX_FLOAT32:
        return 0.0, _TOO_LARGE
    return float(low), _GOOD


@kernel
def _leading_digits(block, at):
    """Return the first 19 significant digits of a longer number, and their power of ten."""
    mantissa, exponent, kept, after_point = np.uint64(0), 0, 0, False
    while True:
        character = block[at]
        if _is_digit(character):
            if kept < _MAX_DIGITS:
                mantissa = mantissa * _TEN + np.uint64(character - _ZERO)
                kept += 1 if mantissa > 0 else 0
                exponent -= 1 if after_point else 0
            else:
                exponent += 0 if after_point else 1
        elif character == _POINT and not after_point:
            after_point = True
        else:
            return mantissa, exponent
        at += _ONE


@kernel
def _exponent(block, at):
    """Parse the exponent after the letter e; return it and its end, which is `at` if there is none."""
    start = at
    negative = block[at] == _MINUS
    if negative or block[at] == _PLUS:
        at += _ONE
    if not _is_digit(block[at]):
        return np.int64(0), start
    exponent = np.int64(0)
    while _is_digit(block[at]):
        if exponent < _MAX_EXPONENT:
            exponent = exponent * 10 + np.int64(block[at] - _ZERO)
        at += _ONE
    return -exponent if negative else exponent, at


@inline_kernel
def _number(block, at):
    """Parse a decimal number at `at`; return its float32 value, its end and its status."""
    negative = block[at] == _MINUS
    if negative or block[at] == _PLUS:
        at += _ONE
    start = at
    mantissa, exponent = np.uint64(0), np.int64(0)
    digit = np.uint8(block[at] - _ZERO)
    while digit <= _NINE:
        mantissa = mantissa * _TEN + np.uint64(digit)
        at += _ONE
        digit = np.uint8(block[at] - _ZERO)
    n_digits = np.int64(at - start)
    if block[at] == _POINT:
        at += _ONE
        point = at
        digit = np.uint8(block[at] - _ZERO)
        while digit <= _NINE:
            mantissa = mantissa * _TEN + np.uint64(digit)
            at += _ONE
            digit = np.uint8(block[at] - _ZERO)
        exponent = -np.int64(at - point)
        n_digits -= exponent
    if n_digits == 0:
        return 0.0, at, _MALFORMED
    exact = n_digits <= _MAX_DIGITS
    if not exact:
        mantissa, exponent = _leading_digits(block, start)
    if block[at] == _LOWER_E or block[at] == _UPPER_E:
        written, end = _exponent(block, at + _ONE)
        if end == at + _ONE:
            return 0.0, at, _MALFORMED
        exponent += written
        at = end
    if exact and mantissa <= _EXACT_MANTISSA and -22 <= exponent <= 22:
        value = float(mantissa)  # exact, as is the power of ten: a single rounding
        value = value / _POWERS[np.uint64(-exponent)] if exponent < 0 else value * _POWERS[np.uint64(exponent)]
        value = float(np.float32(value))
        status = _GOOD if value <= MAX_FLOAT32 else _TOO_LARGE
    else:
        value, status = _nearby(mantissa, exponent)
    return -value if negative else value, at, status


@inline_kernel
def _resolved_number(block, at, numbers, counts):
    """Parse a number with the values that the caller has resolved; defer it if it is not among them."""
    value, end, status = _number(block, at)
    if status == _UNDECIDED:
        while counts[0] < len(numbers.known_at) and numbers.known_at[counts[0]] < at:
            counts[0] += 1
        if counts[0] < len(numbers.known_at) and numbers.known_at[counts[0]] == at:
            value = numbers.known[counts[0]]
            status = _GOOD if abs(value) <= MAX_FLOAT32 else _TOO_LARGE
        else:
            if counts[1] < len(numbers.deferred):
                numbers.deferred[counts[1], 0] = at
                numbers.deferred[counts[1], 1] = end
            counts[1] += 1
            status = _GOOD
    return value, end, status


@kernel
def _label_as_float(block, at):
    """Parse an integer written as a float (1.0, 1e3), without sign; return its value, its end and whether it is valid."""
    nothing = np.int64(0)
    label, n_digits, exponent, after_point = np.int64(0), 0, 0, False
    while _is_digit(block[at]) or (block[at] == _POINT and not after_point):
        if block[at] == _POINT:
            after_point = True
        else:
            label = label * 10 + np.int64(block[at] - _ZERO)
            n_digits += 1
            exponent -= 1 if after_point else 0
        at += _ONE
        if n_digits > _MAX_LABEL_DIGITS:
            return nothing, at, False
    if block[at] == _LOWER_E or block[at] == _UPPER_E:
        written, end = _exponent(block, at + _ONE)
        if end == at + _ONE:
            return nothing, at, False
        exponent += written
        at = end
    if label == 0:
        return nothing, at, n_digits > 0
    if exponent < -_MAX_LABEL_DIGITS or exponent > _MAX_LABEL_DIGITS:
        return nothing, at, False
    power = _INTEGER_POWERS[np.uint64(abs(exponent))]
    if exponent < 0:
        return label // power, at, label % power == 0
    return label * power, at, label <= _INTEGER_POWERS[np.uint64(_MAX_LABEL_DIGITS)] // power


@inline_kernel
def _label(block, at):
    """Parse an integer; return its value, its end and whether it is valid."""
    negative = block[at] == _MINUS
    if negative or block[at] == _PLUS:
        at += _ONE
    start = at
    label = np.int64(0)
    digit = np.uint8(block[at] - _ZERO)
    while digit <= _NINE:
        label = label * 10 + np.int64(digit)
        at += _ONE
        digit = np.uint8(block[at] - _ZERO)
    n_digits = np.int64(at - start)
    good = 0 < n_digits <= _MAX_LABEL_DIGITS
    if block[at] == _POINT or block[at] == _LOWER_E or block[at] == _UPPER_E:
        label, at, good = _label_as_float(block, start)
    return -label if negative else label, at, good


@inline_kernel
def _labels(block, at, comments, lowest, limit, labels, n_labels):
    """Parse the labels at the start of a line; return the new number of labels, their end and the error, if any."""
    start, first = at, n_labels
    if block[at] == _NEWLINE or (block[at] == _HASH and comments):
        return n_labels, at, 0
    while True:
        label, at, good = _label(block, at)
        if not good:
            return n_labels, at, BAD_LABEL
        if block[at] == _COLON and n_labels == first and _is_digit(block[start]):
            return n_labels, start, 0  # no label: this is the first feature
        if label < lowest or label >= limit:
            return n_labels, at, LABEL_RANGE
        labels[n_labels] = label
        n_labels += _ONE
        if block[at] != _COMMA:
            break
        at += _ONE
    if _is_blank(block[at]) or block[at] == _NEWLINE or (block[at] == _HASH and comments):
        return n_labels, at, 0
    return n_labels, at, BAD_LABEL


@inline_kernel
def _skip_query(block, at):
    """Skip the query id of svmlight, `qid:7`."""
    if block[at] == 113 and block[at + _ONE] == 105 and block[at + _TWO] == 100 and block[at + _THREE] == _COLON:
        while not _is_blank(block[at]) and block[at] != _NEWLINE:
            at += _ONE
        at = _skip_blanks(block, at)
    return at


@inline_kernel
def _features(block, at, comments, limits, rows, n_values, numbers, counts):
    """Parse the features of a line.

    Returns the new number of values, the end, the error, the position of the feature in error, and whether the
    indices are increasing."""
    previous = np.uint64(0)  # one more than the previous index
    ascending = True
    while block[at] != _NEWLINE and not (block[at] == _HASH and comments):
        here = at
        index = np.uint64(0)
        digit = np.uint8(block[at] - _ZERO)
        while digit <= _NINE:
            index = index * _TEN + np.uint64(digit)
            at += _ONE
            digit = np.uint8(block[at] - _ZERO)
        if at == here or block[at] != _COLON:
            return n_values, at, BAD_INDEX, here, ascending
        if at - here > 18 or index < limits.first_index or index >= limits.index_limit:
            return n_values, at, INDEX_RANGE, here, ascending
        index -= limits.first_index
        value, at, status = _resolved_number(block, at + _ONE, numbers, counts)
        if status != _GOOD:
            return n_values, at, VALUE_RANGE if status == _TOO_LARGE else BAD_VALUE, here, ascending
        rows.indices[n_values] = np.uint32(index)
        rows.values[n_values] = np.float32(value)
        n_values += _ONE
        ascending &= index >= previous
        previous = index + _ONE
        if _is_blank(block[at]):
            at = _skip_blanks(block, at + _ONE)
        elif block[at] != _NEWLINE and not (block[at] == _HASH and comments):
            return n_values, at, BAD_VALUE, here, ascending
    return n_values, at, 0, at, ascending


@inline_kernel
def _add_bad(bad, n_bad, line, place, error):
    if n_bad < len(bad):
        bad[n_bad, 0], bad[n_bad, 1], bad[n_bad, 2] = line, place, error


@kernel
def parse_rows(block, keep_blank, limits, lines, rows, buffers, numbers, bad, counts):
    """Parse lines of XMC (without header; a blank line is a row) or of svmlight (with comments).

    Fills `counts`: known values used, deferred numbers, rows, labels, values, bad lines.
    """
    comments = not keep_blank
    size, at = np.uint64(len(block)), np.uint64(0)
    n_rows, n_labels, n_values = np.uint64(0), np.uint64(0), np.uint64(0)
    n_bad, line = 0, 0
    counts[:] = 0
    rows.label_starts[0], rows.starts[0] = 0, 0
    while at < size:
        label_mark, value_mark = n_labels, n_values
        at = _skip_blanks(block, at)
        here = at
        blank = block[at] == _NEWLINE or (block[at] == _HASH and comments)
        n_labels, at, error = _labels(
            block, at, comments, limits.lowest_label, limits.label_limit, rows.labels, n_labels
        )
        if error == 0:
            at = _skip_blanks(block, at)
            if comments:
                at = _skip_query(block, at)
            n_values, at, error, here, ascending = _features(
                block, at, comments, limits, rows, n_values, numbers, counts
            )
            if error == 0 and not ascending:
                n_values, fits = sort_row(
                    rows.indices, rows.values, value_mark, n_values, buffers.keys, buffers.spare, buffers.row_values
                )
                error = 0 if fits else SUM_RANGE
        if error != 0:
            _add_bad(bad, n_bad, line, here, error)
            n_bad += 1
            n_labels, n_values = label_mark, value_mark
        elif keep_blank or not blank:
            lines[n_rows] = line
            n_rows += _ONE
            rows.label_starts[n_rows], rows.starts[n_rows] = n_labels, n_values
        at = _line_end(block, at) + _ONE
        line += 1
    counts[2], counts[3], counts[4], counts[5] = n_rows, n_labels, n_values, n_bad


@inline_kernel
def _rotate(word, places):
    return np.uint32(word << np.uint32(places)) | np.uint32(word >> np.uint32(32 - places))


@inline_kernel
def _mix(word):
    word = np.uint32(word * np.uint32(0xCC9E2D51))
    return np.uint32(_rotate(word, 15) * np.uint32(0x1B873593))


@inline_kernel
def _murmur(block, start, stop, seed):
    """Return MurmurHash3 (x86, 32 bits) of the bytes from `start` to `stop`."""
    digest = np.uint32(seed)
    at = start
    while at + _FOUR <= stop:
        word = np.uint32(0)
        for byte in range(_FOUR):
            word |= np.uint32(block[at + byte]) << np.uint32(8 * byte)
        digest = _rotate(digest ^ _mix(word), 13)
        digest = np.uint32(digest * np.uint32(5) + np.uint32(0xE6546B64))
        at += _FOUR
    if at < stop:
        word = np.uint32(0)
        for byte in range(stop - at):
            word |= np.uint32(block[at + byte]) << np.uint32(8 * byte)
        digest ^= _mix(word)
    digest ^= np.uint32(stop - start)
    digest = np.uint32((digest ^ (digest >> np.uint32(16))) * np.uint32(0x85EBCA6B))
    digest = np.uint32((digest ^ (digest >> np.uint32(13))) * np.uint32(0xC2B2AE35))
    return digest ^ (digest >> np.uint32(16))


@inline_kernel
def _name_hash(block, start, stop, seed):
    """Hash a name as Vowpal Wabbit: a number is added to the seed, any other name is hashed with it."""
    number = np.uint64(0)
    for at in range(start, stop):
        digit = np.uint8(block[at] - _ZERO)
        if digit > _NINE:
            return np.uint64(_murmur(block, start, stop, np.uint32(seed)))
        number = number * _TEN + np.uint64(digit)
    return number + seed


@kernel
def name_hash(data, seed):
    """Return Vowpal Wabbit's hash of a name in the namespace with the hash `seed`."""
    return _name_hash(data, np.uint64(0), np.uint64(len(data)), np.uint64(seed))


@inline_kernel
def _name_end(block, at):
    while not (_is_blank(block[at]) or block[at] == _NEWLINE or block[at] == _COLON or block[at] == _BAR):
        at += _ONE
    return at


@inline_kernel
def _ends_token(character):
    return _is_blank(character) or character == _NEWLINE or character == _BAR


@inline_kernel
def _named_features(block, at, mask, rows, n_values, numbers, counts):
    """Parse a Vowpal Wabbit line after its first bar; returns the same as `_features`."""
    seed, scale, nameless = np.uint64(0), 1.0, np.uint64(0)
    while block[at] != _NEWLINE:
        here = at
        namespace = block[at] == _BAR
        start = at + _ONE if namespace else at
        at = _name_end(block, start)
        end, value, status = at, 1.0, _GOOD
        if block[at] == _COLON:
            value, at, status = _resolved_number(block, at + _ONE, numbers, counts)
            if status == _GOOD and not _ends_token(block[at]):
                status = _MALFORMED
        if status != _GOOD:
            return n_values, at, VALUE_RANGE if status == _TOO_LARGE else BAD_VALUE, here
        if namespace:
            seed, scale, nameless = _name_hash(block, start, end, np.uint64(0)), value, np.uint64(0)
        else:
            index = _name_hash(block, start, end, seed)
            if start == end:
                index += nameless
                nameless += _ONE
            value = float(np.float32(value * scale))
            if not abs(value) <= MAX_FLOAT32:
                return n_values, at, VALUE_RANGE, here
            rows.indices[n_values] = np.uint32(index & mask)
            rows.values[n_values] = np.float32(value)
            n_values += _ONE
        at = _skip_blanks(block, at)
    return n_values, at, 0, at


@inline_kernel
def _find_bar(block, at):
    while block[at] != _BAR and block[at] != _NEWLINE:
        at += _ONE
    return at


@inline_kernel
def _plain_labels(block, at, bar, labels, n_labels):
    """Parse integer labels before the bar; return the new number of labels, and whether there is nothing else."""
    if at == bar:
        return n_labels, True
    n_labels, end, error = _labels(block, at, False, _LOWEST, _HIGHEST, labels, n_labels)
    return n_labels, error == 0 and end != at and end < bar and _skip_blanks(block, end) == bar


@kernel
def parse_named_rows(block, mask, lines, label_spans, rows, buffers, numbers, bad, counts):
    """Parse lines of Vowpal Wabbit, with names hashed into `mask` + 1 columns.

    `label_spans` gets the span before the first bar of each row, `labels` the labels if all of the block are
    integers. Fills `counts` as `parse_rows` does, and last the number of rows with other labels.
    """
    size, at = np.uint64(len(block)), np.uint64(0)
    n_rows, n_labels, n_values = np.uint64(0), np.uint64(0), np.uint64(0)
    n_bad, n_other, line = 0, 0, 0
    counts[:] = 0
    rows.label_starts[0], rows.starts[0] = 0, 0
    while at < size:
        label_mark, value_mark = n_labels, n_values
        at = _skip_blanks(block, at)
        start, here = at, at
        bar = _find_bar(block, at)
        if block[at] != _NEWLINE:
            plain, error = True, NO_BAR
            if block[bar] == _BAR:
                n_labels, plain = _plain_labels(block, at, bar, rows.labels, n_labels)
                n_values, at, error, here = _named_features(block, bar, mask, rows, n_values, numbers, counts)
                if error == 0:
                    n_values, fits = sort_row(
                        rows.indices, rows.values, value_mark, n_values, buffers.keys, buffers.spare, buffers.row_values
                    )
                    error = 0 if fits else SUM_RANGE
            if error != 0:
                _add_bad(bad, n_bad, line, here, error)
                n_bad += 1
                n_labels, n_values = label_mark, value_mark
            else:
                lines[n_rows] = line
                label_spans[n_rows, 0], label_spans[n_rows, 1] = start, bar
                n_rows += _ONE
                rows.label_starts[n_rows], rows.starts[n_rows] = n_labels, n_values
                n_other += 0 if plain else 1
        at = _line_end(block, at) + _ONE
        line += 1
    counts[2], counts[3], counts[4], counts[5], counts[6] = n_rows, n_labels, n_values, n_bad, n_other
