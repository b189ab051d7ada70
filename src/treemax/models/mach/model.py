"""A trained MACH model: linear models of buckets, and the hash functions that put labels into buckets."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treemax.explanations import Path, Step, Trace, linear_step
from treemax.inputs.conversions import Floats, blocks
from treemax.inputs.rows import Rows, read_only
from treemax.models.calibration import Calibration
from treemax.models.mach import kernels
from treemax.models.one_vs_all import kernels as flat_kernels
from treemax.models.one_vs_all.model import LinearModel
from treemax.models.trained import FromAllProbabilities
from treemax.models.trained.parts import expect_counts, truth, whole_number
from treemax.models.trained.searching import TopKAllowed, empty_top_k
from treemax.parallel.threads import run_all

PRIME = 2**31 - 1
COMBINE = {"mean": kernels.MEAN, "min": kernels.MIN, "median": kernels.MEDIAN}


@dataclass
class MACHModel(FromAllProbabilities):
    """Linear models of the buckets of all repetitions, one after the other, and the hash functions.

    In repetition r, label i is in bucket (multipliers[r] * i + offsets[r]) mod p mod n_buckets, for a prime p: a
    2-universal family of hash functions.
    """

    flat: LinearModel
    multipliers: NDArray[np.int64]
    offsets: NDArray[np.int64]
    n_buckets: int
    n_labels: int
    one_label: bool
    calibration: Calibration | None = field(default=None, compare=False)
    hashed: NDArray[np.int64] | None = None  # the number of each label in the hash functions; None: its id

    @cached_property
    def buckets(self) -> NDArray[np.uint32]:
        """The bucket of every label in every repetition."""
        labels = np.arange(self.n_labels) if self.hashed is None else self.hashed
        return read_only(buckets_of(self.multipliers, self.offsets, self.n_buckets, labels))

    def _label_scores(self, rows: Rows, combine: str) -> Floats:
        of_buckets = self.flat.scores(rows)
        kernels.bucket_probabilities(of_buckets, self.n_buckets, self.one_label)
        out = np.empty((len(rows), self.n_labels), dtype=np.float32)
        kernels.label_scores(of_buckets, self.buckets, self.n_buckets, COMBINE[combine], out)
        if self.one_label:
            kernels.normalise(out, self.n_buckets)
        return out

    def top_k(self, rows: Rows, k: int, search: str, threads: int = 1) -> tuple[NDArray[np.int64], Floats]:
        """Return the k best labels of each row, best first, and their probabilities."""
        ids, best = empty_top_k(len(rows), min(k, self.n_labels))

        def predict_block(block: slice) -> None:
            flat_kernels.best_of_rows(self._label_scores(rows[block], search), ids[block], best[block])

        run_all(blocks(len(rows), self.n_labels), predict_block, threads)
        return ids, best

    def top_k_allowed(
        self, rows: Rows, k: int, n_first: int, weights: Floats, search: str, threads: int = 1
    ) -> TopKAllowed:
        """Return the `n_first` best of all labels and the k best of those with a weight, from the same scores."""
        found = TopKAllowed.empty(len(rows), n_first, k)
        weights = read_only(weights)

        def predict_block(block: slice) -> None:
            scores = self._label_scores(rows[block], search)
            first, of_first, ids, best = (array[block] for array in found)
            if n_first:
                flat_kernels.best_of_rows(scores, first, of_first)
            flat_kernels.best_of_allowed(scores, weights, ids, best)

        run_all(blocks(len(rows), self.n_labels), predict_block, threads)
        return found

    def probabilities(self, rows: Rows, search: str, threads: int = 1) -> Floats:
        """Return the probability of every label for each row."""
        out = np.empty((len(rows), self.n_labels), dtype=np.float32)

        def predict_block(block: slice) -> None:
            out[block] = self._label_scores(rows[block], search)

        run_all(blocks(len(rows), self.n_labels), predict_block, threads)
        return out

    def trace(self, row: Rows, ids: list[int], scores: list[float], search: str) -> Trace:
        """Return the buckets of labels, for `explain`."""
        columns, values = self.flat.inputs(row)
        of_buckets = self.flat.scores(row)
        kernels.bucket_probabilities(of_buckets, self.n_buckets, self.one_label)
        n = len(self.multipliers)
        owners = np.arange(n) * self.n_buckets + self.buckets[:, ids].T.astype(np.int64)  # labels x repetitions
        weights = self.flat.weights_of(owners.ravel(), columns).reshape(*owners.shape, -1)
        added = values.astype(np.float64) * weights

        def route(place: int, repetition: int) -> Path:
            owner = int(owners[place, repetition])
            bucket = owner - repetition * self.n_buckets
            bias, branch = {"bias": float(self.flat.bias[owner])}, f"bucket {bucket + 1} of {self.n_buckets:,}"
            step = linear_step(repetition, bucket, branch, float(of_buckets[0, owner]), bias, added[place, repetition])
            return Path([step], 1.0 / n, repetition)

        combined = f"{search} of {n} repetitions"
        paths = [[Path([Step(0, label, combined, own, labels=[label], n_labels=1)])] for label, own in zip(ids, scores)]
        routes = [[route(place, repetition) for repetition in range(n)] for place in range(len(ids))]
        return Trace(columns.astype(np.int64), values, paths, "float32", routes)

    def without_labels(self, kept: NDArray[np.bool_]) -> MACHModel:
        """Return the model of the `kept` labels, which stay in their buckets. Buckets that have no other label are emptied;
        what the others learned from rows of removed labels stays."""
        used = np.zeros((len(self.multipliers), self.n_buckets), dtype=bool)
        np.put_along_axis(used, self.buckets[:, kept].astype(np.int64), True, axis=1)
        before = np.arange(self.n_labels) if self.hashed is None else self.hashed
        flat = self.flat.with_zeros(~used.ravel())
        return replace(self, flat=flat, n_labels=int(kept.sum()), hashed=before[kept])

    def to_parts(self, resume: bool = False) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the model as a JSON-able header and arrays."""
        header, arrays = self.flat.to_parts()
        header = {**header, "n_buckets": self.n_buckets, "one_label": self.one_label}
        if self.hashed is not None:
            arrays = {**arrays, "hashed": self.hashed}
        return header, {**arrays, "multipliers": self.multipliers, "offsets": self.offsets}

    @classmethod
    def from_parts(cls, header: dict[str, Any], arrays: dict[str, NDArray[Any]], n_labels: int) -> MACHModel:
        """Restore the model from its parts; raise ValueError if they are inconsistent."""
        arrays = dict(arrays)
        shape = arrays["multipliers"].shape
        if len(shape) != 1 or shape[0] == 0:
            raise ValueError("there are no hash functions")
        multipliers = expect_counts(arrays, "multipliers", np.int64, shape, least=1, most=PRIME - 1)
        offsets = expect_counts(arrays, "offsets", np.int64, shape, most=PRIME - 1)
        n_buckets = whole_number("n_buckets", header["n_buckets"], least=2, most=PRIME)
        hashed = None
        if "hashed" in arrays:
            hashed = np.array(expect_counts(arrays, "hashed", np.int64, (n_labels,), most=PRIME - 1))
        for name in arrays.keys() & {"multipliers", "offsets", "hashed"}:
            del arrays[name]
        flat = LinearModel.from_parts(header, arrays, shape[0] * n_buckets)
        one_label = truth("one_label", header["one_label"])
        return cls(flat, multipliers, offsets, n_buckets, n_labels, one_label, hashed=hashed)


def buckets_of(
    multipliers: NDArray[np.int64], offsets: NDArray[np.int64], n_buckets: int, labels: NDArray[np.int64]
) -> NDArray[np.uint32]:
    """Return the bucket of every label in every repetition; `labels` are their numbers."""
    return ((multipliers[:, None] * labels + offsets[:, None]) % PRIME % n_buckets).astype(np.uint32)
