"""The parts of an explanation. Models return a `Trace`, with label ids; estimators convert it to an `Explanation`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Step:
    """One decision on a path: the branch taken, its probability, and the parts of its score.

    Where a linear classifier decides, `logit` is the sum of `terms` (such as the bias) and of `added`, one number for
    each feature of the explanation, all in double precision. At other steps `logit` is None and `added` is empty.

    Attributes
    ----------
    node, child : int
        The node of the decision, and what was chosen there: a node, or a label of a leaf.
    branch : str
        The choice in words, such as "child 3 of 16".
    probability : float
        The probability of the choice, given that the row is at the node.
    logit, terms, added
        The score of the choice, and its parts.
    labels : sequence
        Frequent labels below the choice.
    n_labels : int or None
        Number of labels below the choice, if known.
    """

    node: int
    child: int
    branch: str
    probability: float
    logit: float | None = None
    terms: Mapping[str, float] = field(default_factory=dict)
    added: Floats = field(default_factory=lambda: np.zeros(0))
    labels: Sequence[Any] | NDArray[Any] = ()
    n_labels: int | None = None


def linear_step(
    node: int,
    child: int,
    branch: str,
    probability: float,
    terms: Mapping[str, float],
    added: Floats,
    labels: Sequence[Any] | NDArray[Any] = (),
    n_labels: int | None = None,
) -> Step:
    """Return a step whose logit is the sum of its parts."""
    logit = math.fsum((*terms.values(), *added.tolist()))
    return Step(node, child, branch, probability, logit, terms, added, labels, n_labels)


@dataclass(frozen=True, eq=False)
class Path:
    """Steps from the root of a tree to a label."""

    steps: Sequence[Step]
    weight: float = 1.0
    tree: int = 0

    @property
    def probability(self) -> float:
        """The product of the probabilities of the steps."""
        return math.prod(step.probability for step in self.steps)


class Trace(NamedTuple):
    """The decisions that lead to some labels, for one row.

    `columns` and `values` are the features of the row, as the classifiers take them. Each label has `paths`, such that
    its score is the sum of weight times probability, and may have `routes`, which say where these come from: the leaves
    that made a label a candidate, the buckets of a hashed label. `weights` is the precision of the weights.
    """

    columns: NDArray[np.int64]
    values: NDArray[np.float32]
    paths: Sequence[Sequence[Path]]
    weights: str
    routes: Sequence[Sequence[Path]] = ()


class Candidate(NamedTuple):
    """A label that was considered: its score, and the probability after calibration."""

    label: Any
    score: float
    probability: float


@dataclass(frozen=True, eq=False)
class Alternative:
    """The best other label, and where its path leaves that of the explained label.

    `terms` and `added` are the parts of the logit of the explained label minus those of the other one, at the step
    where the paths part; empty where no linear classifier decides.
    """

    label: Any
    score: float
    probability: float
    tree: int
    step: int
    terms: Mapping[str, float] = field(default_factory=dict)
    added: Floats = field(default_factory=lambda: np.zeros(0))


class Span(NamedTuple):
    """Characters of the text that belong to a feature; `share` of its contribution is shown here."""

    start: int
    end: int
    feature: int
    share: float


@dataclass(frozen=True, eq=False)
class Explanation:
    """Why a model gives a label its probability, for one row; `print` shows it, and notebooks show it in colours.

    Attributes
    ----------
    model : str
        The class of the model.
    label : str or int
        The explained label.
    score : float
        Its score before calibration: the sum over `paths` of weight times probability.
    probability : float
        Its probability after calibration, as in `predict_topk`.
    candidates : list of Candidate
        The best labels, the answer first.
    features : list
        The features of the row: words, names of columns, or numbers of columns.
    columns, values : array
        Their columns in X, and their values, as the classifiers take them: scaled where the model scales.
    paths : list of Path
        The path to the label in each tree.
    routes : list of Path
        Where the paths come from: the leaves that made the label a candidate (`RecallTree`), the buckets of the
        label (`MACH`). Empty for other models.
    alternative : Alternative or None
        The best other label.
    prior : bool
        Whether no feature of the row is known, so that the answer is the frequencies of the labels.
    weights : str
        The precision of the weights.
    notes : list of str
        What else to know.
    text : str or None
        The text, of a `TextModel`, and in `spans` the place of each feature in it.
    """

    model: str
    label: Any
    score: float
    probability: float
    candidates: Sequence[Candidate]
    features: Sequence[Any] = ()
    columns: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    values: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    paths: Sequence[Path] = ()
    routes: Sequence[Path] = ()
    alternative: Alternative | None = None
    prior: bool = False
    weights: str = ""
    notes: Sequence[str] = ()
    text: str | None = None
    spans: Sequence[Span] = ()

    @property
    def added(self) -> Floats:
        """The contribution of each feature: the sum over the steps, averaged over paths by their part of the score."""
        return total_added(self.paths, len(self.columns)) + total_added(self.routes, len(self.columns))

    def ranked(self, added: Floats | None = None) -> list[tuple[Any, float]]:
        """Return pairs of feature and contribution (of all steps by default), largest first, without zeros."""
        added = self.added if added is None else added
        order = np.argsort(-np.abs(added), kind="stable")
        return [(self.features[i], float(added[i])) for i in order.tolist() if added[i]]

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as plain values; the `added` of steps are in the order of `features`."""
        added = self.added
        named = zip(self.features, self.columns.tolist(), self.values.tolist(), added.tolist())
        return {
            "model": self.model,
            "label": plain(self.label),
            "score": self.score,
            "probability": self.probability,
            "prior": self.prior,
            "weights": self.weights,
            "candidates": [{**each._asdict(), "label": plain(each.label)} for each in self.candidates],
            "features": [
                {"feature": plain(name), "column": column, "value": value, "added": total}
                for name, column, value, total in named
            ],
            "paths": [_path_dict(path) for path in self.paths],
            "routes": [_path_dict(path) for path in self.routes],
            "alternative": None if self.alternative is None else _alternative_dict(self.alternative),
            "notes": list(self.notes),
            "text": self.text,
            "spans": [span._asdict() for span in self.spans],
        }

    def to_json(self) -> str:
        """Return `to_dict` as JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    def to_text(self, features: int = 8) -> str:
        """Return the explanation as lines of text, with the `features` of largest contribution at each step."""
        from treemax.explanations.as_text import explanation_text

        return explanation_text(self, features)

    def to_html(self, features: int = 8, page: bool = False) -> str:
        """Return the explanation as HTML without scripts: a fragment in the colours of its page, or a whole page."""
        from treemax.explanations.as_html import explanation_html, html_page

        fragment = explanation_html(self, features)
        return html_page([fragment]) if page else fragment

    def _repr_html_(self) -> str:
        return self.to_html()

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        return f"<Explanation of {self.label!r}, probability {self.probability:.4f}>"


def total_added(paths: Sequence[Path], n_features: int) -> Floats:
    """Return the contribution of each feature to several paths, weighted by the share of each path in the score."""
    total, parts = np.zeros(n_features), [path.weight * path.probability for path in paths]
    sum_of_parts = math.fsum(parts)
    for path, part in zip(paths, parts):
        share = part / sum_of_parts if sum_of_parts > 0 else 1.0 / len(paths)
        for step in path.steps:
            if len(step.added):
                total += share * step.added
    return total


def plain(value: Any) -> Any:
    """Return a NumPy scalar as a Python value."""
    return value.item() if isinstance(value, np.generic) else value


def others(n: int) -> str:
    """Return "1 other", "2 others" and so on, for features that are not shown."""
    return f"{n:,} other{'' if n == 1 else 's'}"


def shown_labels(step: Step) -> str:
    """Return the labels below a step in a few words.

    >>> shown_labels(Step(0, 1, "child 1 of 2", 0.5, labels=["a", "b"], n_labels=9))
    '9 labels: a, b, ...'
    """
    names = ", ".join(map(str, step.labels))
    if step.n_labels is None:
        return names and f"mostly {names}"
    if step.n_labels == 1 or not names:
        return names
    return f"{step.n_labels:,} labels: {names}{', ...' if step.n_labels > len(step.labels) else ''}"


def _path_dict(path: Path) -> dict[str, Any]:
    steps = [
        {
            "node": step.node, "child": step.child, "branch": step.branch, "probability": step.probability,
            "logit": step.logit, "terms": dict(step.terms), "added": step.added.tolist(),
            "labels": [plain(label) for label in step.labels], "n_labels": step.n_labels,
        }
        for step in path.steps
    ]  # fmt: skip
    return {"tree": path.tree, "weight": path.weight, "probability": path.probability, "steps": steps}


def _alternative_dict(other: Alternative) -> dict[str, Any]:
    parts = {"terms": dict(other.terms), "added": other.added.tolist()}
    place = {"tree": other.tree, "step": other.step}
    return {"label": plain(other.label), "score": other.score, "probability": other.probability, **place, **parts}
