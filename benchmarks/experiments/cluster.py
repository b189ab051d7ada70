"""A Ray cluster beside threads on one machine: `python -m benchmarks.experiments.cluster label-tree gcc`.

The same model is trained by one thread, two threads, one worker of Ray and two, in turn, several times; the best time of each counts,
and starting the cluster does not. The files are compared: they must be the same, byte for byte. What
is not spent waiting for the work of nodes is the serial share: reading labels, building problems, joining. Two trainings in
processes of their own, at the same time, say what the machine has to give when nothing is shared but its memory. Run it with the
environment of the extras (`.venv-extras`), which has Ray.
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import ray

import treemax
from benchmarks.harness.measure import Data
from benchmarks.harness.output import keep, number, table
from benchmarks.harness.problem import features
from benchmarks.harness.suites import prepared
from treemax.parallel import pools, ray_cluster

WARM_UP_ROWS = 5000
WAYS = {"1 thread": (1, 0), "2 threads": (2, 0), "Ray, 1 worker": (1, 1), "Ray, 2 workers": (1, 2)}
APART = "two trainings at a time, half of each"


class Waiting:
    """How long the main thread waited for the work of nodes."""

    seconds = 0.0

    @contextmanager
    def measured(self) -> Iterator[None]:
        executors = (pools._ThreadExecutor, ray_cluster._RayExecutor)
        before = [executor.run for executor in executors]
        for executor, run in zip(executors, before):
            executor.run = self._timed(run)  # type: ignore[method-assign]
        self.seconds = 0.0
        try:
            yield
        finally:
            for executor, run in zip(executors, before):
                executor.run = run  # type: ignore[method-assign]

    def _timed(self, run: Any) -> Any:
        def timed(executor: Any, *arguments: Any, **options: Any) -> Iterator[Any]:
            results = run(executor, *arguments, **options)
            while True:
                start = time.perf_counter()
                found = next(results, None)
                self.seconds += time.perf_counter() - start
                if found is None:
                    return
                yield found

        return timed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("suite")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--rows", type=int, help="the first so many training rows only")
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    settings = {name: _number(value) for name, _, value in (own.partition("=") for own in arguments.set)}
    data = Data(prepared(arguments.suite))
    X, y = features(data, "train"), _labels(data)
    if arguments.rows:
        X, y = X[: arguments.rows], y[: arguments.rows]
    seconds: dict[str, list[tuple[float, float]]] = {way: [] for way in [*WAYS, APART]}
    digests = set()
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    shared = [ray.put((X, y)) for X, y in ((X, y), (X[:WARM_UP_ROWS], y[:WARM_UP_ROWS]))]
    for way in 3 * list(WAYS):  # compiles, or reads what is compiled, in every worker
        fitted(way, arguments.model, settings, X[:WARM_UP_ROWS], y[:WARM_UP_ROWS])
    for _ in range(arguments.repeat):
        for way in WAYS:
            model, *taken = fitted(way, arguments.model, settings, X, y)
            digests.add(_digest(model))
            seconds[way].append((taken[0], taken[1]))
            print(f"{way}: {taken[0]:.2f} s, of which {taken[1]:.2f} serial", flush=True)
        seconds[APART].append((both_at_once(arguments.model, settings, shared) / 2, float("nan")))
        print(f"{APART}: {seconds[APART][-1][0]:.2f} s", flush=True)
    assert len(digests) == 1, "the models differ"
    best = {way: min(found) for way, found in seconds.items()}
    one = best["1 thread"][0]
    rows = [
        [way, number(taken), f"{one / taken:.2f}", "" if np.isnan(serial) else f"{100 * serial / one:.1f}"]
        for way, (taken, serial) in best.items()
    ]
    print(table([f"{arguments.model}, {arguments.suite}", "s", "speed-up", "serial, % of one thread"], rows))
    keep(f"cluster-{arguments.model}-{arguments.suite}", {"settings": settings, "rows": X.shape[0], "seconds": seconds})


def fitted(way: str, name: str, settings: dict[str, Any], X: Any, y: Any) -> tuple[Any, float, float]:
    """A model, the seconds of its training, and how many of them were not spent waiting for nodes."""
    threads, workers = WAYS[way]
    model, waiting = treemax.MODELS[name](**settings, n_jobs=threads, verbose=0), Waiting()
    with ExitStack() as stack:
        if workers:
            stack.enter_context(treemax.cluster(workers=workers))
        stack.enter_context(waiting.measured())
        start = time.perf_counter()
        model.fit(X, y)
        taken = time.perf_counter() - start
    return model, taken, taken - waiting.seconds


def both_at_once(name: str, settings: dict[str, Any], shared: list[Any]) -> float:
    """The seconds of a training in a process while another goes on in a second one."""
    task = ray.remote(num_cpus=1)(_seconds)
    return float(np.mean(ray.get([task.remote(name, settings, *shared) for _ in range(2)])))


def _seconds(name: str, settings: dict[str, Any], data: tuple[Any, Any], small: tuple[Any, Any]) -> float:
    model = treemax.MODELS[name](**settings, n_jobs=1, verbose=0)
    model.fit(*small)
    start = time.perf_counter()
    model.fit(*data)
    return time.perf_counter() - start


def _labels(data: Data) -> Any:
    ids, starts = data.labels("train")
    if (np.diff(starts) == 1).all():
        return ids
    return [ids[a:b].tolist() for a, b in zip(starts[:-1].tolist(), starts[1:].tolist())]


def _digest(model: Any) -> str:
    model.set_params(n_jobs=None)
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model")
        return hashlib.sha256((Path(folder) / "model").read_bytes()).hexdigest()


def _number(text: str) -> Any:
    try:
        return int(text)
    except ValueError:
        return float(text)


if __name__ == "__main__":
    main()
