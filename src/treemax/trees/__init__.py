"""The tree over the labels, and ways to build one."""

from treemax.trees.builders import complete_tree, even_arity, huffman_tree, random_tree
from treemax.trees.hierarchy import tree_of
from treemax.trees.kmeans import kmeans_tree, label_vectors
from treemax.trees.tree import Tree

__all__ = [
    "Tree",
    "complete_tree",
    "even_arity",
    "huffman_tree",
    "kmeans_tree",
    "label_vectors",
    "random_tree",
    "tree_of",
]
