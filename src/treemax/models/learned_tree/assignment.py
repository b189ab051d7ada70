"""Which child of a node each label goes to: the objective of a node and the assignment that increases it.

Yacine Jernite, Anna Choromanska and David Sontag, "Simultaneous Learning of Trees and Representations for
Extreme Classification and Density Estimation", ICML 2017. The letters are theirs: q_i is the share of label i
among the examples at the node, p_j|i the mean probability with which examples of label i are sent to child j,
and p_j that of all examples.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from treemax.kernels.assignment import OPEN, take_pairs, take_pairs_well_formed

Floats = NDArray[np.floating[Any]]


def objective(shares: Floats, probabilities: Floats) -> float:
    """J_n, equation 6: how balanced and how pure the split of a node is.

    `shares` are the q_i, `probabilities` the p_j|i with a row for each label.

    >>> pure = np.eye(2)
    >>> objective(np.array([0.5, 0.5]), pure), best_objective(2)
    (1.0, 1.0)
    """
    n_children = probabilities.shape[1]
    of_child = shares @ probabilities
    return float(2 / n_children * (shares @ np.abs(of_child - probabilities)).sum())


def best_objective(n_children: int) -> float:
    """The largest value that the objective can have (Lemma 2)."""
    return 4 / n_children * (1 - 1 / n_children)


def objective_gradient(shares: Floats, probabilities: Floats, of_logarithm: bool = False) -> Floats:
    """What more of p_j|i adds to the objective: equation 10, or 12 in terms of log p_j|i.

    Equation 10 leaves out what the change does to the distance of all other labels from p_j. The exact
    derivative, q_i (sign_ij - sum_k q_k sign_kj) times 2 / M, has the same sign.
    """
    n_children = probabilities.shape[1]
    sign = np.sign(probabilities - shares @ probabilities)
    gradient = 2 / n_children * (shares * (1 - shares))[:, None] * sign
    return gradient * probabilities if of_logarithm else gradient


def node_gradient(sums: Floats, counts: NDArray[Any], of_logarithm: bool = True) -> Floats:
    """The same from what Algorithm 1 keeps: sums of probabilities and numbers of examples of each label.

    A label without examples has no preference: its row is zero.
    """
    counts = np.asarray(counts, dtype=np.float64)
    shares = counts / max(counts.sum(), 1.0)
    means = sums / np.maximum(counts, 1.0)[:, None]
    return objective_gradient(shares, means, of_logarithm)


def assign_labels(scores: Floats, capacities: NDArray[np.integer[Any]] | None = None) -> NDArray[np.int64]:
    """The child of each label: Algorithm 2 at one node.

    Pairs of label and child are taken from the highest score to the lowest; among equals, the lower label
    and then the lower child first. Scores are those of `objective_gradient`.

    Parameters
    ----------
    scores : array of shape (labels, children)
    capacities : array of shape (children,), optional
        The most labels that a child can hold, as in a tree of bounded depth. Without it, every child gets a
        number of labels that is 1 modulo (children - 1), which is what a full tree needs (CheckFull). Where
        the number of labels does not allow that, some children get fewer, as if labels were missing.

    >>> assign_labels(np.array([[0.9, 0.1], [0.8, 0.1], [0.7, 0.6]]), capacities=np.array([2, 1]))
    array([0, 0, 1])
    """
    n_labels, n_children = scores.shape
    if n_children < 2:
        raise ValueError(f"a node needs at least two children, got scores for {n_children}.")
    if capacities is not None and int(np.sum(capacities)) < n_labels:
        raise ValueError(f"{n_labels} labels do not fit into children with room for {np.sum(capacities)}.")
    # The last of equal pairs comes first in a reversed sort, hence both are reversed.
    order = scores.size - 1 - np.argsort(scores.ravel()[::-1], kind="stable")[::-1]
    child_of_label = np.full(n_labels, OPEN)
    if capacities is not None:
        take_pairs(order, n_children, np.array(capacities, dtype=np.int64), child_of_label)
        return child_of_label
    padded = _well_formed_number(n_labels, n_children)
    take_pairs_well_formed(order, n_children, padded, child_of_label, np.zeros(n_children, dtype=np.int64))
    return child_of_label


def _well_formed_number(n_labels: int, n_children: int) -> int:
    """The next number of labels of which a full tree can be made."""
    if n_labels <= n_children:
        return n_children
    return n_labels + (n_children - n_labels) % (n_children - 1)
