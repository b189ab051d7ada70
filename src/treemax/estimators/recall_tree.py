"""Recall trees: a tree finds candidates in logarithmic time, regressors choose among them."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treemax import modelfile
from treemax.estimators.base import TrainingInterrupted
from treemax.estimators.online import OnlineLabelClassifier
from treemax.inference.recall_tree import Beam, RecallTreeModel
from treemax.inputs import Rows, SparseRows
from treemax.labels import Targets
from treemax.learning.adagrad import mean_squared_length, row_orders, suggestion, suggestion_for_stream
from treemax.learning.recall_tree import (
    Settings,
    candidates_for,
    deepened,
    depth_for,
    empty_model,
    learn,
    make_room,
)
from treemax.parameters import check_number
from treemax.progress import progress_bar
from treemax.threads import thread_count

LEAST_SHARE_OF_BEAM = 0.01  # of a row that a node must get to be opened: below, it only costs time
REGRESSOR_RATE = 0.75  # of what suits a softmax over all labels; chosen on glyphs1k
ROUTER_RATE = 28.0  # over the length of a row and the root of its features; chosen on glyphs1k


@modelfile.saveable
class RecallTree(OnlineLabelClassifier):
    """A tree finds a few candidates, and linear regressors choose among them; one label a row, online.

    Training and prediction take time in the logarithm of the number of labels. Labels and features need no
    declaration. Made for dense vectors; sparse rows work too.

    Parameters
    ----------
    n_candidates : "auto" or int
        Labels that are scored; "auto" is ten times the logarithm of the labels seen so far. With no more labels
        than that, all of them are candidates.
    beam : int
        Nodes kept at each level of the tree.
    arity : int
        Children of a node.
    depth : "auto" or int
        Levels of routers; "auto" is the logarithm of the labels seen so far.
    prior : float
        Weight of the logarithm of what the tree gives to a label in the label's score.
    passes : int
        Passes over the data in `fit`, each in a new random order. `partial_fit` takes its rows once, in order.
    learning_rate : "auto" or float
        AdaGrad's rate of the regressors; "auto" computes it from the data, see `settings_`.
    router_rate : "auto" or float
        The same of the routers.
    final_rate : float
        The share of the rates that is left at the end of `fit`; they fall linearly.
    least_gradient : float
        Scorers whose gradient is smaller are not updated.
    least_share : float
        Nodes that get less of a row do not learn from it.
    n_jobs : int or None
        Threads, -1 for all cores. Several threads learn without locks: results vary within noise.
    random_state : int, RandomState or None
        Seed of the row order. One seed and one thread give the same model, bit for bit.
    verbose : int
        0 for no progress bar.

    Attributes
    ----------
    settings_ : Settings
        The rates in use, also where they were computed from the data.
    progressive_loss_ : float
        The share of rows whose label was not the first answer when they came to be learned.
    candidate_recall_ : float
        The share of rows whose label was among the candidates then.

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

    ONE_LABEL_ONLY = True
    settings_: Settings
    model_: RecallTreeModel

    def __init__(
        self,
        n_candidates: int | str = "auto",
        beam: int = 16,
        arity: int = 16,
        depth: int | str = "auto",
        prior: float = 0.3,
        passes: int = 3,
        learning_rate: float | str = "auto",
        router_rate: float | str = "auto",
        final_rate: float = 0.1,
        least_gradient: float = 1e-3,
        least_share: float = 0.1,
        n_jobs: int | None = None,
        random_state: Any = 0,
        verbose: int = 1,
    ) -> None:
        self.n_candidates = n_candidates
        self.beam = beam
        self.arity = arity
        self.depth = depth
        self.prior = prior
        self.passes = passes
        self.learning_rate = learning_rate
        self.router_rate = router_rate
        self.final_rate = final_rate
        self.least_gradient = least_gradient
        self.least_share = least_share
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    def _check_parameters(self) -> None:
        check_number("arity", self.arity, whole=True, least=2, most=256)
        for name in ("beam", "passes"):
            check_number(name, getattr(self, name), whole=True, least=1)
        for name in ("n_candidates", "depth"):
            if not _is_auto(getattr(self, name)):
                check_number(name, getattr(self, name), whole=True, least=1)
        for name in ("learning_rate", "router_rate"):
            if not _is_auto(getattr(self, name)):
                check_number(name, getattr(self, name), above=0)
        for name in ("final_rate", "least_share"):
            check_number(name, getattr(self, name), least=0, most=1)
        for name in ("prior", "least_gradient"):
            check_number(name, getattr(self, name), least=0)
        thread_count(self.n_jobs)

    # --- learning ---------------------------------------------------------------------------------------

    def _train(self, rows: Rows, targets: Targets, n_labels: int, multi_label: bool) -> RecallTreeModel:
        suggested = suggestion("softmax", rows, targets, n_labels, self.passes)
        settings = self._settings(rows, suggested.rate, suggested.initial, self.final_rate)
        model = self._empty(rows, n_labels)
        orders = row_orders(len(rows), self.passes, self.random_state)
        done, planned = 0, self.passes * len(rows)
        beam, threads = self._beam(n_labels), thread_count(self.n_jobs)
        self.settings_ = settings
        with progress_bar(planned, "recall-tree", "rows", self.verbose) as bar:
            try:
                for n in learn(model, rows, targets, orders, settings, beam, planned, threads):
                    done += n
                    bar.update(n)
            except KeyboardInterrupt:
                raise TrainingInterrupted(model, done / planned) from None
        return model

    def _start(self, rows: Rows, targets: Targets, n_labels: int, multi_label: bool) -> RecallTreeModel:
        suggested = suggestion_for_stream("softmax", rows)
        self.settings_ = self._settings(rows, suggested.rate, suggested.initial, 1.0)
        return self._empty(rows, n_labels)

    def _grown(self, model: RecallTreeModel, n_features: int, n_labels: int) -> RecallTreeModel:
        if not model.knows_squares:
            warnings.warn(
                "This model was saved without its learning state: AdaGrad and the histograms start afresh. "
                "Use save(path, resume=True) to continue as if learning had never stopped.",
                stacklevel=4,
            )
            model.knows_squares = True
        make_room(model, n_labels, n_features, self._n_candidates(n_labels))
        while _is_auto(self.depth) and model.depth < depth_for(n_labels, self.arity):
            model = deepened(model, self._n_candidates(n_labels))
        return model

    def _continue(self, model: RecallTreeModel, rows: Rows, targets: Targets) -> None:
        steady = replace(self.settings_, final_rate=1.0)
        order = [np.arange(len(rows), dtype=np.uint32)]
        beam, threads = self._beam(model.n_labels), thread_count(self.n_jobs)
        for _ in learn(model, rows, targets, order, steady, beam, len(rows), threads):
            pass

    def _empty(self, rows: Rows, n_labels: int) -> RecallTreeModel:
        depth = depth_for(n_labels, self.arity) if _is_auto(self.depth) else int(self.depth)
        sparse = isinstance(rows, SparseRows)
        return empty_model(sparse, rows.shape[1], n_labels, self.arity, depth, self._n_candidates(n_labels))

    def _n_candidates(self, n_labels: int) -> int:
        return candidates_for(n_labels) if _is_auto(self.n_candidates) else int(self.n_candidates)

    def _beam(self, n_labels: int) -> Beam:
        return Beam(self.beam, self._n_candidates(n_labels), LEAST_SHARE_OF_BEAM, self.prior)

    def _settings(self, rows: Rows, rate: float, initial: float, final_rate: float) -> Settings:
        squared_length, width = mean_squared_length(rows)
        router_rate = ROUTER_RATE / math.sqrt(squared_length * width)
        return Settings(
            rate=REGRESSOR_RATE * rate if _is_auto(self.learning_rate) else float(self.learning_rate),
            router_rate=router_rate if _is_auto(self.router_rate) else float(self.router_rate),
            initial=initial,
            final_rate=final_rate,
            least_gradient=self.least_gradient,
            least_share=self.least_share,
        )

    # --- answering --------------------------------------------------------------------------------------

    def _top(self, rows: Rows, k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        return self.model_.best(rows, k, self._beam(self.model_.n_labels), thread_count(self.n_jobs))

    def _probabilities(self, rows: Rows) -> NDArray[np.float32]:
        return self.model_.probabilities(rows, self._beam(self.model_.n_labels), thread_count(self.n_jobs))

    @property
    def progressive_loss_(self) -> float:
        """The share of rows whose label was not the first answer when they came to be learned."""
        right, _, asked = self.model_.found
        return float(1.0 - right / max(1, asked))

    @property
    def candidate_recall_(self) -> float:
        """The share of rows whose label was among the candidates when they came to be learned."""
        _, among, asked = self.model_.found
        return float(among / max(1, asked))

    def describe(self) -> dict[str, Any]:
        """What the model is, in figures."""
        return {
            **super().describe(),
            "depth": self.model_.depth,
            "candidates": self._n_candidates(self.model_.n_labels),
            "learning_rate": round(self.settings_.rate, 4),
            "router_rate": round(self.settings_.router_rate, 4),
            "progressive_loss": round(self.progressive_loss_, 4),
            "candidate_recall": round(self.candidate_recall_, 4),
        }

    # --- saving -----------------------------------------------------------------------------------------

    def _model_parts(self, resume: bool) -> tuple[dict[str, Any], modelfile.Arrays]:
        header, arrays = self.model_.parts(resume)
        return {**header, "settings": vars(self.settings_)}, arrays

    def _model_from_parts(self, header: dict[str, Any], arrays: modelfile.Arrays) -> RecallTreeModel:
        self.settings_ = Settings(**header["settings"])
        return RecallTreeModel.from_parts(header, arrays, len(self.label_index_))


def _is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == "auto"
