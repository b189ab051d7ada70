"""Greedy assignment of labels to the children of a node (Algorithm 2).

Yacine Jernite, Anna Choromanska and David Sontag, "Simultaneous Learning of Trees and Representations for
Extreme Classification and Density Estimation", ICML 2017.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from treemax.kernels.assignment import OPEN, take_pairs
from treemax.models.learned_tree.assignment_kernels import DIFFERENCE, GRADIENT, LOG_GRADIENT, score_pairs

Floats = NDArray[np.floating[Any]]
RULES = {"difference": DIFFERENCE, "gradient": GRADIENT, "log-gradient": LOG_GRADIENT}


def assignment_scores(counts: NDArray[Any], probabilities: Floats, rule: str) -> NDArray[np.float64]:
    """Return the scores of pairs of label and child, from the examples of each label and the p_j|i.

    "gradient" is equation 10 and "log-gradient" equation 12, both without the factor 2 / M, which is the same for all
    pairs; "difference" is q_i (1 - q_i) (p_j|i - p_j).

    >>> assignment_scores(np.array([1, 1]), np.array([[0.9, 0.1], [0.5, 0.5]]), "gradient")
    array([[ 0.25, -0.25],
           [-0.25,  0.25]])
    """
    scores = np.array(probabilities, dtype=np.float64)
    score_pairs(np.asarray(counts, dtype=np.float64), scores, RULES[rule])
    return scores


def assign_labels(scores: Floats, capacities: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Return the child of each label: Algorithm 2 at one node.

    Pairs of label and child are taken in descending order of score (equation 10 or 12), ties by lower label and then by
    lower child. `treemax.torch.reassignment.assign_greedily` does the same for all nodes of a level, on any device.

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
        raise ValueError(f"{n_labels} labels do not fit into children with a total capacity of {np.sum(capacities)}.")
    # A stable sort in descending order: reverse before and after.
    order = scores.size - 1 - np.argsort(scores.ravel()[::-1], kind="stable")[::-1]
    child_of_label = np.full(n_labels, OPEN)
    take_pairs(order, n_children, np.array(capacities, dtype=np.int64), child_of_label)
    return child_of_label
