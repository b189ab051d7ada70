"""Answers at the nodes of a taxonomy: scores per level, and labels that back off to their parents."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from treemax.inputs.label_values import dtype_for
from treemax.inputs.labels import LabelIndex
from treemax.inputs.rows import Rows, read_only
from treemax.kernels import taxonomies as kernels
from treemax.models.base.label_changes import LabelChanges
from treemax.models.base.thread_safety import SharedEstimator, read_access
from treemax.models.trained.searching import SparseProbabilities
from treemax.numpy_only.topk import TopK, check_k
from treemax.parameters import check_number
from treemax.trees import Taxonomy, Tree, hierarchy_arrays, hierarchy_from_arrays, is_hierarchy, with_names
from treemax.trees.hierarchy import named_nodes, parent_array, parents_by_name

Self = TypeVar("Self", bound="TaxonomyEstimator")
Ids = NDArray[np.int64]
Floats = NDArray[np.float32]

BLOCK_BYTES = 2**26  # size of the probabilities that are computed at once


class Backoff(NamedTuple):
    """Answers of `predict_backoff`, and their probabilities: an entry for each row, a list if it may have several."""

    labels: Any
    scores: Any


class NodesOfLabels(NamedTuple):
    """The nodes of a taxonomy above the labels of a model, sorted by depth.

    Labels that are not in the taxonomy are nodes of level 1 without children.
    """

    names: NDArray[Any]  # and None at the end, for -1
    depths: Ids
    starts: (
        Ids  # the nodes above label l, itself included, are above[starts[l]:starts[l + 1]]; none if it was forgotten
    )
    above: Ids
    parent: Ids  # of every edge, those to deeper children first
    child: Ids

    def levels(self) -> list[slice]:
        """Return the nodes of each level."""
        bounds = np.searchsorted(self.depths, np.arange(1, int(self.depths.max()) + 2)).tolist()
        return [slice(start, stop) for start, stop in pairwise(bounds)]


class TaxonomyEstimator(SharedEstimator):
    """Mixin of the classifiers: answers at the nodes of a taxonomy."""

    label_index_: LabelIndex
    multi_label_: bool
    _changes: LabelChanges
    _taxonomy: Taxonomy | None = None  # that of `set_taxonomy`

    # Methods of the classifier.
    _rows_to_predict: Callable[[Any], Rows]
    _labels_of: Callable[[Ids], NDArray[Any]]
    _best: Callable[[Rows], Ids]
    _all_probabilities: Callable[[Rows], Floats]
    _calibrated_above: Callable[[Rows, float], SparseProbabilities]

    # --- the taxonomy -------------------------------------------------------------------------------------

    @property
    def taxonomy_(self) -> Taxonomy | None:
        """The taxonomy of `set_taxonomy`; else the hierarchy that the model was given as its tree; else None."""
        if self._taxonomy is not None:
            return self._taxonomy
        tree = getattr(self, "tree", None)
        if not is_hierarchy(tree) or isinstance(tree, Tree):
            return None
        if isinstance(tree, Taxonomy):
            return tree
        of_tree, known = self.__dict__.get("_taxonomy_of_tree", (None, None))
        if of_tree is not tree:
            known = Taxonomy(self._named_tree(tree))
            self.__dict__["_taxonomy_of_tree"] = tree, known
        return known

    def _named_tree(self, tree: Any) -> Any:
        """Return the hierarchy with names of labels, where it is a parent array of labels that are strings."""
        if parent_array(tree) is None or not self.label_index_.holds_strings:
            return tree
        return dict(named_nodes(parents_by_name(tree).items(), sorted(self.label_index_.classes.tolist())))

    def set_taxonomy(self: Self, taxonomy: Any) -> Self:
        """Set the taxonomy of `predict_levels` and `predict_backoff`; it is saved with the model, and `fit` keeps it.

        A `Taxonomy`, or a hierarchy of which one can be made; None removes it. The model itself does not change: its
        own tree may be another.
        """
        made = taxonomy if taxonomy is None or isinstance(taxonomy, Taxonomy) else Taxonomy(taxonomy)
        self._with_exclusive_access(type(self)._replace_taxonomy, made)
        return self

    def _replace_taxonomy(self, taxonomy: Taxonomy | None) -> None:
        if taxonomy is not None and "label_index_" in self.__dict__:
            _check_common(taxonomy, self.label_index_.classes.tolist())
        self._taxonomy = taxonomy

    def _taxonomy_with_names(self, names: dict[Any, Any]) -> dict[str, Any]:
        """Return the attribute with the taxonomy, whose nodes have new names."""
        changed = None if self._taxonomy is None else with_names(self._taxonomy, names)
        same = changed is self._taxonomy
        return {} if same else {"_taxonomy": Taxonomy(changed)}

    def _taxonomy_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of the taxonomy for the model file."""
        return {} if self._taxonomy is None else hierarchy_arrays(self._taxonomy)

    def _set_taxonomy_from(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Restore the taxonomy from its arrays, if there is one; raise ValueError if they are invalid."""
        if arrays:
            self._taxonomy = Taxonomy(hierarchy_from_arrays({"names": arrays["names"]}))

    def _required_taxonomy(self) -> Taxonomy:
        """Return the taxonomy; it is built before the call copies the estimator, since a copy could not cache it."""
        check_is_fitted(self, "model_")
        found = self.taxonomy_
        if found is None:
            raise ValueError(
                f"{type(self).__name__} has no taxonomy: call set_taxonomy with a hierarchy of the labels first."
            )
        return found

    # --- answers ------------------------------------------------------------------------------------------

    def predict_levels(self, X: Any, k: int = 5, *, least: float = 0.0) -> list[TopK]:
        """Predict the k most probable nodes of each level of the taxonomy: a `TopK` for each level, the roots first.

        The probability of a node is that of the labels at and below it: their sum or, with several labels per row, the
        probability of at least one if they were independent. No node is more probable than one of its parents. Entries
        without a node are None, with score 0.

        Parameters
        ----------
        X
            Rows, as for `predict`.
        k : int
            Nodes per level.
        least : float
            Labels of smaller probability are left out, which is faster with very many labels; probabilities of inner
            nodes are then lower bounds. By default all labels count.
        """
        check_k(k)
        check_number("least", least, least=0, most=1)
        return self._levels(X, self._required_taxonomy(), int(k), float(least))

    def predict_backoff(self, X: Any, confidence: float = 0.8, *, least: float = 0.0) -> Backoff:
        """Predict the most specific node of the taxonomy that has at least this probability.

        With one label per row this is the most probable label, or else the nearest of its ancestors that is probable
        enough; if none is, the deepest node elsewhere that is; None if there is none. With several labels per row, the
        answer is a list: all nodes that are probable enough and have no child that is. Probabilities and `least` are as
        in `predict_levels`.
        """
        check_number("confidence", confidence, least=0, most=1)
        check_number("least", least, least=0, most=1)
        return self._backed_off(X, self._required_taxonomy(), float(confidence), float(least))

    @read_access
    def _levels(self, X: Any, taxonomy: Taxonomy, k: int, least: float) -> list[TopK]:
        rows = self._rows_to_predict(X)
        nodes = self._nodes_of_labels(taxonomy)
        widths = [(level, min(k, level.stop - level.start)) for level in nodes.levels()]
        found = [(np.empty((len(rows), n), np.int64), np.empty((len(rows), n), np.float32)) for _, n in widths]
        for block, probabilities in self._node_probabilities(rows, nodes, least):
            for (level, _), (ids, scores) in zip(widths, found):
                kernels.best_of_level(probabilities[:, level], ids[block], scores[block])
        places = [np.where(ids < 0, -1, level.start + ids) for (level, _), (ids, _) in zip(widths, found)]
        return [TopK(_compact(nodes.names[place]), scores) for place, (_, scores) in zip(places, found)]

    @read_access
    def _backed_off(self, X: Any, taxonomy: Taxonomy, confidence: float, least: float) -> Backoff:
        rows = self._rows_to_predict(X)
        nodes = self._nodes_of_labels(taxonomy)
        if self.multi_label_:
            return self._backed_off_lists(rows, nodes, confidence, least)
        answers, scores = np.empty(len(rows), np.int64), np.empty(len(rows), np.float32)
        labels = self._best(rows)
        for block, probabilities in self._node_probabilities(rows, nodes, least):
            kernels.back_off(
                probabilities, labels[block], nodes.starts, nodes.above, nodes.depths, np.float32(confidence),
                answers[block],
            )  # fmt: skip
            of_answers = probabilities[np.arange(len(probabilities)), answers[block]]
            scores[block] = np.where(answers[block] < 0, np.float32(0.0), of_answers)
        return Backoff(_compact(nodes.names[answers]), scores)

    def _backed_off_lists(self, rows: Rows, nodes: NodesOfLabels, confidence: float, least: float) -> Backoff:
        labels: list[list[Any]] = []
        scores: list[list[float]] = []
        for _, probabilities in self._node_probabilities(rows, nodes, least):
            marked = np.empty(probabilities.shape, dtype=np.bool_)
            kernels.most_specific(probabilities, nodes.parent, nodes.child, np.float32(confidence), marked)
            marked &= probabilities > 0
            for row_probabilities, chosen in zip(probabilities, marked):
                found = np.flatnonzero(chosen)
                found = found[np.argsort(-row_probabilities[found], kind="stable")]
                labels.append(nodes.names[found].tolist())
                scores.append(row_probabilities[found].tolist())
        return Backoff(labels, scores)

    def _node_probabilities(self, rows: Rows, nodes: NodesOfLabels, least: float) -> Any:
        """Yield slices of the rows, and the probabilities of all nodes for these."""
        per_row = 4 * (len(nodes.depths) + (0 if least else len(self.label_index_)))
        size = int(np.clip(BLOCK_BYTES // per_row, 1, 4096))
        union = np.bool_(self.multi_label_)
        for start in range(0, len(rows), size):
            block = slice(start, min(start + size, len(rows)))
            of_block = rows[block]
            out = np.empty((block.stop - block.start, len(nodes.depths)), dtype=np.float32)
            structure = (nodes.starts, nodes.above, nodes.parent, nodes.child, union)
            if least:
                row_of, ids, probabilities = self._calibrated_above(of_block, least)
                row_starts = np.searchsorted(row_of, np.arange(len(out) + 1))
                kernels.node_probabilities_of_some(row_starts, ids, probabilities, *structure, out)
            else:
                kernels.node_probabilities(self._all_probabilities(of_block), *structure, out)
            yield block, out

    def _nodes_of_labels(self, taxonomy: Taxonomy) -> NodesOfLabels:
        """Return the nodes above the labels, kept for the next call while labels stay the same."""
        index, changes = self.label_index_, self._changes
        n_labels, of_changes, known = taxonomy._bindings.get(index, (0, None, None))
        if known is None or n_labels != len(index) or of_changes is not changes:
            n_labels = len(index)
            known = _nodes_of_labels(taxonomy, index.classes.tolist()[:n_labels], changes)
            taxonomy._bindings[index] = n_labels, changes, known
        return known


def _nodes_of_labels(taxonomy: Taxonomy, labels: list[Any], changes: LabelChanges) -> NodesOfLabels:
    """Return the nodes of a taxonomy above the labels that are answered."""
    _check_common(taxonomy, labels)
    hidden = np.zeros(len(labels), dtype=bool)
    hidden[[*changes.forgotten, *changes.merged]] = True
    if hidden.any():  # categories that are answered no longer, as if the taxonomy did not have them
        taxonomy = Taxonomy(with_names(taxonomy, {labels[i]: None for i in np.flatnonzero(hidden)}))
    node_of = taxonomy.nodes_of(labels)
    node_of[hidden] = -1
    known = np.flatnonzero(node_of >= 0)
    position, above, _ = taxonomy.above.of(node_of[known])
    outside = np.flatnonzero((node_of < 0) & ~hidden)
    used = np.unique(above)
    # Labels outside the taxonomy come first, with the other nodes of level 1.
    number = np.empty(len(taxonomy), dtype=np.int64)
    number[used] = len(outside) + np.arange(len(used))
    names = np.empty(len(outside) + len(used) + 1, dtype=object)
    names[:-1] = [labels[i] for i in outside] + [taxonomy.names[i] for i in used]
    depths = np.concatenate([np.ones(len(outside), np.int64), taxonomy.depths[used]])
    label_of = np.concatenate([known[position], outside])
    order = np.argsort(label_of, kind="stable")
    of_labels = np.concatenate([number[above], np.arange(len(outside))])[order]
    starts = np.searchsorted(label_of[order], np.arange(len(labels) + 1))
    edges = taxonomy.edges[np.isin(taxonomy.edges[:, 1], used)] if len(taxonomy.edges) else taxonomy.edges
    edges = edges[np.argsort(-taxonomy.depths[edges[:, 1]], kind="stable")]
    arrays = (depths, starts, of_labels, number[edges[:, 0]], number[edges[:, 1]])
    return NodesOfLabels(names, *(read_only(np.ascontiguousarray(array)) for array in arrays))


def _check_common(taxonomy: Taxonomy, labels: list[Any]) -> None:
    """Raise unless the taxonomy has one of the labels."""
    if len(taxonomy) and not any(label in taxonomy for label in labels):
        raise ValueError(
            f"The taxonomy has none of the {len(labels)} labels: they are like {labels[0]!r}, its nodes like "
            f"{taxonomy.names[-1]!r}."
        )


def _compact(names: NDArray[Any]) -> NDArray[Any]:
    """Return names as an array of strings or integers if all are, else of objects."""
    kinds = {type(name) for name in names.flat}
    if kinds == {int}:
        return names.astype(np.int64)
    return names.astype(dtype_for(names.flat, np.dtype(str))) if kinds == {str} else names
