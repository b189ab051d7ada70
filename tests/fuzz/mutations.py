"""Changes to the header and the arrays of a model file, written as data so that they can be kept and repeated."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

Parts = tuple[dict[str, Any], dict[str, np.ndarray]]
Change = list[Any]  # ["array", name, operation, ...] or ["header", path, operation, ...]

DTYPES = ("|b1", "|i1", "|u1", "<i4", "<u4", "<i8", "<u8", "<f4", "<f8", "<f2")
INTEGERS = (
    0,
    1,
    2,
    -1,
    -2,
    3,
    255,
    2**15,
    2**31 - 2,
    2**31 - 1,
    -(2**31),
    2**31,
    2**32 - 1,
    2**62,
    2**63 - 1,
    -(2**63),
)
FLOATS = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    float("nan"),
    float("inf"),
    float("-inf"),
    3e38,
    -3e38,
    1e30,
    -1e30,
    1e-40,
    -1e-40,
    1e15,
    1e300,
)
HEADER_VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2, 3, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1, -(2**63), 0.5, -0.5, 1e300, -1e300,
    1e-300, "", "x", [], [1], {}, {"x": 1},
)  # fmt: skip


def applied(changes: list[Change], parts: Parts) -> Parts:
    """The header and arrays with all changes made."""
    header, arrays = copy.deepcopy(parts[0]), dict(parts[1])
    for where, target, operation, *arguments in changes:
        if where == "header":
            _change_header(header, target, operation, arguments)
        elif target in arrays:
            changed = _changed(arrays.pop(target), operation, arguments, arrays)
            if changed is not None:
                arrays[target] = changed
    return header, arrays


def _change_header(header: Any, path: list[Any], operation: str, arguments: list[Any]) -> None:
    for step in path[:-1]:
        header = header[step]
    if operation == "remove":
        del header[path[-1]]
    else:
        header[path[-1]] = arguments[0]


def _changed(
    array: np.ndarray, operation: str, arguments: list[Any], others: dict[str, np.ndarray]
) -> np.ndarray | None:
    flat = array.copy().reshape(-1)
    if operation == "remove":
        return None
    if operation == "set":
        for place, value in zip(*arguments):
            flat[place] = _as(value, array.dtype)
        return flat.reshape(array.shape)
    if operation == "add":
        with np.errstate(all="ignore"):
            flat[arguments[0]] = (flat[arguments[0] : arguments[0] + 1] + np.array([arguments[1]]).astype(array.dtype))[
                0
            ]
        return flat.reshape(array.shape)
    if operation == "fill":
        return np.full(array.shape, _as(arguments[0], array.dtype))
    if operation == "swap":
        flat[arguments] = flat[arguments[::-1]]
        return flat.reshape(array.shape)
    if operation == "shuffle":
        return np.random.default_rng(arguments[0]).permutation(flat).reshape(array.shape)
    if operation == "length":
        return np.resize(array, (arguments[0], *array.shape[1:])) if array.ndim else array
    if operation == "dtype":
        with np.errstate(all="ignore"):
            return array.astype(arguments[0])
    if operation == "shape":
        return array.reshape(arguments[0])
    if operation == "other":
        return np.resize(others[arguments[0]], array.shape).astype(array.dtype)
    raise ValueError(f"unknown operation {operation}")


def _as(value: float, dtype: np.dtype) -> Any:
    with np.errstate(all="ignore"):
        if dtype.kind in "iu":
            return np.array([int(value) % 2**64 if np.isfinite(value) else 0], dtype=np.uint64).astype(dtype)[0]
        return np.array([value], dtype=np.float64).astype(dtype)[0]


def random_changes(random: np.random.Generator, parts: Parts) -> list[Change]:
    """One change or a few together."""
    header, arrays = parts
    paths = _paths(header)
    n = int(random.choice([1, 1, 1, 2, 2, 3, 5]))
    return [
        _random_array_change(random, arrays)
        if arrays and random.random() < 0.75
        else _random_header_change(random, header, paths)
        for _ in range(n)
    ]


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value of a header."""
    keys = value.keys() if isinstance(value, dict) else range(min(8, len(value))) if isinstance(value, list) else ()
    found = [path] if path else []
    for key in keys:
        found += _paths(value[key], (*path, key))
    return found


