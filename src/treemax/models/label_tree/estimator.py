"""Probabilistic label trees, trained in batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from sklearn.utils import check_random_state

from treemax import modelfile
from treemax.inputs.conversions import sparsified
from treemax.inputs.labels import LabelIndex, RaggedLabels, Targets
from treemax.inputs.rows import Rows, SparseRows
from treemax.inputs.weights import check_known_labels, with_class_weight
from treemax.memory import parse_bytes
from treemax.models.base.classifier import TrainingInterrupted
from treemax.models.base.empty_rows import empty_rows
from treemax.models.base.hierarchies import WithHierarchy
from treemax.models.base.new_labels import NewLabels, places_of
from treemax.models.base.thread_safety import snapshot_access
from treemax.models.label_tree.choices import default_cost
from treemax.models.label_tree.model import LabelTreeModel
from treemax.models.label_tree.new_labels import Addition, with_new_labels
from treemax.models.label_tree.nodes import LOSSES, PENALTIES, LabelTreeSettings, RowsInMemory
from treemax.models.label_tree.out_of_core import RowsOnDisk, memory_budget
from treemax.models.label_tree.packed_tree import MOST_CHILDREN
from treemax.models.label_tree.training import Plan, train_label_tree
from treemax.models.training.stored_examples import Source, stored_rows, training_labels
from treemax.models.training.stored_rows import StoredRows
from treemax.parallel.checkpoints import checkpoints_enabled
from treemax.parallel.pools import cluster_in_use
from treemax.parallel.threads import thread_count
from treemax.parameters import check_choice, check_number, is_auto
from treemax.trees import Tree, check_tree, combined_vectors, given_vectors, is_hierarchy, unseen_labels

MAX_LEAF, MAX_LEAF_OF_FOREST = 150, 60  # labels below a node; of several trees, if rows have one label
COST_OF_TEXTS = (
    8.0  # cost of the features of an unseen label, in examples: a larger one finds more unseen labels and fewer others
)


@modelfile.saveable
@dataclass(kw_only=True, eq=False, repr=False)
class LabelTree(WithHierarchy):
    """Probabilistic label tree: time is logarithmic in the number of labels.

    The probability of a label is the product of the probabilities along its path, each estimated by a linear
    classifier trained on the rows that reach the node's parent. Multi-class and multi-label, made for sparse text;
    dense rows work too. `as_published` gives Parabel with one tree, except that probabilities are always calibrated.

    Parameters
    ----------
    tree : "kmeans", "random", "complete", "huffman", or a hierarchy
        How labels are grouped: by balanced hierarchical k-means of their examples, independently of the examples, or
        by a given hierarchy: pairs (parent, child), a nested dictionary, a dictionary from child to parent, a parent
        array or a `treemax.trees.Tree`.
    max_leaf : "auto" or int
        Maximum number of labels below a lowest inner node: "auto" is 150, or 60 with several trees and one label per row.
        A node of a given hierarchy with more children is divided.
    n_trees : int
        Number of trees whose probabilities are averaged: more accurate, but size and time grow with it.
    loss : "squared_hinge" or "logistic"
        Loss of the node classifiers.
    penalty : "l2" or "l1"
        Regularisation of the node classifiers: "l1" makes most weights zero, for a much smaller model that takes
        longer to train.
    cost : "auto" or float
        Inverse regularisation strength (C of support vector machines). "auto" chooses it for the nodes above labels,
        on held-out rows; the other nodes, and all with penalty "l1", have 1 for the squared hinge and 9 for the
        logistic loss.
    passes : int
        Maximum number of passes over the rows of each node; fewer on convergence.
    threshold : float
        Weights smaller than this are dropped.
    precision : "bfloat16" or "int8"
        Precision of the weights. With "int8" the file has mostly about two fifths of the size, and is read into memory
        instead of memory-mapped.
    beam : int
        Beam width: nodes kept at each level in prediction.
    n_jobs : int or None
        Threads, -1 for all cores; the model does not depend on it.
    random_state : int, RandomState or None
        Seed of the clustering and of the order of rows.
    verbose : int
        0 for no progress bar.

    For reproducing the paper
    -------------------------
    arity : "auto" or int
        Children of an inner node; "auto" gives the shallowest tree with at most 32 children per node (Huffman: 2).
    temperature : "auto" or float
        Divides the calibrated scores of siblings: above 1, errors near the root have less effect on the ranking of
        the labels. "auto" chooses it on held-out rows. The probabilities are calibrated after that.
    search : "beam" or "exact"
        "exact" finds the true best labels, by uniform-cost search; slower.
    hard_negatives : float
        Rows that are added to the nodes above labels as negative examples, as a share of the rows of these nodes: those
        that the nodes above find most probable, although they have no label there. 0 for none.

    Other Parameters
    ----------------
    class_weight : None, "balanced" or dict
        Weights of labels, by which those of their rows are multiplied; in multi-label problems the cost of the label
        in its rows. "balanced" is inversely proportional to the frequency.

    Attributes
    ----------
    calibration_ : Calibration
        Calibration of scores to probabilities, fitted on held-out rows (none with one pass).
    loss_ : str
        The loss of the node classifiers.
    cost_ : float
        The cost of the nodes above labels.
    temperature_ : float
        The temperature.
    threshold_ : float
        The probability from which a multi-label `predict` returns a label, chosen on held-out rows; it may be set.

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

    supports_distributed = supports_weights = supports_relevance = supports_compact = True
    _PUBLISHED: ClassVar[dict[str, Any]] = {
        "tree": "kmeans",
        "arity": 2,
        "max_leaf": 100,
        "n_trees": 1,
        "loss": "squared_hinge",
        "penalty": "l2",
        "cost": 1.0,
        "passes": 20,
        "threshold": 0.1,
        "temperature": 1.0,
        "beam": 10,
        "search": "beam",
        "hard_negatives": 0.0,
    }

    tree: Any = "kmeans"
    arity: int | str = "auto"
    max_leaf: int | str = "auto"
    n_trees: int = 1
    loss: str = "squared_hinge"
    penalty: str = "l2"
    cost: float | str = "auto"
    passes: int = 10
    threshold: float = 0.1
    precision: str = "bfloat16"
    temperature: float | str = "auto"
    beam: int = 10
    search: str = "beam"
    hard_negatives: float = 0.5
    n_jobs: int | None = None
    random_state: Any = 0
    verbose: int = 1
    class_weight: Any = None

    def _check_parameters(self) -> None:
        choices_of = {
            "loss": tuple(LOSSES),
            "penalty": PENALTIES,
            "precision": ("bfloat16", "int8"),
            "search": ("beam", "exact"),
        }
        for name, choices in choices_of.items():
            check_choice(name, getattr(self, name), choices)
        check_tree(self.tree)
        check_number("arity", self.arity, whole=True, least=2, most=MOST_CHILDREN, auto=True)
        check_number("max_leaf", self.max_leaf, whole=True, least=2, most=MOST_CHILDREN, auto=True)
        check_number("cost", self.cost, above=0, auto=True)
        check_number("temperature", self.temperature, least=0.01, most=100, auto=True)
        check_number("threshold", self.threshold, least=0)
        check_number("hard_negatives", self.hard_negatives, least=0)
        for name in ("n_trees", "passes"):
            check_number(name, getattr(self, name), whole=True, least=1)
        check_number("beam", self.beam, whole=True, least=1)

    # --- learning ---------------------------------------------------------------------------------------

    def fit(  # type: ignore[override]
        self,
        X: Any,
        y: Any,
        label_features: Any = None,
        sample_weight: Any = None,
        label_share: float = 1.0,
        add_unseen: bool = False,
    ) -> LabelTree:
        """Train a new model; an earlier one is replaced only when training succeeds.

        X: matrix, data frame or any SciPy sparse format. y: a vector of strings or integers (multi-class), or
        a list of label lists or an indicator matrix (multi-label). `label_features`, if given, are clustered instead of
        the labels' examples: a mapping from label to features, or a pair (labels, matrix). `sample_weight`: a number for
        each row, by which its cost is multiplied; rows of weight zero are left out. With `label_share` below 1, labels are
        clustered by both, and `label_features` have this share of the similarity. With `add_unseen`, labels that
        are only in `label_features`, which must have the features of X, can be answered too: their features are their one example
        in `add_labels`.
        """
        check_number("label_share", label_share, above=0, most=1)
        if label_features is None and (label_share < 1 or add_unseen):
            raise ValueError("label_share and add_unseen need label_features.")
        self._fit(X, y, sample_weight, label_features=label_features, label_share=label_share)
        if add_unseen:
            labels, rows = unseen_labels(label_features, self.label_index_)
            if labels:
                y = [[label] for label in labels] if self.multi_label_ else labels
                self._with_exclusive_access(type(self)._add_labels, rows, y, None, None, COST_OF_TEXTS)
        return self

    def fit_file(
        self, source: Any, *, memory: int | str = "2GB", folder: Any = None, label_features: Any = None, **reading: Any
    ) -> LabelTree:
        """Train on data that may be larger than memory; the model equals that of `fit`, bit for bit.

        `source` is a file, a folder of files, a table or a data set: anything that `treemax.formats.open_examples`
        takes and that can be read twice, with its options as `reading`; weights in it are those of the rows. Rows are stored in temporary files in `folder`
        (default: Python's folder for them; it should be on a disk), 16 bytes per entry in all. `memory` limits the
        memory of the process during training, without the packed model. In multi-class data, rows without a label are
        dropped. For texts use `TextModel.fit_file`.
        """
        limit = self._check_fit_file(memory)
        data = Source(source, self.verbose, reading)
        if data.overview.texts:
            raise ValueError(f"{data.name} holds texts: wrap the estimator in a TextModel, and call its fit_file.")
        stored = stored_rows(data, lambda X: X, data.overview.n_features, folder)
        return self._fit_stored(stored, data, limit, label_features)

    def _check_fit_file(self, memory: int | str) -> int:
        """Raise if `fit_file` is not possible, before the data are read; return the memory in bytes."""
        self._check_when_used()
        if cluster_in_use() or checkpoints_enabled():
            raise ValueError("fit_file supports neither clusters nor checkpoints; use fit for these.")
        return parse_bytes(memory)

    def _fit_stored(self, stored: StoredRows, data: Source, memory: int, label_features: Any = None) -> LabelTree:
        """Train on rows stored by `stored_rows`."""
        index, multi_label = data.overview.index, data.overview.multi_label
        check_known_labels(self.class_weight, index)
        targets = with_class_weight(stored.targets, self.class_weight, index, multi_label)
        self._check_relevance(targets)
        stored = replace(stored, targets=targets)
        budget = memory_budget(memory, stored, len(index), thread_count(self.n_jobs))
        source = RowsOnDisk(stored, budget)
        stopped = None
        with self._training() as trainee:
            try:
                vectors = trainee._given_vectors(label_features, index)
                model = train_label_tree(source, index, multi_label, trainee._plan(multi_label), vectors)
            except TrainingInterrupted as interruption:
                model, stopped = interruption.model, interruption
            labels = training_labels(
                RaggedLabels(stored.targets.indptr, stored.targets.ids, np.dtype(int)), multi_label
            )
            trainee._set_fitted(source.rows, source.rows, labels, index, stored.targets, model)
            trainee._empty_rows = empty_rows(stored.indptr, stored.targets, len(index))
            trainee.sparse_input_ = data.overview.sparse
            if stopped is not None:
                raise stopped
        return self

    def _train(
        self,
        rows: Rows,
        targets: Targets,
        index: LabelIndex,
        multi_label: bool,
        label_features: Any = None,
        label_share: float = 1.0,
    ) -> LabelTreeModel:
        self._check_relevance(targets)
        source = RowsInMemory(sparsified(rows), targets, thread_count(self.n_jobs))
        vectors = self._given_vectors(label_features, index)
        if vectors is not None and label_share < 1:
            vectors = combined_vectors(source.label_vectors(len(index)), vectors, label_share)
        return train_label_tree(source, index, multi_label, self._plan(multi_label), vectors)

    def _check_relevance(self, targets: Targets) -> None:
        if targets.relevance is not None and self.penalty == "l1":
            raise ValueError(
                "penalty='l1' supports weights of rows only, but y has the relevance of single labels, or class_weight "
                "is given for multi-label rows. Use penalty='l2'."
            )

    def _plan(self, multi_label: bool) -> Plan:
        cost = default_cost(self.loss) if is_auto(self.cost) else float(self.cost)
        seeds = check_random_state(self.random_state).randint(2**31, size=self.n_trees).tolist()
        usual = MAX_LEAF if multi_label or self.n_trees == 1 else MAX_LEAF_OF_FOREST
        max_leaf = usual if is_auto(self.max_leaf) else int(self.max_leaf)
        return Plan(
            tree=self.tree,
            arity=self.arity,
            max_leaf=max_leaf,
            seeds=seeds,
            settings=LabelTreeSettings(
                self.loss, cost, cost, self.passes, self.threshold, 0, self.penalty, self.precision, self.hard_negatives
            ),
            chooses_cost=is_auto(self.cost) and self.penalty == "l2",
            temperature=None if is_auto(self.temperature) else float(self.temperature),
            beam=None if self.search == "exact" else int(self.beam),
            threads=thread_count(self.n_jobs),
            verbose=self.verbose,
        )

    def _given_vectors(self, label_features: Any, index: LabelIndex) -> SparseRows | None:
        if label_features is None:
            return None
        if not is_hierarchy(self.tree) and self.tree != "kmeans":
            raise ValueError(f"label_features are not used with tree={self.tree!r}; they need tree='kmeans'.")
        return given_vectors(label_features, index)

    # --- new labels -------------------------------------------------------------------------------------

    def _with_new_labels(self, new: NewLabels, parent: Mapping[Any, Any] | None) -> LabelTreeModel:
        n_known = len(self.label_index_)
        targets = new.targets
        if new.cost != 1:
            weights = np.ones(len(targets), np.float32) if targets.weights is None else targets.weights
            targets = replace(targets, weights=np.float32(new.cost) * weights)
        below, tree = places_of(self.tree, self.label_index_, new.labels, parent)
        if parent and is_hierarchy(self.tree):
            self.tree = tree
        plan = self._plan(self.multi_label_)
        addition = Addition(
            rows=sparsified(new.rows),
            targets=targets,
            n_new=len(new.labels) - n_known,
            below=below,
            settings=plan.settings,
            max_leaf=plan.max_leaf,
            seeds=plan.seeds,
            threads=thread_count(self.n_jobs),
        )
        return with_new_labels(self.model_, addition)

    # --- prediction -------------------------------------------------------------------------------------

    def _search(self) -> int | None:
        return None if self.search == "exact" else int(self.beam)

    @property
    def loss_(self) -> str:
        """The loss of the node classifiers."""
        loss: str = self.model_.loss
        return loss

    @property
    def cost_(self) -> float:
        """The cost of the nodes above labels."""
        return float(self.model_.cost)

    @property
    def temperature_(self) -> float:
        """The temperature by which the scores of siblings are divided."""
        return float(self.model_.temperature)

    @snapshot_access
    def label_tree(self) -> Tree:
        """Return the (first) tree over the labels; its leaves are indices into `classes_`."""
        tree: Tree = self.model_.trees[0].tree
        return tree

    @snapshot_access
    def describe(self) -> dict[str, Any]:
        """Return the main properties of the model."""
        facts, trees = super().describe(), self.model_.trees
        return {
            **facts,
            "loss": self.loss_,
            "cost": round(self.cost_, 3),
            "temperature": self.temperature_,
            "trees": len(trees),
            "depth": max(packed.tree.depth for packed in trees),
            "nodes": sum(len(packed.tree) for packed in trees),
            "weights": sum(packed.n_weights for packed in trees),
            "link": trees[0].link,
            "slopes": [round(float(slope), 3) for slope in trees[0].slopes],
        }

    # --- saving -----------------------------------------------------------------------------------------

    def _model_from_parts(self, header: dict[str, Any], arrays: modelfile.Arrays) -> LabelTreeModel:
        return LabelTreeModel.from_parts(header, arrays, len(self.label_index_))
