"""Expected utilities over a set of rows, and the k labels of each row that maximise them.

Wydmuch et al., "Generalized test utilities for long-tail performance in extreme multi-label classification", NeurIPS 2023.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from treemax.kernels import utilities as kernels
from treemax.numpy_only.topk import check_k

UTILITIES = {
    "macro-precision": kernels.PRECISION,
    "macro-recall": kernels.RECALL,
    "macro-f1": kernels.F1,
    "macro-balanced-accuracy": kernels.BALANCED_ACCURACY,
    "coverage": kernels.COVERAGE,
    "instance-precision": kernels.INSTANCE,
}
TOLERANCE = 1e-6  # a pass that gains less is the last
MOST_PASSES = 100


def best_for_utility(probabilities: Any, k: int, utility: str = "macro-f1", random_state: int = 0) -> sp.csr_matrix:
    """Return the k labels of each row that maximise an expected utility of all rows together, as an indicator matrix.

    By block coordinate ascent from the k most probable labels, until a pass over the rows gains less than 1e-6. Only labels
    with an entry are chosen, so that a few dozen for each row (the best of `predict_topk`) are enough.

    Parameters
    ----------
    probabilities : sparse or dense matrix of shape (n_rows, n_labels)
        Probabilities of labels; entries that are not stored are zero.
    k : int
        Number of labels of each row.
    utility : str
        The mean over labels of "macro-precision", "macro-recall", "macro-f1" or "macro-balanced-accuracy"; "coverage", the
        share of labels that are found at least once; or "instance-precision", for which the most probable labels are best.
    random_state : int
        Seed of the order of rows.

    Examples
    --------
    >>> p = [[0.9, 0.0, 0.0], [0.9, 0.0, 0.3]]  # the first row finds the first label, so the second tries another
    >>> best_for_utility(p, 1, "coverage").toarray().tolist()
    [[1, 0, 0], [0, 0, 1]]
    """
    matrix = sp.csr_matrix(probabilities, dtype=np.float64)
    if matrix.nnz and not (matrix.data.min() >= 0 and matrix.data.max() <= 1):
        raise ValueError("probabilities must be from 0 to 1.")
    counts = np.diff(matrix.indptr)
    row = np.repeat(np.arange(len(counts)), counts)
    place = np.arange(matrix.nnz) - np.repeat(matrix.indptr[:-1], counts)
    shape = len(counts), max(1, int(counts.max(initial=0)))
    ids, values = np.full(shape, -1, dtype=np.int64), np.zeros(shape)
    ids[row, place], values[row, place] = matrix.indices, matrix.data
    order = np.argsort(-values, axis=1, kind="stable")
    ids, values = np.take_along_axis(ids, order, axis=1), np.take_along_axis(values, order, axis=1)
    chosen = choose(ids, values, matrix.shape[1], k, utility, random_state)
    row, place = np.nonzero(chosen)
    ones = np.ones(len(row), dtype=np.int64)
    return sp.csr_matrix((ones, (row, ids[row, place])), shape=matrix.shape)


def choose(
    ids: NDArray[np.int64],
    probabilities: NDArray[np.float64],
    n_labels: int,
    k: int,
    utility: str,
    random_state: int = 0,
) -> NDArray[np.bool_]:
    """Return which candidates to predict: `ids` (-1: none) and their probabilities, the most probable first."""
    check_utility(utility)
    check_k(k)
    kind, order = UTILITIES[utility], np.arange(len(ids))
    chosen = (np.arange(ids.shape[1]) < k) & (ids >= 0)
    if kind == kernels.INSTANCE:
        return chosen
    known = ids >= 0
    positive = np.bincount(ids[known], probabilities[known], minlength=n_labels).astype(np.float64)
    random = np.random.default_rng(random_state)
    for _ in range(MOST_PASSES):
        correct, predicted = _sums(ids, probabilities, chosen, n_labels, kind)  # anew, so that rounding does not add up
        before = _mean(kind, positive, correct, predicted, len(ids))
        kernels.ascend(
            ids, probabilities, random.permutation(order), int(k), kind, positive, correct, predicted, chosen
        )
        if _mean(kind, positive, correct, predicted, len(ids)) < before + TOLERANCE:
            break
    return chosen


def expected_utility(probabilities: Any, chosen: Any, utility: str = "macro-f1") -> float:
    """Return the expected utility of predicting the labels of an indicator matrix; see `best_for_utility`.

    The utility of the expected numbers of right answers, which tends to the expected utility with the number of rows.

    >>> round(expected_utility([[0.9, 0.2], [0.9, 0.4]], [[1, 0], [0, 1]], "macro-precision"), 3)
    0.65
    """
    check_utility(utility)
    matrix, indicator, kind = sp.csr_matrix(probabilities, dtype=np.float64), sp.csr_matrix(chosen), UTILITIES[utility]
    if matrix.shape != indicator.shape:
        raise ValueError(f"probabilities have the shape {matrix.shape}, but chosen labels {indicator.shape}.")
    indicator = (indicator != 0).astype(np.float64)
    right, n_rows = indicator.multiply(matrix).tocsr(), matrix.shape[0]
    predicted, positive = (np.asarray(part.sum(axis=0)).ravel() for part in (indicator, matrix))
    if kind == kernels.INSTANCE:
        return float(right.sum() / max(indicator.sum(), 1))
    if kind == kernels.COVERAGE:
        right.data = np.log1p(-np.minimum(right.data, 1 - 1e-9))
    return _mean(kind, positive, np.asarray(right.sum(axis=0)).ravel(), predicted, n_rows)


def check_utility(utility: Any) -> None:
    """Raise ValueError for an unknown utility."""
    if utility not in UTILITIES:
        raise ValueError(f"utility must be one of {', '.join(UTILITIES)}, got {utility!r}.")


def _sums(
    ids: NDArray[np.int64], probabilities: NDArray[np.float64], chosen: NDArray[np.bool_], n_labels: int, kind: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the sums by label over the chosen candidates: of what they add, and their number."""
    added = probabilities[chosen]
    if kind == kernels.COVERAGE:
        added = np.log1p(-np.minimum(added, 1 - 1e-9))
    correct = np.bincount(ids[chosen], added, minlength=n_labels).astype(np.float64)
    return correct, np.bincount(ids[chosen], minlength=n_labels).astype(np.float64)


def _mean(
    kind: int, positive: NDArray[np.float64], correct: NDArray[np.float64], predicted: NDArray[np.float64], n_rows: int
) -> float:
    out = np.empty(len(positive))
    kernels.values(kind, positive, correct, predicted, n_rows, out)
    return float(out.mean())
