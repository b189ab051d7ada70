"""Threads: their number and order, errors and interruptions, and the restored number of threads of BLAS."""

from __future__ import annotations

import _thread
import ctypes
import signal
import threading
import time

import numba
import numpy as np
import pytest
from threadpoolctl import threadpool_info

from treemax.parallel import threads
from treemax.parallel.threads import delayed_interrupt, for_each, interruptible, one_blas_thread, run_all, thread_count


def test_thread_count_means_what_scikit_learn_means(monkeypatch):
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    assert [thread_count(n) for n in (None, 1, 3, np.int64(2), -1, -2, -8, -99)] == [1, 1, 3, 2, 8, 7, 1, 1]
    assert all(type(thread_count(n)) is int for n in (np.int8(2), np.int8(-1)))


@pytest.mark.parametrize("n_jobs", [0, True, 1.0, "2", [1]])
def test_what_is_no_number_of_threads_is_refused(n_jobs):
    with pytest.raises(ValueError, match="n_jobs must be None or an integer other than zero, got"):
        thread_count(n_jobs)


@pytest.mark.parametrize("n_threads", [1, 2, 5])
@pytest.mark.parametrize("n_pieces", [0, 1, 7, 50])
def test_every_piece_is_worked_on_once(n_threads, n_pieces):
    done, lock = [], threading.Lock()

    def work(piece):
        with lock:
            done.append(piece)

    yielded = list(for_each(iter(range(n_pieces)), work, n_threads))
    assert sorted(done) == sorted(yielded) == list(range(n_pieces))
    if n_threads == 1:
        assert done == yielded == list(range(n_pieces))


def test_one_thread_is_the_callers_own():
    names = []
    list(for_each(range(3), lambda _: names.append(threading.current_thread()), 1))
    assert set(names) == {threading.current_thread()}


def test_pieces_are_taken_only_as_they_are_needed():
    taken = []

    def pieces():
        for piece in range(1000):
            taken.append(piece)
            yield piece

    running = for_each(pieces(), lambda piece: None, 2)
    next(running)
    assert len(taken) <= 4
    running.close()


@pytest.mark.parametrize("n_threads", [1, 3])
def test_an_error_comes_out_and_the_rest_is_left_undone(n_threads):
    done = []

    def work(piece):
        if piece == 3:
            raise ValueError("piece 3")
        time.sleep(0.001)
        done.append(piece)

    with pytest.raises(ValueError, match="piece 3"):
        list(for_each(range(1000), work, n_threads))
    assert len(done) < 20


def test_closing_waits_for_what_is_under_way_and_starts_nothing_more():
    started, finished = [], []

    def work(piece):
        started.append(piece)
        time.sleep(0.02)
        finished.append(piece)

    running = for_each(range(100), work, 2)
    next(running)
    running.close()
    assert sorted(started) == sorted(finished) and len(started) <= 5
    count = len(started)
    time.sleep(0.05)
    assert len(started) == count


def test_control_c_during_a_kernel_that_returns_arrays():
    """Numba makes a SystemError of it, which nobody would take for Ctrl-C."""
    press = ctypes.CDLL(None)["raise"]
    press.argtypes, press.restype = [ctypes.c_int], ctypes.c_int

    @numba.njit(nogil=True)
    def kernel(key):
        press(key)
        return np.zeros(3), np.zeros(4)

    kernel(0)  # compiled, and nothing pressed
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for _ in range(3):
            with pytest.raises(KeyboardInterrupt):
                list(for_each([int(signal.SIGINT)], kernel, 1))
            with pytest.raises(KeyboardInterrupt):
                heard(lambda: kernel(int(signal.SIGINT)))
    finally:
        signal.signal(signal.SIGINT, before)


def heard(work):
    with interruptible():
        work()


def test_other_system_errors_stay_what_they_are():
    def wrong():
        raise SystemError("something else") from ValueError()

    with pytest.raises(SystemError, match="something else"):
        heard(wrong)


def blas_threads() -> list[int]:
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


def test_blas_is_held_to_one_thread_and_put_back():
    before = blas_threads()
    with one_blas_thread():
        assert set(blas_threads()) <= {1}
        with one_blas_thread():
            assert set(blas_threads()) <= {1}
        assert set(blas_threads()) <= {1}
    assert blas_threads() == before
    with pytest.raises(RuntimeError), one_blas_thread():
        raise RuntimeError
    assert blas_threads() == before


def test_blas_is_put_back_by_the_last_of_many_threads():
    before, seen = blas_threads(), []

    def work(_):
        with one_blas_thread():
            time.sleep(0.002)
            seen.extend(blas_threads())

    list(for_each(range(40), work, 8))
    assert set(seen) <= {1} and blas_threads() == before


@pytest.fixture
def interruptible_process():
    """Ctrl-C raises KeyboardInterrupt, also where the tests run in the background of a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible_process")
def test_control_c_is_answered_after_what_must_not_be_left_half_done():
    reached = []
    with pytest.raises(KeyboardInterrupt), delayed_interrupt():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        reached.append("the end")
    assert reached == ["the end"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("interruptible_process")
def test_control_c_does_not_reach_the_queues_of_threads():
    """It comes from another thread while this one waits in Python's own locks, and again while threads are awaited."""

    def work(piece):
        for _ in range(20):
            _thread.interrupt_main()
            time.sleep(0.001)

    with pytest.raises(KeyboardInterrupt):
        run_all(range(50), work, 2)
    assert threading.active_count() < 50
