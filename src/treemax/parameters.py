"""Validation of parameters."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection
from functools import cache
from typing import Any

import numpy as np

LARGEST_WHOLE = 2**31 - 1  # largest integer parameter: the product of a few fits into 64 bits
LARGEST, SMALLEST = 3.4e38, 1.2e-38  # range of float32


class CheckedParameters:
    """Mixin of estimators that validate their parameters at every use, not only in `fit`.

    Parameters may change after fitting (`set_params`), or come from a file. Validation is cached: later uses only
    compare the objects. NumPy scalars become Python numbers: small integer types would overflow in products, and Numba
    would compile the kernels again for each type.
    """

    _checked: tuple[Any, ...] | None = None
    _get_param_names: Callable[[], list[str]]  # of scikit-learn

    def _check_parameters(self) -> None:
        """Raise a ValueError that names the parameter and the value it got."""

    def _check_when_used(self) -> bool:
        """Validate the parameters if one has changed since the last check; return whether one had."""
        kind: Any = type(self)
        read = _values_of(kind)
        given = read(self.__dict__)
        if self._checked is not None and all(map(operator.is_, given, self._checked)):
            return False
        # Imported late, so that the layers for PyTorch, which only check numbers, import neither Numba nor scikit-learn.
        from treemax.inputs.weights import check_class_weight
        from treemax.parallel.threads import thread_count

        seen = object.__new__(kind)  # a snapshot, in case another thread sets parameters
        seen.__dict__.update(self.__dict__, **dict(zip(kind._get_param_names(), given)))
        seen._check_parameters()
        thread_count(seen.__dict__.get("n_jobs"))
        _check_seed(seen.__dict__.get("random_state"))
        check_class_weight(seen.__dict__.get("class_weight"))
        checked = tuple(map(_plain, given))
        for name, value, plain in zip(kind._get_param_names(), given, checked):
            if plain is not value and self.__dict__[name] is value:
                self.__dict__[name] = plain
        self._checked = checked
        return True


def _check_seed(given: Any) -> None:
    from sklearn.utils import check_random_state

    try:
        check_random_state(given)
    except ValueError:
        raise ValueError(
            f"random_state must be None, a RandomState or an integer from 0 to 4294967295, got {given!r:.60}."
        ) from None


@cache
def _values_of(estimator: Any) -> Callable[[dict[str, Any]], tuple[Any, ...]]:
    """Return a function that gets the values of all parameters from an estimator's attributes."""
    names = estimator._get_param_names()
    return operator.itemgetter(*names) if len(names) > 1 else lambda given: tuple(given[name] for name in names)


def _plain(value: Any) -> Any:
    """Convert a NumPy scalar to a Python number; return anything else unchanged."""
    if isinstance(value, np.floating):
        return float(value)
    return value.item() if isinstance(value, np.generic) else value


def is_auto(value: Any) -> bool:
    """Return whether a parameter is "auto"."""
    return isinstance(value, str) and value == "auto"


def check_number(
    name: str, value: Any, *, whole: bool = False, least: float | None = None, above: float | None = None,
    most: float | None = None, auto: bool = False, optional: bool = False,
) -> None:  # fmt: skip
    """Raise unless a parameter is a number within its bounds; `auto` allows "auto", and `optional` None."""
    if (auto and is_auto(value)) or (optional and value is None):
        return
    kinds = (int, np.integer) if whole else (int, float, np.integer, np.floating)
    good = isinstance(value, kinds) and not isinstance(value, bool)
    value = value.item() if good and isinstance(value, np.generic) else value
    largest = LARGEST_WHOLE if whole else LARGEST
    if good and value > largest and (most is None or most > largest):
        most = largest
    good = good and -largest <= value <= largest
    if above == 0 and good and 0 < value < SMALLEST:
        above, good = SMALLEST, False
    good = good and (least is None or value >= least) and (above is None or value > above)
    if not (good and (most is None or value <= most)):
        bounds = [f"at least {least}"] if least is not None else [f"above {above}"] if above is not None else []
        bounds += [f"at most {most}"] if most is not None else []
        kind = "an integer" if whole else "a number"
        wanted = " ".join([kind, " and ".join(bounds)]).rstrip()
        raise ValueError(f"{name} must be {wanted}, got {_shown(value)}.")


def check_choice(name: str, value: Any, choices: Collection[str], *, auto: bool = False) -> None:
    """Raise unless a parameter is one of `choices`; `auto` allows "auto"."""
    if not (isinstance(value, str) and (value in choices or (auto and value == "auto"))):
        wanted = "'auto' or one of" if auto else "one of"
        raise ValueError(f"{name} must be {wanted} {', '.join(choices)}, got {_shown(value)}.")


def check_flag(name: str, value: Any) -> None:
    """Raise unless a parameter is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} must be True or False, got {_shown(value)}.")


def _shown(value: Any) -> str:
    """Format a value for an error message, truncated."""
    try:
        text = repr(value)
    except ValueError:  # Python does not write out integers of thousands of digits
        return f"an integer of about {value.bit_length() * 3 // 10} digits"
    return text if len(text) <= 400 else f"{text[:60]}... ({len(text)} characters)"
