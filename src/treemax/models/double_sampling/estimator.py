"""Double sampling: candidates by their centroids, ranked by ten similarities."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from sklearn.utils import check_random_state

from treemax import modelfile
from treemax.inputs.conversions import sparsified
from treemax.inputs.labels import LabelIndex, Targets, take_targets
from treemax.inputs.rows import Rows, SparseRows, take_rows
from treemax.memory import check_fits
from treemax.models.base.classifier import LabelClassifier
from treemax.models.base.thread_safety import snapshot_access
from treemax.models.calibration import calibration_from_top_k, labels_to_rank
from treemax.models.double_sampling.model import SIMILARITIES, DoubleSamplingModel, Search
from treemax.models.double_sampling.training import Examples, PairSettings, class_statistics, sample_rows, train_weights
from treemax.models.training.held_out import held_out_rows
from treemax.parallel.progress import progress_bar
from treemax.parallel.threads import thread_count
from treemax.parameters import check_choice, check_number

BYTES_OF_FEATURE, BYTES_OF_LABEL = 64, 128  # memory in training


@modelfile.saveable
@dataclass(kw_only=True, eq=False, repr=False)
class DoubleSampling(LabelClassifier):
    """Double sampling, (pi, kappa)-DS: a baseline that learns ten weights for all classes together. One label a row.

    A row and a class are described by ten similarities: common features weighted by their frequency in the class and
    in all rows, BM25, and the distance to the centroid of the class. A linear model learns from pairs of classes, the
    right one and an adversary, which of them is right. Answers are the classes with the nearest centroids, ranked by
    that model; all other classes have probability zero.

    The similarities are meant for words and their counts or TF-IDF. Dense rows are accepted, as sparse rows with few
    zeros; all classes then have all features in common, and little but the distance distinguishes them.

    Parameters
    ----------
    n_candidates : int
        Classes that are ranked. It may be changed after training.
    distance : "cosine" or "euclidean"
        The distance to centroids by which candidates are found. It may be changed after training.
    adversaries : "nearest" or "random"
        The classes that a row is compared with: those with the nearest centroids, while its own class leaves the row
        out and is among the nearest, or others at random.
    n_adversaries : int
        Adversaries of a row, kappa in the paper.
    rows_per_class : float
        Rows of a class that are compared with adversaries, on average; of smaller classes all rows are (pi in the
        paper). At most 200,000 rows of all classes.
    calibration : float
        The share of the rows, at most 2,000, that are left out of training to calibrate the probabilities.
    n_jobs : int or None
        Threads, -1 for all cores. Results do not depend on their number.
    random_state : int, RandomState or None
        Seed of both samplings.
    verbose : int
        0 for no progress bar.

    Other Parameters
    ----------------
    class_weight : None, "balanced" or dict
        Weights of labels, by which those of their rows are multiplied, with one label per row. "balanced" is inversely
        proportional to the frequency. Rows are learned as often as their weights say.

    Examples
    --------
    >>> import treemax
    >>> X = [[0.0, 1.0], [1.0, 0.0], [0.1, 0.9], [0.9, 0.2]] * 10
    >>> model = treemax.DoubleSampling(verbose=0).fit(X, ["north", "east", "north", "east"] * 10)
    >>> model.predict([[0.0, 2.0]])
    array(['north'], dtype='<U5')

    References
    ----------
    Joshi, Amini, Partalas, Iutzeler, Maximov, "Aggressive sampling for multi-class to binary reduction with applications
    to text classification", 2017.
    """

    ONE_LABEL_ONLY = True
    model_: DoubleSamplingModel = field(init=False)
    supports_compact = supports_weights = True
    _PUBLISHED: ClassVar[dict[str, Any]] = {
        "distance": "euclidean",
        "adversaries": "random",
        "rows_per_class": 10.0,
        "calibration": 0.0,
    }

    n_candidates: int = 25
    distance: str = "cosine"
    adversaries: str = "nearest"
    n_adversaries: int = 5
    rows_per_class: float = 100.0
    calibration: float = 0.05
    n_jobs: int | None = None
    random_state: Any = 0
    verbose: int = 1
    class_weight: Any = None

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_number("n_candidates", self.n_candidates, whole=True, least=1, most=2**31)
        check_choice("distance", self.distance, ("cosine", "euclidean"))
        check_choice("adversaries", self.adversaries, ("nearest", "random"))
        check_number("n_adversaries", self.n_adversaries, whole=True, least=1, most=10_000)
        check_number("rows_per_class", self.rows_per_class, above=0, most=1e9)
        check_number("calibration", self.calibration, least=0, most=0.5)

    # --- learning ---------------------------------------------------------------------------------------

    def _repeats_rows(self) -> bool:
        return True

    def _train(self, rows: Rows, targets: Targets, index: LabelIndex, multi_label: bool) -> DoubleSamplingModel:
        random = check_random_state(self.random_state)
        held = held_out_rows(len(rows), self.calibration, random)
        learned = np.setdiff1d(np.arange(len(rows), dtype=np.uint32), held)
        sparse, labels = sparsified(take_rows(rows, learned)), take_targets(targets, learned).ids
        statistics = class_statistics(sparse, labels, len(index))
        model = DoubleSamplingModel(statistics, self._weights(sparse, labels, statistics, random))
        if len(held):
            held_targets = take_targets(targets, held)
            k = labels_to_rank(held_targets, len(index), multi_label)
            ids, scores = model.top_k(take_rows(rows, held), k, self._search(), thread_count(self.n_jobs))
            model.calibration = calibration_from_top_k(ids, scores, held_targets, len(index), multi_label)
        return model

    def _weights(self, rows: SparseRows, labels: Any, statistics: Any, random: Any) -> Any:
        kept = sample_rows(labels, self.rows_per_class, random)
        chosen = take_rows(rows, kept)
        assert isinstance(chosen, SparseRows)
        examples = Examples(chosen, labels[kept].astype(np.int64))
        settings = PairSettings(self.n_adversaries, self.adversaries, self.distance)
        with progress_bar(len(kept), "double sampling", "rows", self.verbose) as bar:
            return train_weights(examples, statistics, settings, random, thread_count(self.n_jobs), bar.update)

    def _check_size(self, n_features: int, n_labels: int, growing: bool = False) -> None:
        check_fits(
            BYTES_OF_FEATURE * n_features + BYTES_OF_LABEL * n_labels,
            f"DoubleSampling for {n_features:,} features and {n_labels:,} labels",
            "Use fewer features (hashing with fewer bits, a larger min_df).",
        )

    # --- prediction -------------------------------------------------------------------------------------

    def _search(self) -> Search:
        return Search(int(self.n_candidates), self.distance)

    @property
    def similarity_weights_(self) -> dict[str, float]:
        """The learned weight of each joint feature."""
        return dict(zip(SIMILARITIES, self.model_.weights.tolist(), strict=True))

    @snapshot_access
    def describe(self) -> dict[str, Any]:
        """Return the main properties of the model."""
        facts = super().describe()
        weights = {name: float(f"{weight:.3g}") for name, weight in self.similarity_weights_.items()}
        return {**facts, "sums": len(self.model_.statistics.features.sums), "similarities": weights}

    # --- saving -----------------------------------------------------------------------------------------

    def _model_from_parts(self, header: dict[str, Any], arrays: modelfile.Arrays) -> DoubleSamplingModel:
        return DoubleSamplingModel.from_parts(header, arrays, len(self.label_index_))
