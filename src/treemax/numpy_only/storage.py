"""How model files store strings and sorted integers: as arrays of bytes, with NumPy alone."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

LONGEST_CODE = 5  # bytes, for differences of 32-bit numbers


class Strings:
    """Strings that are stored as UTF-8 bytes and offsets, decoded on demand.

    >>> Strings(**string_arrays(["cat", "dog"]))[1]
    'dog'
    """

    def __init__(self, bytes: NDArray[np.uint8], offsets: NDArray[np.int64]) -> None:
        self._text, self._offsets = bytes, offsets

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, number: int) -> str:
        first, last = self._offsets[number : number + 2].tolist()
        return self._text[first:last].tobytes().decode("utf-8", "surrogatepass")

    def all(self) -> list[str]:
        """Return all strings, which is faster than one by one."""
        text = self._text.tobytes()
        return [text[a:b].decode("utf-8", "surrogatepass") for a, b in pairwise(self._offsets.tolist())]


def string_arrays(strings: Sequence[str] | NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Return the arguments of `Strings`."""
    encoded = [string.encode("utf-8", "surrogatepass") for string in strings]
    offsets = np.zeros(len(encoded) + 1, dtype=np.int64)
    np.cumsum([len(string) for string in encoded], out=offsets[1:])
    return {"bytes": np.frombuffer(b"".join(encoded), dtype=np.uint8), "offsets": offsets}


def encode_sorted(numbers: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Encode lists of ascending integers, `counts` per list, by their differences in LEB128.

    LEB128 has seven bits per byte, the lowest first; the last byte of a number is below 128.

    >>> encode_sorted(np.array([5, 305, 2]), np.array([2, 1])).tolist()
    [5, 172, 2, 2]
    """
    steps = np.diff(numbers, prepend=0)
    first = (np.cumsum(counts) - counts)[counts > 0]
    steps[first] = numbers[first]
    lengths = 1 + sum((steps >> shift > 0).astype(np.int64) for shift in range(7, 7 * LONGEST_CODE, 7))
    place = np.arange(int(np.sum(lengths))) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    parts = np.repeat(steps, lengths) >> (7 * place) & 0x7F
    return (parts | np.where(place < np.repeat(lengths, lengths) - 1, 0x80, 0)).astype(np.uint8)


def decode_sorted(text: NDArray[np.uint8], counts: NDArray[Any]) -> NDArray[np.int64]:
    """Invert `encode_sorted`; raise ValueError if the bytes are invalid.

    >>> decode_sorted(np.array([5, 172, 2, 2], dtype=np.uint8), np.array([2, 1])).tolist()
    [5, 305, 2]
    """
    ends, counts = np.flatnonzero(text < 0x80), counts.astype(np.int64)
    starts = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
    lengths = ends - starts + 1
    if lengths.sum() != len(text) or lengths.max(initial=0) > LONGEST_CODE:
        raise ValueError("the differences of sorted numbers are damaged")
    if counts.min(initial=0) < 0 or sum(counts.tolist()) != len(ends):
        raise ValueError(f"there are {len(ends)} sorted numbers, which is not the sum of the lengths of their lists")
    if len(text) == 0:
        return np.empty(0, dtype=np.int64)
    place = np.arange(len(text)) - np.repeat(starts, lengths)
    steps = np.add.reduceat((text & 0x7F).astype(np.int64) << (7 * place), starts)
    before = np.concatenate([[0], np.cumsum(steps)])
    numbers: NDArray[np.int64] = before[1:] - np.repeat(before[np.cumsum(counts) - counts], counts)
    return numbers
