"""JSON lines: `{"text": ..., "labels": [...]}` or `{"features": ..., "labels": [...]}`, one object a line.

A number "weight" is the weight of the example.

Features are a list of numbers (dense), an object with integers as keys (columns), or an object with any
names as keys (hashed, as Vowpal Wabbit hashes names outside a namespace). All examples must have the kind of
features of the first. Other keys are ignored; blank lines are skipped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import IO, Any

import numpy as np

from treemax.formats.errors import BadLines, quoted
from treemax.formats.examples import Examples, labels_of_kind, weights_of
from treemax.formats.lines import JsonParser
from treemax.formats.numbers import shortest
from treemax.formats.options import Options
from treemax.formats.streams import LineReader
from treemax.inputs.rows import SparseRows


def read_jsonl(source: LineReader, options: Options, bad: BadLines) -> Iterator[Examples]:
    """Yield the examples of a JSON lines file in blocks."""
    parser = JsonParser(options)
    empty = True
    for first, lines in source.text_blocks():
        labels: list[list[Any]] = []
        features: list[Any] = []
        weights: list[float] = []
        for number, line in enumerate(lines, first):
            if not line.strip():
                continue
            try:
                row = parser.parse(line)
            except UnicodeDecodeError as error:
                bad.report(number, f"not UTF-8 at byte {error.start + 1} of the line, got {quoted(line)}")
            except ValueError as error:
                bad.report(number, str(error))
            else:
                labels.append(row[0])
                features.append(row[1])
                weights.append(row[2])
        if labels:  # before the first example, it is unknown whether there are texts or features
            empty = False
            yield _examples(parser, labels, features, weights)
    if empty:
        yield _examples(parser, [], [], [])


def _examples(parser: JsonParser, labels: list[list[Any]], features: list[Any], weights: list[float]) -> Examples:
    """Build examples from parsed lines."""
    ragged, row_weights = labels_of_kind(labels, parser.label_kind.strings), weights_of(weights)
    if parser.kind == "text" or (parser.kind is None and not features):
        return Examples(ragged, texts=features, weights=row_weights)
    if parser.kind == "dense":
        dense = np.array(features, dtype=np.float32).reshape(len(features), parser.width)
        return Examples(ragged, dense, weights=row_weights)
    return Examples(ragged, _sparse_rows(features, parser.width), weights=row_weights)


def _sparse_rows(features: list[list[tuple[int, float]]], width: int) -> SparseRows:
    starts = np.zeros(len(features) + 1, dtype=np.int64)
    np.cumsum([len(row) for row in features], out=starts[1:])
    indices = np.array([column for row in features for column, _ in row], dtype=np.uint32)
    values = np.array([value for row in features for _, value in row], dtype=np.float32)
    return SparseRows(starts, indices, values, width)


def write_jsonl(chunks: Iterable[Examples], target: IO[bytes]) -> None:
    """Write text as "text", dense rows as a list, sparse rows as an object of columns; labels as a list."""
    for chunk in chunks:
        weights = ["1"] * len(chunk) if chunk.weights is None else shortest(chunk.weights)
        for labels, (key, value), weight in zip(chunk.labels, _features_to_write(chunk), weights):
            item = {key: value, "labels": labels}
            if weight != "1":
                item["weight"] = _json_number(weight)
            try:
                line = json.dumps(item, ensure_ascii=False).encode("utf-8")
            except UnicodeEncodeError as error:
                raise ValueError(f"An unpaired surrogate cannot be written as UTF-8: {error}") from None
            target.write(line + b"\n")


def _features_to_write(chunk: Examples) -> Iterator[tuple[str, Any]]:
    if chunk.texts is not None:
        yield from (("text", text) for text in chunk.texts)
    elif isinstance(chunk.rows, SparseRows):
        rows = chunk.rows
        for first, last in zip(rows.indptr, rows.indptr[1:]):
            values = map(_json_number, shortest(rows.values[first:last]))
            yield "features", dict(zip(map(str, rows.indices[first:last].tolist()), values))
    else:
        assert chunk.rows is not None
        yield from (("features", [_json_number(value) for value in shortest(row)]) for row in chunk.rows)


def _json_number(value: str) -> int | float:
    """Return the number that JSON writes with the digits of `value`."""
    return int(value) if value.lstrip("-").isdigit() and value != "-0" else float(value)
