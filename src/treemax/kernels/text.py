"""Feature hashing of texts: words, word n-grams and character n-grams over UTF-8 bytes.

A word is a sequence of word characters. These are defined here, not by the Unicode tables of the Python version,
because hashed features must be the same on every machine that reads the model: ASCII letters, digits and the
underscore, and beyond ASCII everything except the punctuation, symbols and spaces of the main blocks. Combining marks
and emoji are word characters.
"""

from __future__ import annotations

import math

import numpy as np

from treemax.kernels.intrinsics import empty, maximum, minimum
from treemax.kernels.jit import inline_kernel, kernel

_OFFSET = np.uint64(0xCBF29CE484222325)  # FNV-1a
_PRIME = np.uint64(0x100000001B3)
_MIX = np.uint64(0xFF51AFD7ED558CCD)
_JOIN = np.uint64(0x9E3779B97F4A7C15)
_CHARACTERS = np.uint64(0xD6E8FEB86659FD93)  # distinguishes the character n-gram "cat" from the word "cat"
_OPENING, _CLOSING = (np.uint64(0x02), np.uint64(0x03))  # markers before and after a word: bytes that no word contains
_SHIFT_32, _ZERO, _ONE = np.uint64(32), np.uint64(0), np.uint64(1)
_FEW = 48
_ASCII_END = np.uint64(0x80)
_ASCII_WORD = np.array([chr(code).isalnum() or chr(code) == "_" for code in range(128)])


@inline_kernel
def is_word_character(code):
    if code < 0x80:
        return _ASCII_WORD[np.uint64(code)]
    if code < 0xC0:  # Latin-1 punctuation, but not the ordinal indicators and the micro sign
        return code == 0xAA or code == 0xB5 or code == 0xBA
    if code == 0xD7 or code == 0xF7:  # × ÷
        return False
    if code < 0x2000:
        return code != 0x1680
    if code < 0x2070:  # spaces, dashes, quotation marks; the joiners of emoji and Indic scripts stay
        return code == 0x200C or code == 0x200D
    if code >= 0x2190 and code < 0x2C00:  # arrows, operators, box drawing, dingbats
        return False
    if code >= 0x2E00 and code < 0x2E80:
        return False
    if code >= 0x3000 and code < 0x3040:  # CJK punctuation, but not the iteration mark and zero
        return code >= 0x3005 and code <= 0x3007
    if code >= 0xFE10 and code < 0xFE70:
        return code >= 0xFE20 and code < 0xFE30
    if code >= 0xFF00 and code < 0xFF66:  # full-width letters and digits, not punctuation
        return (
            (code >= 0xFF10 and code <= 0xFF19)
            or (code >= 0xFF21 and code <= 0xFF3A)
            or (code >= 0xFF41 and code <= 0xFF5A)
        )
    return code < 0xFFF0 or code >= 0x10000


@inline_kernel
def character_at(text, position, end):
    """Return the code point at `position` and the position after it; a truncated sequence ends at `end`."""
    first = np.int64(text[position])
    if first < 0x80:
        return first, position + 1
    length = 2 if first < 0xE0 else (3 if first < 0xF0 else 4)
    code = first & (0x7F >> length)
    stop = minimum(position + length, end)
    for i in range(position + 1, stop):
        code = (code << 6) | (np.int64(text[i]) & 0x3F)
    return code, stop


@inline_kernel
def bucket(hashed, shift):
    """Return the top bits of a mixed hash."""
    mixed = (hashed ^ (hashed >> _SHIFT_32)) * _MIX
    mixed = (mixed ^ (mixed >> _SHIFT_32)) * _JOIN
    return np.uint32(mixed >> shift)


@kernel
def character_grams(text, start, stop, low, high, shift, found, n_found):
    """Append the buckets of the character n-grams of a word with its opening and closing markers."""
    position = start - 1  # of the opening marker
    while position < stop:
        hashed = _OFFSET ^ _CHARACTERS
        at = position
        length = 0
        while length < high and at <= stop:
            if at < start:
                hashed = (hashed ^ _OPENING) * _PRIME
                at = start
            elif at == stop:
                hashed = (hashed ^ _CLOSING) * _PRIME
                at += 1
            else:
                _, following = character_at(text, at, stop)
                for i in range(at, following):
                    hashed = (hashed ^ np.uint64(text[i])) * _PRIME
                at = following
            length += 1
            if length >= low:
                found[n_found] = bucket(hashed, shift)
                n_found += 1
        if position < start:
            position = start
        else:
            _, position = character_at(text, position, stop)
    return n_found


