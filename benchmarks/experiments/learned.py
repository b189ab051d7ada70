"""Where the gain of a learned tree comes from: trees, schedules and the paper's own way side by side. One thread.

    python -m benchmarks.experiments.learned trees [SUITE]      four trees by arity and dimension
    python -m benchmarks.experiments.learned schedule [SUITE]   four trees with the same schedule and optimizer, for each of these
    python -m benchmarks.experiments.learned options [SUITE]    the default, and what the paper has in place of it
    python -m benchmarks.experiments.learned published [SUITE]  the settings of the authors' program, by arity and dimension
    python -m benchmarks.experiments.learned threads [SUITE]    lock-free training with one thread and two
    python -m benchmarks.experiments.learned stream             `partial_fit` beside `fit`, on icd and wordnet

Tables are printed, and what was found is stored as JSON in `results`. Figures are means over SEEDS trainings; seconds
are those of the processor.
"""

from __future__ import annotations

import sys
import time
from typing import Any, NamedTuple

import numpy as np

from benchmarks.harness.output import help_if_asked, keep, store, table
from benchmarks.harness.problem import Problem, hits, warm_up
from treemax import LearnedTree

SEEDS = 3
DIMENSION = 50
DIMENSIONS = (50, 200)  # of the paper
ARITIES = (5, 20)
PASSES = 6  # of the trees by arity and dimension
TREES = ("learned", "clusters", "huffman", "random")
PLAIN = {"optimizer": "sgd", "dropout": 0.0}
ALGORITHM_1 = {**PLAIN, "objective": "probability", "statistics": "running", "start": "random", "assign_until": 1.0}
STREAM_PASSES = {1: "one pass", 3: "three passes", 12: "twelve passes"}
CHUNK_ROWS = 100
STREAM_SHOWS = (
    "Rows in random order, in chunks of 100; P@1, means of three orders. Progressive P@1 is that of rows before they are "
    "learned. One pass has 5 to 7 points less than `fit`, three passes 3, and more passes overfit on wordnet. Assignments gain 2 "
    "points of test P@1 on icd, with 30 rows a label, and lose 1.5 on wordnet, with 4."
)
MACHINE = "one core of a two-core x86-64 machine (AMD EPYC, AVX-512), shared with other work"
OPTIONS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "statistics=rows": {"statistics": "rows"},
    "statistics=running": {"statistics": "running"},
    "start=random": {"start": "random"},
    "start=random, statistics=running": {"start": "random", "statistics": "running"},
    "objective=probability": {"objective": "probability"},
    "assign_until=1": {"assign_until": 1.0},
    "assign_every=0.1": {"assign_every": 0.1},
    "no dropout": {"dropout": 0.0},
    "plain steps": {"optimizer": "sgd"},
    "plain steps, no dropout": PLAIN,
    "Algorithm 1 on log p": {**ALGORITHM_1, "objective": "log-likelihood"},
    "Algorithm 1 as printed": {**ALGORITHM_1, "learning_rate": 0.5},
}


class Outcome(NamedTuple):
    precision: float  # at 1
    seconds: float  # of the processor, in training
    wall: float


def measured(problem: Problem, **options: Any) -> Outcome:
    """Trainings that differ in their seeds, and how well they answer on average."""
    found = []
    for seed in range(SEEDS):
        model = LearnedTree(random_state=seed, verbose=0, **options)
        wall, start = time.perf_counter(), time.process_time()
        model.fit(problem.X, problem.y)
        took = time.process_time() - start, time.perf_counter() - wall
        found.append((float(hits(model, problem, 1).mean()), *took))
    return Outcome(*np.mean(found, axis=0).tolist())


def schedule(problem: Problem) -> dict[str, Any]:
    """P@1 of every tree, for each optimizer and schedule."""
    found, rows = {}, []
    for arity in ARITIES:
        for optimizer in ("adagrad", "sgd"):
            for name in ("linear", "hold"):
                given: dict[str, Any] = {
                    "arity": arity,
                    "dimension": DIMENSION,
                    "optimizer": optimizer,
                    "schedule": name,
                }
                precisions = [measured(problem, tree=tree, **given).precision for tree in TREES]
                title = f"{arity}, {optimizer}, {name}"
                found[title] = dict(zip(TREES, precisions))
                rows.append([title, *(f"{value:.4f}" for value in precisions)])
                print(rows[-1], flush=True)
    print(table(["arity, optimizer, schedule", *TREES], rows))
    return found


def options(problem: Problem) -> dict[str, Any]:
    """P@1 and processor seconds with one thing changed at a time, and with all of the paper's."""
    found, rows = {}, []
    for name, changed in OPTIONS.items():
        outcomes = [measured(problem, arity=arity, dimension=DIMENSION, **changed) for arity in ARITIES]
        found[name] = [outcome._asdict() for outcome in outcomes]
        rows.append([name, *(f"{one.precision:.4f} ({one.seconds:.1f} s)" for one in outcomes)])
        print(rows[-1], flush=True)
    print(table(["", *(f"arity {arity}" for arity in ARITIES)], rows))
    return found


def once(problem: Problem, model: LearnedTree) -> tuple[float, float]:
    """P@1 and processor seconds of one training."""
    start = time.process_time()
    model.fit(problem.X, problem.y)
    took = time.process_time() - start
    return float(hits(model, problem, 1).mean()), took


