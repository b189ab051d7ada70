"""Vowpal Wabbit's format: `label importance 'tag |namespace:weight name:value name ...`.

Names are hashed as in Vowpal Wabbit, so that features get the same columns: a name of digits is that number
plus the hash of its namespace; any other is hashed by MurmurHash3 with the hash of its namespace as seed.
Features without a namespace have the namespace hash 0. The constant feature of Vowpal Wabbit is not added.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import IO

import numpy as np
from numpy.typing import NDArray

from treemax.formats.blocks import Limits, Parsed, Scratch
from treemax.formats.errors import BadLines, quoted
from treemax.formats.examples import Examples, integer_labels, keep_rows, labels_of_kind, weights_of
from treemax.formats.kinds import NUMBER, LabelKind, weight_of
from treemax.formats.numbers import pairs, shortest, sparse_rows_to_write
from treemax.formats.options import Options
from treemax.formats.streams import LineReader
from treemax.inputs.labels import RaggedLabels
from treemax.inputs.rows import SparseRows
from treemax.kernels import parse

_INTEGERS = re.compile(r"[+-]?\d+(?:,[+-]?\d+)*", re.ASCII)
_LIMITS = Limits(-(2**62), 2**62, 0, 2**32 - 1)


def hash_name(name: str, namespace: str = "") -> int:
    """Return the 64-bit hash of a feature name; its column is the hash modulo the number of columns.

    >>> hash_name("12"), hash_name("price") % 2**18
    (12, 229902)
    """
    seed = 0 if not namespace else hash_name(namespace)
    return int(parse.name_hash(np.frombuffer(name.encode(), dtype=np.uint8), np.uint64(seed)))


def read_vw(source: LineReader, options: Options, bad: BadLines) -> Iterator[Examples]:
    """Yield the examples of a Vowpal Wabbit file in blocks."""
    width = _width(options)
    mask = np.uint64(2**options.bits - 1)
    kind = LabelKind()
    scratch = Scratch()
    nothing = True
    for first, block in source.blocks():
        parsed = _parse(block, first, mask, scratch, bad)
        rows = SparseRows(parsed.row_starts, parsed.indices, parsed.values, width)
        if scratch.counts[6] or kind.strings:
            labels, rows, weights = _other_labels(block, parsed, rows, scratch, kind, bad)
        else:
            kind.strings = False if len(parsed.labels) else kind.strings
            labels, weights = integer_labels(parsed.label_starts, parsed.labels), None
        nothing = False
        yield Examples(labels, rows, weights=weights)
    if nothing:
        starts = np.zeros(1, dtype=np.int64)
        rows = SparseRows(starts, np.empty(0, dtype=np.uint32), np.empty(0, dtype=np.float32), width)
        yield Examples(labels_of_kind([], kind.strings), rows)


def _width(options: Options) -> int:
    width = 2**options.bits
    if options.n_features is not None and options.n_features < width:
        raise ValueError(
            f"n_features={options.n_features} is less than the 2**{options.bits} columns that names are "
            "hashed into; set bits instead."
        )
    return options.n_features or width


def _parse(block: NDArray[np.uint8], first: int, mask: np.uint64, scratch: Scratch, bad: BadLines) -> Parsed:
    scratch.fit(len(block))
    scratch.run(
        block,
        lambda *shared: parse.parse_named_rows(
            block, mask, scratch.lines, scratch.label_spans, scratch.rows, scratch.buffers, *shared
        ),
    )
    scratch.report(block, first, _LIMITS, bad)
    return scratch.parsed(first)


def _other_labels(
    block: NDArray[np.uint8], parsed: Parsed, rows: SparseRows, scratch: Scratch, kind: LabelKind, bad: BadLines
) -> tuple[RaggedLabels, SparseRows, NDArray[np.float32] | None]:
    """Return the labels, rows and weights of a block with labels that are not integers, or with weights."""
    data = block.tobytes()
    spans = scratch.label_spans[: len(rows)].tolist()
    lists: list[list[str] | list[int]] = []
    weights: list[float] = []
    keep = np.ones(len(rows), dtype=bool)
    for row, (start, bar) in enumerate(spans):
        try:
            labels, weight = _before_bar(data[start:bar].decode("utf-8"))
            lists.append(kind.accept(labels))
            weights.append(weight)
        except UnicodeDecodeError:
            keep[row] = False
            bad.report(int(parsed.lines[row]), f"not UTF-8, got {quoted(data[start:bar])}")
        except ValueError as error:
            keep[row] = False
            bad.report(int(parsed.lines[row]), str(error))
    return labels_of_kind(lists, kind.strings), rows if keep.all() else keep_rows(rows, keep), weights_of(weights)


def _before_bar(text: str) -> tuple[list[str], float]:
    """Parse the labels and the importance before the first bar: `[labels [importance]] ['tag or tag|]`."""
    fields = text.split()
    if fields and fields[-1].startswith("'"):
        fields.pop()
    elif fields and not text[-1].isspace():
        if len(fields) == 1 and _INTEGERS.fullmatch(fields[0]):
            raise ValueError(f"no space between the label and '|', got {quoted(text + '|')}")
        fields.pop()  # a word adjacent to the bar is a tag
    if len(fields) > 2:
        raise ValueError(f"expected a label, an importance and a tag before '|', got {quoted(text)}")
    weight = _importance(fields[1]) if len(fields) == 2 else 1.0
    labels = fields[0].split(",") if fields else []
    if not all(labels):
        raise ValueError(f"a label is empty: two commas, or one at the end, got {quoted(text)}")
    return labels, weight


def _importance(text: str) -> float:
    if not NUMBER.fullmatch(text):
        raise ValueError(f"the importance after the label is not a number, got {quoted(text)}")
    return weight_of(text)


def write_vw(chunks: Iterable[Examples], target: IO[bytes]) -> None:
    """Write features as `| index:value` in the unnamed namespace, where a number is its own hash."""
    n_rows = 0
    for chunk in chunks:
        features = pairs(sparse_rows_to_write(chunk, "vw"))
        weights = repeat(None) if chunk.weights is None else shortest(chunk.weights)
        for row, (labels, text, weight) in enumerate(zip(chunk.labels, features, weights), n_rows):
            joined = ",".join(_checked(label, row) for label in labels)
            if weight not in (None, "1"):
                if not joined:
                    raise ValueError(f"The vw format cannot hold the weight {weight} of row {row}, which has no label.")
                joined = f"{joined} {weight}"
            target.write(b"%s | %s\n" % (joined.encode(), text) if joined else b"| %s\n" % text)
        n_rows += len(chunk)


def _checked(label: str | int, row: int) -> str:
    text = str(label)
    if not text or any(character in ",|" or character.isspace() for character in text) or text[0] == "'":
        raise ValueError(
            f"The vw format cannot hold the label {quoted(text)} of row {row}: a label has no white space, "
            "comma or '|', and does not begin with an apostrophe."
        )
    return text
