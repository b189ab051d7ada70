"""Labels and weights as text; in formats with integers and strings, the first label decides for the whole file."""

from __future__ import annotations

import math
import re
from typing import Any

from treemax.formats.errors import quoted
from treemax.inputs.limits import LEAST, MOST

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


def _integer(label: str) -> int:
    """Parse an integer label, which may be written as 1.0 or +1."""
    if not NUMBER.fullmatch(label):
        raise ValueError(f"the labels before this one are integers, got {quoted(label)}")
    value = int(label) if _INTEGER.fullmatch(label) else float(label)
    if value != value // 1 or abs(value) > 10**18:
        raise ValueError(f"the label is not an integer, got {quoted(label)}")
    return int(value)


def weight_of(text: str) -> float:
    """Parse the weight of an example; raise ValueError unless it is zero or in the range of weights.

    >>> weight_of("2.5")
    2.5
    """
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not (weight == 0 or LEAST <= weight <= MOST):
        raise ValueError(f"the weight is neither 0 nor a number from {LEAST:g} to {MOST:g}, got {text!r:.40}")
    return weight
