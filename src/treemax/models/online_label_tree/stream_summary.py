"""What a model that learns from a stream remembers of it: how long rows are, and how good its answers were.

Now and then a row is answered before it is learned. Those answers calibrate the probabilities. Which rows is said by their number in the stream, so that a model does not depend on
how the stream was cut into calls.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.rows import ascends
from treemax.models.calibration import Calibration, calibration_from_hits

LABELS = 50  # of an answer that are kept
MOST_ANSWERS = 4000
LEAST_ANSWERS = 10
RECENT = 0.5  # answers given after this share of the stream count
KINDS = {"numbers": np.int64, "scores": np.float32, "hits": np.bool_, "n_labels": np.int64}


class StreamSummary:
    """Rows, labels and entries seen, and the answers that were given before their rows were learned."""

    def __init__(self) -> None:
        self.rows = self.labels = self.entries = 0
        self._answers: list[tuple[int, NDArray[np.float32], NDArray[np.bool_], int]] = []
        self._calibration: Calibration | None = None
        self._calibrated_at = 0  # answers ever given when it was fitted
        self._n_forgotten = 0

    def next_question(self, row: int) -> int:
        """The number of the next row, from this one on, that is to be answered before it is learned.

        There are about 4 sqrt(n) of them among n rows.
        """
        number = math.isqrt(16 * row)
        while number * number // 16 < row:
            number += 1
        return number * number // 16

    def add_answer(
        self, number: int, scores: NDArray[np.float32], ids: NDArray[np.int64], truth: NDArray[Any]
    ) -> None:
        """Take note of an answer: the scores of the best labels, their ids, and the labels that were right."""
        kept, hits = np.zeros(LABELS, dtype=np.float32), np.zeros(LABELS, dtype=bool)
        kept[: len(scores)], hits[: len(ids)] = scores, np.isin(ids, truth) & (ids >= 0)
        self._answers.append((number, kept, hits, len(truth)))
        if len(self._answers) > 2 * MOST_ANSWERS:
            del self._answers[:MOST_ANSWERS]
            self._n_forgotten += MOST_ANSWERS

    def calibration(self, n_known: int, multi_label: bool) -> Calibration | None:
        """The calibration from the later half of the answers; None while they are few.

        It is fitted when there are a twentieth more answers than the last time, whenever that is asked.
        """
        point = _last_point(self._n_forgotten + len(self._answers))
        if point > self._calibrated_at:
            known = self._answers[: point - self._n_forgotten][-MOST_ANSWERS:]
            recent = [answer for answer in known if answer[0] >= RECENT * known[-1][0]]
            scores, hits, n_labels = (np.array(part) for part in list(zip(*recent))[1:])
            self._calibration = calibration_from_hits(scores, hits, n_labels, n_known, multi_label)
            self._calibrated_at = point
        return self._calibration

    # --- to a file and back -----------------------------------------------------------------------------

    def counts(self, resume: bool) -> list[int]:
        """Rows, labels and entries seen, and the answers before those in `arrays`, which are kept to resume only."""
        return [self.rows, self.labels, self.entries, self._n_forgotten if resume else 0]

    def arrays(self) -> dict[str, NDArray[Any]]:
        parts = list(zip(*self._answers)) if self._answers else [()] * 4
        shapes = [(-1,), (-1, LABELS), (-1, LABELS), (-1,)]
        return {
            name: np.array(part, dtype=kind).reshape(shape)
            for (name, kind), part, shape in zip(KINDS.items(), parts, shapes, strict=True)
        }

    @classmethod
    def from_parts(cls, counts: list[int], arrays: dict[str, NDArray[Any]], one_label: bool) -> StreamSummary:
        """The summary back, of rows that have one label or several; what does not fit together is a ValueError."""
        self = cls()
        if len(counts) != 4 or not all(isinstance(count, int) and 0 <= count < 2**62 for count in counts):
            raise ValueError(f"the counts of the stream are {counts}, expected four whole numbers")
        self.rows, self.labels, self.entries, self._n_forgotten = counts
        n = len(arrays["numbers"]) if arrays else 0
        if n < min(self._n_forgotten, MOST_ANSWERS):
            raise ValueError("the answers of the stream are fewer than they must be")
        if not arrays:
            return self
        for name, kind in KINDS.items():
            shape = (n, LABELS) if name in ("scores", "hits") else (n,)
            if arrays[name].shape != shape or arrays[name].dtype != kind:
                raise ValueError(f"{name} of the stream has another shape or type than it must have")
        scores, numbers, n_labels = (arrays[name] for name in ("scores", "numbers", "n_labels"))
        sound = bool((arrays["hits"].sum(axis=1) <= n_labels).all())
        sound = sound and not (one_label and (n_labels != 1).any())
        sound = sound and bool((n_labels <= self.labels).all() and ascends(numbers, strictly=True))
        if not sound or not ((scores >= 0) & (scores <= 1)).all() or (numbers < 0).any():
            raise ValueError("the answers of the stream are damaged")
        self._answers = list(
            zip(
                arrays["numbers"].tolist(),
                np.array(scores),
                np.array(arrays["hits"]),
                arrays["n_labels"].tolist(),
            )
        )
        return self


def _last_point(n_answers: int) -> int:
    """The last number of answers, up to this one, at which a calibration is fitted; 0 if there is none."""
    point = LEAST_ANSWERS if n_answers >= LEAST_ANSWERS else 0
    while point and (following := point + max(1, point // 20)) <= n_answers:
        point = following
    return point
