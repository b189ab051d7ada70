"""`python -m benchmarks.experiments.prediction [SUITE ...]`: processor time of a prediction of LabelTree, one tree and
three, beside PECOS, in a batch, by single rows, and by single rows that go to `model.predictor()`.

Every system is trained once. Then processes that load the models and predict take turns; each keeps its least time.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import treemax
from benchmarks.harness.environments import python_of
from benchmarks.harness.measure import Data
from benchmarks.harness.output import help_if_asked
from benchmarks.harness.problem import features, seconds
from benchmarks.harness.runner import TOP, cores, run_stage
from benchmarks.harness.suites import prepared
from benchmarks.harness.systems import DRIVERS
from benchmarks.pages import publish

SUITES = ("wordnet", "gcc", "delicious")
SYSTEMS: dict[str, tuple[str, dict[str, Any]]] = {
    "LabelTree": ("treemax", {"model": "label-tree"}),
    "LabelTree, three trees": ("treemax", {"model": "label-tree", "n_trees": 3}),
    "PECOS": ("pecos", {}),
}
ROUNDS, SINGLE_ROWS = 3, 1000


def measured(suite: str, scratch: Path) -> dict[str, dict[str, float]]:
    """The least microseconds a row of every system."""
    data, jobs, found = prepared(suite), {}, {}
    for number, (name, (driver, settings)) in enumerate(SYSTEMS.items()):
        folder = scratch / f"{suite}-{number}"
        (folder / "model").mkdir(parents=True)
        job = {
            "driver": str(DRIVERS / f"{driver}.py"), "data": str(data), "folder": str(folder / "model"),
            "predictions": str(folder / "predictions.npz"), "settings": {**settings, "threads": 1}, "k": TOP,
            "cores": cores(1),
        }  # fmt: skip
        jobs[name] = python_of("pecos" if driver == "pecos" else "project"), job, folder
        run_stage(jobs[name][0], "train", job, folder, 1, 3600)
        found[name] = {"batch": float("inf"), "one": float("inf"), "predictor": float("inf")}
    for _ in range(ROUNDS):
        for name, (python, job, folder) in jobs.items():
            times, best = run_stage(python, "predict", job, folder, 1, 3600), found[name]
            best["batch"] = min(best["batch"], times["batch_cpu_microseconds"])
            best["one"] = min(best["one"], times["one_cpu_microseconds"])
            if job["settings"].get("model"):
                best["predictor"] = min(best["predictor"], with_predictor(folder / "model", suite))
    return found


def with_predictor(folder: Path, suite: str) -> float:
    """Microseconds a single row of a predictor."""
    X = features(Data(prepared(suite)), "test")
    rows = [(X.indices[start:stop], X.data[start:stop]) for start, stop in zip(X.indptr, X.indptr[1 : SINGLE_ROWS + 1])]
    predictor = treemax.load(folder / "model.treemax").predictor(TOP)
    for indices, values in rows[:100]:
        predictor(indices, values)
    return 1e6 * seconds(lambda: [predictor(*row) for row in rows]) / len(rows)


def main(suites: list[str]) -> None:
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for suite in suites:
            found = measured(suite, Path(scratch))
            peer, single = found["PECOS"], found["LabelTree"]
            for name, times in found.items():
                ours = name != "PECOS"
                rows.append([
                    suite, name, times["batch"], peer["batch"] / times["batch"], times["batch"] / single["batch"],
                    times["one"], peer["one"] / times["one"], times["predictor"] if ours else None,
                ])  # fmt: skip
    publish(
        "prediction", "label-tree", "prediction",
        title="Time of a prediction, beside PECOS",
        shows="Processor microseconds a row for five labels, one thread, the least of three rounds in turn. A batch is all test "
        "rows in one call; one row is `predict_topk`, and `predictor` is `model.predictor()` with indices and values.",
        columns=[
            {"name": "data"}, {"name": "system"}, {"name": "batch, us", "decimals": 1}, {"name": "times as fast as PECOS", "decimals": 1},
            {"name": "times one tree", "decimals": 1}, {"name": "one row, us", "decimals": 1},
            {"name": "times as fast as PECOS ", "decimals": 1}, {"name": "predictor, us", "decimals": 1},
        ],
        rows=rows,
    )  # fmt: skip


if __name__ == "__main__":
    help_if_asked(__doc__)
    main(sys.argv[1:] or list(SUITES))
