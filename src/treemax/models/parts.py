"""The numbers and arrays that a model file holds, checked before they are believed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from treemax.memory import available_bytes, format_bytes
from treemax.modelfile import LARGEST

MOST_COUNTED = 2**62  # of whatever is counted: so much more can be learned before 64 bits are full

Settings = TypeVar("Settings")


def expect(arrays: dict[str, NDArray[Any]], name: str, kind: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    """An array of this type and shape; a ValueError if it has others."""
    array = arrays[name]
    if array.dtype != kind or array.shape != shape:
        raise ValueError(
            f"{name} has dtype {array.dtype} and shape {array.shape}, expected {np.dtype(kind)} {shape}"
        )
    return array


def expect_counts(
    arrays: dict[str, NDArray[Any]],
    name: str,
    kind: Any,
    shape: tuple[int, ...],
    least: float = 0,
    most: float = MOST_COUNTED,
) -> NDArray[Any]:
    """The same for what was counted: nothing is below `least` or above `most`."""
    array = expect(arrays, name, kind, shape)
    if array.size and not (array.min() >= least and array.max() <= most):
        raise ValueError(f"{name} has numbers that are not from {least} to {most}")
    return array


def expect_squares(arrays: dict[str, NDArray[Any]], name: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """The same for AdaGrad's sums of squares, which may be large, but not negative."""
    return expect_counts(arrays, name, np.float32, shape, most=np.inf)


def check_memory(what: str, n_bytes: int) -> None:
    """Refuse what would unfold to more than memory has, before anything is allocated."""
    available = available_bytes()
    if n_bytes > 0.8 * available:
        raise ValueError(
            f"{what} would need {format_bytes(n_bytes)}, and {format_bytes(available)} is available"
        )


def whole_number(name: str, value: Any, least: int = 0, most: int = MOST_COUNTED) -> int:
    """A whole number of the header; a ValueError if it is none, or not from `least` to `most`."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} is {value!r:.40}, expected a whole number from {least} to {most}")
    return value


def whole_numbers(name: str, values: Any, n: int) -> NDArray[np.int64]:
    """So many counts of the header."""
    if not isinstance(values, list) or len(values) != n:
        raise ValueError(f"{name} is {values!r:.40}, expected {n} whole numbers")
    return np.array([whole_number(name, value) for value in values], dtype=np.int64)


def real_number(name: str, value: Any, least: float = 0.0, most: float = LARGEST) -> float:
    """A number of the header; a ValueError if it is none, or not from `least` to `most`."""
    if type(value) not in (int, float) or not least <= value <= most:
        raise ValueError(f"{name} is {value!r:.40}, expected a number from {least:g} to {most:g}")
    return float(value)


def truth(name: str, value: Any) -> bool:
    """A truth value of the header; a ValueError if it is none."""
    if type(value) is not bool:
        raise ValueError(f"{name} is {value!r:.40}, expected true or false")
    return value


def _text(name: str, value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"{name} is {value!r:.40}, expected a string")
    return value


_KINDS: dict[str, Callable[[str, Any], Any]] = {
    "bool": truth,
    "float": real_number,
    "int": lambda name, value: whole_number(name, value, least=1, most=2**31),
    "str": _text,
}


def settings_from(kind: type[Settings], saved: Any) -> Settings:
    """Settings of learning from the header: a data class of numbers that are not negative, truth values and strings."""
    if not isinstance(saved, dict):
        raise ValueError(f"the settings are {saved!r:.40}")
    types = {field.name: str(field.type) for field in fields(kind)}  # type: ignore[arg-type]
    for name, value in saved.items():
        own = types.get(name)
        if own is None:
            raise TypeError(f"unexpected setting {name!r:.40}")
        if not (value is None and own.endswith("| None")):
            _KINDS[own.removesuffix(" | None")](name, value)
    return kind(**saved)
