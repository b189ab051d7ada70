"""The experiment with two threads: what it computes from the times of pieces of work, and a training."""

from __future__ import annotations

import doctest
import json
import time

import numpy as np

from benchmarks.experiments import two_threads
from benchmarks.experiments.two_threads import Case, Run, TimedPool, Trainer, makespan, quiet, serial
from benchmarks.harness import suites
from treemax.models import MODELS


def test_examples_in_the_docstrings_hold():
    assert doctest.testmod(two_threads).failed == 0


def test_every_model_is_measured():
    assert {case.model for case in two_threads.CASES} == {*MODELS, two_threads.LANGUAGE_MODEL}


def test_the_time_on_a_quiet_machine_has_the_serial_part_and_every_stage():
    run = Run(wall=9.0, processor=10.0, stages=[[2.0, 2.0], [3.0, 1.0, 1.0]], end=0.0, hits=1.0)
    assert serial(run) == 1.0 and quiet(run) == 1.0 + 2.0 + 3.0


def test_a_makespan_is_at_least_half_of_the_work_and_its_longest_piece():
    random = np.random.default_rng(0)
    for n in (1, 2, 7, 30):
        pieces = random.exponential(size=n).tolist()
        assert max(sum(pieces) / 2, max(pieces)) <= makespan(pieces) + 1e-12 <= sum(pieces) + 1e-9


def test_a_pool_notes_the_processor_time_of_each_piece():
    TimedPool.stages.clear()

    def work(seconds):
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            pass

    with TimedPool(2) as pool:
        list(pool.map(work, [0.05, 0.0]))
    ((long, short),) = TimedPool.stages
    assert long >= 0.05 > short


def test_a_model_is_trained_and_judged(tmp_path, monkeypatch):
    random = np.random.default_rng(0)
    labels = random.integers(0, 6, 300)
    X = (np.eye(6)[labels] + 0.1 * random.standard_normal((300, 6))).astype(np.float32)
    arrays = {}
    for part, own in (("train", slice(200)), ("test", slice(200, 300))):
        arrays[f"X_{part}"], arrays[f"labels_{part}"] = X[own], labels[own]
        arrays[f"label_starts_{part}"] = np.arange(len(labels[own]) + 1)
    np.savez(tmp_path / "data.npz", **arrays)
    facts = {"features": 6, "labels": 6, "multi_label": False, "sparse": False, "text": False}
    (tmp_path / "facts.json").write_text(json.dumps(facts))
    monkeypatch.setattr(two_threads, "prepared", lambda *_, **__: tmp_path)
    trainer = Trainer(Case("one-vs-all", next(iter(suites.SUITES))))
    for jobs in (1, 2):
        model = trainer.train(jobs)
        assert model.n_jobs == jobs and trainer.hits(model) > 0.9
