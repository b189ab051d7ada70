"""Training with two threads, beside one thread and beside two processes that share nothing.

    python -m benchmarks.experiments.two_threads [NAME...] [--rounds 3] [--again]

The three ways take turns, and the best of several rounds counts. On a machine with other work the wall clock says
little, so processor time is measured too, of the whole process and of every piece of work that a thread was given.
Whatever no thread was given is serial. The pieces of each stage, handed in order to two free cores, and the serial part
give the time on a quiet machine. It counts what threads cost each other, since it is made of the processor time of the
training with two threads.
"""

from __future__ import annotations

import heapq
import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ClassVar, NamedTuple
from unittest import mock

import numpy as np

from benchmarks import pages
from benchmarks.experiments.language_model import texts
from benchmarks.harness.accuracy import correct
from benchmarks.harness.measure import Data, load_driver
from benchmarks.harness.output import RESULTS, help_if_asked, keep, store
from benchmarks.harness.suites import prepared
from benchmarks.harness.systems import DRIVERS

LANGUAGE_MODEL, KEPT = "language-model", "two-threads"
COLUMNS = [
    *({"name": name} for name in ("model", "rows", "one thread, processor s", "two threads")),
    {"name": "serial %", "decimals": 0},
    {"name": "speed-up, quiet machine", "decimals": 2},
    {"name": "two processes", "decimals": 2},
    *({"name": name, "decimals": 2} for name in ("wall time, threads", "wall time, processes")),
    *({"name": name, "decimals": 2} for name in ("P@1 %, one thread", "P@1 %, two threads")),
]


class Case(NamedTuple):
    """A model, its settings, and the rows of a suite that it learns."""

    model: str
    suite: str
    limit: int | None = None
    settings: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        return " ".join([self.model, *(f"{name}={value}" for name, value in self.settings), self.suite])


CASES = (
    Case("label-tree", "wordnet"),
    Case("label-tree", "gcc", 20_000),
    Case("label-tree", "wordnet", None, (("n_trees", 3),)),
    Case("online-label-tree", "wordnet"),
    Case("online-label-tree", "gcc"),
    Case("one-vs-all", "glyphs1k", 20_000),
    Case("learned-tree", "wordnet", None, (("passes", 4),)),
    Case("learned-tree", "gcc", 20_000, (("passes", 4),)),
    Case(LANGUAGE_MODEL, "ptb", 10_000, (("passes", 2),)),
    Case("recall-tree", "glyphs1k", 20_000),
    Case("recall-tree", "wordnet", 30_000),
    Case("recall-tree", "wordnet", 30_000, (("algorithm", "paper"),)),
    Case("lom-tree", "wordnet"),
    Case("softmax-tree", "glyphs1k", 20_000),
    Case("softmax-tree", "wordnet", 30_000),
    Case("softmax-forest", "glyphs1k", 4_000),
    Case("mach", "wordnet", 30_000),
    Case("double-sampling", "glyphs1k", 20_000),
    Case("memory-tree", "wordnet", 30_000),
)


class Run(NamedTuple):
    """A training: seconds of the wall clock and the processor, those of each stage's pieces, and when it ended."""

    wall: float
    processor: float
    stages: list[list[float]]
    end: float
    hits: float


