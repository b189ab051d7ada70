"""Bounds of the numbers of columns and of weights."""

from __future__ import annotations

MAX_FEATURES = 2**32 - 1  # column indices are uint32
LEAST, MOST = 1e-9, 1e9  # weights outside lose all precision in single-precision sums of squares
