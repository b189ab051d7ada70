"""Linear scorers of sparse rows as small hash tables, one for each feature.

An entry is a position in a bucket: bucket * 8 + position.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from treemax.kernels import atomic, vector
from treemax.kernels.buckets import LANES, matches
from treemax.kernels.intrinsics import reinterpret
from treemax.kernels.jit import bare_inline_kernel, bare_kernel, fast_inline_kernel

MIX = np.uint64(0x9E3779B97F4A7C15)
BUCKET_WORDS = 2 * LANES  # eight owners, numbered from 1 (0 is free), and their eight weights
FULL = 6  # mean entries per bucket at which a table of several buckets grows
NOWHERE = np.uint64(0xFFFFFFFFFFFFFFFF)
_ZERO = np.float32(0.0)
SIZE_BITS, _ENTRIES, _START = np.uint64(31), np.uint64(5), np.uint64(32)
_ONE, _LANES, _WORDS = np.uint64(1), np.uint64(LANES), np.uint64(BUCKET_WORDS)
_LANE_BITS, _HALF = np.uint64(3), np.uint64(32)


class SparseScorers(NamedTuple):
    """One linear scorer per owner, stored as a small hash table from owners to weights for every feature.

    Scoring a row looks up its owners in the tables of its features, each a contiguous piece of memory, small for a
    rare feature. A table has one or more buckets of a cache line, with eight owners and their weights, which are
    compared at once. Tables are consecutive; a full one moves to the end with twice the size, and leaves a hole.
    """

    tables: np.ndarray  # of a feature: its first bucket (32 bits), its entries (27), log2 of its buckets (5); or 0
    buckets: np.ndarray  # words: owners and the bits of weights; aligned
    entry_squares: np.ndarray  # eight per bucket
    used: np.ndarray  # buckets in use; a lock; buckets reserved for rows being learned; 1: single thread
    bias: np.ndarray
    bias_squares: np.ndarray


@bare_inline_kernel
def n_entries(word):
    return word >> _ENTRIES & np.uint64(0x7FFFFFF)


@bare_inline_kernel
def table_capacity(bits):
    """Return the capacity of a table: a single bucket may be full, several must keep free entries."""
    return np.uint64(FULL) << bits if bits else _LANES


@bare_inline_kernel
def _home(word, wanted):
    """Return the first bucket to probe for an owner, and the mask of the table's buckets."""
    last = (_ONE << (word & SIZE_BITS)) - _ONE
    return (np.uint64(wanted) * MIX) >> _HALF & last, last


@bare_inline_kernel
def _entry(buckets, word, wanted):
    """Return the entry of an owner, numbered from 1, in a table."""
    if word == 0:
        return NOWHERE
    at, last = _home(word, wanted)
    for _ in range(last + _ONE):
        bucket = (word >> _START) + at
        bits = matches(buckets, bucket * _WORDS, wanted)
        if bits:
            return bucket * _LANES + np.uint64(vector.lowest_bit(bits))
        if buckets[bucket * _WORDS + _LANES - _ONE] == 0:
            return NOWHERE
        at = (at + _ONE) & last
    return NOWHERE


@bare_inline_kernel
def _weight_place(entry):
    """Return the position of the weight of an entry."""
    return (entry >> _LANE_BITS) * _WORDS + _LANES + (entry & (_LANES - _ONE))


@bare_inline_kernel
def weight_of(buckets, word, wanted):
    """Return the weight of an owner in a table, 0 if it is not there; branches only at full buckets."""
    at, _ = _home(word, wanted)
    place = ((word >> _START) + at) * _WORDS
    bits = matches(buckets, place, wanted)
    if (bits == 0) & (buckets[place + _LANES - _ONE] != 0):
        entry = _entry(buckets, word, wanted)
        return reinterpret(np.uint32(buckets[_weight_place(entry)]), np.float32) if entry != NOWHERE else _ZERO
    lane = np.uint64(vector.lowest_bit(bits | np.uint32(128)))
    weight = reinterpret(np.uint32(buckets[place + _LANES + lane]), np.float32)
    return weight if bits else _ZERO


@bare_inline_kernel
def _put(buckets, word, wanted):
    """Insert a new owner into a table with free entries; return its entry."""
    at, last = _home(word, wanted)
    while True:
        bucket = (word >> _START) + at
        free = matches(buckets, bucket * _WORDS, np.uint32(0))
        if free:
            lane = np.uint64(vector.lowest_bit(free))
            buckets[bucket * _WORDS + lane] = wanted
            return bucket * _LANES + lane
        at = (at + _ONE) & last


