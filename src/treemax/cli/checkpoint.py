"""Where a stream stands, in a file: the model with its learning state, the metrics, and how much of DATA was learned."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

import click
import numpy as np

from treemax.formats import Examples
from treemax.inputs.rows import SparseRows
from treemax.replacing import claim


class OtherData(ValueError):
    """DATA is not what a checkpoint was made from."""


class StreamCheckpoint:
    """The file `stream.treemax` in a folder of its own, written every so many seconds and removed at the end.

    What was read of DATA so far is known by a digest of its examples. A command that goes on reads DATA from the
    beginning, does not learn what was learned before, and refuses DATA that begins otherwise.
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
        self.found: dict[str, Any] | None = None  # where the stream stood before
        self._parts: Any = None
        if self.path.exists():
            self._parts = self._read()
            self.found = self._parts[0]["stream"]
            click.echo(f"Going on from {self.path}, after {self.found['rows']:,} examples.", err=True)

    def _claim(self) -> None:
        """Two commands would replace each other's checkpoints, and the first to end would remove those of the other."""
        try:
            release = claim(self._folder)
        except BlockingIOError:
            raise click.UsageError(
                f"{self._folder} is in use by another treemax stream. Wait for its end, or give another folder."
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
                    "Give the same options, or another folder to begin anew."
                )
        return header, arrays

    def restored(self) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        """The model, and the parts of the metrics, that were found."""
        from treemax import modelfile

        header, arrays = self._parts
        model = modelfile.object_from_parts(header["model"], modelfile.part("model", arrays))
        return model, header["run"], modelfile.part("run", arrays)

    def learned_before(self, examples: Examples, name: str) -> bool:
        """Take note of a chunk of DATA; whether it was learned before."""
        _update(self._digest, examples)
        self._chunks += 1
        self._rows += len(examples)
        if self.found is None or self._chunks > self.found["chunks"]:
            return False
        if self._chunks == self.found["chunks"] and self._digest.hexdigest() != self.found["digest"]:
            raise OtherData(
                f"{name} is not what {self.path} was made from: its first {self.found['rows']:,} examples differ. Give "
                "the same data from its beginning on, or another folder to begin anew."
            )
        return True

    def check_end(self, name: str) -> None:
        """Refuse DATA that ends before the place to go on from."""
        if self.found is not None and self._chunks < self.found["chunks"]:
            raise OtherData(
                f"{name} is not what {self.path} was made from: it ends before the {self.found['rows']:,} examples that "
                "were learned. Give the same data from its beginning on, or another folder to begin anew."
            )

    @property
    def due(self) -> bool:
        return time.monotonic() - self._written >= self._every

    def write(self, model: Any, run: Any) -> None:
        """Write down where the stream stands; what was there before stays until the new file is whole."""
        from treemax import modelfile

        if self.found is not None and self._chunks < self.found["chunks"]:
            return  # what was learned before is not read again yet

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
        """The stream has come to its end, and the model is where it should be."""
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
