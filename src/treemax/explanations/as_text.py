"""An explanation as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from treemax.explanations.explanation import Explanation, Path, others, plain, shown_labels

PATHS = 3  # shown, where there are several trees or routes


def explanation_text(explanation: Explanation, features: int) -> str:
    """Return the explanation as lines of text."""
    return "\n".join(_lines(explanation, features))


def _lines(explanation: Explanation, features: int) -> Iterator[str]:
    if explanation.text is not None:
        yield explanation.text
    yield headline(explanation)
    yield from explanation.notes
    for title, paths in (("route", explanation.routes), ("path", explanation.paths)):
        for number, path in enumerate(paths[:PATHS]):
            yield _path_title(title, number, path, len(paths))
            yield from _steps(explanation, path, features)
    if len(explanation.columns):
        yield f"in all: {parts_text({}, explanation.ranked(), features)}"
    best = (f"{plain(label)} {probability:.3f}" for label, _, probability in explanation.candidates)
    yield f"candidates: {', '.join(best)}"
    yield from _alternative(explanation, features)
    if explanation.weights:
        yield f"weights: {explanation.weights}"


def headline(explanation: Explanation) -> str:
    """Return the label, its probability, and the score before calibration."""
    answer = explanation.candidates[0].label
    other = "" if answer == explanation.label else f", not the answer, which is {plain(answer)}"
    line = f"{explanation.model}: {plain(explanation.label)}, probability {explanation.probability:.3f}{other}"
    if abs(explanation.score - explanation.probability) < 5e-4:
        return line
    return f"{line} (score {explanation.score:.3f} before calibration)"


def _path_title(title: str, number: int, path: Path, n_paths: int) -> str:
    if n_paths == 1:
        return f"{title}:"
    return f"{title} {number + 1} of {n_paths}, probability {path.probability:.3f}, weight {path.weight:.3f}:"


def _steps(explanation: Explanation, path: Path, features: int) -> Iterator[str]:
    for number, step in enumerate(path.steps, 1):
        labels = shown_labels(step)
        yield f"  {number}. {step.branch}, probability {step.probability:.3f}{': ' if labels else ''}{labels}"
        if step.logit is not None:
            ranked = explanation.ranked(step.added)
            yield f"     {step.logit:+.2f} = {parts_text(step.terms, ranked, features)}"


def parts_text(terms: Mapping[str, float], ranked: Sequence[tuple[Any, float]], features: int) -> str:
    """Return the terms and the features of a sum, the features that are not shown as one.

    >>> parts_text({"bias": -1.0}, [("red", 2.0), ("car", -0.5), ("the", 0.25)], 1)
    'bias -1.00, red +2.00, 2 others -0.25'
    """
    parts = [(str(name), value) for name, value in (*terms.items(), *ranked[:features])]
    rest = ranked[features:]
    if rest:
        parts.append((others(len(rest)), sum(value for _, value in rest)))
    return ", ".join(f"{name} {value:+.2f}" for name, value in parts) or "nothing"


def _alternative(explanation: Explanation, features: int) -> Iterator[str]:
    other = explanation.alternative
    if other is None:
        return
    yield f"otherwise: {plain(other.label)}, probability {other.probability:.3f}{place(explanation)}"
    if len(other.added) or other.terms:
        ranked = explanation.ranked(other.added) if len(other.added) else []
        logit = sum(other.terms.values()) + float(other.added.sum())
        yield f"     {logit:+.2f} more for {plain(explanation.label)} = {parts_text(other.terms, ranked, features)}"


def place(explanation: Explanation) -> str:
    """Return where the path of the alternative leaves, if there is more than one step or tree."""
    other = explanation.alternative
    assert other is not None
    if not explanation.paths or len(explanation.paths[0].steps) == 1:
        return ""
    tree = f" of tree {other.tree + 1}" if len(explanation.paths) > 1 else ""
    return f", which leaves the path at step {other.step + 1}{tree}"
