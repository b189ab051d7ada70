"""Writing a model at the end of a command: what was learned is not lost where the place for it has no room."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
import numpy as np

from treemax.cli.interruption import interruption

OWN_FOLDER = "treemax-"  # how the names of folders begin that are made here


def check_room(path: str, examples: Any, model: Any) -> None:
    """Refuse a disk that has no room for the labels, and for the weights where their number is known, before training."""
    from treemax.memory import in_words
    from treemax.models import OneVsAll

    labels = set(examples.labels.values.tolist())
    needed = 4096 + 16 * len(labels) + sum(len(label) for label in labels if isinstance(label, str))
    if isinstance(model, OneVsAll) and isinstance(examples.rows, np.ndarray):
        needed += 4 * examples.rows.shape[1] * len(labels)
    folder = Path(path).absolute().parent
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise click.ClickException(
            f"{path}: the model will need {in_words(needed)} at least, and {in_words(free)} is free in {folder}."
        )


def save_model(model: Any, path: str, **options: Any) -> str:
    """Save a model, elsewhere if it cannot be saved at `path`; where it is now. From here on Ctrl-C waits."""
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
    """An error that says where the model is, if it is not where it should be."""
    if place != path:
        raise click.ClickException(f"{path} could not be written: the model is in {place}.")


def _another_place(path: str, attempt: int) -> str | None:
    """Where to try next: what the person at the terminal says, else the folder for temporary files, then the home."""
    if sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty():
        return str(click.prompt("The model is still in memory. Another file to write it to", err=True))
    folders = [tempfile.gettempdir(), str(Path.home())]
    if attempt >= len(folders):
        return None
    try:
        own = tempfile.mkdtemp(prefix=OWN_FOLDER, dir=folders[attempt])
    except OSError:
        return str(Path(folders[attempt], Path(path).name))  # fails, and says why
    return str(Path(own, Path(path).name))


def _remove_own_folder(place: str) -> None:
    """Remove the folder that was made for a model which could not be written there."""
    folder = Path(place).parent
    if folder.name.startswith(OWN_FOLDER):
        with contextlib.suppress(OSError):  # it is not empty
            folder.rmdir()
