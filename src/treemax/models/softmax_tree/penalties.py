"""The penalties of the weights of one node, as the kernels take them."""

from __future__ import annotations

from typing import NamedTuple


class Penalties(NamedTuple):
    """Costs of an absolute weight, of an absolute bias, and of half a squared weight."""

    alpha: float
    bias_alpha: float
    ridge: float
