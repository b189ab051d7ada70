"""The readers-writer lock of a model that learns while other threads predict with it and save it.

Its state changes only by single stores and by locks written in C, never by a `Condition`: Ctrl-C may raise
`KeyboardInterrupt` between any two Python calls, even within the methods of a lock written in Python, and must not
leave a model locked forever.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable
from threading import get_ident
from typing import Any, TypeVar

Result = TypeVar("Result")

_POLL_SECONDS = 0.05  # interval at which a writer checks for readers, should a signal be missed
_YIELD_SECONDS = 0.0001  # time that a writer sleeps while waiting threads acquire the lock


class ModelLock:
    """A fair readers-writer lock.

    `read` is shared. `snapshot` is a shared lock for longer work, such as writing a file: writers wait, readers do
    not. `write` is exclusive. Each takes a function and its arguments. Threads that waited during a write enter
    before the next one, so that neither readers nor writers starve.

    `read` and `snapshot` may be nested within any of the three, and `write` within `write`.

    >>> lock = ModelLock()
    >>> lock.read(lock.read, len, "two")
    3
    >>> lock.write(lock.snapshot, max, 1, 2)
    2
    """

    def __init__(self) -> None:
        self.training = threading.RLock()  # serialises calls that write several times
        self._readers: dict[int, int] = {}  # thread -> nesting depth
        self._snapshots: dict[int, int] = {}
        self._waiting: set[int] = set()
        self._writer = 0  # the thread that writes, or waits for readers to leave
        self._make_locks()
        number = id(self)
        _MODEL_LOCKS[number] = weakref.ref(self, lambda _: _MODEL_LOCKS.pop(number, None))

    def _make_locks(self) -> None:
        self._turn = threading.Lock()  # held during a write; others wait for its end by acquiring it
        self._left = threading.Lock()  # released when a thread leaves
        self._left.acquire()

    @property
    def in_snapshot(self) -> bool:
        """Whether the calling thread is inside `snapshot`."""
        return get_ident() in self._snapshots

    def read(self, work: Callable[..., Result], *args: Any, **options: Any) -> Result:
        """Call `work` with the shared lock."""
        me, readers = get_ident(), self._readers
        depth = readers.get(me, 0)
        # Before checking for a writer, which announces itself before it checks for readers.
        readers[me] = depth + 1
        try:
            if self._writer and not depth:
                self._wait_to_read(me)
            return work(*args, **options)
        finally:
            if depth:
                readers[me] = depth
            else:
                readers.pop(me, None)
                if self._writer:
                    self._signal_exit()

    def snapshot(self, work: Callable[..., Result], *args: Any, **options: Any) -> Result:
        """Call `work` with the shared lock, however long it takes; readers do not wait."""
        me, snapshots = get_ident(), self._snapshots
        depth = snapshots.get(me, 0)
        try:
            if depth or me in self._readers or self._writer == me:
                snapshots[me] = depth + 1
            else:
                self._wait_for_snapshot(me)
            return work(*args, **options)
        finally:
            if depth:
                snapshots[me] = depth
            else:
                snapshots.pop(me, None)
                self._signal_exit()

    def write(self, work: Callable[..., Result], *args: Any, **options: Any) -> Result:
        """Call `work` with the exclusive lock; it should be short."""
        me = get_ident()
        if self._writer == me:
            return work(*args, **options)
        self._wait_for_earlier_threads()
        try:
            self._waiting.add(me)
            with self._turn:
                try:
                    self._waiting.discard(me)
                    self._wait_for(self._snapshots, me)
                    self._writer = me
                    self._wait_for(self._readers, me)
                    return work(*args, **options)
                finally:
                    self._writer = 0
        finally:
            self._waiting.discard(me)

    def _wait_to_read(self, me: int) -> None:
        try:
            while self._writer not in (0, me):
                self._waiting.add(me)
                self._readers.pop(me, None)
                self._signal_exit()
                with self._turn:
                    pass
                self._readers[me] = 1
        finally:
            self._waiting.discard(me)

    def _wait_for_snapshot(self, me: int) -> None:
        try:
            self._waiting.add(me)
            with self._turn:
                self._snapshots[me] = 1
        finally:
            self._waiting.discard(me)

    def _wait_for_earlier_threads(self) -> None:
        """Wait until the threads that were waiting when the last write ended have entered."""
        if self._waiting:
            early = self._waiting - {get_ident()}
            while not early.isdisjoint(self._waiting):
                time.sleep(_YIELD_SECONDS)

    def _wait_for(self, others: dict[int, int], me: int) -> None:
        while len(others) > (me in others):
            self._left.acquire(timeout=_POLL_SECONDS)

    def _signal_exit(self) -> None:
        with contextlib.suppress(RuntimeError):  # already released
            self._left.release()

    # --- forks ------------------------------------------------------------------------------------------

    def _before_fork(self) -> bool:
        """Acquire the shared lock, so that the child gets a consistent model; return whether it was acquired."""
        me = get_ident()
        if me in self._snapshots or me in self._readers or self._writer == me:
            return False
        self._wait_for_snapshot(me)
        return True

    def _after_fork(self, in_child: bool, acquired: bool) -> None:
        me = get_ident()
        if acquired:
            self._snapshots.pop(me, None)
            self._signal_exit()
        if not in_child:
            return
        for holders in (self._readers, self._snapshots):  # only the forking thread survives
            mine = holders.get(me)
            holders.clear()
            if mine:
                holders[me] = mine
        self._waiting.clear()
        if self._writer != me:
            self._writer = 0
            self._make_locks()
            self.training = threading.RLock()


_MODEL_LOCKS: dict[int, weakref.ref[ModelLock]] = {}
_PLAIN_LOCKS: list[threading.Lock] = []
_forking: list[tuple[ModelLock, bool]] = []


def fork_safe(lock: threading.Lock) -> threading.Lock:
    """Register a lock that is acquired during a fork, so that it is free in the child."""
    _PLAIN_LOCKS.append(lock)
    return lock


def _before_fork() -> None:
    alive = [lock for lock in (reference() for reference in list(_MODEL_LOCKS.values())) if lock is not None]
    _forking[:] = [(lock, lock._before_fork()) for lock in alive]
    for lock in _PLAIN_LOCKS:  # after the others: a reader may hold one of these
        lock.acquire()


def _after_fork(in_child: bool) -> None:
    for lock in _PLAIN_LOCKS:
        lock.release()
    for model_lock, acquired in _forking:
        model_lock._after_fork(in_child, acquired)
    _forking.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=lambda: _after_fork(False), after_in_child=lambda: _after_fork(True)
    )
