"""A backend of Annif, the tool for subject indexing. Needs the extra: `pip install 'treemax[annif]'`.

Importing `treemax` imports neither this package nor Annif, and importing this package does not import Annif either.
"""

from __future__ import annotations

from treemax.annif.registration import ProductionConfig, register

__all__ = ["ProductionConfig", "TreemaxBackend", "register"]


def __getattr__(name: str) -> object:
    if name != "TreemaxBackend":
        raise AttributeError(f"module 'treemax.annif' has no attribute {name!r}")
    from treemax.annif.backend import TreemaxBackend

    return TreemaxBackend
