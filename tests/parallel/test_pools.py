"""Executors for the problems of nodes: models do not depend on the executor or on the parts of the table.

`_result` is given an error of a worker that a test cannot provoke reliably.
"""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import treemax
from tests.parallel.node_by_node import MODELS, clone, model_bytes, problem
from treemax.inputs.rows import SparseRows, as_rows
from treemax.parallel.pools import Table, Threads, all_results, cluster_in_use, gathered, pool_for, using
from treemax.parallel.ray_cluster import _result, batches


class PartedPool:
    """A cluster without a cluster: the table in parts, every problem with its own rows only, the last one first."""

    def __init__(self, n_parts):
        self.n_parts = n_parts
        self.seen = []

    def share(self, table):
        starts = np.linspace(0, len(table), self.n_parts + 1).astype(np.int64)
        parts = [table.part(a, b) for a, b in zip(starts[:-1].tolist(), starts[1:].tolist())]
        return PartitionedExecutor(self, parts, starts[:-1])


class PartitionedExecutor:
    def __init__(self, pool, parts, starts):
        self.pool, self.parts, self.starts = pool, parts, starts

    def run(self, work, common, problems, keep=False):
        for number in reversed(range(len(problems))):
            rows = problems[number].rows
            self.pool.seen.append(work.__name__)
            own = gathered(self.parts, self.starts, rows, [])
            yield number, work(own, np.arange(len(rows), dtype=rows.dtype), common, problems[number])


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("number", range(len(MODELS)))
def test_the_model_is_the_same_in_threads_and_in_parts(number, sparse, tmp_path):
    X, y = problem(sparse=sparse)
    make = MODELS[number]
    expected = model_bytes(clone(make).fit(X, y), tmp_path / "one")
    assert (
        model_bytes(clone(make).set_params(n_jobs=3).fit(X, y).set_params(n_jobs=None), tmp_path / "three") == expected
    )
    for n_parts in (1, 3, 7):
        pool = PartedPool(n_parts)
        with using(pool):
            assert cluster_in_use()
            assert model_bytes(clone(make).fit(X, y), tmp_path / "parts") == expected
        assert "train_node" in pool.seen or {"train_leaf", "train_plane"} <= set(pool.seen)
    assert not cluster_in_use()


def test_a_model_that_is_not_trained_node_by_node_says_so():
    X, y = problem()
    with using(PartedPool(1)), pytest.raises(ValueError, match="OneVsAll cannot train on a cluster"):
        treemax.OneVsAll(verbose=0).fit(X, y)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_rows_are_gathered_from_parts_in_the_order_asked_for(data):
    n, width = data.draw(st.integers(1, 30)), data.draw(st.integers(1, 6))
    random = np.random.RandomState(data.draw(st.integers(0, 1000)))
    X = (random.normal(size=(n, width)) * (random.uniform(size=(n, width)) < 0.5)).astype(np.float32)
    names = random.randint(100, size=n)
    table = Table(as_rows(sp.csr_matrix(X)) if data.draw(st.booleans()) else as_rows(X), {"names": names})
    starts = np.linspace(0, n, data.draw(st.integers(1, n)) + 1).astype(np.int64)
    parts = [table.part(a, b) for a, b in zip(starts[:-1].tolist(), starts[1:].tolist())]
    chosen = np.array(data.draw(st.lists(st.integers(0, n - 1), max_size=40)), np.int64)
    own = gathered(parts, starts[:-1], chosen, [])
    assert len(own) == len(chosen)
    dense = own.rows.to_scipy().toarray() if isinstance(own.rows, SparseRows) else own.rows
    np.testing.assert_array_equal(dense, X[chosen])
    np.testing.assert_array_equal(own.columns["names"], names[chosen])
    needed = {int(np.searchsorted(starts[:-1], row, side="right")) - 1 for row in chosen} or {0}
    few = [part if number in needed else None for number, part in enumerate(parts)]
    again = gathered(few, starts[:-1], chosen, [])
    np.testing.assert_array_equal(again.columns["names"], names[chosen])


def test_results_come_in_the_order_of_the_problems():
    class Sum:
        def __init__(self, rows):
            self.rows = np.array(rows)

    def add(table, rows, common, own):
        return (np.asarray(table.rows)[rows].sum(axis=0) + common,)

    table = Table(np.arange(6, dtype=np.float32).reshape(3, 2))
    found = all_results(Threads(2).share(table), add, 10.0, [Sum([0]), Sum([1, 2]), Sum([0, 2])])
    assert [own.tolist() for (own,) in found] == [[10, 11], [16, 18], [14, 16]]


def test_an_error_in_a_problem_is_the_caller_s():
    def fail(table, rows, common, own):
        raise ZeroDivisionError("here")

    class Nothing:
        rows = np.zeros(0, np.int64)

    with pytest.raises(ZeroDivisionError, match="here"):
        all_results(Threads(2).share(Table(np.zeros((1, 1), np.float32))), fail, None, [Nothing()] * 5)


def test_without_a_cluster_there_are_threads():
    assert pool_for(3) == Threads(3)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=200), st.integers(1, 8), st.integers(0, 5000))
def test_batches_have_every_problem_once_and_in_order(sizes, workers, least):
    found = batches(sizes, workers, least)
    assert [number for batch in found for number in batch] == list(range(len(sizes)))
    left = sum(sizes)
    most = max(left / (16 * workers), 16 * least)
    for batch in found:
        own, following = [sizes[number] for number in batch], sizes[batch[-1] + 1 :]
        share = min(most, max(least, left / (2 * workers)))
        assert len(batch) == 1 or sum(own) <= share
        assert not following or sum(own) + following[0] > share, "no batch is smaller than it must be"
        left -= sum(own)


class RayThatFails:
    """As much of Ray as an error takes."""

    class exceptions:
        class RayError(Exception):
            pass

        class RayTaskError(RayError):
            cause: Exception

    def __init__(self, error, cause=None):
        self.error = error
        self.error.cause = cause

    def get(self, reference):
        raise self.error


@pytest.mark.parametrize(
    ("cause", "kind", "said"),
    [
        (ValueError("rows must be finite"), ValueError, "^rows must be finite$"),
        (MemoryError("no room"), MemoryError, "^no room$"),
        (AttributeError("old version\nof it"), ConnectionError, r"failed \(AttributeError: old version\)\.$"),
    ],
)
def test_errors_of_tasks_come_without_the_traceback_of_the_worker(cause, kind, said):
    error = RayThatFails.exceptions.RayTaskError("Traceback (most recent call last):\n  File ...")
    with pytest.raises(kind, match=said):
        _result(RayThatFails(error, cause), None)


def test_errors_of_the_cluster_are_one_line():
    error = RayThatFails.exceptions.RayError("the node died\nTraceback ...")
    with pytest.raises(ConnectionError, match=r"^The cluster has failed \(the node died\)\.$"):
        _result(RayThatFails(error), None)
