"""Calls of the parsing kernels on blocks of lines: scratch arrays, deferred numbers, malformed lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from treemax.formats.errors import BadLines, quoted
from treemax.kernels import parse

_DEFERRED = 4096  # numbers per call that the kernel cannot round exactly and Python parses
_BAD = 256  # malformed lines of a block that are reported one by one; further ones are only counted

_MESSAGES = {
    parse.BAD_LABEL: "the label is not an integer",
    parse.LABEL_RANGE: "the label is out of range ({labels})",
    parse.BAD_INDEX: "expected index:value, the index a whole number",
    parse.INDEX_RANGE: "the index is out of range ({indices})",
    parse.BAD_VALUE: "the value is not a finite number",
    parse.VALUE_RANGE: "the value is too large for float32",
    parse.NO_BAR: "no '|' before the features",
    parse.SUM_RANGE: "the sum of the values of one index overflows float32",
}


@dataclass(frozen=True)
class Limits:
    """Half-open ranges of the labels and of the indices of a file."""

    first_label: int
    label_limit: int
    first_index: int
    index_limit: int

    def describe(self, error: int) -> str:
        """Return the message of an error code."""
        return _MESSAGES[error].format(
            labels=f"{self.first_label} to {self.label_limit - 1}",
            indices=f"{self.first_index} to {self.index_limit - 1}",
        )


@dataclass(frozen=True)
class Parsed:
    """The rows of a block and their line numbers."""

    lines: NDArray[np.int64]
    label_starts: NDArray[np.int64]
    labels: NDArray[np.int64]
    row_starts: NDArray[np.int64]
    indices: NDArray[np.uint32]
    values: NDArray[np.float32]


class Scratch:
    """Work arrays of the kernels, reused between blocks and grown on demand."""

    def __init__(self) -> None:
        self.size = -1
        self.deferred = np.empty((_DEFERRED, 2), dtype=np.int64)
        self.bad = np.empty((_BAD, 3), dtype=np.int64)
        self.counts = np.zeros(8, dtype=np.int64)

    def fit(self, n_bytes: int) -> None:
        """Allocate for a block of `n_bytes`. Pages that are never touched cost nothing."""
        if n_bytes <= self.size:
            return
        rows, labels, values = parse.capacity(n_bytes)
        self.size = n_bytes
        self.lines = np.empty(rows, dtype=np.int64)
        self.label_spans = np.empty((rows, 2), dtype=np.int64)
        self.rows = parse.ParsedRows(
            np.empty(rows, dtype=np.int64), np.empty(labels, dtype=np.int64), np.empty(rows, dtype=np.int64),
            np.empty(values, dtype=np.uint32), np.empty(values, dtype=np.float32),
        )  # fmt: skip
        self.buffers = parse.Buffers(
            np.empty(values, dtype=np.uint64), np.empty(values, dtype=np.uint64), np.empty(values, dtype=np.float32)
        )

    def parsed(self, first: int) -> Parsed:
        """Return a copy of the kernel's results."""
        n_rows, n_labels, n_values = map(int, self.counts[2:5])
        return Parsed(
            self.lines[:n_rows] + first,
            self.rows.label_starts[: n_rows + 1].copy(),
            self.rows.labels[:n_labels].copy(),
            self.rows.starts[: n_rows + 1].copy(),
            self.rows.indices[:n_values].copy(),
            self.rows.values[:n_values].copy(),
        )

    def run(self, block: NDArray[np.uint8], kernel: Callable[..., None]) -> None:
        """Call the kernel until it defers no number; `kernel` gets the last arguments of all kernels."""
        at: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        known: NDArray[np.float64] = np.empty(0, dtype=np.float64)
        while True:
            kernel(parse.Numbers(at, known, self.deferred), self.bad, self.counts)
            deferred = self.deferred[: min(int(self.counts[1]), _DEFERRED)]
            if not len(deferred):
                return
            parsed = [float(block[start:stop].tobytes()) for start, stop in deferred]
            with np.errstate(over="ignore"):
                rounded = np.array(parsed).astype(np.float32).astype(np.float64)
            at, known = np.concatenate([at, deferred[:, 0]]), np.concatenate([known, rounded])
            order = np.argsort(at)
            at, known = at[order], known[order]

    def report(self, block: NDArray[np.uint8], first: int, limits: Limits, bad: BadLines) -> None:
        """Report the malformed lines that the kernel found."""
        n_bad = int(self.counts[5])
        for line, place, error in self.bad[: min(n_bad, _BAD)].tolist():
            bad.report(first + line, f"{limits.describe(error)}, got {quoted(_token(block, place))}")
        bad.count_more(max(0, n_bad - _BAD))


def _token(block: NDArray[np.uint8], place: int) -> bytes:
    """Return the token at `place`, up to the next white space."""
    line = block[place : place + 200].tobytes().split(b"\n", 1)[0]
    return (line.split(None, 1) or [b""])[0]


class BlockParser:
    """Parser of blocks of XMC or svmlight lines."""

    def __init__(self, limits: Limits, keep_blank: bool) -> None:
        self._limits = limits
        self._keep_blank = keep_blank
        self._scratch = Scratch()

    def parse(self, block: NDArray[np.uint8], first: int, bad: BadLines) -> Parsed:
        """Parse `block`, whose first line has the number `first`."""
        scratch, limits = self._scratch, self._limits
        scratch.fit(len(block))
        ranges = parse.Ranges(
            np.int64(limits.first_label), np.int64(limits.label_limit),
            np.uint64(limits.first_index), np.uint64(limits.index_limit),
        )  # fmt: skip
        scratch.run(
            block,
            lambda *shared: parse.parse_rows(
                block, self._keep_blank, ranges, scratch.lines, scratch.rows, scratch.buffers, *shared
            ),
        )
        scratch.report(block, first, limits, bad)
        return scratch.parsed(first)
