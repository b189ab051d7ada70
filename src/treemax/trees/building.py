"""Build the tree given by the name of a builder or by a hierarchy."""

from __future__ import annotations

from typing import Any

from treemax.inputs.labels import LabelIndex, Targets
from treemax.inputs.rows import SparseRows
from treemax.trees.builders import complete_tree, even_arity, huffman_tree, random_tree
from treemax.trees.hierarchy import is_hierarchy, tree_of
from treemax.trees.kmeans import kmeans_tree, label_vectors
from treemax.trees.refinement import refine_tree
from treemax.trees.tree import Tree

TREES = ("kmeans", "random", "complete", "huffman")


def check_tree(tree: Any) -> None:
    """Raise unless `tree` is the name of a builder or a hierarchy."""
    if not is_hierarchy(tree) and tree not in TREES:
        raise ValueError(f"tree must be one of {', '.join(TREES)}, or a hierarchy, got {tree!r}.")


def build_tree(
    tree: Any,
    rows: SparseRows,
    targets: Targets,
    index: LabelIndex,
    arity: int | str = "auto",
    max_leaf: int = 100,
    vectors: SparseRows | None = None,
    seed: int = 0,
    threads: int = 1,
) -> Tree:
    """Build the tree over the labels of `index` from a hierarchy or with the builder named `tree`.

    `vectors` are label vectors; by default they are computed from the rows.
    """
    n_labels = len(index)
    if is_hierarchy(tree):
        given = tree_of(tree, index)
        if given.n_children.max() <= max_leaf:
            return given
        vectors = vectors or label_vectors(rows, targets, n_labels)
        return refine_tree(given, vectors, max_leaf, seed, threads)
    return named_tree(tree, rows, targets, n_labels, arity, max_leaf, vectors, seed, threads)


def named_tree(
    tree: str,
    rows: SparseRows,
    targets: Targets,
    n_labels: int,
    arity: int | str = "auto",
    max_leaf: int = 100,
    vectors: SparseRows | None = None,
    seed: int = 0,
    threads: int = 1,
) -> Tree:
    """Build a tree over the labels 0 to n_labels - 1 with one of `TREES`."""
    if tree == "huffman":
        return huffman_tree(targets.label_totals(n_labels), 2 if arity == "auto" else int(arity))
    arity = even_arity(n_labels, max_leaf) if arity == "auto" else int(arity)
    if tree == "kmeans":
        vectors = vectors or label_vectors(rows, targets, n_labels)
        return kmeans_tree(vectors, arity, max_leaf, seed, threads)
    if tree == "random":
        return random_tree(n_labels, arity, max_leaf, seed)
    return complete_tree(n_labels, arity, max_leaf)