@bare_kernel
def _larger(scorers, feature):
    """Create the table of a feature, or double it; the caller holds the lock, and there is room."""
    word, buckets, squares = scorers.tables[feature], scorers.buckets, scorers.entry_squares
    bits = (word & SIZE_BITS) + _ONE if word else np.uint64(0)
    new = np.uint64(scorers.used[0]) << _START | n_entries(word) << _ENTRIES | bits
    scorers.used[0] += np.int64(1) << np.int64(bits)
    if word:
        first, n = word >> _START, _ONE << (word & SIZE_BITS)
        for entry in range(first * _LANES, (first + n) * _LANES):
            owner = buckets[_weight_place(entry) - _LANES]
            if owner:
                to = _put(buckets, new, owner)
                buckets[_weight_place(to)] = buckets[_weight_place(entry)]
                squares[to] = squares[entry]
    scorers.tables[feature] = new


@bare_kernel
def _new_entry(scorers, feature, wanted):
    """Insert an owner into the table of a feature, with the lock; return its entry."""
    while not (scorers.used[3] or atomic.acquire(scorers.used, 1)):  # acquiring the lock orders memory accesses
        pass
    entry = _entry(scorers.buckets, scorers.tables[feature], wanted)
    if entry == NOWHERE:
        word = scorers.tables[feature]
        if word == 0 or n_entries(word) == table_capacity(word & SIZE_BITS):
            _larger(scorers, feature)
        entry = _put(scorers.buckets, scorers.tables[feature], wanted)
        scorers.tables[feature] += _ONE << _ENTRIES
    atomic.release(scorers.used, 1)
    return entry


@fast_inline_kernel
def _change(step, total, rate, initial):
    return rate * step / np.sqrt(total + initial)


@bare_inline_kernel
def sparse_step(scorers, feature, owner, step, rate, initial, makes_new):
    wanted = np.uint32(owner + 1)
    entry = _entry(scorers.buckets, scorers.tables[feature], wanted)
    if entry == NOWHERE:
        if not makes_new:
            return
        entry = _new_entry(scorers, feature, wanted)
    total = scorers.entry_squares[entry] + step * step
    scorers.entry_squares[entry] = total
    place = _weight_place(entry)
    weight = reinterpret(np.uint32(scorers.buckets[place]), np.float32) - _change(step, total, rate, initial)
    scorers.buckets[place] = reinterpret(np.float32(weight), np.uint32)


@bare_kernel
def repack(old, new):
    """Copy all tables to new buckets, without holes."""
    end = np.uint64(0)
    for feature in range(old.tables.size):
        word = old.tables[feature]
        if word:
            first, n = word >> _START, _ONE << (word & SIZE_BITS)
            new.tables[feature] = word & np.uint64(0xFFFFFFFF) | end << _START
            for at in range(n * _WORDS):
                new.buckets[end * _WORDS + at] = old.buckets[first * _WORDS + at]
            for at in range(n * _LANES):
                new.entry_squares[end * _LANES + at] = old.entry_squares[first * _LANES + at]
            end += n
    new.used[0] = np.int64(end)


@bare_kernel
def list_entries(scorers, owners, weights, squares):
    """List the entries of all tables, feature by feature."""
    n = 0
    for word in scorers.tables:
        if word:
            first, size = word >> _START, _ONE << (word & SIZE_BITS)
            for entry in range(first * _LANES, (first + size) * _LANES):
                place = _weight_place(entry)
                if scorers.buckets[place - _LANES]:
                    owners[n] = scorers.buckets[place - _LANES] - np.uint32(1)
                    weights[n] = reinterpret(np.uint32(scorers.buckets[place]), np.float32)
                    squares[n] = scorers.entry_squares[entry]
                    n += 1


@bare_kernel
def fill(scorers, entries, owners, weights, squares):
    """Insert listed entries into empty tables, `entries` per feature; return False if an owner is repeated."""
    n = 0
    for feature in range(entries.size):
        word = scorers.tables[feature]
        for _ in range(entries[feature]):
            wanted = owners[n] + np.uint32(1)
            if _entry(scorers.buckets, word, wanted) != NOWHERE:
                return False
            entry = _put(scorers.buckets, word, wanted)
            scorers.buckets[_weight_place(entry)] = reinterpret(np.float32(weights[n]), np.uint32)
            scorers.entry_squares[entry] = squares[n]
            n += 1
    return True
