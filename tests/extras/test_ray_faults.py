"""Fault tolerance on Ray clusters of several raylets on this machine.

`_check_workers` is called with a cluster that fails in ways that a real one cannot be made to.
"""

import socket
import time
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest

ray = pytest.importorskip("ray")
from ray.cluster_utils import Cluster  # noqa: E402

import treemax  # noqa: E402
from tests.parallel.node_by_node import MODELS, clone, model_bytes, problem  # noqa: E402
from treemax.parallel import ray_cluster  # noqa: E402
from treemax.parallel.pools import Table, using  # noqa: E402


@pytest.fixture
def machines():
    """A cluster of three raylets with one core each; ours is the first."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    others = [cluster.add_node(num_cpus=1) for _ in range(2)]
    cluster.wait_for_nodes()
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster, others
    ray.shutdown()
    cluster.shutdown()


@pytest.mark.parametrize("number", [0, 2])
def test_a_machine_that_dies_in_the_middle_costs_time_only(number, machines, tmp_path, monkeypatch):
    cluster, others = machines
    X, y = problem(n_rows=900, sparse=number == 0)
    expected = model_bytes(clone(MODELS[number]).fit(X, y), tmp_path / "threads")
    run, seen = ray_cluster._RayExecutor.run, []

    def watched(self, work, common, problems, keep=False):
        for found in run(self, work, common, problems, keep):
            seen.append(found[0])
            if len(seen) == 3:
                cluster.remove_node(others[0], allow_graceful=False)
            yield found

    monkeypatch.setattr(ray_cluster._RayExecutor, "run", watched)
    with using(ray_cluster.RayPool(ray, 3, 20_000, least_bytes=0, ahead=8)):
        assert model_bytes(clone(MODELS[number]).fit(X, y), tmp_path / "ray") == expected
    assert len(seen) > 6
    wait_until_alive(2)


def wait_until_alive(n_machines):
    """Ray takes a while to notice."""
    for _ in range(600):
        if sum(node["Alive"] for node in ray.nodes()) == n_machines:
            return
        time.sleep(0.1)
    raise AssertionError(f"of {len(ray.nodes())} machines not {n_machines} are alive")


class Rows(NamedTuple):
    rows: np.ndarray


def where(table, rows, common, own):
    time.sleep(0.2)
    place = ray.get_runtime_context().get_node_id()
    return np.asarray(table.rows)[rows].sum(axis=0), np.frombuffer(place.encode(), np.uint8)


def test_a_machine_that_has_work_under_way_dies(machines):
    cluster, others = machines
    table = Table(np.arange(80, dtype=np.float32).reshape(40, 2))
    executor = ray_cluster.RayPool(ray, 3, least_bytes=0).share(table)
    sums, places, dead = {}, {}, None
    for number, (total, place) in executor.run(where, None, [Rows(np.array([i])) for i in range(40)]):
        sums[number], places[number] = total.tolist(), bytes(place).decode()
        for node in others:
            if dead is None and node.node_id == places[number]:
                cluster.remove_node(node, allow_graceful=False)
                dead, before = node.node_id, len(sums)
    assert sums == {i: [2 * i, 2 * i + 1] for i in range(40)}
    assert dead is not None and before < 30, "it died in the middle"
    wait_until_alive(2)


def test_an_address_where_nobody_is():
    assert not ray.is_initialized()
    with socket.socket() as taken:  # a port that is somebody's, who does not listen
        taken.bind(("127.0.0.1", 0))
        for address in ("auto", f"127.0.0.1:{taken.getsockname()[1]}", "127.0.0.1:99999"):
            with pytest.raises(ConnectionError, match="ray start --head"), treemax.cluster(address):
                pass


def test_bad_arguments():
    for address in ("", None, 3):
        with pytest.raises(ValueError, match="address must be"), treemax.cluster(address):
            pass
    with pytest.raises(ValueError, match="Ray does not accept the address 'nonsense': "), treemax.cluster("nonsense"):
        pass
    with pytest.raises(ValueError, match="workers"), treemax.cluster("local", workers=0):
        pass


def test_workers_without_treemax_or_with_another_version(monkeypatch):
    missing = ray.exceptions.RayTaskError("version", "Traceback\nModuleNotFoundError: No module named 'treemax'", None)
    monkeypatch.setattr(ray, "remote", lambda function: SimpleNamespace(remote=lambda: "task"))
    for get, message in (
        (failing(missing), r"cannot import Treemax \(ModuleNotFoundError: No module named 'treemax'\)\. Install"),
        (lambda tasks: ["0.0.1"] * len(tasks), r"The workers have Treemax 0\.0\.1, this process has"),
    ):
        monkeypatch.setattr(ray, "get", get)
        with pytest.raises(ConnectionError, match=message):
            ray_cluster._check_workers(ray, 2)


def failing(error):
    def fail(tasks):
        raise error

    return fail
