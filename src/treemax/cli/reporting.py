"""What `eval` and `stream` report: metrics, a table by label, and a file of predictions."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from treemax.cli.options import check_output

SHOWN_LABELS = 12  # characters of a name in the table by label, at least


def metric_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that `eval` and `stream` share."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON, with all metrics."),
        click.option("--predictions", metavar="FILE", callback=check_output,
                     help="Write the predictions to FILE: one line of JSON per example, with its true labels."),
        click.option("--per-label", is_flag=True, help="Also print examples, precision and recall of each label, and of rare and frequent labels."),
        click.option("--k", default=5, show_default=True, type=click.IntRange(min=1),
                     help="Labels to predict per example; metrics are at 1, 3, 5 up to this number."),
    ):  # fmt: skip
        command = option(command)
    return command


def metric_ks(k: int) -> list[int]:
    """Return the numbers of labels at which metrics are reported.

    >>> metric_ks(5), metric_ks(10)
    ([1, 3, 5], [1, 3, 5, 10])
    """
    from treemax.metrics.scores import DEFAULT_KS

    return [*(smaller for smaller in DEFAULT_KS if smaller < k), k]


def json_line(labels: list[Any], scores: list[float], **more: Any) -> bytes:
    """Return a prediction as a line of JSON, without its end."""
    return as_json({**answer(labels, scores), **more})


def answer(labels: list[Any], scores: list[float]) -> dict[str, Any]:
    """Return labels and rounded scores, without the end of None."""
    n = sum(label is not None for label in labels)  # a model may have fewer labels than were asked for
    return {"labels": labels[:n], "scores": [round(score, 6) for score in scores[:n]]}


def as_json(facts: dict[str, Any]) -> bytes:
    """Return facts as a line of JSON, without its end."""
    try:
        return json.dumps(facts, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # an unpaired surrogate, which JSON can only escape
        return json.dumps(facts).encode()


class Predictions:
    """The file of `--predictions`."""

    def __init__(self, path: str) -> None:
        self._file = Path(path).open("wb")  # noqa: SIM115
        click.get_current_context().call_on_close(self._file.close)

    def add(self, true: Iterable[list[Any]], labels: list[list[Any]], scores: list[list[float]]) -> None:
        """Write the true labels, and the predicted ones with their scores, of some examples."""
        for own, ranked, values in zip(true, labels, scores):
            self._file.write(json_line(ranked, values, true=list(own)) + b"\n")


def print_metrics(
    metrics: dict[str, float],
    k: int,
    as_json: bool,
    by_label: list[dict[str, Any]] | None = None,
    by_frequency: list[dict[str, Any]] | None = None,
) -> None:
    """Print the main metrics as a table, or with `as_json` all of them as one line."""
    if as_json:
        # JSON has no infinity, the entropy reduction of zero accuracy.
        facts: dict[str, Any] = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        tables = {"per_label": by_label, "by_training_examples": by_frequency}
        click.echo(json.dumps(facts | {name: rows for name, rows in tables.items() if rows is not None}))
        return
    shown = main_metrics(k) + [f"error@{at}" for at in metric_ks(k) if "perplexity" in metrics]
    for name, value in metrics.items():
        if ("@" in name or name == "entropy_reduction") and name not in shown:
            continue
        click.echo(f"{name:>20} {value:,}" if isinstance(value, int) else f"{name:>20} {value:.4f}")
    if by_label is not None:
        _print_rows(by_label, "label")
    if by_frequency:
        _print_rows(by_frequency, "training_examples")


def main_metrics(k: int) -> list[str]:
    """Return the ranking metrics of the table; JSON has those at every k."""
    at_all = [f"{name}@{at}" for name in ("P", "PSP") for at in metric_ks(k)]
    return [*at_all, *(f"{name}@{k}" for name in ("recall", "nDCG", "label_coverage")), "macro_F1@1"]


def _print_rows(rows: list[dict[str, Any]], first: str) -> None:
    """Print a table whose first column has names."""
    width = max(SHOWN_LABELS, len(first), *(len(str(row[first])) for row in rows))
    names = [name for name in rows[0] if name != first]
    click.echo("\n" + " ".join([f"{first:<{width}}", *(f"{name:>9}" for name in names)]))
    for row in rows:
        click.echo(" ".join([f"{row[first]!s:<{width}}", *(_cell(row[name]) for name in names)]))


def _cell(value: Any) -> str:
    if isinstance(value, list):  # labels with counts
        return "  " + ", ".join(f"{label} {count:,}" for label, count in value)
    return f"{value:>9,}" if isinstance(value, int) else f"{value:>9.4f}"
