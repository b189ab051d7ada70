"""A trained LOMTree: nodes, regressors and tallies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from treemax.explanations import Trace
from treemax.inputs.conversions import ROWS_AT_ONCE, blocks
from treemax.inputs.labels import ALL_ONE
from treemax.inputs.rows import Rows, ascends, read_only
from treemax.kernels.feature_tables import SparseScorers
from treemax.kernels.scorers import EMPTY
from treemax.modelfile import LARGEST
from treemax.models.lom_tree import kernels
from treemax.models.lom_tree.kernels import DEEPEST, NONE, Nodes, Tallies
from treemax.models.lom_tree.tracing import trace_labels
from treemax.models.trained.hash_tables import SMALLEST_TABLE
from treemax.models.trained.online_trees import OnlineTreeModel
from treemax.models.trained.parts import check_memory, expect, expect_counts, truth, whole_number, whole_numbers
from treemax.models.trained.scorer_parts import scorer_arrays, scorers_from_arrays
from treemax.models.trained.scorers import Scorers, prediction_scorers, trainable_scorers
from treemax.models.trained.searching import TopKAllowed
from treemax.models.trained.sparse_scorers import restored_sparse, stored_sparse
from treemax.parallel.threads import run_all
from treemax.trees import NodeLabels

# One record per slot, so that a lookup touches one cache line.
_TALLY = np.dtype([("keys", "u8"), ("sums", "f8"), ("counts", "i4"), ("trained", "i4"), ("following", "i8")])


class TallyLists(NamedTuple):
    """The tallies of all nodes, concatenated."""

    starts: NDArray[np.int64]
    labels: NDArray[np.int32]
    counts: NDArray[np.int32]
    trained: NDArray[np.int32]
    sums: NDArray[np.float64]


@dataclass
class LOMTreeModel(OnlineTreeModel):
    """A binary tree grown online; `n_labels` labels are known so far."""

    n_labels: int
    n_features: int
    regressors: Scorers
    nodes: Nodes
    tallies: Tallies
    found: NDArray[np.int64] = field(default_factory=lambda: np.zeros(2, dtype=np.int64))
    knows_squares: bool = True

    def restart_learning(self) -> None:
        self.regressors, self.knows_squares = trainable_scorers(self.regressors), True

    @property
    def n_inner(self) -> int:
        return int(self.nodes.used[kernels.INNER])

    @property
    def depth(self) -> int:
        """Depth of the deepest leaf."""
        return len(self.levels()) - 1

    def levels(self) -> list[NDArray[np.int64]]:
        """Return the nodes of the tree, level by level."""
        levels, level = [], self.nodes.used[kernels.ROOT : kernels.ROOT + 1].copy()
        while len(level):
            levels.append(level)
            inner = level[self.nodes.regressors[level] > 0]
            level = self.nodes.children[inner].ravel().astype(np.int64)
        return levels

    def node_labels(self) -> NodeLabels:
        """Return the labels at each node. An example counts once for each pass."""
        order = np.concatenate(self.levels())
        place = np.zeros(order.max() + 1, dtype=np.int64)
        place[order] = np.arange(len(order))
        children = [
            place[self.nodes.children[node]].tolist() if self.nodes.regressors[node] > 0 else [] for node in order
        ]
        own = self.lists(order)
        cuts = own.starts[1:-1]
        return NodeLabels(
            children, np.split(own.labels, cuts), np.split(own.counts, cuts), self.nodes.totals[order].tolist()
        )

    def top_k(self, rows: Rows, k: int, search: None = None, threads: int = 1) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return ids of the k most frequent labels of each row's leaf (else -1), and their relative frequencies."""
        found = self.top_k_allowed(rows, 0, k, ALL_ONE, search, threads)
        return found.first, found.of_first

    def top_k_allowed(
        self, rows: Rows, k: int, n_first: int, weights: NDArray[np.float32], search: None, threads: int = 1
    ) -> TopKAllowed:
        """Return the `n_first` most frequent labels of each row's leaf, and the k most frequent with a weight."""
        found, regressors = TopKAllowed.empty(len(rows), n_first, k), prediction_scorers(self.regressors)
        predict: Callable[..., None] = kernels.predict

        def answer(block: slice) -> None:
            n_rows, own = block.stop - block.start, [array[block] for array in found]
            order = np.arange(n_rows, dtype=np.uint32)
            predict(self.rows(rows[block]), order, self.nodes, self.tallies, regressors, read_only(weights), *own)

        run_all(blocks(len(rows), k + n_first), answer, threads)
        return found

    def probabilities(self, rows: Rows, search: None = None, threads: int = 1) -> NDArray[np.float32]:
        """Return the probability of every label; zero if it is not in the row's leaf."""
        out, regressors = (np.zeros((len(rows), self.n_labels), np.float32), prediction_scorers(self.regressors))

        def answer(block: slice) -> None:
            part = self.rows(rows[block])
            kernels.probabilities_of_all(
                part, block.stop - block.start, self.nodes, self.tallies, regressors, out[block]
            )

        run_all(blocks(len(rows), self.n_labels), answer, threads)
        return out

    def trace(self, row: Rows, ids: list[int], scores: list[float], search: None = None) -> Trace:
        """Return the path to the leaf of the row, and labels there, for `explain`."""
        return trace_labels(self, row, ids, scores)

    def lists(self, order: NDArray[np.int64]) -> TallyLists:
        """Return the tallies of the given nodes."""
        n = int(self.tallies.used[0])
        starts = np.zeros(len(order) + 1, np.int64)
        labels, counts, trained = (np.zeros(n, np.int32) for _ in range(3))
        sums = np.zeros(n)
        kernels.gather(order, self.nodes.first, self.tallies, starts, labels, counts, trained, sums)
        n = int(starts[-1])
        return TallyLists(starts, labels[:n], counts[:n], trained[:n], sums[:n])

    # --- to a file and back -----------------------------------------------------------------------------

    def without_labels(self, kept: NDArray[np.bool_]) -> LOMTreeModel:
        """Return the model of the `kept` labels, renumbered; the sibling of an empty child replaces the parent."""
        order = np.concatenate(self.levels())
        lists = self.lists(order)
        own, owner = kept[lists.labels], np.repeat(np.arange(len(order)), np.diff(lists.starts))
        inner = self.nodes.regressors[order] > 0
        chosen, stays_inner = _pruned(inner, np.bincount(owner[own], minlength=len(order)) > 0)
        place = np.full(len(order), NONE)
        place[chosen] = np.arange(len(chosen))
        own &= place[owner] != NONE
        by_node = np.argsort(place[owner[own]], kind="stable")
        node = place[owner[own]][by_node]
        number = np.cumsum(kept) - 1
        parts: list[Any] = [array[own][by_node] for array in lists[1:]]
        starts = np.searchsorted(node, np.arange(len(chosen) + 1))
        filtered = TallyLists(starts, number[parts[0]].astype(np.int32), *parts[1:])
        nodes, tallies = tree_from(stays_inner, filtered)
        before = order[chosen]
        nodes.sums[:], nodes.smallest[:] = self.nodes.sums[before], self.nodes.smallest[before]
        for parent in np.flatnonzero(stays_inner)[::-1].tolist():
            nodes.smallest[parent] = nodes.smallest[nodes.children[parent]].min()
        nodes.best[:] = _most_frequent(filtered, kept, number, self.nodes.best[before])
        regressors = take_scorers(self.regressors, self.nodes.regressors[before][stays_inner] - 1)
        return replace(self, n_labels=int(kept.sum()), regressors=regressors, nodes=nodes, tallies=tallies)

    def to_parts(self, resume: bool = False) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return a JSON-serialisable header and arrays; with `resume` including AdaGrad's squares.

        Nodes are numbered level by level, so that the children of the q-th inner node are 2q + 1 and 2q + 2.
        """
        header = {
            "n_features": self.n_features, "sparse": self.is_sparse, "found": self.found.tolist(), "resume": resume,
        }  # fmt: skip
        order = np.concatenate(self.levels())
        own = self.nodes.regressors[order]
        arrays = {"nodes/inner": own > 0}
        for name in ("best", "smallest", "sums"):
            arrays[f"nodes/{name}"] = getattr(self.nodes, name)[order]
        arrays |= {f"tallies/{name}": array for name, array in self.lists(order)._asdict().items()}
        regressors = take_scorers(self.regressors, own[own > 0] - 1)
        arrays |= {f"regressors/{key}": array for key, array in scorer_arrays(regressors, self.n_inner, resume).items()}
        return header, arrays

    @classmethod
    def from_parts(cls, header: dict[str, Any], arrays: dict[str, NDArray[Any]], n_labels: int) -> LOMTreeModel:
        """Restore a model from `to_parts`; raises ValueError if the parts are inconsistent."""
        sparse, resume = (truth(name, header[name]) for name in ("sparse", "resume"))
        n_features = whole_number("n_features", header["n_features"])
        if not sparse:
            check_memory("a block of rows", 4 * ROWS_AT_ONCE * n_features)
        nodes, tallies = _restored_tree(arrays, n_labels)
        n_inner = int(nodes.used[kernels.INNER])
        regressors = scorers_from_arrays(arrays, "regressors", n_inner, 1, n_features, sparse, resume)
        found = whole_numbers("found", header["found"], 2)
        model = cls(n_labels, n_features, regressors, nodes, tallies, found, resume)
        if model.depth > DEEPEST:
            raise ValueError(f"the tree is {model.depth} levels deep, expected at most {DEEPEST}")
        return model


def _pruned(inner: NDArray[np.bool_], has_labels: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the nodes that remain, level by level, and which of them are inner nodes.

    Nodes are numbered level by level; those without labels are removed.
    """
    first = np.zeros(len(inner), dtype=np.int64)
    first[inner] = 1 + 2 * np.arange(int(inner.sum()))
    alive, splits = has_labels.copy(), np.zeros(len(inner), dtype=bool)
    for node in range(len(inner) - 1, -1, -1):
        if inner[node]:
            below = alive[first[node] : first[node] + 2]
            splits[node], alive[node] = below.all(), below.any() or has_labels[node]

    def end(node: int) -> int:
        while inner[node] and not splits[node] and alive[first[node] : first[node] + 2].any():
            node = int(first[node]) + int(alive[first[node] + 1])
        return node

    chosen = [end(0)]
    for node in chosen:  # appended to during the iteration
        if splits[node]:
            chosen += [end(int(first[node])), end(int(first[node]) + 1)]
    found = np.array(chosen, dtype=np.int64)
    return found, splits[found]


