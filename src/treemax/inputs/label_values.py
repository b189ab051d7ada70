"""The values of labels: strings or integers, never both, as one array."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

LONGEST_FIXED = 100  # characters up to which labels are returned as fixed-width NumPy strings


def dtype_for(labels: Iterable[Any], dtype: np.dtype) -> np.dtype:
    """Return the dtype for arrays of labels: fixed-width strings only if no label is long.

    With fixed width, one label of a million characters would make every other as large. NumPy also strips
    trailing NULs.

    >>> dtype_for(["cat"], np.dtype(str)), dtype_for(["cat", "c" * 101], np.dtype(str))
    (dtype('<U'), dtype('O'))
    """
    if dtype.kind != "U" or all(len(label) <= LONGEST_FIXED and label[-1:] != "\0" for label in labels):
        return dtype
    return np.dtype(object)


def uniform_values(labels: list[Any], name: str, indptr: NDArray[np.int64] | None) -> tuple[NDArray[Any], np.dtype]:
    """Convert labels that are all strings or all integers to one array; errors name the row."""

    def row_of(position: int) -> int:
        return position if indptr is None else int(np.searchsorted(indptr, position, side="right")) - 1

    types = set(map(type, labels))
    if all(issubclass(kind, str) for kind in types):
        out = np.empty(len(labels), dtype=object)
        out[:] = labels if types <= {str} else [str.__str__(label) for label in labels]
        return out, np.dtype(object)
    integers = (int, bool, np.integer, np.bool_)
    if all(issubclass(kind, integers) for kind in types):
        dtype = np.dtype(bool if types <= {bool, np.bool_} else np.int64)
        try:
            return np.array(labels, dtype=np.int64), dtype
        except OverflowError:
            raise ValueError(f"{name} has labels outside the range of 64-bit integers.") from None
    if all(issubclass(kind, (*integers, float, np.floating)) for kind in types):
        return as_integers(_floats(labels, name), name, row_of), np.dtype(np.float64)
    first = labels[0]
    for position, label in enumerate(labels):
        if not isinstance(label, (str, *integers)):
            raise ValueError(
                f"Unknown label type: {name} has {label!r} ({type(label).__name__}) at row {row_of(position)}; "
                "labels must be strings or integers."
            )
        if isinstance(label, str) != isinstance(first, str):
            raise ValueError(
                f"{name} mixes strings and integers: row {row_of(position)} has {label!r} after {first!r}. "
                "Labels must be all strings or all integers."
            )
    raise AssertionError("unreachable")


def as_integers(y: NDArray[Any], name: str, row_of: Callable[[int], int] = int) -> NDArray[np.int64]:
    """Convert integer labels to int64; floats must be integers that float64 represents exactly."""
    if y.dtype.kind == "f":
        for valid, complaint in (
            (np.isfinite(y), "Input {name} contains NaN or infinity at row {row}."),
            (
                y == np.floor(y),
                "Unknown label type: continuous. {name} has {label} at row {row}; labels must be strings or integers.",
            ),
            (
                np.abs(y) < 2**53,
                "{name} has {label} at row {row}: a float of that size does not represent integers exactly; pass integers.",
            ),
        ):
            if not valid.all():
                at = int(np.argmin(valid))
                raise ValueError(complaint.format(name=name, label=y[at], row=row_of(at)))
    elif y.size and y.max() > np.iinfo(np.int64).max:
        raise ValueError(f"{name} has labels outside the range of 64-bit integers.")
    return y.astype(np.int64)


def _floats(labels: list[Any], name: str) -> NDArray[np.float64]:
    try:
        return np.array(labels, dtype=np.float64)
    except OverflowError:
        raise ValueError(f"{name} has labels outside the range of 64-bit integers.") from None


def distinct(numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the sorted distinct numbers and the inverse, as np.unique with return_inverse.

    >>> distinct(np.array([7, 3, 7]))
    (array([3, 7]), array([1, 0, 1]))
    """
    least, most = (int(numbers.min()), int(numbers.max())) if len(numbers) else (0, 0)
    if most - least > 8 * len(numbers):  # too sparse for a table
        ordered = np.sort(numbers)
        ordered = ordered[np.append(True, ordered[1:] != ordered[:-1])]
        return ordered, np.searchsorted(ordered, numbers)
    there = np.zeros(most - least + 1, dtype=bool)
    there[numbers - least] = True
    return np.flatnonzero(there) + least, (np.cumsum(there) - 1)[numbers - least]
