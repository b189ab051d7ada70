"""Thresholds for multi-label `predict`, chosen on validation rows for a metric."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from treemax.models.calibration import best_threshold
from treemax.models.trained.parts import expect, whole_number

METRICS = ("micro-f1", "macro-f1", "instance-f1", "precision")
PRIOR_EXAMPLES = 1.0  # weight of the common threshold in that of a label, in validation rows of the label
MOST_THRESHOLDS = 500  # maximum number of thresholds that are tried for the mean F1 of rows
HIGHEST = 1.0


class Ranked(NamedTuple):
    """The best labels of validation rows: ids (-1 for none), probabilities, and which are right; all of shape (rows, k)."""

    ids: NDArray[np.int64]
    probabilities: NDArray[np.float32]
    hits: NDArray[np.bool_]
    n_labels: NDArray[np.int64]  # of every row
    counts: NDArray[np.int64]  # validation rows of every label


class Decision(NamedTuple):
    """The rule of multi-label `predict` that was chosen on validation rows."""

    metric: str
    n_rows: int
    thresholds: NDArray[np.float32] | None  # of every label; None: the common one

    def of(self, ids: NDArray[np.int64], common: float) -> Any:
        """Return the thresholds of labels; labels that were added later have the common one."""
        if self.thresholds is None:
            return np.float32(common)
        known = ids < len(self.thresholds)
        return np.where(known, self.thresholds[np.where(known, ids, 0)], np.float32(common))

    def lowest(self, common: float) -> float:
        return common if self.thresholds is None else min(common, float(self.thresholds.min(initial=1.0)))

    def without(self, kept: NDArray[np.bool_]) -> Decision:
        """Return the decision for a model that has the `kept` labels only."""
        if self.thresholds is None:
            return self
        return self._replace(thresholds=self.thresholds[kept[: len(self.thresholds)]])

    def describe(self) -> str:
        which = "one threshold" if self.thresholds is None else "a threshold for each label"
        return f"{which}, chosen for {self.metric} on {self.n_rows:,} rows"

    def to_parts(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        arrays = {} if self.thresholds is None else {"label_thresholds": self.thresholds}
        return {"metric": self.metric, "n_rows": self.n_rows}, arrays

    @classmethod
    def from_parts(cls, header: Any, arrays: dict[str, NDArray[Any]], n_labels: int) -> Decision:
        """Restore the decision; raise ValueError if it is invalid."""
        if not isinstance(header, dict) or header.get("metric") not in METRICS:
            raise ValueError(f"the rule of predict is {header!r:.80}")
        thresholds = None
        if "label_thresholds" in arrays:
            length = min(n_labels, len(arrays["label_thresholds"]))  # labels may have been added later
            thresholds = np.array(expect(arrays, "label_thresholds", np.float32, (length,)))
            if not ((thresholds >= 0) & (thresholds <= HIGHEST)).all():
                raise ValueError("a threshold of a label is not between 0 and 1")
        return cls(header["metric"], whole_number("n_rows", header["n_rows"]), thresholds)


def choose(ranked: Ranked, metric: str, precision: float | None) -> tuple[float, bool, NDArray[np.float32] | None]:
    """Return the common threshold, whether every row gets a label, and the thresholds of labels if they differ."""
    common, one_at_least = best_threshold(ranked.probabilities, ranked.hits, ranked.n_labels, len(ranked.counts))
    if metric == "micro-f1":
        return common, one_at_least, None
    if metric == "instance-f1":
        return (*_best_of_rows(ranked), None)
    if metric == "precision":
        assert precision is not None
        return _reaching(ranked, precision), False, None
    return common, False, _best_of_labels(ranked, common)


def _reaching(ranked: Ranked, precision: float) -> float:
    """Return the lowest threshold from which on the predicted labels have this precision; 1 if there is none."""
    probabilities, hits = ranked.probabilities.ravel(), ranked.hits.ravel()
    order = np.argsort(-probabilities, kind="stable")
    falling = probabilities[order]
    share = np.cumsum(hits[order]) / np.arange(1, len(order) + 1)
    last_of_its_value = np.append(falling[1:] != falling[:-1], True)
    enough = np.flatnonzero((share >= precision) & last_of_its_value & (falling > 0))
    return float(falling[enough[-1]]) if len(enough) else HIGHEST


def _best_of_rows(ranked: Ranked) -> tuple[float, bool]:
    """Return the threshold with the largest mean F1 of rows, and whether every row gets a label."""
    values = np.unique(ranked.probabilities[ranked.probabilities > 0])
    values = values[np.linspace(0, len(values) - 1, min(len(values), MOST_THRESHOLDS)).astype(int)]
    best = (-1.0, 0.5, True)
    for one_at_least in (True, False):
        for value in values:
            chosen = ranked.probabilities >= value
            chosen[:, 0] |= one_at_least
            n_right = (chosen & ranked.hits).sum(axis=1)
            sizes = chosen.sum(axis=1) + ranked.n_labels
            f1 = np.where(sizes > 0, 2 * n_right / np.maximum(sizes, 1), 1.0).mean()
            best = max(best, (float(f1), float(value), one_at_least))
    return best[1:]


def _best_of_labels(ranked: Ranked, common: float) -> NDArray[np.float32]:
    """Return the threshold of every label with its largest F1, drawn to the common one for labels with few rows."""
    thresholds = np.full(len(ranked.counts), common, dtype=np.float32)
    found = np.flatnonzero(ranked.ids.ravel() >= 0)
    order = found[np.lexsort((-ranked.probabilities.ravel()[found], ranked.ids.ravel()[found]))]
    ids, hits = ranked.ids.ravel()[order], ranked.hits.ravel()[order]
    probabilities = ranked.probabilities.ravel()[order].astype(np.float64)
    starts = np.flatnonzero(np.append(True, ids[1:] != ids[:-1])) if len(ids) else np.empty(0, dtype=np.int64)
    for start, end in zip(starts, [*starts[1:], len(ids)]):
        n_examples = ranked.counts[ids[start]]
        if n_examples == 0:
            continue
        n_right = np.cumsum(hits[start:end])
        f1 = 2 * n_right / (np.arange(1, end - start + 1) + n_examples)
        best = int(f1.argmax())
        below = probabilities[start + best + 1] if start + best + 1 < end else 0.0
        optimum = (probabilities[start + best] + below) / 2
        thresholds[ids[start]] = (n_examples * optimum + PRIOR_EXAMPLES * common) / (n_examples + PRIOR_EXAMPLES)
    return thresholds
