"""The tree over the labels, and ways to build one."""

from treemax.trees.builders import complete_tree, even_arity, frequent_at_root_tree, huffman_tree, random_tree
from treemax.trees.building import TREES, build_tree, check_tree, named_tree
from treemax.trees.features import combined_vectors, given_vectors, unseen_labels
from treemax.trees.hierarchy import (
    hierarchy_arrays,
    hierarchy_from_arrays,
    is_hierarchy,
    parents_by_name,
    tree_of,
    with_names,
)
from treemax.trees.hierarchy_files import read_hierarchy
from treemax.trees.kmeans import kmeans_tree, label_vectors
from treemax.trees.node_labels import NodeLabels
from treemax.trees.refinement import refine_tree
from treemax.trees.taxonomy import Taxonomy
from treemax.trees.tree import Tree

__all__ = [
    "TREES",
    "NodeLabels",
    "Taxonomy",
    "Tree",
    "build_tree",
    "check_tree",
    "combined_vectors",
    "complete_tree",
    "even_arity",
    "frequent_at_root_tree",
    "given_vectors",
    "hierarchy_arrays",
    "hierarchy_from_arrays",
    "huffman_tree",
    "is_hierarchy",
    "kmeans_tree",
    "label_vectors",
    "named_tree",
    "parents_by_name",
    "random_tree",
    "read_hierarchy",
    "refine_tree",
    "tree_of",
    "unseen_labels",
    "with_names",
]
