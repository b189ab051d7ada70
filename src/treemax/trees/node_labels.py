"""The labels below each node of trees that route rows, where a label may be at many leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class NodeLabels:
    """The labels below every node, unordered. The root is node 0, and children have higher numbers than parents.

    `counts` are the numbers of rows with each label at the node, `examples` the numbers of all its rows; None if
    the model does not store them.
    """

    children: Sequence[Sequence[int]]
    labels: Sequence[NDArray[Any]]
    counts: Sequence[NDArray[Any]] | None = None
    examples: Sequence[float] | None = None

    @classmethod
    def from_leaves(
        cls,
        children: Sequence[Sequence[int]],
        labels: Sequence[NDArray[Any]],
        counts: Sequence[NDArray[Any]] | None = None,
        examples: Sequence[float] | None = None,
    ) -> NodeLabels:
        """Collect the labels of all nodes from the labels of the leaves and their counts.

        >>> none = np.array([], dtype=int)
        >>> found = NodeLabels.from_leaves([[1, 2], [], []], [none, np.array([4, 2]), np.array([2])])
        >>> [sorted(own.tolist()) for own in found.labels]
        [[2, 4], [2, 4], [2]]
        """
        counts_at: list[dict[int, float]] = [{} for _ in children]
        for node in range(len(children) - 1, -1, -1):
            below = counts_at[node]
            if not children[node]:
                amounts = np.zeros(len(labels[node])) if counts is None else counts[node]
                below.update(zip(labels[node].tolist(), amounts.tolist()))
            for child in children[node]:
                for label, count in counts_at[child].items():
                    below[label] = below.get(label, 0.0) + count
        ids = [np.array(list(below), dtype=np.int64) for below in counts_at]
        sums = None if counts is None else [np.array(list(below.values())) for below in counts_at]
        return cls(children, ids, sums, examples)
