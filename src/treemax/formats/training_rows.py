"""The rows of a file that a model can learn from."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from treemax.formats.examples import Examples, keep_where
from treemax.formats.reading import is_source, open_examples
from treemax.inputs.labels import RaggedLabels


def drop_unlabelled(examples: Examples, multi_label: bool) -> Examples:
    """Return `examples`, in multi-class data without the rows that have no label.

    A blank line must not make multi-class data multi-label. In multi-label data, a row without labels is an
    example of no label.
    """
    return examples if multi_label else keep_where(examples, examples.labels.counts > 0)


class TrainingRows:
    """Select the rows to learn from, chunk by chunk.

    The first chunk with labels decides whether the data is multi-label, unless `multi_label`; `advice` ends the error
    for a later row with several labels. `n_dropped` counts the rows of multi-class data without a label.
    """

    def __init__(
        self, name: str, multi_label: bool = False, advice: str = "pass multi_label=True if rows may have several."
    ) -> None:
        self.name = name
        self.multi_label = multi_label
        self.n_read = self.n_dropped = 0
        self._advice = advice

    def select(self, chunk: Examples) -> Examples:
        """Return the rows of the next chunk to learn from."""
        several = chunk.labels.counts > 1
        if self.n_read == self.n_dropped:
            self.multi_label = self.multi_label or bool(several.any())
        if not self.multi_label and several.any():
            raise ValueError(
                f"{self.name}: example {self.n_read + int(several.argmax()) + 1:,} has several labels, and "
                f"those before it had one; {self._advice}"
            )
        selected = drop_unlabelled(chunk, self.multi_label)
        self.n_read += len(chunk)
        self.n_dropped += len(chunk) - len(selected)
        return selected

    def labels(self, selected: Examples) -> RaggedLabels:
        """Return the labels of selected rows for `partial_fit`, in one form for all chunks."""
        return dataclasses.replace(selected.labels, form="lists") if self.multi_label else selected.targets


def training_chunks(
    source: Any, chunk_rows: int, multi_label: bool = False, **reading: Any
) -> Iterator[tuple[Any, Any, Any]]:
    """Yield chunks (X, y, weights or None) of a file, folder, table or data set, or of an iterable of chunks.

    The rows of files and tables are those of `TrainingRows`; `reading` are options of `open_examples`.
    """
    if not is_source(source):
        if reading:
            raise ValueError(f"{', '.join(reading)}: only files and tables have reading options, not chunks.")
        yield from _pairs(source)
        return
    with open_examples(source, chunk_rows=chunk_rows, **reading) as reader:
        rows = TrainingRows(reader.name, multi_label)
        for chunk in map(rows.select, reader):
            if len(chunk) and (chunk.weights is None or chunk.weights.any()):
                yield chunk.features, rows.labels(chunk), chunk.weights


def _pairs(chunks: Iterable[Any]) -> Iterator[tuple[Any, Any, Any]]:
    for number, chunk in enumerate(chunks):
        if isinstance(chunk, Examples):
            yield chunk.features, chunk.targets, chunk.weights
        elif hasattr(chunk, "X") and hasattr(chunk, "y"):
            yield chunk.X, chunk.y, getattr(chunk, "weights", None)
        elif isinstance(chunk, tuple | list) and len(chunk) in (2, 3):
            yield chunk[0], chunk[1], chunk[2] if len(chunk) == 3 else None
        else:
            raise ValueError(
                f"chunk {number} of the stream is a {type(chunk).__name__}, not a pair (X, y) of rows and labels."
            )
