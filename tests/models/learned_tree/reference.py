"""The objective of a node of a learned tree and its gradient, as in the paper.

Yacine Jernite, Anna Choromanska and David Sontag, "Simultaneous Learning of Trees and Representations for
Extreme Classification and Density Estimation", ICML 2017. q_i is the share of label i among the examples at the node,
p_j|i the mean probability with which examples of label i are sent to child j, and p_j that of all examples.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]


def objective(shares: Floats, probabilities: Floats) -> float:
    """J_n of equation 6, which rewards balanced and pure splits.

    `shares` are the q_i, `probabilities` the p_j|i with a row for each label.

    >>> pure = np.eye(2)
    >>> objective(np.array([0.5, 0.5]), pure), best_objective(2)
    (1.0, 1.0)
    """
    n_children = probabilities.shape[1]
    of_child = shares @ probabilities
    return float(2 / n_children * (shares @ np.abs(of_child - probabilities)).sum())


def best_objective(n_children: int) -> float:
    """The maximum of the objective (Lemma 2)."""
    return 4 / n_children * (1 - 1 / n_children)


def objective_gradient(shares: Floats, probabilities: Floats, of_logarithm: bool = False) -> Floats:
    """Gradient of the objective by p_j|i (equation 10) or by log p_j|i (equation 12).

    Equation 10 ignores the effect of p_j|i on p_j for the other labels. The exact derivative,
    q_i (sign_ij - sum_k q_k sign_kj) times 2 / M, has the same sign.
    """
    n_children = probabilities.shape[1]
    sign = np.sign(probabilities - shares @ probabilities)
    gradient = 2 / n_children * (shares * (1 - shares))[:, None] * sign
    return gradient * probabilities if of_logarithm else gradient


def node_gradient(sums: Floats, counts: NDArray[Any], of_logarithm: bool = True) -> Floats:
    """`objective_gradient` from the sums of probabilities and counts of examples that Algorithm 1 keeps.

    The row of a label without examples is zero.
    """
    counts = np.asarray(counts, dtype=np.float64)
    shares = counts / max(counts.sum(), 1.0)
    means = sums / np.maximum(counts, 1.0)[:, None]
    return objective_gradient(shares, means, of_logarithm)


def numeric_gradient(function, at, small=1e-5):
    """The gradient of a function by central differences."""
    gradient = np.zeros_like(at)
    for place in np.ndindex(at.shape):
        up, down = at.copy(), at.copy()
        up[place] += small
        down[place] -= small
        gradient[place] = (function(up) - function(down)) / (2 * small)
    return gradient
