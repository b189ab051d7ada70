"""Which format a file has: by its name, else by its first lines."""

from __future__ import annotations

import os
import re
from pathlib import Path

from treemax.formats.errors import FormatError, shown
from treemax.formats.options import FORMATS
from treemax.formats.streams import Source, shards_of

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
}  # `.txt` says nothing: fastText and the XMC repository both use it

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
    """The format that a file's name tells (`.gz` left out of account), if it tells one."""
    name = Path(path).name.lower().removesuffix(".gz")
    return _SUFFIXES.get(Path(name).suffix)


def format_of_source(source: Source, holds_text: bool = False) -> str:
    """The format of a file that is open: by its name, else by its first lines.

    Where it is known to hold text, lines that are not JSON are taken as they are, whatever they look like.
    """
    by_name = format_of_name(source.path) if source.path is not None else None
    if by_name is not None:
        return by_name
    head = source.peek()
    line = _first_telling_line(head)
    if holds_text:
        return "jsonl" if _LINES["jsonl"].match(line) else "fasttext"
    for name, pattern in _LINES.items():
        # A line of fastText may do without a label; that of another tells.
        if pattern.match(line) or (name == "fasttext" and _ANY_LABELLED.search(head)):
            return name
    raise FormatError.at(
        source.name,
        None,
        f"cannot tell the format from {shown(line) if line else 'an empty file'}; "
        f"name it, one of {', '.join(FORMATS)}",
    )


def _first_telling_line(head: bytes) -> bytes:
    """The first line that is not blank, not a comment and not a row of svmlight without features."""
    for line in head.split(b"\n"):
        if line.strip() and not line.lstrip().startswith(b"#") and not _ONLY_LABELS.match(line):
            return line
    return b""


def detect_format(path: str | os.PathLike[str]) -> str:
    """The format of the file at `path`: by its name, else by its first lines.

    >>> detect_format("train.svm.gz")
    'svmlight'
    """
    if str(path) == "-":
        raise ValueError(
            "What standard input holds is only known once it is read: open it with format='auto'."
        )
    by_name = format_of_name(path)
    if by_name is not None:
        return by_name
    if Path(path).is_dir():
        return detect_format(shards_of(path)[0])
    source = Source(path)
    try:
        return format_of_source(source)
    finally:
        source.close()
