"""Readers that are slow and obvious, and share nothing with those of the library.

Each gives (labels of every row, features or text of every row), or None for a file that is outside the plain
part of its format, of which nothing is claimed.
"""

from __future__ import annotations

import csv
import io
import json
import re
from itertools import pairwise
from typing import Any

import numpy as np

Rows = list[Any]  # a text, a list of numbers or a dictionary from columns to numbers
Read = tuple[list[list[Any]], Rows] | None

NUMBER = r"[+-]?(?:[0-9]{1,12}(?:\.[0-9]{0,9})?|\.[0-9]{1,9})(?:[eE][+-]?[0-9]{1,2})?"
PAIR = re.compile(rf"([0-9]{{1,9}}):({NUMBER})")
LABELS = re.compile(r"[0-9]{1,17}(?:,[0-9]{1,17})*")


def parsed(format: str, content: bytes) -> Read:
    """What the plain reader of this format makes of a file."""
    if format in ("parquet", "arrow"):
        return _tables(format, content)
    if format == "npz":
        return _npz(content)
    if format in ("csv", "tsv"):
        return _delimited(content, "\t" if format == "tsv" else ",")
    try:
        text = content.decode("ascii")
    except UnicodeDecodeError:
        return None
    if any(ord(character) < 32 and character != "\n" for character in text) or "\x7f" in text:
        return None
    lines = text.split("\n")
    lines = lines[:-1] if lines[-1] == "" else lines
    return {"xmc": _xmc, "svmlight": _svmlight, "vw": _vw, "jsonl": _jsonl, "fasttext": _fasttext}[format](lines)


def _pairs(fields: list[str]) -> dict[int, float] | None:
    """Columns and values, values of the same column added up in single precision."""
    found: dict[int, Any] = {}
    for field in fields:
        match = PAIR.fullmatch(field)
        if match is None or not np.isfinite(np.float32(float(match[2]))):
            return None
        found[int(match[1])] = np.float32(found.get(int(match[1]), np.float32(0)) + np.float32(float(match[2])))
    return found


def _numbers(line: str) -> tuple[list[int], dict[int, float]] | None:
    """`1,2 3:0.5 7:1`, single spaces."""
    fields = line.split(" ")
    labels: list[int] = []
    if ":" not in fields[0]:
        first = fields.pop(0)
        if first and not LABELS.fullmatch(first):
            return None
        labels = [int(label) for label in first.split(",")] if first else []
    features = _pairs(fields[:-1] if fields[-1:] == [""] else fields)
    return None if features is None else (labels, features)


def _xmc(lines: list[str]) -> Read:
    if not lines or not re.fullmatch(r"[0-9]{1,6} [0-9]{1,6} [0-9]{1,6}", lines[0]):
        return None
    n_rows, n_columns, n_labels = map(int, lines[0].split())
    rows = [_numbers(line) if line else ([], {}) for line in lines[1:]]
    if len(rows) != n_rows or n_columns == 0 or None in rows:
        return None
    outside = any(
        max(labels, default=-1) >= n_labels or max(features, default=-1) >= n_columns for labels, features in rows
    )
    return None if outside else ([labels for labels, _ in rows], [features for _, features in rows])


def _svmlight(lines: list[str]) -> Read:
    rows = [_numbers(line) for line in lines if line.strip()]
    if None in rows or any(line.startswith(" ") for line in lines):
        return None
    return [labels for labels, _ in rows], [features for _, features in rows]


def _vw(lines: list[str]) -> Read:
    """Integer labels, and features that are numbers in the namespace without a name."""
    labels, rows = [], []
    for line in lines:
        before, bar, after = line.partition("|")
        match = re.fullmatch(r"(?:([0-9]{1,17}(?:,[0-9]{1,17})*) )?", before)
        if not bar or match is None or not re.fullmatch(r"(?: [0-9]{1,5}:[0-9.]+)*", after):
            return None
        features = _pairs(after.split())
        if features is None:
            return None
        labels.append([int(label) for label in (match[1] or "").split(",") if label])
        rows.append(features)
    return labels, rows


def _fasttext(lines: list[str]) -> Read:
    labels, texts = [], []
    for line in lines:
        if "  " in line or line != line.strip():
            return None
        words = line.split(" ") if line else []
        own = []
        while words and words[0].startswith("__label__"):
            own.append(words.pop(0).removeprefix("__label__"))
        if not all(own):
            return None
        labels.append(own)
        texts.append(" ".join(words))
    return labels, texts


def _jsonl(lines: list[str]) -> Read:
    labels, rows = [], []
    for line in lines:
        if not line.strip():
            continue
        try:
            thing = json.loads(line, parse_constant=lambda name: 1 / 0)
        except (ValueError, ZeroDivisionError):
            return None
        if (
            not isinstance(thing, dict)
            or ("text" in thing) == ("features" in thing)
            or {"label", "labels"} <= set(thing)
        ):
            return None
        if len(re.findall(r'"(?:text|features|labels?)"\s*:', line)) > len(thing) or '"' in re.sub(
            r'"[^"\\]*"', "", line
        ):
            return None
        own = thing.get("labels", [thing["label"]] if "label" in thing else [])
        row = thing["text"] if "text" in thing else thing["features"]
        if not isinstance(own, list) or not isinstance(row, str if "text" in thing else list):
            return None
        if not all(type(label) is str for label in own) and not all(
            type(label) is int and abs(label) < 2**60 for label in own
        ):
            return None
        if isinstance(row, list):
            if not row or not all(type(value) in (int, float) and abs(value) < 1e30 for value in row):
                return None
            row = [np.float32(value) for value in row]
        labels.append(own)
        rows.append(row)
    kinds = {type(label) for own in labels for label in own}
    widths = {len(row) if isinstance(row, list) else -1 for row in rows}
    return (labels, rows) if len(kinds) <= 1 and len(widths) == 1 else None


