"""What learning rates depend on: the lengths of rows; and the orders in which rows are visited."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from treemax.inputs.labels import Targets
from treemax.inputs.rows import Rows, SparseRows, read_only
from treemax.kernels.validation import LARGEST, largest_magnitude, squared_lengths

SUMMED_TOGETHER = 1 << 20  # values whose squares are added up in one go
MOST_RATE = (
    1e10  # a weight moves by less than this a row: its product with the largest value is a float32 still
)
FAR_LONGER = 100.0  # times the length of the median row: such rows say nothing of the others
FAR_LARGER = 1000.0  # times the root of the mean square of the values of usual rows


class Suggestion(NamedTuple):
    """A rate, an initial sum and the constant feature's value, computed from the data."""

    rate: float
    initial: float
    constant: float


def suggestion(loss: str, rows: Rows, targets: Targets, n_labels: int, passes: int) -> Suggestion:
    """Settings for passes over known data, which was scaled before where it is dense.

    A weight that receives u updates moves by about rate * sqrt(u) under AdaGrad, and a score has to reach
    about log(labels) for its label to win against all others: so the rate grows with log(labels) and falls
    with the length of a row and with the square root of the examples a label has. The fewer examples a label
    has for each feature, the sooner it is learned by heart: so the rate also falls with the fourth root of features
    over examples. A hinge's score has to reach one, and its gradient ends there: the length alone counts. The
    initial sum is worth seven gradients of one. Chosen on validation parts (`benchmarks/experiments/defaults_dense.py`).
    """
    squared_length, width = mean_squared_length(rows)
    rate = 1.0 / (math.sqrt(squared_length) * passes**0.25)
    if loss != "squared_hinge":
        examples_per_label = max(1.0, len(targets.ids) / n_labels)
        rate *= 2.0 * (math.log(n_labels) + 3.0) / (examples_per_label * width) ** 0.25
    square = squared_length / width
    return Suggestion(rate, 7.0 * square, math.sqrt(square))


def suggestion_for_stream(loss: str, rows: Rows) -> Suggestion:
    """Settings for a stream, of which only the first rows are known."""
    squared_length, width = mean_squared_length(rows)
    square = squared_length / width
    rate = 0.5 if loss == "squared_hinge" else 2.0
    return Suggestion(rate / math.sqrt(squared_length), square, math.sqrt(square))


def squared_sum(values: NDArray[np.float32]) -> float:
    """The sum of the squares, block by block, so that it is the same where the values come in whole blocks."""
    total = 0.0
    for start in range(0, len(values), SUMMED_TOGETHER):
        block = values[start : start + SUMMED_TOGETHER]
        total += float(np.einsum("i,i->", block, block, dtype=np.float64))
    return total


def mean_squared_length(rows: Rows) -> tuple[float, float]:
    """The mean squared length of a row that is not all zero, and the mean number of its non-zeros.

    Rows far longer than the others do not count: one wrong value would make all rates useless.
    """
    if isinstance(rows, SparseRows):
        values = rows.values[rows.indptr[0] : rows.indptr[-1]]
        squared = squared_lengths(rows.indptr, rows.values)
        total = squared_sum(values)
        count = int(np.count_nonzero(values))
        filled = int((np.diff(rows.indptr) > 0).sum())
    else:
        squared = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
        total, count, filled = float(squared.sum()), int(np.count_nonzero(rows)), int((squared > 0).sum())
    if total <= 0.0:
        return 1.0, 1.0
    return mean_without_outliers(squared, total / max(1, filled)), count / max(1, filled)


def mean_without_outliers(squared: NDArray[np.float64], mean: float) -> float:
    """The mean of squared lengths, given that of all; without those of rows `FAR_LONGER` than the median row."""
    squared = squared[squared > 0]
    limit = FAR_LONGER**2 * float(np.median(squared))
    return mean if squared.max() <= limit else float(squared[squared <= limit].mean())


def clip_outliers(rows: Rows, mean_square: float) -> Rows:
    """The rows with values at most `FAR_LARGER` than usual, for what a single row may spoil; mostly as they are."""
    most = np.float32(min(FAR_LARGER * math.sqrt(mean_square), float(LARGEST)))
    values = rows.values if isinstance(rows, SparseRows) else rows
    if largest_magnitude(values) <= most:
        return rows
    clipped = read_only(np.clip(values, -most, most))
    return replace(rows, values=clipped) if isinstance(rows, SparseRows) else clipped


def row_orders(n_rows: int, passes: int, random_state: Any) -> Iterator[NDArray[np.uint32]]:
    """A new random order of the rows for every pass."""
    random = check_random_state(random_state)
    for _ in range(passes):
        yield random.permutation(n_rows).astype(np.uint32)
