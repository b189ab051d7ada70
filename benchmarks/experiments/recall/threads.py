"""Training with two threads, and what two processes that share nothing reach on the same machine (footnote 2).

The three ways take turns, and the least time of several rounds counts. Wall time is what a user waits for, but says little
on a machine with other work. Processor time shows what two threads cost each other: with two free cores, the speed-up is
at most twice the processor time of one thread over that of both.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from benchmarks import pages
from benchmarks.experiments.recall.models import recall_tree
from benchmarks.harness.problem import Problem, hits, warm_up

SUITES = ("glyphs1k", "icd")
ALGORITHMS = ("beam", "paper")
ROUNDS = 9
PASSES = 1
COLUMNS = [
    *({"name": name} for name in ("suite", "algorithm", "one thread, processor s", "two threads", "two processes")),
    *({"name": name, "decimals": 2} for name in ("speed-up at most, threads", "processes")),
    *({"name": name, "decimals": 2} for name in ("speed-up, wall time, threads", "processes, wall time")),
    *({"name": name, "decimals": 2} for name in ("error@1 %, one thread", "error@1 %, two threads")),
]


class Time(NamedTuple):
    """Seconds of the wall clock and of the processor."""

    wall: float
    processor: float


def fitted(model: Any, problem: Problem) -> Time:
    wall, processor = time.perf_counter(), time.process_time()
    model.fit(problem.X, problem.y)
    return Time(time.perf_counter() - wall, time.process_time() - processor)


def least(times: Sequence[Time]) -> Time:
    return Time(*map(min, zip(*times, strict=True)))


def worker(suite: Problem | str, algorithm: str, pipe: Any) -> None:
    """Fit whenever the other end asks for it; send when the training began and ended, and its processor time."""
    problem = Problem.read(suite) if isinstance(suite, str) else suite
    warm_up(recall_tree(algorithm=algorithm), problem)
    pipe.send("ready")
    while pipe.recv():
        start = time.monotonic()
        processor = fitted(recall_tree(algorithm=algorithm, passes=PASSES), problem).processor
        pipe.send((start, time.monotonic(), processor))


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

    def time(self) -> Time:
        """From the first start to the last end, and the processor time of both."""
        for pipe in self.pipes:
            pipe.send(True)
        starts, ends, processor = zip(*(pipe.recv() for pipe in self.pipes), strict=True)
        return Time(max(ends) - min(starts), sum(processor))

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.send(False)
        for process in self.processes:
            process.join()


def run(problem: Problem, suite: Problem | str, algorithm: str) -> list[float]:
    """Processor times, the speed-ups of threads and processes by processor and by wall time, and errors in per cent."""
    one, two = (recall_tree(algorithm=algorithm, passes=PASSES, n_jobs=jobs) for jobs in (1, 2))
    for jobs in (1, 2):
        warm_up(recall_tree(algorithm=algorithm, n_jobs=jobs), problem)
    pair, found = Pair(suite, algorithm), []
    for _ in range(ROUNDS):
        found.append([fitted(one, problem), fitted(two, problem), pair.time()])
    pair.close()
    alone, threads, processes = (least(times) for times in zip(*found, strict=True))
    errors = (round(100 * float(1 - hits(model, problem, 1).mean()), 2) for model in (one, two))
    processor = (time.processor for time in (alone, threads, processes))
    speed_ups = (
        2 * alone.processor / threads.processor,
        4 * alone.processor / processes.processor,
        alone.wall / threads.wall,
        2 * alone.wall / processes.wall,
    )
    return [*(float(f"{seconds:.3g}") for seconds in processor), *(round(times, 2) for times in speed_ups), *errors]


def main(arguments: list[str]) -> None:
    rows = []
    for suite in arguments or SUITES:
        problem = Problem.read(suite)
        for algorithm in ALGORITHMS:
            rows.append([suite, algorithm, *run(problem, suite, algorithm)])
            print(rows[-1], file=sys.stderr, flush=True)
    pages.publish(
        "recall-threads",
        "recall-tree",
        "threads",
        title="Two threads",
        shows=f'One pass, the least of {ROUNDS} rounds. Processor seconds of threads and of processes are of both together; "at most" '
        "is what these allow on two free cores. Two processes share nothing, and each has the whole training: they are what the machine has "
        "to give. It was shared with other work, so that wall times compare with others of their row only.",
        columns=COLUMNS,
        rows=rows,
    )
