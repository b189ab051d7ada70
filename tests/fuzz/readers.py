"""Mutated data files: every reader refuses them by name and line, or gives what a plain parser gives."""

from __future__ import annotations

import csv
import io
import json
import tempfile
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from tests.fuzz.plain_parsers import parsed
from treemax.formats import FORMATS, Examples, FormatError, open_examples, read_examples
from treemax.formats.examples import concatenate
from treemax.inputs.rows import SparseRows

FOLDER = "/dev/shm" if Path("/dev/shm").is_dir() else tempfile.gettempdir()
LONGEST_MESSAGE = 1000
PIECES = [
    b":", b",", b"|", b" ", b"  ", b"\t", b"\n", b"\n\n", b"\r\n", b"\r", b"nan", b"inf", b"-1", b"1e400", b"1e-400", b"4294967295",
    b"4294967294", b"99999999999999999999", b"0x10", b"1_0", b"\x00", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"#", b"__label__",
    b"{", b"}", b"[", b"]", b'"', b"{}", b"[]", b"null", b"true", b'"features": ', b'"text": ', b'"labels": ', b'"label": ', b"qid:1 ",
    b"'tag", b"\\u0041", b"\\ud800", b"-0", b"+1", b"1.0", b"1.5", b"0", b"7", b"\xd9\xa3", b"e5", b".", b"-", b"a" * 300, b"[" * 200,
]  # fmt: skip
Arrays = dict[str, Any]


class File(NamedTuple):
    """A file by the format it is read as, and its content in hexadecimal digits."""

    format: str
    content: str


def made(format: str, seed: int) -> File:
    """A file that follows from the seed, most often one with a few changes."""
    random = np.random.default_rng([seed, FORMATS.index(format)])
    content = _sound(format, random)
    for _ in range(int(random.choice([0, 0, 0, 1, 2, 4] if format == "npz" else [0, 1, 1, 2, 3, 6]))):
        content = _changed(content, random)
    return File(format, content.hex())


def sound(format: str) -> File:
    """A file without any change."""
    return File(format, _sound(format, np.random.default_rng(3)).hex())


def _sound(format: str, random: np.random.Generator) -> bytes:
    n = int(random.integers(1, 7))
    labels = [sorted({int(label) for label in random.integers(0, 30, random.integers(0, 4))}) for _ in range(n)]
    features = [sorted({int(column) for column in random.integers(0, 40, random.integers(0, 5))}) for _ in range(n)]
    if format in ("xmc", "svmlight", "vw"):
        rows = [
            (",".join(map(str, own)), " ".join(f"{column}:{random.integers(1, 99) / 8}" for column in columns))
            for own, columns in zip(labels, features)
        ]
        if format == "vw":
            return "".join(f"{own} | {row}\n" if own else f"| {row}\n" for own, row in rows).encode()
        if format == "svmlight":
            return "".join(f"{own} {row or '1:1'}\n".lstrip() for own, row in rows).encode()
        return "".join([f"{n} 40 30\n", *(f"{own} {row}\n" for own, row in rows)]).encode()
    words = [" ".join(random.choice(["red", "blue", "42", "Haus"], random.integers(0, 4)).tolist()) for _ in range(n)]
    dense = (random.integers(-40, 40, (n, 3)) / 8).tolist()
    names = [[f"l{label}" for label in own] for own in labels]
    if format == "fasttext":
        lines = (" ".join([*(f"__label__{name}" for name in own), text]) for own, text in zip(names, words))
        return "".join(line.rstrip() + "\n" for line in lines).encode()
    if format in ("csv", "tsv"):
        return _delimited(random, ",\t"[format == "tsv"], words, names)
    as_text, own_labels = bool(random.random() < 0.5), names if random.random() < 0.5 else labels
    key, values = ("text", words) if as_text else ("features", dense)
    if format == "jsonl":
        lines = (json.dumps({key: row, "labels": own}) for row, own in zip(values, own_labels))
        return "".join(line + "\n" for line in lines).encode()
    if format == "npz":
        return _npz(random, dense, words, own_labels)
    return _table(format, {key: values, "labels": own_labels})


