"""The k best labels of rows: the check of k, and the form of the answer."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class TopK(NamedTuple):
    """Best labels of each row, best first, and their scores; both of shape (n_rows, k)."""

    labels: NDArray[Any]
    scores: NDArray[np.float32]


def check_k(k: Any) -> None:
    """Raise ValueError unless k is a positive integer."""
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise ValueError(f"k must be a positive integer, got {k!r}.")
