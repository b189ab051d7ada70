"""`python -m benchmarks.experiments.calibration_floor [SUITE ...]`: the calibration error of LabelTree beside that of a perfect model.

With few rows even exact probabilities have a calibration error. Here it is simulated: answers that are right with just the
probability that the model gave them. Three maps from score to probability are fitted on the model's held-out rows: Platt's, which
the models use; a curve of three parameters (Kull et al., "Beta calibration", 2017); and Platt's on first answers alone. All keep the
ranking. Validation rows.
"""

from __future__ import annotations

import sys
from typing import Any
from unittest import mock

import numpy as np
from scipy.optimize import minimize

from benchmarks.experiments.defaults import SPARSE
from benchmarks.harness import suites
from benchmarks.harness.accuracy import correct, expected_error
from benchmarks.harness.measure import Data, load_driver
from benchmarks.harness.output import help_if_asked, store
from benchmarks.harness.systems import DRIVERS
from treemax.inputs.rows import as_rows
from treemax.models import calibration

SIMULATIONS = 100
CURVE_PRIOR = 3.0  # strength of the prior that both slopes of the beta map are the same


def logit(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Logarithms of the scores and of the rest, inside of 0 and 1."""
    inside = np.clip(scores.astype(np.float64), 1e-6, calibration.MAX_SCORE)
    return np.log(inside), np.log1p(-inside)


def beta_map(scores: np.ndarray, hits: np.ndarray, new: np.ndarray) -> np.ndarray:
    """The probabilities of new scores, by the beta map fitted to scores and hits; first answers weigh as much as all others."""
    weight = np.full(scores.shape, 0.5 / max(1, scores.shape[1] - 1))
    weight[:, 0] = 0.5 if scores.shape[1] > 1 else 1.0
    log, log_rest = logit(scores)

    def loss(found: np.ndarray) -> float:
        z = np.exp(found[0]) * log - np.exp(found[1]) * log_rest + found[2]
        fit = (weight * (np.logaddexp(0, z) - hits * z)).sum()
        return float(fit + 0.5 * (found**2).sum() + CURVE_PRIOR * (found[0] - found[1]) ** 2)

    slope, slope_rest, shift = minimize(loss, np.zeros(3)).x
    log, log_rest = logit(new)
    return 1 / (1 + np.exp(-(np.exp(slope) * log - np.exp(slope_rest) * log_rest + shift)))


def line_of(suite: str) -> list[Any]:
    """The calibration errors of a suite."""
    driver = load_driver(DRIVERS / "treemax.py")
    data = Data(suites.prepared(suite, validation=True))
    settings = {"model": "label-tree", "threads": 1, "verbose": 0}
    with mock.patch.object(calibration, "calibration_from_hits", wraps=calibration.calibration_from_hits) as fitted:
        model = driver.train(driver.load(data, settings), settings, None)
    scores, hits, _, _, multi_label = fitted.call_args.args[:5]
    n_first = calibration.FIRST_LABELS if multi_label else 1
    rows = driver.rows(model, data, settings)
    labels, probabilities = driver.predict_batch(model, rows, 1)
    right = correct(np.array(labels.tolist()), *data.labels("test"), data.n_labels)[:, 0]
    given, raw = probabilities[:, 0].astype(np.float64), model.model_.top_k(as_rows(rows), 1, model.beam)[1][:, 0]
    random = np.random.default_rng(0)
    floor = np.mean([expected_error(given, random.random(len(given)) < given) for _ in range(SIMULATIONS)])
    beta = beta_map(scores[:, :n_first], hits[:, :n_first], raw)
    alone = calibration.fit_calibration(scores[:, :1], hits[:, :1]).probabilities(raw)
    errors = [expected_error(found, right) for found in (given, beta, alone)]
    return [suite, len(right), len(hits), floor, *errors, float(given.mean() - right.mean())]


if __name__ == "__main__":
    help_if_asked(__doc__)
    table = []
    for name in sys.argv[1:] or SPARSE:
        table.append(line_of(name))
        print(*table[-1], file=sys.stderr, flush=True)
    means = [float(np.mean([line[place] for line in table])) for place in range(3, 8)]
    store(
        "defaults",
        "calibration-floor",
        title="Calibration error of LabelTree beside that of a perfect model",
        shows="Expected calibration error of the first answer on validation rows, and of answers that are right with just the "
        "probability given (simulated). Other maps, fitted on the same held-out rows: the beta map, and Platt's on first answers "
        "alone, both also for rows without known features. The last column is the mean probability less the share of right answers.",
        columns=[
            "suite",
            "rows",
            "held-out rows",
            *(
                {"name": name, "decimals": 3}
                for name in ("perfect model", "LabelTree", "beta map", "first answers alone")
            ),
            {"name": "overconfidence", "decimals": 3, "signed": True},
        ],
        rows=[*table, ["mean", None, None, *means]],
    )
