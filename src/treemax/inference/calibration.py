"""What makes probabilities of scores honest; `treemax.learning.calibration` finds it."""

from __future__ import annotations

from typing import NamedTuple


class Calibration(NamedTuple):
    """A score, or the logarithm of odds, becomes `slope` times itself plus `shift`.

    With one label a row, the rest of `certainty` is then divided evenly among all labels: the order stays.
    """

    slope: float = 1.0
    shift: float = 0.0
    certainty: float = 1.0
