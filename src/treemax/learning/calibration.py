"""Probabilities that are right as often as they say, found on rows that were not learned yet."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize, minimize_scalar
from scipy.special import expit, logit, xlogy
from sklearn.utils import check_random_state

from treemax.inference.calibration import Calibration
from treemax.labels import Targets

LEAST_HELD_OUT, MOST_HELD_OUT = 20, 2000  # rows
PASSES_WITH_ALL = 0.2  # the share of the passes that include the rows held out before
LEAST_PROBABILITY = 1e-6
LOGARITHMS = (-2.0, 2.0)  # of a temperature's inverse
LEAST_CERTAINTY = 0.2
DOUBT = 3.0  # rows that speak for scores as they are: a few held-out rows change little


def held_out_rows(n_rows: int, share: float, random_state: Any) -> NDArray[np.uint32]:
    """Rows to calibrate with, drawn at random: this share, 2,000 at most; none where they would be fewer than twenty.

    Rows that are the only one of their label are among them: such labels turn up in new data too.
    """
    n = min(int(share * n_rows), MOST_HELD_OUT)
    if n < LEAST_HELD_OUT:
        return np.zeros(0, np.uint32)
    return np.sort(check_random_state(random_state).permutation(n_rows)[:n]).astype(np.uint32)


class Part(NamedTuple):
    """Some passes: an order of the rows for each; `calibrates` says that held-out rows are judged before them."""

    orders: Iterator[NDArray[np.uint32]]
    calibrates: bool


class Schedule(NamedTuple):
    """Passes over the rows. Those held out are left alone at first, then judged, and learned in the last passes."""

    held: NDArray[np.uint32]
    parts: list[Part]
    planned: int  # rows in all

    @classmethod
    def of(cls, n_rows: int, passes: int, share: float, random_state: Any) -> Schedule:
        """The schedule of so many passes with this share of the rows held out."""
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


def _orders(
    rows: NDArray[np.uint32], passes: int, random: np.random.RandomState
) -> Iterator[NDArray[np.uint32]]:
    for _ in range(passes):
        yield random.permutation(rows)


def chosen_targets(targets: Targets, rows: NDArray[np.uint32]) -> Targets:
    """The labels of some of the rows."""
    starts, counts = targets.indptr[rows], np.diff(targets.indptr)[rows]
    indptr = np.concatenate([[0], np.cumsum(counts)])
    return Targets(indptr, targets.ids[np.repeat(starts - indptr[:-1], counts) + np.arange(indptr[-1])])


def sharpness_of(first: Callable[[float], NDArray[np.float64]], right: NDArray[np.bool_]) -> float:
    """The inverse temperature at which first answers, of this probability at each, are right as often as they say."""

    def loss(logarithm: float) -> float:
        return surprise(first(math.exp(logarithm)), right) + DOUBT * logarithm**2 / len(right)

    return math.exp(float(minimize_scalar(loss, bounds=LOGARITHMS, method="bounded").x))


def temperature_and_certainty(
    first: Callable[[float], NDArray[np.float64]], right: NDArray[np.bool_], n_labels: int
) -> Calibration:
    """The inverse temperature, and the share of all probability that answers may keep, that make first answers honest.

    A temperature alone cannot say that some rows have a label that was hardly seen, however sure the scores are.
    """

    def best_certainty(slope: float) -> tuple[float, float]:
        of_first = first(slope)

        def loss(certainty: float) -> float:
            mixed = certainty * of_first + (1.0 - certainty) / n_labels
            doubt = math.log(slope) ** 2 + 1.0 - certainty
            return surprise(mixed, right) + DOUBT * doubt / len(right)

        found = minimize_scalar(loss, bounds=(LEAST_CERTAINTY, 1.0), method="bounded")
        at_one = loss(1.0)
        return (at_one, 1.0) if at_one <= found.fun else (float(found.fun), float(found.x))

    found = minimize_scalar(
        lambda logarithm: best_certainty(math.exp(logarithm))[0], bounds=LOGARITHMS, method="bounded"
    )
    slope = math.exp(float(found.x))
    return Calibration(slope, 0.0, best_certainty(slope)[1])


def odds_of(odds: NDArray[np.float64], right: NDArray[np.bool_]) -> Calibration:
    """Slope and shift that make these logarithms of odds true (Platt's scaling)."""

    def loss(parameters: NDArray[np.float64]) -> float:
        logarithm, shift = parameters
        doubt = DOUBT * (logarithm**2 + shift**2) / len(right)
        return surprise(expit(math.exp(logarithm) * odds + shift), right) + doubt

    logarithm, shift = minimize(loss, np.zeros(2), method="Nelder-Mead").x
    return Calibration(math.exp(float(logarithm)), float(shift))


def log_odds(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """The logarithm of the odds, kept finite."""
    return logit(np.clip(probabilities, LEAST_PROBABILITY, 1.0 - LEAST_PROBABILITY))


def surprise(probabilities: NDArray[np.float64], right: NDArray[np.bool_]) -> float:
    """The mean loss of saying that answers are right with these probabilities."""
    p = np.clip(probabilities, LEAST_PROBABILITY, 1.0 - LEAST_PROBABILITY)
    return float(-(xlogy(right, p) + xlogy(~right, 1.0 - p)).mean())
