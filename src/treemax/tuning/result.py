"""The result of a search: the model and the table of trials."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from treemax.tuning.spaces import Setting

DONE = "done"  # trained on all training rows, and within the limits
ABOVE_LIMITS = "above the limits"
INTERRUPTED, TOO_SLOW = "interrupted", "too slow"  # tried again when a search is resumed


@dataclass
class Record:
    """A line of the table: a setting, its training rows and its results."""

    setting: Setting
    status: str = "begun"
    value: float | None = None
    rows: int = 0
    seconds: float = 0.0  # of the training on `rows`, vectorising included
    mb: float | None = None
    us: float | None = None
    confirmed: float | None = None  # the metric on other held-out rows

    def line(self, number: int) -> dict[str, Any]:
        """Return the record as a dictionary, for JSON and data frames."""
        setting = self.setting
        return {
            "number": number,
            "model": setting.model,
            "parameters": _plain(setting.parameters),
            "text": setting.text,
            "text_parameters": _plain(setting.text_parameters),
            "status": self.status,
            "value": self.value,
            "confirmed": self.confirmed,
            "rows": self.rows,
            "seconds": round(self.seconds, 3),
            "mb": self.mb,
            "us": self.us,
        }

    @classmethod
    def from_line(cls, line: dict[str, Any]) -> Record:
        """Restore a record from its line."""
        setting = Setting(
            line["model"], _with_tuples(line["parameters"]), line["text"], _with_tuples(line["text_parameters"])
        )
        rest = {name: line[name] for name in ("status", "value", "confirmed", "rows", "seconds", "mb", "us")}
        return cls(setting, **rest)

    @property
    def rank(self) -> tuple[int, float]:
        """Sort key: the number of training rows, then the metric."""
        return self.rows, float("-inf") if self.value is None else self.value


@dataclass(frozen=True)
class TuneResult:
    """The outcome of `treemax.tune`.

    Attributes
    ----------
    model
        The best model, ready to predict and to be saved.
    best : dict
        The line of `table` that it comes from.
    table : list of dict
        The trials, in order: `number`, `model`, `parameters` and `text_parameters` (those that differ from the
        defaults), `text` (the vectoriser), `status`, `value` (of the metric on the held-out rows), `confirmed` (the
        same on other rows, for the settings in the final comparison), `rows` (trained on), `seconds`, `mb` (of the
        file) and `us` (prediction time per row in microseconds). `pandas.DataFrame(table)` shows it.
    metric : str
        The metric that was maximised.
    refitted : bool
        Whether `model` was trained on all rows; if not, on `best["rows"]` of them.
    interrupted : bool
        Whether Ctrl-C ended the search.
    """

    model: Any
    best: dict[str, Any]
    table: list[dict[str, Any]]
    metric: str
    refitted: bool
    interrupted: bool


def table_lines(table: list[dict[str, Any]], metric: str, most: int = 10) -> Iterator[str]:
    """Format the best trials as lines of text, best first."""
    records = map(Record.from_line, table)
    ordered = sorted(records, key=_order, reverse=True)
    yield f"{metric:>9} {'confirmed':>9} {'rows':>9} {'seconds':>8} {'MB':>8} {'us/row':>8}  setting"
    for record in ordered[:most]:
        value, confirmed = ("-" if v is None else f"{v:.4f}" for v in (record.value, record.confirmed))
        mb = "-" if record.mb is None else f"{record.mb:.1f}"
        us = "-" if record.us is None else f"{record.us:.1f}"
        note = "" if record.status == DONE else f"  ({record.status})"
        yield f"{value:>9} {confirmed:>9} {record.rows:>9,} {record.seconds:>8.1f} {mb:>8} {us:>8}  {record.setting}{note}"


def _order(record: Record) -> tuple[Any, ...]:
    """Sort key: valid trials first, and among them those of the final comparison."""
    return record.status == DONE, -1.0 if record.confirmed is None else record.confirmed, record.rank


def _plain(parameters: dict[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in parameters.items()}


def _with_tuples(parameters: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in parameters.items()}
