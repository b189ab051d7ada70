"""The arrays that a model file holds, checked before they are believed."""

from __future__ import annotations

from typing import Any

from numpy import dtype
from numpy.typing import NDArray


def expect(arrays: dict[str, NDArray[Any]], name: str, kind: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    """An array of this type and shape; a ValueError if it has others."""
    array = arrays[name]
    if array.dtype != kind or array.shape != shape:
        raise ValueError(
            f"{name} has dtype {array.dtype} and shape {array.shape}, expected {dtype(kind)} {shape}"
        )
    return array
