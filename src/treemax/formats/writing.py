"""Write examples to a file, at once or in chunks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import IO

from treemax.formats.arrow import write_arrow, write_parquet
from treemax.formats.delimited import write_delimited
from treemax.formats.detection import format_of_name
from treemax.formats.examples import Examples
from treemax.formats.fasttext import write_fasttext
from treemax.formats.jsonl import write_jsonl
from treemax.formats.npz_writer import write_npz
from treemax.formats.numeric import write_svmlight, write_xmc
from treemax.formats.options import DELIMITERS, FORMATS, check_format
from treemax.formats.streams import open_target
from treemax.formats.vw import write_vw

_WRITERS: dict[str, Callable[[Iterable[Examples], IO[bytes]], None]] = {
    "fasttext": write_fasttext,
    "xmc": write_xmc,
    "svmlight": write_svmlight,
    "vw": write_vw,
    "jsonl": write_jsonl,
    "npz": write_npz,
    "parquet": write_parquet,
    "arrow": write_arrow,
}


WITH_WEIGHTS = ("vw", "jsonl")  # formats that can hold the weights of examples


def _without_weights(chunks: Iterable[Examples], format: str) -> Iterator[Examples]:
    """Yield the examples; raise if they have weights."""
    for chunk in chunks:
        if chunk.weights is not None:
            raise ValueError(f"The {format} format cannot hold weights, which these examples have. Write vw or jsonl.")
        yield chunk


def write_examples(
    path: str | os.PathLike[str],
    examples: Examples | Iterable[Examples],
    format: str = "auto",
    *,
    label_separator: str | None = None,
) -> None:
    """Write examples, or an iterable of chunks of them (an open `Reader`, say), to a file.

    The file appears under its name once complete; after an error, the previous file is unchanged. A name that
    ends in `.gz` is compressed, `-` is standard output, and `format="auto"` uses the extension. `label_separator`
    is between the labels of a row of a CSV or TSV file, `|` by default.

    >>> import tempfile, treemax.formats as formats
    >>> from treemax.inputs.labels import read_labels
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = folder + "/pets.jsonl.gz"
    ...     formats.write_examples(path, formats.Examples(read_labels([["cat"]]), texts=["it purrs"]))
    ...     formats.read_examples(path).texts
    ['it purrs']
    """
    check_format(format)
    found = format_of_name(path) if format == "auto" else format
    if found is None:
        raise ValueError(
            f"The extension of {path} is not that of a format; pass format (--format), one of {', '.join(FORMATS)}."
        )
    chunks = [examples] if isinstance(examples, Examples) else examples
    if found not in WITH_WEIGHTS:
        chunks = _without_weights(chunks, found)
    with open_target(path) as target:
        if found in DELIMITERS:
            write_delimited(chunks, target, found, label_separator)
        else:
            _WRITERS[found](chunks, target)
