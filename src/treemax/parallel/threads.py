"""Threads for kernels: they release the GIL, so plain Python threads use every core."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import threadpoolctl
from threadpoolctl import ThreadpoolController

from treemax.parallel.locks import fork_safe

Piece = TypeVar("Piece")
MOST_THREADS = 1024  # that may be asked for


def thread_count(n_jobs: int | None) -> int:
    """How many threads `n_jobs` means: None is one, -1 all cores, -2 all but one.

    >>> thread_count(None), thread_count(3)
    (1, 3)
    """
    if n_jobs is None:
        return 1
    if isinstance(n_jobs, bool) or not isinstance(n_jobs, int | np.integer) or n_jobs == 0:
        raise ValueError(f"n_jobs must be None or an integer other than zero, got {n_jobs!r}.")
    if n_jobs > MOST_THREADS:
        raise ValueError(f"n_jobs must be at most {MOST_THREADS}, got {n_jobs!r:.60}.")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(n_jobs) if n_jobs > 0 else max(1, cores + 1 + int(n_jobs))


def for_each(pieces: Iterable[Piece], work: Callable[[Piece], object], threads: int) -> Iterator[Piece]:
    """Call `work` on every piece, in order with one thread, and yield each piece when it is done.

    At most two pieces a thread are under way, so that an interruption is answered after one piece.
    """
    if threads == 1:
        for piece in pieces:
            with interruptible():
                work(piece)
            yield piece
        return
    under_way: dict[Future[object], Piece] = {}
    pool = ThreadPoolExecutor(threads)
    try:
        for piece in pieces:
            with delayed_interrupt():
                under_way[pool.submit(work, piece)] = piece
            while len(under_way) >= 2 * threads:
                yield from _finished(under_way)
        while under_way:
            yield from _finished(under_way)
    finally:
        with delayed_interrupt():
            pool.shutdown(wait=True, cancel_futures=True)
            del pool


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C inside is a `KeyboardInterrupt`, also where it comes while a kernel that returns arrays is running.

    Numba calls Python to make such arrays, which is where Ctrl-C comes to light; Numba does not look, and hands over
    the arrays with the exception beside them. Python calls that a SystemError, caused by the other.
    """
    try:
        yield
    except SystemError as error:
        cause: BaseException | None = error
        while isinstance(cause, SystemError):
            cause = cause.__cause__
        if isinstance(cause, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise


class delayed_interrupt:
    """Ctrl-C inside is answered at the end of the block.

    For what must not be left half done: Python's own queues and conditions are left locked, or unlocked twice, where it
    comes in their midst. Only the main thread hears of Ctrl-C; elsewhere this does nothing.

    >>> with delayed_interrupt():
    ...     pass
    """

    def __enter__(self) -> None:
        self._pressed = False
        in_main = threading.current_thread() is threading.main_thread()
        handler: Any = signal.getsignal(signal.SIGINT) if in_main else None
        self._handler = handler if callable(handler) else None
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._note)

    def __exit__(self, *_: object) -> None:
        if self._handler is None:
            return
        signal.signal(signal.SIGINT, self._handler)
        if self._pressed:
            self._handler(signal.SIGINT, None)

    def _note(self, number: int, frame: object) -> None:
        self._pressed = True


def run_all(pieces: Iterable[Piece], work: Callable[[Piece], object], threads: int) -> None:
    """Call `work` on every piece, and return when all are done."""
    for _ in for_each(pieces, work, threads):
        pass


def _finished(under_way: dict[Future[object], Piece]) -> Iterator[Piece]:
    with delayed_interrupt():
        done, _ = wait(under_way, return_when=FIRST_COMPLETED)
    for future in done:
        piece = under_way.pop(future)
        future.result()
        yield piece


class _QuietBlas:
    """Holds the linear algebra library to one thread while any of our threads calls it.

    The limit belongs to the process: the first to come sets it, the last to go puts it back.
    """

    def __init__(self) -> None:
        self._lock = fork_safe(threading.Lock())
        self._users = 0
        self._controller: ThreadpoolController | None = None
        self._limit: Any = None

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if self._users == 0:
                self._controller = self._controller or ThreadpoolController()
                self._limit = self._controller.limit(limits=1, user_api="blas")  # at once
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    _let_any_thread_set_limits()
                    self._limit.restore_original_limits()
                    _let_any_thread_set_limits()


def _let_any_thread_set_limits() -> None:
    """From 3.8 on, threadpoolctl ignores all threads but the one that set a limit, until it is told not to.
    Here the first to come sets the limit and the last to go lifts it, mostly another thread."""
    release = getattr(getattr(threadpoolctl, "OpenBLASController", None), "clear_controlling_thread", None)
    if release is not None:
        release(force=True)


one_blas_thread = _QuietBlas()
