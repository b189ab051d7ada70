"""Probabilistic label trees, trained in batch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from treemax import modelfile
from treemax.estimators.base import LabelClassifier
from treemax.inference.label_tree import MOST_CHILDREN, Forest, PackedTree
from treemax.inference.linear import sparsified
from treemax.inputs import Rows, SparseRows
from treemax.labels import Targets
from treemax.learning.label_tree import LOSSES, Settings, TreeTraining
from treemax.parameters import check_number
from treemax.progress import progress_bar
from treemax.threads import thread_count
from treemax.trees import (
    Tree,
    complete_tree,
    even_arity,
    huffman_tree,
    kmeans_tree,
    label_vectors,
    random_tree,
)

TREES = ("kmeans", "random", "complete", "huffman")


@modelfile.saveable
class LabelTree(LabelClassifier):
    """A tree over the labels with a classifier at every node: time grows with the logarithm of the labels.

    A probabilistic label tree. The probability of a label is the product of the probabilities along its
    path, each estimated by a linear classifier trained on the rows that reach the node's parent. Children of
    a node are trained together. Multi-class and multi-label, made for sparse text; dense rows work too.

    Parameters
    ----------
    tree : "kmeans", "random", "complete" or "huffman"
        How labels are grouped: by what their examples look like (balanced hierarchical k-means), or without
        looking at them.
    arity : "auto" or int
        Children of an inner node; "auto" makes the tree as shallow as 32 children a node allow (Huffman: 2).
    max_leaf : int
        Labels under one last inner node.
    n_trees : int
        Trees whose probabilities are averaged: more accurate, and as many times larger and slower.
    loss : "auto", "squared_hinge" or "logistic"
        "auto" takes the logistic loss where rows have many labels (more than 5 on average), else the squared
        hinge.
    cost : float
        Weight of an error against the size of the weights (C of support vector machines).
    passes : int
        Passes over the rows of each node.
    threshold : float
        Weights smaller than this are dropped.
    temperature : float
        Divides the calibrated scores of siblings. At 1 the probabilities are those that fit rows held out of
        the training; a little above, errors near the root weigh less and the best labels are found more often.
    beam : int
        Nodes kept at each level in prediction.
    search : "beam" or "exact"
        "exact" finds the true best labels, by uniform-cost search; slower.
    n_jobs : int or None
        Threads, -1 for all cores; the model is the same for any number.
    random_state : int, RandomState or None
        Seed of the clustering and of the order of rows.
    verbose : int
        0 for no progress bar.

    Examples
    --------
    >>> import treemax
    >>> texts = ["red apple", "green apple", "fast car", "red car"] * 5
    >>> X = treemax.HashingText(bits=10).transform(texts)
    >>> model = treemax.LabelTree().fit(X, ["fruit", "fruit", "vehicle", "vehicle"] * 5)
    >>> model.predict(X[:3]).tolist()
    ['fruit', 'fruit', 'vehicle']

    References
    ----------
    Jasinska et al., "Extreme F-measure maximization using sparse probability estimates", 2016.
    Prabhu et al., "Parabel: partitioned label trees for extreme classification", 2018.
    """

    def __init__(
        self,
        tree: str = "kmeans",
        arity: int | str = "auto",
        max_leaf: int = 100,
        n_trees: int = 1,
        loss: str = "auto",
        cost: float = 1.0,
        passes: int = 10,
        threshold: float = 0.1,
        temperature: float = 1.25,
        beam: int = 10,
        search: str = "beam",
        n_jobs: int | None = None,
        random_state: Any = 0,
        verbose: int = 1,
    ) -> None:
        self.tree = tree
        self.arity = arity
        self.max_leaf = max_leaf
        self.n_trees = n_trees
        self.loss = loss
        self.cost = cost
        self.passes = passes
        self.threshold = threshold
        self.temperature = temperature
        self.beam = beam
        self.search = search
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    def _check_parameters(self) -> None:
        for name, choices in (("tree", TREES), ("loss", ("auto", *LOSSES)), ("search", ("beam", "exact"))):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}.")
        if not (isinstance(self.arity, str) and self.arity == "auto"):
            check_number("arity", self.arity, whole=True, least=2, most=MOST_CHILDREN)
        check_number("max_leaf", self.max_leaf, whole=True, least=2, most=MOST_CHILDREN)
        check_number("cost", self.cost, above=0)
        check_number("temperature", self.temperature, least=0.01, most=100)
        check_number("threshold", self.threshold, least=0)
        for name in ("n_trees", "passes"):
            check_number(name, getattr(self, name), whole=True, least=1)
        check_number("beam", self.beam, whole=True, least=1)
        thread_count(self.n_jobs)

    # --- learning ---------------------------------------------------------------------------------------

    def _train(self, rows: Rows, targets: Targets, n_labels: int, multi_label: bool) -> Forest:
        sparse = sparsified(rows)
        seeds = check_random_state(self.random_state).randint(2**31, size=self.n_trees)
        return Forest(
            tuple(self._train_tree(sparse, targets, n_labels, multi_label, int(seed)) for seed in seeds)
        )

    def _train_tree(
        self, rows: SparseRows, targets: Targets, n_labels: int, multi_label: bool, seed: int
    ) -> PackedTree:
        threads = thread_count(self.n_jobs)
        tree = self._tree(rows, targets, n_labels, seed, threads)
        training = TreeTraining(tree, rows, targets, self._settings(targets, multi_label), seed)
        with progress_bar(training.work, "label-tree", "rows", self.verbose) as bar:
            for done in training.run(threads):
                bar.update(done)
        if multi_label:
            link, (slopes, shifts) = "logistic", training.calibration.logistic_slopes()
        else:
            link, slopes = "softmax", training.calibration.softmax_slopes()
            shifts = np.zeros_like(slopes)
        slopes, shifts = slopes / self.temperature, shifts / self.temperature
        return PackedTree.pack(tree, training.weights, link, slopes, shifts)

    def _settings(self, targets: Targets, multi_label: bool) -> Settings:
        loss = self.loss
        if loss == "auto":
            loss = "logistic" if multi_label and len(targets.ids) > 5 * len(targets) else "squared_hinge"
        return Settings(loss, self.cost, self.passes, self.threshold, 20 if self.passes > 1 else 0)

    def _tree(self, rows: SparseRows, targets: Targets, n_labels: int, seed: int, threads: int) -> Tree:
        if self.tree == "huffman":
            counts = np.bincount(targets.ids, minlength=n_labels)
            return huffman_tree(counts, 2 if self.arity == "auto" else int(self.arity))
        arity = even_arity(n_labels, self.max_leaf) if self.arity == "auto" else int(self.arity)
        if self.tree == "kmeans":
            vectors = label_vectors(rows, targets, n_labels)
            return kmeans_tree(vectors, arity, self.max_leaf, seed, threads)
        if self.tree == "random":
            return random_tree(n_labels, arity, self.max_leaf, seed)
        return complete_tree(n_labels, arity, self.max_leaf)

    # --- answering --------------------------------------------------------------------------------------

    def _top(self, rows: Rows, k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        width = None if self.search == "exact" else min(self.beam, len(self.model_.trees[0].tree))
        return self.model_.best(rows, k, width, thread_count(self.n_jobs))

    def _probabilities(self, rows: Rows) -> NDArray[np.float32]:
        return self.model_.probabilities(rows, thread_count(self.n_jobs))

    def describe(self) -> dict[str, Any]:
        """What the model is, in figures."""
        trees = self.model_.trees
        return {
            **super().describe(),
            "trees": len(trees),
            "depth": max(packed.tree.depth for packed in trees),
            "nodes": sum(len(packed.tree) for packed in trees),
            "weights": sum(packed.n_weights for packed in trees),
            "link": trees[0].link,
            "slopes": [round(float(slope), 3) for slope in trees[0].slopes],
        }

    # --- saving -----------------------------------------------------------------------------------------

    def _model_parts(self, resume: bool) -> tuple[dict[str, Any], modelfile.Arrays]:
        trees = self.model_.trees
        arrays: modelfile.Arrays = {}
        for number, packed in enumerate(trees):
            arrays |= modelfile.prefixed(str(number), packed.arrays())
        return {"links": [packed.link for packed in trees]}, arrays

    def _model_from_parts(self, header: dict[str, Any], arrays: modelfile.Arrays) -> Forest:
        trees = tuple(
            PackedTree.from_arrays(modelfile.part(str(number), arrays), link)
            for number, link in enumerate(header["links"])
        )
        if not trees or any(packed.tree.n_labels != len(self.label_index_) for packed in trees):
            raise ValueError("the trees do not fit the labels")
        return Forest(trees)
