"""MACH: several small classifiers over random buckets of labels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from sklearn.utils import check_random_state

from treemax import modelfile
from treemax.inputs.conversions import rows_of_block
from treemax.inputs.labels import LabelIndex, Targets, take_targets
from treemax.inputs.rows import Rows, take_rows
from treemax.memory import check_fits
from treemax.models.base.classifier import LabelClassifier, TrainingInterrupted
from treemax.models.base.thread_safety import snapshot_access
from treemax.models.calibration import calibration_from_top_k, labels_to_rank
from treemax.models.mach.model import COMBINE, PRIME, MACHModel, buckets_of
from treemax.models.mach.training import bucket_targets, default_buckets, side_by_side
from treemax.models.one_vs_all.estimator import OneVsAll
from treemax.models.one_vs_all.model import LinearModel
from treemax.models.one_vs_all.training import training_bytes
from treemax.models.training.held_out import held_out_rows
from treemax.models.training.learning_rates import MOST_RATE
from treemax.parallel.progress import progress_bar
from treemax.parallel.threads import thread_count
from treemax.parameters import check_choice, check_flag, check_number, is_auto


@modelfile.saveable
@dataclass(kw_only=True, eq=False, repr=False)
class MACH(LabelClassifier):
    """Merged-average classifiers via hashing: a baseline with fewer outputs than labels.

    In each repetition, a random hash function puts the labels into a few buckets, and a flat linear model learns the
    bucket of a row. The score of a label is the mean probability of its buckets. Prediction computes the scores of all
    labels: the time is linear in their number, only the number of weights is not.

    Parameters
    ----------
    n_buckets : "auto" or int
        Buckets of a repetition; "auto" is twice the square root of the number of labels.
    n_repetitions : int
        Number of hash functions, each with a model of its own.
    combine : "mean", "min" or "median"
        How the probabilities of a label's buckets become its score. It may be changed after training.
    passes, learning_rate, scale
        Those of `OneVsAll`, for the models of the buckets.
    calibration : float
        The share of the rows, at most 2,000, that are left out of training to calibrate the probabilities.
    n_jobs : int or None
        Threads, -1 for all cores. Several threads train without locks: results vary slightly between runs.
    random_state : int, RandomState or None
        Seed of the hash functions and the row order. With one thread, the same seed gives the same model, bit for bit.
    verbose : int
        0 for no progress bar.
    class_weight : None, "balanced" or dict
        Weights of labels, by which those of their rows are multiplied; in multi-label problems the loss of the label
        in its rows. "balanced" is inversely proportional to the frequency.

    Attributes
    ----------
    threshold_ : float
        The probability from which a multi-label `predict` returns a label; it may be set.

    Examples
    --------
    >>> import treemax
    >>> X = [[0.0, 1.0], [1.0, 0.0], [0.1, 0.9], [0.9, 0.2]] * 10
    >>> model = treemax.MACH(verbose=0).fit(X, ["north", "east", "north", "east"] * 10)
    >>> model.predict([[0.0, 2.0]])
    array(['north'], dtype='<U5')

    References
    ----------
    Medini, Huang, Wang, Mohan, Shrivastava, "Extreme classification in log memory using count-min sketch", 2019.
    """

    supports_weights = supports_relevance = supports_compact = True
    model_: MACHModel = field(init=False)
    _PUBLISHED: ClassVar[dict[str, Any]] = {"calibration": 0.0, "scale": False}

    n_buckets: int | str = "auto"
    n_repetitions: int = 16
    combine: str = "mean"
    passes: int | str = "auto"
    learning_rate: float | str = "auto"
    scale: bool = True
    calibration: float = 0.05
    n_jobs: int | None = None
    random_state: Any = 0
    verbose: int = 1
    class_weight: Any = None

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_number("n_buckets", self.n_buckets, whole=True, least=2, most=PRIME, auto=True)
        check_number("n_repetitions", self.n_repetitions, whole=True, least=1, most=65_536)
        check_choice("combine", self.combine, tuple(COMBINE))
        check_number("passes", self.passes, whole=True, least=1, auto=True)
        check_number("learning_rate", self.learning_rate, above=0, most=MOST_RATE, auto=True)
        check_number("calibration", self.calibration, least=0, most=0.5)
        check_flag("scale", self.scale)

    # --- learning ---------------------------------------------------------------------------------------

    def _train(self, rows: Rows, targets: Targets, index: LabelIndex, multi_label: bool) -> MACHModel:
        random = check_random_state(self.random_state)
        held = held_out_rows(len(rows), self.calibration, random)
        learned = np.setdiff1d(np.arange(len(rows), dtype=np.uint32), held)
        parts = take_rows(rows, learned), take_targets(targets, learned)
        multipliers = random.randint(1, PRIME, self.n_repetitions, dtype=np.int64)
        offsets = random.randint(0, PRIME, self.n_repetitions, dtype=np.int64)
        n_buckets, n_labels = self._buckets(len(index)), len(index)
        buckets = buckets_of(multipliers, offsets, n_buckets, np.arange(n_labels))
        trained: list[LinearModel] = []

        def model() -> MACHModel:
            n, flat = len(trained), side_by_side(trained)
            return MACHModel(flat, multipliers[:n], offsets[:n], n_buckets, n_labels, not multi_label)

        with progress_bar(self.n_repetitions, "mach", "repetitions", self.verbose) as bar:
            for repetition in range(self.n_repetitions):
                try:
                    flat = self._flat(int(random.randint(2**31)))
                    of_buckets = bucket_targets(parts[1], buckets[repetition])
                    trained.append(flat.train_ids(parts[0], of_buckets, n_buckets, multi_label))
                except (KeyboardInterrupt, TrainingInterrupted):
                    if not trained:
                        raise KeyboardInterrupt from None
                    raise TrainingInterrupted(model(), repetition / self.n_repetitions) from None
                bar.update(1)
        whole = model()
        if len(held):
            whole.calibration = self._calibrated(whole, take_rows(rows, held), take_targets(targets, held), multi_label)
        return whole

    def _flat(self, seed: int) -> OneVsAll:
        """Return the untrained model of one repetition."""
        return OneVsAll(
            passes=self.passes,
            learning_rate=self.learning_rate,
            scale=self.scale,
            calibration=0.0,
            n_jobs=self.n_jobs,
            random_state=seed,
            verbose=0,
        )

    def _calibrated(self, model: MACHModel, rows: Rows, targets: Targets, multi_label: bool) -> Any:
        k = labels_to_rank(targets, model.n_labels, multi_label)
        ids, scores = model.top_k(rows, k, self.combine, thread_count(self.n_jobs))
        return calibration_from_top_k(ids, scores, targets, model.n_labels, multi_label)

    def _buckets(self, n_labels: int) -> int:
        return default_buckets(n_labels) if is_auto(self.n_buckets) else int(self.n_buckets)

    def _check_size(self, n_features: int, n_labels: int, growing: bool = False) -> None:
        n_buckets = self._buckets(n_labels)
        tables = training_bytes(n_features, n_buckets) // 2 * self.n_repetitions
        check_fits(
            training_bytes(n_features, n_buckets) + tables + 4 * self.n_repetitions * n_labels,
            f"MACH for {n_features:,} features x {self.n_repetitions:,} x {n_buckets:,} buckets",
            "Use fewer features (hashing with fewer bits, a larger min_df), buckets or repetitions.",
        )

    # --- prediction -------------------------------------------------------------------------------------

    def _search(self) -> str:
        return self.combine

    def _rows_at_once(self) -> int:  # whole blocks: the last bits depend on which rows are computed together
        n_labels = len(self.label_index_) if "label_index_" in vars(self) else 1
        return 8 * thread_count(self.n_jobs) * rows_of_block(n_labels)

    @snapshot_access
    def describe(self) -> dict[str, Any]:
        """Return the main properties of the model."""
        return {
            **super().describe(),
            "buckets": self.model_.n_buckets,
            "repetitions": len(self.model_.multipliers),
            "weights": int(np.count_nonzero(self.model_.flat.weights)),
        }

    # --- saving -----------------------------------------------------------------------------------------

    def _model_from_parts(self, header: dict[str, Any], arrays: modelfile.Arrays) -> MACHModel:
        return MACHModel.from_parts(header, arrays, len(self.label_index_))
