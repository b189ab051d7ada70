"""A trained double-sampling model: statistics of classes, and the weights of the joint features."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from treemax.explanations import Path, Trace, linear_step
from treemax.inputs.conversions import Floats, blocks, sparsified
from treemax.inputs.rows import Rows, SparseRows, ascends, read_only
from treemax.models.calibration import Calibration
from treemax.models.double_sampling import kernels
from treemax.models.trained import FromAllProbabilities
from treemax.models.trained.parts import expect, expect_counts, whole_number
from treemax.models.trained.searching import TopKAllowed, allowed_among, empty_top_k
from treemax.parallel.threads import run_all

SIMILARITIES = (
    "log frequency in the class", "log rarity", "idf", "share x idf", "log share", "log share x idf",
    "log share x rarity", "common features", "BM25", "distance to the centroid",
)  # fmt: skip


class Search(NamedTuple):
    """How many candidates to rank, and by which distance to find them."""

    n_candidates: int
    distance: str


class Statistics(NamedTuple):
    """What is known of features and classes."""

    features: kernels.Features
    classes: kernels.Classes

    @property
    def n_labels(self) -> int:
        return len(self.classes.n_rows)

    def nearest(self, rows: SparseRows, own: NDArray[np.int64], k: int, distance: str) -> NDArray[np.int64]:
        """Return the k classes with the nearest centroids, nearest first; that of class own[i] leaves row i out."""
        ids, distances = np.empty((len(rows), k), dtype=np.int64), np.empty((len(rows), k))
        kernels.nearest_centroids(rows.arrays, *self, distance == "cosine", own, ids, distances)
        return ids

    def similarities(self, rows: SparseRows, ids: NDArray[np.int64], own: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the joint features of rows and classes; the statistics of class own[i] leave row i out."""
        out = np.empty((*ids.shape, len(SIMILARITIES)))
        kernels.similarities(rows.arrays, *self, max(1.0, float(self.classes.n_entries.mean())), own, ids, out)
        return out


