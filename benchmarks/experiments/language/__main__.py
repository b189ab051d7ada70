"""Predicting the next word of the Penn Treebank: tables 3 and 4 of the softmax-tree paper. One thread.

    python -m benchmarks.experiments.language train ngram [NAME...]     from the vectors of three words: train and keep the models
    python -m benchmarks.experiments.language table ngram               judge those that are kept, side by side
    python -m benchmarks.experiments.language run ngram [NAME...]       train those that are not kept, then the table
    python -m benchmarks.experiments.language run lstm                  from the state of an LSTM

`ngram-sample` and `lstm-sample` are the same with 100,000 training rows, and stored for the documentation; `ngram-whole`
is `ngram` without the softmax of PyTorch. Figures are stored as JSON in `results`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from benchmarks import pages
from benchmarks.experiments.language import judging, models
from benchmarks.experiments.language.problems import PROBLEMS, Problem, Rows
from benchmarks.harness import output
from benchmarks.harness.output import help_if_asked, keep, store

SOME_ROWS = 20_000  # on which errors of training are measured, and the smoothing is chosen
DECIMALS = {
    "depth": 0, "leaves": 0, "classes of a leaf": 1, "error@1 %": 2, "error@5 %": 2, "training error@1 %": 2,
    "training error@5 %": 2, "covered %": 1, "perplexity": 1, "smoothed": 1, "training perplexity": 1, "train s": None,
    "batch us": None, "alone us": None, "model MB": None,
}  # fmt: skip
PAGES = {
    "ngram-sample": ("next-word-sample", "The next word: other models and the paper's settings"),
    "lstm-sample": ("lstm-sample", "The state of an LSTM: other models and the paper's settings"),
    "ngram": ("next-word", "The next word from the three before it"),
    "lstm": ("lstm", "The next word from the state of an LSTM"),
}  # the results of docs/experiments
PUBLISHED = "The trees as published have alpha 1, a random start and 20 iterations, as in the paper, or 5."
COLUMNS = [
    {"name": "model"},
    *({"name": name, **({} if n is None else {"decimals": n})} for name, n in DECIMALS.items()),
]


def judged(problem: Problem, kept: dict[str, tuple[Any, float, float]]) -> list[dict[str, Any]]:
    """A row of figures for the softmax, if there is one, and for every model; `times_faster` is against the first."""
    everything: dict[str, tuple[Any, float | None, float]] = {**kept}
    if problem.coef is not None and problem.bias is not None:
        softmax = judging.Linear(problem.coef, problem.bias)
        everything = {problem.softmax_name: (softmax, None, softmax.coef.nbytes / 2**20), **kept}
    speed = judging.microseconds({name: model for name, (model, *_) in everything.items()}, problem.test.X)
    slowest = next(iter(speed.values()))
    learned = some_rows(problem.train)
    rows = []
    for name, (model, train_seconds, megabytes) in everything.items():
        found = judging.answers(model, problem.test)
        epsilon = judging.best_epsilon(judging.answers(model, some_rows(problem.valid)), problem.n_classes)
        smoothed = judging.smoothed_perplexity(found, problem.n_classes, epsilon)
        in_training = judging.quality(judging.answers(model, learned), learned.y)
        batch, alone = speed[name]
        rows.append(
            {
                "model": name,
                **judging.size(model, problem.n_classes),
                **judging.quality(found, problem.test.y)._asdict(),
                "smoothed": smoothed,
                "epsilon": epsilon,
                "training": in_training._asdict(),
                "train_seconds": train_seconds,
                "batch": batch,
                "alone": alone,
                "times_faster": (slowest[0] / batch, slowest[1] / alone),
                "megabytes": megabytes,
            }
        )
    return rows


def some_rows(rows: Rows) -> Rows:
    """Random rows, for errors of training and to choose the smoothing."""
    chosen = np.random.default_rng(0).permutation(len(rows.y))[:SOME_ROWS]
    return Rows(np.ascontiguousarray(rows.X[chosen]), rows.y[chosen])


def line(row: dict[str, Any]) -> list[Any]:
    """A row of the table."""
    learned = row["training"]
    cells = [
        *(row[name] for name in ("depth", "leaves", "leaf_classes", "error", "error_5")),
        *(learned[name] for name in ("error", "error_5")),
        *(row[name] for name in ("coverage", "perplexity", "smoothed")),
        learned["perplexity"],
        *(row[name] for name in ("train_seconds", "batch", "alone", "megabytes")),
    ]
    return [row["model"], *(None if cell is None else float(f"{cell:.4g}") for cell in cells)]


def with_stored(lines: list[list[Any]], file: str, order: list[str]) -> list[list[Any]]:
    """The rows of the table, and for models that are not kept on this machine those that were stored before."""
    stored = json.loads((output.STORED / "softmax-tree" / f"{file}.json").read_text())
    names = [column["name"] for column in stored["columns"]]
    before = [dict(zip(names, row, strict=True)) for row in stored["rows"]]
    found = {row["model"]: [row.get(column["name"]) for column in COLUMNS] for row in before}
    found |= {row[0]: row for row in lines}
    return [found[name] for name in dict.fromkeys([*order, *found]) if name in found]


def about(name: str, n_rows: int) -> str:
    """What the stored table of a problem shows."""
    tables = "Tables 3 and 10" if name.startswith("ngram") else "Tables 4 and 11"
    published = f" {PUBLISHED}" if name.endswith("-sample") else ""
    return f"{tables}, {n_rows:,} training rows. Errors and perplexity of training are of {SOME_ROWS:,} of them.{published}"


def main(arguments: list[str]) -> int:
    if len(arguments) < 2 or arguments[0] not in ("train", "table", "run") or arguments[1] not in PROBLEMS:
        print(__doc__, file=sys.stderr)
        return 2
    work, name, *chosen = arguments
    unknown = set(chosen) - set(models.models(name))
    if unknown:
        print(f"{name} has no model {unknown.pop()!r}: {'; '.join(models.models(name))}", file=sys.stderr)
        return 2
    problem = PROBLEMS[name]()
    if work == "run":
        chosen = [model for model in chosen or models.models(name) if not models.path_of(name, model).exists()]
    if work == "train" or (work == "run" and chosen):
        models.train(name, chosen, problem.train)
    if work == "train":
        return 0
    rows = judged(problem, models.kept(name))
    keep(f"language-{name}", rows)
    lines = [line(row) for row in rows]
    print(pages.table({"columns": COLUMNS, "rows": lines}))
    if name in PAGES:
        file, title = PAGES[name]
        lines = with_stored(lines, file, [problem.softmax_name, *models.models(name)])
        command = f"python -m benchmarks.experiments.language run {name}"
        store(
            "softmax-tree",
            file,
            title=title,
            shows=about(name, len(problem.train.y)),
            columns=COLUMNS,
            rows=lines,
            command=command,
        )
    return 0


if __name__ == "__main__":
    help_if_asked(__doc__)
    sys.exit(main(sys.argv[1:]))
