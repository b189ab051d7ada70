"""Makes the backend known to Annif, whose registry has built-in backends only.

The command `annif` finds it by itself: it loads the entry points of Flask's commands, and `command` is one. Servers that do
not start by that command set `ANNIF_CONFIG=treemax.annif.ProductionConfig`. Programs call `register`.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from treemax.extras import import_extra

BACKEND = "treemax"


def register() -> None:
    """Make Annif know the backend `treemax`, for projects with `backend=treemax`.

    Examples
    --------
    >>> import treemax.annif
    >>> treemax.annif.register()  # doctest: +SKIP
    """
    import_extra("annif.backend", "The backend for Annif", "annif")._backend_fns[BACKEND] = _backend


def _backend() -> Any:
    from treemax.annif.backend import TreemaxBackend

    return TreemaxBackend


class ProductionConfig:
    """Annif's configuration of the same name, which registers the backend; its name goes into `ANNIF_CONFIG`."""

    DEBUG = False
    TESTING = False
    PROJECTS_CONFIG_PATH = os.environ.get("ANNIF_PROJECTS", default="")
    DATADIR = os.environ.get("ANNIF_DATADIR", default="data")
    INITIALIZE_PROJECTS = True
    MAX_FORM_MEMORY_SIZE = 20_000_000


@click.command(hidden=True)
def command() -> None:
    """Say whether the backend `treemax` is registered."""
    click.echo("The backend treemax is registered." if "annif" in sys.modules else "This is not the command annif.")


if "annif" in sys.modules:  # loaded by the command `annif`, or as its configuration
    register()