@dataclass
class DoubleSamplingModel(FromAllProbabilities):
    """Statistics of the classes, and one weight for each joint feature."""

    statistics: Statistics
    weights: NDArray[np.float64]
    calibration: Calibration | None = field(default=None, compare=False)

    @property
    def n_labels(self) -> int:
        return self.statistics.n_labels

    def top_k(self, rows: Rows, k: int, search: Search, threads: int = 1) -> tuple[NDArray[np.int64], Floats]:
        """Return the k best labels of each row and their probabilities; -1 where there are fewer candidates."""
        sparse, k = sparsified(rows), min(k, self.n_labels)
        ids, best = empty_top_k(len(rows), k)

        def predict_block(block: slice) -> None:
            candidates, probabilities = self._ranked(sparse[block], search)
            n = min(k, candidates.shape[1])
            ids[block, :n], best[block, :n] = candidates[:, :n], probabilities[:, :n]
            ids[block, n:], best[block, n:] = -1, 0.0

        run_all(blocks(len(rows), self.n_labels), predict_block, threads)
        return ids, best

    def top_k_allowed(
        self, rows: Rows, k: int, n_first: int, weights: Floats, search: Search, threads: int = 1
    ) -> TopKAllowed:
        """Return the `n_first` best candidates and the k best of those with a weight."""
        sparse, found = sparsified(rows), TopKAllowed.empty(len(rows), n_first, k)
        found.first[:], found.of_first[:] = -1, 0.0

        def predict_block(block: slice) -> None:
            best = allowed_among(*self._ranked(sparse[block], search), k, n_first, weights)
            n = best.first.shape[1]  # fewer than n_first if there are fewer candidates
            found.first[block, :n], found.of_first[block, :n] = best.first, best.of_first
            found.ids[block], found.probabilities[block] = best.ids, best.probabilities

        run_all(blocks(len(rows), self.n_labels), predict_block, threads)
        return found

    def probabilities(self, rows: Rows, search: Search, threads: int = 1) -> Floats:
        """Return the probability of every label for each row: zero for those that are no candidates."""
        sparse = sparsified(rows)
        out = np.zeros((len(rows), self.n_labels), dtype=np.float32)

        def predict_block(block: slice) -> None:
            candidates, found = self._ranked(sparse[block], search)
            found[candidates < 0] = 0.0
            np.put_along_axis(out[block], np.maximum(candidates, 0), found, axis=1)

        run_all(blocks(len(rows), self.n_labels), predict_block, threads)
        return out

    def trace(self, row: Rows, ids: list[int], scores: list[float], search: Search) -> Trace:
        """Return what each joint feature adds to the score of labels, for `explain`; none for other than candidates."""
        found = self.statistics.similarities(sparsified(row), np.array([ids]), np.array([-1]))[0] * self.weights
        branch = f"rank among {min(search.n_candidates, self.n_labels):,} candidates"
        steps = [
            linear_step(0, label, branch, score, dict(zip(SIMILARITIES, similarities)), np.zeros(0), [label], 1)
            for label, score, similarities in zip(ids, scores, found.tolist())
        ]
        paths = [[Path([step])] if step.probability > 0 else [] for step in steps]
        return Trace(np.zeros(0, np.int64), np.zeros(0, np.float32), paths, "float64")

    def _ranked(self, rows: SparseRows, search: Search) -> tuple[NDArray[np.int64], Floats]:
        """Return the candidates of each row, best first, and their probabilities."""
        left_out = np.full(len(rows), -1)
        ids = self.statistics.nearest(rows, left_out, min(search.n_candidates, self.n_labels), search.distance)
        values = self.statistics.similarities(rows, ids, left_out)
        probabilities = np.empty(ids.shape, dtype=np.float32)
        kernels.rank_candidates(values, self.weights, ids, probabilities)
        return ids, probabilities

    def without_labels(self, kept: NDArray[np.bool_]) -> DoubleSamplingModel:
        """Return the model of the `kept` labels, renumbered; what is known of features stays."""
        features, classes = self.statistics
        stays = kept[features.classes]
        starts = np.concatenate([[0], np.cumsum(stays)])[features.starts]
        number = (np.cumsum(kept) - 1).astype(np.uint32)
        features = features._replace(
            starts=read_only(starts),
            classes=read_only(number[features.classes[stays]]),
            sums=read_only(features.sums[stays]),
        )
        statistics = Statistics(features, kernels.Classes(*(read_only(array[kept]) for array in classes)))
        return replace(self, statistics=statistics)

    def to_parts(self, resume: bool = False) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the model as a JSON-able header and arrays."""
        features, classes = self.statistics
        arrays = {**features._asdict(), **classes._asdict(), "weights": self.weights}
        return {"n_features": len(features.idf)}, arrays

    @classmethod
    def from_parts(cls, header: dict[str, Any], arrays: dict[str, NDArray[Any]], n_labels: int) -> DoubleSamplingModel:
        """Restore the model from its parts; raise ValueError if they are inconsistent."""
        n_features = whole_number("n_features", header["n_features"])
        n_sums = arrays["sums"].shape
        starts = expect(arrays, "starts", np.int64, (n_features + 1,))
        if len(n_sums) != 1 or starts[0] != 0 or starts[-1] != n_sums[0] or not ascends(starts):
            raise ValueError("starts does not fit the sums")
        features = kernels.Features(
            starts,
            expect_counts(arrays, "classes", np.uint32, n_sums, most=n_labels - 1),
            expect(arrays, "sums", np.float32, n_sums),
            *(expect_counts(arrays, name, np.float32, (n_features,), most=np.inf) for name in ("idf", "rarity")),
        )
        of_classes = [
            expect_counts(arrays, name, np.float64, (n_labels,), most=np.inf) for name in kernels.Classes._fields
        ]
        weights = expect(arrays, "weights", np.float64, (len(SIMILARITIES),))
        return cls(Statistics(features, kernels.Classes(*of_classes)), weights)
