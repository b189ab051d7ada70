"""SoftmaxTree and SoftmaxForest: hard decisions down to a leaf with a small softmax."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from treemax import modelfile
from treemax.inputs.labels import LabelIndex, Targets
from treemax.inputs.rows import Rows, SparseRows, read_only, take_rows
from treemax.metrics.density import Perplexity, perplexity, probabilities_of_labels
from treemax.models.base.classifier import LabelClassifier, TrainingInterrupted
from treemax.models.base.thread_safety import snapshot_access
from treemax.models.softmax_tree import steps
from treemax.models.softmax_tree.model import SoftmaxTreeModel
from treemax.models.softmax_tree.smoothing import best_smoothing
from treemax.models.softmax_tree.start import Weights
from treemax.models.softmax_tree.state import (
    BETA,
    DROP,
    ZERO_ONE,
    Record,
    SoftmaxTreeState,
    TaoSettings,
    state_from_parts,
    state_parts,
)
from treemax.models.softmax_tree.training import table_of
from treemax.models.trained.parts import real_number
from treemax.models.trained.scaling import moments
from treemax.models.training.learning_rates import clip_outliers, mean_squared_length, power_of_two
from treemax.parallel.pools import Executor, Table, pool_for
from treemax.parallel.progress import progress_bar
from treemax.parallel.threads import thread_count
from treemax.parameters import check_choice, check_flag, check_number
from treemax.trees import NodeLabels

ALPHAS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)  # candidates of alpha="auto"
ALPHAS_ALWAYS_TRIED = 6  # the larger ones only while the largest so far is the best
ALPHA_FOR_FEW_ROWS = 0.01  # if there are too few rows to hold any out
RIDGE_OF_DENSE = 0.1  # sparse rows are more accurate without
SPILL_OF_DENSE, SPILL_OF_SPARSE = 0.4, 0.8
STEPS_OF_DENSE, STEPS_OF_SPARSE = 4, 3
LEVELS_TO_GROW = 2  # initial depth of a growing tree, below that of a complete tree
DENSE = 0.5  # rows with at least this fraction of nonzero values count as dense, in any format
HELD_OUT = 0.1  # fraction of the rows that selects alpha and smoothing
FEWEST_HELD_OUT = 20  # rows
ITERATIONS_TO_CHOOSE = 2
USUAL_LENGTHS = 0.25, 64.0  # of rows; others are scaled, or the penalties would be far too large or too small

Coverage: TypeAlias = tuple[NDArray[np.bool_], NDArray[np.int64], Weights]  # from `SoftmaxTreeModel.coverage`


@modelfile.saveable
@dataclass(kw_only=True, eq=False, repr=False)
class SoftmaxTree(LabelClassifier):
    """Multi-class binary tree of sparse hyperplanes with a small softmax at each leaf.

    A row takes one path, decided by hyperplanes, and only the classes of its leaf are scored, at most `leaf_classes`.
    Trained in batch by tree alternating optimisation (TAO). Designed for dense vectors: for sparse text, `LabelTree` is
    more accurate and far faster to train. `as_published` gives the settings of the paper, except for its solvers
    (LIBLINEAR and SAGA) and for `depth` and `leaf_classes`, which it tunes for each data set.

    Parameters
    ----------
    depth : "auto" or int
        Initial depth of the tree. "auto" is the depth at which each class fits into about three leaves, and two less
        for a growing tree.
    leaf_classes : "auto", int or None
        Maximum number of classes of a leaf; "auto" is proportional to the square root of the number of classes, None is
        all of them.
    alpha : "auto" or float
        L1 penalty of the weights, relative to the sum of the losses of the rows; "auto" selects a value from 0.003 to
        10 by the error on a tenth of the rows, which takes several times as long. Rows with very small or very large values
        are scaled in training, so that penalties do not depend on their units.
    iterations : int
        Maximum number of TAO iterations, each over all nodes from the leaves to the root.
    early_share : float
        Fraction of the rows, drawn anew each time, that all iterations but the last use. 1 is the paper's algorithm;
        less saves most of the time if there are far more rows than weights.
    early_steps : "auto", int or None
        Maximum number of solver steps at a leaf in all iterations but the last, which trains only leaves, to `tolerance`.
        Early iterations use a sample of the rows that spill reaches a leaf with a small probability. "auto" is 4 if at
        least half of the values in the rows are nonzero, else 3. None trains all nodes to `tolerance` in all iterations,
        as in the paper.
    smoothing : "auto" or float
        Probability of each class that is not in the leaf, before normalisation. "auto" is the one with the largest
        likelihood of a tenth of the rows, after a second training on the others; of all rows if there are fewer than 200.
    tolerance : float
        Tolerance of the solvers at the nodes.
    warm_start : bool
        Whether `fit` continues from the current tree, if it has the same shape, up to `iterations` in total.
    n_jobs : int or None
        Threads, -1 for all cores. The tree does not depend on their number.
    random_state : int, RandomState or None
        Seed of the initialisation.
    verbose : int
        0 for no progress bar.

    For reproducing the paper
    -------------------------
    ridge : "auto" or float
        L2 penalty (half of it times the squared weights) at the leaves; "auto" is 0.1 if at least half of the values in
        the rows are nonzero, else 0. 0 is the paper's objective.
    plane_penalty : float
        Factor of the penalties at decision nodes; 1 is the paper's objective.
    missing : "zero-one", "beta" or "drop"
        Loss of a row whose class is not in its leaf. "zero-one" uses the zero-one loss for all rows; "beta" uses
        cross-entropy, and `beta` for such rows; "drop" ignores such rows, which does not work and is here to show it.
    beta : float
        See `missing`.
    start : "balanced", "prototypes", "kmeans", "random" or "gaussian"
        Initial assignment of classes to leaves: balanced bisections of the classes; k-means of class means, or of all
        rows, with greedy merging; random hyperplanes through the median of the rows of each node; or, as in Appendix D
        of the paper, hyperplanes with normally distributed weights and bias, scaled to unit length.
    n_init : int
        Number of runs of k-means with `start="prototypes"` or `"kmeans"`, of which the best is used.
    spill : "auto" or float
        Standard deviation of the noise assumed in the scores of a hyperplane when leaves are trained, relative to that
        of the scores: a row near a hyperplane trains the leaves on both sides, weighted by the probability of each.
        "auto" is 0.4 if at least half of the values in the rows are nonzero, else 0.8. 0 is the paper's algorithm, whose
        objective never increases.
    growth : float
        Between iterations, a leaf is split if it lacks the class of more than this share of its rows, starting from
        `depth`. 1 is the complete tree of the paper.
    accept_worse : bool
        Whether a node takes new parameters also if they increase the objective of its rows, as in Algorithm 1 of the
        paper. Otherwise the objective of the tree never increases (without spill), and training ends with the first
        iteration that does not decrease it.

    Other Parameters
    ----------------
    class_weight : None, "balanced" or dict
        Weights of labels, by which those of their rows are multiplied. "balanced" is inversely proportional to the
        frequency.

    Attributes
    ----------
    history_ : list of Record
        Iteration, depth, objective and training error after the update of each depth; NaN for the objective before all
        nodes have parameters, and for the error but at the end of an iteration.
    alpha_ : float
        The L1 penalty in use.
    smoothing_ : float
        The smoothing in use.

    Examples
    --------
    >>> import treemax
    >>> X = [[0.0, 1.0], [1.0, 0.0], [0.1, 0.9], [0.9, 0.2]] * 10
    >>> model = treemax.SoftmaxTree(verbose=0).fit(X, ["north", "east", "north", "east"] * 10)
    >>> model.predict([[0.0, 2.0]])
    array(['north'], dtype='<U5')

    References
    ----------
    Zharmagambetov, Gabidolla, Carreira-Perpiñán, "Softmax tree: an accurate, fast classifier when the number of
    classes is large", 2021.
    """

    ONE_LABEL_ONLY = True
    supports_weights = supports_compact = True
    supports_distributed = True
    _PUBLISHED: ClassVar[Mapping[str, Any] | None] = {
        "alpha": 0.1,
        "ridge": 0.0,
        "plane_penalty": 1.0,
        "iterations": 20,
        "missing": ZERO_ONE,
        "start": "prototypes",
        "n_init": 10,
        "spill": 0.0,
        "growth": 1.0,
        "accept_worse": True,
        "early_share": 1.0,
        "early_steps": None,
        "smoothing": 0.0,
    }
    model_: SoftmaxTreeModel = field(init=False)
    alpha_: float = field(init=False)
    _best_smoothing_: float | None = field(init=False)  # chosen by smoothing="auto"
    states_: list[SoftmaxTreeState] | None = field(init=False)  # for warm_start

    depth: int | str = "auto"
    leaf_classes: int | str | None = "auto"
    alpha: float | str = 0.01
    ridge: float | str = "auto"
    plane_penalty: float = 10.0
    iterations: int = 6
    missing: str = ZERO_ONE
    beta: float = 100.0
    start: str = "balanced"
    n_init: int = 1
    spill: float | str = "auto"
    growth: float = 0.02
    accept_worse: bool = False
    early_share: float = 1.0
    early_steps: int | str | None = "auto"
    smoothing: float | str = 0.0
    tolerance: float = 1e-3
    warm_start: bool = False
    n_jobs: int | None = None
    random_state: Any = 0
    verbose: int = 1
    class_weight: Any = None

    def _check_parameters(self) -> None:
        for name, choices in (("missing", (ZERO_ONE, BETA, DROP)), ("start", steps.STARTS)):
            check_choice(name, getattr(self, name), choices)
        check_number("depth", self.depth, whole=True, least=0, most=24, auto=True)
        check_number("leaf_classes", self.leaf_classes, whole=True, least=1, auto=True, optional=True)
        for name in ("warm_start", "accept_worse"):
            check_flag(name, getattr(self, name))
        for name in ("iterations", "n_init"):
            check_number(name, getattr(self, name), whole=True, least=1)
        for name in ("beta", "tolerance", "plane_penalty"):
            check_number(name, getattr(self, name), above=0)
        for name in ("alpha", "ridge", "spill"):
            check_number(name, getattr(self, name), least=0, auto=True)
        check_number("growth", self.growth, above=0, most=1)
        check_number("early_share", self.early_share, above=0, most=1)
        check_number("early_steps", self.early_steps, whole=True, least=1, auto=True, optional=True)
        check_number("smoothing", self.smoothing, least=0, most=1, auto=True)

    @property
    def _n_trees(self) -> int:
        return 1

    # --- learning ---------------------------------------------------------------------------------------

    def _train(self, rows: Rows, targets: Targets, index: LabelIndex, multi_label: bool) -> SoftmaxTreeModel:
        n_labels = len(index)
        labels = targets.ids[targets.indptr[0] : targets.indptr[-1]].astype(np.int64)
        weights = targets.weights
        squared_length, width = mean_squared_length(rows, weights)
        rows = clip_outliers(rows, squared_length / width)
        factor = _row_factor(rows, weights, squared_length)
        rows = rows if factor == 1.0 else _times(rows, factor)
        random = check_random_state(self.random_state)
        states = [state.with_weights_times(1.0 / factor) for state in self._warm_start_states(rows, n_labels)]
        alpha = self.alpha_ if states else self._selected_alpha(rows, labels, weights, n_labels, random)
        settings = self._settings(rows, alpha, n_labels)
        started: list[Any] = [(state, None) for state in states] or [
            self._initial_state(rows, labels, weights, n_labels, random) for _ in range(self._n_trees)
        ]
        chooses = self.smoothing == "auto"
        levels = (1 + chooses) * sum((self.iterations * (state.depth + 1)) for state, _ in started)
        done, table = 0, table_of(rows, labels, weights)
        executor = pool_for(thread_count(self.n_jobs)).share(table)
        with progress_bar(levels, "softmax-tree", "depths", self.verbose) as bar:

            def train(table: Table, executor: Executor, started: list[Any]) -> None:
                nonlocal done
                for state, leaf_of in started:
                    for _ in steps.train(table, executor, state, leaf_of, settings, self.iterations):
                        done += 1
                        bar.update(1)
                        bar.set_postfix_str(_progress_text(state.history))

            def kept(states: list[SoftmaxTreeState], held_out: Coverage | None) -> SoftmaxTreeModel:
                trees = [steps.prune(table, executor, state, settings) for state in states]
                model = SoftmaxTreeModel.pack(trees, n_labels, rows.shape[1])
                smoothing = self._best_smoothing(model, rows, labels, weights, held_out)
                self._keep([state.with_weights_times(factor) for state in states], alpha, smoothing)
                return model if factor == 1.0 else SoftmaxTreeModel.pack(trees, n_labels, rows.shape[1], factor)

            try:
                train(table, executor, started)
                held_out = None
                if chooses:
                    held_out = self._held_out_coverage(rows, labels, weights, n_labels, random, settings, train)
            except KeyboardInterrupt:
                whole = [state for state, _ in started if state.is_complete]
                if not whole:
                    raise
                raise TrainingInterrupted(kept(whole, None), done / levels) from None
        return kept([state for state, _ in started], held_out)

    def _keep(self, states: list[SoftmaxTreeState], alpha: float, smoothing: float | None) -> None:
        self.states_, self.alpha_, self._best_smoothing_ = states, alpha, smoothing

    def _initial_state(
        self, rows: Rows, labels: NDArray[np.int64], weights: Weights, n_labels: int, random: np.random.RandomState
    ) -> tuple[SoftmaxTreeState, NDArray[np.int64] | None]:
        depth = self._depth(n_labels)
        return steps.initial_state(rows, labels, n_labels, depth, self.start, random, int(self.n_init), weights)

    def _pack(
        self, states: Sequence[SoftmaxTreeState], table: Table, executor: Executor, settings: TaoSettings, n_labels: int
    ) -> SoftmaxTreeModel:
        trees = [steps.prune(table, executor, state, settings) for state in states]
        return SoftmaxTreeModel.pack(trees, n_labels, table.rows.shape[1])

    def _warm_start_states(self, rows: Rows, n_labels: int) -> list[SoftmaxTreeState]:
        if not self.warm_start or "model_" not in self.__dict__:
            return []
        states = self.__dict__.get("states_")
        if states is None:
            raise ValueError(
                "warm_start=True: this model was saved without its learning state. Save it with save(path, resume=True), "
                "or fit with warm_start=False."
            )
        same = self.model_.n_features == rows.shape[1] and self.model_.n_labels == n_labels
        grows = self.growth < 1.0
        if not same or any(state.depth != self._depth(n_labels) and not grows for state in states):
            raise ValueError(
                "warm_start=True needs the same features, labels and depth as the previous fit; "
                "fit with warm_start=False instead."
            )
        return copy.deepcopy(list(states))  # training changes them, and another thread may be saving this model

    def _depth(self, n_labels: int) -> int:
        if self.depth != "auto":
            return int(self.depth)
        complete = steps.depth_for(n_labels, self._leaf_classes(n_labels))
        return max(min(complete, 1), complete - LEVELS_TO_GROW) if self.growth < 1.0 else complete

    def _leaf_classes(self, n_labels: int) -> int:
        if self.leaf_classes is None:
            return n_labels
        return steps.classes_for(n_labels) if self.leaf_classes == "auto" else int(self.leaf_classes)

    def _settings(self, rows: Rows, alpha: float, n_labels: int) -> TaoSettings:
        dense = _are_dense(rows)
        ridge = float(self.ridge) if self.ridge != "auto" else RIDGE_OF_DENSE if dense else 0.0
        spill = float(self.spill) if self.spill != "auto" else SPILL_OF_DENSE if dense else SPILL_OF_SPARSE
        steps_before: Any = self.early_steps
        early_steps = steps_before if steps_before != "auto" else STEPS_OF_DENSE if dense else STEPS_OF_SPARSE
        return TaoSettings(
            alpha, self._leaf_classes(n_labels), self.missing, self.beta, spill, self.tolerance, ridge=ridge,
            plane_alpha=self.plane_penalty * alpha, plane_ridge=self.plane_penalty * ridge, growth=self.growth,
            early_share=float(self.early_share), early_steps=early_steps, accept_worse=bool(self.accept_worse),
        )  # fmt: skip

    def _selected_alpha(
        self, rows: Rows, labels: NDArray[np.int64], weights: Weights, n_labels: int, random: np.random.RandomState
    ) -> float:
        """Return the penalty with the smallest error on held-out rows, after few iterations."""
        if self.alpha != "auto":
            return float(self.alpha)
        parts = _split(len(rows), random)
        if parts is None:
            return ALPHA_FOR_FEW_ROWS
        held, kept = parts
        kept_weights = None if weights is None else weights[kept]
        table, threads = table_of(take_rows(rows, kept), labels[kept], kept_weights), thread_count(self.n_jobs)
        executor = pool_for(threads).share(table)
        initial = self._initial_state(table.rows, labels[kept], kept_weights, n_labels, random)
        best, fewest = ALPHA_FOR_FEW_ROWS, math.inf
        for number, alpha in enumerate(ALPHAS):
            if number >= ALPHAS_ALWAYS_TRIED and best != ALPHAS[number - 1]:
                break
            settings = self._settings(rows, alpha, n_labels)
            state = SoftmaxTreeState(initial[0].depth, list(initial[0].planes), list(initial[0].leaves))
            for _ in steps.train(table, executor, state, initial[1], settings, ITERATIONS_TO_CHOOSE):
                pass
            model = self._pack([state], table, executor, settings, n_labels)
            ids, _ = model.top_k(take_rows(rows, held), 1, threads=threads)
            of_held = None if weights is None else weights[held]
            wrong = float(np.average(ids[:, 0] != labels[held], weights=of_held))
            if wrong < fewest:
                best, fewest = alpha, wrong
        return best

    def _held_out_coverage(
        self, rows: Rows, labels: NDArray[np.int64], weights: Weights, n_labels: int, random: np.random.RandomState,
        settings: TaoSettings, train: Callable[[Table, Executor, list[Any]], None],
    ) -> Coverage | None:  # fmt: skip
        """Return which held-out rows find their class at the leaves of trees trained on the others; None if few."""
        parts = _split(len(rows), random)
        if parts is None:
            return None
        held, kept = parts
        kept_weights = None if weights is None else weights[kept]
        table, threads = table_of(take_rows(rows, kept), labels[kept], kept_weights), thread_count(self.n_jobs)
        executor = pool_for(threads).share(table)
        started = [
            self._initial_state(table.rows, labels[kept], kept_weights, n_labels, random) for _ in range(self._n_trees)
        ]
        train(table, executor, started)
        model = self._pack([state for state, _ in started], table, executor, settings, n_labels)
        return *model.coverage(take_rows(rows, held), labels[held], threads), None if weights is None else weights[held]

    def _best_smoothing(
        self,
        model: SoftmaxTreeModel,
        rows: Rows,
        labels: NDArray[np.int64],
        weights: Weights,
        held_out: Coverage | None,
    ) -> float | None:
        """Return the smoothing by the held-out rows, or by the training rows where none were held out."""
        if self.smoothing != "auto":
            return None
        return best_smoothing(*(held_out or (*model.coverage(rows, labels, thread_count(self.n_jobs)), weights)))

    # --- answering --------------------------------------------------------------------------------------

    def _search(self) -> float:
        if self.smoothing == "auto" and self._best_smoothing_ is None:
            raise ValueError('smoothing must be a number, since fit did not choose it: set one, or fit with "auto".')
        return self.smoothing_

    @property
    def smoothing_(self) -> float:
        """The smoothing in use: `smoothing`, or what `fit` chose for "auto"."""
        if self.smoothing != "auto":
            return float(self.smoothing)
        if self.__dict__.get("_best_smoothing_") is None:
            raise AttributeError(f'{type(self).__name__} has no smoothing_ before it is fitted with smoothing="auto"')
        return float(self._best_smoothing_)  # type: ignore[arg-type]

    def perplexity(self, X: Any, y: Any) -> Perplexity:
        """Return the perplexity of the labels over the rows whose label is in their leaf, and the share of these rows.

        With `smoothing` every label of training has a probability; one that training never had is in no leaf.
        """
        return perplexity(probabilities_of_labels(self, X, np.asarray(y).ravel().tolist()))

    @property
    def history_(self) -> list[Record]:
        """The training history after the update of each depth, tree by tree."""
        return [record for state in self.states_ or [] for record in state.history]

    @snapshot_access
    def node_labels(self) -> NodeLabels:
        """Return the labels at each node of the (first) tree; for `show_tree` and `plot_tree`."""
        return self.model_.node_labels()

    @snapshot_access
    def describe(self) -> dict[str, Any]:
        """Return a summary of the model as a dictionary."""
        facts, model = super().describe(), self.model_
        return {
            **facts,
            "trees": len(model.structure.roots),
            "depth": model.depth,
            "leaves": model.n_leaves,
            "classes_of_a_leaf": round(float(np.diff(model.structure.starts).mean()), 1),
            "alpha": self.alpha_,
            **({"smoothing": self.smoothing_} if self.smoothing == "auto" else {}),
        }

    # --- saving -----------------------------------------------------------------------------------------

    def _compact_state(self, kept: NDArray[np.bool_]) -> None:
        self.states_ = self.states_ and [state.without_labels(kept) for state in self.states_]

    def _model_parts(self, resume: bool) -> tuple[dict[str, Any], modelfile.Arrays]:
        header, arrays = self.model_.to_parts(resume)
        header |= {"alpha": self.alpha_, "smoothing": self._best_smoothing_, "states": []}
        if resume and self.states_ is not None:
            for i, state in enumerate(self.states_):
                own, parts = state_parts(state)
                header["states"].append(own)
                arrays |= modelfile.prefixed(f"state{i}", parts)
        return header, arrays

    def _model_from_parts(self, header: dict[str, Any], arrays: modelfile.Arrays) -> SoftmaxTreeModel:
        model = SoftmaxTreeModel.from_parts(header, arrays, len(self.label_index_))
        chosen = header.get("smoothing")
        smoothing = None if chosen is None else real_number("smoothing", chosen, most=1.0)
        self._keep([], real_number("alpha", header["alpha"]), smoothing)
        self.states_ = None
        if header["states"]:
            self.states_ = []
            for i, own in enumerate(header["states"]):
                parts = modelfile.part(f"state{i}", arrays)
                self.states_.append(state_from_parts(own, parts, model.n_features, model.n_labels))
        return model


@modelfile.saveable
@dataclass(kw_only=True, eq=False, repr=False)
class SoftmaxForest(SoftmaxTree):
    """Average of the probabilities of softmax trees with different initialisations: more accurate than one larger tree.

    Other parameters are those of `SoftmaxTree`.

    Parameters
    ----------
    n_trees : int
        Number of trees.

    Examples
    --------
    >>> import treemax
    >>> X = [[0.0, 1.0], [1.0, 0.0], [0.1, 0.9], [0.9, 0.2]] * 10
    >>> model = treemax.SoftmaxForest(n_trees=2, verbose=0).fit(X, ["north", "east", "north", "east"] * 10)
    >>> model.predict([[0.0, 2.0]])
    array(['north'], dtype='<U5')
    """

    _PUBLISHED = None

    n_trees: int = 4
    iterations: int = 5

    def _check_parameters(self) -> None:
        check_number("n_trees", self.n_trees, whole=True, least=1)
        super()._check_parameters()

    @property
    def _n_trees(self) -> int:
        return int(self.n_trees)


def _progress_text(history: Sequence[Record]) -> str:
    """Return text for the progress bar; the training error is that after the last full iteration."""
    last = history[-1]
    words = [f"iteration {last.iteration + 1}", f"depth {last.depth}"]
    if not math.isnan(last.objective):
        words.append(f"objective {last.objective:,.0f}")
    errors = [record.error for record in history if not math.isnan(record.error)]
    return ", ".join(words + [f"training error {error:.1%}" for error in errors[-1:]])


def _split(n_rows: int, random: np.random.RandomState) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Return held-out rows and the others; None if there would be too few of them."""
    n_held = int(HELD_OUT * n_rows)
    if n_held < FEWEST_HELD_OUT:
        return None
    order = random.permutation(n_rows)
    return np.sort(order[:n_held]), np.sort(order[n_held:])


def _are_dense(rows: Rows) -> bool:
    used = rows.nnz if isinstance(rows, SparseRows) else np.count_nonzero(rows)
    return bool(used >= DENSE * rows.shape[0] * rows.shape[1])


def _row_factor(rows: Rows, weights: Weights, squared_length: float) -> float:
    """Return the power of two by which rows are multiplied in training: one, unless they are far too short or too long.

    Dense rows are measured from their mean, since the solvers centre them.
    """
    if not isinstance(rows, SparseRows):
        squared_length = float(np.square(moments(rows, weights)[1]).sum()) or 1.0
    length = math.sqrt(squared_length)
    return power_of_two(min(max(length, USUAL_LENGTHS[0]), USUAL_LENGTHS[1]) / length)


def _times(rows: Rows, factor: float) -> Rows:
    """Return the rows times a number."""
    if isinstance(rows, SparseRows):
        return replace(rows, values=read_only(rows.values * np.float32(factor)))
    return read_only(rows * np.float32(factor))
