"""Parsers of single lines of fastText and JSON lines, in Python alone: few rows do not wait for SciPy and Numba."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

import numpy as np

from treemax.formats.errors import quoted
from treemax.formats.kinds import LabelKind, weight_of
from treemax.formats.options import Options
from treemax.inputs.limits import MAX_FEATURES

PREFIX = "__label__"
BLANK = " \\t\\v\\f\\r"  # fastText separates words by ASCII white space only
_LABELS = re.compile(f"(?:[{BLANK}]*{PREFIX}[^{BLANK}]*(?=[{BLANK}]|$))+")
_WORD = re.compile(f"[^{BLANK}]+")
_OVERFLOW = float(2**128 - 2**103)  # rounds to infinity in float32, as do larger values
_KIND_NAMES = {
    "text": "a text",
    "dense": "a list of numbers",
    "object": "an empty object",  # columns or names: the next example decides
    "sparse": "an object of columns",
    "named": "named features",
}


def split_line(line: str) -> tuple[list[str], str]:
    """Split a line into its labels and its text.

    >>> split_line("__label__cat __label__pet a small animal")
    (['cat', 'pet'], 'a small animal')
    """
    match = _LABELS.match(line)
    if match is None:
        return [], line
    labels = [word[len(PREFIX) :] for word in _WORD.findall(match[0])]
    if not all(labels):
        raise ValueError(f"{PREFIX} without a name, got {quoted(line)}")
    return labels, line[match.end() + 1 :]


class JsonParser:
    """Parser of JSON lines, with the kind of features and labels of the file.

    Features are a text, a list of numbers, or sorted pairs of column and value; `width` is the number of columns.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self.label_kind = LabelKind()
        self.kind: str | None = None
        self.width = options.n_features or 1

    def parse(self, line: bytes) -> tuple[list[Any], Any, float]:
        """Return the labels, the features and the weight of a line."""
        item = _load(line)
        if "text" not in item and "features" not in item:
            raise ValueError(f'neither "text" nor "features" in the object, got {quoted(line)}')
        if "text" in item and "features" in item:
            raise ValueError('both "text" and "features" in the object; expected one of them')
        labels, weight = _labels_of(item), _weight_of(item)
        self.label_kind.check(labels)
        features = self._text(item["text"]) if "text" in item else self._features(item["features"])
        return labels, features, weight

    def _expect(self, kind: str) -> None:
        if self.kind not in (None, kind) and not (self.kind == "object" and kind in ("sparse", "named")):
            raise ValueError(
                f"this example has {_KIND_NAMES[kind]}, those before it have {_KIND_NAMES[self.kind or '']}"
            )

    def _text(self, text: Any) -> str:
        self._expect("text")
        if not isinstance(text, str):
            raise ValueError(f'"text" is not a string, got {text!r:.40}')
        self.kind = "text"
        return text

    def _features(self, features: Any) -> Any:
        if isinstance(features, list):
            return self._dense(features)
        if not isinstance(features, dict):
            raise ValueError(f'"features" is neither a list nor an object, got {features!r:.40}')
        columns = all(name.isascii() and name.isdigit() for name in features)
        kind = "named" if not columns or self.kind == "named" else "sparse"
        self._expect(kind)
        pairs = self._hashed(features) if kind == "named" else self._columns(features)
        self.kind = kind if features else self.kind or "object"
        return _summed(pairs)

    def _dense(self, features: list[Any]) -> list[float]:
        self._expect("dense")
        if not features:
            raise ValueError('"features" is an empty list')
        expected = self._options.n_features if self.kind is None else self.width
        if expected is not None and len(features) != expected:
            raise ValueError(f'"features" has {len(features)} numbers, expected {expected}')
        values = [_number(value, "a feature") for value in features]
        self.kind, self.width = "dense", len(values)
        return values

    def _columns(self, features: dict[str, Any]) -> list[tuple[int, float]]:
        limit = self._options.n_features or MAX_FEATURES
        pairs = []
        for name, value in features.items():
            if len(name) > 18 or int(name) >= limit:
                raise ValueError(f"the column is out of range (0 to {limit - 1}), got {quoted(name)}")
            pairs.append((int(name), _number(value, f"feature {quoted(name)}")))
        self.width = max(self.width, 1 + max((column for column, _ in pairs), default=0))
        return pairs

    def _hashed(self, features: dict[str, Any]) -> list[tuple[int, float]]:
        from treemax.formats.vw import hash_name  # imports Numba

        columns = 2**self._options.bits
        self.width = max(self.width, columns)
        return [
            (hash_name(name) % columns, _number(value, f"feature {quoted(name)}")) for name, value in features.items()
        ]


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