def trees(problem: Problem) -> dict[str, Any]:
    """P@1 and processor seconds of one training of every tree, by arity and dimension."""
    found, rows = {}, []
    for dimension in DIMENSIONS:
        for arity in (2, *ARITIES):
            given: dict[str, Any] = {"arity": arity, "dimension": dimension, "passes": PASSES, "verbose": 0}
            outcomes = [once(problem, LearnedTree(tree=tree, **given)) for tree in TREES]
            found[f"{arity}, {dimension}"] = dict(zip(TREES, outcomes))
            rows.append([f"{arity}, {dimension}", *(f"{value:.3f} ({took:.1f} s)" for value, took in outcomes)])
            print(rows[-1], flush=True)
    print(table(["arity, dimension", *TREES], rows))
    return found


def published(problem: Problem) -> dict[str, Any]:
    """P@1 and processor seconds of one training with the settings of the authors' program."""
    found, rows = {}, []
    for dimension in DIMENSIONS:
        for arity in (2, *ARITIES):
            model = LearnedTree.as_published(arity=arity, dimension=dimension, verbose=0)
            found[f"{arity}, {dimension}"], took = once(problem, model)
            rows.append([f"{arity}, {dimension}", f"{found[f'{arity}, {dimension}']:.4f}", f"{took:.1f}"])
            print(rows[-1], flush=True)
    print(table(["arity, dimension", "P@1", "train s"], rows))
    return found


def threads(problem: Problem) -> dict[str, Any]:
    """P@1, wall and processor seconds with one thread and two."""
    found, rows = {}, []
    for n_jobs in (1, 2):
        outcome = measured(problem, dimension=DIMENSION, n_jobs=n_jobs)
        found[str(n_jobs)] = outcome._asdict()
        rows.append([str(n_jobs), f"{outcome.precision:.4f}", f"{outcome.wall:.2f}", f"{outcome.seconds:.2f}"])
    print(table(["threads", "P@1", "wall s", "processor s"], rows))
    return found


EXPERIMENTS = {"trees": trees, "schedule": schedule, "options": options, "published": published, "threads": threads}


def streamed(problem: Problem, seed: int, passes: tuple[int, ...], **options: Any) -> dict[int, list[float]]:
    """P@1 on the test rows and processor seconds after so many passes of `partial_fit`, each in a new random order; the
    first is beside P@1 of rows that are predicted before they are learned, in chunks of CHUNK_ROWS."""
    model, random = LearnedTree(random_state=seed, verbose=0, **options), np.random.RandomState(seed)
    found, seconds, n_right = {}, 0.0, 0
    for done in range(1, max(passes) + 1):
        order = random.permutation(len(problem.y))
        for start in range(0, len(order), CHUNK_ROWS):
            part = order[start : start + CHUNK_ROWS]
            X, y = problem.X[part], problem.y[part]
            if done == 1 and start:
                n_right += int((model.predict(X) == y).sum())
            before = time.process_time()
            model.partial_fit(X, y)
            seconds += time.process_time() - before
        if done in passes:
            found[done] = [float(hits(model, problem, 1).mean()), seconds, n_right / len(order)]
    return found


def stream() -> dict[str, Any]:
    """Progressive and test P@1 of streams, beside the test P@1 of `fit`."""
    found: dict[str, Any] = {}
    for suite in ("icd", "wordnet"):
        problem = Problem.read(suite)
        warm_up(LearnedTree(verbose=0), problem)
        runs = [streamed(problem, seed, STREAM_PASSES) for seed in range(SEEDS)]
        fixed = [streamed(problem, seed, (1,), tree="random") for seed in range(SEEDS)]
        found[suite] = {f"partial_fit, {n}": np.mean([run[n] for run in runs], axis=0).tolist() for n in STREAM_PASSES}
        found[suite]["order of arrival, 1"] = np.mean([run[1] for run in fixed], axis=0).tolist()
        found[suite]["fit"] = list(measured(problem)[:2])
        print(suite, found[suite], flush=True)
    names = {
        "fit": "`fit`, twelve passes",
        **{f"partial_fit, {n}": f"`partial_fit`, {words} of the rows" for n, words in STREAM_PASSES.items()},
        "order of arrival, 1": '`partial_fit`, one pass, `tree="random"`: labels stay where they came',
    }
    rows: list[list[Any]] = []
    for suite, results in found.items():
        for name, title in names.items():
            precision, took, *progressive = results[name]
            seen_first = round(progressive[0], 4) if name.endswith(" 1") else None
            rows.append([suite, title, seen_first, round(precision, 4), round(took, 1)])
    store(
        "learned-tree", "stream", title="Streams", shows=STREAM_SHOWS, rows=rows, machine=MACHINE,
        columns=["data", "", *({"name": name, "decimals": 4} for name in ("progressive P@1", "test P@1")),
                 {"name": "processor s", "decimals": 1}],
    )  # fmt: skip
    return found


def main(arguments: list[str]) -> int:
    if arguments == ["stream"]:
        keep("learned-stream", stream())
        return 0
    if not arguments or arguments[0] not in EXPERIMENTS:
        print(__doc__, file=sys.stderr)
        return 2
    name, suite = arguments[0], arguments[1] if len(arguments) > 1 else "wordnet"
    problem = Problem.read(suite)
    for statistics in ("means", "running"):
        warm_up(LearnedTree(verbose=0, statistics=statistics), problem)
    keep(f"learned-{name}-{suite}", EXPERIMENTS[name](problem))
    return 0


if __name__ == "__main__":
    help_if_asked(__doc__)
    sys.exit(main(sys.argv[1:]))
