"""Storing the examples of a file as rows on disk, for `fit_file`."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from treemax.formats import Examples, FormatError, open_examples
from treemax.formats.examples import keep_where
from treemax.formats.training_rows import drop_unlabelled
from treemax.inputs.conversions import sparsified
from treemax.inputs.labels import LabelIndex, RaggedLabels, target_ids
from treemax.inputs.rows import Rows, SparseRows
from treemax.models.training.stored_rows import RowWriter, StoredRows
from treemax.parallel.progress import progress_bar

CHUNK_ROWS = 2048


@dataclass(frozen=True, eq=False)
class Overview:
    """Statistics from one pass over all examples."""

    n_rows: int  # for training
    n_left_out: int  # rows without a label in multi-class data
    index: LabelIndex
    multi_label: bool
    n_features: int
    texts: bool
    sparse: bool


class Source:
    """Examples that can be read repeatedly: a file, a folder, a table or a data set."""

    def __init__(self, source: Any, verbose: int, reading: dict[str, Any]) -> None:
        if str(source) == "-":
            raise ValueError(
                "fit_file reads its data more than once, but standard input can be read only once: give a file."
            )
        if hasattr(source, "read_next_batch"):
            raise ValueError("fit_file reads its data more than once: give a table or a file instead of a reader.")
        self._source, self._verbose, self._reading = source, verbose, reading
        self.name = str(source)
        self.overview = self._scan()

    def chunks(self, title: str, all_rows: bool = False) -> Iterator[Examples]:
        """Yield the examples for training, or with `all_rows` all examples, in chunks.

        Rows of weight zero are not for training.
        """
        with open_examples(self._source, chunk_rows=CHUNK_ROWS, **self._reading) as reader:
            self.name, self._format = reader.name, reader.format
            with progress_bar(reader.size or 0, title, "B", self._verbose) as bar:
                for chunk in reader:
                    bar.update(reader.position - bar.n)
                    chosen = chunk if all_rows else _with_weight(drop_unlabelled(chunk, self.overview.multi_label))
                    if len(chosen):
                        yield chosen
        if all_rows and reader.bad_lines:
            warnings.warn(f"{reader.bad_lines} malformed line(s) skipped, first {reader.bad_messages[0]}", stacklevel=5)

    def _scan(self) -> Overview:
        names: set[Any] = set()
        n_rows = n_labelled = n_features = 0
        multi_label = texts = sparse = False
        dtype = np.dtype(np.int64)
        first_index = math.inf
        for chunk in self.chunks("scanning", all_rows=True):
            if isinstance(chunk.rows, SparseRows):
                first_index = min(first_index, int(chunk.rows.indices.min(initial=2**32 - 1)))
            multi_label = multi_label or bool((chunk.labels.counts > 1).any())
            texts = chunk.texts is not None
            sparse = sparse or texts or isinstance(chunk.rows, SparseRows)
            n_features = max(n_features, 0 if chunk.rows is None else chunk.rows.shape[1])
            chunk = _with_weight(chunk)
            n_rows, n_labelled = n_rows + len(chunk), n_labelled + int((chunk.labels.counts > 0).sum())
            if len(chunk.labels.values):
                names.update(chunk.labels.values.tolist())
                dtype = chunk.labels.dtype
        if not names:
            raise FormatError(f"{self.name}: has no {'labels' if n_rows else 'examples'}")
        if self._format == "svmlight" and self._reading.get("zero_based", "auto") == "auto" and first_index > 0:
            self._reading = {**self._reading, "zero_based": False}  # as `read_examples` reads such a file
            n_features -= "n_features" not in self._reading
        n_used = n_rows if multi_label else n_labelled
        return Overview(n_used, n_rows - n_used, _sorted_index(names, dtype), multi_label, n_features, texts, sparse)


def _with_weight(examples: Examples) -> Examples:
    """Return the examples without those of weight zero."""
    return examples if examples.weights is None else keep_where(examples, examples.weights > 0)


def _sorted_index(names: set[Any], dtype: np.dtype) -> LabelIndex:
    ordered = sorted(names)
    index = LabelIndex()
    index.add(np.array(ordered, dtype=object if isinstance(ordered[0], str) else np.int64), dtype)
    return index


def stored_rows(
    source: Source, rows_of: Callable[[Any], Rows], n_features: int, folder: str | os.PathLike[str] | None
) -> StoredRows:
    """Store the examples as rows on disk; `rows_of` converts the X of a chunk to features."""
    overview = source.overview
    writer = RowWriter(folder)
    for chunk in source.chunks("storing"):
        rows = sparsified(rows_of(chunk.features))
        labels = training_labels(chunk.labels, overview.multi_label)
        ids = overview.index.ids(labels.values)
        if (ids < 0).any():
            raise FormatError(
                f"{source.name}: has a new label since it was first read; data must not change while it is read"
            )
        writer.add(rows, replace(target_ids(labels, ids), weights=chunk.weights))
    stored = writer.finish(n_features)
    if len(stored) != overview.n_rows:
        raise FormatError(
            f"{source.name}: has {len(stored):,} examples for training, but had {overview.n_rows:,} when it was first read; "
            "data must not change while it is read"
        )
    return stored


def training_labels(labels: RaggedLabels, multi_label: bool) -> RaggedLabels:
    """Return the labels in the form for training: lists if multi-label, else a vector."""
    return replace(labels, form="lists" if multi_label else "vector")
