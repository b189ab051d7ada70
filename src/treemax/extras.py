"""Import of optional dependencies."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class MissingExtra(ImportError):
    """An optional dependency is not installed."""


def import_extra(module: str, purpose: str, extra: str) -> Any:
    """Import a module of an extra, or raise with the command to install it.

    >>> import_extra("no_such_module", "Dancing", "dance")
    Traceback (most recent call last):
    ...
    treemax.extras.MissingExtra: Dancing needs no_such_module: pip install 'treemax[dance]'.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name != package:  # the package is installed, but its import fails
            raise
        raise MissingExtra(f"{purpose} needs {package}: pip install 'treemax[{extra}]'.") from None
