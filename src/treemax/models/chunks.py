"""Chunks to learn from, out of whatever a stream comes as."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from treemax.formats import Examples, is_source, open_examples
from treemax.formats.examples import labelled


def stream_chunks(
    source: Any, chunk_rows: int, multi_label: bool, **reading: Any
) -> Iterator[tuple[Any, Any]]:
    """Rows (or texts) and labels, chunk by chunk: of a file, a folder, a table or data set, or of an iterable of
    chunks.

    Where rows have one label each (the first chunk with labels tells, unless `multi_label`), one without a label
    teaches nothing and is left out.
    """
    if not is_source(source):
        if reading:
            raise ValueError(
                f"{', '.join(reading)}: options of reading are for files and tables, not for chunks."
            )
        yield from _given_chunks(source)
        return
    with open_examples(source, chunk_rows=chunk_rows, **reading) as reader:
        several: bool | None = True if multi_label else None
        for n_chunk, chunk in enumerate(reader):
            if several is None and len(chunk.labels.values):
                several = bool((chunk.labels.counts > 1).any())
            if not several:
                if (chunk.labels.counts > 1).any():
                    row = n_chunk * chunk_rows + int((chunk.labels.counts > 1).argmax())
                    raise ValueError(
                        f"{reader.name}: example {row:,} has several labels, and those before it had one; pass "
                        "multi_label=True if rows may have several."
                    )
                chunk = labelled(chunk)
            if len(chunk):
                labels = dataclasses.replace(chunk.labels, form="lists") if several else chunk.targets
                yield chunk.features, labels


def _given_chunks(chunks: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    for number, chunk in enumerate(chunks):
        if isinstance(chunk, Examples):
            yield chunk.features, chunk.targets
        elif isinstance(chunk, tuple | list) and len(chunk) == 2:
            yield chunk[0], chunk[1]
        else:
            raise ValueError(
                f"chunk {number} of the stream is a {type(chunk).__name__}, not a pair (X, y) of rows and labels."
            )
