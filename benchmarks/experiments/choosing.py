"""Every model with its defaults on every kind of data: the measurements behind the automatic choice of a model.

    python -m benchmarks.experiments.choosing [--suites a,b] [--models a,b] [--seconds N] [--stream]

Models are fitted on the training part of each suite and judged on its validation part; no test row is read. With
`--stream`, models predict each chunk of 100 training rows, then learn it, in random order: P@1 is that of all rows. The suite
`wordnet-svd` is made of wordnet: 200 singular vectors of its tf-idf features, dense, with 20,000 classes. Each fit runs in
a process of its own, and is ended after `--seconds`. Results are stored after each fit, and not measured again.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import numpy as np

import treemax
from benchmarks.harness.measure import Data
from benchmarks.harness.output import RESULTS, keep, store
from benchmarks.harness.problem import features
from benchmarks.harness.suites import prepared

SPARSE = (
    "icd", "debtags", "icon-tags", "kconfig", "emoji", "delicious", "parameters", "verses", "manuals",
    "wordnet", "kinc", "builddeps", "gcc",
)  # fmt: skip
DENSE = ("glyphs1k", "icons", "icd-minilm", "wordnet-minilm", "wordnet-glove", "glyphs5k", "wordnet-svd")
SPARSE_MODELS = ("label-tree:n_trees=3", "label-tree", "online-label-tree", "learned-tree", "one-vs-all", "recall-tree")
DENSE_MODELS = (
    "recall-tree", "label-tree", "online-label-tree", "learned-tree", "one-vs-all", "softmax-tree", "softmax-forest",
)  # fmt: skip
Results = dict[str, dict[str, dict[str, Any]]]  # suite, model, figure
SINGULAR_VECTORS = 200
MACHINE = "one core of a two-core x86-64 machine (AMD EPYC, AVX-512), shared with other work"
TEXTS = "P@1. Three label trees are within a point of the best model everywhere. RecallTree takes one label per row."
VECTORS = (
    "P@1. RecallTree is within a point of the best of the models that train in seconds. SoftmaxForest is more accurate on "
    "images of characters, after about ten times as long, and less on vectors of texts. Numbers of classes: glyphs1k "
    "1,000, icons 1,490, icd-minilm 1,670, wordnet-minilm 3,000, wordnet-glove 4,335, glyphs5k 5,000, wordnet-svd 18,600."
)
STREAMS = "Progressive P@1 on 20,000 rows in random order, predicted and learned in chunks of 100."
STREAM_ROWS, CHUNK_ROWS = 20_000, 100
ONLINE_MODELS = ("online-label-tree", "recall-tree", "one-vs-all")


def parts(suite: str) -> tuple[Any, Any, Any, list[list[int]]]:
    """X and y to train on, and X and label lists to judge by."""
    data = Data(prepared(suite.replace("-svd", ""), validation=True))
    X, X_held = (features(data, part) for part in ("train", "test"))
    if suite.endswith("-svd"):
        from sklearn.decomposition import TruncatedSVD

        svd = TruncatedSVD(SINGULAR_VECTORS, random_state=0).fit(X)
        X, X_held = (svd.transform(rows).astype(np.float32) for rows in (X, X_held))
    y: Any = data.label_lists("train") if data.multi_label else data.classes("train")
    return X, y, X_held, data.label_lists("test")


def measure(suite: str, model: str) -> dict[str, float]:
    """P@1, P@5 and seconds of a model; compiling is not counted."""
    X, y, X_held, lists = parts(suite)
    few = min(300, X.shape[0])
    made(model).fit(X[:few], y[:few]).predict_topk(X_held[:2], 5)
    estimator = made(model)
    start = time.process_time()
    estimator.fit(X, y)
    middle = time.process_time()
    labels = estimator.predict_topk(X_held, 5)[0].tolist()
    end = time.process_time()
    right = np.array([[label in row for label in found] for found, row in zip(labels, lists)])
    size = sum(array.nbytes for array in estimator.to_parts()[1].values()) / 1e6
    return {
        "P@1": float(right[:, 0].mean()), "P@5": float(right.mean()), "train s": middle - start,
        "predict us": (end - middle) / len(labels) * 1e6, "MB": size,
    }  # fmt: skip


def measure_stream(suite: str, model: str) -> dict[str, float]:
    """Progressive P@1 and seconds."""
    X, y, _, _ = parts(suite)
    order = np.random.default_rng(0).permutation(X.shape[0])[:STREAM_ROWS]
    X, y = X[order], [y[row] for row in order]
    few = min(300, X.shape[0])
    treemax.progressive_validation(made(model), X[:few], y[:few], chunk_rows=CHUNK_ROWS)
    start = time.process_time()
    result = treemax.progressive_validation(made(model), X, y, chunk_rows=CHUNK_ROWS)
    return {"P@1": float(result.metrics["P@1"]), "train s": time.process_time() - start}


def made(model: str) -> Any:
    """A model of the registry: NAME or NAME:setting=number."""
    name, _, setting = model.partition(":")
    settings = {setting.split("=")[0]: int(setting.split("=")[1])} if setting else {}
    return treemax.MODELS[name](verbose=0, random_state=0, n_jobs=1, **settings)


def measured(suite: str, model: str, seconds: float, stream: bool) -> dict[str, Any]:
    """The same in a process of its own, or what went wrong there."""
    command = [sys.executable, "-m", "benchmarks.experiments.choosing", "--one", f"{suite} {model}"]
    command += ["--stream"] if stream else []
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return {"error": f"more than {seconds:g} s"}
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["ended"])[-1]}
    return dict(json.loads(done.stdout))


def stored(file: Path) -> Results:
    return dict(json.loads(file.read_text())) if file.exists() else {}


def publish(
    found: Results, suites: tuple[str, ...], models: tuple[str, ...], name: str, title: str, shows: str
) -> None:
    """Store P@1 and training seconds for docs/experiments/choosing.md."""
    rows = [[suite, *(cell(found[suite].get(model, {})) for model in models)] for suite in suites if suite in found]
    columns = ["suite", *({"name": model.replace(":n_trees=3", ", 3 trees"), "decimals": 4} for model in models)]
    shows = f"{shows} In brackets: processor seconds of training."
    command = "python -m benchmarks.experiments.choosing" + (" --stream" if name == "streams" else "")
    store("choosing", name, title=title, shows=shows, columns=columns, rows=rows, machine=MACHINE, command=command)


def cell(figures: dict[str, Any]) -> dict[str, float] | None:
    return {"value": figures["P@1"], "beside": float(f"{figures['train s']:.2g}")} if "P@1" in figures else None


@click.command()
@click.option("--suites", help="Commas between names; all by default.")
@click.option("--models", help="Commas between names; those that suit the data by default.")
@click.option("--seconds", default=400.0, show_default=True, help="For each fit and its predictions.")
@click.option("--stream", is_flag=True, help="Predict, then learn.")
@click.option("--one", hidden=True)
def main(suites: str | None, models: str | None, seconds: float, stream: bool, one: str | None) -> None:
    """Measure every model with its defaults on validation parts."""
    if one:
        click.echo(json.dumps((measure_stream if stream else measure)(*one.split())))
        return
    name = "choosing" + ("-stream" if stream else "")
    file = RESULTS / f"{name}.json"
    found = stored(file)
    for suite in suites.split(",") if suites else [*SPARSE, *DENSE]:
        suited = ONLINE_MODELS if stream else DENSE_MODELS if suite in DENSE else SPARSE_MODELS
        for model in models.split(",") if models else suited:
            if model not in found.get(suite, {}):
                result = measured(suite, model, seconds, stream)
                found = stored(file)  # another process may have added to it
                found.setdefault(suite, {})[model] = result
                keep(name, found)
                click.echo(f"{suite} {model} {result}", err=True)
    if stream:
        publish(found, (*SPARSE, *DENSE), ONLINE_MODELS, "streams", "Streams", STREAMS)
    else:
        publish(found, SPARSE, SPARSE_MODELS, "sparse", "Texts and sparse rows", TEXTS)
        publish(found, DENSE, DENSE_MODELS, "dense", "Dense rows", VECTORS)


if __name__ == "__main__":
    main()
