"""Check that trained weights are finite, and small enough that scores are finite."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.rows import read_only
from treemax.kernels.validation import largest_magnitude

LARGEST_WEIGHT = 1e18  # sums of its products with the largest feature values fit in a float32
_SUMS = ("squares", "chunks", "cells")  # arrays with AdaGrad's sums, which are not limited


def check_learned(model: Any, name: str, largest: float = LARGEST_WEIGHT) -> None:
    """Raise ValueError if weights of a model are not finite, or so large that scores may overflow."""
    for part, array in arrays_of(model):
        limit = np.inf if any(word in part for word in _SUMS) else largest
        if not _largest(array) < limit:
            raise ValueError(
                f"{name} diverged: its weights are not finite numbers, or too large, so this training was discarded. "
                "Lower the learning rate, and scale the features to about one."
            )


def _largest(array: NDArray[Any]) -> float:
    """Return the largest absolute value of an array of floats; infinity or NaN if it has one."""
    if array.dtype == np.float32 and array.flags.c_contiguous:
        return float(largest_magnitude(read_only(array)))
    return float(np.abs(array).max(initial=0.0)) if array.dtype.kind == "f" else 0.0


def arrays_of(thing: Any, name: str = "") -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the name and value of every array of a model made of data classes, tuples and lists."""
    if isinstance(thing, np.ndarray):
        yield name, thing
    elif isinstance(thing, tuple | list):
        for field, part in zip(getattr(thing, "_fields", [name] * len(thing)), thing):
            yield from arrays_of(part, field)
    elif is_dataclass(thing) or type(thing).__module__.startswith("treemax."):
        for field, part in getattr(thing, "__dict__", {}).items():
            yield from arrays_of(part, field)
