"""The model that every experiment here is about."""

from __future__ import annotations

from typing import Any

from treemax import RecallTree


def recall_tree(**settings: Any) -> RecallTree:
    return RecallTree(**{"n_jobs": 1, "verbose": 0, **settings})
