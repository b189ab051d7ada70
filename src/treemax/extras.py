"""Packages that not everybody needs: imported when they are used, and asked for in words."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class MissingExtra(ImportError):
    """A package that is not installed, and how to get it."""


def imported(module: str, purpose: str, extra: str) -> Any:
    """A module of an extra.

    >>> imported("no_such_module", "Dancing", "dance")
    Traceback (most recent call last):
    ...
    treemax.extras.MissingExtra: Dancing needs no_such_module: pip install 'treemax[dance]'.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name != package:  # it is there, and something else is wrong
            raise
        raise MissingExtra(f"{purpose} needs {package}: pip install 'treemax[{extra}]'.") from None
