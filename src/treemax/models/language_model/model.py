"""A trained log-bilinear language model: embeddings of words, transitions, and a tree over the words."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.rows import SparseRows
from treemax.models.language_model import kernels
from treemax.models.learned_tree.model import LearnedTreeModel, padded, vectors_of
from treemax.models.learned_tree.quality import NodeQuality, nodes_with_quality
from treemax.models.trained.parts import expect, real_number, truth, whole_number
from treemax.models.trained.searching import empty_top_k
from treemax.parallel.threads import one_blas_thread, run_all
from treemax.trees import Tree

Floats = NDArray[np.float32]
Words = NDArray[np.uint32]

NUMBERS_AT_ONCE = 2**22  # bounds the memory of representations or scores
MAX_CONTEXTS_AT_ONCE = 2048


def represent(words: Floats, transitions: Floats) -> Floats:
    """Return representations r_x = sum_k R_k U_w(k) of contexts, from the embeddings [contexts, T, width] of their
    words.

    `transitions` is [T * width, width], the stacked transposed matrices, or [T, width], their diagonals.
    """
    n, length, width = words.shape
    if len(transitions) == length * width:
        return words.reshape(n, length * width) @ transitions
    return np.ascontiguousarray(np.einsum("ntw,tw->nw", words, transitions))


@dataclass(frozen=True)
class LanguageModel:
    """Embeddings of the words and, last, of the padding before a text; transitions; and the tree with its vectors.

    A tree of depth one is computed as a softmax over all words.
    """

    tree: Tree
    dimension: int
    embeddings: Floats
    transitions: Floats
    length: int  # of a context
    weights: Floats
    biases: Floats
    quality: NodeQuality | None = None  # of the splits, at the end of the training; None if flat

    @cached_property
    def is_flat(self) -> bool:
        """Whether all words are children of the root, in order."""
        n = self.tree.n_labels
        return n > 2 and len(self.tree) == n + 1 and bool((self.tree.label[1:] == np.arange(n)).all())

    def represent(self, contexts: Words) -> Floats:
        """Return the representations of contexts."""
        words = self.embeddings[contexts.ravel()].reshape(*contexts.shape, -1)
        return represent(words, self.transitions)

    # --- answers ----------------------------------------------------------------------------------------

    def log_probabilities(self, contexts: Words, targets: Words, threads: int = 1) -> Floats:
        """Return log p of the word that follows each context."""
        out = np.empty(len(targets), dtype=np.float32)

        def work(part: slice) -> None:
            if self.is_flat:
                scores = self.represent(contexts[part]) @ self.weights.T
                kernels.flat_errors(scores, self.biases, targets[part], out[part])
                return
            searched, rows = self._as_rows(contexts[part])
            chosen = searched.of_labels(rows, targets[part].astype(np.int64)[:, None])[:, 0]
            out[part] = np.log(np.maximum(chosen, np.finfo(np.float32).tiny))

        self._in_parts(len(targets), work, threads)
        return out

    def top_k(self, contexts: Words, k: int, threads: int = 1) -> tuple[NDArray[np.int64], Floats]:
        """Return the k most probable words after each context, by exact search."""
        ids, probabilities = empty_top_k(len(contexts), k)

        def work(part: slice) -> None:
            if self.is_flat:
                of_all = self._of_all(contexts[part])
                some = np.argpartition(-of_all, k - 1, axis=1)[:, :k]
                chosen = np.take_along_axis(of_all, some, axis=1)
                order = np.lexsort((some, -chosen), axis=1)
                ids[part] = np.take_along_axis(some, order, axis=1)
                probabilities[part] = np.take_along_axis(chosen, order, axis=1)
                return
            searched, rows = self._as_rows(contexts[part])
            ids[part], probabilities[part] = searched.top_k(rows, k)

        self._in_parts(len(contexts), work, threads)
        return ids, probabilities

    def probabilities(self, contexts: Words, threads: int = 1) -> Floats:
        """Return the probability of every word after each context."""
        out = np.empty((len(contexts), self.tree.n_labels), dtype=np.float32)

        def work(part: slice) -> None:
            out[part] = self._of_all(contexts[part])

        self._in_parts(len(contexts), work, threads)
        return out

    def _of_all(self, contexts: Words) -> Floats:
        if not self.is_flat:
            searched, rows = self._as_rows(contexts)
            return searched.probabilities(rows)
        scores = self.represent(contexts) @ self.weights.T
        scores += self.biases
        scores -= scores.max(axis=1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=1, keepdims=True)
        return scores

    def _as_rows(self, contexts: Words) -> tuple[LearnedTreeModel, SparseRows]:
        """Return a learned tree and rows for its search: row i has one feature, embedded as representation i."""
        hidden = self.represent(contexts)
        n = len(hidden)
        rows = SparseRows(np.arange(n + 1), np.arange(n, dtype=np.uint32), np.ones(n, dtype=np.float32), n)
        return self.learned_tree(hidden), rows

    def learned_tree(self, hidden: Floats) -> LearnedTreeModel:
        """Return the same tree with these representations as embeddings."""
        return LearnedTreeModel(self.tree, self.dimension, len(hidden), None, hidden, self.weights, self.biases)

    def _in_parts(self, n: int, work: Any, threads: int) -> None:
        widest = self.tree.n_labels if self.is_flat else self.length * self.embeddings.shape[1]
        at_once = min(MAX_CONTEXTS_AT_ONCE, max(1, NUMBERS_AT_ONCE // widest))
        with one_blas_thread():
            run_all([slice(at, min(n, at + at_once)) for at in range(0, n, at_once)], work, threads)

    # --- to a file and back -----------------------------------------------------------------------------

    def to_parts(self, resume: bool = False) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return a JSON-serialisable header and arrays."""
        arrays = {f"tree/{name}": array for name, array in self.tree.arrays().items()}
        arrays |= {"embeddings": self.embeddings, "transitions": self.transitions}
        arrays |= {"weights": self.weights, "biases": self.biases}
        full = len(self.transitions) != self.length
        header: dict[str, Any] = {"dimension": self.dimension, "length": self.length, "full": full}
        if self.quality is not None:  # the nodes are those of the tree
            header["quality"] = [[float(f"{x:.6g}") for x in array] for array in self.quality[1:]]
        return header, arrays

    @classmethod
    def from_parts(cls, header: dict[str, Any], arrays: dict[str, NDArray[Any]], n_words: int) -> LanguageModel:
        """Restore a model from `to_parts`; raises ValueError if the parts are inconsistent."""
        tree = Tree.from_arrays(
            {name.removeprefix("tree/"): arrays[name] for name in ("tree/n_children", "tree/label")}
        )
        if tree.n_labels != n_words:
            raise ValueError("the tree does not match the words")
        dimension, length = (whole_number(name, header[name], least=1) for name in ("dimension", "length"))
        width, n_vectors = padded(dimension), int(vectors_of(tree.n_children).sum())
        return cls(
            tree, dimension,
            expect(arrays, "embeddings", np.float32, (n_words + 1, width)),
            expect(arrays, "transitions", np.float32, (length * width if truth("full", header["full"]) else length, width)),
            length,
            expect(arrays, "weights", np.float32, (n_vectors, width)),
            expect(arrays, "biases", np.float32, (n_vectors,)),
            _quality_from_header(header.get("quality"), tree),
        )  # fmt: skip


def _quality_from_header(saved: Any, tree: Tree) -> NodeQuality | None:
    """Restore the quality of the splits; raises ValueError if it does not fit the tree."""
    if saved is None:
        return None
    nodes, n_arrays = nodes_with_quality(tree), len(NodeQuality._fields) - 1
    fits = isinstance(saved, list) and len(saved) == n_arrays
    if not fits or any(not isinstance(array, list) or len(array) != len(nodes) for array in saved):
        raise ValueError("the quality of the splits does not fit the tree")
    return NodeQuality(nodes, *(np.array([real_number("quality", x) for x in array]) for array in saved))
