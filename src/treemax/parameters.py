"""Checks of parameters: errors that name the parameter and the value it got."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection
from functools import cache
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from treemax.parallel.threads import thread_count

LARGEST_WHOLE = 2**31 - 1  # of a parameter: products of a few of them stay within 64 bits
LARGEST, SMALLEST = 3.4e38, 1.2e-38  # as far as the float32 of the kernels goes


class CheckedParameters:
    """An estimator whose parameters are checked whenever they are used, not only when learning begins.

    They may change after fitting (`set_params`), or come from a file. Checking them takes time once: afterwards they
    are only compared with what was checked last, object by object. Numbers of NumPy become the same numbers of
    Python: small ones would overflow in products, and Numba would compile its kernels anew for each kind.
    """

    _checked: tuple[Any, ...] | None = None
    _get_param_names: Callable[[], list[str]]  # of scikit-learn

    def _check_parameters(self) -> None:
        """Raise a ValueError that names the parameter and the value it got."""

    def _check_when_used(self) -> bool:
        """Check the parameters where one of them is not what was checked last; says whether that was so."""
        kind: Any = type(self)
        read = _values_of(kind)
        given = read(self.__dict__)
        if self._checked is not None and all(map(operator.is_, given, self._checked)):
            return False
        seen = object.__new__(kind)  # these very values, whatever another thread sets meanwhile
        seen.__dict__.update(self.__dict__, **dict(zip(kind._get_param_names(), given)))
        seen._check_parameters()
        thread_count(seen.__dict__.get("n_jobs"))
        _check_seed(seen.__dict__.get("random_state"))
        checked = tuple(map(_plain, given))
        for name, value, plain in zip(kind._get_param_names(), given, checked):
            if plain is not value and self.__dict__[name] is value:
                self.__dict__[name] = plain
        self._checked = checked
        return True


def _check_seed(given: Any) -> None:
    try:
        check_random_state(given)
    except ValueError:
        raise ValueError(
            f"random_state must be None, a RandomState or an integer from 0 to 4294967295, got {given!r:.60}."
        ) from None


@cache
def _values_of(estimator: Any) -> Callable[[dict[str, Any]], tuple[Any, ...]]:
    """What reads the values of all parameters from the attributes of an estimator."""
    names = estimator._get_param_names()
    return (
        operator.itemgetter(*names) if len(names) > 1 else lambda given: tuple(given[name] for name in names)
    )


def _plain(value: Any) -> Any:
    """A number of NumPy as one of Python; anything else as it is."""
    if isinstance(value, np.floating):
        return float(value)
    return value.item() if isinstance(value, np.generic) else value


def is_auto(value: Any) -> bool:
    """Whether a parameter is left to the library."""
    return isinstance(value, str) and value == "auto"


def check_number(
    name: str, value: Any, *, whole: bool = False, least: float | None = None, above: float | None = None,
    most: float | None = None, auto: bool = False,
) -> None:  # fmt: skip
    """Refuse a parameter that is not a number within its bounds, by name and value; `auto` allows "auto"."""
    if auto and is_auto(value):
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
        bounds = (
            [f"at least {least}"] if least is not None else [f"above {above}"] if above is not None else []
        )
        bounds += [f"at most {most}"] if most is not None else []
        kind = "an integer" if whole else "a number"
        wanted = " ".join([kind, " and ".join(bounds)]).rstrip()
        raise ValueError(f"{name} must be {wanted}, got {_shown(value)}.")


def check_choice(name: str, value: Any, choices: Collection[str], *, auto: bool = False) -> None:
    """Refuse a parameter that is none of these words; `auto` allows "auto" too."""
    if not (isinstance(value, str) and (value in choices or (auto and value == "auto"))):
        wanted = "'auto' or one of" if auto else "one of"
        raise ValueError(f"{name} must be {wanted} {', '.join(choices)}, got {_shown(value)}.")


def check_flag(name: str, value: Any) -> None:
    """Refuse a parameter that is neither True nor False."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} must be True or False, got {_shown(value)}.")


def _shown(value: Any) -> str:
    """A value in an error; what is too long to read is cut."""
    try:
        text = repr(value)
    except ValueError:  # Python does not write out integers of thousands of digits
        return f"an integer of about {value.bit_length() * 3 // 10} digits"
    return text if len(text) <= 400 else f"{text[:60]}... ({len(text)} characters)"
