"""Initialisation of tree alternating optimisation: a leaf for every row, or random hyperplanes.

Section 4.2 and Appendices A and D of Zharmagambetov et al. (2021); `random_planes` and `balanced_leaves` are ours.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.linalg import cholesky, solve_triangular
from sklearn.cluster import KMeans

from treemax.inputs.rows import Rows, SparseRows

MAX_ITERATIONS = 12  # maximum number of iterations of balanced 2-means
ROWS_AT_ONCE = 16_384  # block size in the computation of the covariance
SHRINKAGE = 0.1  # weight of a multiple of the identity in the covariance within classes

Indices = NDArray[np.int64]
Weights: TypeAlias = NDArray[np.float32] | None  # of rows; None: all one


def as_matrix(rows: Rows) -> Any:
    """Return the rows as a NumPy or SciPy matrix."""
    return rows.to_scipy() if isinstance(rows, SparseRows) else rows


def class_means(rows: Rows, labels: Indices, n_labels: int, weights: Weights = None) -> tuple[Any, NDArray[np.float64]]:
    """Return the mean row of every class, zero for classes without rows, and the number of its rows; weighted."""
    counts = np.bincount(labels, weights, minlength=n_labels).astype(np.float64)
    if weights is None:
        shares = (1.0 / np.maximum(counts, 1.0))[labels].astype(np.float32)
    else:
        shares = (weights / counts[labels]).astype(np.float32)
    member = sp.csr_matrix((shares, (labels, np.arange(len(labels)))), shape=(n_labels, len(labels)))
    return member @ as_matrix(rows), counts


# --- from the paper ------------------------------------------------------------------------------------


def prototype_leaves(
    rows: Rows, labels: Indices, n_labels: int, depth: int, random: np.random.RandomState, n_init: int = 1,
    weights: Weights = None,
) -> Indices:  # fmt: skip
    """Return the leaf of every row, by weighted k-means over the class means and greedy merging (Algorithm 2)."""
    means, counts = class_means(rows, labels, n_labels, weights)
    present = np.flatnonzero(counts)
    leaf_of_class = np.zeros(n_labels, np.int64)
    leaf_of_class[present] = _clustered(means[present], counts[present], depth, random, n_init)
    return leaf_of_class[labels]


def kmeans_leaves(
    rows: Rows, depth: int, random: np.random.RandomState, n_init: int = 1, weights: Weights = None
) -> Indices:
    """Return the leaf of every row, by k-means over all rows and greedy merging of the clusters."""
    own = np.ones(len(rows)) if weights is None else weights.astype(np.float64)
    return _clustered(as_matrix(rows), own, depth, random, n_init)


def _clustered(
    points: Any, weights: NDArray[np.float64], depth: int, random: np.random.RandomState, n_init: int
) -> Indices:
    n_clusters = min(2**depth, points.shape[0])
    found = KMeans(n_clusters, n_init=n_init, random_state=random).fit(points, sample_weight=weights)
    sizes = np.bincount(found.labels_, weights=weights, minlength=n_clusters)
    order = merged_order(found.cluster_centers_, sizes, depth)
    return order[found.labels_]


def merged_order(centres: NDArray[Any], sizes: NDArray[Any], depth: int) -> Indices:
    """Return the leaf of every cluster: at each depth, the two closest become siblings, then the next two.

    With fewer clusters than leaves, some leaves stay empty: empty subtrees are merged last.
    """
    n_leaves = 2**depth
    members = [[i] if i < len(centres) else [-1] for i in range(n_leaves)]
    means = np.zeros((n_leaves, centres.shape[1]))
    means[: len(centres)] = centres
    weights = np.zeros(n_leaves)
    weights[: len(sizes)] = sizes
    while len(members) > 1:
        pairs = _closest_pairs(means, weights > 0)
        total = np.maximum(weights[pairs].sum(axis=1), 1e-30)
        means = (means[pairs] * weights[pairs][:, :, None]).sum(axis=1) / total[:, None]
        weights = weights[pairs].sum(axis=1)
        members = [members[a] + members[b] for a, b in pairs]
    order = np.zeros(len(centres), np.int64)
    for leaf, cluster in enumerate(members[0]):
        if cluster >= 0:
            order[cluster] = leaf
    return order


def _closest_pairs(means: NDArray[np.float64], used: NDArray[np.bool_]) -> Indices:
    """Pair greedily: the two closest, then the two closest of the rest; empty subtrees last."""
    n = len(means)
    square = (means**2).sum(axis=1)
    distance = square[:, None] + square[None, :] - 2.0 * means @ means.T
    distance[~used] = distance[:, ~used] = np.finfo(np.float64).max / 2
    a, b = np.triu_indices(n, 1)
    free, pairs = np.ones(n, bool), []
    for at in np.argsort(distance[a, b], kind="stable"):
        if free[a[at]] and free[b[at]]:
            free[a[at]] = free[b[at]] = False
            pairs.append((a[at], b[at]))
    return np.array(pairs)


def gaussian_planes(
    n_features: int, depth: int, random: np.random.RandomState
) -> list[tuple[NDArray[np.float32], float]]:
    """Return standard normal weights and bias of every node, scaled to unit length together (Appendix D)."""
    planes = []
    for _ in range(2**depth - 1):
        drawn = random.normal(size=n_features + 1)
        drawn /= max(float(np.linalg.norm(drawn)), 1e-30)
        planes.append((drawn[:-1].astype(np.float32), float(drawn[-1])))
    return planes


# --- ours ----------------------------------------------------------------------------------------------


def random_planes(rows: Rows, depth: int, random: np.random.RandomState) -> list[tuple[NDArray[np.float32], float]]:
    """Return random unit vectors, each with the bias at the median of the rows of its node."""
    matrix = as_matrix(rows)
    sets: list[Indices] = [np.arange(len(rows))]
    planes = []
    for node in range(2**depth - 1):
        direction: Any = random.normal(size=rows.shape[1])
        weights = (direction / np.sqrt(max(float(direction @ direction), 1e-30))).astype(np.float32)
        own = sets[node]
        score = matrix[own] @ weights
        bias = -float(np.median(score)) if len(own) else 0.0
        right = score + np.float32(bias) >= 0
        sets += [own[~right], own[right]]
        planes.append((weights, bias))
    return planes


def balanced_leaves(
    rows: Rows, labels: Indices, n_labels: int, depth: int, random: np.random.RandomState, weights: Weights = None
) -> Indices:
    """Return the leaf of every row, by recursive bisection of the classes with balanced, weighted 2-means.

    Class means of dense rows are first whitened by the within-class covariance. Those of sparse rows are normalised.
    """
    means, counts = class_means(rows, labels, n_labels, weights)
    present = np.flatnonzero(counts)
    if isinstance(rows, SparseRows):
        lengths = np.sqrt(means.multiply(means).sum(axis=1)).A1
        points = sp.diags((1.0 / np.maximum(lengths, 1e-30)).astype(np.float32)) @ means
    else:
        mean = rows.mean(axis=0) if weights is None else np.average(rows, axis=0, weights=weights)
        points = _whitened(means - mean, _covariance_within(rows, labels, means, weights))
    leaf_of_class = np.zeros(n_labels, np.int64)
    leaf_of_class[present] = _leaf_by_halving(points[present].astype(np.float32), counts[present], depth, random)
    return leaf_of_class[labels]


def _covariance_within(
    rows: NDArray[np.float32], labels: Indices, means: NDArray[np.float32], weights: Weights
) -> NDArray[np.float64]:
    covariance = np.zeros((rows.shape[1], rows.shape[1]))
    for start in range(0, len(rows), ROWS_AT_ONCE):  # in blocks, to bound the memory
        some = slice(start, start + ROWS_AT_ONCE)
        within = (rows[some] - means[labels[some]]).astype(np.float64)
        covariance += within.T @ (within if weights is None else within * weights[some, None])
    covariance /= max(1, len(rows)) if weights is None else float(weights.sum(dtype=np.float64))
    scale = max(float(np.trace(covariance)) / len(covariance), 1e-30)
    return (1.0 - SHRINKAGE) * covariance + SHRINKAGE * scale * np.eye(len(covariance))


def _whitened(points: NDArray[Any], covariance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return points whose Euclidean distances are Mahalanobis distances of the given ones."""
    factor = cholesky(covariance, lower=True)
    return np.ascontiguousarray(solve_triangular(factor, points.T, lower=True).T)


