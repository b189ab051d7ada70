"""Learning rates from the lengths of rows, and the row orders of passes."""

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

SUMMED_TOGETHER = 1 << 20  # values whose squares are added in one block
MOST_RATE = 1e10  # the product of such a step with the largest feature value fits in a float32
FAR_LONGER = 100.0  # rows of more than this times the median length are outliers
FAR_LARGER = 1000.0  # values of more than this times their root mean square are outliers


class Suggestion(NamedTuple):
    """Learning rate, initial sum of squared gradients and value of the constant feature, computed from the data."""

    rate: float
    initial: float
    constant: float


def suggestion(loss: str, rows: Rows, targets: Targets, n_labels: int, passes: int) -> Suggestion:
    """Return settings for passes over given data, dense rows scaled.

    A weight with u updates moves by about rate * sqrt(u) under AdaGrad, and a score has to reach about log(labels) for
    its label to exceed all others: so the rate grows with log(labels), and decreases with the length of a row and with
    the square root of the examples of a label. Labels with few examples per feature overfit sooner: so the rate also
    decreases with the fourth root of features over examples. The score of a hinge only has to reach one, where its
    gradient vanishes: it depends on the length only. The initial sum equals seven gradients of one. Chosen on
    validation data (`benchmarks/experiments/defaults_dense.py`).
    """
    squared_length, width = mean_squared_length(rows)
    rate = 1.0 / (math.sqrt(squared_length) * passes**0.25)
    if loss != "squared_hinge":
        examples_per_label = max(1.0, len(targets.ids) / n_labels)
        rate *= 2.0 * (math.log(n_labels) + 3.0) / (examples_per_label * width) ** 0.25
    square = squared_length / width
    return Suggestion(rate, 7.0 * square, math.sqrt(square))


def suggestion_for_stream(loss: str, rows: Rows) -> Suggestion:
    """Return settings for a stream, from its first rows."""
    squared_length, width = mean_squared_length(rows)
    square = squared_length / width
    rate = 0.5 if loss == "squared_hinge" else 2.0
    return Suggestion(rate / math.sqrt(squared_length), square, math.sqrt(square))


def squared_sum(values: NDArray[np.float32]) -> float:
    """Return the sum of squares, by blocks, so that rows on disk give the same bits."""
    total = 0.0
    for start in range(0, len(values), SUMMED_TOGETHER):
        block = values[start : start + SUMMED_TOGETHER]
        total += float(np.einsum("i,i->", block, block, dtype=np.float64))
    return total


def mean_squared_length(rows: Rows, weights: NDArray[np.float32] | None = None) -> tuple[float, float]:
    """Return the mean squared length of the non-zero rows, weighted if weights are given, and their mean number of
    non-zeros.

    Outliers are ignored: one wrong value would make all rates useless.
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
    return mean_without_outliers(squared, total / max(1, filled), weights), count / max(1, filled)


def mean_without_outliers(
    squared: NDArray[np.float64], mean: float, weights: NDArray[np.float32] | None = None
) -> float:
    """Return the (weighted) mean of squared lengths without rows `FAR_LONGER` than the median; `mean` is that of all
    rows, unweighted."""
    limit = FAR_LONGER**2 * float(np.median(squared[squared > 0]))
    kept = (squared > 0) & (squared <= limit)
    if weights is not None:
        return float(np.average(squared[kept], weights=weights[kept].astype(np.float64)))
    return mean if squared.max() <= limit else float(squared[kept].mean())


def clip_outliers(rows: Rows, mean_square: float) -> Rows:
    """Clip values to `FAR_LARGER` times the root mean square; rows without outliers are returned as they are."""
    most = np.float32(min(FAR_LARGER * math.sqrt(mean_square), float(LARGEST)))
    values = rows.values if isinstance(rows, SparseRows) else rows
    if largest_magnitude(values) <= most:
        return rows
    clipped = read_only(np.clip(values, -most, most))
    return replace(rows, values=clipped) if isinstance(rows, SparseRows) else clipped


def power_of_two(scale: float) -> float:
    """Return the power of two nearest to a scale: to multiply and divide by it loses no bits."""
    return 2.0 ** round(math.log2(scale))


def row_orders(n_rows: int, passes: int, random_state: Any) -> Iterator[NDArray[np.uint32]]:
    """Yield a random permutation of the rows for each pass."""
    random = check_random_state(random_state)
    for _ in range(passes):
        yield random.permutation(n_rows).astype(np.uint32)
