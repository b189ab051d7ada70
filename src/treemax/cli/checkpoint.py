"""Checkpoints of `treemax stream`: the model with its learning state, the metrics and the position in DATA."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

import click
import numpy as np

from treemax.formats import Examples
from treemax.inputs.rows import SparseRows
from treemax.replacing import lock_folder


class OtherData(ValueError):
    """DATA differs from that of the checkpoint."""


class StreamCheckpoint:
    """The file `stream.treemax` in a folder, written every `every` seconds and removed at the end.

    A digest identifies the examples read so far. A resumed command reads DATA from the beginning, skips the examples
    learned before, and raises if they differ.
    """

    def __init__(self, folder: str, every: float, settings: dict[str, Any]) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._claim()
        self.path = self._folder / "stream.treemax"
        self._every = every
        self._settings = settings
        self._digest = hashlib.blake2b(digest_size=16)
        self._chunks = self._rows = 0  # of DATA, so far
        self._written = time.monotonic()
        self.found: dict[str, Any] | None = None  # state at the checkpoint
        self._parts: Any = None
        if self.path.exists():
            self._parts = self._read()
            self.found = self._parts[0]["stream"]
            click.echo(f"Resuming from {self.path}, after {self.found['rows']:,} examples.", err=True)

    def _claim(self) -> None:
        """Lock the folder: two commands would overwrite and remove each other's checkpoints."""
        try:
            release = lock_folder(self._folder)
        except BlockingIOError:
            raise click.UsageError(
                f"{self._folder} is in use by another treemax stream. Wait for its end, or use another folder."
            ) from None
        click.get_current_context().call_on_close(release)

    def _read(self) -> tuple[dict[str, Any], Any]:
        from treemax import modelfile

        header, arrays = modelfile.read_model(self.path, verify=True)
        if "stream" not in header:
            raise modelfile.ModelFileError(f"{self.path}: is a model, not a checkpoint of a stream.")
        before = header["stream"]["settings"]
        for name, value in self._settings.items():
            if before.get(name) != value:
                raise click.UsageError(
                    f"{self.path} was written by another command: {name} was {before.get(name)!r}, and is {value!r} now. "
                    "Use the same options, or another folder to start again."
                )
        return header, arrays

    def restored(self) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        """Return the model and the metrics of the checkpoint."""
        from treemax import modelfile

        header, arrays = self._parts
        model = modelfile.object_from_parts(header["model"], modelfile.part("model", arrays))
        return model, header["run"], modelfile.part("run", arrays)

    def learned_before(self, examples: Examples, name: str) -> bool:
        """Record a chunk of DATA; return whether it was learned before the checkpoint."""
        _update(self._digest, examples)
        self._chunks += 1
        self._rows += len(examples)
        if self.found is None or self._chunks > self.found["chunks"]:
            return False
        if self._chunks == self.found["chunks"] and self._digest.hexdigest() != self.found["digest"]:
            raise OtherData(
                f"{name} is not the data of {self.path}: its first {self.found['rows']:,} examples differ. Use the same "
                "data from its beginning, or another folder to start again."
            )
        return True

    def check_end(self, name: str) -> None:
        """Raise if DATA ends before the position of the checkpoint."""
        if self.found is not None and self._chunks < self.found["chunks"]:
            raise OtherData(
                f"{name} is not the data of {self.path}: it ends before the {self.found['rows']:,} examples that were "
                "learned. Use the same data from its beginning, or another folder to start again."
            )

    @property
    def due(self) -> bool:
        return time.monotonic() - self._written >= self._every

    def write(self, model: Any, run: Any) -> None:
        """Write a checkpoint; the previous one stays until the new file is complete."""
        from treemax import modelfile

        if self.found is not None and self._chunks < self.found["chunks"]:
            return  # still skipping the examples learned before

        header, arrays = modelfile.object_parts(model, resume=True)
        run_header, run_arrays = run.parts()
        stream = {
            "settings": self._settings,
            "chunks": self._chunks,
            "rows": self._rows,
            "digest": self._digest.hexdigest(),
        }
        modelfile.write_model(
            self.path,
            {"stream": stream, "model": header, "run": run_header},
            {**modelfile.prefixed("model", arrays), **modelfile.prefixed("run", run_arrays)},
        )
        self._written = time.monotonic()

    def remove(self) -> None:
        """Remove the checkpoint at the end of the stream."""
        self.path.unlink(missing_ok=True)


def _update(digest: Any, examples: Examples) -> None:
    digest.update(repr((len(examples), list(examples.labels))).encode("utf-8", "surrogatepass"))
    if examples.texts is not None:
        digest.update(repr(examples.texts).encode("utf-8", "surrogatepass"))
        return
    rows = examples.rows
    if not isinstance(rows, SparseRows):
        digest.update(np.ascontiguousarray(rows).data)
        return
    first, last = rows.indptr[0], rows.indptr[-1]
    for array in (rows.indptr - first, rows.indices[first:last], rows.values[first:last]):
        digest.update(np.ascontiguousarray(array).data)
