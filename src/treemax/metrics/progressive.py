"""Progressive validation: predict, then learn, in order; every example is a test example once.

Blum, Kalai and Langford, "Beating the hold-out: bounds for k-fold and progressive cross-validation",
COLT 1999. An example is predicted by the model trained on all examples before it (or before its chunk).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import NotFittedError

from treemax.formats import is_source
from treemax.formats.reading import CHUNK_ROWS
from treemax.formats.training_rows import training_chunks
from treemax.inputs.labels import LabelIndex, RaggedLabels, read_labels
from treemax.inputs.rows import SparseRows, sliceable
from treemax.kernels.jit import seconds_of_compiling
from treemax.metrics.density import entropy_reduction
from treemax.metrics.encoding import IdEncoder
from treemax.metrics.scores import DEFAULT_KS, Scores, check_ks
from treemax.modelfile import part, prefixed

_COUNTS = ("_seen", "_learned", "_next_point", "_hits_before", "_predict_seconds", "_learn_seconds")
_SCORE_BATCH = 1024  # rows: scoring single rows would take longer than predicting them


class OnlineEstimator(Protocol):
    """Interface of a model for progressive validation."""

    def partial_fit(self, X: Any, y: Any) -> Any: ...

    def predict_topk(self, X: Any, k: int) -> Any: ...


class ProgressivePoint(NamedTuple):
    """A point of the learning curve."""

    examples: int
    precision: float  # P@1 of all examples so far
    window_precision: float  # P@1 of the examples since the previous point
    labels_known: int
    predict_seconds: float  # so far, without compiling
    learn_seconds: float
    constant_precision: float  # P@1 so far of the best constant predictor

    @property
    def entropy_reduction(self) -> float:
        """log2(precision / constant_precision), the gain over the best constant predictor in bits."""
        return entropy_reduction(self.precision, self.constant_precision)


@dataclass(frozen=True)
class ProgressiveResult:
    """The metrics over the whole stream, named as in `treemax.metrics.evaluate`, and the learning curve.

    `pandas.DataFrame(result.curve)` is a table of the curve.
    """

    metrics: dict[str, float]
    curve: tuple[ProgressivePoint, ...]

    def column(self, name: str) -> NDArray[Any]:
        """Return one field of all points of the curve, for plotting: `column("examples")`, `column("precision")`.

        There is also "entropy_reduction", the gain over the best constant predictor in bits.
        """
        columns = (*ProgressivePoint._fields, "entropy_reduction")
        if name not in columns:
            raise ValueError(f"no column {name!r}; there are {', '.join(columns)}.")
        return np.array([getattr(point, name) for point in self.curve])


class ProgressiveRun:
    """Progressive validation step by step.

    Call `step` with each chunk, and `result` at any time, even after an interruption. See `progressive_validation`
    for the parameters. `on_predictions` is called with the true labels, the predicted ones and the scores of each chunk.
    """

    def __init__(
        self,
        estimator: OnlineEstimator,
        k: int = 5,
        every: int | None = None,
        report: Callable[[ProgressivePoint], object] | None = None,
        on_predictions: Callable[[Any, list[list[Any]], list[list[float]]], object] | None = None,
    ) -> None:
        (self._k,) = check_ks([k])
        self._on_predictions = on_predictions
        if every is not None and every < 1:
            raise ValueError(f"every must be a number of examples, 1 or more, or None; got {every}.")
        self._estimator = estimator
        self._every = every
        self._report = report
        self._next_point = every or 1
        self._curve: list[ProgressivePoint] = []
        self._encoder = IdEncoder()
        self._scores = Scores([*(k for k in DEFAULT_KS if k < self._k), self._k])
        self._unscored: list[RaggedLabels] = []
        self._rankings: list[list[Any]] = []
        self._hits_before = 0
        self._seen = 0
        self._learned = False
        self._predict_seconds = 0.0
        self._learn_seconds = 0.0

    def step(self, X: Any, y: Any, sample_weight: Any = None) -> None:
        """Predict the rows of `X`, then learn them, with weights. A chunk for which the estimator raises is not counted."""
        labels = read_labels(y)
        n = _row_count(X)
        if n != len(labels):
            raise ValueError(f"after {self._seen} examples: X has {n} rows, but y has {len(labels)}.")
        if n == 0:
            return
        start = _seconds()
        rankings, values = self._predict(X)
        predicted = _seconds()
        if sample_weight is None:
            self._estimator.partial_fit(X, y)
        elif np.any(sample_weight):
            self._estimator.partial_fit(X, y, sample_weight=sample_weight)  # type: ignore[call-arg]
        learned = _seconds()
        self._learned = True
        self._predict_seconds += predicted - start
        self._learn_seconds += learned - predicted
        self._unscored.append(labels)
        self._rankings += rankings
        if self._on_predictions is not None:
            self._on_predictions(labels, rankings, values)
        self._seen += n
        if self._seen >= self._next_point:
            self._add_point()
        elif len(self._rankings) >= _SCORE_BATCH:
            self._score()

    def parts(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the state without the estimator, as a JSON-serialisable header and arrays, for `restore`."""
        self._score()
        scores, arrays = self._scores.parts()
        index = self._encoder.index
        header = {
            **{name: getattr(self, name) for name in _COUNTS},
            "label_dtype": None if index.dtype is None else index.dtype.str,
            "curve": [list(point) for point in self._curve],
            "scores": scores,
        }
        return header, {**prefixed("scores", arrays), **prefixed("labels", index.arrays())}

    def restore(self, header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """Restore the state of `parts`."""
        for name in _COUNTS:
            setattr(self, name, header[name])
        self._curve = [ProgressivePoint(*point) for point in header["curve"]]
        self._encoder = IdEncoder(LabelIndex.from_arrays(part("labels", arrays), header["label_dtype"]))
        self._scores.restore(header["scores"], part("scores", arrays))

    def result(self) -> ProgressiveResult:
        """Return the metrics and the curve so far."""
        if self._seen == 0:
            raise ValueError("there is nothing to evaluate: the stream has no examples.")
        if not self._curve or self._curve[-1].examples < self._seen:
            self._add_point()
        last = self._curve[-1]
        metrics = self._scores.result() | {
            "labels_known": last.labels_known,
            "predict_seconds": last.predict_seconds,
            "learn_seconds": last.learn_seconds,
        }
        return ProgressiveResult(metrics, tuple(self._curve))

    def per_label(self) -> list[dict[str, Any]]:
        """Return precision, recall and F1 of each label so far; see `Scores.per_label`."""
        self._score()
        return self._scores.per_label(self._encoder.index)

    def _predict(self, X: Any) -> tuple[list[list[Any]], list[list[float]]]:
        """Return the ranked labels and the scores of each row; empty for an unfitted model."""
        n = _row_count(X)
        try:
            top = self._estimator.predict_topk(X, self._k)
        except NotFittedError:
            if self._learned:
                raise
            return [[]] * n, [[]] * n
        rankings = top.labels.tolist()
        if len(rankings) != n:
            raise ValueError(f"predict_topk returned {len(rankings)} rows for {n}.")
        return rankings, [] if self._on_predictions is None else top.scores.tolist()

    def _score(self) -> None:
        if self._unscored:
            self._scores.update(self._encoder.targets(_joined(self._unscored)), self._encoder.ranking(self._rankings))
            self._unscored, self._rankings = [], []

    def _add_point(self) -> None:
        self._score()
        before = self._curve[-1].examples if self._curve else 0
        hits = self._scores.first_hits
        index = getattr(self._estimator, "label_index_", self._encoder)
        point = ProgressivePoint(
            self._seen,
            hits / self._seen,
            (hits - self._hits_before) / (self._seen - before),
            len(index),
            self._predict_seconds,
            self._learn_seconds,
            self._scores.constant_hits / self._seen,
        )
        self._hits_before = hits
        self._next_point = self._after(self._seen)
        self._curve.append(point)
        if self._report is not None:
            self._report(point)

    def _after(self, seen: int) -> int:
        """Return when the next point is due: at multiples of `every`, or at powers of two."""
        return 1 << seen.bit_length() if self._every is None else (seen // self._every + 1) * self._every


def progressive_validation(
    estimator: OnlineEstimator,
    stream: Any,
    y: Any = None,
    *,
    k: int = 5,
    chunk_rows: int | None = 1,
    every: int | None = None,
    report: Callable[[ProgressivePoint], object] | None = None,
    multi_label: bool = False,
) -> ProgressiveResult:
    """Evaluate an online model by predicting each example before learning it.

    A true label that the model does not know yet is a miss. The metric "entropy_reduction" compares with the best
    constant predictor of the whole stream.

    Parameters
    ----------
    estimator
        Has `partial_fit` and `predict_topk`; may be fitted already. The first chunk of an unfitted estimator counts as
        misses.
    stream
        An iterable of chunks, (X, y), (X, y, weights) or with attributes X and y; or one X, with `y`. Or a file, a folder of files, a
        table or data set with texts or features and labels, as for `treemax.formats.open_examples`.
    y
        The labels, if `stream` is one X.
    k
        Number of labels to predict for each example.
    chunk_rows
        Number of rows to predict and then learn at a time; larger chunks are split. 1 is the strict definition; more
        is faster and slightly pessimistic, since the model has not learned the other examples of the chunk. None does
        not split chunks.
    every
        Number of examples between points of the curve; None for powers of two. Points are at the ends of chunks, and
        always at the end of the stream.
    report
        Called with each point of the curve.
    multi_label
        Whether the rows of a file may have several labels although its first rows have one. In a file of
        multi-class data, rows without a label are dropped.
    """
    if chunk_rows is not None and chunk_rows < 1:
        raise ValueError(f"chunk_rows must be 1 or more, or None; got {chunk_rows}.")
    run = ProgressiveRun(estimator, k, every, report)
    for chunk in _chunks(stream, y, multi_label):
        for piece in _parts(*chunk, chunk_rows):
            run.step(*piece)
    return run.result()


def _chunks(stream: Any, y: Any, multi_label: bool) -> Iterator[tuple[Any, Any, Any]]:
    if y is not None:
        yield stream, y, None
        return
    if not is_source(stream) and (hasattr(stream, "shape") or isinstance(stream, SparseRows)):
        raise ValueError("y is missing: pass X and y, or a stream of (X, y) chunks.")
    yield from training_chunks(stream, CHUNK_ROWS, multi_label)


def _parts(X: Any, y: Any, weights: Any, chunk_rows: int | None) -> Iterator[tuple[Any, Any, Any]]:
    """Split a chunk into pieces of at most `chunk_rows`."""
    n = _row_count(X)
    if chunk_rows is None or n <= chunk_rows:
        yield X, y, weights
        return
    labels = read_labels(y)
    if len(labels) != n:
        raise ValueError(f"X has {n} rows, but y has {len(labels)}.")
    rows = sliceable(X)
    vector = isinstance(y, np.ndarray) and y.ndim == 1
    for start in range(0, n, chunk_rows):
        stop = min(start + chunk_rows, n)
        part_weights = None if weights is None else weights[start:stop]
        yield rows[start:stop], (y[start:stop] if vector else labels.rows(start, stop)), part_weights


def _seconds() -> float:
    """Return the time, without that of compiling kernels."""
    return perf_counter() - seconds_of_compiling()


def _row_count(X: Any) -> int:
    return X.shape[0] if hasattr(X, "shape") else len(X)


def _joined(chunks: list[RaggedLabels]) -> RaggedLabels:
    """Concatenate labels; chunks without labels have no dtype and are ignored."""
    counts = np.concatenate([chunk.counts for chunk in chunks])
    labelled = [chunk for chunk in chunks if len(chunk.values)] or chunks[:1]
    values = np.concatenate([chunk.values for chunk in labelled])
    return RaggedLabels(np.concatenate(([0], np.cumsum(counts))), values, labelled[0].dtype)
