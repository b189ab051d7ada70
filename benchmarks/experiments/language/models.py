"""The models of the tables, trained once each and kept: the larger ones take a quarter of an hour."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import treemax
from benchmarks.experiments.language.hierarchical import HierarchicalSoftmax
from benchmarks.experiments.language.problems import CACHE, Rows

KEPT = CACHE / "language"
TREE: dict[str, Any] = {
    "missing": "beta",
    "beta": 10.0,
    "tolerance": 0.1,
    "iterations": 4,
    "early_share": 0.2,
    "growth": 1.0,
}
# Chosen with fewer rows: on a tenth of the training rows that was held out, and on the validation part.
RIDGES = {"ngram": 10.0, "lstm": 3.0}
HIERARCHICAL: dict[str, dict[str, Any]] = {"ngram": {"rate": 0.03, "passes": 8}, "lstm": {"rate": 0.03, "passes": 8}}
SHAPES = {50: 8, 100: 7, 200: 6, 400: 5, 800: 4}  # classes of a leaf, depth: those of the paper

PAPER: dict[str, Any] = {"alpha": 1.0, "start": "gaussian"}

Model = tuple[Callable[..., Any], dict[str, Any]]


def models(problem: str) -> dict[str, Model]:
    """Name in the table -> class and settings."""
    found: dict[str, Model] = {}
    rows = problem.partition("-")[0]
    common = {**TREE, "ridge": RIDGES[rows]}
    found["HSM-approx"] = HierarchicalSoftmax, {"approximate": True, **HIERARCHICAL[rows]}
    found["HSM"] = HierarchicalSoftmax, HIERARCHICAL[rows]
    if rows == "ngram":
        found["OneVsAll, logistic, 3 passes"] = treemax.OneVsAll, {"loss": "logistic", "passes": 3}
        found["OneVsAll, softmax, 3 passes"] = treemax.OneVsAll, {"loss": "softmax", "passes": 3}
    for classes, depth in SHAPES.items():
        settings = {"leaf_classes": classes, "depth": depth, **common}
        found[f"SoftmaxTree, {classes} classes"] = treemax.SoftmaxTree, settings
    for classes, depth in SHAPES.items():
        settings = {"leaf_classes": classes, "depth": depth, **PAPER}
        name = f"SoftmaxTree as published, {classes} classes"
        found[f"{name}, 5 iterations"] = treemax.SoftmaxTree.as_published, {**settings, "iterations": 5}
        found[name] = treemax.SoftmaxTree.as_published, settings  # 20 iterations
    settings = {"n_trees": 3, "leaf_classes": 100, "depth": 7, **common}
    found["SoftmaxForest, 3 trees, 100 classes"] = treemax.SoftmaxForest, settings
    return found


def train(problem: str, names: list[str], rows: Rows) -> None:
    """Train these models, or all, and keep them with the processor seconds that it took."""
    for name, (kind, settings) in models(problem).items():
        if names and name not in names:
            continue
        model = kind(n_jobs=1, verbose=0, **settings)
        start = time.process_time()
        model.fit(rows.X, rows.y)
        seconds = time.process_time() - start
        KEPT.mkdir(parents=True, exist_ok=True)
        model.save(path_of(problem, name))
        path_of(problem, name).with_suffix(".json").write_text(json.dumps({"train_seconds": seconds}))
        print(f"{problem}, {name}: {seconds:.0f} s", flush=True)


def kept(problem: str) -> dict[str, tuple[Any, float, float]]:
    """The models that were trained: model, seconds of training and MB of its file."""
    found = {}
    for name in models(problem):
        path = path_of(problem, name)
        if path.exists():
            facts = json.loads(path.with_suffix(".json").read_text())
            load = HierarchicalSoftmax.load if name.startswith("HSM") else treemax.load
            found[name] = load(path), facts["train_seconds"], path.stat().st_size / 2**20
    return found


def path_of(problem: str, name: str) -> Path:
    return KEPT / f"{problem}-{name.replace(', ', '-').replace(' ', '-')}.treemax"
