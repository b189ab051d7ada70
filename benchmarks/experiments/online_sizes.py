"""Memory, files and accuracy of online label trees, beside another version of this project in the folder BEFORE.

    python -m benchmarks.experiments.online_sizes BEFORE [SUITE ...]            at the defaults
    python -m benchmarks.experiments.online_sizes --arity BEFORE [SUITE ...]    trees whose nodes have few children

Validation rows. Precisions are means over orders of the rows, the same ones for both versions.
"""

from __future__ import annotations

import hashlib
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
SUITES_OF_ARITY, ROUNDS = ("wordnet", "icd", "debtags"), 3
FEW_CHILDREN: dict[str, dict[str, Any]] = {
    "CPET, complete binary tree": {"policy": "complete"},
    "`arity=2, max_leaf=3`": {"arity": 2, "max_leaf": 3},
    "as published: `arity=2, max_leaf=100`": {"max_leaf": 100},
    "the defaults: `arity=16, max_leaf=15`": {},
}
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


def measure_arity(suite: str) -> dict[str, list[Any]]:
    """Seconds and MB of trees whose nodes have few children, and their answers to some rows."""
    data = Data(prepared(suite, validation=True))
    X, X_test = features(data, "train"), features(data, "test")[:500]
    y: Any = data.label_lists("train") if data.multi_label else data.classes("train")
    found = {}
    for name, settings in FEW_CHILDREN.items():
        options: dict[str, Any] = {"verbose": 0, "n_jobs": 1, "passes": 1, "shuffle": False, **settings}
        make = treemax.OnlineLabelTree.as_published if settings.get("max_leaf") == 100 else treemax.OnlineLabelTree
        make(**options).fit(X[:200], y[:200])  # compile
        seconds = []
        for _ in range(ROUNDS):
            model, start = make(**options), time.process_time()
            model.fit(X, y)
            seconds.append(time.process_time() - start)
        answers = model.predict_topk(X_test, 5)
        digest = hashlib.sha256(np.ascontiguousarray(answers.scores).tobytes()).hexdigest()
        found[name] = [min(seconds), model.model_.nbytes / 2**20, digest]
    return found


def measured_in(folder: Path, suite: str, work: str = "--measure") -> dict[str, Any]:
    """What `measure` or `measure_arity` finds with the version in a folder."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder / "src"), str(FOLDER.parent)])}
    command = [sys.executable, "-m", "benchmarks.experiments.online_sizes", work, suite]
    done = subprocess.run(command, env=environment, cwd=FOLDER.parent, stdout=subprocess.PIPE, check=True)
    found = json.loads(done.stdout)
    return found if work == "--measure-arity" else {name: np.array(values) for name, values in found.items()}


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


def compare_arity(before: Path, suites: list[str]) -> None:
    """Store the seconds and MB of both versions; their answers must be the same."""
    rows = []
    for suite in suites:
        old, new = (measured_in(folder, suite, "--measure-arity") for folder in (before, FOLDER.parent))
        for name in FEW_CHILDREN:
            (old_seconds, old_size, old_answers), (seconds, size, answers) = old[name], new[name]
            if answers != old_answers:
                sys.exit(f"{suite}, {name}: the versions answer differently")
            rows.append([suite, name, *(round(figure, 2) for figure in (old_seconds, seconds, old_size, size))])
            print(rows[-1], file=sys.stderr, flush=True)
    store(
        "online-label-tree",
        "arity",
        title="Memory of trees whose nodes have few children",
        shows="Before: sixteen lanes for the children of every node; now as many as a node may have children, rounded up to a power of two. "
        f"Validation rows, one pass in the order of the data, one thread; the least processor time of {ROUNDS} rounds. The probabilities are the "
        "same in every bit.",
        columns=[
            "suite",
            "tree",
            *({"name": name, "decimals": 2} for name in ("train s, before", "train s, now")),
            *({"name": name, "decimals": 1} for name in ("MB in memory, before", "MB in memory, now")),
        ],
        rows=rows,
        command="python -m benchmarks.experiments.online_sizes --arity BEFORE",
    )


def main(arguments: list[str]) -> None:
    if not arguments:
        sys.exit(__doc__)
    if arguments[0].startswith("--measure"):
        print(json.dumps((measure if arguments[0] == "--measure" else measure_arity)(arguments[1])))
        return
    if arguments[0] == "--arity":
        compare_arity(Path(arguments[1]), arguments[2:] or list(SUITES_OF_ARITY))
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
