"""Checks of parameters: errors that name the parameter and the value it got."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def check_number(
    name: str, value: Any, *, whole: bool = False, least: float | None = None, above: float | None = None,
    most: float | None = None,
) -> None:  # fmt: skip
    """Refuse a parameter that is not a number within its bounds, by name and value."""
    kinds = (int, np.integer) if whole else (int, float, np.integer, np.floating)
    good = isinstance(value, kinds) and not isinstance(value, bool)
    good = good and -math.inf < value < math.inf  # not isfinite: an integer may be too large for a float
    good = good and (least is None or value >= least) and (above is None or value > above)
    if not (good and (most is None or value <= most)):
        bounds = (
            [f"at least {least}"] if least is not None else [f"above {above}"] if above is not None else []
        )
        bounds += [f"at most {most}"] if most is not None else []
        kind = "an integer" if whole else "a number"
        wanted = " ".join([kind, " and ".join(bounds)]).rstrip()
        raise ValueError(f"{name} must be {wanted}, got {value!r}.")
