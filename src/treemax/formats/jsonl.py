"""JSON lines: `{"text": ..., "labels": [...]}` or `{"features": ..., "labels": [...]}`, one object a line.

A number "weight" is the weight of the example.

Features are a list of numbers (dense), an object with integers as keys (columns), or an object with any
names as keys (hashed, as Vowpal Wabbit hashes names outside a namespace). All examples must have the kind of
features of the first. Other keys are ignored; blank lines are skipped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import IO, Any, NoReturn

import numpy as np

from treemax.formats.errors import BadLines, quoted
from treemax.formats.examples import Examples, weight_of, weights_of
from treemax.formats.kinds import LabelKind
from treemax.formats.numbers import shortest
from treemax.formats.options import Options
from treemax.formats.streams import LineReader
from treemax.formats.vw import hash_name
from treemax.inputs.rows import MAX_FEATURES, SparseRows

_OVERFLOW = float(2**128 - 2**103)  # rounds to infinity in float32, as do larger values
_KIND_NAMES = {
    "text": "a text",
    "dense": "a list of numbers",
    "object": "an empty object",  # columns or names: the next example decides
    "sparse": "an object of columns",
    "named": "named features",
}


def read_jsonl(source: LineReader, options: Options, bad: BadLines) -> Iterator[Examples]:
    """Yield the examples of a JSON lines file in blocks."""
    parser = _Parser(options)
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
            yield parser.examples(labels, features, weights)
    if empty:
        yield parser.examples([], [], [])


class _Parser:
    """Parser of lines, with the kind of features and labels of the file."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._labels = LabelKind()
        self._kind: str | None = None
        self._width = options.n_features or 1

    def parse(self, line: bytes) -> tuple[list[Any], Any, float]:
        """Return the labels, the features and the weight of a line."""
        item = _load(line)
        if "text" not in item and "features" not in item:
            raise ValueError(f'neither "text" nor "features" in the object, got {quoted(line)}')
        if "text" in item and "features" in item:
            raise ValueError('both "text" and "features" in the object; expected one of them')
        labels, weight = _labels_of(item), _weight_of(item)
        self._labels.check(labels)
        features = self._text(item["text"]) if "text" in item else self._features(item["features"])
        return labels, features, weight

    def examples(self, labels: list[list[Any]], features: list[Any], weights: list[float]) -> Examples:
        """Build examples from parsed lines."""
        ragged, own = self._labels.labels(labels), weights_of(weights)
        if self._kind == "text" or (self._kind is None and not features):
            return Examples(ragged, texts=features, weights=own)
        if self._kind == "dense":
            dense = np.array(features, dtype=np.float32).reshape(len(features), self._width)
            return Examples(ragged, dense, weights=own)
        return Examples(ragged, self._sparse_rows(features), weights=own)

    def _expect(self, kind: str) -> None:
        if self._kind not in (None, kind) and not (self._kind == "object" and kind in ("sparse", "named")):
            raise ValueError(
                f"this example has {_KIND_NAMES[kind]}, those before it have {_KIND_NAMES[self._kind or '']}"
            )

    def _text(self, text: Any) -> str:
        self._expect("text")
        if not isinstance(text, str):
            raise ValueError(f'"text" is not a string, got {text!r:.40}')
        self._kind = "text"
        return text

    def _features(self, features: Any) -> Any:
        if isinstance(features, list):
            return self._dense(features)
        if not isinstance(features, dict):
            raise ValueError(f'"features" is neither a list nor an object, got {features!r:.40}')
        columns = all(name.isascii() and name.isdigit() for name in features)
        kind = "named" if not columns or self._kind == "named" else "sparse"
        self._expect(kind)
        pairs = self._hashed(features) if kind == "named" else self._columns(features)
        self._kind = kind if features else self._kind or "object"
        return _summed(pairs)

    def _dense(self, features: list[Any]) -> list[float]:
        self._expect("dense")
        if not features:
            raise ValueError('"features" is an empty list')
        expected = self._options.n_features if self._kind is None else self._width
        if expected is not None and len(features) != expected:
            raise ValueError(f'"features" has {len(features)} numbers, expected {expected}')
        values = [_number(value, "a feature") for value in features]
        self._kind, self._width = "dense", len(values)
        return values

    def _columns(self, features: dict[str, Any]) -> list[tuple[int, float]]:
        limit = self._options.n_features or MAX_FEATURES
        pairs = []
        for name, value in features.items():
            if len(name) > 18 or int(name) >= limit:
                raise ValueError(f"the column is out of range (0 to {limit - 1}), got {quoted(name)}")
            pairs.append((int(name), _number(value, f"feature {quoted(name)}")))
        self._width = max(self._width, 1 + max((column for column, _ in pairs), default=0))
        return pairs

    def _hashed(self, features: dict[str, Any]) -> list[tuple[int, float]]:
        columns = 2**self._options.bits
        self._width = max(self._width, columns)
        return [
            (hash_name(name) % columns, _number(value, f"feature {quoted(name)}")) for name, value in features.items()
        ]

    def _sparse_rows(self, features: list[list[tuple[int, float]]]) -> SparseRows:
        starts = np.zeros(len(features) + 1, dtype=np.int64)
        np.cumsum([len(row) for row in features], out=starts[1:])
        indices = np.array([column for row in features for column, _ in row], dtype=np.uint32)
        values = np.array([value for row in features for _, value in row], dtype=np.float32)
        return SparseRows(starts, indices, values, self._width)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a finite number")


def _load(line: bytes) -> dict[str, Any]:
    text = line.decode("utf-8")
    try:
        item = json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg} at column {error.colno}), got {quoted(line)}") from None
    except RecursionError:
        raise ValueError(f"the JSON is nested too deeply, got {quoted(line)}") from None
    if not isinstance(item, dict):
        raise ValueError(f"not a JSON object, got {quoted(line)}")
    if b"\\ud" in line or b"\\uD" in line:  # may be an unpaired surrogate
        try:
            json.dumps(item, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError(f"unpaired surrogate, got {quoted(line)}") from None
    return item


def _labels_of(item: dict[str, Any]) -> list[Any]:
    if "labels" in item:
        labels = item["labels"]
        if not isinstance(labels, list):
            raise ValueError(f'"labels" is not a list, got {labels!r:.40}; use "label" for a single label')
    else:
        labels = [] if item.get("label") is None else [item["label"]]
    return [_label(label) for label in labels]


def _weight_of(item: dict[str, Any]) -> float:
    weight = item.get("weight", 1)
    if not isinstance(weight, int | float) or isinstance(weight, bool):
        raise ValueError(f'"weight" is not a number, got {weight!r:.40}')
    return weight_of(str(weight))


def _label(label: Any) -> str | int:
    if isinstance(label, str):
        return label
    if isinstance(label, float) and label.is_integer():
        label = int(label)
    if not isinstance(label, int) or isinstance(label, bool) or not -(2**63) <= label < 2**63:
        raise ValueError(f"the label is neither a string nor a 64-bit integer, got {label!r:.40}")
    return label


def _number(value: Any, what: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError(f"the value of {what} is not a number, got {value!r:.40}")
    if not abs(value) < _OVERFLOW:
        raise ValueError(f"the value of {what} is too large for float32, got {value!r:.40}")
    return value


def _summed(pairs: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Sort pairs by column and sum the values of the same column."""
    totals = dict(pairs)
    if len(totals) < len(pairs):
        totals = dict.fromkeys(totals, 0.0)
        for column, value in pairs:
            totals[column] = float(np.float32(totals[column] + float(np.float32(value))))
            _number(totals[column], f"column {column}")
    return sorted(totals.items())


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