def _most_frequent(
    lists: TallyLists, kept: NDArray[np.bool_], number: NDArray[np.int64], best: NDArray[np.int32]
) -> NDArray[np.int32]:
    """Return the most frequent label of each node: that of before if left, else the first of the largest count."""
    out = np.full(len(best), NONE, np.int32)
    for node in range(len(best)):
        own = slice(lists.starts[node], lists.starts[node + 1])
        if own.stop > own.start:
            old = int(best[node])
            stays = old != NONE and bool(kept[old])
            out[node] = number[old] if stays else lists.labels[own][lists.counts[own].argmax()]
    return out


def empty_nodes(n: int) -> Nodes:
    """Return a root without rows, and capacity for n nodes."""
    first, best = np.full(n, NONE, np.int64), np.full(n, NONE, np.int32)
    counts = [np.zeros(n, np.int64) for _ in range(4)]
    totals, largest, smallest, trained = counts
    return Nodes(
        np.array([1, 0, 0, 0], np.int64), np.zeros(n, np.int32), np.zeros((n, 2), np.int32), np.zeros(n, np.int32), totals,
        largest, best, smallest, trained, np.zeros(n), first,
    )  # fmt: skip


def empty_tallies(n: int) -> Tallies:
    """Return an empty hash table with capacity for n tallies."""
    size = SMALLEST_TABLE
    while size * 3 // 4 < n:
        size *= 2
    table = np.zeros(size, _TALLY)
    table["keys"] = EMPTY
    return Tallies(np.zeros(1, np.int64), *(table[name] for name in Tallies._fields[1:]))


