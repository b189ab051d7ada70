"""Statistics of a stream: its size, and predictions for calibration.

Some rows are predicted before they are learned, to calibrate the probabilities (progressive validation). They are
chosen by their number in the stream, so that a model does not depend on how the stream was divided into calls.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.rows import ascends
from treemax.models.calibration import Calibration, calibration_from_hits

LABELS = 50  # stored for each prediction
MAX_PREDICTIONS = 4000
MIN_PREDICTIONS = 10
RECENT = 0.5  # predictions after this share of the stream are used
KINDS = {"numbers": np.int64, "scores": np.float32, "hits": np.bool_, "n_labels": np.int64}


class StreamSummary:
    """Numbers of rows, labels and entries seen, and predictions for rows before they were learned."""

    def __init__(self) -> None:
        self.rows = self.labels = self.entries = 0
        self._predictions: list[tuple[int, NDArray[np.float32], NDArray[np.bool_], int, float]] = []
        self._calibration: Calibration | None = None
        self._calibrated_at = 0  # total number of predictions when it was fitted
        self._n_dropped = 0

    def next_validation_row(self, row: int) -> int:
        """Return the number of the next row, from this one on, that is predicted before it is learned.

        There are about 4 sqrt(n) of them among n rows.
        """
        number = math.isqrt(16 * row)
        while number * number // 16 < row:
            number += 1
        return number * number // 16

    def add_prediction(
        self, number: int, scores: NDArray[np.float32], ids: NDArray[np.int64], truth: NDArray[Any], weight: float = 1.0
    ) -> None:
        """Add a prediction: the scores of the best labels, their ids, the true labels, and the weight of the row.

        It replaces those from this row on, which were predicted by a call that ended before it learned them.
        """
        while self._predictions and self._predictions[-1][0] >= number:
            self._predictions.pop()
        kept, hits = np.zeros(LABELS, dtype=np.float32), np.zeros(LABELS, dtype=bool)
        kept[: len(scores)], hits[: len(ids)] = scores, np.isin(ids, truth) & (ids >= 0)
        self._predictions.append((number, kept, hits, len(truth), weight))
        if len(self._predictions) > 2 * MAX_PREDICTIONS:
            del self._predictions[:MAX_PREDICTIONS]
            self._n_dropped += MAX_PREDICTIONS

    def calibration(self, n_known: int, multi_label: bool) -> Calibration | None:
        """Return the calibration from the recent predictions; None while they are few.

        It is fitted again when the number of predictions has grown by a twentieth.
        """
        point = _last_point(self._n_dropped + len(self._predictions))
        if point > self._calibrated_at:
            known = self._predictions[: point - self._n_dropped][-MAX_PREDICTIONS:]
            recent = [prediction for prediction in known if prediction[0] >= RECENT * known[-1][0]]
            scores, hits, n_labels, own = (np.array(part) for part in list(zip(*recent))[1:])
            weights = None if (own == 1).all() else np.broadcast_to(own[:, None], hits.shape)
            n_labels = n_labels if weights is None else n_labels * own
            self._calibration = calibration_from_hits(scores, hits, n_labels, n_known, multi_label, weights)
            self._calibrated_at = point
        return self._calibration

    # --- model file -------------------------------------------------------------------------------------

    def counts(self, resume: bool) -> list[int]:
        """Return the rows, labels and entries seen, and the predictions dropped before those in `arrays` (to resume)."""
        return [self.rows, self.labels, self.entries, self._n_dropped if resume else 0]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the predictions for rows that were learned since."""
        learned = [prediction for prediction in self._predictions if prediction[0] < self.rows]
        parts = list(zip(*learned)) if learned else [()] * 5
        shapes = [(-1,), (-1, LABELS), (-1, LABELS), (-1,)]
        arrays: dict[str, NDArray[Any]] = {
            name: np.array(part, dtype=kind).reshape(shape)
            for (name, kind), part, shape in zip(KINDS.items(), parts[:4], shapes, strict=True)
        }
        weighted = any(weight != 1 for weight in parts[4])
        return {**arrays, "weights": np.array(parts[4], dtype=np.float64)} if weighted else arrays

    @classmethod
    def from_parts(cls, counts: list[int], arrays: dict[str, NDArray[Any]], one_label: bool) -> StreamSummary:
        """Restore the summary; raise ValueError if its parts are inconsistent."""
        self = cls()
        if len(counts) != 4 or not all(isinstance(count, int) and 0 <= count < 2**62 for count in counts):
            raise ValueError(f"the counts of the stream are {counts}, expected four whole numbers")
        self.rows, self.labels, self.entries, self._n_dropped = counts
        n = len(arrays["numbers"]) if arrays else 0
        if n < min(self._n_dropped, MAX_PREDICTIONS // 2):  # a few of rows not learned yet may not be stored
            raise ValueError("predictions of the stream are missing")
        if not arrays:
            return self
        for name, kind in KINDS.items():
            shape = (n, LABELS) if name in ("scores", "hits") else (n,)
            if arrays[name].shape != shape or arrays[name].dtype != kind:
                raise ValueError(
                    f"{name} of the stream has dtype {arrays[name].dtype} and shape {arrays[name].shape}, "
                    f"expected {np.dtype(kind)} {shape}"
                )
        scores, numbers, n_labels = (arrays[name] for name in ("scores", "numbers", "n_labels"))
        valid = bool((arrays["hits"].sum(axis=1) <= n_labels).all())
        valid = valid and not (one_label and (n_labels != 1).any())
        valid = valid and bool((n_labels <= self.labels).all() and ascends(numbers, strictly=True))
        if not valid or not ((scores >= 0) & (scores <= 1)).all() or (numbers < 0).any():
            raise ValueError("the predictions of the stream are damaged")
        weights = arrays.get("weights", np.ones(n))
        if weights.shape != (n,) or weights.dtype != np.float64 or not ((weights > 0) & (weights < np.inf)).all():
            raise ValueError("the weights of the predictions of the stream are damaged")
        hits = np.array(arrays["hits"])
        self._predictions = list(zip(numbers.tolist(), np.array(scores), hits, n_labels.tolist(), weights.tolist()))
        return self


def _last_point(n_predictions: int) -> int:
    """Return the last number of predictions, up to this one, at which a calibration is fitted; 0 if there is none."""
    point = MIN_PREDICTIONS if n_predictions >= MIN_PREDICTIONS else 0
    while point and (following := point + max(1, point // 20)) <= n_predictions:
        point = following
    return point
