"""The recall tree as its paper prints it, at rest: nodes, tallies, routers and regressors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from treemax.inference.linear import blocks
from treemax.inference.recall_tree import SMALLEST_TABLE, CandidateModel, expect, restored, stored
from treemax.inference.scorers import Scorers, for_answers
from treemax.inputs import Rows
from treemax.kernels import recall_paper as kernels
from treemax.kernels.recall_paper import NONE, Nodes, Tallies, Way
from treemax.kernels.scorers import EMPTY, moved
from treemax.threads import run_all

ROUTER_WEIGHTS = {"increase": kernels.INCREASE, "printed": kernels.PRINTED, "unit": kernels.UNIT}
_LOWER_HALF = np.uint64(0xFFFFFFFF)
_UPPER_HALF = np.uint64(32)


class Descent(NamedTuple):
    """How candidates are looked for. `bound` is the paper's lambda; with None only a leaf ends the descent."""

    n_candidates: int
    depth: int
    bound: float | None = 1.0
    path_features: bool = True
    router_weight: str = "increase"

    @property
    def way(self) -> Way:
        """The same as kernels take it."""
        stops = self.bound is not None
        weight = ROUTER_WEIGHTS[self.router_weight]
        return Way(self.depth, stops, float(self.bound or 0.0), bool(self.path_features), weight)


