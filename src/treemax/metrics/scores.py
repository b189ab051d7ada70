"""Ranking metrics accumulated over a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.labels import LabelIndex, Targets
from treemax.metrics.density import entropy_reduction
from treemax.metrics.per_label import LabelTallies, bands_of
from treemax.metrics.propensity import (
    DEFAULT_A,
    DEFAULT_B,
    PropensityWeights,
    attainable,
    hit_weights,
    row_weighted_ndcg,
    row_weighted_precision,
)
from treemax.metrics.ranking import (
    check_ranking,
    hits,
    row_error,
    row_ndcg,
    row_precision,
    row_recall,
    true_counts,
    true_ids,
)

DEFAULT_KS = (1, 3, 5)
_ALL = 2**31  # labels of a row at most


def check_ks(ks: Sequence[int]) -> tuple[int, ...]:
    """Validate `ks` and return the distinct values, sorted."""
    for k in ks:
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
            raise ValueError(f"k must be an integer, 1 or more; got {k!r}.")
    if not len(ks):
        raise ValueError("ks is empty; pass at least one k.")
    return tuple(sorted({int(k) for k in ks}))


class Scores:
    """Accumulator of every ranking metric at every k of `ks`; call `update` with each chunk.

    Targets must have *all* true labels, including those unknown to the model (see `IdEncoder`): omitting them would
    hide misses. Missing columns of a ranking are misses.
    `label_counts` (by label id) and `n_train` of the training set add the propensity-scored metrics.

    >>> scores = Scores(ks=(1, 2))
    >>> first = Targets(np.array([0, 2, 3]), np.array([1, 4, 0], dtype=np.uint32))
    >>> scores.update(first, [[4, 2], [1, 0]])
    >>> scores.update(first[1:], [[0, 1]])
    >>> result = scores.result()
    >>> result["n"], round(result["P@1"], 3), round(result["recall@2"], 3)
    (3, 0.667, 0.833)
    """

    def __init__(
        self,
        ks: Sequence[int] = DEFAULT_KS,
        label_counts: Any = None,
        n_train: int | None = None,
        a: float = DEFAULT_A,
        b: float = DEFAULT_B,
    ) -> None:
        self.ks = check_ks(ks)
        if (label_counts is None) != (n_train is None):
            raise ValueError("propensities need both label_counts and n_train (the training examples).")
        self._weights = (
            None if label_counts is None or n_train is None else PropensityWeights(label_counts, n_train, a, b)
        )
        self._tallies = LabelTallies(self.ks)
        self._answers: LabelTallies | None = None  # of `predict`, which has any number of labels
        self._sums: dict[str, float] = {}
        self.n = 0
        self.n_unlabelled = 0
        self.n_unseen = 0
        self.first_hits = 0

    def update(self, targets: Targets, top_ids: Any) -> None:
        """Add rows: their true labels and their predicted label ids, best first, -1 for none."""
        ranking = check_ranking(top_ids)[:, : self.ks[-1]]
        found = hits(targets, ranking)
        counts = true_counts(targets)
        self.n += len(ranking)
        self.n_unlabelled += int(np.count_nonzero(counts == 0))
        self.first_hits += int(np.count_nonzero(found[:, :1]))
        self._tallies.update(targets, ranking, found)
        for k in self.ks:
            self._add(f"P@{k}", row_precision(found, k))
            self._add(f"recall@{k}", row_recall(found, counts, k))
            self._add(f"nDCG@{k}", row_ndcg(found, counts, k))
            self._add(f"error@{k}", row_error(found, k))
        if self._weights is not None:
            self._update_weighted(self._weights, targets, ranking, found)

    def update_answers(self, targets: Targets, answers: Any) -> None:
        """Add the labels that `predict` answers for the rows of `update`, in the same form.

        Then `result` has their F1, and precision, recall and F1 of single labels are those of these answers.
        """
        ranking = check_ranking(answers)
        if self._answers is None:
            self._answers = LabelTallies([_ALL])
        self._answers.update(targets, ranking, hits(targets, ranking))

    def _update_weighted(
        self, weights: PropensityWeights, targets: Targets, ranking: NDArray[np.int64], found: NDArray[np.bool_]
    ) -> None:
        counts = true_counts(targets)
        gains = {"": hit_weights(found, ranking, weights), "best ": attainable(targets, self.ks[-1], weights)}
        for k in self.ks:
            for whose, gain in gains.items():
                self._add(f"{whose}PSP@{k}", row_weighted_precision(gain, k))
                self._add(f"{whose}PSnDCG@{k}", row_weighted_ndcg(gain, counts, k))
        row = np.repeat(np.arange(len(targets)), counts)
        known = np.bincount(row[weights.seen(true_ids(targets))], minlength=len(targets))
        self.n_unseen += int(np.count_nonzero((counts > 0) & (known == 0)))

    def parts(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the state as a JSON-serialisable header and arrays, for `restore`."""
        counts = {name: getattr(self, name) for name in ("n", "n_unlabelled", "n_unseen", "first_hits")}
        return {"sums": self._sums, **counts}, self._tallies.arrays()

    def restore(self, header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """Restore the state of `parts`."""
        header = dict(header)
        self._sums = dict(header.pop("sums"))
        vars(self).update(header)
        self._tallies.restore(arrays)

    def _add(self, name: str, rows: NDArray[np.float64]) -> None:
        self._sums[name] = self._sums.get(name, 0.0) + float(rows.sum())

    def result(self) -> dict[str, float]:
        """Return the metrics so far by name: "n", "P@1", "nDCG@5", ... (defined in `docs/metrics.md`)."""
        if self.n == 0:
            raise ValueError("there is nothing to evaluate: no rows were given.")
        out: dict[str, float] = {"n": self.n, "n_unlabelled": self.n_unlabelled}
        if self._weights is not None:
            out["n_unseen"] = self.n_unseen
        for name in ("P", "recall", "nDCG", "error"):
            out |= {f"{name}@{k}": self._sums[f"{name}@{k}"] / self.n for k in self.ks}
        if self._weights is not None:
            out |= {f"{name}@{k}": self.weighted(name, k) for name in ("PSP", "PSnDCG") for k in self.ks}
        out |= {f"micro_F1@{k}": self._tallies.micro_f1(k) for k in self.ks}
        out |= {f"macro_F1@{k}": self._tallies.macro_f1(k) for k in self.ks}
        out |= {f"label_coverage@{k}": self._tallies.coverage(k) for k in self.ks}
        if self._answers is not None:
            out |= {"micro_F1": self._answers.micro_f1(_ALL), "macro_F1": self._answers.macro_f1(_ALL)}
        out["constant_P@1"] = self.constant_hits / self.n
        out["entropy_reduction"] = entropy_reduction(self.first_hits / self.n, out["constant_P@1"])
        return out

    @property
    def constant_hits(self) -> int:
        """Rows that have the most frequent label: the hits of the best constant predictor."""
        return self._tallies.most_frequent()

    def per_label(self, index: LabelIndex) -> list[dict[str, Any]]:
        """Return precision, recall and F1 of each label and its recall at the last k.

        They are of the answers of `update_answers`, or of the first predictions if there are none.
        `index` has the labels of the ids. Labels are sorted by their number of examples.

        >>> from treemax.metrics import IdEncoder
        >>> encoder, scores = IdEncoder(), Scores(ks=(1, 2))
        >>> scores.update(encoder.targets(["cat", "cat", "dog"]), encoder.ranking([["cat"], ["dog"], ["dog"]]))
        >>> scores.per_label(encoder.index)[0]
        {'label': 'cat', 'examples': 2, 'predicted': 1, 'precision': 1.0, 'recall': 0.5, 'F1': 0.667, 'recall@2': 0.5}
        """
        counts = self._counts_by_label()
        present = np.flatnonzero((counts["examples"] + counts["predicted"])[: len(index)])
        order = present[np.argsort(-counts["examples"][present], kind="stable")]
        labels = index.labels(order).tolist()
        columns = [counts[name][order].tolist() for name in ("examples", "predicted", "correct", "found")]
        return [
            {
                "label": label,
                "examples": examples,
                "predicted": predicted,
                "precision": round(correct / max(predicted, 1), 3),
                "recall": round(correct / max(examples, 1), 3),
                "F1": round(2 * correct / (examples + predicted), 3),
                f"recall@{self.ks[-1]}": round(found / max(examples, 1), 3),
            }
            for label, examples, predicted, correct, found in zip(labels, *columns)
        ]

    def _counts_by_label(self) -> dict[str, NDArray[np.int64]]:
        counts = self._tallies.by_label()
        if self._answers is not None:
            of_answers = self._answers.by_label()
            counts |= {name: of_answers[name] for name in ("predicted", "correct")}
            size = max(map(len, counts.values()))
            counts = {name: np.pad(each, (0, size - len(each))) for name, each in counts.items()}
        return counts

    def by_frequency(self, label_counts: NDArray[Any], least: Sequence[int]) -> list[dict[str, Any]]:
        """Return the metrics of labels by their number of training examples: means over the labels of each range.

        `label_counts` are training examples by label id (0 for ids beyond), `least` the least number of each range. Labels
        that are neither true nor predicted do not count.
        """
        counts, last = self._counts_by_label(), f"recall@{self.ks[-1]}"
        seen = np.zeros(len(counts["examples"]), dtype=np.int64)
        known = np.asarray(label_counts)[: len(seen)]
        seen[: len(known)] = known
        present = counts["examples"] + counts["predicted"] > 0
        rows = []
        for name, low, high in bands_of(least):
            members = np.flatnonzero(present & (seen >= low) & (seen < high))
            examples, predicted, correct, found = (
                counts[part][members] for part in ("examples", "predicted", "correct", "found")
            )
            if len(members):
                means = {
                    "precision": correct / np.maximum(predicted, 1),
                    "recall": correct / np.maximum(examples, 1),
                    "F1": 2 * correct / (examples + predicted),
                    last: found / np.maximum(examples, 1),
                }
                facts = {"training_examples": name, "labels": len(members), "examples": int(examples.sum())}
                rows.append({**facts, **{part: round(float(mean.mean()), 3) for part, mean in means.items()}})
        return rows

    def weighted(self, name: str, k: int, normalize: bool = True) -> float:
        """Return PSP or PSnDCG at k, normalised by the best attainable value or the plain mean over rows."""
        total, best = self._sums[f"{name}@{k}"], self._sums[f"best {name}@{k}"]
        if not normalize:
            return total / self.n
        return total / best if best > 0 else 0.0
