"""LOMTree: a binary tree grown online that predicts the most frequent label of a leaf."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from treemax import modelfile
from treemax.inputs.labels import LabelIndex, Targets
from treemax.inputs.rows import Rows, SparseRows
from treemax.models.base.online_trees import OnlineTreeClassifier
from treemax.models.base.thread_safety import snapshot_access
from treemax.models.lom_tree.kernels import Options
from treemax.models.lom_tree.model import LOMTreeModel
from treemax.models.lom_tree.training import LOMTreeSettings, empty_model, ensure_capacity, learn, nodes_for
from treemax.models.trained.parts import settings_from
from treemax.models.training.learning_rates import MOST_RATE, clip_outliers, mean_squared_length, row_orders
from treemax.parameters import check_number, is_auto

RATE = 5.0  # divided by row norm * sqrt(features per row); chosen on glyphs1k and wordnet


@modelfile.saveable
@dataclass(kw_only=True, eq=False, repr=False)
class LOMTree(OnlineTreeClassifier):
    """Online multi-class binary tree of linear regressors that predicts the most frequent labels of a leaf.

    A baseline: training and prediction compute a few linear scores per row, and leaves have no classifier. `RecallTree`
    is more accurate. `as_published` weights all rows equally, as in the paper; set `max_nodes`, which is one less than
    the number of labels there, yourself.

    Parameters
    ----------
    max_nodes : "auto" or int
        Maximum number of inner nodes, each with a regressor; "auto" is four times the number of labels seen so far.
        (The paper and Vowpal Wabbit use one less than the number of labels.)
    swap_resistance : float
        Once there are `max_nodes`, a leaf is split only if the number of its rows without its most frequent label is
        more than this many times the size of the smallest leaf, which is then removed.
    passes : int
        Epochs of `fit`, each in a new random order. `partial_fit` makes one pass, in order.
    learning_rate : "auto" or float
        AdaGrad learning rate; "auto" computes it from the data, see `settings_`.
    n_jobs : int or None
        Threads for prediction, -1 for all cores. Training uses one.
    random_state : int, RandomState or None
        Seed of the row order. One seed gives the same model, bit for bit.
    verbose : int
        0 for no progress bar.
    max_labels : int or None
        Maximum number of labels in a stream; None for no limit. See `partial_fit`.

    For reproducing the paper
    -------------------------
    least_weight : float
        Minimum weight of a row. A row is weighted by the difference between the mean score of its label and the mean
        score of all rows, at most 1. With 1 all rows have the same weight, as in the paper.

    Other Parameters
    ----------------
    class_weight : None, "balanced" or dict
        Weights of labels, by which those of their rows are multiplied. "balanced" (not for streams) is inversely
        proportional to the frequency.

    Attributes
    ----------
    settings_ : LOMTreeSettings
        The learning rate in use, given or computed from the data.
    progressive_loss_ : float
        Progressive validation error: share of rows predicted wrongly just before they were learned.

    Examples
    --------
    >>> import treemax
    >>> X = [[0.0, 1.0], [1.0, 0.0], [0.1, 0.9], [0.9, 0.2]] * 10
    >>> model = treemax.LOMTree().fit(X, ["north", "east", "north", "east"] * 10)
    >>> model.predict([[0.0, 2.0]])
    array(['north'], dtype='<U5')

    References
    ----------
    Choromanska, Langford, "Logarithmic time online multiclass prediction", 2015.
    """

    supports_weights = supports_compact = True
    ONE_LABEL_ONLY = True
    _PUBLISHED: ClassVar[dict[str, Any]] = {"least_weight": 1.0}
    FIXED_IN_STREAM = ("learning_rate",)
    settings_: LOMTreeSettings = field(init=False)
    model_: LOMTreeModel = field(init=False)

    max_nodes: int | str = "auto"
    swap_resistance: float = 4.0
    least_weight: float = 0.03
    passes: int = 3
    learning_rate: float | str = "auto"
    n_jobs: int | None = None
    random_state: Any = 0
    verbose: int = 1
    max_labels: int | None = None
    class_weight: Any = None

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_number("max_nodes", self.max_nodes, whole=True, least=1, auto=True)
        check_number("swap_resistance", self.swap_resistance, least=0)
        check_number("least_weight", self.least_weight, above=0, most=1)
        check_number("passes", self.passes, whole=True, least=1)
        check_number("learning_rate", self.learning_rate, above=0, most=MOST_RATE, auto=True)

    # --- learning ---------------------------------------------------------------------------------------

    def _repeats_rows(self) -> bool:
        return True

    def _train(self, rows: Rows, targets: Targets, index: LabelIndex, multi_label: bool) -> LOMTreeModel:
        model = self._start(rows, targets, index, multi_label)
        orders = row_orders(len(rows), self.passes, self.random_state)
        return self._train_blocks(
            self._learn(model, rows, targets, orders), self.passes * len(rows), "lom-tree", lambda: model
        )

    def _start(self, rows: Rows, targets: Targets, index: LabelIndex, multi_label: bool) -> LOMTreeModel:
        self.settings_ = self._stream_settings(rows, multi_label)
        return empty_model(isinstance(rows, SparseRows), rows.shape[1], len(index))

    def _stream_settings(self, rows: Rows, multi_label: bool) -> LOMTreeSettings:
        squared_length, width = mean_squared_length(rows)
        rate = RATE / math.sqrt(squared_length * width)
        return LOMTreeSettings(
            rate if is_auto(self.learning_rate) else float(self.learning_rate), squared_length / width
        )

    def _resized(self, model: LOMTreeModel, n_features: int, n_labels: int) -> LOMTreeModel:
        self._check_learnable(model, n_features)
        ensure_capacity(model, n_labels, n_features)
        return model

    def _continue(self, model: LOMTreeModel, rows: Rows, targets: Targets) -> Iterator[int]:
        return self._learn(model, rows, targets, [np.arange(len(rows), dtype=np.uint32)])

    def _learn(
        self, model: LOMTreeModel, rows: Rows, targets: Targets, orders: Iterable[NDArray[np.uint32]]
    ) -> Iterator[int]:
        clipped = clip_outliers(rows, self.settings_.initial)
        yield from learn(model, clipped, targets, orders, self.settings_, self._options(model.n_labels))

    def _biases(self, model: LOMTreeModel, ids: NDArray[np.uint32]) -> NDArray[np.float32]:
        return model.regressors.bias[:1]  # of the root, which sees every row

    def _options(self, n_labels: int) -> Options:
        max_nodes = nodes_for(n_labels) if is_auto(self.max_nodes) else int(self.max_nodes)
        return Options(max_nodes, float(self.swap_resistance), float(self.least_weight))

    # --- answering --------------------------------------------------------------------------------------

    @snapshot_access
    def describe(self) -> dict[str, Any]:
        """Return a summary of the model as a dictionary."""
        return {
            **super().describe(),
            "nodes": self.model_.n_inner,
            "depth": self.model_.depth,
            "learning_rate": round(self.settings_.rate, 4),
            "progressive_loss": round(self.progressive_loss_, 4),
        }

    # --- saving -----------------------------------------------------------------------------------------

    def _model_from_parts(self, header: dict[str, Any], arrays: modelfile.Arrays) -> LOMTreeModel:
        self.settings_ = settings_from(LOMTreeSettings, header["settings"])
        return LOMTreeModel.from_parts(header, arrays, len(self.label_index_))
