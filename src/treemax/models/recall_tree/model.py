"""A trained recall tree: routers select candidates, and regressors rank them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from treemax.explanations import Trace
from treemax.inputs.conversions import blocks, densified, known_features, sparsified
from treemax.inputs.rows import Rows, SparseRows
from treemax.kernels.feature_tables import SparseScorers
from treemax.kernels.scorers import EMPTY, DenseScorers, SparseGroups, moved
from treemax.models.calibration import Calibration
from treemax.models.recall_tree import kernels
from treemax.models.recall_tree.kernels import Histograms, Shape, Workspace
from treemax.models.recall_tree.tracing import trace_candidates
from treemax.models.trained import FromAllProbabilities, FromCandidates
from treemax.models.trained.parts import (
    check_memory,
    expect,
    expect_counts,
    expect_squares,
    real_number,
    truth,
    whole_number,
    whole_numbers,
)
from treemax.models.trained.scorers import Scorers, dense_scorers, frozen_scorers, prediction_scorers, trainable_scorers
from treemax.models.trained.sparse_scorers import restored_sparse, stored_sparse
from treemax.models.training.scaling import Scaling
from treemax.parallel.threads import run_all
from treemax.trees import NodeLabels

SMALLEST_TABLE = 1024
SHARPNESS = (math.exp(-2.0), math.exp(2.0))  # range of the inverse temperature


class Beam(NamedTuple):
    """Settings of the beam search for candidates."""

    width: int
    n_candidates: int
    least_share: float
    prior: float


class OnlineTreeModel(FromAllProbabilities):
    """Base class of trees of linear scorers that learn online."""

    n_labels: int
    n_features: int
    routers: Scorers
    regressors: Scorers
    knows_squares: bool
    scaling: Scaling | None = None

    def restart_learning(self) -> None:
        """Make a model that was saved for prediction trainable again; AdaGrad starts anew."""
        self.routers, self.regressors = trainable_scorers(self.routers), trainable_scorers(self.regressors)
        self.knows_squares = True

    @property
    def is_sparse(self) -> bool:
        return isinstance(self.regressors, SparseScorers)

    def rows(self, rows: Rows) -> Any:
        """Convert rows to the format and scale of the training rows."""
        if not self.is_sparse:
            dense = densified(rows, self.n_features) if isinstance(rows, SparseRows) else rows
            return dense if self.scaling is None else self.scaling(dense)
        sparse = known_features(sparsified(rows), self.n_features)
        return sparse.indptr, sparse.indices, sparse.values


class CandidateModel(FromCandidates, OnlineTreeModel):
    """Base class of the models of both algorithms."""

    def n_candidates(self, search: Any) -> int:
        return min(self.n_labels, search.n_candidates)


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
    sharpness: float = 1.0  # inverse temperature of the softmax, from the held-out rows
    calibration: Calibration | None = None  # from the held-out rows
    scaling: Scaling | None = None  # of dense rows

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for part in (self.routers, self.regressors, self.histograms) for array in part)

    def clipped_beam(self, beam: Beam) -> Beam:
        """Return the beam, at most as wide as the tree."""
        return beam._replace(width=min(beam.width, self.arity**self.depth))

    def max_opened_nodes(self, beam: Beam) -> int:
        """Maximum number of nodes that the search expands for a row."""
        return sum(min(beam.width, self.arity**level) for level in range(self.depth))

    def shape(self, beam: Beam) -> Shape:
        few = self.n_labels if self.n_labels <= beam.n_candidates else 0
        n_candidates = min(beam.n_candidates, self.n_labels)
        return Shape(
            self.arity, self.depth, beam.width, n_candidates, few, np.float32(beam.least_share), np.float32(beam.prior),
            np.float32(self.sharpness),
        )  # fmt: skip

    def workspace(self, beam: Beam) -> Workspace:
        """Buffers of one thread."""
        n_open = self.max_opened_nodes(beam)
        most = beam.width * self.histograms.labels.shape[1] + min(beam.n_candidates, self.n_labels) + 1
        real, whole = np.float32, np.int64
        return Workspace(
            np.zeros(n_open, whole), np.zeros(n_open, real), np.zeros((n_open, self.arity), real),
            np.zeros(beam.width, whole), np.zeros(beam.width, real), np.zeros(beam.width, whole),
            np.zeros(beam.width, real), np.zeros(self.n_labels, real), np.zeros(most, whole), np.zeros(most, real),
            np.zeros(most, real), np.zeros(max(self.arity, 1), real),
        )  # fmt: skip

    def top_k(self, rows: Rows, k: int, search: Beam, threads: int = 1) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the ids of the k best candidates of each row (-1 if there are fewer), and their probabilities."""
        ids, probabilities = np.empty((len(rows), k), np.int64), np.empty((len(rows), k), np.float32)
        beam = self.clipped_beam(search)
        routers, regressors = prediction_scorers(self.routers), prediction_scorers(self.regressors)
        shape = self.shape(beam)
        predict: Callable[..., None] = kernels.predict

        def answer(block: slice) -> None:
            part = rows[block]
            predict(
                self.rows(part), len(part), routers, regressors, self.histograms, shape,
                self.workspace(beam), ids[block], probabilities[block],
            )  # fmt: skip

        run_all(blocks(len(rows), max(k, beam.n_candidates)), answer, threads)
        return ids, probabilities

    def trace(self, row: Rows, ids: list[int], scores: list[float], search: Beam) -> Trace:
        """Return the ranking of labels and the routes to their leaves, for `explain`."""
        return trace_candidates(self, row, ids, scores, search)

    def node_labels(self) -> NodeLabels:
        """Return the candidates at each node, summed from the leaves. An example counts once for each pass."""
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

    def without_labels(self, kept: NDArray[np.bool_]) -> RecallTreeModel:
        """Return the model of the `kept` labels, numbered anew. The tree, its routers and its totals stay."""
        header, arrays = self.to_parts(self.knows_squares)
        number, own = np.cumsum(kept) - 1, kept[arrays["labels"]]
        node = np.repeat(np.arange(len(arrays["n_labels"])), arrays["n_labels"])[own]
        arrays |= {
            "labels": number[arrays["labels"][own]].astype(np.int32), "label_counts": arrays["label_counts"][own],
            "n_labels": np.bincount(node, minlength=len(arrays["n_labels"])).astype(np.int32),
        }  # fmt: skip
        if self.knows_squares:
            keys = arrays["keys"]
            label = (keys & np.uint64(2**32 - 1)).astype(np.int64)
            own = kept[label]
            keys = (keys[own] >> np.uint64(32) << np.uint64(32)) | number[label[own]].astype(np.uint64)
            arrays |= {"keys": keys, "counts": arrays["counts"][own]}
        arrays |= regressors_without(arrays, kept)
        return replace(self.from_parts(header, arrays, int(kept.sum())), calibration=self.calibration)

    def to_parts(self, resume: bool = False) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """A JSON-serialisable header and arrays; with `resume` including the learning state."""
        header = {
            "arity": self.arity, "depth": self.depth, "n_features": self.n_features, "sparse": self.is_sparse,
            "found": self.found.tolist(), "resume": resume, "sharpness": self.sharpness,
        }  # fmt: skip
        arrays: dict[str, NDArray[Any]] = {}
        for name, n in (("routers", len(self.routers.bias)), ("regressors", self.n_labels)):
            scorers = getattr(self, name)
            arrays |= {f"{name}/{key}": array for key, array in scorer_arrays(scorers, n, resume).items()}
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
    def from_parts(cls, header: dict[str, Any], arrays: dict[str, NDArray[Any]], n_labels: int) -> RecallTreeModel:
        """Restore a model from `to_parts`; raises ValueError if the parts are inconsistent."""
        arity, depth, n_features = (whole_number(name, header[name]) for name in ("arity", "depth", "n_features"))
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
        routers = scorers_from_arrays(arrays, "routers", n_inner, arity, n_features, sparse, resume)
        regressors = scorers_from_arrays(arrays, "regressors", n_labels, 1, n_features, sparse, resume)
        found = whole_numbers("found", header["found"], 3)
        return cls(
            arity=arity,
            depth=depth,
            n_labels=n_labels,
            n_features=n_features,
            routers=routers,
            regressors=regressors,
            histograms=histograms,
            found=found,
            knows_squares=resume,
            sharpness=real_number("sharpness", header["sharpness"], *SHARPNESS),
            scaling=_restored_scaling(arrays, n_features),
        )


