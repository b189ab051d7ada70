"""What a caller can choose about reading, checked once for all formats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from treemax.inputs.rows import MAX_FEATURES

FORMATS = ("fasttext", "xmc", "svmlight", "vw", "jsonl", "npz", "parquet", "arrow")
MAX_BITS = 31  # of a hash: the names of a file go into at most 2**31 columns


@dataclass(frozen=True)
class Options:
    """`bits` of the hash of feature names, number of columns, and where svmlight's indices begin."""

    bits: int = 18
    n_features: int | None = None
    zero_based: bool | Literal["auto"] = "auto"
    whole: bool = False  # the file is read as one, not in chunks

    def __post_init__(self) -> None:
        if not (isinstance(self.bits, int) and 1 <= self.bits <= MAX_BITS):
            raise ValueError(f"bits must be a whole number from 1 to {MAX_BITS}, got {self.bits!r}.")
        if self.n_features is not None and not 1 <= self.n_features <= MAX_FEATURES:
            raise ValueError(f"n_features must be from 1 to {MAX_FEATURES:,}, got {self.n_features!r}.")
        if self.zero_based not in (True, False, "auto"):
            raise ValueError(f'zero_based must be True, False or "auto", got {self.zero_based!r}.')


def check_format(format: str) -> None:
    """Refuse a format that is not known."""
    if format not in (*FORMATS, "auto"):
        raise ValueError(f"Unknown format {format!r}; known are {', '.join(FORMATS)}, and auto.")
