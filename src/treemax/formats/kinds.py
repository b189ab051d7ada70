"""Labels of formats that allow integers and strings: the first label decides for the whole file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from treemax.formats.errors import quoted
from treemax.formats.examples import integer_labels, string_labels
from treemax.inputs.labels import RaggedLabels

NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_INTEGER = re.compile(r"[+-]?\d{1,18}", re.ASCII)


class LabelKind:
    """Whether the labels of a file are strings or integers, decided by the first label.

    >>> kind = LabelKind()
    >>> kind.accept(["7"]), kind.accept(["-1", "3"])
    ([7], [-1, 3])
    >>> kind.accept(["cat"])
    Traceback (most recent call last):
    ...
    ValueError: the labels before this one are integers, got 'cat'
    """

    def __init__(self) -> None:
        self.strings: bool | None = None

    def accept(self, labels: list[str]) -> list[Any]:
        """Convert labels given as text; raises for text in a file of integer labels."""
        strings = self.strings
        if strings is None:
            strings = not all(NUMBER.fullmatch(label) for label in labels)
        accepted: list[Any] = labels if strings else [_integer(label) for label in labels]
        if labels:
            self.strings = strings
        return accepted

    def check(self, labels: list[Any]) -> None:
        """Raise if typed labels mix strings and integers."""
        if not labels:
            return
        strings = isinstance(labels[0], str) if self.strings is None else self.strings
        for label in labels:
            if isinstance(label, str) != strings:
                raise ValueError(
                    f"the labels before this one are {'strings' if strings else 'integers'}, got {label!r:.60}"
                )
        self.strings = strings

    def labels(self, lists: Sequence[Sequence[Any]]) -> RaggedLabels:
        """Convert accepted label lists to RaggedLabels."""
        if self.strings is not False:
            return string_labels(lists)
        indptr = np.zeros(len(lists) + 1, dtype=np.int64)
        np.cumsum([len(labels) for labels in lists], out=indptr[1:])
        return integer_labels(indptr, np.array([i for row in lists for i in row], dtype=np.int64))


def _integer(label: str) -> int:
    """Parse an integer label, which may be written as 1.0 or +1."""
    if not NUMBER.fullmatch(label):
        raise ValueError(f"the labels before this one are integers, got {quoted(label)}")
    value = int(label) if _INTEGER.fullmatch(label) else float(label)
    if value != value // 1 or abs(value) > 10**18:
        raise ValueError(f"the label is not an integer, got {quoted(label)}")
    return int(value)
