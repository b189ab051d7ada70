"""Trees over labels: the children of a node with their probabilities for a row, and searches.

The trees are those of `treemax.models`, which describe the arrays. Scores are sums in double precision, probabilities
are in single precision as there: how near to one they are matters to the calibration.
"""

from __future__ import annotations

from collections import Counter
from heapq import heappop, heappush, heappushpop
from itertools import count
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from treemax.light.rows import Row, renumbered, take
from treemax.modelfile import Arrays
from treemax.numpy_only.storage import decode_sorted

Floats = NDArray[np.float64]
Probabilities = NDArray[np.float32]
Ids = NDArray[np.int64]
ONE, LEAST_EXPONENT, MOST_EXPONENT = np.float32(1.0), np.float32(-87.0), np.float32(88.0)
LANES = 16  # children whose weights an online label tree stores together
NO_FEATURE = 0xFFFFFFFF  # in the upper half of a free slot
HASH = np.uint64(0x9E3779B1)
LOWER_HALF = np.uint64(0xFFFFFFFF)


class SearchTree(Protocol):
    """A tree with classifiers at its nodes; node 0 is the root."""

    label: Ids  # of every node; -1 for an inner node

    def start(self, row: Row) -> tuple[Any, float]:
        """Return what `expand` needs of a row, and the probability of the root."""

    def expand(self, node: int, row: Any) -> tuple[Ids, Probabilities]:
        """Return the children of a node, and their probabilities given the node."""


# --- searches ------------------------------------------------------------------------------------------


def best_labels(tree: SearchTree, row: Row, k: int, width: int | None) -> list[tuple[int, float]]:
    """Return the k most probable labels, best first, by a search that expands at most `width` nodes a level.

    Of equally probable labels, that which is found first is better, as in `treemax.kernels.queues.offer`.
    """
    features, root = tree.start(row)
    if tree.label[0] >= 0:
        return [(int(tree.label[0]), root)]
    waiting, expanded, place = [(-root, 0, 0)], Counter[int](), count(0, -1)
    best: list[tuple[float, int, int]] = []  # a heap of probability, place and label: the worst first
    while waiting:
        above, node, level = heappop(waiting)
        if len(best) == k and -above <= best[0][0]:
            break
        if expanded[level] == width:
            continue
        expanded[level] += 1
        children, shares = tree.expand(node, features)
        probabilities = -above * shares
        if len(best) == k:
            better = probabilities > best[0][0]
            children, probabilities = children[better], probabilities[better]
        labels = tree.label[children].tolist()
        for child, label, probability in zip(children.tolist(), labels, probabilities.tolist()):
            if label < 0:
                heappush(waiting, (-probability, child, level + 1))
            elif len(best) < k:
                heappush(best, (probability, next(place), label))
            else:
                heappushpop(best, (probability, next(place), label))
    return [(label, probability) for probability, _, label in sorted(best, reverse=True)]


def labels_above(tree: SearchTree, row: Row, least: float, within: set[int] | None = None) -> dict[int, float]:
    """Return all labels with at least this probability, of those at the nodes `within`, which are paths from the root."""
    features, root = tree.start(row)
    found, waiting = {}, [(0, root)]
    while waiting:
        node, above = waiting.pop()
        if above < least or (within is not None and node not in within):
            continue
        if tree.label[node] >= 0:
            found[int(tree.label[node])] = above
            continue
        children, shares = tree.expand(node, features)
        waiting += zip(children.tolist(), (above * shares).tolist())
    return found


def check_tree(tree: SearchTree, n_labels: int) -> None:
    """Raise for labels that there are not."""
    if tree.label.ndim != 1 or not -1 <= tree.label.min() <= tree.label.max() < n_labels:
        raise ValueError(f"the labels of the tree are not those of {n_labels} labels")


def _first_children(n_children: Ids, label: Ids) -> Ids:
    """Return the first child of every node of a tree whose nodes are numbered level by level."""
    if n_children.shape != label.shape or n_children.min() < 0 or sum(n_children.tolist()) != len(label) - 1:
        raise ValueError("the numbers of children are not those of a tree")
    return 1 + np.cumsum(n_children) - n_children


# --- LabelTree -----------------------------------------------------------------------------------------


class NodeEntries(NamedTuple):
    """The weights of the children of a node for some features: child, weight, and the value of the feature."""

    children: NDArray[Any]
    weights: NDArray[np.float32]
    values: NDArray[np.float32]


