"""Model files that are served: copied into the data folder, verified, and picked up again when they change."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import treemax
from treemax import modelfile
from treemax.replacing import replacing
from treemax.serving.served_model import ServedModel, can_learn
from treemax.zip_layout import HEADER_MEMBER


def load_copy(name: str, path: Path, folder: Path, learns: bool) -> ServedModel:
    """Load a model from a copy of its file; the copy is made and verified if there is none.

    The copy is memory-mapped, by all workers. The file itself may then be overwritten in place, which would change a
    model that is mapped from it, or end the process.
    """
    fingerprint = _fingerprint(path)
    copy = copy_of(folder, fingerprint)
    if not copy.exists() or copy.stat().st_size != path.stat().st_size:
        folder.mkdir(parents=True, exist_ok=True)
        incoming = folder / f"incoming-{os.getpid()}.treemax"
        try:
            with path.open("rb") as source, replacing(incoming) as target:
                shutil.copyfileobj(source, target, 2**20)
            _served(name, incoming, fingerprint, learns, verify=True).warm_up()
            fingerprint = _fingerprint(incoming)  # the file may have changed before it was copied
            copy = copy_of(folder, fingerprint)
            incoming.replace(copy)
        finally:
            incoming.unlink(missing_ok=True)
    served = _served(name, copy, fingerprint, learns)
    served.warm_up()
    return served


def copy_of(folder: Path, fingerprint: str) -> Path:
    """Return where the copy of a model file is kept."""
    return folder / f"file-{fingerprint[:32]}.treemax"


def remove_copies(folder: Path, kept: set[str]) -> None:
    """Remove copies of model files but those with these fingerprints; processes that have mapped them keep them."""
    names = {copy_of(folder, fingerprint).name for fingerprint in kept}
    for path in folder.glob("file-*.treemax"):
        if path.name not in names:
            with contextlib.suppress(OSError):
                path.unlink()


def _served(name: str, path: Path, fingerprint: str, learns: bool, verify: bool = False) -> ServedModel:
    model = treemax.load(path, verify=verify)
    check_servable(model, name)
    return ServedModel(name, model, fingerprint, learns and can_learn(model))


def check_servable(model: Any, name: str) -> None:
    """Raise if a model does not answer with labels."""
    if not hasattr(model, "predict_topk") or not hasattr(getattr(model, "estimator", model), "label_index_"):
        raise ValueError(f"{name} is a {type(model).__name__}; only classifiers can be served.")


def _fingerprint(path: Path) -> str:
    """Return a hash of the header, which has the checksums of all arrays."""
    try:
        with zipfile.ZipFile(path) as archive:
            return hashlib.sha256(archive.read(HEADER_MEMBER)).hexdigest()
    except (zipfile.BadZipFile, KeyError, EOFError, NotImplementedError, zipfile.LargeZipFile):
        raise modelfile.ModelFileError(f"{path}: is not a model file, or is not complete.") from None


FileState = tuple[int, int, int]


def file_state(path: Path) -> FileState | None:
    """Return what changes when a file is replaced or written; None while there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


class LoadedFile(NamedTuple):
    """A model and the state of its file before it was loaded."""

    state: FileState | None
    served: ServedModel


def load_file(name: str, path: Path, folder: Path, learns: bool) -> LoadedFile:
    """Load a model from a copy of its file, and remember the state of the file."""
    state = file_state(path)
    return LoadedFile(state, load_copy(name, path, folder, learns))


class WatchedModel:
    """The newest version of a model file; while it cannot be loaded, the previous version is served."""

    def __init__(self, name: str, path: Path, folder: Path, loaded: LoadedFile) -> None:
        self.name, self.path, self.folder = name, path, folder
        self.error: str | None = None  # why the file that is there now is not served
        self._state, self.served = loaded

    def refresh(self) -> None:
        """Load the file again if it changed."""
        state = file_state(self.path)
        if state == self._state or state is None:
            return
        self._state = state
        try:
            new = self._load()
        except (ValueError, OSError, MemoryError) as error:
            self.error = str(error)
            return
        self.error = None
        self._serve(new)

    @property
    def problem(self) -> str | None:
        """The error that /health reports."""
        return self.error

    def _load(self) -> ServedModel:
        raise NotImplementedError

    def _serve(self, new: ServedModel) -> None:
        raise NotImplementedError


class StaticModel(WatchedModel):
    """A model that does not learn."""

    def __init__(self, name: str, path: Path, folder: Path, loaded: LoadedFile) -> None:
        super().__init__(name, path, folder, loaded)
        remove_copies(folder, {self.served.fingerprint})

    def _load(self) -> ServedModel:
        return load_copy(self.name, self.path, self.folder, learns=False)

    def _serve(self, new: ServedModel) -> None:
        if new.fingerprint != self.served.fingerprint:
            self.served = new
            remove_copies(self.folder, {new.fingerprint})

    def close(self) -> None:
        """Nothing to close."""
