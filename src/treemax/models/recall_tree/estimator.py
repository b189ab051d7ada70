"""RecallTree: a tree selects candidate labels in logarithmic time, and regressors rank them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from treemax import modelfile
from treemax.inputs.labels import LabelIndex, Targets, take_targets
from treemax.inputs.rows import Rows, SparseRows, take_rows
from treemax.models.base.online import WithRate
from treemax.models.base.online_trees import OnlineTreeClassifier
from treemax.models.base.thread_safety import snapshot_access
from treemax.models.recall_tree import paper_training as paper
from treemax.models.recall_tree.model import Beam, RecallTreeModel
from treemax.models.recall_tree.paper_model import ROUTER_WEIGHTS, ROWS_AT_ONCE, Descent, PaperTreeModel
from treemax.models.recall_tree.training import (
    RecallTreeSettings,
    calibrate,
    candidates_for,
    depth_for,
    empty_model,
    ensure_capacity,
    learn,
    with_one_more_level,
)
from treemax.models.trained.parts import settings_from, truth
from treemax.models.trained.scaling import scaling_of
from treemax.models.training.held_out import Schedule
from treemax.models.training.learning_rates import MOST_RATE, mean_squared_length, suggestion, suggestion_for_stream
from treemax.parallel.threads import thread_count
from treemax.parameters import check_choice, check_flag, check_number, is_auto

MIN_BEAM_PROBABILITY = 0.01  # nodes with less are not expanded: they change no answer
STREAM_RATE = 0.75  # relative to the rate of a softmax over all labels; chosen on glyphs1k
MAX_DEPTH = 1000  # bounds the memory: each level may preallocate nodes
ROUTER_RATE = 28.0  # divided by row norm * sqrt(features per row); chosen on glyphs1k
PAPER_ROUTER_RATES = {"increase": 5.0, "unit": 5.0, "printed": 2000.0}  # "printed" weights shrink as rows arrive
PASSES = {"dense": 10, "sparse": 5, "paper": 3}

Model = RecallTreeModel | PaperTreeModel


@modelfile.saveable
@dataclass(kw_only=True, eq=False, repr=False)
class RecallTree(WithRate, OnlineTreeClassifier):
    """Online multi-class tree that selects a few candidate labels, ranked by linear regressors.

    Training and prediction are logarithmic in the number of labels. New labels and features may appear at any time.
    Designed for dense vectors; sparse rows work too. `as_published` gives the algorithm of the paper, except for the
    sign of a router's label and the counts of the root; the paper does not state passes and rates.

    Parameters
    ----------
    algorithm : "beam" or "paper"
        "paper" is the algorithm of the paper: a binary tree, a single path that may end early, and logistic regressors.
        "beam" is more accurate: M-ary routers, beam search, and a softmax over the candidates.
    n_candidates : "auto" or int
        Labels scored for each row; "auto" is 30 times the logarithm of the labels seen so far (four times for
        "paper"). With fewer labels, all of them are candidates.
    beam : int
        Nodes kept at each level of the tree. Only for "beam", as are `arity`, `prior` and `least_share`.
    arity : int
        Children of a node.
    depth : "auto" or int
        Levels of routers, for "paper" at most; "auto" is the logarithm of the labels seen so far, if there are enough
        rows.
    passes : "auto" or int
        Epochs of `fit`, each in a new random order; "auto" is ten for dense rows, five for sparse rows and three for
        "paper". `partial_fit` makes one pass, in order.
    learning_rate : "auto" or float
        AdaGrad learning rate of the regressors; "auto" computes it from the data, see `settings_`.
    calibration : float
        Fraction of the rows of `fit`, 2,000 at most, held out until the last passes to calibrate the probabilities of
        "beam". With fewer than five such rows, and in streams, there is no calibration.
    scale : bool
        Whether `fit` centres dense features and scales their standard deviations to between a third and one. Sparse
        rows, streams and "paper" are not scaled.
    n_jobs : int or None
        Threads, -1 for all cores. Several threads update the weights without locks, so results vary slightly.
    random_state : int, RandomState or None
        Seed of the row order. One seed and one thread give the same model, bit for bit.
    verbose : int
        0 for no progress bar.
    max_labels : int or None
        Maximum number of labels in a stream; None for no limit. See `partial_fit`.

    Other Parameters
    ----------------
    prior : float
        Weight of the logarithm of the tree's probability of a label in the label's score.
    router_rate : "auto" or float
        AdaGrad learning rate of the routers; "auto" computes it from the data.
    final_rate : float
        Learning rates at the end of `fit` as a fraction of the initial ones; the decay is linear.
    least_gradient : "auto" or float
        Linear models with a smaller gradient are not updated; "auto" is 0.001, and 0.01 for "paper".
    least_share : float
        Nodes that a row reaches with a smaller probability do not learn from it.
    class_weight : None, "balanced" or dict
        Weights of labels, by which those of their rows are multiplied. "balanced" (not for streams) is inversely
        proportional to the frequency.

    For reproducing the paper
    -------------------------
    bound : float or None
        Lambda of the recall bound (equation 1) that ends the descent early; 0 uses the empirical recall, None always
        descends to a leaf. Only for "paper", as are the next three.
    path_features : bool or "node"
        Whether the nodes on a row's path are features of the regressors; "node" is the last node only, as with
        `--node_only` of Vowpal Wabbit.
    router_weight : "increase", "printed" or "unit"
        Importance weight of a row for a router: the difference in total entropy between the two sides, the difference
        in mean entropy as printed in the paper, or one.
    randomized_routing : bool
        Whether a training row goes to a random side of a node, left with probability 1/2 + score of the router, as with
        the option of Vowpal Wabbit. Predictions are not random.

    Attributes
    ----------
    settings_ : RecallTreeSettings
        The learning rates in use, given or computed from the data.
    learning_rate_, passes_ : float, int
        Learning rate of the regressors, and number of passes.
    progressive_loss_ : float
        Progressive validation error: share of rows predicted wrongly just before they were learned.
    candidate_recall_ : float
        Share of rows whose label was among the candidates just before they were learned.

    Examples
    --------
    >>> import treemax
    >>> X = [[0.0, 1.0], [1.0, 0.0], [0.1, 0.9], [0.9, 0.2]] * 10
    >>> model = treemax.RecallTree().fit(X, ["north", "east", "north", "east"] * 10)
    >>> model.predict([[0.0, 2.0]])
    array(['north'], dtype='<U5')

    References
    ----------
    Daumé III, Karampatziakis, Langford, Mineiro, "Logarithmic time one-against-some", 2017.
    """

    supports_weights = True
    ONE_LABEL_ONLY = True
    _PUBLISHED: ClassVar[dict[str, Any]] = {
        "algorithm": "paper",
        "n_candidates": "auto",
        "depth": "auto",
        "bound": 1.0,
        "path_features": True,
        "router_weight": "printed",
        "final_rate": 1.0,
        "least_gradient": 0.0,
        "calibration": 0.0,
        "scale": False,
    }
    supports_compact = True
    FIXED_IN_STREAM = ("algorithm", "arity", "learning_rate", "router_rate", "least_gradient", "least_share", "scale")
    settings_: RecallTreeSettings = field(init=False)
    model_: Model = field(init=False)

    algorithm: str = "beam"
    n_candidates: int | str = "auto"
    beam: int = 16
    arity: int = 16
    depth: int | str = "auto"
    prior: float = 0.3
    passes: int | str = "auto"
    learning_rate: float | str = "auto"
    router_rate: float | str = "auto"
    final_rate: float = 0.1
    least_gradient: float | str = "auto"
    least_share: float = 0.1
    n_jobs: int | None = None
    random_state: Any = 0
    verbose: int = 1
    bound: float | None = 1.0
    path_features: bool | str = True
    router_weight: str = "increase"
    calibration: float = 0.05
    scale: bool = True
    max_labels: int | None = None
    randomized_routing: bool = False
    class_weight: Any = None

    def _check_parameters(self) -> None:
        super()._check_parameters()
        for name, choices in (("algorithm", ("beam", "paper")), ("router_weight", tuple(ROUTER_WEIGHTS))):
            check_choice(name, getattr(self, name), choices)
        check_number("bound", self.bound, least=0, optional=True)
        check_number("arity", self.arity, whole=True, least=2, most=256)
        check_number("beam", self.beam, whole=True, least=1)
        check_number("depth", self.depth, whole=True, least=1, most=MAX_DEPTH, auto=True)
        for name in ("n_candidates", "passes"):
            check_number(name, getattr(self, name), whole=True, least=1, auto=True)
        for name in ("learning_rate", "router_rate"):
            check_number(name, getattr(self, name), above=0, most=MOST_RATE, auto=True)
        check_number("calibration", self.calibration, least=0, most=0.5)
        for name in ("final_rate", "least_share"):
            check_number(name, getattr(self, name), least=0, most=1)
        check_number("prior", self.prior, least=0)
        check_number("least_gradient", self.least_gradient, least=0, auto=True)
        for name in ("scale", "randomized_routing"):
            check_flag(name, getattr(self, name))
        if not isinstance(self.path_features, str):
            check_flag("path_features", self.path_features)
        elif self.path_features != "node":
            raise ValueError(f'path_features must be True, False or "node", got {self.path_features!r:.60}.')

    # --- learning ---------------------------------------------------------------------------------------

    def _repeats_rows(self) -> bool:
        return self.algorithm == "paper"

    def _train(self, rows: Rows, targets: Targets, index: LabelIndex, multi_label: bool) -> Model:
        n_labels = len(index)
        is_paper, passes = self.algorithm == "paper", self._passes(rows)
        scaling = scaling_of(rows, targets.weights) if self.scale and not is_paper else None
        if scaling is not None and not isinstance(rows, SparseRows):
            rows = scaling(rows)
        suggested = suggestion("softmax", rows, targets, n_labels, passes)
        rate = paper.suggested_rate(rows, targets, n_labels, passes) if is_paper else suggested.rate
        self.settings_ = self._settings(rows, rate, suggested.initial, self.final_rate, passes)
        model = self._empty(rows, n_labels)
        held_share = 0.0 if is_paper else self.calibration
        schedule = Schedule.of(len(rows), passes, held_share, self.random_state)

        def learn_part(orders: Iterable[Any], done: int) -> Iterator[int]:
            return self._learn(model, rows, targets, orders, self.settings_, schedule.planned, done)

        def calibrate_model() -> None:
            if isinstance(model, RecallTreeModel):
                held = take_rows(rows, schedule.held), take_targets(targets, schedule.held)
                calibrate(model, *held, self._beam(model.n_labels), thread_count(self.n_jobs))

        def trained() -> Model:
            model.scaling = scaling
            return model

        return self._train_blocks(schedule.run(learn_part, calibrate_model), schedule.planned, "recall-tree", trained)

    def _passes(self, rows: Rows) -> int:
        if not is_auto(self.passes):
            return int(self.passes)
        if self.algorithm == "paper":
            return PASSES["paper"]
        return PASSES["sparse" if isinstance(rows, SparseRows) else "dense"]

    def _start(self, rows: Rows, targets: Targets, index: LabelIndex, multi_label: bool) -> Model:
        self.settings_ = self._stream_settings(rows, multi_label)
        return self._empty(rows, len(index))

    def _stream_settings(self, rows: Rows, multi_label: bool) -> RecallTreeSettings:
        suggested = suggestion_for_stream("softmax", rows)
        return self._settings(rows, STREAM_RATE * suggested.rate, suggested.initial, 1.0, 1)

    def _resized(self, model: Model, n_features: int, n_labels: int) -> Model:
        self._check_learnable(model, n_features)
        n_candidates = self._search_of(model, n_labels).n_candidates
        if isinstance(model, PaperTreeModel):
            self._check_path_features(model)
            paper.ensure_capacity(model, n_labels, n_features, n_candidates)
            return model
        if not is_auto(self.depth) and int(self.depth) != model.depth:
            raise ValueError(
                f"depth cannot be changed in the middle of a stream: the tree has {model.depth} levels, got {self.depth}. "
                "Set it back, or start a new model."
            )
        ensure_capacity(model, n_labels, n_features, n_candidates)
        while is_auto(self.depth) and model.depth < depth_for(n_labels, model.arity, int(model.found[2])):
            model = with_one_more_level(model, n_candidates)
        return model

    def _check_path_features(self, model: PaperTreeModel) -> None:
        if self.path_features and (self.path_features == "node") != model.node_only:
            known = "the last node only" if model.node_only else "whole paths"
            raise ValueError(
                f"path_features is {self.path_features!r}, but this model has features of {known}. "
                "Set path_features back, or start a new model."
            )

    def _continue(self, model: Model, rows: Rows, targets: Targets) -> Iterator[int]:
        steady = replace(self.settings_, final_rate=1.0)
        order = [np.arange(len(rows), dtype=np.uint32)]
        return self._learn(model, rows, targets, order, steady, len(rows))

    def _biases(self, model: Model, ids: NDArray[np.uint32]) -> NDArray[np.float32]:
        return model.regressors.bias[ids]

    def _learn(
        self, model: Model, rows: Rows, targets: Targets, orders: Iterable[Any], settings: RecallTreeSettings, planned: int,
        done: int = 0,
    ) -> Iterator[int]:  # fmt: skip
        threads = thread_count(self.n_jobs)
        if isinstance(model, PaperTreeModel):
            descent = self._descent(model.n_labels)
            if descent.randomized:
                descent = descent._replace(seed=int(check_random_state(self.random_state).randint(2**31)))
            return paper.learn(model, rows, targets, orders, settings, descent, planned, threads, done)
        beam = self._beam(model.n_labels)
        return learn(model, rows, targets, orders, settings, beam, planned, threads, done)

    def _empty(self, rows: Rows, n_labels: int) -> Model:
        sparse, n_features = isinstance(rows, SparseRows), rows.shape[1]
        if self.algorithm == "paper":
            n_candidates, node_only = self._descent(n_labels).n_candidates, self.path_features == "node"
            return paper.empty_model(sparse, n_features, n_labels, n_candidates, node_only)
        depth = depth_for(n_labels, self.arity, len(rows)) if is_auto(self.depth) else int(self.depth)
        n_candidates = self._beam(n_labels).n_candidates
        return empty_model(sparse, n_features, n_labels, self.arity, depth, n_candidates)

    def _search(self) -> Beam | Descent:
        return self._search_of(self.model_, self.model_.n_labels)

    def _search_of(self, model: Model, n_labels: int) -> Beam | Descent:
        return self._descent(n_labels) if isinstance(model, PaperTreeModel) else self._beam(n_labels)

    def _beam(self, n_labels: int) -> Beam:
        return Beam(self.beam, self._n_candidates(n_labels, candidates_for), MIN_BEAM_PROBABILITY, self.prior)

    def _descent(self, n_labels: int) -> Descent:
        n_candidates = self._n_candidates(n_labels, paper.candidates_for)
        depth = paper.depth_for(n_labels) if is_auto(self.depth) else int(self.depth)
        path_features, randomized = bool(self.path_features), bool(self.randomized_routing)
        return Descent(n_candidates, depth, self.bound, path_features, self.router_weight, randomized)

    def _n_candidates(self, n_labels: int, suggested: Callable[[int], int]) -> int:
        """Return the number of candidates, bounded by the number of labels because nodes preallocate them."""
        if is_auto(self.n_candidates):
            return suggested(n_labels)
        return min(int(self.n_candidates), 1 << max(10, n_labels.bit_length()))

    def _settings(self, rows: Rows, rate: float, initial: float, final_rate: float, passes: int) -> RecallTreeSettings:
        squared_length, width = mean_squared_length(rows)
        is_paper = self.algorithm == "paper"
        router_rate = (PAPER_ROUTER_RATES[self.router_weight] if is_paper else ROUTER_RATE) / math.sqrt(
            squared_length * width
        )
        least = 1e-2 if is_paper else 1e-3
        return RecallTreeSettings(
            rate=rate if is_auto(self.learning_rate) else float(self.learning_rate),
            router_rate=router_rate if is_auto(self.router_rate) else float(self.router_rate),
            initial=initial,
            final_rate=final_rate,
            least_gradient=least if is_auto(self.least_gradient) else float(self.least_gradient),
            least_share=self.least_share,
            passes=passes,
        )

    # --- answering --------------------------------------------------------------------------------------

    def _rows_at_once(self) -> int:  # "paper": rows that end at the same node share memory reads
        return max(super()._rows_at_once(), ROWS_AT_ONCE if self.algorithm == "paper" else 0)

    @property
    def candidate_recall_(self) -> float:
        """Share of rows whose label was among the candidates just before they were learned."""
        _, n_recalled, n_rows = self.model_.found
        return float(n_recalled / max(1, n_rows))

    @snapshot_access
    def describe(self) -> dict[str, Any]:
        """Return a summary of the model as a dictionary."""
        return {
            **super().describe(),
            "depth": self.model_.depth,
            "candidates": self._search().n_candidates,
            "passes": self.settings_.passes,
            "learning_rate": round(self.settings_.rate, 4),
            "router_rate": round(self.settings_.router_rate, 4),
            "progressive_loss": round(self.progressive_loss_, 4),
            "candidate_recall": round(self.candidate_recall_, 4),
        }

    # --- saving -----------------------------------------------------------------------------------------

    def _model_parts(self, resume: bool) -> tuple[dict[str, Any], modelfile.Arrays]:
        header, arrays = self.model_.to_parts(resume)
        is_paper = isinstance(self.model_, PaperTreeModel)
        return {**header, "paper": is_paper, "settings": vars(self.settings_)}, arrays

    def _model_from_parts(self, header: dict[str, Any], arrays: modelfile.Arrays) -> Model:
        self.settings_ = settings_from(RecallTreeSettings, header["settings"])
        kind = PaperTreeModel if truth("paper", header["paper"]) else RecallTreeModel
        return kind.from_parts(header, arrays, len(self.label_index_))
