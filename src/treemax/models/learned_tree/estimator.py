"""LearnedTree: a tree over the labels, learned together with embeddings of the features."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from treemax import modelfile
from treemax.inputs.conversions import sparsified
from treemax.inputs.labels import LabelIndex, Targets
from treemax.inputs.rows import Rows, SparseRows
from treemax.memory import check_fits
from treemax.models.base.hierarchies import WithHierarchy
from treemax.models.base.online import FIRST_ROWS, OnlineLabelClassifier
from treemax.models.base.thread_safety import snapshot_access
from treemax.models.learned_tree.assignment import RULES
from treemax.models.learned_tree.model import LARGEST_FACTOR, LearnedTreeModel, padded
from treemax.models.learned_tree.quality import NodeQuality, described, quality_from_means, quality_from_sums
from treemax.models.learned_tree.steps import OBJECTIVES, OPTIMIZERS, STATISTICS, LearnedTreeSettings
from treemax.models.learned_tree.stream import GrowingTree
from treemax.models.learned_tree.structure import Structure, complete_depth, max_depth
from treemax.models.learned_tree.training import Training, suggested_passes
from treemax.models.trained.parts import real_number
from treemax.models.training.held_out import held_out_rows
from treemax.models.training.learning_rates import FAR_LONGER, mean_squared_length, power_of_two
from treemax.parallel.threads import thread_count
from treemax.parameters import check_choice, check_number, is_auto
from treemax.trees import Tree, huffman_tree, is_hierarchy, kmeans_tree, label_vectors, random_tree, tree_of

RATES = {"adagrad": 2.0, "sgd": 0.1}  # chosen on wordnet
FIXED_TREES = ("clusters", "huffman", "random")
SCHEDULES = {"linear": 0.0, "hold": 0.5}  # fraction of the training with a constant rate, before the decay


@modelfile.saveable
@dataclass(kw_only=True, eq=False, repr=False)
class LearnedTree(OnlineLabelClassifier, WithHierarchy):
    """Hierarchical softmax over embeddings of the features, whose tree is learned at the same time.

    A row is represented by the sum of its features' embeddings, each times the feature's value: a bag of words for text,
    a linear layer for dense rows. The probability of a label is the product of the softmaxes along its path. Models are
    small for their accuracy, and prediction is fast. Multi-class and multi-label. New labels and features may appear at
    any time in `partial_fit`. `as_published` has the settings of the program that the authors published with the paper.

    Parameters
    ----------
    tree : "learned", "clusters", "huffman", "random", or a hierarchy
        "learned" starts with the tree given by `start` and reassigns labels to the children of nodes during training.
        The others are fixed: balanced k-means over the mean rows of labels, a Huffman tree, labels in random order, or
        your own hierarchy: pairs (parent, child), a nested dictionary, a dictionary from child to parent, a parent array
        or a `treemax.trees.Tree`.
    arity : int
        Maximum number of children of a node. Wider trees are more accurate and slower to train.
    dimension : int
        Dimension of the embeddings.
    passes : "auto" or int
        Epochs of `fit`, each in a new random order; "auto" is twelve, six for multi-label data, and more if there are few
        rows. `partial_fit` makes one pass, in order.
    learning_rate : "auto" or float
        Initial learning rate; "auto" is 2 for AdaGrad, where it is the norm of the first step of a vector, and 0.1 for
        "sgd". Rows are first scaled to a mean squared norm of one.
    dropout : float
        Probability that a feature of a row is dropped in a step of `fit`.
    calibration : float
        Fraction of the rows, 2,000 at most, held out until the last passes to calibrate the probabilities. With fewer
        than five such rows there is no calibration.
    search : "exact" or "beam"
        "exact" finds the most probable labels by depth-first search; "beam" is beam search.
    beam : int
        Nodes kept at each level; 1 is greedy.
    n_jobs : int or None
        Threads, -1 for all cores. Several threads update the weights without locks, so results vary slightly.
    random_state : int, RandomState or None
        Seed of the embeddings, the tree and the row order. One seed and one thread give the same model, bit for bit.
    verbose : int
        0 for no progress bar.
    max_labels : int or None
        Maximum number of labels in a stream; None for no limit. See `partial_fit`.

    For reproducing the paper
    -------------------------
    start : "clusters", "huffman" or "random"
        Initial tree of `tree="learned"`.
    schedule : "linear" or "hold"
        The learning rate decays linearly to zero, from the start or from the middle of the training.
    optimizer : "adagrad" or "sgd"
        AdaGrad with one sum of squares for each embedding and each vector of a node, or plain SGD.
    objective : "log-likelihood" or "probability"
        Objective at each node of a label's path: log p of the target child, or p as in Algorithm 1.
    labels : "all" or "one"
        Loss of a row with several labels in a step: the mean over its labels, or one label drawn at random.
    assign_every : float
        Passes between two assignments of labels to children; may be fractional. Ignored with `n_assignments`.
    stream_assign_every : "auto" or int
        In `partial_fit`, rows between two assignments of labels to children; "auto" is as many as there were before, at
        least 1,000.
    n_assignments : int or None
        Number of assignments, at equal distances until `assign_until`.
    assign_until : float
        Fraction of the training after which the tree is fixed.
    statistics : "means", "rows" or "running"
        Estimate of the probability of each child given a label, for the assignment: that for the mean representation of
        the label's rows, its mean over the rows, or its running mean since the start of the training, as in Algorithm 1.
    assign_by : "difference", "gradient" or "log-gradient"
        Score of a pair of label i and child j: q(1 - q)(p_j|i - p_j), or the gradient of the node's objective by p
        (equation 10) or by log p (equation 12).
    prior_count : float
        With `statistics="running"`, the number of examples that a label new at a node is taken to have had there: half
        of them at one child, in turn by label, and half at all. Without it, such a label prefers no child.
    max_depth : "auto", int or None
        Maximum depth of the tree after an assignment; "auto" is half more than that of a complete tree, None is no bound.

    Other Parameters
    ----------------
    class_weight : None, "balanced" or dict
        Weights of labels, by which those of their rows are multiplied, with one label per row. "balanced" is inversely
        proportional to the frequency. Rows are learned as often as their weights say.

    Attributes
    ----------
    passes_ : int
        Number of passes over the data.
    losses_ : list of float
        Training loss of each pass: the mean of -log p(label).

    Examples
    --------
    >>> import treemax
    >>> texts = ["red apple", "green apple", "fast car", "red car"] * 25
    >>> X = treemax.HashingText(bits=10).transform(texts)
    >>> model = treemax.LearnedTree(dimension=16).fit(X, ["fruit", "fruit", "vehicle", "vehicle"] * 25)
    >>> model.predict(X[:3]).tolist()
    ['fruit', 'fruit', 'vehicle']

    References
    ----------
    Jernite, Choromanska, Sontag, "Simultaneous learning of trees and representations for extreme classification and
    density estimation", 2017.
    """

    LARGEST_WEIGHT = LARGEST_FACTOR
    _PUBLISHED: ClassVar[dict[str, Any]] = {
        "tree": "learned",
        "start": "huffman",
        "arity": 20,
        "dimension": 200,
        "passes": 25,
        "schedule": "hold",
        "optimizer": "sgd",
        "objective": "log-likelihood",
        "dropout": 0.0,
        "labels": "one",
        "n_assignments": 10,
        "assign_until": 0.5,
        "statistics": "running",
        "assign_by": "log-gradient",
        "prior_count": 1.0,
        "max_depth": None,
        "calibration": 0.0,
    }
    supports_compact = supports_weights = True
    FIXED_IN_STREAM = ("tree", "start", "arity", "dimension", "statistics")
    model_: LearnedTreeModel | GrowingTree = field(init=False)
    losses_: list[float] = field(init=False)

    tree: Any = "learned"
    start: str = "clusters"
    arity: int = 20
    dimension: int = 100
    passes: int | str = "auto"
    learning_rate: float | str = "auto"
    schedule: str = "linear"
    optimizer: str = "adagrad"
    objective: str = "log-likelihood"
    dropout: float = 0.3
    labels: str = "all"
    assign_every: float = 0.5
    assign_until: float = 0.25
    statistics: str = "means"
    search: str = "exact"
    beam: int = 10
    n_jobs: int | None = None
    random_state: Any = 0
    verbose: int = 1
    calibration: float = 0.05
    n_assignments: int | None = None
    assign_by: str = "difference"
    prior_count: float = 0.0
    max_depth: int | str | None = "auto"
    max_labels: int | None = None
    stream_assign_every: int | str = "auto"
    class_weight: Any = None

    def _check_parameters(self) -> None:
        super()._check_parameters()
        choices_of = {
            "start": FIXED_TREES,
            "schedule": tuple(SCHEDULES),
            "optimizer": tuple(OPTIMIZERS),
            "objective": tuple(OBJECTIVES),
            "statistics": STATISTICS,
            "assign_by": tuple(RULES),
            "labels": ("all", "one"),
            "search": ("exact", "beam"),
        }
        for name, choices in choices_of.items():
            check_choice(name, getattr(self, name), choices)
        if not is_hierarchy(self.tree) and self.tree not in ("learned", *FIXED_TREES):
            known = ", ".join(("learned", *FIXED_TREES))
            raise ValueError(f"tree must be one of {known}, or a hierarchy, got {self.tree!r}.")
        check_number("arity", self.arity, whole=True, least=2, most=1024)
        check_number("dimension", self.dimension, whole=True, least=1, most=4096)
        check_number("passes", self.passes, whole=True, least=1, auto=True)
        check_number("learning_rate", self.learning_rate, above=0, most=1000, auto=True)
        check_number("dropout", self.dropout, least=0, most=0.9)
        check_number("assign_every", self.assign_every, above=0)
        check_number("assign_until", self.assign_until, least=0, most=1)
        check_number("prior_count", self.prior_count, least=0, most=1e6)
        check_number("n_assignments", self.n_assignments, whole=True, least=1, optional=True)
        check_number("max_depth", self.max_depth, whole=True, least=1, auto=True, optional=True)
        check_number("calibration", self.calibration, least=0, most=0.5)
        check_number("stream_assign_every", self.stream_assign_every, whole=True, least=1, auto=True)
        check_number("beam", self.beam, whole=True, least=1)

    def _check_size(self, n_features: int, n_labels: int, growing: bool = False) -> None:
        check_fits(
            8 * padded(self.dimension) * n_labels,
            f"LearnedTree for {n_labels:,} labels at dimension {self.dimension}",
            "Use fewer labels or a smaller dimension.",
        )

    # --- learning ---------------------------------------------------------------------------------------

    def _repeats_rows(self) -> bool:
        return True

    def _train(self, rows: Rows, targets: Targets, index: LabelIndex, multi_label: bool) -> LearnedTreeModel:
        sparse, random = sparsified(rows), check_random_state(self.random_state)
        tree = self._first_tree(sparse, targets, index, random)
        structure = Structure.with_capacity(tree, self.arity) if self._learns_tree else Structure.of_tree(tree)
        settings = self._settings(len(sparse), len(index), multi_label)
        held = held_out_rows(len(sparse), self.calibration, random)
        training = Training(
            sparse, targets, settings, structure, random, self.arity, multi_label,
            held=held if settings.epochs > 1 else held[:0],
        )  # fmt: skip
        planned = settings.epochs * len(sparse)
        every, until = self._assignments(len(sparse), planned)
        self.losses_ = training.history
        blocks = training.run(thread_count(self.n_jobs), every, until)
        title = f"learned-tree, {self._tree_name}"
        return self._train_blocks(blocks, planned, title, lambda: training.trained(self._learns_tree))

    def _start(self, rows: Rows, targets: Targets, index: LabelIndex, multi_label: bool) -> GrowingTree:
        settings = self._stream_steps(len(index))
        sparse, random = sparsified(rows), check_random_state(self.random_state)
        tree = self._first_tree(sparse, targets, index, random)
        scale = power_of_two(1.0 / math.sqrt(mean_squared_length(sparse)[0]))
        model = GrowingTree(tree, settings, self.arity, sparse.n_features, scale, not is_hierarchy(self.tree))
        if self._learns_tree:
            model.start_statistics()
        self.losses_ = []
        return model

    def _resized(self, model: LearnedTreeModel | GrowingTree, n_features: int, n_labels: int) -> GrowingTree:
        settings, grows = self._stream_steps(n_labels), not is_hierarchy(self.tree)
        if not grows and n_labels > len(self.label_index_):
            raise ValueError(
                "y has a label that is not in the model, whose tree is a hierarchy of yours. Pass all labels as classes to "
                "the first call of partial_fit."
            )
        if isinstance(model, LearnedTreeModel):
            if grows and self.arity < (widest := int(model.tree.n_children.max())):
                raise ValueError(f"arity must be at least {widest}, as in the model, got {self.arity}.")
            if model.learning is None:
                warnings.warn(
                    "This model was saved without its learning state: steps start afresh, and its tree is fixed. "
                    "Use save(path, resume=True) to continue as if learning had never stopped.",
                    stacklevel=8,
                )
            model = GrowingTree.from_model(model, settings, self.arity, grows, self._learns_tree, self.label_counts_)
        model.grow(n_features, n_labels)
        return model

    def _continue(self, model: GrowingTree, rows: Rows, targets: Targets) -> Iterator[int]:
        model.settings = self._stream_steps(model.n_labels)
        seed = int(check_random_state(self.random_state).randint(2**31))
        every = None if is_auto(self.stream_assign_every) else int(self.stream_assign_every)
        return model.learn(
            rows, targets, self.label_counts_, self.n_examples_, seed, thread_count(self.n_jobs), every,
            self.multi_label_,
        )  # fmt: skip

    def _stream_steps(self, n_labels: int) -> LearnedTreeSettings:
        if self.statistics == "rows":
            raise ValueError("statistics='rows' needs all rows at once; in partial_fit use 'means' or 'running'.")
        return replace(self._settings(1, n_labels, multi_label=False), dropout=0.0)

    def _update_settings(self, rows: Rows) -> None:
        """Scale anew if the first rows turn out to be outliers, far longer than these."""
        model = self.model_
        if self.n_examples_ >= FIRST_ROWS or not isinstance(model, GrowingTree):
            return
        squared_length, _ = mean_squared_length(rows)
        if FAR_LONGER**2 * squared_length * float(model.scale) ** 2 < 1.0:
            model.scale = np.float32(power_of_two(1.0 / math.sqrt(squared_length)))

    def _biases(self, model: GrowingTree, ids: NDArray[np.uint32]) -> NDArray[np.float32]:
        return model.biases[: model.arity]  # of the root

    def _assignments(self, n_rows: int, planned: int) -> tuple[int, int]:
        """Return the rows between two assignments, and the rows after which there are none."""
        if not self._learns_tree:
            return 0, 0
        until = int(self.assign_until * planned)
        if self.n_assignments is None:
            return max(1, round(self.assign_every * n_rows)), until
        every = max(1, until // int(self.n_assignments))
        return every, min(until, every * int(self.n_assignments))

    @property
    def _learns_tree(self) -> bool:
        return self._tree_name == "learned"

    @property
    def _tree_name(self) -> str:
        return self.tree if isinstance(self.tree, str) else "own tree"

    def _settings(self, n_rows: int, n_labels: int, multi_label: bool) -> LearnedTreeSettings:
        passes = suggested_passes(n_rows, multi_label) if is_auto(self.passes) else int(self.passes)
        rate = RATES[self.optimizer] if is_auto(self.learning_rate) else float(self.learning_rate)
        return LearnedTreeSettings(
            self.dimension, rate, passes, SCHEDULES[self.schedule], self.optimizer, self.dropout, self.labels == "one",
            self.objective, self.statistics, self.assign_by, self._depth_bound(n_labels), self.prior_count,
        )  # fmt: skip

    def _depth_bound(self, n_labels: int) -> int:
        if is_auto(self.max_depth):
            return max_depth(n_labels, self.arity)
        if self.max_depth is None:
            return n_labels
        if int(self.max_depth) < (least := complete_depth(n_labels, self.arity)):
            raise ValueError(
                f"max_depth must be at least {least} for {n_labels:,} labels and arity {self.arity}, "
                f"got {self.max_depth}."
            )
        return int(self.max_depth)

    def _first_tree(self, rows: SparseRows, targets: Targets, index: LabelIndex, random: Any) -> Tree:
        if is_hierarchy(self.tree):
            return tree_of(self.tree, index)
        name, n_labels = self.start if self._learns_tree else self.tree, len(index)
        if name == "huffman":
            return huffman_tree(np.bincount(targets.ids, minlength=n_labels), self.arity)
        if name == "random":
            return random_tree(n_labels, self.arity, self.arity, random)
        vectors = label_vectors(rows, targets, n_labels)
        return kmeans_tree(vectors, self.arity, self.arity, random, thread_count(self.n_jobs))

    # --- answering --------------------------------------------------------------------------------------

    def _search(self) -> int | None:
        return None if self.search == "exact" else min(int(self.beam), len(self.model_.tree))

    @property
    def passes_(self) -> int:
        """Number of passes over the data."""
        return len(self.losses_)

    @snapshot_access
    def label_tree(self) -> Tree:
        """Return the tree over the labels; its leaves are indices into `classes_`."""
        return self.model_.tree

    @snapshot_access
    def node_quality(self) -> NodeQuality:
        """Return the quality of the split at each node of `label_tree()`: objective, balance and purity, 1 at best.

        They come from what training knew of its labels: their mean rows or, with `statistics="running"`, running sums. A
        model that was saved without `resume=True` has lost them, as has a fixed tree after `partial_fit`: ValueError.
        """
        check_is_fitted(self, "model_")
        found = self._quality(self._packed())
        if found is None:
            raise ValueError(
                "This model does not have the statistics of its labels. A model that fit has trained has them; to keep them "
                "in a file, use save(path, resume=True)."
            )
        return found

    def _packed(self) -> LearnedTreeModel:
        return self.model_ if isinstance(self.model_, LearnedTreeModel) else self.model_.packed()

    def _quality(self, model: LearnedTreeModel) -> NodeQuality | None:
        state = model.learning
        if state is None:
            return None
        if state.means is not None:
            return quality_from_means(model, np.maximum(self.label_counts_, 0), state.means)
        if state.keys is None or state.sums is None or state.seen is None:
            return None
        return quality_from_sums(model, (state.keys, state.sums, state.seen))

    @snapshot_access
    def describe(self) -> dict[str, Any]:
        """Return a summary of the model as a dictionary; `quality` has the means of `node_quality` if known."""
        facts, model = super().describe(), self._packed()
        tree, quality = model.tree, self._quality(model)
        depths = tree.level[tree.leaf_of]
        counts = np.maximum(self.label_counts_, 0)
        return {
            **facts,
            "tree": self._tree_name,
            "dimension": model.dimension,
            "embeddings": len(model.embeddings),
            "nodes": int((tree.n_children > 0).sum()),
            "arity": int(tree.n_children.max()),
            "depth": tree.depth,
            "mean_depth": round(float(np.average(depths, weights=counts)), 2),
            "weights": model.dimension * (len(model.embeddings) + len(model.weights)) + len(model.biases),
            "passes": self.passes_,
            "loss": round(self.losses_[-1], 4) if self.losses_ else None,
            **described(quality),
        }

    # --- saving -----------------------------------------------------------------------------------------

    def _model_parts(self, resume: bool) -> tuple[dict[str, Any], modelfile.Arrays]:
        header, arrays = self.model_.to_parts(resume)
        return {**header, "losses": self.losses_}, arrays

    def _model_from_parts(self, header: dict[str, Any], arrays: modelfile.Arrays) -> LearnedTreeModel:
        if not self.label_counts_.any():
            raise ValueError("no training row had a label")
        self.losses_ = [real_number("a loss", loss) for loss in header["losses"]]
        return LearnedTreeModel.from_parts(header, arrays, len(self.label_index_))
