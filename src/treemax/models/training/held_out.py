"""Training schedules in which some rows are held out for calibration until the last passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

MIN_HELD_OUT, MAX_HELD_OUT = 5, 2000  # rows
PASSES_WITH_ALL = 0.2  # share of the passes that include the held-out rows


def held_out_rows(n_rows: int, share: float, random_state: Any) -> NDArray[np.uint32]:
    """Sample rows for calibration: this share, at most 2,000; none if that would be fewer than five.

    The only row of a label may be held out, since new data have unseen labels too.
    """
    n = min(int(share * n_rows), MAX_HELD_OUT)
    if n < MIN_HELD_OUT:
        return np.zeros(0, np.uint32)
    return np.sort(check_random_state(random_state).permutation(n_rows)[:n]).astype(np.uint32)


class Part(NamedTuple):
    """Some passes: an order of the rows for each; with `calibrates`, the model is calibrated before them."""

    orders: Iterator[NDArray[np.uint32]]
    calibrates: bool


class Schedule(NamedTuple):
    """Passes over the rows: first without the held-out rows, then, after calibration on them, with them."""

    held: NDArray[np.uint32]
    parts: list[Part]
    planned: int  # rows of all passes

    def run(
        self, learn: Callable[[Iterator[NDArray[np.uint32]], int], Iterator[int]], calibrate: Callable[[], None]
    ) -> Iterator[int]:
        """Train with `learn(orders, rows done before)`, which yields the number of rows of each block, and calibrate."""
        done = 0
        for part in self.parts:
            if part.calibrates:
                calibrate()
            for n in learn(part.orders, done):
                done += n
                yield n

    @classmethod
    def of(cls, n_rows: int, passes: int, share: float, random_state: Any) -> Schedule:
        """Return the schedule of this number of passes with a share of the rows held out."""
        random = check_random_state(random_state)
        held = held_out_rows(n_rows, share, random)
        everything = np.arange(n_rows, dtype=np.uint32)
        if not len(held):
            return cls(held, [Part(_orders(everything, passes, random), False)], passes * n_rows)
        learned = np.setdiff1d(everything, held)
        last, n_last = (everything, max(1, round(PASSES_WITH_ALL * passes))) if passes > 1 else (held, 1)
        n_first = max(1, passes - n_last)
        first = Part(_orders(learned, n_first, random), False)
        parts = [first, Part(_orders(last, n_last, random), True)]
        return cls(held, parts, n_first * len(learned) + n_last * len(last))


def _orders(rows: NDArray[np.uint32], passes: int, random: np.random.RandomState) -> Iterator[NDArray[np.uint32]]:
    for _ in range(passes):
        yield random.permutation(rows)
