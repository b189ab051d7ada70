"""A trained recall tree of the paper's algorithm: nodes, tallies, routers and regressors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from treemax.explanations import Trace
from treemax.inputs.rows import Rows
from treemax.kernels.arithmetic import MOST_COUNT
from treemax.kernels.scorers import EMPTY, TOGETHER, KeptWeights
from treemax.models.recall_tree import paper_kernels as kernels
from treemax.models.recall_tree.model import CandidateModel
from treemax.models.recall_tree.paper_kernels import Workspace
from treemax.models.recall_tree.paper_tree_kernels import INCREASE, NONE, PRINTED, TALLY, UNIT, Nodes, Options, Tallies
from treemax.models.recall_tree.tracing import trace_path
from treemax.models.trained.parts import (
    MOST_COUNTED,
    check_memory,
    expect,
    expect_counts,
    expect_squares,
    truth,
    whole_number,
    whole_numbers,
)
from treemax.models.trained.scorer_parts import regressors_without, scorer_arrays, scorers_from_arrays
from treemax.models.trained.scorers import Scorers, prediction_scorers
from treemax.parallel.threads import run_all
from treemax.trees import NodeLabels

KEPT_FEATURES = 1024  # for rows that end at the same node
ROWS_AT_ONCE = 8192  # in prediction: rows that end at the same node share memory reads
ROUTER_WEIGHTS = {"increase": INCREASE, "printed": PRINTED, "unit": UNIT}


class Descent(NamedTuple):
    """Settings of the descent to candidates. `bound` is lambda of equation 1; None always descends to a leaf."""

    n_candidates: int
    depth: int
    bound: float | None = 1.0
    path_features: bool = True
    router_weight: str = "increase"
    randomized: bool = False
    seed: int = 0  # of the random sides

    @property
    def options(self) -> Options:
        """The settings in the form that the kernels take."""
        stops = self.bound is not None
        weight = ROUTER_WEIGHTS[self.router_weight]
        return Options(
            self.depth, stops, float(self.bound or 0.0), self.path_features, weight, 1, False, self.randomized,
            np.uint64(self.seed),
        )  # fmt: skip


@dataclass
class PaperTreeModel(CandidateModel):
    """A binary tree grown online; `n_labels` labels are known so far."""

    n_labels: int
    n_features: int
    routers: Scorers
    regressors: Scorers
    nodes: Nodes
    tallies: Tallies
    found: NDArray[np.int64] = field(default_factory=lambda: np.zeros(3, dtype=np.int64))
    knows_squares: bool = True
    path_scores: NDArray[np.float32] | None = None  # of candidates; computed at the first prediction after learning
    candidate_counts: NDArray[np.int32] | None = None  # replaces the tallies in a model saved without them
    node_only: bool = False  # of the path, only the last node is a feature

    def restart_learning(self) -> None:
        super().restart_learning()
        if self.candidate_counts is not None and self.path_scores is not None:
            counts = _padded_rows(self.candidate_counts, self.nodes.n_candidates, self.nodes.labels.shape[1])
            self.nodes, self.tallies = _nodes_and_tallies_from_candidates(
                self.nodes, counts, self.path_scores, self.n_labels, self.node_only
            )
            self.candidate_counts = self.path_scores = None

    @property
    def n_nodes(self) -> int:
        return int(self.nodes.used[0])

    def node_labels(self) -> NodeLabels:
        """Return the candidates at each node."""
        n, nodes, counts = self.n_nodes, self.nodes, self.candidate_counts
        own = nodes.n_candidates[:n]
        if counts is None:
            filled = np.arange(nodes.labels.shape[1]) < own[:, None]
            counts = self.tallies.records["count"][nodes.candidates[:n][filled]]
        children = [row[row > 0].tolist() for row in nodes.children[:n]]
        labels = [row[:k] for row, k in zip(nodes.labels[:n].copy(), own)]
        return NodeLabels(children, labels, np.split(counts, np.cumsum(own)[:-1]), nodes.total[:n].tolist())

    @property
    def depth(self) -> int:
        """Depth of the deepest node."""
        depths = np.zeros(self.n_nodes, dtype=np.int64)
        for node, children in enumerate(self.nodes.children[: self.n_nodes]):
            depths[children[children > 0]] = depths[node] + 1
        return int(depths.max(initial=0))

    @property
    def nbytes(self) -> int:
        parts = (self.routers, self.regressors, self.nodes, self.tallies)
        path_bytes = 0 if self.path_scores is None else self.path_scores.nbytes
        return path_bytes + sum(array.nbytes for part in parts for array in part)

    def workspace(self, search: Descent) -> Workspace:
        """Return buffers of one thread."""
        width, longest = self.nodes.labels.shape[1], min(search.depth, len(self.nodes.total))
        return Workspace(
            np.zeros(longest, np.int64), np.zeros(longest, np.float32), np.zeros(width, np.int32),
            np.zeros(width, np.float32), np.zeros(width, np.float32), np.zeros(1, np.float32),
            np.zeros(TOGETHER, np.int64), np.zeros(TOGETHER), np.zeros(TOGETHER, np.int64),
        )  # fmt: skip

    def top_k(self, rows: Rows, k: int, search: Descent, threads: int = 1) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the ids of the k best candidates of each row (-1 if there are fewer), and their probabilities."""
        ids, probabilities = np.empty((len(rows), k), np.int64), np.empty((len(rows), k), np.float32)
        routers, regressors = prediction_scorers(self.routers), prediction_scorers(self.regressors)
        find: Callable[..., None] = kernels.find_nodes
        predict: Callable[..., None] = kernels.predict
        path_scores = self._path_scores(search)
        if len(rows) == 1:
            stops, bound = search.bound is not None, float(search.bound or 0.0)
            kernels.predict_row(
                self.rows(rows), tuple(self.nodes), path_scores, routers, regressors, stops, bound, ids, probabilities
            )
            return ids, probabilities

        def answer(block: slice) -> None:
            part = rows[block]
            form, own, ends = self.rows(part), self.workspace(search), np.empty(len(part), np.int64)
            find(form, np.arange(len(part), dtype=np.uint32), self.nodes, routers, search.options, own, ends)
            order = np.argsort(ends, kind="stable")
            kept = self._kept_weights(len(part))
            predict(form, order, ends, self.nodes, path_scores, regressors, own, kept, ids[block], probabilities[block])

        starts = range(0, len(rows), ROWS_AT_ONCE)
        run_all([slice(start, start + ROWS_AT_ONCE) for start in starts], answer, threads)
        return ids, probabilities

    def _kept_weights(self, n_rows: int) -> KeptWeights:
        """Return buffers of one thread for the weights of rows that end at the same node."""
        n = min(KEPT_FEATURES, 1 << (n_rows - 1).bit_length())
        return KeptWeights(
            np.zeros(1, np.int64), np.full(n, EMPTY), np.empty((n, self.nodes.labels.shape[1]), np.float32),
            np.zeros(self.n_labels + 1, np.int32),
        )  # fmt: skip

    def trace(self, row: Rows, ids: list[int], scores: list[float], search: Descent) -> Trace:
        """Return the path to candidates, and the ranking of labels among them, for `explain`."""
        ends, find = np.empty(1, np.int64), kernels.find_nodes
        find(
            self.rows(row),
            np.zeros(1, np.uint32),
            self.nodes,
            prediction_scorers(self.routers),
            search.options,
            self.workspace(search),
            ends,
        )
        return trace_path(self, row, ids, scores, search, int(ends[0]))

    def _path_scores(self, search: Descent) -> NDArray[np.float32]:
        return self._all_path_scores() if search.path_features else np.zeros(self.nodes.labels.shape, np.float32)

    def _all_path_scores(self) -> NDArray[np.float32]:
        if self.path_scores is None:
            path_scores = np.zeros(self.nodes.labels.shape, np.float32)
            kernels.path_scores(self.nodes, self.tallies, self.node_only, path_scores)
            self.path_scores = path_scores
        return self.path_scores

    # --- to a file and back -----------------------------------------------------------------------------

    def without_labels(self, kept: NDArray[np.bool_]) -> PaperTreeModel:
        """Return the model of the `kept` labels, renumbered. The tree, its routers and its totals stay."""
        header, arrays = self.to_parts(self.knows_squares)
        number, n_own = (np.cumsum(kept) - 1).astype(np.int32), arrays["nodes/n_candidates"]
        filled = np.arange(header["width"]) < n_own[:, None]
        if header["resume"]:
            own = kept[arrays["tallies/label"]]
            place = np.append(np.cumsum(own) - 1, NONE).astype(np.int32)  # of a tally; NONE is -1, the last
            candidates = arrays["nodes/candidates"][filled]
            stays = own[candidates]
            arrays |= {name: array[own] for name, array in arrays.items() if name.startswith("tallies/")}
            arrays["tallies/label"] = number[arrays["tallies/label"]]
            arrays["tallies/above"] = place[arrays["tallies/above"]]
            left = place[candidates[stays]]
        else:
            stays = kept[arrays["nodes/labels"]]
            arrays |= {name: arrays[name][stays] for name in ("nodes/labels", "nodes/counts", "nodes/paths")}
            arrays["nodes/labels"] = number[arrays["nodes/labels"]]
        node = np.repeat(np.arange(len(n_own)), n_own)[stays]
        arrays["nodes/n_candidates"] = np.bincount(node, minlength=len(n_own)).astype(np.int64)
        if header["resume"]:
            arrays["nodes/candidates"] = _padded_rows(left, arrays["nodes/n_candidates"], header["width"])
        arrays |= regressors_without(arrays, kept)
        return self.from_parts(header, arrays, int(kept.sum()))

    def to_parts(self, resume: bool = False) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return a JSON-serialisable header and arrays; with `resume` including the learning state.

        Without `resume`, the tallies are reduced to the counts and path scores of the candidates.
        """
        resume = resume and self.candidate_counts is None
        header = {
            "n_features": self.n_features, "sparse": self.is_sparse, "found": self.found.tolist(), "resume": resume,
            "width": self.nodes.labels.shape[1], **({"node_only": True} if self.node_only else {}),
        }  # fmt: skip
        n = self.n_nodes
        arrays: dict[str, NDArray[Any]] = {}
        for name, scorers, n_own in (
            ("routers", self.routers, int(self.nodes.used[1])),
            ("regressors", self.regressors, self.n_labels),
        ):
            arrays |= {f"{name}/{key}": array for key, array in scorer_arrays(scorers, n_own, resume).items()}
        for name in NODE_PARTS:
            arrays[f"nodes/{name}"] = getattr(self.nodes, name)[:n]
        records = self.tallies.records[: self.tallies.used[0]]
        if resume:
            arrays |= {f"nodes/{name}": getattr(self.nodes, name)[:n] for name in ("sums", "candidates")}
            arrays |= {f"tallies/{name}": np.ascontiguousarray(records[name]) for name in TALLY_PARTS}
            return header, arrays
        filled = np.arange(header["width"]) < self.nodes.n_candidates[:n, None]
        counts = self.candidate_counts
        if counts is None:
            counts = records["count"][self.nodes.candidates[:n][filled]]
        arrays |= {
            "nodes/labels": self.nodes.labels[:n][filled], "nodes/counts": counts,
            "nodes/paths": self._all_path_scores()[:n][filled],
        }  # fmt: skip
        return header, arrays

    @classmethod
    def from_parts(cls, header: dict[str, Any], arrays: dict[str, NDArray[Any]], n_labels: int) -> PaperTreeModel:
        """Restore a model from `to_parts`; raises ValueError if the parts are inconsistent."""
        sparse, resume = (truth(name, header[name]) for name in ("sparse", "resume"))
        n_features, width = (whole_number(name, header[name]) for name in ("n_features", "width"))
        own, paths, counts = _restored_tree(arrays, width), None, None
        if resume:
            tallies = _restored_tallies(arrays, n_labels)
            nodes = _nodes_for_learning(own, arrays, width, tallies)
            _link_tallies(tallies, nodes)
        else:
            nodes, paths, counts = _nodes_for_prediction(own, arrays, n_labels)
            tallies = Tallies(np.zeros(1, np.int64), np.zeros(0, np.int32), np.zeros(0, TALLY))
        routers = scorers_from_arrays(arrays, "routers", int(nodes.used[1]), 1, n_features, sparse, resume)
        regressors = scorers_from_arrays(arrays, "regressors", n_labels, 1, n_features, sparse, resume)
        found = whole_numbers("found", header["found"], 3)
        return cls(
            n_labels, n_features, routers, regressors, nodes, tallies, found, resume, paths, counts,
            truth("node_only", header.get("node_only", False)),
        )  # fmt: skip


NODE_PARTS = ("routers", "children", "total", "covered", "n_candidates")
TALLY_PARTS = ("label", "node", "count", "above", "weight", "square")


def _padded_rows(values: NDArray[Any], lengths: NDArray[np.int64], width: int) -> NDArray[Any]:
    """Return concatenated rows of different lengths as a zero-padded matrix."""
    out = np.zeros((len(lengths), width), values.dtype)
    out[np.arange(width) < lengths[:, None]] = values
    return out


def _restored_tallies(arrays: dict[str, NDArray[Any]], n_labels: int) -> Tallies:
    n = len(arrays["tallies/label"])
    records = np.zeros(n, TALLY)
    for name in TALLY_PARTS:
        records[name] = expect(arrays, f"tallies/{name}", TALLY[name], (n,))
    expect_counts(arrays, "tallies/count", TALLY["count"], (n,), least=1)
    expect_squares(arrays, "tallies/square", (n,))
    labels, nodes, above = records["label"], records["node"], records["above"]
    ordered = (above >= NONE) & (above < np.arange(n)) & ((above == NONE) == (nodes == 0))
    if (labels < 0).any() or (labels >= n_labels).any() or (nodes < 0).any() or not ordered.all():
        raise ValueError("the labels counted at nodes do not fit together")
    first = np.zeros(n_labels, np.int32)
    at_root = np.flatnonzero(above == NONE)
    first[labels[at_root]] = at_root + 1
    return Tallies(np.array([n]), first, records)


def _link_tallies(tallies: Tallies, nodes: Nodes) -> None:
    """Set the `left` and `right` links of the tallies."""
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


def _restored_tree(arrays: dict[str, NDArray[Any]], width: int) -> dict[str, NDArray[Any]]:
    n = len(arrays["nodes/total"])
    kinds: dict[str, tuple[Any, tuple[int, ...]]] = {
        "routers": (np.int32, (n,)), "children": (np.int32, (n, 2)), "total": (np.int64, (n,)),
        "covered": (np.int64, (n,)), "n_candidates": (np.int64, (n,)),
    }  # fmt: skip
    own = {name: np.array(expect(arrays, f"nodes/{name}", *kind)) for name, kind in kinds.items()}
    children, numbers = own["children"], np.arange(n)[:, None]
    after = (children == 0) | ((children > numbers) & (children < n))
    if n < 1 or not after.all() or len(np.unique(children[children > 0])) != n - 1:
        raise ValueError("the nodes do not form a tree")
    routers = np.sort(own["routers"][own["routers"] != 0])
    if (routers != np.arange(1, len(routers) + 1)).any() or children[own["routers"] == 0].any():
        raise ValueError("the routers do not fit the nodes")
    for name, most in (("total", MOST_COUNTED), ("n_candidates", width)):
        expect_counts(arrays, f"nodes/{name}", np.int64, (n,), most=most)
    below = np.where(children > 0, own["total"][children], 0)
    if ((own["covered"] > own["total"]) | (own["covered"] < 0) | (below.sum(axis=1) > own["total"])).any():
        raise ValueError("the counts do not fit the nodes")
    own["used"] = np.array([n, len(routers)])
    return own


def _nodes_for_learning(
    own: dict[str, NDArray[Any]], arrays: dict[str, NDArray[Any]], width: int, tallies: Tallies
) -> Nodes:
    """Return the nodes of a model saved with its learning state."""
    n, n_tallies, n_own = len(own["total"]), int(tallies.used[0]), own["n_candidates"]
    candidates = np.array(expect(arrays, "nodes/candidates", np.int32, (n, width)))
    filled = np.arange(width) < n_own[:, None]
    outside = (candidates < 0) | ((candidates >= n_tallies) & filled)
    if outside.any():
        raise ValueError("the candidates do not fit the labels")
    nodes, counts = tallies.records["node"], tallies.records["count"]
    if (nodes >= n).any() or (np.bincount(nodes, weights=counts, minlength=n) > own["total"]).any():
        raise ValueError("the counts do not fit the nodes")
    labels = np.where(filled, tallies.records["label"][np.where(filled, candidates, 0)], 0).astype(np.int32)
    sums = np.array(expect_counts(arrays, "nodes/sums", np.float64, (n,)))
    return Nodes(**own, sums=sums, candidates=candidates, labels=labels, lock=np.zeros(n, np.int64))


def _nodes_for_prediction(
    own: dict[str, NDArray[Any]], arrays: dict[str, NDArray[Any]], n_labels: int
) -> tuple[Nodes, NDArray[np.float32], NDArray[np.int32]]:
    """Nodes, path scores and candidate counts of a model saved without its learning state.

    The candidate table is as wide as the candidates saved; learning widens it.
    """
    n_own = own["n_candidates"]
    width = int(n_own.max())
    if width > n_labels:
        raise ValueError("the candidates do not fit the labels")
    check_memory("the table of candidates", 9 * len(n_own) * width)
    shape = (int(n_own.sum()),)
    labels = expect(arrays, "nodes/labels", np.int32, shape)
    counts = expect_counts(arrays, "nodes/counts", np.int32, shape, least=1)
    node = np.repeat(np.arange(len(n_own)), n_own)
    if (np.bincount(node, weights=counts, minlength=len(n_own)) > own["total"]).any():
        raise ValueError("the counts do not fit the nodes")
    if (labels < 0).any() or (labels >= n_labels).any():
        raise ValueError("the candidates do not fit the labels")
    nothing = np.zeros((0, width), np.int32)
    nodes = Nodes(
        **own, sums=np.zeros(0), candidates=nothing, labels=_padded_rows(labels, n_own, width), lock=np.zeros(0, np.int64)
    )  # fmt: skip
    return nodes, _padded_rows(expect(arrays, "nodes/paths", np.float32, shape), n_own, width), counts


def _nodes_and_tallies_from_candidates(
    nodes: Nodes, counts: NDArray[np.int32], paths: NDArray[np.float32], n_labels: int, node_only: bool
) -> tuple[Nodes, Tallies]:
    """Reconstruct nodes and tallies from the candidates; a label that is no candidate below a node is lost there."""
    n, width = nodes.labels.shape
    known: list[dict[int, int]] = [
        dict(zip(nodes.labels[node, :k].tolist(), counts[node, :k].tolist()))
        for node, k in enumerate(nodes.n_candidates.tolist())
    ]
    parents = np.zeros(n, np.int64)
    for node in range(n - 1, -1, -1):  # children have higher numbers
        below: dict[int, int] = {}
        for child in nodes.children[node][nodes.children[node] > 0].tolist():
            parents[child] = node
            for label, count in known[child].items():
                below[label] = below.get(label, 0) + count
        for label, count in below.items():
            known[node][label] = max(count, known[node].get(label, 0))
    places = {(node, label): i for i, (node, label) in enumerate((a, b) for a in range(n) for b in known[a])}
    records = np.zeros(len(places), TALLY)
    path_scores = np.zeros(len(places))  # of the path from the root to the node, inclusive
    candidates, totals, sums = np.zeros((n, width), np.int32), nodes.total.copy(), np.zeros(n)
    covered, labels, n_candidates = (np.zeros(n, np.int64), np.zeros((n, width), np.int32), nodes.n_candidates.copy())
    first = np.zeros(n_labels, np.int32)
    for node, own in enumerate(known):
        path = dict(zip(nodes.labels[node, : nodes.n_candidates[node]].tolist(), paths[node].tolist()))
        for label, count in own.items():
            at = places[node, label]
            above = places[int(parents[node]), label] if node else NONE
            before = path_scores[above] if node and not node_only else 0.0
            path_scores[at] = path.get(label, before) if node else 0.0
            records[at] = (label, node, min(count, MOST_COUNT), above, 0, 0, path_scores[at] - before, 0.0)
            if node == 0:
                first[label] = at + 1
        best = sorted(own, key=lambda label: -own[label])[:width]
        candidates[node, : len(best)] = [places[node, label] for label in best]
        labels[node, : len(best)] = best
        n_candidates[node], covered[node] = len(best), sum(own[label] for label in best)
        counted = np.array(list(own.values()), dtype=float)
        totals[node], sums[node] = max(totals[node], counted.sum()), (counted * np.log(counted)).sum()
    tallies = Tallies(np.array([len(places)]), first, records)
    again = nodes._replace(
        total=totals, sums=sums, covered=covered, candidates=candidates, labels=labels, n_candidates=n_candidates,
        lock=np.zeros(n, np.int64),
    )  # fmt: skip
    _link_tallies(tallies, again)
    return again, tallies