@inline_kernel
def word_grams(recent, n_words, low, high, shift, found, n_found):
    """Append the buckets of the word n-grams that end with the last word of the ring buffer `recent`."""
    size = len(recent)
    hashed = _ZERO
    for length in range(1, minimum(high, n_words) + 1):
        word = recent[(n_words - length) % size]
        hashed = word if length == 1 else (hashed * _JOIN + word) ^ (hashed >> _SHIFT_32)
        if length >= low:
            found[n_found] = bucket(hashed, shift)
            n_found += 1
    return n_found


@kernel
def features_of_text(text, start, end, words, characters, shift, recent, found):
    """Write the buckets of all n-grams of a text, in order, to `found`; return their number."""
    n_found = 0
    n_words = 0
    position = start
    while position < end:
        code, following = character_at(text, position, end)
        if not is_word_character(code):
            position = following
            continue
        word_start = position
        hashed = _OFFSET
        while True:
            for i in range(position, following):
                hashed = (hashed ^ np.uint64(text[i])) * _PRIME
            position = following
            if position >= end:
                break
            code, following = character_at(text, position, end)
            if not is_word_character(code):
                break
        recent[n_words % len(recent)] = hashed
        n_words += 1
        n_found = word_grams(recent, n_words, words[0], words[1], shift, found, n_found)
        if characters[1] > 0:
            n_found = character_grams(text, word_start, position, characters[0], characters[1], shift, found, n_found)
    return n_found


