"""One-vs-all linear classification, the flat baseline of the trees."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from treemax import modelfile
from treemax.inputs.conversions import rows_of_block
from treemax.inputs.labels import LabelIndex, Targets, take_targets
from treemax.inputs.rows import Rows, SparseRows, take_rows
from treemax.memory import check_fits
from treemax.models.base.online import OnlineLabelClassifier, WithRate
from treemax.models.base.thread_safety import snapshot_access
from treemax.models.calibration import Calibration, calibration_from_top_k, labels_to_rank
from treemax.models.one_vs_all import model as linear
from treemax.models.one_vs_all.sampling_kernels import Sampling
from treemax.models.one_vs_all.training import (
    LOSSES,
    MOST_BATCH_ROWS,
    AdaGradSettings,
    TrainableModel,
    empty_model,
    learn,
    prior_bias,
    resized,
    training_bytes,
)
from treemax.models.trained.parts import real_number, settings_from
from treemax.models.trained.scaling import Scaling, scaling_of
from treemax.models.training.held_out import Schedule
from treemax.models.training.learning_rates import MOST_RATE, suggestion, suggestion_for_stream
from treemax.parallel.threads import thread_count
from treemax.parameters import check_choice, check_flag, check_number, is_auto

PASSES = {"dense": 10, "sparse": 5}  # rare features overfit sooner


@modelfile.saveable
@dataclass(kw_only=True, eq=False, repr=False)
class OneVsAll(WithRate, OnlineLabelClassifier):
    """One linear classifier per label, trained together by AdaGrad.

    Training and prediction take time and memory linear in the number of labels: the reference for accuracy, and the
    model of choice below about a thousand labels. Dense and sparse rows have different layouts of the weights.

    Parameters
    ----------
    loss : "auto", "softmax", "logistic" or "squared_hinge"
        "auto" is softmax for multi-class and logistic for multi-label problems.
    passes : "auto" or int
        Passes over the data in `fit`, each in a new random order; "auto" is ten for dense rows and five for sparse
        ones. `partial_fit` makes one pass, in order.
    learning_rate : "auto" or float
        AdaGrad's learning rate; "auto" computes it from the data, see `settings_`.
    scale : bool
        Whether `fit` scales dense features: centred, and with standard deviations from a third to one. Sparse rows and
        streams are not scaled.
    calibration : float
        The share of the rows of `fit`, at most 2,000, that are held out until the last passes, to calibrate the
        probabilities. With fewer than five such rows, and in streams, probabilities are not calibrated.
    n_jobs : int or None
        Threads, -1 for all cores. Several threads train without locks: results vary slightly between runs.
    max_memory : float or None
        Raise an error if training needs more than this many GB; None is 80% of the available memory.
    random_state : int, RandomState or None
        Seed of the row order. With one thread, the same seed gives the same model, bit for bit.
    verbose : int
        0 for no progress bar.
    max_labels : int or None
        Maximum number of labels in a stream; None for no limit. See `partial_fit`.

    Other Parameters
    ----------------
    final_rate : float
        Final learning rate of `fit` as a share of the initial one; it decreases linearly.
    initial_accumulator : "auto" or float
        Initial value of AdaGrad's sums of squared gradients: a larger value makes the first steps smaller.
    batch_size : int
        Rows whose scores are computed together.
    least_gradient : float
        Labels with a smaller gradient are not updated: with a softmax soon most of them.
    negatives : int or None
        Number of labels, drawn at random for each row, that learn that they are not its label; their gradients are
        multiplied so that their expected sum is that of all labels. Training then takes time in proportion to this
        number. None updates all labels. Not for the softmax; "auto" is then the logistic loss.
    class_weight : None, "balanced" or dict
        Weights of labels, by which those of their rows are multiplied; in multi-label problems the loss of the label
        in its rows. "balanced" (not for streams) is inversely proportional to the frequency.

    Attributes
    ----------
    settings_ : AdaGradSettings
        Loss, learning rate and initial sums in use, including those computed from the data.
    learning_rate_, passes_ : float, int
        The learning rate and the number of passes of these settings.
    threshold_ : float
        The probability from which a multi-label `predict` returns a label; it may be set.

    Examples
    --------
    >>> import treemax
    >>> X = [[0.0, 1.0], [1.0, 0.0], [0.1, 0.9], [0.9, 0.2]] * 10
    >>> model = treemax.OneVsAll(passes=5).fit(X, ["north", "east", "north", "east"] * 10)
    >>> model.predict([[0.0, 2.0]])
    array(['north'], dtype='<U5')
    >>> labels, scores = model.predict_topk([[0.0, 2.0]], k=2)
    >>> labels.tolist(), bool(scores[0, 0] > 0.9)
    ([['north', 'east']], True)
    """

    FIXED_IN_STREAM = (
        "loss", "learning_rate", "final_rate", "initial_accumulator", "batch_size", "least_gradient", "scale",
    )  # fmt: skip
    supports_weights = supports_relevance = supports_compact = True
    settings_: AdaGradSettings = field(init=False)
    _calibration: Calibration | None = field(init=False)
    STREAM_RARITY = 100  # minimum number of labels that initial biases in a stream assume

    loss: str = "auto"
    passes: int | str = "auto"
    learning_rate: float | str = "auto"
    final_rate: float = 0.1
    initial_accumulator: float | str = "auto"
    batch_size: int = 16
    least_gradient: float = 1e-3
    n_jobs: int | None = None
    max_memory: float | None = None
    random_state: Any = 0
    verbose: int = 1
    scale: bool = True
    calibration: float = 0.05
    max_labels: int | None = None
    negatives: int | None = None
    class_weight: Any = None

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_choice("loss", self.loss, LOSSES, auto=True)
        check_number("passes", self.passes, whole=True, least=1, auto=True)
        check_number("calibration", self.calibration, least=0, most=0.5)
        check_number("batch_size", self.batch_size, whole=True, least=1, most=MOST_BATCH_ROWS)
        check_number("final_rate", self.final_rate, least=0, most=1)
        check_number("least_gradient", self.least_gradient, least=0)
        check_number("learning_rate", self.learning_rate, above=0, most=MOST_RATE, auto=True)
        check_number("initial_accumulator", self.initial_accumulator, above=0, auto=True)
        check_flag("scale", self.scale)
        if self.negatives is not None:
            check_number("negatives", self.negatives, whole=True, least=1)
            if self.loss == "softmax":
                raise ValueError(
                    f"negatives is {self.negatives}, but the softmax needs all labels. "
                    "Use loss='logistic' or 'squared_hinge', or negatives=None."
                )
        check_number("max_memory", self.max_memory, above=0, optional=True)

    # --- learning ---------------------------------------------------------------------------------------

    def _train(self, rows: Rows, targets: Targets, index: LabelIndex, multi_label: bool) -> linear.LinearModel:
        return self.train_ids(rows, targets, len(index), multi_label)

    def train_ids(self, rows: Rows, targets: Targets, n_labels: int, multi_label: bool) -> linear.LinearModel:
        """Train on label ids and return the model, for other models; the estimator itself is not fitted."""
        scaling = scaling_of(rows, targets.weights) if self.scale else None
        if scaling is not None and not isinstance(rows, SparseRows):
            rows = scaling(rows)
        settings = self._settings(rows, targets, n_labels, multi_label)
        bias = prior_bias(settings.loss, targets.label_totals(n_labels), targets.total)
        model = empty_model(isinstance(rows, SparseRows), rows.shape[1], bias)
        schedule = Schedule.of(len(rows), settings.passes, self.calibration, self.random_state)
        self.settings_, self._calibration = settings, None
        sampling, threads = self._sampling(0), thread_count(self.n_jobs)

        def learn_part(orders: Iterator[NDArray[np.uint32]], done: int) -> Iterator[int]:
            return learn(model, rows, targets, orders, settings, schedule.planned, threads, done, sampling)

        def calibrate() -> None:
            held = take_rows(rows, schedule.held), take_targets(targets, schedule.held)
            self._calibration = self._calibrated(model, *held, multi_label)

        blocks = schedule.run(learn_part, calibrate)
        return self._train_blocks(blocks, schedule.planned, "one-vs-all", lambda: self._packed(model, scaling))

    def _calibrated(self, model: TrainableModel, rows: Rows, targets: Targets, multi_label: bool) -> Calibration:
        """Return the calibration of held-out rows."""
        k = labels_to_rank(targets, model.n_labels, multi_label)
        link = linear.Link(self.settings_.loss, not multi_label)
        ids, scores = model.top_k(rows, k, link, thread_count(self.n_jobs))
        return calibration_from_top_k(ids, scores, targets, model.n_labels, multi_label)

    def _calibration_of(self, model: Any) -> Calibration | None:
        return self._calibration

    def _packed(self, model: TrainableModel, scaling: Scaling | None) -> linear.LinearModel:
        """Return the trained model, packed and with the scaling of the rows."""
        if scaling is not None and isinstance(model, linear.LabelMajor):
            model.mean, model.factor = scaling
        return linear.packed(model)

    def _start(self, rows: Rows, targets: Targets, index: LabelIndex, multi_label: bool) -> linear.LinearModel:
        self.settings_ = self._stream_settings(rows, multi_label)
        self._calibration = None
        bias = self._initial_bias(len(index))
        return empty_model(isinstance(rows, SparseRows), rows.shape[1], bias)

    def _stream_settings(self, rows: Rows, multi_label: bool) -> AdaGradSettings:
        return self._settings(rows, None, 0, multi_label)

    def _resized(self, model: linear.LinearModel, n_features: int, n_labels: int) -> TrainableModel:
        return resized(model, n_features, self._initial_bias(n_labels))

    def _continue(self, model: TrainableModel, rows: Rows, targets: Targets) -> Iterator[int]:
        settings = self.settings_
        order = [np.arange(len(rows), dtype=np.uint32)]
        steady = replace(settings, rate=settings.rate * settings.final_rate, final_rate=1.0)
        threads, sampling = thread_count(self.n_jobs), self._sampling(self.n_examples_)
        return learn(model, rows, targets, order, steady, len(rows), threads, sampling=sampling)

    def _sampling(self, n_before: int) -> Sampling | None:
        """Return how negative labels are drawn after `n_before` rows."""
        if self.negatives is None:
            return None
        seed = check_random_state(self.random_state).randint(2**31)
        return Sampling(int(self.negatives), np.uint64(seed), n_before)

    def _biases(self, model: TrainableModel, ids: NDArray[np.uint32]) -> NDArray[np.float32]:
        return model.bias[ids]

    def _initial_bias(self, n_labels: int) -> NDArray[np.float32]:
        """Return the initial biases of labels in a stream: the prior of `n_labels` equally frequent labels."""
        return prior_bias(self.settings_.loss, np.zeros(n_labels, dtype=np.int64), max(n_labels, self.STREAM_RARITY))

    def _settings(self, rows: Rows, targets: Targets | None, n_labels: int, multi_label: bool) -> AdaGradSettings:
        """Return the settings for passes over these rows, or without targets for a stream that begins with them."""
        stream = targets is None
        independent = multi_label or self.negatives is not None
        loss = self.loss if self.loss != "auto" else ("logistic" if independent else "softmax")
        passes = _passes(self.passes, rows)
        if targets is None:
            suggested = suggestion_for_stream(loss, rows)
        else:
            suggested = suggestion(loss, rows, targets, n_labels, passes)
        return AdaGradSettings(
            loss=loss,
            rate=suggested.rate if self.learning_rate == "auto" else float(self.learning_rate),
            initial=suggested.initial if self.initial_accumulator == "auto" else float(self.initial_accumulator),
            constant=suggested.constant,
            final_rate=1.0 if stream else self.final_rate,
            batch_rows=self.batch_size,
            least_gradient=self.least_gradient,
            passes=1 if stream else passes,
        )

    def _check_size(self, n_features: int, n_labels: int, growing: bool = False) -> None:
        check_fits(
            training_bytes(n_features, n_labels, self.model_ if growing else None),
            f"OneVsAll for {n_features:,} features x {n_labels:,} labels",
            "Use fewer features (hashing with fewer bits, a larger min_df), fewer labels, or a larger max_memory.",
            None if self.max_memory is None else self.max_memory * 1e9,
        )

    # --- prediction -------------------------------------------------------------------------------------

    def _search(self) -> linear.Link:
        return linear.Link(self.settings_.loss, not self.multi_label_)

    def _rows_at_once(self) -> int:  # whole blocks, since the last bits depend on which rows are computed together
        blocks = 8 * thread_count(self.n_jobs)
        return blocks * rows_of_block(len(self.label_index_)) if "label_index_" in vars(self) else blocks

    @snapshot_access
    def describe(self) -> dict[str, Any]:
        """Return the main properties of the model."""
        facts, weights = super().describe(), self.model_.weights
        return {
            **facts,
            "loss": self.settings_.loss,
            "passes": self.settings_.passes,
            "learning_rate": round(self.settings_.rate, 4),
            "layout": self.model_.layout,
            "weights": int(np.count_nonzero(weights)),
        }

    # --- saving -----------------------------------------------------------------------------------------

    def _model_parts(self, resume: bool) -> tuple[dict[str, Any], modelfile.Arrays]:
        header, arrays = super()._model_parts(resume)
        return {**header, "settings": vars(self.settings_)}, arrays

    def _model_from_parts(self, header: dict[str, Any], arrays: modelfile.Arrays) -> linear.LinearModel:
        self.settings_ = settings_from(AdaGradSettings, header["settings"])
        self._calibration = None
        real_number("constant", self.settings_.constant, most=1e15)  # it is squared
        if self.settings_.loss not in LOSSES:
            raise ValueError(f"unknown loss {self.settings_.loss!r}")
        return linear.LinearModel.from_parts(header, arrays, len(self.label_index_))


def _passes(given: int | str, rows: Rows) -> int:
    if not is_auto(given):
        return int(given)
    return PASSES["sparse" if isinstance(rows, SparseRows) else "dense"]
