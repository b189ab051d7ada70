"""Time a row against the number of classes, beside one-against-all: where the tree begins to pay.

Generated data, so that nothing but the number of classes changes: a class is a point in a space of 16 dimensions, laid
into 256 by one random matrix; a row is its class's point and noise in all 256. Ten training rows a class, one pass. The
suites of glyphs, where they are on this machine, are real rows beside it. One-against-all learns all rows up to
`MOST_TAUGHT` classes; with more, it learns a few rows with all classes announced, which gives its time and no accuracy.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from benchmarks import pages
from benchmarks.experiments.recall.models import recall_tree
from benchmarks.harness.output import canvas, draw, keep, rounded, store, table
from benchmarks.harness.problem import Problem, hits, seconds, warm_up
from benchmarks.harness.suites import DataMissing
from treemax import OneVsAll

SIZES = (1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000)
FEATURES, DIMENSIONS, NOISE, ROWS_A_CLASS, TEST_ROWS, SINGLE_ROWS = 256, 16, 1.0, 10, 2_000, 300
GLYPHS = {1_000: "glyphs1k", 5_000: "glyphs5k"}
MOST_TAUGHT, FEW_ROWS = 10_000, 1_000
SHOWN_SIZES = (1_000, 10_000, 100_000)  # on the page of the documentation
COSTS = ("train us a row", "predict us a row, batch", "predict us, one row")


def models() -> dict[str, Any]:
    return {
        "beam": recall_tree(passes=1),
        "paper": recall_tree(passes=1, algorithm="paper"),
        "OneVsAll": OneVsAll(passes=1, n_jobs=1, verbose=0),
    }


def generated(n_classes: int, rows_a_class: int = ROWS_A_CLASS, n_test: int = TEST_ROWS) -> Problem:
    random = np.random.default_rng(n_classes)
    spread = random.standard_normal((DIMENSIONS, FEATURES), dtype=np.float32) / np.float32(np.sqrt(DIMENSIONS))
    centres = random.standard_normal((n_classes, DIMENSIONS), dtype=np.float32) @ spread
    y = random.permutation(np.repeat(np.arange(n_classes), rows_a_class))
    y_test = random.integers(0, n_classes, n_test)
    parts: list[Any] = []
    for labels in (y, y_test):
        X = random.standard_normal((len(labels), FEATURES), dtype=np.float32)
        X *= np.float32(NOISE)
        X += centres[labels]
        parts += [X, labels]
    return Problem(*parts)


def measure(name: str, model: Any, problem: Problem, n_classes: int) -> dict[str, Any]:
    """Microseconds a row of learning and of answering, and the error where all rows were learned."""
    warm_up(model, problem)
    taught = name != "OneVsAll" or n_classes <= MOST_TAUGHT
    if taught:
        spent, n_rows = seconds(lambda: model.fit(problem.X, problem.y)), len(problem.y)
    else:
        model = type(model)(**model.get_params())
        model.partial_fit(problem.X[:1], problem.y[:1], classes=np.arange(n_classes))
        few = slice(1, 1 + FEW_ROWS)
        spent, n_rows = seconds(lambda: model.partial_fit(problem.X[few], problem.y[few])), FEW_ROWS
    answered = problem.X_test if taught else problem.X_test[:FEW_ROWS]
    batch = seconds(lambda: model.predict_topk(answered, 1), 3)
    singles = [problem.X_test[i : i + 1] for i in range(min(SINGLE_ROWS, len(problem.y_test)))]
    one = seconds(lambda: [model.predict_topk(row, 1) for row in singles], 2)
    found = {
        COSTS[0]: 1e6 * spent / n_rows,
        COSTS[1]: 1e6 * batch / len(answered),
        COSTS[2]: 1e6 * one / len(singles),
        "error %": 100 * float(1 - hits(model, problem, 1).mean()) if taught else None,
    }
    return {"model": name, "classes": n_classes, **found}


def nearest_mean(problem: Problem, n_classes: int) -> dict[str, Any]:
    """What can be reached, also where one-against-all takes too long: the class whose mean is nearest."""
    sums = np.zeros((n_classes, problem.X.shape[1]), dtype=np.float32)
    np.add.at(sums, problem.y, problem.X)
    means = sums / np.bincount(problem.y, minlength=n_classes)[:, None].astype(np.float32)
    shift = 0.5 * (means**2).sum(axis=1)
    parts = np.array_split(np.arange(len(problem.y_test)), 1 + len(problem.y_test) // TEST_ROWS)
    nearest = np.concatenate([(problem.X_test[rows] @ means.T - shift).argmax(axis=1) for rows in parts])
    error = 100 * float((nearest != problem.y_test).mean())
    return {"model": "nearest mean", "classes": n_classes, **dict.fromkeys(COSTS), "error %": error}


def run(problem: Problem, data: str, n_classes: int) -> list[dict[str, Any]]:
    found = [{"data": data, **nearest_mean(problem, n_classes)}]
    for name, model in models().items():
        found.append({"data": data, **measure(name, model, problem, n_classes)})
        print(found[-1], file=sys.stderr, flush=True)
    return found


COLUMNS = [{"name": name} for name in ("data", "classes", "model", *COSTS, "error %")]


def lines(found: list[dict[str, Any]]) -> list[list[Any]]:
    return [
        [point["data"], point["classes"], point["model"], *(rounded(point[name]) for name in (*COSTS, "error %"))]
        for point in found
    ]


def crossing(found: list[dict[str, Any]], name: str, cost: str) -> float | None:
    """Where a model begins to be cheaper than one-against-all, on the generated data; None if it does not.

    Between two sizes both costs are taken to be straight lines on logarithmic axes.
    """
    points = {(point["model"], point["classes"]): point[cost] for point in found if point["data"] == "generated"}
    sizes = sorted({size for _, size in points})
    lead = np.log([points["OneVsAll", size] / points[name, size] for size in sizes])
    if lead[0] >= 0:
        return float(sizes[0])
    after = int(np.argmax(lead >= 0))
    if after == 0:
        return None
    share = -lead[after - 1] / (lead[after] - lead[after - 1])
    return float(sizes[after - 1] * (sizes[after] / sizes[after - 1]) ** share)


def crossings(found: list[dict[str, Any]]) -> str:
    smallest = min(point["classes"] for point in found)
    rows = []
    for name in ("beam", "paper"):
        cells = []
        for at in (crossing(found, name, cost) for cost in COSTS):
            cells.append("nowhere" if at is None else f"{'at most ' if at <= smallest else ''}{at:,.0f}")
        rows.append([name, *cells])
    return table(["cheaper than OneVsAll from", *COSTS], rows)


def plot(found: list[dict[str, Any]]) -> None:
    figure, axes = canvas(len(COSTS), 12.5, 4.2, sharey=True)
    for axis, cost in zip(axes, COSTS, strict=True):
        for colour, name in enumerate(models()):
            for data, style in (("generated", "o-"), *((suite, "x") for suite in GLYPHS.values())):
                points = [point for point in found if point["model"] == name and point["data"] == data]
                label = name if data == "generated" else f"{name}, glyphs" if data == "glyphs1k" else None
                places = [point["classes"] for point in points]
                axis.plot(places, [point[cost] for point in points], style, color=f"C{colour}", label=label)
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xlabel("classes")
        axis.set_title(cost, fontsize=10)
    axes[0].set_ylabel("microseconds")
    axes[0].legend(frameon=False, fontsize=8)
    draw(figure, "recall-tree-classes")


def main(arguments: list[str]) -> None:
    found: list[dict[str, Any]] = []
    for size in [int(argument) for argument in arguments] or SIZES:
        found += run(generated(size), "generated", size)
        if size in GLYPHS:
            try:
                found += run(Problem.read(GLYPHS[size]), GLYPHS[size], size)
            except DataMissing as missing:
                print(missing, file=sys.stderr)
    keep("recall-classes", found)
    rows = lines(found)
    print(pages.table({"columns": COLUMNS, "rows": rows}), crossings(found), sep="\n\n")
    plot(found)
    shown = {size for size in SHOWN_SIZES if size in {point["classes"] for point in found}}
    some = [row for row in rows if row[0] != "generated" or row[1] in shown]
    image = {"file": "recall-tree-classes.png", "text": "Microseconds a row against the number of classes"}
    shows = "Microseconds of the processor a row, one pass; generated rows of 256 numbers, ten a class, and glyphs."
    title = "Time and the number of classes"
    store("recall-tree", "classes", title=title, shows=shows, columns=COLUMNS, rows=some, image=image)
    title += ", all sizes"
    store("recall-tree", "classes-all", title=title, shows=shows, columns=COLUMNS, rows=rows, listed=False)
