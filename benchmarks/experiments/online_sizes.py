"""`python -m benchmarks.experiments.online_sizes BEFORE [SUITE ...]`: memory, files and accuracy of online label trees.

BEFORE is a folder with another version of this project, which is measured beside this one. Validation rows; precisions are
means over orders of the rows, the same ones for both versions.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import treemax
from benchmarks import FOLDER
from benchmarks.harness.measure import Data
from benchmarks.harness.output import help_if_asked, store
from benchmarks.harness.problem import features
from benchmarks.harness.suites import prepared

SUITES = ("wordnet", "icd", "kinc", "debtags", "delicious")
ORDERS = range(1, 5)
FILES = {"to resume": ("float16", True), "to predict": ("float16", False), "float8": ("float8", False)}
KS = (1, 3, 5)
COLUMNS = [
    {"name": "suite"},
    {"name": "version"},
    {"name": "train s", "decimals": 2},
    *({"name": name, "decimals": 1} for name in ("MB in memory", *(f"file {name}, MB" for name in FILES))),
    *({"name": f"P@{k}", "decimals": 4} for k in KS),
    *({"name": f"change of P@{k}, points", "decimals": 2, "signed": True} for k in KS),
    *({"name": f"change by float8, P@{k}", "decimals": 2, "signed": True} for k in KS),
]


def precisions(model: Any, X: Any, y: list[list[int]]) -> list[float]:
    best = model.predict_topk(X, max(KS)).labels.tolist()
    found = np.array([[label in own for label in row] for row, own in zip(best, map(set, y), strict=True)])
    return [float(found[:, :k].mean()) for k in KS]


def measure(suite: str) -> dict[str, list[Any]]:
    """Train, save and load the model of the version that is imported, with every order of the rows."""
    data = Data(prepared(suite, validation=True))
    X, X_test, y_test = features(data, "train"), features(data, "test"), data.label_lists("test")
    y: Any = data.label_lists("train") if data.multi_label else data.classes("train")
    treemax.OnlineLabelTree(verbose=0).fit(X[:200], y[:200])  # compile
    found: dict[str, list[Any]] = {"seconds": [], "MB": [], "P": [], "float8": []}
    for order in ORDERS:
        model = treemax.OnlineLabelTree(verbose=0, n_jobs=1, shuffle=True, random_state=order)
        start = time.process_time()
        model.fit(X, y)
        found["seconds"].append(time.process_time() - start)
        found["P"].append(precisions(model, X_test, y_test))
        sizes = [model.model_.nbytes / 2**20]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.treemax"
            for precision, resume in FILES.values():
                if "precision" in model.get_params():
                    model.set_params(precision=precision)
                elif precision != "float16":
                    continue
                model.save(path, resume=resume)
                sizes.append(path.stat().st_size / 2**20)
                if precision == "float8":
                    found["float8"].append(precisions(treemax.load(path), X_test, y_test))
        found["MB"].append(sizes)
    return found


def measured_in(folder: Path, suite: str) -> dict[str, Any]:
    """What `measure` finds with the version in a folder."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder / "src"), str(FOLDER.parent)])}
    command = [sys.executable, "-m", "benchmarks.experiments.online_sizes", "--measure", suite]
    done = subprocess.run(command, env=environment, cwd=FOLDER.parent, stdout=subprocess.PIPE, check=True)
    return {name: np.array(values) for name, values in json.loads(done.stdout).items()}


def changes(now: Any, before: Any) -> list[Any]:
    """Differences in points, means over the orders with their standard errors."""
    points = 100 * (now - before)
    errors = points.std(axis=0, ddof=1) / math.sqrt(len(points))
    return [
        {"value": round(float(mean), 3), "error": round(float(error), 3)}
        for mean, error in zip(points.mean(axis=0), errors, strict=True)
    ]


def figures(found: dict[str, Any]) -> list[Any]:
    sizes = [*found["MB"].mean(axis=0), None][: 1 + len(FILES)]
    shown = [found["seconds"].min(), *sizes, *found["P"].mean(axis=0)]
    return [None if value is None else round(float(value), 4) for value in shown]


def main(arguments: list[str]) -> None:
    if not arguments:
        sys.exit(__doc__)
    if arguments[0] == "--measure":
        print(json.dumps(measure(arguments[1])))
        return
    rows = []
    for suite in arguments[1:] or SUITES:
        before, now = measured_in(Path(arguments[0]), suite), measured_in(FOLDER.parent, suite)
        rows.append([suite, "before", *figures(before), *[None] * 6])
        rows.append([suite, "now", *figures(now), *changes(now["P"], before["P"]), *changes(now["float8"], now["P"])])
    store(
        "online-label-tree",
        "sizes",
        title="Memory and files",
        shows=f"Before: weights and AdaGrad's sums of 32 bits; now of 16 bits, rounded by chance. Validation rows, one pass, "
        f"one thread; the least processor time and the mean precisions of {len(ORDERS)} orders of the rows, the same for both, "
        "and the mean changes with their standard errors. `float8` is a file with weights of one byte, without those close to zero.",
        columns=COLUMNS,
        rows=rows,
        command="python -m benchmarks.experiments.online_sizes BEFORE",
    )


if __name__ == "__main__":
    help_if_asked(__doc__)
    main(sys.argv[1:])
