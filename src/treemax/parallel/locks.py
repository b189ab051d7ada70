"""The lock of a model that learns while other threads ask it and save it.

State that says who is inside changes by single stores and by locks written in C, never by a `Condition`: Ctrl-C may
raise `KeyboardInterrupt` between any two Python calls, also within the methods of a lock written in Python, and must
not leave a model locked for good.
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

_LOOK_AGAIN = 0.05  # seconds after which a learner looks again who is there, should nobody have told it
_GIVE_WAY = 0.0001  # seconds that a learner sleeps while those who waited for it go in


class ModelLock:
    """Lets any number of threads ask a model while one changes it block by block, and others save it.

    `ask` runs together with others who ask. `rest` is for those who need the model as it is for longer, as a file
    is written: learning waits, and asking goes on. `change` runs alone. Each takes a function and its arguments.
    Whoever waited through a change goes in before the next, so that a learner cannot keep the others out, nor they it.

    A thread may call `ask` and `rest` again within any of the three, and `change` within `change`.

    >>> lock = ModelLock()
    >>> lock.ask(lock.ask, len, "two")
    3
    >>> lock.change(lock.rest, max, 1, 2)
    2
    """

    def __init__(self) -> None:
        self.learners = threading.RLock()  # for a call of several changes: such calls take turns
        self._askers: dict[int, int] = {}  # the threads inside, and how often each is
        self._resters: dict[int, int] = {}
        self._waiting: set[int] = set()
        self._changer = 0  # the thread that is alone inside, or waits for askers to leave
        self._make_locks()
        number = id(self)
        _MODEL_LOCKS[number] = weakref.ref(self, lambda _: _MODEL_LOCKS.pop(number, None))

    def _make_locks(self) -> None:
        self._turn = threading.Lock()  # held during a change; others wait for its end by taking it
        self._left = threading.Lock()  # released when somebody leaves
        self._left.acquire()

    @property
    def is_at_rest(self) -> bool:
        """Whether the calling thread is inside of `rest`."""
        return get_ident() in self._resters

    def ask(self, work: Callable[..., Result], *args: Any, **options: Any) -> Result:
        """Call `work` while nothing changes."""
        me, askers = get_ident(), self._askers
        depth = askers.get(me, 0)
        askers[me] = (
            depth + 1
        )  # first, and then look: a changer says that it comes, and then looks who is here
        try:
            if self._changer and not depth:
                self._wait_to_ask(me)
            return work(*args, **options)
        finally:
            if depth:
                askers[me] = depth
            else:
                askers.pop(me, None)
                if self._changer:
                    self._say_that_one_left()

    def rest(self, work: Callable[..., Result], *args: Any, **options: Any) -> Result:
        """Call `work` while nothing changes, however long it takes; asking goes on."""
        me, resters = get_ident(), self._resters
        depth = resters.get(me, 0)
        try:
            if depth or me in self._askers or self._changer == me:
                resters[me] = depth + 1
            else:
                self._wait_to_rest(me)
            return work(*args, **options)
        finally:
            if depth:
                resters[me] = depth
            else:
                resters.pop(me, None)
                self._say_that_one_left()

    def change(self, work: Callable[..., Result], *args: Any, **options: Any) -> Result:
        """Call `work` alone. It should be short: everybody else waits."""
        me = get_ident()
        if self._changer == me:
            return work(*args, **options)
        self._let_in()
        try:
            self._waiting.add(me)
            with self._turn:
                try:
                    self._waiting.discard(me)
                    self._wait_for(self._resters, me)
                    self._changer = me
                    self._wait_for(self._askers, me)
                    return work(*args, **options)
                finally:
                    self._changer = 0
        finally:
            self._waiting.discard(me)

    def _wait_to_ask(self, me: int) -> None:
        try:
            while self._changer not in (0, me):
                self._waiting.add(me)
                self._askers.pop(me, None)
                self._say_that_one_left()
                with self._turn:
                    pass
                self._askers[me] = 1
        finally:
            self._waiting.discard(me)

    def _wait_to_rest(self, me: int) -> None:
        try:
            self._waiting.add(me)
            with self._turn:
                self._resters[me] = 1
        finally:
            self._waiting.discard(me)

    def _let_in(self) -> None:
        """Wait until those have gone in who waited when the last change ended."""
        if self._waiting:
            early = self._waiting - {get_ident()}
            while not early.isdisjoint(self._waiting):
                time.sleep(_GIVE_WAY)

    def _wait_for(self, others: dict[int, int], me: int) -> None:
        while len(others) > (me in others):
            self._left.acquire(timeout=_LOOK_AGAIN)

    def _say_that_one_left(self) -> None:
        with contextlib.suppress(RuntimeError):  # it was said already
            self._left.release()

    # --- forks ------------------------------------------------------------------------------------------

    def _before_fork(self) -> bool:
        """Have the model at rest, so that the child gets it whole; whether that was not so already."""
        me = get_ident()
        if me in self._resters or me in self._askers or self._changer == me:
            return False
        self._wait_to_rest(me)
        return True

    def _after_fork(self, in_child: bool, was_free: bool) -> None:
        me = get_ident()
        if was_free:
            self._resters.pop(me, None)
            self._say_that_one_left()
        if not in_child:
            return
        for holders in (self._askers, self._resters):  # only the thread that forked lives on
            mine = holders.get(me)
            holders.clear()
            if mine:
                holders[me] = mine
        self._waiting.clear()
        if self._changer != me:
            self._changer = 0
            self._make_locks()
            self.learners = threading.RLock()


_MODEL_LOCKS: dict[int, weakref.ref[ModelLock]] = {}
_PLAIN_LOCKS: list[threading.Lock] = []
_forking: list[tuple[ModelLock, bool]] = []


def fork_safe(lock: threading.Lock) -> threading.Lock:
    """A lock that no other thread holds when the process forks, so that a child finds it free."""
    _PLAIN_LOCKS.append(lock)
    return lock


def _before_fork() -> None:
    alive = [lock for lock in (reference() for reference in list(_MODEL_LOCKS.values())) if lock is not None]
    _forking[:] = [(lock, lock._before_fork()) for lock in alive]
    for lock in _PLAIN_LOCKS:  # after the others: who asks may hold one of these
        lock.acquire()


def _after_fork(in_child: bool) -> None:
    for lock in _PLAIN_LOCKS:
        lock.release()
    for model_lock, was_free in _forking:
        model_lock._after_fork(in_child, was_free)
    _forking.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=lambda: _after_fork(False),
        after_in_child=lambda: _after_fork(True),
    )