def _leaf_by_halving(points: Any, weights: NDArray[np.float64], depth: int, random: np.random.RandomState) -> Indices:
    leaves = np.zeros(points.shape[0], np.int64)
    for _ in range(depth):
        following = np.zeros_like(leaves)
        for leaf in np.unique(leaves):
            own = np.flatnonzero(leaves == leaf)
            following[own] = 2 * leaf + _second_half(points[own], weights[own], random)
        leaves = following
    return leaves


def _second_half(points: Any, weights: NDArray[np.float64], random: np.random.RandomState) -> NDArray[np.bool_]:
    """Return whether each point is in the second of two halves of about equal weight, by 2-means."""
    n = points.shape[0]
    if n == 1:
        return np.zeros(1, bool)
    first, second = random.choice(n, 2, replace=False)
    direction = _dense_row(points[second]) - _dense_row(points[first])
    chosen = np.zeros(n, bool)
    for _ in range(MAX_ITERATIONS):
        order = np.argsort(np.asarray(points @ direction).ravel(), kind="stable")
        heaviest = np.cumsum(weights[order]) - 0.5 * weights[order]
        cut = int(np.clip(np.searchsorted(heaviest, 0.5 * weights.sum()), 1, n - 1))
        now = np.zeros(n, bool)
        now[order[cut:]] = True
        if (now == chosen).all():
            break
        chosen = now
        direction = _weighted_mean(points, weights * chosen) - _weighted_mean(points, weights * ~chosen)
    return chosen


def _weighted_mean(points: Any, weights: NDArray[np.float64]) -> NDArray[np.float32]:
    return np.asarray((weights / weights.sum()).astype(np.float32) @ points).ravel()


def _dense_row(row: Any) -> NDArray[np.float32]:
    return np.asarray(row.toarray() if sp.issparse(row) else row).ravel()
