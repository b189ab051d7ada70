"""The time of an answer on glyphs1k: the kernels alone, one row at a time and in a batch, and the calls through Python.

All of them take turns, and the best of the rounds counts, in seconds of the processor: the core may be shared. Rows
come in random order, so that one row after the other comes to another leaf.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

import treemax
from benchmarks import pages
from benchmarks.harness.measure import Data
from benchmarks.harness.output import keep, rounded, store
from benchmarks.harness.suites import prepared
from treemax.inputs.rows import read_only
from treemax.models.softmax_tree import kernels
from treemax.models.softmax_tree.model import DenseSoftmaxTrees

ROUNDS = 60
CALLS = 500  # of one row, a round
K = 5
N_LABELS = 1000  # of glyphs1k
MODELS: dict[str, Callable[[], Any]] = {
    "tree": lambda: treemax.SoftmaxTree(leaf_classes=100, verbose=0),
    "forest": lambda: treemax.SoftmaxForest(n_trees=4, leaf_classes=50, verbose=0),
    "one-vs-all": lambda: treemax.OneVsAll(passes=10, verbose=0),
}
NAMES = {
    "product": "full softmax, bare products `W @ x` and `X @ W.T`",
    "tree": "SoftmaxTree, `leaf_classes=100`",
    "forest": "SoftmaxForest, 4 trees, `leaf_classes=50`",
    "one-vs-all": "OneVsAll, 10 passes",
}
FIGURES = {  # what is found -> the column of the table
    "error": "error@1 %",
    "multiply_adds": "multiply-adds, thousands",
    "one": "kernel, one row",
    "times less": "times less",
    "batch": "kernel, batch",
    "call": "`predict(X[i : i + 1])`",
    "list call": "`predict([x])`",
    "batch call": "`predict_topk(X)`",
}


@numba.njit(nogil=True, error_model="numpy")  # not cached: the cache does not see when the kernel changes
def _singly(rows, structure, planes, leaves, widest, n_labels, ids, probabilities):
    for i in range(rows.shape[0]):
        kernels.predict(
            rows[i : i + 1], structure, planes, leaves, widest, n_labels, ids[i : i + 1], probabilities[i : i + 1]
        )


def singly(
    model: DenseSoftmaxTrees, rows: NDArray[np.float32], k: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The best k of each row, from one call of the kernel a row, without Python in between."""
    ids, probabilities = np.empty((len(rows), k), np.int64), np.empty((len(rows), k), np.float32)
    parts = tuple(model.structure), (model.planes, model.plane_bias), tuple(model.leaves)
    _singly(rows, *parts, model.widest, model.n_labels, ids, probabilities)
    return ids, probabilities


def multiply_adds(model: DenseSoftmaxTrees, rows: NDArray[np.float32]) -> float:
    """Of an answer, on average: those of the planes on the way, and of the classes of the leaf, in every tree."""
    structure = model.structure
    before = np.zeros(model.n_leaves)  # decisions on the way to each leaf
    depths = np.zeros(model.n_branches)
    for node, links in enumerate(structure.children):
        for child in links:
            (depths if child >= 0 else before)[child if child >= 0 else -1 - child] = depths[node] + 1
    costs = model.n_features * (before + np.diff(structure.starts))
    return float(costs[model.leaves_of(rows)].sum(axis=1).mean())


def contenders(
    models: dict[str, Any], rows: NDArray[np.float32]
) -> dict[tuple[str, str], tuple[Callable[[], Any], int]]:
    """(model, way of asking) -> the work, and the rows that it answers."""
    some = rows[:CALLS]
    weights = np.random.default_rng(0).normal(size=(N_LABELS, rows.shape[1])).astype(np.float32)
    out = np.empty(len(weights), np.float32)
    found: dict[tuple[str, str], tuple[Callable[[], Any], int]] = {
        ("product", "one"): (lambda: [np.dot(weights, x, out=out) for x in some], len(some)),
        ("product", "batch"): (lambda: rows @ weights.T, len(rows)),
    }
    for name, model in models.items():
        if isinstance(getattr(model, "model_", None), DenseSoftmaxTrees):
            own = model.model_
            found[name, "one"] = (lambda own=own: singly(own, rows, K), len(rows))
            found[name, "batch"] = (lambda own=own: own.top_k(rows, K), len(rows))
        found[name, "call"] = (
            lambda model=model: [model.predict(some[i : i + 1]) for i in range(len(some))],
            len(some),
        )
        found[name, "list call"] = (lambda model=model: [model.predict([x]) for x in some], len(some))
        found[name, "batch call"] = (lambda model=model: model.predict_topk(rows, K), len(rows))
    return found


def timed(works: dict[tuple[str, str], tuple[Callable[[], Any], int]], rounds: int) -> dict[tuple[str, str], float]:
    """Microseconds a row of each, the best of the rounds, in which all take turns."""
    best = dict.fromkeys(works, np.inf)
    for work, _ in works.values():
        work()  # compiles
    for _ in range(rounds):
        for name, (work, n_rows) in works.items():
            start = time.thread_time()
            work()
            best[name] = min(best[name], 1e6 * (time.thread_time() - start) / n_rows)
    return best


def trained(name: str, folder: Path | None, data: Data) -> Any:
    """The model of this name: from the folder, or trained now and then kept there."""
    path = None if folder is None else folder / f"{name}.treemax"
    if path is not None and path.exists():
        return treemax.load(path)
    model = MODELS[name]().fit(data.dense("train"), data.classes("train"))
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        model.save(path)
    return model


COLUMNS = [{"name": name} for name in ("model", *FIGURES.values())]


def lines(found: list[dict[str, Any]]) -> list[list[Any]]:
    """The rows of the table; what was not measured is left empty."""
    return [[own["model"], *(rounded(own.get(name)) for name in FIGURES)] for own in found]


def figures(
    name: str, times: dict[tuple[str, str], float], model: Any, rows: NDArray[np.float32], labels: NDArray[np.int64]
) -> dict[str, Any]:
    """What is known of a model, or of the bare product, which has none."""
    own: dict[str, Any] = {"model": NAMES[name], "multiply_adds": 0.001 * rows.shape[1] * N_LABELS}
    own |= {way: best for (of, way), best in times.items() if of == name}
    if model is not None:
        own["error"] = 100 * float((model.predict(rows) != labels).mean())
    if isinstance(getattr(model, "model_", None), DenseSoftmaxTrees):
        own["multiply_adds"] = 0.001 * multiply_adds(model.model_, rows)
        own["times less"] = times["product", "one"] / own["one"]
    return own


def main(arguments: list[str]) -> None:
    folder, data = Path(arguments[0]) if arguments else None, Data(prepared("glyphs1k"))
    order = np.random.default_rng(0).permutation(data.n_rows("test"))
    rows, labels = read_only(np.ascontiguousarray(data.dense("test")[order])), data.classes("test")[order]
    models = {name: trained(name, folder, data) for name in MODELS}
    times = timed(contenders(models, rows), ROUNDS)
    found = [figures(name, times, models.get(name), rows, labels) for name in NAMES]
    keep("softmax-answers", found)
    rows_of_table = lines(found)
    print(pages.table({"columns": COLUMNS, "rows": rows_of_table}))
    store(
        "softmax-tree",
        "answers",
        title="The time of one answer",
        shows=f"glyphs1k, microseconds of the processor a row, best of {ROUNDS} rounds.",
        columns=COLUMNS,
        rows=rows_of_table,
    )