def _delimited(random: np.random.Generator, delimiter: str, words: list[str], names: list[list[str]]) -> bytes:
    """A table in any order of columns, with line breaks, delimiters and quotes in some texts."""
    odd = ["", "\n", delimiter, ' "a" ', "\n\n", "'"]
    rows = [
        {"text": text.replace(" ", str(random.choice(odd)), 1), "labels": "|".join(own), "id": str(row)}
        for row, (text, own) in enumerate(zip(words, names))
    ]
    columns = random.permutation(["text", "labels", "id"]).tolist()
    out = io.StringIO(newline="")
    ends = str(random.choice(["\n", "\r\n"]))
    quoting = csv.QUOTE_ALL if ends == "\n" else csv.QUOTE_MINIMAL
    writer = csv.DictWriter(out, columns, delimiter=delimiter, lineterminator=ends, quoting=quoting)
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().encode()


def _npz(random: np.random.Generator, dense: list[Any], words: list[str], labels: list[Any]) -> bytes:
    """One of the forms of an archive, some with an array that does not fit."""
    values = [label for own in labels for label in own]
    indptr = np.concatenate([[0], np.cumsum([len(own) for own in labels])])
    y: Arrays = {"y_values": np.array(values), "y_indptr": indptr}
    if random.random() < 0.5 or not values:
        y = {"y": np.array([own[0] if own else 0 for own in labels]) if random.random() < 0.7 else np.eye(len(labels))}
        if y["y"].dtype.kind not in "ifU":
            y = {"y": np.arange(len(labels))}
    csr = sp.csr_matrix(np.array(dense, dtype=np.float32))
    text = "".join(words).encode()
    X: Arrays = [
        {"X": np.array(dense)},
        {"data": csr.data, "indices": csr.indices, "indptr": csr.indptr, "shape": np.array(csr.shape)},
        {
            "text_bytes": np.frombuffer(text, np.uint8),
            "text_offsets": np.concatenate([[0], np.cumsum([len(word) for word in words])]),
        },
    ][int(random.integers(3))]
    arrays = {**X, **y}
    if random.random() < 0.5:
        name = str(random.choice(list(arrays)))
        odd = [
            np.array([np.nan]), np.array(7), np.zeros((0, 3)), np.array([-1, 2**40]), np.array(["x" * 5000]), arrays[name][:-1],
            arrays[name].astype("f2") if arrays[name].dtype.kind in "if" else arrays[name], arrays[name].T[..., None], np.array([2**62, -5]),
            arrays[name].astype(complex) if arrays[name].dtype.kind in "if" else arrays[name],
        ]  # fmt: skip
        arrays[name] = odd[int(random.integers(len(odd)))]
        if random.random() < 0.2:
            del arrays[name]
    out = io.BytesIO()
    (np.savez if random.random() < 0.5 else np.savez_compressed)(out, **arrays)
    return out.getvalue()