def _delimited(content: bytes, delimiter: str) -> Read:
    """What Python's csv module reads, without its leniency towards quotes that are not closed."""
    try:
        text = io.StringIO(content.decode("utf-8-sig"), newline="\n")  # a lone carriage return ends no line
        names, *rows = [row for row in csv.reader(text, delimiter=delimiter, strict=True) if row]
    except (ValueError, csv.Error):
        return None
    label_columns = [name for name in names if name in ("label", "labels")]
    if names.count("text") != 1 or any(len(row) != len(names) for row in rows):
        return None
    if len(label_columns) != 1 and len(names) > 1:
        return None
    texts, labels = [], []
    for row in rows:
        cells = dict(zip(names, row))
        cell = cells[label_columns[0]] if label_columns else ""
        parts = [part.strip() for part in cell.split("|")] if "labels" in names else [cell]
        labels.append([part for part in parts if part])
        texts.append(cells["text"])
    return labels, texts


def _npz(content: bytes) -> Read:
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except Exception:
        return None
    labels, rows = _npz_labels(arrays), _npz_rows(arrays)
    return None if labels is None or rows is None or len(labels) != len(rows) else (labels, rows)


def _npz_labels(arrays: dict[str, np.ndarray]) -> list[list[Any]] | None:
    if "y" in arrays and not {"y_values", "y_indptr"} & set(arrays):
        y = arrays["y"]
        return [[label] for label in y.tolist()] if y.ndim == 1 and y.dtype.kind in "iU" and "" not in y else None
    if not {"y_values", "y_indptr"} <= set(arrays) or "y" in arrays:
        return None
    values, starts = arrays["y_values"], arrays["y_indptr"]
    if values.ndim != 1 or values.dtype.kind not in "iU" or "" in values or not _are_starts(starts, len(values)):
        return None
    return [values[start:end].tolist() for start, end in pairwise(starts.tolist())]


def _npz_rows(arrays: dict[str, np.ndarray]) -> Rows | None:
    names = set(arrays) - {"y", "y_values", "y_indptr"}
    if names == {"X"}:
        X = arrays["X"]
        with np.errstate(over="ignore"):
            single = X.astype(np.float32) if X.ndim == 2 and X.size and X.dtype.kind == "f" else np.array([np.nan])
        return [list(row) for row in single] if np.isfinite(single).all() else None
    if names != {"data", "indices", "indptr", "shape"}:
        return None
    data, indices, indptr, shape = (arrays[name] for name in ("data", "indices", "indptr", "shape"))
    if data.ndim != 1 or data.dtype != np.float32 or not np.isfinite(data).all() or indices.shape != data.shape:
        return None
    if (
        shape.shape != (2,)
        or shape.dtype.kind != "i"
        or indices.dtype.kind != "i"
        or not _are_starts(indptr, len(data))
    ):
        return None
    if len(indptr) != shape[0] + 1 or not 0 < shape[1] < 2**31 or ((indices < 0) | (indices >= shape[1])).any():
        return None
    return [dict(zip(indices[start:end].tolist(), data[start:end])) for start, end in pairwise(indptr.tolist())]


def _are_starts(starts: np.ndarray, n: int) -> bool:
    if starts.ndim != 1 or starts.dtype.kind != "i" or len(starts) < 2:
        return False
    return bool(starts[0] == 0 and starts[-1] == n and (np.diff(starts) >= 0).all())


def _tables(format: str, content: bytes) -> Read:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not content.startswith(b"PAR1" if format == "parquet" else b"ARROW1"):
        return None
    try:
        source = io.BytesIO(content)
        table = pq.read_table(source) if format == "parquet" else pa.ipc.open_file(source).read_all()
        table.validate(full=True)
        columns = table.to_pydict()
    except Exception:
        return None
    if set(columns) not in ({"text", "labels"}, {"features", "labels"}):
        return None
    labels = columns["labels"]
    rows = columns.get("text", columns.get("features"))
    kinds = {type(label) for own in labels for label in own or ()}
    if None in labels or not rows or len(kinds) > 1 or not kinds <= {int, str}:
        return None
    if "text" in columns:
        return (labels, rows) if all(type(row) is str for row in rows) else None
    if not all(isinstance(row, list) and row and all(type(value) is float for value in row) for row in rows):
        return None
    single = [[np.float32(value) for value in row] for row in rows]
    sound = len({len(row) for row in rows}) == 1 and all(np.isfinite(row).all() for row in single)
    return (labels, single) if sound else None
