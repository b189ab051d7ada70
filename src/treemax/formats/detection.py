"""Detect the format of a file by its name, else by its first lines."""

from __future__ import annotations

import os
import re
from pathlib import Path

from treemax.formats.errors import FormatError, quoted
from treemax.formats.options import DELIMITERS, FORMATS
from treemax.formats.streams import LineReader, shards_of


class UnknownFormat(FormatError):
    """The format of a file cannot be detected."""


_SUFFIXES = {
    ".fasttext": "fasttext",
    ".ft": "fasttext",
    ".xmc": "xmc",
    ".svm": "svmlight",
    ".svmlight": "svmlight",
    ".libsvm": "svmlight",
    ".vw": "vw",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".npz": "npz",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".csv": "csv",
    ".tsv": "tsv",
}  # not `.txt`, which fastText and the XMC repository both use

_NUMBER = rb"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?"
_NUMBERS = _NUMBER + rb"(?:," + _NUMBER + rb")*"
_ONLY_LABELS = re.compile(rb"\s*" + _NUMBERS + rb"\s*$")
_ANY_LABELLED = re.compile(rb"^[ \t]*__label__\S", re.MULTILINE)
_LINES = {  # tried in this order; each looks at the start of the line only
    "npz": re.compile(rb"PK\x03\x04|PK\x05\x06"),
    "parquet": re.compile(rb"PAR1"),
    "arrow": re.compile(rb"ARROW1"),
    "jsonl": re.compile(rb"\s*\{"),
    "fasttext": re.compile(rb"\s*__label__\S"),
    "xmc": re.compile(rb"\s*\d+\s+\d+\s+\d+\s*$"),
    "vw": re.compile(rb"\s*(?:[^\s|:]+(?:\s+" + _NUMBER + rb")?(?:\s+'[^\s|:]*)?)?\s*\|"),
    "svmlight": re.compile(rb"\s*(?:" + _NUMBERS + rb"\s+)?(?:\d+|qid):" + _NUMBER + rb"(?:\s|#|$)"),
}


def format_of_name(path: str | os.PathLike[str]) -> str | None:
    """Return the format for the extension of a file (ignoring `.gz`), or None."""
    name = Path(path).name.lower().removesuffix(".gz")
    return _SUFFIXES.get(Path(name).suffix)


def is_delimited(path: str | os.PathLike[str], format: str = "auto") -> bool:
    """Return whether a file, or the files of a folder, are read as CSV or TSV; with "auto" their name decides."""
    if format != "auto" or str(path) == "-":
        return format in DELIMITERS
    return format_of_name(shards_of(path)[0] if Path(path).is_dir() else path) in DELIMITERS


def format_of_source(source: LineReader, holds_text: bool = False) -> str:
    """Detect the format of an open file by its name, else by its first lines.

    With `holds_text`, lines that are not JSON are read as text, even if they look like another format.
    """
    by_name = format_of_name(source.path) if source.path is not None else None
    if by_name is not None:
        return by_name
    head = source.peek()
    line = _first_informative_line(head)
    if holds_text:
        return "jsonl" if _LINES["jsonl"].match(line) else "fasttext"
    for name, pattern in _LINES.items():
        # A line of fastText may have no label; look for one on any line.
        if pattern.match(line) or (name == "fasttext" and _ANY_LABELLED.search(head)):
            return name
    if not head.strip():
        raise FormatError.at(source.name, None, "is empty")
    if head.startswith(b"\x93NUMPY"):
        what = "is one NumPy array; store X and y together: np.savez('data.npz', X=X, y=y), only X for predict"
        raise FormatError.at(source.name, None, what)
    seen = (
        f"{quoted(line)}. Text begins with its labels, such as '__label__fruit red apple'; for others"
        if line
        else "comments and labels alone;"
    )
    raise UnknownFormat.at(
        source.name, None, f"cannot tell the format from {seen} pass format (--format), one of {', '.join(FORMATS)}"
    )


def _first_informative_line(head: bytes) -> bytes:
    """Return the first line that is not blank, a comment, or an svmlight row without features."""
    for line in head.split(b"\n"):
        if line.strip() and not line.lstrip().startswith(b"#") and not _ONLY_LABELS.match(line):
            return line
    return b""


def detect_format(path: str | os.PathLike[str]) -> str:
    """Detect the format of the file at `path` by its name, else by its first lines.

    >>> detect_format("train.svm.gz")
    'svmlight'
    """
    if str(path) == "-":
        raise ValueError("The format of standard input is only known once it is read: open it with format='auto'.")
    by_name = format_of_name(path)
    if by_name is not None:
        return by_name
    if Path(path).is_dir():
        return detect_format(shards_of(path)[0])
    source = LineReader(path)
    try:
        return format_of_source(source)
    finally:
        source.close()