class LabelTree:
    """One tree of a `LabelTree`, with packed or with compact weights."""

    def __init__(self, arrays: Arrays, link: str) -> None:
        self.n_children, self.label = (arrays[name].astype(np.int64) for name in ("n_children", "label"))
        self._first_child = _first_children(self.n_children, self.label)
        self._level = np.zeros(len(self.label), dtype=np.int64)
        self._parent = np.concatenate([[-1], np.repeat(np.arange(len(self.label)), self.n_children)])
        start, stop = 0, 1
        while start < stop:  # nodes are numbered level by level
            self._level[stop:] += 1
            start, stop = stop, stop + int(self.n_children[start:stop].sum())
        self._bias, self._slopes, self._shifts = (arrays[name] for name in ("bias", "slopes", "shifts"))
        self._link = link
        self._weights = _CompactWeights(arrays, self.n_children) if "codes" in arrays else _PackedWeights(arrays)

    def start(self, row: Row) -> tuple[Row, float]:
        return row, 1.0

    def paths_to(self, ids: Ids) -> set[int]:
        """Return the nodes on the paths from the root to labels."""
        nodes, found = np.flatnonzero(np.isin(self.label, ids)), {0}
        while len(nodes):
            found.update(nodes.tolist())
            nodes = np.unique(self._parent[nodes[nodes > 0]])
        return found

    def expand(self, node: int, row: Row) -> tuple[Ids, Probabilities]:
        n, first, level = int(self.n_children[node]), int(self._first_child[node]), int(self._level[node])
        children, weights, values = self._weights.of(node, n, row)
        if (children >= n).any():
            raise IndexError(f"node {node} has weights for more than its {n} children")
        sums: Floats = np.bincount(children, values.astype(np.float64) * weights, minlength=n).astype(np.float64)
        scores = (sums + self._bias[first : first + n]) * float(self._slopes[level])
        if not np.isfinite(scores).all():
            raise ValueError(f"node {node} has weights that are not numbers")
        if self._link == "softmax":
            return np.arange(first, first + n), softmax(scores)
        return np.arange(first, first + n), logistic(scores + float(self._shifts[level]))


class _PackedWeights:
    """Hash tables of features, whose weights are words of two bfloat16 or of one and the number of a child."""

    def __init__(self, arrays: Arrays) -> None:
        self._tables, self._slots, self._entries = (arrays[name] for name in ("tables", "slots", "entries"))

    def of(self, node: int, n_children: int, row: Row) -> NodeEntries:
        slots, values = self._find(int(self._tables[node]), int(self._tables[node + 1]), row)
        first, last = ((self._slots[slots + i] & LOWER_HALF).astype(np.int64) for i in (0, 1))
        lengths, half = last - first, (n_children + 1) // 2
        if (lengths < 0).any() or (lengths > half).any():
            raise IndexError(f"node {node} has weights for more than its {n_children} children")
        place = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        words = self._entries[np.repeat(first, lengths) + place]
        full, of_word = np.repeat(lengths == half, lengths), np.repeat(values, lengths)
        upper, lower = (words & np.uint32(0xFFFF0000)).view(np.float32), (words[full] << np.uint32(16)).view(np.float32)
        children = np.where(full, place, words & np.uint32(0xFFFF))
        second = half + place[full]
        real = second < n_children  # with an odd number of children, the last word has one weight
        return NodeEntries(
            np.concatenate([children, second[real]]),
            np.concatenate([upper, lower[real]]),
            np.concatenate([of_word, of_word[full][real]]),
        )

    def _find(self, first: int, last: int, row: Row) -> tuple[Ids, NDArray[np.float32]]:
        """Return the slots of the features of a row that a table has, and their values."""
        size = last - first
        if size == 0 or len(row.indices) == 0:
            return np.empty(0, dtype=np.int64), row.values[:0]
        mixed = row.indices.astype(np.uint64) * HASH & LOWER_HALF
        at = (mixed * np.uint64(size) >> np.uint64(32)).astype(np.int64)
        searching = np.ones(len(at), dtype=bool)
        found = np.zeros(len(at), dtype=bool)
        for _ in range(size):
            keys = (self._slots[first + at[searching]] >> np.uint64(32)).astype(np.int64)
            same = keys == row.indices[searching]
            found[searching] = same
            searching[searching] = ~same & (keys != NO_FEATURE)
            if not searching.any():
                break
            at[searching] = (at[searching] + 1) % size
        return first + at[found], row.values[found]


