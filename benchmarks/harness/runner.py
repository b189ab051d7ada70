"""Runs every system, each training in a fresh process, turn and turn about."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.accuracy import (
    accuracies,
    correct,
    depth_of,
    expected_error,
    inverse_propensities,
    micro_f1,
    row_counts,
)
from benchmarks.harness.environments import EnvironmentFailed, python_of
from benchmarks.harness.measure import Data
from benchmarks.harness.systems import System

MEASURE = Path(__file__).with_name("measure.py")
TOP = 5
THREAD_SETTINGS = ("OMP", "OPENBLAS", "MKL", "NUMBA", "RAYON", "VECLIB_MAXIMUM")


class RunFailed(Exception):
    """A process of a system crashed, gave up or took too long."""


@dataclass
class Outcome:
    """What the runs of one system gave: one dictionary of figures a run, and the error that ended them, if any."""

    system: System
    runs: list[dict[str, Any]] = field(default_factory=list)
    error: str | None = None


def run_all(
    systems: Sequence[System], data: Path, repeat: int = 1, threads: int = 1, timeout: float = 3600
) -> list[Outcome]:
    """Train and measure each system `repeat` times, in rounds, so that a slow spell of the machine hits all alike."""
    outcomes = [Outcome(system) for system in systems]
    judge = Judge(Data(data))
    for round_number in range(repeat):
        for outcome in outcomes:
            if outcome.error:
                continue
            label = f"[{round_number + 1}/{repeat}] {outcome.system.name}"
            print(f"{label} ...", file=sys.stderr, flush=True)
            try:
                outcome.runs.append(run_once(outcome.system, data, judge, threads, timeout))
            except (RunFailed, EnvironmentFailed) as failure:
                outcome.error = str(failure)
                print(f"{label}: {failure}", file=sys.stderr, flush=True)
    return outcomes


class Judge:
    """Knows the true labels of the test rows."""

    def __init__(self, data: Data) -> None:
        self.labels, self.starts = data.labels("test")
        self.weights = inverse_propensities(data.labels("train")[0], data.n_labels, data.n_rows("train"))
        self.multi_label, self.dense = data.multi_label, not data.sparse

    def figures(self, answers: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """The figures of what `measure.predict` stored; under "hits", what each row counts, a digit a row."""
        ranked, true = answers["labels"], (self.labels, self.starts)
        found: dict[str, Any] = accuracies(ranked, *true, self.weights, self.multi_label, self.dense)
        hits = correct(ranked, *true, len(self.weights))
        if "scores" in answers:
            found["ECE"] = expected_error(answers["scores"], hits[:, 0])
        if "chosen" in answers:
            chosen, starts = answers["chosen"], answers["chosen_starts"]
            found["micro-F1"] = micro_f1(chosen, starts, *true, len(self.weights))
            found["empty"] = float((np.diff(starts) == 0).mean())
        counts = row_counts(hits, depth_of(ranked), self.dense)
        found["hits"] = {name: "".join(map(str, count.astype(int))) for name, count in counts.items()}
        return found


def run_once(system: System, data: Path, judge: Judge, threads: int, timeout: float) -> dict[str, Any]:
    """One training and its predictions; the model is thrown away."""
    with tempfile.TemporaryDirectory(dir=data.parent, prefix="run-") as scratch:
        answers, figures = run_stages(system, data, Path(scratch), threads, timeout)
    return judge.figures(answers) | figures


def run_stages(
    system: System, data: Path, scratch: Path, threads: int = 1, timeout: float = 3600
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """What a system predicts, and what was measured; the model stays in the folder `model` of `scratch`."""
    python = python_of(system.environment)
    folder = scratch / "model"
    folder.mkdir()
    predictions = scratch / "predictions.npz"
    job = {
        "driver": str(system.driver),
        "data": str(data),
        "folder": str(folder),
        "predictions": str(predictions),
        "settings": {**system.settings, "threads": threads},
        "k": TOP,
        "cores": cores(threads),
    }
    figures: dict[str, Any] = {}
    for stage in ("prepare", "train", "predict"):
        figures |= run_stage(python, stage, job, scratch, threads, timeout)
    with np.load(predictions, allow_pickle=False) as answers:
        return dict(answers), figures


def cores(threads: int) -> list[int]:
    """The cores to stay on; the last ones, for the first has the machine's own work."""
    if not hasattr(os, "sched_getaffinity"):
        return []
    return sorted(os.sched_getaffinity(0))[-threads:]


def run_stage(
    python: Path, stage: str, job: dict[str, Any], scratch: Path, threads: int, timeout: float
) -> dict[str, Any]:
    """One stage in a process of its own; what it measured, or `RunFailed` with the reason."""
    order, result, log = scratch / "job.json", scratch / f"{stage}.json", scratch / f"{stage}.log"
    order.write_text(json.dumps({**job, "stage": stage, "result": str(result)}))
    environment = {**os.environ, **{f"{name}_NUM_THREADS": str(threads) for name in THREAD_SETTINGS}}
    with log.open("w") as out:
        # -I: nothing from the current folder or the user's own packages gets in.
        process = subprocess.Popen(
            [str(python), "-I", str(MEASURE), str(order)],
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=environment,
            cwd=scratch,
            start_new_session=True,
        )
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise RunFailed(f"{stage}: not done after {timeout:g} s (--timeout)") from None
        finally:
            if process.returncode is None:  # too slow, or the user pressed Ctrl-C: its children go with it
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if code or not result.exists():
        raise RunFailed(f"{stage}: {reason(code, log)}")
    return json.loads(result.read_text())


def reason(code: int, log: Path) -> str:
    """Why a process failed: the last thing it said, or the signal that ended it."""
    if code < 0:
        return f"crashed ({signal.Signals(-code).name})"
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else f"ended with status {code} and no result"
