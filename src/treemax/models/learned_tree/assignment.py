"""Greedy assignment of labels to the children of a node (Algorithm 2).

Yacine Jernite, Anna Choromanska and David Sontag, "Simultaneous Learning of Trees and Representations for
Extreme Classification and Density Estimation", ICML 2017.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from treemax.kernels.assignment import OPEN, take_pairs, take_pairs_well_formed

Floats = NDArray[np.floating[Any]]


def assign_labels(scores: Floats, capacities: NDArray[np.integer[Any]] | None = None) -> NDArray[np.int64]:
    """The child of each label: Algorithm 2 at one node.

    Pairs of label and child are taken in descending order of score (equation 10 or 12), ties by lower label and then by
    lower child.

    Parameters
    ----------
    scores : array of shape (labels, children)
    capacities : array of shape (children,), optional
        Maximum number of labels of each child, as in a tree of bounded depth. Without it, every child gets a number
        of labels that is 1 modulo (children - 1), as required by a full tree (CheckFull). If the number of labels does
        not allow that, some children get fewer, as if labels were missing.

    >>> assign_labels(np.array([[0.9, 0.1], [0.8, 0.1], [0.7, 0.6]]), capacities=np.array([2, 1]))
    array([0, 0, 1])
    """
    n_labels, n_children = scores.shape
    if n_children < 2:
        raise ValueError(f"a node needs at least two children, got scores for {n_children}.")
    if capacities is not None and int(np.sum(capacities)) < n_labels:
        raise ValueError(
            f"{n_labels} labels do not fit into children with a total capacity of {np.sum(capacities)}."
        )
    # A stable sort in descending order: reverse before and after.
    order = scores.size - 1 - np.argsort(scores.ravel()[::-1], kind="stable")[::-1]
    child_of_label = np.full(n_labels, OPEN)
    if capacities is not None:
        take_pairs(order, n_children, np.array(capacities, dtype=np.int64), child_of_label)
        return child_of_label
    padded = _padded_size(n_labels, n_children)
    take_pairs_well_formed(order, n_children, padded, child_of_label, np.zeros(n_children, dtype=np.int64))
    return child_of_label


def _padded_size(n_labels: int, n_children: int) -> int:
    """The smallest number of leaves of a full tree that is at least `n_labels`."""
    if n_labels <= n_children:
        return n_children
    return n_labels + (n_children - n_labels) % (n_children - 1)
