"""Online probabilistic label trees."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from treemax import modelfile
from treemax.inputs.conversions import known_features, normalized, sparsified
from treemax.inputs.labels import LabelIndex, Targets, take_targets
from treemax.inputs.rows import Rows, SparseRows, take_rows
from treemax.memory import check_fits
from treemax.models.base.classifier import TrainingInterrupted
from treemax.models.base.hierarchies import WithHierarchy
from treemax.models.base.online import OnlineLabelClassifier
from treemax.models.base.thread_safety import read_access, read_access_by_rows, snapshot_access
from treemax.models.online_label_tree.model import OnlineTree
from treemax.models.online_label_tree.placement import Placement
from treemax.models.online_label_tree.training import (
    NO_GROWTH,
    POLICIES,
    SCHEDULES,
    OnlineTreeSettings,
    add_missing_leaves,
    empty_tree,
    learn,
    rate_of,
    tree_with_structure,
)
from treemax.models.trained.parts import settings_from
from treemax.models.training.learning_rates import row_orders
from treemax.parallel.progress import progress_bar
from treemax.parallel.threads import thread_count
from treemax.parameters import check_choice, check_flag, check_number, is_auto
from treemax.trees import Tree, build_tree, check_tree, is_hierarchy, named_tree


@modelfile.saveable
@dataclass(kw_only=True, eq=False, repr=False)
class OnlineLabelTree(OnlineLabelClassifier, WithHierarchy):
    """Online probabilistic label tree (OPLT): learns from a stream, and adds a leaf for every new label.

    Labels and features need not be declared, and training and prediction may alternate row by row. After any stream
    every node classifier equals, bit for bit, that of a tree that had all labels from the beginning. With `tree`, an
    initial tree is built from the first rows and extended (a warm start), or, in `fit`, from all rows (IPLT).
    `as_published` gives the settings of the paper, except that probabilities are always calibrated.

    Parameters
    ----------
    policy : "best-greedy", "random", "complete", "complete-kary", "one-level", "none" or "best-greedy-printed"
        Where a new label is inserted: "best-greedy" follows the most probable child, balanced by the size of the
        subtrees; "random" a random child; "complete" keeps the tree a complete binary one (CPET), "complete-kary" one
        of `arity` children; "one-level" inserts all labels below the root (one-vs-rest). "none" inserts no labels
        (IPLT-U): only those of the initial `tree` are learned. "best-greedy-printed" uses the formula exactly as the
        paper prints it.
    arity : int
        Children of an inner node; two in a tree that is "complete".
    max_leaf : int
        Maximum number of labels below a lowest inner node. Sixteen classifiers are updated at a time, one of which is
        reserved for new labels: multiples of 16 minus one are good choices.
    tree : None, "kmeans", "random", "complete", "huffman" or a hierarchy
        The initial tree, as in `LabelTree`; None for an empty one. Labels that arrive later are placed by the policy,
        if `tree` is a hierarchy below the nearest of their categories that has labels.
    learning_rate : "auto" or float
        "auto" depends, in `fit`, on the mean number of features of all rows and of rows of a label in all passes: about
        2 for short texts and labels with few rows, 0.8 for long texts or labels with hundreds of rows. `partial_fit`
        after `fit` keeps this rate. A stream that begins with `partial_fit` does not know how many rows a label will
        have: its rate depends on the mean number of labels and features of the rows seen so far. The paper has 1.
    passes : int
        Passes over the data in `fit`.
    shuffle : bool
        Whether `fit` shuffles the rows in every pass. Without it, rows that are sorted by label spoil the tree; but if they
        are in the order of time, and predictions are about what comes after them, the newest count most. `partial_fit` always
        uses the given order.
    beam, search
        As in `LabelTree`.
    n_jobs : int or None
        Threads, -1 for all cores. Several threads train without locks: results vary slightly between runs.
    random_state : int, RandomState or None
        Seed of the random policy, of the initial tree and of the row order. With one thread, the same seed gives the
        same model, bit for bit.
    verbose : int
        0 for no progress bar.
    max_labels : int or None
        Maximum number of labels in a stream; None for no limit. See `partial_fit`.

    For reproducing the paper
    -------------------------
    alpha : float
        Weight of the balance of the tree in the best-greedy policies: 0 uses the probabilities only, 1 the balance only.
    together : bool
        Whether all new labels of a row are inserted below the same node, as in the paper, however deep the tree becomes
        there. By default another node is selected when one is full.
    sample : float or None
        With `tree`, the share of the rows of `fit` from which the initial tree is built: the first to be learned. None
        is all of them.
    schedule : "adagrad", "constant" or "inverse-root"
        Learning rate schedule: AdaGrad, constant, or inverse to the square root of the number of rows seen.
    epsilon : float
        Added to AdaGrad's sums of squared gradients.
    least_gradient : float
        Classifiers with a smaller gradient are not updated; 0 updates all, as in the paper.
    scale_siblings : bool
        Whether the probabilities of siblings are divided by their sum, if rows have one label. Without it, labels are ranked
        by equation 2 of the paper, and the probabilities of `predict_topk` may sum to more than one.
    normalize : bool
        Whether rows are scaled to length one, in training and in predictions. The automatic learning rate is made for such
        rows, which the vectorisers give.

    Other Parameters
    ----------------
    max_memory : float or None
        Maximum memory of the tree and its weights in GB; None for no limit. When it is reached, a quarter of the weights
        is dropped, those of features with the smallest weights; they start again from zero if these features return.
        Labels are never dropped: an error is raised if their nodes take three quarters of it, so set `max_labels`, too.
    precision : "float16" or "float8"
        Precision of the weights in files without the learning state. With "float8" they are rounded to one byte and
        those close to zero are dropped: the file has about a third of the size, and the model that is loaded from it
        has slightly other probabilities.
    class_weight : None, "balanced" or dict
        Weights of labels, by which those of their rows are multiplied; for rows with one label. "balanced" (not for streams) is inversely
        proportional to the frequency.

    Attributes
    ----------
    learning_rate_ : float
        The learning rate of `fit`, or of a stream after the rows seen so far.
    threshold_ : float
        The probability from which a multi-label `predict` returns a label; it may be set.
    settings_ : OnlineTreeSettings
        Settings of tree growth and training.

    Examples
    --------
    >>> import treemax
    >>> text = treemax.HashingText(bits=10)
    >>> model = treemax.OnlineLabelTree()
    >>> for _ in range(10):
    ...     _ = model.partial_fit(text.transform(["red apple", "fast car"]), ["fruit", "vehicle"])
    >>> _ = model.partial_fit(text.transform(["grey whale"] * 5), ["animal"] * 5)
    >>> model.predict(text.transform(["green apple", "whale", "car"])).tolist()
    ['fruit', 'animal', 'vehicle']

    References
    ----------
    Jasinska-Kobus et al., "Online probabilistic label trees", 2021.
    Beygelzimer et al., "Conditional probability tree estimation analysis and algorithms", 2009.
    """

    _PUBLISHED: ClassVar[dict[str, Any]] = {
        "policy": "best-greedy",
        "arity": 2,
        "max_leaf": 100,
        "alpha": 0.75,
        "together": True,
        "tree": None,
        "learning_rate": 1.0,
        "schedule": "adagrad",
        "epsilon": 0.01,
        "least_gradient": 0.0,
        "scale_siblings": False,
        "normalize": False,
        "passes": 3,
        "shuffle": True,
        "search": "exact",
    }
    supports_weights = True
    STARTS_WITHOUT_LABELS = True
    FIXED_IN_STREAM = ("tree", "random_state")
    supports_compact = True
    settings_: OnlineTreeSettings = field(init=False)
    model_: OnlineTree = field(init=False)

    policy: str = "best-greedy"
    arity: int = 16
    max_leaf: int = 15
    alpha: float = 0.75
    together: bool = False
    tree: Any = None
    sample: float | None = None
    learning_rate: float | str = "auto"
    schedule: str = "adagrad"
    epsilon: float = 0.01
    least_gradient: float = 1e-3
    scale_siblings: bool = True
    normalize: bool = True
    passes: int = 1
    shuffle: bool = True
    beam: int = 10
    search: str = "beam"
    n_jobs: int | None = None
    random_state: Any = 0
    verbose: int = 1
    max_labels: int | None = None
    max_memory: float | None = None
    precision: str = "float16"
    class_weight: Any = None

    def _check_parameters(self) -> None:
        super()._check_parameters()
        choices = {"policy": (*POLICIES, NO_GROWTH), "schedule": SCHEDULES, "search": ("beam", "exact")}
        choices["precision"] = ("float16", "float8")
        for name, allowed in choices.items():
            check_choice(name, getattr(self, name), allowed)
        for name in ("together", "scale_siblings", "normalize", "shuffle"):
            check_flag(name, getattr(self, name))
        if self.tree is not None:
            check_tree(self.tree)
        for name in ("arity", "max_leaf"):
            check_number(name, getattr(self, name), whole=True, least=2)
        for name in ("passes", "beam"):
            check_number(name, getattr(self, name), whole=True, least=1)
        check_number("max_memory", self.max_memory, above=0, optional=True)
        check_number("alpha", self.alpha, least=0, most=1)
        check_number("epsilon", self.epsilon, above=0)
        check_number("least_gradient", self.least_gradient, least=0, most=0.5)
        check_number("learning_rate", self.learning_rate, above=0, most=1000, auto=True)
        if self.sample is not None:
            check_number("sample", self.sample, above=0, most=1)

    # --- learning ---------------------------------------------------------------------------------------

    def _prepared(self, rows: Rows) -> Rows:
        return normalized(rows) if self.normalize else rows

    def _train(self, rows: Rows, targets: Targets, index: LabelIndex, multi_label: bool) -> OnlineTree:
        sparse = sparsified(rows)
        settings = self._settings(rate_of(sparse, targets, self.passes) if is_auto(self.learning_rate) else None)
        orders = iter(self._orders(len(rows)))
        first_rows, first_targets = sparse, targets
        if self.sample is not None:
            first = next(orders)
            orders, first = (chain([first], orders), first[: max(1, int(self.sample * len(rows)))].astype(np.int64))
            first_rows, first_targets = sparsified(take_rows(sparse, first)), take_targets(targets, first)
        tree = self._initial_tree(first_rows, first_targets, index, multi_label, settings)
        tree.reserve_labels(len(index))
        tree.bound_memory(self._most_bytes())
        self.settings_ = settings
        done, planned = 0, self.passes * len(rows)
        with progress_bar(planned, "online-label-tree", "rows", self.verbose) as bar:
            try:
                for n in learn(tree, sparse, targets, orders, settings, self.beam, thread_count(self.n_jobs)):
                    done += n
                    bar.update(n)
            except KeyboardInterrupt:
                add_missing_leaves(tree, settings)
                raise TrainingInterrupted(tree, done / planned) from None
        add_missing_leaves(tree, settings)
        return tree

    def _orders(self, n_rows: int) -> Iterable[NDArray[np.uint32]]:
        if self.shuffle:
            return row_orders(n_rows, self.passes, self.random_state)
        return repeat(np.arange(n_rows, dtype=np.uint32), self.passes)

    def _start(self, rows: Rows, targets: Targets, index: LabelIndex, multi_label: bool) -> OnlineTree:
        self.settings_ = self._settings()
        tree = self._initial_tree(sparsified(rows), targets, index, multi_label, self.settings_)
        tree.reserve_labels(len(index))
        tree.bound_memory(self._most_bytes())
        return tree

    def _most_bytes(self) -> float | None:
        return None if self.max_memory is None else self.max_memory * 1e9

    def _resized(self, model: OnlineTree, n_features: int, n_labels: int) -> OnlineTree:
        settings = self._settings(self.settings_.fitted_rate)
        if settings != self.settings_ and not model.can_grow(settings.growth):
            raise ValueError(
                f"The tree was grown with policy={self.settings_.policy!r} and arity={self.settings_.arity} and cannot be "
                f"extended with policy={self.policy!r} and arity={self.arity}: nodes that could get children have no "
                "auxiliary classifier. Set them back, or start a new model."
            )
        self.settings_ = settings
        model.scale_siblings = settings.scale_siblings
        if not model.has_squares and self.settings_.schedule == "adagrad":
            warnings.warn(
                "This model was saved without its learning state: AdaGrad starts again from its weights. "
                "Use save(path, resume=True) to continue as if training had not been interrupted.",
                stacklevel=8,
            )
            model.has_squares = True
        model.reserve_labels(n_labels)
        model.bound_memory(self._most_bytes())
        return model

    def _continue(self, model: OnlineTree, rows: Rows, targets: Targets) -> Iterator[int]:
        order, threads = np.arange(len(rows), dtype=np.uint32), thread_count(self.n_jobs)
        placement = self._placement(model)
        yield from learn(model, sparsified(rows), targets, [order], self.settings_, self.beam, threads, placement)
        add_missing_leaves(model, self.settings_, placement)

    def _placement(self, model: OnlineTree) -> Placement | None:
        """Return where new labels belong if `tree` is a hierarchy by name, which may have more labels than the model."""
        if not is_hierarchy(self.tree) or isinstance(self.tree, Tree) or not self.settings_.follows_hierarchy:
            return None
        known = model.placement
        if known is None or known.n_nodes != model.n_nodes or known.index is not self.label_index_:
            model.placement = Placement(self.tree, self.label_index_, model)
        return model.placement

    def _biases(self, model: OnlineTree, ids: NDArray[np.uint32]) -> NDArray[np.float32]:
        leaves = model.leaf_of[ids]
        return model.blocks.bias[model.nodes.place[leaves[leaves >= 0]]]

    def _initial_tree(
        self, rows: SparseRows, targets: Targets, index: LabelIndex, multi_label: bool, settings: OnlineTreeSettings
    ) -> OnlineTree:
        """Return an empty tree, or the tree that `tree` gives for the labels of these rows."""
        seed = int(check_random_state(self.random_state).randint(2**31))
        row_ids = targets.ids[targets.indptr[0] : targets.indptr[-1]]
        targets = Targets(targets.indptr - targets.indptr[0], row_ids, targets.weights)
        ids = np.unique(row_ids)
        if self.policy == NO_GROWTH and (self.tree is None or len(ids) == 0):
            missing = "tree is None" if self.tree is None else "y has no labels"
            raise ValueError(
                f"policy='none' adds no labels to the initial tree, which would have none: {missing}. Set tree, and begin "
                "with rows that have the labels to learn."
            )
        if self.tree is None or len(ids) == 0:
            return empty_tree(not multi_label, settings, seed)
        shape: dict[str, Any] = {"arity": self.arity, "max_leaf": self.max_leaf, "seed": seed}
        if is_hierarchy(self.tree):
            tree = build_tree(self.tree, rows, targets, index, **shape)
            return tree_with_structure(tree, not multi_label, settings, seed)
        compact = Targets(targets.indptr, np.searchsorted(ids, row_ids).astype(np.uint32), targets.weights)
        tree = named_tree(self.tree, rows, compact, len(ids), threads=thread_count(self.n_jobs), **shape)
        return tree_with_structure(tree, not multi_label, settings, seed, ids)

    def _settings(self, fitted_rate: float | None = None) -> OnlineTreeSettings:
        return OnlineTreeSettings(
            policy=self.policy,
            arity=self.arity,
            max_leaf=self.max_leaf,
            alpha=self.alpha,
            together=self.together,
            schedule=self.schedule,
            rate=None if is_auto(self.learning_rate) else float(self.learning_rate),
            epsilon=self.epsilon,
            least_gradient=self.least_gradient,
            scale_siblings=self.scale_siblings,
            fitted_rate=fitted_rate,
        )

    # --- prediction -------------------------------------------------------------------------------------

    def _rows_to_predict(self, X: Any) -> Rows:
        rows = super()._rows_to_predict(X)
        if isinstance(rows, SparseRows):  # features that are not known have no effect, on the length neither
            rows = known_features(rows, self.n_features_in_)
        return self._prepared(rows)

    def _search(self) -> int | None:
        return None if self.search == "exact" else min(int(self.beam), self.model_.n_nodes)

    @read_access
    def path_probabilities(self, X: Any) -> NDArray[np.float32]:
        """Return the products of the classifiers on the path to every label (equation 2 of the paper).

        In the order of `classes_`, of shape (n_rows, n_labels), before calibration. If rows have one label, those of
        siblings are not scaled to sum to that of their parent, unlike in `predict_proba`.
        """
        rows = self._rows_to_predict(X)
        n_labels = len(self.label_index_)
        check_fits(
            4 * len(rows) * n_labels,
            f"path_probabilities for {len(rows):,} rows x {n_labels:,} labels",
            "Use fewer rows at a time.",
        )
        products = self.model_.path_probabilities(rows, self._threads())
        return products * self._changes.present(n_labels) if self._changes.forgotten else products

    @read_access_by_rows
    def no_label_probability(self, X: Any) -> NDArray[np.float32]:
        """Return the probability that a row has no label, one minus that of the root, not calibrated.

        Zero for a multi-class model.
        """
        return 1 - self.model_.root_probabilities(self._rows_to_predict(X), self._threads())

    @property
    def learning_rate_(self) -> float:
        """The learning rate of `fit`, or of a stream after the rows seen so far."""
        if "model_" not in self.__dict__:
            raise AttributeError("OnlineLabelTree has no learning_rate_ before it is fitted")
        return self.settings_.rate_after(self.model_.stream)

    @snapshot_access
    def label_tree(self) -> Tree:
        """Return the tree over the labels; its leaves are indices into `classes_`.

        Labels that another thread is learning and has not placed yet are children of the root. Raises ValueError
        while there is no label, and if `policy="none"` left labels out of the tree.
        """
        n_labels, missing = len(self.label_index_), np.flatnonzero(self.model_.leaf_of < 0)
        if n_labels == 0:
            raise ValueError("The tree has no labels yet: no row with a label was learned.")
        if len(missing) and self.settings_.policy == NO_GROWTH:
            n_leaves = n_labels - len(missing)
            raise ValueError(f"Only {n_leaves} of the {n_labels} labels are in the tree: policy='none' adds no others.")
        parents, labels = self.model_.shape()
        if len(missing) and labels[0] >= 0:  # the root is a leaf
            parents, labels = np.array([-1, 0]), np.array([-1, labels[0]])
        return Tree.from_parents(
            np.append(parents, np.zeros(len(missing), dtype=np.int64)), np.append(labels, missing)
        )  # fmt: skip

    @snapshot_access
    def describe(self) -> dict[str, Any]:
        """Return the main properties of the model."""
        return {
            **super().describe(),
            "policy": self.settings_.policy,
            "learning_rate": round(self.learning_rate_, 3),
            "depth": self.model_.depth,
            "nodes": self.model_.n_nodes,
            "memory_mb": round(self.model_.nbytes / 2**20, 1),
            "dropped_weights": self.model_.n_dropped,
        }

    # --- saving -----------------------------------------------------------------------------------------

    def _model_parts(self, resume: bool) -> tuple[dict[str, Any], modelfile.Arrays]:
        rounded = self.precision == "float8" and not resume
        header, arrays = self.model_.to_rounded_parts() if rounded else self.model_.to_parts(resume)
        state = {"random_state": header["random_state"], "settings": vars(self.settings_)}
        return {**state, **header}, arrays

    def _model_from_parts(self, header: dict[str, Any], arrays: modelfile.Arrays) -> OnlineTree:
        self.settings_ = settings = settings_from(OnlineTreeSettings, header["settings"])
        parameters = vars(settings).copy()
        for rate in (parameters.pop("rate"), parameters.pop("fitted_rate")):
            type(self)(**parameters, learning_rate="auto" if rate is None else rate)._check_parameters()
        header = {**header, "one_label": not self.multi_label_, "growth": settings.growth}
        tree = OnlineTree.from_parts(header, arrays, len(self.label_index_))
        tree.scale_siblings = settings.scale_siblings
        return tree
