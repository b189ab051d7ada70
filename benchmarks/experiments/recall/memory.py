"""How much memory a model takes beside one-against-all, which the paper says it takes at most twice."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import treemax
from benchmarks import pages
from benchmarks.experiments.recall.models import recall_tree
from benchmarks.harness.output import keep, rounded, store
from benchmarks.harness.problem import Problem
from treemax import OneVsAll

SUITES = ("glyphs1k", "glyphs5k")
MB = 2**20


def models() -> dict[str, Any]:
    """One pass: what a model weighs hardly depends on more of them."""
    return {
        "OneVsAll": OneVsAll(passes=1, n_jobs=1, verbose=0),
        "beam": recall_tree(passes=1),
        "paper": recall_tree(passes=1, algorithm="paper"),
    }


def held(model: Any) -> int:
    """Bytes of all arrays that a fitted model holds in memory."""
    own = model.model_
    if hasattr(own, "nbytes"):
        return int(own.nbytes)
    return sum(value.nbytes for value in vars(own).values() if isinstance(value, np.ndarray))


def measure(model: Any, problem: Problem) -> dict[str, float]:
    """Megabytes: weights, what is counted at nodes, the whole while learning, and both kinds of file."""
    model.fit(problem.X, problem.y)
    _, arrays = model.to_parts(resume=True)
    last = [(name.split("/")[-1], array.nbytes) for name, array in arrays.items()]
    weights = sum(size for name, size in last if name in ("weights", "bias", "weight"))  # of path features, the last
    squares = sum(size for name, size in last if name.endswith(("squares", "square")))
    with tempfile.TemporaryDirectory() as folder:
        sizes = []
        for resume in (False, True):
            path = Path(folder) / f"{resume}.treemax"
            model.save(path, resume=resume)
            sizes.append(path.stat().st_size)
        answering = held(treemax.load(Path(folder) / "False.treemax"))
    rest = sum(array.nbytes for array in arrays.values()) - weights - squares
    figures = {
        "weights": weights,
        "counts": rest,
        "AdaGrad": squares,
        "in memory while learning": held(model),
        "to answer": answering,
        "file": sizes[0],
        "file, resume": sizes[1],
    }
    return {name: size / MB for name, size in figures.items()}


def result(found: dict[str, dict[str, dict[str, float]]]) -> dict[str, Any]:
    """Columns and rows; beside each figure, how often the flat model would fit in."""
    names = list(next(iter(found[next(iter(found))].values())))
    rows: list[list[Any]] = []
    for suite, models_of in found.items():
        flat = models_of["OneVsAll"]
        for model, figures in models_of.items():
            rows.append([suite, model, *(cell(name, figures, flat) for name in names)])
    return {"columns": [{"name": name} for name in ("data", "model", *names)], "rows": rows}


def cell(what: str, figures: dict[str, float], flat: dict[str, float]) -> Any:
    """The flat model counts next to nothing, so that counts have no ratio."""
    value = rounded(figures[what])
    if figures is flat or what == "counts":
        return value
    return {"value": value, "beside": round(figures[what] / flat[what], 1)}


def main(arguments: list[str]) -> None:
    found: dict[str, dict[str, dict[str, float]]] = {}
    for suite in arguments or SUITES:
        problem = Problem.read(suite)
        found[suite] = {name: measure(model, problem) for name, model in models().items()}
    keep("recall-memory", found)
    print(pages.table(result(found)))
    store(
        "recall-tree",
        "memory",
        title="Memory",
        shows="Megabytes, in brackets how many times as much as OneVsAll. The paper says at most twice the weights of one-against-all.",
        **result(found),
    )
