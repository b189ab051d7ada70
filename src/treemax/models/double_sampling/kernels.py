"""Nearest class centroids, and similarities of rows and classes.

Sums of classes are stored by feature: feature t has the classes and sums of the entries starts[t] to starts[t + 1], so
that one pass over the features of a row meets every class that has one of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from treemax.kernels.intrinsics import empty, maximum, minimum
from treemax.kernels.jit import kernel
from treemax.kernels.sparse_rows import Rows

(
    LOG_FREQUENCY, LOG_RARITY, IDF, SHARE_IDF, LOG_SHARE, LOG_SHARE_IDF, LOG_SHARE_RARITY, COMMON, BM25, DISTANCE,
) = range(10)  # fmt: skip
LEAST = 1e-6  # a sum below this share of the row's value is rounding error: the class does not have the feature


class Features(NamedTuple):
    """What is known of every feature, and the sums of the classes that have it."""

    starts: np.ndarray
    classes: np.ndarray
    sums: np.ndarray
    idf: np.ndarray  # log of the number of rows over the number of rows with the feature
    rarity: np.ndarray  # sum of all values of all features over that of the feature


class Classes(NamedTuple):
    """What is known of every class."""

    n_rows: np.ndarray
    totals: np.ndarray  # sums of all features, added up
    squares: np.ndarray  # of the length of the vector of sums
    n_entries: np.ndarray  # non-zero entries of the rows


@kernel
def nearest_centroids(rows, features, classes, by_angle, own, ids, distances):
    """Find the classes with the nearest centroids, nearest first: by the angle, or by the Euclidean distance.

    Distances are squared, without the row's own length, or the negative cosine times that length. The sums of class
    own[i] leave row i out; -1 where all classes are as they are.
    """
    indptr, indices, values = Rows(*rows)
    starts, of_entry, sums = features.starts, features.classes, features.sums
    n_rows, squares = classes.n_rows, classes.squares
    n_classes, n_features, most = n_rows.size, starts.size - 1, ids.shape[1]
    dots = empty(n_classes, np.float64)
    for i in range(ids.shape[0]):
        dots[:] = 0.0
        square_length = 0.0
        for p in range(indptr[i], indptr[i + 1]):
            if indices[p] < n_features:
                x = np.float64(values[p])
                square_length += x * x
                for q in range(starts[indices[p]], starts[indices[p] + 1]):
                    dots[of_entry[q]] += x * sums[q]
        filled = np.int64(0)
        for label in range(n_classes):
            n, dot, square = n_rows[label], dots[label], squares[label]
            if label == own[i]:
                n, dot, square = n - 1.0, dot - square_length, square + square_length - 2.0 * dot
            if n <= 0.0:
                continue
            if by_angle:
                distance = -dot / np.sqrt(square) if square > 0.0 else 0.0
            else:
                distance = (square / n - 2.0 * dot) / n
            if filled == most and distance >= distances[i, most - 1]:
                continue
            at = minimum(filled, most - 1)
            while at > 0 and distances[i, at - 1] > distance:
                distances[i, at], ids[i, at] = distances[i, at - 1], ids[i, at - 1]
                at -= 1
            distances[i, at], ids[i, at] = distance, label
            filled = minimum(filled + 1, most)
        ids[i, filled:] = -1
        distances[i, filled:] = np.inf


@kernel
def _add_common(x, signed, idf, rarity, total, weight, line):
    """Add what one common feature contributes, from its sum in the class."""
    frequency = abs(signed)
    if frequency <= LEAST * abs(x) or total <= 0.0:
        return
    share = frequency / total
    line[LOG_FREQUENCY] += np.log1p(frequency)
    line[LOG_RARITY] += np.log1p(rarity)
    line[IDF] += idf
    line[SHARE_IDF] += share * idf
    line[LOG_SHARE] += np.log1p(share)
    line[LOG_SHARE_IDF] += np.log1p(share * idf)
    line[LOG_SHARE_RARITY] += np.log1p(share * rarity)
    line[COMMON] += 1.0
    line[BM25] += idf * 2.0 * abs(x) / (abs(x) + weight)


@kernel
def similarities(rows, features, classes, mean_entries, own, ids, out):
    """Compute the joint features of each row and its classes `ids`, which are distinct, or -1 for none.

    The sums of class own[i] leave row i out; -1 where all classes are as they are.
    """
    indptr, indices, values = Rows(*rows)
    starts, of_entry, sums, idf, rarity = features
    n_rows, totals, squares, n_entries = classes
    n_features, most = starts.size - 1, ids.shape[1]
    place_of = np.full(n_rows.size, -1, np.int64)
    dots, total, weight = np.empty(most), np.empty(most), np.empty(most)
    for i in range(ids.shape[0]):
        first, last = indptr[i], indptr[i + 1]
        length, square_length = 0.0, 0.0
        for p in range(first, last):
            if indices[p] < n_features:
                length += abs(np.float64(values[p]))
                square_length += np.float64(values[p]) ** 2
        out[i] = 0.0
        for c in range(most):
            label = ids[i, c]
            if label >= 0:
                left_out = label == own[i]
                place_of[label], dots[c] = c, 0.0
                total[c] = totals[label] - (length if left_out else 0.0)
                weight[c] = 0.25 + 0.75 * (n_entries[label] - (last - first if left_out else 0)) / mean_entries
        for p in range(first, last):
            if indices[p] >= n_features:
                continue
            t, x = indices[p], np.float64(values[p])
            for q in range(starts[t], starts[t + 1]):
                c = place_of[of_entry[q]]
                if c >= 0:
                    signed = np.float64(sums[q])
                    dots[c] += x * signed
                    signed -= x if of_entry[q] == own[i] else 0.0
                    _add_common(x, signed, np.float64(idf[t]), np.float64(rarity[t]), total[c], weight[c], out[i, c])
        for c in range(most):
            label = ids[i, c]
            if label >= 0:
                place_of[label] = -1
                n, dot, square = n_rows[label], dots[c], squares[label]
                if label == own[i]:
                    n, dot, square = maximum(1.0, n - 1.0), dot - square_length, square + square_length - 2.0 * dot
                out[i, c, DISTANCE] = np.sqrt(maximum(0.0, square_length + (square / n - 2.0 * dot) / n))


@kernel
def rank_candidates(values, weights, ids, probabilities):
    """Sort the candidates of each row by score, best first, and turn scores into a softmax over the candidates."""
    n_rows, most, n_values = values.shape
    scores = empty(most, np.float64)
    for i in range(n_rows):
        filled = np.int64(0)
        for c in range(most):
            label = ids[i, c]
            if label < 0:
                continue
            score = 0.0
            for j in range(n_values):
                score += weights[j] * values[i, c, j]
            at = filled
            while at > 0 and scores[at - 1] < score:
                scores[at], ids[i, at] = scores[at - 1], ids[i, at - 1]
                at -= 1
            scores[at], ids[i, at] = score, label
            filled += 1
        total = 0.0
        for c in range(filled):
            total += np.exp(scores[c] - scores[0])
        for c in range(most):
            probabilities[i, c] = np.exp(scores[c] - scores[0]) / total if c < filled else 0.0


@kernel
def draw_others(own, n_classes, random, ids):
    """Draw distinct classes other than the row's own, from random numbers between 0 and 1 (Floyd's algorithm)."""
    n_drawn = ids.shape[1]
    for i in range(own.size):
        for j in range(n_drawn):
            largest = n_classes - 1 - n_drawn + j
            drawn = minimum(largest, np.int64(random[i, j] * (largest + 1)))
            drawn += 1 if drawn >= own[i] else 0
            for before in range(j):
                if ids[i, before] == drawn:
                    drawn = largest + (1 if largest >= own[i] else 0)
                    break
            ids[i, j] = drawn
