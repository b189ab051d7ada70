"""ContextualMemoryTree: a binary tree grown online whose leaves remember rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from treemax import modelfile
from treemax.inputs.labels import LabelIndex, Targets
from treemax.inputs.rows import Rows, SparseRows
from treemax.models.base.online_trees import OnlineTreeClassifier
from treemax.models.base.thread_safety import snapshot_access
from treemax.models.memory_tree.kernels import CLIPPED, REGRESSORS, SOFTMAX, Options
from treemax.models.memory_tree.model import MemoryTreeModel
from treemax.models.memory_tree.training import MemoryTreeSettings, empty_model, ensure_capacity, remember, revisit
from treemax.models.trained.parts import settings_from
from treemax.models.training.learning_rates import MOST_RATE, mean_squared_length, row_orders
from treemax.parameters import check_flag, check_number, is_auto

ROUTER_RATE = 1.5  # divided by the square root of the features of a row; chosen on validation rows, as the defaults
SCORER_RATE = 0.1
REGRESSOR_RATE = 0.5
SHARPNESS = 10.0  # inverse temperature of the softmax over the scores of a leaf


@modelfile.saveable
@dataclass(kw_only=True, eq=False, repr=False)
class ContextualMemoryTree(OnlineTreeClassifier):
    """Online tree that remembers all rows, and answers with the labels of the most similar rows of a leaf.

    A baseline: linear routers send a row to a leaf with a few dozen remembered rows, which a learned similarity ranks.
    The model grows with the rows. `as_published` has the settings of the authors' program for text with few rows of each label.

    Parameters
    ----------
    leaf_factor : float
        A leaf is split when it has this many times log2 of the number of remembered rows.
    alpha : float
        Weight of rewards against the balance of the tree, from 0 to 1.
    dreams : int
        Random rows that are inserted again for each row that is learned.
    passes : int
        Epochs of `fit`. Rows are inserted in the first; the others learn from rewards. `partial_fit` inserts rows,
        in order.
    learning_rate : "auto" or float
        AdaGrad learning rate of the routers; "auto" computes it from the data, see `settings_`.
    scorer_rate : float
        AdaGrad learning rate of the similarity; with 0 it is the cosine.
    one_against_some : bool
        Where rows have several labels, whether a logistic regressor of each label ranks the labels of a leaf. If not,
        the most similar row does.
    n_jobs : int or None
        Threads for prediction, -1 for all cores. Training uses one.
    random_state : int, RandomState or None
        Seed of the row order and of all random choices. One seed gives the same model, bit for bit.
    verbose : int
        0 for no progress bar.
    max_labels : int or None
        Maximum number of labels in a stream; None for no limit. See `partial_fit`.

    For reproducing the paper
    -------------------------
    reward_first_pass : bool
        Whether the first pass of `fit` learns from rewards too, as `partial_fit` does.
    train_dreams : bool
        Whether routers are trained on rows that are inserted again in later passes.
    skip_itself : bool
        Whether the query for the reward of a remembered row skips the row itself.

    Other Parameters
    ----------------
    class_weight : None, "balanced" or dict
        Weights of labels, by which those of their rows are multiplied. "balanced" (not for streams) is inversely
        proportional to the frequency. Only with one label per row.

    Attributes
    ----------
    settings_ : MemoryTreeSettings
        The learning rates in use, given or computed from the data.
    progressive_loss_ : float
        Progressive validation error: share of rows predicted wrongly just before they were inserted.

    Examples
    --------
    >>> import treemax
    >>> X = [[0.0, 1.0], [1.0, 0.0], [0.1, 0.9], [0.9, 0.2]] * 10
    >>> model = treemax.ContextualMemoryTree().fit(X, ["north", "east", "north", "east"] * 10)
    >>> model.predict([[0.0, 2.0]])
    array(['north'], dtype='<U5')

    References
    ----------
    Sun, Beygelzimer, Daumé, Langford, Mineiro, "Contextual memory trees", 2019.
    """

    supports_weights = supports_compact = True
    _PUBLISHED: ClassVar[dict[str, Any]] = {
        "leaf_factor": 4.0,
        "alpha": 0.1,
        "reward_first_pass": False,
        "skip_itself": False,
    }
    FIXED_IN_STREAM = ("learning_rate", "scorer_rate", "one_against_some", "random_state")
    settings_: MemoryTreeSettings = field(init=False)
    model_: MemoryTreeModel = field(init=False)

    leaf_factor: float = 10.0
    alpha: float = 0.3
    dreams: int = 5
    passes: int = 3
    learning_rate: float | str = "auto"
    scorer_rate: float = SCORER_RATE
    one_against_some: bool = True
    reward_first_pass: bool = True
    train_dreams: bool = True
    skip_itself: bool = True
    n_jobs: int | None = None
    random_state: Any = 0
    verbose: int = 1
    max_labels: int | None = None
    class_weight: Any = None

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_number("leaf_factor", self.leaf_factor, above=0, most=1e6)
        check_number("alpha", self.alpha, least=0, most=1)
        check_number("dreams", self.dreams, whole=True, least=0, most=1000)
        check_number("passes", self.passes, whole=True, least=1)
        check_number("learning_rate", self.learning_rate, above=0, most=MOST_RATE, auto=True)
        check_number("scorer_rate", self.scorer_rate, least=0, most=MOST_RATE)
        for name in ("one_against_some", "reward_first_pass", "train_dreams", "skip_itself"):
            check_flag(name, getattr(self, name))

    # --- learning ---------------------------------------------------------------------------------------

    def _repeats_rows(self) -> bool:
        return True

    def _train(self, rows: Rows, targets: Targets, index: LabelIndex, multi_label: bool) -> MemoryTreeModel:
        model = self._start(rows, targets, index, multi_label)
        passes = self._learn_passes(model, rows, targets)
        return self._train_blocks(passes, self.passes * len(rows), "memory-tree", lambda: model)

    def _learn_passes(self, model: MemoryTreeModel, rows: Rows, targets: Targets) -> Iterator[int]:
        first, *others = row_orders(len(rows), self.passes, self.random_state)
        options = self._options(model)
        early = options._replace(rewards=bool(self.reward_first_pass))
        yield from remember(model, rows, targets, first, self.settings_, early)
        yield from revisit(model, others, self.settings_, options)

    def _start(self, rows: Rows, targets: Targets, index: LabelIndex, multi_label: bool) -> MemoryTreeModel:
        width = mean_squared_length(rows)[1]
        self.settings_ = MemoryTreeSettings(
            rate=ROUTER_RATE / math.sqrt(width) if is_auto(self.learning_rate) else float(self.learning_rate),
            scorer_rate=float(self.scorer_rate),
            regressor_rate=REGRESSOR_RATE,
            initial=1.0 / width,
        )
        seed = int(check_random_state(self.random_state).randint(2**31))
        output = (REGRESSORS if self.one_against_some else CLIPPED) if multi_label else SOFTMAX
        return empty_model(isinstance(rows, SparseRows), rows.shape[1], len(index), output, seed)

    def _resized(self, model: MemoryTreeModel, n_features: int, n_labels: int) -> MemoryTreeModel:
        self._check_learnable(model, n_features)
        ensure_capacity(model, n_labels, n_features)
        return model

    def _continue(self, model: MemoryTreeModel, rows: Rows, targets: Targets) -> Iterator[int]:
        order = np.arange(len(rows), dtype=np.uint32)
        return remember(model, rows, targets, order, self.settings_, self._options(model))

    def _biases(self, model: MemoryTreeModel, ids: NDArray[np.uint32]) -> NDArray[np.float32]:
        return model.routers.bias[:1]  # of the root, which sees every row

    def _search(self) -> Options:
        return self._options(self.model_)

    def _options(self, model: MemoryTreeModel) -> Options:
        return Options(
            alpha=float(self.alpha),
            leaf_factor=float(self.leaf_factor),
            dreams=int(self.dreams),
            first_pass=True,
            rewards=True,
            train_dreams=bool(self.train_dreams),
            skip_itself=bool(self.skip_itself),
            learn_scorer=self.settings_.scorer_rate > 0.0,
            output=model.output,
            sharpness=np.float32(SHARPNESS),
        )

    # --- answering --------------------------------------------------------------------------------------

    @snapshot_access
    def describe(self) -> dict[str, Any]:
        """Return a summary of the model as a dictionary."""
        return {
            **super().describe(),
            "nodes": self.model_.n_nodes,
            "depth": self.model_.depth,
            "memories": self.model_.store.n,
            "learning_rate": round(self.settings_.rate, 4),
            "progressive_loss": round(self.progressive_loss_, 4),
        }

    # --- saving -----------------------------------------------------------------------------------------

    def _model_from_parts(self, header: dict[str, Any], arrays: modelfile.Arrays) -> MemoryTreeModel:
        self.settings_ = settings_from(MemoryTreeSettings, header["settings"])
        return MemoryTreeModel.from_parts(header, arrays, len(self.label_index_))
