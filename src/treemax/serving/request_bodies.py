"""Bodies of requests, validated and converted."""

from __future__ import annotations

import json
from typing import Any, NamedTuple, NoReturn

import numpy as np
import scipy.sparse as sp

from treemax.inputs.limits import MAX_FEATURES
from treemax.serving.errors import RequestError
from treemax.serving.served_model import ServedModel

MAX_K = 1000
MOST_EXPLAINED = 20  # maximum number of rows in a request for explanations
MOST_EXPLAINED_BYTES = 2**18  # maximum size of its body: an explanation names every word
LARGEST_VALUE = 1e15  # largest value of a feature that models accept
LONGEST_LABEL = 1000
MOST_NEW_FEATURES = 2**24  # up to which learning may add features
MOST_LABELS = 1000  # maximum number in a list of allowed, excluded or true labels


class Limits(NamedTuple):
    """Limits of a request."""

    body_bytes: int = 4 * 2**20
    rows: int = 1000
    seconds: float = 10.0
    buffered_bytes: int = 256 * 2**20  # bodies of all requests together


class Options(NamedTuple):
    """Options of a prediction; requests with the same options are predicted in one batch."""

    k: int = 5
    threshold: float | None = None
    labels: tuple[Any, ...] | None = None
    exclude: tuple[Any, ...] | None = None


class SparseVectors(NamedTuple):
    """Rows of a sparse matrix, of a width that is not yet known."""

    indptr: np.ndarray[Any, np.dtype[np.int64]]
    columns: np.ndarray[Any, np.dtype[np.int64]]
    values: np.ndarray[Any, np.dtype[np.float32]]


Inputs = list[str] | np.ndarray[Any, np.dtype[np.float32]] | SparseVectors