def _random_header_change(random: np.random.Generator, header: Any, paths: list[tuple[Any, ...]]) -> Change:
    path = list(paths[random.integers(len(paths))])
    if random.random() < 0.1:
        return ["header", path, "remove"]
    value = header
    for step in path:
        value = value[step]
    choices = list(HEADER_VALUES)
    if isinstance(value, int | float) and not isinstance(value, bool):
        choices += [value + 1, value - 1, -value, value * 2, value * 1000] * 3
    if isinstance(value, list) and value:
        choices += [value[:-1], value + value[:1], value[::-1]] * 8
    return ["header", path, "set", choices[random.integers(len(choices))]]


def _random_array_change(random: np.random.Generator, arrays: dict[str, np.ndarray]) -> Change:
    name = list(arrays)[random.integers(len(arrays))]
    array = arrays[name]
    operation = random.choice(
        ["set", "add", "fill", "swap", "shuffle", "length", "dtype", "shape", "other", "remove"],
        p=[0.46, 0.15, 0.06, 0.08, 0.04, 0.08, 0.03, 0.03, 0.05, 0.02],
    )
    if array.size == 0 and operation in ("set", "add", "swap"):
        operation = "length"
    if operation in ("set", "fill"):
        places = random.integers(0, array.size, size=random.choice([1, 1, 1, 2, 4])).tolist() if array.size else []
        values = [_random_value(random, array) for _ in places or [0]]
        return ["array", name, "set", places, values] if operation == "set" else ["array", name, "fill", values[0]]
    arguments: dict[str, Any] = {
        "add": lambda: [int(random.integers(array.size)), int(random.choice([-1, 1, 2, 100]))],
        "swap": lambda: random.integers(0, array.size, 2).tolist(),
        "shuffle": lambda: [int(random.integers(2**31))],
        "length": lambda: [max(0, int((len(array) if array.ndim else 1) + random.choice([-1, 1, -2, 7, -1000])))],
        "dtype": lambda: [str(random.choice(DTYPES))],
        "shape": lambda: [[-1] if array.ndim != 1 else [1, -1] if array.size else [0, 3]],
        "other": lambda: [str(random.choice([other for other in arrays if other != name] or [name]))],
        "remove": list,
    }
    return ["array", name, str(operation), *arguments[str(operation)]()]


def _random_value(random: np.random.Generator, array: np.ndarray) -> float:
    if array.dtype.kind == "f" and random.random() < 0.9:
        return float(random.choice(FLOATS))
    near = [len(array) - 1, len(array), len(array) + 1] if array.ndim else []
    if array.size and random.random() < 0.3:
        return float(array.flat[random.integers(array.size)])
    choices = [*INTEGERS, *near, int(random.integers(0, 64))]
    return int(choices[random.integers(len(choices))])


def with_changed_number(array: np.ndarray, random: np.random.RandomState) -> np.ndarray:
    """Return the array of a model with a number changed, copied, swapped or removed, or in another order."""
    if len(array) == 0:
        return array
    changed = array.copy()
    at, raw, kind = random.randint(len(changed)), changed.view(f"u{changed.itemsize}"), random.randint(7)
    if kind == 0:
        raw[at] ^= raw.dtype.type(1 << random.randint(8 * changed.itemsize))
    elif kind == 1:
        raw[at] = raw[random.randint(len(changed))]
    elif kind == 2:
        raw[at] = raw.dtype.type(np.iinfo(raw.dtype).max >> random.randint(4))
    elif kind == 3:
        return np.delete(changed, at)
    elif kind == 4:
        both = [at, random.randint(len(changed))]
        raw[both] = raw[both[::-1]]
    elif kind == 5:
        return random.permutation(changed)
    else:
        raw[at] = raw.dtype.type(random.randint(20))
    return changed
