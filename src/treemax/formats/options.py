"""Options of the readers, validated once for all formats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from treemax.inputs.limits import MAX_FEATURES

FORMATS = ("fasttext", "xmc", "svmlight", "vw", "jsonl", "npz", "parquet", "arrow", "csv", "tsv")
DELIMITERS = {"csv": ",", "tsv": "\t"}
COLUMN_OPTIONS = ("text_column", "label_column", "label_separator", "weight_column")
MAX_BITS = 31  # feature names are hashed into at most 2**31 columns


@dataclass(frozen=True)
class Options:
    """Options of `open_examples`, which documents them."""

    bits: int = 18
    n_features: int | None = None
    zero_based: bool | Literal["auto"] = "auto"
    text_column: str | None = None
    label_column: str | None = None
    label_separator: str | None = None
    weight_column: str | None = None
    whole: bool = False  # the file is read as a whole, not in chunks

    def __post_init__(self) -> None:
        if not (isinstance(self.bits, int) and 1 <= self.bits <= MAX_BITS):
            raise ValueError(f"bits must be an integer from 1 to {MAX_BITS}, got {self.bits!r}.")
        if self.n_features is not None and not 1 <= self.n_features <= MAX_FEATURES:
            raise ValueError(f"n_features must be from 1 to {MAX_FEATURES:,}, got {self.n_features!r}.")
        if self.zero_based not in (True, False, "auto"):
            raise ValueError(f'zero_based must be True, False or "auto", got {self.zero_based!r}.')
        for name in COLUMN_OPTIONS:
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise ValueError(f"{name} must be a string, got {value!r:.60}.")

    def check_columns(self, name: str, format: str) -> None:
        """Raise if columns are named for a file of another format than CSV and TSV."""
        given = [option for option in COLUMN_OPTIONS if getattr(self, option) is not None]
        if given and format not in DELIMITERS:
            raise ValueError(f"{given[0]} is for csv and tsv files, but {name} is read as {format}.")


def check_format(format: str) -> None:
    """Raise for an unknown format."""
    if format not in (*FORMATS, "auto"):
        raise ValueError(f"Unknown format {format!r}; choose one of {', '.join(FORMATS)} or auto.")
