"""A recall tree: routers that find candidates, and regressors that choose among them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from treemax.inference.linear import blocks, densified, sparsified
from treemax.inputs import Rows, SparseRows
from treemax.kernels import recall_tree as kernels
from treemax.kernels.recall_tree import Histograms, Shape, Workspace
from treemax.kernels.scorers import EMPTY, DenseScorers, SparseScorers, moved
from treemax.threads import run_all

SMALLEST_TABLE = 1024
Scorers = DenseScorers | SparseScorers


class Beam(NamedTuple):
    """How candidates are looked for."""

    width: int
    n_candidates: int
    least_share: float
    prior: float


class CandidateModel:
    """What models that score a few candidates have in common."""

    n_labels: int
    n_features: int
    regressors: Scorers

    @property
    def is_sparse(self) -> bool:
        return isinstance(self.regressors, SparseScorers)

    def rows(self, rows: Rows) -> Any:
        """The rows as kernels take them, in the form in which the model learned."""
        if not self.is_sparse:
            return densified(rows, self.n_features) if isinstance(rows, SparseRows) else rows
        sparse = sparsified(rows)
        return sparse.indptr, sparse.indices, sparse.values

    def best(self, rows: Rows, k: int, search: Any, threads: int = 1) -> tuple[NDArray[Any], NDArray[Any]]:
        """The k best candidates of each row (-1 where there are fewer), with probabilities among the candidates."""
        raise NotImplementedError

    def probabilities(self, rows: Rows, search: Any, threads: int = 1) -> NDArray[np.float32]:
        """The probability of every label: zero for those that are no candidates."""
        ids, scores = self.best(rows, min(self.n_labels, search.n_candidates), search, threads)
        out = np.zeros((len(rows), self.n_labels), dtype=np.float32)
        row, place = np.nonzero(ids >= 0)
        out[row, ids[row, place]] = scores[row, place]
        return out


@dataclass
class RecallTreeModel(CandidateModel):
    """Routers, regressors and histograms; `n_labels` labels are known so far."""

    arity: int
    depth: int
    n_labels: int
    n_features: int
    routers: Scorers
    regressors: Scorers
    histograms: Histograms
    found: NDArray[np.int64] = field(default_factory=lambda: np.zeros(3, dtype=np.int64))
    knows_squares: bool = True

    @property
    def nbytes(self) -> int:
        return sum(
            array.nbytes for part in (self.routers, self.regressors, self.histograms) for array in part
        )

    def shape(self, beam: Beam) -> Shape:
        few = self.n_labels if self.n_labels <= beam.n_candidates else 0
        return Shape(
            self.arity, self.depth, beam.width, beam.n_candidates, few, np.float32(beam.least_share), np.float32(beam.prior)
        )  # fmt: skip

    def workspace(self, beam: Beam) -> Workspace:
        """Room for one thread."""
        n_open = 1 + (self.depth - 1) * beam.width
        most = beam.width * self.histograms.labels.shape[1] + max(beam.n_candidates, 1) + 1
        real, whole = np.float32, np.int64
        return Workspace(
            np.zeros(n_open, whole), np.zeros(n_open, real), np.zeros((n_open, self.arity), real),
            np.zeros(beam.width, whole), np.zeros(beam.width, real), np.zeros(beam.width, whole),
            np.zeros(beam.width, real), np.zeros(self.n_labels, real), np.zeros(most, whole), np.zeros(most, real),
            np.zeros(most, real), np.zeros(max(self.arity, 1), real),
        )  # fmt: skip

    def best(self, rows: Rows, k: int, beam: Beam, threads: int = 1) -> tuple[NDArray[Any], NDArray[Any]]:
        """The k best candidates of each row (-1 where there are fewer), with probabilities among the candidates."""
        ids, probabilities = np.empty((len(rows), k), np.int64), np.empty((len(rows), k), np.float32)
        shape = self.shape(beam)
        predict: Callable[..., None] = kernels.predict

        def answer(block: slice) -> None:
            part = rows[block]
            predict(
                self.rows(part), len(part), self.routers, self.regressors, self.histograms, shape,
                self.workspace(beam), ids[block], probabilities[block],
            )  # fmt: skip

        run_all(blocks(len(rows), max(k, beam.n_candidates)), answer, threads)
        return ids, probabilities

    # --- to a file and back -----------------------------------------------------------------------------

    def parts(self, resume: bool) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """The model as a JSON-able header and arrays; with `resume` also what learning needs."""
        header = {
            "arity": self.arity, "depth": self.depth, "n_features": self.n_features, "sparse": self.is_sparse,
            "found": self.found.tolist(), "resume": resume,
        }  # fmt: skip
        arrays: dict[str, NDArray[Any]] = {}
        for name, n in (("routers", len(self.routers.bias)), ("regressors", self.n_labels)):
            scorers = getattr(self, name)
            arrays |= {f"{name}/{key}": array for key, array in stored(scorers, n, resume).items()}
        own = self.histograms
        taken = own.keys != EMPTY
        leaves = slice((self.arity**self.depth - 1) // (self.arity - 1), None)
        arrays |= {
            "total": own.total, "labels": own.labels[leaves], "label_counts": own.label_counts[leaves],
            "n_labels": own.n_labels[leaves],
        }  # fmt: skip
        if resume:
            arrays |= {"keys": own.keys[taken], "counts": own.counts[taken]}
        return header, arrays

    @classmethod
    def from_parts(
        cls, header: dict[str, Any], arrays: dict[str, NDArray[Any]], n_labels: int
    ) -> RecallTreeModel:
        """The model back from its parts; what does not fit together is a ValueError."""
        arity, depth, n_features = (int(header[name]) for name in ("arity", "depth", "n_features"))
        n_inner = _checked_size(arity, depth)
        n_nodes, first = n_inner * arity + 1, n_inner
        sparse, resume = bool(header["sparse"]), bool(header["resume"])
        width = arrays["labels"].shape[1] if arrays["labels"].ndim == 2 else 0
        expect(arrays, "total", np.float32, (n_nodes,))
        for name, kind in (("labels", np.int64), ("label_counts", np.float32)):
            expect(arrays, name, kind, (n_nodes - first, width))
        expect(arrays, "n_labels", np.int64, (n_nodes - first,))
        labels, n_own = arrays["labels"], arrays["n_labels"]
        if (labels < 0).any() or (labels >= n_labels).any() or (n_own < 0).any() or (n_own > width).any():
            raise ValueError("the candidates do not fit the labels")
        keys, counts = _table(arrays, "", arity, resume)
        histograms = Histograms(
            keys, counts, np.array([(keys != EMPTY).sum(), 0]), np.array(arrays["total"]),
            _below(first, labels), _below(first, arrays["label_counts"]), _below(first, n_own),
            np.zeros(n_nodes, np.int64),
        )  # fmt: skip
        routers = restored(arrays, "routers", n_inner, arity, n_features, sparse, resume)
        regressors = restored(arrays, "regressors", n_labels, 1, n_features, sparse, resume)
        found = np.array(header["found"], dtype=np.int64)
        return cls(arity, depth, n_labels, n_features, routers, regressors, histograms, found, resume)


def _checked_size(arity: int, depth: int) -> int:
    if not (2 <= arity <= 256 and 1 <= depth <= 64 and arity**depth < 2**31):
        raise ValueError(f"a tree of arity {arity} and depth {depth} cannot be")
    return (arity**depth - 1) // (arity - 1)


def expect(arrays: dict[str, NDArray[Any]], name: str, kind: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    array = arrays[name]
    if array.dtype != kind or array.shape != shape:
        raise ValueError(
            f"{name} has dtype {array.dtype} and shape {array.shape}, expected {np.dtype(kind)} {shape}"
        )
    return array


def _below(first: int, array: NDArray[Any]) -> NDArray[Any]:
    """An array over all nodes from one over the last ones."""
    return np.concatenate([np.zeros((first, *array.shape[1:]), dtype=array.dtype), array])


def stored(scorers: Scorers, n: int, resume: bool) -> dict[str, NDArray[Any]]:
    out = {"bias": scorers.bias[:n]}
    if resume:
        out["bias_squares"] = scorers.bias_squares[:n]
    if isinstance(scorers, DenseScorers):
        return {**out, "weights": scorers.weights[:n], **({"squares": scorers.squares[:n]} if resume else {})}
    taken = scorers.keys != EMPTY
    cells = scorers.cells[taken]
    return {**out, "keys": scorers.keys[taken], "cells": cells if resume else cells[:, : cells.shape[1] // 2]}


def restored(
    arrays: dict[str, NDArray[Any]], name: str, n_groups: int, width: int, n_features: int, sparse: bool, resume: bool
) -> Scorers:  # fmt: skip
    n = n_groups * width
    bias = np.array(expect(arrays, f"{name}/bias", np.float32, (n,)))
    squares = np.zeros(n, np.float32)
    if resume:
        squares = np.array(expect(arrays, f"{name}/bias_squares", np.float32, (n,)))
    if not sparse:
        weights = expect(arrays, f"{name}/weights", np.float32, (n, n_features))
        own = (
            expect(arrays, f"{name}/squares", np.float32, (n, n_features))
            if resume
            else np.zeros_like(weights)
        )
        return DenseScorers(np.array(weights), np.array(own), bias, squares)
    keys, cells = _table(arrays, f"{name}/", 2 * width, True, stored=2 * width if resume else width)
    return SparseScorers(keys, cells, np.array([(keys != EMPTY).sum(), 0]), bias, squares)


def _table(
    arrays: dict[str, NDArray[Any]], prefix: str, width: int, present: bool, stored: int | None = None
) -> tuple[NDArray[np.uint64], NDArray[np.float32]]:
    """A hash table from the entries that it had."""
    name = f"{prefix}cells" if prefix else "counts"
    if not present:
        return np.full(SMALLEST_TABLE, EMPTY), np.zeros((SMALLEST_TABLE, width), np.float32)
    keys, n = arrays[f"{prefix}keys"], len(arrays[f"{prefix}keys"])
    expect(arrays, f"{prefix}keys", np.uint64, (n,))
    cells = expect(arrays, name, np.float32, (n, stored or width))
    if (keys == EMPTY).any() or len(np.unique(keys)) != n:
        raise ValueError("a table has an entry twice")
    size = SMALLEST_TABLE
    while size * 3 // 4 < n:
        size *= 2
    new_keys, new_cells = np.full(size, EMPTY), np.zeros((size, width), dtype=np.float32)
    whole = np.zeros((n, width), dtype=np.float32)
    whole[:, : cells.shape[1]] = cells
    moved(np.array(keys), whole, new_keys, new_cells)
    return new_keys, new_cells