def _restored_scaling(arrays: dict[str, NDArray[Any]], n_features: int) -> Scaling | None:
    if "mean" not in arrays:
        return None
    return Scaling(*(expect(arrays, name, np.float32, (n_features,)) for name in ("mean", "factor"))).checked()


def _checked_size(arity: int, depth: int) -> int:
    if not (2 <= arity <= 256 and 1 <= depth <= 64 and arity**depth < 2**31):
        raise ValueError(f"a tree of arity {arity} and depth {depth} is not possible")
    return (arity**depth - 1) // (arity - 1)


def _restored_candidates(
    arrays: dict[str, NDArray[Any]], n_nodes: int, n_labels: int
) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.int64]]:
    """Return the candidates of the nodes as a padded matrix."""
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


def scorer_arrays(scorers: Scorers, n: int, resume: bool) -> dict[str, NDArray[Any]]:
    """Return the first n scorers as arrays to save; with `resume` including AdaGrad's squares."""
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


def regressors_without(arrays: dict[str, NDArray[Any]], kept: NDArray[np.bool_]) -> dict[str, NDArray[Any]]:
    """Return the saved regressors of the `kept` labels."""
    saved = {name: array for name, array in arrays.items() if name.startswith("regressors/")}
    if "regressors/owners" not in saved:
        return {name: array[kept] for name, array in saved.items()}
    entries, owners = saved["regressors/entries"], saved["regressors/owners"]
    own = kept[owners]
    feature = np.repeat(np.arange(len(entries)), entries)[own]
    left = {name: array[kept if "bias" in name else own] for name, array in saved.items() if array is not entries}
    left["regressors/owners"] = (np.cumsum(kept) - 1)[owners[own]].astype(np.uint32)
    return {**left, "regressors/entries": np.bincount(feature, minlength=len(entries)).astype(np.uint32)}


