"""`python -m benchmarks.experiments.empty_rows`: rows to predict without any known feature, on validation rows.

Short texts of rare words have no known word. What is right in such rows when the answer is the most frequent labels of all
training rows, of the training rows without features (the default), or what PECOS says; and P@k over all rows.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from benchmarks.harness import suites
from benchmarks.harness.accuracy import correct
from benchmarks.harness.measure import Data, load_driver
from benchmarks.harness.output import help_if_asked, store
from benchmarks.harness.runner import run_all
from benchmarks.harness.standard_errors import estimate
from benchmarks.harness.systems import DRIVERS, peers

SUITES = ("icon-tags", "emoji", "icd")  # those with more than one such row in a thousand
KS = (1, 3, 5)


def right_of_ours(data: Data) -> dict[str, np.ndarray]:
    """For both answers to rows without features: the number of right labels among the first k, for every row and k."""
    driver = load_driver(DRIVERS / "treemax.py")
    settings = {"model": "label-tree", "threads": 1, "verbose": 0}
    model = driver.train(driver.load(data, settings), settings, None)
    found = {"of empty rows": _right(driver, model, data, settings)}
    model._empty_rows = None  # the frequencies of all rows
    return {"of all rows": _right(driver, model, data, settings), **found}


def _right(driver: Any, model: Any, data: Data, settings: dict[str, Any]) -> np.ndarray:
    answers = driver.labels(driver.predict_batch(model, driver.rows(model, data, settings), max(KS)))
    hits = correct(np.array(answers), *data.labels("test"), data.n_labels)
    return np.stack([hits[:, :k].sum(axis=1) / k for k in KS], axis=1)


def right_of_pecos(folder: Path) -> np.ndarray:
    (outcome,) = run_all(peers("pecos"), folder)
    if outcome.error:
        raise SystemExit(f"PECOS: {outcome.error}")
    digits = [np.frombuffer(outcome.runs[0]["hits"][f"P@{k}"].encode(), np.uint8) - ord("0") for k in KS]
    return np.stack(digits, axis=1) / np.array(KS)


def rows_of(suite: str) -> list[list[Any]]:
    """The lines of a suite."""
    folder = suites.prepared(suite, validation=True)
    data = Data(folder)
    (values, indices, starts), shape = data.csr("test")
    empty = np.diff(csr_matrix((values, indices, starts), shape=shape).indptr) == 0
    right = {**right_of_ours(data), "PECOS": right_of_pecos(folder)}
    difference = estimate((right["of empty rows"] - right["of all rows"])[:, 0])
    lines = []
    for answer, of_rows in right.items():
        figures = [float(figure) for figure in of_rows.mean(axis=0)]
        gain = difference if answer == "of empty rows" else None
        lines.append(
            [suite, round(100 * float(empty.mean()), 1), answer, float(of_rows[empty, 0].mean()), *figures, gain]
        )
    return lines


if __name__ == "__main__":
    help_if_asked(__doc__)
    table = [line for suite in SUITES for line in rows_of(suite)]
    for line in table:
        print(*line, file=sys.stderr)
    store(
        "defaults",
        "empty-rows",
        title="Rows without any known feature",
        shows="Such rows are answered with label frequencies: of all training rows (before), or of the training rows without "
        "features (now, with the former as prior of ten rows). Ten suites have no such rows. Validation rows; the difference "
        "is that of P@1 over all rows to the line above, paired.",
        columns=[
            "suite",
            {"name": "such rows %", "decimals": 1},
            "frequencies",
            {"name": "P@1 of such rows", "decimals": 3},
            *({"name": f"P@{k}", "decimals": 4} for k in KS),
            {"name": "difference", "decimals": 4, "signed": True},
        ],
        rows=table,
    )
