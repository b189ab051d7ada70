"""A recall tree: routers that find candidates, and regressors that choose among them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.rows import Rows, SparseRows
from treemax.kernels.scorers import EMPTY, DenseScorers, SparseGroups, SparseScorers, moved
from treemax.models.calibration import Calibration
from treemax.models.parts import (
    check_memory,
    expect,
    expect_counts,
    expect_squares,
    real_number,
    truth,
    whole_number,
    whole_numbers,
)
from treemax.models.recall_tree import kernels
from treemax.models.recall_tree.kernels import Histograms, Shape, Workspace
from treemax.models.rows import blocks, densified, known_features, sparsified
from treemax.models.scaling import Scaling
from treemax.models.scorers import (
    Scorers,
    dense_scorers,
    frozen_scorers,
    prediction_scorers,
    trainable_scorers,
)
from treemax.models.sparse_scorers import restored_sparse, stored_sparse
from treemax.models.trained import FromAllProbabilities
from treemax.parallel.threads import run_all
from treemax.trees import NodeLabels

SMALLEST_TABLE = 1024
SHARPNESS = (math.exp(-2.0), math.exp(2.0))  # from the least to the most


class Beam(NamedTuple):
    """How candidates are looked for."""

    width: int
    n_candidates: int
    least_share: float
    prior: float


class CandidateModel(FromAllProbabilities):
    """What models that score a few candidates have in common."""

    n_labels: int
    n_features: int
    routers: Scorers
    regressors: Scorers
    knows_squares: bool
    scaling: Scaling | None = None

    def start_afresh(self) -> None:
        """Make a model that was kept for answering only one that learns; AdaGrad begins anew."""
        self.routers, self.regressors = trainable_scorers(self.routers), trainable_scorers(self.regressors)
        self.knows_squares = True

    @property
    def is_sparse(self) -> bool:
        return isinstance(self.regressors, SparseScorers)

    def rows(self, rows: Rows) -> Any:
        """The rows as kernels take them, in the form and on the scale in which the model learned."""
        if not self.is_sparse:
            dense = densified(rows, self.n_features) if isinstance(rows, SparseRows) else rows
            return dense if self.scaling is None else self.scaling(dense)
        sparse = known_features(sparsified(rows), self.n_features)
        return sparse.indptr, sparse.indices, sparse.values

    def top_k(self, rows: Rows, k: int, search: Any, threads: int = 1) -> tuple[NDArray[Any], NDArray[Any]]:
        """The k best candidates of each row (-1 where there are fewer), with probabilities among the candidates."""
        raise NotImplementedError

    def probabilities(self, rows: Rows, search: Any, threads: int = 1) -> NDArray[np.float32]:
        """The probability of every label: zero for those that are no candidates."""
        ids, scores = self.top_k(rows, min(self.n_labels, search.n_candidates), search, threads)
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
    sharpness: float = 1.0  # of probabilities, found on rows that were not learned yet
    calibration: Calibration | None = None  # found likewise
    scaling: Scaling | None = None  # of dense rows

    @property
    def nbytes(self) -> int:
        return sum(
            array.nbytes for part in (self.routers, self.regressors, self.histograms) for array in part
        )

    def fitting(self, beam: Beam) -> Beam:
        """The same search, with a beam no wider than the tree."""
        return beam._replace(width=min(beam.width, self.arity**self.depth))

    def most_open(self, beam: Beam) -> int:
        """How many nodes the search opens for a row, at most."""
        return sum(min(beam.width, self.arity**level) for level in range(self.depth))

    def shape(self, beam: Beam) -> Shape:
        few = self.n_labels if self.n_labels <= beam.n_candidates else 0
        n_candidates = min(beam.n_candidates, self.n_labels)
        return Shape(
            self.arity, self.depth, beam.width, n_candidates, few, np.float32(beam.least_share), np.float32(beam.prior),
            np.float32(self.sharpness),
        )  # fmt: skip

    def workspace(self, beam: Beam) -> Workspace:
        """Room for one thread."""
        n_open = self.most_open(beam)
        most = beam.width * self.histograms.labels.shape[1] + min(beam.n_candidates, self.n_labels) + 1
        real, whole = np.float32, np.int64
        return Workspace(
            np.zeros(n_open, whole), np.zeros(n_open, real), np.zeros((n_open, self.arity), real),
            np.zeros(beam.width, whole), np.zeros(beam.width, real), np.zeros(beam.width, whole),
            np.zeros(beam.width, real), np.zeros(self.n_labels, real), np.zeros(most, whole), np.zeros(most, real),
            np.zeros(most, real), np.zeros(max(self.arity, 1), real),
        )  # fmt: skip

    def top_k(self, rows: Rows, k: int, search: Beam, threads: int = 1) -> tuple[NDArray[Any], NDArray[Any]]:
        """The k best candidates of each row (-1 where there are fewer), with probabilities among the candidates."""
        ids, probabilities = np.empty((len(rows), k), np.int64), np.empty((len(rows), k), np.float32)
        beam = self.fitting(search)
        shape, routers, regressors = (
            self.shape(beam),
            prediction_scorers(self.routers),
            prediction_scorers(self.regressors),
        )
        predict: Callable[..., None] = kernels.predict

        def answer(block: slice) -> None:
            part = rows[block]
            predict(
                self.rows(part), len(part), routers, regressors, self.histograms, shape,
                self.workspace(beam), ids[block], probabilities[block],
            )  # fmt: skip

        run_all(blocks(len(rows), max(k, beam.n_candidates)), answer, threads)
        return ids, probabilities

    def node_labels(self) -> NodeLabels:
        """The candidates of the last nodes, summed up from there. Examples count as often as they came."""
        own, n_inner = self.histograms, len(self.histograms.total) // self.arity
        children: list[list[int]] = [
            [child for child in range(node * self.arity + 1, (node + 1) * self.arity + 1) if own.total[child] > 0]
            for node in range(n_inner)
        ]  # fmt: skip
        children += [[]] * (len(own.total) - n_inner)
        labels = [row[:n] for row, n in zip(own.labels.copy(), own.n_labels)]
        counts = [row[:n] for row, n in zip(own.label_counts.copy(), own.n_labels)]
        return NodeLabels.from_leaves(children, labels, counts, own.total.tolist())

    # --- to a file and back -----------------------------------------------------------------------------

    def to_parts(self, resume: bool = False) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """The model as a JSON-able header and arrays; with `resume` also what learning needs."""
        header = {
            "arity": self.arity, "depth": self.depth, "n_features": self.n_features, "sparse": self.is_sparse,
            "found": self.found.tolist(), "resume": resume, "sharpness": self.sharpness,
        }  # fmt: skip
        arrays: dict[str, NDArray[Any]] = {}
        for name, n in (("routers", len(self.routers.bias)), ("regressors", self.n_labels)):
            scorers = getattr(self, name)
            arrays |= {f"{name}/{key}": array for key, array in stored(scorers, n, resume).items()}
        own = self.histograms
        taken = own.keys != EMPTY
        filled = np.arange(own.labels.shape[1]) < own.n_labels[:, None]
        arrays |= {
            "total": own.total, "labels": own.labels[filled], "label_counts": own.label_counts[filled],
            "n_labels": own.n_labels.astype(np.int32),
        }  # fmt: skip
        if resume:
            arrays |= {"keys": own.keys[taken], "counts": own.counts[taken]}
        if self.scaling is not None:
            arrays |= {"mean": self.scaling.mean, "factor": self.scaling.factor}
        return header, arrays

    @classmethod
    def from_parts(
        cls, header: dict[str, Any], arrays: dict[str, NDArray[Any]], n_labels: int
    ) -> RecallTreeModel:
        """The model back from its parts; what does not fit together is a ValueError."""
        arity, depth, n_features = (
            whole_number(name, header[name]) for name in ("arity", "depth", "n_features")
        )
        n_inner = _checked_size(arity, depth)
        n_nodes = n_inner * arity + 1
        sparse, resume = (truth(name, header[name]) for name in ("sparse", "resume"))
        expect_counts(arrays, "total", np.float32, (n_nodes,))
        labels, label_counts, n_own = _restored_candidates(arrays, n_nodes, n_labels)
        keys, counts = _table(arrays, "", arity, resume)
        histograms = Histograms(
            keys, counts, np.array([(keys != EMPTY).sum(), 0]), np.array(arrays["total"]), labels, label_counts, n_own,
            np.zeros(n_nodes, np.int64),
        )  # fmt: skip
        routers = restored(arrays, "routers", n_inner, arity, n_features, sparse, resume)
        regressors = restored(arrays, "regressors", n_labels, 1, n_features, sparse, resume)
        found = whole_numbers("found", header["found"], 3)
        return cls(
            arity,
            depth,
            n_labels,
            n_features,
            routers,
            regressors,
            histograms,
            found,
            resume,
            real_number("sharpness", header["sharpness"], *SHARPNESS),
            None,
            _restored_scaling(arrays, n_features),
        )


def _restored_scaling(arrays: dict[str, NDArray[Any]], n_features: int) -> Scaling | None:
    if "mean" not in arrays:
        return None
    return Scaling(
        *(expect(arrays, name, np.float32, (n_features,)) for name in ("mean", "factor"))
    ).checked()


def _checked_size(arity: int, depth: int) -> int:
    if not (2 <= arity <= 256 and 1 <= depth <= 64 and arity**depth < 2**31):
        raise ValueError(f"a tree of arity {arity} and depth {depth} cannot be")
    return (arity**depth - 1) // (arity - 1)


def _restored_candidates(
    arrays: dict[str, NDArray[Any]], n_nodes: int, n_labels: int
) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.int64]]:
    """The candidates of the nodes: a row for each again, as wide as the longest."""
    n_own = expect_counts(arrays, "n_labels", np.int32, (n_nodes,), most=n_labels).astype(np.int64)
    check_memory("the table of candidates", 9 * n_nodes * int(n_own.max()))
    filled = np.arange(n_own.max()) < n_own[:, None]
    labels, counts = np.zeros(filled.shape, np.int32), np.zeros(filled.shape, np.float32)
    n = (int(n_own.sum()),)
    labels[filled] = expect(arrays, "labels", np.int32, n)
    counts[filled] = expect_counts(arrays, "label_counts", np.float32, n)
    if (labels < 0).any() or (labels >= n_labels).any():
        raise ValueError("the candidates do not fit the labels")
    return labels, counts, n_own


def stored(scorers: Scorers, n: int, resume: bool) -> dict[str, NDArray[Any]]:
    out = {"bias": scorers.bias[:n]}
    if isinstance(scorers, DenseScorers):
        prediction_scorers(scorers)
        if not resume:
            return {**out, "halves": scorers.halves[:n].view(np.float16), "scale": scorers.scale[:n]}
        scorers = trainable_scorers(scorers)
        kept = {name: getattr(scorers, name)[:n] for name in ("bias_squares", "weights", "squares")}
        return {**out, **kept}
    if resume:
        out["bias_squares"] = scorers.bias_squares[:n]
    if isinstance(scorers, SparseScorers):
        return {**out, **stored_sparse(scorers, resume)}
    taken = scorers.keys != EMPTY
    cells = scorers.cells[taken]
    return {**out, "keys": scorers.keys[taken], "cells": cells if resume else cells[:, : cells.shape[1] // 2]}


def restored(
    arrays: dict[str, NDArray[Any]], name: str, n_groups: int, width: int, n_features: int, sparse: bool, resume: bool
) -> Scorers:  # fmt: skip
    n = n_groups * width
    bias = np.array(expect(arrays, f"{name}/bias", np.float32, (n,)))
    squares = np.zeros(n, np.float32)
    if not sparse and not resume:
        halves = np.array(expect(arrays, f"{name}/halves", np.float16, (n, n_features)))
        return frozen_scorers(halves, np.array(expect(arrays, f"{name}/scale", np.float32, (n,))), bias)
    if resume:
        squares = np.array(expect_squares(arrays, f"{name}/bias_squares", (n,)))
    if not sparse:
        shape = (n, n_features)
        weights = np.array(expect(arrays, f"{name}/weights", np.float32, shape))
        own = np.array(expect_squares(arrays, f"{name}/squares", shape))
        return dense_scorers(weights, own, bias, squares)
    if width == 1:
        n_weights = len(arrays[f"{name}/owners"])
        return restored_sparse(
            expect(arrays, f"{name}/entries", np.uint32, (n_features,)),
            expect(arrays, f"{name}/owners", np.uint32, (n_weights,)),
            expect(arrays, f"{name}/weights", np.float32, (n_weights,)),
            expect_squares(arrays, f"{name}/squares", (n_weights,)) if resume else None,
            bias, squares,
        )  # fmt: skip
    keys, cells = _table(arrays, f"{name}/", 2 * width, True, stored=2 * width if resume else width)
    return SparseGroups(keys, cells, np.array([(keys != EMPTY).sum(), 0]), bias, squares)


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
    if (whole[:, width // 2 if prefix else 0 :] < 0).any():  # the squares behind the weights, or the counts
        raise ValueError(f"{name} has numbers below zero")
    moved(np.array(keys), whole, new_keys, new_cells)
    return new_keys, new_cells
