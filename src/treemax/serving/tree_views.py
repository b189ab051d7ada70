"""The trees of all models in one form, node by node, with the numbers that explanations use.

A view is made for every request and computes what the request needs. What takes longer than a few milliseconds for a
tree of a million labels is kept with the tree.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from treemax.models.label_tree.model import LabelTreeModel
from treemax.models.label_tree.packed_tree import PackedTree
from treemax.models.label_tree.tracing import node_steps
from treemax.models.learned_tree.model import LearnedTreeModel
from treemax.models.learned_tree.stream import GrowingTree, StreamView
from treemax.models.lom_tree.kernels import ROOT
from treemax.models.lom_tree.model import LOMTreeModel
from treemax.models.online_label_tree.model import OnlineTree
from treemax.models.online_label_tree.tracing import children_of, scored_siblings, some_labels_below
from treemax.models.recall_tree.model import RecallTreeModel
from treemax.models.recall_tree.paper_model import PaperTreeModel
from treemax.models.softmax_tree.model import SoftmaxTreeModel
from treemax.models.trained.scorers import weights_of_features
from treemax.trees import NodeLabels, Tree

Ids = NDArray[np.int64]
Floats = NDArray[np.float64]


class _Sums(NamedTuple):
    """What is kept with a tree: the rows of all leaves before every node, and the largest count of a label below it."""

    version: int  # the number of examples
    before: Ids
    largest: Ids


_SUMS: WeakKeyDictionary[Tree, _Sums] = WeakKeyDictionary()
_ROWS: WeakKeyDictionary[OnlineTree, tuple[Any, Ids]] = WeakKeyDictionary()  # version, and rows below every node


class TreeView(Protocol):
    """One tree of a model. Nodes are numbers; only `parent` and `weights` take more than a node that exists."""

    root: int

    def __contains__(self, node: int) -> bool:
        """Return whether there is such a node."""

    def parent(self, node: int) -> int:
        """Return the parent of a node, -1 for the root."""

    def children(self, node: int) -> Sequence[int]:
        """Return the children of a node."""

    def size(self, node: int) -> int:
        """Return the number of labels below a node."""

    def labels(self, node: int, most: int) -> tuple[Ids, NDArray[Any] | None]:
        """Return labels below a node, the `most` frequent or more if there are as many, and their counts."""

    def rows(self, node: int) -> int | None:
        """Return the number of training rows, or of labels of rows, below a node, where known."""

    def leaves(self, label: int) -> list[int]:
        """Return the leaves that have a label, the one with the most rows first where that is known."""

    def columns(self, node: int) -> NDArray[np.uint32] | None:
        """Return the features that decide at a node; None where the decision is not linear in the features."""

    def weights(self, node: int, children: Sequence[int], columns: NDArray[np.uint32]) -> NDArray[Any]:
        """Return the weights of features for some children of a node: children x features."""


def views_of(model: Any) -> list[TreeView]:
    """Return the trees of a fitted estimator; an empty list for a model without trees."""
    trained = model.model_
    if isinstance(trained, LabelTreeModel):
        return [_LabelTreeView(model, packed) for packed in trained.trees]
    if isinstance(trained, LearnedTreeModel | GrowingTree):
        return [_LearnedTreeView(model)]
    if isinstance(trained, OnlineTree):
        return [_OnlineTreeView(model)]
    if isinstance(trained, SoftmaxTreeModel):
        return [_SoftmaxTreeView(trained, tree) for tree in range(len(trained.structure.roots))]
    if isinstance(trained, RecallTreeModel):
        return [_RecallTreeView(trained)]
    if isinstance(trained, PaperTreeModel):
        return [_PaperTreeView(trained)]
    if isinstance(trained, LOMTreeModel):
        return [_LOMTreeView(trained)]
    if hasattr(model, "node_labels"):
        return [_NodeLabelsView(model.node_labels())]
    return [_Tree(model.label_tree(), model)] if hasattr(model, "label_tree") else []


class _NotLinear:
    """Decisions whose weights are not shown."""

    def columns(self, node: int) -> NDArray[np.uint32] | None:
        return None

    def weights(self, node: int, children: Sequence[int], columns: NDArray[np.uint32]) -> NDArray[Any]:
        raise NotImplementedError


# --- every label at one leaf -----------------------------------------------------------------------------


class _Tree(_NotLinear):
    """A `Tree`, with the labels of the estimator."""

    root = 0

    def __init__(self, tree: Tree, model: Any) -> None:
        self.tree, self.model = tree, model

    def __contains__(self, node: int) -> bool:
        return 0 <= node < len(self.tree)

    def parent(self, node: int) -> int:
        return int(self.tree.parent[node])

    def children(self, node: int) -> Sequence[int]:
        return self.tree.children(node)

    def size(self, node: int) -> int:
        return self.tree.below(node, 0)[1] if self.tree.n_children[node] else 1

    def labels(self, node: int, most: int) -> tuple[Ids, None]:
        """Return the most frequent labels, by best-first search: the largest count below every node is known."""
        if self.tree.n_children[node] == 0:
            return self.tree.label[node : node + 1], None
        largest = self._sums().largest
        found: list[int] = []
        waiting = [(-int(largest[node]), -node)]
        while waiting and len(found) < most:
            best = -heapq.heappop(waiting)[1]  # of equal ones the deepest, which is nearest to a label
            if self.tree.label[best] >= 0:
                found.append(int(self.tree.label[best]))
                continue
            children = np.arange(self.tree.first_child[best], self.tree.first_child[best] + self.tree.n_children[best])
            if len(children) > most:  # each has a label as frequent as its largest
                children = children[np.argpartition(-largest[children], most - 1)[:most]]
            for entry in zip((-largest[children]).tolist(), (-children).tolist()):
                heapq.heappush(waiting, entry)
        return np.array(found, dtype=np.int64), None

    def rows(self, node: int) -> int:
        before = self._sums().before
        first, stop, total = node, node + 1, 0
        while first < stop:  # the descendants on a level are contiguous
            total += int(before[stop] - before[first])
            last = stop - 1
            first = int(self.tree.first_child[first])
            stop = int(self.tree.first_child[last] + self.tree.n_children[last])
        return total

    def _sums(self) -> _Sums:
        found = _SUMS.get(self.tree)
        if found is None or found.version != self.model.n_examples_:
            counts = np.append(self.model.label_counts_, 0)[self.tree.label]  # inner nodes have the label -1
            before = np.concatenate([[0], np.cumsum(counts)])
            for start, stop in self.tree.level_bounds[-2::-1]:
                inner = start + np.flatnonzero(self.tree.n_children[start:stop])
                firsts = self.tree.first_child[inner]
                if len(inner):
                    end = int(firsts[-1] + self.tree.n_children[inner[-1]])
                    counts[inner] = np.maximum.reduceat(counts[:end], firsts)
            found = _SUMS[self.tree] = _Sums(self.model.n_examples_, before, counts)
        return found

    def leaves(self, label: int) -> list[int]:
        return [int(self.tree.leaf_of[label])]


class _LabelTreeView(_Tree):
    def __init__(self, model: Any, packed: PackedTree) -> None:
        super().__init__(packed.tree, model)
        self.packed = packed

    def columns(self, node: int) -> NDArray[np.uint32]:
        return self.packed.features_of(node)

    def weights(self, node: int, children: Sequence[int], columns: NDArray[np.uint32]) -> NDArray[Any]:
        steps = node_steps(self.packed, node, children, columns, np.ones(len(columns), np.float32))
        return np.array([steps[child].added for child in children])


class _LearnedTreeView(_Tree):
    def __init__(self, model: Any) -> None:
        trained = model.model_
        self.trained: LearnedTreeModel = trained.view() if isinstance(trained, GrowingTree) else trained
        super().__init__(self.trained.tree, model)

    def columns(self, node: int) -> NDArray[np.uint32]:
        trained = self.trained
        if isinstance(trained, StreamView):
            assert trained.places is not None
            return np.flatnonzero(trained.places >= 0).astype(np.uint32)
        return np.arange(len(trained.embeddings), dtype=np.uint32) if trained.features is None else trained.features

    def weights(self, node: int, children: Sequence[int], columns: NDArray[np.uint32]) -> NDArray[Any]:
        trained, first, count = self.trained, int(self.trained.first_vectors[node]), int(self.tree.n_children[node])
        if count == 1:
            return np.zeros((1, len(columns)))
        if isinstance(trained, StreamView):
            assert trained.places is not None
            embeddings = trained.embeddings[trained.places[columns]]
        else:
            embeddings = trained.embeddings[: len(columns)] if trained.features is None else trained.embeddings
        places = np.asarray(children) - int(self.tree.first_child[node])
        if count == 2:  # one vector, whose score is that of the second child against the first
            return (2 * places - 1)[:, None] * (embeddings @ trained.weights[first])
        return (embeddings @ trained.weights[first + places].T).T


class _OnlineTreeView:
    """Nodes are numbered as they appeared, and `label_tree` would renumber them."""

    root = 0

    def __init__(self, model: Any) -> None:
        self.model: Any = model
        self.trained: OnlineTree = model.model_

    def __contains__(self, node: int) -> bool:
        return 0 <= node < self.trained.n_nodes

    def parent(self, node: int) -> int:
        return int(self.trained.nodes.parent[node])

    def children(self, node: int) -> Sequence[int]:
        return children_of(self.trained, node)

    def size(self, node: int) -> int:
        return int(self.trained.nodes.n_leaves[node])

    def labels(self, node: int, most: int) -> tuple[Ids, None]:
        return some_labels_below(self.trained, node), None

    def rows(self, node: int) -> int:
        found = _ROWS.get(self.trained)
        if found is None or found[0] != (self.model.n_examples_, self.trained.n_nodes):
            found = _ROWS[self.trained] = (self.model.n_examples_, self.trained.n_nodes), self._sums()
        return int(found[1][node])

    def _sums(self) -> NDArray[np.int64]:
        """Return the rows below every node."""
        trained, n = self.trained, self.trained.n_nodes
        sums, leaves = np.zeros(n, dtype=np.int64), np.flatnonzero(trained.nodes.label[:n] >= 0)
        rows = self.model.label_counts_[trained.nodes.label[leaves]]
        while len(leaves):
            sums += np.bincount(leaves, rows, n).astype(np.int64)
            above = trained.nodes.parent[leaves]
            leaves, rows = above[above >= 0], rows[above >= 0]
        return sums

    def leaves(self, label: int) -> list[int]:
        leaf = int(self.trained.leaf_of[label])
        return [leaf] if leaf >= 0 else []

    def columns(self, node: int) -> NDArray[np.uint32]:
        return np.arange(self.model.n_features_in_, dtype=np.uint32)

    def weights(self, node: int, children: Sequence[int], columns: NDArray[np.uint32]) -> NDArray[Any]:
        siblings = scored_siblings(self.trained, node, columns, np.zeros(len(columns), np.float32))
        place = {int(child): i for i, child in enumerate(siblings.nodes)}
        return siblings.weights[[place[child] for child in children]]


# --- a label at several leaves ---------------------------------------------------------------------------


class _SoftmaxTreeView:
    """Decision nodes come first, then the leaves of all trees, each with several labels."""

    def __init__(self, trained: SoftmaxTreeModel, tree: int) -> None:
        self.trained = trained
        self.root = self._node(int(trained.structure.roots[tree]))

    def _node(self, code: int) -> int:
        return code if code >= 0 else self.trained.n_branches - 1 - code

    def _code(self, node: int) -> int:
        return node if node < self.trained.n_branches else self.trained.n_branches - 1 - node

    def __contains__(self, node: int) -> bool:
        if not 0 <= node < self.trained.n_branches + self.trained.n_leaves:
            return False
        while (above := self.parent(node)) >= 0:
            node = above
        return node == self.root

    def parent(self, node: int) -> int:
        return int(self.trained.parents[self._code(node)])

    def children(self, node: int) -> list[int]:
        if node >= self.trained.n_branches:
            return []
        return [self._node(int(c)) for c in self.trained.structure.children[node]]

    def _classes(self, node: int) -> Ids:
        """Return the labels of all leaves below a node, with repetitions."""
        codes, leaves = np.array([self._code(node)]), [np.zeros(0, dtype=np.int64)]
        while len(codes):
            leaves.append(-1 - codes[codes < 0])
            codes = self.trained.structure.children[codes[codes >= 0]].ravel()
        found, starts = np.concatenate(leaves), self.trained.structure.starts
        first, count = starts[found], starts[found + 1] - starts[found]
        at = np.repeat(first - np.cumsum(count) + count, count) + np.arange(count.sum())
        return self.trained.structure.classes[at].astype(np.int64)

    def size(self, node: int) -> int:
        return len(self.labels(node, 0)[0])

    def labels(self, node: int, most: int) -> tuple[Ids, None]:
        present = np.zeros(self.trained.n_labels, dtype=bool)
        present[self._classes(node)] = True
        return np.flatnonzero(present), None

    def rows(self, node: int) -> None:
        return None

    def leaves(self, label: int) -> list[int]:
        starts = self.trained.structure.starts
        found = np.searchsorted(starts, np.flatnonzero(self.trained.structure.classes == label), side="right") - 1
        nodes = (self.trained.n_branches + found).tolist()
        return [node for node in nodes if node in self]

    def columns(self, node: int) -> NDArray[np.uint32]:
        return np.arange(self.trained.n_features, dtype=np.uint32)

    def weights(self, node: int, children: Sequence[int], columns: NDArray[np.uint32]) -> NDArray[Any]:
        right = self.trained.node_weights(node, columns, np.ones(len(columns), np.float32))[1][0]
        sides = self.children(node)
        return np.array([right if child == sides[1] else -right for child in children])


class _RecallTreeView:
    """A complete tree in the order of a heap; leaves have candidates."""

    root = 0

    def __init__(self, trained: RecallTreeModel) -> None:
        self.trained = trained
        self.first_leaf = len(trained.histograms.total) // trained.arity

    def __contains__(self, node: int) -> bool:
        return 0 <= node < len(self.trained.histograms.total) and (node == 0 or self.trained.histograms.total[node] > 0)

    def parent(self, node: int) -> int:
        return (node - 1) // self.trained.arity if node > 0 else -1

    def children(self, node: int) -> list[int]:
        if node >= self.first_leaf:
            return []
        first = node * self.trained.arity + 1
        return [child for child in range(first, first + self.trained.arity) if self.trained.histograms.total[child] > 0]

    def labels(self, node: int, most: int) -> tuple[Ids, NDArray[Any]]:
        first, stop, histograms = node, node + 1, self.trained.histograms
        while first < self.first_leaf:
            first, stop = first * self.trained.arity + 1, stop * self.trained.arity + 1
        here = np.arange(histograms.labels.shape[1]) < histograms.n_labels[first:stop, None]
        labels, counts = histograms.labels[first:stop][here], histograms.label_counts[first:stop][here]
        sums = np.bincount(labels, counts, self.trained.n_labels)
        found = np.unique(labels)
        return found.astype(np.int64), sums[found]

    def size(self, node: int) -> int:
        return len(self.labels(node, 0)[0])

    def rows(self, node: int) -> None:
        return None  # totals are sums of shares, since rows are sent to several leaves

    def leaves(self, label: int) -> list[int]:
        histograms = self.trained.histograms
        node, place = np.nonzero(histograms.labels == label)
        here = (place < histograms.n_labels[node]) & (node >= self.first_leaf)
        node, place = node[here], place[here]
        return node[np.argsort(-histograms.label_counts[node, place], kind="stable")].tolist()

    def columns(self, node: int) -> NDArray[np.uint32]:
        return np.arange(self.trained.n_features, dtype=np.uint32)

    def weights(self, node: int, children: Sequence[int], columns: NDArray[np.uint32]) -> NDArray[Any]:
        first, routers = node * self.trained.arity, self.trained.routers
        return weights_of_features(routers, first, self.trained.arity, columns)[np.asarray(children) - first - 1]


class _PaperTreeView:
    """The recall tree of the paper: binary, with candidates at every node."""

    root = 0

    def __init__(self, trained: PaperTreeModel) -> None:
        self.trained, self.nodes = trained, trained.nodes

    def __contains__(self, node: int) -> bool:
        return 0 <= node < self.trained.n_nodes

    def parent(self, node: int) -> int:
        above = np.flatnonzero((self.nodes.children[: self.trained.n_nodes] == node).any(axis=1))
        return int(above[0]) if node > 0 else -1

    def children(self, node: int) -> list[int]:
        return [int(child) for child in self.nodes.children[node] if child > 0]

    def labels(self, node: int, most: int) -> tuple[Ids, NDArray[Any]]:
        n = int(self.nodes.n_candidates[node])  # the most frequent first
        return self.nodes.labels[node, :n].astype(np.int64), np.arange(n, 0, -1)

    def size(self, node: int) -> int:
        return int(self.nodes.n_candidates[node])

    def rows(self, node: int) -> int:
        return round(float(self.nodes.total[node]))

    def leaves(self, label: int) -> list[int]:
        """Return the deepest nodes that have the label as a candidate: a row may end above a leaf."""
        node, place = np.nonzero(self.nodes.labels[: self.trained.n_nodes] == label)
        nodes = set(node[place < self.nodes.n_candidates[node]].tolist())
        ends = [node for node in nodes if not nodes.intersection(self.children(node))]
        return sorted(ends, key=lambda node: (-float(self.nodes.total[node]), node))

    def columns(self, node: int) -> NDArray[np.uint32] | None:
        return np.arange(self.trained.n_features, dtype=np.uint32) if self.nodes.routers[node] else None

    def weights(self, node: int, children: Sequence[int], columns: NDArray[np.uint32]) -> NDArray[Any]:
        left = weights_of_features(self.trained.routers, int(self.nodes.routers[node]) - 1, 1, columns)[0]
        return np.array([left if child == self.nodes.children[node, 0] else -left for child in children])


class _LOMTreeView:
    """A binary tree grown online, with the counts of labels at every node."""

    def __init__(self, trained: LOMTreeModel) -> None:
        self.trained, self.nodes, self.root = trained, trained.nodes, int(trained.nodes.used[ROOT])

    def __contains__(self, node: int) -> bool:
        if not 0 <= node < len(self.nodes.parents):
            return False
        while node != self.root:  # nodes that were moved may be left over
            above = int(self.nodes.parents[node])
            if above == node or node not in self.nodes.children[above] or not self.nodes.regressors[above]:
                return False
            node = above
        return True

    def parent(self, node: int) -> int:
        return -1 if node == self.root else int(self.nodes.parents[node])

    def children(self, node: int) -> list[int]:
        return self.nodes.children[node].tolist() if self.nodes.regressors[node] > 0 else []

    def labels(self, node: int, most: int) -> tuple[Ids, NDArray[Any]]:
        lists = self.trained.lists(np.array([node]))
        return lists.labels.astype(np.int64), lists.counts

    def size(self, node: int) -> int:
        return len(self.labels(node, 0)[0])

    def rows(self, node: int) -> int:
        return int(self.nodes.totals[node])

    def leaves(self, label: int) -> list[int]:
        found, level = [], [self.root]
        while level:
            lists = self.trained.lists(np.array(level))
            here = [bool((lists.labels[a:b] == label).any()) for a, b in zip(lists.starts, lists.starts[1:])]
            level = [node for node, has in zip(level, here) if has]
            found += [node for node in level if not self.children(node)]
            level = [child for node in level for child in self.children(node)]
        return sorted(found, key=lambda node: -int(self.nodes.totals[node]))

    def columns(self, node: int) -> NDArray[np.uint32] | None:
        return np.arange(self.trained.n_features, dtype=np.uint32) if self.nodes.regressors[node] else None

    def weights(self, node: int, children: Sequence[int], columns: NDArray[np.uint32]) -> NDArray[Any]:
        right = weights_of_features(self.trained.regressors, int(self.nodes.regressors[node]) - 1, 1, columns)[0]
        return np.array([right if child == self.nodes.children[node, 1] else -right for child in children])


class _NodeLabelsView(_NotLinear):
    """Any other tree, from the labels of all its nodes."""

    root = 0

    def __init__(self, nodes: NodeLabels) -> None:
        self.nodes = nodes
        self.parents = {child: node for node, children in enumerate(nodes.children) for child in children}

    def __contains__(self, node: int) -> bool:
        return 0 <= node < len(self.nodes.children)

    def parent(self, node: int) -> int:
        return self.parents.get(node, -1)

    def children(self, node: int) -> Sequence[int]:
        return self.nodes.children[node]

    def labels(self, node: int, most: int) -> tuple[Ids, NDArray[Any] | None]:
        counts = None if self.nodes.counts is None else self.nodes.counts[node]
        return np.asarray(self.nodes.labels[node], dtype=np.int64), counts

    def size(self, node: int) -> int:
        return len(self.nodes.labels[node])

    def rows(self, node: int) -> int | None:
        return None if self.nodes.examples is None else round(self.nodes.examples[node])

    def leaves(self, label: int) -> list[int]:
        return [n for n, labels in enumerate(self.nodes.labels) if not self.nodes.children[n] and label in labels]