@kernel
def sort_buckets(found, spare, n_found, bits):
    """Sort `found[:n_found]`, numbers of `bits` bits: insertion sort if few, radix sort if many."""
    if n_found <= _FEW:
        for i in range(1, n_found):
            moving = found[i]
            j = i
            while j > 0 and found[j - 1] > moving:
                found[j] = found[j - 1]
                j -= 1
            found[j] = moving
        return
    passes = 2 * ((bits + 21) // 22)  # an even number, so that the result is in `found`
    digit_bits = (bits + passes - 1) // passes
    n_digits = 1 << digit_bits
    mask = np.uint32(n_digits - 1)
    starts = empty(n_digits + 1, np.int64)
    source, target = found, spare
    for step in range(passes):
        shift = np.uint32(step * digit_bits)
        starts[:] = 0
        for i in range(n_found):
            starts[np.uint64((source[i] >> shift) & mask) + _ONE] += 1
        for digit in range(n_digits):
            starts[digit + 1] += starts[digit]
        for i in range(n_found):
            place = np.uint64((source[i] >> shift) & mask)
            target[starts[place]] = source[i]
            starts[place] += 1
        source, target = target, source


@kernel
def hash_texts(text, offsets, options, recent, found, spare, indptr, indices, values):
    """Hash texts into a CSR matrix and return its number of entries; text i is `text[offsets[i]:offsets[i+1]]`.

    The options, a plain tuple, are the minimum and maximum length of n-grams of words and of characters (a maximum of
    zero means none), the bits of a column, whether to take logarithms of counts, and whether rows get unit length.
    `found` must have room for the n-grams of any text, `indices` and `values` for the distinct n-grams of all texts.
    """
    words, characters, bits, log_counts, unit_length = options
    shift = np.uint64(64) - np.uint64(bits)
    size = 0
    indptr[0] = 0
    for row in range(len(offsets) - 1):
        n_found = features_of_text(text, offsets[row], offsets[row + 1], words, characters, shift, recent, found)
        sort_buckets(found, spare, n_found, bits)
        first = size
        i = 0
        squares = 0.0
        while i < n_found:
            same = i + 1
            while same < n_found and found[same] == found[i]:
                same += 1
            value = 1.0 + math.log(same - i) if log_counts else float(same - i)
            indices[size] = found[i]
            values[size] = value
            squares += value * value
            size += 1
            i = same
        if unit_length and n_found > 0:
            scale = 1.0 / math.sqrt(squares)
            for j in range(first, size):
                values[j] = np.float32(values[j] * scale)
        indptr[row + 1] = size
    return size


# --- word counts ---------------------------------------------------------------------------------------


@inline_kernel
def _same_bytes(text, start, stop, other, first, end):
    if stop - start != end - first:
        return False
    while start < stop and text[start] == other[first]:
        start += _ONE
        first += _ONE
    return start == stop


@inline_kernel
def _find_word(text, start, stop, hashed, words):
    """Return the slot of the word, or a free one."""
    slots, hashes, starts, arena = words
    mask = np.uint64(slots.size - 1)
    at = np.uint64(bucket(hashed, _ZERO)) & mask
    while slots[at] >= 0:
        word = np.uint64(slots[at])
        if hashes[word] == hashed and _same_bytes(
            text, start, stop, arena, np.uint64(starts[word]), np.uint64(starts[word + _ONE])
        ):
            break
        at = (at + _ONE) & mask
    return at


@kernel
def count_words(text, offsets, is_word, grow, words, n_words, found, spare, bits, out):
    """Count the words of two characters or more of every text; the word numbers of a text are sorted and distinct.

    `is_word` is true for the code points of word characters. If `grow`, new words get the next numbers, for which there
    must be room. Numbers have at most `bits` bits. The known words are a plain tuple: a hash table of word numbers (-1
    where free), hashes, starts, and bytes, of which word j is starts[j] to starts[j + 1]; so is `out`, a CSR matrix.
    Returns the number of known words.
    """
    slots, hashes, starts, arena = words
    indptr, indices, counts = out
    n = 0
    for i in range(offsets.size - 1):
        position, end, n_found = np.uint64(offsets[i]), np.uint64(offsets[i + 1]), 0
        while position < end:
            start, length, hashed = position, _ZERO, _OFFSET
            following = position
            while position < end:
                byte = np.uint64(text[position])
                if byte < _ASCII_END:
                    if not is_word[byte]:
                        following = position + _ONE
                        break
                    hashed = (hashed ^ byte) * _PRIME
                    position += _ONE
                else:
                    code, after = character_at(text, np.int64(position), np.int64(end))
                    following = np.uint64(after)
                    if not is_word[code]:
                        break
                    while position < following:
                        hashed = (hashed ^ np.uint64(text[position])) * _PRIME
                        position += _ONE
                length += _ONE
            if length > _ONE:
                at = _find_word(text, start, position, hashed, words)
                if slots[at] < 0 and grow:
                    first = np.uint64(starts[n_words])
                    for b in range(position - start):
                        arena[first + np.uint64(b)] = text[start + np.uint64(b)]
                    starts[n_words + 1] = first + position - start
                    hashes[n_words], slots[at] = hashed, n_words
                    n_words += 1
                if slots[at] >= 0:
                    found[n_found] = np.uint32(slots[at])
                    n_found += 1
            position = maximum(position, following)
        sort_buckets(found, spare, n_found, bits)
        for j in range(n_found):
            if j == 0 or found[j] != found[j - 1]:
                indices[n], counts[n] = found[j], 0.0
                n += 1
            counts[n - 1] += np.float32(1.0)
        indptr[i + 1] = n
    return n_words


@kernel
def enter_words(n_words, words):
    """Insert words into an empty table, and store their hashes."""
    slots, hashes, starts, arena = words
    for word in range(n_words):
        hashed, first, end = _OFFSET, np.uint64(starts[word]), np.uint64(starts[word + 1])
        for b in range(first, end):
            hashed = (hashed ^ np.uint64(arena[np.uint64(b)])) * _PRIME
        hashes[word] = hashed
        slots[_find_word(arena, first, end, hashed, words)] = word


@kernel
def renumber(indptr, indices, counts, place_of):
    """Renumber words by `place_of` in place, and drop those with -1; returns the number of remaining entries."""
    n, first = 0, indptr[0]
    for i in range(indptr.size - 1):
        last = indptr[i + 1]
        for q in range(first, last):
            place = place_of[indices[q]]
            if place >= 0:
                indices[n], counts[n] = place, counts[q]
                n += 1
        first, indptr[i + 1] = last, n
    return n


@kernel
def tally(indices, counts, in_texts, times):
    """Add the document frequency and the number of occurrences of every word."""
    for q in range(indices.size):
        in_texts[indices[q]] += 1
        times[indices[q]] += np.int64(counts[q])