def tallies_from(lists: TallyLists, nodes: Nodes, n: int) -> Tallies:
    """Return the tallies in a hash table with capacity for n, linked into the lists of the nodes."""
    tallies = empty_tallies(n)
    if not kernels.scatter(*lists, nodes.first, tallies):
        raise ValueError("a node has a duplicate label")
    return tallies


def take_scorers(scorers: Scorers, chosen: NDArray[Any]) -> Scorers:
    """Return the chosen scorers, renumbered in that order."""
    n = len(scorers.bias)
    if not isinstance(scorers, SparseScorers):  # in a model for prediction only, `weights` is empty
        return type(scorers)(*(array[chosen] if len(array) == n else array for array in scorers))
    numbers = np.full(n, NONE, np.int64)
    numbers[chosen] = np.arange(len(chosen))
    parts = stored_sparse(scorers, resume=True)
    owners, features = numbers[parts["owners"]], np.repeat(np.arange(len(parts["entries"])), parts["entries"])
    kept = owners != NONE
    entries = np.bincount(features[kept], minlength=len(parts["entries"]))
    return restored_sparse(
        entries.astype(np.uint32), owners[kept].astype(np.uint32), parts["weights"][kept], parts["squares"][kept],
        scorers.bias[chosen], scorers.bias_squares[chosen],
    )  # fmt: skip


