"""Validation of sample weights and class weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.labels import LabelIndex, Targets
from treemax.inputs.limits import LEAST, MOST

BALANCED = "balanced"
MOST_REPETITIONS = 1000  # maximum mean number of repetitions of a row
GOLDEN = (5**0.5 - 1) / 2


def read_weights(weights: Any, n_rows: int) -> NDArray[np.float32] | None:
    """Validate and convert one weight per row; None if all are one.

    >>> read_weights([1, 0, 2.5], 3)
    array([1. , 0. , 2.5], dtype=float32)
    """
    if weights is None:
        return None
    if isinstance(weights, Real) and not isinstance(weights, bool):
        weights = np.full(n_rows, float(weights))
    try:
        numbers = np.asarray(weights.to_numpy() if hasattr(weights, "to_numpy") else weights, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"sample_weight must be one number for each row, got {weights!r:.80}.") from None
    if numbers.shape != (n_rows,):
        raise ValueError(
            f"sample_weight has the shape {numbers.shape}, expected one number for each of the {n_rows} rows."
        )
    wrong = ~((numbers == 0) | ((numbers >= LEAST) & (numbers <= MOST)))  # also NaN
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ValueError(
            f"sample_weight has {numbers[row]} at row {row}: weights must be 0 or from {LEAST:g} to {MOST:g}. "
            "Multiply all by a constant if they are too small or too large."
        )
    return None if (numbers == 1).all() else numbers.astype(np.float32)


def check_class_weight(class_weight: Any) -> None:
    """Raise unless `class_weight` is None, "balanced" or a mapping from labels to positive numbers."""
    if class_weight is None or (isinstance(class_weight, str) and class_weight == BALANCED):
        return
    if not isinstance(class_weight, Mapping):
        raise ValueError(
            f"class_weight must be None, 'balanced' or a dictionary from labels to weights, got {class_weight!r:.80}."
        )
    for label, weight in class_weight.items():
        if not isinstance(weight, Real) or isinstance(weight, bool) or not LEAST <= float(weight) <= MOST:
            raise ValueError(
                f"class_weight has {weight!r:.40} for the label {label!r:.40}, expected a number from {LEAST:g} to "
                f"{MOST:g}. Leave out the rows of labels that should not be learned."
            )


def weights_of_labels(class_weight: Any, index: LabelIndex, targets: Targets) -> NDArray[np.float32]:
    """Return the weight of every label of the index; "balanced" is inversely proportional to its total weight."""
    if class_weight == BALANCED:
        totals = targets.label_totals(len(index))
        return (totals.sum() / (len(index) * np.where(totals > 0, totals, totals.sum()))).astype(np.float32)
    weights = np.ones(len(index), dtype=np.float32)
    known = index.ids(class_weight)
    weights[known[known >= 0]] = np.array(list(class_weight.values()), dtype=np.float32)[known >= 0]
    return weights


def with_class_weight(targets: Targets, class_weight: Any, index: LabelIndex, multi_label: bool) -> Targets:
    """Multiply the weight of each row by that of its label, or, of multi-label targets, of each label of a row."""
    if class_weight is None:
        return targets
    factors = weights_of_labels(class_weight, index, targets)[targets.ids]
    if multi_label:
        return replace(targets, relevance=factors if targets.relevance is None else factors * targets.relevance)
    factors = factors[targets.indptr[0] : targets.indptr[-1]]
    return replace(targets, weights=factors if targets.weights is None else factors * targets.weights)


def check_known_labels(class_weight: Any, index: LabelIndex) -> None:
    """Raise if a dictionary of class weights has a label that is not in the index."""
    if isinstance(class_weight, Mapping):
        for label, found in zip(class_weight, index.ids(class_weight)):
            if found < 0:
                raise ValueError(f"class_weight has the label {label!r:.40}, which is not in y.")


def repetitions(weights: NDArray[np.float32], n_before: int = 0) -> NDArray[np.int64]:
    """Return row numbers, each repeated as many times as its weight.

    A fraction is rounded up in that fraction of the rows, spread by multiples of the golden ratio; `n_before` rows came
    before these.

    >>> repetitions(np.array([1.0, 3.0, 0.5, 0.5], dtype=np.float32)).tolist()
    [0, 1, 1, 1, 3]
    """
    if weights.mean() > MOST_REPETITIONS:
        raise ValueError(
            f"The mean weight is {weights.mean():.6g}, but rows are learned as often as their weights say: divide all by a "
            f"constant so that their mean is at most {MOST_REPETITIONS}."
        )
    threshold = (n_before + np.arange(len(weights))) * GOLDEN % 1.0
    copies = np.floor(weights.astype(np.float64) + threshold).astype(np.int64)
    if not n_before and not copies.any():
        raise ValueError(
            f"The weights add up to {weights.sum():.3g} rows, but rows are learned as often as their weights say: multiply "
            "all by a constant so that they are about one."
        )
    return np.repeat(np.arange(len(weights)), copies)
