"""Train a setting on a sample, and evaluate it on the held-out rows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from treemax.memory import available_bytes
from treemax.modelfile import saved_bytes
from treemax.models.text_model import TextModel
from treemax.tuning.data import TuningData
from treemax.tuning.metric import Objective
from treemax.tuning.spaces import Setting

TIMED = 3  # repetitions of the prediction time,
TIMED_SECONDS = 0.3  # fewer if they take longer than this


MOST_MEMORY = 0.5  # fraction of the available memory that one training may use


class Fitted(NamedTuple):
    """A trained model, its cost and its metric."""

    model: Any
    seconds: float  # of training, vectorising included
    value: float
    mb: float
    us: float  # prediction time per row


class Trainer:
    """Training and evaluation of settings on the data of a search."""

    def __init__(self, data: TuningData, objective: Objective, n_jobs: int | None, random_state: int) -> None:
        self.data, self.objective = data, objective
        self.n_jobs, self.random_state = n_jobs, random_state

    def fitted(self, setting: Setting, size: int) -> Fitted:
        """Return a model trained on a sample of this size."""
        X, labels, vectorizer, seconds = *self.data.sample(size), None, 0.0
        estimator = self._estimator(setting, 0, self.data.class_weight_of(labels))
        if setting.text is not None:
            vectorizer, X, seconds = self.data.vectorised(setting, size)
        start = time.perf_counter()
        with _limited_memory(estimator):
            estimator.fit(X, labels, **_weights(self.data.sample_weights(size)))
        seconds += time.perf_counter() - start
        model = estimator if vectorizer is None else TextModel(vectorizer, estimator)
        top, us = self._timed(model)
        value = self.objective.value(model, self.data.held_X, self.data.held_labels, top)
        return Fitted(model, seconds, value, saved_bytes(model) / 1e6, us)

    def fold(self, number: int) -> Trainer:
        """Return the trainer with another held-out fold."""
        return Trainer(self.data.fold(number), self.objective, self.n_jobs, self.random_state)

    def fitted_on_all(self, setting: Setting, verbose: int) -> Any:
        """Return the model of a setting trained on all rows."""
        model = self._estimator(setting, verbose, self.data.class_weight)
        if setting.text is not None:
            model = TextModel(setting.vectorizer(), model)
        return model.fit(self.data.X, self.data.y, **_weights(self.data.sample_weight))

    def _estimator(self, setting: Setting, verbose: int, class_weight: Any) -> Any:
        common = {"n_jobs": self.n_jobs, "random_state": self.random_state, "verbose": verbose}
        return setting.estimator(**common, **({} if class_weight is None else {"class_weight": class_weight}))

    def _timed(self, model: Any) -> tuple[Any, float]:
        """Return the top labels of the held-out rows, and the fastest time per row in microseconds."""
        X, k = self.data.held_X, self.objective.top
        model.predict_topk(X[:1], k)  # compile first
        times: list[float] = []
        begun = time.perf_counter()
        while len(times) < TIMED and time.perf_counter() - begun < TIMED_SECONDS:
            start = time.perf_counter()
            top = model.predict_topk(X, k)
            times.append(time.perf_counter() - start)
        return top, 1e6 * min(times) / len(self.data.held)


def _weights(sample_weight: Any) -> dict[str, Any]:
    return {} if sample_weight is None else {"sample_weight": sample_weight}


@contextmanager
def _limited_memory(estimator: Any) -> Iterator[None]:
    """Limit models with a memory limit to half of the memory: filling all of it is slow and gains little."""
    if not hasattr(estimator, "max_memory"):
        yield
        return
    before = estimator.max_memory
    estimator.max_memory = MOST_MEMORY * available_bytes() / 1e9
    try:
        yield
    finally:
        estimator.max_memory = before