def read_json(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a body."""
    try:
        content = _DECODER.decode(body.decode())
    except (ValueError, RecursionError) as error:
        raise RequestError(f"The body is not valid JSON: {error}.") from None
    if not isinstance(content, dict):
        raise RequestError(f"The body must be a JSON object, got {_kind(content)}.")
    if b"\\u" in body:  # half a character, as "\ud800", is valid JSON but not valid text
        _check_characters(content)
    return content


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def _check_characters(content: Any) -> None:
    try:
        json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise RequestError("The body has half of a character (a lone surrogate such as \\ud800).") from None
    except (ValueError, RecursionError) as error:
        raise RequestError(f"The body cannot be read: {error}.") from None


_DECODER = json.JSONDecoder(parse_constant=_no_constant)


def check_keys(content: dict[str, Any], known: frozenset[str]) -> None:
    """Raise for an unknown key, such as a misspelt one."""
    for key in content:
        if key not in known:
            raise RequestError(f"Unknown key {key!r:.60}; known are {', '.join(sorted(known))}.")


def read_inputs(content: dict[str, Any], served: ServedModel, limits: Limits) -> tuple[Inputs, int]:
    """Return the texts or vectors of a body, and their number."""
    name, other = ("texts", "vectors") if served.is_text else ("vectors", "texts")
    if name not in content:
        got = f", got {other!r}" if other in content else ""
        raise RequestError(f"The model {served.name!r} needs {name!r}{got}: a list with one {name[:-1]} for each row.")
    if other in content:
        raise RequestError(f"The model {served.name!r} takes {name!r}, not {other!r}.")
    rows = content[name]
    if not isinstance(rows, list):
        raise RequestError(f"{name!r} must be a list, got {_kind(rows)}.")
    if not rows:
        raise RequestError(f"{name!r} is empty.")
    if len(rows) > limits.rows:
        raise RequestError(f"{name!r} has {len(rows):,} rows; at most {limits.rows:,} are allowed in one request.")
    if served.is_text:
        for i, text in enumerate(rows):
            if type(text) is not str:
                raise RequestError(f"texts: row {i} is {_kind(text)}, expected a string.")
        return rows, len(rows)
    return read_vectors(rows, served), len(rows)


def read_vectors(rows: list[Any], served: ServedModel) -> Inputs:
    """Return vectors as a dense matrix or as sparse rows, as the model takes them."""
    for i, row in enumerate(rows):
        if not isinstance(row, list | dict):
            raise RequestError(f"vectors: row {i} is {_kind(row)}, expected a list of numbers or an object.")
    sparse = [
        _sparse_row(i, row) if isinstance(row, dict) else _dense_row(i, row, served) for i, row in enumerate(rows)
    ]
    if served.is_sparse:
        lengths = [len(columns) for columns, _ in sparse]
        indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        entries = np.array([each for row, _ in sparse for each in row], dtype=np.int64)
        return SparseVectors(indptr, entries, np.array([each for _, row in sparse for each in row], dtype=np.float32))
    table = np.zeros((len(rows), served.n_features), dtype=np.float32)
    for i, (columns, values) in enumerate(sparse):
        if columns and max(columns) >= served.n_features:
            raise RequestError(
                f"vectors: row {i} has the index {max(columns)}, but the model has {served.n_features} features."
            )
        table[i, columns] = values
    return table


def _dense_row(i: int, row: list[Any], served: ServedModel) -> tuple[list[int], list[float]]:
    if len(row) != served.n_features and not (served.is_sparse and len(row) <= MAX_FEATURES):
        raise RequestError(f"vectors: row {i} has {len(row)} numbers, but the model has {served.n_features} features.")
    for value in row:
        _check_number(i, value)
    kept = [column for column, value in enumerate(row) if value]
    return kept, [row[column] for column in kept]


def _sparse_row(i: int, row: dict[str, Any]) -> tuple[list[int], list[float]]:
    entries = {}
    for key, value in row.items():
        if not (key.isascii() and key.isdecimal() and len(key) <= 10 and int(key) < MAX_FEATURES):
            raise RequestError(
                f"vectors: row {i} has the key {key!r:.60}; keys are indices of features, from 0 to {MAX_FEATURES - 1:,}."
            )
        _check_number(i, value)
        entries[int(key)] = value
    if len(entries) < len(row):
        raise RequestError(f"vectors: row {i} has an index twice.")
    columns = sorted(column for column, value in entries.items() if value)
    return columns, [entries[column] for column in columns]


def _check_number(i: int, value: Any) -> None:
    if type(value) not in (int, float) or not -LARGEST_VALUE <= value <= LARGEST_VALUE:
        raise RequestError(f"vectors: row {i} has {value!r:.60}, expected a number from -1e15 to 1e15.")


def joined(parts: list[Inputs], n_features: int) -> Any:
    """Return the rows of several requests as one X for a model."""
    first = parts[0]
    if isinstance(first, list):
        return first if len(parts) == 1 else [text for part in parts for text in part]
    if isinstance(first, np.ndarray):
        return first if len(parts) == 1 else np.concatenate(parts)
    sparse: list[SparseVectors] = parts  # type: ignore[assignment]
    starts = np.cumsum([0, *(part.indptr[-1] for part in sparse)])
    indptr = np.concatenate([[0], *(part.indptr[1:] + start for part, start in zip(sparse, starts))])
    columns = np.concatenate([part.columns for part in sparse])
    values = np.concatenate([part.values for part in sparse])
    width = max(n_features, int(columns.max(initial=0)) + 1)
    return sp.csr_matrix((values, columns, indptr), shape=(len(indptr) - 1, width))


def read_options(content: dict[str, Any], served: ServedModel) -> Options:
    """Return the prediction options of a request."""
    threshold = content.get("threshold")
    k = whole(content.get("k", 5 if threshold is None else MAX_K))
    if type(k) is not int or not 1 <= k <= MAX_K:
        raise RequestError(f"k must be a whole number from 1 to {MAX_K}, got {k!r:.60}.")
    if threshold is not None and (type(threshold) not in (int, float) or not 0 <= threshold <= 1):
        raise RequestError(f"threshold must be a number from 0 to 1, got {threshold!r:.60}.")
    labels, exclude = (_read_label_list(content, name, served) for name in ("labels", "exclude"))
    if labels is not None and set(labels) <= set(exclude or ()):
        raise RequestError("All allowed labels are excluded, so there is nothing to answer.", 409)
    return Options(k, threshold, labels, exclude)


def whole(value: Any) -> Any:
    """Return a number such as 3.0, which is a whole number in JSON, as an integer."""
    return int(value) if type(value) is float and value.is_integer() else value


def _read_label_list(content: dict[str, Any], name: str, served: ServedModel) -> tuple[Any, ...] | None:
    labels = content.get(name)
    if labels is None:
        return None
    if not isinstance(labels, list) or len(labels) > MOST_LABELS:
        raise RequestError(f"{name} must be a list of at most {MOST_LABELS:,} labels, got {_kind(labels)}.")
    for label in labels:
        check_label(label, served, name)
    for label, known in zip(labels, served.model.label_index_.ids(labels)):
        if known < 0:
            raise RequestError(f"{name}: the model does not know the label {label!r:.100}.", 404)
    if name == "labels" and not labels:
        raise RequestError("labels is empty, so there is nothing to answer; leave it out to allow all labels.")
    return tuple(labels)


def check_label(label: Any, served: ServedModel, name: str = "labels") -> None:
    """Raise if this cannot be a label of the model."""
    index = served.model.label_index_
    wanted = (str, int) if index.dtype is None else (str,) if index.holds_strings else (int,)
    if type(label) not in wanted:
        kinds = " or ".join({str: "strings", int: "whole numbers"}[kind] for kind in wanted)
        raise RequestError(f"{name}: the labels of the model are {kinds}, got {label!r:.60}.")
    if isinstance(label, str) and not 0 < len(label) <= LONGEST_LABEL:
        raise RequestError(f"{name}: a label has {len(label):,} characters; 1 to {LONGEST_LABEL:,} are allowed.")
    if isinstance(label, int) and not -(2**63) <= label < 2**63:
        raise RequestError(f"{name}: the label {label!r:.60} is outside the range of 64-bit integers.")


def read_examples(content: dict[str, Any], served: ServedModel, limits: Limits) -> list[tuple[str, str]]:
    """Return examples to learn: pairs of JSON, of a text or vector and of its labels."""
    read_inputs(content, served, limits)  # raises
    rows = content["texts" if served.is_text else "vectors"]
    labels = content.get("labels")
    if not isinstance(labels, list) or len(labels) != len(rows):
        wanted = f"labels must be a list with the labels of each of the {len(rows):,} rows, got {_kind(labels)}."
        raise RequestError(wanted, 409 if isinstance(labels, list) else 400)
    lists = [true if isinstance(true, list) else [true] for true in labels]
    for i, true in enumerate(lists):
        _check_true_labels(i, true, served)
    if not served.is_text:
        _check_growth(rows, served)
    return [(_stored(row), _stored(true)) for row, true in zip(rows, lists)]


def _stored(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def _check_true_labels(i: int, labels: list[Any], served: ServedModel) -> None:
    """Raise if the model cannot learn that a row has these labels."""
    if not served.estimator.multi_label_ and len(labels) != 1:
        raise RequestError(f"labels: row {i} has {len(labels):,} labels; the model has one label for each row.", 409)
    if len(labels) > MOST_LABELS:
        raise RequestError(f"labels: row {i} has {len(labels):,} labels; at most {MOST_LABELS:,} are allowed.")
    for label in labels:
        check_label(label, served)
    if len({type(label) for label in labels}) > 1:
        raise RequestError(f"labels: row {i} mixes strings and whole numbers.")
    if served.estimator._label_form.endswith("indicator") and (served.estimator.label_index_.ids(labels) < 0).any():
        raise RequestError(f"labels: row {i} has a label that is no column of the indicator matrix of training.")


def _check_growth(rows: list[Any], served: ServedModel) -> None:
    most = max(MOST_NEW_FEATURES, served.n_features)
    for i, row in enumerate(rows):
        largest = max(map(int, row), default=0) if isinstance(row, dict) else len(row) - 1
        if largest >= most:
            raise RequestError(f"vectors: row {i} has the index {largest:,}; a model can learn those below {most:,}.")


def _kind(value: Any) -> str:
    """Return what a JSON value is, for error messages."""
    if value is None:
        return "null"
    if isinstance(value, dict | list):
        noun = "object" if isinstance(value, dict) else "list"
        return f"{'an' if noun == 'object' else 'a'} {noun} of {len(value):,}"
    return f"{value!r:.60}"