def _table(format: str, columns: dict[str, Any]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table, out = pa.table(columns), io.BytesIO()
    if format == "parquet":
        pq.write_table(table, out)
        return out.getvalue()
    with pa.ipc.new_file(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


def _changed(content: bytes, random: np.random.Generator) -> bytes:
    at, end = sorted(random.integers(0, len(content) + 1, 2).tolist())
    end = min(end, at + int(random.integers(1, 12)))
    kind = random.integers(6)
    if kind == 0 and content:
        return content[:at] + bytes([random.integers(256)]) + content[at + 1 :]
    if kind == 1:
        return content[:at] + content[end:]
    if kind == 2:
        return content[:at] + content[at:end] * int(random.integers(2, 4)) + content[end:]
    if kind == 3 and random.random() < 0.2:
        return content[:at]
    return content[:at] + PIECES[random.integers(len(PIECES))] + content[end if kind == 4 else at :]


def check(case: File) -> str:
    """Read the file whole, in chunks and without its bad lines, and compare; raises where something is wrong."""
    content = bytes.fromhex(case.content)
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        path = Path(folder) / "data"
        path.write_bytes(content)
        whole = _read(path, case.format, False)
        in_chunks = _read_in_chunks(path, case.format)
        lenient = _read(path, case.format, True)
    if whole is None:
        assert in_chunks is None, "chunks are accepted of a file that is refused as a whole"
        if case.format not in ("parquet", "arrow"):  # pyarrow reads some files whose metadata are damaged
            assert parsed(case.format, content) is None, "a valid file is refused"
        return "refused" if lenient is None else "answered"
    assert lenient is not None, "a file is accepted, but not with skip_bad"
    assert in_chunks is not None, "a file is accepted as a whole, but not in chunks"
    ours = _plain(whole)
    assert ours == _plain(in_chunks), "chunks differ from the whole"
    assert ours == _plain(lenient), "a file without bad lines differs with skip_bad"
    expected = parsed(case.format, content)
    if expected is not None:
        assert ours[0] == expected[0], f"labels {ours[0]} differ from those of a plain parser {expected[0]}"
        _compare(ours[1], expected[1])
    if case.format == "svmlight":
        _compare_with_scikit_learn(content, ours)
    return "answered"


def _options(format: str) -> dict[str, Any]:
    return {"zero_based": True} if format == "svmlight" else {}


def _read(path: Path, format: str, skip_bad: bool) -> Examples | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return read_examples(path, format, skip_bad=skip_bad, **_options(format))
    except FormatError as error:
        _check_message(path, error)
        return None


def _read_in_chunks(path: Path, format: str) -> Examples | None:
    try:
        with open_examples(path, format, chunk_rows=2, **_options(format)) as reader:
            chunks = list(reader)
        return concatenate(chunks) if chunks else read_examples(path, format, **_options(format))
    except FormatError as error:
        _check_message(path, error)
        return None


def _check_message(path: Path, error: FormatError) -> None:
    said = str(error)
    assert said.startswith(str(path)), f"an error without the name of the file: {said[:300]}"
    assert len(said) < LONGEST_MESSAGE, f"an error of {len(said)} characters: {said[:300]}"


def _plain(examples: Examples) -> tuple[list[Any], list[Any]]:
    """Labels and features as lists, labels of a row as a set where order is not kept."""
    rows: list[Any]
    if isinstance(examples.rows, SparseRows):
        starts, rows = examples.rows.indptr, []
        for start, end in pairwise(starts):
            indices, values = examples.rows.indices[start:end], examples.rows.values[start:end]
            rows.append({int(column): value for column, value in zip(indices, values)})
    else:
        rows = list(examples.texts) if examples.rows is None else [list(row) for row in examples.rows]
    return [list(own) for own in examples.labels], rows


def _compare(ours: list[Any], expected: list[Any]) -> None:
    for row, (one, other) in enumerate(zip(ours, expected, strict=True)):
        if isinstance(one, dict):
            same = sorted(one) == sorted(other) and np.allclose(
                [one[column] for column in sorted(one)], [other[column] for column in sorted(one)], rtol=1e-5
            )
        elif isinstance(one, list):
            same = len(one) == len(other) and bool(np.array_equal(one, other))
        else:
            same = one == other
        assert same, f"row {row} is {one!r:.200}, a plain parser gives {other!r:.200}"


def _compare_with_scikit_learn(content: bytes, ours: tuple[list[Any], list[Any]]) -> None:
    from sklearn.datasets import load_svmlight_file

    try:
        X, y = load_svmlight_file(io.BytesIO(content), multilabel=True, zero_based=True, dtype=np.float64)
    except Exception:
        return  # it refuses what is fine here, such as rows in any order
    if X.shape[0] == len(ours[0]):
        X.sum_duplicates()
        for row, own in enumerate(ours[1]):
            line = X[row]
            theirs = {int(column): value for column, value in zip(line.indices, line.data)}
            _compare([own], [theirs])
            assert sorted(set(ours[0][row])) == sorted({int(label) for label in y[row]}), "labels differ"