def scorers_from_arrays(
    arrays: dict[str, NDArray[Any]], name: str, n_groups: int, width: int, n_features: int, sparse: bool, resume: bool
) -> Scorers:  # fmt: skip
    """Restore the scorers saved by `scorer_arrays`."""
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
    """Restore a hash table from its entries."""
    name = f"{prefix}cells" if prefix else "counts"
    if not present:
        return np.full(SMALLEST_TABLE, EMPTY), np.zeros((SMALLEST_TABLE, width), np.float32)
    keys, n = arrays[f"{prefix}keys"], len(arrays[f"{prefix}keys"])
    expect(arrays, f"{prefix}keys", np.uint64, (n,))
    cells = expect(arrays, name, np.float32, (n, stored or width))
    if (keys == EMPTY).any() or len(np.unique(keys)) != n:
        raise ValueError("a hash table has duplicate entries")
    size = SMALLEST_TABLE
    while size * 3 // 4 < n:
        size *= 2
    new_keys, new_cells = np.full(size, EMPTY), np.zeros((size, width), dtype=np.float32)
    whole = np.zeros((n, width), dtype=np.float32)
    whole[:, : cells.shape[1]] = cells
    if (whole[:, width // 2 if prefix else 0 :] < 0).any():  # the squares after the weights, or the counts
        raise ValueError(f"{name} has negative numbers")
    moved(np.array(keys), whole, new_keys, new_cells)
    return new_keys, new_cells
