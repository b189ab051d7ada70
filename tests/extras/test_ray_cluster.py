"""Training on a Ray cluster on this machine: the model is that of threads."""

import os
import signal
import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

ray = pytest.importorskip("ray")
import treemax  # noqa: E402
from tests.parallel.node_by_node import MODELS, clone, model_bytes, problem  # noqa: E402
from treemax.parallel import ray_cluster  # noqa: E402
from treemax.parallel.pools import Table, all_results, pool_for, using  # noqa: E402


@pytest.mark.parametrize("part_bytes", [2**28, 5000])
@pytest.mark.parametrize("number", range(len(MODELS)))
def test_the_model_is_that_of_threads(number, part_bytes, one_machine, tmp_path):
    X, y = problem(sparse=number % 2 == 0)
    expected = model_bytes(clone(MODELS[number]).fit(X, y), tmp_path / "threads")
    with using(ray_cluster.RayPool(ray, 2, part_bytes)):
        assert model_bytes(clone(MODELS[number]).fit(X, y), tmp_path / "ray") == expected


def test_a_connection_that_is_there_is_used_and_left(one_machine, tmp_path):
    X, y = problem()
    expected = model_bytes(clone(MODELS[0]).fit(X, y), tmp_path / "threads")
    with treemax.cluster("auto", workers=1):
        assert model_bytes(clone(MODELS[0]).fit(X, y), tmp_path / "ray") == expected
    assert ray.is_initialized()


class Rows:
    def __init__(self, *rows):
        self.rows = np.array(rows)


def slow_sum(table, rows, common, own):
    time.sleep(common)
    return (np.asarray(table.rows)[rows].sum(axis=0), np.array(os.getpid()))


def broken(table, rows, common, own):
    raise ValueError("row 3 is not a row")


def when(table, rows, common, own):
    start = time.time()
    time.sleep(common)
    return (np.array([start, time.time()]),)


def test_workers_are_a_limit(one_machine):
    with treemax.cluster(workers=1):
        executor = replace(pool_for(1), least_bytes=0).share(Table(np.ones((12, 2), np.float32)))
        found = all_results(executor, when, 0.02, [Rows(i) for i in range(12)])
    spans = sorted(span.tolist() for (span,) in found)
    assert len(spans) == 12
    assert all(one[1] <= other[0] for one, other in pairwise(spans)), "two at a time"


def test_results_do_not_lie_in_the_store(one_machine):
    executor = ray_cluster.RayPool(ray, 2).share(Table(np.ones((4, 2), np.float32)))
    ((found,),) = all_results(executor, when, 0.0, [Rows(0)])
    found[:] = 0  # what lies in the store cannot be changed


def test_an_error_in_a_worker_is_the_caller_s(one_machine):
    executor = ray_cluster.RayPool(ray, 2).share(Table(np.ones((4, 2), np.float32)))
    with pytest.raises(ValueError, match="row 3 is not a row"):
        all_results(executor, broken, None, [Rows(0), Rows(1)])


def test_a_worker_that_is_killed_costs_time_only(one_machine):
    executor = ray_cluster.RayPool(ray, 2, least_bytes=0).share(Table(np.arange(40, dtype=np.float32).reshape(20, 2)))
    problems = [Rows(i) for i in range(20)]
    found, pids = {}, set()
    for number, (total, pid) in executor.run(slow_sum, 0.1, problems):
        found[number] = total.tolist()
        if not pids:
            os.kill(int(pid), signal.SIGKILL)
        pids.add(int(pid))
    assert found == {i: [2 * i, 2 * i + 1] for i in range(20)}
