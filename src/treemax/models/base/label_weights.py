"""Weights of labels at prediction: allowed labels, excluded labels, priors and propensities."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.labels import LabelIndex
from treemax.metrics import propensities

PROPENSITY = "propensity"
_NOT_KEPT = object()  # stands for labels that can be read only once


@dataclass(frozen=True, eq=False)
class LabelWeights:
    """A weight for every label by id; labels of weight 0 are never predicted."""

    values: NDArray[np.float32]

    @cached_property
    def n_allowed(self) -> int:
        """Number of labels with a weight."""
        return int(np.count_nonzero(self.values))

    @cached_property
    def only_select(self) -> bool:
        """Whether all weights are 0 or 1."""
        return bool(((self.values == 0) | (self.values == 1)).all())


class LastWeights(NamedTuple):
    """The weights of the last call, and what they were made from: comparing labels is faster than looking them up."""

    label_index: LabelIndex
    labels: Any
    exclude: Any
    given: Any
    weights: LabelWeights

    @classmethod
    def of(cls, index: LabelIndex, labels: Any, exclude: Any, given: Any, weights: LabelWeights) -> LastWeights:
        """Copy what may change later."""
        kept = given if given is None or isinstance(given, LabelWeights) else _NOT_KEPT
        return cls(index, _copied(labels), _copied(exclude), kept, weights)

    def answer(self, index: LabelIndex, labels: Any, exclude: Any, given: Any) -> bool:
        """Return whether these arguments have the same weights."""
        same = index is self.label_index and len(index) == len(self.weights.values) and given is self.given
        return same and _equal(self.labels, labels) and _equal(self.exclude, exclude)


def _copied(labels: Any) -> Any:
    if labels is None or type(labels) in (tuple, frozenset):
        return labels
    return labels.copy() if type(labels) in (list, set, np.ndarray) else _NOT_KEPT


def _equal(kept: Any, given: Any) -> bool:
    if kept is given:
        return True
    if kept is None or type(kept) is not type(given):
        return False
    if isinstance(kept, np.ndarray):
        return kept.dtype == given.dtype and np.array_equal(kept, given)
    try:
        return bool(kept == given)
    except ValueError:  # arrays in a list
        return False


def label_weights(
    index: LabelIndex,
    counts: NDArray[np.int64],
    n_examples: int,
    labels: Any = None,
    exclude: Any = None,
    weights: Any = None,
    priors: Any = None,
    kept: NDArray[np.float32] | None = None,
) -> LabelWeights:
    """Return the weight of every label by id; see `LabelClassifier.make_label_weights`.

    They are multiplied by `kept`, which is 0 for labels that are not answered any more.
    """
    result = _given_weights(weights, index, counts, n_examples)
    if priors is not None:
        result = result * _prior_ratios(priors, index, counts)
    if labels is not None:
        allowed = np.zeros(len(index), dtype=np.float32)
        allowed[_known_ids("labels", labels, index)] = 1.0
        if not allowed.any():
            raise ValueError(f"The model knows none of the {len(list(labels))} allowed labels.")
        result = result * allowed
    if exclude is not None:
        result[_known_ids("exclude", exclude, index)] = 0.0
    if kept is not None:
        result = result * kept
    if not result.any():
        raise ValueError("No label is left: every label has weight 0 or is excluded.")
    result.setflags(write=False)
    return LabelWeights(result)


def _known_ids(name: str, labels: Any, index: LabelIndex) -> NDArray[np.int64]:
    """Return the ids of the labels that the model knows; others cannot be predicted anyway."""
    if isinstance(labels, str | bytes | Mapping) or not isinstance(labels, Iterable):
        raise ValueError(f"{name} must be a list of labels, got {labels!r:.80}.")
    given = labels.tolist() if isinstance(labels, np.ndarray) else list(labels)
    try:
        ids = index.ids(given)
    except TypeError:  # unhashable
        raise ValueError(f"{name} must be a list of labels, got {given!r:.80}.") from None
    return ids[ids >= 0]


def _given_weights(weights: Any, index: LabelIndex, counts: NDArray[np.int64], n_examples: int) -> NDArray[np.float32]:
    """Return the weights of a user by id: a mapping (labels that are not in it have weight 1), an array, a name."""
    if weights is None:
        return np.ones(len(index), dtype=np.float32)
    if isinstance(weights, LabelWeights):
        weights = weights.values
    if isinstance(weights, str):
        if weights != PROPENSITY:
            raise ValueError(f"label_weights must be {PROPENSITY!r}, a dictionary or an array, got {weights!r:.80}.")
        return (1.0 / propensities(counts, n_examples)).astype(np.float32)
    if isinstance(weights, Mapping):
        result = np.ones(len(index), dtype=np.float32)
        ids = index.ids(list(weights))
        result[ids[ids >= 0]] = _checked("label_weights", list(weights.values()))[ids >= 0]
        return result
    result = _checked("label_weights", weights)
    if result.shape != (len(index),):
        raise ValueError(f"label_weights has shape {result.shape}, but there are {len(index)} labels in classes_.")
    return result


def _prior_ratios(priors: Any, index: LabelIndex, counts: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the given share of every label divided by that of training; labels that are not given keep theirs."""
    if not isinstance(priors, Mapping):
        raise ValueError(f"priors must be a dictionary from labels to probabilities, got {priors!r:.80}.")
    given = _checked("priors", list(priors.values()))
    ids = index.ids(list(priors))
    known = ids >= 0
    result = np.ones(len(index), dtype=np.float32)
    seen = np.maximum(counts[ids[known]], 1) / max(1, int(counts.sum()))
    result[ids[known]] = given[known] / seen
    return result


def _checked(name: str, values: Any) -> NDArray[np.float32]:
    """Return a copy as single precision; raise ValueError unless all are finite and none is negative."""
    try:
        result = np.array(values, dtype=np.float32)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be numbers, got {values!r:.80}.") from None
    if not np.isfinite(result).all() or (result < 0).any():
        raise ValueError(f"{name} must be finite and not negative.")
    return result
