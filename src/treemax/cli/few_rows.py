"""Predictions for few rows by `treemax.light`, without importing SciPy, scikit-learn and Numba.

Whatever is unusual is left to the whole library: other formats, models and options, and all errors of the data.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treemax.cli.options import Reading
from treemax.cli.reporting import json_line

if TYPE_CHECKING:
    from treemax.formats.streams import LineReader

FEW_ROWS = 100  # fewer rows take less time than the imports: 5 ms per short text in a tree of 20,000 labels


def open_lines(model: str, data: str, chunk: int, reading: Reading) -> LineReader | None:
    """Open DATA if `predict_few` may answer it with this model; chunks of an interactive pipe cannot wait for its end."""
    from treemax.formats.options import COLUMN_OPTIONS
    from treemax.formats.streams import LineReader
    from treemax.light.model import supports

    chosen = any(getattr(reading, name) is not None for name in ("bits", *COLUMN_OPTIONS))
    if chosen or (data == "-" and chunk < FEW_ROWS) or not supports(model):
        return None
    try:
        return None if data != "-" and Path(data).is_dir() else LineReader(data)
    except (OSError, ValueError):
        if data == "-":  # which cannot be read again
            raise
        return None


def predict_few(model: str, lines: LineReader, top: int, format: str) -> bytes | None:
    """Return the answers as lines of JSON; None, and `lines` as they were, if the whole library is needed."""
    from treemax import light

    few = lines.peek_lines(FEW_ROWS)
    if not few:
        return None
    try:
        loaded = light.load(model)
        rows = _rows(few, lines, format, loaded.takes_text)
        if not 0 < len(rows) * loaded.n_trees <= FEW_ROWS:
            return None
        found = loaded.predict_topk(rows, top)
    except ValueError:  # the whole library answers, or says what is wrong
        return None
    with closing(lines):
        return b"\n".join(map(json_line, found.labels.tolist(), found.scores.tolist()))


def _rows(few: list[bytes], source: LineReader, format: str, takes_text: bool) -> list[Any]:
    """Return the texts or features of lines; an empty list for other formats and for named features."""
    from treemax.formats.detection import format_of_source
    from treemax.formats.lines import JsonParser, split_line
    from treemax.formats.options import Options

    format = format_of_source(source, takes_text) if format == "auto" else format
    if format == "fasttext" and takes_text:
        return [split_line(line.decode())[1] for line in few]
    if format != "jsonl":
        return []
    parser = JsonParser(Options())
    rows = [parser.parse(line)[1] for line in few if line.strip()]
    if (parser.kind == "text") != takes_text or parser.kind == "named":
        return []
    return rows if parser.kind in ("text", "dense") else [dict(row) for row in rows]
