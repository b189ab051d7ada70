"""The tree of a model, a node at a time, for the page: children, labels, words with the largest weights, rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.rows import read_only
from treemax.modelfile import without_changes
from treemax.models.base.explaining import frequent_labels
from treemax.serving.tree_views import TreeView, views_of

MOST_CHILDREN = 500  # maximum number of children in one answer
SHOWN_LABELS = 3  # labels shown per child
NODE_LABELS = 24  # labels shown for the node itself
WORDS = 6
GRANDCHILDREN = 32  # maximum per child, and
ALL_GRANDCHILDREN = 640  # maximum in one answer
MOST_PATHS = 8  # maximum number of paths to a label that is at several leaves
ENTRIES_AT_ONCE = 2**22  # weights held while the largest are found


def has_tree(model: Any) -> bool:
    """Return whether a model, or the estimator of a `TextModel`, has a tree over its labels."""
    model = getattr(model, "estimator", model)
    return hasattr(model, "label_tree") or hasattr(model, "node_labels")


def node_outline(model: Any, node: str | int = "0", offset: int = 0, limit: int = 100) -> dict[str, Any]:
    """Describe a node of a model's tree, with `limit` of its children, or of the labels of a leaf, from `offset` on.

    Nodes have the numbers of `Explanation`. The node of another tree than the first is written as tree and node, such
    as "2.17"; "root" is the root of the first tree. Takes time in proportion to what is answered, not to the tree.

    Returns
    -------
    dict
        `id`, `tree`, `n_trees`, `parent` (None for the root), `path` (the nodes above, from the root), `n_labels`
        below it, `rows` (training rows below it; None where unknown), `rows_are` ("rows", or "labels" where rows have
        several labels and count once for each), `error` (None: `treemax explore` measures it), `labels` (the most
        frequent), `words` (pairs of word and weight, largest first; None where the decision is not linear or features
        have no names), `n_children`, `offset`, and `children`: dicts of `id`, `n_labels`, `rows`, `labels`, `words`,
        `leaf`, and `children` as pairs of id and number of labels.

    Examples
    --------
    >>> import treemax
    >>> model = treemax.TextModel().fit(["red apple", "green pear", "fast car"], ["apple", "pear", "car"])
    >>> node = node_outline(model)
    >>> node["n_labels"], node["rows"], sorted(child["labels"][0] for child in node["children"])
    (3, 3, ['apple', 'car', 'pear'])
    """
    return _answered(model, lambda trees: trees.outline(node, offset, limit))


def path_of(model: Any, label: Any) -> dict[str, Any]:
    """Return the nodes from the root to a label.

    Returns
    -------
    dict
        `label`, `n_paths`, and `paths`: for each tree, and each leaf that has the label (the eight with the most rows),
        `tree` and `nodes`, from the root to the leaf, with `id`, `n_labels`, `rows` and `labels`.
    """
    return _answered(model, lambda trees: trees.paths(label))


def _answered(model: Any, work: Any) -> dict[str, Any]:
    if not has_tree(model):
        name = type(getattr(model, "estimator", model)).__name__
        raise ValueError(f"{name} has no tree over its labels.")
    words = _Words(getattr(model, "vectorizer", None))
    result: dict[str, Any] = without_changes(getattr(model, "estimator", model), lambda kept: work(_Trees(kept, words)))
    return result


class _Words:
    """The names of features, from a vectoriser of texts."""

    def __init__(self, vectorizer: Any) -> None:
        self.terms = getattr(vectorizer, "terms_", None)  # of TfidfText: no other names are made than those asked for
        self.names = None
        if self.terms is None and hasattr(vectorizer, "get_feature_names_out"):
            self.names = vectorizer.get_feature_names_out()

    @property
    def known(self) -> bool:
        return self.terms is not None or self.names is not None

    def of(self, columns: Sequence[int]) -> list[str]:
        if self.terms is not None:
            return [str(word) for word in self.terms.labels(np.asarray(columns, dtype=np.int64))]
        assert self.names is not None
        return [str(self.names[column]) for column in columns]


class _Place(NamedTuple):
    """A node and its tree."""

    tree: int
    node: int

    def __str__(self) -> str:
        return f"{self.tree}.{self.node}" if self.tree else str(self.node)


class _Trees:
    """The trees of an estimator that does not change meanwhile."""

    def __init__(self, model: Any, words: _Words) -> None:
        self.model, self.words, self.views = model, words, views_of(model)
        changes = model._changes if hasattr(model, "_changes") else None
        self.hidden = np.fromiter(changes.forgotten if changes is not None else (), np.int64)

    def outline(self, node: str | int, offset: int, limit: int) -> dict[str, Any]:
        place = self._place(node)
        for name, value in (("offset", offset), ("limit", limit)):
            if not isinstance(value, int) or value < 0:
                raise ValueError(f"{name} must be a whole number of at least 0, got {value!r}.")
        view, path = self.views[place.tree], [*self._above(place)][::-1]
        children = view.children(place.node)
        some = list(children[offset : offset + min(limit, MOST_CHILDREN)])
        own_words = self._words(view, path[-1].node, [place.node])[0] if path else None
        of_children = self._words(view, place.node, some)
        n_shown = min(GRANDCHILDREN, ALL_GRANDCHILDREN // max(1, len(some)))
        return {
            **self._node(place, NODE_LABELS if children else min(limit, MOST_CHILDREN), 0 if children else offset),
            "tree": place.tree,
            "n_trees": len(self.views),
            "parent": str(path[-1]) if path else None,
            "path": [str(above) for above in path],
            "rows_are": "labels" if getattr(self.model, "multi_label_", False) else "rows",
            "error": None,
            "words": own_words,
            "n_children": len(children),
            "offset": offset,
            "children": [
                {
                    **self._node(_Place(place.tree, child), SHOWN_LABELS),
                    "words": words,
                    **self._grandchildren(view, place.tree, child, n_shown),
                }
                for child, words in zip(some, of_children)
            ],
        }

    def paths(self, label: Any) -> dict[str, Any]:
        number = self._id(label)
        ends = [_Place(tree, leaf) for tree, view in enumerate(self.views) for leaf in view.leaves(number)]
        paths = [
            {"tree": end.tree, "nodes": [self._node(p, SHOWN_LABELS) for p in (*[*self._above(end)][::-1], end)]}
            for end in ends[:MOST_PATHS]
        ]
        return {"label": self._names([number])[0], "n_paths": len(ends), "paths": paths}

    def _id(self, label: Any) -> int:
        index = self.model.label_index_
        number = int(index.ids([label])[0])
        if number < 0 and isinstance(label, str) and not index.holds_strings and label.lstrip("-").isdecimal():
            number = int(index.ids([int(label)])[0])
        if number < 0 or number in self.hidden:
            raise ValueError(f"The model has no label {label!r}.")
        return number

    def _place(self, node: str | int) -> _Place:
        if node == "root":
            return _Place(0, self.views[0].root)
        tree, _, number = str(node).rpartition(".")
        if not (number.isdecimal() and len(number) < 18 and (tree or "0").isdecimal() and len(tree) < 18):
            raise ValueError(f"node must be a number, or tree.number, got {node!r:.60}.")
        place = _Place(int(tree or 0), int(number))
        if place.tree >= len(self.views) or place.node not in self.views[place.tree]:
            raise ValueError(f"The tree has no node {node!r:.60}; its root is {self._place('root')}.")
        return place

    def _above(self, place: _Place) -> Any:
        view, node = self.views[place.tree], place.node
        while (node := view.parent(node)) >= 0:
            yield _Place(place.tree, node)

    def _node(self, place: _Place, n_labels: int, offset: int = 0) -> dict[str, Any]:
        view = self.views[place.tree]
        found, counts = view.labels(place.node, offset + n_labels + len(self.hidden))
        if counts is None:
            counts = self.model.label_counts_[found]
        ids = frequent_labels(found, counts, self.hidden, offset + n_labels)[offset:]
        return {
            "id": str(place),
            "n_labels": view.size(place.node),
            "rows": view.rows(place.node),
            "labels": self._names(ids),
        }

    def _names(self, ids: Any) -> list[Any]:
        names: list[Any] = self.model.label_index_.labels(np.asarray(ids, dtype=np.int64)).tolist()
        return names

    def _grandchildren(self, view: TreeView, tree: int, child: int, most: int) -> dict[str, Any]:
        below = view.children(child)
        pairs = [[str(_Place(tree, node)), view.size(node)] for node in below[:most]]
        return {"leaf": len(below) == 0, "n_children": len(below), "children": pairs}

    def _words(self, view: TreeView, node: int, children: list[int]) -> list[list[list[Any]] | None]:
        """Return the features with the largest weights for each of some children of a node."""
        columns = view.columns(node) if self.words.known and children else None
        if columns is None:
            return [None] * len(children)
        found = []
        step = max(1, ENTRIES_AT_ONCE // max(1, len(columns)))
        for start in range(0, len(children), step):
            weights = view.weights(node, children[start : start + step], read_only(columns))
            found += [_largest(of_child, columns) for of_child in weights]
        numbers = self.model._feature_numbers
        ids = [c if numbers is None else numbers.id_of(c) for largest, _ in found for c in largest.tolist()]
        names = iter(self.words.of(ids))
        return [[[next(names), round(weight, 4)] for weight in values.tolist()] for _, values in found]


def _largest(weights: NDArray[Any], columns: NDArray[np.uint32]) -> tuple[NDArray[np.uint32], NDArray[Any]]:
    """Return the columns of the largest positive weights, and these."""
    best = np.argpartition(weights, -WORDS)[-WORDS:] if len(weights) > WORDS else np.arange(len(weights))
    best = best[np.lexsort((columns[best], -weights[best]))]
    best = best[weights[best] > 0]
    return columns[best], weights[best].astype(np.float64)
