"""Explanations of estimators, from the traces of their models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from treemax.explanations import Alternative, Candidate, Explanation, Path, Span, Step, Trace, total_added
from treemax.inputs.rows import Rows, SparseRows, is_arrow
from treemax.models.trained.tracing import NOTHING

if TYPE_CHECKING:
    from treemax.models.base.predicting import PredictingEstimator
    from treemax.text.occurrences import Occurrence

SHOWN = 4  # labels below a node
PRIOR_NOTE = "No feature of the row is known to the model: the answer is the frequencies of the labels in training."
LEFT_NOTE = "No label that the model finds for this row is left: the answer is the most frequent of the others."
MISSED_NOTE = "The search did not find this label, whose score is above that of the last candidate; a wider beam would."


def as_table(X: Any) -> Any:
    """Return one row, such as a list of numbers, as a table with one row."""
    if is_arrow(X) or isinstance(X, SparseRows) or hasattr(X, "columns") or np.ndim(X) != 1:
        return X
    if hasattr(X, "iloc"):  # a row of a data frame
        return X.to_frame().T
    row = np.asarray(X)
    return X if row.dtype.kind not in "fiub" else row.reshape(1, -1)


def explain_row(estimator: PredictingEstimator, row: Rows, wanted: int | None, k: int) -> Explanation:
    """Explain the label with the id `wanted`, or the answer, for one row."""
    if len(estimator.label_index_) == 0:
        raise ValueError("There is nothing to explain: no label was learned yet.")
    if wanted in estimator._changes.forgotten:
        raise ValueError("The model has forgotten this label, so there is nothing to explain.")
    found = [array[0] for array in estimator._candidates(row, max(k, 2))]
    ids, scores, probabilities = (array[found[0] >= 0] for array in found)
    if wanted is None and len(ids) == 0:
        only = Candidate(estimator.label_index_.labels(estimator._best(row)).tolist()[0], 0.0, 0.0)
        return Explanation(type(estimator).__name__, *only, candidates=[only], prior=True, notes=[LEFT_NOTE])
    chosen = int(ids[0]) if wanted is None else wanted
    names = estimator.label_index_.labels(ids).tolist()
    candidates = list(map(Candidate, names, scores.tolist(), probabilities.tolist()))
    candidate = candidates[ids.tolist().index(chosen)] if chosen in ids else _candidate(estimator, row, chosen)
    others = [i for i in range(len(ids)) if ids[i] != chosen][:1]
    explanation = Explanation(
        model=type(estimator).__name__,
        label=candidate.label,
        score=candidate.score,
        probability=candidate.probability,
        candidates=candidates[:k],
    )
    if estimator._unknown(row) is not None:
        behind = Alternative(*candidates[others[0]], tree=0, step=0) if others else None
        return replace(explanation, prior=True, notes=[PRIOR_NOTE], alternative=behind)
    trace = estimator._trace(row, [chosen, *ids[others].tolist()], [candidate.score, *scores[others].tolist()])
    if not trace.paths[0]:
        raise ValueError(_not_reached(candidate.label, candidates))
    return replace(
        explanation,
        features=[_feature(estimator, column) for column in trace.columns.tolist()],
        columns=_ids_of(estimator, trace.columns),
        values=trace.values,
        paths=_named(estimator, trace.paths[0]),
        routes=_named(estimator, trace.routes[0]) if trace.routes else [],
        alternative=_alternative(candidates[others[0]], trace) if others else None,
        weights=trace.weights,
        notes=_notes(estimator, candidate, candidates),
    )


def _candidate(estimator: PredictingEstimator, row: Rows, label: int) -> Candidate:
    """Return a label that is not among the best, with its score and probability."""
    score, probability = (float(part[0, 0]) for part in estimator._scored_labels(row, np.array([[label]])))
    return Candidate(estimator.label_index_.labels([label]).tolist()[0], score, probability)


def _notes(estimator: PredictingEstimator, own: Candidate, candidates: Sequence[Candidate]) -> list[str]:
    """Return what else to know of the answer."""
    notes = []
    if own not in candidates and own.score > candidates[-1].score:
        notes.append(MISSED_NOTE)
    if estimator.multi_label_:
        notes.append(f"predict answers the labels with a probability of at least {estimator.threshold_:.3f}.")
    return notes


def _not_reached(label: Any, candidates: Sequence[Candidate]) -> str:
    considered = f", as {', '.join(repr(each.label) for each in candidates)} have" if candidates else ""
    return f"The model does not consider the label {label!r} for this row, so it has no path to explain{considered}."


def _named(estimator: PredictingEstimator, paths: Sequence[Path]) -> list[Path]:
    """Return paths with the names of the most frequent labels below each step."""
    hidden = np.fromiter(estimator._changes.forgotten, np.int64)
    frequent = [_frequent(estimator.label_counts_, step, hidden) for path in paths for step in path.steps]
    names = iter(estimator.label_index_.labels(np.concatenate([NOTHING, *frequent])).tolist())
    lengths = iter(map(len, frequent))
    return [
        replace(path, steps=[_with_labels(step, list(islice(names, next(lengths)))) for step in path.steps])
        for path in paths
    ]


def _with_labels(step: Step, labels: list[Any]) -> Step:
    """Return `replace(step, labels=labels)`, in a third of the time."""
    return Step(
        step.node, step.child, step.branch, step.probability, step.logit, step.terms, step.added, labels, step.n_labels
    )


def _frequent(counts: NDArray[np.int64], step: Step, hidden: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the ids of the most frequent labels below a step, without those that are hidden."""
    ids = np.asarray(step.labels, dtype=np.int64)
    return frequent_labels(ids, counts[np.minimum(ids, len(counts) - 1)], hidden, SHOWN)