class _CompactWeights:
    """Sorted features of each node, and weights of one byte with a scale for each node."""

    def __init__(self, arrays: Arrays, n_children: Ids) -> None:
        n_features, counts = (arrays[name].astype(np.int64) for name in ("n_features", "counts"))
        inner = np.flatnonzero(n_children)
        if counts.min(initial=0) < 0:
            raise ValueError("a feature has a negative number of weights")
        self._slots = np.zeros(len(n_children) + 1, dtype=np.int64)
        self._slots[inner + 1] = n_features
        np.cumsum(self._slots, out=self._slots)
        self._features = decode_sorted(arrays["steps"], n_features)
        self._starts = np.concatenate([[0], np.cumsum(counts)])
        self._children, self._codes = arrays["children"], arrays["codes"]
        self._scales = np.zeros(len(n_children), dtype=np.float32)
        self._scales[inner] = arrays["scales"]

    def of(self, node: int, n_children: int, row: Row) -> NodeEntries:
        first, last = int(self._slots[node]), int(self._slots[node + 1])
        slots, values = renumbered(row, self._features[first:last])
        slots = slots + first
        lengths = self._starts[slots + 1] - self._starts[slots]
        if (lengths > n_children).any():
            raise IndexError(f"node {node} has weights for more than its {n_children} children")
        place = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        entries = np.repeat(self._starts[slots], lengths) + place
        weights = _to_bfloat16(self._codes[entries] * self._scales[node])
        return NodeEntries(self._children[entries], weights, np.repeat(values, lengths))


