"""Adapters that make online classifiers estimators of river. Needs the extra: `pip install 'treemax[river]'`.

Importing `treemax` imports neither this package nor river.
"""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("river") is None:
    raise ImportError("treemax.river needs river, which is not installed: pip install 'treemax[river]'")

from treemax.river.classifiers import TreemaxClassifier, TreemaxMultiLabelClassifier

__all__ = ["TreemaxClassifier", "TreemaxMultiLabelClassifier"]
