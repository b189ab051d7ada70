"""A trained recall tree: routers select candidates, and regressors rank them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from treemax.explanations import Trace
from treemax.inputs.conversions import blocks
from treemax.inputs.labels import ALL_ONE
from treemax.inputs.rows import Rows, read_only
from treemax.kernels.scorers import EMPTY
from treemax.models.calibration import Calibration
from treemax.models.recall_tree import kernels
from treemax.models.recall_tree.kernels import Histograms, Shape, Workspace
from treemax.models.recall_tree.tracing import trace_candidates
from treemax.models.trained import FromCandidates
from treemax.models.trained.hash_tables import table_from_arrays
from treemax.models.trained.online_trees import OnlineTreeModel
from treemax.models.trained.parts import (
    check_memory,
    expect,
    expect_counts,
    real_number,
    truth,
    whole_number,
    whole_numbers,
)
from treemax.models.trained.scaling import Scaling
from treemax.models.trained.scorer_parts import regressors_without, scorer_arrays, scorers_from_arrays
from treemax.models.trained.scorers import Scorers, prediction_scorers
from treemax.models.trained.searching import TopKAllowed
from treemax.parallel.threads import run_all
from treemax.trees import NodeLabels

SHARPNESS = (math.exp(-2.0), math.exp(2.0))  # range of the inverse temperature


class Beam(NamedTuple):
    """Settings of the beam search for candidates."""

    width: int
    n_candidates: int
    least_share: float
    prior: float


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
        """Return the maximum number of nodes that the search expands for a row."""
        return sum(min(beam.width, self.arity**level) for level in range(self.depth))

    def shape(self, beam: Beam) -> Shape:
        few = self.n_labels if self.n_labels <= beam.n_candidates else 0
        n_candidates = min(beam.n_candidates, self.n_labels)
        return Shape(
            self.arity, self.depth, beam.width, n_candidates, few, np.float32(beam.least_share), np.float32(beam.prior),
            np.float32(self.sharpness),
        )  # fmt: skip

    def workspace(self, beam: Beam) -> Workspace:
        """Return buffers of one thread."""
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
        return self.top_k_allowed(rows, 0, k, ALL_ONE, search, threads)[:2]

    def top_k_allowed(
        self, rows: Rows, k: int, n_first: int, weights: NDArray[np.float32], search: Beam, threads: int = 1
    ) -> TopKAllowed:
        """Return the `n_first` best candidates and the k best of those with a weight."""
        found = TopKAllowed.empty(len(rows), n_first, k)
        beam = self.clipped_beam(search)
        routers, regressors = prediction_scorers(self.routers), prediction_scorers(self.regressors)
        shape = self.shape(beam)
        predict: Callable[..., None] = kernels.predict

        def answer(block: slice) -> None:
            part = rows[block]
            predict(
                self.rows(part), len(part), routers, regressors, self.histograms, shape, self.workspace(beam),
                read_only(weights), *[array[block] for array in found],
            )  # fmt: skip

        run_all(blocks(len(rows), max(k, n_first, beam.n_candidates)), answer, threads)
        return found

    def trace(self, row: Rows, ids: list[int], scores: list[float], search: Beam) -> Trace:
        """Return the ranking of labels and the routes to their leaves, for `explain`."""
        return trace_candidates(self, row, ids, scores, search)

    def node_labels(self) -> NodeLabels:
        """Return the candidates at each node, summed from the leaves. An example counts once for each pass."""
        own, n_inner = self.histograms, len(self.histograms.total) // self.arity
        children: list[list[int]] = [
            [child for child in range(node * self.arity + 1, (node + 1) * self.arity + 1) if own.total[child] > 0]
            for node in range(n_inner)
        ]
        children += [[]] * (len(own.total) - n_inner)
        labels = [row[:n] for row, n in zip(own.labels.copy(), own.n_labels)]
        counts = [row[:n] for row, n in zip(own.label_counts.copy(), own.n_labels)]
        return NodeLabels.from_leaves(children, labels, counts, own.total.tolist())

    # --- to a file and back -----------------------------------------------------------------------------

    def without_labels(self, kept: NDArray[np.bool_]) -> RecallTreeModel:
        """Return the model of the `kept` labels, renumbered. The tree, its routers and its totals stay."""
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
        """Return a JSON-serialisable header and arrays; with `resume` including the learning state."""
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
        keys, counts = table_from_arrays(arrays, "", arity, resume)
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
