"""Whether what was learned can be used: neither NaN nor infinity anywhere, and no weight that makes such of a score."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.rows import read_only
from treemax.kernels.validation import largest_magnitude

LARGEST_WEIGHT = 1e18  # times the largest value of a feature, and added up over many, still a float32
_SUMS = ("squares", "chunks", "cells")  # arrays with AdaGrad's sums, which may be as large as they like


def check_learned(model: Any, name: str, largest: float = LARGEST_WEIGHT) -> None:
    """Refuse a model whose weights have overflowed, or soon will, before it takes the place of another."""
    for part, array in arrays_of(model):
        limit = np.inf if any(word in part for word in _SUMS) else largest
        if not _largest(array) < limit:
            raise ValueError(
                f"{name} has learned weights that are not finite numbers, or too large, so nothing was kept of this training. "
                "Lower the learning rate, and bring the features to values of about one."
            )


def _largest(array: NDArray[Any]) -> float:
    """The largest absolute value of an array of floats, infinite or NaN if one is; of float32, at the speed of the memory."""
    if array.dtype == np.float32 and array.flags.c_contiguous:
        return float(largest_magnitude(read_only(array)))
    return float(np.abs(array).max(initial=0.0)) if array.dtype.kind == "f" else 0.0


def arrays_of(thing: Any, name: str = "") -> Iterator[tuple[str, NDArray[Any]]]:
    """All arrays of a model, which is made of data classes, tuples and lists, and what they are called."""
    if isinstance(thing, np.ndarray):
        yield name, thing
    elif isinstance(thing, tuple | list):
        for field, part in zip(getattr(thing, "_fields", [name] * len(thing)), thing):
            yield from arrays_of(part, field)
    elif is_dataclass(thing) or type(thing).__module__.startswith("treemax."):
        for field, part in getattr(thing, "__dict__", {}).items():
            yield from arrays_of(part, field)