def _to_bfloat16(weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """Round to the precision of packed weights."""
    words = weights.view(np.uint32).astype(np.uint64)
    rounded = words + np.uint64(0x7FFF) + (words >> np.uint64(16) & np.uint64(1))
    return (rounded & np.uint64(0xFFFF0000)).astype(np.uint32).view(np.float32)


# --- LearnedTree ---------------------------------------------------------------------------------------


class LearnedTree:
    """Embeddings of features, and a vector for every child of a node, or one for two."""

    def __init__(self, header: dict[str, Any], arrays: Arrays) -> None:
        self.n_children, self.label = (arrays[f"tree/{name}"].astype(np.int64) for name in ("n_children", "label"))
        self._first_child = _first_children(self.n_children, self.label)
        n_vectors = np.where(self.n_children > 2, self.n_children, np.maximum(self.n_children - 1, 0))
        self._first_vector = np.cumsum(n_vectors) - n_vectors
        self._features = arrays.get("features")
        self._n_features = int(header["n_features"])
        self._embeddings, self._weights, self._biases = (arrays[n] for n in ("embeddings", "weights", "biases"))

    def start(self, row: Row) -> tuple[Floats, float]:
        row = take(row, row.indices < self._n_features)
        if self._features is not None:
            row = renumbered(row, self._features)
        return row.values.astype(np.float64) @ self._embeddings[row.indices], 1.0

    def expand(self, node: int, row: Floats) -> tuple[Ids, Probabilities]:
        n, first, vector = (int(array[node]) for array in (self.n_children, self._first_child, self._first_vector))
        chosen = slice(vector, vector + (n if n > 2 else n - 1))
        scores = self._weights[chosen] @ row + self._biases[chosen]
        if n == 2:
            second = logistic(scores)
            return np.arange(first, first + n), np.concatenate([ONE - second, second])
        return np.arange(first, first + n), softmax(scores) if n > 1 else np.ones(1, dtype=np.float32)


# --- OnlineLabelTree -----------------------------------------------------------------------------------


class OnlineTree:
    """Blocks of up to sixteen children with the weights of their classifiers."""

    def __init__(self, arrays: Arrays, one_label: bool, scale_siblings: bool) -> None:
        self.label = arrays["label"]
        self._one_label, self._scaled = one_label, one_label and scale_siblings
        self._used, owner, filled = arrays["used"], arrays["owner"], arrays["filled"]
        self._blocks_of: dict[int, list[int]] = {}
        for block, node in enumerate(owner.tolist()):
            self._blocks_of.setdefault(node, []).append(block)
        lanes = arrays["lanes"].astype(np.int64)
        free = (self._used < LANES) & (lanes >> np.minimum(self._used, LANES - 1) & 1 > 0)
        self._width = self._used + free  # lanes that are stored; the last may be for all that are free
        self._first_child = np.cumsum(self._used) - self._used
        self._child, self._bias = arrays["child"], arrays["bias"]
        if owner[0] >= 0 or self._child[0] != 0 or len(np.unique(self._child)) < len(self._child):
            raise ValueError("a node has two parents")
        self._records: _Records = (
            _RoundedRecords(arrays, filled) if "codes" in arrays else _ExactRecords(arrays, filled, self._width)
        )

    def start(self, row: Row) -> tuple[Row, float]:
        return row, 1.0 if self._one_label else float(logistic(self._scores(0, row))[0])

    def expand(self, node: int, row: Row) -> tuple[Ids, Probabilities]:
        blocks = [block for block in self._blocks_of[node] if self._used[block]]
        probabilities = np.concatenate([logistic(self._scores(block, row)) for block in blocks])
        children = np.concatenate([self._children(block) for block in blocks])
        return children, probabilities / probabilities.sum() if self._scaled else probabilities

    def _children(self, block: int) -> Ids:
        first = int(self._first_child[block])
        return self._child[first : first + int(self._used[block])]

    def _scores(self, block: int, row: Row) -> Floats:
        """Return the scores of the children in a block."""
        used, width = int(self._used[block]), int(self._width[block])
        sums = self._records.sums(block, width, row)[:used]
        return sums + self._bias[block * LANES : block * LANES + used]


class _ExactRecords:
    """The features of each block, in any order, and a weight for each lane that is stored."""

    def __init__(self, arrays: Arrays, filled: Ids, widths: Ids) -> None:
        self._starts = np.concatenate([[0], np.cumsum(filled)])
        self._first_weight = np.cumsum(filled * widths) - filled * widths
        self._features, self._weights = arrays["features"], arrays["weights"]

    def sums(self, block: int, width: int, row: Row) -> Floats:
        """Return the sum of the weights of each lane, times the values of the row."""
        first, last = int(self._starts[block]), int(self._starts[block + 1])
        features = self._features[first:last]
        order = np.argsort(features)
        place, values = renumbered(row, features[order])
        at = int(self._first_weight[block])
        weights = self._weights[at : at + (last - first) * width].reshape(-1, width)
        sums: Floats = values.astype(np.float64) @ weights[order[place]]
        return sums


class _RoundedRecords:
    """Rounded weights: the features of each block, for each a mask of the lanes with weights, and these as bytes."""

    def __init__(self, arrays: Arrays, filled: Ids) -> None:
        self._starts = np.concatenate([[0], np.cumsum(filled)])
        self._features = decode_sorted(arrays["steps"], filled)
        self._masks, self._codes, self._offsets = (arrays[name] for name in ("masks", "codes", "offsets"))
        counts = sum((self._masks >> lane & 1).astype(np.int64) for lane in range(LANES))
        self._first_code = np.concatenate([[0], np.cumsum(counts)])
        if len(self._features) != len(self._masks) or self._first_code[-1] != len(self._codes):
            raise ValueError("the rounded weights do not fit together")

    def sums(self, block: int, width: int, row: Row) -> Floats:
        """Return the sum of the weights of each lane, times the values of the row."""
        first, last = int(self._starts[block]), int(self._starts[block + 1])
        place, values = renumbered(row, self._features[first:last])
        sums: Floats = np.zeros(LANES)
        for record, value in zip((place + first).tolist(), values.astype(np.float64).tolist()):
            lanes = np.flatnonzero(self._masks[record] >> np.arange(LANES) & 1)
            codes = self._codes[self._first_code[record] : self._first_code[record + 1]].astype(np.uint16)
            bits = (codes & 0x7F) + self._offsets[block] << 6 | (codes & 0x80) << 8
            sums[lanes] += value * bits.view(np.float16).astype(np.float64)
        return sums[:width]


_Records = _ExactRecords | _RoundedRecords


# --- links ---------------------------------------------------------------------------------------------


def softmax(scores: NDArray[Any]) -> Probabilities:
    """Return the softmax of scores."""
    powers = _exponential(scores - scores.max())
    return powers / powers.sum()


def logistic(scores: NDArray[Any]) -> Probabilities:
    """Return 1 / (1 + exp(-score))."""
    return ONE / (ONE + _exponential(-scores))


def _exponential(scores: NDArray[Any]) -> Probabilities:
    """Return the exponential in single precision and within the bounds of `treemax.kernels.arithmetic.exp32`."""
    return np.exp(np.clip(scores.astype(np.float32), LEAST_EXPONENT, MOST_EXPONENT))
