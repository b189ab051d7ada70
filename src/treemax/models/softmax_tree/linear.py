"""The oblique tree that is a linear classifier: Theorem 3.1 of Zharmagambetov et al. (2021)."""

from __future__ import annotations

from typing import Any

import numpy as np

from treemax.models.softmax_tree.model import Branch, Softmax, SoftmaxTreeModel

MOST_CLASSES = 16  # the tree has 2 ** (classes - 1) leaves


def tree_of_linear_classifier(coef: Any, intercept: Any) -> SoftmaxTreeModel:
    """Return the tree with one class at each leaf that answers as the linear classifier argmax(coef @ x + intercept).

    The construction of Theorem 3.1: nodes at depth j compare the score of the best class so far with that of class j + 1,
    so each path is a run of the search for the maximum. The tree is complete, of depth K - 1 for K classes. Of classes
    with the same score the first is the answer, as in NumPy.

    Parameters
    ----------
    coef : array of shape (n_classes, n_features)
        Weights of the classes, at most 16.
    intercept : array of shape (n_classes,)
        Biases of the classes.

    Examples
    --------
    >>> import numpy as np
    >>> tree = tree_of_linear_classifier([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]], [0.0, 0.0, 0.5])
    >>> tree.n_leaves, tree.depth
    (4, 2)
    >>> tree.top_k(np.array([[3.0, 1.0], [1.0, 2.0], [-1.0, 0.0]], np.float32), 1)[0].ravel()
    array([0, 1, 2])
    """
    weights, biases = np.asarray(coef, np.float64), np.asarray(intercept, np.float64)
    if weights.ndim != 2 or biases.shape != weights.shape[:1]:
        raise ValueError(
            f"coef must have shape (n_classes, n_features) and intercept (n_classes,), got {weights.shape} and "
            f"{biases.shape}."
        )
    n_classes, n_features = weights.shape
    if not 1 <= n_classes <= MOST_CLASSES:
        raise ValueError(
            f"the tree of a linear classifier has 2 ** (classes - 1) leaves, so coef must have 1 to {MOST_CLASSES} "
            f"classes, got {n_classes}."
        )

    def subtree(best: int, candidate: int) -> Branch | Softmax:
        if candidate == n_classes:
            none = np.zeros((1, n_features), np.float32)
            return Softmax(np.array([best]), none, np.zeros(1, np.float32))
        plane = (weights[best] - weights[candidate])[None].astype(np.float32)
        left, right = subtree(candidate, candidate + 1), subtree(best, candidate + 1)
        return Branch(plane, float(biases[best] - biases[candidate]), left, right)

    return SoftmaxTreeModel.pack([subtree(0, 1)], n_classes, n_features)
