"""The recall tree as its paper prints it, at rest: nodes, tallies, routers and regressors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from treemax.inference.recall_tree import CandidateModel, expect, restored, stored
from treemax.inference.scorers import Scorers, for_answers
from treemax.inputs import Rows
from treemax.kernels import recall_paper as kernels
from treemax.kernels.recall_paper import NONE, TALLY, Nodes, Tallies, Way, Workspace
from treemax.threads import run_all

ROWS_AT_ONCE = 8192  # of an answer: those that end at the same node share what they read
ROUTER_WEIGHTS = {"increase": kernels.INCREASE, "printed": kernels.PRINTED, "unit": kernels.UNIT}


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
    path_scores: NDArray[np.float32] | None = None  # of candidates, computed when first asked after learning

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

    def workspace(self, search: Descent) -> Workspace:
        """Room for one thread."""
        width = self.nodes.labels.shape[1]
        return Workspace(
            np.zeros(search.depth, np.int64), np.zeros(search.depth, np.float32), np.zeros(width, np.int32),
            np.zeros(width, np.float32), np.zeros(width, np.float32), np.zeros(1, np.float32),
        )  # fmt: skip

    def best(
        self, rows: Rows, k: int, search: Descent, threads: int = 1
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """The k best candidates of each row (-1 where there are fewer), with probabilities among the candidates."""
        ids, probabilities = np.empty((len(rows), k), np.int64), np.empty((len(rows), k), np.float32)
        routers, regressors = for_answers(self.routers), for_answers(self.regressors)
        find: Callable[..., None] = kernels.find_nodes
        predict: Callable[..., None] = kernels.predict
        of_paths = self._path_scores(search)

        def answer(block: slice) -> None:
            part = rows[block]
            form, own, ends = self.rows(part), self.workspace(search), np.empty(len(part), np.int64)
            find(form, len(part), self.nodes, routers, search.way, own, ends)
            order = np.argsort(ends, kind="stable")
            predict(
                form, order, ends, self.nodes, of_paths, regressors, own, ids[block], probabilities[block]
            )

        starts = range(0, len(rows), ROWS_AT_ONCE)
        run_all([slice(start, start + ROWS_AT_ONCE) for start in starts], answer, threads)
        return ids, probabilities

    def _path_scores(self, search: Descent) -> NDArray[np.float32]:
        if not search.path_features:
            return np.zeros(self.nodes.labels.shape, np.float32)
        if self.path_scores is None:
            of_paths = np.zeros(self.nodes.labels.shape, np.float32)
            kernels.path_scores(self.nodes, self.tallies, of_paths)
            self.path_scores = of_paths
        return self.path_scores

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
        for name in ("label", "node", "count", "above", "weight", *(["square"] if resume else [])):
            arrays[f"tallies/{name}"] = np.ascontiguousarray(self.tallies.records[name][:n_tallies])
        return header, arrays

    @classmethod
    def from_parts(
        cls, header: dict[str, Any], arrays: dict[str, NDArray[Any]], n_labels: int
    ) -> PaperTreeModel:
        """The model back from its parts; what does not fit together is a ValueError."""
        sparse, resume, n_features = bool(header["sparse"]), bool(header["resume"]), int(header["n_features"])
        tallies = _restored_tallies(arrays, n_labels, resume)
        nodes = _restored_nodes(arrays, tallies)
        _connect(tallies, nodes)
        routers = restored(arrays, "routers", int(nodes.used[1]), 1, n_features, sparse, resume)
        regressors = restored(arrays, "regressors", n_labels, 1, n_features, sparse, resume)
        found = np.array(header["found"], dtype=np.int64)
        return cls(n_labels, n_features, routers, regressors, nodes, tallies, found, resume)


def _restored_tallies(arrays: dict[str, NDArray[Any]], n_labels: int, resume: bool) -> Tallies:
    n = len(arrays["tallies/label"])
    records = np.zeros(n, TALLY)
    for name in ("label", "node", "count", "above", "weight", *(["square"] if resume else [])):
        records[name] = expect(arrays, f"tallies/{name}", TALLY[name], (n,))
    labels, nodes, above = records["label"], records["node"], records["above"]
    ordered = (above >= NONE) & (above < np.arange(n)) & ((above == NONE) == (nodes == 0))
    if (labels < 0).any() or (labels >= n_labels).any() or (nodes < 0).any() or not ordered.all():
        raise ValueError("the labels counted at nodes do not fit together")
    first = np.zeros(n_labels, np.int32)
    at_root = np.flatnonzero(above == NONE)
    first[labels[at_root]] = at_root + 1
    return Tallies(np.array([n]), first, records)


def _connect(tallies: Tallies, nodes: Nodes) -> None:
    """Tell every tally where its label is at the children of its node."""
    records = tallies.records
    below = np.flatnonzero(records["above"] != NONE)
    parents = records["above"][below]
    sides = nodes.children[records["node"][parents]]
    for side, name in enumerate(("left", "right")):
        here = sides[:, side] == records["node"][below]
        records[name][parents[here]] = below[here]
    known = np.zeros(len(records), dtype=bool)
    for found in (tallies.first[tallies.first > 0] - 1, records["left"], records["right"]):
        known[found[found > 0]] = True
    consistent = records["label"][below] == records["label"][parents]
    if not (known[1:].all() and consistent.all()):
        raise ValueError("the labels counted at nodes do not fit together")


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
    if (tallies.records["node"] >= n).any() or ((own["covered"] > own["total"]) | (own["covered"] < 0)).any():
        raise ValueError("the counts do not fit the nodes")
    labels = np.where(filled, tallies.records["label"][np.where(filled, candidates, 0)], 0).astype(np.int32)
    return Nodes(np.array([n, len(routers)]), **own, labels=labels, lock=np.zeros(n, np.int64))
