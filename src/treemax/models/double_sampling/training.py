"""Training of double sampling: statistics of the classes, and a linear model of pairs of classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from treemax.inputs.conversions import blocks
from treemax.inputs.rows import SparseRows, read_only
from treemax.models.double_sampling import kernels
from treemax.models.double_sampling.model import SIMILARITIES, Statistics
from treemax.parallel.threads import run_all

MOST_ROWS = 200_000  # from which pairs are made: more do not change ten weights
RIDGE = 1e-4  # penalty of scaled weights, which keeps those of separable pairs finite
NEWTON_STEPS, HALVINGS, TOLERANCE = 50, 30, 1e-9
MOST_RARE = 1e15
STEEPEST = 700.0  # the exponential of a larger number overflows


class PairSettings(NamedTuple):
    """Which pairs are made."""

    n_adversaries: int
    adversaries: str  # "random" or "nearest"
    distance: str


class Examples(NamedTuple):
    """Training rows with the id of the class of each."""

    rows: SparseRows
    labels: NDArray[np.int64]


def class_statistics(rows: SparseRows, labels: NDArray[np.uint32], n_labels: int) -> Statistics:
    """Return the sums of the rows of every class, and what is known of features and classes."""
    X = rows.to_scipy()
    ones = np.ones(len(rows), dtype=np.float32)
    member = sp.csr_matrix((ones, (labels, np.arange(len(rows)))), shape=(n_labels, len(rows)))
    sums = (member @ X).tocsc()
    sums.sort_indices()
    magnitudes = np.bincount(X.indices, np.abs(X.data), rows.n_features)
    n_with = np.maximum(1, np.bincount(X.indices, minlength=rows.n_features))
    known = magnitudes > 0
    rarity = np.minimum(MOST_RARE, magnitudes.sum() / np.where(known, magnitudes, np.inf))
    features = kernels.Features(
        sums.indptr.astype(np.int64),
        sums.indices.astype(np.uint32),
        sums.data.astype(np.float32),
        np.where(known, np.log(len(rows) / n_with), 0.0).astype(np.float32),
        rarity.astype(np.float32),
    )
    of_class, values = sums.indices, sums.data.astype(np.float64)
    classes = kernels.Classes(
        np.bincount(labels, minlength=n_labels),
        np.bincount(of_class, np.abs(values), n_labels),
        np.bincount(of_class, values**2, n_labels),
        np.bincount(labels, np.diff(X.indptr), n_labels),
    )
    classes = kernels.Classes(*(read_only(counts.astype(np.float64)) for counts in classes))  # integers if all is empty
    return Statistics(kernels.Features(*map(read_only, features)), classes)


def train_weights(
    examples: Examples,
    statistics: Statistics,
    settings: PairSettings,
    random: np.random.RandomState,
    threads: int,
    report: Callable[[int], object],
) -> NDArray[np.float64]:
    """Learn from pairs of classes how much each joint feature counts; without pairs, the nearest centroid wins."""
    pieces: dict[int, NDArray[np.float64]] = {}
    ids = adversaries(examples, statistics, settings, random)

    def compare(block: slice) -> None:
        pieces[block.start] = differences(examples, ids, block, statistics, settings)
        report(block.stop - block.start)

    run_all(blocks(len(examples.labels), statistics.n_labels), compare, threads)
    found = [pieces[start] for start in sorted(pieces)]
    weights = np.zeros(len(SIMILARITIES))
    weights[kernels.DISTANCE] = -1.0
    return pairwise_weights(np.concatenate(found)) if sum(map(len, found)) else weights


def sample_rows(labels: NDArray[np.uint32], rows_per_class: float, random: np.random.RandomState) -> NDArray[np.int64]:
    """Sample rows so that large classes have `rows_per_class` on average; small classes are whole (first sampling)."""
    counts = np.bincount(labels)
    kept = np.flatnonzero(random.random_sample(len(labels)) < rows_per_class / counts[labels])
    return kept if len(kept) <= MOST_ROWS else np.sort(random.permutation(kept)[:MOST_ROWS])


def adversaries(
    examples: Examples, statistics: Statistics, settings: PairSettings, random: np.random.RandomState
) -> NDArray[np.int64] | None:
    """Draw classes other than the row's own at random (second sampling); None where the nearest are taken."""
    if settings.adversaries == "nearest":
        return None
    n_labels = statistics.n_labels
    ids = np.empty((len(examples.labels), min(settings.n_adversaries, n_labels - 1)), dtype=np.int64)
    kernels.draw_others(read_only(examples.labels), n_labels, random.random_sample(ids.shape), ids)
    return ids


def differences(
    examples: Examples, drawn: NDArray[np.int64] | None, block: slice, statistics: Statistics, settings: PairSettings
) -> NDArray[np.float64]:
    """Return the joint features of a row and its class less those of the row and an adversary, for all pairs.

    For the nearest adversaries, the class of a row leaves the row out, as if it were new; rows that would not find
    their class among the nearest then are no examples.
    """
    rows, labels = examples.rows[block], examples.labels[block]
    left_out = np.full(len(labels), -1) if drawn is not None else labels
    if drawn is not None:
        both = np.concatenate([labels[:, None], drawn[block]], axis=1)
    else:
        n = min(settings.n_adversaries + 1, statistics.n_labels)
        both = statistics.nearest(rows, left_out, n, settings.distance)
    values = statistics.similarities(rows, both, left_out)
    is_own = both == labels[:, None]
    found = is_own.any(axis=1)
    of_own = values[is_own][:, None, :]
    return (of_own - values[found])[(both[found] >= 0) & ~is_own[found]]


def pairwise_weights(pairs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weights with the least logistic loss for which all pairs are positive examples (Newton's method)."""
    scale = np.sqrt(np.mean(pairs**2, axis=0))
    factor = np.where(scale > 0, 1.0 / np.where(scale > 0, scale, 1.0), 0.0)
    X, weights = pairs * factor, np.zeros(pairs.shape[1])

    def loss(at: NDArray[np.float64]) -> float:
        return float(np.logaddexp(0.0, -X @ at).mean() + 0.5 * RIDGE * at @ at)

    before = loss(weights)
    for _ in range(NEWTON_STEPS):
        wrong = 1.0 / (1.0 + np.exp(np.clip(X @ weights, -STEEPEST, STEEPEST)))
        gradient = RIDGE * weights - wrong @ X / len(X)
        curvature = (X * (wrong * (1.0 - wrong))[:, None]).T @ X / len(X) + RIDGE * np.eye(len(weights))
        step = np.linalg.solve(curvature, gradient)
        size = next((0.5**i for i in range(HALVINGS) if loss(weights - 0.5**i * step) < before), 0.0)
        weights = weights - size * step
        after = loss(weights)
        if before - after <= TOLERANCE:
            break
        before = after
    return weights * factor