def tree_from(inner: NDArray[np.bool_], lists: TallyLists) -> tuple[Nodes, Tallies]:
    """Return a tree with nodes numbered level by level; the caller sets `smallest`, `best` and `sums`."""
    n, n_inner = len(inner), int(inner.sum())
    nodes, own = empty_nodes(n), np.flatnonzero(inner)
    nodes.used[:] = n, n_inner, 0, n_inner
    nodes.regressors[own] = np.arange(1, n_inner + 1)
    nodes.children[own] = np.arange(1, n).reshape(-1, 2)
    nodes.parents[1:] = np.repeat(own, 2)
    owner = np.repeat(np.arange(n), np.diff(lists.starts))
    np.add.at(nodes.totals, owner, lists.counts)
    np.maximum.at(nodes.largest, owner, lists.counts)
    np.add.at(nodes.trained, owner, lists.trained)
    return nodes, tallies_from(lists, nodes, len(lists.labels))


def _restored_tree(arrays: dict[str, NDArray[Any]], n_labels: int) -> tuple[Nodes, Tallies]:
    n, n_tallies = len(arrays["nodes/inner"]), len(arrays["tallies/labels"])
    inner = expect(arrays, "nodes/inner", np.bool_, (n,))
    own = np.flatnonzero(inner)
    if n != 2 * len(own) + 1 or (own >= np.arange(1, n, 2)).any():
        raise ValueError("the nodes do not form a tree")
    lists = _checked_lists(arrays, n, n_tallies, n_labels)
    nodes, tallies = tree_from(inner, lists)
    nodes.smallest[:] = expect_counts(arrays, "nodes/smallest", np.int64, (n,))
    nodes.best[:] = expect(arrays, "nodes/best", np.int32, (n,))
    nodes.sums[:] = expect(arrays, "nodes/sums", np.float64, (n,))
    below = nodes.smallest[nodes.children[own]]
    if (nodes.smallest[own] != below.min(axis=1, initial=2**62)).any():
        raise ValueError("the sizes of leaves do not fit the nodes")
    owner = np.repeat(np.arange(n), np.diff(lists.starts))
    most = (lists.labels == nodes.best[owner]) & (lists.counts == nodes.largest[owner])
    if ((np.bincount(owner[most], minlength=n) == 1) != (nodes.best != NONE)).any():
        raise ValueError("the most frequent labels do not fit the counts")
    if (nodes.totals[own] == 0).any() or not (np.abs(nodes.sums) <= LARGEST).all():
        raise ValueError("the counts do not fit the nodes")
    return nodes, tallies


def _checked_lists(arrays: dict[str, NDArray[Any]], n: int, n_tallies: int, n_labels: int) -> TallyLists:
    kinds = {"labels": np.int32, "counts": np.int32, "trained": np.int32, "sums": np.float64}
    starts = expect(arrays, "tallies/starts", np.int64, (n + 1,))
    lists = TallyLists(starts, *(expect(arrays, f"tallies/{key}", kind, (n_tallies,)) for key, kind in kinds.items()))
    if starts[0] != 0 or starts[-1] != n_tallies or not ascends(starts):
        raise ValueError("the tallies do not fit the nodes")
    if (lists.labels < 0).any() or (lists.labels >= n_labels).any():
        raise ValueError("the tallies do not fit the labels")
    if (lists.counts < 1).any() or (lists.trained < 0).any() or not (np.abs(lists.sums) <= LARGEST).all():
        raise ValueError("the tallies have counts that are not possible")
    return lists
