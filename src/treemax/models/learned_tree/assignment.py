"""Greedy assignment of labels to the children of a node (Algorithm 2).

Yacine Jernite, Anna Choromanska and David Sontag, "Simultaneous Learning of Trees and Representations for
Extreme Classification and Density Estimation", ICML 2017.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from treemax.kernels.assignment import OPEN, take_pairs

Floats = NDArray[np.floating[Any]]


def assign_labels(scores: Floats, capacities: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """The child of each label: Algorithm 2 at one node.

    Pairs of label and child are taken in descending order of score (equation 10 or 12), ties by lower label and then by
    lower child.

    Parameters
    ----------
    scores : array of shape (labels, children)
    capacities : array of shape (children,)
        Maximum number of labels of each child, as in a tree of bounded depth.

    >>> assign_labels(np.array([[0.9, 0.1], [0.8, 0.1], [0.7, 0.6]]), capacities=np.array([2, 1]))
    array([0, 0, 1])
    """
    n_labels, n_children = scores.shape
    if n_children < 2:
        raise ValueError(f"a node needs at least two children, got scores for {n_children}.")
    if int(np.sum(capacities)) < n_labels:
        raise ValueError(
            f"{n_labels} labels do not fit into children with a total capacity of {np.sum(capacities)}."
        )
    # A stable sort in descending order: reverse before and after.
    order = scores.size - 1 - np.argsort(scores.ravel()[::-1], kind="stable")[::-1]
    child_of_label = np.full(n_labels, OPEN)
    take_pairs(order, n_children, np.array(capacities, dtype=np.int64), child_of_label)
    return child_of_label
