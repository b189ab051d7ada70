"""`python -m benchmarks.experiments.hard_negatives [SUITE ...]`: what hard negatives gain and cost LabelTree.

Validation rows, three seeds each, since the precision of a single tree varies with its seed by half a point.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.experiments.defaults import NEW, SPARSE
from benchmarks.harness import suites
from benchmarks.harness.accuracy import correct
from benchmarks.harness.measure import Data, load_driver
from benchmarks.harness.output import help_if_asked, store
from benchmarks.harness.systems import DRIVERS

SHARES = (0.0, 0.25, 0.5)
SEEDS = (1, 2, 3)
KS = (1, 3, 5)


def measured(data: Data, seeds: Sequence[int], **parameters: Any) -> tuple[np.ndarray, float]:
    """P@k of LabelTree in per cent, the mean over seeds, and the least processor time of a training."""
    driver, figures, seconds = load_driver(DRIVERS / "treemax.py"), [], []
    for seed in seeds:
        settings = {"model": "label-tree", "threads": 1, "verbose": 0, "random_state": seed, **parameters}
        loaded, start = driver.load(data, settings), time.process_time()
        model = driver.train(loaded, settings, None)
        seconds.append(time.process_time() - start)
        answers = driver.labels(driver.predict_batch(model, driver.rows(model, data, settings), max(KS)))
        ranked = np.array([row + [-1] * (max(KS) - len(row)) for row in answers])
        hits = correct(ranked, *data.labels("test"), data.n_labels)
        figures.append([100 * hits[:, :k].sum() / (k * len(hits)) for k in KS])
    return np.mean(figures, axis=0), min(seconds)


def line_of(suite: str) -> list[Any]:
    """P@k without hard negatives, the differences to it with each share, and the ratios of time."""
    data = Data(suites.prepared(suite, validation=True))
    (without, seconds), *others = (measured(data, SEEDS, hard_negatives=share) for share in SHARES)
    gains = [round(float(gain), 2) for figures, _ in others for gain in figures - without]
    line = [suite, *(round(float(figure), 2) for figure in without)]
    return [*line, *gains, *(round(own / seconds, 2) for _, own in others)]


def mean_of(name: str, lines: list[list[Any]]) -> list[Any]:
    """Means of the figures, and geometric means of the ratios of time."""
    columns = list(zip(*(line[1:] for line in lines)))
    n_ratios = len(SHARES) - 1
    means = [round(float(np.mean(column)), 2) for column in columns[:-n_ratios]]
    return [name, *means, *(round(math.exp(np.mean(np.log(column))), 2) for column in columns[-n_ratios:])]


if __name__ == "__main__":
    help_if_asked(__doc__)
    lines = []
    for suite in sys.argv[1:] or [*SPARSE, *NEW]:
        lines.append(line_of(suite))
        print(*lines[-1], file=sys.stderr, flush=True)
    old, new = ([line for line in lines if (line[0] in NEW) == is_new] for is_new in (False, True))
    means = [mean_of(name, own) for name, own in (("mean", old), ("mean of the last six", new)) if own]
    store(
        "defaults",
        "hard-negatives",
        title="Hard negatives of LabelTree",
        shows="P@k without them in per cent, the differences in points with a quarter and with half (the default) as many as the rows "
        "of the nodes above labels, and the ratio of training time (processor). Validation rows, means of three seeds. The method and the "
        "weight were chosen among about twenty variants on the first thirteen suites. Half was kept, rather than a quarter, when their "
        "test rows and validation rows of the last six had been seen.",
        columns=["suite", *(f"P@{k}" for k in KS)]
        + [{"name": f"P@{k}, {share}", "decimals": 2, "signed": True} for share in SHARES[1:] for k in KS]
        + [f"time, {share}" for share in SHARES[1:]],
        rows=[*old, *new, *means],
    )
