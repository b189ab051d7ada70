"""Metrics as functions of true and predicted labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treemax.inputs.labels import Targets
from treemax.inputs.weights import read_weights
from treemax.metrics.encoding import IdEncoder
from treemax.metrics.per_label import LabelTallies
from treemax.metrics.propensity import DEFAULT_A, DEFAULT_B
from treemax.metrics.ranking import check_ranking, hits, row_error, row_ndcg, row_precision, row_recall, true_counts
from treemax.metrics.scores import DEFAULT_KS, Scores, check_ks


def evaluate(
    y_true: Any,
    top_labels: Any,
    ks: Sequence[int] | None = None,
    label_counts: Any = None,
    n_train: int | None = None,
    a: float = DEFAULT_A,
    b: float = DEFAULT_B,
) -> dict[str, float]:
    """Compute all ranking metrics by name: "n", "P@1", "nDCG@5", ... (defined in `docs/metrics.md`).

    `y_true` is a y of `fit`. `top_labels` has a row per example, best label first, as `predict_topk` returns it; None,
    NaN or a masked entry is a missing prediction. If `y_true` is `Targets`, `top_labels` has label ids, -1 for none.
    `ks` are by default those of 1, 3 and 5 that `top_labels` has columns for. `label_counts` (a mapping of labels to
    their number of training examples; a vector for integer labels or ids) with `n_train`, the number of training
    examples, adds the propensity-scored metrics.

    >>> result = evaluate(["cat", "yak"], [["cat", "dog"], ["dog", "yak"]], ks=(1, 2))
    >>> result["P@1"], result["error@2"], result["recall@2"]
    (0.5, 0.0, 1.0)
    """
    targets, ranking, counts = _encode(y_true, top_labels, label_counts)
    if ks is None:
        ks = [k for k in DEFAULT_KS if k <= max(ranking.shape[1], 1)]
    _check_columns(ranking, check_ks(ks)[-1])
    scores = Scores(ks, counts, n_train, a, b)
    scores.update(targets, ranking)
    return scores.result()


def precision_at_k(y_true: Any, top_labels: Any, k: int, sample_weight: Any = None) -> float:
    """Return P@k: the mean fraction of the top k labels that are true, weighted by `sample_weight`.

    >>> precision_at_k([["a", "b"], ["c"]], [["a", "c"], ["b", "c"]], k=2)
    0.5
    """
    _, found = _found(y_true, top_labels, k)
    weights = read_weights(sample_weight, len(found))
    return float(np.average(row_precision(found, k), weights=weights))


def recall_at_k(y_true: Any, top_labels: Any, k: int) -> float:
    """Return the mean fraction of the true labels that are among the top k."""
    targets, found = _found(y_true, top_labels, k)
    return float(row_recall(found, true_counts(targets), k).mean())


def ndcg_at_k(y_true: Any, top_labels: Any, k: int) -> float:
    """Return nDCG@k: hits discounted by 1/log2(rank + 1), over the ideal gain of the row, averaged over rows."""
    targets, found = _found(y_true, top_labels, k)
    return float(row_ndcg(found, true_counts(targets), k).mean())


def error_at_k(y_true: Any, top_labels: Any, k: int) -> float:
    """Return the top-k error: the fraction of rows without a true label among the top k."""
    _, found = _found(y_true, top_labels, k)
    return float(row_error(found, k).mean())


def micro_f1_at_k(y_true: Any, top_labels: Any, k: int) -> float:
    """Return the micro-averaged F1 of predicting the top k labels of every row."""
    return _tallies(y_true, top_labels, k).micro_f1(k)


def macro_f1_at_k(y_true: Any, top_labels: Any, k: int) -> float:
    """Return the macro-averaged F1 of predicting the top k labels, over the labels that are true or predicted anywhere."""
    return _tallies(y_true, top_labels, k).macro_f1(k)


def label_coverage(y_true: Any, top_labels: Any, k: int) -> float:
    """Return the fraction of distinct true labels that are correctly predicted at least once among the top k."""
    return _tallies(y_true, top_labels, k).coverage(k)


def psp_at_k(
    y_true: Any,
    top_labels: Any,
    k: int,
    label_counts: Any,
    n_train: int,
    a: float = DEFAULT_A,
    b: float = DEFAULT_B,
    normalize: bool = True,
) -> float:
    """Return propensity-scored precision: hits weigh 1/propensity; `normalize` divides by the best attainable value.

    >>> counts = {"common": 90, "rare": 2}
    >>> round(psp_at_k(["common", "rare"], [["common"], ["common"]], 1, counts, n_train=92), 3)
    0.275
    """
    scores = _weighted(y_true, top_labels, k, label_counts, n_train, a, b)
    return scores.weighted("PSP", k, normalize)


def psndcg_at_k(
    y_true: Any,
    top_labels: Any,
    k: int,
    label_counts: Any,
    n_train: int,
    a: float = DEFAULT_A,
    b: float = DEFAULT_B,
    normalize: bool = True,
) -> float:
    """Return propensity-scored nDCG: `psp_at_k` with nDCG's discounts and each row's ideal gain."""
    scores = _weighted(y_true, top_labels, k, label_counts, n_train, a, b)
    return scores.weighted("PSnDCG", k, normalize)


def constant_accuracy(y_true: Any) -> float:
    """Return P@1 of the best constant predictor: the label that is most frequent in `y_true`.

    >>> constant_accuracy(["a", "b", "a", "c"])
    0.5
    """
    targets = y_true if isinstance(y_true, Targets) else IdEncoder().targets(y_true)
    if not len(targets):
        raise ValueError("there is nothing to evaluate: y_true has no rows.")
    tallies = LabelTallies((1,))
    nothing = np.full((len(targets), 1), -1, dtype=np.int64)
    tallies.update(targets, nothing, nothing >= 0)
    return tallies.most_frequent() / len(targets)


def _encode(y_true: Any, top_labels: Any, label_counts: Any = None) -> tuple[Targets, NDArray[np.int64], Any]:
    """Encode true labels, rankings and training counts by label id."""
    if hasattr(y_true, "scores"):
        raise ValueError("y_true is a result of predict_topk; the true labels come first, then the predictions.")
    if isinstance(y_true, Targets):
        if isinstance(label_counts, Mapping):
            raise ValueError("with Targets and label ids, label_counts must be a vector of counts by id.")
        targets, ranking, counts = y_true, check_ranking(top_labels), label_counts
    else:
        encoder = IdEncoder()
        targets, ranking = encoder.targets(y_true), encoder.ranking(top_labels)
        counts = None if label_counts is None else encoder.counts(label_counts)
    if len(targets) == 0:
        raise ValueError("there is nothing to evaluate: y_true has no rows.")
    return targets, ranking, counts


def _check_columns(ranking: NDArray[np.int64], k: int) -> None:
    if k > ranking.shape[1]:
        raise ValueError(
            f"top_labels has {ranking.shape[1]} column(s), but k={k} needs {k}: predict_topk(X, {k}). "
            "If the model has fewer labels, fill the row with None, masked entries or id -1."
        )


def _encode_at(
    y_true: Any, top_labels: Any, k: int, label_counts: Any = None
) -> tuple[Targets, NDArray[np.int64], Any]:
    """Encode as `_encode` for a metric of the top k labels, which `top_labels` must have."""
    check_ks([k])
    targets, ranking, counts = _encode(y_true, top_labels, label_counts)
    _check_columns(ranking, k)
    return targets, ranking, counts


def _found(y_true: Any, top_labels: Any, k: int) -> tuple[Targets, NDArray[np.bool_]]:
    targets, ranking, _ = _encode_at(y_true, top_labels, k)
    return targets, hits(targets, ranking)


def _tallies(y_true: Any, top_labels: Any, k: int) -> LabelTallies:
    targets, ranking, _ = _encode_at(y_true, top_labels, k)
    tallies = LabelTallies((k,))
    tallies.update(targets, ranking, hits(targets, ranking))
    return tallies


def _weighted(y_true: Any, top_labels: Any, k: int, label_counts: Any, n_train: int, a: float, b: float) -> Scores:
    targets, ranking, counts = _encode_at(y_true, top_labels, k, label_counts)
    scores = Scores((k,), counts, n_train, a, b)
    scores.update(targets, ranking)
    return scores
