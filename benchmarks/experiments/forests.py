"""`python -m benchmarks.experiments.forests [SUITE ...]`: labels below a node of three trees of LabelTree.

Validation rows, two seeds each. The first suites have one label a row, the others several.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

from benchmarks.experiments.hard_negatives import KS, measured
from benchmarks.harness import suites
from benchmarks.harness.measure import Data
from benchmarks.harness.output import help_if_asked, store

SUITES = {
    "one": ["wordnet", "icd", "verses", "quotations", "formulas", "places"],
    "several": ["kconfig", "emoji", "java-types", "delicious", "debtags"],
}
SIZES = (150, 60, 30)
SEEDS = (1, 2)


def line_of(suite: str) -> list[Any]:
    """P@k with the largest nodes, the differences to it with smaller ones, and the ratios of time."""
    data = Data(suites.prepared(suite, validation=True))
    (largest, seconds), *others = (measured(data, SEEDS, n_trees=3, max_leaf=size) for size in SIZES)
    gains = [float(gain) for figures, _ in others for gain in figures - largest]
    return [suite, *largest.tolist(), *gains, *(own / seconds for _, own in others)]


def mean_of(name: str, lines: list[list[Any]]) -> list[Any]:
    """Means of the figures, and geometric means of the ratios of time."""
    columns = list(zip(*(line[1:] for line in lines)))
    n_figures = len(KS) * len(SIZES)
    means = [float(np.mean(column)) for column in columns[:n_figures]]
    return [name, *means, *(math.exp(np.mean(np.log(column))) for column in columns[n_figures:])]


if __name__ == "__main__":
    help_if_asked(__doc__)
    rows: list[list[Any]] = []
    for number, names in SUITES.items():
        lines = []
        for suite in [name for name in names if name in (sys.argv[1:] or names)]:
            lines.append(line_of(suite))
            print(*lines[-1], file=sys.stderr, flush=True)
        rows += [*lines, mean_of(f"mean, {number} a row", lines)] if lines else []
    store(
        "defaults",
        "forests",
        title="Labels below a node of three trees of LabelTree",
        shows="P@k in per cent with at most 150 labels below a node, the differences in points with 60 (the default if rows have one "
        "label) and 30, and the ratio of training time (processor). Validation rows, means of two seeds.",
        columns=["suite", *({"name": f"P@{k}", "decimals": 2} for k in KS)]
        + [{"name": f"P@{k}, {size}", "decimals": 2, "signed": True} for size in SIZES[1:] for k in KS]
        + [{"name": f"time, {size}", "decimals": 2} for size in SIZES[1:]],
        rows=rows,
    )
