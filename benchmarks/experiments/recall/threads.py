"""Training with two threads, and what two processes that share nothing reach on the same machine (footnote 2).

Wall time, since threads share a clock: the best of several rounds in which the three ways take turns.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from typing import Any

from benchmarks import pages
from benchmarks.experiments.recall.models import recall_tree
from benchmarks.harness.output import keep, store
from benchmarks.harness.problem import Problem, hits, warm_up

SUITES = ("glyphs1k", "wordnet", "icd")
ALGORITHMS = ("beam", "paper")
ROUNDS = 5
PASSES = 3
COLUMNS = [
    *({"name": name} for name in ("suite", "algorithm", "one thread, s", "two threads, s")),
    *({"name": name, "decimals": 2} for name in ("speed-up of threads", "of two processes")),
    *({"name": name, "decimals": 2} for name in ("error@1 %, one thread", "two threads")),
]


def wall(model: Any, problem: Problem) -> float:
    start = time.perf_counter()
    model.fit(problem.X, problem.y)
    return time.perf_counter() - start


def worker(suite: Problem | str, algorithm: str, pipe: Any) -> None:
    """Fit whenever the other end asks for it; send when the training began and ended."""
    problem = Problem.read(suite) if isinstance(suite, str) else suite
    warm_up(recall_tree(algorithm=algorithm), problem)
    pipe.send("ready")
    while pipe.recv():
        start = time.monotonic()
        recall_tree(algorithm=algorithm, passes=PASSES).fit(problem.X, problem.y)
        pipe.send((start, time.monotonic()))


class Pair:
    """Two processes that train the same model at the same time."""

    def __init__(self, suite: Problem | str, algorithm: str) -> None:
        context = multiprocessing.get_context("spawn")
        pipes = [context.Pipe() for _ in range(2)]
        self.pipes = [ours for ours, _ in pipes]
        self.processes = [context.Process(target=worker, args=(suite, algorithm, theirs)) for _, theirs in pipes]
        for process in self.processes:
            process.start()
        for pipe in self.pipes:
            pipe.recv()

    def seconds(self) -> float:
        """From the first start to the last end."""
        for pipe in self.pipes:
            pipe.send(True)
        times = [pipe.recv() for pipe in self.pipes]
        return float(max(end for _, end in times) - min(start for start, _ in times))

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.send(False)
        for process in self.processes:
            process.join()


def run(problem: Problem, suite: Problem | str, algorithm: str) -> list[float]:
    """Seconds of one and of two threads, the speed-ups, and both errors in per cent."""
    one, two = (recall_tree(algorithm=algorithm, passes=PASSES, n_jobs=jobs) for jobs in (1, 2))
    for jobs in (1, 2):
        warm_up(recall_tree(algorithm=algorithm, n_jobs=jobs), problem)
    pair, found = Pair(suite, algorithm), []
    for _ in range(ROUNDS):
        found.append((wall(one, problem), wall(two, problem), pair.seconds()))
    pair.close()
    alone, threads, processes = (min(times) for times in zip(*found, strict=True))
    errors = (round(100 * float(1 - hits(model, problem, 1).mean()), 2) for model in (one, two))
    return [float(f"{alone:.3g}"), float(f"{threads:.3g}"), alone / threads, 2 * alone / processes, *errors]


def main(arguments: list[str]) -> None:
    rows = []
    for suite in arguments or SUITES:
        problem = Problem.read(suite)
        for algorithm in ALGORITHMS:
            rows.append([suite, algorithm, *run(problem, suite, algorithm)])
            print(rows[-1], file=sys.stderr, flush=True)
    keep("recall-threads", rows)
    print(pages.table({"columns": COLUMNS, "rows": rows}))
    store(
        "recall-tree",
        "threads",
        title="Two threads",
        shows=f'{PASSES} passes, wall time, best of {ROUNDS} rounds. "Of two processes" is how much more two processes that '
        "share nothing train in the same time: what the two cores have to give.",
        columns=COLUMNS,
        rows=rows,
    )
