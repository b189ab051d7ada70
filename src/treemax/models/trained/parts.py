"""Validation of the numbers and arrays of model files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from treemax.memory import available_bytes, format_bytes
from treemax.modelfile import LARGEST

MOST_COUNTED = 2**62  # limit of counts, so that they do not overflow 64 bits when training continues

Settings = TypeVar("Settings")


def expect(arrays: dict[str, NDArray[Any]], name: str, kind: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return an array; raise ValueError unless it has this dtype and shape."""
    array = arrays[name]
    if array.dtype != kind or array.shape != shape:
        raise ValueError(f"{name} has dtype {array.dtype} and shape {array.shape}, expected {np.dtype(kind)} {shape}")
    return array


def expect_counts(
    arrays: dict[str, NDArray[Any]],
    name: str,
    kind: Any,
    shape: tuple[int, ...],
    least: float = 0,
    most: float = MOST_COUNTED,
) -> NDArray[Any]:
    """Return an array as `expect`; raise ValueError if it has values outside `least` to `most`."""
    array = expect(arrays, name, kind, shape)
    if array.size and not (array.min() >= least and array.max() <= most):
        raise ValueError(f"{name} has values outside {least} to {most}")
    return array


def expect_squares(arrays: dict[str, NDArray[Any]], name: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return AdaGrad's sums of squares as `expect`; raise ValueError if they are negative."""
    return expect_counts(arrays, name, np.float32, shape, most=np.inf)


def check_memory(what: str, n_bytes: int) -> None:
    """Raise ValueError, before allocation, if `n_bytes` exceed the available memory."""
    available = available_bytes()
    if n_bytes > 0.8 * available:
        raise ValueError(f"{what} would need {format_bytes(n_bytes)}, but {format_bytes(available)} is available")


def whole_number(name: str, value: Any, least: int = 0, most: int = MOST_COUNTED) -> int:
    """Return an integer of the header; raise ValueError unless it is one from `least` to `most`."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} is {value!r:.40}, expected a whole number from {least} to {most}")
    return value


def whole_numbers(name: str, values: Any, n: int) -> NDArray[np.int64]:
    """Return a list of n counts of the header as an array."""
    if not isinstance(values, list) or len(values) != n:
        raise ValueError(f"{name} is {values!r:.40}, expected {n} whole numbers")
    return np.array([whole_number(name, value) for value in values], dtype=np.int64)


def real_number(name: str, value: Any, least: float = 0.0, most: float = LARGEST) -> float:
    """Return a number of the header; raise ValueError unless it is one from `least` to `most`."""
    if type(value) not in (int, float) or not least <= value <= most:
        raise ValueError(f"{name} is {value!r:.40}, expected a number from {least:g} to {most:g}")
    return float(value)


def truth(name: str, value: Any) -> bool:
    """Return a Boolean of the header; raise ValueError if it is none."""
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
    """Restore settings from the header: a data class of non-negative numbers, Booleans and strings."""
    if not isinstance(saved, dict):
        raise ValueError(f"the settings are {saved!r:.40}")
    types = {field.name: str(field.type) for field in fields(kind)}  # type: ignore[arg-type]
    for name, value in saved.items():
        expected = types.get(name)
        if expected is None:
            raise TypeError(f"unexpected setting {name!r:.40}")
        if not (value is None and expected.endswith("| None")):
            _KINDS[expected.removesuffix(" | None")](name, value)
    return kind(**saved)
