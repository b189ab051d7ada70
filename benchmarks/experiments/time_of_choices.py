"""`python -m benchmarks.experiments.time_of_choices [SUITE ...]`: how much longer LabelTree trains because it chooses its cost and
calibrates the whole tree.

Three ways in turn, in one process, on the training rows of the validation parts: with both, without the calibration of
the whole tree, and with the cost given besides. The best of several rounds counts, in processor time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.experiments.defaults import SPARSE
from benchmarks.harness import suites
from benchmarks.harness.measure import Data, load_driver
from benchmarks.harness.output import help_if_asked
from benchmarks.harness.systems import DRIVERS
from benchmarks.pages import publish

ROUNDS = 5
COLUMNS = [
    {"name": "suite"},
    {"name": "s", "decimals": 2},
    *({"name": name} for name in ("calibration of the tree %", "choice of the cost %", "both %")),
]


def seconds(data: Data, calibrated: bool, cost: float | str) -> tuple[float, float]:
    """The processor time of a training, and the cost that was used."""
    driver = load_driver(DRIVERS / "treemax.py")
    settings = {"model": "label-tree", "threads": 1, "verbose": 0, "cost": cost}
    loaded = driver.load(data, settings)
    no_rows = np.empty(0, dtype=np.uint32)
    name = "treemax.models.label_tree.training.calibration_rows"
    with mock.patch(name, lambda *_: no_rows) if not calibrated else mock.MagicMock():
        start = time.process_time()
        model = driver.train(loaded, settings, None)
        return time.process_time() - start, float(model.cost_)


def times(suite: str, rounds: int = ROUNDS) -> tuple[float, float, float]:
    """The best time with both choices, without the calibration, and with the cost given besides."""
    data = Data(suites.prepared(suite, validation=True))
    _, cost = seconds(data, True, "auto")  # compiles, too
    ways: list[tuple[bool, float | str]] = [(True, "auto"), (False, "auto"), (False, cost)]
    found = [[seconds(data, *way)[0] for way in ways] for _ in range(rounds)]
    both, one, none = np.min(found, axis=0).tolist()
    return both, one, none


def lines(names: Sequence[str]) -> Iterator[list[Any]]:
    for name in names:
        try:
            both, one, none = times(name)
        except suites.DataMissing as missing:
            print(f"benchmarks: {missing}", file=sys.stderr)
            continue
        yield [name, round(both, 2), *(round(100 * ratio - 100) for ratio in (both / one, one / none, both / none))]


if __name__ == "__main__":
    help_if_asked(__doc__)
    publish(
        "time-of-choices",
        "defaults",
        "time-of-choices",
        title="What choosing the cost and the temperature and calibrating add to the training of LabelTree",
        shows=f"Processor time, best of {ROUNDS}. The calibration includes the choice of the temperature.",
        columns=COLUMNS,
        rows=list(lines(sys.argv[1:] or SPARSE)),
    )
