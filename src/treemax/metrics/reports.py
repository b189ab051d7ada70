"""A report by label: precision, recall, F1 and the most frequent confusions; the same by label frequency."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.labels import LabelIndex, Targets
from treemax.metrics.encoding import IdEncoder
from treemax.metrics.ranking import hits, true_counts, true_ids
from treemax.metrics.scores import Scores

BANDS = (0, 1, 5, 20, 100)  # least number of training examples of the labels of a band
MOST_CONFUSIONS = 3  # shown for each label


class LabelReport(NamedTuple):
    """One dictionary for each label, and one for each range of the number of training examples."""

    labels: list[dict[str, Any]]
    by_frequency: list[dict[str, Any]]


class Confusions:
    """Counts of the labels that are answered first where a row has other labels; call `update` with each chunk."""

    def __init__(self) -> None:
        self._counts: dict[tuple[int, int], int] = {}

    def update(self, targets: Targets, ranking: NDArray[np.int64]) -> None:
        """Add rows: their true labels and their predicted label ids, best first, -1 for none."""
        first = ranking[:, :1]
        wrong = (first[:, 0] >= 0) & ~hits(targets, first)[:, 0]
        row = np.repeat(np.arange(len(targets)), true_counts(targets))
        pairs = np.stack([true_ids(targets)[wrong[row]].astype(np.int64), first[row[wrong[row]], 0]], axis=1)
        found, counts = np.unique(pairs, axis=0, return_counts=True)
        for (true, answered), count in zip(found.tolist(), counts.tolist()):
            self._counts[true, answered] = self._counts.get((true, answered), 0) + count

    def by_label(self, index: LabelIndex, most: int = MOST_CONFUSIONS) -> dict[Any, list[tuple[Any, int]]]:
        """Return the most frequent wrong answers for each label, with their counts."""
        of_label: dict[int, list[tuple[int, int]]] = {}
        for (true, answered), count in sorted(self._counts.items(), key=lambda item: -item[1]):
            wrong = of_label.setdefault(true, [])
            if len(wrong) < most:
                wrong.append((answered, count))
        name = index.labels(np.arange(len(index))).tolist()
        return {name[true]: [(name[answered], count) for answered, count in wrong] for true, wrong in of_label.items()}


def label_report(
    y_true: Any, top_labels: Any, label_counts: Any = None, ks: Sequence[int] | None = None, confusions: int = MOST_CONFUSIONS
) -> LabelReport:  # fmt: skip
    """Report precision, recall and F1 of each label as the first answer, and which labels are answered instead.

    With `label_counts`, the training examples of each label, `by_frequency` has the same for ranges of label frequency.
    The arguments are those of `evaluate`; `confusions` is the number of wrong answers to list.

    >>> report = label_report(["cat", "cat", "dog"], [["cat"], ["dog"], ["dog"]], label_counts={"cat": 3, "dog": 40})
    >>> report.labels[0]["confused_with"], report.labels[0]["recall"]
    ([('dog', 1)], 0.5)
    >>> [(band["training_examples"], band["recall"]) for band in report.by_frequency]
    [('1-4', 0.5), ('20-99', 1.0)]
    """
    encoder = IdEncoder()
    targets, ranking = encoder.targets(y_true), encoder.ranking(top_labels)
    counts = None if label_counts is None else np.asarray(encoder.counts(label_counts))
    scores, confused = Scores(ks or [ranking.shape[1]]), Confusions()
    scores.update(targets, ranking)
    confused.update(targets, ranking)
    return report_of(scores, confused, encoder.index, counts, confusions)


def report_of(
    scores: Scores, confusions: Confusions, index: LabelIndex, counts: NDArray[Any] | None, most: int = MOST_CONFUSIONS
) -> LabelReport:
    """Return the report of accumulated scores and confusions; `counts` are training examples by label id."""
    instead = confusions.by_label(index, most)
    rows = [{**row, "confused_with": instead.get(row["label"], [])} for row in scores.per_label(index)]
    return LabelReport(rows, [] if counts is None else scores.by_frequency(counts, BANDS))
