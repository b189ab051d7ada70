"""Files of labels: one per line, or with a weight or another label each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from treemax.inputs.labels import LabelIndex


def read_labels(path: str, index: LabelIndex) -> list[Any]:
    """Return the labels of a file, in the type of the model's labels."""
    return [_label(line, index, path, number) for number, line in _lines(path)]


def read_weights(path: str, index: LabelIndex) -> dict[Any, float]:
    """Return the weights of a file by label: the label, a tab, and the weight in each line."""
    weights = {}
    for number, line in _lines(path):
        label, tab, weight = line.rpartition("\t")
        try:
            if not tab:
                raise ValueError
            weights[_label(label, index, path, number)] = float(weight)
        except ValueError:
            raise click.UsageError(
                f"{path}, line {number}: expected a label, a tab and a weight, got {line!r:.80}."
            ) from None
    return weights


def read_label_pairs(path: str, index: LabelIndex) -> dict[Any, Any]:
    """Return the labels of a file by label: a label, a tab and another label in each line."""
    pairs: dict[Any, Any] = {}
    for number, line in _lines(path):
        one, _, other = line.partition("\t")
        if not (one and other) or "\t" in other:
            raise click.UsageError(f"{path}, line {number}: expected a label, a tab and a label, got {line!r:.80}.")
        label = _label(one, index, path, number)
        if label in pairs:
            raise click.UsageError(f"{path}, line {number}: the label {label!r:.80} has a line before.")
        pairs[label] = _label(other, index, path, number)
    return pairs


def read_label_texts(path: str, index: LabelIndex) -> dict[Any, str]:
    """Return the texts of a file by label: a label, a tab and a text in each line."""
    texts: dict[Any, str] = {}
    for number, line in _lines(path):
        label, tab, text = line.partition("\t")
        if not (label and tab):
            raise click.UsageError(f"{path}, line {number}: expected a label, a tab and a text, got {line!r:.80}.")
        texts[_label(label, index, path, number)] = text
    return texts


def _lines(path: str) -> list[tuple[int, str]]:
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"cannot read {path}: {getattr(error, 'strerror', error)}.") from None
    return [(number, line) for number, line in enumerate(lines, 1) if line]


def _label(text: str, index: LabelIndex, path: str, number: int) -> Any:
    try:
        return label_from_text(text, index)
    except ValueError as error:
        raise click.UsageError(f"{path}, line {number}: {error}") from None


def label_from_text(text: str, index: LabelIndex) -> Any:
    """Return a label in the type of the model's labels; raise ValueError if they are integers and it is not."""
    if index.holds_strings:
        return text
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"the labels of the model are integers, got {text!r:.80}.") from None
