"""Read a folder of files of one format as one file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from treemax.formats.detection import format_of_source
from treemax.formats.errors import BadLines, FormatError
from treemax.formats.examples import Examples
from treemax.formats.options import Options
from treemax.formats.streams import LineReader, shards_of
from treemax.inputs.rows import SparseRows


class Folder:
    """The files of a folder, sorted by name; all must have the same format and kind of examples."""

    def __init__(self, path: str | os.PathLike[str], format: str = "auto", holds_text: bool = False) -> None:
        self.name = str(path)
        self.path = Path(path)
        self._holds_text = holds_text
        self._shards = shards_of(path)
        self._sizes = [shard.stat().st_size for shard in self._shards]
        self._done = 0
        self._open: LineReader | None = None
        self.format = self._format_of(self._shards[0]) if format == "auto" else format
        if format == "auto":
            for shard in self._shards[1:]:
                self._check_format(shard)

    @property
    def size(self) -> int | None:
        """Total size of the files on disk, in bytes."""
        return sum(self._sizes) or None

    @property
    def position(self) -> int:
        """Number of bytes read so far, of `size`."""
        return self._done + (self._open.position if self._open is not None else 0)

    def close(self) -> None:
        """Close the open file."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def read(
        self, read_file: Callable[[Any, Options, BadLines], Iterator[Examples]], options: Options, bad: BadLines
    ) -> Iterator[Examples]:
        """Yield the examples of all files in order."""
        kinds = _SameKind(self.name)
        for shard, size in zip(self._shards, self._sizes):
            self._open = LineReader(shard)
            bad.name = str(shard)
            for piece in read_file(self._open, options, bad):
                yield kinds.checked(piece, str(shard))
            self.close()
            self._done += size

    def _format_of(self, shard: Path) -> str:
        source = LineReader(shard)
        try:
            return format_of_source(source, self._holds_text)
        finally:
            source.close()

    def _check_format(self, shard: Path) -> None:
        other = self._format_of(shard)
        if other != self.format:
            raise FormatError.at(
                self.name,
                None,
                f"files of one format are expected, got {self._shards[0].name} ({self.format}) and "
                f"{shard.name} ({other})",
            )


class _SameKind:
    """Check that all files have the kind of features and of labels of the first."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._features: str | None = None
        self._labels: str | None = None
        self._width = 0

    def checked(self, piece: Examples, shard: str) -> Examples:
        if len(piece) == 0:
            return piece
        features = "texts" if piece.texts is not None else "sparse rows"
        if piece.texts is None and not isinstance(piece.rows, SparseRows):
            assert piece.rows is not None
            features = f"dense rows of {piece.rows.shape[1]} numbers"
        if self._features not in (None, features):
            raise FormatError.at(shard, None, f"has {features}, the files before it have {self._features}")
        self._features = features
        if len(piece.labels.values):
            labels = "strings" if piece.labels.values.dtype == object else "integers"
            if self._labels not in (None, labels):
                raise FormatError.at(shard, None, f"labels are {labels}, those before them {self._labels}")
            self._labels = labels
        return self._widened(piece)

    def _widened(self, piece: Examples) -> Examples:
        """Return `piece` with the largest number of columns so far."""
        if not isinstance(piece.rows, SparseRows):
            return piece
        self._width = max(self._width, piece.rows.n_features)
        rows = SparseRows(piece.rows.indptr, piece.rows.indices, piece.rows.values, self._width)
        return Examples(piece.labels, rows)