def frequent_labels(
    ids: NDArray[np.int64], counts: NDArray[Any], hidden: NDArray[np.int64], most: int
) -> NDArray[np.int64]:
    """Return the labels with the largest counts, without those that are hidden; equal ones in the order of their ids."""
    if len(hidden):
        shown = ~np.isin(ids, hidden)
        ids, counts = ids[shown], counts[shown]
    if len(ids) > most > 0:
        largest = np.flatnonzero(counts >= np.partition(counts, -most)[-most])
        ids, counts = ids[largest], counts[largest]
    return ids[np.lexsort((ids, -counts))[:most]]


def _feature(estimator: PredictingEstimator, column: int) -> Any:
    """Return the name of a feature, or its id."""
    if estimator._feature_numbers is not None:
        return estimator._feature_numbers.id_of(column)
    names = getattr(estimator, "feature_names_in_", None)
    return column if names is None or column >= len(names) else str(names[column])


def _ids_of(estimator: PredictingEstimator, columns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the columns of X, where the model has numbers of its own."""
    numbers = estimator._feature_numbers
    return columns if numbers is None else np.array([numbers.id_of(int(c)) for c in columns], dtype=np.int64)


def _alternative(other: Candidate, trace: Trace) -> Alternative:
    """Return the best other label: where its path leaves, and the difference of the logits there."""
    own_steps, other_steps = trace.paths[0][0].steps, trace.paths[1][0].steps
    pairs = list(zip(own_steps, other_steps))
    step = next((i for i, (a, b) in enumerate(pairs) if (a.node, a.child) != (b.node, b.child)), len(pairs) - 1)
    a, b = pairs[step]
    terms, added = {}, np.zeros(0)
    if a.logit is not None and b.logit is not None and a.node == b.node:
        terms = {name: a.terms.get(name, 0.0) - b.terms.get(name, 0.0) for name in {**a.terms, **b.terms}}
        added = a.added - b.added
    elif trace.routes:
        of_both = [total_added(own, len(trace.columns)) for own in trace.routes]
        added = of_both[0] - of_both[1]
    return Alternative(*other, tree=trace.paths[0][0].tree, step=step, terms=terms, added=added)


# --- texts -----------------------------------------------------------------------------------------------


def explanation_of_text(explanation: Explanation, vectorizer: Any, text: str) -> Explanation:
    """Return the explanation with the words of the text as features, and their places."""
    from treemax.text.occurrences import is_hashed, occurrences  # imports much of scikit-learn

    found: dict[int, list[Occurrence]] = {}
    for each in occurrences(vectorizer, text):
        found.setdefault(each.column, []).append(each)
    names = [
        " | ".join(dict.fromkeys(each.name for each in found[column])) if column in found else None
        for column in explanation.columns.tolist()
    ]
    if None in names:
        names = _names_out(vectorizer, explanation, names)
    spans = [
        span
        for feature, column in enumerate(explanation.columns.tolist())
        for each in found.get(column, [])
        for span in _spans(each, feature, len(found[column]))
    ]
    notes = list(explanation.notes)
    if any(" | " in str(name) for name in names) and is_hashed(vectorizer):
        notes.append("Features are hashes: words that share one are shown together, with | between them.")
    return replace(explanation, features=names, text=text, spans=spans, notes=notes)


def _spans(found: Occurrence, feature: int, times: int) -> list[Span]:
    """Divide what a feature added among its occurrences, and among the words or the characters of each."""
    units = sum(b - a for a, b in found.places) if found.of_characters else len(found.places)
    share = 1.0 / (times * max(1, units))
    return [Span(a, b, feature, share) for a, b in found.places]


def _names_out(vectorizer: Any, explanation: Explanation, names: list[Any]) -> list[Any]:
    """Return the names with those of `get_feature_names_out` for features that have no place in the text."""
    try:
        known = vectorizer.get_feature_names_out()
    except (AttributeError, ValueError):  # hashes have no names
        known = ()
    given = zip(names, explanation.features, explanation.columns.tolist())
    return [
        name if name is not None else str(known[column]) if column < len(known) else feature
        for name, feature, column in given
    ]


# --- for the traces of models ----------------------------------------------------------------------------
