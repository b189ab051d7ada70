"""A trained label tree, or several whose probabilities are averaged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treemax import modelfile
from treemax.explanations import Trace
from treemax.inputs.conversions import blocks
from treemax.inputs.rows import Rows
from treemax.kernels import search as kernels
from treemax.models.calibration import Calibration
from treemax.models.label_tree.compact import loaded_tree, saved_arrays, without_labels
from treemax.models.label_tree.nodes import LOSSES
from treemax.models.label_tree.packed_tree import PackedTree
from treemax.models.label_tree.tracing import trace_labels
from treemax.models.trained.parts import real_number
from treemax.models.trained.searching import SparseProbabilities, TopKAllowed, best_weighted, empty_top_k


@dataclass(frozen=True, eq=False)
class LabelTreeModel:
    """Trees over the same labels; the score of a label is the mean of its probabilities."""

    trees: tuple[PackedTree, ...]
    loss: str
    cost: float  # of the nodes above labels
    temperature: float = 1.0  # by which the slopes and shifts of the trees are divided
    calibration: Calibration = field(default_factory=Calibration)

    @property
    def n_labels(self) -> int:
        return self.trees[0].tree.n_labels

    def top_k(
        self, rows: Rows, k: int, search: int | None = None, threads: int = 1
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Ids and probabilities of the k best labels, by a beam of width `search` in every tree, or exactly with None.

        The labels that any tree finds are ranked by the mean. With several trees the search is exact for each tree, not
        for the mean, whose best label may be among the k best of no tree.
        """
        found = [tree.top_k(rows, k, search, threads) for tree in self.trees]
        if len(self.trees) == 1:
            return found[0]
        candidates = _without_duplicates(found)
        ids, probabilities = empty_top_k(len(rows), k)
        kernels.rank(candidates, self.of_labels(rows, candidates, threads=threads), ids, probabilities)
        return ids, probabilities

    def top_k_weighted(
        self, rows: Rows, k: int, weights: NDArray[np.float32], search: int | None = None, threads: int = 1
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the k labels with the largest products of probability and weight, of those that any tree finds."""
        found = [tree.top_k_weighted(rows, k, weights, search, threads) for tree in self.trees]
        if len(self.trees) == 1:
            return found[0]
        candidates = _without_duplicates(found)
        return best_weighted(candidates, self.of_labels(rows, candidates, threads=threads), weights, k)

    def top_k_allowed(
        self, rows: Rows, k: int, n_first: int, weights: NDArray[np.float32], search: int | None, threads: int = 1
    ) -> TopKAllowed:
        """Return the `n_first` best of all labels and the k best of those with a weight."""
        if len(self.trees) == 1:
            return self.trees[0].top_k_allowed(rows, k, n_first, weights, search, threads)
        n_each = max(k, n_first) if n_first else 0
        found = [tree.top_k_allowed(rows, k, n_each, weights, search, threads) for tree in self.trees]
        best = _without_duplicates([(part.first, part.of_first) for part in found])
        allowed = _without_duplicates([(part.ids, part.probabilities) for part in found])
        candidates = np.hstack([best, allowed])
        scores = self.of_labels(rows, candidates, threads=threads)
        answer, n_best = TopKAllowed.empty(len(rows), n_first, k), best.shape[1]
        if n_first:
            kernels.rank(best, scores[:, :n_best], answer.first, answer.of_first)
        kernels.rank(allowed, scores[:, n_best:], answer.ids, answer.probabilities)
        return answer

    def above(self, rows: Rows, threshold: float, search: int | None = None, threads: int = 1) -> SparseProbabilities:
        """Return all labels with at least this probability; if the mean reaches it, that of some tree does."""
        if len(self.trees) == 1:
            return self.trees[0].above(rows, threshold, threads=threads)
        parts = []
        for block in blocks(len(rows), self.n_labels):
            some = rows[block]
            found = [tree.above(some, threshold, threads=threads) for tree in self.trees]
            row, ids = _distinct_pairs(found)
            place = np.arange(len(row)) - np.searchsorted(row, row)  # within its row
            table = np.full((len(some), int(place.max(initial=-1)) + 1), -1)
            table[row, place] = ids
            scores = self.of_labels(some, table, threads=threads)[row, place]
            kept = scores >= np.float32(threshold)
            parts.append(SparseProbabilities(row[kept] + block.start, ids[kept], scores[kept]))
        return SparseProbabilities(*map(np.concatenate, zip(*parts)))

    def of_labels(
        self, rows: Rows, ids: NDArray[np.int64], search: int | None = None, threads: int = 1
    ) -> NDArray[np.float32]:
        """Return the probabilities of given labels, ids[i] those of row i; 0 where the id is -1."""
        return self._average([tree.of_labels(rows, ids, threads=threads) for tree in self.trees])

    def probabilities(self, rows: Rows, search: int | None = None, threads: int = 1) -> NDArray[np.float32]:
        """Return the probability of every label."""
        return self._average(tree.probabilities(rows, threads=threads) for tree in self.trees)

    def trace(self, row: Rows, ids: list[int], scores: list[float], search: int | None = None) -> Trace:
        """Return the paths to labels, for `explain`."""
        return trace_labels(self.trees, row, ids)

    def _average(self, probabilities: Iterable[NDArray[np.float32]]) -> NDArray[np.float32]:
        """Return the mean over the trees, always in the same order, so that all methods give the same bits."""
        total: NDArray[np.float32] | None = None
        for of_tree in probabilities:
            total = of_tree if total is None else np.add(total, of_tree, out=total)
        assert total is not None
        total /= len(self.trees)
        return total

    def at_temperature(self, temperature: float) -> LabelTreeModel:
        """Return the model with the slopes and shifts of its trees divided by `temperature` in place of its own."""
        change = np.float32(self.temperature / temperature)
        trees = tuple(replace(tree, slopes=tree.slopes * change, shifts=tree.shifts * change) for tree in self.trees)
        return replace(self, trees=trees, temperature=temperature)

    def without_labels(self, kept: NDArray[np.bool_]) -> LabelTreeModel:
        """Return the model of the `kept` labels, renumbered."""
        return replace(self, trees=tuple(without_labels(tree, kept) for tree in self.trees))

    def to_parts(self, resume: bool = False) -> tuple[dict[str, Any], modelfile.Arrays]:
        """Return the model as a JSON-able header and arrays."""
        arrays: modelfile.Arrays = {}
        for number, tree in enumerate(self.trees):
            arrays |= modelfile.prefixed(str(number), saved_arrays(tree))
        links = [tree.link for tree in self.trees]
        header = {"loss": self.loss, "cost": self.cost, "temperature": self.temperature, "links": links}
        return header, arrays

    @classmethod
    def from_parts(cls, header: dict[str, Any], arrays: modelfile.Arrays, n_labels: int) -> LabelTreeModel:
        """Restore the model from its parts; raise ValueError if they are inconsistent."""
        links = enumerate(header["links"])
        trees = tuple(loaded_tree(modelfile.part(str(number), arrays), link) for number, link in links)
        if not trees or any(packed.tree.n_labels != n_labels for packed in trees):
            raise ValueError("the trees do not fit the labels")
        if header["loss"] not in LOSSES:
            raise ValueError(f"unknown loss {header['loss']!r}")
        cost = real_number("the cost", header["cost"], least=1e-30)
        return cls(trees, header["loss"], cost, real_number("the temperature", header["temperature"], least=0.01))


def _without_duplicates(found: list[tuple[NDArray[np.int64], NDArray[np.float32]]]) -> NDArray[np.int64]:
    """Return the labels that any tree found for each row, sorted, -1 in place of duplicates."""
    candidates = np.concatenate([ids for ids, _ in found], axis=1)
    kernels.mask_duplicates(candidates)
    return candidates


def _distinct_pairs(found: list[SparseProbabilities]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the distinct pairs of row and id, sorted."""
    row, ids = (np.concatenate([getattr(part, name) for part in found]) for name in ("rows", "ids"))
    order = np.lexsort((ids, row))
    row, ids = row[order], ids[order]
    first = np.ones(len(row), dtype=bool)
    first[1:] = (row[1:] != row[:-1]) | (ids[1:] != ids[:-1])
    return row[first], ids[first]
