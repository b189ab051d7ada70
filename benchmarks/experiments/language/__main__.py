"""Predicting the next word of the Penn Treebank: tables 3 and 4 of the softmax-tree paper. One thread.

    python -m benchmarks.experiments.language train ngram [NAME...]     from the vectors of three words: train and keep the models
    python -m benchmarks.experiments.language table ngram               judge those that are kept, side by side
    python -m benchmarks.experiments.language train lstm [NAME...]      from the state of an LSTM
    python -m benchmarks.experiments.language table lstm

Figures are stored as JSON in `results`.
"""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.experiments.language import judging, models
from benchmarks.experiments.language.problems import PROBLEMS, Problem
from benchmarks.harness.output import help_if_asked, keep, number, table

COLUMNS = (
    "model", "depth", "error@1 %", "error@5 %", "covered %", "perplexity", "smoothed", "train s", "batch us", "alone us",
    "times faster", "model MB",
)  # fmt: skip


def judged(problem: Problem, kept: dict[str, tuple[Any, float, float]]) -> list[dict[str, Any]]:
    """A row of figures for the softmax and for every model."""
    softmax = judging.Linear(problem.coef, problem.bias)
    everything = {problem.softmax_name: (softmax, None, softmax.coef.nbytes / 2**20), **kept}
    speed = judging.microseconds({name: model for name, (model, *_) in everything.items()}, problem.test.X)
    rows = []
    for name, (model, train_seconds, megabytes) in everything.items():
        found = judging.answers(model, problem.test)
        epsilon = judging.best_epsilon(judging.answers(model, problem.valid), len(problem.bias))
        smoothed = judging.smoothed_perplexity(found, len(problem.bias), epsilon)
        batch, alone = speed[name]
        rows.append(
            {
                "model": name,
                "depth": getattr(getattr(model, "model_", None), "depth", 0),
                **judging.quality(found, problem.test.y)._asdict(),
                "smoothed": smoothed,
                "epsilon": epsilon,
                "train_seconds": train_seconds,
                "batch": batch,
                "alone": alone,
                "times_faster": (speed[problem.softmax_name][0] / batch, speed[problem.softmax_name][1] / alone),
                "megabytes": megabytes,
            }
        )  # fmt: skip
    return rows


def line(row: dict[str, Any]) -> list[str]:
    quality = [f"{row[name]:.2f}" for name in ("error", "error_5")] + [f"{row['coverage']:.1f}"]
    costs = [number(row[name]) for name in ("batch", "alone")]
    train = "" if row["train_seconds"] is None else number(row["train_seconds"])
    faster = " / ".join(f"{times:.1f}" for times in row["times_faster"])
    perplexities = [f"{row[name]:.1f}" for name in ("perplexity", "smoothed")]
    return [row["model"], str(row["depth"]), *quality, *perplexities, train, *costs, faster, number(row["megabytes"])]  # fmt: skip


def main(arguments: list[str]) -> int:
    if len(arguments) < 2 or arguments[0] not in ("train", "table") or arguments[1] not in PROBLEMS:
        print(__doc__, file=sys.stderr)
        return 2
    work, name, *chosen = arguments
    unknown = set(chosen) - set(models.models(name))
    if unknown:
        print(f"{name} has no model {unknown.pop()!r}: {'; '.join(models.models(name))}", file=sys.stderr)
        return 2
    problem = PROBLEMS[name]()
    if work == "train":
        models.train(name, chosen, problem.train)
        return 0
    rows = judged(problem, models.kept(name))
    keep(f"language-{name}", rows)
    print(table(COLUMNS, [line(row) for row in rows]))
    return 0


if __name__ == "__main__":
    help_if_asked(__doc__)
    sys.exit(main(sys.argv[1:]))