class TimedPool(ThreadPoolExecutor):
    """A pool of threads that notes the processor time of every piece of work."""

    stages: ClassVar[list[list[float]]] = []

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self.seconds: list[float] = []
        TimedPool.stages.append(self.seconds)

    def submit(self, work: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        place, seconds = len(self.seconds), self.seconds
        seconds.append(0.0)

        def timed() -> Any:
            start = time.thread_time()
            try:
                return work(*args, **options)
            finally:
                seconds[place] = time.thread_time() - start

        return super().submit(timed)


def makespan(pieces: Sequence[float], cores: int = 2) -> float:
    """The time that pieces take on so many free cores, each taken in order by the core that is free first.

    >>> makespan([1.0, 3.0, 2.0]), makespan([4.0])
    (3.0, 4.0)
    """
    free = [0.0] * cores
    for seconds in pieces:
        heapq.heapreplace(free, free[0] + seconds)
    return max(free)


def serial(run: Run) -> float:
    return run.processor - sum(map(sum, run.stages))


def quiet(run: Run) -> float:
    """The time of a training on two free cores."""
    return serial(run) + sum(map(makespan, run.stages))


# --- a training ------------------------------------------------------------------------------------------


class Trainer:
    """The data of a case, and how a model is trained and judged on it."""

    def __init__(self, case: Case) -> None:
        self.case, self.driver = case, load_driver(DRIVERS / "treemax.py")
        self.data = Data(prepared(case.suite, case.limit, validation=True))
        for jobs in (1, 2):
            self.inputs = self.driver.load(self.data, self.settings(jobs))

    def settings(self, jobs: int) -> dict[str, Any]:
        return {"model": self.case.model, "threads": jobs, "verbose": 0, **dict(self.case.settings)}

    def train(self, jobs: int) -> Any:
        return self.driver.train(self.inputs, self.settings(jobs), None)

    def hits(self, model: Any) -> float:
        labels, starts = self.data.labels("test")
        ranked = np.array(self.driver.labels(model.predict_topk(self.driver.rows(model, self.data, {}), 1)))
        return float(correct(ranked, labels, starts, self.data.n_labels).mean())


class LanguageTrainer:
    """The same for the language model, whose rows are texts; it is judged by the share of next words that it finds."""

    def __init__(self, case: Case) -> None:
        self.options, self.learned, valid = dict(case.settings), texts("train")[: case.limit], texts("valid")[:500]
        words = [text.split() for text in valid]
        self.contexts = [row[:place] for row in words for place in range(len(row))]
        self.following = [word for row in words for word in row]
        for jobs in (1, 2):
            self.model(jobs).fit(self.learned[:300]).predict(self.contexts[:10])

    def model(self, jobs: int) -> Any:
        import treemax

        return treemax.TreeLanguageModel(n_jobs=jobs, verbose=0, **self.options)

    def train(self, jobs: int) -> Any:
        return self.model(jobs).fit(self.learned)

    def hits(self, model: Any) -> float:
        return float(np.mean(model.predict(self.contexts) == np.array(self.following)))


def worker(case: Case, pipe: Any) -> None:
    """Train whenever the other end asks for it, with as many threads as it says."""
    import treemax.parallel.threads

    trainer = LanguageTrainer(case) if case.model == LANGUAGE_MODEL else Trainer(case)
    pipe.send("ready")
    with mock.patch.object(treemax.parallel.threads, "ThreadPoolExecutor", TimedPool):
        while jobs := pipe.recv():
            TimedPool.stages.clear()
            wall, processor = time.monotonic(), time.process_time()
            model = trainer.train(jobs)
            processor, end = time.process_time() - processor, time.monotonic()
            pipe.send(Run(end - wall, processor, list(TimedPool.stages), end, trainer.hits(model)))


class Pair:
    """Two processes that can train the same model, one of them or both at the same time."""

    def __init__(self, case: Case) -> None:
        context = multiprocessing.get_context("spawn")
        pipes = [context.Pipe() for _ in range(2)]
        self.pipes = [ours for ours, _ in pipes]
        self.processes = [context.Process(target=worker, args=(case, theirs)) for _, theirs in pipes]
        for process, pipe in zip(self.processes, self.pipes, strict=True):
            process.start()
            pipe.recv()  # one after the other: the first compiles for both

    def alone(self, jobs: int) -> Run:
        self.pipes[0].send(jobs)
        run: Run = self.pipes[0].recv()
        return run

    def both(self) -> tuple[float, float]:
        """From the first start to the last end, and the mean processor time."""
        for pipe in self.pipes:
            pipe.send(1)
        runs = [pipe.recv() for pipe in self.pipes]
        wall = max(run.end for run in runs) - min(run.end - run.wall for run in runs)
        return wall, sum(run.processor for run in runs) / 2

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.send(0)
        for process in self.processes:
            process.join()


def measured(case: Case, rounds: int) -> list[Any]:
    """A row of the table."""
    pair = Pair(case)
    found = [(pair.alone(1), pair.alone(2), pair.both()) for _ in range(rounds)]
    pair.close()
    ones, twos, pairs = zip(*found, strict=True)
    one, two = min(run.processor for run in ones), min(twos, key=quiet)
    wall, processor = np.min(pairs, axis=0).tolist()
    wall_one, wall_two = (min(run.wall for run in runs) for runs in (ones, twos))
    return [
        " ".join([case.model, *(f"{name}={value}" for name, value in case.settings)]),
        f"{case.suite}{f', {case.limit:,}' if case.limit else ''}",
        *(float(f"{seconds:.3g}") for seconds in (one, two.processor)),
        round(100 * serial(two) / two.processor),
        *(
            round(ratio, 2)
            for ratio in (one / quiet(two), 2 * one / processor, wall_one / wall_two, 2 * wall_one / wall)
        ),
        *(round(100 * float(np.mean([run.hits for run in runs])), 2) for runs in (ones, twos)),
    ]


def main(arguments: list[str]) -> None:
    rounds, again = 3, "--again" in arguments
    if "--rounds" in arguments:
        place = arguments.index("--rounds")
        rounds = int(arguments[place + 1])
        del arguments[place : place + 2]
    names = [name for name in arguments if name != "--again"]
    kept = RESULTS / f"{KEPT}.json"
    found: dict[str, list[Any]] = json.loads(kept.read_text()) if kept.exists() else {}
    for case in CASES:
        if (names and case.model not in names) or (not again and case.name in found):
            continue
        found[case.name] = measured(case, rounds)
        keep(KEPT, found)
        print(found[case.name], file=sys.stderr, flush=True)
    rows = [found[case.name] for case in CASES if case.name in found]
    print(pages.table({"columns": COLUMNS, "rows": rows}))
    store(
        "systems",
        "threads",
        title="Two threads",
        shows="Training on part of the rows, validation rows predicted. Processor seconds of two threads are of both together; serial is "
        'their share outside the threads. "Quiet machine" is the time of one thread over that of two on two free cores, computed '
        'from the processor time of every piece. "Two processes" is the same for two trainings at once that share nothing: what the '
        "machine has to give. Measured beside much other work, with which threads share caches: the best of one to three rounds.",
        columns=COLUMNS,
        rows=rows,
        command="python -m benchmarks.experiments.two_threads",
    )


if __name__ == "__main__":
    help_if_asked(__doc__)
    main(sys.argv[1:])