@dataclass
class PaperTreeModel(CandidateModel):
    """A binary tree that was grown row by row; `n_labels` labels are known so far."""

    n_labels: int
    n_features: int
    routers: Scorers
    regressors: Scorers
    nodes: Nodes
    tallies: Tallies
    found: NDArray[np.int64] = field(default_factory=lambda: np.zeros(3, dtype=np.int64))
    knows_squares: bool = True

    @property
    def n_nodes(self) -> int:
        return int(self.nodes.used[0])

    @property
    def depth(self) -> int:
        """Of the deepest node."""
        depths = np.zeros(self.n_nodes, dtype=np.int64)
        for node, children in enumerate(self.nodes.children[: self.n_nodes]):
            depths[children[children > 0]] = depths[node] + 1
        return int(depths.max(initial=0))

    @property
    def nbytes(self) -> int:
        parts = (self.routers, self.regressors, self.nodes, self.tallies)
        return sum(array.nbytes for part in parts for array in part)

    def best(
        self, rows: Rows, k: int, search: Descent, threads: int = 1
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """The k best candidates of each row (-1 where there are fewer), with probabilities among the candidates."""
        ids, probabilities = np.empty((len(rows), k), np.int64), np.empty((len(rows), k), np.float32)
        routers, regressors = for_answers(self.routers), for_answers(self.regressors)
        predict: Callable[..., None] = kernels.predict

        def answer(block: slice) -> None:
            part = rows[block]
            predict(
                self.rows(part), len(part), self.nodes, self.tallies, routers, regressors, search.way,
                ids[block], probabilities[block],
            )  # fmt: skip

        run_all(blocks(len(rows), max(k, search.n_candidates)), answer, threads)
        return ids, probabilities

    # --- to a file and back -----------------------------------------------------------------------------

    def parts(self, resume: bool) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """The model as a JSON-able header and arrays; with `resume` also what AdaGrad needs."""
        header = {
            "n_features": self.n_features, "sparse": self.is_sparse, "found": self.found.tolist(), "resume": resume,
        }  # fmt: skip
        n, n_tallies = self.n_nodes, int(self.tallies.used[0])
        arrays: dict[str, NDArray[Any]] = {}
        for name, scorers, n_own in (
            ("routers", self.routers, int(self.nodes.used[1])),
            ("regressors", self.regressors, self.n_labels),
        ):
            arrays |= {f"{name}/{key}": array for key, array in stored(scorers, n_own, resume).items()}
        for name in ("routers", "children", "total", "sums", "covered", "candidates", "n_candidates"):
            arrays[f"nodes/{name}"] = getattr(self.nodes, name)[:n]
        for name in ("pairs", "counts", "above", "weights", *(["squares"] if resume else [])):
            arrays[f"tallies/{name}"] = getattr(self.tallies, name)[:n_tallies]
        return header, arrays

    @classmethod
    def from_parts(
        cls, header: dict[str, Any], arrays: dict[str, NDArray[Any]], n_labels: int
    ) -> PaperTreeModel:
        """The model back from its parts; what does not fit together is a ValueError."""
        sparse, resume, n_features = bool(header["sparse"]), bool(header["resume"]), int(header["n_features"])
        tallies = _restored_tallies(arrays, n_labels, resume)
        nodes = _restored_nodes(arrays, tallies)
        routers = restored(arrays, "routers", int(nodes.used[1]), 1, n_features, sparse, resume)
        regressors = restored(arrays, "regressors", n_labels, 1, n_features, sparse, resume)
        found = np.array(header["found"], dtype=np.int64)
        return cls(n_labels, n_features, routers, regressors, nodes, tallies, found, resume)


def _restored_tallies(arrays: dict[str, NDArray[Any]], n_labels: int, resume: bool) -> Tallies:
    pairs, n = arrays["tallies/pairs"], len(arrays["tallies/pairs"])
    expect(arrays, "tallies/pairs", np.uint64, (n,))
    counts, above = (
        np.array(expect(arrays, f"tallies/{name}", np.int32, (n,))) for name in ("counts", "above")
    )
    weights = np.array(expect(arrays, "tallies/weights", np.float32, (n,)))
    squares = np.zeros_like(weights)
    if resume:
        squares = np.array(expect(arrays, "tallies/squares", np.float32, (n,)))
    labels, nodes = pairs & _LOWER_HALF, pairs >> _UPPER_HALF
    ordered = (above >= NONE) & (above < np.arange(n)) & ((above == NONE) == (nodes == 0))
    if (labels >= n_labels).any() or len(np.unique(pairs)) != n or not ordered.all():
        raise ValueError("the labels counted at nodes do not fit together")
    size = SMALLEST_TABLE
    while size * 3 // 4 < n:
        size *= 2
    keys, places = np.full(size, EMPTY), np.zeros(size, np.int32)
    moved(np.array(pairs), np.arange(n, dtype=np.int32), keys, places)
    return Tallies(
        np.array([n]), keys, places, np.array(pairs), labels.astype(np.int32), counts, above, weights, squares
    )


def _restored_nodes(arrays: dict[str, NDArray[Any]], tallies: Tallies) -> Nodes:
    n = len(arrays["nodes/total"])
    width = arrays["nodes/candidates"].shape[-1]
    kinds: dict[str, tuple[Any, tuple[int, ...]]] = {
        "routers": (np.int32, (n,)), "children": (np.int32, (n, 2)), "total": (np.int64, (n,)), "sums": (np.float64, (n,)),
        "covered": (np.int64, (n,)), "candidates": (np.int32, (n, width)), "n_candidates": (np.int64, (n,)),
    }  # fmt: skip
    own = {name: np.array(expect(arrays, f"nodes/{name}", *kind)) for name, kind in kinds.items()}
    children, numbers = own["children"], np.arange(n)[:, None]
    after = (children == 0) | ((children > numbers) & (children < n))
    if n < 1 or not after.all() or len(np.unique(children[children > 0])) != n - 1:
        raise ValueError("the nodes are no tree")
    routers = np.sort(own["routers"][own["routers"] != 0])
    if (routers != np.arange(1, len(routers) + 1)).any() or children[own["routers"] == 0].any():
        raise ValueError("the routers do not fit the nodes")
    n_tallies, candidates, n_own = int(tallies.used[0]), own["candidates"], own["n_candidates"]
    filled = np.arange(width) < n_own[:, None]
    outside = (candidates < 0) | ((candidates >= n_tallies) & filled)
    if outside.any() or (n_own < 0).any() or (n_own > width).any():
        raise ValueError("the candidates do not fit the labels")
    if (tallies.pairs >> _UPPER_HALF >= n).any() or (
        (own["covered"] > own["total"]) | (own["covered"] < 0)
    ).any():
        raise ValueError("the counts do not fit the nodes")
    return Nodes(np.array([n, len(routers)]), **own)
