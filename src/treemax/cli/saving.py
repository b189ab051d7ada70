"""Save the model at the end of a command, elsewhere if the disk is full."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from treemax.cli.interruption import interruption

OWN_FOLDER = "treemax-"  # prefix of the folders created here


def check_disk_space(path: str, examples: Any, model: Any) -> None:
    """Raise before training if the disk has no space for the labels, and the weights if their number is known."""
    import numpy as np

    from treemax.memory import format_bytes
    from treemax.models import OneVsAll

    labels = set(examples.labels.values.tolist())
    needed = 4096 + 16 * len(labels) + sum(len(label) for label in labels if isinstance(label, str))
    if isinstance(model, OneVsAll) and isinstance(examples.rows, np.ndarray):
        needed += 4 * examples.rows.shape[1] * len(labels)
    folder = Path(path).absolute().parent
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise click.ClickException(
            f"{path}: the model needs at least {format_bytes(needed)}, but {format_bytes(free)} is free in {folder}."
        )


def save_model(model: Any, path: str, **options: Any) -> str:
    """Save a model, elsewhere if `path` cannot be written; return its path. Ctrl-C is ignored from here on."""
    from treemax.modelfile import ModelFileError

    interruption.hold()
    place = path
    for attempt in range(100):
        try:
            model.save(place, **options)
            return place
        except (OSError, ModelFileError) as error:
            named = isinstance(error, OSError) and error.filename and error.strerror
            click.echo(f"{error.filename}: {error.strerror}" if named else str(error), err=True)  # type: ignore[union-attr]
            _remove_own_folder(place)
            found = _another_place(path, attempt)
        if found is None:
            break
        place = found
    raise click.ClickException(f"{path}: the model could not be written, neither there nor elsewhere.")


def finish(path: str, place: str) -> None:
    """Raise with the path of the model if it is not at `path`."""
    if place != path:
        raise click.ClickException(f"{path} could not be written: the model is in {place}.")


def _another_place(path: str, attempt: int) -> str | None:
    """Return the next path to try: from a prompt on a terminal, else the temporary folder, then the home folder."""
    if sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty():
        return str(click.prompt("The model is still in memory. Another file to write it to", err=True))
    folders = [tempfile.gettempdir(), str(Path.home())]
    if attempt >= len(folders):
        return None
    try:
        folder = tempfile.mkdtemp(prefix=OWN_FOLDER, dir=folders[attempt])
    except OSError:
        return str(Path(folders[attempt], Path(path).name))  # raises with the reason
    return str(Path(folder, Path(path).name))


def _remove_own_folder(place: str) -> None:
    """Remove the folder created for a model that could not be written there."""
    folder = Path(place).parent
    if folder.name.startswith(OWN_FOLDER):
        with contextlib.suppress(OSError):  # not empty
            folder.rmdir()
