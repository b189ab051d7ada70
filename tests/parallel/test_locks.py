"""The lock of online models: readers and writers, their order, errors, Ctrl-C and forks.

The counters of the lock are read to wait until other threads are inside it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from treemax.parallel.locks import ModelLock, fork_safe
from treemax.parallel.threads import for_each


def started(work, *args) -> threading.Thread:
    thread = threading.Thread(target=work, args=args, daemon=True)
    thread.start()
    return thread


def ended(thread: threading.Thread) -> bool:
    thread.join(30)
    return not thread.is_alive()


def until(condition) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_writes_are_exclusive_and_reads_are_shared():
    lock, inside, seen = ModelLock(), {"read": 0, "snapshot": 0, "write": 0}, []

    def work(kind):
        inside[kind] += 1
        seen.append(dict(inside))
        time.sleep(0.001)
        inside[kind] -= 1

    kinds = ["read", "read", "snapshot", "write", "read"] * 20
    list(for_each(kinds, lambda kind: getattr(lock, kind)(work, kind), 8))
    assert len(seen) == 100
    assert all(state["write"] == 0 or sum(state.values()) == 1 for state in seen)
    assert max(state["read"] + state["snapshot"] for state in seen) > 1


def test_readers_do_not_wait_for_a_writer_that_waits_for_a_snapshot():
    lock, leave, order = ModelLock(), threading.Event(), []
    saver = started(lock.snapshot, leave.wait)
    until(lambda: lock._snapshots)
    learner = started(lock.write, order.append, "learned")
    until(lambda: lock._turn.locked())
    assert lock.read(lambda: "answer") == "answer" and not order
    leave.set()
    assert ended(saver) and ended(learner) and order == ["learned"]


def test_writers_and_readers_take_turns():
    lock, leave, order = ModelLock(), threading.Event(), []
    first = started(lock.read, leave.wait)
    until(lambda: lock._readers)

    def learn():
        for number in range(2):
            lock.write(order.append, f"write {number}")

    learner = started(learn)
    until(lambda: lock._writer)
    asker = started(lock.read, order.append, "read")
    until(lambda: lock._waiting)
    leave.set()
    assert all(map(ended, (first, learner, asker))) and order == ["write 0", "read", "write 1"]


@pytest.mark.parametrize("kind", ["read", "snapshot"])
def test_neither_readers_nor_writers_starve(kind):
    lock, counts, stop = ModelLock(), {"write": 0, kind: 0}, threading.Event()

    def count(name):
        counts[name] += 1

    def go_on(name):
        while not stop.is_set():
            getattr(lock, name)(count, name)

    threads = [started(go_on, name) for name in ("write", kind, kind, kind)]
    until(lambda: min(counts.values()) > 50)
    stop.set()
    assert all(map(ended, threads))


def test_calls_within_calls():
    lock, leave = ModelLock(), threading.Event()

    def read_within():
        until(lambda: lock._writer or lock._turn.locked())  # a learner is waiting for this thread
        return lock.read(lambda: lock.snapshot(lambda: lock.in_snapshot))

    for outer in (lock.read, lock.snapshot):
        learner = threading.Thread(target=lock.write, args=(leave.is_set,), daemon=True)

        def inside(learner=learner):
            learner.start()
            return read_within()

        assert outer(inside) and ended(learner)
    assert lock.write(lambda: lock.write(lambda: lock.read(lambda: lock.snapshot(lambda: 7)))) == 7
    assert not lock.in_snapshot


@pytest.mark.parametrize("kind", ["read", "snapshot", "write"])
def test_a_lock_is_free_again_after_an_error(kind):
    lock = ModelLock()
    with pytest.raises(ZeroDivisionError):
        getattr(lock, kind)(lambda: 1 / 0)
    others = [started(getattr(lock, other), int) for other in ("read", "snapshot", "write")]
    assert all(map(ended, others))


CONTROL_C = """
import random, signal, sys, threading, time
from treemax.parallel.locks import ModelLock

lock, stop, counts = ModelLock(), threading.Event(), [0, 0, 0]

def go_on(kind, place):
    while not stop.is_set():
        getattr(lock, kind)(time.sleep, 0.0001)
        counts[place] += 1

threads = [threading.Thread(target=go_on, args=(kind, i), daemon=True) for i, kind in enumerate(["read", "snapshot", "write"])]
for thread in threads:
    thread.start()
interrupted, end = 0, time.monotonic() + 1.5
def press(signum, frame):
    raise KeyboardInterrupt
signal.signal(signal.SIGALRM, press)
while time.monotonic() < end:
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 2e-3))
        while True:
            for kind in ("read", "snapshot", "write"):
                getattr(lock, kind)(int)
    except KeyboardInterrupt:
        interrupted += 1
signal.setitimer(signal.ITIMER_REAL, 0)
before = list(counts)
until = time.monotonic() + 30
while min(new - old for new, old in zip(counts, before)) < 3:
    assert time.monotonic() < until, "a thread is locked out"
    time.sleep(0.001)
stop.set()
for thread in threads:
    thread.join(30)
    assert not thread.is_alive()
assert interrupted > 20
"""


@pytest.mark.slow
def test_control_c_at_any_moment_leaves_nobody_locked_out():
    done = subprocess.run([sys.executable, "-c", CONTROL_C], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_child_finds_the_model_at_rest_and_the_locks_free():
    lock, plain, stop, state = ModelLock(), fork_safe(threading.Lock()), threading.Event(), [0, 0]

    def change():
        state[0] += 1
        time.sleep(0.0005)
        state[1] += 1

    def go_on(kind, work):
        while not stop.is_set():
            getattr(lock, kind)(work)

    def hold():
        while not stop.is_set():
            with plain:
                time.sleep(0.0005)

    work = [("write", change), ("read", time.monotonic), ("snapshot", lambda: time.sleep(0.0005))]
    threads = [started(go_on, *own) for own in work] + [started(hold)]
    try:
        for _ in range(20):
            child = os.fork()
            if child == 0:
                signal.alarm(20)
                whole = state[0] == state[1] and plain.acquire(blocking=False)
                fine = whole and lock.write(lambda: lock.read(lambda: lock.snapshot(lambda: True)))
                os._exit(0 if fine else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
    assert all(map(ended, threads))
