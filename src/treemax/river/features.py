"""Rows of the kernels from river's dictionaries of features."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Mapping
from numbers import Real
from typing import Any

import numpy as np

from treemax.inputs.rows import SparseRows
from treemax.kernels.validation import LARGEST
from treemax.parallel.locks import fork_safe

LEAST_COLUMNS = 63
_NUMBERING = fork_safe(threading.Lock())


class Numbers:
    """Consecutive numbers of hashable things, by arrival. Several threads may add to it.

    >>> numbers = Numbers()
    >>> numbers.add(["b", "a"]), numbers.of("a"), numbers.things
    (None, 1, ['b', 'a'])
    """

    def __init__(self) -> None:
        self.things: list[Any] = []
        self._numbers: dict[Hashable, int] = {}
        self.of = self._numbers.get

    def __len__(self) -> int:
        return len(self.things)

    def add(self, things: Iterable[Hashable]) -> None:
        """Number those that have no number yet."""
        with _NUMBERING:
            for thing in things:
                if thing not in self._numbers:
                    self.things.append(thing)
                    self._numbers[thing] = len(self.things) - 1

    def __getstate__(self) -> list[Any]:
        return list(self.things)

    def __setstate__(self, things: list[Any]) -> None:
        self.__init__()  # type: ignore[misc]
        self.add(things)


class Columns:
    """A column for each feature, by arrival.

    A string is a category, and every category of a feature has a column of its own, as with river's `OneHotEncoder`. None,
    NaN and zero stand for a feature that is absent.

    >>> columns = Columns()
    >>> columns.rows([{"size": 2, "colour": "red"}], learning=True).values.tolist()
    [2.0, 1.0]
    >>> columns.rows([{"size": 3, "colour": "blue"}]).values.tolist()
    [3.0]
    """

    def __init__(self) -> None:
        self._numbers = Numbers()

    def rows(self, features: Iterable[Mapping[Hashable, Any]], learning: bool = False) -> SparseRows:
        """Return the rows of features; new ones get a column if the rows are learned, else they are left out."""
        indices: list[int] = []
        values: list[float] = []
        indptr = [0]
        for x in features:
            entries = _entries(x)
            if learning:
                self._add(entries)
            number = self._numbers.of
            known = sorted((column, value) for name, value in entries if (column := number(name)) is not None)
            indices += [column for column, _ in known]
            values += [value for _, value in known]
            indptr.append(len(indices))
        return SparseRows(
            np.array(indptr, dtype=np.int64),
            np.array(indices, dtype=np.uint32),
            np.array(values, dtype=np.float32),
            1 << max(LEAST_COLUMNS, len(self._numbers) - 1).bit_length(),  # so that models rarely grow
        )

    def _add(self, entries: list[tuple[Hashable, float]]) -> None:
        """Add columns for new features, in an order that does not depend on that of the dictionary."""
        new = [name for name, _ in entries if self._numbers.of(name) is None]
        if new:
            self._numbers.add(sorted(new, key=repr))


def _entries(x: Mapping[Hashable, Any]) -> list[tuple[Hashable, float]]:
    """Return the names and values of the features that are present."""
    if not isinstance(x, Mapping):
        raise ValueError(
            f"x is a {type(x).__name__}, expected a dictionary of features. Put a transformer before the classifier, such as "
            "river's feature_extraction.BagOfWords for texts."
        )
    entries: list[tuple[Hashable, float]] = []
    for name, value in x.items():
        if isinstance(value, str):
            entries.append(((name, "\0is", value), 1.0))
        elif isinstance(value, Real | np.bool_):
            number = float(value)
            if -LARGEST <= number <= LARGEST:
                if number:
                    entries.append((name, number))
            elif number == number:
                raise ValueError(f"Feature {name!r} is {value!r}, beyond {LARGEST:.0e}. Scale it, or leave it out.")
        elif value is not None:
            raise ValueError(
                f"Feature {name!r} is {value!r:.60} ({type(value).__name__}), expected a number, a bool or a string."
            )
    return entries
